/* cudnn_graph.c - builds attention as a graph of cuDNN operations (see cudnn_graph.h), and finds a plan for it. */
#include "kernels/cuda/attention/cudnn_graph.h"

#include <string.h>

#include "base/error.h"

typedef ms_dnn_descriptor descriptor;
typedef struct shape {
  int64_t dims[4], strides[4];
} shape;

enum { ALIGNMENT = 16, CONFIGURATIONS = 8 };

/* ---- descriptors: after a failure, calls do nothing and return NULL ---- */

static descriptor make(ms_dnn_graph *g, int type) {
  descriptor made = NULL;
  if (!g->rc && g->made_count == MS_DNN_DESCRIPTORS) g->rc = MS_FAIL(MS_EINTERNAL, "too many descriptors");
  if (!g->rc) g->rc = MS_CUDNN(g->dnn, descriptor_create, type, &made);
  if (g->rc) return NULL;
  return g->made[g->made_count++] = made;
}

static void set(ms_dnn_graph *g, descriptor d, int attribute, int kind, int64_t count, const void *values) {
  if (!g->rc) g->rc = MS_CUDNN(g->dnn, descriptor_set, d, attribute, kind, count, values);
}

static void set_descriptor(ms_dnn_graph *g, descriptor d, int attribute, descriptor value) {
  set(g, d, attribute, MS_DNN_OF_DESCRIPTOR, 1, &value);
}

static void finish(ms_dnn_graph *g, descriptor d) {
  if (!g->rc) g->rc = MS_CUDNN(g->dnn, descriptor_finalize, d);
}

static void add_operation(ms_dnn_graph *g, descriptor operation) {
  finish(g, operation);
  if (!g->rc && g->operations == MS_DNN_OPERATIONS) g->rc = MS_FAIL(MS_EINTERNAL, "too many operations");
  if (!g->rc) g->operation[g->operations++] = operation;
}

/* ---- tensors: those with id 0 are intermediate and never stored ---- */

static descriptor tensor(ms_dnn_graph *g, int64_t id, int dtype, const shape *shape, int by_value) {
  const descriptor t = make(g, MS_DNN_TENSOR);
  const char between = id == 0, value = (char)by_value;
  const int64_t own = id ? id : g->next_id++, alignment = ALIGNMENT;
  set(g, t, MS_DNN_TENSOR_DATA_TYPE, MS_DNN_OF_DATA_TYPE, 1, &dtype);
  set(g, t, MS_DNN_TENSOR_DIMENSIONS, MS_DNN_OF_INT64, 4, shape->dims);
  set(g, t, MS_DNN_TENSOR_STRIDES, MS_DNN_OF_INT64, 4, shape->strides);
  set(g, t, MS_DNN_TENSOR_ID, MS_DNN_OF_INT64, 1, &own);
  set(g, t, MS_DNN_TENSOR_ALIGNMENT, MS_DNN_OF_INT64, 1, &alignment);
  set(g, t, MS_DNN_TENSOR_VIRTUAL, MS_DNN_OF_BOOLEAN, 1, &between);
  set(g, t, MS_DNN_TENSOR_BY_VALUE, MS_DNN_OF_BOOLEAN, 1, &value);
  finish(g, t);
  return t;
}

/* Row-major [batch][heads][rows][columns]. */
static shape packed(int64_t batch, int64_t heads, int64_t rows, int64_t columns) {
  return (shape){{batch, heads, rows, columns}, {heads * rows * columns, rows * columns, columns, 1}};
}

/* The same elements with the last two axes swapped. */
static shape turned(shape s) {
  return (shape){{s.dims[0], s.dims[1], s.dims[3], s.dims[2]},
                 {s.strides[0], s.strides[1], s.strides[3], s.strides[2]}};
}

/* A tensor [batch][rows][heads][d] viewed as [batch][heads][rows][d]. */
static shape heads_of(const ms_dnn_attention *a, int64_t rows, int64_t heads) {
  return (shape){{a->batch, heads, rows, a->d}, {rows * heads * a->d, a->d, heads * a->d, 1}};
}

