/* mesh.c - creates meshes over the world or over a list of ranks, and computes the places of ranks in them. */
#include "mesh/mesh.h"

#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/error.h"
#include "base/text/text.h"

/* ---- roots ---- */

/* Meshes over a root and the code that makes it share it; the last user frees it. */
static void release_root(ms_mesh_root *root) {
  if (!root || --root->users > 0) return;
  for (int d = 0; d < root->ndim; d++) free(root->name[d]);
  for (int i = 0; i < root->n_derived; i++) free(root->derived[i].name);
  free(root->derived);
  free(root->rank);
  free(root->position);
  free(root);
}

static int copy_names(int ndim, const char *const *names, char **copies) {
  for (int d = 0; names && d < ndim; d++) {
    if (!names[d]) continue;
    copies[d] = ms_strdup(names[d]);
    if (!copies[d]) return MS_ENOMEM;
  }
  return MS_OK;
}

static void destroy_mesh(void *object) {
  ms_mesh *mesh = object;
  for (int d = 0; d < mesh->ndim; d++) free(mesh->name[d]);
  release_root(mesh->root);
}

int ms_mesh_over(ms_mesh_root *root, int ndim, const ms_axis *axes, const char *const *names, ms_mesh **mesh) {
  ms_mesh *made = ms_handle_new(MS_HANDLE_MESH, sizeof *made, destroy_mesh);
  if (!made) return MS_ENOMEM;
  made->root = root;
  root->users++;
  made->ndim = ndim;
  for (int d = 0; d < ndim; d++) {
    made->axis[d] = axes[d];
    made->size[d] = ms_axis_size(&axes[d]);
  }
  if (copy_names(ndim, names, made->name)) {
    ms_free(made);
    return MS_ENOMEM;
  }
  ms_mesh_write_label(made->label, ndim, made->size, names);
  *mesh = made;
  return MS_OK;
}

/* Row-major: the last dimension has stride 1. The caller releases *out, also after an error; it may be NULL then. */
static int make_root(int ndim, const int *sizes, const char *const *names, int world, ms_mesh_root **out) {
  ms_mesh_root *root = ms_calloc(1, sizeof *root);
  if (!root) return MS_ENOMEM;
  root->users = 1;
  root->world = world;
  root->ndim = ndim;
  root->size = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    root->axis[d] = ms_axis_make(sizes[d], root->size);
    root->size *= sizes[d];
  }
  *out = root;
  return copy_names(ndim, names, root->name);
}

/* Sets ranks by position and positions by rank; both stay NULL where every rank equals its position. */
static int set_ranks(ms_mesh_root *root, const char *label, const int *ranks) {
  int is_identity = root->size == root->world;
  root->position = ms_calloc(root->world, sizeof *root->position);
  root->rank = ms_calloc(root->size, sizeof *root->rank);
  if (!root->position || !root->rank) return MS_ENOMEM;
  for (int rank = 0; rank < root->world; rank++) root->position[rank] = -1;
  for (int i = 0; i < root->size; i++) {
    if (ranks[i] < 0 || ranks[i] >= root->world)
      return MS_FAIL(MS_EINVAL, "mesh %s: rank %d is outside the world of %d: its ranks are 0 to %d", label, ranks[i],
                     root->world, root->world - 1);
    if (root->position[ranks[i]] >= 0) return MS_FAIL(MS_EINVAL, "mesh %s: rank %d is listed twice", label, ranks[i]);
    root->position[ranks[i]] = i;
    root->rank[i] = ranks[i];
    is_identity = is_identity && ranks[i] == i;
  }
  if (!is_identity) return MS_OK;
  free(root->position);
  free(root->rank);
  root->position = root->rank = NULL;
  return MS_OK;
}

static int check_device(int device) {
  if (device == MS_DEVICE_CPU || device == MS_DEVICE_CUDA) return MS_OK;
  return MS_FAIL(MS_EINVAL, "a mesh on device %d: it must be one of enum ms_device_kind", device);
}

