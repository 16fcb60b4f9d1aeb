// SPDX-License-Identifier: Apache-2.0
// Sets of coordinates: what they refuse, what they hold in every order and with every search,
// what is made from them, and refilling on the stream.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tests/support/coord_cases.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

static const spops_coords_search searches[] = {SPOPS_COORDS_SEARCH_AUTO, SPOPS_COORDS_SEARCH_HASH,
                                               SPOPS_COORDS_SEARCH_GRID,
                                               SPOPS_COORDS_SEARCH_SORTED};
static const spops_coords_order orders[] = {SPOPS_COORDS_ORDER_GIVEN,
                                            SPOPS_COORDS_ORDER_LEXICOGRAPHIC,
                                            SPOPS_COORDS_ORDER_MORTON, SPOPS_COORDS_ORDER_HILBERT};
static spops_coords *const untouched = (spops_coords *)16;

// A grid may be too large, and a Hilbert curve too long, for coordinates that are far apart.
static bool may_be_refused(test_cloud cloud, const spops_coords_options *o)
{
    return (cloud == CLOUD_FAR || cloud == CLOUD_SPARSE) &&
           (o->search == SPOPS_COORDS_SEARCH_GRID || o->order == SPOPS_COORDS_ORDER_HILBERT);
}

// ---- what a set holds ----

static void check_created(test_device *d, test_cloud cloud, const cloud_rows *rows, bool repeats,
                          const spops_coords_options *o)
{
    char text[256];
    const char *what =
        test_describe(text, "%s, %d axes, repeats %d, order %d, search %d", cloud_name(cloud),
                      rows->dims, repeats, (int)o->order, (int)o->search);
    spops_coords *coords = untouched;
    int32_t *given = test_upload_i32(d, rows->rows, rows->n * (rows->dims + 1));
    const spops_status status = spops_coords_create(d->ctx, rows->dims, rows->n, given, o, &coords);
    test_free(d, given); // it was copied
    if (status == SPOPS_STATUS_INVALID_ARGUMENT && may_be_refused(cloud, o)) {
        cr_assert(coords == NULL, "%s", what);
        return;
    }
    test_expect_ok(d->ctx, status, what);
    ref_set expected = ref_unique(rows->dims, rows->n, rows->rows, NULL);
    held_set held = held_set_of(d, coords, what);
    cr_assert(held.info.max_rows == expected.n, "%s: not made to measure", what);
    cr_assert(held.info.order == o->order, "%s", what);
    cr_assert(held.info.search != SPOPS_COORDS_SEARCH_AUTO, "%s", what);
    if (o->search != SPOPS_COORDS_SEARCH_AUTO) cr_assert(held.info.search == o->search, "%s", what);
    cr_assert(held.info.num_dropped == 0 && held.info.overflow == 0, "%s", what);
    held_set_check(&held, &expected, what);
    held_set_free(&held);
    ref_set_free(&expected);
    spops_coords_destroy(coords);
    checked_alloc_check(&d->memory, what);
}

BackendTest(coords, hold_their_rows)
{
    test_device d;
    test_rng rng = test_rng_make(401);
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int32_t dims = 1; dims <= SPOPS_MAX_DIMS; ++dims)
        for (test_cloud cloud = CLOUD_EMPTY; cloud < NUM_CLOUDS; ++cloud)
            for (int repeats = 0; repeats < 2; ++repeats) {
                cloud_rows rows = cloud_make(cloud, dims, repeats, &rng);
                for (int o = 0; o < 4; ++o)
                    for (int s = 0; s < 4; ++s) {
                        spops_coords_options options = spops_coords_options_default();
                        options.order = orders[o];
                        options.search = searches[s];
                        options.duplicates = repeats ? SPOPS_COORDS_DUPLICATES_MERGE
                                                     : SPOPS_COORDS_DUPLICATES_REFUSE;
                        options.max_grid_bytes = (size_t)4 << 20;
                        check_created(&d, cloud, &rows, repeats, &options);
                    }
                cloud_free(&rows);
            }
    test_close(&d);
}

