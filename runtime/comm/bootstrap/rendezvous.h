/* rendezvous.h - forms a world of ranks that were not forked by one launcher. Internal to comm.
 *
 * The ranks connect to a store, exchange their identities, and find their nodes: the ranks that can share memory. The
 * first rank of each node creates the control segment, which the launcher does otherwise, and the others map it. The
 * connections to the store stay open: they detect a rank's death where no launcher watches.
 */
#ifndef MS_COMM_BOOTSTRAP_RENDEZVOUS_H
#define MS_COMM_BOOTSTRAP_RENDEZVOUS_H

#include "comm/bootstrap/environment.h"
#include "comm/group/world_state.h"
#include "comm/bootstrap/store/store_wire.h"

typedef struct ms_rendezvous_result {
  ms_store *store;                 /* NULL: a world of one rank */
  ms_control *control;             /* of this node; owned by the caller, and so is fd */
  int fd;                          /* descriptor of control; -1: it was inherited */
  ms_topology topology;            /* owned by the caller, and so is node_name */
  char (*node_name)[MS_HOST_NAME]; /* [topology.nodes] */
} ms_rendezvous_result;

/* Meets the other ranks of task at task->place. inherited: the control segment that a launcher made for this node, or
 * NULL. timeout: seconds. Collective: a failure in one rank fails every rank that has connected. */
int ms_rendezvous(const ms_task *task, double timeout, ms_control *inherited, ms_rendezvous_result *result);

#endif
