/* tensor_table.h - the table of the tensors that a state has of a parameter (enum ms_tensor_kind): the slot that each
 * is in (plan/layout/slots.h), its name and shape, and with what it starts again. Finding, reading, writing, gathering,
 * saving, loading and restarting them ask it and the slot's row, so a new tensor is a row here.
 */
#ifndef MS_EXEC_TENSOR_TABLE_H
#define MS_EXEC_TENSOR_TABLE_H

#include "exec/tensors/params.h"
#include "plan/layout/slots.h"

/* What a restart gives a tensor. */
enum ms_tensor_start { MS_STARTS_NOT, MS_STARTS_AS_WEIGHTS, MS_STARTS_AT_ZERO };

typedef struct ms_tensor_row {
  const char *name; /* in messages */
  int slot;         /* enum ms_slot */
  int in_words;     /* 1: it is counted in words of records, and is I32 in files; the others are F32 there */
  /* The elements of a tensor that every rank has whole, of a parameter; 0: it has none of this parameter. Those of one
   * slot lie one after the other. NULL: it has the parameter's elements. */
  int64_t (*elements)(const ms_model *model, const ms_param *p);
  const char *otherwise; /* why a parameter that trains can have none; NULL: for lack of the slot */
  int starts;            /* enum ms_tensor_start */
  int starts_with;       /* the kind with which it starts */
  int follows;           /* 1: where a program overwrites weights, this starts again, too */
} ms_tensor_row;

extern const ms_tensor_row ms_tensor_rows[MS_TENSOR_KINDS];

static inline int ms_tensor_is_whole(int what) { return ms_tensor_rows[what].elements != NULL; }
static inline int ms_tensor_in_words(int what) { return ms_tensor_rows[what].in_words; }
/* The elements of a tensor of a whole parameter; of one in words, those that its records have. */
int64_t ms_tensor_elements(const ms_model *model, int param, int what);
/* The part of them that a place in the tensor dimension has. */
ms_division ms_tensor_part(const ms_model *model, int param, int what, int place);

#endif
