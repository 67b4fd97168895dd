/* memory_in_use.c - the bytes of each category that are in use at each instruction, the buffers in use where that
 * peaks, and the peak of each category by itself, from the lifetimes of the buffers of a finished plan.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "plan/layout/state_layout.h"
#include "plan/lower/lower.h"
#include "plan/report/dump.h"
#include "plan/report/phase_program.h"

/* Kinds of memory: only buffers of the same kind can share bytes, because the set of ranks that shares each kind
 * differs. LENT is the part of a rank's own memory that gradient chunks lend until they are written; buffers that
 * peers read, and buffers larger than all chunks together, cannot use it. */
enum { OWN = 1, LENT = 2, OF_GROUP = 4, OF_SMALLER_GROUP = 8, ANY = 15 };

static int64_t bytes_of_chunks(const ms_plan *plan) {
  int64_t bytes = 0;
  for (int u = 0; u < plan->model->units; u++) bytes += plan->buffer[ms_state_buffer(u, MS_SLOT_GRADIENT)].bytes;
  return bytes;
}

/* Returns 0 for the rest of the state, which is always in use. */
static int memory_of(const ms_buffer *b, int64_t chunks) {
  int is_state = b->phase < 0 && b->arena < MS_ARENA_ACTIVATIONS;
  if (is_state) return b->category == MS_CAT_GRADIENTS ? LENT : 0;
  if (b->category == MS_CAT_ACTIVATIONS && b->phase >= 0 && b->bytes <= chunks) return LENT;
  return ms_arena_is_of_shards(b->arena) ? OF_GROUP : b->arena == MS_ARENA_GROUPED ? OF_SMALLER_GROUP : OWN;
}

/* Returns 1 and the positions between which a buffer holds data in a phase, or 0 when it holds none. begin: from
 * ms_gradients_begin. */
static int in_use_of(const ms_plan *plan, int buffer, int phase, const int *begin, int *first, int *last) {
  const ms_buffer *b = &plan->buffer[buffer];
  if (b->phase >= 0 && (b->phase != phase || b->first < 0)) return 0;
  *first = b->category == MS_CAT_GRADIENTS ? begin[buffer / MS_SLOTS] : b->phase < 0 ? 0 : b->first;
  *last = b->phase < 0 ? INT_MAX : b->last;
  return 1;
}

/* Finds the first position of a phase at which the most bytes of these memories are in use; LENT counts at least
 * `chunks` bytes. change: [2 (n + 1)] scratch, zero before and after. */
static int64_t find_fullest(const ms_plan *plan, int phase, int n, int memories, int64_t chunks, const int *begin,
                            int64_t *change, int *position) {
  const int64_t all_chunks = bytes_of_chunks(plan);
  int64_t *change_lent = change + n + 1;
  for (int i = 0; i < plan->buffers; i++) {
    const ms_buffer *b = &plan->buffer[i];
    int first, last, memory = memory_of(b, all_chunks);
    if (!(memory & memories) || !in_use_of(plan, i, phase, begin, &first, &last)) continue;
    int64_t *changed = memory == LENT ? change_lent : change;
    changed[first] += b->bytes;
    changed[last >= n ? n : last + 1] -= b->bytes;
  }
  int64_t bytes = 0, lent = 0, most = -1;
  for (int i = 0; i <= n; i++) {
    bytes += change[i];
    lent += change_lent[i];
    change[i] = change_lent[i] = 0;
    int64_t sum = bytes + (lent < chunks ? chunks : lent);
    if (sum <= most || i == n) continue;
    most = sum;
    *position = i;
  }
  return most;
}

/* Adds the state that is always in use: the bytes of the categories, without gradients and without arenas that
 * phases reuse. */
static void add_state(const ms_plan *plan, struct ms_peak *peak) {
  peak->bytes[MS_CAT_PARAMETERS] = plan->category_bytes[MS_CAT_PARAMETERS];
  peak->bytes[MS_CAT_OPTIMIZER] = plan->category_bytes[MS_CAT_OPTIMIZER];
  peak->bytes[MS_CAT_WORKSPACE] = plan->category_bytes[MS_CAT_WORKSPACE] - plan->arena_bytes[MS_ARENA_WORKSPACE];
}

/* Raises *most to the largest number of bytes of a category, excluding permanent state, that a phase uses at one
 * time. change: [n + 1] scratch, zero before and after. */
