// SPDX-License-Identifier: Apache-2.0
/* Parameters of a convolution and its batch norm. */
#include "networks/parameters.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t num_weights(const parameters *p)
{
    return (size_t)p->taps * (size_t)p->in * (size_t)p->out;
}

int parameters_alloc(parameters *p, int taps, int in, int out)
{
    const size_t n = (size_t)out;
    p->taps = taps;
    p->in = in;
    p->out = out;
    p->w = (float *)calloc(num_weights(p) + 5 * n, sizeof *p->w);
    if (p->w == NULL) return 1;
    p->gamma = p->w + num_weights(p);
    p->beta = p->gamma + n;
    p->mean = p->beta + n;
    p->var = p->mean + n;
    p->bias = p->var + n;
    return 0;
}

void parameters_free(parameters *p)
{
    free(p->w);
    p->w = NULL;
}

float parameters_uniform(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u; /* SplitMix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (float)((double)(z >> 11) * 0x1p-52 - 1.0);
}

void parameters_draw(parameters *p, uint64_t *state, double neighbours, float gamma)
{
    /* Uniform, of variance 2 / inputs. */
    const float spread = sqrtf(6.0f / ((float)neighbours * (float)p->in));
    for (size_t j = 0; j < num_weights(p); ++j)
        p->w[j] = spread * parameters_uniform(state);
    for (int o = 0; o < p->out; ++o) {
        p->gamma[o] = gamma * (1.0f + 0.2f * parameters_uniform(state));
        p->beta[o] = 0.1f * parameters_uniform(state);
        p->mean[o] = 0.1f * parameters_uniform(state);
        p->var[o] = 1.0f + 0.3f * parameters_uniform(state);
    }
}

/* Row c of tap k in p and in f. */
static float *row_of(const parameters *p, int k, int c)
{
    return p->w + ((size_t)k * (size_t)p->in + (size_t)c) * (size_t)p->out;
}

static float *folded_row(const folded_parameters *f, int k, int c)
{
    return f->w + ((size_t)k * (size_t)f->in + (size_t)c) * (size_t)f->out;
}

int parameters_fold(const parameters *p, float epsilon, folded_parameters *f)
{
    f->w = (float *)calloc((size_t)p->taps * (size_t)f->in * (size_t)f->out, sizeof *f->w);
    f->scale = (float *)calloc((size_t)f->out, sizeof *f->scale);
    f->shift = (float *)calloc((size_t)f->out, sizeof *f->shift);
    if (f->w == NULL || f->scale == NULL || f->shift == NULL) return 1;
    for (int k = 0; k < p->taps; ++k)
        for (int c = 0; c < p->in; ++c)
            memcpy(folded_row(f, k, c), row_of(p, k, c), (size_t)p->out * sizeof *f->w);
    for (int o = 0; o < p->out; ++o) {
        f->scale[o] = p->gamma[o] / sqrtf(p->var[o] + epsilon);
        f->shift[o] = p->beta[o] + (p->bias[o] - p->mean[o]) * f->scale[o];
    }
    return 0;
}

void parameters_unfold(const folded_parameters *f, float epsilon, parameters *p)
{
    for (int k = 0; k < p->taps; ++k)
        for (int c = 0; c < p->in; ++c)
            memcpy(row_of(p, k, c), folded_row(f, k, c), (size_t)p->out * sizeof *p->w);
    for (int o = 0; o < p->out; ++o) {
        p->var[o] = 1.0f - epsilon;
        p->gamma[o] = f->scale[o] * sqrtf(p->var[o] + epsilon);
        p->beta[o] = f->shift[o];
        p->mean[o] = p->bias[o] = 0.0f;
    }
}

void folded_parameters_free(folded_parameters *f)
{
    free(f->w);
    free(f->scale);
    free(f->shift);
    f->w = f->scale = f->shift = NULL;
}

int parameters_write(spops_context *ctx, const parameters *p, const char *name,
                     spops_weights_layout layout, const spops_kernel_shape *kernel, int has_bias,
                     FILE *file)
{
    const size_t n = num_weights(p), out = (size_t)p->out;
    float *theirs = (float *)malloc(n * sizeof *theirs);
    int failed = theirs == NULL;

    if (!failed) {
        failed = spops_weights_save(ctx, layout, kernel, 1, p->in, p->out, SPOPS_DTYPE_F32, p->w,
                                    theirs) != SPOPS_STATUS_OK ||
                 fprintf(file, "%s %d %d %d\n", name, p->taps, p->in, p->out) < 0 ||
                 fwrite(theirs, sizeof *theirs, n, file) != n ||
                 (has_bias && fwrite(p->bias, sizeof *p->bias, out, file) != out) ||
                 fwrite(p->gamma, sizeof *p->gamma, 4 * out, file) != 4 * out;
    }
    free(theirs);
    return failed;
}

int parameters_read(spops_context *ctx, parameters *p, const char *name,
                    spops_weights_layout layout, const spops_kernel_shape *kernel, int has_bias,
                    FILE *file)
{
    const size_t n = num_weights(p), out = (size_t)p->out;
    char line[128], found[32];
    int taps, in, cols, failed;
    float *theirs;

    if (fgets(line, sizeof line, file) == NULL ||
        sscanf(line, "%31s %d %d %d", found, &taps, &in, &cols) != 4 || strcmp(name, found) != 0 ||
        taps != p->taps || in != p->in || cols != p->out)
        return 1;
    theirs = (float *)malloc(n * sizeof *theirs);
    failed = theirs == NULL || fread(theirs, sizeof *theirs, n, file) != n ||
             (has_bias && fread(p->bias, sizeof *p->bias, out, file) != out) ||
             fread(p->gamma, sizeof *p->gamma, 4 * out, file) != 4 * out ||
             spops_weights_load(ctx, layout, kernel, 1, p->in, p->out, SPOPS_DTYPE_F32, theirs,
                                p->w) != SPOPS_STATUS_OK;
    free(theirs);
    return failed;
}

int parameters_find_layout(const char *name, spops_weights_layout *layout)
{
    for (int i = SPOPS_WEIGHTS_CANONICAL; i <= SPOPS_WEIGHTS_FVDB; ++i)
        if (strcmp(name, spops_weights_layout_name((spops_weights_layout)i)) == 0) {
            *layout = (spops_weights_layout)i;
            return 0;
        }
    return 1;
}
