// SPDX-License-Identifier: Apache-2.0
// Calls within segments (ranks, softmax, sort, top-k), products over the pairs of a relation, and sorts
// of keys, each beside the bytes that it has to read and write. Results are checked before they are
// timed: a part of the segments, against plain loops.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_data.h"
#include "bench/bench_report.h"

enum {
    NUM_TERMS = 1600000,
    QUICK_FACTOR = 16,
    COLS = 64,
    HEADS = 8,
    TOPK = 16,
    CHECKED_EVERY = 97
};

static struct {
    const char *shapes, *terms;
} asked;
static const bench_option suite_options[] = {
    {"--segments", "LIST",
     "few: 4 terms a segment, neighbors: 16, patches: "
     "1024, long: 100000, whose terms lie in order; "
     "shuffled: 16 in random order",
     "few,neighbors,patches,long,shuffled", .text = &asked.shapes},
    {"--terms", "N", "terms (default: 1600000)", NULL, .text = &asked.terms},
    {0}};

typedef struct segments_data {
    bench *b;
    const char *shape;
    int64_t num_segments, num_terms;
    int32_t *keys, *idx, *begin, *terms; // host; terms by segment
    void *device_keys, *device_idx;
    bool in_order; // terms of a segment lie together
    spops_segments *plan;
    bench_block values;
    spops_dtype dtype;
    spops_matrix x, q, k, out, places, wide; // [terms, 1 or HEADS] but q, k, wide [segments, COLS]
    spops_status status;
} segments_data;

static size_t bytes_of(const spops_matrix *m)
{
    return (size_t)m->rows * (size_t)m->cols * spops_dtype_bytes(m->dtype);
}

static void note(segments_data *d, spops_status status)
{
    if (d->status == SPOPS_STATUS_OK) d->status = status;
}

// ---- Calls --------------------------------------------------------------------------------------

static void enqueue_rank(void *user)
{
    segments_data *d = user;
    note(d, spops_rank_execute(d->b->ctx, d->plan, d->places.data));
}

static void enqueue_softmax(void *user)
{
    segments_data *d = user;
    note(d, spops_segment_softmax_execute(d->b->ctx, d->plan, d->x, d->out));
}

static void enqueue_softmax_backward(void *user)
{
    segments_data *d = user;
    note(d, spops_segment_softmax_execute_backward(d->b->ctx, d->plan, d->x, d->x, d->out));
}

static void enqueue_sort(void *user)
{
    segments_data *d = user;
    note(d, spops_segment_sort_execute(d->b->ctx, d->plan, 0, d->x, d->out, d->places));
}

static void enqueue_topk(void *user)
{
    segments_data *d = user;
    note(d, spops_segment_topk_execute(d->b->ctx, d->plan, TOPK, 0, d->x, d->out, d->places));
}

static void enqueue_sddmm(void *user)
{
    segments_data *d = user;
    note(d, spops_sddmm_execute(d->b->ctx, d->plan, HEADS, 1.0f, d->q, d->k, d->out));
}

static void enqueue_spmm(void *user)
{
    segments_data *d = user;
    note(d, spops_spmm_execute(d->b->ctx, d->plan, HEADS, d->x, d->k, d->wide));
}

static void enqueue_argsort(void *user)
{
    segments_data *d = user;
    const spops_matrix keys = spops_matrix_dense(d->device_keys, d->num_terms, 1, SPOPS_DTYPE_I32);
    note(d, spops_argsort_execute(d->b->ctx, 0, keys, NULL, d->places.data, NULL));
}

static void enqueue_unique(void *user)
{
    segments_data *d = user;
    const spops_matrix keys = spops_matrix_dense(d->device_keys, d->num_terms, 1, SPOPS_DTYPE_I32);
    const spops_matrix values = spops_matrix_dense(d->out.data, d->num_terms, 1, SPOPS_DTYPE_I32);
    int32_t *places = d->places.data;
    note(d,
         spops_unique_execute(d->b->ctx, keys, NULL, values, places, NULL, places + d->num_terms));
}

// ---- Checks -------------------------------------------------------------------------------------

static double value(const segments_data *d, int64_t row, int64_t cols, int64_t col)
{
    return (double)bench_block_row(&d->values, row, cols)[col];
}

