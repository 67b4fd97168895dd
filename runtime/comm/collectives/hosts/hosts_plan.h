/* hosts_plan.h - which rank sends which elements to whom when the ranks of a group are on several hosts. Pure
 * functions: every rank computes the same answers from the group, and neither side of a link says more than sizes that
 * the other knows. Internal to collectives.
 *
 * Hosts are numbered in the order of their lowest group rank. What belongs to a rank (a chunk, a slice: its region) is
 * handled on every host by one rank: on its own host by itself, on another host by the rank with the same place among
 * the local ranks, modulo their number. The handler gives and takes the region's elements for its whole host, so they
 * cross each link once:
 *   all_gather       the owner sends its chunk to its handlers
 *   reduce_scatter   the handlers send their hosts' partial sums of the chunk to its owner
 *   all_reduce       both, with a slice for each rank; the slices of a host make up 1/H of the buffer
 *   all_to_all       the handlers send the chunks that their hosts' ranks have for its owner, one after the other
 *   broadcast        the handlers on the root's host send the ranks of each other host a part of it
 */
#ifndef MS_COMM_COLLECTIVES_HOSTS_PLAN_H
#define MS_COMM_COLLECTIVES_HOSTS_PLAN_H

#include "comm/collectives/comm.h"

enum { MS_HOSTS_PIECE = 256 << 10 }; /* bytes that are summed and sent at a time */

typedef struct ms_hosts_shape {
  int size, me, hosts;
  int *host_of;  /* [size] by group rank */
  int *place_of; /* [size]: place among the ranks of its host, in group order */
  int *member;   /* [size]: group ranks, host by host */
  int *first;    /* [hosts + 1]: the first member of each host */
} ms_hosts_shape;

/* node: [size], from 0: a number of each host. The caller frees the shape, after an error too. */
int ms_hosts_shape_make(int size, int me, const int *node, ms_hosts_shape *shape);
void ms_hosts_shape_free(ms_hosts_shape *shape);

/* The group rank that handles p's region on a host. */
int ms_hosts_handler(const ms_hosts_shape *shape, int host, int p);
/* 1: on their hosts, one of them handles the other. Only partners exchange bytes. */
int ms_hosts_are_partners(const ms_hosts_shape *shape, int a, int b);

/* Elements [first, first + n) of a buffer. */
typedef struct ms_hosts_range {
  int64_t first, n;
} ms_hosts_range;

/* Rank p's region of a part. asked: what p receives of a sliced sum, otherwise unused. */
ms_hosts_range ms_hosts_region(const ms_hosts_shape *shape, const ms_coll *coll, int part, int p, ms_hosts_range asked);
/* The type in which elements of a part travel. */
int ms_hosts_wire_dtype(const ms_coll *coll, int part);

/* A piece of a region: elements [first, first + n) of the part's buffer; `within`: the first one's place in the
 * region. */
typedef struct ms_hosts_piece {
  int part, from; /* from: all_to_all: the rank in whose buffer they are */
  int64_t first, n, within;
} ms_hosts_piece;

/* Walks over the pieces of rank p's regions, part by part; in an all_to_all for each rank of `host`. */
typedef struct ms_hosts_walk {
  int p, part;
  int host, member;            /* all_to_all: the host whose ranks' buffers are walked over, and the place there */
  int64_t done;                /* elements of the current part */
  const ms_hosts_range *asked; /* [parts]; NULL: the sum is not sliced */
} ms_hosts_walk;

/* The next piece; 0: there are no more. */
int ms_hosts_next_piece(const ms_hosts_shape *shape, const ms_coll *coll, ms_hosts_walk *walk, ms_hosts_piece *piece);

/* Bytes of buffers that rank p sends to and receives from other hosts in an operation that is not sliced. */
void ms_hosts_bytes(const ms_hosts_shape *shape, const ms_coll *coll, int p, int64_t *sent, int64_t *received);
/* Bytes that rank p reads in the same operation of what other ranks of its host have written. With one host these are
 * the bytes of ms_coll_bytes. */
int64_t ms_hosts_bytes_inside(const ms_hosts_shape *shape, const ms_coll *coll, int p);

#endif
