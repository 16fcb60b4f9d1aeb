// SPDX-License-Identifier: Apache-2.0
// Pyramids: argument checks, and the order in which levels and maps are made.
#include "spops/pyramid.h"

#include <string.h>

#include "maps/kernel_maps.h"
#include "core/check.h"
#include "core/plan.h"

#define DEFAULT_LEVELS   5
#define DEFAULT_CONTENTS SPOPS_MAP_FOR_CONV

enum { MAX_LEVELS = SPOPS_PYRAMID_MAX_LEVELS };

_Static_assert(2 * MAX_LEVELS <= SPOPS_MAPS_AT_ONCE, "a map within and one down for each level");

struct spops_pyramid {
    spops_plan base;
    int32_t num_levels;
    const spops_coords *levels[MAX_LEVELS]; // 0: the caller's
    spops_coords *own[MAX_LEVELS];          // the others again
    spops_kernel_shape down_kernels[MAX_LEVELS];
    spops_kernel_map *within[MAX_LEVELS], *down[MAX_LEVELS], *up[MAX_LEVELS];
};

// Fields of a description.
enum { NUM_LEVELS, CONTENTS, NUM_FIELDS };

// Options, with 0 and NULL made what they stand for.
typedef struct pyramid_choices {
    int32_t num_levels, contents;
    bool has_within[MAX_LEVELS];
    spops_kernel_shape within[MAX_LEVELS], down[MAX_LEVELS];
    spops_coords_order order;
    spops_coords_search search;
    int64_t max_rows[MAX_LEVELS], max_pairs[MAX_LEVELS]; // 0: not said
} pyramid_choices;

// ---- Options ------------------------------------------------------------------------------------

static spops_status read_kernels(spops_context *ctx, const char *call,
                                 const spops_pyramid_options *o, int32_t dims,
                                 pyramid_choices *choices)
{
    for (int32_t level = 0; level < choices->num_levels; ++level) {
        const bool said = o->within != NULL;
        choices->has_within[level] = !said || o->within[level] != NULL;
        if (choices->has_within[level])
            choices->within[level] =
                said ? *o->within[level] : spops_kernel_shape_cube(dims, 3, 1, 1);
    }
    for (int32_t level = 0; level + 1 < choices->num_levels; ++level) {
        SPOPS_REQUIRE(ctx, o->down == NULL || o->down[level] != NULL,
                      "%s: down[%" PRId32 "] is NULL, expected the kernel to the next level", call,
                      level);
        choices->down[level] =
            o->down != NULL ? *o->down[level] : spops_kernel_shape_cube(dims, 2, 2, 1);
    }
    return SPOPS_STATUS_OK;
}

static spops_status read_capacity(spops_context *ctx, const char *call, const char *name,
                                  const int64_t *given, int32_t level, int64_t *capacity)
{
    *capacity = given == NULL ? 0 : given[level];
    SPOPS_REQUIRE(ctx, *capacity >= 0 && *capacity <= SPOPS_MAX_COUNT,
                  "%s: %s[%" PRId32 "] is %" PRId64 ", expected 0 to %" PRId64, call, name, level,
                  *capacity, SPOPS_MAX_COUNT);
    return SPOPS_STATUS_OK;
}

static spops_status read_options(spops_context *ctx, const char *call, int32_t dims,
                                 const spops_pyramid_options *given, pyramid_choices *choices)
{
    spops_pyramid_options o;
    memset(&o, 0, sizeof o);
    memset(choices, 0, sizeof *choices);
    SPOPS_TRY(spops_read_options(ctx, call, given, &o, sizeof o));
    SPOPS_REQUIRE(ctx, o.num_levels >= 0 && o.num_levels <= MAX_LEVELS,
                  "%s: num_levels is %" PRId32 ", expected 1 to %d (or 0)", call, o.num_levels,
                  MAX_LEVELS);
    choices->num_levels = o.num_levels == 0 ? DEFAULT_LEVELS : o.num_levels;
    choices->contents = spops_map_contents(ctx, o.contents == 0 ? DEFAULT_CONTENTS : o.contents);
    choices->order = o.order;
    choices->search = o.search;
    for (int32_t level = 0; level < choices->num_levels; ++level) {
        if (level > 0)
            SPOPS_TRY(
                read_capacity(ctx, call, "max_rows", o.max_rows, level, &choices->max_rows[level]));
        SPOPS_TRY(
            read_capacity(ctx, call, "max_pairs", o.max_pairs, level, &choices->max_pairs[level]));
    }
    return read_kernels(ctx, call, &o, dims, choices);
}

