// SPDX-License-Identifier: Apache-2.0
/* A tape once more, in FP64 and as plainly as its formulas: its output and the gradients of all parameters. */
#ifndef NETWORKS_TAPE_REFERENCE_H
#define NETWORKS_TAPE_REFERENCE_H

#include "networks/tape.h"

/* Which rows meet, found without the library. Arrays belong to whoever made them. */
typedef struct reference_patches {
    int num;
    int *query_offsets, *query_rows; /* [num + 1], [rows] */
    int *key_offsets, *key_rows;
} reference_patches;

typedef struct reference_relations {
    int rows[TAPE_LEVELS];
    int *tables[TAPE_PLANS];  /* of convolutions: [rows][taps], the row that a tap joins, or -1 */
    int *parents[TAPE_PLANS]; /* of pools: [finer rows], the coarser row */
    /* Of pools: [finer rows][cols], what the tape took the largest of: a row that rounding makes the
       largest has the gradient. NULL: not known. */
    float *compared[TAPE_PLANS];
    reference_patches patches[TAPE_PLANS];
} reference_relations;

void reference_relations_free(reference_relations *r);

/*
 * Run the steps of a tape for training. inputs: of each value that is one, [rows][cols]. evaluates: 1: batch
 * norms take their running statistics. Matrices of parameters count as the tape's dtype has them.
 *
 * output     [rows][cols] of the tape's output
 * target     like output; gradients are those of half the squared distance from it. NULL: forward alone
 * gradients  [num_elements]
 */
int reference_run(const tape *t, const float *parameters, const reference_relations *r,
                  double *const *inputs, int evaluates, double *output, const double *target,
                  double *gradients);

/* |a - b| / |b| over all elements, and that of each step's parameters together: the largest, and of which
   step. */
double reference_distance(const float *found, const double *expected, int64_t n);
double reference_worst_gradient(const tape *t, const float *found, const double *expected,
                                const char **name);

/* Rows of a matrix of the tape's dtype where its context runs, as f32, in memory to be freed. */
float *reference_download(const tape *t, spops_matrix m, int64_t rows);

#endif
