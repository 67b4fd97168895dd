# Moonshard: the commands for everyday work. runtime/make/build.mk has the rules that compile the files.
#
#   make              build the library and the executable
#   make train        train a small GPT on a 2x2 mesh of local ranks
#   make test         all tests; make test ONLY=plan runs the test files whose path contains "plan"
#   make help         every target and setting

# ---- settings: set them on the command line, e.g. make train STEPS=20 ------------------------------------------

# where `make install` installs files
PREFIX ?= /usr/local
DESTDIR ?=
# folder for libraries; on a multiarch distribution e.g. /usr/lib/x86_64-linux-gnu
LIBDIR ?= $(PREFIX)/lib
# if not empty, warnings are errors, as in .ci/run
WERROR ?=
# CC, CFLAGS, CPPFLAGS, CXXFLAGS and LDFLAGS come from the environment or the command line; the build appends the flags
# to its own.
# number of parallel compile jobs; not empty: a line for each file that is compiled
JOBS ?= $(shell nproc)
V ?=
# make train: number of steps; text files to train on
STEPS ?=
FILES ?= $(files)
# make run: recipe, number of ranks, and further arguments (key=value)
RECIPE ?= recipes/toy_hsdp.lua
N ?= 4
ARGS ?=
# make test: only the test files whose path contains this word, with all their cases; not empty: all cases of all files;
# time limit per test file, in seconds
ONLY ?=
ALL ?=
TEST_TIMEOUT ?= 300
# make fuzz-plans: the first case (random by default), and the number of cases (endless by default);
# make fuzz-placements: 1 and 20000 by default
SEED ?=
CASES ?=
# make crash-checkpoints: number of kills (SEED selects where they happen)
POINTS ?= 200
# make fuzz-safetensors, fuzz-tokenizer and fuzz-tokens: duration in seconds
FUZZ_SECONDS ?= 20
# make soak: duration of all campaigns in seconds; ONLY selects a campaign, SEED its first case, CASES their number
SECONDS ?= 600
# folder of the CUDA 13 toolkit: nvcc, and libraries that `make bench-peers` then need not download
CUDA_HOME ?= /usr/local/cuda
# make cuda: GPU architectures to compile kernels for ("80 90 100"); empty: those of this machine's GPUs, or 90 if it has
# none
CUDA_ARCHS ?=
# if not empty, nvcc checks the CUDA kernels and compiles none, as in .ci/run
CUDA_CHECK ?=
# make mpi: the compiler wrapper of the site's MPI (mpiicc, on a Cray cc); empty: build nothing for MPI
MPICC ?= mpicc

# ---- Debian packages, listed here only -------------------------------------------------------------------------------

PACKAGES_BUILD := gcc g++ make libc6-dev pkg-config luajit libluajit-5.1-dev libdnnl-dev libpcre2-dev \
  libjansson-dev libxxhash-dev libsodium-dev libutf8proc-dev libucx-dev libedit-dev libzstd1
PACKAGES_TRAIN := fortunes
PACKAGES_TEST := lua-busted lua-cjson libcmocka-dev libucx0 locales
PACKAGES_LINT := lua-check clang-format
PACKAGES_DEB := debhelper dpkg-dev lintian
PACKAGES_HOSTS := iproute2
# Not in PACKAGES_TEST: `make test` runs the transport mpi over an emulated MPI, and over a real one where it is there.
PACKAGES_MPI := libopenmpi-dev openmpi-bin
PACKAGES_BENCH := python3 python3-venv $(PACKAGES_MPI)

# ---- targets -----------------------------------------------------------------------------------------------------

SHELL := /bin/bash
.DEFAULT_GOAL := all
BUILD := build
build_config = +@runtime/make/quiet.sh '$(V)' $(MAKE) --no-print-directory -j$(JOBS) -f runtime/make/build.mk BUILD=$(BUILD) \
  PREFIX=$(PREFIX) LIBDIR=$(LIBDIR) WERROR=$(WERROR) \
  CUDA_HOME=$(CUDA_HOME) CUDA_ARCHS='$(CUDA_ARCHS)' CUDA_CHECK=$(CUDA_CHECK) MPICC='$(MPICC)'
build_fuzzers = @for target in safetensors tokenizer tokens; do \
  tests/fuzz/libfuzzer/libfuzzer.sh $(BUILD) $$target build || exit; done
test_config = tests/run.sh --build $(BUILD)/$(1) --config $(1) --only '$(ONLY)' $(if $(ALL),--all) --timeout

