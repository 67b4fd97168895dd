/* test_kernels_matmul.c - compares matrix products with sums in double: transposes, batches, biases, activations, both
 * dtypes; by oneDNN, by the plain loops, and for f32 by the bf16 matrix unit if the processor has one. */
#include "support/kernel_case.h"

#include "base/error.h"
#include "kernels/cpu/split_panel.h"
#ifdef MS_TEST_CUDA
  #include "kernels/cuda/cublaslt.h"
#endif

typedef struct product {
  int64_t m, n, k;
  int64_t leading[2]; /* batch dimensions of a and c; 0: none */
  int batched_b, trans_a, trans_b, bias, activation, dtype, out_dtype, bias_dtype;
} product;

static int64_t batch_of(const product *p) {
  return (p->leading[0] ? p->leading[0] : 1) * (p->leading[1] ? p->leading[1] : 1);
}

static ms_value_info matrix(const product *p, int batched, int dtype, int64_t rows, int64_t columns) {
  ms_value_info info = {.dtype = dtype};
  for (int d = 0; d < 2; d++)
    if (batched && p->leading[d]) info.dims[info.ndim++] = p->leading[d];
  info.dims[info.ndim++] = rows;
  info.dims[info.ndim++] = columns;
  return info;
}

static kernel_case case_of_product(const product *p) {
  kernel_case c = case_of(MS_OP_matmul);
  c.call.attrs.i[0] = p->trans_a;
  c.call.attrs.i[1] = p->trans_b;
  c.call.attrs.i[2] = p->activation;
  add_input(&c, matrix(p, 1, p->dtype, p->trans_a ? p->k : p->m, p->trans_a ? p->m : p->k));
  add_input(&c, matrix(p, p->batched_b, p->dtype, p->trans_b ? p->n : p->k, p->trans_b ? p->k : p->n));
  if (p->bias) add_input(&c, SHAPE(p->bias_dtype, p->n));
  add_output(&c, matrix(p, 1, p->out_dtype, p->m, p->n));
  return c;
}

static double activate(double x, int activation) {
  switch (activation) {
    case MS_ACT_RELU: return x < 0 ? 0 : x;
    case MS_ACT_GELU: return 0.5 * x * (1 + erf(x * M_SQRT1_2));
    case MS_ACT_GELU_TANH: return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case MS_ACT_SILU: return x / (1 + exp(-x));
    default: return x;
  }
}

/* Element (row, column) of matrix `batch`, and the sum of absolute products, to which rounding errors are relative. */
static double reference(const kernel_case *c, const product *p, int64_t batch, int64_t row, int64_t column,
                        double *size) {
  int64_t a = batch * p->m * p->k, b = p->batched_b ? batch * p->k * p->n : 0;
  double sum = 0;
  *size = 0;
  for (int64_t i = 0; i < p->k; i++) {
    double x = input_at(c, 0, a + (p->trans_a ? i * p->m + row : row * p->k + i));
    double y = input_at(c, 1, b + (p->trans_b ? column * p->k + i : i * p->n + column));
    sum += x * y;
    *size += fabs(x * y);
  }
  if (p->bias) sum += input_at(c, 2, column);
  return sum;
}

/* Additional rounding of a bf16 result beyond assert_output's: CUDA may add a bias of another dtype, or apply an
 * activation, to a product that is already rounded. */
static double rounded_before(const product *p) {
#ifdef MS_TEST_CUDA
  const int passes = (p->bias && p->bias_dtype != p->out_dtype) || p->activation != MS_ACT_NONE;
  return passes && p->dtype == MS_BF16 && p->out_dtype == MS_BF16 ? 1.0 / 256 : 0;
#else
  (void)p;
  return 0;
#endif
}

static void check_product(const product *p) {
  if (too_large(batch_of(p) * p->m * p->n * p->k / 10)) return;
  kernel_case c = case_of_product(p);
  run_case(&c);
  for (int64_t batch = 0; batch < batch_of(p); batch++)
    for (int64_t row = 0; row < p->m; row++)
      for (int64_t column = 0; column < p->n; column++) {
        double size, sum = reference(&c, p, batch, row, column, &size);
        assert_output(&c, 0, (batch * p->m + row) * p->n + column, activate(sum, p->activation),
                      1e-6 * (2 + size) + rounded_before(p));
      }
  free_case(&c);
}

