// SPDX-License-Identifier: Apache-2.0
// Operators over ranks: partitions, halos and sums by chunks give the same bits for any number of ranks, in
// any partition, also where ranks have no rows; and those bits are right.
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/plan_file.h"
#include "support/device.h"
#include "tests/support/params.h"
#include "tests/support/random.h"
#include "tests/support/ranks.h"
#include "tests/support/saved.h"
#include "tests/support/values.h"

enum { SIDE = 26, MAX_RANKS = 8, IN = 8, OUT = 16, TAPS = 27, CHUNKS = 11, TIMEOUT_MS = 60000 };

// ---- A scene -------------------------------------------------------------------------------------

// A set of rows, in lexicographic order.
typedef struct row_list {
    int64_t n;
    int32_t (*at)[4];
} row_list;

static int by_place(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;
    for (int c = 0; c < 4; ++c)
        if (x[c] != y[c]) return x[c] < y[c] ? -1 : 1;
    return 0;
}

static row_list make_list(int32_t (*at)[4], int64_t n)
{
    row_list list = {0, at};
    qsort(at, (size_t)n, sizeof *at, by_place);
    for (int64_t i = 0; i < n; ++i)
        if (list.n == 0 || by_place(at[list.n - 1], at[i]) != 0)
            memmove(at[list.n++], at[i], sizeof *at);
    return list;
}

static int64_t place_of(const row_list *list, const int32_t *row)
{
    const void *found = bsearch(row, list->at, (size_t)list->n, sizeof *list->at, by_place);
    return found == NULL ? -1 : (const int32_t(*)[4])found - (const int32_t(*)[4])list->at;
}

static int32_t half_of(int32_t x)
{
    return x >= 0 ? x / 2 : -((1 - x) / 2);
}

// What is computed of rows, and of columns.
enum {
    CONV,
    CONV_X,
    NORM,
    NORM_X,
    LINEAR,
    LINEAR_X,
    POOLED,
    POOLED_X,
    STRIDED,
    STRIDED_X,
    NUM_ROWS
};
enum { CONV_W, STRIDED_W, LINEAR_W, MOMENTS, RUNNING, NORM_SUMS, NUM_VECTORS };
static const int cols_of[NUM_ROWS] = {OUT, IN, OUT, OUT, OUT, IN, OUT, OUT, OUT, IN};
static const int64_t vector_length[NUM_VECTORS] = {TAPS * IN * OUT, TAPS *IN *OUT, IN *OUT,
                                                   2 * OUT,         2 * OUT,       2 * OUT};

typedef struct scene {
    spops_dtype dtype;
    int32_t num_ranks, first_chunk[MAX_RANKS + 1];
    bool has_first;
    spops_coords_order order;
    row_list fine, coarse, strided; // of voxels, of pairs of voxels, of what strides of 3^3 reach
    char *rows[NUM_ROWS];
    float *vectors[NUM_VECTORS];
} scene;

static const row_list *list_of(const scene *s, int what)
{
    return what == POOLED ? &s->coarse : what == STRIDED ? &s->strided : &s->fine;
}

// Voxels about two surfaces, one in each batch, with negative coordinates.
static scene make_scene(spops_dtype dtype, spops_coords_order order)
{
    scene s = {.dtype = dtype, .order = order};
    test_rng rng = test_rng_make(41);
    const int64_t most = 2 * SIDE * SIDE * 3;
    int64_t n = 0, m = 0, k = 0;
    int32_t(*fine)[4] = malloc((size_t)most * sizeof *fine);
    int32_t(*coarse)[4] = malloc((size_t)most * sizeof *coarse);
    int32_t(*strided)[4] = malloc((size_t)most * 8 * sizeof *strided);

    for (int32_t b = 0; b < 2; ++b)
        for (int32_t i = 0; i < SIDE * SIDE * 3; ++i) {
            const int32_t x = i / 3 / SIDE, y = i / 3 % SIDE, z = i % 3;
            const int32_t row[4] = {b, x - 9, y - 17, (x * (b + 1) + y) / 4 + z - 3};
            if (test_rng_below(&rng, 100) < 45) memcpy(fine[n++], row, sizeof row);
        }
    s.fine = make_list(fine, n);
    for (int64_t i = 0; i < s.fine.n; ++i) {
        const int32_t *r = s.fine.at[i];
        const int32_t up[4] = {r[0], half_of(r[1]), half_of(r[2]), half_of(r[3])};
        memcpy(coarse[m++], up, sizeof up);
        for (int corner = 0; corner < 8; ++corner) { // every q with r = 2 q - 1 + t, 0 <= t <= 2
            int32_t q[4] = {r[0], 0, 0, 0};
            bool there = true;
            for (int a = 0; a < 3; ++a) {
                q[a + 1] = half_of(r[a + 1]) + (corner >> a & 1);
                there = there && r[a + 1] >= 2 * q[a + 1] - 1;
            }
            if (there) memcpy(strided[k++], q, sizeof q);
        }
    }
    s.coarse = make_list(coarse, m);
    s.strided = make_list(strided, k);
    for (int w = 0; w < NUM_ROWS; ++w)
        s.rows[w] = malloc((size_t)(list_of(&s, w)->n * cols_of[w]) * sizeof(double));
    for (int w = 0; w < NUM_VECTORS; ++w)
        s.vectors[w] = malloc((size_t)vector_length[w] * sizeof(float));
    return s;
}

static void forget_results(scene *s)
{
    for (int w = 0; w < NUM_ROWS; ++w)
        memset(s->rows[w], 0xa5, (size_t)(list_of(s, w)->n * cols_of[w]) * sizeof(double));
    for (int w = 0; w < NUM_VECTORS; ++w)
        memset(s->vectors[w], 0xa5, (size_t)vector_length[w] * sizeof(float));
}

static void free_scene(scene *s)
{
    for (int w = 0; w < NUM_ROWS; ++w)
        free(s->rows[w]);
    for (int w = 0; w < NUM_VECTORS; ++w)
        free(s->vectors[w]);
    free(s->fine.at), free(s->coarse.at), free(s->strided.at);
}

// A number that follows from the place; `what` tells features from gradients and weights.
static double feature(int what, const int32_t *row, int64_t column)
{
    test_rng rng = test_rng_make((uint64_t)what << 56 ^ (uint64_t)row[0] << 48 ^
                                 (uint64_t)(row[1] + 64) << 36 ^ (uint64_t)(row[2] + 64) << 24 ^
                                 (uint64_t)(row[3] + 64) << 12 ^ (uint64_t)column);
    return (double)(int64_t)(test_rng_next(&rng) >> 40) / 0x1p23 - 1.0;
}

enum { OF_X, OF_G, OF_W, OF_NORM, OF_COARSE };

static double weight(int64_t i, int64_t column)
{
    const int32_t row[4] = {(int32_t)(i / 1000), (int32_t)(i % 1000), 1, 2};
    return 0.3 * feature(OF_W, row, column);
}

// ---- A rank's part -------------------------------------------------------------------------------

enum { MAX_BLOCKS = 128 };

// A level as a rank has it.
typedef struct level {
    spops_coords *owned;
    spops_halo *halo;
    spops_halo_info info;
    int32_t (*rows)[4]; // [owned | ghosts] on the host
    int64_t num;
} level;

typedef struct part {
    test_rank *r;
    scene *s;
    spops_context *ctx;
    spops_partition *partition;
    spops_chunk_sums *sums;
    level fine;
    void *blocks[MAX_BLOCKS]; // freed at the end
    int num_blocks;
} part;

static void *keep(part *p, size_t bytes)
{
    void *block = NULL;
    if (!device_alloc(p->r->device.backend, bytes + 256, &block)) return NULL;
    p->blocks[p->num_blocks++] = block;
    return block;
}

static spops_matrix first_rows(spops_matrix m, int64_t rows)
{
    m.rows = rows;
    return m;
}

static spops_matrix new_rows(part *p, int64_t rows, int64_t cols, spops_dtype dtype)
{
    return spops_matrix_dense(keep(p, (size_t)(rows * cols) * test_dtype_bytes(dtype)), rows, cols,
                              dtype);
}

// The first n rows get their features; those after them stay NaN.
static spops_matrix features(part *p, int what, const int32_t (*rows)[4], int64_t n, int64_t all,
                             int64_t cols)
{
    const size_t each = test_dtype_bytes(p->s->dtype);
    const spops_matrix m = new_rows(p, all, cols, p->s->dtype);
    char *host = malloc((size_t)(n * cols) * each + 1);
    for (int64_t i = 0; i < n * cols; ++i) {
        const int32_t numbered[4] = {0, (int32_t)(i / cols % 1000), (int32_t)(i / cols / 1000), 0};
        test_store(host + (size_t)i * each, p->s->dtype,
                   what == OF_W
                       ? weight(i / cols, i % cols)
                       : feature(what, rows == NULL ? numbered : rows[i / cols], i % cols));
    }
    (void)device_upload(p->r->device.backend, m.data, host, (size_t)(n * cols) * each);
    free(host);
    return m;
}

// Owned rows of a result go to their places in the scene.
static void put_rows(part *p, int what, const level *l, spops_matrix m)
{
    const size_t row = (size_t)m.cols * test_dtype_bytes(m.dtype);
    const row_list *list = list_of(p->s, what);
    char *host = malloc((size_t)l->info.num_owned * row + 1);
    if (spops_context_wait_sync(p->ctx) != SPOPS_STATUS_OK ||
        !device_download(p->r->device.backend, host, m.data, (size_t)l->info.num_owned * row))
        test_rank_fail(p->r, "download of %d", what);
    for (int64_t i = 0; i < l->info.num_owned; ++i) {
        const int64_t at = place_of(list, l->rows[i]);
        if (at < 0)
            test_rank_fail(p->r, "result %d has a row that is not in the scene", what);
        else
            memcpy(p->s->rows[what] + (size_t)at * row, host + (size_t)i * row, row);
    }
    free(host);
}

