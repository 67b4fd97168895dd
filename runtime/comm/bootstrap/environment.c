/* environment.c - the variables of torchrun, Open MPI, MPICH and its derivatives, and Slurm.
 *
 * A process that a launcher started as one of several must never train alone. Variables that are known to name a rank,
 * but are not supported here, are therefore an error that names them.
 */
#include "comm/bootstrap/environment.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/error.h"
#include "base/text/hash.h"
#include "comm/bootstrap/host_id.h"
#include "comm/bootstrap/host_list.h"

typedef struct launcher launcher;

/* Facts about a launcher; supporting another one means adding a row to the table below. */
struct launcher {
  const char *name;                     /* for messages */
  const char *rank, *size, *local_size; /* variables; local_size: NULL when the launcher has none */
  const char *mark;                     /* a variable that only this launcher sets, never a user by hand */
  int needs_mark;                       /* rank and size alone do not prove that it started this process */
  int is_ours;                          /* its variables are the ones that Moonshard's launcher sets */
  const char *details; /* name of the launcher whose variables say less about the same ranks, or NULL */
  /* Finds the rendezvous when MOONSHARD_RENDEZVOUS is not set; name_job was called before. */
  int (*place)(const launcher *self, ms_task *task);
  /* Writes the job's id from its variables; NULL: they have none. */
  void (*name_job)(char *text, size_t bytes);
};

