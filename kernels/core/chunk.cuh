// SPDX-License-Identifier: Apache-2.0
// The widest chunk of columns that a thread may take.
#ifndef SPOPS_KERNELS_CORE_CHUNK_CUH
#define SPOPS_KERNELS_CORE_CHUNK_CUH

#include <initializer_list>

#include "spops/device/dtypes.cuh"
#include "spops/types.h"

namespace spops
{

// Elements of the widest chunk (16 bytes or one element) that every row of all the matrices, which
// have one dtype, allows. Absent matrices (data NULL) do not count.
inline int common_chunk(std::initializer_list<spops_matrix> matrices)
{
    int vec = 16;
    for (const spops_matrix &m : matrices) {
        if (m.data == nullptr) continue;
        const int own = chunk_elements(m.data, m.row_stride, m.rows, spops_dtype_bytes(m.dtype));
        vec = own < vec ? own : vec;
    }
    return vec;
}

// Where the last row of a matrix ends.
inline const void *rows_end(const spops_matrix &m)
{
    if (m.data == nullptr || m.rows == 0) return m.data;
    return static_cast<const char *>(m.data) +
           ((m.rows - 1) * m.row_stride + m.cols) * (int64_t)spops_dtype_bytes(m.dtype);
}

} // namespace spops

#endif
