// BEV pooling over spans (core/bev_spans.h) on tensor cores, in two launches. In the first a block
// has a wedge: it loads the features of the wedge's window and the weights between its two depths
// into shared memory, each once, and its warps multiply bundles until none is left. A step's
// weights are a 16 x 32 matrix, zero where a pixel is not the cell's. Sums are f32. Parts of shared
// cells go to scratch; the second launch adds them up, in order, and clears cells without a point.
//
// Features of 8 and 4 bits are widened to f16, which is exact, where they are loaded: behind that
// all dtypes are one.
//
// A zero weight times an infinity would be NaN in cells that the pixel is not in: a bundle whose
// sums are not all finite is summed again, term by term.
//
// Operands of a multiplication (kernels/core/matrix_units.cuh), for lane = 4 g + q:
//     a      weights of parts g, g + 8; of each 16 pixels 2 q, 2 q + 1, 2 q + 8, 2 q + 9
//     b      features of these pixels; channel g of a chunk
//     sum    parts g, g + 8; channels 2 q, 2 q + 1 of a chunk
// A chunk is 8 channels: 16 bytes in shared memory, and a multiplication of 8 columns.
#include "kernels/core/float8.cuh"
#include "kernels/core/functors.cuh"
#include "kernels/core/matrix_units.cuh"
#include "spops/device/walk.cuh"

namespace
{

using namespace spops;

constexpr int warp = 32, warps = 8, threads = warps * warp;
constexpr uint32_t whole_warp = 0xffffffffu;
constexpr int blocks_held = 2; // by a multiprocessor
constexpr int tile_pixels = SPOPS_BEV_TILE_PIXELS, window_columns = SPOPS_BEV_WINDOW_COLUMNS;
constexpr int bundle_parts = SPOPS_BEV_BUNDLE_PARTS;
constexpr int plane_bytes = tile_pixels * 2; // weights of a tile at one depth
constexpr int chunk_cols = 8;

struct pool_params {
    const spops_bev_wedge *wedges;
    const spops_bev_bundle *bundles;
    const int32_t *rows;
    const spops_bev_span *spans;
    int32_t max_depths, max_steps, max_bundles; // of a wedge
    int32_t num_depths, height, width;
    int32_t tile_width_log2;
    int32_t cols;
    const uint8_t *feat, *feat_scales;
    int32_t feat_stride, scales_stride; // bytes, as all strides here
    const uint8_t *depth;
    int32_t depth_dtype;
    int32_t depth_run; // neighbouring columns that can be loaded at once: 4 or 1
    uint8_t *out;
    int64_t out_stride;
    int32_t out_dtype;
    float *parts;
    int64_t part_cols;
    const float *feat_scale, *depth_scale, *out_scale;
};

// A value that is cheap to keep, as one whose origin the compiler does not see: it is not to be
// computed again wherever it is used.
__device__ __forceinline__ uint32_t kept(uint32_t value)
{
    asm volatile("" : "+r"(value));
    return value;
}

// Where things lie in a block's shared memory, in bytes.
template <int COLS> struct wedge_layout {
    static constexpr int chunks = COLS / chunk_cols;
    static constexpr int pitch = (chunks | 1) * 16; // of a pixel; odd: eight in different banks
    int features, weights, spans, rows, bundles, bytes;

    __host__ __device__ __forceinline__ wedge_layout(const pool_params &p)
    {
        const int tiles = window_columns >> p.tile_width_log2;
        features = 0;
        weights = features + tiles * tile_pixels * pitch;
        spans = weights + tiles * p.max_depths * plane_bytes;
        rows = spans + p.max_steps * bundle_parts * (int)sizeof(spops_bev_span);
        bundles = rows + p.max_bundles * bundle_parts * (int)sizeof(int32_t);
        bytes = bundles + p.max_bundles * (int)sizeof(spops_bev_bundle);
    }
};

// ---- Loading a wedge ----------------------------------------------------------------------------

__device__ __forceinline__ void copy_plan(uint32_t to, const void *from, int bytes)
{
#pragma unroll 1
    for (int i = (int)threadIdx.x * 16; i < bytes; i += threads * 16)
        copy_async<16>(to + i, static_cast<const uint8_t *>(from) + i, 1u);
}

// Pixel row r, column x of a window: its place among the pixels of the window's tiles.
template <int WIDTH_LOG2> __device__ __forceinline__ int place_of(int r, int x)
{
    return (x >> WIDTH_LOG2) * tile_pixels + (r << WIDTH_LOG2) + (x & ((1 << WIDTH_LOG2) - 1));
}

// Features of 16 bits: columns col and on of the window, by copies that nobody waits for yet.
template <int COLS, int WIDTH_LOG2>
__device__ __forceinline__ void copy_features(const pool_params &p, const spops_bev_wedge &w,
                                              int32_t col, uint32_t to)
{
    typedef wedge_layout<COLS> layout;
    constexpr int row_items = window_columns * layout::chunks, rows = threads / row_items;
    static_assert(rows > 0, "");
    const int first = (int)threadIdx.x / row_items, item = (int)threadIdx.x - first * row_items;
    const int x = item / layout::chunks, chunk = item - x * layout::chunks;
    if (first >= rows) return;
    const uint8_t *from = p.feat + ((int64_t)w.feature + first * p.width + x) * p.feat_stride +
                          (col + chunk * chunk_cols) * 2;
    const int64_t ahead = (int64_t)rows * p.width * p.feat_stride;
    const int ahead_to = (rows << WIDTH_LOG2) * layout::pitch;
    const bool there = x < w.columns && col + chunk * chunk_cols < p.cols;
    to += place_of<WIDTH_LOG2>(first, x) * layout::pitch + chunk * 16;
#pragma unroll 4
    for (int r = first; r < tile_pixels >> WIDTH_LOG2; r += rows, from += ahead, to += ahead_to)
        copy_async<16>(to, from, there && r < w.rows);
}

__device__ __forceinline__ void load_aligned(uint32_t (&word)[4], const uint8_t *from)
{
    const uint4 v = __ldg(reinterpret_cast<const uint4 *>(from));
    word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
}
__device__ __forceinline__ void load_aligned(uint32_t (&word)[2], const uint8_t *from)
{
    const uint2 v = __ldg(reinterpret_cast<const uint2 *>(from));
    word[0] = v.x, word[1] = v.y;
}
// Eight channels of the sixteen.
__device__ __forceinline__ uint2 codes_of(const uint32_t (&word)[4], int half)
{
    return make_uint2(word[2 * half], word[2 * half + 1]);
}
__device__ __forceinline__ uint32_t codes_of(const uint32_t (&word)[2], int half)
{
    return word[half];
}

// Features of 8 or 4 bits, widened: 16 channels a thread, which are two chunks.
template <class X, int COLS, int WIDTH_LOG2>
__device__ __forceinline__ void widen_features(const pool_params &p, const spops_bev_wedge &w,
                                               int32_t col, uint32_t to)
{
    typedef wedge_layout<COLS> layout;
    constexpr int bits = row_words<X>::bits, item_cols = 16, at_once = 8;
    constexpr int row_items = window_columns * COLS / item_cols, rows = threads / row_items;
    const int first = (int)threadIdx.x / row_items, item = (int)threadIdx.x - first * row_items;
    const int x = item / (COLS / item_cols), at = col + (item % (COLS / item_cols)) * item_cols;
    if (first >= rows) return;
    const int64_t row = (int64_t)w.feature + first * p.width + x;
    const uint8_t *from = p.feat + row * p.feat_stride, *scales = p.feat_scales;
    if (bits == 4) scales += row * p.scales_stride;
    const int64_t ahead = (int64_t)rows * p.width * p.feat_stride;
    const int64_t ahead_scales = (int64_t)rows * p.width * p.scales_stride;
    const int ahead_to = (rows << WIDTH_LOG2) * layout::pitch;
    const bool there = x < w.columns && at < p.cols;
    to += place_of<WIDTH_LOG2>(first, x) * layout::pitch + (at - col) * 2;
    for (int r = first; r < tile_pixels >> WIDTH_LOG2; r += at_once * rows) {
        uint32_t codes[at_once][item_cols * bits / 32] = {};
        uint32_t scale[at_once] = {};
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
            if (!there || r + i * rows >= w.rows) continue;
            scale[i] = load_scale<X>(scales + i * ahead_scales, at);
            load_aligned(codes[i], from + i * ahead + at * bits / 8);
        }
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
            if (r + i * rows >= tile_pixels >> WIDTH_LOG2) continue;
#pragma unroll
            for (int half = 0; half < 2; ++half)
                store_shared(to + i * ahead_to + 16 * half,
                             row_words<X>::widen8(codes_of(codes[i], half), widen_scale(scale[i])));
        }
        from += at_once * ahead;
        scales += at_once * ahead_scales;
        to += at_once * ahead_to;
    }
}

