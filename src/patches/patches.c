// SPDX-License-Identifier: Apache-2.0
// Plans of patches: checks, memory, and the order in which the backend fills them.
#include "patches/patches.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "points/neighbors.h"
#include "core/check.h"

// Fields of a description.
enum { NUM_ROWS, MAX_PATCHES, MAX_QUERIES, MAX_KEYS, MAX_SAMPLES, SAME, NUM_KEY_ROWS, NUM_FIELDS };

static const char *const side_names[SPOPS_NUM_SIDES] = {"query", "key"};

static const int32_t *offsets_of(const spops_patch_lists *lists, int side)
{
    return side == SPOPS_SIDE_TARGET ? lists->query_offsets : lists->key_offsets;
}

static const int32_t *rows_of(const spops_patch_lists *lists, int side)
{
    return side == SPOPS_SIDE_TARGET ? lists->query_rows : lists->key_rows;
}

static int num_sides(const spops_patch_storage *s)
{
    return s->same ? 1 : SPOPS_NUM_SIDES;
}

static spops_status check_lists(spops_context *ctx, const char *call,
                                const spops_patch_lists *lists)
{
    SPOPS_TRY(spops_check_object(ctx, call, "lists", lists, _Alignof(spops_patch_lists)));
    SPOPS_TRY(spops_check_count(ctx, call, "lists->num_patches", lists->num_patches));
    SPOPS_TRY(spops_check_indices(ctx, call, "lists->query_offsets", lists->query_offsets,
                                  lists->num_patches + 1));
    SPOPS_TRY(spops_check_aligned(ctx, call, "lists->query_rows", lists->query_rows,
                                  sizeof *lists->query_rows));
    SPOPS_TRY(spops_check_aligned(ctx, call, "lists->key_offsets", lists->key_offsets,
                                  sizeof *lists->key_offsets));
    SPOPS_REQUIRE(ctx, lists->key_offsets != NULL || lists->key_rows == NULL,
                  "%s: lists->key_rows is given, and key_offsets is NULL", call);
    SPOPS_TRY(spops_check_count(ctx, call, "lists->num_key_rows", lists->num_key_rows));
    SPOPS_REQUIRE(ctx, lists->key_offsets != NULL || lists->num_key_rows == 0,
                  "%s: lists->num_key_rows is %" PRId64 ", expected 0 as key_offsets is NULL", call,
                  lists->num_key_rows);
    return spops_check_aligned(ctx, call, "lists->key_rows", lists->key_rows,
                               sizeof *lists->key_rows);
}

// ---- Memory -------------------------------------------------------------------------------------

static void carve_side(spops_patch_storage *s, int of, spops_carver *c)
{
    spops_patch_side *side = &s->sides[of];
    side->offsets = spops_carve(c, s->max_patches + 1, 1, sizeof *side->offsets);
    side->rows = spops_carve(c, side->max_entries, 1, sizeof *side->rows);
    side->rest = spops_carve(c, spops_patch_rows(s, of), 1, sizeof *side->rest);
    for (int t = 0; t < SPOPS_NUM_PATCH_TILES; ++t) {
        // Each patch has at most one tile that is not full.
        const int64_t tiles = side->max_entries / SPOPS_PATCH_TILE_ENTRIES(t) + s->max_patches;
        side->max_tiles[t] = tiles < side->max_entries ? tiles : side->max_entries;
        side->tiles[t] = spops_carve(c, side->max_tiles[t], 1, sizeof *side->tiles[t]);
    }
}

static void carve_patches(spops_plan *plan, spops_carver *c)
{
    spops_patch_storage *s = &((spops_patches *)plan)->storage;
    s->state = spops_carve(c, 1, 1, sizeof *s->state);
    s->faults = spops_carve(c, 1, 1, sizeof *s->faults);
    for (int side = 0; side < num_sides(s); ++side)
        carve_side(s, side, c);
    s->key_offsets = NULL;
    s->key_entries = NULL;
    if (s->same) return;
    s->key_offsets = spops_carve(c, s->num_key_rows + 1, 1, sizeof *s->key_offsets);
    s->key_entries =
        spops_carve(c, s->sides[SPOPS_SIDE_SOURCE].max_entries, 1, sizeof *s->key_entries);
}

static void carve_patches_workspace(spops_plan *plan, spops_carver *c)
{
    const spops_patches_args args = {.storage = &((spops_patches *)plan)->storage};
    plan->workspace =
        spops_carve(c, 1, 1, plan->ctx->backend->patches_workspace_bytes(plan->ctx, &args));
}

static void show_arrays(spops_plan *plan)
{
    spops_patches *p = (spops_patches *)plan;
    const spops_patch_storage *s = &p->storage;
    const spops_patch_side *q = &s->sides[SPOPS_SIDE_TARGET];
    const spops_patch_side *k = s->same ? q : &s->sides[SPOPS_SIDE_SOURCE];
    spops_patch_arrays *a = &p->arrays;

    a->num_rows = s->num_rows;
    a->num_key_rows = s->num_key_rows;
    a->max_patches = s->max_patches;
    a->max_queries = q->max_entries;
    a->max_keys = k->max_entries;
    a->state = s->state;
    a->q_offsets = q->offsets;
    a->q_rows = q->rows;
    a->q_rest = q->rest;
    a->k_offsets = k->offsets;
    a->k_rows = k->rows;
    a->k_rest = k->rest;
    a->same = s->same;
    a->keys_once = s->same; // create may find that of other plans
    a->key_offsets = s->key_offsets;
    a->key_entries = s->key_entries;
    for (int t = 0; t < SPOPS_NUM_PATCH_TILES; ++t) {
        a->q_tiles[t] = q->tiles[t];
        a->k_tiles[t] = k->tiles[t];
        a->max_q_tiles[t] = q->max_tiles[t];
        a->max_k_tiles[t] = k->max_tiles[t];
    }
}

