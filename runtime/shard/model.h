/* model.h - parameters, the units they are gathered in, and what one rank owns of them.
**
** A unit's parameters lie in segments; a segment is one contiguous buffer cut in W equal chunks, chunk r owned by rank
** r of the shard group. Layout `rows` gives each parameter a segment of its own with chunk = ceil(d0/W) rows (PyTorch
** FSDP2's dim-0 sharding); `ragged` gives all parameters of one dtype and trainability one segment (Megatron-FSDP,
** veScale). A unit has four kinds of buffers, all with the segments in the same order: master f32 [chunk elements of
** all segments] this rank's chunks; trainable segments first gradient f32 [chunk elements of the trainable segments]
** the same offsets as master; optimizer state likewise gathered param_dtype, [W*chunk] a segment what kernels read
** reduce reduce_dtype, [W*chunk] a trainable segment what weight-gradient kernels write Every segment's padding is zero
** in all of them. Offsets are multiples of MS_SEGMENT_ALIGN elements.
*/
#ifndef MS_SHARD_MODEL_H
#define MS_SHARD_MODEL_H

#include "base/error.h"
#include "base/handle.h"
#include "graph/graph.h"
#include "mesh/mesh.h"
#include "moonshard.h"

enum { MS_SEGMENT_ALIGN = 32 };

typedef struct ms_param {
  char *name;
  int unit;
  int ndim;
  int64_t dims[MS_MAX_DIMS];
  int64_t numel;
  ms_param_config config;
  int segment;    /* in its unit */
  int64_t offset; /* elements from the segment's start */
  /* Owned by this rank: elements [first, first + owned) of the flattened parameter, at `local` elements into the unit's
  ** master buffer. owned may be 0. */
  int64_t first, owned, local;
} ms_param;

typedef struct ms_segment {
  int frozen, param_dtype, reduce_dtype;
  double lr_scale, weight_decay; /* `rows`: of its parameter; `ragged`: all parameters of the segment agree */
  int first_param, params;       /* range in ms_unit.order */
  int64_t chunk;                 /* elements a rank */
  int64_t local;                 /* elements into master (and gradient, state) */
  int64_t gathered;              /* bytes into the unit's gathered buffer */
  int64_t reduce;                /* bytes into the unit's reduce buffer; -1 when frozen */
} ms_segment;

typedef struct ms_unit {
  char *name;
  ms_unit_config config;
  int *order; /* its parameters, in segment order */
  int params, order_capacity;
  ms_segment *segment;
  int segments;
  int64_t master_count;    /* f32 elements of the master buffer */
  int64_t trainable_count; /* its leading part: elements of gradient and optimizer state */
  int64_t gathered_bytes, reduce_bytes;
  int prefetch; /* units to gather ahead while it runs; -1: as the plan says */
  struct {
    int *unit, n; /* instead: these, in this order; n -1: by number */
  } ahead[2];     /* forward, backward */
} ms_unit;

struct ms_model {
  ms_handle handle;
  uint64_t seed;
  ms_param *param;
  ms_unit *unit;
  int params, units, param_capacity, unit_capacity;
  int64_t elements;             /* of all parameters */
  int sharded;                  /* ms_model_shard was called */
  int rank, world;              /* world: of the mesh's root; may hold ranks that have nothing to do with this model */
  int shard_dim, replicate_dim; /* of the mesh; -1: none, or of size 1 */
  int shard_size, shard_rank, replicate_size, replicate_rank;
  int *shard_group, *replicate_group; /* world ranks, [shard_size] and [replicate_size] */
  int members, member;                /* ranks that train this model together, and this rank's place among them */
  int *member_rank;                   /* their world ranks, row-major in the mesh */
  int mesh_ndim;
  char mesh_text[MS_MESH_LABEL_BYTES]; /* "2x2 (replicate, shard)" */
};

/* Whether a unit of a sharded model may keep shards of 1/size with this enum ms_reshard. */
int ms_unit_check_reshard_size(const ms_model *model, int unit, int reshard, int size);
/* Ranks that a unit is gathered in for backward: the shard group, or neighbours in it; 1 when it is kept (model.c). */
int ms_unit_backward_ranks(const ms_model *model, int unit);
/* The ranges of what an optimizer does with a parameter (model.c). */
int ms_model_check_group(const char *name, double lr_scale, double weight_decay);
/* Fills segments, offsets and owned ranges of every unit (segment.c). */
int ms_model_segment(ms_model *model);
/* What the graph floor asks: ms_param_lookup. */

int ms_model_param_info(const void *model, int param, ms_param_info *info);
int ms_model_find_param(const ms_model *model, const char *name);

#endif
