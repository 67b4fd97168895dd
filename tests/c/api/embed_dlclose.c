/* embed_dlclose.c - a program that loads the library at run time (a plugin host, an interpreter), trains nothing,
 * closes it and goes on. What the library leaves behind (threads of kernels, handlers for the end of the process) must
 * not point to code that is gone. No function is called by its name, so the linker leaves the library out.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "moonshard.h"

/* ISO C has no conversion from a data pointer to a function's. */
static int find(void *library, const char *name, void *function) {
  void *symbol = dlsym(library, name);
  if (!symbol) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  memcpy(function, &symbol, sizeof symbol);
  return 0;
}

static int join_and_leave(void *library) {
  int (*join)(const ms_world_config *, ms_world **);
  void (*leave)(void *);
  int (*barrier)(ms_world *);
  void (*install)(void);
  const char *(*message)(void);
  ms_world *world;
  if (find(library, "ms_world_join", &join) || find(library, "ms_free", &leave) ||
      find(library, "ms_world_barrier", &barrier) || find(library, "ms_interrupt_install", &install) ||
      find(library, "ms_error_message", &message))
    return 1;
  install();
  if (join(NULL, &world) || barrier(world)) {
    fprintf(stderr, "%s\n", message());
    return 1;
  }
  leave(world);
  return 0;
}

/* The handler of Ctrl-C that was installed is still the library's code after it is closed. */
static int is_loaded(const char *path) {
  void *again = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (!again) return 0;
  dlclose(again);
  return 1;
}

int main(int argc, char **argv) {
  char path[4096];
  (void)argc;
  const char *slash = strrchr(argv[0], '/'); /* the library is in the folder above this program's */
  if (!slash || snprintf(path, sizeof path, "%.*s/../libmoonshard.so", (int)(slash - argv[0]), argv[0]) >= 4096)
    return 1;
  for (int round = 0; round < 3; round++) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
    if (join_and_leave(library)) return 1;
    dlclose(library);
    if (!is_loaded(path)) {
      fprintf(stderr, "the library was unmapped while its signal handler is installed\n");
      return 1;
    }
  }
  printf("joined, left and closed three times\n");
  return 0;
}
