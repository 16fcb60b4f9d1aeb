// SPDX-License-Identifier: Apache-2.0
// The epilogue of a convolution as a pass of its own.
#ifndef SPOPS_SPARSECONV_EPILOGUE_ARGS_H
#define SPOPS_SPARSECONV_EPILOGUE_ARGS_H

#include "spops/norm.h"

// out = activation((out + bias) * scale + shift + residual), in f32, rounded once. Rows of out that
// count: *num_rows.
typedef struct spops_epilogue_args {
    spops_matrix out;
    spops_matrix residual; // data NULL: none; dtype of out
    const int32_t *num_rows;
    const float *bias, *scale, *shift; // [out.cols] or NULL
    spops_activation activation;
} spops_epilogue_args;

#endif
