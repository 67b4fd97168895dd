/* instruction_sets.h - what this processor lets the CPU's kernels use. Kernels of other instruction sets round
 * differently, so ranks that must compute the same bits need the same.
 */
#ifndef MS_KERNELS_CPU_INSTRUCTION_SETS_H
#define MS_KERNELS_CPU_INSTRUCTION_SETS_H

#include <stddef.h>

/* "x86-64-v4 with bf16, oneDNN 2.6.3 with 0x7ef". */
void ms_cpu_instruction_sets(char *text, size_t bytes);

#endif
