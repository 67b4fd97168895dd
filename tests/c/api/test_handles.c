/* test_handles.c - handles are released in any order: what works with another one keeps it, and what works on one that
 * is gone says so. Under the address sanitizer nothing is used after it ended, and nothing leaks.
 */
#include "base/handle.h"
#include "tests/c/support/networks/mlp.h"

#include <stdlib.h>
#include <unistd.h>

/* One handle of every kind, under the kind's number, and a second mesh that was sliced from the first. A new kind needs
 * a name, an object and a use here: every_kind_is_made fails without them. */
enum {
  WORLD = MS_HANDLE_WORLD,
  MESH = MS_HANDLE_MESH,
  RULES = MS_HANDLE_RULES,
  MODEL = MS_HANDLE_MODEL,
  GRAPH = MS_HANDLE_GRAPH,
  PLAN = MS_HANDLE_PLAN,
  STATE = MS_HANDLE_STATE,
  EXEC = MS_HANDLE_EXEC,
  PROFILE = MS_HANDLE_PROFILE,
  FILE_READ = MS_HANDLE_SAFETENSORS,
  WRITER = MS_HANDLE_SAFETENSORS_WRITER,
  TOKENS = MS_HANDLE_TOKENS,
  READER = MS_HANDLE_TOKEN_READER,
  TOKENIZER = MS_HANDLE_TOKENIZER,
  SAVE = MS_HANDLE_SAVE,
  SLICE = MS_HANDLE_KINDS,
  FIRST = WORLD,
  END = SLICE + 1
};

typedef struct everything {
  ms_world *world;
  ms_mesh *mesh, *slice;
  ms_rules *rules;
  ms_model *model;
  ms_graph *graph;
  ms_plan *plan;
  ms_state *state;
  ms_exec *exec;
  ms_profile *profile;
  ms_save *save;
  ms_tokens *tokens;
  ms_token_reader *reader;
  ms_safetensors *file;
  ms_safetensors_writer *writer;
  ms_tokenizer *tokenizer;
  int released[MS_HANDLE_KINDS + 1];
} everything;

static const char *const bytes_path = "tests/fixtures/tokenizer/good/gpt2.json"; /* as tokens, any file will do */
static char weights_path[64], written_path[64]; /* what is read, and what is written and given up */
static const int64_t written_dims[1] = {2};
static const ms_safetensors_tensor written = {.name = "w", .dtype = "F32", .ndim = 1, .dims = written_dims};

static int make_files(void **state) {
  (void)state;
  ms_safetensors_writer *writer;
  snprintf(weights_path, sizeof weights_path, "/tmp/moonshard-handles-%d.safetensors", (int)getpid());
  snprintf(written_path, sizeof written_path, "/tmp/moonshard-handles-%d.written", (int)getpid());
  must(ms_safetensors_create(weights_path, 1, &written, sizeof(ms_safetensors_tensor), NULL, &writer));
  must(ms_safetensors_write(writer, 0, NULL, 0, 8, (float[]){1, 2}));
  must(ms_safetensors_finish(writer));
  return 0;
}

static int remove_files(void **state) {
  (void)state;
  return unlink(weights_path);
}

static void make(everything *e) {
  mlp_config c = mlp_default(1, 1, 0);
  c.blocks = 1;
  ms_plan_config config;
  memset(e, 0, sizeof *e);
  must(ms_config_default("ms_plan_config", &config, sizeof config));
  must(ms_world_join_alone(&e->world));
  mlp m = mlp_make(&c);
  e->mesh = m.mesh;
  e->model = m.model;
  e->graph = m.graph;
  must(ms_mesh_slice(e->mesh, 1, (const char *const[]){"shard"}, &e->slice));
  must(ms_plan_compile(e->graph, &config, &e->plan));
  must(ms_state_new(e->world, e->model, &config, 1, &e->state));
  must(ms_exec_new(e->state, e->plan, &e->exec));
  must(ms_profile_new(e->world, &e->profile));
  ms_exec_set_profile(e->exec, e->profile);
  const ms_save_piece piece = {
      .name = "w", .parameter = "w", .kind = "param", .what = MS_TENSOR_PARAM, .count = 1, .ndim = 1, .dims = {1}};
  must(ms_save_new(e->state, 1, &piece, sizeof(ms_save_piece), &e->save));
  must(ms_tokens_open(1, &bytes_path, MS_TOKEN_BYTES, &e->tokens, NULL));
  must(ms_token_reader_new(e->tokens, 1, 8, 2, &e->reader));
  must(ms_rules_new("test", &e->rules));
  must(ms_tokenizer_open(bytes_path, &e->tokenizer));
  must(ms_safetensors_open(weights_path, &e->file, NULL));
  must(ms_safetensors_create(written_path, 1, &written, sizeof(ms_safetensors_tensor), NULL, &e->writer));
}

