/* runtime/refusal.h - the sentence that refuses a plan: rule, program, instructions, bytes, why. */
#ifndef ZINF_RUNTIME_REFUSAL_H
#define ZINF_RUNTIME_REFUSAL_H

#include "runtime/plan.h"

#define ZINF_NO_NAME (ZINF_NONE - 1) /* value of bytes that no operand names */

/* instr, after: index or ZINF_NONE (after: whom it meets); o: or NULL. Always ZINF_DOES_NOT_FIT. */
zinf_status zinf_refuse(const zinf_plan *plan, const char *rule, uint32_t program, uint32_t instr,
                        uint32_t after, const zinf_operand *o, const char *wrong, zinf_error *err);

#endif
