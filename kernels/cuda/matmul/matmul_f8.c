/* matmul_f8.c - products of operands rounded to 8 bits on CUDA: our kernels round them (matmul_f8_codes.cu), and one of
 * these multiplies the codes:
 *
 *   LIBRARY  cuBLASLt with the scales as factors: one a tensor from compute capability 8.9 on; one a row and column, or
 *            for 128 elements and 128 x 128, on 9.0 with cuBLASLt 12.9 or later; one for 32 elements from 10.0 on
 *   AFTER    cuBLASLt without factors, and our pass over the result. Factors that differ by row are powers of two, so a
 *            bf16 result is not rounded a second time by them
 *   PLAIN    our own tiles, without tensor cores: MOONSHARD_CUDA_MATMUL=plain, no cuBLASLt, no elements, or a result
 *            that is not aligned to 16 bytes, or a bias or codes
 *
 * All give the same numbers up to the order of the sums, and a bf16 result's second rounding when a bias or an
 * activation follows. A GPU without 8-bit tensor cores is an error.
 */
#include "kernels/cuda/matmul/matmul_f8.h"

#include <inttypes.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "kernels/cuda/matmul/cublaslt_product.h"
#include "kernels/cuda/matmul/matmul.h"
#include "kernels/cuda/plan/plan.h"
#include "kernels/cuda/workspace.h"

enum { ALIGNMENT = 16 };
enum way { UNDECIDED, LIBRARY, AFTER, PLAIN };

typedef struct prepared_f8 {
  ms_f8 f8;
  ms_f8_places places;
  enum way way;
  const char *because; /* it is not LIBRARY; a static string */
  ms_lt_product lt;    /* open if way is LIBRARY or AFTER */
  ms_product left;     /* bias and activation that the library does not compute */
} prepared_f8;

static int prepare(ms_kernel_call *call) {
  prepared_f8 *prepared = ms_calloc(1, sizeof *prepared);
  if (!prepared) return MS_ENOMEM;
  const int rc = ms_f8_plan(call, &prepared->f8, &prepared->places);
  if (rc) free(prepared);
  else call->prepared = prepared;
  return rc;
}

static void memory_of(const ms_kernel_call *call, ms_f8_memory memory[2]) {
  const prepared_f8 *prepared = call->prepared;
  char *workspace = ms_library_workspace(call->workspace);
  for (int i = 0; i < 2; i++)
    memory[i] = (ms_f8_memory){.magnitudes = (float *)(void *)(workspace + prepared->places.magnitudes[i]),
                               .scales = (float *)(void *)(workspace + prepared->places.scales[i]),
                               .inverses = (float *)(void *)(workspace + prepared->places.inverses[i]),
                               .codes = (uint8_t *)(workspace + prepared->places.codes[i]),
                               .blocks = workspace + prepared->places.blocks[i]};
  if (ms_f8_reads_codes(&prepared->f8)) memory[1].codes = (uint8_t *)(uintptr_t)call->in_data[MS_F8_CODES_INPUT];
}

static ms_lt_operands operands_of(const ms_kernel_call *call) {
  const prepared_f8 *prepared = call->prepared;
  const int blocks = prepared->f8.a.block;
  ms_f8_memory memory[2];
  memory_of(call, memory);
  return (ms_lt_operands){.a = memory[0].codes,
                          .b = memory[1].codes,
                          .d = call->out_data[0],
                          .bias = (void *)(uintptr_t)ms_f8_bias(call, &prepared->f8),
                          .a_factor = blocks ? memory[0].blocks : memory[0].inverses,
                          .b_factor = blocks ? memory[1].blocks : memory[1].inverses,
                          .workspace = ms_library_workspace(call->workspace) + prepared->places.library};
}

static int is_aligned(const ms_kernel_call *call) {
  const ms_f8 *f8 = &((const prepared_f8 *)call->prepared)->f8;
  const uintptr_t codes = ms_f8_reads_codes(f8) ? (uintptr_t)call->in_data[MS_F8_CODES_INPUT] : 0;
  return ((uintptr_t)call->out_data[0] | (uintptr_t)ms_f8_bias(call, f8) | codes) % ALIGNMENT == 0;
}

/* ---- the choice -------------------------------------------------------------------------------------------------- */

