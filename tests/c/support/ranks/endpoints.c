/* endpoints.c - see endpoints.h. */
#include "tests/c/support/ranks/endpoints.h"

#include "tests/c/support/ranks/callers.h"
#include "tests/c/support/check.h"
#include "tests/emulated_mpi/emulated_mpi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

static const double PATIENCE = 20;

const ms_transport_api *ends_api = &ms_transport_tcp;

int use_mpi(void **state) {
  (void)state;
  ends_api = &ms_transport_mpi;
  return use_emulated_mpi();
}

static void note_failure(void *context, int peer, const char *why) {
  end *one = context;
  one->failures++;
  one->failed_peer = peer;
  one->failed_at = ms_clock();
  snprintf(one->why, sizeof one->why, "%s", why);
}

void prepare_end(end *one, int rank, int n) {
  *one = (end){.rank = rank, .failed_peer = -1};
  one->config = (ms_transport_config){
      .rank = rank, .size = n, .token = "known-to-all-of-them", .job = "test", .timeout = 20, .failed = note_failure};
}

void open_end(ends *all, int rank) {
  end *one = &all->of[rank];
  if (ends_api == &ms_transport_mpi) be_emulated_rank(rank, one->config.size);
  one->config.context = one;
  must(ends_api->open(&one->config, &one->endpoint));
  must(ends_api->address(one->endpoint, all->addresses[rank]));
}

void connect_end(ends *all, int rank) {
  int peers[MAX_ENDS], n = 0;
  uint8_t addresses[MAX_ENDS][MS_TRANSPORT_ADDRESS];
  for (int other = 0; other < all->n; other++) {
    if (other == rank) continue;
    memcpy(addresses[n], all->addresses[other], MS_TRANSPORT_ADDRESS);
    peers[n++] = other;
  }
  must(ends_api->connect(all->of[rank].endpoint, n, peers, addresses));
}

void open_ends(ends *all, int n, double timeout) {
  *all = (ends){.n = n};
  for (int rank = 0; rank < n; rank++) {
    prepare_end(&all->of[rank], rank, n);
    all->of[rank].config.timeout = timeout;
    open_end(all, rank);
  }
  for (int rank = 0; rank < n; rank++) connect_end(all, rank);
  double end = ms_clock() + PATIENCE;
  for (int up = 0; up < n * (n - 1);) {
    up = 0;
    turn_ends(all);
    for (int rank = 0; rank < n; rank++) up += ends_api->connected(all->of[rank].endpoint);
    if (ms_clock() > end) fail_msg("%d of %d ends are connected; rank 0: %s", up, n * (n - 1), all->of[0].why);
  }
}

void open_without_rank_0(ends *all, int n, double timeout) {
  *all = (ends){.n = n};
  for (int rank = 0; rank < n; rank++) {
    prepare_end(&all->of[rank], rank, n);
    all->of[rank].config.timeout = timeout;
    open_end(all, rank);
  }
  for (int rank = 1; rank < n; rank++) connect_end(all, rank);
  ends_api->close(all->of[0].endpoint);
  all->of[0].endpoint = NULL;
}

static void *close_one(void *endpoint) {
  ends_api->close(endpoint);
  return NULL;
}

/* At once: a rank of ucx waits for an answer to its goodbye. */
void close_ends(ends *all) {
  pthread_t threads[MAX_ENDS];
  for (int rank = 0; rank < all->n; rank++)
    assert_int_equal(pthread_create(&threads[rank], NULL, close_one, all->of[rank].endpoint), 0);
  for (int rank = 0; rank < all->n; rank++) {
    pthread_join(threads[rank], NULL);
    all->of[rank].endpoint = NULL;
  }
}

void turn_ends(ends *all) {
  int open = 0;
  for (int rank = 0; rank < all->n; rank++) open += all->of[rank].endpoint != NULL;
  for (int rank = 0; rank < all->n; rank++)
    if (all->of[rank].endpoint) must(ends_api->progress(all->of[rank].endpoint, open == 1 ? 0.002 : 0));
}

