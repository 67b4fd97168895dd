/* plan.h - one rank's compiled step: instructions on streams, bound to byte ranges of arenas.
 *
 * Compilation runs these passes, one file each. lower_graph.c turns the graph and the sharding into instructions in
 * program order, with buffers that have sizes but no addresses. layout.c assigns every buffer an arena offset by its
 * lifetime. sync.c inserts the events that order conflicting accesses on different streams. verify.c proves,
 * independently of how the plan was made, that no two conflicting accesses can run unordered. fingerprint.c hashes
 * everything that ranks must agree on. dump.c prints the plan.
 *
 * Phases run one after another, and all streams have finished at the end of a phase, except for collectives that UPDATE
 * leaves in flight: FIRST of the next step begins with instructions that join them. Within a phase, only program order
 * on a stream and events order instructions. A collective counts as an access to the whole shared buffer: a
 * rank enters it only after its own earlier accesses have finished, so the local order also proves the order across
 * ranks.
 */
#ifndef MS_PLAN_PLAN_H
#define MS_PLAN_PLAN_H

#include "base/handle.h"
#include "base/numbers/dtype.h"
#include "base/text/text.h"
#include "base/machine/topology.h"
#include "comm/collectives/comm.h"
#include "device/device.h"
#include "graph/graph.h"
#include "plan/layout/replica_slices.h"
#include "shard/model.h"

enum ms_stream {
  MS_STREAM_COMPUTE = 0,
  MS_STREAM_GATHER = 1,
  MS_STREAM_REDUCE = 2,
  MS_STREAM_REPLICATE = 3,
  MS_STREAM_TENSOR = 4,
  MS_STREAM_CONTEXT = 5,
  MS_NAMED_STREAMS = 6 /* those that lowering uses and an exec runs; the passes after it take any number */
};

/* Arenas. STATE, MASTERS, REPLICATED and CHUNKS live as long as the training state; every phase reuses the others.
 * Where replicas share masters and optimizer state, STATE has only slices of the gradient chunks. In a phase that
 * overwrites the gradients, activations can also use the gradient chunks until the first gradient is written there. */
enum ms_arena {
  MS_ARENA_STATE = 0,       /* masters, optimizer state, gradient chunks, step scalars; private */
  MS_ARENA_MASTERS = 1,     /* whole units whose masters peers read in place; one copy per shard group. Each rank
                             * owns, writes and counts its chunks, or slices of them where replicas share the copy */
  MS_ARENA_REPLICATED = 2,  /* other masters, and optimizer state, that the replicas of a host share; each replica
                             * updates and counts its slice */
  MS_ARENA_CHUNKS = 3,      /* whole chunks of sliced units' weights, which the replicas gather after an update; one
                             * copy per host for replicas with the same shard, of which each counts an equal part */
  MS_ARENA_ACTIVATIONS = 4, /* inputs and results of kernels; private */
  MS_ARENA_WORKSPACE = 5,   /* scratch of one kernel at a time; private */
  MS_ARENA_COMM = 6,        /* unsharded gradients and chunks between two sums; peers read it at the same offsets */
  MS_ARENA_GATHERED = 7,    /* unsharded weights; one copy per host for the ranks of a shard group and their replicas */
  MS_ARENA_GROUPED = 8,  /* shards kept for gathering in smaller groups, and the gathered result; stored in the block of
                          * the group's first rank */
  MS_ARENA_RESIDENT = 9, /* frozen weights that stay gathered from step to step, shared as in GATHERED. Every plan with
                          * the same rules has them at the same places */
  MS_ARENAS = 10
};

/* 1 for arenas of whole units, of which the ranks of a shard group on one host have one copy. */
static inline int ms_arena_is_of_shards(int arena) {
  return arena == MS_ARENA_MASTERS || arena == MS_ARENA_GATHERED || arena == MS_ARENA_RESIDENT;
}

typedef struct ms_buffer {
  int arena, category;
  int64_t bytes;
  int64_t offset;  /* bytes from the start of the arena; -1 until laid out */
  int phase;       /* phase in which it is used; -1: all phases (STATE, inputs, and buffers kept between
                    * micro-batches) */
  int ranks, dim;  /* GROUPED: number of ranks that gather it, along a dimension (enum ms_model_dim); 0: not gathered.
                    * Buffers that other ranks gather never share bytes */
  int computed;    /* 1: a kernel reads or writes it; 0: only collectives do */
  int first, last; /* program positions (before synchronisation) of its first and last use in that phase */
  const char *label;
} ms_buffer;

