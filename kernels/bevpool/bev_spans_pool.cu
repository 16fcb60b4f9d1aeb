// BEV pooling over spans (core/bev_spans.h) on tensor cores, in two launches. The first puts the
// weights in the order of tiles. In the second a warp has a bundle of 16 cells, or some of its
// steps: it loads the step's weights as a 16 x 32 matrix, zero where a pixel is not the cell's, and
// the tile's 32 rows of features, both while the step before is multiplied. Sums are f32.
//
// A zero weight times an infinity would be NaN in cells that the pixel is not in: a bundle whose
// sums are not all finite is summed again, term by term.
//
// Operands of a multiplication (kernels/core/matrix_units.cuh), for lane = 4 g + q:
//     a      weights of cells g, g + 8; of each 16 pixels 2 q, 2 q + 1, 2 q + 8, 2 q + 9
//     b      features of these pixels; one of the channels that lie at g in a chunk
//     sum    cells g, g + 8; channels at 2 q, 2 q + 1 in a chunk
// A chunk is 16 bytes of a row: 8 channels of 16 bits, which are one multiplication of 8 columns,
// or 16 of 8 bits, which are two: of those at even places, then of those at odd ones.
#include "kernels/core/float8.cuh"
#include "kernels/core/functors.cuh"
#include "kernels/core/matrix_units.cuh"
#include "spops/device/walk.cuh"

namespace
{

using namespace spops;

constexpr int warp = 32, warps_log2 = 2, warps = 1 << warps_log2, threads = warps * warp;
constexpr uint32_t whole_warp = 0xffffffffu;
constexpr int lane_pixels = 8;                            // that a lane has the weights of
constexpr int blocks_held = SPOPS_BEV_HELD_WARPS / warps; // by a multiprocessor
constexpr int stages = 2;                                 // tiles of a warp in shared memory

struct pool_params {
    const spops_bev_bundle *bundles;
    const int32_t *cells;
    const int2 *steps;
    const int2 *spans;
    const uint32_t *covered;
    int32_t max_bundles;
    int32_t num_bundles[SPOPS_BEV_NUM_TEAMS];
    int32_t warp_bundles;                        // of a warp that shares none
    int32_t slot_begin[SPOPS_BEV_NUM_TEAMS + 1]; // first block of a class; then of empty cells
    int64_t num_cells;
    int32_t feature_width, tile_width_log2;
    int32_t cols;
    const uint8_t *feat;
    int32_t feat_dtype;
    int32_t feat_stride;     // bytes, as all strides here
    const uint16_t *weights; // spops_bev_spans_pool_args
    uint8_t *out;
    int64_t out_stride;
    int32_t out_dtype;
    const float *feat_scale, *depth_scale, *out_scale;
};

// Where pixel k of a tile lies, in rows of feat from the tile's first.
__host__ __device__ __forceinline__ int32_t pixel_offset(const pool_params &p, int32_t k)
{
    return (k >> p.tile_width_log2) * p.feature_width + (k & ((1 << p.tile_width_log2) - 1));
}

// Hide how a value came to be: one that is cheap to keep is not to be computed again.
template <class T> __device__ __forceinline__ void keep(T &value)
{
    asm volatile("" : "+r"(value));
}

// Where the weight of pixel k lies among its tile's: those of one lane lie together.
__device__ __forceinline__ int weight_place(int k)
{
    return k % 8 / 2 * 8 + k / 8 * 2 + k % 2;
}

template <class X> __device__ __forceinline__ float weight_of(uint16_t bits)
{
    float value, other;
    unpack2<typename row_words<X>::half_type>(bits, value, other);
    return value;
}

// A bundle's columns col to end - 1 term by term, with nothing from pixels outside a cell.
template <class X>
__device__ __noinline__ void sum_apart(const pool_params &p, int32_t bundle, int32_t col,
                                       int32_t end, float scale)
{
    const spops_bev_bundle b = p.bundles[bundle];
    for (int i = 0; i < SPOPS_BEV_BUNDLE_CELLS; ++i) {
        const int32_t cell = p.cells[(int64_t)bundle * SPOPS_BEV_BUNDLE_CELLS + i];
        if (cell < 0) continue;
        for (int32_t at = col + (int32_t)(threadIdx.x % warp); at < end; at += warp) {
            float total = 0.0f;
            for (int32_t step = 0; step < b.num_steps; ++step) {
                const int64_t place = step == 0 ? bundle : b.more + step - 1;
                const int2 span = p.spans[place * SPOPS_BEV_BUNDLE_CELLS + i];
                const int32_t first = p.steps[place].x;
                for (uint32_t mask = (uint32_t)span.y; mask != 0; mask &= mask - 1) {
                    const int32_t k = __ffs((int)mask) - 1;
                    const int32_t off = pixel_offset(p, k);
                    const int64_t w = (int64_t)span.x * SPOPS_BEV_TILE_PIXELS + weight_place(k);
                    total += weight_of<X>(p.weights[w]) *
                             load_weight_f32(p.feat + ((int64_t)first + off) * p.feat_stride,
                                             p.feat_dtype, at);
                }
            }
            const float v[1] = {total * scale};
            store_row<false>(p.out_dtype, p.out + (int64_t)cell * p.out_stride, at, 1, v);
        }
    }
}

// What a warp multiplies next.
struct walk_step {
    int2 step;    // .x -1: nothing
    int2 span[2]; // of cells g and g + 8
    int32_t bundle;
    bool completes; // it is the last of the bundle, or of the warp's share
};

// A warp's way through its steps: those of whole bundles, `warps` places apart, or a team's share
// of one bundle.
struct bundle_walk {
    const pool_params &p;
    int g;
    int32_t bundle, bundles_left;
    int32_t more;
    int i, end; // steps of the bundle

