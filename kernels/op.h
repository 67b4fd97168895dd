/* op.h - what a kernel is: the contract between the plan and the code that computes.
**
** A kernel is prepared once for fixed shapes (this is where primitives are made and workspace is asked for) and then run
** any number of times on pointers that the plan bound. It allocates nothing in run, takes no lock, and gives the same
** bits for the same inputs and the same number of threads. Tensors are contiguous, row-major.
*/
#ifndef MS_KERNELS_OP_H
#define MS_KERNELS_OP_H

#include "moonshard.h"

enum ms_activation { MS_ACT_NONE = 0, MS_ACT_RELU = 1, MS_ACT_GELU = 2, MS_ACT_GELU_TANH = 3, MS_ACT_SILU = 4 };

/* What a row of ops.def says of its op: exactly one flag of each of the first four groups, which graph/op_table.c asserts, and
** any of the last. */
enum {
  /* Who may make a node of it. */
  MS_OP_PUBLIC = 1 << 0,   /* recipes, by name */
  MS_OP_INTERNAL = 1 << 1, /* autodiff, rewrites and lowering only */
  MS_OP_MAKERS = MS_OP_PUBLIC | MS_OP_INTERNAL,

  /* What its kernel does. */
  MS_OP_COMPUTES = 1 << 2, /* work that a collective can hide behind */
  MS_OP_MOVES = 1 << 3,    /* casts, fills or adds what others computed: a collective beside it alone is exposed */
  MS_OP_ALIAS = 1 << 4,    /* nothing: output 0 is input 0's bytes under another shape, and no kernel runs */
  MS_OP_WORK = MS_OP_COMPUTES | MS_OP_MOVES | MS_OP_ALIAS,

  /* What its outputs hold before it runs. */
  MS_OP_WRITES = 1 << 5, /* anything: it writes every element */
  MS_OP_INOUT = 1 << 6,  /* what it reads, and updates */
  MS_OP_ADDS = 1 << 7,   /* as INOUT where the attribute add:i0 is 1, else as WRITES */
  MS_OP_OUTPUTS = MS_OP_WRITES | MS_OP_INOUT | MS_OP_ADDS,

  /* Whether every rank runs the same calls of it. */
  MS_OP_ALIKE = 1 << 8,          /* yes: calls are part of the plan's fingerprint */
  MS_OP_RANK_LOCAL = 1 << 9,     /* no: each rank on the parameters whose chunks it owns */
  MS_OP_REPLICA_LOCAL = 1 << 10, /* replicas that share one copy of the state run it on a slice each */
  MS_OP_RANKS = MS_OP_ALIKE | MS_OP_RANK_LOCAL | MS_OP_REPLICA_LOCAL,

  /* What else there is to know. */
  MS_OP_IDENTITY_IN_EVALUATION = 1 << 11, /* evaluate phases pass input 0 through */
  MS_OP_DRAWS_MASK =
      1 << 12, /* p:f0 (0: the identity), stream:i0 (0: one of its own), i1..i3 rows: kernels/batch_place.h */
  MS_OP_ADDS_LAST_INPUT = 1 << 13, /* its last input is optional, and added to output 0 */
  MS_OP_ACTIVATION_SHIFT = 16,     /* enum ms_activation of an activation or, where INTERNAL, its gradient */

  /* Two common rows: ops that only read inputs and write outputs, on every rank. */
  MS_OP_RECIPE = MS_OP_PUBLIC | MS_OP_COMPUTES | MS_OP_WRITES | MS_OP_ALIKE,
  MS_OP_ENGINE = MS_OP_INTERNAL | MS_OP_COMPUTES | MS_OP_WRITES | MS_OP_ALIKE
};
#define MS_OP_ACTIVATION(activation) ((activation) << MS_OP_ACTIVATION_SHIFT)

enum ms_op_id {
#define MS_OP(name, ...) MS_OP_##name,
#include "kernels/ops.def"
#undef MS_OP
  MS_OP_COUNT
};

/* What changes from step to step; one per exec, read by kernels through the call. */
typedef struct ms_scalars {
  double lr;
  int64_t step; /* 1 for the first */
  int micro_batches;
  uint64_t seed;
  ms_axis_part rows;
} ms_scalars;

/* What a kernel that runs apart from its caller (on a GPU) found wrong, for the caller to read later: the first finding
** stays. All zeros: nothing. */
typedef struct ms_fault {
  int32_t set;          /* 1: the rest is filled */
  int32_t op;           /* enum ms_op_id */
  int64_t value, limit; /* what was found; what it must be below, and not below zero */
} ms_fault;

/* Output o of a kernel may lie over its input i. No two outputs ever lie over one input. */
#define MS_OVER(o, i) (1u << (MS_MAX_INPUTS * (o) + (i)))

/* One bound use of a kernel. The shapes are fixed by prepare; the pointers by binding. On a device with memory of its own
** all data, the workspace, scalars and fault lie there: run only enqueues work that reads and writes them. */
typedef struct ms_kernel_call {
  int op; /* enum ms_op_id: kernels shared by rows switch on it in prepare, not per element */
  ms_attrs attrs;
  int inputs, outputs;
  ms_value_info in[MS_MAX_INPUTS];
  ms_value_info out[MS_MAX_OUTPUTS];
  int threads;             /* parts that may run at once, >= 1 (cpu/team.h) */
  int64_t workspace_bytes; /* set by prepare; 64-byte aligned scratch of that size is given to run */
  void *prepared; /* set by prepare; calls of equal op, attrs, shapes and threads that never run at once may share it */

  const void *in_data[MS_MAX_INPUTS];
  void *out_data[MS_MAX_OUTPUTS]; /* may equal one of in_data only where the kernel says in_place */
  void *workspace;
  const ms_scalars *scalars;
  void *stream; /* the device's, which run enqueues on, in order; NULL on the CPU, where run is done when it returns */
  ms_fault *fault; /* NULL on the CPU, where run returns the error */
} ms_kernel_call;

/* A tensor that is copied, cast or added with others by one launch: to = from, or to += from. f32 or bf16; sums are f32. */
typedef struct ms_move {
  const void *from;
  void *to;
  int64_t n; /* elements; 0: nothing is to be done */
  int from_dtype, to_dtype;
  int add; /* 1: to_dtype is MS_F32 */
} ms_move;

/* Who computes a call, where several could, and why not the first of them: static texts, because NULL where it is the first. */
typedef struct ms_computed {
  const char *by, *because;
} ms_computed;

typedef struct ms_kernel {
  int (*prepare)(ms_kernel_call *call); /* NULL: nothing to prepare, no workspace */
  int (*run)(const ms_kernel_call *call);
  void (*release)(void *prepared); /* NULL when prepare is NULL or leaves prepared NULL */
  unsigned in_place;               /* bits MS_OVER: which outputs may be written over which inputs of their size */
  /* Once for every bound call, before its first run, with the device open: what only the device can decide. It may allocate, wait
  ** and write to `prepared`, and leaves tensors and workspace as they are. NULL: nothing. */
  int (*bind)(const ms_kernel_call *call);
  ms_computed (*computed)(const ms_kernel_call *call); /* of a bound call, for traces; NULL: nobody else could */
} ms_kernel;

/* The CPU device's kernel of an op (kernels/cpu/table.c). Aliases have none: NULL. */
const ms_kernel *ms_cpu_kernel(int op);

/* Elements of a shape; 1 for a scalar. */
static inline int64_t ms_numel(const ms_value_info *info) {
  int64_t n = 1;
  for (int d = 0; d < info->ndim; d++) n *= info->dims[d];
  return n;
}

#endif
