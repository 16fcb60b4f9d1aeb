// SPDX-License-Identifier: Apache-2.0
// All levels of a network on points: clouds, and the neighbours within and between them.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "points/neighbors.h"
#include "core/check.h"
#include "core/plan.h"
#include "segments/segments.h"
#include "spops/point_levels.h"

#define DEFAULT_LEVELS 4
#define DEFAULT_RADIUS 1.861f
#define DEFAULT_PAIRS  32 // of a row, as a capacity

enum { MAX_LEVELS = SPOPS_POINT_PYRAMID_MAX_LEVELS };

// Fields of a description: capacities, where it is refilled, then options.
enum {
    NUM_LEVELS,
    NUM_SAMPLES,
    MAX_ROWS,
    MAX_PAIRS = MAX_ROWS + MAX_LEVELS,
    MAX_DOWN_PAIRS = MAX_PAIRS + MAX_LEVELS,
    LOWER_M = MAX_DOWN_PAIRS + MAX_LEVELS,
    UPPER_M = LOWER_M + 3,
    TAP_SIZE_M = UPPER_M + 3,
    RADIUS_TAPS,
    METRIC,
    TAPS,
    CONTENTS,
    KEEP,
    SEED,
    COVER,
    GRADIENTS,
    MAX_COLS,
    NUM_FIELDS
};

struct spops_point_pyramid {
    spops_plan base;
    int32_t num_levels;
    spops_point_pyramid_options options;   // read
    spops_point_pyramid_capacity capacity; // of a pyramid that is refilled
    spops_point_cloud finest;
    spops_point_level *levels[MAX_LEVELS]; // that level + 1 came from
    spops_neighbors *within[MAX_LEVELS], *down[MAX_LEVELS];
};

static spops_status read_options(spops_context *ctx, const char *call,
                                 const spops_point_pyramid_options *given,
                                 spops_point_pyramid_options *o)
{
    memset(o, 0, sizeof *o);
    SPOPS_TRY(spops_read_options(ctx, call, given, o, sizeof *o));
    SPOPS_TRY(spops_check_reserved(ctx, call, o->reserved));
    SPOPS_REQUIRE(ctx, o->num_levels >= 0 && o->num_levels <= SPOPS_POINT_PYRAMID_MAX_LEVELS,
                  "%s: num_levels is %d, expected 0 to %d", call, (int)o->num_levels,
                  SPOPS_POINT_PYRAMID_MAX_LEVELS);
    SPOPS_REQUIRE(ctx, isfinite(o->tap_size_m) && o->tap_size_m > 0.0f,
                  "%s: tap_size_m is %g, expected more than 0", call, (double)o->tap_size_m);
    SPOPS_REQUIRE(ctx, o->radius_taps >= 0.0f && o->radius_taps <= 1e3f,
                  "%s: radius_taps is %g, expected 0 to 1000", call, (double)o->radius_taps);
    SPOPS_REQUIRE(ctx, o->cover == 0 || o->cover == 1, "%s: cover is %d, expected 0 or 1", call,
                  (int)o->cover);
    if (o->num_levels == 0) o->num_levels = DEFAULT_LEVELS;
    if (o->radius_taps == 0.0f) o->radius_taps = DEFAULT_RADIUS;
    if (o->taps == 0) o->taps = 3;
    return SPOPS_STATUS_OK;
}

// What its parts call what the pyramid was given.
static const char *const own_names[][2] = {{"inputs", "finest"},
                                           {"outputs", "finest"},
                                           {"fine", "finest"},
                                           {"capacity->max_inputs", "capacity->max_rows"},
                                           {"capacity->max_outputs", "capacity->max_rows"},
                                           {"capacity->max_fine", "capacity->max_rows"},
                                           {"capacity->max_coarse", "capacity->max_rows"},
                                           {"radius_m", "radius_taps"},
                                           {"size_m", "tap_size_m"},
                                           {NULL, NULL}};

static spops_neighbors_options search_of(const spops_point_pyramid_options *o, int32_t level)
{
    spops_neighbors_options search = spops_neighbors_options_default();
    search.tap_size_m = ldexpf(o->tap_size_m, level);
    search.radius_m = o->radius_taps * search.tap_size_m;
    search.metric = o->metric;
    search.taps = o->taps;
    search.contents = o->contents;
    return search;
}

