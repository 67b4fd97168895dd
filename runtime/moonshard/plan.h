/* plan.h - a training step as a static list of instructions: its settings, its compiler, and what it costs.
 *
 * A part of moonshard.h, which explains the conventions. The Lua layer parses the text between the two ffi marks: it
 * contains no preprocessor directives, and no function returns a 64-bit value.
 */
#ifndef MOONSHARD_PLAN_H
#define MOONSHARD_PLAN_H

#include <moonshard/base.h>
#include <moonshard/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ffi:begin */

/* ---- plan ------------------------------------------------------------------------------------------------------- */

typedef struct ms_plan ms_plan;

enum ms_phase {
  MS_PHASE_FIRST = 0,    /* forward and backward of the first micro-batch: gradients are written */
  MS_PHASE_NEXT = 1,     /* forward and backward of each further micro-batch: gradients are added */
  MS_PHASE_LAST = 2,     /* replaces NEXT for the last micro-batch if ms_plan_config.sync is not EVERY */
  MS_PHASE_NORM = 3,     /* loss and gradient norm over the mesh */
  MS_PHASE_UPDATE = 4,   /* clipping and optimizer */
  MS_PHASE_EVALUATE = 5, /* forward only */
  MS_PHASE_OUTER = 6,    /* right after UPDATE, in plans with MS_OUTER_APPLY: the outer step of local SGD */
  /* Gathers the weights that stay gathered (MS_RESHARD_RUN). An exec runs it by itself, before the first FIRST or
   * EVALUATE, and before the next one after they were written or the rules that place them changed. */
  MS_PHASE_GATHER = 7,
  MS_PHASES = 8
};

/* In which micro-batches gradients are summed over ranks. Until then they are kept, and added up, in f32. */
enum ms_sync {
  MS_SYNC_EVERY = 0, /* in every one: least memory */
  MS_SYNC_SHARD = 1, /* over the shards in every one, over the replicas in the last one */
  MS_SYNC_LAST = 2   /* in the last one: unsharded gradients are kept until then */
};

/* What memory is used for. */
enum ms_category {
  MS_CAT_PARAMETERS = 0,
  MS_CAT_OPTIMIZER = 1,
  MS_CAT_GRADIENTS = 2,
  MS_CAT_GATHERED = 3,
  MS_CAT_ACTIVATIONS = 4,
  MS_CAT_WORKSPACE = 5,
  MS_CAT_COMMUNICATION = 6,
  MS_CATEGORIES = 7
};

/* What a plan does for units with a fragment (ms_unit_config.fragment), besides their local steps: parts of the outer
 * step of the units with ms_plan_config.outer_fragment. SEND sums what the replicas' weights moved since the last sync;
 * APPLY takes the outer optimizer's step with the sum. Without outer_delay a plan does both or none, in OUTER. With
 * outer_delay SEND is in FIRST, after its kernels, for the weights as the step before left them; the state keeps the
 * sum until a later step, or the same one, applies it. */
enum ms_outer { MS_OUTER_NONE = 0, MS_OUTER_SEND = 1, MS_OUTER_APPLY = 2 };

/* How Muon's learning rate depends on the shape of a matrix: times sqrt(max(1, rows / columns)); times
 * 0.2 sqrt(max(rows, columns)), which gives updates of AdamW's size (these two as in PyTorch); or times
 * sqrt(max(rows, columns)), as Megatron's scale mode `spectral`. */
enum ms_muon_adjust { MS_MUON_ORIGINAL = 0, MS_MUON_MATCH_RMS_ADAMW = 1, MS_MUON_SPECTRAL = 2 };

/* What QK-clip scales of a parameter whose rows are those of heads, [heads rows,columns] or [heads rows]. The output
 * `output` of the graph, f32, has the largest attention scores of a micro-batch; of head h those at
 * at + h shared ... + shared - 1: a head of keys has those of all query heads that share it. If the largest m of them
 * is above the threshold, rows [from, middle) of the head are multiplied by (threshold / m)^power, and rows [middle,
 * to) by (threshold / m)^rest_power. */
typedef struct ms_logit_clip {
  int param;
  const char *output;
  int64_t at, heads, shared;
  int64_t from, middle, to;
  double power, rest_power;
} ms_logit_clip;

enum { MS_MAX_NORM_GROUPS = 16 };

