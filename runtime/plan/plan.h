/* plan.h - a compiled step of one rank: instructions on streams, bound to byte ranges of arenas.
**
** A plan is made in these steps, one file each: lower.c turns the graph and the sharding into instructions in program
** order, with buffers that are only sizes yet; layout.c gives every buffer its place in an arena by its lifetime;
** sync.c inserts the events that order conflicting accesses of different streams; verify.c proves, knowing nothing of
** how it was done, that no two conflicting accesses can run unordered; fingerprint.c hashes what ranks must agree on;
** dump.c prints.
**
** Phases run one after another: at the end of a phase all streams have finished. Within a phase only program order on a
** stream and events order instructions. A collective counts as an access of the whole shared buffer: ranks enter it
** only when their own earlier accesses are done, so the local order proves the order across ranks too.
*/
#ifndef MS_PLAN_PLAN_H
#define MS_PLAN_PLAN_H

#include "base/handle.h"
#include "base/text.h"
#include "base/topology.h"
#include "comm/collectives/comm.h"
#include "device/device.h"
#include "graph/graph.h"
#include "shard/model.h"

enum ms_stream {
  MS_STREAM_COMPUTE = 0,
  MS_STREAM_GATHER = 1,
  MS_STREAM_REDUCE = 2,
  MS_STREAM_REPLICATE = 3,
  MS_STREAMS = 4
};

/* Arenas. STATE, MASTERS and REPLICATED live as long as the training state; the others are reused from phase to phase.
** Activations of a phase that writes gradients anew also lie in STATE, in the gradient chunks until these are
** written. */
enum ms_arena {
  MS_ARENA_STATE = 0, /* masters, optimizer, gradient chunks, step scalars; private. Where replicas keep one copy of the
                            ** first two, slices of gradient chunks */
  MS_ARENA_MASTERS = 1,     /* whole units whose masters peers read in place; one copy for the shard group, each rank
                            ** owns, writes and counts its chunks, or with replicas slices of them */
  MS_ARENA_REPLICATED = 2,  /* other masters, and optimizer state, of which the replicas of a host keep one copy: each
                            ** updates and counts its slice */
  MS_ARENA_ACTIVATIONS = 3, /* inputs and results of kernels; private */
  MS_ARENA_WORKSPACE = 4,   /* scratch of one kernel at a time; private */
  MS_ARENA_COMM = 5,        /* unsharded gradients and chunks under way; peers read it at the same offsets */
  MS_ARENA_GATHERED = 6,    /* unsharded weights; one copy for the shard group's ranks of a host, and its replicas */
  MS_ARENA_GROUPED =
      7, /* shards kept for smaller groups, and what those gather: in the block of a group's first rank */
  MS_ARENAS = 8
};

typedef struct ms_buffer {
  int arena, category;
  int64_t bytes;
  int64_t offset;  /* in the arena; -1 until laid out */
  int phase;       /* it lives in; -1: all of them (STATE, inputs, and what stays between micro-batches) */
  int ranks;       /* GROUPED: gathered by so many; 0: not gathered. Buffers that differ in it never share bytes */
  int computed;    /* 1: a kernel touches it; 0: collectives alone do */
  int first, last; /* program positions (before synchronisation) of its first and last use in that phase */
  const char *label;
} ms_buffer;

/* A tensor inside a buffer. */
typedef struct ms_ref {
  int buffer;     /* -1: none */
  int64_t offset; /* bytes */
  ms_value_info info;
} ms_ref;

/* Where bytes lie; buffer -1: nowhere yet. */
typedef struct ms_place {
  int buffer;
  int64_t offset;
} ms_place;

enum ms_instr_kind { MS_INSTR_KERNEL = 0, MS_INSTR_COLLECTIVE = 1, MS_INSTR_RECORD = 2, MS_INSTR_WAIT = 3 };

