/* float8.c - products of weights that a rule wants in 8 bits become matmul_f8, and those of a stack of experts' weights
 * grouped_matmul_f8 (kernels/products/matmul_f8.h). Runs on the graph that a rank computes, before anything is fused,
 * so that sizes are those that run, and other passes leave rounded products as they are. A weight that cannot be
 * multiplied so is an error that names it: nothing falls back.
 */
#include <inttypes.h>

#include "base/error.h"
#include "graph/grad/grad.h"
#include "graph/infer/infer.h"
#include "kernels/products/matmul_f8.h"

/* A weight with a recipe, and one of its products. */
typedef struct use {
  const ms_param_info *param;
  int value; /* the weight */
  ms_node *node;
} use;

/* What an op becomes, and the axes that its weight has. */
static const struct form {
  int op, rounded, ndim;
} FORMS[] = {{MS_OP_matmul, MS_OP_matmul_f8, 2}, {MS_OP_grouped_matmul, MS_OP_grouped_matmul_f8, 3}};
enum { N_FORMS = sizeof FORMS / sizeof *FORMS };

static const struct form *form_of(const ms_node *node) {
  for (int i = 0; i < N_FORMS; i++)
    if (FORMS[i].op == (int)node->op) return &FORMS[i];
  return NULL;
}

static int refuse_reader(const use *u, const char *because) {
  return MS_FAIL(
      MS_EUNSUPPORTED,
      "parameter '%s' (fp8 = \"%s\"): %s reads it in %s%s; only products x w and x w' of a matrix w, and "
      "those of a stack of experts' weights, have an 8-bit form: leave the parameter out of the rules of fp8",
      u->param->name, ms_f8_recipe_name(u->param->fp8), ms_node_name(u->node),
      *u->node->scope ? u->node->scope : "the model", because);
}

static int check_reader(const ms_graph *graph, const use *u) {
  const ms_node *n = u->node;
  const struct form *form = form_of(n);
  if (!form || n->in[1] != u->value) return refuse_reader(u, "");
  if (n->in[0] == u->value) return refuse_reader(u, ", on both sides");
  if (n->attrs.product.trans_a) return refuse_reader(u, ", with a transposed x");
  return ms_info_of(graph, u->value)->ndim == form->ndim ? MS_OK : refuse_reader(u, ", and it is not a matrix");
}

static int check_size(const use *u, int64_t size, const char *what) {
  const int multiple = ms_f8_multiple(u->param->fp8);
  if (size % multiple == 0) return MS_OK;
  return MS_FAIL(MS_ESHAPE,
                 "parameter '%s' (fp8 = \"%s\"): its product in %s has %" PRId64
                 " %s; 8-bit products need a multiple of %d: leave the parameter out of the rules of fp8, or change "
                 "the size",
                 u->param->name, ms_f8_recipe_name(u->param->fp8), *u->node->scope ? u->node->scope : "the model", size,
                 what, multiple);
}

/* The inputs are summed in the output, the outputs in dx, and the rows in dw; those of an expert are as many as come.
 */
static int check_sizes(const ms_graph *graph, const use *u, int backward) {
  const ms_value_info *w = ms_info_of(graph, u->value), *x = ms_info_of(graph, u->node->in[0]);
  const int trans_b = u->node->attrs.product.trans_b != 0;
  const int first = w->ndim - 2;
  MS_TRY(check_size(u, w->dims[first + trans_b], "inputs"));
  MS_TRY(check_size(u, w->dims[first + !trans_b], "outputs"));
  if (!backward || w->ndim > 2 || u->param->frozen || !ms_f8_rounds(u->param->fp8, MS_F8_DW)) return MS_OK;
  return check_size(u, ms_rows(x), "rows");
}

/* What a node passes on as it is, on every rank: ranks of a dimension that all compute the product, and share its
 * gradient. Codes are not followed: the op that reads them finds their scale by the parameter. */
static int passes_on(const ms_graph *graph, const use *u) {
  return u->node->op == MS_OP_unvary && !ms_f8_gathers(u->param->fp8, ms_info_of(graph, u->value)->ndim);
}

static int round_uses(ms_graph *graph, const ms_param_info *param, int value, int backward) {
  for (int i = 0; i < graph->n_nodes; i++) {
    const use u = {param, value, &graph->nodes[i]};
    int reads = 0;
    for (int k = 0; k < u.node->inputs; k++) reads |= u.node->in[k] == value;
    if (!reads) continue;
    if (passes_on(graph, &u)) {
      MS_TRY(round_uses(graph, param, u.node->out[0], backward));
      continue;
    }
    MS_TRY(check_reader(graph, &u));
    MS_TRY(check_sizes(graph, &u, backward));
    u.node->op = form_of(u.node)->rounded;
    u.node->attrs.product.recipe = param->fp8;
    u.node->attrs.product.product = MS_F8_OUTPUT;
  }
  return MS_OK;
}

/* A weight that is gathered as codes cannot be a result: these are nothing without their scale. */
static int check_outputs(const ms_graph *graph, const ms_param_info *param, int value) {
  for (int o = 0; o < graph->n_outputs; o++)
    if (graph->outputs[o].value == value && ms_f8_gathers(param->fp8, ms_info_of(graph, value)->ndim))
      return MS_FAIL(MS_EUNSUPPORTED,
                     "parameter '%s' (fp8 = \"%s\"): the model returns it as '%s'; only products x w and x w' of a "
                     "matrix w have an 8-bit form: leave the parameter out of the rules of fp8",
                     param->name, ms_f8_recipe_name(param->fp8), graph->outputs[o].name);
  return MS_OK;
}

int ms_graph_round_products(ms_graph *graph, int backward) {
  for (int p = 0; p < graph->n_params; p++) {
    ms_param_info info;
    if (graph->param_values[p] < 0) continue;
    MS_TRY(graph->lookup(graph->model, p, &info));
    if (info.fp8 == MS_FP8_NONE) continue;
    MS_TRY(check_outputs(graph, &info, graph->param_values[p]));
    MS_TRY(round_uses(graph, &info, graph->param_values[p], backward));
  }
  return MS_OK;
}
