/* repl.h - the C part of the REPL: Ctrl-C stops a line, input from a terminal or a pipe, texts exchanged between ranks.
 *
 * repl.c exports it to Lua as the module moonshard.host.repl; repl_stop.c handles signals, repl_input.c waits for
 * bytes, repl_editor.c edits lines. All functions are for the one thread that runs Lua.
 */
#ifndef MS_HOST_REPL_H
#define MS_HOST_REPL_H

#include <lua.h>
#include <stddef.h>

#include "comm/group/world.h"

/* Opens the module; a loader for package.preload. */
int ms_repl_open(lua_State *L);

/* ---- repl_stop.c ---- */

/* Installs handlers of SIGINT and SIGTERM. Pops the error value that stops a line from the top of the stack. */
void ms_repl_stop_install(lua_State *L);
/* The number of Ctrl-C presses so far: the same on all ranks, since the terminal signals all of them. */
int ms_repl_stop_presses(void);
/* Between begin and end, Ctrl-C stops the running Lua code and the engine's waits. Outside, it is only noted.
 * presses: the number of presses when rank 0 sent the line. Later presses stop the line even if it has not begun
 * here. */
void ms_repl_stop_begin(int presses);
void ms_repl_stop_end(void);
/* 1 when Ctrl-C was pressed outside begin and end; clears the note. */
int ms_repl_stop_take(void);
/* 1 when SIGTERM has requested the end of the process. */
int ms_repl_stop_ended(void);
/* 1 while this rank waits for others between lines, for any time: SIGTERM then ends it at once. */
void ms_repl_stop_wait(int waits);

/* ---- repl_input.c ---- */

enum ms_repl_got {
  MS_REPL_GOT = 0,         /* a byte or a line */
  MS_REPL_END = 1,         /* end of the input */
  MS_REPL_INTERRUPTED = 2, /* Ctrl-C */
  MS_REPL_LOST = 3         /* another rank died, as the error record says; or SIGTERM ends this process */
};

/* Waits for the next byte of standard input, without a deadline. */
enum ms_repl_got ms_repl_input_byte(const ms_world *world, char *byte);
/* *line: a line without its newline, which the caller frees. Reads nothing beyond the newline. */
enum ms_repl_got ms_repl_input_line(const ms_world *world, char **line);

/* ---- repl_editor.c ---- */

/* Opens the editor on the terminal. history: the history file, which is read now and need not exist; NULL: keep no
 * file. size: number of lines in the history. Fails with MS_EIO. */
int ms_repl_editor_open(const char *history, int size);
void ms_repl_editor_close(void);
/* Edits a line; *line is valid until the next call. Tab calls the Lua function at stack index `completer` with the text
 * before the cursor; it returns the text to insert ("" for none), and the text to show below the line, or nil. */
enum ms_repl_got ms_repl_editor_read(lua_State *L, const ms_world *world, const char *prompt, int completer,
                                     const char **line);
/* Adds a line to the history and its file. Fails with MS_EIO if the file cannot be written. */
int ms_repl_editor_remember(const char *line);

#endif