// A Hilbert curve goes from each cell of a cube to a neighbour.
BackendTest(coords, hilbert_steps_to_neighbours)
{
    static const int32_t sides[SPOPS_MAX_DIMS] = {64, 32, 16, 8};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int32_t dims = 1; dims <= SPOPS_MAX_DIMS; ++dims) {
        const int32_t side = sides[dims - 1], columns = dims + 1;
        int64_t cells = 1;
        for (int32_t a = 0; a < dims; ++a)
            cells *= side;
        int32_t *rows = (int32_t *)calloc((size_t)(cells * columns), sizeof *rows);
        for (int64_t cell = 0; cell < cells; ++cell) {
            int64_t rest = cell;
            for (int32_t a = dims; a > 0; --a, rest /= side)
                rows[cell * columns + a] = (int32_t)(rest % side) - 7;
        }
        spops_coords_options options = spops_coords_options_default();
        options.order = SPOPS_COORDS_ORDER_HILBERT;
        spops_coords *coords = NULL;
        int32_t *given = test_upload_i32(&d, rows, cells * columns);
        test_expect_ok(d.ctx, spops_coords_create(d.ctx, dims, cells, given, &options, &coords),
                       "hilbert");
        held_set held = held_set_of(&d, coords, "hilbert");
        cr_assert(held.info.num_rows == cells);
        for (int64_t r = 1; r < cells; ++r) {
            int32_t steps = 0;
            for (int32_t c = 0; c < columns; ++c)
                steps += abs(held.rows[r * columns + c] - held.rows[(r - 1) * columns + c]);
            cr_assert(steps == 1, "%d axes: %d steps to row %lld", dims, steps, (long long)r);
        }
        held_set_free(&held);
        spops_coords_destroy(coords);
        test_free(&d, given);
        free(rows);
    }
    test_close(&d);
}

// ---- what create refuses ----

enum { ROWS = 5 };
static const int32_t good_rows[ROWS][4] = {
    {0, 1, 2, 3}, {1, 1, 2, 3}, {0, -4, 0, 9}, {2, 1, 2, 4}, {0, 1, 2, 4}};
static const spops_coords_box good_box = {{0, -9, -9, -9, 0}, {3, 9, 9, 9, 0}};

typedef struct create_args {
    int32_t dims;
    int64_t num_rows;
    int32_t rows[ROWS][4];
    bool no_rows, shifted;
    spops_coords_options options;
    spops_coords_box box;
} create_args;

static create_args good_args(void)
{
    create_args a;
    memset(&a, 0, sizeof a);
    a.dims = 3;
    a.num_rows = ROWS;
    memcpy(a.rows, good_rows, sizeof a.rows);
    a.options = spops_coords_options_default();
    a.box = good_box;
    return a;
}

static spops_status call_create(test_device *d, create_args *a, spops_coords **out)
{
    void *p = NULL;
    cr_assert(device_alloc(d->backend, sizeof a->rows + 4, &p), "%s", device_error());
    cr_assert(device_upload(d->backend, p, a->rows, sizeof a->rows), "%s", device_error());
    int32_t *rows = a->no_rows ? NULL : (int32_t *)(void *)((char *)p + (a->shifted ? 1 : 0));
    const spops_status status =
        spops_coords_create(d->ctx, a->dims, a->num_rows, rows, &a->options, out);
    test_free(d, p);
    return status;
}

static void refused(test_device *d, create_args *a, const char *fragment)
{
    spops_coords *out = untouched;
    const int64_t live = d->memory.live;
    const spops_status status = call_create(d, a, &out);
    test_expect(d->ctx, status, SPOPS_STATUS_INVALID_ARGUMENT, "coords_create: ", fragment);
    test_expect(d->ctx, status, SPOPS_STATUS_INVALID_ARGUMENT, fragment, fragment);
    cr_assert(out == NULL, "%s: *out is not NULL", fragment);
    cr_assert(d->memory.live == live, "%s: leaked", fragment);
}

