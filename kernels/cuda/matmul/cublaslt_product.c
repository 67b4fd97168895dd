/* cublaslt_product.c - creates the descriptors of one product, and runs it. */
#include "kernels/cuda/matmul/cublaslt_product.h"

#include <string.h>

#include "base/numbers/dtype.h"
#include "base/error.h"

static int type_of(int dtype) {
  switch (dtype) {
    case MS_BF16: return MS_LT_R_16BF;
    case MS_F8E4M3: return MS_LT_R_8F_E4M3;
    case MS_F8E5M2: return MS_LT_R_8F_E5M2;
    default: return MS_LT_R_32F;
  }
}

static int has_codes(const ms_lt_problem *of) { return ms_dtype_size(of->product.dtype) == 1; }

static int set(const ms_lt_product *p, int attribute, const void *value, size_t bytes) {
  return MS_CUBLASLT(p->lt, desc_set, p->desc, attribute, value, bytes);
}

static int set_int(const ms_lt_product *p, int attribute, int32_t value) {
  return set(p, attribute, &value, sizeof value);
}

/* A row-major matrix, or a batch of them, as a column-major cuBLASLt layout. stride 0: one matrix for the whole
 * batch. */
static int make_layout(const ms_lt_product *p, int dtype, int64_t rows, int64_t columns, int64_t stride,
                       ms_lt_layout **layout) {
  const ms_cublaslt *lt = p->lt;
  const int32_t batch = (int32_t)p->problem.product.batch;
  MS_TRY(MS_CUBLASLT(lt, layout_create, layout, type_of(dtype), (uint64_t)columns, (uint64_t)rows, columns));
  if (batch == 1) return MS_OK;
  MS_TRY(MS_CUBLASLT(lt, layout_set, *layout, MS_LT_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
  return MS_CUBLASLT(lt, layout_set, *layout, MS_LT_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
}

static int has_aux(int epilogue) {
  return epilogue == MS_LT_EPILOGUE_GELU_AUX_BIAS || epilogue == MS_LT_EPILOGUE_DGELU ||
         epilogue == MS_LT_EPILOGUE_DGELU_BGRAD;
}

static int has_bias(int epilogue) {
  return epilogue == MS_LT_EPILOGUE_BIAS || epilogue == MS_LT_EPILOGUE_GELU_BIAS ||
         epilogue == MS_LT_EPILOGUE_GELU_AUX_BIAS || epilogue == MS_LT_EPILOGUE_DGELU_BGRAD;
}

/* The library's mode of our a, and of our b, by enum ms_lt_scaling. */
static const int MODES[][2] = {
    [MS_LT_UNSCALED] = {MS_LT_SCALE_SCALAR_32F, MS_LT_SCALE_SCALAR_32F},
    [MS_LT_SCALED_AS_ONE] = {MS_LT_SCALE_SCALAR_32F, MS_LT_SCALE_SCALAR_32F},
    [MS_LT_SCALED_BY_ROWS] = {MS_LT_SCALE_OUTER_VEC_32F, MS_LT_SCALE_OUTER_VEC_32F},
    [MS_LT_SCALED_BY_BLOCKS] = {MS_LT_SCALE_VEC32_UE8M0, MS_LT_SCALE_VEC32_UE8M0},
    [MS_LT_SCALED_BY_TILES] = {MS_LT_SCALE_VEC128_32F, MS_LT_SCALE_VEC128_32F},
    [MS_LT_SCALED_BY_TILES_AND_SQUARES] = {MS_LT_SCALE_VEC128_32F, MS_LT_SCALE_BLK128X128_32F},
};

/* Library's A is our b. */
static int describe_scales(const ms_lt_product *p) {
  const int8_t fast = (int8_t)p->problem.fast_sums;
  MS_TRY(set(p, MS_LT_DESC_FAST_ACCUM, &fast, sizeof fast));
  const int *mode = MODES[p->problem.scaling];
  if (mode[0] == MS_LT_SCALE_SCALAR_32F && mode[1] == MS_LT_SCALE_SCALAR_32F) return MS_OK;
  MS_TRY(set_int(p, MS_LT_DESC_A_SCALE_MODE, mode[1]));
  return set_int(p, MS_LT_DESC_B_SCALE_MODE, mode[0]);
}

int ms_lt_processors(const ms_kernel_call *call, int *processors) {
  int device = 0, all = 0;
  *processors = 0;
  if (!call->spared) return MS_OK;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return MS_FAIL(MS_EDEVICE, "cudaDeviceGetAttribute: %s", cudaGetErrorString(error));
  *processors = all - call->spared;
  if (*processors > 0) return MS_OK;
  return MS_FAIL(MS_EINVAL, "a product cannot leave %d of GPU %d's %d multiprocessors to collectives: at most %d",
                 call->spared, device, all, all - 1);
}

/* What the library reports of attributes that it does not have. */
static int is_unknown(int status) { return status == MS_LT_INVALID_VALUE || status == MS_LT_NOT_SUPPORTED; }

static int set_processors(ms_lt_product *p) {
  const int32_t processors = p->problem.processors;
  const int status = p->lt->desc_set(p->desc, MS_LT_DESC_SM_COUNT_TARGET, &processors, sizeof processors);
  if (!is_unknown(status)) return ms_cublaslt_handles.check(p->lt, status, "cublasLtMatmulDescSetAttribute");
  p->problem.processors = 0;
  ms_note(
      "cuBLASLt %zu cannot limit products to %d multiprocessors (SM_COUNT_TARGET): they use all of them, also while a "
      "collective runs, as without sm_carveout",
      p->lt->get_version(), (int)processors);
  return MS_OK;
}

int ms_lt_use_all(ms_lt_product *p) {
  p->problem.processors = 0;
  return set_processors(p);
}

static int describe(ms_lt_product *p) {
  const ms_product *of = &p->problem.product;
  const int b_dtype = has_codes(&p->problem) ? p->problem.b_dtype : of->dtype;
  const int compute = p->problem.tf32 && of->dtype == MS_F32 ? MS_LT_COMPUTE_32F_FAST_TF32 : MS_LT_COMPUTE_32F;
  MS_TRY(MS_CUBLASLT(p->lt, desc_create, &p->desc, compute, MS_LT_R_32F));
  MS_TRY(set_int(p, MS_LT_DESC_TRANSA, of->trans_b ? MS_LT_OP_T : MS_LT_OP_N));
  MS_TRY(set_int(p, MS_LT_DESC_TRANSB, of->trans_a ? MS_LT_OP_T : MS_LT_OP_N));
  MS_TRY(set_int(p, MS_LT_DESC_EPILOGUE, p->problem.epilogue));
  if (p->problem.processors) MS_TRY(set_processors(p));
  if (has_codes(&p->problem)) MS_TRY(describe_scales(p));
  if (has_aux(p->problem.epilogue)) MS_TRY(set(p, MS_LT_DESC_EPILOGUE_AUX_LD, &of->n, sizeof of->n));
  MS_TRY(make_layout(p, of->dtype, of->trans_a ? of->k : of->m, of->trans_a ? of->m : of->k, of->m * of->k, &p->a));
  MS_TRY(make_layout(p, b_dtype, of->trans_b ? of->n : of->k, of->trans_b ? of->k : of->n,
                     of->shared_b ? 0 : of->k * of->n, &p->b));
  return make_layout(p, of->c_dtype, of->m, of->n, of->m * of->n, &p->d);
}

int ms_lt_open(const ms_cublaslt *lt, const ms_lt_problem *problem, ms_lt_product *product) {
  memset(product, 0, sizeof *product);
  product->lt = lt;
  product->problem = *problem;
  void *handle = NULL;
  int rc = ms_handles_take(&ms_cublaslt_handles, &handle);
  product->handle = handle;
  if (!rc) rc = describe(product);
  if (rc) ms_lt_close(product);
  return rc;
}

void ms_lt_close(ms_lt_product *p) {
  if (p->a) (void)p->lt->layout_destroy(p->a);
  if (p->b) (void)p->lt->layout_destroy(p->b);
  if (p->d) (void)p->lt->layout_destroy(p->d);
  if (p->desc) (void)p->lt->desc_destroy(p->desc);
  ms_handles_drop(&ms_cublaslt_handles, p->handle);
  memset(p, 0, sizeof *p);
}

static int set_pointers(const ms_lt_product *p, const ms_lt_operands *on) {
  if (has_bias(p->problem.epilogue)) MS_TRY(set(p, MS_LT_DESC_BIAS_POINTER, &on->bias, sizeof on->bias));
  if (has_aux(p->problem.epilogue)) MS_TRY(set(p, MS_LT_DESC_EPILOGUE_AUX_POINTER, &on->aux, sizeof on->aux));
  if (p->problem.scaling == MS_LT_UNSCALED) return MS_OK;
  MS_TRY(set(p, MS_LT_DESC_A_SCALE_POINTER, &on->b_factor, sizeof on->b_factor));
  return set(p, MS_LT_DESC_B_SCALE_POINTER, &on->a_factor, sizeof on->a_factor);
}

int ms_lt_expect(ms_lt_product *p, const ms_lt_operands *on) { return set_pointers(p, on); }

uint32_t ms_lt_joins(const ms_lt_problem *of) {
  return MS_LT_REDUCTION_COMPUTE_TYPE | (of->product.c_dtype == MS_F32 ? MS_LT_REDUCTION_IN_PLACE : 0);
}

static int set_preference(const ms_lt_product *p, ms_lt_preference *preference) {
  const ms_lt_problem *of = &p->problem;
  const uint64_t workspace = (uint64_t)of->workspace_bytes;
  const uint32_t joins = ms_lt_joins(of);
  MS_TRY(MS_CUBLASLT(p->lt, preference_set, preference, MS_LT_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
  MS_TRY(MS_CUBLASLT(p->lt, preference_set, preference, MS_LT_PREF_REDUCTION_SCHEME_MASK, &joins, sizeof joins));
  for (int matrix = MS_LT_PREF_MIN_ALIGNMENT_A_BYTES; matrix <= MS_LT_PREF_MIN_ALIGNMENT_D_BYTES; matrix++) {
    const int input = matrix < MS_LT_PREF_MIN_ALIGNMENT_A_BYTES + 2;
    const int element = (int)ms_dtype_size(input ? of->product.dtype : of->product.c_dtype);
    const uint32_t bytes = (uint32_t)(of->alignment ? of->alignment : element);
    MS_TRY(MS_CUBLASLT(p->lt, preference_set, preference, matrix, &bytes, sizeof bytes));
  }
  return MS_OK;
}

int ms_lt_candidates(const ms_lt_product *p, int most, ms_lt_result *result, int *count) {
  ms_lt_preference *preference = NULL;
  int rc = MS_OK;
  *count = 0;
  MS_TRY(MS_CUBLASLT(p->lt, preference_create, &preference));
  MS_GOTO(set_preference(p, preference));
  const int status =
      p->lt->algo_get_heuristic(p->handle, p->desc, p->b, p->a, p->d, p->d, preference, most, result, count);
  /* Old versions may report an unknown epilogue, or a scaling that they lack, as an invalid value. */
  const int special = p->problem.epilogue != MS_LT_EPILOGUE_DEFAULT || has_codes(&p->problem);
  if (status == MS_LT_NOT_SUPPORTED || (special && status == MS_LT_INVALID_VALUE)) *count = 0;
  else MS_GOTO(ms_cublaslt_handles.check(p->lt, status, "cublasLtMatmulAlgoGetHeuristic"));
  int kept = 0;
  for (int i = 0; i < *count; i++)
    if (result[i].state == MS_LT_SUCCESS) result[kept++] = result[i];
  *count = kept;
fail:
  (void)p->lt->preference_destroy(preference);
  return rc;
}

int ms_lt_usable(const ms_lt_product *p, const ms_lt_algo *algo) {
  ms_lt_result result;
  memset(&result, 0, sizeof result);
  const int status = p->lt->algo_check(p->handle, p->desc, p->b, p->a, p->d, p->d, algo, &result);
  return status == MS_LT_SUCCESS && result.workspace_bytes <= (size_t)p->problem.workspace_bytes;
}

int ms_lt_run(const ms_lt_product *p, const ms_lt_algo *algo, const ms_lt_operands *on, void *stream) {
  const float alpha = 1.0f, beta = p->problem.accumulate ? 1.0f : 0.0f;
  MS_TRY(set_pointers(p, on));
  const void *c = p->problem.accumulate ? on->c : on->d;
  return MS_CUBLASLT(p->lt, matmul, p->handle, p->desc, &alpha, on->b, p->b, on->a, p->a, &beta, c, p->d, on->d, p->d,
                     algo, on->workspace, (size_t)p->problem.workspace_bytes, stream);
}
