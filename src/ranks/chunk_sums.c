// SPDX-License-Identifier: Apache-2.0
// Sums over chunks of all ranks along one tree. A rank adds the parts of the tree that it owns; what is left
// of them, its nodes, goes to the other ranks. Few values go whole, and every rank adds all nodes: one
// exchange, whose latency is most of what it takes. Many go in slices: each rank adds one slice of all
// nodes, and the slices of the result go to all.
#include <string.h>

#include "call/call_check.h"
#include "comm/comm.h"
#include "core/threads.h"
#include "ranks/partition.h"
#include "spops/activation.h"
#include "spops/halo.h"

struct spops_chunk_sums {
    spops_plan base; // its block holds nodes and slices
    spops_comm_link link;
    int32_t num_ranks, rank, num_chunks;
    int32_t num_rounds; // the most nodes that a rank has
    int32_t depth;      // of this rank's deepest node: the logarithm of its width
    int64_t max_values;
    bool whole;           // every rank gets all values of all nodes
    int32_t *first_chunk; // [num_ranks + 1]
    int32_t *places; // [num_chunks] round * num_ranks + rank of the node that begins there, or -1
    int64_t *counts; // [4][num_ranks] of a layout
    float *nodes;    // [depth][max_values]: of the node in work, at each level below it
    float *slices;   // [num_rounds][num_ranks][longest slice]
};

enum { MOST_WHOLE = 1 << 16 }; // numbers of a node of every rank, 256 KiB

// Fields of its kind.
enum { NUM_CHUNKS, NUM_ALL_CHUNKS, MAX_VALUES, NUM_RANKS, RANK, NUM_FIELDS };

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

// sum = a + b; a may be sum.
static spops_status add_values(spops_context *ctx, const float *a, const float *b, float *sum,
                               int64_t n)
{
    enum { COLUMNS = 64 };
    const int64_t whole = n / COLUMNS * COLUMNS, at[] = {0, whole};

    for (int part = 0; part < 2; ++part) { // rows of 64, and what is left
        const int64_t rows = part == 0 ? whole / COLUMNS : n > whole;
        const int64_t cols = part == 0 ? COLUMNS : n - whole;
        if (rows == 0) continue;
        const spops_matrix x = spops_matrix_dense_const(a + at[part], rows, cols, SPOPS_DTYPE_F32);
        const spops_matrix y = spops_matrix_dense_const(b + at[part], rows, cols, SPOPS_DTYPE_F32);
        SPOPS_TRY(spops_add_execute(
            ctx, x, y, NULL, spops_matrix_dense(sum + at[part], rows, cols, SPOPS_DTYPE_F32)));
    }
    return SPOPS_STATUS_OK;
}

static spops_status add_row(spops_context *ctx, const tree_rows *r, int64_t to, int64_t from)
{
    float *a = r->rows + to * r->stride;
    return add_values(ctx, a, r->rows + from * r->stride, a, r->n);
}

// The node of chunks `begin` and after, of `width`, as partials has them: *sum is one of these, or in
// s->nodes, from level `depth` on.
static spops_status add_node(spops_context *ctx, const spops_chunk_sums *s, spops_matrix partials,
                             int32_t begin, int32_t width, int32_t depth, const float **sum)
{
    const int32_t right = begin + width / 2, first = s->first_chunk[s->rank];
    const float *b;
    float *to;

    if (width == 1) {
        *sum = (const float *)partials.data + (begin - first) * partials.cols;
        return SPOPS_STATUS_OK;
    }
    SPOPS_TRY(add_node(ctx, s, partials, begin, width / 2, depth, sum));
    if (right >= s->num_chunks) return SPOPS_STATUS_OK; // without a right sibling it goes up
    SPOPS_TRY(add_node(ctx, s, partials, right, width / 2, depth + 1, &b));
    to = s->nodes + depth * partials.cols;
    SPOPS_TRY(add_values(ctx, *sum, b, to, partials.cols));
    *sum = to;
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
        for (int32_t c = s->first_chunk[r], w; c < end; c += w) {
            w = node_width(c, end, s->num_chunks);
            s->places[c] = round++ * s->num_ranks + r;
            while (r == s->rank && 1 << s->depth < w)
                ++s->depth;
        }
        if (round > s->num_rounds) s->num_rounds = round;
    }
}