static descriptor queries(ms_dnn_graph *g, const ms_dnn_attention *a, int64_t id) {
  const shape s = heads_of(a, a->t, a->heads);
  return tensor(g, id, MS_DNN_BF16, &s, 0);
}

static descriptor keys(ms_dnn_graph *g, const ms_dnn_attention *a, int64_t id) {
  const shape s = heads_of(a, a->s, a->groups);
  return tensor(g, id, MS_DNN_BF16, &s, 0);
}

static descriptor turned_keys(ms_dnn_graph *g, const ms_dnn_attention *a, int64_t id) {
  const shape s = turned(heads_of(a, a->s, a->groups));
  return tensor(g, id, MS_DNN_BF16, &s, 0);
}

/* Scores have one number per query and key, rows one per query; a number is passed by value. */
static descriptor scores(ms_dnn_graph *g, const ms_dnn_attention *a, int dtype) {
  const shape s = packed(a->batch, a->heads, a->t, a->s);
  return tensor(g, 0, dtype, &s, 0);
}

static descriptor turned_scores(ms_dnn_graph *g, const ms_dnn_attention *a) {
  const shape s = turned(packed(a->batch, a->heads, a->t, a->s));
  return tensor(g, 0, MS_DNN_BF16, &s, 0);
}

static descriptor rows(ms_dnn_graph *g, const ms_dnn_attention *a, int64_t id) {
  const shape s = packed(a->batch, a->heads, a->t, 1);
  return tensor(g, id, MS_DNN_F32, &s, 0);
}

static descriptor number_of(ms_dnn_graph *g, int64_t id, int dtype) {
  const shape s = packed(1, 1, 1, 1);
  return tensor(g, id, dtype, &s, 1);
}

static descriptor number(ms_dnn_graph *g, int64_t id) { return number_of(g, id, MS_DNN_F32); }

/* ---- operations ---- */

/* y = mode(x, b); MS_DNN_SELECT: t ? x : b. axis is used by MS_DNN_INDEX only. */
static descriptor pointwise(ms_dnn_graph *g, int mode, int precision, int64_t axis, descriptor x, descriptor b,
                            descriptor t, descriptor y) {
  const descriptor how = make(g, MS_DNN_POINTWISE);
  set(g, how, MS_DNN_POINTWISE_MODE, MS_DNN_OF_POINTWISE_MODE, 1, &mode);
  set(g, how, MS_DNN_POINTWISE_PRECISION, MS_DNN_OF_DATA_TYPE, 1, &precision);
  if (mode == MS_DNN_INDEX) set(g, how, MS_DNN_POINTWISE_AXIS, MS_DNN_OF_INT64, 1, &axis);
  finish(g, how);
  const descriptor operation = make(g, MS_DNN_OPERATION_POINTWISE);
  set_descriptor(g, operation, MS_DNN_OPERATION_POINTWISE_BY, how);
  set_descriptor(g, operation, MS_DNN_OPERATION_POINTWISE_X, x);
  if (b) set_descriptor(g, operation, MS_DNN_OPERATION_POINTWISE_B, b);
  if (t) set_descriptor(g, operation, MS_DNN_OPERATION_POINTWISE_T, t);
  set_descriptor(g, operation, MS_DNN_OPERATION_POINTWISE_Y, y);
  add_operation(g, operation);
  return y;
}

static descriptor unary(ms_dnn_graph *g, int mode, descriptor x, descriptor y) {
  return pointwise(g, mode, MS_DNN_F32, 0, x, NULL, NULL, y);
}

static descriptor binary(ms_dnn_graph *g, int mode, descriptor x, descriptor b, descriptor y) {
  return pointwise(g, mode, MS_DNN_F32, 0, x, b, NULL, y);
}

