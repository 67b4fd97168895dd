/* cpu.c - the CPU as a device: private memory of this process.
 *
 * Memory is mapped, not malloc'ed: pages are committed on first touch, so an arena uses no more than its plan says.
 * Arenas that peers read are not allocated here, but as regions that ranks map together (comm/regions/region.h).
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/machine/cores.h"
#include "base/machine/machine_memory.h"
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

/* ---- the host, the only device of its kind ---- */

static int check_index(int index) {
  if (!index) return MS_OK;
  return MS_FAIL(MS_EINVAL, "device %d of the cpu does not exist: the host is one device, 0", index);
}

static int count_hosts(int *devices) {
  *devices = 1;
  return MS_OK;
}

static void read_name(char *name, size_t bytes) {
  char line[512];
  FILE *file = fopen("/proc/cpuinfo", "re");
  if (!file) return;
  while (!*name && fgets(line, sizeof line, file)) {
    const char *colon = strstr(line, "model name") == line ? strchr(line, ':') : NULL;
    if (colon) snprintf(name, bytes, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
  }
  fclose(file);
}

static int describe_host(int index, ms_device_info *info) {
  ms_cores cores;
  ms_machine_memory memory;
  MS_TRY(check_index(index));
  ms_cores_read("", &cores);
  ms_machine_memory_read("", &memory);
  *info = (ms_device_info){.processors = ms_cores_usable(&cores),
                           .memory_bytes = memory.total,
                           .available = memory.available,
                           .limit = memory.limit};
  memcpy(info->limit_file, memory.limit_file, sizeof info->limit_file);
  read_name(info->name, sizeof info->name);
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
                                     .write = write_arena,
                                     .count = count_hosts,
                                     .describe = describe_host,
                                     .check = check_index};
