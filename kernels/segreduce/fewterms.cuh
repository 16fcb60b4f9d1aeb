// SPDX-License-Identifier: Apache-2.0
// fewterms.cu: reductions over short segments whose counts are on the device.
#ifndef SPOPS_KERNELS_SEGREDUCE_FEWTERMS_CUH
#define SPOPS_KERNELS_SEGREDUCE_FEWTERMS_CUH

#include "kernels/launchers.h"

namespace spops
{

// Whether the values of a built-in reduction without weights are asked for, of rows of whole chunks.
bool few_terms_fit(const spops_segreduce_args *args);
spops_status few_terms(spops_context *ctx, const spops_segreduce_args *args);

// Whether the gradient of MEAN without weights is, with respect to rows of whole chunks.
bool few_terms_mean_grad_fit(const spops_grad_args *args);
spops_status few_terms_mean_grad(spops_context *ctx, const spops_grad_args *args);

} // namespace spops

#endif
