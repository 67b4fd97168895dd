/* state.h - what lives as long as training does: the STATE arena, the arenas that phases use, and the communicators.
**
** The transient arenas belong to the state because the execs of a state run one at a time and so can share them. They
** grow when a plan that needs more is bound; then their addresses change, and `generation` tells execs that were
** bound before.
*/
#ifndef MS_EXEC_STATE_H
#define MS_EXEC_STATE_H

#include "comm/members.h"
#include "plan/plan.h"

struct ms_state {
  ms_world *world;
  ms_members members; /* the ranks that train this model */
  const ms_model *model;
  ms_state_layout layout;
  /* mapped whole: COMM [members * stride], GATHERED and MASTERS [replicate_size * stride] */
  ms_region arena[MS_ARENAS];
  int64_t arena_bytes[MS_ARENAS]; /* this rank's block: what plans asked for */
  int64_t stride[MS_ARENAS];      /* bytes from one rank's (COMM) or group's block to the next */
  int generation;                 /* counts the times that arenas moved */
  int64_t mapped;                 /* regions made so far */
  ms_comm *comm[MS_STREAMS];      /* one channel a stream; NULL for compute, and where the dimension has size 1 */
  int settled;                    /* NORM was the last phase: no peer reads the weights any more */
  int interrupted;                /* a phase failed half-way: some rank may still be inside a collective */
};

/* Makes every arena at least as large as `bytes` [MS_ARENAS] asks; STATE and MASTERS are left alone. Collective, equal on all
** ranks. */
int ms_state_reserve(ms_state *state, const int64_t *bytes);
/* First byte of this rank's block of an arena. */
char *ms_state_block(const ms_state *state, int arena);
/* First byte of the COMM block of a world rank, as mapped here. */
char *ms_state_peer_block(const ms_state *state, int rank);

#endif
