/* op.h - what a kernel is: the contract between the plan and the code that computes.
**
** A kernel is prepared once for fixed shapes (this is where primitives are made and workspace is asked for) and then run
** any number of times on pointers that the plan bound. It allocates nothing in run, takes no lock, and gives the same
** bits for the same inputs and the same number of threads. Tensors are contiguous, row-major.
*/
#ifndef MS_KERNELS_OP_H
#define MS_KERNELS_OP_H

#include "moonshard.h"

enum {
  MS_OP_ALIAS = 1,                 /* output 0 is input 0's bytes under another shape: no kernel runs */
  MS_OP_INTERNAL = 2,              /* made by autodiff, rewrites and lowering only */
  MS_OP_IDENTITY_IN_EVALUATION = 4 /* evaluate phases pass input 0 through */
};

enum ms_op_id {
#define MS_OP(name, ...) MS_OP_##name,
#include "kernels/ops.def"
#undef MS_OP
  MS_OP_COUNT
};

enum ms_activation { MS_ACT_NONE = 0, MS_ACT_RELU = 1, MS_ACT_GELU = 2, MS_ACT_GELU_TANH = 3, MS_ACT_SILU = 4 };

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
