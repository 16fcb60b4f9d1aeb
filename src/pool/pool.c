// SPDX-License-Identifier: Apache-2.0
// Sparse pooling: a plan of segments, filled from the pairs of a kernel map, from the batches of a set
// or from runs of rows in buckets. Reductions and gradients are segreduce's.
#include "spops/pool.h"

#include <string.h>

#include "buckets/buckets.h"
#include "coords/coords.h"
#include "call/call_check.h"
#include "segreduce/segreduce.h"
#include "core/plan.h"
#include "relation/relation.h"
#include "segments/segments.h"

// What is pooled: the windows of a map, batches of a set, runs of rows in buckets.
enum { FROM_MAP, FROM_COORDS, FROM_BUCKETS };

// Fields of a description.
enum {
    SOURCE,
    NUM_SEGMENTS,
    MAX_TERMS,
    NUM_ROWS,
    MAX_COLS,
    GRADIENTS,
    SUB_ROWS,
    MOST_POOLED, // what one row pools, and is pooled into, at most; 0: not known
    MOST_INTO,
    MAX_SAMPLES, // of buckets, as those after it
    MAX_BUCKETS,
    BITS,
    NUM_FIELDS
};

struct spops_pool {
    spops_plan base;
    const spops_coords *coords;        // of its batches
    const int32_t *num_terms;          // [1] what segments are made from, where ctx runs
    const int32_t *keys, *idx;         // [max_terms]; idx NULL: term t is row t
    int32_t *batches;                  // [rows of coords]
    spops_sub_buckets_args subs;       // of FROM_BUCKETS
    spops_buckets_arrays like_buckets; // their sizes
    spops_segments *segments;
};

// ---- Life cycle ---------------------------------------------------------------------------------

static spops_status read_pool(spops_context *ctx, const char *call, spops_plan *plan)
{
    spops_pool *pool = (spops_pool *)plan;
    const int64_t *fields = plan->fields;
    spops_segments_sizes sizes;

    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, SOURCE, FROM_MAP, FROM_BUCKETS));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, NUM_SEGMENTS, 0, SPOPS_MAX_COUNT));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, MAX_TERMS, 0, SPOPS_MAX_COUNT));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, NUM_ROWS, 0, SPOPS_MAX_COUNT));
    for (int32_t i = SUB_ROWS; i <= MAX_BUCKETS; ++i)
        SPOPS_TRY(spops_plan_check_field(ctx, call, plan, i, 0, SPOPS_MAX_COUNT));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, BITS, 0, SPOPS_MAX_BUCKET_BITS));
    memset(&sizes, 0, sizeof sizes);
    SPOPS_TRY(spops_check_gradients_field(ctx, call, fields[GRADIENTS], &sizes.gradients));
    sizes.max_cols = fields[MAX_COLS];
    SPOPS_TRY(spops_check_max_cols(ctx, call, &sizes.max_cols));
    plan->fields[MAX_COLS] = sizes.max_cols;
    if (fields[SOURCE] == FROM_COORDS) SPOPS_REQUIRE_SLOT(ctx, call, coords_batches);
    if (fields[SOURCE] == FROM_BUCKETS) {
        SPOPS_REQUIRE_SLOT(ctx, call, sub_buckets);
        SPOPS_TRY(spops_plan_check_field(ctx, call, plan, SUB_ROWS, 1, SPOPS_MAX_COUNT));
        pool->like_buckets.max_rows = fields[NUM_ROWS];
        pool->like_buckets.max_samples = fields[MAX_SAMPLES];
        pool->like_buckets.max_buckets = fields[MAX_BUCKETS];
        pool->like_buckets.rule.bits = (int32_t)fields[BITS];
        pool->subs.buckets = &pool->like_buckets;
        pool->subs.sub_rows = (int32_t)fields[SUB_ROWS];
        SPOPS_REQUIRE(ctx, spops_sub_bucket_bits(&pool->like_buckets) <= 64,
                      "%s: %" PRId64 " buckets and cells of %" PRId64
                      " bits need %d bits, expected at most 64",
                      call, fields[MAX_BUCKETS], fields[BITS],
                      spops_sub_bucket_bits(&pool->like_buckets));
    }
    sizes.num_segments = fields[NUM_SEGMENTS];
    sizes.max_terms = sizes.num_weights = sizes.num_sources = fields[MAX_TERMS];
    sizes.num_rows = fields[NUM_ROWS];
    sizes.refillable = sizes.pairs = sizes.order = true;
    sizes.most_of_segment = (int32_t)fields[MOST_POOLED];
    sizes.most_of_row = (int32_t)fields[MOST_INTO];
    return spops_segments_alloc(ctx, call, &sizes, &pool->segments);
}

