/* cross_entropy.c - the mean loss of a classifier, and its gradient, without a tensor of probabilities.
 *
 * Forward reads each row of logits once: it widens a block to f32 in L1, updates the running maximum with the block's
 * largest element, and rescales the running sum of exponentials to it (Milakov & Gimelshein 2018). For backward it
 * keeps one number per row, the log of that sum. Losses are summed in double, and the parts in order.
 *
 * Where the gradient of the loss is known before, loss and logits' gradient are one pass: rows are written while they
 * are in cache, with the bits of the two passes.
 *
 * Where ranks have different parts of the classes, each gives two numbers a row, and the loss is made of those of all
 * parts. No rank sees the logits of another.
 *
 * logits, dlogits [rows][stride] f32 or bf16, of which the first `used` columns count and the rest is padding; targets
 * i32 [rows]; lse f32 [rows]; loss, count, dloss f32 [1]; added f32 [parts][rows][2].
 */
#include "kernels/cpu/block.h"

#include <math.h>

#include "base/error.h"
#include "base/min.h"
#include "base/numbers/dtype.h"
#include "kernels/cpu/parallel.h"
#include "kernels/shape.h"

/* The result of one part, in the workspace, on its own cache line. */
typedef struct partial {
  double loss;
  int64_t counted;
  int64_t bad_row; /* the first row with an invalid target; -1: none */
  char padding[64 - 24];
} partial;

enum { LOGITS, TARGETS, LSE, COUNT, ADDED = 2, STEP_COUNT = 2 };

static int is_class(int32_t target, int64_t classes) { return target >= 0 && target < classes; }

/* The number of classes, in all parts. Logits after them are padding and do not contribute to the loss. */
static int64_t classes_of(const ms_kernel_call *call) {
  const int64_t parts = call->attrs.loss.parts > 1 ? call->attrs.loss.parts : 1;
  return call->attrs.loss.classes ? call->attrs.loss.classes : ms_row_length(&call->in[LOGITS]) * parts;
}

/* The class of the first column; 0 unless there are parts. */
static int64_t first_of(const ms_kernel_call *call) { return call->attrs.loss.first; }

/* The columns that are classes. */
static int64_t used_of(const ms_kernel_call *call) {
  const int64_t left = classes_of(call) - first_of(call), stride = ms_row_length(&call->in[LOGITS]);
  return left < 0 ? 0 : left < stride ? left : stride;
}

static int fail_on_target(const ms_kernel_call *call, int64_t row) {
  const int64_t classes = classes_of(call);
  return MS_FAIL(MS_EINVAL, "cross_entropy: target %d of row %lld is not in [0,%lld) and is not ignore_index (%lld)",
                 (int)((const int32_t *)call->in_data[TARGETS])[row], (long long)row, (long long)classes,
                 (long long)call->attrs.loss.ignore_index);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

MS_INLINE float block_max(const float *x, int64_t n) {
  float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; i++) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

/* sum e^(x - largest); buffer [MS_BLOCK]. Two passes: exponentials to memory vectorise better than into a sum. */
MS_INLINE float block_sum(const float *x, float largest, int64_t n, float *buffer) {
  float sum = 0.0f;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) buffer[i] = ms_exp_nonpositive(x[i] - largest);
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += buffer[i];
  return sum;
}

/* ln sum e^x over a row [n] of logits from element `first` */
MS_INLINE float row_lse(const void *logits, int dtype, int64_t first, int64_t n) {
  MS_BLOCK_BUFFER(widened);
  MS_BLOCK_BUFFER(exponentials);
  float largest = -INFINITY, sum = 0.0f;
  for (int64_t i = 0; i < n; i += MS_BLOCK) {
    const int64_t length = ms_block_length(i, n);
    const float *x = ms_block_in(logits, dtype, first + i, length, widened);
    const float highest = block_max(x, length);
    if (highest > largest) {
      sum *= expf(largest - highest);
      largest = highest;
    }
    sum += block_sum(x, largest > -INFINITY ? largest : 0.0f, length, exponentials);
  }
  return largest > -INFINITY ? largest + logf(sum) : logf(sum); /* a row of only -inf and NaN has no largest element */
}

