// SPDX-License-Identifier: Apache-2.0
// All levels of a network on points: clouds, and the neighbours within and between them.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "points/neighbors.h"
#include "core/check.h"
#include "core/plan.h"
#include "spops/point_levels.h"

#define DEFAULT_LEVELS 4
#define DEFAULT_RADIUS 1.861f
#define DEFAULT_PAIRS  32 // of a row, as a capacity

// Fields of a description.
enum { NUM_LEVELS, NUM_SAMPLES, NUM_FIELDS };

struct spops_point_pyramid {
    spops_plan base;
    int32_t num_levels;
    spops_point_pyramid_capacity capacity; // of a pyramid that is refilled
    spops_point_cloud finest;
    spops_point_level *levels[SPOPS_POINT_PYRAMID_MAX_LEVELS]; // that level + 1 came from
    spops_neighbors *within[SPOPS_POINT_PYRAMID_MAX_LEVELS];
    spops_neighbors *down[SPOPS_POINT_PYRAMID_MAX_LEVELS];
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

// A pyramid of its level 0, or for its capacities.
static spops_status make(spops_context *ctx, const spops_point_pyramid_options *o, bool refillable,
                         const spops_point_pyramid_capacity *capacity,
                         const spops_point_cloud *finest, spops_point_pyramid **out)
{
    spops_status status = SPOPS_STATUS_OK;
    spops_point_pyramid *p = spops_plan_alloc(ctx, SPOPS_PLAN_POINT_PYRAMID);

    if (p == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    p->base.refillable = refillable;
    p->base.fields[NUM_LEVELS] = o->num_levels;
    p->base.fields[NUM_SAMPLES] = capacity->num_samples;
    p->capacity = *capacity;
    p->finest = *finest;
    p->num_levels = o->num_levels;
    for (int32_t level = 0; level < o->num_levels; ++level) {
        SPOPS_TRY_GOTO(find_within(ctx, o, level, p), status, fail);
        if (level + 1 == o->num_levels) break;
        SPOPS_TRY_GOTO(make_level(ctx, o, level, p), status, fail);
        SPOPS_TRY_GOTO(find_down(ctx, o, level, p), status, fail);
    }
    *out = p;
    return SPOPS_STATUS_OK;

fail:
    spops_point_pyramid_destroy(p);
    return status;
}

spops_status spops_point_pyramid_create(spops_context *ctx, const spops_point_cloud *finest,
                                        const spops_point_pyramid_options *given,
                                        spops_point_pyramid **out)
{
    static const char call[] = "point_pyramid_create";
    spops_point_pyramid_options o;
    const spops_point_pyramid_capacity none = {0};

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_OUTER_CALL(ctx, call, own_names);
    SPOPS_TRY(spops_cloud_check(ctx, call, "finest", finest));
    SPOPS_TRY(read_options(ctx, call, given, &o));
    return make(ctx, &o, false, &none, finest, out);
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
    spops_point_cloud finest = {0};
    spops_point_pyramid_capacity full;
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
    finest.points = spops_matrix_dense(NULL, 0, 3, SPOPS_DTYPE_F32);
    return make(ctx, &o, true, &full, &finest, out);
}

static spops_status check_pyramid(spops_context *ctx, const char *call,
                                  const spops_point_pyramid *pyramid)
{
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_REQUIRE(ctx, pyramid != NULL, "%s: pyramid is NULL", call);
    return spops_check_home(ctx, call, "pyramid", pyramid->base.ctx);
}

spops_status spops_point_pyramid_update(spops_context *ctx, spops_point_pyramid *p,
                                        const spops_point_cloud *finest)
{
    static const char call[] = "point_pyramid_update";

    SPOPS_TRY(check_pyramid(ctx, call, p));
    SPOPS_OUTER_CALL(ctx, call, own_names);
    SPOPS_REQUIRE(ctx, p->base.refillable, "%s: the pyramid was not made by point_pyramid_reserve",
                  call);
    SPOPS_TRY(spops_cloud_check(ctx, call, "finest", finest));
    SPOPS_TRY(spops_cloud_check_capacity(ctx, call, "finest", finest, p->capacity.max_rows[0],
                                         p->capacity.num_samples));
    SPOPS_REQUIRE(ctx, spops_cloud_samples(finest) == p->capacity.num_samples,
                  "%s: finest has %" PRId64 " samples, expected %" PRId64, call,
                  spops_cloud_samples(finest), p->capacity.num_samples);
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

// A level or neighbours that are fine or have overflowed, which is noted.
static spops_status note_overflow(spops_status status, int32_t level, int32_t *overflow_level)
{
    if (status != SPOPS_STATUS_CAPACITY_EXCEEDED) return status;
    if (*overflow_level < 0) *overflow_level = level;
    return SPOPS_STATUS_OK;
}

spops_status spops_point_pyramid_get_info_sync(spops_context *ctx, const spops_point_pyramid *p,
                                               spops_point_pyramid_info *info)
{
    static const char call[] = "point_pyramid_get_info_sync";
    spops_point_pyramid_info found = spops_point_pyramid_info_default();
    int32_t overflow_level = -1;

    SPOPS_TRY(check_pyramid(ctx, call, p));
    SPOPS_OUTER_CALL(ctx, call, own_names);
    found.num_levels = p->num_levels;
    for (int32_t level = 0; level < p->num_levels; ++level) {
        spops_neighbors_info within = spops_neighbors_info_default();
        spops_neighbors_info down = spops_neighbors_info_default();
        spops_point_level_info coarser = spops_point_level_info_default();
        SPOPS_TRY(note_overflow(spops_neighbors_get_info_sync(ctx, p->within[level], &within),
                                level, &overflow_level));
        found.num_rows[level] = within.num_inputs;
        found.num_pairs[level] = within.num_pairs;
        if (level == 0) found.bad_offsets = within.bad_offsets;
        if (level + 1 == p->num_levels) {
            if (level == 0) found.num_dropped = within.num_dropped;
            break;
        }
        SPOPS_TRY(note_overflow(spops_point_level_get_info_sync(ctx, p->levels[level], &coarser),
                                level + 1, &overflow_level));
        if (level == 0) found.num_dropped = coarser.num_dropped;
        SPOPS_TRY(note_overflow(spops_neighbors_get_info_sync(ctx, p->down[level], &down), level,
                                &overflow_level));
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

static void destroy_point_pyramid(spops_plan *plan)
{
    spops_point_pyramid *p = (spops_point_pyramid *)plan;
    for (int32_t level = 0; level < SPOPS_POINT_PYRAMID_MAX_LEVELS; ++level) {
        spops_neighbors_destroy(p->within[level]);
        spops_neighbors_destroy(p->down[level]);
        spops_point_level_destroy(p->levels[level]);
    }
}

static size_t bytes_of_point_pyramid(const spops_plan *plan)
{
    const spops_point_pyramid *p = (const spops_point_pyramid *)plan;
    size_t bytes = 0;
    for (int32_t level = 0; level < p->num_levels; ++level) {
        bytes += spops_plan_bytes((const spops_plan *)p->within[level]);
        bytes += spops_plan_bytes((const spops_plan *)p->down[level]);
        bytes += spops_plan_bytes((const spops_plan *)p->levels[level]);
    }
    return bytes;
}

const spops_plan_ops spops_point_pyramid_plan_ops = {.handle_bytes =
                                                         sizeof(struct spops_point_pyramid),
                                                     .num_fields = NUM_FIELDS,
                                                     .destroy = destroy_point_pyramid,
                                                     .bytes = bytes_of_point_pyramid};
