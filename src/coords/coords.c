// SPDX-License-Identifier: Apache-2.0
// Sets of coordinates: argument checks, allocation, the order in which the backend fills them, and
// what can be asked of a set. The rows themselves are made in coords_cpu.c and kernels/coords.
#include "coords/coords.h"

#include <string.h>

#include "core/half.h"
#include "core/matrix.h"

// Fields of a description.
enum {
    DIMS,
    MAX_ROWS,
    MAX_ITEMS,
    ORDER,
    SEARCH,
    LOWER,
    UPPER = LOWER + SPOPS_KEY_COLUMNS,
    NUM_FIELDS = UPPER + SPOPS_KEY_COLUMNS
};
static const spops_coords_fields coords_fields = {DIMS, ORDER, SEARCH, LOWER, UPPER};

// ---- Checks -------------------------------------------------------------------------------------

spops_status spops_coords_check_dims(spops_context *ctx, const char *call, int64_t dims)
{
    SPOPS_REQUIRE(ctx, dims >= 1 && dims <= SPOPS_MAX_DIMS,
                  "%s: dims is %" PRId64 ", expected 1 to %d", call, dims, SPOPS_MAX_DIMS);
    return SPOPS_STATUS_OK;
}

static spops_status read_box(spops_context *ctx, const char *call, int32_t dims,
                             const spops_coords_box *box, spops_coords_box *read)
{
    SPOPS_TRY(spops_check_aligned(ctx, call, "box", box, _Alignof(spops_coords_box)));
    for (int c = 0; c <= dims; ++c) {
        SPOPS_REQUIRE(ctx, box->lower[c] <= box->upper[c],
                      "%s: box.lower[%d] is %" PRId32 ", more than box.upper[%d] = %" PRId32, call,
                      c, box->lower[c], c, box->upper[c]);
        read->lower[c] = box->lower[c];
        read->upper[c] = box->upper[c];
    }
    SPOPS_REQUIRE(ctx, box->lower[0] >= 0,
                  "%s: box.lower[0] is %" PRId32 ", expected a batch of at least 0", call,
                  box->lower[0]);
    return SPOPS_STATUS_OK;
}

spops_status spops_coords_read_options(spops_context *ctx, const char *call, int32_t dims,
                                       const spops_coords_options *options,
                                       spops_coords_choices *choices)
{
    spops_coords_options o;
    memset(&o, 0, sizeof o);
    memset(choices, 0, sizeof *choices);
    SPOPS_TRY(spops_read_options(ctx, call, options, &o, sizeof o));
    SPOPS_REQUIRE(ctx, o.order >= SPOPS_COORDS_ORDER_GIVEN && o.order <= SPOPS_COORDS_ORDER_HILBERT,
                  "%s: order is %d, expected %d to %d", call, (int)o.order,
                  (int)SPOPS_COORDS_ORDER_GIVEN, (int)SPOPS_COORDS_ORDER_HILBERT);
    SPOPS_REQUIRE(ctx,
                  o.search >= SPOPS_COORDS_SEARCH_AUTO && o.search <= SPOPS_COORDS_SEARCH_SORTED,
                  "%s: search is %d, expected %d to %d", call, (int)o.search,
                  (int)SPOPS_COORDS_SEARCH_AUTO, (int)SPOPS_COORDS_SEARCH_SORTED);
    SPOPS_REQUIRE(ctx,
                  o.duplicates == SPOPS_COORDS_DUPLICATES_REFUSE ||
                      o.duplicates == SPOPS_COORDS_DUPLICATES_MERGE,
                  "%s: duplicates is %d, expected %d or %d", call, (int)o.duplicates,
                  (int)SPOPS_COORDS_DUPLICATES_REFUSE, (int)SPOPS_COORDS_DUPLICATES_MERGE);
    SPOPS_TRY(spops_check_reserved(ctx, call, o.reserved));
    choices->order = o.order;
    choices->search = o.search;
    choices->duplicates = o.duplicates;
    choices->max_grid_bytes = o.max_grid_bytes > 0 ? o.max_grid_bytes : SPOPS_DEFAULT_GRID_BYTES;
    choices->memory = o.memory;
    choices->has_box = o.box != NULL;
    SPOPS_TRY(spops_check_aligned(ctx, call, "box", o.box, _Alignof(spops_coords_box)));
    if (o.box != NULL) SPOPS_TRY(read_box(ctx, call, dims, o.box, &choices->box));
    return SPOPS_STATUS_OK;
}

