// SPDX-License-Identifier: Apache-2.0
// How CPU code goes over the segments of lists: whole segments in runs, and pieces of those that are
// split; then, where it asks for that, over the split segments.
#ifndef SPOPS_SEGMENTS_WALK_CPU_H
#define SPOPS_SEGMENTS_WALK_CPU_H

#include "core/threads.h"
#include "segments/runs.h"

typedef struct spops_cpu_walk {
    const void *work;
    const spops_lists *lists;
    // Of a segment that is not split, and of a piece, whose number is not negative.
    void (*range)(const void *work, int64_t segment, int64_t begin, int64_t end, int64_t piece);
    void (*split)(const void *work, const spops_split_segment *split); // NULL: nothing is done
    int64_t num_pieces, num_runs;
} spops_cpu_walk;

static inline void spops_cpu_walk_items(const void *walk, int64_t begin, int64_t end)
{
    const spops_cpu_walk *w = (const spops_cpu_walk *)walk;
    const spops_lists *lists = w->lists;
    const int32_t split_terms = lists->schedule->split_terms;

    for (int64_t i = begin; i < end; ++i) {
        if (i < w->num_pieces) {
            const spops_work_item *piece = &lists->pieces[i];
            w->range(w->work, piece->segment, piece->begin, (int64_t)piece->begin + piece->count,
                     i);
            continue;
        }
        const int64_t run = i - w->num_pieces;
        const int64_t last = spops_run_begin(lists, w->num_runs, run + 1);
        for (int64_t s = spops_run_begin(lists, w->num_runs, run); s < last; ++s)
            if (lists->offsets[s + 1] - lists->offsets[s] <= split_terms)
                w->range(w->work, s, lists->offsets[s], lists->offsets[s + 1], -1);
    }
}

static inline void spops_cpu_walk_splits(const void *walk, int64_t begin, int64_t end)
{
    const spops_cpu_walk *w = (const spops_cpu_walk *)walk;
    for (int64_t i = begin; i < end; ++i)
        w->split(w->work, &w->lists->splits[i]);
}

// walk->work, lists, range and split are set; a term costs as much as `cost` elements.
static inline void spops_cpu_walk_run(const spops_context *ctx, spops_cpu_walk *walk, int64_t cost)
{
    const spops_team team = spops_team_for(ctx, spops_runs_cost(walk->lists) * cost);
    walk->num_pieces = walk->lists->schedule->num_pieces;
    walk->num_runs = spops_runs_count(walk->lists, team.size);
    spops_parallel_for(team, walk->num_pieces + walk->num_runs, 1, spops_cpu_walk_items, walk);
    if (walk->split != NULL)
        spops_parallel_for(team, walk->lists->schedule->num_splits, 1, spops_cpu_walk_splits, walk);
}

#endif
