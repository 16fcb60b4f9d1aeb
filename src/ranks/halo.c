// SPDX-License-Identifier: Apache-2.0
// Halos: which owned rows lie near cells of other ranks, the exchange of their coordinates, and the
// refreshing of ghosts.
#include "spops/halo.h"

#include <string.h>

#include "call/call_check.h"
#include "comm/comm.h"
#include "ranks/partition.h"
#include "spops/convert.h"
#include "spops/gather.h"

struct spops_halo {
    spops_plan base; // its block holds send, recv and all_chunk_rows; its parts are coords and sent
    spops_comm_link link;
    int32_t num_ranks, first_chunk, num_chunks, num_all_chunks;
    int64_t num_owned, num_ghosts, num_sent, num_all_rows, max_cols;
    int64_t *counts;         // [4][num_ranks]: send, their offsets, receive, theirs
    int64_t *chunk_offsets;  // [num_chunks + 1]
    int32_t *all_chunk_rows; // [num_all_chunks] where ctx runs
    spops_coords *coords;
    spops_segments *sent; // term t copies the owned row that is sent at place t
    void *send, *recv;    // [num_sent], [num_ghosts] rows of max_cols
    bool has_begun;       // an exchange, to `out`, whose ghosts arrive in `received`
    spops_matrix out, received;
};

// Fields of its kind.
enum {
    NUM_OWNED,
    NUM_GHOSTS,
    NUM_SENT,
    FIRST_CHUNK,
    NUM_CHUNKS,
    NUM_ALL_CHUNKS,
    NUM_ALL_ROWS,
    MAX_COLS,
    NUM_RANKS,
    RANK,
    NUM_FIELDS
};

// Places in counts.
enum { SEND, SEND_OFFSETS, RECV, RECV_OFFSETS, NUM_COUNTS };

static int64_t *counts_of(const spops_halo *h, int which)
{
    return h->counts + (size_t)which * (size_t)h->num_ranks;
}

static spops_comm_layout layout_of(const spops_halo *h)
{
    return (spops_comm_layout){counts_of(h, SEND), counts_of(h, SEND_OFFSETS), counts_of(h, RECV),
                               counts_of(h, RECV_OFFSETS)};
}

static size_t element_bytes(const spops_context *ctx)
{
    return spops_dtype_in(SPOPS_DTYPE_F64, ctx->backend->lacks_dtypes) ? sizeof(float)
                                                                       : sizeof(double);
}

// ---- Which rows are sent -------------------------------------------------------------------------

// Making a halo: this rank's rows on the host, and its lists of rows by rank.
typedef struct halo_making {
    const spops_partition *partition;
    int32_t columns, shift[SPOPS_MAX_DIMS], reach[SPOPS_MAX_DIMS]; // shift: from voxels to cells
    int64_t num_rows, num_ghosts;
    int32_t *rows;
    // Places (row, rank), by row, then rank; then the rows by rank.
    int32_t *pairs;
    int64_t num_pairs, max_pairs;
    int32_t *keys;
    int32_t *memory; // rows [owned | ghosts], then rows that are sent, where ctx runs
    int32_t *marks;  // [num_ranks] the last row that a rank gets, and one
} halo_making;

static bool add_pair(spops_context *ctx, halo_making *m, int32_t row, int32_t rank)
{
    if (m->num_pairs == m->max_pairs) {
        const int64_t larger = m->max_pairs * 2 + 1024;
        int32_t *pairs = spops_host_alloc(ctx, (size_t)larger * 2, sizeof *pairs);
        if (pairs == NULL) return false;
        if (m->num_pairs > 0) memcpy(pairs, m->pairs, (size_t)m->num_pairs * 2 * sizeof *pairs);
        spops_host_free(ctx, m->pairs, (size_t)m->max_pairs * 2, sizeof *pairs);
        m->pairs = pairs;
        m->max_pairs = larger;
    }
    m->pairs[2 * m->num_pairs] = row;
    m->pairs[2 * m->num_pairs++ + 1] = rank;
    return true;
}

