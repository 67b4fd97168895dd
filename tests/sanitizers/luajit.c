/* luajit.c - a luajit with a sanitizer's runtime linked in: luajit SCRIPT [ARGUMENT...].
 *
 * A sanitized library can be loaded only into a process whose program brought the sanitizer's runtime. Preloading that
 * runtime into the system's luajit would work too, but every child would inherit it, and /bin/sh crashes under the
 * thread sanitizer's.
 */
#include <stdio.h>

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

/* An error without a message is how a script ends with a bad status: busted does. */
static int traceback(lua_State *lua) {
  if (!lua_isstring(lua, 1)) return 1;
  luaL_traceback(lua, lua, lua_tostring(lua, 1), 1);
  return 1;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: %s SCRIPT [ARGUMENT...]\n", argv[0]);
    return 2;
  }
  lua_State *lua = luaL_newstate();
  if (!lua) return 1;
  luaL_openlibs(lua);
  lua_createtable(lua, argc, 1);
  for (int i = 0; i < argc; i++) {
    lua_pushstring(lua, argv[i]);
    lua_rawseti(lua, -2, i - 1); /* arg[0] is the script */
  }
  lua_setglobal(lua, "arg");

  lua_pushcfunction(lua, traceback);
  int status = luaL_loadfile(lua, argv[1]);
  for (int i = 2; status == 0 && i < argc; i++) lua_pushstring(lua, argv[i]);
  if (status == 0) status = lua_pcall(lua, argc - 2, 0, 1);
  if (status != 0 && lua_isstring(lua, -1)) fprintf(stderr, "%s\n", lua_tostring(lua, -1));
  lua_close(lua);
  return status != 0;
}
