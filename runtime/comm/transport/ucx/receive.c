/* receive.c - the frames that come in. A frame is used only if it has the session of the rank that it names, and
 * every frame is checked against what this rank has posted, as with tcp. UCX calls this from its progress, so a failure
 * only takes a note (ms_ucx_fail): UCX's endpoint is closed later.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "comm/transport/ucx/ucx.h"

static void break_off(ms_endpoint *endpoint, ms_ucx_peer *peer, const ms_peer_frame *frame, const char *what) {
  ms_ucx_fail(endpoint, peer, 1, "rank %d sent %s (kind %u, %u bytes, key %llx, number %llu, value %lld)", peer->rank,
              what, frame->kind, frame->bytes, (unsigned long long)frame->key, (unsigned long long)frame->number,
              (long long)frame->value);
}

/* ---- control ---- */

static const char *take_credit(ms_ucx_peer *peer, const ms_peer_frame *frame) {
  ms_key *key = ms_keys_add(&peer->keys, frame->key);
  if (!key) return "a credit for one key too many";
  if (key->peer_cancelled) return "a credit for a key that it cancelled";
  if (frame->value < 1 || frame->number != key->credits) return "a credit out of turn";
  if (key->credits - key->sends.finished >= MS_TRANSPORT_UNDER_WAY && !key->cancelled) return "too many credits";
  key->credit[key->credits++ % MS_TRANSPORT_UNDER_WAY] = frame->value;
  return NULL;
}

/* The peer waits for an answer to its goodbye, whether transfers were under way or not. */
static void take_goodbye(ms_endpoint *endpoint, ms_ucx_peer *peer, const ms_peer_frame *frame) {
  peer->answered = 1;
  if (frame->value) return;
  if (peer->state == MS_UCX_UP) peer->goodbye_answer = 1;
  if (peer->state != MS_UCX_UP) return;
  if (!ms_keys_are_awaited(&peer->keys)) {
    peer->state = MS_UCX_LEFT;
    endpoint->n_up--;
    return;
  }
  ms_ucx_fail(endpoint, peer, 1, "it left while transfers with it were under way");
  peer->last_kind = 0; /* it knows */
}

static void take_reason(ms_endpoint *endpoint, ms_ucx_peer *peer, const void *body, size_t bytes) {
  char text[MS_PEER_REASON];
  ms_wire_get_text(body, bytes, text, sizeof text);
  ms_ucx_fail(endpoint, peer, 0, "it ended the connection: %s", text);
}

/* ---- data ---- */

/* What a piece must follow; NULL: it is dropped, or *wrong says why it breaks the protocol. */
static ms_key *find_receive(ms_ucx_peer *peer, const ms_peer_frame *frame, ms_transfer **receive, const char **wrong) {
  ms_key *key = ms_keys_find(&peer->keys, frame->key);
  if (key && key->cancelled && !key->peer_cancelled) return NULL; /* sent before it heard of that */
  *receive = key ? key->receives.first : NULL;
  while (*receive && (*receive)->moved == (*receive)->bytes) *receive = (*receive)->next;
  if (!*receive || *receive == key->uncredited || frame->number != (*receive)->number)
    *wrong = "data that no receive waits for";
  else if (key->peer_cancelled) *wrong = "data of a key that it cancelled";
  else if (frame->value != (*receive)->moved) *wrong = "data that does not follow";
  else if (frame->bytes > (*receive)->bytes - (*receive)->moved) *wrong = "data beyond the end of a receive";
  return *wrong ? NULL : key;
}

static void received(void *request, ucs_status_t status, size_t bytes, void *context) {
  ms_ucx_slot *slot = context;
  ms_ucx_peer *peer = slot->peer;
  (void)bytes;
  if (status != UCS_OK && peer->broken == UCS_OK) peer->broken = status;
  peer->in_at = ms_clock();
  ms_ucx_slot_done(slot);
  peer->endpoint->heard++;
  peer->endpoint->ucx->request_free(request);
}

/* UCX moves the piece itself. */
static const char *fetch(ms_endpoint *endpoint, ms_ucx_peer *peer, ms_key *key, ms_transfer *receive, void *piece,
                         size_t bytes) {
  ms_ucx_slot *slot = NULL;
  for (int i = 0; i < MS_UCX_PIECES && !slot; i++)
    if (!peer->in[i].busy) slot = &peer->in[i];
  if (!slot) return "too many pieces at a time";
  slot->busy = 1;
  slot->transfer = receive;
  slot->key = key;
  uint8_t *to = (uint8_t *)receive->data + receive->moved;
  receive->moved += (int64_t)bytes;
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
  const char *wrong = NULL;
  ms_transfer *receive;
  ms_key *key = find_receive(peer, frame, &receive, &wrong);
  if (!key) return wrong;
  endpoint->counts.received += frame->bytes;
  if (is_descriptor) return fetch(endpoint, peer, key, receive, piece, frame->bytes);
  memcpy((uint8_t *)receive->data + receive->moved, piece, frame->bytes);
  receive->moved += frame->bytes;
  ms_ucx_finish(peer, &key->receives);
  return NULL;
}

/* ---- all frames ---- */

static const char *take(ms_endpoint *endpoint, ms_ucx_peer *peer, const ms_peer_frame *frame, void *body,
                        int is_descriptor) {
  switch (frame->kind) {
    case MS_PEER_CREDIT: return take_credit(peer, frame);
    case MS_PEER_CANCEL: return ms_keys_take_cancel(&peer->keys, frame->key);
    case MS_PEER_DATA: return take_data(endpoint, peer, frame, body, is_descriptor);
    case MS_PEER_GOODBYE: take_goodbye(endpoint, peer, frame); return NULL;
    case MS_PEER_PING: peer->pong = 1; return NULL;
    case MS_PEER_PONG: return NULL;
    default: take_reason(endpoint, peer, body, is_descriptor ? 0 : frame->bytes); return NULL;
  }
}

/* The peer whose session begins the header, or NULL. */
static ms_ucx_peer *find_sender(ms_endpoint *endpoint, const uint8_t *header) {
  uint64_t rank = ms_wire_get64(header + MS_WIRE_PROOF);
  int index = rank < (uint64_t)endpoint->config.size ? endpoint->peer_of[rank] : -1;
  ms_ucx_peer *peer = index >= 0 ? &endpoint->peers[index] : NULL;
  return peer && peer->state != MS_UCX_APART && ms_wire_same_proof(peer->session, header) ? peer : NULL;
}

ucs_status_t ms_ucx_take_frame(void *context, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param) {
  ms_endpoint *endpoint = context;
  ms_ucx_peer *peer = header_bytes == MS_UCX_HEADER ? find_sender(endpoint, header) : NULL;
  ms_peer_frame frame;
  if (!peer) return UCS_OK;
  endpoint->heard++;
  peer->in_at = ms_clock();
  const char *wrong = ms_peer_get_frame((const uint8_t *)header + MS_WIRE_PROOF + 8, &frame);
  if (!wrong && frame.bytes != bytes) wrong = "a frame whose body has another size";
  if (peer->state == MS_UCX_ENDING && !wrong && frame.kind == MS_PEER_GOODBYE) take_goodbye(endpoint, peer, &frame);
  if (peer->state != MS_UCX_UP) return UCS_OK;
  peer->output = 1;
  if (!wrong) wrong = take(endpoint, peer, &frame, data, (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
  if (wrong) break_off(endpoint, peer, &frame, wrong);
  return UCS_OK;
}
