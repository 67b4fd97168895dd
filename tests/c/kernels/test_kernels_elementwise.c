/* test_kernels_elementwise.c - compares elementwise kernels, forward and backward, with formulas in double. */
#include "tests/c/support/kernel_case.h"

static const int64_t sizes[] = {1, 3, 17, 1000, 70001};
/* ---- references ------------------------------------------------------------------------------------------------- */

static double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
static double normal_cdf(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }
static double tanh_argument(double x) { return sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x); }

static double unary_reference(int op, double x) {
  switch (op) {
    case MS_OP_scale: return 1.5 * x - 0.25;
    case MS_OP_abs: return fabs(x);
    case MS_OP_clamp: return fmin(fmax(x, -0.25), 1.5);
    case MS_OP_exp: return exp(x);
    case MS_OP_log: return log(x);
    case MS_OP_sqrt: return sqrt(x);
    case MS_OP_rsqrt: return 1.0 / sqrt(x);
    case MS_OP_tanh: return tanh(x);
    case MS_OP_sigmoid: return sigmoid(x);
    case MS_OP_softplus: return fmax(x, 0) + log1p(exp(-fabs(x)));
    case MS_OP_relu: return x < 0 ? 0 : x;
    case MS_OP_gelu: return x * normal_cdf(x);
    case MS_OP_gelu_tanh: return 0.5 * x * (1.0 + tanh(tanh_argument(x)));
    default: return x * sigmoid(x);
  }
}

/* d f / dx, computed from y for tanh, sigmoid and relu, otherwise from x. */
static double gradient_reference(int op, double a) {
  switch (op) {
    case MS_OP_tanh_backward: return 1.0 - a * a;
    case MS_OP_sigmoid_backward: return a * (1.0 - a);
    case MS_OP_relu_backward: return a > 0;
    case MS_OP_abs_backward: return a > 0 ? 1 : a < 0 ? -1 : 0;
    case MS_OP_clamp_backward: return a > -0.25 && a < 1.5;
    case MS_OP_gelu_backward: return normal_cdf(a) + a * exp(-0.5 * a * a) / sqrt(2.0 * M_PI);
    case MS_OP_gelu_tanh_backward: {
      double t = tanh(tanh_argument(a));
      return 0.5 * (1.0 + t) + 0.5 * a * (1.0 - t * t) * sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * a * a);
    }
    default: {
      double s = sigmoid(a);
      return s * (1.0 + a * (1.0 - s));
    }
  }
}

static const int unary_ops[] = {MS_OP_scale, MS_OP_exp,     MS_OP_log,   MS_OP_sqrt,    MS_OP_rsqrt,
                                MS_OP_tanh,  MS_OP_sigmoid, MS_OP_relu,  MS_OP_gelu,    MS_OP_gelu_tanh,
                                MS_OP_silu,  MS_OP_abs,     MS_OP_clamp, MS_OP_softplus};
static const int gradient_ops[] = {MS_OP_tanh_backward, MS_OP_sigmoid_backward,   MS_OP_relu_backward,
                                   MS_OP_gelu_backward, MS_OP_gelu_tanh_backward, MS_OP_silu_backward,
                                   MS_OP_abs_backward,  MS_OP_clamp_backward};

/* alpha and beta of scale, or the bounds of clamp, the upper one first. */
static void set_numbers(kernel_case *c, double first, double second) {
  const int clamps = c->call.op == MS_OP_clamp || c->call.op == MS_OP_clamp_backward;
  if (clamps) c->call.attrs.clamp.min = second, c->call.attrs.clamp.max = first;
  else c->call.attrs.scale.alpha = first, c->call.attrs.scale.beta = second;
}

static int wants_positive(int op) { return op == MS_OP_log || op == MS_OP_sqrt || op == MS_OP_rsqrt; }

/* ---- tests ------------------------------------------------------------------------------------------------------ */

static void unary_matches(void **state) {
  (void)state;
  FOR_EACH(op, unary_ops)
  FOR_EACH(dtype, dtypes)
  FOR_EACH(n, sizes) {
    kernel_case c = case_of(op);
    set_numbers(&c, 1.5, -0.25);
    add_input(&c, SHAPE(dtype, n));
    add_output(&c, SHAPE(dtype, n));
    for (int64_t i = 0; i < n; i++) {
      double x = 3.0 * input_at(&c, 0, i);
      set_input(&c, 0, i, wants_positive(op) ? fabs(x) + 0.01 : x);
    }
    run_case(&c);
    for (int64_t i = 0; i < n; i++) assert_output(&c, 0, i, unary_reference(op, input_at(&c, 0, i)), 1e-6);
    free_case(&c);
  }
}