static void find_max(const ms_plan *plan, int phase, int n, int category, const int *begin, int64_t *change,
                     int64_t *most) {
  for (int i = 0; i < plan->buffers; i++) {
    const ms_buffer *b = &plan->buffer[i];
    int first, last;
    if (b->category != category || !memory_of(b, 0) || !in_use_of(plan, i, phase, begin, &first, &last)) continue;
    change[first] += b->bytes;
    change[last >= n ? n : last + 1] -= b->bytes;
  }
  int64_t bytes = 0;
  for (int i = 0; i <= n; i++) {
    bytes += change[i];
    change[i] = 0;
    if (i < n && bytes > *most) *most = bytes;
  }
}

int ms_plan_category_peaks(const ms_plan *plan, int64_t *bytes) {
  int64_t most[MS_CATEGORIES] = {0};
  int rc = MS_OK, *begin = ms_calloc(plan->model->units, sizeof *begin);
  if (!begin) return MS_ENOMEM;
  for (int phase = 0; phase < MS_PHASES && !rc; phase++) {
    ms_phase_program p = {0};
    if (!plan->phase[phase].present) continue;
    rc = ms_phase_program_read(plan, phase, &p);
    int64_t *change = rc ? NULL : ms_calloc(p.n + 1, sizeof *change);
    if (!rc && !change) rc = MS_ENOMEM;
    ms_gradients_begin(plan, phase, begin);
    for (int c = 0; c < MS_CATEGORIES && !rc; c++) find_max(plan, phase, p.n, c, begin, change, &most[c]);
    free(change);
    free(p.at);
  }
  struct ms_peak state = {0};
  add_state(plan, &state);
  for (int c = 0; c < MS_CATEGORIES; c++) bytes[c] = state.bytes[c] + most[c];
  free(begin);
  return rc;
}

/* ---- at each instruction ---------------------------------------------------------------------------------------- */

/* Adds what each buffer changes at the position where it begins to hold data, and at the one after it ends. change:
 * [MS_CATEGORIES][n + 1], of zeros. */
static void add_changes(const ms_plan *plan, int phase, int n, const int *begin, int64_t *change) {
  for (int i = 0; i < plan->buffers; i++) {
    const ms_buffer *b = &plan->buffer[i];
    int first, last;
    if (!memory_of(b, 0) || !in_use_of(plan, i, phase, begin, &first, &last)) continue;
    int64_t *of = change + (int64_t)b->category * (n + 1);
    of[first] += b->bytes;
    of[last >= n ? n : last + 1] -= b->bytes;
  }
}

static void describe(const ms_phase_program *p, int position, struct ms_peak *row) {
  const ms_instr *instr = &p->phase->instr[p->at[position]];
  row->instruction = p->at[position];
  row->backward = instr->backward;
  row->op = instr->kind == MS_INSTR_KERNEL ? ms_op_row_of(instr->call->op)->name : ms_coll_name(instr->coll->kind);
  row->scope = instr->scope;
}

/* Adds a row for the first instruction of a phase, and one for each at which a category changes. */
static void add_phase(const ms_phase_program *p, int phase, const int64_t *state, const int64_t *change,
                      ms_row_list *rows) {
  struct ms_peak row;
  memset(&row, 0, sizeof row); /* what is between its fields, too: programs compare rows */
  row.phase = phase;
  memcpy(row.bytes, state, sizeof row.bytes);
  for (int c = 0; c < MS_CATEGORIES; c++) row.total_bytes += state[c];
  for (int i = 0; i < p->n; i++) {
    int differs = i == 0;
    for (int c = 0; c < MS_CATEGORIES; c++) {
      const int64_t more = change[(int64_t)c * (p->n + 1) + i];
      row.bytes[c] += more;
      row.total_bytes += more;
      differs |= more != 0;
    }
    describe(p, i, &row);
    if (differs) ms_rows_add(rows, &row, sizeof row);
  }
}

int ms_plan_add_memory(const ms_plan *plan, ms_row_list *rows) {
  int rc = MS_OK, *begin = ms_calloc(plan->model->units, sizeof *begin);
  struct ms_peak state = {0};
  if (!begin) return MS_ENOMEM;
  add_state(plan, &state);
  for (int phase = 0; phase < MS_PHASES && !rc; phase++) {
    ms_phase_program p = {0};
    if (!plan->phase[phase].present) continue;
    rc = ms_phase_program_read(plan, phase, &p);
    int64_t *change = rc ? NULL : ms_calloc(MS_CATEGORIES * (p.n + (int64_t)1), sizeof *change);
    if (!rc && !change) rc = MS_ENOMEM;
    ms_gradients_begin(plan, phase, begin);
    if (!rc) add_changes(plan, phase, p.n, begin, change);
    if (!rc) add_phase(&p, phase, state.bytes, change, rows);
    free(change);
    free(p.at);
  }
  free(begin);
  return rc;
}

