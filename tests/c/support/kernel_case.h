/* kernel_case.h - runs one kernel on random tensors and compares it with a reference in double.
 *
 * Inputs are read back as the doubles that their dtype represents, so a reference sees the kernel's inputs. Outputs and
 * workspace start as NaN everywhere and end with guard bytes. After its first run a case must give the same bits a
 * second time and, where the kernel allows it, over its first input; on three threads it must agree within a tolerance,
 * because sums are divided differently.
 *
 * The same cases are compiled again with MS_TEST_CUDA for the CUDA kernels, emulated or on a GPU: tensors are then
 * copied to the device and back around each run (cuda_case.h).
 */
#ifndef MS_TESTS_KERNEL_CASE_H
#define MS_TESTS_KERNEL_CASE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers/bf16.h"
#include "base/numbers/dtype.h"
#include "base/numbers/philox.h"
#include "kernels/op.h"
#include "tests/c/support/check.h"

enum { GUARD_BYTES = 64 };

#ifdef MS_TEST_CUDA
  #include "tests/c/support/cuda_case.h"
#else
static inline const ms_kernel *kernel_of(int op) { return ms_cpu_kernel(op); }
static inline void contract(int on) { (void)on; }
static inline int prepare_kernel(const ms_kernel *kernel, ms_kernel_call *call) {
  return kernel->prepare ? kernel->prepare(call) : MS_OK;
}
static inline int run_kernel(const ms_kernel *kernel, const ms_kernel_call *call) { return kernel->run(call); }
#endif

/* The thread sanitizer cannot follow libgomp, which is not instrumented. GPUs have no team. */
#if defined(__SANITIZE_THREAD__) || defined(MS_TEST_CUDA)
enum { TEAM = 1 };
#else
enum { TEAM = 3 };
#endif

/* Whether a case of this many elements (or multiplications / 10) is only for real devices, because emulation is
 * slow. */
#ifdef EMULATED_CUDA
  #ifdef __SANITIZE_ADDRESS__
enum { MAX_EMULATED = 30000 };
  #else
enum { MAX_EMULATED = 120000 };
  #endif
static inline int too_large(int64_t elements) { return elements > MAX_EMULATED; }
#else
/* MOONSHARD_TEST_MAX limits the size of cases, for tools that are slow on GPUs too. */
static inline int too_large(int64_t elements) {
  const char *most = getenv("MOONSHARD_TEST_MAX");
  return most && elements > atoll(most);
}
#endif

static const int dtypes[] = {MS_F32, MS_BF16};

#if defined(__SANITIZE_ADDRESS__) || defined(EMULATED_CUDA)
enum { FEW_ARE_ENOUGH = 1 };
#else
enum { FEW_ARE_ENOUGH = 0 };
#endif

/* From one value of a list of n to the next: where not all cases run (tests/run.sh) and few are enough, from the first
 * to the last. */
static inline size_t next_case(size_t n, int few_are_enough) {
  const char *cases = getenv("MOONSHARD_CASES");
  return few_are_enough && n > 2 && cases && !strcmp(cases, "few") ? n - 1 : 1;
}

