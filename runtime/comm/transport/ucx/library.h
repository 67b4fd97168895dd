/* library.h - UCX, loaded when it is first needed: MOONSHARD_UCX_LIBRARY, or libucp.so.0. Also what UCX finds on
 * this host. Internal to transport.
 */
#ifndef MS_COMM_TRANSPORT_UCX_LIBRARY_H
#define MS_COMM_TRANSPORT_UCX_LIBRARY_H

#include <stddef.h>

#include <ucp/api/ucp.h>

/* UCX's functions, of which each field has the type. */
typedef struct ms_ucx_functions {
  __typeof__(&ucp_get_version) get_version;
  __typeof__(&ucp_init_version) init_version;
  __typeof__(&ucp_cleanup) cleanup;
  __typeof__(&ucp_config_read) config_read;
  __typeof__(&ucp_config_modify) config_modify;
  __typeof__(&ucp_config_release) config_release;
  __typeof__(&ucp_worker_create) worker_create;
  __typeof__(&ucp_worker_destroy) worker_destroy;
  __typeof__(&ucp_worker_get_address) worker_get_address;
  __typeof__(&ucp_worker_release_address) worker_release_address;
  __typeof__(&ucp_worker_progress) worker_progress;
  __typeof__(&ucp_worker_get_efd) worker_get_efd;
  __typeof__(&ucp_worker_arm) worker_arm;
  __typeof__(&ucp_worker_set_am_recv_handler) worker_set_am_recv_handler;
  __typeof__(&ucp_ep_create) ep_create;
  __typeof__(&ucp_ep_close_nbx) ep_close_nbx;
  __typeof__(&ucp_am_send_nbx) am_send_nbx;
  __typeof__(&ucp_am_recv_data_nbx) am_recv_data_nbx;
  __typeof__(&ucp_request_free) request_free;
  __typeof__(&ucs_status_string) status_string;
} ms_ucx_functions;

/* Loads the library on the first call, from any thread. Fails with MS_EUNSUPPORTED: it is not there, or too old; the
 * message says how to install it. */
int ms_ucx_load(const ms_ucx_functions **functions);
/* Major, minor, release. Fails as ms_ucx_load. */
int ms_ucx_version(int version[3]);
/* Reads UCX's settings from its environment, and chooses those that the user has not set there. timeout: seconds, of
 * the endpoint. Fails with MS_EINVAL, MS_EIO. The caller releases the config. */
int ms_ucx_configure(const ms_ucx_functions *ucx, int rendezvous, double timeout, ucp_config_t **config);

/* 1: UCX moves large pieces itself, straight between the memories of two hosts: over RDMA, or where the user has set
 * UCX_RNDV_THRESH. 0: this transport copies pieces and UCX sends them. */
int ms_ucx_uses_rendezvous(void);

#endif
