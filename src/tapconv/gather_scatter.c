// SPDX-License-Identifier: Apache-2.0
// Gather-matmul-scatter after TorchSparse, section 4: all rows are gathered at once, each input row
// being read once; products run in groups of taps; and all products are summed at once, each output
// row being written once. A submanifold map's middle tap joins row to row: it is multiplied where x
// lies, and added to out last.
#include "tapconv/gather_scatter.h"

#include "gather/gather_args.h"
#include "segreduce/segreduce.h"

struct spops_gather_scatter {
    spops_context *ctx; // made it, frees it
    spops_context_part *matmul;
    int64_t max_in_channels, max_out_channels;
    int32_t num_taps, middle; // middle: the tap that joins row to row, or -1
    int64_t num_rows;         // of the buffers
    int32_t *counts;          // [num_taps] pairs
    int32_t *begin;           // [num_taps] first row of a tap in the buffers
    int32_t *taps;            // [num_taps] in the order of groups
    spops_tap_group *groups;  // [num_groups], room for num_taps
    int32_t num_groups;
    // The rows of the buffers that belong to a row of either side: gathered and summed over.
    spops_segments *by_side[SPOPS_NUM_SIDES];
};

// ---- Plans --------------------------------------------------------------------------------------

// Where each tap lies in the buffers, by groups.
static void lay_out(spops_gather_scatter *gs)
{
    for (int32_t g = 0; g < gs->num_groups; ++g) {
        const spops_tap_group *group = &gs->groups[g];
        for (int32_t i = group->first; i < group->first + group->count; ++i) {
            gs->begin[gs->taps[i]] = (int32_t)gs->num_rows;
            gs->num_rows += group->batched ? group->rows : gs->counts[gs->taps[i]];
        }
    }
}

// Pairs of each tap, from the relation's offsets, and of all.
static spops_status count_pairs(spops_context *ctx, const spops_relation *relation,
                                spops_gather_scatter *gs, int64_t *num_pairs)
{
    const size_t n = (size_t)gs->num_taps;
    int32_t *offsets = spops_host_alloc(ctx, n + 1, sizeof *offsets);
    spops_status status = SPOPS_STATUS_OUT_OF_MEMORY;

    if (offsets == NULL) return status;
    status = ctx->backend->download(ctx, offsets, relation->sides[SPOPS_SIDE_TARGET].by_key.offsets,
                                    (n + 1) * sizeof *offsets);
    for (size_t k = 0; k < n && status == SPOPS_STATUS_OK; ++k)
        gs->counts[k] = offsets[k + 1] - offsets[k];
    *num_pairs = status == SPOPS_STATUS_OK ? offsets[n] : 0;
    spops_host_free(ctx, offsets, n + 1, sizeof *offsets);
    return status;
}

// While a plan is made, where the context runs: pairs but those of the middle tap, and the row of the
// buffers of each.
typedef struct build_arrays {
    int32_t *begin;                               // [num_taps] as the plan's
    int32_t *rows[SPOPS_NUM_SIDES], *buffer_rows; // [num_pairs]
} build_arrays;

static build_arrays carve_arrays(int32_t num_taps, int64_t num_pairs, spops_carver *c)
{
    build_arrays a;
    a.begin = spops_carve(c, num_taps, 1, sizeof *a.begin);
    a.buffer_rows = spops_carve(c, num_pairs, 1, sizeof *a.buffer_rows);
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side)
        a.rows[side] = spops_carve(c, num_pairs, 1, sizeof *a.rows[side]);
    return a;
}

// The lists of both sides, from the relation's pairs where they lie. num_pairs: with the middle tap's.
static spops_status make_lists(spops_context *ctx, const spops_relation *relation,
                               spops_gather_scatter *gs, int64_t num_pairs, const build_arrays *a)
{
    const int64_t left = num_pairs - (gs->middle >= 0 ? gs->counts[gs->middle] : 0);
    const spops_relation_places_args places = {.relation = relation,
                                               .num_entries = num_pairs,
                                               .first = a->begin,
                                               .without = gs->middle,
                                               .rows = {a->rows[0], a->rows[1]},
                                               .places = a->buffer_rows};
    spops_segments_options options = spops_segments_options_default();

    options.idx = left > 0 ? a->buffer_rows : NULL;
    options.num_rows = gs->num_rows;
    options.max_cols =
        gs->max_in_channels > gs->max_out_channels ? gs->max_in_channels : gs->max_out_channels;
    SPOPS_TRY(
        ctx->backend->upload(ctx, a->begin, gs->begin, (size_t)gs->num_taps * sizeof *gs->begin));
    if (left > 0) SPOPS_TRY(ctx->backend->relation_places(ctx, &places));
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side)
        SPOPS_TRY(spops_segments_create_from_keys(ctx, relation->sides[side].max_rows, left,
                                                  a->rows[side], SPOPS_KEYS_UNSORTED, &options,
                                                  &gs->by_side[side]));
    return SPOPS_STATUS_OK;
}

