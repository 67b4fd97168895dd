/* test_cuda_attention.c - tests attention by cuDNN, whose graphs an emulated library computes (tests/emulated_cuda):
 * the results equal those of the CPU kernels, forward and backward; the fallback for calls that cuDNN does not support;
 * plans that need too much workspace; failures of every call, after which nothing must be left allocated. */
#include "tests/c/support/emulated_cuda.h"
#include "tests/c/support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers/bf16.h"
#include "base/error.h"
#include "base/numbers/dtype.h"
#include "base/numbers/philox.h"
#include "device/device.h"

typedef struct size_of_attention {
  int64_t b, t, s, h, g, d;
  int causal;
} attention_size;

enum { OPERANDS = 9, GUARD = 64 };

static const ms_device_api *api;

/* A call in either direction on host tensors. */
typedef struct attention_case {
  ms_kernel_call call;
  void *tensor[OPERANDS]; /* inputs, then outputs */
} attention_case;

static ms_value_info shape4(int dtype, int64_t a, int64_t b, int64_t c, int64_t d) {
  return (ms_value_info){.dtype = dtype, .ndim = d ? 4 : 3, .dims = {a, b, c, d}};
}

static size_t bytes_of(const ms_value_info *info) { return (size_t)(ms_numel(info) * ms_dtype_size(info->dtype)); }

static void *random_tensor(const ms_value_info *info, int which) {
  const int64_t n = ms_numel(info);
  float *normal = malloc((size_t)n * sizeof *normal);
  ms_bf16 *data = malloc((size_t)n * sizeof *data);
  assert_true(normal && data);
  ms_philox_normal(77, (uint64_t)which, 0, n, normal);
  for (int64_t i = 0; i < n; i++) data[i] = ms_f32_to_bf16(normal[i]);
  free(normal);
  return data;
}

static void run_on_cpu(ms_kernel_call call) {
  const ms_kernel *kernel = ms_cpu_kernel(call.op);
  must(kernel->prepare(&call));
  call.workspace = aligned_alloc(64, (size_t)(call.workspace_bytes + 64) / 64 * 64);
  assert_non_null(call.workspace);
  must(kernel->run(&call));
  free(call.workspace);
  if (kernel->release) kernel->release(call.prepared);
}

/* The inputs, and the outputs as computed by the CPU. */
static attention_case case_of(const attention_size *a, int backward) {
  attention_case c = {.call = {.op = MS_OP_attention, .inputs = 3, .outputs = 2, .threads = 1}};
  const ms_value_info q = shape4(MS_BF16, a->b, a->t, a->h, a->d), k = shape4(MS_BF16, a->b, a->s, a->g, a->d);
  const ms_value_info lse = shape4(MS_F32, a->b, a->h, a->t, 0);
  const ms_value_info in[] = {q, k, k, q, lse, q}, out[] = {q, k, k};
  void *tensor[OPERANDS] = {0};
  c.call.attrs.attention.causal = a->causal;
  memcpy(c.call.in, in, sizeof in);
  for (int i = 0; i < 3; i++) tensor[i] = random_tensor(&in[i], i);
  for (int i = 3; i < 5; i++) {
    c.call.out[i - 3] = in[i];
    tensor[i] = malloc(bytes_of(&in[i]));
  }
  for (int i = 0; i < 3; i++) c.call.in_data[i] = tensor[i];
  for (int i = 0; i < 2; i++) c.call.out_data[i] = tensor[3 + i];
  run_on_cpu(c.call);
  if (backward) {
    c.call.op = MS_OP_attention_backward;
    c.call.inputs = 6, c.call.outputs = 3;
    tensor[5] = random_tensor(&in[5], 5);
    for (int i = 3; i < 6; i++) c.call.in_data[i] = tensor[i];
    for (int i = 0; i < 3; i++) {
      c.call.out[i] = out[i];
      c.call.out_data[i] = tensor[6 + i] = malloc(bytes_of(&out[i]));
    }
    run_on_cpu(c.call);
  }
  memcpy(c.tensor, tensor, sizeof tensor);
  return c;
}