static spops_status read_patches(spops_context *ctx, const char *call, spops_plan *plan)
{
    spops_patch_storage *s = &((spops_patches *)plan)->storage;
    int64_t *fields = plan->fields;

    SPOPS_REQUIRE_SLOT(ctx, call, patches_fill);
    for (int32_t i = NUM_ROWS; i <= MAX_SAMPLES; ++i)
        SPOPS_TRY(spops_plan_check_field(ctx, call, plan, i, 0, SPOPS_MAX_COUNT));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, SAME, 0, 1));
    SPOPS_REQUIRE(ctx, fields[SAME] == 0 || fields[MAX_KEYS] == 0,
                  "%s: max_keys is %" PRId64 ", expected 0 as same is 1", call, fields[MAX_KEYS]);
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, NUM_KEY_ROWS, 0, SPOPS_MAX_COUNT));
    if (fields[NUM_KEY_ROWS] == 0) fields[NUM_KEY_ROWS] = fields[NUM_ROWS];
    SPOPS_REQUIRE(ctx, fields[SAME] == 0 || fields[NUM_KEY_ROWS] == fields[NUM_ROWS],
                  "%s: num_key_rows is %" PRId64 ", expected num_rows, %" PRId64 ", as same is 1",
                  call, fields[NUM_KEY_ROWS], fields[NUM_ROWS]);
    s->num_rows = fields[NUM_ROWS];
    s->num_key_rows = fields[NUM_KEY_ROWS];
    s->max_patches = fields[MAX_PATCHES];
    s->max_samples = fields[MAX_SAMPLES];
    s->same = fields[SAME] == 1;
    s->sides[SPOPS_SIDE_TARGET].max_entries = fields[MAX_QUERIES];
    s->sides[SPOPS_SIDE_SOURCE].max_entries = fields[MAX_KEYS];
    return SPOPS_STATUS_OK;
}

// ---- Filling ------------------------------------------------------------------------------------

static spops_status fill_from_lists(spops_context *ctx, const spops_patches *p,
                                    const int32_t *num_patches, const spops_patch_lists *lists)
{
    const spops_patches_args args = {.storage = &p->storage,
                                     .workspace = p->base.workspace,
                                     .num_patches = num_patches,
                                     .lists = lists};
    SPOPS_TRY(ctx->backend->patches_copy(ctx, &args));
    return ctx->backend->patches_fill(ctx, &args);
}

static spops_status empty_patches(spops_context *ctx, spops_plan *plan)
{
    return fill_from_lists(ctx, (spops_patches *)plan, NULL, NULL);
}

static spops_status state_of_patches(spops_context *ctx, const spops_plan *plan, int64_t *counts)
{
    const spops_patch_storage *s = &((const spops_patches *)plan)->storage;
    spops_patch_state state;
    spops_patch_faults faults;
    SPOPS_TRY(ctx->backend->download(ctx, &state, s->state, sizeof state));
    SPOPS_TRY(ctx->backend->download(ctx, &faults, s->faults, sizeof faults));
    counts[0] = state.num_patches;
    counts[1] = state.num_queries;
    counts[2] = state.num_keys;
    counts[3] = state.num_q_rest;
    counts[4] = state.num_k_rest;
    counts[5] = state.overflow == 0 && spops_patches_refused(&faults);
    counts[6] = state.overflow;
    return SPOPS_STATUS_OK;
}

// Queries are the target, keys the source.
static void relation_of_patches(const spops_plan *plan, spops_relation *r)
{
    const spops_patch_storage *s = &((const spops_patches *)plan)->storage;
    r->num_keys = s->max_patches;
    r->max_terms = s->sides[SPOPS_SIDE_TARGET].max_entries;
    if (s->sides[SPOPS_SIDE_SOURCE].max_entries > r->max_terms)
        r->max_terms = s->sides[SPOPS_SIDE_SOURCE].max_entries;
    r->all_pairs = true;
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side) {
        const spops_patch_side *lists = &s->sides[s->same ? SPOPS_SIDE_TARGET : side];
        r->sides[side] = (spops_relation_side){.max_rows = spops_patch_rows(s, side),
                                               .by_key = {lists->offsets, lists->rows, 1}};
    }
}

const spops_plan_ops spops_patches_plan_ops = {
    .handle_bytes = sizeof(struct spops_patches),
    .num_fields = NUM_FIELDS,
    .read = read_patches,
    .carve = carve_patches,
    .carve_workspace = carve_patches_workspace,
    .ready = show_arrays,
    .empty = empty_patches,
    .state = state_of_patches,
    .relation = relation_of_patches,
};

// The number of entries that offsets end with.
static spops_status read_end(spops_context *ctx, const char *call, const char *side,
                             const int32_t *offsets, int64_t num_patches, int64_t *end)
{
    int32_t last;
    SPOPS_TRY(ctx->backend->download(ctx, &last, offsets + num_patches, sizeof last));
    SPOPS_REQUIRE(ctx, last >= 0 && last <= SPOPS_MAX_COUNT,
                  "%s: lists->%s_offsets[%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64, call,
                  side, num_patches, last, SPOPS_MAX_COUNT);
    *end = last;
    return SPOPS_STATUS_OK;
}

