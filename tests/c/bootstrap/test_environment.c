/* test_environment.c - what launchers say through the environment: who is believed, who contradicts whom, where ranks
 * meet. */
#include "tests/c/support/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/bootstrap/environment.h"
#include "comm/bootstrap/host_list.h"

/* ---- variables: NAME=value ... in one text ---- */

static void set_variables(const char *text) {
  static const char *const names[] = {"RANK",
                                      "WORLD_SIZE",
                                      "LOCAL_RANK",
                                      "LOCAL_WORLD_SIZE",
                                      "MASTER_ADDR",
                                      "MASTER_PORT",
                                      "TORCHELASTIC_RUN_ID",
                                      "TORCHELASTIC_RESTART_COUNT",
                                      "TORCHELASTIC_USE_AGENT_STORE",
                                      "OMPI_COMM_WORLD_RANK",
                                      "OMPI_COMM_WORLD_SIZE",
                                      "OMPI_COMM_WORLD_LOCAL_RANK",
                                      "OMPI_COMM_WORLD_LOCAL_SIZE",
                                      "PMIX_NAMESPACE",
                                      "OMPI_MCA_orte_hnp_uri",
                                      "OMPI_MCA_orte_precondition_transports",
                                      "MV2_COMM_WORLD_RANK",
                                      "MV2_COMM_WORLD_SIZE",
                                      "MV2_COMM_WORLD_LOCAL_SIZE",
                                      "PMI_RANK",
                                      "PMI_SIZE",
                                      "PMI_ID",
                                      "MPI_LOCALRANKID",
                                      "MPI_LOCALNRANKS",
                                      "PMIX_RANK",
                                      "FLUX_TASK_RANK",
                                      "FLUX_JOB_SIZE",
                                      "SLURM_PROCID",
                                      "SLURM_NTASKS",
                                      "SLURM_LOCALID",
                                      "SLURM_STEP_NODELIST",
                                      "SLURM_JOB_ID",
                                      "SLURM_STEP_ID",
                                      "MOONSHARD_RENDEZVOUS",
                                      "MOONSHARD_JOB_ID",
                                      "MOONSHARD_JOB_FD",
                                      "MOONSHARD_TOKEN",
                                      "MOONSHARD_TOKEN_FILE"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
  char copy[2048];
  snprintf(copy, sizeof copy, "%s", text);
  for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
    char *equals = strchr(word, '=');
    assert_non_null(equals);
    *equals = '\0';
    setenv(word, equals + 1, 1);
  }
}

static ms_task read_task(const char *variables) {
  ms_task task;
  set_variables(variables);
  if (ms_environment_read(&task)) fail_msg("%s: %s", variables, ms_error_message());
  return task;
}

static void refuse(const char *variables, const char *facts) {
  ms_task task;
  set_variables(variables);
  assert_fails(ms_environment_read(&task), MS_EINVAL, facts);
}

#define TORCH "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 "
#define OMPI "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=4711 "
#define SRUN "SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_STEP_NODELIST=node[07-08] SLURM_JOB_ID=12 SLURM_STEP_ID=1 "

/* ---- one source ---- */

static void L2_without_variables_a_world_has_one_rank(void **state) {
  (void)state;
  ms_task task = read_task("");
  assert_int_equal(task.size, 1);
  assert_null(task.source);
  /* A batch script has a rank and a size; it is no task of a step. */
  assert_int_equal(read_task("SLURM_PROCID=0 SLURM_NTASKS=16 SLURM_JOB_ID=12").size, 1);
  assert_int_equal(read_task("RANK=0 WORLD_SIZE=1").size, 1);
}

static void L1_torchruns_variables(void **state) {
  (void)state;
  ms_task task = read_task(TORCH);
  assert_int_equal(task.rank, 5);
  assert_int_equal(task.size, 8);
  assert_int_equal(task.local_size, 4);
  assert_string_equal(task.place.text, "tcp://10.0.0.1:29500");
  assert_string_equal(task.job, "default");
  /* torchrun listens at its port itself. */
  task = read_task(TORCH "TORCHELASTIC_RUN_ID=run-7 TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_USE_AGENT_STORE=True");
  assert_string_equal(task.place.text, "tcp://10.0.0.1:29501");
  assert_string_equal(task.job, "run-7.2");
}

