// SPDX-License-Identifier: Apache-2.0
// Buckets: checks, memory, and what can be asked of them.
#include "buckets/buckets.h"

#include <string.h>

#include "points/neighbors.h"
#include "core/check.h"
#include "core/matrix.h"

// Fields of a description.
enum {
    MAX_ROWS,
    MAX_SAMPLES,
    MAX_BUCKETS,
    BUCKET_ROWS,
    NUM_BUCKETS,
    NUM_ROUNDS,
    BITS,
    HASHES,
    STEPS = HASHES + SPOPS_MAX_BUCKET_ROUNDS,
    SIZE_M = STEPS + 3 * SPOPS_MAX_BUCKET_ROUNDS,
    ORIGIN_M = SIZE_M + 3,
    NUM_FIELDS = ORIGIN_M + 3
};

enum { DEFAULT_BITS = 10, MAX_STEP = 1 << 16 };

// ---- Checks -------------------------------------------------------------------------------------

static spops_status read_rounds(spops_context *ctx, const char *call, spops_plan *plan,
                                spops_bucket_rule *rule)
{
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, NUM_ROUNDS, 0, SPOPS_MAX_BUCKET_ROUNDS));
    if (plan->fields[NUM_ROUNDS] == 0) plan->fields[NUM_ROUNDS] = 1;
    rule->num_rounds = (int32_t)plan->fields[NUM_ROUNDS];
    for (int r = 0; r < rule->num_rounds; ++r) {
        SPOPS_TRY(spops_plan_check_field(ctx, call, plan, HASHES + r, SPOPS_BUCKET_HASH_XOR_MOD,
                                         SPOPS_BUCKET_HASH_ZORDER_DIV));
        rule->hashes[r] = (int32_t)plan->fields[HASHES + r];
        for (int a = 0; a < 3; ++a) {
            const int32_t at = STEPS + 3 * r + a;
            SPOPS_TRY(spops_plan_check_field(ctx, call, plan, at, -MAX_STEP, MAX_STEP));
            rule->steps[r][a] = (int32_t)plan->fields[at];
        }
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_bucket_rule_set_cells(spops_context *ctx, const char *call,
                                         const double size_m[3], const double origin_m[3],
                                         spops_bucket_rule *rule)
{
    for (int a = 0; a < 3; ++a) {
        SPOPS_REQUIRE(ctx, isfinite(size_m[a]) && size_m[a] >= 0.0,
                      "%s: size_m[%d] is %g, expected more than 0, or 0 for 1", call, a, size_m[a]);
        SPOPS_REQUIRE(ctx, isfinite(origin_m[a]), "%s: origin_m[%d] is %g, expected a number", call,
                      a, origin_m[a]);
        rule->size[a] = size_m[a] == 0.0 ? 1.0 : size_m[a];
        rule->origin[a] = origin_m[a];
    }
    return SPOPS_STATUS_OK;
}

static spops_status read_rule(spops_context *ctx, const char *call, spops_plan *plan,
                              spops_bucket_rule *rule)
{
    int64_t *fields = plan->fields;
    double size_m[3], origin_m[3];

    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, BUCKET_ROWS, 1, SPOPS_MAX_BUCKET_ROWS));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, NUM_BUCKETS, 0, SPOPS_MAX_BUCKETS));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, BITS, 0, SPOPS_MAX_BUCKET_BITS));
    if (fields[BITS] == 0) fields[BITS] = DEFAULT_BITS;
    rule->bucket_rows = (int32_t)fields[BUCKET_ROWS];
    rule->num_buckets = (int32_t)fields[NUM_BUCKETS];
    rule->bits = (int32_t)fields[BITS];
    spops_plan_get_f64s(fields + SIZE_M, size_m, 3);
    spops_plan_get_f64s(fields + ORIGIN_M, origin_m, 3);
    SPOPS_TRY(spops_bucket_rule_set_cells(ctx, call, size_m, origin_m, rule));
    return read_rounds(ctx, call, plan, rule);
}

