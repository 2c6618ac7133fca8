#!/usr/bin/env python3
"""Attention on a GPU: libattn beside the implementations that PyTorch brings, in one process, alternating.

    bench/peers.py                    everything: a table on the terminal, a CSV in bench/results/
    bench/peers.py --quick            the shapes that tell most, about a minute

All contenders read the same [B, S, H, D] tensors (PyTorch as transposed views). One head of each result is compared with
float64 before anything is timed: max|error| <= 2 * max|error of the plain computation in the same type| + 2 units in the
last place; a peer that misses it, or lacks the form, has no row. Then each contender in turn launches N times between
two synchronisations, N such that this takes about 40 ms; the median of at least seven such batches counts. FLOP are the
papers': forward 4 B H S S D, half of it when causal, backward 2.5 times as much.

Needs PyTorch with CUDA and a built libattn.so (--library). Parts: sweep, heads, long, host.
"""
import argparse
import csv
import datetime
import itertools
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from attn_ctypes import Library, Plan  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
PEERS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
         "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


class Case:
    def __init__(self, dtype, batch, heads_q, heads_kv, tokens, dim, causal):
        self.dtype, self.batch, self.heads_q, self.heads_kv = dtype, batch, heads_q, heads_kv
        self.tokens, self.dim, self.causal = tokens, dim, causal

    def text(self, backward):
        return (f"{'bwd' if backward else 'fwd'}:{self.dtype}:b{self.batch}:hq{self.heads_q}:hk{self.heads_kv}"
                f":s{self.tokens}:d{self.dim}" + (":causal" if self.causal else ""))

    def flop(self, backward):
        forward = 4 * self.batch * self.heads_q * self.tokens ** 2 * self.dim * (0.5 if self.causal else 1)
        return forward * (2.5 if backward else 1)

    def tensors(self):
        torch.manual_seed(1)
        make = lambda heads: torch.randn(self.batch, self.tokens, heads, self.dim, device="cuda",
                                         dtype=TYPES[self.dtype])
        return {"q": make(self.heads_q), "k": make(self.heads_kv), "v": make(self.heads_kv), "dout": make(self.heads_q)}


# --- Contenders: forward() gives o; gradients() gives dq, dk, dv, all [B, S, H, D]; run is what is timed. ---


class Ours:
    name = "libattn"

    def __init__(self, library, context, case, x, backward):
        self.o = torch.empty_like(x["q"])
        self.lse = torch.empty(case.batch, case.heads_q, case.tokens, dtype=torch.float32, device="cuda")
        self.plans = [Plan(library, context, case.text(False))]
        self.plans[0].bind(q=x["q"], k=x["k"], v=x["v"], o=self.o, lse=self.lse)
        if backward:
            self.out = [torch.empty_like(x[name]) for name in "qkv"]
            self.plans.append(Plan(library, context, case.text(True)))
            self.plans[1].bind(q=x["q"], k=x["k"], v=x["v"], o=self.o, lse=self.lse, dout=x["dout"], dq=self.out[0],
                               dk=self.out[1], dv=self.out[2])
        self.detail = self.plans[-1].implementation + " " + self.plans[-1].tile
        self.run = self.plans[-1].run

    def forward(self):
        self.plans[0].run()
        return self.o

    def gradients(self):
        self.plans[0].run()
        self.plans[1].run()
        return self.out

    def close(self):
        for plan in self.plans:
            plan.close()


class Peer:
    """scaled_dot_product_attention by one backend; gradients through autograd, its graph kept."""

    def __init__(self, name, case, x, backward):
        self.name, self.detail, self.backward = name, "", backward
        self.inputs = [x[n].transpose(1, 2).detach().requires_grad_(backward) for n in "qkv"]
        self.dout = x["dout"].transpose(1, 2)
        self.causal, self.grouped = case.causal, case.heads_q != case.heads_kv
        if backward:
            self.result = self.attend()
            self.run = self.differentiate
        else:
            self.run = self.attend

    def attend(self):
        with torch.set_grad_enabled(self.backward), sdpa_kernel(PEERS[self.name]):
            return functional.scaled_dot_product_attention(*self.inputs, is_causal=self.causal,
                                                           enable_gqa=self.grouped)

    def differentiate(self):
        return torch.autograd.grad(self.result, self.inputs, self.dout, retain_graph=True)

    def forward(self):
        return self.attend().transpose(1, 2)

    def gradients(self):
        return [g.transpose(1, 2) for g in self.differentiate()]

    def close(self):
        self.inputs = self.result = None


