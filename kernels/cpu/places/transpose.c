/* transpose.c - permutes axes. Axes that stay adjacent are merged first. If the last axis stays last, contiguous bytes
 * are copied. Otherwise the plane of the input's last axis and the output's last axis is transposed in tiles that fit
 * in L1, so that every cache line is read or written only once. */
#include <string.h>

#include "base/numbers/dtype.h"
#include "kernels/cpu/parallel.h"
#include "kernels/shape.h"

/* A tile of 32 x 32 f32 is 4 KiB on each side. */
enum { TILE = 32 };

/* The output's axes, outermost first, and the input's stride along each, in elements. */
typedef struct turn {
  int ndim;
  int64_t dims[MS_MAX_DIMS], from[MS_MAX_DIMS];
} turn;

static turn turn_of(const ms_kernel_call *call) {
  const ms_value_info *x = &call->in[0];
  int64_t strides[MS_MAX_DIMS], stride = 1;
  for (int d = x->ndim - 1; d >= 0; d--) {
    strides[d] = stride;
    stride *= x->dims[d];
  }
  turn t = {0};
  for (int d = 0; d < x->ndim; d++) {
    int axis = ms_axis_of(x, call->attrs.permutation.p[d]);
    if (x->dims[axis] == 1) continue;
    if (t.ndim && t.from[t.ndim - 1] == strides[axis] * x->dims[axis]) {
      t.dims[t.ndim - 1] *= x->dims[axis];
      t.from[t.ndim - 1] = strides[axis];
      continue;
    }
    t.dims[t.ndim] = x->dims[axis];
    t.from[t.ndim++] = strides[axis];
  }
  if (t.ndim == 0) t = (turn){.ndim = 1, .dims = {1}, .from = {1}};
  return t;
}

/* Computes the offsets in input and output of index `at` over the axes that are not in the bit mask `inner`. */
static void locate(const turn *t, unsigned inner, int64_t at, int64_t *from, int64_t *to) {
  int64_t stride = 1;
  *from = *to = 0;
  for (int d = t->ndim - 1; d >= 0; d--) {
    if (!(inner >> d & 1u)) {
      *from += at % t->dims[d] * t->from[d];
      *to += at % t->dims[d] * stride;
      at /= t->dims[d];
    }
    stride *= t->dims[d];
  }
}

/* y[r * y_stride + c] = x[c * x_stride + r], r < rows, c < columns */
#define TURN_PLANE(type)                                                                                  \
  static void turn_plane_##type(const type *x, int64_t x_stride, type *y, int64_t y_stride, int64_t rows, \
                                int64_t columns) {                                                        \
    for (int64_t r0 = 0; r0 < rows; r0 += TILE)                                                           \
      for (int64_t c0 = 0; c0 < columns; c0 += TILE) {                                                    \
        int64_t r1 = r0 + TILE < rows ? r0 + TILE : rows, c1 = c0 + TILE < columns ? c0 + TILE : columns; \
        for (int64_t r = r0; r < r1; r++)                                                                 \
          for (int64_t c = c0; c < c1; c++) y[r * y_stride + c] = x[c * x_stride + r];                    \
      }                                                                                                   \
  }
TURN_PLANE(uint8_t)
TURN_PLANE(uint16_t)
TURN_PLANE(uint32_t)

static void copy_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  turn t = turn_of(call);
  int64_t size = ms_dtype_size(call->out[0].dtype), bytes = t.dims[t.ndim - 1] * size, from, to;
  for (int64_t at = begin; at < end; at++) {
    locate(&t, 1u << (t.ndim - 1), at, &from, &to);
    memcpy((char *)call->out_data[0] + to * size, (const char *)call->in_data[0] + from * size, (size_t)bytes);
  }
}

/* The output's axis along which the input has stride 1. */
static int unit_axis(const turn *t) {
  int axis = 0;
  while (t->from[axis] != 1) axis++;
  return axis;
}

/* Transposes planes, each divided into strips of TILE rows, so that one large matrix also has work for all threads. */
static void turn_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  turn t = turn_of(call);
  int last = t.ndim - 1, unit = unit_axis(&t);
  int64_t y_stride = 1, strips = (t.dims[unit] + TILE - 1) / TILE, from, to;
  for (int d = unit + 1; d < t.ndim; d++) y_stride *= t.dims[d];
  for (int64_t at = begin; at < end; at++) {
    int64_t row = at % strips * TILE, rows = t.dims[unit] - row < TILE ? t.dims[unit] - row : TILE;
    locate(&t, 1u << last | 1u << unit, at / strips, &from, &to);
    from += row;
    to += row * y_stride;
    const void *x = call->in_data[0];
    void *y = call->out_data[0];
    switch (ms_dtype_size(call->out[0].dtype)) {
      case 1:
        turn_plane_uint8_t((const uint8_t *)x + from, t.from[last], (uint8_t *)y + to, y_stride, rows, t.dims[last]);
        break;
      case 2:
        turn_plane_uint16_t((const uint16_t *)x + from, t.from[last], (uint16_t *)y + to, y_stride, rows, t.dims[last]);
        break;
      default:
        turn_plane_uint32_t((const uint32_t *)x + from, t.from[last], (uint32_t *)y + to, y_stride, rows, t.dims[last]);
        break;
    }
  }
}

static int run(const ms_kernel_call *call) {
  int64_t numel = ms_numel(&call->out[0]);
  if (numel == 0) return MS_OK;
  turn t = turn_of(call);
  int last = t.ndim - 1;
  int64_t items = numel / t.dims[last];
  if (t.from[last] != 1) {
    int64_t rows = t.dims[unit_axis(&t)];
    items = items / rows * ((rows + TILE - 1) / TILE);
  }
  ms_run_parts(call, ms_part_count(call, items, ms_call_bytes(call)), items, 1,
               t.from[last] == 1 ? copy_part : turn_part);
  return MS_OK;
}

const ms_kernel ms_cpu_transpose = {.run = run};
