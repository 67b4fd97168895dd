/* store_server.h - the thread of rank 0 that serves the store. Internal to comm. */
#ifndef MS_COMM_BOOTSTRAP_STORE_SERVER_H
#define MS_COMM_BOOTSTRAP_STORE_SERVER_H

#include "comm/bootstrap/store.h"

typedef struct ms_store_server ms_store_server;

/* Serves at listen_fd, and to rank 0 itself over own_fd; both belong to the server from here on, also when it fails. */
int ms_store_server_start(const ms_store_config *config, int listen_fd, int own_fd, ms_store_server **server);
/* Tells the ranks that rank 0 leaves, waits shortly until they have heard it, and ends the thread. */
void ms_store_server_stop(ms_store_server *server);

#endif
