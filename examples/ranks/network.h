// SPDX-License-Identifier: Apache-2.0
/*
 * MinkUNet over ranks: each rank has the rows of its chunks at every level, refreshes ghosts before a layer
 * that reads neighbours, and sums gradients of weights and statistics of norms by chunk. What it computes has
 * the bits of one rank.
 */
#ifndef RANKS_NETWORK_H
#define RANKS_NETWORK_H

#include "networks/device.h"

enum {
    RANKS_MOST = 64,
    RANKS_LEVELS = 5,
    RANKS_LAYERS = 64,
    RANKS_VALUES = 96,
    RANKS_INPUTS = 8,
    RANKS_OUTPUTS = 24
};

typedef enum ranks_relation { WITHIN, DOWN, UP, POINTWISE } ranks_relation;

/* Rows of a level: [owned | ghosts]. */
typedef struct ranks_value {
    int level, cols, has_grad; /* has_grad: something was added to it in this pass */
    void *data, *grad;
} ranks_value;

/* Some columns of a value; cols 0: none. */
typedef struct ranks_view {
    int value, col, cols;
} ranks_view;

/* out = relu(norm(sum of products) + residual), where norm, relu and residual may be missing. */
typedef struct ranks_layer {
    ranks_relation relation;
    int level, taps; /* level of the output */
    ranks_view in, out, residual;
    int norm, relu;
    int64_t weights_at, norm_at, moments_at; /* into parameters; into moments */
    void *sum;
} ranks_layer;

typedef struct ranks_level {
    spops_coords *owned;
    spops_halo *halo;
    spops_halo_info info;
    int64_t rows; /* owned and ghosts */
    spops_kernel_map *within, *down,
        *up;                    /* down and up: between this level and the next coarser one */
    spops_sparseconv *convs[3]; /* on these */
    /* Gradients of weights, of each own chunk: maps and plans by relation. */
    spops_kernel_map **chunk_maps[3];
    spops_sparseconv **chunk_convs[3];
    void *grad_sum, *temporary; /* rows of the widest layer */
    int num_exchanges; /* of ghosts in a step, and the bytes that this rank sends in them */
    int64_t halo_bytes;
} ranks_level;

typedef struct ranks_network {
    const device *d;
    spops_comm *comm;
    spops_dtype dtype;
    int implicit_gemm; /* plans run on it alone: a third of the memory, where it serves all passes */
    int num_levels, num_layers, num_values, max_cols, input, output;
    ranks_layer layers[RANKS_LAYERS];
    ranks_value values[RANKS_VALUES];
    ranks_level levels[RANKS_LEVELS];
    int32_t num_chunks, num_all_chunks; /* this rank's, and all */
    int64_t num_parameters, num_weights, num_moments;
    spops_chunk_sums *sums, *small_sums;
    int64_t *gather; /* [4][ranks]: counts and offsets of the exchange of statistics */
    /* Where the device is. */
    float *parameters, *gradients, *moments, *running; /* f32 */
    void *narrow;                                      /* weights in dtype */
    float *partials;                                   /* [own chunks][num_weights] */
    float *statistics, *all_statistics;                /* [chunks][2 max_cols] */
    void *target;                                      /* like the output */
    int64_t halo_bytes;                                /* that this rank sends in a step */
    double halos_ms, plans_ms;                         /* making these took */
    int64_t row_bytes, plan_bytes,
        gradient_bytes; /* memory: of values and their gradients; sets, maps and plans;
                                                      parameters and their gradients, by chunk too */
} ranks_network;

/* All of it. rows: [num_rows][4] host, this rank's of the finest level. any_dataflow: plans know every way of
   running, also where one serves all passes. 0 for success. */
int ranks_network_create(ranks_network *n, const device *d, spops_comm *comm,
                         const spops_partition *partition, int64_t num_rows, const int32_t *rows,
                         double width, int num_levels, spops_dtype dtype, int any_dataflow);
void ranks_network_destroy(ranks_network *n);

/* Forward with statistics of all rows; the gradient of half the squared distance from the target, then of
   everything; gradient descent, in steps that are small for 60,000 voxels: the loss falls by 2 % in one. */
#define RANKS_RATE 2e-8f
spops_status ranks_forward(ranks_network *n);
spops_status ranks_backward(ranks_network *n);
spops_status ranks_update(ranks_network *n);

/* Parts of a step alone: the exchanges of ghosts of a level (-1: of all); the statistics and sums of norms that
   ranks exchange; the sum of the gradients of weights. */
spops_status ranks_halos(ranks_network *n, int level);
spops_status ranks_norm_sums(ranks_network *n);
spops_status ranks_sums(ranks_network *n);

/* Plans onto the owned rows of each level that read no ghost, 0, and onto the others, 1. NULL: no such row. */
typedef struct ranks_halves {
    spops_kernel_map *maps[2][RANKS_LEVELS];
    spops_sparseconv *convs[2][RANKS_LEVELS];
    int64_t rows[2][RANKS_LEVELS];
} ranks_halves;

/* The products of layers within levels, forward: of one half without halos; with each layer's halo, where rows
   that read no ghost are computed beside it; and, without halves, all rows behind it. */
spops_status ranks_convolve_half(ranks_network *n, const ranks_halves *halves, int half);
spops_status ranks_convolve_beside(ranks_network *n, const ranks_halves *halves);
spops_status ranks_convolve_behind(ranks_network *n);

/* So many bytes to the next rank, and as many from the one before. Memory of gradients is written over. */
spops_status ranks_pass_on(ranks_network *n, int64_t bytes);
int64_t ranks_most_to_pass_on(const ranks_network *n);

/* A number from -1 to 1 that follows from a row and a column: a feature, the target, another. */
enum { RANKS_FEATURE = 1, RANKS_TARGET = 2, RANKS_WEIGHT = 3, RANKS_CLOUD = 4 };
float ranks_number(const int32_t *row, int column, int what);

#endif
