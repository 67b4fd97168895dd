/* matmul_f8.c - the recipes as tables (matmul_f8.h). */
#include "kernels/products/matmul_f8.h"

#include <string.h>

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "kernels/formats/quantise.h"

static const char *const names[] = {[MS_FP8_NONE] = "none",
                                    [MS_FP8_TENSORWISE] = "tensorwise",
                                    [MS_FP8_ROWWISE] = "rowwise",
                                    [MS_FP8_ROWWISE_WITH_GW_HP] = "rowwise_with_gw_hp",
                                    [MS_FP8_MXFP8] = "mxfp8"};
/* CODES: that tensor cores add at a time. */
enum { RECIPES = sizeof names / sizeof *names, CODES = 16 };

const char *ms_f8_recipe_name(int recipe) { return recipe >= 0 && recipe < RECIPES ? names[recipe] : NULL; }

int ms_f8_multiple(int recipe) { return recipe == MS_FP8_MXFP8 ? MS_MX_BLOCK : CODES; }

int ms_f8_rounds(int recipe, int product) {
  if (recipe == MS_FP8_NONE) return 0;
  return recipe != MS_FP8_ROWWISE_WITH_GW_HP || product == MS_F8_OUTPUT || product == MS_F8_DX;
}

/* Which operand is dy: 0 or 1, or -1. */
static int gradient_of(int product) {
  return product == MS_F8_DX || product == MS_F8_DW ? 0 : product == MS_F8_DW_TURNED ? 1 : -1;
}

static void set_operands(int recipe, int product, ms_f8 *f8) {
  ms_f8_operand *operand[2] = {&f8->a, &f8->b};
  const int tensorwise = recipe == MS_FP8_TENSORWISE, mx = recipe == MS_FP8_MXFP8, w = product == MS_F8_DX ? 1 : -1;
  for (int i = 0; i < 2; i++) {
    operand[i]->dtype = tensorwise && i == gradient_of(product) ? MS_F8E5M2 : MS_F8E4M3;
    operand[i]->by_blocks = mx;
    operand[i]->by_rows = !tensorwise && !mx && !(recipe == MS_FP8_ROWWISE_WITH_GW_HP && i == w);
  }
  f8->by_rows = f8->a.by_rows || f8->b.by_rows;
  f8->powers = f8->by_rows;
  f8->fast_sums = f8->by_rows || (tensorwise && product == MS_F8_OUTPUT);
}

int ms_f8_passes(int recipe, int product, int operand, int turned) {
  ms_f8 f8;
  set_operands(recipe, product, &f8);
  const ms_f8_operand *of = operand ? &f8.b : &f8.a;
  return of->by_blocks || (of->by_rows && !turned) ? 1 : 2;
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

int ms_f8_of(const ms_kernel_call *call, ms_f8 *f8) {
  const int recipe = (int)call->attrs.product.recipe, product = (int)call->attrs.product.product;
  memset(f8, 0, sizeof *f8);
  f8->coded = call->op == MS_OP_matmul_f8_codes;
  if (f8->coded) MS_TRY(check_codes(call, recipe, product));
  MS_TRY(ms_f8_product_of(call, &f8->product));
  const ms_product *p = &f8->product;
  if (!ms_f8_recipe_name(recipe) || !ms_f8_rounds(recipe, product) || p->batch != 1)
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
