// SPDX-License-Identifier: Apache-2.0
// Kernel maps: every part against brute force, on every search strategy and thread count; the
// workloads' pairs; inverse maps; refilling on the stream; what is refused.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "maps/kernel_maps.h"
#include "support/device.h"
#include "tests/support/coord_cases.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

enum {
    ALL_CONTENTS =
        SPOPS_MAP_TABLE | SPOPS_MAP_ORDER | SPOPS_MAP_PAIRS | SPOPS_MAP_CSR | SPOPS_MAP_REVERSE
};
static const spops_coords_search searches[] = {SPOPS_COORDS_SEARCH_HASH, SPOPS_COORDS_SEARCH_GRID,
                                               SPOPS_COORDS_SEARCH_SORTED};
static spops_kernel_map *const untouched = (spops_kernel_map *)16;

static spops_coords *create_set(test_device *d, spops_context *ctx, int32_t dims, int64_t n,
                                const int32_t *rows, spops_coords_search search, bool may_fail)
{
    spops_coords_options options = spops_coords_options_default();
    spops_coords *coords = NULL;
    int32_t *given = test_upload_i32(d, rows, n * (dims + 1));
    options.search = search;
    options.max_grid_bytes = (size_t)16 << 20;
    const spops_status status = spops_coords_create(ctx, dims, n, given, &options, &coords);
    if (!may_fail) test_expect_ok(ctx, status, "set");
    test_free(d, given);
    return coords;
}

// ---- against brute force ----

typedef struct map_case {
    spops_kernel_map_kind kind;
    spops_kernel_shape kernel;
    int32_t contents, tile_rows, no_symmetry;
} map_case;

static const char *describe(char text[256], const map_case *c, const char *cloud, const char *more)
{
    static const char *kinds[] = {"submanifold", "convolution", "transposed"};
    const spops_kernel_shape *k = &c->kernel;
    return test_describe(
        text, "%s of %s, %d axes, size %d %d %d, stride %d %d, dilation %d, contents %d %s",
        kinds[c->kind], cloud, k->dims, k->size[0], k->size[1], k->size[2], k->stride[0],
        k->stride[1], k->dilation[0], c->contents, more);
}

static held_map build(test_device *d, spops_context *ctx, const map_case *c, const spops_coords *in,
                      const spops_coords *out, const char *what)
{
    spops_kernel_map_options o = spops_kernel_map_options_default();
    spops_kernel_map *map = untouched;
    o.contents = c->contents;
    o.tile_rows = c->tile_rows;
    o.no_symmetry = c->no_symmetry;
    test_expect_ok(ctx, spops_kernel_map_create(ctx, c->kind, &c->kernel, in, out, &o, &map), what);
    held_map held = held_map_of(d, map, SPOPS_STATUS_OK, what);
    cr_assert((held.info.contents & c->contents) == c->contents, "%s", what);
    spops_kernel_map_destroy(map);
    return held;
}

// One case on every search strategy; on the CPU also with other thread counts.
static void check_case(test_device *d, const map_case *c, const char *cloud, const ref_set *in,
                       const ref_set *out)
{
    char text[256];
    const char *what = describe(text, c, cloud, "");
    const bool same = c->kind == SPOPS_MAP_SUBMANIFOLD;
    int32_t *table = ref_map(c->kind, &c->kernel, in, same ? in : out);
    held_map first;
    bool have_first = false;
    const int repeats = d->backend == SPOPS_BACKEND_CPU ? 2 : 1;
    for (int s = 0; s < 3; ++s)
        for (int repeat = 0; repeat < repeats; ++repeat) {
            spops_context *ctx = repeat == 0 ? d->ctx : test_context(d, s + 1);
            spops_coords *a = create_set(d, ctx, in->dims, in->n, in->rows, searches[s],
                                         searches[s] == SPOPS_COORDS_SEARCH_GRID);
            spops_coords *b = a == NULL || same ? NULL
                                                : create_set(d, ctx, out->dims, out->n, out->rows,
                                                             searches[(s + repeat) % 2 * 2], false);
            if (a != NULL) {
                held_map held = build(d, ctx, c, a, b, what);
                held_map_check(&held, in->n, same ? in->n : out->n, table, what);
                if (have_first) held_map_check_same(&first, &held, what);
                if (have_first)
                    held_map_free(&held);
                else
                    first = held, have_first = true;
            }
            spops_coords_destroy(a), spops_coords_destroy(b);
            if (repeat > 0) spops_context_destroy(ctx);
        }
    cr_assert(have_first);
    held_map_free(&first);
    free(table);
    checked_alloc_check(&d->memory, what);
}

static void fill_kernel(spops_kernel_shape *k, int32_t dims, int32_t size, int32_t stride,
                        int32_t dilation, int32_t padding)
{
    *k = spops_kernel_shape_cube(dims, size, stride, dilation);
    for (int32_t a = 0; a < dims; ++a)
        k->padding[a] = padding;
}

// Kernels of submanifold layers: odd, not cubic, dilated.
static int submanifold_kernels(int32_t dims, spops_kernel_shape *k)
{
    int n = 0;
    fill_kernel(&k[n++], dims, 3, 1, 1, 0);
    fill_kernel(&k[n++], dims, 1, 1, 1, 0);
    fill_kernel(&k[n++], dims, 3, 1, 2, 2);
    if (dims < 4) fill_kernel(&k[n++], dims, 5, 1, 1, 2);
    if (dims < 3) fill_kernel(&k[n++], dims, 7, 1, 1, 0);
    fill_kernel(&k[n], dims, 1, 1, 1, 0);
    for (int32_t a = 0; a < dims; ++a) {
        k[n].size[a] = 1 + 2 * ((a + 1) % 3);
        k[n].dilation[a] = 1 + a;
    }
    return n + 1;
}

