/* emulated_cublaslt.c - the functions of cuBLASLt that Moonshard uses. Products (emulated_cublaslt_product.c) are of
 * matrices in the emulated device's memory, and run by the emulated streams. It refuses what the real library refuses:
 * attributes of the wrong size, incompatible types, pointers that are not aligned as the algorithm requires, workspaces
 * that are too small, algorithms that it did not return.
 *
 * Its algorithms add in different orders, so their bits differ. The first needs tensors aligned to 16 bytes and a
 * kilobyte of workspace; the second splits sums in place if the result is f32.
 *
 * MOONSHARD_EMULATE_FAIL accepts the names of all functions. Other settings:
 *   MOONSHARD_EMULATE_CUBLASLT_VERSION=110000   reported version (130100)
 *   MOONSHARD_EMULATE_CUBLASLT_SLOW=5           algorithms 0 and 2 take 2 ms longer
 *   MOONSHARD_EMULATE_CUBLASLT_COLD=2           algorithm 1 takes 4 ms longer on tensors that are not in the cache:
 * that the product before did not write MOONSHARD_EMULATE_CUBLASLT_NONE=32          no algorithm supports an epilogue
 * with one of these bits MOONSHARD_EMULATE_CUBLASLT_NO_FLOAT8=1      nor 8-bit operands, as on GPUs before 8.9
 *   MOONSHARD_EMULATE_CUBLASLT_TARGET=refuse   a target of multiprocessors is no attribute; none: no algorithm has one
 *
 * Products of 8-bit operands are those of compute capability 9.0, and of 10.0 with scales of blocks: A transposed and B
 * not, sizes that are multiples of 16 bytes, at most one operand e5m2, results of bf16 or f32, scales for both operands
 * or for none.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulated_cublaslt.h"
#include "emulated_log.h"
#include "emulated_runtime.h"

enum {
  INTERNAL_ERROR = 14,
  ALGORITHMS = 3,
  IN_PLACE = 1, /* of these, the one that splits sums */
  MAGIC = 0x17,
  ALIGNMENT = 16,
  WORKSPACE_ALIGNMENT = 256,
  FIRST_WORKSPACE = 1024
};

struct cublasLtContext {
  int unused;
};

struct ms_lt_preference {
  uint64_t workspace;
  uint32_t schemes, alignment[4];
};

static _Atomic long long alive;
static _Atomic(void *) written_last;

/* Describes the objects that were not freed; NULL: none. */
const char *emulated_cublaslt_left(void);
const char *emulated_cublaslt_left(void) {
  static char text[64];
  if (!alive) return NULL;
  snprintf(text, sizeof text, "%lld objects of cuBLASLt", (long long)alive);
  return text;
}

static int setting(const char *name, int fallback) {
  const char *text = getenv(name);
  return text && *text ? atoi(text) : fallback;
}

static int make(void **object, size_t bytes) {
  *object = calloc(1, bytes);
  if (!*object) return MS_LT_ALLOC_FAILED;
  alive++;
  return MS_LT_SUCCESS;
}

static int drop(void *object) {
  alive--;
  free(object);
  return MS_LT_SUCCESS;
}

#define FAIL_ON_DEMAND(function) \
  if (emulated_fails(function)) return INTERNAL_ERROR

/* ---- objects ----------------------------------------------------------------------------------------------------- */

size_t cublasLtGetVersion(void);
size_t cublasLtGetVersion(void) { return (size_t)setting("MOONSHARD_EMULATE_CUBLASLT_VERSION", 130100); }

const char *cublasLtGetStatusName(int status);
const char *cublasLtGetStatusName(int status) {
  switch (status) {
    case MS_LT_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case MS_LT_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case MS_LT_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_INTERNAL_ERROR";
  }
}

int cublasLtCreate(ms_lt_handle *handle);
int cublasLtCreate(ms_lt_handle *handle) {
  FAIL_ON_DEMAND("cublasLtCreate");
  return make((void **)handle, sizeof **handle);
}

