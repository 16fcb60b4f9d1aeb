// SPDX-License-Identifier: Apache-2.0
// Boxed functions of partitions, halos and sums over chunks. What a list of theirs cannot be becomes what
// the function refuses, on all ranks.
#include <string.h>

#include "boxed/lists.h"
#include "call/boxed.h"
#include "core/backend.h"
#include "spops/halo.h"

// Attribute i by axis; one number stands for all. NULL without any.
static const int32_t *read_axes(const spops_boxed_call *b, int i, int32_t to[SPOPS_MAX_DIMS])
{
    const int64_t *list = b->attributes[i].list;

    if (b->counts[i] == 0) return NULL;
    for (int a = 0; a < SPOPS_MAX_DIMS; ++a)
        to[a] = spops_boxed_narrow(b->counts[i] == 1 ? *list : a < b->counts[i] ? list[a] : 1);
    return to;
}

// num elements in host memory, of the dtype that the row has, to argument i. Waits.
static spops_status put_array(const spops_boxed_call *b, int i, const void *from, int64_t num)
{
    const spops_matrix to = b->matrices[i];

    SPOPS_REQUIRE(b->ctx, to.rows == num, "%s: %s has %" PRId64 " elements, expected %" PRId64,
                  b->row->call, b->row->args[i].name, to.rows, num);
    return num == 0 ? SPOPS_STATUS_OK
                    : b->ctx->backend->upload(b->ctx, to.data, from,
                                              (size_t)num * spops_dtype_bytes(to.dtype));
}

