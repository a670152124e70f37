/* tests/check.h - the whole test framework: a test is a function named as a sentence, its output
 * TAP ("ok 1 - overlap is refused"), so that meson and tools/test count it. A failed CHECK ends
 * the test, not the program.
 */
#ifndef ZINF_TESTS_CHECK_H
#define ZINF_TESTS_CHECK_H

#include <setjmp.h>
#include <stdio.h>

/* How much longer a sanitizer lets a test take; for limits that are there to end what hangs. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { CHECK_SLOWER = 20 };
#else
enum { CHECK_SLOWER = 1 };
#endif

static int check_count, check_failures;
static jmp_buf check_exit;
enum { CHECK_PASSED, CHECK_FAILED = 1, CHECK_SKIPPED = 2 };
static char check_reason[512];

/* Fails on NaN too: write the condition so that it is true only when all is well. */
#define CHECK(condition)                                                                         \
    CHECK_MESSAGE(condition, "%s", #condition)
#define CHECK_MESSAGE(condition, ...)                                                            \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            printf("# %s:%d: ", __FILE__, __LINE__);                                             \
            printf(__VA_ARGS__);                                                                 \
            printf("\n");                                                                        \
            longjmp(check_exit, CHECK_FAILED);                                                   \
        }                                                                                        \
    } while (0)
#define SKIP(...)                                                                                \
    do {                                                                                         \
        snprintf(check_reason, sizeof check_reason, __VA_ARGS__);                                \
        longjmp(check_exit, CHECK_SKIPPED);                                                      \
    } while (0)
#define RUN(test) check_run(test, #test)

static inline void check_run(void (*test)(void), const char *name)
{
    char words[256];
    size_t i = 0;

    for (; name[i] && i + 1 < sizeof words; i++)
        words[i] = name[i] == '_' ? ' ' : name[i];
    words[i] = 0;
    int outcome = setjmp(check_exit);
    if (outcome == CHECK_PASSED)
        test();
    check_count++;
    check_failures += outcome == CHECK_FAILED;
    printf("%s %d - %s%s%s\n", outcome == CHECK_FAILED ? "not ok" : "ok", check_count, words,
           outcome == CHECK_SKIPPED ? " # SKIP " : "",
           outcome == CHECK_SKIPPED ? check_reason : "");
    fflush(stdout);
}

static inline int check_finish(void)
{
    printf("1..%d\n", check_count);
    return check_failures != 0;
}

#endif