#define FOR_CASES(variable, list, few_are_enough)                             \
  for (size_t variable##_n = sizeof(list) / sizeof *(list), variable##_i = 0, \
              variable##_step = next_case(variable##_n, few_are_enough);      \
       variable##_i < variable##_n; variable##_i += variable##_step)          \
    for (int variable##_once = 1; variable##_once;)                           \
      for (__typeof__(*(list)) variable = (list)[variable##_i]; variable##_once; variable##_once = 0)

/* FOR_EACH(n, sizes) body: n takes each value of the array. Numbers are looked at in the release build, and those of
 * CUDA kernels on GPUs and by `make test-all`, so few are enough under the address sanitizer and in the emulation.
 * FOR_ENDS: in every build, for cases that are slow. */
#define FOR_EACH(variable, list) FOR_CASES(variable, list, FEW_ARE_ENOUGH)
#define FOR_ENDS(variable, list) FOR_CASES(variable, list, 1)

typedef struct kernel_case {
  ms_kernel_call call;
  ms_scalars scalars;
  int64_t drawn; /* random numbers used so far */
} kernel_case;

static inline int64_t tensor_bytes(const ms_value_info *info) { return ms_numel(info) * ms_dtype_size(info->dtype); }

static inline double element_of(const void *data, int dtype, int64_t i) {
  switch (dtype) {
    case MS_F32: return ((const float *)data)[i];
    case MS_BF16: return ms_bf16_to_f32(((const ms_bf16 *)data)[i]);
    case MS_I32: return ((const int32_t *)data)[i];
    default: return ((const uint8_t *)data)[i];
  }
}

static inline void set_element(void *data, int dtype, int64_t i, double value) {
  switch (dtype) {
    case MS_F32: ((float *)data)[i] = (float)value; break;
    case MS_BF16: ((ms_bf16 *)data)[i] = ms_f32_to_bf16((float)value); break;
    case MS_I32: ((int32_t *)data)[i] = (int32_t)value; break;
    default: ((uint8_t *)data)[i] = (uint8_t)value; break;
  }
}

static inline double input_at(const kernel_case *c, int i, int64_t element) {
  return element_of(c->call.in_data[i], c->call.in[i].dtype, element);
}

static inline double output_at(const kernel_case *c, int i, int64_t element) {
  return element_of(c->call.out_data[i], c->call.out[i].dtype, element);
}

static inline void set_input(kernel_case *c, int i, int64_t element, double value) {
  set_element((void *)c->call.in_data[i], c->call.in[i].dtype, element, value);
}

static inline ms_value_info shape(int dtype, int ndim, const int64_t *dims) {
  ms_value_info info = {.dtype = dtype, .ndim = ndim};
  for (int d = 0; d < ndim; d++) info.dims[d] = dims[d];
  return info;
}

#define SHAPE(dtype, ...) \
  shape((dtype), (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})
#define SCALAR(dtype) shape((dtype), 0, NULL)

/* Fills with NaN bytes, followed by guard bytes. */
static inline void *poisoned(int64_t bytes) {
  char *data = aligned_alloc(64, (size_t)((bytes + GUARD_BYTES + 63) / 64 * 64));
  assert_non_null(data);
  memset(data, 0xff, (size_t)bytes);
  memset(data + bytes, 0x5a, GUARD_BYTES);
  return data;
}

static inline void assert_guarded(const void *data, int64_t bytes) {
  for (int i = 0; i < GUARD_BYTES; i++) assert_int_equal(((const unsigned char *)data)[bytes + i], 0x5a);
}

static inline kernel_case case_of(int op) {
  kernel_case c = {.call = {.op = op, .threads = 1}, .scalars = {.lr = 0.01, .step = 1, .micro_batches = 1, .seed = 7}};
  return c;
}

/* Adds an input of normally distributed numbers (of a byte: 0 or 1); returns its index. */
static inline int add_input(kernel_case *c, ms_value_info info) {
  int i = c->call.inputs++;
  int64_t n = ms_numel(&info);
  float *normal = malloc((size_t)(n + 1) * sizeof *normal);
  ms_philox_normal(2024, (uint64_t)c->call.op, c->drawn, n, normal);
  c->drawn += n;
  c->call.in[i] = info;
  c->call.in_data[i] = poisoned(tensor_bytes(&info));
  for (int64_t e = 0; e < n; e++) set_input(c, i, e, ms_dtype_size(info.dtype) == 1 ? normal[e] > 0 : normal[e]);
  free(normal);
  return i;
}

static inline int add_output(kernel_case *c, ms_value_info info) {
  int i = c->call.outputs++;
  c->call.out[i] = info;
  c->call.out_data[i] = poisoned(tensor_bytes(&info));
  return i;
}

static inline void free_case(kernel_case *c) {
  for (int i = 0; i < c->call.inputs; i++) free((void *)c->call.in_data[i]);
  for (int i = 0; i < c->call.outputs; i++) free(c->call.out_data[i]);
}

/* One run on `threads` threads with a poisoned workspace. */
static inline void run_once(kernel_case *c, ms_kernel_call call, int threads) {
  const ms_kernel *kernel = kernel_of(call.op);
  assert_non_null(kernel);
  call.threads = threads;
  call.scalars = &c->scalars;
  must(prepare_kernel(kernel, &call));
  call.workspace = poisoned(call.workspace_bytes);
  must(run_kernel(kernel, &call));
  assert_guarded(call.workspace, call.workspace_bytes);
  for (int i = 0; i < call.outputs; i++) assert_guarded(call.out_data[i], tensor_bytes(&call.out[i]));
  free(call.workspace);
  if (kernel->release) kernel->release(call.prepared);
}

static inline int same_number(double a, double b, double tolerance) {
  if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
  if (isinf(a) || isinf(b)) return a == b;
  return fabs(a - b) <= tolerance * (1.0 + fabs(b));
}

/* Compares every output with c's: bit for bit, or with the tolerance of reordered sums. */
static inline void assert_same_outputs(const kernel_case *c, void *const *other, int reordered, const char *what) {
  for (int i = 0; i < c->call.outputs; i++) {
    int64_t n = ms_numel(&c->call.out[i]);
    int dtype = c->call.out[i].dtype;
    double tolerance = !reordered ? 0.0 : dtype == MS_BF16 ? 0.01 : 1e-4;
    if (!reordered && memcmp(c->call.out_data[i], other[i], (size_t)tensor_bytes(&c->call.out[i])) == 0) continue;
    for (int64_t e = 0; e < n; e++) {
      double a = element_of(other[i], dtype, e), b = output_at(c, i, e);
      if (!same_number(a, b, tolerance))
        fail_msg("%s, output %d, element %d: %.9g instead of %.9g", what, i, (int)e, a, b);
    }
  }
}

/* Runs with each output over each input that it can overwrite, and with as many such pairs at once as possible. `again`
 * has its own outputs. */
static inline void run_in_place(const kernel_case *c, const ms_kernel_call *again) {
  const unsigned in_place = kernel_of(c->call.op)->in_place;
  for (int shift = 0; shift < again->outputs * again->inputs; shift++) {
    ms_kernel_call call = *again;
    unsigned inputs = 0, outputs = 0; /* already in such a pair */
    for (int n = 0; n < again->outputs * again->inputs; n++) {
      const int pair = (n + shift) % (again->outputs * again->inputs);
      const int o = pair / again->inputs, i = pair % again->inputs;
      if (o >= MS_OVER_OUTPUTS || !(in_place & MS_OVER(o, i)) || inputs & (1u << i) || outputs & (1u << o)) continue;
      if (tensor_bytes(&again->in[i]) != tensor_bytes(&again->out[o])) continue;
      inputs |= 1u << i;
      outputs |= 1u << o;
      memcpy(call.out_data[o], again->in_data[i], (size_t)tensor_bytes(&again->in[i]));
      call.in_data[i] = call.out_data[o];
    }
    if (!outputs) return;
    run_once((kernel_case *)c, call, 1);
    assert_same_outputs(c, call.out_data, 0, "in place");
  }
}

/* Runs the case and its repetitions. Outputs stay in c. For kernels that update outputs (optimizers) use run_once. */
static inline void run_case(kernel_case *c) {
  ms_kernel_call again = c->call;
  run_once(c, c->call, 1);
  for (int i = 0; i < again.outputs; i++) again.out_data[i] = poisoned(tensor_bytes(&again.out[i]));
  run_once(c, again, 1);
  assert_same_outputs(c, again.out_data, 0, "second run");
  if (TEAM > 1) {
    run_once(c, again, TEAM);
    assert_same_outputs(c, again.out_data, 1, "three threads");
  }
  run_in_place(c, &again);
  for (int i = 0; i < again.outputs; i++) free(again.out_data[i]);
}

/* |actual - expected| <= tolerance (scale + |expected|); for bf16 also its rounding error. */
static inline void assert_output(const kernel_case *c, int output, int64_t element, double expected, double tolerance) {
  double actual = output_at(c, output, element);
  if (c->call.out[output].dtype == MS_BF16) tolerance += 1.0 / 256;
  if (c->call.out[output].dtype == MS_BF16 && isfinite(expected)) expected = (double)(float)expected;
  if (!same_number(actual, expected, tolerance))
    fail_msg("output %d, element %d: %.9g instead of %.9g", output, (int)element, actual, expected);
}

/* A GPU reports the value and the limit, but not the position. */
#ifdef MS_TEST_CUDA
  #define TOLD(text, fault) fault
#else
  #define TOLD(text, fault) text
#endif

/* Returns run's status for the case, on this many threads. */
static inline int run_status(kernel_case *c, int threads) {
  const ms_kernel *kernel = kernel_of(c->call.op);
  c->call.threads = threads;
  must(prepare_kernel(kernel, &c->call));
  c->call.workspace = poisoned(c->call.workspace_bytes);
  int rc = run_kernel(kernel, &c->call);
  free(c->call.workspace);
  if (kernel->release) kernel->release(c->call.prepared);
  c->call.prepared = NULL;
  return rc;
}

#endif
