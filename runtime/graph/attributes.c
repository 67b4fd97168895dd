/* attributes.c - the attributes of ops by name. The column of kernels/ops.def is a text ("axis=-1 keepdim=0"), as what
 * a program gives a node is; each word is found in the struct of kernels/attributes.def that the row names, once in a
 * process. Code that knows the op reads the struct instead.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers/number.h"
#include "graph/graph.h"

/* ---- the structs ------------------------------------------------------------------------------------------------- */

typedef struct member {
  const char *name;
  int real, count; /* count 0: one; otherwise so many, whose numbers follow the name */
} member;

#define INT(name) {#name, 0, 0},
#define REAL(name) {#name, 1, 0},
#define INTS(name, count) {#name, 0, count},
#define MS_ATTRS(name, members) static const member members_of_##name[] = {members{NULL, 0, 0}};
#include "kernels/attributes.def"
#undef MS_ATTRS
#undef INTS
#undef REAL
#undef INT
static const member members_of_none[] = {{NULL, 0, 0}};
static const member members_of_all[] = {{"out_dtype", 0, 0}, {"add", 0, 0}, {NULL, 0, 0}};

static const struct {
  const char *attrs;
  const member *members;
} rows[MS_OP_COUNT] = {
#define MS_OP(name, low, high, outputs, members, attrs, ...) {attrs, members_of_##members},
#include "kernels/ops.def"
#undef MS_OP
};

/* ---- the rows' words --------------------------------------------------------------------------------------------- */

