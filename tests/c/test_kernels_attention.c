/* test_kernels_attention.c - compares attention, forward and backward, with its definition in double: causal or not,
 * grouped heads, more keys than queries, ragged edges, both dtypes. */
#include "support/kernel_case.h"

#include "base/error.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/bf16_block.h"
#include "kernels/cpu/split_panel.h"
#include "kernels/cpu/target.h"
#ifdef MS_TEST_CUDA
  #include "kernels/cuda/cudnn_graph.h"
#endif

typedef struct shape_of_attention {
  int64_t b, t, s, h, g, d;
  int causal;
  double scale; /* 0: 1 / sqrt(d) */
} attention_shape;

static const attention_shape shapes[] = {
    {1, 1, 1, 1, 1, 1, 1, 0},      {1, 1, 1, 1, 1, 64, 0, 0},     {2, 5, 5, 3, 3, 8, 1, 0},
    {1, 33, 33, 2, 1, 16, 1, 0},   {2, 64, 64, 2, 2, 64, 1, 0},   {1, 70, 70, 4, 2, 32, 0, 0},
    {1, 31, 97, 2, 1, 20, 1, 0.3}, {1, 200, 200, 1, 1, 64, 1, 0}, {1, 1, 150, 2, 2, 80, 1, 0},
    {1, 40, 300, 3, 1, 64, 0, 0},  {1, 65, 129, 2, 2, 128, 1, 0}, {1, 34, 34, 1, 1, 256, 1, 0.05},
    {2, 257, 257, 2, 1, 64, 1, 0}, {1, 130, 130, 2, 2, 33, 1, 0}, {1, 96, 64, 2, 2, 48, 0, 0},
    {1, 133, 133, 2, 1, 8, 1, 0},  {1, 70, 150, 2, 1, 16, 0, 0},  {1, 70, 40, 1, 1, 8, 0, 0},
    {1, 1, 1, 2, 1, 128, 1, 0},    {1, 70, 66, 2, 1, 128, 0, 0},  {1, 37, 70, 2, 1, 200, 1, 0},
    {1, 21, 21, 1, 1, 64, 1, -.2}, {1, 30, 20, 2, 2, 132, 0, 0},
};

enum { Q, K, V, O, LSE, DO };

static double scale_of(const attention_shape *a) { return a->scale != 0 ? a->scale : 1 / sqrt((double)a->d); }

static int64_t products_of(const attention_shape *a) { return a->b * a->h * a->t * a->s * a->d; }

static int64_t query_at(const attention_shape *a, int64_t b, int64_t i, int64_t h) {
  return ((b * a->t + i) * a->h + h) * a->d;
}

static int64_t key_at(const attention_shape *a, int64_t b, int64_t j, int64_t h) {
  return ((b * a->s + j) * a->g + h / (a->h / a->g)) * a->d;
}

static void add_qkv(kernel_case *c, const attention_shape *a, int dtype) {
  c->call.attrs.i[0] = a->causal;
  c->call.attrs.f[0] = a->scale;
  add_input(c, SHAPE(dtype, a->b, a->t, a->h, a->d));
  add_input(c, SHAPE(dtype, a->b, a->s, a->g, a->d));
  add_input(c, SHAPE(dtype, a->b, a->s, a->g, a->d));
}

static kernel_case forward_case(const attention_shape *a, int dtype) {
  kernel_case c = case_of(MS_OP_attention);
  add_qkv(&c, a, dtype);
  add_output(&c, SHAPE(dtype, a->b, a->t, a->h, a->d));
  add_output(&c, SHAPE(MS_F32, a->b, a->h, a->t));
  return c;
}

