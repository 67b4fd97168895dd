/* world.h - a rank's view of its job: its rank, the nodes of all ranks, its flight recorder, and whether the job
 * continues. Implements moonshard.h's ms_world; bootstrap joins it.
 *
 * Ranks of one host share a control segment (comm/control). The launcher makes it before it starts the ranks, which
 * inherit it as file descriptor MOONSHARD_JOB_FD (with RANK, WORLD_SIZE, LOCAL_RANK). Ranks started by another launcher
 * meet at a store, and the first rank of each node makes the segment. Nothing has a name in the file system, so nothing
 * can be left behind.
 */
#ifndef MS_COMM_GROUP_WORLD_H
#define MS_COMM_GROUP_WORLD_H

#include "comm/recorder/flight_recorder.h"

/* What ms_world_describe says, one at a time. Ranks and nodes must exist. */
int ms_world_rank(const ms_world *world);
int ms_world_size(const ms_world *world);
int ms_world_nodes(const ms_world *world);
int ms_world_node_of(const ms_world *world, int rank);
const char *ms_world_node_name(const ms_world *world, int node);
int ms_world_local_rank(const ms_world *world);
/* A world of this rank only (bootstrap/join.c). */
int ms_world_join_alone(ms_world **world);
int ms_world_fd(const ms_world *world);
double ms_world_timeout(const ms_world *world);
void ms_world_set_timeout(ms_world *world, double seconds);
/* on: waits have no deadline, since others may wait for a person; they only end for ranks that a signal has stopped for
 * as long as the timeout. 0: the timeout holds again. */
void ms_world_wait_for_person(ms_world *world, int on);
/* The control segment; NULL in a world of one without a launcher. */
ms_control *ms_world_control(const ms_world *world);
/* This rank's flight recorder: in the control segment, or in private memory in a world of one without a launcher. Never
 * NULL. */
ms_recorder *ms_world_recorder(const ms_world *world);
/* Counts this rank among those of the host that wait for a save before they end; the launcher gives them time. */
void ms_world_count_finishing(ms_world *world, int change);
/* Notes whether the save of this rank, one of these, has progressed; returns how often those of the host have. */
uint32_t ms_world_finished(ms_world *world, int progressed);
/* How many failures this rank has noted since it last recovered (ms_world_note_failure). */
int64_t ms_world_failures(const ms_world *world);
/* MS_OK; or MS_EPEER with the rank that gave up or died and the reason; or MS_EINTERRUPT. Cheap: one load each. */
int ms_world_check(const ms_world *world);
/* The same of ranks alone, also while interrupts are deferred: for an operation that has failed here already. */
int ms_world_check_aborted(const ms_world *world);
/* Changes whenever this rank returns from ms_world_recover, which voids all operations in flight. */
unsigned ms_world_epoch(const ms_world *world);
/* MS_OK when these ranks share memory; otherwise MS_EUNSUPPORTED, naming the hosts. */
int ms_world_check_one_host(const ms_world *world, int n, const int *ranks);
/* Rings the doorbells of `n` ranks. */
void ms_world_ring(ms_world *world, const int *ranks, int n);
/* Sleep until this rank's doorbell rings, or `seconds` pass. `seen` is the doorbell's value (ms_world_doorbell) read
 * before the condition was tested, so no ring is lost. Spins briefly first when every rank has its own core, otherwise
 * yields once. */
unsigned ms_world_doorbell(const ms_world *world);
void ms_world_sleep(ms_world *world, unsigned seen, double seconds);
/* 1 while this rank has a core to itself, so that it can poll something else than its doorbell without sleeping. */
int ms_world_spins(const ms_world *world);
/* Where the executor notes the state that left collectives in flight between phases: they use channels that another
 * state of the same ranks needs, too. NULL: none. */
struct ms_state **ms_world_left_in_flight(ms_world *world);

#endif
