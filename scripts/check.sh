#!/usr/bin/env bash
# One check by name, from the root of the tree: what ctest runs as check.NAME and make runs as `make NAME`.
# Exit status 77: skipped, with the reason on stdout. Separate builds lie in build/checks/NAME.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${BUILD:-build}
jobs=$(nproc 2>/dev/null || echo 2)

skip() {
    echo "skipped: $*"
    exit 77
}
need() {
    for tool in "$@"; do
        command -v "$tool" >/dev/null || skip "$tool is missing (scripts/setup.sh test installs it)"
    done
}
sources() { git ls-files --cached --others --exclude-standard -- "$@" 2>/dev/null | while read -r file; do
    [ -e "$file" ] && echo "$file"
done; }

# configure_and_build FOLDER CMAKE_ARGUMENT...
configure_and_build() {
    local folder=$1
    shift
    mkdir -p "$folder"
    cmake -S . -B "$folder" "$@" >"$folder/configure.log" 2>&1 || { cat "$folder/configure.log"; return 1; }
    cmake --build "$folder" -j"$jobs" >"$folder/build.log" 2>&1 || { tail -n 60 "$folder/build.log"; return 1; }
}

# variant NAME TESTS CMAKE_ARGUMENT...: a build of its own, and those tests at the lowest intensity
variant() {
    local folder=$build/checks/$1 tests=$2
    shift 2
    configure_and_build "$folder" "$@"
    ATTN_TEST_INTENSITY=${ATTN_TEST_INTENSITY:-0} ctest --test-dir "$folder" -j"$jobs" --output-on-failure \
        --no-tests=error -R "$tests" -LE 'check|no-sanitizer|gpu'
}

check_asan() {
    variant asan . -DATTN_SANITIZE=address,undefined
}
check_ubsan() {
    check_asan
}

# libgomp's barriers are invisible to the thread sanitizer; clang's runtime tells it about them through libarcher. Only
# tests that run threads have something to show, and only programs of tests/ are given libarcher.
check_tsan() {
    need clang
    # All implementations share their work out by the same code, so one shows what there is to see.
    local one=generic
    ! grep -qsw avx2 /proc/cpuinfo || one=avx2
    ATTN_TEST_IMPL=${ATTN_TEST_IMPL:-$one} variant tsan '^(base.test_parallel|api|cpu|cuda.test_cache|native|parity.test_(list|parts|same)|stress|merge)' -DCMAKE_C_COMPILER=clang -DATTN_SANITIZE=thread
}

