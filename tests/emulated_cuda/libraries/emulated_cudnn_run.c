/* emulated_cudnn_run.c - computes attention graphs on the emulated device, operation by operation, in f32 and plain
 * loops, run by the emulated streams. It uses the pointers that the pack contained at execution. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers/bf16.h"
#include "emulated_cudnn.h"
#include "emulated_log.h"
#include "emulated_runtime.h"

enum { TENSORS = 64, WORKSPACE_ALIGNMENT = 256 };

/* ---- computing --------------------------------------------------------------------------------------------------- */

/* A tensor of a graph: all elements in f32, row-major, rounded to its dtype. */
typedef struct value {
  const descriptor *tensor;
  void *data; /* NULL: virtual, not in device memory */
  float number;
  float *element;
} value;

typedef struct task {
  const descriptor *graph;
  value value[TENSORS];
  int values;
  char *workspace;
  int64_t workspace_bytes;
} task;

static int64_t elements_of(const int64_t *dims) { return dims[0] * dims[1] * dims[2] * dims[3]; }

/* The offset of element i of a result with `dims` in an operand with sizes `own`; axes of size 1 are repeated. */
static int64_t at(const int64_t *dims, const int64_t *own, const int64_t *strides, int64_t i) {
  int64_t place = 0;
  for (int axis = 3; axis >= 0; axis--) {
    if (own[axis] != 1) place += i % dims[axis] * strides[axis];
    i /= dims[axis];
  }
  return place;
}

static void row_major(const int64_t *dims, int64_t *strides) {
  strides[3] = 1;
  for (int axis = 2; axis >= 0; axis--) strides[axis] = strides[axis + 1] * dims[axis + 1];
}

static float rounded(float x, int dtype) { return dtype == MS_DNN_BF16 ? ms_bf16_to_f32(ms_f32_to_bf16(x)) : x; }

static value *value_of(task *t, const descriptor *tensor) {
  const int64_t id = longs_of(tensor, MS_DNN_TENSOR_ID)[0];
  for (int i = 0; i < t->values; i++)
    if (longs_of(t->value[i].tensor, MS_DNN_TENSOR_ID)[0] == id) return &t->value[i];
  return NULL;
}

/* The operand's elements, read from the device if no operation of the graph computed them. */
static const float *read_value(task *t, const descriptor *tensor) {
  value *v = value_of(t, tensor);
  const int64_t *dims = longs_of(v->tensor, MS_DNN_TENSOR_DIMENSIONS), n = elements_of(dims);
  if (v->element) return v->element;
  v->element = malloc((size_t)n * sizeof(float));
  for (int64_t i = 0; i < n; i++) {
    const int64_t place = at(dims, dims, longs_of(v->tensor, MS_DNN_TENSOR_STRIDES), i);
    if (flag_of(v->tensor, MS_DNN_TENSOR_BY_VALUE)) v->element[i] = v->number;
    else if (int_of(v->tensor, MS_DNN_TENSOR_DATA_TYPE) == MS_DNN_BF16)
      v->element[i] = ms_bf16_to_f32(((const ms_bf16 *)v->data)[place]);
    else v->element[i] = ((const float *)v->data)[place];
  }
  return v->element;
}

static float *new_value(task *t, const descriptor *tensor) {
  value *v = value_of(t, tensor);
  free(v->element);
  return v->element = calloc((size_t)elements_of(longs_of(tensor, MS_DNN_TENSOR_DIMENSIONS)), sizeof(float));
}

/* Rounds a computed tensor to its dtype, and writes it to the device unless it is virtual. */
static void write_value(task *t, const descriptor *tensor) {
  value *v = value_of(t, tensor);
  const int64_t *dims = longs_of(tensor, MS_DNN_TENSOR_DIMENSIONS), n = elements_of(dims);
  const int dtype = int_of(tensor, MS_DNN_TENSOR_DATA_TYPE);
  for (int64_t i = 0; i < n; i++) {
    const int64_t place = at(dims, dims, longs_of(tensor, MS_DNN_TENSOR_STRIDES), i);
    v->element[i] = rounded(v->element[i], dtype);
    if (v->data && dtype == MS_DNN_BF16) ((ms_bf16 *)v->data)[place] = ms_f32_to_bf16(v->element[i]);
    else if (v->data) ((float *)v->data)[place] = v->element[i];
  }
}

