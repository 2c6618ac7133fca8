#!/bin/sh
# Brings what `make`, `make demo` and `make test` need on a fresh machine.
#   scripts/setup.sh build    compiler, CMake and the libraries of the command and the demo
#   scripts/setup.sh test     these, and what the tests use: sanitizers, fuzzer, linters, NEON emulator, and NVRTC, which
#                             compiles device code; from Python's wheels into build/nvrtc where no toolkit has it
# As root on Debian or Ubuntu it installs what is missing; elsewhere it prints the one line to run and goes on if the
# compiler and CMake are there. With everything in place it is done in a moment and needs no network.
set -eu

build="gcc libc6-dev make cmake pkg-config libjansson-dev libpng-dev"
tests="g++ libcmocka-dev clang libclang-rt-dev libomp-dev clang-format clang-tidy cppcheck \
gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user git python3-pip python3-venv"

case "${1:-build}" in
build) wanted=$build ;;
test) wanted="$build $tests" ;;
*)
    echo "usage: scripts/setup.sh [build|test]" >&2
    exit 2
    ;;
esac

have_toolchain() {
    command -v cmake >/dev/null && { command -v cc >/dev/null || command -v gcc >/dev/null; }
}

have_nvrtc() {
    for file in /usr/local/cuda*/lib64/libnvrtc.so.1[23]* "${CUDA_HOME:-/usr/local/cuda}"/lib64/libnvrtc.so.1[23]* \
        "${BUILD:-build}"/nvrtc/nvidia/*/lib/libnvrtc.so.1[23]*; do
        [ -e "$file" ] && return 0
    done
    ldconfig -p 2>/dev/null | grep -q 'libnvrtc\.so\.1[23]'
}

# Its version is fixed, since how registers are given out differs from one to the next.
bring_nvrtc() {
    [ "$wanted" = "$build" ] || have_nvrtc || {
        echo "setup: installing NVRTC"
        python3 -m pip install -q --target "${BUILD:-build}/nvrtc" 'nvidia-cuda-nvrtc==13.0.*' >/dev/null 2>&1
    } || echo "setup: NVRTC could not be installed; tests compile no device code" >&2
}

# PyTorch is large (5 GB with what it brings); without it, or without the network, its tests are skipped.
bring_python() {
    python=${BUILD:-build}/python/bin/python
    [ "$wanted" = "$build" ] || [ -e "${BUILD:-build}/python/done" ] || {
        echo "setup: installing NumPy and PyTorch for the tests of the Python package"
        python3 -m venv "${BUILD:-build}/python" >/dev/null 2>&1 &&
            "$python" -m pip install -q 'numpy>=1.23' pytest scikit-build-core ninja >/dev/null 2>&1 &&
            "$python" -m pip install -q 'torch==2.11.*' 'transformers==5.*' >/dev/null 2>&1 && : >"${BUILD:-build}/python/done"
    } || echo "setup: not all of NumPy, PyTorch and transformers could be installed; what lacks them is skipped" >&2
}

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    bring_nvrtc
    bring_python
    have_toolchain && exit 0
    echo "setup: needs a C compiler, make and CMake 3.20 or later; on Debian: apt-get install $wanted" >&2
    exit 1
fi

# Names that installed packages have or provide (pkgconf provides pkg-config).
missing_of() {
    present=$(dpkg-query -W -f '${db:Status-Status} ${Package} ${Provides}\n' | sed -n 's/^installed //p' |
        sed 's/([^)]*)//g; s/,//g')
    present=" $(echo $present) "
    for package in "$@"; do
        case "$present" in *" $package "*) ;; *) echo "$package" ;; esac
    done
}

missing=$(echo $(missing_of $wanted))
if [ -z "$missing" ]; then
    bring_nvrtc
    bring_python
    exit 0
fi

if [ "$(id -u)" != 0 ]; then
    bring_nvrtc
    bring_python
    echo "setup: for everything, run: sudo apt-get install -y $missing" >&2
    have_toolchain && exit 0
    exit 1
fi

echo "setup: installing $missing"
export DEBIAN_FRONTEND=noninteractive
install() {
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
# A machine that has its package lists needs no update.
if ! install $missing 2>/dev/null; then
    apt-get update -qq
    if ! install $missing; then
        # One package that cannot be had must not keep the others out; what lacks it says so when it is skipped.
        for package in $missing; do
            install "$package" || echo "setup: $package could not be installed" >&2
        done
    fi
fi
bring_nvrtc
bring_python
have_toolchain