check_fuzz() {
    need clang
    local folder=$build/checks/fuzz target name found=0
    configure_and_build "$folder" -DCMAKE_C_COMPILER=clang -DATTN_SANITIZE=fuzzer,address,undefined
    for target in "$folder"/tests/fuzz/fuzz_*; do
        [ -x "$target" ] && [ -f "$target" ] || continue
        found=1
        name=$(basename "$target")
        name=${name#fuzz_}
        mkdir -p "$folder/corpus/$name"
        echo "fuzz $name, at most ${ATTN_FUZZ_SECONDS:-8} s"
        "$target" -max_total_time="${ATTN_FUZZ_SECONDS:-8}" -timeout=10 -rss_limit_mb=2048 -max_len=4096 \
            -print_final_stats=1 -artifact_prefix="$folder/$name-" "$folder/corpus/$name" \
            $([ -d "tests/fuzz/seeds/$name" ] && echo "tests/fuzz/seeds/$name") 2>"$folder/$name.log" ||
            { tail -n 60 "$folder/$name.log"; return 1; }
        grep number_of_executed_units "$folder/$name.log"
    done
    [ $found = 1 ] || skip "no fuzz target in this tree"
}

# The first program tells whether there is a GPU to run on.
need_gpu() {
    local answer status=0
    answer=$(ATTN_TEST_DEVICE=cuda "$build/tests/gpu.test_dropout" 2>&1) || status=$?
    [ $status != 77 ] || skip "$(grep -o 'skipped: .*' <<<"$answer" | sed 's/skipped: //')"
}
check_gpu() {
    need_gpu
    ctest --test-dir "$build" -j"$jobs" --output-on-failure --no-tests=error -L gpu
}

# The Python package's tests with their tensors on the GPU, several processes at once where pytest-xdist is there (each
# new kind of problem compiles kernels). What fails is named at once. PYTHON: an interpreter with PyTorch for CUDA and pytest.
check_gpu-python() {
    local python=${PYTHON:-python3} spread=()
    [ -e "$build/libattn.so" ] || skip "$build/libattn.so is not built"
    "$python" -c 'import pytest, torch; raise SystemExit(not torch.cuda.is_available())' 2>/dev/null ||
        skip "$python has no PyTorch that sees a GPU, or no pytest (PYTHON names another)"
    ! "$python" -c 'import xdist' 2>/dev/null || spread=(-n "$((jobs < 12 ? jobs : 12))")
    ATTN_TEST_DEVICE=cuda ATTN_LIBRARY=$(realpath "$build/libattn.so") PYTHONPATH=$PWD/python \
        "$python" -m pytest -v --tb=short -p no:cacheprovider "${spread[@]}" tests/python | grep -vE 'PASSED|^tests/|^$'
}

# Each tool over a sample of cases on every implementation. The sanitizers slow kernels down by 10 to 100, and what they
# report counts even where results are right.
check_gpu-sanitize() {
    need compute-sanitizer
    need_gpu
    local tool only log=$build/sanitizer.log failed=0
    export ATTN_TEST_DEVICE=cuda ATTN_TEST_INTENSITY=${ATTN_TEST_INTENSITY:-0}
    for tool in memcheck racecheck initcheck synccheck; do
        # racecheck knows nothing of the lanes for which one lane arrives at an mbarrier: docs/hopper.md.
        only=
        [ "$tool" != racecheck ] || only=mma
        for test in parity.test_list cases.test_c09_c10_layouts gpu.test_lengths; do
            if ATTN_TEST_IMPL=$only ATTN_TEST_SHARD=0/2 compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/tests/$test" >"$log" 2>&1; then
                echo "$tool $test: $(grep 'ERROR SUMMARY' "$log" | sed 's/.*SUMMARY: //')"
            else
                failed=1
                echo "$tool $test: failed"
                grep -v '^\[' "$log" | head -n 60
            fi
        done
    done
    return $failed
}

check_neon() {
    need aarch64-linux-gnu-gcc
    local qemu
    qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) || skip "qemu-aarch64 is missing"
    # What runs the kernels; the rest is the same C as everywhere, and emulation is slow.
    ATTN_TEST_IMPL=neon variant neon '^(base|cpu|parity.test_(list|parts|maps)|cases|example)' -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64-linux-gnu.cmake" \
        -DCMAKE_CROSSCOMPILING_EMULATOR="$qemu;-L;/usr/aarch64-linux-gnu"
}

# The public header alone, first and only include, under every warning.
check_header() {
    local folder=$build/checks/header header file
    mkdir -p "$folder"
    printf '#include "attn/attn.h"\nint main(void) { return attn_problem_init().batch != 0; }\n' >"$folder/alone.c"
    for header in include/attn/attn_*.h; do # the others, each the first include of a file of its own
        printf '#include "attn/%s"\nint main(void) { return 0; }\n' "${header##*/}" >"$folder/alone_${header##*/}.c"
    done
    for file in "$folder"/alone*.c; do
        cp "$file" "${file%.c}.cc"
    done
    local strict="-Wall -Wextra -Wpedantic -Werror -Wshadow -Wconversion -Wundef -Wcast-align -Iinclude -fsyntax-only"
    gcc -std=c11 $strict -Wstrict-prototypes -Wmissing-prototypes -Wc++-compat "$folder"/alone*.c
    if command -v g++ >/dev/null; then
        g++ -std=c++17 $strict -Wold-style-cast "$folder"/alone*.cc
    fi
    if command -v clang >/dev/null; then
        clang -std=c11 -Weverything -Wno-padded -Wno-declaration-after-statement -Wno-reserved-macro-identifier $strict "$folder"/alone*.c
        clang++ -std=c++17 -Weverything -Wno-padded -Wno-c++98-compat-pedantic -Wno-reserved-macro-identifier $strict "$folder"/alone*.cc
    fi
    echo "header: C11 and C++17"
}

# What the shared library exports is exactly cmake/attn.symbols.
check_symbols() {
    [ -e "$build/libattn.so" ] || skip "$build/libattn.so is not built"
    nm -D --defined-only "$build/libattn.so" | awk '$2 != "A" { print $3 }' | LC_ALL=C sort |
        diff -u cmake/attn.symbols - || { echo "exported symbols differ from cmake/attn.symbols"; return 1; }
    local stray
    stray=$(nm --defined-only "$build/libattn.a" | awk '$2 ~ /[TDBRVW]/ && $3 !~ /^attn_/ { print $3 }' | sort -u)
    [ -z "$stray" ] || { echo "global names outside attn_: $stray"; return 1; }
    stray=$(nm -D --undefined-only "$build/libattn.so" | awk '{ print $2 }' | sed 's/@.*//' |
        grep -xE 'printf|fprintf|puts|putchar|fputs|fwrite|perror|exit|_exit|abort|__assert_fail|stdout|stderr' || true)
    [ -z "$stray" ] || { echo "the library must not call: $stray"; return 1; }
    echo "symbols: $(wc -l <cmake/attn.symbols) exported"
}

