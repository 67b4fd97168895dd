/* cast_chunk.c - the elements that a rank contributes to an all-gather: copied, cast, or scaled and made codes. */
#include "comm/collectives/move.h"

#include "base/numbers/dtype.h"
#include "base/numbers/float8.h"
#include "comm/collectives/sum.h"

static void encode(const float *restrict from, float scale, int64_t n, uint8_t *restrict codes) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) codes[i] = ms_f32_to_f8e4m3(from[i] * scale);
}

void ms_cast_chunk(const ms_coll_part *part, int64_t first, int64_t n, void *to) {
  const char *from = (const char *)part->src + first * ms_dtype_size(part->src_dtype);
  if (ms_part_is_coded(part)) encode((const float *)(const void *)from, *part->scale, n, to);
  else ms_copy_arrays(to, part->dst_dtype, from, part->src_dtype, n);
}
