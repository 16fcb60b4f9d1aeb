// SPDX-License-Identifier: Apache-2.0
// Sparse and global pooling against FP64, forward and backward; on maps and sets that are refilled
// on the stream; on a scan; and what is refused.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "spops/gather.h"
#include "spops/pool.h"
#include "spops/pyramid.h"
#include "support/device.h"
#include "tests/ref/ref_gather.h"
#include "tests/support/coord_cases.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

static const spops_reduce reduces[] = {SPOPS_REDUCE_SUM, SPOPS_REDUCE_MEAN, SPOPS_REDUCE_MAX,
                                       SPOPS_REDUCE_MIN};
enum { NUM_REDUCES = 4 };

// ---- A pooling, here and where d runs -----------------------------------------------------------

typedef struct pool_case {
    test_device *d;
    spops_coords *in_coords, *out_coords;
    spops_kernel_map *map; // NULL: global
    spops_buckets *buckets;
    spops_pool *pool;
    ref_relation ref;
    int32_t *segment, *row;
    spops_reduce reduce;
    int64_t cols;
} pool_case;

static spops_coords *create_set(test_device *d, const ref_set *set)
{
    return test_create_set(d, set->dims, set->n, set->rows, NULL);
}

static int32_t *indices(int64_t n)
{
    return (int32_t *)calloc((size_t)n + 1, sizeof(int32_t));
}

// Terms of the windows of a map, tap by tap.
static void relate_windows(pool_case *c, const int32_t *table, int32_t num_taps, int64_t num_in,
                           int64_t num_out)
{
    int64_t n = 0;
    c->segment = indices(num_out * num_taps);
    c->row = indices(num_out * num_taps);
    for (int32_t k = 0; k < num_taps; ++k)
        for (int64_t i = 0; i < num_out; ++i) {
            if (table[i * num_taps + k] < 0) continue;
            c->segment[n] = (int32_t)i;
            c->row[n++] = table[i * num_taps + k];
        }
    c->ref = (ref_relation){num_out, n, num_in, 0, c->segment, c->row, NULL, false};
}

static void relate_batches(pool_case *c, const ref_set *set, int64_t num_batches)
{
    c->segment = indices(set->n);
    c->row = indices(set->n);
    for (int64_t r = 0; r < set->n; ++r) {
        c->segment[r] = set->rows[r * (set->dims + 1)];
        c->row[r] = (int32_t)r;
    }
    c->ref = (ref_relation){num_batches, set->n, set->n, 0, c->segment, c->row, NULL, false};
}

// Runs of rows of each bucket, along the Z-order curve.
typedef struct curve_row {
    int32_t bucket, row;
    uint64_t code;
} curve_row;

static int compare_curve(const void *a, const void *b)
{
    const curve_row *x = (const curve_row *)a, *y = (const curve_row *)b;
    if (x->bucket != y->bucket) return x->bucket < y->bucket ? -1 : 1;
    if (x->code != y->code) return x->code < y->code ? -1 : 1;
    return x->row < y->row ? -1 : 1;
}

static void relate_sub_buckets(pool_case *c, const int32_t *cells, const int32_t *row_buckets,
                               int64_t n, int bits, int32_t sub_rows, int64_t num_out)
{
    curve_row *rows = calloc((size_t)n + 1, sizeof *rows);
    int32_t sub = -1, in_sub = 0;
    cr_assert(rows != NULL, "no memory");
    c->segment = indices(n);
    c->row = indices(n);
    for (int64_t r = 0; r < n; ++r) {
        rows[r].bucket = row_buckets[r];
        rows[r].row = (int32_t)r;
        for (int level = bits - 1; level >= 0; --level)
            for (int a = 0; a < 3; ++a) {
                const int32_t v = cells[3 * r + a], last = (1 << bits) - 1;
                rows[r].code = 2 * rows[r].code + ((v < 0 ? 0 : v > last ? last : v) >> level & 1);
            }
    }
    qsort(rows, (size_t)n, sizeof *rows, compare_curve);
    for (int64_t i = 0; i < n; ++i) {
        if (i == 0 || rows[i].bucket != rows[i - 1].bucket || in_sub == sub_rows) {
            ++sub;
            in_sub = 0;
        }
        ++in_sub;
        c->segment[i] = sub;
        c->row[i] = rows[i].row;
    }
    c->ref = (ref_relation){num_out, n, n, 0, c->segment, c->row, NULL, false};
    free(rows);
}

static void destroy_case(pool_case *c)
{
    spops_pool_destroy(c->pool);
    spops_buckets_destroy(c->buckets);
    spops_kernel_map_destroy(c->map);
    spops_coords_destroy(c->in_coords);
    spops_coords_destroy(c->out_coords);
    free(c->segment), free(c->row);
}

// ---- Against FP64 -------------------------------------------------------------------------------

enum { X, GRAD_OUT }; // inputs
enum { OUT };         // output, forward
enum { GRAD_X };      // output, backward

static spops_status run_forward(void *user, spops_context *ctx, const spops_matrix *const *in,
                                const spops_matrix *const *out)
{
    const pool_case *c = (const pool_case *)user;
    return spops_pool_execute(ctx, c->pool, c->reduce, *in[X], *out[OUT]);
}

