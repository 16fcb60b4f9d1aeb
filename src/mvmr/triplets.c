// SPDX-License-Identifier: Apache-2.0
// Plans of triplets: argument checks, memory, and the order in which the backend builds the lists
// by matrix and the tiles of each side.
#include <string.h>

#include "mvmr/mvmr.h"
#include "segments/segments.h"

#define DEFAULT_MATRIX_ELEMENTS (INT64_C(256) * 256)

// Tiles of rows of groups are made by one block: with more groups than these there are none.
#define MAX_GROUPS (1 << 20)

// Fields of a description.
enum {
    NUM_OUT,
    NUM_IN,
    NUM_MATRICES,
    MAX_TRIPLETS,
    MAX_MATRIX_ELEMENTS,
    BACKWARD,
    TILE,
    NUM_FIELDS
};

// What a plan is built from; arrays where ctx runs.
typedef struct triplets_source {
    int64_t num_triplets;
    const int32_t *num_device; // [1] how many count; NULL: all
    const int32_t *out_rows, *in_rows, *matrices;
    const int32_t *offsets; // of rows in the order of their groups, instead of the three
    bool sorted, drop_invalid;
} triplets_source;

// Choices that are made once, before the plan's memory is.
typedef struct triplets_choice {
    bool backward, refillable, mirrored;
    bool direct[SPOPS_NUM_SIDES];
    int64_t max_matrix_elements;
    int32_t tile;
    spops_plan_memory *memory; // of reserve
} triplets_choice;

// ---- Memory -------------------------------------------------------------------------------------

typedef struct build_workspace {
    void *lists;   // for slot lists_build
    int32_t *keys; // [max_triplets]
    // Sort a side's triplets by tile. All but their offsets ends with the build.
    spops_lists by_tile;
} build_workspace;

static bool has_side(const spops_triplets *plan, int side)
{
    return side == SPOPS_SIDE_TARGET || (plan->backward && !plan->mirrored);
}

static void carve_triplets(spops_plan *base, spops_carver *c)
{
    spops_triplets *plan = (spops_triplets *)base;
    spops_lists_carve(&plan->by_matrix, true, true, c);
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side) {
        spops_triplet_tiles *tiles = &plan->sides[side];
        if (!has_side(plan, side)) continue;
        tiles->offsets = spops_carve(c, tiles->num_tiles + 1, 1, sizeof *tiles->offsets);
        tiles->triplets = spops_carve(c, plan->shape.num_triplets, 1, sizeof *tiles->triplets);
    }
    if (plan->has_groups) {
        plan->groups.num_tiles = spops_carve(c, 1, 1, sizeof *plan->groups.num_tiles);
        plan->groups.tiles = spops_carve(c, plan->groups.max_tiles, 4, sizeof *plan->groups.tiles);
    }
}

static build_workspace carve_workspace(spops_context *ctx, const spops_triplets *plan,
                                       spops_carver *c)
{
    const spops_backend *backend = ctx->backend;
    const int64_t max_triplets = plan->shape.num_triplets;
    size_t bytes = backend->lists_workspace_bytes(ctx, &plan->by_matrix);
    int64_t most_tiles = 0;
    build_workspace w;

    memset(&w, 0, sizeof w);
    w.by_tile.max_terms = max_triplets;
    w.by_tile.split_terms = INT32_MAX; // nobody walks these lists
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side) {
        const spops_triplet_tiles *tiles = &plan->sides[side];
        size_t own;
        if (!has_side(plan, side) || tiles->direct) continue;
        // The side with fewer tiles may need more: they decide how its keys are sorted.
        w.by_tile.num_segments = tiles->num_tiles;
        own = backend->lists_workspace_bytes(ctx, &w.by_tile);
        if (own > bytes) bytes = own;
        if (tiles->num_tiles > most_tiles) most_tiles = tiles->num_tiles;
    }
    w.by_tile.num_segments = most_tiles;
    w.lists = spops_carve(c, 1, 1, bytes);
    w.keys = spops_carve(c, max_triplets, 1, sizeof *w.keys);
    spops_lists_carve(&w.by_tile, false, true, c);
    return w;
}

