/* file_read.h - files are opened for reading by these calls, and by nothing else in this folder.
**
** What is named is a regular file or refused: opening a pipe that nobody writes would wait for good, a device need not have
** an end, and a folder fails later and with less to say.
*/
#ifndef MS_IO_FILE_READ_H
#define MS_IO_FILE_READ_H

#include <stdint.h>

/* Opens a regular file and tells its size. A path that is not there, or is none, is MS_EINVAL. */
int ms_file_open_regular(const char *path, int *fd, int64_t *bytes);
/* Fails where the file is shorter by now. */
int ms_file_read_at(const char *path, int fd, int64_t at, int64_t bytes, void *out);
/* All of it, and a zero behind; the caller frees it. */
int ms_file_read_whole(const char *path, char **text, int64_t *bytes);

#endif