static spops_status find_within(spops_context *ctx, const spops_point_pyramid_options *o,
                                int32_t level, spops_point_pyramid *p)
{
    const spops_neighbors_options search = search_of(o, level);
    const spops_neighbors_capacity capacity = {
        0, p->capacity.max_rows[level], p->capacity.num_samples, p->capacity.max_pairs[level]};
    if (p->base.refillable)
        return spops_neighbors_reserve(ctx, &capacity, 1, &search, &p->within[level]);
    return spops_neighbors_create(ctx, NULL, spops_point_pyramid_cloud(p, level), &search,
                                  &p->within[level]);
}

// The level after this one, from its cloud or for its capacity.
static spops_status make_level(spops_context *ctx, const spops_point_pyramid_options *o,
                               int32_t level, spops_point_pyramid *p)
{
    spops_point_level_options coarser = spops_point_level_options_default();
    spops_point_level_capacity capacity = {.max_fine = p->capacity.max_rows[level],
                                           .num_samples = p->capacity.num_samples};

    coarser.size_m = ldexpf(o->tap_size_m, level + 1);
    coarser.keep = o->keep;
    coarser.seed = o->seed;
    coarser.gradients = o->gradients;
    coarser.max_cols = o->max_cols;
    if (!p->base.refillable)
        return spops_point_level_create(ctx, spops_point_pyramid_cloud(p, level), &coarser,
                                        &p->levels[level]);
    capacity.max_coarse = p->capacity.max_rows[level + 1];
    memcpy(capacity.lower_m, p->capacity.lower_m, sizeof capacity.lower_m);
    memcpy(capacity.upper_m, p->capacity.upper_m, sizeof capacity.upper_m);
    return spops_point_level_reserve(ctx, &capacity, &coarser, &p->levels[level]);
}

static spops_status find_down(spops_context *ctx, const spops_point_pyramid_options *o,
                              int32_t level, spops_point_pyramid *p)
{
    const float voxel = ldexpf(o->tap_size_m, level + 1);
    spops_neighbors_options search = search_of(o, level);
    const spops_neighbors_capacity capacity = {p->capacity.max_rows[level + 1],
                                               p->capacity.max_rows[level], p->capacity.num_samples,
                                               p->capacity.max_down_pairs[level]};
    // No two points of a voxel are farther apart; rounded up well beyond the rounding of distances.
    const float reach =
        voxel * (o->metric == SPOPS_METRIC_CHEBYSHEV ? 1.00001f : 1.7320509f * 1.00001f);

    if (o->cover && search.radius_m < reach) search.radius_m = reach;
    if (p->base.refillable)
        return spops_neighbors_reserve(ctx, &capacity, 0, &search, &p->down[level]);
    return spops_neighbors_create(ctx, spops_point_pyramid_cloud(p, level + 1),
                                  spops_point_pyramid_cloud(p, level), &search, &p->down[level]);
}

// Levels and neighbours: from level 0, or for the capacities.
static spops_status make_parts(spops_context *ctx, spops_point_pyramid *p)
{
    const spops_point_pyramid_options *o = &p->options;
    for (int32_t level = 0; level < p->num_levels; ++level) {
        SPOPS_TRY(find_within(ctx, o, level, p));
        spops_plan_adopt(&p->base, &p->within[level]->base);
        if (level + 1 == p->num_levels) break;
        SPOPS_TRY(make_level(ctx, o, level, p));
        spops_plan_adopt(&p->base, (spops_plan *)p->levels[level]);
        SPOPS_TRY(find_down(ctx, o, level, p));
        spops_plan_adopt(&p->base, &p->down[level]->base);
    }
    return SPOPS_STATUS_OK;
}