/* c = a b for each head; each head of b serves heads / groups consecutive heads of a. */
static descriptor multiply(ms_dnn_graph *g, descriptor a, descriptor b, descriptor c) {
  const int precision = MS_DNN_F32;
  const descriptor how = make(g, MS_DNN_MATMUL);
  set(g, how, MS_DNN_MATMUL_PRECISION, MS_DNN_OF_DATA_TYPE, 1, &precision);
  finish(g, how);
  const descriptor operation = make(g, MS_DNN_OPERATION_MATMUL);
  set_descriptor(g, operation, MS_DNN_OPERATION_MATMUL_BY, how);
  set_descriptor(g, operation, MS_DNN_OPERATION_MATMUL_A, a);
  set_descriptor(g, operation, MS_DNN_OPERATION_MATMUL_B, b);
  set_descriptor(g, operation, MS_DNN_OPERATION_MATMUL_C, c);
  add_operation(g, operation);
  return c;
}

/* Reduces x over the axes on which y has size 1 (or fewer heads). */
static descriptor reduce(ms_dnn_graph *g, int by, descriptor x, descriptor y) {
  const int precision = MS_DNN_F32;
  const descriptor how = make(g, MS_DNN_REDUCTION);
  set(g, how, MS_DNN_REDUCTION_OPERATOR, MS_DNN_OF_REDUCTION, 1, &by);
  set(g, how, MS_DNN_REDUCTION_PRECISION, MS_DNN_OF_DATA_TYPE, 1, &precision);
  finish(g, how);
  const descriptor operation = make(g, MS_DNN_OPERATION_REDUCTION);
  set_descriptor(g, operation, MS_DNN_OPERATION_REDUCTION_BY, how);
  set_descriptor(g, operation, MS_DNN_OPERATION_REDUCTION_X, x);
  set_descriptor(g, operation, MS_DNN_OPERATION_REDUCTION_Y, y);
  add_operation(g, operation);
  return y;
}

/* Swaps the last two axes of x. */
static descriptor turn(ms_dnn_graph *g, descriptor x, descriptor y) {
  const descriptor operation = make(g, MS_DNN_OPERATION_RESHAPE);
  set_descriptor(g, operation, MS_DNN_OPERATION_RESHAPE_X, x);
  set_descriptor(g, operation, MS_DNN_OPERATION_RESHAPE_Y, y);
  add_operation(g, operation);
  return y;
}

/* ---- attention ---- */

/* Query positions, i32, plus s - t: the last query is aligned with the last key. */
static descriptor moved(ms_dnn_graph *g, const ms_dnn_attention *a, descriptor query) {
  if (a->t == a->s) return query;
  const descriptor offset = pointwise(g, MS_DNN_ADD, MS_DNN_I32, 0, query, number_of(g, MS_DNN_KEYS, MS_DNN_I32), NULL,
                                      scores(g, a, MS_DNN_I32));
  return pointwise(g, MS_DNN_SUB, MS_DNN_I32, 0, offset, number_of(g, MS_DNN_QUERIES, MS_DNN_I32), NULL,
                   scores(g, a, MS_DNN_I32));
}

/* The score where the query's position is at least the key's, otherwise `hidden`. */
static descriptor masked(ms_dnn_graph *g, const ms_dnn_attention *a, descriptor x) {
  if (!a->causal) return x;
  const descriptor hidden = number(g, MS_DNN_HIDDEN);
  const descriptor query = pointwise(g, MS_DNN_INDEX, MS_DNN_I32, 2, x, NULL, NULL, scores(g, a, MS_DNN_I32));
  const descriptor key = pointwise(g, MS_DNN_INDEX, MS_DNN_I32, 3, x, NULL, NULL, scores(g, a, MS_DNN_I32));
  const descriptor visible = pointwise(g, MS_DNN_GREATER_EQUAL, MS_DNN_BOOLEAN, 0, moved(g, a, query), key, NULL,
                                       scores(g, a, MS_DNN_BOOLEAN));
  return pointwise(g, MS_DNN_SELECT, MS_DNN_F32, 0, x, hidden, visible, scores(g, a, MS_DNN_F32));
}