static void unary_special_values(void **state) {
  (void)state;
  static const double x[] = {NAN, INFINITY, -INFINITY, 0.0, -1.0, 200.0, -200.0};
  enum { COUNT = sizeof x / sizeof *x };
  FOR_EACH(op, unary_ops)
  FOR_EACH(dtype, dtypes) {
    kernel_case c = case_of(op);
    if (op == MS_OP_clamp) set_numbers(&c, INFINITY, -INFINITY);
    else set_numbers(&c, 1.0, 0.0);
    add_input(&c, SHAPE(dtype, 40));
    add_output(&c, SHAPE(dtype, 40));
    for (int i = 0; i < 40; i++) set_input(&c, 0, i, x[i % COUNT]);
    run_case(&c);
    for (int i = 0; i < 40; i++) {
      double y = output_at(&c, 0, i), in = x[i % COUNT];
      if (isnan(in)) assert_true(isnan(y));
      if (in == INFINITY)
        assert_true(op == MS_OP_tanh || op == MS_OP_sigmoid ? y == 1.0 : op == MS_OP_rsqrt ? y == 0.0 : y == INFINITY);
      if (in == -INFINITY && op == MS_OP_exp) assert_true(y == 0.0);
      if (in == -INFINITY && op == MS_OP_tanh) assert_true(y == -1.0);
      if (in == -INFINITY && op == MS_OP_softplus) assert_true(y == 0.0);
      if (in == 200.0 && op == MS_OP_softplus) assert_true(y == 200.0);
      if (in == -INFINITY && op == MS_OP_sigmoid) assert_true(y == 0.0);
      if (in == 0.0 && op == MS_OP_log) assert_true(y == -INFINITY);
      if (in == 0.0 && op == MS_OP_rsqrt) assert_true(y == INFINITY);
      if (in == -1.0 && wants_positive(op)) assert_true(isnan(y));
      if (in == 200.0 && op == MS_OP_exp) assert_true(y == INFINITY);
      if (in == 200.0 && (op == MS_OP_gelu || op == MS_OP_gelu_tanh || op == MS_OP_silu)) assert_true(y == 200.0);
      if (in == -200.0 && (op == MS_OP_gelu || op == MS_OP_gelu_tanh || op == MS_OP_silu || op == MS_OP_sigmoid))
        assert_true(y == 0.0);
    }
    free_case(&c);
  }
}

static void unary_backward_matches(void **state) {
  (void)state;
  static const double special[] = {60.0, -60.0, 0.0, -0.25, 1.5}; /* large numbers, and the kinks of clamp and others */
  FOR_EACH(op, gradient_ops)
  FOR_EACH(dtype, dtypes)
  FOR_EACH(n, sizes) {
    kernel_case c = case_of(op);
    set_numbers(&c, 1.5, -0.25);
    add_input(&c, SHAPE(dtype, n));
    add_input(&c, SHAPE(dtype, n));
    add_output(&c, SHAPE(dtype, n));
    for (int64_t i = 0; i < n; i++) set_input(&c, 0, i, i < 10 && i >= 5 ? special[i - 5] : 2.0 * input_at(&c, 0, i));
    run_case(&c);
    for (int64_t i = 0; i < n; i++)
      assert_output(&c, 0, i, input_at(&c, 1, i) * gradient_reference(op, input_at(&c, 0, i)), 2e-6);
    free_case(&c);
  }
}

/* The element of a broadcast input that output element e reads. */
static int64_t broadcast_index(const ms_value_info *in, const ms_value_info *out, int64_t e) {
  int64_t index = 0, stride = 1;
  for (int d = in->ndim - 1, o = out->ndim - 1; d >= 0; d--, o--) {
    int64_t at = e % out->dims[o];
    e /= out->dims[o];
    if (in->dims[d] != 1) index += at * stride;
    stride *= in->dims[d];
  }
  return index;
}

typedef struct broadcast_shapes {
  int a_ndim;
  int64_t a[4];
  int b_ndim;
  int64_t b[4];
  int out_ndim;
  int64_t out[4];
} broadcast_shapes;

static const broadcast_shapes broadcasts[] = {
    {1, {1}, 1, {1}, 1, {1}},
    {0, {0}, 0, {0}, 0, {0}},
    {1, {17}, 1, {17}, 1, {17}},
    {2, {33, 1001}, 2, {33, 1001}, 2, {33, 1001}},
    {2, {5, 17}, 0, {0}, 2, {5, 17}},
    {0, {0}, 2, {3, 700}, 2, {3, 700}},
    {3, {4, 9, 384}, 1, {384}, 3, {4, 9, 384}},
    {1, {3}, 3, {2, 300, 3}, 3, {2, 300, 3}},
    {2, {6, 1}, 2, {6, 50}, 2, {6, 50}},
    {2, {6, 1}, 2, {1, 50}, 2, {6, 50}},
    {4, {2, 1, 3, 5}, 4, {1, 4, 1, 5}, 4, {2, 4, 3, 5}},
    {4, {2, 4, 3, 5}, 3, {4, 1, 1}, 4, {2, 4, 3, 5}},
    {3, {1, 1, 1}, 2, {7, 1}, 3, {1, 7, 1}},
    {2, {64, 1100}, 2, {64, 1}, 2, {64, 1100}},
};