/* Adds a row's loss. Returns 0 if its target is no class. */
MS_INLINE int add_loss(const ms_kernel_call *call, int64_t row, float lse, partial *share) {
  const int64_t classes = classes_of(call), stride = ms_row_length(&call->in[LOGITS]);
  const int32_t target = ((const int32_t *)call->in_data[TARGETS])[row];
  if (target == call->attrs.loss.ignore_index) return 1;
  if (!is_class(target, classes)) {
    share->bad_row = row;
    return 0;
  }
  share->loss += (double)lse - ms_scalar_at(call->in_data[LOGITS], call->in[LOGITS].dtype, row * stride + target);
  share->counted++;
  return 1;
}

/* The log-sums of rows from `begin` on, lse [end - begin], and their losses. Returns 0 if a target is no class. */
MS_CLONES static int read_rows(const ms_kernel_call *call, int64_t begin, int64_t end, float *lse, partial *share) {
  const int64_t classes = classes_of(call), stride = ms_row_length(&call->in[LOGITS]);
  for (int64_t r = begin; r < end; r++) {
    lse[r - begin] = row_lse(call->in_data[LOGITS], call->in[LOGITS].dtype, r * stride, classes);
    if (!add_loss(call, r, lse[r - begin], share)) return 0;
  }
  return 1;
}

static void forward_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  partial share = {.bad_row = -1};
  (void)read_rows(call, begin, end, (float *)call->out_data[1] + begin, &share); /* bad_row tells */
  ((partial *)call->workspace)[part] = share;
}

static int64_t rows_of(const ms_kernel_call *call) { return ms_row_count(&call->in[LOGITS]); }

static int parts_of(const ms_kernel_call *call) { return ms_part_count(call, rows_of(call), ms_call_bytes(call)); }

/* Those of a loss, whether or not its gradient is written, too: its bits depend on them. */
static int loss_parts_of(const ms_kernel_call *call) {
  const ms_value_info *logits = &call->in[LOGITS];
  return ms_part_count(call, rows_of(call), ms_numel(logits) * ms_dtype_size(logits->dtype));
}

static int prepare_loss(ms_kernel_call *call) {
  call->workspace_bytes = loss_parts_of(call) * (int64_t)sizeof(partial);
  return MS_OK;
}

/* Runs a function that computes a share of the loss for some rows, and adds the shares to `all`. */
static int run_rows(const ms_kernel_call *call, ms_part_fn *run, partial *all) {
  const partial *shares = call->workspace;
  const int parts = loss_parts_of(call);
  *all = (partial){.bad_row = -1};
  ms_run_parts(call, parts, rows_of(call), 1, run);
  for (int part = 0; part < parts; part++) {
    if (shares[part].bad_row >= 0) return fail_on_target(call, shares[part].bad_row);
    all->loss += shares[part].loss;
    all->counted += shares[part].counted;
  }
  return MS_OK;
}

static float mean_of(const partial *all) { return all->counted ? (float)(all->loss / (double)all->counted) : 0.0f; }

static int run_loss(const ms_kernel_call *call, ms_part_fn *run) {
  partial all;
  MS_TRY(run_rows(call, run, &all));
  *(float *)call->out_data[0] = mean_of(&all);
  *(float *)call->out_data[2] = (float)all.counted;
  return MS_OK;
}

static int run_forward(const ms_kernel_call *call) { return run_loss(call, forward_part); }

const ms_kernel ms_cpu_cross_entropy = {.prepare = prepare_loss, .run = run_forward};

static int run_count(const ms_kernel_call *call) {
  const int32_t *targets = call->in_data[0];
  const int64_t n = ms_numel(&call->in[0]), ignored = call->attrs.loss.ignore_index;
  int64_t counted = 0;
  for (int64_t r = 0; r < n; r++) counted += targets[r] != ignored;
  *(float *)call->out_data[0] = (float)counted;
  return MS_OK;
}

