/* send.c - the messages that go to a peer: greetings, credits and cancellations first, then data, a piece of each
 * key in turn. A message occupies a slot until UCX has sent it, so what waits for a slow peer is bounded.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/transport/ucx/ucx.h"

void ms_ucx_put_header(uint8_t header[MS_UCX_HEADER], const uint8_t session[MS_WIRE_PROOF], int rank,
                       const ms_peer_frame *frame) {
  memcpy(header, session, MS_WIRE_PROOF);
  ms_wire_put64(header + MS_WIRE_PROOF, (uint64_t)rank);
  ms_peer_put_frame(header + MS_WIRE_PROOF + 8, frame);
}

/* ---- slots ---- */

static ms_ucx_slot *find_free(ms_ucx_slot *slots, int n) {
  for (int i = 0; i < n; i++)
    if (!slots[i].busy) return &slots[i];
  return NULL;
}

static int is_of(const ms_ucx_slot *slots, int n, const ms_key *key, const ms_transfer *transfer) {
  for (int i = 0; i < n; i++)
    if (slots[i].busy && slots[i].transfer && (!key || slots[i].key == key) &&
        (!transfer || slots[i].transfer == transfer))
      return 1;
  return 0;
}

int ms_ucx_refers(const ms_ucx_peer *peer, const ms_key *key) {
  return is_of(peer->out, MS_UCX_PIECES, key, NULL) || is_of(peer->in, MS_UCX_PIECES, key, NULL);
}

void ms_ucx_finish(ms_ucx_peer *peer, ms_key_queue *queue) {
  for (ms_transfer *first = queue->first; first && first->moved == first->bytes; first = queue->first) {
    if (is_of(first->receives ? peer->in : peer->out, MS_UCX_PIECES, NULL, first)) return;
    ms_key_finish(queue, MS_TRANSFER_DONE);
    peer->endpoint->heard++; /* the caller may wait for it: no sleep before it has looked */
  }
}

void ms_ucx_slot_done(ms_ucx_slot *slot) {
  ms_transfer *transfer = slot->transfer;
  slot->busy = 0;
  slot->transfer = NULL;
  slot->peer->output = 1;
  if (transfer && slot->peer->broken == UCS_OK)
    ms_ucx_finish(slot->peer, transfer->receives ? &slot->key->receives : &slot->key->sends);
}

static void sent(void *request, ucs_status_t status, void *context) {
  ms_ucx_slot *slot = context;
  ms_ucx_peer *peer = slot->peer;
  if (status != UCS_OK && peer->broken == UCS_OK) peer->broken = status;
  peer->out_at = ms_clock();
  ms_ucx_slot_done(slot);
  peer->endpoint->ucx->request_free(request);
}

/* Hands a slot's message to UCX. */
static void give(ms_endpoint *endpoint, ms_ucx_slot *slot, enum ms_ucx_message id, size_t header, const void *body,
                 size_t bytes) {
  ucp_request_param_t param = {
      .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA, .cb.send = sent, .user_data = slot};
  ms_ucx_peer *peer = slot->peer;
  slot->busy = 1;
  ucs_status_ptr_t request = endpoint->ucx->am_send_nbx(peer->ep, id, slot->header, header, body, bytes, &param);
  if (UCS_PTR_IS_PTR(request)) return;
  if (UCS_PTR_IS_ERR(request) && peer->broken == UCS_OK) peer->broken = UCS_PTR_STATUS(request);
  peer->out_at = ms_clock();
  ms_ucx_slot_done(slot);
}

static void give_frame(ms_endpoint *endpoint, ms_ucx_slot *slot, const ms_peer_frame *frame, const void *body) {
  ms_ucx_put_header(slot->header, slot->peer->session, endpoint->config.rank, frame);
  give(endpoint, slot, MS_UCX_FRAME, MS_UCX_HEADER, body, frame->bytes);
}

/* ---- what is due ---- */

static int greet(ms_endpoint *endpoint, ms_ucx_peer *peer, ms_ucx_slot *slot) {
  if (!peer->hello && !peer->proof) return 0;
  enum ms_ucx_greeting_kind kind = peer->hello ? MS_UCX_HELLO : MS_UCX_PROOF;
  *(peer->hello ? &peer->hello : &peer->proof) = 0;
  ms_ucx_put_greeting(endpoint, peer, kind, slot->header);
  give(endpoint, slot, MS_UCX_GREET, MS_UCX_GREETING, NULL, 0);
  return 1;
}

static int send_last(ms_endpoint *endpoint, ms_ucx_peer *peer, ms_ucx_slot *slot) {
  ms_peer_frame last = {.kind = peer->last_kind};
  if (!last.kind) return 0;
  peer->last_kind = 0;
  if (last.kind == MS_PEER_REASON_OF) {
    snprintf(peer->reason, sizeof peer->reason, "%.*s", MS_PEER_REASON - 1, peer->why);
    last.bytes = (uint32_t)strlen(peer->reason);
  }
  give_frame(endpoint, slot, &last, peer->reason);
  return 1;
}

