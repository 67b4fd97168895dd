/* library.c - loads third-party libraries and looks up their functions with dlopen. */
#include "base/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"

const char *ms_library_symbol(const ms_library *library, size_t at) {
  int i = 0;
  while (library->entry[i].at != at) i++;
  return library->entry[i].symbol;
}

const char *ms_library_path(const ms_library *library) { return ms_env_string(library->variable, library->names[0]); }

/* Opens the library; on NULL, `why` explains why the first name failed. */
static void *find(const ms_library *library, char why[MS_LIBRARY_WHY_BYTES]) {
  const char *path = ms_env_string(library->variable, NULL);
  const char *const only[] = {path, NULL}, *const *names = path ? only : library->names;
  why[0] = '\0';
  for (; *names; names++) {
    void *found = dlopen(*names, RTLD_LAZY | RTLD_LOCAL);
    if (found) return found;
    const char *message = dlerror();
    if (!why[0])
      snprintf(why, MS_LIBRARY_WHY_BYTES, "%s: %.512s (set %s to the path of the library)", library->user,
               message ? message : *names, library->variable);
  }
  return NULL;
}

/* The first function missing from the library; NULL if it has all of them. */
static const char *resolve(const ms_library *library, void *handle, void *table) {
  for (int i = 0; i < library->entries; i++) {
    void *found = dlsym(handle, library->entry[i].symbol);
    if (!found) return library->entry[i].symbol;
    memcpy((char *)table + library->entry[i].at, &found, sizeof found);
  }
  return NULL;
}

void *ms_library_open(const ms_library *library, void *table, char why[MS_LIBRARY_WHY_BYTES]) {
  void *handle = find(library, why);
  if (!handle) return NULL;
  const char *lacks = resolve(library, handle, table);
  if (!lacks) return handle;
  dlclose(handle);
  snprintf(why, MS_LIBRARY_WHY_BYTES, "%.512s does not contain %s; %s or later is required", ms_library_path(library),
           lacks, library->oldest);
  return NULL;
}

void *ms_library_ask(const ms_library *library, const char *symbol, void **handle) {
  char why[MS_LIBRARY_WHY_BYTES];
  *handle = find(library, why);
  void *found = *handle ? dlsym(*handle, symbol) : NULL;
  if (*handle && !found) {
    dlclose(*handle);
    *handle = NULL;
  }
  return found;
}
