/* price.h - a clock for plans: what a step takes on a described cluster, without running it.
 *
 * A part of moonshard.h, which explains the conventions. The Lua layer parses the text between the two ffi marks: it
 * contains no preprocessor directives, and no function returns a 64-bit value.
 *
 * A cluster is a few tables of numbers: what a device computes and reads in a second, and how long ranks take to
 * communicate inside a node and between nodes. The time of a kernel follows from its op, shapes and dtype
 * (price/kernel_time.c), that of a collective from its kind, bytes and ranks (price/collective_time.c). The plan's own
 * streams and events decide what overlaps (price/streams.c; price/inline.c on the CPU), so a price belongs to the plan
 * that would run.
 *
 * Times are in seconds, rates in bytes or floating-point operations per second.
 */
#ifndef MOONSHARD_PRICE_H
#define MOONSHARD_PRICE_H

#include <moonshard/base.h>
#include <moonshard/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ffi:begin */

/* ---- cluster ---------------------------------------------------------------------------------------------------- */

/* What a kernel's work is counted in. */
enum ms_kernel_shape {
  MS_SHAPE_PRODUCT = 0,   /* a matrix product; size: batch, m, n, k */
  MS_SHAPE_ATTENTION = 1, /* size: batch * heads, queries, keys, head dim */
  MS_SHAPE_OTHER = 2,     /* size: elements of the largest operand, elements of its last axis, 1, 1 */
  MS_SHAPES = 3
};

enum ms_kernel_variant {
  MS_VARIANT_TRANS_A = 1, /* of products */
  MS_VARIANT_TRANS_B = 2,
  MS_VARIANT_ADDS = 4,      /* to the result */
  MS_VARIANT_EPILOGUE = 8,  /* a bias, or an activation */
  MS_VARIANT_SHARED_B = 16, /* one b for the whole batch */
  MS_VARIANT_CAUSAL = 32,   /* of attention */
  MS_VARIANT_BACKWARD = 64
};

/* What the time of a kernel depends on; of a measured one, that time, too. */
typedef struct ms_kernel_work {
  int op;       /* its number: ms_op_find */
  int shape;    /* enum ms_kernel_shape */
  int dtype;    /* of its first floating-point operand */
  int variant;  /* flags of enum ms_kernel_variant */
  int threads;  /* that the plan allows it */
  double flops; /* as the op table counts them */
  double bytes; /* read and written, each once */
  double size[4];
  double seconds; /* that it was measured to take (ms_cluster.point); else 0 */
} ms_kernel_work;

/* Ways in which the ranks of a group communicate; a collective takes the fastest. `passes` is 2 for all_reduce, which
 * sums and then gathers, and 1 for the others; a step is the time from a rank to the next one. */
enum ms_link_algorithm {
  MS_LINK_RING = 0,  /* passes * (ranks - 1) steps, of which passes * (nodes - 1) lead to another node */
  MS_LINK_TREE = 1,  /* up and down a binary tree of nodes, and a chain inside each node */
  MS_LINK_HOSTS = 2, /* on the CPU: through memory inside a node, and by messages between nodes, where sums move */
  MS_LINK_SWITCH = 3 /* the switch inside a node sums and copies: a step a pass; between nodes a tree, of sums alone */
};
/* Kinds of collectives. Links are for the first three; an all_to_all takes those of reduce_scatter. */
enum { MS_LINK_ALL_GATHER = 1, MS_LINK_REDUCE_SCATTER = 2, MS_LINK_ALL_REDUCE = 4, MS_LINK_ALL_TO_ALL = 8 };

enum { MS_MAX_LINKS = 8 };

