/* number.c - C's own functions under the locale "C", which a thread has while it calls them. Changing a thread's locale
 * is a store to its own memory.
 */
#include "base/numbers/number.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

/* The C libraries have this locale without allocating it; where it is missing, a thread keeps the one it has. */
static locale_t enter(void) {
  locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  return plain ? uselocale(plain) : (locale_t)0;
}

static void leave(locale_t before) {
  if (before) uselocale(before);
}

double ms_number_read(const char *text, char **end) {
  locale_t before = enter();
  double number = strtod(text, end);
  leave(before);
  return number;
}

int ms_format_list(char *out, size_t bytes, const char *format, va_list args) {
  locale_t before = enter();
  int length = vsnprintf(out, bytes, format, args);
  leave(before);
  return length;
}

int ms_format(char *out, size_t bytes, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int length = ms_format_list(out, bytes, format, args);
  va_end(args);
  return length;
}
