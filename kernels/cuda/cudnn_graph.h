/* cudnn_graph.h - attention as a graph of cuDNN's operations, and the plan that computes it.
**
** The library knows the whole graph and has kernels for it: what is between its ends is never stored. It knows graphs in one form
** alone, that of NVIDIA's own frontend, which is followed operation by operation (14 forward, 22 backward, 24 with grouped
** queries; two more where causal queries are fewer than keys).
*/
#ifndef MS_KERNELS_CUDA_CUDNN_GRAPH_H
#define MS_KERNELS_CUDA_CUDNN_GRAPH_H

#include "kernels/cuda/cudnn.h"

/* q, o, do, dq [batch,t,heads,d]; k, v, dk, dv [batch,s,groups,d], bf16; lse, delta f32 [batch,heads,t]; sums f32
** [batch,heads,t,d]. Causal: query i sees keys 0 to i + s - t, and t <= s. */
typedef struct ms_dnn_attention {
  int64_t batch, t, s, heads, groups, d;
  int causal, backward;
} ms_dnn_attention;

/* What a plan is given, by these numbers: tensors on the device, then numbers on the host, f32 but for the lengths. Forward: q, k, v, o, lse. */
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
  MS_DNN_DELTA, /* written first, then read */
  MS_DNN_SUMS,  /* of dq, in any order */
  MS_DNN_SCALE,
  MS_DNN_HIDDEN, /* what a score becomes that the mask hides: causal alone */
  MS_DNN_ONE,    /* 1: backward alone */
  MS_DNN_KEYS,   /* s and t, i32: causal with t < s alone */
  MS_DNN_QUERIES,
  MS_DNN_IDS
};

enum { MS_DNN_DESCRIPTORS = 160, MS_DNN_OPERATIONS = 32 };

typedef struct ms_dnn_graph {
  const ms_cudnn *dnn;
  ms_dnn_descriptor made[MS_DNN_DESCRIPTORS], operation[MS_DNN_OPERATIONS];
  int made_count, operations, rc; /* rc: of what was done so far; nothing is done after a failure */
  int64_t next_id;
  ms_dnn_descriptor plan;
  int64_t workspace_bytes;
} ms_dnn_graph;

/* The operations alone, which takes neither a GPU nor a handle. What it made is there after a failure too: ms_dnn_close. */
int ms_dnn_build(const ms_cudnn *dnn, const ms_dnn_attention *attention, ms_dnn_graph *graph);
/* The first plan, in the library's own order, that needs no more than so much workspace. *found 0, and nothing open: there is
** none, for this GPU or at all. */
int ms_dnn_open(const ms_cudnn *dnn, ms_dnn_handle handle, const ms_dnn_attention *attention, int64_t most_workspace,
                ms_dnn_graph *graph, int *found);
void ms_dnn_close(ms_dnn_graph *graph);

#endif