typedef struct ms_plan_part {
  int64_t count; /* elements a rank, as ms_coll_part */
  int accumulate;
  ms_ref src;    /* all_gather: master chunk (buffer -1: in place). Unused otherwise */
  ms_ref shared; /* all_gather: the result. Others: this rank's source, at the same offset on every rank */
  int64_t first; /* of a sliced sum: which of the elements of this rank's chunk, or of all, is the first in dst */
  ms_ref dst;    /* reduce_scatter, all_reduce */
} ms_plan_part;

typedef struct ms_plan_coll {
  int kind;  /* enum ms_coll_kind */
  int dim;   /* 0: replicate dimension, 1: shard dimension (enum ms_plan_dim) */
  int unit;  /* -1: the step's totals */
  int ranks; /* of the dimension's group, or of the neighbours in it that take part */
  /* Its ranks are one replica of every node, each with the sum of its node. 0: they are neighbours. */
  int between_nodes;
  /* R: so many replicas of a node take part too, each with its slice (comm.h). A sum is then the all_reduce over them
  ** as well, which the phase lists behind it. 0: they do not. */
  int replicas;
  int sliced; /* each rank has a slice of the sum alone */
  int parts;
  ms_plan_part *part;
  double bytes;      /* ms_coll_bytes */
  double also_bytes; /* of the all_reduce over the replicas that it is, too */
} ms_plan_coll;

enum ms_plan_dim { MS_DIM_REPLICATE = 0, MS_DIM_SHARD = 1 };

typedef struct ms_instr {
  int kind, stream;
  int event;                  /* RECORD, WAIT: index of the event; recorded once a phase */
  int backward;               /* KERNEL: of the backward pass */
  const char *scope;          /* module path or unit, for dumps and reports */
  const ms_kernel_call *call; /* KERNEL: prepared, pointers unbound; equal calls of a plan are one (prepare.c) */
  uint64_t hash;              /* KERNEL: of op, attributes and shapes */
  ms_place *in, *out;         /* KERNEL: where what `call` describes lies */
  const int64_t *bytes;       /* KERNEL: of each input, then of each output */
  int workspace;              /* KERNEL: buffer, or -1 */
  ms_plan_coll *coll;         /* COLLECTIVE; owned by the phase */
} ms_instr;

typedef struct ms_plan_phase {
  int present;
  ms_instr *instr; /* program order: a valid serial order */
  int n, capacity;
  int events;
  ms_plan_coll **coll;
  int colls, colls_capacity;
  double flops;
} ms_plan_phase;

/* Memory for the places that instructions name, most of which have few. */
typedef struct ms_places {
  struct ms_places *next;
  int n;
  ms_place place[4096];
} ms_places;

/* A text that instructions point to: the plan's own, since it outlives what it was copied from. */
typedef struct ms_scope {
  const char *from, *own;
} ms_scope;

/* Memory for those texts. */
typedef struct ms_scope_texts {
  struct ms_scope_texts *next;
  int64_t used, bytes; /* of text */
  char text[];
} ms_scope_texts;

/* A named input: one place for all phases. */
typedef struct ms_plan_input {
  char *name;
  ms_ref at;
} ms_plan_input;

/* A named output and where it lies after each phase (buffer -1: that phase does not compute it). */
typedef struct ms_plan_output {
  char *name;
  ms_ref at[MS_PHASES];
} ms_plan_output;

/* A plan's distinct kernel calls (prepare.c): a hash table of `slots`, NULL where empty. */
typedef struct ms_prepared {
  struct ms_prepared_call **slot;
  int n, slots;
} ms_prepared;

