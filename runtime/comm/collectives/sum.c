/* sum.c - sums and casts for collectives, for the best available instruction set.
 *
 * A copy is a sum of one array, so one loop (sum_lanes.h) does all the work. It is compiled for AVX-512, AVX2 and plain
 * vectors; the first one that the processor supports is used. Elements that do not fill whole vectors are computed one
 * by one with the same formulas, so results do not depend on alignment or instruction set.
 */
#include "comm/collectives/sum.h"

#include <string.h>

#include "base/numbers/bf16.h"
#include "base/numbers/dtype.h"
#include "moonshard.h"

/* The thread sanitizer does not see non-temporal stores. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  #define STREAMS 1
#else
  #define STREAMS 0
#endif

/* Arguments of one call: see ms_sum_arrays. stream: bypass the caches. */
typedef struct summands {
  void *const *dst;
  const void *const *src;
  int n_dst, n_src, dst_bf16, src_bf16, dst_size, accumulate, stream;
} summands;

#if defined(__x86_64__)
  #include <immintrin.h>

  #define LANES 16
  #define LANE(name) avx512_##name
  #define LANE_TARGET __attribute__((target("avx512f,avx512bw,avx512vl")))
  #define LANE_STREAM_F32(to, x) _mm512_stream_ps((to), (__m512)(x))
  #define LANE_STREAM_BF16(to, x) _mm256_stream_si256((__m256i *)(void *)(to), (__m256i)(x))
  #include "comm/collectives/sum_lanes.h"

  #define LANES 8
  #define LANE(name) avx2_##name
  #define LANE_TARGET __attribute__((target("avx2")))
  #define LANE_STREAM_F32(to, x) _mm256_stream_ps((to), (__m256)(x))
  #define LANE_STREAM_BF16(to, x) _mm_stream_si128((__m128i *)(void *)(to), (__m128i)(x))
  #include "comm/collectives/sum_lanes.h"
#endif

#define LANES 4
#define LANE(name) plain_##name
#define LANE_TARGET
#define LANE_STREAM_F32(to, x) (*(plain_f32v *)(void *)(to) = (x))
#define LANE_STREAM_BF16(to, x) (*(plain_u16v *)(void *)(to) = (x))
#include "comm/collectives/sum_lanes.h"

/* Bytes of results from which bypassing the caches is faster: they would not stay in a core's cache anyway. */
static const int64_t STREAM_BYTES = 2 << 20;
/* Strides of sum_lanes.h, in elements: a page of f32 for long arrays, and the widest vector. */
static const int64_t PAGE_STRIDE = 1024, SHORT_STRIDE = 16;
enum { LINE_BYTES = 64 };

static int64_t sum_vectors(const summands *s, int64_t first, int64_t end, int64_t stride) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    return avx512_sum(s, first, end, stride);
  if (__builtin_cpu_supports("avx2")) return avx2_sum(s, first, end, stride);
#endif
  return plain_sum(s, first, end, stride);
}

static float load_one(const void *array, int is_bf16, int64_t i) {
  return is_bf16 ? ms_bf16_to_f32(((const ms_bf16 *)array)[i]) : ((const float *)array)[i];
}

static void sum_elements(const summands *s, int64_t first, int64_t end) {
  for (int64_t i = first; i < end; i++) {
    float sum = load_one(s->src[0], s->src_bf16, i);
    for (int p = 1; p < s->n_src; p++) sum += load_one(s->src[p], s->src_bf16, i);
    for (int d = 0; d < s->n_dst; d++) {
      float result = s->accumulate ? sum + load_one(s->dst[d], s->dst_bf16, i) : sum;
      if (s->dst_bf16) ((ms_bf16 *)s->dst[d])[i] = ms_f32_to_bf16(result);
      else ((float *)s->dst[d])[i] = result;
    }
  }
}

/* Number of elements before every dst is at the start of a cache line; -1 when that never happens. */
static int64_t count_unaligned(const summands *s) {
  uintptr_t offset = (uintptr_t)s->dst[0] % LINE_BYTES, size = (uintptr_t)s->dst_size;
  for (int d = 1; d < s->n_dst; d++)
    if ((uintptr_t)s->dst[d] % LINE_BYTES != offset) return -1;
  if (offset % size) return -1;
  return (int64_t)((LINE_BYTES - offset) % LINE_BYTES / size);
}

static void sum(summands *s, int64_t n) {
  int64_t bytes = n * s->n_dst * s->dst_size, done = 0;
  if (bytes >= STREAM_BYTES) {
    int64_t head = STREAMS && !s->accumulate ? count_unaligned(s) : -1;
    s->stream = head >= 0;
    if (s->stream) {
      sum_elements(s, 0, head);
      done = head;
    }
    done = sum_vectors(s, done, n, PAGE_STRIDE);
  }
  done = sum_vectors(s, done, n, SHORT_STRIDE);
  sum_elements(s, done, n);
#if STREAMS
  if (s->stream) _mm_sfence();
#endif
}

void ms_sum_arrays(void *const *dst, int n_dst, int dst_dtype, const void *const *src, int n_src, int src_dtype,
                   int64_t n, int accumulate) {
  summands s = {.dst = dst,
                .n_dst = n_dst,
                .dst_bf16 = dst_dtype == MS_BF16,
                .src = src,
                .n_src = n_src,
                .src_bf16 = src_dtype == MS_BF16,
                .dst_size = ms_dtype_size(dst_dtype),
                .accumulate = accumulate};
  sum(&s, n);
}

static float larger(float a, float b) { return b > a || b != b ? b : a; }

/* Maxima are of few numbers, such as one a row, so one loop is enough. */
void ms_max_arrays(void *const *dst, int n_dst, int dst_dtype, const void *const *src, int n_src, int src_dtype,
                   int64_t n) {
  const int src_bf16 = src_dtype == MS_BF16;
  for (int64_t i = 0; i < n; i++) {
    float most = load_one(src[0], src_bf16, i);
    for (int p = 1; p < n_src; p++) most = larger(most, load_one(src[p], src_bf16, i));
    for (int d = 0; d < n_dst; d++) {
      if (dst_dtype == MS_BF16) ((ms_bf16 *)dst[d])[i] = ms_f32_to_bf16(most);
      else ((float *)dst[d])[i] = most;
    }
  }
}

void ms_copy_arrays(void *dst, int dst_dtype, const void *src, int src_dtype, int64_t n) {
  if (dst_dtype != src_dtype) {
    ms_sum_arrays(&dst, 1, dst_dtype, &src, 1, src_dtype, n, 0);
    return;
  }
  int64_t bytes = n * ms_dtype_size(src_dtype), words = 0;
  /* Bits are preserved: the sum of a single f32 array only moves words. */
  if (bytes >= STREAM_BYTES && ((uintptr_t)dst | (uintptr_t)src) % 4 == 0) {
    words = bytes / 4;
    ms_sum_arrays(&dst, 1, MS_F32, &src, 1, MS_F32, words, 0);
  }
  memcpy((char *)dst + 4 * words, (const char *)src + 4 * words, (size_t)(bytes - 4 * words));
}
