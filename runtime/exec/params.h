/* params.h - the elements of parameters, gradients and optimizer state that this rank owns: drawing initial values,
 * reading, writing. */
#ifndef MS_EXEC_PARAMS_H
#define MS_EXEC_PARAMS_H

#include "exec/state.h"

/* Draws the initial value of every owned element; padding stays zero. */
int ms_params_init(ms_state *state);
/* The part of a parameter's owned elements that only this rank writes: all of them, or its slice where replicas share
 * one copy. Returns the number of elements; *first: index of the first, counted from the first owned element. */
int64_t ms_params_slice(const ms_state *state, const ms_param *p, int64_t *first);
/* Elements [first, first + count) of a flattened parameter, in an arena. Does not own data. */
typedef struct ms_elements {
  void *data;
  int dtype; /* MS_F32; moments can be MS_BF16 */
  int64_t first, count;
  int sliced; /* 1: only this rank has them, as each replica has a slice. 0: all replicas have the same bits */
} ms_elements;

/* Finds this rank's elements of a parameter's master, gradient or moment (enum ms_tensor_kind): the owned elements, or
 * for gradients a slice of them, if replicas share one copy of the state. */
int ms_params_find(const ms_state *state, int param, int what, ms_elements *at);
/* The name of a kind that ms_params_find accepts, for messages. */
const char *ms_params_kind_name(int what);
/* Elements [first, first + count) of what was found, from and to f32; those kept in bf16 become the nearest to what
 * is given. */
int ms_params_copy_out(const ms_state *state, const ms_elements *from, int64_t first, int64_t count, float *out);
int ms_params_copy_in(ms_state *state, const ms_elements *to, int64_t first, int64_t count, const float *values);
/* Where elements [first, first + count) of it lie, which this rank must own, if they are f32 and the host may follow
 * pointers there; else *at is NULL. */
int ms_state_owned(const ms_state *state, int param, int what, int64_t first, int64_t count, float **at);
/* Fails: nothing may `what` ("be saved") while the averages are in the masters' place (ema.c). */
int ms_ema_refuse(const char *what);

#endif
