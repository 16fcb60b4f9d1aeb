// SPDX-License-Identifier: Apache-2.0
/* A tape's steps, and its parameters in host memory. */
#include "networks/tape.h"
#include "networks/parameters.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const tape_kind_names[TAPE_KINDS] = {
    "conv", "linear", "attention", "layernorm", "batchnorm", "activation", "pool", "unpool"};

void tape_start(tape *t, const device *d, spops_dtype dtype, int training)
{
    memset(t, 0, sizeof *t);
    t->d = d;
    t->dtype = dtype;
    t->training = training;
}

/* ---- Values, parameters, steps ----------------------------------------------------------------- */

static int add_value(tape *t, int level, int cols)
{
    tape_value *v = &t->values[t->num_values];
    if (t->num_values + 1 >= TAPE_VALUES) abort(); /* a mistake of the network's file */
    v->level = level;
    v->cols = cols;
    v->grad_of = t->num_values;
    v->last_use = -1;
    return t->num_values++;
}

int tape_add_input(tape *t, int level, int cols)
{
    const int value = add_value(t, level, cols);
    t->values[value].is_input = 1;
    return value;
}

static int add_parameter(tape *t, const char *step, const char *what, int taps, int in, int cols,
                         float low, float high)
{
    tape_parameter *p = &t->parameters[t->num_parameters];
    if (t->num_parameters + 1 >= TAPE_PARAMETERS) abort();
    snprintf(p->name, sizeof p->name, "%s.%s", step, what);
    p->offset = t->num_elements;
    p->taps = taps;
    p->in = p->file_in = in;
    p->rows = taps == 0 ? 1 : (int64_t)taps * in;
    p->cols = p->file_cols = cols;
    p->low = low;
    p->high = high;
    t->num_elements += (p->rows * cols + 63) / 64 * 64; /* each on a line of memory of its own */
    return t->num_parameters++;
}

static int add_vector(tape *t, const char *step, const char *what, int cols, float low, float high)
{
    return add_parameter(t, step, what, 0, 1, cols, low, high);
}

void tape_pad_last(tape *t, int file_in, int file_cols)
{
    const tape_step *s = &t->steps[t->num_steps - 1];
    if (file_in > 0) t->parameters[s->weight].file_in = file_in;
    if (file_cols <= 0) return;
    t->parameters[s->weight].file_cols = file_cols;
    if (s->bias >= 0) t->parameters[s->bias].file_cols = file_cols;
}

static tape_step *add_step(tape *t, tape_kind kind, const char *name, int stage, int in,
                           int residual, int cols)
{
    tape_step *s = &t->steps[t->num_steps];
    const tape_step none = {
        .other = -1, .plan = -1, .weight = -1, .bias = -1, .scale = -1, .shift = -1};
    if (t->num_steps + 1 >= TAPE_STEPS) abort();
    *s = none;
    s->kind = kind;
    snprintf(s->name, sizeof s->name, "%s", name);
    s->stage = stage;
    s->in = in;
    s->residual = residual;
    s->out = add_value(t, t->values[in].level, cols);
    t->values[in].last_use = t->num_steps;
    if (residual >= 0) t->values[residual].last_use = t->num_steps;
    t->output = s->out;
    ++t->num_steps;
    return s;
}

/* Uniform, as torch draws a layer of `inputs` inputs. */
static float spread_of(int inputs)
{
    return 1.0f / sqrtf((float)inputs);
}

int tape_linear(tape *t, const char *name, int stage, int in, int cols, int residual,
                spops_activation activation)
{
    const int from = t->values[in].cols;
    const int inner = t->training ? SPOPS_ACTIVATION_NONE : (int)activation;
    const float spread = spread_of(from);
    tape_step *s = add_step(t, TAPE_LINEAR, name, stage, in, residual, cols);
    s->weight = add_parameter(t, name, "weight", 1, from, cols, -spread, spread);
    s->bias = add_vector(t, name, "bias", cols, -spread, spread);
    s->activation = (spops_activation)inner;
    if (inner == (int)activation) return s->out;
    return tape_activation(t, name, stage, s->out, activation, -1);
}

int tape_conv(tape *t, const char *name, int stage, int in, int cols, int plan, int taps,
              int has_bias)
{
    const int from = t->values[in].cols;
    const float spread =
        spread_of(from * (taps > 27 ? 20 : 6)); /* taps of a surface that are there */
    tape_step *s = add_step(t, TAPE_CONV, name, stage, in, -1, cols);
    s->plan = plan;
    s->taps = taps;
    s->weight = add_parameter(t, name, "weight", taps, from, cols, -spread, spread);
    if (has_bias) s->bias = add_vector(t, name, "bias", cols, -spread, spread);
    return s->out;
}

