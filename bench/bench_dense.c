// SPDX-License-Identifier: Apache-2.0
// Rows of a set as a dense grid, as a detector's head takes them, and back: how close writing comes to
// the plain write of the grid's bytes.
#include <stdlib.h>
#include <string.h>

#include "bench/baselines/dense_baselines.h"
#include "bench/bench_data.h"
#include "bench/bench_report.h"
#include "bench/bench_scenes.h"

// A level of an encoder on a sweep: voxels of it in cells that are `coarser` times as wide.
typedef struct level {
    const char *name;
    int32_t coarser;
    int64_t channels;
    spops_dense_layout layout;
    bool quick;
} level;

static const level levels[] = {
    {"head, channels first", 16, 128, SPOPS_DENSE_CHANNELS_FIRST, true},
    {"head, channels last", 16, 128, SPOPS_DENSE_CHANNELS_LAST, true},
    {"wide, channels first", 8, 128, SPOPS_DENSE_CHANNELS_FIRST, false},
    {"wide, channels last", 8, 128, SPOPS_DENSE_CHANNELS_LAST, false},
    {"fine, channels first", 4, 16, SPOPS_DENSE_CHANNELS_FIRST, false},
    {"fine, channels last", 4, 16, SPOPS_DENSE_CHANNELS_LAST, false},
};

typedef struct dense_data {
    bench *b;
    const level *of;
    bench_scene scene;
    spops_coords *set;
    spops_dense_shape shape;
    int64_t num_cells;
    int32_t *cells; // host, of each row
    const bench_block *values;
    spops_matrix rows, dense, back;
    dense_scatter scatter;
    spops_status status; // of the first call that failed
} dense_data;

static void note_status(dense_data *d, spops_status status)
{
    if (d->status == SPOPS_STATUS_OK) d->status = status;
}

static void enqueue_dense(void *user)
{
    dense_data *d = user;
    note_status(d, spops_dense_execute(d->b->ctx, d->set, d->rows, &d->shape, d->dense));
}

static void enqueue_rows(void *user)
{
    dense_data *d = user;
    note_status(d, spops_dense_rows_execute(d->b->ctx, d->set, d->dense, &d->shape, d->back));
}

static void enqueue_write(void *user)
{
    dense_data *d = user;
    if (d->b->backend == SPOPS_BACKEND_CUDA)
        dense_write_cuda(&d->scatter);
    else
        memset(d->scatter.dense, 0, d->scatter.bytes);
}

static void enqueue_scatter(void *user)
{
    dense_data *d = user;
    dense_scatter_cuda(&d->scatter);
}

// ---- A level ------------------------------------------------------------------------------------

static bool load_level(dense_data *d)
{
    const int32_t coarser = d->of->coarser;
    bench *b = d->b;
    bench_scene *s = &d->scene;
    void *rows = NULL;

    *s = (bench_scene){.name = "lidar", .file = "conv_lidar.npy", .most_rows = 82329};
    if (!bench_scene_load(b, s)) return false;
    for (int a = 1; a <= 3; ++a) {
        for (int64_t r = 0; r < s->num_rows; ++r)
            s->rows[4 * r + a] = (s->rows[4 * r + a] - s->box.lower[a]) / coarser;
        s->box.upper[a] = (s->box.upper[a] - s->box.lower[a]) / coarser;
        s->box.lower[a] = 0;
    }
    bench_scene_unique(s);
    d->shape = spops_dense_shape_default();
    d->shape.layout = d->of->layout;
    d->shape.num_batches = 1;
    d->num_cells = 1;
    for (int a = 0; a < 3; ++a) // the axes of a plane in whole tiles, as heads have them
        d->shape.size[a] = a == 0 ? s->box.upper[1] + 1 : (s->box.upper[1 + a] + 8) / 8 * 8;
    for (int a = 0; a < 3; ++a)
        d->num_cells *= d->shape.size[a];
    d->cells = bench_host(b, s->num_rows, sizeof *d->cells);
    if (d->cells == NULL) return false;
    for (int64_t r = 0; r < s->num_rows; ++r)
        d->cells[r] =
            (s->rows[4 * r + 1] * d->shape.size[1] + s->rows[4 * r + 2]) * d->shape.size[2] +
            s->rows[4 * r + 3];
    const bool made =
        bench_upload(b, s->rows, (size_t)s->num_rows * 4 * sizeof *s->rows, &rows) &&
        bench_check(b, "coords", spops_coords_create(b->ctx, 3, s->num_rows, rows, NULL, &d->set));
    bench_free(b, rows);
    return made;
}

