// Which variants of the sum kernel are compiled, and which one a launch takes. Other reductions
// have one variant. Plain C; every row names the measurement it rests on (more in
// docs/performance.md).
#ifndef SPOPS_KERNELS_SEGREDUCE_TUNING_H
#define SPOPS_KERNELS_SEGREDUCE_TUNING_H

#include <stdint.h>

#define SPOPS_SEGREDUCE_THREADS 256

#define SPOPS_SEGREDUCE_VARIANTS(X) /* variant, terms in flight, blocks a multiprocessor holds */  \
    X(1, 2, 4)                      /* variant 1 accepts every input */                            \
    X(2, 2, 6)

typedef struct spops_segreduce_row {
    int64_t min_blocks_per_processor;
    int variant;
} spops_segreduce_row;

static const spops_segreduce_row spops_segreduce_rows[] = {
    // first match
    // H200, f16, C = 80, 1.6 million terms (map B): 46.3 us; variant 1: 50.5 us.
    // C = 256 on map A: 11.6 us; variant 1: 12.8 us. f32 sum, power law, C = 64: 96 us; 1: 103 us.
    {12, 2},
    // f16, C = 80, map A (5 blocks a multiprocessor): 5.2 us; variant 2: 7.1 us.
    {0, 1},
};

static inline int spops_segreduce_variant(int64_t blocks, int processors)
{
    const spops_segreduce_row *row = spops_segreduce_rows;
    while (blocks < row->min_blocks_per_processor * processors)
        ++row;
    return row->variant;
}

#endif
