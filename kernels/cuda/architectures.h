/* architectures.h - the architectures of GPUs that the kernels are compiled for. */
#ifndef MS_KERNELS_CUDA_ARCHITECTURES_H
#define MS_KERNELS_CUDA_ARCHITECTURES_H

#ifdef __cplusplus
extern "C" {
#endif

/* Ascending, in nvcc's units (900: compute capability 9.0), and then 0. The library contains machine code for each of
 * them, and for the last one also PTX (runtime/make/build.mk). */
extern const int ms_cuda_architectures[];

#ifdef __cplusplus
}
#endif

#endif
