/* tests/checker/bench.c - instructions checked per second: bench [MICRO_BATCHES] (default 40), a
 * plan of a hundred blocks in vertical order, tiled, everything on nvme: 756,204 instructions.
 * bench PLAN is of that plan, which another build can check, too (zinf-plan --check).
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/checker.h"
#include "tests/bitwise/trainer.h"

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "40";
    const trainer_model model = {100, 32, 2, 64, 8, (unsigned)atoi(what), "bf16", NULL};
    zinf_plan plan = {0};
    zinf_error err = {0};
    struct timespec from, to;

    if (!isdigit((unsigned char)*what))
        zinf_plan_read(what, &plan, &err);
    else
        trainer_plan(&model, false, "threads=1 order=vertical micro_batch=1 tiles=8 "
                     "checkpoint_interval=1 tier.param=nvme tier.grad=nvme tier.optimizer=nvme "
                     "tier.checkpoint=device", &plan, &err);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    if (err.status || zinf_plan_check(&plan, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    double s = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    printf("{\"name\": \"checker\", \"value\": %.0f, \"unit\": \"instructions/s\", \"of\": "
           "\"%u instructions, %.2f s\"}\n", plan.n_instrs / s, plan.n_instrs, s);
    zinf_plan_free(&plan);
    return 0;
}
