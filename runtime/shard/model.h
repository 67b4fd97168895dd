/* model.h - parameters, the units that gather them, and the part of them that one rank owns.
 *
 * A unit's parameters are stored in segments. A segment is one contiguous buffer cut into W equal chunks; rank r of
 * the shard group owns chunk r. Layout `rows` gives each parameter its own segment with chunk = ceil(d0/W) rows
 * (PyTorch FSDP2's dim-0 sharding); `ragged` puts all parameters of one dtype, trainability and optimizer group into
 * one segment (Megatron-FSDP, veScale). A unit has several kinds of buffers, all with the segments in the same
 * order:
 *
 *   master           f32 [chunk elements of all segments]        this rank's chunks; trainable segments first
 *   gradient         f32 [chunk elements of trainable segments]  at the same offsets as master
 *   optimizer state  like gradient
 *   gathered         wire dtype, [W*chunk] per segment           what kernels read
 *   reduce           reduce_dtype, [W*chunk] per trainable segment; what weight-gradient kernels write
 *   copy             bf16 [chunk] per segment that is gathered in bf16; only with ms_unit_keeps_copies
 *
 * A parameter that is stored in another dtype than f32 (ms_param_config.storage_dtype) is a segment of its own, after
 * all others. Its master and its gathered form are the same: words of records (kernels/formats/storage.h), which chunks
 * do not cut. Kernels read it through the op `dequantise`, or in place if it is stored in its param_dtype.
 *
 * A parameter that is multiplied in 8 bits with one scale (MS_FP8_TENSORWISE) is a segment of its own, too: it has an
 * f32 master, and is gathered as codes of that master, with a scale that all ranks know (plan/lower/lower_codes.c).
 *
 * A parameter with a gather_dtype has an f32 master, too, and is gathered as pieces of one block each
 * (kernels/formats/quantised_sum.h, plan/lower/lower_blocks.c), which chunks do not cut: it is in a segment with others
 * of that kind, and in all buffers begins at a multiple of a block.
 *
 * Chunks also do not cut the records of moments in 8 bits (kernels/formats/moments.h): a parameter that has them
 * (ms_param_config.packed_moments) is in a segment with others that do. In all buffers it begins at a multiple of their
 * elements, and so does every rank's part of it.
 *
 * The padding of every segment is zero in all of them. Offsets are multiples of MS_SEGMENT_ALIGN elements.
 */
#ifndef MS_SHARD_MODEL_H
#define MS_SHARD_MODEL_H

#include "base/error.h"
#include "base/handle.h"
#include "graph/graph.h"
#include "kernels/formats/storage.h"
#include "kernels/products/matmul_f8.h"
#include "mesh/mesh.h"
#include "moonshard.h"

enum {
  MS_SEGMENT_ALIGN = 32,
  MS_UNCUT = 256 /* elements of a record of moments, and of a block of gathered codes */
};

typedef struct ms_param {
  char *name;
  uint64_t name_hash;
  int unit;
  int ndim;
  int64_t whole[MS_MAX_DIMS]; /* its shape */
  int64_t dims[MS_MAX_DIMS];  /* of the part that this rank's shard group has: `whole`, but for config.tensor_axis */
  int64_t numel;              /* of that part */
  ms_param_config config;
  ms_storage storage; /* its records, if it is stored */
  int segment;        /* index in its unit */
  int64_t offset;     /* elements from the start of the segment */
  /* This rank owns elements [first, first + owned) of the flattened parameter, stored `local` elements into the
   * unit's master buffer. owned can be 0. */
  int64_t first, owned, local;
} ms_param;

