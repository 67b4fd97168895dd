/* xxh3.h - XXH3 (xxhash.h) with the widest vectors that the processor has: the same digests. Debian's library computes with
** SSE2 unless it is asked through its dispatcher, which is 2.5 times as fast with AVX-512 (16 and 40 GB/s in one core's second
** cache level on a Sapphire Rapids).
*/
#ifndef MS_BASE_XXH3_H
#define MS_BASE_XXH3_H

#if defined __x86_64__
  #include <xxh_x86dispatch.h>
#else
  #include <xxhash.h>
#endif

#endif
