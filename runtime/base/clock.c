/* clock.c - how long waits are that no caller chooses. */
#include "base/clock.h"

double ms_wait_scale = 1;
