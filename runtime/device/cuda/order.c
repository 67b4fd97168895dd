/* order.c - keeps collectives of several communicators from waiting for each other in a circle.
 *
 * The kernel of a collective holds its multiprocessors until the same collective runs on all of its ranks. If two such
 * kernels began in different orders on two GPUs, and the second did not fit next to the first, neither would end. There
 * are two safeguards, of which one suffices:
 *
 * - NCCL 2.26 and later begins kernels in the order in which the host issues them, which is the plan's order on all
 *   ranks, if NCCL_LAUNCH_ORDER_IMPLICIT is 1. Drivers for CUDA 12.3 and later can do so without serialising them, and
 *   from 12.9 on also in captured graphs. The setting's value is kept if there is one.
 * - The kernels fit next to each other. A stream runs one collective at a time, and kernels of a plan end without
 * waiting for other ranks, so if n communicators run at once, each may have 1/n of the multiprocessors (max_ctas). One
 * thread block of NCCL fits on any multiprocessor.
 *
 * Where products leave multiprocessors to collectives (ms_plan_config.sm_carveout), those that run at once share so
 * many blocks, so that a product never waits for more of them than it has left free. NCCL's own settings can override
 * this; a note says so.
 *
 * Settings of NCCL that let a communicator have more than its share of all multiprocessors are refused, and so is a
 * part of a GPU (MIG): it has few multiprocessors and no direct access to the memory of other GPUs.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda.h"

/* The most thread blocks that all versions of NCCL accept. */
enum { MAX_CTAS = 32 };
/* The first CUDA version whose drivers can order launches without serialising them. */
enum { ORDERS_LAUNCHES = 12030 };

static int set_launch_order(void) {
  int driver;
  MS_TRY(MS_CUDA(cudaDriverGetVersion(&driver)));
  if (driver >= ORDERS_LAUNCHES && setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0))
    return MS_FAIL(MS_EDEVICE, "NCCL_LAUNCH_ORDER_IMPLICIT cannot be set: %s", strerror(errno));
  return MS_OK;
}

static int refuse_part(int index) {
  struct cudaDeviceProp properties;
  MS_TRY(MS_CUDA(cudaGetDeviceProperties(&properties, index)));
  if (!strstr(properties.name, " MIG ")) return MS_OK;
  return MS_FAIL(
      MS_EUNSUPPORTED,
      "device cuda: GPU %d (%s) is a part of a GPU, between which NCCL's collectives can wait for each other "
      "forever: use whole GPUs for several ranks",
      index, properties.name);
}

/* A setting of NCCL that gives a communicator more thread blocks than this, or NULL. NCCL prefers these to what a
 * communicator asks for. */
static const char *setting_beyond(int ctas) {
  static const char *const settings[] = {"NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS"};
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
    const char *text = getenv(settings[i]);
    if (text && strtol(text, NULL, 10) > ctas) return settings[i];
  }
  return NULL;
}

static int refuse_more(int ctas, int at_once) {
  const char *setting = setting_beyond(ctas);
  if (!setting) return MS_OK;
  return MS_FAIL(MS_EUNSUPPORTED,
                 "%s is %s, but %d communicators run at once on this GPU, and each can have at most %d of its "
                 "multiprocessors, or collectives could wait for each other forever: set at most %d",
                 setting, getenv(setting), at_once, ctas, ctas);
}

/* Bounds a communicator's thread blocks by its part of what products leave free. */
static void share_carveout(ms_cuda_device *device, int at_once) {
  const int part = device->carveout / at_once, ctas = part < 1 ? 1 : part;
  if (ctas < device->ctas) device->ctas = ctas;
  const char *setting = setting_beyond(device->ctas);
  if (setting)
    ms_note(
        "%s is %s: NCCL can use more thread blocks for a collective than the %d that products leave it (sm_carveout "
        "%d, for %d communicators that run at once), and products can wait for them",
        setting, getenv(setting), device->ctas, device->carveout, at_once);
}

int ms_cuda_order_collectives(ms_cuda_device *device, int at_once) {
  int processors;
  MS_TRY(set_launch_order());
  MS_TRY(refuse_part(device->index));
  MS_TRY(MS_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device->index)));
  const int share = at_once > 1 ? processors / at_once : MAX_CTAS;
  device->ctas = share < 1 ? 1 : share < MAX_CTAS ? share : MAX_CTAS;
  if (at_once > 1) MS_TRY(refuse_more(device->ctas, at_once));
  if (device->carveout) share_carveout(device, at_once);
  return MS_OK;
}