# Who may include whom. Includes are written from include/, src/ or the root ("plan/plan.h", "ref/ref.h").
check_includes() {
    local bad=0
    # law 'FILES' 'ALLOWED': quoted includes of FILES must match ALLOWED or lie in the same folder.
    law() {
        local file included
        while read -r file; do
            while read -r included; do
                [[ $included =~ ^($2)$ ]] && continue
                [ -e "$(dirname "$file")/$included" ] && continue
                echo "$file includes $included; allowed: $2"
                bad=1
            done < <(sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*"\([^"]*\)".*/\1/p' "$file")
        done < <(sources "$1/*.c" "$1/*.h")
    }
    local public='attn/attn(_[a-z]*)?\.h' core='(base|problem|plan)/[a-z_]*\.h|backend\.h'
    law include "$public"
    law src/base "$public|base/.*"
    law src/problem "$public|base/.*|problem/.*"
    law src/plan "$public|base/.*|problem/.*|plan/.*|backend\.h"
    law src/cpu "$public|$core|cpu/.*"
    law src/cuda "$public|$core|context\.h|cuda/.*|params\.h|philox\.h|lengths\.h"
    law src/native "$public|$core|native/.*"
    law src/reference "$public|$core|reference/.*|ref/attn_ref\.h"
    law ref "$public|base/dtype\.h|base/philox\.h|ref/.*"
    law cli "$public|ref/attn_ref\.h|cli/.*"
    law bench "$public|ref/attn_ref\.h"
    law examples "$public"
    law demo "$public|tensor\.h"
    if grep -rnE '#[[:space:]]*include[[:space:]]*<(omp|cuda|jansson|png)' include src ref | grep -v '^src/base/parallel\.c'; then
        echo "only src/base/parallel.c sees a threading runtime, and the library no other dependency"
        bad=1
    fi
    [ $bad = 0 ] && echo "includes: law kept"
    return $bad
}

# Text that ties the tree to one machine, or points anywhere but at papers, licences and formats.
check_words() {
    local bad=0 files
    mapfile -t files < <(sources | grep -vE '\.(png|safetensors|npy|bin|csv)$|^tests/fuzz/seeds/|^LICENSE$')
    if grep -nE '(^|[^[:alnum:]_.])/(wor[k]|hom[e]|roo[t]|User[s]|mn[t])/' "${files[@]}"; then
        echo "absolute path of one machine"
        bad=1
    fi
    if grep -noE 'https?://[^ )>"'"'"']+' "${files[@]}" |
        grep -vE '://(www\.)?(apache\.org|arxiv\.org|doi\.org|w3\.org|huggingface\.co)(/|$)'; then
        echo "address outside the short list of scripts/check.sh"
        bad=1
    fi
    if grep -nE '(TOD[O]|FIXM[E])\b' "${files[@]}"; then
        echo "unfinished text"
        bad=1
    fi
    [ $bad = 0 ] && echo "words: ${#files[@]} files"
    return $bad
}

# The README's example is examples/01_first.c, and files that the documents name exist.
check_docs() {
    local bad=0 document path
    sed -n '/^```c$/,/^```$/p' README.md | sed '/^```/d' | diff -u - <(sed '1,/\*\/$/d' examples/01_first.c) || {
        echo "the README's example differs from examples/01_first.c"
        bad=1
    }
    while read -r document; do
        while read -r path; do
            compgen -G "$path" >/dev/null || { echo "$document names $path, which does not exist"; bad=1; }
        done < <(grep -oE '(^|[`( ])(src|docs|ref|cli|tests|examples|scripts|cmake|demo|bench|data|include)/[A-Za-z0-9_./*-]*' \
            "$document" | sed 's/^[`( ]//; s/[.]$//' | grep -vE 'NAME|_ISA' | sort -u)
    done < <(sources '*.md')
    [ $bad = 0 ] && echo "documents: examples and paths hold"
    return $bad
}

check_format-check() {
    need clang-format
    sources '*.c' '*.h' | xargs clang-format --dry-run -Werror
    echo "format: $(sources '*.c' '*.h' | wc -l) files"
}

