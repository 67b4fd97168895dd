/* world_state.h - what a world holds, for the files of this floor and for bootstrap, which fills it. */
#ifndef MS_COMM_GROUP_WORLD_STATE_H
#define MS_COMM_GROUP_WORLD_STATE_H

#include "base/handle.h"
#include "comm/group/diagnosis.h"
#include "comm/group/group.h"

enum { MS_HOST_NAME = 64 };

/* Nodes are hosts: which rank is on which. */
typedef struct ms_topology {
  int nodes;
  int *node_of;               /* [size]; NULL: all ranks are on one node */
  char (*name)[MS_HOST_NAME]; /* [nodes]: of the hosts */
} ms_topology;

struct ms_world {
  ms_handle handle;
  int rank, size, fd; /* fd: of the control segment, held open so that `moonshard ps` finds it; -1: there is none */
  int row;            /* this rank's row in the control segment: its place among the ranks of its node */
  int spin;           /* every rank has a core of its own */
  int maps;           /* this world mapped the control segment, and unmaps it */
  int owns_fd;        /* it is not the launcher's, which stays open for the process */
  char host[MS_HOST_NAME];
  double timeout;
  ms_control *control; /* NULL: a world of one */
  ms_recorder *recorder;
  const ms_diagnosis *diagnosis;
  ms_topology topology;
  ms_group everyone; /* group 0: all ranks; of several nodes it is never used */
  /* Bootstrap's connection to the ranks that no launcher forked together, and how it takes a word to the other nodes. */
  struct ms_store *store;
  void (*tell_other_nodes)(struct ms_store *store, const char *why);
};

/* The rank that has a row in the control segment. */
int ms_world_rank_of_row(const ms_world *world, int row);
/* "a (ranks 0-3) and b (ranks 4-7)". */
void ms_topology_text(const ms_topology *topology, int size, char *text, size_t bytes);

#endif
