/* store_server.h - the thread of rank 0 that runs the store. Internal to comm. */
#ifndef MS_COMM_BOOTSTRAP_STORE_SERVER_H
#define MS_COMM_BOOTSTRAP_STORE_SERVER_H

#include "comm/bootstrap/store/store.h"

typedef struct ms_store_server ms_store_server;

/* Serves listen_fd, and rank 0 itself over own_fd. The server owns both descriptors, even when the call fails. */
int ms_store_server_start(const ms_store_config *config, int listen_fd, int own_fd, ms_store_server **server);
/* Reports to the ranks that rank 0 leaves, waits briefly (hurry 1: very briefly) until they have read it, and ends the
 * thread. */
void ms_store_server_stop(ms_store_server *server, int hurry);

#endif
