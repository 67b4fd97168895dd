/* storage.h - how parameters that do not train are kept in few bits.
 *
 * A stored parameter is an array of records, each of so many consecutive elements with the scales that belong to them.
 * A record depends on nothing outside it, so any rank can keep, send and read any range of records. Records consist of
 * 32-bit words, in which ranges of them are counted, gathered and saved. Chunks of a segment never cut a record.
 *
 * A record has the elements, or their codes, then the scales of its blocks (MS_SCALE_BLOCK of quantise.h). How many
 * elements a record and a block have, and which scales, are columns of MS_RECORDS (base/numbers/formats.def):
 *
 *   NONE    elements are numbers, not codes
 *   F32     an f32 for each block
 *   MAPPED  a code of 8 bits for each block, then a scale of these and an offset, f32
 *
 * The ranks of a tensor dimension each have runs of the elements of a parameter that they divide. Where such a run does
 * not consist of whole records, those of the parameter on every mesh of that size are shorter: a half, a quarter, ...
 * of the elements, down to one block. Blocks, and the groups of mapped scales, stay those of the whole parameter, so
 * the numbers that records mean are the same on every mesh; short records of one group repeat its scale.
 * Records of different lengths are made of each other without loss (ms_storage_convert).
 *
 * Mapped scales are quantised themselves, as QLoRA does and bitsandbytes (quantize_4bit with compress_statistics):
 * offset is the mean of the scales of the whole parameter; what is left of a group of scales, those of a record of the
 * longest kind, divided by its largest magnitude, has codes of the dynamic map (dynamic_map.h). A scale reads back as
 * map[code] * scale + offset, in f32, rounded after each step. The elements' codes are those of the scales before that.
 * So such a parameter is complete only when the mean is known: ms_storage_encode leaves the scales to
 * ms_storage_set_scales.
 */
#ifndef MS_KERNELS_STORAGE_H
#define MS_KERNELS_STORAGE_H

#include "base/numbers/dtype.h"
#include "kernels/op.h"

/* The most elements of a block and of a record. */
enum { MS_STORED_BLOCK = 256, MS_MAX_STORED = 16384 };
enum ms_storage_scales { MS_SCALES_NONE, MS_SCALES_F32, MS_SCALES_MAPPED };

typedef struct ms_storage {
  int dtype;
  int64_t elements, words; /* of a record */
  int64_t block;           /* elements of a scale; 0: the elements are numbers, not codes */
  int64_t group;           /* elements of the longest record, whose mapped scales are a group */
  int64_t scales;          /* the byte of a record from which its scales are */
  /* The byte of the scale and the offset of mapped scales, which are late: they need those of the whole parameter, so
   * ms_storage_set_scales writes them, and ms_storage_encode others. 0: they are not mapped. */
  int64_t late;
} ms_storage;

/* 1 if parameters can be stored in this dtype (MS_DTYPE_STORED of base/numbers/dtype.h). */
int ms_storage_has(int dtype);
/* 1 for dtypes in which parameters are kept as codes with scales. */
int ms_storage_is_coded(int dtype);
/* Records of so many elements; 0: of as many as the table says. MS_EDTYPE if parameters cannot be stored in the dtype,
 * MS_EINVAL if its records cannot have this length. */
int ms_storage_find(int dtype, int64_t elements, ms_storage *storage);
/* The longest records of which runs of so many elements consist; 0: the parameter is not divided. MS_EUNSUPPORTED if a
 * run would cut a block. */
int ms_storage_of_runs(int dtype, int64_t run, ms_storage *storage);
/* Lists the dtypes whose blocks such runs do not cut: "bf16 or i8"; returns text. */
const char *ms_storage_fitting(int64_t run, char text[MS_DTYPE_LIST]);
/* Words of the records of n elements. */
int64_t ms_storage_words(const ms_storage *storage, int64_t n);

/* Makes a record of n elements; the rest of it is zero. With late scales: writes those of all its blocks to scales,
 * and only the codes of the elements. */
int ms_storage_encode(const ms_storage *storage, const float *x, int64_t n, void *record, float *scales);
/* Completes a record of late scales with those of its first n blocks, the parameter's offset, and the largest magnitude
 * that is left of the scales of its group. */
void ms_storage_set_scales(const ms_storage *storage, void *record, const float *scales, int64_t n, float offset,
                           uint32_t most);
/* The bits of the largest magnitude that is left of n late scales: as integers, these are in the order of numbers. */
uint32_t ms_storage_max(const float *scales, int64_t n, float offset);
/* Elements [first, first + n) of an array of records. */
void ms_storage_decode(const ms_storage *storage, const void *records, int64_t first, int64_t n, float *x);
/* Copies n elements, whole blocks or the end of a parameter, with their scales from element `first` of an array of
 * records to element `at` of one with records of another length. Mapped scales of the longer kind are one group. */
void ms_storage_convert(const ms_storage *from, const void *records, int64_t first, int64_t n, const ms_storage *to,
                        void *out, int64_t at);

/* The prepare of the op dequantise, on any device. */
int ms_storage_prepare(ms_kernel_call *call);

#endif
