/* endpoints_ucx.c - what tests look at in endpoints of the transport ucx. */
#include "tests/c/support/ranks/endpoints_ucx.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "comm/transport/ucx/ucx.h"

int has_ucx(void) {
  int version[3];
  setenv("UCX_TLS", "tcp,self", 1);
  if (!ms_ucx_version(version)) return 1;
  printf("# skipped: the tests over ucx: %s\n", ms_error_message());
  ms_error_clear();
  return 0;
}

void ucx_forge(ms_endpoint *endpoint) { endpoint->peers[0].session[0] ^= 1; }
