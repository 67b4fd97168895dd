/* ranks.h - runs a function as the ranks of a job: as threads of this process, where the thread sanitizer sees what
 * ranks do to each other, or as forked processes, which is what a user runs. */
#ifndef MS_TESTS_RANKS_H
#define MS_TESTS_RANKS_H

#include <stddef.h>
#include <string.h>
#include <sys/types.h>

#include "base/error.h"
#include "comm/group/world.h"
#include "tests/c/support/message.h"
#include "moonshard.h"

/* Expectations inside a rank's body, which fails by its status: cmocka's own leave by longjmp, out of the thread. */
#define EXPECT(condition, ...) \
  if (!(condition)) return MS_FAIL(MS_EINTERNAL, __VA_ARGS__)

/* The call fails with this status and a message that holds these facts; then the record is clear again. */
#define EXPECT_FAILS(call, code, facts)                                                                             \
  do {                                                                                                              \
    int got_ = (call);                                                                                              \
    EXPECT(got_ == (code), "%s instead of %s: %s", ms_status_name(got_), ms_status_name(code), ms_error_message()); \
    const char *lacks_ = message_lacks(ms_error_message(), (facts));                                                \
    if (lacks_) return ms_error_prefix("expected \"%s\" in", lacks_);                                               \
    ms_error_clear();                                                                                               \
  } while (0)

/* What a rank does; returns a status. */
typedef int rank_body(ms_world *world, void *context);

/* Both fail the test, with the rank and its message, when a rank's status is not MS_OK; the other ranks are aborted
 * then. */
void run_ranks_as_threads(int ranks, rank_body *body, void *context);
void run_ranks_as_processes(int ranks, rank_body *body, void *context);
/* Waits until all processes have ended, and writes what waitpid says of each into status [count]. Ends those that run
 * after RANK_SECONDS: a rank that waits for what another will not do fails its test and does not stop the run. */
enum { RANK_SECONDS = 200 };
void wait_for_ranks(const pid_t *pid, int count, int *status);
/* Zero-filled memory that threads and forked processes share. */
void *share_memory(size_t bytes);
void unshare_memory(void *memory, size_t bytes);

#endif
