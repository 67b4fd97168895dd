/* attention_f32_avx512.c - attention in f32 for AVX-512: register tiles of 8 x 32. */
#if defined(__x86_64__)
  #include "kernels/cpu/target.h"

MS_TARGET_BEGIN("arch=x86-64-v4")

  #define MS_TARGET_CODE ms_attention_f32_avx512
  #define MS_VECTOR_BYTES 64
  #define MS_TILE_ROWS 8
  #define ms_vector_max(a, b) ((vector)_mm512_max_ps((__m512)(a), (__m512)(b)))

  #include "kernels/cpu/attention/attention_f32.h"

MS_TARGET_END
#endif