.PHONY: all cuda cuda-all test-gpu run train test test-all fuzz-plans fuzz-safetensors bench bench-peers lint
.PHONY: san-address san-thread install clean help
.NOTPARALLEL:

all: $(BUILD)/packages/build ## build everything under build/
	$(build_config) all

run: all ## run RECIPE on N local ranks, with ARGS
	$(BUILD)/release/moonshard run $(RECIPE) -n $(N) $(ARGS)

train: ## train the quickstart GPT over a 2x2 mesh; STEPS=20 shortens it, files="a.txt b.txt" selects the text
train: $(BUILD)/packages/train all
	@mkdir -p $(BUILD)/train
	$(BUILD)/release/moonshard run recipes/quickstart.lua -n 4 --metrics $(BUILD)/train/metrics.jsonl \
	  mesh=2x2 $(if $(STEPS),steps=$(STEPS)) $(if $(FILES),'files=$(strip $(FILES))') $(ARGS)

.PHONY: two-hosts
two-hosts: ## as root: FSDP, HSDP and DDP over two hosts (network namespaces) at several link speeds, with charts
two-hosts: $(BUILD)/packages/train $(BUILD)/packages/hosts all
	recipes/two_hosts.sh $(BUILD)/release/moonshard sweep recipes/fsdp_vs_hsdp.lua \
	  --hosts ms-host-a:2,ms-host-b:2 --agent 'ip netns exec' shape='recipes/two_hosts.sh --shape' $(ARGS)

test: $(BUILD)/packages/train $(BUILD)/packages/test all ## run C tests and Lua specs; ONLY=word selects test files
	$(build_config) tests
	@$(call test_config,release) $(TEST_TIMEOUT)

test-all: $(BUILD)/packages/train $(BUILD)/packages/test ## run all cases of all tests, in the release build and under both sanitizers
	$(build_fuzzers)
	$(MAKE) test ALL=1
	$(MAKE) mutants
	$(MAKE) san-address ALL=1
	$(MAKE) san-thread ALL=1

.PHONY: mutants
mutants: ## put one fault after the other into a copy of the tree, and see whether the specs of `make test` find it; ONLY=word
mutants: $(BUILD)/packages/train $(BUILD)/packages/test all
	$(build_config) tests
	@LUA_PATH='tests/?.lua;;' luajit tests/mutants/run.lua '$(BUILD)' '$(ONLY)'

.PHONY: test-builds
test-builds: ## build what `test`, `san-address` and `san-thread` run, all at once
test-builds: $(BUILD)/packages/train $(BUILD)/packages/test $(BUILD)/packages/build
	$(build_config) test-builds

fuzz-plans: ## compare random sharded models with one rank until one differs; SEED=1 CASES=2000 limits it
fuzz-plans: $(BUILD)/packages/train $(BUILD)/packages/test all
	@tests/fuzz/run.sh '$(BUILD)' '$(SEED)' '$(CASES)'

.PHONY: fuzz-placements
fuzz-placements: ## divide CASES (20000) random graphs over simulated ranks, from SEED on, and compare with one rank
fuzz-placements: $(BUILD)/packages/build
	$(build_config) $(BUILD)/release/tests/test_partition_random
	@SEED='$(or $(SEED),1)' CASES='$(or $(CASES),20000)' $(BUILD)/release/tests/test_partition_random

cuda: ## build the CUDA kernels with nvcc (`all` does so if nvcc exists); CUDA_ARCHS="80 90": other GPUs than this machine's
cuda: $(BUILD)/packages/build
	$(build_config) cuda

# What is built for other machines runs on all supported GPUs.
cuda-all gpu-portable: CUDA_ARCHS := 80 90 100
cuda-all: cuda ## build the CUDA kernels for every supported GPU

.PHONY: mpi test-mpi
mpi: ## build the transport mpi's library with MPICC (`all` does so if it exists)
mpi: $(BUILD)/packages/build
	$(build_config) mpi

test-mpi: ## install Open MPI, and test the transport mpi over it
test-mpi: $(BUILD)/packages/test $(BUILD)/packages/mpi all
	$(build_config) tests mpi
	@tests/run.sh --build $(BUILD)/release --config release --only test_mpi --timeout $(TEST_TIMEOUT)

.PHONY: disassembler
disassembler: ## download cuobjdump, with which `make test` checks nvcc's code where the toolkit lacks it
	@runtime/make/disassembler.sh $(BUILD)/disassembler

