/* embedded.h - the Lua sources inside the executable.
 *
 * The build writes every file of lua/ and the generated moonshard.cdef into one C file, so that the executable needs no
 * Lua files. The host adds a searcher for these modules to package.loaders.
 */
#ifndef MS_HOST_EMBEDDED_H
#define MS_HOST_EMBEDDED_H

struct ms_embedded_module {
  const char *name;            /* the name for require: "moonshard", "moonshard.nn.loss" */
  const unsigned char *source; /* [size] bytes of Lua text, followed by a zero */
  unsigned size;
  const char *path; /* of its source file: "lua/moonshard/nn/loss.lua"; for chunk names */
};

/* Sorted by name. */
extern const struct ms_embedded_module ms_embedded_modules[];
extern const int ms_embedded_module_count;

#endif
