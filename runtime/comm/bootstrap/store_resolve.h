/* store_resolve.h - the addresses of a host's name, asked for with a deadline.
**
** The system's resolver has none: where no name server answers, it asks again for as long as resolv.conf says, and no signal
** ends it. So it runs in a thread, which is left to itself when the deadline passes.
*/
#ifndef MS_COMM_BOOTSTRAP_STORE_RESOLVE_H
#define MS_COMM_BOOTSTRAP_STORE_RESOLVE_H

#include <netdb.h>
#include <stddef.h>

/* Addresses for TCP, until `deadline` (ms_clock): for freeaddrinfo, or NULL, and `why` says so then: a reason to try again. A
** failure is none: MS_EINTERRUPT, or that there can be no thread. */
int ms_resolve(const char *host, int port, double deadline, struct addrinfo **found, char *why, size_t bytes);

#endif
