/* onednn_api.h - one name for each of the few calls that differ between oneDNN 2 and 3, and the engine of all kernels.
 */
#ifndef MS_KERNELS_CPU_ONEDNN_API_H
#define MS_KERNELS_CPU_ONEDNN_API_H

#include <oneapi/dnnl/dnnl.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/op.h"

/* The engine that all kernels of the process share; fails on the first call if it fails. */
dnnl_status_t ms_onednn_engine(dnnl_engine_t *engine);
/* 1 if oneDNN multiplies bf16 numbers on this processor as they are (AVX512_BF16, AMX). */
int ms_onednn_multiplies_bf16(void);

static inline dnnl_data_type_t ms_onednn_type(int dtype) { return dtype == MS_BF16 ? dnnl_bf16 : dnnl_f32; }

#if DNNL_VERSION_MAJOR >= 3

typedef struct ms_onednn_desc {
  dnnl_memory_desc_t desc;
} ms_onednn_desc;

static inline dnnl_status_t ms_desc_create(ms_onednn_desc *d, int ndims, const int64_t *dims, dnnl_data_type_t type,
                                           const int64_t *strides) {
  return dnnl_memory_desc_create_with_strides(&d->desc, ndims, dims, type, strides);
}

static inline void ms_desc_destroy(ms_onednn_desc *d) {
  if (d->desc) dnnl_memory_desc_destroy(d->desc);
}

static inline dnnl_status_t ms_memory_create(dnnl_memory_t *memory, const ms_onednn_desc *d, dnnl_engine_t engine) {
  return dnnl_memory_create(memory, d->desc, engine, DNNL_MEMORY_NONE);
}

static inline dnnl_status_t ms_matmul_desc_create(dnnl_primitive_desc_t *desc, dnnl_engine_t engine,
                                                  const ms_onednn_desc *a, const ms_onednn_desc *b,
                                                  const ms_onednn_desc *bias, const ms_onednn_desc *c,
                                                  const_dnnl_primitive_attr_t attributes) {
  return dnnl_matmul_primitive_desc_create(desc, engine, a->desc, b->desc, bias ? bias->desc : NULL, c->desc,
                                           attributes);
}

/* Adds the product to the destination instead of replacing it. */
static inline dnnl_status_t ms_append_sum(dnnl_post_ops_t ops) {
  return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}

static inline dnnl_status_t ms_append_eltwise(dnnl_post_ops_t ops, dnnl_alg_kind_t kind, float alpha) {
  return dnnl_post_ops_append_eltwise(ops, kind, alpha, 0.0f);
}

static inline int64_t ms_scratchpad_bytes(const_dnnl_primitive_desc_t desc) {
  return (int64_t)dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
}

/* A tensor in the format that the primitive chooses. */
static inline dnnl_status_t ms_desc_create_any(ms_onednn_desc *d, int ndims, const int64_t *dims,
                                               dnnl_data_type_t type) {
  return dnnl_memory_desc_create_with_tag(&d->desc, ndims, dims, type, dnnl_format_tag_any);
}

/* The format that it has chosen, of an operand (dnnl_query_src_md, ...). */
static inline dnnl_status_t ms_desc_chosen(ms_onednn_desc *d, const_dnnl_primitive_desc_t desc, dnnl_query_t operand) {
  return dnnl_memory_desc_clone(&d->desc, dnnl_primitive_desc_query_md(desc, operand, 0));
}

static inline int ms_desc_equal(const ms_onednn_desc *a, const ms_onednn_desc *b) {
  return dnnl_memory_desc_equal(a->desc, b->desc);
}

static inline int64_t ms_desc_bytes(const ms_onednn_desc *d) { return (int64_t)dnnl_memory_desc_get_size(d->desc); }

static inline dnnl_status_t ms_reorder_desc_create(dnnl_primitive_desc_t *desc, dnnl_engine_t engine,
                                                   const ms_onednn_desc *from, const ms_onednn_desc *to,
                                                   const_dnnl_primitive_attr_t attributes) {
  return dnnl_reorder_primitive_desc_create(desc, from->desc, engine, to->desc, engine, attributes);
}

/* dilation: less 1. forward: of the two gradients, the desc of conv2d. */
static inline dnnl_status_t ms_conv_desc_create(dnnl_primitive_desc_t *desc, dnnl_engine_t engine, int op,
                                                const ms_onednn_desc *x, const ms_onednn_desc *w,
                                                const ms_onednn_desc *bias, const ms_onednn_desc *y,
                                                const dnnl_dims_t stride, const dnnl_dims_t dilation,
                                                const dnnl_dims_t pad, const_dnnl_primitive_desc_t forward,
                                                const_dnnl_primitive_attr_t attributes) {
  if (op == MS_OP_conv2d_backward_input)
    return dnnl_convolution_backward_data_primitive_desc_create(desc, engine, dnnl_convolution_direct, x->desc, w->desc,
                                                                y->desc, stride, dilation, pad, pad, forward,
                                                                attributes);
  if (op == MS_OP_conv2d_backward_weight)
    return dnnl_convolution_backward_weights_primitive_desc_create(desc, engine, dnnl_convolution_direct, x->desc,
                                                                   w->desc, NULL, y->desc, stride, dilation, pad, pad,
                                                                   forward, attributes);
  return dnnl_convolution_forward_primitive_desc_create(desc, engine, dnnl_forward_training, dnnl_convolution_direct,
                                                        x->desc, w->desc, bias ? bias->desc : NULL, y->desc, stride,
                                                        dilation, pad, pad, attributes);
}

