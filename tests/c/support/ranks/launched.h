/* launched.h - runs of ms_launch, each in a process of its own, so that signals can be sent to a launcher and its
 * standard streams can be read; what ranks tell the test; and that nothing of them is left.
 */
#ifndef MS_TESTS_LAUNCHED_H
#define MS_TESTS_LAUNCHED_H

#include "tests/c/support/check.h"
#include "tests/c/support/ranks/ranks.h"

#include <sched.h>
#include <sys/types.h>

#include "comm/group/world.h"
#include "host/launcher.h"

enum { MAX_RANKS = 4, OUTPUT_BYTES = 65536, STATUS_FAILED_RUN = 3 };

/* Shared by the test and its ranks. */
typedef struct blackboard {
  pid_t pid[MAX_RANKS], program; /* program: one that a rank started */
  cpu_set_t cores[MAX_RANKS], team_cores[MAX_RANKS];
  int threads[MAX_RANKS], counted[MAX_RANKS];
  int ready;
} blackboard;

typedef struct outcome {
  int status; /* the launcher's exit status, or 1000 + signal */
  double seconds;
  char out[OUTPUT_BYTES], err[OUTPUT_BYTES];
} outcome;

extern blackboard *board;
/* The result of the last launch. */
extern outcome result;

int with_board(void **state);
int without_board(void **state);
#define RUN_TEST(name) cmocka_unit_test_setup_teardown(name, with_board, without_board)

/* In a rank: joins and writes its process to the board; 0 or an exit status. */
int join(ms_world **world);
/* In a rank: tells why when rc is an error, and leaves; the exit status. */
int leave(ms_world *world, int rc);
/* In a rank: counts itself ready. */
void be_ready(void);

/* A process that launches, with its streams in pipes. */
pid_t start(const ms_launch_config *config, int *out, int *err);
/* Reads the streams to their ends, so every process that has them must end too. Fills result. */
void finish(pid_t pid, int out, int err, double began);
/* The same with a terminal of so many columns as its controlling one; *screen is the other side of it. */
pid_t start_at_terminal(const ms_launch_config *config, int columns, int *screen);
/* What the screen showed is in result.out, with a return before every line feed. */
void finish_at_terminal(pid_t pid, int screen, double began);
void launch_config(const ms_launch_config *config);
void launch_ranks(int ranks, int (*rank_main)(void *), void *context);
void wait_until_ready(int ranks);
/* Three ranks; once they are ready the launcher gets the signals, a tenth of a second between them. */
void launch_and_signal(int (*rank_main)(void *), double grace, const int *signals, int n);

/* What /proc says of a process: 'R', 'S', 'T', 'Z', ..., or 0 when there is none. */
char state_of(pid_t pid);
/* Waits up to two seconds for a process to end. A zombie has ended. */
int is_gone(pid_t pid);
int count_lines(const char *text);

#endif
