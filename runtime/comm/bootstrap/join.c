/* join.c - how a process takes its place among the ranks, and leaves it: as one that the launcher forked, as one that
** another launcher started, on one node or on several, or alone.
*/
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/descriptors.h"
#include "base/env.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "comm/bootstrap/environment.h"
#include "comm/bootstrap/host_id.h"
#include "comm/group/world_state.h"

static const double DEFAULT_TIMEOUT = 300.0;

static int read_timeout(ms_world *world) {
  MS_TRY(ms_env_double("MOONSHARD_TIMEOUT", DEFAULT_TIMEOUT, &world->timeout));
  if (world->timeout > 0) return MS_OK;
  return MS_FAIL(MS_EINVAL, "environment variable MOONSHARD_TIMEOUT: it must be seconds above 0, not %g",
                 world->timeout);
}

static void open_recorder(ms_world *world, ms_recorder *recorder) {
  world->recorder = recorder;
  world->ring = ms_recorder_ring_of(recorder, MS_RECORDER_WORLD);
  ms_recorder_ring_of(recorder, MS_RECORDER_MESHES); /* there is one, then, whatever comes */
  world->barrier_text = ms_recorder_number(recorder, "barrier");
  world->all_gather_text = ms_recorder_number(recorder, "all_gather_bytes");
  atomic_store(&recorder->since, ms_recorder_now());
}

