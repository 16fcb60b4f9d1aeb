// SPDX-License-Identifier: Apache-2.0
// Buckets on the GPU, as if rows came one after another. A block has a tile of consecutive rows of one
// sample. In a round it counts, for each bucket, the rows that ask for it, and where each of them
// stands among those of its tile; the launch after it adds up the counts of the tiles before, which
// says who gets a place, and the round after that begins in the same launch. So num_rounds + 2
// launches make buckets, and nothing depends on which block comes first.
#include "buckets/buckets.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/scan.cuh"
#include "spops/device/grid_dependency.cuh"

namespace
{

using namespace spops;

constexpr int threads = 1024, warps = threads / 32;
constexpr uint32_t no_place = ~0u;
constexpr int counter_bytes = 32 << 10; // of a block's groups of warps
constexpr int summed_buckets = 1024;    // up to here, several threads add up the counts of a bucket

struct workspace {
    uint32_t *asked;     // [max_rows] bucket << 16 | rows of the tile that asked for it before
    uint32_t *taken;     // [max_rows] bucket << 16 | place in it; or no_place
    uint16_t *counts[2]; // [num_tiles][stride] of this round and the one before
    uint16_t *used[2];   // [max_buckets] places given, after this round and the one before
    int32_t *late;       // [num_tiles] rows that no round has placed
};

struct bucket_params {
    spops_buckets_arrays a;
    spops_matrix points;
    int32_t num_rows;
    const int32_t *offsets; // nullptr: one sample
    int32_t num_samples;
    int32_t count_stride; // even
    int32_t groups;       // of warps, each with counters of its own
    workspace w;
};

int32_t items_for(int64_t max_rows)
{
    return max_rows <= 256 * threads ? 2 : 8;
}

int64_t tiles_for(const spops_buckets_arrays *a)
{
    return a->max_rows / (threads * items_for(a->max_rows)) + a->max_samples;
}

int32_t stride_for(const spops_buckets_arrays *a)
{
    return (a->most_buckets + 1) / 2 * 2;
}

workspace carve_workspace(const spops_buckets_arrays *a, spops_carver *c)
{
    workspace w = {};
    w.asked = (uint32_t *)spops_carve(c, a->max_rows, 1, sizeof(uint32_t));
    w.taken = (uint32_t *)spops_carve(c, a->max_rows, 1, sizeof(uint32_t));
    for (int i = 0; i < 2; ++i) {
        w.counts[i] = (uint16_t *)spops_carve(c, tiles_for(a), stride_for(a), sizeof(uint16_t));
        w.used[i] = (uint16_t *)spops_carve(c, a->max_buckets, 1, sizeof(uint16_t));
    }
    w.late = (int32_t *)spops_carve(c, tiles_for(a), 1, sizeof(int32_t));
    return w;
}

// ---- Tiles --------------------------------------------------------------------------------------

// A block's place. Sample b has tiles from offsets[b] / rows of a tile + b on, at least one and no more
// than come before those of the next sample, so that no list of them is needed.
struct tile_place {
    int32_t sample;
    int32_t tile, num_tiles;  // of the sample
    int32_t first_tile;       // of the sample, among all
    int32_t row, end;         // of the tile
    int32_t sample_row, rows; // of the sample
    int32_t buckets;
};

__device__ int32_t offset_of(const bucket_params &p, int32_t sample)
{
    if (p.offsets == nullptr) return sample == 0 ? 0 : p.num_rows;
    return min(max(p.offsets[sample], 0), p.num_rows);
}

template <int ITEMS> __device__ bool find_tile(const bucket_params &p, tile_place *t)
{
    constexpr int32_t tile_rows = threads * ITEMS;
    const int32_t block = (int32_t)blockIdx.x;
    int32_t low = 0, high = p.num_samples - 1; // the last sample whose tiles begin here or before
    while (low < high) {
        const int32_t middle = low + (high - low + 1) / 2;
        if (offset_of(p, middle) / tile_rows + middle <= block)
            low = middle;
        else
            high = middle - 1;
    }
    t->sample = low;
    t->sample_row = offset_of(p, low);
    t->rows = max(offset_of(p, low + 1) - t->sample_row, 0);
    t->first_tile = t->sample_row / tile_rows + low;
    t->num_tiles = max((t->rows + tile_rows - 1) / tile_rows, 1);
    t->tile = block - t->first_tile;
    t->row = t->sample_row + t->tile * tile_rows;
    t->end = min(t->sample_row + t->rows, t->row + tile_rows);
    t->buckets = min(spops_buckets_of(&p.a.rule, t->rows), p.a.most_buckets);
    return p.num_samples > 0 && t->tile >= 0 && t->tile < t->num_tiles;
}

__device__ bool is_valid(const bucket_params &p)
{
    return p.a.state->bad_offsets == 0 && p.a.state->full_sample == INT32_MAX;
}

__device__ int32_t hash_row(const bucket_params &p, int round, int32_t row, int32_t buckets)
{
    int32_t v[3];
    spops_bucket_row_cell(&p.a.rule, &p.points, row, v);
    return spops_bucket_hash_of(&p.a.rule, round, v, buckets);
}

// ---- Rounds -------------------------------------------------------------------------------------

// The sum over a block of a number of each thread, for all threads.
__device__ int32_t block_sum(int32_t value, int32_t *shared)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    value = warp_sum(value);
    __syncthreads();
    if (lane == 0) shared[warp] = value;
    __syncthreads();
    return warp_sum(shared[lane]);
}