BackendTest(coords, create_refuses)
{
    test_device d;
    create_args a;
    spops_coords *out = untouched;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
#define BEND(fragment, ...) (a = good_args(), __VA_ARGS__, refused(&d, &a, fragment))
    BEND("dims is 0", a.dims = 0);
    BEND("dims is 5", a.dims = 5);
    BEND("num_rows is -1", a.num_rows = -1);
    BEND("num_rows", a.num_rows = INT32_MAX);
    BEND("rows is NULL", a.no_rows = true);
    BEND(" aligned", a.shifted = true);
    BEND("rows[2][0] is -1, expected a batch", a.rows[2][0] = -1, a.rows[4][0] = -7);
    BEND("rows[1] equals rows[0]", memcpy(a.rows[1], a.rows[0], sizeof a.rows[0]));
    BEND("rows[4] equals rows[2]", memcpy(a.rows[4], a.rows[2], sizeof a.rows[0]));
    BEND("rows[3] equals rows[2]", memcpy(a.rows[3], a.rows[2], sizeof a.rows[0]),
         memcpy(a.rows[4], a.rows[2], sizeof a.rows[0])); // the first of them is named
    BEND("rows[3] equals rows[1]", memcpy(a.rows[4], a.rows[2], sizeof a.rows[0]),
         memcpy(a.rows[3], a.rows[1], sizeof a.rows[0]));
    BEND("rows[2][1] is -4, expected -3 to 9 by the box", a.options.box = &a.box,
         a.box.lower[1] = -3);
    BEND("rows[3][0] is 2, expected 0 to 1 by the box", a.options.box = &a.box, a.box.upper[0] = 1);
    BEND("box.lower[2] is 10", a.options.box = &a.box, a.box.lower[2] = 10);
    BEND("box.lower[0] is -1", a.options.box = &a.box, a.box.lower[0] = -1);
    BEND("keys of 97 bits", a.rows[0][1] = a.rows[0][2] = a.rows[0][3] = INT32_MAX,
         a.rows[1][1] = a.rows[1][2] = a.rows[1][3] = INT32_MIN, a.rows[3][0] = 0);
    BEND("order is 4", a.options.order = (spops_coords_order)4);
    BEND("order is -1", a.options.order = (spops_coords_order)-1);
    BEND("search is 4", a.options.search = (spops_coords_search)4);
    BEND("duplicates is 2", a.options.duplicates = (spops_coords_duplicates)2);
    BEND("reserved is 1", a.options.reserved = 1);
    BEND("struct_size", a.options.struct_size = sizeof a.options + 8);
    BEND("max_grid_bytes = 8", a.options.search = SPOPS_COORDS_SEARCH_GRID,
         a.options.max_grid_bytes = 8);
    BEND("Hilbert curve", a.options.order = SPOPS_COORDS_ORDER_HILBERT, a.rows[0][1] = INT32_MAX);
#undef BEND
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    test_expect(NULL, spops_coords_create(NULL, 3, 0, NULL, NULL, &out), invalid, "ctx", "no ctx");
    test_expect(d.ctx, spops_coords_create(d.ctx, 3, 0, NULL, NULL, NULL), invalid, "out",
                "no out");
    a = good_args();
    test_expect_ok(d.ctx, call_create(&d, &a, &out), "after the errors");
    spops_coords_destroy(out);
    spops_coords_destroy(NULL);
    test_close(&d);
}

// ---- sets from sets ----

static spops_coords *create_set(test_device *d, const cloud_rows *rows, spops_coords_search search)
{
    spops_coords_options options = spops_coords_options_default();
    options.search = search;
    return test_create_set(d, rows->dims, rows->n, rows->rows, &options);
}

// Kernels of every kind: strides, dilations, even sizes, paddings of both signs, lopsided ones.
static int kernels_of(int32_t dims, spops_kernel_shape *kernels)
{
    int n = 0;
    kernels[n++] = spops_kernel_shape_cube(dims, 2, 2, 1);
    kernels[n] = spops_kernel_shape_cube(dims, 3, 2, 1);
    for (int32_t a = 0; a < dims; ++a)
        kernels[n].padding[a] = 1;
    ++n;
    kernels[n] = spops_kernel_shape_cube(dims, 3, 3, 2);
    for (int32_t a = 0; a < dims; ++a)
        kernels[n].padding[a] = 2 - 3 * a;
    ++n;
    kernels[n] = spops_kernel_shape_cube(dims, 1, 1, 1);
    for (int32_t a = 0; a < dims; ++a) {
        kernels[n].size[a] = 1 + (a + 3) % 5;
        kernels[n].stride[a] = 1 + (a + 1) % 3;
        kernels[n].dilation[a] = 1 + a % 2;
        kernels[n].padding[a] = a - 1;
    }
    ++n;
    kernels[n] = spops_kernel_shape_cube(dims, 4, 6, 4); // gcd of stride and dilation is 2
    return ++n;
}

typedef enum derivation { DOWN, UP, UNION, PRUNED, NUM_DERIVATIONS } derivation;
static const char *const derivation_names[] = {"downsampled", "upsampled", "union", "pruned"};

typedef struct derived_inputs {
    ref_set a, b;
    spops_coords *in, *other;
    spops_kernel_shape kernel;
    uint8_t *keep, *given_keep;
} derived_inputs;

static derived_inputs make_inputs(test_device *d, test_cloud cloud, int32_t dims, test_rng *rng)
{
    derived_inputs in;
    cloud_rows a = cloud_make(cloud, dims, false, rng),
               b = cloud_make(CLOUD_CLUMPS, dims, false, rng);
    memset(&in, 0, sizeof in);
    in.a = ref_unique(dims, a.n, a.rows, NULL);
    in.b = ref_unique(dims, b.n, b.rows, NULL);
    in.in = create_set(d, &a, SPOPS_COORDS_SEARCH_AUTO);
    in.other = create_set(d, &b, SPOPS_COORDS_SEARCH_HASH);
    in.keep = (uint8_t *)calloc((size_t)a.n + 1, 1);
    for (int64_t i = 0; i < a.n; ++i)
        in.keep[i] = test_rng_below(rng, 3) == 0 ? 0 : (uint8_t)(1 + test_rng_below(rng, 255));
    in.given_keep = test_upload_u8(d, in.keep, a.n);
    cloud_free(&a), cloud_free(&b);
    return in;
}

