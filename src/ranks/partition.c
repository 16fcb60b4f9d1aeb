// SPDX-License-Identifier: Apache-2.0
// Partitions: weights of cells from all ranks, their curve, and where it is cut. On the host.
#include "ranks/partition.h"

#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "core/check.h"
#include "core/plan_file.h"

enum { DEFAULT_CHUNKS = 16, DEFAULT_CELL_LOG2 = 4 };

// A cell by its place on the curve, with the weight of its rows.
typedef struct cell_weight {
    uint64_t code;
    int64_t weight;
} cell_weight;

// ---- What a partition knows ----------------------------------------------------------------------

// Fields of its kind.
enum {
    DIMS,
    NUM_CHUNKS,
    NUM_RANKS,
    RANK,
    CELL_LOG2,
    ORDER,
    LOWER,
    UPPER = LOWER + SPOPS_KEY_COLUMNS,
    NUM_FIELDS = UPPER + SPOPS_KEY_COLUMNS
};

static size_t arrays_bytes(int32_t num_chunks, int32_t num_ranks)
{
    return (size_t)num_chunks * 2 * sizeof(uint64_t) + ((size_t)num_ranks + 1) * sizeof(int32_t);
}

spops_partition *spops_partition_new(spops_context *ctx, int32_t num_chunks, int32_t num_ranks)
{
    spops_partition *p = spops_plan_alloc(ctx, SPOPS_PLAN_PARTITION);

    if (p == NULL) return NULL;
    p->num_chunks = num_chunks;
    p->num_ranks = num_ranks;
    p->cuts = spops_host_alloc(ctx, 1, arrays_bytes(num_chunks, num_ranks));
    if (p->cuts == NULL) {
        spops_plan_destroy(&p->base);
        return NULL;
    }
    p->chunk_weights = (int64_t *)(p->cuts + num_chunks);
    p->first_chunk = (int32_t *)(p->chunk_weights + num_chunks);
    return p;
}

void spops_partition_put_fields(spops_partition *p)
{
    const spops_coords_box box = spops_box_of(&p->cells);
    int64_t *fields = p->base.fields;

    fields[DIMS] = p->cells.dims;
    fields[NUM_CHUNKS] = p->num_chunks;
    fields[NUM_RANKS] = p->num_ranks;
    fields[RANK] = p->rank;
    fields[CELL_LOG2] = p->cell_log2;
    fields[ORDER] = p->order;
    spops_plan_put_i32s(fields + LOWER, box.lower, SPOPS_KEY_COLUMNS);
    spops_plan_put_i32s(fields + UPPER, box.upper, SPOPS_KEY_COLUMNS);
}

static void destroy_partition(spops_plan *plan)
{
    spops_partition *p = (spops_partition *)plan;
    spops_host_free(plan->ctx, p->cuts, 1, arrays_bytes(p->num_chunks, p->num_ranks));
}

const spops_plan_ops spops_partition_plan_ops = {
    .handle_bytes = sizeof(spops_partition),
    .num_fields = NUM_FIELDS,
    .file = &spops_partition_file,
    .destroy = destroy_partition,
};

int64_t spops_partition_fingerprint(const spops_partition *p)
{
    const spops_coords_box box = spops_box_of(&p->cells);
    const int32_t numbers[] = {p->cells.dims, p->num_chunks, p->num_ranks, p->cell_log2,
                               (int32_t)p->order};
    const uint64_t hashes[] = {
        spops_file_checksum(numbers, sizeof numbers),
        spops_file_checksum(box.lower, sizeof box.lower),
        spops_file_checksum(box.upper, sizeof box.upper),
        spops_file_checksum(p->cuts, (size_t)p->num_chunks * sizeof *p->cuts),
        spops_file_checksum(p->first_chunk, ((size_t)p->num_ranks + 1) * sizeof *p->first_chunk),
    };
    return (int64_t)spops_file_checksum(hashes, sizeof hashes);
}