static void L1_ranks_of_one_host_need_no_port(void **state) {
  (void)state;
  ms_task task = read_task("RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=29500");
  assert_int_equal(task.place.kind, MS_STORE_LOCAL);
  assert_string_equal(task.place.text, "env://a:29500");
  char name[256];
  memcpy(name, task.place.name, sizeof name);
  assert_string_equal(read_task("RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=29500").place.name,
                      name);
  task = read_task("RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=29501");
  assert_string_not_equal(task.place.name, name);
}

static void L2_open_mpis_variables(void **state) {
  (void)state;
  ms_task task = read_task(OMPI);
  assert_int_equal(task.rank, 1);
  assert_int_equal(task.size, 4);
  assert_int_equal(task.place.kind, MS_STORE_LOCAL);
  assert_string_equal(task.job, "4711");
  refuse("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=1",
         "-x MOONSHARD_RENDEZVOUS=tcp://host:port");
  refuse("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4", "MOONSHARD_RENDEZVOUS");
  task = read_task(
      "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_ADDR=a MASTER_PORT=9 "
      "OMPI_MCA_orte_precondition_transports=f99d1066f2c24b9f-7dba7a0abc9b992a");
  assert_string_equal(task.place.text, "tcp://a:9");
  assert_string_equal(task.token, "f99d1066f2c24b9f-7dba7a0abc9b992a");
}

static void L2_slurms_variables(void **state) {
  (void)state;
  ms_task task = read_task(SRUN);
  assert_int_equal(task.rank, 3);
  assert_int_equal(task.size, 4);
  assert_string_equal(task.job, "12.1");
  assert_string_equal(task.place.host, "node07");
  int port = task.place.port;
  assert_in_range(port, 20000, 29999);
  assert_int_equal(
      read_task("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_NODELIST=node[07-08] SLURM_JOB_ID=12 SLURM_STEP_ID=1")
          .place.port,
      port);
  assert_int_equal(read_task(SRUN "MASTER_PORT=4000").place.port, 4000);
  task = read_task("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_NODELIST=gpu7 SLURM_JOB_ID=12 SLURM_STEP_ID=0");
  assert_int_equal(task.place.kind, MS_STORE_LOCAL);
  assert_int_equal(task.local_size, 2);
  refuse("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_NODELIST=gpu[7", "SLURM_STEP_NODELIST | \"gpu[7\"");
}

static void L2_explicit_variables_win(void **state) {
  (void)state;
  assert_string_equal(read_task(TORCH "MOONSHARD_RENDEZVOUS=tcp://b:1").place.text, "tcp://b:1");
  assert_string_equal(read_task(OMPI "MOONSHARD_RENDEZVOUS=tcp://b:1").place.text, "tcp://b:1");
  assert_string_equal(read_task(SRUN "MOONSHARD_RENDEZVOUS=file:///b").place.text, "file:///b");
  assert_string_equal(read_task(SRUN "MOONSHARD_RENDEZVOUS=env:// MASTER_ADDR=c MASTER_PORT=5").place.text,
                      "tcp://c:5");
  assert_string_equal(read_task(TORCH "MOONSHARD_JOB_ID=mine").job, "mine");
}

/* ---- MPICH and its kin ---- */

#define PMI "PMI_RANK=1 PMI_SIZE=4 PMI_FD=6 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4 "

static void L2_mpichs_ranks_meet_where_one_process_started_them(void **state) {
  (void)state;
  ms_task task = read_task(PMI);
  assert_int_equal(task.rank, 1);
  assert_int_equal(task.size, 4);
  assert_int_equal(task.local_size, 4);
  assert_int_equal(task.place.kind, MS_STORE_LOCAL);
  assert_has(task.source, "PMI_RANK");
  char name[256];
  memcpy(name, task.place.name, sizeof name);
  /* This process was started without the variables, so it is the starter of its own child: another run. */
  pid_t pid = fork();
  if (!pid) _exit(strcmp(read_task("PMI_RANK=3 PMI_SIZE=4 MPI_LOCALNRANKS=4").place.name, name) == 0);
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(WEXITSTATUS(status), 0);
  assert_string_equal(read_task(PMI "MASTER_ADDR=a MASTER_PORT=7").place.text, "tcp://a:7");
  assert_string_equal(read_task(PMI "MOONSHARD_RENDEZVOUS=tcp://b:1").place.text, "tcp://b:1");
  refuse("PMI_RANK=1 PMI_SIZE=4 MPI_LOCALNRANKS=2", "rank 1 of 4 | MPICH | PMI_RANK | PMI_SIZE | hosts");
  refuse("PMI_RANK=1 PMI_SIZE=4 MPI_LOCALNRANKS=2", "-genv NAME VALUE");
  assert_has(read_task("MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_SIZE=2").source, "MVAPICH");
  assert_int_equal(read_task("PMI_RANK=0 PMI_SIZE=1 PMI_FD=6").size, 1);
}