spops_status spops_boxed_partition(spops_boxed_call *b)
{
    enum { WEIGHTS, COORDS, COMM };
    enum { NUM_CHUNKS, CELL_LOG2, ORDER, FIRST_CHUNK };
    spops_partition_options options = spops_partition_options_default();
    spops_comm *comm = (spops_comm *)(uintptr_t)b->args[COMM];
    const int32_t num = comm == NULL ? 2 : spops_comm_num_ranks(comm) + 1;
    int32_t first[SPOPS_COMM_MAX_RANKS + 1];
    spops_partition *made = NULL;

    options.num_chunks = spops_boxed_i32(b, NUM_CHUNKS);
    options.cell_log2 = spops_boxed_i32(b, CELL_LOG2);
    options.order = (spops_coords_order)spops_boxed_i32(b, ORDER);
    options.weights = b->args[WEIGHTS];
    for (int i = 0; i < num && b->counts[FIRST_CHUNK] > 0; ++i)
        first[i] = b->counts[FIRST_CHUNK] == num
                       ? spops_boxed_narrow(((const int64_t *)b->attributes[FIRST_CHUNK].list)[i])
                       : -1;
    if (b->counts[FIRST_CHUNK] > 0) options.first_chunk = first;
    SPOPS_TRY(spops_partition_create(b->ctx, comm, b->args[COORDS], &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_partition_chunks(spops_boxed_call *b)
{
    enum { PARTITION, FIRST_CHUNK, CHUNK_WEIGHTS };
    spops_partition_info info = spops_partition_info_default();

    SPOPS_TRY(spops_partition_get_info(b->ctx, b->args[PARTITION], &info));
    SPOPS_TRY(put_array(b, FIRST_CHUNK, info.first_chunk, (int64_t)info.num_ranks + 1));
    return put_array(b, CHUNK_WEIGHTS, info.chunk_weights, info.num_chunks);
}

spops_status spops_boxed_partition_box(spops_boxed_call *b)
{
    enum { PARTITION, LOWER, UPPER };
    spops_partition_info info = spops_partition_info_default();
    int32_t stride[SPOPS_MAX_DIMS];
    spops_coords_box box;

    SPOPS_TRY(spops_partition_get_info(b->ctx, b->args[PARTITION], &info));
    SPOPS_TRY(spops_partition_get_box(b->ctx, b->args[PARTITION], read_axes(b, 0, stride), &box));
    SPOPS_TRY(put_array(b, LOWER, box.lower, (int64_t)info.dims + 1));
    return put_array(b, UPPER, box.upper, (int64_t)info.dims + 1);
}

spops_status spops_boxed_partition_find(spops_boxed_call *b)
{
    enum { ROWS, PARTITION, CHUNKS };
    const spops_matrix rows = b->matrices[ROWS];
    const size_t n = (size_t)rows.rows, numbers = n * (size_t)rows.cols;
    int32_t stride[SPOPS_MAX_DIMS], *host;
    spops_status status;

    SPOPS_TRY(spops_check_not_capturing(b->ctx, b->row->call));
    host = spops_host_alloc(b->ctx, numbers + n + 1, sizeof *host);
    if (host == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    status = numbers == 0
                 ? SPOPS_STATUS_OK
                 : b->ctx->backend->download(b->ctx, host, rows.data, numbers * sizeof *host);
    if (status == SPOPS_STATUS_OK)
        status = spops_partition_find_chunks(b->ctx, b->args[PARTITION], read_axes(b, 0, stride),
                                             rows.rows, host, host + numbers);
    if (status == SPOPS_STATUS_OK) status = put_array(b, CHUNKS, host + numbers, rows.rows);
    spops_host_free(b->ctx, host, numbers + n + 1, sizeof *host);
    return status;
}

spops_status spops_boxed_halo(spops_boxed_call *b)
{
    enum { OWNED, PARTITION, COMM };
    enum { STRIDE, REACH, MAX_COLS };
    spops_halo_options options = spops_halo_options_default();
    int32_t stride[SPOPS_MAX_DIMS], reach[SPOPS_MAX_DIMS];
    spops_halo *made = NULL;

    options.stride = read_axes(b, STRIDE, stride);
    options.reach = read_axes(b, REACH, reach);
    options.max_cols = b->attributes[MAX_COLS].i;
    SPOPS_TRY(spops_halo_create(b->ctx, (spops_comm *)(uintptr_t)b->args[COMM], b->args[PARTITION],
                                b->args[OWNED], &options, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_halo_coords(spops_boxed_call *b)
{
    spops_halo_info info = spops_halo_info_default();
    SPOPS_TRY(spops_halo_get_info(b->ctx, b->args[0], &info));
    return spops_boxed_part(b, info.coords);
}

spops_status spops_boxed_halo_chunks(spops_boxed_call *b)
{
    enum { HALO, CHUNK_OFFSETS, ALL_CHUNK_ROWS };
    spops_halo_info info = spops_halo_info_default();
    SPOPS_TRY(spops_halo_get_info(b->ctx, b->args[HALO], &info));
    SPOPS_TRY(put_array(b, CHUNK_OFFSETS, info.chunk_offsets, (int64_t)info.num_chunks + 1));
    return spops_copy_array(b, ALL_CHUNK_ROWS, info.all_chunk_rows, info.num_all_chunks);
}

spops_status spops_boxed_halo_refresh(spops_boxed_call *b)
{
    enum { X, HALO, OUT };
    return spops_halo_execute(b->ctx, (spops_halo *)(uintptr_t)b->args[HALO], b->matrices[X],
                              b->matrices[OUT]);
}

spops_status spops_boxed_chunk_sums_plan(spops_boxed_call *b)
{
    enum { PARTITION, COMM };
    spops_chunk_sums *made = NULL;
    SPOPS_TRY(spops_chunk_sums_create(b->ctx, (spops_comm *)(uintptr_t)b->args[COMM],
                                      b->args[PARTITION], b->attributes[0].i, &made));
    return spops_boxed_made(b, made);
}

spops_status spops_boxed_chunk_sums(spops_boxed_call *b)
{
    enum { PARTIALS, SUMS, OUT };
    return spops_chunk_sums_execute(b->ctx, (spops_chunk_sums *)(uintptr_t)b->args[SUMS],
                                    b->matrices[PARTIALS], (float *)(uintptr_t)b->args[OUT]);
}
