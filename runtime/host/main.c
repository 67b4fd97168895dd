/* main.c - the executable: a Lua state with the embedded modules, and the command line, which is written in Lua.
 *
 * The module moonshard.host gives Lua what only the host can do, such as starting ranks. A rank is a fork of this
 * process: it starts with a copy of the Lua state and runs a Lua function in it. This process must not start threads,
 * because forked ranks would inherit locks that are never released.
 */
#include <errno.h>
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "base/machine/cores.h"
#include "base/env.h"
#include "base/testing.h"
#include "comm/bootstrap/environment.h"
#include "comm/bootstrap/token.h"
#include "host/embedded.h"
#include "host/launcher.h"
#include "host/hosts/binding.h"
#include "host/launcher/link.h"
#include "host/ps.h"
#include "host/repl.h"
#include "moonshard.h"

enum { STATUS_FAILED_RUN = 3 };

/* ---- modules ---- */

static const struct ms_embedded_module *find_module(const char *name) {
  for (int i = 0; i < ms_embedded_module_count; i++)
    if (!strcmp(ms_embedded_modules[i].name, name)) return &ms_embedded_modules[i];
  return NULL;
}

/* Whether this LuaJIT reads the bytecode. Others say no when they load it, or, if they are of another version, must not
 * be asked. */
static int is_embedded_version(lua_State *L) {
  lua_getglobal(L, "jit");
  lua_getfield(L, -1, "version");
  const char *version = lua_tostring(L, -1);
  const int is = version && !strcmp(version, ms_embedded_version);
  lua_pop(L, 2);
  return is;
}

static int load_module(lua_State *L, const struct ms_embedded_module *module, const char *chunk) {
  if (is_embedded_version(L)) {
    if (!luaL_loadbuffer(L, module->bytecode, module->bytecode_size, chunk)) return 0;
    lua_pop(L, 1);
  }
  return luaL_loadbuffer(L, module->source, module->size, chunk);
}

/* A searcher for package.loaders: name -> the module's chunk, or a text with the reason why there is none. */
static int search_embedded(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  const struct ms_embedded_module *module = find_module(name);
  if (!module) {
    lua_pushfstring(L, "\n\tno module '%s' in the executable", name);
    return 1;
  }
  lua_pushfstring(L, "@%s", module->path);
  if (load_module(L, module, lua_tostring(L, -1))) return lua_error(L);
  return 1;
}

/* Inserts the searcher second in package.loaders: after package.preload, before files, so that files on the path cannot
 * replace the program's modules. */
static void add_searcher(lua_State *L) {
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "loaders");
  for (int i = (int)lua_objlen(L, -1); i >= 2; i--) {
    lua_rawgeti(L, -1, i);
    lua_rawseti(L, -2, i + 1);
  }
  lua_pushcfunction(L, search_embedded);
  lua_rawseti(L, -2, 2);
  lua_pop(L, 2);
}

/* ---- moonshard.host ---- */

/* A rank's program: calls the Lua function on top of the stack, which returns the exit status. */
static int run_rank(void *context) {
  lua_State *L = context;
  lua_pushvalue(L, -1);
  if (lua_pcall(L, 0, 1, 0)) {
    const char *message = lua_tostring(L, -1);
    fprintf(stderr, "moonshard: %s\n", message ? message : "a rank failed without a message");
    return STATUS_FAILED_RUN;
  }
  return (int)lua_tointeger(L, -1);
}

static const char *text_field(lua_State *L, const char *name) {
  lua_getfield(L, 1, name); /* stays on the stack, so that the text is not collected */
  return lua_isnil(L, -1) ? NULL : luaL_checkstring(L, -1);
}

/* launch{ ranks =, log_all =, log_dir =, pin =, interactive =, nodes =, node_rank =, rendezvous =, joins =, grace =,
 * main = function } -> exit status, or nil and a message. The fields are those of ms_launch_config, except that grace
 * sets grace_to_save. main runs in every rank and returns the rank's exit status. After an interactive run, the
 * terminal's settings are restored, as rank 0 can change them. */