/* A cancellation, or the credit of a receive. */
static int send_of_key(ms_endpoint *endpoint, ms_ucx_peer *peer, ms_key *key, ms_ucx_slot *slot) {
  ms_transfer *receive = key->uncredited;
  if (key->cancelled && !key->told) {
    uint64_t number = key->key;
    key->told = 1;
    if (key->peer_cancelled) ms_keys_forget(&peer->keys, key);
    give_frame(endpoint, slot, &(ms_peer_frame){.kind = MS_PEER_CANCEL, .key = number}, NULL);
    return 1;
  }
  if (!receive || key->peer_cancelled) return 0;
  key->uncredited = receive->next;
  ms_peer_frame credit = {.kind = MS_PEER_CREDIT, .key = key->key, .number = receive->number, .value = receive->bytes};
  give_frame(endpoint, slot, &credit, NULL);
  return 1;
}

static int send_control(ms_endpoint *endpoint, ms_ucx_peer *peer) {
  ms_ucx_slot *slot = find_free(peer->control, MS_UCX_CONTROLS);
  if (!slot) return 0;
  if (greet(endpoint, peer, slot)) return 1;
  if (peer->goodbye_answer) {
    peer->goodbye_answer = 0;
    give_frame(endpoint, slot, &(ms_peer_frame){.kind = MS_PEER_GOODBYE, .value = 1}, NULL);
    return 1;
  }
  if (peer->state == MS_UCX_ENDING) return send_last(endpoint, peer, slot);
  if (peer->state != MS_UCX_UP) return 0;
  if (peer->ping || peer->pong) {
    uint32_t kind = peer->pong ? MS_PEER_PONG : MS_PEER_PING;
    *(peer->pong ? &peer->pong : &peer->ping) = 0;
    give_frame(endpoint, slot, &(ms_peer_frame){.kind = kind}, NULL);
    return 1;
  }
  for (int i = 0; i < peer->keys.reach; i++) {
    ms_key *key = &peer->keys.slot[i];
    if (key->used && send_of_key(endpoint, peer, key, slot)) return 1;
  }
  return 0;
}

/* ---- data ---- */

/* The first send of a key that has bytes left to give to UCX, or NULL. */
static ms_transfer *next_send(const ms_key *key) {
  ms_transfer *send = key->sends.first;
  if (!key->used || key->peer_cancelled) return NULL;
  while (send && send->moved == send->bytes) send = send->next;
  return send && send->number < key->credits ? send : NULL;
}

/* Returns the bytes of the piece. */
static int64_t send_piece(ms_endpoint *endpoint, ms_ucx_slot *slot, ms_key *key, ms_transfer *send) {
  int64_t rest = send->bytes - send->moved, most = endpoint->rendezvous ? MS_PEER_PIECE : MS_UCX_PIECE;
  const uint8_t *body = (const uint8_t *)send->data + send->moved;
  ms_peer_frame data = {.kind = MS_PEER_DATA,
                        .bytes = (uint32_t)(rest < most ? rest : most),
                        .key = key->key,
                        .number = send->number,
                        .value = send->moved};
  if (slot->piece) body = memcpy(slot->piece, body, data.bytes);
  else slot->transfer = send, slot->key = key;
  send->moved += data.bytes;
  endpoint->counts.sent += data.bytes;
  give_frame(endpoint, slot, &data, body);
  if (slot->piece) ms_ucx_finish(slot->peer, &key->sends);
  return data.bytes;
}

/* Returns the bytes of the next piece; 0: there is none, or the sizes differ and the peer has failed. */
static int64_t send_data(ms_endpoint *endpoint, ms_ucx_peer *peer) {
  ms_keys *keys = &peer->keys;
  ms_ucx_slot *slot = find_free(peer->out, MS_UCX_PIECES);
  char why[MS_KEY_SIZES];
  for (int i = 0; slot && i < keys->reach; i++) {
    ms_key *key = &keys->slot[(keys->turn + i) % keys->reach];
    ms_transfer *send = next_send(key);
    if (!send) continue;
    if (ms_key_compare_sizes(key, send, endpoint->config.rank, why)) {
      ms_ucx_fail(endpoint, peer, 1, "%s", why);
      return 0;
    }
    keys->turn = (int)(key - keys->slot) + 1;
    return send_piece(endpoint, slot, key, send);
  }
  return 0;
}

void ms_ucx_send(ms_endpoint *endpoint, ms_ucx_peer *peer) {
  for (int64_t turn = 0; turn < MS_UCX_TURN && peer->ep && peer->broken == UCS_OK;) {
    if (send_control(endpoint, peer)) continue;
    int64_t bytes = peer->state == MS_UCX_UP ? send_data(endpoint, peer) : 0;
    turn += bytes;
    if (bytes || send_control(endpoint, peer)) continue; /* a failure in send_data has a last frame to send */
    peer->output = 0;                                    /* a slot that becomes free sets it again */
    return;
  }
}
