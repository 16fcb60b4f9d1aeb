// SPDX-License-Identifier: Apache-2.0
// Quantising on the GPU: a thread has 16 neighbouring columns, which are a block of an f4e2m1 row.
// The same operations in the same order as quantize_cpu.c, none of which can be contracted.
#include "core/matrix.h"
#include "kernels/core/float8.cuh"
#include "kernels/core/with_dtype.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/scan.cuh"
#include "quantize/quantize_args.h"
#include "spops/device/grid_dependency.cuh"

namespace
{

using namespace spops;

constexpr int threads = 256;
constexpr int chunk = SPOPS_BLOCK_COLS;
constexpr float smallest = 0x1p-126f; // scale
constexpr unsigned quantized_dtypes = SPOPS_DTYPES_NARROW | 1u << SPOPS_DTYPE_I8;

// Bytes of 16 codes.
template <class Q> constexpr int chunk_bytes = 2 * row_words<Q>::bits;

struct quantize_params {
    int64_t rows, cols, chunks_per_row;
    void *x;
    int64_t x_stride;
    uint8_t *q;
    int64_t q_stride; // bytes
    uint8_t *block_scales;
    int64_t block_scales_stride;
    const float *scale;
};

// Two numbers as codes, as float8.cuh has it.
__device__ __forceinline__ uint32_t narrow2(int8_t, float low, float high)
{
    return (uint32_t)(uint8_t)spops_i8_of_float(low) | (uint32_t)(uint8_t)spops_i8_of_float(high)
                                                           << 8;
}

// ---- Codes --------------------------------------------------------------------------------------

// Bytes of a chunk's codes as little-endian words.
template <class Q> struct codes16 {
    uint32_t words[chunk_bytes<Q> / 4];

    // The first n bytes, at once where `wide`.
    __device__ __forceinline__ void load(const uint8_t *from, bool wide, int n)
    {
        if (wide && n == chunk_bytes<Q>) {
            if constexpr (chunk_bytes<Q> == 16)
                *reinterpret_cast<uint4 *>(words) = *reinterpret_cast<const uint4 *>(from);
            else
                *reinterpret_cast<uint2 *>(words) = *reinterpret_cast<const uint2 *>(from);
            return;
        }
#pragma unroll
        for (int i = 0; i < chunk_bytes<Q>; ++i) {
            const uint32_t byte = i < n ? from[i] : 0u;
            words[i / 4] = i % 4 == 0 ? byte : words[i / 4] | byte << i % 4 * 8;
        }
    }
    __device__ __forceinline__ void store(uint8_t *to, bool wide, int n) const
    {
        if (wide && n == chunk_bytes<Q>) {
            if constexpr (chunk_bytes<Q> == 16)
                *reinterpret_cast<uint4 *>(to) = make_uint4(words[0], words[1], words[2], words[3]);
            else
                *reinterpret_cast<uint2 *>(to) = make_uint2(words[0], words[1]);
            return;
        }
#pragma unroll
        for (int i = 0; i < chunk_bytes<Q>; ++i)
            if (i < n) to[i] = (uint8_t)(words[i / 4] >> i % 4 * 8);
    }
};

// ---- Rows ---------------------------------------------------------------------------------------

// The first n of 16 elements; the others read as 0.
template <class T>
__device__ __forceinline__ void load16(const T *from, bool wide, int n, float (&v)[chunk])
{
    if (wide && n == chunk) {
        constexpr int vec = 16 / sizeof(T);
#pragma unroll
        for (int i = 0; i < chunk; i += vec) {
            row_chunk<T, vec, true> part;
            float values[vec];
            part.load(from + i, vec);
            part.get(values);
#pragma unroll
            for (int j = 0; j < vec; ++j)
                v[i + j] = values[j];
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < chunk; ++i)
        v[i] = i < n ? to_f32(from[i]) : 0.0f;
}

template <class T>
__device__ __forceinline__ void store16(T *to, bool wide, int n, const float (&v)[chunk])
{
    if (wide && n == chunk) {
        constexpr int vec = 16 / sizeof(T);
#pragma unroll
        for (int i = 0; i < chunk; i += vec) {
            row_chunk<T, vec, true> part;
            float values[vec];
#pragma unroll
            for (int j = 0; j < vec; ++j)
                values[j] = v[i + j];
            part.set(values);
            part.store(to + i, vec);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < chunk; ++i)
        if (i < n) to[i] = from_f32<T>(v[i]);
}

struct position {
    int64_t row, col;
    int n; // columns from there that exist, at most 16
};

__device__ __forceinline__ position position_of(const quantize_params &p, int64_t i)
{
    position at;
    at.row = p.chunks_per_row == 1 ? i : i / p.chunks_per_row;
    at.col = (i - at.row * p.chunks_per_row) * chunk;
    at.n = p.cols - at.col < chunk ? (int)(p.cols - at.col) : chunk;
    return at;
}

// ---- Scale --------------------------------------------------------------------------------------

// The bits of non-negative floats are in their order, so that a maximum needs no order of its own.
template <class T>
__global__ void __launch_bounds__(threads)
    amax_kernel(const __grid_constant__ quantize_params p, bool wide, uint32_t *largest)
{
    __shared__ uint32_t of_warp[threads / 32];
    const int64_t n = p.rows * p.chunks_per_row;
    uint32_t most = 0;
    for (int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * threads) {
        const position at = position_of(p, i);
        float v[chunk];
        load16(static_cast<const T *>(p.x) + at.row * p.x_stride + at.col, wide, at.n, v);
#pragma unroll
        for (int c = 0; c < chunk; ++c) {
            const uint32_t magnitude = __float_as_uint(v[c]) & 0x7fffffffu;
            most = magnitude < 0x7f800000u && magnitude > most ? magnitude : most;
        }
    }
    most = warp_max(most);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < threads / 32; ++i)
        most = of_warp[i] > most ? of_warp[i] : most;
    if (most > 0) atomicMax(largest, most);
}

// From the largest magnitude's bits, in place.
__global__ void scale_kernel(float *scale, float largest_code)
{
    const float largest = *scale, s = __fdiv_rn(largest, largest_code);
    *scale = largest == 0.0f ? 1.0f : s < smallest ? smallest : s;
}

// ---- Quantise -----------------------------------------------------------------------------------

template <class T, class Q>
__global__ void __launch_bounds__(threads)
    quantize_kernel(const __grid_constant__ quantize_params p, bool wide)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i >= p.rows * p.chunks_per_row) return;
    grid_launch_dependents();
    grid_dependency_wait();
    const position at = position_of(p, i);
    const float scale = p.scale != nullptr ? __ldg(p.scale) : 1.0f;
    float v[chunk];
    codes16<Q> codes;
    load16(static_cast<const T *>(p.x) + at.row * p.x_stride + at.col, wide, at.n, v);
    if constexpr (chunk_bytes<Q> == 16) {
#pragma unroll
        for (int c = 0; c < chunk; c += 4)
            codes.words[c / 4] =
                narrow2(Q(), __fdiv_rn(v[c], scale), __fdiv_rn(v[c + 1], scale)) |
                narrow2(Q(), __fdiv_rn(v[c + 2], scale), __fdiv_rn(v[c + 3], scale)) << 16;
        codes.store(p.q + at.row * p.q_stride + at.col, wide, at.n);
    } else {
        uint32_t most = 0; // infinity comes before all numbers, NaN before that
#pragma unroll
        for (int c = 0; c < chunk; ++c) {
            const uint32_t magnitude = __float_as_uint(v[c]) & 0x7fffffffu;
            most = magnitude > most ? magnitude : most;
        }
        const uint8_t s = spops_f8e4m3_of_float(
            __fdiv_rn(__fdiv_rn(__uint_as_float(most), scale), SPOPS_F4E2M1_MAX));
        const float decoded = spops_float_of_f8e4m3(s), divisor = __fmul_rn(decoded, scale);
#pragma unroll
        for (int w = 0; w < chunk / 8; ++w) {
            uint32_t word = 0;
#pragma unroll
            for (int c = 0; c < 8; ++c)
                word |= (uint32_t)spops_f4e2m1_of_float(__fdiv_rn(v[8 * w + c], divisor)) << 4 * c;
            codes.words[w] = decoded > 0.0f ? word : 0u; // neither 0 nor NaN
        }
        codes.store(p.q + at.row * p.q_stride + at.col / 2, wide, at.n / 2);
        p.block_scales[at.row * p.block_scales_stride + at.col / chunk] = s;
    }
}

