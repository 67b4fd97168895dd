/* cpu.c - the CPU as a device: private memory of this process.
 *
 * Memory is mapped, not malloc'ed: pages are committed on first touch, so an arena uses no more than its plan says.
 * Arenas that peers read are not allocated here, but as regions that ranks map together (comm/regions/region.h).
 */
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "device/device.h"

static ms_device cpu = {&ms_cpu_device};

static int open_cpu(int local_rank, int nccl, int carveout, ms_device **device) {
  (void)local_rank; /* the launcher assigns cores */
  (void)carveout;   /* 0: the config has been checked */
  if (nccl) return MS_FAIL(MS_EINVAL, "NCCL options need the device cuda, but this state is on the cpu");
  *device = &cpu;
  return MS_OK;
}

static void close_cpu(ms_device *device) { (void)device; }

static int allocate(ms_device *device, int64_t bytes, int communicated, const char *label, void **base) {
  (void)device;
  (void)communicated;
  void *mapped = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return MS_FAIL(MS_ENOMEM, "cannot map %lld bytes for %s", (long long)bytes, label);
  madvise(mapped, (size_t)bytes, MADV_HUGEPAGE); /* fewer page faults and TLB misses; advice only */
  *base = mapped;
  return MS_OK;
}

static void release(ms_device *device, void *base, int64_t bytes, int communicated) {
  (void)device;
  (void)communicated;
  munmap(base, (size_t)bytes);
}

static int read_arena(ms_device *device, void *host, const void *at, int64_t bytes) {
  (void)device;
  memcpy(host, at, (size_t)bytes);
  return MS_OK;
}

static int write_arena(ms_device *device, void *at, const void *host, int64_t bytes) {
  (void)device;
  memcpy(at, host, (size_t)bytes);
  return MS_OK;
}

const ms_device_api ms_cpu_device = {.kind = MS_DEVICE_CPU,
                                     .name = "cpu",
                                     .capabilities = MS_DEVICE_HOST_MEMORY,
                                     .kernel = ms_cpu_kernel,
                                     .open = open_cpu,
                                     .close = close_cpu,
                                     .allocate = allocate,
                                     .release = release,
                                     .read = read_arena,
                                     .write = write_arena};