// Refuse the item that bounds name, with what is wrong with it (waits).
static spops_status refuse_row(spops_context *ctx, const char *call,
                               const spops_coords_source *source,
                               const spops_coords_choices *choices,
                               const spops_coords_bounds *bounds)
{
    const int64_t item = bounds->bad_item;
    const int c = bounds->bad_column;
    const int64_t at = item * (source->dims + 1) + c;
    int32_t value;
    SPOPS_TRY(ctx->backend->download(ctx, &value, source->rows + at, sizeof value));
    if (choices->has_box)
        return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                          "%s: rows[%" PRId64 "][%d] is %" PRId32 ", expected %" PRId32
                          " to %" PRId32 " by the box",
                          call, item, c, value, choices->box.lower[c], choices->box.upper[c]);
    return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                      "%s: rows[%" PRId64 "][%d] is %" PRId32 ", expected a batch of at least 0",
                      call, item, c, value);
}

static spops_status refuse_point(spops_context *ctx, const char *call,
                                 const spops_coords_source *source,
                                 const spops_coords_choices *choices,
                                 const spops_coords_bounds *bounds)
{
    const int64_t item = bounds->bad_item;
    const int axis = bounds->bad_column - 1;
    const spops_matrix *m = &source->points;
    float p;
    double u;
    uint16_t half;
    int32_t value;
    if (axis < 0 && source->batch == NULL)
        return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                          "%s: batch is NULL, so that every point is of batch 0, expected %" PRId32
                          " to %" PRId32 " by the box",
                          call, choices->box.lower[0], choices->box.upper[0]);
    if (axis < 0) {
        SPOPS_TRY(ctx->backend->download(ctx, &value, source->batch + item, sizeof value));
        return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                          "%s: batch[%" PRId64 "] is %" PRId32 ", expected %" PRId32 " to %" PRId32,
                          call, item, value, choices->has_box ? choices->box.lower[0] : 0,
                          choices->has_box ? choices->box.upper[0] : INT32_MAX);
    }
    const int64_t at = item * spops_row_step(*m) + axis;
    if (m->dtype == SPOPS_DTYPE_F32) {
        SPOPS_TRY(ctx->backend->download(ctx, &p, (const float *)m->data + at, sizeof p));
    } else {
        SPOPS_TRY(ctx->backend->download(ctx, &half, (const uint16_t *)m->data + at, sizeof half));
        p = spops_float_of_f16(half);
    }
    SPOPS_REQUIRE(ctx, p - p == 0.0f, "%s: points[%" PRId64 "][%d] is %g, expected a finite number",
                  call, item, axis, (double)p);
    u = spops_voxel_position(p, source->origin[axis], source->size[axis], 0.0);
    SPOPS_REQUIRE(ctx, spops_voxel_floor(u, &value),
                  "%s: points[%" PRId64 "][%d] is %g, in voxel %.15g, expected one of 32 bits",
                  call, item, axis, (double)p, u);
    return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                      "%s: points[%" PRId64 "][%d] is %g, in voxel %" PRId32 ", expected %" PRId32
                      " to %" PRId32 " by the box",
                      call, item, axis, (double)p, value, choices->box.lower[axis + 1],
                      choices->box.upper[axis + 1]);
}

spops_status spops_coords_find_box(spops_context *ctx, const char *call,
                                   const spops_coords_source *source,
                                   const spops_coords_choices *choices, spops_coords_box *box,
                                   bool *ascending)
{
    spops_coords_bounds bounds;
    const spops_coords_bounds_args args = {
        .source = source, .box = choices->has_box ? &choices->box : NULL, .bounds = &bounds};
    memset(box, 0, sizeof *box);
    *ascending = false;
    if (choices->has_box) *box = choices->box;
    if (source->max_items == 0) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE_SLOT(ctx, call, coords_bounds);
    memset(&bounds, 0, sizeof bounds);
    SPOPS_TRY(ctx->backend->coords_bounds(ctx, &args));
    if (bounds.bad_item >= 0)
        return source->kind == SPOPS_COORDS_POINTS
                   ? refuse_point(ctx, call, source, choices, &bounds)
                   : refuse_row(ctx, call, source, choices, &bounds);
    *ascending = bounds.ascending;
    if (choices->has_box) return SPOPS_STATUS_OK;
    for (int c = 0; c <= source->dims; ++c) {
        box->lower[c] = bounds.lower[c];
        box->upper[c] = bounds.upper[c];
    }
    return SPOPS_STATUS_OK;
}

