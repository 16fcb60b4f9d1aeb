// SPDX-License-Identifier: Apache-2.0
// Maps within levels that were made at once follow from that within a coarse one, the source: a neighbour of a
// row lies in a neighbour of the row's cell there, and is found by the maps down from that.
//
//     follow_within:  a warp a row, a lane a tap; first of the source, by its index, then of all others
#include "kernels/core/scan.cuh"
#include "kernels/maps/nested_within_few.cuh"

namespace
{

using namespace spops::nest;
using spops::WAITS_FOR_PREVIOUS;

constexpr int follow_threads = 512, follow_warps = follow_threads / 32;
constexpr int rows_at_once = 4; // of a warp

// Positions along axis a, from the lowest that a neighbour has in the row's cell on.
__host__ __device__ inline int32_t num_steps(const within_params &p, const within_level &l, int a)
{
    return extent_of(p, l.level, a) + l.taps.dilation[a] * (l.taps.size[a] - 1);
}

template <class Finder>
__device__ __forceinline__ int32_t find_tap_by(const within_level &l, int32_t r, int32_t k)
{
    const int32_t *row = l.rows + (int64_t)r * (1 + l.taps.dims);
    uint64_t code = Finder::part(l.index, 0, row[0]);
    for (int a = l.taps.dims - 1; a >= 0; --a) {
        const int64_t v = spops_tap_fine(&l.taps, a, row[a + 1], k % l.taps.size[a]);
        if (!spops_key_fits(&l.index.layout, a + 1, v)) return -1;
        code += Finder::part(l.index, a + 1, v);
        k /= l.taps.size[a];
    }
    return Finder::finish(l.index, code, Finder::begin(l.index, code));
}

// The row at tap k of row r, by the level's own index.
__device__ __noinline__ int32_t find_tap(const within_level &l, int32_t r, int32_t k)
{
    if (l.index.search == SPOPS_COORDS_SEARCH_HASH) return find_tap_by<spops::hash_finder>(l, r, k);
    if (l.index.search == SPOPS_COORDS_SEARCH_GRID) return find_tap_by<spops::grid_finder>(l, r, k);
    return find_tap_by<spops::sorted_finder>(l, r, k);
}

// Row r has j at this lane's tap k, in word w. Returns whether that is a row.
__device__ __forceinline__ int32_t put_tap(const within_level &l, int64_t r, int32_t w, int32_t k,
                                           int32_t j)
{
    if (k < l.table_stride) l.table[r * l.table_stride + k] = j;
    const uint32_t mask = __ballot_sync(~0u, j >= 0);
    if (threadIdx.x % 32 == 0) l.masks[r * l.mask_words + w] = mask;
    return j >= 0;
}

// Rows `first` to first + rows_at_once - 1 of those before n, taps of one word; steps[a] are those of
// the lane's tap along axis a. Returns how many of the rows have the tap.
__device__ __forceinline__ int32_t follow_rows(const within_params &p, const within_level &l,
                                               const uint64_t *const (&steps)[SPOPS_MAX_DIMS],
                                               int64_t first, int32_t n, int32_t w)
{
    const int32_t k = 32 * w + (int32_t)threadIdx.x % 32;
    const bool is_tap = k < l.taps.num_taps;
    int32_t found[rows_at_once], count = 0;
    uint64_t way[rows_at_once];
    int2 link[rows_at_once];
#pragma unroll
    for (int u = 0; u < rows_at_once; ++u)
        link[u] = first + u < n ? __ldg(l.links + first + u) : make_int2(-1, 0);
#pragma unroll
    for (int u = 0; u < rows_at_once; ++u) {
        found[u] = -1;
        way[u] = 0;
        if (!is_tap || link[u].x < 0) continue;
#pragma unroll
        for (int a = 0; a < SPOPS_MAX_DIMS; ++a)
            if (a < l.taps.dims) way[u] += steps[a][(uint32_t)link[u].y >> 8 * a & 0xff];
        found[u] = begin_of(p, link[u].x, way[u]);
    }
    walk_down(p, l.level, way, found);
#pragma unroll
    for (int u = 0; u < rows_at_once; ++u) {
        if (first + u >= n) break;
        count += put_tap(l, first + u, w, k, found[u]);
    }
    return count;
}

// ---- The kernel ---------------------------------------------------------------------------------

template <bool BY_INDEX>
__global__ void __launch_bounds__(follow_threads)
    follow_within(const __grid_constant__ within_params p)
{
    extern __shared__ uint64_t shared[];
    int job = 0;
    while (job + 1 < p.num && p.first_block[job + 1] <= (int32_t)blockIdx.x)
        ++job;
    const within_level &l = p.job[job];
    const int32_t block = (int32_t)blockIdx.x - p.first_block[job];
    const int32_t num_blocks = p.first_block[job + 1] - p.first_block[job];
    const int32_t num_taps = l.taps.num_taps, thread = (int32_t)threadIdx.x;
    int32_t *counts = (int32_t *)shared; // [num_taps] pairs of a tap
    uint64_t *all_steps = shared + (num_taps + 1) / 2, *axis = all_steps;
    const bool few = !BY_INDEX && few_steps(p, l) > 0;
    const uint64_t *few_axis[3] = {axis, axis, axis};
    if (few) {
        for (int a = 0; a < l.taps.dims; ++a) {
            const int32_t extent = extent_of(p, l.level, a);
            for (int32_t s = thread; s < 2 * extent; s += follow_threads)
                axis[s] = cell_step_of(p, l, a, s / 2, s % 2);
            few_axis[a] = axis;
            axis += 2 * extent;
        }
        for (int32_t s = thread; s < 32 * l.num_children; s += follow_threads)
            ((uint16_t *)axis)[s] =
                s % 32 < num_taps ? tap_step_of(p, l, s / 32, s % 32) : (uint16_t)0;
    }
    for (int a = 0; !BY_INDEX && !few && a < l.taps.dims; ++a) {
        const int32_t steps = num_steps(p, l, a);
        for (int32_t s = thread; s < steps; s += follow_threads)
            axis[s] = way_along(p, l.level, a, s - l.taps.padding[a]);
        axis += steps;
    }
    for (int32_t k = thread; k < num_taps; k += follow_threads)
        counts[k] = 0;
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    __syncthreads();
    const int32_t n = *l.num_rows;
    bool by_index = BY_INDEX;
    for (int m = l.level; m < p.source; ++m)
        by_index = by_index || *p.overflow[m] != 0;
    if (block == 0 && thread == 0) {
        l.state->num_out = l.state->num_in = n;
        l.state->overflow = 0;
        l.state->reserved = 0;
    }
    const int64_t warp = (int64_t)block * follow_warps + thread / 32;
    const int64_t num_warps = (int64_t)num_blocks * follow_warps;
    for (int32_t w = 0; w < l.mask_words; ++w) {
        const int32_t k = 32 * w + thread % 32;
        int32_t count = 0;
        if (by_index) {
            for (int64_t r = warp; r < n; r += num_warps)
                count += put_tap(l, r, w, k, k < num_taps ? find_tap(l, (int32_t)r, k) : -1);
        } else if (few) {
            for (int64_t first = warp * rows_of_warp; first < n; first += num_warps * rows_of_warp)
                count += follow_few(p, l, few_axis, (const uint16_t *)axis, first, n);
        } else {
            const uint64_t *steps[SPOPS_MAX_DIMS], *end = axis;
            int32_t rest = k < num_taps ? k : 0;
            for (int a = SPOPS_MAX_DIMS - 1; a >= 0; --a) {
                if (a >= l.taps.dims) continue;
                end -= num_steps(p, l, a);
                steps[a] = end + l.taps.dilation[a] * (rest % l.taps.size[a]);
                rest /= l.taps.size[a];
            }
            for (int64_t first = warp * rows_at_once; first < n; first += num_warps * rows_at_once)
                count += follow_rows(p, l, steps, first, n, w);
        }
        if (count > 0) atomicAdd(counts + k, count);
    }
    __syncthreads();
    unsigned long long found = 0;
    for (int32_t k = thread; k < num_taps; k += follow_threads) {
        if (counts[k] == 0) continue;
        atomicAdd(l.tap_counts + k, counts[k]);
        found += (unsigned)counts[k];
    }
    found = spops::warp_sum(found);
    if (thread % 32 == 0 && found > 0) atomicAdd((unsigned long long *)&l.state->num_pairs, found);
}

// ---- Launches -----------------------------------------------------------------------------------

within_level within_of(const spops_nest_args *args, const nest_workspace &ws, int level)
{
    const spops_map_arrays *map = args->within[level];
    const spops_coords_arrays *coords = args->levels[level];
    within_level l = {};
    l.index = spops::index_of(coords);
    l.taps = map->taps;
    l.rows = coords->rows;
    l.num_rows = &coords->state->num_rows;
    l.links = level < args->source ? ws.links[level] : nullptr;
    l.table = map->out.table;
    l.masks = map->out.masks;
    l.tap_counts = map->tap_counts;
    l.state = map->state;
    l.table_stride = map->table_stride;
    l.mask_words = map->mask_words;
    l.level = level;
    l.num_children = level < args->source ? args->down[level]->taps.num_taps : 1;
    return l;
}

within_params withins_of(const spops_nest_args *args)
{
    const spops_map_arrays *coarse = args->source_within;
    within_params p = {};
    p.source = args->source;
    p.coarse = coarse->taps;
    p.coarse_table = coarse->out.table;
    p.coarse_stride = coarse->table_stride;
    for (int m = 0; m < args->source; ++m) {
        p.down_table[m] = args->down[m]->out.table;
        p.down_stride[m] = args->down[m]->table_stride;
        p.overflow[m] = &args->levels[m + 1]->state->overflow;
        for (int a = 0; a < SPOPS_MAX_DIMS; ++a)
            p.stride[m][a] = (uint8_t)args->down[m]->taps.stride[a];
    }
    return p;
}

// Another level, of `rows` rows, in blocks of which a warp takes `each` rows at once.
void add_level(const spops_context *ctx, const within_level &l, int64_t rows, int each,
               within_params *p)
{
    const int64_t blocks = (rows + follow_warps * each - 1) / (follow_warps * each);
    const int64_t most = 2 * ctx->info.num_processors;
    p->job[p->num++] = l;
    p->first_block[p->num] = p->first_block[p->num - 1] + (int32_t)(blocks < 1      ? 1
                                                                    : blocks < most ? blocks
                                                                                    : most);
}

template <bool BY_INDEX> spops_status follow(spops_context *ctx, const within_params &p)
{
    size_t most = 0;
    for (int j = 0; j < p.num; ++j) {
        size_t words = (size_t)(p.job[j].taps.num_taps + 1) / 2;
        if (!BY_INDEX && few_steps(p, p.job[j]) > 0) words += (size_t)few_steps(p, p.job[j]);
        for (int a = 0; !BY_INDEX && few_steps(p, p.job[j]) == 0 && a < p.job[j].taps.dims; ++a)
            words += (size_t)num_steps(p, p.job[j], a);
        if (words > most) most = words;
    }
    return spops::launch_prepared<WAITS_FOR_PREVIOUS>(
        ctx, "pyramid: follow_within", follow_within<BY_INDEX>,
        dim3((unsigned)p.first_block[p.num]), (unsigned)follow_threads, most * sizeof(uint64_t), p);
}

} // namespace

extern "C" spops_status spops_cuda_nest_within(spops_context *ctx, const spops_nest_args *args)
{
    spops_carver c = {(char *)args->workspace, 0};
    const nest_workspace ws = carve_nest(args, &c);
    if (args->source == 0) return SPOPS_STATUS_OK;
    const within_params common = withins_of(args);
    within_params p = common;
    if (args->within[args->source] != nullptr) {
        add_level(ctx, within_of(args, ws, args->source), args->levels[args->source]->max_rows, 1,
                  &p);
        SPOPS_TRY(follow<true>(ctx, p));
        p = common;
    }
    for (int level = 0; level < args->source; ++level)
        if (args->within[level] != nullptr)
            add_level(ctx, within_of(args, ws, level), args->levels[level]->max_rows, rows_at_once,
                      &p);
    return follow<false>(ctx, p);
}
