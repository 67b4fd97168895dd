/* repl.h - what the REPL needs of C: Ctrl-C that stops a line, input from a terminal or a pipe, texts between ranks.
**
** repl.c offers all of it to Lua as the module moonshard.host.repl; repl_stop.c has the signals, repl_input.c waits for
** bytes, repl_editor.c edits lines. Everything belongs to the one thread that runs Lua.
*/
#ifndef MS_HOST_REPL_H
#define MS_HOST_REPL_H

#include <lua.h>
#include <stddef.h>

#include "comm/group/world.h"

/* Opens the module: a function of package.preload. */
int ms_repl_open(lua_State *L);

/* ---- repl_stop.c ---- */

/* Takes SIGINT and SIGTERM over. The error that stops a line is on top of the stack and is popped. */
void ms_repl_stop_install(lua_State *L);
/* How often Ctrl-C was pressed so far. A terminal tells all ranks, so this is the same number on all of them. */
int ms_repl_stop_presses(void);
/* Between begin and end Ctrl-C stops the Lua code that runs, and waits of the engine. Outside it is only noted.
** presses: when rank 0 sent the line. More of them are meant for the line, though it has not begun here. */
void ms_repl_stop_begin(int presses);
void ms_repl_stop_end(void);
/* Whether Ctrl-C was pressed while nobody listened; forgets it. */
int ms_repl_stop_take(void);
/* Whether the process was asked to end (SIGTERM). */
int ms_repl_stop_ended(void);

/* ---- repl_input.c ---- */

enum ms_repl_got {
  MS_REPL_GOT = 0,
  MS_REPL_END = 1,         /* of the input */
  MS_REPL_INTERRUPTED = 2, /* Ctrl-C */
  MS_REPL_LOST = 3         /* another rank died, which the error record tells; or this process shall end */
};

/* Waits for the next byte of standard input, for as long as it takes. */
enum ms_repl_got ms_repl_input_byte(const ms_world *world, char *byte);
/* A line without its end, malloc'ed; nothing beyond it is taken from the input. */
enum ms_repl_got ms_repl_input_line(const ms_world *world, char **line);

/* ---- repl_editor.c ---- */

/* Opens the editor on the terminal. history: its file, which is read now and need not exist; NULL: none is kept.
** size: lines of it. Fails with MS_EIO. */
int ms_repl_editor_open(const char *history, int size);
void ms_repl_editor_close(void);
/* Edits a line; it lives until the next call. Tab calls the Lua function at index `completer` with the text before the
** cursor; it returns what to insert ("" for nothing) and what to list below the line, or nil. */
enum ms_repl_got ms_repl_editor_read(lua_State *L, const ms_world *world, const char *prompt, int completer,
                                     const char **line);
/* Adds a line to the history and its file. MS_EIO when the file cannot be written. */
int ms_repl_editor_remember(const char *line);

#endif
