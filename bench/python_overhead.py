#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call of attn.attention costs the host beside scaled_dot_product_attention, in one process, alternating.

    bench/python_overhead.py [--device cpu|cuda] [--repeats 15] [--csv FILE]

A problem too small to take time of its own: [1, 16, 2, 64], bf16 on a GPU and f32 on the CPU. Rows: a forward without
gradients, a forward that records them, forward and backward together, the first and the last also through the drop-in
flash_attn_func; on a GPU also replays of a CUDA graph of 20 forwards, for one call of them. Each contender in turn calls 200 times (on a GPU without waiting, since that many fit in
its queue); the least of all batches counts for the host's cost, the median is beside it. The targets are issued against
the least: 5 us more than SDPA without gradients, 10 us more with. Also: what importing attn adds to importing torch."""
import argparse
import csv
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "python"))

import torch  # noqa: E402

import attn  # noqa: E402
from attn.flash_attn import flash_attn_func  # noqa: E402

CALLS, GRAPH = 200, 20
sdpa = torch.nn.functional.scaled_dot_product_attention


def tensors(device, gradients, heads_first):
    shape = (1, 2, 16, 64) if heads_first else (1, 16, 2, 64)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    made = [torch.randn(shape, device=device, dtype=dtype) for _ in range(4)]
    return [t.requires_grad_(gradients) for t in made[:3]], made[3]


def contender(function, device, what):
    inputs, dout = tensors(device, what != "forward", function is sdpa)
    call = lambda: function(*inputs)
    if what == "forward and backward":
        return lambda: torch.autograd.grad(call(), inputs, dout)
    return call


def graph(function):
    call = contender(function, "cuda", "forward")
    side = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(recorded):
        for _ in range(GRAPH):
            call()
    return recorded.replay


def batch(device, run, calls):
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    host = time.perf_counter() - start
    if device == "cuda":
        torch.cuda.synchronize()
    return host / calls * 1e6, (time.perf_counter() - start) / calls * 1e6


def measure(device, pair, repeats, calls=CALLS, whole=False):
    found = [[], []]
    for run in pair:
        batch(device, run, 20)
    for _ in range(repeats):
        for times, run in zip(found, pair):
            times.append(batch(device, run, calls)[whole])
    return [(min(times), statistics.median(times)) for times in found]


def imports():
    program = "import torch, time; t = time.perf_counter(); import attn; print(time.perf_counter() - t)"
    env = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}
    times = [float(subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout)
             for _ in range(3)]
    return min(times) * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--csv")
    given = parser.parse_args()
    rows = []
    for ours, what, limit in ((attn.attention, "forward", 5), (attn.attention, "forward, recording", 10),
                              (attn.attention, "forward and backward", 10), (flash_attn_func, "forward", 5),
                              (flash_attn_func, "forward and backward", 10)):  # fmt: skip
        with torch.set_grad_enabled(what != "forward"):
            pair = [contender(function, given.device, what) for function in (sdpa, ours)]
            rows.append((("drop-in, " if ours is flash_attn_func else "") + what, limit, measure(given.device, pair, given.repeats)))
    if given.device == "cuda":
        found = measure("cuda", [graph(sdpa), graph(attn.attention)], given.repeats, calls=10, whole=True)
        rows.append(("graph replay, a call", 0, [tuple(x / GRAPH for x in pair) for pair in found]))
    print(f"{'':30}{'sdpa us':>10}{'median':>8}{'attn us':>10}{'median':>8}{'more':>8}{'target':>8}")
    for what, limit, (theirs, ours) in rows:
        print(f"{what:30}{theirs[0]:10.2f}{theirs[1]:8.2f}{ours[0]:10.2f}{ours[1]:8.2f}{ours[0] - theirs[0]:8.2f}{limit:8}")
    print(f"import attn after torch: {imports():.0f} ms (target 50)")
    if given.csv:
        with open(given.csv, "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(("device", "what", "sdpa_us", "sdpa_median_us", "attn_us", "attn_median_us", "more_target_us"))
            table.writerows((given.device, what, *theirs, *ours, limit) for what, limit, (theirs, ours) in rows)


if __name__ == "__main__":
    main()
