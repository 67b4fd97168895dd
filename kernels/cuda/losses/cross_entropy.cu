/* cross_entropy.cu - the mean loss of a classifier, and its gradient, without a tensor of probabilities.
 *
 * Forward reads each logit once: s bytes per logit of s bytes. A block computes one row; each thread keeps a running
 * maximum and the sum of exponentials relative to it (Milakov & Gimelshein 2018), which are combined at the end. For
 * backward it keeps one number per row, the log of the sum. One block sums the losses of all rows in double, in a fixed
 * order. Backward reads and writes each logit once, 2 s bytes, and can overwrite the logits. Where both are wanted of a
 * row that fits shared memory, one kernel reads each logit once for both, with the same bits: 2 s bytes instead of 3 s.
 * Rows need not be aligned, because vocabularies often have odd sizes.
 *
 * Where ranks have different parts of the classes, each gives two numbers a row, and the loss is made of those of all
 * parts.
 *
 * logits, dlogits [rows][stride]; targets i32 [rows]; lse f32 [rows]; loss, count, dloss f32 [1]; added f32
 * [parts][rows][2].
 */
#include "kernels/cuda/reductions/rows.h"

extern "C" {
#include "kernels/cuda/losses/cross_entropy.h"
}

namespace {

enum { LOGITS, TARGETS, LSE, COUNT, DLOSS, ADDED = 2, STEP_COUNT = 2, STEP_DLOSS };
constexpr int THREADS = 256, LONG_THREADS = 512, LAST_THREADS = 1024;
constexpr int64_t LONG_ROW = 8192;

/* A row has `stride` logits, of which the first `used` count; the rest is padding and does not contribute to the loss.
 * They are those of classes [first, first + used), of `classes` in all parts. */
struct shape {
  int64_t rows, parts, classes, stride, ignored, first, used;
};

shape shape_of(const ms_kernel_call *call) {
  const int64_t stride = ms_row_length(&call->in[LOGITS]),
                parts = call->attrs.loss.parts > 1 ? call->attrs.loss.parts : 1;
  const int64_t classes = call->attrs.loss.classes ? call->attrs.loss.classes : stride * parts,
                first = call->attrs.loss.first;
  const int64_t left = classes - first, used = left < 0 ? 0 : left < stride ? left : stride;
  return {ms_row_count(&call->in[LOGITS]), parts, classes, stride, call->attrs.loss.ignore_index, first, used};
}

/* Threads of a row's block, which sums the row in the same order in all kernels. With a long row in shared memory,
 * an SM has two blocks at most. */
int threads_of(const shape &s) { return s.stride < LONG_ROW ? THREADS : LONG_THREADS; }

__device__ __forceinline__ bool counts(int32_t target, const shape &s) {
  return target != s.ignored && target >= 0 && target < s.classes;
}

/* The running maximum and the sum of e^(x - largest), or of e^x while the largest is -inf. */
struct running {
  float largest, sum;
  template <int V> __device__ __forceinline__ void add(const float (&x)[V]) {
    float highest = x[0];
#pragma unroll
    for (int l = 1; l < V; l++) highest = fmaxf(highest, x[l]);
    if (highest > largest) {
      sum = __fmul_rn(sum, __expf(largest - highest));
      largest = highest;
    }
    const float base = largest > -INFINITY ? largest : 0.0f;
#pragma unroll
    for (int l = 0; l < V; l++) sum += __expf(x[l] - base);
  }
};

/* ln sum e^x over a row [used], computed by a block; every thread receives it. */
template <class T> __device__ __forceinline__ float row_lse(const T *logits, int64_t used) {
  running own = {-INFINITY, 0.0f};
  ms_for_row(logits, used, [&](int64_t, auto &x) { own.add(x); });
  const float largest = ms_row_max(own.largest);
  if (own.largest > -INFINITY) own.sum = __fmul_rn(own.sum, __expf(own.largest - largest));
  const float sum = ms_row_sum(own.sum);
  return largest > -INFINITY ? largest + logf(sum) : logf(sum); /* largest: -inf for -inf and NaN only */
}

/* The loss of a row [stride]; 0 for a target that does not count. One thread. */
template <class T>
__device__ __forceinline__ double loss_of(const T *row, int32_t target, float log_sum, ms_fault *fault,
                                          const shape &s) {
  if (counts(target, s)) return static_cast<double>(log_sum) - static_cast<double>(ms_element_load(row + target));
  if (target != s.ignored) ms_note_fault(fault, MS_OP_cross_entropy, target, s.classes);
  return 0.0;
}

/* lse [rows] and losses double [rows] of logits [rows][stride] and targets [rows]. One block per row. */
template <class T>
__global__ void __launch_bounds__(LONG_THREADS)
    forward_rows(const T *logits, const int32_t *targets, float *lse, double *losses, ms_fault *fault, shape s) {
  const int64_t row = blockIdx.x;
  const float value = row_lse(logits + row * s.stride, s.used);
  if (threadIdx.x != 0) return;
  lse[row] = value;
  losses[row] = loss_of(logits + row * s.stride, targets[row], value, fault, s);
}

/* added [2]: what this part of the classes adds to a row, the log of its sum of exponentials and the target's logit. */
template <class T>
__device__ __forceinline__ void add_row(const T *row, int32_t target, float log_sum, float *added, const shape &s) {
  const int64_t column = target - s.first;
  const bool is_here = target != s.ignored && column >= 0 && column < s.used;
  added[0] = log_sum;
  added[1] = is_here ? ms_element_load(row + column) : 0.0f;
}

/* added [rows][2]. One block per row. */
template <class T>
__global__ void __launch_bounds__(LONG_THREADS)
    added_rows(const T *logits, const int32_t *targets, float *added, shape s) {
  const int64_t row = blockIdx.x;
  const float value = row_lse(logits + row * s.stride, s.used);
  if (threadIdx.x == 0) add_row(logits + row * s.stride, targets[row], value, added + 2 * row, s);
}

/* lse [rows] and losses double [rows] of what all parts add. One thread per row. */
__global__ void __launch_bounds__(THREADS)
    join_rows(const float *added, const int32_t *targets, float *lse, double *losses, ms_fault *fault, shape s) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (row >= s.rows) return;
  float largest = -INFINITY, sum = 0.0f, own = 0.0f;
  for (int64_t p = 0; p < s.parts; p++) largest = fmaxf(largest, added[2 * (p * s.rows + row)]);
  const float base = largest > -INFINITY ? largest : 0.0f;
  for (int64_t p = 0; p < s.parts; p++) {
    sum += expf(added[2 * (p * s.rows + row)] - base);
    own += added[2 * (p * s.rows + row) + 1];
  }
  lse[row] = base + logf(sum);
  losses[row] = 0.0;
  if (counts(targets[row], s)) losses[row] = static_cast<double>(lse[row]) - static_cast<double>(own);
  else if (targets[row] != s.ignored) ms_note_fault(fault, MS_OP_cross_entropy_join, targets[row], s.classes);
}

