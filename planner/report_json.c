/* planner/report_json.c - a plan for programs: --json and the Chrome trace. */
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <string.h>

#include "planner/report.h"
#include "runtime/files.h"
#include "runtime/opcodes.h"
#include "runtime/overhead.h"
#include "runtime/timeline.h"

typedef struct json_object json;

/* json-c ends the process when it is given what it could not allocate. These bear a NULL;
 * zinf_report_json asks errno at the end. */
static bool add(json *o, const char *key, json *value)
{
    if (o && !json_object_object_add(o, key, value))
        return true;
    json_object_put(value);
    return false;
}

static void append(json *array, json *value)
{
    if (!array || json_object_array_add(array, value))
        json_object_put(value);
}

static void add_u64(json *o, const char *key, uint64_t value)
{
    add(o, key, json_object_new_uint64(value));
}

static void add_real(json *o, const char *key, double value)
{
    add(o, key, json_object_new_double(value));
}

static void add_text(json *o, const char *key, const char *value)
{
    add(o, key, json_object_new_string(value));
}

static json *add_object(json *o, const char *key)
{
    json *child = json_object_new_object();

    return add(o, key, child) ? child : NULL;
}

static json *decisions(const zinf_decisions *d)
{
    static const char *const times[] = {[ZINF_AFTER_BACKWARD] = "after backward",
                                        [ZINF_IN_BACKWARD] = "in backward",
                                        [ZINF_IN_FORWARD] = "in forward"};
    json *o = json_object_new_object();
    json *tier = add_object(o, "tier");

    for (unsigned c = 0; c < ZINF_N_CLASSES; c++)
        add_text(tier, zinf_class_name(c), zinf_tier_name(d->tier[c]));
    add_u64(o, "micro_batch", d->micro_batch);
    add_u64(o, "accumulation", d->accumulation);
    add_text(o, "order", d->order == ZINF_VERTICAL ? "vertical" : "horizontal");
    json *tiles = add_object(o, "tiles");
    for (unsigned l = 0; l < ZINF_N_LINEARS; l++)
        add_u64(tiles, zinf_linear_name(l), d->tiles[l]);
    if (d->checkpoint_interval)
        add_u64(o, "checkpoint_interval", d->checkpoint_interval);
    else
        add(o, "checkpoint_interval", NULL);
    json *prefetch = add_object(o, "prefetch");
    add_u64(prefetch, "read", d->prefetch_read);
    add_u64(prefetch, "upload", d->prefetch_upload);
    add_u64(prefetch, "gather", d->prefetch_gather);
    add_text(o, "partitioning", d->partitioning == ZINF_OWNER ? "owner" : "bandwidth-centric");
    add_text(o, "collectives", d->collectives == ZINF_SYNCHRONOUS ? "synchronous" : "overlapped");
    add_text(o, "optimizer_time", times[d->optimizer_time]);
    add_u64(o, "ranks", d->ranks);
    add_u64(o, "io_block_bytes", d->io_block_bytes);
    add_u64(o, "io_depth", d->io_depth);
    add_u64(o, "threads", d->n_threads);
    return o;
}

static json *memory(const zinf_plan *plan)
{
    json *o = json_object_new_object();

    for (unsigned t = 0; t < ZINF_TIER_SCALAR; t++) {
        json *tier = add_object(o, zinf_tier_name(t)), *items = json_object_new_array();
        add_u64(tier, "planned_bytes",
                plan->machine.arena_bytes[t] + plan->machine.overhead_bytes[t]);
        add_u64(tier, "capacity_bytes", plan->machine.capacity_bytes[t]);
        for (uint32_t i = 0; i < plan->n_items; i++) {
            if (plan->items[i].tier != t)
                continue;
            json *item = json_object_new_object();
            add_text(item, "name", plan->items[i].name);
            add_u64(item, "bytes", plan->items[i].bytes);
            append(items, item);
        }
        if (t == (plan->machine.unified ? ZINF_TIER_DEVICE : ZINF_TIER_HOST))
            add_u64(tier, "untouched_bytes", zinf_overhead_untouched_bytes(plan));
        if (plan->machine.overhead_bytes[t]) {
            json *item = json_object_new_object();
            add_text(item, "name", "outside the arenas");
            add_u64(item, "bytes", plan->machine.overhead_bytes[t]);
            append(items, item);
        }
        add(tier, "items", items);
    }
    return o;
}