// The fields of options and capacities, as they are: they are checked when they are read.
static spops_status fields_of(spops_context *ctx, const char *call, int64_t max_rows,
                              int64_t max_samples, const spops_buckets_options *given,
                              int64_t fields[NUM_FIELDS], spops_plan_memory **memory)
{
    spops_buckets_options o = {0};

    SPOPS_REQUIRE(ctx, given != NULL, "%s: options is NULL, expected bucket_rows in it", call);
    SPOPS_TRY(spops_read_options(ctx, call, given, &o, sizeof o));
    memset(fields, 0, NUM_FIELDS * sizeof *fields);
    fields[MAX_ROWS] = max_rows;
    fields[MAX_SAMPLES] = max_samples;
    fields[BUCKET_ROWS] = o.bucket_rows;
    fields[NUM_BUCKETS] = o.num_buckets;
    fields[NUM_ROUNDS] = o.num_rounds;
    fields[BITS] = o.bits;
    for (int r = 0; r < SPOPS_MAX_BUCKET_ROUNDS; ++r)
        fields[HASHES + r] = o.hashes[r];
    spops_plan_put_i32s(fields + STEPS, o.steps[0], 3 * SPOPS_MAX_BUCKET_ROUNDS);
    spops_plan_put_f64s(fields + SIZE_M, o.size_m, 3);
    spops_plan_put_f64s(fields + ORIGIN_M, o.origin_m, 3);
    *memory = o.memory;
    return SPOPS_STATUS_OK;
}

spops_status spops_buckets_check_cloud(spops_context *ctx, const char *call,
                                       const spops_point_cloud *cloud)
{
    SPOPS_TRY(spops_check_object(ctx, call, "cloud", cloud, _Alignof(spops_point_cloud)));
    SPOPS_TRY(spops_check_count(ctx, call, "cloud->points.rows", cloud->points.rows));
    SPOPS_TRY(spops_check_matrix(ctx, call, "cloud->points", cloud->points, cloud->points.rows, 3,
                                 1u << SPOPS_DTYPE_F32 | 1u << SPOPS_DTYPE_I32));
    if (cloud->offsets == NULL) {
        SPOPS_REQUIRE(ctx, cloud->num_samples == 0,
                      "%s: cloud->num_samples is %" PRId64 ", expected 0 as offsets is NULL", call,
                      cloud->num_samples);
        return SPOPS_STATUS_OK;
    }
    SPOPS_REQUIRE(ctx, cloud->num_samples >= 1 && cloud->num_samples <= SPOPS_MAX_COUNT,
                  "%s: cloud->num_samples is %" PRId64 ", expected 1 to %" PRId64, call,
                  cloud->num_samples, SPOPS_MAX_COUNT);
    return spops_check_indices(ctx, call, "cloud->offsets", cloud->offsets, cloud->num_samples + 1);
}

// ---- Life cycle ---------------------------------------------------------------------------------

static spops_status read_buckets(spops_context *ctx, const char *call, spops_plan *plan)
{
    spops_buckets_arrays *a = &((spops_buckets *)plan)->arrays;
    const int64_t *fields = plan->fields;
    int64_t of_a_sample;

    SPOPS_REQUIRE_SLOT(ctx, call, buckets_build);
    SPOPS_TRY(spops_check_count(ctx, call, "max_rows", fields[MAX_ROWS]));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, MAX_SAMPLES, 1, SPOPS_MAX_COUNT));
    SPOPS_TRY(read_rule(ctx, call, plan, &a->rule));
    a->max_rows = fields[MAX_ROWS];
    a->max_samples = fields[MAX_SAMPLES];
    of_a_sample = spops_buckets_of(&a->rule, (int32_t)a->max_rows);
    a->max_buckets = a->rule.num_buckets > 0 ? a->max_samples * a->rule.num_buckets
                                             : a->max_rows / a->rule.bucket_rows + a->max_samples;
    SPOPS_REQUIRE(ctx, of_a_sample <= SPOPS_MAX_BUCKETS,
                  "%s: a sample may have %" PRId64 " buckets of %d rows, expected at most %d", call,
                  of_a_sample, (int)a->rule.bucket_rows, SPOPS_MAX_BUCKETS);
    SPOPS_TRY(spops_check_count(ctx, call, "the number of buckets of all samples", a->max_buckets));
    a->most_buckets = (int32_t)of_a_sample;
    return spops_plan_derive(ctx, call, plan, MAX_BUCKETS, a->max_buckets);
}

static void carve_buckets(spops_plan *plan, spops_carver *c)
{
    spops_buckets_arrays *a = &((spops_buckets *)plan)->arrays;
    a->state = spops_carve(c, 1, 1, sizeof *a->state);
    a->offsets = spops_carve(c, a->max_buckets + 1, 1, sizeof *a->offsets);
    a->sample_buckets = spops_carve(c, a->max_samples + 1, 1, sizeof *a->sample_buckets);
    a->rows = spops_carve(c, a->max_rows, 1, sizeof *a->rows);
    a->places = spops_carve(c, a->max_rows, 1, sizeof *a->places);
    a->row_buckets = spops_carve(c, a->max_rows, 1, sizeof *a->row_buckets);
    a->codes = spops_carve(c, a->max_rows, 1, sizeof *a->codes);
}

