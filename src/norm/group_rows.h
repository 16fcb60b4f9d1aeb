// SPDX-License-Identifier: Apache-2.0
// Group norm on the CPU, after norm/norm_rows.h, whose definitions it takes: pieces of samples by strips
// of columns. Which thread takes which piece changes no result.
#ifndef SPOPS_NORM_GROUP_ROWS_H
#define SPOPS_NORM_GROUP_ROWS_H

#include "norm/group_args.h"

typedef struct group_work {
    const spops_group_norm_args *args;
    int64_t num_strips, num_pieces;
    spops_team team;
} group_work;

static group_work group_work_of(const spops_context *ctx, const spops_group_norm_args *args)
{
    const spops_group_samples *s = &args->samples;
    group_work w;
    w.args = args;
    w.num_strips = (args->x.cols + STRIP - 1) / STRIP;
    w.num_pieces = spops_group_max_pieces(s->num, s->max_positions);
    w.team = spops_team_for(ctx, s->max_positions * args->x.cols);
    return w;
}

// A body of a loop over strips of pieces; some have no rows.
#define DEFINE_PIECES_BODY(name, call)                                                             \
    static void name(const void *work, int64_t begin, int64_t end)                                 \
    {                                                                                              \
        const group_work *w = (const group_work *)work;                                            \
        const spops_group_samples *s = &w->args->samples;                                          \
        for (int64_t i = begin; i < end; ++i) {                                                    \
            const spops_group_piece piece =                                                        \
                spops_group_piece_of(s->offsets, s->num, i / w->num_strips);                       \
            call(w->args, &piece, i / w->num_strips, i % w->num_strips * STRIP);                   \
        }                                                                                          \
    }

static int64_t group_row(const spops_group_norm_args *args, int64_t position)
{
    return args->samples.pairs == NULL ? position : args->samples.pairs[2 * position];
}

static int group_strip_cols(const spops_group_norm_args *args, int64_t col)
{
    return args->x.cols - col < STRIP ? (int)(args->x.cols - col) : STRIP;
}

static real *group_partial(const spops_group_norm_args *args, int64_t piece, int which, int64_t col)
{
    return of(args->scratch.partials) + (2 * piece + which) * args->x.cols + col;
}

// ---- Statistics ---------------------------------------------------------------------------------

// As moments_of_rows, of the rows of a piece.
static void moments_of_piece(const spops_group_norm_args *args, const spops_group_piece *piece,
                             int64_t col, int n, real scale, real *mean, real *deviations)
{
    real v[STRIP], count = 0.0f;

    memset(mean, 0, STRIP * sizeof *mean);
    memset(deviations, 0, STRIP * sizeof *deviations);
    for (int64_t at = piece->begin; at < piece->end; ++at) {
        load_row(args->x, group_row(args, at), col, n, v);
        take_row(v, n, scale, count += 1.0f, mean, deviations);
    }
    undo_scale(n, scale, mean, deviations);
}

static void piece_moments(const spops_group_norm_args *args, const spops_group_piece *piece,
                          int64_t number, int64_t col)
{
    const int n = group_strip_cols(args, col);
    real mean[STRIP], deviations[STRIP];

    if (piece->begin == piece->end) return;
    moments_of_piece(args, piece, col, n, 1.0f, mean, deviations);
    // A difference of finite values may not be; one of their halves is.
    if (!all_finite(mean, n)) moments_of_piece(args, piece, col, n, 0.5f, mean, deviations);
    memcpy(group_partial(args, number, 0, col), mean, (size_t)n * sizeof *mean);
    memcpy(group_partial(args, number, 1, col), deviations, (size_t)n * sizeof *deviations);
}

// Of sample and group number i: columns of a piece, then pieces, are merged in order.
static void merge_group_moments(const spops_group_norm_args *args, int64_t i)
{
    const int64_t sample = i / args->groups, width = args->x.cols / args->groups;
    const int64_t first = i % args->groups * width;
    const int32_t *offsets = args->samples.offsets;
    int64_t piece = spops_group_first_piece(offsets, sample);
    moments m = {0.0f, 0.0f, 0.0f};

    for (int64_t at = offsets[sample]; at < offsets[sample + 1];
         at += SPOPS_GROUP_PIECE_ROWS, ++piece) {
        const int64_t left = offsets[sample + 1] - at;
        const real rows = (real)(left < SPOPS_GROUP_PIECE_ROWS ? left : SPOPS_GROUP_PIECE_ROWS);
        for (int64_t c = first; c < first + width; ++c)
            merge_into(&m, (moments){rows, *group_partial(args, piece, 0, c),
                                     *group_partial(args, piece, 1, c)});
    }
    of(args->mean_out)[i] = m.mean;
    of(args->var_out)[i] = variance_of(&m);
}

