/* listener.h - the thread that hears the steps of the other ranks of this host for the progress thread. Internal to
 * collectives.
 */
#ifndef MS_COMM_COLLECTIVES_LISTENER_H
#define MS_COMM_COLLECTIVES_LISTENER_H

#include "comm/group/world.h"
#include "comm/transport/transport.h"

typedef struct ms_listener ms_listener;

/* From now on a ring of this rank's step bell wakes the endpoint, which outlives the listener. */
int ms_listener_start(ms_world *world, const ms_transport_api *api, ms_endpoint *endpoint, ms_listener **listener);
/* Accepts NULL. */
void ms_listener_stop(ms_listener *listener);

#endif
