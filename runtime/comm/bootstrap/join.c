/* join.c - joins a process to its world, and leaves it: as a rank forked by the launcher, as a rank of another
 * launcher, on one node or several, or alone.
 */
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/config.h"
#include "base/env.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "comm/bootstrap/environment.h"
#include "comm/bootstrap/host_id.h"
#include "comm/bootstrap/join.h"
#include "comm/bootstrap/launcher_watch.h"
#include "comm/bootstrap/mirror/mirror.h"
#include "comm/bootstrap/rendezvous.h"
#include "comm/bootstrap/token.h"
#include "comm/collectives/hosts/progress_thread.h"
#include "comm/transport/choice.h"
#include "comm/diagnose/report.h"

static const double DEFAULT_TIMEOUT = 300.0;

int ms_world_read_timeout(double *seconds) {
  MS_TRY(ms_env_double("MOONSHARD_TIMEOUT", DEFAULT_TIMEOUT, seconds));
  if (*seconds > 0) return MS_OK;
  return MS_FAIL(MS_EINVAL, "environment variable MOONSHARD_TIMEOUT must be a number of seconds above 0, not %g",
                 *seconds);
}

/* The world's ring is the first of the flight recorder. */
static int open_recorder(ms_world *world, ms_recorder *recorder) {
  world->recorder = recorder;
  ms_recorder_ring_of(recorder, MS_RECORDER_WORLD);
  ms_recorder_ring_of(recorder, MS_RECORDER_OPENING); /* reserved now, so that one always exists */
  atomic_store(&recorder->since, ms_recorder_now());
  world->everyone = (ms_group){.world = world, .size = 1};
  return world->control ? ms_group_open_world(world, &world->everyone) : MS_OK;
}

