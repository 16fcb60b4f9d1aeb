/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receptive field of a network: how far around a voxel the voxels lie that what a network says of
 * it depends on. A part of a cloud with so much around it gives what the whole gives (docs/tiles.md).
 */
#ifndef SPOPS_RECEPTIVE_H
#define SPOPS_RECEPTIVE_H

#include "spops/coords.h"

SPOPS_EXTERN_C_BEGIN

#define SPOPS_RECEPTIVE_MAX_LAYERS 1024      /* of a network */
#define SPOPS_RECEPTIVE_MAX_PLACES (1 << 20) /* of an output's voxel that are tried along an axis */
#define SPOPS_REACH_UNBOUNDED      INT64_MAX /* instead of a number of voxels: all of them */

/** What a layer reads for a voxel. */
typedef enum spops_receptive_kind {
    SPOPS_RECEPTIVE_ROW = 0, /* its own row: linear layers, activations, norms of rows or with
                                        fixed statistics; of two values their sum or their columns
                                        side by side */
    SPOPS_RECEPTIVE_SUBMANIFOLD = 1, /* a submanifold convolution; kernel->stride is 1 */
    SPOPS_RECEPTIVE_CONVOLUTION =
        2, /* in = stride * out - padding + dilation * t: convolution, pooling */
    SPOPS_RECEPTIVE_TRANSPOSED =
        3, /* out = stride * in - padding + dilation * t: transposed and inverse
                                        convolution; with size = stride the voxel that a voxel lies in */
    SPOPS_RECEPTIVE_LINEAR = 4, /* linear interpolation, anywhere in a voxel, between the centres of
                                        voxels that are kernel->stride as wide */
    SPOPS_RECEPTIVE_WINDOW = 5, /* attention or pooling in windows of kernel->size voxels at fixed
                                        places: window floor((voxel + shift) / size); size 0: the axis
                                        is one window */
    SPOPS_RECEPTIVE_ALL = 6     /* every voxel: global pooling, statistics of a batch, patches and
                                        buckets by rank */
} spops_receptive_kind;

/**
 * A layer. Value 0 is the input of the network, value i + 1 what layer i gives. Final: nothing will be
 * added.
 */
typedef struct spops_receptive_layer {
    spops_receptive_kind kind;
    int32_t from[2]; /* values that the layer reads; from[1] of ROW alone, -1: none */
    /* Of SUBMANIFOLD, CONVOLUTION and TRANSPOSED all of it, of LINEAR stride, of WINDOW size. The padding of
       SUBMANIFOLD is not looked at. NULL: not needed */
    const spops_kernel_shape *kernel;
    int32_t shift[SPOPS_MAX_DIMS]; /* of WINDOW */
} spops_receptive_layer;

/** Which voxels of a value an output may depend on. Final: nothing will be added. */
typedef struct spops_reach {
    int32_t is_read; /* 0: the output does not depend on this value, and the rest is 0 but stride */
    int32_t reserved;
    int64_t stride[SPOPS_MAX_DIMS]; /* voxels of the input along a voxel of this value */
    /* Voxels of this value before and after the one that an output's voxel lies in, or that it begins
       and ends in; UNBOUNDED: all */
    int64_t lower[SPOPS_MAX_DIMS], upper[SPOPS_MAX_DIMS];
    /* How far these stick out of the output's voxel, in m; infinity: all. 0 where sizes are not given */
    double lower_m[SPOPS_MAX_DIMS], upper_m[SPOPS_MAX_DIMS];
} spops_reach;

/**
 * The reach of an output, over all places that its voxel can have.
 *
 *     halo of a tile, in voxels of the input:  reach[0].lower, reach[0].upper  (output of stride 1)
 *     halo in m:                               reach[0].lower_m, reach[0].upper_m
 *
 * dims          1 to 4.
 * voxel_size_m  [dims] of the input's voxels, m, more than 0; NULL: no lengths.
 * layers        [num_layers], 0 to SPOPS_RECEPTIVE_MAX_LAYERS, each after those that it reads.
 * output        The value that is asked about, 0 to num_layers.
 * reach         [num_layers + 1], of every value.
 *
 * Numerics  The numbers are never too small. They are the smallest where transposed layers have dilation 1
 *           and sizes of at least their strides, as sets that have every voxel show.
 * Memory    Host memory, nothing is allocated. No device is needed.
 * Errors    INVALID_ARGUMENT (NULL, ranges, a kernel of other dims, a transposed layer whose stride does
 *           not divide that of what it reads, two values of different strides), NOT_SUPPORTED (strides
 *           and windows that repeat after more than SPOPS_RECEPTIVE_MAX_PLACES voxels of the output).
 *           spops_last_error(NULL) has the line. Nothing is written after an error.
 * Threads   Any.
 */
SPOPS_API spops_status spops_receptive_field(int32_t dims, const double *voxel_size_m,
                                             const spops_receptive_layer *layers,
                                             int32_t num_layers, int32_t output,
                                             spops_reach *reach);

SPOPS_EXTERN_C_END

#endif
