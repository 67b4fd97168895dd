/* testing.h - orders for faults and delays: exported by the library, but in no header that is installed.
 *
 * The command line offers delays (--inject-delay); tests declare what they need of this to LuaJIT by themselves.
 */
#ifndef MS_BASE_TESTING_H
#define MS_BASE_TESTING_H

#include "moonshard.h"

/* Errors on purpose in the calls by which files are written, in this process from here on: CALL:N:WHAT, e.g.
 * "write:3:ENOSPC" or "any:12:kill". Calls: open, write, sync, rename, mkdir, unlink, any; N: which of them, from 1,
 * "N+": and all after it; what: ENOSPC, EIO, EROFS, EDQUOT, EINVAL, short (half is written), slow (it takes 20 ms
 * more), kill (this process, by SIGKILL). NULL: none. */
MS_API int ms_inject_io(const char *spec);
/* Delays in execs that are made from now on, to see that nothing but time depends on who is late: POINT:TIME[@RANK]
 * with commas between, e.g. "gather:100ms,update:1s@2". Points: gather, reduce, replicate (before such a collective
 * starts), forward (after it), update (before it). Times in us, ms, s. NULL: none. */
MS_API int ms_inject_delay(const char *spec);

#endif
