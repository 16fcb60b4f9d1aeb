// SPDX-License-Identifier: Apache-2.0
/* A tape in FP64: a function of each kind of step, forward and backward. */
#include "networks/tape_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct reference {
    const tape *t;
    const reference_relations *r;
    int evaluates;
    double *parameters, *gradients; /* [num_elements]; gradients NULL: forward alone */
    double *values[TAPE_VALUES], *grads[TAPE_VALUES];
    double *mean[TAPE_STEPS], *var[TAPE_STEPS]; /* of batch norms */
    int *winners[TAPE_STEPS];                   /* of pools: [coarser rows][cols], the finer row */
} reference;

void reference_relations_free(reference_relations *r)
{
    for (int i = 0; i < TAPE_PLANS; ++i) {
        free(r->tables[i]);
        free(r->parents[i]);
        free(r->compared[i]);
        free(r->patches[i].query_offsets);
        free(r->patches[i].query_rows);
        free(r->patches[i].key_offsets);
        free(r->patches[i].key_rows);
    }
    memset(r, 0, sizeof *r);
}

static int rows_of(const reference *f, int value)
{
    return f->r->rows[f->t->values[value].level];
}

static int cols_of(const reference *f, int value)
{
    return f->t->values[value].cols;
}

static double *row_of(const reference *f, double *const *of, int value, int row)
{
    return of[value] + (size_t)row * (size_t)cols_of(f, value);
}

/* Of a parameter, or of its gradient; NULL for one that is not there. */
static double *parameter_of(const reference *f, double *of, int parameter)
{
    return parameter < 0 || of == NULL ? NULL : of + f->t->parameters[parameter].offset;
}

/* ---- Products ---------------------------------------------------------------------------------- */

/* The input row of tap k of output row i. */
static int joined(const reference *f, const tape_step *s, int i, int k)
{
    return s->kind == TAPE_LINEAR ? i : f->r->tables[s->plan][i * s->taps + k];
}

static int taps_of(const tape_step *s)
{
    return s->kind == TAPE_LINEAR ? 1 : s->taps;
}

static void forward_product(const reference *f, const tape_step *s)
{
    const double *w = parameter_of(f, f->parameters, s->weight);
    const double *bias = parameter_of(f, f->parameters, s->bias);
    const int in = cols_of(f, s->in), cols = cols_of(f, s->out);

    for (int i = 0; i < rows_of(f, s->out); ++i) {
        double *out = row_of(f, f->values, s->out, i);
        for (int o = 0; o < cols; ++o)
            out[o] = bias == NULL ? 0 : bias[o];
        for (int k = 0; k < taps_of(s); ++k) {
            const int j = joined(f, s, i, k);
            const double *x = j < 0 ? NULL : row_of(f, f->values, s->in, j);
            for (int c = 0; j >= 0 && c < in; ++c) {
                const double *to = w + ((size_t)k * (size_t)in + (size_t)c) * (size_t)cols;
                for (int o = 0; o < cols; ++o)
                    out[o] += x[c] * to[o];
            }
        }
    }
}

static void backward_product(const reference *f, const tape_step *s)
{
    const double *w = parameter_of(f, f->parameters, s->weight);
    double *grad_w = parameter_of(f, f->gradients, s->weight);
    double *grad_bias = parameter_of(f, f->gradients, s->bias);
    const int in = cols_of(f, s->in), cols = cols_of(f, s->out);

    for (int i = 0; i < rows_of(f, s->out); ++i) {
        const double *g = row_of(f, f->grads, s->out, i);
        for (int o = 0; o < cols && grad_bias != NULL; ++o)
            grad_bias[o] += g[o];
        for (int k = 0; k < taps_of(s); ++k) {
            const int j = joined(f, s, i, k);
            if (j < 0) continue;
            const double *x = row_of(f, f->values, s->in, j);
            double *grad_x = row_of(f, f->grads, s->in, j);
            for (int c = 0; c < in; ++c) {
                const size_t at = ((size_t)k * (size_t)in + (size_t)c) * (size_t)cols;
                double sum = 0;
                for (int o = 0; o < cols; ++o) {
                    sum += g[o] * w[at + (size_t)o];
                    grad_w[at + (size_t)o] += x[c] * g[o];
                }
                grad_x[c] += sum;
            }
        }
    }
}

/* ---- Activations ------------------------------------------------------------------------------- */

static double activated(spops_activation a, double y)
{
    switch (a) {
    case SPOPS_ACTIVATION_RELU: return y > 0 ? y : 0;
    case SPOPS_ACTIVATION_GELU: return y * (1 + erf(y * 0.70710678118654752)) / 2;
    default: return y;
    }
}

