/* builder.c - builds a graph: inputs, parameters, nodes. Every node is checked when it is created, so an error names
 * the module path (scope) of the recipe's call. graph.c contains creation, copying and release of graphs. */
#include <string.h>

#include "base/config.h"
#include "base/numbers/dtype.h"
#include "graph/batch_rows.h"
#include "graph/infer/infer.h"

int ms_graph_in_scope(const ms_graph *graph, int rc) {
  if (graph->scope[0]) ms_error_prefix("in %s", graph->scope);
  return rc;
}

int ms_graph_set_scope(ms_graph *graph, const char *path) {
  MS_HANDLE(graph, GRAPH);
  const char *scope = ms_graph_intern(graph, path ? path : "");
  if (!scope) return MS_ENOMEM;
  graph->scope = scope;
  return MS_OK;
}

static int reserve_values(ms_graph *graph, int more) {
  return ms_grow((void **)&graph->values, &graph->values_capacity, graph->n_values + more, sizeof *graph->values);
}

static int append_value(ms_graph *graph, const ms_value *value, int *id) {
  MS_TRY(reserve_values(graph, 1));
  graph->values[graph->n_values] = *value;
  *id = graph->n_values++;
  return MS_OK;
}

/* The number of elements, and with some margin of bytes, must fit in 63 bits. */
static int check_size(const char *name, int ndim, const int64_t *dims) {
  int64_t elements = 8;
  for (int d = 0; d < ndim; d++)
    if (__builtin_mul_overflow(elements, dims[d], &elements))
      return MS_FAIL(MS_ESHAPE, "%s: the sizes of its shape multiply to more than 2^60", name);
  return MS_OK;
}

static int check_shape(const char *what, const char *name, int dtype, int ndim, const int64_t *dims) {
  if (dtype < 0 || dtype >= MS_DTYPES) return MS_FAIL(MS_EDTYPE, "%s %s: unknown dtype %d", what, name, dtype);
  if (!ms_dtype_size(dtype))
    return MS_FAIL(MS_EDTYPE,
                   "%s %s is %s, of which several elements share a byte; give its bytes as u8, and their shape", what,
                   name, ms_dtype_name(dtype));
  if (ndim < 0 || ndim > MS_MAX_DIMS || (ndim > 0 && !dims))
    return MS_FAIL(MS_ESHAPE, "%s %s has %d dimensions; it must have 0 to %d", what, name, ndim, MS_MAX_DIMS);
  for (int d = 0; d < ndim; d++)
    if (dims[d] < 1)
      return MS_FAIL(MS_ESHAPE, "%s %s has size %lld in dimension %d; sizes must be at least 1", what, name,
                     (long long)dims[d], d);
  return check_size(name, ndim, dims);
}

static int make_input(ms_graph *graph, const char *name, int dtype, int ndim, const int64_t *dims, int *id) {
  if (!name || !name[0]) return MS_FAIL(MS_ENAME, "an input needs a name");
  MS_TRY(check_shape("input", name, dtype, ndim, dims));
  for (int v = 0; v < graph->n_values; v++)
    if (graph->values[v].kind == MS_VALUE_INPUT && !strcmp(graph->values[v].name, name))
      return MS_FAIL(MS_ENAME, "an input named %s already exists", name);
  ms_value value = {
      .info = {.dtype = dtype, .ndim = ndim}, .kind = MS_VALUE_INPUT, .node = -1, .output = -1, .param = -1};
  if (ndim > 0) memcpy(value.info.dims, dims, (size_t)ndim * sizeof *dims);
  if (ndim > 0) value.rows = (ms_batch_rows){.outer = 1, .rows = dims[0]};
  value.name = ms_graph_intern(graph, name);
  if (!value.name) return MS_ENOMEM;
  return append_value(graph, &value, id);
}

