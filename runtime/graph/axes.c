/* axes.c - reads the column `axes` of the op table for a node with given shapes (axes.h). */
#include "graph/axes.h"

#include <ctype.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "base/error.h"

static const char *text_of(int op) { return ms_op_row_of(op)->axes; }

int ms_op_has_axes(int op) { return *text_of(op) != 0; }

/* The words about an op, as flags. */
enum word {
  ACT = 1 << 0,
  ALONG = 1 << 1,
  EXCHANGE = 1 << 2,
  BETA = 1 << 3,
  CAST = 1 << 4,
  CUT = 1 << 5,
  MAX = 1 << 6,
  MEAN = 1 << 7,
  MIN = 1 << 8,
  PART = 1 << 9,
  PERMUTE = 1 << 10,
  PLACED = 1 << 11,
  PLACED1 = 1 << 12,
  RESHAPE = 1 << 13,
  SHAPE = 1 << 14,
  SUM = 1 << 15,
  SWAP = 1 << 16,
  TOGETHER = 1 << 17,
  PASS = 1 << 18
};
enum { REDUCES = SUM | MEAN | MAX | MIN };

/* The flag of a word of n letters; 0: it says something else, such as in which inputs the op is linear. */
static int flag_of(const char *word, size_t n) {
  static const struct {
    const char *text;
    int flag;
  } words[] = {{"act", ACT},         {"along", ALONG},     {"exchange", EXCHANGE}, {"beta", BETA},   {"cast", CAST},
               {"cut", CUT},         {"max", MAX},         {"mean", MEAN},         {"min", MIN},     {"part", PART},
               {"permute", PERMUTE}, {"placed", PLACED},   {"placed1", PLACED1},   {"shape", SHAPE}, {"sum", SUM},
               {"swap", SWAP},       {"reshape", RESHAPE}, {"+", TOGETHER},        {"pass", PASS}};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (words[i].text[0] == *word && !strncmp(words[i].text, word, n) && !words[i].text[n]) return words[i].flag;
  return 0;
}

/* The words that follow the operands, or are the whole text, if it has no operands. */
static int words_of(int op) {
  const char *at = text_of(op);
  int words = 0;
  size_t n = strcspn(at, " ");
  if (memchr(at, '>', n)) at += n;
  for (at += *at == ' '; *at; at += n + (at[n] == ' ')) {
    n = strcspn(at, " ");
    words |= flag_of(at, n);
  }
  return words;
}

/* ---- labels ----------------------------------------------------------------------------------------------------- */