/* Computes p[j], the softmax over the keys that query i sees; returns the log of its denominator. */
static double probabilities(const kernel_case *c, const attention_shape *a, int64_t b, int64_t i, int64_t h,
                            double *p) {
  double largest = -INFINITY, sum = 0;
  int64_t seen = a->causal ? i + a->s - a->t + 1 : a->s;
  for (int64_t j = 0; j < a->s; j++) {
    p[j] = -INFINITY;
    if (j >= seen) continue;
    p[j] = 0;
    for (int64_t d = 0; d < a->d; d++)
      p[j] += input_at(c, Q, query_at(a, b, i, h) + d) * input_at(c, K, key_at(a, b, j, h) + d);
    p[j] *= scale_of(a);
    largest = fmax(largest, p[j]);
  }
  for (int64_t j = 0; j < a->s; j++) sum += p[j] = exp(p[j] - largest);
  for (int64_t j = 0; j < a->s; j++) p[j] /= sum;
  return largest + log(sum);
}

/* Relative error |x - reference| / |reference|, with norms over the whole tensor. For a tensor that should be 0, the
 * error is relative to elements of 0.2. */
static void assert_close(const kernel_case *c, int output, const double *reference, double tolerance,
                         const char *what) {
  double difference = 0, size = 0;
  int64_t n = ms_numel(&c->call.out[output]);
  for (int64_t i = 0; i < n; i++) {
    double x = output_at(c, output, i);
    if (!(fabs(x) < 1e30)) fail_msg("%s, element %d is %g", what, (int)i, x);
    difference += (x - reference[i]) * (x - reference[i]);
    size += reference[i] * reference[i];
  }
  if (sqrt(difference) > tolerance * (sqrt(size) + 0.2 * sqrt((double)n)))
    fail_msg("%s: relative error %g", what, sqrt(difference / size));
}

static double *doubles(int64_t n) {
  double *x = calloc((size_t)n, sizeof *x);
  assert_non_null(x);
  return x;
}

static double tolerance_of(int dtype) { return dtype == MS_BF16 ? 6e-3 : 2e-6; }

static void check_forward(const attention_shape *a, int dtype) {
  kernel_case c = forward_case(a, dtype);
  double *o = doubles(ms_numel(&c.call.out[0])), *lse = doubles(a->b * a->h * a->t), *p = doubles(a->s);
  for (int64_t b = 0; b < a->b; b++)
    for (int64_t h = 0; h < a->h; h++)
      for (int64_t i = 0; i < a->t; i++) {
        lse[(b * a->h + h) * a->t + i] = probabilities(&c, a, b, i, h, p);
        for (int64_t j = 0; j < a->s; j++)
          for (int64_t d = 0; d < a->d; d++)
            o[query_at(a, b, i, h) + d] += p[j] * input_at(&c, V, key_at(a, b, j, h) + d);
      }
  run_case(&c);
  assert_close(&c, 0, o, tolerance_of(dtype), "o");
  assert_close(&c, 1, lse, 2e-6, "lse");
  free(o), free(lse), free(p);
  free_case(&c);
}

static void forward_matches(void **state) {
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++)
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
      if (!too_large(products_of(&shapes[i]) / 10)) check_forward(&shapes[i], dtype);
}

/* Forward's inputs and results, and a random gradient of o. */
static kernel_case backward_case(const attention_shape *a, int dtype) {
  kernel_case forward = forward_case(a, dtype), c = case_of(MS_OP_attention_backward);
  run_once(&forward, forward.call, 1);
  add_qkv(&c, a, dtype);
  add_input(&c, forward.call.out[0]);
  add_input(&c, forward.call.out[1]);
  add_input(&c, forward.call.out[0]);
  for (int i = Q; i <= V; i++)
    memcpy((void *)c.call.in_data[i], forward.call.in_data[i], (size_t)tensor_bytes(&c.call.in[i]));
  for (int i = 0; i < 2; i++)
    memcpy((void *)c.call.in_data[O + i], forward.call.out_data[i], (size_t)tensor_bytes(&c.call.in[O + i]));
  for (int i = 0; i < 3; i++) add_output(&c, c.call.in[i]);
  free_case(&forward);
  return c;
}

