/* rendezvous.h - how ranks that were not forked by one launcher become a world. Internal to comm.
**
** They come to a store, exchange who they are, and find their nodes: the ranks that can share memory. The first rank of
** each node makes the control segment that the launcher makes otherwise, and the others map it. The connections to the
** store stay open: through them a rank's death is noticed although no launcher watches.
*/
#ifndef MS_COMM_BOOTSTRAP_RENDEZVOUS_H
#define MS_COMM_BOOTSTRAP_RENDEZVOUS_H

#include "comm/bootstrap/environment.h"
#include "comm/group/world_state.h"
#include "comm/bootstrap/store_wire.h"

typedef struct ms_rendezvous_result {
  ms_store *store;     /* NULL: no other rank came */
  ms_control *control; /* of this node; the caller's from here on, and so is its descriptor */
  int fd;              /* of control; -1: it was inherited */
  int row;             /* this rank among the ranks of its node */
  ms_topology topology;
} ms_rendezvous_result;

/* Comes to task->place with the other ranks of task. inherited: the control segment that a launcher made for this node, or
** NULL. Fails in every rank that has come when it fails in one. */
int ms_rendezvous(const ms_task *task, double timeout, ms_control *inherited, ms_rendezvous_result *result);
/* Leaves the store, frees the tables; safe on zero-filled ones. The control segment stays. */
void ms_rendezvous_end(ms_store **store, ms_topology *topology);

#endif
