/* attention.cu - softmax(q k' scale) v and its gradients: who computes a call. Tensor cores do where they can (flash.h); f32, heads
** of odd sizes and tensors that are not aligned are left to attention_plain.cu. MOONSHARD_ATTENTION=plain leaves it everything.
*/
#include "kernels/cuda/attention.h"

#include <cstdlib>
#include <cstring>

#include "kernels/cuda/reduce.h"
#include "kernels/cuda/vector.h"

namespace {

constexpr int WARPS = 4, MOST = 256;

/* A warp has one row of o. */
template <class T>
__global__ void __launch_bounds__(WARPS *MS_WARP)
    row_deltas(const T *o, const T *gradient, float *delta, ms_cuda_attention a) {
  const int64_t own = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.y, rows = a.batch * a.heads * a.t;
  const int64_t row = min(own, rows - 1), i = row % a.t, h = row / a.t % a.heads, b = row / a.t / a.heads;
  const int64_t at = ((b * a.t + i) * a.heads + h) * a.d;
  float sum = 0.0f;
  for (int64_t c = threadIdx.x; c < a.d; c += MS_WARP) sum += ms_load_one(o + at + c) * ms_load_one(gradient + at + c);
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

const char *chosen() {
  const char *choice = getenv("MOONSHARD_ATTENTION");
  return choice && *choice ? choice : "auto";
}

int64_t delta_bytes(const ms_cuda_attention &a) {
  return a.batch * a.heads * a.t * static_cast<int64_t>(sizeof(float));
}

int prepare_forward(ms_kernel_call *call) { return ms_cuda_attention_prepare(call, 0, 0); }
int prepare_backward(ms_kernel_call *call) { return ms_cuda_attention_prepare(call, 1, 0); }

int run_forward(const ms_kernel_call *call) {
  return ms_cuda_attention_run(call, ms_cuda_attention_of(call), 0, call->workspace);
}

int run_backward(const ms_kernel_call *call) {
  return ms_cuda_attention_run(call, ms_cuda_attention_of(call), 1, call->workspace);
}

} // namespace

int ms_cuda_attention_prepare(ms_kernel_call *call, int backward, int64_t own) {
  const int dtype = call->in[0].dtype;
  const ms_cuda_attention a = ms_cuda_attention_of(call);
  if (dtype != MS_F32 && dtype != MS_BF16)
    return MS_FAIL(MS_EDTYPE, "attention: q is %s; it must be f32 or bf16", ms_dtype_name(dtype));
  if (a.d > MOST)
    return MS_FAIL(MS_EUNSUPPORTED, "cuda: attention with heads of %lld; they must be at most %d",
                   static_cast<long long>(a.d), MOST);
  if (strcmp(chosen(), "auto") && strcmp(chosen(), "flash") && strcmp(chosen(), "plain"))
    return MS_FAIL(MS_EINVAL, "MOONSHARD_ATTENTION is \"%s\"; it must be auto, flash or plain", chosen());
  call->workspace_bytes = own + (backward ? delta_bytes(a) : 0);
  return MS_OK;
}

int ms_cuda_attention_deltas(const ms_kernel_call *call, const ms_cuda_attention &a, float *delta) {
  return MS_CUDA_FLOATS(call->in[0].dtype, T, deltas_typed<T>(call, a, delta));
}

int ms_cuda_attention_run(const ms_kernel_call *call, const ms_cuda_attention &a, int backward, void *workspace) {
  float *delta = static_cast<float *>(workspace);
  const int flash = strcmp(chosen(), "plain") != 0 && ms_cuda_flash_suits(call, a);
  if (!backward) return flash ? ms_cuda_attention_flash(call, a) : ms_cuda_attention_plain(call, a);
  MS_TRY(ms_cuda_attention_deltas(call, a, delta));
  return flash ? ms_cuda_attention_flash_backward(call, a, delta) : ms_cuda_attention_plain_backward(call, a, delta);
}

extern const ms_kernel ms_cuda_attention = {prepare_forward, run_forward, nullptr, 0};
extern const ms_kernel ms_cuda_attention_backward = {prepare_backward, run_backward, nullptr, 0};
