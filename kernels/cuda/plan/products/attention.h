/* attention.h - what an attention call on CUDA asks of a plan: which implementation computes it, and its workspace. */
#ifndef MS_KERNELS_CUDA_PLAN_ATTENTION_H
#define MS_KERNELS_CUDA_PLAN_ATTENTION_H

#include "kernels/op.h"

/* q, o, do, dq [batch][t][heads][d]; k, v, dk, dv [batch][s][groups][d], bf16; lse, delta f32 [batch][heads][t]; sums
 * f32 [batch][heads][t][d]. Causal: query i sees keys 0 to i + s - t, and t <= s. */
typedef struct ms_dnn_attention {
  int64_t batch, t, s, heads, groups, d;
  int causal, backward;
} ms_dnn_attention;

/* Describes a call for cuDNN. */
ms_dnn_attention ms_attention_cudnn_of(const ms_kernel_call *call);
/* The parts of cuDNN's workspace, in order: delta and the sums of dq, then what the library's plan can use. The last is
 * what its preferred plans are known to need, or MOONSHARD_CUDNN_WORKSPACE bytes, which must be the same on all ranks,
 * if that is more. */
int64_t ms_attention_cudnn_delta(const ms_dnn_attention *attention);
int64_t ms_attention_cudnn_sums(const ms_dnn_attention *attention);
int ms_attention_cudnn_library(const ms_dnn_attention *attention, int64_t *bytes);

/* The part of a document_attention's workspace, at its beginning, with the bounds of documents: begin and end i32
 * [batch][s] each. 0 for attention. */
int64_t ms_attention_borders_bytes(const ms_kernel_call *call);

typedef struct ms_attention_plan {
  const char *own; /* why our own kernels compute it, a static string; NULL: cuDNN does, if it is found */
  int demanded;    /* 1: cuDNN or an error */
  int tf32;        /* 1: our own kernels can round f32 operands of products to TF32 */
} ms_attention_plan;

/* Checks a call, chooses the implementation and requests the workspace. */
int ms_attention_plan_of(ms_kernel_call *call, ms_attention_plan *plan);

#endif