test-gpu: $(BUILD)/packages/test all ## run the kernel tests on this machine's GPU; ONLY=word selects test files
	$(build_config) gpu-tests
	@tests/run.sh --build $(BUILD)/release --config gpu --only '$(ONLY)' --timeout $(TEST_TIMEOUT)

bench: $(BUILD)/packages/train all ## measure, and compare with the installed peers; results in build/bench.jsonl
	$(build_config) bench
	@luajit tests/bench/run.lua $(BUILD)

.PHONY: bench-price
bench-price: ## compare prices with measurements; PART=measured, twice, collectives, published or two_hosts; ROWS=file.csv: predict other published runs; WRITE=folder: write what they fit
bench-price: all
	@for part in $(or $(PART),$(if $(ROWS)$(WRITE),published,measured collectives published)); do \
	  export LUA_PATH='lua/?.lua;lua/?/init.lua;$(BUILD)/gen/?.lua;;' MOONSHARD_LIB=$(BUILD)/release/libmoonshard.so; \
	  if [ $$part = measured ]; then tests/bench/price/measured.sh $(BUILD) $(CLUSTER) || exit; \
	  elif [ $$part = two_hosts ]; then tests/bench/price/two_hosts.sh $(BUILD) $(CLUSTER) || exit; \
	  elif [ $$part = twice ]; then luajit tests/bench/price/twice.lua $(BUILD) || exit; \
	  else luajit tests/bench/price/$$part.lua "$(ROWS)" "$(WRITE)" "$(if $(ROWS),$(CLUSTER))" || exit; fi; done

bench-peers: ## install the peers that bench compares with: PyTorch (in build/peers) and Open MPI
bench-peers: $(BUILD)/packages/bench
	$(build_config) peers
	@tests/bench/peers/install_torch.sh $(BUILD)/peers $(CUDA_HOME)

.PHONY: test-gpu test-gpu-runs bench-gpu gpu-portable
test-gpu: test-gpu-runs
test-gpu-runs: ## part of test-gpu: compare training on a GPU with the CPU, test NCCL; exit status 2 without a GPU
test-gpu-runs: all
	@tests/gpu/run.sh --build $(BUILD)/release

bench-gpu: ## compare GPT-2 and Llama 1B on one GPU with PyTorch (of PYTHON, default python3); status 2 without a GPU
bench-gpu: all
	$(build_config) gpu-bench
	@tests/gpu/bench.sh --build $(BUILD)/release

gpu-portable: ## pack test-gpu and bench-gpu in build/gpu, for a machine that has only a GPU and PyTorch
gpu-portable: $(BUILD)/packages/test all
	$(build_config) gpu-tests gpu-bench
	@tests/gpu/portable.sh --build $(BUILD)/release --out $(BUILD)/gpu

lint: ## check Lua, formatting, floors (includes, calls, requires), prose in tests, wording, sizes
lint: $(BUILD)/packages/lint
	@tests/lint/run.sh

.PHONY: pictures
pictures: ## draw the pictures of the guides, of prices and of losses that were written down
pictures: all
	@luajit recipes/guides/pictures/draw.lua $(BUILD)/release/moonshard recipes/guides/pictures

shape: ## print the code in numbers that should fall: files of a feature, the header, folders, lines
	@{ git ls-files --cached --others --exclude-standard 2>/dev/null || \
	  find . -path ./build -prune -o -type f -printf '%P\n'; } | luajit tests/lint/shape.lua

san-address: ## run C tests and some specs under the address and undefined-behaviour sanitizers; ALL=1: all specs
san-address: $(BUILD)/packages/train $(BUILD)/packages/test $(BUILD)/packages/build
	$(build_config) CONFIG=address all tests
	@$(call test_config,address) $(TEST_TIMEOUT)

san-thread: ## run C tests and some specs under the thread sanitizer, with one thread per stream; ALL=1: all specs
san-thread: $(BUILD)/packages/train $(BUILD)/packages/test $(BUILD)/packages/build
	$(build_config) CONFIG=release plain
	$(build_config) CONFIG=thread all tests
	@$(call test_config,thread) $(TEST_TIMEOUT)

.PHONY: crash-checkpoints
crash-checkpoints: ## kill runs at POINTS random points while they save a checkpoint, then resume
crash-checkpoints: $(BUILD)/packages/build all
	@tests/fuzz/crash_checkpoints.sh '$(BUILD)' '$(POINTS)' '$(SEED)'

