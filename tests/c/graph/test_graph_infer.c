/* test_graph_infer.c - every shape rule: what it gives, what it refuses, and in which words; and costs.
 */
#include "tests/c/graph/graph_attempt.h"

#include <math.h>

#include "kernels/part.h"

static void matmul_shapes(void **state) {
  (void)state;
  int x = tensor(SHAPE(2, 5, 8)), w = tensor(SHAPE(8, 3)), wt = tensor(SHAPE(3, 8)), y = tensor(SHAPE(2, 8, 4));
  int hx = half(SHAPE(5, 8)), hw = half(SHAPE(8, 3)), bias = tensor(SHAPE(3)), wrong = tensor(SHAPE(4));
  int hbias = half(SHAPE(3)), other = tensor(SHAPE(3, 8, 4)), vector = tensor(SHAPE(8));
  assert_value(op2(&f, MS_OP_matmul, x, w, NULL), MS_F32, "[2,5,3]");
  assert_value(op2(&f, MS_OP_matmul, x, wt, ATTRS(.product = {.trans_b = 1})), MS_F32, "[2,5,3]");
  assert_value(op2(&f, MS_OP_matmul, x, y, NULL), MS_F32, "[2,5,4]");
  assert_value(op2(&f, MS_OP_matmul, y, x, ATTRS(.product = {.trans_a = 1, .trans_b = 1})), MS_F32, "[2,4,5]");
  assert_value(op2(&f, MS_OP_matmul, y, w, ATTRS(.product = {.trans_a = 1})), MS_F32, "[2,4,3]");
  assert_value(op2(&f, MS_OP_matmul, hx, hw, NULL), MS_BF16, "[5,3]");
  assert_value(op2(&f, MS_OP_matmul, hx, hw, ATTRS(.out_dtype = 1 + MS_F32)), MS_F32, "[5,3]");
  assert_value(op3(&f, MS_OP_matmul, x, w, bias, NULL), MS_F32, "[2,5,3]");
  assert_value(op3(&f, MS_OP_matmul, hx, hw, bias, NULL), MS_BF16, "[5,3]");
  assert_value(op3(&f, MS_OP_matmul, hx, hw, hbias, NULL), MS_BF16, "[5,3]");
  REFUSED(MS_OP_matmul, NULL, MS_ESHAPE, "matmul | [2,5,8] | [3,8]", x, wt);
  REFUSED(MS_OP_matmul, ATTRS(.product = {.trans_a = 1}), MS_ESHAPE, "[2,5,8] | transposed | [8,3]", x, w);
  REFUSED(MS_OP_matmul, NULL, MS_ESHAPE, "[2,5,8] | [3,8,4]", x, other);
  REFUSED(MS_OP_matmul, NULL, MS_ESHAPE, "[8] | [8,3]", vector, w);
  REFUSED(MS_OP_matmul, NULL, MS_ESHAPE, "[8,3] | [3,8,4]", w, other);
  REFUSED(MS_OP_matmul, NULL, MS_EDTYPE, "matmul | bf16 | f32 | cast", hx, w);
  REFUSED(MS_OP_matmul, NULL, MS_ESHAPE, "bias | [4] | [2,5,3] | [3]", x, w, wrong);
  REFUSED(MS_OP_matmul, NULL, MS_EDTYPE, "bias | bf16 | f32", x, w, hbias);
  REFUSED(MS_OP_matmul, ATTRS(.product = {.activation = 9}), MS_EINVAL, "9 | activation", x, w);
  REFUSED(MS_OP_matmul, ATTRS(.out_dtype = 3), MS_EDTYPE, "out_dtype 3", x, w);
}

