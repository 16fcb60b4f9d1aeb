// SPDX-License-Identifier: Apache-2.0
// Plan building on the GPU: from keys or offsets to lists with their schedule, on the stream, with
// counts that never leave the device. Three steps:
//
//     terms of each segment are counted  ->  segments get their offsets, and are sorted by class
//                                      ->  terms are sorted by segment
//
// Both sorts are stable partitions by digits (partition.cuh); of many terms, CUB's radix sort. The
// two sorts do not need each other, so most launches do a step of each: the first blocks have one
// job, the others another.
#include <cub/block/block_reduce.cuh>

#include "kernels/core/device_wide.h"
#include "kernels/segments/partition.cuh"
#include "segments/lists.h"
#include "spops/device/grid_dependency.cuh"

namespace
{

using spops::bits_for;
using spops::blocks_for;
using spops::digit_counts;
using spops::launch;
using spops::max_digits;
using spops::partition_storage;
using spops::sort_buffers;
using spops::stream_of;
using spops::tile_threads;
using spops::WAITS_FOR_PREVIOUS;

constexpr int threads = 256;

// Terms are sorted in tiles up to this many: a pass is three short launches, none of which waits
// for a block before it. Beyond, CUB's passes of 8 bits have enough tiles to be busy.
constexpr int64_t most_tiled_terms = 1 << 20;
constexpr int term_items = 2, term_tile = tile_threads * term_items;
constexpr uint32_t no_segment = ~0u; // key of a term that does not count

// Segments are sorted by class and, within one, from long to short in 16 steps: the groups of a warp
// then have equal work.
constexpr int length_bits = 4, class_digits = SPOPS_NUM_CLASSES << length_bits;
static_assert(class_digits <= max_digits, "segments are sorted in one pass");

__device__ int32_t segment_class(int32_t count, int32_t split_terms)
{
    if (count == 0) return SPOPS_CLASS_EMPTY << length_bits;
    if (count > split_terms) return SPOPS_CLASS_SPLIT << length_bits;
    int c = SPOPS_CLASS_SHORT;
    int32_t above = 0; // the class holds counts above + 1 .. most
    int32_t most = SPOPS_SHORT_TERMS;
    while (c < SPOPS_CLASS_BLOCK && count > most) {
        ++c;
        above = most;
        most = c == SPOPS_CLASS_BLOCK ? split_terms : 2 * most;
    }
    // split_terms is 2^20 at most (spops_cuda_split_terms), so 32 bits hold the product.
    const int32_t step = (most - count) * (1 << length_bits) / (most - above);
    return c << length_bits | step;
}

// ---- Workspace ----------------------------------------------------------------------------------

// How terms are sorted by segment.
struct sort_plan {
    bool tiled;
    int passes, digit_bits; // of a sort in tiles
};

sort_plan plan_sort(int64_t num_segments, int64_t max_terms)
{
    sort_plan plan;
    const int bits = bits_for(num_segments > 0 ? (uint64_t)num_segments - 1 : 0);
    plan.tiled = max_terms <= most_tiled_terms;
    plan.passes = (bits + spops::max_digit_bits - 1) / spops::max_digit_bits;
    plan.digit_bits = (bits + plan.passes - 1) / plan.passes;
    return plan;
}

// Everything a build keeps between its steps. One carving measures and places it.
struct build_workspace {
    sort_plan plan;
    digit_counts digits;  // of a pass of terms in tiles
    digit_counts classes; // of segments; a row more: their terms
    uint2 *items[2];      // [max_terms] key and term; in tiles
    int32_t *num_kept;    // [1] terms that count; in tiles
    uint32_t *keys[2];    // [max_terms], double buffer of CUB's sort
    int32_t *values[2];   // [max_terms]
    int32_t *segment_of;  // [max_terms] segment of a forward position, for inversion
    spops::device_wide wide;
};

digit_counts carve_counts(int64_t num_items, int64_t per_tile, int rows, spops_carver *c)
{
    digit_counts counts;
    const int64_t tiles = num_items > 0 ? (num_items + per_tile - 1) / per_tile : 1;
    counts.num_digits = rows;
    counts.num_tiles = (int32_t)tiles;
    counts.tiles = (int32_t *)spops_carve(c, rows, tiles, sizeof(int32_t));
    counts.totals = (int32_t *)spops_carve(c, rows, 1, sizeof(int32_t));
    return counts;
}

build_workspace carve_workspace(int64_t num_segments, int64_t max_terms, spops_carver *c)
{
    build_workspace ws = {};
    ws.plan = plan_sort(num_segments, max_terms);
    ws.classes = carve_counts(num_segments, tile_threads, class_digits + 1, c);
    ws.segment_of = (int32_t *)spops_carve(c, max_terms, 1, sizeof(int32_t));
    if (ws.plan.tiled) {
        ws.digits = carve_counts(max_terms, term_tile, 1 << ws.plan.digit_bits, c);
        for (int i = 0; i < 2; ++i)
            ws.items[i] = (uint2 *)spops_carve(c, max_terms, 1, sizeof(uint2));
        ws.num_kept = (int32_t *)spops_carve(c, 1, 1, sizeof(int32_t));
        return ws;
    }
    for (int i = 0; i < 2; ++i) {
        ws.keys[i] = (uint32_t *)spops_carve(c, max_terms, 1, sizeof(uint32_t));
        ws.values[i] = (int32_t *)spops_carve(c, max_terms, 1, sizeof(int32_t));
    }
    // One value more than there are segments: terms that do not count come last.
    ws.wide.needs_sort<sort_buffers>(max_terms, bits_for(num_segments));
    ws.wide.carve(c);
    return ws;
}

// ---- Keys of terms ------------------------------------------------------------------------------

// Every kernel of a build waits for the one before it, and then lets the next one start: so a
// kernel that may run starts after all earlier ones have ended.
__device__ __forceinline__ void take_turn()
{
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
}

// A launch with two jobs: a is called with the numbers of the first num_a blocks, b with those of
// the rest, from 0. All threads of a block call.
template <class A, class B>
__global__ void __launch_bounds__(tile_threads)
    run_jobs(const __grid_constant__ A a, const __grid_constant__ B b, int32_t num_a)
{
    take_turn();
    const int32_t block = (int32_t)blockIdx.x;
    if (block < num_a)
        a(block);
    else
        b(block - num_a);
}

struct no_job {
    __device__ void operator()(int32_t) const {}
};

// No schedule yet, and segments without terms: their counts lie where the offsets will.
__global__ void __launch_bounds__(threads)
    clear_lists(spops_schedule *schedule, int32_t split_terms, int32_t *counts,
                int64_t num_segments)
{
    take_turn();
    const int64_t o = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (o <= num_segments) counts[o] = 0;
    if (o > 0) return;
    const spops_schedule empty = {};
    *schedule = empty;
    schedule->split_terms = split_terms;
}

// Keys of a source: the segment of a term, or no_segment.
struct source_keys {
    spops_lists_source source;
    int64_t num_segments;
    spops_schedule *schedule;