// Weights of eight neighbouring columns of a row, as they are read: words of two of 16 bits, or of
// four codes of 8.
template <class T> struct weight_row {
    static constexpr int words = 2 * sizeof(T);
    uint32_t word[words];
};

// RUN (4 or 1) of them can be loaded at once; `columns` are there.
template <class T, int RUN>
__device__ __forceinline__ void load_row(weight_row<T> &row, const T *from, int columns)
{
    constexpr int word_columns = 4 / sizeof(T), run_words = RUN / word_columns;
    if constexpr (RUN < word_columns) {
#pragma unroll
        for (int i = 0; i < weight_row<T>::words; ++i)
            row.word[i] = 0;
    }
#pragma unroll
    for (int at = 0; at < window_columns; at += RUN) {
        if (at >= columns) continue;
        uint32_t *word = row.word + at / word_columns;
        if constexpr (run_words == 2) {
            const uint2 v = __ldg(reinterpret_cast<const uint2 *>(from + at));
            word[0] = v.x, word[1] = v.y;
        } else if constexpr (run_words == 1) {
            word[0] = __ldg(reinterpret_cast<const uint32_t *>(from + at));
        } else {
            word[0] |= (uint32_t)__ldg(from + at) << 8 * (int)sizeof(T) * (at % word_columns);
        }
    }
}

// Where pair m of a tile's pixels lies, in words from its first: the pairs of one lane side by
// side.
__host__ __device__ __forceinline__ int pair_place(int m)
{
    return m % 4 * 4 + m / 4;
}