const ms_kernel ms_cpu_count_targets = {.run = run_count};

/* ---- in parts ---- */

/* What this part of the classes adds: the log of its sum of exponentials, and the target's logit. */
MS_CLONES static void added_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  const int64_t used = used_of(call), stride = ms_row_length(&call->in[LOGITS]),
                ignored = call->attrs.loss.ignore_index;
  const int32_t *targets = call->in_data[TARGETS];
  const int dtype = call->in[LOGITS].dtype;
  float *added = call->out_data[0]; /* [rows][2] */
  (void)part;
  for (int64_t r = begin; r < end; r++) {
    const int64_t column = targets[r] - first_of(call);
    const int is_here = targets[r] != ignored && column >= 0 && column < used;
    added[2 * r] = row_lse(call->in_data[LOGITS], dtype, r * stride, used);
    added[2 * r + 1] = is_here ? ms_scalar_at(call->in_data[LOGITS], dtype, r * stride + column) : 0.0f;
  }
}

static int run_added(const ms_kernel_call *call) {
  ms_run_parts(call, parts_of(call), rows_of(call), 1, added_part);
  return MS_OK;
}

const ms_kernel ms_cpu_cross_entropy_part = {.run = run_added};

/* ln sum e^x over x [parts], which are `rows` pairs apart */
static float join_lse(const float *x, int64_t rows, int64_t parts) {
  float largest = -INFINITY, sum = 0.0f;
  for (int64_t p = 0; p < parts; p++) largest = fmaxf(largest, x[2 * p * rows]);
  const float base = largest > -INFINITY ? largest : 0.0f;
  for (int64_t p = 0; p < parts; p++) sum += expf(x[2 * p * rows] - base);
  return base + logf(sum);
}

static void join_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  const int64_t classes = classes_of(call), parts = call->attrs.loss.parts, ignored = call->attrs.loss.ignore_index,
                rows = rows_of(call);
  const int32_t *targets = call->in_data[TARGETS];
  const float *added = call->in_data[ADDED];
  float *lse = call->out_data[1];
  partial share = {.bad_row = -1};
  for (int64_t r = begin; r < end; r++) {
    float own = 0.0f; /* the target's logit: only one part has it */
    lse[r] = join_lse(added + 2 * r, rows, parts);
    if (targets[r] == ignored) continue;
    if (!is_class(targets[r], classes)) {
      share.bad_row = r;
      break;
    }
    for (int64_t p = 0; p < parts; p++) own += added[2 * (p * rows + r) + 1];
    share.loss += (double)lse[r] - own;
    share.counted++;
  }
  ((partial *)call->workspace)[part] = share;
}

static int run_join(const ms_kernel_call *call) { return run_loss(call, join_part); }

const ms_kernel ms_cpu_cross_entropy_join = {.prepare = prepare_loss, .run = run_join};

static int run_weigh(const ms_kernel_call *call) {
  const float x = *(const float *)call->in_data[0], part = *(const float *)call->in_data[1],
              total = *(const float *)call->in_data[2];
  *(float *)call->out_data[0] = total == 0.0f ? 0.0f : x * (part / total);
  return MS_OK;
}

const ms_kernel ms_cpu_weigh = {.run = run_weigh};

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* y = scale e^(x - lse); x, y [n]; y can be x. */
MS_INLINE void backward_block(float *y, const float *x, float lse, float scale, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = scale * ms_exp_nonpositive(x[i] - lse);
}

/* One row of dlogits [n]; columns from `classes` on become 0; classes 0: the row is ignored. target -1: the target is
 * in another part. Its logit is read before the row is written, because dlogits can overwrite logits. */