// A vector, which all ranks have alike: rank 0 leaves it in the scene.
static void put_vector(part *p, int what, const void *data)
{
    const size_t bytes = (size_t)vector_length[what] * sizeof(float);
    float *host = malloc(bytes);
    if (spops_context_wait_sync(p->ctx) != SPOPS_STATUS_OK ||
        !device_download(p->r->device.backend, host, data, bytes))
        test_rank_fail(p->r, "download of vector %d", what);
    if (p->r->rank == 0) memcpy(p->s->vectors[what], host, bytes);
    if (spops_comm_barrier_sync(p->ctx, p->r->comm) != SPOPS_STATUS_OK)
        test_rank_fail(p->r, "%s", spops_last_error(p->ctx));
    else if (memcmp(p->s->vectors[what], host, bytes) != 0)
        test_rank_fail(p->r, "vector %d is not that of rank 0", what);
    free(host);
}

#define PART_OK(call) RANK_OK(p->r, call)

static int32_t *upload_rows(part *p, const int32_t (*rows)[4], int64_t n)
{
    int32_t *at = keep(p, (size_t)n * sizeof *rows);
    if (n > 0) (void)device_upload(p->r->device.backend, at, rows, (size_t)n * sizeof *rows);
    return at;
}

// The set and the halo of rows that this rank owns.
static void make_level(part *p, const int32_t (*rows)[4], int64_t n, int32_t stride, level *l)
{
    const int32_t strides[3] = {stride, stride, stride};
    spops_partition_info info = spops_partition_info_default();
    spops_coords_options coords = spops_coords_options_default();
    spops_halo_options halo = spops_halo_options_default();
    spops_coords_view view = spops_coords_view_default();
    spops_coords_box box;

    PART_OK(spops_partition_get_info(p->ctx, p->partition, &info));
    PART_OK(spops_partition_get_box(p->ctx, p->partition, strides, &box));
    coords.box = &box;
    coords.order = info.order;
    PART_OK(spops_coords_create(p->ctx, 3, n, upload_rows(p, rows, n), &coords, &l->owned));
    halo.stride = strides;
    halo.max_cols = OUT;
    PART_OK(spops_halo_create(p->ctx, p->r->comm, p->partition, l->owned, &halo, &l->halo));
    l->info = spops_halo_info_default();
    PART_OK(spops_halo_get_info(p->ctx, l->halo, &l->info));
    l->num = l->info.num_owned + l->info.num_ghosts;
    l->rows = malloc((size_t)l->num * sizeof *l->rows + 1);
    PART_OK(spops_coords_get_view(p->ctx, l->info.coords, &view));
    RANK_CHECK(p->r,
               l->info.num_owned == n && device_download(p->r->device.backend, l->rows, view.rows,
                                                         (size_t)l->num * sizeof *l->rows),
               "rows of a level");
}

static void free_level(level *l)
{
    spops_halo_destroy(l->halo);
    spops_coords_destroy(l->owned);
    free(l->rows);
}

// Rows of a list that this rank owns: returns how many.
static int64_t take_owned(part *p, const int32_t (*rows)[4], int64_t n, int32_t stride,
                          int32_t (*to)[4])
{
    const int32_t strides[3] = {stride, stride, stride};
    spops_partition_info info = spops_partition_info_default();
    int32_t *chunks = malloc((size_t)n * sizeof *chunks + 1);
    int64_t kept = 0;

    if (spops_partition_get_info(p->ctx, p->partition, &info) != SPOPS_STATUS_OK ||
        spops_partition_find_chunks(p->ctx, p->partition, strides, n, n > 0 ? rows[0] : NULL,
                                    chunks) != SPOPS_STATUS_OK)
        test_rank_fail(p->r, "%s", spops_last_error(p->ctx));
    for (int64_t i = 0; i < n; ++i)
        if (chunks[i] >= info.first_chunk[p->r->rank] &&
            chunks[i] < info.first_chunk[p->r->rank + 1])
            memcpy(to[kept++], rows[i], sizeof *rows);
    free(chunks);
    return kept;
}

static int64_t cost_of(const scene *s, const int32_t *row)
{
    return s->order == SPOPS_COORDS_ORDER_MORTON ? 1 + (row[1] > 0) * 5 : 1;
}

// The partition of rows that the rank happens to have, and the rows that it gets.
static void make_part(part *p)
{
    scene *s = p->s;
    spops_partition_options options = spops_partition_options_default();
    int32_t(*rows)[4] = malloc((size_t)s->fine.n * sizeof *rows);
    spops_coords *given = NULL;
    int64_t n = 0;

    for (int64_t i = 0; i < s->fine.n; ++i)
        if (i * 7919 % 101 % s->num_ranks == p->r->rank)
            memcpy(rows[n++], s->fine.at[i], sizeof *rows);
    PART_OK(spops_coords_create(p->ctx, 3, n, upload_rows(p, rows, n), NULL, &given));
    options.num_chunks = CHUNKS;
    options.cell_log2 = 2;
    options.order = s->order;
    options.first_chunk = s->has_first ? s->first_chunk : NULL;
    // Rows cost more where x is large, in one of the orders.
    int64_t *weights = malloc((size_t)n * sizeof *weights + 1), total = 0, largest = 0;
    for (int64_t i = 0; i < n; ++i)
        weights[i] = cost_of(s, rows[i]);
    for (int64_t i = 0; i < s->fine.n; ++i)
        total += cost_of(s, s->fine.at[i]);
    int64_t *costs = keep(p, (size_t)n * sizeof *costs);
    if (n > 0) (void)device_upload(p->r->device.backend, costs, weights, (size_t)n * sizeof *costs);
    free(weights);
    if (s->order == SPOPS_COORDS_ORDER_MORTON) options.weights = costs;
    PART_OK(spops_partition_create(p->ctx, p->r->comm, given, &options, &p->partition));
    spops_partition_info info = spops_partition_info_default();
    PART_OK(spops_partition_get_info(p->ctx, p->partition, &info));
    for (int c = 0; c < CHUNKS; ++c) {
        total -= info.chunk_weights[c];
        if (info.chunk_weights[c] > largest) largest = info.chunk_weights[c];
    }
    RANK_CHECK(p->r, total == 0 && largest > 0, "chunks have all but %d of the weight", (int)total);
    spops_coords_destroy(given);
    n = take_owned(p, s->fine.at, s->fine.n, 1, rows);
    make_level(p, rows, n, 1, &p->fine);
    free(rows);
    PART_OK(spops_chunk_sums_create(p->ctx, p->r->comm, p->partition, TAPS * IN * OUT, &p->sums));
}

// ---- Operators -----------------------------------------------------------------------------------

// Rows of a chunk of a matrix that begins with the owned rows.
static spops_matrix chunk_of(const level *l, spops_matrix m, int32_t chunk)
{
    const int64_t begin = l->info.chunk_offsets[chunk], end = l->info.chunk_offsets[chunk + 1];
    m.data = (char *)m.data + (size_t)(begin * m.row_stride) * test_dtype_bytes(m.dtype);
    m.rows = end - begin;
    return m;
}

// dW of the output rows of each chunk, whose inputs are rows of `in`; then the sum.
static void gradient_of_weights(part *p, const spops_kernel_shape *kernel, const spops_coords *in,
                                const level *out, spops_matrix x, spops_matrix g, spops_matrix w,
                                spops_matrix partials)
{
    spops_coords_view view = spops_coords_view_default();
    PART_OK(spops_coords_get_view(p->ctx, out->info.coords, &view));
    for (int32_t c = 0; c < out->info.num_chunks; ++c) {
        const int64_t begin = out->info.chunk_offsets[c];
        spops_kernel_map_options contents = spops_kernel_map_options_default();
        spops_sparseconv_options options = spops_sparseconv_options_default();
        const spops_matrix to = spops_matrix_dense((float *)partials.data + c * partials.row_stride,
                                                   TAPS * IN, OUT, SPOPS_DTYPE_F32);
        spops_coords *rows = NULL;
        spops_kernel_map *map = NULL;
        spops_sparseconv *conv = NULL;

        PART_OK(spops_coords_create(p->ctx, 3, out->info.chunk_offsets[c + 1] - begin,
                                    view.rows + 4 * begin, NULL, &rows));
        contents.contents = SPOPS_MAP_PAIRS;
        PART_OK(spops_kernel_map_create(p->ctx, SPOPS_MAP_CONVOLUTION, kernel, in, rows, &contents,
                                        &map));
        options.backward = 2;
        PART_OK(spops_sparseconv_create(p->ctx, map, &options, &conv));
        PART_OK(spops_sparseconv_execute_backward(p->ctx, conv, chunk_of(out, g, c), x, w, NULL,
                                                  NULL, &to, NULL));
        if (c == 0) { // no other pass
            const spops_status status =
                spops_sparseconv_execute(p->ctx, conv, x, w, NULL, chunk_of(out, g, c));
            RANK_CHECK(p->r, status != SPOPS_STATUS_OK, "a plan for gradients of weights ran");
        }
        spops_sparseconv_destroy(conv);
        spops_kernel_map_destroy(map);
        spops_coords_destroy(rows);
    }
}

