// SPDX-License-Identifier: Apache-2.0
// The matrix kernels behind implicit GEMM, each instance on its own: products of gathered rows with
// the matrices of taps, and the gradient of those. Few and many steps of the main loop around the
// depths of its pipelines, numbers of taps around the words of masks, tiles that lack taps or have
// none, the same bits each time. Factors are small whole numbers, so that every sum is exact and
// results must equal the reference; or they are spread, so that bits show the order of a sum. Kernels
// of older architectures run on a newer device too.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <spops/mvmr.h>

#include "core/backend.h"
#include "core/context.h"
#include "core/matrix.h"
#include "igemm/igemm_args.h"
#include "kernels/igemm/igemm_tuning.h"
#include "support/device.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

typedef struct product_shape {
    int32_t num_taps;
    int records; // of a tile, at most
    int64_t rows, in_channels, out_channels;
    bool transposed, mirrored;
    int spread; // numbers are divided by up to 2^spread, so that the order of a sum shows in its bits
} product_shape;

// A product, here and where d runs.
typedef struct product_case {
    test_device *d;
    product_shape shape;
    int32_t *table; // [rows][num_taps]
    spops_igemm_schedule schedule;
    void *arrays[12]; // of the schedule, and what it is made of
    int num_arrays;
    guarded x, w, out;
    float *expected; // [rows][out_channels]
} product_case;

static const int capabilities[] = {90, 80};
enum { NUM_CAPABILITIES = sizeof capabilities / sizeof *capabilities };

// The context as that of an older device; false where there is none that new.
static bool pretend(test_device *d, int capability)
{
    const spops_igemm_scratch_args any = {0};
    if (d->ctx->info.compute_capability < capability) return false;
    if (d->ctx->info.compute_capability >= 90) d->ctx->info.compute_capability = capability;
    return d->ctx->backend->igemm_exists != NULL && d->ctx->backend->igemm_exists(d->ctx, &any);
}

static void *keep(product_case *c, void *array)
{
    return c->arrays[c->num_arrays++] = array;
}

static int32_t *device_ints(product_case *c, const int32_t *values, int64_t n)
{
    int32_t *zeros = values == NULL ? (int32_t *)calloc((size_t)n, sizeof *zeros) : NULL;
    int32_t *array = test_upload_i32(c->d, values == NULL ? zeros : values, n);
    free(zeros);
    return (int32_t *)keep(c, array);
}

// Tile t has shape.records taps, one fewer, or none, by turns; spread over all taps. Some rows lack
// some of them, and groups of 64 rows lack every third.
static void make_table(product_case *c, test_rng *rng)
{
    enum { tile_rows = SPOPS_IGEMM_TILE_ROWS };
    const product_shape *s = &c->shape;
    c->table = (int32_t *)malloc((size_t)(s->rows * s->num_taps) * sizeof *c->table);
    for (int64_t i = 0; i < s->rows * s->num_taps; ++i)
        c->table[i] = -1;
    for (int64_t i = 0; i < s->rows; ++i) {
        const int64_t tile = i / tile_rows;
        const int records = tile % 4 == 2 ? 0 : s->records - (tile % 4 == 1);
        const bool last = i % tile_rows == tile_rows - 1 || i == s->rows - 1;
        for (int j = 0; j < records; ++j) {
            const bool group_lacks = j % 3 == 2 && i / 64 % 2 == 0;
            if (!last && (group_lacks || test_rng_below(rng, 4) == 0)) continue;
            c->table[i * s->num_taps + j * s->num_taps / records] =
                (int32_t)test_rng_below(rng, s->rows);
        }
    }
}

