// SPDX-License-Identifier: Apache-2.0
// How the CPU divides the segments of lists over threads: into runs of neighbouring segments that
// cost about the same. A segment costs its terms plus one, for being written. Which thread takes a
// run, and in which order, changes no result.
#ifndef SPOPS_SEGMENTS_RUNS_H
#define SPOPS_SEGMENTS_RUNS_H

#include "segments/lists.h"

#define SPOPS_RUNS_PER_THREAD 16
#define SPOPS_RUN_MIN_COST    64

static inline int64_t spops_runs_cost(const spops_lists *lists)
{
    return lists->num_segments > 0 ? lists->num_segments + lists->offsets[lists->num_segments] : 0;
}

static inline int64_t spops_runs_count(const spops_lists *lists, int num_threads)
{
    const int64_t most = (int64_t)num_threads * SPOPS_RUNS_PER_THREAD;
    const int64_t runs = spops_runs_cost(lists) / SPOPS_RUN_MIN_COST;
    return num_threads == 1 || runs < 1 ? 1 : runs < most ? runs : most;
}

// First segment of run `run` of `num_runs`; of run num_runs: num_segments.
static inline int64_t spops_run_begin(const spops_lists *lists, int64_t num_runs, int64_t run)
{
    if (run >= num_runs) return lists->num_segments;
    // Costs are below 2^32 and runs are few: the product fits.
    const int64_t cost = spops_runs_cost(lists) * run / num_runs;
    int64_t low = 0, high = lists->num_segments;
    while (low < high) { // first segment with at least `cost` before it
        const int64_t middle = low + (high - low) / 2;
        if (lists->offsets[middle] + middle < cost)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

#endif
