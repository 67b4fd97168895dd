/* threads_transport.c - a transport among the threads of one process, on what all transports have in common
 * (comm/transport/peers.h): credits and cancellations are calls, and a send is copied to its receive at once. One lock
 * guards all endpoints. A sender moves bytes to the receiver's memory; each endpoint ends its own transfers, in
 * progress.
 */
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/collectives/hosts/hosts.h"
#include "comm/transport/peers.h"
#include "tests/c/support/ranks/fake_hosts.h"

struct ms_endpoint {
  ms_peers common;
  int cut;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int held;
static ms_endpoint *endpoints[MAX_HOST_RANKS]; /* by rank; NULL: none, or it has left */

static ms_peer *peer_at(const ms_endpoint *endpoint, int i) { return (ms_peer *)endpoint->common.first + i; }

/* ---- peers, with the lock ---- */

static int name_peer(ms_endpoint *endpoint, int rank, const uint8_t *address) {
  if (address[0] != rank) return MS_FAIL(MS_EINVAL, "this is not the address of rank %d", rank);
  if (ms_peers_find(&endpoint->common, rank)) return MS_OK;
  ms_peer *peer = ms_peers_add(&endpoint->common, rank);
  if (!peer) return MS_ENOMEM;
  peer->state = MS_PEER_UP;
  endpoint->common.n_up++;
  return MS_OK;
}

static void end_failed(ms_endpoint *endpoint, ms_peer *peer, int say) {
  (void)say;
  endpoint->common.n_up--;
  peer->state = MS_PEER_GONE;
  peer->report = MS_PEER_DUE;
  ms_keys_fail(&peer->keys);
}

/* Nothing is ever under way. */
static void let_go(ms_endpoint *endpoint, ms_peer *peer, ms_key *key) { (void)endpoint, (void)peer, (void)key; }

static const ms_peer_calls calls = {.name = name_peer, .end = end_failed, .let_go = let_go};

/* This rank as the peer sees it. NULL: it does not see it any more, or not yet. */
static ms_peer *other_side(const ms_endpoint *endpoint, const ms_peer *peer) {
  const ms_endpoint *other = endpoints[peer->rank];
  return other && !other->cut && !endpoint->cut ? ms_peers_find(&other->common, endpoint->common.config.rank) : NULL;
}

static void must_be_right(const char *wrong) {
  if (!wrong || !*wrong) return;
  fprintf(stderr, "threads transport: %s\n", wrong);
  abort();
}

/* ---- moving, with the lock ---- */

/* These return whether the peer has something new. */
static int tell(ms_peer *peer, ms_peer *self) {
  ms_key_notice notice;
  int told = 0;
  for (; ms_keys_next_notice(&peer->keys, &notice); told = 1)
    must_be_right(notice.cancels ? ms_keys_take_cancel(&self->keys, notice.key)
                                 : ms_keys_take_credit(&self->keys, notice.key, notice.number, notice.bytes));
  return told;
}

static void send_next(ms_key *key, ms_key *to) {
  const ms_transfer *send = key->sends.next;
  must_be_right(ms_key_check_data(to, send->number, 0, send->bytes));
  memcpy(to->receives.next->data, send->data, (size_t)send->bytes);
  ms_key_begin(&key->sends, send->bytes);
  ms_key_begin(&to->receives, send->bytes);
}

/* Whole transfers; all but first messages are kept back while `held`. */
static int send_all(const ms_endpoint *endpoint, ms_peer *peer, ms_peer *self) {
  char why[MS_KEY_SIZES];
  int sent = 0;
  for (int kept = 0; kept < peer->keys.reach;) {
    ms_key *key = ms_keys_next_send(&peer->keys, endpoint->common.config.rank, why);
    must_be_right(why);
    if (!key) return sent;
    if (held && key->sends.next->bytes != sizeof(ms_hosts_signature)) {
      kept++;
      continue;
    }
    send_next(key, ms_keys_find(&self->keys, key->key));
    sent = 1;
  }
  return sent;
}

static void move(ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->common.n; i++) {
    ms_peer *peer = peer_at(endpoint, i), *self = other_side(endpoint, peer);
    if (!self || !ms_peer_is_live(peer) || !ms_peer_is_live(self)) continue;
    const int told = tell(peer, self), sent = send_all(endpoint, peer, self);
    if (told || sent) ms_peers_wake(endpoints[peer->rank]);
  }
}

/* ---- the ends of transfers, with the lock ---- */

static void end_queue(ms_key_queue *queue, int64_t *count) {
  while (queue->first && queue->first != queue->next) {
    *count += queue->first->bytes;
    ms_key_moved(queue, queue->first, queue->first->bytes);
  }
}

static int is_gone(const ms_endpoint *endpoint, int peer) {
  return endpoint->cut || !endpoints[peer] || endpoints[peer]->cut;
}