static int64_t product_up_to_max(int64_t a, int64_t b)
{
    return b > 0 && a > SPOPS_MAX_COUNT / b ? SPOPS_MAX_COUNT : a * b;
}

// What its parts call what the pyramid was given.
static const char *const own_names[][2] = {
    {"coords", "finest"}, {"in", "finest"}, {"out", "finest"}, {NULL, NULL}};

// ---- Making a pyramid ---------------------------------------------------------------------------

// Level `level` from the one before, which is there. With capacities, empty.
static spops_status make_level(spops_context *ctx, const char *call, spops_pyramid *p,
                               const pyramid_choices *choices, int32_t level)
{
    const spops_coords_arrays *before = &p->levels[level - 1]->arrays;
    const spops_kernel_shape *kernel = &p->down_kernels[level - 1];
    spops_coords_options o = spops_coords_options_default();
    spops_coords_box box;
    spops_taps taps;
    int64_t each, max_items;

    o.order = choices->order;
    o.search = choices->search;
    if (!p->base.refillable)
        return spops_coords_create_downsampled(ctx, p->levels[level - 1], kernel, &o,
                                               &p->own[level]);
    SPOPS_TRY(spops_kernel_shape_read(ctx, call, kernel, before->layout.dims, &taps));
    SPOPS_TRY(spops_box_downsampled(ctx, call, &before->layout, &taps, &box));
    o.box = &box;
    each = spops_kernel_shape_num_candidates(kernel, 0);
    SPOPS_REQUIRE(ctx, before->max_rows <= SPOPS_MAX_COUNT / each,
                  "%s: level %" PRId32 " has up to %" PRId64 " rows with up to %" PRId64
                  " candidates each, expected at most %" PRId64 " candidates",
                  call, level - 1, before->max_rows, each, SPOPS_MAX_COUNT);
    max_items = before->max_rows * each;
    return spops_coords_reserve(ctx, before->layout.dims,
                                choices->max_rows[level] > 0 ? choices->max_rows[level] : max_items,
                                max_items, &o, &p->own[level]);
}

static spops_status make_map(spops_context *ctx, const spops_pyramid *p, spops_kernel_map_kind kind,
                             const spops_kernel_shape *kernel, int32_t in, int32_t out,
                             const spops_kernel_map_options *options, spops_kernel_map **map)
{
    return (p->base.refillable ? spops_kernel_map_reserve : spops_kernel_map_create)(
        ctx, kind, kernel, p->levels[in], p->levels[out], options, map);
}

static spops_status make_maps(spops_context *ctx, spops_pyramid *p, const pyramid_choices *choices,
                              int32_t level)
{
    const int64_t max_rows = p->levels[level]->arrays.max_rows;
    spops_kernel_map_options o = spops_kernel_map_options_default();
    const spops_kernel_shape *kernel = &choices->within[level];

    o.contents = choices->contents;
    if (choices->has_within[level]) {
        o.max_pairs = choices->max_pairs[level] > 0
                          ? choices->max_pairs[level]
                          : product_up_to_max(max_rows, spops_kernel_shape_num_taps(kernel));
        SPOPS_TRY(
            make_map(ctx, p, SPOPS_MAP_SUBMANIFOLD, kernel, level, level, &o, &p->within[level]));
    }
    if (level + 1 == p->num_levels) return SPOPS_STATUS_OK;
    kernel = &p->down_kernels[level];
    o.contents |= SPOPS_MAP_REVERSE;
    o.max_pairs = product_up_to_max(max_rows, spops_kernel_shape_num_candidates(kernel, 0));
    SPOPS_TRY(
        make_map(ctx, p, SPOPS_MAP_CONVOLUTION, kernel, level, level + 1, &o, &p->down[level]));
    return spops_map_share_inverse(ctx, p->down[level], &p->up[level]);
}

