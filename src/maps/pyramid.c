// SPDX-License-Identifier: Apache-2.0
// Pyramids: argument checks, and the order in which levels and maps are made.
#include "spops/pyramid.h"

#include <string.h>

#include "maps/kernel_maps.h"
#include "core/check.h"
#include "core/plan.h"

#define DEFAULT_LEVELS   5
#define DEFAULT_CONTENTS SPOPS_MAP_FOR_CONV_BACKWARD

enum { MAX_LEVELS = SPOPS_PYRAMID_MAX_LEVELS };

_Static_assert((int)SPOPS_NEST_LEVELS == (int)MAX_LEVELS, "all levels of a pyramid nest at once");
_Static_assert(2 * MAX_LEVELS <= SPOPS_MAPS_AT_ONCE, "a map within and one down for each level");

// Options, with 0 and NULL made what they stand for.
typedef struct pyramid_choices {
    int32_t num_levels, contents;
    bool has_within[MAX_LEVELS];
    spops_kernel_shape within[MAX_LEVELS], down[MAX_LEVELS];
    spops_coords_order order;
    spops_coords_search search;
    int64_t max_rows[MAX_LEVELS], max_pairs[MAX_LEVELS]; // 0: not said
    spops_plan_memory *memory;
} pyramid_choices;

struct spops_pyramid {
    spops_plan base;
    pyramid_choices choices;
    spops_coords like_finest;               // what is known of level 0 before it is there
    const spops_coords *levels[MAX_LEVELS]; // 0: the caller's
    spops_coords *own[MAX_LEVELS];          // the others again
    spops_kernel_map *within[MAX_LEVELS], *down[MAX_LEVELS], *up[MAX_LEVELS];
    bool nested;              // levels are made at once (nest_levels)
    int32_t source;           // then: the level whose map within others follow from; 0: none
    bool follows[MAX_LEVELS]; // the map within a level is made by nest_within
    void *nest_workspace;
};

// Fields of a description. A kernel is its size, stride, padding and dilation.
enum {
    KERNEL_FIELDS = 4 * SPOPS_MAX_DIMS,
    NUM_LEVELS = 0,
    CONTENTS,
    DIMS,
    ORDER,
    SEARCH,
    LOWER, // of level 0, as those before MAX_PAIRS
    UPPER = LOWER + SPOPS_KEY_COLUMNS,
    MAX_ROWS = UPPER + SPOPS_KEY_COLUMNS,
    MAX_PAIRS = MAX_ROWS + MAX_LEVELS,
    HAS_WITHIN = MAX_PAIRS + MAX_LEVELS,
    WITHIN = HAS_WITHIN + MAX_LEVELS,
    DOWN = WITHIN + MAX_LEVELS * KERNEL_FIELDS,
    NUM_FIELDS = DOWN + MAX_LEVELS * KERNEL_FIELDS
};

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
    choices->memory = o.memory;
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

// ---- Fields ---------------------------------------------------------------------------------------

static void put_kernel(const spops_kernel_shape *kernel, int64_t *fields)
{
    spops_plan_put_i32s(fields, kernel->size, SPOPS_MAX_DIMS);
    spops_plan_put_i32s(fields + SPOPS_MAX_DIMS, kernel->stride, SPOPS_MAX_DIMS);
    spops_plan_put_i32s(fields + 2 * SPOPS_MAX_DIMS, kernel->padding, SPOPS_MAX_DIMS);
    spops_plan_put_i32s(fields + 3 * SPOPS_MAX_DIMS, kernel->dilation, SPOPS_MAX_DIMS);
}

static spops_status get_kernel(spops_context *ctx, const char *call, const int64_t *fields,
                               int32_t first, int32_t dims, spops_kernel_shape *kernel)
{
    const spops_plan_kind of = SPOPS_PLAN_PYRAMID;
    int32_t *const to[] = {kernel->size, kernel->stride, kernel->padding, kernel->dilation};
    *kernel = spops_kernel_shape_default();
    kernel->dims = dims;
    for (int32_t i = 0; i < 4; ++i, first += SPOPS_MAX_DIMS)
        SPOPS_TRY(spops_plan_get_i32s(ctx, call, of, fields, first, SPOPS_MAX_DIMS, to[i]));
    return SPOPS_STATUS_OK;
}