int tape_layernorm(tape *t, const char *name, int stage, int in, int residual)
{
    const int cols = t->values[in].cols;
    tape_step *s = add_step(t, TAPE_LAYERNORM, name, stage, in, residual, cols);
    const tape_step *before = &t->steps[t->num_steps > 1 ? t->num_steps - 2 : 0];
    s->weight = add_vector(t, name, "weight", cols, 0.8f, 1.2f);
    s->bias = add_vector(t, name, "bias", cols, -0.1f, 0.1f);
    s->epsilon = 1e-5f;
    s->is_of_sum = t->num_steps > 1 && residual < 0 && before->kind == TAPE_LAYERNORM &&
                   before->residual >= 0 && before->out == in;
    /* What is normalised lies where the branch was, or where nobody else reads or writes. */
    if (s->is_of_sum && !t->training) t->values[before->residual].last_use = t->num_steps - 1;
    return s->out;
}

int tape_batchnorm(tape *t, const char *name, int stage, int in, spops_activation activation,
                   int residual, float epsilon)
{
    const int cols = t->values[in].cols;
    const int gamma = add_vector(t, name, "weight", cols, 0.8f, 1.2f);
    const int beta = add_vector(t, name, "bias", cols, -0.1f, 0.1f);
    const int mean = add_vector(t, name, "running_mean", cols, -0.1f, 0.1f);
    const int var = add_vector(t, name, "running_var", cols, 0.7f, 1.3f);
    tape_step *before = &t->steps[t->num_steps - 1];

    if (!t->training && before->out == in &&
        (before->kind == TAPE_LINEAR || before->kind == TAPE_CONV)) {
        before->scale = add_vector(t, name, "scale", cols, 0, 0);
        before->shift = add_vector(t, name, "shift", cols, 0, 0);
        before->epsilon = epsilon;
        t->parameters[before->scale].is_folded = t->parameters[before->shift].is_folded = 1;
        if (residual < 0) before->activation = activation;
        return residual < 0 ? in : tape_activation(t, name, stage, in, activation, residual);
    }
    tape_step *s = add_step(t, TAPE_BATCHNORM, name, stage, in, residual, cols);
    s->weight = gamma;
    s->bias = beta;
    s->scale = mean;
    s->shift = var;
    s->epsilon = epsilon;
    s->activation = activation;
    return s->out;
}

int tape_activation(tape *t, const char *name, int stage, int in, spops_activation activation,
                    int residual)
{
    tape_step *s = add_step(t, TAPE_ACTIVATION, name, stage, in, residual, t->values[in].cols);
    s->activation = activation;
    return s->out;
}

int tape_attention(tape *t, const char *name, int stage, int qkv, int v, int plan, int heads)
{
    const int cols = v >= 0 ? t->values[v].cols : t->values[qkv].cols / 3;
    tape_step *s = add_step(t, TAPE_ATTENTION, name, stage, qkv, -1, cols);
    s->other = v;
    s->plan = plan;
    s->heads = heads;
    if (v >= 0) t->values[v].last_use = t->num_steps - 1;
    return s->out;
}

int tape_pool(tape *t, const char *name, int stage, int in, int plan)
{
    tape_step *s = add_step(t, TAPE_POOL, name, stage, in, -1, t->values[in].cols);
    s->plan = plan;
    t->values[s->out].level = t->values[in].level + 1;
    return s->out;
}

int tape_unpool(tape *t, const char *name, int stage, int in, int level, int plan)
{
    tape_step *s = add_step(t, TAPE_UNPOOL, name, stage, in, -1, t->values[in].cols);
    s->plan = plan;
    t->values[s->out].level = level;
    return s->out;
}

int tape_conv_linear(tape *t, const char *name, int stage, int in, int plan, int taps)
{
    const int cols = t->values[in].cols;
    char first[TAPE_NAME], second[TAPE_NAME];
    int w;

    snprintf(first, sizeof first, "%s.0", name);
    snprintf(second, sizeof second, "%s.1", name);
    if (t->training) {
        const int middle = tape_conv(t, first, stage, in, cols, plan, taps, 1);
        return tape_linear(t, second, stage, middle, cols, -1, SPOPS_ACTIVATION_NONE);
    }
    /* The parameters of both, and those of one convolution after them. */
    const float spread = spread_of(cols), wide = spread_of(cols * 6);
    tape_step *s = add_step(t, TAPE_CONV, name, stage, in, -1, cols);
    s->plan = plan;
    s->taps = taps;
    add_parameter(t, first, "weight", taps, cols, cols, -wide, wide);
    add_vector(t, first, "bias", cols, -wide, wide);
    add_parameter(t, second, "weight", 1, cols, cols, -spread, spread);
    w = add_vector(t, second, "bias", cols, -spread, spread);
    s->weight = add_parameter(t, name, "weight", taps, cols, cols, 0, 0);
    s->bias = add_vector(t, name, "bias", cols, 0, 0);
    t->parameters[w + 1].is_folded = t->parameters[w + 2].is_folded = 1;
    return s->out;
}