static spops_status refuse_offsets(spops_context *ctx, const char *call, const char *side,
                                   const int32_t *offsets, int32_t at)
{
    int32_t found[2];
    if (at == 0) {
        SPOPS_TRY(ctx->backend->download(ctx, found, offsets, sizeof found[0]));
        return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                          "%s: lists->%s_offsets[0] is %" PRId32 ", expected 0", call, side,
                          found[0]);
    }
    SPOPS_TRY(ctx->backend->download(ctx, found, offsets + at - 1, sizeof found));
    return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                      "%s: lists->%s_offsets[%" PRId32 "] is %" PRId32
                      ", expected %s_offsets[%" PRId32 "] = %" PRId32 " to the last one",
                      call, side, at, found[1], side, at - 1, found[0]);
}

static spops_status entry_row(spops_context *ctx, const int32_t *rows, int32_t entry, int32_t *row)
{
    *row = entry;
    return rows == NULL ? SPOPS_STATUS_OK
                        : ctx->backend->download(ctx, row, rows + entry, sizeof *row);
}

// What a build found wrong with the caller's lists, in words.
static spops_status refuse_faults(spops_context *ctx, const char *call,
                                  const spops_patch_storage *s, const spops_patch_lists *lists,
                                  const spops_patch_faults *faults)
{
    int32_t row;
    for (int side = 0; side < num_sides(s); ++side)
        if (faults->offsets[side] != INT32_MAX)
            return refuse_offsets(ctx, call, side_names[side], offsets_of(lists, side),
                                  faults->offsets[side]);
    for (int side = 0; side < num_sides(s); ++side) {
        const int32_t entry = faults->rows[side];
        if (entry == INT32_MAX) continue;
        SPOPS_TRY(entry_row(ctx, rows_of(lists, side), entry, &row));
        return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                          "%s: entry %" PRId32 " of lists->%s_rows is %" PRId32
                          ", expected 0 to %" PRId64 " (%s - 1)",
                          call, entry, side_names[side], row, spops_patch_rows(s, side) - 1,
                          spops_patch_rows(s, side) == s->num_rows ? "num_rows" : "num_key_rows");
    }
    if (faults->twice == INT32_MAX) return SPOPS_STATUS_OK;
    SPOPS_TRY(entry_row(ctx, lists->query_rows, faults->twice, &row));
    return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                      "%s: entry %" PRId32 " of lists->query_rows is %" PRId32
                      ", a row that is a query before",
                      call, faults->twice, row);
}

// What stays known to the host of a plan that is not refilled.
static spops_status finish_patches(spops_context *ctx, spops_patches *p,
                                   const spops_patch_faults *faults)
{
    SPOPS_TRY(ctx->backend->wait(ctx));
    spops_plan_close(&p->base);
    p->arrays.keys_once = p->storage.same || faults->keys_twice == INT32_MAX;
    if (p->arrays.keys_once) p->arrays.key_offsets = p->arrays.key_entries = NULL;
    return SPOPS_STATUS_OK;
}

spops_status spops_patches_create(spops_context *ctx, int64_t num_rows,
                                  const spops_patch_lists *lists, spops_patches **out)
{
    static const char call[] = "patches_create";
    spops_status status = SPOPS_STATUS_OK;
    int64_t fields[NUM_FIELDS] = {[NUM_ROWS] = num_rows};
    spops_patch_faults faults;
    spops_patches *p = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(spops_check_count(ctx, call, "num_rows", num_rows));
    SPOPS_TRY(check_lists(ctx, call, lists));
    fields[MAX_PATCHES] = lists->num_patches;
    fields[SAME] = lists->key_offsets == NULL;
    fields[NUM_KEY_ROWS] = lists->num_key_rows;
    for (int side = 0; side < (fields[SAME] ? 1 : SPOPS_NUM_SIDES); ++side)
        SPOPS_TRY(read_end(ctx, call, side_names[side], offsets_of(lists, side), lists->num_patches,
                           &fields[MAX_QUERIES + side]));
    SPOPS_TRY(spops_plan_open(ctx, call, SPOPS_PLAN_PATCHES, fields, &p));
    SPOPS_TRY_GOTO(fill_from_lists(ctx, p, NULL, lists), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->download(ctx, &faults, p->storage.faults, sizeof faults), status,
                   fail);
    SPOPS_TRY_GOTO(refuse_faults(ctx, call, &p->storage, lists, &faults), status, fail);
    SPOPS_TRY_GOTO(finish_patches(ctx, p, &faults), status, fail);
    *out = p;
    return SPOPS_STATUS_OK;

fail:
    spops_patches_destroy(p);
    return status;
}

spops_status spops_patches_reserve(spops_context *ctx, const spops_patches_capacity *capacity,
                                   spops_patches **out)
{
    static const char call[] = "patches_reserve";
    spops_patches_capacity s = {0};

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_REQUIRE(ctx, capacity != NULL, "%s: capacity is NULL", call);
    SPOPS_TRY(spops_read_options(ctx, call, capacity, &s, sizeof s));
    SPOPS_TRY(spops_check_reserved(ctx, call, s.reserved));
    const int64_t fields[NUM_FIELDS] = {s.num_rows,    s.max_patches, s.max_queries, s.max_keys,
                                        s.max_samples, s.same,        s.num_key_rows};
    return spops_plan_reserve(ctx, call, SPOPS_PLAN_PATCHES, fields, s.memory, out);
}