static double slope_of(spops_activation a, double y)
{
    switch (a) {
    case SPOPS_ACTIVATION_RELU: return y > 0;
    case SPOPS_ACTIVATION_GELU:
        return (1 + erf(y * 0.70710678118654752)) / 2 + y * exp(-y * y / 2) * 0.39894228040143268;
    default: return 1;
    }
}

/* ---- Norms ------------------------------------------------------------------------------------- */

static void moments(const double *x, int n, int step, double *mean, double *var)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < n; ++i)
        sum += x[(size_t)i * (size_t)step];
    *mean = sum / n;
    for (int i = 0; i < n; ++i)
        squares += (x[(size_t)i * (size_t)step] - *mean) * (x[(size_t)i * (size_t)step] - *mean);
    *var = squares / n;
}

/* Mean and 1 / deviation that an element is normalised with. */
static void norm_of(const reference *f, const tape_step *s, int row, int col, double *mean,
                    double *rstd)
{
    const int step = (int)(s - f->t->steps);
    double var;
    if (s->kind == TAPE_LAYERNORM) {
        moments(row_of(f, f->values, s->in, row), cols_of(f, s->in), 1, mean, &var);
    } else if (f->evaluates) {
        *mean = parameter_of(f, f->parameters, s->scale)[col];
        var = parameter_of(f, f->parameters, s->shift)[col];
    } else {
        *mean = f->mean[step][col];
        var = f->var[step][col];
    }
    *rstd = 1 / sqrt(var + (double)s->epsilon);
}

static void forward_norm(reference *f, const tape_step *s)
{
    const int step = (int)(s - f->t->steps), rows = rows_of(f, s->in), cols = cols_of(f, s->in);
    const double *gamma = parameter_of(f, f->parameters, s->weight);
    const double *beta = parameter_of(f, f->parameters, s->bias);

    for (int c = 0; c < cols && s->kind == TAPE_BATCHNORM; ++c)
        moments(f->values[s->in] + c, rows, cols, &f->mean[step][c], &f->var[step][c]);
    for (int i = 0; i < rows; ++i) {
        const double *x = row_of(f, f->values, s->in, i);
        double *out = row_of(f, f->values, s->out, i), mean = 0, rstd = 0;
        for (int c = 0; c < cols; ++c) {
            if (c == 0 || s->kind == TAPE_BATCHNORM) norm_of(f, s, i, c, &mean, &rstd);
            out[c] = activated(s->activation, (x[c] - mean) * rstd * gamma[c] + beta[c]);
        }
    }
}

/* What a line of values, which share mean and deviation, get back: a row of a layer norm, a column of a
   batch norm. */
static void backward_line(const double *q, const double *h, int n, double rstd, double *grad)
{
    double mean = 0, slope = 0;
    for (int i = 0; i < n; ++i) {
        mean += q[i] / n;
        slope += q[i] * h[i] / n;
    }
    for (int i = 0; i < n; ++i)
        grad[i] = (q[i] - mean - h[i] * slope) * rstd;
}

static int backward_norm(const reference *f, const tape_step *s)
{
    const int rows = rows_of(f, s->in), cols = cols_of(f, s->in),
              by_row = s->kind == TAPE_LAYERNORM;
    const int lines = by_row ? rows : cols, n = by_row ? cols : rows;
    const double *gamma = parameter_of(f, f->parameters, s->weight);
    const double *beta = parameter_of(f, f->parameters, s->bias);
    double *grad_gamma = parameter_of(f, f->gradients, s->weight);
    double *grad_beta = parameter_of(f, f->gradients, s->bias);
    double *all = (double *)malloc((size_t)n * 3 * sizeof *all + 1), *h = all + n,
           *back = all + 2 * n;

    for (int line = 0; line < lines && all != NULL; ++line) {
        double mean = 0, rstd = 0;
        norm_of(f, s, by_row ? line : 0, by_row ? 0 : line, &mean, &rstd);
        for (int i = 0; i < n; ++i) {
            const int row = by_row ? line : i, c = by_row ? i : line;
            h[i] = (row_of(f, f->values, s->in, row)[c] - mean) * rstd;
            const double g = row_of(f, f->grads, s->out, row)[c] *
                             slope_of(s->activation, h[i] * gamma[c] + beta[c]);
            grad_gamma[c] += g * h[i];
            grad_beta[c] += g;
            all[i] = g * gamma[c];
        }
        backward_line(all, h, n, rstd, back);
        for (int i = 0; i < n; ++i)
            row_of(f, f->grads, s->in, by_row ? line : i)[by_row ? i : line] += back[i];
    }
    free(all);
    return all == NULL;
}