/* The object of a kind, as made. */
static void *object_of(const everything *e, int kind) {
  switch (kind) {
    case WORLD: return e->world;
    case MESH: return e->mesh;
    case SLICE: return e->slice;
    case RULES: return e->rules;
    case MODEL: return e->model;
    case GRAPH: return e->graph;
    case PLAN: return e->plan;
    case STATE: return e->state;
    case EXEC: return e->exec;
    case PROFILE: return e->profile;
    case SAVE: return e->save;
    case TOKENS: return e->tokens;
    case READER: return e->reader;
    case FILE_READ: return e->file;
    case WRITER: return e->writer;
    case TOKENIZER: return e->tokenizer;
    default: return NULL;
  }
}

static void release(everything *e, int kind) {
  e->released[kind] = 1;
  ms_free(object_of(e, kind));
}

/* A call gives this when the handles that it needs are there, else MS_EINVAL. */
static void expect(int works, int status) {
  if (works) must(status);
  else assert_int_equal(status, MS_EINVAL);
  ms_error_clear();
}

static void use_descriptions(everything *e) {
  int rank[1], value;
  ms_tensor_info info;
  const char *text;
  ms_plan *again = NULL;
  ms_plan_config config;
  must(ms_config_default("ms_plan_config", &config, sizeof config));
  expect(!e->released[MESH], ms_mesh_ranks(e->mesh, -1, 0, rank));
  expect(!e->released[SLICE], ms_mesh_ranks(e->slice, -1, 0, rank));
  expect(!e->released[MODEL], ms_model_describe(e->model, 0, &info, sizeof info));
  expect(!e->released[GRAPH], ms_graph_param(e->graph, 0, &value));
  expect(!e->released[GRAPH], ms_plan_compile(e->graph, &config, &again));
  ms_free(again);
  expect(!e->released[PLAN], ms_plan_dump(e->plan, 1, &text));
}

static void use_tokens(everything *e) {
  int32_t tokens[8], targets[8];
  expect(!e->released[TOKENS], ms_tokens_read(e->tokens, 3, 8, tokens));
  expect(!e->released[READER], ms_token_reader_request(e->reader, (const int64_t[]){5}));
  expect(!e->released[READER], ms_token_reader_take(e->reader, 10, tokens, targets));
}

static void use_rules_and_files(everything *e) {
  int decided[1];
  float values[2];
  const int32_t *ids;
  int64_t count;
  expect(!e->released[RULES], ms_rules_resolve(e->rules, 1, (const char *const[]){"w"}, decided));
  expect(!e->released[FILE_READ], ms_safetensors_read(e->file, 0, NULL, 0, 8, values, NULL));
  expect(!e->released[WRITER], ms_safetensors_write(e->writer, 0, NULL, 0, 0, values));
  expect(!e->released[TOKENIZER], ms_tokenizer_encode(e->tokenizer, "a", 1, &ids, &count));
}

static void use_state(everything *e) {
  const int on_world = !e->released[WORLD], on_state = on_world && !e->released[STATE];
  const ms_step_inputs inputs = {.struct_size = sizeof(ms_step_inputs), .lr = 1e-3, .step = 1, .micro_batches = 1};
  float one;
  expect(on_world, ms_world_barrier(e->world));
  expect(on_state, ms_state_read(e->state, 0, MS_TENSOR_PARAM, 0, 1, &one));
  for (int phase = MS_PHASE_FIRST; phase <= MS_PHASE_UPDATE; phase++)
    if (phase != MS_PHASE_NEXT && phase != MS_PHASE_LAST)
      expect(on_state && !e->released[EXEC], ms_exec_run(e->exec, phase, &inputs, NULL, 0));
  expect(on_state && !e->released[SAVE], ms_save_wait(e->save, MS_SAVE_WRITTEN, 0));
  expect(on_world && !e->released[PROFILE], ms_profile_mark(e->profile, "here", 0));
}

