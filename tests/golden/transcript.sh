#!/usr/bin/env bash
# Replays a transcript of shell commands in an empty folder and compares every output and exit code.
#   transcript.sh CASE ATTN_FOLDER FIXTURE_FOLDER
# A case holds lines
#   # comment
#   $ command          run by bash; `attn` and `fixture` are on the path
#   text               what stdout must hold
#   ! text             what stderr must hold
#   ? N                the exit code, where it is not 0
# UPDATE=1 writes what came out into the case instead.
set -uo pipefail
case_file=$(realpath "$1")
PATH=$(realpath "$2"):$(realpath "$3"):$PATH
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export LC_ALL=C OMP_WAIT_POLICY=passive
unset ATTN_THREADS ATTN_MAX_ISA ATTN_VERBOSE ATTN_CACHE_DIR ATTN_KERNELS ATTN_NVRTC ATTN_LIBCUDA
mkdir "$folder/in"
cd "$folder/in" || exit 1

while IFS= read -r line || [ -n "$line" ]; do
    case $line in
    '#'*)
        printf '%s\n' "$line"
        ;;
    '$ '*)
        printf '%s\n' "$line"
        bash -c "${line#\$ }" >"$folder/out" 2>"$folder/err" </dev/null
        code=$?
        cat "$folder/out"
        sed 's/^/! /' "$folder/err"
        [ $code = 0 ] || printf '? %d\n' "$code"
        ;;
    esac
done <"$case_file" >"$folder/transcript"

if [ "${UPDATE:-}" ]; then
    cat "$folder/transcript" >"$case_file"
else
    diff -u "$case_file" "$folder/transcript"
fi
