/* file.h - the calls that write files, with fault injection for tests.
 *
 * All disk operations of a checkpoint go through these calls, so that a test can make any single call fail, write
 * less than requested, or kill the process. Without injection (ms_inject_io) a call costs one extra load.
 */
#ifndef MS_IO_FILE_H
#define MS_IO_FILE_H

#include <stdint.h>
#include <sys/types.h>

/* Wrappers of open(2), fsync(2), rename(2), mkdir(2), unlink(2), unlinkat(2), with their results and errno.
 */
int ms_file_open(const char *path, int flags, int mode);
int ms_file_sync(int fd);
/* Starts writing dirty pages to disk, so that the fsync that must follow finds little left to do; this halves the
 * time of both. Only a hint: that fsync reports any failure. */
void ms_file_begin_sync(int fd);
int ms_file_rename(const char *from, const char *to);
int ms_file_mkdir(const char *path);
int ms_file_unlink(const char *path);
int ms_file_unlink_at(int folder, const char *name, int flags);

/* Writes all bytes at offset `at`, even if the system accepts fewer per call. MS_EIO names the path. */
int ms_file_write_at(const char *path, int fd, int64_t at, int64_t bytes, const void *data);
/* The same, bypassing the page cache, which saves the processor a copy and leaves the cache to other files. Only
 * ranges at multiples of MS_FILE_PAGE, in memory and in the file, can bypass it, and not on every file system (not on
 * tmpfs); the rest goes through the cache. An fsync must follow in both cases. */
enum { MS_FILE_PAGE = 4096 };
int ms_file_write_direct(const char *path, int fd, int64_t at, int64_t bytes, const void *data);
/* fsync of a folder: files created, renamed or removed in it survive a power failure. */
int ms_file_sync_folder(const char *path);
int ms_file_sync_parent(const char *path); /* the same for the folder that contains a path */
/* Creates a file with this text; sync 1: it is on disk on return. Removes the file again if it fails. */
int ms_file_write_text(const char *path, const char *text, int64_t bytes, int sync);
char *ms_file_join(const char *folder, const char *name); /* "folder/name", to free; NULL: out of memory */

#endif
