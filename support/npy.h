// Arrays as .npy files (format 1.0 and 2.0), little-endian and in C order: one or two dimensions of
// f32 or u8.
#ifndef SPOPS_SUPPORT_NPY_H
#define SPOPS_SUPPORT_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum npy_type { NPY_F32, NPY_U8 } npy_type;

// [rows, cols]; cols 0: [rows]. False with one line in error.
bool npy_write(const char *path, npy_type type, int64_t rows, int64_t cols, const void *values,
               char *error, size_t error_bytes);

// The file must hold `type`, and cols columns (0: one dimension). *values is to be freed; NULL after
// a failure, and not NULL for an empty array.
bool npy_read(const char *path, npy_type type, int64_t cols, int64_t *rows, void **values,
              char *error, size_t error_bytes);

#endif