    // num of them, `warps` places apart.
    __device__ __forceinline__ void take_bundles(int32_t first, int32_t num)
    {
        bundle = first - warps;
        bundles_left = num;
        i = -1;
        end = 0;
    }
    // The part of one bundle that falls to one of 1 << team_log2 warps.
    __device__ __forceinline__ void take_part(int32_t its_bundle, int part, int team_log2)
    {
        const spops_bev_bundle b = p.bundles[its_bundle];
        const int each = (b.num_steps + (1 << team_log2) - 1) >> team_log2;
        bundle = its_bundle;
        bundles_left = 0;
        more = b.more;
        i = part * each - 1;
        end = min(part * each + each, b.num_steps);
    }
    // Step 0 of a bundle lies at the bundle's own place: loading it need not wait for the record.
    __device__ __forceinline__ walk_step take()
    {
        walk_step next;
        next.step = make_int2(-1, 0);
        next.bundle = bundle;
        next.completes = true;
        if (++i >= end) {
            if (--bundles_left < 0) return next;
            bundle += warps;
            const spops_bev_bundle b = p.bundles[bundle];
            i = 0;
            end = b.num_steps;
            more = b.more;
        }
        const int64_t at = i == 0 ? bundle : more + i - 1;
        next.step = __ldg(p.steps + at);
        next.span[0] = __ldg(p.spans + at * SPOPS_BEV_BUNDLE_CELLS + g);
        next.span[1] = __ldg(p.spans + at * SPOPS_BEV_BUNDLE_CELLS + g + 8);
        next.bundle = bundle;
        next.completes = i + 1 == end;
        return next;
    }
};

// Bytes of two words with what they are chosen by, of which bit 3 asks for a byte's sign, eight
// times; __byte_perm ignores that bit.
__device__ __forceinline__ uint32_t spread_signs(uint32_t low, uint32_t high, uint32_t selector)
{
    uint32_t word;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(low), "r"(high), "r"(selector));
    return word;
}

// Weights of a step as they were loaded: of this lane's pixels, for cells g and g + 8.
struct loaded_weights {
    uint4 pixels[2];
    uint32_t mask[2];
};

