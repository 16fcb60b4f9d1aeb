// SPDX-License-Identifier: Apache-2.0
// Tables of kernel maps on the GPU: every row looks its taps up in the other set, a block for a
// tile of rows and a thread for a column of taps along the last axis (whose keys lie side by side);
// or from the table of the other side.
#include <type_traits>

#include "kernels/coords/coord_index.cuh"
#include "kernels/core/batch.cuh"
#include "kernels/core/scan.cuh"
#include "kernels/maps/sorted_search.h"
#include "maps/map_arrays.h"

namespace
{

using spops::coord_index;
using spops::launch;
using spops::WAITS_FOR_PREVIOUS;

constexpr int threads = 256;
constexpr int max_tile_rows = 128, min_tile_rows = 2;
constexpr int tile_bytes = 36 << 10; // of shared memory for a tile's part of the table
// Taps and their columns lie beside it; no map needs more than every block may have.
static_assert(tile_bytes + (SPOPS_MAX_KERNEL_TAPS + SPOPS_MAX_KERNEL_TAPS / SPOPS_MAX_KERNEL_SIZE) *
                               (int)sizeof(int32_t) <=
                  (int)spops::default_shared_bytes,
              "blocks of search_taps need no limit raised");
constexpr int taps_at_once = 4; // of a column: so many loads are under way

struct search_params {
    coord_index index; // of the inputs
    spops_taps taps;
    const int32_t *num_rows; // outputs
    const int32_t *num_in;
    const int32_t *rows; // of the outputs
    int64_t max_rows;
    int32_t *table;
    uint32_t *masks;
    int32_t *tap_counts;
    spops_map_state *state;
    int32_t table_stride, mask_words;
    int32_t num_columns; // taps / size of the last axis
    int32_t tile_rows;   // a power of two
    int32_t tile_shift;  // its logarithm
    bool half;           // the other half of the taps is the mirror image
    bool transposed;
};

template <int MOST> using search_jobs = spops::batch<search_params, MOST>;
constexpr int most_searches = spops::jobs_at_once<search_params>();

// The state, the counts, and what scattered writes leave out: the table's elements from the centre
// tap's successor on, and the masks.
template <int MOST>
__global__ void __launch_bounds__(threads)
    start_search(const __grid_constant__ search_jobs<MOST> jobs)
{
    int32_t block, num_blocks;
    const search_params &p = spops::job_of_block(jobs, &block, &num_blocks);
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t first = (int64_t)block * threads + threadIdx.x;
    const int64_t stride = (int64_t)num_blocks * threads;
    const int32_t n = *p.num_rows;
    for (int64_t k = first; k < p.taps.num_taps; k += stride)
        p.tap_counts[k] = 0;
    if (first == 0) {
        p.state->num_out = n;
        p.state->num_in = *p.num_in;
        p.state->num_pairs = 0;
        p.state->overflow = 0;
        p.state->reserved = 0;
    }
    if (!p.half) return;
    const int32_t quads = p.table_stride / 4, from = (p.taps.num_taps / 2 + 1) / 4;
    const uint32_t each = (uint32_t)(quads - from);
    const bool narrow = (uint64_t)n * each <= UINT32_MAX; // 64-bit divisions are slow
    for (int64_t i = first; i < (int64_t)n * each; i += stride) {
        const int64_t r = narrow ? (int64_t)((uint32_t)i / each) : i / each;
        ((int4 *)p.table)[r * quads + from + (i - r * each)] = make_int4(-1, -1, -1, -1);
    }
    for (int64_t i = first; i < (int64_t)n * p.mask_words; i += stride)
        p.masks[i] = 0;
}

// Where column `column` of the taps begins for an output row: the code of all axes but the last,
// false if it lies outside the box or (transposed) between the coarse rows.
template <class Finder, bool TRANSPOSED>
__device__ __forceinline__ bool column_code(const search_params &p, const int32_t *row,
                                            uint32_t column_taps, uint64_t *code)
{
    const spops_key_layout &layout = p.index.layout;
    const int last = p.taps.dims - 1;
    if (!spops_key_fits(&layout, 0, row[0])) return false;
    *code = Finder::part(p.index, 0, row[0]);
#pragma unroll
    for (int a = 0; a < SPOPS_MAX_DIMS - 1; ++a) {
        if (a >= last) break;
        const int32_t t = column_taps >> 8 * a & 0xff;
        int64_t v;
        if (!TRANSPOSED)
            v = spops_tap_fine(&p.taps, a, row[a + 1], t);
        else if (!spops_tap_coarse(&p.taps, a, row[a + 1], t, &v))
            return false;
        if (!spops_key_fits(&layout, a + 1, v)) return false;
        *code += Finder::part(p.index, a + 1, v);
    }
    return true;
}

// The taps of a column among sorted keys, which ascend with them: from where one was looked for the next
// is a step away.
__device__ __forceinline__ void walk_column(const search_params &p, uint64_t code, int64_t x,
                                            int32_t *found)
{
    const coord_index &index = p.index;
    const int last = p.taps.dims - 1;
    const int32_t n = __ldg(index.num_rows);
    const auto key_at = [&](int32_t at) {
        return at < n ? __ldg(index.sorted_keys + at) : SPOPS_KEY_NONE;
    };
    uint64_t key = SPOPS_KEY_NONE; // at `at`, where keys before are below the taps so far
    int32_t at = -1;               // not known
    for (int32_t t = 0; t < p.taps.size[last]; ++t) {
        const int64_t v = spops_tap_fine(&p.taps, last, x, t);
        if (!spops_key_fits(&index.layout, last + 1, v)) continue;
        const uint64_t wanted = code + spops_key_column(&index.layout, last + 1, v);
        if (at >= 0 && key < wanted) key = key_at(++at);
        if (at < 0 || key < wanted) {
            const int2 range = spops::sorted_finder::begin(index, wanted);
            at = -1;
            if (range.x == range.y) continue;
            at = spops::first_from(index.sorted_keys, range.x, range.y, wanted);
            key = key_at(at);
        }
        if (key == wanted)
            found[t] = index.sorted_rows != nullptr ? __ldg(index.sorted_rows + at) : at;
    }
}

// The first `most` taps of a column of row r, several under way at once.
template <class Finder, bool TRANSPOSED, bool HALF>
__device__ __forceinline__ void look_up_column(const search_params &p, uint64_t code, int64_t x,
                                               int32_t column, int32_t most, int32_t r,
                                               int32_t *found)
{
    const int last = p.taps.dims - 1;
    for (int32_t t0 = 0; t0 < most; t0 += taps_at_once) {
        typename Finder::pending pending[taps_at_once];
        uint64_t codes[taps_at_once];
        bool wanted[taps_at_once];
#pragma unroll
        for (int i = 0; i < taps_at_once; ++i) {
            int64_t v = 0;
            wanted[i] = t0 + i < most;
            if (wanted[i] && TRANSPOSED)
                wanted[i] = spops_tap_coarse(&p.taps, last, x, t0 + i, &v);
            else
                v = spops_tap_fine(&p.taps, last, x, t0 + i);
            wanted[i] = wanted[i] && spops_key_fits(&p.index.layout, last + 1, v);
            codes[i] = wanted[i] ? code + Finder::part(p.index, last + 1, v) : 0;
            if (wanted[i]) pending[i] = Finder::begin(p.index, codes[i]);
        }
#pragma unroll
        for (int i = 0; i < taps_at_once; ++i) {
            if (!wanted[i]) continue;
            const int32_t j = Finder::finish(p.index, codes[i], pending[i]);
            if (j < 0) continue;
            found[t0 + i] = j;
            if (HALF) {
                const int32_t k = p.taps.num_taps - 1 - (column * p.taps.size[last] + t0 + i);
                p.table[(int64_t)j * p.table_stride + k] = r;
                atomicOr(p.masks + (int64_t)j * p.mask_words + k / 32, 1u << k % 32);
            }
        }
    }
}

template <class Finder, bool TRANSPOSED, bool HALF, int MOST>
__global__ void __launch_bounds__(threads)
    search_taps(const __grid_constant__ search_jobs<MOST> jobs)
{
    extern __shared__ int32_t shared[];
    int32_t block, num_blocks;
    const search_params &p = spops::job_of_block(jobs, &block, &num_blocks);
    const int32_t num_taps = p.taps.num_taps, pitch = p.table_stride + 1; // odd: no bank conflicts
    int32_t *counts = shared;                             // [num_taps] pairs of a tap
    uint32_t *columns = (uint32_t *)(counts + num_taps);  // [num_columns] taps, a byte an axis
    int32_t *tile = (int32_t *)(columns + p.num_columns); // [tile_rows][pitch]
    const int last = p.taps.dims - 1;
    const int32_t last_size = p.taps.size[last];
    const int32_t centre = num_taps / 2, centre_column = p.num_columns / 2;
    const int32_t columns_here = HALF ? centre_column + 1 : p.num_columns;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned long long found = 0;

    for (int32_t c = (int32_t)threadIdx.x; c < p.num_columns; c += threads) {
        uint32_t taps = 0;
        int32_t rest = c;
        for (int a = last - 1; a >= 0; --a) {
            taps |= (uint32_t)(rest % p.taps.size[a]) << 8 * a;
            rest /= p.taps.size[a];
        }
        columns[c] = taps;
    }
    for (int32_t k = (int32_t)threadIdx.x; k < num_taps; k += threads)
        counts[k] = 0;
    for (int32_t i = (int32_t)threadIdx.x; i < p.tile_rows * pitch; i += threads)
        tile[i] = -1;
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int32_t n = *p.num_rows;

    for (int64_t first = (int64_t)block * p.tile_rows; first < n;
         first += (int64_t)num_blocks * p.tile_rows) {
        const int32_t rows_here = (int32_t)min((int64_t)p.tile_rows, n - first);
        __syncthreads();
        for (int32_t item = (int32_t)threadIdx.x; item < columns_here << p.tile_shift;
             item += threads) {
            const int32_t local = item & (p.tile_rows - 1), column = item >> p.tile_shift;
            if (local >= rows_here) continue;
            const int32_t r = (int32_t)first + local;
            const int32_t *row = p.rows + (int64_t)r * (p.taps.dims + 1);
            int32_t *mine = tile + local * pitch + column * last_size;
            int32_t most = last_size;
            if (HALF && column == centre_column) {
                most = last_size / 2;
                mine[most] = r; // the centre joins row to row
            }
            uint64_t code;
            if (!column_code<Finder, TRANSPOSED>(p, row, columns[column], &code)) continue;
            const int64_t x = row[last + 1];
            if constexpr (!TRANSPOSED && std::is_same<Finder, spops::sorted_finder>::value)
                walk_column(p, code, x, mine);
            else
                look_up_column<Finder, TRANSPOSED, HALF>(p, code, x, column, most, r, mine);
        }
        __syncthreads();
        // A warp writes a row, and leaves the tile empty for the next.
        const int32_t width = HALF ? centre + 1 : p.table_stride;
        for (int32_t local = warp; local < rows_here; local += threads / 32) {
            const int64_t r = first + local;
            for (int32_t base = 0; base < width; base += 32) {
                const int32_t k = base + lane;
                int32_t j = -1;
                if (k < width) {
                    j = tile[local * pitch + k];
                    tile[local * pitch + k] = -1;
                    p.table[r * p.table_stride + k] = j;
                }
                const uint32_t mask = __ballot_sync(~0u, j >= 0);
                if (j >= 0) atomicAdd(counts + k, 1);
                if (lane == 0 && base / 32 < p.mask_words) {
                    uint32_t *word = p.masks + r * p.mask_words + base / 32;
                    if (!HALF)
                        *word = mask;
                    else if (mask != 0)
                        atomicOr(word, mask);
                }
            }
        }
    }
    __syncthreads();
    for (int32_t k = (int32_t)threadIdx.x; k < num_taps; k += threads) {
        if (counts[k] == 0) continue;
        atomicAdd(p.tap_counts + k, counts[k]);
        found += (unsigned)counts[k];
        if (!HALF || k == centre) continue;
        atomicAdd(p.tap_counts + (num_taps - 1 - k), counts[k]);
        found += (unsigned)counts[k];
    }
    found = spops::warp_sum(found);
    if (lane == 0 && found > 0) atomicAdd((unsigned long long *)&p.state->num_pairs, found);
}

// ---- Reverse ------------------------------------------------------------------------------------

struct reverse_params {
    const int32_t *num_from, *num_to;
    const int32_t *from;
    int32_t *to;
    uint32_t *to_masks;
    int64_t max_from, max_to;
    int32_t num_taps, table_stride, mask_words;
};

constexpr int most_reverses = 16;
typedef spops::batch<reverse_params, most_reverses> reverse_jobs;

__global__ void __launch_bounds__(threads) start_reverse(const __grid_constant__ reverse_jobs jobs)
{
    int32_t block, num_blocks;
    const reverse_params &p = spops::job_of_block(jobs, &block, &num_blocks);
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int64_t first = (int64_t)block * threads + threadIdx.x;
    const int64_t stride = (int64_t)num_blocks * threads, n = *p.num_to;
    for (int64_t i = first; i < n * (p.table_stride / 4); i += stride)
        ((int4 *)p.to)[i] = make_int4(-1, -1, -1, -1);
    for (int64_t i = first; i < n * p.mask_words; i += stride)
        p.to_masks[i] = 0;
}

// A tap joins a row to at most one other, so that no element is written twice.
__global__ void __launch_bounds__(threads) reverse_taps(const __grid_constant__ reverse_jobs jobs)
{
    int32_t block, num_blocks;
    const reverse_params &p = spops::job_of_block(jobs, &block, &num_blocks);
    spops::grid_dependency_wait();
    spops::grid_launch_dependents();
    const int lane = threadIdx.x % 32;
    const int64_t warps = (int64_t)num_blocks * (threads / 32), n = *p.num_from;
    for (int64_t r = ((int64_t)block * threads + threadIdx.x) / 32; r < n; r += warps) {
        for (int32_t k = lane; k < p.num_taps; k += 32) {
            const int64_t j = p.from[r * p.table_stride + k];
            if (j < 0) continue;
            p.to[j * p.table_stride + k] = (int32_t)r;
            atomicOr(p.to_masks + j * p.mask_words + k / 32, 1u << k % 32);
        }
    }
}

// Blocks for n items, no more than keep the device busy.
int64_t busy_blocks(const spops_context *ctx, int64_t n, int each, int per_processor)
{
    const int64_t most = (int64_t)per_processor * ctx->info.num_processors;
    const int64_t blocks = (n + each - 1) / each;
    return blocks < 1 ? 1 : blocks < most ? blocks : most;
}

search_params params_of(const spops_map_search_args *args)
{
    const spops_coords_arrays *in = args->in, *out = args->out;
    const spops_map_arrays *map = args->map;
    search_params p = {};
    p.index = spops::index_of(in);
    p.taps = map->taps;
    p.num_rows = &out->state->num_rows;
    p.num_in = &in->state->num_rows;
    p.rows = out->rows;
    p.max_rows = out->max_rows;
    p.table = map->out.table;
    p.masks = map->out.masks;
    p.tap_counts = map->tap_counts;
    p.state = map->state;
    p.table_stride = map->table_stride;
    p.mask_words = map->mask_words;
    p.num_columns = map->taps.num_taps / map->taps.size[map->taps.dims - 1];
    // A look into a grid, or into the buckets of sorted keys, costs less than to write the mirror image.
    p.half = map->symmetric && !map->no_symmetry && in->search == SPOPS_COORDS_SEARCH_HASH;
    p.transposed = map->transposed;
    p.tile_rows = max_tile_rows;
    p.tile_shift = 7;
    while (p.tile_rows > min_tile_rows &&
           (size_t)p.tile_rows * (p.table_stride + 1) * sizeof(int32_t) > tile_bytes) {
        p.tile_rows /= 2;
        --p.tile_shift;
    }
    return p;
}

template <int MOST> spops_status start(spops_context *ctx, search_jobs<MOST> *jobs)
{
    const dim3 blocks = spops::divide_blocks(jobs, [ctx](const search_params &p) {
        return busy_blocks(ctx, p.half ? p.max_rows * (p.table_stride / 4) : p.taps.num_taps,
                           threads, 8);
    });
    return launch<WAITS_FOR_PREVIOUS>(ctx, "kernel_map: start_search", start_search<MOST>, blocks,
                                      threads, *jobs);
}

template <class Finder, bool TRANSPOSED, bool HALF, int MOST>
spops_status launch_search(spops_context *ctx, search_jobs<MOST> *jobs)
{
    size_t bytes = 0;
    const dim3 blocks = spops::divide_blocks(jobs, [&](const search_params &p) {
        const size_t mine =
            ((size_t)p.taps.num_taps + p.num_columns + (size_t)p.tile_rows * (p.table_stride + 1)) *
            sizeof(int32_t);
        if (mine > bytes) bytes = mine;
        return p.max_rows == 0 ? 0 : busy_blocks(ctx, p.max_rows, p.tile_rows, 8);
    });
    return spops::launch_prepared<WAITS_FOR_PREVIOUS>(ctx, "kernel_map: search_taps",
                                                      search_taps<Finder, TRANSPOSED, HALF, MOST>,
                                                      blocks, threads, bytes, *jobs);
}

// Jobs that are alike: in what they look rows up in, and in how.
template <int MOST> spops_status search_all(spops_context *ctx, search_jobs<MOST> *jobs)
{
    const search_params &first = jobs->job[0];
    SPOPS_TRY(start(ctx, jobs));
    return spops::with_finder(first.index, [&](auto finder) {
        typedef decltype(finder) F;
        if (first.half) return launch_search<F, false, true>(ctx, jobs);
        if (first.transposed) return launch_search<F, true, false>(ctx, jobs);
        return launch_search<F, false, false>(ctx, jobs);
    });
}

// A large map by a kernel of its own.
spops_status search_alone(spops_context *ctx, const spops_map_search_args *args)
{
    search_jobs<1> jobs = {};
    jobs.job[0] = params_of(args);
    jobs.job[0].half = false; // every row writes its whole line
    jobs.num = 1;
    SPOPS_TRY(start(ctx, &jobs));
    return spops::sorted_search(ctx, args);
}

bool alike(const search_params &a, const search_params &b)
{
    return a.half == b.half && a.transposed == b.transposed && a.index.search == b.index.search;
}

} // namespace