static void reference_forward(void *user, const double *const *in, ref_tensor *const *out)
{
    const pool_case *c = (const pool_case *)user;
    ref_reduce_forward(&c->ref, c->reduce, c->cols, in[X], NULL, out[OUT], NULL);
}

static spops_status run_backward(void *user, spops_context *ctx, const spops_matrix *const *in,
                                 const spops_matrix *const *out)
{
    const pool_case *c = (const pool_case *)user;
    return spops_pool_execute_backward(ctx, c->pool, c->reduce, *in[GRAD_OUT], *in[X],
                                       *out[GRAD_X]);
}

static void reference_backward(void *user, const double *const *in, ref_tensor *const *out)
{
    const pool_case *c = (const pool_case *)user;
    ref_reduce_backward(&c->ref, c->reduce, c->cols, in[X], NULL, in[GRAD_OUT], out[GRAD_X], NULL);
}

// Every row gets that of its sub-bucket: rows of out where pooling has rows of in.
static spops_status run_unpooling(void *user, spops_context *ctx, const spops_matrix *const *in,
                                  const spops_matrix *const *out)
{
    const pool_case *c = (const pool_case *)user;
    return spops_gather_execute(ctx, spops_pool_segments(c->pool), *in[X], NULL, *out[OUT]);
}

static void reference_unpooling(void *user, const double *const *in, ref_tensor *const *out)
{
    const pool_case *c = (const pool_case *)user;
    ref_gather_forward(&c->ref, c->cols, in[X], NULL, out[OUT]);
}

// Of rows as long as a group of lanes takes in one go, shorter and longer.
static int64_t draw_cols(test_rng *rng)
{
    static const int64_t all_cols[] = {1, 3, 16, 33, 64, 160};
    return all_cols[test_rng_below(rng, 6)];
}

static void check_unpooling(pool_case *c, const char *what, spops_dtype dtype, uint64_t stream)
{
    test_rng rng = test_rng_make(stream);
    const int64_t padding = test_rng_below(&rng, 2) * 8;
    test_operator op = {.what = what,
                        .stream = stream,
                        .user = c,
                        .run = run_unpooling,
                        .reference = reference_unpooling};
    c->cols = draw_cols(&rng);
    op.in[X] =
        test_view(test_input("x", c->ref.num_segments, c->cols, dtype, VALUES_RANDOM), padding, 0);
    op.out[OUT] =
        test_view(test_output("out", c->ref.num_rows, c->cols, dtype, CHECK_EXACT), padding, 0);
    test_operator_run(c->d, &op);
}

static void check_pooling(pool_case *c, const char *what, spops_reduce reduce, bool backward,
                          spops_dtype dtype, uint64_t stream)
{
    test_rng rng = test_rng_make(stream);
    const int64_t padding = test_rng_below(&rng, 2) * (1 + test_rng_below(&rng, 7));
    const test_values values = test_rng_below(&rng, 2) == 0 ? VALUES_EXACT : VALUES_RANDOM;
    const bool exact = values == VALUES_EXACT && ref_reduce_is_exact(reduce, backward);
    const test_check check =
        exact || (!backward && (reduce == SPOPS_REDUCE_MAX || reduce == SPOPS_REDUCE_MIN))
            ? CHECK_EXACT
            : CHECK_BOUND;
    test_operator op = {.what = what,
                        .stream = stream,
                        .scratch_bytes = spops_segments_scratch_bytes(spops_pool_segments(c->pool)),
                        .user = c,
                        .run = backward ? run_backward : run_forward,
                        .reference = backward ? reference_backward : reference_forward};
    c->reduce = reduce;
    c->cols = draw_cols(&rng);
    op.in[X] = test_view(test_input("x", c->ref.num_rows, c->cols, dtype, values), padding, 0);
    if (backward) {
        op.in[GRAD_OUT] = test_view(
            test_input("grad_out", c->ref.num_segments, c->cols, dtype, values), padding, 0);
        op.out[GRAD_X] =
            test_view(test_output("grad_x", c->ref.num_rows, c->cols, dtype, check), padding, 0);
    } else {
        op.out[OUT] =
            test_view(test_output("out", c->ref.num_segments, c->cols, dtype, check), padding, 0);
    }
    test_operator_run(c->d, &op);
}

typedef struct geometry {
    const char *name;
    spops_kernel_map_kind kind;
    int32_t dims, size, stride;
} geometry;
static const geometry geometries[] = {
    {"2^3, stride 2", SPOPS_MAP_CONVOLUTION, 3, 2, 2},
    {"3^3, stride 2", SPOPS_MAP_CONVOLUTION, 3, 3, 2},
    {"3^3 around each row", SPOPS_MAP_SUBMANIFOLD, 3, 3, 1},
    {"5^2, stride 3", SPOPS_MAP_CONVOLUTION, 2, 5, 3},
    {"2^3, stride 1", SPOPS_MAP_CONVOLUTION, 3, 2, 1}, // a row in several short windows
};
enum { NUM_GEOMETRIES = 5 };
static const test_cloud clouds[] = {CLOUD_EMPTY, CLOUD_ONE, CLOUD_CLUMPS};

