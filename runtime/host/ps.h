/* ps.h - the runs on this host, as Lua tables. */
#ifndef MS_HOST_PS_H
#define MS_HOST_PS_H

#include <lua.h>

/* runs() -> list of { pid =, command =, seconds =, ranks = { { rank =, pid =, state =, ... }, ... } }; a run
 * of another build of the program has `unreadable`, a text with the reason, instead of ranks. */
int ms_host_runs(lua_State *L);

#endif
