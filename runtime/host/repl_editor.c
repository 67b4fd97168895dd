/* repl_editor.c - edits lines in a terminal with libedit: emacs keys (or those of ~/.editrc), history, completion.
 *
 * libedit reads characters through repl_input.c, so a waiting prompt notices Ctrl-C and the death of a rank. The
 * history file is rewritten after every line, so nothing is lost when the session is killed.
 *
 * Terminals are asked to put marks around pasted text (bracketed paste), whose tabs are no requests for completion.
 */
#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "base/error.h"
#include "host/repl.h"

static struct editor {
  EditLine *line;
  History *history;
  char *path; /* of the history file, or NULL */
  int size;
  int marks_pastes; /* the terminal is asked for marks */
  int pasting;      /* between two of them: lines of one paste are several reads */
  /* During the current read: */
  lua_State *L;
  int completer;
  const ms_world *world;
  const char *prompt;
  enum ms_repl_got got;
} editor;

static char *tell_prompt(EditLine *line) {
  (void)line;
  return (char *)(uintptr_t)editor.prompt;
}

/* Reads a character for libedit: returns 1, 0 at the end of input, or -1 after an interrupt or a loss. */
static int read_character(EditLine *line, wchar_t *character) {
  (void)line;
  mbstate_t state = {0};
  for (;;) {
    char byte;
    editor.got = ms_repl_input_byte(editor.world, &byte);
    if (editor.got != MS_REPL_GOT) return editor.got == MS_REPL_END ? 0 : -1;
    size_t taken = mbrtowc(character, &byte, 1, &state);
    if (taken == (size_t)-2) continue; /* the character has more bytes */
    if (taken == (size_t)-1) *character = L'?';
    return 1;
  }
}

static unsigned char begin_paste(EditLine *line, int key) {
  (void)line, (void)key;
  editor.pasting = 1;
  return CC_NORM;
}

static unsigned char end_paste(EditLine *line, int key) {
  (void)line, (void)key;
  editor.pasting = 0;
  return CC_NORM;
}

static int is_blank(const char *begin, const char *end) {
  while (begin < end && (*begin == ' ' || *begin == '\t')) begin++;
  return begin == end;
}

/* Handles Tab: a pasted one is itself, and one at the beginning of a line indents. Any other one calls the Lua
 * completer, inserts its text and prints its list. */
static unsigned char complete(EditLine *line, int key) {
  (void)key;
  lua_State *L = editor.L;
  const LineInfo *info = el_line(line);
  if (editor.pasting) return el_insertstr(line, "\t") ? CC_ERROR : CC_REFRESH;
  if (is_blank(info->buffer, info->cursor)) return el_insertstr(line, "  ") ? CC_ERROR : CC_REFRESH;
  unsigned char action = CC_REFRESH_BEEP;
  int top = lua_gettop(L);
  lua_pushvalue(L, editor.completer);
  lua_pushlstring(L, info->buffer, (size_t)(info->cursor - info->buffer));
  if (!lua_pcall(L, 1, 2, 0)) {
    const char *insertion = lua_tostring(L, -2), *listing = lua_tostring(L, -1);
    if (insertion && *insertion && !el_insertstr(line, insertion)) action = CC_REFRESH;
    if (listing) {
      printf("\n%s\n", listing);
      fflush(stdout);
      action = CC_REDISPLAY;
    }
  }
  lua_settop(L, top);
  return action;
}

static int set_history(int size) {
  HistEvent event;
  editor.history = history_init();
  if (!editor.history) return MS_FAIL(MS_ENOMEM, "out of memory: cannot create the history of lines");
  history(editor.history, &event, H_SETSIZE, size);
  history(editor.history, &event, H_SETUNIQUE, 1);
  if (editor.path) history(editor.history, &event, H_LOAD, editor.path);
  el_set(editor.line, EL_HIST, history, editor.history);
  return MS_OK;
}