static int check_counts(int device, int ndim, int world) {
  MS_TRY(check_device(device));
  if (ndim < 1 || ndim > MS_MAX_MESH_DIMS)
    return MS_FAIL(MS_EINVAL, "a mesh cannot have %d dimensions; 1 to %d are supported", ndim, MS_MAX_MESH_DIMS);
  if (world < 1 || world > MS_MAX_WORLD)
    return MS_FAIL(MS_EINVAL, "a mesh cannot span a world of %d ranks; 1 to %d are supported", world, MS_MAX_WORLD);
  return MS_OK;
}

/* ranks NULL: those of the world, in order. */
static int make_mesh(int device, int ndim, const int *sizes, const char *const *names, int n, const int *ranks,
                     int world, ms_mesh **mesh) {
  char label[MS_MESH_LABEL_BYTES];
  int resolved[MS_MAX_MESH_DIMS], rc = MS_OK;
  ms_mesh_root *root = NULL;
  *mesh = NULL;
  MS_TRY(check_counts(device, ndim, world));
  ms_mesh_write_label(label, ndim, sizes, names);
  MS_TRY(ms_mesh_check_names(label, ndim, names));
  MS_TRY(ms_mesh_resolve_sizes(label, ndim, sizes, n, ranks ? "the list of ranks" : "the world", !ranks, resolved));
  MS_GOTO(make_root(ndim, resolved, names, world, &root));
  if (ranks) MS_GOTO(set_ranks(root, label, ranks));
  rc = ms_mesh_over(root, ndim, root->axis, names, mesh);
fail:
  release_root(root);
  return rc;
}

int ms_mesh_new(int device, int ndim, const int *sizes, const char *const *names, int world, int n, const int *ranks,
                ms_mesh **mesh) {
  MS_GIVEN(sizes);
  if (n != 0) MS_GIVEN(ranks);
  MS_GIVEN(mesh);
  if (ranks && (n < 1 || n > world))
    return MS_FAIL(MS_EINVAL, "a mesh cannot be made of a list of %d ranks: the world has %d, and each is listed once",
                   n, world);
  return make_mesh(device, ndim, sizes, names, ranks ? n : world, ranks, world, mesh);
}

/* ---- dimensions ---- */

int ms_mesh_count(const ms_mesh *mesh) {
  int count = 1;
  for (int d = 0; d < mesh->ndim; d++) count *= mesh->size[d];
  return count;
}

int ms_mesh_describe(const ms_mesh *mesh, ms_mesh_info *info, int size) {
  MS_HANDLE(mesh, MESH);
  MS_GIVEN(info);
  ms_mesh_info own = {
      .ndim = mesh->ndim, .count = ms_mesh_count(mesh), .root_count = mesh->root->size, .world = mesh->root->world};
  for (int d = 0; d < MS_MAX_MESH_DIMS; d++) {
    own.size[d] = mesh->size[d];
    own.name[d] = mesh->name[d] ? mesh->name[d] : "";
  }
  MS_GIVE_INFO(info, size, own);
}

int ms_mesh_check_dim(const ms_mesh *mesh, int dim) {
  if (dim >= 0 && dim < mesh->ndim) return MS_OK;
  return MS_FAIL(MS_EINVAL, "dimension %d is outside the mesh %s: its dimensions are 0 to %d", dim, mesh->label,
                 mesh->ndim - 1);
}

/* ---- ranks ---- */

static int rank_at(const ms_mesh_root *root, int position) { return root->rank ? root->rank[position] : position; }

static int position_of(const ms_mesh_root *root, int rank) { return root->position ? root->position[rank] : rank; }

