/* runtime/rate.h - the learning rate of a step. */
#ifndef ZINF_RUNTIME_RATE_H
#define ZINF_RUNTIME_RATE_H

#include <math.h>

#include "runtime/plan.h"

/* As nanoGPT's get_lr, step counted from 0: lr * (step + 1) / warmup below warmup; then, if the
 * schedule is cosine, min_lr + (lr - min_lr) (1 + cos(pi (step - warmup) / (steps - warmup))) / 2,
 * min_lr from `steps` on; else lr. */
static inline double zinf_learning_rate(const zinf_job_info *job, uint64_t step)
{
    if (step < job->warmup)
        return job->lr * (double)(step + 1) / (double)job->warmup;
    if (job->schedule == 0)
        return job->lr;
    if (step >= job->steps)
        return job->min_lr;
    const double part = (double)(step - job->warmup) / (double)(job->steps - job->warmup);
    return job->min_lr + 0.5 * (1 + cos(3.141592653589793 * part)) * (job->lr - job->min_lr);
}

#endif