// What is known of samples: whether they are right, and their first buckets. One block.
__device__ void start_samples(const bucket_params &p, int32_t *sums)
{
    const int32_t thread = (int32_t)threadIdx.x, lane = thread % 32, warp = thread / 32;
    int32_t first = 0; // bucket of the samples that are looked at
    int bad = 0, full = INT32_MAX;
    if (thread == 0) {
        *p.a.state = {};
        p.a.state->first_not_finite = p.a.state->full_sample = INT32_MAX;
    }
    for (int32_t begin = 0; begin <= p.a.max_samples; begin += threads) {
        const int32_t b = begin + thread;
        int32_t buckets = 0;
        if (b < p.num_samples) {
            const int32_t rows = offset_of(p, b + 1) - offset_of(p, b);
            if (p.offsets != nullptr)
                bad |= p.offsets[b] > p.offsets[b + 1] || p.offsets[b + 1] > p.num_rows ||
                       (b == 0 && p.offsets[0] != 0);
            buckets = spops_buckets_of(&p.a.rule, max(rows, 0));
            if (rows > (int64_t)buckets * p.a.rule.bucket_rows) full = min(full, b);
        }
        int32_t before = warp_scan(buckets);
        __syncthreads();
        if (lane == 31) sums[warp] = before;
        __syncthreads();
        const int32_t of_warps = sums[lane];
        before += warp_sum(lane < warp ? of_warps : 0) - buckets;
        if (b <= p.a.max_samples) p.a.sample_buckets[b] = first + before;
        first += warp_sum(of_warps);
    }
    __syncthreads();
    if (bad) atomicOr(&p.a.state->bad_offsets, 1);
    if (full != INT32_MAX) atomicMin(&p.a.state->full_sample, full);
    __syncthreads();
    if (thread == 0) {
        const bool valid = is_valid(p);
        p.a.state->num_rows = valid ? offset_of(p, p.num_samples) : 0;
        p.a.state->num_samples = p.num_samples;
        p.a.state->num_buckets = valid ? first : 0;
    }
}

// What a thread knows of its rows from earlier launches.
template <int ITEMS> struct row_state {
    bool waits[ITEMS];
    uint32_t asked[ITEMS];
};

// Before round 0 all rows wait.
template <int ITEMS>
__device__ void load_rows(const bucket_params &p, const tile_place &t, int round,
                          row_state<ITEMS> &rows)
{
    const int32_t row = t.row + (int32_t)threadIdx.x / 32 * 32 * ITEMS + (int32_t)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int32_t r = row + 32 * i;
        rows.waits[i] = r < t.end && (round <= 1 || p.w.taken[r] == no_place);
        rows.asked[i] = r < t.end && round > 0 ? p.w.asked[r] : 0;
    }
}

