/* store_link.h - a rank's connection to the store after the rendezvous: a thread that reads what the store sends, and
 * sends what could not be sent at once. Internal to comm. */
#ifndef MS_COMM_BOOTSTRAP_STORE_LINK_H
#define MS_COMM_BOOTSTRAP_STORE_LINK_H

#include "comm/bootstrap/store/store_wire.h"

typedef struct ms_store_link ms_store_link;

/* Starts the thread. fd stays the caller's; it is open until the link is freed. */
int ms_store_link_start(int fd, const ms_store_listener *listener, void *context, ms_store_link **link);
/* Queues a frame. Never blocks: output that the store does not read is bounded, and more ends the job. */
void ms_store_link_send(ms_store_link *link, uint32_t kind, const void *body, size_t bytes);
/* Sends LEAVE, and waits briefly (hurry 1: very briefly) until the store has sent everything and closed the connection;
 * posts are applied until then. NULL is allowed. */
void ms_store_link_leave(ms_store_link *link, int hurry);
/* After ms_store_link_leave. */
void ms_store_link_free(ms_store_link *link);

#endif