struct ms_plan {
  ms_handle handle;
  const ms_model *model; /* kept */
  ms_plan_config config; /* without node_of, which is the caller's */
  ms_topology topology;
  int replicas; /* that keep one copy of the state, as in the layout */
  int streams;  /* that its instructions are on: 0 .. streams - 1 */
  ms_plan_phase phase[MS_PHASES];
  ms_buffer *buffer;
  int buffers, buffers_capacity;
  int64_t arena_bytes[MS_ARENAS]; /* a block's */
  int64_t peers_bytes[MS_ARENAS]; /* what others count of MASTERS and REPLICATED */
  int64_t category_bytes[MS_CATEGORIES];
  ms_plan_input *input;
  ms_plan_output *output;
  int inputs, outputs;
  int *kept_unsharded;     /* [units] buffer of gathered weights that stay from micro-batch to micro-batch, or -1 */
  int *deferred_gradients; /* [units] buffer of gradients that wait for the last micro-batch, or -1 */
  char *has_gradient;      /* [params] 1: the loss reaches it; the update leaves the others out */
  /* EVALUATE: f32 [2], the loss summed over the ranks at [1], or [3] with the sum of its weights; buffer -1 without a
  ** loss */
  ms_ref evaluated;
  ms_ref norm; /* NORM: f32 [4] of step_norm */
  uint64_t fingerprint;
  char *manifest;  /* one line an item that all ranks must agree on; hashed into the fingerprint */
  ms_scope *scope; /* a hash table of scope_slots, NULL where empty */
  int scopes, scope_slots;
  ms_scope latest_scope; /* instructions in a row mostly have the same */
  ms_scope_texts *scope_texts;
  ms_places *places;
  ms_prepared prepared;
  double compile_seconds;
  ms_plan_pass pass[MS_PLAN_PASSES];
  char *dump;
};

/* Where the persistent buffers of a unit lie: shared by plans and states of one model. Bytes. */
typedef struct ms_state_layout {
  struct {
    int64_t master; /* of its chunks in STATE or REPLICATED; shared: of the whole unit in MASTERS */
    int64_t gradient, exp_avg, exp_avg_sq, ema; /* -1: none. SGD has its momentum in the place of exp_avg */
    int shared;
  } * unit;
  int moment_dtype;         /* of exp_avg and exp_avg_sq */
  int64_t squares;          /* f32 [units] sums of squares */
  int64_t loss_sum;         /* f32 [2]: of the step, and of its weights */
  int64_t norm;             /* f32 [4] */
  int64_t updates;          /* f32 [params] that each parameter had: none in a step in which it had no gradient */
  int replicas;             /* so many replicas keep masters and optimizer state together; 1: each has its own */
  int64_t bytes[MS_ARENAS]; /* of the arenas STATE, MASTERS and REPLICATED */
  int64_t peers[MS_ARENAS]; /* what others count of them */
  int64_t category_bytes[MS_CATEGORIES];
} ms_state_layout;
int ms_state_layout_make(const ms_model *model, const ms_plan_config *config, ms_state_layout *layout);
void ms_state_layout_free(ms_state_layout *layout);
/* The arena of a unit's masters, and of all optimizer state. */
int ms_state_master_arena(const ms_state_layout *layout, int unit);
int ms_state_optimizer_arena(const ms_state_layout *layout);
/* On which node each rank of the model's world is, as a plan is given it (nodes.c). Free it when done, after an error
** too. */
int ms_plan_topology(const ms_model *model, const ms_plan_config *config, ms_topology *topology);
/* How many neighbouring replicas are on one node, and so keep one copy of masters and optimizer state and share the
** work of updating it: the most that all of them can be divided into; 1 where each has its own. */
int ms_replicas_together(const ms_model *model, const ms_plan_config *config, const ms_topology *topology);
/* 1 when there are several shards, and the ranks of each shard group can map memory together. */
int ms_shards_together(const ms_model *model, const ms_plan_config *config, const ms_topology *topology);
/* "4 ranks on 1 node: 2 replicas share one copy of the state". */
void ms_plan_describe_nodes(const ms_plan *plan, ms_text *text);
/* The elements [*first, *first + n) of a unit's trainable chunks whose gradients a rank has, and which it updates;
** returns n: all, or a slice of them where `replicas` keep one copy. */
int64_t ms_unit_slice(const ms_model *model, const ms_unit *unit, int replicas, int64_t *first);
/* How many of them each rank has room for: the same on all. */
int64_t ms_unit_slice_room(const ms_unit *unit, int replicas);
/* 1 when a unit's masters are read in place by its shard group. */
int ms_plan_shares_masters(const ms_plan *plan, int unit);
/* Bytes from the beginning of a unit's master buffer to element `local` of its chunks, which lies in segment `s`. */
int64_t ms_master_offset(const ms_model *model, const ms_unit *unit, int shared, int s, int64_t local);
/* What this rank holds in all arenas. */
int64_t ms_plan_peak(const ms_plan *plan);
/* The most bytes of each category that are in use at once, [MS_CATEGORIES], each at an instruction of its own
** (cost_report.c). */
int ms_plan_category_peaks(const ms_plan *plan, double *bytes);

