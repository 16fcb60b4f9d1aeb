// BEV pooling over spans (core/bev_spans.h) on tensor cores, in two launches. In the first a block
// has a wedge: it loads the features of the wedge's window and the weights between its two depths
// into shared memory, each once, and its warps multiply bundles until none is left. A step's
// weights are a 16 x 32 matrix, zero where a pixel is not the cell's. Sums are f32. Parts of shared
// cells go to scratch; the second launch adds them up, in order, and clears cells without a point.
//
// Features of 8 and 4 bits are widened to f16, which is exact, where they are loaded: behind that
// all dtypes are one.
//
// A zero weight times an infinity would be NaN in cells that the pixel is not in: a wedge with a
// feature that is not finite is summed term by term.
//
// Operands of a multiplication (kernels/core/matrix_units.cuh), for lane = 4 g + q:
//     a      weights of parts g, g + 8; of each 16 pixels 2 q, 2 q + 1, 2 q + 8, 2 q + 9
//     b      features of these pixels; channel g of a chunk
//     sum    parts g, g + 8; channels 2 q, 2 q + 1 of a chunk
// A chunk is 8 channels: 16 bytes in shared memory, and a multiplication of 8 columns. Which
// channels these are is chosen so that a lane's sums are neighbours in a row of the output: of each
// four chunks a lane has eight channels, of two that are left over four (channel_order).
#include <algorithm>
#include <type_traits>

#include "kernels/core/float8.cuh"
#include "kernels/core/functors.cuh"
#include "core/bev_spans.h"
#include "kernels/core/matrix_units.cuh"
#include "spops/device/walk.cuh"

namespace
{

using namespace spops;

constexpr int warp = 32;
constexpr uint32_t whole_warp = 0xffffffffu;
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
    int32_t depth_run; // neighbouring columns that can be loaded at once: 8, 4 or 1
    uint8_t *out;
    int64_t out_stride;
    int32_t out_dtype;
    float *parts;
    int64_t part_cols;
    bool turned; // every other round of columns takes the wedges from the last to the first
    const float *feat_scale, *depth_scale, *out_scale;
};

// A block that pools: the columns that it has of its wedge's rows, and its warps.
template <int COLS, int WARPS> struct pool_block {
    static constexpr int cols = COLS, warps = WARPS, threads = WARPS * warp;
    static constexpr int held = 20 / WARPS; // by a multiprocessor, for which it has registers
};

// A value that is cheap to keep, as one whose origin the compiler does not see: it is not to be
// computed again wherever it is used.
__device__ __forceinline__ uint32_t kept(uint32_t value)
{
    asm volatile("" : "+r"(value));
    return value;
}

// Where things lie in a block's shared memory, in bytes. Gaps see to it that a warp finds in
// different banks what it loads of eight pixels above each other, and what it stores of
// neighbouring ones.
template <int COLS> struct wedge_layout {
    static constexpr int chunks = COLS / chunk_cols;
    static constexpr int gap = chunks < 16 ? 0 : 2;         // before chunk 8, in chunks
    static constexpr int pitch = ((chunks | 1) + gap) * 16; // of a pixel
    int features, weights, spans, rows, bundles, bytes;

    static __host__ __device__ __forceinline__ constexpr int chunk_at(int chunk)
    {
        return (chunk + (chunk < 8 ? 0 : gap)) * 16;
    }
    // A warp stores words of up to four columns of pixels, 16 bytes in each 64: the gap behind
    // tiles of one and of two columns lets the next ones fall between them (a pixel's pitch does in
    // a tile).
    static __host__ __device__ __forceinline__ int tile_bytes(int width_log2)
    {
        return tile_pixels * pitch + (width_log2 == 0 ? 16 : width_log2 == 1 ? 32 : 0);
    }
    __host__ __device__ __forceinline__ wedge_layout(const pool_params &p)
    {
        const int tiles = window_columns >> p.tile_width_log2;
        features = 0;
        weights = features + tiles * tile_bytes(p.tile_width_log2);
        spans = weights + tiles * p.max_depths * plane_bytes;
        rows = spans + p.max_steps * bundle_parts * (int)sizeof(spops_bev_span);
        bundles = rows + p.max_bundles * bundle_parts * (int)sizeof(int32_t);
        bytes = bundles + p.max_bundles * (int)sizeof(spops_bev_bundle);
    }
};

