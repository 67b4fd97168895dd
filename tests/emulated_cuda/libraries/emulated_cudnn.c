/* emulated_cudnn.c - the functions of cuDNN that Moonshard uses: descriptors, and which graphs have a plan;
 * emulated_cudnn_run.c computes them. It refuses what the real library refuses: attributes that a descriptor does not
 * have, or of another kind or count; incomplete descriptors, or values that are not finalized; incompatible shapes;
 * pointers that are not on the device or not aligned. As in the real library, a graph has a plan only if its operations
 * are those of attention, in their order.
 *
 * MOONSHARD_EMULATE_FAIL accepts the names of all functions. Other settings:
 *   MOONSHARD_EMULATE_CUDNN_VERSION=80900     reported version (91900)
 *   MOONSHARD_EMULATE_CUDNN_WORKSPACE=100000  additional workspace of its first plan in bytes
 *   MOONSHARD_EMULATE_CUDNN_EVERY=1           its other plan needs them, too
 *   MOONSHARD_EMULATE_CUDNN_NONE=1            no graph has a plan
 */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulated_cudnn.h"
#include "emulated_runtime.h"

enum { PLANS = 2, WORKSPACE = 256 };

static _Atomic long long alive;
static _Thread_local char last_error[256];

/* Describes the objects that were not freed; NULL: none. */
const char *emulated_cudnn_left(void);
const char *emulated_cudnn_left(void) {
  static char text[64];
  if (!alive) return NULL;
  snprintf(text, sizeof text, "%lld objects of cuDNN", (long long)alive);
  return text;
}

int refuse(int status, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(last_error, sizeof last_error, format, list);
  va_end(list);
  return status;
}

#define FAIL_ON_DEMAND(function) \
  if (emulated_fails(function)) return refuse(INTERNAL_ERROR, "on demand")

static int64_t setting(const char *name, int64_t fallback) {
  const char *text = getenv(name);
  return text && *text ? atoll(text) : fallback;
}

/* ---- attributes of descriptors ----------------------------------------------------------------------------------- */

