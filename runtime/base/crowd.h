/* crowd.h - whether other processes compete for the cores of this one. Who waits for another thread spins while it has its
** core to itself, and sleeps at once where it has not: a thread that spins keeps the core that the other needs. */
#ifndef MS_BASE_CROWD_H
#define MS_BASE_CROWD_H

/* 1 when the system has lately taken cores away from this process's threads, and for a while after. A few nanoseconds; any
** thread. */
int ms_crowded(void);

/* Between two looks of one who spins: leaves the core's other hardware thread more of it. */
static inline void ms_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#endif
