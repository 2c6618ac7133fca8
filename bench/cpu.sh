#!/usr/bin/env bash
# The CPU figures of docs and README in one run: ceilings first, then forward, backward and decode, as CSV on stdout.
#   bench/cpu.sh [path of attn] [implementations, comma-separated] [threads, comma-separated]
set -eu
attn=${1:-build/bin/attn}
impls=${2:-}
threads=${3:-1,2}
options=(--format csv --threads "$threads")
[ -n "$impls" ] && options+=(--impl "$impls")
"$attn" bench --ceilings --format csv
"$attn" bench "${options[@]}" --batch 1 --heads 8 --seqlen 512,2048,8192 --dim 64,128 --dtype f32,f16,bf16 --causal=both \
    --layout bhsd
"$attn" bench "${options[@]}" --batch 1 --heads 8 --seqlen 2048 --dim 64,128 --dtype f32,f16,bf16 --layout bshd
"$attn" bench "${options[@]}" --batch 1 --heads 8 --seqlen 2048 --dim 64,128 --dtype f32,bf16 --causal=both --pass bwd \
    --layout bhsd
"$attn" bench "${options[@]}" --decode --dtype f32,f16,bf16