/* The library's epilogue adds a bf16 bias to a bf16 result. */
static int epilogue_of(const ms_product *p) {
  return p->bias_dtype == MS_BF16 && p->c_dtype == MS_BF16 ? MS_LT_EPILOGUE_BIAS : MS_LT_EPILOGUE_DEFAULT;
}

/* *found 0: the library has no algorithm. */
static int try_library(prepared_f8 *prepared, const ms_cublaslt *lt, const ms_kernel_call *call, int scaling,
                       int epilogue, int *found) {
  const ms_lt_operands on = operands_of(call);
  ms_lt_problem problem;
  memset(&problem, 0, sizeof problem);
  problem.product = prepared->f8.product;
  problem.product.trans_a = 0;
  problem.product.trans_b = 1;
  problem.product.dtype = prepared->f8.a.dtype;
  problem.b_dtype = prepared->f8.b.dtype;
  problem.scaling = scaling;
  problem.fast_sums = prepared->f8.fast_sums;
  problem.workspace_bytes = ms_matmul_library_bytes(&prepared->f8.product);
  problem.epilogue = epilogue;
  problem.alignment = ALIGNMENT;
  MS_TRY(ms_lt_processors(call, &problem.processors));
  MS_TRY(ms_lt_open(lt, &problem, &prepared->lt));
  int rc = ms_lt_expect(&prepared->lt, &on);
  if (!rc) rc = ms_lt_choose(&prepared->lt, found);
  if (rc || !*found) ms_lt_close(&prepared->lt);
  prepared->left = prepared->f8.product;
  if (epilogue == MS_LT_EPILOGUE_BIAS) prepared->left.bias_dtype = -1;
  return rc;
}

static int capability(int *major, int *minor) {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(minor, cudaDevAttrComputeCapabilityMinor, device);
  return error == cudaSuccess ? MS_OK : MS_FAIL(MS_EDEVICE, "cudaDeviceGetAttribute: %s", cudaGetErrorString(error));
}

/* How the library scales this product, from which version on, and on which GPUs. `needs` says so to people: of those
 * without factors, too, for a scale a row. */
typedef struct factors {
  int scaling;
  size_t version;
  int from, to; /* compute capability, major */
  const char *needs;
} factors;

static factors factors_of(const ms_f8 *f8) {
  static const factors one = {MS_LT_SCALED_AS_ONE, 0, 0, INT_MAX, "8.9 or later"},
                       rows = {MS_LT_SCALED_BY_ROWS, MS_LT_OUTER_VEC_VERSION, MS_LT_OUTER_VEC_MAJOR,
                               MS_LT_OUTER_VEC_MAJOR, "8.9 or later"},
                       blocks = {MS_LT_SCALED_BY_BLOCKS, MS_LT_VEC32_VERSION, MS_LT_VEC32_MAJOR, INT_MAX,
                                 "10.0 or later"},
                       tiles = {MS_LT_SCALED_BY_TILES, MS_LT_OUTER_VEC_VERSION, MS_LT_OUTER_VEC_MAJOR,
                                MS_LT_OUTER_VEC_MAJOR, "9.0, and cuBLASLt 12.9 or later"};
  factors found = f8->e8m0 ? blocks : f8->a.block ? tiles : f8->by_rows ? rows : one;
  if (f8->b.side > 1) found.scaling = MS_LT_SCALED_BY_TILES_AND_SQUARES;
  return found;
}

static int decide_library(prepared_f8 *prepared, const ms_cublaslt *lt, const ms_kernel_call *call) {
  const ms_product *p = &prepared->f8.product;
  const int epilogue = epilogue_of(p);
  const factors by = factors_of(&prepared->f8);
  int major = 0, minor = 0, found = 0;
  MS_TRY(capability(&major, &minor));
  prepared->way = LIBRARY;
  if (lt->get_version() >= by.version && major >= by.from && major <= by.to) {
    MS_TRY(try_library(prepared, lt, call, by.scaling, epilogue, &found));
    if (!found && epilogue != MS_LT_EPILOGUE_DEFAULT)
      MS_TRY(try_library(prepared, lt, call, by.scaling, MS_LT_EPILOGUE_DEFAULT, &found));
  }
  if (!found && prepared->f8.by_rows) {
    prepared->way = AFTER;
    prepared->because = "this cuBLASLt or GPU has no factors by row: a pass of ours applies them";
    MS_TRY(try_library(prepared, lt, call, MS_LT_UNSCALED, MS_LT_EPILOGUE_DEFAULT, &found));
  }
  if (found) return MS_OK;
  prepared->way = UNDECIDED;
  return MS_FAIL(MS_EUNSUPPORTED,
                 "matmul_f8: cuBLASLt %zu has no algorithm for [%" PRId64 ",%" PRId64 "] x [%" PRId64 ",%" PRId64
                 "], %s by %s, on this GPU of compute capability %d.%d; %s needs %s: leave out the rules of "
                 "fp8, or set MOONSHARD_CUDA_MATMUL=plain to compute them without tensor cores",
                 lt->get_version(), p->m, p->k, p->k, p->n, ms_dtype_name(prepared->f8.a.dtype),
                 ms_dtype_name(prepared->f8.b.dtype), major, minor, ms_f8_recipe_name((int)call->attrs.product.recipe),
                 by.needs);
}

