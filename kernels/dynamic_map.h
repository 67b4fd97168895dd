/* dynamic_map.h - bitsandbytes' signed dynamic map of 8 bits (Dettmers et al., 2022, "8-bit Optimizers via Block-wise
 * Quantization"; create_dynamic_map), with which QLoRA keeps the scales of nf4.
 *
 * Its 256 numbers are 0, 1, and +-10^(i - 6) m for i = 0 to 6, where m are the middles of 2^i equal parts of [0.1, 1].
 * Code c is the c-th in order: 127 is 0, 255 is 1, and 254 - c is the negative of c. There is no -1. The table has the
 * positive ones below 1 as PyTorch computes them in f32, so that codes and numbers equal bitsandbytes' bit for bit.
 */
#ifndef MS_KERNELS_DYNAMIC_MAP_H
#define MS_KERNELS_DYNAMIC_MAP_H

#include <stdint.h>

#ifdef __CUDACC__
  #define MS_DYNAMIC_MAP_FUNCTION static inline __host__ __device__
#else
  #define MS_DYNAMIC_MAP_FUNCTION static inline __attribute__((unused))
#endif

enum { MS_DYNAMIC_ZERO = 127, MS_DYNAMIC_ONE = 255 };

MS_DYNAMIC_MAP_FUNCTION float ms_dynamic_to_f32(uint8_t code) {
  static const float positive[127] = {
      5.5000004e-7f, 3.2500002e-6f, 7.75e-6f,      2.1249998e-5f, 4.375e-5f,    6.625e-5f,     8.875e-5f,
      1.5625001e-4f, 2.6875004e-4f, 3.8125002e-4f, 4.9375003e-4f, 6.062501e-4f, 7.1875006e-4f, 8.3125e-4f,
      9.437501e-4f,  0.0012812499f, 0.00184375f,   0.00240625f,   0.00296875f,  0.0035312497f, 0.00409375f,
      0.0046562497f, 0.0052187503f, 0.00578125f,   0.00634375f,   0.00690625f,  0.00746875f,   0.00803125f,
      0.00859375f,   0.009156249f,  0.00971875f,   0.01140625f,   0.01421875f,  0.01703125f,   0.019843752f,
      0.02265625f,   0.02546875f,   0.028281251f,  0.03109375f,   0.03390625f,  0.036718752f,  0.03953125f,
      0.042343747f,  0.04515625f,   0.04796875f,   0.05078125f,   0.05359375f,  0.05640625f,   0.059218753f,
      0.06203125f,   0.06484375f,   0.067656256f,  0.070468746f,  0.07328125f,  0.07609375f,   0.07890625f,
      0.08171876f,   0.08453125f,   0.08734375f,   0.09015625f,   0.092968754f, 0.09578126f,   0.09859375f,
      0.107031256f,  0.12109375f,   0.13515624f,   0.14921875f,   0.16328125f,  0.17734376f,   0.19140625f,
      0.20546874f,   0.21953125f,   0.23359375f,   0.24765624f,   0.26171875f,  0.27578127f,   0.28984374f,
      0.30390626f,   0.31796873f,   0.33203125f,   0.34609374f,   0.36015624f,  0.37421876f,   0.38828123f,
      0.40234375f,   0.41640624f,   0.43046874f,   0.44453126f,   0.45859373f,  0.47265625f,   0.4867187f,
      0.50078124f,   0.5148437f,    0.5289062f,    0.54296875f,   0.5570313f,   0.5710938f,    0.58515626f,
      0.5992187f,    0.61328125f,   0.6273438f,    0.6414063f,    0.65546876f,  0.6695312f,    0.68359375f,
      0.6976563f,    0.7117188f,    0.72578126f,   0.7398437f,    0.75390625f,  0.7679688f,    0.78203124f,
      0.79609376f,   0.8101562f,    0.82421875f,   0.8382813f,    0.85234374f,  0.86640626f,   0.8804687f,
      0.89453125f,   0.9085938f,    0.92265624f,   0.93671876f,   0.9507812f,   0.96484375f,   0.9789063f,
      0.99296874f,
  };
  if (code == MS_DYNAMIC_ONE) return 1.0f;
  if (code == MS_DYNAMIC_ZERO) return 0.0f;
  return code > MS_DYNAMIC_ZERO ? positive[code - 128] : -positive[126 - code];
}

/* The code of the nearest number; in the middle of two, the lower one. x is between -1 and 1. */
MS_DYNAMIC_MAP_FUNCTION uint8_t ms_f32_to_dynamic(float x) {
  int low = 0, high = MS_DYNAMIC_ONE;
  while (high - low >
         1) { /* the number of `low` is at most x, or it is the first; that of `high` is above, or the last */
    const int middle = (low + high) / 2;
    if (ms_dynamic_to_f32((uint8_t)middle) <= x) low = middle;
    else high = middle;
  }
  const double below = (double)x - (double)ms_dynamic_to_f32((uint8_t)low);
  const double above = (double)ms_dynamic_to_f32((uint8_t)high) - (double)x;
  return (uint8_t)(above < below ? high : low);
}

#endif
