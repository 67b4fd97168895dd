/* store_file.h - the file of file:///path, through which rank 0 tells the other ranks of its host where the store is.
** Internal to comm.
**
** Rank 0 creates it (it must not be there), and removes it as soon as every rank has come, or none can any more. What
** is found there is believed only when it is complete, of this protocol, of this job, of this host, and its process
** is alive: a file that a killed run left is an error that says so.
*/
#ifndef MS_COMM_BOOTSTRAP_STORE_FILE_H
#define MS_COMM_BOOTSTRAP_STORE_FILE_H

#include "comm/bootstrap/store.h"

/* socket: where the store is. */
int ms_store_file_write(const char *path, const char *job, int size, const ms_store_place *socket);
/* Waits for the file until `deadline`, and reads it. */
int ms_store_file_read(const char *path, const char *job, int size, double deadline, ms_store_place *socket);

#endif
