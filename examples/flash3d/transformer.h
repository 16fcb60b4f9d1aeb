// SPDX-License-Identifier: Apache-2.0
/*
 * A block of a point transformer on rows that attend to each other by patches:
 *
 *     x += attention(norm(x)) * projection         heads of HEAD_DIM columns, turned by coordinates
 *     x += relu(norm(x) * up + bias) * down        feed-forward, four times as wide
 *
 * Parameters are drawn here. They are kept as floats as well, as the device has them, for the check.
 */
#ifndef FLASH3D_TRANSFORMER_H
#define FLASH3D_TRANSFORMER_H

#include "networks/device.h"

enum { HEAD_DIM = 32, AXIS_DIM = 10, WIDER = 4 };

/* Which calls of a network are enqueued: all of them, or one part to be timed. */
enum {
    PLANS = 1,
    MOVES = 2,
    NORMS = 4,
    ATTENTION = 8,
    FEED_FORWARD = 16,
    CONVOLUTION = 32,
    ALL = 63
};

typedef struct parameter {
    int64_t rows, cols;
    float *host; /* [rows, cols], rounded to dtype */
    void *data;  /* where the context runs */
    spops_dtype dtype;
} parameter;

typedef struct block {
    int64_t channels;
    parameter gamma[2], beta[2];         /* of both norms */
    parameter qkv, projection, up, down; /* [in, out] */
    parameter bias;                      /* of up */
} block;

/* What every block of a stage works with. */
typedef struct stage_rows {
    int64_t rows, channels;
    spops_dtype dtype;
    spops_matrix coords; /* [rows, 3] f32 */
    spops_matrix x;      /* [rows, channels] */
    spops_matrix normed; /* [rows, channels]: what the norms and attention give */
    spops_matrix wide;   /* [rows, WIDER * channels]: Q, K and V, then feed-forward */
} stage_rows;

/* 0 for success, else why was printed. */
int parameter_draw(const device *d, parameter *p, int64_t rows, int64_t cols, spops_dtype dtype,
                   float low, float high, uint64_t seed);
void parameter_free(const device *d, parameter *p);
spops_matrix parameter_matrix(const parameter *p);

int rows_create(const device *d, stage_rows *r, int64_t rows, int64_t channels, spops_dtype dtype);
void rows_destroy(const device *d, stage_rows *r);

int block_create(const device *d, block *b, int64_t channels, spops_dtype dtype, uint64_t seed);
void block_destroy(const device *d, block *b);
spops_status block_enqueue(const device *d, const block *b, const stage_rows *r,
                           const spops_patches *patches, int parts);

spops_attention_options attention_options(const stage_rows *r, spops_attention_rotary *rotary);

/* out = x * w. */
spops_status product(const device *d, spops_matrix x, const parameter *w, spops_matrix out);

/* Columns [first, first + cols) of a matrix. */
spops_matrix columns(spops_matrix m, int64_t first, int64_t cols);

#endif