static spops_status build(spops_context *ctx, const char *call, const spops_relation *relation,
                          spops_gather_scatter *gs, int64_t num_pairs)
{
    spops_carver c = {NULL, 0};
    spops_status status;
    void *block = NULL;
    build_arrays a;

    SPOPS_REQUIRE(ctx, gs->num_rows < INT32_MAX,
                  "%s: the map's pairs, padded in their groups, are %" PRId64
                  " rows, expected less than %d",
                  call, gs->num_rows, INT32_MAX);
    (void)carve_arrays(gs->num_taps, num_pairs, &c);
    const size_t bytes = c.used;
    SPOPS_TRY(spops_backend_alloc(ctx, bytes, &block));
    c = (spops_carver){block, 0};
    a = carve_arrays(gs->num_taps, num_pairs, &c);
    status = make_lists(ctx, relation, gs, num_pairs, &a);
    spops_backend_free(ctx, block, bytes);
    return status;
}

static spops_status alloc_arrays(spops_context *ctx, spops_gather_scatter *gs)
{
    const size_t n = (size_t)gs->num_taps;
    gs->counts = spops_host_alloc(ctx, n, sizeof *gs->counts);
    gs->begin = spops_host_alloc(ctx, n, sizeof *gs->begin);
    gs->taps = spops_host_alloc(ctx, n, sizeof *gs->taps);
    gs->groups = spops_host_alloc(ctx, n, sizeof *gs->groups);
    return gs->counts != NULL && gs->begin != NULL && gs->taps != NULL && gs->groups != NULL
               ? SPOPS_STATUS_OK
               : SPOPS_STATUS_OUT_OF_MEMORY;
}

spops_status spops_gather_scatter_create(spops_context *ctx, const char *call,
                                         const spops_relation *relation,
                                         const spops_gather_scatter_options *options,
                                         spops_gather_scatter **out)
{
    const spops_matmul_open_args open = {call};
    spops_status status = SPOPS_STATUS_OK;
    spops_gather_scatter *gs = NULL;
    int64_t num_pairs;

    *out = NULL;
    SPOPS_TRY(ctx->backend->matmul_open(ctx, &open));
    gs = spops_host_alloc(ctx, 1, sizeof *gs);
    if (gs == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    gs->ctx = ctx;
    gs->matmul = ctx->matmul;
    gs->max_in_channels = options->max_in_channels;
    gs->max_out_channels = options->max_out_channels;
    gs->num_taps = (int32_t)relation->num_keys;
    gs->middle = relation->symmetric ? gs->num_taps / 2 : -1; // their number is odd
    SPOPS_TRY_GOTO(alloc_arrays(ctx, gs), status, fail);
    SPOPS_TRY_GOTO(count_pairs(ctx, relation, gs, &num_pairs), status, fail);
    gs->num_groups = spops_group_taps(&options->grouping, gs->num_taps, gs->counts,
                                      relation->symmetric, gs->taps, gs->groups);
    lay_out(gs);
    SPOPS_TRY_GOTO(build(ctx, call, relation, gs, num_pairs), status, fail);
    *out = gs;
    return SPOPS_STATUS_OK;

fail:
    spops_gather_scatter_destroy(gs);
    return status;
}

void spops_gather_scatter_destroy(spops_gather_scatter *gs)
{
    spops_context *ctx;
    size_t n;
    if (gs == NULL) return;
    ctx = gs->ctx;
    n = (size_t)gs->num_taps;
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side)
        spops_segments_destroy(gs->by_side[side]); // waits
    spops_host_free(ctx, gs->counts, n, sizeof *gs->counts);
    spops_host_free(ctx, gs->begin, n, sizeof *gs->begin);
    spops_host_free(ctx, gs->taps, n, sizeof *gs->taps);
    spops_host_free(ctx, gs->groups, n, sizeof *gs->groups);
    spops_host_free(ctx, gs, 1, sizeof *gs);
}

size_t spops_gather_scatter_bytes(const spops_gather_scatter *gs)
{
    const size_t tap_bytes =
        sizeof *gs->counts + sizeof *gs->begin + sizeof *gs->taps + sizeof *gs->groups;
    return sizeof *gs + (size_t)gs->num_taps * tap_bytes +
           gs->by_side[SPOPS_SIDE_TARGET]->base.block_bytes +
           gs->by_side[SPOPS_SIDE_SOURCE]->base.block_bytes;
}

// ---- Scratch ------------------------------------------------------------------------------------

// Two buffers of num_rows rows: what is gathered, and products (or, for the gradient of weights, what
// else is gathered).
typedef struct gs_scratch {
    void *first, *second;
    void *workspace;
    spops_segments_scratch sums;
} gs_scratch;

