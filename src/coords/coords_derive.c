// SPDX-License-Identifier: Apache-2.0
// Sets made from other sets: outputs of convolutions, unions, and what pruning leaves.
#include <string.h>

#include "coords/coords.h"

// ---- Kernels ------------------------------------------------------------------------------------

static spops_status check_axis(spops_context *ctx, const char *call, const char *name, int axis,
                               int32_t value, int32_t low, int32_t high)
{
    SPOPS_REQUIRE(ctx, value >= low && value <= high,
                  "%s: kernel.%s[%d] is %" PRId32 ", expected %" PRId32 " to %" PRId32, call, name,
                  axis, value, low, high);
    return SPOPS_STATUS_OK;
}

spops_status spops_kernel_shape_read(spops_context *ctx, const char *call,
                                     const spops_kernel_shape *kernel, int32_t dims,
                                     spops_taps *taps)
{
    spops_kernel_shape k;
    SPOPS_REQUIRE(ctx, kernel != NULL, "%s: kernel is NULL", call);
    memset(&k, 0, sizeof k);
    SPOPS_TRY(spops_read_struct(ctx, call, "kernel", kernel, &k, sizeof k));
    SPOPS_REQUIRE(ctx, k.dims == dims,
                  "%s: kernel.dims is %" PRId32 ", expected %" PRId32 " as the coordinates have",
                  call, k.dims, dims);
    memset(taps, 0, sizeof *taps);
    taps->dims = dims;
    taps->num_taps = 1;
    for (int a = 0; a < SPOPS_MAX_DIMS; ++a) {
        if (a < dims) {
            SPOPS_TRY(check_axis(ctx, call, "size", a, k.size[a], 1, SPOPS_MAX_KERNEL_SIZE));
            SPOPS_TRY(check_axis(ctx, call, "stride", a, k.stride[a], 1, INT32_MAX));
            SPOPS_TRY(check_axis(ctx, call, "dilation", a, k.dilation[a], 1, INT32_MAX));
        }
        taps->size[a] = a < dims ? k.size[a] : 1;
        taps->stride[a] = a < dims ? k.stride[a] : 1;
        taps->dilation[a] = a < dims ? k.dilation[a] : 1;
        taps->padding[a] = a < dims ? k.padding[a] : 0;
        taps->num_taps *= taps->size[a];
    }
    return SPOPS_STATUS_OK;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

// Most candidates that one row gives. A fine row meets, on each axis, the taps t with dilation * t
// in one class modulo stride: every (stride / gcd)-th at most.
static int64_t num_candidates(const spops_taps *taps, bool up)
{
    int64_t n = 1;
    if (up) return taps->num_taps;
    for (int a = 0; a < taps->dims; ++a) {
        const int64_t step = taps->stride[a] / common_divisor(taps->stride[a], taps->dilation[a]);
        n *= (taps->size[a] + step - 1) / step;
    }
    return n;
}

// As spops_kernel_shape_read, without a context to report to.
static bool read_quietly(const spops_kernel_shape *kernel, spops_taps *taps)
{
    if (kernel == NULL || kernel->dims < 1 || kernel->dims > SPOPS_MAX_DIMS) return false;
    return spops_kernel_shape_read(NULL, "kernel_shape", kernel, kernel->dims, taps) ==
           SPOPS_STATUS_OK;
}

int64_t spops_kernel_shape_num_taps(const spops_kernel_shape *kernel)
{
    spops_taps taps;
    return read_quietly(kernel, &taps) ? taps.num_taps : 0;
}

int64_t spops_kernel_shape_num_candidates(const spops_kernel_shape *kernel, int upsampled)
{
    spops_taps taps;
    return read_quietly(kernel, &taps) ? num_candidates(&taps, upsampled != 0) : 0;
}

// ---- Sources ------------------------------------------------------------------------------------

static spops_coords_source source_of(spops_coords_kind kind, const spops_coords *in)
{
    spops_coords_source source;
    memset(&source, 0, sizeof source);
    source.kind = kind;
    source.dims = in->arrays.layout.dims;
    source.max_items = source.max_candidates = in->arrays.max_rows;
    source.num_items = in->base.refillable ? spops_coords_num_rows(in) : NULL;
    source.rows = in->arrays.rows;
    return source;
}

static spops_status check_candidates(spops_context *ctx, const char *call, int64_t items,
                                     int64_t each)
{
    SPOPS_REQUIRE(ctx, items <= SPOPS_MAX_COUNT / each,
                  "%s: %" PRId64 " rows with up to %" PRId64
                  " candidates each, expected at most %" PRId64 " candidates",
                  call, items, each, SPOPS_MAX_COUNT);
    return SPOPS_STATUS_OK;
}

static spops_status window_source(spops_context *ctx, const char *call, spops_coords_kind kind,
                                  const spops_coords *in, const spops_kernel_shape *kernel,
                                  spops_coords_source *source)
{
    int64_t each;
    SPOPS_TRY(spops_plan_check(ctx, call, "in", in));
    *source = source_of(kind, in);
    SPOPS_TRY(spops_kernel_shape_read(ctx, call, kernel, source->dims, &source->taps));
    each = num_candidates(&source->taps, kind == SPOPS_COORDS_UP);
    SPOPS_TRY(check_candidates(ctx, call, source->max_items, each));
    source->max_candidates = source->max_items * each;
    return SPOPS_STATUS_OK;
}

static spops_status union_source(spops_context *ctx, const char *call, const spops_coords *a,
                                 const spops_coords *b, spops_coords_source *source)
{
    SPOPS_TRY(spops_plan_check(ctx, call, "a", a));
    SPOPS_TRY(spops_plan_check(ctx, call, "b", b));
    SPOPS_REQUIRE(ctx, a->arrays.layout.dims == b->arrays.layout.dims,
                  "%s: b has %" PRId32 " axes, expected %" PRId32 " as a has", call,
                  b->arrays.layout.dims, a->arrays.layout.dims);
    SPOPS_REQUIRE(ctx, a->arrays.max_rows <= SPOPS_MAX_COUNT - b->arrays.max_rows,
                  "%s: a and b have %" PRId64 " and %" PRId64 " rows, expected at most %" PRId64
                  " together",
                  call, a->arrays.max_rows, b->arrays.max_rows, SPOPS_MAX_COUNT);
    *source = source_of(SPOPS_COORDS_UNION, a);
    source->max_items_a = a->arrays.max_rows;
    source->max_items = source->max_candidates = a->arrays.max_rows + b->arrays.max_rows;
    source->num_items_b = b->base.refillable ? spops_coords_num_rows(b) : NULL;
    source->rows_b = b->arrays.rows;
    return SPOPS_STATUS_OK;
}

static spops_status kept_source(spops_context *ctx, const char *call, const spops_coords *in,
                                const uint8_t *keep, spops_coords_source *source)
{
    SPOPS_TRY(spops_plan_check(ctx, call, "in", in));
    SPOPS_REQUIRE(ctx, keep != NULL || in->arrays.max_rows == 0,
                  "%s: keep is NULL, expected %" PRId64 " elements", call, in->arrays.max_rows);
    *source = source_of(SPOPS_COORDS_KEPT, in);
    source->unique = true;
    source->keep = keep;
    return SPOPS_STATUS_OK;
}

// `num_taps` items of each row, and the rows themselves where the set grows.
static spops_status taps_source(spops_context *ctx, const char *call, spops_coords_kind kind,
                                const spops_coords *in, const spops_taps *taps, const uint8_t *keep,
                                spops_coords_source *source)
{
    const bool grows = kind == SPOPS_COORDS_GROWN;
    const int64_t rows = in->arrays.max_rows, each = taps->num_taps + (grows ? 1 : 0);
    SPOPS_REQUIRE(ctx, keep != NULL || rows == 0, "%s: %s is NULL, expected %" PRId64 " elements",
                  call, grows ? "marks" : "keep", grows ? rows : rows * taps->num_taps);
    SPOPS_TRY(check_candidates(ctx, call, rows, each));
    *source = source_of(kind, in);
    source->unique = !grows;
    source->taps = *taps;
    source->keep = keep;
    source->max_items_a = grows ? rows : 0;
    source->max_items = source->max_candidates = rows * each;
    return SPOPS_STATUS_OK;
}

static spops_status children_source(spops_context *ctx, const char *call, const spops_coords *in,
                                    int32_t factor, const uint8_t *keep,
                                    spops_coords_source *source)
{
    spops_taps taps;
    SPOPS_TRY(spops_plan_check(ctx, call, "in", in));
    SPOPS_TRY(spops_children_taps(ctx, call, in->arrays.layout.dims, factor, &taps));
    return taps_source(ctx, call, SPOPS_COORDS_CHILDREN, in, &taps, keep, source);
}

spops_status spops_children_taps(spops_context *ctx, const char *call, int32_t dims, int32_t factor,
                                 spops_taps *taps)
{
    spops_kernel_shape kernel;
    SPOPS_REQUIRE(ctx, factor >= 1 && factor <= SPOPS_MAX_KERNEL_SIZE,
                  "%s: factor is %" PRId32 ", expected 1 to %d", call, factor,
                  SPOPS_MAX_KERNEL_SIZE);
    kernel = spops_kernel_shape_cube(dims, factor, factor, 1);
    return spops_kernel_shape_read(ctx, call, &kernel, dims, taps);
}

static spops_status grown_source(spops_context *ctx, const char *call, const spops_coords *in,
                                 const spops_kernel_shape *kernel, const uint8_t *marks,
                                 spops_coords_source *source)
{
    spops_taps taps;
    SPOPS_TRY(spops_plan_check(ctx, call, "in", in));
    SPOPS_TRY(spops_kernel_shape_read(ctx, call, kernel, in->arrays.layout.dims, &taps));
    for (int a = 0; a < taps.dims; ++a) {
        const int64_t centre = (int64_t)taps.dilation[a] * (taps.size[a] / 2);
        SPOPS_REQUIRE(ctx, taps.size[a] % 2 == 1,
                      "%s: kernel.size[%d] is %" PRId32 ", expected an odd number", call, a,
                      taps.size[a]);
        SPOPS_TRY(check_axis(ctx, call, "stride", a, taps.stride[a], 1, 1));
        SPOPS_REQUIRE(ctx, taps.padding[a] == 0 || taps.padding[a] == centre,
                      "%s: kernel.padding[%d] is %" PRId32 ", expected 0 or %" PRId64
                      ", so that a row is in the middle",
                      call, a, taps.padding[a], centre);
        SPOPS_REQUIRE(ctx, centre <= INT32_MAX,
                      "%s: kernel.dilation[%d] is %" PRId32 ", which reaches %" PRId64
                      " cells, expected at most 2^31 - 1",
                      call, a, taps.dilation[a], centre);
        taps.padding[a] = (int32_t)centre;
    }
    return taps_source(ctx, call, SPOPS_COORDS_GROWN, in, &taps, marks, source);
}

// ---- Grids --------------------------------------------------------------------------------------

// The grid of a window's other side. Windows that lie side by side make voxels of voxels; where they
// overlap, or leave gaps, there is no saying where a coarse voxel ends.
static spops_voxel_grid window_grid(spops_coords_kind kind, const spops_coords *in,
                                    const spops_taps *taps)
{
    spops_voxel_grid grid = in->grid;
    for (int a = 0; a < in->arrays.layout.dims; ++a) {
        const double stride = (double)taps->stride[a];
        if (taps->size[a] != taps->stride[a] || taps->padding[a] != 0 || taps->dilation[a] != 1)
            grid.known = false;
        grid.size[a] = kind == SPOPS_COORDS_DOWN ? grid.size[a] * stride : grid.size[a] / stride;
    }
    return grid;
}

static spops_voxel_grid union_grid(const spops_coords *a, const spops_coords *b)
{
    spops_voxel_grid grid = a->grid;
    grid.known = a->grid.known && b->grid.known &&
                 memcmp(a->grid.size, b->grid.size, sizeof grid.size) == 0 &&
                 memcmp(a->grid.origin, b->grid.origin, sizeof grid.origin) == 0;
    return grid;
}

// ---- Create -------------------------------------------------------------------------------------

// From a checked source, in the box of choices or, without one, in `box`.
static spops_status create(spops_context *ctx, const char *call, const spops_coords_source *source,
                           const spops_coords_choices *choices, const spops_coords_box *box,
                           spops_coords **out)
{
    return spops_coords_make(ctx, call, source, choices, choices->has_box ? &choices->box : box,
                             out);
}

static spops_status create_window(spops_context *ctx, const char *call, spops_coords_kind kind,
                                  const spops_coords *in, const spops_kernel_shape *kernel,
                                  const spops_coords_options *options, spops_coords **out)
{
    spops_coords_source source;
    spops_coords_choices choices;
    spops_coords_box box;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(window_source(ctx, call, kind, in, kernel, &source));
    SPOPS_TRY(spops_coords_read_options(ctx, call, source.dims, options, &choices));
    memset(&box, 0, sizeof box);
    if (!choices.has_box) // of an empty set too: the same box as of capacities
        SPOPS_TRY(kind == SPOPS_COORDS_DOWN
                      ? spops_box_downsampled(ctx, call, &in->arrays.layout, &source.taps, &box)
                      : spops_box_upsampled(ctx, call, &in->arrays.layout, &source.taps, &box));
    SPOPS_TRY(create(ctx, call, &source, &choices, &box, out));
    (*out)->grid = window_grid(kind, in, &source.taps);
    return SPOPS_STATUS_OK;
}

spops_status spops_coords_create_downsampled(spops_context *ctx, const spops_coords *in,
                                             const spops_kernel_shape *kernel,
                                             const spops_coords_options *options,
                                             spops_coords **out)
{
    return create_window(ctx, "coords_create_downsampled", SPOPS_COORDS_DOWN, in, kernel, options,
                         out);
}

spops_status spops_coords_create_upsampled(spops_context *ctx, const spops_coords *in,
                                           const spops_kernel_shape *kernel,
                                           const spops_coords_options *options, spops_coords **out)
{
    return create_window(ctx, "coords_create_upsampled", SPOPS_COORDS_UP, in, kernel, options, out);
}

spops_status spops_coords_create_union(spops_context *ctx, const spops_coords *a,
                                       const spops_coords *b, const spops_coords_options *options,
                                       spops_coords **out)
{
    static const char call[] = "coords_create_union";
    spops_coords_source source;
    spops_coords_choices choices;
    spops_coords_box box;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(union_source(ctx, call, a, b, &source));
    SPOPS_TRY(spops_coords_read_options(ctx, call, source.dims, options, &choices));
    if (a->arrays.max_rows == 0)
        box = spops_box_of(&b->arrays.layout);
    else if (b->arrays.max_rows == 0)
        box = spops_box_of(&a->arrays.layout);
    else
        box = spops_box_union(&a->arrays.layout, &b->arrays.layout);
    SPOPS_TRY(create(ctx, call, &source, &choices, &box, out));
    (*out)->grid = union_grid(a, b);
    return SPOPS_STATUS_OK;
}

spops_status spops_coords_create_pruned(spops_context *ctx, const spops_coords *in,
                                        const uint8_t *keep, const spops_coords_options *options,
                                        spops_coords **out)
{
    static const char call[] = "coords_create_pruned";
    spops_coords_source source;
    spops_coords_choices choices;
    spops_coords_box box;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(kept_source(ctx, call, in, keep, &source));
    SPOPS_TRY(spops_coords_read_options(ctx, call, source.dims, options, &choices));
    box = spops_box_of(&in->arrays.layout);
    SPOPS_TRY(create(ctx, call, &source, &choices, &box, out));
    (*out)->grid = in->grid;
    return SPOPS_STATUS_OK;
}

static spops_status create_from_taps(spops_context *ctx, const char *call, const spops_coords *in,
                                     const spops_coords_source *source,
                                     const spops_coords_options *options, spops_coords **out)
{
    spops_coords_choices choices;
    spops_coords_box box;

    SPOPS_TRY(spops_coords_read_options(ctx, call, source->dims, options, &choices));
    memset(&box, 0, sizeof box);
    if (!choices.has_box)
        SPOPS_TRY(spops_box_upsampled(ctx, call, &in->arrays.layout, &source->taps, &box));
    return create(ctx, call, source, &choices, &box, out);
}

spops_status spops_coords_create_children(spops_context *ctx, const spops_coords *in,
                                          int32_t factor, const uint8_t *keep,
                                          const spops_coords_options *options, spops_coords **out)
{
    static const char call[] = "coords_create_children";
    spops_coords_source source;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(children_source(ctx, call, in, factor, keep, &source));
    SPOPS_TRY(create_from_taps(ctx, call, in, &source, options, out));
    (*out)->grid = window_grid(SPOPS_COORDS_UP, in, &source.taps);
    return SPOPS_STATUS_OK;
}

spops_status spops_coords_create_grown(spops_context *ctx, const spops_coords *in,
                                       const spops_kernel_shape *kernel, const uint8_t *marks,
                                       const spops_coords_options *options, spops_coords **out)
{
    static const char call[] = "coords_create_grown";
    spops_coords_source source;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(grown_source(ctx, call, in, kernel, marks, &source));
    SPOPS_TRY(create_from_taps(ctx, call, in, &source, options, out));
    (*out)->grid = in->grid;
    return SPOPS_STATUS_OK;
}

// ---- Set ----------------------------------------------------------------------------------------

static spops_status set_window(spops_context *ctx, const char *call, spops_coords_kind kind,
                               spops_coords *coords, const spops_coords *in,
                               const spops_kernel_shape *kernel)
{
    spops_coords_source source;
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "coords", coords));
    SPOPS_TRY(window_source(ctx, call, kind, in, kernel, &source));
    SPOPS_REQUIRE(ctx, coords != in, "%s: coords is in, expected another set", call);
    SPOPS_TRY(spops_coords_fill(ctx, call, coords, &source));
    coords->grid = window_grid(kind, in, &source.taps);
    return SPOPS_STATUS_OK;
}

