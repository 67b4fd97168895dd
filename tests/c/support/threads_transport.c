/* threads_transport.c - a transport among the threads of one process. All endpoints share one lock. A receive is copied
 * from the matching send once both are posted; each endpoint changes the states of its own transfers, in progress.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "comm/collectives/hosts.h"
#include "tests/c/support/fake_hosts.h"

/* How many transfers of a key and direction were posted to a peer. */
typedef struct sequence {
  int peer, receives;
  uint64_t key, posted;
  struct sequence *next;
} sequence;

typedef struct posted {
  ms_transfer *transfer;
  int peer, receives, moved;
  uint64_t key, number;
  struct posted *next;
} posted;

struct ms_endpoint {
  ms_transport_config config;
  posted *first;
  sequence *sequences;
  int n_peers, peer[MOST_HOST_RANKS], reported[MOST_HOST_RANKS];
  int woken, cut;
  ms_transport_counts counts;
  pthread_cond_t changed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int held;
static ms_endpoint *endpoints[MOST_HOST_RANKS]; /* by rank; NULL: none, or it has left */

static void stir(ms_endpoint *endpoint) {
  endpoint->woken = 1;
  pthread_cond_signal(&endpoint->changed);
}

static int open_endpoint(const ms_transport_config *config, ms_endpoint **endpoint) {
  if (config->rank >= MOST_HOST_RANKS)
    return MS_FAIL(MS_EINVAL, "the transport of threads has no rank %d", config->rank);
  *endpoint = ms_calloc(1, sizeof **endpoint);
  if (!*endpoint) return MS_ENOMEM;
  (*endpoint)->config = *config;
  pthread_cond_init(&(*endpoint)->changed, NULL);
  pthread_mutex_lock(&lock);
  endpoints[config->rank] = *endpoint;
  pthread_mutex_unlock(&lock);
  return MS_OK;
}

static int get_address(const ms_endpoint *endpoint, void *address) {
  memset(address, endpoint->config.rank, MS_TRANSPORT_ADDRESS);
  return MS_OK;
}

static int is_peer(const ms_endpoint *endpoint, int rank) {
  for (int i = 0; i < endpoint->n_peers; i++)
    if (endpoint->peer[i] == rank) return 1;
  return 0;
}

static int connect_peers(ms_endpoint *endpoint, int n, const int *peers, const void *addresses) {
  for (int i = 0; i < n; i++) {
    if (((const char *)addresses)[i * MS_TRANSPORT_ADDRESS] != peers[i])
      return MS_FAIL(MS_EINVAL, "this is not the address of rank %d", peers[i]);
    if (!is_peer(endpoint, peers[i])) endpoint->peer[endpoint->n_peers++] = peers[i];
  }
  return MS_OK;
}

static int count_connected(const ms_endpoint *endpoint) { return endpoint->n_peers; }

static uint64_t number_of(ms_endpoint *endpoint, const ms_transfer *t) {
  sequence *s = endpoint->sequences;
  while (s && (s->peer != t->peer || s->key != t->key || s->receives != t->receives)) s = s->next;
  if (!s) {
    s = calloc(1, sizeof *s);
    *s = (sequence){.peer = t->peer, .key = t->key, .receives = t->receives, .next = endpoint->sequences};
    endpoint->sequences = s;
  }
  return s->posted++;
}

/* The memory of a posted transfer belongs to the endpoint. */
static int overlaps(const ms_endpoint *endpoint, const ms_transfer *receive) {
  const char *from = receive->data, *end = from + receive->bytes;
  for (const posted *p = endpoint->first; p && receive->receives; p = p->next) {
    const char *other = p->transfer->data;
    if (other < end && from < other + p->transfer->bytes) return 1;
  }
  return 0;
}

static int post(ms_endpoint *endpoint, ms_transfer *transfer) {
  int under_way = 0;
  if (!is_peer(endpoint, transfer->peer)) return MS_FAIL(MS_EINVAL, "rank %d is no peer", transfer->peer);
  if (transfer->bytes < 1) return MS_FAIL(MS_EINVAL, "a transfer of %lld bytes", (long long)transfer->bytes);
  pthread_mutex_lock(&lock);
  const int taken = overlaps(endpoint, transfer);
  posted *made = calloc(1, sizeof *made), **end = &endpoint->first;
  *made = (posted){.transfer = transfer,
                   .peer = transfer->peer,
                   .receives = transfer->receives,
                   .key = transfer->key,
                   .number = number_of(endpoint, transfer)};
  for (; *end; end = &(*end)->next)
    under_way += (*end)->peer == made->peer && (*end)->key == made->key && (*end)->receives == made->receives;
  *end = made;
  transfer->state = MS_TRANSFER_POSTED;
  if (endpoints[transfer->peer]) stir(endpoints[transfer->peer]);
  stir(endpoint);
  pthread_mutex_unlock(&lock);
  if (taken) return MS_FAIL(MS_EINVAL, "a receive into memory that belongs to another transfer");
  return under_way < MS_TRANSPORT_UNDER_WAY ? MS_OK : MS_FAIL(MS_EINVAL, "too many transfers of a key");
}

/* ---- progress, with the lock ---- */

static posted *find_send(ms_endpoint *from, const posted *receive, int to) {
  if (!from || from->cut) return NULL;
  for (posted *s = from->first; s; s = s->next)
    if (!s->receives && !s->moved && s->peer == to && s->key == receive->key && s->number == receive->number) return s;
  return NULL;
}

static void move(ms_endpoint *endpoint) {
  for (posted *receive = endpoint->first; receive; receive = receive->next) {
    if (!receive->receives || receive->moved || endpoint->cut) continue;
    ms_endpoint *from = endpoints[receive->peer];
    posted *send = find_send(from, receive, endpoint->config.rank);
    if (!send || (held && receive->transfer->bytes != sizeof(ms_hosts_signature))) continue;
    if (send->transfer->bytes != receive->transfer->bytes) {
      fprintf(stderr, "threads transport: a send of %lld bytes meets a receive of %lld\n",
              (long long)send->transfer->bytes, (long long)receive->transfer->bytes);
      abort();
    }
    memcpy(receive->transfer->data, send->transfer->data, (size_t)receive->transfer->bytes);
    receive->moved = send->moved = 1;
    endpoint->counts.received += receive->transfer->bytes;
    from->counts.sent += receive->transfer->bytes;
    stir(from);
  }
}

static int is_gone(const ms_endpoint *endpoint, int peer) {
  return endpoint->cut || !endpoints[peer] || endpoints[peer]->cut;
}

/* Transfers that are over. Returns a peer whose failure is due, or -1. */
static int collect(ms_endpoint *endpoint) {
  int failed = -1;
  for (posted **at = &endpoint->first; *at;) {
    posted *one = *at;
    if (!one->moved && !is_gone(endpoint, one->peer)) {
      at = &one->next;
      continue;
    }
    if (!one->moved && !endpoint->reported[one->peer]) failed = one->peer;
    one->transfer->state = one->moved ? MS_TRANSFER_DONE : MS_TRANSFER_FAILED;
    *at = one->next;
    free(one);
  }
  if (failed >= 0) endpoint->reported[failed] = 1;
  return failed;
}

static int progress(ms_endpoint *endpoint, double seconds) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  double end = (double)until.tv_nsec * 1e-9 + seconds;
  until.tv_sec += (time_t)floor(end);
  until.tv_nsec = (long)((end - floor(end)) * 1e9);
  pthread_mutex_lock(&lock);
  while (!endpoint->woken && seconds > 0 && !pthread_cond_timedwait(&endpoint->changed, &lock, &until)) continue;
  endpoint->woken = 0;
  move(endpoint);
  int failed = collect(endpoint);
  pthread_mutex_unlock(&lock);
  if (failed >= 0) endpoint->config.failed(endpoint->config.context, failed, "unreachable");
  return MS_OK;
}

