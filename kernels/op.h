/* op.h - the contract between plans and kernels.
 *
 * A kernel is prepared once for fixed shapes (it creates its primitives and requests its workspace) and then run any
 * number of times on pointers that the plan has bound. `run` allocates nothing, takes no lock, and produces the same
 * bits for the same inputs and the same number of threads. Tensors are contiguous and row-major.
 */
#ifndef MS_KERNELS_OP_H
#define MS_KERNELS_OP_H

#include <stddef.h>

#include "moonshard.h"

enum ms_activation { MS_ACT_NONE = 0, MS_ACT_RELU = 1, MS_ACT_GELU = 2, MS_ACT_GELU_TANH = 3, MS_ACT_SILU = 4 };

/* Flags of an op's row in ops.def: exactly one flag from each of the first four groups (graph/op_table.c asserts it),
 * and any number from the last group. */
enum {
  /* Who can create a node. */
  MS_OP_PUBLIC = 1 << 0,   /* recipes, by name */
  MS_OP_INTERNAL = 1 << 1, /* autodiff, rewrites and lowering only */
  MS_OP_MAKERS = MS_OP_PUBLIC | MS_OP_INTERNAL,

  /* What the op does. */
  MS_OP_COMPUTES = 1 << 2, /* computes: a collective can hide behind it */
  MS_OP_MOVES = 1 << 3,    /* only casts, fills or adds: too short to hide a collective behind */
  MS_OP_ALIAS = 1 << 4,    /* no kernel runs: output 0 is the memory of input 0 with another shape */
  MS_OP_WORK = MS_OP_COMPUTES | MS_OP_MOVES | MS_OP_ALIAS,

  /* How it uses the previous contents of its outputs. */
  MS_OP_WRITES = 1 << 5, /* ignores them and writes every element */
  MS_OP_INOUT = 1 << 6,  /* reads and updates them */
  MS_OP_ADDS = 1 << 7,   /* as INOUT if the attribute add is 1, otherwise as WRITES */
  MS_OP_OUTPUTS = MS_OP_WRITES | MS_OP_INOUT | MS_OP_ADDS,

  /* Whether all ranks run the same calls. */
  MS_OP_ALIKE = 1 << 8,          /* yes; calls are part of the plan's fingerprint */
  MS_OP_RANK_LOCAL = 1 << 9,     /* no: each rank processes the parameters whose chunks it owns */
  MS_OP_REPLICA_LOCAL = 1 << 10, /* no: replicas that share one copy of the state each process a slice */
  MS_OP_RANKS = MS_OP_ALIKE | MS_OP_RANK_LOCAL | MS_OP_REPLICA_LOCAL,

  /* Other properties. */
  MS_OP_IDENTITY_IN_EVALUATION = 1 << 11, /* evaluate phases bypass it: the result is input 0 */
  MS_OP_DRAWS_MASK =
      1 << 12, /* random mask: the struct `mask`; p 0: identity, stream 0: a new one (kernels/batch_place.h) */
  MS_OP_ADDS_LAST_INPUT = 1 << 13, /* its optional last input is added to output 0 */
  MS_OP_COLLECTIVE =
      1 << 14, /* of the ranks of a mesh dimension: the struct `across`; its kernel is that of one rank */
  MS_OP_STOPS_GRADIENT = 1 << 15, /* its result counts as a constant in backward */
  MS_OP_ACTIVATION_SHIFT = 16,    /* enum ms_activation of an activation, or with INTERNAL of its gradient */
  MS_OP_ACTIVATIONS = 7 << 16,
  MS_OP_ANY_DTYPE = 1 << 19, /* moves whole elements, or casts: takes dtypes that other kernels have no loops for */
  MS_OP_SPARES = 1 << 20,    /* matrix products that can leave multiprocessors to collectives (ms_kernel_call.spared) */
  MS_OP_COPIES = 1 << 21,    /* can have one output more than its row says: output 0, rounded to bf16 */
  MS_OP_INFINITIES = 1 << 22, /* an infinity that it makes of finite inputs is a value, and not an overflow */

