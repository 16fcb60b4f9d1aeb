// SPDX-License-Identifier: Apache-2.0
// What the two kernels of the mixed segmented sum share: their arguments, and how a result is
// written.
#ifndef SPOPS_KERNELS_SEGREDUCE_SEGSUM_MIXED_CUH
#define SPOPS_KERNELS_SEGREDUCE_SEGSUM_MIXED_CUH

#include "kernels/core/float8.cuh"
#include "kernels/segreduce/reduce_functors.cuh"

namespace spops
{

struct mixed_params {
    segreduce_params sums;        // x, w and out as bytes
    int64_t x_stride, out_stride; // bytes
    int32_t out_dtype;
    const uint8_t *x_scales;
    int64_t x_scales_stride;
    const float *x_scale, *w_scale, *out_scale;
};

inline mixed_params mixed_params_of(const spops_segreduce_args *args)
{
    mixed_params p = {};
    p.sums.pairs = (const int2 *)args->lists->pairs;
    p.sums.x = args->x.data;
    p.sums.w = args->w.data;
    p.sums.w_dtype = args->w.dtype;
    p.sums.cols = (int32_t)args->x.cols;
    p.sums.out = args->out.data;
    p.sums.partials = args->partials;
    p.sums.tickets = args->tickets;
    p.x_stride = spops_elements_bytes(args->x.dtype, args->x.row_stride);
    p.out_stride = spops_elements_bytes(args->out.dtype, args->out.row_stride);
    p.out_dtype = args->out.dtype;
    p.x_scales = (const uint8_t *)args->x_scales.data;
    p.x_scales_stride = args->x_scales.row_stride;
    p.x_scale = args->x_scale;
    p.w_scale = args->w_scale;
    p.out_scale = args->out_scale;
    return p;
}

// The sum of `segment`, times its scale. Eight columns each at `cols`, one entry for every eight of
// a thread; n as store_row has it.
template <bool FULL, int COLUMNS>
__device__ __forceinline__ void write_scaled(const mixed_params &p, int32_t segment,
                                             const int32_t (&cols)[COLUMNS / 8], int n,
                                             const plain_SUM::state (&acc)[COLUMNS])
{
    const float scale = scale_of(p.x_scale, p.w_scale, p.out_scale);
    uint8_t *row = static_cast<uint8_t *>(p.sums.out) + segment * p.out_stride;
#pragma unroll
    for (int c = 0; c < COLUMNS / 8; ++c) {
        float v[8];
#pragma unroll
        for (int j = 0; j < 8; ++j)
            v[j] = acc[8 * c + j].v * scale;
        store_row<FULL>(p.out_dtype, row, cols[c], n, v);
    }
}

// segsum_mixed.cu: the segmented sum of dtypes and scales that segreduce.cu does not have.
spops_status segsum_mixed(spops_context *ctx, const spops_segreduce_args *args);

// segsum_wide.cu: whether its kernels serve a call, and the launch.
bool segsum_wide_fits(const spops_context *ctx, const spops_segreduce_args *args);
spops_status segsum_wide(spops_context *ctx, const spops_segreduce_args *args);

} // namespace spops

#endif
