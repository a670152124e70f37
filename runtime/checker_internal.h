/* runtime/checker_internal.h - what the checker's files share: checker.c runs the programs and
 * holds the rules about one instruction (C1, C2, C5, C6), checker_access.c those about bytes (C3,
 * C4), checker_step.c those about a whole program (C7, C8).
 */
#ifndef ZINF_RUNTIME_CHECKER_INTERNAL_H
#define ZINF_RUNTIME_CHECKER_INTERNAL_H

#include "runtime/checker_map.h"
#include "runtime/opcodes.h"

/* A program may unroll MOST_VISITS instructions beyond UNROLL of each, and the map of a tier may
 * do LEAST_WORK, and EACH_WORK more for every visit and unit. A GPT-2 in 128
 * tiles (139,279 instructions) takes less than 400. What needs more is refused, not waited for. */
enum { UNROLL = 3, GENERATION = 4, MOST_VISITS = 1 << 19, LEAST_WORK = 1 << 22, EACH_WORK = 1024 };
/* PARAM and GRAD are whole units; of one rank they are what its regions hold. */
typedef enum zinf_role {
    ROLE_NONE, ROLE_PARAM, ROLE_GRAD, ROLE_OPTIMIZER, ROLE_PARAM_SHARD, ROLE_GRAD_SHARD
} zinf_role;

/* What is known of a value. */
typedef struct zinf_content {
    uint64_t generation; /* of the latest production */
    uint32_t unit, role; /* unit ZINF_NONE: belongs to no region */
    bool on_entry;       /* some program reads it as its predecessor left it */
    bool batch;          /* tokens: micro-batch i is the i-th part */
} zinf_content;

typedef struct zinf_tally {
    uint32_t norm_sums[2]; /* contributions in the gradient whose norm was taken last */
    uint32_t updates;      /* ADAM, or INIT, IMPORT, EXPORT */
    uint32_t inputs, weights; /* LINEAR_BACKWARD_INPUT, _WEIGHT that served it */
    uint8_t uses;      /* bit 0: parameter read by the embedding, bit 1: by others */
    uint8_t step_uses; /* the same, in STEP */
} zinf_tally;

typedef struct zinf_checker {
    const zinf_plan *plan;
    zinf_error *err;
    zinf_map maps[ZINF_N_TIERS];
    zinf_content *contents;              /* [n_values] */
    zinf_tally *tallies;                 /* [n_units] */
    zinf_cell *pieces;                   /* of a copy; lo, hi: addresses at the source */
    uint32_t (*clocks)[ZINF_N_QUEUES];   /* per visit: what surely finished, itself included */
    uint32_t *first_visit, *visits;      /* per segment of the program */
    const uint32_t *before[ZINF_N_QUEUES]; /* clock of the latest visit in each queue, or NULL */
    uint32_t now[ZINF_N_QUEUES];         /* clock of the instruction visited */
    uint32_t next_clock[ZINF_N_QUEUES];
    uint64_t generation, count, iteration; /* count, iteration: of the segment visited */
    uint64_t n_losses;                     /* weighted by the counts of segments */
    int64_t origin;                        /* of the first byte of the operand being read */
    uint32_t cap_pieces, kind, index, visits_losses, losses_before, clips, batches;
    uint32_t loss_sums;                /* over ranks */
    uint32_t scattered[2];             /* contributions in what REDUCE_SCATTER has read */
} zinf_checker;

static inline const zinf_instr *instr_of(const zinf_checker *c, uint32_t i)
{
    return &c->plan->instrs[i];
}

/* The role of what a unit's region holds: 0 parameters, 1 gradient. */
static inline uint32_t stored_role(const zinf_plan *plan, int region)
{
    if (plan->decisions.ranks == 1)
        return region == 0 ? ROLE_PARAM : ROLE_GRAD;
    return region == 0 ? ROLE_PARAM_SHARD : ROLE_GRAD_SHARD;
}

static inline bool is_copy(unsigned opcode)
{
    return opcode >= ZINF_OP_UPLOAD && opcode <= ZINF_OP_COPY;
}

/* Fills its operand 3 tile by tile of the vocabulary, in order of rows; a cell's sums[1] counts
 * the rows that are in it. */
static inline bool by_tiles(unsigned opcode)
{
    return opcode == ZINF_OP_EMBEDDING_FORWARD || opcode == ZINF_OP_CLASSIFIER_FORWARD;
}

/* Short names here, prefixed for the linker. */
#define refuse zinf_checker_refuse
#define refuse_operand zinf_checker_refuse_operand
#define access_of zinf_checker_access_of
#define home_of zinf_checker_home_of
#define span_of zinf_checker_span_of
#define row_of zinf_checker_row_of
#define read_operand zinf_checker_read_operand
#define write_operand zinf_checker_write_operand
#define copy_contents zinf_checker_copy_contents
#define check_role zinf_checker_check_role
#define check_exit zinf_checker_check_exit

/* Rule, program, instruction(s), bytes, and what is wrong: into err. index, other: or ZINF_NONE;
 * o: or NULL. Returns false, as every check does that fails. */
bool refuse(zinf_checker *c, const char *rule, uint32_t index, uint32_t other,
            const zinf_operand *o, uint64_t lo, uint64_t hi, const char *wrong);
/* The same about one operand of the instruction visited. */
bool refuse_operand(zinf_checker *c, const char *rule, const zinf_operand *o, const char *wrong);

/* As opcodes.h says, with what the flag means to the classifier's two gradients. */
zinf_access access_of(const zinf_instr *instr, unsigned slot);
/* The region's first byte, if the operand lies in its own value's region; or ZINF_NO_ORIGIN. */
int64_t home_of(const zinf_checker *c, const zinf_operand *o);
/* Bytes of the operand in this iteration; if only read, in all iterations. */
zinf_span span_of(const zinf_checker *c, const zinf_operand *o, bool writes);
/* First row in its tensor of a tile of a parameter, or of its gradient; false: not known. */
bool row_of(zinf_checker *c, const zinf_operand *o, uint64_t *ret_row);

bool read_operand(zinf_checker *c, const zinf_operand *o, bool writes);
bool write_operand(zinf_checker *c, const zinf_operand *o, unsigned slot, bool reads);
/* The destination takes over what the source holds, byte for byte. */
bool copy_contents(zinf_checker *c, const zinf_operand *from, const zinf_operand *to);

/* What the opcode of the instruction visited demands; after its reads, before its writes. */
bool check_role(zinf_checker *c);
bool check_exit(zinf_checker *c); /* at the end of a program */

#endif
