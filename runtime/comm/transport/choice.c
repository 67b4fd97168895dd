/* choice.c - chooses the transport. `auto` takes UCX where it makes a difference, on RDMA devices, and tcp otherwise:
 * tcp needs no library, and notices a link that goes down while nothing waits. It never takes mpi, which only ranks of
 * MPI's launcher can use.
 */
#include "comm/transport/choice.h"

#include "moonshard.h"

#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/error.h"
#include "comm/transport/rdma.h"
#include "comm/transport/ucx/library.h"

static const char VARIABLE[] = "MOONSHARD_TRANSPORT";

/* ---- the transports: a row each ---- */

static int use_tcp(char why[MS_TRANSPORT_WHY]) {
  snprintf(why, MS_TRANSPORT_WHY, "it needs no library");
  return MS_OK;
}

static int use_ucx(char why[MS_TRANSPORT_WHY]) {
  int version[3];
  char device[64];
  MS_TRY(ms_ucx_version(version));
  int rdma = ms_rdma_device(device, sizeof device);
  snprintf(why, MS_TRANSPORT_WHY, "UCX %d.%d.%d over %s", version[0], version[1], version[2], rdma ? device : "TCP");
  return MS_OK;
}

static int use_mpi(char why[MS_TRANSPORT_WHY]) {
  char lacks[1024];
  if (!ms_transport_mpi_usable(lacks, sizeof lacks)) return MS_FAIL(MS_EUNSUPPORTED, "%s", lacks);
  snprintf(why, MS_TRANSPORT_WHY, "MPI's launcher started this process");
  return MS_OK;
}

/* usable: MS_OK and why it can be used, or an error that says what is missing. */
typedef struct choice {
  const char *name;
  int (*usable)(char why[MS_TRANSPORT_WHY]);
  const ms_transport_api *api;
} choice;

static const choice choices[] = {
    {"tcp", use_tcp, &ms_transport_tcp}, {"ucx", use_ucx, &ms_transport_ucx}, {"mpi", use_mpi, &ms_transport_mpi}};
enum { TCP = 0, UCX = 1, CHOICES = sizeof choices / sizeof *choices };

/* ---- choosing ---- */

static int take(const choice *chosen, const char *reason, const ms_transport_api **api, char why[MS_TRANSPORT_WHY]) {
  char usable[MS_TRANSPORT_WHY];
  if (chosen->usable(usable)) return ms_error_prefix("%s=%s", VARIABLE, chosen->name);
  *api = chosen->api;
  snprintf(why, MS_TRANSPORT_WHY, "%s: %s", chosen->name, reason ? reason : usable);
  return MS_OK;
}

static int choose_alone(const ms_transport_api **api, char why[MS_TRANSPORT_WHY]) {
  char device[64], lacks[MS_TRANSPORT_WHY], usable[MS_TRANSPORT_WHY];
  ms_error_record before;
  if (!ms_rdma_device(device, sizeof device)) return take(&choices[TCP], "this host has no RDMA device", api, why);
  ms_error_save(&before);
  int rc = choices[UCX].usable(usable);
  snprintf(lacks, sizeof lacks, "this host has the RDMA device %s, but UCX cannot be loaded: install libucx0", device);
  ms_error_restore(&before);
  return rc ? take(&choices[TCP], lacks, api, why) : take(&choices[UCX], usable, api, why);
}

/* "auto, tcp, ucx or mpi" */
static void list_names(char *text, size_t bytes) {
  size_t n = (size_t)snprintf(text, bytes, "auto");
  for (int i = 0; i < CHOICES && n < bytes; i++)
    n += (size_t)snprintf(text + n, bytes - n, "%s%s", i < CHOICES - 1 ? ", " : " or ", choices[i].name);
}

int ms_transport_choose(const ms_transport_api **api, char why[MS_TRANSPORT_WHY]) {
  const char *name = ms_env_string(VARIABLE, "auto");
  if (!strcmp(name, "auto")) return choose_alone(api, why);
  for (int i = 0; i < CHOICES; i++)
    if (!strcmp(name, choices[i].name)) return take(&choices[i], "chosen", api, why);
  char names[MS_TRANSPORT_WHY];
  list_names(names, sizeof names);
  return MS_FAIL(MS_EINVAL, "environment variable %s=\"%s\": it must be %s", VARIABLE, name, names);
}

int ms_transport_describe(int fact, char *text, int bytes) {
  MS_GIVEN(text);
  const ms_transport_api *api;
  char why[MS_TRANSPORT_WHY];
  int version[3];
  if (fact < MS_TRANSPORT_CHOSEN || fact > MS_TRANSPORT_NAMES)
    return MS_FAIL(MS_EINVAL, "fact must be one of enum ms_transport_fact, not %d", fact);
  if (bytes < 1) return MS_FAIL(MS_EINVAL, "a text of %d bytes: give room for some", bytes);
  if (fact == MS_TRANSPORT_NAMES) {
    list_names(text, (size_t)bytes);
    return MS_OK;
  }
  if (fact == MS_TRANSPORT_UCX) {
    MS_TRY(ms_ucx_version(version));
    snprintf(text, (size_t)bytes, "%d.%d.%d", version[0], version[1], version[2]);
    return MS_OK;
  }
  MS_TRY(ms_transport_choose(&api, why));
  snprintf(text, (size_t)bytes, "%s", why);
  return MS_OK;
}