check_analyze() {
    need cppcheck clang-tidy
    local folder=$build/checks/analyze
    mkdir -p "$folder/cppcheck"
    cmake -S . -B "$folder" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DCMAKE_C_COMPILER=clang >"$folder/configure.log"
    cppcheck --quiet --std=c11 --error-exitcode=1 --inline-suppr --enable=warning,portability -j "$jobs" \
        --cppcheck-build-dir="$folder/cppcheck" --suppress=missingIncludeSystem --suppress=uninitvar --suppress=memleak \
        -Iinclude -Isrc -I. $(sources 'src/*.c' 'ref/*.c' 'cli/*.c' 'examples/*.c' 'demo/*.c' | grep -v '^src/cpu/kernels/')
    sources 'src/*.c' 'ref/*.c' 'cli/*.c' 'examples/*.c' 'demo/*.c' |
        while read -r file; do grep -q "/$file\"" "$folder/compile_commands.json" && echo "$file"; done |
        xargs -n 4 -P "$jobs" clang-tidy --quiet -p "$folder" 2>"$folder/tidy.err" || { cat "$folder/tidy.err"; return 1; }
    echo "analysis: clean"
}

# Installs into a temporary prefix and builds a program against it: pkg-config shared and static, and CMake.
check_package() {
    [ -e "$build/libattn.so" ] || skip "$build/libattn.so is not built"
    local folder prefix
    folder=$(mktemp -d)
    trap "rm -rf '$folder'" EXIT
    prefix=$folder/usr
    cmake --install "$build" --prefix "$prefix" >/dev/null
    export LD_LIBRARY_PATH=$prefix/lib
    if command -v pkg-config >/dev/null; then
        export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
        cc tests/package/main.c -o "$folder/shared" $(pkg-config --cflags --libs attn)
        "$folder/shared"
        cc tests/package/main.c -o "$folder/static" $(pkg-config --cflags attn) "$prefix/lib/libattn.a" \
            $(pkg-config --static --libs-only-l attn | sed 's/-lattn//') \
            $(pkg-config --static --libs-only-other attn)
        "$folder/static"
    fi
    cmake -S tests/package -B "$folder/cmake" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
    cmake --build "$folder/cmake" >/dev/null
    "$folder/cmake/shared"
    "$folder/cmake/static"
    [ ! -e "$build/bin/attn" ] || "$prefix/bin/attn" info >/dev/null
    DESTDIR=$folder/stage cmake --install "$build" --prefix /usr >/dev/null
    [ -e "$folder/stage/usr/include/attn/attn.h" ]
    ! grep -q "$folder" "$folder/stage/usr/lib/pkgconfig/attn.pc"
    echo "package: pkg-config and CMake, shared and static"
}

# Builds the wheel, looks at what it asks of a system, installs it into build/python and runs tests/python there.
check_python() {
    local python=$build/python/bin/python folder wheel newest
    [ -x "$python" ] || skip "no $build/python (scripts/setup.sh test makes it; needs python3 with venv)"
    "$python" -c "import numpy, pytest, scikit_build_core" 2>/dev/null || skip "NumPy, pytest and scikit-build-core could not be installed"
    python=$PWD/${python#"$PWD/"}
    folder=$(mktemp -d)
    trap "rm -rf '$folder'" EXIT
    CMAKE_BUILD_PARALLEL_LEVEL=$jobs "$python" -m pip wheel -q --no-deps --no-build-isolation -w "$folder" .
    wheel=$(echo "$folder"/attn-*-py3-none-*.whl)
    [ -e "$wheel" ] || { ls "$folder"; return 1; }
    (cd "$folder" && "$python" -m zipfile -e "$wheel" inside)
    newest=$(objdump -T "$folder/inside/attn/libattn.so" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
    if [ "$(uname -m)" = x86_64 ]; then
        [ "$(printf 'GLIBC_2.28\n%s\n' "$newest" | sort -V | tail -n 1)" = GLIBC_2.28 ] || { echo "needs $newest"; return 1; }
    fi
    ! readelf -d "$folder/inside/attn/libattn.so" | grep -E 'NEEDED.*(omp|torch|python)' || return 1
    "$python" -m pip install -q --force-reinstall --no-deps "$wheel"
    "$python" -c 'import torch' 2>/dev/null || echo "skipped: tests with PyTorch, since it could not be installed"
    (cd "$folder" && env -u PYTHONPATH OMP_WAIT_POLICY=passive "$python" -m pytest -q -rs -p no:cacheprovider "$OLDPWD/tests/python")
    echo "python: $(basename "$wheel"), symbols up to $newest"
}

[ $# = 1 ] && declare -F "check_$1" >/dev/null || {
    echo "usage: scripts/check.sh $(declare -F | sed -n 's/.*check_//p' | tr '\n' '|' | sed 's/|$//')" >&2
    exit 2
}
"check_$1"
