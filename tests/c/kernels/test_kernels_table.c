/* test_kernels_table.c - runs every op of the table on small odd shapes and both dtypes: the device has a kernel for
 * it, which gives the CPU's results for tensors at any address. An op without a case in
 * kernel_table_cases.h fails. */
#include "tests/c/support/kernel_case.h"

#include "base/numbers/dtype.h"
#include "graph/graph.h"
#include "kernels/gated_delta_rule.h"
#include "kernels/products/linear_cross_entropy.h"
#include "tests/c/kernels/kernel_table_cases.h"

#ifdef MS_TEST_CUDA
  #include "kernels/cuda/reductions/parts.h"
#endif
#ifdef EMULATED_CUDA
  #include <emulated_runtime.h>
#endif

static ms_value_info read_shape(const char **text, int dtype) {
  const char letters[] = "fxiue";
  const int of_letter[] = {MS_F32, dtype, MS_I32, MS_U8, MS_F8E4M3};
  ms_value_info info = {.dtype = of_letter[strchr(letters, *(*text)++) - letters]};
  while (**text && **text != ' ') {
    info.dims[info.ndim++] = strtoll(*text, (char **)text, 10);
    if (**text == ',') ++*text;
  }
  if (**text) ++*text;
  return info;
}

/* The log-sums, the count and the gradient of a loss, but not a bias. */
static int is_after_targets(const ms_kernel_call *call, int i) {
  const int op = call->op;
  if (op == MS_OP_cross_entropy_step) return i >= 2;
  return i >= 3 && i != ms_loss_bias_of(op, call->inputs) &&
         (op == MS_OP_linear_cross_entropy_backward || op == MS_OP_linear_cross_entropy_backward_x ||
          op == MS_OP_linear_cross_entropy_backward_bias || op == MS_OP_linear_cross_entropy_step ||
          op == MS_OP_linear_cross_entropy_step_bias);
}

static int needs_positive_base(int op, int i) {
  return i == 0 && (op == MS_OP_pow || op == MS_OP_pow_backward_base || op == MS_OP_pow_backward_exponent);
}

static int is_delta_rule(int op) {
  return op == MS_OP_gated_delta_rule || op == MS_OP_gated_delta_rule_backward ||
         op == MS_OP_document_gated_delta_rule || op == MS_OP_document_gated_delta_rule_backward;
}

/* Keys and betas with which a state does not grow. */
static double of_delta_rule(int i, double x) {
  return i == MS_DELTA_K ? x / 3 : i == MS_DELTA_G ? -fabs(x) / 4 : i == MS_DELTA_BETA ? 1 / (1 + exp(-x)) : x;
}

/* Codes are no NaN (127, 255); tokens and targets are classes of 11; norms and counts are positive; the log-sums of
 * attention are larger than scores. */
static void make_sensible(kernel_case *c) {
  const int op = c->call.op;
  for (int i = 0; i < c->call.inputs; i++)
    for (int64_t e = 0; e < ms_numel(&c->call.in[i]); e++) {
      const double x = input_at(c, i, e);
      if (c->call.in[i].dtype == MS_F8E4M3) set_input(c, i, e, (double)(e * 37 % 255 == 127 ? 0 : e * 37 % 255));
      else if (c->call.in[i].dtype == MS_I32) set_input(c, i, e, (double)(e * e % 11));
      else if (op == MS_OP_log || op == MS_OP_sqrt || op == MS_OP_rsqrt || op == MS_OP_div ||
               needs_positive_base(op, i))
        set_input(c, i, e, fabs(x) + 0.25);
      else if ((op == MS_OP_attention_backward || op == MS_OP_document_attention_backward) && i == 4)
        set_input(c, i, e, 4.0 + fabs(x));
      else if (is_delta_rule(op)) set_input(c, i, e, of_delta_rule(i, x));
      else if (op == MS_OP_step_norm || (op == MS_OP_cross_entropy_backward && i >= 2) || is_after_targets(&c->call, i))
        set_input(c, i, e, 1.0 + fabs(x));
    }
}