// ---- Making a set -------------------------------------------------------------------------------

static void carve_coords(spops_plan *plan, spops_carver *c)
{
    spops_coords *s = (spops_coords *)plan;
    spops_coords_arrays *a = &s->arrays;
    a->state = spops_carve(c, 1, 1, sizeof *a->state);
    a->rows = spops_carve(c, a->max_rows, a->layout.dims + 1, sizeof *a->rows);
    a->keys = spops_carve(c, a->max_rows, 1, sizeof *a->keys);
    a->row_item = spops_carve(c, a->max_rows, 1, sizeof *a->row_item);
    a->item_row = s->keeps_item_row ? spops_carve(c, a->max_items, 1, sizeof *a->item_row) : NULL;
    if (c->base != NULL) { // a block that this handle has not filled
        s->has_item_row = s->keeps_item_row;
        s->last_items = a->max_items;
    }
    a->index = spops_carve(c, 1, 1, a->index_bytes);
}

static spops_status choose_search(spops_context *ctx, const char *call,
                                  const spops_coords_choices *choices, spops_coords_arrays *a)
{
    const spops_coords_search_args args = {
        .layout = &a->layout, .max_rows = a->max_rows, .max_grid_bytes = choices->max_grid_bytes};
    a->search = choices->search;
    if (a->search == SPOPS_COORDS_SEARCH_AUTO)
        a->search = (spops_coords_search)ctx->backend->coords_search(ctx, &args);
    a->index_bytes = ctx->backend->coords_index_bytes(ctx, a);
    SPOPS_REQUIRE(
        ctx, a->search != SPOPS_COORDS_SEARCH_GRID || a->index_bytes <= choices->max_grid_bytes,
        "%s: a grid over the box of the coordinates takes %zu bytes, expected at most "
        "max_grid_bytes = %zu",
        call, a->index_bytes, choices->max_grid_bytes);
    return SPOPS_STATUS_OK;
}

#define NO_WORKSPACE (-1) // candidates of a set that is never built again

static void carve_coords_workspace(spops_plan *plan, spops_carver *c)
{
    const spops_coords *s = (const spops_coords *)plan;
    const spops_coords_workspace_args args = {&s->arrays, s->max_candidates};
    plan->workspace =
        s->max_candidates == NO_WORKSPACE
            ? NULL
            : spops_carve(c, 1, 1, plan->ctx->backend->coords_workspace_bytes(plan->ctx, &args));
}

// The sizes of a set that follow from its box, choices and capacities.
static spops_status set_sizes(spops_context *ctx, const char *call, int32_t dims,
                              const spops_coords_box *box, const spops_coords_choices *choices,
                              int64_t max_rows, int64_t max_items, int64_t max_candidates,
                              spops_coords *s)
{
    SPOPS_REQUIRE_SLOT(ctx, call, coords_build);
    s->arrays.order = choices->order;
    s->arrays.ascending = choices->order == SPOPS_COORDS_ORDER_LEXICOGRAPHIC ||
                          (choices->order == SPOPS_COORDS_ORDER_GIVEN && choices->ascending);
    s->arrays.max_rows = max_rows;
    s->arrays.max_items = max_items;
    s->max_candidates = max_candidates;
    SPOPS_TRY(spops_key_layout_make(ctx, call, dims, box, choices->order, &s->arrays.layout));
    SPOPS_TRY(choose_search(ctx, call, choices, &s->arrays));
    s->base.fields[MAX_ROWS] = max_rows;
    s->base.fields[MAX_ITEMS] = max_items;
    spops_coords_put_fields(s, &coords_fields, s->base.fields);
    return SPOPS_STATUS_OK;
}