/* loss [1] = the mean of losses [rows] over the targets that count, whose number is count [1] unless null. One block.
 */
__global__ void __launch_bounds__(LAST_THREADS)
    forward_mean(const double *losses, const int32_t *targets, float *loss, float *count, shape s) {
  double sum = 0.0, counted = 0.0;
  for (int64_t row = threadIdx.x; row < s.rows; row += LAST_THREADS) {
    sum += losses[row];
    counted += counts(targets[row], s) ? 1.0 : 0.0;
  }
  sum = ms_row_reduce(sum, 0.0, ms_add());
  counted = ms_row_reduce(counted, 0.0, ms_add());
  if (threadIdx.x != 0) return;
  *loss = counted > 0.0 ? static_cast<float>(sum / counted) : 0.0f;
  if (count) *count = static_cast<float>(counted);
}

/* count [1] = the number of targets [n] that are not ignored. One block. */
__global__ void __launch_bounds__(LAST_THREADS)
    count_of(const int32_t *targets, int64_t n, int64_t ignored, float *count) {
  double counted = 0.0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < n; i += LAST_THREADS) counted += targets[i] != ignored ? 1.0 : 0.0;
  counted = ms_row_reduce(counted, 0.0, ms_add());
  if (threadIdx.x == 0) *count = static_cast<float>(counted);
}

