/* api.c - calls random functions of the public header with random arguments, for the sanitizers:
 *
 *   api FIXTURES SEED [CALLS]
 *
 * A call may fail, and must say so by its status; it must not crash, hang, leak, or use memory that is not its own.
 * Arguments are handles that earlier calls have made, sometimes of another kind, or ended before, and the values of
 * api_values.h. Every few hundred calls a whole working network is added, so that later functions have handles, too. It
 * reads files of tests/fixtures; all others are read and written in the current folder, which should be a new one. The
 * seed determines every call; the last one is in the sanitizer's stack as call_NAME, and API_TRACE=1 prints all. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "api_values.h"

enum { POOL = 6, ENDED = 64, LONGEST_S = 60, NETWORK_EVERY = 400 };

static void keep(int kind, void *handle);
static void *a_handle(int kind);
static void *a_handle_to_end(int kind);
static void record(int status);

#include "api_calls.h"

static void *pool[KINDS][POOL], *ended[ENDED];
static int ended_count;
static long succeeded, failed;
static const char *volatile current = "";
static char tokenizer_path[1024], given_path[1024];

static void forget(void *handle) { ended[ended_count++ % ENDED] = handle; }

static void keep(int kind, void *handle) {
  void **place = &pool[kind][random_below(POOL)];
  if (*place) {
    ms_free(*place);
    forget(*place);
  }
  *place = handle;
}

/* Mostly a handle of the kind; sometimes NULL, one of another kind, or one that was ended. */
static void *a_handle(int kind) {
  int which = random_below(20);
  if (which == 0) return NULL;
  if (which == 1 && ended_count) return ended[random_below(ended_count < ENDED ? ended_count : ENDED)];
  if (which == 2) kind = random_below(KINDS);
  for (int i = 0; i < 20; i++) {
    void *handle = pool[kind][random_below(POOL)];
    if (handle) return handle;
  }
  return NULL;
}

static void *a_handle_to_end(int kind) {
  if (chance(6)) return a_handle(kind);
  void **place = &pool[kind][random_below(POOL)], *handle = *place;
  *place = NULL;
  if (handle) forget(handle);
  return handle;
}

static void record(int status) {
  if (status == MS_OK) succeeded++;
  else failed++;
}

static void need(int status, const char *what) {
  if (status == MS_OK) return;
  fprintf(stderr, "api: the network: %s: %s\n", what, ms_error_message());
  exit(2);
}
#define NEED(call) need(call, #call)

