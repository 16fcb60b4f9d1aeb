// SPDX-License-Identifier: Apache-2.0
/* The layers, and what a step enqueues. */
#include "ranks/network.h"

#include "ranks/plans.h"

#include <math.h>
#include <string.h>

#define PASS(call)                                                                                 \
    do {                                                                                           \
        const spops_status passed = (call);                                                        \
        if (passed != SPOPS_STATUS_OK) return passed;                                              \
    } while (0)

/* ---- Layers: MinkUNet of Choy et al. with the channels of SPVNAS -------------------------------- */

static ranks_view all_of(const ranks_network *n, int value)
{
    const ranks_view v = {value, 0, n->values[value].cols};
    return v;
}

static ranks_view columns(int value, int col, int cols)
{
    const ranks_view v = {value, col, cols};
    return v;
}

static const ranks_view nothing = {0, 0, 0};

static int add_value(ranks_network *n, int level, int cols)
{
    ranks_value *v = &n->values[n->num_values];
    v->level = level;
    v->cols = cols;
    return n->num_values++;
}

static void add_layer(ranks_network *n, ranks_relation relation, ranks_view in, ranks_view out,
                      ranks_view residual, int norm, int relu)
{
    static const int taps[] = {27, 8, 8, 1};
    ranks_layer *l = &n->layers[n->num_layers++];
    l->relation = relation;
    l->level = n->values[out.value].level;
    l->taps = taps[relation];
    l->in = in;
    l->out = out;
    l->residual = residual;
    l->norm = norm;
    l->relu = relu;
}

static ranks_view add_block(ranks_network *n, int level, ranks_view in, ranks_view out)
{
    const ranks_view hidden = all_of(n, add_value(n, level, out.cols));
    ranks_view residual = in;
    add_layer(n, WITHIN, in, hidden, nothing, 1, 1);
    if (in.cols != out.cols) {
        residual = all_of(n, add_value(n, level, out.cols));
        add_layer(n, POINTWISE, in, residual, nothing, 1, 0);
    }
    add_layer(n, WITHIN, hidden, out, residual, 1, 1);
    return out;
}

void ranks_add_layers(ranks_network *n, double width)
{
    static const int full[9] = {32, 32, 64, 128, 256, 256, 128, 96, 96};
    const int last = n->num_levels - 1;
    int cs[9], joined[RANKS_LEVELS];
    ranks_view x;

    for (int i = 0; i < 9; ++i)
        cs[i] = ((int)(width * full[i]) + 7) / 8 * 8;
    n->input = add_value(n, 0, RANKS_INPUTS);
    for (int l = 0; l < last; ++l) /* up, then what the way down left */
        joined[l] = add_value(n, l, cs[8 - l] + cs[l]);
    x = all_of(n, add_value(n, 0, cs[0]));
    add_layer(n, WITHIN, all_of(n, n->input), x, nothing, 1, 1);
    add_layer(n, WITHIN, x, columns(joined[0], cs[8], cs[0]), nothing, 1, 1);
    x = columns(joined[0], cs[8], cs[0]);
    for (int l = 1; l <= last; ++l) {
        const ranks_view down = all_of(n, add_value(n, l, cs[l - 1]));
        const ranks_view out =
            l < last ? columns(joined[l], cs[8 - l], cs[l]) : all_of(n, add_value(n, l, cs[l]));
        add_layer(n, DOWN, x, down, nothing, 1, 1);
        x = add_block(n, l, down, all_of(n, add_value(n, l, cs[l])));
        x = add_block(n, l, x, out);
    }
    for (int l = last - 1; l >= 0; --l) {
        add_layer(n, UP, x, columns(joined[l], 0, cs[8 - l]), nothing, 1, 1);
        x = add_block(n, l, all_of(n, joined[l]), all_of(n, add_value(n, l, cs[8 - l])));
        x = add_block(n, l, x, all_of(n, add_value(n, l, cs[8 - l])));
    }
    n->output = add_value(n, 0, RANKS_OUTPUTS);
    add_layer(n, POINTWISE, x, all_of(n, n->output), nothing, 0, 0);
    for (int v = 0; v < n->num_values; ++v)
        if (n->values[v].cols > n->max_cols) n->max_cols = n->values[v].cols;
}

/* ---- Matrices ------------------------------------------------------------------------------------ */

static spops_matrix matrix(const ranks_network *n, void *data, int cols, ranks_view v, int64_t rows)
{
    spops_matrix m = spops_matrix_dense((char *)data + (size_t)v.col * spops_dtype_bytes(n->dtype),
                                        rows, v.cols, n->dtype);
    m.row_stride = cols;
    return m;
}

