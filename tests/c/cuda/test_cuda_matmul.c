/* test_cuda_matmul.c - tests how a matrix product on CUDA finds its algorithm: timed once, stored on disk, and read
 * from there by later runs; damaged files, folders that are not writable, and failures of every call of cuBLASLt.
 * Emulated (tests/emulated_cuda). */
#include "tests/c/support/emulated_cuda.h"
#include "tests/c/support/check.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "device/device.h"

enum { M = 24, N = 16, K = 40 };
enum { FORWARDS, BACKWARDS }; /* the order in which emulated algorithms 0 and 2 add, and that of algorithm 1 */

static const ms_device_api *api;
static char cache[] = "/tmp/moonshard_test_XXXXXX", folder[128];

/* spared: multiprocessors that it leaves to collectives; the emulated GPU has 2. */
static ms_kernel_call product_call(int spared) {
  return (ms_kernel_call){.op = MS_OP_matmul,
                          .inputs = 2,
                          .outputs = 1,
                          .threads = 1,
                          .spared = spared,
                          .in = {{.ndim = 2, .dims = {M, K}}, {.ndim = 2, .dims = {K, N}}},
                          .out = {{.ndim = 2, .dims = {M, N}}}};
}

static float value_at(int i) { return (float)(sin(i) * pow(10, i % 5)); }

/* Runs one product on the device; returns the status and stores the result. */
static int multiply(ms_device *device, int spared, float *c) {
  const ms_kernel *kernel = api->kernel(MS_OP_matmul);
  ms_kernel_call call = product_call(spared);
  void *memory = NULL;
  char *workspace = NULL; /* aligned to exactly 64 bytes */
  float operands[M * K + K * N];
  for (int i = 0; i < M * K + K * N; i++) operands[i] = value_at(i);
  int rc = kernel->prepare(&call);
  if (!rc) rc = api->allocate(device, sizeof operands + M * N * sizeof *c, 0, "operands", &memory);
  if (!rc) rc = api->allocate(device, call.workspace_bytes + 64, 0, "workspace", (void **)&workspace);
  if (!rc) rc = api->write(device, memory, operands, sizeof operands);
  call.in_data[0] = memory;
  call.in_data[1] = (float *)memory + M * K;
  call.out_data[0] = (float *)memory + M * K + K * N;
  call.workspace = workspace + 64;
  if (!rc) rc = kernel->bind(&call);
  if (!rc) rc = kernel->bind(&call); /* a second bind, by another instruction that shares the call */
  if (!rc) rc = kernel->run(&call);
  if (!rc) rc = api->read(device, c, call.out_data[0], M * N * sizeof *c);
  if (workspace) api->release(device, workspace, call.workspace_bytes + 64, 0);
  if (memory) api->release(device, memory, 1, 0);
  kernel->release(call.prepared);
  return rc;
}

static int multiply_spared(int spared, float *c) {
  ms_device *device;
  MS_TRY(api->open(0, 0, 0, &device));
  int rc = multiply(device, spared, c);
  api->close(device);
  return rc;
}

static int multiply_alone(float *c) { return multiply_spared(0, c); }

/* The order of additions in the last product. */
static int order_of(const float *c) {
  int like[2] = {1, 1};
  for (int row = 0; row < M; row++)
    for (int column = 0; column < N; column++) {
      float sums[2] = {0, 0};
      for (int k = 0; k < K; k++) {
        int back = K - 1 - k;
        sums[FORWARDS] += value_at(row * K + k) * value_at(M * K + k * N + column);
        sums[BACKWARDS] += value_at(row * K + back) * value_at(M * K + back * N + column);
      }
      for (int order = 0; order < 2; order++) like[order] &= sums[order] == c[row * N + column];
    }
  assert_int_not_equal(like[FORWARDS], like[BACKWARDS]);
  return like[FORWARDS] ? FORWARDS : BACKWARDS;
}

static int order_spared(int spared) {
  float c[M * N];
  must(multiply_spared(spared, c));
  return order_of(c);
}

static int order_now(void) { return order_spared(0); }

/* ---- the cache ---- */

/* Finds the only stored file; returns the number of files. */
static int kept_files(char path[512]) {
  int files = 0;
  DIR *opened = opendir(folder);
  for (struct dirent *entry = opened ? readdir(opened) : NULL; entry; entry = readdir(opened)) {
    if (entry->d_name[0] == '.') continue;
    files++;
    snprintf(path, 512, "%.127s/%.255s", folder, entry->d_name);
  }
  if (opened) closedir(opened);
  return files;
}

static void forget(void) {
  char path[512];
  while (kept_files(path)) assert_int_equal(unlink(path), 0);
}

/* slow: a bit per emulated algorithm. */
static void tune(const char *slow) {
  setenv("MOONSHARD_CUDA_MATMUL_TUNE", "1", 1);
  setenv("MOONSHARD_EMULATE_CUBLASLT_SLOW", slow, 1);
}

