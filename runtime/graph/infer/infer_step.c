/* infer_step.c - shape rules of the ops that a sharded step runs on chunks: accumulation, norms, optimizers. All are
 * in f32, and a chunk can be empty on ranks that own nothing. */
#include <stdio.h>

#include "base/numbers/dtype.h"
#include "graph/infer/infer.h"
#include "kernels/adafactor.h"
#include "kernels/fold.h"
#include "kernels/formats/moments.h"
#include "kernels/products/orthogonalise.h"
#include "kernels/formats/quantised_sum.h"
#include "kernels/formats/storage.h"

static const ms_value_info scalar = {.dtype = MS_F32};

static ms_value_info vector(int64_t n) { return (ms_value_info){.dtype = MS_F32, .ndim = 1, .dims = {n}}; }

/* f32 [n] */
static int check_chunk(const ms_node *node, const ms_value_info *x, const char *what) {
  MS_TRY(ms_check_ndim(node, x, 1, what, "[n]"));
  return ms_check_dtype(node, x, MS_F32, what);
}

/* f32 [n], for one n */
static int check_vector(const ms_node *node, const ms_value_info *x, int64_t n, const char *what) {
  ms_value_info wanted = vector(n);
  MS_TRY(ms_check_dtype(node, x, MS_F32, what));
  return ms_check_same_shape(node, &wanted, "the expected shape", x, what);
}

int ms_infer_fold(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_check_ndim(node, &in[0], 3, "the input", "[a,b,run]"));
  out[0] = in[0];
  if (node->attrs.fold.what == MS_FOLD_TAKE) out[0].dims[1] = 1;
  else if (node->attrs.fold.what == MS_FOLD_PUT) out[0].dims[1] = node->attrs.fold.ranks;
  else out[0].dims[0] = in[0].dims[1], out[0].dims[1] = in[0].dims[0];
  return MS_OK;
}

/* All elements that the records have room for; a parameter can have fewer. */
int ms_infer_dequantise(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  ms_storage storage;
  MS_TRY(ms_check_ndim(node, &in[0], 1, "the input", "[words]"));
  MS_TRY(ms_check_dtype(node, &in[0], MS_I32, "the input"));
  MS_TRY(ms_storage_find((int)node->attrs.stored.storage, node->attrs.stored.record, &storage));
  out[0] = vector(in[0].dims[0] / storage.words * storage.elements);
  return ms_asked_dtype(node, MS_F32, MS_DTYPE_FLOAT, &out[0].dtype);
}

/* ---- sums in few bits ---- */

static int check_pieces(const ms_node *node, int64_t dtype, int64_t pieces, int64_t elements) {
  const char *op = ms_op_row_of(node->op)->name;
  char known[MS_DTYPE_LIST];
  if (!ms_dtype_may((int)dtype, MS_DTYPE_PIECES))
    return MS_FAIL(MS_EDTYPE, "%s: sums travel in %s, not in %s", op, ms_dtype_list(MS_DTYPE_PIECES, known),
                   ms_dtype_name((int)dtype));
  if (pieces < 1 || elements < 0)
    return MS_FAIL(MS_ESHAPE, "%s: %lld elements in %lld pieces", op, (long long)elements, (long long)pieces);
  return MS_OK;
}

static int check_words(const ms_node *node, const ms_value_info *x, int64_t words) {
  const ms_value_info wanted = {.dtype = MS_I32, .ndim = 1, .dims = {words}};
  MS_TRY(ms_check_dtype(node, x, MS_I32, "the input"));
  return ms_check_same_shape(node, &wanted, "the pieces", x, "the input");
}

/* The second output of an op that has one: what it rounds off. */
static void keep_rest(const ms_node *node, int64_t n, ms_value_info *out) {
  if (node->outputs == 2) out[1] = vector(n);
}

int ms_infer_quantise_pieces(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  const int64_t dtype = node->attrs.pieces.dtype, count = node->attrs.pieces.pieces;
  const int64_t stride = node->attrs.pieces.stride, group = node->attrs.pieces.group;
  MS_TRY(ms_check_ndim(node, &in[0], 1, "the input", "[n]"));
  MS_TRY(ms_check_float(node, &in[0], "the input"));
  const int64_t n = in[0].dims[0];
  MS_TRY(check_pieces(node, dtype, count, n));
  if (stride < 0 || (stride && (count - 1) * stride > n))
    return MS_FAIL(MS_ESHAPE, "%s: %lld pieces of %lld elements, of %lld", ms_op_row_of(node->op)->name,
                   (long long)count, (long long)stride, (long long)n);
  if (group < 0 || (group && count % group))
    return MS_FAIL(MS_ESHAPE, "%s: %lld pieces for groups of %lld ranks", ms_op_row_of(node->op)->name,
                   (long long)count, (long long)group);
  const ms_pieces pieces = ms_pieces_asked((int)dtype, n, count, stride);
  out[0] = (ms_value_info){.dtype = MS_I32, .ndim = 1, .dims = {count * pieces.words}};
  keep_rest(node, n, out);
  return MS_OK;
}