/* The step if every instruction ran alone. */
static double serial_s(const zinf_plan *plan)
{
    const zinf_program *step = &plan->programs[ZINF_PROGRAM_STEP];
    double ns = 0;

    for (uint32_t g = 0; g < step->n_segments; g++) {
        const zinf_segment *segment = &plan->segments[step->first_segment + g];
        for (uint32_t i = 0; i < segment->n_instrs; i++)
            ns += (double)segment->count * plan->instrs[segment->first_instr + i].cost_ns;
    }
    return ns * 1e-9;
}

static json *predicted(const zinf_plan *plan)
{
    const zinf_predicted *p = &plan->predicted;
    json *o = json_object_new_object();
    double tokens = (double)plan->job.global_batch * (double)plan->job.sequence;

    add_real(o, "step_s", p->step_s);
    add_real(o, "tokens_per_s", tokens / p->step_s);
    add_real(o, "tflops_per_device", p->flops_per_step / p->step_s * 1e-12);
    add_real(o, "hardware_tflops_per_device", p->hardware_flops_per_step / p->step_s * 1e-12);
    add_real(o, "mfu", p->flops_per_step / p->step_s / p->peak_flops);
    add_real(o, "serial_s", serial_s(plan));
    add_text(o, "bound_by", zinf_queue_name(p->bound_by));
    json *queues = add_object(o, "queues");
    for (unsigned q = 0; q < ZINF_N_QUEUES; q++)
        add_real(queues, zinf_queue_name(q), p->queue_busy_s[q]);
    return o;
}

static json *equations(const zinf_plan *plan, const zinf_model *model,
                       const zinf_cluster *cluster)
{
    static const char *const names[3] = {"param_grad", "optimizer", "checkpoint"};
    const zinf_equation_values v = zinf_report_equations(plan, model, cluster);
    json *o = json_object_new_object();

    add_real(o, "params", v.params);
    add_real(o, "model_state_bytes", v.model_state_bytes);
    add_real(o, "checkpoint_bytes", v.checkpoint_bytes);
    add_real(o, "mswm_bytes", v.mswm_bytes);
    add_real(o, "awm_bytes", v.awm_bytes);
    add_real(o, "flops_per_step", v.flops_per_step);
    json *ait = add_object(o, "ait"), *efficiency = add_object(o, "efficiency");
    for (int i = 0; i < 3; i++) {
        add_real(ait, names[i], v.ait[i]);
        add_real(efficiency, names[i], v.efficiency[i]);
    }
    return o;
}

static void add_refusal(json *root, const zinf_search_result *r)
{
    json *short_list = json_object_new_array(), *suggestions = json_object_new_array();
    unsigned worst = 0;

    for (unsigned t = 0; t < ZINF_TIER_SCALAR; t++) {
        if (r->short_bytes[t] > r->short_bytes[worst])
            worst = t;
        if (!r->short_bytes[t])
            continue;
        json *item = json_object_new_object();
        add_text(item, "tier", zinf_tier_name(t));
        add_u64(item, "bytes", r->short_bytes[t]);
        append(short_list, item);
    }
    json *most = add_object(root, "short");
    add_text(most, "tier", zinf_tier_name(worst));
    add_u64(most, "bytes", r->short_bytes[worst]);
    add(root, "short_tiers", short_list);
    for (uint32_t i = 0; i < r->n_suggestions; i++)
        append(suggestions, json_object_new_string(r->suggestions[i]));
    add(root, "suggestions", suggestions);
}

