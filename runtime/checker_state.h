/* runtime/checker_state.h - what the checker knows while it proves a plan; its own, for its files.
 *
 * checker.c runs the programs and keeps what every byte holds; checker_operators.c says what the
 * operands of an instruction must be. Every check returns true, or refuses and returns false.
 */
#ifndef ZINF_RUNTIME_CHECKER_STATE_H
#define ZINF_RUNTIME_CHECKER_STATE_H

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/checker.h"
#include "runtime/intervals.h"
#include "runtime/opcodes.h"

/* Iterations of a loop that are visited at most; see checker.c. */
enum { ZINF_UNROLL = 3 };
#define NO_ORIGIN UINT64_MAX
#define UNKNOWN (UINT64_MAX - 1)
#define OF_NOTHING UINT64_MAX
#define NO_MICRO UINT32_MAX

/* What a value is of a unit. With several ranks its regions hold shards, or what one rank owns;
 * either is a value of its own. */
typedef enum state { NOTHING, PARAM, GRAD, OPTIMIZER, PARAM_SHARD, GRAD_SHARD } state;

typedef struct sum { /* of contributions of `n` micro-batches in a row */
    uint32_t first, n; /* as visited */
} sum;

typedef struct cell { /* what is known of a piece of memory */
    uint64_t origin;   /* address of the first byte of the value, or NO_ORIGIN */
    uint64_t rows, of; /* by tiles: rows of the weight that are in it, of so many */
    uint64_t age;      /* the iteration that produced it, 0: on entry */
    uint64_t made_of;  /* 256 * the tensor applied last + operators since; or OF_NOTHING; of
                        * what CLIP wrote: 2^32 * its first unit + units; of zeros there: 0 */
    uint32_t value;    /* ZINF_NONE: nothing that may be read */
    uint32_t writer, readers[ZINF_N_QUEUES]; /* last write, last reads since, as visits; 0: none */
    uint32_t micro;    /* micro-batch it was computed from, as visited, or NO_MICRO */
    sum sums[2];       /* gradient, loss: contributions by operators, by the embedding */
    uint8_t dtype;
    bool back, part;   /* the gradient of what made_of says; a sum of this rank's alone */
} cell;

typedef struct piece { /* of a copy: what is known up to byte `end` */
    cell known;
    uint64_t end;
} piece;

typedef struct visit {
    uint32_t instr, done[ZINF_N_QUEUES]; /* visits, per queue, that surely finished; 0: none */
} visit;

typedef struct content { /* what is known of a value */
    uint64_t age; /* of its latest production */
    uint32_t unit;
    state role;
    bool on_entry, batch; /* some program reads it as found; micro-batch i is its i-th part */
} content;

typedef struct tally {
    sum normed[2];    /* those of the gradient whose norm was taken */
    uint32_t updates; /* ADAM, INIT, .. */
    bool clipped, done; /* done: updated after it was used, so not to be used any more */
    uint8_t uses; /* 1: its parameters are read by operators, 2: by the embedding */
} tally;

typedef struct applied {
    uint64_t x, bias, residual; /* as made_of; x UNKNOWN: no use seen yet */
    uint64_t bias_at;           /* element of its unit where the bias' stack begins */
} applied;

typedef struct zinf_checker {
    const zinf_plan *plan;
    zinf_error *err;
    zinf_intervals maps[ZINF_N_TIERS]; /* of cells */
    content *contents;    /* [n_values] */
    tally *tallies;       /* [n_units] */
    applied *uses;        /* [2][n_tensors] by operators, by the embedding */
    uint32_t *stack;      /* [n_tensors] the first of the stack it is in */
    uint64_t *stack_rows; /* [n_tensors] of the stack that begins here */
    uint64_t *branches;   /* [n_tensors] where its result is a residual, too: what comes of it */
    uint32_t *latest;     /* [n_instrs] visit */
    visit *visits;        /* from 1; 0 stands for none */
    piece *pieces;        /* [cap_pieces] what is copied */
    uint32_t last[ZINF_N_QUEUES]; /* visit */
    uint64_t work, most_work, age, count, iteration, n_losses; /* n_losses: with loops in full */
    uint64_t logits; /* rows */
    uint64_t unused; /* tensors from here on were not used by an operator yet */
    uint64_t unvisited; /* losses of earlier loops, in iterations that were not looked at */
    uint32_t kind, index, now, losses, clips, batches, cap_pieces; /* losses ..: as visited */
    bool exact, sharded; /* the segment is visited in full; there are several ranks */
    bool late;           /* STEP begins with the updates of the one before */
    uint32_t scalars;    /* late: value of what CLIP writes */
    /* the instruction visited */
    const zinf_instr *instr;
    const zinf_operand *o;
    const char *links;            /* opcodes.h */
    cell seen[ZINF_MAX_OPERANDS]; /* first piece of each operand read */
    uint64_t at[ZINF_MAX_OPERANDS]; /* element of its unit where each is, or NO_ORIGIN */
    uint32_t tensor;              /* stack of its weight */
    uint64_t row, n_rows;         /* its tile */
    uint64_t made_of;             /* what results are made of */
    uint32_t micro;               /* what it reads was computed from */
    bool back;
} zinf_checker;