// The wedge's weights. A thread has rows of eight columns at one depth; where tiles are one pixel
// wide two rows of pixels above each other, as a word has two pixels of a tile. Loading and storing
// are apart so that features are on their way between them, and most wedges load all at once. Rows
// that are not there leave words that no span has a mask for.
template <class T, int RUN, int WIDTH_LOG2> struct weight_copier {
    static constexpr int at_once = 4, rows_apart = WIDTH_LOG2 == 0 ? 2 : 1;
    static constexpr int rows_log2 = WIDTH_LOG2 == 2 ? 3 : 4; // a thread's rows at one depth
    const pool_params &p;
    const spops_bev_wedge &w;
    weight_row<T> upper[at_once], lower[at_once];

    __device__ __forceinline__ weight_copier(const pool_params &params,
                                             const spops_bev_wedge &wedge)
        : p(params), w(wedge)
    {
    }
    __device__ __forceinline__ bool there(int item) const
    {
        return item >> rows_log2 < w.num_depths;
    }
    __device__ __forceinline__ void load(int item)
    {
        const T *from = reinterpret_cast<const T *>(p.depth) + w.depth;
#pragma unroll
        for (int i = 0; i < at_once; ++i, item += threads) {
            if (!there(item)) return;
            const int d = item >> rows_log2;
            const int row = (item & ((1 << rows_log2) - 1)) * rows_apart;
            const T *its = from + (uint32_t)(d * p.height + row) * (uint32_t)p.width;
            load_row<T, RUN>(upper[i], its, row < w.rows ? w.columns : 0);
            if (WIDTH_LOG2 == 0)
                load_row<T, RUN>(lower[i], its + p.width, row + 1 < w.rows ? w.columns : 0);
        }
    }
    // Columns 2 c and 2 c + 1 of a row, as f16 or bf16.
    __device__ __forceinline__ uint32_t pair_of(const weight_row<T> &row, int c) const
    {
        if constexpr (sizeof(T) == 2) {
            return row.word[c];
        } else {
            const uint32_t codes = row.word[c / 2] >> 16 * (c % 2) & 0xffffu;
            return p.depth_dtype == SPOPS_DTYPE_F8E4M3 ? widen2(f8e4m3(), codes)
                                                       : widen2(f8e5m2(), codes);
        }
    }
    __device__ __forceinline__ void store(int item, uint32_t to) const
    {
        constexpr int pairs = 1 << WIDTH_LOG2 >> 1; // of a tile's row, if it is wider than a pixel
        const int tile_bytes = w.num_depths * plane_bytes;
#pragma unroll
        for (int i = 0; i < at_once; ++i, item += threads) {
            if (!there(item)) return;
            const int d = item >> rows_log2, row = item & ((1 << rows_log2) - 1);
            const uint32_t plane = to + d * plane_bytes;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const uint32_t a = pair_of(upper[i], c);
                if constexpr (WIDTH_LOG2 == 0) {
                    const uint32_t b = pair_of(lower[i], c);
                    const uint32_t pair = plane + pair_place(row) * 4 + 2 * c * tile_bytes;
                    store_shared(pair, __byte_perm(a, b, 0x5410));
                    store_shared(pair + tile_bytes, __byte_perm(a, b, 0x7632));
                } else {
                    const int m = row * pairs + c % pairs;
                    store_shared(plane + pair_place(m) * 4 + c / pairs * tile_bytes, a);
                }
            }
        }
    }
};

// Everything that a wedge's bundles read, in the order in which one waits for another the least.
template <class X, int COLS, class T, int RUN, int WIDTH_LOG2>
__device__ __forceinline__ void load_wedge(const pool_params &p, const spops_bev_wedge &w,
                                           int32_t col, uint32_t features, uint32_t weights)
{
    weight_copier<T, RUN, WIDTH_LOG2> copier(p, w);
    int item = (int)threadIdx.x;
    copier.load(item);
    if constexpr (sizeof(X) == 2)
        copy_features<COLS, WIDTH_LOG2>(p, w, col, features);
    else
        widen_features<X, COLS, WIDTH_LOG2>(p, w, col, features);
    close_copies();
    while (copier.there(item)) {
        copier.store(item, weights);
        item += copier.at_once * threads;
        copier.load(item);
    }
    wait_copies<0>();
}
template <class X, int COLS, class T, int RUN>
__device__ __forceinline__ void load_wedge(const pool_params &p, const spops_bev_wedge &w,
                                           int32_t col, uint32_t features, uint32_t weights)
{
    switch (p.tile_width_log2) {
    case 0: return load_wedge<X, COLS, T, RUN, 0>(p, w, col, features, weights);
    case 1: return load_wedge<X, COLS, T, RUN, 1>(p, w, col, features, weights);
    default: return load_wedge<X, COLS, T, RUN, 2>(p, w, col, features, weights);
    }
}
template <class X, int COLS, class T>
__device__ __forceinline__ void load_wedge(const pool_params &p, const spops_bev_wedge &w,
                                           int32_t col, uint32_t features, uint32_t weights)
{
    if (p.depth_run == 1) return load_wedge<X, COLS, T, 1>(p, w, col, features, weights);
    load_wedge<X, COLS, T, 4>(p, w, col, features, weights);
}

// ---- Multiplying --------------------------------------------------------------------------------

// Bytes of two words with what they are chosen by, of which bit 3 asks for a byte's sign, eight
// times; __byte_perm ignores that bit.
__device__ __forceinline__ uint32_t spread_signs(uint32_t low, uint32_t high, uint32_t selector)
{
    uint32_t word;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(low), "r"(high), "r"(selector));
    return word;
}

// What a lane has of a step before the multiplication: for parts g and g + 8 the span and the
// weights of its eight pixels.
struct step_weights {
    uint2 span[2]; // spops_bev_span
    uint4 pixels[2];
};

