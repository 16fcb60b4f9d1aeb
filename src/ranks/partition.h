// SPDX-License-Identifier: Apache-2.0
// Partitions: where chunks begin on a curve through cells, and which rank owns which.
#ifndef SPOPS_RANKS_PARTITION_H
#define SPOPS_RANKS_PARTITION_H

#include "coords/coords.h"
#include "spops/partition.h"

enum { SPOPS_PARTITION_CELL_LOG2 = 16 }; // the largest

struct spops_partition {
    spops_plan base; // what follows is in the context's host memory
    int32_t num_chunks, num_ranks, rank, cell_log2;
    spops_coords_order order;
    spops_key_layout cells; // columns of cells: voxels of the finest level >> cell_log2
    uint64_t *cuts;         // [num_chunks] the first code of each chunk; cuts[0] is 0
    int64_t *chunk_weights; // [num_chunks]
    int32_t *first_chunk;   // [num_ranks + 1]
};

// A handle with arrays, all zero; NULL without memory. Then, once all else is there, its fields.
spops_partition *spops_partition_new(spops_context *ctx, int32_t num_chunks, int32_t num_ranks);
void spops_partition_put_fields(spops_partition *p);

extern const spops_plan_file spops_partition_file; // partition_file.c

// A level's strides, checked: their logarithms. stride NULL: 1.
spops_status spops_partition_read_stride(spops_context *ctx, const char *call,
                                         const spops_partition *p, const int32_t *stride,
                                         int32_t log2[SPOPS_MAX_DIMS]);

// Of where it is cut and who owns what: the same on all ranks.
int64_t spops_partition_fingerprint(const spops_partition *p);

// The chunk of a cell [1 + dims]; -1 outside of the partition's box.
int32_t spops_partition_chunk(const spops_partition *p, const int32_t *cell);

// The rank that owns a chunk.
int32_t spops_partition_owner(const spops_partition *p, int32_t chunk);

// The rows of a set on this host, [num_rows][1 + dims]; to be freed with spops_host_free. Waits.
spops_status spops_coords_read_rows(spops_context *ctx, const spops_coords *coords,
                                    int64_t *num_rows, int32_t **rows);

// x >> shift, rounded down.
static inline int32_t spops_floor_shift(int32_t x, int32_t shift)
{
    return x >= 0 ? x >> shift : -(int32_t)((-(int64_t)x - 1) >> shift) - 1;
}

#endif