static float apply(int mode, float x, float b, float t) {
  switch (mode) {
    case MS_DNN_ADD: return x + b;
    case MS_DNN_MUL: return x * b;
    case MS_DNN_DIV: return x / b;
    case MS_DNN_SUB: return x - b;
    case MS_DNN_EXP: return expf(x);
    case MS_DNN_LOG: return logf(x);
    case MS_DNN_GREATER_EQUAL: return x >= b;
    case MS_DNN_SELECT: return t != 0 ? x : b;
    default: return x;
  }
}

/* The operand's value for element i of a result with these dims. */
static float operand(task *t, const descriptor *tensor, const int64_t *dims, int64_t i) {
  int64_t strides[4];
  if (!tensor) return 0;
  const int64_t *own = longs_of(tensor, MS_DNN_TENSOR_DIMENSIONS);
  row_major(own, strides);
  return read_value(t, tensor)[at(dims, own, strides, i)];
}

static void run_pointwise(task *t, const descriptor *d) {
  const descriptor *by = one_of(d, MS_DNN_OPERATION_POINTWISE_BY), *x = one_of(d, MS_DNN_OPERATION_POINTWISE_X);
  const descriptor *b = one_of(d, MS_DNN_OPERATION_POINTWISE_B), *select = one_of(d, MS_DNN_OPERATION_POINTWISE_T);
  const descriptor *y = one_of(d, MS_DNN_OPERATION_POINTWISE_Y);
  const int mode = int_of(by, MS_DNN_POINTWISE_MODE);
  const int64_t *dims = longs_of(y, MS_DNN_TENSOR_DIMENSIONS);
  int64_t strides[4];
  row_major(dims, strides);
  float *to = new_value(t, y);
  for (int64_t i = 0; i < elements_of(dims); i++) {
    if (mode == MS_DNN_INDEX) {
      const int64_t axis = longs_of(by, MS_DNN_POINTWISE_AXIS)[0];
      to[i] = (float)(i / strides[axis] % dims[axis]);
    } else to[i] = apply(mode, operand(t, x, dims, i), operand(t, b, dims, i), operand(t, select, dims, i));
  }
  write_value(t, y);
}

static void run_matmul(task *t, const descriptor *d) {
  const descriptor *a = one_of(d, MS_DNN_OPERATION_MATMUL_A), *b = one_of(d, MS_DNN_OPERATION_MATMUL_B);
  const descriptor *c = one_of(d, MS_DNN_OPERATION_MATMUL_C);
  const int64_t *m = longs_of(c, MS_DNN_TENSOR_DIMENSIONS), k = longs_of(a, MS_DNN_TENSOR_DIMENSIONS)[3];
  const int64_t heads = longs_of(b, MS_DNN_TENSOR_DIMENSIONS)[1];
  const float *left = read_value(t, a), *right = read_value(t, b);
  float *to = new_value(t, c);
  for (int64_t n = 0; n < m[0] * m[1]; n++) {
    const int64_t other = n / m[1] * heads + n % m[1] / (m[1] / heads);
    for (int64_t row = 0; row < m[2]; row++)
      for (int64_t i = 0; i < k; i++)
        for (int64_t column = 0; column < m[3]; column++)
          to[(n * m[2] + row) * m[3] + column] +=
              left[(n * m[2] + row) * k + i] * right[(other * k + i) * m[3] + column];
  }
  write_value(t, c);
}

