/* graph_interpreter.h - runs a graph's nodes in order by the CPU kernels, every value in a buffer of its own. What a
 * plan does with arenas, streams and events, done in the plainest way.
 */
#ifndef MS_TESTS_GRAPH_INTERPRETER_H
#define MS_TESTS_GRAPH_INTERPRETER_H

#include "base/numbers/bf16.h"
#include "base/numbers/dtype.h"
#include "base/numbers/philox.h"

#include <math.h>
#include <stdlib.h>

#include "tests/c/graph/graph_fixture.h"

typedef struct interpreter {
  const ms_graph *graph;
  void **data;          /* [values] */
  ms_kernel_call *call; /* [nodes] */
  ms_scalars scalars;
} interpreter;

static inline int64_t interpreter_numel(const interpreter *it, int value) {
  return ms_numel(&it->graph->values[value].info);
}

static inline void *interpreter_allocate(int64_t bytes) {
  void *memory = aligned_alloc(64, (size_t)(bytes + 127) / 64 * 64);
  assert_non_null(memory);
  return memory;
}

/* Before interpreter_prepare, attributes of the calls can be set to those of a rank. */
static inline void interpreter_open(interpreter *it, const ms_graph *graph) {
  *it = (interpreter){.graph = graph, .scalars = {.lr = 1e-3, .step = 1, .micro_batches = 1, .seed = 7}};
  it->data = calloc((size_t)graph->n_values, sizeof *it->data);
  it->call = calloc((size_t)graph->n_nodes + 1, sizeof *it->call);
  assert_true(it->data && it->call);
  for (int v = 0; v < graph->n_values; v++)
    it->data[v] = interpreter_allocate(interpreter_numel(it, v) * ms_dtype_size(graph->values[v].info.dtype));
  for (int n = 0; n < graph->n_nodes; n++) {
    const ms_node *node = &graph->nodes[n];
    ms_kernel_call *call = &it->call[n];
    *call = (ms_kernel_call){.op = node->op, .attrs = node->attrs, .inputs = node->inputs, .outputs = node->outputs};
    call->threads = 1;
    call->scalars = &it->scalars;
    for (int i = 0; i < node->inputs; i++) {
      call->in[i] = graph->values[node->in[i]].info;
      call->in_data[i] = it->data[node->in[i]];
    }
    for (int o = 0; o < node->outputs; o++) {
      call->out[o] = graph->values[node->out[o]].info;
      call->out_data[o] = it->data[node->out[o]];
    }
  }
}

static inline void interpreter_prepare(interpreter *it) {
  for (int n = 0; n < it->graph->n_nodes; n++) {
    const ms_kernel *kernel = ms_cpu_kernel(it->call[n].op);
    if (kernel && kernel->prepare) must(kernel->prepare(&it->call[n]));
    if (it->call[n].workspace_bytes) it->call[n].workspace = interpreter_allocate(it->call[n].workspace_bytes);
  }
}

static inline void interpreter_start(interpreter *it, const ms_graph *graph) {
  interpreter_open(it, graph);
  interpreter_prepare(it);
}

static inline void interpreter_end(interpreter *it) {
  for (int n = 0; n < it->graph->n_nodes; n++) {
    const ms_kernel *kernel = ms_cpu_kernel(it->graph->nodes[n].op);
    if (kernel && kernel->release && it->call[n].prepared) kernel->release(it->call[n].prepared);
    free(it->call[n].workspace);
  }
  for (int v = 0; v < it->graph->n_values; v++) free(it->data[v]);
  free(it->data);
  free(it->call);
}

/* Runs nodes [first, end). */
static inline void interpreter_run(interpreter *it, int first, int end) {
  for (int n = first; n < end; n++) {
    const ms_node *node = &it->graph->nodes[n];
    const ms_kernel *kernel = ms_cpu_kernel(node->op);
    if (kernel) must(kernel->run(&it->call[n]));
    else
      memcpy(it->data[node->out[0]], it->data[node->in[0]],
             (size_t)(interpreter_numel(it, node->out[0]) * ms_dtype_size(it->graph->values[node->out[0]].info.dtype)));
  }
}

static inline int interpreter_forward_end(const interpreter *it) {
  int n = 0;
  while (n < it->graph->n_nodes && !it->graph->nodes[n].backward) n++;
  return n;
}

static inline double interpreter_get(const interpreter *it, int value, int64_t i) {
  if (it->graph->values[value].info.dtype == MS_BF16) return ms_bf16_to_f32(((ms_bf16 *)it->data[value])[i]);
  return ((float *)it->data[value])[i];
}

static inline void interpreter_set(interpreter *it, int value, int64_t i, double x) {
  if (it->graph->values[value].info.dtype == MS_BF16) ((ms_bf16 *)it->data[value])[i] = ms_f32_to_bf16((float)x);
  else ((float *)it->data[value])[i] = (float)x;
}

/* Standard normal times deviation, plus mean; the same for the same stream, whatever the dtype. */
static inline void interpreter_draw(interpreter *it, int value, uint64_t stream, double mean, double deviation) {
  int64_t n = interpreter_numel(it, value);
  float *drawn = interpreter_allocate(n * (int64_t)sizeof *drawn);
  ms_philox_normal(1234, stream, 0, n, drawn);
  for (int64_t i = 0; i < n; i++) interpreter_set(it, value, i, mean + deviation * drawn[i]);
  free(drawn);
}

/* Integers 0 .. limit-1, into i32 or u8. */
static inline void interpreter_draw_integers(interpreter *it, int value, uint64_t stream, int limit) {
  int64_t n = interpreter_numel(it, value);
  for (int64_t i = 0; i < n; i++) {
    uint32_t words[4];
    ms_philox4x32(99, stream, (uint64_t)i, words);
    int drawn = (int)(words[0] % (uint32_t)limit);
    if (it->graph->values[value].info.dtype == MS_U8) ((uint8_t *)it->data[value])[i] = (uint8_t)drawn;
    else ((int32_t *)it->data[value])[i] = drawn;
  }
}

/* |a - b| / |b| over the elements of two values, perhaps of different graphs. */
static inline double interpreter_difference(const interpreter *a, int value_a, const interpreter *b, int value_b) {
  int64_t n = interpreter_numel(a, value_a);
  double distance = 0, norm = 0;
  assert_int_equal(n, interpreter_numel(b, value_b));
  for (int64_t i = 0; i < n; i++) {
    double x = interpreter_get(a, value_a, i), y = interpreter_get(b, value_b, i);
    distance += (x - y) * (x - y);
    norm += y * y;
  }
  return norm > 0 ? sqrt(distance / norm) : sqrt(distance);
}

#endif
