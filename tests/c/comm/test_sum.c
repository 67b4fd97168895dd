/* test_sum.c - the sums and casts of collectives, for every instruction set that this processor has, against the
 * formulas element by element: all types, odd counts, every alignment, short arrays and ones long enough to be stored
 * past the caches.
 */
#include "tests/c/support/check.h"

#include <stdlib.h>

#include "base/numbers/dtype.h"

/* A copy of the file under other names, to reach the variants that this processor would not choose. */
#define ms_sum_arrays copied_shm_sum
#define ms_max_arrays copied_shm_max
#define ms_copy_arrays copied_shm_copy
#include "comm/collectives/sum.c"
#undef ms_sum_arrays
#undef ms_max_arrays
#undef ms_copy_arrays

void ms_sum_arrays(void *const *dst, int n_dst, int dst_dtype, const void *const *src, int n_src, int src_dtype,
                   int64_t n, int accumulate);
void ms_copy_arrays(void *dst, int dst_dtype, const void *src, int src_dtype, int64_t n);

enum { SOURCES = 5, TARGETS = 2, SHORT = 700, LONG = (1 << 20) + 4099, GUARD = 64 };

typedef int64_t vector_sum(const summands *s, int64_t first, int64_t end, int64_t stride);

typedef struct arrays {
  void *src[SOURCES], *dst[TARGETS], *want[TARGETS];
} arrays;

static void fill(void *array, int is_bf16, int64_t n, uint32_t seed) {
  for (int64_t i = 0; i < n; i++) {
    uint32_t x = (uint32_t)i * 2654435761u ^ seed * 0x9e3779b9u;
    x ^= x >> 15;
    x *= 0x2c1b3c6du;
    x ^= x >> 12;
    float value = (float)(int32_t)x * (1.0f / (1 << 20));
    if (is_bf16) ((ms_bf16 *)array)[i] = ms_f32_to_bf16(value);
    else ((float *)array)[i] = value;
  }
}

static arrays allocate(int64_t n) {
  arrays a;
  for (int i = 0; i < SOURCES; i++) a.src[i] = aligned_alloc(64, (size_t)(4 * n + 2 * GUARD) / 64 * 64 + 64);
  for (int i = 0; i < TARGETS; i++) {
    a.dst[i] = aligned_alloc(64, (size_t)(4 * n + 2 * GUARD) / 64 * 64 + 64);
    a.want[i] = aligned_alloc(64, (size_t)(4 * n + 2 * GUARD) / 64 * 64 + 64);
    assert_non_null(a.dst[i]);
    assert_non_null(a.want[i]);
  }
  return a;
}

static void release(arrays *a) {
  for (int i = 0; i < SOURCES; i++) free(a->src[i]);
  for (int i = 0; i < TARGETS; i++) {
    free(a->dst[i]);
    free(a->want[i]);
  }
}

static void *shifted(void *array, int64_t bytes) { return (char *)array + bytes; }

/* One sum by ms_sum_arrays (vectors NULL) or by a variant; offsets shift the arrays by elements. */
static void check_sum(arrays *a, vector_sum *vectors, int types, int accumulate, int n_src, int n_dst, int64_t n,
                      int src_offset, int dst_offset) {
  int src_bf16 = types & 1, dst_bf16 = types >> 1, src_size = src_bf16 ? 2 : 4, dst_size = dst_bf16 ? 2 : 4;
  const void *src[SOURCES];
  void *dst[TARGETS], *want[TARGETS];
  for (int p = 0; p < n_src; p++) {
    fill(a->src[p], src_bf16, n + GUARD / 4, (uint32_t)p);
    src[p] = shifted(a->src[p], src_offset * src_size);
  }
  for (int d = 0; d < n_dst; d++) {
    fill(a->dst[d], dst_bf16, n + GUARD / 4, (uint32_t)(50 + d));
    fill(a->want[d], dst_bf16, n + GUARD / 4, (uint32_t)(50 + d));
    dst[d] = shifted(a->dst[d], dst_offset * dst_size);
    want[d] = shifted(a->want[d], dst_offset * dst_size);
  }
  summands s = {.dst = want,
                .n_dst = n_dst,
                .dst_bf16 = dst_bf16,
                .src = src,
                .n_src = n_src,
                .src_bf16 = src_bf16,
                .accumulate = accumulate};
  sum_elements(&s, 0, n);
  s.dst = dst;
  if (vectors) sum_elements(&s, vectors(&s, 0, n, SHORT_STRIDE), n);
  else ms_sum_arrays(dst, n_dst, dst_bf16, src, n_src, src_bf16, n, accumulate);
  for (int d = 0; d < n_dst; d++)
    if (memcmp(a->dst[d], a->want[d], (size_t)(n * dst_size + GUARD / 2)))
      fail_msg("sum %d of %d arrays, types %d, accumulate %d, %lld elements, offsets %d and %d differs", d, n_src,
               types, accumulate, (long long)n, src_offset, dst_offset);
}

