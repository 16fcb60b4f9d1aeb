// SPDX-License-Identifier: Apache-2.0
// Sums over chunks of all ranks along one tree. A rank adds the parts of the tree that it owns; what is left
// of them, its nodes, goes to the other ranks in slices: each rank adds one slice of all nodes, and the
// slices of the result go to all.
#include <string.h>

#include "comm/comm.h"
#include "core/check.h"
#include "core/threads.h"
#include "ranks/partition.h"
#include "spops/activation.h"
#include "spops/halo.h"

struct spops_chunk_sums {
    spops_context *ctx;
    spops_comm *comm;
    int32_t num_ranks, rank, num_chunks;
    int32_t num_rounds; // the most nodes that a rank has
    int64_t max_values;
    int32_t *first_chunk; // [num_ranks + 1]
    int32_t *places; // [num_chunks] round * num_ranks + rank of the node that begins there, or -1
    int64_t *counts; // [4][num_ranks] of a layout
    float *slices;   // [num_rounds][num_ranks][longest slice]
};

// ---- The tree ------------------------------------------------------------------------------------

// A node of width w, a power of two, begins at a multiple of w and has the chunks from there to w later, as
// far as there are any. The widest that begins at `begin` and ends where `end` does, or before.
static int32_t node_width(int32_t begin, int32_t end, int32_t num_chunks)
{
    int32_t width = 1;
    while (begin % (2 * width) == 0 && width < num_chunks &&
           (begin + 2 * width <= end || end == num_chunks))
        width *= 2;
    return width;
}

// Numbers in rows: a place of the tree is a row.
typedef struct tree_rows {
    float *rows;
    int64_t stride, n;
} tree_rows;

static spops_status add_row(spops_context *ctx, const tree_rows *r, int64_t to, int64_t from)
{
    enum { COLUMNS = 64 };
    const int64_t whole = r->n / COLUMNS * COLUMNS;
    float *a = r->rows + to * r->stride, *b = r->rows + from * r->stride;
    const spops_matrix x = spops_matrix_dense(a, whole / COLUMNS, COLUMNS, SPOPS_DTYPE_F32);
    const spops_matrix y = spops_matrix_dense(b, whole / COLUMNS, COLUMNS, SPOPS_DTYPE_F32);
    const spops_matrix x_rest = spops_matrix_dense(a + whole, 1, r->n - whole, SPOPS_DTYPE_F32);
    const spops_matrix y_rest = spops_matrix_dense(b + whole, 1, r->n - whole, SPOPS_DTYPE_F32);

    if (whole > 0) SPOPS_TRY(spops_add_execute(ctx, x, y, NULL, x));
    return r->n > whole ? spops_add_execute(ctx, x_rest, y_rest, NULL, x_rest) : SPOPS_STATUS_OK;
}

// The node at `begin` of rows that are chunks, the first one being chunk `first`; into the row of begin.
static spops_status add_node(spops_context *ctx, const tree_rows *r, int32_t first, int32_t begin,
                             int32_t width, int32_t num_chunks)
{
    const int32_t end = begin + width < num_chunks ? begin + width : num_chunks;
    for (int32_t w = 1; w < width; w *= 2)
        for (int32_t i = begin; i + w < end; i += 2 * w)
            SPOPS_TRY(add_row(ctx, r, i - first, i + w - first));
    return SPOPS_STATUS_OK;
}

// The nodes of all ranks, whose rows are at `places`; into the row of chunk 0. Where a node begins at i + w,
// its left sibling, or what became of it, begins at i.
static spops_status add_all(spops_context *ctx, const spops_chunk_sums *s, const tree_rows *r)
{
    for (int32_t w = 1; w < s->num_chunks; w *= 2)
        for (int32_t i = 0; i + w < s->num_chunks; i += 2 * w)
            if (s->places[i + w] >= 0) SPOPS_TRY(add_row(ctx, r, s->places[i], s->places[i + w]));
    return SPOPS_STATUS_OK;
}

// ---- Making them ---------------------------------------------------------------------------------

// Where every rank's nodes begin, by round.
static void place_nodes(spops_chunk_sums *s)
{
    for (int32_t c = 0; c < s->num_chunks; ++c)
        s->places[c] = -1;
    for (int32_t r = 0; r < s->num_ranks; ++r) {
        const int32_t end = s->first_chunk[r + 1];
        int32_t round = 0;
        for (int32_t c = s->first_chunk[r]; c < end; c += node_width(c, end, s->num_chunks))
            s->places[c] = round++ * s->num_ranks + r;
        if (round > s->num_rounds) s->num_rounds = round;
    }
}

static int64_t longest_slice(const spops_chunk_sums *s)
{
    return (s->max_values + s->num_ranks - 1) / s->num_ranks;
}

