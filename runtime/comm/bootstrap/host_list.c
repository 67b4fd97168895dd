/* host_list.c - expands one name of a list at a time, by counting, so a list of a million hosts takes no memory. */
#include "comm/bootstrap/host_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { MAX_HOSTS = 1 << 20, MAX_DIGITS = 9 };

static int fail_list(const char *list) {
  return MS_FAIL(MS_EINVAL, "\"%.200s\" is not a list of hosts such as \"node[01-03,7],login\"", list);
}

/* End of the name that begins at `text`: a comma outside brackets, or the end of the list. NULL: unbalanced
 * brackets. */
static const char *end_of_name(const char *text) {
  int inside = 0;
  for (; *text && (inside || *text != ','); text++) {
    if (*text == '[' && inside++) return NULL;
    if (*text == ']' && --inside < 0) return NULL;
  }
  return inside ? NULL : text;
}

/* "007": value 7, width 3. Advances *text past it; returns 0 without a number. */
static int read_number(const char **text, int *value, int *width) {
  *width = (int)strspn(*text, "0123456789");
  if (*width < 1 || *width > MAX_DIGITS) return 0;
  *value = atoi(*text);
  *text += *width;
  return 1;
}

/* Counts the items of a bracket, between text and end, and writes item `index` to item. 0: malformed. */
static int count_items(const char *text, const char *end, int index, char item[16], int *count) {
  *count = 0;
  for (;;) {
    int first, last, width, ignored;
    if (!read_number(&text, &first, &width)) return 0;
    last = first;
    if (*text == '-') {
      text++;
      if (!read_number(&text, &last, &ignored)) return 0;
    }
    if (last < first || last - first >= MAX_HOSTS) return 0;
    if (index >= *count && index - *count <= last - first) snprintf(item, 16, "%0*d", width, first + index - *count);
    *count += last - first + 1;
    if (*count > MAX_HOSTS) return 0;
    if (text == end) return 1;
    if (*text++ != ',') return 0;
  }
}

/* Number of hosts that the name between text and end stands for; 0: malformed. */
static int count_name(const char *text, const char *end) {
  long long product = 1;
  int count;
  char item[16];
  if (text == end) return 0;
  while ((text = memchr(text, '[', (size_t)(end - text)))) {
    const char *close = memchr(text, ']', (size_t)(end - text));
    if (!close || !count_items(text + 1, close, -1, item, &count)) return 0;
    product *= count;
    if (product > MAX_HOSTS) return 0;
    text = close + 1;
  }
  return (int)product;
}

/* Host `index` of a name that count_name accepted. */
static void expand(const char *text, const char *end, int index, char *name, size_t bytes) {
  size_t used = 0;
  int rest = count_name(text, end);
  name[0] = '\0';
  while (text < end && used < bytes) {
    char item[16] = {0};
    int count;
    if (*text != '[') {
      used += (size_t)snprintf(name + used, bytes - used, "%c", *text++);
      continue;
    }
    const char *close = memchr(text, ']', (size_t)(end - text));
    count_items(text + 1, close, -1, item, &count);
    rest /= count; /* hosts per item of this bracket */
    count_items(text + 1, close, index / rest % count, item, &count);
    used += (size_t)snprintf(name + used, bytes - used, "%s", item);
    text = close + 1;
  }
}

int ms_host_list_find(const char *list, int index, char *name, size_t bytes, int *hosts) {
  *hosts = 0;
  name[0] = '\0';
  for (const char *text = list;; text++) {
    const char *end = end_of_name(text);
    int count = end ? count_name(text, end) : 0;
    if (!count) return fail_list(list);
    if (index >= *hosts && index - *hosts < count) expand(text, end, index - *hosts, name, bytes);
    *hosts += count;
    if (*hosts > MAX_HOSTS) return fail_list(list);
    text = end;
    if (!*text) break;
  }
  if (index < 0 || index >= *hosts)
    return MS_FAIL(MS_EINVAL, "\"%.200s\" names %d hosts, so it has no host %d", list, *hosts, index);
  if (strlen(name) + 1 >= bytes)
    return MS_FAIL(MS_EINVAL, "\"%.200s\": a host name is longer than %zu bytes", list, bytes - 2);
  return MS_OK;
}
