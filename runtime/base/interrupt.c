/* interrupt.c - Ctrl-C and SIGTERM as flags.
 *
 * Ctrl-C is polled by loops and waits.
 *
 * The handler is installed without SA_RESTART: a blocked system call returns, and its caller looks at the flag. A
 * second Ctrl-C while the flag still stands means that nobody polls; it ends the process the ordinary way.
 * Installing again clears the flag, so a program can start its next task afresh. While interrupts are deferred the flag
 * is kept, and seen later: what ranks must do together or not at all is not torn apart.
 *
 * SIGTERM is caught where a program saves before it ends, and asks when it suits. Its handler restarts system calls.
 * One that comes again shortly after is no second request: programs send it to a process, and to the group that it is
 * in.
 */
#include "base/interrupt.h"

#include "base/clock.h"
#include "moonshard.h"

#include <signal.h>
#include <stddef.h>

static atomic_int interrupted, deferred;
static _Atomic int64_t terminated_at; /* ns; 0: not yet */
static const _Atomic uint32_t always = 1, never;
static const _Atomic uint32_t *_Atomic caught = &never; /* where it stands whether SIGTERM is caught */

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
