/* storage_code.h - the places in a record of storage.h, and how a mapped scale reads back. Shared by the CPU and
 * CUDA, which therefore give the same bits. */
#ifndef MS_KERNELS_STORAGE_CODE_H
#define MS_KERNELS_STORAGE_CODE_H

#include "kernels/formats/dynamic_map.h"
#include "kernels/formats/quantise_code.h"
#include "kernels/formats/storage.h"

/* Bytes from the start of a record of so many elements: its scales, after the codes; and after so many mapped ones
 * their f32 scale, then the offset. */
MS_QUANTISE_FUNCTION int64_t ms_record_scales(int dtype, int64_t elements) {
  return ms_code_is_packed(dtype) ? elements / 2 : elements;
}
MS_QUANTISE_FUNCTION int64_t ms_record_map(int64_t scales, int64_t blocks) { return (scales + blocks + 3) / 4 * 4; }

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