void turn_until(ends *all, const int *what, int value) {
  for (double end = ms_clock() + PATIENCE; *what != value;) {
    turn_ends(all);
    if (ms_clock() > end) fail_msg("it is %d and not %d", *what, value);
  }
}

void turn_for(ends *all, double seconds) {
  for (double end = ms_clock() + seconds; ms_clock() < end;) turn_ends(all);
}

ms_transfer send_to(int peer, uint64_t key, void *data, int64_t bytes) {
  return (ms_transfer){.peer = peer, .key = key, .data = data, .bytes = bytes};
}

ms_transfer receive_from(int peer, uint64_t key, void *data, int64_t bytes) {
  return (ms_transfer){.peer = peer, .receives = 1, .key = key, .data = data, .bytes = bytes};
}

int keys_in_use(const end *one) { return ((const ms_peer *)((const ms_peers *)one->endpoint)->first)->keys.reach; }

void set_timeout(end *one, double seconds) { ((ms_peers *)one->endpoint)->config.timeout = seconds; }

void post_at(ends *all, int rank, ms_transfer *transfer) { must(ends_api->post(all->of[rank].endpoint, transfer)); }

void turn_until_is(ends *all, ms_transfer *transfer, enum ms_transfer_state state) {
  for (double end = ms_clock() + PATIENCE; transfer->state != state;) {
    turn_ends(all);
    if (ms_clock() < end) continue;
    fail_msg("a transfer of %lld bytes, key %llu, is in state %d after %lld bytes", (long long)transfer->bytes,
             (unsigned long long)transfer->key, transfer->state, (long long)transfer->moved);
  }
}

int port_of_end(const uint8_t *address) { return address[4] | address[5] << 8; }

ms_peer_hello hello_to(int rank, int to, int n) {
  return (ms_peer_hello){
      .version = MS_PEER_VERSION, .rank = rank, .to = to, .size = n, .nonce = {(uint8_t)rank, 7}, .job = "test"};
}

static struct {
  pthread_t thread;
  atomic_int stop;
} turner;

static void *keep_turning(void *context) {
  ends *all = context;
  while (!atomic_load(&turner.stop))
    for (int rank = 0; rank < all->n; rank++)
      if (all->of[rank].endpoint) ends_api->progress(all->of[rank].endpoint, 0.001);
  return NULL;
}

void start_turning(ends *all) {
  atomic_store(&turner.stop, 0);
  assert_int_equal(pthread_create(&turner.thread, NULL, keep_turning, all), 0);
}

void stop_turning(void) {
  atomic_store(&turner.stop, 1);
  pthread_join(turner.thread, NULL);
}

int greet_end(ends *all, int to, ms_peer_hello *hello, const char *token, int *fd, char why[MS_PEER_REASON]) {
  uint8_t greeting[MS_PEER_GREETING], nonce[MS_WIRE_NONCE], bytes[MS_PEER_HELLO], answer[MS_PEER_ANSWER];
  uint8_t proof[MS_WIRE_PROOF];
  uint32_t version;
  start_turning(all);
  *fd = connect_raw(port_of_end(all->addresses[to]));
  receive_raw(*fd, greeting, sizeof greeting);
  assert_true(ms_peer_get_greeting(greeting, &version, nonce));
  ms_peer_prove(token, 'C', nonce, hello, hello->proof);
  ms_peer_put_hello(bytes, hello);
  send_raw(*fd, bytes, sizeof bytes);
  receive_raw(*fd, answer, sizeof answer);
  stop_turning();
  return ms_peer_get_answer(answer, proof, why);
}

void send_tcp_frame(int fd, uint32_t kind, uint32_t bytes, uint64_t key, uint64_t number, int64_t value) {
  uint8_t header[MS_PEER_HEADER];
  ms_peer_put_frame(header, &(ms_peer_frame){kind, bytes, key, number, value});
  send_raw(fd, header, sizeof header);
}
