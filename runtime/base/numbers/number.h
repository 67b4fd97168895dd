/* number.h - numbers as text, the same in every locale. C's readers and printers follow setlocale, which belongs to the
 * program that embeds the engine: with a German one they would write 0,5 and read 0.5 as 0. Floating point is read and
 * formatted by these alone, which `make lint` checks. Any thread can call them.
 */
#ifndef MS_BASE_NUMBER_H
#define MS_BASE_NUMBER_H

#include <stdarg.h>
#include <stddef.h>

/* As strtod. */
double ms_number_read(const char *text, char **end);
/* As snprintf and vsnprintf. */
int ms_format(char *out, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
int ms_format_list(char *out, size_t bytes, const char *format, va_list args) __attribute__((format(printf, 3, 0)));

#endif
