// SPDX-License-Identifier: Apache-2.0
// Channels to space and back on the GPU: for each fine row, or each child of a coarse row, a lookup in the
// other set, then the copy of its elements.
#include "dense/channels_args.h"
#include "kernels/coords/coord_index.cuh"
#include "kernels/dense/move_chunks.cuh"

namespace
{

using namespace spops;

// Steps and channels are in pieces. F finds rows of the set that is looked into.
template <class F, bool TO_SPACE> struct channel_places {
    coord_index index;              // of the set that is looked into
    const int32_t *rows, *num_rows; // of the other one
    int32_t dims, factor, num_children;
    int64_t num_channels, wide_step, narrow_step;

    __device__ __forceinline__ int32_t find(const int64_t at[1 + SPOPS_MAX_DIMS]) const
    {
        uint64_t code = 0;
        bool fits = true;
#pragma unroll
        for (int c = 0; c <= SPOPS_MAX_DIMS; ++c) {
            if (c > dims) break;
            fits = fits && spops_key_fits(&index.layout, c, at[c]);
            code += F::part(index, c, at[c]);
        }
        return fits ? F::finish(index, code, F::begin(index, code)) : -1;
    }

    __device__ __forceinline__ int64_t operator()(int64_t i, int64_t *to) const
    {
        int64_t at[1 + SPOPS_MAX_DIMS];
        const int64_t r = TO_SPACE ? i : i / num_children;
        int32_t child = TO_SPACE ? 0 : (int32_t)(i % num_children);
        const int32_t *const row = rows + r * (1 + dims);
        *to = TO_SPACE ? r * narrow_step : r * wide_step + child * num_channels;
        if (r >= *num_rows) return -1;
        if (TO_SPACE) {
            int32_t coarse[1 + SPOPS_MAX_DIMS];
            child = spops_child_of(dims, factor, row, coarse);
            for (int c = 0; c <= dims; ++c)
                at[c] = coarse[c];
        } else {
            int32_t left = child;
            for (int c = dims; c >= 1; --c)
                left = spops_child_axis(factor, left, row[c], &at[c]);
            at[0] = row[0];
        }
        const int32_t found = find(at);
        if (found < 0) return -1;
        return TO_SPACE ? found * wide_step + child * num_channels : found * narrow_step;
    }
};

template <bool TO_SPACE>
spops_status move(spops_context *ctx, const char *what, const spops_channels_args *args)
{
    const int64_t piece = piece_elements(args->wide, args->narrow, args->num_channels);
    const spops_coords_arrays *other = TO_SPACE ? args->fine : args->coarse;
    const coord_index index = index_of(TO_SPACE ? args->coarse : args->fine);
    return with_finder(index, [&](auto finder) {
        channel_places<decltype(finder), TO_SPACE> places = {};
        places.index = index;
        places.rows = other->rows;
        places.num_rows = &other->state->num_rows;
        places.dims = args->dims;
        places.factor = args->factor;
        places.num_children = args->num_children;
        places.num_channels = args->num_channels / piece;
        places.wide_step = spops_row_step(args->wide) / piece;
        places.narrow_step = spops_row_step(args->narrow) / piece;
        return launch_chunks(ctx, what, args->wide.dtype, piece,
                             TO_SPACE ? args->narrow.rows : args->wide.rows * args->num_children,
                             args->num_channels, TO_SPACE ? args->wide.data : args->narrow.data,
                             TO_SPACE ? args->narrow.data : args->wide.data, places);
    });
}

} // namespace

extern "C" spops_status spops_cuda_channel_to_space(spops_context *ctx,
                                                    const spops_channels_args *args)
{
    return move<true>(ctx, "channel_to_space: launch", args);
}

extern "C" spops_status spops_cuda_space_to_channel(spops_context *ctx,
                                                    const spops_channels_args *args)
{
    return move<false>(ctx, "space_to_channel: launch", args);
}
