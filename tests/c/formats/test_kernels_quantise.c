/* test_kernels_quantise.c - codes and scales against NumPy and ml_dtypes, bit for bit, on the CPU and on (emulated)
 * CUDA: every scaling and dtype, blocks that do not divide the tensor, zeros, subnormal numbers, NaN and infinity. */
#include "kernels/formats/quantise.h"

#include <math.h>
#include <stdlib.h>

#include "base/numbers/dtype.h"
#include "tests/c/support/check.h"
#include "tests/c/support/fixture_file.h"
#include "tests/c/support/kernel_case.h"

#define QUANTISED "tests/fixtures/low_precision/quantised.safetensors"

#ifdef MS_TEST_CUDA

static void *device_copy(const void *host, int64_t bytes) {
  void *device;
  check_cuda(cudaMalloc(&device, (size_t)bytes + 1));
  check_cuda(cudaMemcpy(device, host, (size_t)bytes, cudaMemcpyHostToDevice));
  return device;
}

static void to_host(void *host, void *device, int64_t bytes) {
  check_cuda(cudaDeviceSynchronize());
  check_cuda(cudaMemcpy(host, device, (size_t)bytes, cudaMemcpyDeviceToHost));
  check_cuda(cudaFree(device));
}

static int quantise(const ms_quantisation *q, const float *x, int64_t n, void *codes, int64_t code_bytes, void *scales,
                    int64_t scale_bytes) {
  float *on_device = device_copy(x, n * 4);
  void *device_codes = device_copy(codes, code_bytes), *device_scales = device_copy(scales, scale_bytes);
  const int rc = ms_cuda_quantise(q, on_device, n, device_codes, device_scales, NULL);
  to_host(codes, device_codes, code_bytes);
  to_host(scales, device_scales, scale_bytes);
  check_cuda(cudaFree(on_device));
  return rc;
}

static int dequantise(const ms_quantisation *q, const void *codes, int64_t code_bytes, const void *scales,
                      int64_t scale_bytes, int64_t n, float *x) {
  void *device_codes = device_copy(codes, code_bytes), *device_scales = device_copy(scales, scale_bytes);
  float *on_device = device_copy(x, n * 4);
  const int rc = ms_cuda_dequantise(q, device_codes, device_scales, n, on_device, NULL);
  to_host(x, on_device, n * 4);
  check_cuda(cudaFree(device_codes));
  check_cuda(cudaFree(device_scales));
  return rc;
}

#else

static int quantise(const ms_quantisation *q, const float *x, int64_t n, void *codes, int64_t code_bytes, void *scales,
                    int64_t scale_bytes) {
  (void)code_bytes;
  (void)scale_bytes;
  return ms_cpu_quantise(q, x, n, codes, scales);
}

static int dequantise(const ms_quantisation *q, const void *codes, int64_t code_bytes, const void *scales,
                      int64_t scale_bytes, int64_t n, float *x) {
  (void)code_bytes;
  (void)scale_bytes;
  return ms_cpu_dequantise(q, codes, scales, n, x);
}

#endif

static const struct {
  const char *name;
  ms_quantisation q;
} cases[] = {
    {"f8e4m3.tensor", {.dtype = MS_F8E4M3, .scaling = MS_SCALE_TENSOR}},
    {"f8e5m2.tensor", {.dtype = MS_F8E5M2, .scaling = MS_SCALE_TENSOR}},
    {"f8e4m3.mx_floor", {.dtype = MS_F8E4M3, .scaling = MS_SCALE_MX, .rounding = MS_MX_FLOOR}},
    {"f8e5m2.mx_floor", {.dtype = MS_F8E5M2, .scaling = MS_SCALE_MX, .rounding = MS_MX_FLOOR}},
    {"f8e4m3.mx_rceil", {.dtype = MS_F8E4M3, .scaling = MS_SCALE_MX, .rounding = MS_MX_RCEIL}},
    {"f8e5m2.mx_rceil", {.dtype = MS_F8E5M2, .scaling = MS_SCALE_MX, .rounding = MS_MX_RCEIL}},
    {"f8e4m3.block128", {.dtype = MS_F8E4M3, .scaling = MS_SCALE_BLOCK, .block = 128}},
    {"f8e5m2.block32", {.dtype = MS_F8E5M2, .scaling = MS_SCALE_BLOCK, .block = 32}},
    {"i8.block64", {.dtype = MS_I8, .scaling = MS_SCALE_BLOCK, .block = 64}},
    {"i8.block7", {.dtype = MS_I8, .scaling = MS_SCALE_BLOCK, .block = 7}},
    {"i4.block32", {.dtype = MS_I4, .scaling = MS_SCALE_BLOCK, .block = 32}},
    {"i4.block508", {.dtype = MS_I4, .scaling = MS_SCALE_BLOCK, .block = 508}},
    {"nf4.block32", {.dtype = MS_NF4, .scaling = MS_SCALE_BLOCK, .block = 32}},
    {"nf4.block64", {.dtype = MS_NF4, .scaling = MS_SCALE_BLOCK, .block = 64}},
};
enum { CASES = sizeof cases / sizeof *cases };