static int begin(void **state) {
  (void)state;
  if (!mkdtemp(cache)) return -1;
  snprintf(folder, sizeof folder, "%s/moonshard/cublaslt", cache);
  emulate_cuda_kernels("inline");
  setenv("XDG_CACHE_HOME", cache, 1);
  return ms_device_find(MS_DEVICE_CUDA, &api);
}

static int end(void **state) {
  (void)state;
  char path[128];
  forget();
  rmdir(folder);
  snprintf(path, sizeof path, "%s/moonshard", cache);
  rmdir(path);
  return rmdir(cache);
}

static void A3_the_fastest_algorithm_is_kept_and_taken_again(void **state) {
  (void)state;
  char path[512];
  tune("5");
  assert_int_equal(order_now(), BACKWARDS);
  assert_int_equal(kept_files(path), 1);
  tune("2"); /* it would lose now */
  assert_int_equal(order_now(), BACKWARDS);
  assert_int_equal(kept_files(path), 1);
  forget();
  assert_int_equal(order_now(), FORWARDS);
  forget();
}

/* In training a product finds other tensors in the cache, so an algorithm that is fast only on its own does not win. */
static void A3_algorithms_are_timed_on_tensors_that_are_not_in_the_cache(void **state) {
  (void)state;
  tune("5");
  setenv("MOONSHARD_EMULATE_CUBLASLT_COLD", "2", 1);
  assert_int_equal(order_now(), FORWARDS);
  unsetenv("MOONSHARD_EMULATE_CUBLASLT_COLD");
  forget();
}

static void A3_without_timing_the_first_algorithm_is_taken(void **state) {
  (void)state;
  char path[512];
  tune("5");
  setenv("MOONSHARD_CUDA_MATMUL_TUNE", "0", 1);
  assert_int_equal(order_now(), FORWARDS);
  tune("5");
  setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
  assert_int_equal(order_now(), FORWARDS);
  setenv("XDG_CACHE_HOME", cache, 1);
  emulate_failure("cudaMalloc:3"); /* after operands and workspace: there is no memory for timing */
  assert_int_equal(order_now(), FORWARDS);
  emulate_failure("");
  assert_int_equal(kept_files(path), 0);
}

static void write_file(const char *path, const char *text, size_t bytes) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  assert_true(fd >= 0 && write(fd, text, bytes) == (ssize_t)bytes);
  close(fd);
}

/* A truncated or modified file, or one with another key or format, counts as missing and is replaced. */
static void A3_damaged_and_foreign_files_do_no_harm(void **state) {
  (void)state;
  char path[512], good[2048], text[2048];
  tune("5");
  assert_int_equal(order_now(), BACKWARDS);
  assert_int_equal(kept_files(path), 1);
  int fd = open(path, O_RDONLY);
  const ssize_t n = read(fd, good, sizeof good - 1);
  close(fd);
  assert_true(n > 200);
  for (int damage = 0; damage < 6; damage++) {
    size_t bytes = (size_t)n;
    memcpy(text, good, bytes);
    if (damage == 0) bytes = 0;
    if (damage == 1) bytes /= 2;
    if (damage == 2) text[bytes - 30] ^= 1;
    if (damage == 3) memset(text, 0xff, bytes);
    if (damage == 4) *(strstr(text, " m 24") + 4) = '5';
    if (damage == 5) text[bytes++] = '\n';
    write_file(path, text, bytes);
    tune("2");
    assert_int_equal(order_now(), FORWARDS);
    tune("5");
    assert_int_equal(order_now(), FORWARDS);
    assert_int_equal(kept_files(path), 1);
  }
  unlink(path);
  assert_int_equal(mkdir(path, 0700), 0); /* cannot be replaced, so the first candidate is used */
  assert_int_equal(order_now(), FORWARDS);
  assert_int_equal(rmdir(path), 0);
}

static void A3_an_algorithm_that_does_not_suit_is_not_used(void **state) {
  (void)state;
  char path[512];
  tune("5");
  assert_int_equal(order_now(), BACKWARDS);
  assert_int_equal(kept_files(path), 1);
  setenv("MOONSHARD_EMULATE_CUBLASLT_VERSION", "130200", 1); /* each version has its own files */
  tune("2");
  assert_int_equal(order_now(), FORWARDS);
  assert_int_equal(kept_files(path), 2);
  unsetenv("MOONSHARD_EMULATE_CUBLASLT_VERSION");
  forget();
}

/* ---- fewer multiprocessors ---- */

static void A3_a_product_that_leaves_multiprocessors_has_an_algorithm_of_its_own(void **state) {
  (void)state;
  char path[512];
  tune("5");
  assert_int_equal(order_now(), BACKWARDS);
  tune("2");
  assert_int_equal(order_spared(1), FORWARDS);
  assert_int_equal(kept_files(path), 2);
  tune("5");
  assert_int_equal(order_spared(1), FORWARDS);
  assert_int_equal(order_now(), BACKWARDS);
  assert_int_equal(kept_files(path), 2);
  forget();
}

