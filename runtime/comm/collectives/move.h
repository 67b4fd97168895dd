/* move.h - decides which rank moves which bytes in a collective, and moves them; comm.c decides when. Internal to comm.
 *
 * An all-reduce has four ways, chosen per part from facts that all ranks share:
 *   sliced: each rank sums only the elements that it receives;
 *   in place: each rank sums its own slice of every source and stores it into every rank's buffer, in one pass;
 *   few ranks, few bytes, or a sum that the source's type would round: each rank reads all sources;
 *   otherwise each rank sums its slice into its own source, and then copies the slices of the others.
 */
#ifndef MS_COMM_COLLECTIVES_MOVE_H
#define MS_COMM_COLLECTIVES_MOVE_H

#include "comm/collectives/comm.h"

enum ms_move_way { MS_MOVE_DIRECT = 0, MS_MOVE_PUSH = 1, MS_MOVE_PULL = 2 };

/* The way in which `size` ranks do one part of an all-reduce; me: the group rank. */
enum ms_move_way ms_move_way(int size, int me, const ms_coll *coll, const ms_coll_part *part);
/* Moves this rank's share, once all have entered (broadcast: the root; recv: the sender). */
void ms_move_share(int size, int me, const ms_coll *coll);
/* Returns whether a second movement follows once every rank has moved its share; ms_move_pull does it. */
int ms_move_pulls(int size, int me, const ms_coll *coll);
void ms_move_pull(int size, int me, const ms_coll *coll);
/* Elements [first, first + n) of what this rank contributes to an all_gather, as its result has them (cast_chunk.c). */
void ms_cast_chunk(const ms_coll_part *part, int64_t first, int64_t n, void *to);

#endif
