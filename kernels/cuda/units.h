/* units.h - for kernels that only move bytes: the largest unit of 16, 8, 4, 2 or 1 bytes that divides every length and
 * address. */
#ifndef MS_KERNELS_CUDA_UNITS_H
#define MS_KERNELS_CUDA_UNITS_H

#include "kernels/cuda/launch.h"

/* `bits` is the bitwise or of all lengths and addresses. */
static inline int ms_unit_of(uint64_t bits) { return bits % 16 == 0 ? 16 : static_cast<int>(bits & -bits); }

/* Evaluates an expression with U as the type of a unit of that many bytes. */
#define MS_CUDA_UNITS(bytes, U, ...) \
  ((bytes) == 16 ? [&] { using U = uint4; return __VA_ARGS__; }()                                                      \
   : (bytes) == 8 ? [&] { using U = uint2; return __VA_ARGS__; }()                                                     \
   : (bytes) == 4 ? [&] { using U = uint32_t; return __VA_ARGS__; }()                                                  \
   : (bytes) == 2 ? [&] { using U = uint16_t; return __VA_ARGS__; }()                                                  \
                  : [&] { using U = uint8_t; return __VA_ARGS__; }())

#endif