static double got(const segments_data *d, const void *host, int64_t i)
{
    return (double)bench_get(host, d->dtype, i);
}

static bool near(const segments_data *d, double found, double expected, double scale)
{
    const double unit = d->dtype == SPOPS_DTYPE_F32 ? 0x1p-24 : 0x1p-11;
    const double least = d->dtype == SPOPS_DTYPE_F16 ? 0x1p-24 : 0.0; // of subnormal numbers
    return fabs(found - expected) <= 40.0 * unit * (scale + fabs(expected)) + 1e-6 * scale + least;
}

static bool check_rank(const segments_data *d, int64_t s, const void *out, const int32_t *places)
{
    (void)out;
    for (int32_t i = d->begin[s]; i < d->begin[s + 1]; ++i)
        if (places[d->terms[i]] != i - d->begin[s]) return false;
    return true;
}

static bool check_softmax(const segments_data *d, int64_t s, const void *out, const int32_t *places)
{
    (void)places;
    for (int c = 0; c < HEADS; ++c) {
        double sum = 0.0;
        for (int32_t i = d->begin[s]; i < d->begin[s + 1]; ++i)
            sum += exp(value(d, d->terms[i], HEADS, c));
        for (int32_t i = d->begin[s]; i < d->begin[s + 1]; ++i)
            if (!near(d, got(d, out, (int64_t)d->terms[i] * HEADS + c),
                      exp(value(d, d->terms[i], HEADS, c)) / sum, 0.01 / sum))
                return false;
    }
    return true;
}

static bool check_softmax_backward(const segments_data *d, int64_t s, const void *out,
                                   const int32_t *places)
{
    (void)places;
    for (int c = 0; c < HEADS; ++c) {
        double sum = 0.0;
        for (int32_t i = d->begin[s]; i < d->begin[s + 1]; ++i)
            sum += value(d, d->terms[i], HEADS, c) * value(d, d->terms[i], HEADS, c);
        for (int32_t i = d->begin[s]; i < d->begin[s + 1]; ++i) {
            const double y = value(d, d->terms[i], HEADS, c);
            if (!near(d, got(d, out, (int64_t)d->terms[i] * HEADS + c), y * (y - sum), sum))
                return false;
        }
    }
    return true;
}

// Rows of a segment in the result: in order, the values that places name, and in all they come first.
static bool in_order(const segments_data *d, int64_t s, const void *out, const int32_t *places,
                     int64_t most, bool descending)
{
    const int64_t count = d->begin[s + 1] - d->begin[s], n = count < most ? count : most;
    int64_t before = 0;
    double last = 0.0;
    for (int64_t r = 0; r < n; ++r) {
        const int64_t row = most == TOPK ? s * TOPK + r : d->terms[d->begin[s] + r];
        const double v = got(d, out, row);
        if (places[row] < 0 || places[row] >= d->num_terms || d->keys[places[row]] != s ||
            v != value(d, places[row], 1, 0) || (r > 0 && (descending ? v > last : v < last)))
            return false;
        last = v;
    }
    for (int32_t i = d->begin[s]; i < d->begin[s + 1] && n > 0; ++i) {
        const double v = value(d, d->terms[i], 1, 0);
        before += descending ? v > last : v < last;
    }
    return before < n || n == 0;
}

static bool check_sort(const segments_data *d, int64_t s, const void *out, const int32_t *places)
{
    return in_order(d, s, out, places, INT64_MAX, false);
}

static bool check_topk(const segments_data *d, int64_t s, const void *out, const int32_t *places)
{
    return in_order(d, s, out, places, TOPK, true);
}

static bool check_sddmm(const segments_data *d, int64_t s, const void *out, const int32_t *places)
{
    (void)places;
    for (int32_t i = d->begin[s]; i < d->begin[s + 1]; ++i)
        for (int h = 0; h < HEADS; ++h) {
            double sum = 0.0, scale = 0.0;
            for (int c = h * COLS / HEADS; c < (h + 1) * COLS / HEADS; ++c) {
                const double part = value(d, s, COLS, c) * value(d, d->idx[d->terms[i]], COLS, c);
                sum += part;
                scale += fabs(part);
            }
            if (!near(d, got(d, out, (int64_t)d->terms[i] * HEADS + h), sum, scale)) return false;
        }
    return true;
}

