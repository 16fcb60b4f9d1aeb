// Plan building on the GPU: from keys or offsets to lists with their schedule, on the stream, with
// counts that never leave the device. Sorting is CUB's.
#include <cub/device/device_radix_sort.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_reduce.cuh>

#include "kernels/core/launch.cuh"

namespace
{

using spops::bits_for;
using spops::blocks_for;
using spops::launch;
using spops::stream_of;

constexpr int threads = 256;

// Owners are sorted by class and, within one, from long to short in 16 steps: the groups of a warp
// then have equal work.
constexpr int length_bits = 4, class_bits = 3 + length_bits;

__device__ uint8_t owner_class(int32_t count, int32_t split_terms)
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
    const int step = (int)((int64_t)(most - count) * (1 << length_bits) / (most - above));
    return (uint8_t)(c << length_bits | step);
}

// Everything a build keeps between its steps. One carving measures and places it.
struct build_workspace {
    uint32_t *keys[2];   // [max_terms], double buffer of the sort by owner
    int32_t *values[2];  // [max_terms]
    int32_t *owner_of;   // [max_terms] owner of a forward position, for inversion
    uint8_t *classes[2]; // [num_owners]
    int32_t *owners[2];  // [num_owners]
    void *sort;
    size_t sort_bytes;
};

cudaError_t sort_terms(void *temp, size_t &bytes, cub::DoubleBuffer<uint32_t> &keys,
                       cub::DoubleBuffer<int32_t> &values, int64_t n, int64_t num_owners,
                       cudaStream_t stream)
{
    return cub::DeviceRadixSort::SortPairs(temp, bytes, keys, values, (int)n, 0,
                                           bits_for(num_owners), stream);
}

cudaError_t sort_owners(void *temp, size_t &bytes, cub::DoubleBuffer<uint8_t> &classes,
                        cub::DoubleBuffer<int32_t> &owners, int64_t n, cudaStream_t stream)
{
    return cub::DeviceRadixSort::SortPairs(temp, bytes, classes, owners, (int)n, 0, class_bits,
                                           stream);
}

build_workspace carve_workspace(int64_t num_owners, int64_t max_terms, spops_carver *c)
{
    build_workspace ws = {};
    for (int i = 0; i < 2; ++i) {
        ws.keys[i] = (uint32_t *)spops_carve(c, max_terms, 1, sizeof(uint32_t));
        ws.values[i] = (int32_t *)spops_carve(c, max_terms, 1, sizeof(int32_t));
        ws.classes[i] = (uint8_t *)spops_carve(c, num_owners, 1, 1);
        ws.owners[i] = (int32_t *)spops_carve(c, num_owners, 1, sizeof(int32_t));
    }
    ws.owner_of = (int32_t *)spops_carve(c, max_terms, 1, sizeof(int32_t));
    size_t term_bytes = 0, owner_bytes = 0;
    cub::DoubleBuffer<uint32_t> keys;
    cub::DoubleBuffer<uint8_t> classes;
    cub::DoubleBuffer<int32_t> values;
    if (max_terms > 0) sort_terms(nullptr, term_bytes, keys, values, max_terms, num_owners, 0);
    if (num_owners > 0) sort_owners(nullptr, owner_bytes, classes, values, num_owners, 0);
    ws.sort_bytes = term_bytes > owner_bytes ? term_bytes : owner_bytes;
    ws.sort = spops_carve(c, (int64_t)ws.sort_bytes, 1, 1);
    return ws;
}

__global__ void clear_schedule(spops_schedule *schedule, int32_t split_terms)
{
    const spops_schedule empty = {};
    *schedule = empty;
    schedule->split_terms = split_terms;
}

