/* tokenizer_json.c - reads a tokenizer.json. Every field that affects the result is checked: an unsupported feature
 * is an error that names it, so that the tokens equal the reference library's.
 */
#include "base/error.h"
#include "io/file_read.h"
#include "io/safetensors/safetensors.h"
#include "io/tokenizer/tokenizer_fields.h"
#include "io/tokenizer/models/models.h"
#include "io/tokenizer/steps/steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_BYTES = 1 << 30 };

/* ---- the file ---- */

/* Whether pieces before a line that does not begin with a blank are the same whatever follows. */
static int can_cut_lines(const ms_tokenizer *t) {
  int by_lines = t->in_place || (!t->pre_tokenizers.count && ms_model_ends_at_lines(t) &&
                                 (t->model == &ms_bpe_characters || t->model == &ms_bpe_bytes));
  for (int i = 0; i < t->normalizers.count; i++) by_lines = by_lines && t->normalizers.step[i].by_lines;
  for (int i = 0; i < t->n_added; i++) {
    const ms_added_token *a = &t->added[i];
    by_lines = by_lines && !a->lstrip && (t->in_place || (!a->rstrip && !strchr(a->content, '\n')));
  }
  return by_lines;
}

static int read_steps(ms_tokenizer *t, const json_t *root) {
  MS_TRY(ms_normalizers_read(t, json_object_get(root, "normalizer")));
  MS_TRY(ms_pre_tokenizers_read(t, json_object_get(root, "pre_tokenizer")));
  return ms_decoders_read(t, json_object_get(root, "decoder"));
}

static int read_tokens(ms_tokenizer *t, const json_t *root, const json_t *vocab, int64_t bytes) {
  const json_t *model = json_object_get(root, "model");
  int64_t used = 0;
  t->listed = (int)(json_is_array(json_object_get(model, "vocab")) ? json_array_size(json_object_get(model, "vocab"))
                                                                   : json_object_size(vocab));
  MS_TRY(ms_added_read(t, json_object_get(root, "added_tokens"), vocab, &bytes));
  t->token = ms_calloc(t->vocab, sizeof *t->token);
  t->token_bytes = ms_calloc(bytes + 1, 1);
  if (!t->token || !t->token_bytes) return MS_ENOMEM;
  MS_TRY(ms_model_read(t, model, vocab, &used));
  MS_TRY(ms_added_store(t, vocab, &used));
  return ms_around_read(t, json_object_get(root, "post_processor"));
}

/* What a program asked for when it saved the file: that calls cut texts, and fill them up. The reference library's
 * models' tokenizers do neither unless a call says so. */
static const char *const OF_CALLS[] = {"truncation", "padding"};

static int read_call(const ms_tokenizer *t, const json_t *root, const char *field) {
  if (!json_is_object(json_object_get(root, field))) return ms_field_off(root, "", field);
  ms_note("%s: its %s has no effect: texts are encoded whole, as by the reference library's AutoTokenizer", t->path,
          field);
  return MS_OK;
}

static int read_root(ms_tokenizer *t, const json_t *root) {
  const json_t *model = json_object_get(root, "model"), *version = json_object_get(root, "version");
  json_t *vocab = NULL;
  int64_t bytes;
  if (!json_is_object(model)) return MS_FAIL(MS_EINVAL, "model is missing: is this a tokenizer.json?");
  MS_TRY(ms_field_known(root, "",
                        " version truncation padding added_tokens normalizer pre_tokenizer post_processor "
                        "decoder model "));
  if (version && (!json_is_string(version) || strcmp(json_string_value(version), "1.0")))
    return MS_FAIL(MS_EUNSUPPORTED, "version: 1.0 is supported");
  for (int i = 0; i < 2; i++) MS_TRY(read_call(t, root, OF_CALLS[i]));
  MS_TRY(read_steps(t, root));
  int rc = ms_model_vocab(model, &t->vocab, &bytes, &vocab);
  if (!rc) rc = read_tokens(t, root, vocab, bytes);
  json_decref(vocab);
  MS_TRY(rc);
  if (!(t->text = ms_calloc(t->vocab, sizeof *t->text))) return MS_ENOMEM;
  memcpy(t->text, t->token, (size_t)t->vocab * sizeof *t->text);
  MS_TRY(ms_encoder_new(t, &t->own));
  MS_TRY(ms_added_prepare(t, t->own));
  t->by_lines = can_cut_lines(t);
  return MS_OK;
}

static void destroy_tokenizer(void *object) {
  ms_tokenizer *t = object;
  for (int i = 0; i < t->n_added; i++) {
    free(t->added[i].content);
    free(t->added[i].sought);
  }
  ms_encoder_free(t->own);
  ms_steps_free(&t->normalizers);
  ms_steps_free(&t->pre_tokenizers);
  ms_steps_free(&t->decoders);
  free(t->pattern);
  free(t->prefix);
  free(t->suffix);
  free(t->score);
  free(t->merges.slot);
  free(t->words.slot);
  free(t->added);
  free(t->added_id);
  free(t->added_flags);
  free(t->token);
  free(t->token_bytes);
  free(t->text);
  for (int side = 0; side < 2; side++) free(t->around[side].id);
  free(t->encoded.id);
  ms_text_free(&t->decoded);
  for (int i = 0; i < 2; i++) ms_piece_list_free(&t->decoding[i]);
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
  if (bytes > MAX_BYTES) {
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
  const ms_span text = {(const uint8_t *)token, (int64_t)strlen(token)};
  if (!t->byte_level) return ms_word_find(t, text);
  uint8_t *bytes = ms_calloc(text.bytes + 1, 1);
  ms_span word = {bytes, 0};
  const int id = bytes && ms_bytes_of_token(text, bytes, &word.bytes) ? ms_word_find(t, word) : -1;
  free(bytes);
  return id;
}