/* Without a control segment no process reads the recorder, but its writers need not care. */
static int open_private_recorder(ms_world *world) {
  void *memory = mmap(NULL, sizeof(ms_recorder), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return MS_FAIL(MS_ENOMEM, "cannot map %zu bytes for the flight recorder", sizeof(ms_recorder));
  return open_recorder(world, memory);
}

/* The world's topology is already known. */
static int take_row(ms_world *world, ms_control *control) {
  ms_control_rank *row = &control->rank[world->rank];
  world->control = control;
  world->spin = control->local <= control->cores;
  atomic_store(&row->pid, (int32_t)getpid());
  MS_TRY(open_recorder(world, ms_recorder_in(control, world->rank)));
  atomic_store(&row->state, MS_CONTROL_JOINED);
  return MS_OK;
}

static int be_on_one_node(ms_world *world, int rank, int size) {
  world->rank = rank;
  world->size = size;
  return ms_topology_make(size, 0, NULL, &world->topology);
}

static int take_place(ms_world *world, ms_control *control, int rank) {
  MS_TRY(be_on_one_node(world, rank, control->size));
  return take_row(world, control);
}

static int be_alone(ms_world *world) {
  MS_TRY(be_on_one_node(world, 0, 1));
  return open_private_recorder(world);
}

static void destroy_world(void *object) {
  ms_world *world = object;
  ms_launcher_watch_stop(world->launcher_watch);
  ms_progress_close(world->progress);
  ms_group_close(&world->everyone);
  if (!world->control && world->recorder) munmap(world->recorder, sizeof *world->recorder);
  if (world->maps) ms_control_unmap(world->control);
  if (world->owns_fd) close(world->fd);
  ms_topology_free(&world->topology);
  free(world->node_name);
}

/* The world joined by a rendezvous, for the exit handler: a process that exits normally did not die. */
static _Atomic(ms_world *) joined_world;

/* Running work keeps the segment until it is released as well. */
static void leave_world(void *object) {
  ms_world *world = object, *left = world;
  atomic_compare_exchange_strong(&joined_world, &left, NULL);
  if (!world->control) return;
  ms_termination_forget(&world->control->saves);
  atomic_store(&world->control->rank[world->rank].state, MS_CONTROL_LEFT);
  for (int rank = 0; rank < world->size; rank++)
    if (rank != world->rank) ms_control_ring(world->control, rank);
  ms_store_close(world->store); /* its thread uses the segment */
  ms_mirror_close(world);
  world->store = NULL;
}

/* Not yet with ranks or a flight recorder. timeout 0: what the environment says. */
static int make_world(double timeout, ms_world **world) {
  ms_world *made = ms_handle_new(MS_HANDLE_WORLD, sizeof *made, destroy_world);
  if (!made) return MS_ENOMEM;
  made->handle.leave = leave_world;
  made->fd = -1;
  made->diagnosis = &ms_report_diagnosis;
  ms_host_name(made->host, sizeof made->host);
  made->timeout = timeout;
  int rc = timeout > 0 ? MS_OK : ms_world_read_timeout(&made->timeout);
  if (rc) ms_handle_release(made, MS_HANDLE_WORLD);
  else *world = made;
  return rc;
}

/* ---- ranks not forked by one launcher ---- */

static void leave_at_exit(void) {
  ms_world *world = atomic_exchange(&joined_world, NULL);
  /* A child forked by the program is not the rank. */
  if (!world || atomic_load(&world->control->rank[world->rank].pid) != (int32_t)getpid()) return;
  atomic_store(&world->control->rank[world->rank].state, MS_CONTROL_LEFT);
  int row, blame;
  ms_store_leave_at_exit(world->store, ms_control_aborted(world->control, &row, &blame) != NULL);
  ms_mirror_close(world);
}

static int open_transport(ms_world *world, const ms_task *task) {
  const char *token;
  const ms_transport_api *api;
  char why[MS_TRANSPORT_WHY];
  MS_TRY(ms_token_of_job(task->token, &token));
  MS_TRY(ms_transport_choose(&api, why));
  return ms_progress_open(world, api, token, task->job);
}

static int come_together(ms_world *world, const ms_task *task, ms_control *inherited) {
  static atomic_flag registered = ATOMIC_FLAG_INIT;
  ms_rendezvous_result result;
  MS_TRY(ms_rendezvous(task, world->timeout, inherited, &result));
  world->store = result.store;
  world->topology = result.topology;
  world->node_name = result.node_name;
  if (!inherited) {
    world->fd = result.fd;
    world->owns_fd = world->fd >= 0;
  }
  world->maps = 1;
  world->rank = task->rank;
  world->size = task->size;
  MS_TRY(take_row(world, result.control));
  if (world->topology.nodes > 1) ms_mirror_open(world);
  MS_TRY(ms_store_watch(world->store, &ms_mirror_listener, world));
  if (world->topology.nodes > 1) MS_TRY(open_transport(world, task));
  if (!inherited && task->set_by) MS_TRY(ms_launcher_watch_start(task->set_by, world->control, &world->launcher_watch));
  if (!atomic_flag_test_and_set(&registered)) atexit(leave_at_exit);
  atomic_store(&joined_world, world);
  return MS_OK;
}

/* ---- joining ---- */

/* Ranks of other launchers; a process without a launcher is a world of one. */
static int join_by_environment(ms_world *world) {
  ms_task task;
  MS_TRY(ms_environment_read(&task));
  int rc = task.size > 1 ? come_together(world, &task, NULL) : MS_OK;
  sodium_memzero(task.token, sizeof task.token);
  return rc;
}

/* Ranks of one node's launcher in a job of several nodes: the node's segment exists, and the ranks of other nodes are
 * met at the store. The launcher reports the cause of a failure. */
static int join_nodes(ms_world *world) {
  ms_task task;
  int rank = 0, rc = ms_environment_read(&task);
  if (!rc) rc = come_together(world, &task, world->control);
  sodium_memzero(task.token, sizeof task.token);
  if (!rc || ms_env_int("RANK", 0, 0, world->control->size - 1, &rank)) return rc;
  /* A lost connection to the store is no fault of this rank. */
  int innocent = rank > 0 && (rc == MS_EPEER || rc == MS_EIO);
  ms_control_give_up(world->control, rank, innocent ? -1 : rank, ms_error_message());
  return rc;
}

static int join_launched(ms_world *world) {
  int rank, size;
  MS_TRY(ms_env_int("MOONSHARD_JOB_FD", -1, 0, 1 << 20, &world->fd));
  if (ms_control_map(world->fd, &world->control)) {
    ms_error_prefix("MOONSHARD_JOB_FD (if this process inherited it but is not a rank, unset it, and also "
                    "RANK and WORLD_SIZE)");
    return ms_error_code();
  }
  world->maps = 1;
  if (ms_env_string("MOONSHARD_RENDEZVOUS", NULL)) return join_nodes(world);
  MS_TRY(ms_env_int("WORLD_SIZE", world->control->size, 1, MS_MAX_RANKS, &size));
  MS_TRY(ms_env_int("RANK", 0, 0, world->control->size - 1, &rank));
  if (size != world->control->size)
    return MS_FAIL(MS_EINVAL, "WORLD_SIZE is %d, but the launcher started a job of %d ranks", size,
                   world->control->size);
  return take_place(world, world->control, rank);
}

int ms_world_attach(ms_control *control, int rank, ms_world **world) {
  ms_world *joined;
  MS_TRY(make_world(0, &joined));
  int rc = take_place(joined, control, rank);
  if (rc) ms_handle_release(joined, MS_HANDLE_WORLD);
  else *world = joined;
  return rc;
}

static int join(const ms_world_config *config, ms_world **world) {
  int rc = MS_OK, launched = ms_env_string("MOONSHARD_JOB_FD", NULL) != NULL;
  ms_world *joined;
  MS_TRY(ms_descriptors_fill());
  MS_TRY(make_world(config->timeout, &joined));
  if (!config->alone && launched) MS_GOTO(join_launched(joined));
  if (!config->alone && !launched) MS_GOTO(join_by_environment(joined));
  if (!joined->control) MS_GOTO(be_alone(joined));
  *world = joined;
  return MS_OK;
fail:
  ms_store_close(joined->store);
  ms_handle_release(joined, MS_HANDLE_WORLD);
  return rc;
}

int ms_world_join(const ms_world_config *given, ms_world **world) {
  MS_GIVEN(world);
  ms_world_config config;
  MS_TRY(ms_config_default("ms_world_config", &config, sizeof config));
  if (given) MS_TRY(ms_config_take(&config, sizeof config, given, "ms_world_config"));
  if (config.timeout < 0 || !isfinite(config.timeout))
    return MS_FAIL(MS_EINVAL, "timeout is %g; it must be above 0, or 0, the default", config.timeout);
  return join(&config, world);
}

int ms_world_join_alone(ms_world **world) {
  const ms_world_config alone = {.alone = 1};
  return join(&alone, world);
}