// A set with its arrays and workspace, nothing in them.
static spops_status alloc_set(spops_context *ctx, const char *call, int32_t dims,
                              const spops_coords_box *box, const spops_coords_choices *choices,
                              int64_t max_rows, int64_t max_items, bool item_rows,
                              int64_t max_candidates, spops_coords **out)
{
    spops_status status = SPOPS_STATUS_OK;
    spops_coords *s = spops_plan_alloc(ctx, SPOPS_PLAN_COORDS);

    *out = NULL;
    if (s == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    s->keeps_item_row = s->has_item_row = item_rows;
    SPOPS_TRY_GOTO(set_sizes(ctx, call, dims, box, choices, max_rows, max_items, max_candidates, s),
                   status, fail);
    SPOPS_TRY_GOTO(spops_plan_give_memory(ctx, call, &s->base), status, fail);
    *out = s;
    return SPOPS_STATUS_OK;

fail:
    spops_coords_destroy(s);
    return status;
}

static spops_status check_duplicates(spops_context *ctx, const char *call,
                                     const spops_coords_source *source,
                                     const spops_coords_choices *choices,
                                     const spops_coords_state *state)
{
    if (source->kind != SPOPS_COORDS_ROWS || choices->duplicates == SPOPS_COORDS_DUPLICATES_MERGE ||
        state->duplicate < 0)
        return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                      "%s: rows[%" PRId32 "] equals rows[%" PRId32 "], expected no duplicates",
                      call, state->duplicate, state->duplicate_of);
}

// Whether the row of each item is kept: of items with one candidate each, which callers number.
static bool has_item_rows(spops_coords_kind kind)
{
    return kind != SPOPS_COORDS_DOWN && kind != SPOPS_COORDS_UP && kind != SPOPS_COORDS_GROWN;
}

static spops_status build_set(spops_context *ctx, const spops_coords_source *source,
                              const spops_coords_arrays *coords, void *workspace)
{
    const spops_coords_build_args args = {source, coords, workspace, false};
    return ctx->backend->coords_build(ctx, &args);
}

// A set of just the rows that there are: the backend counts them before there are arrays.
static spops_status make_to_measure(spops_context *ctx, const char *call,
                                    const spops_coords_source *source,
                                    const spops_coords_choices *choices,
                                    const spops_coords_box *box, spops_coords **out)
{
    spops_status status = SPOPS_STATUS_OK;
    const bool item_rows = has_item_rows(source->kind);
    spops_coords_state state;
    spops_coords_arrays counted = {.order = choices->order,
                                   .max_rows = source->max_candidates,
                                   .max_items = source->max_items,
                                   .state = &state};
    const spops_coords_workspace_args size = {&counted, source->max_candidates};
    spops_coords_build_args args = {source, &counted, NULL, false};
    size_t bytes = 0;
    spops_coords *s = NULL;

    SPOPS_TRY(spops_key_layout_make(ctx, call, source->dims, box, choices->order, &counted.layout));
    bytes = ctx->backend->coords_workspace_bytes(ctx, &size);
    SPOPS_TRY(spops_backend_alloc(ctx, bytes, &args.workspace));
    SPOPS_TRY_GOTO(ctx->backend->coords_sort(ctx, &args), status, done);
    SPOPS_TRY_GOTO(check_duplicates(ctx, call, source, choices, &state), status, done);
    SPOPS_TRY_GOTO(alloc_set(ctx, call, source->dims, box, choices, state.num_rows,
                             source->max_items, item_rows, NO_WORKSPACE, &s),
                   status, done);
    args.coords = &s->arrays;
    args.sorted = true;
    SPOPS_TRY_GOTO(ctx->backend->coords_build(ctx, &args), status, done);
    s->state = state;
    s->has_item_row = item_rows;
    s->last_items = source->max_items;
    s->base.fields[MAX_ITEMS] = source->max_candidates;

done:
    spops_backend_free(ctx, args.workspace, bytes);
    if (status == SPOPS_STATUS_OK)
        *out = s;
    else
        spops_coords_destroy(s);
    return status;
}