static const struct rule {
  int type, name, kind, least, most; /* least 0: optional */
} rules[] = {
    {MS_DNN_POINTWISE, MS_DNN_POINTWISE_MODE, MS_DNN_OF_POINTWISE_MODE, 1, 1},
    {MS_DNN_POINTWISE, MS_DNN_POINTWISE_PRECISION, MS_DNN_OF_DATA_TYPE, 1, 1},
    {MS_DNN_POINTWISE, MS_DNN_POINTWISE_AXIS, MS_DNN_OF_INT64, 0, 1},
    {MS_DNN_MATMUL, MS_DNN_MATMUL_PRECISION, MS_DNN_OF_DATA_TYPE, 1, 1},
    {MS_DNN_REDUCTION, MS_DNN_REDUCTION_OPERATOR, MS_DNN_OF_REDUCTION, 1, 1},
    {MS_DNN_REDUCTION, MS_DNN_REDUCTION_PRECISION, MS_DNN_OF_DATA_TYPE, 1, 1},
    {MS_DNN_TENSOR, MS_DNN_TENSOR_DATA_TYPE, MS_DNN_OF_DATA_TYPE, 1, 1},
    {MS_DNN_TENSOR, MS_DNN_TENSOR_DIMENSIONS, MS_DNN_OF_INT64, 4, 4},
    {MS_DNN_TENSOR, MS_DNN_TENSOR_STRIDES, MS_DNN_OF_INT64, 4, 4},
    {MS_DNN_TENSOR, MS_DNN_TENSOR_ID, MS_DNN_OF_INT64, 1, 1},
    {MS_DNN_TENSOR, MS_DNN_TENSOR_ALIGNMENT, MS_DNN_OF_INT64, 1, 1},
    {MS_DNN_TENSOR, MS_DNN_TENSOR_VIRTUAL, MS_DNN_OF_BOOLEAN, 1, 1},
    {MS_DNN_TENSOR, MS_DNN_TENSOR_BY_VALUE, MS_DNN_OF_BOOLEAN, 1, 1},
    {MS_DNN_OPERATION_POINTWISE, MS_DNN_OPERATION_POINTWISE_BY, MS_DNN_OF_DESCRIPTOR, 1, 1},
    {MS_DNN_OPERATION_POINTWISE, MS_DNN_OPERATION_POINTWISE_X, MS_DNN_OF_DESCRIPTOR, 1, 1},
    {MS_DNN_OPERATION_POINTWISE, MS_DNN_OPERATION_POINTWISE_B, MS_DNN_OF_DESCRIPTOR, 0, 1},
    {MS_DNN_OPERATION_POINTWISE, MS_DNN_OPERATION_POINTWISE_T, MS_DNN_OF_DESCRIPTOR, 0, 1},
    {MS_DNN_OPERATION_POINTWISE, MS_DNN_OPERATION_POINTWISE_Y, MS_DNN_OF_DESCRIPTOR, 1, 1},
    {MS_DNN_OPERATION_MATMUL, MS_DNN_OPERATION_MATMUL_BY, MS_DNN_OF_DESCRIPTOR, 1, 1},
    {MS_DNN_OPERATION_MATMUL, MS_DNN_OPERATION_MATMUL_A, MS_DNN_OF_DESCRIPTOR, 1, 1},
    {MS_DNN_OPERATION_MATMUL, MS_DNN_OPERATION_MATMUL_B, MS_DNN_OF_DESCRIPTOR, 1, 1},
    {MS_DNN_OPERATION_MATMUL, MS_DNN_OPERATION_MATMUL_C, MS_DNN_OF_DESCRIPTOR, 1, 1},
    {MS_DNN_OPERATION_REDUCTION, MS_DNN_OPERATION_REDUCTION_BY, MS_DNN_OF_DESCRIPTOR, 1, 1},
    {MS_DNN_OPERATION_REDUCTION, MS_DNN_OPERATION_REDUCTION_X, MS_DNN_OF_DESCRIPTOR, 1, 1},
    {MS_DNN_OPERATION_REDUCTION, MS_DNN_OPERATION_REDUCTION_Y, MS_DNN_OF_DESCRIPTOR, 1, 1},
    {MS_DNN_OPERATION_RESHAPE, MS_DNN_OPERATION_RESHAPE_X, MS_DNN_OF_DESCRIPTOR, 1, 1},
    {MS_DNN_OPERATION_RESHAPE, MS_DNN_OPERATION_RESHAPE_Y, MS_DNN_OF_DESCRIPTOR, 1, 1},
    {MS_DNN_GRAPH, MS_DNN_GRAPH_HANDLE, MS_DNN_OF_HANDLE, 1, 1},
    {MS_DNN_GRAPH, MS_DNN_GRAPH_OPERATIONS, MS_DNN_OF_DESCRIPTOR, 1, VALUES},
    {MS_DNN_HEURISTIC, MS_DNN_HEURISTIC_GRAPH, MS_DNN_OF_DESCRIPTOR, 1, 1},
    {MS_DNN_HEURISTIC, MS_DNN_HEURISTIC_MODE, MS_DNN_OF_HEUR_MODE, 1, 1},
    {MS_DNN_PLAN, MS_DNN_PLAN_HANDLE, MS_DNN_OF_HANDLE, 1, 1},
    {MS_DNN_PLAN, MS_DNN_PLAN_ENGINE_CONFIG, MS_DNN_OF_DESCRIPTOR, 1, 1},
    {MS_DNN_VARIANT_PACK, MS_DNN_PACK_IDS, MS_DNN_OF_INT64, 1, VALUES},
    {MS_DNN_VARIANT_PACK, MS_DNN_PACK_POINTERS, MS_DNN_OF_POINTER, 1, VALUES},
    {MS_DNN_VARIANT_PACK, MS_DNN_PACK_WORKSPACE, MS_DNN_OF_POINTER, 1, 1},
};
enum { RULES = sizeof rules / sizeof *rules };

static const struct rule *rule_of(int type, int name) {
  for (int i = 0; i < RULES; i++)
    if (rules[i].type == type && rules[i].name == name) return &rules[i];
  return NULL;
}

