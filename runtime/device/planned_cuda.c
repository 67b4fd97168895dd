/* planned_cuda.c - the device cuda where its library is not installed: what plans need of it, from the same sources as
 * the library. It has no functions that need a GPU, and ms_device_find never returns it. */
#include "device/device.h"
#include "kernels/cuda/plan/plan.h"

const ms_device_api ms_planned_cuda_device = {.kind = MS_DEVICE_CUDA,
                                              .name = "cuda",
                                              .capabilities = MS_DEVICE_CUDA_CAPABILITIES,
                                              .kernel = ms_cuda_planned_kernel};