// COLS columns of 16 cells.
template <class X, int COLS> struct bundle_sums {
    typedef typename row_words<X>::half_type half_type;
    static constexpr int bits = row_words<X>::bits;
    static constexpr int chunk_cols = 128 / bits, chunks = COLS / chunk_cols;
    static constexpr int parts = chunk_cols / 8;    // multiplications of a chunk
    static constexpr int pitch = (chunks | 1) * 16; // odd: eight rows in different banks
    static constexpr int stage_bytes = SPOPS_BEV_TILE_PIXELS * pitch;
    static constexpr int values = chunks * parts * 4;
    // Of a block: stages of each warp, or the sums that half of a team's warps hand over.
    static constexpr int stages_bytes = warps * stages * stage_bytes;
    static constexpr int handed_bytes = warps / 2 * warp * values * (int)sizeof(float);
    static constexpr int shared_bytes = stages_bytes > handed_bytes ? stages_bytes : handed_bytes;
    static_assert(COLS % chunk_cols == 0, "");

    const pool_params &p;
    int32_t col; // first column
    int lane, g, q;
    float sum[chunks][parts][4];
    uint32_t stage, matrix; // in shared memory: this warp's first; where this lane loads matrices
    // What this lane copies of a tile, by log2 of the chunks that lie side by side: bytes from the
    // tile's first row, and where they go.
    uint32_t copy_from[4], copy_to[4];
    // The step that is multiplied next: its weights, scales and tile, which is in stage `slot` and
    // has the rows `copied`; its bundle, and whether that is complete with it. Then the one after.
    loaded_weights weights;
    int32_t tile, bundle;
    uint32_t copied;
    int slot;
    bool completes, more = false;
    walk_step next;

    __device__ __forceinline__ bundle_sums(const pool_params &params, int32_t column, void *shared)
        : p(params), col(column), lane((int)(threadIdx.x % warp)), g(lane / 4), q(lane % 4)
    {
        stage = shared_address(shared) + threadIdx.x / warp * (stages * stage_bytes);
        matrix = stage + lane % 16 * pitch + lane / 16 * 16;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = lane >> i, chunk = lane & ((1 << i) - 1);
            copy_from[i] =
                (uint32_t)(pixel_offset(p, row) * p.feat_stride + col * bits / 8 + chunk * 16);
            copy_to[i] = stage + row * pitch + chunk * 16;
            keep(copy_from[i]);
            keep(copy_to[i]);
        }
        keep(matrix);
        clear();
    }

    // Chunks FIRST and on of the tile's rows: in each go 32 / WIDTH rows of WIDTH neighbours.
    template <int FIRST>
    __device__ __forceinline__ void copy_rows(const uint8_t *tile, uint32_t used, int slot)
    {
        if constexpr (FIRST < chunks) {
            constexpr int rest = chunks - FIRST;
            constexpr int log2 = rest >= 8 ? 3 : rest >= 4 ? 2 : rest >= 2 ? 1 : 0;
            constexpr int width = 1 << log2;
            constexpr int rows = warp / width; // of four at least: whole rows of a tile
            const int32_t ahead = (rows >> p.tile_width_log2) * p.feature_width * p.feat_stride;
            const uint8_t *x = tile + copy_from[log2] + FIRST * 16;
            const uint32_t to = copy_to[log2] + slot * stage_bytes + FIRST * 16;
            const int32_t at = col + (FIRST + (lane & (width - 1))) * chunk_cols;
            const uint32_t there = at < p.cols ? used >> (lane >> log2) : 0u;
#pragma unroll
            for (int i = 0; i < width; ++i, x += ahead)
                copy_async<16>(to + i * rows * pitch, x, there & 1u << i * rows % warp);
            copy_rows<FIRST + width>(tile, used, slot);
        }
    }
    __device__ __forceinline__ void copy_tile(int2 step, int slot)
    {
        copy_rows<0>(p.feat + (int64_t)step.x * p.feat_stride, (uint32_t)step.y, slot);
    }

    __device__ __forceinline__ void load_weights(const int2 (&span)[2])
    {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            weights.mask[r] = (uint32_t)span[r].y >> 2 * q & 0x03030303u;
            weights.pixels[r] = make_uint4(0, 0, 0, 0);
            if (weights.mask[r] != 0)
                weights.pixels[r] = *reinterpret_cast<const uint4 *>(
                    p.weights + (int64_t)span[r].x * SPOPS_BEV_TILE_PIXELS + lane_pixels * q);
        }
    }

    // As words of two pixels, in the order of a multiplication for each half of the tile.
    __device__ __forceinline__ void mask_weights(uint32_t (&a)[2][4]) const
    {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const uint4 w = weights.pixels[r];
            const uint32_t word[4] = {w.x, w.y, w.z, w.w};
            // Two bits a byte: the highest bits of bytes, spread over two bytes each.
            const uint32_t even = weights.mask[r] << 7, odd = weights.mask[r] << 6;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                a[i / 2][i % 2 * 2 + r] = word[i] & spread_signs(even, odd, 0xcc88u + 0x1111u * i);
        }
    }

    // A lane's part of a matrix, `parts` channels of two pixels, as a word of two pixels for each.
    static __device__ __forceinline__ void widen(uint32_t codes, uint32_t (&b)[parts])
    {
        if constexpr (bits == 16) {
            b[0] = codes;
        } else {
            const uint32_t x0 = widen2(X(), codes & 0xffffu), x1 = widen2(X(), codes >> 16);
            b[0] = __byte_perm(x0, x1, 0x5410);
            b[1] = __byte_perm(x0, x1, 0x7632);
        }
    }

    __device__ __forceinline__ float &value(int i)
    {
        return sum[i / 4 / parts][i / 4 % parts][i % 4];
    }

    __device__ __forceinline__ void multiply_chunk(int c, int half, const uint32_t (&a)[2][4],
                                                   uint32_t codes0, uint32_t codes1)
    {
        uint32_t b0[parts], b1[parts];
        widen(codes0, b0);
        widen(codes1, b1);
#pragma unroll
        for (int i = 0; i < parts; ++i)
            add_product(half_type(), sum[c][i], a[half], b0[i], b1[i]);
    }
    __device__ __forceinline__ void multiply_tile(const uint32_t (&a)[2][4], int slot)
    {
        const uint32_t from = matrix + slot * stage_bytes;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int c = 0; c + 1 < chunks; c += 2) {
                uint32_t r[4];
                load_transposed(r, from + half * 16 * pitch + c * 16);
                multiply_chunk(c, half, a, r[0], r[1]);
                multiply_chunk(c + 1, half, a, r[2], r[3]);
            }
            if constexpr (chunks % 2 != 0) {
                uint32_t r[2];
                load_transposed(r, from + half * 16 * pitch + (chunks - 1) * 16);
                multiply_chunk(chunks - 1, half, a, r[0], r[1]);
            }
        }
    }

    // The first step's tile and weights are on their way, and the next one is known.
    __device__ __forceinline__ void begin(bundle_walk &walk)
    {
        next = walk.take();
        tile = next.step.x;
        copied = (uint32_t)next.step.y;
        slot = 0;
        bundle = next.bundle;
        completes = next.completes;
        if (tile < 0) return;
        copy_tile(next.step, slot);
        close_copies();
        load_weights(next.span);
        next = walk.take();
    }

    // Multiply steps up to the end of a bundle or of the walk. Meanwhile the next one's tile and
    // weights come.
    __device__ __forceinline__ void add_bundle(bundle_walk &walk)
    {
        for (bool complete = false; !complete;) {
            const int now = slot;
            const int2 step = next.step;
            uint32_t a[2][4];
            complete = completes;
            more = step.x >= 0;
            if (more && (step.x != tile || ((uint32_t)step.y & ~copied) != 0)) {
                slot ^= 1;
                copy_tile(step, slot);
                tile = step.x;
                copied = (uint32_t)step.y;
            }
            close_copies();
            mask_weights(a);
            if (more) {
                load_weights(next.span);
                bundle = next.bundle;
                completes = next.completes;
                next = walk.take();
            }
            wait_copies<1>();
            __syncwarp();
            multiply_tile(a, now);
            __syncwarp();
        }
    }

    __device__ __forceinline__ void load_cells(int32_t bundle, int32_t (&cell)[2]) const
    {
        const int32_t *cells = p.cells + (int64_t)bundle * SPOPS_BEV_BUNDLE_CELLS + g;
        cell[0] = __ldg(cells);
        cell[1] = __ldg(cells + 8);
    }

    // Store a bundle whose sums are complete.
    __device__ __forceinline__ void finish(int32_t bundle, const int32_t (&cell)[2])
    {
        const float scale = scale_of(p.feat_scale, p.depth_scale, p.out_scale);
        if (all_finite())
            store(cell, scale);
        else
            sum_apart<X>(p, bundle, col, min(col + COLS, p.cols), scale);
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < values; ++i)
            value(i) = 0.0f;
    }

    __device__ __forceinline__ bool all_finite()
    {
        float zero[4] = {};
#pragma unroll
        for (int i = 0; i < values; ++i)
            zero[i % 4] += value(i) * 0.0f;
        return __all_sync(whole_warp, zero[0] + zero[1] + (zero[2] + zero[3]) == 0.0f);
    }

    template <class T> __device__ __forceinline__ void store(const int32_t (&cell)[2], float scale)
    {
        constexpr int count = 2 * parts; // neighbouring channels of a chunk
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            uint8_t *row = p.out + (int64_t)cell[r] * p.out_stride;
#pragma unroll
            for (int c = 0; c < chunks; ++c) {
#pragma unroll
                for (int i = 0; i < count; ++i)
                    sum[c][i % parts][2 * r + i / parts] *= scale;
            }
            int c = 0;
            if constexpr (count * sizeof(T) == 4) {
                // A word a chunk: four lanes trade them, so that each stores a chunk of 16 bytes.
#pragma unroll
                for (; c + 4 <= chunks; c += 4) {
                    uint32_t word[4];
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        word[i] = store_word<T>(channels<count>(c + i, r));
                    transpose_words(word);
                    const int32_t at = col + (c + q) * chunk_cols;
                    if (cell[r] >= 0 && at < p.cols) store_aligned(row + at * (int)sizeof(T), word);
                }
            }
#pragma unroll
            for (; c < chunks; ++c) {
                const int32_t at = col + c * chunk_cols + q * count;
                if (cell[r] >= 0 && at < p.cols)
                    store_values<T>(row, at, channels<count>(c, r).value);
            }
        }
    }
    // This lane's channels of a chunk, for cell g + 8 r.
    template <int COUNT> struct lane_channels {
        float value[COUNT];
    };
    template <int COUNT>
    __device__ __forceinline__ lane_channels<COUNT> channels(int c, int r) const
    {
        lane_channels<COUNT> v;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            v.value[i] = sum[c][i % parts][2 * r + i / parts];
        return v;
    }
    template <class T, int COUNT>
    static __device__ __forceinline__ uint32_t store_word(const lane_channels<COUNT> &v)
    {
        if constexpr (COUNT == 2)
            return pack2<T>(v.value[0], v.value[1]);
        else
            return narrow2(T(), v.value[0], v.value[1]) | narrow2(T(), v.value[2], v.value[3])
                                                              << 16;
    }
    // Word i of lane q to word q of lane i, among four lanes.
    __device__ __forceinline__ void transpose_words(uint32_t (&word)[4]) const
    {
#pragma unroll
        for (int bit = 1; bit < 4; bit *= 2) {
            const bool upper = (q & bit) != 0;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (i & bit) continue;
                uint32_t &low = word[i], &high = word[i | bit];
                const uint32_t got = __shfl_xor_sync(whole_warp, upper ? low : high, bit);
                (upper ? low : high) = got;
            }
        }
    }
    __device__ __forceinline__ void store(const int32_t (&cell)[2], float scale)
    {
        switch (p.out_dtype) {
        case SPOPS_DTYPE_F16: return store<f16>(cell, scale);
        case SPOPS_DTYPE_BF16: return store<bf16>(cell, scale);
        case SPOPS_DTYPE_F32: return store<float>(cell, scale);
        case SPOPS_DTYPE_F8E4M3: return store<f8e4m3>(cell, scale);
        default: return store<f8e5m2>(cell, scale);
        }
    }
};

