/* verify_order.c - the proof of order: two accesses of one byte from different streams, one of them a write, are ordered
** through events.
**
** Goes through the program with every piece of the bytes that several streams share, and who touched it last: the writer,
** and of each stream the reader since. Whoever came before them is ordered before the writer, which was checked when the
** writer came.
*/
#include "plan/verify.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Instructions by their places on their streams, 1 for the first; 0: none. */
typedef struct piece {
  int writer, writer_stream;
  int reader[MS_STREAMS];
} piece;

/* Accesses of one stream are in order, and so are reads: keeps those of the arenas that have others. */
static void keep_shared(ms_verifier *v) {
  int streams[MS_ARENAS] = {0}, written[MS_ARENAS] = {0}, kept = 0;
  for (int i = 0; i < v->n; i++) {
    streams[v->touch[i].arena] |= 1 << v->touch[i].stream;
    written[v->touch[i].arena] |= v->touch[i].write;
  }
  for (int i = 0; i < v->n; i++) {
    int arena = v->touch[i].arena, several = streams[arena] & (streams[arena] - 1);
    if (!several || !written[arena]) continue;
    v->touch[kept] = v->touch[i];
    v->range[kept++] = v->range[i];
  }
  v->n = kept;
}

static int find_instr(const ms_plan_phase *phase, int stream, int place) {
  int i = 0;
  while (phase->instr[i].stream != stream || --place) i++;
  return i;
}

static int unordered(const ms_verifier *v, int stream, int place, const ms_touch *late, int64_t byte) {
  int early = find_instr(v->phase, stream, place);
  char first[MS_INSTR_TEXT], second[MS_INSTR_TEXT];
  return MS_FAIL(MS_ERACE, "phase %s: nothing orders %d (%s) and %d (%s), which both touch byte %lld of arena %s",
                 ms_phase_name(v->phase_id), early, ms_verify_describe(&v->phase->instr[early], first), late->instr,
                 ms_verify_describe(&v->phase->instr[late->instr], second), (long long)(byte - v->base[late->arena]),
                 ms_arena_name(late->arena));
}

/* known: how much of each stream is done for certain when the instruction starts. */
static int touch_piece(const ms_verifier *v, const ms_touch *t, const int *known, int place, int64_t byte, piece *p) {
  if (p->writer > known[p->writer_stream]) return unordered(v, p->writer_stream, p->writer, t, byte);
  if (!t->write) {
    p->reader[t->stream] = place;
    return MS_OK;
  }
  for (int s = 0; s < MS_STREAMS; s++)
    if (p->reader[s] > known[s]) return unordered(v, s, p->reader[s], t, byte);
  *p = (piece){.writer = place, .writer_stream = t->stream};
  return MS_OK;
}

static int check_touches(const ms_verifier *v, piece *pieces, const int64_t *byte) {
  for (int i = 0; i < v->n; i++) {
    const ms_touch *t = &v->touch[i];
    int known[MS_STREAMS], place = v->clock[t->instr][t->stream] + 1;
    memcpy(known, v->clock[t->instr], sizeof known);
    known[t->stream] = INT_MAX;
    for (int64_t k = v->range[i].begin; k < v->range[i].end; k++)
      MS_TRY(touch_piece(v, t, known, place, byte[k], &pieces[k]));
  }
  return MS_OK;
}

int ms_verify_order(ms_verifier *v) {
  int64_t *byte;
  int n, rc;
  keep_shared(v);
  MS_TRY(ms_cut_intervals(v->range, v->n, &byte, &n));
  piece *pieces = ms_calloc(n, sizeof *pieces);
  rc = pieces ? check_touches(v, pieces, byte) : MS_ENOMEM;
  free(pieces);
  free(byte);
  return rc;
}