spops_status spops_coords_update_downsampled(spops_context *ctx, spops_coords *coords,
                                             const spops_coords *in,
                                             const spops_kernel_shape *kernel)
{
    return set_window(ctx, "coords_update_downsampled", SPOPS_COORDS_DOWN, coords, in, kernel);
}

spops_status spops_coords_note_downsampled(spops_context *ctx, spops_coords *coords,
                                           const spops_coords *in, const spops_kernel_shape *kernel)
{
    spops_coords_source source;
    SPOPS_TRY(
        window_source(ctx, "coords_update_downsampled", SPOPS_COORDS_DOWN, in, kernel, &source));
    coords->has_item_row = false;
    coords->last_items = source.max_items;
    coords->grid = window_grid(SPOPS_COORDS_DOWN, in, &source.taps);
    return SPOPS_STATUS_OK;
}

spops_status spops_coords_update_upsampled(spops_context *ctx, spops_coords *coords,
                                           const spops_coords *in, const spops_kernel_shape *kernel)
{
    return set_window(ctx, "coords_update_upsampled", SPOPS_COORDS_UP, coords, in, kernel);
}

spops_status spops_coords_update_union(spops_context *ctx, spops_coords *coords,
                                       const spops_coords *a, const spops_coords *b)
{
    static const char call[] = "coords_update_union";
    spops_coords_source source;
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "coords", coords));
    SPOPS_TRY(union_source(ctx, call, a, b, &source));
    SPOPS_REQUIRE(ctx, coords != a && coords != b, "%s: coords is a or b, expected another set",
                  call);
    SPOPS_TRY(spops_coords_fill(ctx, call, coords, &source));
    coords->grid = union_grid(a, b);
    return SPOPS_STATUS_OK;
}

