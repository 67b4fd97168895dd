/* bench_experts.c - measures products of experts on the device cuda, of bf16, in the shapes of Mixtral's and Qwen 3's
 * mixtures at a size that one GPU trains: forward (a weight [out][in]), the gradient of the input, and that of the
 * weights, which is f32. Experts have unequal shares of the rows: the largest has three times the smallest's.
 *
 *   bench_experts [ROWS]     ROWS rows, 1/8 of the experts, and layers of 1/64 of their size, to check that it works
 *
 * Prints a JSON line per product, as bench_matmul does: TFLOP/s of the median of 20 runs.
 */
#include "tests/gpu/programs/device_bench.h"

typedef struct layer {
  const char *name;
  int64_t rows, experts, in, out;
} layer;

static const layer layers[] = {
    {"8 experts, up", 32768, 8, 1024, 3584},        {"8 experts, down", 32768, 8, 3584, 1024},
    {"8 large experts, up", 16384, 8, 4096, 14336}, {"64 experts, up", 65536, 64, 2048, 768},
    {"64 experts, down", 65536, 64, 768, 2048},     {"64 experts, few rows", 2048, 64, 2048, 768}};

enum { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, WAYS };
static const char *const ways[WAYS] = {"forward", "gradient", "weight gradient"};

/* Offsets of the experts: shares of 1, 2, 3, 1, 2, 3, ... */
static void write_offsets(const ms_kernel_call *call, int32_t *offsets, int64_t n) {
  int64_t shares = 0, sum = 0;
  for (int64_t e = 0; e < n - 1; e++) shares += 1 + e % 3;
  for (int64_t e = 0; e < n; sum += 1 + e++ % 3) offsets[e] = (int32_t)(call->in[0].dims[0] * sum / shares);
}

/* y = x w' by expert; dx = dy w; dw = dy' x: x [rows][in], y [rows][out], w [experts][out][in]. */
static ms_kernel_call call_of(const layer *l, int way) {
  ms_kernel_call call = {.op = MS_OP_grouped_matmul, .inputs = 3, .outputs = 1, .threads = 1};
  const ms_value_info x = {.dtype = MS_BF16, .ndim = 2, .dims = {l->rows, l->in}},
                      y = {.dtype = MS_BF16, .ndim = 2, .dims = {l->rows, l->out}};
  ms_value_info w = {.dtype = MS_BF16, .ndim = 3, .dims = {l->experts, l->out, l->in}};
  call.in[0] = way == FORWARD ? x : y;
  call.in[1] = way == WEIGHT_GRADIENT ? x : w;
  call.in[2] = (ms_value_info){.dtype = MS_I32, .ndim = 1, .dims = {l->experts + 1}};
  call.out[0] = way == FORWARD ? y : x;
  call.attrs.product.trans_b = way == FORWARD;
  if (way != WEIGHT_GRADIENT) return call;
  w.dtype = MS_F32;
  call.op = MS_OP_grouped_matmul_backward_weight;
  call.out[0] = w;
  call.attrs.product.trans_b = 0;
  call.attrs.out_dtype = 1 + MS_F32;
  return call;
}

static int measure_all(const bench *b, int64_t rows) {
  bench own = *b;
  own.integers = write_offsets;
  for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
    for (int way = 0; way < WAYS; way++) {
      layer l = layers[i];
      double seconds = 0;
      if (rows) l.rows = rows, l.experts /= 8, l.in /= 64, l.out /= 64;
      ms_kernel_call call = call_of(&l, way);
      MS_TRY(measure_call(&own, &call, &seconds));
      print_product(l.name, ways[way], 2 * (double)l.rows * (double)l.in * (double)l.out, seconds);
    }
  return MS_OK;
}

int main(int argc, char **argv) { return run_bench("bench_experts", measure_all, argc, argv); }
