/* cublaslt_product.h - one matrix product for cuBLASLt: the key that selects its algorithm, its descriptors, the choice
 * of the algorithm, and the run.
 *
 * cuBLASLt's matrices are column-major and ours are row-major, so it computes c' = op(b)' op(a)'. Its A is our b and
 * its B is our a, without copying or transposing. The rows of its D are our columns, along which a bias applies.
 *
 * Results are reproducible bit for bit. An algorithm that splits a sum along k joins the parts in f32 and in one order
 * (ms_lt_joins), so the same algorithm gives the same bits; and the choice of the algorithm is permanent
 * (cublaslt_choice.c).
 */
#ifndef MS_KERNELS_CUDA_CUBLASLT_PRODUCT_H
#define MS_KERNELS_CUDA_CUBLASLT_PRODUCT_H

#include "kernels/cuda/matmul/cublaslt.h"
#include "kernels/products/product.h"

/* What products of 8-bit operands are multiplied by. UNSCALED: by nothing, for our own pass to do it; BY_TILES: 128
 * summed elements have a scale; AND_SQUARES: of b, 128 x 128 have. */
enum ms_lt_scaling {
  MS_LT_UNSCALED = 0,
  MS_LT_SCALED_AS_ONE = 1,
  MS_LT_SCALED_BY_ROWS = 2,
  MS_LT_SCALED_BY_BLOCKS = 3,
  MS_LT_SCALED_BY_TILES = 4,
  MS_LT_SCALED_BY_TILES_AND_SQUARES = 5
};

/* Everything that determines the fastest algorithm. Padding between fields must be zero, because keys are compared as
 * bytes. */
typedef struct ms_lt_problem {
  ms_product product;      /* c_dtype is D's dtype; activation and bias are those that `epilogue` includes */
  int b_dtype;             /* of b, where product.dtype is 8-bit: the two can differ */
  int scaling;             /* enum ms_lt_scaling */
  int fast_sums;           /* with 8-bit operands: sums in fewer bits between promotions to f32 */
  int64_t workspace_bytes; /* limit for the algorithm */
  int epilogue;
  int accumulate; /* D = C + product */
  int tf32;
  int processors; /* multiprocessors that it is computed on; 0: all */
  int alignment;  /* bytes: 16, or 0 if some tensor is only aligned to its element size */
} ms_lt_problem;

typedef struct ms_lt_product {
  const ms_cublaslt *lt;
  ms_lt_handle handle; /* released by ms_lt_close */
  ms_lt_problem problem;
  ms_lt_desc *desc;
  ms_lt_layout *a, *b, *d; /* our a and b */
  ms_lt_algo algo;
} ms_lt_product;

/* Device pointers of one run: a, b, d as the product's a, b, c; c: what it is added to if the problem accumulates, and
 * can be d. aux: for epilogues that have one; bias: [n], or its gradient. */
typedef struct ms_lt_operands {
  const void *a, *b, *c;
  void *d, *bias, *aux, *workspace;
  const void *a_factor, *b_factor; /* f32 [1], with MS_LT_SCALED_BY_ROWS [m] and [n]; or scales of blocks */
} ms_lt_operands;

/* *processors: those that a call which spares some is computed on (ms_lt_problem); 0 if it spares none. Needs a GPU.
 * MS_EINVAL if it spares all. */
int ms_lt_processors(const ms_kernel_call *call, int *processors);

/* Creates the descriptors; needs the library and a GPU. If it fails, nothing stays open. If the library cannot limit
 * products to some multiprocessors, a note says so and the problem then has all. */
int ms_lt_open(const ms_cublaslt *lt, const ms_lt_problem *problem, ms_lt_product *product);
void ms_lt_close(ms_lt_product *product);
/* Lets the product use all multiprocessors. */
int ms_lt_use_all(ms_lt_product *product);
/* Sets the addresses of bias, auxiliary matrix and factors, because they affect the choice of algorithms. */
int ms_lt_expect(ms_lt_product *product, const ms_lt_operands *on);
/* How algorithms may join the parts of a sum, a mask: in f32 in a separate step; if the result is f32, also in it,
 * where the library adds one part after the other. */
uint32_t ms_lt_joins(const ms_lt_problem *problem);
/* The library's candidates, most promising first. *count 0: it has none for this product. */
int ms_lt_candidates(const ms_lt_product *product, int most, ms_lt_result *result, int *count);
/* 1 if the algorithm can compute the product within its workspace. */
int ms_lt_usable(const ms_lt_product *product, const ms_lt_algo *algo);
/* Sets product->algo to the algorithm stored on disk; otherwise to the fastest candidate, which is timed and stored;
 * otherwise (MOONSHARD_CUDA_MATMUL_TUNE=0, or it cannot be stored) to the library's first candidate. If there is none
 * for the product's multiprocessors, but one for all of them, a note says so and the problem then has all. *found 0:
 * the library has none. */
int ms_lt_choose(ms_lt_product *product, int *found);
/* Enqueues the product with the chosen algorithm. */
int ms_lt_run(const ms_lt_product *product, const ms_lt_algo *algo, const ms_lt_operands *on, void *stream);

#endif
