/* bench_executor.c - what the executor costs beyond the kernels: a plan of many tiny kernels against the same kernels
 * called in a loop, and the same with a second rank, whose collectives are polled between the kernels.
 *
 * One JSON line a figure: {"name", "ns"}; nanoseconds an instruction, the best of many runs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/numbers/number.h"
#include "comm/group/world.h"
#include "exec/bound/exec.h"

enum { KERNELS = 2000, ELEMENTS = 16, REPEATS = 200, UNITS = 20 };

typedef struct bench {
  ms_mesh *mesh;
  ms_model *model;
  ms_graph *graph;
  ms_plan *plan;
  ms_state *state;
  ms_exec *exec;
} bench;

static void must(int status) {
  if (!status) return;
  fprintf(stderr, "bench_executor: %s\n", ms_error_message());
  exit(3);
}

/* KERNELS small scalings in a row, and every KERNELS / UNITS of them an addition of a parameter of its own unit. */
static void trace(bench *b, const int *param) {
  int64_t dims[1] = {ELEMENTS};
  char attrs[64];
  int x;
  must(ms_graph_new(b->model, &b->graph));
  must(ms_graph_input(b->graph, "x", MS_F32, 1, dims, -1, &x));
  for (int k = 0; k < KERNELS; k++) {
    ms_format(attrs, sizeof attrs, "alpha=%.17g", 1.0 + 1e-6 * k);
    int in[2] = {x};
    must(ms_graph_op(b->graph, "scale", 1, in, attrs, &x));
    if (k % (KERNELS / UNITS)) continue;
    in[0] = x;
    must(ms_graph_param(b->graph, param[k / (KERNELS / UNITS)], &in[1]));
    must(ms_graph_op(b->graph, "add", 2, in, NULL, &x));
  }
  must(ms_graph_output(b->graph, "y", x));
}

static void build(bench *b, ms_world *world) {
  int param[UNITS], unit, ranks = ms_world_size(world);
  ms_unit_config unit_config;
  ms_param_config param_config;
  ms_model_dims dims;
  ms_plan_config config;
  char name[32];
  must(ms_config_default("ms_unit_config", &unit_config, sizeof unit_config));
  must(ms_config_default("ms_param_config", &param_config, sizeof param_config));
  must(ms_model_new(1, &b->model));
  for (int u = 0; u < UNITS; u++) {
    snprintf(name, sizeof name, "layers.%d", u);
    must(ms_model_add_unit(b->model, name, &unit_config, &unit));
    snprintf(name, sizeof name, "layers.%d.bias", u);
    must(ms_model_add_param(b->model, unit, name, 1, (int64_t[]){ELEMENTS}, &param_config, &param[u]));
  }
  must(ms_mesh_new(MS_DEVICE_CPU, 1, &ranks, NULL, ranks, 0, NULL, &b->mesh));
  must(ms_config_default("ms_model_dims", &dims, sizeof dims));
  dims.shard = 0;
  must(ms_model_shard(b->model, b->mesh, ms_world_rank(world), &dims));
  trace(b, param);
  must(ms_config_default("ms_plan_config", &config, sizeof config));
  config.train = 0;
  config.threads = 1;
  must(ms_plan_compile(b->graph, &config, &b->plan));
  must(ms_state_new(world, b->model, &config, 1, &b->state));
  must(ms_exec_new(b->state, b->plan, &b->exec));
}

static void drop(bench *b) {
  ms_free(b->exec);
  ms_free(b->state);
  ms_free(b->plan);
  ms_free(b->graph);
  ms_free(b->model);
  ms_free(b->mesh);
}

/* The kernels of the plan without the executor. */
static void call_kernels(const bench *b) {
  const ms_exec_stream *compute = &b->exec->phase[MS_PHASE_EVALUATE].stream[MS_STREAM_COMPUTE];
  for (int i = 0; i < compute->n; i++)
    if (compute->instr[i].kind == MS_INSTR_KERNEL) must(compute->instr[i].run(compute->instr[i].call));
}

static void measure(ms_world *world, const char *name) {
  bench b = {0};
  double best_run = 1e9, best_loop = 1e9;
  build(&b, world);
  int instructions = 0;
  for (int s = 0; s < MS_NAMED_STREAMS; s++) instructions += b.exec->phase[MS_PHASE_EVALUATE].stream[s].n;
  for (int i = 0; i < REPEATS; i++) {
    double began = ms_clock();
    must(ms_exec_run(b.exec, MS_PHASE_EVALUATE, NULL, NULL, 0));
    double between = ms_clock();
    call_kernels(&b);
    double ended = ms_clock();
    if (between - began < best_run) best_run = between - began;
    if (ended - between < best_loop) best_loop = ended - between;
    must(ms_world_barrier(world));
  }
  if (ms_world_rank(world) == 0)
    printf("{\"name\": \"%s\", \"ns\": %.1f}\n", name, 1e9 * (best_run - best_loop) / instructions);
  fflush(stdout);
  drop(&b);
}

static void measure_as_rank(int rank, int fd) {
  char text[16];
  ms_world *world;
  snprintf(text, sizeof text, "%d", rank);
  setenv("RANK", text, 1);
  setenv("WORLD_SIZE", "2", 1);
  snprintf(text, sizeof text, "%d", fd);
  setenv("MOONSHARD_JOB_FD", text, 1);
  must(ms_world_join(NULL, &world));
  measure(world, "executor/2 ranks/instruction");
  ms_free(world);
}

int main(void) {
  int fd, status, failed = 0;
  ms_world *world;
  must(ms_job_create(2, 2, 0, &fd));
  for (int rank = 0; rank < 2; rank++) {
    if (fork()) continue;
    measure_as_rank(rank, fd);
    return 0;
  }
  for (int rank = 0; rank < 2; rank++) {
    wait(&status);
    failed |= status != 0;
  }
  must(ms_world_join(NULL, &world));
  measure(world, "executor/1 rank/instruction");
  ms_free(world);
  return failed ? 3 : 0;
}
