/* test_exec_ahead.c - streams of collectives that run ahead: between hosts, what is after a collective in flight is
 * started, too, so it can complete while a kernel runs. The exec is made by hand: three all-reduces, of which the last
 * waits for a kernel.
 */
#include "exec/bound/exec.h"

#include "tests/c/support/check.h"
#include "tests/c/support/ranks/reduction.h"

enum { GATHER = MS_STREAM_GATHER, SUMS = 3, COUNT_OF_SUM = 5000 };
enum { FIRST_IS_DONE, LAST_IS_DONE, KERNELS_ARE_DONE, EVENTS };

/* A kernel that takes until `entered` collectives of the communicator were entered and the last of them was left. */
typedef struct long_kernel {
  ms_kernel_call call; /* first: the kernel is called with its address */
  const ms_recorder_ring *ring;
  uint64_t entered, seen;
} long_kernel;

static int is_left(const ms_recorder_ring *ring) { return atomic_load(&ms_recorder_last(ring)->left) != 0; }

static int run_long(const ms_kernel_call *call) {
  long_kernel *kernel = (long_kernel *)call;
  const ms_recorder_ring *ring = kernel->ring;
  for (double end = ms_clock() + 20; ms_clock() < end; usleep(1000))
    if (atomic_load(&ring->head) >= kernel->entered && is_left(ring)) break;
  usleep(50000);
  kernel->seen = atomic_load(&ring->head);
  return MS_OK;
}

/* The delay before the first collective has passed when it ends. */
static int run_short(const ms_kernel_call *call) {
  (void)call;
  usleep(10000);
  return MS_OK;
}

typedef struct by_hand {
  ms_exec exec;
  ms_state state;
  ms_plan plan;
  ms_model model;
  _Atomic uint32_t event[EVENTS];
  long_kernel kernel;
  reduction sum[SUMS];
} by_hand;

static void add(ms_exec_stream *stream, ms_exec_instr instr) { stream->instr[stream->n++] = instr; }

static void add_sum(ms_exec_stream *stream, const reduction *sum) {
  add(stream, (ms_exec_instr){.kind = MS_INSTR_COLLECTIVE, .coll = &sum->coll, .comm = sum->comm});
}

static void make(by_hand *made, ms_exec_instr instr[2][8], ms_world *world, ms_comm *comm, double delay) {
  ms_exec *exec = &made->exec;
  ms_exec_stream *gather = &exec->phase[0].stream[GATHER], *compute = &exec->phase[0].stream[MS_STREAM_COMPUTE];
  for (int b = 0; b < SUMS; b++) {
    made->sum[b].comm = comm;
    prepare(&made->sum[b], world, everyone, b, COUNT_OF_SUM, 1);
  }
  made->state.world = world;
  made->plan.model = &made->model;
  made->plan.streams = MS_NAMED_STREAMS;
  *exec = (ms_exec){.state = &made->state,
                    .recorder = ms_world_recorder(world),
                    .plan = &made->plan,
                    .event = made->event,
                    .epoch = 1};
  exec->delays.before[GATHER] = delay;
  made->kernel.ring = ms_comm_ring(comm);
  made->kernel.entered = delay > 0 ? 1 : 2;
  gather->instr = instr[0];
  compute->instr = instr[1];
  add_sum(gather, &made->sum[0]);
  add(gather, (ms_exec_instr){.kind = MS_INSTR_RECORD, .event = FIRST_IS_DONE});
  add_sum(gather, &made->sum[1]);
  add(gather, (ms_exec_instr){.kind = MS_INSTR_WAIT, .event = KERNELS_ARE_DONE, .recorder = MS_STREAM_COMPUTE});
  add_sum(gather, &made->sum[2]);
  add(gather, (ms_exec_instr){.kind = MS_INSTR_RECORD, .event = LAST_IS_DONE});
  if (delay > 0) add(compute, (ms_exec_instr){.kind = MS_INSTR_KERNEL, .call = &made->kernel.call, .run = run_short});
  add(compute, (ms_exec_instr){.kind = MS_INSTR_KERNEL, .call = &made->kernel.call, .run = run_long});
  add(compute, (ms_exec_instr){.kind = MS_INSTR_WAIT, .event = FIRST_IS_DONE, .recorder = GATHER});
  add(compute, (ms_exec_instr){.kind = MS_INSTR_RECORD, .event = KERNELS_ARE_DONE});
  add(compute, (ms_exec_instr){.kind = MS_INSTR_WAIT, .event = LAST_IS_DONE, .recorder = GATHER});
}

typedef struct way {
  const ms_runner *runner;
  double delay; /* injected before each collective; 0: none */
} way;

static int run_by_hand(ms_world *world, void *context) {
  const way *how = context;
  static by_hand of_rank[MAX_HOST_RANKS];
  by_hand *made = &of_rank[ms_world_rank(world)];
  ms_exec_instr instr[2][8];
  ms_comm *comm;
  memset(made, 0, sizeof *made);
  MS_TRY(open_everyone(world, 0, &comm));
  make(made, instr, world, comm, how->delay);
  if (how->runner->open) MS_TRY(how->runner->open(&made->exec));
  int rc = how->runner->run(&made->exec, 0);
  if (how->runner->close) how->runner->close(&made->exec);
  MS_TRY(rc);
  EXPECT(made->kernel.seen == made->kernel.entered, "%d collectives were entered before the kernel ended, not %d",
         (int)made->kernel.seen, (int)made->kernel.entered);
  for (int b = 0; b < SUMS; b++) MS_TRY(check(&made->sum[b], everyone, b, 1));
  const ms_exec_cursor *cursor = &made->exec.cursor[GATHER];
  EXPECT(cursor->collectives == SUMS && cursor->instructions == made->exec.phase[0].stream[GATHER].n,
         "%d collectives and %d instructions were counted", (int)cursor->collectives, (int)cursor->instructions);
  EXPECT(cursor->in_flight == 0 && ms_comm_free(comm) == MS_COMM_QUEUE, "%d are in flight", cursor->in_flight);
  ms_comm_close(comm);
  return MS_OK;
}

static void run_over_hosts(way how) { run_ranks_on_hosts(&two_by_two, &ms_transport_tcp, run_by_hand, &how); }

static void H5_collectives_between_hosts_follow_each_other_while_a_kernel_runs(void **state) {
  (void)state;
  run_over_hosts((way){.runner = &ms_inline_runner});
  run_over_hosts((way){.runner = &ms_threads_runner});
}

/* The delay is one between a collective and the next. */
static void H5_a_stream_with_a_delay_on_purpose_does_not_run_ahead(void **state) {
  (void)state;
  run_over_hosts((way){.runner = &ms_inline_runner, .delay = 1e-3});
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(H5_collectives_between_hosts_follow_each_other_while_a_kernel_runs),
      TEST(H5_a_stream_with_a_delay_on_purpose_does_not_run_ahead),
  };
  return cmocka_run_group_tests_name("exec ahead", tests, NULL, NULL);
}