static void check_short_sums(vector_sum *vectors) {
  arrays a = allocate(SHORT);
  for (int types = 0; types < 4; types++)
    for (int accumulate = 0; accumulate < 2; accumulate++)
      for (int n_src = 1; n_src <= SOURCES; n_src += 2)
        for (int64_t n = 0; n <= SHORT; n += n < 140 ? 1 : 93)
          check_sum(&a, vectors, types, accumulate, n_src, 1 + (int)(n & 1), n, (int)(n % 3), (int)(n % 5));
  release(&a);
}

static void the_instruction_set_at_hand(void **state) {
  (void)state;
  check_short_sums(NULL);
}

static void plain_vectors(void **state) {
  (void)state;
  check_short_sums(plain_sum);
}

static void avx2(void **state) {
  (void)state;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) check_short_sums(avx2_sum);
#endif
}

static void avx512(void **state) {
  (void)state;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    check_short_sums(avx512_sum);
#endif
}

static void long_arrays_are_stored_past_the_caches(void **state) {
  (void)state;
  arrays a = allocate(LONG);
  for (int types = 0; types < 4; types++)
    for (int offset = 0; offset < 6; offset += 5) {
      check_sum(&a, NULL, types, 0, 3, 2, LONG, 1, offset);
      check_sum(&a, NULL, types, 0, 1, 1, LONG - 1, 0, offset);
    }
  check_sum(&a, NULL, 0, 1, 2, 1, LONG, 0, 3);
  release(&a);
}

/* In place: a target is one of the sources. */
static void a_target_may_be_a_source(void **state) {
  (void)state;
  arrays a = allocate(LONG);
  for (int64_t n = 100; n <= LONG; n += LONG - 100) {
    fill(a.src[0], 0, n, 1);
    fill(a.src[1], 0, n, 2);
    const void *src[2] = {a.src[0], a.src[1]};
    void *both[2] = {a.src[0], a.src[1]};
    ms_sum_arrays(a.want, 1, MS_F32, src, 2, MS_F32, n, 0);
    ms_sum_arrays(both, 2, MS_F32, src, 2, MS_F32, n, 0);
    assert_memory_equal(a.src[0], a.want[0], 4 * (size_t)n);
    assert_memory_equal(a.src[1], a.want[0], 4 * (size_t)n);
  }
  release(&a);
}

static void a_copy_keeps_every_bit(void **state) {
  (void)state;
  static const int dtypes[] = {MS_F32, MS_BF16, MS_I32, MS_U8};
  arrays a = allocate(LONG);
  uint32_t *words = a.src[0];
  for (int64_t i = 0; i < LONG; i++) words[i] = (uint32_t)i * 2654435761u; /* NaNs with payloads among them */
  for (int t = 0; t < 4; t++)
    for (int offset = 0; offset < 3; offset++)
      for (int64_t n = 1; n < LONG; n = n < 1000 ? 3 * n : n * 1021) {
        int64_t bytes = n * ms_dtype_size(dtypes[t]);
        memset(a.dst[0], 0xaa, (size_t)bytes + GUARD);
        char *from = (char *)a.src[0] + offset * ms_dtype_size(dtypes[t]), *to = (char *)a.dst[0] + offset * 4;
        ms_copy_arrays(to, dtypes[t], from, dtypes[t], n);
        assert_memory_equal(to, from, (size_t)bytes);
        assert_int_equal((unsigned char)to[bytes], 0xaa);
      }
  release(&a);
}

static void not_a_number_survives_the_cast(void **state) {
  (void)state;
  enum { N = 200 };
  float source[N];
  ms_bf16 half[N];
  for (int i = 0; i < N; i++) {
    uint32_t bits = i & 1 ? 0x7f800001u : i & 2 ? 0xff800000u : 0x7f7fffffu; /* NaN, -infinity, the largest f32 */
    memcpy(&source[i], &bits, 4);
  }
  ms_copy_arrays(half, MS_BF16, source, MS_F32, N);
  for (int i = 0; i < N; i++) assert_int_equal(half[i], i & 1 ? 0x7fc0 : i & 2 ? 0xff80 : 0x7f80);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(the_instruction_set_at_hand),
      TEST(plain_vectors),
      TEST(avx2),
      TEST(avx512),
      TEST(long_arrays_are_stored_past_the_caches),
      TEST(a_target_may_be_a_source),
      TEST(a_copy_keeps_every_bit),
      TEST(not_a_number_survives_the_cast),
  };
  return cmocka_run_group_tests_name("shm", tests, NULL, NULL);
}