class Flex(Peer):
    def __init__(self, name, case, x, backward):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        torch._dynamo.reset()
        self.flex = torch.compile(flex_attention, dynamic=False)
        self.mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, case.tokens, case.tokens,
                                      device="cuda") if case.causal else None
        super().__init__(name, case, x, backward)

    def attend(self):
        with torch.set_grad_enabled(self.backward):
            return self.flex(*self.inputs, block_mask=self.mask, enable_gqa=self.grouped)


# --- Right or not: one kv head of one sequence against float64, beside the plain computation ---


def one_head(case, x, sequence, kv, plain):
    """o, dq of the group's heads, dk, dv; `plain` stores scores and probabilities in the input type."""
    group, scale = case.heads_q // case.heads_kv, case.dim ** -0.5
    low = TYPES[case.dtype]
    wide = torch.float32 if plain else torch.float64
    keep = (lambda t: t.to(low).to(wide)) if plain else (lambda t: t)
    k, v = x["k"][sequence, :, kv].to(wide), x["v"][sequence, :, kv].to(wide)
    dk, dv, o, dq = torch.zeros_like(k), torch.zeros_like(v), [], []
    rows = max(64, min(case.tokens, 2 ** 26 // case.tokens))
    for head in range(kv * group, (kv + 1) * group):
        for begin in range(0, case.tokens, rows):
            end = min(begin + rows, case.tokens)
            q = x["q"][sequence, begin:end, head].to(wide)
            dout = x["dout"][sequence, begin:end, head].to(wide)
            seen = end if case.causal else case.tokens
            s = keep(q @ k[:seen].T) * scale
            if case.causal:
                position = torch.arange(begin, end, device="cuda")
                s.masked_fill_(position[:, None] < torch.arange(seen, device="cuda")[None, :], -math.inf)
            p = torch.softmax(s, dim=-1)
            out = keep(keep(p) @ v[:seen])
            dp = keep(dout @ v[:seen].T)
            ds = keep(p * (dp - (out * dout).sum(-1, keepdim=True)))
            o.append(out)
            dq.append(keep(ds @ k[:seen] * scale))
            dk[:seen] += ds.T @ q * scale
            dv[:seen] += keep(p).T @ dout
    stack = lambda parts: torch.cat(parts).reshape(group, case.tokens, case.dim).transpose(0, 1)
    return stack(o), stack(dq), keep(dk), keep(dv)


class Truth:
    def __init__(self, case, x):
        self.sequence, self.kv = random.randrange(case.batch), random.randrange(case.heads_kv)
        self.group = case.heads_q // case.heads_kv
        self.exact = one_head(case, x, self.sequence, self.kv, False)
        plain = one_head(case, x, self.sequence, self.kv, True)
        digits = {"f16": 10, "bf16": 7, "f32": 23}[case.dtype]
        self.allowed = []
        for want, got in zip(self.exact, plain):
            largest = want.abs().max().item()
            unit = 2.0 ** (math.floor(math.log2(largest)) - digits)
            self.allowed.append(2 * (got - want).abs().max().item() + 2 * unit)

    def excess(self, results, backward):
        """Largest error over what is allowed; above 1 it is wrong."""
        heads = slice(self.kv * self.group, (self.kv + 1) * self.group)
        places = [heads, self.kv, self.kv] if backward else [heads]
        wants = range(1, 4) if backward else range(1)
        worst = 0.0
        for result, place, n in zip(results, places, wants):
            error = (result[self.sequence, :, place].to(torch.float64) - self.exact[n]).abs().max().item()
            worst = max(worst, error / self.allowed[n] if math.isfinite(error) else math.inf)
        return worst


# --- Timing ---


def batch_seconds(run, launches):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(launches):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / launches


def time_alternating(runners, options):
    launches = []
    for runner in runners:
        batch_seconds(runner.run, 2)
        launches.append(max(1, math.ceil(options.batch / batch_seconds(runner.run, 2))))
    samples = [[] for _ in runners]
    for _ in range(options.rounds):
        for runner, n, mine in zip(runners, launches, samples):
            time.sleep(options.pause)
            mine.append(batch_seconds(runner.run, n))
    return samples


def measure(library, context, case, backward, names, options, x, truth):
    """Rows of one problem, ours first."""
    runners, rows = [], []
    makers = [("libattn", lambda: Ours(library, context, case, x, backward))]
    makers += [(n, lambda n=n: (Flex if n == "flex" else Peer)(n, case, x, backward)) for n in names]
    for name, make in makers:
        try:
            runner = make()
            excess = truth.excess(runner.gradients() if backward else [runner.forward()], backward)
            torch.cuda.synchronize()
        except Exception as problem:
            torch.cuda.empty_cache()
            lines = str(problem).splitlines() or [repr(problem)]
            print(f"    left out: {name} {case.text(backward)}: {lines[0][:140]}", flush=True)
            continue
        if excess > 1:
            print(f"    WRONG, left out: {name} {case.text(backward)}: error {excess:.2f} of what is allowed", flush=True)
            runner.close()
            continue
        runner.excess = excess
        runners.append(runner)
    if not runners:
        return rows
    for runner, times in zip(runners, time_alternating(runners, options)):
        median = statistics.median(times)
        rows.append({"problem": case.text(backward), "contender": runner.name, "detail": runner.detail,
                     "median_ms": 1e3 * median, "spread": (max(times) - min(times)) / median,
                     "tflops": case.flop(backward) / median / 1e12, "error_share": runner.excess})
    for runner in runners:
        runner.close()
    ours = next((row for row in rows if row["contender"] == "libattn"), None)
    for row in rows:
        row["ours_over_it"] = ours["tflops"] / row["tflops"] if ours else float("nan")
    return rows


# --- Parts ---


def sweep_cases(options):
    """16k tokens, hidden width 2048."""
    lengths = [2048, 16384] if options.quick else [512, 1024, 2048, 4096, 8192, 16384]
    types = ["bf16"] if options.quick else ["bf16", "f16"]
    for dtype, dim, tokens, causal in itertools.product(types, [128, 64, 256], lengths, [False, True]):
        yield Case(dtype, 16384 // tokens, 2048 // dim, 2048 // dim, tokens, dim, causal), ["flash", "cudnn"]


def head_cases(options):
    """The table of the QiMeng-Attention paper."""
    names = ["flash", "cudnn"] if options.quick else ["flash", "cudnn", "efficient", "math", "flex"]
    for heads_kv in (16, 8, 2, 1):
        yield Case("f16", 8, 16, heads_kv, 2048, 128, True), names


def run_table(library, context, cases, options, write):
    print(f"{'problem':48} {'ours TFLOP/s':>12} {'detail':>16}  ratios to peers (rate of the peer)")
    for case, names in cases:
        x = case.tensors()
        truth = Truth(case, x)
        for backward in (False, True):
            rows = measure(library, context, case, backward, names, options, x, truth)
            write(rows)
            ours = next((row for row in rows if row["contender"] == "libattn"), None)
            beside = ", ".join(f"{row['contender']} {row['ours_over_it']:.3f} ({row['tflops']:.0f})" for row in rows
                               if row["contender"] != "libattn")
            print(f"{case.text(backward):48} {ours['tflops'] if ours else float('nan'):12.1f} "
                  f"{ours['detail'] if ours else '-':>16}  {beside}", flush=True)
        del x, truth
        torch.cuda.empty_cache()


def run_long(library, context, options, write):
    """128K tokens: does it run, in which memory, how fast."""
    case = Case("bf16", 1, 32, 8, 131072, 128, True)
    x = case.tensors()
    truth = None if options.quick else Truth(case, x)
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ours = Ours(library, context, case, x, True)
    outputs = sum(t.numel() * t.element_size() for t in [ours.o, *ours.out])
    results = ours.gradients()
    torch.cuda.synchronize()
    beyond = torch.cuda.max_memory_allocated() - before - outputs
    outside = free - torch.cuda.mem_get_info()[0] - (torch.cuda.memory_reserved() - before)
    plans = {name: plan.workspace_size for name, plan in zip(("forward", "backward"), ours.plans)}
    lse = ours.lse.numel() * 4
    print(f"128K tokens, 32:8 heads, d 128, causal: workspaces by the plans {plans}, lse {lse}; measured beyond inputs "
          f"and outputs {beyond} bytes; taken outside PyTorch's allocator {outside} bytes")
    if truth:
        excess = [truth.excess([ours.o], False), truth.excess(results, True)]
        print(f"    errors, of what is allowed: forward {excess[0]:.2f}, backward {excess[1]:.2f}")
    ours.close()
    del ours, results
    few = argparse.Namespace(**{**vars(options), "rounds": 1 if options.quick else 3})
    for backward in (False, True):
        runners = [Ours(library, context, case, x, backward)]
        if backward:
            runners[0].gradients()
        runners += [Peer(name, case, x, backward) for name in ("flash", "cudnn")] if not options.quick else []
        for runner, times in zip(runners, time_alternating(runners, few)):
            median = statistics.median(times)
            tflops = case.flop(backward) / median / 1e12
            if runner.name == "libattn":
                mine = tflops
            print(f"    {case.text(backward)}: {runner.name} {1e3 * median:.1f} ms, {tflops:.0f} TFLOP/s", flush=True)
            write([{"problem": case.text(backward), "contender": runner.name, "detail": runner.detail,
                    "median_ms": 1e3 * median, "spread": (max(times) - min(times)) / median, "tflops": tflops,
                    "error_share": math.nan, "ours_over_it": mine / tflops}])
        for runner in runners:
            runner.close()
        torch.cuda.empty_cache()


def run_host(library, options, write):
    """Seconds until a plan stands, with nothing cached and with a filled cache on disk; then what a call costs the host.
    The compiler keeps a cache of its own, so the first plan is made in a process that is told to leave it alone."""
    folder = tempfile.mkdtemp()
    case = Case("bf16", 8, 16, 16, 2048, 128, True)
    for state in ("empty", "filled"):
        for backward in (False, True):
            text = case.text(backward)
            code = ("import sys, time; sys.path.insert(0, sys.argv[1])\n"
                    "from attn_ctypes import Library, Plan\n"
                    "library = Library(sys.argv[2]); context = library.context(cache=sys.argv[3])\n"
                    "start = time.perf_counter(); Plan(library, context, sys.argv[4])\n"
                    "print(time.perf_counter() - start)")
            run = subprocess.run([sys.executable, "-c", code, os.path.dirname(os.path.abspath(__file__)),
                                  options.library, folder, text], capture_output=True, text=True, check=False,
                                 env={**os.environ, "CUDA_CACHE_DISABLE": "1"})
            if run.returncode:
                print(f"    left out: first plan of {text}: {run.stderr.strip().splitlines()[-1]}")
                continue
            milliseconds = 1e3 * float(run.stdout)
            print(f"first plan, {state} cache: {text}: {milliseconds:.1f} ms", flush=True)
            write([{"problem": text, "contender": "libattn", "detail": f"first plan, {state} cache",
                    "median_ms": milliseconds}])
    shutil.rmtree(folder)
    program = os.path.join(os.path.dirname(options.library), "bench", "host_gpu")
    if not os.path.exists(program):
        print(f"    left out: host time of a call: no {program}")
        return
    print(subprocess.run([program], capture_output=True, text=True, check=False).stdout, end="")


# --- The run ---


COLUMNS = ["date", "gpu", "driver", "cuda", "pytorch", "cudnn", "commit", "problem", "contender", "detail", "median_ms",
           "spread", "tflops", "error_share", "ours_over_it"]


def command_output(*words):
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=[], help="sweep, heads, long, host; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer shapes and peers")
    parser.add_argument("--batch", type=float, default=0.04, help="seconds of launches between synchronisations")
    parser.add_argument("--rounds", type=int, default=7, help="batches a contender, at least 7")
    parser.add_argument("--pause", type=float, default=0.005, help="seconds before each batch")
    parser.add_argument("--library", default=os.path.join(ROOT, "build", "libattn.so"))
    parser.add_argument("--commit", default=command_output("git", "rev-parse", "--short", "HEAD"))
    parser.add_argument("--out", help="CSV file; default: bench/results/DATE-peers-GPU.csv")
    options = parser.parse_args()
    options.library = os.path.abspath(options.library)
    return options


def main():
    options = parse_arguments()
    random.seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    gpu = torch.cuda.get_device_name()
    short = gpu.lower().replace("nvidia ", "").replace(" ", "-")
    common = {"date": datetime.date.today().isoformat(), "gpu": gpu, "cuda": torch.version.cuda,
              "driver": command_output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
              "pytorch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "commit": options.commit}
    target = options.out or os.path.join(ROOT, "bench", "results", f"{common['date']}-peers-{short}.csv")
    os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
    library = Library(options.library)
    torch.zeros(1, device="cuda")  # PyTorch's context is the one that everything works in
    context = library.context()
    parts = options.parts or ["sweep", "heads", "long", "host"]
    print(", ".join(f"{key} {value}" for key, value in common.items()), flush=True)
    with open(target, "w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()

        def write(rows):
            for row in rows:
                shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}
                table.writerow({**common, **shown})
            file.flush()

        if "sweep" in parts:
            run_table(library, context, sweep_cases(options), options, write)
        if "heads" in parts:
            run_table(library, context, head_cases(options), options, write)
        if "long" in parts:
            run_long(library, context, options, write)
        if "host" in parts:
            run_host(library, options, write)
    library.c.attn_context_destroy(context)
    print(f"rows: {os.path.relpath(target)}")


if __name__ == "__main__":
    main()