static void put_finest(const spops_coords_arrays *finest, int64_t fields[NUM_FIELDS])
{
    const spops_coords_box box = spops_box_of(&finest->layout);
    fields[DIMS] = finest->layout.dims;
    fields[MAX_ROWS] = finest->max_rows;
    spops_plan_put_i32s(fields + LOWER, box.lower, SPOPS_KEY_COLUMNS);
    spops_plan_put_i32s(fields + UPPER, box.upper, SPOPS_KEY_COLUMNS);
}

static void put_choices(const pyramid_choices *c, int64_t fields[NUM_FIELDS])
{
    fields[NUM_LEVELS] = c->num_levels;
    fields[CONTENTS] = c->contents;
    fields[ORDER] = c->order;
    fields[SEARCH] = c->search;
    for (int32_t level = 0; level < c->num_levels; ++level) {
        fields[MAX_ROWS + level] = c->max_rows[level];
        fields[MAX_PAIRS + level] = c->max_pairs[level];
        fields[HAS_WITHIN + level] = c->has_within[level];
        if (c->has_within[level])
            put_kernel(&c->within[level], fields + WITHIN + level * KERNEL_FIELDS);
        if (level + 1 < c->num_levels)
            put_kernel(&c->down[level], fields + DOWN + level * KERNEL_FIELDS);
    }
}

static spops_status get_choices(spops_context *ctx, const char *call, spops_plan *plan,
                                pyramid_choices *c)
{
    const spops_plan_kind of = SPOPS_PLAN_PYRAMID;
    const int64_t *fields = plan->fields;
    int32_t numbers[2];

    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, NUM_LEVELS, 1, MAX_LEVELS));
    SPOPS_TRY(spops_plan_check_field(ctx, call, plan, DIMS, 1, SPOPS_MAX_DIMS));
    SPOPS_TRY(spops_plan_get_i32s(ctx, call, of, fields, CONTENTS, 1, &c->contents));
    SPOPS_TRY(spops_plan_get_i32s(ctx, call, of, fields, ORDER, 2, numbers));
    c->num_levels = (int32_t)fields[NUM_LEVELS];
    c->order = (spops_coords_order)numbers[0];
    c->search = (spops_coords_search)numbers[1];
    for (int32_t level = 0; level < c->num_levels; ++level) {
        const int32_t dims = (int32_t)fields[DIMS], within = WITHIN + level * KERNEL_FIELDS;
        for (int32_t i = level; i < 2 * MAX_LEVELS; i += MAX_LEVELS)
            SPOPS_TRY(spops_plan_check_field(ctx, call, plan, MAX_ROWS + i, 0, SPOPS_MAX_COUNT));
        SPOPS_TRY(spops_plan_check_field(ctx, call, plan, HAS_WITHIN + level, 0, 1));
        c->max_rows[level] = fields[MAX_ROWS + level];
        c->max_pairs[level] = fields[MAX_PAIRS + level];
        c->has_within[level] = fields[HAS_WITHIN + level] == 1;
        SPOPS_TRY(get_kernel(ctx, call, fields, within, dims, &c->within[level]));
        SPOPS_TRY(
            get_kernel(ctx, call, fields, DOWN + level * KERNEL_FIELDS, dims, &c->down[level]));
    }
    return SPOPS_STATUS_OK;
}

// ---- Nested windows -----------------------------------------------------------------------------

// Whether windows down lie beside each other, in a backend that makes such levels at once.
static bool may_nest(const spops_context *ctx, const spops_pyramid *p)
{
    const pyramid_choices *c = &p->choices;
    const int64_t n = p->levels[0]->arrays.max_rows;
    if (ctx->backend->nest_levels == NULL || n < 1 || n > SPOPS_NEST_MAX_ROWS ||
        c->order > SPOPS_COORDS_ORDER_GIVEN || c->num_levels < 2 ||
        (c->search != SPOPS_COORDS_SEARCH_AUTO && c->search != SPOPS_COORDS_SEARCH_HASH))
        return false;
    for (int32_t level = 0; level + 1 < c->num_levels; ++level) {
        const spops_kernel_shape *down = &c->down[level];
        if (spops_kernel_shape_num_taps(down) > SPOPS_NEST_TAPS) return false;
        for (int32_t a = 0; a < down->dims; ++a)
            if (down->size[a] != down->stride[a] || down->dilation[a] != 1) return false;
    }
    return true;
}