static void L2_slurm_places_the_ranks_of_its_own_pmi(void **state) {
  (void)state;
  ms_task task = read_task("PMI_RANK=3 PMI_SIZE=4 " SRUN);
  assert_string_equal(task.place.host, "node07");
  /* hydra starts one proxy a node through srun; the ranks are what hydra says. */
  task = read_task(PMI "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_NODELIST=n1");
  assert_int_equal(task.rank, 1);
  assert_int_equal(task.place.kind, MS_STORE_LOCAL);
  refuse(PMI "RANK=0 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1", "contradict");
}

static void L2_launchers_that_are_not_understood_are_refused_by_name(void **state) {
  (void)state;
  refuse("PMI_ID=0 PMI_PORT=vm:39911", "PMI_ID=0");
  refuse("PMIX_RANK=2", "PMIX_RANK=2");
  refuse("FLUX_TASK_RANK=0 FLUX_JOB_SIZE=4", "FLUX_TASK_RANK=0 | FLUX_JOB_SIZE=4");
  refuse("MPI_LOCALRANKID=0 MPI_LOCALNRANKS=4", "MPI_LOCALRANKID=0 | MPI_LOCALNRANKS=4");
  assert_int_equal(read_task("FLUX_TASK_RANK=0 FLUX_JOB_SIZE=1").size, 1);
  assert_int_equal(read_task("PMIX_RANK=1 " OMPI).size, 4);
  assert_int_equal(read_task(TORCH "MOONSHARD_JOB_FD=3 MOONSHARD_RENDEZVOUS=tcp://a:1 PMIX_RANK=1").size, 8);
  refuse("PMI_RANK=1", "PMI_RANK | PMI_SIZE");
}

/* ---- two sources ---- */

static void L2_torchrun_comes_before_open_mpi_before_slurm(void **state) {
  (void)state;
  const char *same_mpi = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=1 ";
  const char *same_torch = "RANK=3 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=29500 ";
  char both[1024];
  snprintf(both, sizeof both, "%s%s", same_torch, same_mpi);
  assert_string_equal(read_task(both).source, "RANK, WORLD_SIZE");
  snprintf(both, sizeof both, "%s" SRUN, same_mpi);
  assert_has(read_task(both).source, "Open MPI");
  snprintf(both, sizeof both, "%s" SRUN, same_torch);
  assert_string_equal(read_task(both).source, "RANK, WORLD_SIZE");
}

static void L2_contradictions_are_refused_with_both_named(void **state) {
  (void)state;
  refuse("RANK=0 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=1 " OMPI,
         "rank 0 of 4 | RANK | WORLD_SIZE | rank 1 of 4 | Open MPI | OMPI_COMM_WORLD_RANK | OMPI_COMM_WORLD_SIZE");
  refuse(TORCH OMPI, "rank 5 of 8 | RANK | WORLD_SIZE | rank 1 of 4 | Open MPI");
  refuse(OMPI SRUN, "rank 1 of 4 | Open MPI | OMPI_COMM_WORLD_RANK | OMPI_COMM_WORLD_SIZE | rank 3 of 4 | Slurm | "
                    "SLURM_PROCID | SLURM_NTASKS");
  refuse("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1 " SRUN, "contradict");
}

/* One torchrun or mpirun for each task of an outer step is how both are used on clusters. */
static void L2_launchers_in_launchers_are_no_contradiction(void **state) {
  (void)state;
  const char *step = "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_NODELIST=n[1-2] SLURM_JOB_ID=1 ";
  char both[1024];
  snprintf(both, sizeof both, TORCH "TORCHELASTIC_RUN_ID=7 %s", step);
  assert_int_equal(read_task(both).rank, 5);
  snprintf(both, sizeof both, OMPI "%s", step);
  assert_int_equal(read_task(both).rank, 1);
  assert_int_equal(read_task(TORCH "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_NODELIST=n1").rank, 5);
  /* Ranks that our launcher made are what it says, wherever it was started. */
  snprintf(both, sizeof both, TORCH "MOONSHARD_JOB_FD=3 MOONSHARD_RENDEZVOUS=tcp://a:1 %s", step);
  assert_int_equal(read_task(both).rank, 5);
}

