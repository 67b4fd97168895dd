/* product.h - the matrix product of a matmul call, reduced to a batch and three sizes. All implementations use it. */
#ifndef MS_KERNELS_PRODUCT_H
#define MS_KERNELS_PRODUCT_H

#include "kernels/op.h"

/* c[i] = act(op(a[i]) op(b[i]) + bias) for i < batch: op(a) [m][k], op(b) [k][n], c [m][n], bias [n]. */
typedef struct ms_product {
  int64_t batch, m, n, k;
  int trans_a, trans_b;
  int shared_b;   /* 1: one b for the whole batch */
  int activation; /* enum ms_activation */
  int accumulate; /* 1: c += the product; of matmul_add, c holds its third input */
  int dtype, c_dtype;
  int bias_dtype; /* -1: no bias */
} ms_product;

/* Reads and checks a call. Leading dimensions of a become rows if b is a single matrix and a is not transposed;
 * otherwise they become the batch. */
int ms_product_of(const ms_kernel_call *call, ms_product *product);

#endif