static void free_inputs(test_device *d, derived_inputs *in)
{
    ref_set_free(&in->a), ref_set_free(&in->b);
    spops_coords_destroy(in->in), spops_coords_destroy(in->other);
    free(in->keep);
    test_free(d, in->given_keep);
}

static ref_set ref_derived(const derived_inputs *in, derivation how, const spops_coords_box *box)
{
    if (how == DOWN || how == UP) return ref_window(&in->a, &in->kernel, how == UP, box);
    return how == UNION ? ref_union(&in->a, &in->b) : ref_pruned(&in->a, in->keep);
}

static spops_status create_derived(test_device *d, const derived_inputs *in, derivation how,
                                   const spops_coords_options *o, spops_coords **out)
{
    spops_context *ctx = d->ctx;
    switch (how) {
    case DOWN: return spops_coords_create_downsampled(ctx, in->in, &in->kernel, o, out);
    case UP: return spops_coords_create_upsampled(ctx, in->in, &in->kernel, o, out);
    case UNION: return spops_coords_create_union(ctx, in->in, in->other, o, out);
    default: return spops_coords_create_pruned(ctx, in->in, in->given_keep, o, out);
    }
}

static void check_derived(test_device *d, test_cloud cloud, const derived_inputs *in,
                          derivation how, const spops_coords_options *o)
{
    char text[256];
    const char *what =
        test_describe(text, "%s of %s, %d axes, size %d stride %d, order %d, box %d",
                      derivation_names[how], cloud_name(cloud), in->a.dims, in->kernel.size[0],
                      in->kernel.stride[0], (int)o->order, o->box != NULL);
    spops_coords *out = untouched;
    const spops_status status = create_derived(d, in, how, o, &out);
    if (cloud == CLOUD_FAR && status == SPOPS_STATUS_INVALID_ARGUMENT) {
        cr_assert(out == NULL, "%s", what);
        cr_assert(strstr(spops_last_error(d->ctx), "32 bits") != NULL ||
                      strstr(spops_last_error(d->ctx), "at most 63") != NULL,
                  "%s: %s", what, spops_last_error(d->ctx));
        return;
    }
    test_expect_ok(d->ctx, status, what);
    ref_set expected = ref_derived(in, how, o->box);
    held_set held = held_set_of(d, out, what);
    cr_assert(held.info.max_rows == expected.n, "%s", what);
    cr_assert((held.view.item_row == NULL) ==
                  (how == DOWN || how == UP || held.view.max_items == 0),
              "%s: item_row", what);
    held_set_check(&held, &expected, what);
    held_set_free(&held);
    ref_set_free(&expected);
    spops_coords_destroy(out);
}

BackendTest(coords, derived)
{
    static const spops_coords_box box = {{0, -6, -6, -6, -6}, {1, 7, 7, 7, 7}};
    test_device d;
    test_rng rng = test_rng_make(402);
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int32_t dims = 1; dims <= SPOPS_MAX_DIMS; ++dims)
        for (test_cloud cloud = CLOUD_EMPTY; cloud < NUM_CLOUDS; ++cloud) {
            derived_inputs in = make_inputs(&d, cloud, dims, &rng);
            spops_kernel_shape kernels[8];
            const int num_kernels = kernels_of(dims, kernels);
            for (int k = 0; k < num_kernels; ++k)
                for (derivation how = DOWN; how < NUM_DERIVATIONS; ++how) {
                    spops_coords_options o = spops_coords_options_default();
                    in.kernel = kernels[k];
                    if (k > 0 && how >= UNION) continue; // no kernel is looked at
                    o.order = k == 0 ? SPOPS_COORDS_ORDER_GIVEN : orders[(k + how) % 3];
                    o.search = searches[(k + dims) % 2];
                    check_derived(&d, cloud, &in, how, &o);
                    if (how >= UNION) continue;
                    o.box = &box;
                    check_derived(&d, cloud, &in, how, &o);
                }
            free_inputs(&d, &in);
        }
    test_close(&d);
}