/* Every combination of transposes and dtypes on each shape. */
static void check_shapes(const product *shapes, int count) {
  for (int i = 0; i < count; i++)
    for (int bits = 0; bits < 16; bits++) {
      product p = shapes[i];
      p.trans_a = bits & 1;
      p.trans_b = bits >> 1 & 1;
      p.dtype = bits & 4 ? MS_BF16 : MS_F32;
      p.out_dtype = bits & 8 ? MS_BF16 : MS_F32;
      p.bias_dtype = i & 1 ? MS_BF16 : MS_F32;
      check_product(&p);
    }
}

static void matrices(void **state) {
  (void)state;
  static const product shapes[] = {{.m = 1, .n = 1, .k = 1},
                                   {.m = 1, .n = 70, .k = 33, .bias = 1},
                                   {.m = 65, .n = 1, .k = 7},
                                   {.m = 33, .n = 47, .k = 129},
                                   {.m = 64, .n = 64, .k = 64, .bias = 1},
                                   {.m = 5, .n = 130, .k = 300},
                                   {.m = 130, .n = 17, .k = 2, .bias = 1}};
  check_shapes(shapes, sizeof shapes / sizeof *shapes);
}

/* Large enough for several blocks: ragged in every dimension, or deeper than one pass over k. */
static void large_matrices(void **state) {
  (void)state;
  static const product shapes[] = {{.m = 64, .n = 32, .k = 32, .bias = 1},
                                   {.m = 97, .n = 75, .k = 61, .bias = 1},
                                   {.m = 300, .n = 40, .k = 96},
                                   {.m = 65, .n = 50, .k = 1024, .bias = 1},
                                   {.m = 66, .n = 34, .k = 1100, .activation = MS_ACT_GELU}};
  check_shapes(shapes, sizeof shapes / sizeof *shapes);
}

static void batches(void **state) {
  (void)state;
  static const product shapes[] = {{.m = 7, .n = 19, .k = 21, .leading = {2, 3}, .batched_b = 1},
                                   {.m = 7, .n = 19, .k = 21, .leading = {2, 3}, .bias = 1},
                                   {.m = 1, .n = 8, .k = 5, .leading = {4}},
                                   {.m = 16, .n = 3, .k = 9, .leading = {3}, .batched_b = 1, .bias = 1},
                                   {.m = 6, .n = 5, .k = 4, .leading = {1, 1}, .batched_b = 1}};
  check_shapes(shapes, sizeof shapes / sizeof *shapes);
}

static void activations(void **state) {
  (void)state;
  static const int kinds[] = {MS_ACT_RELU, MS_ACT_GELU, MS_ACT_GELU_TANH, MS_ACT_SILU};
  for (int kind = 0; kind < 4; kind++)
    for (int dtype = MS_F32; dtype <= MS_BF16; dtype++) {
      product p = {.m = 31,
                   .n = 50,
                   .k = 24,
                   .bias = 1,
                   .activation = kinds[kind],
                   .dtype = dtype,
                   .out_dtype = dtype,
                   .bias_dtype = dtype};
      check_product(&p);
      p.leading[0] = 2, p.batched_b = 1;
      check_product(&p);
    }
}

/* c += the product, in f32, for operands of any dtype. */
static void adds_to_what_is_there(void **state) {
  (void)state;
  for (int bits = 0; bits < 8; bits++) {
    product p = {.m = 33, .n = 17, .k = 70, .trans_a = bits & 1, .trans_b = bits >> 1 & 1};
    p.dtype = bits & 4 ? MS_BF16 : MS_F32;
    kernel_case c = case_of_product(&p);
    c.call.op = MS_OP_matmul_accumulate;
    for (int64_t i = 0; i < p.m * p.n; i++) set_element(c.call.out_data[0], MS_F32, i, (double)i);
    run_once(&c, c.call, 1);
    for (int64_t i = 0; i < p.m * p.n; i++) {
      double size, sum = reference(&c, &p, 0, i / p.n, i % p.n, &size);
      assert_output(&c, 0, i, (double)i + sum, 1e-6 * (2 + size));
    }
    c.call.out[0].dtype = MS_BF16;
    assert_fails(kernel_of(MS_OP_matmul_accumulate)->prepare(&c.call), MS_EDTYPE, "accumulator | f32");
    free_case(&c);
  }
}

