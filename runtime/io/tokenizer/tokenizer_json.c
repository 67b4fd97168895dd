/* tokenizer_json.c - reads a tokenizer.json. Every field that affects the result is checked: an unsupported feature
 * is an error that names it, so that the tokens equal the reference library's.
 *
 * Fields that have no effect are known as such: unk_token, fuse_unk and byte_fallback (every byte is a token), and
 * trim_offsets (of offsets alone). Without a decoder, tokens give the text that they were made of.
 */
#include "base/error.h"
#include "io/file_read.h"
#include "io/safetensors/safetensors.h"
#include "io/tokenizer/tokenizer_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_BYTES = 1 << 30 };

/* ---- fields ---- */

static int unsupported(const char *field, const char *why) { return MS_FAIL(MS_EUNSUPPORTED, "%s: %s", field, why); }

/* ---- vocabulary ---- */

static int measure_vocab(const json_t *vocab, int *ids, int64_t *bytes) {
  const char *token;
  json_t *value;
  int32_t id;
  *ids = 0;
  *bytes = 0;
  json_object_foreach((json_t *)vocab, token, value) {
    if (ms_field_id(value, token, &id)) return ms_error_prefix("model.vocab");
    if (id >= *ids) *ids = id + 1;
    *bytes += (int64_t)strlen(token);
  }
  return MS_OK;
}

/* Converts the model's tokens to bytes; a token with characters outside of the byte alphabet represents
 * its own text. */
static int read_vocab(ms_tokenizer *t, const json_t *vocab, int64_t *used) {
  char quoted[MS_ST_QUOTED];
  const char *token;
  json_t *value;
  MS_TRY(ms_words_new(t, (int64_t)json_object_size(vocab)));
  memset(t->byte_id, 0xff, sizeof t->byte_id);
  json_object_foreach((json_t *)vocab, token, value) {
    const int32_t id = (int32_t)json_integer_value(value);
    ms_span *to = &t->token[id];
    uint8_t *at = t->token_bytes + *used;
    if (to->at)
      return MS_FAIL(MS_EINVAL, "model.vocab: %s has the id %d of another token", ms_st_quote(token, quoted), id);
    *to = (ms_span){at, 0};
    const int written_in_bytes = ms_bytes_of_token(token, at, &to->bytes);
    if (!written_in_bytes) {
      to->bytes = (int64_t)strlen(token);
      memcpy(at, token, (size_t)to->bytes);
    }
    *used += to->bytes;
    if (written_in_bytes) ms_words_add(t, id);
    if (written_in_bytes && to->bytes == 1) t->byte_id[*at] = id;
  }
  for (int byte = 0; byte < 256; byte++)
    if (t->byte_id[byte] < 0)
      return MS_FAIL(MS_EUNSUPPORTED, "model.vocab: no token stands for byte 0x%02x: it must have all 256", byte);
  return MS_OK;
}

/* The two tokens of a merge: "a b", or ["a", "b"]. */
static int split_merge(const json_t *merge, char *left, char *right, size_t room) {
  const char *a = json_string_value(json_array_get(merge, 0)), *b = json_string_value(json_array_get(merge, 1));
  size_t a_bytes = a ? strlen(a) : 0;
  if (json_is_string(merge)) {
    a = json_string_value(merge);
    b = strchr(a, ' ');
    a_bytes = b ? (size_t)(b - a) : 0;
    b = b ? b + 1 : NULL;
    if (b && strchr(b, ' ')) return 0;
  } else if (json_array_size(merge) != 2) {
    return 0;
  }
  if (!a || !b || !a_bytes || !*b || a_bytes >= room || strlen(b) >= room) return 0;
  memcpy(left, a, a_bytes);
  left[a_bytes] = '\0';
  strcpy(right, b);
  return 1;
}

static int32_t id_in(const json_t *vocab, const char *token) {
  const json_t *value = json_object_get(vocab, token);
  return value ? (int32_t)json_integer_value(value) : -1;
}

