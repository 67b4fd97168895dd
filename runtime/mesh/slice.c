/* slice.c - meshes made from meshes: slices of named dimensions, flattening several dimensions into one, and
 * unflattening one into several. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text/text.h"
#include "mesh/mesh.h"

/* ---- names ---- */

static const ms_derived *find_derived(const ms_mesh_root *root, const char *name) {
  for (int i = 0; i < root->n_derived; i++)
    if (!strcmp(root->derived[i].name, name)) return &root->derived[i];
  return NULL;
}

static int dim_named(const ms_mesh *mesh, const char *name) {
  for (int d = 0; d < mesh->ndim; d++)
    if (mesh->name[d] && !strcmp(mesh->name[d], name)) return d;
  return -1;
}

/* A derived dimension can be sliced from every mesh that contains it. */
static int has_derived(const ms_mesh *mesh, const ms_derived *derived) {
  return ms_axis_is_within(&derived->axis, mesh->axis, mesh->ndim);
}

static int report_unknown(const ms_mesh *mesh, const char *name) {
  ms_text valid = {0};
  for (int d = 0; d < mesh->ndim; d++)
    if (mesh->name[d]) ms_text_append(&valid, "%s%s", valid.length ? ", " : "", mesh->name[d]);
  for (int i = 0; i < mesh->root->n_derived; i++) {
    const ms_derived *derived = &mesh->root->derived[i];
    if (has_derived(mesh, derived) && dim_named(mesh, derived->name) < 0)
      ms_text_append(&valid, "%s%s", valid.length ? ", " : "", derived->name);
  }
  int rc = ms_text_status(&valid);
  if (!rc && valid.data)
    rc = MS_FAIL(MS_ENAME, "mesh %s has no dimension \"%s\": it has %s", mesh->label, name, valid.data);
  else if (!rc) rc = MS_FAIL(MS_ENAME, "mesh %s has no dimension \"%s\": its dimension has no name", mesh->label, name);
  ms_text_free(&valid);
  return rc;
}

static int find_axis(const ms_mesh *mesh, const char *name, ms_axis *axis) {
  int dim = dim_named(mesh, name);
  const ms_derived *derived = dim < 0 ? find_derived(mesh->root, name) : NULL;
  if (dim < 0 && !(derived && has_derived(mesh, derived))) return report_unknown(mesh, name);
  *axis = dim >= 0 ? mesh->axis[dim] : derived->axis;
  return MS_OK;
}

/* A name means the same in all meshes of a root: repeating the same definition is allowed (*known is 1), a different
 * one is an error. */
static int check_meaning(const ms_mesh *mesh, const char *doing, const char *name, const ms_axis *axis, int *known) {
  const ms_mesh_root *root = mesh->root;
  *known = 1;
  for (int d = 0; d < root->ndim; d++) {
    if (!root->name[d] || strcmp(root->name[d], name)) continue;
    if (ms_axis_equal(&root->axis[d], axis)) return MS_OK;
    return MS_FAIL(MS_ENAME, "mesh %s: %s: \"%s\" already names dimension %d of size %d; choose another name",
                   mesh->label, doing, name, d, ms_axis_size(&root->axis[d]));
  }
  const ms_derived *derived = find_derived(root, name);
  *known = derived != NULL;
  if (!derived || ms_axis_equal(&derived->axis, axis)) return MS_OK;
  return MS_FAIL(MS_ENAME,
                 "mesh %s: %s: \"%s\" already names a different flattened or unflattened dimension of size %d; "
                 "choose another name",
                 mesh->label, doing, name, ms_axis_size(&derived->axis));
}

/* Records names of axes for all meshes of the root: all of them or, after an error, none. */
static int remember(ms_mesh *mesh, const char *doing, int n, const char *const *names, const ms_axis *axes) {
  ms_mesh_root *root = mesh->root;
  int known[MS_MAX_MESH_DIMS];
  for (int i = 0; i < n; i++) MS_TRY(check_meaning(mesh, doing, names[i], &axes[i], &known[i]));
  MS_TRY(ms_grow((void **)&root->derived, &root->derived_capacity, root->n_derived + n, sizeof *root->derived));
  for (int i = 0; i < n; i++) {
    if (known[i]) continue;
    ms_derived *derived = &root->derived[root->n_derived];
    derived->axis = axes[i];
    derived->name = ms_strdup(names[i]);
    if (!derived->name) return MS_ENOMEM;
    root->n_derived++;
  }
  return MS_OK;
}

/* Returns the size of a dimension of the root that this mesh does not cover, or 1 for any other name. */
int ms_mesh_copies(const ms_mesh *mesh, const char *name) {
  MS_HANDLE_OR(0, mesh, MESH);
  MS_GIVEN_OR(0, name);
  const ms_mesh_root *root = mesh->root;
  const ms_axis *axis = NULL;
  for (int d = 0; d < root->ndim && !axis; d++)
    if (root->name[d] && !strcmp(root->name[d], name)) axis = &root->axis[d];
  const ms_derived *derived = axis ? NULL : find_derived(root, name);
  if (derived) axis = &derived->axis;
  if (!axis) return 1;
  for (int d = 0; d < mesh->ndim; d++)
    if (ms_axis_overlaps(axis, &mesh->axis[d])) return 1;
  return ms_axis_size(axis);
}

/* ---- slice ---- */

/* Names must be in the order of the mesh's dimensions. Derived dimensions have no place in that order, so their strides
 * decide; one of size 1 covers no step, and fits everywhere. */
