/* runtime/trace.c - a step as Chrome trace events (chrome://tracing, Perfetto): process 1 is what
 * was predicted, process 2 what was measured; a thread is a queue.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "runtime/opcodes.h"
#include "runtime/report.h"
#include "runtime/timeline.h"

static void json_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 32 || c > 126)
            fprintf(out, "\\u%04x", c);
        else
            fputc(c, out);
    }
}

static void event(FILE *out, const zinf_plan *plan, int process, uint32_t index,
                  uint64_t iteration, double start_ns, double end_ns)
{
    const zinf_instr *instr = &plan->instrs[index];

    fprintf(out, ",\n{\"ph\": \"X\", \"pid\": %d, \"tid\": %u, \"ts\": %.3f, \"dur\": %.3f, "
            "\"name\": \"", process, instr->queue + 1u, start_ns / 1e3,
            (end_ns - start_ns) / 1e3);
    json_text(out, &plan->strings[instr->name]);
    fprintf(out, "\", \"cat\": \"%s\", \"args\": {\"opcode\": \"%s\", \"instr\": %" PRIu32
            ", \"iteration\": %" PRIu64 ", \"layer\": %" PRId32 ", \"cost_us\": %.3f}}",
            zinf_queue_name(instr->queue), zinf_opcode_get(instr->opcode)->name, index,
            iteration, instr->layer, instr->cost_ns / 1e3);
}

static void names(FILE *out, int process, const char *name)
{
    fprintf(out, "%s{\"ph\": \"M\", \"pid\": %d, \"name\": \"process_name\", \"args\": "
            "{\"name\": \"%s\"}}", process == 1 ? "" : ",\n", process, name);
    for (unsigned q = 0; q < ZINF_N_QUEUES; q++)
        fprintf(out, ",\n{\"ph\": \"M\", \"pid\": %d, \"tid\": %u, \"name\": \"thread_name\", "
                "\"args\": {\"name\": \"%s\"}}", process, q + 1, zinf_queue_name(q));
}

zinf_status zinf_trace_write(const char *path, const zinf_plan *plan,
                             const zinf_executor *executor, zinf_error *err)
{
    zinf_timeline timeline = {0};
    FILE *out = fopen(path, "w");

    if (!out)
        return zinf_fail(err, ZINF_MACHINE, "cannot create trace \"%s\": %s", path,
                         strerror(errno));
    if (zinf_timeline_run(plan, ZINF_PROGRAM_STEP, &timeline, err))
        goto done;
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", out);
    names(out, 1, "predicted");
    names(out, 2, "measured");
    for (uint32_t i = 0; i < timeline.n_events; i++)
        event(out, plan, 1, timeline.events[i].instr, timeline.events[i].iteration,
              timeline.events[i].start_ns, timeline.events[i].end_ns);
    for (unsigned q = 0; q < ZINF_N_QUEUES; q++) {
        uint64_t n;
        const zinf_trace_entry *entries = zinf_executor_trace(executor, (zinf_queue)q, &n);
        for (uint64_t i = 0; i < n; i++)
            event(out, plan, 2, entries[i].instr, entries[i].iteration,
                  (double)entries[i].start_ns, (double)entries[i].end_ns);
    }
    fputs("\n]}\n", out);
    if (fflush(out) || ferror(out))
        zinf_fail(err, ZINF_MACHINE, "cannot write trace \"%s\": %s", path, strerror(errno));
done:
    zinf_timeline_free(&timeline);
    fclose(out);
    return err->status;
}
