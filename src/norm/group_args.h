// SPDX-License-Identifier: Apache-2.0
// What the backends' slots of group norm take, checked already, and the partition of a sample's rows
// that both follow.
#ifndef SPOPS_NORM_GROUP_ARGS_H
#define SPOPS_NORM_GROUP_ARGS_H

#include "norm/norm_args.h"

// Rows of a piece of a sample.
#define SPOPS_GROUP_PIECE_ROWS 256

// The samples: positions offsets[s] to offsets[s + 1] - 1 are those of sample s, and the row of a position
// is pairs[2 position], or the position itself without pairs.
typedef struct spops_group_samples {
    const int32_t *offsets, *pairs;
    int64_t num, max_positions;
} spops_group_samples;

// Numbers of pieces: those of sample s follow each other from here on. Samples before it have
// offsets[s] positions, and each at most one piece that is not whole; so numbers of samples that follow
// each other never meet, and depend on no sum over samples.
SPOPS_NORM_INLINE int64_t spops_group_first_piece(const int32_t *offsets, int64_t s)
{
    return offsets[s] / SPOPS_GROUP_PIECE_ROWS + s;
}

static inline int64_t spops_group_max_pieces(int64_t num_samples, int64_t max_positions)
{
    return num_samples == 0 ? 0 : max_positions / SPOPS_GROUP_PIECE_ROWS + num_samples;
}

typedef struct spops_group_piece {
    int64_t sample, begin, end; // positions; none where begin is end
} spops_group_piece;

// Piece number i, below the most that there are. There is a sample.
SPOPS_NORM_INLINE spops_group_piece spops_group_piece_of(const int32_t *offsets,
                                                         int64_t num_samples, int64_t i)
{
    int64_t low = 0, high = num_samples; // the sample is at least low, and less than high
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (spops_group_first_piece(offsets, middle) <= i)
            low = middle;
        else
            high = middle;
    }
    const int64_t end = offsets[low + 1];
    const int64_t begin =
        offsets[low] + (i - spops_group_first_piece(offsets, low)) * SPOPS_GROUP_PIECE_ROWS;
    spops_group_piece piece;
    piece.sample = low;
    piece.begin = begin < end ? begin : end;
    piece.end =
        end - piece.begin < SPOPS_GROUP_PIECE_ROWS ? end : piece.begin + SPOPS_GROUP_PIECE_ROWS;
    return piece;
}

typedef struct spops_group_scratch {
    float *partials; // [most pieces][2][cols]
    float *
        sums; // [samples][2][groups]: of the gradient, and of the gradient times the normalised value
} spops_group_scratch;

// Vectors and scratch of f64 rows hold f64, whatever their types say.
typedef struct spops_group_norm_args {
    spops_group_samples samples;
    int64_t groups;
    spops_matrix x;
    spops_matrix out;      // of the forward pass
    spops_matrix grad_out; // of the gradients
    spops_matrix grad_x;
    const float *mean, *var;       // [samples * groups]
    float *mean_out, *var_out;     // of the statistics
    const float *gamma, *beta;     // [cols] or NULL
    float *grad_gamma, *grad_beta; // or NULL
    float epsilon;
    spops_activated activated;
    const spops_activation_table *activations; // of the CPU
    int32_t fixed_statistics;
    spops_group_scratch scratch;
} spops_group_norm_args;

#endif
