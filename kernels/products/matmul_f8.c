/* matmul_f8.c - the recipes as tables (matmul_f8.h). */
#include "kernels/products/matmul_f8.h"

#include <string.h>

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "kernels/formats/quantise.h"

enum { CODES = 16, ALL_PRODUCTS = (1 << MS_F8_PRODUCTS) - 1 }; /* CODES: that tensor cores add at a time */

/* The header says what the columns mean for products; `fast` and `rounds` are masks of enum ms_f8_product. */
typedef struct recipe {
  const char *name;
  int multiple, of_gradient; /* the dtype of dy's codes */
  int by_rows, one_of_weight;
  int block, side, e8m0;
  int powers, fast, rounds, gathers;
} recipe;

static const recipe RECIPES[] = {
    [MS_FP8_NONE] = {.name = "none"},
    [MS_FP8_TENSORWISE] = {.name = "tensorwise",
                           .multiple = CODES,
                           .of_gradient = MS_F8E5M2,
                           .fast = 1 << MS_F8_OUTPUT,
                           .rounds = ALL_PRODUCTS,
                           .gathers = 1},
    [MS_FP8_ROWWISE] = {.name = "rowwise",
                        .multiple = CODES,
                        .of_gradient = MS_F8E4M3,
                        .by_rows = 1,
                        .powers = 1,
                        .fast = ALL_PRODUCTS,
                        .rounds = ALL_PRODUCTS},
    [MS_FP8_ROWWISE_WITH_GW_HP] = {.name = "rowwise_with_gw_hp",
                                   .multiple = CODES,
                                   .of_gradient = MS_F8E4M3,
                                   .by_rows = 1,
                                   .one_of_weight = 1,
                                   .powers = 1,
                                   .fast = ALL_PRODUCTS,
                                   .rounds = 1 << MS_F8_OUTPUT | 1 << MS_F8_DX},
    [MS_FP8_MXFP8] = {.name = "mxfp8",
                      .multiple = MS_MX_BLOCK,
                      .of_gradient = MS_F8E4M3,
                      .block = MS_MX_BLOCK,
                      .side = 1,
                      .e8m0 = 1,
                      .powers = 1,
                      .rounds = ALL_PRODUCTS},
    [MS_FP8_BLOCKWISE] = {.name = "blockwise",
                          .multiple = CODES,
                          .of_gradient = MS_F8E4M3,
                          .block = MS_F8_SIDE,
                          .side = MS_F8_SIDE,
                          .rounds = ALL_PRODUCTS},
    [MS_FP8_BLOCKWISE_POWER_2_SCALE] = {.name = "blockwise_power_2_scale",
                                        .multiple = CODES,
                                        .of_gradient = MS_F8E4M3,
                                        .block = MS_F8_SIDE,
                                        .side = MS_F8_SIDE,
                                        .powers = 1,
                                        .rounds = ALL_PRODUCTS},
};
enum { N_RECIPES = sizeof RECIPES / sizeof *RECIPES };

const char *ms_f8_recipe_name(int recipe) { return recipe >= 0 && recipe < N_RECIPES ? RECIPES[recipe].name : NULL; }

int ms_f8_multiple(int recipe) { return RECIPES[recipe].multiple; }

int ms_f8_rounds(int recipe, int product) { return RECIPES[recipe].rounds >> product & 1; }

int ms_f8_gathers(int recipe, int ndim) { return RECIPES[recipe].gathers && ndim == 2; }

/* Which operand is dy: 0 or 1, or -1. */
static int gradient_of(int product) {
  return product == MS_F8_DX || product == MS_F8_DW ? 0 : product == MS_F8_DW_TURNED ? 1 : -1;
}

/* Which operand is w: 1, or -1. */
static int weight_of(int product) { return product == MS_F8_OUTPUT || product == MS_F8_DX ? 1 : -1; }

static void set_operands(int of, int product, ms_f8 *f8) {
  const recipe *r = &RECIPES[of];
  ms_f8_operand *operand[2] = {&f8->a, &f8->b};
  for (int i = 0; i < 2; i++) {
    const int is_weight = i == weight_of(product);
    operand[i]->dtype = i == gradient_of(product) ? r->of_gradient : MS_F8E4M3;
    operand[i]->block = r->block;
    operand[i]->side = is_weight ? r->side : 1;
    operand[i]->by_rows = r->by_rows && !(r->one_of_weight && is_weight && product == MS_F8_DX);
  }
  f8->by_rows = f8->a.by_rows || f8->b.by_rows;
  f8->powers = r->powers;
  f8->e8m0 = r->e8m0;
  f8->fast_sums = r->fast >> product & 1;
}

