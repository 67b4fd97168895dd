/* sha256.h - SHA-256 (FIPS 180-4) and HMAC (RFC 2104), for proofs of a shared secret that do not show it. */
#ifndef MS_BASE_SHA256_H
#define MS_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { MS_SHA256_BYTES = 32 };

void ms_sha256(const void *data, size_t bytes, uint8_t digest[MS_SHA256_BYTES]);
void ms_hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes, uint8_t mac[MS_SHA256_BYTES]);
/* 1 when both are the same; takes as long wherever they differ. */
int ms_same_digest(const uint8_t a[MS_SHA256_BYTES], const uint8_t b[MS_SHA256_BYTES]);

#endif
