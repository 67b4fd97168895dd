/* control.c - the control segment, which the launcher makes and the ranks map; doorbells and the abort record.
 *
 * A doorbell is a futex word that only counts up. A waiter reads it, tests its condition, and sleeps only while the
 * word still has that value; a rank that changes a condition increments the word and then checks for sleepers. Both
 * sides use sequentially consistent operations, so either the ringer sees the sleeper or the sleeper sees the ring: no
 * wake-up is lost.
 */
#include "comm/control/control.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/machine/cores.h"
#include "base/error.h"

static const uint64_t CONTROL_MAGIC = 0x6d6f6f6e6a6f6221ull; /* "moonjob!" */

static int usable_cores(void) {
  ms_cores cores;
  ms_cores_read("", &cores);
  return ms_cores_usable(&cores);
}

static uint64_t whole_pages(uint64_t bytes) {
  return (bytes + MS_CONTROL_PAGE - 1) / MS_CONTROL_PAGE * MS_CONTROL_PAGE;
}

static ms_control layout_of(int size, int local, uint64_t group_bytes) {
  ms_control c = {.version = MS_CONTROL_VERSION, .size = size, .local = local};
  c.recorders_at = whole_pages(sizeof c + sizeof *c.rank * (uint64_t)size);
  c.groups_at = c.recorders_at + MS_CONTROL_RECORDER_BYTES * (uint64_t)size;
  c.bytes = c.groups_at + whole_pages(group_bytes);
  return c;
}

int ms_control_create(int size, int local, int cores, uint64_t group_bytes, int *fd) {
  if (size < 1 || size > MS_MAX_RANKS) return MS_FAIL(MS_EINVAL, "a job has 1 to %d ranks, not %d", MS_MAX_RANKS, size);
  if (local < 1 || local > MS_MAX_LOCAL_RANKS || local > size)
    return MS_FAIL(MS_EINVAL, "a host runs 1 to %d ranks, not %d: use several hosts (--nodes)",
                   size < MS_MAX_LOCAL_RANKS ? size : MS_MAX_LOCAL_RANKS, local);
  const ms_control layout = layout_of(size, local, group_bytes);
  int made = memfd_create(MS_CONTROL_NAME, MFD_CLOEXEC);
  if (made < 0) return MS_FAIL(MS_EIO, "cannot make the control segment: memfd_create: %s", strerror(errno));
  if (ftruncate(made, (off_t)layout.bytes)) {
    int why = errno;
    close(made);
    return MS_FAIL(MS_EIO, "cannot resize the control segment to %llu bytes: %s%s", (unsigned long long)layout.bytes,
                   strerror(why), why == EFBIG ? " (memory shared by ranks counts towards ulimit -f)" : "");
  }
  ms_control *control = mmap(NULL, layout.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
  if (control == MAP_FAILED) {
    int why = errno;
    close(made);
    return MS_FAIL(MS_EIO, "cannot map the control segment: %s", strerror(why));
  }
  memcpy(control, &layout, sizeof layout);
  control->cores = cores ? cores : usable_cores();
  control->maker = (int32_t)getpid();
  control->made = (uint64_t)(1e9 * ms_clock());
  control->magic = CONTROL_MAGIC;
  ms_control_unmap(control);
  *fd = made;
  return MS_OK;
}

/* The header is read before anything is mapped: it says how large the segment is. */
static int read_header(int fd, ms_control *header) {
  struct stat info;
  const size_t bytes = sizeof *header;
  if (fstat(fd, &info) || info.st_size < (off_t)bytes || pread(fd, header, bytes, 0) != (ssize_t)bytes) return 0;
  if (header->magic != CONTROL_MAGIC || header->version != MS_CONTROL_VERSION || header->size < 1 ||
      header->size > MS_MAX_RANKS || header->bytes != (uint64_t)info.st_size || header->groups_at > header->bytes)
    return 0;
  const ms_control layout = layout_of(header->size, header->local, header->bytes - header->groups_at);
  return header->recorders_at == layout.recorders_at && header->groups_at == layout.groups_at;
}

static int require_header(int fd, ms_control *header) {
  return read_header(fd, header) ? MS_OK
                                 : MS_FAIL(MS_EINVAL, "descriptor %d is not a control segment of this build", fd);
}

int ms_control_map(int fd, ms_control **control) {
  ms_control header;
  MS_TRY(require_header(fd, &header));
  ms_control *mapped = mmap(NULL, header.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return MS_FAIL(MS_EIO, "cannot map the control segment: %s", strerror(errno));
  if (mprotect(mapped, MS_CONTROL_PAGE, PROT_READ)) {
    int why = errno;
    munmap(mapped, header.bytes);
    return MS_FAIL(MS_EIO, "cannot protect the control segment: %s", strerror(why));
  }
  *control = mapped;
  return MS_OK;
}

/* Reads the pages that a segment has. 0: it became shorter, or cannot be read. */
static int read_pages(int fd, char *to, off_t bytes) {
  off_t end = 0;
  for (off_t at; (at = lseek(fd, end, SEEK_DATA)) >= 0 && at < bytes;) {
    end = lseek(fd, at, SEEK_HOLE);
    if (end < 0) return 0;
    if (end > bytes) end = bytes;
    while (at < end) {
      ssize_t n = pread(fd, to + at, (size_t)(end - at), at);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return 0;
      at += n;
    }
  }
  return end == bytes || errno == ENXIO; /* no more pages */
}

int ms_control_copy(int fd, ms_control **control) {
  ms_control header;
  struct stat info;
  MS_TRY(require_header(fd, &header));
  char *copy = mmap(NULL, header.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (copy == MAP_FAILED) return MS_FAIL(MS_EIO, "cannot map memory for a control segment: %s", strerror(errno));
  if (!read_pages(fd, copy, (off_t)header.bytes) || fstat(fd, &info) || info.st_size != (off_t)header.bytes) {
    munmap(copy, header.bytes);
    return MS_FAIL(MS_EINVAL, "the control segment changed while it was read");
  }
  memcpy(copy, &header, sizeof header); /* what was checked, whatever is there now */
  *control = (ms_control *)copy;
  return MS_OK;
}

void ms_control_unmap(const ms_control *control) { munmap((void *)control, control->bytes); }

int ms_memory_open(int rank, int owner, int pid, int fd_there, int *fd) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd_there);
  *fd = open(path, O_RDWR | O_CLOEXEC);
  if (*fd >= 0) return MS_OK;
  return MS_FAIL(
      MS_EIO,
      "rank %d cannot open the shared memory of rank %d at %s: %s (the ranks must run as the same user and see each "
      "other's processes, and /proc must be mounted)",
      rank, owner, path, strerror(errno));
}

static void ring(_Atomic uint32_t *bell, const _Atomic uint32_t *sleepers) {
  atomic_fetch_add(bell, 1);
  if (atomic_load(sleepers)) syscall(SYS_futex, bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void sleep_on(_Atomic uint32_t *bell, _Atomic uint32_t *sleepers, uint32_t seen, double seconds) {
  struct timespec limit = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))};
  atomic_fetch_add(sleepers, 1);
  if (atomic_load(bell) == seen) syscall(SYS_futex, bell, FUTEX_WAIT, seen, &limit, NULL, 0);
  atomic_fetch_sub(sleepers, 1);
}