// The cells that a row's reach touches; false: its own alone.
static bool cells_near(const halo_making *m, const int32_t *row, int32_t *cell, int32_t *low,
                       int32_t *high)
{
    bool more = false;
    memset(cell, 0, SPOPS_KEY_COLUMNS * sizeof *cell);
    cell[0] = low[0] = high[0] = row[0];
    for (int32_t c = 1; c < m->columns; ++c) {
        const int32_t shift = m->shift[c - 1], reach = m->reach[c - 1];
        cell[c] = spops_floor_shift(row[c], shift);
        low[c] = spops_floor_shift(row[c] < INT32_MIN + reach ? INT32_MIN : row[c] - reach, shift);
        high[c] = spops_floor_shift(row[c] > INT32_MAX - reach ? INT32_MAX : row[c] + reach, shift);
        more = more || low[c] != high[c];
    }
    return more;
}

// Ranks other than `own` that have a cell near the row get it.
static bool find_receivers(spops_context *ctx, halo_making *m, int32_t row, int32_t own,
                           const int32_t *low, const int32_t *high)
{
    int32_t at[SPOPS_KEY_COLUMNS] = {0};

    memcpy(at, low, (size_t)m->columns * sizeof *at);
    for (;;) {
        const int32_t chunk = spops_partition_chunk(m->partition, at);
        const int32_t rank = chunk < 0 ? own : spops_partition_owner(m->partition, chunk);
        if (rank != own && m->marks[rank] != row + 1) {
            m->marks[rank] = row + 1;
            if (!add_pair(ctx, m, row, rank)) return false;
        }
        int32_t c = m->columns - 1;
        while (c > 0 && at[c] == high[c]) {
            at[c] = low[c];
            --c;
        }
        if (c == 0) return true;
        ++at[c];
    }
}

// This rank's rows: each is in one of its chunks, not before the chunk of the row before.
static spops_status read_rows(spops_context *ctx, const char *call, halo_making *m, spops_halo *h)
{
    const spops_partition *p = m->partition;
    int32_t cell[SPOPS_KEY_COLUMNS], low[SPOPS_KEY_COLUMNS], high[SPOPS_KEY_COLUMNS];
    int32_t last = h->first_chunk;

    for (int64_t i = 0; i < m->num_rows; ++i) {
        const bool more = cells_near(m, m->rows + i * m->columns, cell, low, high);
        const int32_t chunk = spops_partition_chunk(p, cell);
        SPOPS_REQUIRE(ctx, chunk >= 0,
                      "%s: owned row %" PRId64 " is outside of the partition's box", call, i);
        SPOPS_REQUIRE(ctx, spops_partition_owner(p, chunk) == p->rank,
                      "%s: owned row %" PRId64 " is of chunk %" PRId32 " of rank %" PRId32
                      ", expected those of rank %" PRId32,
                      call, i, chunk, spops_partition_owner(p, chunk), p->rank);
        SPOPS_REQUIRE(ctx, chunk >= last,
                      "%s: owned row %" PRId64 " is of chunk %" PRId32
                      ", after one of chunk %" PRId32,
                      call, i, chunk, last);
        last = chunk;
        ++h->chunk_offsets[chunk - h->first_chunk + 1];
        if (more && p->num_ranks > 1 && !find_receivers(ctx, m, (int32_t)i, p->rank, low, high))
            return SPOPS_STATUS_OUT_OF_MEMORY;
    }
    for (int32_t c = 0; c < h->num_chunks; ++c)
        h->chunk_offsets[c + 1] += h->chunk_offsets[c];
    return SPOPS_STATUS_OK;
}

