// SPDX-License-Identifier: Apache-2.0
// Voxels, keys and codes of blocks of points: what spops_voxel_floor, spops_key_pack, _unpack, _morton
// and _hilbert (coord_keys.h) give one by one, compiled once per instruction set.
#ifndef SPOPS_COORDS_VOXEL_ISA_H
#define SPOPS_COORDS_VOXEL_ISA_H

#include "coords/coord_arrays.h"
#include "coords/order_codes_cpu.h"
#include "core/cpu_isa.h"

#define SPOPS_VOXEL_BLOCK 64 // points, at most

// Columns of a block of rows: the batch, then the axes.
typedef int32_t spops_voxel_block[SPOPS_KEY_COLUMNS][SPOPS_VOXEL_BLOCK];

typedef struct spops_voxel_table {
    // The voxels of n points that begin with point i of source; bit p of the result: point i + p
    // has none.
    uint64_t (*find)(const spops_coords_source *source, int64_t i, int n, spops_voxel_block block);
    // Least and greatest coordinates [dims] of n points that begin with point i of source; lower is
    // NaN where a column has one.
    void (*extent)(const spops_coords_source *source, int64_t i, int64_t n, float *lower,
                   float *upper);
    // Keys of n rows, SPOPS_KEY_NONE for those outside the layout's box; returns how many are.
    int (*pack)(const spops_key_layout *layout, int n, const spops_voxel_block block,
                uint64_t *keys);
    // rows [n][1 + dims] of n keys, any number.
    void (*unpack)(const spops_key_layout *layout, int64_t n, const uint64_t *keys, int32_t *rows);
    // Codes of n keys; of SPOPS_KEY_NONE any.
    void (*codes)(const spops_curve *curve, int n, const uint64_t *keys, uint64_t *codes);
} spops_voxel_table;

SPOPS_DECLARE_ISA_TABLES(spops_voxel_table)

#endif
