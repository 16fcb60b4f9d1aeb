// SPDX-License-Identifier: Apache-2.0
// Tables of 3 x 3 x 3 taps among sorted keys, for large sets: a thread takes a row and a warp 32 rows
// whose keys follow each other, so that what they look for lies side by side too. The three taps of a
// column along the last axis are up to three keys in a row: one look into the buckets, a short search,
// and the keys from there on, of three columns at a time. Nothing is cleared and nothing scattered: a row's 28 elements are in
// registers until its warp writes them, and its mask with them.
#include "kernels/maps/sorted_search.h"

#include "kernels/coords/coord_index.cuh"
#include "kernels/core/scan.cuh"

namespace
{

using spops::coord_index;
using spops::launch;
using spops::WAITS_FOR_PREVIOUS;

constexpr int size = 3, columns = size * size, num_taps = columns * size;
constexpr int row_quads = (num_taps + 3) / 4; // of the table
constexpr int threads = 256, warps = threads / 32, blocks_per_processor = 3;
// Lanes that write quads of their own row meet no bank conflict.
static_assert(row_quads % 2 == 1, "rows of a tile are an odd number of quads apart");

struct sorted_params {
    coord_index index; // of the inputs
    spops_key_layout out_layout;
    spops_taps taps;
    const int32_t *num_rows;  // outputs
    const uint64_t *out_keys; // ascending where the outputs have such
    const int32_t *out_rows;  // of out_keys; NULL: the position itself
    int32_t *table;
    uint32_t *masks;
    int32_t *tap_counts;
    spops_map_state *state;
};

// What the three taps along an axis add to a key, and which of them are in the box.
struct axis_parts {
    uint64_t part[size];
    uint32_t fits; // a bit a tap
};

// The first tap along an axis, from the lower end of the box.
__device__ __forceinline__ int64_t first_offset(const sorted_params &p, int axis, int64_t coarse)
{
    return spops_tap_fine(&p.taps, axis, coarse, 0) - p.index.layout.lower[axis + 1];
}

__device__ __forceinline__ uint64_t extent_of(const spops_key_layout &layout, int axis)
{
    return (uint64_t)((int64_t)layout.upper[axis + 1] - layout.lower[axis + 1]);
}

__device__ __forceinline__ axis_parts parts_of(const sorted_params &p, int axis, int64_t coarse)
{
    const spops_key_layout &in = p.index.layout;
    const int64_t first = first_offset(p, axis, coarse);
    const uint64_t extent = extent_of(in, axis);
    axis_parts parts;
    parts.fits = 0;
#pragma unroll
    for (int t = 0; t < size; ++t) {
        const uint64_t offset = (uint64_t)(first + (int64_t)t * p.taps.dilation[axis]);
        parts.part[t] = offset << in.shift[axis + 1];
        parts.fits |= (uint32_t)(offset <= extent) << t;
    }
    return parts;
}

// Keys as they are compared with others of the same two buckets: by their lower halves where buckets
// are that small.
struct lower_halves {
    typedef uint32_t key;
    typedef int32_t difference;
    static constexpr int most_shift = 30; // two buckets differ by less than 2^31
    static __device__ __forceinline__ key load(const uint64_t *keys, int32_t at)
    {
        return __ldg((const uint32_t *)(keys + at));
    }
};
struct whole_keys {
    typedef uint64_t key;
    typedef int64_t difference;
    static __device__ __forceinline__ key load(const uint64_t *keys, int32_t at)
    {
        return __ldg(keys + at);
    }
};

// A column of three taps among the sorted keys: those from `begin` to `end`, of which the first that is
// at least `lowest` lies from `at` to `upto`.
template <class Keys> struct column {
    typename Keys::key lowest;
    int32_t at, upto, end;

    __device__ __forceinline__ void open(const coord_index &x, bool fits, uint64_t code,
                                         uint32_t most)
    {
        lowest = (typename Keys::key)code;
        at = end = 0;
        if (!fits) return;
        // The keys of the bucket of `lowest`, and of the one of the last tap, which may be the next one.
        const uint64_t bucket = code >> x.buckets.shift, last = (code + most) >> x.buckets.shift;
        const int2 low = __ldg(x.buckets.ranges + bucket);
        at = low.x;
        end = low.y;
        if (last == bucket) return;
        const int2 high = __ldg(x.buckets.ranges + last);
        if (high.x == high.y) return;
        if (low.x == low.y) at = high.x;
        end = high.y;
    }

    // No key is as near to the first one as it would be without gaps, or nearer.
    __device__ __forceinline__ void bound(const coord_index &x)
    {
        upto = at;
        if (at >= end) return;
        const auto gap = (typename Keys::difference)(lowest - Keys::load(x.sorted_keys, at));
        if (gap <= 0) return;
        upto = gap < end - at ? at + (int32_t)gap : end;
        ++at;
    }

    // Runs without gaps, as surfaces have them, are done with the first look.
    __device__ __forceinline__ bool step(const coord_index &x, int32_t look)
    {
        if (at >= upto) return false;
        if ((typename Keys::difference)(Keys::load(x.sorted_keys, look) - lowest) < 0)
            at = look + 1;
        else
            upto = look;
        return at < upto;
    }

    // Which of the keys from lowest to lowest + most, most < 3, there are: a bit each.
    __device__ __forceinline__ uint32_t present(const coord_index &x, uint32_t most) const
    {
        uint32_t bits = 0;
#pragma unroll
        for (int i = 0; i < size; ++i) {
            if (at + i >= end) continue;
            const auto after = Keys::load(x.sorted_keys, at + i) - lowest;
            if (after <= most) bits |= 1u << (uint32_t)after;
        }
        return bits;
    }
};

// Three columns together, so that their loads overlap: elements of nine taps, and a bit for each.
template <class Keys, bool MAPPED>
__device__ __forceinline__ uint32_t take_plane(const coord_index &x, column<Keys> c[size],
                                               uint32_t most, uint32_t skipped, int32_t *element)
{
    uint32_t mask = 0;
    bool more = false;
#pragma unroll
    for (int j = 0; j < size; ++j)
        c[j].bound(x);
#pragma unroll
    for (int j = 0; j < size; ++j)
        more |= c[j].step(x, c[j].upto - 1);
    while (more) {
        more = false;
#pragma unroll
        for (int j = 0; j < size; ++j)
            more |= c[j].step(x, c[j].at + (c[j].upto - c[j].at) / 2);
    }
#pragma unroll
    for (int j = 0; j < size; ++j) {
        const uint32_t bits = c[j].present(x, most) << skipped;
        mask |= bits << size * j;
#pragma unroll
        for (int t = 0; t < size; ++t) {
            const int32_t position = c[j].at + __popc(bits & ((1u << t) - 1));
            if (bits >> t & 1)
                element[size * j + t] = MAPPED ? __ldg(x.sorted_rows + position) : position;
        }
    }
    return mask;
}

// All taps of the row with `key`: its elements of the table, and its mask.
template <class Keys, bool MAPPED>
__device__ __forceinline__ uint32_t take_row(const sorted_params &p, uint64_t key,
                                             int32_t element[4 * row_quads])
{
    const coord_index &x = p.index;
    const spops_key_layout &in = x.layout, &out = p.out_layout;
    const int32_t batch = spops_key_unpack(&out, key, 0);
    const int64_t first = first_offset(p, 2, spops_key_unpack(&out, key, 3));
    const int64_t extent = (int64_t)extent_of(in, 2);
    const int64_t lowest = first < 0 ? 0 : first;
    const int64_t highest = first + size - 1 < extent ? first + size - 1 : extent;
    uint32_t mask = 0;
#pragma unroll
    for (int k = 0; k < 4 * row_quads; ++k)
        element[k] = -1;
    if (!spops_key_fits(&in, 0, batch) || lowest > highest) return 0;
    const axis_parts xs = parts_of(p, 0, spops_key_unpack(&out, key, 1));
    const axis_parts ys = parts_of(p, 1, spops_key_unpack(&out, key, 2));
    const uint64_t base = spops_key_column(&in, 0, batch) + (uint64_t)lowest;
    const uint32_t most = (uint32_t)(highest - lowest), skipped = (uint32_t)(lowest - first);
#pragma unroll
    for (int i = 0; i < size; ++i) {
        column<Keys> c[size];
#pragma unroll
        for (int j = 0; j < size; ++j)
            c[j].open(x, xs.fits >> i & ys.fits >> j & 1, base + xs.part[i] + ys.part[j], most);
        mask |= take_plane<Keys, MAPPED>(x, c, most, skipped, element + size * size * i)
                << size * size * i;
    }
    return mask;
}

// A warp's tile, a line of the table for each lane, to the rows that they belong to.
__device__ __forceinline__ void write_lines(const sorted_params &p, const int4 *tile, int32_t row,
                                            int32_t rows_here)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < row_quads; ++i) {
        const int at = i * 32 + lane, line = at / row_quads;
        const int32_t to = __shfl_sync(~0u, row, line);
        if (line < rows_here)
            __stcs((int4 *)p.table + (int64_t)to * row_quads + at % row_quads, tile[at]);
    }
}

