/* attention_options.c - see the header. Slots are those of the rows in ops.def. */
#include "kernels/attention_options.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

#include "base/error.h"

enum { Q, K };

static int has_documents(int op) {
  return op == MS_OP_document_attention || op == MS_OP_document_attention_backward ||
         op == MS_OP_document_attention_sink || op == MS_OP_document_attention_max;
}

static int is_causal(int op, const ms_op_attrs *attrs) { return has_documents(op) || attrs->attention.causal != 0; }

ms_attention_options ms_attention_options_of(int op, const ms_op_attrs *attrs, const ms_value_info *in) {
  const int64_t keys = in[K].dims[1], window = attrs->attention.window, prefix = attrs->attention.prefix;
  const double scale = attrs->attention.scale != 0.0 ? attrs->attention.scale : 1.0 / sqrt((double)in[Q].dims[3]);
  const int documents = has_documents(op);
  return (ms_attention_options){.backward = op == MS_OP_attention_backward || op == MS_OP_document_attention_backward,
                                .documents = documents,
                                .start = documents ? (int32_t)attrs->attention.start : 0,
                                .causal = is_causal(op, attrs),
                                .window = window < keys ? window : 0,
                                .prefix = prefix < keys ? prefix : keys,
                                .scale = (float)scale,
                                .softcap = (float)attrs->attention.softcap,
                                .part = ms_part_of(attrs->attention.part)};
}

int ms_attention_options_check(const char *name, int op, const ms_op_attrs *attrs) {
  const int64_t window = attrs->attention.window, prefix = attrs->attention.prefix;
  const double softcap = attrs->attention.softcap;
  if (window < 0)
    return MS_FAIL(MS_EINVAL, "%s: window is %" PRId64 "; it must be a number of keys, or 0: all", name, window);
  if (prefix < 0 || (prefix && (window || !is_causal(op, attrs))))
    return MS_FAIL(MS_EINVAL,
                   "%s: prefix is %" PRId64 "; it must be 0, or with causal attention without a window a "
                   "number of keys",
                   name, prefix);
  if (softcap != 0 && !(softcap >= FLT_MIN && softcap <= FLT_MAX))
    return MS_FAIL(MS_EINVAL, "%s: softcap is %g; it must be 0, or a number above 0 that f32 has", name, softcap);
  return MS_OK;
}