// ---- Dequantise ---------------------------------------------------------------------------------

#define DECODE(NAME, name, bits, c_type, device_type)                                              \
    __device__ __forceinline__ float decode(device_type, uint32_t code)                            \
    {                                                                                              \
        return spops_float_of_##name((uint8_t)code);                                               \
    }
#define SPOPS_DTYPE_FLOAT8 DECODE
#define SPOPS_DTYPE_FLOAT4 DECODE
#include "core/dtypes.def"
#undef DECODE
__device__ __forceinline__ float decode(int8_t, uint32_t code)
{
    return (float)(int8_t)code;
}

// A whole chunk to f16, which holds every code and its product with a block's scale.
template <class Q>
__device__ __forceinline__ void widen_chunk(const quantize_params &p, const position &at)
{
    typedef row_words<Q> words;
    const uint8_t *from = p.q + at.row * p.q_stride + at.col * words::bits / 8;
    const uint32_t scale = widen_scale(
        load_scale<Q>(p.block_scales + at.row * p.block_scales_stride + at.col / chunk, 0));
    uint4 *to = reinterpret_cast<uint4 *>(static_cast<f16 *>(p.x) + at.row * p.x_stride + at.col);
#pragma unroll
    for (int c = 0; c < chunk; c += 8)
        to[c / 8] = words::widen8(words::template load8<true>(from, c, 8), scale);
}