/* A tensor inside a buffer. */
typedef struct ms_ref {
  int buffer;     /* -1: none */
  int64_t offset; /* bytes */
  ms_value_info info;
} ms_ref;

/* An address before binding: a buffer and an offset in bytes; buffer -1: not placed yet. */
typedef struct ms_place {
  int buffer;
  int64_t offset;
} ms_place;

enum ms_instr_kind {
  MS_INSTR_KERNEL = 0,
  MS_INSTR_COLLECTIVE = 1,
  MS_INSTR_RECORD = 2,
  MS_INSTR_WAIT = 3,
  MS_INSTR_JOIN = 4 /* the end of a collective that UPDATE left in flight; it touches what that one touches */
};

typedef struct ms_plan_part {
  int64_t count; /* elements per rank, as in ms_coll_part */
  int accumulate;
  ms_ref src;    /* all_gather: this rank's master chunk (buffer -1: in place). Otherwise unused */
  ms_ref scale;  /* all_gather of codes from f32: the f32 that src is multiplied by. Otherwise unused */
  ms_ref shared; /* all_gather: the result. Otherwise this rank's source; the offset is the same on every rank */
  int64_t first; /* sliced sums: index in this rank's chunk (all_reduce: in the whole part) of the first element
                  * stored in dst */
  ms_ref dst;    /* reduce_scatter, all_reduce */
} ms_plan_part;

typedef struct ms_plan_coll {
  int kind;  /* enum ms_coll_kind */
  int dim;   /* enum ms_model_dim */
  int unit;  /* -1: the collective sums the step totals, or is a node of the graph */
  int ranks; /* ranks that take part: the whole group of the dimension, or some of it */
  /* 1: they are neighbours. More: they are at the same place of every block of so many neighbours, which share a node,
   * and have summed there. */
  int stride;
  /* If not 0, this many replicas of a node also take part, each with its slice (comm.h). A sum then includes the
   * all_reduce over the replicas, which the phase lists after it. 0: no other replicas. */
  int replicas;
  int sliced;    /* each rank receives only its slice of the sum */
  int in_flight; /* 1: its phase, UPDATE, can end before it; FIRST joins it */
  int largest;   /* all_reduce: 1: the largest of the ranks' numbers instead of their sum */
  int of_sums;   /* all_gather: 1: of gradients that the ranks have summed, not of weights (lower_quantised.c) */
  int parts;
  ms_plan_part *part;
  /* Buffers whose bytes it hands over: when it ends, every rank of its group has finished with them. So each can write
   * its chunk of a later all-gather's result there (lower_across.c), or read what the others wrote (lower_step.c). */
  ms_ref *opens;
  int opened, opens_capacity;
  double bytes;      /* as ms_coll_bytes */
  double also_bytes; /* of the all_reduce over the replicas that this collective includes */
  ms_traffic moved;  /* by this rank, without also_bytes, which are inside its node (traffic.c) */
} ms_plan_coll;

static inline int ms_plan_coll_is_between_nodes(const ms_plan_coll *coll) { return coll->stride > 1; }

/* 1 for sums of gradients between nodes where each replica of a node has another slice of the chunks. */
static inline int ms_plan_coll_is_of_slices(const ms_plan_coll *coll) {
  return ms_plan_coll_is_between_nodes(coll) && coll->dim == MS_DIM_REPLICATE && coll->unit >= 0;
}

/* 1 when a collective makes codes of what it gathers. */
static inline int ms_plan_part_is_coded(const ms_plan_coll *coll, const ms_plan_part *part) {
  return coll->kind == MS_COLL_ALL_GATHER && part->src.buffer >= 0 && part->src.info.dtype == MS_F32 &&
         ms_dtype_may(part->shared.info.dtype, MS_DTYPE_SCALED);
}

typedef struct ms_instr {
  int kind, stream;
  int event;                  /* RECORD, WAIT: index of the event, which is recorded once per phase */
  int backward;               /* KERNEL: 1 in the backward pass */
  const char *scope;          /* module path or unit name, for dumps and reports */
  const ms_kernel_call *call; /* KERNEL: prepared, pointers unbound; equal calls in a plan share one (prepare.c) */
  uint64_t hash;              /* KERNEL: hash of op, attributes and shapes, without this rank's place in a dimension */
  ms_place *in, *out;         /* KERNEL: addresses of the inputs and outputs that `call` describes */
  const int64_t *bytes;       /* KERNEL: sizes in bytes of the inputs, then of the outputs */
  int workspace;              /* KERNEL: index of the scratch buffer, or -1 */
  ms_plan_coll *coll;         /* COLLECTIVE: owned by the phase. JOIN: owned by UPDATE */
} ms_instr;