    // How many terms come; one thread of the grid sees to the overflow.
    __device__ int64_t count(bool first) const
    {
        if (source.num_terms_device == nullptr) return source.num_terms;
        const int32_t given = *source.num_terms_device;
        if (first && given > source.num_terms) schedule->overflow = 1;
        return given < source.num_terms ? max(given, 0) : source.num_terms;
    }
    __device__ uint32_t key(int64_t t, bool &dropped) const
    {
        const int32_t key = source.keys != nullptr ? source.keys[t] : (int32_t)t;
        if (source.skip_negative && key < 0) return no_segment;
        if (source.drop_invalid) {
            const int64_t a = source.a != nullptr ? source.a[t] : t;
            const int64_t b = source.b != nullptr ? source.b[t] : t;
            dropped = !(key >= 0 && key < num_segments && a >= 0 && a < source.a_limit && b >= 0 &&
                        b < source.b_limit);
        }
        return dropped ? no_segment : (uint32_t)key;
    }
    __device__ void add_dropped(int32_t dropped) const
    {
        if (dropped > 0) atomicAdd(&schedule->num_dropped, dropped);
    }
};

// Keys for inversion: the forward position's row or weight. Notes the segment each position has.
struct inverse_keys {
    const int32_t *offsets;
    int64_t num_segments;
    const int2 *pairs;
    spops_inverse inverse;
    int32_t *segment_of;

