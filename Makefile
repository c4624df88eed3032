# What a user types. CMake does the building (CMakePresets.json); packages come from packages/debian.txt.
#
# `make help` lists the targets.
#
# CLUSTER=OFF builds and tests core, kernels, model and engine only (no CAF, no Boost).
# INSTALL=    skips the package check.

CLUSTER ?= ON
INSTALL ?= tools/install_packages.sh

ifeq ($(CLUSTER),OFF)
preset := core
groups := core
build := build-core
else
preset := release
groups := core cluster
build := build
endif

.DEFAULT_GOAL := help

.PHONY: help
help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

.PHONY: packages
packages:
ifneq ($(INSTALL),)
	@$(INSTALL) $(groups)
endif

.PHONY: dev-packages
dev-packages:
ifneq ($(INSTALL),)
	@$(INSTALL) $(groups) dev
endif

.PHONY: build
build: packages ## build everything into build/
	@cmake --preset $(preset)
	@cmake --build --preset $(preset)

.PHONY: run
run: packages ## serve the demo model and stream an answer (RUN_ONCE=1: stop after it; PORT=8080)
	@cmake --preset release
	@cmake --build --preset release --target cedar
	@tools/run_demo.sh

.PHONY: cluster
cluster: packages ## the same by seven processes that a Prometheus watches, and load (RUN_ONCE=1, PORT=8080, CONTROL_PORT=7400)
	@cmake --preset release
	@cmake --build --preset release --target cedar
	@tools/run_cluster.sh

# Without them the tests of other clients are skipped, so that failing to get them stops nothing.
.PHONY: test-packages
test-packages: packages
ifneq ($(CLUSTER),OFF)
ifneq ($(INSTALL),)
	@$(INSTALL) test || echo "make test: some tests will be skipped"
	@tools/get_prometheus.sh >/dev/null || echo "make test: tests with Prometheus will be skipped"
endif
endif

.PHONY: test
test: test-packages ## build and test; the last line is `N passed, N failed` (ARGS: for ctest, such as -R Arena)
	@tools/run_tests.py --preset $(preset) $(ARGS)

.PHONY: asan
asan: packages ## the whole suite under AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/run_tests.py --preset asan $(ARGS)

.PHONY: tsan
tsan: packages ## everything below actors/ under ThreadSanitizer
	@tools/run_tests.py --preset tsan $(ARGS)

.PHONY: tsan-cluster
tsan-cluster: packages ## the whole suite under ThreadSanitizer, with a CAF built for it
	@tools/build_tsan_caf.sh
	@tools/run_tests.py --preset tsan-cluster $(ARGS)

.PHONY: fuzz
fuzz: dev-packages ## libFuzzer on every reader of foreign bytes (FUZZ_SECONDS=60 each)
	@cmake --preset fuzz
	@cmake --build --preset fuzz --target fuzz_programs
	@tools/run_fuzz.sh

.PHONY: bench
bench: build ## time kernels, the whole model and transfers on this machine
	@$(build)/bin/cedar bench kernels
	@$(build)/bin/cedar bench engine
ifneq ($(CLUSTER),OFF)
	@$(build)/bin/cedar bench transport
endif

.PHONY: format
format: dev-packages ## clang-format every source, or FILES="a.cpp b.h"
	@tools/format.sh $(FILES)

.PHONY: lint
lint: dev-packages ## clang-tidy the changed files, or FILES="a.cpp", or BASE=origin/main
	@cmake --preset $(preset) >/dev/null
	@BUILD=$(build) tools/lint.sh $(FILES)

.PHONY: clean
clean: ## remove what was built
	@rm -rf build build-core build-debug build-asan build-tsan build-tsan-cluster build-fuzz build-cuda