static void elementwise_shapes(void **state) {
  (void)state;
  int a = tensor(SHAPE(4, 1, 3)), b = half(SHAPE(5, 1)), t = ints("t", SHAPE(5, 1)), s = half(SCALAR);
  int c = op2(&f, MS_OP_less, a, b, NULL), wide = tensor(SHAPE(4, 5, 3));
  assert_value(op2(&f, MS_OP_add, a, b, NULL), MS_F32, "[4,5,3]");
  assert_value(op2(&f, MS_OP_mul, b, b, NULL), MS_BF16, "[5,1]");
  assert_value(op2(&f, MS_OP_sub, s, b, NULL), MS_BF16, "[5,1]");
  assert_value(c, MS_U8, "[4,5,3]");
  assert_value(op3(&f, MS_OP_where, c, wide, s, NULL), MS_F32, "[4,5,3]");
  assert_value(op3(&f, MS_OP_where, c, s, s, NULL), MS_BF16, "[4,5,3]");
  assert_value(op1(&f, MS_OP_gelu, b, NULL), MS_BF16, "[5,1]");
  assert_value(op2(&f, MS_OP_swiglu, b, b, NULL), MS_BF16, "[5,1]");
  assert_value(op1(&f, MS_OP_cast, b, ATTRS(.out_dtype = 1 + MS_F32)), MS_F32, "[5,1]");
  assert_value(op1(&f, MS_OP_cast, b, NULL), MS_BF16, "[5,1]");
  assert_value(op2(&f, MS_OP_equal, t, ints("one", SCALAR), NULL), MS_U8, "[5,1]");
  assert_value(op3(&f, MS_OP_where, c, t, ints("u", SHAPE(3)), NULL), MS_I32, "[4,5,3]");
  assert_value(op1(&f, MS_OP_cast, c, ATTRS(.out_dtype = 1 + MS_BF16)), MS_BF16, "[4,5,3]");
  assert_value(op1(&f, MS_OP_cast, b, ATTRS(.out_dtype = 1 + MS_I32)), MS_I32, "[5,1]");
  REFUSED(MS_OP_less, NULL, MS_EDTYPE, "less | i32 | f32 | cast | dtype", t, a);
  REFUSED(MS_OP_where, NULL, MS_EDTYPE, "where | f32 | i32 | cast | dtype", c, a, t);
  REFUSED(MS_OP_cast, ATTRS(.out_dtype = 1 + MS_U8), MS_EDTYPE, "cast | u8 | f32 | bf16 | i32", a);
  REFUSED(MS_OP_cast, NULL, MS_EDTYPE, "cast | u8 | f32 | bf16 | i32", c);
  REFUSED(MS_OP_clamp, ATTRS(.clamp = {.min = 2, .max = 1}), MS_EINVAL, "clamp | min | 2 | max | 1", a);
  REFUSED(MS_OP_clamp, ATTRS(.clamp = {.min = NAN, .max = 1}), MS_EINVAL, "clamp | min", a);
  REFUSED(MS_OP_div, NULL, MS_ESHAPE, "div | [4,5,3] | [4,1,3,1]", wide, reshape_to(&f, a, SHAPE(4, 1, 3, 1)));
  REFUSED(MS_OP_add, NULL, MS_EDTYPE, "add | b | i32 | f32 | bf16", a, t);
  REFUSED(MS_OP_where, NULL, MS_EDTYPE, "where | c | f32 | u8", a, a, a);
  REFUSED(MS_OP_relu, NULL, MS_EDTYPE, "relu | x | i32", t);
  REFUSED(MS_OP_swiglu, NULL, MS_ESHAPE, "swiglu | [4,1,3] | [4,5,3] | shape", a, wide);
  REFUSED(MS_OP_dropout, ATTRS(.mask = {.p = 1}), MS_EINVAL, "dropout | p | 1 | 0", a);
  REFUSED(MS_OP_dropout, ATTRS(.mask = {.p = NAN}), MS_EINVAL, "dropout | p", a);
  REFUSED(MS_OP_softmax, NULL, MS_ESHAPE, "softmax | x | scalar", s);
}

static void reduction_shapes(void **state) {
  (void)state;
  int x = half(SHAPE(4, 5, 3)), s = tensor(SCALAR);
  assert_value(op1(&f, MS_OP_sum, x, NULL), MS_BF16, "[4,5]");
  assert_value(op1(&f, MS_OP_mean, x, ATTRS(.reduce = {.axis = 1})), MS_BF16, "[4,3]");
  assert_value(op1(&f, MS_OP_max, x, ATTRS(.reduce = {.axis = -3, .keepdim = 1})), MS_BF16, "[1,5,3]");
  assert_int_equal(f.graph->nodes[2].attrs.reduce.axis, 0);
  assert_value(op1(&f, MS_OP_sum, x, ATTRS(.out_dtype = 1, .reduce = {.all = 1})), MS_F32, "[]");
  assert_value(op1(&f, MS_OP_sum, x, ATTRS(.reduce = {.keepdim = 1, .all = 1})), MS_BF16, "[1,1,1]");
  assert_value(op1(&f, MS_OP_sum, s, ATTRS(.reduce = {.all = 1})), MS_F32, "[]");
  REFUSED(MS_OP_sum, ATTRS(.reduce = {.axis = 3}), MS_EINVAL, "sum | axis 3 | 3 | -3 | 2", x);
}

static void norm_shapes(void **state) {
  (void)state;
  int x = half(SHAPE(4, 5, 3)), g = half(SHAPE(3)), g32 = tensor(SHAPE(3)), wrong = half(SHAPE(5)), out[MS_MAX_OUTPUTS];
  int dy = op1(&f, MS_OP_relu, x, NULL);
  apply(&f, MS_OP_layer_norm, 3, (int[]){x, g, g}, NULL, out);
  assert_value(out[0], MS_BF16, "[4,5,3]");
  assert_value(out[1], MS_F32, "[20,2]");
  apply(&f, MS_OP_layer_norm_backward, 4, (int[]){x, g, out[1], dy}, ATTRS(.out_dtype = 1), out);
  assert_value(out[0], MS_BF16, "[4,5,3]");
  assert_value(out[1], MS_F32, "[3]");
  assert_value(out[2], MS_F32, "[3]");
  apply(&f, MS_OP_add_rms_norm, 3, (int[]){x, dy, g32}, NULL, out);
  assert_value(out[1], MS_F32, "[20]");
  assert_value(out[2], MS_BF16, "[4,5,3]");
  apply(&f, MS_OP_rms_norm_backward, 5, (int[]){x, g32, out[1], dy, x}, NULL, out);
  assert_value(out[1], MS_F32, "[3]");
  REFUSED(MS_OP_layer_norm, NULL, MS_ESHAPE, "layer_norm | gain | [5] | [4,5,3] | [3]", x, wrong, g);
  REFUSED(MS_OP_layer_norm, NULL, MS_EDTYPE, "gain | bf16 | bias | f32", x, g, g32);
  REFUSED(MS_OP_rms_norm, NULL, MS_EDTYPE, "gain | bf16 | f32", op2(&f, MS_OP_add, x, g32, NULL), g);
}