// Add the sums of a team's warps in the first one's, half by half. All warps of the block come
// here.
template <class Sums>
__device__ __forceinline__ void combine_team(Sums &sums, float *shared, int part, int team,
                                             int team_warps)
{
    const int lane = (int)(threadIdx.x % warp);
    constexpr int values = Sums::values;
    __syncthreads(); // no warp copies or reads features any more
    for (int half = team_warps / 2; half > 0; half /= 2) {
        float *s = shared + (team * (team_warps / 2) + (part & (half - 1))) * values * warp + lane;
        if (part >= half && part < 2 * half) {
#pragma unroll
            for (int i = 0; i < values; ++i)
                s[i * warp] = sums.value(i);
        }
        __syncthreads();
        if (part < half) {
#pragma unroll
            for (int i = 0; i < values; ++i)
                sums.value(i) += s[i * warp];
        }
        if (half > 1) __syncthreads();
    }
}

// Rows of cells that no span is in: 32 cells a warp.
__device__ void clear_cells(const pool_params &p, int32_t block, int32_t col, int32_t num_cols,
                            int32_t *shared)
{
    const int lane = (int)(threadIdx.x % warp);
    const int64_t word = (int64_t)block * warps + threadIdx.x / warp;
    const int32_t bytes = p.out_dtype == SPOPS_DTYPE_F32                                      ? 4
                          : p.out_dtype == SPOPS_DTYPE_F16 || p.out_dtype == SPOPS_DTYPE_BF16 ? 2
                                                                                              : 1;
    const int64_t cell = word * 32 + lane;
    const bool clears = cell < p.num_cells && !(__ldg(p.covered + word) >> lane & 1u);
    const uint32_t empty = __ballot_sync(whole_warp, clears);
    int32_t *cells = shared + threadIdx.x / warp * warp;
    if (clears) cells[__popc(empty & ((1u << lane) - 1))] = lane;
    __syncwarp();
    const int32_t row_pieces = min(num_cols, p.cols - col) * bytes / 8,
                  pieces = __popc(empty) * row_pieces;
    const float each = 1.0f / (float)row_pieces;
    uint8_t *rows = p.out + word * 32 * p.out_stride + (int64_t)col * bytes;
    walk_wait_previous();
    for (int32_t i = lane; i < pieces; i += warp) {
        const int32_t row = (int32_t)(((float)i + 0.5f) * each); // i is less than 2^15
        uint8_t *to = rows + cells[row] * p.out_stride + (i - row * row_pieces) * 8;
        *reinterpret_cast<uint2 *>(to) = make_uint2(0, 0);
    }
}

