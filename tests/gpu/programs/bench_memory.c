/* bench_memory.c - measures kernels on the device cuda whose time is that of moving their bytes, of bf16: column sums,
 * gelu's gradient with a bias's, and a loss with its gradient, in the shapes of GPT-2 124M and Llama 1B; and additions,
 * to compare with.
 *
 *   bench_memory [ROWS]     ROWS rows, to check that it works
 *
 * Prints a JSON line per kernel: GB/s of the bytes that it must read and write, by the median of 20 runs.
 */
#include "tests/gpu/programs/device_bench.h"

enum { ADD, SUM_TO, GELU_AND_BIAS, LOSS, KINDS };
static const char *const kinds[KINDS] = {"add", "sum_to", "activation_backward_bias_recompute", "cross_entropy_step"};

static const struct {
  int kind;
  int64_t columns;
} cases[] = {{ADD, 768},     {ADD, 2048},    {ADD, 3072},           {SUM_TO, 768},
             {SUM_TO, 2048}, {SUM_TO, 3072}, {GELU_AND_BIAS, 3072}, {LOSS, 50304}};

static ms_kernel_call call_of(int kind, int64_t rows, int64_t n) {
  static const int ops[KINDS] = {MS_OP_add, MS_OP_sum_to, MS_OP_activation_backward_bias_recompute,
                                 MS_OP_cross_entropy_step};
  const ms_value_info one = {.dtype = MS_F32, .ndim = 1, .dims = {1}},
                      x = {.dtype = MS_BF16, .ndim = 2, .dims = {rows, n}},
                      vector = {.dtype = MS_F32, .ndim = 1, .dims = {n}};
  ms_kernel_call call = {.op = ops[kind], .inputs = kind == SUM_TO ? 1 : 2, .outputs = 1, .threads = 1};
  call.in[0] = call.in[1] = call.out[0] = x;
  if (kind == SUM_TO) {
    call.out[0] = vector;
    call.attrs.shape.d[0] = n;
    call.attrs.shape.ndim = 1;
    call.attrs.out_dtype = 1 + MS_F32;
  } else if (kind == GELU_AND_BIAS) {
    call.outputs = 3;
    call.out[1] = vector;
    call.out[2] = x;
    call.attrs.product.activation = MS_ACT_GELU_TANH;
  } else if (kind == LOSS) {
    call.inputs = 4;
    call.outputs = 2;
    call.in[1] = (ms_value_info){.dtype = MS_I32, .ndim = 1, .dims = {rows}};
    call.in[2] = call.in[3] = call.out[1] = one;
    call.attrs.loss.ignore_index = -100;
  }
  return call;
}

static int64_t bytes_moved(const ms_kernel_call *call) {
  int64_t bytes = 0;
  for (int i = 0; i < call->inputs; i++) bytes += bytes_of(&call->in[i]);
  for (int i = 0; i < call->outputs; i++) bytes += bytes_of(&call->out[i]);
  return bytes;
}

static void write_targets(const ms_kernel_call *call, int32_t *targets, int64_t n) {
  for (int64_t i = 0; i < n; i++) targets[i] = (int32_t)(i * 2654435761 % call->in[0].dims[1]);
}

static int measure_all(const bench *b, int64_t rows) {
  bench own = *b;
  own.integers = write_targets;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ms_kernel_call call = call_of(cases[i].kind, rows ? rows : 32768, cases[i].columns);
    double seconds = 0;
    MS_TRY(measure_call(&own, &call, &seconds));
    printf("{\"kernel\":\"%s\",\"rows\":%lld,\"columns\":%lld,\"us\":%.2f,\"gb_per_s\":%.1f}\n", kinds[cases[i].kind],
           (long long)call.in[0].dims[0], (long long)cases[i].columns, seconds * 1e6,
           1e-9 * (double)bytes_moved(&call) / seconds);
    fflush(stdout);
  }
  return MS_OK;
}

int main(int argc, char **argv) { return run_bench("bench_memory", measure_all, argc, argv); }
