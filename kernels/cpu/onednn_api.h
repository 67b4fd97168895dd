/* onednn_api.h - one name for each of the few calls that differ between oneDNN 2 and 3. */
#ifndef MS_KERNELS_CPU_ONEDNN_API_H
#define MS_KERNELS_CPU_ONEDNN_API_H

#include <oneapi/dnnl/dnnl.h>
#include <stddef.h>
#include <stdint.h>

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

#endif

static inline dnnl_status_t ms_scratchpad_create(dnnl_memory_t *memory, const_dnnl_primitive_desc_t desc,
                                                 dnnl_engine_t engine) {
  return dnnl_memory_create(memory, dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0), engine,
                            DNNL_MEMORY_NONE);
}

#endif