static size_t value_bytes(int kind) {
  switch (kind) {
    case MS_DNN_OF_BOOLEAN: return 1;
    case MS_DNN_OF_DATA_TYPE:
    case MS_DNN_OF_HEUR_MODE:
    case MS_DNN_OF_POINTWISE_MODE:
    case MS_DNN_OF_REDUCTION: return 4;
    default: return 8;
  }
}

const attribute *find_attribute(const descriptor *d, int name) {
  for (int i = 0; i < d->attributes; i++)
    if (d->attribute[i].name == name) return &d->attribute[i];
  return NULL;
}

int int_of(const descriptor *d, int name) {
  int value;
  memcpy(&value, find_attribute(d, name)->value, sizeof value);
  return value;
}

const int64_t *longs_of(const descriptor *d, int name) { return (const void *)find_attribute(d, name)->value; }
int flag_of(const descriptor *d, int name) { return find_attribute(d, name)->value[0] != 0; }

descriptor *one_of(const descriptor *d, int name) {
  descriptor *value = NULL;
  if (find_attribute(d, name)) memcpy(&value, find_attribute(d, name)->value, sizeof value);
  return value;
}

/* ---- the library's functions: descriptors ------------------------------------------------------------------------ */

size_t cudnnGetVersion(void);
size_t cudnnGetVersion(void) { return (size_t)setting("MOONSHARD_EMULATE_CUDNN_VERSION", 91900); }

const char *cudnnGetErrorString(int status);
const char *cudnnGetErrorString(int status) {
  switch (status) {
    case MS_DNN_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case NOT_FINALIZED: return "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
    case MS_DNN_ALLOC_FAILED: return "CUDNN_STATUS_ALLOC_FAILED";
    case NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    default: return "CUDNN_STATUS_INTERNAL_ERROR";
  }
}

void cudnnGetLastErrorString(char *message, size_t bytes);
void cudnnGetLastErrorString(char *message, size_t bytes) { snprintf(message, bytes, "%s", last_error); }

int cudnnCreate(ms_dnn_handle *handle);
int cudnnCreate(ms_dnn_handle *handle) {
  FAIL_ON_DEMAND("cudnnCreate");
  *handle = calloc(1, sizeof(struct context));
  if (!*handle) return MS_DNN_ALLOC_FAILED;
  alive++;
  return MS_DNN_SUCCESS;
}

int cudnnDestroy(ms_dnn_handle handle);
int cudnnDestroy(ms_dnn_handle handle) {
  free(handle);
  alive--;
  return MS_DNN_SUCCESS;
}

int cudnnSetStream(ms_dnn_handle handle, cudaStream_t stream);
int cudnnSetStream(ms_dnn_handle handle, cudaStream_t stream) {
  FAIL_ON_DEMAND("cudnnSetStream");
  ((struct context *)handle)->stream = stream;
  return MS_DNN_SUCCESS;
}

int cudnnBackendCreateDescriptor(int type, ms_dnn_descriptor *out);
int cudnnBackendCreateDescriptor(int type, ms_dnn_descriptor *out) {
  FAIL_ON_DEMAND("cudnnBackendCreateDescriptor");
  int known = type == MS_DNN_ENGINE_CONFIG;
  for (int i = 0; i < RULES; i++) known |= rules[i].type == type;
  if (!known) return refuse(NOT_SUPPORTED, "descriptors of type %d", type);
  descriptor *made = calloc(1, sizeof *made);
  if (!made) return MS_DNN_ALLOC_FAILED;
  made->type = type;
  *out = made;
  alive++;
  return MS_DNN_SUCCESS;
}

int cudnnBackendDestroyDescriptor(ms_dnn_descriptor d);
int cudnnBackendDestroyDescriptor(ms_dnn_descriptor d) {
  free(d);
  alive--;
  return MS_DNN_SUCCESS;
}