/* Owned rows of a view, with its ghosts where they are asked for. */
static spops_matrix rows_of(const ranks_network *n, ranks_view v, int ghosts)
{
    const ranks_value *value = &n->values[v.value];
    const ranks_level *l = &n->levels[value->level];
    return matrix(n, value->data, value->cols, v, ghosts ? l->rows : l->info.num_owned);
}

static spops_matrix grads_of(const ranks_network *n, ranks_view v, int ghosts)
{
    const ranks_value *value = &n->values[v.value];
    const ranks_level *l = &n->levels[value->level];
    return matrix(n, value->grad, value->cols, v, ghosts ? l->rows : l->info.num_owned);
}

static spops_matrix plain(const ranks_network *n, void *data, int64_t rows, int cols)
{
    return spops_matrix_dense(data, rows, cols, n->dtype);
}

static spops_matrix first_rows(spops_matrix m, int64_t rows)
{
    m.rows = rows;
    return m;
}

/* Rows of an own chunk. */
static spops_matrix chunk_rows(const ranks_level *l, spops_matrix m, int32_t chunk)
{
    const int64_t begin = l->info.chunk_offsets[chunk];
    m.data = (char *)m.data + (size_t)(begin * m.row_stride) * spops_dtype_bytes(m.dtype);
    m.rows = l->info.chunk_offsets[chunk + 1] - begin;
    return m;
}

static spops_matrix weights_of(const ranks_network *n, const ranks_layer *l)
{
    char *narrow = (char *)n->narrow + (size_t)l->weights_at * spops_dtype_bytes(n->dtype);
    return spops_matrix_dense(narrow, (int64_t)l->taps * l->in.cols, l->out.cols, n->dtype);
}

/* The level whose map a layer runs on. */
static const ranks_level *map_level(const ranks_network *n, const ranks_layer *l)
{
    return &n->levels[l->relation == DOWN ? l->level - 1 : l->level];
}

/* ---- Forward ------------------------------------------------------------------------------------- */

static spops_norm_options norm_options(const ranks_layer *l)
{
    spops_norm_options o = spops_norm_options_default();
    if (l->relu && l->residual.cols == 0) o.activation = SPOPS_ACTIVATION_RELU;
    return o;
}

/* Statistics of this rank's chunks become mean and variance over the rows of all ranks. */
static spops_status merge_statistics(ranks_network *n, const ranks_layer *l)
{
    const ranks_level *level = &n->levels[l->level];
    const int ranks = spops_comm_num_ranks(n->comm), cols = l->out.cols;
    const spops_norm_options o = norm_options(l);
    const spops_comm_layout layout = {n->gather, n->gather + ranks, n->gather + 2 * ranks,
                                      n->gather + 3 * ranks};
    float *mean = n->moments + l->moments_at, *running = n->running + l->moments_at;
    const spops_matrix own =
        spops_matrix_dense(n->statistics, n->num_chunks, 2 * cols, SPOPS_DTYPE_F32);
    const spops_matrix all =
        spops_matrix_dense(n->all_statistics, n->num_all_chunks, 2 * cols, SPOPS_DTYPE_F32);

    PASS(spops_comm_exchange_execute(n->d->ctx, n->comm, &layout, own, all));
    return spops_batchnorm_merge_execute(n->d->ctx, level->info.all_chunk_rows, all, &o, mean,
                                         mean + cols, running, running + cols);
}

static spops_status find_statistics(ranks_network *n, const ranks_layer *l, spops_matrix sum)
{
    const ranks_level *level = &n->levels[l->level];
    const int cols = l->out.cols;
    const spops_norm_options o = norm_options(l);

    for (int32_t c = 0; c < n->num_chunks; ++c) {
        float *to = n->statistics + (int64_t)c * 2 * cols;
        PASS(spops_batchnorm_statistics_execute(n->d->ctx, chunk_rows(level, sum, c), &o, to,
                                                to + cols, NULL, NULL));
    }
    return merge_statistics(n, l);
}

static spops_status multiply(ranks_network *n, const ranks_layer *l, spops_matrix sum)
{
    const ranks_level *on = map_level(n, l);
    const int within = l->relation == WITHIN;

    if (l->relation == POINTWISE)
        return spops_linear_execute(n->d->ctx, rows_of(n, l->in, 0), weights_of(n, l), NULL, sum);
    if (within)
        PASS(spops_halo_execute(n->d->ctx, on->halo, rows_of(n, l->in, 0), rows_of(n, l->in, 1)));
    return spops_sparseconv_execute(n->d->ctx, on->convs[l->relation], rows_of(n, l->in, within),
                                    weights_of(n, l), NULL, sum);
}

