/* nonfinite.c - finds the first value that is not finite: in parameters and inputs, then in every kernel's output
 * during phase FIRST, then in the summed gradients, by parameter. The ranks agree on the earliest finding, so all
 * report the same.
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "base/error.h"
#include "exec/exec.h"
#include "exec/tensors/params.h"
#include "exec/tensors/stored.h"
#include "shard/divided.h"

enum { TEXT_BYTES = 896 };
/* Positions before and after those of the program's instructions. */
enum { AT_PARAMETERS = -2, AT_INPUTS = -1, AT_GRADIENTS = INT_MAX - 1, NOWHERE = INT_MAX };

struct ms_exec_finder {
  int position; /* of the finding: an instruction of FIRST, or one of the above */
  char text[TEXT_BYTES];
};

/* Index of the first NaN or infinity, or -1. */
static int64_t find_in(const void *data, int dtype, int64_t n, double *value) {
  enum { BLOCK = 512 }; /* elements widened at a time */
  const ms_dtype_row *row = ms_dtype_row_of(dtype);
  float x[BLOCK];
  for (int64_t begin = 0; begin < n; begin += BLOCK) {
    const int64_t count = n - begin < BLOCK ? n - begin : BLOCK;
    row->widen((const char *)data + begin * row->info.size, count, x);
    for (int64_t i = 0; i < count; i++) {
      if (isfinite(x[i])) continue;
      *value = x[i];
      return begin + i;
    }
  }
  return -1;
}

/* The same for a tensor in an arena. */
static int find_in_arena(const ms_exec *exec, void *tensor, int dtype, int64_t n, int64_t *at, double *value) {
  void *data;
  MS_TRY(ms_state_view(exec->state, tensor, n * ms_dtype_size(dtype), &data));
  *at = find_in(data, dtype, n, value);
  return MS_OK;
}

/* The same for a parameter that is kept in few bits. */
static int find_in_stored(const ms_exec *exec, const ms_elements *owned, int64_t *at, double *value) {
  enum { PIECE = 1 << 14 };
  float *x = ms_calloc(PIECE, sizeof *x);
  int rc = x ? MS_OK : MS_ENOMEM;
  *at = -1;
  for (int64_t n, first = 0; first < owned->count && *at < 0 && !rc; first += n) {
    n = owned->count - first < PIECE ? owned->count - first : PIECE;
    rc = ms_stored_read(exec->state, owned, first, n, x);
    const int64_t found = rc ? -1 : find_in(x, MS_F32, n, value);
    if (found >= 0) *at = first + found;
  }
  free(x);
  return rc;
}

