/* store_posts.h - the store's part in a world of several hosts: which ranks are on which host, and where a post goes.
 * Internal to comm.
 *
 * Each host has one receiver, its lowest connected rank, which writes posts into the host's control segment. A
 * LOOK goes to one rank of each host, not always the same. */
#ifndef MS_COMM_BOOTSTRAP_STORE_POSTS_H
#define MS_COMM_BOOTSTRAP_STORE_POSTS_H

#include "comm/bootstrap/store/store_peer.h"

typedef struct ms_store_posts {
  ms_store_peer **member; /* [size] by rank; belongs to the server */
  int size, nodes;        /* nodes: known so far */
  int *node_of;           /* [size]; -1: the rank has not said */
  int *receiver;          /* [nodes]: a rank; -1: all ranks of the host have left */
  int *asked;             /* [nodes]: the rank that the last LOOK went to; -1: none */
  uint8_t *answers;       /* [nodes]: it has answered since */
  double looked_at;       /* when the last LOOK was passed on */
} ms_store_posts;

int ms_store_posts_open(ms_store_posts *posts, ms_store_peer **member, int size);
void ms_store_posts_close(ms_store_posts *posts);
/* These return 0 when the frame makes no sense. */
int ms_store_posts_take_node(ms_store_posts *posts, ms_store_peer *peer, const uint8_t *body, uint32_t bytes);
int ms_store_posts_take_post(ms_store_posts *posts, const ms_store_peer *peer, const uint8_t *body, uint32_t bytes);
/* A rank leaves in order. */
void ms_store_posts_take_leave(ms_store_posts *posts, const ms_store_peer *peer);

#endif
