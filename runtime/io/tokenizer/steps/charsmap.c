/* charsmap.c - sentencepiece's compiled table of replacements, which the normalizer Precompiled has in
 * base64: the bytes of a trie as a double array (of the library darts-clone), and the replacements, each ended by a
 * zero.
 *
 * What a stretch becomes is the replacement of the shortest of its beginnings that the table has, as in the reference
 * library.
 */
#include "base/error.h"
#include "io/tokenizer/steps/steps.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

struct ms_charsmap {
  uint8_t *bytes; /* what base64 stood for */
  const uint8_t *unit;
  uint32_t units;
  const char *text;
  size_t text_bytes; /* the last is zero */
};

static uint32_t unit_at(const struct ms_charsmap *map, uint32_t i) {
  const uint8_t *p = map->unit + 4 * (size_t)i;
  return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }

int ms_charsmap_read(const char *base64, struct ms_charsmap **out) {
  enum { UNIT = 4 };
  const size_t length = strlen(base64);
  size_t bytes = 0;
  int rc = MS_OK;
  struct ms_charsmap *map = ms_calloc(1, sizeof *map);
  if (!map) return MS_ENOMEM;
  if (!(map->bytes = ms_calloc((int64_t)length + 1, 1))) {
    rc = MS_ENOMEM;
    goto fail;
  }
  if (sodium_base642bin(map->bytes, length, base64, length, NULL, &bytes, NULL, sodium_base64_VARIANT_ORIGINAL) ||
      bytes < UNIT) {
    rc = MS_FAIL(MS_EINVAL, "precompiled_charsmap is not base64");
    goto fail;
  }
  map->unit = map->bytes;
  const uint32_t trie_bytes = unit_at(map, 0);
  map->unit += UNIT;
  map->units = trie_bytes / UNIT;
  if (!map->units || trie_bytes % UNIT || trie_bytes > bytes - UNIT) {
    rc = MS_FAIL(MS_EINVAL, "precompiled_charsmap has %zu bytes, and says that its trie has %u of them", bytes,
                 (unsigned)trie_bytes);
    goto fail;
  }
  map->text = (const char *)map->unit + trie_bytes;
  map->text_bytes = bytes - UNIT - trie_bytes;
  map->bytes[bytes] = 0; /* ends the last replacement */
  *out = map;
  return MS_OK;
fail:
  ms_charsmap_free(map);
  return rc;
}

void ms_charsmap_free(struct ms_charsmap *map) {
  if (!map) return;
  free(map->bytes);
  free(map);
}

ms_span ms_charsmap_find(const struct ms_charsmap *map, ms_span text) {
  const ms_span none = {NULL, 0};
  uint32_t at = offset_of(unit_at(map, 0));
  for (int64_t i = 0; i < text.bytes && text.at[i]; i++) {
    at ^= text.at[i];
    if (at >= map->units) return none;
    const uint32_t unit = unit_at(map, at);
    if ((unit & (1u << 31 | 0xff)) != text.at[i]) return none;
    at ^= offset_of(unit);
    if (!(unit >> 8 & 1)) continue;
    if (at >= map->units) return none;
    const uint32_t begin = unit_at(map, at) & ~(1u << 31);
    if (begin >= map->text_bytes) return none;
    return (ms_span){(const uint8_t *)map->text + begin, (int64_t)strlen(map->text + begin)};
  }
  return none;
}