/* ---- Attention --------------------------------------------------------------------------------- */

typedef struct heads_of {
    const double *q, *k, *v;
    double *grad_q, *grad_k, *grad_v;
} heads_of;

/* Columns of a head in a row of queries and a row of keys. */
static heads_of head_at(const reference *f, const tape_step *s, int query, int key, int h)
{
    const int cols = cols_of(f, s->out), first = h * (cols / s->heads);
    const int from = s->other < 0 ? s->in : s->other, apart = s->other < 0 ? 2 * cols : 0;
    heads_of a = {row_of(f, f->values, s->in, query) + first,
                  row_of(f, f->values, s->in, key) + cols + first,
                  row_of(f, f->values, from, key) + apart + first,
                  NULL,
                  NULL,
                  NULL};
    if (f->gradients == NULL) return a;
    a.grad_q = row_of(f, f->grads, s->in, query) + first;
    a.grad_k = row_of(f, f->grads, s->in, key) + cols + first;
    a.grad_v = row_of(f, f->grads, from, key) + apart + first;
    return a;
}

/* The weights of a query's keys, and what they give. */
static void attend(const reference *f, const tape_step *s, const int *keys, int n, int query, int h,
                   double *p)
{
    const int dim = cols_of(f, s->out) / s->heads;
    double *out = row_of(f, f->values, s->out, query) + h * dim, most = -INFINITY, sum = 0;

    for (int j = 0; j < n; ++j) {
        const heads_of a = head_at(f, s, query, keys[j], h);
        p[j] = 0;
        for (int c = 0; c < dim; ++c)
            p[j] += a.q[c] * a.k[c] / sqrt((double)dim);
        most = fmax(most, p[j]);
    }
    for (int j = 0; j < n; ++j)
        sum += p[j] = exp(p[j] - most);
    for (int c = 0; c < dim; ++c)
        out[c] = 0;
    for (int j = 0; j < n; ++j) {
        const heads_of a = head_at(f, s, query, keys[j], h);
        p[j] /= sum;
        for (int c = 0; c < dim; ++c)
            out[c] += p[j] * a.v[c];
    }
}

static void attend_backward(const reference *f, const tape_step *s, const int *keys, int n,
                            int query, int h, const double *p)
{
    const int dim = cols_of(f, s->out) / s->heads;
    const double *g = row_of(f, f->grads, s->out, query) + h * dim;
    const double *out = row_of(f, f->values, s->out, query) + h * dim;
    double all = 0;

    for (int c = 0; c < dim; ++c)
        all += g[c] * out[c];
    for (int j = 0; j < n; ++j) {
        const heads_of a = head_at(f, s, query, keys[j], h);
        double slope = -all;
        for (int c = 0; c < dim; ++c) {
            slope += g[c] * a.v[c];
            a.grad_v[c] += p[j] * g[c];
        }
        slope *= p[j] / sqrt((double)dim);
        for (int c = 0; c < dim; ++c) {
            a.grad_q[c] += slope * a.k[c];
            a.grad_k[c] += slope * a.q[c];
        }
    }
}

static int run_attention(const reference *f, const tape_step *s, int backward)
{
    const reference_patches *patches = &f->r->patches[s->plan];
    double *p = (double *)malloc((size_t)(2 * rows_of(f, s->in) + 1) * sizeof *p);

    for (int i = 0; i < patches->num && p != NULL; ++i) {
        const int *keys = patches->key_rows + patches->key_offsets[i];
        const int n = patches->key_offsets[i + 1] - patches->key_offsets[i];
        for (int e = patches->query_offsets[i]; e < patches->query_offsets[i + 1]; ++e)
            for (int h = 0; h < s->heads; ++h) {
                attend(f, s, keys, n, patches->query_rows[e], h, p);
                if (backward) attend_backward(f, s, keys, n, patches->query_rows[e], h, p);
            }
    }
    free(p);
    return p == NULL;
}

/* ---- Pools ------------------------------------------------------------------------------------- */