static void make_schedule(product_case *c, const int32_t *order)
{
    const product_shape *s = &c->shape;
    const int words = (s->num_taps + 31) / 32;
    spops_igemm_schedule *to = &c->schedule;
    uint32_t *masks = (uint32_t *)calloc((size_t)(s->rows * words), sizeof *masks);
    spops_relation_side side = {.max_rows = s->rows, .table_stride = s->num_taps};
    spops_igemm_schedule_args args = {.schedule = to, .side = &side, .mask_words = words};
    const int32_t num_rows = (int32_t)s->rows;

    for (int64_t i = 0; i < s->rows; ++i)
        for (int32_t k = 0; k < s->num_taps; ++k)
            if (c->table[i * s->num_taps + k] >= 0)
                masks[i * words + k / 32] |= UINT32_C(1) << k % 32;
    to->num_taps = s->num_taps;
    to->max_tiles = (s->rows + SPOPS_IGEMM_TILE_ROWS - 1) / SPOPS_IGEMM_TILE_ROWS;
    to->max_records = to->max_tiles * s->num_taps;
    to->num_tiles = device_ints(c, NULL, 2);
    to->tiles = device_ints(c, NULL, to->max_tiles * 4);
    to->first = device_ints(c, NULL, to->max_tiles + 1);
    to->out_rows = device_ints(c, NULL, to->max_tiles * SPOPS_IGEMM_TILE_ROWS);
    to->records = device_ints(c, NULL, to->max_records * SPOPS_IGEMM_RECORD_INTS);
    if (s->num_taps <= 32) {
        const int64_t max_pairs = (to->max_tiles + 1) / 2;
        to->pair_totals = device_ints(c, NULL, 2);
        to->pairs = device_ints(c, NULL, max_pairs * 4);
        to->pair_first = device_ints(c, NULL, max_pairs + 1);
        to->group_taps = device_ints(c, NULL, max_pairs * 4);
    }
    int32_t *const sources[] = {test_upload_i32(c->d, &num_rows, 1),
                                test_upload_i32(c->d, c->table, s->rows * s->num_taps),
                                test_upload_i32(c->d, (const int32_t *)masks, s->rows * words),
                                test_upload_i32(c->d, order, s->rows)};
    side.num_rows = sources[0];
    side.table = sources[1];
    args.masks = (const uint32_t *)sources[2];
    args.order = sources[3];
    args.workspace = device_ints(c, NULL, SPOPS_IGEMM_WORKSPACE(to->max_tiles));
    test_expect_ok(
        c->d->ctx,
        c->d->ctx->backend->igemm_schedule(c->d->ctx, &(spops_igemm_schedules_args){1, &args}),
        "schedule");
    test_wait(c->d);
    for (int i = 0; i < 4; ++i)
        test_free(c->d, sources[i]);
    free(masks);
}

// Whole numbers -limit to limit over powers of 2 up to 2^spread, and the same as f32 here.
static float *fill(guarded *g, test_rng *rng, int limit, int spread)
{
    const int64_t n = g->view.rows * g->view.cols;
    float *values = (float *)malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; ++i) {
        values[i] = (float)(test_rng_below(rng, 2 * limit + 1) - limit);
        if (spread > 0) values[i] = ldexpf(values[i], -(int)test_rng_below(rng, spread + 1));
        guarded_set(g, i / g->view.cols, i % g->view.cols, (double)values[i]);
    }
    guarded_upload(g);
    return values;
}

static void compute_expected(product_case *c, const float *x, const float *w)
{
    const product_shape *s = &c->shape;
    const int64_t in = s->in_channels, out = s->out_channels;
    c->expected = (float *)calloc((size_t)(s->rows * out), sizeof *c->expected);
    for (int64_t i = 0; i < s->rows; ++i) {
        float *sum = c->expected + i * out;
        for (int32_t k = 0; k < s->num_taps; ++k) {
            const int32_t from = c->table[i * s->num_taps + k];
            const float *matrix = w + (s->mirrored ? s->num_taps - 1 - k : k) * in * out;
            if (from < 0) continue;
            for (int64_t a = 0; a < in; ++a)
                for (int64_t b = 0; b < out; ++b)
                    sum[b] += x[from * in + a] * matrix[s->transposed ? b * in + a : a * out + b];
        }
    }
}

static void check_sums(const product_case *c, double bound, int32_t tile, const char *what)
{
    const product_shape *s = &c->shape;
    for (int64_t i = 0; i < s->rows * s->out_channels; ++i) {
        const double found = guarded_get(&c->out, i / s->out_channels, i % s->out_channels);
        cr_assert(fabs(found - (double)c->expected[i]) <= bound,
                  "%s, tile %d: row %lld, column %lld is %g, not %g", what, (int)tile,
                  (long long)(i / s->out_channels), (long long)(i % s->out_channels), found,
                  (double)c->expected[i]);
    }
}

