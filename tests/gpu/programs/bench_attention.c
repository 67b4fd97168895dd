/* bench_attention.c - measures attention on the device cuda, forward and backward, bf16 and causal: GPT-2 124M (12
 * heads of 64, 1024 positions), Llama 1B (32 heads of 64 over 8, 4096 positions), and the latter with heads of 128.
 *
 *   bench_attention [POSITIONS]     one sequence of POSITIONS with two heads, to check that it works
 *
 * Prints a JSON line per direction: TFLOP/s of the median of 20 runs, counting only the visible half of the scores: 2 B
 * H T^2 D forward, 5 B H T^2 D backward. MOONSHARD_ATTENTION selects the implementation; the environment variable NAME
 * sets the name in the line.
 */
#include "tests/gpu/programs/device_bench.h"

typedef struct shape {
  const char *name;
  int64_t batch, positions, heads, groups, size;
} shape;

static const shape shapes[] = {
    {"gpt2", 32, 1024, 12, 12, 64}, {"llama", 4, 4096, 32, 8, 64}, {"heads of 128", 4, 4096, 32, 8, 128}};

static ms_value_info tensor(int dtype, int ndim, int64_t a, int64_t b, int64_t c, int64_t d) {
  return (ms_value_info){.dtype = dtype, .ndim = ndim, .dims = {a, b, c, d}};
}

static ms_kernel_call call_of(const shape *s, int backward) {
  const ms_value_info q = tensor(MS_BF16, 4, s->batch, s->positions, s->heads, s->size);
  const ms_value_info k = tensor(MS_BF16, 4, s->batch, s->positions, s->groups, s->size);
  const ms_value_info lse = tensor(MS_F32, 3, s->batch, s->heads, s->positions, 0);
  if (backward)
    return (ms_kernel_call){.op = MS_OP_attention_backward,
                            .attrs.attention = {.causal = 1},
                            .inputs = 6,
                            .outputs = 3,
                            .threads = 1,
                            .in = {q, k, k, q, lse, q},
                            .out = {q, k, k}};
  return (ms_kernel_call){.op = MS_OP_attention,
                          .attrs.attention = {.causal = 1},
                          .inputs = 3,
                          .outputs = 2,
                          .threads = 1,
                          .in = {q, k, k},
                          .out = {q, lse}};
}

static int measure_all(const bench *b, int64_t positions) {
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    for (int backward = 0; backward < 2; backward++) {
      shape s = shapes[i];
      double seconds = 0;
      if (positions) s.batch = 1, s.positions = positions, s.heads = 2, s.groups = s.groups < shapes[i].heads ? 1 : 2;
      ms_kernel_call call = call_of(&s, backward);
      MS_TRY(measure_call(b, &call, &seconds));
      const double scores = (double)(s.batch * s.heads * s.positions * s.positions);
      print_product(s.name, backward ? "backward" : "forward", (backward ? 5 : 2) * scores * (double)s.size, seconds);
    }
  return MS_OK;
}

int main(int argc, char **argv) { return run_bench("bench_attention", measure_all, argc, argv); }
