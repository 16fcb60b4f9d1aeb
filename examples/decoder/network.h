// SPDX-License-Identifier: Apache-2.0
/*
 * The decoder of TRELLIS.2's shape VAE (Xiang et al., Native and Compact Structured Latents for 3D
 * Generation, 2025) as a list of layers, which have parameters, and a list of operations in the order
 * in which a frame runs them.
 */
#ifndef DECODER_NETWORK_H
#define DECODER_NETWORK_H

#include <stdint.h>

enum {
    LEVELS = 5,
    LATENT_CHANNELS = 32,
    OUTPUT_CHANNELS = 8, /* three of a vertex, three of edges, one of a diagonal; and one more, for
                            rows of 16 bytes, which no file has: its parameters are 0 */
    FILE_OUTPUTS = 7,
    CHILDREN = 8,
    TAPS = 27,
    MAX_LAYERS = 192,
    MAX_OPS = 192
};

/* Of norms 1e-6; of a SiLU as after every norm here. */
#define NORM_EPSILON 1e-6

typedef enum layer_kind {
    LAYER_LINEAR, /* weights [in][out], bias [out] */
    LAYER_CONV,   /* weights [TAPS][in][out], bias [out] */
    LAYER_NORM,   /* gamma [out], beta [out] */
    LAYER_REPEAT  /* weights [in][out] that repeat every column out / in times; nothing is learnt */
} layer_kind;

typedef struct layer {
    char name[32]; /* as in the original's checkpoint */
    layer_kind kind;
    int in, out;
    float spread; /* drawn weights are uniform, -spread to spread */
} layer;

/* What each writes, x being the features of a level. `level` is of the rows that are written. */
typedef enum op_kind {
    OP_SET,       /* the set of level 0, from the frame */
    OP_LATENT,    /* x = linear(latents) */
    OP_CONV,      /* h = conv(x) */
    OP_NORM,      /* h = norm(h) */
    OP_MLP,       /* x = x + linear(silu(linear(h))) */
    OP_LOGITS,    /* logits of children of the level's rows = linear(x), and which are above 0 */
    OP_CHILDREN,  /* the set of the level: children of the level before that are kept */
    OP_MAP,       /* map and plan of the convolutions of the level */
    OP_UP_NORM,   /* h = silu(norm(x)) */
    OP_UP_CONV,   /* u = conv(h), with eight times the channels of the next level */
    OP_TO_SPACE,  /* h = channels of u to the rows of children; s = those of x */
    OP_FINE_NORM, /* h = silu(norm(h)), without gamma and beta */
    OP_FINE_CONV, /* x = conv(h) */
    OP_SKIP,      /* x = x + columns of s repeated */
    OP_OUTPUT     /* out = linear(norm(x)), without gamma and beta */
} op_kind;

typedef struct op {
    op_kind kind;
    int level, layer; /* the first of its layers, -1 without one */
} op;

typedef struct network {
    double width;
    int channels[LEVELS]; /* 1024, 512, 256, 128, 64 times the width */
    int num_layers, num_ops;
    layer layers[MAX_LAYERS];
    op ops[MAX_OPS];
} network;

/* width: 1/8 to 1, such that every level has a multiple of 8 channels. */
int network_create(network *net, double width);

/* Elements of a layer's weights, 0 for a norm. */
int64_t layer_num_weights(const layer *l);

/* Channels of layer i's output that have parameters in a file; those of the others are 0. */
int layer_file_outputs(const network *net, int i);

/* The weights of layer i, and its vectors: gamma and beta of a norm, a bias in the first, NULL where
   there is none. The same numbers on every run. */
void network_draw(const network *net, int i, float *weights, float *first, float *second);

/* What an operation belongs to, for tables. */
typedef enum part_kind {
    PART_SETS,
    PART_MAPS,
    PART_CONVS,
    PART_NORMS,
    PART_MLPS,
    PART_UP_CONVS,
    PART_TO_SPACE,
    PART_FINE_CONVS,
    PART_SKIPS,
    PART_ENDS,
    NUM_PARTS
} part_kind;

part_kind part_of(op_kind kind);
const char *part_name(part_kind part);

#endif