static spops_status run_layer(ranks_network *n, const ranks_layer *l)
{
    const ranks_level *level = &n->levels[l->level];
    const int64_t owned = level->info.num_owned;
    const spops_matrix out = rows_of(n, l->out, 0);
    const spops_matrix sum =
        l->norm ? plain(n, l->sum, l->relation == WITHIN ? level->rows : owned, l->out.cols) : out;
    const spops_norm_options o = norm_options(l);
    const float *mean = n->moments + l->moments_at, *gamma = n->parameters + l->norm_at;

    PASS(multiply(n, l, sum));
    if (!l->norm) return SPOPS_STATUS_OK;
    PASS(find_statistics(n, l, first_rows(sum, owned)));
    PASS(spops_batchnorm_execute(n->d->ctx, first_rows(sum, owned), mean, mean + l->out.cols, gamma,
                                 gamma + l->out.cols, &o, out));
    if (l->residual.cols == 0) return SPOPS_STATUS_OK;
    PASS(spops_add_execute(n->d->ctx, out, rows_of(n, l->residual, 0), NULL, out));
    return spops_activation_execute(n->d->ctx, SPOPS_ACTIVATION_RELU, out, NULL, out);
}

spops_status ranks_forward(ranks_network *n)
{
    for (int i = 0; i < n->num_layers; ++i)
        PASS(run_layer(n, &n->layers[i]));
    return SPOPS_STATUS_OK;
}

/* ---- Backward ------------------------------------------------------------------------------------ */

/* g is added to the gradient of a view, or is the first there. */
static spops_status add_gradient(ranks_network *n, ranks_view to, spops_matrix g)
{
    ranks_value *v = &n->values[to.value];
    const spops_matrix grad = grads_of(n, to, 0);
    const int there = v->has_grad;
    v->has_grad = 1;
    return there ? spops_add_execute(n->d->ctx, grad, g, NULL, grad)
                 : spops_convert_execute(n->d->ctx, g, grad);
}

/* The gradients of a norm's parameters over the rows of all ranks. */
static spops_status sum_of_norm(ranks_network *n, const ranks_layer *l)
{
    return spops_chunk_sums_execute(
        n->d->ctx, n->small_sums,
        spops_matrix_dense(n->statistics, n->num_chunks, 2 * l->out.cols, SPOPS_DTYPE_F32),
        n->gradients + l->norm_at);
}

/* From the gradient of what the layer gave to that of its sum, with the gradients of the norm. */
static spops_status norm_backward(ranks_network *n, const ranks_layer *l, spops_matrix g,
                                  spops_matrix to)
{
    const ranks_level *level = &n->levels[l->level];
    const int cols = l->out.cols;
    const spops_norm_options o = norm_options(l);
    const spops_matrix x = plain(n, l->sum, level->info.num_owned, cols);
    const float *mean = n->moments + l->moments_at, *gamma = n->parameters + l->norm_at;
    float *sums = n->gradients + l->norm_at;

    for (int32_t c = 0; c < n->num_chunks; ++c) {
        float *part = n->statistics + (int64_t)c * 2 * cols;
        PASS(spops_batchnorm_sums_execute(n->d->ctx, chunk_rows(level, g, c),
                                          chunk_rows(level, x, c), mean, mean + cols, gamma,
                                          gamma + cols, &o, part, part + cols));
    }
    PASS(sum_of_norm(n, l));
    return spops_batchnorm_gradient_execute(n->d->ctx, g, x, mean, mean + cols, gamma, gamma + cols,
                                            sums, sums + cols, level->info.num_all_rows, &o, to);
}

/* The gradient of weights of the rows of each chunk. */
static spops_status weights_backward(ranks_network *n, const ranks_layer *l, spops_matrix g,
                                     spops_matrix x)
{
    const ranks_level *on = map_level(n, l), *out = &n->levels[l->level];

    for (int32_t c = 0; c < n->num_chunks; ++c) {
        float *to = n->partials + (int64_t)c * n->num_weights + l->weights_at;
        const spops_matrix w =
            spops_matrix_dense(to, (int64_t)l->taps * l->in.cols, l->out.cols, SPOPS_DTYPE_F32);
        const spops_matrix rows = chunk_rows(out, g, c);
        const ranks_level *in = &n->levels[n->values[l->in.value].level];
        /* Within a level inputs are all rows of it; between levels they are rows of the same chunk. */
        const spops_matrix taken = l->relation == WITHIN ? x : chunk_rows(in, x, c);
        if (l->relation == POINTWISE)
            PASS(spops_linear_execute_backward(n->d->ctx, rows, taken, weights_of(n, l), NULL, NULL,
                                               &w, NULL));
        else
            PASS(spops_sparseconv_execute_backward(n->d->ctx, on->chunk_convs[l->relation][c], rows,
                                                   taken, weights_of(n, l), NULL, NULL, &w, NULL));
    }
    return SPOPS_STATUS_OK;
}

