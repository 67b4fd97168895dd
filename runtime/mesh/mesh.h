/* mesh.h - what a mesh is: named axes over the positions of a root, and the ranks that stand there.
**
** A root is made once, over the whole world or over ranks chosen by hand; slicing, flattening and unflattening give
** further meshes over the same root, whose axes are computed from the first one's. Such a mesh stands for all its
** copies at once: the shard slice of a 2x4 mesh is {0,1,2,3} to rank 2 and {4,5,6,7} to rank 6. Nothing here asks for a
** device or another rank, so any rank's place in a mesh of thousands can be computed anywhere.
*/
#ifndef MS_MESH_MESH_H
#define MS_MESH_MESH_H

#include <stdbool.h>
#include "base/handle.h"
#include "mesh/axis.h"
#include "moonshard.h"

enum { MS_MAX_WORLD = 4096, MS_MESH_LABEL_BYTES = 160 };

/* A dimension that was made by flattening or unflattening. */
typedef struct ms_derived {
  char *name;
  ms_axis axis;
} ms_derived;

typedef struct ms_mesh_root {
  int meshes; /* that hold it */
  int world;
  int size;      /* positions */
  int *rank;     /* [size] by position; NULL: the position itself */
  int *position; /* [world] by rank, -1 where the mesh has none; NULL: the rank itself */
  int ndim;      /* the dimensions that it was made with */
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

/* A further mesh over a root, which it holds from then on; names may hold NULL. */
int ms_mesh_over(ms_mesh_root *root, int ndim, const ms_axis *axes, const char *const *names, ms_mesh **mesh);
/* "2x-1 (replicate, shard)" of sizes and names as they were asked for. What does not fit is cut. */
void ms_mesh_write_label(char *label, int ndim, const int *sizes, const char *const *names);
/* Names for ndim dimensions: all or, in one dimension, none; not empty, not twice. */
int ms_mesh_check_names(const char *label, int ndim, const char *const *names);
/* Fills the sizes, the one that is -1 inferred from `total`. `holder` names what the total is of: "the world";
   `startable`: another total could be had by starting other ranks, which the error then says. */
int ms_mesh_resolve_sizes(const char *label, int ndim, const int *sizes, int total, const char *holder, bool startable,
                          int *resolved);
int ms_mesh_check_dim(const ms_mesh *mesh, int dim);
int ms_mesh_check_rank(const ms_mesh *mesh, int rank);
/* Coordinate of a rank along one dimension. The rank must be in the mesh. */
int ms_mesh_coordinate_of(const ms_mesh *mesh, int dim, int rank);

#endif
