/* control_groups.h - the control groups of this process, of both versions: its own and all above it, since each limits
 * all groups below it. Who wants to know what a controller grants looks into each of their folders. */
#ifndef MS_BASE_CONTROL_GROUPS_H
#define MS_BASE_CONTROL_GROUPS_H

enum { MS_CONTROL_GROUP_BYTES = 1300 }; /* of a folder, with its end */

/* folder: of one group, which need not exist: a container can show its own group as the topmost. version: 1 or 2. */
typedef void ms_control_group_visit(void *context, const char *folder, int version);

/* Visits the groups that a controller ("cpu", "memory") has for this process, from the innermost to the topmost. root:
 * "", or in tests a folder used in place of /. */
void ms_control_groups_visit(const char *root, const char *controller, ms_control_group_visit *visit, void *context);

#endif
