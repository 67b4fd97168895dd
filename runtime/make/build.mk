# Compiles Moonshard. The Makefile calls it once the packages are installed, with
#   CONFIG=release | address | thread     optimised, or with a sanitizer
#   CONFIG=fuzz                           what clang's libFuzzer needs (tests/fuzz/libfuzzer/libfuzzer.sh)
#   BUILD=build                           the folder of all products
#   CC, CXX, CPPFLAGS, CFLAGS, CXXFLAGS, LDFLAGS   from the environment or the command line; flags follow our own
#   WERROR=1                              warnings are errors, as in .ci/run
#   CUDA_CHECK=1                          nvcc reads the CUDA kernels and compiles none, as in .ci/run; a library that an
#                                         earlier build made is of other kernels, and is removed
#
# Products of a configuration, in $(BUILD)/$(CONFIG)/:
#   libmoonshard.so    the engine; exports what moonshard.h marks MS_API
#   moonshard          the executable: the same engine, LuaJIT, the command line and all Lua sources
#   libmoonshard_cuda.so   the device cuda and its kernels, where there is nvcc (release only)
#   libmoonshard_mpi.so    what the transport mpi needs of an MPI, where there is mpicc (release only)
#   tests/  bench/     the C programs of tests/c and tests/bench/programs
# and, shared by all configurations, in $(BUILD)/gen/:
#   moonshard/cdef.lua the declarations of moonshard.h for LuaJIT's ffi
#   moonshard/meta/*.lua     the ops and the optimizers' options, for editors
#   embedded_lua.c     the Lua sources as bytes
#
# To use it from a plain luajit, in the source tree:
#   LUA_PATH='lua/?.lua;lua/?/init.lua;build/gen/?.lua;;' MOONSHARD_LIB=build/release/libmoonshard.so luajit my.lua
# where MOONSHARD_LIB names the library that `require "moonshard"` loads. After `make install` neither is needed.
#
# There is no static library: the engine loads libmoonshard_cuda.so and libmoonshard_mpi.so, which it finds relative to
# its own file.

CONFIG ?= release
BUILD ?= build
PREFIX ?= /usr/local
DESTDIR ?=
SHELL := /bin/bash
.DELETE_ON_ERROR:
.SUFFIXES:

VERSION := 0.1.0
ABI := $(shell sed -n 's/.*MS_ABI_VERSION = \([0-9]*\).*/\1/p' runtime/moonshard/base.h)
OUT := $(BUILD)/$(CONFIG)
GEN := $(BUILD)/gen
# The structs of settings are made before anything else, because every source includes them; and their rows for Lua.
SETTINGS := $(GEN)/moonshard/settings.h
MADE := $(shell mkdir -p $(dir $(SETTINGS)) && luajit runtime/make/make_settings.lua runtime/base/settings/settings.def $(GEN)/moonshard 2>&1)
$(if $(MADE),$(error $(MADE)))
# The public header, and its parts.
HEADER := runtime/moonshard.h $(wildcard runtime/moonshard/*.h) $(SETTINGS)

# ---- flags -------------------------------------------------------------------------------------------------------

ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(CONFIG),fuzz)
CC := clang
endif
# Under a sanitizer, gcc's flow analysis also sees the inserted checks and gives false warnings, so only the release
# build enables all warnings.
WARNINGS_release := -Wall -Wextra $(if $(WERROR),-Werror)
WARNINGS_address := -w
WARNINGS_thread := -w
WARNINGS_fuzz := -w
WARNINGS := $(WARNINGS_$(CONFIG))
LIBRARIES := libpcre2-8 jansson libxxhash libsodium libutf8proc
INCLUDES := -Iruntime -I. -I$(GEN) $(shell pkg-config --cflags $(LIBRARIES))

CONFIG_release := -O2 -g
# -g1 is enough for function names and lines in reports.
# Checks of pointers that the address sanitizer finds by what they point to take as long to compile as all others.
CHECKED := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-sanitize=null,object-size,pointer-overflow
CONFIG_address := -O1 -g1 -fno-omit-frame-pointer $(CHECKED)
CONFIG_thread := -O1 -g1 -fno-omit-frame-pointer -fsanitize=thread
CONFIG_fuzz := -O1 -g1 -fno-omit-frame-pointer -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined
KERNEL_release := -O3
# The compiler can contract to fused multiply-adds. No -ffast-math, because NaN and infinity must keep their meaning.
KERNEL_FLAGS := $(KERNEL_$(CONFIG)) -ffp-contract=fast -fno-math-errno

# Most C tests spend more time in the compiler than running. Those with long loops are optimised.
LONG_TESTS := test_kernels_% test_float8 test_philox test_partition_random test_comm% test_sum test_transport test_hosts
TEST_FLAGS = $(if $(filter $(LONG_TESTS),$(basename $(notdir $<))),-Og,-O0)
FLAGS_test_kernels_matmul := -O1
FLAGS_test_kernels_matmul_choice := -O1
FLAGS_test_kernels_attention := -O1
FLAGS_test_comm := -O1

# Products do not contain the path of the tree, so builds in different folders are equal.
PREFIX_MAP := -ffile-prefix-map=$(CURDIR)=.
OWN_CFLAGS := -std=c11 -D_GNU_SOURCE $(WARNINGS) -fPIC -fvisibility=hidden -fopenmp $(INCLUDES) $(PREFIX_MAP) $(CONFIG_$(CONFIG))
# An undefined symbol is an error at link time and not for the user. Except in sanitized code, where the program that
# loads the library defines the sanitizer's symbols.
NO_UNDEFINED_release := -Wl,-z,defs

# Long functions call the address sanitizer: gcc takes longer to inline its checks, for one of them half a minute.
CALLED_CHECKS := --param asan-instrumentation-with-call-threshold=0
INLINE_CHECKS := --param asan-instrumentation-with-call-threshold=7000
FLAGS_split_panel := $(if $(filter address,$(CONFIG)),$(CALLED_CHECKS))

# The emulation's fibers are not instrumented for the thread sanitizer, which does not know their stacks.
EMULATED_release := -O1 -g1
EMULATED_address := $(CONFIG_address) $(CALLED_CHECKS)
# The emulation itself, which every access of a kernel runs, is worth the time.
EMULATION_address := $(INLINE_CHECKS)
EMULATED_thread := -O1 -g1
EMULATED_CXXFLAGS := -std=c++17 -D_GNU_SOURCE $(WARNINGS) -Wno-unknown-pragmas -Wno-missing-field-initializers -fPIC -fvisibility=hidden \
  -ffp-contract=off -Itests/emulated_cuda $(INCLUDES) $(PREFIX_MAP) $(EMULATED_$(CONFIG)) $(CPPFLAGS) $(CXXFLAGS)

OWN_LDFLAGS := -fopenmp -Wl,--as-needed $(CONFIG_$(CONFIG)) $(LDFLAGS)
LDLIBS := $(shell pkg-config --libs $(LIBRARIES)) -ldnnl -ldl -lrt -lpthread -lm
HOST_CFLAGS := $(shell pkg-config --cflags luajit libedit)
HOST_LDLIBS := $(shell pkg-config --libs luajit libedit)

# ---- sources -----------------------------------------------------------------------------------------------------

# The launcher does not depend on Lua; tests and benchmarks that start ranks link it too.
LAUNCHER_C := $(wildcard runtime/host/launcher/*.c)
HOST_C := $(wildcard runtime/host/*.c runtime/host/hosts/*.c) $(LAUNCHER_C)
# Those that the CUDA library contains, too: sizes, choices and codes.
SHARED_KERNEL_C := $(wildcard kernels/*.c kernels/formats/*.c kernels/products/*.c kernels/cuda/plan/*.c \
  kernels/cuda/plan/*/*.c)
