/* api_values.h - random arguments of the API fuzzer, from one generator that the seed starts.
 *
 * The size of what a pointer points at follows from other arguments, so a call is either tame, with small counts and
 * memory that is larger than they can ask for, or wild, with numbers of any size and no memory. */
#ifndef MS_FUZZ_API_VALUES_H
#define MS_FUZZ_API_VALUES_H

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "moonshard.h"

enum {
  BUFFERS = 8,
  BUFFER_BYTES = 4 << 20,
  LISTS = 8,
  LIST = 64,
  CONFIG_BYTES = 4096,
  PARAMS = 4096,
  ANY_STRUCT = 512
};
#define PICK(list) ((list)[random_below((int)(sizeof(list) / sizeof *(list)))])

static uint64_t random_state;
static int wild;

/* xorshift64 (Marsaglia 2003), so that a seed gives the same calls everywhere. */
static int random_below(int n) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (int)((uint32_t)(random_state >> 16) % (uint32_t)n);
}

static int chance(int one_in) { return random_below(one_in) == 0; }

/* One in eight pointers is NULL, and all of a wild call. */
static int is_null(void) { return wild || chance(8); }

static int an_int(void) {
  static const int tame[] = {0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 5, 7, -1, -2};
  static const int any[] = {INT_MAX, INT_MIN, 1 << 30, 65536, 1000000, -1, 0, 1, 46341};
  return wild ? PICK(any) : PICK(tame);
}

/* The size of a struct that is filled: as the program knows it, of an older one, or wrong. */
static int filled_size(size_t known) { return chance(4) ? an_int() : (int)known - (chance(4) && known > 8 ? 8 : 0); }

/* The size of a struct that is read, where another distance of rows would make pointers of other fields. */
static int read_size(size_t known) { return chance(8) ? -random_below(3) : (int)known; }

static int64_t a_long(void) {
  static const int64_t tame[] = {0, 0, 1, 1, 2, 3, 8, -1};
  static const int64_t any[] = {INT64_MAX, INT64_MIN, 1ll << 62, 1ll << 31, 1ll << 40, -1, 0, 1};
  return wild ? PICK(any) : PICK(tame);
}

static double a_real(void) {
  const double any[] = {0, 1, -1, 1e308, -1e308, 1e-300, 0.5, 2, 0.1, NAN, INFINITY};
  return PICK(any);
}

/* Paths are in the folder of the run, where files come from earlier calls. */
static char *a_text(void) {
  static char any[][48] = {"w",
                           "x",
                           "y",
                           "",
                           "shard",
                           "replicate",
                           "root",
                           "matmul",
                           "add",
                           "cross_entropy",
                           "param",
                           "embedding",
                           "(((",
                           "^.*$",
                           "\xff\xfe\x80",
                           "a.b.c",
                           "layers.0",
                           "%s%n%s",
                           "written.safetensors",
                           "folder",
                           "/proc/nowhere/x",
                           "F32",
                           "trans_b=1",
                           "axis=0 keepdim=1",
                           "alpha=1e308 beta=nan"};
  static char longest[70000];
  if (chance(26)) return NULL;
  if (chance(26)) return memset(longest, 'q', sizeof longest - 1);
  return PICK(any);
}

static void *output_bytes(void) {
  static char memory[BUFFERS][BUFFER_BYTES];
  return is_null() ? NULL : memory[random_below(BUFFERS)];
}

static const void *input_bytes(void) {
  static const char zeros[BUFFER_BYTES];
  return is_null() ? NULL : zeros;
}

/* Lists of LIST values; those of numbers have one of any size now and then. Inline: the header may ask for none of a
 * type. */
#define DEFINE_LIST(name, type, value)       \
  static inline void *name(void) {           \
    static type lists[LISTS][LIST];          \
    if (is_null()) return NULL;              \
    type *list = lists[random_below(LISTS)]; \
    for (int i = 0; i < LIST; i++) {         \
      wild = chance(24);                     \
      list[i] = value;                       \
    }                                        \
    wild = 0;                                \
    return list;                             \
  }

DEFINE_LIST(texts, char *, a_text())
DEFINE_LIST(ints, int, an_int())
DEFINE_LIST(longs, int64_t, wild ? a_long() : 1 + random_below(6))
DEFINE_LIST(reals, double, a_real())

static void *step_inputs(void) {
  static ms_step_inputs s;
  if (chance(12)) return NULL;
  ms_config_default("ms_step_inputs", &s, sizeof s);
  s.lr = chance(4) ? a_real() : 0.01;
  s.step = chance(4) ? a_long() : 1;
  s.micro_batches = chance(4) ? an_int() : 1;
  s.seed = (uint64_t)random_below(INT_MAX);
  s.first_row = chance(4) ? a_long() : 0;
  s.row_step = chance(4) ? a_long() : 0;
  return &s;
}

static void *view(void) {
  static ms_safetensors_view v;
  if (chance(3)) return NULL;
  ms_config_default("ms_safetensors_view", &v, sizeof v);
  if (chance(3)) return &v;
  v.rows = a_long(), v.columns = a_long(), v.first = a_long();
  v.row_stride = chance(2) ? a_long() : 1;
  v.column_stride = chance(2) ? a_long() : 1;
  return &v;
}

