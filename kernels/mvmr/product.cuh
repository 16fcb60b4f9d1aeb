// SPDX-License-Identifier: Apache-2.0
// A product of small matrices by one block: 64 x 64 sums in registers, over a depth that goes
// through shared memory. Operands are rows found one by one (gathered rows, rows of a matrix),
// whose neighbouring elements lie along the depth or across it.
//
//     ENGINE_UNITS   f16 or bf16 by matrix units (mma.m16n8k16); sm_80 and later
//     ENGINE_TF32    f32 rounded to tf32, by matrix units (mma.m16n8k8); sm_80 and later
//     ENGINE_F32     anything, in f32, by plain multiply-adds
//
// With VEC = 1 elements are loaded one by one, whatever their place; else 16 bytes at a time, from
// rows that begin on a multiple of 16 bytes. Loads of the next step run while this one is
// multiplied.
#ifndef SPOPS_KERNELS_MVMR_PRODUCT_CUH
#define SPOPS_KERNELS_MVMR_PRODUCT_CUH

#include "kernels/core/matrix_units.cuh"
#include "kernels/mvmr/mvmr_tuning.h"

namespace spops
{

enum product_engine { ENGINE_F32, ENGINE_TF32, ENGINE_UNITS };

constexpr int product_threads = 128;
constexpr int product_rows = SPOPS_CUDA_BLOCK_ROWS, product_cols = SPOPS_CUDA_BLOCK_COLS;

__host__ __device__ constexpr int max_tile_rows()
{
    int most = 0;
#define SPOPS_TILE(number, rows) most = rows > most ? rows : most;
    SPOPS_MVMR_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    return most;
}
static_assert(product_rows == 64 && product_cols == 64, "four warps of 32 x 32 sums");

// Of sums in shared memory: 8 floats between rows spread the rows of a product over the banks.
constexpr int sums_stride = product_cols + 8;

__device__ __forceinline__ float round_tf32(float v)
{
#if __CUDA_ARCH__ >= 800
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
    return __uint_as_float(bits);
#else
    return v;
#endif
}

// The rows of an operand: `const T *operator()(int r)`, the first element of row r or null, and
// `float scale(int r)`, a factor of its elements, read where `scaled` is true. Here without one.
template <class F> struct plain_rows {
    F f;
    static constexpr bool scaled = false;
    __device__ __forceinline__ auto operator()(int r) const { return f(r); }
    __device__ __forceinline__ float scale(int) const { return 1.0f; }
};
template <class F> __device__ __forceinline__ plain_rows<F> rows_by(F f)
{
    return {f};
}

// R rows of C neighbouring elements on their way to shared memory.
template <class T, int VEC, int R, int C> struct operand_tile {
    static constexpr int per_row = C / VEC;
    static constexpr int count = R * per_row / product_threads;
    static_assert(count * product_threads == R * per_row && C % VEC == 0, "threads share evenly");
    row_chunk<T, VEC, false> chunks[count];
    float scales[count];

    static __device__ __forceinline__ int row_of(int i)
    {
        return (int)(threadIdx.x + i * product_threads) / per_row;
    }
    static __device__ __forceinline__ int col_of(int i)
    {
        return (int)(threadIdx.x + i * product_threads) % per_row * VEC;
    }

    // Columns from `col` on, of which `cols` exist, of rows from `first` on, of which `num` exist.
    template <class Rows>
    __device__ __forceinline__ void load(const Rows &rows, int64_t first, int64_t num, int64_t col,
                                         int64_t cols)
    {
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const int r = row_of(i), c = col_of(i);
            const T *p = r < num && c < cols ? rows((int)(first + r)) : nullptr;
            chunks[i].clear();
            if (p != nullptr) chunks[i].load(p + col + c, (int)(cols - c < VEC ? cols - c : VEC));
            if constexpr (Rows::scaled)
                scales[i] = p != nullptr ? rows.scale((int)(first + r)) : 0.0f;
        }
    }

    // As 16-bit elements, row by row.
    __device__ __forceinline__ void store_bits(uint16_t *to, int stride) const
    {
#pragma unroll
        for (int i = 0; i < count; ++i) {
            uint16_t *place = to + row_of(i) * stride + col_of(i);
            if constexpr (VEC > 1)
                *reinterpret_cast<uint4 *>(place) = chunks[i].word;
            else
                *place = chunks[i].word.bits;
        }
    }

    // As f32; TURNED: element (r, c) to row c, column r.
    template <bool TURNED, bool SCALED, bool TF32>
    __device__ __forceinline__ void store_f32(float *to, int stride) const
    {
#pragma unroll
        for (int i = 0; i < count; ++i) {
            float v[VEC];
            chunks[i].get(v);
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                const int r = row_of(i), c = col_of(i) + j;
                if constexpr (SCALED) v[j] *= scales[i];
                if constexpr (TF32) v[j] = round_tf32(v[j]);
                to[TURNED ? c * stride + r : r * stride + c] = v[j];
            }
        }
    }
};