static void free_case(attention_case *c) {
  for (int i = 0; i < OPERANDS; i++) free(c->tensor[i]);
}

/* Runs the call's kernel on the device and stores results in `out`. Tensors begin `shift` bytes after a 16-byte
 * boundary. */
static int run_on_device(ms_device *device, const attention_case *c, int shift, char *out[3]) {
  const ms_kernel *kernel = api->kernel(c->call.op);
  ms_kernel_call call = c->call;
  char *memory = NULL;
  char *workspace = NULL;
  size_t at[OPERANDS], bytes = (size_t)shift;
  for (int i = 0; i < call.inputs + call.outputs; i++) {
    at[i] = bytes;
    bytes += (bytes_of(i < call.inputs ? &call.in[i] : &call.out[i - call.inputs]) + 255) / 256 * 256;
  }
  int rc = kernel->prepare(&call);
  if (rc) return rc;
  rc = api->allocate(device, (int64_t)bytes, 0, "operands", (void **)&memory);
  if (!rc) rc = api->allocate(device, call.workspace_bytes + GUARD, 0, "workspace", (void **)&workspace);
  for (int i = 0; i < call.inputs && !rc; i++)
    rc = api->write(device, memory + at[i], c->call.in_data[i], (int64_t)bytes_of(&call.in[i]));
  for (int i = 0; i < call.inputs; i++) call.in_data[i] = memory + at[i];
  for (int i = 0; i < call.outputs; i++) call.out_data[i] = memory + at[call.inputs + i];
  call.workspace = workspace + GUARD; /* aligned to exactly this */
  if (!rc) rc = kernel->bind(&call);
  if (!rc) rc = kernel->bind(&call); /* a second bind, by another instruction that shares the call */
  if (!rc) rc = kernel->run(&call);
  for (int i = 0; i < call.outputs && !rc; i++)
    rc = api->read(device, out[i], call.out_data[i], (int64_t)bytes_of(&call.out[i]));
  if (workspace) api->release(device, workspace, call.workspace_bytes + GUARD, 0);
  if (memory) api->release(device, memory, (int64_t)bytes, 0);
  kernel->release(call.prepared);
  return rc;
}

static int run_alone(const attention_case *c, int shift, char *out[3]) {
  ms_device *device;
  for (int i = 0; i < 3; i++) out[i] = i < c->call.outputs ? calloc(1, bytes_of(&c->call.out[i])) : NULL;
  int rc = api->open(0, 0, 0, &device);
  if (rc) return rc;
  rc = run_on_device(device, c, shift, out);
  api->close(device);
  return rc;
}

static void free_results(char *out[3]) {
  for (int i = 0; i < 3; i++) free(out[i]);
}

static double element(const void *data, int dtype, int64_t i) {
  return dtype == MS_BF16 ? ms_bf16_to_f32(((const ms_bf16 *)data)[i]) : ((const float *)data)[i];
}

static void assert_close(const attention_case *c, char *out[3]) {
  for (int i = 0; i < c->call.outputs; i++) {
    const ms_value_info *info = &c->call.out[i];
    double difference = 0, size = 0;
    for (int64_t e = 0; e < ms_numel(info); e++) {
      const double x = element(out[i], info->dtype, e), y = element(c->call.out_data[i], info->dtype, e);
      if (!(fabs(x) < 1e30)) fail_msg("output %d, element %d is %g", i, (int)e, x);
      difference += (x - y) * (x - y), size += y * y;
    }
    if (sqrt(difference) > (info->dtype == MS_BF16 ? 1e-2 : 1e-5) * sqrt(size + 1e-3 * (double)ms_numel(info)))
      fail_msg("output %d: relative error %g", i, sqrt(difference / size));
  }
}

