/* repl_stop.c - Ctrl-C stops a line, not the session.
 *
 * A line is sent with the number of presses that rank 0 knew of, so that a press stops the line it was meant for on all
 * ranks: one that has come here before the line stops it as soon as it begins. With --hosts a press can also come later
 * here than on rank 0, when the next line runs already. There each press is a signal with its number.
 *
 * The handler sets the engine's interrupt flag, which ends waits for other ranks, and a hook that raises an error at
 * the next instruction of interpreted Lua code. Functions that catch the error to undo what they have begun, such as
 * a swap of weights, then have some instructions to do so. After these the hook raises at every instruction, so that a
 * pcall in a loop cannot swallow the error for good. While the engine defers interrupts, the hook does nothing.
 */
#include <lauxlib.h>
#include <signal.h>

#include "host/repl.h"

/* A line that ignores this many presses of Ctrl-C is inside code that never checks: then the process ends. */
enum { PATIENCE = 5 };
/* What a function may execute after the error, before it is raised again. */
enum { CLEAN_UP_INSTRUCTIONS = 10000 };

static lua_State *stopped_state;
static int stop_error = LUA_NOREF; /* in the registry */
static volatile sig_atomic_t listening, waiting, noted, ended;
static volatile sig_atomic_t presses, before; /* presses of Ctrl-C so far; those before the current line */
static volatile sig_atomic_t known;           /* presses that rank 0 had counted when it sent the current line */
static volatile sig_atomic_t raised;          /* how often the hook raised the error in the current line */
static int known_ahead;                       /* presses that rank 0 had not counted when it sent the previous line */

static void raise_error(lua_State *L, lua_Debug *at) {
  (void)at;
  if (!ms_interrupted()) return;
  raised++;
  if (raised == 1) lua_sethook(L, raise_error, LUA_MASKCOUNT, CLEAN_UP_INSTRUCTIONS);
  if (raised == 2) lua_sethook(L, raise_error, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
  lua_rawgeti(L, LUA_REGISTRYINDEX, stop_error);
  lua_error(L);
}

static void end_by(int number) {
  struct sigaction ordinary = {.sa_handler = SIG_DFL};
  sigaction(number, &ordinary, NULL);
  raise(number); /* blocked until the handler returns, then fatal */
}

static void stop_line(void) {
  ms_interrupt_set(1);
  /* Safe in a handler, as in the LuaJIT program: it only changes what the interpreter dispatches to. */
  lua_sethook(stopped_state, raise_error, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

static void on_interrupt(int number, siginfo_t *info, void *context) {
  (void)context;
  int numbered = info->si_code == SI_QUEUE;
  int press = numbered ? info->si_value.sival_int : presses + 1;
  if (press > presses) presses = press;
  if (numbered && press <= known) return; /* it was meant for an earlier line */
  noted = 1;
  if (!listening) return;
  if (presses - before >= PATIENCE) end_by(number);
  stop_line();
}

/* While a line is read, the editor must restore the terminal first, so the signal only sets `ended`. */
static void on_terminate(int number) {
  ended = 1;
  if (listening || waiting) end_by(number);
}

void ms_repl_stop_wait(int waits) {
  waiting = waits;
  if (waits && ended) end_by(SIGTERM); /* it came just before */
}

void ms_repl_stop_install(lua_State *L) {
  stop_error = luaL_ref(L, LUA_REGISTRYINDEX);
  stopped_state = L;
  /* No SA_RESTART: blocked calls return with EINTR and check. */
  struct sigaction action = {.sa_sigaction = on_interrupt, .sa_flags = SA_SIGINFO};
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, NULL);
  action.sa_handler = on_terminate;
  action.sa_flags = 0;
  sigaction(SIGTERM, &action, NULL);
}

void ms_repl_stop_begin(int presses_before) {
  /* Signals can merge, so this rank's count can differ from rank 0's by a constant. Only presses beyond the difference
   * known from the previous line are new. */
  int ahead = presses - presses_before;
  before = presses;
  known = presses_before;
  raised = 0;
  listening = 1;
  if (ended) end_by(SIGTERM); /* it came after this rank had got the line */
  if (ahead > known_ahead) stop_line();
  known_ahead = ahead > 0 ? ahead : 0;
}

void ms_repl_stop_end(void) {
  listening = 0;
  noted = 0;
  lua_sethook(stopped_state, NULL, 0, 0);
  ms_interrupt_set(0);
}

int ms_repl_stop_presses(void) { return presses; }

int ms_repl_stop_take(void) {
  int was = noted;
  noted = 0;
  return was;
}

int ms_repl_stop_ended(void) { return ended; }
