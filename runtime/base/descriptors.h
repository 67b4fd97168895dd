/* descriptors.h - standard descriptors that were closed before the program started (`2>&-`, a careless daemon).
 *
 * The next files opened would get their numbers, and printed text would end up in them: in shared memory, or in a
 * checkpoint.
 */
#ifndef MS_BASE_DESCRIPTORS_H
#define MS_BASE_DESCRIPTORS_H

/* Opens /dev/null for each of the descriptors 0, 1 and 2 that is closed. Fails with MS_EIO. */
int ms_descriptors_fill(void);

#endif
