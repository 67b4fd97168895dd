/* nonfinite.c - finds the first value that is not finite: in parameters and inputs, then in every kernel's output
 * during phase FIRST, then in the summed gradients, by parameter. The ranks agree on the earliest finding, so all
 * report the same.
 *
 * An infinity can be a value: masks are added, or written, as -inf, and the search for a maximum begins with it. So a
 * kernel that writes one is the place only if none came in, as an input or an attribute, and a NaN always is. The
 * report also names one that came in where it is an input of the batch, and where nothing else is found.
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "base/error.h"
#include "exec/bound/exec.h"
#include "exec/tensors/params.h"
#include "shard/divided.h"

enum { TEXT_BYTES = 896 };
/* Positions before and after those of the program's instructions. */
enum { AT_PARAMETERS = -2, AT_INPUTS = -1, AT_GRADIENTS = INT_MAX - 1, NOWHERE = INT_MAX };

typedef struct finding {
  int position; /* an instruction of FIRST, or one of the above */
  char text[TEXT_BYTES];
} finding;

typedef struct memory {
  const char *begin, *end;
} memory;

struct ms_exec_finder {
  finding place, infinity; /* infinity: the first that can be a value */
  memory *infinite;        /* [infinite_count] what kernels wrote last, with an infinity in it */
  int infinite_count, infinite_capacity;
};

/* Index of the first NaN, otherwise of the first infinity, otherwise -1. */
static int64_t find_in(const void *data, int dtype, int64_t n, double *value) {
  enum { BLOCK = 512 }; /* elements widened at a time */
  const ms_dtype_row *row = ms_dtype_row_of(dtype);
  float x[BLOCK];
  int64_t found = -1;
  for (int64_t begin = 0; begin < n; begin += BLOCK) {
    const int64_t count = n - begin < BLOCK ? n - begin : BLOCK;
    row->widen((const char *)data + begin * row->info.size, count, x);
    for (int64_t i = 0; i < count; i++) {
      if (isfinite(x[i]) || (found >= 0 && !isnan(x[i]))) continue;
      *value = x[i];
      found = begin + i;
      if (isnan(x[i])) return found;
    }
  }
  return found;
}

/* The same for a tensor in an arena. */
static int find_in_arena(const ms_exec *exec, void *tensor, int dtype, int64_t n, int64_t *at, double *value) {
  void *data;
  MS_TRY(ms_state_view(exec->state, tensor, n * ms_dtype_size(dtype), &data));
  *at = find_in(data, dtype, n, value);
  return MS_OK;
}