static int set_input_rows(ms_graph *graph, int value, int64_t rows) {
  ms_value *input = &graph->values[value];
  if (rows < 0 || (rows > 0 && (input->info.ndim == 0 || input->info.dims[0] % rows)))
    return MS_FAIL(MS_ESHAPE, "input %s: %lld rows do not divide its first axis, which has %lld indices", input->name,
                   (long long)rows, (long long)(input->info.ndim ? input->info.dims[0] : 0));
  input->rows = rows ? (ms_batch_rows){.outer = 1, .rows = rows} : (ms_batch_rows){0};
  return MS_OK;
}

int ms_graph_input(ms_graph *graph, const char *name, int dtype, int ndim, const int64_t *dims, int64_t rows,
                   int *value) {
  MS_HANDLE(graph, GRAPH);
  MS_GIVEN(name);
  MS_GIVEN(value);
  if (ndim > 0) MS_GIVEN(dims);
  if (!value) return MS_FAIL(MS_EINVAL, "ms_graph_input: value is NULL");
  int rc = make_input(graph, name, dtype, ndim, dims, value);
  if (!rc && rows != -1) rc = set_input_rows(graph, *value, rows);
  return rc ? ms_graph_in_scope(graph, rc) : MS_OK;
}

static int make_param(ms_graph *graph, int param, int *id) {
  ms_param_info info;
  MS_TRY(graph->lookup(graph->model, param, &info));
  MS_TRY(check_shape("parameter", info.name, info.info.dtype, info.info.ndim, info.info.dims));
  ms_value value = {.info = info.info, .kind = MS_VALUE_PARAM, .node = -1, .output = -1, .param = param, .name = ""};
  MS_TRY(append_value(graph, &value, id));
  graph->param_values[param] = *id;
  return MS_OK;
}

int ms_graph_param(ms_graph *graph, int param, int *value) {
  MS_HANDLE(graph, GRAPH);
  MS_GIVEN(value);
  if (!value) return MS_FAIL(MS_EINVAL, "ms_graph_param: value is NULL");
  if (param < 0 || param >= graph->n_params)
    return ms_graph_in_scope(graph,
                             MS_FAIL(MS_EINVAL, "there is no parameter %d; the model has %d", param, graph->n_params));
  *value = graph->param_values[param];
  if (*value >= 0) return MS_OK;
  int rc = make_param(graph, param, value);
  return rc ? ms_graph_in_scope(graph, rc) : MS_OK;
}

/* Writes values that a rule resolved back to the attributes: non-negative axes, sizes without -1. Kernels and dumps
 * then see one normal form of each node. */
static void settle_attrs(ms_node *node, const ms_value_info *in, const ms_value_info *out) {
  int64_t *size = ms_op_integer(node->op, &node->attrs, "d0"), *axis = ms_op_integer(node->op, &node->attrs, "axis");
  for (int d = 0; size && d < out[0].ndim; d++) size[d] = out[0].dims[d];
  const int64_t *all = ms_op_integer(node->op, &node->attrs, "all");
  if (axis && !(all && *all) && *axis < 0) *axis += in[0].ndim;
}

static int check_inputs(const ms_graph *graph, const ms_op_row *row, int inputs, const int *in, ms_value_info *info) {
  if (inputs < row->min_inputs || inputs > row->max_inputs || (inputs > 0 && !in)) {
    if (row->min_inputs == row->max_inputs)
      return MS_FAIL(MS_EINVAL, "%s: %d input%s; it takes %d", row->name, inputs, inputs == 1 ? "" : "s",
                     row->min_inputs);
    return MS_FAIL(MS_EINVAL, "%s: %d input%s; it takes %d to %d", row->name, inputs, inputs == 1 ? "" : "s",
                   row->min_inputs, row->max_inputs);
  }
  for (int i = 0; i < inputs; i++) {
    if (in[i] < 0 || in[i] >= graph->n_values)
      return MS_FAIL(MS_EINVAL, "%s: input %d is value %d; the graph has %d values", row->name, i + 1, in[i],
                     graph->n_values);
    info[i] = graph->values[in[i]].info;
  }
  return MS_OK;
}

