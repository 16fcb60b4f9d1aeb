// SPDX-License-Identifier: Apache-2.0
// Arrays as .npy files (format 1.0 and 2.0), little-endian and in C order: one or two dimensions of
// f32 or u8; matrices of f16 and f64 are read too.
#ifndef SPOPS_SUPPORT_NPY_H
#define SPOPS_SUPPORT_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum npy_type { NPY_F32, NPY_U8, NPY_F16, NPY_F64 } npy_type;

// [rows, cols]; cols 0: [rows]. False with one line in error.
bool npy_write(const char *path, npy_type type, int64_t rows, int64_t cols, const void *values,
               char *error, size_t error_bytes);

// The file must hold `type`, and cols columns (0: one dimension). *values is to be freed; NULL after
// a failure, and not NULL for an empty array.
bool npy_read(const char *path, npy_type type, int64_t cols, int64_t *rows, void **values,
              char *error, size_t error_bytes);

// A matrix of f32, f16 or f64 with any number of columns; *type and *cols say which.
bool npy_read_matrix(const char *path, npy_type *type, int64_t *rows, int64_t *cols, void **values,
                     char *error, size_t error_bytes);

#endif
