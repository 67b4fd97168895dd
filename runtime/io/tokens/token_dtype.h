/* token_dtype.h - the integers as which files store tokens, one row each, and their copies as int32. */
#ifndef MS_IO_TOKEN_DTYPE_H
#define MS_IO_TOKEN_DTYPE_H

#include <stdint.h>

typedef struct ms_token_dtype {
  const char *name;
  int code;  /* in the index of a pair of Megatron's; 0: none has it */
  int width; /* bytes of a token */
  /* Copies values, which need no alignment. Returns how many are tokens before the first that is none: a negative one,
   * or one above INT32_MAX. NULL: the values are no integers. */
  int64_t (*copy)(const void *from, int64_t count, int32_t *out);
} ms_token_dtype;

/* NULL: no dtype has the code, or the name. */
const ms_token_dtype *ms_token_dtype_of_code(int code);
const ms_token_dtype *ms_token_dtype_named(const char *name);

#endif
