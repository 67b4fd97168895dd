/* kernel_work.c - what a kernel of a plan does, in the numbers on which its time depends. They are read from the
 * prepared call, so the shapes are those that run.
 */
#include "base/numbers/dtype.h"
#include "kernels/attention_options.h"
#include "kernels/cuda/plan/conv2d.h"
#include "kernels/gated_delta_rule.h"
#include "kernels/products/linear_cross_entropy.h"
#include "kernels/products/matmul_f8.h"
#include "kernels/products/orthogonalise.h"
#include "price/price.h"

static int is_float(int dtype) { return dtype == MS_F32 || dtype == MS_BF16; }

/* The dtype in which most ops compute: that of the first operand that is not an integer. */
static int dtype_of(const ms_kernel_call *call) {
  for (int i = 0; i < call->inputs; i++)
    if (is_float(call->in[i].dtype)) return call->in[i].dtype;
  return call->outputs ? call->out[0].dtype : MS_F32;
}

static void set_sizes(ms_kernel_work *work, const double size[4]) {
  for (int i = 0; i < 4; i++) work->size[i] = size[i];
}

/* ---- kinds of kernels -------------------------------------------------------------------------------------------- */

static int read_product(const ms_kernel_call *call, const ms_cost_case *c, int device, ms_kernel_work *work) {
  (void)c, (void)device;
  const int inputs = call->inputs - ms_dtype_may(call->in[1].dtype, MS_DTYPE_SCALED); /* without the scale of codes */
  ms_product p;
  MS_TRY(ms_f8_product_of(call, &p));
  work->variant = (p.trans_a ? MS_VARIANT_TRANS_A : 0) | (p.trans_b ? MS_VARIANT_TRANS_B : 0) |
                  (p.accumulate ? MS_VARIANT_ADDS : 0) | (p.activation || inputs > 2 ? MS_VARIANT_EPILOGUE : 0) |
                  (p.batch > 1 && p.shared_b ? MS_VARIANT_SHARED_B : 0);
  set_sizes(work, (const double[4]){(double)p.batch, (double)p.m, (double)p.n, (double)p.k});
  return MS_OK;
}

/* A CPU multiplies the values of 8-bit codes, in bf16 or f32 (kernels/cpu/matmul/matmul_f8.c). */
static int read_f8_product(const ms_kernel_call *call, const ms_cost_case *c, int device, ms_kernel_work *work) {
  ms_f8 f8;
  MS_TRY(ms_f8_of(call, &f8));
  work->dtype =
      device == MS_DEVICE_CPU ? ms_f8_values_dtype((int)call->attrs.product.recipe, f8.a.block > 0) : MS_F8E4M3;
  return read_product(call, c, device, work);
}

/* q [B,T,H,D], k [B,S,G,D] */
static int read_attention(const ms_kernel_call *call, const ms_cost_case *c, int device, ms_kernel_work *work) {
  (void)device;
  const ms_value_info *q = &call->in[0];
  const ms_attention_options o = ms_attention_options_of(call->op, &call->attrs, call->in);
  work->variant = (o.causal ? MS_VARIANT_CAUSAL : 0) | (o.backward ? MS_VARIANT_BACKWARD : 0);
  set_sizes(work, (const double[4]){(double)(q->dims[0] * q->dims[2]), (double)q->dims[1], ms_attention_keys(c),
                                    (double)q->dims[3]});
  return MS_OK;
}

/* The products of all chunks, whose sizes are those of the logits', also where logits are made again. */
static int read_chunked_loss(const ms_kernel_call *call, const ms_cost_case *c, int device, ms_kernel_work *work) {
  (void)c, (void)device;
  const ms_loss_sizes l = ms_loss_sizes_of(call->op, &call->attrs, call->in);
  const double rows = (double)l.rows / (double)l.chunks;
  work->variant = MS_VARIANT_TRANS_B | MS_VARIANT_SHARED_B;
  work->flops += l.again * 2 * (double)l.rows * (double)l.classes * (double)l.dim;
  set_sizes(work,
            (const double[4]){(double)(l.chunks * (l.logits + l.dx + l.dw)), rows, (double)l.classes, (double)l.dim});
  return MS_OK;
}