static int other_kernels(int32_t dims, spops_kernel_shape *k)
{
    int n = 0;
    fill_kernel(&k[n++], dims, 2, 2, 1, 0);
    fill_kernel(&k[n++], dims, 3, 2, 1, 1);
    fill_kernel(&k[n++], dims, 3, 1, 1, 1);
    fill_kernel(&k[n++], dims, 4, 3, 2, -1);
    if (dims == 3) fill_kernel(&k[n++], dims, 6, 1, 1, 2);
    if (dims == 2) fill_kernel(&k[n++], dims, 7, 4, 1, 3);
    fill_kernel(&k[n], dims, 1, 1, 1, 0);
    for (int32_t a = 0; a < dims; ++a) {
        k[n].size[a] = 1 + (a + 2) % 5;
        k[n].stride[a] = 1 + a % 3;
        k[n].dilation[a] = 1 + (a + 1) % 2;
        k[n].padding[a] = 1 - a;
    }
    return n + 1;
}

static ref_set set_of(test_cloud cloud, int32_t dims, test_rng *rng)
{
    cloud_rows rows = cloud_make(cloud, dims, false, rng);
    ref_set set = ref_unique(dims, rows.n, rows.rows, NULL);
    cloud_free(&rows);
    return set;
}

// The largest kernel there is: 7 taps on each of 4 axes.
static int widest_kernel(spops_kernel_shape *k)
{
    fill_kernel(k, 4, 7, 1, 1, 0);
    return 1;
}

static void check_cloud(test_device *d, test_cloud cloud, int32_t dims, test_rng *rng)
{
    spops_kernel_shape kernels[8];
    ref_set in = set_of(cloud, dims, rng);
    int n = submanifold_kernels(dims, kernels);
    if (dims == 4 && cloud == CLOUD_LINE) n = widest_kernel(kernels);
    for (int i = 0; i < n; ++i) {
        const map_case c = {SPOPS_MAP_SUBMANIFOLD, kernels[i], ALL_CONTENTS, 8 << i, 0};
        check_case(d, &c, cloud_name(cloud), &in, NULL);
    }
    n = other_kernels(dims, kernels);
    for (int i = 0; i < n; ++i) {
        if (cloud == CLOUD_FAR && kernels[i].stride[0] == 1) continue; // outputs leave int32
        const ref_set fewer = ref_window(&in, &kernels[i], false, NULL);
        const map_case down = {SPOPS_MAP_CONVOLUTION, kernels[i], ALL_CONTENTS, 16, 0};
        check_case(d, &down, cloud_name(cloud), &in, &fewer);
        const map_case up = {SPOPS_MAP_TRANSPOSED, kernels[i], ALL_CONTENTS, 0, 0};
        check_case(d, &up, cloud_name(cloud), &fewer, &in);
        ref_set_free((ref_set *)&fewer);
    }
    ref_set_free(&in);
}

struct dims_param {
    int backend;
    int32_t dims;
};

ParameterizedTestParameters(kernel_map, agrees)
{
    static const int backends[] = {SPOPS_BACKEND_CPU, SPOPS_BACKEND_CUDA};
    enum { NUM = 2 * SPOPS_MAX_DIMS };
    static struct dims_param params[NUM];
    for (int i = 0; i < NUM; ++i)
        params[i] = (struct dims_param){backends[i % 2], SPOPS_MAX_DIMS - i / 2};
    return tested_here(cr_make_param_array(struct dims_param, params, NUM));
}
ParameterizedTest(struct dims_param *p, kernel_map, agrees)
{
    test_device d;
    test_rng rng = test_rng_make(501 + (uint64_t)p->dims);
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (test_cloud cloud = CLOUD_EMPTY; cloud < NUM_CLOUDS; ++cloud)
        check_cloud(&d, cloud, p->dims, &rng);
    test_close(&d);
}

// Each part alone, and with the reverse; the search of every tap; sets that share nothing.
BackendTest(kernel_map, contents)
{
    static const int32_t contents[] = {0,
                                       SPOPS_MAP_TABLE,
                                       SPOPS_MAP_ORDER,
                                       SPOPS_MAP_PAIRS,
                                       SPOPS_MAP_CSR,
                                       SPOPS_MAP_REVERSE,
                                       SPOPS_MAP_PAIRS | SPOPS_MAP_REVERSE,
                                       SPOPS_MAP_CSR | SPOPS_MAP_REVERSE,
                                       SPOPS_MAP_ORDER | SPOPS_MAP_REVERSE,
                                       SPOPS_MAP_FOR_ONE_CONV,
                                       SPOPS_MAP_FOR_ONE_CONV | SPOPS_MAP_ORDER,
                                       ALL_CONTENTS};
    test_device d;
    test_rng rng = test_rng_make(502);
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    ref_set in = set_of(CLOUD_CLUMPS, 3, &rng), other = set_of(CLOUD_SPARSE, 3, &rng);
    ref_set none = set_of(CLOUD_EMPTY, 3, &rng);
    for (size_t i = 0; i < sizeof contents / sizeof *contents; ++i) {
        map_case c = {SPOPS_MAP_SUBMANIFOLD, spops_kernel_shape_cube(3, 3, 1, 1), contents[i], 0,
                      0};
        check_case(&d, &c, "clumps", &in, NULL);
        c.no_symmetry = 1;
        check_case(&d, &c, "clumps (plain)", &in, NULL);
        c.kind = SPOPS_MAP_CONVOLUTION;
        fill_kernel(&c.kernel, 3, 3, 2, 1, 1);
        check_case(&d, &c, "sets apart", &in, &other);
        check_case(&d, &c, "no outputs", &in, &none);
        check_case(&d, &c, "no inputs", &none, &in);
        c.kind = SPOPS_MAP_TRANSPOSED;
        check_case(&d, &c, "sets apart", &in, &other);
    }
    ref_set_free(&in), ref_set_free(&other), ref_set_free(&none);
    test_close(&d);
}

// ---- the workloads ----

