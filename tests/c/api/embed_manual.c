/* embed_manual.c - the program in the comment at the top of moonshard.h, as the build extracts it: it compiles as C99
 * without a warning, trains, and ends with 0. embedding_spec.lua runs it on two ranks.
 */
#include <manual_program.h>