static bool check_spmm(const segments_data *d, int64_t s, const void *out, const int32_t *places)
{
    (void)places;
    for (int c = 0; c < COLS; ++c) {
        double sum = 0.0, scale = 0.0;
        for (int32_t i = d->begin[s]; i < d->begin[s + 1]; ++i) {
            const double part = value(d, d->terms[i], HEADS, c * HEADS / COLS) *
                                value(d, d->idx[d->terms[i]], COLS, c);
            sum += part;
            scale += fabs(part);
        }
        if (!near(d, got(d, out, s * COLS + c), sum, scale)) return false;
    }
    return true;
}

static bool check_argsort(const segments_data *d, int64_t s, const void *out, const int32_t *places)
{
    (void)out;
    for (int32_t i = d->begin[s]; i < d->begin[s + 1]; ++i)
        if (places[i] != d->terms[i]) return false;
    return true;
}

// ---- Cases --------------------------------------------------------------------------------------

typedef struct segments_pass {
    const char *name;
    void (*enqueue)(void *user);
    bool (*check)(const segments_data *d, int64_t s, const void *out, const int32_t *places);
    int64_t cols;
    char out; // what is checked: t, w: out or wide; else places alone
} segments_pass;

static const segments_pass passes[] = {
    {"rank", enqueue_rank, check_rank, 1, 'p'},
    {"softmax", enqueue_softmax, check_softmax, HEADS, 't'},
    {"softmax_backward", enqueue_softmax_backward, check_softmax_backward, HEADS, 't'},
    {"sort", enqueue_sort, check_sort, 1, 't'},
    {"topk", enqueue_topk, check_topk, 1, 't'},
    {"sddmm", enqueue_sddmm, check_sddmm, HEADS, 't'},
    {"spmm", enqueue_spmm, check_spmm, HEADS, 'w'},
    {"argsort", enqueue_argsort, check_argsort, 1, 'p'},
    {"unique", enqueue_unique, NULL, 1, 'p'},
};
enum { NUM_PASSES = sizeof passes / sizeof *passes };

// What has to be read and written, each element once; indices of terms and segments too.
static int64_t compulsory(const segments_data *d, const segments_pass *pass)
{
    const int64_t element = (int64_t)spops_dtype_bytes(d->dtype), n = d->num_terms;
    // Which term a position is, where terms do not lie in order.
    const int64_t lists = 4 * ((d->in_order ? 0 : n) + d->num_segments),
                  rows = element * COLS * d->num_segments;
    if (strcmp(pass->name, "rank") == 0) return lists + 4 * n;
    if (strcmp(pass->name, "softmax") == 0) return lists + 2 * element * n * HEADS;
    if (strcmp(pass->name, "softmax_backward") == 0) return lists + 3 * element * n * HEADS;
    if (strcmp(pass->name, "sort") == 0) return lists + (2 * element + 4) * n;
    if (strcmp(pass->name, "topk") == 0)
        return lists + element * n + (element + 4) * d->num_segments * TOPK;
    if (strcmp(pass->name, "argsort") == 0 || strcmp(pass->name, "unique") == 0) return 8 * n;
    return lists + 4 * n + 2 * rows + element * n * HEADS; // sddmm and spmm
}

static bool is_right(segments_data *d, const segments_pass *pass)
{
    const spops_matrix *out = pass->out == 'w' ? &d->wide : &d->out;
    void *host = bench_host(d->b, (int64_t)bytes_of(out), 1);
    int32_t *places = bench_host(d->b, d->places.rows, 4);
    bool right = host != NULL && places != NULL &&
                 bench_download(d->b, host, out->data, bytes_of(out)) &&
                 bench_download(d->b, places, d->places.data, bytes_of(&d->places));
    for (int64_t s = 0;
         right && pass->check != NULL && s<d->num_segments; s += d->num_segments> CHECKED_EVERY
             ? CHECKED_EVERY
             : 1)
        if (!pass->check(d, s, host, places))
            right = bench_fail(d->b, "%s, %s: segment %lld is wrong", pass->name, d->shape,
                               (long long)s);
    free(host);
    free(places);
    return right;
}