static void run_conv(part *p)
{
    level *l = &p->fine;
    spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_sparseconv_options options = spops_sparseconv_options_default();
    const spops_dtype dtype = p->s->dtype;
    const spops_matrix x = features(p, OF_X, l->rows, l->info.num_owned, l->num, IN);
    const spops_matrix g = features(p, OF_G, l->rows, l->info.num_owned, l->num, OUT);
    const spops_matrix w = features(p, OF_W, NULL, TAPS * IN, TAPS * IN, OUT);
    const spops_matrix out = new_rows(p, l->num, OUT, dtype), to_x = new_rows(p, l->num, IN, dtype);
    const spops_matrix partials = new_rows(p, l->info.num_chunks, TAPS * IN * OUT, SPOPS_DTYPE_F32);
    float *sum = keep(p, TAPS * IN * OUT * sizeof *sum);
    spops_kernel_map *map = NULL;
    spops_sparseconv *conv = NULL;

    options.backward = 1;
    options.crop_independent = 1;
    PART_OK(spops_kernel_map_create(p->ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, l->info.coords, NULL,
                                    NULL, &map));
    PART_OK(spops_sparseconv_create(p->ctx, map, &options, &conv));
    PART_OK(spops_halo_execute(p->ctx, l->halo, first_rows(x, l->info.num_owned), x));
    PART_OK(spops_sparseconv_execute(p->ctx, conv, x, w, NULL, out));
    put_rows(p, CONV, l, out);
    PART_OK(spops_halo_begin(p->ctx, l->halo, first_rows(g, l->info.num_owned), g));
    for (int a = 0; a < 3; ++a)
        kernel.padding[a] = 1;
    gradient_of_weights(p, &kernel, l->info.coords, l, x, g, w, partials);
    PART_OK(spops_halo_end(p->ctx, l->halo));
    PART_OK(spops_sparseconv_execute_backward(p->ctx, conv, g, x, w, NULL, &to_x, NULL, NULL));
    put_rows(p, CONV_X, l, to_x);
    PART_OK(spops_chunk_sums_execute(p->ctx, p->sums, partials, sum));
    put_vector(p, CONV_W, sum);
    spops_sparseconv_destroy(conv);
    spops_kernel_map_destroy(map);
}

// 3 x 3 x 3 with stride 2: the forward pass reads ghosts of the fine level, the gradient of x those of the
// coarse one.
static void run_strided(part *p)
{
    const spops_dtype dtype = p->s->dtype;
    spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 2, 1);
    spops_sparseconv_options options = spops_sparseconv_options_default();
    int32_t(*rows)[4] = malloc((size_t)p->s->strided.n * sizeof *rows);
    const int64_t n = take_owned(p, p->s->strided.at, p->s->strided.n, 2, rows);
    level coarse = {0}, *fine = &p->fine;
    spops_kernel_map *maps[2] = {NULL, NULL};
    spops_sparseconv *convs[2] = {NULL, NULL};

    make_level(p, rows, n, 2, &coarse);
    free(rows);
    const spops_matrix x = features(p, OF_X, fine->rows, fine->info.num_owned, fine->num, IN);
    const spops_matrix g =
        features(p, OF_COARSE, coarse.rows, coarse.info.num_owned, coarse.num, OUT);
    const spops_matrix w = features(p, OF_W, NULL, TAPS * IN, TAPS * IN, OUT);
    const spops_matrix out = new_rows(p, coarse.info.num_owned, OUT, dtype);
    const spops_matrix to_x = new_rows(p, fine->info.num_owned, IN, dtype);
    const spops_matrix x_owned = spops_matrix_dense(x.data, fine->info.num_owned, IN, dtype);
    const spops_matrix partials =
        new_rows(p, coarse.info.num_chunks, TAPS * IN * OUT, SPOPS_DTYPE_F32);
    float *sum = keep(p, TAPS * IN * OUT * sizeof *sum);

    for (int a = 0; a < 3; ++a)
        kernel.padding[a] = 1;
    options.backward = 1;
    options.crop_independent = 1;
    PART_OK(spops_kernel_map_create(p->ctx, SPOPS_MAP_CONVOLUTION, &kernel, fine->info.coords,
                                    coarse.owned, NULL, &maps[0]));
    PART_OK(spops_kernel_map_create(p->ctx, SPOPS_MAP_CONVOLUTION, &kernel, fine->owned,
                                    coarse.info.coords, NULL, &maps[1]));
    for (int i = 0; i < 2; ++i)
        PART_OK(spops_sparseconv_create(p->ctx, maps[i], &options, &convs[i]));
    PART_OK(spops_halo_execute(p->ctx, fine->halo, first_rows(x, fine->info.num_owned), x));
    PART_OK(spops_sparseconv_execute(p->ctx, convs[0], x, w, NULL, out));
    put_rows(p, STRIDED, &coarse, out);
    PART_OK(spops_halo_execute(p->ctx, coarse.halo, first_rows(g, coarse.info.num_owned), g));
    PART_OK(spops_sparseconv_execute_backward(p->ctx, convs[1], g, x_owned, w, NULL, &to_x, NULL,
                                              NULL));
    put_rows(p, STRIDED_X, fine, to_x);
    gradient_of_weights(p, &kernel, fine->info.coords, &coarse, x, g, w, partials);
    PART_OK(spops_chunk_sums_execute(p->ctx, p->sums, partials, sum));
    put_vector(p, STRIDED_W, sum);
    for (int i = 0; i < 2; ++i) {
        spops_sparseconv_destroy(convs[i]);
        spops_kernel_map_destroy(maps[i]);
    }
    free_level(&coarse);
}

// Batch norm with the statistics of all ranks, and its gradients.
static void run_norm(part *p)
{
    level *l = &p->fine;
    const int32_t own = l->info.num_chunks;
    spops_norm_options options = spops_norm_options_default();
    const spops_matrix x = features(p, OF_NORM, l->rows, l->info.num_owned, l->info.num_owned, OUT);
    const spops_matrix g = features(p, OF_G, l->rows, l->info.num_owned, l->info.num_owned, OUT);
    const spops_matrix out = new_rows(p, l->info.num_owned, OUT, p->s->dtype);
    const spops_matrix to_x = new_rows(p, l->info.num_owned, OUT, p->s->dtype);
    const spops_matrix partials = new_rows(p, own, 2 * OUT, SPOPS_DTYPE_F32);
    const spops_matrix all = new_rows(p, CHUNKS, 2 * OUT, SPOPS_DTYPE_F32);
    float *moments = keep(p, 2 * OUT * sizeof(float)), *running = keep(p, 2 * OUT * sizeof(float));
    float *sums = keep(p, 2 * OUT * sizeof(float)), *affine = keep(p, 2 * OUT * sizeof(float));
    int64_t counts[4][MAX_RANKS];
    const spops_comm_layout layout = {counts[0], counts[1], counts[2], counts[3]};
    spops_partition_info info = spops_partition_info_default();
    float host[2 * OUT];

    for (int c = 0; c < 2 * OUT; ++c)
        host[c] = 0.5f + 0.03f * (float)c;
    RANK_CHECK(p->r,
               device_upload(p->r->device.backend, affine, host, sizeof host) &&
                   device_upload(p->r->device.backend, running, host, sizeof host),
               "upload");
    options.activation = SPOPS_ACTIVATION_RELU;
    PART_OK(spops_context_reserve(p->ctx, spops_norm_scratch_bytes(x.rows, OUT)));
    PART_OK(spops_partition_get_info(p->ctx, p->partition, &info));
    for (int32_t c = 0; c < own; ++c) {
        float *mean = (float *)partials.data + c * 2 * OUT;
        PART_OK(spops_batchnorm_statistics_execute(p->ctx, chunk_of(l, x, c), &options, mean,
                                                   mean + OUT, NULL, NULL));
    }
    for (int32_t r = 0; r < p->r->num_ranks; ++r) {
        counts[0][r] = own;
        counts[1][r] = 0;
        counts[2][r] = info.first_chunk[r + 1] - info.first_chunk[r];
        counts[3][r] = info.first_chunk[r];
    }
    PART_OK(spops_comm_exchange_execute(p->ctx, p->r->comm, &layout, partials, all));
    PART_OK(spops_batchnorm_merge_execute(p->ctx, l->info.all_chunk_rows, all, &options, moments,
                                          moments + OUT, running, running + OUT));
    put_vector(p, MOMENTS, moments);
    put_vector(p, RUNNING, running);
    PART_OK(spops_batchnorm_execute(p->ctx, x, moments, moments + OUT, affine, affine + OUT,
                                    &options, out));
    put_rows(p, NORM, l, out);
    for (int32_t c = 0; c < own; ++c) {
        float *to = (float *)partials.data + c * 2 * OUT;
        PART_OK(spops_batchnorm_sums_execute(p->ctx, chunk_of(l, g, c), chunk_of(l, x, c), moments,
                                             moments + OUT, affine, affine + OUT, &options, to,
                                             to + OUT));
    }
    PART_OK(spops_chunk_sums_execute(p->ctx, p->sums, partials, sums));
    put_vector(p, NORM_SUMS, sums);
    PART_OK(spops_batchnorm_gradient_execute(p->ctx, g, x, moments, moments + OUT, affine,
                                             affine + OUT, sums, sums + OUT, l->info.num_all_rows,
                                             &options, to_x));
    put_rows(p, NORM_X, l, to_x);
}