// Sort keys of terms: the owner, or num_owners (sorts last) for terms that do not count.
__global__ void prepare_keys(const spops_lists_source source, int64_t num_owners, uint32_t *keys,
                             int32_t *values, spops_schedule *schedule)
{
    const int64_t t = (int64_t)blockIdx.x * threads + threadIdx.x;
    int64_t num_terms = source.num_terms;
    if (source.num_terms_device != nullptr) {
        const int32_t given = *source.num_terms_device;
        if (given < num_terms) num_terms = max(given, 0);
        if (t == 0 && given > source.num_terms) schedule->overflow = 1;
    }
    int dropped = 0;
    if (t < source.num_terms) {
        bool valid = t < num_terms;
        const int32_t key = valid ? source.keys[t] : -1;
        if (valid && source.drop_invalid) {
            const int64_t a = source.a != nullptr ? source.a[t] : t;
            const int64_t b = source.b != nullptr ? source.b[t] : t;
            dropped = !(key >= 0 && key < num_owners && a >= 0 && a < source.a_limit && b >= 0 &&
                        b < source.b_limit);
            valid = !dropped;
        }
        keys[t] = valid ? (uint32_t)key : (uint32_t)num_owners;
        values[t] = (int32_t)t;
    }
    dropped = __syncthreads_count(dropped);
    if (threadIdx.x == 0 && dropped > 0) atomicAdd(&schedule->num_dropped, dropped);
}

// offsets[o] = number of sorted keys below o, for o in 0 .. num_owners.
template <class Key>
__global__ void offsets_from_keys(const Key *keys, int64_t n, int64_t num_owners, int32_t *offsets)
{
    const int64_t o = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (o > num_owners) return;
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if ((int64_t)keys[middle] < o)
            low = middle + 1;
        else
            high = middle;
    }
    offsets[o] = (int32_t)low;
}

// pairs and order of a position from the term that landed there.
__global__ void fill_terms(const int32_t *term_at, const int32_t *a, const int32_t *b,
                           const int32_t *term, const int32_t *num_terms, int2 *pairs,
                           int32_t *order)
{
    const int32_t p = (int32_t)(blockIdx.x * threads + threadIdx.x);
    if (p >= *num_terms) return;
    const int32_t t = term_at != nullptr ? term_at[p] : p;
    if (pairs != nullptr) pairs[p] = make_int2(a != nullptr ? a[t] : t, b != nullptr ? b[t] : t);
    if (order != nullptr) order[p] = term != nullptr ? term[t] : t;
}

// Keys for inversion: the forward position's row or weight; and the owner each position has.
__global__ void invert_keys(const int32_t *offsets, int64_t num_segments, const int2 *pairs,
                            spops_inverse inverse, int64_t max_terms, int64_t num_owners,
                            uint32_t *keys, int32_t *values, int32_t *owner_of)
{
    const int32_t p = (int32_t)(blockIdx.x * threads + threadIdx.x);
    if (p >= max_terms) return;
    values[p] = p;
    if (p >= offsets[num_segments]) {
        keys[p] = (uint32_t)num_owners;
        return;
    }
    const int2 pair = pairs != nullptr ? pairs[p] : make_int2(p, p);
    keys[p] = (uint32_t)(inverse == SPOPS_BY_ROW ? pair.x : pair.y);
    int64_t low = 0, high = num_segments; // the last segment that begins at or before p
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (offsets[middle] <= p)
            low = middle;
        else
            high = middle;
    }
    owner_of[p] = (int32_t)low;
}

__global__ void fill_inverse(const int32_t *position_at, const int2 *pairs, const int32_t *order,
                             const int32_t *owner_of, spops_inverse inverse,
                             const int32_t *num_terms, int2 *out_pairs, int32_t *out_order)
{
    const int32_t p = (int32_t)(blockIdx.x * threads + threadIdx.x);
    if (p >= *num_terms) return;
    const int32_t from = position_at[p];
    const int2 pair = pairs != nullptr ? pairs[from] : make_int2(from, from);
    const int32_t segment = owner_of[from];
    out_pairs[p] =
        inverse == SPOPS_BY_ROW ? make_int2(segment, pair.y) : make_int2(pair.x, segment);
    out_order[p] = order != nullptr ? order[from] : from;
}