// Whether the neighbours of a row along an axis lie in cells, of `extent` rows each, that a coarse map
// leads to.
static bool axis_follows(const spops_taps *fine, const spops_taps *coarse, int64_t extent, int axis)
{
    const int64_t reach = fine->padding[axis], step = fine->dilation[axis];
    for (int64_t place = 0; place < extent; ++place)
        for (int64_t offset = -reach; offset <= reach; offset += step) {
            const int64_t t = place + offset;
            const int64_t q = t >= 0 ? t / extent : -((extent - 1 - t) / extent);
            const int64_t at = q + coarse->padding[axis];
            if (at < 0 || at % coarse->dilation[axis] != 0 ||
                at / coarse->dilation[axis] >= coarse->size[axis])
                return false;
        }
    return true;
}

// Whether the map within a level follows from that within the source's.
static bool map_follows(const spops_pyramid *p, int32_t level)
{
    const spops_taps *fine = &p->within[level]->arrays.taps;
    const spops_taps *coarse = &p->within[p->source]->arrays.taps;
    int64_t steps = 0;
    for (int a = 0; a < fine->dims; ++a) {
        int64_t extent = 1;
        for (int32_t l = level; l < p->source && extent <= SPOPS_NEST_EXTENT; ++l)
            extent *= p->down[l]->arrays.taps.stride[a];
        steps += extent + 2 * (int64_t)fine->padding[a];
        if (extent > SPOPS_NEST_EXTENT || steps > SPOPS_NEST_STEPS ||
            !axis_follows(fine, coarse, extent, a))
            return false;
    }
    return true;
}

static spops_nest_args nest_args_of(const spops_pyramid *p)
{
    spops_nest_args args = {
        .num_levels = p->choices.num_levels, .source = p->source, .workspace = p->nest_workspace};
    if (p->source > 0) args.source_within = &p->within[p->source]->arrays;
    for (int32_t level = 0; level < args.num_levels; ++level) {
        args.levels[level] = &p->levels[level]->arrays;
        if (p->down[level] != NULL) args.down[level] = &p->down[level]->arrays;
        if (p->follows[level]) args.within[level] = &p->within[level]->arrays;
    }
    return args;
}

static size_t nest_bytes(const spops_pyramid *p)
{
    const spops_context *ctx = p->base.ctx;
    const spops_nest_args args = nest_args_of(p);
    return ctx->backend->nest_workspace_bytes(p->base.ctx, &args);
}

// The coarsest map within is the source of all others that follow from it.
static void choose_source(spops_pyramid *p)
{
    bool any = false;
    for (int32_t level = 1; level < p->choices.num_levels; ++level)
        if (p->within[level] != NULL) p->source = level;
    for (int32_t level = 0; level < p->source; ++level) {
        p->follows[level] = p->within[level] != NULL && map_follows(p, level);
        any = any || p->follows[level];
    }
    if (!any)
        p->source = 0;
    else
        p->follows[p->source] = p->levels[p->source]->arrays.max_rows <= SPOPS_NEST_FEW_ROWS;
}

// After all parts are known: how they are made.
static void choose_nest(const spops_context *ctx, spops_pyramid *p)
{
    if (!may_nest(ctx, p)) return;
    choose_source(p);
    p->nested = nest_bytes(p) > 0;
}

static void carve_nest(spops_plan *plan, spops_carver *c)
{
    spops_pyramid *p = (spops_pyramid *)plan;
    if (p->nested) p->nest_workspace = spops_carve(c, 1, 1, nest_bytes(p));
}

// ---- Making a pyramid ---------------------------------------------------------------------------

