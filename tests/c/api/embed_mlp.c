/* embed_mlp.c - a C99 program that embeds the engine: moonshard.h and libmoonshard.so, nothing else.
 *
 * Learns the exclusive or of two bits with a two-layer network on one rank, and checks that it did.
 */
#include <moonshard.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CHECK(call)                                                                                   \
  do {                                                                                                \
    if ((call) != MS_OK) {                                                                            \
      fprintf(stderr, "%s:%d: %s: %s\n", ms_error_where(), __LINE__, ms_status_name(ms_error_code()), \
              ms_error_message());                                                                    \
      return 1;                                                                                       \
    }                                                                                                 \
  } while (0)

enum { SAMPLES = 4, HIDDEN = 16, STEPS = 300 };

static int add_params(ms_model *model, int param[4]) {
  static const char *const names[4] = {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"};
  static const int64_t dims[4][2] = {{HIDDEN, 2}, {HIDDEN, 0}, {2, HIDDEN}, {2, 0}};
  ms_unit_config unit_config;
  ms_param_config config;
  int unit, i;
  CHECK(ms_config_default("ms_unit_config", &unit_config, sizeof unit_config));
  unit_config.root = 1;
  CHECK(ms_config_default("ms_param_config", &config, sizeof config));
  config.init = MS_INIT_UNIFORM;
  config.init_a = -0.7;
  config.init_b = 0.7;
  CHECK(ms_model_add_unit(model, "root", &unit_config, &unit));
  for (i = 0; i < 4; i++)
    CHECK(ms_model_add_param(model, unit, names[i], dims[i][1] ? 2 : 1, dims[i], &config, &param[i]));
  return 0;
}

/* y = x w' + b */
static int linear(ms_graph *graph, int x, int weight, int bias, int *y) {
  int in[3];
  in[0] = x;
  CHECK(ms_graph_param(graph, weight, &in[1]));
  CHECK(ms_graph_param(graph, bias, &in[2]));
  CHECK(ms_graph_op(graph, "matmul", 3, in, "trans_b=1", y));
  return 0;
}

static int trace(ms_graph *graph, const int param[4]) {
  const int64_t x_dims[2] = {SAMPLES, 2}, y_dims[1] = {SAMPLES};
  int x, y, hidden, logits, in[2], loss[3];
  CHECK(ms_graph_input(graph, "x", MS_F32, 2, x_dims, -1, &x));
  CHECK(ms_graph_input(graph, "y", MS_I32, 1, y_dims, -1, &y));
  if (linear(graph, x, param[0], param[1], &hidden)) return 1;
  CHECK(ms_graph_op(graph, "tanh", 1, &hidden, NULL, &hidden));
  if (linear(graph, hidden, param[2], param[3], &logits)) return 1;
  in[0] = logits;
  in[1] = y;
  CHECK(ms_graph_op(graph, "cross_entropy", 2, in, NULL, loss));
  CHECK(ms_graph_output(graph, "logits", logits));
  CHECK(ms_graph_set_loss(graph, loss[0], -1));
  return 0;
}

static int write_inputs(ms_exec *exec) {
  static const float x[SAMPLES][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}};
  static const int32_t y[SAMPLES] = {0, 1, 1, 0};
  void *to_x = ms_exec_input(exec, "x"), *to_y = ms_exec_input(exec, "y");
  if (!to_x || !to_y) return 1;
  memcpy(to_x, x, sizeof x);
  memcpy(to_y, y, sizeof y);
  return 0;
}

static int train(ms_exec *exec, double *first, double *last) {
  ms_step_inputs inputs;
  ms_step_outputs outputs;
  int step;
  CHECK(ms_config_default("ms_step_inputs", &inputs, sizeof inputs));
  inputs.lr = 0.03;
  for (step = 1; step <= STEPS; step++) {
    inputs.step = step;
    CHECK(ms_exec_run(exec, MS_PHASE_FIRST, &inputs, NULL, 0));
    CHECK(ms_exec_run(exec, MS_PHASE_NORM, &inputs, &outputs, sizeof(ms_step_outputs)));
    CHECK(ms_exec_run(exec, MS_PHASE_UPDATE, &inputs, NULL, 0));
    if (step == 1) *first = outputs.loss;
    *last = outputs.loss;
  }
  CHECK(ms_exec_run(exec, MS_PHASE_EVALUATE, &inputs, &outputs, sizeof(ms_step_outputs)));
  return fabs(outputs.loss - *last) > 0.05;
}

static int answers_right(ms_exec *exec) {
  static const int right[SAMPLES] = {0, 1, 1, 0};
  const float *logits = ms_exec_output(exec, "logits"); /* [SAMPLES, 2] */
  int i;
  for (i = 0; i < SAMPLES; i++)
    if ((logits[2 * i + 1] > logits[2 * i]) != right[i]) return 0;
  return 1;
}

int main(void) {
  ms_world *world;
  ms_mesh *mesh;
  ms_model *model;
  ms_graph *graph;
  ms_plan *plan;
  ms_world_info all;
  ms_state_memory_info memory;
  ms_model_dims dims;
  ms_plan_config config;
  ms_plan_summary summary;
  ms_state *state;
  ms_exec *exec;
  const int sizes[1] = {-1};
  double first = 0, last = 0;
  int param[4], ok;
  if (ms_abi_version() != MS_ABI_VERSION) return 1;
  CHECK(ms_world_join(NULL, &world));
  CHECK(ms_world_describe(world, &all, sizeof all));
  CHECK(ms_mesh_new(MS_DEVICE_CPU, 1, sizes, NULL, all.size, 0, NULL, &mesh));
  CHECK(ms_model_new(7, &model));
  if (add_params(model, param)) return 1;
  CHECK(ms_config_default("ms_model_dims", &dims, sizeof dims));
  dims.shard = 0;
  CHECK(ms_model_shard(model, mesh, all.rank, &dims));
  CHECK(ms_graph_new(model, &graph));
  if (trace(graph, param)) return 1;
  CHECK(ms_config_default("ms_plan_config", &config, sizeof config));
  CHECK(ms_plan_compile(graph, &config, &plan));
  CHECK(ms_plan_summarize(plan, &summary, sizeof summary));
  CHECK(ms_state_new(world, model, &config, 1, &state));
  CHECK(ms_exec_new(state, plan, &exec));
  ok = !write_inputs(exec) && !train(exec, &first, &last) && answers_right(exec) && last < 0.1 * first &&
       !ms_state_memory(state, NULL, &memory, sizeof memory) && memory.arena_bytes == summary.peak_bytes;
  printf("%s: loss %.4f -> %.4f, peak %lld bytes\n", ok ? "learned" : "failed", first, last,
         (long long)summary.peak_bytes);
  ms_free(exec);
  ms_free(state);
  ms_free(plan);
  ms_free(graph);
  ms_free(model);
  ms_free(mesh);
  ms_free(world);
  return !ok;
}