int ms_infer_sum_pieces(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  const int64_t dtype = node->attrs.pieces.dtype, count = node->attrs.pieces.pieces;
  const int64_t elements = node->attrs.pieces.elements, asked = node->attrs.pieces.each;
  MS_TRY(check_pieces(node, dtype, count, elements));
  if (asked < 0) return MS_FAIL(MS_ESHAPE, "%s: %lld pieces each", ms_op_row_of(node->op)->name, (long long)asked);
  int64_t each;
  const ms_pieces pieces = ms_pieces_to_sum((int)dtype, elements, count, asked, &each);
  MS_TRY(check_words(node, &in[0], count * each * pieces.words));
  out[0] = in[0];
  out[0].dims[0] = each * pieces.words;
  keep_rest(node, each * pieces.elements, out);
  return MS_OK;
}

int ms_infer_residuals(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  const int64_t n = node->attrs.residuals.elements;
  MS_TRY(ms_check_ndim(node, &in[0], 1, "a divisor", "[n]"));
  MS_TRY(ms_check_dtype(node, &in[0], MS_F32, "a divisor"));
  if (n < 0 || node->attrs.residuals.ranks < 0)
    return MS_FAIL(MS_EINVAL, "%s: %lld elements of %lld ranks", ms_op_row_of(node->op)->name, (long long)n,
                   (long long)node->attrs.residuals.ranks);
  out[0] = vector(n);
  return MS_OK;
}

int ms_infer_total_pieces(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  const int64_t dtype = node->attrs.pieces.dtype, count = node->attrs.pieces.pieces;
  const int64_t elements = node->attrs.pieces.elements;
  MS_TRY(check_pieces(node, dtype, count, elements));
  MS_TRY(check_words(node, &in[0], count * ms_pieces_each((int)dtype, elements).words));
  out[0] = vector(elements);
  return MS_OK;
}

int ms_infer_restore_pieces(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  const int64_t dtype = node->attrs.pieces.dtype, count = node->attrs.pieces.pieces;
  const int64_t elements = node->attrs.pieces.elements, stride = node->attrs.pieces.stride;
  const int64_t first = node->attrs.pieces.first;
  MS_TRY(check_pieces(node, dtype, count, elements));
  if (stride < 0 || stride % MS_PIECE_ALIGN || (stride && count * stride < elements))
    return MS_FAIL(MS_ESHAPE, "restore_pieces: %lld pieces of %lld elements, of %lld", (long long)count,
                   (long long)stride, (long long)elements);
  MS_TRY(check_words(node, &in[0], count * ms_pieces_asked((int)dtype, elements, count, stride).words));
  if (first < 0 || first > elements)
    return MS_FAIL(MS_ESHAPE, "restore_pieces: element %lld of %lld", (long long)first, (long long)elements);
  out[0] = vector(elements - first);
  return ms_asked_dtype(node, MS_F32, MS_DTYPE_FLOAT, &out[0].dtype);
}

int ms_infer_accumulate(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_check_float(node, &in[0], "the input"));
  out[0] = in[0];
  out[0].dtype = MS_F32;
  return MS_OK;
}

int ms_infer_chunk_to_scalar(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_chunk(node, &in[0], "the input"));
  out[0] = scalar;
  return MS_OK;
}

int ms_infer_f8_scales(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_chunk(node, &in[0], "the magnitudes"));
  out[0] = in[0];
  return MS_OK;
}

int ms_infer_f8_codes(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_check_dtype(node, &in[0], MS_F32, "the input"));
  MS_TRY(ms_check_ndim(node, &in[1], 0, "the scale", "a scalar"));
  MS_TRY(ms_check_dtype(node, &in[1], MS_F32, "the scale"));
  out[0] = in[0];
  out[0].dtype = MS_F8E4M3;
  return MS_OK;
}