/* By default of one rank with no rates: every rate must be set. */
typedef struct ms_cluster {
  int struct_size; /* set by ms_config_default */
  int device;      /* enum ms_device_kind: how kernels are issued and collectives run */
  int ranks_per_node;
  double cores; /* cpu: processors of a node; its ranks share them */

  /* A device, or on the CPU what one core computes while all are busy. */
  double memory;          /* bytes */
  double peak[MS_DTYPES]; /* FLOP/s of products, by dtype (enum ms_dtype); 0: it has no products of this dtype */
  double clock;           /* the part of the peak clock that it keeps up in a long run: 0 to 1 */
  /* The rate of matrix products: peak * efficiency * filled * k / (k + k_half), where `filled` is the part of the
   * device's last wave of tiles that has work. Small products take smaller tiles, which fill a device better and
   * compute slower. */
  struct ms_product_rate {
    double efficiency;     /* of the peak, for the largest products */
    double tile_m, tile_n; /* of the result; 0: no tiles (the CPU) */
    double units;          /* tiles that run at once: a GPU's multiprocessors */
    double half_tile;      /* the part of its rate that a tile keeps when one side is halved */
    double k_half;         /* the inner size at which half of the rate is reached */
  } product;
  struct ms_attention_rate {
    double forward, backward; /* of the peak, for the longest sequences */
    double keys_half;         /* the number of keys at which half of that is reached */
    double causal;            /* the part of the work that a causal mask leaves: 0.5 to 1 */
  } attention;
  double memory_rate;  /* bytes/s */
  double memory_half;  /* bytes at which a kernel reads at half that rate */
  double kernel_start; /* of a kernel on the device */
  double issue;        /* of an instruction, by the thread that issues it (cuda) */
  double phase_gap;    /* between phases: the host waits, then starts the next one */
  double overlap;      /* the part of a kernel's rate that collectives in flight take: 0 to 0.9 */
  double step_gap;     /* of a step outside its phases: batches, records */

  /* seconds = start + (latency^p + transfer^p)^(1/p), with p = 1 / (1 - hidden). The latency is that of all steps. The
   * transfer is the time of the bytes at the slower of the rates inside and between nodes (HOSTS: at one after the
   * other). What one algorithm does by several protocols (a fast one for few bytes, another for many) is several links.
   *
   * A rank moves passes * bytes * (ranks - 1) / ranks, as does a node. Exceptions: through a switch a rank moves all
   * bytes once in an all_reduce, and a node passes * bytes * (nodes - 1) / nodes; in an all_to_all a rank sends each of
   * the others its part of `bytes` directly, so a node sends what all of its ranks have for other nodes; through
   * memory, the bytes that the work says. */
  struct ms_link {
    int algorithm;        /* enum ms_link_algorithm */
    int kinds;            /* flags MS_LINK_ALL_GATHER ...: collectives that can take it */
    int max_nodes;        /* the most nodes that it can span; 0: any number */
    double start;         /* of a collective */
    double start_between; /* more, if it spans several nodes */
    double step_inside;   /* from a rank to one of the same node */
    double step_between;  /* to one of another node */
    double hidden;      /* how far steps and transfer overlap: 0: they add up; towards 1: the longer one alone counts */
    double inside;      /* bytes/s of a rank, inside a node */
    double inside_pair; /* where each two ranks of a node have their own wires, bytes/s of those; 0: no limit */
    double between;     /* bytes/s of a node, in each direction: of all its ranks together; unused if max_nodes is 1 */
    double between_rank; /* the most that one of its ranks can use; 0: all of it */
    double log_between;  /* what each doubling of the nodes beyond two adds to the transfer between them, as a part */
    double processor;    /* HOSTS: processor time that a byte of the work's `wire` takes of its node, seconds: threads
                            that move bytes share the cores with those that compute; 0: none */
  } link[MS_MAX_LINKS];
  int links;
  const ms_kernel_work *point; /* [points] measured kernels, with their seconds; read during the call */
  int points;
  int point_size; /* sizeof *point of the program; not needed without points */
} ms_cluster;

/* The work of a kernel of a phase, by its number in ms_plan_dump; MS_EINVAL if that is not a kernel. */
MS_API int ms_plan_kernel_work(const ms_plan *plan, int phase, int instruction, ms_kernel_work *work, int size);
/* Seconds of a kernel on a device that runs nothing else. */
MS_API int ms_cluster_kernel_time(const ms_cluster *cluster, const ms_kernel_work *work, int size, double *seconds);