/* Of equal ones the first; of what the tape itself compared, where that is known. */
static void forward_pool(const reference *f, const tape_step *s)
{
    const int cols = cols_of(f, s->in), step = (int)(s - f->t->steps);
    const float *compared = f->r->compared[s->plan];
    int *winners = f->winners[step];

    for (int i = 0; i < rows_of(f, s->out) * cols; ++i)
        winners[i] = -1;
    for (int j = 0; j < rows_of(f, s->in); ++j)
        for (int c = 0; c < cols; ++c) {
            const int at = f->r->parents[s->plan][j] * cols + c, best = winners[at];
            const double *x = f->values[s->in];
            const int wins =
                best < 0 || (compared != NULL ? compared[j * cols + c] > compared[best * cols + c]
                                              : x[j * cols + c] > x[best * cols + c]);
            if (!wins) continue;
            winners[at] = j;
            f->values[s->out][at] = x[j * cols + c];
        }
}

static void backward_pool(const reference *f, const tape_step *s)
{
    const int cols = cols_of(f, s->in), *winners = f->winners[s - f->t->steps];
    for (int i = 0; i < rows_of(f, s->out) * cols; ++i)
        f->grads[s->in][winners[i] * cols + i % cols] += f->grads[s->out][i];
}

static void run_unpool(const reference *f, const tape_step *s, int backward)
{
    for (int j = 0; j < rows_of(f, s->out); ++j) {
        const int i = f->r->parents[s->plan][j];
        for (int c = 0; c < cols_of(f, s->in); ++c)
            if (backward)
                row_of(f, f->grads, s->in, i)[c] += row_of(f, f->grads, s->out, j)[c];
            else
                row_of(f, f->values, s->out, j)[c] = row_of(f, f->values, s->in, i)[c];
    }
}

/* ---- All steps --------------------------------------------------------------------------------- */

static int forward_step(reference *f, const tape_step *s)
{
    const int n = rows_of(f, s->out) * cols_of(f, s->out);
    int failed = 0;

    switch (s->kind) {
    case TAPE_CONV:
    case TAPE_LINEAR: forward_product(f, s); break;
    case TAPE_ATTENTION: failed = run_attention(f, s, 0); break;
    case TAPE_LAYERNORM:
    case TAPE_BATCHNORM: forward_norm(f, s); break;
    case TAPE_ACTIVATION:
        for (int i = 0; i < n; ++i)
            f->values[s->out][i] = activated(s->activation, f->values[s->in][i]);
        break;
    case TAPE_POOL: forward_pool(f, s); break;
    default: run_unpool(f, s, 0); break;
    }
    for (int i = 0; i < n && s->residual >= 0; ++i)
        f->values[s->out][i] += f->values[s->residual][i];
    return failed;
}

static int backward_step(reference *f, const tape_step *s)
{
    const int n = rows_of(f, s->out) * cols_of(f, s->out);

    for (int i = 0; i < n && s->residual >= 0; ++i)
        f->grads[s->residual][i] += f->grads[s->out][i];
    switch (s->kind) {
    case TAPE_CONV:
    case TAPE_LINEAR: backward_product(f, s); break;
    case TAPE_ATTENTION: return run_attention(f, s, 1);
    case TAPE_LAYERNORM:
    case TAPE_BATCHNORM: return backward_norm(f, s);
    case TAPE_ACTIVATION:
        for (int i = 0; i < n; ++i)
            f->grads[s->in][i] +=
                f->grads[s->out][i] * slope_of(s->activation, f->values[s->in][i]);
        break;
    case TAPE_POOL: backward_pool(f, s); break;
    default: run_unpool(f, s, 1); break;
    }
    return 0;
}

/* Matrices as their dtype has them, vectors as they are. */
static int read_parameters(reference *f, const float *parameters)
{
    const size_t n = (size_t)f->t->num_elements;
    float *rounded = (float *)malloc(n * sizeof *rounded);
    void *narrow = malloc(n * sizeof *rounded);
    const int failed =
        rounded == NULL || narrow == NULL || f->parameters == NULL ||
        device_convert(f->t->d, SPOPS_DTYPE_F32, parameters, f->t->dtype, narrow, n) ||
        device_convert(f->t->d, f->t->dtype, narrow, SPOPS_DTYPE_F32, rounded, n);

    for (int i = 0; i < f->t->num_parameters && !failed; ++i) {
        const tape_parameter *p = &f->t->parameters[i];
        for (int64_t k = 0; k < p->rows * p->cols; ++k)
            f->parameters[p->offset + k] =
                (double)(p->rows > 1 ? rounded[p->offset + k] : parameters[p->offset + k]);
    }
    free(rounded);
    free(narrow);
    return failed;
}

