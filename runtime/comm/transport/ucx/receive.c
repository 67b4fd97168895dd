/* receive.c - the frames that come in. A frame is used only if it has the session of the rank that it names, and
 * every frame is checked against what this rank has posted, as with tcp. UCX calls this from its progress, so a failure
 * only takes a note (ms_ucx_end_failed): UCX's endpoint is closed later.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/transport/ucx/ucx.h"

static void break_off(ms_endpoint *endpoint, ms_ucx_peer *peer, const ms_peer_frame *frame, const char *what) {
  ms_peer_fail(endpoint, &peer->common, 1, "rank %d sent %s (kind %u, %u bytes, key %llx, number %llu, value %lld)",
               peer->common.rank, what, frame->kind, frame->bytes, (unsigned long long)frame->key,
               (unsigned long long)frame->number, (long long)frame->value);
}

/* ---- control ---- */

/* The peer waits for an answer to its goodbye, whether transfers were under way or not. */
static void take_goodbye(ms_endpoint *endpoint, ms_ucx_peer *peer, const ms_peer_frame *frame) {
  peer->answered = 1;
  if (frame->value) return;
  if (peer->common.state == MS_PEER_UP) peer->goodbye_answer = 1;
  if (peer->common.state != MS_PEER_UP) return;
  if (!ms_keys_are_awaited(&peer->common.keys)) {
    peer->common.state = MS_PEER_LEFT;
    endpoint->common.n_up--;
    return;
  }
  ms_peer_fail(endpoint, &peer->common, 1, "it left while transfers with it were under way");
  peer->last_kind = 0; /* it knows */
}

static void take_reason(ms_endpoint *endpoint, ms_ucx_peer *peer, const void *body, size_t bytes) {
  char text[MS_PEER_REASON];
  ms_wire_get_text(body, bytes, text, sizeof text);
  ms_peer_fail(endpoint, &peer->common, 0, "it ended the connection: %s", text);
}

/* ---- data ---- */

static void received(void *request, ucs_status_t status, size_t bytes, void *context) {
  ms_ucx_slot *slot = context;
  ms_ucx_peer *peer = slot->peer;
  (void)bytes;
  if (status != UCS_OK && peer->broken == UCS_OK) peer->broken = status;
  peer->common.heard_at = ms_clock();
  ms_ucx_slot_done(slot);
  peer->endpoint->heard++;
  peer->endpoint->ucx->request_free(request);
}

/* UCX moves the piece itself. */
static const char *fetch(ms_endpoint *endpoint, ms_ucx_peer *peer, ms_key *key, void *to, void *piece, size_t bytes) {
  ms_ucx_slot *slot = NULL;
  for (int i = 0; i < MS_UCX_PIECES && !slot; i++)
    if (!peer->in[i].busy) slot = &peer->in[i];
  if (!slot) return "too many pieces at a time";
  slot->busy = 1;
  slot->bytes = (int64_t)bytes;
  slot->key = key;
  slot->transfer = ms_key_begin(&key->receives, slot->bytes);
  ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                               .cb.recv_am = received,
                               .user_data = slot};
  ucs_status_ptr_t request = endpoint->ucx->am_recv_data_nbx(endpoint->worker, piece, to, bytes, &param);
  if (UCS_PTR_IS_PTR(request)) return NULL;
  if (UCS_PTR_IS_ERR(request) && peer->broken == UCS_OK) peer->broken = UCS_PTR_STATUS(request);
  ms_ucx_slot_done(slot);
  return NULL;
}

static const char *take_data(ms_endpoint *endpoint, ms_ucx_peer *peer, const ms_peer_frame *frame, void *piece,
                             int is_descriptor) {
  ms_key *key = ms_keys_find(&peer->common.keys, frame->key);
  if (ms_key_drops(key)) return NULL;
  const char *wrong = ms_key_check_data(key, frame->number, frame->value, frame->bytes);
  if (wrong) return wrong;
  uint8_t *to = (uint8_t *)key->receives.next->data + frame->value;
  endpoint->common.counts.received += frame->bytes;
  if (is_descriptor) return fetch(endpoint, peer, key, to, piece, frame->bytes);
  memcpy(to, piece, frame->bytes);
  ms_ucx_moved(peer, key, ms_key_begin(&key->receives, frame->bytes), frame->bytes);
  return NULL;
}

/* ---- all frames ---- */

static const char *take(ms_endpoint *endpoint, ms_ucx_peer *peer, const ms_peer_frame *frame, void *body,
                        int is_descriptor) {
  switch (frame->kind) {
    case MS_PEER_CREDIT: return ms_keys_take_credit(&peer->common.keys, frame->key, frame->number, frame->value);
    case MS_PEER_CANCEL: return ms_keys_take_cancel(&peer->common.keys, frame->key);
    case MS_PEER_DATA: return take_data(endpoint, peer, frame, body, is_descriptor);
    case MS_PEER_GOODBYE: take_goodbye(endpoint, peer, frame); return NULL;
    case MS_PEER_PING: peer->common.pong = 1; return NULL;
    case MS_PEER_PONG: return NULL;
    default: take_reason(endpoint, peer, body, is_descriptor ? 0 : frame->bytes); return NULL;
  }
}

/* The peer whose session begins the header, or NULL. */
static ms_ucx_peer *find_sender(ms_endpoint *endpoint, const uint8_t *header) {
  uint64_t rank = ms_wire_get64(header + MS_WIRE_PROOF);
  ms_ucx_peer *peer = (ms_ucx_peer *)ms_peers_find(&endpoint->common, (int64_t)rank);
  return peer && peer->common.state != MS_PEER_APART && ms_wire_same_proof(peer->session, header) ? peer : NULL;
}

ucs_status_t ms_ucx_take_frame(void *context, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param) {
  ms_endpoint *endpoint = context;
  ms_ucx_peer *peer = header_bytes == MS_UCX_HEADER ? find_sender(endpoint, header) : NULL;
  ms_peer_frame frame;
  if (!peer) return UCS_OK;
  endpoint->heard++;
  peer->common.heard_at = ms_clock();
  const char *wrong = ms_peer_get_frame((const uint8_t *)header + MS_WIRE_PROOF + 8, &frame);
  if (!wrong && frame.bytes != bytes) wrong = "a frame whose body has another size";
  if (peer->common.state == MS_PEER_ENDING && !wrong && frame.kind == MS_PEER_GOODBYE)
    take_goodbye(endpoint, peer, &frame);
  if (peer->common.state != MS_PEER_UP) return UCS_OK;
  peer->common.output = 1;
  if (!wrong) wrong = take(endpoint, peer, &frame, data, (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
  if (wrong) break_off(endpoint, peer, &frame, wrong);
  return UCS_OK;
}
