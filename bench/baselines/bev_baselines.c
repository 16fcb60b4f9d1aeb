// SPDX-License-Identifier: Apache-2.0
// BEV pooling on the CPU as one writes it down first: a loop over intervals, a loop over points, a
// loop over channels. Only for measuring.
#include "bench/baselines/bev_baselines.h"

#include <string.h>

#include "bench/bench_data.h"

#define MAX_COLS 1024

// One interval with channels in the innermost loop.
static void pool_interval(const bev_baseline_args *args, int64_t interval)
{
    const spops_bev_ranks *r = &args->ranks;
    const int32_t begin = r->interval_starts[interval];
    const int32_t end = begin + r->interval_lengths[interval];
    const int64_t cols = args->cols;
    const int64_t cell = r->ranks_bev[begin];
    float sum[MAX_COLS] = {0};

    for (int32_t p = begin; p < end; ++p) {
        const float d = bench_get(args->depth, args->dtype, r->ranks_depth[p]);
        const int64_t row = r->ranks_feat[p] * cols;
        if (args->dtype == SPOPS_DTYPE_F32) {
            const float *f = (const float *)args->feat + row;
            for (int64_t c = 0; c < cols; ++c)
                sum[c] += d * f[c];
        } else {
            for (int64_t c = 0; c < cols; ++c)
                sum[c] += d * bench_get(args->feat, args->dtype, row + c);
        }
    }
    for (int64_t c = 0; c < cols; ++c)
        bench_set(args->out, args->dtype, cell * cols + c, sum[c]);
}

static void clear(const bev_baseline_args *args)
{
    memset(args->out, 0,
           (size_t)args->num_cells * (size_t)args->cols * spops_dtype_bytes(args->dtype));
}

static void naive(void *user)
{
    const bev_baseline_args *args = user;
    clear(args);
    for (int64_t i = 0; i < args->ranks.num_intervals; ++i)
        pool_interval(args, i);
}

static void naive_threads(void *user)
{
    const bev_baseline_args *args = user;
    clear(args);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < args->ranks.num_intervals; ++i)
        pool_interval(args, i);
}

static bool accepts(const bev_baseline_args *args)
{
    return args->cols <= MAX_COLS;
}

const bev_baseline bev_baselines_cpu[] = {
    {"naive_loop", accepts, naive},
    {"naive_loop_threads", accepts, naive_threads},
};
const int num_bev_baselines_cpu = (int)(sizeof bev_baselines_cpu / sizeof bev_baselines_cpu[0]);