// A map alone has a kernel of its own, whose parameters need not be looked for.
extern "C" spops_status spops_cuda_map_search(spops_context *ctx,
                                              const spops_map_searches_args *args)
{
    constexpr int32_t most_args = 64;
    bool done[most_args] = {};
    for (int32_t i = 0; i < args->num; ++i) {
        search_jobs<most_searches> jobs = {};
        if (i < most_args && done[i]) continue;
        if (spops::sorted_search_fits(&args->each[i])) {
            SPOPS_TRY(search_alone(ctx, &args->each[i]));
            continue;
        }
        jobs.job[jobs.num++] = params_of(&args->each[i]);
        for (int32_t j = i + 1; j < args->num && j < most_args && jobs.num < most_searches; ++j) {
            const search_params p = params_of(&args->each[j]);
            if (done[j] || spops::sorted_search_fits(&args->each[j]) || !alike(jobs.job[0], p))
                continue;
            jobs.job[jobs.num++] = p;
            done[j] = true;
        }
        if (jobs.num > 1) {
            SPOPS_TRY(search_all(ctx, &jobs));
        } else {
            search_jobs<1> alone = {};
            alone.job[0] = jobs.job[0];
            alone.num = 1;
            SPOPS_TRY(search_all(ctx, &alone));
        }
    }
    return SPOPS_STATUS_OK;
}

