/* ps.h - the runs of this host as Lua tables. */
#ifndef MS_HOST_PS_H
#define MS_HOST_PS_H

#include <lua.h>

/* runs() -> list of { pid =, command =, seconds =, ranks = { { rank =, pid =, state =, ... }, ... } }; instead of ranks
** `unreadable`, a text, where another build of the program made the run. */
int ms_host_runs(lua_State *L);

#endif