KERNEL_C := $(SHARED_KERNEL_C) $(wildcard kernels/cpu/*.c kernels/cpu/*/*.c)
ENGINE_C := $(filter-out $(HOST_C) runtime/device/cuda/% runtime/comm/transport/mpi/library.c,\
  $(wildcard runtime/*.c runtime/*/*.c runtime/*/*/*.c runtime/*/*/*/*.c)) $(KERNEL_C)
# Programs of tests/c: embed_*.c use only the installed header and the library, the others all internal symbols. These
# are linked by folder, a room (make/test_room.lua); a link of a test's name, wherever its source is, runs that test.
EMBED_C := $(wildcard tests/c/api/embed_*.c)
# Tests that a sanitizer run skips (tests/run.sh) are not built for it, unless ONLY names them.
LEFT_OUT := $(if $(ONLY),,$(if $(wildcard tests/sanitizers/$(CONFIG).skip),$(shell sed -nE 's|^(tests/c/[^ ]+).*|\1%|p' tests/sanitizers/$(CONFIG).skip)))
ALL_TEST_C := $(wildcard tests/c/*/test_*.c)
TEST_C := $(filter-out $(LEFT_OUT),$(ALL_TEST_C))
TEST_SUPPORT_C := $(wildcard tests/c/support/*.c tests/c/support/*/*.c)
BENCH_MPI_C := $(wildcard tests/bench/peers/mpi_*.c)
BENCH_C := $(wildcard tests/bench/programs/*.c)
# CUDA kernels: compiled by nvcc, and as C++ against an emulation of CUDA on the host, which the tests use.
CUDA_CU := $(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu)
CUDA_KERNEL_C := $(filter-out kernels/cuda/plan/%,$(wildcard kernels/cuda/*.c kernels/cuda/*/*.c))
EMULATION_TEST_CPP := $(wildcard tests/emulated_cuda/test_*.cpp)
EMULATION_CPP := $(filter-out $(EMULATION_TEST_CPP),$(wildcard tests/emulated_cuda/*.cpp))
KERNEL_TEST_C := $(wildcard tests/c/*/test_kernels_*.c)
# Tests that stand in for functions of libc, which no others may meet: each has a room of its own.
ALONE_TEST_C := tests/c/bootstrap/test_store_resolve.c tests/c/exec/test_exec_faults.c
LUA_SOURCES := $(sort $(shell find lua -name '*.lua' 2>/dev/null))

objects = $(patsubst %.c,$(OUT)/obj/%.o,$(1))
programs = $(patsubst %.c,$(OUT)/tests/$(1)%,$(notdir $(2)))
# What one thread does before any other exists: the thread sanitizer has nothing to find there, so its build takes the
# objects of the release build, which `make plain` makes.
PLAIN_C := $(filter runtime/graph/% runtime/mesh/% runtime/plan/% runtime/price/% runtime/shard/%,$(ENGINE_C))
PLAIN_O := $(PLAIN_C:%.c=$(BUILD)/release/obj/%.o)
COMPILED_O := $(if $(filter thread,$(CONFIG)),$(PLAIN_O) $(call objects,$(filter-out $(PLAIN_C),$(ENGINE_C))),$(call objects,$(ENGINE_C)))
# What tells builds of one version apart: a hash of all objects of the engine.
BUILD_ID_O := $(OUT)/obj/build_id.o
ENGINE_O := $(COMPILED_O) $(BUILD_ID_O)
HOST_O := $(call objects,$(HOST_C)) $(OUT)/obj/embedded_lua.o
LAUNCHER := $(OUT)/liblauncher.a
# A test reads the inputs of libFuzzer's targets again, each of which it knows by the name of its file.
FUZZ_TARGET_O := $(call objects,$(wildcard tests/fuzz/libfuzzer/fuzz_*.c))
TEST_SUPPORT_O := $(call objects,$(TEST_SUPPORT_C)) $(FUZZ_TARGET_O)
TESTS := $(call programs,,$(TEST_C) $(EMBED_C))
BENCHES := $(patsubst tests/bench/programs/%.c,$(OUT)/bench/%,$(BENCH_C))
PEER_BENCHES := $(patsubst tests/bench/peers/%.c,$(BUILD)/peers/%,$(BENCH_MPI_C))

EMULATION_O := $(patsubst %.cpp,$(OUT)/obj/%.o,$(EMULATION_CPP))
EMULATED_O := $(patsubst %.cu,$(OUT)/obj/%.emulated.o,$(CUDA_CU)) $(CUDA_KERNEL_C:%.c=$(OUT)/obj/%.emulated.o) $(EMULATION_O)
EMULATED_TESTS := $(call programs,emulated/,$(KERNEL_TEST_C)) \
  $(patsubst tests/emulated_cuda/%.cpp,$(OUT)/tests/emulated/%,$(EMULATION_TEST_CPP))
# Engine sources that the CUDA library contains: memory, dtypes, shapes, workspaces. It passes errors to the engine that
# loads it.
CUDA_HOST_O := $(call objects,$(SHARED_KERNEL_C) runtime/base/memory.c runtime/base/numbers/dtype.c \
  runtime/base/env.c runtime/base/text/hash.c runtime/base/library.c runtime/base/numbers/number.c)
include runtime/make/cuda.mk
include runtime/make/mpi.mk

LIBRARY := $(OUT)/libmoonshard.so
EXECUTABLE := $(OUT)/moonshard
META := $(GEN)/moonshard/meta/ops.lua $(GEN)/moonshard/meta/optimizers.lua

# nvcc, if installed: on the PATH or in CUDA_HOME. Without it, the CUDA library is not built, and no rule needs it.
CUDA_HOME ?= /usr/local/cuda
NVCC := $(firstword $(shell command -v nvcc) $(wildcard $(CUDA_HOME)/bin/nvcc))
# Three architectures take nvcc three times as long as one, so a build for this machine has code for its GPUs alone. PTX is
# of the newest: drivers compile it for GPUs that are newer still.
CUDA_HERE := $(if $(NVCC),$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | \
  sed -n 's/^\([0-9]*\)\.\([0-9]\)$$/\1\2/p' | awk '$$1 >= 80' | sort -nu))
