/* phrases.h - building blocks of the reports. Internal to diagnose. */
#ifndef MS_COMM_DIAGNOSE_PHRASES_H
#define MS_COMM_DIAGNOSE_PHRASES_H

#include "base/text/text.h"
#include "comm/diagnose/report.h"

/* "rank 2", "ranks 0, 2-5". */
void ms_append_ranks(ms_text *text, const ms_rank_set *set);
/* "all_gather layers.3 (phase first of step 5)" */
void ms_append_op(ms_text *text, const ms_rank_op *op);
/* "1.2-3.4 ms"; one number when both are about equal. */
void ms_append_seconds(ms_text *text, double least, double most);
/* Where a rank is that waits for no other, after the verb ("is ", "was ", ""). now: the report is about the present,
 * not about an end. */
void ms_append_place(ms_text *text, const ms_rank_status *status, const char *verb, int now);

#endif
