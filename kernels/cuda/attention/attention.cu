/* attention.cu - softmax(q k' scale) v and its gradients, by the implementation that the plan chose
 * (plan/products/attention.c); where cuDNN is missing, by our own kernels, with a note.
 *
 * Our own backward first computes the row sums of o do. Memory traffic: 2 s bytes per element of o, plus 4 bytes per
 * row.
 */
#include "kernels/cuda/attention/attention.h"

#include <cstdlib>

extern "C" {
#include "base/error.h"
#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/plan/products/attention.h"
}

#include "kernels/cuda/reductions/reduce.h"
#include "kernels/cuda/vector.h"

namespace {

constexpr int WARPS = 4;

/* delta [batch][heads][t] = sum over e of o do; o, gradient [batch][t][heads][e]. One warp per row. */
template <class T>
__global__ void __launch_bounds__(WARPS *MS_WARP)
    row_deltas(const T *o, const T *gradient, float *delta, ms_cuda_attention a) {
  const int64_t own = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.y, rows = a.batch * a.heads * a.t;
  const int64_t row = min(own, rows - 1), i = row % a.t, h = row / a.t % a.heads, b = row / a.t / a.heads;
  const int64_t at = ((b * a.t + i) * a.heads + h) * a.e;
  float sum = 0.0f;
  for (int64_t c = threadIdx.x; c < a.e; c += MS_WARP)
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

struct prepared_attention {
  ms_attention_plan plan;
  ms_attention_cudnn *cudnn; /* NULL before bind, or if our own kernels compute the call */
};

int aligned(const ms_kernel_call *call) {
  for (int i = 0; i < call->inputs; i++)
    if (!ms_cuda_aligned(call->in_data[i])) return 0;
  for (int i = 0; i < call->outputs; i++)
    if (!ms_cuda_aligned(call->out_data[i])) return 0;
  return 1;
}

/* Looks for cuDNN, which only the machine with the device needs to have. */
int bind(const ms_kernel_call *call) {
  prepared_attention *prepared = static_cast<prepared_attention *>(call->prepared);
  if (prepared->plan.own || prepared->cudnn) return MS_OK;
  char why[MS_LIBRARY_WHY_BYTES];
  const ms_dnn_attention asked = ms_attention_cudnn_of(call);
  MS_TRY(ms_attention_cudnn_new(&asked, ms_cuda_attention_of(call).scale, &prepared->cudnn, why));
  if (prepared->cudnn) return MS_OK;
  if (prepared->plan.demanded) return MS_FAIL(MS_EUNSUPPORTED, "MOONSHARD_ATTENTION=cudnn: %s", why);
  ms_note("%s; Moonshard's own kernels compute attention", why);
  prepared->plan.own = "no cuDNN with a plan for this call";
  return MS_OK;
}

/* Why our own kernels compute a bound call; NULL: cuDNN does. */
const char *own_because(const ms_kernel_call *call) {
  const prepared_attention *prepared = static_cast<const prepared_attention *>(call->prepared);
  if (prepared->plan.own) return prepared->plan.own;
  return aligned(call) ? nullptr : "tensors that are not aligned to 16 bytes";
}

int run(const ms_kernel_call *call) {
  const prepared_attention *prepared = static_cast<const prepared_attention *>(call->prepared);
  const char *because = own_because(call);
  if (!prepared->plan.own && !prepared->cudnn) return MS_FAIL(MS_EINTERNAL, "attention: the call was not bound");
  if (!because) return ms_attention_cudnn_run(prepared->cudnn, call);
  if (prepared->plan.demanded)
    return MS_FAIL(MS_EUNSUPPORTED, "MOONSHARD_ATTENTION=cudnn: cuDNN is not used for %s", because);
  return ms_cuda_attention_run(call, ms_cuda_attention_of(call), call->workspace);
}

} // namespace

int ms_cuda_attention_prepare(ms_kernel_call *call) {
  ms_attention_plan plan;
  MS_TRY(ms_attention_plan_of(call, &plan));
  prepared_attention *prepared = static_cast<prepared_attention *>(ms_calloc(1, sizeof *prepared));
  if (!prepared) return MS_ENOMEM;
  prepared->plan = plan;
  call->prepared = prepared;
  return MS_OK;
}

int ms_cuda_attention_run(const ms_kernel_call *call, const ms_cuda_attention &a, void *workspace) {
  const prepared_attention *prepared = static_cast<const prepared_attention *>(call->prepared);
  float *delta = static_cast<float *>(workspace);
  const int dtype = call->in[0].dtype, size = ms_dtype_size(dtype);
  const int whole = aligned(call) && a.d * size % 16 == 0 && a.e * size % 16 == 0;
  if (!a.backward) return ms_cuda_attention_flash(call, a, prepared->plan.tf32, whole);
  MS_TRY(MS_CUDA_FLOATS(dtype, T, deltas_typed<T>(call, a, delta)));
  return ms_cuda_attention_flash_backward(call, a, delta, prepared->plan.tf32, whole);
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

extern const ms_kernel ms_cuda_attention = {ms_cuda_attention_prepare, run,  ms_cuda_attention_release,
                                            MS_CUDA_OVER_attention,    bind, ms_cuda_attention_computed};
extern const ms_kernel ms_cuda_attention_backward = {ms_cuda_attention_prepare,       run,  ms_cuda_attention_release,
                                                     MS_CUDA_OVER_attention_backward, bind, ms_cuda_attention_computed};
