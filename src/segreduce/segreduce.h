// SPDX-License-Identifier: Apache-2.0
// What operators run a segmented reduction with, once they have checked their arguments under their
// own names.
#ifndef SPOPS_SEGREDUCE_SEGREDUCE_H
#define SPOPS_SEGREDUCE_SEGREDUCE_H

#include "segments/segments.h"
#include "segreduce/segreduce_args.h"

// Two patterns that other operators run as well, on arguments checked before: out = sum over each segment's positions of w[b] * x[a].
spops_status spops_segreduce_run_sum(spops_context *ctx, const spops_lists *lists, spops_matrix x,
                                     spops_matrix w, spops_matrix out,
                                     spops_segments_scratch scratch);
// grad_w of the plan's forward sum, whose rows are x and whose output's gradient is grad_out.
spops_status spops_segreduce_run_dot(spops_context *ctx, const spops_segments *segments,
                                     spops_matrix grad_out, spops_matrix x, spops_matrix w,
                                     spops_matrix grad_w, spops_segments_scratch scratch);

// Enqueue the reduction. `what` says what to reduce and how; its lists, custom, partials and
// tickets are filled in here. Matrices with data NULL are absent (w: all ones; arg: not wanted).
spops_status spops_segreduce_run(spops_context *ctx, const char *call,
                                 const spops_segments *segments, spops_segreduce_args *what,
                                 spops_segments_scratch scratch);

// The same once the call's arguments are checked by its row: what a row cannot say, scratch, the
// reduction. has_arg: `what` has an arg, which may be empty.
spops_status spops_segreduce_run_checked(spops_context *ctx, const char *call,
                                         const spops_segments *segments, spops_segreduce_args *what,
                                         bool has_arg);
spops_status spops_segreduce_run_backward_checked(spops_context *ctx, const char *call,
                                                  const spops_segments *segments,
                                                  spops_reduce reduce, spops_matrix grad_out,
                                                  spops_matrix x, const spops_matrix *w,
                                                  const spops_matrix *grad_x,
                                                  const spops_matrix *grad_w);

// Whether the plan, the reduction and the backend can do gradients at all.
spops_status spops_segreduce_check_backward(spops_context *ctx, const char *call,
                                            const spops_segments *segments, spops_reduce reduce);

// Enqueue the gradients, after the check above. grad_x and grad_w with data NULL are not wanted.
spops_status spops_segreduce_run_backward(spops_context *ctx, const spops_segments *segments,
                                          spops_reduce reduce, spops_matrix grad_out,
                                          spops_matrix x, spops_matrix w, spops_matrix grad_x,
                                          spops_matrix grad_w, spops_segments_scratch scratch);

#endif