// Every tile that is compiled, whatever the table says of these channels.
static void check_every_tile(test_device *d, product_case *c, const spops_igemm_args *args,
                             double bound, const char *what)
{
    for (int32_t v = 1; v <= SPOPS_IGEMM_NUM_TILES; ++v) {
        spops_igemm_args forced = *args;
        if (spops_igemm_is_gradient(v) ||
            (spops_igemm_kernel_of(v) != SPOPS_IGEMM_SM80 && d->ctx->info.compute_capability != 90))
            continue;
        forced.tile = v;
        guarded_poison(&c->out, 0xff);
        guarded_upload(&c->out);
        test_expect_ok(d->ctx, d->ctx->backend->igemm(d->ctx, &forced), what);
        test_wait(d);
        guarded_download(&c->out);
        guarded_check_padding(&c->out, what);
        check_sums(c, bound, v, what);
    }
}

// Sums that are whole have the same bits in tiles and in pairs of tiles; those in parts, the same each time.
static void check_pairs(test_device *d, product_case *c, const spops_igemm_args *args, int repeats,
                        const char *what)
{
    unsigned char *bits[2] = {NULL, NULL}; // shared, whole
    if (d->ctx->info.compute_capability != 90) return;
    for (int32_t v = 1; v <= SPOPS_IGEMM_NUM_TILES; ++v) {
        if (spops_igemm_pair_columns(v) < c->shape.out_channels) continue;
        for (int n = 0; n < 2 * repeats + 1; ++n) {
            spops_igemm_args forced = *args;
            const int whole = n % 2;
            forced.whole_sums = whole;
            forced.tile = n == 1 ? spops_igemm_single_tile(v) : v;
            guarded_poison(&c->out, 0xff);
            guarded_upload(&c->out);
            test_expect_ok(d->ctx, d->ctx->backend->igemm(d->ctx, &forced), what);
            test_wait(d);
            guarded_download(&c->out);
            if (bits[whole] != NULL)
                guarded_check_bits(&c->out, bits[whole], what);
            else
                bits[whole] = guarded_elements(&c->out);
        }
        free(bits[0]), free(bits[1]);
        bits[0] = bits[1] = NULL;
    }
}

static void check_product(test_device *d, const product_shape *shape, spops_dtype dtype,
                          uint64_t stream, int repeats)
{
    const product_shape *s = shape;
    const spops_igemm_scratch_args scratch = {.num_taps = s->num_taps,
                                              .max_x_cols = s->in_channels,
                                              .max_out_cols = // of the widest tile that is forced
                                              s->out_channels < 256 ? 256 : s->out_channels,
                                              .max_records = (s->rows + SPOPS_IGEMM_TILE_ROWS - 1) /
                                                             SPOPS_IGEMM_TILE_ROWS * s->num_taps};
    const spops_backend *backend = d->ctx->backend;
    test_rng rng = test_rng_make(stream);
    product_case c = {.d = d, .shape = *s};
    const int64_t taps = s->num_taps;
    int32_t *order = (int32_t *)malloc((size_t)s->rows * sizeof *order);
    char text[256];
    const char *what = test_describe(
        text, "sm_%d %s, %lld taps, %d records, %lld rows, %lld to %lld%s%s",
        (int)d->ctx->info.compute_capability, spops_dtype_name(dtype), (long long)taps, s->records,
        (long long)s->rows, (long long)s->in_channels, (long long)s->out_channels,
        s->transposed ? ", transposed" : "", s->mirrored ? ", mirrored" : "");

    for (int64_t i = 0; i < s->rows; ++i)
        order[i] = (int32_t)i;
    make_table(&c, &rng);
    make_schedule(&c, order);
    c.x = guarded_create(d->backend, "x", s->rows, s->in_channels, 0, 0, dtype);
    c.w = guarded_create(d->backend, "w", taps * (s->transposed ? s->out_channels : s->in_channels),
                         s->transposed ? s->in_channels : s->out_channels, 0, 0, dtype);
    c.out = guarded_create(d->backend, "out", s->rows, s->out_channels, 0, 0, SPOPS_DTYPE_F32);
    float *x = fill(&c.x, &rng, 3, s->spread), *w = fill(&c.w, &rng, 2, s->spread);
    const double terms = (double)(s->records * s->in_channels);
    const double bound = s->spread == 0 ? 0.0 : 3.0 * 2.0 * terms * terms * 0x1p-21;
    compute_expected(&c, x, w);
    test_expect_ok(d->ctx,
                   spops_context_reserve(d->ctx, backend->igemm_scratch_bytes(d->ctx, &scratch)),
                   what);
    const spops_igemm_args args = {.schedule = &c.schedule,
                                   .x = c.x.view,
                                   .w = c.w.view,
                                   .out = c.out.view,
                                   .w_transposed = s->transposed,
                                   .mirrored = s->mirrored,
                                   .tickets = d->ctx->tickets,
                                   .scratch = d->ctx->scratch};
    cr_assert(backend->igemm_fits(d->ctx, &args), "%s: does not fit", what);
    unsigned char *bits = NULL;
    for (int n = 0; n < repeats; ++n) {
        if (n == 0) {
            guarded_poison(&c.out, 0xff);
            guarded_upload(&c.out);
        }
        test_expect_ok(d->ctx, backend->igemm(d->ctx, &args), what);
        test_wait(d);
        guarded_download(&c.out);
        if (n > 0) {
            guarded_check_bits(&c.out, bits, what);
            continue;
        }
        guarded_check_padding(&c.out, what);
        check_sums(&c, bound, 0, what);
        bits = guarded_elements(&c.out);
    }
    check_pairs(d, &c, &args, repeats < 3 ? 2 : 3, what);
    check_every_tile(d, &c, &args, bound, what);
    free(bits), free(x), free(w), free(c.expected), free(c.table), free(order);
    guarded_destroy(&c.x), guarded_destroy(&c.w), guarded_destroy(&c.out);
    for (int i = 0; i < c.num_arrays; ++i)
        test_free(d, c.arrays[i]);
}