/* dv += p do; ds = p (dp - sum_j p dp); dq += ds k scale, dk += ds q scale */
static void add_gradients(const kernel_case *c, const attention_shape *a, int64_t b, int64_t i, int64_t h, double *p,
                          double *dp, double *dq, double *dk, double *dv) {
  int64_t q = query_at(a, b, i, h);
  double mean = 0;
  probabilities(c, a, b, i, h, p);
  for (int64_t j = 0; j < a->s; j++) {
    int64_t k = key_at(a, b, j, h);
    dp[j] = 0;
    for (int64_t d = 0; d < a->d; d++) {
      dp[j] += input_at(c, DO, q + d) * input_at(c, V, k + d);
      dv[k + d] += p[j] * input_at(c, DO, q + d);
    }
    mean += p[j] * dp[j];
  }
  for (int64_t j = 0; j < a->s; j++)
    for (int64_t d = 0; d < a->d; d++) {
      double ds = p[j] * (dp[j] - mean) * scale_of(a);
      dq[q + d] += ds * input_at(c, K, key_at(a, b, j, h) + d);
      dk[key_at(a, b, j, h) + d] += ds * input_at(c, Q, q + d);
    }
}

static void check_backward(const attention_shape *a, int dtype) {
  kernel_case c = backward_case(a, dtype);
  double *gradient[3], *p = doubles(a->s), *dp = doubles(a->s);
  for (int i = 0; i < 3; i++) gradient[i] = doubles(ms_numel(&c.call.out[i]));
  for (int64_t b = 0; b < a->b; b++)
    for (int64_t h = 0; h < a->h; h++)
      for (int64_t i = 0; i < a->t; i++) add_gradients(&c, a, b, i, h, p, dp, gradient[0], gradient[1], gradient[2]);
  run_case(&c);
  const char *names[] = {"dq", "dk", "dv"};
  for (int i = 0; i < 3; i++) {
    assert_close(&c, i, gradient[i], 2 * tolerance_of(dtype), names[i]);
    free(gradient[i]);
  }
  free(p), free(dp);
  free_case(&c);
}

static void backward_matches(void **state) {
  (void)state;
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++)
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
      if (!too_large(products_of(&shapes[i]) / 10)) check_backward(&shapes[i], dtype);
}

/* The bits do not depend on the number of threads. */
static void threads_change_nothing(void **state) {
  (void)state;
  attention_shape a = {2, 100, 100, 6, 3, 64, 1, 0};
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++)
    for (int backward = 0; backward < 2; backward++) {
      kernel_case c = backward ? backward_case(&a, dtype) : forward_case(&a, dtype);
      ms_kernel_call other = c.call;
      for (int i = 0; i < other.outputs; i++) other.out_data[i] = poisoned(tensor_bytes(&other.out[i]));
      run_once(&c, c.call, 1);
      run_once(&c, other, TEAM);
      assert_same_outputs(&c, other.out_data, 0, "a team");
      for (int i = 0; i < other.outputs; i++) free(other.out_data[i]);
      free_case(&c);
    }
}

/* Keys that a query does not see do not affect it, whether they are NaN in a later block or any number in its own
 * block. */
static void the_future_is_hidden(void **state) {
  (void)state;
  attention_shape a = {1, 128, 128, 1, 1, 64, 1, 0};
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
    kernel_case c = forward_case(&a, dtype);
    run_case(&c);
    ms_kernel_call other = c.call;
    for (int i = 0; i < 2; i++) other.out_data[i] = poisoned(tensor_bytes(&other.out[i]));
    for (int64_t j = 40; j < a.s; j++)
      for (int64_t d = 0; d < a.d; d++)
        for (int input = K; input <= V; input++) set_input(&c, input, j * a.d + d, j < 96 ? 100.0 : NAN);
    run_once(&c, other, 1);
    for (int64_t i = 0; i < 40 * a.d; i++) assert_true(output_at(&c, 0, i) == element_of(other.out_data[0], dtype, i));
    for (int64_t i = 40 * a.d; i < 96 * a.d; i++) assert_false(isnan(element_of(other.out_data[0], dtype, i)));
    for (int i = 0; i < 2; i++) free(other.out_data[i]);
    free_case(&c);
  }
}

