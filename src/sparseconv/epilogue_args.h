// SPDX-License-Identifier: Apache-2.0
// The epilogue of a convolution as a pass of its own.
#ifndef SPOPS_SPARSECONV_EPILOGUE_ARGS_H
#define SPOPS_SPARSECONV_EPILOGUE_ARGS_H

#include "spops/norm.h"

// out = activation((out + bias) * scale + shift + residual), in f32, rounded once. Rows of out that
// count: *num_rows, or all.
typedef struct spops_epilogue_args {
    spops_matrix out;
    spops_matrix residual;             // data NULL: none; dtype of out
    const int32_t *num_rows;           // NULL: all
    const float *bias, *scale, *shift; // [out.cols] or NULL
    spops_activation activation;
} spops_epilogue_args;

// On the CPU: n sums of a row, from column col on, become elements of out (n at most
// SPOPS_EPILOGUE_STRIP).
#define SPOPS_EPILOGUE_STRIP 256
void spops_epilogue_finish(const spops_epilogue_args *args, int64_t row, int64_t col, int n,
                           float *sums);

#endif