static void create_windows(pool_case *c, const geometry *g, const cloud_rows *cloud)
{
    const spops_kernel_shape kernel = spops_kernel_shape_cube(g->dims, g->size, g->stride, 1);
    const bool flat = g->kind == SPOPS_MAP_SUBMANIFOLD;
    ref_set in = ref_unique(cloud->dims, cloud->n, cloud->rows, NULL);
    ref_set out = flat ? ref_unique(cloud->dims, cloud->n, cloud->rows, NULL)
                       : ref_window(&in, &kernel, false, NULL);
    int32_t *table = ref_map(g->kind, &kernel, &in, &out);
    spops_kernel_map_options mo = spops_kernel_map_options_default();
    spops_pool_options po = spops_pool_options_default();
    mo.contents = SPOPS_MAP_PAIRS;
    po.gradients = SPOPS_GRADIENTS_ALL;
    c->in_coords = create_set(c->d, &in);
    c->out_coords = flat ? NULL : create_set(c->d, &out);
    test_expect_ok(c->d->ctx,
                   spops_kernel_map_create(c->d->ctx, g->kind, &kernel, c->in_coords, c->out_coords,
                                           &mo, &c->map),
                   g->name);
    test_expect_ok(c->d->ctx, spops_pool_create(c->d->ctx, c->map, &po, &c->pool), g->name);
    relate_windows(c, table, ref_num_taps(&kernel), in.n, out.n);
    free(table);
    ref_set_free(&in), ref_set_free(&out);
}

// One batch more than the cloud has: it stays empty.
static void create_batches(pool_case *c, const cloud_rows *cloud)
{
    ref_set in = ref_unique(cloud->dims, cloud->n, cloud->rows, NULL);
    spops_pool_options po = spops_pool_options_default();
    int32_t last = 0;
    for (int64_t r = 0; r < in.n; ++r)
        if (in.rows[r * (in.dims + 1)] > last) last = in.rows[r * (in.dims + 1)];
    po.gradients = SPOPS_GRADIENTS_ALL;
    c->in_coords = create_set(c->d, &in);
    test_expect_ok(c->d->ctx,
                   spops_pool_create_global(c->d->ctx, c->in_coords, last + 2, &po, &c->pool),
                   "global");
    relate_batches(c, &in, last + 2);
    ref_set_free(&in);
}

// Sub-buckets, with what stays the first output row of each sample.
static void create_sub_buckets(pool_case *c, int64_t n, int32_t samples, int32_t bucket_rows,
                               int32_t sub_rows, uint64_t stream)
{
    test_device *d = c->d;
    test_rng rng = test_rng_make(stream);
    spops_buckets_options o = spops_buckets_options_default();
    spops_buckets_view view = spops_buckets_view_default();
    spops_pool_options po = spops_pool_options_default();
    int32_t *cells = indices(3 * n), *offsets = indices(samples), *buckets = indices(n);
    int32_t *found = indices(samples), *first = indices(samples);
    for (int64_t i = 0; i < 3 * n; ++i)
        cells[i] = (int32_t)test_rng_below(&rng, 40) - 3;
    for (int32_t b = 0; b <= samples; ++b)
        offsets[b] = (int32_t)(n * b / samples);
    int32_t *cells_there = test_upload_i32(d, cells, 3 * n);
    int32_t *offsets_there = test_upload_i32(d, offsets, samples + 1);
    const spops_point_cloud cloud = {spops_matrix_dense(cells_there, n, 3, SPOPS_DTYPE_I32),
                                     offsets_there, samples};
    o.bucket_rows = bucket_rows;
    o.bits = 5;
    o.num_rounds = 2;
    o.hashes[0] = SPOPS_BUCKET_HASH_XOR_DIV;
    po.gradients = SPOPS_GRADIENTS_ALL;
    test_expect_ok(d->ctx, spops_buckets_create(d->ctx, &cloud, &o, &c->buckets), "buckets");
    test_expect_ok(d->ctx, spops_buckets_get_view(d->ctx, c->buckets, &view), "buckets");
    if (n > 0) test_download_i32(d, buckets, view.row_buckets, n);
    test_expect_ok(d->ctx,
                   spops_pool_create_from_buckets(d->ctx, c->buckets, sub_rows, &po, &c->pool),
                   "pool");
    const int64_t most = n / sub_rows + view.max_buckets;
    relate_sub_buckets(c, cells, buckets, n, 5, sub_rows, most < n ? most : n);
    test_download_i32(d, found, spops_pool_sample_offsets(c->pool), samples + 1);
    for (int64_t i = 0; i < n; ++i) // the last of a sample's sub-buckets, and one more
        for (int32_t b = 0; b < samples; ++b)
            if (c->row[i] < offsets[b + 1] && first[b + 1] < c->segment[i] + 1)
                first[b + 1] = c->segment[i] + 1;
    for (int32_t b = 0; b <= samples; ++b)
        cr_assert_eq(found[b], first[b], "sample %d begins at %d, expected %d", b, found[b],
                     first[b]);
    test_free(d, cells_there), test_free(d, offsets_there);
    free(cells), free(offsets), free(buckets), free(found), free(first);
}