static void build_forward(ms_dnn_graph *g, const ms_dnn_attention *a) {
  const descriptor product =
      multiply(g, queries(g, a, MS_DNN_Q), turned_keys(g, a, MS_DNN_K), scores(g, a, MS_DNN_F32));
  const descriptor scaled = binary(g, MS_DNN_MUL, product, number(g, MS_DNN_SCALE), scores(g, a, MS_DNN_F32));
  const descriptor score = masked(g, a, scaled);
  const descriptor largest = reduce(g, MS_DNN_REDUCE_MAX, score, rows(g, a, 0));
  const descriptor offset = binary(g, MS_DNN_SUB, score, largest, scores(g, a, MS_DNN_F32));
  const descriptor power = unary(g, MS_DNN_EXP, offset, scores(g, a, MS_DNN_F32));
  const descriptor sum = reduce(g, MS_DNN_REDUCE_ADD, power, rows(g, a, 0));
  const descriptor logarithm = unary(g, MS_DNN_LOG, sum, rows(g, a, 0));
  binary(g, MS_DNN_ADD, largest, logarithm, rows(g, a, MS_DNN_LSE));
  const descriptor p = binary(g, MS_DNN_DIV, power, sum, scores(g, a, MS_DNN_BF16));
  multiply(g, p, keys(g, a, MS_DNN_V), queries(g, a, MS_DNN_O));
}

/* Adds the product of transposed scores [s][t] and queries [t][d], a gradient of keys [s][d], summed over the heads of
 * a group. */
static void add_key_gradient(ms_dnn_graph *g, const ms_dnn_attention *a, descriptor left, descriptor right,
                             int64_t id) {
  const shape whole = packed(a->batch, a->heads, a->s, a->d);
  if (a->heads == a->groups) multiply(g, left, right, keys(g, a, id));
  else reduce(g, MS_DNN_REDUCE_ADD, multiply(g, left, right, tensor(g, 0, MS_DNN_BF16, &whole, 0)), keys(g, a, id));
}

static void build_backward(ms_dnn_graph *g, const ms_dnn_attention *a) {
  const shape outputs = packed(a->batch, a->heads, a->t, a->d), plain_keys = packed(a->batch, a->groups, a->s, a->d);
  const descriptor q = queries(g, a, MS_DNN_Q), k = turned_keys(g, a, MS_DNN_K), d_o = queries(g, a, MS_DNN_DO);
  const descriptor scale = number(g, MS_DNN_SCALE), lse = rows(g, a, MS_DNN_LSE);

  const descriptor products =
      binary(g, MS_DNN_MUL, d_o, queries(g, a, MS_DNN_O), tensor(g, 0, MS_DNN_F32, &outputs, 0));
  const descriptor summed = reduce(g, MS_DNN_REDUCE_ADD, products, rows(g, a, 0));
  const descriptor delta = binary(g, MS_DNN_MUL, summed, number(g, MS_DNN_ONE), rows(g, a, MS_DNN_DELTA));

  const descriptor product = multiply(g, q, k, scores(g, a, MS_DNN_F32));
  const descriptor scaled = binary(g, MS_DNN_MUL, product, scale, scores(g, a, MS_DNN_F32));
  const descriptor offset = binary(g, MS_DNN_SUB, scaled, lse, scores(g, a, MS_DNN_F32));
  const descriptor p = unary(g, MS_DNN_EXP, masked(g, a, offset), scores(g, a, MS_DNN_F32));
  add_key_gradient(g, a, turn(g, p, turned_scores(g, a)), d_o, MS_DNN_DV);

  const descriptor dp = multiply(g, d_o, turned_keys(g, a, MS_DNN_V), scores(g, a, MS_DNN_F32));
  const descriptor centred = binary(g, MS_DNN_SUB, dp, delta, scores(g, a, MS_DNN_F32));
  const descriptor weighted = binary(g, MS_DNN_MUL, centred, p, scores(g, a, MS_DNN_F32));
  const descriptor ds = binary(g, MS_DNN_MUL, weighted, scale, scores(g, a, MS_DNN_BF16));
  add_key_gradient(g, a, turn(g, ds, turned_scores(g, a)), q, MS_DNN_DK);

  const descriptor straight = turn(g, k, tensor(g, 0, MS_DNN_BF16, &plain_keys, 0));
  const descriptor sums = multiply(g, ds, straight, tensor(g, MS_DNN_SUMS, MS_DNN_F32, &outputs, 0));
  unary(g, MS_DNN_IDENTITY, sums, queries(g, a, MS_DNN_DQ));
}

