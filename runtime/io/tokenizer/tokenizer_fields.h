/* tokenizer_fields.h - what the readers of a tokenizer.json share: how a field of it is checked. A field that a reader
 * uses has a type; one that it knows to have no effect is listed; any other is refused by its name.
 */
#ifndef MS_IO_TOKENIZER_FIELDS_H
#define MS_IO_TOKENIZER_FIELDS_H

#include "io/tokenizer/tokenizer.h"

#include <jansson.h>

enum { MS_TOKENIZER_MAX_IDS = 1 << 24 };

/* MS_EUNSUPPORTED for a field that is not among `names`, which are separated and enclosed by blanks: " id content ". */
int ms_field_known(const json_t *object, const char *where, const char *names);
/* For a field that must be absent, null, false, 0 or "". */
int ms_field_off(const json_t *object, const char *where, const char *field);
/* true or false; *value stays as it is where the field is absent. */
int ms_field_flag(const json_t *object, const char *where, const char *field, int *value);
/* "": there is no type. */
const char *ms_field_type(const json_t *object);
int ms_field_id(const json_t *value, const char *what, int32_t *id);

/* ---- added tokens (tokenizer_added.c) ---- */

/* Reads the list, NULL: none, into t->added, and gives its tokens their ids: raises t->vocab above them, and adds the
 * bytes of their contents to *bytes. */
int ms_added_read(ms_tokenizer *t, const json_t *added, const json_t *vocab, int64_t *bytes);
/* Lets the tokens stand for their contents, after those of the vocabulary. */
int ms_added_store(ms_tokenizer *t, const json_t *vocab, int64_t *used);

/* After the normalizers, which the tokens that are looked for in normalized text pass. */
int ms_added_prepare(ms_tokenizer *t, ms_encoder *encoder);

/* ---- tokens around a text (tokenizer_around.c) ---- */

/* Reads the post_processor, NULL: none, into t->around, after all tokens have their bytes. */
int ms_around_read(ms_tokenizer *t, const json_t *post_processor);

#endif
