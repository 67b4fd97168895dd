/* attention_f32_avx2.c - attention in f32 for AVX2 with FMA: register tiles of 4 x 16. */
#if defined(__x86_64__)
  #include "kernels/cpu/target.h"

MS_TARGET_BEGIN("arch=x86-64-v3")

  #define MS_TARGET_CODE ms_attention_f32_avx2
  #define MS_VECTOR_BYTES 32
  #define MS_TILE_ROWS 4
  #define ms_vector_max(a, b) ((vector)_mm256_max_ps((__m256)(a), (__m256)(b)))

  #include "kernels/cpu/attention/attention_f32.h"

MS_TARGET_END
#endif