static void assert_same_bytes(const char *what, const void *got, const void *expected, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i++)
    if (((const uint8_t *)got)[i] != ((const uint8_t *)expected)[i])
      fail_msg("%s: byte %d is 0x%02x, not 0x%02x", what, (int)i, ((const uint8_t *)got)[i],
               ((const uint8_t *)expected)[i]);
}

/* Bit for bit, but any NaN equals any other. */
static void assert_same_numbers(const char *what, const float *got, const float *expected, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (isnan(expected[i]) ? !isnan(got[i]) : memcmp(&got[i], &expected[i], sizeof *got) != 0)
      fail_msg("%s: element %d is %a, not %a", what, (int)i, (double)got[i], (double)expected[i]);
}

/* One case on one tensor of the fixture, with guard bytes after all that is written. */
static void assert_case(const ms_safetensors *file, const char *data, const char *name, const ms_quantisation *q) {
  char what[64];
  int64_t n, code_bytes, scales_n, back_n;
  snprintf(what, sizeof what, "%s.%s", data, name);
  const float *x = fixture_part(file, data, ".x", &n);
  const void *codes = fixture_part(file, what, ".codes", &code_bytes);
  const void *scales = fixture_part(file, what, ".scales", &scales_n);
  const float *back = fixture_part(file, what, ".back", &back_n);
  assert_int_equal(ms_quantisation_scales(q, n), scales_n);
  const int mx = q->scaling == MS_SCALE_MX;
  const int64_t scale_bytes = scales_n * (mx ? 1 : 4);
  void *own_codes = poisoned(code_bytes), *own_scales = poisoned(scale_bytes), *own_back = poisoned(4 * n);
  must(quantise(q, x, n, own_codes, code_bytes, own_scales, scale_bytes));
  if (mx) assert_same_bytes(what, own_scales, scales, scales_n);
  else assert_same_numbers(what, own_scales, scales, scales_n);
  assert_same_bytes(what, own_codes, codes, code_bytes);
  must(dequantise(q, codes, code_bytes, scales, scale_bytes, n, own_back));
  assert_same_numbers(what, own_back, back, n);
  assert_guarded(own_codes, code_bytes);
  assert_guarded(own_scales, scale_bytes);
  assert_guarded(own_back, 4 * n);
  free(own_codes), free(own_scales), free(own_back);
}

static void Q1_codes_and_scales_are_those_of_ml_dtypes(void **state) {
  (void)state;
  ms_safetensors *file;
  must(ms_safetensors_open(QUANTISED, &file, NULL));
  static const char *const tensors[] = {"plain", "ties", "odd"};
  FOR_EACH(data, tensors)
  for (int i = 0; i < CASES; i++) assert_case(file, data, cases[i].name, &cases[i].q);
  ms_free(file);
}

