// SPDX-License-Identifier: Apache-2.0
// Children that a mask keeps and growth around marked rows, against lists of candidates; channels that
// become rows of children and back, element for element. Sets that are made, and that are refilled on
// the stream in one captured graph.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "spops/dense.h"
#include "support/device.h"
#include "tests/support/coord_cases.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"

enum { MAX_IN = 300 };

// What a set is made by: children of factor, or growth by a window.
typedef struct recipe {
    bool grows;
    int32_t factor;
    spops_kernel_shape window;
} recipe;

static int32_t taps_of(const recipe *r, int32_t dims)
{
    int32_t taps = 1;
    for (int a = 0; a < dims; ++a)
        taps *= r->grows ? r->window.size[a] : r->factor;
    return taps;
}

// Past the range of int32 at its ends, which no box of these tests has.
static void add_candidate(const ref_set *in, const recipe *r, int64_t row, int32_t tap, int32_t *to)
{
    const int32_t *from = in->rows + row * (in->dims + 1);
    to[0] = from[0];
    for (int a = in->dims - 1; a >= 0; --a) {
        const int32_t size = r->grows ? r->window.size[a] : r->factor;
        const int32_t digit = tap < 0 ? size / 2 : tap % size;
        if (tap >= 0) tap /= size;
        const int64_t x = from[1 + a];
        const int64_t v = r->grows ? x + (int64_t)r->window.dilation[a] * (digit - size / 2)
                                   : r->factor * x + digit;
        to[1 + a] = (int32_t)(v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : v);
    }
}

// The set of a recipe; items are numbered by the capacity of `in`, max_in.
static ref_set ref_of(const ref_set *in, const recipe *r, const uint8_t *keep, int64_t max_in,
                      const spops_coords_box *box)
{
    const int32_t taps = taps_of(r, in->dims), columns = in->dims + 1;
    const int64_t most = in->n * (taps + 1);
    int32_t *rows = calloc((size_t)(most * columns) + 1, sizeof *rows);
    int64_t *items = calloc((size_t)most + 1, sizeof *items), n = 0;

    for (int64_t i = 0; r->grows && i < in->n; ++i, ++n) {
        add_candidate(in, r, i, -1, rows + n * columns);
        items[n] = i;
    }
    for (int64_t i = 0; i < in->n; ++i)
        for (int32_t t = 0; t < taps; ++t) {
            if (keep[r->grows ? i : i * taps + t] == 0) continue;
            add_candidate(in, r, i, t, rows + n * columns);
            items[n++] = (r->grows ? max_in : 0) + i * taps + t;
        }
    ref_set set = ref_unique(in->dims, n, rows, box);
    int32_t *item_row = NULL;
    if (!r->grows) {
        item_row = malloc((size_t)(max_in * taps + 1) * sizeof *item_row);
        for (int64_t i = 0; i < max_in * taps; ++i)
            item_row[i] = -1;
        for (int64_t i = 0; i < n; ++i)
            item_row[items[i]] = set.item_row[i];
    }
    for (int64_t k = 0; k < set.n; ++k)
        set.row_item[k] = (int32_t)items[set.row_item[k]];
    free(set.item_row);
    set.item_row = item_row;
    set.num_items = max_in * taps;
    free(rows), free(items);
    return set;
}

static spops_status create(test_device *d, const recipe *r, const spops_coords *in,
                           const uint8_t *keep, const spops_coords_options *o, spops_coords **out)
{
    return r->grows ? spops_coords_create_grown(d->ctx, in, &r->window, keep, o, out)
                    : spops_coords_create_children(d->ctx, in, r->factor, keep, o, out);
}

static uint8_t *draw_keep(int64_t n, int sparse, test_rng *rng)
{
    uint8_t *keep = calloc((size_t)n + 1, 1);
    for (int64_t i = 0; i < n; ++i)
        keep[i] = test_rng_below(rng, sparse) == 0 ? (uint8_t)(1 + test_rng_below(rng, 255)) : 0;
    return keep;
}