// COLS columns of 16 parts. H: what features and weights are in shared memory, f16 or bf16.
template <class H, int COLS> struct bundle_sums {
    typedef wedge_layout<COLS> layout;
    static constexpr int chunks = layout::chunks;

    const pool_params &p;
    const int num_depths;
    const int32_t col; // first column
    const int lane, g, q;
    uint32_t matrix, weights; // in shared memory: where this lane loads matrices, and weights
    float sum[chunks][4];

    __device__ __forceinline__ bundle_sums(const pool_params &params, const spops_bev_wedge &w,
                                           int32_t column, uint32_t features_at,
                                           uint32_t weights_at)
        : p(params), num_depths(w.num_depths), col(column), lane((int)(threadIdx.x % warp)),
          g(lane / 4), q(lane % 4),
          matrix(kept(features_at + lane % 16 * layout::pitch + lane / 16 * 16)),
          weights(kept(weights_at + q * 16))
    {
    }

    __device__ __forceinline__ uint32_t plane_at(uint32_t plane) const
    {
        return ((plane >> 16) * num_depths + (plane & 0xffffu)) * plane_bytes;
    }
    __device__ __forceinline__ void load(step_weights &step, uint32_t spans) const
    {
#pragma unroll
        for (int r = 0; r < 2; ++r)
            step.span[r] = load_shared2(spans + (g + 8 * r) * (int)sizeof(spops_bev_span));
#pragma unroll
        for (int r = 0; r < 2; ++r)
            step.pixels[r] = load_shared4(weights + plane_at(step.span[r].x));
    }

    // As words of two pixels, in the order of a multiplication for each half of the tile; zeros
    // where a pixel is not the part's.
    __device__ __forceinline__ void mask(const step_weights &step, uint32_t (&a)[2][4]) const
    {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const uint4 w = step.pixels[r];
            const uint32_t word[4] = {w.x, w.y, w.z, w.w};
            // Two bits a byte: the highest bits of bytes, spread over two bytes each.
            const uint32_t mask = step.span[r].y >> 2 * q & 0x03030303u;
            const uint32_t even = mask << 7, odd = mask << 6;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                a[i / 2][i % 2 * 2 + r] = word[i] & spread_signs(even, odd, 0xcc88u + 0x1111u * i);
        }
    }

    __device__ __forceinline__ void multiply(const uint32_t (&a)[2][4], int tile)
    {
        const uint32_t from = matrix + tile * (tile_pixels * layout::pitch);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int c = 0; c < chunks; c += 2) {
                uint32_t b[4];
                load_transposed(b, from + half * 16 * layout::pitch + c * 16);
                add_product(H(), sum[c], a[half], b[0], b[1]);
                add_product(H(), sum[c + 1], a[half], b[2], b[3]);
            }
        }
    }

    __device__ __forceinline__ void add_steps(uint32_t spans, int num_steps)
    {
        constexpr int step_bytes = bundle_parts * (int)sizeof(spops_bev_span);
#pragma unroll
        for (int c = 0; c < chunks; ++c)
            sum[c][0] = sum[c][1] = sum[c][2] = sum[c][3] = 0.0f;
        step_weights step;
        load(step, spans);
        for (; num_steps > 0; --num_steps) {
            uint32_t a[2][4];
            const int tile = (int)(step.span[0].x >> 16);
            mask(step, a);
            if (num_steps > 1) load(step, spans += step_bytes);
            multiply(a, tile);
        }
    }

    // False, besides, where products of two sums are too large for an f32: one multiplication looks
    // at both.
    __device__ __forceinline__ bool all_finite() const
    {
        float product[4] = {};
#pragma unroll
        for (int c = 0; c < chunks; ++c) {
            float *const its = product + c % 2 * 2;
            its[0] = fmaf(sum[c][0], sum[c][1], its[0]);
            its[1] = fmaf(sum[c][2], sum[c][3], its[1]);
        }
        const float zero = (product[0] + product[1]) * 0.0f + (product[2] + product[3]) * 0.0f;
        return __all_sync(whole_warp, zero == 0.0f);
    }

    // Rows of a shared bundle: 16 channels side by side as the four lanes of a part have them.
    __device__ __forceinline__ bool store_parts_if_finite(const int32_t (&row)[2]) const
    {
        if (!all_finite()) return false;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float *to = p.parts + (int64_t)row[r] * p.part_cols + col + q * 4;
#pragma unroll
            for (int c = 0; c < chunks; c += 2)
                if (row[r] >= 0 && col + c * chunk_cols < p.cols)
                    *reinterpret_cast<float4 *>(to + c * chunk_cols) = make_float4(
                        sum[c][2 * r], sum[c][2 * r + 1], sum[c + 1][2 * r], sum[c + 1][2 * r + 1]);
        }
        return true;
    }

    // Store the bundle's rows, unless something is not finite: then false, and nothing is stored.
    template <class T>
    __device__ __forceinline__ bool store_if_finite(const int32_t (&row)[2], float scale)
    {
        if (scale != 1.0f) {
#pragma unroll
            for (int c = 0; c < chunks; ++c) {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    sum[c][i] *= scale;
            }
        }
        uint8_t *const to[2] = {p.out + (int64_t)row[0] * p.out_stride,
                                p.out + (int64_t)row[1] * p.out_stride};
        if constexpr (sizeof(T) == 2) {
            uint32_t word[2][chunks], zeros[4] = {};
#pragma unroll
            for (int c = 0; c < chunks; ++c) {
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    uint32_t &its = zeros[c % 2 * 2 + r]; // short chains
                    word[r][c] = pack2<T>(sum[c][2 * r], sum[c][2 * r + 1]);
                    its = add_zeros(T(), word[r][c], its);
                }
            }
            const uint32_t all = (zeros[0] | zeros[1]) | (zeros[2] | zeros[3]);
            if (!__all_sync(whole_warp, (all & 0x7fff7fffu) == 0)) return false;
#pragma unroll
            for (int r = 0; r < 2; ++r)
                store_words<T>(to[r], row[r] >= 0, word[r]);
        } else {
            if (!all_finite()) return false;
#pragma unroll
            for (int r = 0; r < 2; ++r)
                store_values_of<T>(to[r], row[r] >= 0, r);
        }
        return true;
    }
    // zeros + 0 * word, which is not zero where a half of the word is not finite.
    static __device__ __forceinline__ uint32_t add_zeros(f16, uint32_t word, uint32_t zeros)
    {
        asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(zeros) : "r"(word), "r"(0u));
        return zeros;
    }
    static __device__ __forceinline__ uint32_t add_zeros(bf16, uint32_t word, uint32_t zeros)
    {
        asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(zeros) : "r"(word), "r"(0u));
        return zeros;
    }
    // Four lanes trade what they have of four chunks, so that each stores one of them.
    template <class T>
    __device__ __forceinline__ void store_words(uint8_t *to, bool there,
                                                const uint32_t (&words)[chunks]) const
    {
        int c = 0;
#pragma unroll
        for (; c + 4 <= chunks; c += 4) {
            uint32_t word[4] = {words[c], words[c + 1], words[c + 2], words[c + 3]};
            transpose_words(word);
            const int32_t at = col + (c + q) * chunk_cols;
            if (there && at < p.cols) store_aligned(to + at * 2, word);
        }
#pragma unroll
        for (; c < chunks; ++c) {
            const int32_t at = col + c * chunk_cols + q * 2;
            if (there && at < p.cols) *reinterpret_cast<uint32_t *>(to + at * 2) = words[c];
        }
    }
    template <class T>
    __device__ __forceinline__ void store_values_of(uint8_t *to, bool there, int r) const
    {
        int c = 0;
        if constexpr (sizeof(T) == 1) {
#pragma unroll
            for (; c + 4 <= chunks; c += 4) {
                uint32_t half[4], word[2];
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    half[i] = narrow_finite2(T(), sum[c + i][2 * r], sum[c + i][2 * r + 1]);
                transpose_halves(half, word);
                const int32_t at = col + (c + q) * chunk_cols;
                if (there && at < p.cols) store_aligned(to + at, word);
            }
        }
#pragma unroll
        for (; c < chunks; ++c) {
            const int32_t at = col + c * chunk_cols + q * 2;
            const float v[2] = {sum[c][2 * r], sum[c][2 * r + 1]};
            if (there && at < p.cols) store_values<T>(to, at, v);
        }
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
    // The same for halves of a word, two of which are put together by each trade.
    __device__ __forceinline__ void transpose_halves(const uint32_t (&half)[4],
                                                     uint32_t (&word)[2]) const
    {
        const bool odd = (q & 1) != 0, upper = (q & 2) != 0;
        const uint32_t even_chunks = half[0] | half[2] << 16, odd_chunks = half[1] | half[3] << 16;
        const uint32_t kept = odd ? odd_chunks : even_chunks;
        const uint32_t got = __shfl_xor_sync(whole_warp, odd ? even_chunks : odd_chunks, 1);
        const uint32_t low = odd ? got : kept, high = odd ? kept : got; // of even, odd lane
        const uint32_t first = __byte_perm(low, high, 0x5410),
                       second = __byte_perm(low, high, 0x7632);
        const uint32_t mine = upper ? second : first;
        const uint32_t other = __shfl_xor_sync(whole_warp, upper ? first : second, 2);
        word[0] = upper ? other : mine;
        word[1] = upper ? mine : other;
    }
    __device__ __forceinline__ bool store_if_finite(const int32_t (&row)[2], float scale)
    {
        switch (p.out_dtype) {
        case SPOPS_DTYPE_F16: return store_if_finite<f16>(row, scale);
        case SPOPS_DTYPE_BF16: return store_if_finite<bf16>(row, scale);
        case SPOPS_DTYPE_F32: return store_if_finite<float>(row, scale);
        case SPOPS_DTYPE_F8E4M3: return store_if_finite<f8e4m3>(row, scale);
        default: return store_if_finite<f8e5m2>(row, scale);
        }
    }
};