    __device__ int64_t count(bool) const { return offsets[num_segments]; }
    __device__ uint32_t key(int64_t p, bool &) const
    {
        const int2 pair = pairs != nullptr ? pairs[p] : make_int2((int)p, (int)p);
        int64_t low = 0, high = num_segments; // the last segment that begins at or before p
        while (high - low > 1) {
            const int64_t middle = (low + high) / 2;
            if (offsets[middle] <= p)
                low = middle;
            else
                high = middle;
        }
        segment_of[p] = (int32_t)low;
        return (uint32_t)(inverse == SPOPS_BY_ROW ? pair.x : pair.y);
    }
    __device__ void add_dropped(int32_t) const {}
};

// For CUB: keys of terms, num_segments (which sorts last) for those that do not count.
template <class Keys>
__global__ void __launch_bounds__(threads)
    prepare_keys(const __grid_constant__ Keys source, int64_t num_items, int64_t num_segments,
                 uint32_t *keys, int32_t *values)
{
    take_turn();
    const int64_t t = (int64_t)blockIdx.x * threads + threadIdx.x;
    const int64_t count = source.count(t == 0);
    bool dropped = false;
    if (t < num_items) {
        const uint32_t key = t < count ? source.key(t, dropped) : no_segment;
        keys[t] = key != no_segment ? key : (uint32_t)num_segments;
        values[t] = (int32_t)t;
    }
    const int32_t sum = __syncthreads_count(dropped);
    if (threadIdx.x == 0) source.add_dropped(sum);
}

// Terms of each segment from n ascending keys: where a run ends, less where it begins.
template <class Key>
__global__ void __launch_bounds__(threads)
    count_sorted(const Key *keys, int64_t n, int64_t num_segments, int32_t *counts)
{
    take_turn();
    const int64_t p = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (p >= n) return;
    const Key key = keys[p];
    if ((int64_t)key >= num_segments) return; // terms that do not count
    if (p == 0 || keys[p - 1] != key) atomicSub(counts + key, (int32_t)p);
    if (p == n - 1 || keys[p + 1] != key) atomicAdd(counts + key, (int32_t)(p + 1));
}

// Where a term is its own segment: whether it counts. One thread a segment.
__global__ void __launch_bounds__(threads)
    count_own(const __grid_constant__ source_keys source, int32_t *counts)
{
    take_turn();
    const int64_t t = (int64_t)blockIdx.x * threads + threadIdx.x;
    const int64_t count = source.count(t == 0);
    bool dropped = false;
    if (t < source.num_segments) counts[t] = t < count && source.key(t, dropped) != no_segment;
    const int32_t sum = __syncthreads_count(dropped);
    if (threadIdx.x == 0) source.add_dropped(sum);
}

// ---- A sort in tiles ----------------------------------------------------------------------------

struct pass_params {
    uint2 *items;            // key, value
    int64_t num_items;       // or their capacity,
    const int32_t *num_kept; // where the pass before found out
    int32_t *put_num_kept;   // NULL: known already
    digit_counts digits;
    int32_t shift;
};

__device__ __forceinline__ int32_t digit_of(const pass_params &p, uint32_t key)
{
    return (int32_t)(key >> p.shift) & (p.digits.num_digits - 1);
}

// Items of the source, terms of each segment, and the digits of the first pass.
template <class Keys>
__global__ void __launch_bounds__(tile_threads)
    prepare_items(const __grid_constant__ Keys source, const __grid_constant__ pass_params p,
                  int32_t *counts)
{
    __shared__ int32_t found[max_digits];
    take_turn();
    const int64_t base = (int64_t)blockIdx.x * term_tile;
    const int64_t count = source.count(blockIdx.x == 0 && threadIdx.x == 0);
    uint32_t key[term_items];
    bool dropped[term_items];
#pragma unroll
    for (int i = 0; i < term_items; ++i) {
        const int64_t t = base + spops::tile_item<term_items>(i);
        key[i] = no_segment;
        dropped[i] = false;
        if (t < p.num_items && t < count) key[i] = source.key(t, dropped[i]);
        if (t < p.num_items) p.items[t] = make_uint2(key[i], (uint32_t)t);
    }
    spops::begin_count(found, p.digits.num_digits);
    int32_t num_dropped = 0;
#pragma unroll
    for (int i = 0; i < term_items; ++i) {
        const int32_t equal = spops::count_equal(key[i]);
        if (equal > 0 && key[i] != no_segment) {
            atomicAdd(counts + key[i], equal);
            atomicAdd(found + digit_of(p, key[i]), equal);
        }
        num_dropped += __syncthreads_count(dropped[i]);
    }
    spops::end_count(found, p.digits, (int32_t)blockIdx.x);
    if (threadIdx.x == 0) source.add_dropped(num_dropped);
}

// Digits of a later pass, in which all items count.
struct count_digits {
    pass_params p;
    __device__ void operator()(int32_t tile) const
    {
        __shared__ int32_t found[max_digits];
        const int64_t base = (int64_t)tile * term_tile;
        const int32_t num_items = *p.num_kept;
        spops::begin_count(found, p.digits.num_digits);
#pragma unroll
        for (int i = 0; i < term_items; ++i) {
            const int64_t t = base + spops::tile_item<term_items>(i);
            const bool used = t < num_items;
            const int32_t digit = used ? digit_of(p, p.items[t].x) : -1;
            const int32_t equal = spops::count_equal((uint32_t)digit);
            if (used && equal > 0) atomicAdd(found + digit, equal);
        }
        spops::end_count(found, p.digits, tile);
    }
};

// A block a digit.
struct scan_digits {
    digit_counts digits;
    __device__ void operator()(int32_t d) const { spops::scan_tiles(digits, d); }
};

// Put items where their digit belongs, in the order they have.
template <class Put> struct place_items {
    pass_params p;
    Put put;
    __device__ void operator()(int32_t tile) const
    {
        __shared__ partition_storage storage;
        const int64_t base = (int64_t)tile * term_tile;
        const int64_t num_items = p.num_kept != nullptr ? *p.num_kept : p.num_items;
        uint2 item[term_items];
        int32_t digit[term_items], place[term_items];
#pragma unroll
        for (int i = 0; i < term_items; ++i) {
            const int64_t t = base + spops::tile_item<term_items>(i);
            item[i] = t < num_items ? p.items[t] : make_uint2(no_segment, 0u);
            digit[i] = item[i].x != no_segment ? digit_of(p, item[i].x) : -1;
        }
        const int32_t num_kept = spops::find_begins(storage, p.digits, tile);
        if (p.put_num_kept != nullptr && tile == 0 && threadIdx.x == 0) *p.put_num_kept = num_kept;
        spops::find_places(storage, p.digits.num_digits, digit, place);
#pragma unroll
        for (int i = 0; i < term_items; ++i)
            if (digit[i] >= 0) put(place[i], item[i]);
    }
};

struct put_item {
    uint2 *items;
    __device__ void operator()(int32_t p, uint2 item) const { items[p] = item; }
};

// ---- Positions ----------------------------------------------------------------------------------

// pairs and order of a position from the term that landed there.
struct put_term {
    const int32_t *a, *b, *term;
    int2 *pairs;
    int32_t *order;