/* Returns 1 if the results equal those of our own kernels bit for bit. */
static int by_own_kernels(const attention_case *c, char *out[3]) {
  char *own[3];
  int same = 1;
  const char *before = getenv("MOONSHARD_ATTENTION");
  char kept[16];
  snprintf(kept, sizeof kept, "%s", before);
  setenv("MOONSHARD_ATTENTION", "flash", 1);
  must(run_alone(c, 0, own));
  setenv("MOONSHARD_ATTENTION", kept, 1);
  for (int i = 0; i < c->call.outputs; i++) same &= !memcmp(own[i], out[i], bytes_of(&c->call.out[i]));
  free_results(own);
  return same;
}

static const attention_size sizes[] = {
    {1, 2, 2, 1, 1, 8, 1},    {2, 33, 33, 2, 2, 16, 1}, {1, 40, 40, 4, 2, 64, 1},
    {1, 20, 31, 2, 2, 24, 0}, {2, 19, 19, 4, 1, 8, 0},  {1, 17, 17, 1, 1, 128, 1},
    {1, 9, 20, 2, 1, 16, 1},  {2, 1, 12, 2, 2, 8, 1},   {1, 12, 12, 1, 1, 200, 0},
};

static void cudnn_computes_what_the_cpu_does(void **state) {
  (void)state;
  setenv("MOONSHARD_ATTENTION", "cudnn", 1);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int backward = 0; backward < 2; backward++) {
      attention_case c = case_of(&sizes[i], backward);
      char *out[3];
      must(run_alone(&c, 0, out));
      assert_close(&c, out);
      free_results(out);
      free_case(&c);
    }
  assert_null(ms_note_next());
}

static void own_kernels_compute_shapes_that_cudnn_does_not(void **state) {
  (void)state;
  const attention_size odd = {1, 9, 20, 2, 1, 20, 1}, even = {1, 20, 20, 2, 1, 16, 1};
  attention_case c = case_of(&odd, 0), whole = case_of(&even, 1);
  char *out[3];
  setenv("MOONSHARD_ATTENTION", "cudnn", 1);
  assert_fails(run_alone(&c, 0, out), MS_EUNSUPPORTED, "8 | 256 | 2 bf16 | 20 | 9");
  free_results(out);
  assert_fails(run_alone(&whole, 8, out), MS_EUNSUPPORTED, "aligned | 16");
  free_results(out);
  setenv("MOONSHARD_ATTENTION", "auto", 1);
  must(run_alone(&c, 0, out));
  assert_true(by_own_kernels(&c, out));
  free_results(out);
  must(run_alone(&whole, 8, out));
  assert_close(&whole, out);
  free_results(out);
  assert_null(ms_note_next());
  free_case(&c);
  free_case(&whole);
}

static void assert_noted(const char *facts) {
  const char *note = ms_note_next();
  assert_non_null(note);
  assert_has(note, facts);
}

/* Chosen automatically, our own kernels compute it, and a note with these facts gives the reason. */
static void assert_auto_takes_own_kernels(attention_case *c, const char *facts) {
  char *out[3];
  setenv("MOONSHARD_ATTENTION", "auto", 1);
  must(run_alone(c, 0, out));
  assert_true(by_own_kernels(c, out));
  free_results(out);
  assert_noted(facts);
}

/* A plan that needs more than the workspace is skipped, or without any plan our own kernels run; a note reports both,
 * and how to reserve enough. */