/* y [1] = x part / total, 0 where total is 0. One thread. */
__global__ void weigh(const float *x, const float *part, const float *total, float *y) {
  *y = *total == 0.0f ? 0.0f : *x * (*part / *total);
}

/* to [stride] = (softmax - onehot) scale of a row of logits, by a block. */
template <class T>
__device__ __forceinline__ void write_gradient(const T *row, T *to, int32_t row_target, float log_sum, float scale,
                                               const shape &s) {
  const bool counted = counts(row_target, s);
  const int64_t target = row_target - s.first;
  ms_map_row(row, to, s.stride, [&](int64_t first, auto &x) {
    int64_t at = first;
    for (float &e : x) {
      e = counted && at < s.used ? scale * (__expf(e - log_sum) - (at == target ? 1.0f : 0.0f)) : 0.0f;
      at++;
    }
  });
}

__device__ __forceinline__ float scale_of(const float *count, const float *dloss) {
  return *count > 0.0f ? *dloss / *count : 0.0f;
}

/* dlogits [rows][stride], with the dloss of the mean over count. One block per row. */
template <class T>
__global__ void __launch_bounds__(LONG_THREADS)
    backward_rows(const T *logits, const int32_t *targets, const float *lse, const float *count, const float *dloss,
                  T *dlogits, shape s) {
  const int64_t row = blockIdx.x;
  write_gradient(logits + row * s.stride, dlogits + row * s.stride, targets[row], lse[row], scale_of(count, dloss), s);
}

/* added_rows and backward_rows of a row that is read once. */
template <class T>
__global__ void __launch_bounds__(LONG_THREADS) both_rows(const T *logits, const int32_t *targets, float *added,
                                                          const float *count, const float *dloss, T *dlogits, shape s) {
  MS_CUDA_DYNAMIC_SHARED(T, shared); /* ms_kept_bytes of a row */
  const int64_t row = blockIdx.x;
  const T *kept = ms_keep_row(logits + row * s.stride, s.stride, shared);
  const float log_sum = row_lse(kept, s.used);
  if (threadIdx.x == 0) add_row(kept, targets[row], log_sum, added + 2 * row, s);
  write_gradient(kept, dlogits + row * s.stride, targets[row], log_sum, scale_of(count, dloss), s);
}

/* forward_rows and backward_rows of a row that is read once. */
template <class T>
__global__ void __launch_bounds__(LONG_THREADS)
    step_rows(const T *logits, const int32_t *targets, double *losses, ms_fault *fault, const float *count,
              const float *dloss, T *dlogits, shape s) {
  MS_CUDA_DYNAMIC_SHARED(T, shared); /* ms_kept_bytes of a row */
  const int64_t row = blockIdx.x;
  const T *kept = ms_keep_row(logits + row * s.stride, s.stride, shared);
  const float log_sum = row_lse(kept, s.used);
  if (threadIdx.x == 0) losses[row] = loss_of(kept, targets[row], log_sum, fault, s);
  write_gradient(kept, dlogits + row * s.stride, targets[row], log_sum, scale_of(count, dloss), s);
}