typedef struct ms_plan_phase {
  int present;
  ms_instr *instr; /* in program order, which is a valid serial order */
  int n, capacity;
  int events;
  ms_plan_coll **coll;
  int colls, colls_capacity;
  double flops;
} ms_plan_phase;

/* A block of storage for ms_instr.in and .out: most instructions have only a few places. */
typedef struct ms_places {
  struct ms_places *next;
  int n;
  ms_place place[4096];
} ms_places;

/* An interned scope string. The plan owns the copy because it outlives the graph that `from` belongs to. */
typedef struct ms_scope {
  const char *from, *own;
} ms_scope;

/* A block of storage for the interned strings. */
typedef struct ms_scope_texts {
  struct ms_scope_texts *next;
  int64_t used, bytes; /* bytes of `text` */
  char text[];
} ms_scope_texts;

/* A named input; all phases use the same place. */
typedef struct ms_plan_input {
  char *name;
  ms_ref at;
} ms_plan_input;

/* A named output and its place after each phase (buffer -1: the phase does not compute it). */
typedef struct ms_plan_output {
  char *name;
  ms_ref at[MS_PHASES];
} ms_plan_output;

/* The plan's distinct kernel calls (prepare.c): a hash table with `slots` slots, NULL where empty. */
typedef struct ms_prepared {
  struct ms_prepared_call **slot;
  int n, slots;
} ms_prepared;

enum { MS_COMPILER_PASSES = 14 };

struct ms_plan {
  ms_handle handle;
  const ms_model *model; /* retained */
  ms_plan_config config; /* without node_of, which the caller owns */
  ms_topology topology;
  struct ms_state_layout *layout; /* of a state of its own; that of the state that it is bound to can have more slots */
  int streams;                    /* number of streams in use: 0 .. streams - 1 */
  ms_plan_phase phase[MS_PHASES];
  ms_buffer *buffer;
  int buffers, buffers_capacity;
  int64_t arena_bytes[MS_ARENAS]; /* of one block of each arena */
  int64_t peers_bytes[MS_ARENAS]; /* share of MASTERS, REPLICATED and CHUNKS that other ranks count */
  int64_t category_bytes[MS_CATEGORIES];
  ms_plan_input *input;
  ms_plan_output *output;
  int inputs, outputs;
  int *kept_unsharded;     /* [units] buffer of weights kept unsharded between micro-batches, or -1 */
  ms_place *resident;      /* [units] where a gathered unit would begin of which the resident segments are in a buffer;
                            * buffer -1: it has none */
  int weight_scales;       /* buffer of the scales of weights that are gathered as codes, which FIRST computes, or -1 */
  int *deferred_gradients; /* [units] buffer of gradients that wait for the last micro-batch, or -1 */
  /* What has owners: parameters whose optimizer takes whole matrices, by buckets (owners.h); NULL: there are none. */
  struct ms_owned *owned;
  int *owned_bucket; /* [owned_buckets + 1] where the buckets begin there */
  int owned_buckets;
  char *has_gradient; /* [params] 1: the loss depends on it; the update skips the others */
  /* EVALUATE: f32 [2], with the loss summed over the ranks at [1], or f32 [3] with the sum of its weights at [2];
   * buffer -1 without a loss */
  ms_ref evaluated;
  ms_ref norm;           /* NORM: f32 [4], the output of step_norm; of the units with a fragment, if there are any */
  ms_ref norm_of_synced; /* the same of the other units, if only some have a fragment; else buffer -1 */
  ms_ref logits,
      largest_logit; /* the largest attention scores of a step, f32 [n], and of them all (lower_logits.c); buffer -1 */
  int64_t *logit_at; /* [logit_clips] where each clip's begin there */
  ms_ref norms_of_groups; /* f32 [4 norm_groups], step_norm of each; buffer -1: there are none */
  uint64_t fingerprint;
  char *manifest;  /* one line for each item that all ranks must agree on; hashed into the fingerprint */
  ms_scope *scope; /* hash table with scope_slots slots, NULL where empty */
  int scopes, scope_slots;
  ms_scope latest_scope; /* consecutive instructions mostly have the same scope */
  ms_scope_texts *scope_texts;
  ms_places *places;
  ms_plan_conversion *conversion; /* [conversions] */
  int conversions;
  ms_prepared prepared;
  double compile_seconds;
  ms_plan_pass pass[MS_COMPILER_PASSES];
  char *dump;
};

/* The node of each rank in the model's world, from the plan's config (nodes.c). The caller frees *topology, after an
 * error as well. */
