/* engine.c - where the public header meets the floors: calls that join two floors which do not know each other. */
#include "graph/graph.h"
#include "shard/model.h"

int ms_graph_new(const ms_model *model, ms_graph **graph) {
  MS_HANDLE(model, MODEL);
  MS_TRY(ms_graph_create(model, ms_model_param_info, model->params, graph));
  ms_handle_set_keeps(*graph, model);
  return MS_OK;
}
