/* units.h - kernels that only move bytes: they copy units of 16, 8, 4, 2 or 1 bytes, the largest that divides every
 * length and address. */
#ifndef MS_KERNELS_CUDA_UNITS_H
#define MS_KERNELS_CUDA_UNITS_H

#include "kernels/cuda/launch.h"

/* The largest unit that divides `bits`, the bitwise or of all lengths and addresses. */
static inline int ms_unit_of(uint64_t bits) { return bits % 16 == 0 ? 16 : static_cast<int>(bits & -bits); }

/* Evaluates expression with U the type of a unit of that many bytes. */
#define MS_CUDA_UNITS(bytes, U, ...) \
  ((bytes) == 16 ? [&] { using U = uint4; return __VA_ARGS__; }()                                                      \
   : (bytes) == 8 ? [&] { using U = uint2; return __VA_ARGS__; }()                                                     \
   : (bytes) == 4 ? [&] { using U = uint32_t; return __VA_ARGS__; }()                                                  \
   : (bytes) == 2 ? [&] { using U = uint16_t; return __VA_ARGS__; }()                                                  \
                  : [&] { using U = uint8_t; return __VA_ARGS__; }())

#endif
