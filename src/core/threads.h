// SPDX-License-Identifier: Apache-2.0
// The threads of a CPU context, and the one call that divides work over them.
//
//     typedef struct scale_work { const float *x; float *out; } scale_work;
//
//     static void scale_range(const void *work, int64_t begin, int64_t end)
//     {
//         const scale_work *s = (const scale_work *)work;
//         for (int64_t i = begin; i < end; ++i) s->out[i] = 2.0f * s->x[i];
//     }
//
//     const scale_work work = {x, out};
//     spops_parallel_for(spops_team_for(ctx, n), n, 0, scale_range, &work);
//
// Which thread takes which range, and in what order, is up to the moment: a range must write what no
// other one reads or writes, and results must not depend on where ranges begin. What is counted or
// summed is divided into parts by spops_part_begin, with a result each.
#ifndef SPOPS_CORE_THREADS_H
#define SPOPS_CORE_THREADS_H

#include <stdint.h>

#include "core/context.h"

#ifdef __cplusplus
extern "C" {
#endif

// Elements of work, some nanoseconds each, below which a second thread costs more than it saves.
#define SPOPS_MIN_THREAD_ITEMS 8192

// A context's threads, and how many of them a piece of work is worth.
typedef struct spops_team {
    spops_threads *threads; // NULL: the caller's own alone
    int size;               // with the caller's own; at least 1
} spops_team;

spops_team spops_team_for(const spops_context *ctx, int64_t items);

// body(work, begin, end) for the ranges that 0 .. n - 1 is cut into, of `grain` indices each (0: by
// the size of the team). Returns when all have run. The caller's thread works too, and alone where
// no other one comes: it never waits for a thread that has not begun.
typedef void (*spops_parallel_body)(const void *work, int64_t begin, int64_t end);
void spops_parallel_for(spops_team team, int64_t n, int64_t grain, spops_parallel_body body,
                        const void *work);

// The same for the parts that 0 .. n - 1 is cut into, whose number the caller chose:
// body(work, part, begin, end).
typedef void (*spops_part_body)(const void *work, int64_t part, int64_t begin, int64_t end);
void spops_parallel_parts(spops_team team, int64_t num_parts, int64_t n, spops_part_body body,
                          const void *work);

// Parts for a team, at most `most`: several for each thread, which evens out threads of unequal speed.
int spops_team_parts(spops_team team, int most);

// Part `part` of `num_parts` of n items begins here.
static inline int64_t spops_part_begin(int64_t n, int64_t part, int64_t num_parts)
{
    return n / num_parts * part + (part < n % num_parts ? part : n % num_parts);
}

// Threads for ctx->num_threads, kept in ctx. None is started before there is work for it.
spops_status spops_threads_open(spops_context *ctx);

// End the threads of ctx, if it has any.
void spops_threads_close(spops_context *ctx);

// As many as the process may run on, or OMP_NUM_THREADS, as other numerical libraries read it, where
// that is less.
int spops_default_num_threads(int most);

#ifdef __cplusplus
}
#endif

#endif
