/* other_hosts.h - what a wait needs to know about ranks of other hosts: how recent this host's image of them is, and
 * which hosts do not answer. In a world on one host all of this is empty. Internal to group. */
#ifndef MS_COMM_GROUP_OTHER_HOSTS_H
#define MS_COMM_GROUP_OTHER_HOSTS_H

#include "comm/group/world.h"

/* Asks the other hosts for their ranks' flight recorders, if one of these ranks is there. */
void ms_world_look_at(ms_world *world, const ms_rank_set *ranks);
/* 1 when a rank of another host gave up, and ranks of other hosts are missing: what they entered before that can still
 * be on its way here. */
int ms_world_gave_up_elsewhere(const ms_world *world, const ms_rank_set *missing);
/* Whether all ranks of other hosts in the set were reported after this time (ms_clock), and what they posted before the
 * report has come. */
int ms_world_has_heard(const ms_world *world, const ms_rank_set *ranks, double since);
/* Asks all other hosts and waits about a second for their answers. Writes "; host b (ranks 2-3) does not answer" for
 * those without one; or which rank of this host is stopped, so that no answer can come. */
void ms_world_poll_hosts(ms_world *world, char *silent, size_t bytes);

#endif
