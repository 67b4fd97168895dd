/* lower_pieces.c - see the header. */
#include "plan/lower/gradients/lower_pieces.h"

#include "plan/layout/residuals.h"

/* Words of a buffer for so many, so that the next begins at a cache line. */
static int64_t whole_lines(int64_t words) { return (words + 15) / 16 * 16; }

ms_pieces ms_pieces_of_segment(const ms_unit_pieces *p, const ms_segment *seg) {
  return ms_pieces_of(p->dtype, seg->chunk, p->ranks);
}

int ms_lower_open_pieces(ms_lowering *l, const ms_unit_pieces *p, int64_t pieces, int arena, int category,
                         int *buffer) {
  const ms_unit *u = &l->model->unit[p->unit];
  int64_t words = 0;
  for (int s = 0; s < u->segments; s++)
    if (!u->segment[s].frozen) words += whole_lines(pieces * ms_pieces_of_segment(p, &u->segment[s]).words);
  return ms_plan_buffer(l->plan, l->phase, arena, category, 4 * words, u->name, buffer);
}

ms_ref ms_lower_next_pieces(const ms_unit_pieces *p, const ms_segment *seg, int buffer, int64_t pieces, int64_t *at) {
  const int64_t words = pieces * ms_pieces_of_segment(p, seg).words;
  const ms_ref ref = ms_ref_vector(buffer, 4 * *at, MS_I32, words);
  *at += whole_lines(words);
  return ref;
}

int ms_lower_round_off(ms_lowering *l, int unit, const ms_segment *seg, int op, int adding, const ms_op_attrs *attrs,
                       ms_ref in, ms_ref pieces, int over_replicas, int64_t rest, int64_t n) {
  const ms_ref out[] = {pieces, ms_ref_vector(ms_state_buffer(unit, MS_SLOT_RESIDUALS), rest, MS_F32, n)};
  int adds;
  MS_TRY(ms_residuals_are_added(l->plan, unit, seg, &adds));
  if (adds) MS_TRY(ms_lower_rescale(l, unit, seg, over_replicas, out[1]));
  return ms_plan_kernel(l->plan, l->phase, adds ? adding : op, attrs, 1, &in, 1 + adds, out, l->model->unit[unit].name,
                        1);
}

void ms_lower_keep(ms_lowering *l, int buffer) { ms_plan_touch(l->plan, buffer, l->plan->phase[l->phase].n - 1); }
