/* library.c - opens libraries with dlopen, and looks up their functions. */
#include "base/library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
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

/* ---- libraries of this project ---- */

/* Library folders of distributions, relative to the executable's folder. */
static const char *const below_prefix[] = {"../lib/", "../lib/x86_64-linux-gnu/", "../lib/aarch64-linux-gnu/",
                                           "../lib64/"};

/* The folder of the file that contains this code: of the library, or of the executable, whose name has no folder if the
 * shell found it in PATH. */
static int own_folder(char *folder, size_t bytes) {
  char file[PATH_MAX];
  Dl_info info;
  if (!dladdr(below_prefix, &info) || !info.dli_fname) return 0;
  if (!realpath(strchr(info.dli_fname, '/') ? info.dli_fname : "/proc/self/exe", file)) return 0;
  return snprintf(folder, bytes, "%.*s", (int)(strrchr(file, '/') - file), file) < (int)bytes;
}

static void *open_at(const char *folder, const char *below, const char *name, int flags) {
  char path[PATH_MAX + 128];
  snprintf(path, sizeof path, "%s/%s%s", folder, below, name);
  return dlopen(path, flags);
}

static void say_why(char why[MS_LIBRARY_WHY_BYTES], const char *otherwise) {
  const char *message = dlerror();
  snprintf(why, MS_LIBRARY_WHY_BYTES, "%s", message ? message : otherwise);
}

void *ms_library_open_own(const char *variable, const char *name, int visibility, char why[MS_LIBRARY_WHY_BYTES]) {
  char folder[PATH_MAX];
  const char *path = ms_env_string(variable, "");
  const int flags = RTLD_NOW | visibility, known = own_folder(folder, sizeof folder);
  void *library = *path ? dlopen(path, flags) : known ? open_at(folder, "", name, flags) : NULL;
  if (library) return library;
  say_why(why, "the folder of the engine is unknown");
  if (*path) return NULL;
  for (int i = 0; known && !library && i < (int)(sizeof below_prefix / sizeof *below_prefix); i++)
    library = open_at(folder, below_prefix[i], name, flags);
  return library ? library : dlopen(name, flags);
}
