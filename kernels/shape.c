/* shape.c - reduces broadcasting to runs. */
#include "kernels/shape.h"

/* Aligns an input with the output from the last dim backwards, and stores its row-major strides: 0 where the input is
 * repeated. */
static void line_up(const ms_value_info *out, const ms_value_info *in, int64_t *strides) {
  int64_t stride = 1;
  for (int d = out->ndim - 1; d >= 0; d--) {
    int e = d - (out->ndim - in->ndim);
    int64_t dim = e >= 0 ? in->dims[e] : 1;
    strides[d] = dim == 1 ? 0 : stride;
    stride *= dim;
  }
}

/* Whether dim d of the output can merge with the last kept dim, its inner neighbour: for every input one stride must
 * cover both. */
static int merges(const ms_broadcast *kept, int inputs, int64_t strides[][MS_MAX_DIMS], int d) {
  int first = kept->ndim - 1;
  for (int i = 0; i < inputs; i++)
    if (strides[i][d] != kept->strides[i][first] * kept->dims[first]) return 0;
  return 1;
}

ms_broadcast ms_broadcast_of(const ms_value_info *out, int inputs, const ms_value_info *in) {
  int64_t strides[MS_MAX_BROADCAST_INPUTS][MS_MAX_DIMS];
  for (int i = 0; i < inputs; i++) line_up(out, &in[i], strides[i]);

  ms_broadcast kept = {0}; /* innermost dim first while it is built */
  for (int d = out->ndim - 1; d >= 0; d--) {
    if (out->dims[d] == 1) continue;
    if (kept.ndim && merges(&kept, inputs, strides, d)) {
      kept.dims[kept.ndim - 1] *= out->dims[d];
      continue;
    }
    kept.dims[kept.ndim] = out->dims[d];
    for (int i = 0; i < inputs; i++) kept.strides[i][kept.ndim] = strides[i][d];
    kept.ndim++;
  }

  ms_broadcast result = {.ndim = kept.ndim ? kept.ndim : 1, .dims = {1}};
  for (int d = 0; d < kept.ndim; d++) {
    int from = kept.ndim - 1 - d;
    result.dims[d] = kept.dims[from];
    for (int i = 0; i < inputs; i++) result.strides[i][d] = kept.strides[i][from];
  }
  return result;
}

int64_t ms_broadcast_run(const ms_broadcast *broadcast, int inputs, int64_t element, int64_t end, int64_t *offsets) {
  int last = broadcast->ndim - 1;
  int64_t rest = element, within = 0;
  for (int i = 0; i < inputs; i++) offsets[i] = 0;
  for (int d = last; d >= 0; d--) {
    int64_t at = d ? rest % broadcast->dims[d] : rest;
    rest = d ? rest / broadcast->dims[d] : 0;
    if (d == last) within = at;
    for (int i = 0; i < inputs; i++) offsets[i] += at * broadcast->strides[i][d];
  }
  int64_t run = broadcast->dims[last] - within;
  return run < end - element ? run : end - element;
}