/* Communicated bytes are doubles, because an all-reduce over n ranks counts 2 (n - 1) / n of its buffer. */
typedef struct ms_plan_summary {
  int instructions;
  int collectives[MS_PHASES];
  int64_t bytes[MS_CATEGORIES]; /* what the arenas reserve for each category; adds up to peak_bytes */
  /* The most bytes of each category that are in use at once. Each can be at a different instruction, and categories
   * share memory, so these add up to more than peak_bytes. */
  int64_t fullest[MS_CATEGORIES];
  int64_t peak_bytes; /* of all arenas of this rank */
  uint64_t fingerprint;
  double flops;                        /* of one micro-batch, forward and backward, without recomputation */
  double comm_bytes[MS_MAX_MESH_DIMS]; /* sent and received by this rank in a step of ms_plan_config.micro_batches */
  double compile_ms;
  /* The first instruction at which the most bytes are in use. The arenas can be larger, because there are gaps between
   * buffers, and arenas are fullest at different instructions. The plan owns the texts. */
  struct ms_peak {
    int phase, instruction, backward;          /* instruction: its number in ms_plan_dump; -1: the plan has none */
    const char *op, *scope;                    /* scope: the module, or the unit of a collective */
    int64_t bytes[MS_CATEGORIES], total_bytes; /* in use there; MS_PLAN_PEAK lists the buffers */
    /* A lower bound for any placement of the buffers: the state, plus the most that is in use at one instruction of
     * each kind of memory (the rank's own, its group's, that of smaller groups). Gradient chunks always exist; until
     * they are written, activations that are not larger than all of them together can use their memory. */
    int64_t min_bytes;
  } peak;
} ms_plan_summary;

/* Compiles a plan for the rank that was passed to ms_model_shard. MS_ERACE if the verifier rejects the result. */
MS_API int ms_plan_compile(const ms_graph *graph, const ms_plan_config *config, ms_plan **plan);
/* Moves what compilations of `earlier` have left for the next one to `graph`, if both are the same program over alike
 * parameters, divided alike over tensor and context: *taken is 1. Their models can be on other meshes, as in a list of
 * prices, whose plans then begin with lowering. Changes no plan. *taken is 0 for other graphs, and for those that have
 * been compiled. Both models must have been sharded. */
MS_API int ms_graph_take_compiled(ms_graph *graph, ms_graph *earlier, int *taken);
/* What a state of this plan has on this rank of a parameter, and of its optimizer state. */
MS_API int ms_plan_describe(const ms_plan *plan, int param, ms_tensor_info *info, int size);
/* Who orthogonalises a parameter in UPDATE: part 0, 1, ... of its matrices. *rank: of the world; -1: there is no such
 * part, as of a parameter that does not take Muon or has no gradient. *flops: of that part. */
MS_API int ms_plan_owner(const ms_plan *plan, int param, int part, int *rank, double *flops);
MS_API int ms_plan_summarize(const ms_plan *plan, ms_plan_summary *summary, int size);
/* What a rank, or all ranks of a node, move in collectives, in bytes. Inside a node a rank reads what others have
 * written, as ms_plan_summary.comm_bytes counts it. Between nodes each byte crosses a link once for a whole node: with
 * buffers of S bytes over H equal nodes, each node sends and receives (H - 1) / H S for an all-gather or a
 * reduce-scatter, and twice that for an all-reduce. On cuda, where NCCL chooses the algorithm, it is the least that any
 * algorithm can send. Messages by which ranks compare what they enter are not included. */
typedef struct ms_traffic {
  double inside, sent, received; /* sent to and received from other nodes */
} ms_traffic;
/* What a step of ms_plan_config.micro_batches moves over a dimension of the mesh, by this rank and by all ranks of its
 * node together, each of `size` bytes. */
MS_API int ms_plan_traffic(const ms_plan *plan, int mesh_dim, ms_traffic *rank, ms_traffic *node, int size);
/* The plan as text (json 0), or as one JSON object. The plan owns the text, which is valid until the next call. */
MS_API int ms_plan_dump(ms_plan *plan, int json, const char **text);

/* ---- plan: costs ------------------------------------------------------------------------------------------------ */