static void carve_buckets_workspace(spops_plan *plan, spops_carver *c)
{
    const spops_buckets_args args = {.arrays = &((spops_buckets *)plan)->arrays};
    plan->workspace =
        spops_carve(c, 1, 1, plan->ctx->backend->buckets_workspace_bytes(plan->ctx, &args));
}

static spops_status build(spops_context *ctx, const spops_buckets *b,
                          const spops_point_cloud *cloud)
{
    const spops_buckets_args args = {&b->arrays, cloud, b->base.workspace};
    return ctx->backend->buckets_build(ctx, &args);
}

static spops_status prepare_buckets(spops_context *ctx, spops_plan *plan)
{
    const spops_buckets_args args = {.arrays = &((spops_buckets *)plan)->arrays};
    return SPOPS_PREPARE(ctx, buckets_prepare, &args);
}

static spops_status empty_buckets(spops_context *ctx, spops_plan *plan)
{
    return build(ctx, (spops_buckets *)plan, NULL);
}

static spops_status state_of_buckets(spops_context *ctx, const spops_plan *plan, int64_t *counts)
{
    spops_buckets_state state;
    SPOPS_TRY(ctx->backend->download(ctx, &state, ((const spops_buckets *)plan)->arrays.state,
                                     sizeof state));
    counts[0] = state.num_rows;
    counts[1] = state.num_samples;
    counts[2] = state.num_buckets;
    for (int r = 0; r < SPOPS_MAX_BUCKET_ROUNDS; ++r)
        counts[3 + r] = state.num_placed[r];
    counts += 3 + SPOPS_MAX_BUCKET_ROUNDS;
    counts[0] = state.num_late;
    counts[1] = state.num_not_finite;
    counts[2] = state.bad_offsets;
    counts[3] = state.full_sample != INT32_MAX;
    return SPOPS_STATUS_OK;
}

const spops_plan_ops spops_buckets_plan_ops = {
    .handle_bytes = sizeof(struct spops_buckets),
    .num_fields = NUM_FIELDS,
    .read = read_buckets,
    .carve = carve_buckets,
    .carve_workspace = carve_buckets_workspace,
    .prepare = prepare_buckets,
    .empty = empty_buckets,
    .state = state_of_buckets,
};

// ---- Filling ------------------------------------------------------------------------------------

// A sample that has more rows than its buckets hold.
static spops_status refuse_full(spops_context *ctx, const char *call, const spops_bucket_rule *rule,
                                const spops_point_cloud *cloud, int32_t sample)
{
    int32_t ends[2] = {0, (int32_t)cloud->points.rows};
    if (sample == INT32_MAX) return SPOPS_STATUS_OK;
    if (cloud->offsets != NULL)
        SPOPS_TRY(ctx->backend->download(ctx, ends, cloud->offsets + sample, sizeof ends));
    return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                      "%s: sample %d has %d rows, expected at most %d buckets of %d rows each",
                      call, (int)sample, (int)(ends[1] - ends[0]), (int)rule->num_buckets,
                      (int)rule->bucket_rows);
}

spops_status spops_buckets_create(spops_context *ctx, const spops_point_cloud *cloud,
                                  const spops_buckets_options *options, spops_buckets **out)
{
    static const char call[] = "buckets_create";
    spops_status status = SPOPS_STATUS_OK;
    spops_plan_memory *memory;
    spops_buckets_state state;
    spops_buckets *b = NULL;
    int64_t fields[NUM_FIELDS];

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(spops_buckets_check_cloud(ctx, call, cloud));
    SPOPS_TRY(fields_of(ctx, call, cloud->points.rows, spops_cloud_samples(cloud), options, fields,
                        &memory));
    SPOPS_TRY(spops_check_no_memory(ctx, call, memory));
    SPOPS_TRY(spops_cloud_check_offsets(ctx, call, "cloud", cloud));
    SPOPS_TRY(spops_plan_open(ctx, call, SPOPS_PLAN_BUCKETS, fields, &b));
    SPOPS_TRY_GOTO(build(ctx, b, cloud), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->download(ctx, &state, b->arrays.state, sizeof state), status,
                   fail);
    SPOPS_TRY_GOTO(refuse_full(ctx, call, &b->arrays.rule, cloud, state.full_sample), status, fail);
    SPOPS_TRY_GOTO(spops_cloud_refuse_row(ctx, call, "cloud", cloud, state.first_not_finite),
                   status, fail);
    spops_plan_close(&b->base);
    *out = b;
    return SPOPS_STATUS_OK;

fail:
    spops_buckets_destroy(b);
    return status;
}

