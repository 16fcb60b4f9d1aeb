// SPDX-License-Identifier: Apache-2.0
/* Levels, halos, maps and plans of a rank, and its memory. */
#include "ranks/plans.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call) DEVICE_TRY(n->d, call)

/* ---- Levels -------------------------------------------------------------------------------------- */

static void strides_of(int level, int32_t strides[3])
{
    for (int a = 0; a < 3; ++a)
        strides[a] = 1 << level;
}

/* Owned rows of level l: given, or those that the rows of the finer level lie in. */
static int create_level(ranks_network *n, const spops_partition *partition, int l, int64_t num_rows,
                        const int32_t *rows)
{
    const spops_kernel_shape two = spops_kernel_shape_cube(3, 2, 2, 1);
    spops_partition_info info = spops_partition_info_default();
    spops_coords_options coords = spops_coords_options_default();
    spops_halo_options halo = spops_halo_options_default();
    ranks_level *level = &n->levels[l];
    spops_coords_box box;
    int32_t strides[3];

    strides_of(l, strides);
    TRY(spops_partition_get_info(n->d->ctx, partition, &info));
    TRY(spops_partition_get_box(n->d->ctx, partition, strides, &box));
    coords.box = &box;
    coords.order = info.order;
    if (l == 0) {
        const size_t bytes = (size_t)num_rows * 4 * sizeof *rows;
        int32_t *at = (int32_t *)device_alloc(n->d, bytes + 1);
        if (at == NULL || device_upload(n->d, at, rows, bytes)) return 1;
        TRY(spops_coords_create(n->d->ctx, 3, num_rows, at, &coords, &level->owned));
        device_free(n->d, at);
    } else {
        TRY(spops_coords_create_downsampled(n->d->ctx, n->levels[l - 1].owned, &two, &coords,
                                            &level->owned));
    }
    halo.stride = strides;
    halo.max_cols = n->max_cols;
    TRY(spops_halo_create(n->d->ctx, n->comm, partition, level->owned, &halo, &level->halo));
    level->info = spops_halo_info_default();
    TRY(spops_halo_get_info(n->d->ctx, level->halo, &level->info));
    level->rows = level->info.num_owned + level->info.num_ghosts;
    n->num_chunks = level->info.num_chunks;
    n->num_all_chunks = level->info.num_all_chunks;
    return 0;
}

static int create_conv(const ranks_network *n, const spops_kernel_map *map, int backward,
                       spops_sparseconv **conv)
{
    spops_sparseconv_options o = spops_sparseconv_options_default();
    o.backward = backward;
    o.max_in_channels = o.max_out_channels = n->max_cols;
    if (n->implicit_gemm) o.dataflow = SPOPS_DATAFLOW_IMPLICIT_GEMM;
    o.crop_independent = 1; /* rows have the same bits whatever else the map has */
    TRY(spops_sparseconv_create(n->d->ctx, map, &o, conv));
    return 0;
}

/* The set of some rows of a level, which lie where the device is. */
static int set_of_rows(const ranks_network *n, const ranks_level *level, int64_t num,
                       const int32_t *rows, spops_coords **set)
{
    spops_coords_info info = spops_coords_info_default();
    spops_coords_options o = spops_coords_options_default();

    TRY(spops_coords_get_info_sync(n->d->ctx, level->owned, &info));
    o.box = &info.box;
    TRY(spops_coords_create(n->d->ctx, 3, num, rows, &o, set));
    return 0;
}

/* The set of an own chunk's rows. */
static int chunk_set(const ranks_network *n, const ranks_level *level, int32_t chunk,
                     spops_coords **set)
{
    const int64_t begin = level->info.chunk_offsets[chunk];
    spops_coords_view view = spops_coords_view_default();

    TRY(spops_coords_get_view(n->d->ctx, level->owned, &view));
    return set_of_rows(n, level, level->info.chunk_offsets[chunk + 1] - begin,
                       view.rows + 4 * begin, set);
}

static spops_kernel_shape three_cubed(void)
{
    spops_kernel_shape three = spops_kernel_shape_cube(3, 3, 1, 1);
    for (int a = 0; a < 3; ++a)
        three.padding[a] = 1;
    return three;
}