// A_DEEP: rows of the left operand lie along the depth (a row is one step of it, and its elements
// are rows of the product); else they are rows of the product. B_DEEP likewise, with columns.
template <product_engine ENGINE, class T, int VEC, bool A_DEEP, bool B_DEEP> struct product {
    typedef T element;
    static constexpr bool units = ENGINE == ENGINE_UNITS;
    static constexpr int depth = units ? 32 : 16; // of a step
    // Operands of f32 have the depth as rows. Strides keep 16-byte accesses aligned and, in units,
    // the eight rows of a matrix in different banks.
    static constexpr int deep_stride = 72, long_stride = depth + 8;
    static constexpr int a_stride = units && !A_DEEP ? long_stride : deep_stride;
    static constexpr int b_stride = units && !B_DEEP ? long_stride : deep_stride;
    static constexpr int a_words =
        units ? (A_DEEP ? depth : product_rows) * a_stride / 2 : depth * a_stride;
    static constexpr int b_words =
        units ? (B_DEEP ? depth : product_cols) * b_stride / 2 : depth * b_stride;
    static constexpr int shared_words = a_words + b_words;
    static_assert(a_words % 4 == 0, "the second operand is aligned to 16 bytes");

    float sums[8][4];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < 8; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j)
                sums[i][j] = 0.0f;
    }

    // f(row, col, value, value of col + 1) for this thread's sums.
    template <class F> __device__ __forceinline__ void each(F f) const
    {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        if constexpr (ENGINE == ENGINE_F32) {
            const int row = (int)threadIdx.x / 16 * 8, col = (int)threadIdx.x % 16 * 4;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                f(row + i, col, sums[i][0], sums[i][1]);
                f(row + i, col + 2, sums[i][2], sums[i][3]);
            }
        } else {
            const int row = warp / 2 * 32 + lane / 4, col = warp % 2 * 32 + lane % 4 * 2;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                f(row + i / 4 * 16, col + i % 4 * 8, sums[i][0], sums[i][1]);
                f(row + i / 4 * 16 + 8, col + i % 4 * 8, sums[i][2], sums[i][3]);
            }
        }
    }

    // sums += a b. `rows` and `cols` of the product and `num` steps of depth exist; columns of the
    // operands begin at a_col and b_col. All threads; shared is free before and after.
    template <class RowsA, class RowsB>
    __device__ __forceinline__ void run(uint32_t *shared, const RowsA &a, int64_t a_col, int rows,
                                        const RowsB &b, int64_t b_col, int cols, int64_t num)
    {
        uint32_t *const shared_a = shared, *const shared_b = shared + a_words;
        operand_tile<T, VEC, A_DEEP ? depth : product_rows, A_DEEP ? product_rows : depth> tile_a;
        operand_tile<T, VEC, B_DEEP ? depth : product_cols, B_DEEP ? product_cols : depth> tile_b;
        const auto fetch = [&](int64_t d) {
            if constexpr (A_DEEP)
                tile_a.load(a, d, num - d, a_col, rows);
            else
                tile_a.load(a, 0, rows, a_col + d, num - d);
            if constexpr (B_DEEP)
                tile_b.load(b, d, num - d, b_col, cols);
            else
                tile_b.load(b, 0, cols, b_col + d, num - d);
        };
        if (num <= 0) return;
        fetch(0);
        for (int64_t d = 0; d < num; d += depth) {
            if constexpr (units) {
                tile_a.store_bits(reinterpret_cast<uint16_t *>(shared_a), a_stride);
                tile_b.store_bits(reinterpret_cast<uint16_t *>(shared_b), b_stride);
            } else {
                constexpr bool tf32 = ENGINE == ENGINE_TF32;
                tile_a.template store_f32<!A_DEEP, RowsA::scaled, tf32>(
                    reinterpret_cast<float *>(shared_a), a_stride);
                tile_b.template store_f32<!B_DEEP, RowsB::scaled, tf32>(
                    reinterpret_cast<float *>(shared_b), b_stride);
            }
            __syncthreads();
            if (d + depth < num) fetch(d + depth);
            if constexpr (units)
                multiply_units(shared_address(shared_a), shared_address(shared_b));
            else if constexpr (ENGINE == ENGINE_TF32)
                multiply_tf32(reinterpret_cast<const float *>(shared_a),
                              reinterpret_cast<const float *>(shared_b));
            else
                multiply_f32(reinterpret_cast<const float *>(shared_a),
                             reinterpret_cast<const float *>(shared_b));
            __syncthreads();
        }
    }

  private:
    __device__ __forceinline__ void multiply_units(uint32_t a, uint32_t b)
    {
        // Lane 8 i + r says where row r of the i-th of four 8 x 8 matrices lies.
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, r = lane % 8;
        const int odd = lane / 8 % 2 * 8, upper = lane / 16 * 8; // of the i-th
        const int row = warp / 2 * 32, col = warp % 2 * 32;
#pragma unroll
        for (int d = 0; d < depth; d += 16) {
            uint32_t left[2][4], right[2][4];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                const int at = row + m * 16;
                if constexpr (A_DEEP)
                    load_transposed(left[m], a + 2 * ((d + upper + r) * a_stride + at + odd));
                else
                    load_matrices(left[m], a + 2 * ((at + odd + r) * a_stride + d + upper));
            }
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const int at = col + n * 16;
                if constexpr (B_DEEP)
                    load_transposed(right[n], b + 2 * ((d + odd + r) * b_stride + at + upper));
                else
                    load_matrices(right[n], b + 2 * ((at + upper + r) * b_stride + d + odd));
            }
