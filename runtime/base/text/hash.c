/* hash.c - the hash: words of eight bytes, read little-endian, each folded in by a bijective mix, so that two inputs
 * that differ in one word only can never collide. The length goes in last: "ab" then "c" differs from "a" then "bc".
 * The mix is a xor-shift-multiply finaliser; its constants are those of splitmix64 (Steele, Lea & Flood, OOPSLA 2014).
 */
#include "base/text/hash.h"

#include <endian.h>
#include <string.h>

static uint64_t mix(uint64_t hash, uint64_t word) {
  uint64_t x = hash ^ word;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return (x ^ (x >> 31)) + 0x9e3779b97f4a7c15ull;
}

static uint64_t read_whole_word(const unsigned char *bytes) {
  uint64_t word;
  memcpy(&word, bytes, sizeof word);
  return le64toh(word);
}

static uint64_t read_word(const unsigned char *bytes, size_t count) {
  uint64_t word = 0;
  for (size_t i = 0; i < count; i++) word |= (uint64_t)bytes[i] << (8 * i);
  return word;
}

uint64_t ms_hash_bytes(uint64_t hash, const void *data, size_t bytes) {
  const unsigned char *at = data;
  size_t left = bytes;
  for (; left >= 8; left -= 8, at += 8) hash = mix(hash, read_whole_word(at));
  if (left) hash = mix(hash, read_word(at, left));
  return mix(hash, bytes);
}

uint64_t ms_hash_string(uint64_t hash, const char *text) { return ms_hash_bytes(hash, text, strlen(text)); }

uint64_t ms_hash_int(uint64_t hash, int64_t value) { return mix(hash, (uint64_t)value); }