zinf_status zinf_report_json(FILE *out, const zinf_search_result *r, const zinf_model *model,
                             const zinf_cluster *cluster, double seconds, zinf_error *err)
{
    const zinf_plan *plan = &r->plan;
    errno = 0;
    json *root = json_object_new_object();
    json *search = json_object_new_object();

    add_u64(search, "candidates", r->n_candidates);
    add_real(search, "seconds", seconds);
    json *m = add_object(root, "model");
    add_text(m, "name", model->name);
    if (plan->n_instrs) {
        add_u64(m, "params", plan->model.n_params);
        add(root, "equations", equations(plan, model, cluster));
        add(root, "decisions", decisions(&plan->decisions));
        json *ranks = add_object(root, "ranks");
        add_u64(ranks, "count", plan->decisions.ranks);
        add_u64(ranks, "collectives_per_step", plan->predicted.n_collectives);
        add_u64(ranks, "sent_bytes_per_step",
                plan->predicted.moved_bytes[ZINF_QUEUE_COLLECTIVE]);
        add(root, "memory", memory(plan));
        json *traffic = add_object(root, "traffic");
        for (unsigned c = 0; c < ZINF_N_CLASSES; c++) {
            json *o = add_object(traffic, zinf_class_name(c));
            add_u64(o, "read_bytes", plan->predicted.traffic[c].read_bytes);
            add_u64(o, "write_bytes", plan->predicted.traffic[c].write_bytes);
        }
        add(root, "predicted", predicted(plan));
    } else {
        add_refusal(root, r);
    }
    add(root, "search", search);
    const char *text = json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY |
                                                                JSON_C_TO_STRING_SPACED);
    const bool fine = text && errno != ENOMEM;
    if (fine)
        fprintf(out, "%s\n", text);
    json_object_put(root);
    if (!fine)
        return zinf_fail(err, ZINF_MACHINE, "the JSON report: out of memory");
    if (fflush(out))
        return zinf_fail(err, ZINF_MACHINE, "cannot write the JSON report: %s", strerror(errno));
    return ZINF_OK;
}

zinf_status zinf_report_trace(const char *path, const zinf_plan *plan, zinf_error *err)
{
    zinf_timeline t;

    if (zinf_timeline_run(plan, ZINF_PROGRAM_STEP, &t, err) != ZINF_OK)
        return err->status;
    FILE *out;
    if (zinf_files_output(path, O_TRUNC, "the trace", &out, err)) {
        zinf_timeline_free(&t);
        return err->status;
    }
    fprintf(out, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
                 "{\"ph\": \"M\", \"pid\": 1, \"name\": \"process_name\", "
                 "\"args\": {\"name\": \"predicted\"}}");
    for (unsigned q = 0; q < ZINF_N_QUEUES; q++)
        fprintf(out, ",\n{\"ph\": \"M\", \"pid\": 1, \"tid\": %u, \"name\": \"thread_name\", "
                     "\"args\": {\"name\": \"%s\"}}", q, zinf_queue_name(q));
    for (uint32_t i = 0; i < t.n_events; i++) {
        const zinf_event *e = &t.events[i];
        const zinf_instr *instr = &plan->instrs[e->instr];
        fprintf(out, ",\n{\"ph\": \"X\", \"pid\": 1, \"tid\": %u, \"ts\": %.3f, \"dur\": %.3f, "
                     "\"name\": \"%s\", \"cat\": \"%s\", \"args\": {\"instr\": %u}}",
                instr->queue, e->start_ns * 1e-3, (e->end_ns - e->start_ns) * 1e-3,
                plan->strings + instr->name, zinf_opcode_get(instr->opcode)->name, e->instr);
    }
    fprintf(out, "\n]}\n");
    zinf_timeline_free(&t);
    bool bad = ferror(out);
    if (fclose(out) || bad)
        return zinf_fail(err, ZINF_MACHINE, "cannot write the trace \"%s\": %s", path,
                         strerror(errno));
    return ZINF_OK;
}