  /* Two common combinations: ops on every rank that only read inputs and write outputs. */
  MS_OP_RECIPE = MS_OP_PUBLIC | MS_OP_COMPUTES | MS_OP_WRITES | MS_OP_ALIKE,
  MS_OP_ENGINE = MS_OP_INTERNAL | MS_OP_COMPUTES | MS_OP_WRITES | MS_OP_ALIKE,
  MS_OP_ACROSS = MS_OP_INTERNAL | MS_OP_MOVES | MS_OP_WRITES | MS_OP_ALIKE | MS_OP_COLLECTIVE,
  /* Collectives that recipes write, in the parts of a graph that they divide by hand. */
  MS_OP_BY_HAND = MS_OP_PUBLIC | MS_OP_MOVES | MS_OP_WRITES | MS_OP_ALIKE | MS_OP_COLLECTIVE
};
#define MS_OP_ACTIVATION(activation) ((activation) << MS_OP_ACTIVATION_SHIFT)

/* The attributes of a node or a call, typed: `attrs.reduce.axis`. All members are 8 bytes, so equal attributes are
 * equal bytes. Programs write them as text, by name (ms_graph_op). */
typedef struct ms_op_attrs {
  int64_t out_dtype, add;
  union {
#define INT(name) int64_t name;
#define REAL(name) double name;
#define INTS(name, count) int64_t name[count];
#define MS_ATTRS(name, members) \
  struct {                      \
    members                     \
  } name;
#include "kernels/attributes.def"
#undef MS_ATTRS
#undef INTS
#undef REAL
#undef INT
  };
} ms_op_attrs;

enum ms_op_id {
#define MS_OP(name, ...) MS_OP_##name,
#include "kernels/ops.def"
#undef MS_OP
  MS_OP_COUNT
};

/* The rows of a micro-batch: row i is row first + i * step of the step's global batch. */
typedef struct ms_axis_part {
  int64_t first, step;
} ms_axis_part;

/* Values that change from step to step. One per executor; kernels read them through the call. */
typedef struct ms_scalars {
  double lr;
  int64_t step; /* 1 for the first step */
  int micro_batches;
  uint64_t seed;
  ms_axis_part rows;
  double muon_lr;
} ms_scalars;

/* A fault found by a kernel that runs asynchronously (on a GPU); the host reads it later. Only the first fault is kept.
 * All zeros: no fault. */
typedef struct ms_fault {
  int32_t set;                 /* 1: the other fields are set */
  int32_t op;                  /* enum ms_op_id */
  int64_t value, least, limit; /* the value found; valid values are least to limit - 1 */
} ms_fault;

/* Output o of a kernel, one of the first MS_OVER_OUTPUTS, can overwrite its input i. Two outputs never overwrite the
 * same input. */
enum { MS_OVER_OUTPUTS = 32 / MS_MAX_INPUTS };
#define MS_OVER(o, i) (1u << (MS_MAX_INPUTS * (o) + (i)))

/* One bound use of a kernel: prepare fixes the shapes, binding sets the pointers. On a device with its own memory,
 * all data, the workspace, scalars and fault are in device memory, and run only enqueues work that reads and writes
 * them. */
typedef struct ms_kernel_call {
  int op; /* enum ms_op_id; kernels shared by several rows branch on it once per call, not per element */
  ms_op_attrs attrs;
  int inputs, outputs;
  ms_value_info in[MS_MAX_INPUTS];
  ms_value_info out[MS_MAX_OUTPUTS];
  int threads;             /* upper limit of parts that run in parallel, at least 1 (cpu/team.h) */
  int spared;              /* on a GPU: multiprocessors that the products of a library leave to collectives, or 0 */
  int64_t workspace_bytes; /* set by prepare; run receives 64-byte aligned scratch memory of this size */
  void *prepared;          /* set by prepare; equal calls that never run concurrently can share it */

  const void *in_data[MS_MAX_INPUTS];
  void *out_data[MS_MAX_OUTPUTS]; /* can equal one of in_data only if in_place allows it */
  void *workspace;
  const ms_scalars *scalars;
  void *stream;    /* run enqueues on it, in order; NULL on the CPU, where run returns when the work is done */
  ms_fault *fault; /* NULL on the CPU, where run returns the error */
} ms_kernel_call;