// Where channels lie among COLS columns. Four lanes have, of each group of four chunks (or two, at
// the end), `lane_channels` neighbouring channels each, two of a chunk.
template <int COLS> struct channel_order {
    static constexpr int chunks = COLS / chunk_cols, grouped = chunks / 4 * 4;
    static_assert(chunks % 2 == 0, "");

    static __host__ __device__ constexpr int lane_channels(int chunk)
    {
        return chunk < grouped ? 8 : 4;
    }
    // The first of lane q's channels in the group that begins with a chunk.
    static __host__ __device__ constexpr int first_channel(int first_chunk, int q)
    {
        return first_chunk * chunk_cols + q * lane_channels(first_chunk);
    }
    // Where a channel is, as chunk, lane and one of two.
    struct place {
        int chunk, lane, side;
    };
    static __device__ __forceinline__ place of(int c)
    {
        const int first = c < grouped * chunk_cols ? c / 32 * 4 : grouped;
        const int in_group = c - first * chunk_cols, each = lane_channels(first);
        return place{first + in_group % each / 2, in_group / each, c % 2};
    }
    // Bytes from a pixel's first in shared memory.
    static __device__ __forceinline__ int byte_of(int c)
    {
        const place at = of(c);
        return wedge_layout<COLS>::chunk_at(at.chunk) + at.lane * 4 + at.side * 2;
    }
    // Place in a shared part: a lane stores what it has of two chunks together, four channels.
    static __device__ __forceinline__ int part_place(int c)
    {
        const place at = of(c);
        return at.chunk / 2 * 16 + at.lane * 4 + at.chunk % 2 * 2 + at.side;
    }
};
// The first of the four channels that lie at the item-th four places of a shared part.
__device__ __forceinline__ int channel_of_item(int item, int columns)
{
    const int pass = item * 4 / columns * columns, in_pass = item - pass / 4;
    const int pair = in_pass / 4, q = in_pass % 4;
    const bool grouped = pair < columns / 32 * 2;
    return pass + pair / 2 * 32 + (grouped ? q * 8 + pair % 2 * 4 : q * 4);
}

// ---- Loading a wedge ----------------------------------------------------------------------------

template <int THREADS>
__device__ __forceinline__ void copy_plan(uint32_t to, const void *from, int bytes)
{
#pragma unroll 1
    for (int i = (int)threadIdx.x * 16; i < bytes; i += THREADS * 16)
        copy_async<16>(to + i, static_cast<const uint8_t *>(from) + i, 1u);
}

// Where pixel row r, column x of a window lies among its features.
template <int COLS, int WIDTH_LOG2> __device__ __forceinline__ int pixel_at(int r, int x)
{
    typedef wedge_layout<COLS> layout;
    const int k = (r << WIDTH_LOG2) + (x & ((1 << WIDTH_LOG2) - 1));
    return (x >> WIDTH_LOG2) * layout::tile_bytes(WIDTH_LOG2) + k * layout::pitch;
}

// A sum of zeros times words of two f16 or bf16, which is zeros while all words are finite.
template <class H> struct finite_check {
    uint32_t zeros = 0;

    __device__ __forceinline__ void add(uint32_t word)
    {
        if constexpr (std::is_same<H, f16>::value)
            asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(zeros) : "r"(word), "r"(0u));
        else
            asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(zeros) : "r"(word), "r"(0u));
    }
    __device__ __forceinline__ bool finite() const { return (zeros & 0x7fff7fffu) == 0; }
};

