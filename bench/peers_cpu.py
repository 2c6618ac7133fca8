#!/usr/bin/env python3
"""Forward attention on the CPU: libattn beside PyTorch and ONNX Runtime, in one process, alternating.

Run through scripts/peers.sh, which makes the Python environment. For every shape all contenders get the same numbers;
each output is first compared with float64 on sampled rows, then timed in turn (ours, peer, peer, ours ...) with a pause
between, so that no one's spinning threads disturb the next. Reported: median, GFLOP/s (4 B H S S D, half when causal),
largest error, and ours divided by the best peer. Ours and ONNX Runtime read [B, S, H, D]; PyTorch gets that layout and
[B, H, S, D], and the better of both counts.
"""
import argparse
import csv
import ctypes
import datetime
import itertools
import math
import os
import platform
import statistics
import sys
import time

import numpy as np
import torch
import torch.nn.functional as functional

try:
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper
except ImportError:  # PyTorch is the one peer then
    onnx = onnxruntime = None

from attn_ctypes import Args, Library, PlanInfo, stamped

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEADS = 8
TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
ONNX_TYPES = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16} if onnx else {}


class Ours:
    name = "libattn"

    def __init__(self, library, case, q, k, v):
        self.library, self.c = library, library.c
        self.plan = ctypes.c_void_p()
        problem = ctypes.create_string_buffer(Library.PROBLEM_ROOM)
        text = f"fwd:{case.dtype}:b1:h{HEADS}:s{case.tokens}:d{case.dim}" + (":causal" if case.causal else "")
        library.call("attn_problem_parse", problem, text.encode())
        self.context = library.context(device="cpu", threads=case.threads)
        library.call("attn_plan_create", ctypes.byref(self.plan), self.context, problem, None)
        self.size = self.c.attn_plan_workspace(self.plan)
        self.room = ctypes.create_string_buffer(self.size + 64)
        self.workspace = (ctypes.addressof(self.room) + 63) // 64 * 64
        self.inputs = (q, k, v)
        self.o = torch.empty_like(q)
        self.args = stamped(Args, q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), o=self.o.data_ptr())
        info = stamped(PlanInfo)
        library.call("attn_plan_query", self.plan, ctypes.byref(info))
        self.detail = info.implementation.decode()

    def run(self):
        self.library.call("attn_forward", self.plan, ctypes.byref(self.args), self.workspace, self.size, None)

    def output(self):
        self.run()
        return self.o

    def close(self):
        self.c.attn_plan_destroy(self.plan)
        self.c.attn_context_destroy(self.context)


# --- Peers ---


class Torch:
    def __init__(self, case, q, k, v, contiguous):
        torch.set_num_threads(case.threads)
        self.name = "pytorch"
        self.detail = "bhsd" if contiguous else "bshd"
        self.tensors = [x.transpose(1, 2).contiguous() if contiguous else x.transpose(1, 2) for x in (q, k, v)]
        self.causal = case.causal

    def run(self):
        with torch.inference_mode():
            return functional.scaled_dot_product_attention(*self.tensors, is_causal=self.causal)

    def output(self):
        return self.run().transpose(1, 2)

    def close(self):
        pass


