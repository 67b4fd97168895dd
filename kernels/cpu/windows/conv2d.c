/* conv2d.c - convolutions and their gradients: reads the shapes and chooses the implementation, oneDNN, or with
 * MOONSHARD_MATMUL=plain our own loops, as for products (matmul.c). Without images, or without elements to sum, results
 * are the bias or zeros. */
#include "kernels/cpu/windows/conv2d.h"

#include <string.h>

#include "base/env.h"
#include "base/error.h"

/* Sets `prepared` for oneDNN, and leaves it NULL for plain loops. */
static int prepare(ms_kernel_call *call) {
  const int plain = !strcmp(ms_env_string("MOONSHARD_MATMUL", "auto"), "plain");
  const ms_conv conv = ms_conv_of(call);
  if (!plain && conv.images && conv.channels && conv.features)
    return ms_conv_onednn_prepare(call, &conv, &call->prepared);
  call->prepared = NULL;
  call->workspace_bytes = ms_conv_plain_workspace(call);
  return MS_OK;
}

static int run(const ms_kernel_call *call) {
  if (call->prepared) return ms_conv_onednn_run(call, call->prepared);
  ms_conv_plain_run(call);
  return MS_OK;
}

const ms_kernel ms_cpu_conv2d = {.prepare = prepare, .run = run, .release = ms_conv_onednn_release};
