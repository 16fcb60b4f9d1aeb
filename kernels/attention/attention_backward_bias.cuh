// SPDX-License-Identifier: Apache-2.0
// Biases of a step of the gradients of attention, and the gradient of their table. Both go through a
// tile in shared memory: whatever the kernel, its code for them is small.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_BIAS_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_BIAS_CUH

#include "kernels/attention/attention_backward_params.cuh"

namespace spops
{

// Coordinates of an own row, or of a streamed one; what stands at -1 is not used.
template <attention_side SIDE, bool OWN>
__device__ __forceinline__ int3 side_coords(const spops_attention_bias_args &bias, int row)
{
    return (SIDE == OWN_KEYS) == OWN ? key_coords_of(bias, row) : query_coords(bias, row);
}

// Pairs of ROWS own rows and COLS streamed ones.
template <int ROWS, int COLS> struct attention_pairs {
    static constexpr int line = COLS + 4;
    alignas(16) float tile[ROWS * line];
    int3 own[ROWS], streamed[COLS]; // coordinates
};

// By all threads of a block, which it brings together: biases times log2(e) into the tile.
template <attention_side SIDE, int ROWS, int COLS>
__device__ __forceinline__ void tile_of_biases(attention_pairs<ROWS, COLS> &pairs,
                                               const spops_attention_bias_args &bias, int head)
{
    for (int i = (int)threadIdx.x; i < ROWS * COLS; i += (int)blockDim.x) {
        const int3 &own = pairs.own[i / COLS], &streamed = pairs.streamed[i % COLS];
        pairs.tile[i / COLS * pairs.line + i % COLS] =
            log2_of_e * (SIDE == OWN_KEYS ? bias_of(bias, head, streamed, own)
                                          : bias_of(bias, head, own, streamed));
    }
    __syncthreads();
}

// A block's part of the gradient of one head's table. What its threads add meets in whole numbers,
// whose sum does not depend on the order: a value of a step is cut into two parts of 18 bits,
// relative to the step's largest.
//
//     sums [bins] f32; upper, lower [bins] i32; then one word: bits of the step's largest value
struct attention_table {
    float *sums;
    int *upper, *lower;
    unsigned *largest;
    int bins;

    static int64_t bytes_of(int range)
    {
        return (3 * (int64_t)spops_attention_table_rows(range) + 1) * 4;
    }

    __device__ __forceinline__ attention_table(void *shared, int range)
        : sums(static_cast<float *>(shared)), bins(spops_attention_table_rows(range))
    {
        upper = reinterpret_cast<int *>(sums + bins);
        lower = upper + bins;
        largest = reinterpret_cast<unsigned *>(lower + bins);
    }

    // The three below by all threads of a block, with a barrier between them and what follows.
    __device__ __forceinline__ void clear()
    {
        for (int i = (int)threadIdx.x; i < bins; i += (int)blockDim.x) {
            sums[i] = 0.0f;
            upper[i] = lower[i] = 0;
        }
        if (threadIdx.x == 0) *largest = 0;
    }

    // Add the tile's first rows x cols values; own rows are queries.
    template <int ROWS, int COLS>
    __device__ __forceinline__ void add(const attention_pairs<ROWS, COLS> &pairs,
                                        const spops_attention_bias_args &bias, int rows, int cols)
    {
        static_assert(ROWS * COLS <= 64 * 64, "sums of upper parts fit into 31 bits");
        // Magnitudes as bits are ordered like the numbers, infinities and NaN after them.
        unsigned most = 0;
        for (int i = (int)threadIdx.x; i < ROWS * COLS; i += (int)blockDim.x)
            if (i / COLS < rows && i % COLS < cols)
                most = max(most, __float_as_uint(pairs.tile[i / COLS * pairs.line + i % COLS]) &
                                     0x7fffffffu);
        atomicMax(largest, most);
        __syncthreads();
        most = *largest;
        const bool finite = most < 0x7f800000u;
        const int scale = 17 - max((int)(most >> 23) - 127, -100); // a power of 2
        for (int i = (int)threadIdx.x; finite && i < ROWS * COLS; i += (int)blockDim.x) {
            if (i / COLS >= rows || i % COLS >= cols) continue;
            const int3 &query = pairs.own[i / COLS], &key = pairs.streamed[i % COLS];
            const float value = ldexpf(pairs.tile[i / COLS * pairs.line + i % COLS], scale);
            const int high = __float2int_rn(value);
            const int low = __float2int_rn((value - (float)high) * 0x1p18f);
            const int3 rows_of_axes = bias_rows(bias.range, query, key);
            const int places[3] = {rows_of_axes.x, rows_of_axes.y, rows_of_axes.z};
#pragma unroll
            for (int axis = 0; axis < 3; ++axis) {
                atomicAdd(upper + places[axis], high);
                atomicAdd(lower + places[axis], low);
            }
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < bins; i += (int)blockDim.x) {
            const double sum = (double)upper[i] + (double)lower[i] * 0x1p-18;
            sums[i] += finite ? (float)ldexp(sum, -scale) : NAN;
            upper[i] = lower[i] = 0;
        }
        if (threadIdx.x == 0) *largest = 0;
    }

    __device__ __forceinline__ void store(float *to) const
    {
        for (int i = (int)threadIdx.x; i < bins; i += (int)blockDim.x)
            to[i] = sums[i];
    }
};

} // namespace spops

#endif