/* Two products with the square of the smaller size m for each step, and one of that square. */
static int read_orthogonalise(const ms_kernel_call *call, const ms_cost_case *c, int device, ms_kernel_work *work) {
  (void)c, (void)device;
  const double m = (double)ms_orthogonalise_inner(&call->in[0]), n = (double)ms_orthogonalise_outer(&call->in[0]);
  work->dtype = call->attrs.orthogonalise.dtype == MS_ORTHOGONALISE_BF16 ? MS_BF16 : MS_F32;
  const double products = 3 * (double)(call->attrs.orthogonalise.steps * ms_orthogonalise_matrices(&call->in[0]));
  set_sizes(work, (const double[4]){products, m, (2 * n + m) / 3, m});
  return MS_OK;
}

/* A GPU computes convolutions in f32 arithmetic, and some of them in parts of the sum. */
static int read_convolution(const ms_kernel_call *call, const ms_cost_case *c, int device, ms_kernel_work *work) {
  (void)c;
  int64_t size[4];
  ms_conv_product(call, size);
  for (int i = 0; i < 4; i++) work->size[i] = (double)size[i];
  if (device == MS_DEVICE_CPU) return MS_OK;
  const double parts = (double)ms_conv_parts_of(call);
  work->dtype = MS_F32;
  work->size[0] *= parts;
  work->size[3] /= parts;
  return MS_OK;
}

/* Products in f32 of a chunk's rows with the state of each head; chunks follow each other, so heads alone are side by
 * side. The gradient makes the states again. */
static int read_delta_rule(const ms_kernel_call *call, const ms_cost_case *c, int device, ms_kernel_work *work) {
  (void)device;
  const ms_delta_rule r = ms_delta_rule_of(call->op, &call->attrs, call->inputs, call->in);
  work->dtype = MS_F32;
  work->variant = r.backward ? MS_VARIANT_BACKWARD : 0;
  work->flops = ms_op_flops(c) * (r.backward ? 1.5 : 1);
  set_sizes(work, (const double[4]){(double)(r.batch * r.heads), MS_DELTA_CHUNK, (double)r.e, (double)r.d});
  return MS_OK;
}

/* Products of as many rows for each group. */
static int read_grouped_product(const ms_kernel_call *call, const ms_cost_case *c, int device, ms_kernel_work *work) {
  (void)c, (void)device;
  const double groups = (double)(call->in[2].dims[0] - 1), rows = (double)call->in[0].dims[0] / groups;
  const double inner = (double)call->in[0].dims[1];
  const int to_w = call->out[0].ndim == 3;
  const double columns = (double)call->out[0].dims[call->out[0].ndim - 1];
  work->variant = to_w ? MS_VARIANT_TRANS_A : call->attrs.product.trans_b ? MS_VARIANT_TRANS_B : 0;
  set_sizes(work, (const double[4]){groups, to_w ? inner : rows, columns, to_w ? rows : inner});
  return MS_OK;
}

/* Every device multiplies the values of codes (kernels/cpu/matmul/grouped_matmul.c, kernels/cuda/grouped). */
static int read_grouped_f8(const ms_kernel_call *call, const ms_cost_case *c, int device, ms_kernel_work *work) {
  work->dtype = ms_f8_values_dtype((int)call->attrs.product.recipe, 1);
  return read_grouped_product(call, c, device, work);
}

static int read_other(const ms_kernel_call *call, const ms_cost_case *c, int device, ms_kernel_work *work) {
  (void)c, (void)device;
  const ms_value_info *largest = call->inputs ? &call->in[0] : &call->out[0];
  for (int i = 0; i < call->inputs + call->outputs; i++) {
    const ms_value_info *info = i < call->inputs ? &call->in[i] : &call->out[i - call->inputs];
    if (ms_numel(info) > ms_numel(largest)) largest = info;
  }
  work->size[0] = (double)ms_numel(largest);
  work->size[1] = largest->ndim ? (double)largest->dims[largest->ndim - 1] : 1;
  work->size[2] = work->size[3] = 1;
  return MS_OK;
}

/* What a kernel is, by its row's column `work`. */
typedef struct kind {
  ms_work (*work)(const ms_cost_case *c);
  int shape;
  int (*read)(const ms_kernel_call *call, const ms_cost_case *c, int device, ms_kernel_work *work);
} kind;

