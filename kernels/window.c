/* window.c - reads the windows of a call's attributes and shapes; see the header. */
#include "kernels/window.h"

void ms_conv_windows(const ms_op_attrs *attrs, ms_window *down, ms_window *across) {
  *down = (ms_window){
      .stride = attrs->windows.stride_h, .pad = attrs->windows.pad_h, .dilation = attrs->windows.dilation_h};
  *across = (ms_window){
      .stride = attrs->windows.stride_w, .pad = attrs->windows.pad_w, .dilation = attrs->windows.dilation_w};
}

ms_conv ms_conv_of(const ms_kernel_call *call) {
  const int to_x = call->op == MS_OP_conv2d_backward_input, to_w = call->op == MS_OP_conv2d_backward_weight;
  const ms_value_info *x = to_x ? &call->out[0] : &call->in[0], *w = to_w ? &call->out[0] : &call->in[1];
  const ms_value_info *y = to_x ? &call->in[0] : to_w ? &call->in[1] : &call->out[0];
  const int64_t groups = call->attrs.windows.groups;
  ms_conv c = {.images = x->dims[0], .groups = groups, .channels = w->dims[1], .features = w->dims[0] / groups};
  ms_conv_windows(&call->attrs, &c.down, &c.across);
  c.down.in = x->dims[2], c.down.out = y->dims[2], c.down.size = w->dims[2];
  c.across.in = x->dims[3], c.across.out = y->dims[3], c.across.size = w->dims[3];
  return c;
}

void ms_conv_product(const ms_kernel_call *call, int64_t *size) {
  const ms_conv c = ms_conv_of(call);
  const int to_x = call->op == MS_OP_conv2d_backward_input, to_w = call->op == MS_OP_conv2d_backward_weight;
  const int64_t taps = c.down.size * c.across.size, of_y = c.images * c.down.out * c.across.out;
  size[0] = c.groups;
  size[1] = to_x ? c.channels : c.features;
  size[2] = to_x ? c.images * c.down.in * c.across.in : to_w ? c.channels * taps : of_y;
  size[3] = to_x ? c.features * taps : to_w ? of_y : c.channels * taps;
}

void ms_pool_windows(const ms_op_attrs *attrs, ms_window *down, ms_window *across) {
  const int64_t high = attrs->windows.kernel_h, wide = attrs->windows.kernel_w;
  *down = (ms_window){.size = high,
                      .stride = attrs->windows.stride_h ? attrs->windows.stride_h : high,
                      .pad = attrs->windows.pad_h,
                      .dilation = 1};
  *across = (ms_window){.size = wide,
                        .stride = attrs->windows.stride_w ? attrs->windows.stride_w : wide,
                        .pad = attrs->windows.pad_w,
                        .dilation = 1};
}

ms_pool ms_pool_of(const ms_kernel_call *call, int backward) {
  const ms_value_info *x = backward ? &call->out[0] : &call->in[0], *y = backward ? &call->in[0] : &call->out[0];
  const int n = x->ndim;
  ms_pool p = {.planes = 1};
  ms_pool_windows(&call->attrs, &p.down, &p.across);
  for (int d = 0; d < n - 2; d++) p.planes *= x->dims[d];
  p.down.in = x->dims[n - 2], p.down.out = y->dims[n - 2];
  p.across.in = x->dims[n - 1], p.across.out = y->dims[n - 1];
  return p;
}
