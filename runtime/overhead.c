/* runtime/overhead.c - see overhead.h. Sizes of our own tables are taken from their types; what
 * libraries take was measured (x86-64, glibc 2.36) as VmHWM less the arenas over
 * plans of 451 to 22,000 instructions. LEAST_ is the least that was measured: the difference is
 * what a run may leave untouched.
 */
#include "runtime/overhead.h"

#include <string.h>
#include <xxhash.h>

#include "runtime/executor_internal.h"
#include "runtime/timeline.h"

/* Bytes. */
/* Measured 3.1 to 3.3 MiB, nearly all of it pages of program and libraries, of which a kernel maps
 * more or less around those that are used; all of them would be 1.0 MiB more. */
static const uint64_t BASE = 9 << 19, LEAST_BASE = 5 << 19;
static const uint64_t NO_DATA = 4 << 20; /* of BASE, what no limit of data counts */
/* An MPI library on one node: 10.6 to 12.5 MiB of Open MPI 4.1, 13.7 to 15.8 of MPICH 4.0 at 2 to
 * 8 ranks, with what they share; what it takes across nodes is not measured. */
static const uint64_t MPI_BASE = 33 << 19, LEAST_MPI = 21 << 19;
static const uint64_t MPI_RANK = 384 << 10; /* shared memory with each other rank */
static const uint64_t GEMM = 768;              /* two, of which one leaves all to the other: 630 */
static const uint64_t THREAD = 24 << 10;       /* used part of stack and thread-local data */
static const uint64_t TENSOR_OF_CHECKPOINT = 3 << 10; /* JSON of header and manifest, sums */
static const uint64_t TENSOR_HASH = 256;       /* params_hash.c, with malloc's own */
static const uint64_t BLOCK_OF_CHANNEL = 128;  /* storage.c's block and its ring entries */
static const uint64_t LOOKUP = 64;             /* malloc's share of a table */
enum { N_CHANNELS = 2, MOST_GEMMS = 512 }; /* told apart */

static uint64_t add(uint64_t a, uint64_t b)
{
    const uint64_t most = UINT64_MAX / 2;

    return a > most || b > most - a ? most : a + b;
}

static uint64_t times(uint64_t n, uint64_t bytes)
{
    uint64_t product;

    return __builtin_mul_overflow(n, bytes, &product) ? UINT64_MAX / 2 : product;
}

/* What tells one GEMM from another: everything that operations.c makes a descriptor of, and the
 * scratch it may use. */
static uint64_t gemm_key(const zinf_plan *plan, const zinf_instr *instr)
{
    const zinf_operand *o = &plan->operands[instr->operand0];
    uint64_t key = instr->opcode | (uint64_t)instr->flags << 16 | instr->attr[3] << 24;

    for (uint32_t i = 0; i < instr->n_operands; i++) {
        const uint64_t parts[] = {o[i].rows, o[i].cols, o[i].ld, o[i].dtype, o[i].bytes};
        key = XXH3_64bits_withSeed(parts, sizeof parts, key);
    }
    return key;
}

/* No fewer than there are: beyond MOST_GEMMS each instruction counts as one of its own. */
static uint64_t n_gemms(const zinf_plan *plan)
{
    uint64_t seen[2 * MOST_GEMMS] = {0}, n = 0, total = 0; /* at their hash, or behind it */

    for (uint32_t i = 0; i < plan->n_instrs; i++) {
        const zinf_instr *instr = &plan->instrs[i];
        uint64_t weight = 1;
        switch (instr->opcode) {
        case ZINF_OP_LINEAR_FORWARD:
        case ZINF_OP_LINEAR_BACKWARD_INPUT:
        case ZINF_OP_LINEAR_BACKWARD_WEIGHT:
        case ZINF_OP_LOGITS:
            break;
        case ZINF_OP_CLASSIFIER_FORWARD:
            weight = 2;
            break;
        case ZINF_OP_CLASSIFIER_BACKWARD:
        case ZINF_OP_CLASSIFIER:
            weight = 5;
            break;
        default:
            continue;
        }
        const uint64_t key = gemm_key(plan, instr) | 1;
        uint64_t at = (key >> 1) % (2 * MOST_GEMMS);
        while (seen[at] && seen[at] != key)
            at = (at + 1) % (2 * MOST_GEMMS);
        if (seen[at] == key)
            continue;
        if (n < MOST_GEMMS) {
            seen[at] = key;
            n++;
        }
        total += weight;
    }
    return total;
}