int cublasLtDestroy(ms_lt_handle handle);
int cublasLtDestroy(ms_lt_handle handle) { return drop(handle); }

int cublasLtMatmulDescCreate(ms_lt_desc **desc, int compute, int scale);
int cublasLtMatmulDescCreate(ms_lt_desc **desc, int compute, int scale) {
  FAIL_ON_DEMAND("cublasLtMatmulDescCreate");
  if (scale != MS_LT_R_32F) return MS_LT_NOT_SUPPORTED;
  if (make((void **)desc, sizeof **desc)) return MS_LT_ALLOC_FAILED;
  (*desc)->compute = compute;
  (*desc)->epilogue = MS_LT_EPILOGUE_DEFAULT;
  return MS_LT_SUCCESS;
}

int cublasLtMatmulDescDestroy(ms_lt_desc *desc);
int cublasLtMatmulDescDestroy(ms_lt_desc *desc) { return drop(desc); }

static int target_is(const char *how) {
  const char *text = getenv("MOONSHARD_EMULATE_CUBLASLT_TARGET");
  return text && !strcmp(text, how);
}

static int store(void *field, size_t field_bytes, const void *value, size_t bytes) {
  if (bytes != field_bytes || !value) return MS_LT_INVALID_VALUE;
  memcpy(field, value, bytes);
  return MS_LT_SUCCESS;
}
#define STORE(field) store(&(field), sizeof(field), value, bytes)

int cublasLtMatmulDescSetAttribute(ms_lt_desc *desc, int attribute, const void *value, size_t bytes);
int cublasLtMatmulDescSetAttribute(ms_lt_desc *desc, int attribute, const void *value, size_t bytes) {
  FAIL_ON_DEMAND("cublasLtMatmulDescSetAttribute");
  const int has_modes = cublasLtGetVersion() >= MS_LT_OUTER_VEC_VERSION;
  if (has_modes && attribute == MS_LT_DESC_A_SCALE_MODE) return STORE(desc->a_mode);
  if (has_modes && attribute == MS_LT_DESC_B_SCALE_MODE) return STORE(desc->b_mode);
  switch (attribute) {
    case MS_LT_DESC_TRANSA: return STORE(desc->trans_a);
    case MS_LT_DESC_TRANSB: return STORE(desc->trans_b);
    case MS_LT_DESC_EPILOGUE: return STORE(desc->epilogue);
    case MS_LT_DESC_BIAS_POINTER: return STORE(desc->bias);
    case MS_LT_DESC_EPILOGUE_AUX_POINTER: return STORE(desc->aux);
    case MS_LT_DESC_EPILOGUE_AUX_LD: return STORE(desc->aux_ld);
    case MS_LT_DESC_A_SCALE_POINTER: return STORE(desc->a_scale);
    case MS_LT_DESC_B_SCALE_POINTER: return STORE(desc->b_scale);
    case MS_LT_DESC_SM_COUNT_TARGET: return target_is("refuse") ? MS_LT_INVALID_VALUE : STORE(desc->processors);
    case MS_LT_DESC_FAST_ACCUM: return STORE(desc->fast);
    default: return MS_LT_INVALID_VALUE;
  }
}

int cublasLtMatrixLayoutCreate(ms_lt_layout **layout, int type, uint64_t rows, uint64_t columns, int64_t leading);
int cublasLtMatrixLayoutCreate(ms_lt_layout **layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  FAIL_ON_DEMAND("cublasLtMatrixLayoutCreate");
  if (leading < (int64_t)rows || !rows || !columns) return MS_LT_INVALID_VALUE;
  if (make((void **)layout, sizeof **layout)) return MS_LT_ALLOC_FAILED;
  **layout = (ms_lt_layout){type, 1, (int64_t)rows, (int64_t)columns, leading, 0};
  return MS_LT_SUCCESS;
}

int cublasLtMatrixLayoutDestroy(ms_lt_layout *layout);
int cublasLtMatrixLayoutDestroy(ms_lt_layout *layout) { return drop(layout); }