static const recipe recipes[] = {
    {false, 2, {0}}, {false, 3, {0}}, {false, 1, {0}}, {true, 0, {0}}, {true, 1, {0}}};
enum { NUM_RECIPES = sizeof recipes / sizeof *recipes };

static recipe recipe_of(int i, int32_t dims)
{
    recipe r = recipes[i];
    r.window = spops_kernel_shape_cube(dims, 3, 1, 1 + r.factor);
    if (r.grows && dims > 1) r.window.size[dims - 1] = 5;
    return r;
}

// ---- Made ---------------------------------------------------------------------------------------

static void check_created(test_device *d, test_cloud cloud, int32_t dims, int i, test_rng *rng)
{
    static const spops_coords_box box = {{0, -6, -6, -6, -6}, {1, 7, 7, 7, 7}};
    const recipe r = recipe_of(i, dims);
    cloud_rows rows = cloud_make(cloud, dims, false, rng);
    ref_set in = ref_unique(dims, rows.n, rows.rows, NULL);
    const int64_t each = r.grows ? 1 : taps_of(&r, dims);
    spops_coords *set = NULL, *out = NULL;
    int32_t *uploaded = test_upload_i32(d, rows.rows, rows.n * (dims + 1));
    uint8_t *keep = draw_keep(rows.n * each, 1 + i % 3, rng);
    uint8_t *given = test_upload_u8(d, keep, rows.n * each);

    test_expect_ok(d->ctx, spops_coords_create(d->ctx, dims, rows.n, uploaded, NULL, &set), "in");
    for (int order = 0; order < 4; ++order) {
        for (int boxed = 0; boxed < 2; ++boxed) {
            char text[256];
            const char *what = test_describe(text, "recipe %d of %s, %d axes, order %d, box %d", i,
                                             cloud_name(cloud), (int)dims, order, boxed);
            spops_coords_options o = spops_coords_options_default();
            o.order = (spops_coords_order)order;
            o.search = (spops_coords_search)(1 + (order + i + dims) % 3);
            if (dims == 4 || cloud >= CLOUD_SPARSE) o.search = SPOPS_COORDS_SEARCH_AUTO;
            o.box = boxed != 0 ? &box : NULL;
            const spops_status status = create(d, &r, set, given, &o, &out);
            if (cloud == CLOUD_FAR && status == SPOPS_STATUS_INVALID_ARGUMENT) continue;
            test_expect_ok(d->ctx, status, what);
            ref_set expected = ref_of(&in, &r, keep, rows.n, o.box);
            held_set held = held_set_of(d, out, what);
            cr_assert(held.info.max_rows == expected.n, "%s", what);
            cr_assert(!r.grows || held.view.item_row == NULL, "%s", what);
            held_set_check(&held, &expected, what);
            for (int64_t k = 0; r.grows && boxed == 0 && order == 0 && k < in.n; ++k)
                cr_assert(held.row_item[k] == k, "%s: row %lld has another number", what,
                          (long long)k);
            held_set_free(&held);
            ref_set_free(&expected);
            spops_coords_destroy(out);
        }
    }
    spops_coords_destroy(set);
    test_free(d, uploaded), test_free(d, given);
    free(keep);
    ref_set_free(&in);
    cloud_free(&rows);
}

BackendTest(children, created)
{
    test_device d;
    test_rng rng = test_rng_make(7001);
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int32_t dims = 1; dims <= SPOPS_MAX_DIMS; ++dims)
        for (test_cloud cloud = CLOUD_EMPTY; cloud < NUM_CLOUDS; ++cloud)
            for (int i = 0; i < NUM_RECIPES; ++i)
                check_created(&d, cloud, dims, i, &rng);
    test_close(&d);
}

// ---- Refilled -----------------------------------------------------------------------------------

typedef struct refill {
    spops_coords *in, *out;
    recipe r;
    const int32_t *num, *rows;
    const uint8_t *keep;
} refill;