size_t spops_triplets_workspace_bytes(const spops_triplets *triplets)
{
    spops_carver measured = {NULL, 0};
    (void)carve_workspace(triplets->base.ctx, triplets, &measured);
    return measured.used;
}

static void place_workspace(spops_plan *plan, spops_carver *c)
{
    const spops_triplets *triplets = (const spops_triplets *)plan;
    if (triplets->apart) return;
    const size_t bytes = spops_triplets_workspace_bytes(triplets);
    if (bytes == SIZE_MAX) c->used = SIZE_MAX;
    plan->workspace = spops_carve(c, 1, 1, bytes);
}

// Scratch of VVOR, measured and carved here.
float *spops_triplets_carve_scratch(const spops_triplets *plan, spops_carver *c)
{
    return spops_carve(c, plan->backward ? plan->by_matrix.max_pieces : 0,
                       plan->max_matrix_elements, sizeof(float));
}

// The tiles of rows of groups: whole ones, and one for what is left of a group.
static void plan_groups(const spops_context *ctx, spops_triplets *plan)
{
    const spops_igemm_scratch_args any = {0};
    const int64_t rows = plan->shape.num_triplets, groups = plan->shape.num_matrices;

    plan->has_groups = plan->mirrored && groups <= MAX_GROUPS &&
                       ctx->backend->igemm_exists != NULL && ctx->backend->igemm_exists(ctx, &any);
    if (!plan->has_groups) return;
    plan->groups.num_taps = (int32_t)groups;
    plan->groups.max_tiles = rows / SPOPS_IGEMM_TILE_ROWS + (groups < rows ? groups : rows);
}

static spops_status prepare_kernels(spops_context *ctx, const spops_triplets *plan,
                                    const spops_triplets_layout_args *sizes)
{
    const spops_igemm_prepare_args products = {.products = true};
    if (plan->has_groups) SPOPS_TRY(SPOPS_PREPARE(ctx, igemm_prepare, &products));
    return SPOPS_PREPARE(ctx, mvmr_prepare, sizes);
}

// The sizes of a plan, from choices that are checked.
static spops_status set_sizes(spops_context *ctx, const char *call,
                              const spops_triplets_shape *shape, const triplets_choice *choice,
                              spops_triplets *plan)
{
    const spops_triplets_layout_args sizes = {shape->num_triplets, choice->max_matrix_elements,
                                              choice->tile};
    const int32_t tile_rows = ctx->backend->triplets_tile_rows(ctx, &sizes);
    spops_carver measured = {NULL, 0};

    if (ctx->backend->triplets_tile != NULL) plan->tile = ctx->backend->triplets_tile(ctx, &sizes);
    SPOPS_REQUIRE(ctx, choice->tile == 0 || plan->tile == choice->tile,
                  "%s: options->tile is %d, expected that of a kernel for this device", call,
                  (int)choice->tile);
    plan->shape = *shape;
    plan->base.fields[TILE] = choice->tile;
    plan->max_matrix_elements = choice->max_matrix_elements;
    plan->backward = choice->backward;
    plan->base.refillable = choice->refillable;
    plan->mirrored = choice->mirrored;
    plan->base.fields[NUM_OUT] = shape->num_out;
    plan->base.fields[NUM_IN] = shape->num_in;
    plan->base.fields[NUM_MATRICES] = shape->num_matrices;
    plan->base.fields[MAX_TRIPLETS] = shape->num_triplets;
    plan->base.fields[MAX_MATRIX_ELEMENTS] = choice->max_matrix_elements;
    plan->base.fields[BACKWARD] = choice->backward;
    plan->by_matrix.num_segments = shape->num_matrices;
    plan->by_matrix.max_terms = shape->num_triplets;
    plan->by_matrix.split_terms = ctx->backend->triplets_split_terms(ctx, &sizes);
    plan->by_matrix.counts_on_device = true; // until finish
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side) {
        spops_triplet_tiles *tiles = &plan->sides[side];
        int64_t items;
        tiles->num_rows = side == SPOPS_SIDE_TARGET ? shape->num_out : shape->num_in;
        tiles->num_from = side == SPOPS_SIDE_TARGET ? shape->num_in : shape->num_out;
        tiles->tile_rows = tile_rows;
        tiles->direct = choice->direct[side];
        tiles->complete = tiles->direct && shape->num_triplets == tiles->num_rows;
        items = tiles->direct ? shape->num_triplets : tiles->num_rows;
        tiles->num_tiles = (items + tile_rows - 1) / tile_rows;
    }
    plan_groups(ctx, plan);
    carve_triplets(&plan->base, &measured); // the pieces that scratch is for
    measured = (spops_carver){NULL, 0};
    (void)spops_triplets_carve_scratch(plan, &measured);
    plan->base.scratch_bytes = measured.used;
    return SPOPS_STATUS_OK;
}

