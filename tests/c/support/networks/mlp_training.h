/* mlp_training.h - the network of mlp.h trained for some steps on made-up data, on any mesh: what tests of runs
 * compare.
 *
 * The global batch is the same whatever the mesh: every rank takes its slice, and micro-batches slice that again.
 */
#ifndef MS_TESTS_MLP_TRAINING_H
#define MS_TESTS_MLP_TRAINING_H

#include "exec/tensors/params.h"
#include "tests/c/support/networks/mlp.h"
#include "tests/c/support/ranks/ranks.h"

enum { TRAINING_STEPS = 5, TRAINING_PARAMS = 64, TRAINING_ELEMENTS = 1 << 14 };

typedef struct training_config {
  mlp_config net; /* net.batch: rows of one micro-batch of one rank, set by train() */
  ms_plan_config plan;
  int global_batch, micro_batches;
  int graphs; /* phases are captured and replayed: on the device cuda */
} training_config;

/* Everything that training gave, written by rank 0. */
typedef struct training_result {
  double loss[TRAINING_STEPS], grad_norm[TRAINING_STEPS], evaluated;
  int params;
  int64_t numel[TRAINING_PARAMS];
  float initial[TRAINING_ELEMENTS], final[TRAINING_ELEMENTS],
      gradient[TRAINING_ELEMENTS]; /* one parameter after another */
  ms_exec_counters counters;
  ms_traffic traffic[2]; /* by dimension of the mesh, like counters */
  ms_plan_summary summary;
  int64_t arena_bytes;
} training_result;

/* A rank's engine objects. */
typedef struct rank_engine {
  mlp net;
  ms_plan *plan;
  ms_state *state;
  ms_exec *exec;
} rank_engine;

/* In a forked rank: a failed check ends the process, since cmocka's jump would go on with the test program there. */
void abort_on_failed_checks(void);
training_config training_default(int replicate, int shard);
/* The same over replicate x shard x tensor. */
training_config training_divided(int replicate, int shard, int tensor);
/* Row `row` of step `step` of the global data: x [inputs], returns the class. */
int training_row(const mlp_config *net, int step, int row, float *x);
/* Compiles and binds for this rank; engine_close releases in an arbitrary order. */
void engine_open(ms_world *world, const training_config *config, rank_engine *engine);
void engine_close(rank_engine *engine);
/* Writes the inputs of a micro-batch. */
void engine_feed(rank_engine *engine, const training_config *config, int rank, int step, int micro_batch);
/* One whole training step. */
void engine_step(rank_engine *engine, const training_config *config, int rank, int step, ms_step_outputs *outputs);
/* Trains on forked ranks, as many as the mesh has. The result is shared memory: free it with training_free. */
training_result *train(const training_config *config);
void training_free(training_result *result);

#endif
