/* storage.c - which records stored parameters are made of (storage.h). */
#include "kernels/formats/storage.h"

#include "base/numbers/dtype.h"
#include "base/error.h"
#include "kernels/formats/storage_code.h"

/* The longest records of each dtype, whose elements are powers of two. */
static const struct {
  int dtype;
  int64_t elements, block;
  int scales;
} longest[] = {
#define MS_RECORDS(NAME, elements, block, scales) {MS_##NAME, elements, block, MS_SCALES_##scales},
#include "base/numbers/formats.def"
};

#define MS_RECORDS(NAME, elements, block, scales) \
  _Static_assert((elements) <= MS_MAX_STORED && (block) <= MS_STORED_BLOCK, "buffers have room for " #NAME);
#include "base/numbers/formats.def"

enum { STORAGES = sizeof longest / sizeof *longest };

static int row_of(int dtype) {
  for (int i = 0; i < STORAGES; i++)
    if (longest[i].dtype == dtype) return i;
  return -1;
}

int ms_storage_has(int dtype) { return row_of(dtype) >= 0; }

int ms_storage_is_coded(int dtype) { return ms_storage_has(dtype) && longest[row_of(dtype)].block; }

int ms_storage_find(int dtype, int64_t elements, ms_storage *storage) {
  char known[MS_DTYPE_LIST];
  const int row = row_of(dtype);
  if (row < 0)
    return MS_FAIL(MS_EDTYPE, "parameters cannot be stored in %s; they can in %s", ms_dtype_name(dtype),
                   ms_dtype_list(MS_DTYPE_STORED, known));
  const int64_t most = longest[row].elements, least = longest[row].block ? longest[row].block : most;
  if (!elements) elements = most;
  if (elements < least || elements > most || elements & (elements - 1))
    return MS_FAIL(MS_EINVAL, "records of %s have a power of two of elements, %lld to %lld, not %lld",
                   ms_dtype_name(dtype), (long long)least, (long long)most, (long long)elements);
  ms_storage s = {.dtype = dtype, .elements = elements, .block = longest[row].block, .group = most};
  MS_TRY(ms_dtype_bytes(dtype, elements, &s.scales));
  const int64_t blocks = s.block ? elements / s.block : 0;
  if (longest[row].scales == MS_SCALES_MAPPED) s.late = ms_record_map(s.scales, blocks);
  const int64_t end = s.late ? s.late + 2 * (int64_t)sizeof(float) : s.scales + blocks * (int64_t)sizeof(float);
  s.words = (end + 15) / 16 * 4; /* records begin at multiples of 16 bytes */
  *storage = s;
  return MS_OK;
}

const char *ms_storage_fitting(int64_t run, char text[MS_DTYPE_LIST]) {
  unsigned fitting = 0;
  for (int i = 0; i < STORAGES; i++)
    if (!longest[i].block || run % longest[i].block == 0) fitting |= 1u << longest[i].dtype;
  return ms_dtype_names(fitting, text);
}

int ms_storage_of_runs(int dtype, int64_t run, ms_storage *storage) {
  MS_TRY(ms_storage_find(dtype, 0, storage));
  const int64_t block = storage->block;
  int64_t elements = storage->elements;
  if (!run || !block) return MS_OK;
  if (run < 0 || run % block)
    return MS_FAIL(MS_EUNSUPPORTED, "runs of %lld elements would cut blocks of %lld elements of %s", (long long)run,
                   (long long)block, ms_dtype_name(dtype));
  while (run % elements) elements /= 2;
  return ms_storage_find(dtype, elements, storage);
}

int64_t ms_storage_words(const ms_storage *storage, int64_t n) {
  return (n + storage->elements - 1) / storage->elements * storage->words;
}

int ms_storage_prepare(ms_kernel_call *call) {
  ms_storage storage;
  MS_TRY(ms_storage_find((int)call->attrs.stored.storage, call->attrs.stored.record, &storage));
  if (ms_numel(&call->in[0]) >= ms_storage_words(&storage, ms_numel(&call->out[0]))) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "dequantise: %lld words have fewer elements than %lld", (long long)ms_numel(&call->in[0]),
                 (long long)ms_numel(&call->out[0]));
}