// Pairs of a submanifold 3 x 3 x 3 layer per tap, by two pointers over lexicographically sorted
// coordinates; counted apart from ref_map, whose searches would take long here.
static void count_taps(int64_t n, const int32_t *xyz, int64_t counts[27])
{
    int64_t extent[3] = {0, 0, 0};
    int64_t *keys = (int64_t *)calloc((size_t)n, sizeof *keys);
    for (int64_t i = 0; i < n; ++i)
        for (int a = 0; a < 3; ++a)
            if (xyz[3 * i + a] + 3 > extent[a]) extent[a] = xyz[3 * i + a] + 3;
    for (int64_t i = 0; i < n; ++i)
        keys[i] =
            ((xyz[3 * i] + 1) * extent[1] + xyz[3 * i + 1] + 1) * extent[2] + xyz[3 * i + 2] + 1;
    for (int k = 0; k < 27; ++k) {
        const int64_t shift = ((k / 9 - 1) * extent[1] + k / 3 % 3 - 1) * extent[2] + k % 3 - 1;
        counts[k] = 0;
        for (int64_t i = 0, j = 0; i < n; ++i) {
            cr_assert(i == 0 || keys[i] > keys[i - 1], "the workload is not sorted");
            while (j < n && keys[j] < keys[i] + shift)
                ++j;
            counts[k] += j < n && keys[j] == keys[i] + shift;
        }
    }
    free(keys);
}

BackendTest(kernel_map, workloads)
{
    static const struct {
        const char *name;
        int64_t n, pairs;
    } files[] = {{"conv_lidar.npy", 82329, 488191},
                 {"conv_indoor.npy", 200000, 2672352},
                 {"conv_shell.npy", 252392, 3203048}};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int f = 0; f < 3; ++f) {
        int64_t n = 0, cols = 0, counts[27];
        int32_t *xyz = NULL;
        if (!cloud_load_i32(files[f].name, &n, &cols, &xyz)) continue;
        cr_assert(n == files[f].n && cols == 3, "%s", files[f].name);
        count_taps(n, xyz, counts);
        int32_t *rows = (int32_t *)calloc((size_t)n, 16);
        for (int64_t i = 0; i < n; ++i)
            memcpy(rows + 4 * i + 1, xyz + 3 * i, 12);
        held_map first;
        for (int s = 0; s < 3; ++s) {
            if (test_quick() && s < 2) continue;
            spops_coords_options o = spops_coords_options_default();
            o.search = searches[s];
            o.max_grid_bytes = (size_t)1 << 30;
            spops_coords *coords = test_create_set(&d, 3, n, rows, &o);
            const map_case c = {SPOPS_MAP_SUBMANIFOLD, spops_kernel_shape_cube(3, 3, 1, 1),
                                ALL_CONTENTS, 0, 0};
            held_map held = build(&d, d.ctx, &c, coords, NULL, files[f].name);
            cr_assert(held.info.num_pairs == files[f].pairs, "%s: %lld pairs", files[f].name,
                      (long long)held.info.num_pairs);
            for (int k = 0; k < 27; ++k)
                cr_assert(held.tap_counts[k] == counts[k], "%s: tap %d has %d pairs, expected %lld",
                          files[f].name, k, held.tap_counts[k], (long long)counts[k]);
            spops_coords_destroy(coords);
            held_map_check_order(&held, &held.out, files[f].name);
            if (s == 0 || test_quick()) {
                first = held;
                continue;
            }
            held_map_check_same(&first, &held, files[f].name);
            held_map_free(&held);
        }
        // A sample of rows, tap by tap.
        ref_set all = ref_unique(3, n, rows, NULL);
        for (int64_t i = 0; i < n; i += 997)
            for (int k = 0; k < 27; ++k) {
                const int32_t *at = rows + 4 * i;
                const int32_t row[4] = {at[0], at[1] + k / 9 - 1, at[2] + k / 3 % 3 - 1,
                                        at[3] + k % 3 - 1};
                cr_assert(first.out.table[i * first.view.table_stride + k] == ref_find(&all, row),
                          "%s: row %lld, tap %d", files[f].name, (long long)i, k);
            }
        ref_set_free(&all);
        held_map_free(&first);
        free(rows), free(xyz);
    }
    test_close(&d);
}

// ---- sets in an order of their own ----

// The map of a set that several threads share: the first search of it makes what searches need.
typedef struct shared_work {
    spops_context *ctx;
    const spops_coords *set;
    spops_kernel_map *map;
    spops_status status;
} shared_work;

static void *map_in_thread(void *argument)
{
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_kernel_map_options o = spops_kernel_map_options_default();
    shared_work *work = (shared_work *)argument;
    o.contents = ALL_CONTENTS;
    work->status = spops_kernel_map_create(work->ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, work->set,
                                           NULL, &o, &work->map);
    return NULL;
}

static spops_coords *ordered_set(test_device *d, int64_t n, const int32_t *rows,
                                 spops_coords_order order)
{
    spops_coords_options options = spops_coords_options_default();
    options.order = order;
    return test_create_set(d, 3, n, rows, &options);
}

static held_map map_of_shared(test_device *d, const spops_coords *set, const char *what)
{
    enum { NUM_THREADS = 4 };
    shared_work work[NUM_THREADS];
    pthread_t threads[NUM_THREADS];
    held_map first;
    spops_context_options options = spops_context_options_default();
    options.backend = d->backend;
    options.num_threads = 2;
    memset(work, 0, sizeof work);
    for (int i = 0; i < NUM_THREADS; ++i) { // the test's own allocator counts for one thread
        test_expect_ok(NULL, spops_context_create(&options, &work[i].ctx), what);
        work[i].set = set;
    }
    for (int i = 0; i < NUM_THREADS; ++i)
        cr_assert(pthread_create(&threads[i], NULL, map_in_thread, &work[i]) == 0);
    for (int i = 0; i < NUM_THREADS; ++i)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < NUM_THREADS; ++i) {
        test_expect_ok(work[i].ctx, work[i].status, what);
        held_map held = held_map_of(d, work[i].map, SPOPS_STATUS_OK, what);
        if (i == 0) {
            first = held;
        } else {
            held_map_check_same(&first, &held, what);
            held_map_free(&held);
        }
        spops_kernel_map_destroy(work[i].map);
        spops_context_destroy(work[i].ctx);
    }
    return first;
}

