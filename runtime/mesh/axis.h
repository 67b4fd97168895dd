/* axis.h - one dimension of a mesh as arithmetic over positions.
 *
 * The ranks of a mesh have positions 0 .. n-1 in a row-major root. An axis describes the positions that a dimension
 * covers: modes of (size, stride), outermost first, as in the layouts of CuTe and of PyTorch's DeviceMesh. Most axes
 * have one mode; flattening two dimensions with a third between them gives two modes. All modes of a root are digits
 * of a mixed radix, so a mode covers the strides [stride, size * stride), and axes with disjoint strides are
 * independent. This file does not depend on names, ranks or memory.
 */
#ifndef MS_MESH_AXIS_H
#define MS_MESH_AXIS_H

/* Modes have at least size 2, and a world has at most 2^12 ranks. */
enum { MS_MAX_MODES = 12 };

typedef struct ms_mode {
  int size, stride;
} ms_mode;

typedef struct ms_axis {
  int modes; /* at least 1; a mode of size 1 is always the only one */
  ms_mode mode[MS_MAX_MODES];
} ms_axis;

ms_axis ms_axis_make(int size, int stride);
int ms_axis_size(const ms_axis *axis);
/* The coordinate of a position along the axis, and the offset in positions of a coordinate; each is the inverse of
 * the other. */
int ms_axis_coordinate(const ms_axis *axis, int position);
int ms_axis_offset(const ms_axis *axis, int coordinate);
/* The axis whose coordinate is outer * size(inner) + inner. Adjacent modes merge. */
ms_axis ms_axis_join(const ms_axis *outer, const ms_axis *inner);
/* Splits an axis into n axes of these sizes, whose product is the size of the axis, outermost first. Returns 0 when
 * a cut would be inside a mode that it does not divide, as in 2 x 6 of the modes (4, 3). */
int ms_axis_split(const ms_axis *axis, int n, const int *sizes, ms_axis *parts);
int ms_axis_equal(const ms_axis *a, const ms_axis *b);
/* 1 when the axes have a digit in common. */
int ms_axis_overlaps(const ms_axis *a, const ms_axis *b);
/* 1 when every step along the axis can be made along these axes. */
int ms_axis_is_within(const ms_axis *axis, const ms_axis *axes, int n);
/* 1 when a comes before b in row-major order. */
int ms_axis_is_outside_of(const ms_axis *a, const ms_axis *b);

#endif
