/* test_kernels_pieces.c - a number has the same bits wherever a piece of a tensor begins and ends: kernels compute
 * whole vectors and the elements at the ends by different loops, and where a mesh cuts a parameter must not change it.
 */
#include "base/numbers/dtype.h"
#include "tests/c/support/kernel_case.h"

enum { TOTAL = 1031, NUMBERS = 4 };

/* Whole vectors alone, those and a rest, a rest alone, and one element. */
static const int64_t cuts[] = {0, 512, 515, 1028, 1030, TOTAL};

/* The piece [first, first + n) of a case: of tensors of TOTAL elements; others are whole. Outputs begin as in `before`.
 */
static kernel_case piece_of(const kernel_case *c, void *const *before, int64_t first, int64_t n) {
  kernel_case piece = case_of(c->call.op);
  piece.call.attrs = c->call.attrs;
  piece.scalars = c->scalars;
  for (int i = 0; i < c->call.inputs; i++) {
    const int whole = ms_numel(&c->call.in[i]) != TOTAL, dtype = c->call.in[i].dtype;
    add_input(&piece, whole ? c->call.in[i] : SHAPE(dtype, n));
    memcpy((void *)piece.call.in_data[i], (const char *)c->call.in_data[i] + (whole ? 0 : first * ms_dtype_size(dtype)),
           (size_t)tensor_bytes(&piece.call.in[i]));
  }
  for (int o = 0; o < c->call.outputs; o++) {
    const int dtype = c->call.out[o].dtype;
    add_output(&piece, SHAPE(dtype, ms_numel(&c->call.out[o]) == TOTAL ? n : 0));
    memcpy(piece.call.out_data[o], (const char *)before[o] + first * ms_dtype_size(dtype),
           (size_t)tensor_bytes(&piece.call.out[o]));
  }
  return piece;
}

/* Runs the case, whose outputs may be read as well, and then its pieces. Frees it. */
static void pieces_have_the_bits_of_the_whole(kernel_case *c, const char *what) {
  void *before[MS_MAX_OUTPUTS];
  for (int o = 0; o < c->call.outputs; o++) {
    before[o] = poisoned(tensor_bytes(&c->call.out[o]));
    memcpy(before[o], c->call.out_data[o], (size_t)tensor_bytes(&c->call.out[o]));
  }
  run_once(c, c->call, 1);
  for (size_t k = 0; k + 1 < sizeof cuts / sizeof *cuts; k++) {
    kernel_case piece = piece_of(c, before, cuts[k], cuts[k + 1] - cuts[k]);
    if (c->call.op == MS_OP_adamw || c->call.op == MS_OP_lion) piece.call.attrs.update.first += cuts[k];
    contract(1);
    run_once(&piece, piece.call, 1);
    contract(0);
    for (int o = 0; o < c->call.outputs; o++)
      for (int64_t i = 0; i < ms_numel(&piece.call.out[o]); i++)
        if (!same_number(output_at(&piece, o, i), output_at(c, o, cuts[k] + i), 0.0))
          fail_msg("%s, output %d, element %d of the piece at %d: %.9g instead of %.9g", what, o, (int)i, (int)cuts[k],
                   output_at(&piece, o, i), output_at(c, o, cuts[k] + i));
    free_case(&piece);
  }
  for (int o = 0; o < c->call.outputs; o++) free(before[o]);
  free_case(c);
}

static void add_states(kernel_case *c, int outputs, int with_state, int dtype) {
  for (int o = 0; o < outputs; o++) {
    add_output(c, SHAPE(o ? dtype : MS_F32, with_state || !o ? TOTAL : 0));
    for (int64_t i = 0; i < ms_numel(&c->call.out[o]); i++)
      set_element(c->call.out_data[o], c->call.out[o].dtype, i, 0.6 + 0.5 * sin((double)(i * 11 + o)));
  }
}

/* Gradient, the numbers of step_norm, and the count of updates. */
static kernel_case update_case(int op) {
  kernel_case c = case_of(op);
  add_input(&c, SHAPE(MS_F32, TOTAL));
  add_input(&c, SHAPE(MS_F32, NUMBERS));
  set_input(&c, 1, 2, 0.37);
  add_input(&c, SCALAR(MS_F32));
  set_input(&c, 2, 0, 3);
  c.scalars.lr = 0.013;
  c.scalars.step = 3;
  return c;
}

