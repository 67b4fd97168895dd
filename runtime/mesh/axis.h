/* axis.h - one dimension of a mesh as arithmetic over positions, and what can be done with it.
**
** The ranks of a mesh stand at positions 0 .. n-1 of a row-major root. An axis says which positions a dimension runs
** over: modes of (size, stride), the outermost first, as in the layouts of CuTe and of PyTorch's DeviceMesh. Most axes
** have one mode; a flattened pair of dimensions with another one between them has two. All modes of a root are digits
** of a mixed radix, so a mode is a span of strides [stride, size * stride), and axes are independent where their spans
** are disjoint. Nothing here knows of names, ranks or memory.
*/
#ifndef MS_MESH_AXIS_H
#define MS_MESH_AXIS_H

/* Modes have sizes of at least 2, and a world has at most 2^12 ranks. */
enum { MS_MAX_MODES = 12 };

typedef struct ms_mode {
  int size, stride;
} ms_mode;

typedef struct ms_axis {
  int modes; /* at least 1; a mode of size 1 stands alone */
  ms_mode mode[MS_MAX_MODES];
} ms_axis;

ms_axis ms_axis_make(int size, int stride);
int ms_axis_size(const ms_axis *axis);
/* Coordinate of a position along the axis, and what a coordinate adds to a position: inverse of each other. */
int ms_axis_coordinate(const ms_axis *axis, int position);
int ms_axis_offset(const ms_axis *axis, int coordinate);
/* The axis whose coordinate is outer * size(inner) + inner. Neighbours become one mode. */
ms_axis ms_axis_join(const ms_axis *outer, const ms_axis *inner);
/* Cuts an axis into n axes of these sizes (their product is the axis's), outermost first. 0 when a cut would fall
** inside a mode that it does not divide, as in 2 x 6 of the modes (4, 3). */
int ms_axis_split(const ms_axis *axis, int n, const int *sizes, ms_axis *parts);
int ms_axis_equal(const ms_axis *a, const ms_axis *b);
/* Whether both run along a common digit. */
int ms_axis_overlaps(const ms_axis *a, const ms_axis *b);
/* Whether every step along the axis is one within these axes. */
int ms_axis_is_within(const ms_axis *axis, const ms_axis *axes, int n);
/* Whether a comes before b in row-major order. */
int ms_axis_is_outside_of(const ms_axis *a, const ms_axis *b);

#endif
