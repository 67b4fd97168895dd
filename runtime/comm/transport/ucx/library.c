/* library.c - loads UCX and chooses its settings.
 *
 * UCX reads some settings when it is loaded. By default it takes over signal handlers (SEGV, BUS, FPE, HUP) and patches
 * the allocator; a process that embeds the engine wants neither.
 */
#include "comm/transport/ucx/library.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/env.h"
#include "base/error.h"
#include "base/library.h"
#include "comm/transport/rdma.h"
#include "comm/transport/tcp/tcp.h"

enum { OLDEST_MAJOR = 1, OLDEST_MINOR = 13 };
/* Seconds of silence after which a host or link is down, at most; probes in that time. As tcp/peer.c. */
enum { DOWN_SECONDS = 5, PROBES = 3 };

#define ENTRY(field, symbol) \
  { #symbol, offsetof(ms_ucx_functions, field) }
static const ms_library_entry entries[] = {ENTRY(get_version, ucp_get_version),
                                           ENTRY(init_version, ucp_init_version),
                                           ENTRY(cleanup, ucp_cleanup),
                                           ENTRY(config_read, ucp_config_read),
                                           ENTRY(config_modify, ucp_config_modify),
                                           ENTRY(config_release, ucp_config_release),
                                           ENTRY(worker_create, ucp_worker_create),
                                           ENTRY(worker_destroy, ucp_worker_destroy),
                                           ENTRY(worker_get_address, ucp_worker_get_address),
                                           ENTRY(worker_release_address, ucp_worker_release_address),
                                           ENTRY(worker_progress, ucp_worker_progress),
                                           ENTRY(worker_get_efd, ucp_worker_get_efd),
                                           ENTRY(worker_arm, ucp_worker_arm),
                                           ENTRY(worker_set_am_recv_handler, ucp_worker_set_am_recv_handler),
                                           ENTRY(ep_create, ucp_ep_create),
                                           ENTRY(ep_close_nbx, ucp_ep_close_nbx),
                                           ENTRY(am_send_nbx, ucp_am_send_nbx),
                                           ENTRY(am_recv_data_nbx, ucp_am_recv_data_nbx),
                                           ENTRY(request_free, ucp_request_free),
                                           ENTRY(status_string, ucs_status_string)};
static const char *const names[] = {"libucp.so.0", NULL};
static const ms_library library = {
    "MOONSHARD_UCX_LIBRARY",         names, "the transport ucx needs UCX (Debian: libucx0)", "UCX 1.13", entries,
    sizeof entries / sizeof *entries};

static ms_ucx_functions functions;
static int loaded; /* guarded by loading, which ms_ucx_load takes */
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

/* Its log goes to stdout by default, which belongs to the program. */
static void prepare_environment(void) {
  setenv("UCX_HANDLE_ERRORS", "none", 0);
  setenv("UCX_ERROR_SIGNALS", "", 0);
  setenv("UCX_MEM_EVENTS", "n", 0);
  setenv("UCX_LOG_FILE", "stderr", 0);
}

static int load(void) {
  char why[MS_LIBRARY_WHY_BYTES];
  unsigned major, minor, release;
  if (loaded) return MS_OK;
  prepare_environment();
  /* It stays loaded: it has threads, and keeps what it has registered until the process ends. */
  if (!ms_library_open(&library, &functions, why)) return MS_FAIL(MS_EUNSUPPORTED, "%s", why);
  functions.get_version(&major, &minor, &release);
  if (major == OLDEST_MAJOR && minor >= OLDEST_MINOR) {
    loaded = 1;
    return MS_OK;
  }
  return MS_FAIL(MS_EUNSUPPORTED, "%s is UCX %u.%u.%u: 1.%d or a later 1.x is needed", ms_library_path(&library), major,
                 minor, release, OLDEST_MINOR);
}

int ms_ucx_load(const ms_ucx_functions **out) {
  pthread_mutex_lock(&loading);
  int rc = load();
  pthread_mutex_unlock(&loading);
  *out = &functions;
  return rc;
}

int ms_ucx_version(int version[3]) {
  const ms_ucx_functions *ucx;
  unsigned part[3];
  MS_TRY(ms_ucx_load(&ucx));
  ucx->get_version(&part[0], &part[1], &part[2]);
  for (int i = 0; i < 3; i++) version[i] = (int)part[i];
  return MS_OK;
}

int ms_ucx_uses_rendezvous(void) { return ms_env_string("UCX_RNDV_THRESH", NULL) || ms_rdma_device(NULL, 0); }

/* ---- settings ---- */

/* Sets a name, unless the user has set UCX_<table><name>: UCX knows settings of its own transports by the name alone.
 */
static int set(const ms_ucx_functions *ucx, ucp_config_t *config, const char *table, const char *name,
               const char *value) {
  char variable[64];
  snprintf(variable, sizeof variable, "UCX_%s%s", table, name);
  if (ms_env_string(variable, NULL)) return MS_OK;
  ucs_status_t status = ucx->config_modify(config, name, value);
  if (status == UCS_OK) return MS_OK;
  return MS_FAIL(MS_EIO, "UCX does not take the setting %s=%s: %s", variable, value, ucx->status_string(status));
}

/* The kernel probes idle connections, and ends those of a host or link that is down. */
static int set_probes(const ms_ucx_functions *ucx, ucp_config_t *config, double timeout) {
  int down = (int)fmax(2, fmin(DOWN_SECONDS, timeout)), probes = down > PROBES ? PROBES : down - 1;
  char idle[16], count[16];
  snprintf(idle, sizeof idle, "%ds", down - probes);
  snprintf(count, sizeof count, "%d", probes);
  MS_TRY(set(ucx, config, "TCP_", "KEEPIDLE", idle));
  MS_TRY(set(ucx, config, "TCP_", "KEEPCNT", count));
  return set(ucx, config, "TCP_", "KEEPINTVL", "1s");
}

/* Over TCP, rendezvous replies would wait behind the bulk of the other direction, and zero-copy sends would end the
 * process when a peer dies. So everything is sent eagerly, a piece in one segment. */
static int set_for_tcp(const ms_ucx_functions *ucx, ucp_config_t *config, double timeout) {
  const char *ports = ms_env_string("MOONSHARD_PORTS", NULL);
  char interface[MS_TCP_INTERFACE];
  MS_TRY(set(ucx, config, "", "RNDV_THRESH", "inf"));
  MS_TRY(set(ucx, config, "", "ZCOPY_THRESH", "inf"));
  MS_TRY(set(ucx, config, "", "TLS", "tcp,self"));
  MS_TRY(set(ucx, config, "TCP_", "TX_SEG_SIZE", "68k"));
  MS_TRY(set(ucx, config, "TCP_", "RX_SEG_SIZE", "68k"));
  if (ports) MS_TRY(ms_tcp_check_ports());
  if (ports) MS_TRY(set(ucx, config, "TCP_", "PORT_RANGE", ports));
  MS_TRY(ms_tcp_chosen_interface(interface));
  if (*interface) MS_TRY(set(ucx, config, "", "NET_DEVICES", interface));
  return set_probes(ucx, config, timeout);
}

int ms_ucx_configure(const ms_ucx_functions *ucx, int rendezvous, double timeout, ucp_config_t **config) {
  ucs_status_t status = ucx->config_read(NULL, NULL, config);
  if (status != UCS_OK)
    return MS_FAIL(MS_EINVAL, "UCX cannot read its settings: %s; see the environment variables UCX_*",
                   ucx->status_string(status));
  /* Without it, UCX 1.13 can end the process when a connection is closed: it re-arms a descriptor that is gone. */
  int rc = set(ucx, *config, "", "ADAPTIVE_PROGRESS", "n");
  if (!rc && !rendezvous) rc = set_for_tcp(ucx, *config, timeout);
  if (rc) ucx->config_release(*config);
  return rc;
}