int ms_plan_topology(const ms_model *model, const ms_plan_config *config, ms_topology *topology);
/* 1 when the ranks of each group along a dimension (enum ms_model_dim) gather into memory that they map together, so
 * that keeping the result takes no more memory per rank than its part. */
int ms_plan_gathers_once(const ms_plan *plan, int dim);
/* Appends, for example, "4 ranks on 1 node: 2 replicas share one copy of the state". */
void ms_plan_describe_nodes(const ms_plan *plan, ms_text *text);
/* Identifies what RESIDENT holds and where; 0: nothing. */
uint64_t ms_plan_resident_layout(const ms_plan *plan);
/* 1 when the shard group reads the unit's masters in place. */
int ms_plan_shares_masters(const ms_plan *plan, int unit);
/* Elements [local, local + n) of a unit's chunks, which are in segment `s`, where this rank reads its weights: an f32
 * master, its copy, or the chunk of a sliced unit. */
ms_ref ms_plan_weights(const ms_plan *plan, int unit, int s, int64_t local, int64_t n);
/* Bytes of memory that the plan itself takes. */
int64_t ms_plan_bytes(const ms_plan *plan);
/* Bytes that this rank counts in all arenas. */
int64_t ms_plan_peak(const ms_plan *plan);
/* The bytes of all arenas on a node, 0 to nodes - 1, if all its ranks have plans like this one. Arenas that ranks share
 * count once for each copy. */
int ms_plan_node_bytes(const ms_plan *plan, int node, int64_t *bytes);
/* The most bytes of each category, [MS_CATEGORIES], in use at one time; each category reaches its maximum at a
 * different instruction (memory_in_use.c). */
int ms_plan_category_peaks(const ms_plan *plan, int64_t *bytes);

/* The i-th of ms_plan_config.logit_clip, at the distance of the program's structs. */
static inline const ms_logit_clip *ms_plan_logit_clip(const ms_plan_config *config, int i) {
  return (const ms_logit_clip *)(const void *)((const char *)config->logit_clip + (int64_t)i * config->logit_clip_size);
}

/* Creates an empty plan of a model (plan.c). */
int ms_plan_new(const ms_model *model, const ms_plan_config *config, ms_plan **plan);
/* Checks that all settings are in range and go together (config.c). */
int ms_plan_check_config(const ms_plan_config *config);

/* An access of an instruction to a byte range of an arena. */
typedef struct ms_access {
  int arena, buffer;
  int64_t begin, end; /* bytes from the start of the arena */
  int write;
} ms_access;
/* Lists an instruction's accesses, at most `capacity`, and returns their number. An output that is also read
 * (accumulate, optimizers) counts as a write. */
int ms_instr_accesses(const ms_plan *plan, const ms_instr *instr, ms_access *access, int capacity);
/* 1 when an instruction reads the previous contents of a buffer or adds to them; 0 when it overwrites the buffer or
 * does not touch it (accesses.c). */
int ms_instr_needs(const ms_instr *instr, int buffer);
/* Finds when each unit's gradient chunk starts to hold data in a phase. begin: [units] the program position (not
 * counting events) of the first write, if no instruction of the phase needs the previous contents; otherwise 0,
 * which means from the start of the phase. */
void ms_gradients_begin(const ms_plan *plan, int phase, int *begin);
/* together: [phase.n] how many instructions from this one on are started by one call of run_together; 1 for each that
 * is alone, or one of them but not the first (together.c). */
void ms_plan_together(const ms_plan *plan, int phase, int *together);
/* Marks the kernels that are in the launch of an earlier one. joined: [phase.n], zeros. */
void ms_plan_mark_joined(const ms_plan *plan, int phase, const int *together, char *joined);
/* Upper bound on the number of accesses of an instruction, and of all instructions of a phase. */
int ms_instr_access_limit(const ms_instr *instr);
int ms_phase_access_limit(const ms_plan_phase *phase);
/* An input or output of a KERNEL instruction. */
ms_ref ms_instr_input(const ms_instr *instr, int i);
ms_ref ms_instr_output(const ms_instr *instr, int i);

/* Assigns offsets to all buffers except those in STATE; fills arena_bytes (layout.c). traced: the graph that caches
 * the packings. */
int ms_plan_layout(ms_plan *plan, const ms_graph *traced);
/* Inserts the RECORD and WAIT instructions that are needed, and no others (sync.c). */
int ms_plan_synchronize(ms_plan *plan, int phase);
/* Fills clock[i * streams + s] with the number of instructions of stream s that are known to be done when
 * instruction i starts. Returns MS_ERACE when an instruction waits for an event that no earlier one records
 * (accesses.c). */