template <class Keys, bool MAPPED>
__global__ void __launch_bounds__(threads, blocks_per_processor)
    search_sorted(const __grid_constant__ sorted_params p)
{
    __shared__ int4 tiles[warps][32 * row_quads];
    __shared__ int32_t counts[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int4 *const tile = tiles[warp];
    int32_t pairs = 0; // of tap `lane`
    if (threadIdx.x < 32) counts[threadIdx.x] = 0;
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t n = *p.num_rows, step = (int64_t)gridDim.x * threads;
    __syncthreads();
    for (int64_t first = (int64_t)blockIdx.x * threads + 32 * warp; first < n; first += step) {
        const int64_t at = first + lane;
        int32_t element[4 * row_quads], row = (int32_t)at;
        uint32_t mask = 0;
        if (at < n) {
            mask = take_row<Keys, MAPPED>(p, p.out_keys[at], element);
            if (p.out_rows != nullptr) row = p.out_rows[at];
            p.masks[row] = mask;
#pragma unroll
            for (int q = 0; q < row_quads; ++q)
                tile[lane * row_quads + q] = make_int4(element[4 * q], element[4 * q + 1],
                                                       element[4 * q + 2], element[4 * q + 3]);
        }
        __syncwarp();
        write_lines(p, tile, row, (int32_t)min((int64_t)32, n - first));
        pairs += __popc(spops::warp_transpose(mask));
        __syncwarp();
    }
    if (pairs > 0) atomicAdd(counts + lane, pairs);
    __syncthreads();
    if (warp > 0) return;
    pairs = counts[lane];
    if (pairs > 0) atomicAdd(p.tap_counts + lane, pairs);
    pairs = spops::warp_sum(pairs);
    if (lane == 0 && pairs > 0)
        atomicAdd((unsigned long long *)&p.state->num_pairs, (unsigned long long)pairs);
}

} // namespace