static kernel_case build(const op_case *of, int dtype) {
  kernel_case c = case_of(ms_op_find(of->op));
  ms_value_info out[MS_MAX_OUTPUTS] = {{0}};
  const ms_op_row *row = ms_op_row_of(c.call.op);
  const double eps = 1e-8;
  if (!row) fail_msg("there is no op %s", of->op);
  must(ms_op_read_attrs(ms_op_find(of->op), of->attrs, &c.call.attrs));
  if (c.call.op == MS_OP_adamw) c.call.attrs.update.eps = eps;
  for (const char *text = of->inputs; *text;) add_input(&c, read_shape(&text, dtype));
  const ms_node node = {.op = c.call.op, .attrs = c.call.attrs, .inputs = c.call.inputs, .outputs = row->outputs};
  must(row->infer(&node, c.call.in, out));
  for (int o = 0; o < row->outputs; o++) {
    add_output(&c, out[o]);
    for (int64_t e = 0; ms_op_reads_outputs(c.call.op, &c.call.attrs) && e < ms_numel(&out[o]); e++)
      set_element(c.call.out_data[o], out[o].dtype, e, 1.0 / (double)(e + 1));
  }
  make_sensible(&c);
  return c;
}

/* Computes the CPU's results in separate buffers. */
static void run_on_cpu(const kernel_case *c, void **out) {
  ms_kernel_call call = c->call;
  const ms_kernel *kernel = ms_cpu_kernel(call.op);
  call.scalars = &c->scalars;
  for (int o = 0; o < call.outputs; o++) call.out_data[o] = out[o];
  if (kernel->prepare) must(kernel->prepare(&call));
  call.workspace = poisoned(call.workspace_bytes);
  must(kernel->run(&call));
  free(call.workspace);
  if (kernel->release) kernel->release(call.prepared);
}

/* Tensor cores keep some 14 bits of a sum of 8-bit products, of the largest of them: in this case of the largest sum.
 */
static double scale_of(const op_case *of, const kernel_case *c, int output) {
  double largest = 0;
#if defined(MS_TEST_CUDA) && !defined(EMULATED_CUDA)
  const int64_t n = strncmp(of->op, "matmul_f8", 9) ? 0 : ms_numel(&c->call.out[output]);
  for (int64_t e = 0; e < n; e++) largest = fmax(largest, fabs(output_at(c, output, e)));
#else
  (void)of, (void)c, (void)output;
#endif
  return largest;
}

enum { OTHER_POISON = 0x3d }; /* a number in each dtype */

static void check_case(const op_case *of, int dtype) {
  kernel_case c = build(of, dtype);
  void *expected[MS_MAX_OUTPUTS];
  for (int o = 0; o < c.call.outputs; o++) {
    const int64_t bytes = tensor_bytes(&c.call.out[o]);
    expected[o] = memcpy(poisoned(bytes), c.call.out_data[o], (size_t)bytes);
    /* Another value than where the device's results go: an element that neither kernel writes differs. */
    if (!ms_op_reads_outputs(c.call.op, &c.call.attrs)) memset(expected[o], OTHER_POISON, (size_t)bytes);
  }
  run_on_cpu(&c, expected);
  run_once(&c, c.call, 1);
  for (int o = 0; o < c.call.outputs; o++) {
    const double tolerance = (dtype == MS_BF16 ? 0.02 : 2e-5) + 1e-3 * scale_of(of, &c, o);
    for (int64_t e = 0; e < ms_numel(&c.call.out[o]); e++) {
      const double wanted = element_of(expected[o], c.call.out[o].dtype, e);
      if (!same_number(output_at(&c, o, e), wanted, tolerance))
        fail_msg("%s of %s (%s), output %d, element %d: %.9g instead of %.9g", of->op, of->inputs, ms_dtype_name(dtype),
                 o, (int)e, output_at(&c, o, e), wanted);
    }
  }
  for (int o = 0; o < c.call.outputs; o++) free(expected[o]);
  free_case(&c);
}

static void check_all(void) {
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
#ifdef MS_TEST_CUDA
    if (!strncmp(cases[i].op, "document_", 9)) continue; /* refused there: test_kernels_documents.c */
#endif
    FOR_EACH(dtype, dtypes) check_case(&cases[i], dtype);
  }
}

static void every_case_matches_the_cpu(void **state) {
  (void)state;
  check_all();
}

static void every_op_has_a_case_and_a_kernel(void **state) {
  (void)state;
  for (int op = 0; op < MS_OP_COUNT; op++) {
    const ms_op_row *row = ms_op_row_of(op);
    int found = row->flags & (MS_OP_ALIAS | MS_OP_COLLECTIVE); /* alone, all collectives are copies */
    if (!found && !kernel_of(op)) fail_msg("this device has no kernel of %s", row->name);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) found |= !strcmp(cases[i].op, row->name);
    if (!found) fail_msg("%s has no case in kernel_table_cases.h", row->name);
  }
}

