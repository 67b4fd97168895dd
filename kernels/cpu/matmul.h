/* matmul.h - what the implementations of matmul share: the product that a call asks for, as three nested sizes. */
#ifndef MS_KERNELS_CPU_MATMUL_H
#define MS_KERNELS_CPU_MATMUL_H

#include "kernels/op.h"

/* c[i] = act(op(a[i]) op(b[i]) + bias) for i < batch: op(a) [m,k], op(b) [k,n], c [m,n], bias [n]. */
typedef struct ms_product {
  int64_t batch, m, n, k;
  int trans_a, trans_b;
  int shared_b; /* one b for the whole batch */
  int activation;
  int dtype, c_dtype;
  int bias_dtype; /* -1: no bias */
} ms_product;

/* Leading dimensions of a are rows when b is one matrix and a is not transposed; else they are the batch. */
int ms_product_of(const ms_kernel_call *call, ms_product *product);

/* oneDNN: the fast one (matmul_onednn.c). */
int ms_onednn_prepare(ms_kernel_call *call, const ms_product *product, void **prepared);
int ms_onednn_run(const ms_kernel_call *call, void *prepared);
void ms_onednn_release(void *prepared);

/* f32 on the bf16 matrix unit, in three parts (matmul_split.c): whether it can, and whether it is the fastest. */
int ms_split_takes(const ms_product *product);
int ms_split_suits(const ms_product *product);
int64_t ms_split_workspace(const ms_product *product, int threads);
void ms_split_run(const ms_kernel_call *call, const ms_product *product);

/* Own loops: no library, every access visible to a sanitizer (matmul_plain.c). */
int64_t ms_plain_workspace(const ms_product *product, int threads);
void ms_plain_run(const ms_kernel_call *call, const ms_product *product);

#endif
