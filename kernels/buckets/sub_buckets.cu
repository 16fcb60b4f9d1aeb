// SPDX-License-Identifier: Apache-2.0
// Sub-buckets on the GPU: rows are sorted by bucket and, within it, along a Z-order curve; every
// bucket is then cut into runs.
#include "buckets/buckets.h"
#include "kernels/core/device_wide.h"
#include "kernels/core/launch.cuh"

namespace
{

using namespace spops;

constexpr int threads = 256;

struct sub_params {
    spops_buckets_arrays a;
    int32_t sub_rows;
    int32_t *rows, *subs, *sample_offsets;
    uint64_t *keys, *sorted_keys; // [max_rows]
    int32_t *unsorted;            // [max_rows]
    int32_t *first;               // [max_buckets + 1] sub-buckets of a bucket, then before it
    device_wide wide;
};

sub_params params_of(const spops_sub_buckets_args *args, spops_carver *c)
{
    const spops_buckets_arrays *a = args->buckets;
    sub_params p = {};
    p.a = *a;
    p.sub_rows = args->sub_rows;
    p.rows = args->rows;
    p.subs = args->subs;
    p.sample_offsets = args->sample_offsets;
    p.keys = (uint64_t *)spops_carve(c, a->max_rows, 1, sizeof(uint64_t));
    p.sorted_keys = (uint64_t *)spops_carve(c, a->max_rows, 1, sizeof(uint64_t));
    p.unsorted = (int32_t *)spops_carve(c, a->max_rows, 1, sizeof(int32_t));
    p.first = (int32_t *)spops_carve(c, a->max_buckets + 1, 1, sizeof(int32_t));
    p.wide.needs_sort<uint64_t>(a->max_rows, 64);
    p.wide.needs_scan<int32_t>(a->max_buckets + 1);
    p.wide.carve(c);
    return p;
}

// A thread a row, and a bucket: those that are not in use come last, and have nothing.
__global__ void __launch_bounds__(threads) rank_rows(const __grid_constant__ sub_params p)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i < p.a.max_rows) {
        const bool used = i < p.a.state->num_rows;
        const uint64_t bucket = (uint64_t)(used ? p.a.row_buckets[i] : p.a.max_buckets);
        p.keys[i] = bucket << 3 * p.a.rule.bits | (used ? p.a.codes[i] : 0);
        p.unsorted[i] = (int32_t)i;
    }
    if (i > p.a.max_buckets) return;
    const int32_t n = i < p.a.max_buckets ? p.a.offsets[i + 1] - p.a.offsets[i] : 0;
    p.first[i] = (int32_t)(((int64_t)n + p.sub_rows - 1) / p.sub_rows);
}

__global__ void __launch_bounds__(threads) number_rows(const __grid_constant__ sub_params p)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i < p.a.state->num_rows) {
        const int32_t bucket = p.a.row_buckets[p.rows[i]];
        p.subs[i] = p.first[bucket] + ((int32_t)i - p.a.offsets[bucket]) / p.sub_rows;
    }
    if (i <= p.a.max_samples) p.sample_offsets[i] = p.first[p.a.sample_buckets[i]];
}

} // namespace

extern "C" size_t spops_cuda_sub_buckets_workspace_bytes(spops_context *,
                                                         const spops_sub_buckets_args *args)
{
    spops_carver carver = {nullptr, 0};
    (void)params_of(args, &carver);
    return carver.used;
}

extern "C" spops_status spops_cuda_sub_buckets(spops_context *ctx,
                                               const spops_sub_buckets_args *args)
{
    const spops_buckets_arrays *a = args->buckets;
    spops_carver carver = {(char *)args->workspace, 0};
    const sub_params p = params_of(args, &carver);
    const int64_t ranks = a->max_rows > a->max_buckets ? a->max_rows : a->max_buckets + 1;
    const int64_t numbers = a->max_rows > a->max_samples ? a->max_rows : a->max_samples + 1;
    SPOPS_TRY(launch(ctx, "sub_buckets: rank_rows", rank_rows, blocks_for(ranks, threads),
                     (unsigned)threads, p));
    if (a->max_rows > 0)
        SPOPS_TRY(p.wide.sort(ctx, "sub_buckets: sort", p.keys, p.sorted_keys, p.unsorted, p.rows,
                              a->max_rows, spops_sub_bucket_bits(a)));
    SPOPS_TRY(p.wide.scan(ctx, "sub_buckets: scan", p.first, p.first, a->max_buckets + 1));
    return launch(ctx, "sub_buckets: number_rows", number_rows, blocks_for(numbers, threads),
                  (unsigned)threads, p);
}