int ranks_create_rows_plan(const ranks_network *n, int l, int64_t num, const int32_t *rows,
                           spops_kernel_map **map, spops_sparseconv **conv)
{
    const spops_kernel_shape three = three_cubed();
    const ranks_level *level = &n->levels[l];
    spops_coords *set = NULL;

    if (set_of_rows(n, level, num, rows, &set)) return 1;
    TRY(spops_kernel_map_create(n->d->ctx, SPOPS_MAP_CONVOLUTION, &three, level->info.coords, set,
                                NULL, map));
    spops_coords_destroy(set);
    return create_conv(n, *map, 0, conv);
}

/* Maps and plans for the gradients of weights of an own chunk of level l, and of l + 1 that lies over it. */
static int create_chunk(ranks_network *n, int l, int32_t c)
{
    const spops_kernel_shape three = three_cubed(), two = spops_kernel_shape_cube(3, 2, 2, 1);
    ranks_level *level = &n->levels[l];
    spops_kernel_map_options pairs = spops_kernel_map_options_default(), both = pairs;
    spops_coords *own = NULL, *coarse = NULL;

    pairs.contents = SPOPS_MAP_PAIRS;
    both.contents = SPOPS_MAP_PAIRS | SPOPS_MAP_TABLE;
    if (chunk_set(n, level, c, &own)) return 1;
    TRY(spops_kernel_map_create(n->d->ctx, SPOPS_MAP_CONVOLUTION, &three, level->info.coords, own,
                                &pairs, &level->chunk_maps[WITHIN][c]));
    if (l + 1 < n->num_levels) {
        if (chunk_set(n, &n->levels[l + 1], c, &coarse)) return 1;
        TRY(spops_kernel_map_create(n->d->ctx, SPOPS_MAP_CONVOLUTION, &two, own, coarse, &both,
                                    &level->chunk_maps[DOWN][c]));
        TRY(spops_kernel_map_create_inverse(n->d->ctx, level->chunk_maps[DOWN][c], &pairs,
                                            &level->chunk_maps[UP][c]));
    }
    for (int r = WITHIN; r <= UP; ++r)
        if (level->chunk_maps[r][c] != NULL &&
            create_conv(n, level->chunk_maps[r][c], 2, &level->chunk_convs[r][c]))
            return 1;
    spops_coords_destroy(coarse);
    spops_coords_destroy(own);
    return 0;
}

static int create_plans(ranks_network *n, int l)
{
    const spops_kernel_shape three = spops_kernel_shape_cube(3, 3, 1, 1);
    const spops_kernel_shape two = spops_kernel_shape_cube(3, 2, 2, 1);
    ranks_level *level = &n->levels[l];

    TRY(spops_kernel_map_create(n->d->ctx, SPOPS_MAP_SUBMANIFOLD, &three, level->info.coords, NULL,
                                NULL, &level->within));
    if (create_conv(n, level->within, 1, &level->convs[WITHIN])) return 1;
    if (l + 1 < n->num_levels) { /* windows lie in cells: both levels' owned rows are enough */
        TRY(spops_kernel_map_create(n->d->ctx, SPOPS_MAP_CONVOLUTION, &two, level->owned,
                                    n->levels[l + 1].owned, NULL, &level->down));
        TRY(spops_kernel_map_create_inverse(n->d->ctx, level->down, NULL, &level->up));
        if (create_conv(n, level->down, 1, &level->convs[DOWN]) ||
            create_conv(n, level->up, 1, &level->convs[UP]))
            return 1;
    }
    for (int r = WITHIN; r <= UP; ++r) {
        const size_t num = (size_t)n->num_chunks + 1;
        level->chunk_maps[r] = (spops_kernel_map **)calloc(num, sizeof *level->chunk_maps[r]);
        level->chunk_convs[r] = (spops_sparseconv **)calloc(num, sizeof *level->chunk_convs[r]);
        if (level->chunk_maps[r] == NULL || level->chunk_convs[r] == NULL) return 1;
    }
    for (int32_t c = 0; c < n->num_chunks; ++c)
        if (create_chunk(n, l, c)) return 1;
    return 0;
}

/* ---- Memory -------------------------------------------------------------------------------------- */

