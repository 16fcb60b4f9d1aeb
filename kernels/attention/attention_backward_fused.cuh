// SPDX-License-Identifier: Apache-2.0
// What fused gradients, those of keys and queries in one pass, take besides
// (attention_backward_fused_sm90.cuh).
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_FUSED_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_FUSED_CUH

#include "kernels/attention/attention_backward_params.cuh"

namespace spops
{

struct attention_fused_params {
    attention_backward_params keys; // of OWN_KEYS
    const int *own_offsets;         // of patches, to key entries
    float *sums; // of grad_q, unscaled: [heads][lines][query_entries][64], a line of 64 columns. Of
                 // entry e, columns 8 i to 8 i + 7 lie where those of i ^ e % 4 belong
    int *counts; // [heads][lines][query_entries]: of the first entry of 64 that are added together,
                 // how many blocks have added; 0 before
    int *taken;  // how many items blocks have taken; 0 before
    int ways, inner; // the order of items: attention_fused_list
};

} // namespace spops

#endif