template <class T, class Q>
__global__ void __launch_bounds__(threads)
    dequantize_kernel(const __grid_constant__ quantize_params p, bool wide)
{
    constexpr int per_word = chunk / (chunk_bytes<Q> / 4), code_bits = 32 / per_word;
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i >= p.rows * p.chunks_per_row) return;
    grid_launch_dependents();
    grid_dependency_wait();
    const position at = position_of(p, i);
    if constexpr (std::is_same<T, f16>::value && !std::is_same<Q, int8_t>::value) {
        if (p.scale == nullptr && wide && at.n == chunk) return widen_chunk<Q>(p, at);
    }
    const float scale = p.scale != nullptr ? __ldg(p.scale) : 1.0f;
    float v[chunk], block_scale = 1.0f;
    codes16<Q> codes;
    if constexpr (chunk_bytes<Q> == 8)
        block_scale =
            spops_float_of_f8e4m3(p.block_scales[at.row * p.block_scales_stride + at.col / chunk]);
    codes.load(p.q + at.row * p.q_stride + at.col * code_bits / 8, wide, at.n * code_bits / 8);
#pragma unroll
    for (int c = 0; c < chunk; ++c) {
        const uint32_t code = codes.words[c / per_word] >> c % per_word * code_bits;
        v[c] = __fmul_rn(__fmul_rn(block_scale, decode(Q(), code)), scale);
    }
    store16(static_cast<T *>(p.x) + at.row * p.x_stride + at.col, wide, at.n, v);
}

// ---- Launching ----------------------------------------------------------------------------------

bool is_dense(spops_matrix m)
{
    return m.rows <= 1 || m.row_stride == m.cols;
}