template <class X, int COLS>
__global__ void __launch_bounds__(threads, blocks_held)
    pool_kernel(const __grid_constant__ pool_params p)
{
    extern __shared__ float4 shared[];
    const int32_t block = (int32_t)blockIdx.x, col = (int32_t)blockIdx.y * COLS;
    walk_release_next();
    if (block >= p.slot_begin[SPOPS_BEV_NUM_TEAMS]) {
        clear_cells(p, block - p.slot_begin[SPOPS_BEV_NUM_TEAMS], col, COLS,
                    reinterpret_cast<int32_t *>(shared));
        return;
    }
    const int c = block >= p.slot_begin[SPOPS_BEV_TEAM1]   ? SPOPS_BEV_TEAM1
                  : block >= p.slot_begin[SPOPS_BEV_TEAM2] ? SPOPS_BEV_TEAM2
                                                           : SPOPS_BEV_TEAM4;
    const int32_t in_class = block - p.slot_begin[c];
    const int at = (int)(threadIdx.x / warp);
    const int team_log2 = warps_log2 - c, team_warps = 1 << team_log2;
    const int part = at & (team_warps - 1), team = at >> team_log2;
    bundle_sums<X, COLS> sums(p, col, shared);
    bundle_walk walk = {p, sums.g};
    bool there = true;
    if (c == SPOPS_BEV_TEAM1) {
        const int32_t first = in_class * p.warp_bundles * warps + at;
        const int32_t rest = p.num_bundles[c] - first;
        there = rest > 0;
        walk.take_bundles(c * p.max_bundles + first,
                          min(p.warp_bundles, (rest + warps - 1) / warps));
    } else {
        there = (in_class << c) + team < p.num_bundles[c];
        walk.take_part(c * p.max_bundles + (in_class << c) + (there ? team : 0), part, team_log2);
        if (!there) walk.end = 0;
    }
    walk_wait_previous(); // weights and features may come from the kernel before
    sums.begin(walk);
    do {
        int32_t cell[2] = {-1, -1};
        const int32_t bundle = sums.bundle;
        if (part == 0 && there) sums.load_cells(bundle, cell);
        if (sums.tile >= 0) sums.add_bundle(walk);
        if (c != SPOPS_BEV_TEAM1)
            combine_team(sums, reinterpret_cast<float *>(shared), part, team, team_warps);
        if (part == 0 && there) sums.finish(bundle, cell);
        sums.clear();
    } while (sums.more);
}

