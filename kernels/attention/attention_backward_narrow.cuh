// SPDX-License-Identifier: Apache-2.0
// What the pass that makes the gradients of narrow heads takes besides
// (attention_backward_narrow_sm90.cuh).
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_NARROW_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_NARROW_CUH

#include "kernels/attention/attention_backward_params.cuh"

namespace spops
{

struct attention_narrow_params {
    attention_backward_params keys; // of OWN_KEYS; its tiles are not used
    attention_result grad_q;
    const int *own_offsets; // of patches, to key entries
    const int *num_patches;
    // Where grad_first and grad_second are by entry only because rows may have several: the rows, for those of
    // one entry. Their data may be null, as may key_offsets, of all rows.
    attention_result row_first, row_second;
    const int *key_offsets; // entries of a row
};

// A lane's share of one row of sums of an own entry, as store_gradient has it.
template <class T, int DIM>
__device__ __forceinline__ void
store_own_gradient(const attention_result &by_entry, const attention_result &by_row, bool single,
                   int64_t entry, int row, int head, int dim, const float (&sums)[DIM / 2],
                   int half, float scale, int q)
{
    const bool direct = single && by_row.data != nullptr;
    store_gradient<T, DIM>(by_entry, entry, direct ? -1 : row, head, dim, sums, half, scale, q);
    store_gradient<T, DIM>(by_row, entry, direct ? row : -1, head, dim, sums, half, scale, q);
}

} // namespace spops

#endif