/* relu of a negative number is exactly 0, however large the number. */
static void relu_is_exact(void **state) {
  (void)state;
  product p = {.m = 40, .n = 40, .k = 1, .activation = MS_ACT_RELU, .dtype = MS_F32, .out_dtype = MS_F32};
  kernel_case c = case_of_product(&p);
  for (int i = 0; i < 40; i++) set_input(&c, 0, i, pow(10, i % 20 - 9) * (i & 1 ? -1 : 1)), set_input(&c, 1, i, 1 + i);
  run_case(&c);
  for (int i = 0; i < 1600; i++)
    assert_true(output_at(&c, 0, i) == fmax(0, (float)(input_at(&c, 0, i / 40) * input_at(&c, 1, i % 40))));
  free_case(&c);
}

/* A NaN in row r of a makes only row r of the result NaN; so does an infinity whose products cancel. */
static void nan_propagates(void **state) {
  (void)state;
  for (int activation = MS_ACT_NONE; activation <= MS_ACT_SILU; activation++)
    for (int dtype = MS_F32; dtype <= MS_BF16; dtype++)
      for (int trans_b = 0; trans_b < 2; trans_b++) {
        product p = {.m = 20,
                     .n = 36,
                     .k = 40,
                     .trans_b = trans_b,
                     .activation = activation,
                     .dtype = dtype,
                     .out_dtype = dtype};
        kernel_case c = case_of_product(&p);
        set_input(&c, 0, 7 * p.k + 3, NAN);
        run_case(&c);
        for (int64_t i = 0; i < p.m * p.n; i++) assert_int_equal(isnan(output_at(&c, 0, i)) != 0, i / p.n == 7);
        free_case(&c);
      }
}

static void dtypes_are_checked(void **state) {
  (void)state;
  product p = {.m = 4, .n = 4, .k = 4};
  kernel_case c = case_of_product(&p);
  c.call.in[1].dtype = MS_BF16;
  assert_fails(kernel_of(MS_OP_matmul)->prepare(&c.call), MS_EDTYPE, "f32 | bf16 | dtype");
  c.call.in[0].dtype = MS_I32;
  assert_fails(kernel_of(MS_OP_matmul)->prepare(&c.call), MS_EDTYPE, "input 0 | i32");
  free_case(&c);
}

#ifdef MS_TEST_CUDA
/* For tensors that are not aligned to 16 bytes the library has different algorithms. */
static void unaligned(void **state) {
  (void)state;
  for (int bits = 0; bits < 8; bits++) {
    product p = {.m = 33, .n = 24, .k = 40, .trans_a = bits & 1, .trans_b = bits >> 1 & 1, .bias = 1};
    p.dtype = p.out_dtype = p.bias_dtype = bits & 4 ? MS_BF16 : MS_F32;
    device_shift = bits & 4 ? 2 : 4;
    check_product(&p);
    device_shift = 0;
  }
}

/* Full f32 precision unless TF32 is requested: 1 + 2^-12 is exact in f32 and becomes 1 in TF32. */
static void tf32_is_a_choice(void **state) {
  (void)state;
  for (int tf32 = 0; tf32 < 2; tf32++) {
    product p = {.m = 64, .n = 64, .k = 64};
    kernel_case c = case_of_product(&p);
    for (int64_t i = 0; i < 64 * 64; i++) set_input(&c, 0, i, 1 + 1.0 / 4096), set_input(&c, 1, i, i % 65 == 0);
    setenv("MOONSHARD_CUDA_MATMUL_TF32", tf32 ? "1" : "0", 1);
    run_case(&c);
    unsetenv("MOONSHARD_CUDA_MATMUL_TF32");
    assert_true(output_at(&c, 0, 5) == (tf32 ? 1 : 1 + 1.0 / 4096));
    free_case(&c);
  }
}

static void choice_is_checked(void **state) {
  (void)state;
  product p = {.m = 4, .n = 4, .k = 4};
  kernel_case c = case_of_product(&p);
  setenv("MOONSHARD_CUDA_MATMUL", "blas", 1);
  assert_fails(kernel_of(MS_OP_matmul)->prepare(&c.call), MS_EINVAL,
               "MOONSHARD_CUDA_MATMUL | blas | auto | cublaslt | plain");
  free_case(&c);
}