// ---- Weights by tile ----------------------------------------------------------------------------

struct weights_params {
    const void *depth;
    uint16_t *weights; // [tiles][num_depths][TILE_PIXELS]
    int32_t num_depths, height, width;
    int32_t tile_height, tile_width_log2, tiles_x, tiles_y;
};

constexpr int strip_cols = 128, strip_threads = 256; // a block has one row of tiles at one depth

// Two neighbouring weights; n: of which so many are there.
template <bool PAIRS> __device__ __forceinline__ uint32_t load_two(const uint16_t *from, int n)
{
    if (PAIRS) return __ldg(reinterpret_cast<const uint32_t *>(from));
    return from[0] | (n > 1 ? (uint32_t)from[1] << 16 : 0u);
}
template <bool PAIRS, class T> __device__ __forceinline__ uint32_t load_two(const T *from, int n)
{
    if (PAIRS) return widen2(T(), __ldg(reinterpret_cast<const uint16_t *>(from)));
    return widen2(T(), from[0].bits | (n > 1 ? (uint32_t)from[1].bits << 8 : 0u));
}

template <class T, bool PAIRS>
__global__ void __launch_bounds__(strip_threads)
    tile_weights(const __grid_constant__ weights_params p)
{
    __shared__ uint32_t strip[SPOPS_BEV_TILE_PIXELS][strip_cols / 2 + 1]; // rows in all banks
    const int32_t plane = (int32_t)blockIdx.x; // of depth: a camera and a depth
    const int32_t camera = plane / p.num_depths, d = plane - camera * p.num_depths;
    const int32_t first_col = (int32_t)blockIdx.y * strip_cols;
    const int32_t tile_y = (int32_t)blockIdx.z, first_row = tile_y * p.tile_height;
    const int32_t rows = min(p.tile_height, p.height - first_row);
    const int32_t cols = min(strip_cols, p.width - first_col);
    const int32_t width_log2 = p.tile_width_log2, width = 1 << width_log2;
    const int32_t tiles = (cols + width - 1) >> width_log2;
    const T *from = static_cast<const T *>(p.depth) +
                    ((int64_t)plane * p.height + first_row) * p.width + first_col;
    walk_release_next();
    walk_wait_previous(); // depth comes from the kernel before, and one before that reads weights
    const int lane = (int)threadIdx.x % warp;
    for (int32_t row = (int32_t)threadIdx.x / warp; row < p.tile_height;
         row += strip_threads / warp) {
        for (int32_t col = 2 * lane; col < tiles << width_log2; col += 2 * warp)
            strip[row][col / 2] = row < rows && col < cols
                                      ? load_two<PAIRS>(from + row * p.width + col, cols - col)
                                      : 0u;
    }
    __syncthreads();
    const int32_t tile = (camera * p.tiles_y + tile_y) * p.tiles_x + (first_col >> width_log2);
    for (int32_t i = (int32_t)threadIdx.x; i < tiles * 4; i += strip_threads) {
        const int32_t t = i / 4, q = i % 4;
        uint32_t word[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int k = j * 8 + 2 * q;
            if (width == 1) {
                word[j] =
                    __byte_perm(strip[k][t / 2], strip[k + 1][t / 2], t % 2 != 0 ? 0x7632 : 0x5410);
            } else {
                const int32_t col = (t << width_log2) + (k & (width - 1));
                word[j] = strip[k >> width_log2][col / 2];
            }
        }
        const int64_t at = ((int64_t)(tile + t) * p.num_depths + d) * SPOPS_BEV_TILE_PIXELS;
        store_aligned(reinterpret_cast<uint8_t *>(p.weights + at + lane_pixels * q), word);
    }
}

