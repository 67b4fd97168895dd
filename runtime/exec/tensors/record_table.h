/* record_table.h - the table of how elements are read and written in an arena, by the form that they have there
 * (ms_slot_form): as elements, or as records, whose writes can wait for the rest of their elements or for other ranks.
 *
 * A new kind of records is a number (plan/layout/slots.h), a file with these functions, and a row here.
 */
#ifndef MS_EXEC_RECORD_TABLE_H
#define MS_EXEC_RECORD_TABLE_H

#include "exec/tensors/params.h"
#include "plan/layout/slots.h"

typedef struct ms_record_row {
  /* Elements [first, first + count) of what was found, at least one, to and from f32. */
  int (*read)(const ms_state *state, const ms_elements *from, int64_t first, int64_t count, float *out);
  int (*write)(ms_state *state, const ms_elements *to, int64_t first, int64_t count, const float *values);
  /* The others: NULL where writes are complete at once. */
  /* Completes what was written of parameters [first, end). Collective. */
  int (*finish)(ms_state *state, int first, int end);
  /* MS_EINVAL if something of a parameter is not complete; param -1: of any. */
  int (*check_finished)(const ms_state *state, int param);
  /* Drops what is not complete, at the end of a state. */
  void (*drop)(ms_state *state);
} ms_record_row;

/* By enum ms_slot_records; a form whose writes another row completes leaves them to that. */
extern const ms_record_row ms_record_rows[MS_SLOT_RECORDS];

/* For all rows: */
int ms_records_finish(ms_state *state);
int ms_records_check_finished(const ms_state *state);
void ms_records_drop(ms_state *state);

#endif