static uint64_t n_transfer_ends(const zinf_plan *plan)
{
    uint64_t n = 0;

    for (uint32_t s = 0; s < plan->n_segments; s++) {
        const zinf_segment *segment = &plan->segments[s];
        for (uint32_t k = 0; k < segment->n_instrs; k++) {
            const zinf_instr *instr = &plan->instrs[segment->first_instr + k];
            const bool reads = instr->opcode == ZINF_OP_READ;
            if (!reads && instr->opcode != ZINF_OP_WRITE)
                continue;
            const zinf_operand *o = &plan->operands[instr->operand0 + !reads];
            n = add(n, o->stride ? times(2, segment->count) : 2);
        }
    }
    return n;
}

uint64_t zinf_overhead_base_bytes(uint32_t ranks)
{
    return ranks == 1 ? BASE : add(BASE + MPI_BASE, times(ranks, MPI_RANK));
}

uint64_t zinf_overhead_bytes(const zinf_plan *plan)
{
    uint64_t bytes = zinf_overhead_base_bytes(plan->decisions.ranks), rows = 0;

    /* the plan in memory */
    bytes = add(bytes, times(plan->n_segments, sizeof *plan->segments));
    bytes = add(bytes, times(plan->n_instrs, sizeof *plan->instrs));
    bytes = add(bytes, times(plan->n_operands, sizeof *plan->operands));
    bytes = add(bytes, times(plan->n_waits, sizeof *plan->waits));
    bytes = add(bytes, times(plan->n_tensors, sizeof *plan->tensors));
    bytes = add(bytes, times(plan->n_units, sizeof *plan->units));
    bytes = add(bytes, times(plan->n_parts, sizeof *plan->parts));
    bytes = add(bytes, times(plan->n_items, sizeof *plan->items));
    bytes = add(bytes, times(plan->n_values, sizeof *plan->values));
    bytes = add(bytes, plan->n_strings);
    /* the executor's tables */
    bytes = add(bytes, times(plan->n_instrs, sizeof(zinf_op) + sizeof(uint32_t)));
    bytes = add(bytes, times(plan->n_waits, sizeof(zinf_need)));
    bytes = add(bytes, times(plan->n_segments, (ZINF_N_QUEUES + 1) * sizeof(uint32_t)));
    bytes = add(bytes, times(plan->n_units, sizeof(zinf_noted)));
    bytes = add(bytes, times(n_gemms(plan), GEMM));
    for (uint32_t i = 0; i < plan->n_instrs; i++) {
        const zinf_instr *instr = &plan->instrs[i];
        const bool has_targets = instr->opcode == ZINF_OP_CLASSIFIER ||
                                 instr->opcode == ZINF_OP_CLASSIFIER_FORWARD ||
                                 instr->opcode == ZINF_OP_CLASSIFIER_BACKWARD;
        if (has_targets && plan->operands[instr->operand0].rows > rows)
            rows = plan->operands[instr->operand0].rows;
    }
    bytes = add(bytes, times(rows, sizeof(int32_t)));
    /* threads: one a queue; two queues have teams */
    bytes = add(bytes, ZINF_N_QUEUES * THREAD);
    bytes = add(bytes, times(2, times(plan->decisions.n_threads, THREAD)));
    /* storage: twice the checksums, because sorting them takes a copy */
    if (plan->machine.arena_bytes[ZINF_TIER_NVME]) {
        bytes = add(bytes, times(n_transfer_ends(plan), 2 * sizeof(zinf_sum)));
        bytes = add(bytes, times(plan->decisions.io_depth, N_CHANNELS * BLOCK_OF_CHANNEL));
        bytes = add(bytes, N_CHANNELS * (ZINF_FLIGHTS * sizeof(zinf_flight) +
                                         ZINF_STORAGE_THREADS * THREAD));
    }
    /* checkpoints, the hash of the weights, a sample's logits and window, an evaluation */
    bytes = add(bytes, times(plan->n_tensors, TENSOR_OF_CHECKPOINT + TENSOR_HASH));
    bytes = add(bytes, times(plan->model.vocab, sizeof(float)));
    bytes = add(bytes, times(plan->job.sequence, sizeof(int32_t)));
    bytes = add(bytes, times(plan->decisions.micro_batch, sizeof(uint64_t) + sizeof(double)));
    bytes = add(bytes, add(zinf_plan_scalar_bytes(plan), 16 * LOOKUP));
    return (bytes + ZINF_PAGE - 1) / ZINF_PAGE * ZINF_PAGE;
}