static int64_t longest_slice(const spops_chunk_sums *s)
{
    return s->whole ? s->max_values : (s->max_values + s->num_ranks - 1) / s->num_ranks;
}

static void carve(spops_chunk_sums *s, spops_carver *c)
{
    s->nodes = spops_carve(c, s->depth, s->max_values, sizeof *s->nodes);
    s->slices =
        spops_carve(c, (int64_t)s->num_rounds * s->num_ranks, longest_slice(s), sizeof *s->slices);
}

static spops_status fill_sums(spops_context *ctx, const char *call, spops_comm *comm,
                              const spops_partition *partition, int64_t max_values,
                              spops_chunk_sums *s)
{
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    SPOPS_TRY(spops_plan_check(ctx, call, "partition", partition));
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
    s->whole = max_values <= MOST_WHOLE / s->num_ranks;
    s->first_chunk = spops_host_alloc(ctx, (size_t)s->num_ranks + 1, sizeof *s->first_chunk);
    s->places = spops_host_alloc(ctx, (size_t)s->num_chunks, sizeof *s->places);
    s->counts = spops_host_alloc(ctx, 4 * (size_t)s->num_ranks, sizeof *s->counts);
    if (s->first_chunk == NULL || s->places == NULL || s->counts == NULL)
        return SPOPS_STATUS_OUT_OF_MEMORY;
    memcpy(s->first_chunk, partition->first_chunk,
           ((size_t)s->num_ranks + 1) * sizeof *s->first_chunk);
    place_nodes(s);
    s->base.fields[NUM_CHUNKS] = s->first_chunk[s->rank + 1] - s->first_chunk[s->rank];
    s->base.fields[NUM_ALL_CHUNKS] = s->num_chunks;
    s->base.fields[MAX_VALUES] = max_values;
    s->base.fields[NUM_RANKS] = s->num_ranks;
    s->base.fields[RANK] = s->rank;
    spops_carver c = {NULL, 0};
    carve(s, &c);
    SPOPS_TRY(spops_backend_alloc(ctx, c.used, &s->base.block));
    s->base.block_bytes = c.used;
    c = (spops_carver){s->base.block, 0};
    carve(s, &c);
    return SPOPS_STATUS_OK;
}

spops_status spops_chunk_sums_create(spops_context *ctx, spops_comm *comm,
                                     const spops_partition *partition, int64_t max_values,
                                     spops_chunk_sums **sums)
{
    static const char call[] = "chunk_sums_create";
    spops_status status = SPOPS_STATUS_OUT_OF_MEMORY;
    spops_chunk_sums *s;

    SPOPS_BEGIN_AGREED(ctx, call, sums);
    SPOPS_TRY(spops_check_comm(ctx, call, "comm", comm));
    SPOPS_OUTER_CALL(ctx, call, NULL);
    s = spops_plan_alloc(ctx, SPOPS_PLAN_CHUNK_SUMS);
    if (s != NULL) {
        spops_comm_join(&s->link, comm);
        status = fill_sums(ctx, call, comm, partition, max_values, s);
    }
    status = spops_comm_agree_sync(ctx, comm, status);
    if (status == SPOPS_STATUS_OK) {
        const spops_comm_choice choices[] = {
            {"partition", spops_partition_fingerprint(partition), true},
            {"max_values", max_values, false}};
        status = spops_comm_check_same_sync(ctx, comm, call, choices, 2);
    }
    if (status == SPOPS_STATUS_OK)
        *sums = s;
    else
        spops_plan_destroy((spops_plan *)s);
    return status;
}

static void destroy_sums(spops_plan *plan)
{
    spops_chunk_sums *s = (spops_chunk_sums *)plan;

    spops_comm_leave(&s->link);
    spops_host_free(plan->ctx, s->first_chunk, (size_t)s->num_ranks + 1, sizeof *s->first_chunk);
    spops_host_free(plan->ctx, s->places, (size_t)s->num_chunks, sizeof *s->places);
    spops_host_free(plan->ctx, s->counts, 4 * (size_t)s->num_ranks, sizeof *s->counts);
}