static double binary_reference(int op, double a, double b) {
  switch (op) {
    case MS_OP_add: return a + b;
    case MS_OP_sub: return a - b;
    case MS_OP_mul: return a * b;
    case MS_OP_div: return a / b;
    case MS_OP_maximum: return fmax(a, b);
    case MS_OP_minimum: return fmin(a, b);
    case MS_OP_less: return a < b;
    case MS_OP_less_equal: return a <= b;
    case MS_OP_not_equal: return a != b;
    default: return a == b;
  }
}

static const int binary_ops[] = {MS_OP_add,     MS_OP_sub,  MS_OP_mul,        MS_OP_div,   MS_OP_maximum,
                                 MS_OP_minimum, MS_OP_less, MS_OP_less_equal, MS_OP_equal, MS_OP_not_equal};

static void binary_broadcasts(void **state) {
  (void)state;
  FOR_EACH(op, binary_ops)
  FOR_EACH(a_dtype, dtypes)
  FOR_EACH(b_dtype, dtypes)
  FOR_EACH(s, broadcasts) {
    int compares = op == MS_OP_less || op == MS_OP_less_equal || op == MS_OP_equal || op == MS_OP_not_equal;
    int ties = compares && op != MS_OP_less;
    int out_dtype = compares ? MS_U8 : a_dtype == MS_BF16 && b_dtype == MS_BF16 ? MS_BF16 : MS_F32;
    kernel_case c = case_of(op);
    add_input(&c, shape(a_dtype, s.a_ndim, s.a));
    add_input(&c, shape(b_dtype, s.b_ndim, s.b));
    add_output(&c, shape(out_dtype, s.out_ndim, s.out));
    for (int64_t i = 0, n = ms_numel(&c.call.in[1]); i < n; i++) {
      double b = input_at(&c, 1, i);
      set_input(&c, 1, i, ties && i % 3 ? input_at(&c, 0, i % ms_numel(&c.call.in[0])) : b + (b < 0 ? -0.1 : 0.1));
    }
    run_case(&c);
    for (int64_t i = 0, n = ms_numel(&c.call.out[0]); i < n; i++) {
      double a = input_at(&c, 0, broadcast_index(&c.call.in[0], &c.call.out[0], i));
      double b = input_at(&c, 1, broadcast_index(&c.call.in[1], &c.call.out[0], i));
      assert_output(&c, 0, i, binary_reference(op, a, b), 1e-6);
    }
    free_case(&c);
  }
}

static void binary_keeps_nonfinite(void **state) {
  (void)state;
  kernel_case c = case_of(MS_OP_add);
  add_input(&c, SHAPE(MS_F32, 20));
  add_input(&c, SHAPE(MS_BF16, 20));
  add_output(&c, SHAPE(MS_F32, 20));
  set_input(&c, 0, 3, NAN);
  set_input(&c, 1, 4, NAN);
  set_input(&c, 0, 5, INFINITY);
  set_input(&c, 1, 5, -INFINITY);
  set_input(&c, 1, 6, -INFINITY);
  run_case(&c);
  for (int i = 0; i < 20; i++) assert_int_equal(isnan(output_at(&c, 0, i)) != 0, i >= 3 && i <= 5);
  assert_true(output_at(&c, 0, 6) == -INFINITY);
  free_case(&c);
}

/* The input added to itself: both inputs are one tensor, and the output overwrites it. */
static void binary_of_one_tensor_in_place(void **state) {
  (void)state;
  kernel_case c = case_of(MS_OP_add);
  add_input(&c, SHAPE(MS_F32, 1000));
  ms_kernel_call call = c.call;
  float *x = (float *)c.call.in_data[0], before[1000];
  memcpy(before, x, sizeof before);
  call.inputs = 2;
  call.outputs = 1;
  call.in[1] = call.out[0] = call.in[0];
  call.in_data[1] = call.out_data[0] = x;
  run_once(&c, call, 1);
  for (int i = 0; i < 1000; i++) assert_true(x[i] == 2.0f * before[i]);
  free_case(&c);
}