int cublasLtMatrixLayoutSetAttribute(ms_lt_layout *layout, int attribute, const void *value, size_t bytes);
int cublasLtMatrixLayoutSetAttribute(ms_lt_layout *layout, int attribute, const void *value, size_t bytes) {
  FAIL_ON_DEMAND("cublasLtMatrixLayoutSetAttribute");
  if (attribute == MS_LT_LAYOUT_BATCH_COUNT) return STORE(layout->batch);
  return attribute == MS_LT_LAYOUT_STRIDED_BATCH_OFFSET ? STORE(layout->stride) : MS_LT_INVALID_VALUE;
}

int cublasLtMatmulPreferenceCreate(ms_lt_preference **preference);
int cublasLtMatmulPreferenceCreate(ms_lt_preference **preference) {
  FAIL_ON_DEMAND("cublasLtMatmulPreferenceCreate");
  if (make((void **)preference, sizeof **preference)) return MS_LT_ALLOC_FAILED;
  **preference = (ms_lt_preference){0, 7, {256, 256, 256, 256}};
  return MS_LT_SUCCESS;
}

int cublasLtMatmulPreferenceDestroy(ms_lt_preference *preference);
int cublasLtMatmulPreferenceDestroy(ms_lt_preference *preference) { return drop(preference); }

int cublasLtMatmulPreferenceSetAttribute(ms_lt_preference *preference, int attribute, const void *value, size_t bytes);
int cublasLtMatmulPreferenceSetAttribute(ms_lt_preference *preference, int attribute, const void *value, size_t bytes) {
  FAIL_ON_DEMAND("cublasLtMatmulPreferenceSetAttribute");
  if (attribute == MS_LT_PREF_MAX_WORKSPACE_BYTES) return STORE(preference->workspace);
  if (attribute == MS_LT_PREF_REDUCTION_SCHEME_MASK) return STORE(preference->schemes);
  const int matrix = attribute - MS_LT_PREF_MIN_ALIGNMENT_A_BYTES;
  return matrix >= 0 && matrix < 4 ? STORE(preference->alignment[matrix]) : MS_LT_INVALID_VALUE;
}

/* ---- supported products ------------------------------------------------------------------------------------------ */

/* Products of 8-bit operands. */
static int judge_float8(const ms_lt_desc *desc, const ms_lt_layout *a, const ms_lt_layout *b, const ms_lt_layout *d) {
  const int64_t leading = a->leading | b->leading | d->leading * (int64_t)emulated_element_bytes(d->type);
  const int both_e5m2 = a->type == MS_LT_R_8F_E5M2 && b->type == MS_LT_R_8F_E5M2;
  const int types =
      emulated_is_float8(a->type) && emulated_is_float8(b->type) && !both_e5m2 && !emulated_is_float8(d->type);
  const int blackwell = setting("MOONSHARD_EMULATE_CAPABILITY", 90) >= 10 * MS_LT_VEC32_MAJOR, mode = desc->a_mode;
  const int known = mode == MS_LT_SCALE_SCALAR_32F || (mode == MS_LT_SCALE_OUTER_VEC_32F && !blackwell) ||
                    (mode == MS_LT_SCALE_VEC32_UE8M0 && blackwell && a->rows % BLOCK == 0);
  /* Both in tiles, or one of them in squares. */
  const int by_128 = !blackwell && emulated_is_128(mode) && emulated_is_128(desc->b_mode) &&
                     (mode == MS_LT_SCALE_VEC128_32F || desc->b_mode == MS_LT_SCALE_VEC128_32F) && !desc->fast;
  if (setting("MOONSHARD_EMULATE_CUBLASLT_NO_FLOAT8", 0) || !types) return MS_LT_NOT_SUPPORTED;
  if (desc->compute != MS_LT_COMPUTE_32F || !desc->trans_a || desc->trans_b || leading % ALIGNMENT)
    return MS_LT_NOT_SUPPORTED;
  if (!by_128 && (!known || desc->a_mode != desc->b_mode)) return MS_LT_NOT_SUPPORTED;
  if (!desc->a_scale != !desc->b_scale) return MS_LT_NOT_SUPPORTED;
  if (mode != MS_LT_SCALE_SCALAR_32F && (!desc->a_scale || d->batch > 1)) return MS_LT_INVALID_VALUE;
  return desc->epilogue & ~BIAS & ~MS_LT_EPILOGUE_DEFAULT ? MS_LT_NOT_SUPPORTED : MS_LT_SUCCESS;
}