// Level `level` from the one before, which is there. With capacities, empty.
static spops_status make_level(spops_context *ctx, const char *call, spops_pyramid *p,
                               int32_t level)
{
    const pyramid_choices *choices = &p->choices;
    const spops_coords_arrays *before = &p->levels[level - 1]->arrays;
    const spops_kernel_shape *kernel = &choices->down[level - 1];
    spops_coords_options o = spops_coords_options_default();
    spops_coords_box box;
    spops_taps taps;
    int64_t each, max_items;

    o.order = choices->order;
    o.search = choices->search;
    // Of levels that are made at once: a grid would have to be filled by launches of its own.
    if (may_nest(ctx, p)) o.search = SPOPS_COORDS_SEARCH_HASH;
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

static spops_status make_map(spops_context *ctx, spops_pyramid *p, spops_kernel_map_kind kind,
                             const spops_kernel_shape *kernel, int32_t in, int32_t out,
                             const spops_kernel_map_options *options, spops_kernel_map **map)
{
    SPOPS_TRY((p->base.refillable ? spops_kernel_map_reserve : spops_kernel_map_create)(
        ctx, kind, kernel, p->levels[in], p->levels[out], options, map));
    spops_plan_adopt(&p->base, &(*map)->base);
    return SPOPS_STATUS_OK;
}

static spops_status make_maps(spops_context *ctx, spops_pyramid *p, int32_t level)
{
    const pyramid_choices *choices = &p->choices;
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
    if (level + 1 == choices->num_levels) return SPOPS_STATUS_OK;
    kernel = &choices->down[level];
    o.contents |= SPOPS_MAP_REVERSE;
    o.max_pairs = product_up_to_max(max_rows, spops_kernel_shape_num_candidates(kernel, 0));
    SPOPS_TRY(
        make_map(ctx, p, SPOPS_MAP_CONVOLUTION, kernel, level, level + 1, &o, &p->down[level]));
    SPOPS_TRY(spops_map_share_inverse(ctx, p->down[level], &p->up[level]));
    spops_plan_adopt(&p->base, &p->up[level]->base);
    return SPOPS_STATUS_OK;
}

// Levels and maps, once level 0 is there.
static spops_status make_parts(spops_context *ctx, const char *call, spops_pyramid *p)
{
    const int32_t num_levels = p->choices.num_levels;
    for (int32_t level = 1; level < num_levels; ++level) {
        SPOPS_TRY(make_level(ctx, call, p, level));
        spops_plan_adopt(&p->base, &p->own[level]->base);
        p->levels[level] = p->own[level];
    }
    for (int32_t level = 0; level < num_levels; ++level)
        SPOPS_TRY(make_maps(ctx, p, level));
    return SPOPS_STATUS_OK;
}

// Of a pyramid that was made with its contents.
static void put_sizes(spops_pyramid *p)
{
    for (int32_t level = 0; level < p->choices.num_levels; ++level) {
        p->base.fields[MAX_ROWS + level] = p->levels[level]->arrays.max_rows;
        if (p->within[level] != NULL)
            p->base.fields[MAX_PAIRS + level] = p->within[level]->arrays.max_pairs;
    }
}

static spops_status read_pyramid(spops_context *ctx, const char *call, spops_plan *plan)
{
    spops_pyramid *p = (spops_pyramid *)plan;
    const int64_t *fields = plan->fields;
    spops_coords_arrays *finest = &p->like_finest.arrays;
    spops_coords_box box;

    SPOPS_OUTER_CALL(ctx, call, own_names);
    SPOPS_TRY(get_choices(ctx, call, plan, &p->choices));
    if (!plan->refillable) return SPOPS_STATUS_OK; // its parts are made with their contents
    SPOPS_TRY(spops_plan_get_i32s(ctx, call, SPOPS_PLAN_PYRAMID, fields, LOWER, SPOPS_KEY_COLUMNS,
                                  box.lower));
    SPOPS_TRY(spops_plan_get_i32s(ctx, call, SPOPS_PLAN_PYRAMID, fields, UPPER, SPOPS_KEY_COLUMNS,
                                  box.upper));
    p->like_finest.base.ctx = ctx;
    finest->max_rows = fields[MAX_ROWS];
    SPOPS_TRY(spops_key_layout_make(ctx, call, (int32_t)fields[DIMS], &box,
                                    SPOPS_COORDS_ORDER_LEXICOGRAPHIC, &finest->layout));
    p->levels[0] = &p->like_finest;
    SPOPS_TRY(make_parts(ctx, call, p));
    choose_nest(ctx, p);
    return SPOPS_STATUS_OK;
}

static spops_status bind_pyramid(spops_context *ctx, const char *call, spops_plan *plan)
{
    spops_pyramid *p = (spops_pyramid *)plan;
    spops_kernel_map *const maps[] = {p->within[0], p->down[0], p->up[0]};
    int64_t found[NUM_FIELDS];

    p->levels[0] = (const spops_coords *)plan->parents[0];
    memcpy(found, plan->fields, sizeof found);
    put_finest(&p->levels[0]->arrays, found);
    for (int32_t i = 0; i < NUM_FIELDS; ++i)
        SPOPS_TRY(spops_plan_check_parent(ctx, call, plan, i, "finest", found[i]));
    for (size_t m = 0; m < sizeof maps / sizeof maps[0]; ++m)
        for (int i = 0; maps[m] != NULL && i < 2; ++i)
            if (maps[m]->base.parents[i] == &p->like_finest.base)
                maps[m]->base.parents[i] = &p->levels[0]->base;
    return SPOPS_STATUS_OK;
}

static void show_inverses(spops_plan *plan)
{
    spops_pyramid *p = (spops_pyramid *)plan;
    for (int32_t level = 0; level < p->choices.num_levels; ++level)
        if (p->up[level] != NULL) spops_map_show_inverse(p->down[level], p->up[level]);
}

spops_status spops_pyramid_create(spops_context *ctx, const spops_coords *finest,
                                  const spops_pyramid_options *options, spops_pyramid **pyramid)
{
    static const char call[] = "pyramid_create";
    int64_t fields[NUM_FIELDS] = {0};
    spops_status status = SPOPS_STATUS_OK;
    pyramid_choices choices;
    spops_pyramid *p = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, pyramid);
    SPOPS_OUTER_CALL(ctx, call, own_names);
    SPOPS_TRY(spops_plan_check(ctx, call, "finest", finest));
    SPOPS_TRY(read_options(ctx, call, finest->arrays.layout.dims, options, &choices));
    SPOPS_TRY(spops_check_no_memory(ctx, call, choices.memory));
    put_choices(&choices, fields);
    put_finest(&finest->arrays, fields);
    SPOPS_TRY(spops_plan_open(ctx, call, SPOPS_PLAN_PYRAMID, fields, &p));
    p->base.parents[0] = &finest->base;
    p->levels[0] = finest;
    SPOPS_TRY_GOTO(make_parts(ctx, call, p), status, fail);
    put_sizes(p);
    *pyramid = p;
    return SPOPS_STATUS_OK;

fail:
    spops_pyramid_destroy(p);
    return status;
}