// Where a channel lies in a shared part: four lanes have 16 channels, each two of either chunk.
__device__ __forceinline__ int channel_place(int c)
{
    return c / 16 * 16 + c % 8 / 2 * 4 + c % 16 / 8 * 2 + c % 2;
}
// The first of the two chunks' channels that lie at the item-th four places.
__device__ __forceinline__ int channel_of_item(int item)
{
    return item / 4 * 16 + item % 4 * 2;
}

template <class H> __device__ __forceinline__ float load_element(uint32_t at)
{
    float value, other;
    unpack2<H>(load_shared_if(1u, at), value, other);
    return value;
}

// Where a block has what a bundle needs, in shared memory.
struct bundle_place {
    uint32_t features, weights, spans, rows;
    int32_t num_depths, num_steps;
    bool shared;
};

// A bundle's rows again, term by term, with nothing from pixels outside a cell.
template <class H, int COLS>
__device__ __noinline__ void store_apart(const pool_params &p, const bundle_place at, int32_t col,
                                         float scale)
{
    constexpr int pitch = wedge_layout<COLS>::pitch;
    const int lane = (int)(threadIdx.x % warp);
    for (int part = 0; part < bundle_parts; ++part) {
        const int32_t row = load_shared_word(at.rows + part * 4);
        if (row < 0) continue;
        for (int c = lane; c < COLS && col + c < p.cols; c += warp) {
            float total = 0.0f;
            for (int step = 0; step < at.num_steps; ++step) {
                const uint2 span = load_shared2(at.spans + (step * bundle_parts + part) *
                                                               (int)sizeof(spops_bev_span));
                const uint32_t tile = span.x >> 16, depth = span.x & 0xffffu;
                const uint32_t pixels = at.features + tile * tile_pixels * pitch + c * 2;
                const uint32_t plane = at.weights + (tile * at.num_depths + depth) * plane_bytes;
                for (uint32_t mask = span.y; mask != 0; mask &= mask - 1) {
                    const int k = __ffs((int)mask) - 1;
                    total += load_element<H>(plane + pair_place(k / 2) * 4 + k % 2 * 2) *
                             load_element<H>(pixels + k * pitch);
                }
            }
            if (at.shared) {
                p.parts[(int64_t)row * p.part_cols + col + channel_place(c)] = total;
            } else {
                const float v[1] = {total * scale};
                store_row<false>(p.out_dtype, p.out + (int64_t)row * p.out_stride, col + c, 1, v);
            }
        }
    }
}

