/* matmul.c - the matrix product: reads the shapes and chooses the implementation. MOONSHARD_MATMUL selects it:
 *
 *   auto     plain for small products, split for large ones if there is a bf16 matrix unit, and otherwise oneDNN
 *   onednn   always oneDNN, so f32 products use f32 arithmetic
 *   split    f32 on the bf16 matrix unit for products of any size, for tests
 *   plain    always our own loops, as a reference and for the thread sanitizer, which cannot instrument oneDNN
 */
#include "kernels/cpu/matmul/matmul.h"

#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/error.h"
#include "kernels/cpu/parallel.h"

typedef enum implementation { ONEDNN, SPLIT, PLAIN } implementation;

typedef struct prepared_product {
  ms_product product;
  implementation by;
  void *onednn; /* NULL unless `by` is ONEDNN */
} prepared_product;

static int choose(const ms_product *product, implementation *by) {
  const char *choice = ms_env_string("MOONSHARD_MATMUL", "auto");
  const int by_size = !strcmp(choice, "auto"), split = !strcmp(choice, "split"), plain = !strcmp(choice, "plain");
  if (!by_size && !split && !plain && strcmp(choice, "onednn"))
    return MS_FAIL(MS_EINVAL, "MOONSHARD_MATMUL is \"%s\"; it must be auto, onednn, split or plain", choice);
  *by = plain || (by_size && ms_plain_suits(product)) ? PLAIN : ONEDNN;
  if ((by_size && ms_split_suits(product)) || (split && ms_split_takes(product))) *by = SPLIT;
  return MS_OK;
}

static int prepare(ms_kernel_call *call) {
  ms_product product;
  implementation by = PLAIN;
  MS_TRY(ms_product_of(call, &product));
  MS_TRY(choose(&product, &by));
  prepared_product *prepared = ms_calloc(1, sizeof *prepared);
  if (!prepared) return MS_ENOMEM;
  prepared->product = product;
  prepared->by = by;
  if (by == PLAIN) call->workspace_bytes = ms_plain_workspace(&product, call->threads);
  if (by == SPLIT) call->workspace_bytes = ms_split_workspace(&product, call->threads);
  if (by == ONEDNN && ms_onednn_prepare(call, &product, &prepared->onednn)) {
    free(prepared);
    return ms_error_code();
  }
  call->prepared = prepared;
  return MS_OK;
}

static int run(const ms_kernel_call *call) {
  const prepared_product *prepared = call->prepared;
  if (prepared->by == ONEDNN) return ms_onednn_run(call, prepared->onednn);
  if (prepared->by == SPLIT) ms_split_run(call, &prepared->product);
  else ms_plain_run(call, &prepared->product);
  return MS_OK;
}

static void release(void *data) {
  prepared_product *prepared = data;
  if (prepared) ms_onednn_release(prepared->onednn);
  free(prepared);
}

const ms_kernel ms_cpu_matmul = {.prepare = prepare, .run = run, .release = release};

/* ---- op(a) op(b) + x --------------------------------------------------------------------------------------------- */

static void copy_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  if (begin < end)
    memcpy((char *)call->out_data[0] + begin, (const char *)call->in_data[2] + begin, (size_t)(end - begin));
}

/* The product is added in the result's memory, which is that of x unless something reads x later. */
static int run_add(const ms_kernel_call *call) {
  if (call->out_data[0] != call->in_data[2])
    MS_TRY(ms_run_elements(call, ms_numel(&call->out[0]) * ms_dtype_size(call->out[0].dtype), copy_part));
  return run(call);
}

const ms_kernel ms_cpu_matmul_add = {.prepare = prepare, .run = run_add, .release = release, .in_place = MS_OVER(0, 2)};