fuzz-safetensors: $(BUILD)/packages/build ## fuzz the safetensors reader with clang's libFuzzer for FUZZ_SECONDS
	@tests/fuzz/libfuzzer/libfuzzer.sh '$(BUILD)' safetensors '$(FUZZ_SECONDS)'

.PHONY: fuzz-tokenizer
fuzz-tokenizer: ## fuzz the reader of tokenizer.json and of texts with clang's libFuzzer for FUZZ_SECONDS
fuzz-tokenizer: $(BUILD)/packages/build
	@tests/fuzz/libfuzzer/libfuzzer.sh '$(BUILD)' tokenizer '$(FUZZ_SECONDS)'

.PHONY: fuzz-tokens
fuzz-tokens: ## fuzz the readers of token files and of their indexes with clang's libFuzzer for FUZZ_SECONDS
fuzz-tokens: $(BUILD)/packages/build
	@tests/fuzz/libfuzzer/libfuzzer.sh '$(BUILD)' tokens '$(FUZZ_SECONDS)'

.PHONY: soak
soak: ## test random kills, calls, full disks and broken files for SECONDS; ONLY=blocked SEED=1 CASES=1 repeats a case
soak: $(BUILD)/packages/train $(BUILD)/packages/test all
	$(build_config) $(BUILD)/release/tests/test_partition_random
	$(build_config) CONFIG=address $(BUILD)/address/tests/test_handles $(BUILD)/address/tests/fuzz_api
	@tests/soak/run.sh '$(BUILD)' '$(SECONDS)' '$(SEED)' '$(CASES)' '$(ONLY)'

install: all ## install under PREFIX (and DESTDIR)
	$(build_config) DESTDIR=$(DESTDIR) install

.PHONY: deb compile_commands.json
deb: ## build Debian packages in build/deb, check them with lintian, unpack them and train with them
deb: $(BUILD)/packages/build $(BUILD)/packages/deb
	@runtime/make/deb.sh $(BUILD)/deb $(shell sed -n 's/^VERSION := //p' runtime/make/build.mk) '$(PACKAGES_BUILD)'

compile_commands.json: ## write the compilation database for clangd and similar tools
compile_commands.json: $(BUILD)/packages/build $(BUILD)/packages/test
	$(build_config) compile_commands

clean: ## remove everything built except the peers (rm -r build removes them too)
	@if [ -d $(BUILD) ]; then find $(BUILD) -mindepth 1 -maxdepth 1 ! -name peers -exec rm -rf {} +; fi

help: ## print this list
	@sed -n 's/^\([a-z_.-]*\):[^#]*## /\1\t/p' Makefile | expand -t 14
	@echo; echo "Settings and their current values:"
	@printf '  %-13s %s\n' PREFIX '$(PREFIX)' LIBDIR '$(LIBDIR)' WERROR '$(WERROR)' JOBS '$(JOBS)' V '$(V)' \
	  STEPS '$(STEPS)' FILES '$(FILES)' RECIPE '$(RECIPE)' N '$(N)' \
	  ARGS '$(ARGS)' ONLY '$(ONLY)' ALL '$(ALL)' TEST_TIMEOUT '$(TEST_TIMEOUT)' SECONDS '$(SECONDS)' SEED '$(SEED)' \
	  CASES '$(CASES)' CUDA_HOME '$(CUDA_HOME)' CUDA_ARCHS '$(CUDA_ARCHS)' \
	  CUDA_CHECK '$(CUDA_CHECK)' MPICC '$(MPICC)'

# A stamp file records that all packages of a list are installed; a change of this file checks again.
PACKAGES_build := $(PACKAGES_BUILD)
PACKAGES_train := $(PACKAGES_BUILD) $(PACKAGES_TRAIN)
PACKAGES_test := $(PACKAGES_BUILD) $(PACKAGES_TEST)
PACKAGES_lint := $(PACKAGES_LINT)
PACKAGES_deb := $(PACKAGES_BUILD) $(PACKAGES_DEB)
PACKAGES_hosts := $(PACKAGES_HOSTS)
PACKAGES_mpi := $(PACKAGES_MPI)
PACKAGES_bench := $(PACKAGES_BUILD) $(PACKAGES_BENCH)

$(BUILD)/packages/%: Makefile runtime/make/packages.sh
	@mkdir -p $(@D)
	@runtime/make/packages.sh $(PACKAGES_$*) && touch $@