// Rows by rank, in their order.
static spops_status list_sent(spops_context *ctx, halo_making *m, spops_halo *h)
{
    int64_t *counts = counts_of(h, SEND), *offsets = counts_of(h, SEND_OFFSETS);

    m->keys = spops_host_alloc(ctx, (size_t)m->num_pairs + 1, sizeof *m->keys);
    if (m->keys == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    for (int64_t i = 0; i < m->num_pairs; ++i)
        ++counts[m->pairs[2 * i + 1]];
    for (int32_t r = 1; r < h->num_ranks; ++r)
        offsets[r] = offsets[r - 1] + counts[r - 1];
    for (int64_t i = 0; i < m->num_pairs; ++i)
        m->keys[offsets[m->pairs[2 * i + 1]]++] = m->pairs[2 * i];
    for (int32_t r = 0; r < h->num_ranks; ++r)
        offsets[r] -= counts[r];
    h->num_sent = m->num_pairs;
    return SPOPS_STATUS_OK;
}

static spops_status read_options(spops_context *ctx, const char *call,
                                 const spops_halo_options *given, const spops_partition *p,
                                 spops_halo_options *o, halo_making *m)
{
    int32_t log2[SPOPS_MAX_DIMS];

    SPOPS_TRY(spops_read_options(ctx, call, given, o, sizeof *o));
    SPOPS_TRY(spops_check_max_cols(ctx, call, &o->max_cols));
    SPOPS_TRY(spops_partition_read_stride(ctx, call, p, o->stride, log2));
    for (int32_t a = 0; a < p->cells.dims; ++a) {
        m->shift[a] = p->cell_log2 - log2[a];
        m->reach[a] = o->reach == NULL ? 1 : o->reach[a];
        SPOPS_REQUIRE(ctx, m->reach[a] >= 0 && m->reach[a] <= (int32_t)1 << m->shift[a],
                      "%s: options->reach[%" PRId32 "] is %" PRId32 ", expected 0 to %" PRId32
                      ", as many voxels as a cell has",
                      call, a, m->reach[a], (int32_t)1 << m->shift[a]);
    }
    return SPOPS_STATUS_OK;
}

// What this rank does before the others are asked.
static spops_status begin_halo(spops_context *ctx, const char *call, const spops_coords *owned,
                               const spops_halo_options *given, halo_making *m, spops_halo *h)
{
    const spops_partition *p = m->partition;
    const int32_t *first = p->first_chunk;
    spops_halo_options o = {0};

    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    SPOPS_TRY(spops_plan_check_sync(ctx, call, "owned", owned));
    SPOPS_TRY(read_options(ctx, call, given, p, &o, m));
    SPOPS_REQUIRE(ctx, owned->arrays.layout.dims == p->cells.dims,
                  "%s: owned has %" PRId32 " axes, the partition %" PRId32, call,
                  owned->arrays.layout.dims, p->cells.dims);
    SPOPS_REQUIRE(ctx,
                  spops_comm_num_ranks(h->link.comm) == p->num_ranks &&
                      spops_comm_rank(h->link.comm) == p->rank,
                  "%s: comm is rank %" PRId32 " of %" PRId32
                  ", partition was made for rank %" PRId32 " of %" PRId32,
                  call, spops_comm_rank(h->link.comm), spops_comm_num_ranks(h->link.comm), p->rank,
                  p->num_ranks);
    h->max_cols = o.max_cols;
    h->first_chunk = first[p->rank];
    h->num_chunks = first[p->rank + 1] - h->first_chunk;
    m->columns = 1 + p->cells.dims;
    h->chunk_offsets = spops_host_alloc(ctx, (size_t)h->num_chunks + 1, sizeof *h->chunk_offsets);
    m->marks = spops_host_alloc(ctx, (size_t)h->num_ranks, sizeof *m->marks);
    if (h->chunk_offsets == NULL || m->marks == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    SPOPS_TRY(spops_coords_read_rows(ctx, owned, &m->num_rows, &m->rows));
    h->num_owned = m->num_rows;
    SPOPS_TRY(read_rows(ctx, call, m, h));
    return list_sent(ctx, m, h);
}

// ---- What ranks say to each other ----------------------------------------------------------------

static spops_status check_same(spops_context *ctx, const char *call, const halo_making *m,
                               const spops_halo *h)
{
    static const char *const strides[SPOPS_MAX_DIMS] = {"options->stride[0]", "options->stride[1]",
                                                        "options->stride[2]", "options->stride[3]"};
    static const char *const reaches[SPOPS_MAX_DIMS] = {"options->reach[0]", "options->reach[1]",
                                                        "options->reach[2]", "options->reach[3]"};
    const spops_partition *p = m->partition;
    spops_comm_choice choices[2 + 2 * SPOPS_MAX_DIMS] = {
        {"partition", spops_partition_fingerprint(p), true},
        {"options->max_cols", h->max_cols, false}};

    for (int32_t a = 0; a < SPOPS_MAX_DIMS; ++a) {
        choices[2 + a] =
            (spops_comm_choice){strides[a], (int64_t)1 << (p->cell_log2 - m->shift[a]), false};
        choices[2 + SPOPS_MAX_DIMS + a] = (spops_comm_choice){reaches[a], m->reach[a], false};
    }
    return spops_comm_check_same_sync(ctx, h->link.comm, call, choices, 2 + 2 * SPOPS_MAX_DIMS);
}

// How many rows each rank sends this one. A value is limited, so one rank's counts are many.
static spops_status gather_counts(spops_context *ctx, spops_halo *h)
{
    enum { AT_ONCE = 256 };
    int64_t own[AT_ONCE];
    const size_t n = (size_t)h->num_ranks;
    const int32_t me = spops_comm_rank(h->link.comm);
    int64_t *all = spops_host_alloc(ctx, n * AT_ONCE, sizeof *all);
    int64_t *recv = counts_of(h, RECV), *offsets = counts_of(h, RECV_OFFSETS);
    spops_status status = spops_comm_agree_sync(
        ctx, h->link.comm, all == NULL ? SPOPS_STATUS_OUT_OF_MEMORY : SPOPS_STATUS_OK);

    for (int32_t begin = 0; status == SPOPS_STATUS_OK && begin < h->num_ranks; begin += AT_ONCE) {
        const int32_t left = h->num_ranks - begin, num = left < AT_ONCE ? left : AT_ONCE;
        memcpy(own, counts_of(h, SEND) + begin, (size_t)num * sizeof *own);
        status = spops_comm_gather_sync(ctx, h->link.comm, own, (size_t)num * sizeof *own, all);
        for (int32_t r = 0; status == SPOPS_STATUS_OK && r < h->num_ranks; ++r)
            if (me >= begin && me < begin + num) recv[r] = all[(int64_t)r * num + me - begin];
    }
    spops_host_free(ctx, all, n * AT_ONCE, sizeof *all);
    for (int32_t r = 0; r < h->num_ranks; ++r) {
        offsets[r] = h->num_ghosts;
        h->num_ghosts += recv[r];
    }
    return status;
}

static void carve(spops_halo *h, spops_carver *c)
{
    const int64_t cols = h->max_cols;
    const size_t element = element_bytes(h->base.ctx);
    h->all_chunk_rows = spops_carve(c, h->num_all_chunks, 1, sizeof *h->all_chunk_rows);
    h->send = spops_carve(c, h->num_sent, cols, element);
    h->recv = spops_carve(c, h->num_ghosts, cols, element);
}

// Once it is known how many rows come.
static spops_status give_block(spops_context *ctx, spops_halo *h)
{
    spops_carver c = {NULL, 0};

    carve(h, &c);
    SPOPS_TRY(spops_backend_alloc(ctx, c.used, &h->base.block));
    h->base.block_bytes = c.used;
    c = (spops_carver){h->base.block, 0};
    carve(h, &c);
    return SPOPS_STATUS_OK;
}

// Rows of every chunk of all ranks, where ctx runs.
static spops_status gather_chunk_rows(spops_context *ctx, const spops_partition *p, spops_halo *h)
{
    const int32_t *first = p->first_chunk;
    const size_t bytes = (size_t)p->num_chunks * sizeof(int32_t);
    const size_t n =
        (size_t)p->num_chunks > (size_t)p->num_ranks ? (size_t)p->num_chunks : (size_t)p->num_ranks;
    int64_t *counts = spops_host_alloc(ctx, 4 * n, sizeof *counts), *offsets = counts + n;
    int64_t *send = offsets + n, *zeros = send + n;
    int32_t *rows = spops_host_alloc(ctx, (size_t)p->num_chunks, sizeof *rows);
    spops_comm_layout layout;
    spops_status status =
        counts == NULL || rows == NULL ? SPOPS_STATUS_OUT_OF_MEMORY : give_block(ctx, h);

    for (int32_t c = 0; rows != NULL && c < h->num_chunks; ++c)
        rows[h->first_chunk + c] = (int32_t)(h->chunk_offsets[c + 1] - h->chunk_offsets[c]);
    if (status == SPOPS_STATUS_OK)
        status = ctx->backend->upload(ctx, h->all_chunk_rows, rows, bytes);
    SPOPS_TRY_GOTO(spops_comm_agree_sync(ctx, h->link.comm, status), status, end);
    for (int32_t r = 0; r < p->num_ranks; ++r) {
        counts[r] = r == p->rank ? 0 : first[r + 1] - first[r];
        offsets[r] = first[r];
        send[r] = r == p->rank ? 0 : h->num_chunks;
        zeros[r] = h->first_chunk;
    }
    layout = (spops_comm_layout){send, zeros, counts, offsets};
    const spops_matrix all =
        spops_matrix_dense(h->all_chunk_rows, p->num_chunks, 1, SPOPS_DTYPE_I32);
    SPOPS_TRY_GOTO(spops_comm_exchange_execute(ctx, h->link.comm, &layout, all, all), status, end);
    SPOPS_TRY_GOTO(ctx->backend->download(ctx, rows, h->all_chunk_rows, bytes), status, end);
    for (int32_t c = 0; c < p->num_chunks; ++c)
        h->num_all_rows += rows[c];
end:
    spops_host_free(ctx, counts, 4 * n, sizeof *counts);
    spops_host_free(ctx, rows, (size_t)p->num_chunks, sizeof *rows);
    return status;
}

// Row i of them; NULL where there are none.
static int32_t *rows_at(const halo_making *m, int64_t i)
{
    return m->memory == NULL ? NULL : m->memory + i * m->columns;
}

// Memory for the rows of coordinates that are kept and sent, and this rank's own in it.
static spops_status put_rows(spops_context *ctx, halo_making *m, const spops_halo *h)
{
    const int64_t total = h->num_owned + h->num_ghosts + h->num_sent;
    int32_t *sent = spops_host_alloc(ctx, (size_t)(h->num_sent * m->columns) + 1, sizeof *sent);
    spops_status status = sent == NULL ? SPOPS_STATUS_OUT_OF_MEMORY : SPOPS_STATUS_OK;
    const size_t row_bytes = (size_t)m->columns * sizeof *sent;

    if (status == SPOPS_STATUS_OK)
        status = spops_backend_alloc(ctx, (size_t)total * row_bytes, (void **)&m->memory);
    for (int64_t i = 0; status == SPOPS_STATUS_OK && i < h->num_sent; ++i)
        memcpy(sent + i * m->columns, m->rows + (int64_t)m->keys[i] * m->columns, row_bytes);
    if (status == SPOPS_STATUS_OK && h->num_owned > 0)
        status = ctx->backend->upload(ctx, m->memory, m->rows, (size_t)h->num_owned * row_bytes);
    if (status == SPOPS_STATUS_OK && h->num_sent > 0)
        status = ctx->backend->upload(ctx, rows_at(m, h->num_owned + h->num_ghosts), sent,
                                      (size_t)h->num_sent * row_bytes);
    spops_host_free(ctx, sent, (size_t)(h->num_sent * m->columns) + 1, sizeof *sent);
    return status;
}

// The segments of the rows that are sent.
static spops_status list_copies(spops_context *ctx, const halo_making *m, spops_halo *h)
{
    void *keys = NULL;
    const size_t key_bytes = (size_t)h->num_sent * sizeof(int32_t);
    spops_status status = spops_backend_alloc(ctx, key_bytes, &keys);

    if (status == SPOPS_STATUS_OK && key_bytes > 0)
        status = ctx->backend->upload(ctx, keys, m->keys, key_bytes);
    if (status == SPOPS_STATUS_OK)
        status = spops_segments_create_from_keys(ctx, h->num_owned, h->num_sent, keys,
                                                 SPOPS_KEYS_UNSORTED, NULL, &h->sent);
    spops_backend_free(ctx, keys, key_bytes);
    if (status == SPOPS_STATUS_OK) spops_plan_adopt(&h->base, (spops_plan *)h->sent);
    return status;
}

// Rows of coordinates go where features will, and become the set of the level.
static spops_status finish_halo(spops_context *ctx, halo_making *m, const spops_coords *owned,
                                spops_halo *h)
{
    const int64_t num = h->num_owned + h->num_ghosts;
    const spops_comm_layout layout = layout_of(h);
    const spops_coords_box box = spops_box_of(&owned->arrays.layout);
    int32_t *sent, *ghosts;
    spops_coords_options options = spops_coords_options_default();
    spops_status status = put_rows(ctx, m, h);

    if (status == SPOPS_STATUS_OK) status = list_copies(ctx, m, h);
    SPOPS_TRY(spops_comm_agree_sync(ctx, h->link.comm, status));
    ghosts = rows_at(m, h->num_owned);
    sent = rows_at(m, num);
    SPOPS_TRY(spops_comm_exchange_execute(
        ctx, h->link.comm, &layout,
        spops_matrix_dense(sent, h->num_sent, m->columns, SPOPS_DTYPE_I32),
        spops_matrix_dense(ghosts, h->num_ghosts, m->columns, SPOPS_DTYPE_I32)));
    options.box = &box;
    SPOPS_TRY(spops_coords_create(ctx, m->columns - 1, num, m->memory, &options, &h->coords));
    spops_plan_adopt(&h->base, &h->coords->base);
    return SPOPS_STATUS_OK;
}

static void put_fields(spops_halo *h, const spops_partition *p)
{
    int64_t *fields = h->base.fields;
    fields[NUM_OWNED] = h->num_owned;
    fields[NUM_GHOSTS] = h->num_ghosts;
    fields[NUM_SENT] = h->num_sent;
    fields[FIRST_CHUNK] = h->first_chunk;
    fields[NUM_CHUNKS] = h->num_chunks;
    fields[NUM_ALL_CHUNKS] = h->num_all_chunks;
    fields[NUM_ALL_ROWS] = h->num_all_rows;
    fields[MAX_COLS] = h->max_cols;
    fields[NUM_RANKS] = p->num_ranks;
    fields[RANK] = p->rank;
}

// ---- The plan ------------------------------------------------------------------------------------

static void destroy_halo(spops_plan *plan)
{
    spops_halo *h = (spops_halo *)plan;

    spops_comm_leave(&h->link);
    spops_host_free(plan->ctx, h->chunk_offsets, (size_t)h->num_chunks + 1,
                    sizeof *h->chunk_offsets);
    spops_host_free(plan->ctx, h->counts, NUM_COUNTS * (size_t)h->num_ranks, sizeof *h->counts);
}

static spops_comm *comm_of(const spops_plan *plan)
{
    return ((const spops_halo *)plan)->link.comm;
}

const spops_plan_ops spops_halo_plan_ops = {
    .handle_bytes = sizeof(spops_halo),
    .num_fields = NUM_FIELDS,
    .destroy = destroy_halo,
    .comm = comm_of,
};

static void making_free(spops_context *ctx, const spops_halo *h, halo_making *m)
{
    const size_t total = (size_t)(h->num_owned + h->num_ghosts + h->num_sent);
    const size_t columns = (size_t)m->columns;

    spops_backend_free(ctx, m->memory, m->memory == NULL ? 0 : total * columns * sizeof *m->memory);
    spops_host_free(ctx, m->rows, (size_t)m->num_rows * columns + 1, sizeof *m->rows);
    spops_host_free(ctx, m->pairs, (size_t)m->max_pairs * 2, sizeof *m->pairs);
    spops_host_free(ctx, m->keys, (size_t)m->num_pairs + 1, sizeof *m->keys);
    spops_host_free(ctx, m->marks, (size_t)h->num_ranks, sizeof *m->marks);
}

spops_status spops_halo_create(spops_context *ctx, spops_comm *comm,
                               const spops_partition *partition, const spops_coords *owned,
                               const spops_halo_options *options, spops_halo **halo)
{
    static const char call[] = "halo_create";
    halo_making m = {.partition = partition};
    spops_status status;
    spops_halo *h = NULL;

    SPOPS_BEGIN_AGREED(ctx, call, halo);
    SPOPS_TRY(spops_check_comm(ctx, call, "comm", comm));
    SPOPS_OUTER_CALL(ctx, call, NULL);
    // What is wrong on this rank alone is said by all.
    status = spops_plan_check(ctx, call, "partition", partition);
    if (status == SPOPS_STATUS_OK) {
        h = spops_plan_alloc(ctx, SPOPS_PLAN_HALO);
        if (h == NULL) status = SPOPS_STATUS_OUT_OF_MEMORY;
    }
    if (status == SPOPS_STATUS_OK) {
        spops_comm_join(&h->link, comm);
        h->num_ranks = partition->num_ranks;
        h->num_all_chunks = partition->num_chunks;
        h->counts = spops_host_alloc(ctx, NUM_COUNTS * (size_t)h->num_ranks, sizeof *h->counts);
        status = h->counts == NULL ? SPOPS_STATUS_OUT_OF_MEMORY
                                   : begin_halo(ctx, call, owned, options, &m, h);
    }
    SPOPS_TRY_GOTO(spops_comm_agree_sync(ctx, comm, status), status, end);
    SPOPS_TRY_GOTO(check_same(ctx, call, &m, h), status, end);
    SPOPS_TRY_GOTO(gather_counts(ctx, h), status, end);
    SPOPS_TRY_GOTO(gather_chunk_rows(ctx, partition, h), status, end);
    SPOPS_TRY_GOTO(spops_comm_agree_sync(ctx, comm, finish_halo(ctx, &m, owned, h)), status, end);
    put_fields(h, partition);
    *halo = h;
end:
    if (h != NULL) making_free(ctx, h, &m);
    if (status != SPOPS_STATUS_OK) spops_plan_destroy((spops_plan *)h);
    return status;
}

spops_status spops_halo_get_info(spops_context *ctx, const spops_halo *halo, spops_halo_info *info)
{
    static const char call[] = "halo_get_info";
    spops_halo_info found = spops_halo_info_default();

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "halo", halo));
    found.num_owned = halo->num_owned;
    found.num_ghosts = halo->num_ghosts;
    found.num_sent = halo->num_sent;
    found.first_chunk = halo->first_chunk;
    found.num_chunks = halo->num_chunks;
    found.num_all_chunks = halo->num_all_chunks;
    found.chunk_offsets = halo->chunk_offsets;
    found.all_chunk_rows = halo->all_chunk_rows;
    found.num_all_rows = halo->num_all_rows;
    found.coords = halo->coords;
    return spops_write_struct(ctx, call, "info", info, &found, sizeof found);
}

