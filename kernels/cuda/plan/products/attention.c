/* attention.c - see the header. MOONSHARD_ATTENTION selects:
 *
 *   auto    cuDNN if it supports the call and is found; otherwise our own kernels, with a note if cuDNN is missing
 *   cudnn   cuDNN, or an error
 *   flash   our own kernels (flash.h)
 *
 * The workspace is requested without a GPU, so that an execution plan is the same wherever it is compiled: for cuDNN's
 * backward delta and the sums of dq, plus the size that the library's preferred plan is known to need. cuDNN plans that
 * need more are skipped, and a note says how many bytes to ask for (MOONSHARD_CUDNN_WORKSPACE).
 */
#include "kernels/cuda/plan/products/attention.h"

#include <string.h>

#include "base/numbers/dtype.h"
#include "base/env.h"
#include "base/error.h"
#include "kernels/attention_options.h"
#include "kernels/cuda/plan/products/matmul.h"
#include "kernels/cuda/plan/plan.h"
#include "kernels/cuda/plan/sizes.h"
#include "kernels/cuda/workspace.h"

enum { Q, K, V };
enum { MAX_HEAD = 256, HEAD_UNIT = 8, OWN_BYTES = 4096, MAX_POSITIONS = 1 << 30 };
enum choice { AUTO, CUDNN, FLASH };
static const double MAX_WORKSPACE = 1e12;

static ms_attention_options options_of(const ms_kernel_call *call) {
  return ms_attention_options_of(call->op, &call->attrs, call->in);
}

/* ---- cuDNN ---- */

/* A single query is the last position and sees all keys, so no mask is needed. */
ms_dnn_attention ms_attention_cudnn_of(const ms_kernel_call *call) {
  const int64_t *q = call->in[Q].dims, *k = call->in[K].dims;
  const ms_attention_options o = options_of(call);
  return (ms_dnn_attention){.batch = q[0],
                            .t = q[1],
                            .s = k[1],
                            .heads = q[2],
                            .groups = k[2],
                            .d = q[3],
                            .causal = o.causal && q[1] > 1,
                            .backward = o.backward};
}

static const char *refused_because(const ms_kernel_call *call, const ms_dnn_attention *a) {
  const ms_attention_options o = options_of(call);
  if (o.documents) return "documents";
  if (call->in[Q].dtype != MS_BF16) return "f32";
  if (o.part.ranks) return "a part of the queries";
  if (o.window) return "a sliding window";
  if (o.prefix) return "a prefix that every query sees";
  if (o.softcap != 0.0f) return "capped scores";
  if (call->in[V].dims[3] != a->d) return "values of another width than keys";
  if (a->d > MAX_HEAD || a->d % HEAD_UNIT) return "head sizes that are not a multiple of 8 up to 256";
  if (a->causal && a->t > a->s) return "fewer keys than causal queries";
  if (a->backward && a->t == 1 && a->s == 1) return "the gradient of one query and one key";
  return a->batch > 0 && a->t > 0 && a->s > 0 ? NULL : "tensors without elements";
}

/* f32 [batch][heads][t]. */
static int64_t delta_bytes(const ms_dnn_attention *a) { return a->batch * a->heads * a->t * (int64_t)sizeof(float); }

int64_t ms_attention_cudnn_delta(const ms_dnn_attention *a) { return a->backward ? ms_cuda_align(delta_bytes(a)) : 0; }

int64_t ms_attention_cudnn_sums(const ms_dnn_attention *a) {
  return a->backward ? ms_cuda_align(delta_bytes(a) * a->d) : 0;
}

/* The limit for the cuDNN plan. With grouped queries, its backward stores dk and dv of all query heads. */
int ms_attention_cudnn_library(const ms_dnn_attention *a, int64_t *bytes) {
  const int grouped = a->backward && a->heads != a->groups;
  const int64_t keys = a->batch * a->heads * a->s * a->d * ms_dtype_size(MS_BF16);
  double asked;
  MS_TRY(ms_env_double("MOONSHARD_CUDNN_WORKSPACE", 0, &asked));
  if (!(asked >= 0 && asked <= MAX_WORKSPACE))
    return MS_FAIL(MS_EINVAL, "MOONSHARD_CUDNN_WORKSPACE is %g; it must be a number of bytes, at most %g", asked,
                   MAX_WORKSPACE);
  *bytes = OWN_BYTES + (grouped ? 2 * ms_cuda_align(keys) : 0);
  if (*bytes < (int64_t)asked) *bytes = ms_cuda_align((int64_t)asked);
  return MS_OK;
}