// Neighbouring channels, as they are read: 16 bytes of them, or 8 of 4 bits each.
template <class X> struct feature_item {
    static constexpr int cols = sizeof(typename row_words<X>::codes8) == 16 ? 8 : 16;
    static constexpr int codes = cols * row_words<X>::bits / 32, words = cols / 2;
    uint32_t code[codes], scale; // of 4 bits: the block's

    // Zeros where it is not there.
    __device__ __forceinline__ void load(const uint8_t *from, bool there, const uint8_t *scales)
    {
        scale = there ? load_scale<X>(scales, 0) : 0;
        if constexpr (codes == 2) {
            const uint2 v = there ? __ldg(reinterpret_cast<const uint2 *>(from)) : make_uint2(0, 0);
            code[0] = v.x, code[1] = v.y;
        } else {
            const uint4 v = load_global_if(there, from);
            code[0] = v.x, code[1] = v.y, code[2] = v.z, code[3] = v.w;
        }
    }
    // As words of two channels of 16 bits.
    __device__ __forceinline__ void widen(uint32_t (&word)[words]) const
    {
        const uint32_t scale2 = codes == 2 ? widen_scale(scale) : 0;
#pragma unroll
        for (int i = 0; i < words; i += 4) {
            uint4 v;
            if constexpr (words == 4)
                v = make_uint4(code[0], code[1], code[2], code[3]);
            else if constexpr (codes == 4)
                v = row_words<X>::widen8(make_uint2(code[i / 2], code[i / 2 + 1]), scale2);
            else
                v = row_words<X>::widen8(code[i / 4], scale2);
            word[i] = v.x, word[i + 1] = v.y, word[i + 2] = v.z, word[i + 3] = v.w;
        }
    }
};

// Words of neighbouring channels into chunks: `to` is where the first one goes, and the next chunk
// takes the next one, in turn.
template <int CHUNKS, int WORDS>
__device__ __forceinline__ void deal_words(uint32_t to, const uint32_t (&word)[WORDS])
{
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i, to += 16) {
        if constexpr (WORDS / CHUNKS == 1)
            store_shared(to, word[i]);
        else if constexpr (WORDS / CHUNKS == 2)
            store_shared(to, make_uint2(word[i], word[CHUNKS + i]));
        else
            store_shared(to, make_uint4(word[i], word[2 + i], word[4 + i], word[6 + i]));
    }
}

// Features of columns col and on, into shared memory in the order of channel_order.
template <class X, class B, int WIDTH_LOG2>
__device__ __forceinline__ void load_features(const pool_params &p, const spops_bev_wedge &w,
                                              int32_t col, uint32_t to,
                                              finite_check<typename row_words<X>::half_type> &check)
{
    typedef wedge_layout<B::cols> layout;
    typedef channel_order<B::cols> order;
    typedef feature_item<X> item_of;
    constexpr int column_items = B::cols / item_of::cols, row_items = window_columns * column_items;
    constexpr int rows = B::threads / row_items, tile_rows = tile_pixels >> WIDTH_LOG2;
    constexpr int at_once = (tile_rows + rows - 1) / rows;
    const int first = (int)threadIdx.x / row_items, item = (int)threadIdx.x - first * row_items;
    const int x = item / column_items, channel = (item - x * column_items) * item_of::cols;
    const int at = col + channel;
    if (first >= rows) return;
    const int64_t row = (int64_t)w.feature + first * p.width + x;
    const uint8_t *from = p.feat + row * p.feat_stride + at * row_words<X>::bits / 8;
    const uint8_t *scales = p.feat_scales;
    if (row_words<X>::bits == 4) scales += row * p.scales_stride + at / 16;
    const int64_t ahead = (int64_t)rows * p.width * p.feat_stride;
    const int64_t ahead_scales = (int64_t)rows * p.width * p.scales_stride;
    const int height = x < w.columns && at < p.cols ? w.rows : 0;
    item_of items[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i)
        items[i].load(from + i * ahead, first + i * rows < height, scales + i * ahead_scales);

    to += pixel_at<B::cols, WIDTH_LOG2>(first, x) + order::byte_of(channel);
#pragma unroll
    for (int i = 0; i < at_once; ++i, to += (rows << WIDTH_LOG2) * layout::pitch) {
        if (first + i * rows >= tile_rows) continue;
        uint32_t word[item_of::words];
        items[i].widen(word);
#pragma unroll
        for (int j = 0; j < item_of::words; ++j)
            check.add(word[j]);
        if (channel < order::grouped * chunk_cols)
            deal_words<4>(to, word);
        else
            deal_words<2>(to, word);
    }
}

