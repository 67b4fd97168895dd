/* mesh.c - layout of ranks in named dimensions, and the checks that a mesh fits its world. */
#include "mesh/mesh.h"

#include "base/error.h"
#include "base/text.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_dim(const ms_mesh *mesh, int dim) { return dim >= 0 && dim < mesh->ndim; }

/* "2x-1 (replicate, shard)" of the sizes as asked for. A name too many to fit is cut. */
static void write_label(char *label, int ndim, const int *sizes, const char *const *names) {
  int used = 0;
  const int room = MS_MESH_LABEL_BYTES;
  for (int d = 0; d < ndim && used < room; d++)
    used += snprintf(label + used, (size_t)(room - used), d ? "x%d" : "%d", sizes[d]);
  for (int d = 0; names && d < ndim && used < room; d++)
    if (names[d]) used += snprintf(label + used, (size_t)(room - used), "%s%s", d ? ", " : " (", names[d]);
  if (names && names[0] && used < room) used += snprintf(label + used, (size_t)(room - used), ")");
  if (used >= room) memcpy(label + room - 4, "...", 4);
}

static int check_device(const char *device) {
  if (device && !strcmp(device, "cpu")) return MS_OK;
  if (device && !strcmp(device, "cuda"))
    return MS_FAIL(MS_EUNSUPPORTED, "mesh on device \"cuda\": this build has the cpu device only");
  return MS_FAIL(MS_EINVAL, "mesh on unknown device \"%s\": it must be \"cpu\"", device ? device : "");
}

/* names with holes: fewer names than dimensions. */
static int check_names(const char *label, int ndim, const char *const *names) {
  int given = 0;
  while (names && given < ndim && names[given]) given++;
  if (given == 0 && ndim > 1)
    return MS_FAIL(MS_ENAME,
                   "mesh %s has %d dimensions and no names: a mesh of more than one dimension needs a name for each",
                   label, ndim);
  if (given > 0 && given < ndim)
    return MS_FAIL(MS_ENAME, "mesh %s has %d dimensions but %d name%s: give one name for each dimension", label, ndim,
                   given, given == 1 ? "" : "s");
  for (int d = 0; d < given; d++) {
    if (!names[d][0]) return MS_FAIL(MS_ENAME, "mesh %s: the name of dimension %d is empty", label, d);
    for (int e = 0; e < d; e++)
      if (!strcmp(names[d], names[e]))
        return MS_FAIL(MS_ENAME, "mesh %s: dimensions %d and %d are both named \"%s\"; names must differ", label, e, d,
                       names[d]);
  }
  return MS_OK;
}

/* Fills the sizes, the one that is -1 inferred from the world. */
static int resolve_sizes(const char *label, int ndim, const int *sizes, int world, int *resolved) {
  int inferred = -1;
  int64_t product = 1;
  for (int d = 0; d < ndim; d++) {
    resolved[d] = sizes[d];
    if (sizes[d] == -1) {
      if (inferred >= 0)
        return MS_FAIL(MS_EINVAL, "mesh %s: dimensions %d and %d are both -1; only one size can be inferred", label,
                       inferred, d);
      inferred = d;
    } else if (sizes[d] < 1) {
      return MS_FAIL(MS_EINVAL, "mesh %s: size %d of dimension %d must be at least 1, or -1 to infer it", label,
                     sizes[d], d);
    } else if (__builtin_mul_overflow(product, sizes[d], &product)) {
      product = INT64_MAX;
    }
  }
  if (inferred >= 0) {
    if (world % product)
      return MS_FAIL(MS_EINVAL,
                     "mesh %s: dimension %d cannot be inferred: the other sizes make %lld, which does not divide the "
                     "world of %d",
                     label, inferred, (long long)product, world);
    resolved[inferred] = (int)(world / product);
  } else if (product != world) {
    return MS_FAIL(MS_EINVAL, "mesh %s holds %lld rank%s, but the world has %d", label, (long long)product,
                   product == 1 ? "" : "s", world);
  }
  return MS_OK;
}

