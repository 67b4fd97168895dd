/* conv2d_onednn_primitive.c - see the header. A primitive chooses the formats of its operands; where these are not
 * row-major, a reorder is made with it.
 */
#include "kernels/cpu/windows/conv2d_onednn.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cpu/shared.h"

int ms_conv_check(dnnl_status_t status, const char *doing, int op, const ms_conv *c) {
  if (status == dnnl_success) return MS_OK;
  return MS_FAIL(status == dnnl_out_of_memory ? MS_ENOMEM : MS_EINTERNAL,
                 "%s: oneDNN status %d %s, %lld images [%lld,%lld,%lld], %lld results, window [%lld,%lld], %lld groups",
                 op == MS_OP_conv2d ? "conv2d" : "the gradient of conv2d", (int)status, doing, (long long)c->images,
                 (long long)(c->groups * c->channels), (long long)c->down.in, (long long)c->across.in,
                 (long long)(c->groups * c->features), (long long)c->down.size, (long long)c->across.size,
                 (long long)c->groups);
}

int ms_conv_result_of(int op) {
  return op == MS_OP_conv2d ? MS_CONV_Y : op == MS_OP_conv2d_backward_input ? MS_CONV_X : MS_CONV_W;
}

typedef struct tensor_shape {
  int ndims;
  dnnl_dims_t dims, strides;
} tensor_shape;

static tensor_shape shape_of(const ms_conv *c, int operand) {
  const int64_t x[] = {c->images, c->groups * c->channels, c->down.in, c->across.in};
  const int64_t y[] = {c->images, c->groups * c->features, c->down.out, c->across.out};
  const int64_t w[] = {c->groups, c->features, c->channels, c->down.size, c->across.size};
  const int64_t bias[] = {c->groups * c->features};
  const int64_t *const dims[] = {x, w + (c->groups == 1), bias, y};
  tensor_shape s = {.ndims = operand == MS_CONV_BIAS ? 1 : operand == MS_CONV_W && c->groups > 1 ? 5 : 4};
  memcpy(s.dims, dims[operand], (size_t)s.ndims * sizeof *s.dims);
  for (int d = s.ndims - 1; d >= 0; d--) s.strides[d] = d == s.ndims - 1 ? 1 : s.strides[d + 1] * s.dims[d + 1];
  return s;
}

static void free_shared(void *object) {
  ms_conv_primitive *made = object;
  for (int i = 0; i < MS_CONV_OPERANDS; i++) {
    if (made->reorder[i]) dnnl_primitive_destroy(made->reorder[i]);
    if (made->reorder_desc[i]) dnnl_primitive_desc_destroy(made->reorder_desc[i]);
    ms_desc_destroy(&made->tensor[i]);
    ms_desc_destroy(&made->chosen[i]);
  }
  if (made->primitive) dnnl_primitive_destroy(made->primitive);
  if (made->desc) dnnl_primitive_desc_destroy(made->desc);
  free(made);
}

static int make_desc(ms_conv_primitive *made, const ms_conv_key *key, dnnl_engine_t engine,
                     const_dnnl_primitive_attr_t attributes) {
  const ms_conv *c = &key->conv;
  const dnnl_dims_t stride = {c->down.stride, c->across.stride}, pad = {c->down.pad, c->across.pad};
  const dnnl_dims_t dilation = {c->down.dilation - 1, c->across.dilation - 1};
  const int bias = key->stored[MS_CONV_BIAS] >= 0;
  ms_onednn_desc any[MS_CONV_OPERANDS] = {0}, forward_w = {0};
  dnnl_primitive_desc_t forward = NULL;
  int rc = MS_OK;
  for (int i = 0; i < MS_CONV_OPERANDS; i++) {
    const tensor_shape s = shape_of(c, i);
    if (i == MS_CONV_BIAS && !bias) continue;
    MS_GOTO(
        ms_conv_check(ms_desc_create_any(&any[i], s.ndims, s.dims, key->type[i]), "describing an operand", key->op, c));
  }
  const tensor_shape w = shape_of(c, MS_CONV_W);
  MS_GOTO(
      ms_conv_check(ms_desc_create_any(&forward_w, w.ndims, w.dims, key->type[MS_CONV_X]), "describing w", key->op, c));
  if (key->op != MS_OP_conv2d) /* a hint */
    MS_GOTO(ms_conv_check(ms_conv_desc_create(&forward, engine, MS_OP_conv2d, &any[MS_CONV_X], &forward_w, NULL,
                                              &any[MS_CONV_Y], stride, dilation, pad, NULL, attributes),
                          "finding the forward implementation", key->op, c));
  MS_GOTO(ms_conv_check(ms_conv_desc_create(&made->desc, engine, key->op, &any[MS_CONV_X], &any[MS_CONV_W],
                                            bias ? &any[MS_CONV_BIAS] : NULL, &any[MS_CONV_Y], stride, dilation, pad,
                                            forward, attributes),
                        "finding an implementation", key->op, c));
fail:
  if (forward) dnnl_primitive_desc_destroy(forward);
  for (int i = 0; i < MS_CONV_OPERANDS; i++) ms_desc_destroy(&any[i]);
  ms_desc_destroy(&forward_w);
  return rc;
}