static void shapes_along_an_axis(void **state) {
  (void)state;
  int x = half(SHAPE(4, 5, 3)), index = ints("index", SHAPE(4, 9, 3)), few = ints("few", SHAPE(4, 9, 2));
  int number = tensor(SCALAR), src = half(SHAPE(4, 9, 3)), out[MS_MAX_OUTPUTS];
  assert_value(op1(&f, MS_OP_roll, index, ATTRS(.cut = {.axis = -2, .by = 100})), MS_I32, "[4,9,3]");
  assert_value(op1(&f, MS_OP_cumsum, x, ATTRS(.cumsum = {.axis = 1, .reverse = 1})), MS_BF16, "[4,5,3]");
  apply(&f, MS_OP_topk, 1, &x, ATTRS(.topk = {.axis = 1, .k = 2, .largest = 1}), out);
  assert_value(out[0], MS_BF16, "[4,2,3]");
  assert_value(out[1], MS_I32, "[4,2,3]");
  assert_value(op2(&f, MS_OP_gather, x, index, ATTRS(.cut = {.axis = 1})), MS_BF16, "[4,9,3]");
  assert_value(op3(&f, MS_OP_scatter_add, x, index, src, ATTRS(.cut = {.axis = 1})), MS_BF16, "[4,5,3]");
  assert_value(op2(&f, MS_OP_pow, x, number, NULL), MS_BF16, "[4,5,3]");
  assert_value(op2(&f, MS_OP_pow, number, x, NULL), MS_BF16, "[4,5,3]");
  assert_value(op2(&f, MS_OP_pow, x, tensor(SHAPE(3)), NULL), MS_F32, "[4,5,3]");
  REFUSED(MS_OP_roll, ATTRS(.cut = {.axis = 3, .by = 1}), MS_EINVAL, "roll | axis 3", x);
  REFUSED(MS_OP_cumsum, NULL, MS_EDTYPE, "cumsum | x | i32", index);
  REFUSED(MS_OP_topk, ATTRS(.topk = {.axis = 1, .k = 6, .largest = 1}), MS_ESHAPE,
          "topk | k is 6 | axis 1 | [4,5,3] | 5", x);
  REFUSED(MS_OP_topk, ATTRS(.topk = {.axis = 1, .largest = 1}), MS_ESHAPE, "topk | k is 0", x);
  REFUSED(MS_OP_gather, ATTRS(.cut = {.axis = 1}), MS_ESHAPE, "gather | x | [4,5,3] | [4,9,2] | axis 1", x, few);
  REFUSED(MS_OP_gather, ATTRS(.cut = {.axis = 1}), MS_EDTYPE, "gather | index | bf16 | i32", x, src);
  REFUSED(MS_OP_scatter_add, ATTRS(.cut = {.axis = 1}), MS_ESHAPE, "scatter_add | index | [4,9,3] | src | [4,5,3]", x,
          index, x);
  REFUSED(MS_OP_scatter_add, ATTRS(.cut = {.axis = 1}), MS_EDTYPE, "scatter_add | src", x, index,
          tensor(SHAPE(4, 9, 3)));
  REFUSED(MS_OP_pow, NULL, MS_EDTYPE, "pow | a | i32", index, number);
}

static void shapes_of_groups(void **state) {
  (void)state;
  int x = half(SHAPE(2, 6, 9)), g = half(SHAPE(6)), wide = tensor(SHAPE(6)), few = half(SHAPE(9)), out[MS_MAX_OUTPUTS];
  apply(&f, MS_OP_group_norm, 3, (int[]){x, g, g}, ATTRS(.norm = {.groups = 3}), out);
  assert_value(out[0], MS_BF16, "[2,6,9]");
  assert_value(out[1], MS_F32, "[2,3,2]");
  apply(&f, MS_OP_group_norm_backward, 4, (int[]){x, g, out[1], x}, ATTRS(.out_dtype = 1, .norm = {.groups = 3}), out);
  assert_value(out[0], MS_BF16, "[2,6,9]");
  assert_value(out[2], MS_F32, "[6]");
  REFUSED(MS_OP_group_norm, ATTRS(.norm = {.groups = 4}), MS_ESHAPE, "group_norm | 4 groups | [2,6,9] | 6", x, g, g);
  REFUSED(MS_OP_group_norm, ATTRS(.norm = {.groups = 0}), MS_ESHAPE, "group_norm | 0 groups", x, g, g);
  REFUSED(MS_OP_group_norm, ATTRS(.norm = {.groups = 3}), MS_ESHAPE, "group_norm | gain | [9] | [6]", x, few, few);
  REFUSED(MS_OP_group_norm, ATTRS(.norm = {.groups = 3}), MS_EDTYPE, "gain | bf16 | bias | f32", x, g, wide);
  REFUSED(MS_OP_group_norm, ATTRS(.norm = {.groups = 3}), MS_ESHAPE, "group_norm | x | [N,C,S]", g, g, g);
}