static gs_scratch carve_scratch(const spops_gather_scatter *gs, const spops_segments *sums,
                                size_t first_row_bytes, size_t second_row_bytes, spops_carver *c)
{
    gs_scratch s;
    s.workspace = spops_carve(c, 1, 1, SPOPS_MATMUL_WORKSPACE_BYTES);
    s.sums = spops_segments_carve_scratch(sums, c);
    s.first = spops_carve(c, gs->num_rows, 1, first_row_bytes);
    s.second = spops_carve(c, gs->num_rows, 1, second_row_bytes);
    return s;
}

size_t spops_gather_scatter_scratch_bytes(const spops_gather_scatter *gs)
{
    const size_t in_bytes = (size_t)gs->max_in_channels * sizeof(float);
    const size_t out_bytes = (size_t)gs->max_out_channels * sizeof(float);
    spops_carver forward = {NULL, 0}, backward = {NULL, 0};
    (void)carve_scratch(gs, gs->by_side[SPOPS_SIDE_TARGET], in_bytes, out_bytes, &forward);
    (void)carve_scratch(gs, gs->by_side[SPOPS_SIDE_SOURCE], out_bytes, in_bytes, &backward);
    return forward.used > backward.used ? forward.used : backward.used;
}

static size_t row_bytes(spops_matrix m)
{
    return (size_t)m.cols * spops_dtype_bytes(m.dtype);
}

// ---- Running ------------------------------------------------------------------------------------

static spops_status gather(spops_context *ctx, const spops_segments *lists, spops_matrix x,
                           spops_matrix buffer)
{
    spops_gather_args args = {.lists = &lists->forward, .x = x, .out = buffer};
    if (buffer.rows == 0) return SPOPS_STATUS_OK;
    return ctx->backend->gather(ctx, &args);
}

// Between rows of m; it says nothing where there is one.
static int64_t stride_of(spops_matrix m)
{
    return m.rows > 1 ? m.row_stride : m.cols;
}

static void *at_row(spops_matrix m, int64_t row)
{
    return (char *)m.data + (size_t)(row * m.row_stride) * spops_dtype_bytes(m.dtype);
}

// Taps taps[0] .. that one batch can hold: their matrices lie at equal distances.
static int32_t run_of(const int32_t *taps, int32_t count)
{
    int32_t n = count < 2 ? count : 2;
    while (n < count && taps[n] - taps[n - 1] == taps[1] - taps[0])
        ++n;
    return n;
}

// What the products of a run share.
typedef struct product_run {
    spops_matmul_args args; // batch aside
    spops_matrix gathered, products, w;
    int64_t tap_rows; // of w
} product_run;

// Products of `count` taps at equal distances whose parts of the buffers have `rows` rows each.
static spops_status multiply_taps(spops_context *ctx, const spops_gather_scatter *gs,
                                  const product_run *run, const int32_t *taps, int32_t count,
                                  int64_t rows)
{
    const int32_t step = count > 1 ? taps[1] - taps[0] : 0;
    spops_matmul_args args = run->args;
    args.batches = count;
    args.rows = rows;
    args.a.data = at_row(run->gathered, gs->begin[taps[0]]);
    args.a.row_stride = run->gathered.cols;
    args.a.batch_stride = rows * run->gathered.cols;
    args.b.data = at_row(run->w, taps[0] * run->tap_rows);
    args.b.batch_stride = step * run->tap_rows * run->w.cols;
    args.c.data = at_row(run->products, gs->begin[taps[0]]);
    args.c.row_stride = run->products.cols;
    args.c.batch_stride = rows * run->products.cols;
    return ctx->backend->matmul(ctx, &args);
}

