/* sha256.c - the hash in its plainest form: what is hashed here is short, so nothing is unrolled. */
#include "base/sha256.h"

#include <string.h>

enum { BLOCK_BYTES = 64, LENGTH_AT = 56, ROUNDS = 64 };

typedef struct hash {
  uint32_t state[8];
  uint64_t bytes;
  uint8_t block[BLOCK_BYTES];
} hash;

/* Fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_constants[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static uint32_t read_big_endian(const uint8_t *p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void mix_block(hash *h) {
  uint32_t w[ROUNDS], s[8];
  for (int i = 0; i < 16; i++) w[i] = read_big_endian(h->block + 4 * i);
  for (int i = 16; i < ROUNDS; i++) {
    uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
    uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  memcpy(s, h->state, sizeof s);
  for (int i = 0; i < ROUNDS; i++) {
    uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]), majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    uint32_t a = s[7] + (rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25)) + choice + round_constants[i] + w[i];
    uint32_t b = (rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22)) + majority;
    memmove(s + 1, s, 7 * sizeof *s);
    s[4] += a;
    s[0] = a + b;
  }
  for (int i = 0; i < 8; i++) h->state[i] += s[i];
}

static void begin(hash *h) {
  /* Fractional parts of the square roots of the first 8 primes. */
  static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(h->state, first, sizeof first);
  h->bytes = 0;
}

static void add(hash *h, const void *data, size_t bytes) {
  const uint8_t *from = data;
  while (bytes) {
    size_t at = h->bytes % BLOCK_BYTES, room = BLOCK_BYTES - at, n = bytes < room ? bytes : room;
    memcpy(h->block + at, from, n);
    h->bytes += n;
    from += n;
    bytes -= n;
    if (n == room) mix_block(h);
  }
}

static void finish(hash *h, uint8_t digest[MS_SHA256_BYTES]) {
  static const uint8_t padding[BLOCK_BYTES] = {0x80};
  uint64_t bits = 8 * h->bytes;
  uint8_t length[8];
  size_t at = h->bytes % BLOCK_BYTES;
  for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
  add(h, padding, at < LENGTH_AT ? LENGTH_AT - at : BLOCK_BYTES + LENGTH_AT - at);
  add(h, length, sizeof length);
  for (int i = 0; i < MS_SHA256_BYTES; i++) digest[i] = (uint8_t)(h->state[i / 4] >> (24 - 8 * (i % 4)));
}

void ms_sha256(const void *data, size_t bytes, uint8_t digest[MS_SHA256_BYTES]) {
  hash h;
  begin(&h);
  add(&h, data, bytes);
  finish(&h, digest);
}

/* hash((key ^ pad) | data), the step that HMAC makes twice. */
static void keyed(const uint8_t key[BLOCK_BYTES], uint8_t pad, const void *data, size_t bytes,
                  uint8_t digest[MS_SHA256_BYTES]) {
  uint8_t padded[BLOCK_BYTES];
  hash h;
  for (int i = 0; i < BLOCK_BYTES; i++) padded[i] = key[i] ^ pad;
  begin(&h);
  add(&h, padded, sizeof padded);
  add(&h, data, bytes);
  finish(&h, digest);
}

void ms_hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes, uint8_t mac[MS_SHA256_BYTES]) {
  uint8_t whole[BLOCK_BYTES] = {0}, inner[MS_SHA256_BYTES];
  if (key_bytes > BLOCK_BYTES) ms_sha256(key, key_bytes, whole);
  else memcpy(whole, key, key_bytes);
  keyed(whole, 0x36, data, bytes, inner);
  keyed(whole, 0x5c, inner, sizeof inner, mac);
}

int ms_same_digest(const uint8_t a[MS_SHA256_BYTES], const uint8_t b[MS_SHA256_BYTES]) {
  unsigned different = 0;
  for (int i = 0; i < MS_SHA256_BYTES; i++) different |= (unsigned)(a[i] ^ b[i]);
  return different == 0;
}