static void shapes_of_windows(void **state) {
  (void)state;
  int x = half(SHAPE(2, 6, 9, 7)), w = half(SHAPE(8, 3, 3, 2)), bias = half(SHAPE(8)), out[MS_MAX_OUTPUTS];
  int whole = ints("whole", SHAPE(2, 6, 9, 7)), flat = half(SHAPE(7)), wide = tensor(SHAPE(8, 3, 3, 2));
  const int y =
      op3(&f, MS_OP_conv2d, x, w, bias,
          ATTRS(.windows = {.stride_h = 2, .stride_w = 3, .pad_h = 1, .dilation_h = 1, .dilation_w = 4, .groups = 2}));
  assert_value(y, MS_BF16, "[2,8,5,1]");
  assert_value(op2(&f, MS_OP_conv2d_backward_input, y, w,
                   ATTRS(.windows = {.stride_h = 2,
                                     .stride_w = 3,
                                     .pad_h = 1,
                                     .dilation_h = 1,
                                     .dilation_w = 4,
                                     .groups = 2,
                                     .height = 9,
                                     .width = 7})),
               MS_BF16, "[2,6,9,7]");
  assert_value(op2(&f, MS_OP_conv2d_backward_weight, x, y,
                   ATTRS(.out_dtype = 1, .windows = {.stride_h = 2,
                                                     .stride_w = 3,
                                                     .pad_h = 1,
                                                     .dilation_h = 1,
                                                     .dilation_w = 4,
                                                     .groups = 2,
                                                     .height = 3,
                                                     .width = 2})),
               MS_F32, "[8,3,3,2]");
  apply(&f, MS_OP_max_pool2d, 1, &x, ATTRS(.windows = {.kernel_h = 3, .kernel_w = 2, .stride_h = 2, .pad_h = 1}), out);
  assert_value(out[0], MS_BF16, "[2,6,5,3]");
  assert_value(out[1], MS_I32, "[2,6,5,3]");
  assert_value(
      op2(&f, MS_OP_max_pool2d_backward, out[0], out[1],
          ATTRS(.windows = {.kernel_h = 3, .kernel_w = 2, .stride_h = 2, .pad_h = 1, .height = 9, .width = 7})),
      MS_BF16, "[2,6,9,7]");
  assert_value(op1(&f, MS_OP_avg_pool2d, x, ATTRS(.windows = {.kernel_h = 9, .kernel_w = 7})), MS_BF16, "[2,6,1,1]");
  REFUSED(MS_OP_conv2d, ATTRS(.windows = {.stride_h = 1, .stride_w = 1, .dilation_h = 1, .dilation_w = 1, .groups = 1}),
          MS_ESHAPE, "conv2d | w is [8,3,3,2] | 6 channels | [O,6", x, w);
  REFUSED(MS_OP_conv2d, ATTRS(.windows = {.stride_h = 1, .stride_w = 1, .dilation_h = 1, .dilation_w = 1, .groups = 4}),
          MS_ESHAPE, "conv2d | 4 groups", x, w);
  REFUSED(MS_OP_conv2d, ATTRS(.windows = {.stride_w = 1, .dilation_h = 1, .dilation_w = 1, .groups = 2}), MS_EINVAL,
          "conv2d | stride_h is 0", x, w);
  REFUSED(MS_OP_conv2d,
          ATTRS(.windows = {.stride_h = 1, .stride_w = 1, .pad_w = -1, .dilation_h = 1, .dilation_w = 1, .groups = 2}),
          MS_EINVAL, "conv2d | pad_w is -1", x, w);
  REFUSED(MS_OP_conv2d, ATTRS(.windows = {.stride_h = 1, .stride_w = 1, .dilation_h = 1, .groups = 2}), MS_EINVAL,
          "conv2d | dilation_w is 0", x, w);
  REFUSED(MS_OP_conv2d, ATTRS(.windows = {.stride_h = 1, .stride_w = 1, .dilation_h = 5, .dilation_w = 1, .groups = 2}),
          MS_ESHAPE, "conv2d | height 11 | 9 elements", x, w);
  REFUSED(MS_OP_conv2d, ATTRS(.windows = {.stride_h = 1, .stride_w = 1, .dilation_h = 1, .dilation_w = 1, .groups = 2}),
          MS_ESHAPE, "conv2d | bias | [7] | [8]", x, w, flat);
  REFUSED(MS_OP_conv2d, ATTRS(.windows = {.stride_h = 1, .stride_w = 1, .dilation_h = 1, .dilation_w = 1, .groups = 2}),
          MS_EDTYPE, "conv2d | w | f32 | bf16", x, wide);
  REFUSED(MS_OP_conv2d, ATTRS(.windows = {.stride_h = 1, .stride_w = 1, .dilation_h = 1, .dilation_w = 1, .groups = 2}),
          MS_EDTYPE, "conv2d | x | i32", whole, w);
  REFUSED(MS_OP_conv2d, ATTRS(.windows = {.stride_h = 1, .stride_w = 1, .dilation_h = 1, .dilation_w = 1, .groups = 2}),
          MS_ESHAPE, "conv2d | x | [N,C,H,W]", flat, w);
  REFUSED(MS_OP_max_pool2d, ATTRS(.windows = {.kernel_h = 2, .kernel_w = 2, .pad_h = 2}), MS_EINVAL,
          "max_pool2d | padding of 2 | half | 1", x);
  REFUSED(MS_OP_avg_pool2d, ATTRS(.windows = {.kernel_h = 10, .kernel_w = 2}), MS_ESHAPE,
          "avg_pool2d | height 10 | 9 elements", x);
  REFUSED(MS_OP_avg_pool2d, ATTRS(.windows = {.kernel_h = 1}), MS_EINVAL, "avg_pool2d | 0", x);
  REFUSED(MS_OP_avg_pool2d, ATTRS(.windows = {.kernel_h = 1, .kernel_w = 1}), MS_ESHAPE, "avg_pool2d | x | [...,H,W]",
          flat);
  REFUSED(MS_OP_avg_pool2d_backward, ATTRS(.windows = {.kernel_h = 2, .kernel_w = 2, .height = 9, .width = 7}),
          MS_ESHAPE, "avg_pool2d_backward | [2,6,4,3] | dy | [2,6,9,7]", x);
  REFUSED(
      MS_OP_conv2d_backward_input,
      ATTRS(.windows =
                {.stride_h = 1, .stride_w = 1, .dilation_h = 1, .dilation_w = 1, .groups = 2, .height = 0, .width = 7}),
      MS_ESHAPE, "height | 0 | 1 to", y, w);
}

