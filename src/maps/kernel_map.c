// SPDX-License-Identifier: Apache-2.0
// Kernel maps: argument checks, allocation, the order in which the backend builds a map's parts,
// and what can be asked of a map.
#include <string.h>

#include "igemm/igemm_args.h"
#include "maps/kernel_maps.h"
#include "relation/relation.h"

#define FOR_CONV (SPOPS_MAP_FOR_CONV | SPOPS_MAP_FOR_CONV_BACKWARD) // stand for others
#define FOR_ONE  SPOPS_MAP_FOR_ONE_CONV                             // likewise, and stays
#define ALL_CONTENTS                                                                               \
    (SPOPS_MAP_TABLE | SPOPS_MAP_ORDER | SPOPS_MAP_PAIRS | SPOPS_MAP_CSR | SPOPS_MAP_REVERSE |     \
     FOR_CONV | FOR_ONE)
#define DEFAULT_TILE_ROWS 128

// Fields of a description.
enum {
    KIND,
    MAX_IN,
    MAX_OUT,
    MAX_PAIRS,
    CONTENTS,
    TILE_ROWS,
    NO_SYMMETRY,
    NUM_TAPS,
    DIMS,
    SIZE,
    STRIDE = SIZE + SPOPS_MAX_DIMS,
    PADDING = STRIDE + SPOPS_MAX_DIMS,
    DILATION = PADDING + SPOPS_MAX_DIMS,
    NUM_FIELDS = DILATION + SPOPS_MAX_DIMS
};

static void put_kernel(const spops_kernel_shape *kernel, int64_t *fields)
{
    fields[DIMS] = kernel->dims;
    spops_plan_put_i32s(fields + SIZE, kernel->size, SPOPS_MAX_DIMS);
    spops_plan_put_i32s(fields + STRIDE, kernel->stride, SPOPS_MAX_DIMS);
    spops_plan_put_i32s(fields + PADDING, kernel->padding, SPOPS_MAX_DIMS);
    spops_plan_put_i32s(fields + DILATION, kernel->dilation, SPOPS_MAX_DIMS);
}

// The capacity of a reserved map's pairs.
static int64_t max_pairs_of(const spops_map_choices *c, int64_t max_out)
{
    if (!c->all_pairs) return c->max_pairs;
    return max_out > SPOPS_MAX_COUNT / c->taps.num_taps ? SPOPS_MAX_COUNT
                                                        : max_out * c->taps.num_taps;
}

static void fields_of(const spops_map_choices *c, int64_t max_in, int64_t max_out,
                      int64_t fields[NUM_FIELDS])
{
    fields[KIND] = c->kind;
    fields[MAX_IN] = max_in;
    fields[MAX_OUT] = max_out;
    fields[MAX_PAIRS] = max_pairs_of(c, max_out);
    fields[CONTENTS] = c->contents;
    fields[TILE_ROWS] = c->tile_rows;
    fields[NO_SYMMETRY] = c->no_symmetry;
    fields[NUM_TAPS] = c->taps.num_taps;
    put_kernel(&c->kernel, fields);
}

static void put_fields(spops_kernel_map *map)
{
    const spops_map_arrays *a = &map->arrays;
    int64_t *fields = map->base.fields;
    fields[KIND] = map->kind;
    fields[MAX_IN] = a->in.max_rows;
    fields[MAX_OUT] = a->out.max_rows;
    fields[MAX_PAIRS] = a->max_pairs;
    fields[CONTENTS] = map->contents;
    fields[TILE_ROWS] = a->tile_rows;
    fields[NO_SYMMETRY] = a->no_symmetry;
    fields[NUM_TAPS] = a->taps.num_taps;
    put_kernel(&map->kernel, fields);
}

// ---- Checks -------------------------------------------------------------------------------------

// A submanifold's taps surround their centre.
static spops_status centre_taps(spops_context *ctx, const char *call, spops_taps *taps)
{
    for (int a = 0; a < taps->dims; ++a) {
        const int64_t centre = (int64_t)taps->dilation[a] * (taps->size[a] / 2);
        SPOPS_REQUIRE(ctx, taps->size[a] % 2 == 1,
                      "%s: kernel.size[%d] is %" PRId32 ", expected an odd number (submanifold)",
                      call, a, taps->size[a]);
        SPOPS_REQUIRE(ctx, taps->stride[a] == 1,
                      "%s: kernel.stride[%d] is %" PRId32 ", expected 1 (submanifold)", call, a,
                      taps->stride[a]);
        SPOPS_REQUIRE(ctx, taps->padding[a] == 0 || taps->padding[a] == centre,
                      "%s: kernel.padding[%d] is %" PRId32 ", expected 0 or %" PRId64
                      " (submanifold)",
                      call, a, taps->padding[a], centre);
        SPOPS_REQUIRE(ctx, centre <= INT32_MAX,
                      "%s: kernel.dilation[%d] is %" PRId32 ", expected at most %d (submanifold)",
                      call, a, taps->dilation[a], INT32_MAX / (SPOPS_MAX_KERNEL_SIZE / 2));
        taps->padding[a] = (int32_t)centre;
    }
    return SPOPS_STATUS_OK;
}

