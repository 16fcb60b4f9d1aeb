// SPDX-License-Identifier: Apache-2.0
/*
 * The network: its grids, its layers in order, where each reads and writes, and its parameters.
 *
 * The sparse encoder of CenterPoint (Yin et al., CVPR 2021), which its code calls SpMiddleResNetFHD, as
 * configured for nuScenes with voxels of 0.075 m: a layer of 5 to 16 channels; four stages of two residual
 * blocks each, at 16, 32, 64 and 128 channels, between them convolutions of stride 2; a convolution that
 * halves the height once more. Batch norm and bias are folded into a scale and a shift.
 */
#ifndef CENTERPOINT_NETWORK_H
#define CENTERPOINT_NETWORK_H

#include "networks/parameters.h"

enum {
    NUM_LEVELS = 5,
    NUM_FEATURES = 5, /* x y z intensity time; padded to 8 for rows of 16 bytes */
    NUM_INPUTS = 8,
    NUM_OUTPUTS = 128,
    NUM_LAYERS = 21,
    NUM_BUFFERS = 14,
    POINTS_A_VOXEL = 10
};

/* Cells of a level along z, y and x, the order of a set's axes, and the convolution from the level before. */
typedef struct level_shape {
    int size[3];
    int kernel[3], stride[3], padding[3];
    int channels;
} level_shape;
extern const level_shape level_shapes[NUM_LEVELS];
spops_kernel_shape kernel_to_level(int level);

/* Of voxels, and the lower corner of the first, along z, y and x, m. */
extern const double voxel_size_m[3], voxel_origin_m[3];

typedef struct layer {
    char name[32];
    int level; /* of its output */
    int down;  /* 1: from the level before; 0: submanifold */
    int taps, in, out;
    int has_bias; /* in the file */
    int file_in;  /* channels without padding */
    int from, to; /* buffers */
    int residual; /* a buffer, or -1 */
    folded_parameters folded;
} layer;

typedef struct feature_buffer {
    int level, cols;
} feature_buffer;

typedef struct network {
    layer layers[NUM_LAYERS];
    feature_buffer buffers[NUM_BUFFERS]; /* the first is the input, the last the output */
    int num_layers, num_buffers;
} network;

void network_create(network *net);
void network_destroy(network *net);

/* Parameters drawn from a fixed sequence of random numbers. 0 for success, as below. */
int network_generate(network *net);

/* A file: a line "centerpoint-weights 1 LAYOUT", then the layers as networks/parameters.h says. save
   writes spconv 1's layout, which checkpoints of the original have. */
int network_save(spops_context *ctx, const network *net, const char *path);
int network_load(spops_context *ctx, network *net, const char *path);

#endif
