/* moment_forms.c - the table of the forms in which AdamW keeps its moments (kernels/formats/moments.h). */
#include <stddef.h>

#include "kernels/formats/moments.h"
#include "kernels/op.h"

static const ms_moment_form form[] = {
    {.dtype = MS_F32, .kernel = MS_ADAMW_F32, .kept = MS_F32},
    {.dtype = MS_BF16, .kernel = MS_ADAMW_BF16, .kept = MS_BF16, .rounds_at_random = 1},
    {.dtype = MS_I8, .kernel = MS_ADAMW_I8, .kept = MS_I32, .block = MS_MOMENT_BLOCK, .words = MS_MOMENT_WORDS},
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