static spops_status alloc_plan(spops_context *ctx, const char *call,
                               const spops_triplets_shape *shape, const triplets_choice *choice,
                               spops_triplets **out)
{
    spops_status status = SPOPS_STATUS_OK;
    spops_triplets *plan = spops_plan_alloc(ctx, SPOPS_PLAN_TRIPLETS);

    *out = NULL;
    if (plan == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    SPOPS_TRY_GOTO(set_sizes(ctx, call, shape, choice, plan), status, fail);
    SPOPS_TRY_GOTO(spops_plan_give_memory(ctx, call, &plan->base), status, fail);
    *out = plan;
    return SPOPS_STATUS_OK;

fail:
    spops_triplets_destroy(plan);
    return status;
}

static spops_status prepare_triplets(spops_context *ctx, spops_plan *base)
{
    spops_triplets *plan = (spops_triplets *)base;
    const spops_triplets_layout_args sizes = {plan->shape.num_triplets, plan->max_matrix_elements,
                                              plan->tile};
    return prepare_kernels(ctx, plan, &sizes);
}

// ---- Building -----------------------------------------------------------------------------------

static spops_status enqueue_by_matrix(spops_context *ctx, spops_triplets *plan,
                                      const triplets_source *source, const build_workspace *w)
{
    spops_lists_source lists;

    memset(&lists, 0, sizeof lists);
    lists.a_limit = plan->shape.num_out;
    lists.b_limit = plan->shape.num_in;
    lists.num_terms = source->num_triplets;
    lists.num_terms_device = source->num_device;
    lists.a = source->out_rows;
    lists.b = source->in_rows;
    lists.drop_invalid = source->drop_invalid;
    if (source->num_triplets == 0 && source->num_device == NULL) {
        lists.keys = plan->by_matrix.offsets; // not NULL: keys are given, though none is read
        lists.drop_invalid = true;
    } else if (source->offsets == NULL) {
        lists.keys = source->matrices;
        lists.keys_sorted = source->sorted;
    } else if (!source->drop_invalid) { // checked
        lists.offsets = source->offsets;
    } else {
        const spops_triplets_args args = {.offsets = source->offsets,
                                          .num_matrices = plan->shape.num_matrices,
                                          .num_rows = source->num_triplets,
                                          .keys = w->keys};
        SPOPS_TRY(ctx->backend->group_keys(ctx, &args));
        lists.keys = w->keys;
        lists.skip_negative = true; // positions outside the groups are no triplets
    }
    return ctx->backend->lists_build(ctx,
                                     &(spops_lists_build_args){&lists, &plan->by_matrix, w->lists});
}

static spops_status enqueue_side(spops_context *ctx, spops_triplets *plan, int side,
                                 const build_workspace *w)
{
    spops_triplet_tiles *tiles = &plan->sides[side];
    spops_triplets_args args = {
        .by_matrix = &plan->by_matrix, .side = side, .tiles = tiles, .keys = w->keys};
    spops_lists by_tile = w->by_tile;
    spops_lists_source lists;

    if (tiles->direct) return ctx->backend->triplets_fill(ctx, &args);
    SPOPS_TRY(ctx->backend->tile_keys(ctx, &args));
    by_tile.num_segments = tiles->num_tiles;
    by_tile.offsets = tiles->offsets;
    memset(&lists, 0, sizeof lists);
    // Not NULL also where there is no room for any: keys are given, though none is read.
    lists.keys = w->keys != NULL ? w->keys : tiles->offsets;
    lists.num_terms = plan->shape.num_triplets;
    lists.num_terms_device = &plan->by_matrix.schedule->num_terms;
    SPOPS_TRY(
        ctx->backend->lists_build(ctx, &(spops_lists_build_args){&lists, &by_tile, w->lists}));
    args.order = by_tile.order;
    return ctx->backend->triplets_fill(ctx, &args);
}

// Neither allocates nor waits.
static spops_status enqueue_build_in(spops_context *ctx, spops_triplets *plan,
                                     const triplets_source *source, void *workspace)
{
    spops_carver carver = {workspace, 0};
    const build_workspace w = carve_workspace(ctx, plan, &carver);

    SPOPS_TRY(enqueue_by_matrix(ctx, plan, source, &w));
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side)
        if (has_side(plan, side)) SPOPS_TRY(enqueue_side(ctx, plan, side, &w));
    if (plan->has_groups) {
        const spops_igemm_group_args groups = {&plan->groups, source->offsets};
        SPOPS_TRY(ctx->backend->igemm_group_tiles(ctx, &groups));
    }
    return SPOPS_STATUS_OK;
}