static void model_shapes(void **state) {
  (void)state;
  int w = half(SHAPE(100, 8)), tokens = ints("tokens", SHAPE(2, 6)), out[MS_MAX_OUTPUTS],
      deep = ints("deep", SHAPE(1, 1, 1, 1, 1, 1));
  int q = half(SHAPE(2, 6, 4, 8)), k = half(SHAPE(2, 6, 2, 8)), k3 = half(SHAPE(2, 6, 3, 8)),
      k5 = half(SHAPE(2, 5, 2, 8));
  int odd = half(SHAPE(2, 6, 4, 7)), logits = half(SHAPE(2, 6, 100)), few = ints("few", SHAPE(2, 5));
  assert_value(op2(&f, MS_OP_embedding, w, tokens, NULL), MS_BF16, "[2,6,8]");
  assert_value(op2(&f, MS_OP_embedding_backward, tokens, op2(&f, MS_OP_embedding, w, tokens, NULL),
                   ATTRS(.out_dtype = 1, .table = {.rows = 100})),
               MS_F32, "[100,8]");
  REFUSED(MS_OP_embedding, NULL, MS_EDTYPE, "embedding | tokens | bf16 | i32", w, w);
  REFUSED(MS_OP_embedding, NULL, MS_ESHAPE, "embedding | w | [2,6,4,8] | [V,D]", q, tokens);
  REFUSED(MS_OP_embedding, NULL, MS_ESHAPE, "5 dimensions", w, deep);
  REFUSED(MS_OP_embedding, ATTRS(.table = {.parts = 4, .dim = 3, .first = 50}), MS_EINVAL,
          "first | 50 | 4 parts | 100 | 400", w, tokens);
  REFUSED(MS_OP_embedding, ATTRS(.table = {.rows = 101}), MS_EINVAL, "embedding | rows | 101 | [100,8] | 0 | 100", w,
          tokens);
  assert_value(op1(&f, MS_OP_rope, q, NULL), MS_BF16, "[2,6,4,8]");
  REFUSED(MS_OP_rope, NULL, MS_ESHAPE, "rope | x | [2,6,4,7] | even", odd);
  REFUSED(MS_OP_rope, NULL, MS_ESHAPE, "rope | x | [2,6,100] | [B,T,H,D]", logits);
  REFUSED(MS_OP_rope, ATTRS(.rope = {.theta = 0}), MS_EINVAL, "rope | theta | 0", q);
  REFUSED(MS_OP_rope, ATTRS(.rope = {.original = -8, .theta = 100}), MS_EINVAL, "rope | original | -8", q);
  REFUSED(MS_OP_rope, ATTRS(.rope = {.original = 8, .theta = 100, .factor = 8, .low = 5, .high = 4}), MS_EINVAL,
          "rope | factor | 8 | low | 5 | high | 4", q);
  const int turns = input(&f, "turns", MS_F32, SHAPE(2, 4)), many = input(&f, "many", MS_F32, SHAPE(2, 5));
  assert_value(op2(&f, MS_OP_rope, q, turns, NULL), MS_BF16, "[2,6,4,8]");
  REFUSED(MS_OP_rope, NULL, MS_ESHAPE, "turns | [2,5] | [2,6,4,8] | 4 pairs", q, many);
  REFUSED(MS_OP_rope, NULL, MS_EDTYPE, "turns | i32 | f32", q, tokens);
  REFUSED(MS_OP_rope, ATTRS(.rope = {.original = 8, .theta = 100, .factor = 8, .low = 1, .high = 4}), MS_EINVAL,
          "original 8 | turns", q, turns);
  apply(&f, MS_OP_attention, 3, (int[]){q, k, k}, NULL, out);
  assert_value(out[0], MS_BF16, "[2,6,4,8]");
  assert_value(out[1], MS_F32, "[2,4,6]");
  apply(&f, MS_OP_attention_backward, 6, (int[]){q, k, k, out[0], out[1], q}, NULL, out);
  assert_value(out[2], MS_BF16, "[2,6,2,8]");
  REFUSED(MS_OP_attention, NULL, MS_ESHAPE, "q | 4 heads | k | 3", q, k3, k3);
  REFUSED(MS_OP_attention, NULL, MS_ESHAPE, "causal | keys | queries", q, k5, k5);
  REFUSED(MS_OP_attention, ATTRS(.attention = {.causal = 1, .window = -1}), MS_EINVAL, "window | -1", q, k, k);
  REFUSED(MS_OP_attention, ATTRS(.attention = {.prefix = 3}), MS_EINVAL, "prefix | 3 | causal", q, k, k);
  REFUSED(MS_OP_attention, ATTRS(.attention = {.window = 3}), MS_ESHAPE, "window | keys | queries", q, k5, k5);
  REFUSED(MS_OP_attention, ATTRS(.attention = {.causal = 1, .softcap = -2}), MS_EINVAL, "softcap | -2 | above 0", q, k,
          k);
  REFUSED(MS_OP_attention, ATTRS(.attention = {.causal = 1, .softcap = 1e-50}), MS_EINVAL, "softcap | 1e-50", q, k, k);
  REFUSED(MS_OP_attention, NULL, MS_ESHAPE, "k | [2,6,2,8] | v | [2,5,2,8] | last", q, k, k5);
  const int wide = input(&f, "wide", MS_BF16, SHAPE(2, 6, 2, 12)), sinks = input(&f, "sinks", MS_F32, SHAPE(4));
  apply(&f, MS_OP_attention, 3, (int[]){q, k, wide}, NULL, out);
  assert_value(out[0], MS_BF16, "[2,6,4,12]");
  apply(&f, MS_OP_attention_sink, 6, (int[]){q, k, wide, out[0], out[1], sinks}, NULL, out);
  assert_value(out[0], MS_BF16, "[2,6,4,12]");
  assert_value(out[1], MS_F32, "[2,4,6]");
  REFUSED(MS_OP_attention_sink, NULL, MS_ESHAPE, "v | [2,6,4,8] | o | [2,6,4,12]", q, k, k, out[0], out[1], sinks);
  REFUSED(MS_OP_attention_sink, NULL, MS_ESHAPE, "sinks | [2,4,6] | [H] | 4 heads", q, k, wide, out[0], out[1], out[1]);
  apply(&f, MS_OP_document_attention, 4, (int[]){q, k, k, tokens}, NULL, out);
  assert_value(out[1], MS_F32, "[2,4,6]");
  apply(&f, MS_OP_document_attention_backward, 7, (int[]){q, k, k, out[0], out[1], q, tokens}, NULL, out);
  assert_value(out[1], MS_BF16, "[2,6,2,8]");
  REFUSED(MS_OP_document_attention, NULL, MS_EDTYPE, "tokens | bf16 | i32", q, k, k, q);
  REFUSED(MS_OP_document_attention, NULL, MS_ESHAPE, "tokens | [2,5] | [B,T]", q, k, k, few);
  apply(&f, MS_OP_cross_entropy, 2, (int[]){logits, tokens}, NULL, out);
  assert_value(out[0], MS_F32, "[]");
  assert_value(out[1], MS_F32, "[12]");
  assert_value(out[2], MS_F32, "[]");
  REFUSED(MS_OP_cross_entropy, ATTRS(.loss = {.ignore_index = -100, .classes = 101}), MS_EINVAL,
          "classes | 101 | 100 | logits", logits, tokens);
  REFUSED(MS_OP_cross_entropy, NULL, MS_ESHAPE, "logits | [2,6] | targets | [2,5]", logits, few);
}

