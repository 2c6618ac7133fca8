# A thin layer over CMake: everything is built in build/. The two commands to know are `make demo` and `make test`.
BUILD  ?= build
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX ?= /usr/local

all: $(BUILD)/CMakeCache.txt
	@cmake --build $(BUILD) -j$(JOBS)

$(BUILD)/CMakeCache.txt:
	@scripts/setup.sh build
	@cmake -S . -B $(BUILD)

# The main job on real input: checks itself, prints a picture, writes build/attention.svg and .png.
demo: $(BUILD)/CMakeCache.txt
	@cmake --build $(BUILD) -j$(JOBS) --target attn_demo attn_command
	@$(BUILD)/bin/demo data/minilm-layer0.safetensors $(BUILD)

# Everything, with sanitizers, fuzzing and analysis.
test: setup all
	@ctest --test-dir $(BUILD) -j$(JOBS) --output-on-failure --no-tests=error -LE gpu

# The tests of this build alone.
quick: setup all
	@ctest --test-dir $(BUILD) -j$(JOBS) --output-on-failure --no-tests=error -LE 'check|gpu'

# Parity, field cases and stress on this machine's GPU, by its own code and by that of older ones; the Python package there.
test-gpu: all
	@scripts/check.sh gpu || test $$? = 77
	@scripts/check.sh gpu-python || test $$? = 77

# A sample of them under compute-sanitizer.
sanitize-gpu: all
	@scripts/check.sh gpu-sanitize || test $$? = 77

setup:
	@BUILD=$(BUILD) scripts/setup.sh test
	@cmake -S . -B $(BUILD)

install: all
	@cmake --install $(BUILD) --prefix $(PREFIX)

format:
	@clang-format -i $$(git ls-files '*.c' '*.h')

format-check analyze asan ubsan tsan fuzz neon header symbols includes words docs package python:
	@scripts/setup.sh test
	@scripts/check.sh $@

clean:
	@cmake -E rm -rf $(BUILD)

.PHONY: all demo test quick test-gpu sanitize-gpu setup install format format-check analyze asan ubsan tsan fuzz neon header symbols includes \
        words docs package python clean
