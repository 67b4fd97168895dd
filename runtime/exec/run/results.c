/* results.c - what a phase tells the host: the norm and the loss of a step, and the loss of an evaluation. */
#include <math.h>
#include <string.h>

#include "exec/bound/exec.h"

/* Copies a small result, f32 [n], to the host. */
static int read_result(const ms_exec *exec, const ms_ref *ref, int n, float *result) {
  return ms_state_copy_out(exec->state, result, ms_exec_pointer(exec, ref), n * (int64_t)sizeof *result);
}

ms_ref ms_exec_norm_at(const ms_plan *plan, int which) {
  const int group = which - MS_NORM_OF_GROUP;
  if (group < 0) return which ? plan->norm_of_synced : plan->norm;
  if (group >= plan->config.norm_groups) return (ms_ref){.buffer = -1};
  ms_ref at = plan->norms_of_groups;
  at.offset += 4 * MS_NORM_NUMBERS * group;
  at.info.dims[0] = MS_NORM_NUMBERS;
  return at;
}

static int read_norm(const ms_exec *exec, int which, float norm[MS_NORM_NUMBERS]) {
  const ms_ref at = ms_exec_norm_at(exec->plan, which);
  if (!exec->runner->norm) return read_result(exec, &at, MS_NORM_NUMBERS, norm);
  memcpy(norm, exec->runner->norm(exec, which), MS_NORM_NUMBERS * sizeof *norm);
  return MS_OK;
}

static int read_norms_of_groups(const ms_exec *exec, double *norms) {
  float norm[MS_NORM_NUMBERS];
  for (int g = 0; g < exec->plan->config.norm_groups; g++) {
    MS_TRY(read_norm(exec, MS_NORM_OF_GROUP + g, norm));
    norms[g] = norm[1];
  }
  return MS_OK;
}

int ms_exec_report_norm(const ms_exec *exec, ms_step_outputs *outputs) {
  float norm[MS_NORM_NUMBERS], synced[MS_NORM_NUMBERS];
  MS_TRY(read_norm(exec, 0, norm));
  synced[3] = norm[3];
  if (exec->plan->norm_of_synced.buffer >= 0) {
    MS_TRY(read_norm(exec, MS_NORM_OF_SYNCED, synced));
    norm[1] = (float)hypot(norm[1], synced[1]);
  }
  if (outputs)
    *outputs =
        (ms_step_outputs){.loss = norm[0], .grad_norm = norm[1], .divisor = norm[3], .divisor_of_synced = synced[3]};
  if (outputs) MS_TRY(read_norms_of_groups(exec, outputs->norms_of_groups));
  if (outputs && exec->plan->largest_logit.buffer >= 0) {
    float largest;
    MS_TRY(read_result(exec, &exec->plan->largest_logit, 1, &largest));
    outputs->max_logit = largest;
  }
  long long step = (long long)exec->scalars.step;
  if (!isfinite(norm[0])) return MS_FAIL(MS_ENONFINITE, "loss is %s at step %lld", ms_nonfinite_name(norm[0]), step);
  if (!isfinite(norm[1]))
    return MS_FAIL(MS_ENONFINITE, "gradient norm is %s at step %lld", ms_nonfinite_name(norm[1]), step);
  return MS_OK;
}

int ms_exec_report_evaluation(const ms_exec *exec, ms_step_outputs *outputs) {
  const ms_model *model = exec->plan->model;
  float totals[3];
  if (!outputs) return MS_OK;
  *outputs = (ms_step_outputs){0};
  if (exec->plan->evaluated.buffer < 0) return MS_OK;
  const int numbers = (int)ms_numel(&exec->plan->evaluated.info);
  MS_TRY(read_result(exec, &exec->plan->evaluated, numbers, totals));
  outputs->divisor = numbers == 3 ? (double)totals[2] : (double)ms_model_shards(model) * ms_model_replicas(model);
  outputs->loss = outputs->divisor == 0 ? 0 : (double)totals[1] / outputs->divisor;
  return MS_OK;
}