static void collect(ms_endpoint *endpoint) {
  for (int i = 0; i < endpoint->common.n; i++) {
    ms_peer *peer = peer_at(endpoint, i);
    for (int k = 0; k < peer->keys.reach; k++) {
      end_queue(&peer->keys.slot[k].sends, &endpoint->common.counts.sent);
      end_queue(&peer->keys.slot[k].receives, &endpoint->common.counts.received);
    }
    if (is_gone(endpoint, peer->rank) && ms_keys_are_awaited(&peer->keys))
      ms_peer_fail(endpoint, peer, 0, "unreachable");
  }
}

/* ---- the table ---- */

static int open_endpoint(const ms_transport_config *config, ms_endpoint **endpoint) {
  int rc;
  *endpoint = NULL;
  if (config->rank >= MAX_HOST_RANKS)
    return MS_FAIL(MS_EINVAL, "the transport of threads has no rank %d", config->rank);
  ms_endpoint *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  MS_GOTO(ms_peers_open(&made->common, config, sizeof(ms_peer), &calls));
  memset(made->common.address, config->rank, sizeof made->common.address);
  pthread_mutex_lock(&lock);
  *endpoint = endpoints[config->rank] = made;
  pthread_mutex_unlock(&lock);
  return MS_OK;
fail:
  ms_peers_close(&made->common);
  free(made);
  return rc;
}

static int connect_peers(ms_endpoint *endpoint, int n, const int *ranks, const void *addresses) {
  pthread_mutex_lock(&lock);
  int rc = ms_peers_connect(endpoint, n, ranks, addresses);
  pthread_mutex_unlock(&lock);
  return rc;
}

static int overlap(const ms_transfer *a, const ms_transfer *b) {
  const char *from = a->data, *other = b->data;
  return other < from + a->bytes && from < other + b->bytes;
}

/* The memory of a posted transfer belongs to the endpoint. */
static int is_taken(const ms_endpoint *endpoint, const ms_transfer *receive) {
  for (int i = 0; i < endpoint->common.n && receive->receives; i++) {
    const ms_keys *keys = &peer_at(endpoint, i)->keys;
    for (int k = 0; k < keys->reach; k++) {
      if (!keys->slot[k].used) continue;
      for (const ms_transfer *t = keys->slot[k].sends.first; t; t = t->next)
        if (overlap(t, receive)) return 1;
      for (const ms_transfer *t = keys->slot[k].receives.first; t; t = t->next)
        if (overlap(t, receive)) return 1;
    }
  }
  return 0;
}

static int post(ms_endpoint *endpoint, ms_transfer *transfer) {
  pthread_mutex_lock(&lock);
  int rc = is_taken(endpoint, transfer) ? MS_FAIL(MS_EINVAL, "a receive into memory that belongs to another transfer")
                                        : ms_peers_post(endpoint, transfer);
  pthread_mutex_unlock(&lock);
  ms_peers_wake(endpoint);
  return rc;
}

static int progress(ms_endpoint *endpoint, double seconds) {
  struct pollfd woken = {.fd = endpoint->common.wake, .events = POLLIN};
  if (poll(&woken, 1, (int)ceil(seconds * 1e3)) > 0) ms_peers_take_wake(&endpoint->common);
  pthread_mutex_lock(&lock);
  move(endpoint);
  collect(endpoint);
  pthread_mutex_unlock(&lock);
  ms_peers_report(endpoint);
  return MS_OK;
}

static void cancel(ms_endpoint *endpoint, uint64_t key) {
  pthread_mutex_lock(&lock);
  ms_peers_cancel(endpoint, key);
  move(endpoint);
  pthread_mutex_unlock(&lock);
}

static void wake_all(void) {
  for (int rank = 0; rank < MAX_HOST_RANKS; rank++)
    if (endpoints[rank]) ms_peers_wake(endpoints[rank]);
}

static void close_endpoint(ms_endpoint *endpoint) {
  if (!endpoint) return;
  pthread_mutex_lock(&lock);
  endpoints[endpoint->common.config.rank] = NULL;
  wake_all();
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < endpoint->common.n; i++) ms_keys_fail(&peer_at(endpoint, i)->keys);
  ms_peers_close(&endpoint->common);
  free(endpoint);
}

void cut_off_rank(int rank) {
  pthread_mutex_lock(&lock);
  endpoints[rank]->cut = 1;
  wake_all();
  pthread_mutex_unlock(&lock);
}

int has_peer(int rank, int other) { return ms_peers_find(&endpoints[rank]->common, other) != NULL; }

void hold_pieces(int hold) {
  pthread_mutex_lock(&lock);
  held = hold;
  wake_all();
  pthread_mutex_unlock(&lock);
}

const ms_transport_api threads_transport = {.name = "threads",
                                            .open = open_endpoint,
                                            .address = ms_peers_get_address,
                                            .connect = connect_peers,
                                            .connected = ms_peers_connected,
                                            .post = post,
                                            .progress = progress,
                                            .wake = ms_peers_wake,
                                            .cancel = cancel,
                                            .counts = ms_peers_get_counts,
                                            .close = close_endpoint};
