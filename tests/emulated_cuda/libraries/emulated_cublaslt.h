/* emulated_cublaslt.h - what the emulated cuBLASLt's functions (emulated_cublaslt.c) give to its product
 * (emulated_cublaslt_product.c).
 */
#ifndef EMULATED_CUBLASLT_H
#define EMULATED_CUBLASLT_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/matmul/cublaslt.h"

enum { BLOCK = 32 }; /* elements of an e8m0 */
enum { BIAS = 4, GELU = 32, DGELU = 64, AUX = 128, BGRAD = 16 };

struct ms_lt_desc {
  int compute, trans_a, trans_b, epilogue;
  void *bias, *aux;
  int64_t aux_ld;
  const void *a_scale, *b_scale;
  int a_mode, b_mode;
  int8_t fast;
  int32_t processors; /* SM_COUNT_TARGET */
};

struct ms_lt_layout {
  int type, batch;
  int64_t rows, columns, leading, stride;
};

typedef struct emulated_product {
  struct ms_lt_desc desc;
  struct ms_lt_layout a, b, d;
  const void *a_data, *b_data, *c_data; /* c is laid out as d */
  void *d_data;
  float alpha, beta;
  int backwards, milliseconds;
} emulated_product;

static inline int emulated_is_float8(int type) { return type == MS_LT_R_8F_E4M3 || type == MS_LT_R_8F_E5M2; }

/* Scales of 128 elements. */
static inline int emulated_is_128(int mode) {
  return mode == MS_LT_SCALE_VEC128_32F || mode == MS_LT_SCALE_BLK128X128_32F;
}

static inline size_t emulated_element_bytes(int type) {
  return emulated_is_float8(type) ? 1 : type == MS_LT_R_16BF ? 2 : 4;
}

/* Computes an emulated_product, in the order of its algorithm. */
void emulated_multiply(void *product);

#endif