// The rule of 2 x 2 x 2 layers with stride 2: q = floor(p / 2).
BackendTest(coords, floor_rule)
{
    test_device d;
    test_rng rng = test_rng_make(403);
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    cloud_rows rows = cloud_make(CLOUD_CLUMPS, 3, false, &rng);
    spops_coords *in = create_set(&d, &rows, SPOPS_COORDS_SEARCH_AUTO), *out = NULL;
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 2, 2, 1);
    test_expect_ok(d.ctx, spops_coords_create_downsampled(d.ctx, in, &kernel, NULL, &out), "down");
    for (int64_t i = 0; i < rows.n; ++i)
        for (int c = 1; c < 4; ++c) {
            int32_t *x = rows.rows + i * 4 + c;
            *x = *x >= 0 ? *x / 2 : -((1 - *x) / 2);
        }
    ref_set expected = ref_unique(3, rows.n, rows.rows, NULL);
    held_set held = held_set_of(&d, out, "floor rule");
    cr_assert(spops_kernel_shape_num_candidates(&kernel, 0) == 1);
    held_set_check(&held, &expected, "floor rule");
    held_set_free(&held);
    ref_set_free(&expected);
    spops_coords_destroy(out), spops_coords_destroy(in);
    cloud_free(&rows);
    test_close(&d);
}

// ---- what is refused of kernels and sets ----

static void refused_down(test_device *d, const spops_coords *in, const spops_kernel_shape *kernel,
                         const char *fragment)
{
    spops_coords *out = untouched;
    test_expect(d->ctx, spops_coords_create_downsampled(d->ctx, in, kernel, NULL, &out),
                SPOPS_STATUS_INVALID_ARGUMENT, fragment, fragment);
    cr_assert(out == NULL, "%s", fragment);
}

BackendTest(coords, derived_refuse)
{
    test_device d;
    test_rng rng = test_rng_make(404);
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    cloud_rows rows = cloud_make(CLOUD_CLUMPS, 3, false, &rng);
    cloud_rows flat = cloud_make(CLOUD_CLUMPS, 2, false, &rng);
    spops_coords *in = create_set(&d, &rows, SPOPS_COORDS_SEARCH_AUTO);
    spops_coords *other = create_set(&d, &flat, SPOPS_COORDS_SEARCH_AUTO), *out = untouched;
    spops_kernel_shape k;
#define BEND(fragment, ...)                                                                        \
    (k = spops_kernel_shape_cube(3, 3, 2, 1), __VA_ARGS__, refused_down(&d, in, &k, fragment))
    BEND("kernel.dims is 2", k.dims = 2);
    BEND("kernel.size[1] is 0", k.size[1] = 0);
    BEND("kernel.size[2] is 8", k.size[2] = 8);
    BEND("kernel.stride[0] is 0", k.stride[0] = 0);
    BEND("kernel.stride[2] is -2", k.stride[2] = -2);
    BEND("kernel.dilation[1] is 0", k.dilation[1] = 0);
    BEND("kernel.dilation[0] is -1", k.dilation[0] = -1);
    BEND("kernel: struct_size", k.struct_size = 4);
    BEND("32 bits", k.stride[0] = 1, k.padding[0] = INT32_MAX);
#undef BEND
    k = spops_kernel_shape_cube(3, 3, INT32_MAX, 1);
    test_expect(d.ctx, spops_coords_create_upsampled(d.ctx, in, &k, NULL, &out), invalid, "32 bits",
                "a stride too long");
    test_expect(d.ctx, spops_coords_create_downsampled(d.ctx, in, NULL, NULL, &out), invalid,
                "kernel is NULL", "no kernel");
    test_expect(d.ctx, spops_coords_create_downsampled(d.ctx, NULL, &k, NULL, &out), invalid,
                "in is NULL", "no set");
    test_expect(d.ctx, spops_coords_create_union(d.ctx, in, other, NULL, &out), invalid,
                "b has 2 axes", "axes");
    test_expect(d.ctx, spops_coords_create_union(d.ctx, in, NULL, NULL, &out), invalid, "b is NULL",
                "no b");
    test_expect(d.ctx, spops_coords_create_pruned(d.ctx, in, NULL, NULL, &out), invalid,
                "keep is NULL", "no keep");
    test_expect(d.ctx, spops_coords_create_pruned(d.ctx, in, NULL, NULL, NULL), invalid, "out",
                "no out");
    cr_assert(spops_kernel_shape_num_taps(NULL) == 0);
    k = spops_kernel_shape_cube(3, 8, 1, 1);
    cr_assert(spops_kernel_shape_num_taps(&k) == 0);
    k = spops_kernel_shape_cube(4, 7, 1, 1);
    cr_assert(spops_kernel_shape_num_taps(&k) == SPOPS_MAX_KERNEL_TAPS);
    cr_assert(spops_kernel_shape_num_candidates(&k, 1) == SPOPS_MAX_KERNEL_TAPS);
    k = spops_kernel_shape_cube(2, 3, 2, 2); // dilation 2 and stride 2: all taps or none
    cr_assert(spops_kernel_shape_num_candidates(&k, 0) == 9);
    k = spops_kernel_shape_cube(2, 3, 2, 1);
    cr_assert(spops_kernel_shape_num_candidates(&k, 0) == 4);
    spops_coords_destroy(in), spops_coords_destroy(other);
    cloud_free(&rows), cloud_free(&flat);
    test_close(&d);
}