template <class X, int COLS>
__global__ void __launch_bounds__(threads, blocks_held)
    pool_kernel(const __grid_constant__ pool_params p)
{
    typedef typename row_words<X>::half_type H; // what features and weights are, once loaded
    extern __shared__ float4 shared[];
    __shared__ int32_t next_bundle; // of those that are not shared, nor any warp's first
    const wedge_layout<COLS> at(p);
    const uint32_t base = shared_address(shared);
    const uint32_t features = kept(base + at.features), weights = kept(base + at.weights);
    const uint32_t all_spans = kept(base + at.spans), all_rows = kept(base + at.rows);
    const uint32_t bundles = kept(base + at.bundles);
    const int32_t col = (int32_t)blockIdx.y * COLS;
    const int lane = (int)(threadIdx.x % warp), g = lane / 4;
    union {
        int4 words[2];
        spops_bev_wedge wedge;
    };
    words[0] = __ldg(reinterpret_cast<const int4 *>(p.wedges + blockIdx.x));
    words[1] = __ldg(reinterpret_cast<const int4 *>(p.wedges + blockIdx.x) + 1);
    const spops_bev_wedge w = wedge;
    copy_plan(all_spans, p.spans + (int64_t)w.first_step * bundle_parts,
              w.num_steps * bundle_parts * (int)sizeof(spops_bev_span));
    copy_plan(all_rows, p.rows + (int64_t)w.first_bundle * bundle_parts,
              w.num_bundles * bundle_parts * (int)sizeof(int32_t));
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < w.num_bundles; i += threads)
        copy_async<8>(bundles + i * 8, p.bundles + w.first_bundle + i, 1u);
    if (threadIdx.x == 0) next_bundle = max((int)w.num_shared, warps);
    walk_wait_previous(); // weights and features may come from the kernel before
    walk_release_next();  // not sooner: the next one clears cells before it waits

    const loaded_scales scales = load_scales(p.feat_scale, p.depth_scale, p.out_scale);
    if (sizeof(X) == 2 || p.depth_dtype == SPOPS_DTYPE_F16)
        load_wedge<X, COLS, uint16_t>(p, w, col, features, weights);
    else
        load_wedge<X, COLS, uint8_t>(p, w, col, features, weights);
    __syncthreads();

    const float scale = scales.product();
    bundle_sums<H, COLS> sums(p, w, col, features, weights);
    const auto take = [&] {
        int32_t b = 0;
        if (lane == 0)
            asm volatile("atom.shared.add.s32 %0, [%1], 1;"
                         : "=r"(b)
                         : "r"(shared_address(&next_bundle))
                         : "memory");
        return __shfl_sync(whole_warp, b, 0);
    };
    const int32_t first = (int32_t)threadIdx.x / warp;
    int32_t next;
    for (int32_t b = first; b < w.num_bundles; b = next) {
        const uint2 bundle = load_shared2(bundles + b * 8);
        const uint32_t spans = all_spans + bundle.x * bundle_parts * (int)sizeof(spops_bev_span);
        const uint32_t rows = all_rows + b * bundle_parts * (int)sizeof(int32_t);
        const int32_t row[2] = {load_shared_word(rows + g * 4),
                                load_shared_word(rows + g * 4 + 32)};
        const bool is_shared = b < w.num_shared;
        sums.add_steps(spans, (int)bundle.y);
        next = is_shared && b + warps < w.num_shared ? b + warps : take(); // while sums are stored
        const bool stored =
            is_shared ? sums.store_parts_if_finite(row) : sums.store_if_finite(row, scale);
        if (!stored) {
            const bundle_place place = {features,     weights,           spans,    rows,
                                        w.num_depths, (int32_t)bundle.y, is_shared};
            store_apart<H, COLS>(p, place, col, scale);
        }
    }
}

// ---- Shared and empty cells ---------------------------------------------------------------------

struct finish_params {
    const spops_bev_shared_cell *shared_cells;
    int32_t num_shared_cells;
    int32_t block_cells;    // shared cells of a block
    uint32_t items_inverse; // threads of a shared cell: tid / threads by a multiplication
    int32_t shared_blocks;
    const uint32_t *covered;
    int64_t num_cells;
    const float *parts;
    int32_t part_cols, cols;
    uint8_t *out;
    int64_t out_stride;
    int32_t out_dtype;
    const float *feat_scale, *depth_scale, *out_scale;
};

// Rows of cells that no span is in: 32 cells a warp, 16 bytes a lane.
__device__ void clear_cells(const finish_params &p, int32_t block)
{
    __shared__ int32_t empty_cells[threads];
    const int lane = (int)(threadIdx.x % warp);
    const int64_t word = (int64_t)block * warps + threadIdx.x / warp;
    const int64_t cell = word * 32 + lane;
    const bool clears = cell < p.num_cells && !(__ldg(p.covered + word) >> lane & 1u);
    const uint32_t empty = __ballot_sync(whole_warp, clears);
    int32_t *cells = empty_cells + threadIdx.x / warp * warp;
    if (clears) cells[__popc(empty & ((1u << lane) - 1))] = lane;
    __syncwarp();
    const int32_t bytes = p.out_dtype == SPOPS_DTYPE_F32                                      ? 4
                          : p.out_dtype == SPOPS_DTYPE_F16 || p.out_dtype == SPOPS_DTYPE_BF16 ? 2
                                                                                              : 1;
    const int32_t row_pieces = p.cols * bytes / 16, pieces = __popc(empty) * row_pieces;
    const bool exact = row_pieces < 1 << 15; // an f32 tells rows apart
    const float each = 1.0f / (float)row_pieces;
    uint8_t *rows = p.out + word * 32 * p.out_stride;
    for (int32_t i = lane; i < pieces; i += warp) {
        const int32_t row = exact ? (int32_t)(((float)i + 0.5f) * each) : i / row_pieces;
        uint8_t *to = rows + cells[row] * p.out_stride + (i - row * row_pieces) * 16;
        *reinterpret_cast<uint4 *>(to) = make_uint4(0, 0, 0, 0);
    }
}