spops_status spops_patches_update(spops_context *ctx, spops_patches *patches,
                                  const int32_t *num_patches, const spops_patch_lists *lists)
{
    static const char call[] = "patches_update";
    const spops_patch_storage *s;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "patches", patches));
    SPOPS_TRY(check_lists(ctx, call, lists));
    SPOPS_TRY(spops_check_aligned(ctx, call, "num_patches", num_patches, sizeof *num_patches));
    s = &patches->storage;
    SPOPS_REQUIRE(ctx, lists->num_patches <= s->max_patches,
                  "%s: lists->num_patches is %" PRId64 ", expected at most the capacity, %" PRId64,
                  call, lists->num_patches, s->max_patches);
    SPOPS_REQUIRE(ctx, (lists->key_offsets == NULL) == s->same,
                  "%s: lists->key_offsets is %s, expected %s", call,
                  lists->key_offsets == NULL ? "NULL" : "given",
                  s->same ? "NULL as keys are the queries" : "an array");
    SPOPS_REQUIRE(ctx, lists->num_key_rows == 0 || lists->num_key_rows == s->num_key_rows,
                  "%s: lists->num_key_rows is %" PRId64 ", expected 0 or %" PRId64, call,
                  lists->num_key_rows, s->num_key_rows);
    return fill_from_lists(ctx, patches, num_patches, lists);
}

// ---- From an order of rows ----------------------------------------------------------------------

static spops_status read_order(spops_context *ctx, const char *call, const spops_patch_order *given,
                               spops_patch_curve_rule *rule)
{
    spops_patch_order o;
    int32_t shift = 0;

    SPOPS_REQUIRE(ctx, given != NULL, "%s: order is NULL, expected patch_rows in it", call);
    memset(&o, 0, sizeof o);
    memset(rule, 0, sizeof *rule);
    SPOPS_TRY(spops_read_options(ctx, call, given, &o, sizeof o));
    SPOPS_REQUIRE(ctx, o.patch_rows >= 1, "%s: patch_rows is %d, expected 1 or more", call,
                  (int)o.patch_rows);
    SPOPS_REQUIRE(ctx, o.borrow == 0 || o.borrow == 1, "%s: borrow is %d, expected 0 or 1", call,
                  (int)o.borrow);
    SPOPS_REQUIRE(
        ctx, o.curve >= SPOPS_PATCH_CURVE_ZORDER && o.curve <= SPOPS_PATCH_CURVE_HILBERT_TRANSPOSED,
        "%s: curve is %d, expected %d to %d", call, (int)o.curve, (int)SPOPS_PATCH_CURVE_ZORDER,
        (int)SPOPS_PATCH_CURVE_HILBERT_TRANSPOSED);
    SPOPS_REQUIRE(ctx, o.bits >= 0 && o.bits <= SPOPS_MAX_BUCKET_BITS,
                  "%s: bits is %d, expected 0 to %d", call, (int)o.bits, SPOPS_MAX_BUCKET_BITS);
    SPOPS_TRY(spops_check_aligned(ctx, call, "order->order", o.order, sizeof *o.order));
    rule->curve = (int32_t)o.curve;
    rule->patch_rows = o.patch_rows;
    rule->borrow = o.borrow == 1;
    rule->order = o.order;
    rule->cells.bits = o.bits == 0 ? SPOPS_MAX_BUCKET_BITS : o.bits;
    rule->code_bits = 3 * rule->cells.bits;
    SPOPS_TRY(spops_bucket_rule_set_cells(ctx, call, o.size_m, o.origin_m, &rule->cells));
    rule->layout.dims = 3;
    rule->layout.max_axis_bits = rule->cells.bits;
    for (int c = 3; c >= 0; --c) {
        rule->layout.bits[c] = c == 0 ? 0 : rule->cells.bits;
        rule->layout.shift[c] = shift;
        shift += rule->layout.bits[c];
    }
    return SPOPS_STATUS_OK;
}

// Codes of rows have their sample on top, and keys are counted, where a sample may borrow as many as
// it has.
static spops_status check_order_sizes(spops_context *ctx, const char *call, int64_t rows,
                                      int64_t samples, const spops_patch_curve_rule *rule)
{
    const int left = 64 - rule->code_bits;
    SPOPS_REQUIRE(ctx, rule->order != NULL || left >= 32 || samples < (int64_t)1 << left,
                  "%s: cloud has %" PRId64 " samples, expected less than %" PRId64
                  " with cells of %d bits",
                  call, samples, (int64_t)1 << left, (int)rule->cells.bits);
    return rule->borrow ? spops_check_count(ctx, call, "the most keys", 2 * rows) : SPOPS_STATUS_OK;
}

static spops_patches_args args_of_order(const spops_patches *p, const spops_point_cloud *cloud,
                                        const spops_patch_curve_rule *rule)
{
    return (spops_patches_args){.storage = &p->storage,
                                .workspace = p->base.workspace,
                                .cloud = cloud,
                                .curve = rule,
                                .whole = rule->order == NULL};
}

// Whether the slot that takes several plans at once takes this one.
static bool is_among_orders(const spops_context *ctx, const spops_patches_args *args)
{
    return ctx->backend->patches_orders != NULL && args->curve->curve != SPOPS_PATCH_BY_GRID &&
           args->curve->order == NULL && args->storage->max_patches <= SPOPS_PATCHES_AT_ONCE;
}

static spops_status run_order(spops_context *ctx, const spops_patches_args *args)
{
    const spops_patches_orders_args alone = {.num = 1, .plans = args};
    if (is_among_orders(ctx, args)) return ctx->backend->patches_orders(ctx, &alone);
    SPOPS_TRY(ctx->backend->patches_order(ctx, args));
    return ctx->backend->patches_fill(ctx, args);
}

