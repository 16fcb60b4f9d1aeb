// SPDX-License-Identifier: Apache-2.0
// oneterm.cu: sums over lists whose segments have one term or none, as the lists by row of a
// permutation have. No schedule is walked: the position of a term follows from its segment.
#ifndef SPOPS_KERNELS_SEGREDUCE_ONETERM_CUH
#define SPOPS_KERNELS_SEGREDUCE_ONETERM_CUH

#include "kernels/core/launch.cuh"
#include "segments/lists.h"
#include "spops/types.h"

namespace spops
{

// For the term of each segment o of lists:
//
//     lists      pairs            out[r] = w[m] * rows[s]    grad_w[m] = <others[r], rows[s]>
//     by row     s, m             r = o                      where a term names m
//     by weight  r, s             where a term names r       m = o
//
// Forward lists are like lists by row. Of an o without a term the result is 0.
struct one_term_args {
    const spops_lists *lists;
    bool by_weight;
    spops_matrix rows;
    spops_matrix w;              // data NULL: all ones
    spops_matrix out;            // data NULL: not wanted
    spops_matrix others, grad_w; // data NULL: not wanted
};

// Whether the host knows that no segment has two terms; and that each has one.
inline bool has_one_term_at_most(const spops_lists *lists)
{
    return !lists->counts_on_device && lists->host_schedule.longest <= 1;
}
inline bool has_one_term_each(const spops_lists *lists)
{
    return has_one_term_at_most(lists) && lists->host_schedule.num_nonempty == lists->num_segments;
}

spops_status one_term(spops_context *ctx, const one_term_args &args);

} // namespace spops

#endif
