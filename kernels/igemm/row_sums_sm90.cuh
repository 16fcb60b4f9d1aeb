// SPDX-License-Identifier: Apache-2.0
// Sums of rows into a stage, for the gather warps of sm_90.
#ifndef SPOPS_KERNELS_IGEMM_ROW_SUMS_SM90_CUH
#define SPOPS_KERNELS_IGEMM_ROW_SUMS_SM90_CUH

#include "kernels/core/sm90/pipeline.cuh"
#include "kernels/igemm/row_sums.cuh"

namespace spops
{

// Entries first + begin + 4 b of num sums, for a lane of quarter `begin`; those that are not there have
// no members.
template <int BATCH>
__device__ __forceinline__ void load_sums(const int4 *sums, int first, int num, int begin,
                                          int4 (&sum)[BATCH])
{
#pragma unroll
    for (int b = 0; b < BATCH; ++b)
        sum[b] = begin + 4 * b < num ? __ldg(sums + first + begin + 4 * b) : make_int4(0, 0, 0, 0);
}

// Adds the rows of these sums into their lines of a stage, 8 lanes to a sum, 16 bytes each: those from
// byte `at` of a row on, and so PIECES times, 128 bytes apart, of which those before byte `bytes` are
// there. `to` is where the stage has line 0 of the first, piece_stride bytes before line 0 of the next.
// All rows that fit into entries are on their way together.
template <class T, int PIECES, int BATCH, class Stride>
__device__ __forceinline__ void gather_sums(const int4 (&sum)[BATCH], const int *members,
                                            const unsigned char *x, Stride stride, int at,
                                            int bytes, uint32_t to, int piece, int piece_stride)
{
    uint4 row[BATCH][PIECES][3];
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
        const int count = sum[b].x >> 8;
        const int from[3] = {sum[b].y, sum[b].z, sum[b].w};
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
#pragma unroll
            for (int m = 0; m < 3; ++m) {
                row[b][i][m] = make_uint4(0, 0, 0, 0);
                if (count >= 2 && (m < 2 || count == 3) && at + i * 128 < bytes)
                    row[b][i][m] = __ldg(
                        reinterpret_cast<const uint4 *>(row_at(x, stride, from[m]) + at + i * 128));
            }
    }
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
        const int count = sum[b].x >> 8, line = sum[b].x & 255;
        if (count == 0) continue;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            float value[16 / sizeof(T)] = {};
            add_numbers<T>(value, row[b][i][0]);
            add_numbers<T>(value, row[b][i][1]);
            if (count == 3) add_numbers<T>(value, row[b][i][2]);
            for (int m = 2; count > 3 && m < count && at + i * 128 < bytes; ++m) {
                const int from = __ldg(members + sum[b].w + m);
                add_numbers<T>(value, __ldg(reinterpret_cast<const uint4 *>(
                                          row_at(x, stride, from) + at + i * 128)));
            }
            store_shared4(to + i * piece_stride + swizzled(line, piece), rounded_numbers<T>(value));
        }
    }
}

} // namespace spops

#endif