static void put_fields(const spops_point_pyramid_options *o, const spops_point_pyramid_capacity *c,
                       int64_t fields[NUM_FIELDS])
{
    fields[NUM_LEVELS] = o->num_levels;
    fields[NUM_SAMPLES] = c->num_samples;
    memcpy(fields + MAX_ROWS, c->max_rows, sizeof c->max_rows);
    memcpy(fields + MAX_PAIRS, c->max_pairs, sizeof c->max_pairs);
    memcpy(fields + MAX_DOWN_PAIRS, c->max_down_pairs, sizeof c->max_down_pairs);
    spops_plan_put_f64s(fields + LOWER_M, c->lower_m, 3);
    spops_plan_put_f64s(fields + UPPER_M, c->upper_m, 3);
    fields[TAP_SIZE_M] = spops_plan_bits(o->tap_size_m);
    fields[RADIUS_TAPS] = spops_plan_bits(o->radius_taps);
    fields[METRIC] = o->metric;
    fields[TAPS] = o->taps;
    fields[CONTENTS] = o->contents;
    fields[KEEP] = o->keep;
    fields[SEED] = o->seed;
    fields[COVER] = o->cover;
    fields[GRADIENTS] = o->gradients;
    fields[MAX_COLS] = o->max_cols;
}

// Of a pyramid that was made with its contents. Its range is the range of level 1, also for the
// levels after it, as in a pyramid of capacities.
static void put_sizes(spops_point_pyramid *p)
{
    spops_point_pyramid_capacity c = {.num_samples = p->finest.num_samples};
    for (int32_t level = 0; level < p->num_levels; ++level) {
        c.max_rows[level] = spops_point_pyramid_cloud(p, level)->points.rows;
        c.max_pairs[level] = p->within[level]->arrays.max_pairs;
        if (level + 1 < p->num_levels) c.max_down_pairs[level] = p->down[level]->arrays.max_pairs;
    }
    if (p->num_levels > 1) spops_point_level_range(p->levels[0], c.lower_m, c.upper_m);
    for (int32_t level = 1; level + 1 < p->num_levels; ++level)
        spops_point_level_widen(p->levels[level], c.lower_m, c.upper_m);
    put_fields(&p->options, &c, p->base.fields);
}

static spops_status read_pyramid(spops_context *ctx, const char *call, spops_plan *plan)
{
    spops_point_pyramid *p = (spops_point_pyramid *)plan;
    spops_point_pyramid_options o = spops_point_pyramid_options_default();
    spops_point_pyramid_capacity *c = &p->capacity;
    const int64_t *fields = plan->fields;
    int32_t numbers[SEED - METRIC];

    SPOPS_OUTER_CALL(ctx, call, own_names);
    SPOPS_TRY(spops_plan_get_i32s(ctx, call, SPOPS_PLAN_POINT_PYRAMID, fields, METRIC,
                                  SEED - METRIC, numbers));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, NUM_LEVELS, 0, MAX_LEVELS));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, SEED, 0, UINT32_MAX));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, COVER, 0, 1));
    SPOPS_TRY(spops_check_gradients_field(ctx, call, fields[GRADIENTS], &o.gradients));
    o.num_levels = (int32_t)fields[NUM_LEVELS];
    o.tap_size_m = (float)spops_plan_double(fields[TAP_SIZE_M]);
    o.radius_taps = (float)spops_plan_double(fields[RADIUS_TAPS]);
    o.metric = (spops_metric)numbers[METRIC - METRIC];
    o.taps = numbers[TAPS - METRIC];
    o.contents = numbers[CONTENTS - METRIC];
    o.keep = (spops_point_keep)numbers[KEEP - METRIC];
    o.seed = (uint32_t)fields[SEED];
    o.cover = (int32_t)fields[COVER];
    o.max_cols = fields[MAX_COLS];
    SPOPS_TRY(read_options(ctx, call, &o, &p->options));
    p->num_levels = p->options.num_levels;
    if (!plan->refillable) return SPOPS_STATUS_OK; // its parts are made with their contents
    memcpy(c->max_rows, fields + MAX_ROWS, sizeof c->max_rows);
    memcpy(c->max_pairs, fields + MAX_PAIRS, sizeof c->max_pairs);
    memcpy(c->max_down_pairs, fields + MAX_DOWN_PAIRS, sizeof c->max_down_pairs);
    c->num_samples = fields[NUM_SAMPLES];
    spops_plan_get_f64s(fields + LOWER_M, c->lower_m, 3);
    spops_plan_get_f64s(fields + UPPER_M, c->upper_m, 3);
    p->finest.points = spops_matrix_dense(NULL, 0, 3, SPOPS_DTYPE_F32);
    return make_parts(ctx, p);
}

