#!/usr/bin/env python3
"""Attention on a GPU: libattn beside FlashAttention-3, FlashAttention-4, cuDNN and others, in one process, alternating.

    bench/peers.py                    everything: lines on the terminal, a CSV in bench/results/
    bench/peers.py --quick            the shapes that tell most
    bench/peers.py sweep long         these parts
    bench/peers.py sweep --match 'd128.*causal' --types bf16

All contenders read the same tensors. One head of each result is compared with float64 before anything is timed; a peer
that is wrong, lacks the form or is not installed has no row, and a line says so. How time is taken stands in
gpu_peers/timing.py, what counts as FLOP in gpu_peers/problems.py.

Needs PyTorch with CUDA and a built libattn.so (--library). FlashAttention-3 is taken from the package dew-flash-attn-cu13
(with JAX) and, for decoding, from vllm's library; FlashAttention-4 from flash-attn-4; cuDNN, FlashAttention-2 and
FlexAttention are PyTorch's.
"""
import argparse
import os
import random
import sys
import warnings

import torch

from gpu_peers import parts, table, timing

ROOT = table.ROOT


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=[], help=f"{', '.join(parts.PARTS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer shapes and peers")
    parser.add_argument("--types", nargs="+", default=["bf16", "f16"], help="of the sweep")
    parser.add_argument("--match", help="problems whose text this regular expression finds")
    parser.add_argument("--without", nargs="+", default=[], help="contenders to leave out")
    parser.add_argument("--ours", choices=["package", "direct"], default="package",
                        help="how ours is called: through the Python package, or straight through the C interface")
    parser.add_argument("--implementation", help="of ours, by name; default: the plan's choice")
    parser.add_argument("--batch", type=float, default=0.04, help="seconds of launches between synchronisations")
    parser.add_argument("--rounds", type=int, default=7, help="batches a contender")
    parser.add_argument("--pause", type=float, default=0.005, help="seconds before each batch")
    parser.add_argument("--seconds", type=float, default=86400, help="begin no further row after this long")
    parser.add_argument("--unchecked", action="store_true", help="compare nothing with float64: not for figures to keep")
    parser.add_argument("--library", default=os.path.join(ROOT, "build", "libattn.so"))
    parser.add_argument("--commit", default=table.command_output("git", "rev-parse", "--short", "HEAD"))
    parser.add_argument("--out", help="CSV file; default: bench/results/DATE-peers-GPU.csv")
    options = parser.parse_args()
    unknown = [name for name in options.parts if name not in parts.PARTS]
    if unknown:
        parser.error(f"no part is called {unknown[0]}")
    options.library = os.path.abspath(options.library)
    return options


def main():
    options = parse_arguments()
    os.environ["ATTN_LIBRARY"] = options.library
    sys.path.insert(0, os.path.join(ROOT, "python"))
    warnings.filterwarnings("ignore", module="cutlass")  # of FlashAttention-4's compiler
    random.seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.zeros(1, device="cuda")  # PyTorch's context is the one that everything works in
    meter = timing.Meter()
    meter.start()
    bench = parts.Bench(options, meter, table.Table(options))
    try:
        for name in options.parts or parts.PARTS:
            parts.PARTS[name](bench)
    finally:
        meter.stopped.set()
        meter.join()
        bench.table.close()
        if bench.skipped:
            print(f"left out, no time left: {bench.skipped} problems")


if __name__ == "__main__":
    main()