def onnx_session(case, operator):
    """One node over [1, S, H * D] tensors."""
    kind, shape = ONNX_TYPES[case.dtype], [1, case.tokens, HEADS * case.dim]
    value = lambda name: helper.make_tensor_value_info(name, kind, shape)
    names, extra, attributes, domain = ["q", "k", "v"], [], {}, "com.microsoft"
    if operator == "MultiHeadAttention":
        attributes = {"num_heads": HEADS, "unidirectional": int(case.causal)}
    elif operator == "GroupQueryAttention":
        attributes = {"num_heads": HEADS, "kv_num_heads": HEADS}
        names += ["", "", "seqlens", "total"]
        extra = [helper.make_tensor("seqlens", TensorProto.INT32, [1], [case.tokens - 1]),
                 helper.make_tensor("total", TensorProto.INT32, [], [case.tokens])]
    else:
        attributes, domain = {"q_num_heads": HEADS, "kv_num_heads": HEADS, "is_causal": int(case.causal)}, ""
    outputs = ["o", "pk", "pv"] if operator == "GroupQueryAttention" else ["o"]
    node = helper.make_node(operator, names, outputs, domain=domain, **attributes)
    graph = helper.make_graph([node], "attention", [value(n) for n in "qkv"], [value("o")], initializer=extra)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 23),
                                                                   helper.make_opsetid("com.microsoft", 1)])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = case.threads
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Onnx:
    name = "onnxruntime"

    def __init__(self, case, q, k, v, operator):
        self.detail = operator
        self.session = onnx_session(case, operator)
        self.feed = {n: x.reshape(1, case.tokens, -1).numpy() for n, x in zip("qkv", (q, k, v))}

    def run(self):
        return self.session.run(["o"], self.feed)[0]

    def output(self):
        return torch.from_numpy(self.run()).reshape(1, -1, HEADS, self.feed["q"].shape[2] // HEADS)

    def close(self):
        pass


# --- One row ---


class Case:
    def __init__(self, dtype, tokens, dim, causal, threads):
        self.dtype, self.tokens, self.dim, self.causal, self.threads = dtype, tokens, dim, causal, threads

    def flop(self):
        return 4 * HEADS * self.tokens**2 * self.dim / (2 if self.causal else 1)


def sampled_error(case, inputs, output):
    """Largest error on a few rows of every head, against float64."""
    rows = sorted({0, 1, 63, 64, case.tokens // 2 + 1, case.tokens - 1})
    q, k, v = (x[0].double() for x in inputs)
    worst = 0.0
    for row in rows:
        seen = row + 1 if case.causal else case.tokens
        scores = torch.einsum("hd,shd->hs", q[row], k[:seen]) / math.sqrt(case.dim)
        want = torch.einsum("hs,shd->hd", torch.softmax(scores, 1), v[:seen])
        worst = max(worst, (output[0, row].double() - want).abs().nan_to_num(nan=math.inf).max().item())
    return worst


def contenders(library, case, inputs):
    yield lambda: Ours(library, case, *inputs)
    yield lambda: Torch(case, *inputs, contiguous=True)
    yield lambda: Torch(case, *inputs, contiguous=False)
    if case.dtype in ONNX_TYPES:
        yield lambda: Onnx(case, *inputs, operator="MultiHeadAttention")
        yield lambda: Onnx(case, *inputs, operator="Attention")
        if case.causal:
            yield lambda: Onnx(case, *inputs, operator="GroupQueryAttention")


def time_alternating(runners, seconds, threads):
    """Seconds of each run; at least three rounds, at most fifteen. One thread is timed by its own processor time, which
    other programs on the machine disturb less."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    samples, begin = [[] for _ in runners], time.perf_counter()
    while len(samples[0]) < 15 and (len(samples[0]) < 3 or time.perf_counter() - begin < seconds):
        for runner, mine in zip(runners, samples):
            time.sleep(0.02)
            start = clock()
            runner.run()
            mine.append(clock() - start)
    return samples


def measure(library, case, seconds):
    torch.manual_seed(1)
    inputs = [torch.randn(1, case.tokens, HEADS, case.dim).to(TYPES[case.dtype]) for _ in range(3)]
    runners, errors = [], []
    for make in contenders(library, case, inputs):
        try:
            runner = make()
            error = sampled_error(case, inputs, runner.output())
        except Exception as problem:  # a peer that lacks a type or form is left out, and said so
            if not runners:
                raise
            print(f"left out: {str(problem).splitlines()[0][:150]}", file=sys.stderr)
            continue
        runners.append(runner)
        errors.append(error)
    allowed = {"f32": 1e-5, "f16": 2e-3, "bf16": 2e-2}[case.dtype]
    for runner, error in zip(runners, errors):
        if not error <= allowed:
            if runner is runners[0]:
                raise SystemExit(f"wrong result: {runner.name} {runner.detail} is off by {error:.2e}")
            print(f"wrong result, left out: {runner.name} {runner.detail} is off by {error:.2e}", file=sys.stderr)
    kept = [i for i, error in enumerate(errors) if error <= allowed]
    samples = time_alternating([runners[i] for i in kept], seconds, case.threads)
    rows = []
    for i, times in zip(kept, samples):
        median = statistics.median(times)
        rows.append({"contender": runners[i].name, "detail": runners[i].detail, "median_ms": 1e3 * median,
                     "spread": (max(times) - min(times)) / median, "gflops": case.flop() / median / 1e9,
                     "max_error": errors[i]})
    for runner in runners:
        runner.close()
    return rows


def cpu_name():
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def parse_arguments():
    integers = lambda text: [int(x) for x in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", default="f32,bf16,f16", help="list of f32, bf16, f16")
    parser.add_argument("--tokens", type=integers, default=[512, 2048, 8192])
    parser.add_argument("--dims", type=integers, default=[64, 128])
    parser.add_argument("--threads", type=integers, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=4.0, help="time spent a row, roughly")
    parser.add_argument("--quick", action="store_true", help="S 512 and 2048, a second a row")
    parser.add_argument("--library", default=os.path.join(ROOT, "build", "libattn.so"))
    parser.add_argument("--out", help="CSV file; default: bench/results/peers_cpu.csv")
    options = parser.parse_args()
    if options.quick:
        options.tokens, options.seconds = [512, 2048], 1.0
    return options


COLUMNS = ["date", "cpu", "threads", "dtype", "tokens", "dim", "causal", "contender", "detail", "median_ms", "spread",
           "gflops", "max_error", "ours_over_it"]


def main():
    options = parse_arguments()
    library = Library(options.library)
    target = options.out or os.path.join(ROOT, "bench", "results", "peers_cpu.csv")
    os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
    common = {"date": datetime.date.today().isoformat(), "cpu": cpu_name()}
    others = f"onnxruntime {onnxruntime.__version__}, onnx {onnx.__version__}" if onnx else "onnxruntime is not here"
    print(f"torch {torch.__version__}, {others}, {common['cpu']}")
    print(f"{'threads':>7} {'type':>4} {'S':>5} {'D':>4} {'mask':>6} {'ours':>8} {'best peer':>9}  ratio  which")
    with open(target, "w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        shapes = itertools.product(options.threads, options.types.split(","), options.dims, options.tokens, [0, 1])
        for threads, dtype, dim, tokens, causal in shapes:
            case = Case(dtype, tokens, dim, bool(causal), threads)
            rows = measure(library, case, options.seconds)
            ours, peers = rows[0], rows[1:]
            best = max(peers, key=lambda row: row["gflops"], default=None)
            for row in rows:
                row["ours_over_it"] = ours["gflops"] / row["gflops"]
                shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}
                table.writerow({**common, "threads": threads, "dtype": dtype, "tokens": tokens, "dim": dim,
                                "causal": causal, **shown})
            file.flush()
            mask = "causal" if causal else "full"
            print(f"{threads:7} {dtype:>4} {tokens:5} {dim:4} {mask:>6} {ours['gflops']:8.1f} "
                  f"{best['gflops']:9.1f}  {best['ours_over_it']:5.2f}  {best['contender']} {best['detail']}"
                  f"  (ours: {ours['detail']}, error {ours['max_error']:.1e})", flush=True)
    print(f"rows: {os.path.relpath(target)}")


if __name__ == "__main__":
    main()