static spops_status enqueue(spops_context *ctx, const refill *f)
{
    spops_status status = spops_coords_update(ctx, f->in, f->num, f->rows);
    if (status != SPOPS_STATUS_OK) return status;
    return f->r.grows ? spops_coords_update_grown(ctx, f->out, f->in, &f->r.window, f->keep)
                      : spops_coords_update_children(ctx, f->out, f->in, f->r.factor, f->keep);
}

static void check_version(test_device *d, const refill *f, const ref_set *in, const uint8_t *keep,
                          const spops_coords_box *box, const char *what)
{
    ref_set expected = ref_of(in, &f->r, keep, MAX_IN, box);
    held_set held = held_set_of(d, f->out, what);
    const bool fits = expected.n <= held.info.max_rows;

    cr_assert(held.info.overflow == !fits, "%s: overflow", what);
    cr_assert(held.info.num_dropped == expected.num_dropped, "%s: %lld dropped, expected %lld",
              what, (long long)held.info.num_dropped, (long long)expected.num_dropped);
    if (fits)
        held_set_check(&held, &expected, what);
    else
        cr_assert(held.info.num_rows == held.info.max_rows, "%s", what);
    held_set_free(&held);
    ref_set_free(&expected);
}

static void check_refilled(test_device *d, int i, int order, test_rng *rng)
{
    static const spops_coords_box box = {{0, -20, -20, -20, 0}, {2, 20, 20, 20, 0}};
    static const spops_coords_box wide = {{0, -45, -45, -45, 0}, {1, 45, 45, 45, 0}};
    static const int32_t counts[] = {60, 0, MAX_IN, 5, 200};
    spops_coords_options o = spops_coords_options_default();
    refill f = {.r = recipe_of(i, 3)};
    const int64_t each = taps_of(&f.r, 3), keeps = MAX_IN * (f.r.grows ? 1 : each);
    device_graph *graph = NULL;
    int32_t num = 0;
    int32_t *host = calloc(MAX_IN * 4, sizeof *host);
    int32_t *num_on = test_upload_i32(d, &num, 1), *rows_on = test_upload_i32(d, host, MAX_IN * 4);
    uint8_t *zeros = draw_keep(keeps, 2, rng), *keep_on = test_upload_u8(d, zeros, keeps);

    o.box = &box;
    test_expect_ok(d->ctx, spops_coords_reserve(d->ctx, 3, MAX_IN, MAX_IN, &o, &f.in), "in");
    o.box = &wide;
    o.order = (spops_coords_order)order;
    test_expect_ok(
        d->ctx,
        spops_coords_reserve(d->ctx, 3, i == 1 ? 500 : 4000, MAX_IN * (each + 1), &o, &f.out),
        "out");
    f.num = num_on, f.rows = rows_on, f.keep = keep_on;
    if (d->launch == LAUNCH_CAPTURED) {
        cr_assert(device_capture_begin(d->stream), "%s", device_error());
        const spops_status status = enqueue(d->ctx, &f);
        cr_assert(device_capture_end(d->stream, &graph), "%s", device_error());
        test_expect_ok(d->ctx, status, "captured");
    }
    for (int version = 0; version < 5; ++version) {
        char text[256];
        const char *what = test_describe(text, "recipe %d, order %d, refill %d", i, order, version);
        uint8_t *keep = draw_keep(keeps, 1 + version % 4, rng);
        num = counts[version];
        for (int k = 0; k < MAX_IN * 4; ++k)
            host[k] = k % 4 == 0 ? (int32_t)test_rng_below(rng, 3)
                                 : (int32_t)test_rng_below(rng, 41) - 20;
        cr_assert(device_upload(d->backend, num_on, &num, sizeof num) &&
                      device_upload(d->backend, rows_on, host, MAX_IN * 4 * sizeof *host) &&
                      device_upload(d->backend, keep_on, keep, (size_t)keeps),
                  "%s", device_error());
        if (graph != NULL)
            cr_assert(device_graph_launch(graph, d->stream), "%s", device_error());
        else
            test_expect_ok(d->ctx, enqueue(d->ctx, &f), what);
        test_wait(d);
        ref_set in = ref_unique(3, num, host, &box);
        check_version(d, &f, &in, keep, &wide, what);
        ref_set_free(&in);
        free(keep);
    }
    device_graph_destroy(graph);
    spops_coords_destroy(f.in), spops_coords_destroy(f.out);
    test_free(d, num_on), test_free(d, rows_on), test_free(d, keep_on);
    free(host), free(zeros);
}