// Whether every chunk of 16 columns begins on `alignment` bytes.
bool is_aligned(spops_matrix m, size_t alignment)
{
    const size_t stride =
        m.rows > 1 ? (size_t)spops_elements_bytes(m.dtype, m.row_stride) : (size_t)0;
    return (uintptr_t)m.data % alignment == 0 && stride % alignment == 0;
}

quantize_params params_of(spops_matrix x, spops_matrix q, spops_matrix block_scales,
                          const float *scale)
{
    const bool blocks = block_scales.data != nullptr;
    // Rows without gaps count as one, unless they begin with a block of their own.
    const bool one_row = !blocks && is_dense(x) && (q.data == nullptr || is_dense(q));
    quantize_params p = {};
    p.rows = one_row ? 1 : x.rows;
    p.cols = one_row ? x.rows * x.cols : x.cols;
    p.chunks_per_row = (p.cols + chunk - 1) / chunk;
    p.x = x.data;
    p.x_stride = one_row ? 0 : x.row_stride;
    p.q = static_cast<uint8_t *>(q.data);
    p.q_stride = one_row ? 0 : spops_elements_bytes(q.dtype, q.row_stride);
    p.block_scales = static_cast<uint8_t *>(block_scales.data);
    p.block_scales_stride = block_scales.row_stride;
    p.scale = scale;
    return p;
}

} // namespace

extern "C" spops_status spops_cuda_quantize_scale(spops_context *ctx,
                                                  const spops_quantize_scale_args *args)
{
    const quantize_params p = params_of(args->x, spops_matrix(), spops_matrix(), nullptr);
    const int64_t n = args->x.cols > 0 ? p.rows * p.chunks_per_row : 0;
    const int64_t most_blocks = (int64_t)ctx->info.num_processors * 8;
    dim3 grid = blocks_for(n < most_blocks * threads ? n : most_blocks * threads, threads);
    SPOPS_TRY(spops_cuda_status(ctx, "quantize_scale: cudaMemsetAsync",
                                cudaMemsetAsync(args->scale, 0, sizeof(float), stream_of(ctx))));
    SPOPS_TRY(with_dtype(args->x.dtype, [&](auto tag) {
        return launch(ctx, "quantize_scale: launch", amax_kernel<typename decltype(tag)::type>,
                      grid, threads, p, is_aligned(args->x, 16),
                      reinterpret_cast<uint32_t *>(args->scale));
    }));
    return launch(ctx, "quantize_scale: launch", scale_kernel, dim3(1), 1, args->scale,
                  spops_largest_narrow(args->dtype));
}

extern "C" spops_status spops_cuda_quantize(spops_context *ctx, const spops_quantize_args *args)
{
    const quantize_params p = params_of(args->x, args->q, args->block_scales, args->scale);
    const dim3 grid = blocks_for(p.rows * p.chunks_per_row, threads);
    return with_dtype(args->x.dtype, [&](auto tag) {
        return with_dtype<quantized_dtypes>(args->q.dtype, [&](auto codes) {
            typedef typename decltype(codes)::type Q;
            return launch(ctx, "quantize: launch", quantize_kernel<typename decltype(tag)::type, Q>,
                          grid, threads, p,
                          is_aligned(args->x, 16) && is_aligned(args->q, chunk_bytes<Q>));
        });
    });
}

extern "C" spops_status spops_cuda_dequantize(spops_context *ctx, const spops_quantize_args *args)
{
    const quantize_params p = params_of(args->x, args->q, args->block_scales, args->scale);
    const dim3 grid = blocks_for(p.rows * p.chunks_per_row, threads);
    return with_dtype(args->x.dtype, [&](auto tag) {
        return with_dtype<quantized_dtypes>(args->q.dtype, [&](auto codes) {
            typedef typename decltype(codes)::type Q;
            return launch<WAITS_FOR_PREVIOUS>(
                ctx, "dequantize: launch", dequantize_kernel<typename decltype(tag)::type, Q>, grid,
                threads, p, is_aligned(args->x, 16) && is_aligned(args->q, chunk_bytes<Q>));
        });
    });
}
