/* matmul.h - what a matrix product on CUDA asks of a plan: which implementation computes it, and its workspace. */
#ifndef MS_KERNELS_CUDA_PLAN_MATMUL_H
#define MS_KERNELS_CUDA_PLAN_MATMUL_H

#include "kernels/products/product.h"

/* Reads MOONSHARD_CUDA_MATMUL. *plain: use our own kernels (also for empty products); *demanded: cuBLASLt or an
 * error. */
int ms_matmul_choice(const ms_product *product, int *plain, int *demanded);

/* Whether f32 operands of products can be rounded to TF32 (10 bits of mantissa): MOONSHARD_CUDA_MATMUL_TF32=1. */
int ms_matmul_tf32(int *allowed);

/* cuBLASLt's part of the workspace, aligned to 256 bytes (workspace.h). It depends only on the product, so that an
 * execution plan is the same wherever it is compiled. */
int64_t ms_matmul_library_bytes(const ms_product *product);
/* Size of the f32 result in the workspace, in bytes, if f32 operands have a bf16 result; otherwise 0. */
int64_t ms_matmul_scratch_bytes(const ms_product *product);

/* Reads a call, chooses the implementation and requests the workspace. */
int ms_matmul_plan(ms_kernel_call *call, ms_product *product, int *plain);

#endif
