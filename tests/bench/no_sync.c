/* no_sync.c - loaded before the C library (LD_PRELOAD) it lets a program end in the page cache: what is asked to be on
 * disk is said to be. For comparing saves with a peer's that do not ask; a run of anybody's own must not have it.
 */
#include <stdint.h>

int fsync(int file);
int sync_file_range(int file, int64_t at, int64_t bytes, unsigned flags);

int fsync(int file) {
  (void)file;
  return 0;
}

int sync_file_range(int file, int64_t at, int64_t bytes, unsigned flags) {
  (void)file, (void)at, (void)bytes, (void)flags;
  return 0;
}