// Who of the round's rows gets a place, of those that wait. first: the sample's first bucket.
template <int ITEMS>
__device__ void settle(const bucket_params &p, const tile_place &t, int round, int32_t first,
                       uint16_t *base, uint32_t *sums, int32_t *scratch, row_state<ITEMS> &rows)
{
    const int32_t thread = (int32_t)threadIdx.x, k = t.buckets, words = (k + 1) / 2;
    const uint32_t *counts =
        (const uint32_t *)(p.w.counts[round % 2] + (int64_t)t.first_tile * p.count_stride);
    const int32_t step = p.count_stride / 2, places = p.a.rule.bucket_rows;
    const uint16_t *used = p.w.used[(round + 1) % 2] + first;
    uint16_t *now_used = p.w.used[round % 2] + first;
    // Of the bucket that has the number of the thread; loaded before it is needed.
    const int32_t own_used = round > 0 && thread < k ? used[thread] : 0;
    int32_t placed = 0;

    // Of bucket b: `before` rows of earlier tiles ask for it, `all` rows do.
    const auto put = [&](int32_t b, int32_t before, int32_t all) {
        if (b >= k) return;
        const int32_t given = b == thread ? own_used : round == 0 ? 0 : used[b];
        base[b] = (uint16_t)min(given + before, places);
        if (t.tile > 0) return;
        const int32_t now = min(given + all, places);
        now_used[b] = (uint16_t)now;
        placed += now - given;
    };
    const bool several = k <= summed_buckets;
    const int32_t parts = several && words > 0 ? min(threads / words, t.num_tiles) : 1;
    if (several) {
        for (int32_t i = thread; i < 2 * k; i += threads)
            sums[i] = 0;
        __syncthreads();
    }
    for (int32_t i = thread; i < words * parts; i += threads) {
        const int32_t w = i % words;
        int32_t all[2] = {0, 0}, before[2] = {0, 0};
#pragma unroll 16
        for (int32_t tile = i / words; tile < t.num_tiles; tile += parts) {
            const uint32_t pair = counts[(int64_t)tile * step + w];
            const uint32_t earlier = tile < t.tile ? pair : 0;
            all[0] += (int32_t)(pair & 0xffff), all[1] += (int32_t)(pair >> 16);
            before[0] += (int32_t)(earlier & 0xffff), before[1] += (int32_t)(earlier >> 16);
        }
        for (int half = 0; half < 2; ++half) {
            const int32_t b = 2 * w + half;
            if (!several) {
                put(b, before[half], all[half]);
            } else if (b < k) {
                atomicAdd(&sums[2 * b], (uint32_t)before[half]);
                atomicAdd(&sums[2 * b + 1], (uint32_t)all[half]);
            }
        }
    }
    __syncthreads();
    if (several)
        for (int32_t b = thread; b < k; b += threads)
            put(b, (int32_t)sums[2 * b], (int32_t)sums[2 * b + 1]);
    if (t.tile == 0) {
        placed = block_sum(placed, scratch);
        if (thread == 0 && placed > 0) atomicAdd(&p.a.state->num_placed[round], placed);
    }
    __syncthreads();

    const int32_t row = t.row + thread / 32 * 32 * ITEMS + thread % 32;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        if (!rows.waits[i]) continue;
        const uint32_t bucket = rows.asked[i] >> 16;
        const uint32_t place = base[bucket] + (rows.asked[i] & 0xffff);
        rows.waits[i] = place >= (uint32_t)places;
        if (!rows.waits[i] || round == 0)
            p.w.taken[row + 32 * i] = rows.waits[i] ? no_place : bucket << 16 | place;
    }
}

