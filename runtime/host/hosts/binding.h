/* binding.h - what `moonshard run --hosts` needs in Lua: functions of the module moonshard.host. */
#ifndef MS_HOST_HOSTS_BINDING_H
#define MS_HOST_HOSTS_BINDING_H

#include <lua.h>

/* over_hosts{ hosts = { { name =, command = { words }, setup = text }, ... }, log_all =, interactive =, agent =,
 * timeout = } -> exit status, or nil, a message and the name of the status: see controller.h. */
int ms_host_over_hosts(lua_State *L);
/* streams() -> what rank 0 of a prompt gets on its host for the standard streams of this process, for SETUP. */
int ms_host_streams(lua_State *L);
/* serve() -> exit status: this process is one host's part of it, see remote.h. */
int ms_host_serve(lua_State *L);
/* expand("node[01-03],login") -> a list of names, or nil and a message. */
int ms_host_expand(lua_State *L);
/* name() -> this host's name. */
int ms_host_own_name(lua_State *L);
/* place() -> the path of this executable, the working folder and the environment, as a list of "NAME=value". */
int ms_host_place(lua_State *L);

#endif
