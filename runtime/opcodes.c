/* runtime/opcodes.c - lookups in the instruction table and the names of the contract's enums. */
#include "runtime/opcodes.h"

#include <stddef.h>

#define LOOKUP(table, index) ((index) < sizeof(table) / sizeof *(table) ? (table)[index] : "?")
#define X(name, text) text,
static const char *const tiers[] = {ZINF_TIERS(X)};
static const char *const queues[] = {ZINF_QUEUES(X)};
static const char *const classes[] = {ZINF_CLASSES(X)};
static const char *const programs[] = {ZINF_PROGRAMS(X)};
static const char *const linears[] = {ZINF_LINEARS(X)};
#undef X

const char *zinf_tier_name(unsigned tier) { return LOOKUP(tiers, tier); }
const char *zinf_queue_name(unsigned queue) { return LOOKUP(queues, queue); }
const char *zinf_class_name(unsigned state_class) { return LOOKUP(classes, state_class); }
const char *zinf_program_name(unsigned program) { return LOOKUP(programs, program); }
const char *zinf_linear_name(unsigned linear) { return LOOKUP(linears, linear); }

const zinf_opcode_info *zinf_opcode_get(unsigned opcode)
{
    static const zinf_opcode_info table[ZINF_N_OPCODES] = {
#define X(name, text, queue_letters, access, links) {text, queue_letters, access, links},
        ZINF_OPCODES(X)
#undef X
    };
    return opcode < ZINF_N_OPCODES ? &table[opcode] : NULL;
}

const char *zinf_instr_links(const zinf_instr *instr)
{
    if (instr->opcode == ZINF_OP_ROPE && instr->attr[1])
        return "ODE";
    if (instr->opcode == ZINF_OP_CONVERT && instr->unit != ZINF_NONE)
        return "-14";
    return zinf_opcode_get(instr->opcode)->links;
}

zinf_access zinf_operand_access(const zinf_instr *instr, unsigned slot)
{
    const char letter = zinf_opcode_get(instr->opcode)->access[slot];
    bool accumulates = instr->flags & ZINF_FLAG_ACCUMULATE;

    if (letter == 'a' && slot >= 4 && (instr->opcode == ZINF_OP_CLASSIFIER ||
                                       instr->opcode == ZINF_OP_CLASSIFIER_BACKWARD))
        accumulates = instr->attr[3] >> (slot - 4) & 1;
    switch (letter | 0x20) {
    case 'r':
        return (zinf_access){true, false, letter == 'R'};
    case 'x':
        return (zinf_access){true, true, letter == 'X'};
    case 'a':
        return (zinf_access){accumulates, true, letter == 'A'};
    default: /* w, s */
        return (zinf_access){false, true, letter == 'W' || letter == 'S'};
    }
}

uint32_t zinf_instr_owner(const zinf_plan *plan, const zinf_instr *instr)
{
    if (instr->unit >= plan->n_units)
        return ZINF_NONE;
    switch (instr->opcode) {
    case ZINF_OP_CONVERT:
    case ZINF_OP_ACCUMULATE:
    case ZINF_OP_SUM_OF_SQUARES:
    case ZINF_OP_ADAM:
    case ZINF_OP_UPLOAD:
    case ZINF_OP_DOWNLOAD:
    case ZINF_OP_READ:
    case ZINF_OP_WRITE:
    case ZINF_OP_COPY:
    case ZINF_OP_INIT:
    case ZINF_OP_IMPORT:
    case ZINF_OP_EXPORT:
        return plan->units[instr->unit].owner;
    default:
        return ZINF_NONE;
    }
}

uint64_t zinf_operand_at(const zinf_plan *plan, const zinf_instr *instr, const zinf_operand *o)
{
    if (instr->unit >= plan->n_units || plan->units[instr->unit].owner == ZINF_NONE ||
        o->offset >= plan->machine.owned_bytes[o->tier])
        return o->offset;
    return o->offset + (plan->units[instr->unit].owner + (uint64_t)1) *
                           plan->machine.arena_bytes[o->tier];
}