extern "C" spops_status spops_cuda_map_reverse(spops_context *ctx,
                                               const spops_map_reverses_args *args)
{
    reverse_jobs jobs = {};
    for (int32_t i = 0; i < args->num; ++i) {
        const spops_map_arrays *map = args->each[i].map;
        const spops_map_side *from = args->each[i].from, *to = args->each[i].to;
        reverse_params p = {};
        p.num_from = from->num_rows;
        p.num_to = to->num_rows;
        p.from = from->table;
        p.to = to->table;
        p.to_masks = to->masks;
        p.max_from = from->max_rows;
        p.max_to = to->max_rows;
        p.num_taps = map->taps.num_taps;
        p.table_stride = map->table_stride;
        p.mask_words = map->mask_words;
        if (p.max_to > 0) jobs.job[jobs.num++] = p;
        if (jobs.num == 0 || (jobs.num < most_reverses && i + 1 < args->num)) continue;
        dim3 blocks = spops::divide_blocks(&jobs, [ctx](const reverse_params &job) {
            return busy_blocks(ctx, job.max_to * (job.table_stride / 4), threads, 8);
        });
        SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "kernel_map: start_reverse", start_reverse,
                                             blocks, threads, jobs));
        blocks = spops::divide_blocks(&jobs, [ctx](const reverse_params &job) {
            return job.max_from == 0 ? 0 : busy_blocks(ctx, job.max_from, threads / 32, 8);
        });
        SPOPS_TRY(launch<WAITS_FOR_PREVIOUS>(ctx, "kernel_map: reverse_taps", reverse_taps, blocks,
                                             threads, jobs));
        jobs.num = 0;
    }
    return SPOPS_STATUS_OK;
}
