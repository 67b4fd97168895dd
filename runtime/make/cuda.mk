# The host code of the device cuda (runtime/device/cuda): in libmoonshard_cuda.so, and with an emulated CUDA runtime and
# NCCL in the libraries that tests load. These have the emulated CUDA kernels, or the CPU's, which are fast and
# bit-identical to the CPU device. Part of build.mk.

CUDA_C := $(wildcard runtime/device/cuda/*.c)
CUDA_DEVICE_O := $(patsubst runtime/device/cuda/%.c,$(OUT)/obj/cuda/%.o,$(CUDA_C))
EMULATED := $(OUT)/tests/emulated
CONTRACTED := $(EMULATED)/libmoonshard_cuda_contracted.so
# The thread sanitizer runs plans on an emulated device with the CPU's kernels. The emulated ones, in which it sees nothing,
# are built only if ALL or ONLY adds the specs that load them.
KERNELS_RUN := $(or $(filter-out thread,$(CONFIG)),$(ALL),$(ONLY))
EMULATED_LIBRARIES := $(addprefix $(EMULATED)/,libcudart_emulated.so libnccl_emulated.so libcublaslt_emulated.so \
  libcudnn_emulated.so libmoonshard_cuda_host.so $(if $(KERNELS_RUN),libmoonshard_cuda_emulated.so)) \
  $(if $(filter release,$(CONFIG)),$(CONTRACTED))
EMULATED_DEVICE_O := $(patsubst runtime/device/cuda/%.c,$(OUT)/obj/emulated/%.o,$(CUDA_C))
HOST_KERNEL_O := $(call objects,$(KERNEL_C) $(filter-out %/error.c %/note.c,$(wildcard runtime/base/*.c runtime/base/*/*.c))) \
  $(OUT)/obj/tests/emulated_cuda/host_kernels.o

$(OUT)/libmoonshard_cuda.so: $(CUDA_DEVICE_O)
tests: $(EMULATED_LIBRARIES)

$(OUT)/obj/cuda/%.o: runtime/device/cuda/%.c $(OUT)/flags.list
	@mkdir -p $(@D)
	@echo "cc    $<"
	@$(CC) $(OWN_CFLAGS) -isystem $(dir $(NVCC))../include $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(OUT)/obj/emulated/%.o: runtime/device/cuda/%.c $(OUT)/flags.list
	@mkdir -p $(@D)
	@echo "cc    $<"
	@$(CC) $(OWN_CFLAGS) -Itests/emulated_cuda $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

# The host side of kernels.
$(OUT)/obj/kernels/cuda/%.cuda.o: kernels/cuda/%.c $(OUT)/flags.list
	@mkdir -p $(@D)
	@echo "cc    $<"
	@$(CC) $(OWN_CFLAGS) -isystem $(dir $(NVCC))../include $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(OUT)/obj/kernels/cuda/%.emulated.o: kernels/cuda/%.c $(OUT)/flags.list
	@mkdir -p $(@D)
	@echo "cc    $<"
	@$(CC) $(OWN_CFLAGS) -Itests/emulated_cuda $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(OUT)/obj/tests/emulated_cuda/%.o: tests/emulated_cuda/%.c $(OUT)/flags.list
	@mkdir -p $(@D)
	@echo "cc    $<"
	@$(CC) $(OWN_CFLAGS) -fvisibility=default -Itests/emulated_cuda $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

# These libraries find each other in their own folder.
EMULATED_LINK = $(CXX) -shared -Wl,-soname,$(@F) -Wl,-rpath,'$$ORIGIN' $(CONFIG_$(CONFIG)) -fopenmp

$(EMULATED)/libcudart_emulated.so: $(EMULATION_O)
	@mkdir -p $(@D)
	@echo "link  $@"
	@$(EMULATED_LINK) $^ -o $@ -lpthread

$(EMULATED)/libnccl_emulated.so: $(addprefix $(OUT)/obj/tests/emulated_cuda/libraries/,emulated_nccl.o \
    emulated_nccl_collectives.o emulated_window.o) $(EMULATED)/libcudart_emulated.so
	@echo "link  $@"
	@$(EMULATED_LINK) $^ -o $@ -lpthread

$(EMULATED)/libcublaslt_emulated.so: $(addprefix $(OUT)/obj/tests/emulated_cuda/libraries/,emulated_cublaslt.o \
    emulated_cublaslt_product.o) $(EMULATED)/libcudart_emulated.so
	@echo "link  $@"
	@$(EMULATED_LINK) $^ -o $@ -lm