static spops_status fill_from_order(spops_context *ctx, const spops_patches *p,
                                    const spops_point_cloud *cloud,
                                    const spops_patch_curve_rule *rule)
{
    const spops_patches_args args = args_of_order(p, cloud, rule);
    return run_order(ctx, &args);
}

// Where the host waits anyway: an order that is not one, and points that are none.
static spops_status refuse_order(spops_context *ctx, const char *call, int64_t num_rows,
                                 const spops_point_cloud *cloud, const int32_t *order,
                                 const spops_patch_faults *faults)
{
    const int32_t entry = faults->rows[SPOPS_SIDE_TARGET];
    int32_t row;
    SPOPS_TRY(spops_cloud_refuse_row(ctx, call, "cloud", cloud, faults->not_finite));
    if (order == NULL) return SPOPS_STATUS_OK;
    if (entry != INT32_MAX) {
        SPOPS_TRY(entry_row(ctx, order, entry, &row));
        return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                          "%s: order->order[%" PRId32 "] is %" PRId32
                          ", expected a row of its sample, of %" PRId64 " rows in all",
                          call, entry, row, num_rows);
    }
    if (faults->twice == INT32_MAX) return SPOPS_STATUS_OK;
    SPOPS_TRY(entry_row(ctx, order, faults->twice, &row));
    return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                      "%s: order->order[%" PRId32 "] is %" PRId32 ", a row that is there before",
                      call, faults->twice, row);
}

// The most patches that rows of so many samples can make.
static int64_t most_patches(const spops_patch_curve_rule *rule, int64_t rows, int64_t samples)
{
    return rule->patch_rows == 0 ? rows
                                 : rows / rule->patch_rows + (samples < rows ? samples : rows);
}

static spops_status create_in_order(spops_context *ctx, const char *call,
                                    const spops_point_cloud *cloud,
                                    const spops_patch_curve_rule *rule, spops_patches **out)
{
    spops_status status = SPOPS_STATUS_OK;
    int64_t fields[NUM_FIELDS] = {0};
    spops_patch_faults faults;
    spops_patches *p = NULL;
    int64_t samples, rows;

    SPOPS_TRY(spops_cloud_check_offsets(ctx, call, "cloud", cloud));
    samples = spops_cloud_samples(cloud);
    rows = cloud->points.rows;
    fields[NUM_ROWS] = fields[MAX_QUERIES] = rows;
    fields[MAX_SAMPLES] = samples;
    fields[MAX_PATCHES] = most_patches(rule, rows, samples);
    fields[SAME] = !rule->borrow;
    // A sample borrows less than it has rows.
    if (rule->borrow) fields[MAX_KEYS] = 2 * rows;
    SPOPS_TRY(check_order_sizes(ctx, call, rows, samples, rule));
    SPOPS_TRY(spops_plan_open(ctx, call, SPOPS_PLAN_PATCHES, fields, &p));
    SPOPS_TRY_GOTO(fill_from_order(ctx, p, cloud, rule), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->download(ctx, &faults, p->storage.faults, sizeof faults), status,
                   fail);
    SPOPS_TRY_GOTO(refuse_order(ctx, call, rows, cloud, rule->order, &faults), status, fail);
    SPOPS_TRY_GOTO(finish_patches(ctx, p, &faults), status, fail);
    *out = p;
    return SPOPS_STATUS_OK;

fail:
    spops_patches_destroy(p);
    return status;
}

spops_status spops_patches_create_from_order(spops_context *ctx, const spops_point_cloud *cloud,
                                             const spops_patch_order *order, spops_patches **out)
{
    static const char call[] = "patches_create_from_order";
    spops_patch_curve_rule rule;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(spops_buckets_check_cloud(ctx, call, cloud));
    SPOPS_TRY(read_order(ctx, call, order, &rule));
    return create_in_order(ctx, call, cloud, &rule, out);
}

static spops_status check_samples(spops_context *ctx, const char *call, const char *name,
                                  const spops_patches *patches, int64_t samples)
{
    SPOPS_REQUIRE(ctx, samples <= patches->storage.max_samples,
                  "%s: %s has %" PRId64 " samples, expected at most %" PRId64 " (max_samples)",
                  call, name, samples, patches->storage.max_samples);
    return SPOPS_STATUS_OK;
}

static spops_status check_in_order(spops_context *ctx, const char *call,
                                   const spops_patches *patches, const spops_point_cloud *cloud,
                                   const spops_patch_curve_rule *rule)
{
    SPOPS_TRY(check_samples(ctx, call, "cloud", patches, spops_cloud_samples(cloud)));
    SPOPS_REQUIRE(ctx, cloud->points.rows == patches->storage.num_rows,
                  "%s: cloud->points.rows is %" PRId64 ", expected num_rows, %" PRId64, call,
                  cloud->points.rows, patches->storage.num_rows);
    SPOPS_REQUIRE(ctx, rule->borrow != patches->storage.same,
                  "%s: borrow is %d, expected %d as `same` of the plan is %d", call, rule->borrow,
                  !patches->storage.same, patches->storage.same);
    SPOPS_REQUIRE(ctx, patches->storage.num_key_rows == patches->storage.num_rows,
                  "%s: num_key_rows of the plan is %" PRId64 ", expected num_rows, %" PRId64, call,
                  patches->storage.num_key_rows, patches->storage.num_rows);
    return check_order_sizes(ctx, call, cloud->points.rows, spops_cloud_samples(cloud), rule);
}

static spops_status update_in_order(spops_context *ctx, const char *call, spops_patches *patches,
                                    const spops_point_cloud *cloud,
                                    const spops_patch_curve_rule *rule)
{
    SPOPS_TRY(check_in_order(ctx, call, patches, cloud, rule));
    return fill_from_order(ctx, patches, cloud, rule);
}