// The rows that wait ask for the buckets that they want.
template <int ITEMS>
__device__ void ask(const bucket_params &p, const tile_place &t, int round, uint16_t *counters,
                    const bool (&waits)[ITEMS], const uint32_t (&wanted)[ITEMS])
{
    const int32_t thread = (int32_t)threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int32_t turns = warps / p.groups;
    const int32_t row = t.row + warp * 32 * ITEMS + lane;
    uint16_t *mine = counters + (int64_t)(warp / turns) * p.count_stride;
    uint32_t asked[ITEMS];

    for (int32_t i = thread; i < p.groups * p.count_stride / 2; i += threads)
        ((uint32_t *)counters)[i] = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
        asked[i] = waits[i] ? wanted[i] : 0xffffu;
    __syncthreads();
    for (int turn = 0; turn < turns; ++turn) {
        if (warp % turns == turn) {
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) {
                const uint32_t bucket = asked[i];
                const uint32_t lanes = __match_any_sync(~0u, bucket);
                const uint32_t below = __popc(lanes & ((1u << lane) - 1));
                const uint32_t earlier = waits[i] ? mine[bucket] : 0;
                __syncwarp();
                if (waits[i] && below == 0) mine[bucket] = (uint16_t)(earlier + __popc(lanes));
                __syncwarp();
                asked[i] = bucket << 16 | (earlier + below);
            }
        }
        __syncthreads();
    }
    uint16_t *counts = p.w.counts[round % 2] + (int64_t)(t.first_tile + t.tile) * p.count_stride;
    for (int32_t b = thread; b < p.count_stride; b += threads) {
        uint32_t running = 0;
#pragma unroll 8
        for (int g = 0; g < p.groups; ++g) {
            const uint32_t count = counters[(int64_t)g * p.count_stride + b];
            counters[(int64_t)g * p.count_stride + b] = (uint16_t)running;
            running += count;
        }
        counts[b] = (uint16_t)running;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
        if (waits[i]) p.w.asked[row + 32 * i] = asked[i] + mine[asked[i] >> 16];
}

// The buckets that a thread's rows want in a round; there may be no such round, or no row.
template <int ITEMS>
__device__ void hash_rows(const bucket_params &p, const tile_place &t, bool here, int round,
                          uint32_t (&wanted)[ITEMS])
{
    const int32_t row = t.row + (int32_t)threadIdx.x / 32 * 32 * ITEMS + (int32_t)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int32_t r = row + 32 * i;
        wanted[i] = here && r < t.end && round < p.a.rule.num_rounds
                        ? (uint32_t)hash_row(p, round, r, t.buckets)
                        : 0;
    }
}

// Settle the round before, if there is one, and begin this one, if there is one.
template <int ITEMS>
__global__ void __launch_bounds__(threads)
    run_round(const __grid_constant__ bucket_params p, int round)
{
    extern __shared__ uint32_t shared[];
    __shared__ int32_t scratch[warps];
    uint16_t *base = (uint16_t *)shared, *counters = base + p.count_stride;
    tile_place t;
    row_state<ITEMS> rows;
    uint32_t wanted[ITEMS];
    // When a launch may run, all launches before the previous one have ended. From the second round on
    // the cloud is there, and rows are hashed while the round before ends.
    if (round == 0) grid_dependency_wait();
    const bool here = find_tile<ITEMS>(p, &t);
    hash_rows<ITEMS>(p, t, here, round, wanted);
    if (round > 0) grid_dependency_wait();
    grid_launch_dependents();
    if (round == 0 && blockIdx.x == 0) start_samples(p, scratch);
    if (!here) return;
    const int32_t first = round > 0 ? p.a.sample_buckets[t.sample] : 0;
    load_rows<ITEMS>(p, t, round, rows);
    if (round > 0 && !is_valid(p)) return;
    if (round > 0) {
        settle<ITEMS>(p, t, round - 1, first, base, (uint32_t *)counters, scratch, rows);
        __syncthreads();
    }
    if (round < p.a.rule.num_rounds) {
        ask<ITEMS>(p, t, round, counters, rows.waits, wanted);
        return;
    }
    int32_t late = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
        late += rows.waits[i];
    late = block_sum(late, scratch);
    if (threadIdx.x == 0) p.w.late[t.first_tile + t.tile] = late;
}

// ---- The end ------------------------------------------------------------------------------------

// up[b]: places that the rounds gave in buckets before b, for b up to the number of buckets.
__device__ void sum_used(const uint16_t *used, int32_t k, uint32_t *up, int32_t *scratch)
{
    const int32_t thread = (int32_t)threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int32_t each = (k + threads - 1) / threads;
    const int32_t begin = min(thread * each, k), end = min(begin + each, k);
    int32_t own = 0;
    for (int32_t b = begin; b < end; ++b)
        own += used[b];
    const int32_t sum = warp_scan(own);
    if (lane == 31) scratch[warp] = sum;
    __syncthreads();
    uint32_t at = (uint32_t)(sum - own + warp_sum(lane < warp ? scratch[lane] : 0));
    for (int32_t b = begin; b < end; ++b) {
        up[b] = at;
        at += used[b];
    }
    if (begin < end && end == k) up[k] = at;
    if (k == 0 && thread == 0) up[0] = 0;
    __syncthreads();
}

