/* cudnn_graph.h - attention as a graph of cuDNN operations, and the plan that computes it.
 *
 * The library has kernels for the whole graph that do not store intermediate results. It recognises only the form that
 * NVIDIA's own frontend produces, so this graph follows it operation by operation (14 forward, 22 backward, 24 with
 * grouped queries; two more if there are fewer causal queries than keys).
 */
#ifndef MS_KERNELS_CUDA_CUDNN_GRAPH_H
#define MS_KERNELS_CUDA_CUDNN_GRAPH_H

#include "kernels/cuda/attention/cudnn.h"
#include "kernels/cuda/plan/products/attention.h"

/* Ids of a plan's arguments: device tensors, then host numbers (f32, except the lengths). Forward uses q, k, v, o and
 * lse. */
enum {
  MS_DNN_Q = 1,
  MS_DNN_K,
  MS_DNN_V,
  MS_DNN_O,
  MS_DNN_LSE,
  MS_DNN_DO,
  MS_DNN_DQ,
  MS_DNN_DK,
  MS_DNN_DV,
  MS_DNN_DELTA, /* written, then read */
  MS_DNN_SUMS,  /* sums of dq, added in any order */
  MS_DNN_SCALE,
  MS_DNN_HIDDEN, /* score of a masked key; causal only */
  MS_DNN_ONE,    /* 1; backward only */
  MS_DNN_KEYS,   /* s and t, i32; only for causal with t < s */
  MS_DNN_QUERIES,
  MS_DNN_IDS
};

enum { MS_DNN_DESCRIPTORS = 160, MS_DNN_OPERATIONS = 32 };

typedef struct ms_dnn_graph {
  const ms_cudnn *dnn;
  ms_dnn_descriptor made[MS_DNN_DESCRIPTORS], operation[MS_DNN_OPERATIONS];
  int made_count, operations, rc; /* rc: the first failure, after which calls do nothing */
  int64_t next_id;
  ms_dnn_descriptor plan;
  int64_t workspace_bytes;
  int64_t preferred_bytes; /* the workspace of the library's first plan; 0: it has no plan */
} ms_dnn_graph;

/* Creates only the operations, without a GPU or a handle. If it fails, ms_dnn_close still frees what was created. */
int ms_dnn_build(const ms_cudnn *dnn, const ms_dnn_attention *attention, ms_dnn_graph *graph);
/* Opens the first plan, in the library's order, that needs at most max_workspace bytes. *found 0: there is none for
 * this GPU, or none that needs so few (preferred_bytes), and nothing is open. */
int ms_dnn_open(const ms_cudnn *dnn, ms_dnn_handle handle, const ms_dnn_attention *attention, int64_t max_workspace,
                ms_dnn_graph *graph, int *found);
void ms_dnn_close(ms_dnn_graph *graph);

#endif
