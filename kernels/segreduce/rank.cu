// SPDX-License-Identifier: Apache-2.0
// Ranks of terms on the GPU: a rank is a position less the one that its segment begins at. Blocks take
// positions in order and mark there where segments begin. Of terms that lie in any order a rank is 4 bytes
// somewhere: a few are written there, many by way of bins of terms, so that whole rows of memory are.
#include "kernels/core/launch.cuh"
#include "kernels/core/scan.cuh"
#include "kernels/segments/segment_of.cuh"
#include "segreduce/rank_args.h"

namespace
{

constexpr int threads = 256;

struct params {
    const int32_t *offsets, *order;
    int32_t *ranks;
    int64_t num_segments, max_terms;
    bool in_fours; // order and ranks are aligned for that
    int32_t bin_bits, num_bins;
};

__global__ void __launch_bounds__(threads) leave_out_kernel(const __grid_constant__ params p)
{
    const int64_t t = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (t < p.max_terms) p.ranks[t] = -1;
}

// Four terms, at a position that is a multiple of 4, and after it.
__device__ __forceinline__ int4 load_terms(const params &p, int64_t position)
{
    int32_t term[4];
    if (p.order == nullptr || position >= p.max_terms) return int4{};
    if (p.in_fours && position + 4 <= p.max_terms)
        return __ldg(reinterpret_cast<const int4 *>(p.order + position));
#pragma unroll
    for (int j = 0; j < 4; ++j)
        term[j] = position + j < p.max_terms ? __ldg(p.order + position + j) : 0;
    return {term[0], term[1], term[2], term[3]};
}

// What a block of EACH fours a thread has: its terms, and where segments begin among its positions.
template <int EACH> struct rank_block {
    static constexpr int positions = threads * EACH * 4;
    typedef spops::segment_begins<positions> begins;
    struct shared {
        begins found;
        int32_t range[2];
    };
    int64_t first;
    int32_t n; // positions in use; 0 or less: none
    int4 terms[EACH];

    static __device__ __forceinline__ int32_t at(int u)
    {
        return (u * threads + (int32_t)threadIdx.x) * 4;
    }
    // All threads of the block come here; ends with a barrier.
    __device__ __forceinline__ void load(const params &p, shared &s)
    {
        const int32_t thread = (int32_t)threadIdx.x, warp = thread / 32;
        first = (int64_t)blockIdx.x * positions;
        // What does not wait for the search is loaded before it.
        const int64_t left = __ldg(p.offsets + p.num_segments) - first;
        n = (int32_t)min(left, (int64_t)positions);
#pragma unroll
        for (int u = 0; u < EACH; ++u)
            terms[u] = load_terms(p, first + at(u));
        if (warp < 2) {
            const int64_t of = warp == 0 ? first : first + positions - 1;
            const int32_t segment = spops::segment_search(p.offsets, p.num_segments, of);
            if (thread % 32 == 0) s.range[warp] = segment;
        }
        s.found.clear();
        __syncthreads();
        for (int64_t g = (int64_t)s.range[0] + 1 + thread; g <= s.range[1]; g += threads) {
            const int64_t i =
                __ldg(p.offsets + g) - first; // that of empty ones after all terms too
            if (i < positions) s.found.mark((int32_t)i);
        }
        const int32_t begin = warp == 0 ? (int32_t)(__ldg(p.offsets + s.range[0]) - first) : 0;
        __syncthreads();
        if (warp == 0) s.found.scan(begin, positions);
        __syncthreads();
    }
    static __device__ __forceinline__ void ranks_of(const shared &s, int32_t i, int32_t (&rank)[4])
    {
#pragma unroll
        for (int j = 0; j < 4; ++j)
            rank[j] = i + j - s.found.begin(i + j);
    }
};

__device__ __forceinline__ void store_ranks(const params &p, int64_t position, int32_t n,
                                            const int4 &terms, const int32_t (&rank)[4])
{
    if (p.order == nullptr && p.in_fours && n >= 4) {
        *reinterpret_cast<int4 *>(p.ranks + position) = {rank[0], rank[1], rank[2], rank[3]};
        return;
    }
    const int32_t term[4] = {terms.x, terms.y, terms.z, terms.w};
#pragma unroll
    for (int j = 0; j < 4; ++j)
        if (j < n) p.ranks[p.order == nullptr ? position + j : term[j]] = rank[j];
}

typedef rank_block<2> place_block;

__global__ void __launch_bounds__(threads) rank_kernel(const __grid_constant__ params p)
{
    __shared__ place_block::shared s;
    place_block b;
    b.load(p, s);
#pragma unroll
    for (int u = 0; u < 2; ++u) {
        const int32_t i = place_block::at(u);
        int32_t rank[4];
        if (i >= b.n) return;
        place_block::ranks_of(s, i, rank);
        store_ranks(p, b.first + i, b.n - i, b.terms[u], rank);
    }
}

// ---- By bins ------------------------------------------------------------------------------------

// A bin is 2^bin_bits terms that follow each other. Its part of the ranks first holds entries in any
// order, the number of a term within the bin and above it the rank; but of its first term the rank
// above how many entries there are. Then each entry goes to its place. Where entries lie in between
// depends on the order in which blocks come, what is written in the end does not.

constexpr int most_bins = 1024, each_in_bins = 4;
constexpr int resolve_threads = 512;
typedef rank_block<each_in_bins> bin_block;

struct bins_shared {
    bin_block::shared block;
    uint32_t counts[most_bins]; // entries; then those in the bins before
    int32_t bases[most_bins];   // where entry 0 of the block would be, were all in this bin
    uint32_t entries[bin_block::positions];
    uint16_t bins[bin_block::positions];
    uint32_t warp_sums[threads / 32];
};

__global__ void __launch_bounds__(threads) start_bins_kernel(const __grid_constant__ params p)
{
    const int32_t b = (int32_t)(blockIdx.x * threads + threadIdx.x);
    if (b < p.num_bins) p.ranks[(int64_t)b << p.bin_bits] = 0;
}

// Counts become what is before, and each bin gets room for its entries. How many there are.
__device__ __forceinline__ uint32_t place_bins(const params &p, bins_shared &s)
{
    constexpr int each = most_bins / threads;
    const uint32_t mask = (1u << p.bin_bits) - 1;
    const int32_t thread = (int32_t)threadIdx.x, lane = thread % 32, warp = thread / 32;
    uint32_t own[each], sum = 0, before = 0, all = 0;
#pragma unroll
    for (int j = 0; j < each; ++j)
        sum += own[j] = s.counts[thread * each + j];
    const uint32_t scan = (uint32_t)spops::warp_scan((int32_t)sum);
    if (lane == 31) s.warp_sums[warp] = scan;
    __syncthreads();
    for (int w = 0; w < threads / 32; ++w) {
        if (w < warp) before += s.warp_sums[w];
        all += s.warp_sums[w];
    }
    before += scan - sum;
#pragma unroll
    for (int j = 0; j < each; ++j) {
        const int32_t b = thread * each + j;
        if (own[j] > 0) {
            uint32_t *const head =
                reinterpret_cast<uint32_t *>(p.ranks) + ((int64_t)b << p.bin_bits);
            s.bases[b] = (int32_t)(atomicAdd(head, own[j]) & mask) + 1 - (int32_t)before;
        }
        s.counts[b] = before;
        before += own[j];
    }
    __syncthreads();
    return all;
}

__global__ void __launch_bounds__(threads) fill_bins_kernel(const __grid_constant__ params p)
{
    __shared__ bins_shared s;
    const uint32_t mask = (1u << p.bin_bits) - 1;
    uint32_t *const ranks = reinterpret_cast<uint32_t *>(p.ranks);
    bin_block b;
    uint32_t index[each_in_bins][4];

    for (int i = (int)threadIdx.x; i < most_bins; i += threads)
        s.counts[i] = 0;
    b.load(p, s.block);
#pragma unroll
    for (int u = 0; u < each_in_bins; ++u) {
        const int32_t i = bin_block::at(u);
        const int32_t term[4] = {b.terms[u].x, b.terms[u].y, b.terms[u].z, b.terms[u].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (i + j >= b.n) continue;
            if ((term[j] & mask) != 0)
                index[u][j] = atomicAdd(&s.counts[term[j] >> p.bin_bits], 1u);
            else
                atomicAdd(ranks + term[j], (uint32_t)(i + j - s.block.found.begin(i + j))
                                               << p.bin_bits);
        }
    }
    __syncthreads();
    const uint32_t num = place_bins(p, s);
#pragma unroll
    for (int u = 0; u < each_in_bins; ++u) {
        const int32_t i = bin_block::at(u);
        const int32_t term[4] = {b.terms[u].x, b.terms[u].y, b.terms[u].z, b.terms[u].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (i + j >= b.n || (term[j] & mask) == 0) continue;
            const int32_t bin = term[j] >> p.bin_bits;
            const uint32_t at = s.counts[bin] + index[u][j];
            s.bins[at] = (uint16_t)bin;
            s.entries[at] = (uint32_t)(i + j - s.block.found.begin(i + j)) << p.bin_bits |
                            ((uint32_t)term[j] & mask);
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < num; i += threads) {
        const int32_t bin = s.bins[i], at = s.bases[bin] + (int32_t)i;
        const int64_t first = (int64_t)bin << p.bin_bits;
        // A plan that was loaded may have a term twice, and a bin then too little room.
        if (at <= (int32_t)mask && first + at < p.max_terms) ranks[first + at] = s.entries[i];
    }
}

// A block a bin, in 2^bin_bits numbers of shared memory.
__global__ void __launch_bounds__(resolve_threads)
    resolve_bins_kernel(const __grid_constant__ params p)
{
    extern __shared__ int4 fours[];
    int32_t *const found = reinterpret_cast<int32_t *>(fours);
    const int64_t first = (int64_t)blockIdx.x << p.bin_bits;
    const int32_t size = 1 << p.bin_bits, thread = (int32_t)threadIdx.x;
    const int32_t num_terms = (int32_t)min((int64_t)size, p.max_terms - first);
    int32_t *const ranks = p.ranks + first;
    const uint32_t head = (uint32_t)ranks[0];
    const int32_t num = min((int32_t)(head & (uint32_t)(size - 1)), num_terms - 1);

    if (thread == 0) found[0] = (int32_t)(head >> p.bin_bits);
#pragma unroll 8
    for (int32_t i = thread + 1; i <= num; i += resolve_threads) {
        const uint32_t entry = (uint32_t)ranks[i];
        found[entry & (uint32_t)(size - 1)] = (int32_t)(entry >> p.bin_bits);
    }
    __syncthreads();
    if (p.in_fours && num_terms % 4 == 0) {
        for (int32_t i = thread; i < num_terms / 4; i += resolve_threads)
            reinterpret_cast<int4 *>(ranks)[i] = fours[i];
    } else {
        for (int32_t i = thread; i < num_terms; i += resolve_threads)
            ranks[i] = found[i];
    }
}

// ---- Which way ----------------------------------------------------------------------------------

bool is_aligned(const void *p)
{
    return (uintptr_t)p % sizeof(int4) == 0;
}

// Bits of a bin's terms, of lists with as many terms as they have room for, in any order; 0: ranks are
// written where they belong.
int32_t bin_bits_of(const spops_context *ctx, const spops_lists *lists)
{
    constexpr int64_t fewest = 1 << 20; // of terms
    const int64_t n = lists->max_terms;
    const int32_t bits = n <= (int64_t)most_bins << 13 ? 13 : 15;
    if (lists->order == nullptr || n < fewest || n > (int64_t)most_bins << bits ||
        lists->host_schedule.longest >> (32 - bits) != 0 ||
        (int)sizeof(int32_t) << bits > ctx->block_shared_bytes)
        return 0;
    return bits;
}

spops_status rank_by_bins(spops_context *ctx, const params &p)
{
    const char *what = "rank: launch";
    SPOPS_TRY(spops::launch(ctx, what, start_bins_kernel, spops::blocks_for(p.num_bins, threads),
                            threads, p));
    SPOPS_TRY(spops::launch(ctx, what, fill_bins_kernel,
                            spops::blocks_for(p.max_terms, bin_block::positions), threads, p));
    return spops::launch_preparing<spops::AFTER_PREVIOUS>(
        ctx, what, resolve_bins_kernel, dim3((unsigned)p.num_bins), resolve_threads,
        sizeof(int32_t) << p.bin_bits, p);
}

} // namespace

extern "C" spops_status spops_cuda_rank(spops_context *ctx, const spops_rank_args *args)
{
    const spops_lists *lists = args->lists;
    params p = {lists->offsets,
                lists->order,
                args->ranks,
                lists->num_segments,
                lists->max_terms,
                is_aligned(lists->order) && is_aligned(args->ranks),
                0,
                0};
    const bool all_count =
        !lists->counts_on_device && lists->host_schedule.num_terms == lists->max_terms;
    if (all_count) p.bin_bits = bin_bits_of(ctx, lists);
    if (p.bin_bits > 0) {
        p.num_bins = (int32_t)((p.max_terms + ((int64_t)1 << p.bin_bits) - 1) >> p.bin_bits);
        return rank_by_bins(ctx, p);
    }
    if (!all_count)
        SPOPS_TRY(spops::launch(ctx, "rank: launch", leave_out_kernel,
                                spops::blocks_for(p.max_terms, threads), threads, p));
    if (p.num_segments == 0) return SPOPS_STATUS_OK;
    return spops::launch(ctx, "rank: launch", rank_kernel,
                         spops::blocks_for(p.max_terms, place_block::positions), threads, p);
}
