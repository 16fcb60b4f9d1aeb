// SPDX-License-Identifier: Apache-2.0
// How a warp pools a bundle that its block has in shared memory, and where the sums go.
//
// Operands of a multiplication (kernels/core/matrix_units.cuh), for lane = 4 g + q:
//     a      weights of parts g, g + 8; of each 16 pixels 2 q, 2 q + 1, 2 q + 8, 2 q + 9
//     b      features of these pixels; channel g of a chunk
//     sum    parts g, g + 8; channels 2 q, 2 q + 1 of a chunk
#ifndef SPOPS_KERNELS_BEVPOOL_BEV_SPANS_SUMS_CUH
#define SPOPS_KERNELS_BEVPOOL_BEV_SPANS_SUMS_CUH

#include "kernels/bevpool/bev_spans_load.cuh"

namespace spops::pool
{

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
        constexpr unsigned stored = (unsigned)SPOPS_DTYPES_FLOAT | (unsigned)SPOPS_DTYPES_FLOAT8;
        with_device_dtype<stored>(
            p.out_dtype, [&](auto tag) { this->store<typename decltype(tag)::type>(row); });
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

} // namespace spops::pool

#endif
