/* rendezvous.h - how ranks that were not forked by one launcher become a world. Internal to comm.
**
** They come to a store, exchange who they are, and find their nodes: the ranks that can share memory. The first rank of
** each node makes the control segment that the launcher makes otherwise, and the others map it. The connections to the
** store stay open: through them a rank's death is noticed although no launcher watches.
*/
#ifndef MS_COMM_BOOTSTRAP_RENDEZVOUS_H
#define MS_COMM_BOOTSTRAP_RENDEZVOUS_H

#include "comm/bootstrap/environment.h"
#include "comm/control/control.h"
#include "comm/bootstrap/store_wire.h"

typedef struct ms_meeting {
  ms_store *store;     /* NULL: nobody was met */
  ms_control *control; /* of this node; the caller's from here on, and so is its descriptor */
  int fd;              /* of control; -1: it was inherited */
  int nodes;
  int row;                    /* this rank among the ranks of its node */
  int *node_of;               /* [size] */
  char (*name)[MS_WIRE_NAME]; /* [nodes]: of the hosts */
} ms_meeting;

/* Meets the ranks of task at task->place. inherited: the control segment that a launcher made for this node, or NULL.
** Fails in every rank that has come when it fails in one. */
int ms_rendezvous(const ms_task *task, double timeout, ms_control *inherited, ms_meeting *meeting);
/* Leaves the store, frees the tables. The control segment stays. */
void ms_rendezvous_end(ms_meeting *meeting);
/* "a (ranks 0-3) and b (ranks 4-7)". */
void ms_rendezvous_describe(const ms_meeting *meeting, int size, char *text, size_t bytes);

#endif
