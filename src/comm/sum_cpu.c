// SPDX-License-Identifier: Apache-2.0
// Parts summed in their order, column by column.
#include "backends/backend_cpu.h"
#include "comm/comm_args.h"
#include "core/threads.h"

enum { STRIP = 1024 }; // columns whose sums stay in the cache

// columns begin to end - 1 of out, which is the first part or 0, and each other part onto it.
#define SUM_COLUMNS(type)                                                                          \
    do {                                                                                           \
        const type *parts = (const type *)a->parts;                                                \
        type *out = (type *)a->out;                                                                \
        for (int64_t c = begin; c < end; ++c)                                                      \
            out[c] = a->num_parts > 0 ? parts[c] : (type)0;                                        \
        for (int64_t p = 1; p < a->num_parts; ++p)                                                 \
            for (int64_t c = begin; c < end; ++c)                                                  \
                out[c] += parts[p * a->stride + c];                                                \
    } while (0)

static void sum_strips(const void *work, int64_t first, int64_t last)
{
    const spops_comm_sum_args *a = (const spops_comm_sum_args *)work;
    for (int64_t s = first; s < last; ++s) {
        const int64_t begin = s * STRIP;
        const int64_t end = a->cols - begin < STRIP ? a->cols : begin + STRIP;
        if (a->dtype == SPOPS_DTYPE_F64)
            SUM_COLUMNS(double);
        else
            SUM_COLUMNS(float);
    }
}

spops_status spops_cpu_comm_sum(spops_context *ctx, const spops_comm_sum_args *args)
{
    spops_parallel_for(spops_team_for(ctx, args->cols * (args->num_parts + 1)),
                       (args->cols + STRIP - 1) / STRIP, 0, sum_strips, args);
    return SPOPS_STATUS_OK;
}
