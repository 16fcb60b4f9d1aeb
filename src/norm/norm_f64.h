// SPDX-License-Identifier: Apache-2.0
// Normalisation of rows of f64 on the CPU, in f64: what the slots of the same names do.
#ifndef SPOPS_NORM_NORM_F64_H
#define SPOPS_NORM_NORM_F64_H

#include "core/context.h"
#include "norm/group_args.h"

spops_status spops_norm_statistics_f64(spops_context *ctx, const spops_norm_args *args);
spops_status spops_norm_forward_f64(spops_context *ctx, const spops_norm_args *args);
spops_status spops_norm_backward_f64(spops_context *ctx, const spops_norm_args *args);
spops_status spops_norm_merge_f64(const spops_norm_merge_args *args);
spops_status spops_group_statistics_f64(spops_context *ctx, const spops_group_norm_args *args);
spops_status spops_group_forward_f64(spops_context *ctx, const spops_group_norm_args *args);
spops_status spops_group_backward_f64(spops_context *ctx, const spops_group_norm_args *args);

#endif