GPU_ARCHS := $(shell printf '%s\n' $(or $(strip $(CUDA_ARCHS)),$(CUDA_HERE),90) | sort -nu)
NVCC_FLAGS := -std=c++17 -O3 -Xcompiler -fPIC,-Wall,-fvisibility=hidden $(INCLUDES) \
  $(foreach arch,$(GPU_ARCHS),-gencode arch=compute_$(arch),code=sm_$(arch)) \
  -gencode arch=compute_$(lastword $(GPU_ARCHS)),code=compute_$(lastword $(GPU_ARCHS))
# The compiler does not contract: which multiplications and additions it joins would depend on the code around them, and
# so would bits of equal formulas. Kernels write fmaf where they want one rounding.
NVCC_FLAGS += -fmad=false
CUDA_LIBRARY := $(OUT)/libmoonshard_cuda.so
CUDA_O := $(patsubst %.cu,$(OUT)/obj/%.cuda.o,$(CUDA_CU)) $(CUDA_KERNEL_C:%.c=$(OUT)/obj/%.cuda.o)
# What nvcc says to the kernels, in a tenth of the time, and the compiler to what is not a kernel.
CUDA_CHECKS := $(patsubst %.cu,$(OUT)/obj/%.checked,$(CUDA_CU)) $(CUDA_KERNEL_C:%.c=$(OUT)/obj/%.cuda.o) $(CUDA_DEVICE_O)
CUDA_BUILT := $(if $(NVCC),$(if $(CUDA_CHECK),$(CUDA_CHECKS),$(CUDA_LIBRARY)))

# The kernels' tests on a real GPU.
GPU_TESTS := $(call programs,gpu/,$(KERNEL_TEST_C))

.PHONY: all tests bench bench-objects peers install cuda gpu-tests
# Without main.c, only the library is built.
all: $(LIBRARY) $(GEN)/moonshard/cdef.lua $(if $(HOST_C),$(EXECUTABLE)) \
  $(if $(filter release,$(CONFIG)),$(META) $(CUDA_BUILT) $(if $(MPI),$(MPI_LIBRARY)))
	@$(if $(CUDA_CHECK),rm -f $(CUDA_LIBRARY),:)
# Specs of a sanitized build run in a luajit that is linked with the sanitizer's runtime.
tests: $(TESTS) $(if $(filter-out thread,$(CONFIG)),$(EMULATED_TESTS) $(OUT)/tests/fuzz_api) $(if $(filter-out release,$(CONFIG)),$(OUT)/luajit)
	@:
# What the tests of every configuration run, in one make: no processor waits while another ends one of the builds. What
# the configurations share is there before they begin.
CONFIGS := release address thread
.PHONY: test-builds plain plain-release $(CONFIGS)
test-builds: $(CONFIGS)
plain: $(PLAIN_O)
	@:
plain-release:
	+@$(MAKE) --no-print-directory -f runtime/make/build.mk CONFIG=release plain
release thread: plain-release
$(CONFIGS): $(GEN)/moonshard/cdef.lua $(GEN)/embedded_lua.c
	+@$(MAKE) --no-print-directory -f runtime/make/build.mk CONFIG=$@ all tests $(if $(filter release,$@),bench-objects)
bench: $(BENCHES)
	@:
# Tests run no benchmark, but see that all compile.
bench-objects: $(call objects,$(BENCH_C))
	@:
gpu-tests: $(if $(NVCC),$(GPU_TESTS),cuda)
	@:
gpu-bench: $(if $(NVCC),$(STAND_IN))
cuda: $(if $(NVCC),$(CUDA_LIBRARY))
	@$(if $(NVCC),:,echo "no nvcc on the PATH or in $(CUDA_HOME)/bin" >&2; exit 1)
peers: $(PEER_BENCHES)
	@:

# ---- commands and lists that products depend on: files that are rewritten only when they change --------------------

remember = $(shell mkdir -p $(dir $(1)))$(if $(filter-out x$(strip $(2))x,x$(strip $(file <$(1)))x),$(file >$(1),$(strip $(2))))
space := $(subst ,, )
underscored = $(subst $(space),|,$(strip $(1)))
_ := $(call remember,$(OUT)/flags.list,$(call underscored,$(CC) $(OWN_CFLAGS) $(CPPFLAGS) $(CFLAGS) $(TEST_FLAGS) -Dmain=NAME $(KERNEL_FLAGS) $(HOST_CFLAGS) $(EMULATED_CXXFLAGS)))
_ := $(call remember,$(OUT)/engine.list,$(call underscored,$(ENGINE_O) $(OWN_LDFLAGS) $(LDLIBS)))
_ := $(call remember,$(OUT)/host.list,$(call underscored,$(HOST_O) $(HOST_LDLIBS)))
_ := $(call remember,$(OUT)/cuda.list,$(call underscored,$(NVCC) $(NVCC_FLAGS)))
_ := $(call remember,$(OUT)/mpi.list,$(call underscored,$(MPI) $(CC) $(OWN_CFLAGS) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS)))
_ := $(call remember,$(GEN)/lua.list,$(call underscored,$(LUA_SOURCES)))