#ifdef MS_TEST_CUDA
/* prepare_kernel also compares the workspace of every case. */
static void A5_plans_know_every_kernel_without_the_library(void **state) {
  (void)state;
  for (int op = -1; op <= MS_OP_COUNT; op++) {
    const ms_kernel *kernel = ms_cuda_kernel(op), *planned = ms_cuda_planned_kernel(op);
    assert_int_equal(!kernel, !planned);
    if (!kernel) continue;
    assert_int_equal(planned->in_place, kernel->in_place);
    assert_int_equal(!planned->prepare, !kernel->prepare);
  }
}

/* Tensors that begin 4 bytes after a 16-byte boundary: no kernel may read or write them 16 bytes at a time. */
static void tensors_may_begin_anywhere(void **state) {
  (void)state;
  device_shift = 4;
  check_all();
  device_shift = 0;
}

/* More parts than fit in one launch, some of them empty, cast or added; the gaps between them stay unchanged. */
static void parts_move_in_one_call(void **state) {
  (void)state;
  enum { PARTS = 75, SPACE = 6000 };
  for (int kind = 0; kind < 8; kind++) {
    const int from = kind & 1, to = kind >> 1 & 1, add = kind >> 2;
    kernel_case c = case_of(MS_OP_cast);
    ms_move part[PARTS];
    int64_t at = 0;
    add_input(&c, SHAPE(from, SPACE));
    add_output(&c, SHAPE(to, SPACE));
    for (int64_t i = 0; i < SPACE; i++) set_element(c.call.out_data[0], to, i, (double)(i % 100));
    mirrors m = {.count = 0};
    char *x = mirrored(&m, c.call.in_data[0], tensor_bytes(&c.call.in[0]), 0);
    char *y = mirrored(&m, c.call.out_data[0], tensor_bytes(&c.call.out[0]), 0);
    for (int p = 0; p < PARTS; p++) {
      const int64_t n = p == 7 ? 4500 : p % 5 * 4 + p % 3;
      part[p] = (ms_move){x + at * ms_dtype_size(from), y + at * ms_dtype_size(to), n, from, to, add, NULL};
      at += part[p].n + 4 - part[p].n % 4; /* every part begins at a whole vector of f32 and leaves a gap */
    }
    assert_in_range(at, 1, SPACE);
    if (add && to == MS_BF16) {
      assert_fails(ms_cuda_move(part, PARTS, NULL), MS_EDTYPE, "added | f32 | bf16");
    } else {
      must(ms_cuda_move(part, PARTS, NULL));
      check_cuda(cudaDeviceSynchronize());
      check_cuda(cudaMemcpy(c.call.out_data[0], y, (size_t)tensor_bytes(&c.call.out[0]), cudaMemcpyDeviceToHost));
      for (int64_t i = 0, p = 0; i < SPACE; i++) {
        while (p + 1 < PARTS && (char *)part[p + 1].to <= y + i * ms_dtype_size(to)) p++;
        const int64_t first = ((char *)part[p].to - y) / ms_dtype_size(to);
        const double before = (double)(i % 100), given = input_at(&c, 0, i);
        if (i >= first + part[p].n) assert_true(output_at(&c, 0, i) == before);
        else assert_output(&c, 0, i, add ? before + given : given, 1e-6);
      }
    }
    for (int i = 0; i < m.count; i++) check_cuda(cudaFree(m.list[i].allocation));
    free_case(&c);
  }
}

