/* agree.h - ranks compare their plans before they bind them: a difference is an error here, and not a hang later. */
#ifndef MS_EXEC_AGREE_H
#define MS_EXEC_AGREE_H

#include "plan/plan.h"

/* MS_EMISMATCH on every rank, naming the first that differs from rank 0 and the first line that does. Collective. */
int ms_exec_agree(ms_world *world, const ms_plan *plan);

#endif