static void put_relation(const spops_relation *r, int64_t fields[NUM_FIELDS])
{
    fields[SOURCE] = FROM_MAP;
    fields[NUM_SEGMENTS] = r->sides[SPOPS_SIDE_TARGET].max_rows;
    fields[MAX_TERMS] = r->max_terms;
    fields[NUM_ROWS] = r->sides[SPOPS_SIDE_SOURCE].max_rows;
    fields[MOST_POOLED] = r->num_keys;
    fields[MOST_INTO] = r->most_of_source > 0 ? r->most_of_source : r->num_keys;
}

// Of a set; its batches are said.
static void put_coords(const spops_coords_arrays *a, int64_t fields[NUM_FIELDS])
{
    fields[SOURCE] = FROM_COORDS;
    fields[MAX_TERMS] = fields[NUM_ROWS] = a->max_rows;
    fields[MOST_INTO] = 1;
}

// Of buckets; the rows of a run are said.
static void put_buckets(const spops_buckets_arrays *a, int64_t fields[NUM_FIELDS])
{
    const int64_t most = a->max_rows / fields[SUB_ROWS] + a->max_buckets;
    fields[SOURCE] = FROM_BUCKETS;
    fields[NUM_SEGMENTS] = most < a->max_rows ? most : a->max_rows;
    fields[MAX_TERMS] = fields[NUM_ROWS] = a->max_rows;
    fields[MOST_POOLED] = fields[SUB_ROWS];
    fields[MOST_INTO] = 1;
    fields[MAX_SAMPLES] = a->max_samples;
    fields[MAX_BUCKETS] = a->max_buckets;
    fields[BITS] = a->rule.bits;
}

static spops_status bind_pool(spops_context *ctx, const char *call, spops_plan *plan)
{
    static const char *const names[] = {"map", "coords", "buckets"};
    spops_pool *pool = (spops_pool *)plan;
    const int source = (int)plan->fields[SOURCE];
    const spops_plan *const parent = plan->parents[source];
    int64_t found[NUM_FIELDS];

    for (int i = FROM_MAP; i <= FROM_BUCKETS; ++i)
        SPOPS_REQUIRE(ctx, (plan->parents[i] != NULL) == (i == source),
                      "%s: parents[%d] (%s) is %s, expected %s", call, i, names[i],
                      plan->parents[i] == NULL ? "NULL" : "given",
                      i == source ? "what is pooled" : "NULL");
    memcpy(found, plan->fields, sizeof found);
    if (source == FROM_MAP) {
        spops_relation r;
        SPOPS_TRY(spops_relation_of(ctx, call, parent, &r));
        SPOPS_REQUIRE(ctx, r.sides[SPOPS_SIDE_TARGET].by_key.offsets != NULL,
                      "%s: map has no pairs, expected one made with SPOPS_MAP_PAIRS", call);
        put_relation(&r, found);
        pool->num_terms = r.sides[SPOPS_SIDE_TARGET].by_key.offsets + r.num_keys;
        pool->keys = r.sides[SPOPS_SIDE_TARGET].by_key.rows;
        pool->idx = r.sides[SPOPS_SIDE_SOURCE].by_key.rows;
    } else if (source == FROM_COORDS) {
        pool->coords = (const spops_coords *)parent;
        SPOPS_REQUIRE(ctx,
                      pool->coords->arrays.max_rows == 0 ||
                          pool->coords->arrays.layout.upper[0] < plan->fields[NUM_SEGMENTS],
                      "%s: num_batches is %" PRId64 ", expected more than %" PRId32
                      ", the last batch in the box of coords",
                      call, plan->fields[NUM_SEGMENTS], pool->coords->arrays.layout.upper[0]);
        put_coords(&pool->coords->arrays, found);
        pool->num_terms = spops_coords_num_rows(pool->coords);
    } else {
        pool->subs.buckets = &((const spops_buckets *)parent)->arrays;
        put_buckets(pool->subs.buckets, found);
        pool->num_terms = &pool->subs.buckets->state->num_rows;
    }
    for (int32_t i = SOURCE; i < NUM_FIELDS; ++i)
        SPOPS_TRY(spops_plan_check_parent(ctx, call, plan, i, names[source], found[i]));
    return SPOPS_STATUS_OK;
}

