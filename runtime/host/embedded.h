/* embedded.h - the Lua sources inside the executable.
**
** The build writes every file of lua/ and the generated moonshard.cdef into one C file, so that the executable runs
** without a Lua file beside it. The host puts a loader for each module into package.preload.
*/
#ifndef MS_HOST_EMBEDDED_H
#define MS_HOST_EMBEDDED_H

struct ms_embedded_module {
  const char *name;            /* as require names it: "moonshard", "moonshard.nn.loss" */
  const unsigned char *source; /* [size] bytes of Lua text, followed by a zero */
  unsigned size;
  const char *path; /* of the file it was made from: "lua/moonshard/nn/loss.lua"; for chunk names */
};

/* In the order of their names. */
extern const struct ms_embedded_module ms_embedded_modules[];
extern const int ms_embedded_module_count;

#endif