static spops_comm *comm_of(const spops_plan *plan)
{
    return ((const spops_chunk_sums *)plan)->link.comm;
}

const spops_plan_ops spops_chunk_sums_plan_ops = {
    .handle_bytes = sizeof(spops_chunk_sums),
    .num_fields = NUM_FIELDS,
    .destroy = destroy_sums,
    .comm = comm_of,
};

// ---- Running them --------------------------------------------------------------------------------

// What a rank gets of n values.
static int64_t slice_begin(const spops_chunk_sums *s, int64_t n, int32_t rank)
{
    return s->whole ? 0 : spops_part_begin(n, rank, s->num_ranks);
}

static int64_t slice_length(const spops_chunk_sums *s, int64_t n, int32_t rank)
{
    return s->whole ? n : spops_part_begin(n, rank + 1, s->num_ranks) - slice_begin(s, n, rank);
}

// A column of f32, as the exchange takes it.
static spops_matrix column(const float *data, int64_t n)
{
    return spops_matrix_dense_const(n > 0 ? data : NULL, n, 1, SPOPS_DTYPE_F32);
}

// Node `round` of every rank: its slices to all.
static spops_status send_round(spops_context *ctx, const spops_chunk_sums *s, int32_t round,
                               const float *node, int64_t n, float *slices)
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
    return spops_comm_exchange_execute(ctx, s->link.comm, &layout,
                                       column(node, node == NULL ? 0 : n),
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
    return spops_comm_exchange_execute(ctx, s->link.comm, &layout, column(slice, mine),
                                       column(out, n));
}

spops_status spops_chunk_sums_execute(spops_context *ctx, spops_chunk_sums *sums,
                                      spops_matrix partials, float *out)
{
    static const char call[] = "chunk_sums_execute";
    const spops_chunk_sums *s = sums;
    const void *const given[] = {&partials, s, out};
    const int64_t n = partials.cols;
    spops_status status = spops_check_call(ctx, SPOPS_OP_chunk_sums, given, NULL);

    if (ctx == NULL || s == NULL) return status;
    SPOPS_TRY(spops_plan_check(ctx, call, "sums", s));
    SPOPS_TRY(spops_comm_check_link(ctx, call, "sums", &s->link));
    if (status == SPOPS_STATUS_OK && n > s->max_values)
        status =
            spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                       "%s: partials have %" PRId64 " columns, the sums were made for %" PRId64,
                       call, n, s->max_values);
    if (status != SPOPS_STATUS_OK) return spops_comm_refuse(ctx, s->link.comm, call, status);
    if (n == 0) return SPOPS_STATUS_OK;

    SPOPS_OUTER_CALL(ctx, call, NULL);
    const int32_t end = s->first_chunk[s->rank + 1];
    const int64_t mine = slice_length(s, n, s->rank);
    int32_t c = s->first_chunk[s->rank];
    for (int32_t round = 0; round < s->num_rounds; ++round) {
        const int32_t width = c < end ? node_width(c, end, s->num_chunks) : 0;
        const float *node = NULL;
        if (c < end) SPOPS_TRY(add_node(ctx, s, partials, c, width, 0, &node));
        if (s->num_ranks == 1) return ctx->backend->copy(ctx, out, node, (size_t)n * sizeof *out);
        SPOPS_TRY(
            send_round(ctx, s, round, node, n, s->slices + (int64_t)round * s->num_ranks * mine));
        c += width;
    }
    const tree_rows slices = {s->slices, mine, mine};
    if (mine > 0) SPOPS_TRY(add_all(ctx, s, &slices));
    float *const result = s->slices + (int64_t)s->places[0] * mine;
    return s->whole ? ctx->backend->copy(ctx, out, result, (size_t)n * sizeof *out)
                    : send_result(ctx, s, result, n, out);
}
