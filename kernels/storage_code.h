/* storage_code.h - the places in a record of storage.h, and how a scale of nf4 reads back. Shared by the CPU and CUDA,
 * which therefore give the same bits. */
#ifndef MS_KERNELS_STORAGE_CODE_H
#define MS_KERNELS_STORAGE_CODE_H

#include "kernels/dynamic_map.h"
#include "kernels/quantise_code.h"
#include "kernels/storage.h"

/* Bytes from the start of a record, and of a record. */
enum {
  MS_I8_SCALES = 1024,
  MS_I8_RECORD = MS_I8_SCALES + 4 * 4,
  MS_NF4_SCALE_CODES = MS_STORED_MOST / 2,
  MS_NF4_SCALE = MS_NF4_SCALE_CODES + MS_STORED_SCALES,
  MS_NF4_OFFSET = MS_NF4_SCALE + 4,
  MS_NF4_RECORD = MS_NF4_OFFSET + 4 + 8 /* so that records begin at multiples of 16 bytes */
};

/* map[code] * scale + offset, rounded after each step: the compiler must not fuse them. */
MS_QUANTISE_FUNCTION float ms_restored_scale(uint8_t code, float scale, float offset) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(__fmul_rn(ms_dynamic_to_f32(code), scale), offset);
#else
  const volatile float product = ms_dynamic_to_f32(code) * scale;
  return product + offset;
#endif
}

#endif