static int check_order(const ms_mesh *mesh, const ms_axis *axes, const char *const *names, int e, int d) {
  const char *left = names[e], *right = names[d];
  int a = dim_named(mesh, left), b = dim_named(mesh, right);
  if (a >= 0 && b >= 0) {
    if (a < b) return MS_OK;
  } else if (ms_axis_size(&axes[e]) == 1 || ms_axis_size(&axes[d]) == 1 || ms_axis_is_outside_of(&axes[e], &axes[d])) {
    return MS_OK;
  }
  return MS_FAIL(MS_EINVAL,
                 "slice of mesh %s: \"%s\" is written before \"%s\", but a slice keeps the order of the mesh: write "
                 "\"%s\" before \"%s\"",
                 mesh->label, left, right, right, left);
}

int ms_mesh_slice(const ms_mesh *mesh, int ndim, const char *const *names, ms_mesh **slice) {
  MS_HANDLE(mesh, MESH);
  if (ndim > 0) MS_GIVEN(names);
  MS_GIVEN(slice);
  ms_axis axes[MS_MAX_MESH_DIMS];
  *slice = NULL;
  if (ndim < 1 || ndim > MS_MAX_MESH_DIMS)
    return MS_FAIL(MS_EINVAL, "slice of mesh %s: %d names; give 1 to %d", mesh->label, ndim, MS_MAX_MESH_DIMS);
  for (int d = 0; d < ndim; d++) {
    MS_GIVEN(names[d]);
    MS_TRY(find_axis(mesh, names[d], &axes[d]));
    for (int e = 0; e < d; e++) {
      if (!strcmp(names[d], names[e]))
        return MS_FAIL(MS_ENAME, "slice of mesh %s: \"%s\" is listed twice", mesh->label, names[d]);
      if (ms_axis_overlaps(&axes[d], &axes[e]))
        return MS_FAIL(MS_EINVAL, "slice of mesh %s: \"%s\" and \"%s\" cover the same ranks: use only one of them",
                       mesh->label, names[e], names[d]);
    }
    for (int e = d - 1; e >= 0; e--) MS_TRY(check_order(mesh, axes, names, e, d));
  }
  return ms_mesh_over(mesh->root, ndim, axes, names, slice);
}

/* ---- flatten and unflatten ---- */

int ms_mesh_flatten(ms_mesh *mesh, const char *name, ms_mesh **flat) {
  MS_HANDLE(mesh, MESH);
  MS_GIVEN(name);
  MS_GIVEN(flat);
  *flat = NULL;
  if (!name || !name[0]) return MS_FAIL(MS_ENAME, "mesh %s: flatten: the name is empty", mesh->label);
  ms_axis axis = mesh->axis[0];
  for (int d = 1; d < mesh->ndim; d++) axis = ms_axis_join(&axis, &mesh->axis[d]);
  MS_TRY(remember(mesh, "flatten", 1, &name, &axis));
  return ms_mesh_over(mesh->root, 1, &axis, &name, flat);
}

static int check_unflatten(const ms_mesh *mesh, int dim, int n, const char *const *names) {
  MS_TRY(ms_mesh_check_dim(mesh, dim));
  if (n < 1 || mesh->ndim - 1 + n > MS_MAX_MESH_DIMS)
    return MS_FAIL(MS_EINVAL, "mesh %s: unflatten: %d sizes for one dimension: the result must have 1 to %d dimensions",
                   mesh->label, n, MS_MAX_MESH_DIMS);
  if (mesh->ndim > 1 && (!names || !names[0]))
    return MS_FAIL(MS_ENAME, "mesh %s: unflatten: give a name for each of the %d dimensions", mesh->label, n);
  return MS_OK;
}

int ms_mesh_unflatten(ms_mesh *mesh, int dim, int n, const int *sizes, const char *const *names, ms_mesh **unflat) {
  MS_HANDLE(mesh, MESH);
  MS_GIVEN(sizes);
  MS_GIVEN(unflat);
  ms_axis axes[MS_MAX_MESH_DIMS], parts[MS_MAX_MESH_DIMS];
  const char *all_names[MS_MAX_MESH_DIMS] = {NULL};
  int resolved[MS_MAX_MESH_DIMS];
  char label[MS_MESH_LABEL_BYTES];
  *unflat = NULL;
  MS_TRY(check_unflatten(mesh, dim, n, names));
  ms_mesh_write_label(label, n, sizes, names);
  MS_TRY(ms_mesh_check_names(label, n, names));
  MS_TRY(ms_mesh_resolve_sizes(label, n, sizes, mesh->size[dim], "the dimension to unflatten", false, resolved));
  if (!ms_axis_split(&mesh->axis[dim], n, resolved, parts))
    return MS_FAIL(MS_EINVAL,
                   "mesh %s: unflatten: dimension %d was flattened from others, and %s would cut inside one of them",
                   mesh->label, dim, label);
  int ndim = 0;
  for (int d = 0; d < mesh->ndim; d++) {
    for (int i = 0; d == dim && i < n; i++) {
      all_names[ndim] = names ? names[i] : NULL;
      axes[ndim++] = parts[i];
    }
    if (d == dim) continue;
    all_names[ndim] = mesh->name[d];
    axes[ndim++] = mesh->axis[d];
  }
  for (int d = 0; d < ndim; d++)
    for (int e = 0; e < d; e++)
      if (all_names[d] && all_names[e] && !strcmp(all_names[d], all_names[e]))
        return MS_FAIL(MS_ENAME, "mesh %s: unflatten: \"%s\" would name two dimensions; names must differ", mesh->label,
                       all_names[d]);
  if (names && names[0]) MS_TRY(remember(mesh, "unflatten", n, names, parts));
  return ms_mesh_over(mesh->root, ndim, axes, all_names, unflat);
}