// Every element: the row's at its cell, else 0.
static bool check_dense(const dense_data *d)
{
    const int64_t channels = d->of->channels, total = d->num_cells * channels;
    const bool last = d->of->layout == SPOPS_DENSE_CHANNELS_LAST;
    int64_t wrong = 0;
    int32_t *row_of = bench_host(d->b, d->num_cells, sizeof *row_of);
    void *dense = bench_host(d->b, total, spops_dtype_bytes(d->dense.dtype));

    if (row_of == NULL || dense == NULL ||
        !bench_download(d->b, dense, d->dense.data, d->scatter.bytes)) {
        free(row_of), free(dense);
        return false;
    }
    for (int64_t r = 0; r < d->scene.num_rows; ++r)
        row_of[d->cells[r]] = (int32_t)r + 1; // bench_host gives zeros
#pragma omp parallel for schedule(static) reduction(+ : wrong)
    for (int64_t cell = 0; cell < d->num_cells; ++cell) {
        const int32_t r = row_of[cell] - 1;
        const float *row = r < 0 ? NULL : bench_block_row(d->values, r, channels);
        for (int64_t c = 0; c < channels; ++c) {
            const int64_t at = last ? cell * channels + c : c * d->num_cells + cell;
            wrong += bench_get(dense, d->dense.dtype, at) != (row == NULL ? 0.0f : row[c]);
        }
    }
    free(row_of), free(dense);
    if (wrong == 0) return true;
    return bench_fail(d->b, "dense %s: %lld of %lld elements are wrong", d->of->name,
                      (long long)wrong, (long long)total);
}

static bool check_rows(const dense_data *d)
{
    const int64_t channels = d->of->channels, n = d->scene.num_rows;
    int64_t wrong = 0;
    void *back = bench_host(d->b, n * channels, spops_dtype_bytes(d->back.dtype));
    if (back == NULL ||
        !bench_download(d->b, back, d->back.data,
                        (size_t)(n * channels) * spops_dtype_bytes(d->back.dtype))) {
        free(back);
        return false;
    }
    for (int64_t i = 0; i < n * channels; ++i)
        wrong += bench_get(back, d->back.dtype, i) !=
                 bench_block_row(d->values, i / channels, channels)[i % channels];
    free(back);
    if (wrong == 0) return true;
    return bench_fail(d->b, "dense %s: %lld elements of rows are wrong", d->of->name,
                      (long long)wrong);
}

static bool run_checked(dense_data *d, const char *what, const spops_matrix *result,
                        void (*enqueue)(void *user), bool (*check)(const dense_data *d))
{
    bench *b = d->b;
    d->status = SPOPS_STATUS_OK;
    if (!bench_poison(b, result->data,
                      (size_t)(result->rows * result->cols) * spops_dtype_bytes(result->dtype)))
        return false;
    enqueue(d);
    if (!device_stream_wait(b->backend, b->stream)) return bench_fail(b, "%s", device_error());
    return bench_check(b, what, d->status) && check(d);
}