static void *tensors(void) {
  static ms_safetensors_tensor list[8];
  if (is_null()) return NULL;
  memset(list, 0, sizeof list);
  for (int i = 0; i < 8; i++) {
    list[i].name = a_text();
    list[i].dtype = chance(4) ? a_text() : "F32";
    list[i].ndim = random_below(3) - chance(6);
    list[i].dims = longs();
  }
  return list;
}

/* One for each parameter of any model: a run adds fewer of them to one. */
static void *param_groups(void) {
  static ms_param_group list[PARAMS];
  if (is_null()) return NULL;
  for (int i = 0; i < PARAMS; i++) {
    ms_param_group *group = &list[i];
    *group = (ms_param_group){.lr_scale = 1, .beta1 = -1, .beta2 = -1, .eps = -1, .momentum = -1};
    double *const settings[] = {&group->lr_scale, &group->weight_decay, &group->beta1,
                                &group->beta2,    &group->eps,          &group->momentum};
    if (chance(8)) *PICK(settings) = a_real();
  }
  return list;
}

static void *save_pieces(void) {
  static ms_save_piece list[8];
  if (is_null()) return NULL;
  memset(list, 0, sizeof list);
  for (int i = 0; i < 8; i++) {
    list[i].name = chance(4) ? a_text() : "w";
    list[i].parameter = chance(4) ? a_text() : "w";
    list[i].kind = chance(4) ? a_text() : "param";
    list[i].param = chance(4) ? an_int() : 0;
    list[i].what = chance(4) ? an_int() : 0;
    list[i].first = chance(4) ? a_long() : 0;
    list[i].count = list[i].dims[0] = chance(4) ? a_long() : 1;
    list[i].ndim = chance(4) ? an_int() : 1;
  }
  return list;
}

/* Elements of no file: handles inside structs are not drawn. */
static void *saved_piece(void) {
  static ms_saved_piece p;
  if (chance(3)) return NULL;
  p = (ms_saved_piece){.tensor = an_int(), .first = a_long()};
  return &p;
}

static void *model_dims(void) {
  static ms_model_dims d;
  if (chance(12)) return NULL;
  ms_config_default("ms_model_dims", &d, sizeof d);
  int *const roles[] = {&d.replicate, &d.shard, &d.tensor, &d.context, &d.sequence_parallel};
  for (int i = 0; i < 5; i++)
    if (chance(2)) *roles[i] = an_int();
  return &d;
}

/* A cluster that can price most plans, with one number changed. */
static void *cluster(void) {
  static ms_cluster c;
  if (chance(12)) return NULL;
  ms_config_default("ms_cluster", &c, sizeof c);
  c.ranks_per_node = 2, c.cores = 2, c.memory = 1e9, c.clock = 1, c.memory_rate = 1e10;
  for (int dtype = 0; dtype < MS_DTYPES; dtype++) c.peak[dtype] = 1e11;
  c.product = (struct ms_product_rate){.efficiency = 1, .half_tile = 1, .k_half = 32};
  c.attention = (struct ms_attention_rate){.forward = 1, .backward = 1, .keys_half = 64, .causal = 1};
  c.links = 1;
  c.link[0] = (struct ms_link){.algorithm = MS_LINK_HOSTS, .kinds = 7, .inside = 1e9, .between = 1e8};
  double *const numbers[] = {&c.cores,       &c.memory,         &c.clock,           &c.memory_rate,
                             &c.memory_half, &c.kernel_start,   &c.issue,           &c.overlap,
                             &c.step_gap,    &c.product.tile_m, &c.product.k_half,  &c.attention.causal,
                             &c.peak[0],     &c.link[0].inside, &c.link[0].between, &c.link[0].processor,
                             &c.phase_gap,   &c.link[0].hidden, &c.product.units,   &c.link[0].start};
  if (chance(2)) *PICK(numbers) = a_real();
  int *const counts[] = {&c.device, &c.ranks_per_node, &c.links, &c.link[0].algorithm, &c.link[0].kinds};
  if (chance(4)) *PICK(counts) = an_int();
  return &c;
}

static void *kernel_work(void) {
  static ms_kernel_work w;
  if (chance(12)) return NULL;
  w = (ms_kernel_work){.op = an_int(), .shape = an_int(), .dtype = an_int(), .variant = an_int(), .threads = an_int()};
  w.flops = a_real(), w.bytes = a_real();
  for (int i = 0; i < 4; i++) w.size[i] = chance(4) ? a_real() : 64;
  return &w;
}

static void *collective_work(void) {
  static ms_collective_work w;
  if (chance(12)) return NULL;
  w = (ms_collective_work){.kind = an_int(), .ranks = an_int(), .nodes = an_int(), .groups = an_int()};
  w.bytes = a_real(), w.inside = a_real(), w.wire = a_real();
  return &w;
}

/* A configuration with its defaults, of any size that a program of another version could give, and one field changed.
 */
static void *a_config(const char *type, void (*change)(void *), size_t size) {
  static char memory[LISTS][CONFIG_BYTES];
  const int sizes[] = {CONFIG_BYTES, (int)size + 8, (int)size - 8, 4, INT_MAX, -1};
  if (chance(12)) return NULL;
  char *config = memset(memory[random_below(LISTS)], chance(2) ? 0 : 0xff, CONFIG_BYTES);
  int other = chance(3) ? PICK(sizes) : (int)size;
  ms_config_default(type, config, other > 0 && other <= CONFIG_BYTES ? other : (int)size);
  if (other > CONFIG_BYTES || other < 0) memcpy(config, &other, sizeof other);
  else if (other >= (int)size) change(config);
  return config;
}

#endif
