/* region.c - memory that the ranks of a group map together. The first member makes a memfd, the others open it through
 * /proc, and then every descriptor is closed: only the mappings keep the memory, so it is freed when the last rank
 * ends, however it ends.
 *
 * Pages are small: a region commits exactly the pages that were touched, so resident memory matches the plan. (Huge
 * pages would round small regions up, and most kernels refuse them for memfds anyway.)
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/regions/region.h"

/* What the first member sends to the others. */
typedef struct offer {
  int pid, fd, error; /* error: errno of memfd_create or ftruncate, else 0 */
  uint64_t bytes;     /* the size that each rank requests: all must be equal */
} offer;

static int map_private(size_t bytes, ms_region *region) {
  void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return MS_FAIL(MS_ENOMEM, "cannot map %zu bytes of memory: %s", bytes, strerror(errno));
  *region = (ms_region){base, bytes};
  return MS_OK;
}

static offer make_offer(int place, size_t bytes) {
  offer mine = {.pid = (int)getpid(), .fd = -1, .bytes = bytes};
  if (place != 0) return mine;
  mine.fd = memfd_create("moonshard-region", MFD_CLOEXEC);
  if (mine.fd < 0 || ftruncate(mine.fd, (off_t)bytes)) mine.error = errno;
  return mine;
}

static int check_offers(const ms_group *group, const offer *offers) {
  const int *rank = group->rank;
  if (offers[0].error)
    return MS_FAIL(MS_EIO, "rank %d cannot make shared memory of %llu bytes: %s", rank[0],
                   (unsigned long long)offers[0].bytes, strerror(offers[0].error));
  for (int i = 1; i < group->size; i++)
    if (offers[i].bytes != offers[0].bytes)
      return MS_FAIL(MS_EMISMATCH, "shared memory: rank %d requests %llu bytes, but rank %d requests %llu", rank[i],
                     (unsigned long long)offers[i].bytes, rank[0], (unsigned long long)offers[0].bytes);
  return MS_OK;
}

static int map_shared(int fd, size_t bytes, ms_region *region) {
  void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED)
    return MS_FAIL(MS_ENOMEM, "cannot map %zu bytes of shared memory: %s", bytes, strerror(errno));
  *region = (ms_region){base, bytes};
  return MS_OK;
}

static int map_offered(const ms_group *group, const offer *theirs, ms_region *region) {
  struct stat info;
  int fd, rc = MS_OK, me = group->rank[group->me];
  MS_TRY(ms_memory_open(me, group->rank[0], theirs->pid, theirs->fd, &fd));
  if (fstat(fd, &info) || (uint64_t)info.st_size != theirs->bytes)
    rc = MS_FAIL(MS_EIO, "rank %d: the memory that rank %d offers is not its shared memory", me, group->rank[0]);
  else rc = map_shared(fd, (size_t)theirs->bytes, region);
  close(fd);
  return rc;
}

int ms_region_map(ms_group *group, size_t bytes, ms_region *region) {
  *region = (ms_region){NULL, 0};
  if (!bytes) return MS_OK;
  if (group->size == 1) return map_private(bytes, region);
  MS_TRY(ms_world_check_one_host(group->world, group->size, group->rank));
  int rc = MS_OK, failed = 0, *all_failed = ms_calloc(group->size, sizeof *all_failed);
  offer mine = make_offer(group->me, bytes), *offers = ms_calloc(group->size, sizeof *offers);
  if (!all_failed || !offers) MS_GOTO(MS_ENOMEM);
  MS_GOTO(ms_group_all_gather_bytes(group, &mine, sizeof mine, offers));
  MS_GOTO(check_offers(group, offers));
  if (group->me == 0) failed = map_shared(mine.fd, bytes, region);
  else failed = map_offered(group, &offers[0], region);
  /* Every rank learns whether all have mapped the region, so no rank uses one that another rank lacks. */
  MS_GOTO(ms_group_all_gather_bytes(group, &failed, sizeof failed, all_failed));
  MS_GOTO(failed);
  for (int i = 0; i < group->size; i++)
    if (all_failed[i])
      MS_GOTO(MS_FAIL(MS_EPEER, "rank %d could not map %zu bytes of shared memory: %s", group->rank[i], bytes,
                      ms_status_name(all_failed[i])));
fail:
  if (mine.fd >= 0) close(mine.fd);
  if (rc) ms_region_unmap(region);
  free(offers);
  free(all_failed);
  return rc;
}

void ms_region_unmap(ms_region *region) {
  if (region->base) munmap(region->base, region->bytes);
  *region = (ms_region){NULL, 0};
}