static int decide(prepared_f8 *prepared, const ms_kernel_call *call) {
  char why[MS_LIBRARY_WHY_BYTES];
  int plain, demanded;
  MS_TRY(ms_matmul_choice(&prepared->f8.product, &plain, &demanded));
  const ms_cublaslt *lt = plain ? NULL : ms_handles_load(&ms_cublaslt_handles, why);
  if (lt) return decide_library(prepared, lt, call);
  if (demanded) return MS_FAIL(MS_EUNSUPPORTED, "MOONSHARD_CUDA_MATMUL=cublaslt: %s", why);
  if (!plain) ms_note("%s; Moonshard's own kernels compute 8-bit products, without tensor cores", why);
  prepared->way = PLAIN;
  prepared->because = plain ? "no elements, or MOONSHARD_CUDA_MATMUL=plain" : "no cuBLASLt";
  return MS_OK;
}

static int bind(const ms_kernel_call *call) {
  prepared_f8 *prepared = call->prepared;
  return prepared->way == UNDECIDED && is_aligned(call) ? decide(prepared, call) : MS_OK;
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static int finish(const ms_kernel_call *call) {
  const prepared_f8 *prepared = call->prepared;
  ms_kernel_call plain = *call;
  plain.in_data[2] = ms_f8_bias(call, &prepared->f8);
  return ms_matmul_finish_run(&plain, &prepared->left, NULL);
}

static int round_operand(const ms_kernel_call *call, const ms_f8 *f8, int which, const ms_f8_memory *to) {
  const int coded = f8->coded && which == MS_F8_CODES_INPUT;
  return coded ? ms_f8_take_codes_run(call, f8, to) : ms_f8_round_run(call, f8, which, to);
}

static int run(const ms_kernel_call *call) {
  const prepared_f8 *prepared = call->prepared;
  const ms_f8 *f8 = &prepared->f8;
  const ms_lt_operands on = operands_of(call);
  ms_f8_memory memory[2];
  if (f8->product.m * f8->product.n == 0) return MS_OK;
  memory_of(call, memory);
  for (int i = 0; i < 2; i++) MS_TRY(round_operand(call, f8, i, &memory[i]));
  if (prepared->way == PLAIN || !is_aligned(call)) return ms_f8_plain_run(call, f8, memory);
  if (prepared->way == UNDECIDED) return MS_FAIL(MS_EINTERNAL, "matmul_f8: the call was not bound");
  MS_TRY(ms_lt_run(&prepared->lt, &prepared->lt.algo, &on, call->stream));
  if (prepared->way == AFTER) return ms_f8_scale_run(call, f8, memory);
  const int finishes = prepared->left.bias_dtype >= 0 || prepared->left.activation != MS_ACT_NONE;
  return finishes ? finish(call) : MS_OK;
}

static void release(void *data) {
  prepared_f8 *prepared = data;
  if (prepared && (prepared->way == LIBRARY || prepared->way == AFTER)) ms_lt_close(&prepared->lt);
  free(prepared);
}

static ms_computed computed(const ms_kernel_call *call) {
  const prepared_f8 *prepared = call->prepared;
  if (!is_aligned(call))
    return (ms_computed){"own kernels", "the result, the bias or the weight's codes are not aligned to 16 bytes"};
  return (ms_computed){prepared->way == PLAIN ? "own kernels" : "cuBLASLt", prepared->because};
}

const ms_kernel ms_cuda_matmul_f8 = {.prepare = prepare,
                                     .run = run,
                                     .release = release,
                                     .in_place = MS_CUDA_OVER_matmul_f8,
                                     .bind = bind,
                                     .computed = computed};
