/* device.h - where tensors live and kernels run: the functions that the rest of the engine asks of a device.
**
** A device whose memory the host reads and writes itself (the CPU) has no streams here: the executor runs its plans on
** host threads, and its ranks meet in shared memory. All other access to what lies in an arena goes through read and
** write, which cost nothing but a copy there.
*/
#ifndef MS_DEVICE_DEVICE_H
#define MS_DEVICE_DEVICE_H

#include "kernels/op.h"

typedef struct ms_device ms_device;

typedef struct ms_device_api {
  int kind; /* enum ms_device_kind */
  const char *name;
  int host_memory; /* 1: the host may follow pointers into an arena */
  /* The kernel of an op; NULL for an alias. Needs no device to be open, and none to be there. */
  const ms_kernel *(*kernel)(int op);
  /* local_rank: of this process on its host, by which it takes its device. */
  int (*open)(int local_rank, ms_device **device);
  void (*close)(ms_device *device);
  /* Zero-filled, 4096-byte aligned. label: what it is for, in messages. */
  int (*allocate)(ms_device *device, int64_t bytes, const char *label, void **base);
  void (*release)(ms_device *device, void *base, int64_t bytes);
  /* Between the host and an arena; complete when they return, and after all that was issued to the device before. */
  int (*read)(ms_device *device, void *host, const void *at, int64_t bytes);
  int (*write)(ms_device *device, void *at, const void *host, int64_t bytes);
} ms_device_api;

/* One open device; what an implementation adds follows it. */
struct ms_device {
  const ms_device_api *api;
};

/* The functions of a kind of device; MS_EUNSUPPORTED when this machine has no library for it. */
int ms_device_find(int kind, const ms_device_api **api);
/* The kernel of an op on a kind of device that was found before; NULL for an alias. */
const ms_kernel *ms_device_kernel(int kind, int op);
const char *ms_device_name(int kind);

extern const ms_device_api ms_cpu_device;

#endif