CaseTest(pool, agrees_in_buckets, every_case(test_row_dtypes, NUM_REAL_DTYPES, NULL, 0))
{
    static const int32_t shapes[][4] = {// rows, samples, rows of a bucket, of a sub-bucket
                                        {0, 2, 8, 2},
                                        {1, 1, 8, 2},
                                        {700, 3, 64, 2},
                                        {900, 1, 100, 7},
                                        {50, 5, 4, 9}};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    uint64_t stream = (1 + case_number(p)) << 40;
    for (int s = 0; s < 5; ++s) {
        pool_case c = {.d = &d};
        char text[256];
        create_sub_buckets(&c, shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], ++stream);
        for (int r = 0; r < NUM_REDUCES; ++r)
            for (int backward = 0; backward < 2; ++backward)
                check_pooling(&c,
                              test_describe(text, "%d rows in buckets%s, reduction %d",
                                            shapes[s][0], backward ? " backward" : "",
                                            (int)reduces[r]),
                              reduces[r], backward != 0, (spops_dtype)p->dtype, ++stream);
        for (int i = 0; i < 3; ++i)
            check_unpooling(&c, test_describe(text, "%d rows back from buckets", shapes[s][0]),
                            (spops_dtype)p->dtype, ++stream);
        destroy_case(&c);
    }
    test_close(&d);
}

// Buckets and their pools refilled, on the GPU as one captured graph: the same as made anew.
LaunchTest(pool, serves_buckets_of_frames)
{
    enum { ROWS = 800, WIDTH = 12 };
    static const int32_t sizes[] = {800, 3, 0, 555};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    test_rng rng = test_rng_make(4711);
    spops_buckets_options o = spops_buckets_options_default();
    spops_buckets *frames = NULL;
    spops_pool *pool = NULL;
    device_graph *graph = NULL;
    int32_t offsets[2] = {0, ROWS}, *cells = indices(3 * ROWS);
    o.bucket_rows = 48;
    o.bits = 5;
    for (int i = 0; i < 3 * ROWS; ++i)
        cells[i] = (int32_t)test_rng_below(&rng, 32);
    int32_t *cells_there = test_upload_i32(&d, cells, 3 * ROWS);
    int32_t *offsets_there = test_upload_i32(&d, offsets, 2);
    spops_point_cloud cloud = {spops_matrix_dense(cells_there, ROWS, 3, SPOPS_DTYPE_I32),
                               offsets_there, 1};
    test_expect_ok(d.ctx, spops_buckets_reserve(d.ctx, ROWS, 1, &o, &frames), "reserve");
    test_expect_ok(d.ctx, spops_pool_create_from_buckets(d.ctx, frames, 3, NULL, &pool), "pool");
    const int64_t most = ROWS / 3 + ROWS / 48 + 1;
    guarded x = guarded_create(d.backend, "x", ROWS, WIDTH, 0, 0, SPOPS_DTYPE_F32);
    guarded out = guarded_create(d.backend, "out", most, WIDTH, 0, 0, SPOPS_DTYPE_F32);
    guarded anew = guarded_create(d.backend, "anew", most, WIDTH, 0, 0, SPOPS_DTYPE_F32);
    free(guarded_fill(&x, &rng, VALUES_RANDOM, false, 1));
    guarded_upload(&x);
    for (int i = 0; i < 4; ++i) {
        const bool capture = d.launch == LAUNCH_CAPTURED && i == 0;
        spops_buckets *buckets = NULL;
        spops_pool *other = NULL;
        spops_pool_options po = spops_pool_options_default();
        int32_t first[2], first_anew[2];
        offsets[1] = sizes[i];
        cr_assert(device_upload(d.backend, offsets_there, offsets, sizeof offsets));
        if (capture) cr_assert(device_capture_begin(d.stream), "%s", device_error());
        if (graph == NULL) {
            spops_status status = spops_buckets_update(d.ctx, frames, &cloud);
            if (!status) status = spops_pool_update(d.ctx, pool);
            if (!status)
                status = spops_pool_execute(d.ctx, pool, SPOPS_REDUCE_MEAN, x.view, out.view);
            if (capture) cr_assert(device_capture_end(d.stream, &graph), "%s", device_error());
            test_expect_ok(d.ctx, status, "frame");
        }
        if (graph != NULL) cr_assert(device_graph_launch(graph, d.stream), "%s", device_error());
        spops_point_cloud of_frame = cloud;
        of_frame.points.rows = sizes[i];
        test_expect_ok(d.ctx, spops_buckets_create(d.ctx, &of_frame, &o, &buckets), "anew");
        test_expect_ok(d.ctx, spops_pool_create_from_buckets(d.ctx, buckets, 3, &po, &other),
                       "anew");
        spops_matrix rows = x.view, means = anew.view;
        rows.rows = sizes[i];
        const int64_t limit = sizes[i] / 3 + sizes[i] / 48 + 1;
        means.rows = limit < sizes[i] ? limit : sizes[i];
        test_expect_ok(d.ctx, spops_pool_execute(d.ctx, other, SPOPS_REDUCE_MEAN, rows, means),
                       "anew");
        test_wait(&d);
        test_download_i32(&d, first, spops_pool_sample_offsets(pool), 2);
        test_download_i32(&d, first_anew, spops_pool_sample_offsets(other), 2);
        cr_assert_eq(first[0], 0, "%d", i);
        cr_assert_eq(first[1], first_anew[1], "%d: %d sub-buckets, expected %d", i, first[1],
                     first_anew[1]);
        guarded_download(&out), guarded_download(&anew);
        for (int64_t r = 0; r < most; ++r)
            for (int64_t c = 0; c < WIDTH; ++c)
                cr_assert_eq(guarded_get(&out, r, c), r < first[1] ? guarded_get(&anew, r, c) : 0.0,
                             "frame %d, row %lld", i, (long long)r);
        spops_pool_destroy(other);
        spops_buckets_destroy(buckets);
    }
    device_graph_destroy(graph);
    guarded_destroy(&x), guarded_destroy(&out), guarded_destroy(&anew);
    spops_pool_destroy(pool);
    spops_buckets_destroy(frames);
    test_free(&d, cells_there), test_free(&d, offsets_there);
    free(cells);
    test_close(&d);
}

