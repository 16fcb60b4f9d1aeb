// SPDX-License-Identifier: Apache-2.0
// Boxes that products copy rows of x and weights by. Only sources compiled for compute_90a may include this.
#ifndef SPOPS_KERNELS_IGEMM_IGEMM_BOXES_CUH
#define SPOPS_KERNELS_IGEMM_IGEMM_BOXES_CUH

#include "kernels/core/sm90/hopper.cuh"
#include "kernels/core/sm90/tensor_map.cuh"
#include "kernels/igemm/igemm_launch.cuh"

namespace spops
{

// So many numbers of k by so many rows.
inline box_shape box_of_rows(const spops_matrix &x, int numbers, int rows)
{
    box_shape box = {};
    box.data = x.data;
    box.line = x.cols;
    box.lines = x.rows;
    box.slabs = 1;
    box.stride = x.row_stride;
    box.box_line = numbers;
    box.box_lines = rows;
    box.dtype = x.dtype;
    return box;
}

// So many numbers of k by so many columns. Where lines of W have columns, a box has `line_cols` of them.
template <operand B>
box_shape box_of_weights(const spops_igemm_args *args, const weight_form &f, int numbers, int cols,
                         int line_cols)
{
    box_shape box = {};
    box.data = f.copied ? args->scratch : args->w.data;
    box.line = B == ALONG_K ? f.padded_depth : f.cols;
    box.lines = B == ALONG_K ? f.cols : f.depth;
    box.slabs = f.taps;
    box.box_line = B == ALONG_K ? numbers : line_cols;
    box.box_lines = B == ALONG_K ? cols : numbers;
    box.dtype = args->x.dtype;
    return box;
}

} // namespace spops

#endif