static void run_reduction(task *t, const descriptor *d) {
  const descriptor *x = one_of(d, MS_DNN_OPERATION_REDUCTION_X), *y = one_of(d, MS_DNN_OPERATION_REDUCTION_Y);
  const int64_t *from = longs_of(x, MS_DNN_TENSOR_DIMENSIONS), *dims = longs_of(y, MS_DNN_TENSOR_DIMENSIONS);
  const int largest = int_of(one_of(d, MS_DNN_OPERATION_REDUCTION_BY), MS_DNN_REDUCTION_OPERATOR) == MS_DNN_REDUCE_MAX;
  const float *element = read_value(t, x);
  float *to = new_value(t, y);
  if (largest)
    for (int64_t i = 0; i < elements_of(dims); i++) to[i] = -INFINITY;
  for (int64_t i = 0; i < elements_of(from); i++) {
    int64_t place = 0, rest = i, stride = 1;
    for (int axis = 3; axis >= 0; axis--) {
      place += rest % from[axis] / (from[axis] / dims[axis]) * stride;
      stride *= dims[axis];
      rest /= from[axis];
    }
    to[place] = largest ? fmaxf(to[place], element[i]) : to[place] + element[i];
  }
  write_value(t, y);
}

static void run_reshape(task *t, const descriptor *d) {
  const descriptor *x = one_of(d, MS_DNN_OPERATION_RESHAPE_X), *y = one_of(d, MS_DNN_OPERATION_RESHAPE_Y);
  const int64_t *m = longs_of(y, MS_DNN_TENSOR_DIMENSIONS);
  const float *from = read_value(t, x);
  float *to = new_value(t, y);
  for (int64_t i = 0; i < elements_of(m); i++) {
    const int64_t column = i % m[3], row = i / m[3] % m[2], head = i / m[3] / m[2];
    to[i] = from[(head * m[3] + column) * m[2] + row];
  }
  write_value(t, y);
}

static void compute(void *given) {
  task *t = given;
  int count;
  descriptor *const *operation = operations_of(t->graph, &count);
  memset(t->workspace, 0xff, (size_t)t->workspace_bytes);
  for (int i = 0; i < count; i++) {
    if (operation[i]->type == MS_DNN_OPERATION_POINTWISE) run_pointwise(t, operation[i]);
    if (operation[i]->type == MS_DNN_OPERATION_MATMUL) run_matmul(t, operation[i]);
    if (operation[i]->type == MS_DNN_OPERATION_REDUCTION) run_reduction(t, operation[i]);
    if (operation[i]->type == MS_DNN_OPERATION_RESHAPE) run_reshape(t, operation[i]);
  }
}

static void release(void *given) {
  task *t = given;
  for (int i = 0; i < t->values; i++) free(t->value[i].element);
  free(t);
}

/* ---- executing --------------------------------------------------------------------------------------------------- */

static int64_t bytes_of(const descriptor *tensor) {
  const int64_t *dims = longs_of(tensor, MS_DNN_TENSOR_DIMENSIONS), *strides = longs_of(tensor, MS_DNN_TENSOR_STRIDES);
  int64_t last = 0;
  for (int axis = 0; axis < 4; axis++) last += (dims[axis] - 1) * strides[axis];
  return (last + 1) * (int_of(tensor, MS_DNN_TENSOR_DATA_TYPE) == MS_DNN_BF16 ? 2 : 4);
}