LaunchTest(children, refilled)
{
    test_device d;
    test_rng rng = test_rng_make(7002);
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int i = 0; i < NUM_RECIPES; ++i)
        for (int order = 0; order < 2; ++order)
            check_refilled(&d, i, order, &rng);
    test_close(&d);
}

// ---- Channels and space -------------------------------------------------------------------------

typedef struct channels_case {
    ref_set coarse_rows, fine_rows; // as the sets have them
    spops_coords *coarse, *fine;
    int64_t max_coarse, max_fine, channels;
    int32_t dims, factor, children;
    spops_status (*call)(spops_context *ctx, const spops_coords *coarse, const spops_coords *fine,
                         int32_t factor, spops_matrix x, spops_matrix out);
    bool to_space;
} channels_case;

static spops_status run_channels(void *user, spops_context *ctx, const spops_matrix *const *in,
                                 const spops_matrix *const *out)
{
    const channels_case *c = (const channels_case *)user;
    return c->call(ctx, c->coarse, c->fine, c->factor, *in[0], *out[0]);
}

static void reference_channels(void *user, const double *const *in, ref_tensor *const *out)
{
    const channels_case *c = (const channels_case *)user;
    for (int64_t p = 0; p < c->coarse_rows.n; ++p)
        for (int32_t t = 0; t < c->children; ++t) {
            const int32_t *x = c->coarse_rows.rows + p * (c->dims + 1);
            int32_t at[1 + SPOPS_MAX_DIMS] = {x[0]}, left = t;
            for (int a = c->dims; a >= 1; --a, left /= c->factor)
                at[a] = c->factor * x[a] + left % c->factor;
            const int32_t f = ref_find(&c->fine_rows, at);
            if (f < 0) continue;
            for (int64_t k = 0; k < c->channels; ++k) {
                const int64_t wide = (p * c->children + t) * c->channels + k;
                const int64_t narrow = f * c->channels + k;
                if (c->to_space)
                    out[0]->value[narrow] = in[0][wide];
                else
                    out[0]->value[wide] = in[0][narrow];
            }
        }
}

static void run_direction(test_device *d, channels_case *c, spops_dtype dtype, int64_t pad,
                          uint64_t stream)
{
    const test_matrix wide_in = test_input("x", c->max_coarse, c->children * c->channels, dtype,
                                           VALUES_RANDOM),
                      narrow_in = test_input("x", c->max_fine, c->channels, dtype, VALUES_RANDOM);
    const test_matrix wide = test_output("out", c->max_coarse, c->children * c->channels, dtype,
                                         CHECK_SAME),
                      narrow = test_output("out", c->max_fine, c->channels, dtype, CHECK_SAME);
    test_operator op = {.what = c->to_space ? "channel to space" : "space to channel",
                        .stream = stream,
                        .user = c,
                        .run = run_channels,
                        .reference = reference_channels};
    op.in[0] = test_view(c->to_space ? wide_in : narrow_in, pad, pad % 3);
    op.out[0] = test_view(c->to_space ? narrow : wide, pad, pad % 2);
    test_operator_run(d, &op);
}

static void check_channels(test_device *d, channels_case *c, spops_dtype dtype, int64_t pad,
                           uint64_t stream)
{
    c->to_space = true;
    c->call = spops_channel_to_space_execute;
    run_direction(d, c, dtype, pad, stream);
    c->call = spops_space_to_channel_execute_backward;
    run_direction(d, c, dtype, pad, stream + 1);
    c->to_space = false;
    c->call = spops_space_to_channel_execute;
    run_direction(d, c, dtype, pad, stream + 2);
    c->call = spops_channel_to_space_execute_backward;
    run_direction(d, c, dtype, pad, stream + 3);
}

