// SPDX-License-Identifier: Apache-2.0
// Sort and top-k within segments. Segments of up to 128 terms: a group of lanes counts for each term how
// many come before it. Longer ones: a block, in shared memory; of split ones top-k by blocks of some
// pieces, and then by one. What does not fit there is sorted by digits, all segments at once.
#include "kernels/core/device_wide.h"
#include "kernels/core/with_dtype.cuh"
#include "kernels/segments/clear_rows.cuh"
#include "kernels/segments/segment_of.cuh"
#include "kernels/segops/block_order.cuh"
#include "segops/segops_args.h"
#include "spops/device/grid_dependency.cuh"

namespace
{

using namespace spops;

constexpr int threads = order_threads;
constexpr int items = 4; // terms of a lane, of short segments
constexpr int small_room = 2048,
              large_room = 4096;      // candidates of a block: more blocks, or longer segments
constexpr int32_t group_terms = 8192; // a block takes split segments of so many terms alone

struct segment_params {
    order_params order;
    const spops_work_item *entries, *pieces;
    const spops_split_segment *splits;
    const spops_schedule *schedule;
    candidate *found; // [slots][cols][kept] of groups of pieces
    int32_t kept;     // that a group of pieces leaves
    int32_t at_once;  // pieces of a group; 0: split segments go through one block each
};

// ---- Short segments -----------------------------------------------------------------------------

// LANES lanes for each segment of at most LANES * items terms.
template <class T, int LANES>
__device__ __forceinline__ void order_short(const segment_params &p, const spops_work_item *first,
                                            int32_t n, int32_t col)
{
    const int32_t lane = (int32_t)threadIdx.x & 31, sub = lane % LANES, which = lane / LANES;
    spops_work_item entry = {0, 0, 0, -1};
    candidate own[items];
    T value[items];
    int32_t term[items], rank[items];

    if (which < n) entry = first[which];
#pragma unroll
    for (int j = 0; j < items; ++j) {
        const int32_t i = j * LANES + sub;
        own[j] = no_candidate;
        rank[j] = 0;
        if (i >= entry.count) continue;
        term[j] = p.order.term(entry.begin + i);
        value[j] = p.order.value<T>(term[j], col);
        own[j] = candidate_of(value_key(to_f32(value[j]), p.order.descending), i);
    }
#pragma unroll
    for (int j = 0; j < items; ++j) {
        if (!__any_sync(0xffffffff, j * LANES < entry.count)) break;
#pragma unroll
        for (int l = 0; l < LANES; ++l) {
            const candidate other = __shfl_sync(0xffffffff, own[j], l, LANES);
#pragma unroll
            for (int i = 0; i < items; ++i)
                rank[i] += other < own[i];
        }
    }
    if (which >= n) return;
#pragma unroll
    for (int j = 0; j < items; ++j) {
        if (j * LANES + sub >= entry.count) continue;
        if (p.order.k == 0)
            p.order.put<T>(p.order.term(entry.begin + rank[j]), col, value[j], term[j]);
        else if (rank[j] < p.order.k)
            p.order.put<T>((int64_t)entry.segment * p.order.k + rank[j], col, value[j], term[j]);
    }
    if (p.order.k > entry.count)
        p.order.write_rest<T>(entry.segment, entry.count + sub, LANES, col);
}

// Warps stride over the segments of the classes SHORT to TEAM8, and over empty ones, column by column.
template <class T>
__global__ void __launch_bounds__(threads) short_kernel(const __grid_constant__ segment_params p)
{
    constexpr int num_classes = 5; // the last: empty segments, as many as of SHORT
    grid_launch_dependents();
    int32_t begin[num_classes], size[num_classes];
    int64_t units[num_classes], all = 0;
#pragma unroll
    for (int c = 0; c < num_classes; ++c) {
        const int of = c == 4 ? SPOPS_CLASS_EMPTY : c;
        const int32_t each = c == 4 ? 8 : 8 >> c;
        begin[c] = p.schedule->class_begin[of];
        size[c] = p.schedule->class_begin[of + 1] - begin[c];
        if (c == 4 && p.order.k == 0) size[c] = 0; // nothing is written for them
        units[c] = (int64_t)((size[c] + each - 1) / each) * p.order.cols;
        all += units[c];
    }
    const int64_t step = (int64_t)gridDim.x * (threads / 32);
    for (int64_t w = (int64_t)blockIdx.x * (threads / 32) + threadIdx.x / 32; w < all; w += step) {
        int64_t unit = w;
        int c = 0;
        while (unit >= units[c])
            unit -= units[c++];
        const int32_t each = c == 4 ? 8 : 8 >> c, col = (int32_t)(unit % p.order.cols);
        const int32_t at = (int32_t)(unit / p.order.cols) * each;
        const spops_work_item *first = p.entries + begin[c] + at;
        const int32_t n = min(each, size[c] - at);
        if (c == 1)
            order_short<T, 8>(p, first, n, col);
        else if (c == 2)
            order_short<T, 16>(p, first, n, col);
        else if (c == 3)
            order_short<T, 32>(p, first, n, col);
        else
            order_short<T, 4>(p, first, n, col);
    }
}

// The kernels below start while the one before them is running: it writes other rows, and x was there
// before it. They end after it, as whoever comes next waits for the last alone.

// ---- Blocks -------------------------------------------------------------------------------------

// What a block has found of a segment.
template <class T, int ROOM>
__device__ __forceinline__ void write_found(const segment_params &p, const order_shared<ROOM> &s,
                                            int32_t segment, int32_t begin, int32_t col)
{
    for (int32_t i = (int32_t)threadIdx.x; i < s.count; i += threads)
        p.order.write<T>(segment, begin, i, col, position_of(s.list[i]));
    p.order.write_rest<T>(segment, s.count + (int32_t)threadIdx.x, threads, col);
}

// A whole segment: of a sort at most ROOM terms.
template <class T, int ROOM>
__device__ __forceinline__ void order_segment(const segment_params &p, order_shared<ROOM> &s,
                                              int32_t segment, int32_t begin, int32_t count,
                                              int32_t col)
{
    if (p.order.k > 0) {
        block_first(s, count, p.kept, [&](int32_t i) { return p.order.load<T>(begin + i, col); });
    } else {
        __syncthreads(); // of the one before
        for (int32_t i = (int32_t)threadIdx.x; i < count; i += threads)
            s.list[i] = p.order.load<T>(begin + i, col);
        if (threadIdx.x == 0) s.count = count;
        block_sort(s.list, count);
    }
    write_found<T, ROOM>(p, s, segment, begin, col);
}

// Segments of the class BLOCK.
template <class T, int ROOM>
__global__ void __launch_bounds__(threads) block_kernel(const __grid_constant__ segment_params p)
{
    __shared__ order_shared<ROOM> s;
    grid_launch_dependents();
    const int32_t first = p.schedule->class_begin[SPOPS_CLASS_BLOCK];
    const int64_t all =
        (int64_t)(p.schedule->class_begin[SPOPS_CLASS_BLOCK + 1] - first) * p.order.cols;
    for (int64_t unit = blockIdx.x; unit < all; unit += gridDim.x) {
        const spops_work_item entry = p.entries[first + unit / p.order.cols];
        order_segment<T, ROOM>(p, s, entry.segment, entry.begin, entry.count,
                               (int32_t)(unit % p.order.cols));
    }
    grid_dependency_wait();
}

// Groups of pieces of one split segment have slots of their own: that of its first piece / at_once, and
// one more for each split segment before it, as groups of two segments do not share one.
__device__ __forceinline__ int64_t slot_of(const segment_params &p,
                                           const spops_split_segment &split, int32_t index,
                                           int32_t group)
{
    return (int64_t)split.first_piece / p.at_once + index + group;
}

template <class T, int ROOM>
__global__ void __launch_bounds__(threads) pieces_kernel(const __grid_constant__ segment_params p)
{
    __shared__ order_shared<ROOM> s;
    grid_launch_dependents();
    const int64_t all = (int64_t)p.schedule->num_pieces * p.order.cols;
    for (int64_t unit = blockIdx.x; unit < all; unit += gridDim.x) {
        const int32_t piece = (int32_t)(unit / p.order.cols), col = (int32_t)(unit % p.order.cols);
        const int32_t index = p.pieces[piece].split;
        const spops_split_segment split = p.splits[index];
        const int32_t local = piece - split.first_piece;
        if (local % p.at_once != 0) continue; // of a group that another block has
        const spops_work_item last =
            p.pieces[min(piece + p.at_once, split.first_piece + split.num_pieces) - 1];
        const int32_t begin = p.pieces[piece].begin;
        block_first(s, last.begin + last.count - begin, p.kept,
                    [&](int32_t i) { return p.order.load<T>(begin + i, col); });
        candidate *to =
            p.found + (slot_of(p, split, index, local / p.at_once) * p.order.cols + col) * p.kept;
        for (int32_t i = (int32_t)threadIdx.x; i < p.kept; i += threads)
            to[i] = i < s.count ? s.list[i] : no_candidate;
    }
    grid_dependency_wait();
}

template <class T, int ROOM>
__global__ void __launch_bounds__(threads) splits_kernel(const __grid_constant__ segment_params p)
{
    __shared__ order_shared<ROOM> s;
    grid_dependency_wait(); // for what the pieces have left
    const int64_t all = (int64_t)p.schedule->num_splits * p.order.cols;
    for (int64_t unit = blockIdx.x; unit < all; unit += gridDim.x) {
        const int32_t index = (int32_t)(unit / p.order.cols), col = (int32_t)(unit % p.order.cols);
        const spops_split_segment split = p.splits[index];
        if (p.at_once == 0) {
            order_segment<T, ROOM>(p, s, split.segment, p.pieces[split.first_piece].begin,
                                   split.count, col);
            continue;
        }
        const int32_t groups = (split.num_pieces + p.at_once - 1) / p.at_once;
        const candidate *from = p.found + slot_of(p, split, index, 0) * p.order.cols * p.kept;
        block_first(s, groups * p.kept, p.kept, [&](int32_t i) {
            const int32_t group = i / p.kept;
            return from[((int64_t)group * p.order.cols + col) * p.kept + (i - group * p.kept)];
        });
        write_found<T, ROOM>(p, s, split.segment, 0, col);
    }
}

// ---- By digits ----------------------------------------------------------------------------------

typedef segment_finder<threads, 1> finder;

struct digit_params {
    order_params order;
    const int32_t *offsets;
    int64_t num_segments;
    int32_t max_terms;
    int32_t first_col, cols; // of this sort
    candidate *keys;         // [cols][max_terms]: number of column and segment, key
    int32_t *positions;      // likewise; sorted
};

template <class T>
__global__ void __launch_bounds__(threads) digits_kernel(const __grid_constant__ digit_params p)
{
    __shared__ finder::shared shared;
    const int64_t first = (int64_t)blockIdx.x * finder::positions;
    const int32_t num_terms = p.offsets[p.num_segments];
    const int32_t position = (int32_t)first + (int32_t)threadIdx.x;
    int32_t segment[1] = {0};
    if (first < num_terms) {
        const int32_t end = (int32_t)min(first + finder::positions, (int64_t)num_terms);
        finder::find(shared, p.offsets, p.num_segments, (int32_t)first, end, segment);
    }
    if (position >= p.max_terms) return;
    for (int32_t c = 0; c < p.cols; ++c) {
        const int64_t at = (int64_t)c * p.max_terms + position;
        candidate key = (candidate)(p.num_segments * p.cols) << 32; // after all
        if (position < num_terms) {
            const float v = to_f32(p.order.value<T>(p.order.term(position), p.first_col + c));
            key = (candidate)(c * p.num_segments + segment[0]) << 32 |
                  value_key(v, p.order.descending);
        }
        p.keys[at] = key;
        p.positions[at] = position;
    }
}

// Of a sort: a thread a position.
template <class T>
__global__ void __launch_bounds__(threads) ranked_kernel(const __grid_constant__ digit_params p)
{
    const int32_t num_terms = p.offsets[p.num_segments];
    const int32_t c = (int32_t)blockIdx.y;
    const int64_t position = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (position >= num_terms) return;
    const int32_t from = p.order.term(p.positions[(int64_t)c * num_terms + position]);
    p.order.put<T>(p.order.term((int32_t)position), p.first_col + c,
                   p.order.value<T>(from, p.first_col + c), from);
}

// Of top-k: a thread a row of values.
template <class T>
__global__ void __launch_bounds__(threads) first_kernel(const __grid_constant__ digit_params p)
{
    const int32_t num_terms = p.offsets[p.num_segments], c = (int32_t)blockIdx.y;
    const int64_t step = (int64_t)gridDim.x * threads, all = p.num_segments * p.order.k;
    for (int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x; i < all; i += step) {
        const int32_t segment = (int32_t)(i / p.order.k), rank = (int32_t)(i % p.order.k);
        const int32_t begin = p.offsets[segment], count = p.offsets[segment + 1] - begin;
        if (rank < count)
            p.order.write<T>(segment, begin, rank, p.first_col + c,
                             p.positions[(int64_t)c * num_terms + begin + rank]);
        else
            p.order.put<T>(i, p.first_col + c,
                           from_f32<T>(p.order.descending ? -INFINITY : INFINITY), -1);
    }
}

// ---- Which way ----------------------------------------------------------------------------------

// By digits or not, and what that needs of scratch.
struct order_plan {
    bool by_digits, splits, is_small;
    int32_t at_once, kept; // of pieces; at_once 0: split segments go through one block each
    int64_t slots;
    int32_t cols_at_once; // by digits
};

constexpr int64_t digits_at_once = 1 << 22; // elements of one sort, where more than a column fit

// Terms of the longest segment, as far as the host knows it.
int64_t longest_of(const spops_lists *lists)
{
    const int64_t longest = lists->host_schedule.longest;
    return lists->counts_on_device && longest == 0 ? lists->max_terms : longest;
}

order_plan plan_order(spops_context *ctx, const spops_segment_sort_args *args)
{
    const spops_lists *lists = args->lists;
    const spops_schedule &host = lists->host_schedule;
    const int64_t longest = longest_of(lists), cols = args->x.cols > 0 ? args->x.cols : 1;
    const int64_t k = args->k < longest ? args->k : longest;
    order_plan plan = {};
    plan.splits = lists->counts_on_device ? lists->max_splits > 0 : host.num_splits > 0;
    plan.by_digits = args->k == 0 ? longest > large_room : k > order_most(large_room);
    plan.is_small = args->k == 0 ? longest <= small_room : k <= order_most(small_room);
    if (!plan.by_digits) {
        const int64_t pieces = lists->counts_on_device ? lists->max_pieces : host.num_pieces;
        const int64_t splits = lists->counts_on_device ? lists->max_splits : host.num_splits;
        plan.kept = (int32_t)k;
        if (!plan.splits || longest <= group_terms) return plan;
        // A block's pieces: so many that all blocks run at once, or longer ones.
        int64_t terms = lists->max_terms * cols / ((int64_t)ctx->info.num_processors * 6);
        terms = terms < 2048 ? 2048 : terms < 16384 ? terms : 16384;
        plan.at_once = lists->split_terms < terms ? (int32_t)(terms / lists->split_terms) : 1;
        plan.slots = pieces / plan.at_once + splits + 1;
        return plan;
    }
    const int64_t fit = digits_at_once / (lists->max_terms > 0 ? lists->max_terms : 1);
    plan.cols_at_once = (int32_t)(fit < 1 ? 1 : fit < cols ? fit : cols);
    while (plan.cols_at_once > 1 && lists->num_segments * plan.cols_at_once >= INT32_MAX)
        plan.cols_at_once /= 2;
    return plan;
}

struct order_scratch {
    candidate *found;  // of pieces
    uint64_t *keys[2]; // by digits
    int32_t *positions[2];
    device_wide wide;
};

order_scratch carve(const order_plan &plan, const spops_segment_sort_args *args, spops_carver *c)
{
    order_scratch s = {};
    if (!plan.by_digits) {
        s.found = (candidate *)spops_carve(c, plan.slots, args->x.cols,
                                           sizeof(candidate) * (size_t)plan.kept);
        return s;
    }
    for (int i = 0; i < 2; ++i) {
        s.keys[i] = (uint64_t *)spops_carve(c, args->lists->max_terms, plan.cols_at_once, 8);
        s.positions[i] = (int32_t *)spops_carve(c, args->lists->max_terms, plan.cols_at_once, 4);
    }
    s.wide.needs_sort<uint64_t>(
        args->lists->max_terms * plan.cols_at_once,
        32 + bits_for((uint64_t)args->lists->num_segments * plan.cols_at_once));
    s.wide.carve(c);
    return s;
}

order_params order_params_of(const spops_segment_sort_args *args)
{
    order_params p = {};
    p.order = args->lists->order;
    p.x = args->x.data;
    p.x_stride = args->x.row_stride;
    p.values = args->values.data;
    p.values_stride = args->values.row_stride;
    p.places = (int32_t *)args->places.data;
    p.places_stride = args->places.row_stride;
    p.cols = (int32_t)args->x.cols;
    p.k = args->k;
    p.descending = args->descending;
    return p;
}

dim3 grid_of(const spops_context *ctx, int64_t blocks, int most_of_processor)
{
    const int64_t most = (int64_t)ctx->info.num_processors * most_of_processor;
    return dim3((unsigned)(blocks < most ? blocks : most));
}

// Whether there are segments of up to 128 terms, or empty ones that top-k writes.
bool has_short_segments(const spops_schedule &host, int32_t k)
{
    return host.class_begin[SPOPS_CLASS_BLOCK] > 0 ||
           (k > 0 && host.class_begin[SPOPS_CLASS_EMPTY + 1] > host.class_begin[SPOPS_CLASS_EMPTY]);
}

spops_status launch_one(spops_context *ctx, bool *is_first, void (*kernel)(segment_params),
                        dim3 grid, const segment_params &p)
{
    const char *what = "segment order: launch";
    if (grid.x == 0) return SPOPS_STATUS_OK;
    if (!*is_first) return launch<WAITS_FOR_PREVIOUS>(ctx, what, kernel, grid, threads, p);
    *is_first = false;
    return launch(ctx, what, kernel, grid, threads, p);
}

template <class T, int ROOM>
spops_status launch_segments(spops_context *ctx, const spops_segment_sort_args *args,
                             const order_plan &plan, const order_scratch &scratch)
{
    const spops_lists *lists = args->lists;
    const spops_schedule &host = lists->host_schedule;
    const bool known = !lists->counts_on_device;
    const int64_t cols = args->x.cols;
    const int64_t in_blocks =
        known ? host.class_begin[SPOPS_CLASS_BLOCK + 1] - host.class_begin[SPOPS_CLASS_BLOCK]
              : lists->max_terms / 129 + 1;
    segment_params p = {};
    p.order = order_params_of(args);
    p.entries = lists->entries;
    p.pieces = lists->pieces;
    p.splits = lists->splits;
    p.schedule = lists->schedule;
    p.found = scratch.found;
    p.kept = plan.kept;
    p.at_once = plan.at_once;
    bool is_first = true; // of those that are launched: it waits for all before it
    if (!known || has_short_segments(host, args->k))
        SPOPS_TRY(launch_one(ctx, &is_first, short_kernel<T>,
                             grid_of(ctx, (lists->num_segments * cols + 7) / 8, 8 * 4), p));
    SPOPS_TRY(launch_one(ctx, &is_first, block_kernel<T, ROOM>,
                         grid_of(ctx, in_blocks * cols, 6 * 4), p));
    if (plan.splits && plan.at_once > 0)
        SPOPS_TRY(launch_one(
            ctx, &is_first, pieces_kernel<T, ROOM>,
            grid_of(ctx, (known ? host.num_pieces : lists->max_pieces) * cols, 1 << 12), p));
    if (!plan.splits) return SPOPS_STATUS_OK;
    return launch_one(ctx, &is_first, splits_kernel<T, ROOM>,
                      grid_of(ctx, (known ? host.num_splits : lists->max_splits) * cols, 6 * 4), p);
}

template <class T>
spops_status launch_digits(spops_context *ctx, const spops_segment_sort_args *args,
                           const order_plan &plan, const order_scratch &scratch)
{
    const spops_lists *lists = args->lists;
    digit_params p = {};
    p.order = order_params_of(args);
    p.offsets = lists->offsets;
    p.num_segments = lists->num_segments;
    p.max_terms = (int32_t)lists->max_terms;
    for (int32_t col = 0; col < args->x.cols; col += plan.cols_at_once) {
        const int32_t left = (int32_t)args->x.cols - col;
        p.first_col = col;
        p.cols = left < plan.cols_at_once ? left : plan.cols_at_once;
        p.keys = (candidate *)scratch.keys[0];
        p.positions = scratch.positions[0];
        SPOPS_TRY(launch(ctx, "segment order: launch of keys", digits_kernel<T>,
                         blocks_for(lists->max_terms, threads), threads, p));
        SPOPS_TRY(scratch.wide.sort(ctx, "segment order: sort", (const uint64_t *)scratch.keys[0],
                                    scratch.keys[1], scratch.positions[0], scratch.positions[1],
                                    lists->max_terms * p.cols,
                                    32 + bits_for((uint64_t)lists->num_segments * p.cols)));
        p.positions = scratch.positions[1];
        dim3 grid = blocks_for(lists->max_terms, threads);
        if (args->k > 0)
            grid = grid_of(ctx, (lists->num_segments * args->k + threads - 1) / threads, 32);
        grid.y = (unsigned)p.cols;
        SPOPS_TRY(args->k > 0
                      ? launch(ctx, "segment order: launch", first_kernel<T>, grid, threads, p)
                      : launch(ctx, "segment order: launch", ranked_kernel<T>, grid, threads, p));
    }
    return SPOPS_STATUS_OK;
}

size_t scratch_bytes(spops_context *ctx, const spops_segment_sort_args *args)
{
    spops_carver c = {nullptr, 0};
    const order_plan plan = plan_order(ctx, args);
    (void)carve(plan, args, &c);
    return c.used;
}

spops_status order_segments(spops_context *ctx, const spops_segment_sort_args *args)
{
    const order_plan plan = plan_order(ctx, args);
    spops_carver c = {static_cast<char *>(args->scratch), 0};
    const order_scratch scratch = carve(plan, args, &c);
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        if (plan.by_digits) return launch_digits<T>(ctx, args, plan, scratch);
        return plan.is_small ? launch_segments<T, small_room>(ctx, args, plan, scratch)
                             : launch_segments<T, large_room>(ctx, args, plan, scratch);
    });
}

} // namespace

extern "C" size_t spops_cuda_segment_sort_scratch_bytes(spops_context *ctx,
                                                        const spops_segment_sort_args *args)
{
    return scratch_bytes(ctx, args);
}

extern "C" size_t spops_cuda_segment_topk_scratch_bytes(spops_context *ctx,
                                                        const spops_segment_sort_args *args)
{
    return scratch_bytes(ctx, args);
}

extern "C" spops_status spops_cuda_segment_sort(spops_context *ctx,
                                                const spops_segment_sort_args *args)
{
    const spops_lists *lists = args->lists;
    const bool all_count =
        !lists->counts_on_device && lists->host_schedule.num_terms == args->values.rows;
    if (!all_count) {
        SPOPS_TRY(clear_rows(ctx, "segment_sort: clear", args->values));
        SPOPS_TRY(fill_rows<int32_t>(ctx, "segment_sort: clear", args->places, -1));
    }
    return lists->num_segments == 0 ? SPOPS_STATUS_OK : order_segments(ctx, args);
}

extern "C" spops_status spops_cuda_segment_topk(spops_context *ctx,
                                                const spops_segment_sort_args *args)
{
    return order_segments(ctx, args);
}