/* The gradient of what a layer took. Within a level all rows are computed; ghosts' are of no use. */
static spops_status input_backward(ranks_network *n, const ranks_layer *l, spops_matrix g)
{
    const ranks_level *on = map_level(n, l);
    const int within = l->relation == WITHIN, in_level = n->values[l->in.value].level;
    ranks_value *value = &n->values[l->in.value];
    const int there = value->has_grad;
    const ranks_level *in = &n->levels[in_level];
    const int64_t rows = within ? in->rows : in->info.num_owned;
    const spops_matrix to =
        there ? plain(n, in->temporary, rows, l->in.cols) : grads_of(n, l->in, within);

    if (l->relation == POINTWISE)
        PASS(spops_linear_execute_backward(n->d->ctx, g, rows_of(n, l->in, 0), weights_of(n, l),
                                           NULL, &to, NULL, NULL));
    else
        PASS(spops_sparseconv_execute_backward(n->d->ctx, on->convs[l->relation], g,
                                               rows_of(n, l->in, within), weights_of(n, l), NULL,
                                               &to, NULL, NULL));
    value->has_grad = 1;
    return there ? add_gradient(n, l->in, first_rows(to, in->info.num_owned)) : SPOPS_STATUS_OK;
}

static spops_status run_back(ranks_network *n, const ranks_layer *l)
{
    const ranks_level *level = &n->levels[l->level];
    const int64_t owned = level->info.num_owned;
    const int within = l->relation == WITHIN;
    const spops_matrix g = grads_of(n, l->out, 0);
    const spops_matrix sum = plain(n, level->grad_sum, within ? level->rows : owned, l->out.cols);

    if (l->residual.cols > 0) {
        PASS(spops_activation_execute_backward(n->d->ctx, SPOPS_ACTIVATION_RELU, g,
                                               rows_of(n, l->out, 0), NULL, g));
        PASS(add_gradient(n, l->residual, g));
    }
    if (l->norm)
        PASS(norm_backward(n, l, g, first_rows(sum, owned)));
    else
        PASS(spops_convert_execute(n->d->ctx, g, first_rows(sum, owned)));
    /* Ghosts' gradients travel while those of weights are computed. */
    if (within && l->in.value != n->input)
        PASS(spops_halo_begin(n->d->ctx, level->halo, first_rows(sum, owned), sum));
    PASS(weights_backward(n, l, first_rows(sum, owned), rows_of(n, l->in, within)));
    if (l->in.value == n->input) return SPOPS_STATUS_OK;
    if (within) PASS(spops_halo_end(n->d->ctx, level->halo));
    return input_backward(n, l, sum);
}

spops_status ranks_sums(ranks_network *n)
{
    return spops_chunk_sums_execute(
        n->d->ctx, n->sums,
        spops_matrix_dense(n->partials, n->num_chunks, n->num_weights, SPOPS_DTYPE_F32),
        n->gradients);
}

spops_status ranks_backward(ranks_network *n)
{
    const ranks_view output = all_of(n, n->output);
    spops_add_options o = spops_add_options_default();

    for (int v = 0; v < n->num_values; ++v)
        n->values[v].has_grad = 0;
    o.scale = -1;
    PASS(spops_add_execute(n->d->ctx, rows_of(n, output, 0),
                           plain(n, n->target, n->levels[0].info.num_owned, RANKS_OUTPUTS), &o,
                           grads_of(n, output, 0)));
    for (int i = n->num_layers - 1; i >= 0; --i)
        PASS(run_back(n, &n->layers[i]));
    return ranks_sums(n);
}

spops_status ranks_update(ranks_network *n)
{
    spops_add_options o = spops_add_options_default();
    const spops_matrix wide =
        spops_matrix_dense(n->parameters, n->num_parameters / 8, 8, SPOPS_DTYPE_F32);
    const spops_matrix grads =
        spops_matrix_dense(n->gradients, n->num_parameters / 8, 8, SPOPS_DTYPE_F32);
    o.scale = -RANKS_RATE;
    PASS(spops_add_execute(n->d->ctx, wide, grads, &o, wide));
    return ranks_narrow(n);
}

/* ---- Parts alone --------------------------------------------------------------------------------- */