/* The status of a product: success, invalid, or without an algorithm. */
static int judge(const ms_lt_desc *desc, const ms_lt_layout *a, const ms_lt_layout *b, const ms_lt_layout *d) {
  const int64_t rows = desc->trans_a ? a->columns : a->rows, depth = desc->trans_a ? a->rows : a->columns;
  const int64_t columns = desc->trans_b ? b->rows : b->columns, other = desc->trans_b ? b->columns : b->rows;
  if (rows != d->rows || columns != d->columns || depth != other || a->batch != d->batch || b->batch != d->batch)
    return MS_LT_INVALID_VALUE;
  if (desc->processors && target_is("none")) return MS_LT_NOT_SUPPORTED;
  if (emulated_is_float8(a->type) || emulated_is_float8(b->type)) return judge_float8(desc, a, b, d);
  const int types = a->type == b->type && (d->type == MS_LT_R_32F || (d->type == MS_LT_R_16BF && a->type == d->type));
  if (!types || (desc->compute != MS_LT_COMPUTE_32F && a->type != MS_LT_R_32F)) return MS_LT_NOT_SUPPORTED;
  if ((desc->epilogue & AUX) && (desc->aux_ld % 8 || desc->aux_ld < d->rows)) return MS_LT_INVALID_VALUE;
  if ((desc->epilogue & (AUX | BGRAD)) && d->batch > 1) return MS_LT_NOT_SUPPORTED; /* aux and bias have no strides */
  if (setting("MOONSHARD_EMULATE_CUBLASLT_NONE", 0) & desc->epilogue) /* real versions report either status */
    return desc->epilogue & AUX ? MS_LT_INVALID_VALUE : MS_LT_NOT_SUPPORTED;
  return MS_LT_SUCCESS;
}

/* The bitwise or of the pointers of the epilogue, for checking their alignment. */
static uintptr_t epilogue_pointers(const struct ms_lt_desc *desc) {
  return (desc->epilogue & (BIAS | BGRAD) ? (uintptr_t)desc->bias : 0) |
         (desc->epilogue & AUX ? (uintptr_t)desc->aux : 0);
}

static size_t workspace_of(int algorithm) { return algorithm ? 0 : FIRST_WORKSPACE; }

static ms_lt_result result_of(int algorithm) {
  return (ms_lt_result){.algo = {{MAGIC, (uint64_t)algorithm}}, .workspace_bytes = workspace_of(algorithm), .waves = 1};
}

/* The schemes that join the parts of a sum in f32. */
static uint32_t joins_in_f32(const ms_lt_layout *d) {
  return MS_LT_REDUCTION_COMPUTE_TYPE | (d->type == MS_LT_R_32F ? MS_LT_REDUCTION_IN_PLACE : 0);
}

/* The scheme of an algorithm: as in the real library, some split sums only in place, if the result is f32. */
static uint32_t joins_of(int algorithm, const ms_lt_layout *d) {
  return algorithm == IN_PLACE && d->type == MS_LT_R_32F ? MS_LT_REDUCTION_IN_PLACE : 0;
}

int cublasLtMatmulAlgoGetHeuristic(ms_lt_handle handle, ms_lt_desc *desc, ms_lt_layout *a, ms_lt_layout *b,
                                   ms_lt_layout *c, ms_lt_layout *d, ms_lt_preference *preference, int wanted,
                                   ms_lt_result *results, int *count);
