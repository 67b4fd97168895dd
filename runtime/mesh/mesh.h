/* mesh.h - what a mesh is: sizes and strides over ranks, as an array's are over memory.
**
** The rank at coordinate c is the sum of c[d] * stride[d]. A group of dimension d is the ranks reached by letting c[d]
** run and holding the others: first + i * stride[d]. Nothing here asks for a device or another rank, so any rank's
** place in a mesh of thousands can be computed anywhere.
*/
#ifndef MS_MESH_MESH_H
#define MS_MESH_MESH_H

#include "moonshard.h"

enum { MS_MAX_WORLD = 4096, MS_MESH_LABEL_BYTES = 160 };

struct ms_mesh {
  int ndim, world;
  int size[MS_MAX_MESH_DIMS];
  int stride[MS_MAX_MESH_DIMS];    /* in ranks; row-major: the last is 1 */
  char *name[MS_MAX_MESH_DIMS];    /* NULL when the dimension has no name */
  char label[MS_MESH_LABEL_BYTES]; /* "2x4 (replicate, shard)", for messages and dumps */
};

/* Coordinate of a rank along one dimension. rank must be inside the mesh. */
static inline int ms_mesh_coordinate_of(const ms_mesh *mesh, int dim, int rank) {
  return rank / mesh->stride[dim] % mesh->size[dim];
}

#endif