static int alloc_values(reference *f, double *const *inputs)
{
    for (int i = 0; i < f->t->num_values; ++i) {
        const size_t n = (size_t)rows_of(f, i) * (size_t)cols_of(f, i);
        f->values[i] = (double *)calloc(n + 1, sizeof(double));
        f->grads[i] = (double *)calloc(n + 1, sizeof(double));
        if (f->values[i] == NULL || f->grads[i] == NULL) return 1;
        if (f->t->values[i].is_input) memcpy(f->values[i], inputs[i], n * sizeof(double));
    }
    for (int i = 0; i < f->t->num_steps; ++i) {
        const size_t n = (size_t)cols_of(f, f->t->steps[i].in);
        f->mean[i] = (double *)calloc(n, sizeof(double));
        f->var[i] = (double *)calloc(n, sizeof(double));
        if (f->mean[i] == NULL || f->var[i] == NULL) return 1;
        if (f->t->steps[i].kind != TAPE_POOL) continue;
        f->winners[i] = (int *)calloc((size_t)rows_of(f, f->t->steps[i].out) * n + 1, sizeof(int));
        if (f->winners[i] == NULL) return 1;
    }
    return 0;
}

int reference_run(const tape *t, const float *parameters, const reference_relations *r,
                  double *const *inputs, int evaluates, double *output, const double *target,
                  double *gradients)
{
    static reference f; /* large */
    int failed;

    memset(&f, 0, sizeof f);
    f.t = t;
    f.r = r;
    f.evaluates = evaluates;
    f.parameters = (double *)calloc((size_t)t->num_elements, sizeof *f.parameters);
    failed = read_parameters(&f, parameters) || alloc_values(&f, inputs);
    for (int i = 0; i < t->num_steps && !failed; ++i)
        failed = forward_step(&f, &t->steps[i]);
    const int n = rows_of(&f, t->output) * cols_of(&f, t->output);
    for (int i = 0; i < n && !failed; ++i)
        output[i] = f.values[t->output][i];
    if (target != NULL && !failed) {
        f.gradients = gradients;
        memset(gradients, 0, (size_t)t->num_elements * sizeof *gradients);
        for (int i = 0; i < n; ++i)
            f.grads[t->output][i] = output[i] - target[i];
        for (int i = t->num_steps; i-- > 0 && !failed;)
            failed = backward_step(&f, &t->steps[i]);
    }
    for (int i = 0; i < TAPE_VALUES; ++i) {
        free(f.values[i]);
        free(f.grads[i]);
    }
    for (int i = 0; i < TAPE_STEPS; ++i) {
        free(f.mean[i]);
        free(f.var[i]);
        free(f.winners[i]);
    }
    free(f.parameters);
    return failed;
}

/* ---- Comparison -------------------------------------------------------------------------------- */

static void add_squares(const float *found, const double *expected, int64_t n, double *apart,
                        double *size)
{
    for (int64_t i = 0; i < n; ++i) {
        const double difference = (double)found[i] - expected[i];
        *apart += difference * difference;
        *size += expected[i] * expected[i];
    }
}

double reference_distance(const float *found, const double *expected, int64_t n)
{
    double apart = 0, size = 0;
    add_squares(found, expected, n, &apart, &size);
    return sqrt(apart / size); /* NaN stays NaN */
}

double reference_worst_gradient(const tape *t, const float *found, const double *expected,
                                const char **name)
{
    double worst = 0;
    for (int i = 0; i < t->num_steps; ++i) {
        const tape_step *s = &t->steps[i];
        const int both[2] = {s->weight, s->bias};
        double apart = 0, size = 0;
        if (s->weight < 0) continue;
        for (int k = 0; k < 2; ++k) {
            const tape_parameter *p = &t->parameters[both[k]];
            if (both[k] >= 0)
                add_squares(found + p->offset, expected + p->offset, p->rows * p->cols, &apart,
                            &size);
        }
        if (!(sqrt(apart / size) <= worst)) {
            worst = sqrt(apart / size);
            *name = s->name;
        }
    }
    return worst;
}

float *reference_download(const tape *t, spops_matrix m, int64_t rows)
{
    const size_t n = (size_t)(rows * m.cols), bytes = n * spops_dtype_bytes(m.dtype);
    float *values = (float *)malloc(n * sizeof *values + 1);
    void *narrow = malloc(bytes + 1);
    if (values == NULL || narrow == NULL || device_download(t->d, narrow, m.data, bytes) ||
        device_convert(t->d, m.dtype, narrow, SPOPS_DTYPE_F32, values, n)) {
        free(values);
        values = NULL;
    }
    free(narrow);
    return values;
}