static void group_moments(const void *work, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; ++i)
        merge_group_moments(((const group_work *)work)->args, i);
}

DEFINE_PIECES_BODY(moments_of_pieces, piece_moments)

static spops_status run_group_statistics(spops_context *ctx, const spops_group_norm_args *args)
{
    const group_work work = group_work_of(ctx, args);

    spops_parallel_for(work.team, work.num_pieces * work.num_strips, 0, moments_of_pieces, &work);
    spops_parallel_for(work.team, args->samples.num * args->groups, 0, group_moments, &work);
    return SPOPS_STATUS_OK;
}

// ---- Values and gradients -----------------------------------------------------------------------

// What the columns of a strip have in a sample.
static void read_group_params(const spops_group_norm_args *args, int64_t sample, int64_t col, int n,
                              strip_params *s)
{
    const int64_t width = args->x.cols / args->groups;
    for (int c = 0; c < n; ++c) {
        const int64_t at = sample * args->groups + (col + c) / width;
        s->gamma[c] = args->gamma != NULL ? of(args->gamma)[col + c] : 1.0f;
        s->beta[c] = args->beta != NULL ? of(args->beta)[col + c] : 0.0f;
        s->mean[c] = of(args->mean)[at];
        s->rstd[c] = 1.0f / square_root(of(args->var)[at] + args->epsilon);
    }
}

static void piece_forward(const spops_group_norm_args *args, const spops_group_piece *piece,
                          int64_t number, int64_t col)
{
    const int n = group_strip_cols(args, col);
    strip_params s;
    real v[STRIP];

    (void)number;
    if (piece->begin == piece->end) return;
    read_group_params(args, piece->sample, col, n, &s);
    for (int64_t at = piece->begin; at < piece->end; ++at) {
        const int64_t row = group_row(args, at);
        load_row(args->x, row, col, n, v);
        for (int c = 0; c < n; ++c)
            v[c] = (v[c] - s.mean[c]) * s.rstd[c] * s.gamma[c] + s.beta[c];
        activate(args, n, v);
        store_row(args->out, row, col, n, v);
    }
}

DEFINE_PIECES_BODY(forward_of_pieces, piece_forward)

static spops_status run_group_forward(spops_context *ctx, const spops_group_norm_args *args)
{
    const group_work work = group_work_of(ctx, args);
    spops_parallel_for(work.team, work.num_pieces * work.num_strips, 0, forward_of_pieces, &work);
    return SPOPS_STATUS_OK;
}

// h, the normalised values of part of a row, and g, the gradient of what the activation takes.
static void load_group_gradient(const spops_group_norm_args *args, const strip_params *s,
                                int64_t row, int64_t col, int n, real *h, real *g)
{
    real y[STRIP];

    load_row(args->x, row, col, n, h);
    load_row(args->grad_out, row, col, n, g);
    for (int c = 0; c < n; ++c)
        h[c] = (h[c] - s->mean[c]) * s->rstd[c];
    if (args->activated.activation == SPOPS_ACTIVATION_NONE) return;
    for (int c = 0; c < n; ++c)
        y[c] = h[c] * s->gamma[c] + s->beta[c];
    differentiate(args, n, y, g);
}

// Sums over the rows of a piece of g and of g h; 0 of a piece without rows.
static void piece_sums(const spops_group_norm_args *args, const spops_group_piece *piece,
                       int64_t number, int64_t col)
{
    const int n = group_strip_cols(args, col);
    real sum[STRIP] = {0}, product[STRIP] = {0}, h[STRIP], g[STRIP];
    strip_params s;

    if (piece->begin < piece->end) read_group_params(args, piece->sample, col, n, &s);
    for (int64_t at = piece->begin; at < piece->end; ++at) {
        load_group_gradient(args, &s, group_row(args, at), col, n, h, g);
        for (int c = 0; c < n; ++c) {
            sum[c] += g[c];
            product[c] += g[c] * h[c];
        }
    }
    memcpy(group_partial(args, number, 0, col), sum, (size_t)n * sizeof *sum);
    memcpy(group_partial(args, number, 1, col), product, (size_t)n * sizeof *product);
}