// ---- Refreshing ----------------------------------------------------------------------------------

// Rows begin .. begin + num - 1 of x.
static spops_matrix rows_from(spops_matrix x, int64_t begin, int64_t num)
{
    const int64_t bytes = begin * x.row_stride * (int64_t)spops_dtype_bytes(x.dtype);
    if (num > 0 && x.data != NULL) x.data = (char *)x.data + bytes;
    x.rows = num;
    return x;
}

// The rows that are sent, packed; and where ghosts arrive: in out, or packed too where out has gaps. Owned
// rows go to out, unless they are there.
static spops_status pack(spops_context *ctx, const spops_halo *h, spops_matrix x, spops_matrix out,
                         spops_matrix *send, spops_matrix *recv)
{
    *send = spops_matrix_dense(h->send, h->num_sent, x.cols, x.dtype);
    if (out.row_stride == out.cols && h->num_ghosts > 0)
        *recv = rows_from(out, h->num_owned, h->num_ghosts);
    else
        *recv = spops_matrix_dense(h->recv, h->num_ghosts, x.cols, x.dtype);
    if (h->num_owned > 0 && x.cols > 0 && x.data != out.data)
        SPOPS_TRY(spops_convert_execute(ctx, x, rows_from(out, 0, h->num_owned)));
    return spops_gather_execute(ctx, h->sent, x, NULL, *send);
}