typedef struct ms_segment {
  int frozen, param_dtype, reduce_dtype;
  int packed_moments;
  int blocks;              /* the dtype of the blocks that it is gathered in; 0: it is not */
  int optimizer;           /* that its parameters choose (ms_param_chosen) */
  ms_storage storage;      /* the records of a stored parameter; dtype MS_F32: it is not stored */
  int wire;                /* the dtype that is gathered: param_dtype, MS_F8E4M3: codes with one scale, or
                            * MS_I32: the words of records, or of blocks */
  int first_param, params; /* range of ms_unit.order; `ragged`: all of them are of one group */
  int64_t chunk;           /* elements per rank of what it keeps: f32, or words of records */
  int64_t wire_chunk;      /* elements of the wire dtype per rank: as many, or the words of blocks */
  int64_t local;           /* offset in elements in master (and gradient, optimizer state) */
  int64_t gathered;        /* offset in bytes in the unit's gathered buffer */
  int64_t reduce;          /* offset in bytes in the unit's reduce buffer; -1 when frozen */
  int64_t copy;            /* offset in bytes in the unit's copies (ms_unit_keeps_copies); -1: it has none */
} ms_segment;

/* This rank's group along such a dimension. What depends on the dimension of a collective asks here, and nowhere tells
 * one dimension from another. */
typedef struct ms_dim_group {
  const char *name;  /* "replicate", "shard", "tensor": for programs and fingerprints; the mesh can name it otherwise */
  const char *label; /* for people: "shard and context" */
  int mesh_dim;      /* as the mesh numbers its dimensions, the first of two; -1: none, or size 1 */
  int size, place;   /* number of ranks in the group, and this rank's index */
  int number;        /* index of this group among all groups along the dimension */
  int stride;        /* distance between neighbours of the group among the model's members */
  int *ranks;        /* world ranks, [size] */
} ms_dim_group;

/* What is gathered ahead while a unit runs. */
typedef struct ms_ahead {
  int *unit, n; /* a list of units, in this order; n -1: the next ones by number */
  int depth;    /* how many of those; -1: as the plan's setting says */
} ms_ahead;

typedef struct ms_unit {
  char *name;
  ms_unit_config config;
  /* The ranks that have chunks of it: those of the shard dimension, or this rank alone (ms_unit_config.shard); set by
   * ms_model_shard. */
  const ms_dim_group *shard;
  int align;  /* elements of which slices of replicas are multiples: MS_SEGMENT_ALIGN, or a record of moments */
  int *order; /* indices of its parameters, in segment order */
  int params, order_capacity;
  ms_segment *segment;
  int segments;
  int64_t master_count;    /* f32 elements of the master buffer */
  int64_t trainable_count; /* the leading part of them: elements of gradient and of optimizer state */
  int64_t divided_count;   /* the leading part of those: of parameters that the tensor dimension divides */
  int64_t normed_count;    /* the leading part of them in the gradient norm: all but what is balanced */
  int64_t gathered_bytes, reduce_bytes;
  int64_t copy_bytes; /* of the copies that a rank keeps of its chunks in their wire dtype; 0: none */
  ms_ahead ahead[2];  /* forward, backward */
} ms_unit;

struct ms_model {
  ms_handle handle;
  uint64_t seed;
  ms_param *param;
  ms_unit *unit;
  int params, units, param_capacity, unit_capacity;
  int64_t elements;          /* total of all parameters */
  int sharded;               /* 1 after ms_model_shard */
  int rank, world;           /* world: of the mesh's root; it can contain ranks that do not train this model */
  ms_dim_group dim[MS_DIMS]; /* [enum ms_model_dim] */
  ms_dim_group alone;        /* this rank, for units that are whole on each */
  int sequence_parallel;     /* as in ms_model_dims */
  int members, member;       /* number of ranks that train this model together, and this rank's index among
                              * them */
  int *member_rank;          /* their world ranks, row-major in the mesh */
  int mesh_ndim;
  char mesh_text[MS_MESH_LABEL_BYTES]; /* "2x2 (replicate, shard)" */
};