// The set that `wide`, whose capacity was not reached, is once it is made to measure.
static spops_status fit_set(spops_context *ctx, const char *call, const spops_coords *wide,
                            const spops_coords_choices *choices, spops_coords **out)
{
    spops_status status = SPOPS_STATUS_OK;
    const spops_coords_arrays *from = &wide->arrays;
    const spops_coords_box box = spops_box_of(&from->layout);
    const int64_t n = wide->state.num_rows;
    const bool item_rows = from->item_row != NULL;
    const spops_coords_source source = {.kind = SPOPS_COORDS_ROWS,
                                        .dims = from->layout.dims,
                                        .unique = true,
                                        .ordered = true,
                                        .max_items = n,
                                        .rows = from->rows,
                                        .max_candidates = n};
    spops_coords_arrays filled;
    spops_coords *s = NULL;

    SPOPS_TRY(
        alloc_set(ctx, call, source.dims, &box, choices, n, from->max_items, item_rows, n, &s));
    filled = s->arrays;
    filled.max_items = n;
    filled.item_row = NULL; // the numbers of items are those of `wide`
    SPOPS_TRY_GOTO(build_set(ctx, &source, &filled, s->base.workspace), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->copy(ctx, s->arrays.row_item, from->row_item,
                                      (size_t)n * sizeof *from->row_item),
                   status, fail);
    if (item_rows)
        SPOPS_TRY_GOTO(ctx->backend->copy(ctx, s->arrays.item_row, from->item_row,
                                          (size_t)from->max_items * sizeof *from->item_row),
                       status, fail);
    // The counts of the fill that `wide` had.
    SPOPS_TRY_GOTO(ctx->backend->copy(ctx, s->arrays.state, from->state, sizeof *from->state),
                   status, fail);
    SPOPS_TRY_GOTO(spops_plan_wait_made(ctx), status, fail);
    s->state = wide->state;
    *out = s;
    return SPOPS_STATUS_OK;

fail:
    spops_coords_destroy(s);
    return status;
}

spops_status spops_coords_make(spops_context *ctx, const char *call,
                               const spops_coords_source *source,
                               const spops_coords_choices *choices, const spops_coords_box *box,
                               spops_coords **out)
{
    spops_status status = SPOPS_STATUS_OK;
    const bool item_rows = has_item_rows(source->kind);
    spops_coords *s = NULL, *fitted = NULL;

    SPOPS_TRY(spops_check_no_memory(ctx, call, choices->memory));
    // On a GPU rows are expected to be unique: a set of them is filled at once, by one table.
    if (ctx->backend->kind == SPOPS_BACKEND_CPU || source->kind != SPOPS_COORDS_ROWS)
        return make_to_measure(ctx, call, source, choices, box, out);
    SPOPS_TRY(alloc_set(ctx, call, source->dims, box, choices, source->max_candidates,
                        source->max_items, item_rows, source->max_candidates, &s));
    SPOPS_TRY_GOTO(build_set(ctx, source, &s->arrays, s->base.workspace), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->download(ctx, &s->state, s->arrays.state, sizeof s->state), status,
                   fail);
    spops_plan_close(&s->base);
    SPOPS_TRY_GOTO(check_duplicates(ctx, call, source, choices, &s->state), status, fail);
    if (s->state.num_rows < s->arrays.max_rows) {
        SPOPS_TRY_GOTO(fit_set(ctx, call, s, choices, &fitted), status, fail);
        spops_coords_destroy(s);
        s = fitted;
        spops_plan_close(&s->base);
    }
    s->has_item_row = item_rows;
    s->last_items = source->max_items;
    s->base.fields[MAX_ITEMS] = source->max_candidates;
    *out = s;
    return SPOPS_STATUS_OK;

fail:
    spops_coords_destroy(s);
    return status;
}

static spops_status empty_coords(spops_context *ctx, spops_plan *plan)
{
    spops_coords *s = (spops_coords *)plan;
    const spops_coords_source nothing = {.kind = SPOPS_COORDS_ROWS, .dims = s->arrays.layout.dims};
    return spops_coords_fill(ctx, ctx->call, s, &nothing);
}

