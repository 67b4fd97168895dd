/* bench_matmul.c - measures matrix products on the device cuda, in the shapes of GPT-2 124M (32 x 1024 tokens) and
 * Llama 1B (4 x 4096): forward, the gradient of the input, and the gradient of the weight, which is f32. For GPT-2's
 * gelu also the product followed by bias and gelu, and the product followed by the gradients of gelu and bias;
 * MOONSHARD_CUDA_EPILOGUES=apart computes them by two kernels. FP8=rowwise, or another recipe of fp8: operands are
 * rounded to 8 bits, which is part of the time, where the recipe rounds them.
 *
 *   bench_matmul [TOKENS]     TOKENS tokens, and layers of 1/256 of their size, to check that it works
 *
 * Prints a JSON line per product: TFLOP/s of the median of 20 runs. Algorithms are chosen as in training, so
 * MOONSHARD_CUDA_MATMUL and MOONSHARD_CUDA_MATMUL_TUNE apply; the environment variable NAME sets the name in the line.
 */
#include "tests/gpu/programs/device_bench.h"

#include <string.h>

#include "kernels/products/matmul_f8.h"

typedef struct layer {
  const char *name;
  int64_t tokens, in, out;
} layer;

static const layer layers[] = {
    {"gpt2 projection", 32768, 768, 768}, {"gpt2 up", 32768, 768, 3072},           {"gpt2 down", 32768, 3072, 768},
    {"gpt2 head", 32768, 768, 50304},     {"llama projection", 16384, 2048, 2048}, {"llama key", 16384, 2048, 512},
    {"llama up", 16384, 2048, 8192},      {"llama down", 16384, 8192, 2048},       {"llama head", 16384, 2048, 128256}};

enum { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, GELU, GELU_GRADIENT, GELU_AND_BIAS, WAYS };
static const char *const ways[WAYS] = {"forward", "gradient",      "weight gradient",
                                       "gelu",    "gelu gradient", "gelu and bias gradients"};

static int has_way(const layer *l, int way) {
  if (way == GELU) return !strcmp(l->name, "gpt2 up");
  return way < GELU_GRADIENT || !strcmp(l->name, "gpt2 down");
}

static ms_value_info matrix(int dtype, int64_t rows, int64_t columns) {
  return (ms_value_info){.dtype = dtype, .ndim = 2, .dims = {rows, columns}};
}

/* y = x w' + b and gelu(y); du = (dy w) gelu'(u) and its column sums: x, u [tokens][in], y, dy [tokens][out], w
 * [out][in].
 */
static ms_kernel_call gelu_call_of(const layer *l, int way) {
  ms_kernel_call call = {.op = MS_OP_matmul_gelu, .inputs = 3, .outputs = 2, .threads = 1};
  const ms_value_info x = matrix(MS_BF16, l->tokens, l->in), y = matrix(MS_BF16, l->tokens, l->out);
  const int64_t columns = way == GELU ? l->out : l->in;
  const ms_value_info vector = {.dtype = MS_BF16, .ndim = 1, .dims = {columns}};
  if (way == GELU_GRADIENT) call.op = MS_OP_matmul_gelu_backward, call.outputs = 1;
  if (way == GELU_AND_BIAS) call.op = MS_OP_matmul_gelu_backward_bias;
  call.in[0] = way == GELU ? x : y;
  call.in[1] = matrix(MS_BF16, l->out, l->in);
  call.in[2] = way == GELU ? vector : x;
  call.out[0] = way == GELU ? y : x;
  call.out[1] = way == GELU ? y : vector;
  call.attrs.product.trans_b = way == GELU;
  return call;
}

/* Makes a product one of operands in 8 bits, if the environment asks for it. */
static void round_operands(ms_kernel_call *call, int way) {
  static const int products[] = {[FORWARD] = MS_F8_OUTPUT, [INPUT_GRADIENT] = MS_F8_DX, [WEIGHT_GRADIENT] = MS_F8_DW};
  const char *name = getenv("FP8");
  int recipe = MS_FP8_NONE;
  while (name && ms_f8_recipe_name(recipe) && strcmp(name, ms_f8_recipe_name(recipe))) recipe++;
  if (!name || !ms_f8_recipe_name(recipe) || !ms_f8_rounds(recipe, products[way])) return;
  call->op = MS_OP_matmul_f8;
  call->attrs.product.recipe = recipe;
  call->attrs.product.product = products[way];
}

/* y = x w'; dx = dy w; dw = dy' x: x [tokens][in], y [tokens][out], w [out][in]. */
static ms_kernel_call call_of(const layer *l, int way) {
  if (way >= GELU) return gelu_call_of(l, way);
  ms_kernel_call call = {.op = MS_OP_matmul, .inputs = 2, .outputs = 1, .threads = 1};
  const ms_value_info x = matrix(MS_BF16, l->tokens, l->in), y = matrix(MS_BF16, l->tokens, l->out);
  const ms_value_info w = matrix(MS_BF16, l->out, l->in);
  call.in[0] = way == FORWARD ? x : y;
  call.in[1] = way == WEIGHT_GRADIENT ? x : w;
  call.out[0] = way == FORWARD ? y : way == INPUT_GRADIENT ? x : matrix(MS_F32, l->out, l->in);
  call.attrs.product.trans_a = way == WEIGHT_GRADIENT;
  call.attrs.product.trans_b = way == FORWARD;
  round_operands(&call, way);
  return call;
}

static int measure_all(const bench *b, int64_t tokens) {
  for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
    for (int way = 0; way < WAYS; way++) {
      layer l = layers[i];
      double seconds = 0;
      if (!has_way(&l, way)) continue;
      if (tokens) l.tokens = tokens, l.in /= 256, l.out /= 256;
      ms_kernel_call call = call_of(&l, way);
      MS_TRY(measure_call(b, &call, &seconds));
      print_product(l.name, ways[way], 2 * (double)l.tokens * (double)l.in * (double)l.out, seconds);
    }
  return MS_OK;
}

int main(int argc, char **argv) { return run_bench("bench_matmul", measure_all, argc, argv); }