/* The ranks of a replica, which own the parts of each parameter together. */
static inline int ms_model_shards(const ms_model *m) { return m->dim[MS_DIM_SHARD].size; }
static inline int ms_model_replicas(const ms_model *m) { return m->dim[MS_DIM_REPLICATE].size; }
/* Those that have chunks of a unit. */
static inline int ms_unit_shards(const ms_unit *u) { return u->shard->size; }
/* 1 when each rank of the shard dimension, of which there are several, has all of a unit. */
static inline int ms_unit_is_whole(const ms_model *m, const ms_unit *u) { return u->shard != &m->dim[MS_DIM_SHARD]; }
/* Where each copy of the state, which `replicas` replicas share, should count once: 1 on the rank whose copy of such a
 * unit counts, and of other units on all. */
static inline int ms_unit_counts_here(const ms_model *m, const ms_unit *u, int replicas) {
  if (!ms_unit_is_whole(m, u)) return 1;
  return m->dim[MS_DIM_SHARD].place == 0 && m->dim[MS_DIM_REPLICATE].place % replicas == 0;
}
static inline int ms_model_has_whole_units(const ms_model *m) {
  for (int u = 0; u < m->units; u++)
    if (ms_unit_is_whole(m, &m->unit[u])) return 1;
  return 0;
}
static inline int ms_model_max_segments(const ms_model *m) {
  int most = 0;
  for (int u = 0; u < m->units; u++)
    if (m->unit[u].segments > most) most = m->unit[u].segments;
  return most;
}
/* 1 when each rank of the tensor dimension has a part of the parameter. */
static inline int ms_param_is_divided(const ms_model *m, const ms_param *p) {
  return m->dim[MS_DIM_TENSOR].size > 1 && p->config.tensor_axis >= 0;
}

/* The number of replicas that sum a unit's gradients in every step: 1 where they take local steps. */
static inline int ms_unit_replicas(const ms_model *m, int unit) {
  return m->unit[unit].config.fragment ? 1 : ms_model_replicas(m);
}
/* 1 when a unit's gradients travel in few bits over the shards, and over the replicas. */
static inline int ms_unit_quantises_shards(const ms_model *m, int unit) {
  return m->unit[unit].config.shard_dtype != MS_F32 && ms_unit_shards(&m->unit[unit]) > 1;
}
static inline int ms_unit_is_quantised(const ms_model *m, int unit) {
  return m->unit[unit].config.replicate_dtype != MS_F32 && ms_unit_replicas(m, unit) > 1;
}
/* The number of units that have a fragment. */
static inline int ms_model_local_units(const ms_model *m) {
  int n = 0;
  for (int u = 0; u < m->units; u++) n += m->unit[u].config.fragment != 0;
  return n;
}

/* 1 when only some of the units that train have a fragment: the norms of both kinds are computed separately. */
static inline int ms_model_splits_norm(const ms_model *m) {
  int equal = 0;
  for (int u = 0; u < m->units; u++) equal += m->unit[u].trainable_count && !m->unit[u].config.fragment;
  return ms_model_local_units(m) && equal;
}

static inline int ms_segment_is_stored(const ms_segment *s) { return s->storage.dtype != MS_F32; }
/* 1 when it is gathered as codes with one scale. */
static inline int ms_segment_is_coded(const ms_segment *s) { return ms_dtype_may(s->wire, MS_DTYPE_SCALED); }
/* 1 when what a rank keeps of a segment has the form that the shards gather, so that kernels can read it there. */
static inline int ms_segment_is_as_gathered(const ms_segment *s) {
  return ms_segment_is_stored(s) || s->wire == MS_F32;
}
/* 1 when kernels can read it where a rank keeps all of it: what is kept, or its copy. */
static inline int ms_segment_is_readable(const ms_segment *s) { return ms_segment_is_as_gathered(s) || s->copy >= 0; }
/* 1 when a segment's gathered weights are resident: frozen, so that they can stay gathered from step to step
 * (MS_RESHARD_RUN). With one shard, what is stored is read where it is kept. A unit that is whole is not gathered. */
