/* interrupt.h - whether interrupts are held back now: see ms_interrupt_hold in moonshard.h. */
#ifndef MS_BASE_INTERRUPT_H
#define MS_BASE_INTERRUPT_H

int ms_interrupts_held(void);

#endif
