// SPDX-License-Identifier: Apache-2.0
// All levels of a network on points: clouds, and the neighbours within and between them.
#include <math.h>
#include <string.h>

#include "coords/neighbors.h"
#include "core/check.h"
#include "spops/point_levels.h"

#define DEFAULT_LEVELS 4
#define DEFAULT_RADIUS 1.861f

struct spops_point_pyramid {
    spops_context *ctx; // made it, frees it
    int32_t num_levels;
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
    if (o->contents == 0) o->contents = SPOPS_NEIGHBORS_BY_TAP;
    return SPOPS_STATUS_OK;
}

static spops_status find_within(spops_context *ctx, const spops_point_pyramid_options *o,
                                int32_t level, spops_point_pyramid *p)
{
    spops_neighbors_options search = spops_neighbors_options_default();
    search.tap_size_m = ldexpf(o->tap_size_m, level);
    search.radius_m = o->radius_taps * search.tap_size_m;
    search.metric = o->metric;
    search.taps = o->taps;
    search.contents = o->contents;
    return spops_neighbors_create(ctx, NULL, spops_point_pyramid_cloud(p, level), &search,
                                  &p->within[level]);
}

static spops_status find_down(spops_context *ctx, const spops_point_pyramid_options *o,
                              int32_t level, spops_point_pyramid *p)
{
    const float voxel = ldexpf(o->tap_size_m, level + 1);
    spops_point_level_options coarser = spops_point_level_options_default();
    spops_neighbors_options search = spops_neighbors_options_default();
    // No two points of a voxel are farther apart; rounded up well beyond the rounding of distances.
    const float reach =
        voxel * (o->metric == SPOPS_METRIC_CHEBYSHEV ? 1.00001f : 1.7320509f * 1.00001f);

    coarser.size_m = voxel;
    coarser.keep = o->keep;
    coarser.seed = o->seed;
    coarser.gradients = o->gradients;
    coarser.max_cols = o->max_cols;
    SPOPS_TRY(spops_point_level_create(ctx, spops_point_pyramid_cloud(p, level), &coarser,
                                       &p->levels[level]));
    search.tap_size_m = ldexpf(o->tap_size_m, level);
    search.radius_m = o->radius_taps * search.tap_size_m;
    if (o->cover && search.radius_m < reach) search.radius_m = reach;
    search.metric = o->metric;
    search.taps = o->taps;
    search.contents = o->contents;
    return spops_neighbors_create(ctx, spops_point_pyramid_cloud(p, level + 1),
                                  spops_point_pyramid_cloud(p, level), &search, &p->down[level]);
}

spops_status spops_point_pyramid_create(spops_context *ctx, const spops_point_cloud *finest,
                                        const spops_point_pyramid_options *given,
                                        spops_point_pyramid **out)
{
    static const char call[] = "point_pyramid_create";
    spops_status status = SPOPS_STATUS_OK;
    spops_point_pyramid_options o;
    spops_point_pyramid *p = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(spops_cloud_check(ctx, call, "finest", finest));
    SPOPS_TRY(read_options(ctx, call, given, &o));
    p = spops_host_alloc(ctx, 1, sizeof *p);
    if (p == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    p->ctx = ctx;
    p->num_levels = o.num_levels;
    p->finest = *finest;
    for (int32_t level = 0; level < o.num_levels; ++level) {
        SPOPS_TRY_GOTO(find_within(ctx, &o, level, p), status, fail);
        if (level + 1 < o.num_levels) SPOPS_TRY_GOTO(find_down(ctx, &o, level, p), status, fail);
    }
    *out = p;
    return SPOPS_STATUS_OK;

fail:
    spops_point_pyramid_destroy(p);
    return status;
}

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

void spops_point_pyramid_destroy(spops_point_pyramid *pyramid)
{
    if (pyramid == NULL) return;
    for (int32_t level = 0; level < SPOPS_POINT_PYRAMID_MAX_LEVELS; ++level) {
        spops_neighbors_destroy(pyramid->within[level]);
        spops_neighbors_destroy(pyramid->down[level]);
        spops_point_level_destroy(pyramid->levels[level]);
    }
    spops_host_free(pyramid->ctx, pyramid, 1, sizeof *pyramid);
}