template <class T> int forward(const ms_kernel_call *call) {
  const shape s = shape_of(call);
  const int32_t *targets = static_cast<const int32_t *>(call->in_data[TARGETS]);
  double *losses = static_cast<double *>(call->workspace);
  if (s.rows)
    MS_TRY(MS_CUDA_LAUNCH(forward_rows<T>, static_cast<unsigned>(s.rows), threads_of(s), 0, call->stream,
                          static_cast<const T *>(call->in_data[LOGITS]), targets,
                          static_cast<float *>(call->out_data[1]), losses, call->fault, s));
  return MS_CUDA_LAUNCH(forward_mean, 1, LAST_THREADS, 0, call->stream, losses, targets,
                        static_cast<float *>(call->out_data[0]), static_cast<float *>(call->out_data[2]), s);
}

template <class T> int added(const ms_kernel_call *call) {
  const shape s = shape_of(call);
  if (s.rows == 0) return MS_OK;
  return MS_CUDA_LAUNCH(added_rows<T>, static_cast<unsigned>(s.rows), threads_of(s), 0, call->stream,
                        static_cast<const T *>(call->in_data[LOGITS]),
                        static_cast<const int32_t *>(call->in_data[TARGETS]), static_cast<float *>(call->out_data[0]),
                        s);
}

int run_join(const ms_kernel_call *call) {
  const shape s = shape_of(call);
  const int32_t *targets = static_cast<const int32_t *>(call->in_data[TARGETS]);
  double *losses = static_cast<double *>(call->workspace);
  if (s.rows)
    MS_TRY(MS_CUDA_LAUNCH(join_rows, static_cast<unsigned>((s.rows + THREADS - 1) / THREADS), THREADS, 0, call->stream,
                          static_cast<const float *>(call->in_data[ADDED]), targets,
                          static_cast<float *>(call->out_data[1]), losses, call->fault, s));
  return MS_CUDA_LAUNCH(forward_mean, 1, LAST_THREADS, 0, call->stream, losses, targets,
                        static_cast<float *>(call->out_data[0]), static_cast<float *>(call->out_data[2]), s);
}

template <class T> int backward(const ms_kernel_call *call) {
  const shape s = shape_of(call);
  if (s.rows == 0) return MS_OK;
  return MS_CUDA_LAUNCH(
      backward_rows<T>, static_cast<unsigned>(s.rows), threads_of(s), 0, call->stream,
      static_cast<const T *>(call->in_data[LOGITS]), static_cast<const int32_t *>(call->in_data[TARGETS]),
      static_cast<const float *>(call->in_data[LSE]), static_cast<const float *>(call->in_data[COUNT]),
      static_cast<const float *>(call->in_data[DLOSS]), static_cast<T *>(call->out_data[0]), s);
}

template <class T> int both(const ms_kernel_call *call) {
  const shape s = shape_of(call);
  if (s.rows == 0) return MS_OK;
  return MS_CUDA_LAUNCH_SHARED(
      both_rows<T>, static_cast<unsigned>(s.rows), threads_of(s), ms_kept_bytes<T>(s.stride), call->stream,
      static_cast<const T *>(call->in_data[LOGITS]), static_cast<const int32_t *>(call->in_data[TARGETS]),
      static_cast<float *>(call->out_data[1]), static_cast<const float *>(call->in_data[COUNT]),
      static_cast<const float *>(call->in_data[DLOSS]), static_cast<T *>(call->out_data[0]), s);
}