// What execute and begin do alike before rows travel. What is refused of rows is refused on all ranks.
static spops_status begin_refresh(spops_context *ctx, const char *call, const spops_halo *h,
                                  spops_matrix x, spops_matrix out, spops_matrix *send,
                                  spops_matrix *recv)
{
    const void *const given[] = {&x, h, &out};
    spops_status status = spops_check_call_as(ctx, call, SPOPS_OP_halo_refresh, given, NULL);

    if (ctx == NULL || h == NULL) return status;
    SPOPS_TRY(spops_plan_check(ctx, call, "halo", h));
    SPOPS_TRY(spops_comm_check_link(ctx, call, "halo", &h->link));
    SPOPS_REQUIRE(ctx, !h->has_begun, "%s: an exchange of the halo has begun and has not ended",
                  call);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    if (status == SPOPS_STATUS_OK && x.cols > h->max_cols)
        status = spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                            "%s: x has %" PRId64 " columns, the halo was made for %" PRId64, call,
                            x.cols, h->max_cols);
    if (status == SPOPS_STATUS_OK) status = pack(ctx, h, x, out, send, recv);
    return status == SPOPS_STATUS_OK ? status : spops_comm_refuse(ctx, h->link.comm, call, status);
}

// Ghosts that arrived packed go to out.
static spops_status unpack(spops_context *ctx, const spops_halo *h, spops_matrix out,
                           spops_matrix recv)
{
    if (recv.data != h->recv || recv.rows == 0 || recv.cols == 0) return SPOPS_STATUS_OK;
    return spops_convert_execute(ctx, recv, rows_from(out, h->num_owned, h->num_ghosts));
}

