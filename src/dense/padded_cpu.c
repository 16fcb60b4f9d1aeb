// SPDX-License-Identifier: Apache-2.0
// Rows of points at the places of their voxels on the CPU, and back.
#include <string.h>

#include "backends/backend_cpu.h"
#include "core/matrix.h"
#include "core/row_convert.h"
#include "core/threads.h"
#include "dense/padded_args.h"

static size_t row_bytes(const spops_padded_args *args)
{
    return (size_t)args->rows.cols * (size_t)spops_dtype_bits(args->rows.dtype) / 8;
}

static void write_voxels(const void *work, int64_t begin, int64_t end)
{
    const spops_padded_args *args = (const spops_padded_args *)work;
    const spops_voxel_places *p = &args->places;
    const size_t bytes = row_bytes(args);
    for (int64_t v = begin; v < end; ++v) {
        for (int32_t k = 0; k < p->most_points; ++k) {
            char *to = spops_row_element(args->padded, v * p->most_points + k, 0);
            const int32_t point =
                spops_voxel_place(p->ranks, p->chosen, p->most_points, p->num_points[v], v, k);
            if (point >= 0)
                memcpy(to, spops_row_element(args->rows, point, 0), bytes);
            else
                memset(to, 0, bytes);
        }
        if (args->num_points != NULL)
            args->num_points[v] =
                p->num_points[v] < p->most_points ? p->num_points[v] : p->most_points;
    }
}

static void write_points(const void *work, int64_t begin, int64_t end)
{
    const spops_padded_args *args = (const spops_padded_args *)work;
    const spops_voxel_places *p = &args->places;
    const size_t bytes = row_bytes(args);
    for (int64_t i = begin; i < end; ++i) {
        char *to = spops_row_element(args->rows, i, 0);
        const int32_t voxel = p->keys[i];
        int32_t k = 0, n = 0;
        if (voxel >= 0)
            n = p->num_points[voxel] < p->most_points ? p->num_points[voxel] : p->most_points;
        while (k < n && spops_voxel_place(p->ranks, p->chosen, p->most_points, n, voxel, k) != i)
            ++k;
        if (k < n)
            memcpy(to, spops_row_element(args->padded, (int64_t)voxel * p->most_points + k, 0),
                   bytes);
        else
            memset(to, 0, bytes);
    }
}

spops_status spops_cpu_voxels_padded(spops_context *ctx, const spops_padded_args *args)
{
    const int64_t elements = args->padded.rows * (args->padded.cols + 1);
    spops_parallel_for(spops_team_for(ctx, elements), args->places.max_voxels, 0, write_voxels,
                       args);
    return SPOPS_STATUS_OK;
}

spops_status spops_cpu_voxels_padded_backward(spops_context *ctx, const spops_padded_args *args)
{
    const int64_t elements = args->rows.rows * (args->rows.cols + 1);
    spops_parallel_for(spops_team_for(ctx, elements), args->places.max_points, 0, write_points,
                       args);
    return SPOPS_STATUS_OK;
}
