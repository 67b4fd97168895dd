/* descriptors.h - standard descriptors that were closed before the program began (`2>&-`, a careless daemon).
**
** Whatever is opened next would get their numbers, and what somebody prints would then be written into it: into shared
** memory, or into a checkpoint.
*/
#ifndef MS_BASE_DESCRIPTORS_H
#define MS_BASE_DESCRIPTORS_H

/* Opens /dev/null where one of the descriptors 0, 1 and 2 is closed. Fails with MS_EIO. */
int ms_descriptors_fill(void);

#endif