#else

typedef struct ms_onednn_desc {
  dnnl_memory_desc_t desc;
} ms_onednn_desc;

static inline dnnl_status_t ms_desc_create(ms_onednn_desc *d, int ndims, const int64_t *dims, dnnl_data_type_t type,
                                           const int64_t *strides) {
  return dnnl_memory_desc_init_by_strides(&d->desc, ndims, dims, type, strides);
}

static inline void ms_desc_destroy(ms_onednn_desc *d) { (void)d; }

static inline dnnl_status_t ms_memory_create(dnnl_memory_t *memory, const ms_onednn_desc *d, dnnl_engine_t engine) {
  return dnnl_memory_create(memory, &d->desc, engine, DNNL_MEMORY_NONE);
}

static inline dnnl_status_t ms_matmul_desc_create(dnnl_primitive_desc_t *desc, dnnl_engine_t engine,
                                                  const ms_onednn_desc *a, const ms_onednn_desc *b,
                                                  const ms_onednn_desc *bias, const ms_onednn_desc *c,
                                                  const_dnnl_primitive_attr_t attributes) {
  dnnl_matmul_desc_t op;
  dnnl_status_t status = dnnl_matmul_desc_init(&op, &a->desc, &b->desc, bias ? &bias->desc : NULL, &c->desc);
  return status ? status : dnnl_primitive_desc_create(desc, &op, attributes, engine, NULL);
}

static inline dnnl_status_t ms_append_sum(dnnl_post_ops_t ops) { return dnnl_post_ops_append_sum(ops, 1.0f); }

static inline dnnl_status_t ms_append_eltwise(dnnl_post_ops_t ops, dnnl_alg_kind_t kind, float alpha) {
  return dnnl_post_ops_append_eltwise(ops, 1.0f, kind, alpha, 0.0f);
}

static inline int64_t ms_scratchpad_bytes(const_dnnl_primitive_desc_t desc) {
  return (int64_t)dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
}

static inline dnnl_status_t ms_desc_create_any(ms_onednn_desc *d, int ndims, const int64_t *dims,
                                               dnnl_data_type_t type) {
  return dnnl_memory_desc_init_by_tag(&d->desc, ndims, dims, type, dnnl_format_tag_any);
}

static inline dnnl_status_t ms_desc_chosen(ms_onednn_desc *d, const_dnnl_primitive_desc_t desc, dnnl_query_t operand) {
  d->desc = *dnnl_primitive_desc_query_md(desc, operand, 0);
  return dnnl_success;
}

static inline int ms_desc_equal(const ms_onednn_desc *a, const ms_onednn_desc *b) {
  return dnnl_memory_desc_equal(&a->desc, &b->desc);
}

static inline int64_t ms_desc_bytes(const ms_onednn_desc *d) { return (int64_t)dnnl_memory_desc_get_size(&d->desc); }

static inline dnnl_status_t ms_reorder_desc_create(dnnl_primitive_desc_t *desc, dnnl_engine_t engine,
                                                   const ms_onednn_desc *from, const ms_onednn_desc *to,
                                                   const_dnnl_primitive_attr_t attributes) {
  return dnnl_reorder_primitive_desc_create(desc, &from->desc, engine, &to->desc, engine, attributes);
}

static inline dnnl_status_t ms_conv_desc_create(dnnl_primitive_desc_t *desc, dnnl_engine_t engine, int op,
                                                const ms_onednn_desc *x, const ms_onednn_desc *w,
                                                const ms_onednn_desc *bias, const ms_onednn_desc *y,
                                                const dnnl_dims_t stride, const dnnl_dims_t dilation,
                                                const dnnl_dims_t pad, const_dnnl_primitive_desc_t forward,
                                                const_dnnl_primitive_attr_t attributes) {
  dnnl_convolution_desc_t made;
  dnnl_status_t status;
  if (op == MS_OP_conv2d_backward_input)
    status = dnnl_dilated_convolution_backward_data_desc_init(&made, dnnl_convolution_direct, &x->desc, &w->desc,
                                                              &y->desc, stride, dilation, pad, pad);
  else if (op == MS_OP_conv2d_backward_weight)
    status = dnnl_dilated_convolution_backward_weights_desc_init(&made, dnnl_convolution_direct, &x->desc, &w->desc,
                                                                 NULL, &y->desc, stride, dilation, pad, pad);
  else
    status = dnnl_dilated_convolution_forward_desc_init(&made, dnnl_forward_training, dnnl_convolution_direct, &x->desc,
                                                        &w->desc, bias ? &bias->desc : NULL, &y->desc, stride, dilation,
                                                        pad, pad);
  return status ? status : dnnl_primitive_desc_create(desc, &made, attributes, engine, forward);
}

#endif

static inline dnnl_status_t ms_scratchpad_create(dnnl_memory_t *memory, const_dnnl_primitive_desc_t desc,
                                                 dnnl_engine_t engine) {
  return dnnl_memory_create(memory, dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0), engine,
                            DNNL_MEMORY_NONE);
}

#endif