// up: [buckets + 1] of shared memory. All threads of a block call.
template <int ITEMS>
__device__ void put_places(const bucket_params &p, const tile_place &t, bool here, uint32_t *up,
                           int32_t *scratch)
{
    const int32_t thread = (int32_t)threadIdx.x, lane = thread % 32, warp = thread / 32;
    const bool valid = is_valid(p);
    spops_buckets_state *state = p.a.state;
    const int64_t all = (int64_t)gridDim.x * threads, own = (int64_t)blockIdx.x * threads + thread;
    const int32_t num_buckets = state->num_buckets, num_rows = state->num_rows;
    for (int64_t b = num_buckets + own; b <= p.a.max_buckets; b += all)
        p.a.offsets[b] = num_rows;
    if (!valid) {
        for (int64_t b = own; b <= p.a.max_samples; b += all)
            p.a.sample_buckets[b] = 0;
        return;
    }
    if (!here) return;

    const int32_t k = t.buckets, places = p.a.rule.bucket_rows,
                  first = p.a.sample_buckets[t.sample];
    sum_used(p.w.used[(p.a.rule.num_rounds + 1) % 2] + first, k, up, scratch);
    // Rows that are late: of the sample, and of its tiles before.
    int32_t late = 0, before = 0;
    for (int32_t tile = thread; tile < t.num_tiles; tile += threads) {
        const int32_t n = p.w.late[t.first_tile + tile];
        late += n;
        before += tile < t.tile ? n : 0;
    }
    late = block_sum(late, scratch);
    before = block_sum(before, scratch);
    // What is free in buckets before b, and where bucket b begins.
    const auto free_before = [&](int32_t b) { return b * places - (int32_t)up[b]; };
    const auto begin_of = [&](int32_t b) {
        return t.sample_row + (int32_t)up[b] + min(late, free_before(b));
    };
    if (t.tile == 0) {
        for (int32_t b = thread; b < k; b += threads)
            p.a.offsets[first + b] = begin_of(b);
        if (thread == 0 && late > 0) atomicAdd(&state->num_late, late);
    }

    const int32_t row = t.row + warp * 32 * ITEMS + lane;
    uint32_t taken[ITEMS];
    int32_t waiting = 0; // rows of the warp before this one
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int32_t r = row + 32 * i;
        taken[i] = r < t.end ? p.w.taken[r] : 0;
        waiting += __popc(__ballot_sync(~0u, taken[i] == no_place));
    }
    __syncthreads();
    if (lane == 0) scratch[warp] = waiting;
    __syncthreads();
    before += warp_sum(lane < warp ? scratch[lane] : 0);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int32_t r = row + 32 * i;
        const uint32_t lanes = __ballot_sync(~0u, taken[i] == no_place);
        const int32_t rank = before + __popc(lanes & ((1u << lane) - 1));
        before += __popc(lanes);
        if (r >= t.end) continue;
        int32_t bucket = (int32_t)(taken[i] >> 16), place = (int32_t)(taken[i] & 0xffff);
        if (taken[i] ==
            no_place) { // the last bucket with no more free before it than rows are late
            int32_t low = 0, high = k - 1;
            while (low < high) {
                const int32_t middle = low + (high - low + 1) / 2;
                if (free_before(middle) <= rank)
                    low = middle;
                else
                    high = middle - 1;
            }
            bucket = low;
            place = (int32_t)(up[low + 1] - up[low]) + rank - free_before(low);
        }
        const int32_t at = begin_of(bucket) + place;
        p.a.rows[at] = r;
        p.a.places[r] = at;
        p.a.row_buckets[r] = first + bucket;
        int32_t v[3];
        uint32_t cell[3];
        spops_bucket_row_cell(&p.a.rule, &p.points, r, v);
        for (int a = 0; a < 3; ++a)
            cell[a] = spops_bucket_clamp(&p.a.rule, v[a]);
        p.a.codes[r] = spops_bucket_zorder(cell);
        if (!spops_bucket_row_is_finite(&p.points, r)) {
            atomicAdd(&state->num_not_finite, 1);
            atomicMin(&state->first_not_finite, r);
        }
    }
}

