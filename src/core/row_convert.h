// SPDX-License-Identifier: Apache-2.0
// Part of a row of a float dtype as f32 and back, for CPU code that works on strips of columns.
#ifndef SPOPS_CORE_ROW_CONVERT_H
#define SPOPS_CORE_ROW_CONVERT_H

#include <string.h>

#include "core/half.h"
#include "core/matrix.h"

// Where element (row, col) is.
static inline char *spops_row_element(spops_matrix m, int64_t row, int64_t col)
{
    return (char *)m.data + spops_elements_bytes(m.dtype, row * m.row_stride + col);
}

// Zeros in rows begin to end - 1.
static inline void spops_clear_rows(spops_matrix m, int64_t begin, int64_t end)
{
    for (int64_t row = begin; row < end; ++row)
        memset(spops_row_element(m, row, 0), 0, spops_elements_bytes(m.dtype, m.cols));
}

// n elements from (row, col) on, as f32.
static inline void spops_row_load(spops_matrix m, int64_t row, int64_t col, int n, float *v)
{
    const void *from = spops_row_element(m, row, col);
    switch (m.dtype) {
#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    case SPOPS_DTYPE_##NAME:                                                                       \
        for (int i = 0; i < n; ++i)                                                                \
            v[i] = spops_float_of_##name(((const c_type *)from)[i]);                               \
        break;
#include "core/dtypes.def"
    default: break;
    }
}

static inline void spops_row_store(spops_matrix m, int64_t row, int64_t col, int n, const float *v)
{
    void *to = spops_row_element(m, row, col);
    switch (m.dtype) {
#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    case SPOPS_DTYPE_##NAME:                                                                       \
        for (int i = 0; i < n; ++i)                                                                \
            ((c_type *)to)[i] = spops_##name##_of_float(v[i]);                                     \
        break;
#include "core/dtypes.def"
    default: break;
    }
}

#endif