/* Widely spaced scores: one key gets all the weight, and nothing overflows. */
static void large_scores(void **state) {
  (void)state;
  attention_shape a = {1, 50, 50, 1, 1, 32, 1, 0};
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
    kernel_case c = forward_case(&a, dtype);
    for (int64_t i = 0; i < a.t * a.d; i++)
      set_input(&c, Q, i, 30 * input_at(&c, Q, i)), set_input(&c, K, i, 30 * input_at(&c, K, i));
    double *p = doubles(a.s), *o = doubles(a.t * a.d);
    for (int64_t i = 0; i < a.t; i++) {
      probabilities(&c, &a, 0, i, 0, p);
      for (int64_t j = 0; j < a.s; j++)
        for (int64_t d = 0; d < a.d; d++) o[i * a.d + d] += p[j] * input_at(&c, V, j * a.d + d);
    }
    run_case(&c);
    assert_close(&c, 0, o, dtype == MS_BF16 ? 6e-3 : 3e-4, "o");
    free(p), free(o);
    free_case(&c);
  }
}

#ifndef MS_TEST_CUDA
/* ---- implementations for other processors ------------------------------------------------------------------------ */

static void run_part_of(kernel_case *c, const ms_attention_part *part, int backward) {
  const ms_attention a = ms_attention_of(&c->call);
  ms_kernel_call call = c->call;
  int64_t items = backward ? a.batch * a.groups : a.batch * a.heads * ms_query_blocks(&a),
          bytes = part->scratch_bytes(&a);
  void *scratch = poisoned(bytes);
  for (int i = 0; i < call.outputs; i++) call.out_data[i] = poisoned(tensor_bytes(&call.out[i]));
  part->run(&a, &call, 0, items, scratch);
  assert_guarded(scratch, bytes);
  assert_same_outputs(c, call.out_data, 1, "this code");
  for (int i = 0; i < call.outputs; i++) {
    assert_guarded(call.out_data[i], tensor_bytes(&call.out[i]));
    free(call.out_data[i]);
  }
  free(scratch);
}

static void instruction_sets_agree(void **state) {
  (void)state;
  attention_shape a = {1, 75, 110, 4, 2, 40, 1, 0};
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++)
    for (int backward = 0; backward < 2; backward++) {
      kernel_case c = backward ? backward_case(&a, dtype) : forward_case(&a, dtype);
      run_once(&c, c.call, 1);
      run_part_of(&c, backward ? &ms_attention_f32_sse2.backward : &ms_attention_f32_sse2.forward, backward);
  #if defined(__x86_64__)
      if (ms_cpu_is_v3())
        run_part_of(&c, backward ? &ms_attention_f32_avx2.backward : &ms_attention_f32_avx2.forward, backward);
      if (dtype == MS_F32 && ms_split_available())
        run_part_of(&c, backward ? &ms_attention_split.backward : &ms_attention_split.forward, backward);
      if (ms_cpu_is_v4())
        run_part_of(&c, backward ? &ms_attention_f32_avx512.backward : &ms_attention_f32_avx512.forward, backward);
  #endif
      free_case(&c);
    }
}

static void check_unit(const ms_bf16_unit *unit) {
  enum { M = 64, N = 96, K = 160, A_STRIDE = K + 2, B_STRIDE = N + 16, C_STRIDE = N + 16 };
  float *c = poisoned(M * C_STRIDE * 4), *random = poisoned((M * A_STRIDE + K * B_STRIDE) * 4);
  ms_bf16 *a = poisoned(M * A_STRIDE * 2);
  uint32_t *b = poisoned(K / 2 * B_STRIDE * 4);
  ms_philox_normal(5, 5, 0, M * A_STRIDE + K * B_STRIDE, random);
  for (int i = 0; i < M * A_STRIDE; i++) a[i] = ms_f32_to_bf16(random[i]);
  for (int i = 0; i < K / 2 * B_STRIDE; i++)
    b[i] = ms_f32_to_bf16(random[M * A_STRIDE + 2 * i]) | (uint32_t)ms_f32_to_bf16(random[M * A_STRIDE + 2 * i + 1])
                                                              << 16;
  if (unit->begin) unit->begin();
  unit->product(c, C_STRIDE, a, A_STRIDE, b, B_STRIDE, M, N, K, 0);
  unit->product(c, C_STRIDE, a, A_STRIDE, b, B_STRIDE, M, N, K, 1);
  if (unit->end) unit->end();
  for (int m = 0; m < M; m++)
    for (int n = 0; n < N; n++) {
      double sum = 0;
      for (int k = 0; k < K; k++)
        sum += (double)ms_bf16_to_f32(a[m * A_STRIDE + k]) *
               ms_bf16_to_f32((ms_bf16)(b[k / 2 * B_STRIDE + n] >> (k & 1 ? 16 : 0)));
      if (fabs(c[m * C_STRIDE + n] - 2 * sum) > 1e-4)
        fail_msg("element %d, %d: %g instead of %g", m, n, c[m * C_STRIDE + n], 2 * sum);
    }
  assert_guarded(c, M * C_STRIDE * 4);
  free(a), free(b), free(c), free(random);
}

