// SPDX-License-Identifier: Apache-2.0
// The epilogue of a layer, what follows its sum; in the kernels that make the sum, or as a pass of its own.
#ifndef SPOPS_IGEMM_EPILOGUE_ARGS_H
#define SPOPS_IGEMM_EPILOGUE_ARGS_H

#include <stdbool.h>

#include "core/activation.h"
#include "core/matrix.h"

// activation((sum + bias) * scale + shift + residual), in f32, or in f64 on the CPU; what is NULL or 0 is
// left out.
typedef struct spops_epilogue {
    spops_matrix residual;             // shape and dtype of out; data NULL: none
    const float *bias, *scale, *shift; // [out.cols] or NULL; addresses of f64 with is_f64
    spops_activated activated;
    const spops_activation_table *activations; // of the CPU
    bool is_f64;                               // bias to shift are, and what the sum was made of
} spops_epilogue;

static inline bool spops_epilogue_is_empty(const spops_epilogue *e)
{
    return e->residual.data == NULL && e->bias == NULL && e->scale == NULL && e->shift == NULL &&
           e->activated.activation == SPOPS_ACTIVATION_NONE;
}

// Of out, rounded once. Rows of out that count: *num_rows, or all.
typedef struct spops_epilogue_args {
    spops_matrix out;
    const int32_t *num_rows; // NULL: all
    spops_epilogue epilogue;
} spops_epilogue_args;

// On the CPU: n sums of a row, from column col on, become elements of out (n at most
// SPOPS_EPILOGUE_STRIP).
#define SPOPS_EPILOGUE_STRIP 256
void spops_epilogue_finish(const spops_epilogue_args *args, int64_t row, int64_t col, int n,
                           float *sums);
// The same where is_f64.
void spops_epilogue_finish_f64(const spops_epilogue_args *args, int64_t row, int64_t col, int n,
                               double *sums);

#endif