// Class of each owner by its number of terms, and the plan's statistics.
__global__ void classify_owners(const int32_t *offsets, int64_t num_owners, int32_t split_terms,
                                uint8_t *classes, int32_t *owners, spops_schedule *schedule)
{
    typedef cub::BlockReduce<int32_t, threads> block_max;
    __shared__ typename block_max::TempStorage storage;
    const int64_t o = (int64_t)blockIdx.x * threads + threadIdx.x;
    int32_t count = 0;
    if (o < num_owners) {
        count = offsets[o + 1] - offsets[o];
        classes[o] = owner_class(count, split_terms);
        owners[o] = (int32_t)o;
    }
    const int nonempty = __syncthreads_count(count > 0);
    const int32_t longest =
        block_max(storage).Reduce(count, [](int32_t x, int32_t y) { return x > y ? x : y; });
    if (threadIdx.x == 0) {
        if (nonempty > 0) atomicAdd(&schedule->num_nonempty, nonempty);
        atomicMax(&schedule->longest, longest);
        if (blockIdx.x == 0) schedule->num_terms = offsets[num_owners];
    }
}

// Entries in class order, and where each class begins.
__global__ void fill_entries(const uint8_t *classes, const int32_t *owners, const int32_t *offsets,
                             int64_t num_owners, spops_entry *entries, spops_schedule *schedule)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i >= num_owners) return;
    const int32_t o = owners[i];
    const int4 entry = make_int4(o, offsets[o], offsets[o + 1] - offsets[o], -1);
    *reinterpret_cast<int4 *>(entries + i) = entry;
    const int c = classes[i] >> length_bits;
    const int before = i == 0 ? -1 : classes[i - 1] >> length_bits;
    for (int k = before + 1; k <= c; ++k)
        schedule->class_begin[k] = (int32_t)i;
    if (i == num_owners - 1)
        for (int k = c + 1; k <= SPOPS_NUM_CLASSES; ++k)
            schedule->class_begin[k] = (int32_t)num_owners;
}

// The owners to split, with their pieces counted. One block: there are at most
// max_terms / split_terms of them.
constexpr int split_threads = 1024;

__global__ void __launch_bounds__(split_threads)
    fill_splits(const spops_entry *entries, spops_split *splits, spops_schedule *schedule)
{
    typedef cub::BlockScan<int32_t, split_threads> block_scan;
    __shared__ typename block_scan::TempStorage storage;
    const int32_t begin = schedule->class_begin[SPOPS_CLASS_SPLIT];
    const int32_t num_splits = schedule->class_begin[SPOPS_NUM_CLASSES] - begin;
    const int32_t split_terms = schedule->split_terms;
    int32_t done = 0;
    for (int32_t base = 0; base < num_splits; base += split_threads) {
        const int32_t i = base + (int32_t)threadIdx.x;
        spops_split split = {};
        if (i < num_splits) {
            const spops_entry entry = entries[begin + i];
            split.owner = entry.owner;
            split.count = entry.count;
            split.num_pieces = (entry.count + split_terms - 1) / split_terms;
        }
        int32_t first, total;
        block_scan(storage).ExclusiveSum(split.num_pieces, first, total);
        split.first_piece = done + first;
        if (i < num_splits) splits[i] = split;
        done += total;
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        schedule->num_splits = num_splits;
        schedule->num_pieces = done;
    }
}

__global__ void fill_pieces(const spops_split *splits, const int32_t *offsets,
                            const spops_schedule *schedule, spops_entry *pieces)
{
    const int32_t i = (int32_t)(blockIdx.x * threads + threadIdx.x);
    if (i >= schedule->num_pieces) return;
    int32_t low = 0, high = schedule->num_splits; // the last split that begins at or before i
    while (high - low > 1) {
        const int32_t middle = (low + high) / 2;
        if (splits[middle].first_piece <= i)
            low = middle;
        else
            high = middle;
    }
    const spops_split split = splits[low];
    const int32_t part = (split.count + split.num_pieces - 1) / split.num_pieces;
    const int32_t skip = min((i - split.first_piece) * part, split.count);
    spops_entry piece;
    piece.owner = split.owner;
    piece.begin = offsets[split.owner] + skip;
    piece.count = min(part, split.count - skip);
    piece.split = low;
    pieces[i] = piece;
}

