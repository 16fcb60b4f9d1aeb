// SPDX-License-Identifier: Apache-2.0
/*
 * Parameters of a convolution and its batch norm, for the examples' networks: drawn, folded into what
 * a layer of the library takes, and in a file.
 */
#ifndef NETWORKS_PARAMETERS_H
#define NETWORKS_PARAMETERS_H

#include <spops/spops.h>

#include <stdio.h>

/* As they are in a file: weights [taps][in][out], and [out] of each other. One block of memory. */
typedef struct parameters {
    int taps, in, out;
    float *w, *gamma, *beta, *mean, *var, *bias;
} parameters;

/* All zeros. 0 for success, as below. */
int parameters_alloc(parameters *p, int taps, int in, int out);
void parameters_free(parameters *p);

/* Drawn from a sequence of random numbers, SplitMix64. Outputs are as large as inputs where about
   `neighbours` taps of a row have one. gamma is about `gamma`; bias stays 0. */
void parameters_draw(parameters *p, uint64_t *state, double neighbours, float gamma);
float parameters_uniform(uint64_t *state); /* -1 to 1 */

/* What a layer takes: weights [taps][in][out] and [out] of each other, padded with zeros. */
typedef struct folded_parameters {
    int in, out;
    float *w, *scale, *shift;
} folded_parameters;

/* gamma (x + bias - mean) / sqrt(var + epsilon) + beta = x scale + shift. Allocates f's arrays. */
int parameters_fold(const parameters *p, float epsilon, folded_parameters *f);
/* The way back, for saving: a batch norm that folds to the same. */
void parameters_unfold(const folded_parameters *f, float epsilon, parameters *p);
void folded_parameters_free(folded_parameters *f);

/*
 * A layer in a file: a line "NAME TAPS IN OUT" and little-endian f32: the weights in the layout named
 * (spops/weights.h), then with has_bias the bias of the convolution, then gamma, beta, mean and
 * variance of its batch norm, OUT numbers each. read refuses a layer of another name or shape.
 */
int parameters_write(spops_context *ctx, const parameters *p, const char *name,
                     spops_weights_layout layout, const spops_kernel_shape *kernel, int has_bias,
                     FILE *file);
int parameters_read(spops_context *ctx, parameters *p, const char *name,
                    spops_weights_layout layout, const spops_kernel_shape *kernel, int has_bias,
                    FILE *file);

/* A layout by its name. */
int parameters_find_layout(const char *name, spops_weights_layout *layout);

#endif