int ms_plan_clocks(const ms_plan *plan, int phase, int *clock);
typedef int ms_instr_test(const ms_instr *instr);
static inline int ms_instr_is_collective(const ms_instr *instr) { return instr->kind == MS_INSTR_COLLECTIVE; }
/* overlaps: [instr] 1: one of the instructions `of` that can run at the same time as one of `with` on another stream
 * (overlaps.c). */
int ms_plan_find_overlaps(const ms_plan *plan, int phase, ms_instr_test *of, ms_instr_test *with, char *overlaps);
/* exposed: [instr] 1: a collective while which events let no kernel of this rank compute (exposed_communication.c). */
int ms_plan_find_exposed(const ms_plan *plan, int phase, char *exposed);
/* Returns MS_ERACE, naming the instructions, when conflicting accesses can run unordered, when an event is awaited
 * before it is recorded in program order, or when an access is outside its arena (verify.c). */
int ms_plan_verify(const ms_plan *plan, int phase);
/* The part of it about memory that several ranks share: returns MS_ERACE when one of them can read what another has not
 * written yet, or write what another still reads. clock: of ms_plan_clocks (verify_peers.c). */
int ms_plan_verify_peers(const ms_plan *plan, int phase, const int *clock);
/* Lets the products of a phase that no chain of events orders with a collective spare multiprocessors, as the plan's
 * config says (overlapped_products.c). */
int ms_plan_spare_processors(ms_plan *plan, int phase);
/* Counts the plan's products, and those of them that do. */
void ms_plan_count_spared(const ms_plan *plan, int *products, int *spared);
/* Appends the lines that ranks sharing a state must agree on: mesh, seed, units, parameters, optimizer
 * (fingerprint.c). */
void ms_plan_describe_state(const ms_model *model, const ms_plan_config *config, ms_text *text);
/* Appends a line for each kernel that ranks must agree on: its hash, 16 digits, and what it computes. */
void ms_plan_describe_kernels(const ms_plan *plan, ms_text *text);
/* Fills manifest and fingerprint (fingerprint.c). */
int ms_plan_fingerprint(ms_plan *plan);

static inline void ms_traffic_add(ms_traffic *sum, const ms_traffic *more) {
  sum->inside += more->inside;
  sum->sent += more->sent;
  sum->received += more->received;
}
/* What determines the bytes of a part: count and dtypes, without addresses (builder.c). */
ms_coll_part ms_plan_part_sizes(const ms_plan_coll *coll, const ms_plan_part *part);
/* Fills `moved` of all collectives, when they are complete (traffic.c). */
int ms_plan_count_traffic(ms_plan *plan);
/* The world ranks of a collective, in the order of its group, for the rank at a position in the grid of the model's
 * dimensions, at: [MS_GRID_DIMS]. ranks: [members]. Returns their number (traffic.c). */
int ms_plan_members(const ms_plan *plan, const ms_plan_coll *coll, const int *at, int *ranks);
/* World rank at a position in that grid, and the position of an index in the model's member_rank (nodes.c). */
int ms_grid_rank(const ms_model *model, const int *at);
/* ... at this rank's position in the other dimensions. */
int ms_grid_sibling(const ms_model *model, int replica, int shard);
void ms_grid_position(const ms_model *model, int member, int *at);
/* The number of the model's ranks on a node (nodes.c). */
int ms_plan_ranks_on(const ms_plan *plan, int node);
/* How often a step runs a phase. A plan with a LAST has a FIRST before it. */
static inline int ms_plan_runs(const ms_plan *plan, int phase) {
  const int last = plan->phase[MS_PHASE_LAST].present != 0, next = plan->config.micro_batches - 1 - last;
  if (phase == MS_PHASE_EVALUATE || phase == MS_PHASE_GATHER) return 0;
  return phase != MS_PHASE_NEXT ? 1 : next > 0 ? next : 0;
}

/* The first rank, within the dimension's group, of the block of `ranks` neighbours that contains this rank. */
int ms_plan_group_start(const ms_plan *plan, int dim, int ranks);
const char *ms_stream_name(int stream);
/* Describes an instruction for messages; text: [MS_INSTR_TEXT]. */
enum { MS_INSTR_TEXT = 192 };
const char *ms_instr_describe(const ms_instr *instr, char *text);
/* The dimension along which the collectives of a named stream run, enum ms_model_dim; -1: compute has none. */
int ms_stream_dim(int stream);
const char *ms_phase_name(int phase);
const char *ms_category_name(int category);
const char *ms_arena_name(int arena);
const char *ms_coll_name(int kind);

#endif
