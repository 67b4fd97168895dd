/* test_kernels_grouped_f8.c - products of groups of rows in 8 bits, of every recipe: each group's are those of a linear
 * layer with its rows and its weight; and those of NumPy (make_blockwise.py).
 */
#include "tests/c/products/blockwise_fixture.h"

#include "kernels/products/matmul_f8.h"

typedef struct groups {
  int64_t rows, inner, columns, n;
  int32_t offsets[8];
} groups;

static const groups some_groups[] = {
    /* rows of no group, a group of one row, and one of none */
    {21, 32, 64, 4, {1, 2, 2, 13, 20}},
    /* more than one tile of 128 on each axis, and rests */
    {150, 160, 160, 2, {0, 7, 150}},
};

static const int recipes[] = {MS_FP8_TENSORWISE, MS_FP8_ROWWISE,   MS_FP8_ROWWISE_WITH_GW_HP,
                              MS_FP8_MXFP8,      MS_FP8_BLOCKWISE, MS_FP8_BLOCKWISE_POWER_2_SCALE};

static void add_offsets(kernel_case *c, const int32_t *offsets, int64_t n) {
  const int i = add_input(c, SHAPE(MS_I32, n + 1));
  for (int64_t e = 0; e <= n; e++) set_input(c, i, e, offsets[e]);
}

static kernel_case case_of_groups(groups g, int recipe, int product, int trans_b, int dtype, int out_dtype) {
  const int to_weight = product == MS_F8_DW || product == MS_F8_DW_TURNED;
  kernel_case c = case_of(to_weight ? MS_OP_grouped_matmul_f8_backward_weight : MS_OP_grouped_matmul_f8);
  c.call.attrs.product.recipe = recipe;
  c.call.attrs.product.product = product;
  c.call.attrs.product.trans_b = !to_weight && trans_b;
  add_input(&c, SHAPE(dtype, g.rows, g.inner));
  if (to_weight) add_input(&c, SHAPE(dtype, g.rows, g.columns));
  else add_input(&c, SHAPE(dtype, g.n, trans_b ? g.columns : g.inner, trans_b ? g.inner : g.columns));
  add_offsets(&c, g.offsets, g.n);
  if (to_weight) add_output(&c, SHAPE(out_dtype, g.n, g.inner, g.columns));
  else add_output(&c, SHAPE(out_dtype, g.rows, g.columns));
  /* Rows of very different sizes. */
  for (int64_t i = 0; i < g.rows; i++)
    for (int64_t k = 0; k < g.inner; k++)
      set_input(&c, 0, i * g.inner + k, ldexp(input_at(&c, 0, i * g.inner + k), (int)(i % 5) * 3 - 6));
  return c;
}

/* ---- an expert is a layer ---------------------------------------------------------------------------------------- */

/* The linear product of a group, on the CPU, in f32. */
static void multiply_group(const kernel_case *c, groups g, int64_t e, float *y) {
  const int to_weight = c->call.out[0].ndim == 3, dtype = c->call.in[0].dtype,
            trans_b = !to_weight && c->call.attrs.product.trans_b;
  const int64_t begin = g.offsets[e], rows = g.offsets[e + 1] - begin;
  const int64_t per_weight = g.inner * g.columns, size = ms_dtype_size(dtype);
  ms_kernel_call call = {.op = MS_OP_matmul_f8, .inputs = 2, .outputs = 1, .threads = 1};
  call.attrs.product = c->call.attrs.product;
  call.attrs.product.trans_a = to_weight;
  call.attrs.out_dtype = 1 + MS_F32;
  call.in[0] = SHAPE(dtype, rows, g.inner);
  call.in_data[0] = (const char *)c->call.in_data[0] + begin * g.inner * size;
  if (to_weight) call.in[1] = SHAPE(dtype, rows, g.columns);
  else call.in[1] = SHAPE(dtype, trans_b ? g.columns : g.inner, trans_b ? g.inner : g.columns);
  call.in_data[1] = (const char *)c->call.in_data[1] + (to_weight ? begin * g.columns : e * per_weight) * size;
  call.out[0] = to_weight ? SHAPE(MS_F32, g.inner, g.columns) : SHAPE(MS_F32, rows, g.columns);
  call.out_data[0] = y;
  const ms_kernel *kernel = ms_cpu_kernel(call.op);
  must(kernel->prepare(&call));
  call.workspace = aligned_alloc(64, (size_t)(call.workspace_bytes + 63) / 64 * 64);
  must(kernel->run(&call));
  free(call.workspace);
  kernel->release(call.prepared);
}

