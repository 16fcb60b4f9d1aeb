// SPDX-License-Identifier: Apache-2.0
// Farthest point sampling on the GPU. One group of blocks has a sample, and goes over its points in
// passes: a pass lowers their distances by the points just taken, and lists the farthest of them, all
// that are at least as far as a threshold. Each block then takes points from that list, all blocks
// the same ones: as long as the farthest point of the list is not below the threshold, no point that
// is not listed can come before it. So a pass, and a wait of the group, serves many points taken.
// docs/farthest.md has the counts.
#include "points/farthest_args.h"

#include "kernels/core/scan.cuh"
#include "kernels/points/cell_sort.cuh"

namespace
{

using namespace spops;

constexpr int threads = 256;
constexpr int num_warps = threads / 32;
constexpr int most_blocks = 128;   // in all
constexpr int block_points = 1024; // of a sample for which another block is worth while
constexpr int least_slots = 8, most_slots = 256; // of a block in a pass: its farthest point first
constexpr int group_slots = 512;                 // of a group with less than 64 blocks
constexpr int most_listed = 256, most_taken = 128;
constexpr int points_together = 4; // of a thread
constexpr int wanted = 128;        // points from the threshold on
constexpr int arrived_stride = 32;

// Orders points by distance, and by ascending rows where that is equal. 0: taken.
typedef unsigned long long rank;

struct farthest_params {
    cloud_view cloud;
    const int *counts;
    int count;
    int *rows;
    float *distances2;
    int blocks, groups, slots; // blocks of a group, slots of a block
    float4 *points;            // [max_rows] by block of the sample; w: d2, -1: taken
    float4 *slot_points;       // [2][groups][slots][blocks]; w: -1 of an empty one
    int *slot_rows;            // the same
    rank *beyond;      // [2][groups][blocks]: the first that a block had no slot for; 0: none
    unsigned *arrived; // [groups][arrived_stride]
};

struct shared_state {
    float4 best[num_warps];
    int best_rows[num_warps];
    float4 found[most_slots];
    int found_rows[most_slots];
    int num_found;
    rank own_beyond, beyond;
    float4 listed[most_listed]; // w: the row's bits
    float listed_d2[most_listed];
    float4 taken[most_taken]; // w: the row's bits
    float taken_d2[most_taken];
    int num_taken; // in the pass
    int done;      // in the sample
    bool ended;
    rank threshold, step;
};

// A block's part of a sample: rows begin + block, begin + block + blocks, ...
struct block_part {
    int begin, block, num;
    float4 *points;
};

__device__ int warp_max(int v)
{
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(~0u, v);
#else
    for (int half = 16; half > 0; half /= 2)
        v = max(v, __shfl_xor_sync(~0u, v, half));
    return v;
#endif
}

__device__ int warp_min(int v)
{
#if __CUDA_ARCH__ >= 800
    return __reduce_min_sync(~0u, v);
#else
    return ~warp_max(~v);
#endif
}

__device__ rank rank_of(float d2, int row)
{
    return d2 < 0.0f ? 0 : (rank)__float_as_uint(d2) << 32 | (unsigned)~row;
}

__device__ float lowered(float4 p, float4 q)
{
    return fminf(p.w,
                 spops_distance2(__fsub_rn(p.x, q.x), __fsub_rn(p.y, q.y), __fsub_rn(p.z, q.z)));
}

// ---- A pass over the points ---------------------------------------------------------------------

__device__ void load_points(const farthest_params &p, const block_part &part)
{
    for (int i = threadIdx.x; i < part.num; i += threads) {
        const float3 at = point_at(p.cloud, part.begin + i * p.blocks + part.block);
        part.points[i] = make_float4(at.x, at.y, at.z, is_finite_point(at) ? INFINITY : -1.0f);
    }
}

// One that is as far as the threshold.
__device__ void find(shared_state *s, int slots, float4 point, int row)
{
    const int place = atomicAdd(&s->num_found, 1);
    if (place < slots - 1) {
        s->found[place] = point;
        s->found_rows[place] = row;
    } else {
        atomicMax(&s->own_beyond, rank_of(point.w, row));
    }
}

// Distances of a thread's points to the points taken; those from the threshold on are found.
__device__ void lower_together(const farthest_params &p, shared_state *s, const block_part &part,
                               int first, float4 *best, int *best_row)
{
    const int num_taken = s->num_taken;
    const rank threshold = s->threshold;
    float4 points[points_together];
    float before[points_together];

#pragma unroll
    for (int j = 0; j < points_together; ++j) {
        const int i = first + j * threads;
        points[j] = i < part.num ? part.points[i] : make_float4(0.0f, 0.0f, 0.0f, -1.0f);
        before[j] = points[j].w;
    }
#pragma unroll 2
    for (int t = 0; t < num_taken; ++t) {
        const float4 q = s->taken[t];
#pragma unroll
        for (int j = 0; j < points_together; ++j) // of points that are taken -1 stays
            points[j].w = lowered(points[j], q);
    }
#pragma unroll
    for (int j = 0; j < points_together; ++j) {
        const int i = first + j * threads, row = part.begin + i * p.blocks + part.block;
        if (points[j].w < 0.0f) continue;
        if (points[j].w != before[j]) part.points[i].w = points[j].w;
        if (rank_of(points[j].w, row) >= threshold) find(s, p.slots, points[j], row);
        if (points[j].w > best->w) { // rows ascend: the first of several stays
            *best = points[j];
            *best_row = row;
        }
    }
}

// All of a block's points; each warp's farthest one is noted.
__device__ void lower_points(const farthest_params &p, shared_state *s, const block_part &part)
{
    float4 best = make_float4(0.0f, 0.0f, 0.0f, -1.0f);
    int best_row = INT_MAX;

    for (int first = 0; first < part.num; first += points_together * threads)
        lower_together(p, s, part, first + (int)threadIdx.x, &best, &best_row);
    const int bits = warp_max(__float_as_int(best.w)); // -1 is less than all others, also in bits
    const int row = warp_min(__float_as_int(best.w) == bits ? best_row : INT_MAX);
    const int warp = threadIdx.x / 32;
    if (bits < 0) {
        if (threadIdx.x % 32 == 0) s->best[warp].w = -1.0f;
    } else if (best_row == row) {
        s->best[warp] = best;
        s->best_rows[warp] = row;
    }
}

// The block's farthest point and those it found, into its slots. The first warp.
__device__ void write_slots(const farthest_params &p, shared_state *s, int64_t buffer, int block)
{
    const int lane = threadIdx.x;
    const float d2 = lane < num_warps ? s->best[lane].w : -1.0f;
    const int row = d2 < 0.0f ? INT_MAX : s->best_rows[lane];
    const int bits = warp_max(__float_as_int(d2));
    const int best_row = warp_min(__float_as_int(d2) == bits ? row : INT_MAX);
    const unsigned who = __ballot_sync(~0u, __float_as_int(d2) == bits && row == best_row);
    const int num_found = s->num_found;
    for (int k = lane; k < p.slots; k += 32) {
        const int64_t at = (buffer * p.slots + k) * p.blocks + block;
        float4 point = make_float4(0.0f, 0.0f, 0.0f, -1.0f);
        int of = INT_MAX;
        if (k == 0 && bits >= 0) {
            point = s->best[__ffs((int)who) - 1];
            of = best_row;
        } else if (k > 0 && k - 1 < num_found && s->found_rows[k - 1] != best_row) {
            point = s->found[k - 1];
            of = s->found_rows[k - 1];
        }
        __stcg(&p.slot_points[at], point);
        __stcg(&p.slot_rows[at], of);
    }
    if (lane == 0) __stcg(&p.beyond[buffer * p.blocks + block], s->own_beyond);
}

// All blocks of the group have come here as often. The first warp.
__device__ void wait_for_group(const farthest_params &p, int group, unsigned pass)
{
    if (p.blocks == 1) return;
    __threadfence();
    __syncwarp();
    if (threadIdx.x == 0) {
        unsigned *arrived = p.arrived + (int64_t)group * arrived_stride;
        const unsigned all = pass * (unsigned)p.blocks;
        unsigned seen;
        atomicAdd(arrived, 1u);
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                         : "=r"(seen)
                         : "l"(arrived)
                         : "memory");
        } while ((int)(seen - all) < 0);
    }
    __syncwarp();
}

