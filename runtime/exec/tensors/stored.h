/* stored.h - parameters that are kept as codes: writing, finishing and reading their elements. */
#ifndef MS_EXEC_STORED_H
#define MS_EXEC_STORED_H

#include "exec/tensors/params.h"
#include "kernels/formats/storage.h"

/* A parameter that is being written. */
struct ms_unfinished {
  int64_t at, staged; /* the first `staged` elements of the record that begins with element `at` are in `room` */
  int64_t records;
  char *done;   /* [records] 1: it is written */
  float *scale; /* [records][ms_scales_of] of late scales */
  float room[MS_MAX_STORED];
};

/* Scales of a record. */
static inline int64_t ms_scales_of(const ms_storage *storage) { return storage->elements / storage->block; }

/* Elements [first, first + count) of what was found, from and to f32. Elements are written in order. */
int ms_stored_write(ms_state *state, const ms_elements *to, int64_t first, int64_t count, const float *values);
int ms_stored_read(const ms_state *state, const ms_elements *from, int64_t first, int64_t count, float *out);
/* Completes what was written of parameters [first, end); collective, without communication if none of them is
 * quantised. */
int ms_stored_finish(ms_state *state, int first, int end);
/* MS_EINVAL if a parameter was written and its writes are not finished; param -1: if any was. */
int ms_stored_check_finished(const ms_state *state, int param);
/* The address of a record, counted from the first owned element. */
char *ms_stored_record(const ms_elements *of, int64_t record);
/* Ends the writing of a parameter, and of all of them. */
void ms_stored_forget(ms_state *state, int param);
void ms_stored_free(ms_state *state);

#endif
