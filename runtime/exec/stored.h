/* stored.h - parameters that are kept in i8 or nf4: writing, sealing and reading their elements. */
#ifndef MS_EXEC_STORED_H
#define MS_EXEC_STORED_H

#include "exec/params.h"

/* 1 for dtypes in which parameters are kept as codes with scales. */
int ms_stored_is_quantised(int dtype);
/* Elements [first, first + count) of what was found, from and to f32. Elements are written in order. */
int ms_stored_write(ms_state *state, const ms_elements *to, int64_t first, int64_t count, const float *values);
int ms_stored_read(const ms_state *state, const ms_elements *from, int64_t first, int64_t count, float *out);
/* Completes what was written of parameters [first, end); collective, without communication if none of them is
 * quantised. */
int ms_stored_seal(ms_state *state, int first, int end);
/* MS_EINVAL if a parameter was written and not sealed. */
int ms_stored_check_sealed(const ms_state *state, int param);
void ms_stored_free(ms_state *state);

#endif
