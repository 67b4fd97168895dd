/* move.h - which rank moves which bytes in a collective; comm.c tells when. Internal to comm.
**
** An all-reduce has four ways, chosen part by part from what all ranks know:
**   sliced: each rank sums what it alone is to have;
**   in place: each rank sums its own slice of every source and stores it into every rank's buffer, in one pass;
**   few ranks, few bytes, or a sum that the source's type would round: each rank reads all sources;
**   else each rank sums its slice into its source, and then all copy the slices of the others.
*/
#ifndef MS_COMM_COLLECTIVES_MOVE_H
#define MS_COMM_COLLECTIVES_MOVE_H

#include "comm/collectives/comm.h"

enum ms_move_way { MS_MOVE_DIRECT = 0, MS_MOVE_PUSH = 1, MS_MOVE_PULL = 2 };

/* How a part of an all-reduce is done among `size` ranks; me: the group rank. */
enum ms_move_way ms_move_way(int size, int me, const ms_coll *coll, const ms_coll_part *part);
/* This rank's share, once all have entered (of a broadcast: the root; of a recv: the sender). */
void ms_move_share(int size, int me, const ms_coll *coll);
/* Whether a second movement follows, once the share of every rank is done; and that movement. */
int ms_move_pulls(int size, int me, const ms_coll *coll);
void ms_move_pull(int size, int me, const ms_coll *coll);

#endif
