// SPDX-License-Identifier: Apache-2.0
// What the backends' segmented reductions are given (core/backend_slots.def).
#ifndef SPOPS_SEGREDUCE_SEGREDUCE_ARGS_H
#define SPOPS_SEGREDUCE_SEGREDUCE_ARGS_H

#include "segments/lists.h"
#include "segreduce/custom_reduce.h"

// out[o] = reduce over positions p of output row o of w[b(p)] * x[a(p)].
//
// What SUM may be asked for beyond that (all zero for every other use): an x of F8E4M3, F8E5M2 or
// F4E2M1, w and out of other dtypes than x (those of bevpool.h's table), and scales:
//     out[o, c] = sum * x_scale * w_scale / out_scale,
// where the factor is (x_scale * w_scale) / out_scale in f32, output rows without positions get 0,
// and an element of an F4E2M1 x counts as its value times x_scales[row, c / 16]. An out of an 8-bit
// dtype saturates.
typedef struct spops_segreduce_args {
    const spops_lists *lists;
    spops_reduce reduce;
    const spops_custom_reduce *custom; // set when reduce is a custom id
    spops_matrix x;
    spops_matrix w;   // data NULL: all ones
    spops_matrix out; // data NULL: not wanted
    spops_matrix arg; // i32; data NULL: not wanted
    void *states;   // [num_segments][x.cols] states of the reduction's traced op (reduce_ops.h), or
                    // NULL. With states or arg the traced op runs, else the plain one.
    void *partials; // [lists->max_pieces][x.cols] states of at most 8 bytes, of f64 16
    uint32_t *tickets;     // zero; left zero
    spops_matrix x_scales; // F8E4M3 [x.rows, ceil(x.cols / 16)] of an F4E2M1 x; else data NULL
    const float *x_scale, *w_scale, *out_scale; // backend memory, one each; NULL: 1
    spops_accumulate accumulate;
    void *x_f16; // CPU: scratch that an 8- or 4-bit x is widened to, [x.rows][x.cols] f16
} spops_segreduce_args;

// A gradient of a reduction, with t = order(p).
//
// Slot seggrad, with respect to rows, over the by-row lists (SUM goes to segreduce instead):
//     grad[o] = sum over positions p of output row o, with s = a(p), m = b(p), of
//               w[m] * grad(w[m] * x[o], t, states[s], count(s)) * grad_out[s]
//
// Slot segdot, with respect to weights, over the by-weight lists:
//     grad[o] = sum over positions p of weight o, with j = a(p), s = b(p), of
//               sum over c of x[j, c] * grad(w[o] * x[j, c], t, states[s, c], count(s)) *
//               grad_out[s, c]
typedef struct spops_grad_args {
    const spops_lists *lists; // by row: pairs = segment, weight; by weight: row, segment
    spops_reduce reduce;
    const spops_custom_reduce *custom;
    spops_matrix grad_out, x;
    spops_matrix w; // data NULL: all ones
    spops_matrix grad;
    const void *states; // traced states of the forward pass; NULL for SUM and MEAN
    const int32_t
        *segment_offsets; // of the forward lists: count(s); NULL: of SUM, which asks for none
    void *partials;       // [lists->max_pieces] f32, each as wide as a row of grad
    uint32_t *tickets;
} spops_grad_args;

// Gradients of SUM in one walk over the by-row lists, for plans whose weights are each named once
// (segments.h, weights_unique):
//     grad_x[o] = sum over positions p of output row o of  w[b(p)] * grad_out[a(p)]
//     grad_w[b(p)] = <x[o], grad_out[a(p)]>;  weights that no position names are left alone.
// Or over the by-weight lists, where these are better. A gradient that is not wanted has data NULL.
typedef struct spops_sumgrad_args {
    const spops_lists *lists, *by_weight;
    spops_matrix grad_out, x, w, grad_x, grad_w;
    void *partials; // [lists->max_pieces][x.cols] f32
    uint32_t *tickets;
} spops_sumgrad_args;

// The gradient of a reduction with respect to rows, without weights, where every row is in one segment
// at most: what seggrad gives, from the forward lists alone.
typedef struct spops_partgrad_args {
    const spops_lists *lists, *by_row; // of by_row the offsets: rows without a term get 0
    spops_reduce reduce;               // built in
    spops_matrix grad_out, x, grad;
} spops_partgrad_args;

// A registered reduction whose kernels are compiled, or freed.
typedef struct spops_reduce_create_args {
    spops_custom_reduce *custom;
} spops_reduce_create_args;

#endif