const char *ms_nonfinite_name(double value) { return isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"; }

/* ", summed in i8 over shard," of the gradients of a unit that are sent in few bits: of such a sum a whole block is not
 * finite where one element is not. */
static void few_bits_text(const ms_model *model, int unit, char text[64]) {
  const ms_unit_config *config = &model->unit[unit].config;
  const int over_shard = ms_unit_quantises_shards(model, unit);
  *text = '\0';
  if (over_shard || ms_unit_is_quantised(model, unit))
    snprintf(text, 64, ", summed in %s over %s,",
             ms_dtype_name(over_shard ? config->shard_dtype : config->replicate_dtype),
             over_shard ? "shard" : "replicate");
}

static int find_in_parameters(const ms_exec *exec, ms_exec_finder *finder, int what, int position) {
  const ms_model *model = exec->plan->model;
  for (int i = 0; i < model->params && finder->position == NOWHERE; i++) {
    const ms_param *p = &model->param[i];
    ms_elements owned;
    const ms_division part = ms_param_division(model, p, model->dim[MS_DIM_TENSOR].place);
    double value;
    int64_t at, run;
    if (position == AT_GRADIENTS && p->config.frozen) continue;
    MS_TRY(ms_params_find(exec->state, i, what, &owned));
    if (ms_storage_is_coded(owned.dtype)) MS_TRY(find_in_stored(exec, &owned, &at, &value));
    else MS_TRY(find_in_arena(exec, owned.data, owned.dtype, owned.count, &at, &value));
    if (at < 0) continue;
    const char *kind = "parameter";
    char text[64] = "";
    if (position == AT_GRADIENTS) {
      few_bits_text(model, p->unit, text);
      kind = *text ? "the gradient of" : "the summed gradient of";
    }
    finder->position = position;
    snprintf(finder->text, TEXT_BYTES, "%s %s%s holds %s at element %lld", kind, p->name, text,
             ms_nonfinite_name(value), (long long)ms_division_index(&part, owned.first + at, &run));
  }
  return MS_OK;
}

static void find_in_inputs(ms_exec *exec, ms_exec_finder *finder) {
  for (int i = 0; i < exec->plan->inputs && finder->position == NOWHERE; i++) {
    const ms_plan_input *input = &exec->plan->input[i];
    double value;
    char shape[128];
    if (!ms_dtype_row_of(input->at.info.dtype)->widen) continue;
    int64_t at = find_in(ms_exec_input_at(exec, i), input->at.info.dtype, ms_numel(&input->at.info), &value);
    if (at < 0) continue;
    finder->position = AT_INPUTS;
    snprintf(finder->text, TEXT_BYTES, "input %s holds %s at element %lld of %s", input->name, ms_nonfinite_name(value),
             (long long)at, ms_shape_text(&input->at.info, shape));
  }
}

/* 1 for a kernel that only adds to a unit's gradients, such as what other ranks have sent
 * (kernels/formats/quantised_sum.h): the search of the gradients, which is by parameter, says more about its output. */
static int adds_to_gradients(const ms_exec *exec, const ms_instr *source) {
  enum { SUM = MS_OP_INTERNAL | MS_OP_MOVES | MS_OP_ADDS };
  const int category = exec->plan->buffer[source->out[0].buffer].category;
  return (ms_op_row_of(source->call->op)->flags & SUM) == SUM &&
         (category == MS_CAT_GRADIENTS || category == MS_CAT_COMMUNICATION);
}

static int inspect(ms_exec *exec, int phase, const ms_exec_instr *instr) {
  ms_exec_finder *finder = exec->finder;
  const ms_kernel_call *call = instr->call;
  const ms_instr *source = &exec->plan->phase[phase].instr[instr->source];
  if (adds_to_gradients(exec, source)) return MS_OK;
  for (int o = 0; o < call->outputs && finder->position == NOWHERE; o++) {
    double value;
    int64_t at = -1;
    char shape[128];
    if (ms_dtype_row_of(call->out[o].dtype)->widen)
      MS_TRY(find_in_arena(exec, call->out_data[o], call->out[o].dtype, ms_numel(&call->out[o]), &at, &value));
    if (at < 0) continue;
    finder->position = instr->source;
    const char *scope = source->scope ? source->scope : "";
    snprintf(finder->text, TEXT_BYTES, "%s%s%s, %s, wrote %s at element %lld of %s", ms_op_row_of(call->op)->name,
             *scope ? " in " : "", scope, source->backward ? "backward" : "forward", ms_nonfinite_name(value),
             (long long)at, ms_shape_text(&call->out[o], shape));
  }
  return MS_OK;
}

/* 1 when FIRST would wait for replicas that may have found nothing. */
static int needs_other_replicas(const ms_exec *exec) {
  const ms_plan_phase *first = &exec->plan->phase[MS_PHASE_FIRST];
  if (exec->state->replica == &exec->state->process_group) return 0;
  for (int i = 0; i < first->colls; i++)
    if (first->coll[i]->dim == MS_DIM_REPLICATE) return 1;
  return 0;
}

/* Reports the earliest finding of all ranks, or of those of this replica if replicas take local steps; the lowest
 * rank's if several have one at the same position. */
static int agree(ms_exec *exec, const ms_exec_finder *mine) {
  ms_group *group = exec->state->replica;
  ms_exec_finder *all = ms_calloc(group->size, sizeof *all);
  if (!all) return MS_ENOMEM;
  int rc = MS_OK, first = 0;
  MS_GOTO(ms_group_all_gather_bytes(group, mine, sizeof *mine, all));
  for (int i = 1; i < group->size; i++)
    if (all[i].position < all[first].position) first = i;
  if (all[first].position == NOWHERE)
    snprintf(exec->report, sizeof exec->report, "%s",
             needs_other_replicas(exec)
                 ? "every parameter and input of this micro-batch is finite; what comes out of ops was not searched, "
                   "because this step also needs the other replicas"
             : exec->scalars.micro_batches > 1
                 ? "every parameter, input, activation and gradient of this micro-batch is finite: the value that is "
                   "not is in another micro-batch, or is the sum of squares of the gradients"
                 : "every parameter, input, activation and gradient is finite: the sum of squares of the gradients is "
                   "not, because they are too large for it");
  else snprintf(exec->report, sizeof exec->report, "%s (rank %d)", all[first].text, group->rank[first]);
fail:
  free(all);
  return rc;
}

/* Runs FIRST again with every kernel's output inspected. The run is not a part of the step, so no profile records it,
 * and it overwrites the gradients, so no update may follow it. */
static int run_inspected(ms_exec *exec, ms_exec_finder *finder) {
  ms_profile *profile = exec->profile;
  ms_progress_interlude(exec->state);
  exec->profile = NULL;
  exec->finder = finder;
  exec->after_kernel = inspect;
  int rc = exec->runner->run(exec, MS_PHASE_FIRST);
  exec->after_kernel = NULL;
  exec->finder = NULL;
  exec->profile = profile;
  return rc;
}

static int find(ms_exec *exec, const ms_step_inputs *inputs, ms_exec_finder *finder) {
  ms_exec_begin(exec, inputs);
  MS_TRY(find_in_parameters(exec, finder, MS_TENSOR_PARAM, AT_PARAMETERS));
  find_in_inputs(exec, finder);
  int rc = needs_other_replicas(exec) ? MS_OK : run_inspected(exec, finder);
  if (rc) {
    ms_progress_interrupt(exec->state);
    return rc;
  }
  MS_TRY(find_in_parameters(exec, finder, MS_TENSOR_GRAD, AT_GRADIENTS));
  MS_TRY(ms_rests_clear(exec->state)); /* of gradients that no update takes */
  return agree(exec, finder);
}

int ms_exec_find_nonfinite(ms_exec *exec, const ms_step_inputs *inputs, const char **message) {
  MS_HANDLE(exec, EXEC);
  MS_GIVEN(inputs);
  MS_GIVEN(message);
  MS_TRY(ms_exec_admit(exec, MS_PHASE_FIRST, inputs));
  ms_exec_finder finder = {.position = NOWHERE};
  ms_recorder_enter(exec->recorder, ms_recorder_number(exec->recorder, "searching for the first non-finite value"));
  int rc = find(exec, inputs, &finder);
  ms_recorder_leave(exec->recorder, rc);
  if (!rc) *message = exec->report;
  return rc;
}
