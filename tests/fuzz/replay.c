/* tests/fuzz/replay.c - runs a fuzz target without a fuzzer: every file of the directories given,
 * then N seeded mutations of them. Built with ASan and UBSan for tools/test, where it stands for
 * the fuzzer; also replays what tools/fuzz found.
 *
 * usage: replay NAME N DIRECTORY..
 *
 * Files named good-* must be accepted: a corpus that is all refused tests nothing. An input that
 * takes more than 5 s of a processor (sanitized), or a minute, ends the program.
 */
#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/fuzz/fuzz.h"

enum { MOST_BYTES = 1 << 18, MOST_SEEDS = 512, SECONDS = 5, WALL_SECONDS = 60 };

typedef struct seed {
    char name[256];
    uint8_t *bytes;
    size_t n;
} seed;

static seed seeds[MOST_SEEDS];
static unsigned n_seeds;
static const char *target;
static uint64_t n_mutations, state;

/* One request may not be of gigabytes, and the whole not above one: "bounded memory". */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1:max_allocation_size_mb=512:hard_rss_limit_mb=1536";
}

size_t LLVMFuzzerCustomMutator(uint8_t *, size_t, size_t, unsigned) __attribute__((weak));

/* Bits, bytes, edges, runs, and pieces of other seeds. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t most)
{
    const seed *other = &seeds[fuzz_random(&state) % n_seeds];
    const size_t at = n ? fuzz_random(&state) % n : 0;
    size_t k = 1 + fuzz_random(&state) % 16;

    switch (fuzz_random(&state) % 7) {
    case 0:
        if (n)
            data[at] ^= (uint8_t)(1u << (fuzz_random(&state) & 7));
        return n;
    case 1:
        if (n)
            data[at] = (uint8_t)fuzz_edge(&state);
        return n;
    case 2: { /* an edge in place of a number in text, or of a word */
        char text[32];
        const uint64_t edge = fuzz_edge(&state);
        k = (size_t)snprintf(text, sizeof text, "%llu", (unsigned long long)edge);
        if (fuzz_random(&state) & 1)
            memcpy(text, &edge, k = 8);
        if (k > n - at)
            return n;
        memcpy(data + at, text, k);
        return n;
    }
    case 3: /* cut */
        k = k > n - at ? n - at : k;
        memmove(data + at, data + at + k, n - at - k);
        return n - k;
    case 4: /* repeat */
        k = k > n - at ? n - at : k;
        if (n + k > most)
            return n;
        memmove(data + at + k, data + at, n - at);
        return n + k;
    case 5: /* a piece of another seed */
        if (other->n) {
            const size_t from = fuzz_random(&state) % other->n;
            k = 1 + fuzz_random(&state) % 64;
            k = k > other->n - from ? other->n - from : k;
            if (n + k > most)
                return n;
            memmove(data + at + k, data + at, n - at);
            memcpy(data + at, other->bytes + from, k);
            return n + k;
        }
        return n;
    default:
        return n && fuzz_random(&state) % 8 == 0 ? at : n;
    }
}

static void on_alarm(int number)
{
    static const char text[] = "# an input takes too long\nnot ok 1 - no input hangs\n";

    (void)number;
    if (write(1, text, sizeof text - 1) < 0)
        _exit(2);
    _exit(1);
}

/* A copy of exactly n bytes: reading beyond them is seen. */
static void run_one(const uint8_t *bytes, size_t n)
{
    static const struct itimerval most = {.it_value.tv_sec = SECONDS}, none = {0};
    uint8_t *copy = malloc(n ? n : 1);

    CHECK(copy != NULL);
    if (n)
        memcpy(copy, bytes, n);
    fuzz_accepted = 0;
    setitimer(ITIMER_PROF, &most, NULL);
    alarm(WALL_SECONDS);
    LLVMFuzzerTestOneInput(copy, n);
    alarm(0);
    setitimer(ITIMER_PROF, &none, NULL);
    free(copy);
}

static void load(const char *directory)
{
    struct dirent **names = NULL;
    int n = scandir(directory, &names, NULL, alphasort); /* sorted: the same mutations always */

    for (int i = 0; i < n; i++) {
        char path[PATH_MAX];
        seed *s = &seeds[n_seeds];
        FILE *in;
        snprintf(path, sizeof path, "%s/%s", directory, names[i]->d_name);
        struct stat info;
        if (n_seeds < MOST_SEEDS && stat(path, &info) == 0 && S_ISREG(info.st_mode) &&
            (in = fopen(path, "rb"))) {
            snprintf(s->name, sizeof s->name, "%s", names[i]->d_name);
            s->bytes = malloc(MOST_BYTES);
            s->n = s->bytes ? fread(s->bytes, 1, MOST_BYTES, in) : 0;
            n_seeds += s->bytes != NULL;
            fclose(in);
        }
        free(names[i]);
    }
    free(names);
}

static void the_corpus_is_accepted_or_refused_cleanly(void)
{
    unsigned n_good = 0;

    for (unsigned i = 0; i < n_seeds; i++) {
        const int good = strncmp(seeds[i].name, "good-", 5) == 0;
        run_one(seeds[i].bytes, seeds[i].n);
        CHECK_MESSAGE(fuzz_accepted || !good, "%s is refused", seeds[i].name);
        n_good += (unsigned)good;
    }
    CHECK_MESSAGE(n_good > 0, "no seed of %s is named good-*", target);
    printf("# %s: %u seeds, %u good\n", target, n_seeds, n_good);
}

static void mutations_are_accepted_or_refused_cleanly(void)
{
    uint8_t *bytes = malloc(MOST_BYTES);
    uint64_t n_accepted = 0;

    CHECK(bytes != NULL);
    for (uint64_t i = 0; i < n_mutations; i++) {
        state = i;
        const seed *s = &seeds[fuzz_random(&state) % n_seeds];
        size_t n = s->n;
        memcpy(bytes, s->bytes, n);
        for (uint64_t k = 1 + fuzz_random(&state) % 4; k > 0; k--)
            n = LLVMFuzzerCustomMutator
                    ? LLVMFuzzerCustomMutator(bytes, n, MOST_BYTES, (unsigned)fuzz_random(&state))
                    : LLVMFuzzerMutate(bytes, n, MOST_BYTES);
        run_one(bytes, n);
        n_accepted += fuzz_accepted != 0;
    }
    free(bytes);
    printf("# %s: %llu mutations, %llu accepted\n", target, (unsigned long long)n_mutations,
           (unsigned long long)n_accepted);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: replay NAME N DIRECTORY..\n");
        return 2;
    }
    target = argv[1];
    n_mutations = strtoull(argv[2], NULL, 10);
    signal(SIGALRM, on_alarm);
    signal(SIGPROF, on_alarm); /* of CPU time, which a busy machine does not spoil */
    for (int i = 3; i < argc; i++)
        load(argv[i]);
    if (n_seeds == 0) {
        fprintf(stderr, "replay: no files in \"%s\"\n", argv[3]);
        return 2;
    }
    RUN(the_corpus_is_accepted_or_refused_cleanly);
    RUN(mutations_are_accepted_or_refused_cleanly);
    for (unsigned i = 0; i < n_seeds; i++)
        free(seeds[i].bytes);
    return check_finish();
}