int cudnnBackendSetAttribute(ms_dnn_descriptor given, int name, int kind, int64_t count, const void *values);
int cudnnBackendSetAttribute(ms_dnn_descriptor given, int name, int kind, int64_t count, const void *values) {
  FAIL_ON_DEMAND("cudnnBackendSetAttribute");
  descriptor *d = given;
  const struct rule *rule = rule_of(d->type, name);
  if (!rule) return refuse(BAD_PARAM, "descriptor %d has no attribute %d", d->type, name);
  if (rule->kind != kind) return refuse(BAD_PARAM, "attribute %d is of kind %d, not %d", name, rule->kind, kind);
  if (count < (rule->least ? rule->least : 1) || count > rule->most)
    return refuse(BAD_PARAM, "attribute %d with %lld values", name, (long long)count);
  if (d->finalized) return refuse(BAD_PARAM, "attribute %d is set after finalizing", name);
  if (find_attribute(d, name)) return refuse(BAD_PARAM, "attribute %d is set already", name);
  if (kind == MS_DNN_OF_DESCRIPTOR)
    for (int64_t i = 0; i < count; i++)
      if (!((descriptor *const *)values)[i]->finalized) return refuse(NOT_FINALIZED, "value of attribute %d", name);
  attribute *new = &d->attribute[d->attributes++];
  new->name = name;
  new->count = count;
  memcpy(new->value, values, (size_t)count * value_bytes(kind));
  return MS_DNN_SUCCESS;
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

static int check_tensor(const descriptor *t) {
  const int64_t *dims = longs_of(t, MS_DNN_TENSOR_DIMENSIONS), *strides = longs_of(t, MS_DNN_TENSOR_STRIDES);
  for (int i = 0; i < 4; i++)
    if (dims[i] < 1 || strides[i] < 1) return refuse(BAD_PARAM, "a tensor's axis %d is empty or has no stride", i);
  if (flag_of(t, MS_DNN_TENSOR_VIRTUAL) && flag_of(t, MS_DNN_TENSOR_BY_VALUE))
    return refuse(BAD_PARAM, "a tensor is virtual and a value");
  if (longs_of(t, MS_DNN_TENSOR_ALIGNMENT)[0] != ALIGNMENT) return refuse(NOT_SUPPORTED, "an alignment");
  return MS_DNN_SUCCESS;
}

static const int64_t *dims_of(const descriptor *d, int name) {
  return longs_of(one_of(d, name), MS_DNN_TENSOR_DIMENSIONS);
}

/* Whether x can be repeated to y: every axis has the same size or 1. */
static int repeats(const int64_t *x, const int64_t *y) {
  for (int i = 0; i < 4; i++)
    if (x[i] != y[i] && x[i] != 1) return 0;
  return 1;
}

static int check_pointwise(const descriptor *d) {
  const int mode = int_of(one_of(d, MS_DNN_OPERATION_POINTWISE_BY), MS_DNN_POINTWISE_MODE);
  const int64_t *y = dims_of(d, MS_DNN_OPERATION_POINTWISE_Y);
  const int unary = mode == MS_DNN_EXP || mode == MS_DNN_LOG || mode == MS_DNN_IDENTITY || mode == MS_DNN_INDEX;
  const int b = one_of(d, MS_DNN_OPERATION_POINTWISE_B) != NULL, t = one_of(d, MS_DNN_OPERATION_POINTWISE_T) != NULL;
  if (b == unary || t != (mode == MS_DNN_SELECT)) return refuse(BAD_PARAM, "operands of pointwise mode %d", mode);
  if (!repeats(dims_of(d, MS_DNN_OPERATION_POINTWISE_X), y) ||
      (b && !repeats(dims_of(d, MS_DNN_OPERATION_POINTWISE_B), y)) ||
      (t && !repeats(dims_of(d, MS_DNN_OPERATION_POINTWISE_T), y)))
    return refuse(BAD_PARAM, "shapes of pointwise mode %d", mode);
  return MS_DNN_SUCCESS;
}

static int check_matmul(const descriptor *d) {
  const int64_t *a = dims_of(d, MS_DNN_OPERATION_MATMUL_A), *b = dims_of(d, MS_DNN_OPERATION_MATMUL_B);
  const int64_t *c = dims_of(d, MS_DNN_OPERATION_MATMUL_C);
  if (a[0] == b[0] && a[0] == c[0] && a[1] == c[1] && c[1] % b[1] == 0 && a[2] == c[2] && a[3] == b[2] && b[3] == c[3])
    return MS_DNN_SUCCESS;
  return refuse(BAD_PARAM, "shapes of a product");
}

static int check_reduction(const descriptor *d) {
  const int64_t *x = dims_of(d, MS_DNN_OPERATION_REDUCTION_X), *y = dims_of(d, MS_DNN_OPERATION_REDUCTION_Y);
  for (int i = 0; i < 4; i++)
    if (x[i] % y[i] || (x[i] != y[i] && y[i] != 1 && i != 1)) return refuse(BAD_PARAM, "shapes of a reduction");
  return MS_DNN_SUCCESS;
}

static int check_reshape(const descriptor *d) {
  const int64_t *x = dims_of(d, MS_DNN_OPERATION_RESHAPE_X), *y = dims_of(d, MS_DNN_OPERATION_RESHAPE_Y);
  if (x[0] == y[0] && x[1] == y[1] && x[2] == y[3] && x[3] == y[2]) return MS_DNN_SUCCESS;
  return refuse(NOT_SUPPORTED, "a reshape that is no transposition");
}

static int check_pack(const descriptor *d) {
  if (find_attribute(d, MS_DNN_PACK_IDS)->count == find_attribute(d, MS_DNN_PACK_POINTERS)->count)
    return MS_DNN_SUCCESS;
  return refuse(BAD_PARAM, "as many pointers as ids");
}

int cudnnBackendFinalize(ms_dnn_descriptor given);
int cudnnBackendFinalize(ms_dnn_descriptor given) {
  FAIL_ON_DEMAND("cudnnBackendFinalize");
  descriptor *d = given;
  int status = MS_DNN_SUCCESS;
  for (int i = 0; i < RULES; i++)
    if (rules[i].type == d->type && rules[i].least && !find_attribute(d, rules[i].name))
      return refuse(BAD_PARAM, "descriptor %d lacks attribute %d", d->type, rules[i].name);
  if (d->type == MS_DNN_POINTWISE &&
      (int_of(d, MS_DNN_POINTWISE_MODE) == MS_DNN_INDEX) != !!find_attribute(d, MS_DNN_POINTWISE_AXIS))
    return refuse(BAD_PARAM, "an axis goes with an index");
  if (d->type == MS_DNN_TENSOR) status = check_tensor(d);
  if (d->type == MS_DNN_OPERATION_POINTWISE) status = check_pointwise(d);
  if (d->type == MS_DNN_OPERATION_MATMUL) status = check_matmul(d);
  if (d->type == MS_DNN_OPERATION_REDUCTION) status = check_reduction(d);
  if (d->type == MS_DNN_OPERATION_RESHAPE) status = check_reshape(d);
  if (d->type == MS_DNN_VARIANT_PACK) status = check_pack(d);
  d->finalized = !status;
  return status;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

descriptor *const *operations_of(const descriptor *graph, int *count) {
  const attribute *list = find_attribute(graph, MS_DNN_GRAPH_OPERATIONS);
  *count = (int)list->count;
  return (descriptor *const *)(const void *)list->value;
}

/* One letter per kind of operation. */
static char letter_of(const descriptor *operation) {
  const descriptor *by;
  switch (operation->type) {
    case MS_DNN_OPERATION_MATMUL: return 'M';
    case MS_DNN_OPERATION_RESHAPE: return 'T';
    case MS_DNN_OPERATION_REDUCTION:
      by = one_of(operation, MS_DNN_OPERATION_REDUCTION_BY);
      return int_of(by, MS_DNN_REDUCTION_OPERATOR) == MS_DNN_REDUCE_MAX ? 'x' : '+';
    default: break;
  }
  by = one_of(operation, MS_DNN_OPERATION_POINTWISE_BY);
  switch (int_of(by, MS_DNN_POINTWISE_MODE)) {
    case MS_DNN_ADD: return 'a';
    case MS_DNN_MUL: return '*';
    case MS_DNN_DIV: return '/';
    case MS_DNN_SUB: return '-';
    case MS_DNN_EXP: return 'e';
    case MS_DNN_LOG: return 'l';
    case MS_DNN_IDENTITY: return '=';
    case MS_DNN_GREATER_EQUAL: return '>';
    case MS_DNN_SELECT: return '?';
    case MS_DNN_INDEX: return (char)('0' + longs_of(by, MS_DNN_POINTWISE_AXIS)[0]);
    default: return '!';
  }
}

/* Forward and backward, causal (with as many queries as keys, or fewer) or not, with grouped queries or not. */
static int is_attention(const descriptor *graph) {
  static const char *const known[] = {"M*23>?x-e+la/M",           "M*23a->?x-e+la/M",           "M*x-e+la/M",
                                      "*+*M*-23>?eTMM-**TMTM=",   "*+*M*-23a->?eTMM-**TMTM=",   "*+*M*-eTMM-**TMTM=",
                                      "*+*M*-23>?eTM+M-**TM+TM=", "*+*M*-23a->?eTM+M-**TM+TM=", "*+*M*-eTM+M-**TM+TM="};
  int count;
  descriptor *const *operation = operations_of(graph, &count);
  char letters[VALUES + 1] = "";
  for (int i = 0; i < count; i++) letters[i] = letter_of(operation[i]);
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(letters, known[i])) return 1;
  return 0;
}

/* Like the real library, with grouped queries it needs room for the gradients of keys of all heads. */
int64_t workspace_of(const descriptor *graph, int choice) {
  int count;
  descriptor *const *operation = operations_of(graph, &count);
  int64_t bytes = WORKSPACE + (choice == 0 || setting("MOONSHARD_EMULATE_CUDNN_EVERY", 0)
                                   ? setting("MOONSHARD_EMULATE_CUDNN_WORKSPACE", 0)
                                   : 0);
  for (int i = 0; i < count; i++) {
    if (operation[i]->type != MS_DNN_OPERATION_REDUCTION) continue;
    const int64_t *x = dims_of(operation[i], MS_DNN_OPERATION_REDUCTION_X);
    if (x[1] != dims_of(operation[i], MS_DNN_OPERATION_REDUCTION_Y)[1]) bytes += x[0] * x[1] * x[2] * x[3] * 2;
  }
  return bytes;
}

int cudnnBackendGetAttribute(ms_dnn_descriptor given, int name, int kind, int64_t capacity, int64_t *count,
                             void *values);
int cudnnBackendGetAttribute(ms_dnn_descriptor given, int name, int kind, int64_t capacity, int64_t *count,
                             void *values) {
  FAIL_ON_DEMAND("cudnnBackendGetAttribute");
  const descriptor *d = given;
  if (!d->finalized) return refuse(NOT_FINALIZED, "attribute %d is asked for", name);
  if (d->type == MS_DNN_HEURISTIC && name == MS_DNN_HEURISTIC_RESULTS && kind == MS_DNN_OF_DESCRIPTOR) {
    descriptor *graph = one_of(d, MS_DNN_HEURISTIC_GRAPH), *const *configuration = values;
    *count = is_attention(graph) && !setting("MOONSHARD_EMULATE_CUDNN_NONE", 0) ? PLANS : 0;
    if (*count > capacity) *count = capacity;
    for (int i = 0; i < *count; i++) {
      if (configuration[i]->type != MS_DNN_ENGINE_CONFIG) return refuse(BAD_PARAM, "results are configurations");
      configuration[i]->graph = graph;
      configuration[i]->choice = i;
      configuration[i]->finalized = 1;
    }
    return MS_DNN_SUCCESS;
  }
  if (d->type == MS_DNN_PLAN && name == MS_DNN_PLAN_WORKSPACE && kind == MS_DNN_OF_INT64 && capacity == 1) {
    const descriptor *configuration = one_of(d, MS_DNN_PLAN_ENGINE_CONFIG);
    *(int64_t *)values = workspace_of(configuration->graph, configuration->choice);
    *count = 1;
    return MS_DNN_SUCCESS;
  }
  return refuse(BAD_PARAM, "descriptor %d is asked for attribute %d", d->type, name);
}
