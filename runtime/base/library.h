/* library.h - libraries loaded at run time: third-party ones, of which the build needs nothing, and parts of this
 * project that are built only where a toolkit is. An environment variable can name the file of each; otherwise the
 * dynamic linker finds the first of several names of a third-party one, and own ones are near the engine. */
#ifndef MS_BASE_LIBRARY_H
#define MS_BASE_LIBRARY_H

#include <stddef.h>

typedef struct ms_library_entry {
  const char *symbol;
  size_t at; /* offset of the function's pointer in the caller's table */
} ms_library_entry;

typedef struct ms_library {
  const char *variable;          /* names the file; if it is set, no other name is tried */
  const char *const *names;      /* tried in order; NULL-terminated */
  const char *user, *oldest;     /* for messages: "several GPUs need NCCL", "NCCL 2.18.5" */
  const ms_library_entry *entry; /* functions that the library must have */
  int entries;
} ms_library;

enum { MS_LIBRARY_WHY_BYTES = 768 };

/* Opens the library and fills the table with its functions. Returns a handle for dlclose (for a library whose version
 * turns out to be unsuitable). NULL: the library is missing or lacks a function; `why` says which, and how to name
 * another file. */
void *ms_library_open(const ms_library *library, void *table, char why[MS_LIBRARY_WHY_BYTES]);
/* The name of the function whose pointer is at this offset of the table. */
const char *ms_library_symbol(const ms_library *library, size_t at);
/* For messages: the file that the variable names, otherwise the first name. */
const char *ms_library_path(const ms_library *library);
/* Looks up one function, e.g. to read the version before ms_library_open; NULL if there is none. *handle: for
 * dlclose, or NULL. */
void *ms_library_ask(const ms_library *library, const char *symbol, void **handle);
/* Opens a library of this project: the file that the variable names, otherwise `name` in the folder of the engine (of
 * the library, or of the executable), in one of the library folders relative to it, or on the dynamic linker's path.
 * visibility: RTLD_LOCAL or RTLD_GLOBAL. NULL: `why` has the linker's message about the first place. */
void *ms_library_open_own(const char *variable, const char *name, int visibility, char why[MS_LIBRARY_WHY_BYTES]);

#endif
