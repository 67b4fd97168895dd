/* moments.h - how AdamW keeps its moments: the table of forms, and those in 8 bits, records of 256 elements with a
 * scale.
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

/* What updates keep moments in: their attribute moments. Another form takes a number here, a case in the kernels of
 * each device (adamw), the shape of its outputs (runtime/graph/infer/infer_step.c), the dtype that chooses it, and its
 * conversion from and to f32, which checkpoints and reads use. */
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

/* A form of moments: a row of MS_MOMENTS (base/numbers/formats.def). A further one is a row there, and kernels of
 * adamw. */
typedef struct ms_moment_form {
  int dtype;            /* by which settings name it (`moments` of an optimizer in settings.def) */
  int kernel;           /* enum ms_adamw_moments */
  int in_state;         /* dtype of what a state has: elements, or the 32-bit words of records */
  int block, words;     /* elements and words of a record; 0: it has none */
  int rounds_at_random; /* 1: the kernel draws, so it needs the parameter's key and the place of its first element */
} ms_moment_form;

/* The form that settings name so, or that the kernel has; NULL: there is none. */
const ms_moment_form *ms_moment_form_of(int dtype);
const ms_moment_form *ms_moment_form_in(int64_t kernel);
/* How many of `in_state` n elements take. */
static inline int64_t ms_moment_count(const ms_moment_form *form, int64_t n) {
  return form->block ? (n + form->block - 1) / form->block * form->words : n;
}

/* Makes the records of n elements. */
void ms_moment_encode(enum ms_moment_map map, const float *x, int64_t n, void *records);
/* Elements [first, first + n) of an array of records. */
void ms_moment_decode(enum ms_moment_map map, const void *records, int64_t first, int64_t n, float *x);

#endif