spops_status spops_patches_update_from_order(spops_context *ctx, spops_patches *patches,
                                             const spops_point_cloud *cloud,
                                             const spops_patch_order *order)
{
    static const char call[] = "patches_update_from_order";
    spops_patch_curve_rule rule;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "patches", patches));
    SPOPS_TRY(spops_buckets_check_cloud(ctx, call, cloud));
    SPOPS_TRY(read_order(ctx, call, order, &rule));
    return update_in_order(ctx, call, patches, cloud, &rule);
}

// ---- Several plans at once ----------------------------------------------------------------------

// The plans that one call may fill, with what fills them.
typedef struct order_batch {
    spops_patches_args args[SPOPS_MAX_PATCH_ORDERS];
    spops_patch_curve_rule rules[SPOPS_MAX_PATCH_ORDERS];
} order_batch;

static size_t scratch_of_orders(const spops_context *ctx, const spops_patches_args *args,
                                int64_t num)
{
    const spops_patches_orders_args all = {.num = num, .plans = args};
    if (ctx->backend->patches_orders_bytes == NULL) return 0;
    return ctx->backend->patches_orders_bytes((spops_context *)ctx, &all);
}

size_t spops_patches_orders_scratch_bytes(const spops_patches *const *patches, int64_t num)
{
    spops_patches_args args[SPOPS_MAX_PATCH_ORDERS] = {0};
    if (patches == NULL || num <= 0 || num > SPOPS_MAX_PATCH_ORDERS) return 0;
    for (int64_t i = 0; i < num; ++i) {
        if (patches[i] == NULL) return 0;
        args[i].storage = &patches[i]->storage;
    }
    return scratch_of_orders(patches[0]->base.ctx, args, num);
}

static spops_status read_orders(spops_context *ctx, const char *call, int64_t num,
                                spops_patches *const *patches, const spops_point_cloud *clouds,
                                const spops_patch_order *orders, order_batch *batch)
{
    for (int64_t i = 0; i < num; ++i) {
        char name[32];
        snprintf(name, sizeof name, "patches[%d]", (int)i);
        SPOPS_TRY(spops_plan_check_refillable(ctx, call, name, patches[i]));
        for (int64_t j = 0; j < i; ++j)
            SPOPS_REQUIRE(ctx, patches[j] != patches[i],
                          "%s: patches[%d] is patches[%d], expected another plan", call, (int)i,
                          (int)j);
        SPOPS_TRY(spops_buckets_check_cloud(ctx, call, &clouds[i]));
        SPOPS_TRY(read_order(ctx, call, &orders[i], &batch->rules[i]));
        SPOPS_TRY(check_in_order(ctx, call, patches[i], &clouds[i], &batch->rules[i]));
        batch->args[i] = args_of_order(patches[i], &clouds[i], &batch->rules[i]);
    }
    return SPOPS_STATUS_OK;
}

static spops_status get_orders_scratch(spops_context *ctx, const char *call,
                                       const spops_patches_args *args, int64_t num, void **scratch)
{
    const size_t bytes = scratch_of_orders(ctx, args, num);
    const spops_status status = spops_context_scratch(ctx, call, bytes, scratch);
    if (bytes == 0) *scratch = NULL;
    if (status != SPOPS_STATUS_SCRATCH_TOO_SMALL) return status;
    return spops_fail(ctx, status,
                      "%s: the context's scratch is %zu bytes, expected at least %zu: call "
                      "spops_context_reserve with spops_patches_orders_scratch_bytes",
                      call, ctx->scratch_bytes, bytes);
}

spops_status spops_patches_update_from_orders(spops_context *ctx, int64_t num,
                                              spops_patches *const *patches,
                                              const spops_point_cloud *clouds,
                                              const spops_patch_order *orders)
{
    static const char call[] = "patches_update_from_orders";
    spops_patches_args together[SPOPS_MAX_PATCH_ORDERS];
    spops_patches_orders_args all = {.plans = together};
    order_batch batch;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_REQUIRE(ctx, num >= 0 && num <= SPOPS_MAX_PATCH_ORDERS,
                  "%s: num is %" PRId64 ", expected 0 to %d", call, num, SPOPS_MAX_PATCH_ORDERS);
    if (num == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_check_object(ctx, call, "patches", patches, _Alignof(spops_patches *)));
    SPOPS_TRY(spops_check_object(ctx, call, "clouds", clouds, _Alignof(spops_point_cloud)));
    SPOPS_TRY(spops_check_object(ctx, call, "orders", orders, _Alignof(spops_patch_order)));
    SPOPS_TRY(read_orders(ctx, call, num, patches, clouds, orders, &batch));
    SPOPS_TRY(get_orders_scratch(ctx, call, batch.args, num, &all.scratch));
    for (int64_t i = 0; i < num; ++i) {
        if (is_among_orders(ctx, &batch.args[i]))
            together[all.num++] = batch.args[i];
        else
            SPOPS_TRY(run_order(ctx, &batch.args[i]));
    }
    return all.num == 0 ? SPOPS_STATUS_OK : ctx->backend->patches_orders(ctx, &all);
}

// ---- From windows of a grid ---------------------------------------------------------------------

