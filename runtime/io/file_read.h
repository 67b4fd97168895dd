/* file_read.h - the only calls that open files for reading in this folder.
 *
 * They accept regular files only: opening a pipe without a writer would block for ever, a device can be endless, and
 * a folder would fail later with a less helpful message. So would a pointer of Git LFS in place of a file.
 */
#ifndef MS_IO_FILE_READ_H
#define MS_IO_FILE_READ_H

#include <stdint.h>

/* Opens a regular file and returns its size in bytes. MS_EINVAL if the path does not exist, or is not a regular file
 * or not yet fetched. */
int ms_file_open_regular(const char *path, int *fd, int64_t *bytes);
/* Fails if the file has become shorter. */
int ms_file_read_at(const char *path, int fd, int64_t at, int64_t bytes, void *out);
/* Reads the whole file and appends a zero byte; the caller frees *text. */
int ms_file_read_whole(const char *path, char **text, int64_t *bytes);

#endif