static struct criterion_test_params every_dtype(void)
{
    static const int ops[NUM_CAPABILITIES] = {0, 1};
    return every_case(test_row_dtypes, NUM_ROW_DTYPES, ops, NUM_CAPABILITIES);
}

static bool open_for(test_device *d, const struct case_param *p)
{
    if (p->backend != SPOPS_BACKEND_CUDA || p->launch != LAUNCH_STREAM) return false;
    if (!test_open(d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return false;
    if (pretend(d, capabilities[p->op])) return true;
    test_close(d);
    return false;
}

// Of each width of tile: records around the depth of the pipelines, which have 3 to 6 stages.
CaseTest(igemm, products, every_dtype(), .timeout = 900)
{
    static const int64_t outs[] = {32, 64, 128, 256, 20}, ins[] = {64, 32, 128, 16, 200};
    static const int64_t all_rows[] = {1, 300, 65, 1100, 128};
    static const int32_t taps[] = {7, 32, 33, 64, 65, 343, 27};
    uint64_t stream = case_number(p) << 32;
    test_device d;
    if (!open_for(&d, p)) return;
    for (int o = 0; o < 5; ++o)
        for (int records = 1; records <= 7; ++records) {
            const int n = o * 7 + records;
            const product_shape shape = {.num_taps = taps[n % 7],
                                         .records = records,
                                         .rows = all_rows[n % 5],
                                         .in_channels = ins[(n + o) % 5],
                                         .out_channels = outs[o],
                                         .transposed = n / 2 % 2 != 0,
                                         .mirrored = n % 3 == 0};
            check_product(&d, &shape, (spops_dtype)p->dtype, ++stream, 1);
        }
    test_close(&d);
}

// Tiles in pairs, alone and shared: one tile, an odd number, a tile without taps, rows of one to seven stages.
CaseTest(igemm, pairs, every_dtype(), .timeout = 900)
{
    static const int64_t outs[] = {96, 128, 72, 104}, ins[] = {64, 128, 96, 48, 256, 424};
    static const int64_t all_rows[] = {1, 300, 129, 1100, 128, 1500, 640};
    static const int32_t taps[] = {27, 32, 8, 1, 9};
    uint64_t stream = case_number(p) << 32 | UINT64_C(1) << 30;
    test_device d;
    if (!open_for(&d, p)) return;
    for (int n = 0; n < (test_quick() ? 12 : 60); ++n) {
        const int32_t num_taps = taps[n % 5];
        const int records = 1 + (int)(n * 7 % num_taps);
        const product_shape shape = {.num_taps = num_taps,
                                     .records = records,
                                     .rows = all_rows[n % 7],
                                     .in_channels = ins[n % 6],
                                     .out_channels = outs[n / 2 % 4],
                                     .transposed = n % 2 != 0,
                                     .mirrored = n % 3 == 0,
                                     .spread = n % 4 == 0 ? 12 : 0};
        check_product(&d, &shape, (spops_dtype)p->dtype, ++stream, 1);
    }
    test_close(&d);
}

// As many steps as a pipeline has stages, and one more or less; each instance 1,050 times.
CaseTest(igemm, products_have_the_same_bits, every_dtype(), .timeout = 900)
{
    static const int64_t outs[] = {32, 64, 128, 256};
    uint64_t stream = case_number(p) << 32 | UINT64_C(1) << 31;
    test_device d;
    if (!open_for(&d, p)) return;
    for (int o = 0; o < 4; ++o)
        for (int records = 1; records <= 7; ++records) {
            const product_shape shape = {.num_taps = 27,
                                         .records = records,
                                         .rows = 300,
                                         .in_channels = 64,
                                         .out_channels = outs[o],
                                         .transposed = records % 2 != 0,
                                         .spread = 12};
            check_product(&d, &shape, (spops_dtype)p->dtype, ++stream, test_quick() ? 3 : 150);
        }
    test_close(&d);
}

// Tiles few and heavy, so that blocks share them: parts that are whole tiles, or less than a tile's
// records, in one column tile and in several.
CaseTest(igemm, shared_tiles, every_dtype(), .timeout = 900)
{
    static const int64_t outs[] = {128, 256, 72, 264}, ins[] = {128, 64, 200};
    static const int64_t all_rows[] = {129, 300, 1000};
    uint64_t stream = case_number(p) << 32 | UINT64_C(1) << 29;
    test_device d;
    if (!open_for(&d, p)) return;
    for (int o = 0; o < 4; ++o)
        for (int i = 0; i < 3; ++i) {
            const product_shape shape = {.num_taps = 27 + 8 * i,
                                         .records = 27,
                                         .rows = all_rows[(o + i) % 3],
                                         .in_channels = ins[i],
                                         .out_channels = outs[o],
                                         .transposed = (o + i) % 2 != 0,
                                         .mirrored = i == 1,
                                         .spread = o % 2 == 0 ? 12 : 0};
            check_product(&d, &shape, (spops_dtype)p->dtype, ++stream, test_quick() ? 3 : 30);
        }
    test_close(&d);
}

// Rows of groups, whose calls share no tiles, after one that does: what that left in shared memory
// is not theirs.
CaseTest(igemm, groups_behind_shared_tiles, every_dtype(), .timeout = 900)
{
    enum { GROUPS = 3, ROWS = 1300, IN = 64, OUT = 256 };
    static const int32_t begins[GROUPS + 1] = {0, 700, 700, ROWS};
    const product_shape shared = {
        .num_taps = 27, .records = 27, .rows = 300, .in_channels = IN, .out_channels = OUT};
    const spops_triplets_options options = spops_triplets_options_default();
    const uint64_t stream = case_number(p) << 32 | UINT64_C(3) << 29;
    test_rng rng = test_rng_make(stream);
    spops_triplets *plan = NULL;
    test_device d;
    if (!open_for(&d, p)) return;
    check_product(&d, &shared, (spops_dtype)p->dtype, stream, 1);

    guarded x = guarded_create(d.backend, "x", ROWS, IN, 0, 0, (spops_dtype)p->dtype);
    guarded w = guarded_create(d.backend, "w", GROUPS * IN, OUT, 0, 0, (spops_dtype)p->dtype);
    guarded out = guarded_create(d.backend, "out", ROWS, OUT, 0, 0, SPOPS_DTYPE_F32);
    float *x_values = fill(&x, &rng, 3, 0), *w_values = fill(&w, &rng, 2, 0);
    int32_t *offsets = test_upload_i32(&d, begins, GROUPS + 1);
    test_expect_ok(d.ctx,
                   spops_triplets_create_from_offsets(d.ctx, GROUPS, offsets, &options, &plan),
                   "plan of groups");
    guarded_poison(&out, 0xff);
    guarded_upload(&out);
    test_expect_ok(d.ctx, spops_mvmr_execute(d.ctx, plan, x.view, w.view, NULL, NULL, out.view),
                   "rows of groups");
    test_wait(&d);
    guarded_download(&out);
    guarded_check_padding(&out, "rows of groups");
    for (int64_t i = 0; i < ROWS; ++i)
        for (int64_t b = 0; b < OUT; ++b) {
            const float *matrix = w_values + (i < begins[1] ? 0 : 2) * IN * OUT;
            float sum = 0.0f;
            for (int64_t a = 0; a < IN; ++a)
                sum += x_values[i * IN + a] * matrix[a * OUT + b];
            cr_assert(guarded_get(&out, i, b) == (double)sum, "row %lld, column %lld is %g, not %g",
                      (long long)i, (long long)b, guarded_get(&out, i, b), (double)sum);
        }
    spops_triplets_destroy(plan);
    test_free(&d, offsets);
    free(x_values), free(w_values);
    guarded_destroy(&x), guarded_destroy(&w), guarded_destroy(&out);
    test_close(&d);
}

// Tiles enough that blocks take several, heavy and light.
CaseTest(igemm, many_tiles, every_dtype(), .timeout = 900)
{
    static const int64_t outs[] = {32, 64, 72, 136};
    uint64_t stream = case_number(p) << 32 | UINT64_C(1) << 30;
    test_device d;
    if (!open_for(&d, p)) return;
    for (int o = 0; o < 4; ++o) {
        const product_shape shape = {.num_taps = 5 + 30 * o,
                                     .records = 5,
                                     .rows = test_quick() ? 20000 : 50001,
                                     .in_channels = 8,
                                     .out_channels = outs[o]};
        check_product(&d, &shape, (spops_dtype)p->dtype, ++stream, 2);
    }
    test_close(&d);
}

// ---- Gradients of matrices ----------------------------------------------------------------------

static void reserve_gradient(test_device *d, const spops_igemm_scratch_args *scratch,
                             spops_igemm_wgrad_args *args, const char *what)
{
    const size_t bytes = d->ctx->backend->igemm_scratch_bytes(d->ctx, scratch);
    test_expect_ok(d->ctx, spops_context_reserve(d->ctx, bytes), what);
    args->scratch = d->ctx->scratch;
}

// Sums are exact: whole numbers that f32 holds.
static void check_gradient_once(test_device *d, const spops_igemm_wgrad_args *args, guarded *dw,
                                const float *expected, const char *what)
{
    const int64_t cols = args->g.cols;
    guarded_poison(dw, 0xff);
    guarded_upload(dw);
    test_expect_ok(d->ctx, d->ctx->backend->igemm_wgrad(d->ctx, args), what);
    test_wait(d);
    guarded_download(dw);
    guarded_check_padding(dw, what);
    for (int64_t i = 0; i < args->dw.rows * cols; ++i)
        cr_assert(guarded_get(dw, i / cols, i % cols) == (double)expected[i],
                  "%s, tile %d: row %lld, column %lld is %g, not %g", what, (int)args->tile,
                  (long long)(i / cols), (long long)(i % cols), guarded_get(dw, i / cols, i % cols),
                  (double)expected[i]);
}

static void check_gradient(test_device *d, int64_t in, int64_t out, spops_dtype dtype,
                           uint64_t stream, int repeats)
{
    // Sums of the last tap go beyond what f16 can hold.
    static const int32_t lengths[] = {0, 1, 63, 64, 65, 0, 300, 20000};
    enum { TAPS = sizeof lengths / sizeof *lengths, ROWS = 500 };
    const spops_backend *backend = d->ctx->backend;
    spops_igemm_scratch_args scratch = {
        .num_taps = TAPS, .max_x_cols = in, .max_out_cols = out, .gradients = true};
    test_rng rng = test_rng_make(stream);
    int32_t offsets[TAPS + 1] = {0}, *rows[2];
    char text[256];
    const char *what = test_describe(text, "gradient %s, %lld to %lld", spops_dtype_name(dtype),
                                     (long long)in, (long long)out);

    for (int k = 0; k < TAPS; ++k)
        offsets[k + 1] = offsets[k] + lengths[k];
    const int64_t pairs = offsets[TAPS];
    for (int side = 0; side < 2; ++side) {
        rows[side] = (int32_t *)malloc((size_t)pairs * sizeof *rows[side]);
        for (int64_t i = 0; i < pairs; ++i)
            rows[side][i] = (int32_t)test_rng_below(&rng, ROWS);
    }
    guarded x = guarded_create(d->backend, "x", ROWS, in, 0, 0, dtype);
    guarded g = guarded_create(d->backend, "g", ROWS, out, 0, 0, dtype);
    guarded dw = guarded_create(d->backend, "dw", TAPS * in, out, 0, 0, SPOPS_DTYPE_F32);
    float *xs = fill(&x, &rng, 3, 0), *gs = fill(&g, &rng, 2, 0);
    for (int64_t r = 0; r < ROWS; ++r) { // column 0 of both: 4 each, so 20,000 * 16 of the last
        xs[r * in] = gs[r * out] = 4.0f;
        guarded_set(&x, r, 0, 4.0), guarded_set(&g, r, 0, 4.0);
    }
    guarded_upload(&x), guarded_upload(&g);
    float *expected = (float *)calloc((size_t)(TAPS * in * out), sizeof *expected);
    for (int k = 0; k < TAPS; ++k)
        for (int32_t t = offsets[k]; t < offsets[k + 1]; ++t)
            for (int64_t a = 0; a < in; ++a)
                for (int64_t b = 0; b < out; ++b)
                    expected[(k * in + a) * out + b] +=
                        xs[rows[0][t] * in + a] * gs[rows[1][t] * out + b];
    cr_assert(expected[(TAPS - 1) * in * out] > 65504.0f);

    int32_t *const arrays[] = {test_upload_i32(d, offsets, TAPS + 1),
                               test_upload_i32(d, rows[0], pairs),
                               test_upload_i32(d, rows[1], pairs)};
    spops_igemm_wgrad_args args = {.num_taps = TAPS,
                                   .max_pairs = pairs,
                                   .tap_offsets = arrays[0],
                                   .in_rows = arrays[1],
                                   .out_rows = arrays[2],
                                   .x = x.view,
                                   .g = g.view,
                                   .dw = dw.view};
    unsigned char *bits = NULL;
    // Every tile that is compiled for pairs, whatever the table says of these channels, and its own last.
    const int tiles = backend->igemm_wgrad_fits(d->ctx, &args) ? SPOPS_IGEMM_NUM_TILES : 0;
    for (int32_t v = tiles; v > 0; --v)
        if (spops_igemm_kernel_of(v) == SPOPS_IGEMM_WGRAD) {
            spops_igemm_wgrad_args forced = args;
            forced.tile = scratch.tile = v;
            reserve_gradient(d, &scratch, &forced, what);
            check_gradient_once(d, &forced, &dw, expected, what);
        }
    reserve_gradient(d, &scratch, &args, what);
    if (tiles > 0) check_gradient_once(d, &args, &dw, expected, what);
    for (int n = 0; n < repeats && tiles > 0; ++n) {
        if (n == 0) bits = guarded_elements(&dw);
        test_expect_ok(d->ctx, backend->igemm_wgrad(d->ctx, &args), what);
        test_wait(d);
        guarded_download(&dw);
        guarded_check_bits(&dw, bits, what);
    }
    free(bits), free(xs), free(gs), free(expected), free(rows[0]), free(rows[1]);
    guarded_destroy(&x), guarded_destroy(&g), guarded_destroy(&dw);
    for (int i = 0; i < 3; ++i)
        test_free(d, arrays[i]);
}

CaseTest(igemm, gradients, every_case(test_row_dtypes, NUM_ROW_DTYPES, NULL, 0), .timeout = 900)
{
    static const int64_t widths[][2] = {{16, 16},  {32, 32},   {24, 40},   {64, 64},
                                        {64, 128}, {128, 128}, {256, 256}, {8, 200}};
    uint64_t stream = case_number(p) << 32;
    test_device d;
    if (!open_for(&d, p)) return;
    for (int i = 0; i < (test_quick() ? 6 : 8); ++i)
        check_gradient(&d, widths[i][0], widths[i][1], (spops_dtype)p->dtype, ++stream,
                       test_quick() || i > 3 ? 3 : 250);
    test_close(&d);
}

// ---- Little work, for tools that watch each access ----------------------------------------------

Test(igemm, each_tile_once, .timeout = 900)
{
    static const product_shape shapes[] = {
        {.num_taps = 7, .records = 5, .rows = 300, .in_channels = 64, .out_channels = 128},
        {.num_taps = 7,
         .records = 3,
         .rows = 140,
         .in_channels = 136,
         .out_channels = 264,
         .transposed = true}};
    test_device d;
    if (!test_open(&d, SPOPS_BACKEND_CUDA, LAUNCH_STREAM)) return;
    if (pretend(&d, 90)) {
        for (int i = 0; i < 2; ++i)
            check_product(&d, &shapes[i], SPOPS_DTYPE_F16, (uint64_t)i + 1, 1);
        check_gradient(&d, 64, 128, SPOPS_DTYPE_F16, 3, 1);
    }
    test_close(&d);
}