static void run_linear(part *p)
{
    level *l = &p->fine;
    const int64_t n = l->info.num_owned;
    const spops_matrix x = features(p, OF_X, l->rows, n, n, IN);
    const spops_matrix g = features(p, OF_G, l->rows, n, n, OUT);
    const spops_matrix w = features(p, OF_W, NULL, IN, IN, OUT);
    const spops_matrix out = new_rows(p, n, OUT, p->s->dtype),
                       to_x = new_rows(p, n, IN, p->s->dtype);
    const spops_matrix partials = new_rows(p, l->info.num_chunks, IN * OUT, SPOPS_DTYPE_F32);
    float *sum = keep(p, IN * OUT * sizeof *sum);

    PART_OK(spops_linear_reserve(p->ctx, n, IN, OUT, 1));
    PART_OK(spops_linear_execute(p->ctx, x, w, NULL, out));
    put_rows(p, LINEAR, l, out);
    PART_OK(spops_linear_execute_backward(p->ctx, g, x, w, NULL, &to_x, NULL, NULL));
    put_rows(p, LINEAR_X, l, to_x);
    for (int32_t c = 0; c < l->info.num_chunks; ++c) {
        const spops_matrix to =
            spops_matrix_dense((float *)partials.data + c * IN * OUT, IN, OUT, SPOPS_DTYPE_F32);
        PART_OK(spops_linear_execute_backward(p->ctx, chunk_of(l, g, c), chunk_of(l, x, c), w, NULL,
                                              NULL, &to, NULL));
    }
    PART_OK(spops_chunk_sums_execute(p->ctx, p->sums, partials, sum));
    put_vector(p, LINEAR_W, sum);
}

// Windows that lie in cells need no other rank.
static void run_pool(part *p)
{
    level *l = &p->fine, coarse = {0};
    const spops_kernel_shape two = spops_kernel_shape_cube(3, 2, 2, 1);
    spops_pool_options options = spops_pool_options_default();
    int32_t(*rows)[4] = malloc((size_t)p->s->coarse.n * sizeof *rows);
    const int64_t n = take_owned(p, p->s->coarse.at, p->s->coarse.n, 2, rows);
    spops_kernel_map *map = NULL;
    spops_pool *pool = NULL;

    make_level(p, rows, n, 2, &coarse);
    free(rows);
    const spops_matrix x = features(p, OF_NORM, l->rows, l->info.num_owned, l->info.num_owned, OUT);
    const spops_matrix g = features(p, OF_COARSE, coarse.rows, n, n, OUT);
    const spops_matrix out = new_rows(p, n, OUT, p->s->dtype);
    const spops_matrix to_x = new_rows(p, l->info.num_owned, OUT, p->s->dtype);
    options.gradients = SPOPS_GRADIENTS_ALL;
    PART_OK(spops_kernel_map_create(p->ctx, SPOPS_MAP_CONVOLUTION, &two, l->owned, coarse.owned,
                                    NULL, &map));
    PART_OK(spops_pool_create(p->ctx, map, &options, &pool));
    PART_OK(spops_pool_execute(p->ctx, pool, SPOPS_REDUCE_MAX, x, out));
    put_rows(p, POOLED, &coarse, out);
    PART_OK(spops_pool_execute_backward(p->ctx, pool, SPOPS_REDUCE_MAX, g, x, to_x));
    put_rows(p, POOLED_X, l, to_x);
    spops_pool_destroy(pool);
    spops_kernel_map_destroy(map);
    free_level(&coarse);
}

// Ghosts are the rows that lie within one voxel of a cell of this rank and that others own, once each.
static void check_ghosts(part *p)
{
    level *l = &p->fine;
    spops_partition_info info = spops_partition_info_default();
    int32_t *chunks = malloc((size_t)l->num * sizeof *chunks + 1), last_owner = -1;
    const spops_matrix x = features(p, OF_X, l->rows, l->info.num_owned, l->num, 3);
    const size_t each = test_dtype_bytes(p->s->dtype);
    char *host = malloc((size_t)l->num * 3 * each + 1);

    PART_OK(spops_partition_get_info(p->ctx, p->partition, &info));
    PART_OK(spops_partition_find_chunks(p->ctx, p->partition, NULL, l->num,
                                        l->num > 0 ? l->rows[0] : NULL, chunks));
    for (int64_t i = l->info.num_owned; i < l->num; ++i) {
        int32_t owner = 0;
        while (chunks[i] >= info.first_chunk[owner + 1])
            ++owner;
        RANK_CHECK(p->r, owner != p->r->rank && owner >= last_owner, "ghost %d of rank %d", (int)i,
                   (int)owner);
        last_owner = owner;
    }
    // Every neighbour of an owned row is there.
    row_list have = {l->num, malloc((size_t)l->num * sizeof *have.at + 1)};
    memcpy(have.at, l->rows, (size_t)l->num * sizeof *have.at);
    have = make_list(have.at, have.n);
    RANK_CHECK(p->r, have.n == l->num, "a row is there twice");
    for (int64_t i = 0; i < l->info.num_owned; ++i)
        for (int t = 0; t < TAPS; ++t) {
            const int32_t *r = l->rows[i];
            const int32_t near[4] = {r[0], r[1] + t / 9 - 1, r[2] + t / 3 % 3 - 1,
                                     r[3] + t % 3 - 1};
            RANK_CHECK(p->r, place_of(&p->s->fine, near) < 0 || place_of(&have, near) >= 0,
                       "row %d lacks a neighbour", (int)i);
        }
    // Rows with gaps between them; the gaps stay.
    const spops_matrix wide = new_rows(p, l->num, 5, p->s->dtype);
    spops_matrix part_of = wide;
    part_of.cols = 3;
    const spops_matrix owned = spops_matrix_dense(x.data, l->info.num_owned, 3, p->s->dtype);
    PART_OK(spops_halo_execute(p->ctx, l->halo, owned, part_of)); // from rows elsewhere
    PART_OK(spops_halo_execute(p->ctx, l->halo, owned, x));
    PART_OK(spops_context_wait_sync(p->ctx));
    char *gaps = malloc((size_t)l->num * 5 * each + 1);
    RANK_CHECK(
        p->r,
        device_download(p->r->device.backend, host, x.data, (size_t)l->num * 3 * each) &&
            device_download(p->r->device.backend, gaps, wide.data, (size_t)l->num * 5 * each),
        "download");
    for (int64_t i = 0; i < l->num * 3; ++i) {
        const double found = test_load(host + (size_t)i * each, p->s->dtype);
        const double spread = test_load(gaps + (size_t)(i / 3 * 5 + i % 3) * each, p->s->dtype);
        const double expected = test_round(feature(OF_X, l->rows[i / 3], i % 3), p->s->dtype);
        RANK_CHECK(p->r, found == expected && spread == expected, "row %d is %g, expected %g",
                   (int)(i / 3), found, expected);
    }
    for (int64_t i = 0; i < l->num; ++i)
        for (size_t b = 0; b < 2 * each; ++b)
            RANK_CHECK(p->r, (unsigned char)gaps[((size_t)i * 5 + 3) * each + b] == 0xff,
                       "a gap was written");
    free(gaps), free(host), free(chunks), free(have.at);
}

static void run_rank(test_rank *r)
{
    part p = {.r = r, .s = r->user, .ctx = r->ctx};
    static void (*const steps[])(part *) = {make_part, check_ghosts, run_conv, run_strided,
                                            run_norm,  run_linear,   run_pool};

    for (size_t i = 0; i < sizeof steps / sizeof *steps && r->failure[0] == '\0'; ++i)
        steps[i](&p);
    spops_chunk_sums_destroy(p.sums);
    free_level(&p.fine);
    spops_partition_destroy(p.partition);
    for (int i = 0; i < p.num_blocks; ++i)
        device_free(r->device.backend, p.blocks[i]);
}

// ---- Is it right? --------------------------------------------------------------------------------

static double value_of(const scene *s, int what, int64_t row, int64_t column)
{
    return test_load(s->rows[what] +
                         (size_t)(row * cols_of[what] + column) * test_dtype_bytes(s->dtype),
                     s->dtype);
}

static double rounded(const scene *s, int what, const int32_t *row, int64_t column)
{
    return test_round(feature(what, row, column), s->dtype);
}

// The forward pass and the gradient of weights of the convolution in FP64, of a sample of rows.
static void check_conv(const scene *s)
{
    const double unit = s->dtype == SPOPS_DTYPE_F32 ? 2e-5 : 2e-2;
    double *w = calloc(TAPS * IN * OUT, sizeof *w);

    for (int64_t i = 0; i < s->fine.n; ++i) {
        double sum[OUT] = {0};
        for (int t = 0; t < TAPS; ++t) {
            const int32_t *r = s->fine.at[i];
            const int32_t near[4] = {r[0], r[1] + t / 9 - 1, r[2] + t / 3 % 3 - 1,
                                     r[3] + t % 3 - 1};
            if (place_of(&s->fine, near) < 0) continue;
            for (int c = 0; c < IN; ++c)
                for (int o = 0; o < OUT; ++o) {
                    const double x = rounded(s, OF_X, near, c);
                    sum[o] += x * test_round(weight(t * IN + c, o), s->dtype);
                    w[(t * IN + c) * OUT + o] += x * rounded(s, OF_G, r, o);
                }
        }
        for (int o = 0; o < OUT; ++o)
            cr_assert(fabs(value_of(s, CONV, i, o) - sum[o]) < 30 * unit, "row %d: %g, expected %g",
                      (int)i, value_of(s, CONV, i, o), sum[o]);
    }
    for (int i = 0; i < TAPS * IN * OUT; ++i)
        cr_assert(fabs((double)s->vectors[CONV_W][i] - w[i]) < 1e-3, "weight %d: %g, expected %g",
                  i, (double)s->vectors[CONV_W][i], w[i]);
    free(w);
}