static void check_groups(groups g, int recipe, int product, int trans_b, int dtype, int out_dtype) {
  const int to_weight = product == MS_F8_DW || product == MS_F8_DW_TURNED;
  kernel_case c = case_of_groups(g, recipe, product, trans_b, dtype, out_dtype);
  float *y = malloc((size_t)((g.rows + g.inner) * g.columns) * sizeof *y);
  run_case(&c);
  for (int64_t i = 0; !to_weight && i < g.rows * g.columns; i++)
    if (i / g.columns < g.offsets[0] || i / g.columns >= g.offsets[g.n]) assert_output(&c, 0, i, 0, 0);
  for (int64_t e = 0; e < g.n; e++) {
    const int64_t rows = g.offsets[e + 1] - g.offsets[e], n = (to_weight ? g.inner : rows) * g.columns;
    const int64_t first = (to_weight ? e * g.inner : g.offsets[e]) * g.columns;
    double largest = 0;
    for (int64_t i = 0; i < n; i++) y[i] = 0;
    if (rows) multiply_group(&c, g, e, y);
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)y[i]));
    for (int64_t i = 0; i < n; i++) assert_output(&c, 0, first + i, (double)y[i], 2e-6 * largest);
  }
  free(y);
  free_case(&c);
}

static void Q4_an_expert_is_a_layer_with_its_rows(void **state) {
  (void)state;
  FOR_EACH(g, some_groups)
  FOR_EACH(recipe, recipes)
  for (int product = 0; product < MS_F8_PRODUCTS; product++) {
    if (!ms_f8_rounds(recipe, product) || too_large(g.rows * g.inner * g.columns / 10)) continue;
    const int trans_b = product == MS_F8_OUTPUT;
    check_groups(g, recipe, product, trans_b, MS_BF16, MS_BF16);
    if (recipe == MS_FP8_BLOCKWISE || recipe == MS_FP8_MXFP8)
      check_groups(g, recipe, product, !trans_b, MS_F32, MS_F32);
  }
}

/* ---- NumPy's ----------------------------------------------------------------------------------------------------- */

static void check_fixture(const ms_safetensors *file, int recipe, int product) {
  static const char *const results[] = {".y", ".dx", ".dw"};
  const int first = product == MS_F8_OUTPUT ? BLOCKWISE_X : BLOCKWISE_DY;
  groups g = {BLOCKWISE_ROWS, BLOCKWISE_OUTPUTS, BLOCKWISE_INPUTS, BLOCKWISE_EXPERTS, {0}};
  if (product == MS_F8_OUTPUT) g.inner = BLOCKWISE_INPUTS, g.columns = BLOCKWISE_OUTPUTS;
  memcpy(g.offsets, blockwise_offsets, sizeof blockwise_offsets);
  kernel_case c = case_of_groups(g, recipe, product, product == MS_F8_OUTPUT, MS_BF16, MS_F32);
  blockwise_fill(&c, 0, first);
  blockwise_fill(&c, 1, product == MS_F8_DW ? BLOCKWISE_X : BLOCKWISE_W);
  run_case(&c);
  blockwise_compare(file, &c, "experts.", ms_f8_recipe_name(recipe), results[product], 2e-6);
  free_case(&c);
}

static void Q4_products_of_experts_are_those_of_numpy(void **state) {
  ms_safetensors *file;
  (void)state;
  must(ms_safetensors_open(BLOCKWISE, &file, NULL));
  FOR_EACH(recipe, recipes)
  for (int product = 0; product <= MS_F8_DW; product++)
    if (ms_f8_rounds(recipe, product)) check_fixture(file, recipe, product);
  ms_free(file);
}

/* ---- what is broken ---------------------------------------------------------------------------------------------- */

static void Q4_a_broken_row_stays_in_its_tile(void **state) {
  const groups g = some_groups[1];
  (void)state;
  kernel_case c = case_of_groups(g, MS_FP8_BLOCKWISE, MS_F8_OUTPUT, 1, MS_F32, MS_F32);
  set_input(&c, 0, 3 * g.inner + 130, NAN);
  run_case(&c);
  for (int64_t j = 0; j < g.columns; j++) {
    assert_true(isnan(output_at(&c, 0, 3 * g.columns + j)));
    assert_true(isfinite(output_at(&c, 0, 2 * g.columns + j)) && isfinite(output_at(&c, 0, 4 * g.columns + j)));
  }
  free_case(&c);
}

static void Q5_wrong_offsets_are_reported(void **state) {
  (void)state;
  kernel_case c = case_of_groups(some_groups[1], MS_FP8_BLOCKWISE, MS_F8_DX, 0, MS_BF16, MS_BF16);
  set_input(&c, 2, 2, 151);
  assert_fails(run_status(&c, 1), MS_EINVAL, TOLD("offset 2 is 151 | 150", "151 | [7,151)"));
  free_case(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(Q4_an_expert_is_a_layer_with_its_rows),
      TEST(Q4_products_of_experts_are_those_of_numpy),
      TEST(Q4_a_broken_row_stays_in_its_tile),
      TEST(Q5_wrong_offsets_are_reported),
  };
  return cmocka_run_group_tests_name("products of experts in 8 bits", tests, NULL, NULL);
}
