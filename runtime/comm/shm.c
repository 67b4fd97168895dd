/* shm.c - sums and casts for collectives, for the instruction set at hand.
**
** A copy is a sum of one array, so one loop (shm_lanes.h) does all the work; it is compiled for AVX-512, AVX2 and plain
** vectors, and the first that the processor has is taken. What does not fill whole vectors is done element by element by
** the same formulas, so results do not depend on alignment or instruction set.
*/
#include "comm/shm.h"

#include <string.h>

#include "base/bf16.h"
#include "moonshard.h"

/* The thread sanitizer does not see non-temporal stores. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  #define STREAMS 1
#else
  #define STREAMS 0
#endif

#if defined(__x86_64__)
  #include <immintrin.h>

  #define LANES 16
  #define LANE(name) avx512_##name
  #define LANE_TARGET __attribute__((target("avx512f,avx512bw,avx512vl")))
  #define LANE_STREAM_F32(to, x) _mm512_stream_ps((to), (__m512)(x))
  #define LANE_STREAM_BF16(to, x) _mm256_stream_si256((__m256i *)(void *)(to), (__m256i)(x))
  #include "comm/shm_lanes.h"

  #define LANES 8
  #define LANE(name) avx2_##name
  #define LANE_TARGET __attribute__((target("avx2")))
  #define LANE_STREAM_F32(to, x) _mm256_stream_ps((to), (__m256)(x))
  #define LANE_STREAM_BF16(to, x) _mm_stream_si128((__m128i *)(void *)(to), (__m128i)(x))
  #include "comm/shm_lanes.h"
#endif

#define LANES 4
#define LANE(name) plain_##name
#define LANE_TARGET
#define LANE_STREAM_F32(to, x) (*(plain_f32v *)(void *)(to) = (x))
#define LANE_STREAM_BF16(to, x) (*(plain_u16v *)(void *)(to) = (x))
#include "comm/shm_lanes.h"

/* Bytes of results from which on storing past the caches is faster: they would not stay in a core's cache anyway. */
static const int64_t STREAM_BYTES = 2 << 20;

static int64_t sum_vectors(void *const *dst, int n_dst, int dst_bf16, const void *const *src, int n_src, int src_bf16,
                           int64_t n, int accumulate, int stream) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    return avx512_sum(dst, n_dst, dst_bf16, src, n_src, src_bf16, n, accumulate, stream);
  if (__builtin_cpu_supports("avx2"))
    return avx2_sum(dst, n_dst, dst_bf16, src, n_src, src_bf16, n, accumulate, stream);
#endif
  return plain_sum(dst, n_dst, dst_bf16, src, n_src, src_bf16, n, accumulate, stream);
}

static float load_one(const void *array, int is_bf16, int64_t i) {
  return is_bf16 ? ms_bf16_to_f32(((const ms_bf16 *)array)[i]) : ((const float *)array)[i];
}

static void sum_elements(void *const *dst, int n_dst, int dst_bf16, const void *const *src, int n_src, int src_bf16,
                         int64_t first, int64_t end, int accumulate) {
  for (int64_t i = first; i < end; i++) {
    float sum = load_one(src[0], src_bf16, i);
    for (int p = 1; p < n_src; p++) sum += load_one(src[p], src_bf16, i);
    for (int d = 0; d < n_dst; d++) {
      float result = accumulate ? sum + load_one(dst[d], dst_bf16, i) : sum;
      if (dst_bf16) ((ms_bf16 *)dst[d])[i] = ms_f32_to_bf16(result);
      else ((float *)dst[d])[i] = result;
    }
  }
}

/* Elements before dst is aligned to a cache line; -1 when the arrays of dst are not aligned alike. */
static int64_t count_unaligned(void *const *dst, int n_dst, int64_t size) {
  uintptr_t offset = (uintptr_t)dst[0] & 63;
  for (int d = 1; d < n_dst; d++)
    if (((uintptr_t)dst[d] & 63) != offset) return -1;
  if (offset % (uintptr_t)size) return -1;
  return (int64_t)((64 - offset) & 63) / size;
}

static void sum(void *const *dst, int n_dst, int dst_bf16, const void *const *src, int n_src, int src_bf16, int64_t n,
                int accumulate) {
  enum { MOST = 64 };
  void *to[MOST];
  const void *from[MOST];
  int64_t dst_size = dst_bf16 ? 2 : 4, src_size = src_bf16 ? 2 : 4;
  int64_t head = STREAMS && !accumulate && n * dst_size * n_dst >= STREAM_BYTES ? count_unaligned(dst, n_dst, dst_size) : -1;
  int stream = head >= 0;
  if (!stream) head = 0;
  sum_elements(dst, n_dst, dst_bf16, src, n_src, src_bf16, 0, head, accumulate);
  for (int d = 0; d < n_dst; d++) to[d] = (char *)dst[d] + head * dst_size;
  for (int p = 0; p < n_src; p++) from[p] = (const char *)src[p] + head * src_size;
  int64_t done = head + sum_vectors(to, n_dst, dst_bf16, from, n_src, src_bf16, n - head, accumulate, stream);
  sum_elements(dst, n_dst, dst_bf16, src, n_src, src_bf16, done, n, accumulate);
#if STREAMS
  if (stream) _mm_sfence();
#endif
}

void ms_shm_sum(void *const *dst, int n_dst, int dst_dtype, const void *const *src, int n_src, int src_dtype, int64_t n,
                int accumulate) {
  sum(dst, n_dst, dst_dtype == MS_BF16, src, n_src, src_dtype == MS_BF16, n, accumulate);
}

void ms_shm_copy(void *dst, int dst_dtype, const void *src, int src_dtype, int64_t n) {
  if (dst_dtype != src_dtype) {
    sum(&dst, 1, dst_dtype == MS_BF16, &src, 1, src_dtype == MS_BF16, n, 0);
    return;
  }
  /* Bits are kept: a "sum" of one f32 array only moves words. */
  int64_t bytes = n * ms_dtype_size(src_dtype);
  if (((uintptr_t)dst | (uintptr_t)src) % 4 || bytes < STREAM_BYTES) {
    memcpy(dst, src, (size_t)bytes);
    return;
  }
  sum(&dst, 1, 0, &src, 1, 0, bytes / 4, 0);
  memcpy((char *)dst + bytes / 4 * 4, (const char *)src + bytes / 4 * 4, (size_t)(bytes % 4));
}
