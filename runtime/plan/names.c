/* names.c - the words that plans, reports and errors use. */
#include "plan/plan.h"

const char *ms_stream_name(int stream) {
  static const char *const names[MS_STREAMS] = {"compute", "gather", "reduce", "replicate"};
  return names[stream];
}

const char *ms_phase_name(int phase) {
  static const char *const names[MS_PHASES] = {"first", "next", "last", "norm", "update", "evaluate"};
  return names[phase];
}

const char *ms_category_name(int category) {
  static const char *const names[MS_CATEGORIES] = {"parameters",  "optimizer", "gradients",    "gathered",
                                                   "activations", "workspace", "communication"};
  return names[category];
}

const char *ms_arena_name(int arena) {
  static const char *const names[MS_ARENAS] = {"state",     "masters",       "replicated", "activations",
                                               "workspace", "communication", "gathered",   "grouped"};
  return names[arena];
}

const char *ms_coll_name(int kind) {
  static const char *const names[MS_COLL_KINDS] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast",
                                                   "barrier",    "send",           "recv"};
  return names[kind];
}