/* Launchers whose other variables are not supported here. size: the variable with the number of ranks, or NULL. */
static const struct stranger {
  const char *rank, *size;
} strangers[] = {
    {"PMI_ID", NULL},                               /* mpiexec.hydra -pmi-port */
    {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},         /* hydra on one host */
    {"PMIX_RANK", NULL},                            /* prun */
    {"MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_SIZE"}, /* MVAPICH 3 and 4 */
    {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"},   /* jsrun */
    {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"},            /* flux run */
    {"PALS_RANKID", NULL},                          /* Cray's mpiexec */
    {"ALPS_APP_PE", NULL},                          /* aprun */
    {"HOROVOD_RANK", "HOROVOD_SIZE"},               /* horovodrun */
};

/* Slurm picks no port: these are above the ports of services and below the kernel's ephemeral ports. */
enum { FIRST_PORT = 20000, PORTS = 10000 };

static const char *get(const char *name) { return ms_env_string(name, NULL); }

/* ---- rank ---- */

/* *found 0: this launcher did not start this process. */
static int read_launcher(const launcher *l, ms_task *task, int *found) {
  *found = 0;
  if (l->needs_mark && !get(l->mark)) return MS_OK;
  if (!get(l->size) && !get(l->rank)) return MS_OK;
  if (!get(l->size) || !get(l->rank))
    return MS_FAIL(MS_EINVAL, "%s is set but %s is not: a rank needs both", get(l->rank) ? l->rank : l->size,
                   get(l->rank) ? l->size : l->rank);
  *task = (ms_task){.source = l->name, .set_by = get(l->mark) ? l->mark : NULL};
  MS_TRY(ms_env_int(l->size, 1, 1, MS_STORE_MAX_RANKS, &task->size));
  MS_TRY(ms_env_int(l->rank, 0, 0, task->size - 1, &task->rank));
  if (l->local_size) MS_TRY(ms_env_int(l->local_size, 0, 1, task->size, &task->local_size));
  *found = 1;
  return MS_OK;
}

/* Fails when two launchers contradict each other; the variables of an outer one can also describe its task that started
 * the inner one. */
static int check_agreement(const launcher *l, const ms_task *inner, const ms_task *outer) {
  if (outer->size == 1 || (inner->size == outer->size && inner->rank == outer->rank)) return MS_OK;
  if (get(l->mark) && outer->size < inner->size) return MS_OK;
  return MS_FAIL(
      MS_EINVAL,
      "two launchers contradict each other: this process is rank %d of %d (%s) and rank %d of %d (%s); unset "
      "the variables of the launcher that did not start it",
      inner->rank, inner->size, inner->source, outer->rank, outer->size, outer->source);
}

static int refuse_strangers(void) {
  const char *end =
      "says that a launcher started this process as one of several ranks, but Moonshard does not know that "
      "launcher's variables: derive RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from them, or to run alone";
  for (size_t i = 0; i < sizeof strangers / sizeof strangers[0]; i++) {
    const struct stranger *s = &strangers[i];
    const char *size = s->size ? get(s->size) : NULL;
    if (!get(s->rank) || (size && !strcmp(size, "1"))) continue;
    if (size) return MS_FAIL(MS_EINVAL, "%s=%s of %s=%s %s unset them", s->rank, get(s->rank), s->size, size, end);
    return MS_FAIL(MS_EINVAL, "%s=%s %s unset it", s->rank, get(s->rank), end);
  }
  return MS_OK;
}

/* ---- rendezvous ---- */

static int is_all_local(const ms_task *task) { return task->local_size == task->size; }

/* Reads MASTER_ADDR and MASTER_PORT. torchrun runs its own store at that port; Moonshard's uses the next port. */
static int place_by_master(ms_task *task) {
  int port;
  const char *host = get("MASTER_ADDR"), *agent = get("TORCHELASTIC_USE_AGENT_STORE");
  const char *port_text = get("MASTER_PORT");
  if (!host || !port_text)
    return MS_FAIL(MS_EINVAL,
                   "this process is rank %d of %d (%s), but %s: set MASTER_ADDR and MASTER_PORT, or "
                   "MOONSHARD_RENDEZVOUS=tcp://host:port (the host of rank 0)",
                   task->rank, task->size, task->source,
                   host        ? "MASTER_PORT is not set"
                   : port_text ? "MASTER_ADDR is not set"
                               : "the rendezvous is unknown");
  MS_TRY(ms_env_int("MASTER_PORT", 0, 1, 65534, &port));
  return ms_store_place_tcp(host, port + (agent && !strcmp(agent, "True")), &task->place);
}

/* The ranks of one host need no port: they use a local socket, named by the job's identity. */
static int place_by_environment(const launcher *self, ms_task *task) {
  (void)self;
  MS_TRY(place_by_master(task));
  if (!is_all_local(task)) return MS_OK;
  char key[512], text[320];
  memcpy(text, task->place.text, sizeof text);
  memcpy(text, "env", 3); /* env://127.0.0.1:29500 */
  snprintf(key, sizeof key, "%s %s", text, task->job);
  ms_store_place_local(key, text, &task->place);
  return MS_OK;
}

/* mpirun passes a random key to all ranks, for transports that need one. */
static void take_open_mpi_token(ms_task *task) {
  const char *key = get("OMPI_MCA_orte_precondition_transports");
  if (key && strlen(key) >= 32 && strlen(key) < sizeof task->token) memcpy(task->token, key, strlen(key) + 1);
}

static int place_by_open_mpi(const launcher *self, ms_task *task) {
  (void)self;
  const char *space = get("PMIX_NAMESPACE"), *server = get("OMPI_MCA_orte_hnp_uri");
  take_open_mpi_token(task);
  if (!is_all_local(task)) {
    if (get("MASTER_ADDR")) return place_by_master(task);
    return MS_FAIL(
        MS_EINVAL,
        "this process is rank %d of %d (%s) on several hosts, and Open MPI does not say which one is rank 0's: "
        "mpirun -x MOONSHARD_RENDEZVOUS=tcp://host:port ...",
        task->rank, task->size, task->source);
  }
  if (!space && !server)
    return MS_FAIL(
        MS_EINVAL,
        "this process is rank %d of %d (%s), but neither PMIX_NAMESPACE nor OMPI_MCA_orte_hnp_uri says which "
        "run it belongs to: set MOONSHARD_RENDEZVOUS",
        task->rank, task->size, task->source);
  char key[512], text[128];
  snprintf(key, sizeof key, "mpirun %s %s", space ? space : "", server ? server : "");
  snprintf(text, sizeof text, "mpirun %s", space ? space : server);
  ms_store_place_local(key, text, &task->place);
  return MS_OK;
}

/* hydra has no variable for the run that all its versions set; on one host, the process that started the ranks
 * identifies it. */
static int place_by_starter(const launcher *self, ms_task *task) {
  char key[64], text[64];
  uint64_t start;
  int starter = is_all_local(task) && !get("MASTER_ADDR") ? ms_process_starter(self->rank, &start) : 0;
  if (starter) {
    snprintf(key, sizeof key, "mpiexec %d %" PRIu64, starter, start);
    snprintf(text, sizeof text, "mpiexec, process %d", starter);
    ms_store_place_local(key, text, &task->place);
    return MS_OK;
  }
  if (get("MASTER_ADDR")) return place_by_master(task);
  return MS_FAIL(MS_EINVAL,
                 "this process is rank %d of %d (%s)%s, but its launcher does not say where rank 0 is: give all ranks "
                 "MASTER_ADDR and MASTER_PORT, or MOONSHARD_RENDEZVOUS=tcp://host:port (mpiexec -genv NAME VALUE)",
                 task->rank, task->size, task->source, is_all_local(task) ? "" : " on several hosts");
}

static int place_by_slurm(const launcher *self, ms_task *task) {
  (void)self;
  char host[256], text[128];
  int hosts, port;
  const char *list = get("SLURM_STEP_NODELIST");
  if (ms_host_list_find(list, 0, host, sizeof host, &hosts)) return ms_error_prefix("SLURM_STEP_NODELIST");
  if (hosts == 1) {
    task->local_size = task->size;
    snprintf(text, sizeof text, "srun %s", task->job);
    ms_store_place_local(text, text, &task->place);
    return MS_OK;
  }
  int derived = FIRST_PORT + (int)(ms_hash_bytes(MS_HASH_INIT, task->job, strlen(task->job)) % PORTS);
  MS_TRY(ms_env_int("MASTER_PORT", derived, 1, 65535, &port));
  return ms_store_place_tcp(ms_env_string("MASTER_ADDR", host), port, &task->place);
}

/* ---- job id ---- */

static void name_torchrun_job(char *text, size_t bytes) {
  const char *run = get("TORCHELASTIC_RUN_ID");
  if (run) snprintf(text, bytes, "%s.%s", run, ms_env_string("TORCHELASTIC_RESTART_COUNT", "0"));
}

static void name_open_mpi_job(char *text, size_t bytes) {
  const char *space = get("PMIX_NAMESPACE");
  if (space) snprintf(text, bytes, "%s", space);
}

static void name_slurm_job(char *text, size_t bytes) {
  snprintf(text, bytes, "%s.%s", ms_env_string("SLURM_JOB_ID", "0"), ms_env_string("SLURM_STEP_ID", "0"));
}

/* ---- the launchers, innermost first ---- */

static const launcher launchers[] = {
    {.name = "RANK, WORLD_SIZE",
     .rank = "RANK",
     .size = "WORLD_SIZE",
     .local_size = "LOCAL_WORLD_SIZE",
     .mark = "TORCHELASTIC_RUN_ID",
     .is_ours = 1,
     .place = place_by_environment,
     .name_job = name_torchrun_job},
    {.name = "Open MPI: OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE",
     .rank = "OMPI_COMM_WORLD_RANK",
     .size = "OMPI_COMM_WORLD_SIZE",
     .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
     .mark = "OMPI_COMM_WORLD_RANK",
     .place = place_by_open_mpi,
     .name_job = name_open_mpi_job},
    {.name = "MVAPICH: MV2_COMM_WORLD_RANK, MV2_COMM_WORLD_SIZE",
     .rank = "MV2_COMM_WORLD_RANK",
     .size = "MV2_COMM_WORLD_SIZE",
     .local_size = "MV2_COMM_WORLD_LOCAL_SIZE",
     .mark = "MV2_COMM_WORLD_RANK",
     .place = place_by_starter},
    /* mpiexec.hydra of MPICH, Intel MPI and MVAPICH. */
    {.name = "MPICH: PMI_RANK, PMI_SIZE",
     .rank = "PMI_RANK",
     .size = "PMI_SIZE",
     .local_size = "MPI_LOCALNRANKS",
     .mark = "PMI_RANK",
     .place = place_by_starter},
    /* A batch script also has a rank and a size, but only processes started by srun have a step. srun --mpi=pmi2 also
     * sets PMI's variables; Slurm's say which hosts. */
    {.name = "Slurm: SLURM_PROCID, SLURM_NTASKS",
     .rank = "SLURM_PROCID",
     .size = "SLURM_NTASKS",
     .mark = "SLURM_STEP_NODELIST",
     .needs_mark = 1,
     .details = "MPICH: PMI_RANK, PMI_SIZE",
     .place = place_by_slurm,
     .name_job = name_slurm_job},
};

/* *which NULL: no launcher. */
static int find_launcher(ms_task *task, const launcher **which) {
  *task = (ms_task){.size = 1};
  *which = NULL;
  int ours = get("MOONSHARD_JOB_FD") != NULL;
  for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
    const launcher *l = &launchers[i];
    ms_task one;
    int found;
    /* Moonshard's launcher speaks for its ranks, wherever it was started itself. */
    if (ours && !l->is_ours) continue;
    MS_TRY(read_launcher(l, &one, &found));
    if (!found) continue;
    if (*which) MS_TRY(check_agreement(*which, task, &one));
    int says_more =
        *which && l->details && !strcmp(l->details, (*which)->name) && one.size == task->size && one.rank == task->rank;
    if (*which && !says_more) continue;
    *task = one;
    *which = l;
  }
  return *which || ours ? MS_OK : refuse_strangers();
}

int ms_environment_task(ms_task *task) {
  const launcher *which;
  return find_launcher(task, &which);
}

static int find_place(const launcher *which, ms_task *task) {
  const char *url = get("MOONSHARD_RENDEZVOUS");
  if (url && !strcmp(url, "env://")) return place_by_environment(which, task);
  if (url) return ms_store_place_parse(url, &task->place);
  return which->place(which, task);
}

static int name_job(const launcher *which, ms_task *task) {
  const char *given = get("MOONSHARD_JOB_ID");
  char text[512] = "default";
  if (given) snprintf(text, sizeof text, "%s", given);
  else if (which->name_job) which->name_job(text, sizeof text);
  for (const char *c = text; *c; c++)
    if (*c < 32 || *c > 126) return MS_FAIL(MS_EINVAL, "the job id \"%s\" must be printable ASCII", text);
  if (strlen(text) >= sizeof task->job)
    return MS_FAIL(MS_EINVAL, "the job id \"%.40s...\" is longer than %zu bytes", text, sizeof task->job - 1);
  memcpy(task->job, text, strlen(text) + 1);
  return MS_OK;
}

int ms_environment_read(ms_task *task) {
  const launcher *which;
  MS_TRY(find_launcher(task, &which));
  if (!which && get("MOONSHARD_RENDEZVOUS"))
    return MS_FAIL(MS_EINVAL,
                   "MOONSHARD_RENDEZVOUS=%s gives the rendezvous, but the rank of this process is unknown: set "
                   "RANK and WORLD_SIZE",
                   get("MOONSHARD_RENDEZVOUS"));
  if (task->size == 1) return MS_OK;
  MS_TRY(name_job(which, task));
  return find_place(which, task);
}
