// SPDX-License-Identifier: Apache-2.0
#ifndef SPOPS_NORM_ADDNORM_ARGS_H
#define SPOPS_NORM_ADDNORM_ARGS_H

#include "norm/norm_args.h"

// Numbers of a row that a lane of a warp holds at most.
#define SPOPS_NORM_HELD 16

// sum = x + y, or x + the norm of y, and then its norm. Rows are such that a warp can hold them.
typedef struct spops_addnorm_args {
    spops_norm_args norm; // of the sum, which is its x
    spops_matrix x, y;
    const float *y_gamma, *y_beta;
    bool norm_y;
} spops_addnorm_args;

#endif