// ---- Taking points ------------------------------------------------------------------------------

// The list of a pass, the same in all blocks of the group: first the farthest point of each block,
// then what else they found. Returns its length.
__device__ int gather_list(const farthest_params &p, shared_state *s, int64_t buffer)
{
    constexpr int most = (most_blocks * least_slots + threads - 1) / threads;
    const int total = p.blocks * p.slots;
    const float4 *slots = p.slot_points + buffer * total;
    const int *rows = p.slot_rows + buffer * total;
    float4 points[most];
    int of[most], own = 0, num;

#pragma unroll
    for (int j = 0; j < most; ++j) {
        const int at = j * threads + threadIdx.x;
        points[j].w = -1.0f;
        if (at >= total) continue;
        points[j] = __ldcg(&slots[at]);
        of[j] = __ldcg(&rows[at]);
        if (at >= p.blocks) own += points[j].w >= 0.0f;
    }
    if (threadIdx.x < p.blocks) {
        const rank beyond = __ldcg(&p.beyond[buffer * p.blocks + threadIdx.x]);
        if (beyond != 0) atomicMax(&s->beyond, beyond);
    }
    int place = p.blocks + sum_before(own, &num);
#pragma unroll
    for (int j = 0; j < most; ++j) {
        const int at = j * threads + threadIdx.x;
        if (at >= total || (at >= p.blocks && points[j].w < 0.0f)) continue;
        const int to = at < p.blocks ? at : place++;
        if (to < most_listed) {
            s->listed[to] =
                make_float4(points[j].x, points[j].y, points[j].z, __int_as_float(of[j]));
            s->listed_d2[to] = points[j].w;
        } else {
            atomicMax(&s->beyond, rank_of(points[j].w, of[j]));
        }
    }
    return min(p.blocks + num, most_listed);
}