static spops_status enqueue_build(spops_context *ctx, spops_triplets *plan,
                                  const triplets_source *source)
{
    return enqueue_build_in(ctx, plan, source, plan->base.workspace);
}

// Of a plan that is not refillable: free the workspace, wait, fetch the counts.
static spops_status finish(spops_context *ctx, spops_triplets *plan)
{
    spops_plan_close(&plan->base);
    SPOPS_TRY(ctx->backend->download(ctx, &plan->by_matrix.host_schedule, plan->by_matrix.schedule,
                                     sizeof plan->by_matrix.host_schedule));
    plan->by_matrix.counts_on_device = false;
    return SPOPS_STATUS_OK;
}

static spops_status build(spops_context *ctx, const char *call, const spops_triplets_shape *shape,
                          const triplets_choice *choice, const triplets_source *source,
                          spops_triplets **out)
{
    spops_status status = SPOPS_STATUS_OK;
    spops_triplets *plan = NULL;

    SPOPS_TRY(alloc_plan(ctx, call, shape, choice, &plan));
    SPOPS_TRY_GOTO(enqueue_build(ctx, plan, source), status, fail);
    SPOPS_TRY_GOTO(finish(ctx, plan), status, fail);
    *out = plan;
    return SPOPS_STATUS_OK;

fail:
    spops_triplets_destroy(plan);
    return status;
}

// ---- Checks -------------------------------------------------------------------------------------

static spops_status check_slots(spops_context *ctx, const char *call)
{
    SPOPS_REQUIRE_SLOT(ctx, call, lists_build);
    SPOPS_REQUIRE_SLOT(ctx, call, triplets_fill);
    return SPOPS_STATUS_OK;
}

static spops_status check_shape(spops_context *ctx, const char *call,
                                const spops_triplets_shape *shape)
{
    SPOPS_TRY(spops_check_object(ctx, call, "shape", shape, _Alignof(spops_triplets_shape)));
    SPOPS_TRY(spops_check_count(ctx, call, "shape.num_out", shape->num_out));
    SPOPS_TRY(spops_check_count(ctx, call, "shape.num_in", shape->num_in));
    SPOPS_TRY(spops_check_count(ctx, call, "shape.num_matrices", shape->num_matrices));
    return spops_check_count(ctx, call, "shape.num_triplets", shape->num_triplets);
}

