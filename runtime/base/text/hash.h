/* hash.h - a 64-bit streaming hash for fingerprints and generator keys. Not cryptographic; identical on every
 * machine. */
#ifndef MS_BASE_HASH_H
#define MS_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define MS_HASH_INIT 0xcbf29ce484222325ull

uint64_t ms_hash_bytes(uint64_t hash, const void *data, size_t bytes);
uint64_t ms_hash_string(uint64_t hash, const char *text);
uint64_t ms_hash_int(uint64_t hash, int64_t value);

#endif
