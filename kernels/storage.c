/* storage.c - which records stored parameters are made of (storage.h). */
#include "kernels/storage.h"

#include "base/error.h"
#include "kernels/storage_code.h"

static const ms_storage storages[] = {
    {MS_BF16, 64, 64 * 2 / 4},
    {MS_I8, 4 * MS_STORED_BLOCK_I8, MS_I8_RECORD / 4},
    {MS_NF4, MS_STORED_MOST, MS_NF4_RECORD / 4},
};

const ms_storage *ms_storage_of(int dtype) {
  for (size_t i = 0; i < sizeof storages / sizeof *storages; i++)
    if (storages[i].dtype == dtype) return &storages[i];
  return NULL;
}

const char *ms_storage_list(void) { return "bf16, i8 or nf4"; }

int64_t ms_storage_words(int dtype, int64_t n) {
  const ms_storage *s = ms_storage_of(dtype);
  return (n + s->elements - 1) / s->elements * s->words;
}

int ms_storage_prepare(ms_kernel_call *call) {
  const int storage = (int)call->attrs.i[0];
  if (!ms_storage_of(storage))
    return MS_FAIL(MS_EDTYPE, "dequantise: parameters cannot be stored in %s; they can in %s", ms_dtype_name(storage),
                   ms_storage_list());
  if (ms_numel(&call->in[0]) >= ms_storage_words(storage, ms_numel(&call->out[0]))) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "dequantise: %lld words have fewer elements than %lld", (long long)ms_numel(&call->in[0]),
                 (long long)ms_numel(&call->out[0]));
}
