// SPDX-License-Identifier: Apache-2.0
// Channels to space and back on the CPU: a lookup for each fine row, or for each child of a coarse one.
#include <string.h>

#include "backends/backend_cpu.h"
#include "coords/coord_index_cpu.h"
#include "core/matrix.h"
#include "core/row_convert.h"
#include "core/threads.h"
#include "dense/channels_args.h"

typedef struct channels_work {
    const spops_channels_args *args;
    spops_cpu_index index; // of the set that is looked into
    size_t bytes;          // of a fine row
    size_t element;
    int64_t num_rows; // in use, of the other set
} channels_work;

static int32_t find(const channels_work *w, const spops_key_layout *layout, const int64_t *at)
{
    uint64_t key = 0;
    for (int c = 0; c <= layout->dims; ++c) {
        if (!spops_key_fits(layout, c, at[c])) return -1;
        key |= spops_key_column(layout, c, at[c]);
    }
    return spops_index_find(&w->index, layout, key);
}

static void write_fine(const void *work, int64_t begin, int64_t end)
{
    const channels_work *w = (const channels_work *)work;
    const spops_channels_args *args = w->args;
    for (int64_t r = begin; r < end; ++r) {
        char *to = spops_row_element(args->narrow, r, 0);
        int32_t row = -1, child = 0;
        if (r < w->num_rows) {
            int32_t coarse[1 + SPOPS_MAX_DIMS];
            int64_t at[1 + SPOPS_MAX_DIMS];
            child = spops_child_of(args->dims, args->factor,
                                   args->fine->rows + r * (1 + args->dims), coarse);
            for (int c = 0; c <= args->dims; ++c)
                at[c] = coarse[c];
            row = find(w, &args->coarse->layout, at);
        }
        if (row >= 0)
            memcpy(to, spops_row_element(args->wide, row, child * args->num_channels), w->bytes);
        else
            memset(to, 0, w->bytes);
    }
}

static void write_coarse(const void *work, int64_t begin, int64_t end)
{
    const channels_work *w = (const channels_work *)work;
    const spops_channels_args *args = w->args;
    for (int64_t r = begin; r < end; ++r)
        for (int32_t child = 0; child < args->num_children; ++child) {
            char *to = spops_row_element(args->wide, r, child * args->num_channels);
            int32_t row = -1;
            if (r < w->num_rows) {
                const int32_t *coarse = args->coarse->rows + r * (1 + args->dims);
                int64_t at[1 + SPOPS_MAX_DIMS];
                int32_t left = child;
                for (int c = args->dims; c >= 1; --c)
                    left = spops_child_axis(args->factor, left, coarse[c], &at[c]);
                at[0] = coarse[0];
                row = find(w, &args->fine->layout, at);
            }
            if (row >= 0)
                memcpy(to, spops_row_element(args->narrow, row, 0), w->bytes);
            else
                memset(to, 0, w->bytes);
        }
}

static channels_work work_of(const spops_context *ctx, const spops_channels_args *args,
                             const spops_coords_arrays *looked_into,
                             const spops_coords_arrays *other)
{
    channels_work w = {.args = args,
                       .index = spops_cpu_index_made(ctx, looked_into),
                       .element = (size_t)spops_dtype_bits(args->wide.dtype) / 8,
                       .num_rows = other->state->num_rows};
    w.bytes = w.element * (size_t)args->num_channels;
    return w;
}

spops_status spops_cpu_channel_to_space(spops_context *ctx, const spops_channels_args *args)
{
    const channels_work w = work_of(ctx, args, args->coarse, args->fine);
    spops_parallel_for(spops_team_for(ctx, args->narrow.rows * args->num_channels),
                       args->narrow.rows, 0, write_fine, &w);
    return SPOPS_STATUS_OK;
}

spops_status spops_cpu_space_to_channel(spops_context *ctx, const spops_channels_args *args)
{
    const channels_work w = work_of(ctx, args, args->fine, args->coarse);
    spops_parallel_for(spops_team_for(ctx, args->wide.rows * args->wide.cols), args->wide.rows, 0,
                       write_coarse, &w);
    return SPOPS_STATUS_OK;
}
