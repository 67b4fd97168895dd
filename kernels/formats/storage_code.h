/* storage_code.h - the places in a record of storage.h, and how a scale of nf4 reads back. Shared by the CPU and CUDA,
 * which therefore give the same bits. */
#ifndef MS_KERNELS_STORAGE_CODE_H
#define MS_KERNELS_STORAGE_CODE_H

#include "kernels/formats/dynamic_map.h"
#include "kernels/formats/quantise_code.h"
#include "kernels/formats/storage.h"

/* Bytes from the start of a record of so many elements: of i8, its scales; of nf4, the codes of its scales, their
 * scale, and behind that the offset. */
MS_QUANTISE_FUNCTION int64_t ms_i8_scales(int64_t elements) { return elements; }
MS_QUANTISE_FUNCTION int64_t ms_nf4_scale_codes(int64_t elements) { return elements / 2; }
MS_QUANTISE_FUNCTION int64_t ms_nf4_scale(int64_t elements) {
  return (elements / 2 + elements / MS_STORED_BLOCK_NF4 + 3) / 4 * 4;
}
MS_QUANTISE_FUNCTION int64_t ms_nf4_offset(int64_t elements) { return ms_nf4_scale(elements) + 4; }

/* Bytes of a record: records begin at multiples of 16. */
MS_QUANTISE_FUNCTION int64_t ms_i8_record(int64_t elements) {
  return (elements + elements / MS_STORED_BLOCK_I8 * 4 + 15) / 16 * 16;
}
MS_QUANTISE_FUNCTION int64_t ms_nf4_record(int64_t elements) { return (ms_nf4_offset(elements) + 4 + 15) / 16 * 16; }

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
