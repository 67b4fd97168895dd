/* attention.cu - softmax(q k' scale) v and its gradients: chooses the implementation. MOONSHARD_ATTENTION selects:
 *
 *   auto    cuDNN if it supports the call and is found; otherwise our own kernels, with a note if cuDNN is missing
 *   cudnn   cuDNN, or an error
 *   flash   our own kernels (flash.h)
 *
 * Our own backward first computes the row sums of o do. Memory traffic: 2 s bytes per element of o, plus 4 bytes per
 * row.
 */
#include "kernels/cuda/attention.h"

#include <cstdlib>
#include <cstring>

extern "C" {
#include "base/env.h"
#include "base/error.h"
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/matmul.h"
}

#include "kernels/cuda/reduce.h"
#include "kernels/cuda/vector.h"

namespace {

constexpr int WARPS = 4, MOST = 256;

/* delta [batch][heads][t] = sum over d of o do; o, gradient [batch][t][heads][d]. One warp per row. */
template <class T>
__global__ void __launch_bounds__(WARPS *MS_WARP)
    row_deltas(const T *o, const T *gradient, float *delta, ms_cuda_attention a) {
  const int64_t own = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.y, rows = a.batch * a.heads * a.t;
  const int64_t row = min(own, rows - 1), i = row % a.t, h = row / a.t % a.heads, b = row / a.t / a.heads;
  const int64_t at = ((b * a.t + i) * a.heads + h) * a.d;
  float sum = 0.0f;
  for (int64_t c = threadIdx.x; c < a.d; c += MS_WARP)
    sum += ms_element_load(o + at + c) * ms_element_load(gradient + at + c);
  sum = ms_warp_reduce(sum, ms_add());
  if (threadIdx.x == 0 && own < rows) delta[row] = sum;
}

template <class T> int deltas_typed(const ms_kernel_call *call, const ms_cuda_attention &a, float *delta) {
  const int64_t rows = a.batch * a.heads * a.t;
  if (rows == 0) return MS_OK;
  return MS_CUDA_LAUNCH(row_deltas<T>, static_cast<unsigned>(ms_cuda_ceil(rows, WARPS)), dim3(MS_WARP, WARPS), 0,
                        call->stream, static_cast<const T *>(call->in_data[MS_ATTENTION_O]),
                        static_cast<const T *>(call->in_data[MS_ATTENTION_DO]), delta, a);
}

enum choice { AUTO, CUDNN, FLASH };

int choose(choice *chosen) {
  static const char *const names[] = {"auto", "cudnn", "flash"};
  const char *text = ms_env_string("MOONSHARD_ATTENTION", names[AUTO]);
  for (int i = AUTO; i <= FLASH; i++)
    if (!strcmp(text, names[i])) {
      *chosen = static_cast<choice>(i);
      return MS_OK;
    }
  return MS_FAIL(MS_EINVAL, "MOONSHARD_ATTENTION is \"%s\"; it must be auto, cudnn or flash", text);
}

struct prepared_attention {
  const char *own; /* why our own kernels compute it, a static string; NULL: cuDNN does */
  int demanded, tf32;
  ms_attention_cudnn *cudnn; /* NULL before bind, or if our own kernels compute the call */
};

int is_backward(const ms_kernel_call *call) { return call->op == MS_OP_attention_backward; }

int aligned(const ms_kernel_call *call) {
  for (int i = 0; i < call->inputs; i++)
    if (!ms_cuda_aligned(call->in_data[i])) return 0;
  for (int i = 0; i < call->outputs; i++)
    if (!ms_cuda_aligned(call->out_data[i])) return 0;
  return 1;
}

int64_t delta_bytes(const ms_cuda_attention &a) {
  return a.batch * a.heads * a.t * static_cast<int64_t>(sizeof(float));
}

int prepare(ms_kernel_call *call) {
  const ms_dnn_attention asked = ms_attention_cudnn_of(call, is_backward(call));
  MS_TRY(ms_cuda_attention_prepare(call, is_backward(call), 0, ms_attention_cudnn_refuses(call, &asked)));
  if (!static_cast<prepared_attention *>(call->prepared)->own)
    call->workspace_bytes = max(call->workspace_bytes, ms_attention_cudnn_workspace(&asked));
  return MS_OK;
}

/* Looks for cuDNN, which only the machine with the device needs to have. */
int bind(const ms_kernel_call *call) {
  prepared_attention *prepared = static_cast<prepared_attention *>(call->prepared);
  if (prepared->own || prepared->cudnn) return MS_OK;
  char why[MS_LIBRARY_WHY_BYTES];
  const ms_dnn_attention asked = ms_attention_cudnn_of(call, is_backward(call));
  MS_TRY(ms_attention_cudnn_new(&asked, ms_cuda_attention_of(call).scale, &prepared->cudnn, why));
  if (prepared->cudnn) return MS_OK;
  if (prepared->demanded) return MS_FAIL(MS_EUNSUPPORTED, "MOONSHARD_ATTENTION=cudnn: %s", why);
  ms_note("%s; Moonshard's own kernels compute attention", why);
  prepared->own = "no cuDNN with a plan for this call";
  return MS_OK;
}

/* Why our own kernels compute a bound call; NULL: cuDNN does. */
const char *own_because(const ms_kernel_call *call) {
  const prepared_attention *prepared = static_cast<const prepared_attention *>(call->prepared);
  if (prepared->own) return prepared->own;
  return aligned(call) ? nullptr : "tensors that are not aligned to 16 bytes";
}

int run(const ms_kernel_call *call) {
  const prepared_attention *prepared = static_cast<const prepared_attention *>(call->prepared);
  const char *because = own_because(call);
  if (!prepared->own && !prepared->cudnn) return MS_FAIL(MS_EINTERNAL, "attention: the call was not bound");
  if (!because) return ms_attention_cudnn_run(prepared->cudnn, call);
  if (prepared->demanded)
    return MS_FAIL(MS_EUNSUPPORTED, "MOONSHARD_ATTENTION=cudnn: cuDNN is not used for %s", because);
  return ms_cuda_attention_run(call, ms_cuda_attention_of(call), is_backward(call), call->workspace);
}

} // namespace

