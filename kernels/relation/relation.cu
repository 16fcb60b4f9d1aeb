// SPDX-License-Identifier: Apache-2.0
// Relations: which rows they name, and places of entries. A thread an element; how many there are is
// read where it stands, so that a captured graph marks what the plan holds when it runs.
#include "kernels/core/launch.cuh"
#include "relation/relation.h"

using namespace spops;

namespace
{

constexpr int threads = 256;

// Enough to fill the device; each goes on by all of them.
dim3 blocks_over(const spops_context *ctx, int64_t n)
{
    const int64_t resident = (int64_t)ctx->info.num_processors * 8;
    const int64_t blocks = (n + threads - 1) / threads;
    return dim3((unsigned)(blocks < resident ? blocks : resident));
}

__device__ __forceinline__ int64_t first_item()
{
    return (int64_t)blockIdx.x * threads + threadIdx.x;
}

__global__ void mark_lists(spops_relation_rows_args p)
{
    for (int64_t i = first_item(); i < p.max_rows; i += (int64_t)gridDim.x * threads)
        p.rows[i] = p.offsets[i] < p.offsets[i + 1];
}

// All that mark a row write the same.
__global__ void mark_entries(spops_relation_rows_args p)
{
    const int64_t num = (int64_t)*p.entries.num * p.entries.each;
    for (int64_t e = first_item(); e < num; e += (int64_t)gridDim.x * threads) {
        const int64_t row = p.entries.rows == nullptr ? e : p.entries.rows[e * p.entries.stride];
        if (row >= 0) p.rows[row] = 1;
    }
}

__global__ void mark_table(spops_relation_rows_args p)
{
    const int64_t num_rows = p.num_rows == nullptr ? p.max_rows : *p.num_rows;
    for (int64_t i = first_item(); i < p.max_rows; i += (int64_t)gridDim.x * threads) {
        uint8_t any = 0;
        for (int k = 0; i < num_rows && any == 0 && k < p.table_stride; ++k)
            any = p.table[i * p.table_stride + k] >= 0;
        p.rows[i] = any;
    }
}

struct places_params {
    int64_t num_entries, num_keys, without;
    const int32_t *offsets, *first;
    struct side {
        const int32_t *from;
        int32_t stride;
        int32_t *to;
    } sides[SPOPS_NUM_SIDES];
    int32_t *places;
};

// The last list that begins at entry e or before it, and is not empty.
__device__ __forceinline__ int64_t list_of(const places_params &p, int64_t e)
{
    int64_t low = 0, high = p.num_keys - 1;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (p.offsets[middle] <= e)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

__global__ void place_entries(places_params p)
{
    const int64_t begin = p.without < 0 ? p.num_entries : p.offsets[p.without];
    const int64_t end = p.without < 0 ? p.num_entries : p.offsets[p.without + 1];
    for (int64_t e = first_item(); e < p.num_entries; e += (int64_t)gridDim.x * threads) {
        if (e >= begin && e < end) continue;
        const int64_t to = e < begin ? e : e - (end - begin);
        const int64_t list = list_of(p, e);
        for (int side = 0; side < SPOPS_NUM_SIDES; ++side)
            if (p.sides[side].to != nullptr)
                p.sides[side].to[to] = p.sides[side].from[e * p.sides[side].stride];
        if (p.places != nullptr) p.places[to] = p.first[list] + (int32_t)(e - p.offsets[list]);
    }
}

} // namespace

extern "C" spops_status spops_cuda_relation_rows(spops_context *ctx,
                                                 const spops_relation_rows_args *args)
{
    static const char what[] = "relation_rows: launch";
    if (args->offsets != nullptr)
        return launch(ctx, what, mark_lists, blocks_over(ctx, args->max_rows), threads, *args);
    if (args->entries.num == nullptr)
        return launch(ctx, what, mark_table, blocks_over(ctx, args->max_rows), threads, *args);
    SPOPS_TRY(ctx->backend->fill_zero(ctx, args->rows, (size_t)args->max_rows));
    return launch(ctx, what, mark_entries, blocks_over(ctx, args->entries.most), threads, *args);
}

extern "C" spops_status spops_cuda_relation_places(spops_context *ctx,
                                                   const spops_relation_places_args *args)
{
    const spops_relation *r = args->relation;
    places_params p = {};
    p.num_entries = args->num_entries;
    p.num_keys = r->num_keys;
    p.without = args->without;
    p.offsets = r->sides[SPOPS_SIDE_TARGET].by_key.offsets;
    p.first = args->first;
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side) {
        const spops_relation_lists *lists = &r->sides[side].by_key;
        p.sides[side] = {lists->rows, lists->stride, args->rows[side]};
    }
    p.places = args->places;
    return launch(ctx, "relation_places: launch", place_entries, blocks_over(ctx, p.num_entries),
                  threads, p);
}
