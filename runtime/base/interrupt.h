/* interrupt.h - whether interrupts are deferred (see ms_interrupt_defer in moonshard.h), and SIGTERM as a flag. */
#ifndef MS_BASE_INTERRUPT_H
#define MS_BASE_INTERRUPT_H

#include <stdatomic.h>
#include <stdint.h>

/* A second SIGTERM within this many seconds counts as the same request. */
#define MS_SAME_REQUEST 2.0

int ms_interrupts_deferred(void);
/* From now on SIGTERM sets a flag, and a second request ends the process. If `where` is not NULL, SIGTERM ends the
 * process as usual while *where is 0. */
void ms_termination_catch(const _Atomic uint32_t *where);
/* Call before `where` is unmapped: if SIGTERM was caught for it, SIGTERM ends the process as usual again. */
void ms_termination_forget(const _Atomic uint32_t *where);
int ms_terminated(void);

#endif