static void moving_shapes(void **state) {
  (void)state;
  int x = half(SHAPE(4, 6, 3)), y = half(SHAPE(4, 2, 3)), t = ints("t", SHAPE(4, 6)), one = half(SHAPE(6, 1)), r;
  r = reshape_to(&f, x, SHAPE(2, -1, 9));
  assert_value(r, MS_BF16, "[2,4,9]");
  assert_int_equal(f.graph->nodes[f.graph->values[r].node].attrs.shape.d[1], 4);
  assert_value(reshape_to(&f, t, SHAPE(24)), MS_I32, "[24]");
  assert_value(op1(&f, MS_OP_transpose, x, ATTRS(.permutation = {.p = {2, 0, 1}})), MS_BF16, "[3,4,6]");
  assert_value(op1(&f, MS_OP_slice, x, ATTRS(.cut = {.axis = -2, .start = 1, .stop = 5})), MS_BF16, "[4,4,3]");
  assert_value(op1(&f, MS_OP_pad, x, ATTRS(.cut = {.before = 1, .after = 5})), MS_BF16, "[10,6,3]");
  assert_value(op3(&f, MS_OP_concat, x, y, x, ATTRS(.cut = {.axis = -2})), MS_BF16, "[4,14,3]");
  assert_value(op1(&f, MS_OP_broadcast_to, one, ATTRS(.shape = {.d = {4, 6, 3, 1, 1, 1}, .ndim = 3})), MS_BF16,
               "[4,6,3]");
  assert_value(op1(&f, MS_OP_sum_to, x, ATTRS(.out_dtype = 1, .shape = {.d = {6, 1, 1, 1, 1, 1}, .ndim = 2})), MS_F32,
               "[6,1]");
  REFUSED(MS_OP_reshape, ATTRS(.shape = {.d = {5, -1, 1, 1, 1, 1}, .ndim = 2}), MS_ESHAPE,
          "reshape | [4,6,3] | 72 | [5,-1]", x);
  REFUSED(MS_OP_reshape, ATTRS(.shape = {.d = {-1, -1, 1, 1, 1, 1}, .ndim = 2}), MS_ESHAPE, "-1", x);
  REFUSED(MS_OP_reshape, ATTRS(.shape = {.d = {72, 1, 1, 1, 1, 1}, .ndim = 7}), MS_ESHAPE, "7 dimensions", x);
  REFUSED(MS_OP_transpose, ATTRS(.permutation = {.p = {0, 0, 1}}), MS_EINVAL, "transpose | axis 0 | 1 | 2", x);
  REFUSED(MS_OP_slice, ATTRS(.cut = {.axis = 1, .start = 2, .stop = 7}), MS_ESHAPE,
          "slice | [2, 7) | axis 1 | [4,6,3] | 0 <= start < stop <= 6", x);
  REFUSED(MS_OP_pad, ATTRS(.cut = {.axis = 1, .before = -2, .after = 7}), MS_EINVAL, "pad | -2", x);
  REFUSED(MS_OP_concat, ATTRS(.cut = {.axis = 0}), MS_ESHAPE, "concat | input 1 | [4,6,3] | input 2 | [4,2,3] | axis 0",
          x, y);
  REFUSED(MS_OP_concat, ATTRS(.cut = {.axis = 0}), MS_EDTYPE, "concat | input 1 | bf16 | input 2 | i32", x, t);
  REFUSED(MS_OP_broadcast_to, ATTRS(.shape = {.d = {4, 5, 3, 1, 1, 1}, .ndim = 3}), MS_ESHAPE, "[6,1] | [4,5,3]", one);
  REFUSED(MS_OP_reshape, ATTRS(.shape = {.d = {INT64_MAX, INT64_MAX, 1, 1, 1, 1}, .ndim = 2}), MS_ESHAPE, "fit", x);
  REFUSED(MS_OP_broadcast_to, ATTRS(.shape = {.d = {INT64_MAX, 6, 3, 1, 1, 1}, .ndim = 3}), MS_ESHAPE, "2^60", one);
  REFUSED(MS_OP_sum_to, ATTRS(.shape = {.d = {5, 1, 1, 1, 1, 1}, .ndim = 2}), MS_ESHAPE, "[4,6,3] | [5,1]", x);
}

