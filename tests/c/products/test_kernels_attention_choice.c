/* test_kernels_attention_choice.c - whatever computes attention, its results agree: any number of threads, every
 * instruction set of the CPU, and on CUDA whatever the library, the alignment and the precision are. */
#include "attention_case.h"

#include "base/error.h"
#include "base/text/hash.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/matmul/bf16_block.h"
#include "kernels/cpu/matmul/split_panel.h"
#include "kernels/cpu/target.h"
#ifdef MS_TEST_CUDA
  #include "kernels/cuda/attention/cudnn_graph.h"
#endif

/* The bits do not depend on the number of threads. */
static void threads_change_nothing(void **state) {
  (void)state;
  attention_shape a = {2, 100, 100, 6, 3, 64, 1, 0, 0, 0, 0, 0};
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

#ifndef MS_TEST_CUDA
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

static void check_instruction_sets(const attention_shape *a, int dtype) {
  for (int backward = 0; backward < 2; backward++) {
    kernel_case c = backward ? backward_case(a, dtype) : forward_case(a, dtype);
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

/* Sizes, windows, prefixes and values' widths of any kind, and some capped scores. */
static attention_shape drawn_shape(uint64_t draw) {
  uint64_t n[5];
  for (uint64_t i = 0; i < 5; i++) n[i] = ms_hash_int(draw, (int64_t)i) >> 20;
  const int64_t t = 1 + (int64_t)(n[0] % 170), s = t + (int64_t)(n[1] % 3 ? 0 : n[1] % 90);
  const int64_t window = (int64_t)(n[4] % 120), groups = 1 + (int64_t)(n[2] % 2), d = 1 + (int64_t)(n[3] % 70);
  const int causal = draw % 4 != 1;
  const int64_t e = draw % 2 ? 1 + (int64_t)(n[0] / 170 % 70) : 0, prefix = draw % 4 == 2 ? (int64_t)(n[1] % 200) : 0;
  return (attention_shape){1, t, s, 2, groups, d, causal, 0, prefix ? 0 : window, draw % 3 ? 0 : 1.5, e, prefix};
}

static void instruction_sets_agree(void **state) {
  (void)state;
  const attention_shape plain = {1, 75, 110, 4, 2, 40, 1, 0, 0, 0, 0, 0},
                        window = {1, 275, 310, 4, 2, 40, 1, 0, 70, 0, 0, 0};
  for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
    check_instruction_sets(&plain, dtype);
    check_instruction_sets(&window, dtype);
    for (uint64_t draw = 0; draw < 40; draw++) {
      const attention_shape a = drawn_shape(draw);
      check_instruction_sets(&a, dtype);
    }
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
#else
/* MOONSHARD_CUDA_MATMUL_TF32=1 rounds f32 operands to TF32: the bits change, within the accuracy of 10 bits. */
static void tf32_is_used_where_it_is_allowed(void **state) {
  (void)state;
  const attention_shape a = {1, 40, 70, 2, 1, 72, 1, 0, 0, 0, 0, 0};
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
  const attention_shape a = {1, 20, 33, 2, 1, 64, 1, 0, 0, 0, 0, 0};
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

/* cuDNN is not used for a shape, for the reason that the error has; NULL: it is. */
static void check_refused(const attention_shape *a, const char *reason) {
  kernel_case c = forward_case(a, MS_BF16);
  const ms_kernel *kernel = kernel_of(MS_OP_attention);
  if (reason) assert_fails(kernel->prepare(&c.call), MS_EUNSUPPORTED, reason);
  else must(kernel->prepare(&c.call)), kernel->release(c.call.prepared);
  free_case(&c);
}

static void choices_are_checked(void **state) {
  (void)state;
  attention_shape a = {1, 4, 4, 1, 1, 8, 1, 0, 0, 0, 0, 0};
  kernel_case c = forward_case(&a, MS_F32);
  setenv("MOONSHARD_ATTENTION", "fast", 1);
  assert_fails(kernel_of(MS_OP_attention)->prepare(&c.call), MS_EINVAL, "auto | cudnn | flash");
  setenv("MOONSHARD_ATTENTION", "cudnn", 1);
  assert_fails(kernel_of(MS_OP_attention)->prepare(&c.call), MS_EUNSUPPORTED, "1 f32 | 8");
  free_case(&c);
  const attention_shape narrow = {1, 9, 9, 1, 1, 8, 1, 0, 8, 0, 0, 0}, wide = {1, 9, 9, 1, 1, 8, 1, 0, 9, 0, 0, 0},
                        capped = {1, 9, 9, 1, 1, 8, 1, 0, 0, 2, 0, 0};
  check_refused(&narrow, "a sliding window | 9 queries");
  check_refused(&capped, "capped scores | 9 queries");
  check_refused(&wide, NULL); /* hides nothing */
  setenv("MOONSHARD_ATTENTION", "flash", 1);
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

int main(void) {
#ifdef MS_TEST_CUDA
  setenv("MOONSHARD_ATTENTION", "flash", 1);
#endif
  const struct CMUnitTest tests[] = {
      TEST(threads_change_nothing),
#ifndef MS_TEST_CUDA
      TEST(instruction_sets_agree),
      TEST(bf16_units_multiply),
#else
      TEST(tf32_is_used_where_it_is_allowed),
      TEST(alignment_changes_nothing),
      TEST(choices_are_checked),
  #ifndef __SANITIZE_ADDRESS__
      TEST(the_library_of_the_toolkit_takes_the_graphs),
  #endif
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
