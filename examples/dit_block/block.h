// SPDX-License-Identifier: Apache-2.0
/*
 * A transformer block of TRELLIS.2's flow models: self attention over all tokens of a sample with norms of
 * q and k and rotary positions, cross attention to the tokens of an image, an MLP; the first and the
 * last modulated by vectors of the sample.
 *
 *     x = x + gate1 * out1(attention(q, k, v of norm(x) (1 + scale1) + shift1))
 *     x = x + out2(attention(q of norm(x), k and v of context))
 *     x = x + gate3 * linear(gelu(linear(norm(x) (1 + scale3) + shift3)))
 */
#ifndef DIT_BLOCK_BLOCK_H
#define DIT_BLOCK_BLOCK_H

#include "networks/device.h"

#define NORM_EPSILON 1e-6

typedef struct shape {
    int64_t tokens, context;                /* rows of x, and of the image */
    int heads, dim, context_channels, size; /* tokens lie in a grid of size^3 */
} shape;

enum linear_layer { QKV, OUT, CROSS_Q, CROSS_KV, CROSS_OUT, WIDEN, NARROW, NUM_LINEAR };
/* Vectors of C: gamma and beta of a norm, a gate; and of dim, the weights of the norms of q and k. */
enum vector {
    GAMMA1,
    BETA1,
    GATE1,
    GAMMA2,
    BETA2,
    GAMMA3,
    BETA3,
    GATE3,
    Q_WEIGHT,
    K_WEIGHT,
    CROSS_Q_WEIGHT,
    CROSS_K_WEIGHT,
    NUM_VECTORS
};

enum part {
    PART_NORMS1,
    PART_QKV,
    PART_SELF,
    PART_OUT,
    PART_NORMS2,
    PART_CROSS_Q,
    PART_CROSS_KV,
    PART_CROSS,
    PART_CROSS_OUT,
    PART_NORMS3,
    PART_WIDEN,
    PART_NARROW,
    NUM_PARTS
};

typedef struct block {
    const device *d;
    shape s;
    int channels, hidden;
    spops_dtype dtype;
    spops_patches *self, *cross;
    spops_attention_rotary rotary;
    spops_attention_norm norm, cross_norm;
    spops_matrix w[NUM_LINEAR];
    float *bias[NUM_LINEAR], *vectors[NUM_VECTORS];
    spops_matrix x, input, context; /* input: what x is before the block */
    spops_matrix h, qkv, o, kv, wide;
    int32_t *coords; /* [tokens][3] */
} block;

int linear_in(const block *b, int i);
int linear_out(const block *b, int i);
int vector_length(const block *b, int i);

/* Parameters, tokens and coordinates are drawn. 0 for success; else it said why. */
int block_create(block *b, const device *d, const shape *s, spops_dtype dtype);
void block_destroy(block *b);

spops_status block_enqueue_part(block *b, int part);
spops_status block_enqueue(void *block);

/* Elements of a matrix, and of a vector, as f64; the caller frees them. NULL: no memory. */
double *block_download(const block *b, spops_matrix m);
double *block_download_vector(const block *b, const float *v, int n);

/* The block in FP64, from the numbers that b has, and its largest difference from b->x over the largest
   element. 0 for success. */
int reference_compare(const block *b, double *difference);

#endif
