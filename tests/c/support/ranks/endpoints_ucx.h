/* endpoints_ucx.h - what tests look at in endpoints of the transport ucx, whose header excludes that of tcp. */
#ifndef MS_TESTS_ENDPOINTS_UCX_H
#define MS_TESTS_ENDPOINTS_UCX_H

#include "comm/transport/transport.h"

/* 1: UCX is installed, and uses only TCP from here on; otherwise says that its tests are skipped. */
int has_ucx(void);
/* Spoils the session with which messages to the first peer begin. */
void ucx_forge(ms_endpoint *endpoint);

#endif