/* ---- the peak --------------------------------------------------------------------------------------------------- */

static const char *maker_of(const ms_phase_program *p, const ms_buffer *b) {
  if (b->phase < 0) return b->label;
  return p->phase->instr[p->at[b->first]].scope;
}

/* Finds the phase and position at which the most bytes are in use; leaves them if there are no instructions. least: sum
 * of the peaks of each kind of memory by itself. */
static int find_peak_phase(const ms_plan *plan, int *begin, int *phase, int *position, int64_t *least) {
  static const int memories[] = {OWN | LENT, OF_GROUP, OF_SMALLER_GROUP};
  int64_t most = -1, of_memory[3] = {0};
  for (int i = 0; i < MS_PHASES; i++) {
    ms_phase_program p;
    if (!plan->phase[i].present) continue;
    MS_TRY(ms_phase_program_read(plan, i, &p));
    int64_t *change = ms_calloc(2 * (p.n + 1), sizeof *change);
    int at = 0, elsewhere;
    ms_gradients_begin(plan, i, begin);
    int64_t bytes = change ? find_fullest(plan, i, p.n, ANY, 0, begin, change, &at) : -1;
    for (int m = 0; m < 3 && change; m++) {
      const int64_t chunks = m == 0 ? bytes_of_chunks(plan) : 0;
      int64_t alone = find_fullest(plan, i, p.n, memories[m], chunks, begin, change, &elsewhere);
      if (alone > of_memory[m]) of_memory[m] = alone;
    }
    int rc = change ? MS_OK : MS_ENOMEM;
    free(change);
    free(p.at);
    if (rc) return rc;
    if (bytes <= most) continue;
    most = bytes;
    *phase = i;
    *position = at;
  }
  *least = of_memory[0] + of_memory[1] + of_memory[2];
  return MS_OK;
}

/* rows: those of its buffers, or NULL. */
static void describe_peak(const ms_plan *plan, const ms_phase_program *p, int position, const int *begin,
                          struct ms_peak *peak, ms_row_list *rows) {
  describe(p, position, peak);
  for (int i = 0; i < plan->buffers; i++) {
    const ms_buffer *b = &plan->buffer[i];
    int first, last;
    if (!memory_of(b, 0) || !b->bytes || !in_use_of(plan, i, peak->phase, begin, &first, &last)) continue;
    if (position < first || position > last) continue;
    peak->bytes[b->category] += b->bytes;
    if (!rows) continue;
    ms_peak_buffer row;
    memset(&row, 0, sizeof row); /* what is between its fields, too: programs compare rows */
    row.category = b->category;
    row.bytes = b->bytes;
    row.label = b->label;
    row.scope = maker_of(p, b);
    ms_rows_add(rows, &row, sizeof row);
  }
}

static int find_peak(const ms_plan *plan, struct ms_peak *peak, ms_row_list *rows) {
  ms_phase_program p = {0};
  int position = 0, rc = MS_OK, *begin = ms_calloc(plan->model->units, sizeof *begin);
  *peak = (struct ms_peak){.phase = -1, .instruction = -1, .op = "", .scope = ""};
  if (!begin) return MS_ENOMEM;
  MS_GOTO(find_peak_phase(plan, begin, &peak->phase, &position, &peak->min_bytes));
  add_state(plan, peak);
  for (int c = 0; c < MS_CATEGORIES; c++) peak->min_bytes += peak->bytes[c];
  if (peak->phase >= 0) {
    MS_GOTO(ms_phase_program_read(plan, peak->phase, &p));
    ms_gradients_begin(plan, peak->phase, begin);
    describe_peak(plan, &p, position, begin, peak, rows);
  }
  for (int c = 0; c < MS_CATEGORIES; c++) peak->total_bytes += peak->bytes[c];
fail:
  free(begin);
  free(p.at);
  return rc;
}

int ms_plan_find_peak(const ms_plan *plan, struct ms_peak *peak) { return find_peak(plan, peak, NULL); }

int ms_plan_add_peak_buffers(const ms_plan *plan, ms_row_list *rows) {
  struct ms_peak peak;
  return find_peak(plan, &peak, rows);
}