/* Runs before the library is loaded, because it then stays loaded. */
static void a_library_that_is_not_found_is_told(void **state) {
  (void)state;
  product p = {.m = 20, .n = 12, .k = 16};
  kernel_case c = case_of_product(&p);
  ms_kernel_call call = c.call;
  char *before = getenv("MOONSHARD_CUBLASLT_LIBRARY");
  char *path = before ? strdup(before) : NULL;
  setenv("MOONSHARD_CUBLASLT_LIBRARY", "/nowhere/libcublasLt.so", 1);
  setenv("MOONSHARD_CUDA_MATMUL", "cublaslt", 1);
  must(kernel_of(MS_OP_matmul)->prepare(&call));
  assert_fails(kernel_of(MS_OP_matmul)->bind(&call), MS_EUNSUPPORTED,
               "MOONSHARD_CUDA_MATMUL=cublaslt | cuBLASLt: | /nowhere/libcublasLt.so");
  kernel_of(MS_OP_matmul)->release(call.prepared);
  assert_null(ms_note_next());
  setenv("MOONSHARD_CUDA_MATMUL", "auto", 1);
  check_product(&p);
  const char *note = ms_note_next();
  assert_non_null(note);
  assert_has(note, "cuBLASLt | /nowhere/libcublasLt.so: | own kernels");
  assert_null(ms_note_next());
  if (path) setenv("MOONSHARD_CUBLASLT_LIBRARY", path, 1);
  else unsetenv("MOONSHARD_CUBLASLT_LIBRARY");
  free(path);
  free_case(&c);
}

