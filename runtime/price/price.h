/* price.h - what the files of this folder have in common: the cost of an instruction, and simulated time.
 *
 * cluster.c checks a description and its links. kernel_work.c and kernel_time.c give the time of a kernel,
 * collective_time.c that of a collective, and costs.c both for every instruction of a phase. A simulator then runs the
 * phase: streams.c for devices that execute streams by themselves, inline.c for the CPU, whose thread runs kernels and
 * collectives in turn. price_step.c adds the phases up to a step.
 */
#ifndef MS_PRICE_PRICE_H
#define MS_PRICE_PRICE_H

#include "base/config.h"
#include "plan/plan.h"

typedef struct ms_link ms_link; /* a part of ms_cluster */

/* What the kernels of an op are counted in: enum ms_kernel_shape; -1: there is no such op. */
int ms_op_kernel_shape(int op);

/* Declares `own` and copies the caller's description to it. */
#define MS_TAKE_CLUSTER(own, given) MS_TAKE_CONFIG(ms_cluster, own, given)

/* MS_EINVAL, naming the field and the link's number, if a number is out of range. */
int ms_cluster_check(const ms_cluster *cluster);
int ms_link_check(const ms_link *link, int number);
int ms_links_check(const ms_cluster *cluster);
/* The i-th measured kernel, which is as long as the caller says. */
static inline const ms_kernel_work *ms_cluster_point(const ms_cluster *cluster, int i) {
  return (const ms_kernel_work *)(const void *)((const char *)cluster->point + (int64_t)i * cluster->point_size);
}

/* What an instruction takes. */
typedef struct ms_cost {
  double work;     /* of its stream: a kernel; the part of a collective in which it does not use a link, or on the CPU
                      the part that its rank's thread computes */
  double transfer; /* then, of a link that it has for itself */
  double taken;    /* the part of every computing core that moving these bytes takes meanwhile: 0 to 0.5 (cpu) */
  int between;     /* 1: that link leads to other nodes */
  int joined;      /* 1: a kernel in the launch of an earlier one, which the host has issued with that */
} ms_cost;

/* The costs of a phase's instructions, [phase.n]; the caller frees them. */
int ms_price_costs(const ms_plan *plan, const ms_cluster *cluster, int phase, ms_cost **costs);
int ms_kernel_work_of(const ms_plan *plan, const ms_kernel_call *call, ms_kernel_work *work);
/* MS_EINVAL if a number of the work is out of range. */
int ms_kernel_work_check(const ms_kernel_work *work);
/* Seconds of a kernel on a cluster that was checked: alone, and in a launch that others have started, which only
 * kernels that move bytes share. */
int ms_kernel_time_of(const ms_cluster *cluster, const ms_kernel_work *work, double *alone, double *joined);

/* When an instruction ran. */
typedef struct ms_moment {
  double issued, begin, end; /* seconds from the start of the phase */
  double waited;             /* seconds in which no kernel ran because of this collective */
  int cause;                 /* the instruction whose end let it begin; -1: none */
} ms_moment;

/* Collectives that outlast their phase: those that UPDATE leaves in flight, in order. */
typedef struct ms_outlasting {
  const ms_plan_coll *coll;
  double end;   /* seconds from the start of the next phase */
  double taken; /* as of its cost, while its bytes move */
} ms_outlasting;

typedef struct ms_simulated {
  ms_moment *moment;                /* [phase.n] */
  double end;                       /* when all streams have finished */
  double waiting[MS_MAX_MESH_DIMS]; /* in which no kernel ran because of collectives of a mesh dimension */
  double issuing;                   /* ... because the host had not issued one */
  ms_outlasting *outlasting;
  int n_outlasting, outlasting_capacity;
} ms_simulated;
void ms_simulated_free(ms_simulated *simulated);

/* Runs a phase in simulated time. before: what the phase before left in flight; n_outlasting 0: nothing. */
int ms_simulate_inline(const ms_plan *plan, int phase, const ms_cost *cost, const ms_simulated *before,
                       ms_simulated *out);
/* plans: of `ranks` ranks, all ranks of their world in order, or one that stands for all. out: [ranks]. */
int ms_simulate_streams(const ms_plan *const *plans, int ranks, const ms_cluster *cluster, int phase,
                        const ms_cost *const *costs, ms_simulated *out);

#endif