/* What a unit costs this rank, in one phase and in state. */
typedef struct ms_unit_cost {
  int gathers, gathers_again;                   /* all-gathers of its weights; those after the first of the phase */
  int64_t gathered_bytes, gathered_again_bytes; /* received by them */
  double reduced_bytes;                         /* sent and received to sum its gradients over ranks */
  int64_t kept_bytes;                           /* gathered weights, or a shard of them, kept for backward */
  int64_t ahead_bytes; /* the most bytes of later units' weights that are already gathered while it computes */
  int64_t parameter_bytes, gradient_bytes, optimizer_bytes;
  /* Of copies in bf16, also in parameter_bytes; 0 where replicas shard the optimizer, whose
   * chunks are in bf16 anyway. */
  int64_t copy_bytes;
  /* What the phase moves for it: to gather its weights, the part of that in gathers after the first of the phase, and
   * to sum its gradients over ranks. */
  ms_traffic gathered, gathered_again, reduced;
} ms_unit_cost;
/* MS_EINVAL if the plan does not have the phase (enum ms_phase), or the model the unit. */
MS_API int ms_plan_unit_cost(const ms_plan *plan, int phase, int unit, ms_unit_cost *cost, int size);
/* Bytes of activations that the forward pass of a module, and of the modules in it, keeps for backward; module "": of
 * all. */
MS_API int ms_plan_kept_activations(const ms_plan *plan, const char *module, int64_t *bytes);

/* ---- plan: lists ------------------------------------------------------------------------------------------------- */

/* What a plan lists, and the struct of a row. */
enum ms_plan_rows {
  MS_PLAN_PASSES = 0,         /* ms_plan_pass: the passes that made it, in order */
  MS_PLAN_CONVERSIONS = 1,    /* ms_plan_conversion: of a training step, in program order */
  MS_PLAN_CHUNKED_LOSSES = 2, /* ms_chunked_loss: of a training step, in program order */
  MS_PLAN_PEAK = 3,           /* ms_peak_buffer: those in use at ms_plan_summary.peak */
  /* struct ms_peak: what is in use from an instruction on, until that of the next row, in program order: of the first
   * instruction of each phase, and of those at which a category changes. min_bytes is 0. */
  MS_PLAN_MEMORY = 4
};

/* A pass of the compiler: its time, and the plan's size before [0] and after [1] it. nodes: of the graphs for training
 * and evaluation. bytes: the sum of all buffers until they are laid out; then the peak. */
typedef struct ms_plan_pass {
  const char *name; /* "lower" */
  int cached;       /* 1: the result was cached by an earlier plan of the same graph, or of one alike */
  double ms;
  int nodes[2], instructions[2], events[2], buffers[2];
  int64_t bytes[2];
} ms_plan_pass;

/* A change of a value's placement on the ranks of a mesh dimension that divides layers. */
typedef struct ms_plan_conversion {
  const char *scope;                    /* the module that needs it; of a sum: the module that made the summands */
  int mesh_dim;                         /* the mesh dimension */
  const char *forward, *backward;       /* ops: "reduce_scatter", "all_gather"; "": the gradient needs none */
  char from[64], to[64];                /* "partial", "shard of axis 1" */
  ms_value_info value;                  /* of all ranks together */
  double forward_bytes, backward_bytes; /* that a rank sends and receives in a micro-batch, as in ms_unit_cost; what
                                           recomputation repeats is not counted again */
  int regathered;                       /* 1: backward gathers it once more, which backward_bytes includes */
} ms_plan_conversion;

/* A loss that makes the logits of a linear layer for some rows at a time (attribute fused of cross_entropy). */
typedef struct ms_chunked_loss {
  int64_t rows, classes;             /* of this rank, in a micro-batch */
  int64_t chunks, chunk;             /* how many, of how many rows; the last can have fewer */
  int64_t logits_bytes, whole_bytes; /* of a chunk's logits, and of all rows' */
  int again;                         /* 1: backward makes them again */
} ms_chunked_loss;

/* A buffer; none of state, but for gradient chunks. */
typedef struct ms_peak_buffer {
  int category; /* enum ms_category */
  int64_t bytes;
  const char *label, *scope; /* label: its op or unit; scope: the module or unit that wrote it first */
} ms_peak_buffer;

/* Lists `what` (enum ms_plan_rows): rows is [capacity] of its struct, `size` bytes each, and gets the first ones; *n is
 * their total number. A plan that does not train has the conversions and losses of evaluation. The plan owns the texts.
 */
MS_API int ms_plan_list(const ms_plan *plan, int what, void *rows, int size, int capacity, int *n);

/* ffi:end */

#ifdef __cplusplus
}
#endif
#endif
