/* product.h - the matrix product that a matmul's call asks for, as three nested sizes: what its implementations share. */
#ifndef MS_KERNELS_PRODUCT_H
#define MS_KERNELS_PRODUCT_H

#include "kernels/op.h"

/* c[i] = act(op(a[i]) op(b[i]) + bias) for i < batch: op(a) [m,k], op(b) [k,n], c [m,n], bias [n]. */
typedef struct ms_product {
  int64_t batch, m, n, k;
  int trans_a, trans_b;
  int shared_b; /* one b for the whole batch */
  int activation;
  int accumulate; /* c += the product */
  int dtype, c_dtype;
  int bias_dtype; /* -1: no bias */
} ms_product;

/* Leading dimensions of a are rows when b is one matrix and a is not transposed; else they are the batch. */
int ms_product_of(const ms_kernel_call *call, ms_product *product);

#endif