spops_status spops_halo_execute(spops_context *ctx, spops_halo *halo, spops_matrix x,
                                spops_matrix out)
{
    static const char call[] = "halo_execute";
    spops_comm_layout layout;
    spops_matrix send, recv;

    SPOPS_TRY(begin_refresh(ctx, call, halo, x, out, &send, &recv));
    layout = layout_of(halo);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(spops_comm_exchange_execute(ctx, halo->link.comm, &layout, send, recv));
    return unpack(ctx, halo, out, recv);
}

spops_status spops_halo_begin(spops_context *ctx, spops_halo *halo, spops_matrix x,
                              spops_matrix out)
{
    static const char call[] = "halo_begin";
    spops_comm_layout layout;
    spops_matrix send, recv;

    SPOPS_TRY(begin_refresh(ctx, call, halo, x, out, &send, &recv));
    layout = layout_of(halo);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(spops_comm_exchange_begin(ctx, halo->link.comm, &layout, send, recv));
    halo->has_begun = true;
    halo->out = out;
    halo->received = recv;
    return SPOPS_STATUS_OK;
}

spops_status spops_halo_end(spops_context *ctx, spops_halo *halo)
{
    static const char call[] = "halo_end";

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "halo", halo));
    SPOPS_REQUIRE(ctx, halo->has_begun, "%s: no exchange of the halo has begun", call);
    halo->has_begun = false;
    SPOPS_TRY(spops_comm_check_link(ctx, call, "halo", &halo->link));
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(spops_comm_exchange_end(ctx, halo->link.comm));
    return unpack(ctx, halo, halo->out, halo->received);
}