bool spops::sorted_search_fits(const spops_map_search_args *args)
{
    const spops_map_arrays *map = args->map;
    if (args->in->search != SPOPS_COORDS_SEARCH_SORTED || map->transposed || map->taps.dims != 3 ||
        map->taps.dilation[2] != 1)
        return false;
    for (int a = 0; a < 3; ++a)
        if (map->taps.size[a] != size) return false;
    return true;
}

spops_status spops::sorted_search(spops_context *ctx, const spops_map_search_args *args)
{
    const spops_coords_arrays *out = args->out;
    const spops_map_arrays *map = args->map;
    const coord_index outputs = index_of(out);
    sorted_params p = {};
    p.index = index_of(args->in);
    p.out_layout = out->layout;
    p.taps = map->taps;
    p.num_rows = &out->state->num_rows;
    p.out_keys = outputs.sorted_keys != nullptr ? outputs.sorted_keys : out->keys;
    p.out_rows = outputs.sorted_rows;
    p.table = map->out.table;
    p.masks = map->out.masks;
    p.tap_counts = map->tap_counts;
    p.state = map->state;
    const int64_t blocks = (out->max_rows + threads - 1) / threads;
    const int64_t most = (int64_t)blocks_per_processor * ctx->info.num_processors;
    const dim3 grid((unsigned)(blocks < most ? blocks : most));
    const auto run = [&](auto kernel) {
        return launch<WAITS_FOR_PREVIOUS>(ctx, "kernel_map: search_sorted", kernel, grid, threads,
                                          p);
    };
    const bool mapped = p.index.sorted_rows != nullptr;
    if (p.index.buckets.shift > lower_halves::most_shift)
        return mapped ? run(search_sorted<whole_keys, true>)
                      : run(search_sorted<whole_keys, false>);
    return mapped ? run(search_sorted<lower_halves, true>)
                  : run(search_sorted<lower_halves, false>);
}