static void plans_are_chosen_by_their_workspace(void **state) {
  (void)state;
  const attention_size a = {1, 33, 33, 4, 2, 16, 1};
  attention_case c = case_of(&a, 1);
  char *out[3];
  setenv("MOONSHARD_EMULATE_CUDNN_WORKSPACE", "100000000", 1);
  setenv("MOONSHARD_ATTENTION", "cudnn", 1);
  must(run_alone(&c, 0, out));
  assert_close(&c, out);
  free_results(out);
  assert_noted("100008704 bytes | 4 heads | MOONSHARD_CUDNN_WORKSPACE=100008704 | another");
  setenv("MOONSHARD_CUDNN_WORKSPACE", "200000000", 1);
  must(run_alone(&c, 0, out));
  free_results(out);
  assert_null(ms_note_next());
  setenv("MOONSHARD_CUDNN_WORKSPACE", "-1", 1);
  assert_fails(run_alone(&c, 0, out), MS_EINVAL, "MOONSHARD_CUDNN_WORKSPACE | -1");
  free_results(out);
  unsetenv("MOONSHARD_CUDNN_WORKSPACE");
  setenv("MOONSHARD_EMULATE_CUDNN_EVERY", "1", 1);
  assert_fails(run_alone(&c, 0, out), MS_EUNSUPPORTED, "100008704 bytes | MOONSHARD_CUDNN_WORKSPACE=100008704");
  free_results(out);
  unsetenv("MOONSHARD_EMULATE_CUDNN_EVERY");
  unsetenv("MOONSHARD_EMULATE_CUDNN_WORKSPACE");
  setenv("MOONSHARD_EMULATE_CUDNN_NONE", "1", 1);
  assert_fails(run_alone(&c, 0, out), MS_EUNSUPPORTED, "attention | 4 | 16 | 33");
  free_results(out);
  assert_auto_takes_own_kernels(&c, "libcudnn_emulated.so | plan | attention | own kernels");
  unsetenv("MOONSHARD_EMULATE_CUDNN_NONE");
  free_case(&c);
}

/* Runs before the library is loaded, because it then stays loaded. */
static void a_missing_or_old_library_is_reported(void **state) {
  (void)state;
  const attention_size a = {1, 12, 12, 1, 1, 8, 1};
  attention_case c = case_of(&a, 0);
  char *out[3], *path = strdup(getenv("MOONSHARD_CUDNN_LIBRARY"));
  setenv("MOONSHARD_CUDNN_LIBRARY", "/proc/nowhere/libcudnn.so", 1);
  setenv("MOONSHARD_ATTENTION", "cudnn", 1);
  assert_fails(run_alone(&c, 0, out), MS_EUNSUPPORTED, "cuDNN | /proc/nowhere/libcudnn.so");
  free_results(out);
  setenv("MOONSHARD_CUDNN_LIBRARY", path, 1);
  setenv("MOONSHARD_EMULATE_CUDNN_VERSION", "90500", 1);
  assert_fails(run_alone(&c, 0, out), MS_EUNSUPPORTED, "9.5.0 | 9.6 | 9.10.0 | 9.10.1");
  free_results(out);
  setenv("MOONSHARD_EMULATE_CUDNN_VERSION", "91001", 1);
  assert_fails(run_alone(&c, 0, out), MS_EUNSUPPORTED, "9.10.1 | 9.6");
  free_results(out);
  setenv("MOONSHARD_EMULATE_CUDNN_VERSION", "100000", 1);
  assert_auto_takes_own_kernels(&c, "cuDNN 10.0.0 | own kernels");
  unsetenv("MOONSHARD_EMULATE_CUDNN_VERSION");
  free(path);
  free_case(&c);
}

/* Until 9.15.0, gradients were wrong unless the number of keys was a multiple of 128. The version is read at every
 * call. */
static void shapes_that_old_versions_get_wrong_are_avoided(void **state) {
  (void)state;
  const attention_size odd = {1, 8, 130, 1, 1, 8, 0}, even = {1, 8, 128, 1, 1, 8, 0};
  setenv("MOONSHARD_ATTENTION", "cudnn", 1);
  setenv("MOONSHARD_EMULATE_CUDNN_VERSION", "91500", 1);
  for (int i = 0; i < 4; i++) {
    const int backward = i / 2, wrong = backward && i % 2;
    attention_case c = case_of(i % 2 ? &odd : &even, backward);
    char *out[3];
    if (wrong) assert_fails(run_alone(&c, 0, out), MS_EUNSUPPORTED, "128 | 130");
    else must(run_alone(&c, 0, out));
    free_results(out);
    free_case(&c);
  }
  unsetenv("MOONSHARD_EMULATE_CUDNN_VERSION");
}