static void bf16_units_multiply(void **state) {
  (void)state;
  if (ms_bf16_tiles_of_cpu()) check_unit(ms_bf16_tiles_of_cpu());
  if (ms_bf16_dots_of_cpu()) check_unit(ms_bf16_dots_of_cpu());
}

#endif

#ifdef MS_TEST_CUDA
/* ---- choice of the implementation -------------------------------------------------------------------------------- */

/* MOONSHARD_CUDA_MATMUL_TF32=1 rounds f32 operands to TF32: the bits change, within the accuracy of 10 bits. */
static void tf32_is_used_where_it_is_allowed(void **state) {
  (void)state;
  const attention_shape a = {1, 40, 70, 2, 1, 72, 1, 0};
  for (int backward = 0; backward < 2; backward++) {
    kernel_case c = backward ? backward_case(&a, MS_F32) : forward_case(&a, MS_F32);
    ms_kernel_call other = c.call;
    for (int i = 0; i < other.outputs; i++) other.out_data[i] = poisoned(tensor_bytes(&other.out[i]));
    run_once(&c, c.call, 1);
    setenv("MOONSHARD_CUDA_MATMUL_TF32", "1", 1);
    run_once(&c, other, 1);
    unsetenv("MOONSHARD_CUDA_MATMUL_TF32");
    for (int i = 0; i < other.outputs; i++) {
      const float *exact = c.call.out_data[i], *rounded = other.out_data[i];
      double difference = 0, size = 0;
      for (int64_t e = 0; e < ms_numel(&other.out[i]); e++)
        difference += pow(rounded[e] - exact[e], 2), size += pow(exact[e], 2);
      assert_true(difference > 0 && sqrt(difference) < 2e-3 * sqrt(size));
      free(other.out_data[i]);
    }
    free_case(&c);
  }
}

/* Unaligned tensors give the same bits. */
static void alignment_changes_nothing(void **state) {
  (void)state;
  const attention_shape a = {1, 20, 33, 2, 1, 64, 1, 0};
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++)
    for (int backward = 0; backward < 2; backward++) {
      kernel_case c = backward ? backward_case(&a, dtype) : forward_case(&a, dtype);
      ms_kernel_call other = c.call;
      for (int i = 0; i < other.outputs; i++) other.out_data[i] = poisoned(tensor_bytes(&other.out[i]));
      run_once(&c, c.call, 1);
      device_shift = 4;
      run_once(&c, other, 1);
      device_shift = 0;
      assert_same_outputs(&c, other.out_data, 0, "tensors that are not aligned");
      for (int i = 0; i < other.outputs; i++) free(other.out_data[i]);
      free_case(&c);
    }
}

static void choices_are_checked(void **state) {
  (void)state;
  attention_shape a = {1, 4, 4, 1, 1, 8, 1, 0};
  kernel_case c = forward_case(&a, MS_F32);
  setenv("MOONSHARD_ATTENTION", "fast", 1);
  assert_fails(kernel_of(MS_OP_attention)->prepare(&c.call), MS_EINVAL, "auto | cudnn | flash");
  setenv("MOONSHARD_ATTENTION", "cudnn", 1);
  assert_fails(kernel_of(MS_OP_attention)->prepare(&c.call), MS_EUNSUPPORTED, "1 f32 | 8");
  setenv("MOONSHARD_ATTENTION", "flash", 1);
  free_case(&c);
}