static inline bool copies(unsigned opcode)
{
    return opcode >= ZINF_OP_UPLOAD && opcode <= ZINF_OP_COPY;
}

static inline bool is_grad(state role)
{
    return role == GRAD || role == GRAD_SHARD;
}

/* What a unit's region holds. */
static inline state stored(const zinf_checker *c, state role)
{
    return !c->sharded || role == OPTIMIZER ? role : role == PARAM ? PARAM_SHARD : GRAD_SHARD;
}

/* ---- refusals: return false, as every check does that fails ---- */

/* other: a second instruction, as a visit, or 0; o: or NULL. */
static inline bool refuse(zinf_checker *c, const char *rule, uint32_t other, const zinf_operand *o,
                          const char *wrong)
{
    const uint32_t which[2] = {c->index, c->visits[other].instr};
    char names[2][200] = {"", ""}, bytes[200] = "";

    for (int i = 0; i < 2; i++)
        if (which[i] != ZINF_NONE)
            snprintf(names[i], sizeof names[i], "%s instruction %" PRIu32 " (%s \"%.80s\")",
                     i ? " after" : ",", which[i],
                     zinf_opcode_get(c->plan->instrs[which[i]].opcode)->name,
                     &c->plan->strings[c->plan->instrs[which[i]].name]);
    if (o)
        snprintf(bytes, sizeof bytes, ", %s bytes [%" PRIu64 ", %" PRIu64 ") \"%.80s\"",
                 zinf_tier_name(o->tier), o->offset, o->offset + o->bytes, o->value == ZINF_NONE
                     ? "scratch" : &c->plan->strings[c->plan->values[o->value]]);
    zinf_fail(c->err, ZINF_DOES_NOT_FIT, "%s: program %s%s%s%s: %s", rule,
              zinf_program_name(c->kind), names[0], names[1], bytes, wrong);
    return false;
}

static inline bool no_memory(zinf_checker *c)
{
    zinf_fail(c->err, ZINF_MACHINE, "out of memory while checking the plan");
    return false;
}

/* ---- where things are ---- */

static inline cell *cell_of(zinf_checker *c, unsigned tier, uint32_t interval)
{
    c->work++;
    return zinf_intervals_payload(&c->maps[tier], interval);
}

/* A unit's region as an operand, where zinf_operand_at says. */
static inline zinf_operand region(const zinf_checker *c, uint32_t unit, state role)
{
    const zinf_unit *u = &c->plan->units[unit];
    const zinf_region *r = role == PARAM ? &u->param : role == GRAD ? &u->grad : &u->optimizer;
    zinf_operand o = {.tier = (uint8_t)r->tier, .offset = r->offset, .bytes = r->bytes,
                      .value = r->bytes ? r->value : ZINF_NONE,
                      .dtype = (uint8_t)(role == PARAM ? c->plan->job.precision : ZINF_F32)};

    o.offset = zinf_operand_at(c->plan, &(zinf_instr){.unit = unit}, &o);
    return o;
}

static inline state role_of(const zinf_checker *c, const zinf_operand *o)
{
    return o->bytes == 0 || o->value == ZINF_NONE ? NOTHING : c->contents[o->value].role;
}

static inline uint32_t unit_of(const zinf_checker *c, const zinf_operand *o)
{
    return c->contents[o->value].unit;
}

/* Of the instruction visited. */
static inline uint64_t here(const zinf_checker *c, const zinf_operand *o)
{
    return zinf_operand_at(c->plan, c->instr, o) + o->stride * c->iteration;
}

/* Where the unit begins that a gradient is of, as far as the operand alone tells. */
static inline uint64_t grad_origin(const zinf_checker *c, const zinf_operand *o)
{
    const zinf_operand home = region(c, unit_of(c, o), GRAD);
    const uint64_t lo = here(c, o);

    if (o->rows * o->cols == c->plan->units[unit_of(c, o)].n_elems)
        return lo;
    return home.value == o->value && home.tier == o->tier && lo >= home.offset &&
                   lo - home.offset < home.bytes
               ? home.offset : NO_ORIGIN;
}

/* ---- checker.c ---- */

/* C3: the operand is ordered with the last writer of x and, for a write, the readers since. */
bool zinf_checker_ordered(zinf_checker *c, const zinf_operand *o, const cell *x, bool writes);

/* ---- checker_operators.c ---- */

/* C7: the sums are those of all micro-batches for all uses of the unit. */
bool zinf_checker_complete(zinf_checker *c, uint32_t unit, const sum sums[2]);

/* What becomes of two sums if the second is added to the first; false if it is not one contribution
 * that follows it: sums in another order have other bits. */
bool zinf_checker_add(const sum *first, const sum *second, sum *ret_sum);

/* What the plan states of its model, batch, memory and programs is so. */
bool zinf_checker_statements(zinf_checker *c);

/* C4, C6, C7 of the instruction visited; after the reads, before the writes. */
bool zinf_checker_operands(zinf_checker *c);

/* Of the updates that a step leaves to the next: what CLIP writes is of `units` units. */
bool zinf_checker_pends(zinf_checker *c, uint64_t units);

/* The loss, which CLIP (that waits for it, too) and the runtime read, is the sum over all
 * micro-batches and ranks. */
bool zinf_checker_loss_is_whole(zinf_checker *c, bool waits);

#endif