/* Adds a tensor to the task, with its pointer from the pack. */
static int add_value(task *t, const descriptor *tensor, const descriptor *pack) {
  const int64_t id = longs_of(tensor, MS_DNN_TENSOR_ID)[0], *ids = longs_of(pack, MS_DNN_PACK_IDS);
  const attribute *pointers = find_attribute(pack, MS_DNN_PACK_POINTERS);
  void *pointer = NULL;
  if (value_of(t, tensor)) return MS_DNN_SUCCESS;
  if (t->values == TENSORS) return refuse(NOT_SUPPORTED, "so many tensors");
  for (int64_t i = 0; i < pointers->count; i++)
    if (ids[i] == id) memcpy(&pointer, pointers->value + i * 8, sizeof pointer);
  value *new = &t->value[t->values++];
  *new = (value){.tensor = tensor};
  if (flag_of(tensor, MS_DNN_TENSOR_VIRTUAL))
    return pointer ? refuse(BAD_PARAM, "tensor %lld is virtual", (long long)id) : 0;
  if (!pointer) return refuse(BAD_PARAM, "the pack lacks tensor %lld", (long long)id);
  if (flag_of(tensor, MS_DNN_TENSOR_BY_VALUE)) {
    const int whole = int_of(tensor, MS_DNN_TENSOR_DATA_TYPE) == MS_DNN_I32;
    new->number = whole ? (float)*(const int32_t *)pointer : *(const float *)pointer;
    return MS_DNN_SUCCESS;
  }
  new->data = pointer;
  if ((uintptr_t)pointer % ALIGNMENT || !emulated_is_device(pointer, (size_t)bytes_of(tensor)))
    return refuse(BAD_PARAM, "tensor %lld is not on the device, or not aligned", (long long)id);
  return MS_DNN_SUCCESS;
}

static int add_values(task *t, const descriptor *pack) {
  static const int tensors[] = {
      MS_DNN_OPERATION_POINTWISE_X, MS_DNN_OPERATION_POINTWISE_B, MS_DNN_OPERATION_POINTWISE_T,
      MS_DNN_OPERATION_POINTWISE_Y, MS_DNN_OPERATION_MATMUL_A,    MS_DNN_OPERATION_MATMUL_B,
      MS_DNN_OPERATION_MATMUL_C,    MS_DNN_OPERATION_REDUCTION_X, MS_DNN_OPERATION_REDUCTION_Y,
      MS_DNN_OPERATION_RESHAPE_X,   MS_DNN_OPERATION_RESHAPE_Y};
  int count, status = MS_DNN_SUCCESS;
  descriptor *const *operation = operations_of(t->graph, &count);
  for (int i = 0; i < count; i++)
    for (size_t name = 0; name < sizeof tensors / sizeof *tensors && !status; name++)
      if (find_attribute(operation[i], tensors[name])) status = add_value(t, one_of(operation[i], tensors[name]), pack);
  return status;
}

int cudnnBackendExecute(ms_dnn_handle handle, ms_dnn_descriptor given, ms_dnn_descriptor pack);
int cudnnBackendExecute(ms_dnn_handle handle, ms_dnn_descriptor given, ms_dnn_descriptor pack) {
  if (emulated_fails("cudnnBackendExecute")) return refuse(INTERNAL_ERROR, "on demand");
  const descriptor *plan = given, *configuration = one_of(plan, MS_DNN_PLAN_ENGINE_CONFIG);
  if (!plan->finalized || !((descriptor *)pack)->finalized) return refuse(NOT_FINALIZED, "what is executed");
  task *t = calloc(1, sizeof *t);
  if (!t) return MS_DNN_ALLOC_FAILED;
  t->graph = configuration->graph;
  t->workspace_bytes = workspace_of(configuration->graph, configuration->choice);
  t->workspace = (char *)one_of(pack, MS_DNN_PACK_WORKSPACE);
  int status = add_values(t, pack);
  if (!status && !emulated_is_device(t->workspace, (size_t)t->workspace_bytes))
    status = refuse(BAD_PARAM, "the workspace is not on the device, or too small");
  if (!status && (uintptr_t)t->workspace % WORKSPACE_ALIGNMENT)
    status = refuse(BAD_PARAM, "the workspace is not aligned to 256 bytes");
  if (!status) emulated_log_work(((struct context *)handle)->stream, "cudnnBackendExecute", 0, NULL);
  if (!status && emulated_submit(((struct context *)handle)->stream, compute, t, release) == cudaSuccess)
    return MS_DNN_SUCCESS;
  if (status) release(t);
  return status ? status : INTERNAL_ERROR;
}
