// SPDX-License-Identifier: Apache-2.0
// What the slots of padded voxels are given.
#ifndef SPOPS_DENSE_PADDED_ARGS_H
#define SPOPS_DENSE_PADDED_ARGS_H

#include "coords/coord_arrays.h"

typedef struct spops_padded_args {
    spops_voxel_places places;
    spops_matrix rows;   // [max_points, C]
    spops_matrix padded; // [max_voxels * most_points, C], of equal dtype
    int32_t *num_points; // [max_voxels] forward: to be written; NULL: not wanted
} spops_padded_args;

#endif