int cublasLtMatmulAlgoGetHeuristic(ms_lt_handle handle, ms_lt_desc *desc, ms_lt_layout *a, ms_lt_layout *b,
                                   ms_lt_layout *c, ms_lt_layout *d, ms_lt_preference *preference, int wanted,
                                   ms_lt_result *results, int *count) {
  FAIL_ON_DEMAND("cublasLtMatmulAlgoGetHeuristic");
  *count = 0;
  if (!handle || c->rows != d->rows || wanted < 1) return MS_LT_INVALID_VALUE;
  int status = judge(desc, a, b, d), aligned = 1;
  if (preference->schemes & ~joins_in_f32(d)) status = MS_LT_INVALID_VALUE; /* the real one would sum in bf16 */
  for (int i = 0; i < 4; i++) aligned &= preference->alignment[i] >= ALIGNMENT;
  if (epilogue_pointers(desc) % ALIGNMENT) aligned = 0;
  for (int i = aligned ? 0 : 1; !status && i < ALGORITHMS && *count < wanted; i++)
    if (workspace_of(i) <= preference->workspace && !(joins_of(i, d) & ~preference->schemes))
      results[(*count)++] = result_of(i);
  return status;
}

int cublasLtMatmulAlgoCheck(ms_lt_handle handle, ms_lt_desc *desc, ms_lt_layout *a, ms_lt_layout *b, ms_lt_layout *c,
                            ms_lt_layout *d, const ms_lt_algo *algo, ms_lt_result *result);
int cublasLtMatmulAlgoCheck(ms_lt_handle handle, ms_lt_desc *desc, ms_lt_layout *a, ms_lt_layout *b, ms_lt_layout *c,
                            ms_lt_layout *d, const ms_lt_algo *algo, ms_lt_result *result) {
  (void)c;
  if (!handle || algo->data[0] != MAGIC || algo->data[1] >= ALGORITHMS) return MS_LT_INVALID_VALUE;
  *result = result_of((int)algo->data[1]);
  return judge(desc, a, b, d);
}

/* ---- the product ------------------------------------------------------------------------------------------------- */

static int64_t bytes_of(const ms_lt_layout *layout) {
  const int64_t matrix = (layout->columns - 1) * layout->leading + layout->rows;
  return ((layout->batch - 1) * layout->stride + matrix) * (int64_t)emulated_element_bytes(layout->type);
}

static int on_device(const void *data, int64_t bytes) { return emulated_is_device(data, (size_t)bytes); }

static int overlap(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes) {
  return (const char *)a < (const char *)b + b_bytes && (const char *)b < (const char *)a + a_bytes;
}

/* Whether the auxiliary matrix and the bias gradient are on the device and do not overlap other tensors. */
static int epilogue_is_apart(const emulated_product *t, int64_t vector) {
  const int64_t d = bytes_of(&t->d),
                aux = ((t->d.columns - 1) * t->desc.aux_ld + t->d.rows) * (int64_t)emulated_element_bytes(t->d.type);
  const int has_aux = t->desc.epilogue & AUX, has_sums = t->desc.epilogue & BGRAD;
  if (has_aux && (!on_device(t->desc.aux, aux) || overlap(t->desc.aux, aux, t->d_data, d))) return 0;
  if (has_aux && (t->desc.epilogue & GELU))
    if (overlap(t->desc.aux, aux, t->a_data, bytes_of(&t->a)) || overlap(t->desc.aux, aux, t->b_data, bytes_of(&t->b)))
      return 0;
  return !has_sums || !overlap(t->desc.bias, vector, t->d_data, d);
}

/* Whether the result is apart from what it is computed from; c can be d itself. */
static int result_is_apart(const emulated_product *t) {
  const int64_t d = bytes_of(&t->d);
  return !overlap(t->d_data, d, t->a_data, bytes_of(&t->a)) && !overlap(t->d_data, d, t->b_data, bytes_of(&t->b)) &&
         (t->c_data == t->d_data || !overlap(t->d_data, d, t->c_data, d));
}