CaseTest(pool, agrees, every_case(test_row_dtypes, NUM_REAL_DTYPES, NULL, 0))
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    uint64_t stream = case_number(p) << 32;
    for (int g = 0; g <= NUM_GEOMETRIES; ++g) // after the last: global
        for (int s = 0; s < 3; ++s) {
            const bool global = g == NUM_GEOMETRIES;
            test_rng rng = test_rng_make(++stream);
            cloud_rows cloud = cloud_make(clouds[s], global ? 3 : geometries[g].dims, false, &rng);
            pool_case c = {.d = &d};
            char text[256];
            if (global)
                create_batches(&c, &cloud);
            else
                create_windows(&c, &geometries[g], &cloud);
            for (int r = 0; r < NUM_REDUCES; ++r)
                for (int backward = 0; backward < 2; ++backward)
                    check_pooling(&c,
                                  test_describe(text, "%s%s of %s, reduction %d",
                                                global ? "global" : geometries[g].name,
                                                backward ? " backward" : "", cloud_name(clouds[s]),
                                                (int)reduces[r]),
                                  reduces[r], backward != 0, (spops_dtype)p->dtype, ++stream);
            destroy_case(&c);
            cloud_free(&cloud);
        }
    test_close(&d);
}

// ---- A frame after the other, also in one captured graph ----------------------------------------

enum { MAX_ROWS = 1000, COLS = 20, MAX_BATCHES = 12 };

typedef struct frame_case {
    test_device *d;
    spops_coords *finest;
    spops_pyramid *pyramid;
    spops_pool *windows, *all;
    int32_t *num_rows, *rows; // where d runs
    guarded x, maxima, means; // means of maxima, batch by batch
    ref_tensor expected_maxima, expected_means;
} frame_case;

static guarded capacity_rows(test_device *d, const char *name, int64_t rows)
{
    return guarded_create(d->backend, name, rows, COLS, 0, 0, SPOPS_DTYPE_F32);
}

static spops_matrix whole(const guarded *g, int64_t rows)
{
    spops_matrix m = g->view;
    m.rows = rows;
    return m;
}

static void prepare_frame(void *user, int version)
{
    static const test_cloud of_version[] = {CLOUD_CLUMPS, CLOUD_SPARSE};
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 2, 2, 1);
    frame_case *c = (frame_case *)user;
    test_rng rng = test_rng_make(977 + (uint64_t)version);
    cloud_rows cloud = cloud_make(of_version[version], 3, false, &rng);
    ref_set in = ref_unique(3, cloud.n, cloud.rows, NULL);
    ref_set out = ref_window(&in, &kernel, false, NULL);
    int32_t *table = ref_map(SPOPS_MAP_CONVOLUTION, &kernel, &in, &out);
    const int32_t n = (int32_t)in.n;
    pool_case windows, batches;

    cr_assert(n <= MAX_ROWS && device_upload(c->d->backend, c->num_rows, &n, sizeof n) &&
              device_upload(c->d->backend, c->rows, in.rows, (size_t)n * 4 * sizeof n));
    c->x.view.rows = n;
    guarded_poison(&c->x, 0xff); // NaN after the rows in use
    double *x = guarded_fill(&c->x, &rng, VALUES_RANDOM, false, 1);
    guarded_upload(&c->x);
    relate_windows(&windows, table, 8, in.n, out.n);
    relate_batches(&batches, &out, MAX_BATCHES);
    ref_tensor_destroy(&c->expected_maxima), ref_tensor_destroy(&c->expected_means);
    c->expected_maxima = ref_tensor_create(MAX_ROWS, COLS);
    for (int64_t i = 0; i < (int64_t)MAX_ROWS * COLS; ++i) // rows after those in use: empty
        c->expected_maxima.value[i] = -(double)INFINITY;
    c->expected_means = ref_tensor_create(MAX_BATCHES, COLS);
    ref_tensor in_use = ref_tensor_create(out.n, COLS);
    ref_reduce_forward(&windows.ref, SPOPS_REDUCE_MAX, COLS, x, NULL, &in_use, NULL);
    memcpy(c->expected_maxima.value, in_use.value, (size_t)out.n * COLS * sizeof(double));
    ref_reduce_forward(&batches.ref, SPOPS_REDUCE_MEAN, COLS, in_use.value, NULL,
                       &c->expected_means, NULL);
    ref_tensor_destroy(&in_use);
    free(windows.segment), free(windows.row), free(batches.segment), free(batches.row);
    free(table), free(x);
    ref_set_free(&in), ref_set_free(&out);
    cloud_free(&cloud);
}

