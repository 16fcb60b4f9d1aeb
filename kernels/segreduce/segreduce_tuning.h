// SPDX-License-Identifier: Apache-2.0
// Which variants of the segmented sum are compiled, and which one rows take. Other reductions have
// one variant. Plain C; every row names the measurement that it rests on (more in
// docs/performance.md).
#ifndef SPOPS_KERNELS_SEGREDUCE_TUNING_H
#define SPOPS_KERNELS_SEGREDUCE_TUNING_H

#include "kernels/core/tuning.h"

#define SPOPS_SEGREDUCE_THREADS 256

// ---- f32, f16 and bf16: whole chunks of 16 bytes, counts known when the plan is made ------------

#define SPOPS_SEGREDUCE_VARIANTS(X) /* variant, terms in flight, blocks a multiprocessor holds */  \
    X(1, 2, 4)                                                                                     \
    X(2, 2, 6)                                                                                     \
    X(3, 4, 4)
enum { SPOPS_SEGREDUCE_NUM_VARIANTS = 3 };

typedef struct spops_segreduce_row {
    spops_tuning_key key;
    int64_t min_blocks; // of the launch, per multiprocessor
    int32_t variant;
} spops_segreduce_row;

static const spops_segreduce_row spops_segreduce_rows[] = {
    // H200, f16, C = 80, 1.6 million terms (map B): 46.3 us; variant 1: 50.5 us.
    // C = 256 on map A: 11.6 us; variant 1: 12.8 us. f32 sum, power law, C = 64: 96 us; 1: 103 us.
    // Not on sm_75, whose multiprocessors hold four blocks at most.
    {{80, SPOPS_ANY_REGIME, SPOPS_ANY_DTYPE, 0}, 12, 2},
    // f16, C = 80, map A (5 blocks a multiprocessor): 5.2 us; variant 2: 7.1 us.
    {{0, SPOPS_ANY_REGIME, SPOPS_ANY_DTYPE, 33}, 0, 1},
    // H200, f16, C = 16, 1.6 million terms, uniform, power law and huge: 16.1, 20.6 and 23.6 us;
    // variant 1: 19.9, 25.0 and 26.8 us.
    {SPOPS_ANY_CASE, 0, 3},
};

static inline int32_t spops_segreduce_variant(const spops_tuning_case *at, int64_t num_blocks,
                                              int32_t num_processors)
{
    const spops_segreduce_row *row = spops_segreduce_rows;
    while (!spops_tuning_matches(&row->key, at) || num_blocks < row->min_blocks * num_processors)
        ++row;
    return row->variant;
}

// ---- Rows of 8 and 4 bits, and sums in f16 ------------------------------------------------------

// 16 columns a thread (segsum_wide.cu) where the rows allow it, else 8 (segsum_mixed.cu).
typedef struct spops_segsum_row {
    spops_tuning_key key;
    int32_t thread_cols;
} spops_segsum_row;

static const spops_segsum_row spops_segsum_rows[] = {
    // H200, map A, f8e4m3: C = 256 11.2 us; 8 columns: 13.8 us.
    {{0, SPOPS_ANY_REGIME, SPOPS_ANY_DTYPE, 256}, 16},
    // C = 80: 5.7 us; 16 columns: 7.9 us.
    {SPOPS_ANY_CASE, 8},
};

static inline int32_t spops_segsum_thread_cols(const spops_tuning_case *at)
{
    const spops_segsum_row *row = spops_segsum_rows;
    while (!spops_tuning_matches(&row->key, at))
        ++row;
    return row->thread_cols;
}

#endif