static spops_status multiply_groups(spops_context *ctx, const spops_gather_scatter *gs,
                                    const product_run *run)
{
    for (int32_t g = 0; g < gs->num_groups; ++g) {
        const spops_tap_group *group = &gs->groups[g];
        const int32_t *taps = gs->taps + group->first;
        for (int32_t i = 0, n; i < group->count; i += n) {
            n = group->batched ? run_of(taps + i, group->count - i) : 1;
            SPOPS_TRY(multiply_taps(ctx, gs, run, taps + i, n,
                                    group->batched ? group->rows : gs->counts[taps[i]]));
        }
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_gather_scatter_run(spops_context *ctx, const spops_gather_scatter *gs,
                                      const spops_gather_scatter_call *call)
{
    const int side = call->reversed ? SPOPS_SIDE_SOURCE : SPOPS_SIDE_TARGET;
    const spops_segments *from = gs->by_side[1 - side], *to = gs->by_side[side];
    spops_carver c = {call->scratch, 0};
    const gs_scratch scratch = carve_scratch(gs, to, row_bytes(call->x), row_bytes(call->out), &c);
    const spops_matrix none = {0};
    product_run run = {
        .gathered = spops_matrix_dense(scratch.first, gs->num_rows, call->x.cols, call->x.dtype),
        .products =
            spops_matrix_dense(scratch.second, gs->num_rows, call->out.cols, call->out.dtype),
        .w = call->w,
        .tap_rows = call->w.rows / gs->num_taps};

    run.w.row_stride = run.w.cols;
    run.args = (spops_matmul_args){.library = gs->matmul,
                                   .cols = call->out.cols,
                                   .depth = call->x.cols,
                                   .dtype = call->x.dtype,
                                   .out_dtype = call->out.dtype,
                                   .b = {.row_stride = run.w.cols, .transposed = call->reversed},
                                   .tf32 = call->tf32,
                                   .workspace = scratch.workspace};
    SPOPS_TRY(gather(ctx, from, call->x, run.gathered));
    SPOPS_TRY(multiply_groups(ctx, gs, &run));
    if (gs->num_rows > 0 || gs->middle < 0) // else the middle tap's product is all there is
        SPOPS_TRY(spops_segreduce_run_sum(ctx, &to->forward, run.products, none, call->out,
                                          scratch.sums));
    if (gs->middle < 0) return SPOPS_STATUS_OK;
    run.args.batches = 1;
    run.args.rows = call->out.rows;
    run.args.accumulate = gs->num_rows > 0;
    run.args.a.data = call->x.data;
    run.args.a.row_stride = stride_of(call->x);
    run.args.b.data = at_row(run.w, gs->middle * run.tap_rows);
    run.args.c.data = call->out.data;
    run.args.c.row_stride = stride_of(call->out);
    return ctx->backend->matmul(ctx, &run.args);
}

// ---- The gradient of weights --------------------------------------------------------------------
// A product for each tap: they are deep and small, and a batch of them would leave most of a GPU idle.

static spops_status clear_empty_taps(spops_context *ctx, const spops_gather_scatter *gs,
                                     spops_matrix grad_w)
{
    const int64_t tap_rows = grad_w.rows / gs->num_taps;
    for (int32_t k = 0; k < gs->num_taps; ++k)
        if (gs->counts[k] == 0)
            SPOPS_TRY(ctx->backend->fill_zero(ctx, at_row(grad_w, k * tap_rows),
                                              (size_t)tap_rows * row_bytes(grad_w)));
    return SPOPS_STATUS_OK;
}

spops_status spops_gather_scatter_run_weights(spops_context *ctx, const spops_gather_scatter *gs,
                                              const spops_gather_scatter_weights_call *call)
{
    spops_carver c = {call->scratch, 0};
    const gs_scratch scratch = carve_scratch(gs, gs->by_side[SPOPS_SIDE_TARGET], row_bytes(call->x),
                                             row_bytes(call->grad_sum), &c);
    const spops_matrix gathered =
        spops_matrix_dense(scratch.first, gs->num_rows, call->x.cols, call->x.dtype);
    const spops_matrix gradients =
        spops_matrix_dense(scratch.second, gs->num_rows, call->grad_sum.cols, call->x.dtype);
    const spops_matrix grad_w = spops_matrix_dense(call->grad_w.data, call->grad_w.rows,
                                                   call->grad_w.cols, call->grad_w.dtype);
    spops_matmul_args args = {.library = gs->matmul,
                              .batches = 1,
                              .rows = call->x.cols,
                              .cols = call->grad_sum.cols,
                              .dtype = call->x.dtype,
                              .out_dtype = call->grad_w.dtype,
                              .a = {.transposed = true},
                              .c = {.row_stride = grad_w.cols},
                              .tf32 = call->tf32,
                              .workspace = scratch.workspace};

    SPOPS_TRY(gather(ctx, gs->by_side[SPOPS_SIDE_SOURCE], call->x, gathered));
    SPOPS_TRY(gather(ctx, gs->by_side[SPOPS_SIDE_TARGET], call->grad_sum, gradients));
    SPOPS_TRY(clear_empty_taps(ctx, gs, call->grad_w));
    for (int32_t k = 0; k < gs->num_taps; ++k) {
        const bool in_place = k == gs->middle;
        const spops_matrix a = in_place ? call->x : gathered;
        const spops_matrix b = in_place ? call->grad_sum : gradients;
        if (gs->counts[k] == 0) continue;
        args.depth = gs->counts[k];
        args.a.data = at_row(a, in_place ? 0 : gs->begin[k]);
        args.a.row_stride = stride_of(a);
        args.b.data = at_row(b, in_place ? 0 : gs->begin[k]);
        args.b.row_stride = stride_of(b);
        args.c.data = at_row(grad_w, k * call->x.cols);
        SPOPS_TRY(ctx->backend->matmul(ctx, &args));
    }
    return SPOPS_STATUS_OK;
}