// ---- refilling on the stream ----

// One refill: of what, from what.
typedef struct refill {
    spops_coords *coords;
    derivation how; // NUM_DERIVATIONS: from rows
    const int32_t *num_rows, *rows;
    const spops_coords *in, *other;
    const spops_kernel_shape *kernel;
    const uint8_t *keep;
} refill;

static spops_status enqueue_refill(spops_context *ctx, const refill *r)
{
    switch (r->how) {
    case DOWN: return spops_coords_update_downsampled(ctx, r->coords, r->in, r->kernel);
    case UP: return spops_coords_update_upsampled(ctx, r->coords, r->in, r->kernel);
    case UNION: return spops_coords_update_union(ctx, r->coords, r->in, r->other);
    case PRUNED: return spops_coords_update_pruned(ctx, r->coords, r->in, r->keep);
    default: return spops_coords_update(ctx, r->coords, r->num_rows, r->rows);
    }
}

enum { MAX_ITEMS = 1000, MAX_ROWS = 600 };

// The first max_rows of a set, in the order of `full`.
static ref_set first_rows(const ref_set *full, int64_t max_rows)
{
    ref_set cut = ref_unique(full->dims, full->n < max_rows ? full->n : max_rows, full->rows, NULL);
    for (int64_t r = 0; r < cut.n; ++r)
        cut.row_item[r] = full->row_item[r];
    free(cut.item_row);
    cut.item_row = NULL;
    cut.num_merged = full->num_merged;
    return cut;
}

static void check_refilled(test_device *d, const spops_coords *coords, const ref_set *full,
                           int64_t dropped, bool too_many_items, const char *what)
{
    held_set held = held_set_of(d, coords, what);
    ref_set cut = first_rows(full, held.info.max_rows);
    cr_assert(held.info.overflow == (too_many_items || full->n > held.info.max_rows),
              "%s: overflow", what);
    cr_assert(held.info.num_dropped == dropped, "%s: %lld dropped, expected %lld", what,
              (long long)held.info.num_dropped, (long long)dropped);
    held_set_check(&held, &cut, what);
    const bool items = held.item_row != NULL && full->item_row != NULL;
    for (int64_t i = 0; items && i < held.view.max_items; ++i) {
        const int32_t row = i < full->num_items ? full->item_row[i] : -1;
        cr_assert(held.item_row[i] == (row < cut.n ? row : -1), "%s: item_row[%lld] is %d", what,
                  (long long)i, held.item_row[i]);
    }
    ref_set_free(&cut);
    held_set_free(&held);
}

// From rows: several versions in one graph, among them none, more than fit, outside the box.
static void check_set_rows(test_device *d, int32_t dims, spops_coords_search search, test_rng *rng)
{
    static const spops_coords_box box = {{0, -20, -20, -20, -20}, {2, 20, 20, 20, 20}};
    static const int64_t counts[] = {300, 0, MAX_ITEMS, 5, MAX_ITEMS + 1, -3, 700};
    const int32_t columns = dims + 1;
    char text[256];
    spops_coords_options o = spops_coords_options_default();
    spops_coords *coords = NULL;
    device_graph *graph = NULL;
    void *num = NULL, *rows = NULL;
    int32_t *host = (int32_t *)calloc((size_t)MAX_ITEMS * (size_t)columns, sizeof *host);
    o.search = search;
    o.box = &box;
    test_expect_ok(d->ctx, spops_coords_reserve(d->ctx, dims, MAX_ROWS, MAX_ITEMS, &o, &coords),
                   "reserve");
    held_set empty = held_set_of(d, coords, "before the first set");
    cr_assert(empty.info.num_rows == 0 && empty.info.max_rows == MAX_ROWS);
    held_set_free(&empty);
    cr_assert(device_alloc(d->backend, sizeof(int32_t), &num) &&
                  device_alloc(d->backend, (size_t)MAX_ITEMS * (size_t)columns * 4, &rows),
              "%s", device_error());
    const refill r = {coords, NUM_DERIVATIONS, (int32_t *)num, (int32_t *)rows, NULL, NULL, NULL,
                      NULL};
    if (d->launch == LAUNCH_CAPTURED) {
        cr_assert(device_capture_begin(d->stream), "%s", device_error());
        const spops_status status = enqueue_refill(d->ctx, &r);
        cr_assert(device_capture_end(d->stream, &graph), "%s", device_error());
        test_expect_ok(d->ctx, status, "captured");
    }
    for (int version = 0; version < 7; ++version) {
        const char *what =
            test_describe(text, "refill %d, %d axes, search %d", version, dims, (int)search);
        const int32_t given = (int32_t)counts[version];
        const int64_t n = given < 0 ? 0 : given > MAX_ITEMS ? MAX_ITEMS : given;
        const int32_t extent = version == 2 ? 400 : 24; // all over the place; or with duplicates
        for (int64_t i = 0; i < MAX_ITEMS * columns; ++i)
            host[i] = i % columns == 0 ? (int32_t)test_rng_below(rng, 3 + (version == 3))
                                       : (int32_t)test_rng_below(rng, extent) - extent / 2;
        cr_assert(
            device_upload(d->backend, num, &given, sizeof given) &&
                device_upload(d->backend, rows, host, (size_t)MAX_ITEMS * (size_t)columns * 4),
            "%s", device_error());
        if (graph != NULL)
            cr_assert(device_graph_launch(graph, d->stream), "%s", device_error());
        else
            test_expect_ok(d->ctx, enqueue_refill(d->ctx, &r), what);
        test_wait(d);
        ref_set expected = ref_unique(dims, n, host, &box);
        check_refilled(d, coords, &expected, expected.num_dropped, given > MAX_ITEMS, what);
        ref_set_free(&expected);
        checked_alloc_check(&d->memory, what);
    }
    device_graph_destroy(graph);
    spops_coords_destroy(coords);
    test_free(d, num), test_free(d, rows);
    free(host);
}

