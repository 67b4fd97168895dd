/* dequantise.c - the elements of a stored parameter (kernels/formats/storage.h), before a kernel reads them. Each part
 * of the range decodes blocks into a buffer that stays in L1. */
#include "kernels/cpu/block.h"

#include "kernels/cpu/parallel.h"
#include "kernels/formats/storage.h"

MS_CLONES static void part_of(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const int to = call->out[0].dtype;
  ms_storage storage;
  if (ms_storage_find((int)call->attrs.stored.storage, call->attrs.stored.record, &storage))
    return; /* prepare has found it */
  MS_BLOCK_BUFFER(buffer);
  for (int64_t first = begin, n; first < end; first += n) {
    n = end - first < MS_BLOCK - first % MS_BLOCK ? end - first : MS_BLOCK - first % MS_BLOCK;
    float *x = ms_block_out(call->out_data[0], to, first, buffer);
    ms_storage_decode(&storage, call->in_data[0], first, n, x);
    ms_block_done(call->out_data[0], to, first, n, buffer);
  }
}

static int run(const ms_kernel_call *call) { return ms_run_elements(call, ms_numel(&call->out[0]), part_of); }

const ms_kernel ms_cpu_dequantise_stored = {.prepare = ms_storage_prepare, .run = run};