template <class T>
__device__ __forceinline__ void store_shared_cell(const finish_params &p, uint8_t *row, int at,
                                                  const float4 &v)
{
    const float low[2] = {v.x, v.y}, high[2] = {v.z, v.w};
    store_values<T>(row, at, low);
    if (at + chunk_cols < p.cols) store_values<T>(row, at + chunk_cols, high);
}

__device__ __forceinline__ void store_shared_cell(const finish_params &p, uint8_t *row, int at,
                                                  const float4 &v)
{
    switch (p.out_dtype) {
    case SPOPS_DTYPE_F16: return store_shared_cell<f16>(p, row, at, v);
    case SPOPS_DTYPE_BF16: return store_shared_cell<bf16>(p, row, at, v);
    case SPOPS_DTYPE_F32: return store_shared_cell<float>(p, row, at, v);
    case SPOPS_DTYPE_F8E4M3: return store_shared_cell<f8e4m3>(p, row, at, v);
    default: return store_shared_cell<f8e5m2>(p, row, at, v);
    }
}

__device__ __forceinline__ void add_parts(float4 &total, const float4 &v)
{
    total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
}

__global__ void __launch_bounds__(threads) finish_kernel(const __grid_constant__ finish_params p)
{
    walk_release_next();
    if ((int32_t)blockIdx.x >= p.shared_blocks) {
        // Every kernel before the one that pools has ended: that one waited before it released this
        // one.
        clear_cells(p, (int32_t)blockIdx.x - p.shared_blocks);
        walk_wait_previous(); // whoever waits for this kernel waits for that one too
        return;
    }
    // A thread adds up four columns of a cell; of wide rows, every so many.
    const int32_t sub = (int32_t)(threadIdx.x * p.items_inverse >> 16);
    const int32_t m = (int32_t)blockIdx.x * p.block_cells + sub;
    const bool there = sub < p.block_cells && m < p.num_shared_cells;
    int32_t cell = 0, first = 0, count = 0;
    if (there) {
        cell = __ldg(&p.shared_cells[m].cell);
        first = __ldg(&p.shared_cells[m].first_part);
        count = __ldg(&p.shared_cells[m + 1].first_part) - first;
    }
    const int32_t ahead = p.part_cols / 4;
    const float4 *row = reinterpret_cast<const float4 *>(p.parts) + (int64_t)first * ahead;
    uint8_t *out = p.out + (int64_t)cell * p.out_stride;
    // What was there before the kernel that pools may be read, as the cells may be cleared.
    const float scale = load_scales(p.feat_scale, p.depth_scale, p.out_scale).product();
    walk_wait_previous();
    if (!there) return;
    for (int32_t item = (int32_t)threadIdx.x - sub * ahead; item < ahead; item += threads) {
        const float4 *part = row + item;
        const float4 none = make_float4(0, 0, 0, 0);
        float4 total = __ldcg(part), v[3];
        v[0] = __ldcg(part + ahead); // a shared cell has two parts at least
        v[1] = count > 2 ? __ldcg(part + 2 * ahead) : none;
        v[2] = count > 3 ? __ldcg(part + 3 * ahead) : none;
#pragma unroll
        for (int k = 0; k < 3; ++k)
            add_parts(total, v[k]);
        for (int32_t k = 4; k < count; ++k)
            add_parts(total, __ldcg(part + (int64_t)k * ahead));
        total.x *= scale, total.y *= scale, total.z *= scale, total.w *= scale;
        const int32_t at = channel_of_item(item);
        if (at < p.cols) store_shared_cell(p, out, at, total);
    }
}

// ---- Launching ----------------------------------------------------------------------------------

pool_params params_of(const spops_bev_spans_pool_args *args)
{
    const spops_bev_spans &s = *args->spans;
    const spops_matrix &feat = args->feat, &depth = args->depth, &out = args->out;
    pool_params p = {};
    p.wedges = s.wedges;
    p.bundles = s.bundles;
    p.rows = s.rows;
    p.spans = s.spans;
    p.max_depths = s.host_counts.max_depths;
    p.max_steps = s.host_counts.max_steps;
    p.max_bundles = s.host_counts.max_bundles;
    p.num_depths = args->shape.num_depths;
    p.height = args->shape.feature_height;
    p.width = args->shape.feature_width;
    p.tile_width_log2 = s.tile_width_log2;
    p.cols = (int32_t)feat.cols;
    p.feat = (const uint8_t *)feat.data;
    p.feat_stride = (int32_t)spops_elements_bytes(feat.dtype, feat.row_stride);
    p.feat_scales = (const uint8_t *)args->feat_scales.data;
    p.scales_stride = (int32_t)args->feat_scales.row_stride;
    p.depth = (const uint8_t *)depth.data;
    p.depth_dtype = depth.dtype;
    const uintptr_t run_bytes = (uintptr_t)spops_elements_bytes(depth.dtype, 4);
    p.depth_run = p.width % 4 == 0 && (uintptr_t)depth.data % run_bytes == 0 ? 4 : 1;
    p.out = (uint8_t *)out.data;
    p.out_stride = spops_elements_bytes(out.dtype, out.row_stride);
    p.out_dtype = out.dtype;
    p.parts = args->parts;
    p.part_cols = spops_bev_part_cols(feat.cols);
    p.feat_scale = args->feat_scale;
    p.depth_scale = args->depth_scale;
    p.out_scale = args->out_scale;
    return p;
}