void ms_control_ring(ms_control *control, int rank) {
  ring(&control->rank[rank].doorbell, &control->rank[rank].sleepers);
}

void ms_control_sleep(ms_control *control, int rank, uint32_t seen, double seconds) {
  sleep_on(&control->rank[rank].doorbell, &control->rank[rank].sleepers, seen, seconds);
}

void ms_control_ring_step(ms_control *control, int rank) {
  ring(&control->rank[rank].step_bell, &control->rank[rank].step_sleepers);
}

void ms_control_sleep_step(ms_control *control, int rank, uint32_t seen, double seconds) {
  sleep_on(&control->rank[rank].step_bell, &control->rank[rank].step_sleepers, seen, seconds);
}

void ms_control_give_up(ms_control *control, int row, int blame, const char *why) {
  ms_control_rank *mine = ms_control_row(control, row);
  uint32_t untold = 0;
  if (!atomic_compare_exchange_strong(&mine->told, &untold, 1)) return;
  strncpy(mine->text, why, MS_CONTROL_TEXT - 1);
  atomic_store(&mine->told, 2);
  uint32_t none = 0;
  atomic_compare_exchange_strong(&control->aborted, &none, (uint32_t)(row + 1) | (uint32_t)(blame + 1) << 16);
  for (int rank = 0; rank < control->size; rank++) ms_control_ring(control, rank);
}

void ms_control_note_lost(ms_control *control, int hosts) {
  uint32_t before = atomic_load(&control->lost);
  while (before < (uint32_t)hosts && !atomic_compare_exchange_weak(&control->lost, &before, (uint32_t)hosts)) continue;
}

static const char OVERWRITTEN[] = "the control segment of the run was overwritten";

/* Does not write: other ranks read it at the same time. */
const char *ms_control_text(const ms_control_rank *row) {
  return memchr(row->text, '\0', MS_CONTROL_TEXT) ? row->text : OVERWRITTEN;
}

const char *ms_control_aborted(ms_control *control, int *row, int *blame) {
  uint32_t word = atomic_load_explicit(&control->aborted, memory_order_acquire);
  if (!word) return NULL;
  *row = (int)(word & 0xffffu) - 1;
  *blame = (int)(word >> 16) - 1;
  /* Every rank can write here, even a recipe through ffi, so the contents are checked before use. */
  if (*row < 0 || (*row >= control->size && *row != MS_CONTROL_LAUNCHER) || *blame >= control->size) {
    *row = MS_CONTROL_LAUNCHER;
    *blame = -1;
    return OVERWRITTEN;
  }
  return ms_control_text(ms_control_row(control, *row));
}