int ms_infer_step_totals(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_chunk(node, &in[0], "squares"));
  const int64_t numbers = ms_numel(&in[1]), groups = ms_step_groups(&node->attrs);
  MS_TRY(check_vector(node, &in[1], numbers == 2 ? 2 : 1, "the loss sum"));
  if (ms_numel(&in[0]) % groups)
    return MS_FAIL(MS_ESHAPE, "step_totals: %lld squares are not those of %lld groups", (long long)ms_numel(&in[0]),
                   (long long)groups);
  out[0] = vector(groups + numbers);
  return MS_OK;
}

int ms_infer_step_norm(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  const int64_t groups = ms_step_groups(&node->attrs), group = node->attrs.step.group;
  if (group < 0 || group > groups)
    return MS_FAIL(MS_EINVAL, "step_norm: group %lld of %lld", (long long)group, (long long)groups);
  MS_TRY(check_vector(node, &in[0], groups + (ms_numel(&in[0]) == groups + 2 ? 2 : 1), "totals"));
  out[0] = vector(4);
  return MS_OK;
}

int ms_infer_ema(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_chunk(node, &in[0], "the weights"));
  out[0] = in[0];
  return MS_OK;
}

int ms_infer_optimizer(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_chunk(node, &in[0], "the gradient"));
  MS_TRY(check_vector(node, &in[1], 4, "the step norm"));
  MS_TRY(ms_check_ndim(node, &in[2], 0, "the count of updates", "a scalar"));
  MS_TRY(ms_check_dtype(node, &in[2], MS_F32, "the count of updates"));
  for (int i = 0; i < node->outputs; i++) out[i] = in[0];
  if (ms_op_has(node->op, "moments")) {
    enum { MASTER_AND_PAIR = 3 }; /* outputs; records in 8 bits are of a pair of moments */
    const ms_moment_form *form = ms_moment_form_in(node->attrs.update.moments);
    if (!form || (form->block && ms_op_row_of(node->op)->outputs < MASTER_AND_PAIR))
      return MS_FAIL(MS_EINVAL, "%s: moments %lld: it has no such form", ms_op_row_of(node->op)->name,
                     (long long)node->attrs.update.moments);
    for (int i = 1; i < node->outputs; i++) {
      out[i] = vector(ms_moment_count(form, in[0].dims[0]));
      out[i].dtype = form->in_state;
    }
  }
  int without_momentum = node->op == MS_OP_sgd && node->attrs.update.momentum == 0;
  if (without_momentum) out[1] = vector(0);
  return MS_OK;
}

int ms_infer_outer_sgd(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_check_ndim(node, &in[0], 1, "the sum of differences", "[n]"));
  MS_TRY(ms_check_dtype(node, &in[0], MS_F32, "the sum of differences"));
  out[0] = out[1] = in[0];
  out[2] = node->attrs.outer_sgd.momentum == 0 ? vector(0) : in[0];
  return MS_OK;
}

int ms_infer_muon_momentum(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_check_ndim(node, &in[0], 1, "the gradient", "[n]"));
  MS_TRY(ms_check_dtype(node, &in[0], MS_F32, "the gradient"));
  MS_TRY(check_vector(node, &in[1], 4, "the step norm"));
  out[0] = out[1] = in[0];
  return MS_OK;
}

int ms_infer_muon_orthogonalise(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  const int64_t steps = node->attrs.orthogonalise.steps, dtype = node->attrs.orthogonalise.dtype;
  if (in[0].ndim != 3) MS_TRY(ms_check_ndim(node, &in[0], 2, "the matrix", "[m,n]"));
  MS_TRY(ms_check_dtype(node, &in[0], MS_F32, "the matrix"));
  if (steps < 1 || dtype < MS_ORTHOGONALISE_F32 || dtype > MS_ORTHOGONALISE_BF16)
    return MS_FAIL(MS_EINVAL, "muon_orthogonalise: %lld steps with dtype %lld: at least one step, dtype 0 or 1",
                   (long long)steps, (long long)dtype);
  out[0] = in[0];
  return MS_OK;
}

/* A part of a matrix, on its way to its owner or back. */
int ms_infer_part(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_check_ndim(node, &in[0], 1, "the part", "[n]"));
  MS_TRY(ms_check_dtype(node, &in[0], MS_F32, "the part"));
  out[0] = in[0];
  return MS_OK;
}