static int read_merges(ms_tokenizer *t, const json_t *merges, const json_t *vocab) {
  enum { ROOM = 4096 };
  char left[2 * ROOM], right[ROOM], quoted[MS_ST_QUOTED];
  size_t i;
  json_t *merge;
  MS_TRY(ms_merges_new(&t->merges, (int64_t)json_array_size(merges)));
  json_array_foreach((json_t *)merges, i, merge) {
    if (!split_merge(merge, left, right, ROOM))
      return MS_FAIL(MS_EINVAL, "model.merges: entry %zu must be \"a b\" or [\"a\", \"b\"]", i);
    ms_merge made = {.left = id_in(vocab, left), .right = id_in(vocab, right), .rank = (int32_t)i};
    if (made.left < 0 || made.right < 0)
      return MS_FAIL(MS_EINVAL, "model.merges: entry %zu: %s is not in model.vocab", i,
                     ms_st_quote(made.left < 0 ? left : right, quoted));
    made.id = id_in(vocab, strcat(left, right));
    if (made.id < 0)
      return MS_FAIL(MS_EINVAL, "model.merges: entry %zu makes %s, which is not in model.vocab", i,
                     ms_st_quote(left, quoted));
    if (ms_merges_add(&t->merges, made)) return MS_FAIL(MS_EINVAL, "model.merges: entry %zu is there twice", i);
  }
  return MS_OK;
}

static int read_model(ms_tokenizer *t, const json_t *model, int64_t *used) {
  static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
  const json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
  int unused;
  if (strcmp(ms_field_type(model), "BPE"))
    return MS_FAIL(MS_EUNSUPPORTED, "model.type is \"%.40s\": BPE is supported", ms_field_type(model));
  MS_TRY(ms_field_known(model, "model",
                        " type vocab merges dropout unk_token continuing_subword_prefix "
                        "end_of_word_suffix fuse_unk byte_fallback ignore_merges "));
  for (int i = 0; i < 3; i++) MS_TRY(ms_field_off(model, "model", off[i]));
  if (!json_is_array(merges)) return MS_FAIL(MS_EINVAL, "model.merges must be a list");
  MS_TRY(ms_field_flag(model, "model", "ignore_merges", &t->ignore_merges));
  MS_TRY(ms_field_flag(model, "model", "fuse_unk", &unused));
  MS_TRY(ms_field_flag(model, "model", "byte_fallback", &unused));
  MS_TRY(read_vocab(t, vocab, used));
  return read_merges(t, merges, vocab);
}

/* ---- pre-tokenizer ---- */

/* use_regex: whether a pattern of its own cuts the text; a file that does not say so has one. */
static int read_byte_level(const json_t *part, const char *where, int *use_regex) {
  int unused;
  *use_regex = 1;
  MS_TRY(ms_field_known(part, where, " type add_prefix_space trim_offsets use_regex "));
  MS_TRY(ms_field_flag(part, where, "use_regex", use_regex));
  MS_TRY(ms_field_flag(part, where, "trim_offsets", &unused));
  return ms_field_off(part, where, "add_prefix_space");
}

static int read_split(ms_tokenizer *t, const json_t *split) {
  const json_t *pattern = json_object_get(split, "pattern");
  const char *regex = json_string_value(json_object_get(pattern, "Regex"));
  const char *behavior = json_string_value(json_object_get(split, "behavior"));
  MS_TRY(ms_field_known(split, "pre_tokenizer: Split", " type pattern behavior invert "));
  if (!regex || json_object_size(pattern) != 1)
    return unsupported("pre_tokenizer: Split.pattern", "a Regex is supported");
  if (!behavior || strcmp(behavior, "Isolated"))
    return unsupported("pre_tokenizer: Split.behavior", "Isolated is supported");
  MS_TRY(ms_field_off(split, "pre_tokenizer: Split", "invert"));
  if (ms_pieces_compile(regex, &t->pieces)) return ms_error_prefix("pre_tokenizer: Split.pattern");
  return MS_OK;
}

