/* conv2d_plain.c - convolutions and their gradients in plain loops, for builds in which a sanitizer must see every
 * access, and as a reference for oneDNN. A tap of the window at a time moves along whole rows.
 *
 * Work is divided by planes of the result: of y or x, or matrices [KH][KW] of the gradient of w. A plane is summed in
 * f32 in the part's scratch, so sums do not depend on how planes are divided.
 */
#include "kernels/cpu/block.h"

#include "kernels/cpu/windows/conv2d.h"
#include "kernels/cpu/parallel.h"

static int64_t planes_of(const ms_value_info *x) { return x->dims[0] * x->dims[1]; }

static int64_t plane_size(const ms_value_info *x) { return x->dims[2] * x->dims[3]; }

static int parts_of(const ms_kernel_call *call) {
  return ms_part_count(call, planes_of(&call->out[0]), ms_call_bytes(call));
}

int64_t ms_conv_plain_workspace(const ms_kernel_call *call) {
  return ms_scratch_bytes(parts_of(call), 1, plane_size(&call->out[0]));
}

/* ---- one plane of x, one of y, one matrix of w ------------------------------------------------------------------- */

enum { TO_Y, TO_X, TO_W };

/* Adds what two of the planes contribute to the third, which is `sums`; x, y and w begin at the elements given. */
MS_INLINE void add_plane(const ms_conv *c, int to, const void *x, int64_t x_at, const void *w, int64_t w_at,
                         const void *y, int64_t y_at, float *sums, int bf16) {
  const int64_t width = c->across.in, out_width = c->across.out;
  int64_t top, bottom, left, right;
  for (int64_t r = 0; r < c->down.size; r++)
    for (int64_t s = 0; s < c->across.size; s++) {
      const int64_t tap = r * c->across.size + s;
      const float weight = to == TO_W ? 0.0f : ms_simd_load(w, w_at + tap, bf16);
      float sum = 0.0f;
      ms_window_outputs_of(&c->down, r, &top, &bottom);
      ms_window_outputs_of(&c->across, s, &left, &right);
      for (int64_t i = top; i < bottom; i++) {
        const int64_t row = (i * c->down.stride - c->down.pad + r * c->down.dilation) * width;
        const int64_t shift = s * c->across.dilation - c->across.pad;
        for (int64_t j = left; j < right; j++) {
          const int64_t at_x = row + j * c->across.stride + shift, at_y = i * out_width + j;
          if (to == TO_Y) sums[at_y] += weight * ms_simd_load(x, x_at + at_x, bf16);
          if (to == TO_X) sums[at_x] += weight * ms_simd_load(y, y_at + at_y, bf16);
          if (to == TO_W) sum += ms_simd_load(x, x_at + at_x, bf16) * ms_simd_load(y, y_at + at_y, bf16);
        }
      }
      if (to == TO_W) sums[tap] += sum;
    }
}

/* Plane p of the result. Of y: image, group, feature; of x: image, group, channel; of w: group, feature, channel. */
MS_INLINE void sum_plane(const ms_kernel_call *call, const ms_conv *c, int to, int64_t p, float *sums, int bf16) {
  const int64_t x_plane = c->down.in * c->across.in, y_plane = c->down.out * c->across.out;
  const int64_t w_plane = c->down.size * c->across.size, x_planes = c->groups * c->channels;
  const int64_t y_planes = c->groups * c->features;
  const void *a = call->in_data[0], *b = call->in_data[1];
  if (to == TO_Y) {
    const int64_t image = p / y_planes, feature = p % y_planes, group = feature / c->features;
    for (int64_t k = 0; k < c->channels; k++)
      add_plane(c, to, a, (image * x_planes + group * c->channels + k) * x_plane, b,
                (feature * c->channels + k) * w_plane, NULL, 0, sums, bf16);
  } else if (to == TO_X) {
    const int64_t image = p / x_planes, group = p % x_planes / c->channels, channel = p % c->channels;
    for (int64_t k = group * c->features; k < (group + 1) * c->features; k++)
      add_plane(c, to, NULL, 0, b, (k * c->channels + channel) * w_plane, a, (image * y_planes + k) * y_plane, sums,
                bf16);
  } else {
    const int64_t feature = p / c->channels, channel = feature / c->features * c->channels + p % c->channels;
    for (int64_t image = 0; image < c->images; image++)
      add_plane(c, to, a, (image * x_planes + channel) * x_plane, NULL, 0, b, (image * y_planes + feature) * y_plane,
                sums, bf16);
  }
}

MS_INLINE void sum_planes(const ms_kernel_call *call, int part, int64_t begin, int64_t end, int to) {
  const ms_conv conv = ms_conv_of(call);
  const int64_t size = plane_size(&call->out[0]);
  const int bf16 = call->in[0].dtype == MS_BF16, bias = to == TO_Y && call->inputs == 3;
  float *sums = ms_scratch_row(call, part, 1, 0, size);
  for (int64_t p = begin; p < end; p++) {
    const int64_t feature = p % (conv.groups * conv.features);
    ms_block_fill(sums, bias ? ms_simd_load(call->in_data[2], feature, bf16) : 0.0f, size);
    if (bf16) sum_plane(call, &conv, to, p, sums, 1);
    else sum_plane(call, &conv, to, p, sums, 0);
    for (int64_t e = 0; e < size; e++)
      ms_simd_store(call->out_data[0], p * size + e, sums[e], call->out[0].dtype == MS_BF16);
  }
}

static void sum_y(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  sum_planes(call, part, begin, end, TO_Y);
}

static void sum_x(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  sum_planes(call, part, begin, end, TO_X);
}

static void sum_w(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  sum_planes(call, part, begin, end, TO_W);
}

void ms_conv_plain_run(const ms_kernel_call *call) {
  ms_run_parts(call, parts_of(call), planes_of(&call->out[0]), 1,
               call->op == MS_OP_conv2d                  ? sum_y
               : call->op == MS_OP_conv2d_backward_input ? sum_x
                                                         : sum_w);
}
