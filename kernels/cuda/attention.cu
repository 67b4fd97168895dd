/* attention.cu - softmax(q k' scale) v and its gradients: who computes a call. MOONSHARD_ATTENTION says
**
**   auto    cuDNN where it knows the call and is found, which is noted for the user where it is not; else own kernels
**   cudnn   cuDNN, or an error
**   flash   own kernels (flash.h)
*/
#include "kernels/cuda/attention.h"

#include <cstdlib>
#include <cstring>

extern "C" {
#include "base/env.h"
#include "base/note.h"
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/matmul.h"
}

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
  choice chosen; /* FLASH where cuDNN is not asked */
  int tf32, bound;
  ms_attention_cudnn *cudnn; /* NULL until it is bound, and where own kernels compute */
};

ms_dnn_attention asked_of_cudnn(const ms_cuda_attention &a, int backward) {
  return {a.batch, a.t, a.s, a.heads, a.groups, a.d, a.causal, backward};
}

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
  choice chosen = AUTO;
  const ms_dnn_attention asked = asked_of_cudnn(ms_cuda_attention_of(call), is_backward(call));
  MS_TRY(choose(&chosen));
  const int suits = chosen != FLASH && ms_attention_cudnn_suits(call, &asked);
  if (chosen == CUDNN && !suits)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "MOONSHARD_ATTENTION=cudnn: cuDNN is asked for bf16 heads of up to 128 in multiples of 8, and "
                   "as many queries as keys when causal; this attention has %s heads of %lld, %lld queries and "
                   "%lld keys",
                   ms_dtype_name(call->in[0].dtype), static_cast<long long>(asked.d), static_cast<long long>(asked.t),
                   static_cast<long long>(asked.s));
  MS_TRY(ms_cuda_attention_prepare(call, is_backward(call), 0));
  if (!suits) return MS_OK;
  static_cast<prepared_attention *>(call->prepared)->chosen = chosen;
  call->workspace_bytes = max(call->workspace_bytes, ms_attention_cudnn_workspace(&asked));
  return MS_OK;
}

/* Where cuDNN is looked for: nothing but the device's machine needs it. */
int bind(const ms_kernel_call *call) {
  prepared_attention *prepared = static_cast<prepared_attention *>(call->prepared);
  if (prepared->chosen == FLASH || prepared->bound) return MS_OK;
  char why[MS_LIBRARY_WHY_BYTES];
  const ms_cuda_attention a = ms_cuda_attention_of(call);
  const ms_dnn_attention asked = asked_of_cudnn(a, is_backward(call));
  MS_TRY(ms_attention_cudnn_new(&asked, a.scale, &prepared->cudnn, why));
  prepared->bound = 1;
  if (prepared->cudnn) return MS_OK;
  if (prepared->chosen == CUDNN) return MS_FAIL(MS_EUNSUPPORTED, "MOONSHARD_ATTENTION=cudnn: %s", why);
  ms_note("%s; own kernels compute it", why);
  return MS_OK;
}

int run(const ms_kernel_call *call) {
  const prepared_attention *prepared = static_cast<const prepared_attention *>(call->prepared);
  if (prepared->chosen != FLASH && !prepared->bound) return MS_FAIL(MS_EINTERNAL, "attention: the call was not bound");
  if (prepared->cudnn && aligned(call)) return ms_attention_cudnn_run(prepared->cudnn, call);
  if (prepared->chosen == CUDNN)
    return MS_FAIL(MS_EUNSUPPORTED, "MOONSHARD_ATTENTION=cudnn: cuDNN wants tensors that are aligned to 16 bytes");
  return ms_cuda_attention_run(call, ms_cuda_attention_of(call), is_backward(call), call->workspace);
}

} // namespace

int ms_cuda_attention_prepare(ms_kernel_call *call, int backward, int64_t own) {
  constexpr int64_t POSITIONS = int64_t{1} << 30;
  const int dtype = call->in[0].dtype;
  const ms_cuda_attention a = ms_cuda_attention_of(call);
  choice chosen = AUTO;
  int tf32 = 0;
  if (dtype != MS_F32 && dtype != MS_BF16)
    return MS_FAIL(MS_EDTYPE, "attention: q is %s; it must be f32 or bf16", ms_dtype_name(dtype));
  if (a.d > MOST || a.t > POSITIONS || a.s > POSITIONS)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "cuda: attention of %lld queries and %lld keys with heads of %lld; there must be at most 2^30, and "
                   "heads of at most %d",
                   static_cast<long long>(a.t), static_cast<long long>(a.s), static_cast<long long>(a.d), MOST);
  MS_TRY(choose(&chosen));
  MS_TRY(ms_matmul_tf32(&tf32));
  prepared_attention *prepared = static_cast<prepared_attention *>(ms_calloc(1, sizeof *prepared));
  if (!prepared) return MS_ENOMEM;
  prepared->chosen = FLASH;
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

extern const ms_kernel ms_cuda_attention = {prepare, run, ms_cuda_attention_release, 0, bind};
extern const ms_kernel ms_cuda_attention_backward = {prepare, run, ms_cuda_attention_release, 0, bind};
