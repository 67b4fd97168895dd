/* env.h - typed settings from environment variables. A value that does not parse is MS_EINVAL, and the message names
 * it. */
#ifndef MS_BASE_ENV_H
#define MS_BASE_ENV_H

int ms_env_int(const char *name, int fallback, int low, int high, int *value);
int ms_env_double(const char *name, double fallback, double *value);
const char *ms_env_string(const char *name, const char *fallback);

#endif
