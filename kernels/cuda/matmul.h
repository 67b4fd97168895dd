/* matmul.h - the implementations of matmul on CUDA. */
#ifndef MS_KERNELS_CUDA_MATMUL_H
#define MS_KERNELS_CUDA_MATMUL_H

#include "kernels/product.h"

/* What MOONSHARD_CUDA_MATMUL says: own kernels (as for products without elements), or cuBLASLt or an error. */
int ms_matmul_choice(const ms_product *product, int *plain, int *demanded);

/* Whether f32 operands of products may be rounded to TF32 (10 bits of mantissa): MOONSHARD_CUDA_MATMUL_TF32=1. */
int ms_matmul_tf32(int *allowed);

/* cuBLASLt (matmul_cublaslt.c): the fast one. */
typedef struct ms_matmul_cublaslt ms_matmul_cublaslt;

/* Workspace is a function of the product alone, so that a plan made anywhere is the plan of the GPU. */
int64_t ms_matmul_cublaslt_workspace(const ms_product *product);
/* What of it an algorithm may have, at 256 bytes (workspace.h). */
int64_t ms_matmul_cublaslt_own(const ms_product *product);
/* *matmul: NULL, and `why` a message, where there is no cuBLASLt that can be used. */
int ms_matmul_cublaslt_new(const ms_product *product, ms_matmul_cublaslt **matmul, char *why);
void ms_matmul_cublaslt_free(ms_matmul_cublaslt *matmul);
/* Chooses the algorithm for tensors aligned as the call's. MS_EUNSUPPORTED: the library has none. */
int ms_matmul_cublaslt_bind(ms_matmul_cublaslt *matmul, const ms_kernel_call *call);
int ms_matmul_cublaslt_run(const ms_matmul_cublaslt *matmul, const ms_kernel_call *call);

/* Own tiles in f32 arithmetic (matmul_plain.cu): no library. */
int ms_matmul_plain_run(const ms_kernel_call *call, const ms_product *product);

/* c = act(x + bias) for what a library's epilogue does not take (matmul_finish.cu): x f32 [batch,m,n]; NULL: c itself. */
int ms_matmul_finish_run(const ms_kernel_call *call, const ms_product *product, const float *x);

#endif
