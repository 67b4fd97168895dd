/* moment_forms.c - the table of the forms in which AdamW keeps its moments (kernels/formats/moments.h). */
#include <stddef.h>

#include "kernels/formats/moments.h"
#include "kernels/op.h"

static const ms_moment_form form[] = {
#define MS_MOMENTS(NAME, in_state, block, words, random) \
  {MS_##NAME, MS_ADAMW_##NAME, MS_##in_state, block, words, random},
#include "base/numbers/formats.def"
};

enum { FORMS = sizeof form / sizeof *form };

const ms_moment_form *ms_moment_form_of(int dtype) {
  for (int i = 0; i < FORMS; i++)
    if (form[i].dtype == dtype) return &form[i];
  return NULL;
}

const ms_moment_form *ms_moment_form_in(int64_t kernel) {
  for (int i = 0; i < FORMS; i++)
    if (form[i].kernel == kernel) return &form[i];
  return NULL;
}