static uint64_t code_of(const spops_partition *p, const int32_t *cell)
{
    const uint64_t key = spops_key_pack(&p->cells, cell);
    if (key == SPOPS_KEY_NONE) return key;
    return p->order == SPOPS_COORDS_ORDER_MORTON ? spops_key_morton(&p->cells, key)
                                                 : spops_key_hilbert(&p->cells, key);
}

static int32_t chunk_of_code(const spops_partition *p, uint64_t code)
{
    int32_t low = 0, high = p->num_chunks - 1; // the last one whose cut is not above code
    while (low < high) {
        const int32_t middle = (low + high + 1) / 2;
        if (p->cuts[middle] <= code)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

int32_t spops_partition_chunk(const spops_partition *p, const int32_t *cell)
{
    const uint64_t code = code_of(p, cell);
    return code == SPOPS_KEY_NONE ? -1 : chunk_of_code(p, code);
}

int32_t spops_partition_owner(const spops_partition *p, int32_t chunk)
{
    const int32_t *first = p->first_chunk;
    int32_t low = 0, high = p->num_ranks - 1; // the last one that begins at chunk or before
    while (low < high) {
        const int32_t middle = (low + high + 1) / 2;
        if (first[middle] <= chunk)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// ---- Rows and cells ------------------------------------------------------------------------------

spops_status spops_coords_read_rows(spops_context *ctx, const spops_coords *coords,
                                    int64_t *num_rows, int32_t **rows)
{
    spops_coords_view view = spops_coords_view_default();
    const int64_t columns = 1 + coords->arrays.layout.dims;
    spops_status status;

    *rows = NULL;
    SPOPS_TRY(spops_coords_get_num_rows_sync(ctx, coords, num_rows));
    SPOPS_TRY(spops_coords_get_view(ctx, coords, &view));
    *rows = spops_host_alloc(ctx, (size_t)(*num_rows * columns) + 1, sizeof **rows);
    if (*rows == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    if (*num_rows == 0) return SPOPS_STATUS_OK;
    status = ctx->backend->download(ctx, *rows, view.rows,
                                    (size_t)(*num_rows * columns) * sizeof **rows);
    if (status == SPOPS_STATUS_OK) return status;
    spops_host_free(ctx, *rows, (size_t)(*num_rows * columns) + 1, sizeof **rows);
    *rows = NULL;
    return status;
}

static int by_code(const void *a, const void *b)
{
    const uint64_t x = ((const cell_weight *)a)->code, y = ((const cell_weight *)b)->code;
    return x < y ? -1 : x > y;
}

// Cells in order, those of one code as one; returns how many there are.
static int64_t merge_cells(cell_weight *cells, int64_t n)
{
    int64_t kept = 0;
    qsort(cells, (size_t)n, sizeof *cells, by_code);
    for (int64_t i = 0; i < n; ++i) {
        if (kept > 0 && cells[kept - 1].code == cells[i].code)
            cells[kept - 1].weight += cells[i].weight;
        else
            cells[kept++] = cells[i];
    }
    return kept;
}

// Cells of this rank's rows, merged into cells[0 .. *n - 1]. Neighbours in one cell are merged as they
// come, so that the sort has few where rows are in order.
static spops_status find_cells(spops_context *ctx, const char *call, const spops_partition *p,
                               int64_t num_rows, const int32_t *rows, const int64_t *weights,
                               cell_weight *cells, int64_t *n)
{
    const int32_t columns = 1 + p->cells.dims;
    int32_t cell[SPOPS_KEY_COLUMNS] = {0}, last[SPOPS_KEY_COLUMNS] = {-1};

    *n = 0;
    for (int64_t i = 0; i < num_rows; ++i) {
        const int64_t weight = weights == NULL ? 1 : weights[i];
        SPOPS_REQUIRE(ctx, weight >= 0 && weight <= INT32_MAX,
                      "%s: options->weights[%" PRId64 "] is %" PRId64 ", expected 0 to %" PRId32,
                      call, i, weight, INT32_MAX);
        cell[0] = rows[i * columns];
        for (int32_t c = 1; c < columns; ++c)
            cell[c] = spops_floor_shift(rows[i * columns + c], p->cell_log2);
        if (*n > 0 && memcmp(cell, last, sizeof cell) == 0) {
            cells[*n - 1].weight += weight;
            continue;
        }
        memcpy(last, cell, sizeof last);
        cells[*n].code = code_of(p, cell);
        cells[(*n)++].weight = weight;
    }
    *n = merge_cells(cells, *n);
    return SPOPS_STATUS_OK;
}

// ---- All ranks -----------------------------------------------------------------------------------

// The box of all rows, in cells. Ranks without rows do not count.
static spops_status find_box(spops_context *ctx, spops_comm *comm, int32_t num_ranks,
                             const spops_coords *coords, int64_t num_rows, int32_t cell_log2,
                             spops_coords_box *box)
{
    struct {
        spops_coords_box box;
        int32_t has_rows;
    } own = {spops_box_of(&coords->arrays.layout), num_rows > 0}, *all;
    bool found = false;
    spops_status status = SPOPS_STATUS_OK;

    all = spops_host_alloc(ctx, (size_t)num_ranks, sizeof *all);
    if (all == NULL) status = SPOPS_STATUS_OUT_OF_MEMORY;
    if (comm != NULL) {
        status = spops_comm_agree_sync(ctx, comm, status);
        if (status == SPOPS_STATUS_OK)
            status = spops_comm_gather_sync(ctx, comm, &own, sizeof own, all);
    } else if (all != NULL) {
        *all = own;
    }
    memset(box, 0, sizeof *box);
    for (int32_t r = 0; status == SPOPS_STATUS_OK && r < num_ranks; ++r) {
        for (int32_t c = 0; all[r].has_rows && c <= coords->arrays.layout.dims; ++c) {
            const int32_t shift = c == 0 ? 0 : cell_log2;
            const int32_t lower = spops_floor_shift(all[r].box.lower[c], shift);
            const int32_t upper = spops_floor_shift(all[r].box.upper[c], shift);
            if (!found || lower < box->lower[c]) box->lower[c] = lower;
            if (!found || upper > box->upper[c]) box->upper[c] = upper;
        }
        found = found || all[r].has_rows;
    }
    spops_host_free(ctx, all, (size_t)num_ranks, sizeof *all);
    return status;
}

// The cells of all ranks, one rank's after the other's, to memory that the caller frees: *num of them.
static spops_status gather_cells(spops_context *ctx, spops_comm *comm, int32_t num_ranks,
                                 const cell_weight *own, int64_t num_own, cell_weight **all,
                                 int64_t *num)
{
    enum { COLUMNS = sizeof(cell_weight) / sizeof(int32_t) };
    const size_t sizes = (size_t)num_ranks * 4;
    int64_t *counts = spops_host_alloc(ctx, sizes, sizeof *counts);
    int64_t *const offsets = counts + num_ranks, *const send = offsets + num_ranks;
    void *memory = NULL;
    spops_status status = counts == NULL ? SPOPS_STATUS_OUT_OF_MEMORY : SPOPS_STATUS_OK;
    spops_comm_layout layout;

    *all = NULL;
    *num = 0;
    SPOPS_TRY_GOTO(spops_comm_agree_sync(ctx, comm, status), status, end);
    SPOPS_TRY_GOTO(spops_comm_gather_sync(ctx, comm, &num_own, sizeof num_own, counts), status,
                   end);
    for (int32_t r = 0; r < num_ranks; ++r) {
        offsets[r] = *num;
        *num += counts[r];
        send[r] = num_own; // all of them, to everybody
    }
    layout = (spops_comm_layout){send, send + num_ranks, counts, offsets};
    *all = spops_host_alloc(ctx, (size_t)*num + 1, sizeof **all);
    status = *all == NULL
                 ? SPOPS_STATUS_OUT_OF_MEMORY
                 : spops_backend_alloc(ctx, (size_t)(num_own + *num + 1) * sizeof **all, &memory);
    cell_weight *const mine = memory, *const theirs = mine == NULL ? NULL : mine + num_own;
    if (status == SPOPS_STATUS_OK && num_own > 0)
        status = ctx->backend->upload(ctx, mine, own, (size_t)num_own * sizeof *own);
    SPOPS_TRY_GOTO(spops_comm_agree_sync(ctx, comm, status), status, end);
    SPOPS_TRY_GOTO(
        spops_comm_exchange_execute(ctx, comm, &layout,
                                    spops_matrix_dense(mine, num_own, COLUMNS, SPOPS_DTYPE_I32),
                                    spops_matrix_dense(theirs, *num, COLUMNS, SPOPS_DTYPE_I32)),
        status, end);
    if (*num > 0)
        SPOPS_TRY_GOTO(ctx->backend->download(ctx, *all, theirs, (size_t)*num * sizeof **all),
                       status, end);
end:
    spops_backend_free(ctx, memory,
                       memory == NULL ? 0 : (size_t)(num_own + *num + 1) * sizeof **all);
    spops_host_free(ctx, counts, sizes, sizeof *counts);
    if (status == SPOPS_STATUS_OK) return status;
    spops_host_free(ctx, *all, (size_t)*num + 1, sizeof **all);
    *all = NULL;
    return status;
}

// ---- Cuts ----------------------------------------------------------------------------------------

// c / parts of total, rounded up; total is below 2^62 / parts.
static int64_t share(int64_t total, int64_t c, int64_t parts)
{
    return (total * c + parts - 1) / parts;
}

static void cut_chunks(spops_partition *p, const cell_weight *cells, int64_t n)
{
    int64_t *weights = p->chunk_weights, total = 0, before = 0;
    int32_t chunk = 0;

    for (int64_t i = 0; i < n; ++i)
        total += cells[i].weight;
    // Chunks whose begin comes after all cells have none.
    for (int32_t c = 1; c < p->num_chunks; ++c)
        p->cuts[c] = SPOPS_KEY_NONE;
    for (int64_t i = 0; i < n; ++i) {
        while (chunk + 1 < p->num_chunks && before > 0 &&
               before >= share(total, chunk + 1, p->num_chunks))
            p->cuts[++chunk] = cells[i].code;
        weights[chunk] += cells[i].weight;
        before += cells[i].weight;
    }
}

static void deal_chunks(spops_partition *p)
{
    const int64_t *weights = p->chunk_weights;
    int32_t *first = p->first_chunk, rank = 0;
    int64_t total = 0, before = 0;

    for (int32_t c = 0; c < p->num_chunks; ++c)
        total += weights[c];
    for (int32_t c = 0; c < p->num_chunks; ++c) {
        // The middle of the chunk, in halves; of no weight at all each chunk counts alike.
        const int64_t middle = total > 0 ? 2 * before + weights[c] : 2 * c + 1;
        const int64_t all = total > 0 ? 2 * total : 2 * (int64_t)p->num_chunks;
        while (rank + 1 < p->num_ranks && middle >= share(all, rank + 1, p->num_ranks))
            first[++rank] = c;
        before += weights[c];
    }
    while (rank < p->num_ranks)
        first[++rank] = p->num_chunks;
}

static spops_status read_first_chunks(spops_context *ctx, const char *call, const int32_t *given,
                                      spops_partition *p)
{
    int32_t *first = p->first_chunk;

    for (int32_t r = 0; r <= p->num_ranks; ++r) {
        const int32_t least = r == 0 ? 0 : given[r - 1];
        SPOPS_REQUIRE(ctx,
                      given[r] >= least && given[r] <= p->num_chunks && (r > 0 || given[r] == 0) &&
                          (r < p->num_ranks || given[r] == p->num_chunks),
                      "%s: options->first_chunk[%" PRId32 "] is %" PRId32
                      ", expected ascending numbers from 0 to %" PRId32,
                      call, r, given[r], p->num_chunks);
        first[r] = given[r];
    }
    return SPOPS_STATUS_OK;
}

// ---- The calls -----------------------------------------------------------------------------------

static spops_status read_options(spops_context *ctx, const char *call,
                                 const spops_partition_options *given, spops_partition_options *o)
{
    SPOPS_TRY(spops_read_options(ctx, call, given, o, sizeof *o));
    SPOPS_TRY(spops_check_reserved(ctx, call, o->reserved));
    if (o->num_chunks == 0) o->num_chunks = DEFAULT_CHUNKS;
    if (o->cell_log2 == 0) o->cell_log2 = DEFAULT_CELL_LOG2;
    if (o->order == SPOPS_COORDS_ORDER_GIVEN) o->order = SPOPS_COORDS_ORDER_HILBERT;
    SPOPS_REQUIRE(ctx, o->num_chunks > 0 && o->num_chunks <= SPOPS_PARTITION_MAX_CHUNKS,
                  "%s: options->num_chunks is %" PRId32 ", expected 1 to %d", call, o->num_chunks,
                  SPOPS_PARTITION_MAX_CHUNKS);
    SPOPS_REQUIRE(ctx, o->cell_log2 > 0 && o->cell_log2 <= SPOPS_PARTITION_CELL_LOG2,
                  "%s: options->cell_log2 is %" PRId32 ", expected 1 to %d", call, o->cell_log2,
                  SPOPS_PARTITION_CELL_LOG2);
    SPOPS_REQUIRE(ctx,
                  o->order == SPOPS_COORDS_ORDER_MORTON || o->order == SPOPS_COORDS_ORDER_HILBERT,
                  "%s: options->order is %d, expected MORTON or HILBERT", call, (int)o->order);
    return SPOPS_STATUS_OK;
}

// What this rank has of a partition that is being made.
typedef struct making {
    int64_t num_rows, num_cells, num_all;
    int32_t *rows;
    int64_t *weights;
    cell_weight *cells, *all;
} making;

static void making_free(spops_context *ctx, int32_t columns, making *m)
{
    const size_t n = (size_t)m->num_rows;
    spops_host_free(ctx, m->rows, n * (size_t)columns + 1, sizeof *m->rows);
    spops_host_free(ctx, m->weights, n + 1, sizeof *m->weights);
    if (m->all != m->cells) spops_host_free(ctx, m->all, (size_t)m->num_all + 1, sizeof *m->all);
    spops_host_free(ctx, m->cells, n + 1, sizeof *m->cells);
}

static spops_status check_total(spops_context *ctx, const char *call, const making *m,
                                const spops_partition *p)
{
    const int64_t parts = p->num_chunks > p->num_ranks ? p->num_chunks : p->num_ranks;
    const int64_t most = INT64_MAX / 4 / parts;
    int64_t total = 0;

    for (int64_t i = 0; i < m->num_all; ++i) {
        SPOPS_REQUIRE(ctx, m->all[i].weight <= most - total,
                      "%s: the sum of options->weights is more than %" PRId64, call, most);
        total += m->all[i].weight;
    }
    return SPOPS_STATUS_OK;
}

// What a rank does alone before its cells meet the others'.
static spops_status read_cells(spops_context *ctx, const char *call, const spops_partition *p,
                               const int64_t *weights, making *m)
{
    const size_t n = (size_t)m->num_rows;

    m->cells = spops_host_alloc(ctx, n + 1, sizeof *m->cells);
    if (m->cells == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    if (weights != NULL) {
        m->weights = spops_host_alloc(ctx, n + 1, sizeof *m->weights);
        if (m->weights == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
        if (n > 0) SPOPS_TRY(ctx->backend->download(ctx, m->weights, weights, n * sizeof *weights));
    }
    return find_cells(ctx, call, p, m->num_rows, m->rows, m->weights, m->cells, &m->num_cells);
}

// Everything of a partition after its options.
static spops_status fill_partition(spops_context *ctx, const char *call, spops_comm *comm,
                                   const spops_coords *coords, const spops_partition_options *o,
                                   spops_partition *p, making *m)
{
    const spops_comm_choice choices[] = {{"coords.dims", coords->arrays.layout.dims, false},
                                         {"options->num_chunks", o->num_chunks, false},
                                         {"options->cell_log2", o->cell_log2, false},
                                         {"options->order", (int64_t)o->order, false}};
    spops_coords_box box;
    spops_status status = spops_coords_read_rows(ctx, coords, &m->num_rows, &m->rows);

    if (comm != NULL) {
        SPOPS_TRY(spops_comm_agree_sync(ctx, comm, status));
        status = spops_comm_check_same_sync(ctx, comm, call, choices, 4);
    }
    SPOPS_TRY(status);
    SPOPS_TRY(find_box(ctx, comm, p->num_ranks, coords, m->num_rows, p->cell_log2, &box));
    // From here on a failure of this rank alone is that of all.
    status =
        spops_key_layout_make(ctx, call, coords->arrays.layout.dims, &box, p->order, &p->cells);
    if (status == SPOPS_STATUS_OK) status = read_cells(ctx, call, p, o->weights, m);
    if (comm == NULL) {
        SPOPS_TRY(status);
        m->all = m->cells;
        m->num_all = m->num_cells;
    } else {
        SPOPS_TRY(spops_comm_agree_sync(ctx, comm, status));
        SPOPS_TRY(
            gather_cells(ctx, comm, p->num_ranks, m->cells, m->num_cells, &m->all, &m->num_all));
    }
    status = check_total(ctx, call, m, p);
    if (status == SPOPS_STATUS_OK)
        cut_chunks(p, m->all, comm == NULL ? m->num_all : merge_cells(m->all, m->num_all));
    if (status == SPOPS_STATUS_OK && o->first_chunk == NULL) deal_chunks(p);
    if (status == SPOPS_STATUS_OK && o->first_chunk != NULL)
        status = read_first_chunks(ctx, call, o->first_chunk, p);
    if (comm == NULL) return status;
    SPOPS_TRY(spops_comm_agree_sync(ctx, comm, status));
    const spops_comm_choice first = {"options->first_chunk", spops_partition_fingerprint(p), true};
    return spops_comm_check_same_sync(ctx, comm, call, &first, 1);
}

spops_status spops_partition_create(spops_context *ctx, spops_comm *comm,
                                    const spops_coords *coords,
                                    const spops_partition_options *options,
                                    spops_partition **partition)
{
    static const char call[] = "partition_create";
    spops_partition_options o = {0};
    spops_partition *p = NULL;
    making m = {0};
    spops_status status;

    SPOPS_BEGIN_AGREED(ctx, call, partition);
    if (comm != NULL) SPOPS_TRY(spops_check_comm(ctx, call, "comm", comm));
    SPOPS_OUTER_CALL(ctx, call, NULL);
    // What is wrong on this rank alone is said by all.
    status = spops_plan_check_sync(ctx, call, "coords", coords);
    if (status == SPOPS_STATUS_OK) status = read_options(ctx, call, options, &o);
    if (status == SPOPS_STATUS_OK) {
        p = spops_partition_new(ctx, o.num_chunks, comm == NULL ? 1 : spops_comm_num_ranks(comm));
        if (p == NULL) status = SPOPS_STATUS_OUT_OF_MEMORY;
    }
    if (comm != NULL) status = spops_comm_agree_sync(ctx, comm, status);
    if (status == SPOPS_STATUS_OK) {
        p->rank = comm == NULL ? 0 : spops_comm_rank(comm);
        p->cell_log2 = o.cell_log2;
        p->order = o.order;
        status = fill_partition(ctx, call, comm, coords, &o, p, &m);
        making_free(ctx, 1 + coords->arrays.layout.dims, &m);
    }
    if (status != SPOPS_STATUS_OK) {
        spops_plan_destroy((spops_plan *)p);
        return status;
    }
    spops_partition_put_fields(p);
    *partition = p;
    return SPOPS_STATUS_OK;
}

spops_status spops_partition_get_info(spops_context *ctx, const spops_partition *partition,
                                      spops_partition_info *info)
{
    static const char call[] = "partition_get_info";
    spops_partition_info found = spops_partition_info_default();

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "partition", partition));
    found.dims = partition->cells.dims;
    found.num_chunks = partition->num_chunks;
    found.num_ranks = partition->num_ranks;
    found.rank = partition->rank;
    found.cell_log2 = partition->cell_log2;
    found.order = partition->order;
    found.first_chunk = partition->first_chunk;
    found.chunk_weights = partition->chunk_weights;
    return spops_write_struct(ctx, call, "info", info, &found, sizeof found);
}

spops_status spops_partition_read_stride(spops_context *ctx, const char *call,
                                         const spops_partition *p, const int32_t *stride,
                                         int32_t log2[SPOPS_MAX_DIMS])
{
    for (int32_t a = 0; a < SPOPS_MAX_DIMS; ++a) {
        const int32_t s = stride == NULL || a >= p->cells.dims ? 1 : stride[a];
        SPOPS_REQUIRE(ctx, s >= 1 && (s & (s - 1)) == 0 && s <= 1 << p->cell_log2,
                      "%s: stride[%" PRId32 "] is %" PRId32
                      ", expected a power of two up to %" PRId32,
                      call, a, s, (int32_t)1 << p->cell_log2);
        log2[a] = 0;
        while (1 << log2[a] < s)
            ++log2[a];
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_partition_get_box(spops_context *ctx, const spops_partition *partition,
                                     const int32_t *stride, spops_coords_box *box)
{
    static const char call[] = "partition_get_box";
    int32_t log2[SPOPS_MAX_DIMS];

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "partition", partition));
    SPOPS_TRY(spops_check_object(ctx, call, "box", box, sizeof(int32_t)));
    SPOPS_TRY(spops_partition_read_stride(ctx, call, partition, stride, log2));
    *box = spops_box_of(&partition->cells);
    for (int32_t a = 1; a <= partition->cells.dims; ++a) {
        const int64_t voxels = (int64_t)1 << (partition->cell_log2 - log2[a - 1]);
        box->lower[a] = (int32_t)(box->lower[a] * voxels);
        box->upper[a] = (int32_t)(box->upper[a] * voxels + voxels - 1);
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_partition_find_chunks(spops_context *ctx, const spops_partition *partition,
                                         const int32_t *stride, int64_t num_rows,
                                         const int32_t *rows, int32_t *chunks)
{
    static const char call[] = "partition_find_chunks";
    int32_t log2[SPOPS_MAX_DIMS], cell[SPOPS_KEY_COLUMNS] = {0};

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "partition", partition));
    SPOPS_TRY(spops_partition_read_stride(ctx, call, partition, stride, log2));
    SPOPS_TRY(spops_check_count(ctx, call, "num_rows", num_rows));
    SPOPS_TRY(spops_check_indices(ctx, call, "rows", rows, num_rows));
    SPOPS_TRY(spops_check_indices(ctx, call, "chunks", chunks, num_rows));
    const int32_t columns = 1 + partition->cells.dims;
    for (int64_t i = 0; i < num_rows; ++i) {
        cell[0] = rows[i * columns];
        for (int32_t c = 1; c < columns; ++c)
            cell[c] = spops_floor_shift(rows[i * columns + c], partition->cell_log2 - log2[c - 1]);
        chunks[i] = spops_partition_chunk(partition, cell);
    }
    return SPOPS_STATUS_OK;
}