static void measure(dense_data *d)
{
    const int64_t channels = d->of->channels, n = d->scene.num_rows;
    const int64_t element = (int64_t)spops_dtype_bytes(d->rows.dtype);
    bench *b = d->b;
    bench_case c = {.suite = "dense", .dtype = d->rows.dtype, .cols = channels};

    snprintf(c.name, sizeof c.name, "%s", d->of->name);
    snprintf(c.what, sizeof c.what, "%lld rows in %d x %d x %d cells", (long long)n,
             (int)d->shape.size[0], (int)d->shape.size[1], (int)d->shape.size[2]);
    c.bytes = element * channels * (d->num_cells + n);
    bench_case_note(&c, "num_rows", n);
    bench_case_note(&c, "num_cells", d->num_cells);
    if (run_checked(d, "dense", &d->dense, enqueue_dense, check_dense) &&
        bench_wants(b->options.passes, "dense") &&
        bench_case_time(b, &c, "spops", false, enqueue_dense, d) &&
        bench_check(b, "dense", d->status) &&
        bench_case_time(b, &c, "the bytes alone", true, enqueue_write, d) &&
        (b->backend == SPOPS_BACKEND_CPU ||
         bench_case_time(b, &c, "cleared, scattered", true, enqueue_scatter, d)))
        bench_case_print(b, &c);
    if (d->scatter.failed) bench_fail(b, "dense %s: a baseline failed", d->of->name);
    c = (bench_case){.suite = "dense", .dtype = d->rows.dtype, .cols = channels};
    snprintf(c.name, sizeof c.name, "%s, rows", d->of->name);
    snprintf(c.what, sizeof c.what, "%lld rows of as many cells", (long long)n);
    c.bytes = 2 * element * channels * n;
    enqueue_dense(d); // again what was written before the baselines
    if (bench_wants(b->options.passes, "rows") &&
        run_checked(d, "rows", &d->back, enqueue_rows, check_rows) &&
        bench_case_time(b, &c, "spops", false, enqueue_rows, d) &&
        bench_check(b, "rows", d->status))
        bench_case_print(b, &c);
}

static void measure_dtype(dense_data *d, spops_dtype dtype)
{
    const int64_t channels = d->of->channels, n = d->scene.num_rows;
    const size_t element = spops_dtype_bytes(dtype);
    const bool last = d->of->layout == SPOPS_DENSE_CHANNELS_LAST;
    bench *b = d->b;
    bench_block values = {0};
    void *rows = NULL, *dense = NULL, *back = NULL, *cells = NULL;

    bench_progress("dense %s, %s: checking", d->of->name, spops_dtype_name(dtype));
    d->scatter = (dense_scatter){.bytes = (size_t)(d->num_cells * channels) * element,
                                 .element = element,
                                 .num_rows = n,
                                 .channels = channels,
                                 .num_cells = d->num_cells,
                                 .channels_last = last,
                                 .stream = b->stream};
    d->values = &values;
    if (!bench_block_create(dtype, 6, -1.0f, 1.0f, &values)) {
        bench_fail(b, "no host memory for values");
        goto done;
    }
    if (!bench_alloc(b, (size_t)(n * channels) * element, &rows) ||
        !bench_alloc(b, (size_t)(n * channels) * element, &back) ||
        !bench_alloc(b, d->scatter.bytes, &dense) ||
        !bench_upload(b, d->cells, (size_t)n * sizeof *d->cells, &cells))
        goto done;
    if (!bench_block_upload(&values, b->backend, rows, n * channels)) {
        bench_fail(b, "upload: %s", device_error());
        goto done;
    }
    d->rows = spops_matrix_dense(rows, n, channels, dtype);
    d->back = spops_matrix_dense(back, n, channels, dtype);
    d->dense = last ? spops_matrix_dense(dense, d->num_cells, channels, dtype)
                    : spops_matrix_dense(dense, channels, d->num_cells, dtype);
    d->scatter.rows = rows;
    d->scatter.dense = dense;
    d->scatter.cells = cells;
    measure(d);

done:
    bench_free(b, rows);
    bench_free(b, back);
    bench_free(b, dense);
    bench_free(b, cells);
    bench_block_destroy(&values);
}

static void run_suite(bench *b)
{
    const bool cpu = b->backend == SPOPS_BACKEND_CPU;
    const unsigned own = cpu ? 1u << SPOPS_DTYPE_F32 : 1u << SPOPS_DTYPE_F16;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; ++i) {
        dense_data d = {.b = b, .of = &levels[i]};
        if (b->options.quick && !levels[i].quick) continue;
        if (load_level(&d))
            for (int dtype = SPOPS_DTYPE_F32; dtype <= SPOPS_DTYPE_BF16; ++dtype)
                if (bench_wants_dtype(b, own, (spops_dtype)dtype))
                    measure_dtype(&d, (spops_dtype)dtype);
        spops_coords_destroy(d.set);
        free(d.cells);
        free(d.scene.rows);
    }
}

const bench_suite bench_suite_dense = {.name = "dense", .passes = "dense,rows", .run = run_suite};
