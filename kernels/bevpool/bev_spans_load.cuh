// SPDX-License-Identifier: Apache-2.0
// How a block loads a wedge: its part of the plan, its features and its weights.
#ifndef SPOPS_KERNELS_BEVPOOL_BEV_SPANS_LOAD_CUH
#define SPOPS_KERNELS_BEVPOOL_BEV_SPANS_LOAD_CUH

#include "kernels/bevpool/bev_spans_layout.cuh"
#include "kernels/core/float8.cuh"
#include "kernels/core/matrix_units.cuh"

namespace spops::pool
{

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

// Zeros plus zeros times a word of two f16 or bf16: zeros again if both are finite.
__device__ __forceinline__ void add_zeros(f16, uint32_t &zeros, uint32_t word)
{
    asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(zeros) : "r"(word), "r"(0u));
}
__device__ __forceinline__ void add_zeros(bf16, uint32_t &zeros, uint32_t word)
{
#if __CUDA_ARCH__ >= 800
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(zeros) : "r"(word), "r"(0u));
#else // no arithmetic in bf16; plans have no spans there
    zeros |= (word & 0x7f80u) == 0x7f80u || (word & 0x7f800000u) == 0x7f800000u;
#endif
}

// Whether all words were finite.
template <class H> struct finite_check {
    uint32_t zeros = 0;

    __device__ __forceinline__ void add(uint32_t word) { add_zeros(H(), zeros, word); }
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
            store_shared4(to, make_uint4(word[i], word[2 + i], word[4 + i], word[6 + i]));
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

// Weights of eight neighbouring columns of a row, as they are read: words of two of 16 bits, or, in
// the first half, of four codes of 8.
struct weight_row {
    uint32_t word[window_columns / 2];
};

// RUN (8, 4 or 1) of them can be loaded at once; `columns` are there.
template <class T, int RUN>
__device__ __forceinline__ void load_row(weight_row &row, const T *from, int columns)
{
    constexpr int word_columns = 4 / sizeof(T), run_words = RUN / word_columns;
    if constexpr (RUN < word_columns) {
#pragma unroll
        for (int i = 0; i < window_columns / word_columns; ++i)
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
//
// X says which weights there can be: of 16 bits, and beside narrow features of 8. Which there are,
// and how many one load can have, is asked at each of the two steps, so that what lies between is
// compiled once.
template <class X, int THREADS, int WIDTH_LOG2> struct weight_copier {
    static constexpr int at_once = 4, rows_apart = WIDTH_LOG2 == 0 ? 2 : 1;
    static constexpr int rows_log2 = WIDTH_LOG2 == 2 ? 3 : 4; // a thread's rows at one depth
    const pool_params &p;
    const spops_bev_wedge &w;
    weight_row upper[at_once], lower[at_once];

    __device__ __forceinline__ weight_copier(const pool_params &params,
                                             const spops_bev_wedge &wedge)
        : p(params), w(wedge)
    {
    }
    __device__ __forceinline__ bool there(int item) const
    {
        return item >> rows_log2 < w.num_depths;
    }
    __device__ __forceinline__ bool has_codes() const
    {
        return sizeof(X) == 1 && p.depth_dtype != SPOPS_DTYPE_F16;
    }

    template <class T, int RUN> __device__ __forceinline__ void load_as(int item)
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
    template <class T> __device__ __forceinline__ void load_as(int item)
    {
        switch (p.depth_run) {
        case 1: return load_as<T, 1>(item);
        case 4: return load_as<T, 4>(item);
        default: return load_as<T, 8>(item);
        }
    }
    __device__ __forceinline__ void load(int item)
    {
        if (has_codes())
            load_as<uint8_t>(item);
        else
            load_as<uint16_t>(item);
    }

    // Columns 2 c and 2 c + 1 of a row, as f16 or bf16.
    template <class T>
    __device__ __forceinline__ uint32_t pair_of(const weight_row &row, int c) const
    {
        if constexpr (sizeof(T) == 2) {
            return row.word[c];
        } else {
            const uint32_t codes = row.word[c / 2] >> 16 * (c % 2) & 0xffffu;
            return p.depth_dtype == SPOPS_DTYPE_F8E4M3 ? widen2(f8e4m3(), codes)
                                                       : widen2(f8e5m2(), codes);
        }
    }
    template <class T> __device__ __forceinline__ void store_as(int item, uint32_t to) const
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
                const uint32_t a = pair_of<T>(upper[i], c);
                if constexpr (WIDTH_LOG2 == 0) {
                    const uint32_t b = pair_of<T>(lower[i], c);
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
    __device__ __forceinline__ void store(int item, uint32_t to) const
    {
        if (has_codes())
            store_as<uint8_t>(item, to);
        else
            store_as<uint16_t>(item, to);
    }
};

// Everything that a wedge's bundles read, in the order in which one waits for another the least.
// False: some feature that this thread loaded is not finite.
template <class X, class B, int WIDTH_LOG2>
__device__ __forceinline__ bool load_wedge(const pool_params &p, const spops_bev_wedge &w,
                                           int32_t col, uint32_t features, uint32_t weights)
{
    weight_copier<X, B::threads, WIDTH_LOG2> copier(p, w);
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
template <class X, class B>
__device__ __forceinline__ bool load_wedge(const pool_params &p, const spops_bev_wedge &w,
                                           int32_t col, uint32_t features, uint32_t weights)
{
    switch (p.tile_width_log2) {
    case 0: return load_wedge<X, B, 0>(p, w, col, features, weights);
    case 1: return load_wedge<X, B, 1>(p, w, col, features, weights);
    default: return load_wedge<X, B, 2>(p, w, col, features, weights);
    }
}

} // namespace spops::pool

#endif