spops_status ranks_halos(ranks_network *n, int of_level)
{
    for (int i = 0; i < n->num_layers; ++i) {
        const ranks_layer *l = &n->layers[i];
        ranks_level *level = &n->levels[l->level];
        if (l->relation != WITHIN || (of_level >= 0 && l->level != of_level)) continue;
        PASS(
            spops_halo_execute(n->d->ctx, level->halo, rows_of(n, l->in, 0), rows_of(n, l->in, 1)));
        if (l->in.value == n->input) continue;
        const spops_matrix sum = plain(n, level->grad_sum, level->rows, l->out.cols);
        PASS(spops_halo_execute(n->d->ctx, level->halo, first_rows(sum, level->info.num_owned),
                                sum));
    }
    return SPOPS_STATUS_OK;
}

spops_status ranks_norm_sums(ranks_network *n)
{
    for (int i = 0; i < n->num_layers; ++i) {
        const ranks_layer *l = &n->layers[i];
        if (!l->norm) continue;
        PASS(merge_statistics(n, l));
        PASS(sum_of_norm(n, l));
    }
    return SPOPS_STATUS_OK;
}

/* Into memory that nothing else uses meanwhile. */
static spops_status convolve_half(ranks_network *n, const ranks_layer *l,
                                  const ranks_halves *halves, int half)
{
    const spops_sparseconv *conv = halves->convs[half][l->level];
    const int64_t rows = halves->rows[half][l->level];
    if (conv == NULL) return SPOPS_STATUS_OK;
    return spops_sparseconv_execute(n->d->ctx, conv, rows_of(n, l->in, 1), weights_of(n, l), NULL,
                                    plain(n, n->levels[l->level].temporary, rows, l->out.cols));
}

spops_status ranks_convolve_half(ranks_network *n, const ranks_halves *halves, int half)
{
    for (int i = 0; i < n->num_layers; ++i)
        if (n->layers[i].relation == WITHIN) PASS(convolve_half(n, &n->layers[i], halves, half));
    return SPOPS_STATUS_OK;
}

spops_status ranks_convolve_beside(ranks_network *n, const ranks_halves *halves)
{
    for (int i = 0; i < n->num_layers; ++i) {
        const ranks_layer *l = &n->layers[i];
        if (l->relation != WITHIN) continue;
        spops_halo *halo = n->levels[l->level].halo;
        PASS(spops_halo_begin(n->d->ctx, halo, rows_of(n, l->in, 0), rows_of(n, l->in, 1)));
        PASS(convolve_half(n, l, halves, 0));
        PASS(spops_halo_end(n->d->ctx, halo));
        PASS(convolve_half(n, l, halves, 1));
    }
    return SPOPS_STATUS_OK;
}

spops_status ranks_convolve_behind(ranks_network *n)
{
    for (int i = 0; i < n->num_layers; ++i) {
        const ranks_layer *l = &n->layers[i];
        if (l->relation != WITHIN) continue;
        const ranks_level *level = &n->levels[l->level];
        PASS(multiply(n, l, plain(n, level->temporary, level->rows, l->out.cols)));
    }
    return SPOPS_STATUS_OK;
}

enum { LINK_COLUMNS = 64 }; /* of f32 */

int64_t ranks_most_to_pass_on(const ranks_network *n)
{
    const int64_t row = LINK_COLUMNS * (int64_t)sizeof(float);
    return n->num_chunks * n->num_weights * (int64_t)sizeof(float) / 2 / row * row;
}

spops_status ranks_pass_on(ranks_network *n, int64_t bytes)
{
    enum { ROW_BYTES = LINK_COLUMNS * sizeof(float) };
    const int ranks = spops_comm_num_ranks(n->comm), me = spops_comm_rank(n->comm);
    const int64_t rows = bytes / ROW_BYTES;
    int64_t counts[4 * RANKS_MOST] = {0};
    const spops_comm_layout layout = {counts, counts + ranks, counts + 2 * ranks,
                                      counts + 3 * ranks};

    if (ranks == 1) return SPOPS_STATUS_OK;
    for (int r = 0; r < ranks; ++r) /* ranges that are received ascend */
        counts[3 * ranks + r] = r > (me + ranks - 1) % ranks ? rows : 0;
    counts[(me + 1) % ranks] = rows;
    counts[2 * ranks + (me + ranks - 1) % ranks] = rows;
    return spops_comm_exchange_execute(
        n->d->ctx, n->comm, &layout,
        spops_matrix_dense(n->partials, rows, LINK_COLUMNS, SPOPS_DTYPE_F32),
        spops_matrix_dense(n->partials + rows * LINK_COLUMNS, rows, LINK_COLUMNS, SPOPS_DTYPE_F32));
}