static void carve_pool(spops_plan *plan, spops_carver *c)
{
    spops_pool *pool = (spops_pool *)plan;
    spops_context *ctx = plan->ctx;
    spops_sub_buckets_args *subs = &pool->subs;

    if (plan->fields[SOURCE] == FROM_COORDS)
        pool->batches = spops_carve(c, plan->fields[NUM_ROWS], 1, sizeof *pool->batches);
    if (plan->fields[SOURCE] == FROM_BUCKETS) {
        const spops_sub_buckets_args sizes = {.buckets = &pool->like_buckets,
                                              .sub_rows = subs->sub_rows};
        subs->rows = spops_carve(c, plan->fields[NUM_ROWS], 1, sizeof *subs->rows);
        subs->subs = spops_carve(c, plan->fields[NUM_ROWS], 1, sizeof *subs->subs);
        subs->sample_offsets =
            spops_carve(c, plan->fields[MAX_SAMPLES] + 1, 1, sizeof *subs->sample_offsets);
        subs->workspace =
            spops_carve(c, 1, 1, ctx->backend->sub_buckets_workspace_bytes(ctx, &sizes));
    }
}

static void place_pool(spops_plan *plan)
{
    spops_pool *pool = (spops_pool *)plan;
    if (pool->coords != NULL) pool->keys = pool->batches;
    if (pool->subs.rows == NULL) return;
    pool->keys = pool->subs.subs;
    pool->idx = pool->subs.rows;
}

static spops_status fill_pool(spops_context *ctx, const spops_pool *pool)
{
    if (pool->coords != NULL) {
        const spops_coords_batches_args args = {&pool->coords->arrays, pool->batches};
        SPOPS_TRY(ctx->backend->coords_batches(ctx, &args));
    }
    if (pool->subs.buckets != NULL) SPOPS_TRY(ctx->backend->sub_buckets(ctx, &pool->subs));
    return spops_segments_update(ctx, pool->segments, pool->num_terms, pool->keys, pool->idx, NULL);
}

static spops_status empty_pool(spops_context *ctx, spops_plan *plan)
{
    static const spops_lists_source nothing;
    spops_pool *pool = (spops_pool *)plan;
    SPOPS_TRY(spops_segments_enqueue_build(ctx, pool->segments, &nothing));
    return fill_pool(ctx, pool);
}

static spops_status update_pools(spops_context *ctx, spops_plan *const *plans, int32_t num)
{
    for (int32_t i = 0; i < num; ++i)
        SPOPS_TRY(fill_pool(ctx, (const spops_pool *)plans[i]));
    return SPOPS_STATUS_OK;
}

const spops_plan_ops spops_pool_plan_ops = {
    .handle_bytes = sizeof(struct spops_pool),
    .num_fields = NUM_FIELDS,
    .read = read_pool,
    .bind = bind_pool,
    .carve = carve_pool,
    .ready = place_pool,
    .empty = empty_pool,
    .update = update_pools,
    .relation = spops_relation_of_part,
};

// ---- Making -------------------------------------------------------------------------------------

static spops_status read_options(spops_context *ctx, const char *call,
                                 const spops_pool_options *given, int64_t fields[NUM_FIELDS],
                                 spops_plan_memory **memory)
{
    spops_pool_options o = {0};
    SPOPS_TRY(spops_read_options(ctx, call, given, &o, sizeof o));
    SPOPS_TRY(spops_check_reserved(ctx, call, o.reserved));
    SPOPS_TRY(spops_check_gradients(ctx, call, o.gradients));
    SPOPS_TRY(spops_check_max_cols(ctx, call, &o.max_cols));
    fields[MAX_COLS] = o.max_cols;
    fields[GRADIENTS] = o.gradients;
    *memory = o.memory;
    return SPOPS_STATUS_OK;
}