static ref_set rows_of(test_device *d, const spops_coords *set, int64_t *max_rows)
{
    held_set held = held_set_of(d, set, "rows");
    ref_set rows = ref_set_in_order(&held);
    *max_rows = held.info.max_rows;
    held_set_free(&held);
    return rows;
}

// Both sets have room to spare and rows that meet none of the other set.
static void make_sets(test_device *d, channels_case *c, int order, test_rng *rng)
{
    spops_coords_box box = {{0, -8, -8, -8, -8}, {1, 8, 8, 8, 8}}, fine_box = {{0}, {1}};
    spops_coords_options o = spops_coords_options_default();
    const int64_t n = 40, keeps = n * c->children;
    int32_t host[40 * (1 + SPOPS_MAX_DIMS)], num = 30;

    for (int a = 0; a < SPOPS_MAX_DIMS; ++a) {
        if (a >= c->dims) box.lower[1 + a] = box.upper[1 + a] = 0;
        fine_box.lower[1 + a] = c->factor * box.lower[1 + a];
        fine_box.upper[1 + a] = c->factor * (box.upper[1 + a] + (a < c->dims)) - (a < c->dims);
    }
    for (int i = 0; i < n * (1 + c->dims); ++i)
        host[i] = i % (1 + c->dims) == 0 ? (int32_t)test_rng_below(rng, 2)
                                         : (int32_t)test_rng_below(rng, 9) - 4;
    int32_t *rows_on = test_upload_i32(d, host, n * (1 + c->dims));
    int32_t *num_on = test_upload_i32(d, &num, 1);
    uint8_t *keep = draw_keep(keeps, 2, rng), *keep_on = test_upload_u8(d, keep, keeps);
    spops_coords *parents = NULL, *spare = NULL;
    o.order = (spops_coords_order)order;
    o.search = (spops_coords_search)(1 + order % 3);
    o.box = &box;
    if (c->dims == 4) o.search = SPOPS_COORDS_SEARCH_HASH;
    test_expect_ok(d->ctx, spops_coords_reserve(d->ctx, c->dims, n, n, &o, &parents), "parents");
    test_expect_ok(d->ctx, spops_coords_reserve(d->ctx, c->dims, n, n, &o, &c->coarse), "coarse");
    o.box = &fine_box;
    test_expect_ok(d->ctx, spops_coords_reserve(d->ctx, c->dims, keeps, keeps, &o, &c->fine),
                   "fine");
    test_expect_ok(d->ctx, spops_coords_update(d->ctx, parents, num_on, rows_on), "fill");
    test_expect_ok(d->ctx,
                   spops_coords_update_children(d->ctx, c->fine, parents, c->factor, keep_on),
                   "children");
    num = 36; // coarse: also rows without children, without some that have
    test_wait(d);
    cr_assert(device_upload(d->backend, num_on, &num, sizeof num));
    test_expect_ok(d->ctx,
                   spops_coords_update(d->ctx, c->coarse, num_on, rows_on + 4 * (1 + c->dims)),
                   "fill");
    test_wait(d);
    spops_coords_destroy(parents), spops_coords_destroy(spare);
    test_free(d, rows_on), test_free(d, num_on), test_free(d, keep_on);
    free(keep);
    c->coarse_rows = rows_of(d, c->coarse, &c->max_coarse);
    c->fine_rows = rows_of(d, c->fine, &c->max_fine);
}

static const int factors[] = {2, 3};

CaseTest(children, channels, every_case(test_row_dtypes, NUM_REAL_DTYPES, factors, 2),
         .timeout = 600)
{
    static const int64_t channels[] = {16, 5, 130, 0, 8};
    test_rng rng = test_rng_make((case_number(p) << 32) + 7003);
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int i = 0; i < 5; ++i) {
        channels_case c = {.dims = 1 + (i + 2) % 4, .factor = p->op, .channels = channels[i]};
        c.children = 1;
        for (int a = 0; a < c.dims; ++a)
            c.children *= c.factor;
        make_sets(&d, &c, i % 4, &rng);
        check_channels(&d, &c, (spops_dtype)p->dtype, i % 2 == 0 ? 0 : i,
                       (case_number(p) << 32) + 8 * (uint64_t)i);
        spops_coords_destroy(c.coarse), spops_coords_destroy(c.fine);
        ref_set_free(&c.coarse_rows), ref_set_free(&c.fine_rows);
    }
    test_close(&d);
}