/* Where a call of an op with MS_OP_COPIES writes its output 0 in bf16, too, or NULL. */
static inline void *ms_call_copy(const ms_kernel_call *call) {
#define MS_OP(name, min, max, outputs, ...) outputs,
  static const unsigned char of_row[] = {
#include "kernels/ops.def"
  };
#undef MS_OP
  const int own = of_row[call->op];
  return call->outputs > own ? call->out_data[own] : NULL;
}

/* One tensor of a launch that copies, casts or adds several tensors: to = from, or to += from. Both are [n], f32 or
 * bf16; the target of a sum is f32. Or f32 times a scale becomes f8e4m3, or f8e4m3 is copied. */
typedef struct ms_move {
  const void *from;
  void *to;
  int64_t n; /* elements; 0: nothing to do */
  int from_dtype, to_dtype;
  int add;            /* 1: add to `to`, whose dtype must be f32 */
  const float *scale; /* of codes that are made, in the device's memory */
} ms_move;

/* The most calls that run in one call of run_together, and that one of its launches takes. */
enum { MS_RUN_TOGETHER = 80, MS_LAUNCH_CALLS = 40 };

/* The implementation that computes a call, and the reason why it is not the preferred one: NULL if it is. Both are
 * static strings. */
typedef struct ms_computed {
  const char *by, *because;
} ms_computed;

typedef struct ms_kernel {
  int (*prepare)(ms_kernel_call *call); /* NULL: nothing to prepare and no workspace */
  int (*run)(const ms_kernel_call *call);
  void (*release)(void *prepared); /* NULL if prepare is NULL or never sets prepared */
  unsigned in_place;               /* MS_OVER bits: which outputs can overwrite which inputs of the same size */
  /* Runs once per bound call, before its first run and with the device open, for decisions that need the device. It can
   * allocate, wait and write to `prepared`, but must not touch tensors or workspace. NULL: nothing to do. */
  int (*bind)(const ms_kernel_call *call);
  ms_computed (*computed)(const ms_kernel_call *call); /* for profiles; NULL: only one implementation */
  /* Runs several bound calls of this kernel, none of which reads or writes what another writes, with fewer launches and
   * the same bits; at most MS_RUN_TOGETHER. NULL: each is run. */
  int (*run_together)(const ms_kernel_call *const *call, int calls);
  /* 1: a launch can take both calls, and with them what either goes with; plans know it, too. NULL without
   * run_together. */
  int (*joins)(const ms_kernel_call *a, const ms_kernel_call *b);
} ms_kernel;

/* The CPU kernel of an op (kernels/cpu/table.c); NULL for aliases, which have none. */
const ms_kernel *ms_cpu_kernel(int op);

/* The groups of parameters whose squares step_totals and step_norm have. */
static inline int64_t ms_step_groups(const ms_op_attrs *attrs) {
  return attrs->step.groups > 1 ? attrs->step.groups : 1;
}

/* The parts of the table that embedding and its gradient have one of. */
static inline int64_t ms_table_parts(const ms_op_attrs *attrs) {
  return attrs->table.parts > 1 ? attrs->table.parts : 1;
}

/* Number of elements of a shape; 1 for a scalar. */
static inline int64_t ms_numel(const ms_value_info *info) {
  int64_t n = 1;
  for (int d = 0; d < info->ndim; d++) n *= info->dims[d];
  return n;
}

#endif
