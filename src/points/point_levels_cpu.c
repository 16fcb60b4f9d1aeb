// SPDX-License-Identifier: Apache-2.0
// Samples, offsets and weights of clouds on the CPU.
#include <math.h>

#include "backends/backend_cpu.h"
#include "points/neighbors.h"

spops_status spops_cpu_cloud_samples(spops_context *ctx, const spops_cloud_samples_args *args)
{
    const spops_point_cloud *cloud = args->cloud;
    const int32_t *offsets = cloud->offsets;
    bool ascends;
    (void)ctx;
    if (offsets == NULL) {
        *args->num_rows = (int32_t)cloud->points.rows;
        return SPOPS_STATUS_OK;
    }
    ascends = offsets[0] == 0 && offsets[cloud->num_samples] <= cloud->points.rows;
    for (int64_t b = 0; b < cloud->num_samples && ascends; ++b)
        ascends = offsets[b] <= offsets[b + 1];
    *args->num_rows = ascends ? offsets[cloud->num_samples] : 0;
    for (int64_t b = 0; b < cloud->num_samples && ascends; ++b)
        for (int32_t i = offsets[b]; i < offsets[b + 1]; ++i)
            args->samples[i] = (int32_t)b;
    return SPOPS_STATUS_OK;
}

spops_status spops_cpu_cloud_offsets(spops_context *ctx, const spops_cloud_offsets_args *args)
{
    int64_t row = 0;
    (void)ctx;
    for (int64_t b = 0; b <= args->num_samples; ++b) {
        while (row < *args->num_rows && args->rows[row * args->columns] < b)
            ++row;
        args->offsets[b] = (int32_t)row;
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_cpu_inverse_distances(spops_context *ctx,
                                         const spops_inverse_distances_args *args)
{
    (void)ctx;
    for (int64_t i = 0; i < args->num_points; ++i)
        spops_inverse_distances(args, i);
    return SPOPS_STATUS_OK;
}
