/* runtime/plan_content.h - is a well-formed plan one that trains? What the checker's rules say of a
 * single instruction in its program, and of what a program must have.
 */
#ifndef ZINF_RUNTIME_PLAN_CONTENT_H
#define ZINF_RUNTIME_PLAN_CONTENT_H

#include "runtime/plan.h"

/* After zinf_plan_validate. Nothing is written with a stride or over another operand (C3); what one
 * rank owns only that rank touches (C6); scalars are in their slots, each unit is made, loaded,
 * saved and updated once, batches and losses are those of the job (C7). Linear in the plan. */
zinf_status zinf_plan_check_content(const zinf_plan *plan, zinf_error *err);

#endif