/* A row that is too long for shared memory is read for its loss, and again for its gradient. */
template <class T> int step(const ms_kernel_call *call) {
  const shape s = shape_of(call);
  const unsigned rows = static_cast<unsigned>(s.rows);
  const T *logits = static_cast<const T *>(call->in_data[LOGITS]);
  const int32_t *targets = static_cast<const int32_t *>(call->in_data[TARGETS]);
  const float *count = static_cast<const float *>(call->in_data[STEP_COUNT]);
  const float *dloss = static_cast<const float *>(call->in_data[STEP_DLOSS]);
  double *losses = static_cast<double *>(call->workspace);
  T *dlogits = static_cast<T *>(call->out_data[0]);
  if (rows && ms_kept_bytes<T>(s.stride) <= MS_KEPT_BYTES) {
    MS_TRY(MS_CUDA_LAUNCH_SHARED(step_rows<T>, rows, threads_of(s), ms_kept_bytes<T>(s.stride), call->stream, logits,
                                 targets, losses, call->fault, count, dloss, dlogits, s));
  } else if (rows) {
    float *lse = reinterpret_cast<float *>(losses + s.rows);
    MS_TRY(MS_CUDA_LAUNCH(forward_rows<T>, rows, threads_of(s), 0, call->stream, logits, targets, lse, losses,
                          call->fault, s));
    MS_TRY(MS_CUDA_LAUNCH(backward_rows<T>, rows, threads_of(s), 0, call->stream, logits, targets, lse, count, dloss,
                          dlogits, s));
  }
  return MS_CUDA_LAUNCH(forward_mean, 1, LAST_THREADS, 0, call->stream, losses, targets,
                        static_cast<float *>(call->out_data[1]), static_cast<float *>(nullptr), s);
}

int run_count(const ms_kernel_call *call) {
  return MS_CUDA_LAUNCH(count_of, 1, LAST_THREADS, 0, call->stream, static_cast<const int32_t *>(call->in_data[0]),
                        ms_numel(&call->in[0]), call->attrs.loss.ignore_index, static_cast<float *>(call->out_data[0]));
}

int run_step(const ms_kernel_call *call) { return MS_CUDA_FLOATS(call->in[LOGITS].dtype, T, step<T>(call)); }
int run_forward(const ms_kernel_call *call) { return MS_CUDA_FLOATS(call->in[LOGITS].dtype, T, forward<T>(call)); }
int run_added(const ms_kernel_call *call) { return MS_CUDA_FLOATS(call->in[LOGITS].dtype, T, added<T>(call)); }
int run_backward(const ms_kernel_call *call) { return MS_CUDA_FLOATS(call->in[LOGITS].dtype, T, backward<T>(call)); }

int run_weigh(const ms_kernel_call *call) {
  const float *const *in = reinterpret_cast<const float *const *>(call->in_data);
  return MS_CUDA_LAUNCH(weigh, 1, 1, 0, call->stream, in[0], in[1], in[2], static_cast<float *>(call->out_data[0]));
}

} // namespace

int ms_cuda_cross_entropy_fits(int dtype, int64_t classes) {
  return MS_CUDA_FLOATS(dtype, T, ms_kept_bytes<T>(classes)) <= MS_KEPT_BYTES;
}

int ms_cuda_cross_entropy_both(const ms_kernel_call *call) {
  return MS_CUDA_FLOATS(call->in[LOGITS].dtype, T, both<T>(call));
}

extern const ms_kernel ms_cuda_cross_entropy = {ms_cuda_prepare_cross_entropy, run_forward, nullptr,
                                                MS_CUDA_OVER_cross_entropy};
extern const ms_kernel ms_cuda_cross_entropy_part = {nullptr, run_added, nullptr, MS_CUDA_OVER_cross_entropy_part};
extern const ms_kernel ms_cuda_cross_entropy_join = {ms_cuda_prepare_cross_entropy, run_join, nullptr,
                                                     MS_CUDA_OVER_cross_entropy_join};
extern const ms_kernel ms_cuda_cross_entropy_backward = {nullptr, run_backward, nullptr,
                                                         MS_CUDA_OVER_cross_entropy_backward};
extern const ms_kernel ms_cuda_cross_entropy_step = {ms_cuda_prepare_cross_entropy_step, run_step, nullptr,
                                                     MS_CUDA_OVER_cross_entropy_step};
extern const ms_kernel ms_cuda_count_targets = {nullptr, run_count, nullptr, MS_CUDA_OVER_count_targets};
extern const ms_kernel ms_cuda_weigh = {nullptr, run_weigh, nullptr, MS_CUDA_OVER_weigh};
