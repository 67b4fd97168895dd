/* storage.c - which records stored parameters are made of (storage.h). */
#include "kernels/formats/storage.h"

#include "base/numbers/dtype.h"
#include "base/error.h"
#include "kernels/formats/storage_code.h"

static int64_t bf16_bytes(int64_t elements) { return 2 * elements; }

/* The longest records of each dtype, whose elements are powers of two; the bytes of a record, and the byte from which
 * late scales are (ms_storage.late). */
static const struct {
  int dtype;
  int64_t elements, block;
  int64_t (*bytes)(int64_t elements), (*late)(int64_t elements);
} longest[] = {
    {MS_BF16, 64, 0, bf16_bytes, NULL},
    {MS_I8, 4 * MS_STORED_BLOCK_I8, MS_STORED_BLOCK_I8, ms_i8_record, NULL},
    {MS_NF4, MS_STORED_MOST, MS_STORED_BLOCK_NF4, ms_nf4_record, ms_nf4_scale_codes},
};

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
  *storage = (ms_storage){.dtype = dtype,
                          .elements = elements,
                          .words = longest[row].bytes(elements) / 4,
                          .block = longest[row].block,
                          .late = longest[row].late ? longest[row].late(elements) : 0};
  return MS_OK;
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
