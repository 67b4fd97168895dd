/* file.h - the calls by which files are written, with the errors that tests put into them.
**
** All that a checkpoint does to a disk goes through here, so that every single call can be made to fail, to write less than
** it was asked, or to be the process's last. Without such an order (ms_inject_io) a call costs one load more.
*/
#ifndef MS_IO_FILE_H
#define MS_IO_FILE_H

#include <stdint.h>
#include <sys/types.h>

/* These are open(2), pwrite(2), fsync(2), rename(2), mkdir(2), unlink(2), rmdir(2): results and errno are theirs. */
int ms_file_open(const char *path, int flags, int mode);
ssize_t ms_file_pwrite(int fd, const void *data, size_t bytes, int64_t at);
int ms_file_sync(int fd);
/* Lets the disk begin with what was written so far, so that the fsync that must follow finds little left to do, which is half
** of the time of both. A hint: what goes wrong with it, that fsync tells. */
void ms_file_begin_sync(int fd);
int ms_file_rename(const char *from, const char *to);
int ms_file_mkdir(const char *path);
int ms_file_unlink(const char *path);
int ms_file_rmdir(const char *path);

/* Writes all bytes at `at`, also where the system takes fewer at a time. MS_EIO naming the path. */
int ms_file_write_at(const char *path, int fd, int64_t at, int64_t bytes, const void *data);
/* The same past the page cache, which spares the processor the copy and other files their place in it. Only what lies at
** multiples of MS_FILE_PAGE, in memory and in the file, can go that way, and not on every file system (not on tmpfs): the rest
** goes through the cache. An fsync must follow either. */
enum { MS_FILE_PAGE = 4096 };
int ms_file_write_direct(const char *path, int fd, int64_t at, int64_t bytes, const void *data);
/* fsync of a folder: what was made, renamed or removed in it is then there after a power cut. */
int ms_file_sync_folder(const char *path);
/* A new file of this text; sync 1: on disk when it returns. Removes what it began when it fails. */
int ms_file_write_text(const char *path, const char *text, int64_t bytes, int sync);

#endif