template <class T>
spops_status launch_tile_weights(spops_context *ctx, const weights_params &p, dim3 grid)
{
    const char *what = "bev_spans: tile_weights";
    if (p.width % 2 == 0 && (uintptr_t)p.depth % (2 * sizeof(T)) == 0)
        return launch<WAITS_FOR_PREVIOUS>(ctx, what, tile_weights<T, true>, grid, strip_threads, p);
    return launch<WAITS_FOR_PREVIOUS>(ctx, what, tile_weights<T, false>, grid, strip_threads, p);
}

spops_status launch_tile_weights(spops_context *ctx, const spops_bev_spans_pool_args *args)
{
    const spops_bev_spans &s = *args->spans;
    const spops_bev_shape &shape = args->shape;
    weights_params p = {};
    p.depth = args->depth.data;
    p.weights = (uint16_t *)args->weights;
    p.num_depths = shape.num_depths;
    p.height = shape.feature_height;
    p.width = shape.feature_width;
    p.tile_height = s.tile_height;
    p.tile_width_log2 = s.tile_width_log2;
    p.tiles_x = s.tiles_x;
    p.tiles_y = s.tiles_y;
    const dim3 grid((unsigned)(shape.num_batches * shape.num_cameras * shape.num_depths),
                    (unsigned)((p.width + strip_cols - 1) / strip_cols), (unsigned)p.tiles_y);
    switch (args->depth.dtype) {
    case SPOPS_DTYPE_F8E4M3: return launch_tile_weights<f8e4m3>(ctx, p, grid);
    case SPOPS_DTYPE_F8E5M2: return launch_tile_weights<f8e5m2>(ctx, p, grid);
    default: return launch_tile_weights<uint16_t>(ctx, p, grid);
    }
}