static int host_launch(lua_State *L) {
  ms_launch_config config = {.rank_main = run_rank, .context = L};
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  lua_getfield(L, 1, "ranks");
  config.ranks = (int)luaL_checkinteger(L, -1);
  lua_getfield(L, 1, "log_all");
  config.log_all = lua_toboolean(L, -1);
  lua_getfield(L, 1, "interactive");
  config.interactive = lua_toboolean(L, -1);
  config.log_dir = text_field(L, "log_dir");
  config.pin = text_field(L, "pin");
  config.rendezvous = text_field(L, "rendezvous");
  lua_getfield(L, 1, "nodes");
  config.nodes = (int)luaL_optinteger(L, -1, 0);
  lua_getfield(L, 1, "node_rank");
  config.node_rank = (int)luaL_optinteger(L, -1, 0);
  config.link = config.nodes ? ms_link_get() : NULL; /* ranks of this host alone are no part of the run on several */
  lua_getfield(L, 1, "joins");
  config.joins = lua_toboolean(L, -1);
  lua_getfield(L, 1, "grace");
  config.grace_to_save = luaL_optnumber(L, -1, 0);
  lua_getfield(L, 1, "main");
  luaL_checktype(L, -1, LUA_TFUNCTION);
  struct termios terminal;
  int restore = config.interactive && !tcgetattr(STDIN_FILENO, &terminal);
  int exit_status, failed = ms_launch(&config, &exit_status);
  if (restore) tcsetattr(STDIN_FILENO, TCSADRAIN, &terminal);
  if (failed) {
    lua_pushnil(L);
    lua_pushstring(L, ms_error_message());
    ms_error_clear();
    return 2;
  }
  lua_pushinteger(L, exit_status);
  return 1;
}

/* cores() -> { list = "0-3", count =, physical =, quota = cores' worth of processor time, usable = }. */
static int host_cores(lua_State *L) {
  ms_cores cores;
  cpu_set_t set;
  char list[256];
  ms_cores_read("", &cores);
  CPU_ZERO(&set);
  for (int i = 0; i < cores.n; i++) CPU_SET(cores.core[i], &set);
  ms_cores_text(&set, list, sizeof list);
  lua_newtable(L);
  lua_pushstring(L, list);
  lua_setfield(L, -2, "list");
  lua_pushinteger(L, cores.n);
  lua_setfield(L, -2, "count");
  lua_pushinteger(L, cores.n_physical);
  lua_setfield(L, -2, "physical");
  lua_pushnumber(L, cores.quota);
  lua_setfield(L, -2, "quota");
  lua_pushinteger(L, ms_cores_usable(&cores));
  lua_setfield(L, -2, "usable");
  return 1;
}

/* source(path) -> the text of an embedded Lua file, or nil. path: as in debug information, for example
 * "lua/moonshard/nn/loss.lua". */
static int host_source(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  for (int i = 0; i < ms_embedded_module_count; i++) {
    const struct ms_embedded_module *module = &ms_embedded_modules[i];
    if (strcmp(module->path, path)) continue;
    lua_pushlstring(L, module->source, module->size);
    return 1;
  }
  return 0;
}

/* inject_delay(text): NULL, or why the text is refused. */
static int host_inject_delay(lua_State *L) {
  if (ms_inject_delay(luaL_checkstring(L, 1))) lua_pushstring(L, ms_error_message());
  else lua_pushnil(L);
  return 1;
}

/* task() -> { rank =, size =, source = }: which rank other launchers say that this process is; size 1 when none does.
 * Or nil and a message. */
static int host_task(lua_State *L) {
  ms_task task;
  if (ms_environment_task(&task)) {
    lua_pushnil(L);
    lua_pushstring(L, ms_error_message());
    ms_error_clear();
    return 2;
  }
  lua_newtable(L);
  lua_pushinteger(L, task.rank);
  lua_setfield(L, -2, "rank");
  lua_pushinteger(L, task.size);
  lua_setfield(L, -2, "size");
  lua_pushstring(L, task.source);
  lua_setfield(L, -2, "source");
  return 1;
}

