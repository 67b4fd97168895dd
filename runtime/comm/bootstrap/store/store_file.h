/* store_file.h - the file behind file:///path, in which rank 0 publishes the store's address to the other ranks of its
 * host. Internal to comm.
 *
 * Rank 0 creates the file, which must not exist, and removes it as soon as every rank has connected or the rendezvous
 * has failed. Readers accept it only when it is complete, has this protocol's version, this job and this host, and its
 * process is alive; a file left by a killed run is an error that says so.
 */
#ifndef MS_COMM_BOOTSTRAP_STORE_FILE_H
#define MS_COMM_BOOTSTRAP_STORE_FILE_H

#include "comm/bootstrap/store/store.h"

/* socket: the store's address. */
int ms_store_file_write(const char *path, const char *job, int size, const ms_store_place *socket);
/* Waits for the file until `deadline` (ms_clock), and reads it. */
int ms_store_file_read(const char *path, const char *job, int size, double deadline, ms_store_place *socket);

#endif