/* Dropouts are numbered in program order, without other nodes: layers may take other ops on another mesh, as attention
 * does where ranks share heads of keys, but masks do not depend on it. The numbers are beyond those that recipes give.
 */
static int64_t new_stream(const ms_graph *graph) {
  int64_t stream = (int64_t)1 << 32;
  for (int i = 0; i < graph->n_nodes; i++) stream += (ms_op_row_of(graph->nodes[i].op)->flags & MS_OP_DRAWS_MASK) != 0;
  return stream;
}

/* Replaces stream 0 by a new stream, because two dropouts must not drop the same elements, and sets the rows that key
 * the mask. */
static int settle_mask(const ms_graph *graph, const char *op, const ms_value *x, ms_op_attrs *attrs) {
  if (x->rows.rows < 0)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "%s: the rows of the batch are no longer contiguous on one axis of its input, so "
                   "its mask would depend on the mesh; apply it before rows are split or mixed",
                   op);
  if (!attrs->mask.stream) attrs->mask.stream = new_stream(graph);
  attrs->mask.outer = x->rows.outer, attrs->mask.rows = x->rows.rows, attrs->mask.first = x->rows.first;
  return MS_OK;
}

static int make_node(ms_graph *graph, int op, int inputs, const int *in, const ms_op_attrs *attrs, int *out) {
  const ms_op_row *row = ms_op_row_of(op);
  ms_value_info in_info[MS_MAX_INPUTS], out_info[MS_MAX_OUTPUTS];
  ms_batch_rows in_rows[MS_MAX_INPUTS];
  if (!row) return MS_FAIL(MS_EINVAL, "op %d: there are ops 0 to %d", op, MS_OP_COUNT - 1);
  MS_TRY(check_inputs(graph, row, inputs, in, in_info));
  ms_node node = {.op = op,
                  .inputs = inputs,
                  .outputs = row->outputs,
                  .scope = graph->scope,
                  .region = graph->region,
                  .recompute = graph->region && graph->recompute_op[op],
                  .regather = graph->regather};
  if (attrs) node.attrs = *attrs;
  else MS_TRY(ms_op_row_defaults(op, &node.attrs));
  for (int i = 0; i < inputs; i++) MS_TRY(ms_op_check_dtype(op, in_info[i].dtype, "input", i));
  MS_TRY(row->infer(&node, in_info, out_info));
  for (int o = 0; o < row->outputs; o++) {
    MS_TRY(ms_op_check_dtype(op, out_info[o].dtype, "output", o));
    MS_TRY(check_size(row->name, out_info[o].ndim, out_info[o].dims));
  }
  settle_attrs(&node, in_info, out_info);
  for (int i = 0; i < inputs; i++) {
    node.in[i] = in[i];
    in_rows[i] = graph->values[in[i]].rows;
  }
  MS_TRY(ms_grow((void **)&graph->nodes, &graph->nodes_capacity, graph->n_nodes + 1, sizeof *graph->nodes));
  MS_TRY(reserve_values(graph, row->outputs));
  for (int o = 0; o < row->outputs; o++) {
    ms_value value = {
        .info = out_info[o], .kind = MS_VALUE_NODE, .node = graph->n_nodes, .output = o, .param = -1, .name = ""};
    if (o == 0) value.rows = ms_follow_rows(&node, in_info, in_rows, out_info);
    MS_TRY(append_value(graph, &value, &node.out[o]));
    out[o] = node.out[o];
  }
  graph->nodes[graph->n_nodes++] = node;
  return MS_OK;
}

int ms_graph_emit(ms_graph *graph, int op, int inputs, const int *in, const ms_op_attrs *attrs, int *out) {
  int rc = make_node(graph, op, inputs, in, attrs, out);
  return rc ? ms_graph_in_scope(graph, rc) : MS_OK;
}

