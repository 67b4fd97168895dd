/* test_attention_split.c - f32 attention on the matrix unit computes what the other implementations do. Few
 * processors have the unit: here plain loops over panels of f32 take its place, for all that attention_split.c does
 * around its products. */
#include "attention_case.h"

#include "base/text/hash.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/matmul/split_panel.h"
#include "kernels/cpu/target.h"

#if defined(__x86_64__)

enum { GRAIN_OF_PANEL = MS_SPLIT_GRAIN };

/* A step of a panel, in the first of its bytes: f32 [32 of k][32 rows]. */
static float *step_of(char *panels, int64_t step) { return (float *)(panels + step * MS_SPLIT_STEP_BYTES); }

static void plain_pack(char *panels, const ms_split_operand *x, int64_t first, int64_t rows, int64_t k_first,
                       int64_t k) {
  const int64_t steps = ms_split_steps(k), padded = ms_split_steps(rows) * GRAIN_OF_PANEL;
  for (int64_t row = 0; row < padded; row++)
    for (int64_t i = 0; i < steps * GRAIN_OF_PANEL; i++) {
      const int64_t r = first + row, at = k_first + i;
      step_of(panels, row / GRAIN_OF_PANEL * steps +
                          i / GRAIN_OF_PANEL)[i % GRAIN_OF_PANEL * GRAIN_OF_PANEL + row % GRAIN_OF_PANEL] =
          row >= rows || i >= k ? 0.0f : x->data[x->k_inside ? r * x->stride + at : at * x->stride + r];
    }
}

static void plain_product(float *c, int64_t c_stride, const char *a, const char *b, int64_t steps, const float *start,
                          int64_t start_stride) {
  for (int64_t r = 0; r < GRAIN_OF_PANEL; r++)
    for (int64_t column = 0; column < GRAIN_OF_PANEL; column++) {
      double sum = start ? start[r * start_stride + column] : 0.0;
      for (int64_t i = 0; i < steps * GRAIN_OF_PANEL; i++) {
        const int64_t step = i / GRAIN_OF_PANEL, at = i % GRAIN_OF_PANEL * GRAIN_OF_PANEL;
        sum += (double)step_of((char *)a, step)[at + r] * step_of((char *)b, step)[at + column];
      }
      c[r * c_stride + column] = (float)sum;
    }
}

  #define ms_split_pack_a plain_pack
  #define ms_split_pack_b plain_pack
  #define ms_split_product plain_product
  #define ms_split_begin() ((void)0)
  #define ms_split_end() ((void)0)
  #define ms_attention_split attention_of_plain_panels
  #include "kernels/cpu/attention/attention_split.c"
  #undef ms_attention_split

static void check(const attention_shape *shape, ms_part given) {
  for (int is_backward = 0; is_backward < 2; is_backward++) {
    kernel_case c = is_backward ? backward_case(shape, MS_F32) : forward_case(shape, MS_F32);
    if (given.ranks) c.call.attrs.attention.part = ms_part_attr(given);
    const ms_attention a = ms_attention_of(&c.call);
    const ms_attention_part *part =
        is_backward ? &attention_of_plain_panels.backward : &attention_of_plain_panels.forward;
    const int64_t items = is_backward ? a.batch * a.groups : a.batch * a.heads * ms_query_blocks(&a),
                  bytes = part->scratch_bytes(&a);
    ms_kernel_call call = c.call;
    void *scratch = poisoned(bytes);
    run_once(&c, c.call, 1);
    for (int i = 0; i < call.outputs; i++) call.out_data[i] = poisoned(tensor_bytes(&call.out[i]));
    part->run(&a, &call, 0, items, scratch);
    assert_guarded(scratch, bytes);
    assert_same_outputs(&c, call.out_data, 1, "plain panels");
    for (int i = 0; i < call.outputs; i++) free(call.out_data[i]);
    free(scratch);
    free_case(&c);
  }
}

static void panels_of_any_sizes(void **state) {
  (void)state;
  static const attention_shape shapes[] = {
      {1, 75, 110, 2, 1, 40, 1, 0, 0, 0, 0, 0},    {1, 64, 70, 2, 2, 33, 0, 0, 0, 2, 0, 0},
      {1, 200, 700, 1, 1, 32, 1, 0, 90, 0, 0, 0},  {1, 600, 600, 2, 1, 32, 1, 0, 31, 0, 0, 0},
      {1, 1100, 1100, 1, 1, 32, 1, 0, 1, 0, 0, 0}, {1, 650, 650, 1, 1, 48, 1, 0, 513, 0, 0, 0},
      {1, 200, 1300, 1, 1, 32, 1, 0, 64, 1, 0, 0},
  };
  if (!ms_cpu_is_v4()) return;
  FOR_ENDS(shape, shapes) check(&shape, (ms_part){0, 0, 0, 0, 0});
  const uint64_t step = next_case(30, 1) > 1 ? 7 : 1; /* five of the draws have every kind of causal, softcap, prefix */
  for (uint64_t draw = 0; draw < 30; draw += step) {
    uint64_t n[4];
    for (uint64_t i = 0; i < 4; i++) n[i] = ms_hash_int(draw, (int64_t)i) >> 20;
    const int64_t t = 32 + (int64_t)(n[0] % 200), s = t + (int64_t)(n[1] % 3 ? 0 : n[1] % 90);
    const int causal = draw % 5 != 0;
    const int64_t window = (int64_t)(n[3] % 150), prefix = causal && draw % 4 == 1 ? (int64_t)(n[3] % 300) : 0;
    const attention_shape a = {.b = 1,
                               .t = t,
                               .s = s,
                               .h = 2,
                               .g = 1,
                               .d = 32 + (int64_t)(n[2] % 40),
                               .causal = causal,
                               .window = prefix ? 0 : window,
                               .softcap = draw % 3 ? 0 : 1.5,
                               .e = draw % 2 ? 32 + (int64_t)(n[1] % 70) : 0,
                               .prefix = prefix};
    check(&a, (ms_part){0, 0, 0, 0, 0});
  }
}

/* Queries that ranks divide are in two parts of the axis, with keys between their windows that none sees. */
static void panels_of_parts(void **state) {
  (void)state;
  if (!ms_cpu_is_v4()) return;
  for (int window = 0; window < 200; window += 20)
    for (int place = 0; place < 3; place++) {
      const attention_shape a = {1, 88, 264, 2, 1, 32, 1, 0, window, 0, 0, 0};
      check(&a, (ms_part){44, 3, place, 0, 1});
      check(&a, (ms_part){88, 3, place, 0, 0});
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(panels_of_any_sizes), TEST(panels_of_parts)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void) { return 0; }

#endif