// The threshold of the next pass: below all that is left, by as much as finds the wanted number of
// points. Any threshold gives the same points in the end.
__device__ void choose_threshold(shared_state *s, rank reached, rank first, rank next, int num)
{
    rank step = s->step;
    rank upper = next > reached - 1 ? next : reached - 1; // no point that is left is after it
    if (reached > first) upper = first;
    if (s->beyond != 0)
        step /= 4;
    else if (num < wanted / 8)
        step *= 4;
    else if (num < wanted / 2)
        step *= 2;
    else if (num > wanted)
        step = step / num * wanted;
    step = min(max(step, (rank)1), (rank)1 << 60);
    s->step = step;
    s->threshold = upper > step ? upper - step : 1;
}

// The place in the list of the lowest row among those at distance `bits`, all of them in the list.
template <int EACH>
__device__ int lowest_at(const float4 (&points)[EACH], const int (&rows)[EACH], int bits, int lane)
{
    int first = most_listed, last = -1, row = INT_MAX, at = 0;
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const int other = EACH - 1 - e;
        last = __float_as_int(points[e].w) == bits ? e * 32 + lane : last;
        first = __float_as_int(points[other].w) == bits ? other * 32 + lane : first;
    }
    first = warp_min(first);
    last = warp_max(last);
    if (first == last) return first; // mostly
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const bool lower = __float_as_int(points[e].w) == bits && rows[e] < row;
        row = lower ? rows[e] : row;
        at = lower ? e * 32 + lane : at;
    }
    const int lowest = warp_min(row);
    return __shfl_sync(~0u, at, __ffs((int)__ballot_sync(~0u, row == lowest)) - 1);
}

