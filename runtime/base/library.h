/* library.h - a library of others that is found at run time: by an environment variable, else by the first of some names that
** the dynamic linker knows. Nothing of it is needed to build.
*/
#ifndef MS_BASE_LIBRARY_H
#define MS_BASE_LIBRARY_H

#include <stddef.h>

typedef struct ms_library_entry {
  const char *symbol;
  size_t at; /* offset of its pointer in the table of functions that is filled */
} ms_library_entry;

typedef struct ms_library {
  const char *variable;          /* names the file, and then nothing else is tried */
  const char *const *names;      /* tried in order; ends with NULL */
  const char *user, *oldest;     /* "several GPUs need NCCL", "NCCL 2.18.5", for messages */
  const ms_library_entry *entry; /* what it must have */
  int entries;
} ms_library;

enum { MS_LIBRARY_WHY_BYTES = 768 };

/* Opens the library and fills the table with its functions. NULL: it is not found, or lacks one of them; `why` is then a message that
** says which, and how to name another file. Else a handle for dlclose, should its version turn out to be wrong. */
void *ms_library_open(const ms_library *library, void *table, char why[MS_LIBRARY_WHY_BYTES]);
/* The name of the function whose pointer lies at this offset of the table. */
const char *ms_library_symbol(const ms_library *library, size_t at);
/* The file that the variable names, or the first name, for messages. */
const char *ms_library_path(const ms_library *library);
/* One function of the library, to ask for its version: NULL when there is none. *handle is for dlclose, or NULL. */
void *ms_library_ask(const ms_library *library, const char *symbol, void **handle);

#endif