# ---- rules -------------------------------------------------------------------------------------------------------

$(OUT)/obj/kernels/%.o: kernels/%.c $(OUT)/flags.list
	@mkdir -p $(@D)
	@echo "cc    $<"
	@$(CC) $(OWN_CFLAGS) $(KERNEL_FLAGS) $(FLAGS_$(basename $(notdir $<))) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(OUT)/obj/runtime/host/%.o: runtime/host/%.c $(OUT)/flags.list
	@mkdir -p $(@D)
	@echo "cc    $<"
	@$(CC) $(OWN_CFLAGS) $(HOST_CFLAGS) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(OUT)/obj/%.o: %.c $(OUT)/flags.list
	@mkdir -p $(@D)
	@echo "cc    $<"
	@$(CC) $(OWN_CFLAGS) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(call objects,$(ALL_TEST_C)): $(OUT)/obj/%.o: %.c $(OUT)/flags.list
	@mkdir -p $(@D)
	@echo "cc    $<"
	@$(CC) $(OWN_CFLAGS) $(MAIN_OF_TEST) $(TEST_FLAGS) $(FLAGS_$(basename $(notdir $<))) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

ifneq ($(CONFIG),fuzz)
$(FUZZ_TARGET_O): CPPFLAGS += -DLLVMFuzzerTestOneInput=$(basename $(notdir $<))
endif

$(OUT)/obj/embedded_lua.o: $(GEN)/embedded_lua.c $(OUT)/flags.list
	@mkdir -p $(@D)
	@echo "cc    $<"
	@$(CC) $(OWN_CFLAGS) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

# A program can load the library and close it again. It must stay mapped, because kernel threads and an installed Ctrl-C
# handler run its code.
$(BUILD_ID_O): $(COMPILED_O) $(OUT)/engine.list
	@echo "id    $@"
	@printf '#include "base/build_id.h"\nconst char ms_build_id[] = "moonshard build %.16s";\n' \
	  "$$(cat $(COMPILED_O) | sha256sum)" | $(CC) $(OWN_CFLAGS) $(CPPFLAGS) $(CFLAGS) -x c -c -o $@ -

$(LIBRARY).$(ABI): $(ENGINE_O) $(OUT)/engine.list
	@echo "link  $@"
	@$(CC) -shared -Wl,-z,nodelete -Wl,-soname,libmoonshard.so.$(ABI) $(NO_UNDEFINED_$(CONFIG)) $(OWN_LDFLAGS) $(ENGINE_O) -o $@ $(LDLIBS)

$(LIBRARY): $(LIBRARY).$(ABI)
	@ln -sf $(notdir $<) $@

# -rdynamic: ffi.C finds the engine's functions in the executable itself.
$(EXECUTABLE): $(ENGINE_O) $(HOST_O) $(OUT)/engine.list $(OUT)/host.list
	@echo "link  $@"
	@$(CC) -rdynamic $(OWN_LDFLAGS) $(ENGINE_O) $(HOST_O) -o $@ $(LDLIBS) $(HOST_LDLIBS)

$(GEN)/moonshard/cdef.lua: $(HEADER) runtime/make/make_cdef.lua
	@mkdir -p $(@D)
	@echo "gen   $@"
	@luajit runtime/make/make_cdef.lua $< $(GEN) $@

$(GEN)/moonshard/meta/ops.lua: lua/moonshard/tensor/ops.lua lua/moonshard/tensor/init.lua
$(GEN)/moonshard/meta/optimizers.lua: lua/moonshard/engine/optimizers.lua lua/moonshard/repl/optimizer_classes.lua
$(META): $(GEN)/moonshard/meta/%.lua: $(LIBRARY) $(GEN)/moonshard/cdef.lua runtime/make/make_%_meta.lua
	@mkdir -p $(@D)
	@echo "gen   $@"
	@LUA_PATH='lua/?.lua;lua/?/init.lua;$(GEN)/?.lua' MOONSHARD_LIB=$(LIBRARY) luajit runtime/make/make_$*_meta.lua $@

$(GEN)/embedded_lua.c: $(GEN)/moonshard/cdef.lua $(GEN)/moonshard/settings.lua $(LUA_SOURCES) $(GEN)/lua.list runtime/make/embed_lua.lua runtime/make/bytecode.lua
	@echo "gen   $@"
	@luajit runtime/make/embed_lua.lua $@ lua $(LUA_SOURCES) -- $(GEN) $(GEN)/moonshard/cdef.lua $(GEN)/moonshard/settings.lua

$(LAUNCHER): $(call objects,$(LAUNCHER_C))
	@rm -f $@
	@ar rcs $@ $^