/* ---- Parameters -------------------------------------------------------------------------------- */

static uint64_t seed_of(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *name != 0; ++name)
        h = (h ^ (uint64_t)(unsigned char)*name) * 0x100000001b3u;
    return h;
}

int tape_draw(const tape *t, float *parameters)
{
    memset(parameters, 0, (size_t)t->num_elements * sizeof *parameters);
    for (int i = 0; i < t->num_parameters; ++i) {
        const tape_parameter *p = &t->parameters[i];
        const uint64_t seed = seed_of(p->name);
        for (int64_t k = 0; k < p->rows * p->cols && !p->is_folded; ++k) {
            if (k % p->cols >= p->file_cols || k / p->cols % p->in >= p->file_in) continue;
            uint64_t z = seed + (uint64_t)(k + 1) * 0x9e3779b97f4a7c15u; /* SplitMix64 */
            z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
            z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
            parameters[p->offset + k] =
                p->low + (p->high - p->low) * ((float)((z ^ (z >> 31)) >> 40) * 0x1p-24f);
        }
    }
    return tape_fold(t, parameters);
}

/* gamma (x - mean) / sqrt(var + epsilon) + beta = x scale + shift; the four stand before scale. */
static void fold_norm(const tape *t, const tape_step *s, float *all)
{
    const tape_parameter *p = &t->parameters[s->scale];
    const float *gamma = all + p[-4].offset, *beta = all + p[-3].offset;
    const float *mean = all + p[-2].offset, *var = all + p[-1].offset;
    for (int64_t c = 0; c < p->cols; ++c) {
        const float scale = gamma[c] / sqrtf(var[c] + s->epsilon);
        all[p->offset + c] = scale;
        all[p[1].offset + c] = beta[c] - mean[c] * scale;
    }
}

/* (sum over taps of x w + b) v + c = sum over taps of x (w v) + (b v + c); w, b, v, c stand before. */
static int fold_linear(const tape *t, const tape_step *s, float *all)
{
    const tape_parameter *p = &t->parameters[s->weight];
    spops_context *host = t->d->host;
    const spops_dtype f32 = SPOPS_DTYPE_F32;
    const spops_matrix w = spops_matrix_dense(all + p[-4].offset, p->rows, p->cols, f32);
    const spops_matrix b = spops_matrix_dense(all + p[-3].offset, 1, p->cols, f32);
    const spops_matrix v = spops_matrix_dense(all + p[-2].offset, p->cols, p->cols, f32);
    const spops_matrix out = spops_matrix_dense(all + p->offset, p->rows, p->cols, f32);
    const spops_matrix bias = spops_matrix_dense(all + p[1].offset, 1, p->cols, f32);
    spops_conv_layer layer = spops_conv_layer_default();

    layer.bias = all + p[-1].offset;
    if (spops_linear_execute(host, w, v, NULL, out) == SPOPS_STATUS_OK &&
        spops_linear_execute(host, b, v, &layer, bias) == SPOPS_STATUS_OK)
        return 0;
    fprintf(stderr, "%s\n", spops_last_error(host));
    return 1;
}

int tape_fold(const tape *t, float *parameters)
{
    for (int i = 0; i < t->num_steps; ++i) {
        const tape_step *s = &t->steps[i];
        if (s->kind == TAPE_BATCHNORM) continue;
        if (s->scale >= 0) fold_norm(t, s, parameters);
        if (s->weight >= 0 && t->parameters[s->weight].is_folded && fold_linear(t, s, parameters))
            return 1;
    }
    return 0;
}

/* Between a parameter and the rows and columns of it that a file has. */
static void copy_padded(const tape_parameter *p, float *all, float *dense, int to_file)
{
    for (int64_t r = 0; r < p->rows; ++r) {
        const int64_t c = r % p->in, k = r / p->in;
        float *mine = all + p->offset + r * p->cols;
        float *theirs = dense + (k * p->file_in + c) * p->file_cols;
        if (c >= p->file_in) continue;
        memcpy(to_file ? theirs : mine, to_file ? mine : theirs,
               (size_t)p->file_cols * sizeof *mine);
    }
}

