/* interrupt.h - whether interrupts are held back now (see ms_interrupt_hold in moonshard.h), and SIGTERM as a flag. */
#ifndef MS_BASE_INTERRUPT_H
#define MS_BASE_INTERRUPT_H

/* Seconds within which a SIGTERM that comes again is the same request. */
#define MS_SAME_REQUEST 2.0

int ms_interrupts_held(void);
/* From here on SIGTERM sets a flag; a second request ends the process. */
void ms_termination_catch(void);
int ms_terminated(void);

#endif
