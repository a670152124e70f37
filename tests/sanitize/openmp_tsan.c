/* tests/sanitize/openmp_tsan.c - tells TSan what libgomp orders: its futexes are not seen, so that
 * what a team's threads do one after the other looked like a race. Built into the kernels with
 * -Db_sanitize=thread only; stands in front of libgomp's own functions.
 */
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>
#include <stdbool.h>

typedef struct region {
    void (*function)(void *);
    void *data;
    char begin, barrier, end; /* their addresses are what is released and acquired */
} region;

static _Thread_local region *inside; /* the innermost */

void GOMP_parallel(void (*function)(void *), void *data, unsigned n_threads, unsigned flags);
void GOMP_barrier(void);
void GOMP_loop_end(void);

static void run(void *region_)
{
    region *r = region_, *outer = inside;

    __tsan_acquire(&r->begin);
    inside = r;
    r->function(r->data);
    inside = outer;
    __tsan_release(&r->end);
}

void GOMP_parallel(void (*function)(void *), void *data, unsigned n_threads, unsigned flags)
{
    void (*next)(void (*)(void *), void *, unsigned, unsigned);
    region r = {.function = function, .data = data};

    *(void **)&next = dlsym(RTLD_NEXT, "GOMP_parallel");
    __tsan_release(&r.begin);
    next(run, &r, n_threads, flags);
    __tsan_acquire(&r.end);
}

static void meet(const char *name)
{
    void (*next)(void);

    *(void **)&next = dlsym(RTLD_NEXT, name);
    if (inside)
        __tsan_release(&inside->barrier);
    next();
    if (inside)
        __tsan_acquire(&inside->barrier);
}

void GOMP_barrier(void)
{
    meet("GOMP_barrier");
}

void GOMP_loop_end(void)
{
    meet("GOMP_loop_end");
}