static void measure(segments_data *d, const segments_pass *pass)
{
    bench *b = d->b;
    bench_case c = {.suite = "segments", .dtype = d->dtype, .cols = pass->cols};
    const int64_t rows_of_topk = d->num_segments * TOPK;

    d->x = spops_matrix_dense(d->x.data, d->num_terms, pass->cols, d->dtype);
    d->out = spops_matrix_dense(d->out.data, d->num_terms, pass->cols, d->dtype);
    d->places = spops_matrix_dense(d->places.data, d->num_terms, 1, SPOPS_DTYPE_I32);
    if (strcmp(pass->name, "topk") == 0) d->out.rows = d->places.rows = rows_of_topk;
    if (strcmp(pass->name, "unique") == 0) d->places.rows = d->num_terms + 1;
    snprintf(c.name, sizeof c.name, "%s %s", pass->name, d->shape);
    bench_case_note(&c, "num_terms", d->num_terms);
    snprintf(c.what, sizeof c.what, "%lld terms of %lld segments", (long long)d->num_terms,
             (long long)d->num_segments);
    c.bytes = compulsory(d, pass);
    bench_progress("segments %s, %s: checking", c.name, spops_dtype_name(d->dtype));
    d->status = SPOPS_STATUS_OK;
    if (!bench_poison(b, d->out.data, bytes_of(&d->out)) ||
        !bench_poison(b, d->places.data, bytes_of(&d->places)))
        return;
    pass->enqueue(d);
    if (!device_stream_wait(b->backend, b->stream)) {
        bench_fail(b, "run: %s", device_error());
        return;
    }
    if (!bench_check(b, pass->name, d->status) || !is_right(d, pass) ||
        !bench_case_time(b, &c, "spops", false, pass->enqueue, d) ||
        !bench_check(b, pass->name, d->status) || !bench_case_time_bytes(b, &c))
        return;
    bench_case_print(b, &c);
}

// ---- Data ---------------------------------------------------------------------------------------

static bool make_terms(segments_data *d)
{
    bench *b = d->b;
    d->keys = bench_host(b, d->num_terms, 4);
    d->idx = bench_host(b, d->num_terms, 4);
    d->begin = bench_host(b, d->num_segments + 1, 4);
    d->terms = bench_host(b, d->num_terms, 4);
    if (d->keys == NULL || d->idx == NULL || d->begin == NULL || d->terms == NULL) return false;
    memset(d->begin, 0, (size_t)(d->num_segments + 1) * 4);
    for (int64_t t = 0; t < d->num_terms; ++t) {
        d->keys[t] = (int32_t)(bench_random(19, (uint64_t)t) % (uint64_t)d->num_segments);
        d->idx[t] = (int32_t)(bench_random(20, (uint64_t)t) % (uint64_t)d->num_segments);
        ++d->begin[d->keys[t]];
    }
    for (int64_t s = 0, end = 0; s <= d->num_segments; ++s) { // counts become ends, then begins
        end += s < d->num_segments ? d->begin[s] : 0;
        d->begin[s] = (int32_t)end;
    }
    for (int64_t t = d->num_terms - 1; t >= 0; --t)
        d->terms[--d->begin[d->keys[t]]] = (int32_t)t;
    for (int64_t s = 0; s < d->num_segments && d->in_order; ++s)
        for (int32_t t = d->begin[s]; t < d->begin[s + 1]; ++t) {
            d->keys[t] = (int32_t)s;
            d->terms[t] = t;
        }
    return bench_upload(b, d->keys, (size_t)d->num_terms * 4, &d->device_keys) &&
           bench_upload(b, d->idx, (size_t)d->num_terms * 4, &d->device_idx);
}

static bool make_plan(segments_data *d)
{
    spops_segments_options options = spops_segments_options_default();
    options.max_cols = COLS;
    options.idx = d->device_idx;
    options.num_rows = d->num_segments;
    return bench_check(
        d->b, "plan",
        spops_segments_create_from_keys(d->b->ctx, d->num_segments, d->num_terms, d->device_keys,
                                        d->in_order ? SPOPS_KEYS_SORTED : SPOPS_KEYS_UNSORTED,
                                        &options, &d->plan));
}

