// SPDX-License-Identifier: Apache-2.0
#include "bench/baselines/segreduce_baselines.h"

#include "bench/bench_data.h"

#define MAX_COLS 1024

bool segsum_naive_accepts(const segsum_baseline_args *args)
{
    return args->cols <= MAX_COLS;
}

static void sum_segment(const segsum_baseline_args *args, int64_t segment)
{
    const int64_t cols = args->cols;
    float sum[MAX_COLS] = {0};
    for (int32_t t = args->offsets[segment]; t < args->offsets[segment + 1]; ++t) {
        const int64_t row = (args->idx != NULL ? args->idx[t] : t) * cols;
        const float w = args->w != NULL ? bench_get(args->w, args->dtype, t) : 1.0f;
        if (args->dtype == SPOPS_DTYPE_F32) {
            const float *x = (const float *)args->x + row;
            for (int64_t c = 0; c < cols; ++c)
                sum[c] += w * x[c];
        } else {
            for (int64_t c = 0; c < cols; ++c)
                sum[c] += w * bench_get(args->x, args->dtype, row + c);
        }
    }
    for (int64_t c = 0; c < cols; ++c)
        bench_set(args->out, args->dtype, segment * cols + c, sum[c]);
}

void segsum_naive(void *user)
{
    const segsum_baseline_args *args = user;
    for (int64_t s = 0; s < args->num_segments; ++s)
        sum_segment(args, s);
}

void segsum_naive_threads(void *user)
{
    const segsum_baseline_args *args = user;
#pragma omp parallel for schedule(static)
    for (int64_t s = 0; s < args->num_segments; ++s)
        sum_segment(args, s);
}