static void step_shapes(void **state) {
  (void)state;
  int gradient = tensor(SHAPE(40)), totals = tensor(SHAPE(2)), norm = op1(&f, MS_OP_step_norm, totals, NULL),
      out[MS_MAX_OUTPUTS];
  int empty = op1(&f, MS_OP_accumulate, gradient, NULL);
  ms_op_attrs none = {.out_dtype = 1, .shape = {.d = {0, 1, 1, 1, 1, 1}, .ndim = 1}};
  must(ms_graph_emit(f.graph, MS_OP_fill, 0, NULL, &none, &empty));
  assert_value(norm, MS_F32, "[4]");
  assert_value(op1(&f, MS_OP_accumulate, half(SHAPE(7)), NULL), MS_F32, "[7]");
  assert_value(op1(&f, MS_OP_sum_squares, gradient, NULL), MS_F32, "[]");
  assert_value(op2(&f, MS_OP_step_totals, gradient, tensor(SHAPE(1)), NULL), MS_F32, "[2]");
  assert_value(op2(&f, MS_OP_step_totals, gradient, totals, NULL), MS_F32, "[3]");
  const int updates = tensor(SCALAR);
  apply(&f, MS_OP_adamw, 3, (int[]){gradient, norm, updates}, NULL, out);
  assert_value(out[2], MS_F32, "[40]");
  apply(&f, MS_OP_adamw, 3, (int[]){gradient, norm, updates}, ATTRS(.update = {.moments = 2}), out);
  assert_value(out[2], MS_I32, "[65]");
  apply(&f, MS_OP_sgd, 3, (int[]){gradient, norm, updates}, NULL, out);
  assert_value(out[1], MS_F32, "[0]");
  apply(&f, MS_OP_sgd, 3, (int[]){empty, norm, updates}, ATTRS(.update = {.lr_scale = 1, .momentum = 0.9}), out);
  assert_value(out[1], MS_F32, "[0]");
  apply(&f, MS_OP_outer_sgd, 1, (int[]){gradient}, ATTRS(.outer_sgd = {.momentum = 0.9}), out);
  assert_value(out[2], MS_F32, "[40]");
  REFUSED(MS_OP_adamw, NULL, MS_ESHAPE, "[4] | norm | [2]", gradient, totals, updates);
}

