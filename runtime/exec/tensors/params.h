/* params.h - the elements of parameters, gradients and optimizer state that this rank owns: drawing initial values,
 * reading, writing. */
#ifndef MS_EXEC_PARAMS_H
#define MS_EXEC_PARAMS_H

#include "exec/state/state.h"

/* Draws the initial value of every owned element; padding stays zero. */
int ms_params_init(ms_state *state);
/* The part of a parameter's owned elements that only this rank writes: all of them, or its slice where replicas share
 * one copy. Returns the number of elements; *first: index of the first, counted from the first owned element. */
int64_t ms_params_slice(const ms_state *state, const ms_param *p, int64_t *first);
/* Elements [first, first + count) of a flattened parameter, in an arena. Does not own data. */
typedef struct ms_elements {
  void *data;
  int dtype; /* of elements, or of codes; of other records MS_I32 */
  /* enum ms_slot_records: data is an array of such records that begins with the first element; MS_ELEMENTS: of elements
   * of dtype */
  int records;
  const ms_storage *storage; /* the records of a stored parameter; the model owns it */
  int param, what;           /* what: enum ms_tensor_kind */
  int64_t first, count;
  int sliced; /* 1: only this rank has them, as each replica has a slice. 0: all replicas have the same bits */
} ms_elements;

/* Finds this rank's elements of a parameter's master, gradient or moment (enum ms_tensor_kind): the owned elements, or
 * a slice of them. Of gradients it has a slice if replicas share one copy of the state; of a sliced unit, of all kinds.
 */
int ms_params_find(const ms_state *state, int param, int what, ms_elements *at);
/* Finds the elements that this rank writes when a parameter is given a value: the owned ones, also of a sliced unit.
 * data is NULL if they are in two places: masters, and weights or copies. For kinds but MS_TENSOR_PARAM as
 * ms_params_find. Waits for gathers in flight. */
int ms_params_find_writable(ms_state *state, int param, int what, ms_elements *at);
/* Writes elements [first, first + count) of those, counted from the first one. */
int ms_params_write(ms_state *state, int param, const ms_elements *to, int64_t first, int64_t count,
                    const float *values);
/* Finds all elements that this rank owns of a parameter's weights. 1: they are kept besides its masters; 0: they are
 * its masters. */
int ms_params_find_weights(const ms_state *state, const ms_param *p, ms_elements *at);
/* 1 when a rank keeps a parameter's owned elements in bf16 besides masters of all of them. */
int ms_params_has_copy(const ms_state *state, const ms_param *p);
/* After masters have changed alone (restart.c): makes the copies of them that units keep in bf16
 * (ms_unit_keeps_copies). sliced: where replicas share one copy of the state, only those of this rank's slice. */
int ms_params_copy(ms_state *state, int sliced);
/* Clears a slot of all units that have it (restart.c). */
int ms_state_clear(ms_state *state, int slot);
/* Writes those that are among `given`, elements [begin, end) of the whole parameter (params_gather.c). */
int ms_params_take(ms_state *state, int param, const ms_elements *writable, int64_t begin, int64_t end,
                   const float *given);
/* Elements [first, first + count) of what was found, from and to f32, as their form is read and written
 * (record_table.h); those kept in bf16 become the nearest to what is given. */
int ms_params_copy_out(const ms_state *state, const ms_elements *from, int64_t first, int64_t count, float *out);
int ms_params_copy_in(ms_state *state, const ms_elements *to, int64_t first, int64_t count, const float *values);
/* Where elements [first, first + count) of it lie, which this rank must own, if they are f32 and the host may follow
 * pointers there; else *at is NULL. */
int ms_state_owned(const ms_state *state, int param, int what, int64_t first, int64_t count, float **at);
/* The same, if this rank may write them and they are in one place; else *at is NULL. */
int ms_state_writable(ms_state *state, int param, int what, int64_t first, int64_t count, float **at);
/* MS_EINVAL if the state keeps no averages (restart.c). */
int ms_ema_check(const ms_state *state);
/* Writes the initial values of parameters (restart.c). Collective. */
int ms_state_draw(ms_state *state);

/* 1 when this rank has masters and optimizer state only of its slice of a parameter (plan/layout/replica_slices.h). */
int ms_params_is_sliced(const ms_state *state, const ms_param *p);
/* After masters of slices have changed: gives every replica the weights of all slices. Collective (gather_slices.c). */
int ms_params_gather_slices(ms_state *state);
/* Before a phase: after a recovery, does so if an update left gathers in flight. Collective (gather_slices.c). */
int ms_state_make_whole(ms_state *state);

/* After replicas have swapped their slices: waits until all have, and gives every replica what it does not have itself.
 * Collective. */
int ms_ema_meet_replicas(ms_state *state);

#endif