static spops_status enqueue_frame(void *user, spops_context *ctx)
{
    frame_case *c = (frame_case *)user;
    spops_status s = spops_coords_update(ctx, c->finest, c->num_rows, c->rows);
    if (!s) s = spops_pyramid_update(ctx, c->pyramid);
    if (!s) s = spops_pool_update(ctx, c->windows);
    if (!s) s = spops_pool_update(ctx, c->all);
    if (!s)
        s = spops_pool_execute(ctx, c->windows, SPOPS_REDUCE_MAX, whole(&c->x, MAX_ROWS),
                               c->maxima.view);
    if (!s) s = spops_pool_execute(ctx, c->all, SPOPS_REDUCE_MEAN, c->maxima.view, c->means.view);
    return s;
}

static void verify_frame(void *user, int version, const char *what)
{
    frame_case *c = (frame_case *)user;
    (void)version;
    guarded_check(&c->maxima, &c->expected_maxima, true, what);
    guarded_check(&c->means, &c->expected_means, false, what);
}

LaunchTest(pool, serves_frames)
{
    static const spops_coords_box box = {{0, -1000, -1000, -1000, 0}, {9, 1000, 1000, 1000, 0}};
    static const int32_t zeros[MAX_ROWS * 4];
    spops_coords_options co = spops_coords_options_default();
    spops_pyramid_options po = spops_pyramid_options_default();
    spops_pool_options o = spops_pool_options_default();
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    frame_case c = {.d = &d};
    co.box = &box;
    po.num_levels = 2;
    o.max_cols = COLS;
    test_expect_ok(d.ctx, spops_coords_reserve(d.ctx, 3, MAX_ROWS, MAX_ROWS, &co, &c.finest), "");
    test_expect_ok(d.ctx, spops_pyramid_reserve(d.ctx, c.finest, &po, &c.pyramid), "");
    test_expect_ok(d.ctx,
                   spops_pool_create(d.ctx, spops_pyramid_map(c.pyramid, SPOPS_PYRAMID_DOWN, 0), &o,
                                     &c.windows),
                   "");
    test_expect_ok(d.ctx,
                   spops_pool_create_global(d.ctx, spops_pyramid_coords(c.pyramid, 1), MAX_BATCHES,
                                            &o, &c.all),
                   "");
    c.num_rows = test_upload_i32(&d, zeros, 1);
    c.rows = test_upload_i32(&d, zeros, MAX_ROWS * 4);
    c.x = capacity_rows(&d, "x", MAX_ROWS);
    c.maxima = capacity_rows(&d, "maxima", MAX_ROWS);
    c.means = capacity_rows(&d, "means", MAX_BATCHES);
    const size_t a = spops_segments_scratch_bytes(spops_pool_segments(c.windows));
    const size_t b = spops_segments_scratch_bytes(spops_pool_segments(c.all));
    test_call call = {.user = &c,
                      .prepare = prepare_frame,
                      .enqueue = enqueue_frame,
                      .verify = verify_frame,
                      .scratch_bytes = a > b ? a : b,
                      .inputs = {&c.x},
                      .outputs = {&c.maxima, &c.means},
                      .what = "frames of pooling"};
    test_run(&d, &call);
    guarded_destroy(&c.x), guarded_destroy(&c.maxima), guarded_destroy(&c.means);
    ref_tensor_destroy(&c.expected_maxima), ref_tensor_destroy(&c.expected_means);
    test_free(&d, c.num_rows), test_free(&d, c.rows);
    spops_pool_destroy(c.windows), spops_pool_destroy(c.all);
    spops_pyramid_destroy(c.pyramid);
    spops_coords_destroy(c.finest);
    test_close(&d);
}

// ---- A scan -------------------------------------------------------------------------------------

