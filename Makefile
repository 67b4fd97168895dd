# Moonshard: the commands of a working day. How files are compiled is told in runtime/make/build.mk.
#
#   make              build the library and the executable
#   make train        train a small GPT on a 2x2 mesh of local ranks
#   make test         all tests; make test ONLY=plan runs the test files whose path contains "plan"
#   make help         every target and setting

# ---- settings: give them on the command line, e.g. make train STEPS=20 ------------------------------------------

# where `make install` puts things
PREFIX ?= /usr/local
DESTDIR ?=
# its folder of libraries; of a distribution that has several, e.g. /usr/lib/x86_64-linux-gnu
LIBDIR ?= $(PREFIX)/lib
# warnings are errors where this is not empty, as in .ci/run
WERROR ?=
# CC, CFLAGS, CPPFLAGS, CXXFLAGS and LDFLAGS are taken from the environment or the command line; flags stand behind the own ones.
# compile jobs at once
JOBS ?= $(shell nproc)
# make train: stop after that many steps; train on these text files
STEPS ?=
FILES ?= $(files)
# make run: recipe, ranks, and anything else for it (key=value)
RECIPE ?= recipes/toy_hsdp.lua
N ?= 4
ARGS ?=
# make test: only the test files whose path contains this; seconds a test file may take
ONLY ?=
TEST_TIMEOUT ?= 300
# make fuzz-plans: the first case (any unless told), and how many (no end unless told)
SEED ?=
CASES ?=
# make crash-checkpoints: how many kills (SEED chooses their points)
POINTS ?= 200
# make fuzz-safetensors: for how many seconds
FUZZ_SECONDS ?= 20
# make soak: seconds for all campaigns; ONLY names one, SEED its first case, CASES how many
SECONDS ?= 600
# where a CUDA 13 toolkit is: its nvcc, and libraries that spare `make bench-peers` a large download
CUDA_HOME ?= /usr/local/cuda
# make cuda: the GPUs that kernels are compiled for
CUDA_ARCHS ?= 90

# ---- Debian packages: the one list -------------------------------------------------------------------------------

PACKAGES_BUILD := gcc g++ make libc6-dev pkg-config luajit libluajit-5.1-dev libdnnl-dev libpcre2-dev libjansson-dev libxxhash-dev libsodium-dev libedit-dev
PACKAGES_TRAIN := fortunes
PACKAGES_TEST := lua-busted lua-cjson libcmocka-dev
PACKAGES_LINT := lua-check clang-format
PACKAGES_DEB := debhelper dpkg-dev lintian
PACKAGES_BENCH := python3 python3-venv libopenmpi-dev openmpi-bin

# ---- targets -----------------------------------------------------------------------------------------------------

SHELL := /bin/bash
.DEFAULT_GOAL := all
BUILD := build
build_config = +@$(MAKE) --no-print-directory -j$(JOBS) -f runtime/make/build.mk BUILD=$(BUILD) PREFIX=$(PREFIX) LIBDIR=$(LIBDIR) WERROR=$(WERROR) \
  CUDA_HOME=$(CUDA_HOME) CUDA_ARCHS='$(CUDA_ARCHS)'
test_config = tests/run.sh --build $(BUILD)/$(1) --config $(1) --only '$(ONLY)' --timeout

.PHONY: all cuda cuda-all test-gpu run train test fuzz-plans fuzz-safetensors bench bench-peers lint san-address san-thread install clean help
.NOTPARALLEL:

all: $(BUILD)/packages/build ## build everything under build/
	$(build_config) all

run: all ## run RECIPE on N local ranks, with ARGS
	$(BUILD)/release/moonshard run $(RECIPE) -n $(N) $(ARGS)

train: $(BUILD)/packages/train all ## train the quickstart GPT over a 2x2 mesh; STEPS=20 shortens it, files="a.txt b.txt" is another text
	@mkdir -p $(BUILD)/train
	$(BUILD)/release/moonshard run recipes/quickstart.lua -n 4 --metrics $(BUILD)/train/metrics.jsonl \
	  mesh=2x2 $(if $(STEPS),steps=$(STEPS)) $(if $(FILES),'files=$(strip $(FILES))') $(ARGS)

test: $(BUILD)/packages/train $(BUILD)/packages/test all ## C tests and Lua specs; ONLY=word picks test files
	$(build_config) tests
	@$(call test_config,release) $(TEST_TIMEOUT)

fuzz-plans: $(BUILD)/packages/train $(BUILD)/packages/test all ## random models, sharded at random, beside one rank, until something differs; SEED=1 CASES=2000 bounds it
	@tests/fuzz/run.sh '$(BUILD)' '$(SEED)' '$(CASES)'

cuda: $(BUILD)/packages/build ## the library of CUDA's kernels, by nvcc; part of all where there is one. CUDA_ARCHS="80 90 100" for more GPUs
	$(build_config) cuda

cuda-all: ## the same for every GPU that is supported
	@$(MAKE) --no-print-directory cuda CUDA_ARCHS="80 90 100"

test-gpu: $(BUILD)/packages/test all ## the kernels' tests on this machine's GPU; ONLY=word picks test files
	$(build_config) gpu-tests
	@tests/run.sh --build $(BUILD)/release --config gpu --only '$(ONLY)' --timeout $(TEST_TIMEOUT)

bench: $(BUILD)/packages/train all ## measure, beside the peers that are installed; lines in build/bench.jsonl
	$(build_config) bench
	@luajit tests/bench/run.lua $(BUILD)