    __device__ void operator()(int32_t p, uint2 item) const
    {
        const int32_t t = (int32_t)item.y;
        if (pairs != nullptr)
            pairs[p] = make_int2(a != nullptr ? a[t] : t, b != nullptr ? b[t] : t);
        if (order != nullptr) order[p] = term != nullptr ? term[t] : t;
    }
};

// Likewise from the forward position.
struct put_inverse {
    const int2 *pairs;
    const int32_t *order, *segment_of;
    spops_inverse inverse;
    int2 *out_pairs;
    int32_t *out_order;

    __device__ void operator()(int32_t p, uint2 item) const
    {
        const int32_t from = (int32_t)item.y;
        const int2 pair = pairs != nullptr ? pairs[from] : make_int2(from, from);
        const int32_t segment = segment_of[from];
        out_pairs[p] =
            inverse == SPOPS_BY_ROW ? make_int2(segment, pair.y) : make_int2(pair.x, segment);
        out_order[p] = order != nullptr ? order[from] : from;
    }
};

// Positions whose terms are known; term_at NULL: they are the terms.
template <class Put>
__global__ void __launch_bounds__(threads)
    fill_terms(const __grid_constant__ Put put, const int32_t *term_at, const int32_t *num_terms)
{
    take_turn();
    const int32_t p = (int32_t)(blockIdx.x * threads + threadIdx.x);
    if (p >= *num_terms) return;
    put(p, make_uint2(no_segment, (uint32_t)(term_at != nullptr ? term_at[p] : p)));
}

// Terms that are their own segments.
template <class Put>
__global__ void __launch_bounds__(threads)
    place_own(const __grid_constant__ Put put, const int32_t *offsets, int64_t num_segments)
{
    take_turn();
    const int64_t t = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (t >= num_segments) return;
    const int32_t p = offsets[t];
    if (offsets[t + 1] > p) put(p, make_uint2(no_segment, (uint32_t)t));
}

// ---- Schedule -----------------------------------------------------------------------------------

struct segment_params {
    const int32_t *given; // offsets of the source, or NULL
    int32_t *offsets;     // of the lists; without given ones: counts, until fill_entries
    int32_t *put_counts;  // of segments; NULL: nobody asks
    int64_t num_segments;
    int32_t split_terms;
    digit_counts classes; // row class_digits: terms of all segments
    spops_work_item *entries;
    spops_schedule *schedule;
};

__device__ __forceinline__ int32_t count_of(const segment_params &p, int64_t o)
{
    if (o >= p.num_segments) return 0;
    return p.given != nullptr ? p.given[o + 1] - p.given[o] : p.offsets[o];
}

// Classes and terms of a tile's segments.
struct classify_segments {
    segment_params p;
    __device__ void operator()(int32_t tile) const
    {
        typedef cub::BlockReduce<int32_t, tile_threads> block_reduce;
        __shared__ typename block_reduce::TempStorage sum_storage, longest_storage;
        __shared__ int32_t found[max_digits];
        const int64_t o = (int64_t)tile * tile_threads + threadIdx.x;
        const int32_t count = count_of(p, o);
        const int32_t c = o < p.num_segments ? segment_class(count, p.split_terms) : -1;
        if (p.put_counts != nullptr && o < p.num_segments) p.put_counts[o] = count;
        spops::begin_count(found, class_digits);
        const int32_t equal = spops::count_equal((uint32_t)c);
        if (c >= 0 && equal > 0) atomicAdd(found + c, equal);
        const int32_t sum = block_reduce(sum_storage).Sum(count);
        const int32_t longest =
            block_reduce(longest_storage).Reduce(count, [](int32_t x, int32_t y) {
                return x > y ? x : y;
            });
        if (threadIdx.x == 0) {
            found[class_digits] = sum;
            atomicMax(&p.schedule->longest, longest);
        }
        spops::end_count(found, p.classes, tile);
    }
};

// Offsets; entries in class order, and where each class begins.
struct fill_entries {
    segment_params p;
    __device__ void operator()(int32_t tile) const
    {
        __shared__ partition_storage storage;
        __shared__ partition_storage::block_scan::TempStorage offset_storage;
        const int64_t o = (int64_t)tile * tile_threads + threadIdx.x;
        const int32_t count = count_of(p, o);
        const int32_t c[1] = {o < p.num_segments ? segment_class(count, p.split_terms) : -1};
        const int64_t terms_row = (int64_t)class_digits * p.classes.num_tiles;
        digit_counts classes = p.classes;
        int32_t before, place[1];
        classes.num_digits = class_digits;
        partition_storage::block_scan(offset_storage).ExclusiveSum(count, before);
        (void)spops::find_begins(storage, classes, tile);
        spops::find_places(storage, class_digits, c, place);
        if (o < p.num_segments) {
            const int32_t begin = p.classes.tiles[terms_row + tile] + before;
            const int4 entry = make_int4((int32_t)o, begin, count, -1);
            p.offsets[o] = begin;
            if (o == p.num_segments - 1) p.offsets[o + 1] = begin + count;
            *reinterpret_cast<int4 *>(p.entries + place[0]) = entry;
        }
        if (tile != 0) return;
        const int k = (int)threadIdx.x;
        if (k < SPOPS_NUM_CLASSES) // no tile is before this one
            p.schedule->class_begin[k] = storage.begin[k << length_bits];
        if (k == SPOPS_NUM_CLASSES) {
            p.schedule->class_begin[k] = (int32_t)p.num_segments;
            p.schedule->num_terms = p.classes.totals[class_digits];
            p.schedule->num_nonempty =
                (int32_t)p.num_segments - p.classes.totals[SPOPS_CLASS_EMPTY << length_bits];
        }
    }
};

// The segments to split, and their pieces. One block: there are at most max_terms / split_terms of
// them, and twice as many pieces; split_terms is at least max_terms / 2048.
struct fill_splits {
    const spops_work_item *entries;
    spops_split_segment *splits;
    spops_work_item *pieces;
    spops_schedule *schedule;

