/* runtime/sums.c - see sums.h. */
#include "runtime/sums.h"

#include "runtime/plan_model.h"

zinf_sums zinf_sums_due(const zinf_plan *plan, uint32_t unit, uint32_t n)
{
    zinf_sums due = {0};

    for (int i = 0; i < 2; i++)
        due.by[i].n = zinf_model_adds(plan, unit, i) ? n : 0;
    return due;
}

bool zinf_sums_equal(const zinf_sums *a, const zinf_sums *b)
{
    for (int i = 0; i < 2; i++)
        if (a->by[i].first != b->by[i].first || a->by[i].n != b->by[i].n)
            return false;
    return true;
}

bool zinf_sums_complete(const zinf_sums *sums, uint32_t n)
{
    for (int i = 0; i < 2; i++)
        if (sums->by[i].n && (sums->by[i].first || sums->by[i].n != n))
            return false;
    return sums->by[0].n || sums->by[1].n;
}

bool zinf_sums_of_one_rank(const zinf_plan *plan, const zinf_sums *sums)
{
    if (plan->decisions.order == ZINF_VERTICAL)
        return zinf_sums_complete(sums, plan->decisions.accumulation);
    return sums->by[0].n + sums->by[1].n <= 1;
}

const char *zinf_sums_add(const zinf_plan *plan, uint32_t unit, const zinf_sums *more, bool begins,
                          zinf_sums *sums)
{
    const bool both = unit != ZINF_NONE && zinf_model_adds(plan, unit, false) &&
                      zinf_model_adds(plan, unit, true);

    if (begins) {
        *sums = *more;
        return NULL;
    }
    if (more->by[0].n && more->by[1].n && (sums->by[0].n || sums->by[1].n))
        return "a sum is added to a sum";
    for (int i = 0; i < 2; i++) {
        zinf_addends *sum = &sums->by[i];
        if (!sum->n)
            *sum = more->by[i];
        else if (more->by[i].n == 1 && more->by[i].first == sum->first + sum->n)
            sum->n++;
        else if (more->by[i].n)
            return "contributions are not of one micro-batch after the other";
    }
    if (both && sums->by[0].n - sums->by[1].n > 1)
        return "contributions by tokens and by operators are in another order";
    return NULL;
}