/* ---- plans ---- */

static descriptor graph_of(ms_dnn_graph *g, ms_dnn_handle handle) {
  const descriptor graph = make(g, MS_DNN_GRAPH);
  set(g, graph, MS_DNN_GRAPH_HANDLE, MS_DNN_OF_HANDLE, 1, &handle);
  set(g, graph, MS_DNN_GRAPH_OPERATIONS, MS_DNN_OF_DESCRIPTOR, g->operations, g->operation);
  finish(g, graph);
  return graph;
}

/* The library's configurations for the graph, best first. Without a kernel for it, the library fails or returns
 * none. */
static int64_t configurations_of(ms_dnn_graph *g, descriptor graph, descriptor configuration[CONFIGURATIONS]) {
  const int mode = MS_DNN_HEURISTIC_A;
  const descriptor heuristic = make(g, MS_DNN_HEURISTIC);
  int64_t count = 0;
  for (int i = 0; i < CONFIGURATIONS; i++) configuration[i] = make(g, MS_DNN_ENGINE_CONFIG);
  set(g, heuristic, MS_DNN_HEURISTIC_GRAPH, MS_DNN_OF_DESCRIPTOR, 1, &graph);
  set(g, heuristic, MS_DNN_HEURISTIC_MODE, MS_DNN_OF_HEUR_MODE, 1, &mode);
  if (g->rc || g->dnn->descriptor_finalize(heuristic)) return 0;
  g->rc = MS_CUDNN(g->dnn, descriptor_get, heuristic, MS_DNN_HEURISTIC_RESULTS, MS_DNN_OF_DESCRIPTOR, CONFIGURATIONS,
                   &count, configuration);
  return g->rc ? 0 : count;
}

/* Uses the plan of a configuration if there is one and it fits in the workspace. */
static void try_plan(ms_dnn_graph *g, ms_dnn_handle handle, descriptor configuration, int64_t max_workspace) {
  const descriptor plan = make(g, MS_DNN_PLAN);
  int64_t count = 0, bytes = 0;
  set(g, plan, MS_DNN_PLAN_HANDLE, MS_DNN_OF_HANDLE, 1, &handle);
  set_descriptor(g, plan, MS_DNN_PLAN_ENGINE_CONFIG, configuration);
  if (g->rc || g->dnn->descriptor_finalize(plan)) return;
  g->rc = MS_CUDNN(g->dnn, descriptor_get, plan, MS_DNN_PLAN_WORKSPACE, MS_DNN_OF_INT64, 1, &count, &bytes);
  if (g->rc) return;
  if (!g->preferred_bytes) g->preferred_bytes = bytes;
  if (bytes > max_workspace) return;
  g->plan = plan;
  g->workspace_bytes = bytes;
}

int ms_dnn_build(const ms_cudnn *dnn, const ms_dnn_attention *attention, ms_dnn_graph *graph) {
  memset(graph, 0, sizeof *graph);
  graph->dnn = dnn;
  graph->next_id = MS_DNN_IDS;
  (attention->backward ? build_backward : build_forward)(graph, attention);
  return graph->rc;
}

int ms_dnn_open(const ms_cudnn *dnn, ms_dnn_handle handle, const ms_dnn_attention *attention, int64_t max_workspace,
                ms_dnn_graph *graph, int *found) {
  descriptor configuration[CONFIGURATIONS];
  (void)ms_dnn_build(dnn, attention, graph); /* graph->rc keeps a failure */
  const int64_t count = configurations_of(graph, graph_of(graph, handle), configuration);
  for (int64_t i = 0; i < count && !graph->plan && !graph->rc; i++)
    try_plan(graph, handle, configuration[i], max_workspace);
  const int rc = graph->rc;
  *found = !rc && graph->plan;
  if (!*found) ms_dnn_close(graph);
  return rc;
}

void ms_dnn_close(ms_dnn_graph *graph) {
  while (graph->made_count) (void)graph->dnn->descriptor_destroy(graph->made[--graph->made_count]);
  graph->plan = NULL;
}