// Entries, pieces and splits from offsets.
spops_status build_schedule(spops_context *ctx, spops_lists *lists, const build_workspace &ws)
{
    const int64_t n = lists->num_owners;
    if (n == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(launch(ctx, "segments: classify_owners", classify_owners, blocks_for(n, threads),
                     threads, lists->offsets, n, lists->split_terms, ws.classes[0], ws.owners[0],
                     lists->schedule));
    cub::DoubleBuffer<uint8_t> classes(ws.classes[0], ws.classes[1]);
    cub::DoubleBuffer<int32_t> owners(ws.owners[0], ws.owners[1]);
    size_t bytes = ws.sort_bytes;
    SPOPS_TRY(
        spops_cuda_status(ctx, "segments: sort of owners by class",
                          (int)sort_owners(ws.sort, bytes, classes, owners, n, stream_of(ctx))));
    SPOPS_TRY(launch(ctx, "segments: fill_entries", fill_entries, blocks_for(n, threads), threads,
                     classes.Current(), owners.Current(), lists->offsets, n, lists->entries,
                     lists->schedule));
    if (lists->max_splits == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(launch(ctx, "segments: fill_splits", fill_splits, dim3(1), split_threads,
                     lists->entries, lists->splits, lists->schedule));
    return launch(ctx, "segments: fill_pieces", fill_pieces, blocks_for(lists->max_pieces, threads),
                  threads, lists->splits, lists->offsets, lists->schedule, lists->pieces);
}

// Where the last offset, the number of terms in use, lies.
const int32_t *num_terms_of(const spops_lists *lists)
{
    return lists->offsets + lists->num_owners;
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
    return (int)cudaFuncGetAttributes(&attributes, clear_schedule);
}

extern "C" int32_t spops_cuda_split_terms(const spops_context *ctx, int64_t max_terms,
                                          int64_t max_cols)
{
    (void)ctx;
    // A piece should keep each lane group of a block busy with some 64 terms; and a plan of one
    // huge owner should not need more than about 2,048 pieces, which one block has to combine.
    const int64_t lanes = (max_cols + 3) / 4;
    const int64_t groups = lanes < threads ? threads / lanes : 1;
    int64_t terms = 64 * groups;
    if (terms < 256) terms = 256;
    if (terms > 4096) terms = 4096;
    if (terms < max_terms / 2048) terms = max_terms / 2048;
    return (int32_t)terms;
}

extern "C" size_t spops_cuda_lists_workspace_bytes(spops_context *ctx, int64_t num_owners,
                                                   int64_t max_terms)
{
    (void)ctx;
    spops_carver c = {nullptr, 0};
    carve_workspace(num_owners, max_terms, &c);
    return c.used;
}

extern "C" spops_status spops_cuda_lists_build(spops_context *ctx, const spops_lists_source *source,
                                               spops_lists *lists, void *workspace)
{
    const int64_t n = source->num_terms, owners = lists->num_owners;
    spops_carver c = {(char *)workspace, 0};
    const build_workspace ws = carve_workspace(owners, lists->max_terms, &c);
    const int32_t *term_at = nullptr; // term of a position, where that is not the position
    SPOPS_TRY(launch(ctx, "segments: clear_schedule", clear_schedule, dim3(1), 1u, lists->schedule,
                     lists->split_terms));
    if (source->offsets != nullptr) {
        SPOPS_TRY(
            spops_cuda_status(ctx, "segments: copy of offsets",
                              (int)cudaMemcpyAsync(lists->offsets, source->offsets,
                                                   (size_t)(owners + 1) * sizeof(int32_t),
                                                   cudaMemcpyDeviceToDevice, stream_of(ctx))));
    } else if (source->keys_sorted) {
        SPOPS_TRY(launch(ctx, "segments: offsets_from_keys", offsets_from_keys<int32_t>,
                         blocks_for(owners + 1, threads), threads, source->keys, n, owners,
                         lists->offsets));
    } else {
        cub::DoubleBuffer<uint32_t> keys(ws.keys[0], ws.keys[1]);
        cub::DoubleBuffer<int32_t> values(ws.values[0], ws.values[1]);
        // Also without room for any term: it is what notices an overflow.
        if (n > 0 || source->num_terms_device != nullptr)
            SPOPS_TRY(launch(ctx, "segments: prepare_keys", prepare_keys,
                             blocks_for(n > 0 ? n : 1, threads), threads, *source, owners,
                             ws.keys[0], ws.values[0], lists->schedule));
        if (n > 0) {
            size_t bytes = ws.sort_bytes;
            SPOPS_TRY(spops_cuda_status(
                ctx, "segments: sort of terms by owner",
                (int)sort_terms(ws.sort, bytes, keys, values, n, owners, stream_of(ctx))));
        }
        SPOPS_TRY(launch(ctx, "segments: offsets_from_keys", offsets_from_keys<uint32_t>,
                         blocks_for(owners + 1, threads), threads, keys.Current(), n, owners,
                         lists->offsets));
        term_at = values.Current();
    }
    if (lists->pairs != nullptr || lists->order != nullptr)
        SPOPS_TRY(launch(ctx, "segments: fill_terms", fill_terms, blocks_for(n, threads), threads,
                         term_at, source->a, source->b, source->term, num_terms_of(lists),
                         (int2 *)lists->pairs, lists->order));
    return build_schedule(ctx, lists, ws);
}

extern "C" spops_status spops_cuda_lists_invert(spops_context *ctx, const spops_lists *forward,
                                                spops_inverse inverse, spops_lists *lists,
                                                void *workspace)
{
    const int64_t n = forward->max_terms, owners = lists->num_owners;
    spops_carver c = {(char *)workspace, 0};
    const build_workspace ws = carve_workspace(owners, lists->max_terms, &c);
    const int2 *pairs = (const int2 *)forward->pairs;
    cub::DoubleBuffer<uint32_t> keys(ws.keys[0], ws.keys[1]);
    cub::DoubleBuffer<int32_t> values(ws.values[0], ws.values[1]);
    SPOPS_TRY(launch(ctx, "segments: clear_schedule", clear_schedule, dim3(1), 1u, lists->schedule,
                     lists->split_terms));
    if (n > 0) {
        SPOPS_TRY(launch(ctx, "segments: invert_keys", invert_keys, blocks_for(n, threads), threads,
                         forward->offsets, forward->num_owners, pairs, inverse, n, owners,
                         ws.keys[0], ws.values[0], ws.owner_of));
        size_t bytes = ws.sort_bytes;
        SPOPS_TRY(spops_cuda_status(
            ctx, "segments: sort of terms by row or weight",
            (int)sort_terms(ws.sort, bytes, keys, values, n, owners, stream_of(ctx))));
    }
    SPOPS_TRY(launch(ctx, "segments: offsets_from_keys", offsets_from_keys<uint32_t>,
                     blocks_for(owners + 1, threads), threads, keys.Current(), n, owners,
                     lists->offsets));
    SPOPS_TRY(launch(ctx, "segments: fill_inverse", fill_inverse, blocks_for(n, threads), threads,
                     values.Current(), pairs, forward->order, ws.owner_of, inverse,
                     num_terms_of(lists), (int2 *)lists->pairs, lists->order));
    return build_schedule(ctx, lists, ws);
}

extern "C" spops_status spops_cuda_check(spops_context *ctx, spops_check_rule rule,
                                         const int32_t *a, int64_t n, int64_t low, int64_t high,
                                         spops_check_result *result)
{
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
                          threads, rule, a, n, low, high, (unsigned long long *)device_first),
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
