/* moments.h - AdamW's moments in 8 bits: records of 256 elements with a scale.
 *
 * A record has the codes of 256 consecutive elements, one byte each, and their f32 scale: 65 words of 32 bits, in which
 * plans count them. The value of a code is its number in a dynamic map (dynamic_map.h) times the scale: the signed map
 * for the first moment, the unsigned one for the second. Codes are those of the nearest numbers, as in bitsandbytes and
 * torchao (Dettmers et al., 2022). Three things differ:
 *
 *   - the scale of the first moment has the sign of the element with the largest magnitude (plus, if both signs have
 *     it), which therefore always has the code of 1: the signed map has no -1. So a record that is read as f32 and made
 *     again is the same, bit for bit, and checkpoints keep moments as f32;
 *   - a second moment above 0 never becomes 0, but at least the least number of the map: the next step would divide the
 *     first moment by the root of what its own gradient gives;
 *   - where no magnitude reaches 2^-100, all are 0.
 *
 * If a record has an element that is not finite, all of it is NaN. The last record of a parameter can have fewer
 * elements; the rest is 0. Records of zeros are bytes of zeros, or what encoding gives.
 */
#ifndef MS_KERNELS_MOMENTS_H
#define MS_KERNELS_MOMENTS_H

#include <stdint.h>

enum { MS_MOMENT_BLOCK = 256, MS_MOMENT_WORDS = 65 };

/* What the ops adamw and lion keep moments in: their attribute i3. Lion has no records. */
enum ms_adamw_moments { MS_ADAMW_F32 = 0, MS_ADAMW_BF16 = 1, MS_ADAMW_I8 = 2 };

enum ms_moment_map { MS_MOMENT_FIRST, MS_MOMENT_SECOND };

#ifdef __CUDACC__
  #define MS_MOMENT_FUNCTION static inline __host__ __device__
#else
  #define MS_MOMENT_FUNCTION static inline
#endif

/* Records, and their words, of n elements. */
MS_MOMENT_FUNCTION int64_t ms_moment_records(int64_t n) { return (n + MS_MOMENT_BLOCK - 1) / MS_MOMENT_BLOCK; }
MS_MOMENT_FUNCTION int64_t ms_moment_words(int64_t n) { return ms_moment_records(n) * MS_MOMENT_WORDS; }

/* Makes the records of n elements. */
void ms_moment_encode(enum ms_moment_map map, const float *x, int64_t n, void *records);
/* Elements [first, first + n) of an array of records. */
void ms_moment_decode(enum ms_moment_map map, const void *records, int64_t first, int64_t n, float *x);

#endif
