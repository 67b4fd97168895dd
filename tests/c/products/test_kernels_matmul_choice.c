/* test_kernels_matmul_choice.c - who computes a product, and how exactly: on CUDA cuBLASLt, with TF32 where it is
 * allowed, or our own kernels; on the CPU plain loops, oneDNN or three parts of f32 on the bf16 matrix unit. */
#include "matmul_case.h"

#include "base/error.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/cpu/matmul/split_panel.h"
#ifdef MS_TEST_CUDA
  #include "kernels/cuda/matmul/cublaslt.h"
#endif

#ifdef MS_TEST_CUDA
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
static void a_missing_library_is_reported(void **state) {
  (void)state;
  product p = {.m = 20, .n = 12, .k = 16};
  kernel_case c = case_of_product(&p);
  ms_kernel_call call = c.call;
  char *before = getenv("MOONSHARD_CUBLASLT_LIBRARY");
  char *path = before ? strdup(before) : NULL;
  setenv("MOONSHARD_CUBLASLT_LIBRARY", "/proc/nowhere/libcublasLt.so", 1);
  setenv("MOONSHARD_CUDA_MATMUL", "cublaslt", 1);
  must(kernel_of(MS_OP_matmul)->prepare(&call));
  assert_fails(kernel_of(MS_OP_matmul)->bind(&call), MS_EUNSUPPORTED,
               "MOONSHARD_CUDA_MATMUL=cublaslt | cuBLASLt: | /proc/nowhere/libcublasLt.so");
  kernel_of(MS_OP_matmul)->release(call.prepared);
  assert_null(ms_note_next());
  setenv("MOONSHARD_CUDA_MATMUL", "auto", 1);
  check_product(&p);
  const char *note = ms_note_next();
  assert_non_null(note);
  assert_has(note, "cuBLASLt | /proc/nowhere/libcublasLt.so: | own kernels");
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

int main(void) {
  const struct CMUnitTest plain[] = {
      TEST(a_missing_library_is_reported),
  #ifndef __SANITIZE_ADDRESS__
      TEST(the_library_of_the_toolkit_is_as_declared),
  #endif
  };
  const struct CMUnitTest precision[] = {TEST(tf32_is_a_choice), TEST(choice_is_checked)};
  int failed = cmocka_run_group_tests_name("matmul without cuBLASLt", plain, NULL, NULL);
  return failed + cmocka_run_group_tests_name("precision of cuBLASLt", precision, by_cublaslt, NULL);
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

/* Plain loops take small products, so that a process without large ones does not wait for oneDNN's code; one row of
 * many columns is small for oneDNN, but loops would copy the whole of b. */
static void small_products_are_plain(void **state) {
  (void)state;
  static const struct {
    product shape;
    int small;
  } cases[] = {{{.m = 12, .n = 16, .k = 17, .bias = 1}, 1},
               {{.m = 2, .n = 8, .k = 16, .leading = {2, 3}, .batched_b = 1}, 1},
               {{.m = 12, .n = 160, .k = 17}, 0},
               {{.m = 1, .n = 64, .k = 64}, 0},
               {{.m = 4, .n = 16, .k = 16, .leading = {40}, .batched_b = 1}, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    kernel_case c = case_of_product(&cases[i].shape);
    ms_product read;
    c.call.threads = 2;
    must(ms_product_of(&c.call, &read));
    must(ms_cpu_kernel(MS_OP_matmul)->prepare(&c.call));
    assert_int_equal(ms_plain_suits(&read), cases[i].small);
    assert_int_equal(c.call.workspace_bytes == ms_plain_workspace(&read, 2), cases[i].small);
    ms_cpu_kernel(MS_OP_matmul)->release(c.call.prepared);
    check_product(&cases[i].shape);
    free_case(&c);
  }
}

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

int main(void) {
  int failed = 0;
  #ifndef __SANITIZE_THREAD__
  const struct CMUnitTest split[] = {TEST(blocks), TEST(threads_change_no_bit),
                                     TEST(three_parts_are_as_accurate_as_f32)};
  const struct CMUnitTest chosen[] = {TEST(blocks), TEST(choice_is_checked), TEST(small_products_are_plain)};
  if (ms_split_available()) failed += cmocka_run_group_tests_name("matmul in three parts", split, by_parts, by_size);
  failed += cmocka_run_group_tests_name("matmul by size", chosen, by_size, NULL);
  #endif
  return failed;
}
#endif
