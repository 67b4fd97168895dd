/* interrupt.h - whether interrupts are deferred now (see ms_interrupt_defer in moonshard.h), and SIGTERM as a flag. */
#ifndef MS_BASE_INTERRUPT_H
#define MS_BASE_INTERRUPT_H

#include <stdatomic.h>
#include <stdint.h>

/* Seconds within which a SIGTERM that comes again is the same request. */
#define MS_SAME_REQUEST 2.0

int ms_interrupts_deferred(void);
/* From here on SIGTERM sets a flag; a second request ends the process. where: SIGTERM ends it as ever while that is 0; NULL:
** it always sets the flag. */
void ms_termination_catch(const _Atomic uint32_t *where);
/* `where` is no longer there to be read: SIGTERM ends the process as ever, if it was caught for that. */
void ms_termination_forget(const _Atomic uint32_t *where);
int ms_terminated(void);

#endif
