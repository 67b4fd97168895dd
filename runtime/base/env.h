/* env.h - what a process inherits from the one that started it: settings in environment variables, and its standard
 * descriptors. */
#ifndef MS_BASE_ENV_H
#define MS_BASE_ENV_H

/* A value that does not parse is MS_EINVAL, and the message names it. */
int ms_env_int(const char *name, int fallback, int low, int high, int *value);
int ms_env_double(const char *name, double fallback, double *value);
const char *ms_env_string(const char *name, const char *fallback);

/* Opens /dev/null for each of the descriptors 0, 1 and 2 that was closed before the program started (`2>&-`, a careless
 * daemon): the next files opened would get their numbers, and printed text would end up in shared memory, or in a
 * checkpoint. Fails with MS_EIO. */
int ms_descriptors_fill(void);

#endif