// ---- Refusals -----------------------------------------------------------------------------------

BackendTest(children, refuses)
{
    static const int32_t rows[2 * 4] = {0, 1, 2, 3, 1, -1, 0, 5};
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    spops_coords *const untouched = (spops_coords *)(uintptr_t)64;
    spops_coords *in = NULL, *flat = NULL, *out = untouched;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    int32_t *on = test_upload_i32(&d, rows, 8);
    uint8_t *keep = test_upload_u8(&d, (const uint8_t *)rows, 16);
    spops_kernel_shape k;

    test_expect_ok(d.ctx, spops_coords_create(d.ctx, 3, 2, on, NULL, &in), "in");
    test_expect_ok(d.ctx, spops_coords_create(d.ctx, 1, 4, on, NULL, &flat), "flat");
    test_expect(d.ctx, spops_coords_create_children(d.ctx, in, 0, keep, NULL, &out), invalid,
                "coords_create_children: factor is 0, expected 1 to 7", "factor");
    test_expect(d.ctx, spops_coords_create_children(d.ctx, in, 8, keep, NULL, &out), invalid,
                "factor is 8", "factor");
    test_expect(d.ctx, spops_coords_create_children(d.ctx, in, 2, NULL, NULL, &out), invalid,
                "coords_create_children: keep is NULL, expected 16 elements", "keep");
    test_expect(d.ctx, spops_coords_create_children(d.ctx, NULL, 2, keep, NULL, &out), invalid,
                "in is NULL", "in");
    cr_assert(out == NULL);
#define BEND(fragment, ...)                                                                        \
    (k = spops_kernel_shape_cube(3, 3, 1, 1), __VA_ARGS__,                                         \
     test_expect(d.ctx, spops_coords_create_grown(d.ctx, in, &k, keep, NULL, &out), invalid,       \
                 fragment, fragment))
    BEND("kernel.size[1] is 2, expected an odd number", k.size[1] = 2);
    BEND("kernel.stride[2] is 2, expected 1 to 1", k.stride[2] = 2);
    BEND("kernel.padding[0] is 2, expected 0 or 1", k.padding[0] = 2);
    BEND("kernel.dims is 2", k.dims = 2);
    BEND("which reaches 6442450941 cells", k.size[0] = 7, k.dilation[0] = INT32_MAX);
#undef BEND
    k = spops_kernel_shape_cube(3, 3, 1, 1);
    test_expect(d.ctx, spops_coords_create_grown(d.ctx, in, &k, NULL, NULL, &out), invalid,
                "coords_create_grown: marks is NULL, expected 2 elements", "marks");
    test_expect(d.ctx, spops_coords_update_children(d.ctx, in, in, 2, keep), invalid,
                "coords is in, expected another set", "itself");
    test_expect(d.ctx, spops_coords_update_grown(d.ctx, in, in, &k, keep), invalid,
                "coords is in, expected another set", "itself");
    const spops_matrix x = spops_matrix_dense(on, 2, 8, SPOPS_DTYPE_F32);
    test_expect(d.ctx, spops_channel_to_space_execute(d.ctx, in, flat, 2, x, x), invalid,
                "fine has 1 axes, expected 3 as coarse has", "axes");
    test_expect(d.ctx, spops_channel_to_space_execute(d.ctx, in, in, 9, x, x), invalid,
                "factor is 9, expected 1 to 7", "factor");
    test_expect(d.ctx, spops_space_to_channel_execute(d.ctx, NULL, in, 2, x, x), invalid,
                "coarse is NULL", "coarse");
    spops_coords_destroy(in), spops_coords_destroy(flat);
    test_free(&d, on), test_free(&d, keep);
    test_close(&d);
}