$(EMULATED)/libcudnn_emulated.so: $(addprefix $(OUT)/obj/tests/emulated_cuda/libraries/,emulated_cudnn.o \
    emulated_cudnn_run.o) $(EMULATED)/libcudart_emulated.so
	@echo "link  $@"
	@$(EMULATED_LINK) $^ -o $@ -lm

$(EMULATED)/libmoonshard_cuda_host.so: $(EMULATED_DEVICE_O) $(HOST_KERNEL_O) $(EMULATED)/libcudart_emulated.so
	@echo "link  $@"
	@$(EMULATED_LINK) $^ -o $@ $(LDLIBS)

$(EMULATED)/libmoonshard_cuda_emulated.so: $(EMULATED_DEVICE_O) $(filter-out $(EMULATION_O),$(EMULATED_O)) $(CUDA_HOST_O) \
    $(EMULATED)/libcudart_emulated.so
	@echo "link  $@"
	@$(EMULATED_LINK) $(NO_UNDEFINED_$(CONFIG)) $^ -o $@ -ldl -lpthread

# The same kernels, of which those with formulas whose bits do not depend on the path are compiled with contraction:
# tests compute one path with each. Processors without fused multiply-adds cannot run them.
CONTRACTED_CU := $(addprefix kernels/cuda/,elementwise/activation_backward_bias.cu elementwise/swiglu.cu \
  elementwise/unary.cu elementwise/unary_backward.cu losses/cross_entropy.cu optimizers/adamw.cu optimizers/ema.cu \
  optimizers/lion.cu optimizers/outer_sgd.cu optimizers/sgd.cu reductions/norm.cu reductions/norm_backward.cu)
CONTRACTED_O := $(CONTRACTED_CU:%.cu=$(OUT)/obj/%.contracted.o)

$(OUT)/obj/%.contracted.o: %.cu $(OUT)/flags.list
	@mkdir -p $(@D)
	@echo "c++   $< (contracted)"
	@$(CXX) -x c++ $(EMULATED_CXXFLAGS) $(if $(filter x86_64,$(shell uname -m)),-mfma) -ffp-contract=fast -MMD -MP -c $< -o $@

$(CONTRACTED): $(CONTRACTED_O) $(filter-out $(EMULATION_O) $(CONTRACTED_O:.contracted.o=.emulated.o),$(EMULATED_O)) \
    $(CUDA_HOST_O) $(call objects,runtime/base/error.c) $(EMULATED)/libcudart_emulated.so
	@echo "link  $@"
	@$(EMULATED_LINK) -Wl,-Bsymbolic $^ -o $@ -ldl -lpthread

# The additional measurements of `make bench-gpu`. It needs no toolkit, because it loads the device's library. Sanitizers
# leave out the spec that runs them.
.PHONY: gpu-bench
GPU_BENCHES := $(patsubst tests/gpu/programs/bench_%.c,$(OUT)/bench/gpu_%,$(wildcard tests/gpu/programs/bench_*.c))
gpu-bench: $(GPU_BENCHES)
tests: $(if $(or $(filter release,$(CONFIG)),$(ONLY)),$(GPU_BENCHES) $(EMULATED)/libstand_in_emulated.so)

# What bench_overlap runs at the same time as a product.
STAND_IN := $(OUT)/bench/libstand_in.so
$(STAND_IN): $(OUT)/obj/tests/gpu/programs/stand_in.cuda.o
	@mkdir -p $(@D)
	@echo "link  $@"
	@$(CXX) -shared -Wl,-soname,$(@F) $(LDFLAGS) $^ -o $@ $(CUDART)

$(EMULATED)/libstand_in_emulated.so: $(OUT)/obj/tests/gpu/programs/stand_in.emulated.o $(EMULATED)/libcudart_emulated.so
	@echo "link  $@"
	@$(EMULATED_LINK) $^ -o $@

$(OUT)/bench/gpu_%: $(OUT)/obj/tests/gpu/programs/bench_%.o $(ENGINE_O) $(OUT)/engine.list
	@mkdir -p $(@D)
	@echo "link  $@"
	@$(CC) -rdynamic $(OWN_LDFLAGS) $< $(ENGINE_O) -o $@ $(LDLIBS)
