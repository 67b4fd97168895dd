/* launcher.c - whether MPI can be used in this process: the launcher that started it, and libmoonshard_mpi.so,
 * which is loaded on first use.
 *
 * The ranks of MPI are processes that mpirun, mpiexec or srun started. In any other process MPI_Init would make a world
 * of one rank, or, where a launcher's variables were inherited, claim the rank of another process.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/error.h"
#include "base/library.h"
#include "comm/transport/mpi/mpi.h"

/* Variables by which launchers say which rank a process is. size NULL: none says how many there are. mark: without it
 * the others prove nothing. A launcher that is started by another one comes first. */
static const struct launcher {
  const char *rank, *size, *mark;
} launchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL}, /* mpirun of Open MPI */
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", NULL},   /* MVAPICH */
    {"PMI_RANK", "PMI_SIZE", NULL},                         /* mpiexec of MPICH and Intel MPI, srun --mpi=pmi2 */
    {"PALS_RANKID", NULL, NULL},                            /* Cray's mpiexec */
    {"PMIX_RANK", NULL, NULL},                              /* prun, srun --mpi=pmix */
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NODELIST"},
};

static const struct launcher *find_launcher(void) {
  for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
    const struct launcher *one = &launchers[i];
    if (ms_env_string(one->rank, NULL) && (!one->mark || ms_env_string(one->mark, NULL))) return one;
  }
  return NULL;
}

int ms_mpi_check_launcher(int rank, int size) {
  const struct launcher *launcher = find_launcher();
  int its_rank = rank, its_size = size;
  if (ms_env_string("MOONSHARD_JOB_FD", NULL))
    return MS_FAIL(MS_EUNSUPPORTED,
                   "transport mpi: `moonshard run` started this rank, and MPI needs ranks that its own launcher "
                   "started: use mpirun or srun, or another transport");
  if (!launcher)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "transport mpi: mpirun, mpiexec or srun did not start this process: start each rank with one of "
                   "them, or use another transport");
  if (rank < 0) return MS_OK;
  MS_TRY(ms_env_int(launcher->rank, rank, 0, 1 << 30, &its_rank));
  if (launcher->size) MS_TRY(ms_env_int(launcher->size, size, 1, 1 << 30, &its_size));
  if (its_rank == rank && its_size == size) return MS_OK;
  return MS_FAIL(
      MS_EINVAL,
      "transport mpi: this is rank %d of %d, and MPI's launcher says rank %d of %d (%s): MPI's ranks must be "
      "the job's, so give no other rank and size than the launcher does",
      rank, size, its_rank, its_size, launcher->rank);
}

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static const ms_mpi_library *loaded;

/* MPI loads parts of itself, which expect its symbols to be global. Once MPI runs it cannot be unloaded. */
static int load(void) {
  const char *variable = "MOONSHARD_MPI_LIBRARY", *name = "libmoonshard_mpi.so";
  char why[MS_LIBRARY_WHY_BYTES];
  ms_mpi_entry entry;
  void *library = ms_library_open_own(variable, name, RTLD_GLOBAL, why);
  if (!library && *ms_env_string(variable, "")) return MS_FAIL(MS_EUNSUPPORTED, "transport mpi: %s: %s", variable, why);
  if (!library)
    return MS_FAIL(
        MS_EUNSUPPORTED,
        "transport mpi: this installation has no %s: build it with the site's mpicc (make mpi MPICC=...), or "
        "set %s to its path (%s)",
        name, variable, why);
  void *symbol = dlsym(library, MS_MPI_ENTRY);
  memcpy(&entry, &symbol, sizeof entry);
  const ms_mpi_library *table = symbol ? entry() : NULL;
  if (!table || table->version != MS_MPI_LIBRARY_VERSION) {
    dlclose(library);
    return MS_FAIL(MS_EUNSUPPORTED, "transport mpi: %s belongs to a different version than the engine: rebuild both",
                   name);
  }
  loaded = table;
  return MS_OK;
}

int ms_mpi_load(const ms_mpi_library **library) {
  pthread_mutex_lock(&loading);
  int rc = loaded ? MS_OK : load();
  *library = loaded;
  pthread_mutex_unlock(&loading);
  return rc;
}

int ms_transport_mpi_usable(char *why, size_t bytes) {
  const ms_mpi_library *library;
  ms_error_record before;
  ms_error_save(&before);
  int usable = !ms_mpi_check_launcher(-1, 0) && !ms_mpi_load(&library);
  snprintf(why, bytes, "%s", usable ? "" : ms_error_message());
  ms_error_restore(&before);
  return usable;
}
