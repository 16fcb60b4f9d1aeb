// SPDX-License-Identifier: Apache-2.0
// What the suites of sparse convolution and point convolution share: what a pass moves and computes,
// rows of a result in f64, and whether those that were sampled are right.
#ifndef SPOPS_BENCH_BENCH_LAYER_H
#define SPOPS_BENCH_BENCH_LAYER_H

#include "bench/bench_report.h"

// A row of a result.
typedef struct bench_row_sum {
    int64_t terms;
    double value[BENCH_MAX_WIDTH], magnitude[BENCH_MAX_WIDTH];
} bench_row_sum;

void bench_add_product(bench_row_sum *s, int64_t c, float a, float b);

// How rows of a result are checked.
typedef struct bench_row_check {
    const char *suite, *what;
    int num_samples;
    double unit; // of a product's magnitude: roundings besides those of the sum
    const void *user;
    void (*sum)(const void *user, int64_t row, bench_row_sum *s);
} bench_row_check;

bool bench_check_rows(bench *b, const bench_row_check *check, spops_matrix result);

size_t bench_matrix_bytes(spops_matrix m);

// A pass of a layer, which multiplies `products` times (1, or 3 forward and backward) for each of
// num_pairs pairs; bytes, notes and dtype of c are filled in. Returns its floating-point operations.
double bench_layer_case(bench_case *c, int products, int64_t num_pairs, spops_matrix x,
                        spops_matrix w, spops_matrix out);

#endif
