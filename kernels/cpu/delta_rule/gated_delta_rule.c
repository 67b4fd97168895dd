/* gated_delta_rule.c - the gated delta rule by the formulas of kernels/gated_delta_rule.h, in f32; its gradient is in
 * gated_delta_rule_backward.c.
 *
 * Threads divide the rows of the batch and the key heads, and take the value heads of each in order, so the bits do not
 * depend on their number.
 */
#include "kernels/cpu/delta_rule/delta_chunk.h"

#include "base/error.h"
#include "kernels/cpu/parallel.h"

enum { C = MS_DELTA_CHUNK, LINE = 16 };

/* Places the arrays from `at` on; returns how many floats they take. */
static int64_t place(const ms_delta_rule *r, float *at, ms_delta_scratch *s) {
  const int64_t square = C * C, keys = C * r->d, values = C * r->e, whole = r->d * r->e;
  const int64_t grows = r->backward ? 1 : 0, widest = r->d > r->e ? r->d : r->e;
  struct {
    float **array;
    int64_t n;
  } arrays[] = {{&s->q, keys},
                {&s->k, keys},
                {&s->weighted, keys},
                {&s->x, values},
                {&s->u, values},
                {&s->row, widest},
                {&s->m, square},
                {&s->p, square},
                {&s->c, C},
                {&s->beta, C},
                {&s->decay, C},
                {&s->turned, grows * whole > C * widest ? whole : C * widest},
                {&s->state, whole},
                {&s->dy, grows * values},
                {&s->z, grows * values},
                {&s->dm, grows * square},
                {&s->dp, grows * square},
                {&s->dc, grows * C},
                {&s->dbeta, grows * C},
                {&s->dstate, grows * whole},
                {&s->states, grows * ms_delta_chunks(r) * whole},
                {&s->dq, grows * r->t * r->d},
                {&s->dk, grows * r->t * r->d}};
  int64_t used = 0;
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
    *arrays[i].array = at ? at + used : NULL;
    used += (arrays[i].n + LINE - 1) / LINE * LINE;
  }
  return used;
}

static ms_delta_rule rule_of(const ms_kernel_call *call) {
  return ms_delta_rule_of(call->op, &call->attrs, call->inputs, call->in);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static void write_results(const ms_kernel_call *call, const ms_delta_rule *r, const ms_delta_chunk *at,
                          const ms_delta_scratch *s) {
  const int dtype = call->out[0].dtype;
  for (int64_t i = 0; i < at->n; i++) {
    const int64_t to = (ms_delta_row_at(r, at, i) * r->heads + at->h) * r->e;
    float *y = ms_block_out(call->out_data[0], dtype, to, s->row);
    ms_block_fill(y, 0.0f, r->e);
    ms_delta_add_rows(y, r->scale * ms_exp(s->c[i]), s->q + i * r->d, 1, s->state, r->d, r->e);
    ms_delta_add_rows(y, 1.0f, s->p + i * C, 1, s->u, i + 1, r->e);
    ms_block_done(call->out_data[0], dtype, to, r->e, y);
  }
}

/* The state before a row's first position. */
static void begin_state(const ms_kernel_call *call, const ms_delta_rule *r, int64_t b, int64_t h, float *state) {
  const int64_t n = r->d * r->e;
  if (r->begins >= 0)
    memcpy(state, (const float *)call->in_data[r->begins] + (b * r->heads + h) * n, sizeof(float) * (size_t)n);
  else ms_block_fill(state, 0.0f, n);
}

static void forward_of_head(const ms_kernel_call *call, const ms_delta_rule *r, int64_t b, int64_t h,
                            const ms_delta_scratch *s) {
  const int64_t n = r->d * r->e;
  begin_state(call, r, b, h, s->state);
  for (int64_t first = 0, end; first < r->t; first = end) {
    end = ms_delta_end_of_chunk(call, r, b, first);
    const ms_delta_chunk at = {b, h, h / (r->heads / r->groups), first, end - first};
    if (ms_delta_begins_document(call, r, b, first)) ms_block_fill(s->state, 0.0f, n);
    ms_delta_load(call, r, &at, s);
    ms_delta_solve(r, &at, s);
    write_results(call, r, &at, s);
    ms_delta_update_state(r, &at, s);
  }
  memcpy((float *)call->out_data[1] + (b * r->heads + h) * n, s->state, sizeof(float) * (size_t)n);
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

/* Items: key heads of the rows of the batch. */
static void run_items(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  const ms_delta_rule r = rule_of(call);
  const int64_t shared = r.heads / (r.groups ? r.groups : 1);
  ms_delta_scratch s;
  place(&r, (float *)call->workspace + part * place(&r, NULL, &s), &s);
  for (int64_t item = begin; item < end; item++) {
    const int64_t b = item / r.groups, group = item % r.groups;
    if (r.backward) {
      ms_block_fill(s.dq, 0.0f, r.t * r.d);
      ms_block_fill(s.dk, 0.0f, r.t * r.d);
    }
    for (int64_t h = group * shared; h < (group + 1) * shared; h++)
      if (r.backward) ms_delta_backward_of_head(call, &r, b, h, &s);
      else forward_of_head(call, &r, b, h, &s);
    if (r.backward) ms_delta_write_keys(call, &r, b, group, &s);
  }
}

/* Arithmetic decides: a position's work is that of many of its bytes. */
static int parts_of(const ms_kernel_call *call, const ms_delta_rule *r) {
  return ms_part_count(call, r->batch * r->groups, ms_call_bytes(call) * (r->d + r->e) / 4);
}

static int prepare(ms_kernel_call *call) {
  const ms_delta_rule r = rule_of(call);
  ms_delta_scratch s;
  call->workspace_bytes = parts_of(call, &r) * place(&r, NULL, &s) * (int64_t)sizeof(float);
  return MS_OK;
}

static int run(const ms_kernel_call *call) {
  const ms_delta_rule r = rule_of(call);
  if (r.batch * r.heads > 0) ms_run_parts(call, parts_of(call, &r), r.batch * r.groups, 1, run_items);
  return MS_OK;
}

const ms_kernel ms_cpu_gated_delta_rule = {.prepare = prepare, .run = run};