template <class X, int COLS>
spops_status launch_pool(spops_context *ctx, const pool_params &p, int32_t blocks)
{
    const dim3 grid((unsigned)blocks, (unsigned)((p.cols + COLS - 1) / COLS));
    return launch_shared<WAITS_FOR_PREVIOUS>(ctx, "bev_spans: pool", pool_kernel<X, COLS>, grid,
                                             threads, (size_t)bundle_sums<X, COLS>::shared_bytes,
                                             p);
}

// With the widest kernel that has the fewest columns to spare.
template <class X>
spops_status launch_features(spops_context *ctx, const pool_params &p, int32_t blocks)
{
    const auto spare = [&p](int cols) { return (p.cols + cols - 1) / cols * cols; };
    if (spare(80) < spare(64)) return launch_pool<X, 80>(ctx, p, blocks);
    if (spare(128) <= spare(64)) return launch_pool<X, 128>(ctx, p, blocks);
    return launch_pool<X, 64>(ctx, p, blocks);
}

} // namespace

extern "C" spops_status spops_cuda_bev_spans_pool(spops_context *ctx,
                                                  const spops_bev_spans_pool_args *args)
{
    const spops_bev_spans &s = *args->spans;
    const spops_matrix feat = args->feat, out = args->out;
    if (feat.cols == 0 || args->num_cells == 0) return SPOPS_STATUS_OK;
    pool_params p = {};
    p.bundles = s.bundles;
    p.cells = s.cells;
    p.steps = (const int2 *)s.steps;
    p.spans = (const int2 *)s.spans;
    p.covered = s.covered;
    p.max_bundles = (int32_t)s.max_bundles;
    // A warp's second bundle finds its way prepared by the first one; but first every warp that the
    // device holds has one.
    const int64_t held = (int64_t)ctx->info.num_processors * SPOPS_BEV_HELD_WARPS;
    p.warp_bundles = s.host_counts.num_bundles[SPOPS_BEV_TEAM1] >= 2 * held ? 2 : 1;
    for (int c = 0; c < SPOPS_BEV_NUM_TEAMS; ++c) {
        const int32_t per_block = c == SPOPS_BEV_TEAM1 ? warps * p.warp_bundles : 1 << c; // bundles
        p.num_bundles[c] = s.host_counts.num_bundles[c];
        p.slot_begin[c + 1] = p.slot_begin[c] + (p.num_bundles[c] + per_block - 1) / per_block;
    }
    const int64_t words = (args->num_cells + 31) / 32;
    const int32_t blocks =
        p.slot_begin[SPOPS_BEV_NUM_TEAMS] + (int32_t)((words + warps - 1) / warps);
    p.num_cells = args->num_cells;
    p.feature_width = args->shape.feature_width;
    p.tile_width_log2 = s.tile_width_log2;
    p.cols = (int32_t)feat.cols;
    p.feat = (const uint8_t *)feat.data;
    p.feat_dtype = feat.dtype;
    p.feat_stride = (int32_t)spops_elements_bytes(feat.dtype, feat.row_stride);
    p.weights = (const uint16_t *)args->weights;
    p.out = (uint8_t *)out.data;
    p.out_stride = spops_elements_bytes(out.dtype, out.row_stride);
    p.out_dtype = out.dtype;
    p.feat_scale = args->feat_scale;
    p.depth_scale = args->depth_scale;
    p.out_scale = args->out_scale;
    SPOPS_TRY(launch_tile_weights(ctx, args));
    switch (feat.dtype) {
    case SPOPS_DTYPE_F16: return launch_features<f16>(ctx, p, blocks);
    case SPOPS_DTYPE_BF16: return launch_features<bf16>(ctx, p, blocks);
    case SPOPS_DTYPE_F8E4M3: return launch_features<f8e4m3>(ctx, p, blocks);
    case SPOPS_DTYPE_F8E5M2: return launch_features<f8e5m2>(ctx, p, blocks);
    default: break;
    }
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "bev_spans: feat is %s",
                      spops_dtype_name(feat.dtype));
}
