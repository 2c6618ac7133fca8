"""The parts of a run: which problems meet which contenders."""
import dataclasses
import itertools
import math
import re
import statistics
import time

import torch

from . import contenders, problems
from .host import host
from .timing import alternate
from .truth import NAMES, Truth, root_mean_square


class Bench:
    def __init__(self, options, meter, table):
        self.options, self.meter, self.table = options, meter, table
        self.end = time.perf_counter() + options.seconds
        self.missing, self.skipped = set(), 0

    def over(self, text):
        """Not wanted, or no time left for it."""
        if self.options.match and not re.search(self.options.match, text):
            return True
        if time.perf_counter() > self.end:
            self.skipped += 1
            return True
        return False

    def try_make(self, name, case, x, backward, truth):
        """A contender whose result has been found right, or None."""
        if name in self.missing or name in self.options.without:
            return None
        text, runner = f"{name} {case.text(backward)}", None
        try:
            runner = contenders.make(name, case, x, backward, self.options)
            runner.excess = truth.excess(runner.gradients() if backward else [runner.forward()], backward) if truth else math.nan
            torch.cuda.synchronize()
        except ImportError as problem:
            self.missing.add(name)
            print(f"    not here: {name}: {str(problem)[:160]}", flush=True)
            return None
        except Exception as problem:
            torch.cuda.empty_cache()
            lines = str(problem).splitlines() or [repr(problem)]
            print(f"    left out: {text}: {lines[0][:160]}", flush=True)
            return None
        if runner.excess > 1:
            print(f"    WRONG, left out: {text}: error {runner.excess:.2f} of what is allowed", flush=True)
            runner.close()
            return None
        return runner

    def rows(self, part, case, backward, runners, launches=1):
        """Times the runners and writes their rows; `launches` in a run()."""
        if not runners:
            return []
        rows = []
        for runner, (seconds, clock, power) in zip(runners, alternate(runners, self.options, self.meter)):
            median = statistics.median(seconds) / launches
            of = runner.case if runner.name.startswith("libattn") and hasattr(runner, "case") else case
            rows.append({"problem": of.text(backward), "note": case.note, "contender": runner.name, "detail": runner.detail,
                         "median_ms": 1e3 * median, "spread": (max(seconds) - min(seconds)) / launches / median,
                         "clock_mhz": clock, "power_w": power, "tflops": case.flop(backward) / median / 1e12,
                         "error_share": runner.excess})
            if case.queries == 1:
                rows[-1]["tb_s"] = case.bytes_of_keys() / median / 1e12
        ours = next((row for row in rows if row["contender"] == "libattn"), None)
        for row in rows:
            row["ours_over_it"] = row["median_ms"] / ours["median_ms"] if ours else math.nan
        self.table.write(part, rows)
        self.table.show(part, case, backward, rows)
        return rows

    def meet(self, part, case, names, passes=(False, True), variants=()):
        """variants: (name, case) of ours under other settings, on the same tensors."""
        passes = [b for b in passes if not self.over(case.text(b))]
        if not passes:
            return
        x = case.tensors()
        truth = None if self.options.unchecked else Truth(case, x)
        torch.cuda.empty_cache()
        for backward in passes:
            runners = [self.try_make(name, case, x, backward, truth) for name in names]
            runners += [self.try_make(name, other, reshaped(other, x), backward, truth if same_pairs(case, other) else None)
                        for name, other in variants]
            runners = [r for r in runners if r]
            try:
                self.rows(part, case, backward, runners)
            finally:
                for runner in runners:
                    runner.close()
                del runners
                torch.cuda.empty_cache()


def same_pairs(case, other):
    return all(getattr(case, n) == getattr(other, n) for n in ("causal", "window", "first", "lengths"))


def reshaped(case, x):
    """Packed tensors as the dense ones of a case with equal lengths."""
    if case.lengths or "starts" not in x:
        return x
    return {n: t.view(case.batch, case.tokens, *t.shape[1:]) for n, t in x.items() if n != "starts"}


def sweep(bench):
    quick = bench.options.quick
    lengths = (2048, 16384) if quick else (512, 2048, 8192, 16384)
    for case in problems.sweep(["bf16"] if quick else bench.options.types, lengths):
        bench.meet("sweep", case, ["libattn", "fa3", "fa4", "cudnn"])


def heads(bench):
    for case in problems.heads():
        bench.meet("heads", case, ["libattn", "fa3", "fa4", "cudnn", "flash"])