uint64_t zinf_overhead_untouched_bytes(const zinf_plan *plan)
{
    const zinf_decisions *d = &plan->decisions;
    uint64_t bytes = BASE - LEAST_BASE;

    if (strcmp(plan->machine.backend, "cpu"))
        return 0;
    if (d->ranks > 1)
        bytes = add(bytes, add(MPI_BASE - LEAST_MPI, times(d->ranks, MPI_RANK)));
    bytes = add(bytes, times(ZINF_N_QUEUES + 2 * (uint64_t)d->n_threads, THREAD));
    if (plan->machine.arena_bytes[ZINF_TIER_NVME]) /* of the one engine or the other */
        bytes = add(bytes, N_CHANNELS * (ZINF_STORAGE_THREADS * THREAD +
                                         (uint64_t)d->io_depth * BLOCK_OF_CHANNEL));
    bytes = add(bytes, times(plan->n_tensors, TENSOR_OF_CHECKPOINT + TENSOR_HASH));
    return add(bytes, times(plan->model.vocab, sizeof(float)));
}

uint64_t zinf_overhead_stack_bytes(const zinf_plan *plan)
{
    uint64_t bytes = times(ZINF_N_QUEUES + 2 * (uint64_t)plan->decisions.n_threads,
                           ZINF_STACK_BYTES - THREAD);

    if (plan->machine.arena_bytes[ZINF_TIER_NVME])
        bytes = add(bytes, N_CHANNELS * ZINF_STORAGE_THREADS * (ZINF_SMALL_STACK_BYTES - THREAD));
    return bytes > NO_DATA ? bytes - NO_DATA : 0;
}

uint64_t zinf_overhead_trace_bytes(const zinf_plan *plan)
{
    const zinf_program *step = &plan->programs[ZINF_PROGRAM_STEP];
    uint64_t entries = 0, events = 0;

    for (uint32_t s = 0; s < step->n_segments; s++) {
        const zinf_segment *segment = &plan->segments[step->first_segment + s];
        const uint64_t simulated = segment->count < 3 ? segment->count : 3;
        entries = add(entries, times(segment->count, segment->n_instrs));
        events = add(events, times(simulated, segment->n_instrs));
    }
    const uint64_t most = (uint64_t)ZINF_N_QUEUES * ZINF_TRACE_CAPACITY;
    entries = entries < most ? entries : most;
    /* while it is written: two simulations, each an event, its segment, its place in a queue */
    return add(times(entries, sizeof(zinf_trace_entry)),
               times(events, 2 * (sizeof(zinf_event) + sizeof(uint32_t) +
                                  ZINF_N_QUEUES * sizeof(uint32_t) + 1)));
}