/* Without a control segment nobody reads it, but who writes need not know. */
static int open_private_recorder(ms_world *world) {
  void *memory = mmap(NULL, sizeof(ms_recorder), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return MS_FAIL(MS_ENOMEM, "cannot map %zu bytes for the flight recorder", sizeof(ms_recorder));
  open_recorder(world, memory);
  return MS_OK;
}

static void take_row(ms_world *world, ms_control *control, int row) {
  world->control = control;
  world->row = row;
  world->spin = control->size <= control->cores;
  open_recorder(world, &control->recorder[row]);
  atomic_store(&control->rank[row].number, world->rank);
  atomic_store(&control->rank[row].pid, (int32_t)getpid());
  atomic_store(&control->rank[row].state, MS_CONTROL_JOINED);
}

static void take_place(ms_world *world, ms_control *control, int rank) {
  world->rank = rank;
  world->size = control->size;
  take_row(world, control, rank);
}

static void destroy_world(void *object) {
  ms_world *world = object;
  if (!world->control && world->recorder) munmap(world->recorder, sizeof *world->recorder);
  if (world->maps) ms_control_unmap(world->control);
  if (world->owns_fd) close(world->fd);
}

/* A world of one, without a flight recorder as yet. */
static int make_world(ms_world **world) {
  ms_world *made = ms_handle_new(MS_HANDLE_WORLD, sizeof *made, destroy_world);
  if (!made) return MS_ENOMEM;
  made->fd = -1;
  made->size = 1;
  ms_host_name(made->host, sizeof made->host);
  int rc = read_timeout(made);
  if (rc) ms_handle_release(made, MS_HANDLE_WORLD);
  else *world = made;
  return rc;
}

/* ---- ranks that meet ---- */

/* What the store tells once a rank died or gave up on any node. */
static void hear_failure(void *context, const char *why) {
  ms_control_give_up(((ms_world *)context)->control, MS_CONTROL_LAUNCHER, -1, why);
}

/* The world that was joined by a rendezvous, for exit(): a process that ends in order did not die. */
static _Atomic(ms_world *) joined_world;

static void leave_at_exit(void) {
  ms_world *world = atomic_exchange(&joined_world, NULL);
  /* A child that the program forked is not the rank. */
  if (!world || atomic_load(&world->control->rank[world->row].pid) != (int32_t)getpid()) return;
  atomic_store(&world->control->rank[world->row].state, MS_CONTROL_LEFT);
  ms_store_leave_at_exit(world->meeting.store);
}

static int meet_ranks(ms_world *world, const ms_task *task, ms_control *inherited) {
  static atomic_flag registered = ATOMIC_FLAG_INIT;
  MS_TRY(ms_rendezvous(task, world->timeout, inherited, &world->meeting));
  if (!inherited) {
    world->fd = world->meeting.fd;
    world->owns_fd = world->fd >= 0;
  }
  world->maps = 1;
  world->rank = task->rank;
  world->size = task->size;
  take_row(world, world->meeting.control, world->meeting.row);
  MS_TRY(ms_store_watch(world->meeting.store, hear_failure, world));
  if (!atomic_flag_test_and_set(&registered)) atexit(leave_at_exit);
  atomic_store(&joined_world, world);
  return MS_OK;
}

/* ---- joining ---- */

/* Other launchers' ranks; a process that nothing launched is a world of one. */
static int join_by_environment(ms_world *world) {
  ms_task task;
  MS_TRY(ms_environment_read(&task));
  int rc = task.size > 1 ? meet_ranks(world, &task, NULL) : MS_OK;
  sodium_memzero(task.token, sizeof task.token);
  return rc;
}

/* The launcher of one node of several: the node's segment is there, the ranks of other nodes are met. The launcher
** tells why that failed. */
static int join_nodes(ms_world *world) {
  ms_task task;
  int row = 0, rc = ms_environment_read(&task);
  if (!rc) rc = meet_ranks(world, &task, world->control);
  sodium_memzero(task.token, sizeof task.token);
  if (rc && !ms_env_int("LOCAL_RANK", 0, 0, world->control->size - 1, &row))
    ms_control_give_up(world->control, row, row, ms_error_message());
  return rc;
}

static int join_launched(ms_world *world) {
  int rank, size;
  MS_TRY(ms_env_int("MOONSHARD_JOB_FD", -1, 0, 1 << 20, &world->fd));
  if (ms_control_map(world->fd, &world->control)) {
    ms_error_prefix("MOONSHARD_JOB_FD (was it inherited from a rank by a process that is none? then unset it, with "
                    "RANK and WORLD_SIZE)");
    return ms_error_code();
  }
  world->maps = 1;
  if (ms_env_string("MOONSHARD_RENDEZVOUS", NULL)) return join_nodes(world);
  MS_TRY(ms_env_int("WORLD_SIZE", world->control->size, 1, MS_MAX_LOCAL_RANKS, &size));
  MS_TRY(ms_env_int("RANK", 0, 0, world->control->size - 1, &rank));
  if (size != world->control->size)
    return MS_FAIL(MS_EINVAL, "WORLD_SIZE is %d, but the launcher made a job of %d ranks", size, world->control->size);
  take_place(world, world->control, rank);
  return MS_OK;
}

int ms_world_attach(ms_control *control, int rank, ms_world **world) {
  ms_world *joined;
  MS_TRY(make_world(&joined));
  take_place(joined, control, rank);
  *world = joined;
  return MS_OK;
}

int ms_world_alone(ms_world **world) {
  ms_world *alone;
  MS_TRY(make_world(&alone));
  int rc = open_private_recorder(alone);
  if (rc) ms_handle_release(alone, MS_HANDLE_WORLD);
  else *world = alone;
  return rc;
}

int ms_world_join(ms_world **world) {
  int rc = MS_OK, launched = ms_env_string("MOONSHARD_JOB_FD", NULL) != NULL;
  ms_world *joined;
  MS_TRY(ms_descriptors_fill());
  MS_TRY(make_world(&joined));
  if (launched) MS_GOTO(join_launched(joined));
  else MS_GOTO(join_by_environment(joined));
  if (!joined->control) MS_GOTO(open_private_recorder(joined));
  *world = joined;
  return MS_OK;
fail:
  ms_rendezvous_end(&joined->meeting);
  ms_handle_release(joined, MS_HANDLE_WORLD);
  return rc;
}

void ms_world_leave(ms_world *world) {
  if (!ms_handle_is_live(world, MS_HANDLE_WORLD)) return;
  ms_world *left = world;
  atomic_compare_exchange_strong(&joined_world, &left, NULL);
  if (world->control) {
    ms_termination_forget(&world->control->saves);
    atomic_store(&world->control->rank[world->row].state, MS_CONTROL_LEFT);
    for (int row = 0; row < world->control->size; row++)
      if (row != world->row) ms_control_ring(world->control, row);
    ms_rendezvous_end(&world->meeting); /* its thread uses the segment */
  }
  ms_handle_release(world, MS_HANDLE_WORLD); /* what works on it still has the segment, until it is released too */
}

/* ---- who and where ---- */

int ms_world_rank(const ms_world *world) {
  MS_HANDLE_OR(-1, world, WORLD);
  return world->rank;
}

int ms_world_size(const ms_world *world) {
  MS_HANDLE_OR(0, world, WORLD);
  return world->size;
}

int ms_world_nodes(const ms_world *world) {
  MS_HANDLE_OR(0, world, WORLD);
  return world->meeting.store ? world->meeting.nodes : 1;
}

int ms_world_node_of(const ms_world *world, int rank) {
  MS_HANDLE_OR(-1, world, WORLD);
  if (rank < 0 || rank >= world->size) return -1;
  return world->meeting.store ? world->meeting.node_of[rank] : 0;
}

int ms_world_node_ranks(const ms_world *world, int node) {
  MS_HANDLE_OR(0, world, WORLD);
  int ranks = 0;
  for (int rank = 0; rank < world->size; rank++) ranks += ms_world_node_of(world, rank) == node;
  return ranks;
}

const char *ms_world_node_name(const ms_world *world, int node) {
  MS_HANDLE_OR("", world, WORLD);
  if (node < 0 || node >= ms_world_nodes(world)) return "";
  return world->meeting.store ? world->meeting.name[node] : world->host;
}

int ms_world_local_rank(const ms_world *world) {
  MS_HANDLE_OR(-1, world, WORLD);
  return world->row;
}

int ms_world_rank_of_row(const ms_world *world, int row) {
  int rank = 0;
  for (int node = ms_world_node_of(world, world->rank), seen = -1; rank < world->size; rank++) {
    seen += ms_world_node_of(world, rank) == node;
    if (seen == row) break;
  }
  return rank;
}

int ms_world_check_one_node(const ms_world *world) {
  char hosts[1024];
  if (ms_world_nodes(world) == 1) return MS_OK;
  ms_rendezvous_describe(&world->meeting, world->size, hosts, sizeof hosts);
  return MS_FAIL(MS_EUNSUPPORTED,
                 "CPU collectives between hosts are not in this build; the %d ranks are on %d hosts: %s", world->size,
                 ms_world_nodes(world), hosts);
}

int ms_world_fd(const ms_world *world) { return world->fd; }

ms_control *ms_world_control(const ms_world *world) { return world->control; }

ms_recorder *ms_world_recorder(const ms_world *world) { return world->recorder; }

double ms_world_timeout(const ms_world *world) { return world->timeout; }

void ms_world_set_timeout(ms_world *world, double seconds) {
  MS_HANDLE_OR(, world, WORLD);
  world->timeout = seconds;
}

void ms_world_abort(ms_world *world, const char *why) {
  MS_HANDLE_OR(, world, WORLD);
  if (world->control) ms_control_give_up(world->control, world->row, world->row, why);
  if (ms_world_nodes(world) > 1) ms_store_abort(world->meeting.store, why);
}
