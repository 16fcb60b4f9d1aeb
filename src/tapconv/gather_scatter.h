// SPDX-License-Identifier: Apache-2.0
// Gather-matmul-scatter: rows are gathered into a buffer in the order of taps, multiplied there by the
// taps' matrices, and the products are summed by output row.
#ifndef SPOPS_TAPCONV_GATHER_SCATTER_H
#define SPOPS_TAPCONV_GATHER_SCATTER_H

#include "core/backend.h"
#include "mvmr/matmul_args.h"
#include "relation/relation.h"
#include "spops/sparseconv.h"
#include "tapconv/tap_groups.h"

// A relation's buffers and groups. Shared like the plan that owns it.
typedef struct spops_gather_scatter spops_gather_scatter;

typedef struct spops_gather_scatter_options {
    spops_tap_grouping grouping;
    int64_t max_in_channels, max_out_channels;
} spops_gather_scatter_options;

// A relation with lists by key, not of a plan made by reserve: the sizes of its taps become known to
// the host. Symmetric: the middle tap joins row to row. Waits. Scratch is not reserved.
spops_status spops_gather_scatter_create(spops_context *ctx, const char *call,
                                         const spops_relation *relation,
                                         const spops_gather_scatter_options *options,
                                         spops_gather_scatter **out);
void spops_gather_scatter_destroy(spops_gather_scatter *gs);
size_t spops_gather_scatter_bytes(const spops_gather_scatter *gs);
size_t spops_gather_scatter_scratch_bytes(const spops_gather_scatter *gs);

// The sum over taps, on checked arguments with channels up to the maxima. `reversed`: the gradient of
// x, where x is that of the sum and out that of x.
typedef struct spops_gather_scatter_call {
    spops_matrix x, w, out;
    bool reversed, tf32;
    void *scratch;
} spops_gather_scatter_call;
spops_status spops_gather_scatter_run(spops_context *ctx, const spops_gather_scatter *gs,
                                      const spops_gather_scatter_call *call);

// grad_w from x and grad_sum.
typedef struct spops_gather_scatter_weights_call {
    spops_matrix x, grad_sum, grad_w;
    bool tf32;
    void *scratch;
} spops_gather_scatter_weights_call;
spops_status spops_gather_scatter_run_weights(spops_context *ctx, const spops_gather_scatter *gs,
                                              const spops_gather_scatter_weights_call *call);

#endif