/* ---- the choice ---- */

static int choose(enum choice *chosen) {
  static const char *const names[] = {"auto", "cudnn", "flash"};
  const char *text = ms_env_string("MOONSHARD_ATTENTION", names[AUTO]);
  for (int i = AUTO; i <= FLASH; i++)
    if (!strcmp(text, names[i])) {
      *chosen = (enum choice)i;
      return MS_OK;
    }
  return MS_FAIL(MS_EINVAL, "MOONSHARD_ATTENTION is \"%s\"; it must be auto, cudnn or flash", text);
}

static int check(const ms_kernel_call *call, const ms_dnn_attention *a) {
  const int dtype = call->in[Q].dtype;
  if (dtype != MS_F32 && dtype != MS_BF16)
    return MS_FAIL(MS_EDTYPE, "attention: q is %s; it must be f32 or bf16", ms_dtype_name(dtype));
  const int64_t e = call->in[V].dims[3], widest = a->d > e ? a->d : e;
  if (widest > MAX_HEAD)
    return MS_FAIL(MS_EUNSUPPORTED, "cuda: attention with head size %lld; it must be at most %d", (long long)widest,
                   MAX_HEAD);
  if (a->t > MAX_POSITIONS || a->s > MAX_POSITIONS)
    return MS_FAIL(MS_EUNSUPPORTED, "cuda: attention of %lld queries and %lld keys; there must be at most 2^30 of each",
                   (long long)a->t, (long long)a->s);
  return MS_OK;
}

int64_t ms_attention_borders_bytes(const ms_kernel_call *call) {
  const int64_t *k = call->in[K].dims;
  return options_of(call).documents ? ms_cuda_align(2 * k[0] * k[1] * (int64_t)sizeof(int32_t)) : 0;
}

/* Our own kernels can run in either case: for tensors that are not aligned, and without cuDNN. */
static int request_workspace(ms_kernel_call *call, const ms_dnn_attention *a, const ms_attention_plan *plan) {
  int64_t library;
  MS_TRY(ms_attention_cudnn_library(a, &library));
  const int64_t own = ms_attention_borders_bytes(call) + (a->backward ? delta_bytes(a) : 0);
  const int64_t cudnn = ms_attention_cudnn_delta(a) + ms_attention_cudnn_sums(a) + library + MS_LIBRARY_SLACK;
  call->workspace_bytes = plan->own || own > cudnn ? own : cudnn;
  return MS_OK;
}

int ms_attention_plan_of(ms_kernel_call *call, ms_attention_plan *plan) {
  const ms_dnn_attention a = ms_attention_cudnn_of(call);
  const char *because = refused_because(call, &a);
  enum choice chosen = AUTO;
  MS_TRY(check(call, &a));
  MS_TRY(choose(&chosen));
  MS_TRY(ms_matmul_tf32(&plan->tf32));
  if (chosen == CUDNN && because)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "MOONSHARD_ATTENTION=cudnn: cuDNN is not used for %s; the call has %lld %s heads of %lld, "
                   "%lld queries and %lld keys",
                   because, (long long)a.heads, ms_dtype_name(call->in[Q].dtype), (long long)a.d, (long long)a.t,
                   (long long)a.s);
  plan->own = chosen == FLASH ? "MOONSHARD_ATTENTION=flash" : because;
  plan->demanded = chosen == CUDNN;
  return request_workspace(call, &a, plan);
}

int ms_cuda_prepare_attention(ms_kernel_call *call) {
  ms_attention_plan plan;
  return ms_attention_plan_of(call, &plan);
}

/* The bounds of documents. */
int ms_cuda_prepare_attention_max(ms_kernel_call *call) {
  call->workspace_bytes = ms_attention_borders_bytes(call);
  return MS_OK;
}
