// SPDX-License-Identifier: Apache-2.0
/*
 * The network: Point Transformer V3 (Wu et al., CVPR 2024) as Pointcept configures it for outdoor scenes.
 *
 * Five levels of voxels, each of half the resolution of the one before. A block has a submanifold
 * convolution with a linear layer and a layer norm as encoding of positions, attention within patches of
 * patch_rows voxels along a curve, and an MLP; norms stand before attention and MLP. Block i of a stage
 * takes curve i of four, in turn.
 */
#ifndef PTV3_NETWORK_H
#define PTV3_NETWORK_H

#include "networks/tape.h"

enum {
    PTV3_LEVELS = 5,
    PTV3_CURVES = 4,   /* z, z transposed, Hilbert, Hilbert transposed */
    PTV3_FEATURES = 4, /* x y z intensity */
    PTV3_INPUTS = 8,   /* padded, for rows of 16 bytes */
    PTV3_CLASSES = 19,
    PTV3_OUTPUTS = 24,
    PTV3_STAGES = 11, /* embedding, five of the encoder, four of the decoder, head */
    /* Plans of convolutions: the stem's, then one of each level. */
    PTV3_STEM = 0,
    PTV3_WITHIN = 1
};

typedef struct ptv3_config {
    const char *name;
    int depths[PTV3_LEVELS], channels[PTV3_LEVELS], heads[PTV3_LEVELS];
    int up_depths[PTV3_LEVELS - 1], up_channels[PTV3_LEVELS - 1], up_heads[PTV3_LEVELS - 1];
    int patch_rows;
} ptv3_config;

/* Of Pointcept, and one that FP64 can follow. */
extern const ptv3_config ptv3_base, ptv3_small;
extern const char *const ptv3_stage_names[PTV3_STAGES];

/* The plan of patches of a level along a curve. */
int ptv3_patches(int level, int curve);

/* The steps of a tape that was started. Value 0 is the input. */
void ptv3_build(tape *t, const ptv3_config *c);

#endif