spops_status spops_coords_fill(spops_context *ctx, const char *call, spops_coords *coords,
                               const spops_coords_source *source)
{
    spops_coords_arrays arrays = coords->arrays;
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "the set", coords));
    SPOPS_REQUIRE(ctx, source->dims == arrays.layout.dims,
                  "%s: the set has %" PRId32 " axes, expected %" PRId32, call, arrays.layout.dims,
                  source->dims);
    SPOPS_REQUIRE(ctx, source->max_candidates <= coords->max_candidates,
                  "%s: the set was reserved for max_items = %" PRId64
                  ", expected at least %" PRId64,
                  call, coords->max_candidates, source->max_candidates);
    arrays.max_items = source->max_items;
    if (!has_item_rows(source->kind)) arrays.item_row = NULL;
    SPOPS_TRY(build_set(ctx, source, &arrays, coords->base.workspace));
    coords->has_item_row = arrays.item_row != NULL;
    coords->last_items = source->max_items;
    return SPOPS_STATUS_OK;
}

// ---- From the caller's rows ---------------------------------------------------------------------

static spops_coords_source rows_source(int32_t dims, int64_t max_items, const int32_t *rows)
{
    spops_coords_source source;
    memset(&source, 0, sizeof source);
    source.kind = SPOPS_COORDS_ROWS;
    source.dims = dims;
    source.max_items = source.max_candidates = max_items;
    source.rows = rows;
    return source;
}

spops_status spops_coords_create(spops_context *ctx, int32_t dims, int64_t num_rows,
                                 const int32_t *rows, const spops_coords_options *options,
                                 spops_coords **out)
{
    static const char call[] = "coords_create";
    spops_coords_choices choices;
    spops_coords_source source;
    spops_coords_box box;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(spops_coords_check_dims(ctx, call, dims));
    SPOPS_TRY(spops_check_count(ctx, call, "num_rows", num_rows));
    SPOPS_TRY(spops_coords_read_options(ctx, call, dims, options, &choices));
    SPOPS_TRY(spops_check_indices(ctx, call, "rows", rows, num_rows));
    source = rows_source(dims, num_rows, rows);
    SPOPS_TRY(spops_coords_find_box(ctx, call, &source, &choices, &box, &choices.ascending));
    if (choices.ascending) {
        source.unique = true;
        source.ordered = choices.order <= SPOPS_COORDS_ORDER_LEXICOGRAPHIC;
    }
    return spops_coords_make(ctx, call, &source, &choices, &box, out);
}

spops_status spops_coords_choose_search(spops_context *ctx, const char *call, int32_t dims,
                                        int64_t max_rows, spops_coords_choices *choices)
{
    spops_coords_arrays a = {.max_rows = max_rows};
    SPOPS_REQUIRE(ctx, choices->has_box, "%s: box is NULL, expected the box of all coordinates",
                  call);
    SPOPS_REQUIRE_SLOT(ctx, call, coords_build);
    SPOPS_TRY(spops_key_layout_make(ctx, call, dims, &choices->box, choices->order, &a.layout));
    SPOPS_TRY(choose_search(ctx, call, choices, &a));
    choices->search = a.search;
    return SPOPS_STATUS_OK;
}

void spops_coords_put_choices(int32_t dims, const spops_coords_choices *choices,
                              const spops_coords_fields *at, int64_t *fields)
{
    fields[at->dims] = dims;
    fields[at->order] = choices->order;
    fields[at->search] = choices->search;
    spops_plan_put_i32s(fields + at->lower, choices->box.lower, SPOPS_KEY_COLUMNS);
    spops_plan_put_i32s(fields + at->upper, choices->box.upper, SPOPS_KEY_COLUMNS);
}

spops_status spops_coords_reserve(spops_context *ctx, int32_t dims, int64_t max_rows,
                                  int64_t max_items, const spops_coords_options *options,
                                  spops_coords **out)
{
    static const char call[] = "coords_reserve";
    spops_coords_choices choices;
    int64_t fields[NUM_FIELDS] = {0};

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(spops_coords_check_dims(ctx, call, dims));
    SPOPS_TRY(spops_check_count(ctx, call, "max_rows", max_rows));
    SPOPS_TRY(spops_check_count(ctx, call, "max_items", max_items));
    SPOPS_TRY(spops_coords_read_options(ctx, call, dims, options, &choices));
    SPOPS_TRY(spops_coords_choose_search(ctx, call, dims, max_rows, &choices));
    fields[MAX_ROWS] = max_rows;
    fields[MAX_ITEMS] = max_items;
    spops_coords_put_choices(dims, &choices, &coords_fields, fields);
    return spops_plan_reserve(ctx, call, SPOPS_PLAN_COORDS, fields, choices.memory, out);
}

