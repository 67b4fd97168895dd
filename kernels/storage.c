/* storage.c - which records stored parameters are made of (storage.h). */
#include "kernels/storage.h"

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/storage_code.h"

static const ms_storage storages[] = {
    {MS_BF16, 64, 64 * 2 / 4, 0},
    {MS_I8, 4 * MS_STORED_BLOCK_I8, MS_I8_RECORD / 4, MS_STORED_BLOCK_I8},
    {MS_NF4, MS_STORED_MOST, MS_NF4_RECORD / 4, MS_STORED_BLOCK_NF4},
};

const ms_storage *ms_storage_of(int dtype) {
  for (size_t i = 0; i < sizeof storages / sizeof *storages; i++)
    if (storages[i].dtype == dtype) return &storages[i];
  return NULL;
}

int ms_storage_find(int dtype, const ms_storage **storage) {
  char known[MS_DTYPE_LIST];
  if ((*storage = ms_storage_of(dtype))) return MS_OK;
  return MS_FAIL(MS_EDTYPE, "parameters cannot be stored in %s; they can in %s", ms_dtype_name(dtype),
                 ms_dtype_list(MS_DTYPE_STORED, known));
}

int ms_storage_is_coded(int dtype) {
  const ms_storage *s = ms_storage_of(dtype);
  return s && s->block;
}

int64_t ms_storage_words(int dtype, int64_t n) {
  const ms_storage *s = ms_storage_of(dtype);
  return (n + s->elements - 1) / s->elements * s->words;
}

int ms_storage_prepare(ms_kernel_call *call) {
  const ms_storage *storage;
  MS_TRY(ms_storage_find((int)call->attrs.i[0], &storage));
  if (ms_numel(&call->in[0]) >= ms_storage_words(storage->dtype, ms_numel(&call->out[0]))) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "dequantise: %lld words have fewer elements than %lld", (long long)ms_numel(&call->in[0]),
                 (long long)ms_numel(&call->out[0]));
}