static int read_pre_tokenizer(ms_tokenizer *t, const json_t *pre) {
  const char *type = ms_field_type(pre);
  int use_regex;
  if (!strcmp(type, "ByteLevel")) {
    MS_TRY(read_byte_level(pre, "pre_tokenizer", &use_regex));
    if (!use_regex) return unsupported("pre_tokenizer.use_regex", "false without a Split before it is not supported");
    return ms_pieces_compile(NULL, &t->pieces);
  }
  const json_t *list = json_object_get(pre, "pretokenizers");
  const json_t *split = json_array_get(list, 0), *bytes = json_array_get(list, 1);
  if (strcmp(type, "Sequence") || json_array_size(list) != 2 || strcmp(ms_field_type(split), "Split") ||
      strcmp(ms_field_type(bytes), "ByteLevel"))
    return unsupported("pre_tokenizer", "ByteLevel, or a Sequence of one Split and ByteLevel, is supported");
  MS_TRY(ms_field_known(pre, "pre_tokenizer", " type pretokenizers "));
  MS_TRY(read_byte_level(bytes, "pre_tokenizer: ByteLevel", &use_regex));
  if (use_regex) return unsupported("pre_tokenizer: ByteLevel.use_regex", "after a Split it must be false");
  return read_split(t, split);
}

/* ---- decoder ---- */

static int check_byte_level(const json_t *decoder) {
  char quoted[MS_ST_QUOTED];
  if (!strcmp(ms_field_type(decoder), "ByteLevel")) return MS_OK;
  return MS_FAIL(MS_EUNSUPPORTED, "decoder of type %s is not supported; supported: ByteLevel",
                 ms_st_quote(ms_field_type(decoder), quoted));
}

/* ByteLevel's is what decoding does. */
static int check_decoder(const json_t *decoder) {
  const json_t *list = json_object_get(decoder, "decoders");
  size_t i;
  json_t *inner;
  if (!decoder || json_is_null(decoder)) return MS_OK;
  if (strcmp(ms_field_type(decoder), "Sequence") || !json_is_array(list)) return check_byte_level(decoder);
  json_array_foreach((json_t *)list, i, inner) MS_TRY(check_byte_level(inner));
  return MS_OK;
}

/* ---- the file ---- */

/* Whether a normalizer is a list of none, which changes nothing. */
static int is_empty_sequence(const json_t *normalizer) {
  const json_t *list = json_object_get(normalizer, "normalizers");
  return !strcmp(ms_field_type(normalizer), "Sequence") && json_is_array(list) && !json_array_size(list) &&
         json_object_size(normalizer) == 2;
}

static int read_root(ms_tokenizer *t, const json_t *root) {
  static const char *const off[] = {"truncation", "padding"};
  const json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab");
  const json_t *added = json_object_get(root, "added_tokens"), *version = json_object_get(root, "version");
  int64_t bytes, used = 0;
  if (!json_is_object(model)) return MS_FAIL(MS_EINVAL, "model is missing: is this a tokenizer.json?");
  MS_TRY(ms_field_known(root, "",
                        " version truncation padding added_tokens normalizer pre_tokenizer post_processor "
                        "decoder model "));
  if (version && (!json_is_string(version) || strcmp(json_string_value(version), "1.0")))
    return unsupported("version", "1.0 is supported");
  for (int i = 0; i < 2; i++) MS_TRY(ms_field_off(root, "", off[i]));
  if (!is_empty_sequence(json_object_get(root, "normalizer"))) MS_TRY(ms_field_off(root, "", "normalizer"));
  MS_TRY(check_decoder(json_object_get(root, "decoder")));
  if (!json_is_object(vocab)) return MS_FAIL(MS_EINVAL, "model.vocab must be an object");
  MS_TRY(measure_vocab(vocab, &t->vocab, &bytes));
  MS_TRY(ms_added_read(t, added, vocab, &bytes));
  t->token = ms_calloc(t->vocab, sizeof *t->token);
  t->token_bytes = ms_calloc(bytes, 1);
  if (!t->token || !t->token_bytes) return MS_ENOMEM;
  MS_TRY(read_model(t, model, &used));
  MS_TRY(ms_added_store(t, vocab, &used));
  MS_TRY(ms_around_read(t, json_object_get(root, "post_processor")));
  return read_pre_tokenizer(t, json_object_get(root, "pre_tokenizer"));
}

