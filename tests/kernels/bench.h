/* tests/kernels/bench.h - `parity --bench`: times of every operator at GPT-2 sizes, for people. */
#ifndef ZINF_TESTS_KERNELS_BENCH_H
#define ZINF_TESTS_KERNELS_BENCH_H

int bench(void);

#endif