// Statistics, sums and the gradient of the norm in FP64.
static void check_norm(const scene *s)
{
    const double n = (double)s->fine.n, unit = s->dtype == SPOPS_DTYPE_F32 ? 1e-5 : 4e-3;

    for (int c = 0; c < OUT; ++c) {
        const double gamma = (double)(0.5f + 0.03f * (float)c);
        const double beta = (double)(0.5f + 0.03f * (float)(c + OUT));
        double mean = 0, var = 0, sums[2] = {0, 0};
        for (int64_t i = 0; i < s->fine.n; ++i)
            mean += rounded(s, OF_NORM, s->fine.at[i], c) / n;
        for (int64_t i = 0; i < s->fine.n; ++i)
            var += pow(rounded(s, OF_NORM, s->fine.at[i], c) - mean, 2) / n;
        const double rstd = 1 / sqrt(var + 1e-5);
        for (int pass = 0; pass < 2; ++pass)
            for (int64_t i = 0; i < s->fine.n; ++i) {
                const double h = (rounded(s, OF_NORM, s->fine.at[i], c) - mean) * rstd;
                const double y = h * gamma + beta,
                             g = y > 0 ? rounded(s, OF_G, s->fine.at[i], c) : 0;
                if (pass == 0) {
                    sums[0] += g * h;
                    sums[1] += g;
                    if (fabs(y) < 1e-4) continue; // either side of the activation is right
                    cr_assert(fabs(value_of(s, NORM, i, c) - fmax(y, 0)) < 4 * unit, "norm");
                } else if (fabs(y) >= 1e-4) {
                    const double to = gamma * rstd * (g - sums[1] / n - h * sums[0] / n);
                    cr_assert(fabs(value_of(s, NORM_X, i, c) - to) < 4 * unit, "%g, expected %g",
                              value_of(s, NORM_X, i, c), to);
                }
            }
        cr_assert(fabs((double)s->vectors[MOMENTS][c] - mean) < 1e-6, "mean");
        cr_assert(fabs((double)s->vectors[MOMENTS][OUT + c] - var) < 1e-5, "variance");
        cr_assert(fabs((double)s->vectors[RUNNING][OUT + c] -
                       (0.9 * beta + 0.1 * var * n / (n - 1))) < 1e-5,
                  "running variance");
        cr_assert(fabs((double)s->vectors[NORM_SUMS][c] - sums[0]) < 0.01, "sums");
        cr_assert(fabs((double)s->vectors[NORM_SUMS][OUT + c] - sums[1]) < 0.01, "sums");
    }
}

static void expect_same(const scene *a, const scene *b, const char *how)
{
    for (int w = 0; w < NUM_ROWS; ++w) {
        const size_t row = (size_t)cols_of[w] * test_dtype_bytes(a->dtype);
        for (int64_t i = 0; i < list_of(a, w)->n; ++i)
            cr_assert(memcmp(a->rows[w] + (size_t)i * row, b->rows[w] + (size_t)i * row, row) == 0,
                      "%s: row %d of result %d differs", how, (int)i, w);
    }
    for (int w = 0; w < NUM_VECTORS; ++w)
        cr_assert(memcmp(a->vectors[w], b->vectors[w], (size_t)vector_length[w] * sizeof(float)) ==
                      0,
                  "%s: vector %d differs", how, w);
}

// Each number of ranks balanced; a rank with almost all, and with nothing; in the middle nothing.
static void draw_ranks(scene *s, int32_t num_ranks, int how)
{
    test_rng rng = test_rng_make(77 + (uint64_t)num_ranks);
    s->num_ranks = num_ranks;
    s->has_first = how > 0;
    for (int32_t r = 0; r <= num_ranks; ++r) {
        if (how == 1) s->first_chunk[r] = r == 0 ? 0 : r == num_ranks ? CHUNKS : CHUNKS - 1;
        if (how == 2) s->first_chunk[r] = 2 * r < num_ranks ? 0 : CHUNKS;
        if (how == 3)
            s->first_chunk[r] =
                r == 0 ? 0
                : r == num_ranks
                    ? CHUNKS
                    : s->first_chunk[r - 1] +
                          (int32_t)test_rng_below(&rng, CHUNKS + 1 - s->first_chunk[r - 1]);
    }
    s->first_chunk[0] = 0;
    s->first_chunk[num_ranks] = CHUNKS;
}

static const spops_dtype two_dtypes[] = {SPOPS_DTYPE_F32, SPOPS_DTYPE_F16};
static const int two_orders[] = {SPOPS_COORDS_ORDER_MORTON, SPOPS_COORDS_ORDER_HILBERT};

TestOver(ranks, operators_have_the_bits_of_one_rank, struct case_param *c,
         every_case(two_dtypes, 2, two_orders, 2))
{
    static const int32_t counts[] = {1, 2, 3, 8};
    scene one = make_scene((spops_dtype)c->dtype, (spops_coords_order)c->op);
    scene many = make_scene((spops_dtype)c->dtype, (spops_coords_order)c->op);

    if (c->launch != LAUNCH_DEFAULT) return; // ranks have streams of their own
    forget_results(&one);
    draw_ranks(&one, 1, 0);
    if (!test_ranks_run((spops_backend_kind)c->backend, 1, TIMEOUT_MS, run_rank, &one)) return;
    check_conv(&one);
    check_norm(&one);
    for (int n = 0; n < 4; ++n)
        for (int how = 0; how < 4; ++how) {
            char what[64];
            if (counts[n] == 1 && how > 0) continue;
            snprintf(what, sizeof what, "%d ranks, partition %d", (int)counts[n], how);
            forget_results(&many);
            draw_ranks(&many, counts[n], how);
            test_ranks_run((spops_backend_kind)c->backend, counts[n], TIMEOUT_MS, run_rank, &many);
            expect_same(&one, &many, what);
        }
    free_scene(&one);
    free_scene(&many);
}

// ---- Partitions alone ----------------------------------------------------------------------------

// Sets in the partition's box and order have their rows by chunk, at every level and with 1 to 4 axes; no
// chunk has more than its share and a cell.
static void check_order(test_device *d, int32_t dims, spops_coords_order order)
{
    enum { ROWS = 700 };
    const int32_t columns = 1 + dims;
    int32_t rows[ROWS * 5], chunks[ROWS];
    test_rng rng = test_rng_make(90 + (uint64_t)dims);
    spops_partition_options o = spops_partition_options_default();
    spops_partition_info info = spops_partition_info_default();
    spops_coords_options options = spops_coords_options_default();
    spops_partition *partition = NULL;
    spops_coords *set = NULL;
    int32_t *at;

    for (int i = 0; i < ROWS * columns; ++i)
        rows[i] = (int32_t)(i % columns == 0 ? test_rng_below(&rng, 2)
                                             : test_rng_below(&rng, dims == 1 ? 900 : 70) - 23);
    at = test_upload_i32(d, rows, ROWS * columns);
    options.duplicates = SPOPS_COORDS_DUPLICATES_MERGE;
    test_expect_ok(d->ctx, spops_coords_create(d->ctx, dims, ROWS, at, &options, &set), "set");
    o.cell_log2 = 3;
    o.order = order;
    test_expect_ok(d->ctx, spops_partition_create(d->ctx, NULL, set, &o, &partition), "partition");
    test_expect_ok(d->ctx, spops_partition_get_info(d->ctx, partition, &info), "info");
    spops_coords_destroy(set);
    cr_assert(info.num_chunks == 16 && info.num_ranks == 1 && info.first_chunk[1] == 16);
    for (int32_t log2 = 0; log2 <= 3; ++log2) {
        const int32_t strides[4] = {1 << log2, 1 << log2, 1 << log2, 1 << log2};
        spops_coords_view view = spops_coords_view_default();
        spops_coords_box box;
        int64_t n = 0;
        int32_t found[ROWS * 5];

        for (int i = 0; i < ROWS * columns; ++i)
            found[i] =
                i % columns == 0 ? rows[i] : (rows[i] + 1024) / strides[0] - 1024 / strides[0];
        test_free(d, at);
        at = test_upload_i32(d, found, ROWS * columns);
        test_expect_ok(d->ctx, spops_partition_get_box(d->ctx, partition, strides, &box), "box");
        options.box = &box;
        options.order = order;
        test_expect_ok(d->ctx, spops_coords_create(d->ctx, dims, ROWS, at, &options, &set),
                       "level");
        test_expect_ok(d->ctx, spops_coords_get_num_rows_sync(d->ctx, set, &n), "rows");
        test_expect_ok(d->ctx, spops_coords_get_view(d->ctx, set, &view), "view");
        test_download_i32(d, found, view.rows, n * columns);
        test_expect_ok(d->ctx,
                       spops_partition_find_chunks(d->ctx, partition, strides, n, found, chunks),
                       "chunks");
        for (int64_t i = 0; i < n; ++i)
            cr_assert(chunks[i] >= 0 && (i == 0 || chunks[i] >= chunks[i - 1]),
                      "%d axes, stride %d: row %d is of chunk %d", (int)dims, (int)strides[0],
                      (int)i, (int)chunks[i]);
        cr_assert(chunks[0] == 0 && chunks[n - 1] > 8);
        spops_coords_destroy(set);
    }
    test_free(d, at);
    spops_partition_destroy(partition);
}

