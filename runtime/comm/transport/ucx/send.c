/* send.c - the messages that go to a peer: greetings, credits and cancellations first, then data, a piece of each
 * key in turn. A message occupies a slot until UCX has sent it, so what waits for a slow peer is bounded.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/transport/ucx/ucx.h"

/* Session, rank of the sender, frame. */
static void put_header(uint8_t header[MS_UCX_HEADER], const uint8_t session[MS_WIRE_PROOF], int rank,
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

static int is_of(const ms_ucx_slot *slots, const ms_key *key) {
  for (int i = 0; i < MS_UCX_PIECES; i++)
    if (slots[i].busy && slots[i].transfer && (!key || slots[i].key == key)) return 1;
  return 0;
}

int ms_ucx_refers(const ms_ucx_peer *peer, const ms_key *key) { return is_of(peer->out, key) || is_of(peer->in, key); }

void ms_ucx_moved(ms_ucx_peer *peer, ms_key *key, ms_transfer *transfer, int64_t bytes) {
  peer->endpoint->heard += ms_key_moved(transfer->receives ? &key->receives : &key->sends, transfer, bytes);
}

void ms_ucx_slot_done(ms_ucx_slot *slot) {
  ms_transfer *transfer = slot->transfer;
  slot->busy = 0;
  slot->transfer = NULL;
  slot->peer->common.output = 1;
  if (transfer && slot->peer->broken == UCS_OK) ms_ucx_moved(slot->peer, slot->key, transfer, slot->bytes);
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
  put_header(slot->header, slot->peer->session, endpoint->common.config.rank, frame);
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
    snprintf(peer->reason, sizeof peer->reason, "%.*s", MS_PEER_REASON - 1, peer->common.why);
    last.bytes = (uint32_t)strlen(peer->reason);
  }
  give_frame(endpoint, slot, &last, peer->reason);
  return 1;
}

static int send_control(ms_endpoint *endpoint, ms_ucx_peer *peer) {
  ms_ucx_slot *slot = find_free(peer->control, MS_UCX_CONTROLS);
  ms_key_notice notice;
  if (!slot) return 0;
  if (greet(endpoint, peer, slot)) return 1;
  if (peer->goodbye_answer) {
    peer->goodbye_answer = 0;
    give_frame(endpoint, slot, &(ms_peer_frame){.kind = MS_PEER_GOODBYE, .value = 1}, NULL);
    return 1;
  }
  if (peer->common.state == MS_PEER_ENDING) return send_last(endpoint, peer, slot);
  if (peer->common.state != MS_PEER_UP) return 0;
  if (peer->common.ping || peer->common.pong) {
    uint32_t kind = peer->common.pong ? MS_PEER_PONG : MS_PEER_PING;
    *(peer->common.pong ? &peer->common.pong : &peer->common.ping) = 0;
    give_frame(endpoint, slot, &(ms_peer_frame){.kind = kind}, NULL);
    return 1;
  }
  if (!ms_keys_next_notice(&peer->common.keys, &notice)) return 0;
  give_frame(endpoint, slot,
             &(ms_peer_frame){.kind = notice.cancels ? MS_PEER_CANCEL : MS_PEER_CREDIT,
                              .key = notice.key,
                              .number = notice.number,
                              .value = notice.bytes},
             NULL);
  return 1;
}

/* ---- data ---- */

/* Returns the bytes of the piece. */
static int64_t send_piece(ms_endpoint *endpoint, ms_ucx_slot *slot, ms_key *key) {
  ms_transfer *send = key->sends.next;
  const int64_t begun = key->sends.begun, rest = send->bytes - begun;
  const int64_t most = endpoint->rendezvous ? MS_PEER_PIECE : MS_UCX_PIECE;
  const uint8_t *body = (const uint8_t *)send->data + begun;
  ms_peer_frame data = {.kind = MS_PEER_DATA,
                        .bytes = (uint32_t)(rest < most ? rest : most),
                        .key = key->key,
                        .number = send->number,
                        .value = begun};
  ms_key_begin(&key->sends, data.bytes);
  endpoint->common.counts.sent += data.bytes;
  if (slot->piece) body = memcpy(slot->piece, body, data.bytes);
  else slot->transfer = send, slot->key = key, slot->bytes = data.bytes;
  give_frame(endpoint, slot, &data, body);
  if (slot->piece) ms_ucx_moved(slot->peer, key, send, data.bytes);
  return data.bytes;
}

/* Returns the bytes of the next piece; 0: there is none, or the sizes differ and the peer has failed. */
static int64_t send_data(ms_endpoint *endpoint, ms_ucx_peer *peer) {
  ms_ucx_slot *slot = find_free(peer->out, MS_UCX_PIECES);
  char why[MS_KEY_SIZES];
  if (!slot) return 0;
  ms_key *key = ms_keys_next_send(&peer->common.keys, endpoint->common.config.rank, why);
  if (*why) ms_peer_fail(endpoint, &peer->common, 1, "%s", why);
  return key ? send_piece(endpoint, slot, key) : 0;
}

void ms_ucx_send(ms_endpoint *endpoint, ms_ucx_peer *peer) {
  for (int64_t turn = 0; turn < MS_UCX_TURN && peer->ep && peer->broken == UCS_OK;) {
    if (send_control(endpoint, peer)) continue;
    int64_t bytes = peer->common.state == MS_PEER_UP ? send_data(endpoint, peer) : 0;
    turn += bytes;
    if (bytes || send_control(endpoint, peer)) continue; /* a failure in send_data has a last frame to send */
    peer->common.output = 0;                             /* a slot that becomes free sets it again */
    return;
  }
}