/* Whether all pointers are on the device and aligned as the algorithm requires. */
static int check_pointers(const emulated_product *t, int algorithm) {
  const uintptr_t all = (uintptr_t)t->a_data | (uintptr_t)t->b_data | (uintptr_t)t->c_data | (uintptr_t)t->d_data |
                        epilogue_pointers(&t->desc);
  if ((algorithm == 0 || emulated_is_float8(t->a.type)) && all % ALIGNMENT) return MS_LT_INVALID_VALUE;
  const int64_t vector = t->d.rows * (int64_t)emulated_element_bytes(t->d.type);
  int there = on_device(t->a_data, bytes_of(&t->a)) && on_device(t->b_data, bytes_of(&t->b)) &&
              on_device(t->c_data, bytes_of(&t->d)) && on_device(t->d_data, bytes_of(&t->d));
  there &= result_is_apart(t);
  const int64_t scales = t->desc.a_mode == MS_LT_SCALE_OUTER_VEC_32F;
  const int64_t a_bytes = (int64_t)sizeof(float) * (scales ? t->d.rows : 1);
  const int64_t b_bytes = (int64_t)sizeof(float) * (scales ? t->d.columns : 1);
  if (t->desc.a_scale) there &= on_device(t->desc.a_scale, a_bytes) && on_device(t->desc.b_scale, b_bytes);
  if (t->desc.epilogue & (BIAS | BGRAD)) there &= on_device(t->desc.bias, vector);
  there &= epilogue_is_apart(t, vector);
  return there ? MS_LT_SUCCESS : MS_LT_INVALID_VALUE;
}

int cublasLtMatmul(ms_lt_handle handle, ms_lt_desc *desc, const void *alpha, const void *a, ms_lt_layout *a_layout,
                   const void *b, ms_lt_layout *b_layout, const void *beta, const void *c, ms_lt_layout *c_layout,
                   void *d, ms_lt_layout *d_layout, const ms_lt_algo *algo, void *workspace, size_t workspace_bytes,
                   cudaStream_t stream);
int cublasLtMatmul(ms_lt_handle handle, ms_lt_desc *desc, const void *alpha, const void *a, ms_lt_layout *a_layout,
                   const void *b, ms_lt_layout *b_layout, const void *beta, const void *c, ms_lt_layout *c_layout,
                   void *d, ms_lt_layout *d_layout, const ms_lt_algo *algo, void *workspace, size_t workspace_bytes,
                   cudaStream_t stream) {
  FAIL_ON_DEMAND("cublasLtMatmul");
  ms_lt_result result;
  int status = cublasLtMatmulAlgoCheck(handle, desc, a_layout, b_layout, c_layout, d_layout, algo, &result);
  if (status) return status;
  if (c_layout != d_layout || result.workspace_bytes > workspace_bytes) return MS_LT_INVALID_VALUE;
  if ((uintptr_t)workspace % WORKSPACE_ALIGNMENT) return MS_LT_INVALID_VALUE;
  if (workspace_bytes && !on_device(workspace, (int64_t)workspace_bytes)) return MS_LT_INVALID_VALUE;
  const int algorithm = (int)algo->data[1];
  emulated_product *t = malloc(sizeof *t);
  if (!t) return MS_LT_ALLOC_FAILED;
  *t = (emulated_product){.desc = *desc,
                          .a = *a_layout,
                          .b = *b_layout,
                          .d = *d_layout,
                          .a_data = a,
                          .b_data = b,
                          .c_data = c,
                          .d_data = d,
                          .alpha = *(const float *)alpha,
                          .beta = *(const float *)beta,
                          .backwards = algorithm % 2,
                          .milliseconds = 2 * (setting("MOONSHARD_EMULATE_CUBLASLT_SLOW", 0) >> algorithm & 1)};
  if (atomic_exchange(&written_last, d) != d)
    t->milliseconds += 4 * (setting("MOONSHARD_EMULATE_CUBLASLT_COLD", 0) >> algorithm & 1);
  status = check_pointers(t, algorithm);
  if (!status && desc->processors) emulated_log_product(stream, desc->processors);
  if (!status) emulated_log_work(stream, "cublasLtMatmul", 0, NULL);
  if (!status && emulated_submit(stream, emulated_multiply, t, free) == cudaSuccess) return MS_LT_SUCCESS;
  if (status) free(t);
  return status ? status : INTERNAL_ERROR;
}