BackendTest(ranks, sets_in_the_order_of_a_partition_have_rows_by_chunk)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int32_t dims = 1; dims <= 4; ++dims) {
        check_order(&d, dims, SPOPS_COORDS_ORDER_MORTON);
        check_order(&d, dims, SPOPS_COORDS_ORDER_HILBERT);
    }
    test_close(&d);
}

// ---- What is refused -----------------------------------------------------------------------------

// A call is refused by `rank`, whose words the other one repeats.
static void expect_refusal(test_rank *r, spops_status status, const char *call, int rank,
                           const char *words)
{
    char line[192];
    snprintf(line, sizeof line, "%s: %s%s", call,
             r->rank == rank ? ""
             : rank == 0     ? "rank 0: "
                             : "rank 1: ",
             words);
    test_rank_expect(r, status, SPOPS_STATUS_INVALID_ARGUMENT, line);
}

// Rank 0 has two owned rows and rank 1 has one. What both refuse is said as rank 0 says it.
static void refuse_rows(test_rank *r, part *p, spops_halo *halo)
{
    static const char words[] = "out is [2, 4], expected [1, 4]";
    const int64_t num = r->rank == 0 ? 2 : 1;
    const spops_matrix wrong = new_rows(p, 2, 4, SPOPS_DTYPE_F32); // on rank 1

    const spops_matrix x = first_rows(wrong, num), wide = new_rows(p, num, 5, SPOPS_DTYPE_F32);

    expect_refusal(r, spops_halo_execute(r->ctx, halo, first_rows(wrong, num - 1), wrong),
                   "halo_execute", 0, "x is [1, 4], expected [2, 4]");
    expect_refusal(r, spops_halo_execute(r->ctx, halo, wide, wide), "halo_execute", 0,
                   "x has 5 columns, the halo was made for 4");
    expect_refusal(r, spops_halo_execute(r->ctx, halo, x, wrong), "halo_execute", 1, words);
    if (r->rank == 0) {
        RANK_OK(r, spops_halo_begin(r->ctx, halo, x, wrong));
        expect_refusal(r, spops_halo_end(r->ctx, halo), "halo_end", 1, words);
    } else {
        expect_refusal(r, spops_halo_begin(r->ctx, halo, x, wrong), "halo_begin", 1, words);
    }
    test_rank_expect(r, spops_halo_end(r->ctx, halo), SPOPS_STATUS_INVALID_ARGUMENT,
                     "halo_end: no exchange of the halo has begun");
    RANK_OK(r, spops_halo_execute(r->ctx, halo, x, x));
}

// Each rank has two chunks, and the sums take 8 columns.
static void refuse_partials(test_rank *r, part *p)
{
    static const char call[] = "chunk_sums_execute";
    static const char words[] = "partials is [3, 8], expected [2, 8]";
    const spops_matrix partials = new_rows(p, 3, 8, SPOPS_DTYPE_F32);
    spops_matrix some = partials;
    float *out = keep(p, 36);

    some.rows = r->rank == 0 ? 2 : 3;
    expect_refusal(r, spops_chunk_sums_execute(r->ctx, p->sums, partials, out), call, 0, words);
    expect_refusal(r, spops_chunk_sums_execute(r->ctx, p->sums, some, out), call, 1, words);
    expect_refusal(
        r, spops_chunk_sums_execute(r->ctx, p->sums, new_rows(p, 2, 9, SPOPS_DTYPE_F32), out), call,
        0, "partials have 9 columns, the sums were made for 8");
    if (r->rank == 0) out = (float *)(uintptr_t)0x1001; // refused before it is read
    some.rows = 2;
    expect_refusal(r, spops_chunk_sums_execute(r->ctx, p->sums, some, out), call, 0,
                   "out is at 0x1001, expected an address aligned to 4 bytes");
}

// Options that are good on each rank, but not the same.
static void unequal_partitions(test_rank *r, const spops_coords *all,
                               const spops_partition_options *good)
{
    static const int32_t first[2][3] = {{0, 2, 4}, {0, 3, 4}};
    static const char *const words[] = {
        "partition_create: options->num_chunks is 5 on rank 1, 4 on rank 0",
        "partition_create: options->cell_log2 is 3 on rank 1, 4 on rank 0",
        "partition_create: options->order is 2 on rank 1, 3 on rank 0",
        "partition_create: options->first_chunk of rank 1 is not that of rank 0"};

    for (int how = 0; how < 4; ++how) {
        spops_partition_options o = *good;
        spops_partition *partition = (spops_partition *)&o;
        o.first_chunk = how == 3 ? first[r->rank] : NULL;
        if (how == 0 && r->rank == 1) o.num_chunks = 5;
        if (how == 1 && r->rank == 1) o.cell_log2 = 3;
        if (how == 2 && r->rank == 1) o.order = SPOPS_COORDS_ORDER_MORTON;
        test_rank_expect(r, spops_partition_create(r->ctx, r->comm, all, &o, &partition),
                         SPOPS_STATUS_INVALID_ARGUMENT, words[how]);
        RANK_CHECK(r, partition == NULL, "there is a partition");
    }
}

static void unequal_halos(test_rank *r, const spops_partition *partition, const spops_coords *owned)
{
    static const int32_t reach[2][3] = {{1, 1, 1}, {1, 2, 1}};
    static const char *const words[] = {
        "halo_create: options->reach[1] is 2 on rank 1, 1 on rank 0",
        "halo_create: options->max_cols is 9 on rank 1, 8 on rank 0"};
    spops_chunk_sums *sums = (spops_chunk_sums *)&sums;

    for (int how = 0; how < 2; ++how) {
        spops_halo_options o = spops_halo_options_default();
        spops_halo *halo = (spops_halo *)&o;
        o.reach = how == 0 ? reach[r->rank] : NULL;
        o.max_cols = how == 1 ? 8 + r->rank : 0;
        test_rank_expect(r, spops_halo_create(r->ctx, r->comm, partition, owned, &o, &halo),
                         SPOPS_STATUS_INVALID_ARGUMENT, words[how]);
        RANK_CHECK(r, halo == NULL, "there is a halo");
    }
    test_rank_expect(r, spops_chunk_sums_create(r->ctx, r->comm, partition, 8 + r->rank, &sums),
                     SPOPS_STATUS_INVALID_ARGUMENT,
                     "chunk_sums_create: max_values is 9 on rank 1, 8 on rank 0");
    RANK_CHECK(r, sums == NULL, "there are sums");
}

// Each rank has the same rows of a level; what is wrong on rank 1 alone is said on all.
static void refuse_rank(test_rank *r)
{
    static const int32_t rows[3][4] = {{0, 1, 1, 1}, {0, 40, 1, 1}, {0, 80, 1, 1}};
    static const int32_t bad_stride[3] = {3, 1, 1}, bad_reach[3] = {65, 0, 0};
    static const int32_t bad_first[3] = {0, 3, 2}, first[3] = {0, 2, 4};
    part p = {.r = r, .s = r->user, .ctx = r->ctx};
    spops_partition_options o = spops_partition_options_default();
    spops_halo_options h = spops_halo_options_default();
    spops_halo_info info = spops_halo_info_default();
    spops_coords *all = NULL, *own = NULL, *theirs = NULL;
    spops_halo *halo = (spops_halo *)&p;
    const bool is_first = r->rank == 0;

    RANK_OK(r,
            spops_coords_create(r->ctx, 3, is_first ? 3 : 0, upload_rows(&p, rows, 3), NULL, &all));
    o.num_chunks = is_first ? 4 : SPOPS_PARTITION_MAX_CHUNKS + 1;
    test_rank_expect(r, spops_partition_create(r->ctx, r->comm, all, &o, &p.partition),
                     SPOPS_STATUS_INVALID_ARGUMENT,
                     "partition_create: rank 1: options->num_chunks is 4097, expected 1 "
                     "to 4096");
    RANK_CHECK(r, p.partition == NULL, "there is a partition");
    o.num_chunks = 4;
    o.first_chunk = is_first ? first : bad_first;
    test_rank_expect(r, spops_partition_create(r->ctx, r->comm, all, &o, &p.partition),
                     SPOPS_STATUS_INVALID_ARGUMENT,
                     "partition_create: rank 1: options->first_chunk[2] is 2, expected "
                     "ascending numbers from 0 to 4");
    unequal_partitions(r, all, &o);
    o.first_chunk = first;
    RANK_OK(r, spops_partition_create(r->ctx, r->comm, all, &o, &p.partition));
    // The rows are in chunks 0, 1 and 2 of four: two of rank 0 and one of rank 1.
    RANK_OK(r, spops_coords_create(r->ctx, 3, 2, upload_rows(&p, rows, 2), NULL, &own));
    RANK_OK(r, spops_coords_create(r->ctx, 3, 1, upload_rows(&p, rows + 2, 1), NULL, &theirs));
    test_rank_expect(
        r, spops_halo_create(r->ctx, r->comm, p.partition, is_first ? all : theirs, NULL, &halo),
        SPOPS_STATUS_INVALID_ARGUMENT,
        "halo_create: rank 0: owned row 2 is of chunk 2 of rank 1, expected "
        "those of rank 0");
    RANK_CHECK(r, halo == NULL, "there is a halo");
    h.stride = bad_stride;
    test_rank_expect(r, spops_halo_create(r->ctx, r->comm, p.partition, own, &h, &halo),
                     SPOPS_STATUS_INVALID_ARGUMENT,
                     "halo_create: rank 0: stride[0] is 3, expected a power of two up to "
                     "16");
    h.stride = NULL;
    h.reach = bad_reach;
    test_rank_expect(r, spops_halo_create(r->ctx, r->comm, p.partition, own, &h, &halo),
                     SPOPS_STATUS_INVALID_ARGUMENT,
                     "halo_create: rank 0: options->reach[0] is 65, expected 0 to 16, as many "
                     "voxels as a cell has");
    h.reach = NULL;
    unequal_halos(r, p.partition, is_first ? own : theirs);
    h.max_cols = 4;
    RANK_OK(r, spops_halo_create(r->ctx, r->comm, p.partition, is_first ? own : theirs, &h, &halo));
    RANK_OK(r, spops_halo_get_info(r->ctx, halo, &info));
    RANK_CHECK(
        r, info.num_all_rows == 3 && info.num_owned == (is_first ? 2 : 1) && info.num_chunks == 2,
        "the halo has %d of %d rows", (int)info.num_owned, (int)info.num_all_rows);
    refuse_rows(r, &p, halo);
    RANK_OK(r, spops_chunk_sums_create(r->ctx, r->comm, p.partition, 8, &p.sums));
    refuse_partials(r, &p);
    spops_chunk_sums_destroy(p.sums);
    spops_halo_destroy(halo);
    spops_coords_destroy(all), spops_coords_destroy(own), spops_coords_destroy(theirs);
    spops_partition_destroy(p.partition);
    for (int i = 0; i < p.num_blocks; ++i)
        device_free(r->device.backend, p.blocks[i]);
}