int ms_mesh_new(const char *device, int ndim, const int *sizes, const char *const *names, int world, ms_mesh **mesh) {
  char label[MS_MESH_LABEL_BYTES];
  int resolved[MS_MAX_MESH_DIMS];
  *mesh = NULL;
  MS_TRY(check_device(device));
  if (ndim < 1 || ndim > MS_MAX_MESH_DIMS)
    return MS_FAIL(MS_EINVAL, "a mesh of %d dimensions: it must have 1 to %d", ndim, MS_MAX_MESH_DIMS);
  if (world < 1 || world > MS_MAX_WORLD)
    return MS_FAIL(MS_EINVAL, "a mesh over a world of %d ranks: it must have 1 to %d", world, MS_MAX_WORLD);
  write_label(label, ndim, sizes, names);
  MS_TRY(check_names(label, ndim, names));
  MS_TRY(resolve_sizes(label, ndim, sizes, world, resolved));

  ms_mesh *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  made->ndim = ndim;
  made->world = world;
  for (int d = ndim - 1, stride = 1; d >= 0; d--) {
    made->size[d] = resolved[d];
    made->stride[d] = stride;
    stride *= resolved[d];
  }
  for (int d = 0; names && names[0] && d < ndim; d++) {
    made->name[d] = ms_strdup(names[d]);
    if (made->name[d]) continue;
    ms_mesh_free(made);
    return MS_ENOMEM;
  }
  write_label(made->label, ndim, resolved, names);
  *mesh = made;
  return MS_OK;
}

void ms_mesh_free(ms_mesh *mesh) {
  if (!mesh) return;
  for (int d = 0; d < mesh->ndim; d++) free(mesh->name[d]);
  free(mesh);
}

int ms_mesh_ndim(const ms_mesh *mesh) { return mesh->ndim; }

int ms_mesh_world(const ms_mesh *mesh) { return mesh->world; }

int ms_mesh_size(const ms_mesh *mesh, int dim) { return is_dim(mesh, dim) ? mesh->size[dim] : 0; }

const char *ms_mesh_name(const ms_mesh *mesh, int dim) {
  return is_dim(mesh, dim) && mesh->name[dim] ? mesh->name[dim] : "";
}

int ms_mesh_dim(const ms_mesh *mesh, const char *name, int *dim) {
  ms_text valid = {0};
  for (int d = 0; d < mesh->ndim; d++) {
    if (mesh->name[d] && !strcmp(mesh->name[d], name)) {
      *dim = d;
      ms_text_free(&valid);
      return MS_OK;
    }
    if (mesh->name[d]) ms_text_append(&valid, "%s%s", d ? ", " : "", mesh->name[d]);
  }
  int rc = ms_text_status(&valid);
  if (!rc && valid.data)
    rc = MS_FAIL(MS_ENAME, "mesh %s has no dimension \"%s\": it has %s", mesh->label, name, valid.data);
  else if (!rc) rc = MS_FAIL(MS_ENAME, "mesh %s has no dimension \"%s\": its dimension has no name", mesh->label, name);
  ms_text_free(&valid);
  return rc;
}

static int check_rank(const ms_mesh *mesh, int rank) {
  if (rank >= 0 && rank < mesh->world) return MS_OK;
  return MS_FAIL(MS_EINVAL, "rank %d is outside the mesh %s: its ranks are 0 to %d", rank, mesh->label,
                 mesh->world - 1);
}

int ms_mesh_coordinate(const ms_mesh *mesh, int rank, int *coordinate) {
  MS_TRY(check_rank(mesh, rank));
  for (int d = 0; d < mesh->ndim; d++) coordinate[d] = ms_mesh_coordinate_of(mesh, d, rank);
  return MS_OK;
}

int ms_mesh_group(const ms_mesh *mesh, int dim, int rank, int *ranks) {
  if (!is_dim(mesh, dim))
    return MS_FAIL(MS_EINVAL, "dimension %d is outside the mesh %s: its dimensions are 0 to %d", dim, mesh->label,
                   mesh->ndim - 1);
  MS_TRY(check_rank(mesh, rank));
  int first = rank - ms_mesh_coordinate_of(mesh, dim, rank) * mesh->stride[dim];
  for (int i = 0; i < mesh->size[dim]; i++) ranks[i] = first + i * mesh->stride[dim];
  return MS_OK;
}