// Weights of eight neighbouring columns of a row, as they are read: words of two of 16 bits, or of
// four codes of 8.
template <class T> struct weight_row {
    static constexpr int words = window_columns * sizeof(T) / 4;
    uint32_t word[words];
};

// RUN (8, 4 or 1) of them can be loaded at once; `columns` are there.
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
        if constexpr (run_words == 4) {
            const uint4 v = __ldg(reinterpret_cast<const uint4 *>(from + at));
            word[0] = v.x, word[1] = v.y, word[2] = v.z, word[3] = v.w;
        } else if constexpr (run_words == 2) {
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
template <class T, int THREADS, int RUN, int WIDTH_LOG2> struct weight_copier {
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
        for (int i = 0; i < at_once; ++i, item += THREADS) {
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
        for (int i = 0; i < at_once; ++i, item += THREADS) {
            if (!there(item)) return;
            const int d = item >> rows_log2, row = item & ((1 << rows_log2) - 1);
            const uint32_t plane = to + d * plane_bytes;
#pragma unroll
            for (int c = 0; c < window_columns / 2; ++c) {
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
// False: some feature that this thread loaded is not finite.
template <class X, class B, class T, int RUN, int WIDTH_LOG2>
__device__ __forceinline__ bool load_wedge(const pool_params &p, const spops_bev_wedge &w,
                                           int32_t col, uint32_t features, uint32_t weights)
{
    weight_copier<T, B::threads, RUN, WIDTH_LOG2> copier(p, w);
    finite_check<typename row_words<X>::half_type> check;
    int item = (int)threadIdx.x;
    copier.load(item);
    load_features<X, B, WIDTH_LOG2>(p, w, col, features, check);
    while (copier.there(item)) {
        copier.store(item, weights);
        item += copier.at_once * B::threads;
        copier.load(item);
    }
    return check.finite();
}
template <class X, class B, class T, int RUN>
__device__ __forceinline__ bool load_wedge(const pool_params &p, const spops_bev_wedge &w,
                                           int32_t col, uint32_t features, uint32_t weights)
{
    switch (p.tile_width_log2) {
    case 0: return load_wedge<X, B, T, RUN, 0>(p, w, col, features, weights);
    case 1: return load_wedge<X, B, T, RUN, 1>(p, w, col, features, weights);
    default: return load_wedge<X, B, T, RUN, 2>(p, w, col, features, weights);
    }
}
template <class X, class B, class T>
__device__ __forceinline__ bool load_wedge(const pool_params &p, const spops_bev_wedge &w,
                                           int32_t col, uint32_t features, uint32_t weights)
{
    switch (p.depth_run) {
    case 1: return load_wedge<X, B, T, 1>(p, w, col, features, weights);
    case 4: return load_wedge<X, B, T, 4>(p, w, col, features, weights);
    default: return load_wedge<X, B, T, 8>(p, w, col, features, weights);
    }
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

// As one store: the compiler would rather make four of some than move their registers.
__device__ __forceinline__ void store_global4(float *to, float a, float b, float c, float d)
{
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c),
                 "f"(d)
                 : "memory");
}

// COLS columns of 16 parts. H: what features and weights are in shared memory, f16 or bf16.
template <class H, int COLS> struct bundle_sums {
    typedef wedge_layout<COLS> layout;
    typedef channel_order<COLS> order;
    static constexpr int chunks = layout::chunks;

    const pool_params &p;
    const int num_depths, tile_bytes;
    const int32_t col; // first column
    const int lane, g, q;
    uint32_t matrix, weights; // in shared memory: where this lane loads matrices, and weights
    float sum[chunks][4];

    __device__ __forceinline__ bundle_sums(const pool_params &params, const spops_bev_wedge &w,
                                           int32_t column, uint32_t features_at,
                                           uint32_t weights_at)
        : p(params), num_depths(w.num_depths),
          tile_bytes(layout::tile_bytes(params.tile_width_log2)), col(column),
          lane((int)(threadIdx.x % warp)), g(lane / 4), q(lane % 4),
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
        const uint32_t from = matrix + tile * tile_bytes;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int c = 0; c < chunks; c += 2) {
                uint32_t b[4];
                load_transposed(b, from + half * 16 * layout::pitch + layout::chunk_at(c));
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

    // Rows of a shared bundle (channel_order::part_place).
    __device__ __forceinline__ void store_parts(const int32_t (&row)[2]) const
    {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float *to = p.parts + (int64_t)row[r] * p.part_cols + col + q * 4;
#pragma unroll
            for (int c = 0; c < chunks; c += 2)
                if (row[r] >= 0 && col + order::first_channel(c / 4 * 4, q) < p.cols)
                    store_global4(to + c * chunk_cols, sum[c][2 * r], sum[c][2 * r + 1],
                                  sum[c + 1][2 * r], sum[c + 1][2 * r + 1]);
        }
    }

    // Rows of the output.
    template <class T> __device__ __forceinline__ void store(const int32_t (&row)[2])
    {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            uint8_t *const to = p.out + (int64_t)row[r] * p.out_stride;
#pragma unroll
            for (int c = 0; c < order::grouped; c += 4)
                store_group<T, 8>(to, row[r] >= 0, c, r);
            if constexpr (order::grouped < chunks)
                store_group<T, 4>(to, row[r] >= 0, order::grouped, r);
        }
    }
    // What this lane has of the group of chunks from c on.
    template <class T, int CHANNELS>
    __device__ __forceinline__ void store_group(uint8_t *to, bool there, int c, int r) const
    {
        const int32_t at = col + order::first_channel(c, q);
        float v[CHANNELS];
        uint32_t word[CHANNELS * sizeof(T) / 4];
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i)
            v[i] = sum[c + i / 2][2 * r + i % 2];
        pack_values<T>(v, word); // before the branch, which costs less
        if (there && at < p.cols) store_aligned(to + at * sizeof(T), word);
    }
    __device__ __forceinline__ void store(const int32_t (&row)[2], float scale)
    {
        if (scale != 1.0f) {
#pragma unroll
            for (int c = 0; c < chunks; ++c) {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    sum[c][i] *= scale;
            }
        }
        switch (p.out_dtype) {
        case SPOPS_DTYPE_F16: return store<f16>(row);
        case SPOPS_DTYPE_BF16: return store<bf16>(row);
        case SPOPS_DTYPE_F32: return store<float>(row);
        case SPOPS_DTYPE_F8E4M3: return store<f8e4m3>(row);
        default: return store<f8e5m2>(row);
        }
    }
};

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

// A bundle's rows, term by term, with nothing from pixels outside a cell.
template <class H, int COLS>
__device__ __noinline__ void store_apart(const pool_params &p, const bundle_place at, int32_t col,
                                         float scale)
{
    typedef wedge_layout<COLS> layout;
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
                const uint32_t pixels = at.features + tile * layout::tile_bytes(p.tile_width_log2) +
                                        channel_order<COLS>::byte_of(c);
                const uint32_t plane = at.weights + (tile * at.num_depths + depth) * plane_bytes;
                for (uint32_t mask = span.y; mask != 0; mask &= mask - 1) {
                    const int k = __ffs((int)mask) - 1;
                    total += load_element<H>(plane + pair_place(k / 2) * 4 + k % 2 * 2) *
                             load_element<H>(pixels + k * layout::pitch);
                }
            }
            if (at.shared) {
                p.parts[(int64_t)row * p.part_cols + col + channel_order<COLS>::part_place(c)] =
                    total;
            } else {
                const float v[1] = {total * scale};
                store_row<false>(p.out_dtype, p.out + (int64_t)row * p.out_stride, col + c, 1, v);
            }
        }
    }
}