// Of sample and group number i: means of q and of q h.
static void merge_group_sums(const spops_group_norm_args *args, int64_t i)
{
    const int64_t sample = i / args->groups, group = i % args->groups;
    const int64_t width = args->x.cols / args->groups, first = group * width;
    const int32_t *offsets = args->samples.offsets;
    const int64_t rows = offsets[sample + 1] - offsets[sample];
    real *to = of(args->scratch.sums) + 2 * sample * args->groups + group;
    real sum = 0.0f, product = 0.0f;
    int64_t piece = spops_group_first_piece(offsets, sample);

    for (int64_t at = 0; at < rows; at += SPOPS_GROUP_PIECE_ROWS, ++piece)
        for (int64_t c = first; c < first + width; ++c) {
            const real gamma = args->gamma != NULL ? of(args->gamma)[c] : 1.0f;
            sum += gamma * *group_partial(args, piece, 0, c);
            product += gamma * *group_partial(args, piece, 1, c);
        }
    const real share = rows > 0 ? 1.0f / ((real)rows * (real)width) : 0.0f;
    to[0] = sum * share;
    to[args->groups] = product * share;
}

static void group_sums(const void *work, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; ++i)
        merge_group_sums(((const group_work *)work)->args, i);
}

// Of column c, over the pieces of all samples in order.
static void column_sums(const void *work, int64_t begin, int64_t end)
{
    const group_work *w = (const group_work *)work;
    for (int64_t c = begin; c < end; ++c) {
        real sum = 0.0f, product = 0.0f;
        for (int64_t piece = 0; piece < w->num_pieces; ++piece) {
            sum += *group_partial(w->args, piece, 0, c);
            product += *group_partial(w->args, piece, 1, c);
        }
        if (w->args->grad_beta != NULL) of(w->args->grad_beta)[c] = sum;
        if (w->args->grad_gamma != NULL) of(w->args->grad_gamma)[c] = product;
    }
}

static void piece_gradient(const spops_group_norm_args *args, const spops_group_piece *piece,
                           int64_t number, int64_t col)
{
    const int n = group_strip_cols(args, col);
    const int64_t width = args->x.cols / args->groups;
    const real *sums = of(args->scratch.sums) + 2 * piece->sample * args->groups;
    strip_params s;
    real h[STRIP], g[STRIP];

    (void)number;
    if (piece->begin == piece->end) return;
    read_group_params(args, piece->sample, col, n, &s);
    for (int64_t at = piece->begin; at < piece->end; ++at) {
        const int64_t row = group_row(args, at);
        load_group_gradient(args, &s, row, col, n, h, g);
        for (int c = 0; c < n; ++c)
            g[c] *= s.gamma[c];
        if (!args->fixed_statistics)
            for (int c = 0; c < n; ++c) {
                const int64_t group = (col + c) / width;
                g[c] -= sums[group] + h[c] * sums[args->groups + group];
            }
        for (int c = 0; c < n; ++c)
            g[c] *= s.rstd[c];
        store_row(args->grad_x, row, col, n, g);
    }
}

DEFINE_PIECES_BODY(sums_of_pieces, piece_sums)
DEFINE_PIECES_BODY(gradient_of_pieces, piece_gradient)

static spops_status run_group_backward(spops_context *ctx, const spops_group_norm_args *args)
{
    const group_work work = group_work_of(ctx, args);
    const int64_t strips = args->samples.num == 0 ? 0 : work.num_pieces * work.num_strips;

    spops_parallel_for(work.team, strips, 0, sums_of_pieces, &work);
    spops_parallel_for(work.team, args->samples.num * args->groups, 0, group_sums, &work);
    spops_parallel_for(work.team, args->x.cols, 0, column_sums, &work);
    spops_parallel_for(work.team, strips, 0, gradient_of_pieces, &work);
    return SPOPS_STATUS_OK;
}

#endif