int ms_graph_op(ms_graph *graph, const char *op, int n_inputs, const int *inputs, const char *attrs, int *outputs) {
  MS_HANDLE(graph, GRAPH);
  MS_GIVEN(op);
  MS_GIVEN(outputs);
  MS_NOT_NEGATIVE(n_inputs);
  if (n_inputs > 0) MS_GIVEN(inputs);
  if (!outputs) return MS_FAIL(MS_EINVAL, "ms_graph_op: outputs is NULL");
  int id = ms_op_find(op);
  if (id < 0) return ms_graph_in_scope(graph, MS_FAIL(MS_ENAME, "there is no op named \"%s\"", op ? op : ""));
  if (ms_op_row_of(id)->flags & MS_OP_INTERNAL)
    return ms_graph_in_scope(graph,
                             MS_FAIL(MS_EINVAL, "%s: this op is internal to the engine; recipes cannot use it", op));
  ms_op_attrs own;
  if (ms_op_read_attrs(id, attrs, &own)) return ms_graph_in_scope(graph, ms_error_code());
  int has_input = n_inputs == 1 && inputs && inputs[0] >= 0 && inputs[0] < graph->n_values;
  if (!(ms_op_row_of(id)->flags & MS_OP_DRAWS_MASK) || !has_input)
    return ms_graph_emit(graph, id, n_inputs, inputs, &own, outputs);
  int rc = settle_mask(graph, op, &graph->values[inputs[0]], &own);
  if (rc) return ms_graph_in_scope(graph, rc);
  return ms_graph_emit(graph, id, n_inputs, inputs, &own, outputs);
}

static int check_value(const ms_graph *graph, int value) {
  if (value >= 0 && value < graph->n_values) return MS_OK;
  return MS_FAIL(MS_EINVAL, "there is no value %d; the graph has %d values", value, graph->n_values);
}

int ms_graph_describe(const ms_graph *graph, int value, ms_value_info *info, int size) {
  MS_HANDLE(graph, GRAPH);
  MS_GIVEN(info);
  MS_TRY(check_value(graph, value));
  MS_GIVE_INFO(info, size, graph->values[value].info);
}

static int check_number(const ms_graph *graph, int value, const char *what) {
  char text[MS_SHAPE_TEXT];
  MS_TRY(check_value(graph, value));
  const ms_value_info *info = &graph->values[value].info;
  if (info->ndim == 0 && info->dtype == MS_F32) return MS_OK;
  return ms_graph_in_scope(graph, MS_FAIL(MS_ESHAPE, "%s is %s %s; it must be one f32 number, shape []", what,
                                          ms_dtype_name(info->dtype), ms_shape_text(info, text)));
}

int ms_graph_host_bytes(const ms_graph *graph, int64_t *bytes) {
  MS_HANDLE(graph, GRAPH);
  MS_GIVEN(bytes);
  *bytes = ms_graph_bytes(graph);
  return MS_OK;
}

int ms_graph_set_loss(ms_graph *graph, int loss, int weight) {
  MS_HANDLE(graph, GRAPH);
  MS_TRY(check_number(graph, loss, "the loss"));
  if (weight != -1) MS_TRY(check_number(graph, weight, "the weight of the loss"));
  graph->loss = loss;
  graph->loss_weight = weight;
  return MS_OK;
}

int ms_graph_output(ms_graph *graph, const char *name, int value) {
  MS_HANDLE(graph, GRAPH);
  MS_GIVEN(name);
  if (!name || !name[0]) return MS_FAIL(MS_EINVAL, "ms_graph_output: the output has no name");
  MS_TRY(check_value(graph, value));
  for (int i = 0; i < graph->n_outputs; i++)
    if (!strcmp(graph->outputs[i].name, name)) return MS_FAIL(MS_ENAME, "an output named %s already exists", name);
  MS_TRY(ms_grow((void **)&graph->outputs, &graph->outputs_capacity, graph->n_outputs + 1, sizeof *graph->outputs));
  ms_named_value *output = &graph->outputs[graph->n_outputs];
  *output = (ms_named_value){.name = ms_graph_intern(graph, name), .value = value};
  if (!output->name) return MS_ENOMEM;
  graph->n_outputs++;
  return MS_OK;
}
