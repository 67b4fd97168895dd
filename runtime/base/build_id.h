/* build_id.h - what tells builds of one version apart. Ranks of one job must run the same build: another compiler,
 * other flags or a changed line can compute other bits, which no version number shows.
 */
#ifndef MS_BASE_BUILD_ID_H
#define MS_BASE_BUILD_ID_H

enum { MS_BUILD_ID = 33 }; /* bytes of the text, with its end */

/* "moonshard build 0123456789abcdef": a hash of the engine's objects, which the build writes. */
extern const char ms_build_id[];

#endif