// The sum over a window of ones is the number of pairs, the largest row number is the largest.
BackendTest(pool, of_a_scan)
{
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 2, 2, 1);
    int64_t n = 0, cols = 0;
    int32_t *values = NULL;
    test_device d;
    if (test_quick() || !test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    if (!cloud_load_i32("conv_lidar.npy", &n, &cols, &values)) {
        test_close(&d);
        return;
    }
    int32_t *rows = indices(4 * n);
    for (int64_t i = 0; i < n; ++i)
        memcpy(rows + 4 * i + (4 - cols), values + cols * i, (size_t)cols * 4);
    int32_t *given = test_upload_i32(&d, rows, 4 * n);
    pool_case c = {.d = &d};
    spops_kernel_map_options mo = spops_kernel_map_options_default();
    spops_kernel_map_view view = spops_kernel_map_view_default();
    mo.contents = SPOPS_MAP_PAIRS | SPOPS_MAP_TABLE;
    test_expect_ok(d.ctx, spops_coords_create(d.ctx, 3, n, given, NULL, &c.in_coords), "scan");
    test_expect_ok(
        d.ctx, spops_coords_create_downsampled(d.ctx, c.in_coords, &kernel, NULL, &c.out_coords),
        "scan");
    test_expect_ok(d.ctx,
                   spops_kernel_map_create(d.ctx, SPOPS_MAP_CONVOLUTION, &kernel, c.in_coords,
                                           c.out_coords, &mo, &c.map),
                   "scan");
    test_expect_ok(d.ctx, spops_pool_create(d.ctx, c.map, NULL, &c.pool), "scan");
    test_expect_ok(d.ctx, spops_kernel_map_get_view(d.ctx, c.map, &view), "scan");
    const int64_t m = view.out->max_rows;
    float *numbers = (float *)calloc((size_t)n + 1, 2 * sizeof *numbers);
    float *sums = (float *)calloc((size_t)m + 1, 2 * sizeof *sums);
    float *maxima = (float *)calloc((size_t)m + 1, 2 * sizeof *maxima);
    int32_t *table = indices(m * view.table_stride);
    void *sum_rows = NULL, *max_rows = NULL;
    for (int64_t i = 0; i < n; ++i) {
        numbers[2 * i] = 1.0f;
        numbers[2 * i + 1] = (float)i;
    }
    float *x = test_upload_f32(&d, numbers, 2 * n);
    cr_assert(device_alloc(d.backend, (size_t)m * 8, &sum_rows) &&
                  device_alloc(d.backend, (size_t)m * 8, &max_rows),
              "%s", device_error());
    const spops_matrix mx = spops_matrix_dense(x, n, 2, SPOPS_DTYPE_F32);
    test_expect_ok(d.ctx,
                   spops_pool_execute(d.ctx, c.pool, SPOPS_REDUCE_SUM, mx,
                                      spops_matrix_dense(sum_rows, m, 2, SPOPS_DTYPE_F32)),
                   "sum");
    test_expect_ok(d.ctx,
                   spops_pool_execute(d.ctx, c.pool, SPOPS_REDUCE_MAX, mx,
                                      spops_matrix_dense(max_rows, m, 2, SPOPS_DTYPE_F32)),
                   "max");
    test_wait(&d);
    cr_assert(device_download(d.backend, sums, sum_rows, (size_t)m * 8) &&
                  device_download(d.backend, maxima, max_rows, (size_t)m * 8),
              "%s", device_error());
    test_download_i32(&d, table, view.out->table, m * view.table_stride);
    for (int64_t i = 0; i < m; ++i) {
        int32_t count = 0, largest = -1;
        for (int k = 0; k < 8; ++k) {
            const int32_t j = table[i * view.table_stride + k];
            count += j >= 0;
            if (j > largest) largest = j;
        }
        cr_assert(count > 0 && sums[2 * i] == (float)count && maxima[2 * i + 1] == (float)largest,
                  "row %lld", (long long)i);
    }
    free(values), free(rows), free(numbers), free(sums), free(maxima), free(table);
    test_free(&d, given), test_free(&d, x), test_free(&d, sum_rows), test_free(&d, max_rows);
    destroy_case(&c);
    test_close(&d);
}

// A set of capacity 0 has no rows, whatever room for pairs its map has.
BackendTest(pool, has_no_rows)
{
    enum { ROWS = 4 };
    const spops_coords_box box = {{0, 0, 0, 0, 0}, {0, 7, 7, 7, 0}};
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 2, 2, 1);
    const spops_matrix none = spops_matrix_dense(NULL, 0, 2, SPOPS_DTYPE_F32);
    spops_coords_options co = spops_coords_options_default();
    spops_kernel_map_options mo = spops_kernel_map_options_default();
    spops_pool_options po = spops_pool_options_default();
    spops_segments_info info = spops_segments_info_default();
    spops_coords *in = NULL, *out = NULL;
    spops_kernel_map *map = NULL;
    spops_pool *pools[2] = {NULL, NULL};
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    co.box = &box;
    mo.contents = SPOPS_MAP_PAIRS;
    mo.max_pairs = 9;
    po.gradients = SPOPS_GRADIENTS_ALL;
    guarded y = guarded_create(d.backend, "out", ROWS, 2, 0, 0, SPOPS_DTYPE_F32);
    test_expect_ok(d.ctx, spops_coords_reserve(d.ctx, 3, 0, 0, &co, &in), "no rows");
    test_expect_ok(d.ctx, spops_coords_reserve(d.ctx, 3, ROWS, ROWS, &co, &out), "rows");
    test_expect_ok(
        d.ctx, spops_kernel_map_reserve(d.ctx, SPOPS_MAP_CONVOLUTION, &kernel, in, out, &mo, &map),
        "map");
    test_expect_ok(d.ctx, spops_pool_create(d.ctx, map, &po, &pools[0]), "windows");
    test_expect_ok(d.ctx, spops_pool_create_global(d.ctx, in, ROWS, &po, &pools[1]), "global");
    for (int i = 0; i < 2; ++i) {
        const spops_segments *segments = spops_pool_segments(pools[i]);
        test_expect_ok(d.ctx, spops_segments_get_info_sync(d.ctx, segments, &info), "info");
        cr_assert(info.num_rows == 0 && info.num_segments == ROWS, "%lld rows, %lld segments",
                  (long long)info.num_rows, (long long)info.num_segments);
        test_expect_ok(d.ctx, spops_context_reserve(d.ctx, spops_segments_scratch_bytes(segments)),
                       "scratch");
        test_expect_ok(d.ctx, spops_pool_execute(d.ctx, pools[i], SPOPS_REDUCE_SUM, none, y.view),
                       "execute");
        test_expect_ok(
            d.ctx,
            spops_pool_execute_backward(d.ctx, pools[i], SPOPS_REDUCE_SUM, y.view, none, none),
            "gradient");
        test_wait(&d);
        guarded_download(&y);
        for (int64_t r = 0; r < ROWS; ++r)
            cr_assert(guarded_get(&y, r, 0) == 0.0 && guarded_get(&y, r, 1) == 0.0, "row %lld",
                      (long long)r);
        spops_pool_destroy(pools[i]);
    }
    guarded_destroy(&y);
    spops_kernel_map_destroy(map);
    spops_coords_destroy(in), spops_coords_destroy(out);
    test_close(&d);
}

