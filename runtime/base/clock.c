/* clock.c - the scale of waits whose duration no caller can configure. */
#include "base/clock.h"

double ms_wait_scale = 1;
