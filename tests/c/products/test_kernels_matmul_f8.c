/* test_kernels_matmul_f8.c - products of operands rounded to 8 bits against sums in double of codes and scales from
 * the formats' definitions (rounded_operand.h): every recipe, each of the three products of a linear layer, transposes,
 * biases and activations; on CUDA by the library's factors, by our pass after it, and by our own tiles.
 */
#include "tests/c/products/blockwise_fixture.h"
#include "tests/c/products/rounded_operand.h"

#include "kernels/products/matmul_f8.h"
#include "kernels/formats/quantise.h"
#include "tests/c/support/fixture_file.h"

/* Sums of f32 on the CPU, in the emulation and in our own tiles. The 8-bit tensor cores of compute capability 9.0 keep
 * some 14 bits of a sum; `size` is that of the absolute products. */
static double tolerance_of(double size) {
#if defined(MS_TEST_CUDA) && !defined(EMULATED_CUDA)
  return 1e-3 * size + 2e-6;
#else
  return 1e-6 * (2 + size);
#endif
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

/* The recipe's columns of the table in matmul_f8.h, written again. */
typedef struct kind {
  int recipe, product, a_e4m3, b_e4m3, a_rows, b_rows, powers;
  tile_scales a_tiles, b_tiles;
} kind;

static const kind kinds[] = {{MS_FP8_TENSORWISE, MS_F8_OUTPUT, 1, 1, .powers = 0},
                             {MS_FP8_TENSORWISE, MS_F8_DX, 0, 1, .powers = 0},
                             {MS_FP8_TENSORWISE, MS_F8_DW, 0, 1, .powers = 0},
                             {MS_FP8_TENSORWISE, MS_F8_DW_TURNED, 1, 0, .powers = 0},
                             {MS_FP8_ROWWISE, MS_F8_OUTPUT, 1, 1, 1, 1, .powers = 1},
                             {MS_FP8_ROWWISE, MS_F8_DX, 1, 1, 1, 1, .powers = 1},
                             {MS_FP8_ROWWISE, MS_F8_DW, 1, 1, 1, 1, .powers = 1},
                             {MS_FP8_ROWWISE_WITH_GW_HP, MS_F8_OUTPUT, 1, 1, 1, 1, .powers = 1},
                             {MS_FP8_ROWWISE_WITH_GW_HP, MS_F8_DX, 1, 1, 1, 0, .powers = 1}};

/* Each 32 elements that are summed have a scale; or each 128, and 128 x 128 of a weight. */
#define MX \
  { 32, 1, 1, 1 }
#define TILES \
  { 128, 1, 0, 0 }
#define SQUARES \
  { 128, 128, 0, 0 }
#define POWER_TILES \
  { 128, 1, 0, 1 }
#define POWER_SQUARES \
  { 128, 128, 0, 1 }
static const kind block_kinds[] = {{MS_FP8_MXFP8, MS_F8_OUTPUT, .a_tiles = MX, .b_tiles = MX},
                                   {MS_FP8_MXFP8, MS_F8_DX, .a_tiles = MX, .b_tiles = MX},
                                   {MS_FP8_MXFP8, MS_F8_DW, .a_tiles = MX, .b_tiles = MX}};
static const kind tile_kinds[] = {
    {MS_FP8_BLOCKWISE, MS_F8_OUTPUT, .a_tiles = TILES, .b_tiles = SQUARES},
    {MS_FP8_BLOCKWISE, MS_F8_DX, .a_tiles = TILES, .b_tiles = SQUARES},
    {MS_FP8_BLOCKWISE, MS_F8_DW, .a_tiles = TILES, .b_tiles = TILES},
    {MS_FP8_BLOCKWISE_POWER_2_SCALE, MS_F8_DW_TURNED, .a_tiles = POWER_TILES, .b_tiles = POWER_TILES},
    {MS_FP8_BLOCKWISE_POWER_2_SCALE, MS_F8_DX, .a_tiles = POWER_TILES, .b_tiles = POWER_SQUARES}};

static kernel_case case_of_rounded(const product *p, const kind *of) {
  kernel_case c = case_of_product(p);
  c.call.op = MS_OP_matmul_f8;
  c.call.attrs.product.recipe = of->recipe;
  c.call.attrs.product.product = of->product;
  /* Rows of very different sizes, and some of zeros: each needs a scale of its own. */
  for (int64_t i = 0; i < p->m; i++)
    for (int64_t k = 0; k < p->k; k++) {
      const int64_t at = p->trans_a ? k * p->m + i : i * p->k + k;
      set_input(&c, 0, at, i % 7 == 3 ? 0 : ldexp(input_at(&c, 0, at), (int)(i % 5) * 3 - 6));
    }
  return c;
}

static void compare(const kernel_case *c, const product *p, const kind *of) {
  const rounded a = of->a_tiles.block ? round_blocks(c, p, 0, of->a_tiles)
                                      : round_operand(c, p, 0, of->a_e4m3, of->a_rows, of->powers);
  const rounded b = of->b_tiles.block ? round_blocks(c, p, 1, of->b_tiles)
                                      : round_operand(c, p, 1, of->b_e4m3, of->b_rows, of->powers);
  for (int64_t row = 0; row < p->m; row++)
    for (int64_t column = 0; column < p->n; column++) {
      double sum = 0, size = 0;
      for (int64_t k = 0; k < p->k; k++) {
        const double each = a.value[row * p->k + k] * b.value[column * p->k + k];
        sum += each;
        size += fabs(each);
      }
      sum /= a.scale[row] * b.scale[column];
      size /= a.scale[row] * b.scale[column];
      if (p->bias) sum += input_at(c, 2, column);
      assert_output(c, 0, row * p->n + column, activate(sum, p->activation),
                    tolerance_of(size) + rounded_if(p, p->bias));
    }
  free_rounded(a);
  free_rounded(b);
}

static void check_rounded(const product *p, const kind *of) {
  if (too_large(p->m * p->n * p->k / 10)) return;
  kernel_case c = case_of_rounded(p, of);
  run_case(&c);
  compare(&c, p, of);
  free_case(&c);
}

static void check_all(void) {
  static const product products[] = {{33, 32, 48, .trans_b = 1},
                                     {48, 80, 144, .trans_a = 1},
                                     {17, 32, 272, .trans_b = 0},
                                     {40, 16, 272, .trans_a = 1, .trans_b = 1},
                                     {1, 16, 16, .trans_b = 1}};
  FOR_EACH(of, kinds)
  FOR_EACH(shape, products)
  FOR_EACH(dtype, dtypes)
  FOR_EACH(out_dtype, dtypes) {
    product p = shape;
    p.dtype = dtype;
    p.out_dtype = out_dtype;
    check_rounded(&p, &of);
  }
}

static void check_blocks(void) {
  static const product products[] = {{33, 32, 64, .trans_b = 1},
                                     {48, 64, 160, .trans_a = 1},
                                     {17, 32, 288, .trans_b = 0},
                                     {140, 32, 64, .trans_a = 1, .trans_b = 1},
                                     {1, 160, 32, .trans_b = 1}};
  FOR_EACH(of, block_kinds)
  FOR_EACH(shape, products)
  FOR_EACH(dtype, dtypes) {
    product p = shape;
    p.dtype = p.out_dtype = dtype;
    check_rounded(&p, &of);
    p.bias = 1;
    p.bias_dtype = dtype;
    p.activation = MS_ACT_RELU;
    check_rounded(&p, &of);
  }
}

static void check_tiles(void) {
  static const product products[] = {{33, 32, 272, .trans_b = 1},
                                     {144, 32, 160, .trans_a = 1},
                                     {17, 160, 144, .trans_b = 0},
                                     {16, 144, 128, .trans_a = 1, .trans_b = 1},
                                     {1, 16, 16, .trans_b = 1}};
  FOR_EACH(of, tile_kinds)
  FOR_EACH(shape, products) {
    product p = shape;
    p.dtype = p.out_dtype = MS_F32;
    check_rounded(&p, &of);
    p.dtype = p.out_dtype = p.bias_dtype = MS_BF16;
    p.bias = 1;
    p.activation = MS_ACT_RELU;
    check_rounded(&p, &of);
  }
}

/* ---- torchao's recipes ------------------------------------------------------------------------------------------- */

#define PRODUCTS "tests/fixtures/low_precision/products.safetensors"
enum { ROWS = 16, INPUTS = 48, OUTPUTS = 32 };

static void fill_from(const ms_safetensors *file, kernel_case *c, int input, const char *name) {
  int64_t n;
  const float *x = fixture_tensor(file, name, &n);
  assert_int_equal(n, ms_numel(&c->call.in[input]));
  for (int64_t i = 0; i < n; i++) set_input(c, input, i, (double)x[i]);
}

static void check_fixture(const ms_safetensors *file, const product *p, const kind *of, const char *a, const char *b,
                          const char *result) {
  int64_t n;
  kernel_case c = case_of_rounded(p, of);
  fill_from(file, &c, 0, a);
  fill_from(file, &c, 1, b);
  const float *expected = fixture_part(file, ms_f8_recipe_name(of->recipe), result, &n);
  run_case(&c);
  double size = 0;
  for (int64_t i = 0; i < n; i++) size = fmax(size, fabs((double)expected[i]));
  for (int64_t i = 0; i < n; i++) assert_output(&c, 0, i, (double)expected[i], tolerance_of(size));
  free_case(&c);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void Q4_products_are_those_of_the_rounded_operands(void **state) {
  (void)state;
  check_all();
}

static void check_endings(void) {
  static const int activations[] = {MS_ACT_NONE, MS_ACT_RELU, MS_ACT_GELU, MS_ACT_GELU_TANH, MS_ACT_SILU};
  FOR_EACH(dtype, dtypes)
  FOR_EACH(activation, activations)
  for (int bias = 0; bias < 3; bias++) {
    product p = {20, 48, 32, .trans_b = 1, .dtype = dtype, .out_dtype = dtype, .activation = activation};
    p.bias = bias > 0;
    p.bias_dtype = bias == 1 ? MS_F32 : dtype;
    check_rounded(&p, &kinds[0]);
    check_rounded(&p, &kinds[4]);
  }
}

static void Q4_biases_and_activations_follow_the_product(void **state) {
  (void)state;
  check_endings();
}

static void Q4_products_are_those_of_torchaos_recipes(void **state) {
  ms_safetensors *file;
  (void)state;
  must(ms_safetensors_open(PRODUCTS, &file, NULL));
  FOR_EACH(of, kinds)
  FOR_EACH(dtype, dtypes) {
    product p = {ROWS, OUTPUTS, INPUTS, .trans_b = 1, .dtype = dtype, .out_dtype = MS_F32};
    if (of.product == MS_F8_DX) p = (product){ROWS, INPUTS, OUTPUTS, .trans_b = 0, .dtype = dtype};
    if (of.product == MS_F8_DW) p = (product){OUTPUTS, INPUTS, ROWS, .trans_a = 1, .dtype = dtype};
    if (of.product == MS_F8_OUTPUT) check_fixture(file, &p, &of, "x", "w", ".y");
    if (of.product == MS_F8_DX) check_fixture(file, &p, &of, "dy", "w", ".dx");
    if (of.product == MS_F8_DW) check_fixture(file, &p, &of, "dy", "x", ".dw");
  }
  ms_free(file);
}

/* ---- weights that come as codes ---------------------------------------------------------------------------------- */

/* The same product with b as codes and their scale. */
static kernel_case case_of_codes(const kernel_case *rounded) {
  const ms_quantisation q = {.dtype = MS_F8E4M3, .scaling = MS_SCALE_TENSOR};
  const ms_value_info *b = &rounded->call.in[1];
  const int64_t n = ms_numel(b);
  kernel_case c = case_of(MS_OP_matmul_f8_codes);
  float *values = malloc((size_t)n * sizeof *values);
  c.call.attrs = rounded->call.attrs;
  add_input(&c, rounded->call.in[0]);
  add_input(&c, shape(MS_F8E4M3, 2, b->dims));
  add_input(&c, SCALAR(MS_F32));
  if (rounded->call.inputs == 3) add_input(&c, rounded->call.in[2]);
  add_output(&c, rounded->call.out[0]);
  for (int i = 0; i < rounded->call.inputs; i++)
    for (int64_t e = 0; i != 1 && e < ms_numel(&rounded->call.in[i]); e++)
      set_input(&c, i ? MS_F8_CODED_BIAS_INPUT : 0, e, input_at(rounded, i, e));
  for (int64_t e = 0; e < n; e++) values[e] = (float)input_at(rounded, 1, e);
  must(ms_cpu_quantise(&q, values, n, (void *)c.call.in_data[MS_F8_CODES_INPUT],
                       (void *)c.call.in_data[MS_F8_SCALE_INPUT]));
  free(values);
  return c;
}

static void check_codes(const product *p, const kind *of) {
  kernel_case rounded = case_of_rounded(p, of), coded = case_of_codes(&rounded);
  run_case(&rounded);
  run_case(&coded);
  assert_memory_equal(coded.call.out_data[0], rounded.call.out_data[0], tensor_bytes(&coded.call.out[0]));
  free_case(&rounded);
  free_case(&coded);
}

static void check_all_codes(void) {
  static const product products[] = {
      {33, 32, 48, .trans_b = 1}, {17, 96, 272, .trans_b = 0}, {1, 16, 16, .trans_b = 0}};
  for (int of = 0; of < 2; of++) /* the two products of a tensorwise weight */
    FOR_EACH(shape, products)
  FOR_EACH(dtype, dtypes)
  for (int bias = 0; bias < 2; bias++) {
    product p = shape;
    p.dtype = p.out_dtype = p.bias_dtype = dtype;
    p.bias = bias;
    p.activation = bias ? MS_ACT_RELU : MS_ACT_NONE;
    if (!too_large(p.m * p.n * p.k / 10)) check_codes(&p, &kinds[of]);
  }
}

static void Q3_codes_give_the_bits_of_a_weight_that_is_rounded_now(void **state) {
  (void)state;
  check_all_codes();
  setenv("MOONSHARD_CUDA_MATMUL", "plain", 1);
  check_all_codes();
  unsetenv("MOONSHARD_CUDA_MATMUL");
}

/* A GPU that multiplies blocks is emulated; others have our own tiles. */
static void Q4_blocks_have_scales_of_their_own(void **state) {
  (void)state;
#ifdef EMULATED_CUDA
  setenv("MOONSHARD_EMULATE_CAPABILITY", "100", 1);
  check_blocks();
  unsetenv("MOONSHARD_EMULATE_CAPABILITY");
#endif
  setenv("MOONSHARD_CUDA_MATMUL", "plain", 1);
  check_blocks();
  unsetenv("MOONSHARD_CUDA_MATMUL");
}

static void Q4_tiles_and_squares_have_scales_of_their_own(void **state) {
  (void)state;
  check_tiles();
  setenv("MOONSHARD_CUDA_MATMUL", "plain", 1);
  check_tiles();
  unsetenv("MOONSHARD_CUDA_MATMUL");
}

static void Q4_blockwise_products_are_those_of_numpy(void **state) {
  ms_safetensors *file;
  (void)state;
  must(ms_safetensors_open(BLOCKWISE, &file, NULL));
  for (int recipe = MS_FP8_BLOCKWISE; recipe <= MS_FP8_BLOCKWISE_POWER_2_SCALE; recipe++)
    for (int made = MS_F8_OUTPUT; made <= MS_F8_DW; made++) {
      static const char *const results[] = {".y", ".dx", ".dw"};
      product p = {BLOCKWISE_ROWS, BLOCKWISE_OUTPUTS, BLOCKWISE_INPUTS, .trans_b = 1, .dtype = MS_BF16};
      if (made == MS_F8_DX) p.n = BLOCKWISE_INPUTS, p.k = BLOCKWISE_OUTPUTS, p.trans_b = 0;
      if (made == MS_F8_DW)
        p = (product){BLOCKWISE_OUTPUTS, BLOCKWISE_INPUTS, BLOCKWISE_ROWS, .trans_a = 1, .dtype = MS_BF16};
      p.out_dtype = MS_F32;
      kernel_case c = case_of_rounded(&p, &(kind){.recipe = recipe, .product = made});
      blockwise_fill(&c, 0, made == MS_F8_OUTPUT ? BLOCKWISE_X : BLOCKWISE_DY);
      blockwise_fill(&c, 1, made == MS_F8_DW ? BLOCKWISE_X : BLOCKWISE_W);
      run_case(&c);
      blockwise_compare(file, &c, "layer.", ms_f8_recipe_name(recipe), results[made], tolerance_of(1));
      free_case(&c);
    }
  ms_free(file);
}

static void put(kernel_case *c, int64_t row, int64_t k, double value) {
  set_input(c, 0, row * c->call.in[0].dims[1] + k, value);
}

/* With a scale a row, a NaN or an infinity spoils its row, which shows, and no other one. */
static void Q4_a_broken_row_stays_broken(void **state) {
  const product p = {4, 16, 32, .trans_b = 1, .dtype = MS_F32, .out_dtype = MS_F32};
  (void)state;
  kernel_case c = case_of_rounded(&p, &kinds[4]);
  for (int64_t k = 0; k < p.k; k++) put(&c, 3, k, 1);
  put(&c, 0, 3, NAN);
  put(&c, 1, 5, INFINITY);
  run_case(&c);
  for (int64_t column = 0; column < p.n; column++) {
    assert_true(isnan(output_at(&c, 0, column)));
    assert_true(isnan(output_at(&c, 0, p.n + column)));
    assert_true(isfinite(output_at(&c, 0, 2 * p.n + column)) && isfinite(output_at(&c, 0, 3 * p.n + column)));
  }
  free_case(&c);
}

#ifdef MS_TEST_CUDA
static void Q4_our_own_tiles_give_the_same(void **state) {
  (void)state;
  setenv("MOONSHARD_CUDA_MATMUL", "plain", 1);
  check_all();
  check_endings();
  unsetenv("MOONSHARD_CUDA_MATMUL");
}
#endif

#ifdef EMULATED_CUDA
/* Before it had factors by row. */
static void Q4_an_older_library_leaves_the_scales_to_us(void **state) {
  (void)state;
  setenv("MOONSHARD_EMULATE_CUBLASLT_VERSION", "120800", 1);
  check_all();
  check_endings();
  unsetenv("MOONSHARD_EMULATE_CUBLASLT_VERSION");
}
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(Q4_products_are_those_of_the_rounded_operands),
      TEST(Q4_products_are_those_of_torchaos_recipes),
      TEST(Q4_biases_and_activations_follow_the_product),
      TEST(Q3_codes_give_the_bits_of_a_weight_that_is_rounded_now),
      TEST(Q4_blocks_have_scales_of_their_own),
      TEST(Q4_tiles_and_squares_have_scales_of_their_own),
      TEST(Q4_blockwise_products_are_those_of_numpy),
      TEST(Q4_a_broken_row_stays_broken),
#ifdef MS_TEST_CUDA
      TEST(Q4_our_own_tiles_give_the_same),
#endif
#ifdef EMULATED_CUDA
      TEST(Q4_an_older_library_leaves_the_scales_to_us),
#endif
  };
  return cmocka_run_group_tests_name("matmul of 8-bit operands", tests, NULL, NULL);
}
