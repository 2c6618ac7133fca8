#!/bin/sh
# Our CPU kernels beside PyTorch and ONNX Runtime: makes a throw-away Python environment (from PyPI, about two minutes
# the first time), builds the library and runs bench/peers_cpu.py with the arguments given.
#   scripts/peers.sh                  everything, a CSV in bench/results/
#   scripts/peers.sh --quick          fewer shapes
set -eu
cd "$(dirname "$0")/.."
folder=${ATTN_PEERS:-${TMPDIR:-/tmp}/attn-peers}
if [ ! -e "$folder/ready" ]; then
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet numpy 'torch==2.11.*' onnxruntime onnx
    touch "$folder/ready"
fi
make -s all >&2
exec "$folder/bin/python" bench/peers_cpu.py "$@"