static void assert_noted(const char *facts) {
  char text[1024] = "";
  for (const char *note = ms_note_next(); note; note = ms_note_next()) snprintf(text, sizeof text, "%s", note);
  assert_has(text, facts);
}

/* Its file is that of a product that leaves none. */
static void A3_where_cublaslt_cannot_limit_a_product_it_uses_all_and_a_note_says_so(void **state) {
  (void)state;
  char path[512];
  tune("5");
  assert_int_equal(order_now(), BACKWARDS);
  tune("2");
  setenv("MOONSHARD_EMULATE_CUBLASLT_TARGET", "refuse", 1);
  assert_int_equal(order_spared(1), BACKWARDS);
  assert_noted("cuBLASLt 130100 | 1 multiprocessors | SM_COUNT_TARGET | sm_carveout");
  setenv("MOONSHARD_EMULATE_CUBLASLT_TARGET", "none", 1);
  assert_int_equal(order_spared(1), BACKWARDS);
  assert_noted("cuBLASLt 130100 | no algorithm | 1 multiprocessors");
  unsetenv("MOONSHARD_EMULATE_CUBLASLT_TARGET");
  assert_int_equal(kept_files(path), 1);
  forget();
}

static void A3_a_product_cannot_leave_all_multiprocessors(void **state) {
  (void)state;
  float c[M * N];
  assert_fails(multiply_spared(2, c), MS_EINVAL, "2 of GPU 0's 2 multiprocessors | at most 1");
  assert_null(emulated_left());
}

/* ---- failures ---- */

static int fails_at(const char *function, int call) {
  float c[M * N];
  char spec[128];
  snprintf(spec, sizeof spec, "%s:%d", function, call);
  emulate_failure(spec);
  forget();
  int rc = multiply_alone(c);
  emulate_failure("");
  if (emulated_left()) fail_msg("%s: left behind: %s", spec, emulated_left());
  if (!rc) return 0;
  if (!strstr(ms_error_message(), function) || rc != MS_EDEVICE)
    fail_msg("%s: %s: %s", spec, ms_status_name(rc), ms_error_message());
  ms_error_clear();
  return 1;
}

static void A4_every_call_of_cublaslt_may_fail(void **state) {
  (void)state;
  static const char *const functions[] = {"cublasLtCreate",
                                          "cublasLtMatmulDescCreate",
                                          "cublasLtMatmulDescSetAttribute",
                                          "cublasLtMatrixLayoutCreate",
                                          "cublasLtMatmulPreferenceCreate",
                                          "cublasLtMatmulPreferenceSetAttribute",
                                          "cublasLtMatmulAlgoGetHeuristic",
                                          "cublasLtMatmul",
                                          "cudaEventCreateWithFlags",
                                          "cudaGetDevice",
                                          "cudaGetDeviceProperties",
                                          "cudaMemcpy",
                                          "cudaEventRecord",
                                          "cudaEventSynchronize",
                                          "cudaEventElapsedTime"};
  tune("0");
  for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
    int failed = 0;
    for (int call = 1; call <= 12 && fails_at(functions[f], call); call++) failed++;
    if (!failed) fail_msg("%s is never called", functions[f]);
  }
}

static void A4_a_product_without_an_algorithm_is_reported(void **state) {
  (void)state;
  float c[M * N];
  setenv("MOONSHARD_EMULATE_CUBLASLT_NONE", "1", 1);
  assert_fails(multiply_alone(c), MS_EUNSUPPORTED, "cuBLASLt | [24,40] | [40,16] | f32 | MOONSHARD_CUDA_MATMUL=plain");
  unsetenv("MOONSHARD_EMULATE_CUBLASLT_NONE");
  assert_null(emulated_left());
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(A3_the_fastest_algorithm_is_kept_and_taken_again),
                                     TEST(A3_algorithms_are_timed_on_tensors_that_are_not_in_the_cache),
                                     TEST(A3_without_timing_the_first_algorithm_is_taken),
                                     TEST(A3_damaged_and_foreign_files_do_no_harm),
                                     TEST(A3_an_algorithm_that_does_not_suit_is_not_used),
                                     TEST(A3_a_product_that_leaves_multiprocessors_has_an_algorithm_of_its_own),
                                     TEST(A3_where_cublaslt_cannot_limit_a_product_it_uses_all_and_a_note_says_so),
                                     TEST(A3_a_product_cannot_leave_all_multiprocessors),
                                     TEST(A4_every_call_of_cublaslt_may_fail),
                                     TEST(A4_a_product_without_an_algorithm_is_reported)};
  return cmocka_run_group_tests(tests, begin, end);
}
