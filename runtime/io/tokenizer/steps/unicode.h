/* unicode.h - what tokenizers ask of characters: classes, cases, normal forms and graphemes. Tables are
 * utf8proc's; where the reference library means another set by the same word, it is written here.
 *
 * All text is valid UTF-8, and a character is its code point.
 */
#ifndef MS_IO_TOKENIZER_UNICODE_H
#define MS_IO_TOKENIZER_UNICODE_H

#include "base/text/text.h"
#include "io/tokenizer/tokenizer.h"

/* The character at *at, which moves past it. */
int32_t ms_char_next(ms_span text, int64_t *at);
/* The character that ends at `end` > 0. */
int32_t ms_char_before(ms_span text, int64_t end);
/* The number of bytes of the character that begins with this byte. */
int ms_char_bytes(uint8_t lead);
void ms_char_put(ms_text *out, int32_t c);
/* The number of characters. */
int64_t ms_char_count(ms_span text);

int ms_char_is_white_space(int32_t c); /* Unicode's White_Space */
int ms_char_is_number(int32_t c);      /* Nd, Nl, No */
int ms_char_is_punctuation(int32_t c); /* P*, and all of ASCII's signs */
int ms_char_is_other(int32_t c);       /* Cc, Cf, Cs, Co */
int ms_char_is_mark(int32_t c);        /* M* */
int ms_char_is_nonspacing(int32_t c);  /* Mn */
int ms_char_is_word(int32_t c);        /* \w of the reference library's patterns */
/* CJK ideographs, as BERT's pre-tokenization lists them. */
int ms_char_is_ideograph(int32_t c);
/* In lower case: one character, but two of U+0130. */
void ms_char_put_lower(ms_text *out, int32_t c);

typedef enum { MS_NFC, MS_NFD, MS_NFKC, MS_NFKD } ms_normal_form;
int ms_text_normalize(ms_text *out, ms_span text, ms_normal_form form);
/* The end of the grapheme that begins at `from`. */
int64_t ms_grapheme_end(ms_span text, int64_t from);

#endif
