/* adamw_records.c - AdamW with moments in 8 bits (kernels/formats/moments.h). A record becomes f32 on the stack, is
 * updated as in adamw.c, and is made again; the step itself uses the values before that.
 */
#include "kernels/cpu/optimizers/adamw.h"
#include "kernels/cpu/optimizers/moments.h"

/* Updates the n elements of a record. m and v are [MS_MOMENT_BLOCK]; what follows the elements becomes 0. */
MS_INLINE void update_record(const ms_adamw *s, int64_t n, const float *restrict gradient, float *restrict p,
                             float *restrict m, float *restrict v) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float m1 = m[i], v1 = v[i];
    p[i] = ms_adamw_update(s, gradient[i], p[i], &m1, &v1);
    m[i] = m1;
    v[i] = v1;
  }
  for (int64_t i = n; i < MS_MOMENT_BLOCK; i++) m[i] = v[i] = 0.0f;
}

MS_CLONES static void update_records(const ms_kernel_call *call, int64_t begin, int64_t end) {
  const ms_adamw s = ms_adamw_of(call);
  const int64_t all = ms_numel(&call->in[0]);
  ms_bf16 *copy = ms_call_copy(call);
  ms_moment_tables first, second;
  ms_moment_fill_tables(MS_MOMENT_FIRST, &first);
  ms_moment_fill_tables(MS_MOMENT_SECOND, &second);
  for (int64_t r = begin; r < end; r++) {
    const int64_t at = r * MS_MOMENT_BLOCK, n = all - at < MS_MOMENT_BLOCK ? all - at : MS_MOMENT_BLOCK;
    uint8_t *m = (uint8_t *)call->out_data[1] + r * MS_MOMENT_WORDS * 4;
    uint8_t *v = (uint8_t *)call->out_data[2] + r * MS_MOMENT_WORDS * 4;
    float m1[MS_MOMENT_BLOCK] __attribute__((aligned(64))), v1[MS_MOMENT_BLOCK] __attribute__((aligned(64)));
    ms_moment_read(&first, m, m1);
    ms_moment_read(&second, v, v1);
    float *p = (float *)call->out_data[0] + at;
    update_record(&s, n, (const float *)call->in_data[0] + at, p, m1, v1);
    if (copy) ms_narrow(copy + at, p, n);
    ms_moment_write(MS_MOMENT_FIRST, &first, m1, m);
    ms_moment_write(MS_MOMENT_SECOND, &second, v1, v);
  }
}

void ms_adamw_of_records(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  update_records(call, begin, end);
}
