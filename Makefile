# The two commands of a newcomer: `make demo` and `make test`. Both install what is missing and are quick the second time.

ATOLL_CACHE ?= $(HOME)/.cache/atoll
export ATOLL_CACHE
export ATOLL_VENV := $(ATOLL_CACHE)/venv
export ATOLL_MODELS_DIR := $(ATOLL_CACHE)/models

# Every recipe runs with the tools that the setup found.
SETUP := . tools/setup.sh

.PHONY: help setup demo build test test-full mutants bench beside docs deb wheel gpu-check driver-patch-check clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: ## Install what is missing: LLVM, a Python venv, trained models
	@export ATOLL_SETUP=test; $(SETUP)

demo: ## Compile a trained model, serve it, ask it with tritonclient, then measure real-time beside best-effort
	@$(SETUP) && cargo build --release --quiet -p atoll -p atoll-models $$ATOLL_BIN_FEATURES && tools/demo.sh

build: ## Build everything in release
	@$(SETUP) && cargo build --release --workspace $$ATOLL_FEATURES

test: ## Format, lints, licences, all tests with small models and one seed; PART=lints|crates|integration runs a part
	@export ATOLL_SETUP=test ATOLL_TEST_PART=$(PART); $(SETUP) && tools/test.sh

test-full: ## Everything that `test` samples: full models, three seeds, every architecture
	@export ATOLL_SETUP=test ATOLL_TEST_FULL=1 ATOLL_TEST_PART=$(PART); $(SETUP) && tools/test.sh

mutants: ## Whether the scheduler's tests notice small changes to it (hours)
	@export ATOLL_SETUP=test; $(SETUP) && tools/mutants.sh $(ARGS)

bench: ## The figures of BENCHMARKS.md; ARGS=--save keeps them in docs/benchmarks
	@export ATOLL_SETUP=bench; $(SETUP) && cargo build --release --quiet -p atoll -p atoll-models $$ATOLL_BIN_FEATURES && tools/bench.sh $(ARGS)

beside: ## Measure the commit REV and the present tree in turn, and compare them (hours); ARGS="--only engine"
	@$(SETUP) && tools/beside.py $(REV) $(ARGS)

docs: ## Build the pages of the repository as a book in target/book (mdBook), and check its links
	@export ATOLL_SETUP=docs; $(SETUP) && tools/book.py

wheel: ## Build the Python package with the program inside, in target/wheels
	@$(SETUP) && cargo build --release --quiet --workspace $$ATOLL_FEATURES && integrations/python/build.sh

deb: ## Build a Debian package in target/release
	@$(SETUP) && cargo build --release --quiet --workspace $$ATOLL_FEATURES && packaging/deb/build.sh

.PHONY: release
release: ## Build archives with the program, with and without LLVM, in target/archives; ARGS=runtime builds one
	@$(SETUP) && packaging/release.sh $(ARGS)

gpu-check: ## Pack what checks and measures Atoll on a machine with an NVIDIA GPU and its driver
	@$(SETUP) && tools/gpu-check/pack.sh

driver-patch-check: ## Apply the driver patch for AMD GPUs to Debian's kernels and compile what it touches
	@driver-patch/check.sh $(ARGS)

clean: ## Remove build outputs (the cache of tools and models stays)
	cargo clean
