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

// Rows in which the chunk at `chunk` may be read by aligned words of 16 bytes.
inline int32_t rows_with_readable_chunk(const spops_matrix &m, int64_t chunk)
{
    const int64_t element = (int64_t)spops_dtype_bytes(m.dtype), stride = m.row_stride * element;
    const bool aligned = common_chunk({m}) > 1; // then a chunk is one word
    const int64_t end = (m.rows - 1) * stride + m.cols * element;
    const int64_t last_begin = end - chunk * 16 - (aligned ? 16 : 32);
    if (last_begin < 0) return 0;
    const int64_t rows = m.rows == 1 ? 1 : last_begin / stride + 1;
    return (int32_t)(rows < m.rows ? rows : m.rows);
}
inline readable_rows readable_rows_of(const spops_matrix &m)
{
    readable_rows r = {0, 0};
    if (m.data == nullptr || m.rows == 0 || m.cols == 0) return r;
    const int64_t vec = 16 / (int64_t)spops_dtype_bytes(m.dtype);
    r.whole = rows_with_readable_chunk(m, (m.cols - 1) / vec - (m.cols % vec != 0));
    r.last = rows_with_readable_chunk(m, (m.cols - 1) / vec);
    return r;
}

} // namespace spops

#endif