$(OUT)/include/%.h: runtime/%.h
	@mkdir -p $(@D)
	@cp $< $@

$(OUT)/include/%.h: $(GEN)/%.h
	@mkdir -p $(@D)
	@cp $< $@

# The program at the top of the header, which tests/c/api/embed_manual.c is made of.
$(OUT)/include/manual_program.h: runtime/moonshard.h
	@mkdir -p $(@D)
	@sed -n '/^ \* \{2,3\}#include/,/^ \* \{2,3\}}/s/^ \* \{0,3\}//p' $< > $@

$(OUT)/tests/embed_%: tests/c/api/embed_%.c $(patsubst $(GEN)/%,$(OUT)/include/%,$(HEADER:runtime/%=$(OUT)/include/%)) $(OUT)/include/manual_program.h $(LIBRARY)
	@mkdir -p $(@D)
	@echo "cc    $<"
	@$(CC) -std=c99 -pedantic -Wall -Werror $(WARNINGS) $(CONFIG_$(CONFIG)) -I$(OUT)/include $< -o $@ -Wl,--as-needed -L$(OUT) -lmoonshard -lm -Wl,-rpath,'$$ORIGIN/..'

# room FOLDER,ROOM,SOURCES,KIND: the program of a room's tests, and their names.
define room
$(eval _ := $(call remember,$(OUT)/tests/$(1)$(2).list,$(call underscored,$(3))))
$(OUT)/tests/$(1)$(2).c: $(3) $(OUT)/tests/$(1)$(2).list runtime/make/test_room.lua
	@luajit runtime/make/test_room.lua $$@ $(3)
$(OUT)/tests/$(1)$(2).room: $(OUT)/tests/$(1)$(2).main.o $(3:%.c=$(OUT)/obj/%$(4).o)
$(call programs,$(1),$(3)): $(OUT)/tests/$(1)$(2).room
	@ln -sf $$(<F) $$@
endef
rooms = $(sort $(patsubst tests/c/%/,%,$(dir $(filter-out $(ALONE_TEST_C),$(1)))))
in_room = $(filter tests/c/$(2)/%,$(filter-out $(ALONE_TEST_C),$(1)))
$(foreach name,$(call rooms,$(TEST_C)),$(eval $(call room,,$(name),$(call in_room,$(TEST_C),$(name)))))
$(foreach source,$(filter $(ALONE_TEST_C),$(TEST_C)),$(eval $(call room,,$(basename $(notdir $(source))),$(source))))
$(foreach name,$(call rooms,$(KERNEL_TEST_C)),$(eval $(call room,emulated/,$(name),$(call in_room,$(KERNEL_TEST_C),$(name)),.emulated)))
$(foreach name,$(call rooms,$(KERNEL_TEST_C)),$(eval $(call room,gpu/,$(name),$(call in_room,$(KERNEL_TEST_C),$(name)),.gpu)))
own_objects = $(filter $(OUT)/obj/tests/c/%$(1).o,$(filter-out $(TEST_SUPPORT_O),$^))
MAIN_OF_TEST = -Dmain=$(basename $(notdir $<))

$(OUT)/tests/%.main.o: $(OUT)/tests/%.c $(OUT)/flags.list
	@$(CC) $(OWN_CFLAGS) $(TEST_FLAGS) -c $< -o $@

$(OUT)/tests/%.room: $(OUT)/tests/%.main.o $(TEST_SUPPORT_O) $(ENGINE_O) $(LAUNCHER) $(OUT)/engine.list
	@mkdir -p $(@D)
	@echo "link  $@"
	@$(CC) -rdynamic $(OWN_LDFLAGS) $< $(call own_objects,) $(TEST_SUPPORT_O) $(LAUNCHER) $(ENGINE_O) -o $@ -lcmocka $(LDLIBS)

# The API fuzzer, for make soak and specs: its calls are made from the header.
$(GEN)/api_calls.h: tests/fuzz/api/api_calls.lua $(HEADER)
	@mkdir -p $(@D)
	@luajit $< runtime/moonshard.h $(GEN) $@

$(OUT)/tests/fuzz_api: tests/fuzz/api/api.c tests/fuzz/api/api_values.h $(GEN)/api_calls.h $(LIBRARY)
	@mkdir -p $(@D)
	@echo "cc    $<"
	@$(CC) $(OWN_CFLAGS) $(TEST_FLAGS) -I$(GEN) $(CPPFLAGS) $(CFLAGS) $< -o $@ $(OWN_LDFLAGS) -L$(OUT) -lmoonshard -lm -Wl,-rpath,'$$ORIGIN/..'

