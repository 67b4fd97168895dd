/* axis.c - joining, splitting and comparing axes. */
#include "mesh/axis.h"

#include <stddef.h>

static long long end_of(const ms_mode *mode) { return (long long)mode->size * mode->stride; }

ms_axis ms_axis_make(int size, int stride) { return (ms_axis){1, {{size, stride}}}; }

int ms_axis_size(const ms_axis *axis) {
  int size = 1;
  for (int m = 0; m < axis->modes; m++) size *= axis->mode[m].size;
  return size;
}

int ms_axis_coordinate(const ms_axis *axis, int position) {
  int coordinate = 0;
  for (int m = 0; m < axis->modes; m++)
    coordinate = coordinate * axis->mode[m].size + position / axis->mode[m].stride % axis->mode[m].size;
  return coordinate;
}

int ms_axis_offset(const ms_axis *axis, int coordinate) {
  int offset = 0;
  for (int m = axis->modes - 1; m >= 0; m--) {
    offset += coordinate % axis->mode[m].size * axis->mode[m].stride;
    coordinate /= axis->mode[m].size;
  }
  return offset;
}

/* Appends a mode inside the others: merges it with its neighbour if both form one run, drops it if it has size 1. */
static void push(ms_axis *axis, ms_mode mode) {
  ms_mode *last = axis->modes ? &axis->mode[axis->modes - 1] : NULL;
  if (!last) axis->mode[axis->modes++] = mode;
  else if (mode.size == 1) return;
  else if (last->size == 1) *last = mode;
  else if (last->stride == end_of(&mode)) *last = (ms_mode){last->size * mode.size, mode.stride};
  else axis->mode[axis->modes++] = mode;
}

ms_axis ms_axis_join(const ms_axis *outer, const ms_axis *inner) {
  ms_axis joined = *outer;
  for (int m = 0; m < inner->modes; m++) push(&joined, inner->mode[m]);
  return joined;
}

/* Takes the outermost `size` steps from the list mode[*at, modes), whose head shrinks. Returns 0 if they do not
 * divide it. */
static int take(ms_mode *mode, int *at, int modes, int size, ms_axis *part) {
  part->modes = 0;
  while (size > 1) {
    if (*at == modes) return 0;
    ms_mode *head = &mode[*at];
    if (size >= head->size) {
      if (size % head->size) return 0;
      size /= head->size;
      push(part, *head);
      (*at)++;
    } else {
      if (head->size % size) return 0;
      head->size /= size;
      push(part, (ms_mode){size, (int)end_of(head)});
      size = 1;
    }
  }
  return 1;
}

int ms_axis_split(const ms_axis *axis, int n, const int *sizes, ms_axis *parts) {
  ms_axis rest = *axis;
  int at = 0;
  for (int i = 0; i < n; i++) {
    if (!take(rest.mode, &at, rest.modes, sizes[i], &parts[i])) return 0;
    if (parts[i].modes) continue;
    /* An axis of size 1 is placed just outside the remaining modes. */
    const ms_mode *last = &axis->mode[axis->modes - 1];
    parts[i] = ms_axis_make(1, at < rest.modes ? (int)end_of(&rest.mode[at]) : last->stride);
  }
  return 1;
}

int ms_axis_equal(const ms_axis *a, const ms_axis *b) {
  if (a->modes != b->modes) return 0;
  for (int m = 0; m < a->modes; m++)
    if (a->mode[m].size != b->mode[m].size || a->mode[m].stride != b->mode[m].stride) return 0;
  return 1;
}

int ms_axis_overlaps(const ms_axis *a, const ms_axis *b) {
  for (int i = 0; i < a->modes; i++)
    for (int k = 0; k < b->modes; k++) {
      const ms_mode *x = &a->mode[i], *y = &b->mode[k];
      if (x->size > 1 && y->size > 1 && x->stride < end_of(y) && y->stride < end_of(x)) return 1;
    }
  return 0;
}

/* Extends a run of positions by adjacent modes until none is left: the longest run that contains the mode. */
static ms_mode run_around(ms_mode run, const ms_axis *axes, int n) {
  for (int grown = 1; grown;) {
    grown = 0;
    for (int i = 0; i < n; i++)
      for (int m = 0; m < axes[i].modes; m++) {
        const ms_mode *other = &axes[i].mode[m];
        if (other->size == 1) continue;
        if (end_of(other) == run.stride) run = (ms_mode){run.size * other->size, other->stride};
        else if (end_of(&run) == other->stride) run.size *= other->size;
        else continue;
        grown = 1;
      }
  }
  return run;
}

static int is_within(const ms_mode *mode, const ms_axis *axes, int n) {
  if (mode->size == 1) return 1;
  for (int i = 0; i < n; i++)
    for (int m = 0; m < axes[i].modes; m++) {
      if (axes[i].mode[m].size == 1) continue;
      ms_mode run = run_around(axes[i].mode[m], axes, n);
      if (mode->stride % run.stride == 0 && end_of(&run) % end_of(mode) == 0) return 1;
    }
  return 0;
}

int ms_axis_is_within(const ms_axis *axis, const ms_axis *axes, int n) {
  for (int m = 0; m < axis->modes; m++)
    if (!is_within(&axis->mode[m], axes, n)) return 0;
  return 1;
}

int ms_axis_is_outside_of(const ms_axis *a, const ms_axis *b) {
  const ms_mode *x = &a->mode[0], *y = &b->mode[0];
  return end_of(x) != end_of(y) ? end_of(x) > end_of(y) : x->stride > y->stride;
}