static void updates_have_the_bits_of_the_whole(void **state) {
  (void)state;
  const double eps = 1e-8;
  FOR_EACH(dtype, dtypes) {
    kernel_case adamw = update_case(MS_OP_adamw);
    adamw.call.attrs = (ms_op_attrs){.update = {.stream = 77,
                                                .moments = dtype == MS_BF16,
                                                .lr_scale = 0.7,
                                                .weight_decay = 0.1,
                                                .beta1 = 0.9,
                                                .beta2 = 0.995}};
    adamw.call.attrs.update.eps = eps;
    add_states(&adamw, 3, 1, dtype);
    pieces_have_the_bits_of_the_whole(&adamw, "adamw");
    kernel_case lion = update_case(MS_OP_lion);
    lion.call.attrs = (ms_op_attrs){.update = {.stream = 77,
                                               .moments = dtype == MS_BF16,
                                               .lr_scale = 0.7,
                                               .weight_decay = 0.1,
                                               .beta1 = 0.9,
                                               .beta2 = 0.99}};
    add_states(&lion, 2, 1, dtype);
    pieces_have_the_bits_of_the_whole(&lion, "lion");
  }
  for (int momentum = 0; momentum < 2; momentum++) {
    kernel_case sgd = update_case(MS_OP_sgd), outer = case_of(MS_OP_outer_sgd);
    sgd.call.attrs = (ms_op_attrs){.update = {.nesterov = momentum,
                                              .lr_scale = 0.7,
                                              .weight_decay = 0.1,
                                              .momentum = 0.9 * momentum,
                                              .dampening = 0.2 * momentum}};
    add_states(&sgd, 2, momentum, MS_F32);
    pieces_have_the_bits_of_the_whole(&sgd, "sgd");
    outer.call.attrs =
        (ms_op_attrs){.outer_sgd = {.nesterov = momentum, .momentum = 0.9 * momentum, .alpha = 0.3, .share = 0.25}};
    outer.scalars.lr = 0.7;
    add_input(&outer, SHAPE(MS_F32, TOTAL));
    add_states(&outer, 2, 1, MS_F32);
    add_output(&outer, SHAPE(MS_F32, momentum ? TOTAL : 0));
    memset(outer.call.out_data[2], 0, (size_t)tensor_bytes(&outer.call.out[2]));
    pieces_have_the_bits_of_the_whole(&outer, "outer_sgd");
  }
  kernel_case ema = case_of(MS_OP_ema);
  ema.call.attrs = (ms_op_attrs){.ema = {.decay = 0.93}};
  ema.scalars.step = 3;
  add_input(&ema, SHAPE(MS_F32, TOTAL));
  add_states(&ema, 1, 1, MS_F32);
  pieces_have_the_bits_of_the_whole(&ema, "ema");
}

typedef struct elementwise {
  const char *name;
  int op, inputs, outputs;
} elementwise;

#define OP(name, inputs, outputs) \
  { #name, MS_OP_##name, inputs, outputs }

static void functions_have_the_bits_of_the_whole(void **state) {
  (void)state;
  static const elementwise ops[] = {OP(scale, 1, 1),         OP(tanh, 1, 1),           OP(sigmoid, 1, 1),
                                    OP(softplus, 1, 1),      OP(gelu, 1, 1),           OP(gelu_tanh, 1, 1),
                                    OP(silu, 1, 1),          OP(tanh_backward, 2, 1),  OP(sigmoid_backward, 2, 1),
                                    OP(gelu_backward, 2, 1), OP(swiglu, 2, 1),         OP(gelu_tanh_backward, 2, 1),
                                    OP(silu_backward, 2, 1), OP(swiglu_backward, 3, 2)};
  FOR_EACH(op, ops) FOR_EACH(dtype, dtypes) {
    kernel_case c = case_of(op.op);
    if (op.op == MS_OP_scale) c.call.attrs = (ms_op_attrs){.scale = {.alpha = 0.7, .beta = 0.3}};
    for (int i = 0; i < op.inputs; i++) add_input(&c, SHAPE(dtype, TOTAL));
    for (int o = 0; o < op.outputs; o++) add_output(&c, SHAPE(dtype, TOTAL));
    pieces_have_the_bits_of_the_whole(&c, op.name);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(updates_have_the_bits_of_the_whole),
      TEST(functions_have_the_bits_of_the_whole),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