def long(bench):
    rounds = bench.options.rounds
    for case in problems.long_rows((32768,) if bench.options.quick else (32768, 65536, 131072)):
        bench.options.rounds = min(rounds, 5) if case.tokens > 65536 else rounds
        bench.meet("long", case, ["libattn", "fa3", "fa4", "cudnn"])
    bench.options.rounds = rounds


def packed(bench):
    for case in problems.packed(bench.options.quick):
        dense = dataclasses.replace(case, lengths=(), note="")
        equal = len(set(case.lengths)) == 1
        bench.meet("packed", case, ["libattn", "fa3", "fa4"], variants=[("libattn-dense", dense)] if equal else [])


def windows(bench):
    for case in problems.windows():
        plain = dataclasses.replace(case, first=0)
        names = ["libattn", "fa3", "fa4"] + (["flex"] if case.first else [])
        bench.meet("windows", case, names, variants=[("libattn-without-globals", plain)] if case.first else [])


def deterministic(bench):
    for case in problems.deterministic(bench.options.quick):
        same = dataclasses.replace(case, deterministic=True)
        bench.meet("deterministic", case, ["libattn"], passes=(True,), variants=[("libattn-deterministic", same), ("fa4", same)])
        same_bits(bench, same)


def same_bits(bench, case):
    if bench.over(case.text(True)):
        return
    x = case.tensors(seed=2)
    runner = bench.try_make("libattn", case, x, True, None)
    if runner:
        first = [g.clone() for g in runner.gradients()]
        equal = all(torch.equal(g, again) for _ in range(3) for g, again in zip(first, runner.gradients()))
        print(f"{case.text(True)}: {'the same bits four times' if equal else 'NOT the same bits'}", flush=True)
        runner.close()


def decode(bench):
    """Calls in a graph, over so many sets of tensors that none of them is found in the second-level cache."""
    for case in problems.decode():
        if bench.over(case.text(False)):
            continue
        sets = max(2, math.ceil(2 ** 28 / case.bytes_of_keys()))
        x = [case.tensors(seed=n) for n in range(sets)]
        truth = Truth(case, x[0])
        runners = []
        for name in ("libattn", "fa3-vllm", "cudnn", "flash"):
            members = [bench.try_make(name, case, tensors, False, None if n else truth) for n, tensors in enumerate(x)]
            if None in members:
                continue
            try:
                runner = contenders.Graph(members)
            except RuntimeError as problem:
                print(f"    left out: {name} in a graph: {str(problem).splitlines()[0][:160]}", flush=True)
                torch.cuda.synchronize()
                continue
            runner.excess = members[0].excess
            runners.append(runner)
        bench.rows("decode", case, False, runners, launches=sets)
        for runner in runners:
            runner.close()
        del x, runners
        torch.cuda.empty_cache()


def accuracy(bench):
    """RMS errors against float64, as in the FlashAttention-3 paper's table: normal inputs and inputs with outliers."""
    for case, outliers in itertools.product(problems.accuracy(), (False, True)):
        text = case.text(True) + (" with outliers" if outliers else "")
        if bench.over(text):
            continue
        x, found = case.tensors(outliers=outliers), {}
        for name in ("libattn", "cudnn", "fa3", "fa4"):
            runner = bench.try_make(name, case, x, True, None)
            if runner:
                found[name] = [t.clone() for t in (runner.forward(), *runner.gradients())]
                torch.cuda.synchronize()
                runner.close()
        errors, plain = root_mean_square(case, x, list(found.values()))
        errors = {**dict(zip(found, errors)), "plain": plain}
        bench.table.write("accuracy", [{"problem": case.text(True), "note": "outliers" if outliers else "", "contender": name,
                                        **{f"rms_{n}": e[n] for n in NAMES}} for name, e in errors.items()])
        print(text + ": " + "  ".join(f"{name} " + "/".join(f"{e[n]:.2e}" for n in NAMES) for name, e in errors.items()), flush=True)
        if "libattn" in errors and "cudnn" in errors:
            shares = [errors["libattn"][n] / errors["cudnn"][n] for n in NAMES]
            print("    ours over cudnn: " + "  ".join(f"{n} {s:.3f}" for n, s in zip(NAMES, shares)), flush=True)
        del x, found
        torch.cuda.empty_cache()


PARTS = {f.__name__: f for f in (sweep, heads, long, packed, windows, decode, deterministic, accuracy, host)}