    __device__ void operator()(int32_t) const
    {
        typedef cub::BlockScan<int32_t, tile_threads> block_scan;
        __shared__ typename block_scan::TempStorage storage;
        const spops_work_item *first_split = entries + schedule->class_begin[SPOPS_CLASS_SPLIT];
        const int32_t num_splits =
            schedule->class_begin[SPOPS_NUM_CLASSES] - schedule->class_begin[SPOPS_CLASS_SPLIT];
        const int32_t split_terms = schedule->split_terms;
        int32_t num_pieces = 0;
        for (int32_t base = 0; base < num_splits; base += tile_threads) {
            const int32_t i = base + (int32_t)threadIdx.x;
            spops_split_segment split = {};
            if (i < num_splits) {
                const spops_work_item entry = first_split[i];
                split.segment = entry.segment;
                split.count = entry.count;
                split.num_pieces = (entry.count + split_terms - 1) / split_terms;
            }
            int32_t first, total;
            block_scan(storage).ExclusiveSum(split.num_pieces, first, total);
            split.first_piece = num_pieces + first;
            if (i < num_splits) splits[i] = split;
            num_pieces += total;
            __syncthreads();
        }
        if (threadIdx.x == 0) {
            schedule->num_splits = num_splits;
            schedule->num_pieces = num_pieces;
        }
        for (int32_t i = (int32_t)threadIdx.x; i < num_pieces; i += tile_threads) {
            int32_t low = 0, high = num_splits; // the last split that begins at or before i
            while (high - low > 1) {
                const int32_t middle = (low + high) / 2;
                if (splits[middle].first_piece <= i)
                    low = middle;
                else
                    high = middle;
            }
            const spops_split_segment split = splits[low];
            const int32_t part = (split.count + split.num_pieces - 1) / split.num_pieces;
            const int32_t skip = min((i - split.first_piece) * part, split.count);
            spops_work_item piece;
            piece.segment = split.segment;
            piece.begin = first_split[low].begin + skip;
            piece.count = min(part, split.count - skip);
            piece.split = low;
            pieces[i] = piece;
        }
    }
};

// ---- Launches -----------------------------------------------------------------------------------

spops_status clear(spops_context *ctx, const spops_lists *lists)
{
    return launch<WAITS_FOR_PREVIOUS>(
        ctx, "segments: clear_lists", clear_lists, blocks_for(lists->num_segments + 1, threads),
        threads, lists->schedule, lists->split_terms, lists->offsets, lists->num_segments);
}

// A launch of num_a blocks with job a, and num_b with job b.
template <class A, class B>
spops_status run(spops_context *ctx, const char *what, const A &a, int32_t num_a, const B &b,
                 int32_t num_b)
{
    return launch<WAITS_FOR_PREVIOUS>(ctx, what, run_jobs<A, B>, dim3((unsigned)(num_a + num_b)),
                                      tile_threads, a, b, num_a);
}
template <class A> spops_status run(spops_context *ctx, const char *what, const A &a, int32_t num_a)
{
    return run(ctx, what, a, num_a, no_job(), 0);
}

// The jobs that make offsets, entries, pieces and splits, from given offsets or from counts, one
// after the other; a job without blocks has nothing to do.
struct schedule_jobs {
    classify_segments classify;
    scan_digits scan;
    fill_entries entries;
    fill_splits splits;
    int32_t num_tiles, num_rows, num_splits; // blocks
};

schedule_jobs schedule_of(const int32_t *given, int32_t *counts, const spops_lists *lists,
                          const build_workspace &ws)
{
    schedule_jobs jobs;
    segment_params p;
    p.given = given;
    p.put_counts = counts;
    p.offsets = lists->offsets;
    p.num_segments = lists->num_segments;
    p.split_terms = lists->split_terms;
    p.classes = ws.classes;
    p.entries = lists->entries;
    p.schedule = lists->schedule;
    jobs.classify.p = p;
    jobs.scan.digits = ws.classes;
    jobs.entries.p = p;
    jobs.splits = {lists->entries, lists->splits, lists->pieces, lists->schedule};
    jobs.num_tiles = p.num_segments > 0 ? ws.classes.num_tiles : 0;
    jobs.num_rows = p.num_segments > 0 ? ws.classes.num_digits : 0;
    jobs.num_splits = p.num_segments > 0 && lists->max_splits > 0 ? 1 : 0;
    return jobs;
}

int32_t *counts_for(const source_keys &keys)
{
    return keys.source.counts;
}
int32_t *counts_for(const inverse_keys &)
{
    return nullptr;
}

// All of them, alone.
spops_status build_schedule(spops_context *ctx, const int32_t *given, int32_t *counts,
                            const spops_lists *lists, const build_workspace &ws)
{
    const schedule_jobs jobs = schedule_of(given, counts, lists, ws);
    SPOPS_TRY(run(ctx, "segments: classify segments", jobs.classify, jobs.num_tiles));
    SPOPS_TRY(run(ctx, "segments: scan classes", jobs.scan, jobs.num_rows));
    SPOPS_TRY(run(ctx, "segments: fill entries", jobs.entries, jobs.num_tiles));
    return run(ctx, "segments: fill splits", jobs.splits, jobs.num_splits);
}

// pairs and order, where the sort has not written them.
template <class Put>
spops_status fill(spops_context *ctx, const Put &put, const int32_t *term_at, int64_t n,
                  const spops_lists *lists)
{
    if (lists->pairs == nullptr && lists->order == nullptr) return SPOPS_STATUS_OK;
    return launch<WAITS_FOR_PREVIOUS>(ctx, "segments: fill_terms", fill_terms<Put>,
                                      blocks_for(n, threads), threads, put, term_at,
                                      lists->offsets + lists->num_segments);
}

// Lists of n terms with these keys, sorted in tiles while segments get their schedule.
template <class Keys, class Put>
spops_status build_tiled(spops_context *ctx, const Keys &keys, const Put &put, int64_t n,
                         spops_lists *lists, const build_workspace &ws)
{
    const schedule_jobs jobs = schedule_of(nullptr, counts_for(keys), lists, ws);
    // Also without room for any term: it is what notices an overflow.
    const int32_t tiles = n > 0 ? (int32_t)((n + term_tile - 1) / term_tile) : 1;
    const int passes = ws.plan.passes;
    int32_t num_tiles, num_digits;
    pass_params p = {};
    p.items = ws.items[0];
    p.num_items = n;
    p.digits = ws.digits;
    p.digits.num_tiles = tiles;
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "segments: prepare_items", prepare_items<Keys>,
                                         dim3((unsigned)tiles), tile_threads, keys, p,
                                         lists->offsets));
    if (lists->num_segments == 0) return SPOPS_STATUS_OK;
    num_tiles = n > 0 ? tiles : 0;
    num_digits = n > 0 ? p.digits.num_digits : 0;
    SPOPS_TRY(run(ctx, "segments: classify segments, scan digits", jobs.classify, jobs.num_tiles,
                  scan_digits{p.digits}, num_digits));
    p.put_num_kept = ws.num_kept;
    if (passes == 1) {
        SPOPS_TRY(run(ctx, "segments: scan classes, place terms", jobs.scan, jobs.num_rows,
                      place_items<Put>{p, put}, num_tiles));
        SPOPS_TRY(run(ctx, "segments: fill entries", jobs.entries, jobs.num_tiles));
        return run(ctx, "segments: fill splits", jobs.splits, jobs.num_splits);
    }
    SPOPS_TRY(run(ctx, "segments: scan classes, place items", jobs.scan, jobs.num_rows,
                  place_items<put_item>{p, {ws.items[1]}}, num_tiles));
    p.put_num_kept = nullptr;
    p.num_kept = ws.num_kept;
    for (int pass = 1; pass < passes; ++pass) {
        p.items = ws.items[pass % 2];
        p.shift = pass * ws.plan.digit_bits;
        const bool first = pass == 1, last = pass == passes - 1;
        SPOPS_TRY(run(ctx, "segments: fill entries, count digits", jobs.entries,
                      first ? jobs.num_tiles : 0, count_digits{p}, num_tiles));
        SPOPS_TRY(run(ctx, "segments: fill splits, scan digits", jobs.splits,
                      first ? jobs.num_splits : 0, scan_digits{p.digits}, num_digits));
        if (last)
            SPOPS_TRY(run(ctx, "segments: place terms", place_items<Put>{p, put}, num_tiles));
        else
            SPOPS_TRY(run(ctx, "segments: place items",
                          place_items<put_item>{p, {ws.items[(pass + 1) % 2]}}, num_tiles));
    }
    return SPOPS_STATUS_OK;
}