/* Keys of vi's mode cannot be told of the marks: Escape alone means something there. */
static void set_paste_marks(void) {
  const char *keys = NULL, *terminal = getenv("TERM");
  if (el_get(editor.line, EL_EDITOR, &keys) || !keys || strcmp(keys, "emacs") != 0) return;
  if (!terminal || !strcmp(terminal, "dumb")) return;
  el_set(editor.line, EL_ADDFN, "moonshard-paste", "Begin of pasted text", begin_paste);
  el_set(editor.line, EL_ADDFN, "moonshard-paste-end", "End of pasted text", end_paste);
  el_set(editor.line, EL_BIND, "\\e[200~", "moonshard-paste", NULL);
  el_set(editor.line, EL_BIND, "\\e[201~", "moonshard-paste-end", NULL);
  editor.marks_pastes = 1;
}

/* Only while a line is read: what the line runs can read the terminal, too. */
static void ask_for_paste_marks(int on) {
  if (!editor.marks_pastes) return;
  fputs(on ? "\033[?2004h" : "\033[?2004l", stdout);
  fflush(stdout);
}

int ms_repl_editor_open(const char *path, int size) {
  int rc = MS_OK;
  setlocale(LC_CTYPE, "");
  if (!strcmp(setlocale(LC_CTYPE, NULL), "C")) setlocale(LC_CTYPE, "C.UTF-8");
  editor.line = el_init("moonshard", stdin, stdout, stderr);
  if (!editor.line) return MS_FAIL(MS_EIO, "lines cannot be edited in this terminal (TERM is %s)", getenv("TERM"));
  if (path) MS_GOTO((editor.path = ms_strdup(path)) ? MS_OK : MS_ENOMEM);
  el_set(editor.line, EL_PROMPT, tell_prompt);
  el_set(editor.line, EL_SIGNAL, 0);
  el_set(editor.line, EL_EDITOR, "emacs");
  el_set(editor.line, EL_GETCFN, read_character);
  MS_GOTO(set_history(size));
  el_set(editor.line, EL_ADDFN, "moonshard-complete", "Complete a name", complete);
  el_set(editor.line, EL_BIND, "^I", "moonshard-complete", NULL);
  el_set(editor.line, EL_BIND, "^R", "em-inc-search-prev", NULL);
  el_source(editor.line, NULL);
  set_paste_marks();
  return MS_OK;
fail:
  ms_repl_editor_close();
  return rc;
}

void ms_repl_editor_close(void) {
  if (editor.line) el_end(editor.line);
  if (editor.history) history_end(editor.history);
  free(editor.path);
  memset(&editor, 0, sizeof editor);
}

enum ms_repl_got ms_repl_editor_read(lua_State *L, const ms_world *world, const char *prompt, int completer,
                                     const char **line) {
  int length = 0;
  editor.L = L;
  editor.world = world;
  editor.prompt = prompt;
  editor.completer = completer;
  editor.got = MS_REPL_GOT;
  el_set(editor.line, EL_PREP_TERM, 1); /* before the prompt is shown, so that an early Ctrl-D is read as a key */
  ask_for_paste_marks(1);
  *line = el_gets(editor.line, &length);
  ask_for_paste_marks(0);
  if (*line && length > 0) return MS_REPL_GOT;
  editor.pasting = 0;
  if (editor.got == MS_REPL_GOT) editor.got = MS_REPL_END; /* Ctrl-D in an empty line */
  el_reset(editor.line);
  fputs(editor.got == MS_REPL_INTERRUPTED ? "^C\n" : "\n", stdout);
  fflush(stdout);
  return editor.got;
}

/* Creates the folders of a path, readable only by their owner. */
static int make_folders(const char *path) {
  char folder[4096];
  snprintf(folder, sizeof folder, "%s", path);
  for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    if (mkdir(folder, 0700) && errno != EEXIST) return MS_FAIL(MS_EIO, "folder %s: %s", folder, strerror(errno));
    *slash = '/';
  }
  return MS_OK;
}

int ms_repl_editor_remember(const char *line) {
  HistEvent event;
  history(editor.history, &event, H_ENTER, line);
  if (!editor.path) return MS_OK;
  MS_TRY(make_folders(editor.path));
  mode_t before = umask(0077);
  int saved = history(editor.history, &event, H_SAVE, editor.path);
  umask(before);
  return saved < 0 ? MS_FAIL(MS_EIO, "history file %s: %s", editor.path, strerror(errno)) : MS_OK;
}