static void destroy_tokenizer(void *object) {
  ms_tokenizer *t = object;
  for (int i = 0; i < t->n_added; i++) free(t->added[i].content);
  ms_encoder_free(t->own);
  ms_pieces_free(t->pieces);
  free(t->merges.slot);
  free(t->words.slot);
  free(t->added);
  free(t->added_id);
  free(t->token);
  free(t->token_bytes);
  for (int side = 0; side < 2; side++) free(t->around[side].id);
  free(t->encoded.id);
  free(t->decoded);
  free(t->path);
}

int ms_tokenizer_parse(const char *path, const char *text, int64_t length, ms_tokenizer **tokenizer) {
  json_t *root = NULL;
  *tokenizer = NULL;
  ms_tokenizer *t = ms_handle_new(MS_HANDLE_TOKENIZER, sizeof *t, destroy_tokenizer);
  if (!t) return MS_ENOMEM;
  int rc = (t->path = ms_strdup(path)) ? ms_st_json(path, "tokenizer", text, length, &root) : MS_ENOMEM;
  if (!rc && (rc = read_root(t, root))) ms_error_prefix("%s", path);
  json_decref(root);
  if (rc) {
    ms_free(t);
    return rc;
  }
  *tokenizer = t;
  return MS_OK;
}

static int read_file(const char *path, ms_tokenizer **tokenizer) {
  int fd;
  int64_t bytes;
  MS_TRY(ms_file_open_regular(path, &fd, &bytes));
  char *text = NULL;
  int rc = MS_OK;
  if (bytes > MOST_BYTES) {
    rc = MS_FAIL(MS_EINVAL, "%s: it has %lld bytes: that is no tokenizer.json", path, (long long)bytes);
  } else if (!(text = ms_calloc(bytes, 1))) {
    rc = MS_ENOMEM;
  } else {
    rc = ms_file_read_at(path, fd, 0, bytes, text);
  }
  close(fd);
  if (!rc) rc = ms_tokenizer_parse(path, text, bytes, tokenizer);
  free(text);
  return rc;
}

int ms_tokenizer_open(const char *path, ms_tokenizer **tokenizer) {
  MS_GIVEN(path);
  MS_GIVEN(tokenizer);
  struct stat about;
  *tokenizer = NULL;
  if (stat(path, &about) || !S_ISDIR(about.st_mode)) return read_file(path, tokenizer);
  const size_t room = strlen(path) + sizeof "/tokenizer.json";
  char *inside = ms_calloc((int64_t)room, 1);
  if (!inside) return MS_ENOMEM;
  snprintf(inside, room, "%s/tokenizer.json", path);
  int rc = read_file(inside, tokenizer);
  free(inside);
  return rc;
}

int ms_tokenizer_find(const ms_tokenizer *t, const char *token) {
  MS_HANDLE_OR(-1, t, TOKENIZER);
  MS_GIVEN_OR(-1, token);
  for (int i = 0; i < t->n_added; i++)
    if (!strcmp(t->added[i].content, token)) return t->added[i].id;
  uint8_t *bytes = ms_calloc((int64_t)strlen(token), 1);
  ms_span word = {bytes, 0};
  int id = bytes && ms_bytes_of_token(token, bytes, &word.bytes) ? ms_word_find(t, word) : -1;
  free(bytes);
  return id;
}
