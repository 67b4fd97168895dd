/* address.c - a worker's address in the bytes that ranks gather: a mark, the host's name, and what UCX made. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/transport/ucx/ucx.h"

enum { MARK = 0x3158434d, BYTES_AT = 4, NAME_AT = 8, WORKER_AT = NAME_AT + MS_UCX_NAME };
enum { MAX = MS_TRANSPORT_ADDRESS - WORKER_AT };

int ms_ucx_make_address(ms_endpoint *endpoint) {
  const ms_ucx_functions *ucx = endpoint->ucx;
  ucp_address_t *address;
  size_t bytes;
  ucs_status_t status = ucx->worker_get_address(endpoint->worker, &address, &bytes);
  if (status != UCS_OK) return MS_FAIL(MS_EIO, "transport: UCX has no address: %s", ucx->status_string(status));
  memset(endpoint->common.address, 0, sizeof endpoint->common.address);
  if (bytes <= MAX) {
    ms_wire_put32(endpoint->common.address, MARK);
    ms_wire_put32(endpoint->common.address + BYTES_AT, (uint32_t)bytes);
    gethostname((char *)endpoint->common.address + NAME_AT, MS_UCX_NAME - 1);
    memcpy(endpoint->common.address + WORKER_AT, address, bytes);
  }
  ucx->worker_release_address(endpoint->worker, address);
  if (bytes <= MAX) return MS_OK;
  return MS_FAIL(MS_EIO,
                 "transport: UCX's address has %zu bytes, and at most %d fit: choose one network device by "
                 "UCX_NET_DEVICES, e.g. mlx5_0:1",
                 bytes, MAX);
}

int ms_ucx_check_address(const uint8_t *address, char name[MS_UCX_NAME], const ucp_address_t **worker) {
  uint32_t bytes = ms_wire_get32(address + BYTES_AT);
  if (ms_wire_get32(address) != MARK || bytes < 1 || bytes > MAX)
    return MS_FAIL(MS_EINVAL, "it is not an address of the transport ucx: all ranks must run the same build, with the "
                              "same transport");
  ms_wire_get_text(address + NAME_AT, MS_UCX_NAME, name, MS_UCX_NAME);
  *worker = (const ucp_address_t *)(address + WORKER_AT);
  return MS_OK;
}