int ms_infer_clip_heads(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  const int64_t first = node->attrs.heads.first, n = node->attrs.heads.elements, columns = node->attrs.heads.columns,
                head = node->attrs.heads.head, shared = node->attrs.heads.shared;
  MS_TRY(ms_check_ndim(node, &in[0], 1, "the largest scores", "[n]"));
  MS_TRY(ms_check_dtype(node, &in[0], MS_F32, "the largest scores"));
  if (first < 0 || n < 0 || columns < 1 || head < 1 || shared < 1 ||
      (n && (first + n - 1) / columns / head >= in[0].dims[0] / shared))
    return MS_FAIL(
        MS_ESHAPE,
        "clip_heads: %lld elements from %lld on of rows of %lld, %lld rows a head, and %lld scores, %lld a head",
        (long long)n, (long long)first, (long long)columns, (long long)head, (long long)in[0].dims[0],
        (long long)shared);
  out[0] = vector(n);
  return MS_OK;
}

int ms_infer_copy_runs(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  const int64_t run = node->attrs.runs.run, from = node->attrs.runs.from, to = node->attrs.runs.to;
  MS_TRY(ms_check_ndim(node, &in[0], 1, "the part", "[n]"));
  MS_TRY(ms_check_dtype(node, &in[0], MS_F32, "the part"));
  const int64_t after = in[0].dims[0] - run;
  if (run < 1 || from < run || to < run || after < 0 || after % from)
    return MS_FAIL(MS_ESHAPE, "copy_runs: runs of %lld elements in every %lld of %lld, and in every %lld of the output",
                   (long long)run, (long long)from, (long long)in[0].dims[0], (long long)to);
  out[0] = vector(after / from * to + run);
  return MS_OK;
}

/* ---- Adafactor --------------------------------------------------------------------------------------------------- */

static int check_factored(const ms_node *node, const ms_factored *f) {
  const int shaped = f->rows >= 1 && f->columns >= 1 && f->matrices >= 0 && (f->matrices || f->columns == 1);
  if (shaped && f->first >= 0 && f->run >= 1 && f->origin >= 0 && f->run <= f->stride - f->origin &&
      (f->run % f->columns == 0 || f->stride == f->columns))
    return MS_OK;
  return MS_FAIL(MS_ESHAPE,
                 "%s: %lld matrices of [%lld,%lld], of which a part has %lld from %lld of every %lld elements",
                 ms_op_row_of(node->op)->name, (long long)f->matrices, (long long)f->rows, (long long)f->columns,
                 (long long)f->run, (long long)f->origin, (long long)f->stride);
}

/* A gradient, and what its elements are of. */
static int check_elements(const ms_node *node, const ms_value_info *in, ms_factored *f) {
  *f = ms_factored_of(&node->attrs);
  MS_TRY(check_factored(node, f));
  MS_TRY(check_chunk(node, &in[0], "the gradient"));
  return check_vector(node, &in[1], 4, "the step norm");
}

int ms_infer_adafactor_sums(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  ms_factored f;
  MS_TRY(check_elements(node, in, &f));
  out[0] = vector(ms_factored_row_count(&f));
  out[1] = vector(ms_factored_column_count(&f));
  return MS_OK;
}

int ms_infer_adafactor_average(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  ms_factored f = {.rows = node->attrs.factored.rows,
                   .columns = node->attrs.factored.columns,
                   .matrices = node->attrs.factored.matrices};
  f.run = f.stride = f.columns;
  MS_TRY(check_factored(node, &f));
  MS_TRY(check_vector(node, &in[0], ms_factored_row_count(&f), "the sums of rows"));
  MS_TRY(check_vector(node, &in[1], ms_factored_column_count(&f), "the sums of columns"));
  MS_TRY(ms_check_ndim(node, &in[2], 0, "the count of updates", "a scalar"));
  out[0] = in[0];
  out[1] = in[1];
  return MS_OK;
}

static int check_averages(const ms_node *node, const ms_value_info *in, ms_factored *f) {
  MS_TRY(check_elements(node, in, f));
  MS_TRY(check_vector(node, &in[2], ms_factored_row_count(f), "the averages of rows"));
  return check_vector(node, &in[3], ms_factored_column_count(f), "the averages of columns");
}

int ms_infer_adafactor_norm(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  ms_factored f;
  MS_TRY(check_averages(node, in, &f));
  MS_TRY(ms_check_ndim(node, &in[4], 0, "the sum of squares", "a scalar"));
  MS_TRY(ms_check_ndim(node, &in[5], 0, "the count of updates", "a scalar"));
  out[0] = scalar;
  out[1] = vector(f.matrices + 1);
  return MS_OK;
}

int ms_infer_adafactor(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  ms_factored f;
  MS_TRY(check_averages(node, in, &f));
  MS_TRY(check_vector(node, &in[4], f.matrices + 1, "the means"));
  MS_TRY(ms_check_ndim(node, &in[5], 0, "the sum of squares of updates", "a scalar"));
  out[0] = in[0];
  return MS_OK;
}