/* Two matrix products and their loss, ready to train, and one of each other kind of handle. */
static void add_network(void) {
  static const int64_t x_dims[2] = {4, 3}, y_dims[1] = {4}, w_dims[2] = {16, 3}, v_dims[2] = {2, 16};
  static const int all_ranks[1] = {-1};
  static const char *const names[1] = {"shard"}, *const files[1] = {tokenizer_path};
  const ms_save_piece piece = {
      .name = "w", .parameter = "w", .kind = "param", .what = MS_TENSOR_PARAM, .count = 48, .ndim = 2, .dims = {16, 3}};
  ms_world_config alone;
  ms_world *world;
  ms_mesh *mesh;
  ms_model *model;
  ms_graph *graph;
  ms_plan *plan;
  ms_state *state;
  ms_exec *exec;
  ms_rules *rules;
  ms_tokens *tokens;
  ms_token_reader *reader;
  ms_tokenizer *tokenizer;
  ms_safetensors *given;
  ms_save *save;
  ms_profile *profile;
  ms_unit_config unit_config;
  ms_param_config param_config;
  ms_model_dims dims;
  ms_plan_config config;
  int unit, w, v, in[2], out[2], loss[3];
  current = "add_network";
  NEED(ms_config_default("ms_unit_config", &unit_config, sizeof unit_config));
  NEED(ms_config_default("ms_param_config", &param_config, sizeof param_config));
  NEED(ms_config_default("ms_plan_config", &config, sizeof config));
  NEED(ms_config_default("ms_world_config", &alone, sizeof alone));
  alone.alone = 1;
  NEED(ms_world_join(&alone, &world));
  NEED(ms_mesh_new(MS_DEVICE_CPU, 1, all_ranks, names, 1, 0, NULL, &mesh));
  NEED(ms_model_new(7, &model));
  NEED(ms_model_add_unit(model, "root", &unit_config, &unit));
  NEED(ms_model_add_param(model, unit, "w", 2, w_dims, &param_config, &w));
  NEED(ms_model_add_param(model, unit, "x", 2, v_dims, &param_config, &v));
  NEED(ms_config_default("ms_model_dims", &dims, sizeof dims));
  dims.shard = 0;
  NEED(ms_model_shard(model, mesh, 0, &dims));
  NEED(ms_graph_new(model, &graph));
  NEED(ms_graph_input(graph, "x", MS_F32, 2, x_dims, -1, &in[0]));
  NEED(ms_graph_param(graph, w, &in[1]));
  NEED(ms_graph_op(graph, "matmul", 2, in, "trans_b=1", out));
  NEED(ms_graph_op(graph, "tanh", 1, out, NULL, in));
  NEED(ms_graph_param(graph, v, &in[1]));
  NEED(ms_graph_op(graph, "matmul", 2, in, "trans_b=1", out));
  NEED(ms_graph_input(graph, "y", MS_I32, 1, y_dims, -1, &out[1]));
  NEED(ms_graph_op(graph, "cross_entropy", 2, out, NULL, loss));
  NEED(ms_graph_set_loss(graph, loss[0], -1));
  NEED(ms_plan_compile(graph, &config, &plan));
  NEED(ms_state_new(world, model, &config, 1, &state));
  NEED(ms_exec_new(state, plan, &exec));
  NEED(ms_rules_new("freeze", &rules));
  NEED(ms_tokens_open(1, files, MS_TOKEN_BYTES, &tokens, NULL));
  NEED(ms_token_reader_new(tokens, 1, 8, 2, &reader));
  NEED(ms_tokenizer_open(tokenizer_path, &tokenizer));
  NEED(ms_safetensors_open(given_path, &given, NULL));
  NEED(ms_save_new(state, 1, &piece, sizeof(ms_save_piece), &save));
  NEED(ms_profile_new(world, &profile));
  void *const handles[KINDS] = {
      [KIND_world] = world,   [KIND_mesh] = mesh,           [KIND_model] = model,         [KIND_graph] = graph,
      [KIND_plan] = plan,     [KIND_state] = state,         [KIND_exec] = exec,           [KIND_rules] = rules,
      [KIND_tokens] = tokens, [KIND_token_reader] = reader, [KIND_tokenizer] = tokenizer, [KIND_safetensors] = given,
      [KIND_save] = save,     [KIND_profile] = profile};
  for (int kind = 0; kind < KINDS; kind++)
    if (handles[kind]) keep(kind, handles[kind]);
}

static void on_alarm(int number) {
  char text[128];
  (void)number;
  int n = snprintf(text, sizeof text, "api: %s has not returned after %d s\n", current, LONGEST_S);
  if (write(STDERR_FILENO, text, (size_t)n) < n) _exit(1);
  abort();
}

int main(int argc, char **argv) {
  enum { CALLS = sizeof calls / sizeof *calls };
  if (argc < 3) {
    fprintf(stderr, "usage: fuzz_api FIXTURES SEED [CALLS]\n");
    return 2;
  }
  const int seed = atoi(argv[2]), count = argc > 3 ? atoi(argv[3]) : 6000;
  snprintf(tokenizer_path, sizeof tokenizer_path, "%s/tokenizer/good/gpt2.json", argv[1]);
  snprintf(given_path, sizeof given_path, "%s/updates/sgd.safetensors", argv[1]);
  const int trace = getenv("API_TRACE") != NULL;
  random_state = 88172645463325252ull + (uint64_t)seed * 0x9e3779b97f4a7c15ull;
  printf("api: seed %d, %d calls of %d functions\n", seed, count, CALLS);
  fflush(stdout);
  signal(SIGALRM, on_alarm);
  for (int i = 0; i < count; i++) {
    alarm(LONGEST_S);
    if (i % NETWORK_EVERY == 0) {
      wild = 0;
      add_network();
    }
    const int which = random_below(CALLS);
    wild = chance(4);
    current = calls[which].name;
    if (trace) fprintf(stderr, "%d %s%s\n", i, current, wild ? " wild" : "");
    calls[which].call();
    if (!ms_error_message() || !ms_error_where()) abort();
  }
  current = "the end of all handles";
  for (int kind = 0; kind < KINDS; kind++)
    for (int i = 0; i < POOL; i++)
      if (pool[kind][i]) ms_free(pool[kind][i]);
  alarm(0);
  printf("api: %ld calls succeeded, %ld failed\n", succeeded, failed);
  return 0;
}