static bool is_power_of_two(int32_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

int32_t spops_map_contents(const spops_context *ctx, int32_t contents)
{
    const spops_igemm_scratch_args any = {0};
    const bool backward = (contents & SPOPS_MAP_FOR_CONV_BACKWARD) != 0;
    const bool igemm = ctx->backend->igemm_exists != NULL && ctx->backend->igemm_exists(ctx, &any);
    const int32_t others = contents & ~FOR_CONV;
    const int32_t ordered = SPOPS_MAP_TABLE | SPOPS_MAP_ORDER;

    if ((contents & (FOR_CONV | FOR_ONE)) == 0 || (contents & ~ALL_CONTENTS) != 0) return contents;
    if (others == contents && (contents & ordered) == ordered) return contents;
    if (igemm && others == contents) return contents | ordered;
    contents = others | SPOPS_MAP_TABLE | SPOPS_MAP_PAIRS;
    return igemm ? contents | SPOPS_MAP_ORDER | (backward ? SPOPS_MAP_REVERSE : 0) : contents;
}

static spops_status read_options(spops_context *ctx, const char *call,
                                 const spops_kernel_map_options *options, spops_map_choices *c)
{
    spops_kernel_map_options o;
    memset(&o, 0, sizeof o);
    SPOPS_TRY(spops_read_options(ctx, call, options, &o, sizeof o));
    SPOPS_REQUIRE(ctx, (o.contents & ~ALL_CONTENTS) == 0,
                  "%s: contents is %" PRId32 ", expected a sum of SPOPS_MAP_* (0 to %d)", call,
                  o.contents, ALL_CONTENTS);
    c->contents =
        spops_map_contents(ctx, o.contents == 0 ? SPOPS_MAP_FOR_CONV_BACKWARD : o.contents);
    c->all_pairs =
        (o.contents == 0 || (o.contents & (FOR_CONV | FOR_ONE)) != 0) && o.max_pairs == 0;
    if ((c->contents & ~SPOPS_MAP_REVERSE) == 0) c->contents |= SPOPS_MAP_TABLE;
    if (c->contents & SPOPS_MAP_ORDER) c->contents |= SPOPS_MAP_TABLE;
    if (c->contents & SPOPS_MAP_CSR) c->contents |= SPOPS_MAP_PAIRS;
    c->tile_rows = o.tile_rows == 0 ? DEFAULT_TILE_ROWS : o.tile_rows;
    SPOPS_REQUIRE(ctx, c->tile_rows >= 8 && c->tile_rows <= 1024 && is_power_of_two(c->tile_rows),
                  "%s: tile_rows is %" PRId32 ", expected a power of two from 8 to 1024", call,
                  o.tile_rows);
    SPOPS_TRY(spops_check_count(ctx, call, "max_pairs", o.max_pairs));
    SPOPS_REQUIRE(ctx, o.no_symmetry == 0 || o.no_symmetry == 1,
                  "%s: no_symmetry is %" PRId32 ", expected 0 or 1", call, o.no_symmetry);
    SPOPS_TRY(spops_check_reserved(ctx, call, o.reserved));
    c->max_pairs = o.max_pairs;
    c->memory = o.memory;
    c->no_symmetry = o.no_symmetry != 0;
    return SPOPS_STATUS_OK;
}

static spops_status check_kind(spops_context *ctx, const char *call, spops_kernel_map_kind kind)
{
    SPOPS_REQUIRE(ctx, kind >= SPOPS_MAP_SUBMANIFOLD && kind <= SPOPS_MAP_TRANSPOSED,
                  "%s: kind is %d, expected %d to %d", call, (int)kind, (int)SPOPS_MAP_SUBMANIFOLD,
                  (int)SPOPS_MAP_TRANSPOSED);
    return SPOPS_STATUS_OK;
}

spops_status spops_map_read_choices(spops_context *ctx, const char *call,
                                    spops_kernel_map_kind kind, const spops_kernel_shape *kernel,
                                    int32_t dims, const spops_kernel_map_options *options,
                                    spops_map_choices *choices)
{
    memset(choices, 0, sizeof *choices);
    SPOPS_TRY(check_kind(ctx, call, kind));
    SPOPS_TRY(spops_kernel_shape_read(ctx, call, kernel, dims, &choices->taps));
    choices->kind = kind;
    choices->kernel.struct_size = sizeof choices->kernel;
    choices->kernel.dims = dims;
    for (int a = 0; a < dims; ++a) {
        choices->kernel.size[a] = choices->taps.size[a];
        choices->kernel.stride[a] = choices->taps.stride[a];
        choices->kernel.padding[a] = choices->taps.padding[a];
        choices->kernel.dilation[a] = choices->taps.dilation[a];
    }
    if (kind == SPOPS_MAP_SUBMANIFOLD) SPOPS_TRY(centre_taps(ctx, call, &choices->taps));
    return read_options(ctx, call, options, choices);
}

// ---- Making a map -------------------------------------------------------------------------------

// What a side needs of its own: tables where they are a part or lead to one.
static bool reverse_lists(const spops_kernel_map *map)
{
    return (map->contents & SPOPS_MAP_REVERSE) && (map->contents & SPOPS_MAP_CSR);
}

static bool needs_reverse_table(const spops_kernel_map *map)
{
    return !map->arrays.in.mirrored && (map->contents & SPOPS_MAP_REVERSE) &&
           (map->contents & (SPOPS_MAP_TABLE | SPOPS_MAP_CSR));
}

static void carve_table(const spops_map_arrays *a, spops_map_side *side, spops_carver *c)
{
    side->table = spops_carve(c, side->max_rows, a->table_stride, sizeof *side->table);
    side->masks = spops_carve(c, side->max_rows, a->mask_words, sizeof *side->masks);
}

static void carve_tables(spops_kernel_map *map, spops_carver *c)
{
    carve_table(&map->arrays, &map->arrays.out, c);
    if (needs_reverse_table(map)) carve_table(&map->arrays, &map->arrays.in, c);
}

static void carve_order(const spops_map_arrays *a, spops_map_side *side, spops_carver *c)
{
    side->order = spops_carve(c, side->max_rows, 1, sizeof *side->order);
    side->tile_masks = spops_carve(c, side->num_tiles, a->mask_words, sizeof *side->tile_masks);
    side->tile_order = spops_carve(c, side->num_tiles, 1, sizeof *side->tile_order);
}

static void carve_kernel_map(spops_plan *plan, spops_carver *c)
{
    spops_kernel_map *map = (spops_kernel_map *)plan;
    spops_map_arrays *a = &map->arrays;
    const size_t begin = c->used;
    a->state = spops_carve(c, 1, 1, sizeof *a->state);
    a->out.num_rows = a->state == NULL ? NULL : &a->state->num_out;
    a->in.num_rows = a->state == NULL ? NULL : &a->state->num_in;
    a->tap_counts = spops_carve(c, a->taps.num_taps, 1, sizeof *a->tap_counts);
    if (map->contents & SPOPS_MAP_TABLE) carve_tables(map, c);
    if (map->contents & SPOPS_MAP_ORDER) {
        carve_order(a, &a->out, c);
        if (needs_reverse_table(map)) carve_order(a, &a->in, c);
    }
    if (map->contents & SPOPS_MAP_PAIRS)
        a->tap_offsets = spops_carve(c, a->taps.num_taps + 1, 1, sizeof *a->tap_offsets);
    if (map->contents & SPOPS_MAP_CSR)
        a->out.offsets = spops_carve(c, a->out.max_rows + 1, 1, sizeof *a->out.offsets);
    if (reverse_lists(map))
        a->in.offsets = spops_carve(c, a->in.max_rows + 1, 1, sizeof *a->in.offsets);
    map->own = spops_plan_carved(c, begin, &map->own_bytes);
}

static void carve_pairs(spops_plan *plan, spops_carver *c)
{
    spops_kernel_map *map = (spops_kernel_map *)plan;
    spops_map_arrays *a = &map->arrays;
    a->in_rows = spops_carve(c, a->max_pairs, 1, sizeof *a->in_rows);
    a->out_rows = spops_carve(c, a->max_pairs, 1, sizeof *a->out_rows);
    if (!(map->contents & SPOPS_MAP_CSR)) return;
    a->out.row_taps = spops_carve(c, a->max_pairs, 2, sizeof *a->out.row_taps);
    a->out.pair_ids = spops_carve(c, a->max_pairs, 1, sizeof *a->out.pair_ids);
    if (!reverse_lists(map)) return;
    a->in.row_taps = spops_carve(c, a->max_pairs, 2, sizeof *a->in.row_taps);
    a->in.pair_ids = spops_carve(c, a->max_pairs, 1, sizeof *a->in.pair_ids);
}

static void carve_workspace(spops_plan *plan, spops_carver *c)
{
    spops_kernel_map *map = (spops_kernel_map *)plan;
    const spops_map_workspace_args args = {.map = &map->arrays, .contents = map->contents};
    if (!(map->contents & SPOPS_MAP_TABLE)) carve_tables(map, c);
    map->backend_workspace =
        spops_carve(c, 1, 1, plan->ctx->backend->map_workspace_bytes(plan->ctx, &args));
}

static spops_kernel_map_side view_side(const spops_kernel_map *map, const spops_map_side *side)
{
    const bool table = (map->contents & SPOPS_MAP_TABLE) != 0;
    spops_kernel_map_side view;
    memset(&view, 0, sizeof view);
    view.struct_size = sizeof view;
    view.max_rows = side->max_rows;
    view.num_rows = side->num_rows;
    view.table = table ? side->table : NULL;
    view.masks = table ? side->masks : NULL;
    view.mirrored = side->mirrored && side->table != NULL;
    view.num_tiles = (int32_t)side->num_tiles;
    view.order = side->order;
    view.tile_masks = side->tile_masks;
    view.tile_order = side->tile_order;
    view.offsets = side->offsets;
    view.row_taps = side->row_taps;
    view.pair_ids = side->pair_ids;
    return view;
}

// After arrays were carved: what views of the map show.
static void set_views(spops_kernel_map *map)
{
    put_fields(map);
    map->out = view_side(map, &map->arrays.out);
    map->in = view_side(map, &map->arrays.in);
}

// Arrays of a side that another one's are, and views.
static void place_map(spops_plan *plan)
{
    spops_kernel_map *map = (spops_kernel_map *)plan;
    spops_map_arrays *a = &map->arrays;
    if ((map->contents & SPOPS_MAP_REVERSE) && a->in.mirrored) {
        a->in.table = a->out.table;
        a->in.masks = a->out.masks;
        a->in.order = a->out.order;
        a->in.tile_masks = a->out.tile_masks;
        a->in.tile_order = a->out.tile_order;
    }
    set_views(map);
}

static spops_map_side side_of(int64_t max_rows, int32_t tile_rows)
{
    spops_map_side side;
    memset(&side, 0, sizeof side);
    side.max_rows = max_rows;
    side.num_tiles = (max_rows + tile_rows - 1) / tile_rows;
    return side;
}

static spops_status set_sizes(spops_context *ctx, const char *call,
                              const spops_map_choices *choices, int64_t num_in, int64_t num_out,
                              spops_kernel_map *map)
{
    spops_map_arrays *a = &map->arrays;

    SPOPS_REQUIRE_SLOT(ctx, call, map_search);
    map->kind = choices->kind;
    map->kernel = choices->kernel;
    map->contents = choices->contents;
    a->taps = choices->taps;
    a->transposed = choices->kind == SPOPS_MAP_TRANSPOSED;
    a->symmetric = choices->kind == SPOPS_MAP_SUBMANIFOLD;
    a->no_symmetry = choices->no_symmetry;
    a->mask_words = (a->taps.num_taps + 31) / 32;
    a->table_stride = (a->taps.num_taps + 3) / 4 * 4;
    a->tile_rows = choices->tile_rows;
    a->mask_order = spops_mask_order_of(&a->taps, a->symmetric, (map->contents & FOR_ONE) != 0);
    if (map->base.refillable && (map->contents & SPOPS_MAP_PAIRS))
        a->max_pairs = max_pairs_of(choices, num_out);
    a->out = side_of(num_out, a->tile_rows);
    a->in = side_of(num_in, a->tile_rows);
    a->in.mirrored = a->symmetric;
    put_fields(map);
    return SPOPS_STATUS_OK;
}

spops_status spops_map_alloc(spops_context *ctx, const char *call, const spops_map_choices *choices,
                             int64_t num_in, int64_t num_out, spops_kernel_map **out)
{
    spops_status status = SPOPS_STATUS_OK;
    spops_kernel_map *map;

    *out = NULL;
    SPOPS_TRY(spops_check_no_memory(ctx, call, choices->memory));
    map = spops_plan_alloc(ctx, SPOPS_PLAN_KERNEL_MAP);
    if (map == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    SPOPS_TRY_GOTO(set_sizes(ctx, call, choices, num_in, num_out, map), status, fail);
    SPOPS_TRY_GOTO(spops_plan_give_memory(ctx, call, &map->base), status, fail);
    *out = map;
    return SPOPS_STATUS_OK;

fail:
    spops_kernel_map_destroy(map);
    return status;
}

// The slots, into the maps' own arrays.
spops_status spops_maps_enqueue_search(spops_context *ctx, const spops_kernel_map *const *maps,
                                       const spops_coords *const *in,
                                       const spops_coords *const *out, int32_t num)
{
    spops_map_search_args each[SPOPS_MAPS_AT_ONCE];
    const spops_map_searches_args args = {num, each};
    if (num == 0) return SPOPS_STATUS_OK;
    for (int32_t i = 0; i < num; ++i)
        each[i] = (spops_map_search_args){.in = &in[i]->arrays,
                                          .out = &out[i]->arrays,
                                          .map = &maps[i]->arrays,
                                          .workspace = maps[i]->backend_workspace};
    return ctx->backend->map_search(ctx, &args);
}

static spops_status reverse_sides(spops_context *ctx, const spops_map_reverse_args *each,
                                  int32_t num)
{
    const spops_map_reverses_args args = {num, each};
    return num == 0 ? SPOPS_STATUS_OK : ctx->backend->map_reverse(ctx, &args);
}

static spops_map_order_args order_of(const spops_kernel_map *map, const spops_map_side *side)
{
    return (spops_map_order_args){
        .map = &map->arrays, .side = side, .workspace = map->backend_workspace};
}

static spops_status put_pairs(spops_context *ctx, const spops_kernel_map *const *maps, int32_t num)
{
    spops_map_pairs_args each[SPOPS_MAPS_AT_ONCE];
    spops_map_all_pairs_args args = {0, each};
    for (int32_t i = 0; i < num; ++i)
        if (maps[i]->contents & SPOPS_MAP_PAIRS)
            each[args.num++] = (spops_map_pairs_args){.map = &maps[i]->arrays,
                                                      .workspace = maps[i]->backend_workspace};
    return args.num == 0 ? SPOPS_STATUS_OK : ctx->backend->map_pairs(ctx, &args);
}

// All tables of the inputs that are to be there, from those of the outputs.
static spops_status reverse_all(spops_context *ctx, const spops_kernel_map *const *maps,
                                int32_t num)
{
    spops_map_reverse_args reverses[SPOPS_MAPS_AT_ONCE];
    int32_t n = 0;
    for (int32_t i = 0; i < num; ++i) {
        const spops_map_arrays *a = &maps[i]->arrays;
        if (needs_reverse_table(maps[i]))
            reverses[n++] = (spops_map_reverse_args){
                .map = a, .from = &a->out, .to = &a->in, .workspace = maps[i]->backend_workspace};
    }
    return reverse_sides(ctx, reverses, n);
}

static spops_status order_all(spops_context *ctx, const spops_kernel_map *const *maps, int32_t num)
{
    spops_map_order_args orders[2 * SPOPS_MAPS_AT_ONCE];
    spops_map_orders_args args = {0, orders};
    for (int32_t i = 0; i < num; ++i) {
        if (!(maps[i]->contents & SPOPS_MAP_ORDER)) continue;
        orders[args.num++] = order_of(maps[i], &maps[i]->arrays.out);
        if (needs_reverse_table(maps[i]))
            orders[args.num++] = order_of(maps[i], &maps[i]->arrays.in);
    }
    return args.num == 0 ? SPOPS_STATUS_OK : ctx->backend->map_order(ctx, &args);
}

spops_status spops_maps_enqueue_sides(spops_context *ctx, const spops_kernel_map *const *maps,
                                      int32_t num)
{
    SPOPS_TRY(reverse_all(ctx, maps, num));
    return order_all(ctx, maps, num);
}

spops_status spops_maps_enqueue_lists(spops_context *ctx, const spops_kernel_map *const *maps,
                                      int32_t num)
{
    SPOPS_TRY(order_all(ctx, maps, num));
    return put_pairs(ctx, maps, num);
}

spops_status spops_maps_enqueue(spops_context *ctx, const spops_kernel_map *const *maps,
                                const spops_coords *const *in, const spops_coords *const *out,
                                int32_t num)
{
    SPOPS_TRY(spops_maps_enqueue_search(ctx, maps, in, out, num));
    SPOPS_TRY(reverse_all(ctx, maps, num));
    return spops_maps_enqueue_lists(ctx, maps, num);
}

static void free_workspace(spops_kernel_map *map)
{
    spops_plan_close(&map->base);
    map->backend_workspace = NULL;
    if (map->contents & SPOPS_MAP_TABLE) return;
    map->arrays.out.table = map->arrays.in.table = NULL;
    map->arrays.out.masks = map->arrays.in.masks = NULL;
}

spops_status spops_map_finish(spops_context *ctx, const char *call, spops_kernel_map *map)
{
    const spops_kernel_map *const of_one = map;
    if (map->contents & SPOPS_MAP_PAIRS) {
        if (map->state.num_pairs > SPOPS_MAX_COUNT)
            return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                              "%s: the map has %" PRId64 " pairs, expected at most %" PRId64, call,
                              map->state.num_pairs, SPOPS_MAX_COUNT);
        map->arrays.max_pairs = map->state.num_pairs;
        SPOPS_TRY(spops_plan_open_late(ctx, call, &map->base));
        SPOPS_TRY(put_pairs(ctx, &of_one, 1));
    }
    SPOPS_TRY(spops_plan_wait_made(ctx));
    free_workspace(map);
    set_views(map);
    return SPOPS_STATUS_OK;
}

// in and out of a call, checked; *out becomes in where it may be left out.
static spops_status check_sets(spops_context *ctx, const char *call, spops_kernel_map_kind kind,
                               const spops_coords *in, const spops_coords **out)
{
    SPOPS_TRY(spops_plan_check(ctx, call, "in", in));
    if (kind == SPOPS_MAP_SUBMANIFOLD) {
        SPOPS_REQUIRE(ctx, *out == NULL || *out == in,
                      "%s: out is another set than in, expected in or NULL (submanifold)", call);
        *out = in;
        return SPOPS_STATUS_OK;
    }
    SPOPS_TRY(spops_plan_check(ctx, call, "out", *out));
    SPOPS_REQUIRE(ctx, (*out)->arrays.layout.dims == in->arrays.layout.dims,
                  "%s: out has %" PRId32 " axes, expected %" PRId32 " as in has", call,
                  (*out)->arrays.layout.dims, in->arrays.layout.dims);
    return SPOPS_STATUS_OK;
}

// What a map between two sets is made with. *out becomes in where the kind has one set.
static spops_status read_between(spops_context *ctx, const char *call, spops_kernel_map_kind kind,
                                 const spops_kernel_shape *kernel, const spops_coords *in,
                                 const spops_coords **out, const spops_kernel_map_options *options,
                                 spops_map_choices *choices)
{
    SPOPS_TRY(check_kind(ctx, call, kind));
    SPOPS_TRY(check_sets(ctx, call, kind, in, out));
    return spops_map_read_choices(ctx, call, kind, kernel, in->arrays.layout.dims, options,
                                  choices);
}

spops_status spops_kernel_map_create(spops_context *ctx, spops_kernel_map_kind kind,
                                     const spops_kernel_shape *kernel, const spops_coords *in,
                                     const spops_coords *out,
                                     const spops_kernel_map_options *options,
                                     spops_kernel_map **map)
{
    static const char call[] = "kernel_map_create";
    spops_status status = SPOPS_STATUS_OK;
    spops_map_choices choices;
    const spops_kernel_map *of_one;
    spops_kernel_map *m = NULL;

    SPOPS_BEGIN_CREATE(ctx, call, map);
    SPOPS_TRY(read_between(ctx, call, kind, kernel, in, &out, options, &choices));
    SPOPS_TRY(spops_map_alloc(ctx, call, &choices, in->arrays.max_rows, out->arrays.max_rows, &m));
    of_one = m;
    SPOPS_TRY_GOTO(spops_maps_enqueue_search(ctx, &of_one, &in, &out, 1), status, fail);
    SPOPS_TRY_GOTO(spops_maps_enqueue_sides(ctx, &of_one, 1), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->download(ctx, &m->state, m->arrays.state, sizeof m->state), status,
                   fail);
    SPOPS_TRY_GOTO(spops_map_finish(ctx, call, m), status, fail);
    *map = m;
    return SPOPS_STATUS_OK;

fail:
    spops_kernel_map_destroy(m);
    return status;
}

// Kind of the map whose inputs are another's outputs. A submanifold's mirrored taps are a
// transposed layer's.
static spops_kernel_map_kind inverse_kind(spops_kernel_map_kind kind)
{
    return kind == SPOPS_MAP_TRANSPOSED ? SPOPS_MAP_CONVOLUTION : SPOPS_MAP_TRANSPOSED;
}

// The state of `from` with its sides exchanged, where it lies: nothing waits. Of a map that shows another
// one's arrays from the other side, num_rows say which side is which.
static spops_status copy_state_inverse(spops_context *ctx, const spops_kernel_map *map,
                                       const spops_map_arrays *from)
{
    spops_map_state *to = map->arrays.state;
    SPOPS_TRY(ctx->backend->copy(ctx, to, from->state, sizeof *to));
    SPOPS_TRY(ctx->backend->copy(ctx, &to->num_out, from->in.num_rows, sizeof to->num_out));
    return ctx->backend->copy(ctx, &to->num_in, from->out.num_rows, sizeof to->num_in);
}

spops_status spops_kernel_map_create_inverse(spops_context *ctx, const spops_kernel_map *of,
                                             const spops_kernel_map_options *options,
                                             spops_kernel_map **map)
{
    static const char call[] = "kernel_map_create_inverse";
    spops_status status = SPOPS_STATUS_OK;
    spops_map_choices choices;
    spops_map_reverse_args reverse;
    const spops_kernel_map *of_one;
    spops_kernel_map *m = NULL;
    const spops_map_arrays *from;

    SPOPS_BEGIN_CREATE(ctx, call, map);
    SPOPS_TRY(spops_plan_check(ctx, call, "of", of));
    SPOPS_REQUIRE(ctx, !of->base.refillable, "%s: of was made by kernel_map_reserve", call);
    SPOPS_REQUIRE(ctx, of->contents & SPOPS_MAP_TABLE,
                  "%s: of has no table, expected SPOPS_MAP_TABLE", call);
    from = &of->arrays;
    memset(&choices, 0, sizeof choices);
    SPOPS_TRY(read_options(ctx, call, options, &choices));
    choices.kind = inverse_kind(of->kind);
    choices.taps = from->taps;
    choices.kernel = of->kernel;
    for (int a = 0; a < from->taps.dims; ++a)
        choices.kernel.padding[a] = from->taps.padding[a];

    SPOPS_TRY(spops_map_alloc(ctx, call, &choices, from->out.max_rows, from->in.max_rows, &m));
    m->state = of->state;
    m->state.num_in = of->state.num_out;
    m->state.num_out = of->state.num_in;
    m->state.overflow = 0;
    SPOPS_TRY_GOTO(copy_state_inverse(ctx, m, from), status, fail);
    SPOPS_TRY_GOTO(ctx->backend->copy(ctx, m->arrays.tap_counts, from->tap_counts,
                                      (size_t)from->taps.num_taps * sizeof *from->tap_counts),
                   status, fail);
    reverse = (spops_map_reverse_args){.map = &m->arrays,
                                       .from = &from->out,
                                       .to = &m->arrays.out,
                                       .workspace = m->backend_workspace};
    of_one = m;
    SPOPS_TRY_GOTO(reverse_sides(ctx, &reverse, 1), status, fail);
    SPOPS_TRY_GOTO(spops_maps_enqueue_sides(ctx, &of_one, 1), status, fail);
    SPOPS_TRY_GOTO(spops_map_finish(ctx, call, m), status, fail);
    *map = m;
    return SPOPS_STATUS_OK;

fail:
    spops_kernel_map_destroy(m);
    return status;
}

spops_status spops_map_share_inverse(spops_context *ctx, const spops_kernel_map *of,
                                     spops_kernel_map **out)
{
    spops_kernel_map *map = spops_plan_alloc(ctx, SPOPS_PLAN_KERNEL_MAP);
    *out = map;
    if (map == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    map->base.refillable = of->base.refillable;
    map->base.shares = true;
    spops_map_show_inverse(of, map);
    return SPOPS_STATUS_OK;
}

void spops_map_show_inverse(const spops_kernel_map *of, spops_kernel_map *map)
{
    const spops_map_arrays *from = &of->arrays;
    spops_map_arrays *a = &map->arrays;

    map->kind = inverse_kind(of->kind);
    map->kernel = of->kernel;
    for (int axis = 0; axis < from->taps.dims; ++axis)
        map->kernel.padding[axis] = from->taps.padding[axis];
    map->contents = of->contents;
    map->state = of->state;
    map->state.num_in = of->state.num_out;
    map->state.num_out = of->state.num_in;
    *a = *from;
    a->transposed = map->kind == SPOPS_MAP_TRANSPOSED;
    a->out = from->in;
    a->in = from->out;
    a->in_rows = from->out_rows;
    a->out_rows = from->in_rows;
    set_views(map);
}

// ---- Into capacities ----------------------------------------------------------------------------

static spops_status empty_kernel_map(spops_context *ctx, spops_plan *plan)
{
    const spops_kernel_map *map = (const spops_kernel_map *)plan;
    return ctx->backend->fill_zero(ctx, map->own, map->own_bytes);
}

// What spops_update fills the map from.
static void remember_sets(spops_kernel_map *map, const spops_coords *in, const spops_coords *out)
{
    map->base.parents[0] = &in->base;
    map->base.parents[1] = &out->base;
}

spops_status spops_kernel_map_reserve(spops_context *ctx, spops_kernel_map_kind kind,
                                      const spops_kernel_shape *kernel, const spops_coords *in,
                                      const spops_coords *out,
                                      const spops_kernel_map_options *options,
                                      spops_kernel_map **map)
{
    static const char call[] = "kernel_map_reserve";
    spops_map_choices c;
    int64_t fields[NUM_FIELDS];

    SPOPS_BEGIN_CREATE(ctx, call, map);
    SPOPS_TRY(read_between(ctx, call, kind, kernel, in, &out, options, &c));
    fields_of(&c, in->arrays.max_rows, out->arrays.max_rows, fields);
    SPOPS_TRY(spops_plan_reserve(ctx, call, SPOPS_PLAN_KERNEL_MAP, fields, c.memory, map));
    if (*map != NULL) remember_sets(*map, in, out);
    return SPOPS_STATUS_OK;
}

static spops_status read_kernel_map(spops_context *ctx, const char *call, spops_plan *plan)
{
    const int64_t *fields = plan->fields;
    const spops_plan_kind of = SPOPS_PLAN_KERNEL_MAP;
    spops_kernel_map_options o = spops_kernel_map_options_default();
    spops_kernel_shape kernel = spops_kernel_shape_default();
    spops_map_choices c;
    int32_t kind;

    SPOPS_TRY(spops_coords_check_dims(ctx, call, fields[DIMS]));
    kernel.dims = (int32_t)fields[DIMS];
    SPOPS_TRY(spops_plan_get_i32s(ctx, call, of, fields, KIND, 1, &kind));
    SPOPS_TRY(spops_plan_get_i32s(ctx, call, of, fields, SIZE, SPOPS_MAX_DIMS, kernel.size));
    SPOPS_TRY(spops_plan_get_i32s(ctx, call, of, fields, STRIDE, SPOPS_MAX_DIMS, kernel.stride));
    SPOPS_TRY(spops_plan_get_i32s(ctx, call, of, fields, PADDING, SPOPS_MAX_DIMS, kernel.padding));
    SPOPS_TRY(
        spops_plan_get_i32s(ctx, call, of, fields, DILATION, SPOPS_MAX_DIMS, kernel.dilation));
    SPOPS_TRY(spops_check_count(ctx, call, "max_in", fields[MAX_IN]));
    SPOPS_TRY(spops_check_count(ctx, call, "max_out", fields[MAX_OUT]));
    SPOPS_TRY(spops_plan_get_i32s(ctx, call, of, fields, CONTENTS, 1, &o.contents));
    SPOPS_TRY(spops_plan_get_i32s(ctx, call, of, fields, TILE_ROWS, 1, &o.tile_rows));
    SPOPS_TRY(spops_plan_get_i32s(ctx, call, of, fields, NO_SYMMETRY, 1, &o.no_symmetry));
    o.max_pairs = fields[MAX_PAIRS];
    SPOPS_TRY(spops_map_read_choices(ctx, call, (spops_kernel_map_kind)kind, &kernel, kernel.dims,
                                     &o, &c));
    SPOPS_TRY(spops_plan_derive(ctx, call, plan, NUM_TAPS, c.taps.num_taps));
    return set_sizes(ctx, call, &c, fields[MAX_IN], fields[MAX_OUT], (spops_kernel_map *)plan);
}

spops_status spops_kernel_map_update(spops_context *ctx, spops_kernel_map *map,
                                     const spops_coords *in, const spops_coords *out)
{
    static const char call[] = "kernel_map_update";
    const spops_kernel_map *of_one;
    const spops_map_arrays *a;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "map", map));
    SPOPS_TRY(check_sets(ctx, call, map->kind, in, &out));
    a = &map->arrays;
    SPOPS_REQUIRE(ctx, in->arrays.layout.dims == a->taps.dims,
                  "%s: in has %" PRId32 " axes, expected %" PRId32, call, in->arrays.layout.dims,
                  a->taps.dims);
    SPOPS_REQUIRE(ctx,
                  in->arrays.max_rows == a->in.max_rows && out->arrays.max_rows == a->out.max_rows,
                  "%s: in and out have capacities of %" PRId64 " and %" PRId64
                  " rows, expected %" PRId64 " and %" PRId64,
                  call, in->arrays.max_rows, out->arrays.max_rows, a->in.max_rows, a->out.max_rows);
    remember_sets(map, in, out);
    of_one = map;
    return spops_maps_enqueue(ctx, &of_one, &in, &out, 1);
}