static int64_t common_divisor(int64_t a, int64_t b) {
  while (b) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* Gives an axis its label. Sizes that differ correspond in proportion, as heads of queries to heads of keys do; an axis
 * of size 1 says nothing. parts is 0 until another one comes. */
static int take_label(ms_axes *axes, char name, int whole, int64_t size, int *index) {
  int i = 0;
  while (i < axes->labels && axes->label[i].name != name) i++;
  if (i == MS_AXIS_LABELS) return MS_FAIL(MS_EINTERNAL, "more than %d labels", MS_AXIS_LABELS);
  if (i == axes->labels) axes->label[axes->labels++] = (ms_axis_label){.name = name};
  axes->label[i].whole |= whole;
  if (size > 1) axes->label[i].parts = common_divisor(size, axes->label[i].parts);
  *index = i;
  return MS_OK;
}

/* Labels the axes of an operand, whose word ends at a comma, '>', space, dot or the text's end. swapped: its last two
 * axes are. Returns the word's end in *text. */
static int read_operand(ms_axes *axes, const char **text, const ms_value_info *x, int swapped, int *dims) {
  const char *word = *text;
  const int n = (int)strcspn(word, ",> ."), leads = n && (word[0] == '*' || word[0] == '#');
  const int leading = x->ndim - (n - leads);
  *text = word + n;
  if (leads ? leading < 0 : leading != 0)
    return MS_FAIL(MS_EINTERNAL, "an operand with %d axes is labelled \"%.*s\"", x->ndim, n, word);
  for (int d = 0; d < leading; d++)
    MS_TRY(take_label(axes, (char)('0' + leading - 1 - d), word[0] == '#', x->dims[d], &dims[d]));
  for (int d = leading; d < x->ndim; d++) {
    const int from_end = x->ndim - 1 - d;
    const char name = word[n - 1 - (swapped && from_end < 2 ? 1 - from_end : from_end)];
    MS_TRY(take_label(axes, name, isupper((unsigned char)name) != 0, x->dims[d], &dims[d]));
  }
  return MS_OK;
}

/* Axes of size 1 whose label is longer elsewhere are repeated. */
static void find_repeated(const ms_axes *axes, const ms_value_info *x, int *dims) {
  for (int d = 0; d < x->ndim; d++)
    if (dims[d] >= 0 && x->dims[d] == 1 && axes->label[dims[d]].parts > 0) dims[d] = MS_AXIS_REPEATED;
}

/* ---- what the attributes decide --------------------------------------------------------------------------------- */

static int chosen_axis(const ms_node *node, const ms_value_info *in) {
  const int64_t axis = ms_node_axis(node);
  return (int)(axis < 0 ? axis + in->ndim : axis);
}

/* The output of a reduction: the input's axes but those that are reduced, which stay with size 1 if keepdim is set. */
static void label_reduced(const ms_node *node, const ms_value_info *in, ms_axes *axes) {
  const int keeps = node->attrs.reduce.keepdim != 0, all = node->attrs.reduce.all != 0, axis = chosen_axis(node, in);
  for (int d = 0, to = 0; d < in->ndim; d++) {
    const int reduced = all || d == axis;
    if (reduced && !keeps) continue;
    axes->out[0][to++] = reduced ? MS_AXIS_REPEATED : axes->in[0][d];
  }
}

/* Labels the first axis of a run that is not 1, and none of the others. */
static int label_run(ms_axes *axes, char name, const ms_value_info *x, int first, int end, int *dims) {
  int named = 0;
  for (int d = first; d < end; d++) {
    dims[d] = MS_AXIS_REPEATED;
    if (named || x->dims[d] == 1) continue;
    MS_TRY(take_label(axes, name, 0, x->dims[d], &dims[d]));
    named = 1;
  }
  return MS_OK;
}

/* Runs of axes of the input and of the output with the same number of elements: the first axis of each can be divided,
 * since its parts are contiguous in the run. */
static int label_reshaped(const ms_value_info *in, const ms_value_info *out, ms_axes *axes) {
  int a = 0, b = 0;
  axes->linear = 1;
  for (char name = 'a'; a < in->ndim || b < out->ndim; name++) {
    const int first_a = a, first_b = b;
    int64_t left = a < in->ndim ? in->dims[a++] : 1, right = b < out->ndim ? out->dims[b++] : 1;
    while (left != right) {
      if (left < right && a < in->ndim) left *= in->dims[a++];
      else if (b < out->ndim) right *= out->dims[b++];
      else return MS_FAIL(MS_EINTERNAL, "reshape: the shapes have different numbers of elements");
    }
    MS_TRY(label_run(axes, name, in, first_a, a, axes->in[0]));
    MS_TRY(label_run(axes, name, out, first_b, b, axes->out[0]));
  }
  return MS_OK;
}

/* ---- a node ----------------------------------------------------------------------------------------------------- */

static void read_words(const ms_node *node, int words, const ms_value_info *in, const ms_value_info *out,
                       ms_axes *axes) {
  const char *at = strchr(text_of(node->op), ' ');
  axes->linear_together = (words & TOGETHER) != 0;
  axes->passes = (words & PASS) != 0;
  for (at = at ? at + 1 : ""; isdigit((unsigned char)*at); at++) axes->linear |= 1u << (*at - '0');
  if (words & BETA && node->attrs.scale.beta != 0) axes->linear = 0;
  if (words & CAST && ms_dtype_size(out[0].dtype) < ms_dtype_size(in[0].dtype)) axes->linear = 0;
  if (words & MEAN) axes->join = MS_JOIN_MEAN;
  if (words & MAX) axes->join = MS_JOIN_MAX;
  if (words & MIN) axes->join = MS_JOIN_MIN;
}

static int read_inputs(const ms_node *node, int words, const ms_value_info *in, ms_axes *axes) {
  const char *text = text_of(node->op);
  for (int i = 0; i < node->inputs; i++) {
    const char *word = text;
    if (*text == '+') axes->added |= 1u << i, text++;
    const int64_t swaps = i == 0 ? node->attrs.product.trans_a : i == 1 ? node->attrs.product.trans_b : 0;
    MS_TRY(read_operand(axes, &text, &in[i], words & SWAP && swaps, axes->in[i]));
    if (!strncmp(text, "..", 2)) text = word;
    else if (*text == ',') text++;
  }
  return MS_OK;
}

static int read_outputs(const ms_node *node, int words, const ms_value_info *in, const ms_value_info *out,
                        ms_axes *axes) {
  const char *text = strchr(text_of(node->op), '>') + 1;
  for (int o = 0; o < node->outputs; o++) {
    if (*text == '_') axes->statistics |= 1u << o, text++;
    else if (words & PERMUTE)
      for (int d = 0; d < out[o].ndim; d++) axes->out[o][d] = axes->in[0][node->attrs.permutation.p[d]];
    else if (words & REDUCES) label_reduced(node, in, axes);
    else MS_TRY(read_operand(axes, &text, &out[o], 0, axes->out[o]));
    if (*text == ',') text++;
  }
  return MS_OK;
}

/* The rows of a table, which are in one piece already where the node has a part. */
static void find_contiguous(const ms_node *node, ms_axes *axes) {
  axes->contiguous = axes->in[0][0];
  if (ms_table_parts(&node->attrs) > 1) axes->label[axes->contiguous].whole = 1;
}

/* The attribute that takes another division; NULL: a part of this node cannot be divided again. */
static int64_t *free_part(int op, ms_op_attrs *attrs) {
  static const char *const names[] = {"part", "inner_part"};
  for (int k = 0; k < 2; k++) {
    int64_t *part = ms_op_integer(op, attrs, names[k]);
    if (part && !*part) return part;
  }
  return NULL;
}

static void find_placed(const ms_node *node, int words, ms_axes *axes) {
  ms_op_attrs attrs = node->attrs;
  const int can = free_part(node->op, &attrs) != NULL, one = (words & PLACED1) != 0;
  if (can) axes->placed = one ? axes->in[0][1] : MS_AXES_ALL;
  for (int l = 0; l < axes->labels && !can && !one; l++) axes->label[l].whole = 1;
}

/* 1 when an operand has the label; dims: of its axes. */
static int has_label(const int *dims, int ndim, int label) {
  for (int d = 0; d < ndim; d++)
    if (dims[d] == label) return 1;
  return 0;
}

/* What a kernel does to a sum, it does not do to the parts of the sum: an activation needs all of it. */
static void need_sums_whole(const ms_value_info *out, ms_axes *axes) {
  axes->linear = 0;
  for (int l = 0; l < axes->labels; l++) axes->label[l].whole |= !has_label(axes->out[0], out[0].ndim, l);
}

int ms_axes_of(const ms_node *node, const ms_value_info *in, const ms_value_info *out, ms_axes *axes) {
  *axes = (ms_axes){.contiguous = -1, .placed = MS_AXES_NONE};
  const char *name = ms_op_row_of(node->op)->name;
  if (!ms_op_has_axes(node->op)) return MS_FAIL(MS_EINTERNAL, "%s: its row of the op table has no axes", name);
  const int words = words_of(node->op);
  if (words & RESHAPE) return label_reshaped(in, out, axes);
  MS_TRY(read_inputs(node, words, in, axes));
  read_words(node, words, in, out, axes);
  if (words & PART) find_contiguous(node, axes);
  if (words & (PLACED | PLACED1)) find_placed(node, words, axes);
  if (words & ALONG) axes->label[axes->in[0][node->attrs.across.along]].whole = 1;
  if (words & EXCHANGE) axes->label[axes->in[0][node->attrs.across.split_axis]].whole = 1;
  if (words & EXCHANGE) axes->label[axes->in[0][node->attrs.across.concat_axis]].whole = 1;
  if (words & CUT) axes->label[axes->in[0][chosen_axis(node, in)]].whole = 1;
  MS_TRY(read_outputs(node, words, in, out, axes));
  if (words & ACT && node->attrs.product.activation) need_sums_whole(out, axes);
  const int repeats = !(words & CUT); /* a piece can have size 1 */
  for (int i = 0; i < node->inputs && repeats; i++) find_repeated(axes, &in[i], axes->in[i]);
  for (int o = 0; o < node->outputs && repeats; o++)
    if (!(axes->statistics >> o & 1)) find_repeated(axes, &out[o], axes->out[o]);
  for (int l = 0; l < axes->labels; l++)
    if (!axes->label[l].parts) axes->label[l].parts = 1;
  return MS_OK;
}

ms_op_attrs ms_axes_part_attrs(const ms_node *node, const ms_axes *axes, const ms_value_info *out, int label,
                               int64_t n) {
  ms_op_attrs attrs = node->attrs;
  if (label == axes->contiguous) attrs.table.parts = n;
  if (!(words_of(node->op) & (SHAPE | RESHAPE))) return attrs;
  for (int d = 0; d < out->ndim; d++)
    if (axes->out[0][d] == label && attrs.shape.d[d] > 0) attrs.shape.d[d] /= n;
  return attrs;
}

/* The part's run counts indices if it is along one axis, elements if along all. */
void ms_axes_place(int op, const ms_axes *axes, const ms_value_info *x, int axis, int64_t outer, ms_part part,
                   ms_op_attrs *attrs) {
  int64_t *own = free_part(op, attrs);
  if (axes->placed == MS_AXES_NONE || !own) return;
  if (axes->placed != MS_AXES_ALL && axes->placed != axes->in[0][axis]) return;
  part.run = x->dims[axis] / (outer * part.ranks);
  for (int d = axis + 1; d < x->ndim && axes->placed == MS_AXES_ALL; d++) part.run *= x->dims[d];
  *own = ms_part_attr(part);
}