static spops_status state_of_pyramid(spops_context *ctx, const spops_plan *plan, int64_t *counts)
{
    const spops_point_pyramid *p = (const spops_point_pyramid *)plan;
    int64_t *const dropped = counts + 3 * MAX_LEVELS, of[SPOPS_PLAN_MAX_COUNTS];

    memset(counts, 0, (3 * MAX_LEVELS + 3) * sizeof *counts);
    for (int32_t level = 0; level < p->num_levels; ++level) {
        SPOPS_TRY(spops_plan_read_state(ctx, &p->within[level]->base, of));
        counts[level] = of[1];
        counts[MAX_LEVELS + level] = of[2];
        dropped[1] |= of[4];
        if (level == 0) dropped[0] = of[3], dropped[2] = of[5];
        if (level + 1 == p->num_levels) break;
        SPOPS_TRY(spops_plan_read_state(ctx, (const spops_plan *)p->levels[level], of));
        if (level == 0) dropped[0] = of[1];
        dropped[1] |= of[3];
        SPOPS_TRY(spops_plan_read_state(ctx, &p->down[level]->base, of));
        counts[2 * MAX_LEVELS + level] = of[2];
        dropped[1] |= of[4];
    }
    return SPOPS_STATUS_OK;
}

const spops_plan_ops spops_point_pyramid_plan_ops = {
    .handle_bytes = sizeof(struct spops_point_pyramid),
    .num_fields = NUM_FIELDS,
    .read = read_pyramid,
    .state = state_of_pyramid,
};

spops_status spops_point_pyramid_create(spops_context *ctx, const spops_point_cloud *finest,
                                        const spops_point_pyramid_options *given,
                                        spops_point_pyramid **out)
{
    static const char call[] = "point_pyramid_create";
    const spops_point_pyramid_capacity none = {0};
    int64_t fields[NUM_FIELDS];
    spops_status status = SPOPS_STATUS_OK;
    spops_point_pyramid_options o;
    spops_point_pyramid *p = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, own_names);
    SPOPS_TRY(spops_cloud_check(ctx, call, "finest", finest));
    SPOPS_TRY(read_options(ctx, call, given, &o));
    SPOPS_TRY(spops_check_no_memory(ctx, call, o.memory));
    put_fields(&o, &none, fields);
    SPOPS_TRY(spops_plan_open(ctx, call, SPOPS_PLAN_POINT_PYRAMID, fields, &p));
    p->finest = *finest;
    SPOPS_TRY_GOTO(make_parts(ctx, p), status, fail);
    put_sizes(p);
    *out = p;
    return SPOPS_STATUS_OK;

fail:
    spops_point_pyramid_destroy(p);
    return status;
}

// ---- Into capacities ----------------------------------------------------------------------------

static int64_t pairs_of(int64_t rows)
{
    return rows > SPOPS_MAX_COUNT / DEFAULT_PAIRS ? SPOPS_MAX_COUNT : rows * DEFAULT_PAIRS;
}

spops_status spops_point_pyramid_reserve(spops_context *ctx,
                                         const spops_point_pyramid_capacity *capacity,
                                         const spops_point_pyramid_options *given,
                                         spops_point_pyramid **out)
{
    static const char call[] = "point_pyramid_reserve";
    spops_point_pyramid_options o;
    spops_point_pyramid_capacity full;
    int64_t fields[NUM_FIELDS];
    char field[40];

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, own_names);
    SPOPS_TRY(spops_check_object(ctx, call, "capacity", capacity,
                                 _Alignof(spops_point_pyramid_capacity)));
    SPOPS_TRY(read_options(ctx, call, given, &o));
    full = *capacity;
    for (int32_t level = 0; level < o.num_levels; ++level) {
        snprintf(field, sizeof field, "capacity->max_rows[%d]", (int)level);
        SPOPS_TRY(spops_check_count(ctx, call, field, capacity->max_rows[level]));
        if (level > 0 && full.max_rows[level] == 0) full.max_rows[level] = full.max_rows[level - 1];
        if (full.max_pairs[level] == 0) full.max_pairs[level] = pairs_of(full.max_rows[level]);
        if (full.max_down_pairs[level] == 0)
            full.max_down_pairs[level] = pairs_of(full.max_rows[level]);
    }
    put_fields(&o, &full, fields);
    return spops_plan_reserve(ctx, call, SPOPS_PLAN_POINT_PYRAMID, fields, o.memory, out);
}

