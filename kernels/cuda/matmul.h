/* matmul.h - the implementations of matmul on CUDA. */
#ifndef MS_KERNELS_CUDA_MATMUL_H
#define MS_KERNELS_CUDA_MATMUL_H

#include "kernels/product.h"

/* The setting MOONSHARD_CUDA_MATMUL: own kernels (also used for empty products), or cuBLASLt or an error. */
int ms_matmul_choice(const ms_product *product, int *plain, int *demanded);

/* Whether f32 operands of products can be rounded to TF32 (10 bits of mantissa): MOONSHARD_CUDA_MATMUL_TF32=1. */
int ms_matmul_tf32(int *allowed);

/* cuBLASLt (matmul_cublaslt.c): the fast one. */
typedef struct ms_matmul_cublaslt ms_matmul_cublaslt;

/* The workspace depends only on the product, so that a plan is the same wherever it is compiled. */
int64_t ms_matmul_cublaslt_workspace(const ms_product *product);
/* The part of it that an algorithm can use, aligned to 256 bytes (workspace.h). */
int64_t ms_matmul_cublaslt_own(const ms_product *product);
/* *matmul NULL: no usable cuBLASLt; `why` is then a message. */
int ms_matmul_cublaslt_new(const ms_product *product, ms_matmul_cublaslt **matmul, char *why);
void ms_matmul_cublaslt_free(ms_matmul_cublaslt *matmul);
/* Chooses the algorithm for the alignment of the call's tensors. MS_EUNSUPPORTED: the library has none. */
int ms_matmul_cublaslt_bind(ms_matmul_cublaslt *matmul, const ms_kernel_call *call);
int ms_matmul_cublaslt_run(const ms_matmul_cublaslt *matmul, const ms_kernel_call *call);

/* Own tiles in f32 arithmetic, without a library (matmul_plain.cu). */
int ms_matmul_plain_run(const ms_kernel_call *call, const ms_product *product);

/* c = act(x + bias) for cases that the library's epilogue does not support (matmul_finish.cu): x f32 [batch,m,n];
 * NULL: c itself. */
int ms_matmul_finish_run(const ms_kernel_call *call, const ms_product *product, const float *x);

#endif