/* A collective: of `ranks` ranks, the same number on each of `nodes` nodes. */
typedef struct ms_collective_work {
  int kind; /* MS_LINK_ALL_GATHER, MS_LINK_REDUCE_SCATTER, MS_LINK_ALL_REDUCE or MS_LINK_ALL_TO_ALL */
  int ranks, nodes;
  int groups;    /* of the same kind that run at the same time on a node, and share its links to others */
  double bytes;  /* of the whole: all_gather's result, the input of the sums, what a rank of all_to_all has for all */
  double inside; /* HOSTS: bytes that this rank reads from memory (ms_traffic.inside) */
  double wire;   /* HOSTS: bytes that its node sends or receives, the larger number, in all groups (ms_traffic) */
} ms_collective_work;
/* Seconds of a collective whose ranks enter it at once: 0 for one rank. link: the index of the fastest, -1 for one
 * rank; may be NULL. MS_EUNSUPPORTED if no link can carry it. */
MS_API int ms_cluster_collective_time(const ms_cluster *cluster, const ms_collective_work *work, int size,
                                      double *seconds, int *link);

/* ---- price ------------------------------------------------------------------------------------------------------ */

typedef struct ms_price {
  double step; /* seconds of a step: all runs of its phases, and the gaps */
  double gaps;
  struct ms_price_phase {
    int runs;                            /* in a step */
    double seconds;                      /* of one run */
    double computing;                    /* in which a kernel runs */
    double waiting[MS_MAX_MESH_DIMS];    /* in which kernels wait for collectives, by mesh dimension */
    double issuing;                      /* in which kernels wait for the thread that issues them */
    double comm_bytes[MS_MAX_MESH_DIMS]; /* sent and received by this rank in one run, by mesh dimension, as in
                                            ms_plan_summary */
  } phase[MS_PHASES];                    /* by enum ms_phase */
  double flops;                          /* that the kernels of a step compute on this rank, with recomputation */
  double bytes;                          /* of this rank's memory that the plan uses: ms_plan_summary.peak_bytes */
  /* What the critical path of the step consists of, in seconds. */
  struct ms_price_critical {
    double kernels;
    double collectives[MS_MAX_MESH_DIMS]; /* by mesh dimension */
    double others;                        /* collectives of no mesh dimension */
  } critical;
} ms_price;
/* Prices a step of a number of micro-batches, for a plan of a rank on the cluster's kind of device. All ranks are
 * assumed to do what this one does. The price is that of a step that has the phase MS_PHASE_OUTER; outer: of how many
 * steps, from 0 to 1, one has it, which is how often the critical path has it. */
MS_API int ms_plan_price(const ms_plan *plan, const ms_cluster *cluster, int micro_batches, double outer,
                         ms_price *price, int size);

/* A kernel or collective of a phase; what follows `exposed` up to `waited` is its simulated time. */
typedef struct ms_price_event {
  int instruction, stream;   /* its number in ms_plan_dump */
  int kind;                  /* enum ms_instr_kind of plan/plan.h: 0 a kernel, 1 a collective */
  int mesh_dim;              /* of a collective; -1: none */
  int unit;                  /* of a collective; -1: none, as the totals of the step */
  int backward;              /* 1: of the backward pass; a collective: it starts after the first kernel of that */
  int exposed;               /* 1: a collective while which events let no kernel of this rank compute */
  int critical;              /* 1: on the critical path of the phase */
  int cause;                 /* the instruction whose end let this one begin; -1: none, it was issued just then */
  double issued, begin, end; /* seconds from the phase's start */
  double waited;             /* seconds in which kernels wait for this collective; of ms_price_phase.waiting */
  double flops, bytes;
  double also_bytes;        /* of `bytes`: of the all_reduce over replicas that a collective includes; else 0 */
  const char *name, *scope; /* op or collective; module or unit. The plan owns the texts */
} ms_price_event;
/* Kernels and collectives of a phase, in program order. rows is [capacity], `size` bytes each, and gets the first ones;
 * *n is their total number. cluster NULL: of a plan for any device, without times: critical and seconds are 0, and
 * cause is -1. */
MS_API int ms_plan_timeline(const ms_plan *plan, const ms_cluster *cluster, int phase, ms_price_event *rows, int size,
                            int capacity, int *n);

/* ffi:end */

#ifdef __cplusplus
}
#endif

#endif
