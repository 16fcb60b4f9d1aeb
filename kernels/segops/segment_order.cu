// SPDX-License-Identifier: Apache-2.0
// Sort and top-k within segments. Segments of up to 128 terms: tile_order.cuh. Longer ones: of top-k up to
// 32 by warps (warp_first.cuh), else by a block, in shared memory; of split ones top-k in groups of pieces,
// and then what these have left. What does not fit there is sorted by digits, all segments at once.
#include "kernels/core/device_wide.h"
#include "kernels/core/with_dtype.cuh"
#include "kernels/segops/block_order.cuh"
#include "kernels/segops/tile_order.cuh"
#include "kernels/segops/warp_first.cuh"
#include "segops/segops_args.h"

namespace
{

using namespace spops;

constexpr int threads = order_threads;
constexpr int small_room = 2048,
              large_room = 4096;      // candidates of a block: more blocks, or longer segments
constexpr int32_t group_terms = 8192; // split segments of so many terms are not divided
constexpr int32_t warp_terms = 2048;  // segments of so many terms may have a warp alone

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

template <class T, int ROOM>
__global__ void __launch_bounds__(threads) pieces_kernel(const __grid_constant__ segment_params p)
{
    __shared__ order_shared<ROOM> s;
    grid_launch_dependents();
    const int64_t all = (int64_t)p.schedule->num_pieces * p.order.cols;
    for (int64_t unit = blockIdx.x; unit < all; unit += gridDim.x) {
        const int32_t piece = (int32_t)(unit / p.order.cols), col = (int32_t)(unit % p.order.cols);
        const piece_group group = group_of(p, piece);
        if (group.count == 0) continue;
        block_first(s, group.count, p.kept,
                    [&](int32_t i) { return p.order.load<T>(group.begin + i, col); });
        candidate *to = p.found + (group.slot * p.order.cols + col) * p.kept;
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
        const left_candidates left(p, split, index, col);
        block_first(s, left.count, p.kept, left);
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
__global__ void __launch_bounds__(threads) first_rows_kernel(const __grid_constant__ digit_params p)
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
    bool by_warps;         // of top-k, not by digits
    int32_t at_once, kept; // of pieces; at_once 0: split segments are not divided
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
        plan.by_warps = args->k > 0 && k <= first_most;
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

// 2^32 / (k / 4), rounded up, which gives the quotient of numbers up to tile_items * k / 4.
uint32_t four_inverse_of(const order_params &p, size_t element)
{
    const uint32_t fours = (uint32_t)p.k / 4;
    const bool lie_together = p.cols == 1 && p.values_stride == 1 && p.places_stride == 1 &&
                              (uintptr_t)p.values % (4 * element) == 0 &&
                              (uintptr_t)p.places % sizeof(int4) == 0;
    if (p.k % 4 != 0 || fours < 1 || fours > 2047 || !lie_together) return 0;
    return fours == 1 ? 1 : (uint32_t)((((uint64_t)1 << 32) + fours - 1) / fours);
}

segment_params segment_params_of(const spops_segment_sort_args *args, const order_plan &plan,
                                 const order_scratch &scratch)
{
    const spops_lists *lists = args->lists;
    segment_params p = {};
    p.order = order_params_of(args);
    p.offsets = lists->offsets;
    p.entries = lists->entries;
    p.pieces = lists->pieces;
    p.splits = lists->splits;
    p.schedule = lists->schedule;
    p.num_segments = lists->num_segments;
    p.found = scratch.found;
    p.kept = plan.kept;
    p.at_once = plan.at_once;
    p.four_inverse = four_inverse_of(p.order, spops_dtype_bytes(args->values.dtype));
    return p;
}

// Of lists: segments of the class BLOCK, pieces and split segments, or the most that they can have.
struct long_segments {
    int64_t in_blocks, pieces, splits;
};
long_segments long_segments_of(const spops_lists *lists)
{
    const spops_schedule &host = lists->host_schedule;
    if (lists->counts_on_device)
        return {lists->max_terms / (tile_longest + 1) + 1, lists->max_pieces, lists->max_splits};
    return {host.class_begin[SPOPS_CLASS_BLOCK + 1] - host.class_begin[SPOPS_CLASS_BLOCK],
            host.num_pieces, host.num_splits};
}

// Top-k of segments of more than 128 terms, by warps.
template <class T>
spops_status launch_first(spops_context *ctx, const spops_lists *lists, const order_plan &plan,
                          const segment_params &p, bool *is_first)
{
    const long_segments many = long_segments_of(lists);
    const int64_t units =
        (many.in_blocks + (plan.at_once > 0 ? many.pieces : many.splits)) * p.order.cols;
    const bool alone = plan.at_once == 0 && longest_of(lists) <= warp_terms &&
                       units >= (int64_t)ctx->info.num_processors * first_warps;
    if (alone)
        return launch_one(ctx, is_first, first_kernel<T, false>,
                          grid_of(ctx, (units + first_warps - 1) / first_warps, 8 * 4), p);
    SPOPS_TRY(launch_one(ctx, is_first, first_kernel<T, true>, grid_of(ctx, units, 1 << 12), p));
    if (plan.at_once == 0) return SPOPS_STATUS_OK;
    return launch_one(ctx, is_first, first_of_groups_kernel<T>,
                      grid_of(ctx, many.splits * p.order.cols, 8 * 4), p);
}

// The same by blocks, and sorts.
template <class T, int ROOM>
spops_status launch_blocks(spops_context *ctx, const spops_lists *lists, const order_plan &plan,
                           const segment_params &p, bool *is_first)
{
    const long_segments many = long_segments_of(lists);
    const int64_t cols = p.order.cols;
    SPOPS_TRY(launch_one(ctx, is_first, block_kernel<T, ROOM>,
                         grid_of(ctx, many.in_blocks * cols, 6 * 4), p));
    if (plan.splits && plan.at_once > 0)
        SPOPS_TRY(launch_one(ctx, is_first, pieces_kernel<T, ROOM>,
                             grid_of(ctx, many.pieces * cols, 1 << 12), p));
    if (!plan.splits) return SPOPS_STATUS_OK;
    return launch_one(ctx, is_first, splits_kernel<T, ROOM>,
                      grid_of(ctx, many.splits * cols, 6 * 4), p);
}

template <class T>
spops_status launch_segments(spops_context *ctx, const spops_segment_sort_args *args,
                             const order_plan &plan, const order_scratch &scratch)
{
    const spops_lists *lists = args->lists;
    const segment_params p = segment_params_of(args, plan, scratch);
    bool is_first = true; // of those that are launched: it waits for all before it
    if (lists->counts_on_device || has_short_segments(lists->host_schedule, args->k))
        SPOPS_TRY(
            launch_one(ctx, &is_first, tile_kernel<T>,
                       dim3((unsigned)((lists->max_terms + lists->num_segments + tile_items - 1) /
                                       tile_items)),
                       p));
    if (plan.by_warps) return launch_first<T>(ctx, lists, plan, p, &is_first);
    return plan.is_small ? launch_blocks<T, small_room>(ctx, lists, plan, p, &is_first)
                         : launch_blocks<T, large_room>(ctx, lists, plan, p, &is_first);
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
                      ? launch(ctx, "segment order: launch", first_rows_kernel<T>, grid, threads, p)
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
        return launch_segments<T>(ctx, args, plan, scratch);
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
