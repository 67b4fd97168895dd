/* repl.c - the Lua module moonshard.host.repl: input, Ctrl-C, and texts that ranks exchange between lines.
 *
 * A user can think for any length of time between lines, so exchanges have no deadline. Functions take a world as the
 * cdata pointer that moonshard.world keeps.
 */
#include "host/repl.h"

#include <lauxlib.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/env.h"
#include "base/error.h"
#include "comm/group/group.h"
#include "host/launcher/link.h"

static ms_group everyone;

static ms_world *check_world(lua_State *L, int index) {
  const void *pointer = lua_topointer(L, index);
  luaL_argcheck(L, pointer != NULL, index, "an ms_world * expected");
  return *(ms_world *const *)pointer;
}

/* Pushes nil and the error's message, and clears the error. */
static int push_failure(lua_State *L) {
  lua_pushnil(L);
  lua_pushstring(L, ms_error_message());
  ms_error_clear();
  return 2;
}

static int push_got(lua_State *L, enum ms_repl_got got) {
  static const char *const names[] = {"got", "end", "interrupt", "lost"};
  lua_pushnil(L);
  lua_pushstring(L, names[got]);
  if (got != MS_REPL_LOST) return 2;
  lua_pushstring(L, ms_error_message());
  ms_error_clear();
  return 3;
}

/* stop_with(error): from now on the REPL handles Ctrl-C, which raises this error in the running line. */
static int stop_with(lua_State *L) {
  lua_settop(L, 1);
  ms_repl_stop_install(L);
  return 0;
}

/* presses() -> how often Ctrl-C was pressed so far */
static int count_presses(lua_State *L) {
  lua_pushinteger(L, ms_repl_stop_presses());
  return 1;
}

/* 0 on nodes without the terminal, whose launchers were started by hand: only presses at their own terminals come to
 * them. */
static int ranks_share_presses(void) {
  int node;
  return ms_link_get() || ms_env_int("MOONSHARD_NODE", 0, 0, INT_MAX, &node) || node == 0;
}

/* stoppable(function, handler, presses) -> true and a result, or false and the handler's result, like xpcall; but
 * Ctrl-C stops the function, and only the function. presses: the number of presses when the line was sent. */
static int stoppable(lua_State *L) {
  int presses = ranks_share_presses() ? (int)luaL_checkinteger(L, 3) : ms_repl_stop_presses();
  lua_settop(L, 2);
  lua_insert(L, 1);
  ms_repl_stop_begin(presses);
  int failed = lua_pcall(L, 0, 1, 1);
  ms_repl_stop_end();
  lua_pushboolean(L, !failed);
  lua_insert(L, 2);
  return 2;
}

/* is_terminal() -> true when standard input and output are terminals */
static int is_terminal(lua_State *L) {
  lua_pushboolean(L, isatty(STDIN_FILENO) && isatty(STDOUT_FILENO));
  return 1;
}

/* open_editor(history file or nil, lines of history) -> true, or nil and a message */
static int open_editor(lua_State *L) {
  if (ms_repl_editor_open(luaL_optstring(L, 1, NULL), (int)luaL_checkinteger(L, 2))) return push_failure(L);
  lua_pushboolean(L, 1);
  return 1;
}

static int close_editor(lua_State *L) {
  (void)L;
  ms_repl_editor_close();
  return 0;
}

/* edit(world, prompt, completer) -> line, or nil, "end" or "interrupt" or "lost", message */
static int edit(lua_State *L) {
  const char *line;
  lua_settop(L, 3);
  enum ms_repl_got got = ms_repl_editor_read(L, check_world(L, 1), luaL_checkstring(L, 2), 3, &line);
  if (got != MS_REPL_GOT) return push_got(L, got);
  lua_pushstring(L, line);
  return 1;
}

/* remember(line) -> true, or nil and a message */
static int remember(lua_State *L) {
  if (ms_repl_editor_remember(luaL_checkstring(L, 1))) return push_failure(L);
  lua_pushboolean(L, 1);
  return 1;
}

/* read(world) -> line of standard input, or as edit */
static int read_line(lua_State *L) {
  char *line = NULL;
  enum ms_repl_got got = ms_repl_input_line(check_world(L, 1), &line);
  if (got != MS_REPL_GOT) return push_got(L, got);
  lua_pushstring(L, line);
  free(line);
  return 1;
}

/* join_ranks(world) -> true, or nil and a message: opens the group of all ranks for all_gather_texts. Collective. */
static int join_ranks(lua_State *L) {
  ms_world *world = check_world(L, 1);
  if (ms_group_open(world, ms_world_size(world), NULL, "session", &everyone)) return push_failure(L);
  /* A rank of another host can have run the line, and given up in it, before this one has got it. */
  everyone.outlasts = 1;
  lua_pushboolean(L, 1);
  return 1;
}

/* Waits for other ranks have no deadline: the next line comes when a person types it. */
static void begin_wait(ms_world *world) {
  ms_repl_stop_wait(1);
  ms_world_wait_for_person(world, 1);
}

static void end_wait(ms_world *world) {
  ms_world_wait_for_person(world, 0);
  ms_repl_stop_wait(0);
}

/* all_gather_texts(world, text) -> every rank's text, rank 0's first; or nil and a message. Collective. */
static int all_gather_texts(lua_State *L) {
  ms_world *world = check_world(L, 1);
  char **texts;
  begin_wait(world);
  int failed = ms_group_all_gather_text(&everyone, luaL_checkstring(L, 2), &texts);
  end_wait(world);
  if (failed) return push_failure(L);
  lua_createtable(L, ms_world_size(world), 0);
  for (int rank = 0; rank < ms_world_size(world); rank++) {
    lua_pushstring(L, texts[rank]);
    lua_rawseti(L, -2, rank + 1);
  }
  ms_group_free_texts(&everyone, texts);
  return 1;
}

/* recover(world) -> true, or nil and a message. Collective. */
static int recover(lua_State *L) {
  ms_world *world = check_world(L, 1);
  begin_wait(world);
  int failed = ms_world_recover(world);
  end_wait(world);
  if (failed) return push_failure(L);
  lua_pushboolean(L, 1);
  return 1;
}

int ms_repl_open(lua_State *L) {
  static const luaL_Reg functions[] = {{"stop_with", stop_with},
                                       {"stoppable", stoppable},
                                       {"presses", count_presses},
                                       {"is_terminal", is_terminal},
                                       {"open_editor", open_editor},
                                       {"edit", edit},
                                       {"remember", remember},
                                       {"close_editor", close_editor},
                                       {"read", read_line},
                                       {"all_gather_texts", all_gather_texts},
                                       {"recover", recover},
                                       {"join_ranks", join_ranks},
                                       {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, functions);
  return 1;
}