static spops_status read_flags(spops_context *ctx, const char *call, const spops_patch_grid *g)
{
    SPOPS_TRY(spops_check_flag(ctx, call, "even", g->even));
    SPOPS_TRY(spops_check_flag(ctx, call, "across", g->across));
    SPOPS_TRY(spops_check_flag(ctx, call, "borrow", g->borrow));
    SPOPS_REQUIRE(ctx, g->set_rows >= 0, "%s: set_rows is %d, expected 0 or more", call,
                  (int)g->set_rows);
    SPOPS_REQUIRE(ctx, g->across == 0 || g->set_rows > 0,
                  "%s: set_rows is 0, expected 1 or more as across is 1", call);
    SPOPS_REQUIRE(ctx, g->borrow == 0 || g->across == 1,
                  "%s: borrow is 1, expected 0 as across is 0", call);
    SPOPS_REQUIRE(ctx, g->bits >= 0 && g->bits <= SPOPS_MAX_BUCKET_BITS,
                  "%s: bits is %d, expected 0 to %d", call, (int)g->bits, SPOPS_MAX_BUCKET_BITS);
    return SPOPS_STATUS_OK;
}

static spops_status read_axes(spops_context *ctx, const char *call, const int32_t given[3],
                              int32_t axes[3])
{
    int seen = 0;
    for (int a = 0; a < 3; ++a) {
        axes[a] = given[0] == 0 && given[1] == 0 && given[2] == 0 ? a : given[a];
        SPOPS_REQUIRE(ctx, axes[a] >= 0 && axes[a] < 3, "%s: axes[%d] is %d, expected 0 to 2", call,
                      a, (int)axes[a]);
        SPOPS_REQUIRE(ctx, (seen & 1 << axes[a]) == 0,
                      "%s: axes[%d] is %d, an axis that is there before", call, a, (int)axes[a]);
        seen |= 1 << axes[a];
    }
    return SPOPS_STATUS_OK;
}

static spops_status read_grid(spops_context *ctx, const char *call, const spops_patch_grid *given,
                              spops_patch_curve_rule *rule)
{
    spops_patch_grid o;
    spops_patch_grid_rule *g = &rule->grid;
    uint64_t codes;

    memset(&o, 0, sizeof o);
    memset(rule, 0, sizeof *rule);
    SPOPS_TRY(spops_read_options(ctx, call, given, &o, sizeof o));
    SPOPS_TRY(read_flags(ctx, call, &o));
    SPOPS_TRY(read_axes(ctx, call, o.axes, g->axes));
    rule->curve = SPOPS_PATCH_BY_GRID;
    rule->patch_rows = o.across == 1 ? o.set_rows : 0;
    rule->borrow = o.borrow == 1;
    rule->cells.bits = o.bits == 0 ? SPOPS_MAX_BUCKET_BITS : o.bits;
    SPOPS_TRY(spops_bucket_rule_set_cells(ctx, call, o.size_m, o.origin_m, &rule->cells));
    g->set_rows = o.set_rows;
    g->even = o.even == 1;
    g->cells = codes = 1;
    for (int a = 0; a < 3; ++a) {
        const int32_t most = 1 << rule->cells.bits, window = o.window[g->axes[a]];
        SPOPS_REQUIRE(ctx, window >= 0 && window <= most,
                      "%s: window[%d] is %d, expected 0 to %d with cells of %d bits", call,
                      (int)g->axes[a], (int)window, (int)most, (int)rule->cells.bits);
        // An axis that is one window has no shift.
        g->window[a] = window == 0 ? most : window;
        g->shift[a] = window == 0 ? 0 : o.shift[g->axes[a]] % window;
        if (g->shift[a] < 0) g->shift[a] += window;
        g->windows[a] = (uint64_t)(most - 1 + g->shift[a]) / (uint64_t)g->window[a] + 1;
        g->cells *= (uint64_t)g->window[a];
        codes *= g->windows[a];
    }
    // At most 3 * 2^16 codes along an axis.
    for (codes = codes * g->cells - 1; codes >> rule->code_bits != 0;)
        ++rule->code_bits;
    return SPOPS_STATUS_OK;
}

spops_status spops_patches_create_from_grid(spops_context *ctx, const spops_point_cloud *cloud,
                                            const spops_patch_grid *grid, spops_patches **out)
{
    static const char call[] = "patches_create_from_grid";
    spops_patch_curve_rule rule;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(spops_buckets_check_cloud(ctx, call, cloud));
    SPOPS_TRY(read_grid(ctx, call, grid, &rule));
    return create_in_order(ctx, call, cloud, &rule, out);
}

spops_status spops_patches_update_from_grid(spops_context *ctx, spops_patches *patches,
                                            const spops_point_cloud *cloud,
                                            const spops_patch_grid *grid)
{
    static const char call[] = "patches_update_from_grid";
    spops_patch_curve_rule rule;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "patches", (const spops_plan *)patches));
    SPOPS_TRY(spops_buckets_check_cloud(ctx, call, cloud));
    SPOPS_TRY(read_grid(ctx, call, grid, &rule));
    return update_in_order(ctx, call, patches, cloud, &rule);
}

// ---- From buckets -------------------------------------------------------------------------------

static spops_status read_window(spops_context *ctx, const char *call,
                                const spops_patch_window *given, spops_patch_window_rule *rule)
{
    spops_patch_window w;
    memset(&w, 0, sizeof w);
    SPOPS_TRY(spops_read_options(ctx, call, given, &w, sizeof w));
    SPOPS_REQUIRE(ctx, w.buckets >= 0, "%s: window->buckets is %d, expected 0 or more", call,
                  (int)w.buckets);
    SPOPS_REQUIRE(ctx, w.stride >= 0, "%s: window->stride is %d, expected 0 or more", call,
                  (int)w.stride);
    SPOPS_REQUIRE(ctx, w.in_places == 0 || w.in_places == 1,
                  "%s: window->in_places is %d, expected 0 or 1", call, (int)w.in_places);
    rule->buckets = w.buckets == 0 ? 1 : w.buckets;
    rule->stride = w.stride == 0 ? 1 : w.stride;
    rule->shift = w.shift;
    rule->in_places = w.in_places == 1;
    return SPOPS_STATUS_OK;
}