static spops_status read_options(spops_context *ctx, const char *call,
                                 const spops_triplets_options *options, bool *sorted,
                                 triplets_choice *choice)
{
    spops_triplets_options o;

    memset(&o, 0, sizeof o);
    memset(choice, 0, sizeof *choice);
    SPOPS_TRY(spops_read_options(ctx, call, options, &o, sizeof o));
    SPOPS_REQUIRE(ctx, o.matrix_order == SPOPS_KEYS_UNSORTED || o.matrix_order == SPOPS_KEYS_SORTED,
                  "%s: matrix_order is %d, expected %d or %d", call, (int)o.matrix_order,
                  (int)SPOPS_KEYS_UNSORTED, (int)SPOPS_KEYS_SORTED);
    SPOPS_REQUIRE(ctx, o.backward == 0 || o.backward == 1,
                  "%s: backward is %" PRId32 ", expected 0 or 1", call, o.backward);
    SPOPS_TRY(spops_check_count(ctx, call, "max_matrix_elements", o.max_matrix_elements));
    *sorted = o.matrix_order == SPOPS_KEYS_SORTED;
    SPOPS_TRY(spops_check_reserved(ctx, call, o.reserved));
    choice->memory = o.memory;
    choice->tile = o.tile;
    choice->backward = o.backward == 1;
    choice->max_matrix_elements =
        o.max_matrix_elements > 0 ? o.max_matrix_elements : DEFAULT_MATRIX_ELEMENTS;
    return SPOPS_STATUS_OK;
}

// Which output or input row a triplet has: by an array, or its own number.
static spops_status check_rows(spops_context *ctx, const char *call, const char *name,
                               const int32_t *array, int64_t n, int64_t limit,
                               const char *limit_name)
{
    if (array != NULL) {
        SPOPS_TRY(spops_check_indices(ctx, call, name, array, n));
        return spops_check_range(ctx, call, name, array, n, limit, limit_name);
    }
    SPOPS_REQUIRE(ctx, limit >= n,
                  "%s: %s is %" PRId64 ", expected at least %" PRId64
                  " (one per triplet, as %s is NULL)",
                  call, limit_name, limit, n, name);
    return SPOPS_STATUS_OK;
}

// Whether no number comes twice among n of `rows` (NULL: their own). Waits.
static spops_status find_direct(spops_context *ctx, const int32_t *rows, int64_t n,
                                int64_t num_rows, bool *direct)
{
    const spops_backend *backend = ctx->backend;
    spops_status status = SPOPS_STATUS_OK;
    spops_carver carver = {NULL, 0};
    spops_lists lists = {.num_segments = num_rows, .max_terms = n, .split_terms = INT32_MAX};
    const spops_lists_source source = {.num_terms = n, .keys = rows};
    spops_lists_build_args build_args = {.source = &source};
    spops_schedule schedule;
    size_t bytes, lists_bytes;
    void *block = NULL;

    *direct = rows == NULL;
    if (rows == NULL || n > num_rows) return SPOPS_STATUS_OK;
    *direct = true;
    if (n == 0) return SPOPS_STATUS_OK;
    build_args.lists = &lists;
    lists_bytes = backend->lists_workspace_bytes(ctx, &lists);
    spops_lists_carve(&lists, false, false, &carver);
    (void)spops_carve(&carver, 1, 1, lists_bytes);
    bytes = carver.used;
    SPOPS_TRY(spops_backend_alloc(ctx, bytes, &block));
    carver = (spops_carver){block, 0};
    spops_lists_carve(&lists, false, false, &carver);
    build_args.workspace = spops_carve(&carver, 1, 1, lists_bytes);
    SPOPS_TRY_GOTO(backend->lists_build(ctx, &build_args), status, done);
    SPOPS_TRY_GOTO(backend->download(ctx, &schedule, lists.schedule, sizeof schedule), status,
                   done);
    *direct = schedule.longest <= 1;

done:
    spops_backend_free(ctx, block, bytes);
    return status;
}