template <class X, class B>
__global__ void __launch_bounds__(B::threads, B::held)
    pool_kernel(const __grid_constant__ pool_params p)
{
    constexpr int warps = B::warps, COLS = B::cols;
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
    const bool turned = p.turned && blockIdx.y % 2 != 0;
    const spops_bev_wedge *its = p.wedges + (turned ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    words[0] = __ldg(reinterpret_cast<const int4 *>(its));
    words[1] = __ldg(reinterpret_cast<const int4 *>(its) + 1);
    const spops_bev_wedge w = wedge;
    copy_plan<B::threads>(all_spans, p.spans + (int64_t)w.first_step * bundle_parts,
                          w.num_steps * bundle_parts * (int)sizeof(spops_bev_span));
    copy_plan<B::threads>(all_rows, p.rows + (int64_t)w.first_bundle * bundle_parts,
                          w.num_bundles * bundle_parts * (int)sizeof(int32_t));
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < w.num_bundles; i += B::threads)
        copy_async<8>(bundles + i * 8, p.bundles + w.first_bundle + i, 1u);
    if (threadIdx.x == 0) next_bundle = max((int)w.num_shared, warps);
    walk_wait_previous(); // weights and features may come from the kernel before
    walk_release_next();  // not sooner: the next one clears cells before it waits

    close_copies();
    const loaded_scales scales = load_scales(p.feat_scale, p.depth_scale, p.out_scale);
    const bool loaded = sizeof(X) == 2 || p.depth_dtype == SPOPS_DTYPE_F16
                            ? load_wedge<X, B, uint16_t>(p, w, col, features, weights)
                            : load_wedge<X, B, uint8_t>(p, w, col, features, weights);
    const float scale = scales.product();
    wait_copies<0>();
    const bool finite = __syncthreads_and(loaded);
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
        if (!finite) {
            next = b + warps;
            const bundle_place place = {features,     weights,           spans,    rows,
                                        w.num_depths, (int32_t)bundle.y, is_shared};
            store_apart<H, COLS>(p, place, col, scale);
            continue;
        }
        sums.add_steps(spans, (int)bundle.y);
        next = is_shared && b + warps < w.num_shared ? b + warps : take(); // while sums are stored
        if (is_shared)
            sums.store_parts(row);
        else
            sums.store(row, scale);
    }
}

