// SPDX-License-Identifier: Apache-2.0
// The built-in reductions for the benchmark, from their list: names, properties, and a reference in
// double that is compiled from the very definitions that the library has in float. It shows that the
// kernels fold every term once and rightly; that the definitions are those of their formulas is for
// the tests to show.
#ifndef SPOPS_BENCH_REDUCTIONS_H
#define SPOPS_BENCH_REDUCTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "spops/types.h"

typedef union reduction_state {
    double align;
    unsigned char bytes[16]; // twice what a state in float may take
} reduction_state;

// The functions take a row of columns: states, and values v[c] of a term.
typedef struct bench_reduction {
    spops_reduce reduce;
    const char *name;
    bool has_arg, has_grad, is_linear; // as in spops/device/reduce_ops.h
    void (*clear)(int64_t cols, reduction_state *states);
    void (*fold)(int64_t cols, reduction_state *states, const double *v, int32_t term);
    void (*finalize)(int64_t cols, const reduction_state *states, int64_t count, double *out);
    // d out / d v of a term, once all terms are folded.
    void (*grad)(int64_t cols, const reduction_state *states, int64_t count, const double *v,
                 int32_t term, double *out);
} bench_reduction;

extern const bench_reduction bench_reductions[];
extern const int bench_num_reductions;

const bench_reduction *bench_reduction_find(spops_reduce reduce);

#endif