#pragma unroll
            for (int i = 0; i < 8; ++i)
                add_product(T(), sums[i], left[i / 4], right[i % 4 / 2][i % 2 * 2],
                            right[i % 4 / 2][i % 2 * 2 + 1]);
        }
    }

    __device__ __forceinline__ void multiply_tf32(const float *a, const float *b)
    {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
        const int row = warp / 2 * 32 + g, col = warp % 2 * 32 + g;
#pragma unroll
        for (int d = 0; d < depth; d += 8) {
            uint32_t left[2][4], right[4][2];
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    left[m][i] = __float_as_uint(
                        a[(d + q + i / 2 * 4) * a_stride + row + m * 16 + i % 2 * 8]);
#pragma unroll
            for (int n = 0; n < 4; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    right[n][i] = __float_as_uint(b[(d + q + i * 4) * b_stride + col + n * 8]);
#pragma unroll
            for (int i = 0; i < 8; ++i)
                add_product_tf32(sums[i], left[i / 4], right[i % 4][0], right[i % 4][1]);
        }
    }

    __device__ __forceinline__ void multiply_f32(const float *a, const float *b)
    {
        const int row = (int)threadIdx.x / 16 * 8, col = (int)threadIdx.x % 16 * 4;
#pragma unroll
        for (int d = 0; d < depth; ++d) {
            float left[8], right[4];
            *reinterpret_cast<float4 *>(&left[0]) =
                *reinterpret_cast<const float4 *>(&a[d * a_stride + row]);
            *reinterpret_cast<float4 *>(&left[4]) =
                *reinterpret_cast<const float4 *>(&a[d * a_stride + row + 4]);
            *reinterpret_cast<float4 *>(&right[0]) =
                *reinterpret_cast<const float4 *>(&b[d * b_stride + col]);
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
        }
    }
};

// ---- Rows of sums to memory ---------------------------------------------------------------------

// cols f32 sums to p, added to what is there if so wanted. n threads share the row: each takes
// chunks of VEC elements, from its `first` on.
template <int VEC, class O>
__device__ __forceinline__ void store_sums(const float *sums, O *p, int cols, bool accumulate,
                                           int first, int n)
{
    for (int c = first * VEC; c < cols; c += n * VEC) {
        row_chunk<O, VEC, false> chunk;
        float v[VEC];
#pragma unroll
        for (int j = 0; j < VEC; ++j)
            v[j] = sums[c + j];
        if (accumulate) {
            float old[VEC];
            chunk.load(p + c, cols - c);
            chunk.get(old);
#pragma unroll
            for (int j = 0; j < VEC; ++j)
                v[j] += old[j];
        }
        chunk.set(v);
        chunk.store(p + c, cols - c);
    }
}

// A result, as far as it is only known at run time: f32 or of the dtype of the operands, 16 bytes
// at a time or one by one.
struct product_result {
    void *data;
    int64_t stride;
    bool f32, wide, accumulate;

    template <class T>
    __device__ __forceinline__ void store(const float *sums, int64_t row, int64_t col, int cols,
                                          int first, int n) const
    {
        const int64_t at = row * stride + col;
        if (f32 && wide)
            store_sums<4>(sums, static_cast<float *>(data) + at, cols, accumulate, first, n);
        else if (f32)
            store_sums<1>(sums, static_cast<float *>(data) + at, cols, accumulate, first, n);
        else if (wide)
            store_sums<(int)(16 / sizeof(T))>(sums, static_cast<T *>(data) + at, cols, accumulate,
                                              first, n);
        else
            store_sums<1>(sums, static_cast<T *>(data) + at, cols, accumulate, first, n);
    }
};

} // namespace spops

#endif
