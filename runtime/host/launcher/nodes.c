/* nodes.c - global numbers of ranks, and the environment from which ranks learn where to connect to other nodes. */
#include "host/launcher/nodes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/bootstrap/store.h"
#include "comm/bootstrap/token.h"

int ms_nodes_prepare(const ms_launch_config *config) {
  const char *token;
  ms_store_place place;
  if (!config->rendezvous) return MS_OK;
  if (strcmp(config->rendezvous, "env://")) MS_TRY(ms_store_place_parse(config->rendezvous, &place));
  if (config->nodes == 1) return ms_token_make();
  MS_TRY(ms_token_get(&token));
  return strcmp(config->rendezvous, "env://") ? ms_token_check(&place, token) : MS_OK;
}

static void set_variable(const char *name, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

void ms_nodes_set_variables(const ms_launch_config *config, int local_rank) {
  set_variable("RANK", ms_nodes_rank(config, local_rank));
  set_variable("WORLD_SIZE", config->ranks * (config->nodes ? config->nodes : 1));
  set_variable("LOCAL_RANK", local_rank);
  set_variable("LOCAL_WORLD_SIZE", config->ranks);
  if (config->nodes) set_variable("MOONSHARD_NODE", config->node_rank);
  if (config->rendezvous) setenv("MOONSHARD_RENDEZVOUS", config->rendezvous, 1);
  else unsetenv("MOONSHARD_RENDEZVOUS"); /* it was meant for this launcher, not for its ranks */
}

int ms_nodes_rank(const ms_launch_config *config, int local_rank) {
  return config->node_rank * config->ranks + local_rank;
}