int ms_f8_passes(int recipe, int product, int operand, int turned) {
  ms_f8 f8;
  set_operands(recipe, product, &f8);
  const ms_f8_operand *of = operand ? &f8.b : &f8.a;
  return of->block || (of->by_rows && !turned) ? 1 : 2;
}

int ms_f8_values_dtype(int recipe, int scaled) { return scaled && !RECIPES[recipe].powers ? MS_F32 : MS_BF16; }

ms_f8_tile ms_f8_tile_of(const ms_f8_operand *operand, int64_t rows, int64_t columns) {
  const int64_t summed = operand->turned ? rows : columns, others = operand->turned ? columns : rows;
  const int64_t along = operand->block ? operand->block : summed;
  const int64_t across = operand->block ? operand->side : operand->by_rows ? 1 : others;
  return operand->turned ? (ms_f8_tile){along, across} : (ms_f8_tile){across, along};
}

int64_t ms_f8_tiles(ms_f8_tile tile, int64_t rows, int64_t columns) {
  if (!rows || !columns) return 0;
  return (rows + tile.rows - 1) / tile.rows * ((columns + tile.columns - 1) / tile.columns);
}

int ms_f8_product_of(const ms_kernel_call *call, ms_product *product) {
  if (call->op != MS_OP_matmul_f8_codes) return ms_product_of(call, product);
  ms_kernel_call plain = *call;
  plain.in[MS_F8_CODES_INPUT].dtype = call->in[0].dtype;
  plain.in[MS_F8_SCALE_INPUT] = call->in[MS_F8_CODED_BIAS_INPUT];
  plain.inputs--;
  return ms_product_of(&plain, product);
}

const void *ms_f8_bias(const ms_kernel_call *call, const ms_f8 *f8) {
  if (f8->product.bias_dtype < 0) return NULL;
  return call->in_data[f8->coded ? MS_F8_CODED_BIAS_INPUT : MS_F8_SCALE_INPUT];
}

static int check_codes(const ms_kernel_call *call, int recipe, int product) {
  const ms_value_info *codes = &call->in[MS_F8_CODES_INPUT], *scale = &call->in[MS_F8_SCALE_INPUT];
  const int weighs = product == MS_F8_OUTPUT || product == MS_F8_DX;
  if (codes->dtype == MS_F8E4M3 && scale->dtype == MS_F32 && recipe == MS_FP8_TENSORWISE && weighs) return MS_OK;
  return MS_FAIL(MS_EINTERNAL, "matmul_f8_codes: %s codes with a scale in %s, recipe %d, product %d",
                 ms_dtype_name(codes->dtype), ms_dtype_name(scale->dtype), recipe, product);
}

static int is_recipe(int recipe) { return recipe > MS_FP8_NONE && recipe < N_RECIPES; }

int ms_f8_of(const ms_kernel_call *call, ms_f8 *f8) {
  const int recipe = (int)call->attrs.product.recipe, product = (int)call->attrs.product.product;
  memset(f8, 0, sizeof *f8);
  f8->coded = call->op == MS_OP_matmul_f8_codes;
  if (f8->coded) MS_TRY(check_codes(call, recipe, product));
  MS_TRY(ms_f8_product_of(call, &f8->product));
  const ms_product *p = &f8->product;
  if (!is_recipe(recipe) || !ms_f8_rounds(recipe, product) || p->batch != 1)
    return MS_FAIL(MS_EINTERNAL, "matmul_f8: recipe %d, product %d, a batch of %lld", recipe, product,
                   (long long)p->batch);
  set_operands(recipe, product, f8);
  f8->a.turned = p->trans_a;
  f8->b.turned = !p->trans_b;
  f8->a.rows = p->m;
  f8->b.rows = p->n;
  return MS_OK;
}

int64_t ms_f8_scales(const ms_f8 *f8, const ms_f8_operand *operand) { return f8->by_rows ? operand->rows : 1; }

int ms_f8_grouped_of(const ms_kernel_call *call, ms_f8 *f8) {
  const int of = (int)call->attrs.product.recipe, product = (int)call->attrs.product.product;
  const int to_weight = call->out[0].ndim == 3;
  memset(f8, 0, sizeof *f8);
  if (!is_recipe(of) || product < 0 || product >= MS_F8_PRODUCTS || !ms_f8_rounds(of, product) ||
      to_weight == (weight_of(product) == 1))
    return MS_FAIL(MS_EINTERNAL, "grouped_matmul_f8: recipe %d, product %d", of, product);
  set_operands(of, product, f8);
  f8->a.turned = to_weight;
  f8->b.turned = to_weight || !call->attrs.product.trans_b;
  return MS_OK;
}