/* NVIDIA's library, if installed, has all required functions and accepts our attributes. This needs no GPU. */
static void the_library_of_the_toolkit_is_as_declared(void **state) {
  (void)state;
  char why[MS_LIBRARY_WHY_BYTES];
  ms_cublaslt lt;
  ms_lt_desc *desc;
  ms_lt_layout *layout;
  ms_lt_preference *preference;
  ms_library library = ms_cublaslt_library;
  library.variable = "MOONSHARD_TEST_UNSET";
  void *handle = ms_library_open(&library, &lt, why);
  if (!handle) {
    assert_has(why, "shared object file");
    return;
  }
  assert_true(lt.get_version() >= 120000);
  assert_string_equal(lt.get_status_name(MS_LT_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
  assert_int_equal(lt.desc_create(&desc, MS_LT_COMPUTE_32F_FAST_TF32, MS_LT_R_32F), MS_LT_SUCCESS);
  assert_int_equal(lt.desc_set(desc, MS_LT_DESC_TRANSA, &(int32_t){MS_LT_OP_T}, 4), MS_LT_SUCCESS);
  assert_int_equal(lt.desc_set(desc, MS_LT_DESC_TRANSB, &(int32_t){MS_LT_OP_T}, 4), MS_LT_SUCCESS);
  assert_int_equal(lt.desc_set(desc, MS_LT_DESC_EPILOGUE, &(int32_t){MS_LT_EPILOGUE_DGELU_BGRAD}, 4), MS_LT_SUCCESS);
  assert_int_equal(lt.desc_set(desc, MS_LT_DESC_BIAS_POINTER, &desc, 8), MS_LT_SUCCESS);
  assert_int_equal(lt.desc_set(desc, MS_LT_DESC_EPILOGUE_AUX_POINTER, &desc, 8), MS_LT_SUCCESS);
  assert_int_equal(lt.desc_set(desc, MS_LT_DESC_EPILOGUE_AUX_LD, &(int64_t){64}, 8), MS_LT_SUCCESS);
  assert_int_equal(lt.desc_set(desc, MS_LT_DESC_EPILOGUE_AUX_LD, &(int64_t){64}, 4), MS_LT_INVALID_VALUE);
  assert_int_equal(lt.layout_create(&layout, MS_LT_R_16BF, 64, 32, 64), MS_LT_SUCCESS);
  assert_int_equal(lt.layout_set(layout, MS_LT_LAYOUT_BATCH_COUNT, &(int32_t){3}, 4), MS_LT_SUCCESS);
  assert_int_equal(lt.layout_set(layout, MS_LT_LAYOUT_STRIDED_BATCH_OFFSET, &(int64_t){0}, 8), MS_LT_SUCCESS);
  assert_int_equal(lt.preference_create(&preference), MS_LT_SUCCESS);
  assert_int_equal(lt.preference_set(preference, MS_LT_PREF_MAX_WORKSPACE_BYTES, &(uint64_t){1 << 25}, 8), 0);
  assert_int_equal(
      lt.preference_set(preference, MS_LT_PREF_REDUCTION_SCHEME_MASK, &(uint32_t){MS_LT_REDUCTION_COMPUTE_TYPE}, 4),
      MS_LT_SUCCESS);
  for (int matrix = MS_LT_PREF_MIN_ALIGNMENT_A_BYTES; matrix <= MS_LT_PREF_MIN_ALIGNMENT_D_BYTES; matrix++)
    assert_int_equal(lt.preference_set(preference, matrix, &(uint32_t){16}, 4), MS_LT_SUCCESS);
  assert_int_equal(lt.preference_destroy(preference), MS_LT_SUCCESS);
  assert_int_equal(lt.layout_destroy(layout), MS_LT_SUCCESS);
  assert_int_equal(lt.desc_destroy(desc), MS_LT_SUCCESS);
}

static int by_own_kernels(void **state) {
  (void)state;
  return setenv("MOONSHARD_CUDA_MATMUL", "plain", 1);
}

static int by_cublaslt(void **state) {
  (void)state;
  return setenv("MOONSHARD_CUDA_MATMUL", "cublaslt", 1);
}

int main(void) {
  const struct CMUnitTest plain[] = {
      TEST(a_library_that_is_not_found_is_told),
  #ifndef __SANITIZE_ADDRESS__
      TEST(the_library_of_the_toolkit_is_as_declared),
  #endif
  };
  const struct CMUnitTest tests[] = {TEST(matrices),         TEST(large_matrices),        TEST(batches),
                                     TEST(activations),      TEST(adds_to_what_is_there), TEST(relu_is_exact),
                                     TEST(nan_propagates),   TEST(dtypes_are_checked),    TEST(unaligned),
                                     TEST(choice_is_checked)};
  const struct CMUnitTest precision[] = {TEST(tf32_is_a_choice)};
  int failed = cmocka_run_group_tests_name("matmul without cuBLASLt", plain, NULL, NULL);
  failed += cmocka_run_group_tests_name("matmul by cuBLASLt", tests, by_cublaslt, NULL);
  failed += cmocka_run_group_tests_name("precision of cuBLASLt", precision, by_cublaslt, NULL);
  return failed + cmocka_run_group_tests_name("matmul by own kernels", tests, by_own_kernels, NULL);
}
#else
static void choice_is_checked(void **state) {
  (void)state;
  product p = {.m = 4, .n = 4, .k = 4};
  kernel_case c = case_of_product(&p);
  setenv("MOONSHARD_MATMUL", "blas", 1);
  assert_fails(ms_cpu_kernel(MS_OP_matmul)->prepare(&c.call), MS_EINVAL,
               "MOONSHARD_MATMUL | blas | auto | onednn | split | plain");
  unsetenv("MOONSHARD_MATMUL");
  free_case(&c);
}

/* ---- f32 on the bf16 matrix unit -------------------------------------------------------------------------------- */

/* More than one block of rows (128), columns (768) and k (512), none of them a multiple of a panel. */
static void blocks(void **state) {
  (void)state;
  static const product shapes[] = {{.m = 301, .n = 97, .k = 1100, .bias = 1},
                                   {.m = 70, .n = 901, .k = 45, .bias = 1},
                                   {.m = 129, .n = 35, .k = 513, .activation = MS_ACT_SILU}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    for (int bits = 0; bits < 4; bits++) {
      product p = shapes[i];
      p.trans_a = bits & 1;
      p.trans_b = bits >> 1;
      p.bias_dtype = bits & 1 ? MS_BF16 : MS_F32;
      check_product(&p);
    }
}

/* Threads divide rows, columns or batches; every sum keeps its order. */
static void threads_change_no_bit(void **state) {
  (void)state;
  static const product shapes[] = {{.m = 300, .n = 100, .k = 600, .bias = 1},
                                   {.m = 40, .n = 800, .k = 70},
                                   {.m = 50, .n = 40, .k = 64, .leading = {5}, .batched_b = 1}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    kernel_case c = case_of_product(&shapes[i]);
    ms_kernel_call again = c.call;
    run_once(&c, c.call, 1);
    for (int threads = 2; threads <= 4; threads++) {
      again.out_data[0] = poisoned(tensor_bytes(&again.out[0]));
      run_once(&c, again, threads);
      assert_same_outputs(&c, again.out_data, 0, "threads");
      free(again.out_data[0]);
    }
    free_case(&c);
  }
}

/* Root mean square of the error, relative to the size of the sums. */
static double error_of(const product *p, const char *by, double shift, double spread) {
  kernel_case c = case_of_product(p);
  double squares = 0, scale = 0;
  for (int i = 0; i < 2; i++)
    for (int64_t e = 0, n = ms_numel(&c.call.in[i]); e < n; e++)
      set_input(&c, i, e, (input_at(&c, i, e) + shift) * pow(10, spread * (double)(e % 7 - 3)));
  setenv("MOONSHARD_MATMUL", by, 1);
  run_once(&c, c.call, 1);
  for (int64_t row = 0; row < p->m; row++)
    for (int64_t column = 0; column < p->n; column++) {
      double size, error = output_at(&c, 0, row * p->n + column);
      error -= reference(&c, p, 0, row, column, &size);
      squares += error * error;
      scale += size * size;
    }
  free_case(&c);
  return sqrt(squares / scale);
}

/* Sums of mixed signs and of one sign, short and long, of numbers of similar and of very different size. */
static void three_parts_are_as_accurate_as_f32(void **state) {
  (void)state;
  static const int64_t depths[] = {32, 64, 384, 3000};
  static const double shifts[] = {0, 3}, spreads[] = {0, 1};
  FOR_EACH(k, depths) FOR_EACH(shift, shifts) FOR_EACH(spread, spreads) {
    product p = {.m = 48, .n = 40, .k = k, .trans_b = 1};
    double split = error_of(&p, "split", shift, spread), f32 = error_of(&p, "onednn", shift, spread);
    if (!(split <= f32)) fail_msg("k %d shift %g spread %g: error %.3g, f32 %.3g", (int)k, shift, spread, split, f32);
  }
}

static int by_plain_loops(void **state) {
  (void)state;
  return setenv("MOONSHARD_MATMUL", "plain", 1);
}

static int by_onednn(void **state) {
  (void)state;
  return setenv("MOONSHARD_MATMUL", "onednn", 1);
}

static int by_parts(void **state) {
  (void)state;
  return setenv("MOONSHARD_MATMUL", "split", 1);
}

static int by_size(void **state) {
  (void)state;
  return unsetenv("MOONSHARD_MATMUL");
}

int main(void) {
  const struct CMUnitTest plain[] = {TEST(matrices),      TEST(large_matrices),        TEST(batches),
                                     TEST(activations),   TEST(adds_to_what_is_there), TEST(relu_is_exact),
                                     TEST(nan_propagates)};
  int failed = cmocka_run_group_tests_name("matmul by plain loops", plain, by_plain_loops, by_size);
  #ifndef __SANITIZE_THREAD__
  const struct CMUnitTest onednn[] = {TEST(matrices),      TEST(large_matrices),        TEST(batches),
                                      TEST(activations),   TEST(adds_to_what_is_there), TEST(relu_is_exact),
                                      TEST(nan_propagates)};
  const struct CMUnitTest split[] = {TEST(matrices),
                                     TEST(large_matrices),
                                     TEST(batches),
                                     TEST(activations),
                                     TEST(adds_to_what_is_there),
                                     TEST(relu_is_exact),
                                     TEST(nan_propagates),
                                     TEST(blocks),
                                     TEST(threads_change_no_bit),
                                     TEST(three_parts_are_as_accurate_as_f32)};
  const struct CMUnitTest chosen[] = {TEST(large_matrices), TEST(blocks), TEST(dtypes_are_checked),
                                      TEST(choice_is_checked)};
  failed += cmocka_run_group_tests_name("matmul by oneDNN", onednn, by_onednn, by_size);
  if (ms_split_available()) failed += cmocka_run_group_tests_name("matmul in three parts", split, by_parts, by_size);
  failed += cmocka_run_group_tests_name("matmul by size", chosen, by_size, NULL);
  #endif
  return failed;
}
#endif