static dnnl_query_t query_of(int op, int operand) {
  static const dnnl_query_t read[] = {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_weights_md,
                                      dnnl_query_dst_md};
  static const dnnl_query_t gradient[] = {dnnl_query_diff_src_md, dnnl_query_diff_weights_md,
                                          dnnl_query_diff_weights_md, dnnl_query_diff_dst_md};
  const int backward = op != MS_OP_conv2d;
  return backward && (operand == MS_CONV_Y || operand == ms_conv_result_of(op)) ? gradient[operand] : read[operand];
}

/* The tensor, the format that the primitive has chosen, and a reorder between them where they differ. */
static int make_operand(ms_conv_primitive *made, const ms_conv_key *key, int i, dnnl_engine_t engine,
                        const_dnnl_primitive_attr_t attributes) {
  const tensor_shape s = shape_of(&key->conv, i);
  const int written = i == ms_conv_result_of(key->op);
  MS_TRY(ms_conv_check(ms_desc_create(&made->tensor[i], s.ndims, s.dims, ms_onednn_type(key->stored[i]), s.strides),
                       "describing a tensor", key->op, &key->conv));
  if (i == MS_CONV_BIAS)
    MS_TRY(ms_conv_check(ms_desc_create(&made->chosen[i], s.ndims, s.dims, key->type[i], s.strides),
                         "describing the bias", key->op, &key->conv));
  else
    MS_TRY(ms_conv_check(ms_desc_chosen(&made->chosen[i], made->desc, query_of(key->op, i)), "reading a format",
                         key->op, &key->conv));
  if (ms_desc_equal(&made->tensor[i], &made->chosen[i])) return MS_OK;
  const ms_onednn_desc *from = written ? &made->chosen[i] : &made->tensor[i],
                       *to = written ? &made->tensor[i] : &made->chosen[i];
  MS_TRY(ms_conv_check(ms_reorder_desc_create(&made->reorder_desc[i], engine, from, to, attributes),
                       "finding a reorder", key->op, &key->conv));
  return ms_conv_check(dnnl_primitive_create(&made->reorder[i], made->reorder_desc[i]), "making a reorder", key->op,
                       &key->conv);
}

static int make_shared(const void *data, void **object) {
  const ms_conv_key *key = data;
  const ms_conv *c = &key->conv;
  dnnl_primitive_attr_t attributes = NULL;
  dnnl_engine_t engine;
  int rc = MS_OK, outer_threads = omp_get_max_threads();
  MS_TRY(ms_conv_check(ms_onednn_engine(&engine), "making an engine", key->op, c));
  ms_conv_primitive *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  omp_set_num_threads(1); /* a primitive keeps the number of threads set at its creation */
  MS_GOTO(ms_conv_check(dnnl_primitive_attr_create(&attributes), "making attributes", key->op, c));
  MS_GOTO(ms_conv_check(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user),
                        "asking for scratch", key->op, c));
  MS_GOTO(make_desc(made, key, engine, attributes));
  MS_GOTO(ms_conv_check(dnnl_primitive_create(&made->primitive, made->desc), "making the primitive", key->op, c));
  for (int i = 0; i < MS_CONV_OPERANDS; i++)
    if (key->stored[i] >= 0) MS_GOTO(make_operand(made, key, i, engine, attributes));
  *object = made;
fail:
  omp_set_num_threads(outer_threads);
  if (attributes) dnnl_primitive_attr_destroy(attributes);
  if (rc) free_shared(made);
  return rc;
}

int ms_conv_primitive_take(const ms_conv_key *key, ms_conv_primitive **primitive) {
  void *shared;
  MS_TRY(ms_shared_take(make_shared, free_shared, key, sizeof *key, &shared));
  *primitive = shared;
  return MS_OK;
}
