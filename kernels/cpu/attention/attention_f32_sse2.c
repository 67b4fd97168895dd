/* attention_f32_sse2.c - attention in f32 for any x86-64: register tiles of 4 x 8. */
#define MS_TARGET_CODE ms_attention_f32_sse2
#define MS_VECTOR_BYTES 16
#define MS_TILE_ROWS 4
#define ms_vector_max(a, b) ((vector)_mm_max_ps((__m128)(a), (__m128)(b)))

#include "kernels/cpu/attention/attention_f32.h"
