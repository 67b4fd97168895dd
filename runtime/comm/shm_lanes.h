/* shm_lanes.h - vectors of LANES floats for one instruction set; included once for each, with LANES, LANE(name) and
** LANE_TARGET defined. Vectors travel through pointers only: passing them by value has no stable ABI.
*/
typedef float LANE(f32v) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t LANE(u32v) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t LANE(u16v) __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

#define UNROLL _Pragma("GCC unroll 4") /* or the sums would not stay in registers */
#define LANE_INLINE LANE_TARGET static inline __attribute__((always_inline))

/* x = src[i .. i+LANES) as f32 */
LANE_INLINE void LANE(load)(LANE(f32v) *x, const void *src, int is_bf16, int64_t i) {
  if (is_bf16) {
    LANE(u16v) half = *(const LANE(u16v) *)((const uint16_t *)src + i);
    LANE(u32v) bits = __builtin_convertvector(half, LANE(u32v)) << 16;
    *x = (LANE(f32v))bits;
  } else {
    *x = *(const LANE(f32v) *)((const float *)src + i);
  }
}

/* dst[i .. i+LANES) = x; bf16 rounds to nearest even and keeps NaN, as ms_f32_to_bf16 does */
LANE_INLINE void LANE(store)(void *dst, int is_bf16, int stream, int64_t i, const LANE(f32v) *x) {
  if (is_bf16) {
    LANE(u32v) bits = (LANE(u32v))*x;
    LANE(u32v) rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    LANE(u32v) quiet = (bits >> 16) | 0x40u;
    LANE(u32v) is_nan = (LANE(u32v))((bits & 0x7fffffffu) > 0x7f800000u);
    LANE(u16v) half = __builtin_convertvector((quiet & is_nan) | (rounded & ~is_nan), LANE(u16v));
    if (stream) LANE_STREAM_BF16((uint16_t *)dst + i, half);
    else *(LANE(u16v) *)((uint16_t *)dst + i) = half;
  } else {
    if (stream) LANE_STREAM_F32((float *)dst + i, *x);
    else *(LANE(f32v) *)((float *)dst + i) = *x;
  }
}

/* Whole groups of 4 vectors of ms_shm_sum from element 0 on; returns how many elements were done. */
LANE_INLINE int64_t LANE(sum_as)(void *const *dst, int n_dst, int dst_bf16, const void *const *src, int n_src, int src_bf16,
                                 int64_t n, int accumulate, int stream) {
  int64_t i = 0;
  for (; i + 4 * LANES <= n; i += 4 * LANES) {
    LANE(f32v) sum[4], x;
    UNROLL for (int j = 0; j < 4; j++) LANE(load)(&sum[j], src[0], src_bf16, i + j * LANES);
    for (int p = 1; p < n_src; p++)
      UNROLL for (int j = 0; j < 4; j++) {
        LANE(load)(&x, src[p], src_bf16, i + j * LANES);
        sum[j] += x;
      }
    for (int d = 0; d < n_dst; d++)
      UNROLL for (int j = 0; j < 4; j++) {
        LANE(f32v) result = sum[j];
        if (accumulate) {
          LANE(load)(&x, dst[d], dst_bf16, i + j * LANES);
          result += x;
        }
        LANE(store)(dst[d], dst_bf16, stream, i + j * LANES, &result);
      }
  }
  return i;
}

LANE_TARGET static int64_t LANE(sum)(void *const *dst, int n_dst, int dst_bf16, const void *const *src, int n_src,
                                     int src_bf16, int64_t n, int accumulate, int stream) {
  if (!dst_bf16 && !src_bf16) {
    if (stream) return LANE(sum_as)(dst, n_dst, 0, src, n_src, 0, n, accumulate, 1);
    return LANE(sum_as)(dst, n_dst, 0, src, n_src, 0, n, accumulate, 0);
  }
  if (!dst_bf16) return LANE(sum_as)(dst, n_dst, 0, src, n_src, 1, n, accumulate, stream);
  if (!src_bf16) return LANE(sum_as)(dst, n_dst, 1, src, n_src, 0, n, accumulate, stream);
  return LANE(sum_as)(dst, n_dst, 1, src, n_src, 1, n, accumulate, stream);
}

#undef UNROLL
#undef LANE_INLINE
#undef LANE_STREAM_F32
#undef LANE_STREAM_BF16
#undef LANE_TARGET
#undef LANE
#undef LANES
