/* embedded.h - the Lua modules inside the executable.
 *
 * The build writes every file of lua/ and the generated moonshard.cdef into one C file, as text and as bytecode, so
 * that the executable needs no Lua files, and does not parse any. The host adds a searcher for these modules to
 * package.loaders.
 */
#ifndef MS_HOST_EMBEDDED_H
#define MS_HOST_EMBEDDED_H

struct ms_embedded_module {
  const char *name;   /* the name for require: "moonshard", "moonshard.nn.loss" */
  const char *source; /* [size] bytes of Lua text, followed by a zero */
  unsigned size;
  const char *bytecode; /* [bytecode_size] what LuaJIT made of it, with the names and lines of messages */
  unsigned bytecode_size;
  const char *path; /* of its source file: "lua/moonshard/nn/loss.lua"; for chunk names */
};

/* jit.version of the LuaJIT that made the bytecode. */
extern const char ms_embedded_version[];
/* Sorted by name. */
extern const struct ms_embedded_module ms_embedded_modules[];
extern const int ms_embedded_module_count;

#endif
