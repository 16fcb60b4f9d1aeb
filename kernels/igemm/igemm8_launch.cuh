// SPDX-License-Identifier: Apache-2.0
// Launching the products of rows of 8 bits. Instances are in a source for each dtype and architecture.
#ifndef SPOPS_KERNELS_IGEMM_IGEMM8_LAUNCH_CUH
#define SPOPS_KERNELS_IGEMM_IGEMM8_LAUNCH_CUH

#include "igemm/igemm8_args.h"
#include "kernels/core/launch.cuh"

namespace spops
{

// columns: 64, 128 or 256, on sm_80 64 or 128.
template <class T>
spops_status launch_igemm8_sm90(spops_context *ctx, const spops_igemm8_args *args, int columns);
template <class T>
spops_status launch_igemm8_sm80(spops_context *ctx, const spops_igemm8_args *args, int columns);
template <class T> spops_status prepare_igemm8_sm90(spops_context *ctx, int columns);
template <class T> spops_status prepare_igemm8_sm80(spops_context *ctx, int columns);

} // namespace spops

#endif