static spops_status make(spops_context *ctx, const char *call, const spops_coords *finest,
                         const spops_pyramid_options *options, bool refillable, spops_pyramid **out)
{
    spops_status status = SPOPS_STATUS_OK;
    pyramid_choices choices;
    spops_pyramid *p = NULL;

    SPOPS_TRY(spops_coords_check(ctx, call, "finest", finest));
    SPOPS_TRY(read_options(ctx, call, finest->arrays.layout.dims, options, &choices));
    p = spops_plan_alloc(ctx, SPOPS_PLAN_PYRAMID);
    if (p == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    p->num_levels = choices.num_levels;
    p->base.fields[NUM_LEVELS] = choices.num_levels;
    p->base.fields[CONTENTS] = choices.contents;
    p->base.parents[0] = &finest->base;
    p->base.refillable = refillable;
    p->levels[0] = finest;
    memcpy(p->down_kernels, choices.down, sizeof p->down_kernels);
    for (int32_t level = 0; level < p->num_levels; ++level) {
        if (level > 0) {
            SPOPS_TRY_GOTO(make_level(ctx, call, p, &choices, level), status, fail);
            p->levels[level] = p->own[level];
        }
    }
    for (int32_t level = 0; level < p->num_levels; ++level)
        SPOPS_TRY_GOTO(make_maps(ctx, p, &choices, level), status, fail);
    *out = p;
    return SPOPS_STATUS_OK;

fail:
    spops_pyramid_destroy(p);
    return status;
}

spops_status spops_pyramid_create(spops_context *ctx, const spops_coords *finest,
                                  const spops_pyramid_options *options, spops_pyramid **pyramid)
{
    static const char call[] = "pyramid_create";
    SPOPS_BEGIN_CREATE(ctx, call, pyramid);
    SPOPS_OUTER_CALL(ctx, call, own_names);
    return make(ctx, call, finest, options, false, pyramid);
}

spops_status spops_pyramid_reserve(spops_context *ctx, const spops_coords *finest,
                                   const spops_pyramid_options *options, spops_pyramid **pyramid)
{
    static const char call[] = "pyramid_reserve";
    SPOPS_BEGIN_CREATE(ctx, call, pyramid);
    SPOPS_OUTER_CALL(ctx, call, own_names);
    return make(ctx, call, finest, options, true, pyramid);
}

// ---- Refilling ----------------------------------------------------------------------------------

static spops_status check_pyramid(spops_context *ctx, const char *call,
                                  const spops_pyramid *pyramid)
{
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_REQUIRE(ctx, pyramid != NULL, "%s: pyramid is NULL", call);
    return spops_check_home(ctx, call, "pyramid", pyramid->base.ctx);
}

spops_status spops_pyramid_update(spops_context *ctx, spops_pyramid *p)
{
    static const char call[] = "pyramid_update";
    const spops_kernel_map *maps[SPOPS_MAPS_AT_ONCE];
    const spops_coords *in[SPOPS_MAPS_AT_ONCE], *out[SPOPS_MAPS_AT_ONCE];
    int32_t num = 0;

    SPOPS_TRY(check_pyramid(ctx, call, p));
    SPOPS_OUTER_CALL(ctx, call, own_names);
    SPOPS_REQUIRE(ctx, p->base.refillable, "%s: the pyramid was not made by pyramid_reserve", call);
    for (int32_t level = 1; level < p->num_levels; ++level)
        SPOPS_TRY(spops_coords_update_downsampled(ctx, p->own[level], p->levels[level - 1],
                                                  &p->down_kernels[level - 1]));
    for (int32_t level = 0; level < p->num_levels; ++level) {
        if (p->within[level] != NULL) {
            maps[num] = p->within[level];
            in[num] = out[num] = p->levels[level];
            ++num;
        }
        if (p->down[level] != NULL) {
            maps[num] = p->down[level];
            in[num] = p->levels[level];
            out[num] = p->levels[level + 1];
            ++num;
        }
    }
    return spops_maps_enqueue(ctx, maps, in, out, num);
}

static void destroy_pyramid(spops_plan *plan)
{
    spops_pyramid *p = (spops_pyramid *)plan;
    for (int32_t level = 0; level < p->num_levels; ++level) {
        spops_kernel_map_destroy(p->up[level]);
        spops_kernel_map_destroy(p->down[level]);
        spops_kernel_map_destroy(p->within[level]);
        spops_coords_destroy(p->own[level]);
    }
}

static size_t bytes_of_pyramid(const spops_plan *plan)
{
    const spops_pyramid *p = (const spops_pyramid *)plan;
    size_t bytes = 0;
    for (int32_t level = 0; level < p->num_levels; ++level) {
        bytes += spops_plan_bytes((const spops_plan *)p->own[level]);
        bytes += spops_plan_bytes((const spops_plan *)p->within[level]);
        bytes += spops_plan_bytes((const spops_plan *)p->down[level]);
    }
    return bytes;
}

static spops_status update_pyramids(spops_context *ctx, spops_plan *const *plans, int32_t num)
{
    for (int32_t i = 0; i < num; ++i)
        SPOPS_TRY(spops_pyramid_update(ctx, (spops_pyramid *)plans[i]));
    return SPOPS_STATUS_OK;
}

const spops_plan_ops spops_pyramid_plan_ops = {.handle_bytes = sizeof(struct spops_pyramid),
                                               .num_fields = NUM_FIELDS,
                                               .destroy = destroy_pyramid,
                                               .bytes = bytes_of_pyramid,
                                               .update = update_pyramids};

// ---- What can be asked of a pyramid -------------------------------------------------------------

const spops_coords *spops_pyramid_coords(const spops_pyramid *pyramid, int32_t level)
{
    if (pyramid == NULL || level < 0 || level >= pyramid->num_levels) return NULL;
    return pyramid->levels[level];
}

const spops_kernel_map *spops_pyramid_map(const spops_pyramid *pyramid,
                                          spops_pyramid_relation relation, int32_t level)
{
    if (pyramid == NULL || level < 0 || level >= pyramid->num_levels) return NULL;
    switch (relation) {
    case SPOPS_PYRAMID_WITHIN: return pyramid->within[level];
    case SPOPS_PYRAMID_DOWN: return pyramid->down[level];
    case SPOPS_PYRAMID_UP: return pyramid->up[level];
    }
    return NULL;
}

// A level or map that is fine or has overflowed, which is noted.
static spops_status note_overflow(spops_status status, int32_t level, int32_t *overflow_level)
{
    if (status != SPOPS_STATUS_CAPACITY_EXCEEDED) return status;
    if (*overflow_level < 0) *overflow_level = level;
    return SPOPS_STATUS_OK;
}

spops_status spops_pyramid_get_info_sync(spops_context *ctx, const spops_pyramid *p,
                                         spops_pyramid_info *info)
{
    static const char call[] = "pyramid_get_info_sync";
    spops_pyramid_info found = spops_pyramid_info_default();
    int32_t overflow_level = -1;

    SPOPS_TRY(check_pyramid(ctx, call, p));
    SPOPS_OUTER_CALL(ctx, call, own_names);
    found.num_levels = p->num_levels;
    for (int32_t level = 0; level < p->num_levels; ++level) {
        spops_coords_info coords = spops_coords_info_default();
        spops_kernel_map_info map = spops_kernel_map_info_default();
        SPOPS_TRY(note_overflow(spops_coords_get_info_sync(ctx, p->levels[level], &coords), level,
                                &overflow_level));
        found.num_rows[level] = coords.num_rows;
        found.max_rows[level] = coords.max_rows;
        if (p->within[level] != NULL) {
            SPOPS_TRY(note_overflow(spops_kernel_map_get_info_sync(ctx, p->within[level], &map),
                                    level, &overflow_level));
            found.num_pairs[level] = map.num_pairs;
            found.max_pairs[level] = map.max_pairs;
        }
        if (p->down[level] != NULL) {
            SPOPS_TRY(note_overflow(spops_kernel_map_get_info_sync(ctx, p->down[level], &map),
                                    level, &overflow_level));
            found.num_down_pairs[level] = map.num_pairs;
        }
    }
    found.overflow = overflow_level >= 0;
    SPOPS_TRY(spops_write_struct(ctx, call, "info", info, &found, sizeof found));
    if (overflow_level < 0) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_CAPACITY_EXCEEDED,
                      "%s: level %" PRId32 " has more rows or pairs than its capacities", call,
                      overflow_level);
}
