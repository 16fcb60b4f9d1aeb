// SPDX-License-Identifier: Apache-2.0
// Plans of patches: checks, memory, and the order in which the backend fills them.
#include "patches/patches.h"

#include <string.h>

#include "core/check.h"

static const char *const side_names[SPOPS_NUM_PATCH_SIDES] = {"query", "key"};

spops_status spops_patches_check(spops_context *ctx, const char *call, const char *name,
                                 const spops_patches *patches)
{
    SPOPS_REQUIRE(ctx, patches != NULL, "%s: %s is NULL", call, name);
    return spops_check_home(ctx, call, name, patches->ctx);
}

static const int32_t *offsets_of(const spops_patch_lists *lists, int side)
{
    return side == SPOPS_PATCH_QUERIES ? lists->query_offsets : lists->key_offsets;
}

static const int32_t *rows_of(const spops_patch_lists *lists, int side)
{
    return side == SPOPS_PATCH_QUERIES ? lists->query_rows : lists->key_rows;
}

static int num_sides(const spops_patch_storage *s)
{
    return s->same ? 1 : SPOPS_NUM_PATCH_SIDES;
}

static spops_status check_lists(spops_context *ctx, const char *call,
                                const spops_patch_lists *lists)
{
    SPOPS_REQUIRE(ctx, lists != NULL, "%s: lists is NULL", call);
    SPOPS_TRY(spops_check_count(ctx, call, "lists->num_patches", lists->num_patches));
    SPOPS_TRY(spops_check_indices(ctx, call, "lists->query_offsets", lists->query_offsets,
                                  lists->num_patches + 1));
    SPOPS_TRY(spops_check_aligned(ctx, call, "lists->query_rows", lists->query_rows,
                                  sizeof *lists->query_rows));
    SPOPS_TRY(spops_check_aligned(ctx, call, "lists->key_offsets", lists->key_offsets,
                                  sizeof *lists->key_offsets));
    SPOPS_REQUIRE(ctx, lists->key_offsets != NULL || lists->key_rows == NULL,
                  "%s: lists->key_rows is given, and key_offsets is NULL", call);
    return spops_check_aligned(ctx, call, "lists->key_rows", lists->key_rows,
                               sizeof *lists->key_rows);
}

// ---- Memory -------------------------------------------------------------------------------------

static void carve_side(spops_patch_storage *s, spops_patch_side *side, spops_carver *c)
{
    side->offsets = spops_carve(c, s->max_patches + 1, 1, sizeof *side->offsets);
    side->rows = spops_carve(c, side->max_entries, 1, sizeof *side->rows);
    side->rest = spops_carve(c, s->num_rows, 1, sizeof *side->rest);
    for (int t = 0; t < SPOPS_NUM_PATCH_TILES; ++t) {
        // Each patch has at most one tile that is not full.
        const int64_t tiles = side->max_entries / SPOPS_PATCH_TILE_ENTRIES(t) + s->max_patches;
        side->max_tiles[t] = tiles < side->max_entries ? tiles : side->max_entries;
        side->tiles[t] = spops_carve(c, side->max_tiles[t], 1, sizeof *side->tiles[t]);
    }
}

static void carve_block(spops_patch_storage *s, spops_carver *c)
{
    s->state = spops_carve(c, 1, 1, sizeof *s->state);
    s->faults = spops_carve(c, 1, 1, sizeof *s->faults);
    for (int side = 0; side < num_sides(s); ++side)
        carve_side(s, &s->sides[side], c);
    s->key_offsets = NULL;
    s->key_entries = NULL;
    if (s->same) return;
    s->key_offsets = spops_carve(c, s->num_rows + 1, 1, sizeof *s->key_offsets);
    s->key_entries =
        spops_carve(c, s->sides[SPOPS_PATCH_KEYS].max_entries, 1, sizeof *s->key_entries);
}

static void show_arrays(spops_patches *p)
{
    const spops_patch_storage *s = &p->storage;
    const spops_patch_side *q = &s->sides[SPOPS_PATCH_QUERIES];
    const spops_patch_side *k = s->same ? q : &s->sides[SPOPS_PATCH_KEYS];
    spops_patch_arrays *a = &p->arrays;

    a->num_rows = s->num_rows;
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

static spops_status too_large(spops_context *ctx, const char *call)
{
    return spops_fail(ctx, SPOPS_STATUS_OUT_OF_MEMORY,
                      "%s: the plan needs more bytes than an address can count", call);
}

// A plan of these sizes (num_rows, max_patches, same and the sides' max_entries), with nothing in it.
static spops_status alloc_patches(spops_context *ctx, const char *call,
                                  const spops_patch_storage *sizes, spops_patches **out)
{
    spops_status status = SPOPS_STATUS_OK;
    spops_carver carver = {NULL, 0};
    spops_patches *p = NULL;
    spops_patches_args args = {0};
    size_t bytes;

    SPOPS_REQUIRE_SLOT(ctx, call, patches_fill);
    p = spops_host_alloc(ctx, 1, sizeof *p);
    if (p == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    p->ctx = ctx;
    p->storage = *sizes;
    carve_block(&p->storage, &carver);
    if (carver.used == SIZE_MAX) {
        status = too_large(ctx, call);
        goto fail;
    }
    SPOPS_TRY_GOTO(spops_backend_alloc(ctx, carver.used, &p->block), status, fail);
    p->block_bytes = carver.used;
    carver = (spops_carver){p->block, 0};
    carve_block(&p->storage, &carver);
    show_arrays(p);

    args.storage = &p->storage;
    bytes = ctx->backend->patches_workspace_bytes(ctx, &args);
    if (bytes == SIZE_MAX) {
        status = too_large(ctx, call);
        goto fail;
    }
    SPOPS_TRY_GOTO(spops_backend_alloc(ctx, bytes, &p->workspace), status, fail);
    p->workspace_bytes = bytes;
    *out = p;
    return SPOPS_STATUS_OK;

fail:
    spops_patches_destroy(p);
    return status;
}

void spops_patches_destroy(spops_patches *patches)
{
    spops_context *ctx;
    if (patches == NULL) return;
    ctx = patches->ctx;
    if (patches->block != NULL) (void)ctx->backend->wait(ctx);
    spops_backend_free(ctx, patches->workspace, patches->workspace_bytes);
    spops_backend_free(ctx, patches->block, patches->block_bytes);
    spops_host_free(ctx, patches, 1, sizeof *patches);
}

// ---- Filling ------------------------------------------------------------------------------------

static spops_status fill_from_lists(spops_context *ctx, const spops_patches *p,
                                    const int32_t *num_patches, const spops_patch_lists *lists)
{
    const spops_patches_args args = {&p->storage, p->workspace, num_patches, lists};
    SPOPS_TRY(ctx->backend->patches_copy(ctx, &args));
    return ctx->backend->patches_fill(ctx, &args);
}

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
                          ", expected 0 to %" PRId64 " (num_rows - 1)",
                          call, entry, side_names[side], row, s->num_rows - 1);
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
    spops_backend_free(ctx, p->workspace, p->workspace_bytes);
    p->workspace = NULL;
    p->workspace_bytes = 0;
    p->arrays.keys_once = p->storage.same || faults->keys_twice == INT32_MAX;
    if (p->arrays.keys_once) p->arrays.key_offsets = p->arrays.key_entries = NULL;
    return SPOPS_STATUS_OK;
}