static spops_status fill_from_buckets(spops_context *ctx, const spops_patches *p,
                                      const spops_buckets *buckets,
                                      const spops_patch_window_rule *rule)
{
    const spops_patches_args args = {.storage = &p->storage,
                                     .workspace = p->base.workspace,
                                     .whole = true,
                                     .buckets = &buckets->arrays,
                                     .window = rule};
    SPOPS_TRY(ctx->backend->patches_window(ctx, &args));
    return ctx->backend->patches_fill(ctx, &args);
}

spops_status spops_patches_create_from_buckets(spops_context *ctx, const spops_buckets *buckets,
                                               const spops_patch_window *window,
                                               spops_patches **out)
{
    static const char call[] = "patches_create_from_buckets";
    spops_status status = SPOPS_STATUS_OK;
    spops_patch_window_rule rule;
    int64_t fields[NUM_FIELDS] = {[SAME] = 1};
    const spops_patch_faults none = {.keys_twice = INT32_MAX};
    spops_patches *p = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(spops_plan_check(ctx, call, "buckets", buckets));
    SPOPS_TRY(read_window(ctx, call, window, &rule));
    fields[NUM_ROWS] = fields[MAX_QUERIES] = buckets->arrays.max_rows;
    fields[MAX_SAMPLES] = buckets->arrays.max_samples;
    fields[MAX_PATCHES] = buckets->arrays.max_buckets;
    SPOPS_TRY(spops_plan_open(ctx, call, SPOPS_PLAN_PATCHES, fields, &p));
    SPOPS_TRY_GOTO(fill_from_buckets(ctx, p, buckets, &rule), status, fail);
    SPOPS_TRY_GOTO(finish_patches(ctx, p, &none), status, fail);
    *out = p;
    return SPOPS_STATUS_OK;

fail:
    spops_patches_destroy(p);
    return status;
}

spops_status spops_patches_update_from_buckets(spops_context *ctx, spops_patches *patches,
                                               const spops_buckets *buckets,
                                               const spops_patch_window *window)
{
    static const char call[] = "patches_update_from_buckets";
    spops_patch_window_rule rule;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "patches", patches));
    SPOPS_TRY(spops_plan_check(ctx, call, "buckets", buckets));
    SPOPS_REQUIRE(ctx, patches->storage.same,
                  "%s: `same` of the plan is 0, expected 1: keys of buckets are their queries",
                  call);
    SPOPS_TRY(check_samples(ctx, call, "buckets", patches, buckets->arrays.max_samples));
    SPOPS_REQUIRE(ctx, buckets->arrays.max_rows == patches->storage.num_rows,
                  "%s: buckets has max_rows = %" PRId64 ", expected num_rows, %" PRId64, call,
                  buckets->arrays.max_rows, patches->storage.num_rows);
    SPOPS_TRY(read_window(ctx, call, window, &rule));
    return fill_from_buckets(ctx, patches, buckets, &rule);
}

// ---- Looking at them ----------------------------------------------------------------------------

spops_status spops_patches_get_info_sync(spops_context *ctx, const spops_patches *patches,
                                         spops_patches_info *info)
{
    static const char call[] = "patches_get_info_sync";
    spops_patches_info found = spops_patches_info_default();
    const spops_patch_storage *s;
    spops_patch_state state;
    spops_patch_faults faults;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_sync(ctx, call, "patches", patches));
    s = &patches->storage;
    SPOPS_TRY(ctx->backend->download(ctx, &state, s->state, sizeof state));
    SPOPS_TRY(ctx->backend->download(ctx, &faults, s->faults, sizeof faults));
    found.num_rows = s->num_rows;
    found.num_key_rows = s->num_key_rows;
    found.num_patches = state.num_patches;
    found.max_patches = s->max_patches;
    found.num_queries = state.num_queries;
    found.max_queries = patches->arrays.max_queries;
    found.num_keys = state.num_keys;
    found.max_keys = patches->arrays.max_keys;
    found.num_no_queries = state.num_q_rest;
    found.num_no_keys = state.num_k_rest;
    found.same = s->same;
    found.keys_once = patches->arrays.keys_once;
    found.refused = state.overflow == 0 && spops_patches_refused(&faults);
    found.overflow = state.overflow;
    SPOPS_TRY(spops_write_struct(ctx, call, "info", info, &found, sizeof found));
    if (state.overflow == 0) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_CAPACITY_EXCEEDED,
                      "%s: more patches or entries came than fit: %" PRId64 " patches, %" PRId64
                      " queries, %" PRId64 " keys",
                      call, found.max_patches, found.max_queries, found.max_keys);
}

spops_status spops_patches_get_view(spops_context *ctx, const spops_patches *patches,
                                    spops_patches_view *view)
{
    static const char call[] = "patches_get_view";
    spops_patches_view found = spops_patches_view_default();
    const spops_patch_arrays *a;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "patches", patches));
    a = &patches->arrays;
    found.max_patches = a->max_patches;
    found.max_queries = a->max_queries;
    found.max_keys = a->max_keys;
    found.num_patches = &a->state->num_patches;
    found.query_offsets = a->q_offsets;
    found.query_rows = a->q_rows;
    found.key_offsets = a->k_offsets;
    found.key_rows = a->k_rows;
    return spops_write_struct(ctx, call, "view", view, &found, sizeof found);
}