spops_status spops_coords_read_fields(spops_context *ctx, const char *call, spops_plan_kind kind,
                                      const int64_t *fields, const spops_coords_fields *at,
                                      int32_t *dims, spops_coords_choices *choices)
{
    spops_coords_options o = spops_coords_options_default();
    spops_coords_box box;
    int32_t numbers[2];

    SPOPS_TRY(spops_coords_check_dims(ctx, call, fields[at->dims]));
    *dims = (int32_t)fields[at->dims];
    SPOPS_TRY(spops_plan_get_i32s(ctx, call, kind, fields, at->order, 1, &numbers[0]));
    SPOPS_TRY(spops_plan_get_i32s(ctx, call, kind, fields, at->search, 1, &numbers[1]));
    SPOPS_TRY(
        spops_plan_get_i32s(ctx, call, kind, fields, at->lower, SPOPS_KEY_COLUMNS, box.lower));
    SPOPS_TRY(
        spops_plan_get_i32s(ctx, call, kind, fields, at->upper, SPOPS_KEY_COLUMNS, box.upper));
    o.order = (spops_coords_order)numbers[0];
    o.search = (spops_coords_search)numbers[1];
    o.box = &box;
    // One that was chosen was small enough when it was.
    o.max_grid_bytes = o.search == SPOPS_COORDS_SEARCH_AUTO ? 0 : SIZE_MAX;
    return spops_coords_read_options(ctx, call, *dims, &o, choices);
}

void spops_coords_put_fields(const spops_coords *coords, const spops_coords_fields *at,
                             int64_t *fields)
{
    const spops_coords_arrays *a = &coords->arrays;
    fields[at->dims] = a->layout.dims;
    fields[at->order] = a->order;
    fields[at->search] = a->search;
    spops_plan_put_i32s(fields + at->lower, a->layout.lower, SPOPS_KEY_COLUMNS);
    spops_plan_put_i32s(fields + at->upper, a->layout.upper, SPOPS_KEY_COLUMNS);
}

static spops_status read_coords(spops_context *ctx, const char *call, spops_plan *plan)
{
    spops_coords *s = (spops_coords *)plan;
    const int64_t *fields = plan->fields;
    spops_coords_choices choices;
    int32_t dims;

    SPOPS_TRY(spops_check_count(ctx, call, "max_rows", fields[MAX_ROWS]));
    SPOPS_TRY(spops_check_count(ctx, call, "max_items", fields[MAX_ITEMS]));
    SPOPS_TRY(spops_coords_read_fields(ctx, call, SPOPS_PLAN_COORDS, fields, &coords_fields, &dims,
                                       &choices));
    s->keeps_item_row = s->has_item_row = true; // of as many items as the last fill had
    s->last_items = fields[MAX_ITEMS];
    return set_sizes(ctx, call, dims, &choices.box, &choices, fields[MAX_ROWS], fields[MAX_ITEMS],
                     fields[MAX_ITEMS], s);
}

spops_status spops_coords_read_part(spops_context *ctx, const char *call, const int64_t *fields,
                                    const spops_coords_fields *at, int64_t max_rows,
                                    int64_t max_items, spops_coords **out)
{
    int64_t own[NUM_FIELDS] = {[MAX_ROWS] = max_rows, [MAX_ITEMS] = max_items};
    const size_t box_bytes = SPOPS_KEY_COLUMNS * sizeof *own;
    own[DIMS] = fields[at->dims];
    own[ORDER] = fields[at->order];
    own[SEARCH] = fields[at->search];
    memcpy(own + LOWER, fields + at->lower, box_bytes);
    memcpy(own + UPPER, fields + at->upper, box_bytes);
    return spops_plan_reserve(ctx, call, SPOPS_PLAN_COORDS, own, NULL, out);
}

