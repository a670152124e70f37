/* runtime/cell.c - see cell.h. */
#include "runtime/cell.h"

#include <inttypes.h>
#include <stdio.h>

#include "runtime/refusal.h"

bool zinf_cell_differs(const zinf_cell *found, const zinf_cell *wanted, char ret_text[300])
{
    const zinf_cell *const x = found, *const want = wanted;
    const char *const wrong =
        x->what != want->what || x->of != want->of ? ""
        : x->nth != want->nth ? ", of this micro-batch, or from before or after an update"
        : x->rows != want->rows ? ", with all tiles so far and no more"
        : x->origin != want->origin || x->dtype != want->dtype
            ? ", at its place and of its element type"
        : x->value != want->value && x->value != ZINF_NO_NAME && want->value != ZINF_NO_NAME
            ? ", under its name"
        : !zinf_sums_equal(&x->sums, &want->sums) ? ", the whole sum of it" : NULL;

    if (wrong)
        snprintf(ret_text, 300, "holds %s (of %" PRIu32 "), it should hold %s (of %" PRIu32 ")%s",
                 zinf_value_name(x->what), x->of, zinf_value_name(want->what), want->of, wrong);
    return wrong != NULL;
}