// ---- Shared and empty cells ---------------------------------------------------------------------

constexpr int finish_threads = 256;

struct finish_params {
    const spops_bev_shared_cell *shared_cells;
    int32_t num_shared_cells;
    int32_t block_cells;    // shared cells of a block
    uint32_t items_inverse; // threads of a shared cell: tid / threads by a multiplication
    int32_t clear_blocks;   // before those of shared cells
    const uint32_t *covered;
    int64_t num_cells;
    const float *parts;
    int32_t part_cols, cols;
    int32_t pool_cols; // of a block that pools
    int32_t items;     // groups of four columns in a part
    uint8_t *out;
    int64_t out_stride;
    int32_t out_dtype;
    const float *feat_scale, *depth_scale, *out_scale;
};

// Rows of cells that no span is in: 32 cells a warp, 16 bytes a lane.
__device__ void clear_cells(const finish_params &p, int32_t block)
{
    __shared__ int32_t empty_cells[finish_threads];
    const int lane = (int)(threadIdx.x % warp);
    const int64_t word = (int64_t)block * (finish_threads / warp) + threadIdx.x / warp;
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

__device__ __forceinline__ void store_shared_cell(const finish_params &p, uint8_t *row, int at,
                                                  const float4 &v)
{
    const float values[4] = {v.x, v.y, v.z, v.w};
    store_row<true>(p.out_dtype, row, at, 4, values);
}

__device__ __forceinline__ void add_parts(float4 &total, const float4 &v)
{
    total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
}

__global__ void __launch_bounds__(finish_threads)
    finish_kernel(const __grid_constant__ finish_params p)
{
    walk_release_next();
    if ((int32_t)blockIdx.x < p.clear_blocks) {
        // Every kernel before the one that pools has ended: that one waited before it released this
        // one.
        clear_cells(p, (int32_t)blockIdx.x);
        walk_wait_previous(); // whoever waits for this kernel waits for that one too
        return;
    }
    // A thread adds up four columns of a cell; of wide rows, every so many.
    const int32_t sub = (int32_t)(threadIdx.x * p.items_inverse >> 16);
    const int32_t m = ((int32_t)blockIdx.x - p.clear_blocks) * p.block_cells + sub;
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
    const int32_t sub_threads = min(p.items, finish_threads);
    for (int32_t item = (int32_t)threadIdx.x - sub * sub_threads; item < p.items;
         item += finish_threads) {
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
        const int32_t at = channel_of_item(item, p.pool_cols);
        if (at < p.cols) store_shared_cell(p, out, at, total);
    }
}

// ---- Launching ----------------------------------------------------------------------------------

// Columns of a window that one load can have: all of them, half or one.
int32_t depth_run(int32_t width, const spops_matrix &depth)
{
    for (int32_t run = window_columns; run > 1; run -= 4)
        if (width % run == 0 &&
            (uint64_t)(uintptr_t)depth.data % (uint64_t)spops_elements_bytes(depth.dtype, run) == 0)
            return run;
    return 1;
}

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
    p.depth_run = depth_run(p.width, depth);
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

int shared_bytes(const pool_params &p, int columns)
{
    if (columns == 80) return wedge_layout<80>(p).bytes;
    return columns == 128 ? wedge_layout<128>(p).bytes : wedge_layout<64>(p).bytes;
}

// What a multiprocessor can give each of so many blocks; a kilobyte of a block's is the driver's.
int shared_bytes_of(const spops_context *ctx, int blocks)
{
    return ctx->processor_shared_bytes / blocks - (1 << 10);
}

// Blocks that share a wedge's columns.
int32_t rounds(const pool_params &p, int columns)
{
    return (p.cols + columns - 1) / columns;
}

template <class X, class B>
spops_status launch_pool(spops_context *ctx, const pool_params &p, int32_t num_wedges, int bytes)
{
    const dim3 grid((unsigned)num_wedges, (unsigned)rounds(p, B::cols));
    return launch_shared<WAITS_FOR_PREVIOUS>(ctx, "bev_spans: pool", pool_kernel<X, B>, grid,
                                             B::threads, (size_t)bytes, p);
}

// Two blocks of eight warps a multiprocessor, where there is nothing better.
template <class X, int COLS>
spops_status launch_pool(spops_context *ctx, pool_params p, int32_t num_wedges)
{
    const int bytes = shared_bytes(p, COLS);
    const int64_t blocks = (int64_t)num_wedges * rounds(p, COLS);
    const int32_t processors = ctx->info.num_processors;
    const bool two_fit = bytes <= shared_bytes_of(ctx, 2);
    if constexpr (COLS == 128) {
        // Two do not fit: one with more warps.
        if (!two_fit) return launch_pool<X, pool_block<COLS, 12>>(ctx, p, num_wedges, bytes);
    } else {
        // Four fit, and two would leave blocks that begin to load when others have ended.
        if (bytes <= shared_bytes_of(ctx, 4) && blocks > 2 * processors)
            return launch_pool<X, pool_block<COLS, 5>>(ctx, p, num_wedges, bytes);
    }
    // No more blocks than multiprocessors should have one each. But they start early, and those
    // that are done with the kernel before might get two: each asks for so much that no second one
    // fits. Otherwise a multiprocessor's two blocks should have about equally much to do together.
    p.turned = num_wedges <= processors && two_fit;
    return launch_pool<X, pool_block<COLS, 8>>(
        ctx, p, num_wedges,
        blocks <= processors ? std::max(bytes, shared_bytes_of(ctx, 2) + 1) : bytes);
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
    p.pool_cols = columns_of(pool.cols);
    p.items = std::min(p.part_cols, rounds(pool, p.pool_cols) * p.pool_cols) / 4;
    const int32_t items = std::min(p.items, finish_threads);
    p.block_cells = finish_threads / items;
    p.items_inverse = (uint32_t)((65536 + items - 1) / items);
    const int32_t shared_blocks = (p.num_shared_cells + p.block_cells - 1) / p.block_cells;
    p.clear_blocks = (int32_t)blocks_for(args->num_cells, finish_threads).x;
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
    const dim3 blocks((unsigned)(p.clear_blocks + shared_blocks));
    // It clears before it waits, which only the kernel that pools makes safe.
    if (s.host_counts.num_wedges == 0)
        return launch(ctx, "bev_spans: finish", finish_kernel, blocks, finish_threads, p);
    return launch<WAITS_FOR_PREVIOUS>(ctx, "bev_spans: finish", finish_kernel, blocks,
                                      finish_threads, p);
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
    return shared_bytes(params_of(args), columns_of((int32_t)feat.cols)) <= ctx->block_shared_bytes;
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