spops_status spops_pyramid_reserve(spops_context *ctx, const spops_coords *finest,
                                   const spops_pyramid_options *options, spops_pyramid **pyramid)
{
    static const char call[] = "pyramid_reserve";
    const spops_plan *parent = (const spops_plan *)finest;
    int64_t fields[NUM_FIELDS] = {0};
    pyramid_choices choices;

    SPOPS_BEGIN_CREATE(ctx, call, pyramid);
    SPOPS_OUTER_CALL(ctx, call, own_names);
    SPOPS_TRY(spops_plan_check(ctx, call, "finest", finest));
    SPOPS_TRY(read_options(ctx, call, finest->arrays.layout.dims, options, &choices));
    put_choices(&choices, fields);
    put_finest(&finest->arrays, fields);
    return spops_plan_reserve_on(ctx, call, SPOPS_PLAN_PYRAMID, fields, &parent, 1, choices.memory,
                                 pyramid);
}

// ---- Refilling ----------------------------------------------------------------------------------

// Maps of a pyramid with the sets that they are between.
typedef struct map_list {
    const spops_kernel_map *maps[SPOPS_MAPS_AT_ONCE];
    const spops_coords *in[SPOPS_MAPS_AT_ONCE], *out[SPOPS_MAPS_AT_ONCE];
    int32_t num;
} map_list;

static void put_map(const spops_pyramid *p, const spops_kernel_map *map, int32_t in, int32_t out,
                    map_list *list)
{
    if (map == NULL) return;
    list->maps[list->num] = map;
    list->in[list->num] = p->levels[in];
    list->out[list->num] = p->levels[out];
    ++list->num;
}

// All levels at once.
static spops_status fill_nested(spops_context *ctx, const spops_pyramid *p, const map_list *all)
{
    const spops_nest_args args = nest_args_of(p);
    map_list rest = {.num = 0};
    SPOPS_TRY(ctx->backend->nest_levels(ctx, &args));
    for (int32_t level = 0; level < p->choices.num_levels; ++level) {
        if (level > 0)
            SPOPS_TRY(spops_coords_note_downsampled(ctx, p->own[level], p->levels[level - 1],
                                                    &p->choices.down[level - 1]));
        if (!p->follows[level]) put_map(p, p->within[level], level, level, &rest);
    }
    SPOPS_TRY(spops_maps_enqueue_search(ctx, rest.maps, rest.in, rest.out, rest.num));
    SPOPS_TRY(ctx->backend->nest_within(ctx, &args));
    return spops_maps_enqueue_lists(ctx, all->maps, all->num);
}