LaunchTest(coords, set)
{
    test_device d;
    test_rng rng = test_rng_make(405);
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int32_t dims = 1; dims <= SPOPS_MAX_DIMS; ++dims)
        for (int s = 0; s < 4; ++s)
            if (s != 2 || dims < 4) // a grid of 41^4 cells takes long to clear
                check_set_rows(&d, dims, searches[s], &rng);
    test_close(&d);
}

// Sets from sets that are refilled themselves: one graph for both.
static void check_set_derived(test_device *d, derivation how, test_rng *rng)
{
    static const spops_coords_box box = {{0, -30, -30, -30, 0}, {2, 30, 30, 30, 0}};
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 2, 1);
    char text[256];
    spops_coords_options o = spops_coords_options_default();
    spops_coords *in = NULL, *other = NULL, *out = NULL;
    device_graph *graph = NULL;
    void *num = NULL, *rows = NULL;
    o.box = &box;
    const int64_t each = how == DOWN || how == UP
                             ? spops_kernel_shape_num_candidates(&kernel, how == UP)
                         : how == UNION ? 2
                                        : 1;
    test_expect_ok(d->ctx, spops_coords_reserve(d->ctx, 3, MAX_ROWS, MAX_ROWS, &o, &in), "in");
    test_expect_ok(d->ctx, spops_coords_reserve(d->ctx, 3, MAX_ROWS, MAX_ROWS * each, &o, &out),
                   "out");
    cloud_rows fixed = cloud_make(CLOUD_LINE, 3, false, rng);
    cloud_rows clipped = {3, 0, fixed.rows};
    for (int64_t i = 0; i < fixed.n; ++i) // within the box
        if (abs(fixed.rows[4 * i + 3]) <= 30)
            memmove(fixed.rows + 4 * clipped.n++, fixed.rows + 4 * i, 16);
    other = create_set(d, &clipped, SPOPS_COORDS_SEARCH_AUTO);
    ref_set b = ref_unique(3, clipped.n, clipped.rows, NULL);
    uint8_t *keep = (uint8_t *)calloc(MAX_ROWS, 1);
    for (int i = 0; i < MAX_ROWS; ++i)
        keep[i] = (uint8_t)test_rng_below(rng, 2);
    uint8_t *given_keep = test_upload_u8(d, keep, MAX_ROWS);
    cr_assert(device_alloc(d->backend, sizeof(int32_t), &num) &&
                  device_alloc(d->backend, MAX_ROWS * 16, &rows),
              "%s", device_error());
    const refill first = {in,  NUM_DERIVATIONS, (int32_t *)num, (int32_t *)rows, NULL, NULL, NULL,
                          NULL};
    const refill second = {out, how, NULL, NULL, in, other, &kernel, given_keep};
    if (d->launch == LAUNCH_CAPTURED) {
        cr_assert(device_capture_begin(d->stream), "%s", device_error());
        spops_status status = enqueue_refill(d->ctx, &first);
        if (status == SPOPS_STATUS_OK) status = enqueue_refill(d->ctx, &second);
        cr_assert(device_capture_end(d->stream, &graph), "%s", device_error());
        test_expect_ok(d->ctx, status, "captured");
    }
    for (int version = 0; version < 4; ++version) {
        const char *what = test_describe(text, "%s, refill %d", derivation_names[how], version);
        static const int32_t counts[] = {40, 0, 500, 3};
        int32_t host[MAX_ROWS * 4];
        for (int i = 0; i < MAX_ROWS * 4; ++i)
            host[i] = i % 4 == 0 ? (int32_t)test_rng_below(rng, 3)
                                 : (int32_t)test_rng_below(rng, 21) - 10;
        cr_assert(device_upload(d->backend, num, &counts[version], sizeof counts[version]) &&
                      device_upload(d->backend, rows, host, sizeof host),
                  "%s", device_error());
        if (graph != NULL) {
            cr_assert(device_graph_launch(graph, d->stream), "%s", device_error());
        } else {
            test_expect_ok(d->ctx, enqueue_refill(d->ctx, &first), what);
            test_expect_ok(d->ctx, enqueue_refill(d->ctx, &second), what);
        }
        test_wait(d);
        ref_set a = ref_unique(3, counts[version], host, NULL);
        ref_set expected = how == UNION    ? ref_union(&a, &b)
                           : how == PRUNED ? ref_pruned(&a, keep)
                                           : ref_window(&a, &kernel, how == UP, &box);
        if (how == UNION) { // items of b are counted from the capacity of a
            free(expected.item_row);
            expected.item_row = NULL;
            for (int64_t r = 0; r < expected.n; ++r)
                if (expected.row_item[r] >= a.n) expected.row_item[r] += (int32_t)(MAX_ROWS - a.n);
        }
        check_refilled(d, out, &expected, 0, false, what);
        ref_set_free(&a), ref_set_free(&expected);
    }
    device_graph_destroy(graph);
    spops_coords_destroy(in), spops_coords_destroy(other), spops_coords_destroy(out);
    test_free(d, num), test_free(d, rows), test_free(d, given_keep);
    ref_set_free(&b);
    cloud_free(&fixed);
    free(keep);
}