// ---- What is refused ----------------------------------------------------------------------------

BackendTest(pool, refuses)
{
    static const int32_t rows[2 * 4] = {0, 0, 0, 0, 3, 0, 0, 1};
    static const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_pool_options o = spops_pool_options_default();
    spops_coords *coords = NULL;
    spops_kernel_map *map = NULL;
    spops_pool *pool = NULL;
    spops_kernel_map_options table = spops_kernel_map_options_default();
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    int32_t *given = test_upload_i32(&d, rows, 8);
    table.contents = SPOPS_MAP_TABLE;
    test_expect_ok(d.ctx, spops_coords_create(d.ctx, 3, 2, given, NULL, &coords), "set");
    test_expect_ok(
        d.ctx,
        spops_kernel_map_create(d.ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, coords, NULL, &table, &map),
        "map");
    test_expect(d.ctx, spops_pool_create(d.ctx, map, NULL, &pool), invalid,
                "pool_create: map has no pairs", "no pairs");
    test_expect(d.ctx, spops_pool_create_global(d.ctx, coords, 3, NULL, &pool), invalid,
                "num_batches is 3, expected more than 3, the last batch in the box of coords",
                "batches");
    o.reserved = 1;
    test_expect(d.ctx, spops_pool_create_global(d.ctx, coords, 4, &o, &pool), invalid,
                "reserved is 1", "reserved");
    cr_assert_null(pool);
    test_expect(d.ctx, spops_pool_update(d.ctx, NULL), invalid, "update: plans[0] is NULL", "set");
    test_expect_ok(d.ctx, spops_pool_create_global(d.ctx, coords, 4, NULL, &pool), "global");
    float *x = (float *)(void *)test_upload_i32(&d, rows, 8);
    const spops_matrix two = spops_matrix_dense(x, 2, 1, SPOPS_DTYPE_F32);
    const spops_matrix four = spops_matrix_dense(x + 4, 4, 1, SPOPS_DTYPE_F32);
    test_expect(d.ctx,
                spops_pool_execute_backward(d.ctx, pool, SPOPS_REDUCE_SUM, four, two,
                                            spops_matrix_dense(x + 2, 2, 1, SPOPS_DTYPE_F32)),
                invalid, "gradients = 0", "no gradients");
    spops_pool_destroy(pool);
    spops_pool_destroy(NULL);
    cr_assert_null(spops_pool_segments(NULL));
    cr_assert_null(spops_pool_sample_offsets(NULL));

    spops_buckets_options bo = spops_buckets_options_default();
    spops_buckets *buckets = NULL;
    const spops_point_cloud cloud = {spops_matrix_dense(x, 2, 3, SPOPS_DTYPE_I32), NULL, 0};
    bo.bucket_rows = 2, bo.bits = 16;
    test_expect_ok(d.ctx, spops_buckets_create(d.ctx, &cloud, &bo, &buckets), "buckets");
#define REFUSED(buckets, sub_rows, fragment)                                                       \
    pool = (spops_pool *)(void *)&d;                                                               \
    test_expect(d.ctx, spops_pool_create_from_buckets(d.ctx, buckets, sub_rows, &o, &pool),        \
                invalid, "pool_create_from_buckets: " fragment, fragment);                         \
    cr_assert_null(pool)
    o.reserved = 0;
    spops_buckets_destroy(buckets);
    bo.num_buckets = SPOPS_MAX_BUCKETS; // with those of 8 samples: 17 bits
    test_expect_ok(d.ctx, spops_buckets_reserve(d.ctx, 2, 8, &bo, &buckets), "buckets");
    REFUSED(buckets, 2, "131072 buckets and cells of 16 bits need 66 bits, expected at most 64");
#undef REFUSED
    spops_buckets_destroy(buckets);
    spops_kernel_map_destroy(map);
    spops_coords_destroy(coords);
    test_free(&d, given), test_free(&d, x);
    test_close(&d);
}