template <int ITEMS>
__global__ void __launch_bounds__(threads) finish(const __grid_constant__ bucket_params p)
{
    extern __shared__ uint32_t up[];
    __shared__ int32_t scratch[warps];
    tile_place t;
    grid_dependency_wait();
    grid_launch_dependents();
    const bool here = find_tile<ITEMS>(p, &t);
    put_places<ITEMS>(p, t, here, up, scratch);
}

// Shared memory of a block.
size_t round_bytes(const bucket_params &p)
{
    // Sums of settle lie where counters do.
    size_t counters = (size_t)p.groups * (size_t)p.count_stride * sizeof(uint16_t);
    if (p.a.most_buckets <= summed_buckets &&
        counters < 2 * sizeof(uint32_t) * (size_t)p.count_stride)
        counters = 2 * sizeof(uint32_t) * (size_t)p.count_stride;
    return (size_t)p.count_stride * sizeof(uint16_t) + counters;
}
size_t finish_bytes(const bucket_params &p)
{
    return ((size_t)p.a.most_buckets + 1) * sizeof(uint32_t);
}

template <int ITEMS> spops_status prepare_rounds(spops_context *ctx, const bucket_params &p)
{
    if (round_bytes(p) > default_shared_bytes)
        SPOPS_TRY(prepare_shared(ctx, "buckets: prepare", run_round<ITEMS>));
    if (finish_bytes(p) > default_shared_bytes)
        SPOPS_TRY(prepare_shared(ctx, "buckets: prepare", finish<ITEMS>));
    return SPOPS_STATUS_OK;
}

template <int ITEMS> spops_status launch_rounds(spops_context *ctx, const bucket_params &p)
{
    const dim3 grid((unsigned)tiles_for(&p.a));
    for (int round = 0; round <= p.a.rule.num_rounds; ++round)
        SPOPS_TRY(launch_prepared<WAITS_FOR_PREVIOUS>(ctx, "buckets: run_round", run_round<ITEMS>,
                                                      grid, (unsigned)threads, round_bytes(p), p,
                                                      round));
    return launch_prepared<WAITS_FOR_PREVIOUS>(ctx, "buckets: finish", finish<ITEMS>, grid,
                                               (unsigned)threads, finish_bytes(p), p);
}

// What sizes alone decide.
bucket_params params_of(const spops_buckets_args *args)
{
    spops_carver carver = {(char *)args->workspace, 0};
    bucket_params p = {};
    p.a = *args->arrays;
    p.count_stride = stride_for(&p.a);
    p.groups = warps;
    while (p.groups > 1 && p.groups * p.count_stride * (int)sizeof(uint16_t) > counter_bytes)
        p.groups /= 2;
    p.w = carve_workspace(&p.a, &carver);
    return p;
}

} // namespace

extern "C" size_t spops_cuda_buckets_workspace_bytes(spops_context *,
                                                     const spops_buckets_args *args)
{
    spops_carver carver = {nullptr, 0};
    (void)carve_workspace(args->arrays, &carver);
    return carver.used;
}

extern "C" spops_status spops_cuda_buckets_prepare(spops_context *ctx,
                                                   const spops_buckets_args *args)
{
    const bucket_params p = params_of(args);
    return items_for(p.a.max_rows) == 2 ? prepare_rounds<2>(ctx, p) : prepare_rounds<8>(ctx, p);
}

extern "C" spops_status spops_cuda_buckets_build(spops_context *ctx, const spops_buckets_args *args)
{
    const spops_point_cloud *cloud = args->cloud;
    bucket_params p = params_of(args);
    if (cloud != nullptr) {
        p.points = cloud->points;
        p.num_rows = (int32_t)cloud->points.rows;
        p.offsets = cloud->offsets;
        p.num_samples = cloud->offsets == nullptr ? 1 : (int32_t)cloud->num_samples;
    }
    return items_for(p.a.max_rows) == 2 ? launch_rounds<2>(ctx, p) : launch_rounds<8>(ctx, p);
}
