// SPDX-License-Identifier: Apache-2.0
/*
 * The decoder's sets, maps, plans and memory for frames of up to a given size, and the work of a frame.
 * How many rows a level has is known to the device alone: a graph that holds a frame takes another one
 * without the host looking at a count.
 */
#ifndef DECODER_ENGINE_H
#define DECODER_ENGINE_H

#include "decoder/network.h"
#include "decoder/weights.h"
#include "networks/device.h"

/* Where children come from. */
typedef enum shape_kind {
    SHAPE_PREDICTED, /* logits above 0, as the network says */
    SHAPE_GIVEN      /* flags that came with the frame; logits are computed and nobody reads them */
} shape_kind;

/* What the network decodes: latents on the rows (0, x, y, z) of the coarsest set. */
typedef struct frame {
    int64_t num_rows;
    int32_t *rows;              /* [num_rows][4], none twice */
    float *latents;             /* [num_rows][LATENT_CHANNELS] */
    uint8_t *keep[LEVELS];      /* of SHAPE_GIVEN: [rows of the level][CHILDREN]; else NULL */
    int64_t level_rows[LEVELS]; /* of SHAPE_GIVEN */
} frame;

/* Features: x and h of a level, hidden columns of an MLP, u and s of an up block (network.h). */
typedef enum feature_kind { X, H, HIDDEN, U, S, NUM_FEATURES } feature_kind;

/* A matrix in the block of all features, where no other one lies that is needed at the same time. */
typedef struct features {
    int64_t rows;
    int cols, first, last; /* operations between which it is needed; first < 0: never */
    size_t at, bytes;
} features;

/* Bytes on the device, by what they are for. */
typedef struct memory_use {
    size_t weights, features, frame, sets, maps, plans, scratch;
} memory_use;

typedef struct engine_options {
    spops_dtype dtype; /* of features and weights: f32 or f16 */
    shape_kind shape;
    int size;                    /* of the finest grid: 16 times that of the latents */
    int64_t slice_rows;          /* of an MLP at a time; 0: all */
    size_t memory_limit;         /* bytes that the engine may take; 0: any */
    const weights_file *weights; /* NULL: drawn */
    int64_t max_rows[LEVELS];
} engine_options;

typedef struct engine {
    const device *d;
    const network *net;
    engine_options o;
    int implicit_gemm; /* runs every convolution */
    memory_use use;
    /* Plans, and the blocks that they live in. */
    spops_coords *sets[LEVELS];
    spops_kernel_map *maps[LEVELS];
    spops_sparseconv *convs[LEVELS];
    void *blocks[3 * LEVELS];
    int num_blocks;
    const int32_t *num_rows[LEVELS]; /* where the device says how many rows a level has */
    void *scratch;
    /* Features and parameters. */
    features features[LEVELS][NUM_FEATURES];
    char *feature_block;
    void *weights[MAX_LAYERS];
    float *vectors[MAX_LAYERS][2]; /* gamma and beta; a bias and nothing */
    void *out;                     /* [max_rows of the finest][OUTPUT_CHANNELS] */
    /* The frame, and which children are kept. */
    int32_t *count, *rows;
    void *latents;
    float *logits[LEVELS], *threshold; /* those below 0 as 0; what is above it is kept */
    uint8_t *predicted[LEVELS], *given[LEVELS];
} engine;

/* Says how much memory it takes before it takes it, and refuses more than the limit. 0 for success. */
int engine_create(engine *e, const device *d, const network *net, const engine_options *o);
void engine_destroy(engine *e);

int engine_upload(engine *e, const frame *f);

spops_status engine_enqueue_op(engine *e, int i);
spops_status engine_enqueue_frame(void *e);

/* Rows and pairs of the levels of the frame that ran last; waits. A level that had more rows than there
   is room for is an error. */
int engine_get_sizes(const engine *e, int64_t rows[LEVELS], int64_t pairs[LEVELS]);

size_t memory_total(const memory_use *use);

#endif