static size_t slices_bytes(const spops_chunk_sums *s)
{
    return spops_mul_bytes((size_t)s->num_rounds * (size_t)s->num_ranks,
                           (size_t)longest_slice(s) * sizeof(float));
}

static spops_status fill_sums(spops_context *ctx, const char *call, spops_comm *comm,
                              const spops_partition *partition, int64_t max_values,
                              spops_chunk_sums *s)
{
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    SPOPS_REQUIRE(ctx, partition != NULL, "%s: partition is NULL", call);
    SPOPS_TRY(spops_check_count(ctx, call, "max_values", max_values));
    SPOPS_REQUIRE(ctx,
                  spops_comm_num_ranks(comm) == partition->num_ranks &&
                      spops_comm_rank(comm) == partition->rank,
                  "%s: comm is rank %" PRId32 " of %" PRId32
                  ", partition was made for rank %" PRId32 " of %" PRId32,
                  call, spops_comm_rank(comm), spops_comm_num_ranks(comm), partition->rank,
                  partition->num_ranks);
    s->num_ranks = partition->num_ranks;
    s->rank = partition->rank;
    s->num_chunks = partition->num_chunks;
    s->max_values = max_values;
    s->first_chunk = spops_host_alloc(ctx, (size_t)s->num_ranks + 1, sizeof *s->first_chunk);
    s->places = spops_host_alloc(ctx, (size_t)s->num_chunks, sizeof *s->places);
    s->counts = spops_host_alloc(ctx, 4 * (size_t)s->num_ranks, sizeof *s->counts);
    if (s->first_chunk == NULL || s->places == NULL || s->counts == NULL)
        return SPOPS_STATUS_OUT_OF_MEMORY;
    memcpy(s->first_chunk, spops_partition_first_chunk(partition),
           ((size_t)s->num_ranks + 1) * sizeof *s->first_chunk);
    place_nodes(s);
    return spops_backend_alloc(ctx, slices_bytes(s), (void **)&s->slices);
}

spops_status spops_chunk_sums_create(spops_context *ctx, spops_comm *comm,
                                     const spops_partition *partition, int64_t max_values,
                                     spops_chunk_sums **sums)
{
    static const char call[] = "chunk_sums_create";
    spops_chunk_sums *s;
    spops_status status;

    if ((uintptr_t)sums % sizeof *sums == 0 && sums != NULL) *sums = NULL;
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_check_object(ctx, call, "sums", sums, sizeof *sums));
    SPOPS_REQUIRE(ctx, comm != NULL, "%s: comm is NULL", call);
    s = spops_host_alloc(ctx, 1, sizeof *s);
    status = SPOPS_STATUS_OUT_OF_MEMORY;
    if (s != NULL) {
        s->ctx = ctx;
        s->comm = comm;
        status = fill_sums(ctx, call, comm, partition, max_values, s);
    }
    status = spops_comm_agree_sync(ctx, comm, status);
    if (status == SPOPS_STATUS_OK)
        *sums = s;
    else
        spops_chunk_sums_destroy(s);
    return status;
}

void spops_chunk_sums_destroy(spops_chunk_sums *sums)
{
    if (sums == NULL) return;
    spops_context *ctx = sums->ctx;

    (void)spops_context_wait_sync(ctx);
    spops_backend_free(ctx, sums->slices, sums->slices == NULL ? 0 : slices_bytes(sums));
    spops_host_free(ctx, sums->first_chunk, (size_t)sums->num_ranks + 1, sizeof *sums->first_chunk);
    spops_host_free(ctx, sums->places, (size_t)sums->num_chunks, sizeof *sums->places);
    spops_host_free(ctx, sums->counts, 4 * (size_t)sums->num_ranks, sizeof *sums->counts);
    spops_host_free(ctx, sums, 1, sizeof *sums);
}

// ---- Running them --------------------------------------------------------------------------------

static int64_t slice_begin(const spops_chunk_sums *s, int64_t n, int32_t rank)
{
    return spops_part_begin(n, rank, s->num_ranks);
}

static int64_t slice_length(const spops_chunk_sums *s, int64_t n, int32_t rank)
{
    return slice_begin(s, n, rank + 1) - slice_begin(s, n, rank);
}

// A column of f32, as the exchange takes it.
static spops_matrix column(float *data, int64_t n)
{
    return spops_matrix_dense(n > 0 ? data : NULL, n, 1, SPOPS_DTYPE_F32);
}

