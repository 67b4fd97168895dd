/* world_state.h - the state of a world, for the files of this floor and for bootstrap, which fills it. */
#ifndef MS_COMM_GROUP_WORLD_STATE_H
#define MS_COMM_GROUP_WORLD_STATE_H

#include "base/handle.h"
#include "base/machine/topology.h"
#include "comm/group/mirror.h"
#include "comm/group/wait.h"
#include "comm/group/group.h"

struct ms_world {
  ms_handle handle;
  int rank, size, fd;      /* fd: the control segment's, kept open so that `moonshard ps` finds it; -1: none */
  int spin;                /* every rank has its own core */
  int maps;                /* this world mapped the control segment and unmaps it */
  int owns_fd;             /* fd is closed with the world; the launcher's stays open for the life of the process */
  char host[MS_HOST_NAME]; /* of this rank */
  double timeout;
  int waits_for_person; /* ms_world_wait_for_person */
  ms_control *control;  /* NULL: a world of one */
  ms_recorder *recorder;
  const ms_diagnosis *diagnosis;
  ms_topology topology;                     /* of all ranks */
  char (*node_name)[MS_HOST_NAME];          /* [topology.nodes]; NULL: all ranks are on `host` */
  ms_group everyone;                        /* group 0: all ranks */
  struct ms_store *store;                   /* bootstrap's connection to ranks that were not forked by one launcher */
  struct ms_launcher_watch *launcher_watch; /* bootstrap's, of another program that started this rank; NULL: none */
  const ms_mirror *mirror;                  /* NULL: all ranks are on one host */
  /* The thread that moves bytes between hosts, and its function that gives up all operations in flight. NULL: nothing
   * moves. */
  struct ms_progress_thread *progress;
  void (*give_up_transfers)(struct ms_progress_thread *progress);
  int64_t failures;                /* ms_world_failures */
  struct ms_state *left_in_flight; /* ms_world_left_in_flight */
};

#endif