// Likewise, sorted by CUB.
template <class Keys, class Put>
spops_status build_sorted(spops_context *ctx, const Keys &source, const Put &put, int64_t n,
                          spops_lists *lists, const build_workspace &ws)
{
    sort_buffers terms = {{ws.keys[0], ws.keys[1]}, {ws.values[0], ws.values[1]}, 0};
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "segments: prepare_keys", prepare_keys<Keys>,
                                         blocks_for(n > 0 ? n : 1, threads), threads, source, n,
                                         lists->num_segments, ws.keys[0], ws.values[0]));
    if (n > 0) {
        SPOPS_TRY(
            ws.wide.sort(ctx, "segments: sort of terms", &terms, n, bits_for(lists->num_segments)));
        SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(
            ctx, "segments: count_sorted", count_sorted<uint32_t>, blocks_for(n, threads), threads,
            terms.keys[terms.current], n, lists->num_segments, lists->offsets));
    }
    SPOPS_TRY(build_schedule(ctx, nullptr, counts_for(source), lists, ws));
    return fill(ctx, put, terms.values[terms.current], n, lists);
}

// Likewise, where a term is its own segment: there is nothing to sort.
spops_status build_own(spops_context *ctx, const source_keys &source, const put_term &put,
                       spops_lists *lists, const build_workspace &ws)
{
    const dim3 blocks = blocks_for(lists->num_segments > 0 ? lists->num_segments : 1, threads);
    SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "segments: count_own", count_own, blocks, threads,
                                         source, lists->offsets));
    SPOPS_TRY(build_schedule(ctx, nullptr, counts_for(source), lists, ws));
    return launch<WAITS_FOR_PREVIOUS>(ctx, "segments: place_own", place_own<put_term>, blocks,
                                      threads, put, lists->offsets, lists->num_segments);
}