/* Each part is moved with its own dtypes, whatever the other parts of the launch have. */
static void parts_of_several_dtypes_move_in_one_call(void **state) {
  (void)state;
  enum { N = 37 };
  static const struct {
    int from, to, add;
  } kinds[] = {{MS_F32, MS_BF16, 0}, {MS_BF16, MS_F32, 1}, {MS_BF16, MS_BF16, 0}, {MS_F32, MS_F32, 1}};
  kernel_case c[4];
  mirrors m = {.count = 0};
  ms_move part[4];
  for (int k = 0; k < 4; k++) {
    c[k] = case_of(MS_OP_cast);
    add_input(&c[k], SHAPE(kinds[k].from, N));
    add_output(&c[k], SHAPE(kinds[k].to, N));
    for (int64_t i = 0; i < N; i++) set_element(c[k].call.out_data[0], kinds[k].to, i, (double)i);
    void *from = mirrored(&m, c[k].call.in_data[0], tensor_bytes(&c[k].call.in[0]), 0);
    void *to = mirrored(&m, c[k].call.out_data[0], tensor_bytes(&c[k].call.out[0]), 0);
    part[k] = (ms_move){from, to, N, kinds[k].from, kinds[k].to, kinds[k].add, NULL};
  }
  must(ms_cuda_move(part, 4, NULL));
  check_cuda(cudaDeviceSynchronize());
  for (int k = 0; k < 4; k++) {
    const int64_t bytes = tensor_bytes(&c[k].call.out[0]);
    check_cuda(cudaMemcpy(c[k].call.out_data[0], part[k].to, (size_t)bytes, cudaMemcpyDeviceToHost));
    for (int64_t i = 0; i < N; i++)
      assert_output(&c[k], 0, i, kinds[k].add * (double)i + input_at(&c[k], 0, i),
                    kinds[k].to == MS_BF16 ? 4e-3 : 1e-6);
    free_case(&c[k]);
  }
  for (int i = 0; i < m.count; i++) check_cuda(cudaFree(m.list[i].allocation));
}

  #ifdef EMULATED_CUDA
/* Returns 1 if the n-th call of the function by the case failed and the failure was reported. */
static int fails_at(const op_case *of, const char *function, const char *told, int n) {
  kernel_case c = build(of, MS_BF16);
  const ms_kernel *kernel = kernel_of(c.call.op);
  char spec[64];
  if (kernel->prepare) must(kernel->prepare(&c.call));
  c.call.workspace = poisoned(c.call.workspace_bytes);
  c.call.scalars = &c.scalars;
  snprintf(spec, sizeof spec, "%s:%d", function, n);
  setenv("MOONSHARD_EMULATE_FAIL", spec, 1);
  emulated_forget_calls();
  const int rc = run_kernel(kernel, &c.call);
  unsetenv("MOONSHARD_EMULATE_FAIL");
  if (rc && (rc != MS_EDEVICE || !strstr(ms_error_message(), told)))
    fail_msg("%s, %s: %s: %s", of->op, spec, ms_status_name(rc), ms_error_message());
  if (rc) assert_int_equal(cudaPeekAtLastError(), cudaSuccess); /* libraries would report it as their own error */
  if (emulated_left()) fail_msg("%s, %s: left behind: %s", of->op, spec, emulated_left());
  ms_error_clear();
  free(c.call.workspace);
  if (kernel->release) kernel->release(c.call.prepared);
  free_case(&c);
  return rc != MS_OK;
}

static void A4_every_call_of_a_kernel_may_fail(void **state) {
  (void)state;
  static const char *const functions[][2] = {{"cudaLaunchKernel", "kernel "},
                                             {"cudaMemsetAsync", "cudaMemsetAsync: "},
                                             {"cudaMemcpyAsync", "cudaMemcpyAsync: "},
                                             {"cudaFuncSetAttribute", "shared memory"}};
  int failed[4] = {0};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    if (!strncmp(cases[i].op, "document_", 9)) continue;
    for (int f = 0; f < 4; f++)
      for (int n = 1; fails_at(&cases[i], functions[f][0], functions[f][1], n); n++) failed[f]++;
  }
  for (int f = 0; f < 4; f++)
    if (!failed[f]) fail_msg("%s is never called", functions[f][0]);
}
  #endif

static void too_much_is_refused(void **state) {
  (void)state;
  const op_case wide = {"attention", "x1,2,1,300 x1,2,1,300 x1,2,1,300", ""};
  kernel_case c = build(&wide, MS_F32);
  assert_fails(kernel_of(c.call.op)->prepare(&c.call), MS_EUNSUPPORTED, "attention | 300 | 256");
  free_case(&c);
}
#endif

int main(void) {
#ifdef MS_TEST_CUDA
  setenv("MOONSHARD_ATTENTION", "flash", 1); /* test_cuda_attention.c tests cuDNN */
#endif
  const struct CMUnitTest tests[] = {
      TEST(every_case_matches_the_cpu),
      TEST(every_op_has_a_case_and_a_kernel),
#ifdef MS_TEST_CUDA
      TEST(A5_plans_know_every_kernel_without_the_library),
      TEST(tensors_may_begin_anywhere),
      TEST(parts_move_in_one_call),
      TEST(parts_of_several_dtypes_move_in_one_call),
  #ifdef EMULATED_CUDA
      TEST(A4_every_call_of_a_kernel_may_fail),
  #endif
      TEST(too_much_is_refused),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
