/* matmul.h - the implementations of matmul on the CPU. */
#ifndef MS_KERNELS_CPU_MATMUL_H
#define MS_KERNELS_CPU_MATMUL_H

#include "base/numbers/dtype.h"
#include "kernels/products/product.h"

/* oneDNN, the implementation for most products (matmul_onednn.c). */
int ms_onednn_prepare(ms_kernel_call *call, const ms_product *product, void **prepared);
int ms_onednn_run(const ms_kernel_call *call, void *prepared);
void ms_onednn_release(void *prepared);

/* f32 products on the bf16 matrix unit, in three parts (matmul_split.c). ms_split_takes: whether it supports a product;
 * ms_split_suits: whether it is also faster than oneDNN. */
int ms_split_takes(const ms_product *product);
int ms_split_suits(const ms_product *product);
int64_t ms_split_workspace(const ms_product *product, int threads);
void ms_split_run(const ms_kernel_call *call, const ms_product *product);

/* Plain loops, which a sanitizer sees, and which suit small products (matmul_plain.c). */
int ms_plain_suits(const ms_product *product);
int64_t ms_plain_workspace(const ms_product *product, int threads);
void ms_plain_run(const ms_kernel_call *call, const ms_product *product);

#endif
