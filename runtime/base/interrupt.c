/* interrupt.c - Ctrl-C and SIGTERM as flags.
 *
 * Loops and waits poll the flag of Ctrl-C.
 *
 * Its handler is installed without SA_RESTART: a blocked system call returns, and its caller checks the flag. A second
 * Ctrl-C while the flag is still set means that no code polls it, and ends the process as usual. Installing the handler
 * again clears the flag, so that a program can start its next task. While interrupts are deferred, polls do not see the
 * flag: operations that all ranks complete or none are not interrupted.
 *
 * SIGTERM is caught in programs that save before they end; they poll its flag between steps. Its handler restarts
 * system calls. A second SIGTERM shortly after the first one is ignored, because some senders signal the process and
 * also its process group.
 */
#include "base/interrupt.h"

#include "base/clock.h"
#include "moonshard.h"

#include <signal.h>
#include <stddef.h>

static atomic_int interrupted, deferred;
static _Atomic int64_t terminated_at; /* ns; 0: not yet */
static const _Atomic uint32_t always = 1, never;
static const _Atomic uint32_t *_Atomic caught = &never; /* whether SIGTERM is caught */

static void end_process(int signal_number) {
  struct sigaction action = {.sa_handler = SIG_DFL};
  sigaction(signal_number, &action, NULL);
  raise(signal_number); /* held back until the handler returns, then fatal */
}

static void on_interrupt(int signal_number) {
  if (atomic_exchange(&interrupted, 1)) end_process(signal_number);
}

static void on_termination(int signal_number) {
  if (!atomic_load(atomic_load(&caught))) {
    end_process(signal_number);
    return;
  }
  int64_t now = (int64_t)(1e9 * ms_clock()), first = 0;
  if (atomic_compare_exchange_strong(&terminated_at, &first, now)) return;
  if (now - first > (int64_t)(1e9 * ms_wait_scale * MS_SAME_REQUEST)) end_process(signal_number);
}

void ms_interrupt_install(void) {
  struct sigaction action = {.sa_handler = on_interrupt};
  sigemptyset(&action.sa_mask);
  atomic_store(&interrupted, 0);
  atomic_store(&deferred, 0);
  sigaction(SIGINT, &action, NULL);
}

void ms_interrupt_set(int on) { atomic_store(&interrupted, on); }

void ms_interrupt_defer(int change) { atomic_fetch_add(&deferred, change); }

int ms_interrupts_deferred(void) { return atomic_load_explicit(&deferred, memory_order_relaxed) != 0; }

int ms_interrupted(void) {
  return atomic_load_explicit(&interrupted, memory_order_relaxed) && !ms_interrupts_deferred();
}

void ms_termination_catch(const _Atomic uint32_t *where) {
  atomic_store(&caught, where ? where : &always);
  struct sigaction action = {.sa_handler = on_termination, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, NULL);
}

void ms_termination_forget(const _Atomic uint32_t *where) { atomic_compare_exchange_strong(&caught, &where, &never); }

int ms_terminated(void) { return atomic_load_explicit(&terminated_at, memory_order_relaxed) != 0; }