static void use(everything *e) {
  use_descriptions(e);
  use_tokens(e);
  use_rules_and_files(e);
  use_state(e);
}

static int is_live(const void *object, int kind) {
  return atomic_load(&((const ms_handle *)object)->word) == (uint32_t)(MS_HANDLE_LIVE + kind);
}

static void every_kind_is_made(void **state) {
  (void)state;
  everything e;
  assert_int_equal(END - FIRST, MS_HANDLE_KINDS); /* every kind, and a slice of a mesh */
  make(&e);
  for (int kind = FIRST; kind < END; kind++) {
    const int own = kind == SLICE ? MS_HANDLE_MESH : kind;
    if (!is_live(object_of(&e, kind), own)) fail_msg("test_handles.c makes no handle of kind %d", kind);
    release(&e, kind);
    if (is_live(object_of(&e, kind), own)) fail_msg("test_handles.c releases no handle of kind %d", kind);
  }
}

static void every_pair_is_released_in_either_order(void **state) {
  (void)state;
  everything e;
  for (int first = FIRST; first < END; first++) {
    for (int second = FIRST; second < END; second++) {
      make(&e);
      release(&e, first);
      use(&e);
      release(&e, second);
      use(&e);
      for (int kind = FIRST; kind < END; kind++) release(&e, kind);
      use(&e);
    }
  }
}

static int setting(const char *name, int fallback) {
  const char *text = getenv(name);
  return text ? atoi(text) : fallback;
}

/* Every handle, and some of them twice, in an order that is drawn. */
static void all_are_released_in_any_order(void **state) {
  (void)state;
  everything e;
  uint32_t random = (uint32_t)setting("HANDLES_SEED", 1);
  for (int round = 0, rounds = setting("HANDLES_ROUNDS", 100); round < rounds; round++) {
    make(&e);
    for (int left = 2 * (END - FIRST); left > 0; left--) {
      random = random * 1664525u + 1013904223u;
      release(&e, FIRST + (int)((random >> 16) % (END - FIRST)));
      use(&e);
    }
    for (int kind = END - 1; kind >= FIRST; kind--) release(&e, kind);
  }
}

/* What is kept is no longer than what keeps it. */
static void only_handles_are_released(void **state) {
  (void)state;
  uint64_t words[16] = {0};
  ms_free(words);
  assert_has(ms_error_message(), "ms_free | no handle");
  ms_error_clear();
  memset(words, 0x5a, sizeof words);
  ms_free(words);
  assert_has(ms_error_message(), "ms_free | no handle");
  ms_error_clear();
}

static void memory_of_ended_handles_is_used_again(void **state) {
  (void)state;
  enum { ROUNDS = 4 * MS_HANDLES_KEPT };
  static ms_rules *seen[ROUNDS];
  int same = 0;
  for (int i = 0; i < ROUNDS; i++) {
    must(ms_rules_new("test", &seen[i]));
    for (int earlier = i - 1; earlier >= 0 && earlier >= i - MS_HANDLES_KEPT; earlier--)
      assert_ptr_not_equal(seen[i], seen[earlier]);
    if (i > 2 * MS_HANDLES_KEPT) same += seen[i] == seen[i - MS_HANDLES_KEPT - 1];
    ms_free(seen[i]);
  }
  assert_true(same > 0);
}

static void a_world_may_be_left_twice_and_joined_again(void **state) {
  (void)state;
  ms_world *world, *again;
  for (int round = 0; round < 3; round++) {
    must(ms_world_join(NULL, &world));
    ms_free(world);
    ms_free(world);
    must(ms_world_join(NULL, &again));
    ms_free(world);
    must(ms_world_barrier(again));
    assert_fails(ms_world_barrier(world), MS_EINVAL, "ms_world_barrier | world | released");
    ms_free(again);
  }
  ms_free(NULL);
}

/* HANDLES_SEED and HANDLES_ROUNDS: random orders alone, others and more of them. */
int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(every_kind_is_made),
      TEST(every_pair_is_released_in_either_order),
      TEST(all_are_released_in_any_order),
      TEST(only_handles_are_released),
      TEST(memory_of_ended_handles_is_used_again),
      TEST(a_world_may_be_left_twice_and_joined_again),
  };
  if (getenv("HANDLES_SEED")) cmocka_set_test_filter("all_are_released_in_any_order");
  return cmocka_run_group_tests(tests, make_files, remove_files);
}