/* The same for what is kept as records. */
static int find_in_records(const ms_exec *exec, const ms_elements *owned, int64_t *at, double *value) {
  enum { PIECE = 1 << 14 };
  float *x = ms_calloc(PIECE, sizeof *x);
  int rc = x ? MS_OK : MS_ENOMEM;
  *at = -1;
  for (int64_t n, first = 0; first < owned->count && *at < 0 && !rc; first += n) {
    n = owned->count - first < PIECE ? owned->count - first : PIECE;
    rc = ms_params_copy_out(exec->state, owned, first, n, x);
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
  for (int i = 0; i < model->params && finder->place.position == NOWHERE; i++) {
    const ms_param *p = &model->param[i];
    ms_elements owned;
    const ms_division part = ms_param_division(model, p, model->dim[MS_DIM_TENSOR].place);
    double value;
    int64_t at, run;
    if (position == AT_GRADIENTS && p->config.frozen) continue;
    MS_TRY(ms_params_find(exec->state, i, what, &owned));
    if (owned.records) MS_TRY(find_in_records(exec, &owned, &at, &value));
    else MS_TRY(find_in_arena(exec, owned.data, owned.dtype, owned.count, &at, &value));
    if (at < 0) continue;
    const char *kind = "parameter";
    char text[64] = "";
    if (position == AT_GRADIENTS) {
      few_bits_text(model, p->unit, text);
      kind = *text ? "the gradient of" : "the summed gradient of";
    }
    finder->place.position = position;
    snprintf(finder->place.text, TEXT_BYTES, "%s %s%s holds %s at element %lld", kind, p->name, text,
             ms_nonfinite_name(value), (long long)ms_division_index(&part, owned.first + at, &run));
  }
  return MS_OK;
}

static void find_in_inputs(ms_exec *exec, ms_exec_finder *finder) {
  for (int i = 0; i < exec->plan->inputs && finder->place.position == NOWHERE; i++) {
    const ms_plan_input *input = &exec->plan->input[i];
    double value = 0;
    char shape[128];
    if (!ms_dtype_row_of(input->at.info.dtype)->widen) continue;
    int64_t at = find_in(ms_exec_input_at(exec, i), input->at.info.dtype, ms_numel(&input->at.info), &value);
    finding *found = isnan(value) ? &finder->place : &finder->infinity;
    if (at < 0 || found->position != NOWHERE) continue;
    found->position = AT_INPUTS;
    snprintf(found->text, TEXT_BYTES, "input %s holds %s at element %lld of %s", input->name, ms_nonfinite_name(value),
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

/* ---- infinities that came in ---- */

static memory memory_of(const void *data, const ms_value_info *info) {
  const char *begin = data;
  return (memory){begin, begin + ms_numel(info) * ms_dtype_size(info->dtype)};
}

static int overlap(memory a, memory b) { return a.begin < b.end && b.begin < a.end; }

static int is_infinite(const ms_exec_finder *finder, memory at) {
  for (int i = 0; i < finder->infinite_count; i++)
    if (overlap(finder->infinite[i], at)) return 1;
  return 0;
}

/* Notes what a kernel has written, with an infinity in it or without. */
static int note_written(ms_exec_finder *finder, memory at, int is_infinite) {
  int left = 0;
  for (int i = 0; i < finder->infinite_count; i++)
    if (!overlap(finder->infinite[i], at)) finder->infinite[left++] = finder->infinite[i];
  finder->infinite_count = left;
  if (!is_infinite) return MS_OK;
  MS_TRY(ms_grow((void **)&finder->infinite, &finder->infinite_capacity, left + 1, sizeof(memory)));
  finder->infinite[finder->infinite_count++] = at;
  return MS_OK;
}

static int has_infinite_attribute(const ms_kernel_call *call) {
  int n;
  const ms_attribute *attribute = ms_op_attributes(call->op, &n);
  for (int i = 0; i < n; i++)
    if (attribute[i].real && isinf(ms_attribute_value(&attribute[i], &call->attrs))) return 1;
  return 0;
}

/* Whether a kernel read an infinity. What it overwrote is known from what wrote that. */
static int read_infinity(const ms_exec *exec, const ms_kernel_call *call, int *yes) {
  *yes = (ms_op_row_of(call->op)->flags & MS_OP_INFINITIES) || has_infinite_attribute(call);
  for (int i = 0; i < call->inputs && !*yes; i++) {
    const memory in = memory_of(call->in_data[i], &call->in[i]);
    int is_overwritten = 0;
    double value;
    int64_t at = -1;
    for (int o = 0; o < call->outputs; o++) is_overwritten |= overlap(in, memory_of(call->out_data[o], &call->out[o]));
    if (!is_overwritten && ms_dtype_row_of(call->in[i].dtype)->widen)
      MS_TRY(find_in_arena(exec, (void *)call->in_data[i], call->in[i].dtype, ms_numel(&call->in[i]), &at, &value));
    *yes = at >= 0 || (is_overwritten && is_infinite(exec->finder, in));
  }
  for (int o = 0; o < call->outputs && !*yes && ms_op_reads_outputs(call->op, &call->attrs); o++)
    *yes = is_infinite(exec->finder, memory_of(call->out_data[o], &call->out[o]));
  return MS_OK;
}

/* ---- the search ---- */

static int inspect(ms_exec *exec, int phase, const ms_exec_instr *instr) {
  ms_exec_finder *finder = exec->finder;
  const ms_kernel_call *call = instr->call;
  const ms_instr *source = &exec->plan->phase[phase].instr[instr->source];
  int came_in = -1; /* not known yet */
  if (finder->place.position != NOWHERE || adds_to_gradients(exec, source)) return MS_OK;
  int64_t at[MS_MAX_OUTPUTS];
  double value[MS_MAX_OUTPUTS];
  for (int o = 0; o < call->outputs; o++) {
    at[o] = -1;
    if (ms_dtype_row_of(call->out[o].dtype)->widen)
      MS_TRY(find_in_arena(exec, call->out_data[o], call->out[o].dtype, ms_numel(&call->out[o]), &at[o], &value[o]));
    if (at[o] >= 0 && came_in < 0 && !isnan(value[o])) MS_TRY(read_infinity(exec, call, &came_in));
  }
  for (int o = 0; o < call->outputs; o++) {
    char shape[128];
    MS_TRY(note_written(finder, memory_of(call->out_data[o], &call->out[o]), at[o] >= 0));
    finding *found = at[o] >= 0 && (isnan(value[o]) || !came_in) ? &finder->place : &finder->infinity;
    if (at[o] < 0 || found->position != NOWHERE) continue;
    found->position = instr->source;
    const char *scope = source->scope ? source->scope : "";
    snprintf(found->text, TEXT_BYTES, "%s%s%s, %s, wrote %s at element %lld of %s", ms_op_row_of(call->op)->name,
             *scope ? " in " : "", scope, source->backward ? "backward" : "forward", ms_nonfinite_name(value[o]),
             (long long)at[o], ms_shape_text(&call->out[o], shape));
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

/* The earliest of all ranks' findings, or of those of this replica if replicas take local steps; the lowest rank's if
 * several have one at the same position. Adds the rank to its text. */
static int earliest(ms_exec *exec, const finding *mine, finding *found) {
  ms_group *group = exec->state->replica;
  finding *all = ms_calloc(group->size, sizeof *all);
  if (!all) return MS_ENOMEM;
  int rc = MS_OK, first = 0;
  MS_GOTO(ms_group_all_gather_bytes(group, mine, sizeof *mine, all));
  for (int i = 1; i < group->size; i++)
    if (all[i].position < all[first].position) first = i;
  *found = all[first];
  const size_t length = strlen(found->text);
  snprintf(found->text + length, TEXT_BYTES - length, " (rank %d)", group->rank[first]);
fail:
  free(all);
  return rc;
}

static int agree(ms_exec *exec, const ms_exec_finder *mine) {
  finding place, infinity;
  MS_TRY(earliest(exec, &mine->place, &place));
  MS_TRY(earliest(exec, &mine->infinity, &infinity));
  const int came_in = infinity.position == AT_INPUTS || place.position == AT_GRADIENTS;
  const int told = came_in && infinity.position < place.position;
  const size_t room = sizeof exec->report;
  if (place.position != NOWHERE)
    snprintf(exec->report, room, "%s%s%s", place.text, told ? "; before it, " : "", told ? infinity.text : "");
  else if (infinity.position != NOWHERE)
    snprintf(exec->report, room,
             "every parameter, input, activation and gradient of this micro-batch is finite, or comes of an infinity: "
             "%s",
             infinity.text);
  else
    snprintf(exec->report, room, "%s",
             needs_other_replicas(exec)
                 ? "every parameter and input of this micro-batch is finite; what comes out of ops was not searched, "
                   "because this step also needs the other replicas"
             : exec->scalars.micro_batches > 1
                 ? "every parameter, input, activation and gradient of this micro-batch is finite: the value that is "
                   "not is in another micro-batch, or is the sum of squares of the gradients"
                 : "every parameter, input, activation and gradient is finite: the sum of squares of the gradients is "
                   "not, because they are too large for it");
  return MS_OK;
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
  MS_TRY(ms_state_clear(exec->state, MS_SLOT_RESIDUALS)); /* of gradients that no update takes */
  return agree(exec, finder);
}

int ms_exec_find_nonfinite(ms_exec *exec, const ms_step_inputs *inputs, const char **message) {
  MS_HANDLE(exec, EXEC);
  MS_GIVEN(inputs);
  MS_GIVEN(message);
  ms_step_inputs own;
  MS_TRY(ms_exec_take_inputs(inputs, &own));
  inputs = &own;
  MS_TRY(ms_exec_admit(exec, MS_PHASE_FIRST, inputs));
  ms_exec_finder finder = {.place.position = NOWHERE, .infinity.position = NOWHERE};
  ms_recorder_enter(exec->recorder, ms_recorder_number(exec->recorder, "searching for the first non-finite value"));
  int rc = find(exec, inputs, &finder);
  free(finder.infinite);
  ms_recorder_leave(exec->recorder, rc);
  if (!rc) *message = exec->report;
  return rc;
}
