/* shape.c - sizes and names as the caller gave them: how messages print them, and checks. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "mesh/mesh.h"

void ms_mesh_write_label(char *label, int ndim, const int *sizes, const char *const *names) {
  int used = 0;
  const int room = MS_MESH_LABEL_BYTES;
  for (int d = 0; d < ndim && used < room; d++)
    used += snprintf(label + used, (size_t)(room - used), d ? "x%d" : "%d", sizes[d]);
  for (int d = 0; names && d < ndim && used < room; d++)
    if (names[d]) used += snprintf(label + used, (size_t)(room - used), "%s%s", d ? ", " : " (", names[d]);
  if (names && names[0] && used < room) used += snprintf(label + used, (size_t)(room - used), ")");
  /* snprintf counts the characters that did not fit, so `used` can exceed `room`. */
  if (used >= room) memcpy(label + room - 4, "...", 4);
}

int ms_mesh_check_names(const char *label, int ndim, const char *const *names) {
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

int ms_mesh_resolve_sizes(const char *label, int ndim, const int *sizes, int total, const char *holder, bool startable,
                          int *resolved) {
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
    if (total % product)
      return MS_FAIL(
          MS_EINVAL,
          "mesh %s: dimension %d cannot be inferred: the product of the other sizes is %lld, which does not divide %s "
          "of %d",
          label, inferred, (long long)product, holder, total);
    resolved[inferred] = (int)(total / product);
  } else if (product != total) {
    char start[96] = "";
    if (startable && product <= MS_MAX_WORLD)
      snprintf(start, sizeof start, "start %d rank%s (on one host: -n %d), or ", (int)product, product == 1 ? "" : "s",
               (int)product);
    return MS_FAIL(MS_EINVAL, "mesh %s holds %lld rank%s, but %s has %d: %sgive sizes that make %d", label,
                   (long long)product, product == 1 ? "" : "s", holder, total, start, total);
  }
  return MS_OK;
}
