/* tests/kernels/levels.c - ZINF_CPU_LEVEL and `most` lower the level; nothing raises it. */
#include "tests/kernels/guard.h"

static zinf_cpu_level level_of(zinf_cpu_level most)
{
    zinf_kernels table;
    zinf_cpu_level found = ZINF_N_CPU_LEVELS;

    zinf_kernels_cpu(&table, ZINF_F32, 1, most);
    CHECK(zinf_cpu_level_parse(table.name, &found));
    return found;
}

static void most_is_the_limit(void)
{
    for (zinf_cpu_level most = ZINF_CPU_REF; most < ZINF_N_CPU_LEVELS; most++)
        CHECK(level_of(most) <= most);
    CHECK(level_of(ZINF_CPU_REF) == ZINF_CPU_REF);
}

static void the_environment_lowers_the_level_and_never_raises_it(void)
{
    const zinf_cpu_level best = level_of(ZINF_N_CPU_LEVELS - 1);

    for (zinf_cpu_level named = ZINF_CPU_REF; named < ZINF_N_CPU_LEVELS; named++) {
        setenv("ZINF_CPU_LEVEL", zinf_cpu_level_names[named], 1);
        CHECK(level_of(ZINF_N_CPU_LEVELS - 1) == (named < best ? named : best));
        CHECK(level_of(ZINF_CPU_REF) == ZINF_CPU_REF);
    }
    setenv("ZINF_CPU_LEVEL", "avx9000", 1);
    CHECK(level_of(ZINF_N_CPU_LEVELS - 1) == best);
    unsetenv("ZINF_CPU_LEVEL");
}

static void unknown_levels_are_refused(void)
{
    zinf_cpu_level found = ZINF_CPU_AVX2;

    CHECK(!zinf_cpu_level_parse("avx", &found) && !zinf_cpu_level_parse("", &found));
    CHECK(found == ZINF_CPU_AVX2);
}

static void no_entry_of_a_table_is_missing(void)
{
    for (zinf_cpu_level most = ZINF_CPU_REF; most < ZINF_N_CPU_LEVELS; most++) {
        zinf_kernels table;
        zinf_kernels_cpu(&table, ZINF_BF16, 1, most);
        void (**entry)(void) = (void (**)(void))&table.gemm_create;
        for (; (char *)entry < (char *)(&table + 1); entry++)
            CHECK(*entry);
    }
}

int main(void)
{
    unsetenv("ZINF_CPU_LEVEL");
    RUN(most_is_the_limit);
    RUN(the_environment_lowers_the_level_and_never_raises_it);
    RUN(unknown_levels_are_refused);
    RUN(no_entry_of_a_table_is_missing);
    return check_finish();
}