// ---- From the caller's indices ------------------------------------------------------------------

spops_status spops_triplets_create(spops_context *ctx, const spops_triplets_shape *shape,
                                   const int32_t *out_rows, const int32_t *in_rows,
                                   const int32_t *matrices, const spops_triplets_options *options,
                                   spops_triplets **out)
{
    static const char call[] = "triplets_create";
    triplets_choice choice;
    triplets_source source;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(check_slots(ctx, call));
    SPOPS_TRY(check_shape(ctx, call, shape));
    memset(&source, 0, sizeof source);
    SPOPS_TRY(read_options(ctx, call, options, &source.sorted, &choice));
    source.num_triplets = shape->num_triplets;
    source.out_rows = out_rows;
    source.in_rows = in_rows;
    source.matrices = matrices;
    SPOPS_TRY(spops_check_no_memory(ctx, call, choice.memory));
    SPOPS_TRY(check_rows(ctx, call, "out_rows", out_rows, shape->num_triplets, shape->num_out,
                         "num_out"));
    SPOPS_TRY(
        check_rows(ctx, call, "in_rows", in_rows, shape->num_triplets, shape->num_in, "num_in"));
    SPOPS_TRY(spops_check_indices(ctx, call, "matrices", matrices, shape->num_triplets));
    SPOPS_TRY(spops_check_range(ctx, call, "matrices", matrices, shape->num_triplets,
                                shape->num_matrices, "num_matrices"));
    if (source.sorted)
        SPOPS_TRY(spops_check_ascending(ctx, call, "matrices", matrices, shape->num_triplets));
    SPOPS_TRY(find_direct(ctx, out_rows, shape->num_triplets, shape->num_out,
                          &choice.direct[SPOPS_SIDE_TARGET]));
    if (choice.backward)
        SPOPS_TRY(find_direct(ctx, in_rows, shape->num_triplets, shape->num_in,
                              &choice.direct[SPOPS_SIDE_SOURCE]));
    return build(ctx, call, shape, &choice, &source, out);
}

spops_status spops_triplets_create_from_offsets(spops_context *ctx, int64_t num_matrices,
                                                const int32_t *offsets,
                                                const spops_triplets_options *options,
                                                spops_triplets **out)
{
    static const char call[] = "triplets_create_from_offsets";
    spops_triplets_shape shape;
    triplets_choice choice;
    triplets_source source;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(check_slots(ctx, call));
    SPOPS_TRY(spops_check_count(ctx, call, "num_matrices", num_matrices));
    memset(&source, 0, sizeof source);
    SPOPS_TRY(read_options(ctx, call, options, &source.sorted, &choice));
    SPOPS_TRY(spops_check_no_memory(ctx, call, choice.memory));
    SPOPS_TRY(spops_check_offsets(ctx, call, offsets, num_matrices, &source.num_triplets));
    source.offsets = offsets;
    shape.num_matrices = num_matrices;
    shape.num_out = shape.num_in = shape.num_triplets = source.num_triplets;
    choice.mirrored = true;
    choice.direct[SPOPS_SIDE_TARGET] = choice.direct[SPOPS_SIDE_SOURCE] = true;
    return build(ctx, call, &shape, &choice, &source, out);
}

// ---- Into a capacity ----------------------------------------------------------------------------

static spops_status read_triplets(spops_context *ctx, const char *call, spops_plan *plan)
{
    const int64_t *fields = plan->fields;
    const spops_triplets_shape shape = {fields[NUM_OUT], fields[NUM_IN], fields[NUM_MATRICES],
                                        fields[MAX_TRIPLETS]};
    triplets_choice choice = {.refillable = true};

    SPOPS_TRY(check_slots(ctx, call));
    for (int32_t i = NUM_OUT; i <= MAX_MATRIX_ELEMENTS; ++i)
        SPOPS_TRY(spops_plan_check_field(ctx, call, plan, i, 0, SPOPS_MAX_COUNT));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, BACKWARD, 0, 1));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, TILE, INT32_MIN, INT32_MAX));
    choice.tile = (int32_t)fields[TILE];
    choice.backward = fields[BACKWARD] == 1;
    choice.max_matrix_elements =
        fields[MAX_MATRIX_ELEMENTS] > 0 ? fields[MAX_MATRIX_ELEMENTS] : DEFAULT_MATRIX_ELEMENTS;
    return set_sizes(ctx, call, &shape, &choice, (spops_triplets *)plan);
}