/* An empty plan of a model (plan.c). */
int ms_plan_new(const ms_model *model, const ms_plan_config *config, ms_plan **plan);
/* The ranges of all settings, and of what an optimizer is given (config.c). */
int ms_plan_check_config(const ms_plan_config *config);
int ms_plan_check_optimizer(const ms_plan_config *config);

/* One access of an instruction to a byte range of an arena. */
typedef struct ms_access {
  int arena, buffer;
  int64_t begin, end; /* bytes in the arena */
  int write;
} ms_access;
/* All accesses of an instruction, at most `capacity`; returns how many there are. An output that is read too
** (accumulate, optimizers) counts as a write. */
int ms_instr_accesses(const ms_plan *plan, const ms_instr *instr, ms_access *access, int capacity);
/* 1 when an instruction reads what a buffer held before it, or adds to it; 0 when it writes it, or leaves it alone
** (accesses.c). */
int ms_instr_needs(const ms_instr *instr, int buffer);
/* Since when each unit's gradient chunk holds something in a phase. begin: [units] the program position (events do not
** count) that first writes it, in a phase that needs nothing of what was there; 0 in any other: from the beginning. */
void ms_gradients_begin(const ms_plan *plan, int phase, int *begin);
/* How many accesses an instruction can have: the capacity that is always enough. */
int ms_instr_access_limit(const ms_instr *instr);
int ms_phase_access_limit(const ms_plan_phase *phase);
/* An input, or an output, of a kernel's instruction. */
ms_ref ms_instr_input(const ms_instr *instr, int i);
ms_ref ms_instr_output(const ms_instr *instr, int i);

/* Gives offsets to all buffers but STATE's; fills arena_bytes (layout.c). traced: the graph that keeps what was
** found. */
int ms_plan_layout(ms_plan *plan, const ms_graph *traced);
/* Inserts RECORD and WAIT instructions: only those that are needed (sync.c). */
int ms_plan_synchronize(ms_plan *plan, int phase);
/* What is known to be done when each instruction starts: clock[i * streams + s] instructions of stream s. MS_ERACE when
** an event is waited for that nothing above records (accesses.c). */
int ms_plan_clocks(const ms_plan *plan, int phase, int *clock);
/* MS_ERACE naming the two instructions when conflicting accesses can run unordered, an event is waited for that is
** never recorded before it in program order, or an access lies outside its arena (verify.c). */
int ms_plan_verify(const ms_plan *plan, int phase);
/* The lines of what ranks that share a state must agree on: mesh, seed, units, parameters, optimizer
** (fingerprint.c). */
void ms_plan_describe_state(const ms_model *model, const ms_plan_config *config, ms_text *text);
/* Fills manifest and fingerprint (fingerprint.c). */
int ms_plan_fingerprint(ms_plan *plan);

/* First rank (of the shard group) of the `ranks` neighbours that this rank belongs to. */
int ms_plan_group_start(const ms_plan *plan, int dim, int ranks);
const char *ms_stream_name(int stream);
const char *ms_phase_name(int phase);
const char *ms_category_name(int category);
const char *ms_arena_name(int arena);
const char *ms_coll_name(int kind);

#endif
