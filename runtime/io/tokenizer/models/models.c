/* models.c - which model a tokenizer.json has, by a table of their types. */
#include "io/tokenizer/models/models.h"

#include "base/error.h"
#include "io/safetensors/safetensors.h"
#include "io/tokenizer/tokenizer_fields.h"

#include <stdio.h>
#include <string.h>

static const struct model {
  const char *name, *fields;
  int (*read)(ms_tokenizer *t, const json_t *model, const json_t *vocab);
} models[] = {
    {"BPE",
     " type vocab merges dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk byte_fallback "
     "ignore_merges ",
     ms_bpe_read},
    {"Unigram", " type vocab unk_id byte_fallback ", ms_unigram_read},
    {"WordPiece", " type vocab unk_token continuing_subword_prefix max_input_chars_per_word ", ms_word_piece_read},
    {"WordLevel", " type vocab unk_token ", ms_word_level_read},
};

enum { MODELS = (int)(sizeof models / sizeof *models) };

/* Older files leave the type out. */
static const char *type_of(const json_t *model) {
  const char *type = ms_field_type(model);
  if (*type) return type;
  return json_object_get(model, "merges") ? "BPE" : json_object_get(model, "unk_id") ? "Unigram" : "";
}

int ms_model_read(ms_tokenizer *t, const json_t *model, const json_t *vocab, int64_t *used) {
  char names[128];
  size_t length = 0;
  t->prefix = ms_strdup("");
  t->suffix = ms_strdup("");
  if (!t->prefix || !t->suffix) return MS_ENOMEM;
  MS_TRY(ms_vocab_read(t, vocab, used));
  for (int i = 0; i < MODELS; i++) {
    if (!strcmp(type_of(model), models[i].name)) {
      MS_TRY(ms_field_known(model, "model", models[i].fields));
      return models[i].read(t, model, vocab);
    }
    length += (size_t)snprintf(names + length, sizeof names - length, " %s", models[i].name);
  }
  return MS_FAIL(MS_EUNSUPPORTED, "model.type is \"%.40s\"; supported:%s", ms_field_type(model), names);
}
