/* peer.c - the life of a connection: called, failed, ending, gone. */
#include "base/clock.h"
#include "base/error.h"
#include "comm/transport/ucx/ucx.h"

/* Seconds that a last frame has to go out. */
static const double LAST_SECONDS = 1.0;

/* UCX calls it once, when the connection is broken; it must not be closed from here. */
static void note_error(void *context, ucp_ep_h ep, ucs_status_t status) {
  ms_ucx_peer *peer = context;
  (void)ep;
  if (peer->broken == UCS_OK) peer->broken = status;
  peer->endpoint->heard++;
}

int ms_ucx_call(ms_endpoint *endpoint, ms_ucx_peer *peer, const ucp_address_t *address) {
  ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                          UCP_EP_PARAM_FIELD_ERR_HANDLER,
                            .address = address,
                            .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                            .err_handler = {note_error, peer}};
  ucs_status_t status = endpoint->ucx->ep_create(endpoint->worker, &params, &peer->ep);
  if (status == UCS_OK) return MS_OK;
  peer->ep = NULL;
  return MS_FAIL(MS_EIO, "transport: UCX finds no way to rank %d on %s: %s: see UCX_TLS and UCX_NET_DEVICES",
                 peer->common.rank, peer->name, endpoint->ucx->status_string(status));
}

void ms_ucx_take_back(ms_ucx_peer *peer) {
  for (int i = 0; i < MS_UCX_PIECES; i++) peer->in[i].transfer = peer->out[i].transfer = NULL;
  ms_keys_fail(&peer->common.keys);
}

static void closed(void *request, ucs_status_t status, void *context) {
  ms_endpoint *endpoint = context;
  (void)status;
  endpoint->closing--;
  endpoint->ucx->request_free(request);
}

void ms_ucx_gone(ms_endpoint *endpoint, ms_ucx_peer *peer, enum ms_peer_state state) {
  ucp_request_param_t param = {.op_attr_mask =
                                   UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                               .flags = UCP_EP_CLOSE_FLAG_FORCE,
                               .cb.send = closed,
                               .user_data = endpoint};
  if (peer->common.state == MS_PEER_UP) endpoint->common.n_up--;
  peer->common.state = state;
  if (!peer->ep) return;
  if (UCS_PTR_IS_PTR(endpoint->ucx->ep_close_nbx(peer->ep, &param))) endpoint->closing++;
  peer->ep = NULL;
}

void ms_ucx_end_failed(ms_endpoint *endpoint, ms_peer *common, int say) {
  ms_ucx_peer *peer = (ms_ucx_peer *)common;
  if (common->state == MS_PEER_UP) endpoint->common.n_up--;
  say = say && common->state == MS_PEER_UP;
  common->state = say ? MS_PEER_ENDING : MS_PEER_GONE;
  peer->last_kind = say ? MS_PEER_REASON_OF : 0;
  peer->end_by = ms_clock() + LAST_SECONDS;
  common->output = 1;
}

void ms_ucx_take_error(ms_endpoint *endpoint, ms_ucx_peer *peer) {
  const char *what = endpoint->ucx->status_string(peer->broken);
  if (peer->common.state == MS_PEER_APART)
    ms_peer_fail(endpoint, &peer->common, 0, "no connection to it on %s: %s%s%s", peer->name, what,
                 *peer->refused ? "; " : "", peer->refused);
  if (peer->common.state == MS_PEER_UP)
    ms_peer_fail(endpoint, &peer->common, 0,
                 "the connection to %s was closed: %s: its process has ended, or its host or the link to it is down",
                 peer->name, what);
  ms_ucx_gone(endpoint, peer, peer->common.state == MS_PEER_LEFT ? MS_PEER_LEFT : MS_PEER_GONE);
}