spops_status spops_pool_create(spops_context *ctx, const spops_kernel_map *map,
                               const spops_pool_options *given, spops_pool **out)
{
    static const char call[] = "pool_create";
    const spops_plan *const parents[] = {(const spops_plan *)map, NULL, NULL};
    int64_t fields[NUM_FIELDS] = {0};
    spops_plan_memory *memory;
    spops_relation relation;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(read_options(ctx, call, given, fields, &memory));
    SPOPS_TRY(spops_plan_check(ctx, call, "map", parents[FROM_MAP]));
    SPOPS_TRY(spops_relation_of(ctx, call, parents[FROM_MAP], &relation));
    put_relation(&relation, fields);
    return spops_plan_reserve_on(ctx, call, SPOPS_PLAN_POOL, fields, parents, 3, memory, out);
}

spops_status spops_pool_create_global(spops_context *ctx, const spops_coords *coords,
                                      int64_t num_batches, const spops_pool_options *given,
                                      spops_pool **out)
{
    static const char call[] = "pool_create_global";
    const spops_plan *const parents[] = {NULL, (const spops_plan *)coords, NULL};
    int64_t fields[NUM_FIELDS] = {[NUM_SEGMENTS] = num_batches};
    spops_plan_memory *memory;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(read_options(ctx, call, given, fields, &memory));
    SPOPS_TRY(spops_plan_check(ctx, call, "coords", coords));
    SPOPS_TRY(spops_check_count(ctx, call, "num_batches", num_batches));
    put_coords(&coords->arrays, fields);
    return spops_plan_reserve_on(ctx, call, SPOPS_PLAN_POOL, fields, parents, 3, memory, out);
}

spops_status spops_pool_create_from_buckets(spops_context *ctx, const spops_buckets *buckets,
                                            int32_t sub_rows, const spops_pool_options *given,
                                            spops_pool **out)
{
    static const char call[] = "pool_create_from_buckets";
    const spops_plan *const parents[] = {NULL, NULL, (const spops_plan *)buckets};
    int64_t fields[NUM_FIELDS] = {[SUB_ROWS] = sub_rows};
    spops_plan_memory *memory;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(read_options(ctx, call, given, fields, &memory));
    SPOPS_TRY(spops_plan_check(ctx, call, "buckets", buckets));
    SPOPS_REQUIRE(ctx, sub_rows >= 1, "%s: sub_rows is %" PRId32 ", expected 1 or more", call,
                  sub_rows);
    put_buckets(&buckets->arrays, fields);
    return spops_plan_reserve_on(ctx, call, SPOPS_PLAN_POOL, fields, parents, 3, memory, out);
}

const int32_t *spops_pool_sample_offsets(const spops_pool *pool)
{
    return pool == NULL ? NULL : pool->subs.sample_offsets;
}

spops_status spops_pool_execute(spops_context *ctx, const spops_pool *pool, spops_reduce reduce,
                                spops_matrix x, spops_matrix out)
{
    const void *const given[] = {&x, pool, &out};
    const spops_call_number attributes[] = {{.i = reduce}};
    spops_segreduce_args what = {.reduce = reduce, .x = x, .out = out};

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_pool, given, attributes));
    return spops_segreduce_run_checked(ctx, "pool_execute", pool->segments, &what, false);
}

spops_status spops_pool_execute_backward(spops_context *ctx, const spops_pool *pool,
                                         spops_reduce reduce, spops_matrix grad_out, spops_matrix x,
                                         spops_matrix grad_x)
{
    const void *const given[] = {&x, &grad_out, pool, &grad_x};
    const spops_call_number attributes[] = {{.i = reduce}};

    SPOPS_TRY(spops_check_call(ctx, SPOPS_OP_pool_backward, given, attributes));
    return spops_segreduce_run_backward_checked(ctx, "pool_execute_backward", pool->segments,
                                                reduce, grad_out, x, NULL, &grad_x, NULL);
}

const spops_segments *spops_pool_segments(const spops_pool *pool)
{
    return pool == NULL ? NULL : pool->segments;
}