// Against the same rows given in that order, as a set keeps them that is told so.
BackendTest(kernel_map, ordered_sets)
{
    static const int64_t sizes[] = {0, 1, 700, 30000};
    test_device d;
    test_rng rng = test_rng_make(507);
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    int32_t *rows = calloc((size_t)sizes[3], 4 * sizeof *rows);
    for (int64_t i = 0; i < sizes[3]; ++i) {
        rows[4 * i + 1] = (int32_t)(i / 900) - 7;
        rows[4 * i + 2] = (int32_t)(i / 30 % 30);
        rows[4 * i + 3] = (int32_t)(2 * (i % 30)) + (int32_t)test_rng_below(&rng, 2);
    }
    for (int size = 0; size < 4; ++size)
        for (int order = SPOPS_COORDS_ORDER_LEXICOGRAPHIC; order <= SPOPS_COORDS_ORDER_HILBERT;
             ++order) {
            char what[64];
            spops_coords_view view = spops_coords_view_default();
            const int64_t n = sizes[size];
            snprintf(what, sizeof what, "%lld rows, order %d", (long long)n, order);
            spops_coords *set = ordered_set(&d, n, rows, (spops_coords_order)order);
            held_map shared = map_of_shared(&d, set, what);
            test_expect_ok(d.ctx, spops_coords_get_view(d.ctx, set, &view), what);
            int32_t *turned = calloc((size_t)(n > 0 ? n : 1), 4 * sizeof *turned);
            if (n > 0) test_download_i32(&d, turned, view.rows, 4 * n);
            spops_coords *given = ordered_set(&d, n, turned, SPOPS_COORDS_ORDER_GIVEN);
            held_map expected = map_of_shared(&d, given, what);
            cr_assert(n < 2 || shared.info.num_pairs > n, "%s", what);
            held_map_check_same(&expected, &shared, what);
            held_map_free(&expected), held_map_free(&shared);
            spops_coords_destroy(given), spops_coords_destroy(set);
            free(turned);
        }
    free(rows);
    test_close(&d);
}

// ---- the order of rows, around the sizes at which it is made in another way ----

// Row i of n: one of two neighbouring places along a line that is folded into space.
static int32_t *scattered_rows(int64_t n, test_rng *rng)
{
    int32_t *rows = (int32_t *)calloc((size_t)(n > 0 ? n : 1), 16);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t place = 2 * i + (int64_t)test_rng_below(rng, 2);
        rows[4 * i + 1] = (int32_t)(place / (64 * 64)) - 5;
        rows[4 * i + 2] = (int32_t)(place / 64 % 64);
        rows[4 * i + 3] = (int32_t)(place % 64);
    }
    return rows;
}

static void check_order_of(test_device *d, int64_t n, const int32_t *rows, const map_case *c)
{
    char text[256], size[32];
    snprintf(size, sizeof size, "of %lld rows", (long long)n);
    const char *what = describe(text, c, "a folded line", size);
    spops_coords *set = create_set(d, d->ctx, 3, n, rows, SPOPS_COORDS_SEARCH_HASH, false);
    held_map held = build(d, d->ctx, c, set, c->kind == SPOPS_MAP_SUBMANIFOLD ? NULL : set, what);
    cr_assert(held.out.n == n && held.info.num_pairs >= n / 4, "%s", what);
    held_map_check_order(&held, &held.out, what);
    held_map_free(&held);
    spops_coords_destroy(set);
    checked_alloc_check(&d->memory, what);
}

BackendTest(kernel_map, orders)
{
    static const int64_t sizes[] = {0,    1,    31,     2047,   2048,   2049,
                                    4097, 9000, 131072, 131073, 524288, 524289};
    test_device d;
    test_rng rng = test_rng_make(506);
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    int32_t *rows = scattered_rows(sizes[11], &rng);
    map_case c = {SPOPS_MAP_SUBMANIFOLD, spops_kernel_shape_cube(3, 3, 1, 1), SPOPS_MAP_ORDER, 0,
                  0};
    for (int i = 0; i < 12; ++i)
        if (sizes[i] < 100000 || !test_quick()) check_order_of(&d, sizes[i], rows, &c);
    for (int32_t size = 1; size <= 5; ++size) {
        c.kind = SPOPS_MAP_CONVOLUTION;
        fill_kernel(&c.kernel, 3, size, 1, 1, size / 2);
        check_order_of(&d, 9000, rows, &c);
        c.kernel.size[0] = 1; // ranks of 1, 4, 9, 16 and 25 bits
        check_order_of(&d, 9000, rows, &c);
    }
    free(rows);
    test_close(&d);
}

// Into a capacity: fewer rows than there is room for, after more of them.
LaunchTest(kernel_map, orders_set)
{
    enum { CAPACITY = 140000 };
    static const spops_coords_box box = {{0, -8, 0, 0, 0}, {0, 100, 63, 63, 0}};
    static const int32_t counts[] = {20000, CAPACITY, 60, 5000, 0};
    test_device d;
    test_rng rng = test_rng_make(507);
    spops_coords *set = NULL;
    spops_kernel_map *map = NULL;
    device_graph *graph = NULL;
    void *given = NULL;
    spops_coords_options o = spops_coords_options_default();
    spops_kernel_map_options m = spops_kernel_map_options_default();
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    int32_t *rows = scattered_rows(CAPACITY, &rng);
    int32_t *on_device = test_upload_i32(&d, rows, 4 * CAPACITY);
    o.box = &box;
    m.contents = SPOPS_MAP_ORDER;
    test_expect_ok(d.ctx, spops_coords_reserve(d.ctx, 3, CAPACITY, CAPACITY, &o, &set), "set");
    test_expect_ok(
        d.ctx, spops_kernel_map_reserve(d.ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, set, NULL, &m, &map),
        "map");
    cr_assert(device_alloc(d.backend, sizeof counts[0], &given), "%s", device_error());
    if (d.launch == LAUNCH_CAPTURED) {
        cr_assert(device_capture_begin(d.stream), "%s", device_error());
        spops_status status = spops_coords_update(d.ctx, set, (int32_t *)given, on_device);
        if (status == SPOPS_STATUS_OK) status = spops_kernel_map_update(d.ctx, map, set, NULL);
        cr_assert(device_capture_end(d.stream, &graph), "%s", device_error());
        test_expect_ok(d.ctx, status, "captured");
    }
    for (int i = 0; i < 5; ++i) {
        char text[256];
        const char *what = test_describe(text, "%d rows of %d", counts[i], CAPACITY);
        cr_assert(device_upload(d.backend, given, &counts[i], sizeof counts[i]), "%s",
                  device_error());
        if (graph != NULL) {
            cr_assert(device_graph_launch(graph, d.stream), "%s", device_error());
        } else {
            test_expect_ok(d.ctx, spops_coords_update(d.ctx, set, (int32_t *)given, on_device),
                           what);
            test_expect_ok(d.ctx, spops_kernel_map_update(d.ctx, map, set, NULL), what);
        }
        test_wait(&d);
        held_map held = held_map_of(&d, map, SPOPS_STATUS_OK, what);
        cr_assert(held.out.n == counts[i], "%s: %lld in use", what, (long long)held.out.n);
        held_map_check_order(&held, &held.out, what);
        held_map_free(&held);
    }
    device_graph_destroy(graph);
    spops_kernel_map_destroy(map), spops_coords_destroy(set);
    test_free(&d, given), test_free(&d, on_device);
    free(rows);
    test_close(&d);
}

