/* infer_norm.c - shape rules of layer_norm and rms_norm, fused with an addition or not, of group_norm, and of their
 * gradients. */
#include <inttypes.h>
#include <stdio.h>

#include "graph/infer/infer.h"

static int check_normalized(const ms_node *node, const ms_value_info *x) {
  MS_TRY(ms_check_float(node, x, "x"));
  if (x->ndim < 1) return MS_FAIL(MS_ESHAPE, "%s: x is a scalar; it must be [...,D]", ms_node_name(node));
  return MS_OK;
}

/* mean and rstd of each row, always in f32. */
static ms_value_info layer_norm_stats(const ms_value_info *x) {
  return (ms_value_info){.dtype = MS_F32, .ndim = 2, .dims = {ms_rows(x), 2}};
}

static ms_value_info rms_norm_stats(const ms_value_info *x) {
  return (ms_value_info){.dtype = MS_F32, .ndim = 1, .dims = {ms_rows(x)}};
}

int ms_infer_layer_norm(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_normalized(node, &in[0]));
  MS_TRY(ms_check_channels(node, &in[0], &in[1], "the gain"));
  MS_TRY(ms_check_channels(node, &in[0], &in[2], "the bias"));
  MS_TRY(ms_check_same_dtype(node, &in[1], "the gain", &in[2], "the bias"));
  out[0] = in[0];
  out[1] = layer_norm_stats(&in[0]);
  return MS_OK;
}

int ms_infer_rms_norm(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_normalized(node, &in[0]));
  MS_TRY(ms_check_channels(node, &in[0], &in[1], "the gain"));
  out[0] = in[0];
  out[1] = rms_norm_stats(&in[0]);
  return MS_OK;
}

static int check_summands(const ms_node *node, const ms_value_info *in) {
  MS_TRY(ms_check_same_shape(node, &in[0], "a", &in[1], "b"));
  return ms_check_same_dtype(node, &in[0], "a", &in[1], "b");
}

int ms_infer_add_layer_norm(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  ms_value_info normalized[3] = {in[0], in[2], in[3]};
  MS_TRY(check_summands(node, in));
  MS_TRY(ms_infer_layer_norm(node, normalized, out));
  out[2] = in[0];
  return MS_OK;
}

int ms_infer_add_rms_norm(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  ms_value_info normalized[2] = {in[0], in[2]};
  MS_TRY(check_summands(node, in));
  MS_TRY(ms_infer_rms_norm(node, normalized, out));
  out[2] = in[0];
  return MS_OK;
}

/* Inputs x, gain, stats, dy and optionally a gradient to add to dx; outputs dx and the channels' gradients. With
 * `again` the norm's result is the last output, and if there are two channels the bias follows dy. */
static int infer_norm_backward(const ms_node *node, const ms_value_info *in, ms_value_info stats, int channels,
                               int again, ms_value_info *out) {
  static const char *const what[] = {"x", "the gain", "the statistics", "dy", "the gradient to add"};
  const int bias = again && channels == 2 ? 4 : -1;
  MS_TRY(check_normalized(node, &in[0]));
  MS_TRY(ms_check_channels(node, &in[0], &in[1], what[1]));
  MS_TRY(ms_check_same_shape(node, &stats, "the statistics of x", &in[2], what[2]));
  MS_TRY(ms_check_dtype(node, &in[2], MS_F32, what[2]));
  if (bias > 0) {
    MS_TRY(ms_check_channels(node, &in[0], &in[bias], "the bias"));
    MS_TRY(ms_check_same_dtype(node, &in[1], what[1], &in[bias], "the bias"));
  }
  for (int i = 3; i < node->inputs; i++) {
    if (i == bias) continue;
    const char *name = what[i > 3 ? 4 : 3];
    MS_TRY(ms_check_same_shape(node, &in[0], what[0], &in[i], name));
    MS_TRY(ms_check_same_dtype(node, &in[0], what[0], &in[i], name));
  }
  out[0] = in[0];
  for (int c = 1; c <= channels; c++) {
    out[c] = in[1];
    MS_TRY(ms_asked_dtype(node, in[1].dtype, MS_DTYPE_FLOAT, &out[c].dtype));
  }
  if (again) out[1 + channels] = in[0];
  return MS_OK;
}

int ms_infer_layer_norm_backward(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  return infer_norm_backward(node, in, layer_norm_stats(&in[0]), 2, 0, out);
}

int ms_infer_rms_norm_backward(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  return infer_norm_backward(node, in, rms_norm_stats(&in[0]), 1, 0, out);
}

int ms_infer_layer_norm_backward_recompute(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  return infer_norm_backward(node, in, layer_norm_stats(&in[0]), 2, 1, out);
}

int ms_infer_rms_norm_backward_recompute(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  return infer_norm_backward(node, in, rms_norm_stats(&in[0]), 1, 1, out);
}

/* ---- groups of channels ------------------------------------------------------------------------------------------ */

static int check_of_channel(const ms_node *node, const ms_value_info *x, const ms_value_info *v, const char *what) {
  ms_value_info channels = *x;
  channels.ndim = 2; /* so that its last axis is that of the channels */
  return ms_check_channels(node, &channels, v, what);
}

static int check_groups(const ms_node *node, const ms_value_info *x, const ms_value_info *gain) {
  char text[MS_SHAPE_TEXT];
  const int64_t groups = node->attrs.norm.groups;
  MS_TRY(ms_check_float(node, x, "x"));
  MS_TRY(ms_check_ndim(node, x, 3, "x", "[N,C,S]"));
  MS_TRY(check_of_channel(node, x, gain, "the gain"));
  if (groups >= 1 && x->dims[1] % groups == 0) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "%s: %" PRId64 " groups of the channels of x %s; they must be a divisor of %" PRId64,
                 ms_node_name(node), groups, ms_shape_text(x, text), x->dims[1]);
}

static ms_value_info group_norm_stats(const ms_node *node, const ms_value_info *x) {
  return (ms_value_info){.dtype = MS_F32, .ndim = 3, .dims = {x->dims[0], node->attrs.norm.groups, 2}};
}

int ms_infer_group_norm(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_groups(node, &in[0], &in[1]));
  MS_TRY(check_of_channel(node, &in[0], &in[2], "the bias"));
  MS_TRY(ms_check_same_dtype(node, &in[1], "the gain", &in[2], "the bias"));
  out[0] = in[0];
  out[1] = group_norm_stats(node, &in[0]);
  return MS_OK;
}

int ms_infer_group_norm_backward(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_groups(node, &in[0], &in[1]));
  const ms_value_info stats = group_norm_stats(node, &in[0]);
  MS_TRY(ms_check_same_shape(node, &stats, "the statistics of x", &in[2], "the statistics"));
  MS_TRY(ms_check_dtype(node, &in[2], MS_F32, "the statistics"));
  MS_TRY(ms_check_same_shape(node, &in[0], "x", &in[3], "dy"));
  MS_TRY(ms_check_same_dtype(node, &in[0], "x", &in[3], "dy"));
  out[0] = in[0];
  out[1] = in[1];
  MS_TRY(ms_asked_dtype(node, in[1].dtype, MS_DTYPE_FLOAT, &out[1].dtype));
  out[2] = out[1];
  return MS_OK;
}
