/* matmul.h - the implementations of matmul on CUDA. */
#ifndef MS_KERNELS_CUDA_MATMUL_H
#define MS_KERNELS_CUDA_MATMUL_H

#include "kernels/cuda/plan/products/matmul.h"

/* cuBLASLt, the fast implementation (matmul_cublaslt.c). */
typedef struct ms_matmul_cublaslt ms_matmul_cublaslt;

/* *matmul NULL: there is no usable cuBLASLt, and `why` is a message. */
int ms_matmul_cublaslt_new(const ms_product *product, ms_matmul_cublaslt **matmul, char *why);
void ms_matmul_cublaslt_free(ms_matmul_cublaslt *matmul);
/* Chooses the algorithm for the alignment of the call's tensors. MS_EUNSUPPORTED: the library has none. */
int ms_matmul_cublaslt_bind(ms_matmul_cublaslt *matmul, const ms_kernel_call *call);
int ms_matmul_cublaslt_run(const ms_matmul_cublaslt *matmul, const ms_kernel_call *call);

/* Our own tiles in f32 arithmetic, without a library (matmul_plain.cu). */
int ms_matmul_plain_run(const ms_kernel_call *call, const ms_product *product);

/* What a product that accumulates is added to: the third input of matmul_add, which can be the result's memory, or the
 * result itself. */
static inline const void *ms_matmul_added_to(const ms_kernel_call *call) {
  return call->op == MS_OP_matmul_add ? call->in_data[2] : call->out_data[0];
}

/* c = act(x + bias) for cases that the library's epilogue does not support (matmul_finish.cu): c, x f32 [batch][m][n],
 * bias [n]. x NULL: c itself. */
int ms_matmul_finish_run(const ms_kernel_call *call, const ms_product *product, const float *x);

#endif