// ---- real scans ----

static const char *const scans[] = {"airborne_autzen_a.npy",    "argoverse2_a.npy",
                                    "indoor_redkitchen_a.npy",  "indoor_roomscan_a.npy",
                                    "kitti_det_000008_fov.npy", "kitti_odom_a.npy",
                                    "kitti_odom_b.npy",         "nuscenes_a.npy",
                                    "nuscenes_b.npy",           "spconv_benchmark_pc.npy"};

// A stretch of a scan as voxels of 0.2 m around the sensor: both signs, two batches.
static ref_set scan_set(int64_t n, int64_t cols, const float *points)
{
    const int64_t most = n < 20000 ? n : 20000;
    int32_t *rows = (int32_t *)calloc((size_t)most, 16);
    for (int64_t i = 0; i < most; ++i) {
        rows[4 * i] = (int32_t)(i % 2);
        for (int a = 0; a < 3; ++a)
            rows[4 * i + a + 1] = (int32_t)floor((double)points[i * cols + a] / 0.2);
    }
    ref_set set = ref_unique(3, most, rows, NULL);
    free(rows);
    return set;
}

BackendTest(kernel_map, scans)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (size_t f = 0; f < sizeof scans / sizeof *scans; ++f) {
        int64_t n = 0, cols = 0;
        float *points = NULL;
        if (test_quick() && f % 4 != 1) continue;
        if (!cloud_load_f32(scans[f], &n, &cols, &points)) continue;
        ref_set in = scan_set(n, cols, points);
        map_case c = {SPOPS_MAP_SUBMANIFOLD, spops_kernel_shape_cube(3, 3, 1, 1 + f % 2),
                      ALL_CONTENTS, 0, 0};
        check_case(&d, &c, scans[f], &in, NULL);
        static const int32_t windows[][4] = {
            {2, 2, 1, 0}, {3, 2, 1, 1}, {3, 3, 2, 1}, {4, 2, 1, 1}};
        for (int w = 0; w < 2; ++w) {
            const int32_t *v = windows[(f + (size_t)w) % 4];
            fill_kernel(&c.kernel, 3, v[0], v[1], v[2], v[3]);
            ref_set fewer = ref_window(&in, &c.kernel, false, NULL);
            c.kind = SPOPS_MAP_CONVOLUTION;
            check_case(&d, &c, scans[f], &in, &fewer);
            c.kind = SPOPS_MAP_TRANSPOSED;
            check_case(&d, &c, scans[f], &fewer, &in);
            ref_set_free(&fewer);
        }
        ref_set_free(&in);
        free(points);
    }
    test_close(&d);
}

// ---- inverse ----

BackendTest(kernel_map, inverse)
{
    test_device d;
    test_rng rng = test_rng_make(503);
    char text[256];
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int32_t dims = 1; dims <= SPOPS_MAX_DIMS; ++dims) {
        spops_kernel_shape kernels[8];
        const int n = other_kernels(dims, kernels);
        ref_set in = set_of(CLOUD_CLUMPS, dims, &rng);
        for (int i = 0; i <= n; ++i) {
            map_case c = {SPOPS_MAP_CONVOLUTION, kernels[i % n], SPOPS_MAP_TABLE, 0, 0};
            if (i == n) {
                c.kind = SPOPS_MAP_SUBMANIFOLD;
                fill_kernel(&c.kernel, dims, 3, 1, 1, 0);
            }
            const char *what = describe(text, &c, "inverse", "");
            ref_set fewer = i == n ? ref_unique(dims, in.n, in.rows, NULL)
                                   : ref_window(&in, &c.kernel, false, NULL);
            spops_coords *fine =
                create_set(&d, d.ctx, dims, in.n, in.rows, SPOPS_COORDS_SEARCH_HASH, false);
            spops_coords *coarse =
                create_set(&d, d.ctx, dims, fewer.n, fewer.rows, SPOPS_COORDS_SEARCH_SORTED, false);
            spops_kernel_map_options o = spops_kernel_map_options_default();
            spops_kernel_map_options table_alone =
                o; // defaults follow from the device and the kind
            spops_kernel_map *down = NULL, *up = NULL, *again = NULL;
            table_alone.contents = SPOPS_MAP_TABLE;
            test_expect_ok(d.ctx,
                           spops_kernel_map_create(d.ctx, c.kind, &c.kernel, fine,
                                                   i == n ? NULL : coarse, &table_alone, &down),
                           what);
            o.contents = ALL_CONTENTS;
            test_expect_ok(d.ctx, spops_kernel_map_create_inverse(d.ctx, down, &o, &up), what);
            held_map held = held_map_of(&d, up, SPOPS_STATUS_OK, what);
            cr_assert(held.info.kind == SPOPS_MAP_TRANSPOSED, "%s", what);
            if (i == n)
                for (int32_t a = 0; a < dims; ++a)
                    c.kernel.padding[a] = 1;
            int32_t *table = ref_map(SPOPS_MAP_TRANSPOSED, &c.kernel, &fewer, &in);
            held_map_check(&held, fewer.n, in.n, table, what);
            // A transposed map of the same sets is the same map, and so is the inverse's inverse.
            spops_kernel_map *direct = NULL;
            test_expect_ok(d.ctx,
                           spops_kernel_map_create(d.ctx, SPOPS_MAP_TRANSPOSED, &c.kernel, coarse,
                                                   fine, &o, &direct),
                           what);
            held_map other = held_map_of(&d, direct, SPOPS_STATUS_OK, what);
            held_map_check_same(&held, &other, what);
            test_expect_ok(d.ctx, spops_kernel_map_create_inverse(d.ctx, up, &table_alone, &again),
                           what);
            held_map back = held_map_of(&d, again, SPOPS_STATUS_OK, what);
            held_map begun = held_map_of(&d, down, SPOPS_STATUS_OK, what);
            held_map_check_same(&begun, &back, what);
            held_map_free(&held), held_map_free(&other), held_map_free(&back),
                held_map_free(&begun);
            spops_kernel_map_destroy(down), spops_kernel_map_destroy(up);
            spops_kernel_map_destroy(direct), spops_kernel_map_destroy(again);
            spops_coords_destroy(fine), spops_coords_destroy(coarse);
            ref_set_free(&fewer);
            free(table);
        }
        ref_set_free(&in);
    }
    test_close(&d);
}

