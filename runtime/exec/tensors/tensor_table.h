/* tensor_table.h - the table of the tensors that a state has of a parameter (enum ms_tensor_kind): the slot that each
 * is in (plan/layout/slots.h), its name, and how this rank's elements of it are found.
 */
#ifndef MS_EXEC_TENSOR_TABLE_H
#define MS_EXEC_TENSOR_TABLE_H

#include "exec/tensors/params.h"
#include "plan/layout/slots.h"

typedef struct ms_tensor_row ms_tensor_row;
struct ms_tensor_row {
  const char *name; /* in messages */
  int slot;         /* enum ms_slot */
  int is_whole;     /* 1: every rank has all of it, of whole parameters */
  int in_words;     /* 1: it is counted in words of records, and is I32 in files; the others are F32 there */
  /* Completes *at, which has this rank's part of the parameter; fails if the state does not have the tensor. */
  int (*find)(const ms_state *state, const ms_param *p, const ms_tensor_row *row, ms_elements *at);
};

extern const ms_tensor_row ms_tensor_rows[MS_TENSOR_KINDS];

/* 1 when the state keeps the slot of such tensors for a unit. */
static inline int ms_tensor_is_kept(const ms_state *state, int unit, int what) {
  return state->layout.unit[unit].at[ms_tensor_rows[what].slot] >= 0;
}
static inline int ms_tensor_is_whole(int what) { return ms_tensor_rows[what].is_whole; }
static inline int ms_tensor_in_words(int what) { return ms_tensor_rows[what].in_words; }

#endif
