// SPDX-License-Identifier: Apache-2.0
// f64 arithmetic with one rounding per operation on both backends, for what decides in which cell or
// voxel a point falls.
#ifndef SPOPS_CORE_EXACT_F64_H
#define SPOPS_CORE_EXACT_F64_H

#include "spops/device/common.h"

#ifdef __CUDA_ARCH__
#define SPOPS_MUL_F64(a, b) __dmul_rn((a), (b))
#define SPOPS_ADD_F64(a, b) __dadd_rn((a), (b))
#else /* compiled with -ffp-contract=off */
#define SPOPS_MUL_F64(a, b) ((a) * (b))
#define SPOPS_ADD_F64(a, b) ((a) + (b))
#endif

#endif
