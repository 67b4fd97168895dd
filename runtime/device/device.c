/* device.c - which kinds of device there are. */
#include "device/device.h"

#include "base/error.h"

static const ms_device_api *const devices[] = {[MS_DEVICE_CPU] = &ms_cpu_device};

enum { KINDS = sizeof devices / sizeof *devices };

int ms_device_find(int kind, const ms_device_api **api) {
  if (kind < 0 || kind >= KINDS)
    return MS_FAIL(MS_EUNSUPPORTED, "device %d: this build has the device cpu (%d) alone", kind, MS_DEVICE_CPU);
  *api = devices[kind];
  return MS_OK;
}

const ms_kernel *ms_device_kernel(int kind, int op) { return devices[kind]->kernel(op); }

const char *ms_device_name(int kind) { return devices[kind]->name; }