static spops_status update_kernel_maps(spops_context *ctx, spops_plan *const *plans, int32_t num)
{
    const spops_kernel_map *maps[SPOPS_MAPS_AT_ONCE];
    const spops_coords *in[SPOPS_MAPS_AT_ONCE], *out[SPOPS_MAPS_AT_ONCE];
    int32_t n = 0;

    for (int32_t i = 0; i < num; ++i) {
        maps[n] = (const spops_kernel_map *)plans[i];
        in[n] = (const spops_coords *)plans[i]->parents[0];
        out[n] = (const spops_coords *)plans[i]->parents[1];
        if (++n < SPOPS_MAPS_AT_ONCE && i + 1 < num) continue;
        SPOPS_TRY(spops_maps_enqueue(ctx, maps, in, out, n));
        n = 0;
    }
    return SPOPS_STATUS_OK;
}

static spops_status state_of_map(spops_context *ctx, const spops_plan *plan, int64_t *counts)
{
    const spops_kernel_map *map = (const spops_kernel_map *)plan;
    spops_map_state state;
    SPOPS_TRY(ctx->backend->download(ctx, &state, map->arrays.state, sizeof state));
    counts[0] = plan->shares ? state.num_in : state.num_out;
    counts[1] = plan->shares ? state.num_out : state.num_in;
    counts[2] = state.num_pairs;
    counts[3] = state.overflow;
    return SPOPS_STATUS_OK;
}