MS_INLINE void backward_row(const ms_kernel_call *call, int64_t first, int64_t n, int64_t classes, float lse,
                            float scale, int64_t target) {
  MS_BLOCK_BUFFER(widened);
  MS_BLOCK_BUFFER(result);
  const int in = call->in[LOGITS].dtype, out = call->out[0].dtype;
  const float own = target < 0 ? 0.0f : ms_scalar_at(call->in_data[LOGITS], in, first + target);
  for (int64_t i = 0; i < n; i += MS_BLOCK) {
    const int64_t length = ms_block_length(i, n), left = classes > i ? classes - i : 0;
    const int64_t used = left < length ? left : length;
    float *y = ms_block_out(call->out_data[0], out, first + i, result);
    if (used) backward_block(y, ms_block_in(call->in_data[LOGITS], in, first + i, used, widened), lse, scale, used);
    if (used < length) ms_block_fill(y + used, 0.0f, length - used);
    ms_block_done(call->out_data[0], out, first + i, length, result);
  }
  if (target >= 0)
    ms_simd_store(call->out_data[0], first + target, scale * (ms_exp_nonpositive(own - lse) - 1.0f), out == MS_BF16);
}

/* Rows of the gradient from `begin` on; lse [end - begin]. Forward has checked the targets. Invalid ones are treated as
 * ignored, so that nothing is written out of bounds. */
MS_CLONES static void write_rows(const ms_kernel_call *call, int64_t begin, int64_t end, const float *lse,
                                 float scale) {
  const int64_t classes = classes_of(call), stride = ms_row_length(&call->in[LOGITS]),
                ignored = call->attrs.loss.ignore_index;
  const int64_t first = first_of(call), used = used_of(call);
  const int32_t *targets = call->in_data[TARGETS];
  for (int64_t r = begin; r < end; r++) {
    const int counts = targets[r] != ignored && is_class(targets[r], classes);
    const int64_t column = targets[r] - first, is_here = counts && column >= 0 && column < used;
    backward_row(call, r * stride, stride, counts ? used : 0, lse[r - begin], scale, is_here ? column : -1);
  }
}

/* dloss / count of the inputs at `count` and after it. */
static float scale_of(const ms_kernel_call *call, int count) {
  const float counted = *(const float *)call->in_data[count];
  return counted > 0.0f ? *(const float *)call->in_data[count + 1] / counted : 0.0f;
}

static void backward_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  write_rows(call, begin, end, (const float *)call->in_data[LSE] + begin, scale_of(call, COUNT));
}

static int run_backward(const ms_kernel_call *call) {
  ms_run_parts(call, parts_of(call), rows_of(call), 1, backward_part);
  return MS_OK;
}

const ms_kernel ms_cpu_cross_entropy_backward = {.run = run_backward, .in_place = MS_OVER(0, 0)};

/* ---- both -------------------------------------------------------------------------------------------------------- */

/* Rows that are read before the first of them is written: few enough to stay in a core's cache. */
enum { MAX_AT_ONCE = 32, BYTES_AT_ONCE = 256 << 10 };

static int64_t rows_at_once(const ms_kernel_call *call) {
  const ms_value_info *logits = &call->in[LOGITS];
  const int64_t fit = BYTES_AT_ONCE / (ms_row_length(logits) * ms_dtype_size(logits->dtype) + 1);
  return fit < 1 ? 1 : ms_min(fit, MAX_AT_ONCE);
}

static void step_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  const int64_t at_once = rows_at_once(call);
  const float scale = scale_of(call, STEP_COUNT);
  float lse[MAX_AT_ONCE];
  partial share = {.bad_row = -1};
  for (int64_t r = begin; r < end; r += at_once) {
    const int64_t stop = ms_min(r + at_once, end);
    if (!read_rows(call, r, stop, lse, &share)) break;
    write_rows(call, r, stop, lse, scale);
  }
  ((partial *)call->workspace)[part] = share;
}

static int run_step(const ms_kernel_call *call) {
  partial all;
  MS_TRY(run_rows(call, step_part, &all));
  *(float *)call->out_data[1] = mean_of(&all);
  return MS_OK;
}

const ms_kernel ms_cpu_cross_entropy_step = {.prepare = prepare_loss, .run = run_step, .in_place = MS_OVER(0, 0)};