LaunchTest(coords, set_derived)
{
    test_device d;
    test_rng rng = test_rng_make(406);
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (derivation how = DOWN; how < NUM_DERIVATIONS; ++how)
        check_set_derived(&d, how, &rng);
    test_close(&d);
}

BackendTest(coords, set_refuses)
{
    static const spops_coords_box box = {{0, 0, 0, 0, 0}, {0, 9, 9, 9, 0}};
    test_device d;
    test_rng rng = test_rng_make(407);
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    spops_coords_options o = spops_coords_options_default();
    spops_coords *small = NULL, *out = untouched;
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 2, 1);
    cloud_rows rows = cloud_make(CLOUD_CLUMPS, 3, false, &rng);
    spops_coords *fixed = create_set(&d, &rows, SPOPS_COORDS_SEARCH_AUTO);
    int32_t *num = test_upload_i32(&d, (int32_t[]){1}, 1);
    test_expect(d.ctx, spops_coords_reserve(d.ctx, 3, 10, 10, &o, &out), invalid, "box is NULL",
                "no box");
    cr_assert(out == NULL);
    o.box = &box;
    test_expect(d.ctx, spops_coords_reserve(d.ctx, 3, -1, 10, &o, &out), invalid, "max_rows",
                "rows");
    test_expect(d.ctx, spops_coords_reserve(d.ctx, 3, 10, INT32_MAX, &o, &out), invalid,
                "max_items", "items");
    test_expect_ok(d.ctx, spops_coords_reserve(d.ctx, 3, 10, 10, &o, &small), "reserve");
    test_expect(d.ctx, spops_coords_update(d.ctx, fixed, num, num), invalid,
                "not made by coords_reserve", "not refillable");
    test_expect(d.ctx, spops_coords_update(d.ctx, small, NULL, num), invalid, "num_rows is NULL",
                "num");
    test_expect(d.ctx, spops_coords_update(d.ctx, small, num, NULL), invalid, "rows is NULL",
                "rows");
    test_expect(d.ctx, spops_coords_update(d.ctx, NULL, num, num), invalid, "coords is NULL",
                "coords");
    test_expect(d.ctx, spops_coords_update_downsampled(d.ctx, small, fixed, &kernel), invalid,
                "max_items = 10", "too many candidates");
    test_expect(d.ctx, spops_coords_update_union(d.ctx, small, small, fixed), invalid, "",
                "itself");
    test_expect(d.ctx, spops_coords_update_pruned(d.ctx, small, small, (uint8_t *)num), invalid,
                "another set", "itself");
    test_free(&d, num);
    spops_coords_destroy(fixed), spops_coords_destroy(small);
    cloud_free(&rows);
    test_close(&d);
}
