// SPDX-License-Identifier: Apache-2.0
// Sparse pooling: a plan of segments, filled from the pairs of a kernel map, from the batches of a set
// or from runs of rows in buckets. Reductions and gradients are segreduce's.
#include "spops/pool.h"

#include "buckets/buckets.h"
#include "maps/kernel_maps.h"
#include "call/call_check.h"
#include "segreduce/segreduce.h"
#include "core/plan.h"
#include "segments/segments.h"

// What is pooled: the windows of a map, batches of a set, runs of rows in buckets.
enum { FROM_MAP, FROM_COORDS, FROM_BUCKETS };

// Fields of a description.
enum { SOURCE, NUM_SEGMENTS, MAX_TERMS, NUM_ROWS, MAX_COLS, GRADIENTS, SUB_ROWS, NUM_FIELDS };

struct spops_pool {
    spops_plan base;
    const spops_kernel_map *map; // of its windows; NULL: global
    const spops_coords *coords;  // of its batches
    const int32_t *num_terms;    // [1] what a set is made from, where ctx runs
    const int32_t *keys, *idx;   // [max_terms]; idx NULL: term t is row t
    int32_t *batches;            // [rows of coords]
    size_t batches_bytes;
    spops_sub_buckets_args subs; // buckets NULL: there are none
    void *subs_block;            // their arrays and workspace
    size_t subs_bytes;
    spops_segments *segments;
};

// How a relation is reserved. Limits of what one row pools or is pooled into; 0: none is known.
typedef struct relation_sizes {
    int64_t num_segments, max_terms, num_rows;
    int32_t most_pooled, most_into;
} relation_sizes;

// With segments reserved and filled once.
static spops_status finish(spops_context *ctx, const char *call, const relation_sizes *sizes,
                           const spops_pool_options *options, spops_pool *pool)
{
    const spops_segments_sizes segments = {.num_segments = sizes->num_segments,
                                           .max_terms = sizes->max_terms,
                                           .num_rows = sizes->num_rows,
                                           .num_weights = sizes->max_terms,
                                           .num_sources = sizes->max_terms,
                                           .max_cols = options->max_cols,
                                           .gradients = options->gradients};
    int64_t *fields = pool->base.fields;
    SPOPS_TRY(spops_segments_make(ctx, call, &segments, &pool->segments));
    fields[SOURCE] = pool->map != NULL      ? FROM_MAP
                     : pool->coords != NULL ? FROM_COORDS
                                            : FROM_BUCKETS;
    fields[NUM_SEGMENTS] = sizes->num_segments;
    fields[MAX_TERMS] = sizes->max_terms;
    fields[NUM_ROWS] = sizes->num_rows;
    fields[MAX_COLS] = options->max_cols;
    fields[GRADIENTS] = options->gradients;
    fields[SUB_ROWS] = pool->subs.sub_rows;
    pool->segments->forward.host_schedule.longest = sizes->most_pooled;
    pool->segments->by_row.host_schedule.longest = sizes->most_into;
    SPOPS_TRY(spops_pool_set(ctx, pool));
    return ctx->backend->wait(ctx);
}

static spops_status read_options(spops_context *ctx, const char *call,
                                 const spops_pool_options *given, spops_pool_options *options)
{
    SPOPS_TRY(spops_read_options(ctx, call, given, options, sizeof *options));
    SPOPS_TRY(spops_check_reserved(ctx, call, options->reserved));
    SPOPS_TRY(spops_check_gradients(ctx, call, options->gradients));
    return spops_check_max_cols(ctx, call, &options->max_cols);
}

