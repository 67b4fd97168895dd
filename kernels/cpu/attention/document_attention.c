/* document_attention.c - causal attention in which no query sees keys before the beginning of its document.
 *
 * Documents are contiguous and do not see each other, so each is an independent causal attention on a part of the
 * tensors. attention.c's code computes it; this file finds the documents and divides their blocks among threads.
 */
#include "kernels/cpu/attention/attention.h"

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "kernels/cpu/parallel.h"

enum { TOKENS_FORWARD = 3, TOKENS_BACKWARD = 6, LSE = 4 };

typedef struct documents {
  ms_attention whole; /* the sizes of the whole call */
  const int32_t *tokens;
} documents;

static documents documents_of(const ms_kernel_call *call) {
  documents d = {.whole = ms_attention_of(call)};
  d.tokens = call->in_data[d.whole.options.backward ? TOKENS_BACKWARD : TOKENS_FORWARD];
  return d;
}

/* The attention call of one document of row `row` of the batch. */
static ms_kernel_call call_of_document(const ms_kernel_call *call, const documents *d, const ms_attention *a,
                                       int64_t row) {
  ms_kernel_call part = *call;
  const int64_t bytes = ms_dtype_size(a->dtype);
  const int64_t queries = (row * d->whole.t + a->first_query) * a->heads * bytes;
  const int64_t keys = (row * d->whole.s + a->first_key) * a->groups * bytes;
  const int64_t q = queries * a->d, o = queries * a->e, k = keys * a->d, v = keys * a->e;
  const int64_t lse = (row * a->heads * a->lse_row + a->first_query) * (int64_t)sizeof(float);
  const int back = d->whole.options.backward;
  const int64_t in[6] = {q, k, v, o, lse, o}, out[3] = {back ? q : o, back ? k : lse, v};
  for (int i = 0; i < (back ? 6 : 3); i++) part.in_data[i] = (const char *)call->in_data[i] + in[i];
  for (int i = 0; i < call->outputs; i++) part.out_data[i] = (char *)call->out_data[i] + out[i];
  return part;
}

static int64_t items_of(const documents *d, const ms_attention *a) {
  return d->whole.options.backward ? a->groups : a->heads * ms_query_blocks(a);
}

/* The sizes of the document that begins at position `first`: all its keys, and those of its queries that are here. */
static ms_attention document_at(const documents *d, int64_t row, int64_t first) {
  ms_attention a = d->whole;
  int64_t end = first + 1;
  while (end < a.s && d->tokens[row * a.s + end] != d->whole.options.start) end++;
  a.batch = 1;
  a.s = end - first;
  a.first_key = first;
  a.first_query = ms_part_before(&a.options.part, first);
  a.t = ms_part_before(&a.options.part, end) - a.first_query;
  return a;
}

static int64_t all_items(const documents *d) {
  int64_t items = 0;
  for (int64_t row = 0; row < d->whole.batch; row++)
    for (int64_t first = 0; first < d->whole.s;) {
      const ms_attention a = document_at(d, row, first);
      items += items_of(d, &a);
      first += a.s;
    }
  return items;
}

static int parts_of(const ms_kernel_call *call, const documents *d) {
  return ms_part_count(call, d->whole.batch * items_of(d, &d->whole), ms_call_bytes(call));
}

static ms_attention_part code_of(const documents *d) {
  const ms_attention_code code = ms_attention_choose(&d->whole);
  return d->whole.options.backward ? code.backward : code.forward;
}

static int prepare(ms_kernel_call *call) {
  MS_TRY(ms_attention_check(call));
  const documents d = documents_of(call);
  call->workspace_bytes = parts_of(call, &d) * code_of(&d).scratch_bytes(&d.whole);
  return MS_OK;
}

static void run_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  const documents d = documents_of(call);
  const ms_attention_part code = code_of(&d);
  void *scratch = (char *)call->workspace + part * code.scratch_bytes(&d.whole);
  int64_t item = 0;
  for (int64_t row = 0; row < d.whole.batch && item < end; row++)
    for (int64_t first = 0; first < d.whole.s && item < end;) {
      const ms_attention a = document_at(&d, row, first);
      const int64_t items = items_of(&d, &a), from = begin > item ? begin - item : 0;
      const int64_t to = end - item < items ? end - item : items;
      if (from < to) {
        const ms_kernel_call document = call_of_document(call, &d, &a, row);
        code.run(&a, &document, from, to, scratch);
      }
      item += items;
      first += a.s;
    }
}

static int run(const ms_kernel_call *call) {
  const documents d = documents_of(call);
  ms_run_parts(call, parts_of(call, &d), all_items(&d), 1, run_part);
  return MS_OK;
}

const ms_kernel ms_cpu_document_attention = {.prepare = prepare, .run = run};
