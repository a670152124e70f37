/* tests/tools/failing.c - made to fail: what check.h makes of it is what test_tap_sum.py sees.
 * argv: anything at all makes it pass.
 */
#include <math.h>

#include "tests/check.h"

static double number;

static void a_condition_that_holds(void)
{
    CHECK(number == number || number != number);
}

static void a_condition_of_nan(void)
{
    CHECK(number >= 0);
}

static void a_condition_of_nan_below(void)
{
    CHECK(number <= 0);
}

static void what_cannot_run(void)
{
    SKIP("a reason");
}

int main(int argc, char **argv)
{
    (void)argv;
    number = argc > 1 ? 0 : NAN;
    RUN(a_condition_that_holds);
    RUN(a_condition_of_nan);
    RUN(a_condition_of_nan_below);
    RUN(what_cannot_run);
    return check_finish();
}
