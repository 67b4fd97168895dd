/* model_mesh.c - a model's place on a mesh: which ranks train it together, and this rank's group along each dimension
 * that has a role.
 */
#include "shard/model.h"

#include <stdlib.h>
#include <string.h>

static const char *const dim_names[MS_DIMS] = {[MS_DIM_REPLICATE] = "replicate",
                                               [MS_DIM_SHARD] = "shard",
                                               [MS_DIM_TENSOR] = "tensor",
                                               [MS_DIM_CONTEXT] = "context"};

/* Dimensions without a role have size 1, so the ranks of the mesh are the grid of the others. */
static int take_members(ms_model *model, const ms_mesh *mesh, int rank) {
  model->members = ms_mesh_count(mesh);
  model->member_rank = ms_calloc(model->members, sizeof *model->member_rank);
  if (!model->member_rank) return MS_ENOMEM;
  MS_TRY(ms_mesh_ranks(mesh, -1, rank, model->member_rank));
  while (model->member_rank[model->member] != rank) model->member++;
  return MS_OK;
}

/* Takes this rank's group along dimensions [first, end) of the mesh; end <= first: it is alone. The members are the
 * ranks of the mesh, row-major. */
static int take_group(ms_model *model, const ms_mesh *mesh, const char *name, int first, int end, ms_dim_group *group) {
  *group = (ms_dim_group){.name = name, .label = name, .mesh_dim = -1, .size = 1, .stride = 1};
  for (int d = first; d < end; d++) group->size *= mesh->size[d];
  for (int d = end; d < mesh->ndim && group->size > 1; d++) group->stride *= mesh->size[d];
  group->mesh_dim = group->size > 1 ? first : -1;
  group->place = model->member / group->stride % group->size;
  group->number = model->member / (group->stride * group->size) * group->stride + model->member % group->stride;
  group->ranks = ms_calloc(group->size, sizeof *group->ranks);
  if (!group->ranks) return MS_ENOMEM;
  for (int i = 0; i < group->size; i++)
    group->ranks[i] = model->member_rank[model->member + (i - group->place) * group->stride];
  return MS_OK;
}

/* The dimensions [*first, *end) of the mesh along which ranks shard: that of context is one of them. */
static int find_shards(const ms_mesh *mesh, int shard, int context, int *first, int *end) {
  *first = shard, *end = shard < 0 ? shard : shard + 1;
  if (context < 0 || mesh->size[context] == 1) return MS_OK;
  if (shard >= 0 && shard + 1 != context && mesh->size[shard] > 1)
    return MS_FAIL(MS_EINVAL, "mesh %s: dimension %d, context, must come right after dimension %d, shard", mesh->label,
                   context, shard);
  if (shard < 0 || shard + 1 != context) *first = context; /* context can be dimension 0 */
  *end = context + 1;
  return MS_OK;
}

/* dim: [MS_DIMS] a dimension of the mesh for each role, or -1. */
static int take_groups(ms_model *model, const ms_mesh *mesh, const int *dim) {
  for (int d = 0; d < MS_DIMS; d++) {
    int first = dim[d], end = dim[d] + (dim[d] >= 0);
    if (d == MS_DIM_SHARD) MS_TRY(find_shards(mesh, dim[d], dim[MS_DIM_CONTEXT], &first, &end));
    MS_TRY(take_group(model, mesh, dim_names[d], first, end, &model->dim[d]));
    if (d == MS_DIM_SHARD && end - first > 1) model->dim[d].label = "shard and context";
    if (d == MS_DIM_SHARD && end > first && first == dim[MS_DIM_CONTEXT]) model->dim[d].label = "context";
  }
  return MS_OK;
}

/* dim: [MS_DIMS] a dimension of the mesh for each role, or -1. */
static int check_dims(const ms_mesh *mesh, int rank, const int *dim) {
  char role[MS_MAX_MESH_DIMS] = {0};
  MS_TRY(ms_mesh_check_rank(mesh, rank));
  for (int d = 0; d < MS_DIMS; d++) {
    if (dim[d] < 0) continue;
    if (dim[d] >= mesh->ndim)
      return MS_FAIL(MS_EINVAL, "mesh %s has %d dimension%s; ms_model_dims.%s is %d and must be below that",
                     mesh->label, mesh->ndim, mesh->ndim == 1 ? "" : "s", dim_names[d], dim[d]);
    if (role[dim[d]]++)
      return MS_FAIL(MS_EINVAL,
                     "mesh %s: dimension %d has two roles; a dimension has one of replicate, shard, "
                     "context and tensor",
                     mesh->label, dim[d]);
  }
  for (int d = 0; d < mesh->ndim; d++)
    if (!role[d] && mesh->size[d] > 1)
      return MS_FAIL(MS_EUNSUPPORTED,
                     "mesh %s: dimension %d has size %d but no role: pass the slice of the dimensions that "
                     "have one; each copy of the slice then trains its own model",
                     mesh->label, d, mesh->size[d]);
  return MS_OK;
}

/* Which ranks have chunks of each unit. Where one rank owns all of a shard anyway, all units have the same. */
static void give_units_groups(ms_model *model) {
  const ms_dim_group *shard = &model->dim[MS_DIM_SHARD];
  model->alone = (ms_dim_group){
      .name = shard->name, .label = shard->label, .mesh_dim = -1, .size = 1, .stride = 1, .ranks = &model->rank};
  for (int u = 0; u < model->units; u++)
    model->unit[u].shard = model->unit[u].config.shard || shard->size == 1 ? shard : &model->alone;
}

int ms_model_join_mesh(ms_model *model, const ms_mesh *mesh, int rank, const ms_model_dims *dims) {
  const int dim[MS_DIMS] = {[MS_DIM_REPLICATE] = dims->replicate,
                            [MS_DIM_SHARD] = dims->shard,
                            [MS_DIM_TENSOR] = dims->tensor,
                            [MS_DIM_CONTEXT] = dims->context};
  MS_TRY(check_dims(mesh, rank, dim));
  MS_TRY(take_members(model, mesh, rank));
  MS_TRY(take_groups(model, mesh, dim));
  give_units_groups(model);
  model->rank = rank;
  model->world = mesh->root->world;
  model->mesh_ndim = mesh->ndim;
  memcpy(model->mesh_text, mesh->label, sizeof model->mesh_text);
  return MS_OK;
}

void ms_model_leave_mesh(ms_model *model) {
  for (int d = 0; d < MS_DIMS; d++) free(model->dim[d].ranks);
  memset(model->dim, 0, sizeof model->dim);
  free(model->member_rank);
  model->member_rank = NULL;
  model->member = 0;
}
