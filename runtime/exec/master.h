/* master.h - this rank's chunks of parameters and what belongs to them: drawing, reading, writing. */
#ifndef MS_EXEC_MASTER_H
#define MS_EXEC_MASTER_H

#include "exec/state.h"

/* Draws the initial value of every owned element; padding stays zero. */
int ms_master_draw(ms_state *state);
/* Where the owned elements of a parameter's master, gradient or moment ("param", "grad", "state0", "state1") lie in an arena: f32
** [param.owned]. */
int ms_master_find(const ms_state *state, int param, const char *what, float **data);

#endif
