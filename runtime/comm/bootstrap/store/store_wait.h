/* store_wait.h - waits with a deadline that Ctrl-C ends: for a descriptor, and for the addresses of a host name.
 *
 * The system's resolver has no deadline: without an answer it repeats its query for as long as resolv.conf says, and no
 * signal interrupts it. It therefore runs in a thread, which is abandoned when the deadline passes.
 */
#ifndef MS_COMM_BOOTSTRAP_STORE_WAIT_H
#define MS_COMM_BOOTSTRAP_STORE_WAIT_H

#include <netdb.h>
#include <stddef.h>

/* Waits for poll events until `deadline` (ms_clock). *ready 0: the deadline passed. Fails with MS_EINTERRUPT. */
int ms_wire_wait(int fd, short events, double deadline, int *ready);
/* Finds addresses for TCP until `deadline` (ms_clock). *found belongs to the caller (freeaddrinfo). Without an answer
 * it is NULL and `why` has the reason; the caller can try again. Fails only with MS_EINTERRUPT, or when no thread can
 * start. */
int ms_resolve(const char *host, int port, double deadline, struct addrinfo **found, char *why, size_t bytes);

#endif