static size_t file_elements(const tape_parameter *p)
{
    return (size_t)(p->taps == 0 ? 1 : p->taps * p->file_in) * (size_t)p->file_cols;
}

/* Into or out of a file's layout. */
static int bring(const tape *t, const tape_parameter *p, spops_weights_layout layout,
                 const float *from, float *to, int to_file)
{
    const int size = p->taps == 125 ? 5 : p->taps == 27 ? 3 : 1;
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, size, 1, 1);
    spops_context *ctx = t->d->host;

    if (p->taps == 1) layout = SPOPS_WEIGHTS_TORCH; /* a linear layer */
    if (p->taps == 0) {
        memcpy(to, from, file_elements(p) * sizeof *to);
        return 0;
    }
    return (to_file ? spops_weights_save(ctx, layout, &kernel, 1, p->file_in, p->file_cols,
                                         SPOPS_DTYPE_F32, from, to)
                    : spops_weights_load(ctx, layout, &kernel, 1, p->file_in, p->file_cols,
                                         SPOPS_DTYPE_F32, from, to)) != SPOPS_STATUS_OK;
}

static int write_parameter(const tape *t, const tape_parameter *p, float *parameters, FILE *file)
{
    const size_t n = file_elements(p);
    float *both = (float *)malloc(2 * n * sizeof *both);
    int failed = both == NULL;

    if (!failed) copy_padded(p, parameters, both, 1);
    failed = failed || bring(t, p, SPOPS_WEIGHTS_SPCONV2, both, both + n, 1) ||
             fprintf(file, "%s %d %d %d\n", p->name, p->taps, p->file_in, p->file_cols) < 0 ||
             fwrite(both + n, sizeof *both, n, file) != n;
    free(both);
    return failed;
}

static int read_parameter(const tape *t, const tape_parameter *p, spops_weights_layout layout,
                          float *parameters, FILE *file)
{
    const size_t n = file_elements(p);
    float *both = (float *)malloc(2 * n * sizeof *both);
    char line[160], name[TAPE_NAME + 16];
    int taps = 0, in = 0, cols = 0;
    const int failed = both == NULL || fgets(line, sizeof line, file) == NULL ||
                       sscanf(line, "%71s %d %d %d", name, &taps, &in, &cols) != 4 ||
                       strcmp(name, p->name) != 0 || taps != p->taps || in != p->file_in ||
                       cols != p->file_cols || fread(both, sizeof *both, n, file) != n ||
                       bring(t, p, layout, both, both + n, 0);
    if (!failed) copy_padded(p, parameters, both + n, 0);
    free(both);
    return failed;
}

int tape_save(const tape *t, const char *kind, float *parameters, const char *path)
{
    FILE *file = fopen(path, "wb");
    int failed = file == NULL || fprintf(file, "%s-weights 1 %s\n", kind,
                                         spops_weights_layout_name(SPOPS_WEIGHTS_SPCONV2)) < 0;

    for (int i = 0; i < t->num_parameters && !failed; ++i)
        if (!t->parameters[i].is_folded)
            failed = write_parameter(t, &t->parameters[i], parameters, file);
    if (file != NULL) failed |= fclose(file) != 0;
    if (failed) fprintf(stderr, "%s: cannot be written\n", path);
    return failed;
}

int tape_load(const tape *t, const char *kind, float *parameters, const char *path)
{
    FILE *file = fopen(path, "rb");
    char line[160], name[32], first[64];
    spops_weights_layout layout = SPOPS_WEIGHTS_CANONICAL;
    int failed;

    snprintf(first, sizeof first, "%s-weights 1 %%31s", kind);
    failed = file == NULL || fgets(line, sizeof line, file) == NULL ||
             sscanf(line, first, name) != 1 || parameters_find_layout(name, &layout);
    if (failed) fprintf(stderr, "%s: cannot be read, or is no file of %s-weights\n", path, kind);
    memset(parameters, 0, (size_t)t->num_elements * sizeof *parameters);
    for (int i = 0; i < t->num_parameters && !failed; ++i) {
        const tape_parameter *p = &t->parameters[i];
        if (p->is_folded) continue;
        failed = read_parameter(t, p, layout, parameters, file);
        if (failed)
            fprintf(stderr, "%s: expected %s %d %d %d and its numbers\n", path, p->name, p->taps,
                    p->file_in, p->file_cols);
    }
    if (file != NULL) fclose(file);
    return failed || tape_fold(t, parameters);
}
