/* sum_lanes.h - sums with vectors of LANES floats for one instruction set; included once per set, with LANES,
 * LANE(name), LANE_TARGET and the two LANE_STREAM_ stores defined. Vectors are passed only by pointer, since passing
 * them by value has no stable ABI.
 */
typedef float LANE(f32v) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t LANE(u32v) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t LANE(u16v) __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

#define UNROLL _Pragma("GCC unroll 4") /* without it the sums would not stay in registers */
#define LANE_INLINE LANE_TARGET static inline __attribute__((always_inline))

/* x = src[i .. i+LANES) as f32 */
LANE_INLINE void LANE(load)(LANE(f32v) * x, const void *src, int is_bf16, int64_t i) {
  if (is_bf16) {
    LANE(u16v) half = *(const LANE(u16v) *)((const uint16_t *)src + i);
    LANE(u32v) bits = __builtin_convertvector(half, LANE(u32v)) << 16;
    *x = (LANE(f32v))bits;
  } else {
    *x = *(const LANE(f32v) *)((const float *)src + i);
  }
}

/* dst[i .. i+LANES) = x; bf16 rounds to nearest even and keeps NaN, as ms_f32_to_bf16 does */
LANE_INLINE void LANE(store)(void *dst, int is_bf16, int stream, int64_t i, const LANE(f32v) * x) {
  if (is_bf16) {
    LANE(u32v) bits = (LANE(u32v)) * x;
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

/* Sums whole blocks of 4 * stride elements in [first, end); returns the first element not summed. A step takes 4
 * vectors, stride elements apart: with a page between them, a core keeps more memory accesses in flight. */
LANE_INLINE int64_t LANE(sum_as)(const summands *s, int dst_bf16, int src_bf16, int stream, int64_t first, int64_t end,
                                 int64_t stride) {
  void *const *dst = s->dst;
  const void *const *src = s->src;
  int n_dst = s->n_dst, n_src = s->n_src, accumulate = s->accumulate;
  for (; first + 4 * stride <= end; first += 4 * stride)
    for (int64_t i = first; i < first + stride; i += LANES) {
      LANE(f32v) sum[4], x;
      UNROLL for (int j = 0; j < 4; j++) LANE(load)(&sum[j], src[0], src_bf16, i + j * stride);
      for (int p = 1; p < n_src; p++) UNROLL for (int j = 0; j < 4; j++) {
          LANE(load)(&x, src[p], src_bf16, i + j * stride);
          sum[j] += x;
        }
      for (int d = 0; d < n_dst; d++) UNROLL for (int j = 0; j < 4; j++) {
          LANE(f32v) result = sum[j];
          if (accumulate) {
            LANE(load)(&x, dst[d], dst_bf16, i + j * stride);
            result += x;
          }
          LANE(store)(dst[d], dst_bf16, stream, i + j * stride, &result);
        }
    }
  return first;
}

/* The same with the types (and, for the most frequent case, the kind of store) known at compile time. */
LANE_TARGET static int64_t LANE(sum)(const summands *s, int64_t first, int64_t end, int64_t stride) {
  int stream = s->stream;
  if (s->src_bf16 && s->dst_bf16) return LANE(sum_as)(s, 1, 1, stream, first, end, stride);
  if (s->src_bf16) return LANE(sum_as)(s, 0, 1, stream, first, end, stride);
  if (s->dst_bf16) return LANE(sum_as)(s, 1, 0, stream, first, end, stride);
  if (stream) return LANE(sum_as)(s, 0, 0, 1, first, end, stride);
  return LANE(sum_as)(s, 0, 0, 0, first, end, stride);
}

#undef UNROLL
#undef LANE_INLINE
#undef LANE_STREAM_F32
#undef LANE_STREAM_BF16
#undef LANE_TARGET
#undef LANE
#undef LANES
