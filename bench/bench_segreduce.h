// SPDX-License-Identifier: Apache-2.0
// What the passes of the segreduce suite share.
#ifndef SPOPS_BENCH_SEGREDUCE_H
#define SPOPS_BENCH_SEGREDUCE_H

#include "bench/bench_data.h"
#include "bench/bench_reductions.h"
#include "bench/bench_report.h"

// What one shape, dtype and width share.
typedef struct segreduce_data {
    bench *b;
    const char *shape;
    int64_t num_segments, num_terms, longest, num_nonempty;
    int32_t *offsets, *idx; // host
    void *device_offsets, *device_idx;
    spops_segments *ordered, *gathering;
    const bench_block *values, *weights, *grads; // of x, w, grad_out
    int64_t cols;
    spops_matrix x, w, out;
    spops_matrix grad_out, grad_x, grad_w; // without memory unless the backward pass is wanted

    // The case being measured.
    const spops_segments *plan;
    const bench_reduction *op;
    bool weighted;
    bool wants_x, wants_w; // gradients
    spops_status status;   // of the first call that failed
} segreduce_data;

// v of a term's columns: weight times row, rounded to f32 once.
void segreduce_values(const segreduce_data *d, int32_t term, double *v);
// The reference's states of terms begin .. end - 1.
void segreduce_fold(const segreduce_data *d, int32_t begin, int32_t end, reduction_state *states);

size_t segreduce_matrix_bytes(const spops_matrix *m);

// Name, sizes, dtype and width of a case; not its bytes.
void segreduce_begin_case(const segreduce_data *d, const char *what, bench_case *c);

// The gradients of one reduction over the gathering plan, with weights.
void segreduce_measure_backward(segreduce_data *d, const bench_reduction *op);

#endif