spops_status spops_coords_update_pruned(spops_context *ctx, spops_coords *coords,
                                        const spops_coords *in, const uint8_t *keep)
{
    static const char call[] = "coords_update_pruned";
    spops_coords_source source;
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "coords", coords));
    SPOPS_TRY(kept_source(ctx, call, in, keep, &source));
    SPOPS_REQUIRE(ctx, coords != in, "%s: coords is in, expected another set", call);
    SPOPS_TRY(spops_coords_fill(ctx, call, coords, &source));
    coords->grid = in->grid;
    return SPOPS_STATUS_OK;
}

spops_status spops_coords_update_children(spops_context *ctx, spops_coords *coords,
                                          const spops_coords *in, int32_t factor,
                                          const uint8_t *keep)
{
    static const char call[] = "coords_update_children";
    spops_coords_source source;
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "coords", coords));
    SPOPS_TRY(children_source(ctx, call, in, factor, keep, &source));
    SPOPS_REQUIRE(ctx, coords != in, "%s: coords is in, expected another set", call);
    SPOPS_TRY(spops_coords_fill(ctx, call, coords, &source));
    coords->grid = window_grid(SPOPS_COORDS_UP, in, &source.taps);
    return SPOPS_STATUS_OK;
}

spops_status spops_coords_update_grown(spops_context *ctx, spops_coords *coords,
                                       const spops_coords *in, const spops_kernel_shape *kernel,
                                       const uint8_t *marks)
{
    static const char call[] = "coords_update_grown";
    spops_coords_source source;
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "coords", coords));
    SPOPS_TRY(grown_source(ctx, call, in, kernel, marks, &source));
    SPOPS_REQUIRE(ctx, coords != in, "%s: coords is in, expected another set", call);
    SPOPS_TRY(spops_coords_fill(ctx, call, coords, &source));
    coords->grid = in->grid;
    return SPOPS_STATUS_OK;
}
