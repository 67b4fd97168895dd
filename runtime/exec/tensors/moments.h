/* moments.h - moments in 8 bits (kernels/formats/moments.h): writing, finishing and reading their elements. */
#ifndef MS_EXEC_MOMENTS_H
#define MS_EXEC_MOMENTS_H

#include "exec/tensors/params.h"
#include "kernels/formats/moments.h"
#include "plan/layout/moment_layout.h"

/* A moment of a parameter, of which some records were written in part. */
struct ms_open_moment {
  struct ms_open_record **record; /* [records], NULL where none waits; or NULL */
  int64_t records, open;          /* how many there are, and how many wait */
  int what;                       /* enum ms_tensor_kind */
};

/* Elements [first, first + count) of what was found, from and to f32. */
int ms_moments_write(ms_state *state, const ms_elements *to, int64_t first, int64_t count, const float *values);
int ms_moments_read(const ms_state *state, const ms_elements *from, int64_t first, int64_t count, float *out);
/* Makes all records of parameters [first, end) that wait; elements that were not written keep their values. */
int ms_moments_finish(ms_state *state, int first, int end);
/* MS_EINVAL if a record of a parameter's moments waits; param -1: of any parameter's. */
int ms_moments_check_finished(const ms_state *state, int param);
void ms_moments_free(ms_state *state);

#endif
