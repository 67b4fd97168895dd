/* residuals.c - forgets what rounding left of gradients (plan/layout/residuals.h): it belongs to the weights that were
 * trained.
 */
#include "plan/layout/residuals.h"

#include <stdlib.h>

#include "base/error.h"
#include "exec/tensors/stored.h"

/* Bytes per copy: 1 MiB. */
enum { AT_ONCE = 1 << 20 };

static int clear(ms_state *state, int unit, const void *zeros) {
  const int64_t bytes = state->layout.unit[unit].bytes[MS_SLOT_RESIDUALS];
  const int64_t at = state->layout.unit[unit].at[MS_SLOT_RESIDUALS];
  char *residuals = ms_state_block(state, MS_ARENA_STATE) + at;
  for (int64_t done = 0; at >= 0 && done < bytes; done += AT_ONCE)
    MS_TRY(ms_state_copy_in(state, residuals + done, zeros, bytes - done < AT_ONCE ? bytes - done : AT_ONCE));
  return MS_OK;
}

int ms_residuals_clear(ms_state *state) {
  int rc = MS_OK, kept = 0;
  for (int u = 0; u < state->model->units; u++) kept |= state->layout.unit[u].at[MS_SLOT_RESIDUALS] >= 0;
  if (!kept) return MS_OK;
  void *zeros = ms_calloc(AT_ONCE, 1);
  if (!zeros) return MS_ENOMEM;
  for (int u = 0; u < state->model->units && !rc; u++) rc = clear(state, u, zeros);
  free(zeros);
  return rc;
}