int ms_mesh_check_rank(const ms_mesh *mesh, int rank) {
  const ms_mesh_root *root = mesh->root;
  if (rank >= 0 && rank < root->world && position_of(root, rank) >= 0) return MS_OK;
  if (!root->rank)
    return MS_FAIL(MS_EINVAL, "rank %d is outside the mesh %s: its ranks are 0 to %d", rank, mesh->label,
                   root->world - 1);
  ms_text valid = {0};
  enum { SHOWN = 16 };
  for (int i = 0; i < root->size && i < SHOWN; i++) ms_text_append(&valid, "%s%d", i ? ", " : "", root->rank[i]);
  if (root->size > SHOWN) ms_text_append(&valid, ", ...");
  int rc = ms_text_status(&valid);
  if (!rc) rc = MS_FAIL(MS_EINVAL, "rank %d is outside the mesh %s: its ranks are %s", rank, mesh->label, valid.data);
  ms_text_free(&valid);
  return rc;
}

int ms_mesh_contains(const ms_mesh *mesh, int rank) {
  return rank >= 0 && rank < mesh->root->world && position_of(mesh->root, rank) >= 0;
}

/* Coordinate of a rank along one dimension. The rank must be in the mesh. */
static int coordinate_of(const ms_mesh *mesh, int dim, int rank) {
  return ms_axis_coordinate(&mesh->axis[dim], position_of(mesh->root, rank));
}

int ms_mesh_coordinate(const ms_mesh *mesh, int rank, int *coordinate) {
  MS_HANDLE(mesh, MESH);
  MS_GIVEN(coordinate);
  MS_TRY(ms_mesh_check_rank(mesh, rank));
  for (int d = 0; d < mesh->ndim; d++) coordinate[d] = coordinate_of(mesh, d, rank);
  return MS_OK;
}

/* The position with coordinate 0 along a dimension and the same coordinates along all others. */
static int first_along(const ms_mesh *mesh, int dim, int position) {
  return position - ms_axis_offset(&mesh->axis[dim], ms_axis_coordinate(&mesh->axis[dim], position));
}

static void list_group(const ms_mesh *mesh, int dim, int first, int *ranks) {
  for (int i = 0; i < mesh->size[dim]; i++) ranks[i] = rank_at(mesh->root, first + ms_axis_offset(&mesh->axis[dim], i));
}

static int list_one_group(const ms_mesh *mesh, int dim, int rank, int *ranks) {
  MS_TRY(ms_mesh_check_rank(mesh, rank));
  list_group(mesh, dim, first_along(mesh, dim, position_of(mesh->root, rank)), ranks);
  return MS_OK;
}

/* Lists every group once: at its first position, whose coordinate along the dimension is 0. */
static void list_all_groups(const ms_mesh *mesh, int dim, int *ranks) {
  for (int position = 0; position < mesh->root->size; position++) {
    if (first_along(mesh, dim, position) != position) continue;
    list_group(mesh, dim, position, ranks);
    ranks += mesh->size[dim];
  }
}

/* Lists ranks in row-major order: the coordinate of the last dimension changes fastest. */
static int list_copy(const ms_mesh *mesh, int rank, int *ranks) {
  MS_TRY(ms_mesh_check_rank(mesh, rank));
  int first = position_of(mesh->root, rank), count = ms_mesh_count(mesh);
  for (int d = 0; d < mesh->ndim; d++) first = first_along(mesh, d, first);
  for (int i = 0; i < count; i++) {
    int position = first;
    for (int d = mesh->ndim - 1, rest = i; d >= 0; d--) {
      position += ms_axis_offset(&mesh->axis[d], rest % mesh->size[d]);
      rest /= mesh->size[d];
    }
    ranks[i] = rank_at(mesh->root, position);
  }
  return MS_OK;
}

int ms_mesh_ranks(const ms_mesh *mesh, int dim, int rank, int *ranks) {
  MS_HANDLE(mesh, MESH);
  MS_GIVEN(ranks);
  if (dim == -1) return list_copy(mesh, rank, ranks);
  MS_TRY(ms_mesh_check_dim(mesh, dim));
  if (rank != -1) return list_one_group(mesh, dim, rank, ranks);
  list_all_groups(mesh, dim, ranks);
  return MS_OK;
}
