/* cublaslt_product.h - one matrix product as cuBLASLt is asked for it: what decides its algorithm, its descriptors, the choice of the
** algorithm, and the run.
**
** cuBLASLt's matrices are column-major, ours row-major: it computes c' = op(b)' op(a)', so its A is our b and its B our a, neither
** copied nor transposed, and what it calls rows of D are our columns, along which a bias lies.
**
** Results repeat bit for bit: an algorithm that cuts a sum along k joins the parts in f32 by a step of its own (the mask of reduction
** schemes), so the same algorithm gives the same bits, and which algorithm it is stays as it was chosen (cublaslt_choice.c).
*/
#ifndef MS_KERNELS_CUDA_CUBLASLT_PRODUCT_H
#define MS_KERNELS_CUDA_CUBLASLT_PRODUCT_H

#include "kernels/cuda/cublaslt.h"
#include "kernels/product.h"

/* All that decides which algorithm is the fastest. Zero between its fields. */
typedef struct ms_lt_problem {
  ms_product product;      /* c_dtype is D's; activation and bias count as far as `epilogue` takes them */
  int64_t workspace_bytes; /* that an algorithm may have */
  int epilogue;
  int accumulate; /* D += product */
  int tf32;
  int alignment; /* bytes: 16, or 0 where some tensor is aligned to its elements alone */
} ms_lt_problem;

typedef struct ms_lt_product {
  const ms_cublaslt *lt;
  ms_lt_handle handle; /* dropped by ms_lt_close */
  ms_lt_problem problem;
  ms_lt_desc *desc;
  ms_lt_layout *a, *b, *d; /* our a and b */
  ms_lt_algo algo;
} ms_lt_product;

/* What a run reads and writes. aux: of the epilogues that have one; bias: [n], or where the gradient of one goes. */
typedef struct ms_lt_operands {
  const void *a, *b;
  void *d, *bias, *aux, *workspace;
} ms_lt_operands;

/* Descriptors alone: needs the library and a GPU for its handle. On an error nothing is left open. */
int ms_lt_open(const ms_cublaslt *lt, const ms_lt_problem *problem, ms_lt_product *product);
void ms_lt_close(ms_lt_product *product);
/* Where a bias and an auxiliary matrix will lie: their alignment counts when algorithms are chosen. */
int ms_lt_expect(ms_lt_product *product, const void *bias, const void *aux);
/* The library's candidates, the most promising first; *count 0: it has none for this product. */
int ms_lt_candidates(const ms_lt_product *product, int most, ms_lt_result *result, int *count);
/* 1 when the algorithm can compute the product within its workspace. */
int ms_lt_usable(const ms_lt_product *product, const ms_lt_algo *algo);
/* Sets product->algo: as it was kept on disk, else the fastest of the candidates, timed and kept, else (MOONSHARD_CUDA_MATMUL_TUNE=0, or
** nowhere to keep it) the library's first. *found 0: the library has none. */
int ms_lt_choose(ms_lt_product *product, int *found);
/* Enqueues the product by the algorithm. */
int ms_lt_run(const ms_lt_product *product, const ms_lt_algo *algo, const ms_lt_operands *on, void *stream);

#endif