static bool reserve(segments_data *d)
{
    spops_context *ctx = d->b->ctx;
    const size_t bytes[] = {spops_segment_sort_scratch_bytes(ctx, d->plan, d->dtype, 1),
                            spops_segment_topk_scratch_bytes(ctx, d->plan, TOPK, d->dtype, 1),
                            spops_argsort_scratch_bytes(ctx, SPOPS_DTYPE_I32, d->num_terms),
                            spops_unique_scratch_bytes(ctx, SPOPS_DTYPE_I32, d->num_terms)};
    bool right = true;
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; ++i)
        right = right && bench_check(d->b, "scratch", spops_context_reserve(ctx, bytes[i]));
    return right;
}

static void measure_dtype(segments_data *d, spops_dtype dtype)
{
    bench *b = d->b;
    const size_t element = spops_dtype_bytes(dtype);
    const int64_t rows = d->num_segments, top = rows * TOPK;
    const int64_t terms = d->num_terms * HEADS > top ? d->num_terms * HEADS : top;
    void *x = NULL, *q = NULL, *out = NULL, *places = NULL, *wide = NULL;

    d->dtype = dtype;
    if (!bench_block_create(dtype, 7, -2.0f, 2.0f, &d->values)) {
        bench_fail(b, "no host memory for values");
        return;
    }
    if (reserve(d) && bench_alloc(b, (size_t)terms * element, &x) &&
        bench_alloc(b, (size_t)(terms * 4), &out) &&
        bench_alloc(b, (size_t)(terms + 1) * 4, &places) &&
        bench_alloc(b, (size_t)rows * COLS * element, &q) &&
        bench_alloc(b, (size_t)rows * COLS * element, &wide)) {
        d->x.data = x;
        d->out.data = out;
        d->places.data = places;
        d->q = d->k = spops_matrix_dense(q, rows, COLS, dtype);
        d->wide = spops_matrix_dense(wide, rows, COLS, dtype);
        if (!bench_block_upload(&d->values, b->backend, x, d->num_terms * HEADS) ||
            !bench_block_upload(&d->values, b->backend, q, rows * COLS))
            bench_fail(b, "upload: %s", device_error());
        for (int i = 0; i < NUM_PASSES && !b->failed; ++i)
            if (bench_wants(b->options.passes, passes[i].name)) measure(d, &passes[i]);
    }
    bench_free(b, x), bench_free(b, q), bench_free(b, out);
    bench_free(b, places), bench_free(b, wide);
    bench_block_destroy(&d->values);
}

static void run_suite(bench *b)
{
    static const struct {
        const char *name;
        int64_t terms; // of a segment
    } shapes[] = {
        {"few", 4}, {"neighbors", 16}, {"patches", 1024}, {"long", 100000}, {"shuffled", 16}};
    const unsigned own_dtypes =
        1u << SPOPS_DTYPE_F32 | (b->backend == SPOPS_BACKEND_CPU ? 0u : 1u << SPOPS_DTYPE_F16);
    int64_t num_terms = b->options.quick ? NUM_TERMS / QUICK_FACTOR : NUM_TERMS;

    if (asked.terms != NULL &&
        !options_read_number(asked.terms, 1, INT32_MAX / HEADS, &num_terms)) {
        bench_fail(b, "--terms %s, expected a number from 1 to %d", asked.terms, INT32_MAX / HEADS);
        return;
    }

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
        segments_data d = {.b = b, .shape = shapes[i].name, .num_terms = num_terms};
        if (!bench_wants(asked.shapes, shapes[i].name)) continue;
        d.in_order = strcmp(d.shape, "shuffled") != 0;
        d.num_segments = d.num_terms / shapes[i].terms;
        if (d.num_segments < 1) d.num_segments = 1;
        if (make_terms(&d) && make_plan(&d))
            for (int dtype = SPOPS_DTYPE_F32; dtype <= SPOPS_DTYPE_BF16; ++dtype)
                if (bench_wants_dtype(b, own_dtypes, (spops_dtype)dtype))
                    measure_dtype(&d, (spops_dtype)dtype);
        spops_segments_destroy(d.plan);
        bench_free(b, d.device_keys), bench_free(b, d.device_idx);
        free(d.keys), free(d.idx), free(d.begin), free(d.terms);
    }
}

const bench_suite bench_suite_segments = {
    .name = "segments",
    .passes = "rank,softmax,softmax_backward,sort,topk,sddmm,spmm,argsort,unique",
    .options = suite_options,
    .run = run_suite};
