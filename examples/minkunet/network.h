// SPDX-License-Identifier: Apache-2.0
/*
 * The network: its layers in order, where each reads and writes, and its parameters.
 *
 * MinkUNet of Choy et al., 4D Spatio-Temporal ConvNets (CVPR 2019), with the channels of SPVNAS
 * (Tang et al., ECCV 2020), as the TorchSparse paper measures it: a stem of two layers; four stages
 * that halve the resolution, each with two residual blocks; four stages back up, each joined with
 * what the way down left at its level; a classifier. Batch norm is folded into a scale and a shift.
 */
#ifndef MINKUNET_NETWORK_H
#define MINKUNET_NETWORK_H

#include "networks/parameters.h"

enum {
    NUM_LEVELS = 5,
    NUM_FEATURES = 4, /* of a voxel; channels are padded to multiples of 8, for rows of 16 bytes */
    NUM_INPUTS = 8,
    NUM_CLASSES = 19,
    NUM_OUTPUTS = 24,
    MAX_LAYERS = 64,
    MAX_BUFFERS = 32
};

/* Which rows a layer joins: those of one level, by 3 x 3 x 3; two levels, by 2 x 2 x 2; each row to
   itself. */
typedef enum layer_relation { WITHIN, DOWN, UP, POINTWISE } layer_relation;

/* A matrix of features: the rows of a level. */
typedef struct feature_buffer {
    int level, cols;
} feature_buffer;

/* Some of its columns. Two layers that write side by side concatenate, without a copy. */
typedef struct feature_view {
    int buffer, col, cols; /* cols 0: none */
} feature_view;

typedef struct layer {
    char name[32];
    layer_relation relation;
    int level; /* of its output */
    int taps;
    feature_view in, out, residual;
    int relu;
    int file_in, file_out;    /* channels without padding */
    folded_parameters folded; /* of in.cols and out.cols channels */
} layer;

typedef struct network {
    double width;
    int num_layers, num_buffers;
    layer layers[MAX_LAYERS];
    feature_buffer buffers[MAX_BUFFERS];
    int input, output; /* buffers of level 0 */
} network;

/* Its layers for a width of 1, 0.5 or another; no parameters yet. */
void network_create(network *net, double width);
void network_destroy(network *net);

/* Parameters drawn from a fixed sequence of random numbers. 0 for success, as below. */
int network_generate(network *net);

/*
 * Parameters as a file: a line "minkunet-weights 1 WIDTH LAYOUT", then for each layer a line "NAME
 * TAPS IN OUT" and little-endian f32: the weights in the layout named (spops/weights.h), and gamma,
 * beta, mean and variance of the batch norm after it, OUT numbers each. The file that save writes
 * has TorchSparse's layout, as a checkpoint of that library would.
 */
int network_save(spops_context *ctx, const network *net, const char *path);
int network_load(spops_context *ctx, network *net, const char *path);

#endif