template <class Keys, class Put>
spops_status build_from_keys(spops_context *ctx, const Keys &keys, const Put &put, int64_t n,
                             spops_lists *lists, const build_workspace &ws)
{
    return ws.plan.tiled ? build_tiled(ctx, keys, put, n, lists, ws)
                         : build_sorted(ctx, keys, put, n, lists, ws);
}

__global__ void find_violation(spops_check_rule rule, const int32_t *a, int64_t n, int64_t low,
                               int64_t high, unsigned long long *first)
{
    const int64_t stride = (int64_t)gridDim.x * threads;
    for (int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x; i < n; i += stride) {
        const bool bad =
            rule == SPOPS_CHECK_RANGE ? a[i] < low || a[i] >= high : i > 0 && a[i] < a[i - 1];
        if (bad) {
            atomicMin(first, (unsigned long long)i);
            return;
        }
    }
}

} // namespace

extern "C" int spops_cuda_probe(void)
{
    cudaFuncAttributes attributes;
    return (int)cudaFuncGetAttributes(&attributes, clear_lists);
}

extern "C" int32_t spops_cuda_split_terms(const spops_context *ctx,
                                          const spops_split_terms_args *args)
{
    (void)ctx;
    // A piece should keep each lane group of a block busy with some 64 terms; and a plan of one
    // huge segment should not need more than about 2,048 pieces, which one block has to combine.
    const int64_t lanes = (args->max_cols + 3) / 4;
    const int64_t groups = lanes < threads ? threads / lanes : 1;
    int64_t terms = 64 * groups;
    if (terms < 256) terms = 256;
    if (terms > 4096) terms = 4096;
    if (terms < args->max_terms / 2048) terms = args->max_terms / 2048;
    return (int32_t)terms;
}

