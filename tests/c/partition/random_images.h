/* random_images.h - nodes of a random graph with windows over the last two axes, and norms of groups of channels:
 * values of three axes [N,C,S] become images [N,C,S/2,2]. Results have three axes again, so that other nodes can read
 * them.
 */
#ifndef MS_TESTS_RANDOM_IMAGES_H
#define MS_TESTS_RANDOM_IMAGES_H

#include "tests/c/partition/random_nodes.h"

static inline int convolution_of(draw *d, int image) {
  const ms_value_info x = *shape(d, image);
  const int64_t groups = below(d, 2) && x.dims[1] % 2 == 0 ? 2 : 1, channels = 2 * groups;
  fixture *f = &d->t->f;
  const int w = op1(f, MS_OP_scale, some_param(d, 4, (int64_t[]){channels, x.dims[1] / groups, 2, 2}),
                    ATTRS(.scale = {.alpha = 0.3}));
  const ms_op_attrs attrs = {.windows = {.stride_h = 1 + below(d, 2),
                                         .stride_w = 1,
                                         .pad_h = below(d, 2),
                                         .pad_w = below(d, 2),
                                         .dilation_h = 1,
                                         .dilation_w = 1,
                                         .groups = groups}};
  return below(d, 2) ? op2(f, MS_OP_conv2d, image, w, &attrs)
                     : op3(f, MS_OP_conv2d, image, w, some_param(d, 1, &channels), &attrs);
}

static inline int windows_of(draw *d, int image) {
  const ms_op_attrs attrs = {.windows = {.kernel_h = 2,
                                         .kernel_w = 2,
                                         .stride_h = 1 + below(d, 2),
                                         .stride_w = 1,
                                         .pad_h = below(d, 2),
                                         .count_include_pad = below(d, 2)}};
  return op1(&d->t->f, below(d, 2) ? MS_OP_avg_pool2d : MS_OP_max_pool2d, image, &attrs);
}

static inline int image_node(draw *d) {
  fixture *f = &d->t->f;
  const int x = op1(f, MS_OP_tanh, with_axes(d, 3), NULL);
  const ms_value_info from = *shape(d, x);
  if (from.ndim != 3 || from.dims[2] < 4 || from.dims[2] % 2) return -1;
  if (below(d, 3) == 0) {
    const int64_t channels = from.dims[1], groups = channels % 2 ? 1 : 2;
    return op3(f, MS_OP_group_norm, x, some_param(d, 1, &channels), some_param(d, 1, &channels),
               ATTRS(.norm = {.groups = groups, .eps = 1e-2}));
  }
  const int image = reshape_to(f, x, SHAPE(from.dims[0], from.dims[1], from.dims[2] / 2, 2));
  const int y = below(d, 2) ? convolution_of(d, image) : windows_of(d, image);
  return reshape_to(f, y, SHAPE(from.dims[0], shape(d, y)->dims[1], -1));
}

#endif