enum { MAX_ATTRIBUTES = 1024 };
static ms_attribute attributes[MAX_ATTRIBUTES]; /* row by row */
static int first_of[MS_OP_COUNT + 1];           /* of a row that does not parse there are none */
static unsigned char malformed[MS_OP_COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The word of ms_op_attrs that a name of n letters is, among members that begin at word `at`; -1: none. */
static int word_of(const member *members, int at, const char *name, size_t n, int *real) {
  for (const member *m = members; m->name; at += m->count ? m->count : 1, m++) {
    const size_t letters = strlen(m->name);
    const int number = m->count && n == letters + 1 ? name[letters] - '0' : 0;
    if (n != letters + (m->count > 0) || strncmp(m->name, name, letters) || number < 0 ||
        (m->count && number >= m->count))
      continue;
    *real = m->real;
    return at + number;
  }
  return -1;
}

/* Reads one "name=default"; returns the rest of the text, or NULL if it is malformed. */
static const char *read_word(const char *text, const member *members, ms_attribute *attribute) {
  const size_t n = strcspn(text, "= ");
  char *end;
  if (text[n] != '=') return NULL;
  *attribute = (ms_attribute){.name = text, .length = (int)n};
  attribute->word = word_of(members_of_all, 0, text, n, &attribute->real);
  if (attribute->word < 0) attribute->word = word_of(members, 2, text, n, &attribute->real);
  if (attribute->word < 0) return NULL;
  attribute->value = ms_number_read(text + n + 1, &end);
  if (end == text + n + 1 || (*end && *end != ' ')) return NULL;
  const char *point = strpbrk(text + n + 1, ".ein ");
  if (attribute->real != (point && point < end)) return NULL;
  return *end ? end + 1 : end;
}

static void read_rows(void) {
  int n = 0;
  for (int op = 0; op < MS_OP_COUNT; op++) {
    first_of[op] = n;
    for (const char *text = rows[op].attrs; text && *text;) {
      text = n < MAX_ATTRIBUTES ? read_word(text, rows[op].members, &attributes[n]) : NULL;
      n += text != NULL;
      if (text) continue;
      malformed[op] = 1;
      n = first_of[op];
    }
  }
  first_of[MS_OP_COUNT] = n;
}

const ms_attribute *ms_op_attributes(int op, int *n) {
  pthread_once(&once, read_rows);
  *n = first_of[op + 1] - first_of[op];
  return &attributes[first_of[op]];
}

/* Passes ask for every node, and most names begin with another letter. name: [length] */
static const ms_attribute *find_word(int op, const char *name, size_t length) {
  int n;
  const ms_attribute *a = ms_op_attributes(op, &n);
  for (; n > 0; n--, a++)
    if (*a->name == *name && (size_t)a->length == length && !strncmp(a->name, name, length)) return a;
  return NULL;
}

static const ms_attribute *find(int op, const char *name) { return find_word(op, name, strlen(name)); }

/* ---- values ------------------------------------------------------------------------------------------------------ */

double ms_attribute_value(const ms_attribute *attribute, const ms_op_attrs *attrs) {
  const char *at = (const char *)attrs + 8 * attribute->word;
  return attribute->real ? *(const double *)at : (double)*(const int64_t *)at;
}

void ms_attribute_set(const ms_attribute *attribute, ms_op_attrs *attrs, double value) {
  char *at = (char *)attrs + 8 * attribute->word;
  if (attribute->real) *(double *)at = value;
  else *(int64_t *)at = (int64_t)value;
}

int ms_op_has(int op, const char *name) { return find(op, name) != NULL; }

int64_t *ms_op_integer(int op, ms_op_attrs *attrs, const char *name) {
  const ms_attribute *attribute = find(op, name);
  return attribute && !attribute->real ? (int64_t *)(void *)((char *)attrs + 8 * attribute->word) : NULL;
}

int64_t ms_node_axis(const ms_node *node) { return (int64_t)ms_attribute_value(find(node->op, "axis"), &node->attrs); }

int ms_op_row_defaults(int op, ms_op_attrs *attrs) {
  const ms_op_row *row = ms_op_row_of(op);
  if (!row || !attrs) return MS_FAIL(MS_EINVAL, "op %d: there are ops 0 to %d", op, MS_OP_COUNT - 1);
  int n;
  const ms_attribute *a = ms_op_attributes(op, &n);
  if (malformed[op])
    return MS_FAIL(MS_EINTERNAL, "%s: the attributes of its row do not parse: \"%s\"", row->name, row->attrs);
  memset(attrs, 0, sizeof *attrs);
  for (int k = 0; k < n; k++) ms_attribute_set(&a[k], attrs, a[k].value);
  return MS_OK;
}

/* ---- what a program gives ---------------------------------------------------------------------------------------- */

static int set_given(int op, const ms_attribute *attribute, double value, ms_op_attrs *attrs) {
  /* Integers that doubles cannot represent exactly are refused, too; the comparison rejects NaN. */
  if (!attribute->real && !(value >= -0x1p53 && value <= 0x1p53 && value == (double)(int64_t)value))
    return MS_FAIL(MS_EINVAL, "%s: %.*s must be an integer between -2^53 and 2^53, not %g", ms_op_row_of(op)->name,
                   attribute->length, attribute->name, value);
  ms_attribute_set(attribute, attrs, value);
  return MS_OK;
}

_Static_assert(sizeof(ms_op_attrs) <= 32 * 8, "a bit for each word");

/* Reads one "name=value" at *text, and moves *text after it. given: the words of ms_op_attrs that were set. */
static int read_given(int op, const char **text, uint32_t *given, ms_op_attrs *attrs) {
  const char *name = *text, *row = ms_op_row_of(op)->name;
  const int n = (int)strcspn(name, "= ");
  char *end;
  if (name[n] != '=')
    return MS_FAIL(MS_EINVAL, "%s: attribute \"%.*s\" has no value: write \"%.*s=1\"", row, n, name, n, name);
  const ms_attribute *attribute = find_word(op, name, (size_t)n);
  if (!attribute)
    return MS_FAIL(MS_ENAME, "%s: no attribute \"%.*s\"; it has %s", row, n, name,
                   *rows[op].attrs ? rows[op].attrs : "none");
  if (*given & 1u << attribute->word) return MS_FAIL(MS_EINVAL, "%s: attribute %.*s is given twice", row, n, name);
  *given |= 1u << attribute->word;
  const double value = ms_number_read(name + n + 1, &end);
  if (end == name + n + 1 || (*end && *end != ' '))
    return MS_FAIL(MS_EINVAL, "%s: %.*s=%.*s: the value must be a number", row, n, name,
                   (int)strcspn(name + n + 1, " "), name + n + 1);
  *text = end;
  return set_given(op, attribute, value, attrs);
}

int ms_op_read_attrs(int op, const char *text, ms_op_attrs *attrs) {
  uint32_t given = 0;
  MS_TRY(ms_op_row_defaults(op, attrs));
  while (text && *(text += strspn(text, " "))) MS_TRY(read_given(op, &text, &given, attrs));
  return MS_OK;
}