static void where_chooses(void **state) {
  (void)state;
  /* Bits: which of mask, a and b are scalars. */
  for (int scalars = 0; scalars < 8; scalars++) FOR_EACH(dtype, dtypes)
  FOR_EACH(n, sizes) {
    kernel_case c = case_of(MS_OP_where);
    add_input(&c, scalars & 1 ? SCALAR(MS_U8) : SHAPE(MS_U8, n));
    add_input(&c, scalars & 2 ? SCALAR(dtype) : SHAPE(dtype, n));
    add_input(&c, scalars & 4 ? SCALAR(MS_F32) : SHAPE(MS_F32, n));
    add_output(&c, scalars == 7 ? SCALAR(MS_F32) : SHAPE(MS_F32, n));
    run_case(&c);
    for (int64_t i = 0, count = ms_numel(&c.call.out[0]); i < count; i++) {
      double mask = input_at(&c, 0, scalars & 1 ? 0 : i);
      assert_output(&c, 0, i, mask ? input_at(&c, 1, scalars & 2 ? 0 : i) : input_at(&c, 2, scalars & 4 ? 0 : i), 0.0);
    }
    free_case(&c);
  }
}

static void swiglu_matches(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(n, sizes) {
    kernel_case c = case_of(MS_OP_swiglu);
    add_input(&c, SHAPE(dtype, n));
    add_input(&c, SHAPE(dtype, n));
    add_output(&c, SHAPE(dtype, n));
    run_case(&c);
    for (int64_t i = 0; i < n; i++) {
      double a = input_at(&c, 0, i);
      assert_output(&c, 0, i, a * sigmoid(a) * input_at(&c, 1, i), 2e-6);
    }
    free_case(&c);
  }
}

static void swiglu_backward_matches(void **state) {
  (void)state;
  FOR_EACH(dtype, dtypes)
  FOR_EACH(n, sizes) {
    kernel_case c = case_of(MS_OP_swiglu_backward);
    for (int i = 0; i < 3; i++) add_input(&c, SHAPE(dtype, n));
    for (int i = 0; i < 2; i++) add_output(&c, SHAPE(dtype, n));
    run_case(&c);
    for (int64_t i = 0; i < n; i++) {
      double a = input_at(&c, 0, i), b = input_at(&c, 1, i), dy = input_at(&c, 2, i);
      assert_output(&c, 0, i, dy * b * gradient_reference(MS_OP_silu_backward, a), 3e-6);
      assert_output(&c, 1, i, dy * a * sigmoid(a), 3e-6);
    }
    free_case(&c);
  }
}

static void accumulate_writes_and_adds(void **state) {
  (void)state;
  for (int add = 0; add < 2; add++) FOR_EACH(dtype, dtypes)
  FOR_EACH(n, sizes) {
    kernel_case c = case_of(MS_OP_accumulate);
    c.call.attrs.add = add;
    add_input(&c, SHAPE(dtype, n));
    add_output(&c, SHAPE(MS_F32, n));
    if (add)
      for (int64_t i = 0; i < n; i++) ((float *)c.call.out_data[0])[i] = (float)i;
    run_once(&c, c.call, TEAM);
    for (int64_t i = 0; i < n; i++)
      assert_true(output_at(&c, 0, i) == (double)((add ? (float)i : 0.0f) + (float)input_at(&c, 0, i)));
    free_case(&c);
  }
}

static void fill_writes_every_dtype(void **state) {
  (void)state;
  static const int filled[] = {MS_F32, MS_BF16, MS_I32, MS_U8};
  FOR_EACH(dtype, filled) FOR_EACH(n, sizes) {
    kernel_case c = case_of(MS_OP_fill);
    c.call.attrs.shape.value = 3.0;
    add_output(&c, SHAPE(dtype, n));
    run_case(&c);
    for (int64_t i = 0; i < n; i++) assert_true(output_at(&c, 0, i) == 3.0);
    free_case(&c);
  }
}

/* A rank can own nothing, so kernels accept empty tensors with NULL pointers. */
static void empty_tensors_are_legal(void **state) {
  (void)state;
  static const int ops[] = {MS_OP_scale, MS_OP_relu, MS_OP_cast, MS_OP_accumulate, MS_OP_fill, MS_OP_dropout};
  FOR_EACH(op, ops) {
    kernel_case c = case_of(op);
    ms_kernel_call call = c.call;
    call.inputs = call.outputs = 1;
    call.in[0] = call.out[0] = SHAPE(MS_F32, 0);
    run_once(&c, (call.out_data[0] = poisoned(0), call), 2);
    free(call.out_data[0]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(unary_matches),           TEST(unary_special_values),
      TEST(unary_backward_matches),  TEST(binary_broadcasts),
      TEST(binary_keeps_nonfinite),  TEST(binary_of_one_tensor_in_place),
      TEST(where_chooses),           TEST(swiglu_matches),
      TEST(swiglu_backward_matches), TEST(accumulate_writes_and_adds),
      TEST(fill_writes_every_dtype), TEST(empty_tensors_are_legal),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
