// SPDX-License-Identifier: Apache-2.0
// Rows times one matrix on sm_90a, for the launcher in igemm.cu.
#ifndef SPOPS_KERNELS_IGEMM_DENSE_SM90_CUH
#define SPOPS_KERNELS_IGEMM_DENSE_SM90_CUH

#include "kernels/igemm/igemm_launch.cuh"

namespace spops
{

// Whether these are rows in order, all of one matrix, of a dtype and with what follows the sum that the
// kernels here know.
inline bool dense_sm90_takes(const spops_igemm_args *args, const weight_form &f)
{
    const epilogue_params e = epilogue_of(args);
    return args->tile == 0 && args->schedule->records == nullptr &&
           args->schedule->tiles == nullptr && args->x.dtype != SPOPS_DTYPE_F32 && !f.copied &&
           !e.in_f32 && e.wide && (e.residual == nullptr || e.residual_wide);
}

// Eight numbers of 16 bits of the residual.
__device__ __forceinline__ uint4 eight_of_residual(const epilogue_params &p, int row, int col)
{
    return *reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(p.residual) +
                                            row * p.residual_stride + col);
}

// Blocks keep their columns of W (dense_sm90.cu), whatever the number of rows; where k is too long for that,
// tiles of many rows (deep_sm90.cu), which know no scale and shift. These depend on the number of rows; bits do not, because igemm_sm90.cuh,
// which has the others, adds in the same order.
bool dense_sm90_fits(const spops_context *ctx, const spops_igemm_args *args, const weight_form &f);
spops_status launch_dense_sm90(spops_context *ctx, const spops_igemm_args *args,
                               const weight_form &f);
spops_status prepare_dense_sm90(spops_context *ctx);

// For dense_sm90.cu.
bool deep_sm90_fits(const spops_context *ctx, const spops_igemm_args *args, const weight_form &f);
spops_status launch_deep_sm90(spops_context *ctx, const spops_igemm_args *args,
                              const weight_form &f);
spops_status prepare_deep_sm90(spops_context *ctx);

} // namespace spops

#endif