spops_status spops_buckets_reserve(spops_context *ctx, int64_t max_rows, int64_t max_samples,
                                   const spops_buckets_options *options, spops_buckets **out)
{
    static const char call[] = "buckets_reserve";
    spops_plan_memory *memory;
    int64_t fields[NUM_FIELDS];

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(fields_of(ctx, call, max_rows, max_samples, options, fields, &memory));
    return spops_plan_reserve(ctx, call, SPOPS_PLAN_BUCKETS, fields, memory, out);
}

spops_status spops_buckets_update(spops_context *ctx, spops_buckets *buckets,
                                  const spops_point_cloud *cloud)
{
    static const char call[] = "buckets_update";
    const spops_buckets_arrays *a;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "buckets", buckets));
    SPOPS_TRY(spops_buckets_check_cloud(ctx, call, cloud));
    a = &buckets->arrays;
    SPOPS_REQUIRE(ctx, cloud->points.rows == a->max_rows,
                  "%s: cloud->points.rows is %" PRId64 ", expected the capacity, %" PRId64, call,
                  cloud->points.rows, a->max_rows);
    SPOPS_REQUIRE(ctx, spops_cloud_samples(cloud) <= a->max_samples,
                  "%s: cloud has %" PRId64 " samples, expected at most %" PRId64, call,
                  spops_cloud_samples(cloud), a->max_samples);
    return build(ctx, buckets, cloud);
}

// ---- Looking at them ----------------------------------------------------------------------------

spops_status spops_buckets_get_info_sync(spops_context *ctx, const spops_buckets *buckets,
                                         spops_buckets_info *info)
{
    static const char call[] = "buckets_get_info_sync";
    spops_buckets_info found = spops_buckets_info_default();
    const spops_buckets_arrays *a;
    spops_buckets_state state;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_sync(ctx, call, "buckets", buckets));
    a = &buckets->arrays;
    SPOPS_TRY(ctx->backend->download(ctx, &state, a->state, sizeof state));
    found.num_rows = state.num_rows;
    found.max_rows = a->max_rows;
    found.num_samples = state.num_samples;
    found.max_samples = a->max_samples;
    found.num_buckets = state.num_buckets;
    found.max_buckets = a->max_buckets;
    found.bucket_rows = a->rule.bucket_rows;
    found.num_rounds = a->rule.num_rounds;
    for (int r = 0; r < SPOPS_MAX_BUCKET_ROUNDS; ++r)
        found.num_placed[r] = state.num_placed[r];
    found.num_late = state.num_late;
    found.num_not_finite = state.num_not_finite;
    found.bad_offsets = state.bad_offsets;
    found.overflow = state.full_sample != INT32_MAX;
    SPOPS_TRY(spops_write_struct(ctx, call, "info", info, &found, sizeof found));
    if (found.overflow == 0) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_CAPACITY_EXCEEDED,
                      "%s: sample %d has more rows than %d buckets of %d rows hold", call,
                      (int)state.full_sample, (int)a->rule.num_buckets, (int)a->rule.bucket_rows);
}

spops_status spops_buckets_get_view(spops_context *ctx, const spops_buckets *buckets,
                                    spops_buckets_view *view)
{
    static const char call[] = "buckets_get_view";
    spops_buckets_view found = spops_buckets_view_default();
    const spops_buckets_arrays *a;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "buckets", buckets));
    a = &buckets->arrays;
    found.max_rows = a->max_rows;
    found.max_samples = a->max_samples;
    found.max_buckets = a->max_buckets;
    found.num_rows = &a->state->num_rows;
    found.num_buckets = &a->state->num_buckets;
    found.offsets = a->offsets;
    found.sample_buckets = a->sample_buckets;
    found.rows = a->rows;
    found.places = a->places;
    found.row_buckets = a->row_buckets;
    return spops_write_struct(ctx, call, "view", view, &found, sizeof found);
}
