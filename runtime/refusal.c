/* runtime/refusal.c - see refusal.h. */
#include "runtime/refusal.h"

#include <inttypes.h>
#include <stdio.h>

#include "runtime/opcodes.h"

zinf_status zinf_refuse(const zinf_plan *plan, const char *rule, uint32_t program, uint32_t instr,
                        uint32_t after, const zinf_operand *o, const char *wrong, zinf_error *err)
{
    const uint32_t which[2] = {instr, after};
    char texts[2][200] = {"", ""}, bytes[200] = "";

    for (int i = 0; i < 2; i++)
        if (which[i] != ZINF_NONE)
            snprintf(texts[i], sizeof texts[i], "%s instruction %" PRIu32 " (%s \"%.80s\")",
                     i ? " after" : ",", which[i],
                     zinf_opcode_get(plan->instrs[which[i]].opcode)->name,
                     &plan->strings[plan->instrs[which[i]].name]);
    if (o)
        snprintf(bytes, sizeof bytes, ", %s bytes [%" PRIu64 ", %" PRIu64 ") \"%.80s\"",
                 zinf_tier_name(o->tier), o->offset, o->offset + o->bytes,
                 o->value >= ZINF_NO_NAME ? "" : &plan->strings[plan->values[o->value]]);
    return zinf_fail(err, ZINF_DOES_NOT_FIT, "%s: program %s%s%s%s: %s", rule,
                     zinf_program_name(program), texts[0], texts[1], bytes, wrong);
}