static spops_status state_of_coords(spops_context *ctx, const spops_plan *plan, int64_t *counts)
{
    spops_coords_state state;
    SPOPS_TRY(ctx->backend->download(ctx, &state, ((const spops_coords *)plan)->arrays.state,
                                     sizeof state));
    counts[0] = state.num_rows;
    counts[1] = state.num_dropped;
    counts[2] = state.num_merged;
    counts[3] = state.overflow;
    return SPOPS_STATUS_OK;
}

const spops_plan_ops spops_coords_plan_ops = {
    .handle_bytes = sizeof(struct spops_coords),
    .num_fields = NUM_FIELDS,
    .read = read_coords,
    .carve = carve_coords,
    .carve_workspace = carve_coords_workspace,
    .empty = empty_coords,
    .state = state_of_coords,
};

spops_status spops_coords_update(spops_context *ctx, spops_coords *coords, const int32_t *num_rows,
                                 const int32_t *rows)
{
    static const char call[] = "coords_update";
    spops_coords_source source;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "coords", coords));
    SPOPS_TRY(spops_check_indices(ctx, call, "num_rows", num_rows, 1));
    SPOPS_TRY(spops_check_indices(ctx, call, "rows", rows, coords->arrays.max_items));
    source = rows_source(coords->arrays.layout.dims, coords->arrays.max_items, rows);
    source.num_items = num_rows;
    SPOPS_TRY(spops_coords_fill(ctx, call, coords, &source));
    coords->grid.known = false;
    return SPOPS_STATUS_OK;
}

// ---- What can be asked of a set -----------------------------------------------------------------

spops_status spops_coords_get_info_sync(spops_context *ctx, const spops_coords *coords,
                                        spops_coords_info *info)
{
    static const char call[] = "coords_get_info_sync";
    spops_coords_info found;
    spops_coords_state state;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_sync(ctx, call, "coords", coords));
    SPOPS_TRY(ctx->backend->download(ctx, &state, coords->arrays.state, sizeof state));
    memset(&found, 0, sizeof found);
    found.dims = coords->arrays.layout.dims;
    found.key_bits = coords->arrays.layout.key_bits;
    found.order = coords->arrays.order;
    found.search = coords->arrays.search;
    found.box = spops_box_of(&coords->arrays.layout);
    found.num_rows = state.num_rows;
    found.max_rows = coords->arrays.max_rows;
    found.num_dropped = state.num_dropped;
    found.num_merged = state.num_merged;
    found.overflow = state.overflow;
    SPOPS_TRY(spops_write_struct(ctx, call, "info", info, &found, sizeof found));
    if (state.overflow == 0) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_CAPACITY_EXCEEDED,
                      "%s: more rows or items came than max_rows = %" PRId64
                      " and max_items = %" PRId64 " hold",
                      call, coords->arrays.max_rows, coords->arrays.max_items);
}

spops_status spops_coords_get_num_rows_sync(spops_context *ctx, const spops_coords *coords,
                                            int64_t *num_rows)
{
    static const char call[] = "coords_get_num_rows_sync";
    spops_coords_info info = spops_coords_info_default();
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(spops_check_object(ctx, call, "num_rows", num_rows, sizeof *num_rows));
    const spops_status status = spops_coords_get_info_sync(ctx, coords, &info);
    if (status == SPOPS_STATUS_OK || status == SPOPS_STATUS_CAPACITY_EXCEEDED)
        *num_rows = info.num_rows;
    return status;
}

spops_status spops_coords_get_view(spops_context *ctx, const spops_coords *coords,
                                   spops_coords_view *view)
{
    static const char call[] = "coords_get_view";
    spops_coords_view found = spops_coords_view_default();
    const spops_coords_arrays *a;
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "coords", coords));
    a = &coords->arrays;
    found.dims = a->layout.dims;
    found.max_rows = a->max_rows;
    found.num_rows = &a->state->num_rows;
    found.rows = a->rows;
    found.row_item = a->row_item;
    found.item_row = coords->has_item_row ? a->item_row : NULL;
    found.max_items = coords->last_items;
    return spops_write_struct(ctx, call, "view", view, &found, sizeof found);
}