$(OUT)/obj/%.cuda.o: %.cu $(OUT)/cuda.list
	@mkdir -p $(@D)
	@echo "nvcc  $<"
	@$(NVCC) $(NVCC_FLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

$(OUT)/obj/%.checked: %.cu $(OUT)/cuda.list
	@mkdir -p $(@D)
	@echo "nvcc  $< (checked)"
	@$(NVCC) $(NVCC_FLAGS) -ptx -Xcicc -O0 -MMD -MP -MF $@.d -MT $@ $< -o $@

# Links the toolkit's runtime statically, so that a run needs only the driver.
CUDART := -L$(dir $(NVCC))../lib64 -lcudart_static -lrt -lpthread -ldl

$(CUDA_LIBRARY): $(CUDA_O) $(CUDA_HOST_O)
	@echo "link  $@"
	@$(CXX) -shared -Wl,-soname,$(@F) -Wl,-Bsymbolic $(NO_UNDEFINED_$(CONFIG)) $(LDFLAGS) $^ -o $@ $(CUDART)

$(OUT)/obj/tests/c/%.gpu.o: tests/c/%.c $(OUT)/flags.list
	@mkdir -p $(@D)
	@echo "cc    $<"
	@$(CC) $(OWN_CFLAGS) $(MAIN_OF_TEST) $(TEST_FLAGS) -DMS_TEST_CUDA -isystem $(dir $(NVCC))../include $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(OUT)/tests/gpu/%.room: $(OUT)/tests/gpu/%.main.o $(CUDA_O) $(ENGINE_O) $(OUT)/engine.list
	@mkdir -p $(@D)
	@echo "link  $@"
	@$(CXX) -rdynamic $(OWN_LDFLAGS) $< $(call own_objects,.gpu) $(filter %.cuda.o,$(CUDA_O)) $(ENGINE_O) -o $@ -lcmocka $(LDLIBS) $(CUDART)

$(OUT)/obj/%.emulated.o: %.cu $(OUT)/flags.list
	@mkdir -p $(@D)
	@echo "c++   $<"
	@$(CXX) -x c++ $(EMULATED_CXXFLAGS) -MMD -MP -c $< -o $@

$(OUT)/obj/tests/emulated_cuda/%.o: tests/emulated_cuda/%.cpp $(OUT)/flags.list
	@mkdir -p $(@D)
	@echo "c++   $<"
	@$(CXX) $(EMULATED_CXXFLAGS) $(EMULATION_$(CONFIG)) -MMD -MP -c $< -o $@

# The kernels' tests again, for the CUDA kernels.
$(OUT)/obj/tests/c/%.emulated.o: tests/c/%.c $(OUT)/flags.list
	@mkdir -p $(@D)
	@echo "cc    $<"
	@$(CC) $(OWN_CFLAGS) $(MAIN_OF_TEST) $(TEST_FLAGS) $(FLAGS_$(basename $(notdir $<))) -DMS_TEST_CUDA -Itests/emulated_cuda $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(OUT)/tests/emulated/%.room: $(OUT)/tests/emulated/%.main.o $(EMULATED_O) $(ENGINE_O) $(OUT)/engine.list
	@mkdir -p $(@D)
	@echo "link  $@"
	@$(CXX) -rdynamic $(OWN_LDFLAGS) $< $(call own_objects,.emulated) $(EMULATED_O) $(ENGINE_O) -o $@ -lcmocka $(LDLIBS)

$(OUT)/tests/emulated/%: $(OUT)/obj/tests/emulated_cuda/%.o $(EMULATION_O)
	@mkdir -p $(@D)
	@echo "link  $@"
	@$(CXX) $(OWN_LDFLAGS) $^ -o $@ -lcmocka

$(OUT)/luajit: tests/sanitizers/luajit.c $(OUT)/flags.list
	@echo "cc    $<"
	@$(CC) $(OWN_CFLAGS) $(HOST_CFLAGS) $(CPPFLAGS) $(CFLAGS) $< -o $@ $(HOST_LDLIBS)

$(OUT)/bench/%: $(OUT)/obj/tests/bench/programs/%.o $(ENGINE_O) $(LAUNCHER) $(OUT)/engine.list
	@mkdir -p $(@D)
	@echo "link  $@"
	@$(CC) $(OWN_LDFLAGS) $< $(LAUNCHER) $(ENGINE_O) -o $@ $(LDLIBS)

# The targets of libFuzzer, with the engine's sources that they need.
FUZZ_C := $(wildcard runtime/io/*.c runtime/io/*/*.c runtime/io/*/*/*.c runtime/base/*.c runtime/base/*/*.c)
$(BUILD)/fuzz/fuzz_%: $(BUILD)/fuzz/obj/tests/fuzz/libfuzzer/fuzz_%.o $(call objects,$(FUZZ_C))
	@echo "link  $@"
	@$(CC) $(CONFIG_fuzz) $^ -o $@ $(shell pkg-config --libs $(LIBRARIES)) -lpthread -lm

$(BUILD)/peers/mpi_%: tests/bench/peers/mpi_%.c
	@mkdir -p $(@D)
	@echo "mpicc $<"
	@mpicc -std=c11 -D_GNU_SOURCE -O3 $(WARNINGS) $< -o $@

# ---- installation --------------------------------------------------------------------------------------------------

LIBDIR ?= $(PREFIX)/lib
# LuaJIT searches this folder by default under /usr/local and /usr.
LUADIR ?= $(PREFIX)/share/lua/5.1
MANDIR ?= $(PREFIX)/share/man
DOCDIR ?= $(PREFIX)/share/doc/moonshard

define PC
prefix=$(PREFIX)
libdir=$(LIBDIR)
includedir=$${prefix}/include

Name: moonshard
Description: Training of neural networks sharded over a mesh of devices
Version: $(VERSION)
Cflags: -I$${includedir}
Libs: -L$${libdir} -lmoonshard
endef
export PC

$(GEN)/moonshard.1: lua/moonshard/cli/help.lua runtime/make/make_man.lua runtime/make/build.mk
	@mkdir -p $(@D)
	@echo "gen   $@"
	@luajit runtime/make/make_man.lua $(VERSION) $@

# The Lua files find the library by its path relative to them, so an installation can be moved as a whole.
LIBRARY_FROM_LUA = $(shell realpath -ms --relative-to=$(LUADIR)/moonshard $(LIBDIR)/libmoonshard.so.$(ABI))
GUIDES := README.md $(wildcard */README.md */guides/*.md) runtime/comm/README.md kernels/cuda/NOTES.md

install: all $(GEN)/moonshard.1
	install -d $(addprefix $(DESTDIR),$(PREFIX)/bin $(LIBDIR)/pkgconfig $(PREFIX)/include/moonshard $(LUADIR)/moonshard \
	  $(PREFIX)/share/moonshard $(MANDIR)/man1 $(addprefix $(DOCDIR)/,$(sort $(dir $(GUIDES)))))
	install -m 755 $(EXECUTABLE) $(DESTDIR)$(PREFIX)/bin/moonshard
	install -m 755 $(LIBRARY).$(ABI) $(DESTDIR)$(LIBDIR)/libmoonshard.so.$(ABI)
	$(if $(filter %.so,$(CUDA_BUILT)),install -m 755 $(CUDA_LIBRARY) $(DESTDIR)$(LIBDIR)/libmoonshard_cuda.so)
	$(if $(MPI),install -m 755 $(MPI_LIBRARY) $(DESTDIR)$(LIBDIR)/libmoonshard_mpi.so)
	ln -sf libmoonshard.so.$(ABI) $(DESTDIR)$(LIBDIR)/libmoonshard.so
	install -m 644 runtime/moonshard.h $(DESTDIR)$(PREFIX)/include/moonshard.h
	install -m 644 $(wildcard runtime/moonshard/*.h) $(SETTINGS) $(DESTDIR)$(PREFIX)/include/moonshard/
	echo "$$PC" >$(DESTDIR)$(LIBDIR)/pkgconfig/moonshard.pc
	cp -r lua/moonshard/. $(DESTDIR)$(LUADIR)/moonshard/
	install -m 644 $(GEN)/moonshard/cdef.lua $(GEN)/moonshard/settings.lua $(DESTDIR)$(LUADIR)/moonshard/
	install -d $(DESTDIR)$(LUADIR)/moonshard/meta
	install -m 644 $(META) $(DESTDIR)$(LUADIR)/moonshard/meta
	echo 'return "$(LIBRARY_FROM_LUA)" -- the library, from the folder of this file' >$(DESTDIR)$(LUADIR)/moonshard/installed.lua
	cp -r recipes $(DESTDIR)$(PREFIX)/share/moonshard/
	install -m 644 $(GEN)/moonshard.1 $(DESTDIR)$(MANDIR)/man1/moonshard.1
	for guide in $(GUIDES); do install -m 644 $$guide $(DESTDIR)$(DOCDIR)/$$guide; done
	install -m 644 LICENSE $(DESTDIR)$(DOCDIR)/LICENSE
	@$(if $(DESTDIR),:,runtime/make/after_install.sh $(LIBDIR) $(LUADIR))

# The compile commands of every file, for editors.
.PHONY: compile_commands
compile_commands:
	@$(MAKE) --no-print-directory -f runtime/make/build.mk -nB all tests \
	  | luajit runtime/make/compile_commands.lua $(CURDIR) compile_commands.json

.SECONDARY:
-include $(shell find $(OUT)/obj -name '*.d' 2>/dev/null)
