/* interrupt.c - Ctrl-C as a flag that loops and waits poll.
**
** The handler is installed without SA_RESTART: a blocked system call returns, and its caller looks at the flag. A
** second Ctrl-C while the flag still stands means that nobody polls; it ends the process the ordinary way.
** Installing again clears the flag, so a program can start its next task afresh. While interrupts are held back the flag
** is kept, and seen later: what ranks must do together or not at all is not torn apart.
*/
#include "base/interrupt.h"

#include "moonshard.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

static atomic_int interrupted, held;

static void on_interrupt(int signal_number) {
  if (!atomic_exchange(&interrupted, 1)) return;
  struct sigaction action = {.sa_handler = SIG_DFL};
  sigaction(signal_number, &action, NULL);
  raise(signal_number); /* held back until this handler returns, then fatal */
}

void ms_interrupt_install(void) {
  struct sigaction action = {.sa_handler = on_interrupt};
  sigemptyset(&action.sa_mask);
  atomic_store(&interrupted, 0);
  atomic_store(&held, 0);
  sigaction(SIGINT, &action, NULL);
}

void ms_interrupt_set(int on) { atomic_store(&interrupted, on); }

void ms_interrupt_hold(int change) { atomic_fetch_add(&held, change); }

int ms_interrupts_held(void) { return atomic_load_explicit(&held, memory_order_relaxed) != 0; }

int ms_interrupted(void) { return atomic_load_explicit(&interrupted, memory_order_relaxed) && !ms_interrupts_held(); }
