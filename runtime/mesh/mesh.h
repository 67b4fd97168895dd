/* mesh.h - meshes: named axes over the positions of a root, and the ranks at those positions.
 *
 * A root is created once, over the whole world or over a list of ranks; slicing, flattening and unflattening create
 * further meshes over the same root, with axes computed from its axes. A slice describes all its copies at once:
 * the shard slice of a 2x4 mesh is {0,1,2,3} for rank 2 and {4,5,6,7} for rank 6. No function needs a device or
 * another rank, so the place of any rank in a mesh of thousands can be computed anywhere.
 */
#ifndef MS_MESH_MESH_H
#define MS_MESH_MESH_H

#include <stdbool.h>
#include "base/handle.h"
#include "mesh/axis.h"
#include "moonshard.h"

enum { MS_MAX_WORLD = 4096, MS_MESH_LABEL_BYTES = 160 };

/* A dimension created by flattening or unflattening. */
typedef struct ms_derived {
  char *name;
  ms_axis axis;
} ms_derived;

typedef struct ms_mesh_root {
  int users; /* number of meshes that use it, and the code that makes it */
  int world;
  int size;      /* number of positions */
  int *rank;     /* [size] by position; NULL: rank = position */
  int *position; /* [world] by rank, -1 for ranks outside the mesh; NULL: position = rank */
  int ndim;      /* number of original dimensions */
  char *name[MS_MAX_MESH_DIMS];
  ms_axis axis[MS_MAX_MESH_DIMS];
  ms_derived *derived;
  int n_derived, derived_capacity;
} ms_mesh_root;

struct ms_mesh {
  ms_handle handle;
  ms_mesh_root *root;
  int ndim;
  int size[MS_MAX_MESH_DIMS];
  ms_axis axis[MS_MAX_MESH_DIMS];
  char *name[MS_MAX_MESH_DIMS];    /* NULL when the dimension has no name */
  char label[MS_MESH_LABEL_BYTES]; /* "2x4 (replicate, shard)", for messages and dumps */
};

/* Creates a mesh over a root and adds a reference to the root; names may contain NULL. */
int ms_mesh_over(ms_mesh_root *root, int ndim, const ms_axis *axes, const char *const *names, ms_mesh **mesh);
/* Writes "2x-1 (replicate, shard)" from sizes and names as the caller gave them. Truncates with "..." if it does not
 * fit. */
void ms_mesh_write_label(char *label, int ndim, const int *sizes, const char *const *names);
/* Checks names for ndim dimensions: all of them or, with one dimension, none; no empty names, no duplicates. */
int ms_mesh_check_names(const char *label, int ndim, const char *const *names);
/* Fills `resolved` with the sizes, and infers the one that is -1 from `total`. `holder` says what `total` counts:
 * "the world"; `startable`: the user can start a different number of ranks, which the error then suggests. */
int ms_mesh_resolve_sizes(const char *label, int ndim, const int *sizes, int total, const char *holder, bool startable,
                          int *resolved);
/* The number of its ranks: the product of the sizes. */
int ms_mesh_count(const ms_mesh *mesh);
int ms_mesh_contains(const ms_mesh *mesh, int rank);
int ms_mesh_check_dim(const ms_mesh *mesh, int dim);
int ms_mesh_check_rank(const ms_mesh *mesh, int rank);

#endif
