/* steps/steps.h - the steps that a tokenizer.json lists before and after its model: normalizers, which change a
 * text; pre-tokenizers, which cut it into pieces; and decoders, which make text of tokens. Each kind has a table of
 * types in its file: how the fields of a type are read, and what it does.
 */
#ifndef MS_IO_TOKENIZER_STEPS_H
#define MS_IO_TOKENIZER_STEPS_H

#include "base/text/text.h"
#include "io/tokenizer/tokenizer.h"

#include <jansson.h>

/* A step as read. What a field means depends on the type; each type's reader and function say which it uses. */
struct ms_step {
  const struct ms_step_type *type;
  ms_pieces *pattern; /* NULL: none */
  int matcher;        /* of `pattern`, in the encoder's list */
  char *from, *to;    /* texts; a decoder's or Metaspace's replacement is `from` */
  int64_t from_bytes, to_bytes;
  int flag[4];
  enum ms_split_behavior behavior;
  struct ms_charsmap *charsmap;
  int by_lines; /* of the type, or of what its reader saw */
};

typedef struct ms_step_type {
  const char *name;
  const char *fields; /* as for ms_field_known */
  int (*read)(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where);
  /* A normalizer appends the changed text to *out. */
  int (*normalize)(ms_encoder *e, const ms_step *step, ms_span text, ms_text *out);
  /* A pre-tokenizer appends the pieces of one piece. */
  int (*cut)(ms_encoder *e, const ms_step *step, ms_span text, int first, ms_piece_list *out);
  /* A decoder changes the list of tokens' texts. */
  int (*decode)(const ms_step *step, const ms_piece_list *in, ms_piece_list *out);
  /* 1: a normalizer keeps newlines, and what it makes of a text is what it makes of its parts one after the other, if a
   * part ends with a newline and the next one begins with a character of ASCII that is not blank. */
  int by_lines;
  int at_begin; /* 1: it does something at the begin of a text alone */
} ms_step_type;

/* ---- reading (each in the file of its steps) ---- */

/* Reads one step or a Sequence of them, nested or not; NULL or null: none. */
int ms_normalizers_read(ms_tokenizer *t, const json_t *part);
int ms_pre_tokenizers_read(ms_tokenizer *t, const json_t *part);
int ms_decoders_read(ms_tokenizer *t, const json_t *part);
/* What the three share (steps.c). types end with one without a name; list: the field of a Sequence that has
 * its steps. */
int ms_steps_read(ms_tokenizer *t, ms_step_list *to, const json_t *part, const char *where, const char *list,
                  const ms_step_type *types);
void ms_steps_free(ms_step_list *steps);
/* Reads {"String": ...} into step->from, or {"Regex": ...} into step->pattern. */
int ms_step_read_pattern(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where);
/* Metaspace, as a pre-tokenizer and as a decoder: flag[0]: one is put before texts; flag[1]: the first alone; flag[2]:
 * each begins a piece. */
int ms_metaspace_read(ms_step *step, const json_t *part, const char *where);
/* The first place of step->from in text at or after `at`; NULL: none, or the step has no such text. */
const uint8_t *ms_step_find(const ms_step *step, ms_span text, int64_t at);
/* A text, which must be there. */
int ms_step_read_text(const json_t *part, const char *where, const char *field, char **text, int64_t *bytes);

/* ---- running ---- */

/* Empties the list, and keeps its memory. */
void ms_pieces_clear(ms_piece_list *list);
int ms_piece_add(ms_piece_list *list, ms_span text, int first);
/* The text of a piece: valid until the list grows. */
static inline ms_span ms_piece_text(const ms_piece_list *list, int i) {
  return (ms_span){(const uint8_t *)list->text.data + list->piece[i].begin, list->piece[i].bytes};
}
void ms_piece_list_free(ms_piece_list *list);

/* All of a text's normalizers. goes_on: the text goes on with one that was normalized before, at a place where lines
 * can be cut. *out is the text itself, or memory of the encoder that its next call overwrites. */
int ms_normalize(ms_encoder *e, ms_span text, int goes_on, ms_span *out);
/* All pre-tokenizers: the pieces of a text, in memory of the encoder. first: the text begins the whole one. */
int ms_cut(ms_encoder *e, ms_span text, int first, const ms_piece_list **pieces);

/* ---- the charsmap of Precompiled (charsmap.c) ---- */

int ms_charsmap_read(const char *base64, struct ms_charsmap **map);
void ms_charsmap_free(struct ms_charsmap *map);
/* What a stretch of text becomes; NULL at: it stays. */
ms_span ms_charsmap_find(const struct ms_charsmap *map, ms_span text);

#endif
