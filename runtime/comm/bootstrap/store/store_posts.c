/* store_posts.c - passes posts on, in the order in which a rank sent them. */
#include "comm/bootstrap/store/store_posts.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

/* Seconds between two LOOKs that are passed on, and the number of hosts from which on this grows: every host answers
 * with the records of all its ranks, and every other host gets them. */
static const double LOOK_SECONDS = 0.3;
enum { MANY_HOSTS = 16 };

int ms_store_posts_open(ms_store_posts *posts, ms_store_peer **member, int size) {
  *posts = (ms_store_posts){.member = member, .size = size};
  posts->node_of = ms_calloc(size, sizeof *posts->node_of);
  posts->receiver = ms_calloc(size, sizeof *posts->receiver);
  posts->asked = ms_calloc(size, sizeof *posts->asked);
  posts->answers = ms_calloc(size, sizeof *posts->answers);
  if (!posts->node_of || !posts->receiver || !posts->asked || !posts->answers) return MS_ENOMEM;
  for (int rank = 0; rank < size; rank++) posts->node_of[rank] = posts->receiver[rank] = posts->asked[rank] = -1;
  return MS_OK;
}

void ms_store_posts_close(ms_store_posts *posts) {
  free(posts->node_of);
  free(posts->receiver);
  free(posts->asked);
  free(posts->answers);
}

static void choose_receiver(ms_store_posts *posts, int node) {
  posts->receiver[node] = -1;
  for (int rank = 0; rank < posts->size && posts->receiver[node] < 0; rank++)
    if (posts->node_of[rank] == node && posts->member[rank] && !posts->member[rank]->left) posts->receiver[node] = rank;
}

int ms_store_posts_take_node(ms_store_posts *posts, ms_store_peer *peer, const uint8_t *body, uint32_t bytes) {
  if (bytes != 4 || posts->node_of[peer->rank] >= 0) return 0;
  uint32_t node = ms_wire_get32(body);
  if (node >= (uint32_t)posts->size) return 0;
  if (!ms_store_peer_allow_posts(peer)) peer->broken = 1;
  posts->node_of[peer->rank] = (int)node;
  if ((int)node >= posts->nodes) posts->nodes = (int)node + 1;
  choose_receiver(posts, (int)node);
  return 1;
}

/* Sends `from`'s post to the receivers of the other hosts. */
static void pass_on(const ms_store_posts *posts, int from, const uint8_t *post, uint32_t bytes) {
  uint8_t body[4 + MS_STORE_LONGEST_POST];
  ms_wire_put32(body, (uint32_t)from);
  memcpy(body + 4, post, bytes);
  for (int node = 0; node < posts->nodes; node++) {
    int to = posts->receiver[node];
    if (node == posts->node_of[from] || to < 0) continue;
    /* A receiver that died is being reported: its host's ranks will fail. */
    if (posts->member[to]) ms_store_peer_send(posts->member[to], MS_WIRE_POSTED, body, 4 + (size_t)bytes);
  }
}

/* The next rank of a host after `rank`, in a circle; -1: all have left. */
static int next_rank(const ms_store_posts *posts, int node, int rank) {
  for (int i = 1; i <= posts->size; i++) {
    int next = (rank + i) % posts->size;
    if (posts->node_of[next] == node && posts->member[next] && !posts->member[next]->left) return next;
  }
  return -1;
}

/* Every host answers, also that of the rank that asks: hosts whose LOOKs come too often need that answer. Any rank
 * can answer for its host. One that has not answered the last time may be stopped, so the next one is asked. */
static void ask_hosts(ms_store_posts *posts, int from) {
  uint8_t body[8];
  ms_wire_put32(body, (uint32_t)from);
  ms_wire_put32(body + 4, MS_POST_LOOK);
  for (int node = 0; node < posts->nodes; node++) {
    int *asked = &posts->asked[node];
    if (*asked < 0 || !posts->answers[node] || !posts->member[*asked]) *asked = next_rank(posts, node, *asked);
    posts->answers[node] = 0;
    if (*asked >= 0) ms_store_peer_send(posts->member[*asked], MS_WIRE_POSTED, body, sizeof body);
  }
}

int ms_store_posts_take_post(ms_store_posts *posts, const ms_store_peer *peer, const uint8_t *body, uint32_t bytes) {
  if (bytes < 4 || posts->node_of[peer->rank] < 0) return 0;
  uint32_t kind = ms_wire_get32(body);
  if (!kind || kind >= MS_POST_KINDS || kind == MS_POST_LEFT) return 0;
  if (kind == MS_POST_LOOK) {
    double now = ms_clock(), pause = LOOK_SECONDS * (1 + posts->nodes / MANY_HOSTS);
    if (now < posts->looked_at + pause) return 1;
    posts->looked_at = now;
    ask_hosts(posts, peer->rank);
    return 1;
  }
  if (kind == MS_POST_RECORDS) posts->answers[posts->node_of[peer->rank]] = 1;
  pass_on(posts, peer->rank, body, bytes);
  return 1;
}

void ms_store_posts_take_leave(ms_store_posts *posts, const ms_store_peer *peer) {
  uint8_t left[4];
  int node = posts->node_of[peer->rank];
  if (node < 0) return;
  choose_receiver(posts, node);
  ms_wire_put32(left, MS_POST_LEFT);
  pass_on(posts, peer->rank, left, sizeof left);
}