static void L2_half_of_it_is_refused(void **state) {
  (void)state;
  refuse("RANK=1", "RANK | WORLD_SIZE");
  refuse("WORLD_SIZE=2", "WORLD_SIZE | RANK");
  refuse("OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_SIZE | OMPI_COMM_WORLD_RANK");
  refuse("RANK=2 WORLD_SIZE=2", "RANK=\"2\" | 0 | 1");
  refuse("RANK=0 WORLD_SIZE=many", "WORLD_SIZE=\"many\"");
  refuse("RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3", "LOCAL_WORLD_SIZE=\"3\"");
  refuse("RANK=0 WORLD_SIZE=2", "rank 0 of 2 | RANK | WORLD_SIZE | rendezvous | MASTER_ADDR");
  refuse("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=http", "MASTER_PORT=\"http\"");
  refuse("MOONSHARD_RENDEZVOUS=tcp://a:1", "tcp://a:1 | RANK | WORLD_SIZE");
  refuse(TORCH "MOONSHARD_RENDEZVOUS=a:1", "a:1 | tcp://host:port");
  refuse(TORCH "MOONSHARD_JOB_ID=a\tb", "ASCII");
}

/* ---- lists of hosts ---- */

static void assert_host(const char *list, int index, int hosts, const char *expected) {
  char name[64];
  int count;
  if (ms_host_list_find(list, index, name, sizeof name, &count)) fail_msg("%s: %s", list, ms_error_message());
  assert_string_equal(name, expected);
  assert_int_equal(count, hosts);
}

static void L2_host_lists_are_expanded(void **state) {
  (void)state;
  assert_host("login", 0, 1, "login");
  assert_host("a,b,c", 1, 3, "b");
  assert_host("node[01-03,07],login", 0, 5, "node01");
  assert_host("node[01-03,07],login", 2, 5, "node03");
  assert_host("node[01-03,07],login", 3, 5, "node07");
  assert_host("node[01-03,07],login", 4, 5, "login");
  assert_host("gpu[9-11]", 1, 3, "gpu10");
  assert_host("n[098-101]", 3, 4, "n101");
  assert_host("rack[1-2]node[1-3]x", 3, 6, "rack2node1x");
  assert_host("a[1],b-[2].c", 1, 2, "b-2.c");
  assert_host("n[1-100000]", 99999, 100000, "n100000");
}

static void L2_lists_that_are_none_are_refused(void **state) {
  (void)state;
  static const char *const wrong[] = {"",
                                      ",",
                                      "a,",
                                      ",a",
                                      "a[",
                                      "a]",
                                      "a[]",
                                      "a[1",
                                      "a[1-",
                                      "a[2-1]",
                                      "a[1,]",
                                      "a[x]",
                                      "a[[1]]",
                                      "a[1-99999999999]",
                                      "a[1-999999999]",
                                      "a[1-1000]b[1-1000]c[1-1000]"};
  char name[64];
  int count;
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
    assert_fails(ms_host_list_find(wrong[i], 0, name, sizeof name, &count), MS_EINVAL, "hosts");
  assert_fails(ms_host_list_find("a,b", 2, name, sizeof name, &count), MS_EINVAL, "host 2");
  assert_fails(ms_host_list_find("node[1-2]", 0, name, 6, &count), MS_EINVAL, "4 bytes");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(L2_without_variables_a_world_has_one_rank),
      TEST(L1_torchruns_variables),
      TEST(L1_ranks_of_one_host_need_no_port),
      TEST(L2_open_mpis_variables),
      TEST(L2_slurms_variables),
      TEST(L2_explicit_variables_win),
      TEST(L2_mpichs_ranks_meet_where_one_process_started_them),
      TEST(L2_slurm_places_the_ranks_of_its_own_pmi),
      TEST(L2_launchers_that_are_not_understood_are_refused_by_name),
      TEST(L2_torchrun_comes_before_open_mpi_before_slurm),
      TEST(L2_contradictions_are_refused_with_both_named),
      TEST(L2_launchers_in_launchers_are_no_contradiction),
      TEST(L2_half_of_it_is_refused),
      TEST(L2_host_lists_are_expanded),
      TEST(L2_lists_that_are_none_are_refused),
  };
  return cmocka_run_group_tests_name("environment", tests, NULL, NULL);
}