static spops_status empty_triplets(spops_context *ctx, spops_plan *plan)
{
    static const triplets_source nothing;
    return enqueue_build(ctx, (spops_triplets *)plan, &nothing);
}

// Once everything enqueued has run.
static spops_status read_schedule(spops_context *ctx, const spops_triplets *triplets,
                                  spops_schedule *schedule)
{
    const spops_lists *lists = &triplets->by_matrix;
    *schedule = lists->host_schedule;
    if (!lists->counts_on_device) return SPOPS_STATUS_OK;
    return ctx->backend->download(ctx, schedule, lists->schedule, sizeof *schedule);
}

static spops_status state_of_triplets(spops_context *ctx, const spops_plan *plan, int64_t *counts)
{
    spops_schedule schedule;
    SPOPS_TRY(read_schedule(ctx, (const spops_triplets *)plan, &schedule));
    spops_schedule_put_state(&schedule, counts);
    return SPOPS_STATUS_OK;
}

static void relation_of_triplets(const spops_plan *plan, spops_relation *r)
{
    const spops_triplets *t = (const spops_triplets *)plan;
    r->num_keys = t->shape.num_matrices;
    r->max_terms = t->shape.num_triplets;
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side)
        r->sides[side] = (spops_relation_side){
            .max_rows = side == SPOPS_SIDE_TARGET ? t->shape.num_out : t->shape.num_in,
            .by_key = {t->by_matrix.offsets, t->by_matrix.pairs + side, 2}};
}

const spops_plan_ops spops_triplets_plan_ops = {
    .handle_bytes = sizeof(struct spops_triplets),
    .num_fields = NUM_FIELDS,
    .read = read_triplets,
    .carve = carve_triplets,
    .carve_workspace = place_workspace,
    .prepare = prepare_triplets,
    .empty = empty_triplets,
    .state = state_of_triplets,
    .relation = relation_of_triplets,
};

spops_status spops_triplets_reserve(spops_context *ctx, const spops_triplets_shape *shape,
                                    const spops_triplets_options *options, spops_triplets **out)
{
    static const char call[] = "triplets_reserve";
    triplets_choice choice;
    bool sorted;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(check_slots(ctx, call));
    SPOPS_TRY(check_shape(ctx, call, shape));
    SPOPS_TRY(read_options(ctx, call, options, &sorted, &choice));
    SPOPS_REQUIRE(ctx, !sorted, "%s: matrix_order is %d, expected %d (the library sorts)", call,
                  (int)SPOPS_KEYS_SORTED, (int)SPOPS_KEYS_UNSORTED);
    const int64_t fields[NUM_FIELDS] = {shape->num_out,
                                        shape->num_in,
                                        shape->num_matrices,
                                        shape->num_triplets,
                                        choice.max_matrix_elements,
                                        choice.backward,
                                        choice.tile};
    return spops_plan_reserve(ctx, call, SPOPS_PLAN_TRIPLETS, fields, choice.memory, out);
}