static uint64_t mixed(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

float ranks_number(const int32_t *row, int column, int what)
{
    uint64_t z = (uint64_t)what << 32 | (uint32_t)column;
    for (int a = 0; a < 4; ++a)
        z = mixed(z ^ (uint64_t)(uint32_t)row[a] << 7 * a);
    return (float)((double)(z >> 40) / 0x1p23 - 1.0);
}

spops_status ranks_narrow(ranks_network *n)
{
    const int64_t rows = n->num_weights / 8;
    if (n->narrow == n->parameters) return SPOPS_STATUS_OK;
    return spops_convert_execute(n->d->ctx,
                                 spops_matrix_dense(n->parameters, rows, 8, SPOPS_DTYPE_F32),
                                 spops_matrix_dense(n->narrow, rows, 8, n->dtype));
}

/* Where each layer's weights, norm and statistics stand: all weights first. */
static void place_parameters(ranks_network *n)
{
    for (int i = 0; i < n->num_layers; ++i) {
        ranks_layer *l = &n->layers[i];
        l->weights_at = n->num_weights;
        n->num_weights += (int64_t)l->taps * l->in.cols * l->out.cols;
    }
    n->num_parameters = n->num_weights;
    for (int i = 0; i < n->num_layers; ++i) {
        ranks_layer *l = &n->layers[i];
        l->norm_at = n->num_parameters;
        l->moments_at = n->num_moments;
        n->num_parameters += l->norm ? 2 * l->out.cols : 0;
        n->num_moments += 2 * l->out.cols;
    }
}

static int draw_parameters(ranks_network *n)
{
    float *p = (float *)calloc((size_t)n->num_parameters, sizeof *p);
    int failed = p == NULL;

    for (int i = 0; i < n->num_layers && !failed; ++i) {
        const ranks_layer *l = &n->layers[i];
        const int64_t num = (int64_t)l->taps * l->in.cols * l->out.cols;
        const float scale = sqrtf(6.0f / (float)((l->taps == 27 ? 9 : 1) * l->in.cols));
        for (int64_t k = 0; k < num; ++k) {
            const int32_t at[4] = {i, (int32_t)(k >> 16), (int32_t)(k & 65535), 0};
            p[l->weights_at + k] = scale * ranks_number(at, 0, RANKS_WEIGHT);
        }
        for (int c = 0; l->norm && c < l->out.cols; ++c)
            p[l->norm_at + c] = l->residual.cols > 0 ? 0.5f : 1.0f;
    }
    failed = failed ||
             device_upload(n->d, n->parameters, p, (size_t)n->num_parameters * sizeof *p) ||
             ranks_narrow(n) != SPOPS_STATUS_OK;
    free(p);
    return failed;
}

/* The features of owned rows, or the target. */
static int put_numbers(ranks_network *n, void *to, int cols, int what)
{
    const ranks_level *level = &n->levels[0];
    const size_t num = (size_t)level->info.num_owned, all = num * (size_t)cols;
    spops_coords_view view = spops_coords_view_default();
    int32_t *rows = (int32_t *)malloc(num * 4 * sizeof *rows + 1);
    float *wide = (float *)malloc(all * sizeof *wide + 1);
    void *narrow = malloc(all * sizeof *wide + 1);
    int failed = rows == NULL || wide == NULL || narrow == NULL;

    TRY(spops_coords_get_view(n->d->ctx, level->owned, &view));
    failed = failed || device_download(n->d, rows, view.rows, num * 4 * sizeof *rows);
    for (size_t i = 0; i < all && !failed; ++i)
        wide[i] = ranks_number(rows + i / (size_t)cols * 4, (int)(i % (size_t)cols), what);
    failed = failed || device_convert(n->d, SPOPS_DTYPE_F32, wide, n->dtype, narrow, all) ||
             device_upload(n->d, to, narrow, all * spops_dtype_bytes(n->dtype));
    free(rows);
    free(wide);
    free(narrow);
    return failed;
}

static void *new_rows(ranks_network *n, int64_t rows, int cols)
{
    const size_t bytes = (size_t)rows * (size_t)cols * spops_dtype_bytes(n->dtype) + 256;
    n->row_bytes += (int64_t)bytes;
    return device_alloc(n->d, bytes);
}

static int alloc_rows(ranks_network *n)
{
    int failed = 0;
    for (int v = 0; v < n->num_values; ++v) {
        ranks_value *value = &n->values[v];
        value->data = new_rows(n, n->levels[value->level].rows, value->cols);
        value->grad = v == n->input ? NULL : new_rows(n, n->levels[value->level].rows, value->cols);
        failed |= value->data == NULL || (v != n->input && value->grad == NULL);
    }
    for (int l = 0; l < n->num_levels; ++l) {
        int widest = 8;
        for (int v = 0; v < n->num_values; ++v)
            if (n->values[v].level == l && n->values[v].cols > widest) widest = n->values[v].cols;
        n->levels[l].grad_sum = new_rows(n, n->levels[l].rows, widest);
        n->levels[l].temporary = new_rows(n, n->levels[l].rows, widest);
        failed |= n->levels[l].grad_sum == NULL || n->levels[l].temporary == NULL;
    }
    for (int i = 0; i < n->num_layers; ++i) {
        ranks_layer *l = &n->layers[i];
        if (l->norm) l->sum = new_rows(n, n->levels[l->level].rows, l->out.cols);
        failed |= l->norm && l->sum == NULL;
    }
    n->target = new_rows(n, n->levels[0].rows, RANKS_OUTPUTS);
    return failed || n->target == NULL;
}

static int alloc_parameters(ranks_network *n)
{
    const size_t parameters = (size_t)n->num_parameters * sizeof(float);
    const size_t moments = (size_t)n->num_moments * sizeof(float);
    const size_t statistics = 2 * (size_t)n->max_cols * sizeof(float);

    n->parameters = (float *)device_alloc(n->d, parameters);
    n->gradients = (float *)device_alloc(n->d, parameters);
    n->moments = (float *)device_alloc(n->d, moments);
    n->running = (float *)device_alloc(n->d, moments);
    n->narrow = n->dtype == SPOPS_DTYPE_F32 ? n->parameters : device_alloc(n->d, parameters);
    n->partials = (float *)device_alloc(
        n->d, (size_t)n->num_chunks * (size_t)n->num_weights * sizeof(float) + 256);
    n->statistics = (float *)device_alloc(n->d, (size_t)n->num_chunks * statistics + 256);
    n->all_statistics = (float *)device_alloc(n->d, (size_t)n->num_all_chunks * statistics);
    n->gradient_bytes = (int64_t)(3 * parameters + 2 * moments) +
                        n->num_chunks * n->num_weights * (int64_t)sizeof(float);
    return n->parameters == NULL || n->gradients == NULL || n->moments == NULL ||
           n->running == NULL || n->narrow == NULL || n->partials == NULL ||
           n->statistics == NULL || n->all_statistics == NULL;
}

/* Who has which chunks' statistics. */
static int place_statistics(ranks_network *n, const spops_partition *partition)
{
    const int ranks = spops_comm_num_ranks(n->comm);
    spops_partition_info info = spops_partition_info_default();

    TRY(spops_partition_get_info(n->d->ctx, partition, &info));
    n->gather = (int64_t *)calloc(4 * (size_t)ranks, sizeof *n->gather);
    if (n->gather == NULL) return 1;
    for (int r = 0; r < ranks; ++r) {
        n->gather[r] = n->num_chunks;
        n->gather[2 * ranks + r] = info.first_chunk[r + 1] - info.first_chunk[r];
        n->gather[3 * ranks + r] = info.first_chunk[r];
    }
    return 0;
}

/* What a step exchanges: rows before each layer within a level, gradients but for the first layer. */
static void count_halos(ranks_network *n)
{
    for (int i = 0; i < n->num_layers; ++i) {
        const ranks_layer *l = &n->layers[i];
        ranks_level *level = &n->levels[l->level];
        const int backward = l->in.value != n->input;
        const int64_t bytes = level->info.num_sent * (l->in.cols + backward * l->out.cols) *
                              (int64_t)spops_dtype_bytes(n->dtype);
        if (l->relation != WITHIN) continue;
        level->num_exchanges += 1 + backward;
        level->halo_bytes += bytes;
        n->halo_bytes += bytes;
    }
}

static void count_plans(ranks_network *n)
{
    for (int l = 0; l < n->num_levels; ++l) {
        const ranks_level *level = &n->levels[l];
        const void *plans[] = {level->owned, level->info.coords, level->within,   level->down,
                               level->up,    level->convs[0],    level->convs[1], level->convs[2]};
        for (size_t i = 0; i < sizeof plans / sizeof plans[0]; ++i)
            n->plan_bytes += (int64_t)spops_plan_bytes((const spops_plan *)plans[i]);
        for (int r = WITHIN; r <= UP; ++r)
            for (int32_t c = 0; c < n->num_chunks; ++c) {
                const void *map = level->chunk_maps[r][c], *conv = level->chunk_convs[r][c];
                n->plan_bytes += (int64_t)spops_plan_bytes((const spops_plan *)map);
                n->plan_bytes += (int64_t)spops_plan_bytes((const spops_plan *)conv);
            }
    }
}

int ranks_network_create(ranks_network *n, const device *d, spops_comm *comm,
                         const spops_partition *partition, int64_t num_rows, const int32_t *rows,
                         double width, int num_levels, spops_dtype dtype, int any_dataflow)
{
    spops_device_info device = spops_device_info_default();
    memset(n, 0, sizeof *n);
    n->d = d;
    n->comm = comm;
    n->dtype = dtype;
    n->num_levels = num_levels;
    TRY(spops_context_get_device_info(d->ctx, &device));
    n->implicit_gemm = !any_dataflow && dtype == SPOPS_DTYPE_F16 && device.compute_capability >= 90;
    ranks_add_layers(n, width);
    place_parameters(n);
    const double begin_us = host_clock_us();
    for (int l = 0; l < num_levels; ++l)
        if (create_level(n, partition, l, num_rows, rows)) return 1;
    const double made_us = host_clock_us();
    for (int l = 0; l < num_levels; ++l)
        if (create_plans(n, l)) return 1;
    TRY(spops_context_wait_sync(d->ctx));
    n->halos_ms = 1e-3 * (made_us - begin_us);
    n->plans_ms = 1e-3 * (host_clock_us() - made_us);
    TRY(spops_chunk_sums_create(d->ctx, comm, partition, n->num_weights, &n->sums));
    TRY(spops_chunk_sums_create(d->ctx, comm, partition, 2 * n->max_cols, &n->small_sums));
    TRY(spops_context_reserve(d->ctx,
                              spops_norm_scratch_bytes(n->levels[0].rows + 1, n->max_cols)));
    TRY(spops_linear_reserve(d->ctx, n->levels[0].rows + 1, n->max_cols, n->max_cols, 1));
    if (alloc_rows(n) || alloc_parameters(n) || place_statistics(n, partition) ||
        draw_parameters(n) ||
        put_numbers(n, n->values[n->input].data, RANKS_INPUTS, RANKS_FEATURE) ||
        put_numbers(n, n->target, RANKS_OUTPUTS, RANKS_TARGET))
        return 1;
    count_halos(n);
    count_plans(n);
    return 0;
}

static void destroy_level(ranks_network *n, ranks_level *l)
{
    for (int r = WITHIN; r <= UP; ++r) {
        for (int32_t c = 0; l->chunk_convs[r] != NULL && c < n->num_chunks; ++c)
            spops_sparseconv_destroy(l->chunk_convs[r][c]);
        for (int32_t c = 0; l->chunk_maps[r] != NULL && c < n->num_chunks; ++c)
            spops_kernel_map_destroy(l->chunk_maps[r][c]);
        free(l->chunk_convs[r]);
        free(l->chunk_maps[r]);
        spops_sparseconv_destroy(l->convs[r]);
    }
    spops_kernel_map_destroy(l->within);
    spops_kernel_map_destroy(l->up);
    spops_kernel_map_destroy(l->down);
    spops_halo_destroy(l->halo);
    spops_coords_destroy(l->owned);
    device_free(n->d, l->grad_sum);
    device_free(n->d, l->temporary);
}

void ranks_network_destroy(ranks_network *n)
{
    for (int l = 0; l < n->num_levels; ++l)
        destroy_level(n, &n->levels[l]);
    spops_chunk_sums_destroy(n->sums);
    spops_chunk_sums_destroy(n->small_sums);
    for (int v = 0; v < n->num_values; ++v) {
        device_free(n->d, n->values[v].data);
        device_free(n->d, n->values[v].grad);
    }
    for (int i = 0; i < n->num_layers; ++i)
        device_free(n->d, n->layers[i].sum);
    if (n->narrow != n->parameters) device_free(n->d, n->narrow);
    device_free(n->d, n->parameters);
    device_free(n->d, n->gradients);
    device_free(n->d, n->moments);
    device_free(n->d, n->running);
    device_free(n->d, n->partials);
    device_free(n->d, n->statistics);
    device_free(n->d, n->all_statistics);
    device_free(n->d, n->target);
    free(n->gather);
}