spops_status spops_point_pyramid_update(spops_context *ctx, spops_point_pyramid *p,
                                        const spops_point_cloud *finest)
{
    static const char call[] = "point_pyramid_update";

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "pyramid", p));
    SPOPS_OUTER_CALL(ctx, call, own_names);
    SPOPS_TRY(spops_cloud_check(ctx, call, "finest", finest));
    SPOPS_TRY(spops_cloud_check_full(ctx, call, "finest", finest, p->capacity.max_rows[0],
                                     p->capacity.num_samples));
    p->finest = *finest;
    for (int32_t level = 0; level < p->num_levels; ++level) {
        const spops_point_cloud *cloud = spops_point_pyramid_cloud(p, level);
        SPOPS_TRY(spops_neighbors_update(ctx, p->within[level], NULL, cloud));
        if (level + 1 == p->num_levels) break;
        SPOPS_TRY(spops_point_level_update(ctx, p->levels[level], cloud));
        SPOPS_TRY(spops_neighbors_update(ctx, p->down[level],
                                         spops_point_pyramid_cloud(p, level + 1), cloud));
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_point_pyramid_get_info_sync(spops_context *ctx, const spops_point_pyramid *p,
                                               spops_point_pyramid_info *info)
{
    static const char call[] = "point_pyramid_get_info_sync";
    spops_point_pyramid_info found = spops_point_pyramid_info_default();
    int32_t overflow_level = -1;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "pyramid", p));
    SPOPS_OUTER_CALL(ctx, call, own_names);
    found.num_levels = p->num_levels;
    for (int32_t level = 0; level < p->num_levels; ++level) {
        spops_neighbors_info within = spops_neighbors_info_default();
        spops_neighbors_info down = spops_neighbors_info_default();
        spops_point_level_info coarser = spops_point_level_info_default();
        SPOPS_TRY(spops_note_overflow(spops_neighbors_get_info_sync(ctx, p->within[level], &within),
                                      level, &overflow_level));
        found.num_rows[level] = within.num_inputs;
        found.num_pairs[level] = within.num_pairs;
        if (level == 0) found.bad_offsets = within.bad_offsets;
        if (level + 1 == p->num_levels) {
            if (level == 0) found.num_dropped = within.num_dropped;
            break;
        }
        SPOPS_TRY(
            spops_note_overflow(spops_point_level_get_info_sync(ctx, p->levels[level], &coarser),
                                level + 1, &overflow_level));
        if (level == 0) found.num_dropped = coarser.num_dropped;
        SPOPS_TRY(spops_note_overflow(spops_neighbors_get_info_sync(ctx, p->down[level], &down),
                                      level, &overflow_level));
        found.num_down_pairs[level] = down.num_pairs;
    }
    found.overflow = overflow_level >= 0;
    SPOPS_TRY(spops_write_struct(ctx, call, "info", info, &found, sizeof found));
    if (overflow_level < 0) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_CAPACITY_EXCEEDED,
                      "%s: level %d has more rows or pairs than its capacities", call,
                      (int)overflow_level);
}

// ---- What can be asked of a pyramid -------------------------------------------------------------

static bool has_level(const spops_point_pyramid *p, int32_t level)
{
    return p != NULL && level >= 0 && level < p->num_levels;
}

const spops_point_cloud *spops_point_pyramid_cloud(const spops_point_pyramid *pyramid,
                                                   int32_t level)
{
    if (!has_level(pyramid, level)) return NULL;
    return level == 0 ? &pyramid->finest : spops_point_level_cloud(pyramid->levels[level - 1]);
}

const spops_point_level *spops_point_pyramid_level(const spops_point_pyramid *pyramid,
                                                   int32_t level)
{
    return has_level(pyramid, level) ? pyramid->levels[level] : NULL;
}

const spops_neighbors *spops_point_pyramid_within(const spops_point_pyramid *pyramid, int32_t level)
{
    return has_level(pyramid, level) ? pyramid->within[level] : NULL;
}

const spops_neighbors *spops_point_pyramid_down(const spops_point_pyramid *pyramid, int32_t level)
{
    return has_level(pyramid, level) ? pyramid->down[level] : NULL;
}