/* NVIDIA's library, if installed, has all required functions and accepts our operations and graphs. This needs no
 * GPU. */
static void the_library_of_the_toolkit_takes_the_graphs(void **state) {
  (void)state;
  char why[MS_LIBRARY_WHY_BYTES];
  ms_cudnn dnn;
  ms_library library = ms_cudnn_library;
  library.variable = "MOONSHARD_TEST_UNSET";
  void *handle = ms_library_open(&library, &dnn, why);
  if (!handle) {
    assert_has(why, "shared object file");
    return;
  }
  for (int bits = 0; bits < 16; bits++) {
    const ms_dnn_attention a = {2, 128, bits >> 3 ? 200 : 128, 8, bits & 1 ? 2 : 8, 64, bits >> 1 & 1, bits >> 2 & 1};
    ms_dnn_graph graph;
    ms_dnn_descriptor whole;
    must(ms_dnn_build(&dnn, &a, &graph));
    assert_int_equal(graph.operations, (a.backward ? (bits & 1 ? 20 : 18) : 10) + (a.t == a.s ? 4 : 6) * a.causal);
    assert_int_equal(dnn.descriptor_create(MS_DNN_GRAPH, &whole), MS_DNN_SUCCESS);
    assert_int_equal(
        dnn.descriptor_set(whole, MS_DNN_GRAPH_OPERATIONS, MS_DNN_OF_DESCRIPTOR, graph.operations, graph.operation),
        MS_DNN_SUCCESS);
    assert_int_equal(dnn.descriptor_finalize(whole), MS_DNN_SUCCESS);
    assert_int_equal(dnn.descriptor_destroy(whole), MS_DNN_SUCCESS);
    ms_dnn_close(&graph);
  }
}
#endif

static void nan_propagates(void **state) {
  (void)state;
  attention_shape a = {1, 70, 70, 2, 1, 64, 1, 0};
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++)
    for (int input = Q; input <= V; input++) {
      kernel_case c = forward_case(&a, dtype);
      set_input(&c, input, (input == Q ? query_at(&a, 0, 37, 1) : key_at(&a, 0, 37, 1)) + 5, NAN);
      run_case(&c);
      for (int64_t i = 0; i < a.t; i++) {
        int nan = isnan(output_at(&c, 0, query_at(&a, 0, i, 1) + 5)) != 0;
        if (i < 32) assert_false(nan); /* blocks before the one with the NaN */
        if (i == 37 || (input != Q && i > 37)) assert_true(nan);
      }
      free_case(&c);
    }
}

static void dtypes_are_checked(void **state) {
  (void)state;
  attention_shape a = {1, 4, 4, 1, 1, 8, 1, 0};
  kernel_case c = forward_case(&a, MS_F32);
  c.call.in[0].dtype = MS_I32;
  assert_fails(kernel_of(MS_OP_attention)->prepare(&c.call), MS_EDTYPE, "q | i32 | f32 | bf16");
  free_case(&c);
}

int main(void) {
#ifdef MS_TEST_CUDA
  setenv("MOONSHARD_ATTENTION", "flash", 1);
#endif
  const struct CMUnitTest tests[] = {
      TEST(forward_matches),        TEST(backward_matches),    TEST(threads_change_nothing), TEST(the_future_is_hidden),
      TEST(large_scores),           TEST(nan_propagates),      TEST(dtypes_are_checked),
#ifndef MS_TEST_CUDA
      TEST(instruction_sets_agree), TEST(bf16_units_multiply),
#else
      TEST(tf32_is_used_where_it_is_allowed), TEST(alignment_changes_nothing), TEST(choices_are_checked),
  #ifndef __SANITIZE_ADDRESS__
      TEST(the_library_of_the_toolkit_takes_the_graphs),
  #endif
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
