// SPDX-License-Identifier: Apache-2.0
// The weighted, gathering sum as a product of a sparse (CSR) and a dense matrix by cuSPARSE, which
// is opened at run time: nothing here links it, and where it is absent create says so.
#ifndef SPOPS_CUSPARSE_SPMM_H
#define SPOPS_CUSPARSE_SPMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "spops/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cusparse_spmm cusparse_spmm;

// out[s, :] = sum over terms t of segment s of w[t] * x[idx[t], :]; arrays in device memory, rows
// without gaps, w and out in the dtype of x, sums in f32.
typedef struct cusparse_spmm_desc {
    spops_dtype dtype;
    int64_t num_segments, num_rows, num_terms, cols;
    const int32_t *offsets, *idx;
    const void *w, *x;
    void *out;
    void *stream;
    int algorithm; // 1 to 3: CUSPARSE_SPMM_CSR_ALG1 to ALG3
} cusparse_spmm_desc;

// Opens the library named by the environment variable SPOPS_CUSPARSE, else libcusparse.so.12, .so.
// False, with one line in error, where it is missing or refuses.
bool cusparse_spmm_create(const cusparse_spmm_desc *desc, cusparse_spmm **out, char *error,
                          size_t error_bytes);
void cusparse_spmm_enqueue(void *spmm); // a cusparse_spmm
bool cusparse_spmm_failed(const cusparse_spmm *spmm);
void cusparse_spmm_destroy(cusparse_spmm *spmm);

#ifdef __cplusplus
}
#endif

#endif