// The widest kernel that has the fewest columns to spare.
int columns_of(int32_t cols)
{
    const auto spare = [cols](int each) { return (cols + each - 1) / each * each; };
    if (spare(80) < spare(64)) return 80;
    return spare(128) <= spare(64) ? 128 : 64;
}

// That a block can have; 0: unknown.
int max_shared_bytes(const spops_context *ctx)
{
    int bytes = 0;
    const cudaError_t error =
        cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, ctx->info.device);
    return error == cudaSuccess ? bytes : 0;
}

int shared_bytes(const pool_params &p, int columns)
{
    if (columns == 80) return wedge_layout<80>(p).bytes;
    return columns == 128 ? wedge_layout<128>(p).bytes : wedge_layout<64>(p).bytes;
}

template <class X, int COLS>
spops_status launch_pool(spops_context *ctx, const pool_params &p, int32_t num_wedges)
{
    const dim3 grid((unsigned)num_wedges, (unsigned)((p.cols + COLS - 1) / COLS));
    return launch_shared<WAITS_FOR_PREVIOUS>(ctx, "bev_spans: pool", pool_kernel<X, COLS>, grid,
                                             threads, (size_t)shared_bytes(p, COLS), p);
}

template <class X>
spops_status launch_columns(spops_context *ctx, const pool_params &p, int32_t num_wedges)
{
    switch (columns_of(p.cols)) {
    case 64: return launch_pool<X, 64>(ctx, p, num_wedges);
    case 80: return launch_pool<X, 80>(ctx, p, num_wedges);
    default: return launch_pool<X, 128>(ctx, p, num_wedges);
    }
}

spops_status launch_finish(spops_context *ctx, const spops_bev_spans_pool_args *args,
                           const pool_params &pool)
{
    const spops_bev_spans &s = *args->spans;
    finish_params p = {};
    p.shared_cells = s.shared_cells;
    p.num_shared_cells = s.host_counts.num_shared_cells;
    p.part_cols = (int32_t)pool.part_cols;
    const int32_t items = p.part_cols / 4 < threads ? p.part_cols / 4 : threads;
    p.block_cells = threads / items;
    p.items_inverse = (uint32_t)((65536 + items - 1) / items);
    p.shared_blocks = (p.num_shared_cells + p.block_cells - 1) / p.block_cells;
    p.covered = s.covered;
    p.num_cells = args->num_cells;
    p.parts = pool.parts;
    p.cols = pool.cols;
    p.out = pool.out;
    p.out_stride = pool.out_stride;
    p.out_dtype = pool.out_dtype;
    p.feat_scale = pool.feat_scale;
    p.depth_scale = pool.depth_scale;
    p.out_scale = pool.out_scale;
    const dim3 blocks((unsigned)p.shared_blocks + blocks_for(args->num_cells, threads).x);
    // It clears before it waits, which only the kernel that pools makes safe.
    if (s.host_counts.num_wedges == 0)
        return launch(ctx, "bev_spans: finish", finish_kernel, blocks, threads, p);
    return launch<WAITS_FOR_PREVIOUS>(ctx, "bev_spans: finish", finish_kernel, blocks, threads, p);
}

// Rows that can be copied and stored 16 bytes at a time; of 4 bits 8 bytes.
bool has_aligned_rows(const spops_matrix &x)
{
    const uint64_t bytes = x.dtype == SPOPS_DTYPE_F4E2M1 ? 8 : 16;
    return (uintptr_t)x.data % bytes == 0 &&
           (uint64_t)spops_elements_bytes(x.dtype, x.row_stride) % bytes == 0;
}

} // namespace

extern "C" bool spops_cuda_bev_spans_pool_fits(const spops_context *ctx,
                                               const spops_bev_spans_pool_args *args)
{
    const spops_matrix &feat = args->feat;
    const int64_t stride = spops_elements_bytes(feat.dtype, feat.row_stride);
    if (args->depth.dtype == SPOPS_DTYPE_F32 || feat.dtype == SPOPS_DTYPE_F32) return false;
    if (feat.cols % (spops_dtype_bytes(feat.dtype) == 2 ? 8 : 16) != 0) return false;
    if (!has_aligned_rows(feat) || !has_aligned_rows(args->out)) return false;
    if (stride > INT32_MAX || feat.cols > INT32_MAX / 4) return false;
    return shared_bytes(params_of(args), columns_of((int32_t)feat.cols)) < max_shared_bytes(ctx);
}

extern "C" spops_status spops_cuda_bev_spans_pool(spops_context *ctx,
                                                  const spops_bev_spans_pool_args *args)
{
    const int32_t num_wedges = args->spans->host_counts.num_wedges;
    if (args->feat.cols == 0 || args->num_cells == 0) return SPOPS_STATUS_OK;
    const pool_params p = params_of(args);
    spops_status status;
    switch (args->feat.dtype) {
    case SPOPS_DTYPE_F16: status = launch_columns<f16>(ctx, p, num_wedges); break;
    case SPOPS_DTYPE_BF16: status = launch_columns<bf16>(ctx, p, num_wedges); break;
    case SPOPS_DTYPE_F8E4M3: status = launch_columns<f8e4m3>(ctx, p, num_wedges); break;
    case SPOPS_DTYPE_F8E5M2: status = launch_columns<f8e5m2>(ctx, p, num_wedges); break;
    default: status = launch_columns<f4e2m1>(ctx, p, num_wedges); break;
    }
    SPOPS_TRY(status);
    return launch_finish(ctx, args, p);
}