BackendTest(ranks, wrong_arguments_of_a_rank_are_said_on_all)
{
    scene s = {.dtype = SPOPS_DTYPE_F32};
    test_ranks_run((spops_backend_kind)p->backend, 2, TIMEOUT_MS, refuse_rank, &s);
}

// What the norms of parts refuse.
// ---- Few values and many ------------------------------------------------------------------------

// Value v of the node that has the chunks from `begin` to `width` later, in the tree's order.
static float tree_value(int64_t begin, int64_t width, int64_t v)
{
    if (width == 1) return (float)weight(begin, v);
    const float left = tree_value(begin, width / 2, v);
    return begin + width / 2 < CHUNKS ? left + tree_value(begin + width / 2, width / 2, v) : left;
}

// A cell for each chunk; sums of n values, of fewer than the plan was made for too.
static void sum_values(test_rank *r, part *p, int64_t n, int64_t max_values)
{
    spops_partition_info info = spops_partition_info_default();
    spops_chunk_sums *sums = NULL;

    RANK_OK(r, spops_partition_get_info(r->ctx, p->partition, &info));
    const int64_t first = info.first_chunk[r->rank], num = info.first_chunk[r->rank + 1] - first;
    const spops_matrix partials = new_rows(p, num, n, SPOPS_DTYPE_F32);
    float *numbers = malloc((size_t)((num + 1) * n) * sizeof *numbers);
    float *out = keep(p, (size_t)n * sizeof *out);
    for (int64_t c = 0; c < num; ++c)
        for (int64_t v = 0; v < n; ++v)
            numbers[c * n + v] = (float)weight(first + c, v);
    if (num > 0)
        (void)device_upload(r->device.backend, partials.data, numbers,
                            (size_t)(num * n) * sizeof *numbers);
    (void)device_fill(r->device.backend, out, 0xff, (size_t)n * sizeof *out);
    RANK_OK(r, spops_chunk_sums_create(r->ctx, r->comm, p->partition, max_values, &sums));
    RANK_OK(r, spops_chunk_sums_execute(r->ctx, sums, partials, out));
    RANK_OK(r, spops_comm_wait_sync(r->ctx, r->comm));
    (void)device_download(r->device.backend, numbers, out, (size_t)n * sizeof *numbers);
    int64_t apart = 0;
    for (int64_t v = 0; v < n; ++v) {
        const float expected = tree_value(0, 16, v);
        apart += memcmp(&numbers[v], &expected, sizeof expected) != 0;
    }
    RANK_CHECK(r, apart == 0, "%d of %d sums differ", (int)apart, (int)n);
    free(numbers);
    spops_chunk_sums_destroy(sums);
}

static void sum_on_rank(test_rank *r)
{
    scene *s = r->user;
    part p = {.r = r, .s = s, .ctx = r->ctx};
    spops_partition_options o = spops_partition_options_default();
    spops_coords *given = NULL;
    int32_t rows[CHUNKS][4];
    int64_t num = 0;

    for (int32_t c = 0; c < CHUNKS; ++c)
        if (c % s->num_ranks == r->rank)
            memcpy(rows[num++], (const int32_t[4]){0, 16 * c, 0, 0}, sizeof rows[0]);
    RANK_OK(r, spops_coords_create(r->ctx, 3, num, upload_rows(&p, rows, num), NULL, &given));
    o.num_chunks = CHUNKS;
    o.first_chunk = s->has_first ? s->first_chunk : NULL;
    RANK_OK(r, spops_partition_create(r->ctx, r->comm, given, &o, &p.partition));
    sum_values(r, &p, 37, 37);
    sum_values(r, &p, 37, 5000);  // whole for 8 ranks and fewer
    sum_values(r, &p, 37, 70000); // in slices
    sum_values(r, &p, 70000, 70000);
    sum_values(r, &p, 1, 1);
    spops_coords_destroy(given), spops_partition_destroy(p.partition);
    for (int i = 0; i < p.num_blocks; ++i)
        device_free(r->device.backend, p.blocks[i]);
}

BackendTest(ranks, few_values_and_many_are_summed_along_the_tree)
{
    static const int32_t counts[] = {1, 2, 3, 8};
    if (p->backend != SPOPS_BACKEND_CPU) return; // ranks that are threads are the CPU's
    for (int i = 0; i < 4; ++i)
        for (int how = 0; how < 4; ++how) {
            scene s = {.dtype = SPOPS_DTYPE_F32};
            draw_ranks(&s, counts[i], how);
            test_ranks_run((spops_backend_kind)p->backend, counts[i], TIMEOUT_MS, sum_on_rank, &s);
        }
}

// ---- Saved partitions ----------------------------------------------------------------------------

enum { SAVED_ROWS = 300, SAVED_BYTES = 1 << 12 };

static void expect_same_partition(spops_context *ctx, const spops_partition *a,
                                  const spops_partition *b, const int32_t (*rows)[4])
{
    static int32_t found[2][SAVED_ROWS];
    const int32_t stride[3] = {2, 1, 4};
    int64_t fields[2][32] = {{0}};
    spops_partition_info info[2] = {spops_partition_info_default(), spops_partition_info_default()};

    test_expect_ok(ctx, spops_partition_get_info(ctx, a, &info[0]), "info");
    test_expect_ok(ctx, spops_partition_get_info(ctx, b, &info[1]), "info");
    for (int i = 0; i < 2; ++i) {
        const spops_partition *p = i == 0 ? a : b;
        cr_assert_eq(spops_plan_get_fields((const spops_plan *)p, fields[i], 32), 16);
        test_expect_ok(ctx,
                       spops_partition_find_chunks(ctx, p, stride, SAVED_ROWS, rows[0], found[i]),
                       "find_chunks");
    }
    cr_assert_eq(memcmp(fields[0], fields[1], sizeof fields[0]), 0);
    cr_assert_eq(memcmp(found[0], found[1], sizeof found[0]), 0);
    cr_assert_eq(memcmp(info[0].first_chunk, info[1].first_chunk, 2 * sizeof(int32_t)), 0);
    cr_assert_eq(memcmp(info[0].chunk_weights, info[1].chunk_weights,
                        (size_t)info[0].num_chunks * sizeof(int64_t)),
                 0);
}

// Whatever number is another, with its checksum right: there is a partition, or the bytes are corrupt.
static void load_damaged(spops_context *ctx, const unsigned char *saved, size_t bytes)
{
    unsigned char copy[SAVED_BYTES];
    const size_t content = bytes - SPOPS_FILE_CHECKSUM_BYTES;
    spops_partition *p = NULL;
    int refused = 0;

    for (size_t i = 0; i < content; ++i) {
        static const unsigned char others[] = {1, 0x80, 0xff};
        for (size_t k = 0; k < sizeof others; ++k) {
            memcpy(copy, saved, bytes);
            copy[i] ^= others[k];
            const uint64_t checksum = spops_file_checksum(copy, content);
            memcpy(copy + content, &checksum, sizeof checksum);
            const spops_status status = saved_get(ctx, SPOPS_PLAN_PARTITION, copy, bytes, &p);
            cr_assert((status == SPOPS_STATUS_OK) == (p != NULL));
            cr_assert(status == SPOPS_STATUS_OK || status == SPOPS_STATUS_CORRUPT_DATA,
                      "byte %zu: %s", i, spops_last_error(ctx));
            refused += status != SPOPS_STATUS_OK;
            spops_partition_destroy(p);
        }
    }
    cr_expect(refused > 200 && refused < (int)(3 * content), "%d refused", refused);
    for (size_t n = 0; n < bytes; ++n) {
        cr_assert_eq(saved_get(ctx, SPOPS_PLAN_PARTITION, saved, n, &p), SPOPS_STATUS_CORRUPT_DATA);
        cr_assert(p == NULL);
    }
}

