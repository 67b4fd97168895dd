/* verify_reuse.c - the proof of reuse: two buffers that share bytes are not in use at the same time, in program order.
** Across ranks that is the order they run in if the same ranks gather into both, and only then: ranks of different groups
** do not wait for each other, so what they gather into never shares bytes at all.
**
** Buffers come in the order in which they begin, so of all that had a piece of bytes before, only the latest can still
** be in use.
*/
#include "plan/verify.h"

#include <stdlib.h>

static int share_bytes(const ms_verifier *v, const ms_span *x, const ms_span *y) {
  const ms_buffer *first = &v->plan->buffer[x->buffer], *second = &v->plan->buffer[y->buffer];
  return MS_FAIL(MS_ERACE, "phase %s: buffers %d (%s) and %d (%s) share bytes of arena %s and are in use at once",
                 ms_phase_name(v->phase_id), x->buffer, first->label, y->buffer, second->label,
                 ms_arena_name(first->arena));
}

static int check_place(const ms_verifier *v, const ms_buffer *b, int buffer) {
  if (b->offset >= 0 && b->offset + b->bytes <= v->plan->arena_bytes[b->arena]) return MS_OK;
  return MS_FAIL(MS_ERACE, "phase %s: buffer %d (%s) has bytes [%lld, %lld), outside arena %s of %lld bytes",
                 ms_phase_name(v->phase_id), buffer, b->label, (long long)b->offset, (long long)(b->offset + b->bytes),
                 ms_arena_name(b->arena), (long long)v->plan->arena_bytes[b->arena]);
}

/* Sorts the spans that have bytes by when they begin: a counting sort over the program. count: [instructions + 2]. Returns
** how many they are. */
static int sort_spans(const ms_verifier *v, int *count, const ms_span **sorted) {
  int used = 0;
  for (int b = 0; b < v->plan->buffers; b++)
    if (v->span[b].first >= 0 && v->plan->buffer[b].bytes > 0) count[v->span[b].first + 1]++;
  for (int i = 0; i <= v->phase->n; i++) count[i + 1] += count[i];
  for (int b = 0; b < v->plan->buffers; b++) {
    if (v->span[b].first < 0 || v->plan->buffer[b].bytes <= 0) continue;
    sorted[count[v->span[b].first]++] = &v->span[b];
    used++;
  }
  return used;
}

static int are_apart(const ms_verifier *v, const ms_span *earlier, const ms_span *later) {
  const ms_buffer *buffer = v->plan->buffer;
  return earlier->last < later->first && buffer[earlier->buffer].ranks == buffer[later->buffer].ranks;
}

/* user: [pieces] the latest that had each. */
static int check_spans(const ms_verifier *v, const ms_span *const *span, const ms_range *range, int n,
                       const ms_span **user) {
  for (int i = 0; i < n; i++) {
    for (int64_t k = range[i].begin; k < range[i].end; k++) {
      if (user[k] && !are_apart(v, user[k], span[i])) return share_bytes(v, user[k], span[i]);
      user[k] = span[i];
    }
  }
  return MS_OK;
}

static int check_all(const ms_verifier *v, const ms_span *const *span, ms_range *range, int n) {
  int64_t *byte = NULL;
  int pieces;
  for (int i = 0; i < n; i++) {
    const ms_buffer *b = &v->plan->buffer[span[i]->buffer];
    MS_TRY(check_place(v, b, span[i]->buffer));
    range[i].begin = v->base[b->arena] + b->offset;
    range[i].end = range[i].begin + b->bytes;
  }
  MS_TRY(ms_cut_intervals(range, n, &byte, &pieces));
  free(byte);
  const ms_span **user = ms_calloc(pieces, sizeof *user);
  int rc = user ? check_spans(v, span, range, n, user) : MS_ENOMEM;
  free(user);
  return rc;
}

int ms_verify_reuse(const ms_verifier *v) {
  int *count = ms_calloc(v->phase->n + 2, sizeof *count);
  const ms_span **sorted = ms_calloc(v->plan->buffers, sizeof *sorted);
  ms_range *range = ms_calloc(v->plan->buffers, sizeof *range);
  int rc = count && sorted && range ? check_all(v, sorted, range, sort_spans(v, count, sorted)) : MS_ENOMEM;
  free(count);
  free(sorted);
  free(range);
  return rc;
}