static void wake(ms_endpoint *endpoint) {
  pthread_mutex_lock(&lock);
  stir(endpoint);
  pthread_mutex_unlock(&lock);
}

/* ---- the end ---- */

static void cancel(ms_endpoint *endpoint, uint64_t key) {
  pthread_mutex_lock(&lock);
  for (posted **at = &endpoint->first; *at;) {
    posted *one = *at;
    if (one->key != key) {
      at = &one->next;
      continue;
    }
    one->transfer->state = MS_TRANSFER_FAILED;
    *at = one->next;
    free(one);
  }
  for (sequence *s = endpoint->sequences; s; s = s->next)
    if (s->key == key) s->posted = 0;
  pthread_mutex_unlock(&lock);
}

static void get_counts(const ms_endpoint *endpoint, ms_transport_counts *counts) {
  pthread_mutex_lock(&lock);
  *counts = endpoint->counts;
  pthread_mutex_unlock(&lock);
}

static void close_endpoint(ms_endpoint *endpoint) {
  if (!endpoint) return;
  pthread_mutex_lock(&lock);
  endpoints[endpoint->config.rank] = NULL;
  for (int i = 0; i < endpoint->n_peers; i++)
    if (endpoints[endpoint->peer[i]]) stir(endpoints[endpoint->peer[i]]);
  pthread_mutex_unlock(&lock);
  for (posted *one = endpoint->first, *next; one; one = next) {
    next = one->next;
    free(one);
  }
  for (sequence *s = endpoint->sequences, *next; s; s = next) {
    next = s->next;
    free(s);
  }
  pthread_cond_destroy(&endpoint->changed);
  free(endpoint);
}

static void stir_all(void) {
  for (int rank = 0; rank < MOST_HOST_RANKS; rank++)
    if (endpoints[rank]) stir(endpoints[rank]);
}

void cut_off_rank(int rank) {
  pthread_mutex_lock(&lock);
  endpoints[rank]->cut = 1;
  stir_all();
  pthread_mutex_unlock(&lock);
}

int has_peer(int rank, int other) { return is_peer(endpoints[rank], other); }

void hold_pieces(int hold) {
  pthread_mutex_lock(&lock);
  held = hold;
  stir_all();
  pthread_mutex_unlock(&lock);
}

const ms_transport_api threads_transport = {.name = "threads",
                                            .open = open_endpoint,
                                            .address = get_address,
                                            .connect = connect_peers,
                                            .connected = count_connected,
                                            .post = post,
                                            .progress = progress,
                                            .wake = wake,
                                            .cancel = cancel,
                                            .counts = get_counts,
                                            .close = close_endpoint};
