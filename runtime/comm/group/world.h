/* world.h - the ranks of a job as one of them sees them: which rank this process is, on which nodes the ranks are, its
** flight recorder, and whether the job goes on. What the header calls ms_world; joining it is bootstrap's.
**
** Ranks of one host share a control segment (comm/control). The launcher makes it before it starts the ranks; they
** inherit it as file descriptor MOONSHARD_JOB_FD (with RANK, WORLD_SIZE, LOCAL_RANK). Ranks that another launcher started
** meet at a store, and the first of each node makes it. Nothing has a name in the file system, so nothing can be left
** behind.
*/
#ifndef MS_COMM_GROUP_WORLD_H
#define MS_COMM_GROUP_WORLD_H

#include "comm/recorder/flight_recorder.h"

int ms_world_fd(const ms_world *world);
double ms_world_timeout(const ms_world *world);
/* The control segment; NULL in a world of one that no launcher made. */
ms_control *ms_world_control(const ms_world *world);
/* This rank's flight recorder: in the control segment, or in a world of one without a launcher private memory. Never
** NULL. */
ms_recorder *ms_world_recorder(const ms_world *world);
/* MS_OK, or MS_EPEER with who gave up or died and why, or MS_EINTERRUPT. Cheap: one load each. */
int ms_world_check(const ms_world *world);
/* Changes whenever this rank comes back from ms_world_recover: what was under way before is void. */
unsigned ms_world_epoch(const ms_world *world);
/* MS_OK when all ranks share memory; else MS_EUNSUPPORTED, naming the hosts. */
int ms_world_check_one_node(const ms_world *world);
/* Rings the doorbells of `n` ranks. */
void ms_world_ring(ms_world *world, const int *ranks, int n);
/* Sleeps until this rank's doorbell rings, or `seconds` pass; `seen` is the doorbell's value read before the condition
** was tested (ms_world_doorbell), so no ring is lost. Spins briefly first when every rank has a core, and yields once
** when not. */
unsigned ms_world_doorbell(const ms_world *world);
void ms_world_sleep(ms_world *world, unsigned seen, double seconds);

#endif