static const kind KINDS[] = {
    {ms_work_product, MS_SHAPE_PRODUCT, read_product},
    {ms_work_product_bias, MS_SHAPE_PRODUCT, read_product},
    {ms_work_product_f8, MS_SHAPE_PRODUCT, read_f8_product},
    {ms_work_chunked_loss, MS_SHAPE_PRODUCT, read_chunked_loss},
    {ms_work_orthogonalise, MS_SHAPE_PRODUCT, read_orthogonalise},
    {ms_work_convolution, MS_SHAPE_PRODUCT, read_convolution},
    {ms_work_grouped_product, MS_SHAPE_PRODUCT, read_grouped_product},
    {ms_work_grouped_product_f8, MS_SHAPE_PRODUCT, read_grouped_f8},
    {ms_work_gated_delta_rule, MS_SHAPE_PRODUCT, read_delta_rule},
    {ms_work_attention, MS_SHAPE_ATTENTION, read_attention},
};
static const kind OTHER = {NULL, MS_SHAPE_OTHER, read_other};

static const kind *kind_of(const ms_op_row *row) {
  for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
    if (KINDS[i].work == row->work) return &KINDS[i];
  return &OTHER;
}

int ms_op_kernel_shape(int op) {
  const ms_op_row *row = ms_op_row_of(op);
  return row ? kind_of(row)->shape : -1;
}

/* ---- calls of a plan --------------------------------------------------------------------------------------------- */

int ms_kernel_work_of(const ms_plan *plan, const ms_kernel_call *call, ms_kernel_work *work) {
  const kind *k = kind_of(ms_op_row_of(call->op));
  const ms_cost_case c = {call->op, &call->attrs, call->inputs, call->outputs, call->in, call->out};
  *work = (ms_kernel_work){.op = call->op,
                           .shape = k->shape,
                           .dtype = dtype_of(call),
                           .threads = plan->config.device == MS_DEVICE_CPU ? call->threads : 1,
                           .flops = ms_op_flops(&c),
                           .bytes = ms_op_bytes(&c)};
  return k->read(call, &c, plan->config.device, work);
}

int ms_kernel_work_check(const ms_kernel_work *work) {
  static const double MAX = 1e30; /* of operations, bytes and elements */
  if (!ms_op_row_of(work->op) || work->shape < 0 || work->shape >= MS_SHAPES || work->dtype < 0 ||
      work->dtype >= MS_DTYPES)
    return MS_FAIL(MS_EINVAL, "kernel: there is no op %d, no shape %d, or no dtype %d", work->op, work->shape,
                   work->dtype);
  if (work->shape != ms_op_kernel_shape(work->op))
    return MS_FAIL(MS_EINVAL, "kernel: op %s has shape %d, not %d (enum ms_kernel_shape)", ms_op_row_of(work->op)->name,
                   ms_op_kernel_shape(work->op), work->shape);
  if (work->threads < 1) return MS_FAIL(MS_EINVAL, "kernel: threads is %d; it must be at least 1", work->threads);
  int right = work->flops >= 0 && work->flops <= MAX && work->bytes >= 0 && work->bytes <= MAX;
  for (int i = 0; i < 4; i++) right &= work->size[i] > 0 && work->size[i] <= MAX;
  if (!right)
    return MS_FAIL(MS_EINVAL, "kernel: flops %g, bytes %g and four sizes: numbers from 0 to %g, sizes above 0",
                   work->flops, work->bytes, MAX);
  return MS_OK;
}

int ms_plan_kernel_work(const ms_plan *plan, int phase, int instruction, ms_kernel_work *work, int size) {
  MS_HANDLE(plan, PLAN);
  MS_GIVEN(work);
  if (phase < 0 || phase >= MS_PHASES || !plan->phase[phase].present)
    return MS_FAIL(MS_EINVAL, "the plan has no phase %d", phase);
  const ms_plan_phase *p = &plan->phase[phase];
  if (instruction < 0 || instruction >= p->n || p->instr[instruction].kind != MS_INSTR_KERNEL)
    return MS_FAIL(MS_EINVAL, "instruction %d of phase %s is not a kernel", instruction, ms_phase_name(phase));
  ms_kernel_work own;
  MS_TRY(ms_kernel_work_of(plan, p->instr[instruction].call, &own));
  MS_GIVE_INFO(work, size, own);
}
