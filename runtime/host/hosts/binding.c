/* binding.c - converts between Lua and the parts of --hosts. */
#include "host/hosts/binding.h"

#include <errno.h>
#include <lauxlib.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/bootstrap/host_id.h"
#include "comm/bootstrap/host_list.h"
#include "host/hosts/remote.h"
#include "host/hosts/controller.h"

extern char **environ;

static int fail(lua_State *L) {
  lua_pushnil(L);
  lua_pushstring(L, ms_error_message());
  ms_error_clear();
  return 2;
}

/* The words of the list on top of the stack, in Lua's memory; stays there with the list. */
static const char *const *read_words(lua_State *L) {
  int n = (int)lua_objlen(L, -1);
  const char **words = lua_newuserdata(L, (size_t)(n + 1) * sizeof *words);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, -2, i + 1);
    words[i] = luaL_checkstring(L, -1);
    lua_pop(L, 1); /* the list keeps the text */
  }
  words[n] = NULL;
  return words;
}

/* The host on top of the stack; its texts live as long as the table, and the words are kept in it. */
static void read_host(lua_State *L, ms_controlled_host *host) {
  lua_getfield(L, -1, "name");
  host->name = luaL_checkstring(L, -1);
  lua_getfield(L, -2, "setup");
  host->setup = luaL_checklstring(L, -1, &host->setup_bytes);
  lua_pop(L, 2);
  lua_getfield(L, -1, "command");
  luaL_checktype(L, -1, LUA_TTABLE);
  host->command = read_words(L);
  lua_setfield(L, -3, "words");
  lua_pop(L, 1);
}

int ms_host_over_hosts(lua_State *L) {
  ms_controller controller = {.n = 0};
  int exit_status;
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  lua_getfield(L, 1, "log_all");
  controller.log_all = lua_toboolean(L, -1);
  lua_getfield(L, 1, "interactive");
  controller.interactive = lua_toboolean(L, -1);
  lua_getfield(L, 1, "agent");
  controller.agent = luaL_checkstring(L, -1);
  lua_getfield(L, 1, "timeout");
  controller.timeout = luaL_checknumber(L, -1);
  lua_getfield(L, 1, "hosts");
  luaL_checktype(L, -1, LUA_TTABLE);
  controller.n = (int)lua_objlen(L, -1);
  controller.hosts = lua_newuserdata(L, (size_t)controller.n * sizeof *controller.hosts);
  memset(controller.hosts, 0, (size_t)controller.n * sizeof *controller.hosts);
  for (int i = 0; i < controller.n; i++) {
    lua_rawgeti(L, -2, i + 1);
    read_host(L, &controller.hosts[i]);
    lua_pop(L, 1);
  }
  if (ms_controller_run(&controller, &exit_status)) {
    const char *status = ms_status_name(ms_error_code());
    fail(L);
    lua_pushstring(L, status);
    return 3;
  }
  lua_pushinteger(L, exit_status);
  return 1;
}

int ms_host_streams(lua_State *L) {
  lua_pushstring(L, ms_controller_streams());
  return 1;
}

int ms_host_serve(lua_State *L) {
  lua_pushinteger(L, ms_remote_main());
  return 1;
}

int ms_host_expand(lua_State *L) {
  const char *list = luaL_checkstring(L, 1);
  char name[256];
  int n = 1;
  lua_newtable(L);
  for (int i = 0; i < n; i++) {
    if (ms_host_list_find(list, i, name, sizeof name, &n)) return fail(L);
    lua_pushstring(L, name);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

int ms_host_own_name(lua_State *L) {
  char name[256];
  ms_host_name(name, sizeof name);
  lua_pushstring(L, name);
  return 1;
}

int ms_host_place(lua_State *L) {
  char path[PATH_MAX], folder[PATH_MAX];
  ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  if (n < 0) return luaL_error(L, "cannot read /proc/self/exe: %s", strerror(errno));
  if (!getcwd(folder, sizeof folder)) return luaL_error(L, "cannot read the working folder: %s", strerror(errno));
  lua_pushlstring(L, path, (size_t)n);
  lua_pushstring(L, folder);
  lua_newtable(L);
  for (int i = 0; environ[i]; i++) {
    lua_pushstring(L, environ[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 3;
}