// Node `round` of every rank: its slices to all.
static spops_status send_round(spops_context *ctx, const spops_chunk_sums *s, int32_t round,
                               float *node, int64_t n, float *slices)
{
    const int32_t ranks = s->num_ranks;
    int64_t *send = s->counts, *send_offsets = send + ranks;
    int64_t *recv = send_offsets + ranks, *recv_offsets = recv + ranks;
    const spops_comm_layout layout = {send, send_offsets, recv, recv_offsets};
    const int64_t mine = slice_length(s, n, s->rank);

    memset(recv, 0, (size_t)ranks * sizeof *recv);
    for (int32_t c = 0; c < s->num_chunks; ++c)
        if (s->places[c] >= 0 && s->places[c] / ranks == round) recv[s->places[c] % ranks] = mine;
    for (int32_t r = 0; r < ranks; ++r) {
        send[r] = node == NULL ? 0 : slice_length(s, n, r);
        send_offsets[r] = node == NULL ? 0 : slice_begin(s, n, r);
        recv_offsets[r] = r * mine;
    }
    return spops_comm_exchange_execute(ctx, s->comm, &layout, column(node, node == NULL ? 0 : n),
                                       column(slices, ranks * mine));
}

// Slices of the result to all.
static spops_status send_result(spops_context *ctx, const spops_chunk_sums *s, float *slice,
                                int64_t n, float *out)
{
    const int32_t ranks = s->num_ranks;
    int64_t *send = s->counts, *send_offsets = send + ranks;
    int64_t *recv = send_offsets + ranks, *recv_offsets = recv + ranks;
    const spops_comm_layout layout = {send, send_offsets, recv, recv_offsets};
    const int64_t mine = slice_length(s, n, s->rank);

    for (int32_t r = 0; r < ranks; ++r) {
        send[r] = mine;
        send_offsets[r] = 0;
        recv[r] = slice_length(s, n, r);
        recv_offsets[r] = slice_begin(s, n, r);
    }
    return spops_comm_exchange_execute(ctx, s->comm, &layout, column(slice, mine), column(out, n));
}

static spops_status check_partials(spops_context *ctx, const char *call, const spops_chunk_sums *s,
                                   spops_matrix partials, const float *out)
{
    const int32_t num = s->first_chunk[s->rank + 1] - s->first_chunk[s->rank];
    const int64_t n = partials.cols;

    SPOPS_REQUIRE(ctx, partials.dtype == SPOPS_DTYPE_F32 && partials.rows == num,
                  "%s: partials are %" PRId64 " rows of %s, expected %" PRId32 " of f32", call,
                  partials.rows, spops_dtype_name(partials.dtype), num);
    SPOPS_REQUIRE(ctx, n >= 0 && n <= s->max_values && (num <= 1 || partials.row_stride == n),
                  "%s: partials have %" PRId64 " columns and row_stride %" PRId64
                  ", expected at most %" PRId64 " columns, without gaps",
                  call, n, partials.row_stride, s->max_values);
    SPOPS_REQUIRE(ctx, n == 0 || (out != NULL && (num == 0 || partials.data != NULL)),
                  "%s: out or partials is NULL", call);
    SPOPS_TRY(spops_check_aligned(ctx, call, "partials", partials.data, sizeof(float)));
    return spops_check_aligned(ctx, call, "out", out, sizeof *out);
}

spops_status spops_chunk_sums_execute(spops_context *ctx, spops_chunk_sums *sums,
                                      spops_matrix partials, float *out)
{
    static const char call[] = "chunk_sums_execute";
    const spops_chunk_sums *s = sums;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_REQUIRE(ctx, s != NULL, "%s: sums is NULL", call);
    SPOPS_TRY(spops_check_home(ctx, call, "sums", s->ctx));
    const int32_t first = s->first_chunk[s->rank], end = s->first_chunk[s->rank + 1];
    const int64_t n = partials.cols;
    const spops_status status = check_partials(ctx, call, s, partials, out);
    if (status != SPOPS_STATUS_OK) return spops_comm_refuse(ctx, s->comm, call, status);
    if (n == 0) return SPOPS_STATUS_OK;

    SPOPS_OUTER_CALL(ctx, call, NULL);
    const tree_rows own = {partials.data, n, n};
    for (int32_t c = first, w; c < end; c += w) {
        w = node_width(c, end, s->num_chunks);
        SPOPS_TRY(add_node(ctx, &own, first, c, w, s->num_chunks));
    }
    if (s->num_ranks == 1) return ctx->backend->copy(ctx, out, own.rows, (size_t)n * sizeof *out);
    const int64_t mine = slice_length(s, n, s->rank);
    int32_t c = first;
    for (int32_t round = 0; round < s->num_rounds; ++round) {
        float *node = c < end ? own.rows + (int64_t)(c - first) * n : NULL;
        SPOPS_TRY(
            send_round(ctx, s, round, node, n, s->slices + (int64_t)round * s->num_ranks * mine));
        if (c < end) c += node_width(c, end, s->num_chunks);
    }
    const tree_rows slices = {s->slices, mine, mine};
    if (mine > 0) SPOPS_TRY(add_all(ctx, s, &slices));
    return send_result(ctx, s, s->slices + (int64_t)s->places[0] * mine, n, out);
}