spops_status spops_pool_create(spops_context *ctx, const spops_kernel_map *map,
                               const spops_pool_options *given, spops_pool **out)
{
    static const char call[] = "pool_create";
    spops_pool_options options = {0};
    spops_status status = SPOPS_STATUS_OK;
    const spops_map_arrays *a;
    relation_sizes sizes;
    spops_pool *pool = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(read_options(ctx, call, given, &options));
    SPOPS_TRY(spops_map_check(ctx, call, "map", map));
    SPOPS_REQUIRE(ctx, (map->contents & SPOPS_MAP_PAIRS) != 0,
                  "%s: map has no pairs, expected one made with SPOPS_MAP_PAIRS", call);
    pool = spops_plan_alloc(ctx, SPOPS_PLAN_POOL);
    if (pool == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    a = &map->arrays;
    pool->map = map;
    pool->num_terms = a->tap_offsets + a->taps.num_taps;
    pool->keys = a->out_rows;
    pool->idx = a->in_rows;
    sizes = (relation_sizes){a->out.max_rows, a->max_pairs, a->in.max_rows, a->taps.num_taps,
                             a->taps.num_taps};
    SPOPS_TRY_GOTO(finish(ctx, call, &sizes, &options, pool), status, fail);
    *out = pool;
    return SPOPS_STATUS_OK;

fail:
    spops_pool_destroy(pool);
    return status;
}

spops_status spops_pool_create_global(spops_context *ctx, const spops_coords *coords,
                                      int64_t num_batches, const spops_pool_options *given,
                                      spops_pool **out)
{
    static const char call[] = "pool_create_global";
    spops_pool_options options = {0};
    spops_status status = SPOPS_STATUS_OK;
    const spops_coords_arrays *a;
    relation_sizes sizes;
    spops_pool *pool = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(read_options(ctx, call, given, &options));
    SPOPS_TRY(spops_coords_check(ctx, call, "coords", coords));
    SPOPS_TRY(spops_check_count(ctx, call, "num_batches", num_batches));
    SPOPS_REQUIRE_SLOT(ctx, call, coords_batches);
    a = &coords->arrays;
    SPOPS_REQUIRE(ctx, a->max_rows == 0 || a->layout.upper[0] < num_batches,
                  "%s: num_batches is %" PRId64 ", expected more than %" PRId32
                  ", the last batch in the box of coords",
                  call, num_batches, a->layout.upper[0]);
    pool = spops_plan_alloc(ctx, SPOPS_PLAN_POOL);
    if (pool == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    pool->coords = coords;
    pool->num_terms = spops_coords_num_rows(coords);
    pool->batches_bytes = (size_t)a->max_rows * sizeof *pool->batches;
    SPOPS_TRY_GOTO(spops_backend_alloc(ctx, pool->batches_bytes, (void **)&pool->batches), status,
                   fail);
    pool->keys = pool->batches;
    sizes = (relation_sizes){num_batches, a->max_rows, a->max_rows, 0, 1};
    SPOPS_TRY_GOTO(finish(ctx, call, &sizes, &options, pool), status, fail);
    *out = pool;
    return SPOPS_STATUS_OK;

fail:
    spops_pool_destroy(pool);
    return status;
}

static void carve_subs(spops_sub_buckets_args *subs, size_t workspace_bytes, spops_carver *c)
{
    subs->rows = spops_carve(c, subs->buckets->max_rows, 1, sizeof *subs->rows);
    subs->subs = spops_carve(c, subs->buckets->max_rows, 1, sizeof *subs->subs);
    subs->sample_offsets =
        spops_carve(c, subs->buckets->max_samples + 1, 1, sizeof *subs->sample_offsets);
    subs->workspace = spops_carve(c, 1, 1, workspace_bytes);
}

static spops_status alloc_subs(spops_context *ctx, spops_pool *pool)
{
    const size_t workspace = ctx->backend->sub_buckets_workspace_bytes(ctx, &pool->subs);
    spops_carver carver = {NULL, 0};
    carve_subs(&pool->subs, workspace, &carver);
    SPOPS_TRY(spops_backend_alloc(ctx, carver.used, &pool->subs_block));
    pool->subs_bytes = carver.used;
    carver = (spops_carver){pool->subs_block, 0};
    carve_subs(&pool->subs, workspace, &carver);
    return SPOPS_STATUS_OK;
}

spops_status spops_pool_create_buckets(spops_context *ctx, const spops_buckets *buckets,
                                       int32_t sub_rows, const spops_pool_options *given,
                                       spops_pool **out)
{
    static const char call[] = "pool_create_buckets";
    spops_pool_options options = {0};
    spops_status status = SPOPS_STATUS_OK;
    const spops_buckets_arrays *a;
    relation_sizes sizes;
    spops_pool *pool = NULL;
    int64_t most;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(read_options(ctx, call, given, &options));
    SPOPS_TRY(spops_plan_check(ctx, call, "buckets", (const spops_plan *)buckets));
    SPOPS_REQUIRE(ctx, sub_rows >= 1, "%s: sub_rows is %" PRId32 ", expected 1 or more", call,
                  sub_rows);
    SPOPS_REQUIRE_SLOT(ctx, call, sub_buckets);
    a = &buckets->arrays;
    SPOPS_REQUIRE(ctx, spops_sub_bucket_bits(a) <= 64,
                  "%s: %" PRId64 " buckets and cells of %" PRId32
                  " bits need %d bits, expected at most 64",
                  call, a->max_buckets, a->rule.bits, spops_sub_bucket_bits(a));
    most = a->max_rows / sub_rows + a->max_buckets;
    if (most > a->max_rows) most = a->max_rows;
    pool = spops_plan_alloc(ctx, SPOPS_PLAN_POOL);
    if (pool == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    pool->num_terms = &a->state->num_rows;
    pool->subs.buckets = a;
    pool->subs.sub_rows = sub_rows;
    SPOPS_TRY_GOTO(alloc_subs(ctx, pool), status, fail);
    pool->keys = pool->subs.subs;
    pool->idx = pool->subs.rows;
    sizes = (relation_sizes){most, a->max_rows, a->max_rows, sub_rows, 1};
    SPOPS_TRY_GOTO(finish(ctx, call, &sizes, &options, pool), status, fail);
    *out = pool;
    return SPOPS_STATUS_OK;

fail:
    spops_pool_destroy(pool);
    return status;
}

const int32_t *spops_pool_sample_offsets(const spops_pool *pool)
{
    return pool == NULL ? NULL : pool->subs.sample_offsets;
}

static spops_status check_pool(spops_context *ctx, const char *call, const spops_pool *pool)
{
    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_REQUIRE(ctx, pool != NULL, "%s: pool is NULL", call);
    return spops_check_home(ctx, call, "pool", pool->base.ctx);
}

spops_status spops_pool_set(spops_context *ctx, spops_pool *pool)
{
    static const char call[] = "pool_set";
    SPOPS_TRY(check_pool(ctx, call, pool));
    SPOPS_OUTER_CALL(ctx, call, NULL);
    if (pool->coords != NULL) {
        const spops_coords_batches_args args = {&pool->coords->arrays, pool->batches};
        SPOPS_TRY(ctx->backend->coords_batches(ctx, &args));
    }
    if (pool->subs.buckets != NULL) SPOPS_TRY(ctx->backend->sub_buckets(ctx, &pool->subs));
    return spops_segments_set(ctx, pool->segments, pool->num_terms, pool->keys, pool->idx, NULL);
}

spops_status spops_pool_execute(spops_context *ctx, const spops_pool *pool, spops_reduce reduce,
                                spops_matrix x, spops_matrix out)
{
    const void *const given[] = {&x, pool, &out};
    const spops_call_number attributes[] = {{.i = reduce}};
    const spops_segreduce_args what = {.reduce = reduce, .x = x, .out = out};

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

static void destroy_pool(spops_plan *plan)
{
    spops_pool *pool = (spops_pool *)plan;
    if (pool->batches != NULL || pool->subs_block != NULL)
        (void)plan->ctx->backend->wait(plan->ctx);
    spops_segments_destroy(pool->segments);
    spops_backend_free(plan->ctx, pool->subs_block, pool->subs_bytes);
    spops_backend_free(plan->ctx, pool->batches, pool->batches_bytes);
}

static size_t bytes_of_pool(const spops_plan *plan)
{
    const spops_pool *pool = (const spops_pool *)plan;
    return pool->subs_bytes + pool->batches_bytes + spops_plan_bytes(&pool->segments->base);
}

static size_t scratch_of_pool(const spops_plan *plan)
{
    const spops_pool *pool = (const spops_pool *)plan;
    return pool->segments->base.scratch_bytes;
}

const spops_plan_ops spops_pool_plan_ops = {.handle_bytes = sizeof(struct spops_pool),
                                            .num_fields = NUM_FIELDS,
                                            .destroy = destroy_pool,
                                            .bytes = bytes_of_pool,
                                            .scratch_bytes = scratch_of_pool};