bench-peers: $(BUILD)/packages/bench ## install the peers that bench compares with: PyTorch in build/peers, Open MPI
	$(build_config) peers
	@tests/bench/install_torch.sh $(BUILD)/peers $(CUDA_HOME)

.PHONY: test-gpu test-gpu-runs bench-gpu gpu-portable
test-gpu: test-gpu-runs
test-gpu-runs: all ## of test-gpu: trainings on a GPU beside the CPU's, NCCL, a table at the end; 2 without a GPU
	@tests/gpu/run.sh --build $(BUILD)/release

bench-gpu: all ## train a GPT-2 and a Llama of 1B on one GPU beside PyTorch (PYTHON has it, or python3); 2 without a GPU
	$(build_config) gpu-bench
	@tests/gpu/bench.sh --build $(BUILD)/release

gpu-portable: $(BUILD)/packages/test all ## build/gpu: what test-gpu and bench-gpu need that is built, for a machine with a GPU and PyTorch alone
	$(build_config) gpu-tests gpu-bench
	@tests/gpu/portable.sh --build $(BUILD)/release --out $(BUILD)/gpu

lint: $(BUILD)/packages/lint ## luacheck, formatting, floors (includes, calls, requires), prose in tests, wording, sizes
	@tests/lint/run.sh

san-address: $(BUILD)/packages/train $(BUILD)/packages/test $(BUILD)/packages/build ## the tests under the address and undefined-behaviour sanitizers
	$(build_config) CONFIG=address all tests
	@$(call test_config,address) $(TEST_TIMEOUT)

san-thread: $(BUILD)/packages/train $(BUILD)/packages/test $(BUILD)/packages/build ## the tests under the thread sanitizer, every stream a thread
	$(build_config) CONFIG=thread all tests
	@$(call test_config,thread) $(TEST_TIMEOUT)

.PHONY: crash-checkpoints
crash-checkpoints: $(BUILD)/packages/build all ## kill runs at POINTS random points of saving a checkpoint, and go on from what is left
	@tests/fuzz/crash_checkpoints.sh '$(BUILD)' '$(POINTS)' '$(SEED)'

fuzz-safetensors: $(BUILD)/packages/build ## broken safetensors files under clang's libFuzzer, for FUZZ_SECONDS
	@tests/fuzz/libfuzzer.sh '$(BUILD)' safetensors '$(FUZZ_SECONDS)'

.PHONY: fuzz-tokenizer
fuzz-tokenizer: $(BUILD)/packages/build ## broken tokenizer.json and token files under clang's libFuzzer, for FUZZ_SECONDS
	@tests/fuzz/libfuzzer.sh '$(BUILD)' tokenizer '$(FUZZ_SECONDS)'

.PHONY: soak
soak: $(BUILD)/packages/train $(BUILD)/packages/test all ## random kills, full disks, errors and broken files for SECONDS; ONLY=blocked SEED=1 CASES=1 repeats a case
	$(build_config) CONFIG=address $(BUILD)/address/tests/test_handles
	@tests/soak/run.sh '$(BUILD)' '$(SECONDS)' '$(SEED)' '$(CASES)' '$(ONLY)'

install: all ## install under PREFIX (and DESTDIR)
	$(build_config) DESTDIR=$(DESTDIR) install

.PHONY: deb compile_commands.json
deb: $(BUILD)/packages/build $(BUILD)/packages/deb ## Debian packages in build/deb: built, judged by lintian, unpacked and trained with
	@runtime/make/deb.sh $(BUILD)/deb $(shell sed -n 's/^VERSION := //p' runtime/make/build.mk) '$(PACKAGES_BUILD)'

compile_commands.json: $(BUILD)/packages/build $(BUILD)/packages/test ## how every file is compiled, for clangd and its like
	$(build_config) compile_commands

clean: ## remove what was built; the peers stay (rm -r build removes them too)
	@if [ -d $(BUILD) ]; then find $(BUILD) -mindepth 1 -maxdepth 1 ! -name peers -exec rm -rf {} +; fi

help: ## this list
	@sed -n 's/^\([a-z_.-]*\):[^#]*## /\1\t/p' Makefile | expand -t 14
	@echo; echo "Settings and what they are now:"
	@printf '  %-13s %s\n' PREFIX '$(PREFIX)' LIBDIR '$(LIBDIR)' WERROR '$(WERROR)' JOBS '$(JOBS)' STEPS '$(STEPS)' FILES '$(FILES)' RECIPE '$(RECIPE)' N '$(N)' \
	  ARGS '$(ARGS)' ONLY '$(ONLY)' TEST_TIMEOUT '$(TEST_TIMEOUT)' SECONDS '$(SECONDS)' SEED '$(SEED)' CASES '$(CASES)' CUDA_HOME '$(CUDA_HOME)' CUDA_ARCHS '$(CUDA_ARCHS)'

# A stamp says that a list was satisfied; a changed list (this file) asks again.
PACKAGES_build := $(PACKAGES_BUILD)
PACKAGES_train := $(PACKAGES_BUILD) $(PACKAGES_TRAIN)
PACKAGES_test := $(PACKAGES_BUILD) $(PACKAGES_TEST)
PACKAGES_lint := $(PACKAGES_LINT)
PACKAGES_deb := $(PACKAGES_BUILD) $(PACKAGES_DEB)
PACKAGES_bench := $(PACKAGES_BUILD) $(PACKAGES_BENCH)

$(BUILD)/packages/%: Makefile runtime/make/packages.sh
	@mkdir -p $(@D)
	@runtime/make/packages.sh $(PACKAGES_$*) && touch $@