static inline int ms_segment_is_resident(const ms_model *m, const ms_unit *u, const ms_segment *s) {
  if (u->config.reshard != MS_RESHARD_RUN || !s->frozen || ms_unit_is_whole(m, u)) return 0;
  return ms_unit_shards(u) > 1 || !ms_segment_is_stored(s);
}
/* Where the resident part of a unit's gathered buffer begins, in bytes: its end if there is none. Frozen segments come
 * last. */
static inline int64_t ms_unit_resident_from(const ms_model *m, const ms_unit *u) {
  int s = 0;
  while (s < u->segments && !ms_segment_is_resident(m, u, &u->segment[s])) s++;
  return s < u->segments ? u->segment[s].gathered : u->gathered_bytes;
}
static inline int ms_param_is_stored(const ms_param *p) { return p->config.storage_dtype != MS_F32; }
/* The dtype of the blocks that it is gathered in; 0: it is not. */
static inline int ms_param_blocks(const ms_param *p) { return p->config.gather_dtype < 0 ? 0 : p->config.gather_dtype; }
/* Elements of which its offset, and the parts that ranks own of it, are multiples. */
static inline int ms_param_align(const ms_param *p) {
  return p->config.packed_moments || ms_param_blocks(p) ? MS_UNCUT : MS_SEGMENT_ALIGN;
}
/* The enum ms_optimizer_kind that it chooses; MS_OPT_NONE: it takes the plan's, or is frozen. */
static inline int ms_param_chosen(const ms_param *p) { return p->config.frozen ? MS_OPT_NONE : p->config.optimizer; }
static inline int ms_param_takes_muon(const ms_param *p) { return ms_param_chosen(p) == MS_OPT_MUON; }
/* 1 when steps move it by the sign of its gradient. */
static inline int ms_param_is_balanced(const ms_param *p) { return p->config.balance > 0 && !p->config.frozen; }
/* 1 when it is gathered as codes of its master. */
static inline int ms_param_is_coded(const ms_param *p) {
  return ms_f8_gathers(p->config.fp8, p->ndim) && !ms_param_is_stored(p);
}

/* Whether the masters of a unit are kept in bf16, too, and checks of the units of a divided model that are
 * (check_copies.c). */
int ms_unit_keeps_copies(const ms_unit *unit);
int ms_copies_check_model(const ms_model *model);
int ms_copies_check_param(const ms_model *model, int unit, const char *name, int ndim, const ms_param_config *config);
/* Check that a parameter can take Muon if its config says so, before and after its model is divided (check_muon.c). */
int ms_muon_check_param(const char *name, int ndim, const ms_param_config *config);
int ms_muon_check_model(const ms_model *model);
/* Checks whether a unit of a sharded model can take this enum ms_reshard, and keep shards of 1/size. */
int ms_unit_check_reshard(const ms_model *model, int unit, int reshard, int size);
/* Number of ranks that gather a unit for backward: the shard group, or neighbours in it; 1 when the unit stays
 * gathered (model_shard.c). */
int ms_unit_backward_ranks(const ms_model *model, int unit);
/* Check what is to be added to a model, or replaces a parameter's (check_configs.c). */
int ms_model_check_unit(const char *name, const ms_unit_config *config);
int ms_model_check_group(const char *name, const ms_param_group *group);
int ms_model_check_param(const ms_model *model, int unit, const char *name, int ndim, const int64_t *dims,
                         const ms_param_config *config);
/* Sets the model's rank, members and groups along the dimensions that have a role, and frees them (model_mesh.c). On
 * failure, too, ms_model_leave_mesh is to be called. */
int ms_model_join_mesh(ms_model *model, const ms_mesh *mesh, int rank, const ms_model_dims *dims);
void ms_model_leave_mesh(ms_model *model);
/* Fills segments, offsets and owned ranges of every unit (segment.c). */
int ms_model_segment(ms_model *model);
/* The ms_param_lookup of graphs. */
int ms_model_param_info(const void *model, int param, ms_param_info *info);
int ms_model_find_param(const ms_model *model, const char *name);

#endif
