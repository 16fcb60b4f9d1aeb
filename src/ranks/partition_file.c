// SPDX-License-Identifier: Apache-2.0
// Partitions as bytes: loaded with every number checked.
#include <string.h>

#include "core/check.h"
#include "core/plan_file.h"
#include "ranks/partition.h"

typedef struct partition_image {
    int32_t dims, num_chunks, num_ranks, rank, cell_log2, order;
    spops_coords_box box;             // of cells
    int32_t *cuts, *weights, *owners; // [num_chunks] halves, lower ones first; [num_ranks + 1]
} partition_image;

static void put_numbers(spops_file *f, void *to)
{
    partition_image *image = to;
    int32_t *const numbers[] = {&image->dims, &image->num_chunks, &image->num_ranks,
                                &image->rank, &image->cell_log2,  &image->order};
    int32_t *const ends[] = {image->box.lower, image->box.upper};

    spops_file_int32s(f, numbers, sizeof numbers / sizeof *numbers, 1);
    spops_file_int32s(f, ends, sizeof ends / sizeof *ends, SPOPS_KEY_COLUMNS);
}

static int64_t place(void *to, int32_t *at)
{
    partition_image *image = to;
    if (at != NULL) {
        image->cuts = at;
        image->weights = at + 2 * image->num_chunks;
        image->owners = at + 4 * image->num_chunks;
    }
    return 4 * (int64_t)image->num_chunks + image->num_ranks + 1;
}

static spops_status describe(spops_context *ctx, const char *call, const spops_plan *plan, void *to)
{
    const spops_partition *p = (const spops_partition *)plan;
    (void)ctx, (void)call;
    *(partition_image *)to = (partition_image){
        p->cells.dims,     p->num_chunks,           p->num_ranks, p->rank, p->cell_log2,
        (int32_t)p->order, spops_box_of(&p->cells), NULL,         NULL,    NULL};
    return SPOPS_STATUS_OK;
}

static void split(uint64_t value, int32_t *halves)
{
    halves[0] = (int32_t)(uint32_t)value;
    halves[1] = (int32_t)(uint32_t)(value >> 32);
}

static uint64_t joined(const int32_t *halves)
{
    return (uint32_t)halves[0] | (uint64_t)(uint32_t)halves[1] << 32;
}

static spops_status fetch(spops_context *ctx, const spops_plan *plan, void *to)
{
    const spops_partition *p = (const spops_partition *)plan;
    partition_image *image = to;
    (void)ctx;
    for (int32_t c = 0; c < p->num_chunks; ++c) {
        split(p->cuts[c], image->cuts + 2 * c);
        split((uint64_t)p->chunk_weights[c], image->weights + 2 * c);
    }
    memcpy(image->owners, p->first_chunk, ((size_t)p->num_ranks + 1) * sizeof *p->first_chunk);
    return SPOPS_STATUS_OK;
}

// The box in voxels is one of int32, batches from 0 on; columns after the axes are 0.
static spops_status check_box(spops_context *ctx, const char *call, const partition_image *image)
{
    for (int32_t c = 0; c < SPOPS_KEY_COLUMNS; ++c) {
        const int64_t voxels = c == 0 ? 1 : (int64_t)1 << image->cell_log2;
        const int64_t least = c == 0 || c > image->dims ? 0 : INT32_MIN / voxels;
        const int64_t most = c > image->dims ? 0 : INT32_MAX / voxels;
        SPOPS_TRY(spops_file_check(ctx, call, "lower", image->box.lower[c], least, most));
        SPOPS_TRY(
            spops_file_check(ctx, call, "upper", image->box.upper[c], image->box.lower[c], most));
    }
    return SPOPS_STATUS_OK;
}

static spops_status check(spops_context *ctx, const char *call, void *of)
{
    const partition_image *image = of;
    SPOPS_TRY(spops_file_check(ctx, call, "dims", image->dims, 1, SPOPS_MAX_DIMS));
    SPOPS_TRY(spops_file_check(ctx, call, "num_chunks", image->num_chunks, 1,
                               SPOPS_PARTITION_MAX_CHUNKS));
    SPOPS_TRY(spops_file_check(ctx, call, "num_ranks", image->num_ranks, 1, SPOPS_COMM_MAX_RANKS));
    SPOPS_TRY(spops_file_check(ctx, call, "rank", image->rank, 0, image->num_ranks - 1));
    SPOPS_TRY(
        spops_file_check(ctx, call, "cell_log2", image->cell_log2, 1, SPOPS_PARTITION_CELL_LOG2));
    SPOPS_TRY(spops_file_check(ctx, call, "order", image->order, SPOPS_COORDS_ORDER_MORTON,
                               SPOPS_COORDS_ORDER_HILBERT));
    return check_box(ctx, call, image);
}

// Chunks ascend along the curve, and so do the ranks that own them.
static spops_status take_arrays(spops_context *ctx, const char *call, const partition_image *image,
                                spops_partition *p)
{
    for (int32_t c = 0; c < p->num_chunks; ++c) {
        p->cuts[c] = joined(image->cuts + 2 * c);
        p->chunk_weights[c] = (int64_t)joined(image->weights + 2 * c);
        SPOPS_REQUIRE(ctx, c == 0 ? p->cuts[0] == 0 : p->cuts[c] >= p->cuts[c - 1],
                      "%s: cuts[%" PRId32 "] is %" PRIu64 ", expected ascending numbers from 0 on",
                      call, c, p->cuts[c]);
        SPOPS_TRY(
            spops_file_check(ctx, call, "chunk_weights", p->chunk_weights[c], 0, INT64_MAX / 4));
    }
    for (int32_t r = 0; r <= p->num_ranks; ++r) {
        const int32_t least = r == 0 ? 0 : r == p->num_ranks ? p->num_chunks : image->owners[r - 1];
        SPOPS_TRY(spops_file_check(ctx, call, "first_chunk", image->owners[r], least,
                                   r == 0 ? 0 : p->num_chunks));
        p->first_chunk[r] = image->owners[r];
    }
    return SPOPS_STATUS_OK;
}

static spops_status make(spops_context *ctx, const char *call, const void *of, void *out)
{
    const partition_image *image = of;
    spops_partition *p = spops_partition_new(ctx, image->num_chunks, image->num_ranks);
    spops_status status;

    if (p == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    p->rank = image->rank;
    p->cell_log2 = image->cell_log2;
    p->order = (spops_coords_order)image->order;
    status = spops_key_layout_make(ctx, call, image->dims, &image->box, p->order, &p->cells);
    if (status == SPOPS_STATUS_OK) status = take_arrays(ctx, call, image, p);
    if (status != SPOPS_STATUS_OK) {
        spops_plan_destroy(&p->base);
        return status;
    }
    spops_partition_put_fields(p);
    *(spops_partition **)out = p;
    return SPOPS_STATUS_OK;
}

const spops_plan_file spops_partition_file = {
    .magic = "SPOPPAR",
    .version = 1,
    .numbers = put_numbers,
    .place = place,
    .describe = describe,
    .fetch = fetch,
    .check = check,
    .make = make,
};