static void failures_are_reported_and_leave_nothing(void **state) {
  (void)state;
  static const struct {
    const char *call;
    int last;
  } calls[] = {{"cudaGetDevice", 1},
               {"cudnnCreate", 1},
               {"cudnnSetStream", 1},
               {"cudnnBackendCreateDescriptor", 70},
               {"cudnnBackendSetAttribute", 250},
               {"cudnnBackendFinalize", 60},
               {"cudnnBackendGetAttribute", 2},
               {"cudnnBackendExecute", 1}};
  const attention_size a = {1, 9, 9, 2, 1, 8, 1};
  attention_case c = case_of(&a, 1);
  setenv("MOONSHARD_ATTENTION", "cudnn", 1);
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
    for (int n = 1; n <= calls[i].last; n = n < 3 || calls[i].last - n < 20 ? n + 1 : calls[i].last - 10) {
      char spec[64], *out[3];
      snprintf(spec, sizeof spec, "%s:%d", calls[i].call, n);
      emulate_failure(spec);
      assert_fails(run_alone(&c, 0, out), MS_EDEVICE, calls[i].call);
      free_results(out);
      if (emulated_left()) fail_msg("%s: %s", spec, emulated_left());
    }
  emulate_failure("");
  free_case(&c);
}

/* A kernel cannot get the shared memory it needs: the error reports it. */
static void shared_memory_that_own_kernels_cannot_get_is_reported(void **state) {
  (void)state;
  const attention_size a = {1, 9, 9, 2, 1, 8, 1};
  setenv("MOONSHARD_ATTENTION", "flash", 1);
  for (int backward = 0; backward < 2; backward++) {
    attention_case c = case_of(&a, backward);
    for (int n = 1; n <= 1 + backward; n++) {
      char spec[64], *out[3];
      snprintf(spec, sizeof spec, "cudaFuncSetAttribute:%d", n);
      emulate_failure(spec);
      assert_fails(run_alone(&c, 0, out), MS_EDEVICE, "cuda | shared memory");
      free_results(out);
      if (emulated_left()) fail_msg("%s: %s", spec, emulated_left());
    }
    free_case(&c);
  }
  emulate_failure("");
}

/* The 37th finalized descriptor is the plan of the best configuration. */
static void a_plan_that_fails_is_passed_over(void **state) {
  (void)state;
  const attention_size a = {1, 9, 9, 1, 1, 8, 0};
  attention_case c = case_of(&a, 0);
  char *out[3];
  emulate_failure("cudnnBackendFinalize:37");
  setenv("MOONSHARD_ATTENTION", "cudnn", 1);
  must(run_alone(&c, 0, out));
  assert_close(&c, out);
  free_results(out);
  emulate_failure("");
  free_case(&c);
}

int main(void) {
  emulate_cuda_kernels("inline");
  if (ms_device_find(MS_DEVICE_CUDA, &api)) return 1;
  const struct CMUnitTest tests[] = {
      TEST(a_missing_or_old_library_is_reported),
      TEST(cudnn_computes_what_the_cpu_does),
      TEST(own_kernels_compute_shapes_that_cudnn_does_not),
      TEST(plans_are_chosen_by_their_workspace),
      TEST(a_plan_that_fails_is_passed_over),
      TEST(shapes_that_old_versions_get_wrong_are_avoided),
      TEST(failures_are_reported_and_leave_nothing),
      TEST(shared_memory_that_own_kernels_cannot_get_is_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