int ms_cuda_attention_prepare(ms_kernel_call *call, int backward, int64_t own, const char *because) {
  constexpr int64_t POSITIONS = int64_t{1} << 30;
  const int dtype = call->in[0].dtype;
  const ms_cuda_attention a = ms_cuda_attention_of(call);
  choice chosen = AUTO;
  int tf32 = 0;
  if (dtype != MS_F32 && dtype != MS_BF16)
    return MS_FAIL(MS_EDTYPE, "attention: q is %s; it must be f32 or bf16", ms_dtype_name(dtype));
  if (a.d > MOST)
    return MS_FAIL(MS_EUNSUPPORTED, "cuda: attention with head size %lld; it must be at most %d",
                   static_cast<long long>(a.d), MOST);
  if (a.t > POSITIONS || a.s > POSITIONS)
    return MS_FAIL(MS_EUNSUPPORTED, "cuda: attention of %lld queries and %lld keys; there must be at most 2^30 of each",
                   static_cast<long long>(a.t), static_cast<long long>(a.s));
  MS_TRY(choose(&chosen));
  MS_TRY(ms_matmul_tf32(&tf32));
  if (chosen == CUDNN && because)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "MOONSHARD_ATTENTION=cudnn: cuDNN is not used for %s; the call has %lld %s heads of %lld, "
                   "%lld queries and %lld keys",
                   because, static_cast<long long>(a.heads), ms_dtype_name(dtype), static_cast<long long>(a.d),
                   static_cast<long long>(a.t), static_cast<long long>(a.s));
  prepared_attention *prepared = static_cast<prepared_attention *>(ms_calloc(1, sizeof *prepared));
  if (!prepared) return MS_ENOMEM;
  prepared->own = chosen == FLASH ? "MOONSHARD_ATTENTION=flash" : because;
  prepared->demanded = chosen == CUDNN;
  prepared->tf32 = tf32;
  call->workspace_bytes = own + (backward ? delta_bytes(a) : 0);
  call->prepared = prepared;
  return MS_OK;
}

int ms_cuda_attention_run(const ms_kernel_call *call, const ms_cuda_attention &a, int backward, void *workspace) {
  const prepared_attention *prepared = static_cast<const prepared_attention *>(call->prepared);
  float *delta = static_cast<float *>(workspace);
  const int dtype = call->in[0].dtype, whole = aligned(call) && a.d * ms_dtype_size(dtype) % 16 == 0;
  if (!backward) return ms_cuda_attention_flash(call, a, prepared->tf32, whole);
  MS_TRY(MS_CUDA_FLOATS(dtype, T, deltas_typed<T>(call, a, delta)));
  return ms_cuda_attention_flash_backward(call, a, delta, prepared->tf32, whole);
}

void ms_cuda_attention_release(void *data) {
  prepared_attention *prepared = static_cast<prepared_attention *>(data);
  if (prepared) ms_attention_cudnn_free(prepared->cudnn);
  free(prepared);
}

ms_computed ms_cuda_attention_computed(const ms_kernel_call *call) {
  const char *because = own_because(call);
  return {because ? "own kernels" : "cuDNN", because};
}

extern const ms_kernel ms_cuda_attention = {prepare, run,  ms_cuda_attention_release,
                                            0,       bind, ms_cuda_attention_computed};
extern const ms_kernel ms_cuda_attention_backward = {prepare, run,  ms_cuda_attention_release,
                                                     0,       bind, ms_cuda_attention_computed};