extern "C" size_t spops_cuda_lists_workspace_bytes(spops_context *ctx, const spops_lists *lists)
{
    (void)ctx;
    spops_carver c = {nullptr, 0};
    carve_workspace(lists->num_segments, spops_lists_sorted_terms(lists), &c);
    return c.used;
}

extern "C" spops_status spops_cuda_lists_build(spops_context *ctx,
                                               const spops_lists_build_args *args)
{
    const spops_lists_source *source = args->source;
    spops_lists *lists = args->lists;
    const int64_t n = source->num_terms, segments = lists->num_segments;
    spops_carver c = {(char *)args->workspace, 0};
    const build_workspace ws = carve_workspace(segments, spops_lists_sorted_terms(lists), &c);
    const put_term put = {source->a, source->b, source->term, (int2 *)lists->pairs, lists->order};
    SPOPS_TRY(clear(ctx, lists));
    const source_keys keys = {*source, segments, lists->schedule};
    if (source->offsets == nullptr && source->keys == nullptr)
        return build_own(ctx, keys, put, lists, ws);
    if (source->offsets == nullptr && !source->keys_sorted)
        return build_from_keys(ctx, keys, put, n, lists, ws);
    if (source->offsets == nullptr)
        SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "segments: count_sorted", count_sorted<int32_t>,
                                             blocks_for(n, threads), threads, source->keys, n,
                                             segments, lists->offsets));
    SPOPS_TRY(build_schedule(ctx, source->offsets, source->counts, lists, ws));
    return fill(ctx, put, nullptr, n, lists);
}

extern "C" spops_status spops_cuda_lists_invert(spops_context *ctx,
                                                const spops_lists_invert_args *args)
{
    const spops_lists *forward = args->forward;
    const spops_inverse inverse = args->inverse;
    spops_lists *lists = args->lists;
    const int64_t n = forward->max_terms;
    const int2 *pairs = (const int2 *)forward->pairs;
    spops_carver c = {(char *)args->workspace, 0};
    const build_workspace ws = carve_workspace(lists->num_segments, lists->max_terms, &c);
    const inverse_keys keys = {forward->offsets, forward->num_segments, pairs, inverse,
                               ws.segment_of};
    const put_inverse put = {pairs,   forward->order,       ws.segment_of,
                             inverse, (int2 *)lists->pairs, lists->order};
    SPOPS_TRY(clear(ctx, lists));
    return build_from_keys(ctx, keys, put, n, lists, ws);
}

extern "C" spops_status spops_cuda_check_indices(spops_context *ctx,
                                                 const spops_check_indices_args *args)
{
    const int32_t *a = args->a;
    const int64_t n = args->n;
    spops_check_result *result = args->result;
    const unsigned long long none = ~0ull;
    unsigned long long first = none;
    void *device_first = nullptr;
    spops_status status = SPOPS_STATUS_OK;
    const spops_backend *backend = ctx->backend;
    result->index = -1;
    result->value = result->previous = 0;
    if (n == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_backend_alloc(ctx, sizeof first, &device_first));
    SPOPS_TRY_GOTO(backend->upload(ctx, device_first, &first, sizeof first), status, done);
    SPOPS_TRY_GOTO(launch(ctx, "segments: find_violation", find_violation,
                          dim3((unsigned)(n < 1024 * threads ? (n + threads - 1) / threads : 1024)),
                          threads, args->rule, a, n, args->low, args->high,
                          (unsigned long long *)device_first),
                   status, done);
    SPOPS_TRY_GOTO(backend->download(ctx, &first, device_first, sizeof first), status, done);
    if (first != none) {
        result->index = (int64_t)first;
        SPOPS_TRY_GOTO(backend->download(ctx, &result->value, a + first, sizeof(int32_t)), status,
                       done);
        if (first > 0)
            SPOPS_TRY_GOTO(
                backend->download(ctx, &result->previous, a + first - 1, sizeof(int32_t)), status,
                done);
    }

done:
    spops_backend_free(ctx, device_first, sizeof first);
    return status;
}
