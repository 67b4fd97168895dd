/* xxh3.h - XXH3 (xxhash.h) with the widest vectors of the processor; the digests are the same. Debian's library
 * computes with SSE2 unless it is called through its dispatcher, which is 2.5 times as fast with AVX-512 (16 and 40
 * GB/s from the second-level cache of one Sapphire Rapids core). */
#ifndef MS_BASE_XXH3_H
#define MS_BASE_XXH3_H

#if defined __x86_64__
  #include <xxh_x86dispatch.h>
#else
  #include <xxhash.h>
#endif

#endif