TestOver(ranks, partitions_are_saved, struct backend_param *param, every_backend())
{
    static int32_t rows[SAVED_ROWS][4];
    unsigned char saved[SAVED_BYTES];
    test_rng rng = test_rng_make(77);
    test_device d;
    size_t bytes = 0;

    if (!test_open(&d, (spops_backend_kind)param->backend, LAUNCH_STREAM)) return;
    for (int i = 0; i < SAVED_ROWS; ++i) { // each once, beyond zero on either side
        rows[i][0] = i % 3;
        rows[i][1] = i - 150;
        rows[i][2] = (int32_t)test_rng_below(&rng, 90) - 40;
        rows[i][3] = (int32_t)test_rng_below(&rng, 50);
    }
    for (int order = SPOPS_COORDS_ORDER_MORTON; order <= SPOPS_COORDS_ORDER_HILBERT; ++order) {
        spops_partition_options o = spops_partition_options_default();
        spops_partition *p = NULL, *loaded = NULL;
        spops_coords *set = NULL;
        void *memory;
        o.order = (spops_coords_order)order;
        o.num_chunks = 7;
        cr_assert(device_alloc(d.backend, sizeof rows, &memory) &&
                  device_upload(d.backend, memory, rows, sizeof rows));
        test_expect_ok(d.ctx, spops_coords_create(d.ctx, 3, 100, memory, NULL, &set), "coords");
        test_expect_ok(d.ctx, spops_partition_create(d.ctx, NULL, set, &o, &p), "partition");
        test_expect_ok(d.ctx, saved_put(d.ctx, p, saved, sizeof saved, &bytes), "save");
        test_expect_ok(d.ctx, saved_get(d.ctx, SPOPS_PLAN_PARTITION, saved, bytes, &loaded),
                       "load");
        expect_same_partition(d.ctx, p, loaded, rows);
        if (order == SPOPS_COORDS_ORDER_MORTON) load_damaged(d.ctx, saved, bytes);
        spops_partition_destroy(loaded);
        spops_partition_destroy(p);
        spops_coords_destroy(set);
        device_free(d.backend, memory);
    }
    test_close(&d);
}

// ---- Boxed calls ---------------------------------------------------------------------------------

static spops_value handle_of(const void *handle)
{
    const spops_value v = {SPOPS_VALUE_POINTER, 0, {.p = (void *)(uintptr_t)handle}};
    return v;
}

static spops_value int_of(int64_t i)
{
    const spops_value v = {SPOPS_VALUE_INT, 0, {.i = i}};
    return v;
}

// A tensor that rank 1's call cannot take, with a context of the caller's and without.
static void refuse_tensor(test_rank *r, const spops_operator *op, const spops_value *values,
                          spops_tensor *partials)
{
    const uint8_t bits = partials->dtype_bits;
    spops_value made;

    for (int own = 0; own < 2; ++own) {
        spops_context *ctx = own ? NULL : r->ctx;
        const char *line = r->rank == 1
                               ? "chunk_sums_execute: partials is of a dtype that is not known"
                               : "chunk_sums_execute: rank 1: partials is of a dtype that";
        partials->dtype_bits = r->rank == 1 ? 24 : bits;
        const spops_status status = spops_call(ctx, op, values, 4, &made);
        RANK_CHECK(r, status == SPOPS_STATUS_INVALID_ARGUMENT, "%s", spops_last_error(ctx));
        RANK_CHECK(r, strstr(spops_last_error(ctx), line) != NULL, "%s; expected %s",
                   spops_last_error(ctx), line);
    }
    partials->dtype_bits = bits;
}

// What a boxed call refuses before its function is said on all ranks; then the same plan is made.
static void call_boxed(test_rank *r)
{
    static const spops_value none = {SPOPS_VALUE_NONE, 0, {0}};
    static const int32_t row[1][4] = {{0, 1, 1, 1}};
    const spops_operator *op = spops_operator_find("chunk_sums_plan");
    const spops_operator *run = spops_operator_find("chunk_sums");
    part p = {.r = r, .s = r->user, .ctx = r->ctx};
    spops_coords *set = NULL;
    spops_value ret;
    int64_t shape[2] = {0, 5}, size = 5;
    spops_tensor partials = {.device_type = r->device.backend == SPOPS_BACKEND_CPU ? 1 : 2,
                             .device_id = r->device.device,
                             .num_dims = 2,
                             .dtype_code = 2,
                             .dtype_bits = 32,
                             .dtype_lanes = 1,
                             .shape = shape};
    spops_tensor out = partials;
    out.num_dims = 1;
    out.shape = &size;

    RANK_OK(r, spops_coords_create(r->ctx, 3, r->rank == 0, upload_rows(&p, row, 1), NULL, &set));
    RANK_OK(r, spops_partition_create(r->ctx, r->comm, set, NULL, &p.partition));
    const int64_t most = r->rank == 1 ? -1 : 4;
    const spops_value wrong[] = {
        handle_of(p.partition), handle_of(r->comm), none, none, none, int_of(most)};
    test_rank_expect(r, spops_call(r->ctx, op, wrong, 6, &ret), SPOPS_STATUS_INVALID_ARGUMENT,
                     "chunk_sums_create: rank 1: max_values is -1, expected 0 to 2147483646");
    RANK_CHECK(r, ret.type == SPOPS_VALUE_NONE, "there is a plan");
    const spops_value right[] = {
        handle_of(p.partition), handle_of(r->comm), none, none, none, int_of(5)};
    RANK_OK(r, spops_call(r->ctx, op, right, 6, &ret));
    partials.data = keep(&p, 17 * 5 * sizeof(float));
    out.data = keep(&p, 5 * sizeof(float));
    spops_value values[] = {{SPOPS_VALUE_TENSOR, 0, {.p = &partials}},
                            handle_of(ret.v.p),
                            {SPOPS_VALUE_TENSOR, 0, {.p = &out}},
                            none};
    spops_partition_info info = spops_partition_info_default();
    RANK_OK(r, spops_partition_get_info(r->ctx, p.partition, &info));
    const int32_t own = info.first_chunk[r->rank + 1] - info.first_chunk[r->rank];
    shape[0] = own + (r->rank == 1);
    char line[128];
    snprintf(line, sizeof line, "chunk_sums_execute: %spartials is [%d, 5], expected [%d, 5]",
             r->rank == 1 ? "" : "rank 1: ", 16 - info.first_chunk[1] + 1,
             16 - info.first_chunk[1]);
    spops_value made;
    test_rank_expect(r, spops_call(r->ctx, run, values, 4, &made), SPOPS_STATUS_INVALID_ARGUMENT,
                     line);
    shape[0] = own;
    refuse_tensor(r, run, values, &partials);
    RANK_OK(r, spops_call(r->ctx, run, values, 4, &made));
    // The plan outlives the communicator.
    spops_comm_destroy(r->comm);
    r->comm = NULL;
    test_rank_expect(r, spops_call(r->ctx, run, values, 4, &made), SPOPS_STATUS_INVALID_ARGUMENT,
                     "chunk_sums_execute: the communicator of sums was destroyed");
    int64_t fields[5];
    RANK_CHECK(r, spops_plan_get_fields(ret.v.p, fields, 5) == 5 && fields[0] == own, "fields");
    spops_plan_destroy(ret.v.p);
    spops_partition_destroy(p.partition);
    spops_coords_destroy(set);
    for (int i = 0; i < p.num_blocks; ++i)
        device_free(r->device.backend, p.blocks[i]);
}

BackendTest(ranks, boxed_calls_refuse_on_all)
{
    scene s = {.dtype = SPOPS_DTYPE_F32};
    test_ranks_run((spops_backend_kind)p->backend, 2, TIMEOUT_MS, call_boxed, &s);
}

BackendTest(ranks, norms_of_parts_refuse)
{
    test_device d;
    float numbers[64] = {0};
    int32_t rows[1] = {0};
    spops_norm_options fixed = spops_norm_options_default();
    const spops_matrix x = spops_matrix_dense(numbers, 1, 4, SPOPS_DTYPE_F32);
    const spops_matrix g = spops_matrix_dense(numbers + 40, 1, 4, SPOPS_DTYPE_F32);
    const spops_matrix odd = spops_matrix_dense(numbers, 1, 3, SPOPS_DTYPE_F32);
    float *a = numbers + 8, *b = numbers + 16, *c = numbers + 24, *e = numbers + 32;

    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    fixed.fixed_statistics = 1;
    cr_assert_eq(spops_batchnorm_merge_execute(d.ctx, rows, odd, NULL, a, b, NULL, NULL),
                 SPOPS_STATUS_INVALID_ARGUMENT);
    cr_assert_str_eq(spops_last_error(d.ctx),
                     "batchnorm_merge_execute: statistics have 3 columns, expected an even number");
    cr_assert_eq(spops_batchnorm_merge_execute(d.ctx, rows, x, NULL, a, b, c, NULL),
                 SPOPS_STATUS_INVALID_ARGUMENT);
    cr_assert_eq(spops_batchnorm_sums_execute(d.ctx, g, x, a, b, NULL, NULL, NULL, c, NULL),
                 SPOPS_STATUS_INVALID_ARGUMENT);
    cr_assert_str_eq(spops_last_error(d.ctx), "batchnorm_sums_execute: grad_beta is NULL");
    cr_assert_eq(spops_batchnorm_gradient_execute(d.ctx, g, x, a, b, NULL, NULL, c, e, 0, NULL, g),
                 SPOPS_STATUS_INVALID_ARGUMENT);
    cr_assert_str_eq(spops_last_error(d.ctx),
                     "batchnorm_gradient_execute: total_rows is 0, expected 1 or more");
    cr_assert_eq(
        spops_batchnorm_gradient_execute(d.ctx, g, x, a, b, NULL, NULL, c, e, 1, &fixed, g),
        SPOPS_STATUS_INVALID_ARGUMENT);
    for (int i = 0; i < 64; ++i)
        cr_assert(numbers[i] == 0.0f, "something was written");
    test_close(&d);
}