static void costs(void **state) {
  (void)state;
  int x = half(SHAPE(2, 5, 8)), w = half(SHAPE(3, 8)), q = half(SHAPE(2, 6, 4, 8)), k = half(SHAPE(2, 7, 2, 8)),
      out[MS_MAX_OUTPUTS];
  const ms_graph *g = f.graph;
  op2(&f, MS_OP_matmul, x, w, ATTRS(.product = {.trans_b = 1}));
  assert_true(ms_node_flops(g, &g->nodes[0]) == 2 * 10 * 3 * 8);
  assert_true(ms_node_bytes(g, &g->nodes[0]) == 2 * (80 + 24 + 30));
  apply(&f, MS_OP_attention, 3, (int[]){q, k, k}, NULL, out);
  assert_true(ms_node_flops(g, &g->nodes[1]) == 4.0 * 2 * 4 * 6 * 7 * 8);
  apply(&f, MS_OP_attention_backward, 6, (int[]){q, k, k, out[0], out[1], q}, NULL, out);
  assert_true(ms_node_flops(g, &g->nodes[2]) == 10.0 * 2 * 4 * 6 * 7 * 8);
  reshape_to(&f, x, SHAPE(80));
  assert_true(ms_node_bytes(g, &g->nodes[3]) == 0 && ms_node_flops(g, &g->nodes[3]) == 0);
  sum_all(&f, x);
  assert_true(ms_node_flops(g, &g->nodes[4]) == 80);
}

/* A window counts in proportion to the pairs that are seen: of 6 queries at positions 1 to 6, 2 + 3 + 4 + 5 + 6 + 7
 * without one, and 2 + 5 x 3 with one of 3; also where ranks divide the queries. */
static void costs_of_windows(void **state) {
  (void)state;
  const int q = half(SHAPE(2, 6, 4, 8)), k = half(SHAPE(2, 7, 2, 8)), q_part = half(SHAPE(2, 3, 4, 8));
  const int64_t part = ms_part_attr((ms_part){3, 2, 1, 0, 0}), windows[] = {3, 1, 6, 7, 100},
                seen[] = {17, 6, 26, 27, 27};
  int out[MS_MAX_OUTPUTS];
  const ms_graph *g = f.graph;
  for (int i = 0; i < 5; i++) {
    const double flops = 4.0 * 2 * 4 * 6 * 7 * 8 * (double)seen[i] / 27;
    apply(&f, MS_OP_attention, 3, (int[]){q, k, k}, ATTRS(.attention = {.causal = 1, .window = windows[i]}), out);
    assert_true(fabs(ms_node_flops(g, &g->nodes[2 * i]) / flops - 1) < 1e-12);
    apply(&f, MS_OP_attention, 3, (int[]){q_part, k, k},
          ATTRS(.attention = {.causal = 1, .part = part, .window = windows[i]}), out);
    assert_true(fabs(ms_node_flops(g, &g->nodes[2 * i + 1]) / flops - 0.5) < 1e-12);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(matmul_shapes),
      CASE(elementwise_shapes),
      CASE(reduction_shapes),
      CASE(norm_shapes),
      CASE(shapes_along_an_axis),
      CASE(shapes_of_windows),
      CASE(shapes_of_groups),
      CASE(model_shapes),
      CASE(moving_shapes),
      CASE(step_shapes),
      CASE(costs),
      CASE(costs_of_windows),
  };
  return cmocka_run_group_tests_name("graph infer", tests, NULL, NULL);
}