static spops_status fill_pyramid(spops_context *ctx, const spops_pyramid *p)
{
    map_list all = {.num = 0};
    for (int32_t level = 0; level < p->choices.num_levels; ++level) {
        put_map(p, p->within[level], level, level, &all);
        put_map(p, p->down[level], level, level + 1, &all);
    }
    if (p->nested) return fill_nested(ctx, p, &all);
    for (int32_t level = 1; level < p->choices.num_levels; ++level)
        SPOPS_TRY(spops_coords_update_downsampled(ctx, p->own[level], p->levels[level - 1],
                                                  &p->choices.down[level - 1]));
    return spops_maps_enqueue(ctx, all.maps, all.in, all.out, all.num);
}

static spops_status update_pyramids(spops_context *ctx, spops_plan *const *plans, int32_t num)
{
    for (int32_t i = 0; i < num; ++i)
        SPOPS_TRY(fill_pyramid(ctx, (const spops_pyramid *)plans[i]));
    return SPOPS_STATUS_OK;
}

static spops_status state_of_pyramid(spops_context *ctx, const spops_plan *plan, int64_t *counts)
{
    const spops_pyramid *p = (const spops_pyramid *)plan;
    int64_t *const overflow = counts + 3 * MAX_LEVELS, of[SPOPS_PLAN_MAX_COUNTS];

    memset(counts, 0, (3 * MAX_LEVELS + 1) * sizeof *counts);
    for (int32_t level = 0; level < p->choices.num_levels; ++level) {
        const spops_kernel_map *const maps[] = {p->within[level], p->down[level]};
        SPOPS_TRY(spops_plan_read_state(ctx, &p->levels[level]->base, of));
        counts[level] = of[0];
        *overflow |= of[3];
        for (int m = 0; m < 2; ++m) {
            if (maps[m] == NULL) continue;
            SPOPS_TRY(spops_plan_read_state(ctx, &maps[m]->base, of));
            counts[(1 + m) * MAX_LEVELS + level] = of[2];
            *overflow |= of[3];
        }
    }
    return SPOPS_STATUS_OK;
}

const spops_plan_ops spops_pyramid_plan_ops = {
    .handle_bytes = sizeof(struct spops_pyramid),
    .num_fields = NUM_FIELDS,
    .read = read_pyramid,
    .bind = bind_pyramid,
    .carve_workspace = carve_nest,
    .ready = show_inverses,
    .update = update_pyramids,
    .state = state_of_pyramid,
};

// ---- What can be asked of a pyramid -------------------------------------------------------------

const spops_coords *spops_pyramid_coords(const spops_pyramid *pyramid, int32_t level)
{
    if (pyramid == NULL || level < 0 || level >= pyramid->choices.num_levels) return NULL;
    return pyramid->levels[level];
}

const spops_kernel_map *spops_pyramid_map(const spops_pyramid *pyramid,
                                          spops_pyramid_relation relation, int32_t level)
{
    if (pyramid == NULL || level < 0 || level >= pyramid->choices.num_levels) return NULL;
    switch (relation) {
    case SPOPS_PYRAMID_WITHIN: return pyramid->within[level];
    case SPOPS_PYRAMID_DOWN: return pyramid->down[level];
    case SPOPS_PYRAMID_UP: return pyramid->up[level];
    }
    return NULL;
}

spops_status spops_pyramid_get_info_sync(spops_context *ctx, const spops_pyramid *p,
                                         spops_pyramid_info *info)
{
    static const char call[] = "pyramid_get_info_sync";
    spops_pyramid_info found = spops_pyramid_info_default();
    int32_t overflow_level = -1;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "pyramid", p));
    SPOPS_OUTER_CALL(ctx, call, own_names);
    found.num_levels = p->choices.num_levels;
    for (int32_t level = 0; level < p->choices.num_levels; ++level) {
        spops_coords_info coords = spops_coords_info_default();
        spops_kernel_map_info map = spops_kernel_map_info_default();
        SPOPS_TRY(spops_note_overflow(spops_coords_get_info_sync(ctx, p->levels[level], &coords),
                                      level, &overflow_level));
        found.num_rows[level] = coords.num_rows;
        found.max_rows[level] = coords.max_rows;
        if (p->within[level] != NULL) {
            SPOPS_TRY(
                spops_note_overflow(spops_kernel_map_get_info_sync(ctx, p->within[level], &map),
                                    level, &overflow_level));
            found.num_pairs[level] = map.num_pairs;
            found.max_pairs[level] = map.max_pairs;
        }
        if (p->down[level] != NULL) {
            SPOPS_TRY(spops_note_overflow(spops_kernel_map_get_info_sync(ctx, p->down[level], &map),
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