spops_status spops_patches_create(spops_context *ctx, int64_t num_rows,
                                  const spops_patch_lists *lists, spops_patches **out)
{
    static const char call[] = "patches_create";
    spops_status status = SPOPS_STATUS_OK;
    spops_patch_storage sizes;
    spops_patch_faults faults;
    spops_patches *p = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(spops_check_count(ctx, call, "num_rows", num_rows));
    SPOPS_TRY(check_lists(ctx, call, lists));
    memset(&sizes, 0, sizeof sizes);
    sizes.num_rows = num_rows;
    sizes.max_patches = lists->num_patches;
    sizes.same = lists->key_offsets == NULL;
    for (int side = 0; side < num_sides(&sizes); ++side)
        SPOPS_TRY(read_end(ctx, call, side_names[side], offsets_of(lists, side), lists->num_patches,
                           &sizes.sides[side].max_entries));
    SPOPS_TRY(alloc_patches(ctx, call, &sizes, &p));
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

spops_status spops_patches_reserve(spops_context *ctx, const spops_patches_shape *shape,
                                   spops_patches **out)
{
    static const char call[] = "patches_reserve";
    spops_status status = SPOPS_STATUS_OK;
    spops_patches_shape s;
    spops_patch_storage sizes;
    spops_patches *p = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_REQUIRE(ctx, shape != NULL, "%s: shape is NULL", call);
    memset(&s, 0, sizeof s);
    SPOPS_TRY(spops_read_options(ctx, call, shape, &s, sizeof s));
    SPOPS_TRY(spops_check_count(ctx, call, "shape->num_rows", s.num_rows));
    SPOPS_TRY(spops_check_count(ctx, call, "shape->max_patches", s.max_patches));
    SPOPS_TRY(spops_check_count(ctx, call, "shape->max_queries", s.max_queries));
    SPOPS_TRY(spops_check_count(ctx, call, "shape->max_keys", s.max_keys));
    SPOPS_REQUIRE(ctx, s.same == 0 || s.same == 1, "%s: shape->same is %d, expected 0 or 1", call,
                  (int)s.same);
    SPOPS_REQUIRE(ctx, s.same == 0 || s.max_keys == 0,
                  "%s: shape->max_keys is %" PRId64 ", expected 0 as same is 1", call, s.max_keys);
    memset(&sizes, 0, sizeof sizes);
    sizes.num_rows = s.num_rows;
    sizes.max_patches = s.max_patches;
    sizes.same = s.same == 1;
    sizes.sides[SPOPS_PATCH_QUERIES].max_entries = s.max_queries;
    sizes.sides[SPOPS_PATCH_KEYS].max_entries = s.max_keys;
    SPOPS_TRY(alloc_patches(ctx, call, &sizes, &p));
    p->refillable = true;
    SPOPS_TRY_GOTO(fill_from_lists(ctx, p, NULL, NULL), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->wait(ctx), status, fail);
    *out = p;
    return SPOPS_STATUS_OK;

fail:
    spops_patches_destroy(p);
    return status;
}

spops_status spops_patches_set(spops_context *ctx, spops_patches *patches,
                               const int32_t *num_patches, const spops_patch_lists *lists)
{
    static const char call[] = "patches_set";
    const spops_patch_storage *s;

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_patches_check(ctx, call, "patches", patches));
    SPOPS_REQUIRE(ctx, patches->refillable, "%s: the plan was not made by patches_reserve", call);
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
    return fill_from_lists(ctx, patches, num_patches, lists);
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

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_patches_check(ctx, call, "patches", patches));
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    s = &patches->storage;
    SPOPS_TRY(ctx->backend->download(ctx, &state, s->state, sizeof state));
    SPOPS_TRY(ctx->backend->download(ctx, &faults, s->faults, sizeof faults));
    found.num_rows = s->num_rows;
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
    found.bytes = (int64_t)(sizeof *patches + patches->block_bytes + patches->workspace_bytes);
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

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_patches_check(ctx, call, "patches", patches));
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