static void relation_of_kernel_map(const spops_plan *plan, spops_relation *r)
{
    const spops_kernel_map *map = (const spops_kernel_map *)plan;
    const spops_map_arrays *a = &map->arrays;

    r->num_keys = a->taps.num_taps;
    r->max_terms = a->max_pairs;
    r->most_of_source = map->kind == SPOPS_MAP_CONVOLUTION
                            ? spops_kernel_shape_num_candidates(&map->kernel, 0)
                            : a->taps.num_taps;
    r->symmetric = a->symmetric;
    for (int i = 0; i < SPOPS_NUM_SIDES; ++i) {
        const spops_map_side *side = i == SPOPS_SIDE_TARGET ? &a->out : &a->in;
        r->sides[i] = (spops_relation_side){
            .max_rows = side->max_rows,
            .num_rows = side->num_rows,
            .by_row = {side->offsets, side->row_taps, 2},
            .by_key = {a->tap_offsets, i == SPOPS_SIDE_TARGET ? a->out_rows : a->in_rows, 1},
            .order = side->pair_ids,
            .table = side->table,
            .table_stride = a->table_stride};
    }
}

const spops_plan_ops spops_kernel_map_plan_ops = {
    .handle_bytes = sizeof(struct spops_kernel_map),
    .num_fields = NUM_FIELDS,
    .read = read_kernel_map,
    .carve = carve_kernel_map,
    .carve_late = carve_pairs,
    .carve_workspace = carve_workspace,
    .ready = place_map,
    .empty = empty_kernel_map,
    .update = update_kernel_maps,
    .state = state_of_map,
    .relation = relation_of_kernel_map,
    .file = &spops_kernel_map_file,
};

