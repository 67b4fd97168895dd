/* wire.c - integers, secrets, proofs and texts. */
#include "comm/transport/wire.h"

#include <endian.h>
#include <netdb.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/error.h"

void ms_wire_put32(uint8_t *at, uint32_t value) {
  value = htole32(value);
  memcpy(at, &value, sizeof value);
}

uint32_t ms_wire_get32(const uint8_t *at) {
  uint32_t value;
  memcpy(&value, at, sizeof value);
  return le32toh(value);
}

void ms_wire_put64(uint8_t *at, uint64_t value) {
  value = htole64(value);
  memcpy(at, &value, sizeof value);
}

uint64_t ms_wire_get64(const uint8_t *at) {
  uint64_t value;
  memcpy(&value, at, sizeof value);
  return le64toh(value);
}

/* libsodium needs it before it draws random bytes or maps memory, but not for its hash functions; cheap after the first
 * call. */
static int start_sodium(void) {
  return sodium_init() >= 0 ? MS_OK : MS_FAIL(MS_EIO, "libsodium cannot start: the system provides no random bytes");
}

char *ms_secret_copy(const char *text) {
  size_t bytes = strlen(text) + 1;
  if (start_sodium()) return NULL;
  char *copy = sodium_malloc(bytes);
  if (copy) memcpy(copy, text, bytes);
  else MS_FAIL(MS_ENOMEM, "out of memory: %zu bytes for a secret", bytes);
  return copy;
}

void ms_secret_free(char *secret) { sodium_free(secret); }

int ms_secret_random(void *bytes, size_t n) {
  MS_TRY(start_sodium());
  randombytes_buf(bytes, n);
  return MS_OK;
}

void ms_wire_prove(const char *token, const uint8_t *text, size_t bytes, uint8_t proof[MS_WIRE_PROOF]) {
  _Static_assert(MS_WIRE_PROOF == crypto_auth_hmacsha256_BYTES, "a proof is one digest");
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, (const uint8_t *)token, strlen(token));
  crypto_auth_hmacsha256_update(&state, text, bytes);
  crypto_auth_hmacsha256_final(&state, proof);
  sodium_memzero(&state, sizeof state); /* it contains key material */
}

int ms_wire_same_proof(const uint8_t a[MS_WIRE_PROOF], const uint8_t b[MS_WIRE_PROOF]) {
  return !sodium_memcmp(a, b, MS_WIRE_PROOF);
}

void ms_wire_get_text(const uint8_t *body, size_t bytes, char *text, size_t capacity) {
  size_t n = 0;
  for (; n < bytes && n + 1 < capacity && body[n]; n++)
    text[n] = (char)(body[n] >= 32 && body[n] < 127 ? body[n] : '?');
  memset(text + n, 0, capacity - n);
}

void ms_wire_peer_name(int fd, char *text, size_t bytes) {
  struct sockaddr_storage address;
  socklen_t size = sizeof address;
  char host[64], port[8];
  int format = NI_NUMERICHOST | NI_NUMERICSERV;
  if (getpeername(fd, (struct sockaddr *)&address, &size) || address.ss_family == AF_UNIX ||
      getnameinfo((struct sockaddr *)&address, size, host, sizeof host, port, sizeof port, format))
    snprintf(text, bytes, "this host");
  else {
    /* IPv4 at a socket that takes both. */
    const char *plain = !strncmp(host, "::ffff:", 7) && strchr(host, '.') ? host + 7 : host;
    snprintf(text, bytes, strchr(plain, ':') ? "[%s]:%s" : "%s:%s", plain, port);
  }
}