spops_status spops_triplets_update(spops_context *ctx, spops_triplets *triplets,
                                   const int32_t *num_triplets, const int32_t *out_rows,
                                   const int32_t *in_rows, const int32_t *matrices)
{
    static const char call[] = "triplets_update";
    triplets_source source;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "triplets", triplets));
    memset(&source, 0, sizeof source);
    source.num_triplets = triplets->shape.num_triplets;
    SPOPS_TRY(spops_check_indices(ctx, call, "num_triplets", num_triplets, 1));
    SPOPS_TRY(spops_check_indices(ctx, call, "matrices", matrices, source.num_triplets));
    if (out_rows != NULL)
        SPOPS_TRY(spops_check_indices(ctx, call, "out_rows", out_rows, source.num_triplets));
    if (in_rows != NULL)
        SPOPS_TRY(spops_check_indices(ctx, call, "in_rows", in_rows, source.num_triplets));
    source.num_device = num_triplets;
    source.out_rows = out_rows;
    source.in_rows = in_rows;
    // Not NULL also where there is no room for any: keys are given, though none is read.
    source.matrices = matrices != NULL ? matrices : triplets->by_matrix.offsets;
    source.drop_invalid = true;
    return enqueue_build(ctx, triplets, &source);
}

static spops_status check_offsets_source(spops_context *ctx, const char *call,
                                         const spops_triplets *triplets, const int32_t *offsets,
                                         const int32_t *out_rows, const int32_t *in_rows,
                                         triplets_source *source)
{
    const int64_t n = triplets->shape.num_triplets;
    SPOPS_TRY(spops_check_indices(ctx, call, "offsets", offsets, triplets->shape.num_matrices + 1));
    if (out_rows != NULL) SPOPS_TRY(spops_check_indices(ctx, call, "out_rows", out_rows, n));
    if (in_rows != NULL) SPOPS_TRY(spops_check_indices(ctx, call, "in_rows", in_rows, n));
    *source = (triplets_source){.num_triplets = n,
                                .offsets = offsets,
                                .out_rows = out_rows,
                                .in_rows = in_rows,
                                .drop_invalid = true};
    return SPOPS_STATUS_OK;
}

spops_status spops_triplets_update_offsets(spops_context *ctx, spops_triplets *triplets,
                                           const int32_t *offsets, const int32_t *out_rows,
                                           const int32_t *in_rows)
{
    static const char call[] = "triplets_update_offsets";
    triplets_source source;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "triplets", triplets));
    SPOPS_TRY(check_offsets_source(ctx, call, triplets, offsets, out_rows, in_rows, &source));
    return enqueue_build(ctx, triplets, &source);
}

spops_status spops_triplets_fill_apart(spops_context *ctx, const char *call,
                                       spops_triplets *triplets, const int32_t *offsets,
                                       const int32_t *out_rows, const int32_t *in_rows,
                                       void *workspace)
{
    triplets_source source;
    SPOPS_TRY(check_offsets_source(ctx, call, triplets, offsets, out_rows, in_rows, &source));
    return enqueue_build_in(ctx, triplets, &source, workspace);
}

// ---- What can be asked of a plan ----------------------------------------------------------------

spops_status spops_triplets_get_info_sync(spops_context *ctx, const spops_triplets *triplets,
                                          spops_triplets_info *info)
{
    static const char call[] = "triplets_get_info_sync";
    spops_triplets_info found;
    spops_schedule schedule;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_sync(ctx, call, "triplets", triplets));
    SPOPS_TRY(read_schedule(ctx, triplets, &schedule));
    memset(&found, 0, sizeof found);
    found.num_out = triplets->shape.num_out;
    found.num_in = triplets->shape.num_in;
    found.num_matrices = triplets->shape.num_matrices;
    found.num_triplets = schedule.num_terms;
    found.max_triplets = triplets->shape.num_triplets;
    found.num_nonempty = schedule.num_nonempty;
    found.longest = schedule.longest;
    found.num_dropped = schedule.num_dropped;
    found.overflow = schedule.overflow;
    found.direct = triplets->sides[SPOPS_SIDE_TARGET].direct;
    found.tile = triplets->tile;
    SPOPS_TRY(spops_write_struct(ctx, call, "info", info, &found, sizeof found));
    if (schedule.overflow == 0) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_CAPACITY_EXCEEDED,
                      "%s: triplets_update met more triplets than the capacity of %" PRId64, call,
                      triplets->shape.num_triplets);
}
