/* greet.c - hellos and proofs: how two ranks open a session. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/transport/ucx/ucx.h"

enum { HELLO_AT = 8, ANSWERS_AT = HELLO_AT + MS_PEER_HELLO };
/* Sides of proofs (ms_peer_prove), none of which tcp uses. */
static const char PROOF_SIDE = 'U', SESSION_SIDE = 'S';

static ms_peer_hello own_hello(const ms_endpoint *endpoint, const ms_ucx_peer *peer) {
  ms_peer_hello hello = ms_peer_own_hello(&endpoint->common.config, &endpoint->job, peer->common.rank);
  memcpy(hello.nonce, peer->nonce, MS_WIRE_NONCE);
  return hello;
}

void ms_ucx_put_greeting(ms_endpoint *endpoint, const ms_ucx_peer *peer, enum ms_ucx_greeting_kind kind,
                         uint8_t bytes[MS_UCX_GREETING]) {
  ms_peer_hello hello = own_hello(endpoint, peer);
  if (kind == MS_UCX_PROOF) ms_peer_prove(endpoint->job.token, PROOF_SIDE, peer->their_nonce, &hello, hello.proof);
  memset(bytes, 0, MS_UCX_GREETING);
  ms_wire_put32(bytes, kind);
  ms_peer_put_hello(bytes + HELLO_AT, &hello);
  if (kind == MS_UCX_PROOF) memcpy(bytes + ANSWERS_AT, peer->their_nonce, MS_WIRE_NONCE);
}

static void get_greeting(const uint8_t bytes[MS_UCX_GREETING], ms_ucx_greeting *greeting) {
  greeting->kind = ms_wire_get32(bytes);
  ms_peer_get_hello(bytes + HELLO_AT, &greeting->hello);
  memcpy(greeting->answers, bytes + ANSWERS_AT, MS_WIRE_NONCE);
}

/* Both ranks compute it from the hello of the lower one and the nonce of the higher one. */
static void open_session(ms_endpoint *endpoint, ms_ucx_peer *peer, const ms_peer_hello *theirs) {
  ms_peer_hello mine = own_hello(endpoint, peer),
                lower = peer->common.rank < endpoint->common.config.rank ? *theirs : mine;
  const uint8_t *higher = peer->common.rank < endpoint->common.config.rank ? mine.nonce : theirs->nonce;
  ms_peer_prove(endpoint->job.token, SESSION_SIDE, higher, &lower, peer->session);
  memcpy(peer->their_nonce, theirs->nonce, MS_WIRE_NONCE);
  peer->common.state = MS_PEER_UP;
  peer->hello = 0;
  peer->proof = peer->common.output = 1; /* before any frame: it may not have had an answer to its hello yet */
  peer->common.heard_at = peer->out_at = ms_clock();
  endpoint->common.n_up++;
}

/* Why the proof is not accepted; 0: it is. */
static int judge(const ms_endpoint *endpoint, const ms_ucx_peer *peer, const ms_ucx_greeting *greeting, char *text,
                 size_t bytes) {
  const ms_transport_config *own = &endpoint->common.config;
  const ms_peer_hello *hello = &greeting->hello;
  uint8_t proof[MS_WIRE_PROOF];
  ms_peer_prove(endpoint->job.token, PROOF_SIDE, peer->nonce, hello, proof);
  if (hello->version != MS_PEER_VERSION)
    snprintf(text, bytes, "it uses protocol version %u, rank %d version %d: all ranks must run the same build",
             (unsigned)hello->version, own->rank, MS_PEER_VERSION);
  else if (!ms_wire_same_proof(proof, hello->proof))
    snprintf(text, bytes, "it does not know the job's token: all ranks need the same MOONSHARD_TOKEN");
  else if (strcmp(hello->job, endpoint->job.id))
    snprintf(text, bytes, "it belongs to job \"%s\", rank %d to job \"%s\"", hello->job, own->rank, endpoint->job.id);
  else if (hello->size != own->size)
    snprintf(text, bytes, "its world has %d ranks, that of rank %d has %d", hello->size, own->rank, own->size);
  else return 0;
  return 1;
}

/* Anybody can say hello: the answer goes to the rank's own address, and proves nothing without its nonce. */
static void take_hello(ms_ucx_peer *peer, const ms_peer_hello *hello) {
  if (peer->common.state == MS_PEER_UP && memcmp(peer->their_nonce, hello->nonce, MS_WIRE_NONCE)) return;
  if (peer->common.state != MS_PEER_APART && peer->common.state != MS_PEER_UP) return;
  memcpy(peer->their_nonce, hello->nonce, MS_WIRE_NONCE);
  peer->proof = peer->common.output = 1;
}

void ms_ucx_take_greeting(ms_endpoint *endpoint, const uint8_t bytes[MS_UCX_GREETING]) {
  ms_ucx_greeting greeting;
  const ms_peer_hello *hello = &greeting.hello;
  get_greeting(bytes, &greeting);
  if (hello->to != endpoint->common.config.rank) return;
  ms_ucx_peer *peer = (ms_ucx_peer *)ms_peers_find(&endpoint->common, hello->rank);
  if (!peer) return; /* it says hello again until this rank knows its peers */
  if (greeting.kind == MS_UCX_HELLO) take_hello(peer, hello);
  if (greeting.kind != MS_UCX_PROOF || peer->common.state != MS_PEER_APART) return;
  if (memcmp(greeting.answers, peer->nonce, MS_WIRE_NONCE)) return; /* a replay */
  if (!judge(endpoint, peer, &greeting, peer->refused, sizeof peer->refused)) open_session(endpoint, peer, hello);
}