// Takes points from the list while they are in it. EACH: of the list, in the registers of a lane of
// the first warp.
template <int EACH> __device__ void take(shared_state *s, int length, int limit)
{
    const rank threshold = s->threshold, reached = max(threshold, s->beyond + 1);
    const int most = min(most_taken, limit - s->done);
    float4 points[EACH];
    int rows[EACH], num = 0, num_taken = 0, lane = threadIdx.x;
    rank first = 0, next;

    asm volatile("" : "+r"(lane)); // kept in a register
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const int at = e * 32 + lane;
        points[e] = at < length ? s->listed[at] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        rows[e] = at < length ? __float_as_int(points[e].w) : INT_MAX;
        points[e].w = at < length ? s->listed_d2[at] : -1.0f;
        num += rank_of(points[e].w, rows[e]) >= threshold;
    }
    for (int half = 16; half > 0; half /= 2)
        num += __shfl_xor_sync(~0u, num, half);
    for (;; ++num_taken) {
        int bits = __float_as_int(points[0].w);
#pragma unroll
        for (int e = 1; e < EACH; ++e)
            bits = max(bits, __float_as_int(points[e].w));
        bits = warp_max(bits);
        const int at = lowest_at<EACH>(points, rows, bits, lane);
        const float4 q = s->listed[at];
        const int row = __float_as_int(q.w);
        next = rank_of(__int_as_float(bits), row);
        if (next == 0 || (num_taken > 0 && next < reached) || num_taken == most) break;
        if (num_taken == 0) first = next;
        if (lane == 0) {
            s->taken[num_taken] = q;
            s->taken_d2[num_taken] = __int_as_float(bits);
        }
#pragma unroll
        for (int e = 0; e < EACH; ++e) { // without a branch: a lane's distances side by side
            const float mark = rows[e] == row ? -1.0f : INFINITY;
            points[e].w = fminf(lowered(points[e], q), mark);
        }
    }
    __syncwarp(); // all lanes have read what lane 0 writes
    if (lane > 0) return;
    s->num_taken = num_taken;
    s->ended = num_taken == 0 || num_taken == limit - s->done;
    choose_threshold(s, reached, first, next, num);
}

// Points just taken: those that the block has are marked, and `out` gets them, where it is there. The
// first warp.
__device__ void put_taken(const farthest_params &p, shared_state *s, const block_part &part,
                          int *out, float *out_d2)
{
    const int done = s->done, num_taken = s->num_taken;
    for (int t = threadIdx.x; t < num_taken; t += 32) {
        const int row = __float_as_int(s->taken[t].w), place = row - part.begin;
        if (place % p.blocks == part.block) part.points[place / p.blocks].w = -1.0f;
        if (out != nullptr) out[done + t] = row;
        if (out_d2 != nullptr) out_d2[done + t] = s->taken_d2[t];
    }
    __syncwarp(); // all lanes have read what the first one writes
    if (threadIdx.x > 0) return;
    s->done = done + num_taken;
    s->num_found = 0;
    s->own_beyond = s->beyond = 0;
}

// ---- Samples ------------------------------------------------------------------------------------

// Whether offsets ascend from 0 to at most the rows. All threads of a block.
__device__ bool has_good_offsets(const cloud_view &cloud)
{
    bool good = true;
    if (cloud.offsets == nullptr) return true;
    for (int b = threadIdx.x; b < cloud.num_samples; b += threads)
        good = good && cloud.offsets[b] <= cloud.offsets[b + 1];
    good = good && cloud.offsets[0] == 0 && cloud.offsets[cloud.num_samples] <= cloud.max_rows;
    return __syncthreads_and(good);
}

__device__ void sample_points(const farthest_params &p, shared_state *s, const block_part &part,
                              int group, int limit, int *out, float *out_d2, unsigned *passes)
{
    if (threadIdx.x == 0) {
        s->num_taken = s->done = s->num_found = 0;
        s->own_beyond = s->beyond = 0;
        s->threshold = ~(rank)0;
        s->step = (rank)1 << 50;
        s->ended = false;
    }
    load_points(p, part);
    __syncthreads();
    do {
        const unsigned pass = ++*passes;
        const int64_t buffer = (int64_t)(pass % 2) * p.groups + group;
        lower_points(p, s, part);
        __syncthreads();
        if (threadIdx.x < 32) {
            write_slots(p, s, buffer, part.block);
            wait_for_group(p, group, pass);
        }
        __syncthreads();
        const int length = gather_list(p, s, buffer);
        __syncthreads();
        if (threadIdx.x < 32) {
            if (length <= 4 * 32)
                take<4>(s, length, limit);
            else if (length <= 6 * 32)
                take<6>(s, length, limit);
            else
                take<most_listed / 32>(s, length, limit);
            __syncwarp();
            put_taken(p, s, part, out, out_d2);
        }
        __syncthreads();
    } while (!s->ended);
}

