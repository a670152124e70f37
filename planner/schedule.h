/* planner/schedule.h - waits: exactly the conflicts of program order that queue order and the
 * other waits do not already enforce.
 */
#ifndef ZINF_PLANNER_SCHEDULE_H
#define ZINF_PLANNER_SCHEDULE_H

#include "planner/build.h"

/* Comes after zinf_place: conflicts are between addresses. */
void zinf_schedule(zinf_builder *b);

#endif