// ---- what is refused ----

BackendTest(kernel_map, refuses)
{
    test_device d;
    test_rng rng = test_rng_make(504);
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    ref_set a = set_of(CLOUD_CLUMPS, 3, &rng), flat = set_of(CLOUD_CLUMPS, 2, &rng);
    spops_coords *in = create_set(&d, d.ctx, 3, a.n, a.rows, SPOPS_COORDS_SEARCH_AUTO, false);
    spops_coords *same = create_set(&d, d.ctx, 3, a.n, a.rows, SPOPS_COORDS_SEARCH_AUTO, false);
    spops_coords *other =
        create_set(&d, d.ctx, 2, flat.n, flat.rows, SPOPS_COORDS_SEARCH_AUTO, false);
    const int64_t live = d.memory.live;
    struct {
        const char *fragment;
        spops_kernel_map_kind kind;
        int32_t size, stride, dilation, padding, dims;
        const spops_coords *in, *out;
        int32_t contents, tile_rows, no_symmetry;
        int64_t max_pairs;
    } cases[] = {
        {"kernel.size[0] is 4, expected an odd", SPOPS_MAP_SUBMANIFOLD, 4, 1, 1, 0, 3, in, in, 0, 0,
         0, 0},
        {"kernel.stride[0] is 2, expected 1", SPOPS_MAP_SUBMANIFOLD, 3, 2, 1, 0, 3, in, in, 0, 0, 0,
         0},
        {"kernel.padding[0] is 2, expected 0 or 1", SPOPS_MAP_SUBMANIFOLD, 3, 1, 1, 2, 3, in, in, 0,
         0, 0, 0},
        {"kernel.dilation[0] is 2147483647", SPOPS_MAP_SUBMANIFOLD, 7, 1, INT32_MAX, 0, 3, in, in,
         0, 0, 0, 0},
        {"kernel.size[0] is 9", SPOPS_MAP_CONVOLUTION, 9, 1, 1, 0, 3, in, same, 0, 0, 0, 0},
        {"kernel.stride[0] is 0", SPOPS_MAP_CONVOLUTION, 3, 0, 1, 0, 3, in, same, 0, 0, 0, 0},
        {"kernel.stride[0] is -1", SPOPS_MAP_TRANSPOSED, 3, -1, 1, 0, 3, in, same, 0, 0, 0, 0},
        {"kernel.dilation[0] is 0", SPOPS_MAP_CONVOLUTION, 3, 1, 0, 0, 3, in, same, 0, 0, 0, 0},
        {"kernel.dims is 2", SPOPS_MAP_CONVOLUTION, 3, 1, 1, 0, 2, in, same, 0, 0, 0, 0},
        {"kind is 3", (spops_kernel_map_kind)3, 3, 1, 1, 0, 3, in, same, 0, 0, 0, 0},
        {"out is another set", SPOPS_MAP_SUBMANIFOLD, 3, 1, 1, 0, 3, in, same, 0, 0, 0, 0},
        {"out is NULL", SPOPS_MAP_CONVOLUTION, 3, 1, 1, 0, 3, in, NULL, 0, 0, 0, 0},
        {"in is NULL", SPOPS_MAP_CONVOLUTION, 3, 1, 1, 0, 3, NULL, in, 0, 0, 0, 0},
        {"out has 2 axes", SPOPS_MAP_CONVOLUTION, 3, 1, 1, 0, 3, in, other, 0, 0, 0, 0},
        {"contents is 256", SPOPS_MAP_CONVOLUTION, 3, 1, 1, 0, 3, in, same, 256, 0, 0, 0},
        {"contents is -1", SPOPS_MAP_CONVOLUTION, 3, 1, 1, 0, 3, in, same, -1, 0, 0, 0},
        {"tile_rows is 100", SPOPS_MAP_CONVOLUTION, 3, 1, 1, 0, 3, in, same, 0, 100, 0, 0},
        {"tile_rows is 4", SPOPS_MAP_CONVOLUTION, 3, 1, 1, 0, 3, in, same, 0, 4, 0, 0},
        {"tile_rows is -8", SPOPS_MAP_CONVOLUTION, 3, 1, 1, 0, 3, in, same, 0, -8, 0, 0},
        {"tile_rows is 2048", SPOPS_MAP_CONVOLUTION, 3, 1, 1, 0, 3, in, same, 0, 2048, 0, 0},
        {"no_symmetry is 2", SPOPS_MAP_CONVOLUTION, 3, 1, 1, 0, 3, in, same, 0, 0, 2, 0},
        {"max_pairs is -1", SPOPS_MAP_CONVOLUTION, 3, 1, 1, 0, 3, in, same, 0, 0, 0, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        spops_kernel_map *map = untouched;
        spops_kernel_shape k;
        spops_kernel_map_options o = spops_kernel_map_options_default();
        fill_kernel(&k, cases[i].dims, cases[i].size, cases[i].stride, cases[i].dilation,
                    cases[i].padding);
        o.contents = cases[i].contents, o.tile_rows = cases[i].tile_rows,
        o.no_symmetry = cases[i].no_symmetry;
        o.max_pairs = cases[i].max_pairs;
        test_expect(
            d.ctx,
            spops_kernel_map_create(d.ctx, cases[i].kind, &k, cases[i].in, cases[i].out, &o, &map),
            invalid, cases[i].fragment, cases[i].fragment);
        cr_assert(map == NULL && d.memory.live == live, "%s", cases[i].fragment);
        map = untouched;
        test_expect(
            d.ctx,
            spops_kernel_map_reserve(d.ctx, cases[i].kind, &k, cases[i].in, cases[i].out, &o, &map),
            invalid, cases[i].fragment, cases[i].fragment);
        cr_assert(map == NULL && d.memory.live == live, "%s", cases[i].fragment);
    }
    const spops_kernel_shape k = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_kernel_map_options o = spops_kernel_map_options_default();
    spops_kernel_map *map = NULL, *other_map = untouched;
    test_expect(NULL,
                spops_kernel_map_create(NULL, SPOPS_MAP_SUBMANIFOLD, &k, in, NULL, NULL, &map),
                invalid, "ctx is NULL", "no ctx");
    test_expect(d.ctx,
                spops_kernel_map_create(d.ctx, SPOPS_MAP_SUBMANIFOLD, &k, in, NULL, NULL, NULL),
                invalid, "map is NULL", "no map");
    o.contents = SPOPS_MAP_PAIRS;
    test_expect_ok(d.ctx,
                   spops_kernel_map_create(d.ctx, SPOPS_MAP_SUBMANIFOLD, &k, in, NULL, &o, &map),
                   "pairs");
    test_expect(d.ctx, spops_kernel_map_create_inverse(d.ctx, map, NULL, &other_map), invalid,
                "of has no table", "inverse without a table");
    test_expect(d.ctx, spops_kernel_map_update(d.ctx, map, in, NULL), invalid,
                "not made by kernel_map_reserve", "set");
    test_expect(d.ctx, spops_kernel_map_create_inverse(d.ctx, NULL, NULL, &other_map), invalid,
                "of is NULL", "inverse of nothing");
    spops_kernel_map_destroy(map);
    spops_kernel_map_destroy(NULL);
    spops_coords_destroy(in), spops_coords_destroy(same), spops_coords_destroy(other);
    ref_set_free(&a), ref_set_free(&flat);
    test_close(&d);
}

// So many pairs cannot be had here: a map is told that it found them.
BackendTest(kernel_map, too_many_pairs)
{
    test_device d;
    spops_map_choices choices;
    spops_kernel_map *map = NULL;
    spops_kernel_map_options o = spops_kernel_map_options_default();
    const spops_kernel_shape k = spops_kernel_shape_cube(3, 3, 1, 1);
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    o.contents = SPOPS_MAP_PAIRS;
    test_expect_ok(
        d.ctx, spops_map_read_choices(d.ctx, "test", SPOPS_MAP_SUBMANIFOLD, &k, 3, &o, &choices),
        "choices");
    test_expect_ok(d.ctx, spops_map_alloc(d.ctx, "test", &choices, 9, 9, &map), "alloc");
    map->state.num_pairs = INT32_MAX;
    test_expect(d.ctx, spops_map_finish(d.ctx, "test", map), SPOPS_STATUS_NOT_SUPPORTED,
                "2147483647 pairs, expected at most 2147483646", "too many pairs");
    spops_kernel_map_destroy(map);
    test_close(&d);
}

// ---- refilling on the stream ----

enum { MAX_ROWS = 500 };

typedef struct frame {
    spops_coords *in, *out;
    spops_kernel_map *flat, *down, *up;
    spops_kernel_shape cube, window;
    const int32_t *num_rows, *rows;
} frame;

// A frame: coordinates, those below them, and three maps.
static spops_status enqueue_frame(spops_context *ctx, const frame *f)
{
    spops_status s = spops_coords_update(ctx, f->in, f->num_rows, f->rows);
    if (s == SPOPS_STATUS_OK) s = spops_coords_update_downsampled(ctx, f->out, f->in, &f->window);
    if (s == SPOPS_STATUS_OK) s = spops_kernel_map_update(ctx, f->flat, f->in, NULL);
    if (s == SPOPS_STATUS_OK) s = spops_kernel_map_update(ctx, f->down, f->in, f->out);
    if (s == SPOPS_STATUS_OK) s = spops_kernel_map_update(ctx, f->up, f->out, f->in);
    return s;
}

static void check_frame_map(test_device *d, const spops_kernel_map *map, spops_kernel_map_kind kind,
                            const spops_kernel_shape *kernel, const ref_set *in, const ref_set *out,
                            const char *what)
{
    int32_t *table = ref_map(kind, kernel, in, out);
    int64_t pairs = 0;
    for (int64_t i = 0; i < out->n * ref_num_taps(kernel); ++i)
        pairs += table[i] >= 0;
    spops_kernel_map_view view = spops_kernel_map_view_default();
    test_expect_ok(d->ctx, spops_kernel_map_get_view(d->ctx, map, &view), what);
    const bool overflow = pairs > view.max_pairs;
    held_map held =
        held_map_of(d, map, overflow ? SPOPS_STATUS_CAPACITY_EXCEEDED : SPOPS_STATUS_OK, what);
    cr_assert(held.info.overflow == overflow && held.info.num_pairs == pairs, "%s", what);
    if (overflow) { // tables hold, pairs and lists are empty
        for (int32_t k = 0; k <= held.view.num_taps; ++k)
            cr_assert(held.tap_offsets[k] == 0, "%s", what);
        for (int64_t i = 0; i <= held.out.max_rows; ++i)
            cr_assert(held.out.offsets[i] == 0, "%s", what);
        for (int64_t i = 0; i <= held.in.max_rows; ++i)
            cr_assert(held.in.offsets[i] == 0, "%s", what);
        free(held.tap_offsets), free(held.out.offsets), free(held.in.offsets);
        free(held.in_rows), free(held.out_rows);
        held.tap_offsets = held.out.offsets = held.in.offsets = NULL;
        held.in_rows = held.out_rows = NULL;
    }
    held_map_check(&held, in->n, out->n, table, what);
    held_map_free(&held);
    free(table);
}

static void check_frames(test_device *d, spops_coords_search search, test_rng *rng)
{
    static const spops_coords_box box = {{0, -40, -40, -40, 0}, {2, 40, 40, 40, 0}};
    static const int32_t counts[] = {200, 0, MAX_ROWS, 1, 450};
    static const int32_t extents[] = {10, 10, 60, 3, 9};
    char text[256];
    spops_coords_options o = spops_coords_options_default();
    spops_kernel_map_options m = spops_kernel_map_options_default();
    device_graph *graph = NULL;
    void *num = NULL, *rows = NULL;
    frame f;
    memset(&f, 0, sizeof f);
    f.cube = spops_kernel_shape_cube(3, 3, 1, 1);
    fill_kernel(&f.window, 3, 3, 2, 1, 1);
    o.box = &box;
    o.search = search;
    const int64_t each = spops_kernel_shape_num_candidates(&f.window, 0);
    test_expect_ok(d->ctx, spops_coords_reserve(d->ctx, 3, MAX_ROWS, MAX_ROWS, &o, &f.in), "in");
    test_expect_ok(
        d->ctx, spops_coords_reserve(d->ctx, 3, 2 * MAX_ROWS, MAX_ROWS * each, &o, &f.out), "out");
    m.contents = ALL_CONTENTS;
    m.tile_rows = 32;
    m.max_pairs = 2000; // not enough for the last frame
    test_expect_ok(
        d->ctx,
        spops_kernel_map_reserve(d->ctx, SPOPS_MAP_SUBMANIFOLD, &f.cube, f.in, NULL, &m, &f.flat),
        "flat");
    m.max_pairs = MAX_ROWS * each;
    test_expect_ok(d->ctx,
                   spops_kernel_map_reserve(d->ctx, SPOPS_MAP_CONVOLUTION, &f.window, f.in, f.out,
                                            &m, &f.down),
                   "down");
    test_expect_ok(
        d->ctx,
        spops_kernel_map_reserve(d->ctx, SPOPS_MAP_TRANSPOSED, &f.window, f.out, f.in, &m, &f.up),
        "up");
    held_map empty = held_map_of(d, f.flat, SPOPS_STATUS_OK, "before the first set");
    cr_assert(empty.info.num_pairs == 0 && empty.info.num_out == 0);
    held_map_free(&empty);
    cr_assert(device_alloc(d->backend, sizeof(int32_t), &num) &&
                  device_alloc(d->backend, MAX_ROWS * 16, &rows),
              "%s", device_error());
    f.num_rows = (int32_t *)num;
    f.rows = (int32_t *)rows;
    if (d->launch == LAUNCH_CAPTURED) {
        cr_assert(device_capture_begin(d->stream), "%s", device_error());
        const spops_status status = enqueue_frame(d->ctx, &f);
        cr_assert(device_capture_end(d->stream, &graph), "%s", device_error());
        test_expect_ok(d->ctx, status, "captured");
    }
    bool overflowed = false;
    for (int version = 0; version < 5; ++version) {
        const char *what = test_describe(text, "frame %d, search %d", version, (int)search);
        int32_t host[MAX_ROWS * 4];
        for (int i = 0; i < MAX_ROWS * 4; ++i)
            host[i] = i % 4 == 0 ? (int32_t)test_rng_below(rng, 2)
                                 : (int32_t)test_rng_below(rng, extents[version]) - 4;
        cr_assert(device_upload(d->backend, num, &counts[version], sizeof counts[version]) &&
                      device_upload(d->backend, rows, host, sizeof host),
                  "%s", device_error());
        if (graph != NULL)
            cr_assert(device_graph_launch(graph, d->stream), "%s", device_error());
        else
            test_expect_ok(d->ctx, enqueue_frame(d->ctx, &f), what);
        test_wait(d);
        ref_set in = ref_unique(3, counts[version], host, &box);
        ref_set out = ref_window(&in, &f.window, false, &box);
        cr_assert(out.n <= 2 * MAX_ROWS, "%s: a case that overflows below", what);
        check_frame_map(d, f.flat, SPOPS_MAP_SUBMANIFOLD, &f.cube, &in, &in, what);
        check_frame_map(d, f.down, SPOPS_MAP_CONVOLUTION, &f.window, &in, &out, what);
        check_frame_map(d, f.up, SPOPS_MAP_TRANSPOSED, &f.window, &out, &in, what);
        spops_kernel_map_info info;
        info.struct_size = sizeof info;
        overflowed |= spops_kernel_map_get_info_sync(d->ctx, f.flat, &info) != SPOPS_STATUS_OK;
        ref_set_free(&in), ref_set_free(&out);
        checked_alloc_check(&d->memory, what);
    }
    cr_assert(overflowed, "no frame had more pairs than fit");
    test_expect(d->ctx, spops_kernel_map_update(d->ctx, f.flat, f.out, NULL),
                SPOPS_STATUS_INVALID_ARGUMENT, "have capacities", "another capacity");
    device_graph_destroy(graph);
    spops_kernel_map_destroy(f.flat), spops_kernel_map_destroy(f.down),
        spops_kernel_map_destroy(f.up);
    spops_coords_destroy(f.in), spops_coords_destroy(f.out);
    test_free(d, num), test_free(d, rows);
}

LaunchTest(kernel_map, set)
{
    test_device d;
    test_rng rng = test_rng_make(505);
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int s = 0; s < 3; ++s)
        check_frames(&d, searches[s], &rng);
    test_close(&d);
}