__global__ void __launch_bounds__(threads, 1)
    sample_kernel(const __grid_constant__ farthest_params p)
{
    __shared__ shared_state s;
    const int group = blockIdx.x / p.blocks, block = blockIdx.x % p.blocks;
    const int num_samples = p.cloud.offsets == nullptr ? 1 : p.cloud.num_samples;
    const bool good = has_good_offsets(p.cloud);
    unsigned passes = 0;

    for (int64_t b = group; b < num_samples; b += p.groups) {
        const int begin = good && p.cloud.offsets != nullptr ? p.cloud.offsets[b] : 0;
        int end = p.cloud.offsets != nullptr ? p.cloud.offsets[b + 1] : p.cloud.max_rows;
        int limit = p.counts == nullptr ? p.count : min(p.counts[b], p.count), done = 0;
        if (!good) end = begin;
        if (end > begin && limit > 0) {
            const int n = end - begin, rest = n % p.blocks;
            const block_part part = {begin, block, n / p.blocks + (block < rest),
                                     p.points + begin + (int64_t)block * (n / p.blocks) +
                                         min(block, rest)};
            const bool writes = block == 0;
            sample_points(p, &s, part, group, limit, writes ? p.rows + b * p.count : nullptr,
                          writes && p.distances2 != nullptr ? p.distances2 + b * p.count : nullptr,
                          &passes);
            done = s.done;
        }
        for (int64_t k = done + threadIdx.x; k < p.count && block == 0; k += threads) {
            p.rows[b * p.count + k] = -1;
            if (p.distances2 != nullptr) p.distances2[b * p.count + k] = 0.0f;
        }
        __syncthreads();
    }
}

// ---- Launching ----------------------------------------------------------------------------------

// What follows from the sizes and the device: blocks, groups and slots, and where the arrays are.
farthest_params carve_params(const spops_context *ctx, const spops_farthest_args *args,
                             spops_carver *c)
{
    const int64_t n = args->cloud->points.rows;
    const int64_t samples = args->cloud->num_samples > 1 ? args->cloud->num_samples : 1;
    const int64_t all =
        ctx->info.num_processors < most_blocks ? ctx->info.num_processors : most_blocks;
    int64_t blocks = (n / samples + block_points - 1) / block_points;
    farthest_params p = {};

    if (blocks > all / samples) blocks = all / samples;
    if (blocks < 1) blocks = 1;
    p.blocks = (int)blocks;
    p.groups = (int)(samples < all / blocks ? samples : all / blocks);
    p.slots = blocks * least_slots >= group_slots ? least_slots : group_slots / (int)blocks;
    if (p.slots > most_slots) p.slots = most_slots;
    const int64_t total = 2 * (int64_t)p.groups * p.blocks;
    p.points = (float4 *)spops_carve(c, n, 1, sizeof *p.points);
    p.slot_points = (float4 *)spops_carve(c, total, p.slots, sizeof *p.slot_points);
    p.slot_rows = (int *)spops_carve(c, total, p.slots, sizeof *p.slot_rows);
    p.beyond = (rank *)spops_carve(c, total, 1, sizeof *p.beyond);
    p.arrived = (unsigned *)spops_carve(c, p.groups, arrived_stride, sizeof *p.arrived);
    return p;
}

} // namespace

extern "C" size_t spops_cuda_farthest_workspace_bytes(spops_context *ctx,
                                                      const spops_farthest_args *args)
{
    spops_carver carver = {nullptr, 0};
    (void)carve_params(ctx, args, &carver);
    return carver.used;
}

extern "C" spops_status spops_cuda_farthest(spops_context *ctx, const spops_farthest_args *args)
{
    spops_carver carver = {static_cast<char *>(args->workspace), 0};
    farthest_params p = carve_params(ctx, args, &carver);

    p.cloud = view_of(args->cloud);
    p.counts = args->counts;
    p.count = args->count;
    p.rows = args->rows;
    p.distances2 = args->distances2;
    SPOPS_TRY(ctx->backend->fill_zero(ctx, p.arrived,
                                      (size_t)p.groups * arrived_stride * sizeof *p.arrived));
    return launch_together(ctx, "farthest: launch", sample_kernel,
                           dim3((unsigned)(p.groups * p.blocks)), (unsigned)threads, p);
}