static int open_host(lua_State *L) {
  static const luaL_Reg functions[] = {{"launch", host_launch},
                                       {"cores", host_cores},
                                       {"task", host_task},
                                       {"runs", ms_host_runs},
                                       {"source", host_source},
                                       {"inject_delay", host_inject_delay},
                                       {"over_hosts", ms_host_over_hosts},
                                       {"streams", ms_host_streams},
                                       {"serve", ms_host_serve},
                                       {"expand", ms_host_expand},
                                       {"name", ms_host_own_name},
                                       {"place", ms_host_place},
                                       {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  return 1;
}

static void add_host(lua_State *L) {
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "preload");
  lua_pushcfunction(L, open_host);
  lua_setfield(L, -2, "moonshard.host");
  lua_pushcfunction(L, ms_repl_open);
  lua_setfield(L, -2, "moonshard.host.repl");
  lua_pop(L, 2);
}

/* ---- the program ---- */

/* require("moonshard.cli").main(arguments) -> exit status. */
static int run_command_line(lua_State *L, int count, char **arguments) {
  lua_getglobal(L, "require");
  lua_pushstring(L, "moonshard.cli");
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "main");
  lua_createtable(L, count, 0);
  for (int i = 1; i < count; i++) {
    lua_pushstring(L, arguments[i]);
    lua_rawseti(L, -2, i);
  }
  lua_call(L, 1, 1);
  return (int)lua_tointeger(L, -1);
}

/* Turns a failed write of standard output into a failed run: a full disk, or a reader that is gone (SIGPIPE ends the
 * program by itself, unless the program around it ignores that). */
static int check_printed(int status) {
  int failed = fflush(stdout) != 0;
  int why = errno;
  if ((!failed && !ferror(stdout)) || status) return status;
  fprintf(stderr, "moonshard: standard output: %s\n",
          failed ? strerror(why) : "part of the output could not be written");
  return STATUS_FAILED_RUN;
}

struct program {
  int count, status;
  char **arguments;
};

static int run_protected(lua_State *L) {
  struct program *program = lua_touserdata(L, 1);
  luaL_openlibs(L);
  add_searcher(L);
  add_host(L);
  program->status = run_command_line(L, program->count, program->arguments);
  return 0;
}

/* The shell of a script has its background jobs ignore Ctrl-C's signal, and other programs ignore or block SIGTERM in
 * what they start. This process receives both while its ranks run, whatever it inherited, so neither it nor a rank may
 * lose one before. SIGHUP stays ignored, as nohup means it. */
static void end_by_requests(void) {
  sigset_t requests;
  sigemptyset(&requests);
  for (int i = 0; i < 2; i++) {
    const int number = i ? SIGTERM : SIGINT;
    signal(number, SIG_DFL);
    sigaddset(&requests, number);
  }
  sigaddset(&requests, SIGHUP);
  sigprocmask(SIG_UNBLOCK, &requests, NULL);
}

int main(int count, char **arguments) {
  struct program program = {.count = count, .arguments = arguments};
  end_by_requests();
  if (ms_descriptors_fill() || ms_link_take() || ms_token_hide()) {
    fprintf(stderr, "moonshard: %s\n", ms_error_message());
    return STATUS_FAILED_RUN;
  }
  signal(SIGXFSZ, SIG_IGN); /* a write beyond `ulimit -f` then fails with EFBIG, which is reported */
  lua_State *L = luaL_newstate();
  if (!L) {
    fputs("moonshard: out of memory: cannot create a Lua state\n", stderr);
    return STATUS_FAILED_RUN;
  }
  if (lua_cpcall(L, run_protected, &program)) {
    const char *message = lua_tostring(L, -1);
    fprintf(stderr, "moonshard: %s\n", message ? message : "failed without a message");
    program.status = STATUS_FAILED_RUN;
  }
  lua_close(L);
  return check_printed(program.status);
}
