// SPDX-License-Identifier: Apache-2.0
// Dense matrix products by cuBLAS or a CBLAS, opened at run time, to measure against.
#ifndef SPOPS_BASELINES_BLAS_H
#define SPOPS_BASELINES_BLAS_H

#include <stdbool.h>
#include <stddef.h>

#include "spops/types.h"

typedef struct blas blas;

// On `stream`, with `num_threads` threads on the CPU. False with a line in error where there is no
// such library: libcublas.so.12 or, for the CPU, libopenblas.so.0 (environment: SPOPS_CUBLAS,
// SPOPS_CBLAS). The CPU has f32 only.
bool blas_create(spops_backend_kind backend, void *stream, int num_threads, blas **out, char *error,
                 size_t error_bytes);
void blas_destroy(blas *b);

// out [rows, out_cols] = x [rows, in_cols] w [in_cols, out_cols], all dense and of dtype, summed in
// f32 (with factors of f32 rounded to tf32 where tf32 is true).
void blas_multiply(blas *b, spops_dtype dtype, bool tf32, int64_t rows, int64_t in_cols,
                   int64_t out_cols, const void *x, const void *w, void *out);
// Whether a product could not be enqueued.
bool blas_failed(const blas *b);

#endif
