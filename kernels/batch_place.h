/* batch_place.h - maps the elements of a tensor to positions in the global tensor of all ranks and micro-batches.
 *
 * The random number of an element is keyed by its position there, so it does not depend on how the batch is divided. A
 * tensor is viewed as [outer][rows][inner], where `rows` are the rows of the batch that it holds; graph/batch_rows.c
 * finds these sizes. Where ranks have parts of the tensor, its elements are first located in the whole one: a part can
 * be a part of a part, as along two mesh dimensions.
 */
#ifndef MS_KERNELS_BATCH_PLACE_H
#define MS_KERNELS_BATCH_PLACE_H

#include "kernels/op.h"
#include "kernels/part.h"

#ifdef __CUDACC__
  #define MS_BATCH_PLACE_FUNCTION static inline __host__ __device__
#else
  #define MS_BATCH_PLACE_FUNCTION static inline
#endif

enum { MS_BATCH_PLACE_OUTER = 0, MS_BATCH_PLACE_ROWS = 1, MS_BATCH_PLACE_INNER = 2, MS_BATCH_PLACE_AXES = 3 };
enum { MS_BATCH_PLACE_PARTS = 2 };

/* Index i of the axis adds (first + i step) stride to the key. */
typedef struct ms_batch_place_axis {
  int64_t count, stride, first, step;
} ms_batch_place_axis;

typedef struct ms_batch_place {
  ms_batch_place_axis axis[MS_BATCH_PLACE_AXES];
  ms_part part[MS_BATCH_PLACE_PARTS]; /* of the whole tensor, and of that part; runs are in elements */
  int64_t elements;                   /* of the whole tensor */
  int has_rows;                       /* 0: the tensor has no batch axis, so the keys are the same on every rank */
  int whole;                          /* 1: the keys of all elements are consecutive */
  uint64_t first;                     /* the key of element 0 */
} ms_batch_place;

/* The position of a tensor of n elements within its micro-batch, from attributes that the builder sets: `outer`,
 * `rows` or 0, `first`, the first row of the micro-batch that the tensor holds, and the parts that the rank has. */
MS_BATCH_PLACE_FUNCTION ms_batch_place ms_batch_place_of(const ms_op_attrs *attrs, int64_t n) {
  const int has_rows = attrs->mask.rows != 0;
  const ms_part part = ms_part_of(attrs->mask.part), inner_part = ms_part_of(attrs->mask.inner_part);
  if (part.ranks) n *= part.ranks;
  if (inner_part.ranks) n *= inner_part.ranks;
  const int64_t outer = has_rows ? attrs->mask.outer : 1, rows = has_rows ? attrs->mask.rows : 1,
                inner = n / (outer * rows);
  ms_batch_place place = {
      {{outer, inner, 0, 1}, {rows, outer * inner, has_rows ? attrs->mask.first : 0, 1}, {inner, 1, 0, 1}},
      {part, inner_part},
      n,
      has_rows,
      1,
      0};
  return place;
}

/* The same position in the global batch; `rows` locates the micro-batch's rows. */
MS_BATCH_PLACE_FUNCTION ms_batch_place ms_batch_place_at(ms_batch_place place, const ms_axis_part *rows) {
  ms_batch_place_axis *axis = &place.axis[MS_BATCH_PLACE_ROWS];
  if (!place.has_rows) return place;
  axis->first = rows->first + axis->first * rows->step;
  axis->step = rows->step;
  place.whole = axis->count == 1 || (place.axis[MS_BATCH_PLACE_OUTER].count == 1 && axis->step == 1);
  place.first = (uint64_t)axis->first * (uint64_t)axis->stride;
  return place;
}

/* Where an element of the part is in the whole tensor. */
MS_BATCH_PLACE_FUNCTION int64_t ms_batch_place_whole(const ms_batch_place *place, int64_t element) {
  for (int p = MS_BATCH_PLACE_PARTS - 1; p >= 0; p--) element = ms_part_index(&place->part[p], element);
  return element;
}

MS_BATCH_PLACE_FUNCTION uint64_t ms_batch_place_key(const ms_batch_place *place, int64_t element) {
  element = ms_batch_place_whole(place, element);
  if (place->whole) return place->first + (uint64_t)element;
  uint64_t key = 0;
  for (int a = MS_BATCH_PLACE_AXES - 1; a >= 0; a--) {
    const ms_batch_place_axis *axis = &place->axis[a];
    key += (uint64_t)(axis->first + element % axis->count * axis->step) * (uint64_t)axis->stride;
    element /= axis->count;
  }
  return key;
}

/* The number of elements, from this one on, whose keys are consecutive. */
MS_BATCH_PLACE_FUNCTION int64_t ms_batch_place_run(const ms_batch_place *place, int64_t element) {
  const int64_t inner = place->axis[MS_BATCH_PLACE_INNER].count;
  int64_t run = place->elements;
  for (int p = MS_BATCH_PLACE_PARTS - 1; p >= 0; p--) {
    const ms_part *part = &place->part[p];
    if (part->ranks && part->run - element % part->run < run) run = part->run - element % part->run;
    element = ms_part_index(part, element);
  }
  const int64_t rest = place->whole ? place->elements - element : inner - element % inner;
  return rest < run ? rest : run;
}

#endif