/* The largest difference of an element, as a part of its block's largest magnitude: half of the largest step. */
static void Q1_what_is_read_back_is_near(void **state) {
  (void)state;
  static const double nearest[] = {
      [MS_F8E4M3] = 1.0 / 28, [MS_F8E5M2] = 1.0 / 14, [MS_I8] = 1.0 / 254, [MS_I4] = 1.0 / 14, [MS_NF4] = 0.1525};
  enum { N = 4096 };
  float *x = malloc(N * sizeof *x), *back = malloc(N * sizeof *back);
  ms_philox_normal(3, 1, 0, N, x);
  for (int i = 0; i < CASES; i++) {
    const ms_quantisation *q = &cases[i].q;
    if (N % ms_quantisation_block(q, N)) continue;
    int64_t code_bytes, block = ms_quantisation_block(q, N), scale_bytes = 4 * ms_quantisation_scales(q, N);
    must(ms_dtype_bytes(q->dtype, N, &code_bytes));
    void *codes = poisoned(code_bytes), *scales = poisoned(scale_bytes);
    must(quantise(q, x, N, codes, code_bytes, scales, scale_bytes));
    must(dequantise(q, codes, code_bytes, scales, scale_bytes, N, back));
    for (int64_t first = 0; first < N; first += block) {
      double amax = 0;
      for (int64_t k = first; k < first + block; k++) amax = fmax(amax, fabs((double)x[k]));
      /* An e8m0 scale leaves the largest element anywhere in a power of two: half a step is up to 1/16 or 1/8 of it.
       * With MS_MX_FLOOR it may be beyond the largest number, 1.75 of 2, and loses an eighth. */
      const double of_power = q->dtype == MS_F8E4M3 && q->rounding == MS_MX_RCEIL ? 1.0 / 16 : 1.0 / 8;
      const double most = q->scaling == MS_SCALE_MX ? of_power : nearest[q->dtype];
      for (int64_t k = first; k < first + block; k++)
        if (!(fabs((double)(x[k] - back[k])) <= amax * most * 1.0001))
          fail_msg("%s: %g came back as %g, with a largest of %g", cases[i].name, (double)x[k], (double)back[k], amax);
    }
    free(codes), free(scales);
  }
  free(x), free(back);
}

static void Q1_quantisations_that_do_not_exist_are_refused(void **state) {
  (void)state;
  float x[8] = {0}, back[8];
  uint8_t codes[8], scales[32];
  static const struct {
    ms_quantisation q;
    int64_t n;
    int status;
    const char *message;
  } refused[] = {
      {{.dtype = MS_NF4, .scaling = MS_SCALE_TENSOR}, 8, MS_EDTYPE, "nf4 with one scale | f8e4m3 or f8e5m2"},
      {{.dtype = MS_I8, .scaling = MS_SCALE_MX}, 8, MS_EDTYPE, "i8 with an e8m0 scale | f8e4m3 or f8e5m2"},
      {{.dtype = MS_BF16, .scaling = MS_SCALE_BLOCK, .block = 4}, 8, MS_EDTYPE, "bf16 | f8e4m3, f8e5m2, i8, i4 or nf4"},
      {{.dtype = MS_E8M0, .scaling = MS_SCALE_BLOCK, .block = 4}, 8, MS_EDTYPE, "e8m0 | f8e4m3, f8e5m2, i8, i4 or nf4"},
      {{.dtype = 99, .scaling = MS_SCALE_BLOCK, .block = 4}, 8, MS_EDTYPE, "unknown type"},
      {{.dtype = MS_I8, .scaling = 3}, 8, MS_EINVAL, "no scaling 3"},
      {{.dtype = MS_I8, .scaling = MS_SCALE_BLOCK}, 8, MS_EINVAL, "blocks of 0 elements"},
      {{.dtype = MS_I4, .scaling = MS_SCALE_BLOCK, .block = 3}, 8, MS_ESHAPE, "3 elements of i4 | whole bytes"},
      {{.dtype = MS_NF4, .scaling = MS_SCALE_BLOCK, .block = 4}, 7, MS_ESHAPE, "7 elements of nf4 | whole bytes"},
      {{.dtype = MS_F8E4M3, .scaling = MS_SCALE_MX, .rounding = 2}, 8, MS_EINVAL, "no rounding 2"},
  };
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    const ms_quantisation *q = &refused[i].q;
    assert_fails(quantise(q, x, refused[i].n, codes, 8, scales, 32), refused[i].status, refused[i].message);
    assert_fails(dequantise(q, codes, 8, scales, 32, refused[i].n, back), refused[i].status, refused[i].message);
  }
}

static void Q1_nothing_has_a_scale_at_most(void **state) {
  (void)state;
  float scale = 7;
  uint8_t code = 9;
  const ms_quantisation blocks = {.dtype = MS_NF4, .scaling = MS_SCALE_BLOCK, .block = 64};
  const ms_quantisation whole = {.dtype = MS_F8E4M3, .scaling = MS_SCALE_TENSOR};
  must(quantise(&blocks, NULL, 0, &code, 1, &scale, 4));
  assert_true(scale == 7 && code == 9 && ms_quantisation_scales(&blocks, 0) == 0);
  must(quantise(&whole, NULL, 0, &code, 1, &scale, 4));
  assert_true(scale == (float)(448 / 1e-12) && code == 9);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(Q1_codes_and_scales_are_those_of_ml_dtypes),
      TEST(Q1_what_is_read_back_is_near),
      TEST(Q1_quantisations_that_do_not_exist_are_refused),
      TEST(Q1_nothing_has_a_scale_at_most),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