// ---- What can be asked of a map -----------------------------------------------------------------

spops_status spops_kernel_map_get_view(spops_context *ctx, const spops_kernel_map *map,
                                       spops_kernel_map_view *view)
{
    static const char call[] = "kernel_map_get_view";
    spops_kernel_map_view found = spops_kernel_map_view_default();
    const spops_map_arrays *a;
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "map", map));
    a = &map->arrays;
    found.num_taps = a->taps.num_taps;
    found.mask_words = a->mask_words;
    found.table_stride = a->table_stride;
    found.tile_rows = a->tile_rows;
    found.out = &map->out;
    found.in = &map->in;
    found.tap_offsets = a->tap_offsets;
    found.in_rows = a->in_rows;
    found.out_rows = a->out_rows;
    found.max_pairs = a->max_pairs;
    found.tap_counts = a->tap_counts;
    return spops_write_struct(ctx, call, "view", view, &found, sizeof found);
}

spops_status spops_kernel_map_get_info_sync(spops_context *ctx, const spops_kernel_map *map,
                                            spops_kernel_map_info *info)
{
    static const char call[] = "kernel_map_get_info_sync";
    spops_kernel_map_info found;
    spops_map_state state;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_sync(ctx, call, "map", map));
    SPOPS_TRY(ctx->backend->download(ctx, &state, map->arrays.state, sizeof state));
    memset(&found, 0, sizeof found);
    found.kind = map->kind;
    found.contents = map->contents;
    found.kernel = &map->kernel;
    found.num_taps = map->arrays.taps.num_taps;
    found.num_in = map->base.shares ? state.num_out : state.num_in;
    found.num_out = map->base.shares ? state.num_in : state.num_out;
    found.num_pairs = state.num_pairs;
    found.max_pairs = map->arrays.max_pairs;
    found.overflow = state.overflow;
    SPOPS_TRY(spops_write_struct(ctx, call, "info", info, &found, sizeof found));
    if (state.overflow == 0) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_CAPACITY_EXCEEDED,
                      "%s: the map has %" PRId64 " pairs, max_pairs is %" PRId64, call,
                      state.num_pairs, map->arrays.max_pairs);
}
