// SPDX-License-Identifier: Apache-2.0
// What the backends' slots of attention take, checked already.
#ifndef SPOPS_ATTENTION_ATTENTION_ARGS_H
#define SPOPS_ATTENTION_ATTENTION_ARGS_H

#include "patches/patch_arrays.h"
#include "spops/device/common.h"
#include "spops/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SPOPS_ATTENTION_MAX_HEADS 1024
#define SPOPS_ATTENTION_MAX_DIM   256
#define SPOPS_ATTENTION_MAX_PAIRS (SPOPS_ATTENTION_MAX_DIM / 6)

// Rows of all heads: element c of head h of row r is at
// data + (r * row_stride + h * head_stride + c) elements.
typedef struct spops_attention_view {
    void *data;
    int64_t row_stride, head_stride; // elements; row_stride is 0 where there is one row
    spops_dtype dtype;
} spops_attention_view;

// Columns of q and k turned by angles: pair p of axis a is made of columns
//     a * axis_dim + p   and   a * axis_dim + pairs + p,   axis_dim = 2 * pairs,
// and turns by coords[row][a] * frequencies[p] (in f32): (u, v) becomes
//     (u cos - v sin, v cos + u sin).
// Columns from 3 * axis_dim on stay.
typedef struct spops_attention_rotary_args {
    const void *coords;     // [num_rows][3] f32 or i32; NULL: nothing is turned
    spops_dtype dtype;      // of coords
    int64_t stride;         // elements between rows
    const void *key_coords; // [num_key_rows][3]: of k
    int64_t key_stride;
    int32_t pairs;                                // of an axis, 1 to SPOPS_ATTENTION_MAX_PAIRS
    float frequencies[SPOPS_ATTENTION_MAX_PAIRS]; // base ^ (-p / pairs)
    float base;
} spops_attention_rotary_args;

// Added to the scaled logit of query i and key j, head h: the sum over axes a of
//     table[spops_attention_table_row(range, a, coords[i][a], coords[j][a]) * table_stride + h]
typedef struct spops_attention_bias_args {
    const float *table;        // [spops_attention_table_rows(range)][heads], f64 of f64; NULL: none
    int64_t table_stride;      // floats between its rows
    const int32_t *coords;     // [num_rows][3]
    int64_t stride;            // of coords, elements between rows
    const int32_t *key_coords; // [num_key_rows][3]
    int64_t key_stride;
    int32_t range;
} spops_attention_bias_args;

// Every head of a row becomes x[c] / sqrt(mean of x^2 + epsilon) * weights[head * stride + c].
typedef struct spops_attention_norm_args {
    const float *weights; // f64 of f64; NULL: rows stay
    int64_t stride;       // elements between heads; 0: all have the same
} spops_attention_norm_args;

enum { SPOPS_ATTENTION_Q, SPOPS_ATTENTION_K, SPOPS_ATTENTION_NUM_TURNED };

SPOPS_HD int32_t spops_attention_table_rows(int32_t range)
{
    return 3 * (2 * range + 1);
}

// Differences may exceed 32 bits.
SPOPS_HD int32_t spops_attention_table_row(int32_t range, int32_t axis, int32_t query, int32_t key)
{
    const int64_t difference = (int64_t)query - key;
    const int64_t clamped = difference < -range ? -range : difference > range ? range : difference;
    return axis * (2 * range + 1) + range + (int32_t)clamped;
}

// For the queries i of a patch, its keys j, and every head:
//     s[i, j] = scale * (q[i] . k[j]) + bias[i, j]
//     lse[i]  = log(sum over j of exp(s[i, j]))          -infinity where there is no key
//     o[i]    = sum over j of exp(s[i, j] - lse[i]) v[j]        0 where there is no key
// where head h of q meets head h / (heads / kv_heads) of k and v. Rows that are no query get o = 0 and
// lse = -infinity. num_rows is at least 1.
typedef struct spops_attention_args {
    const spops_patch_arrays *patches;
    int32_t heads, dim; // dim is 1 to SPOPS_ATTENTION_MAX_DIM
    int32_t kv_heads;   // of k and v: head h of q meets head h / (heads / kv_heads)
    float scale;
    double scale_f64;                // of rows of f64
    bool tf32;                       // factors of f32 may be rounded to tf32
    spops_attention_view q, k, v, o; // of one dtype
    float *lse;                      // [num_rows][heads], f64 of f64; NULL: not wanted
    spops_attention_rotary_args rotary;
    spops_attention_bias_args bias;
    spops_attention_norm_args norms[SPOPS_ATTENTION_NUM_TURNED]; // before rows are turned
    float epsilon;
    int32_t
        tile; // a row of kernels/attention/attention_tuning.h, of this direction; else the table's
    void *workspace; // attention_scratch_bytes of the same sizes
} spops_attention_args;

// With p[i, j] = exp(s[i, j] - lse[i]), and d[i] = grad_o[i] . o[i]:
//     ds[i, j]  = p[i, j] * (grad_o[i] . v[j] - d[i])
//     grad_q[i] = scale * sum over j of ds[i, j] k[j], turned back
//     grad_k[j] = scale * sum over i of ds[i, j] q[i], turned back
//     grad_v[j] = sum over i of p[i, j] grad_o[i]
//     grad_bias = ds summed by the elements of the table that were added
// where q and k are as turned. A row that is a key of several patches gets the sum over them, by
// ascending entry; rows that are no query, no key get 0. Every output may be absent.
typedef struct spops_attention_backward_args {
    spops_attention_args forward;                // o and lse are inputs, both there
    spops_attention_view grad_o;                 // of the dtype of q
    spops_attention_view grad_q, grad_k, grad_v; // f32 or of the dtype of q; data NULL: not wanted
    float *grad_table; // like forward.bias.table, stride grad_table_stride; NULL: not wanted
    int64_t grad_table_stride;
    // Like forward.norms, strides those between heads; NULL: not wanted.
    float *grad_weights[SPOPS_ATTENTION_NUM_TURNED];
    int64_t grad_weights_strides[SPOPS_ATTENTION_NUM_TURNED];
} spops_attention_backward_args;

// Of one call, forward or backward.
typedef struct spops_attention_scratch_args {
    const spops_patch_arrays *patches;
    int32_t heads, dim, kv_heads;
    spops_dtype dtype; // of q, k, v
    bool backward;
    int32_t rotary_pairs; // of an axis; 0: nothing is turned
    bool keys_turn_apart; // k has coords of its own
    bool norms[SPOPS_ATTENTION_NUM_TURNED];
    int32_t bias_range; // -1: no bias
    bool tf32;
    int32_t tile; // as spops_attention_args has it
} spops_attention_scratch_args;

// Of a call with these arguments.
static inline spops_attention_scratch_args
spops_attention_scratch_args_of(const spops_attention_args *a, bool backward)
{
    spops_attention_scratch_args s;
    s.patches = a->patches;
    s.heads = a->heads;
    s.dim = a->dim;
    s.kv_heads = a->kv_heads;
    s.dtype = a->q.dtype;
    s.backward = backward;
    s.rotary_pairs = a->rotary.coords != NULL ? a->rotary.pairs : 0;
    s.keys_turn_apart =
        a->rotary.key_coords != a->rotary.coords || a->rotary.key_stride != a->rotary.stride;
    for (int side = 0; side < SPOPS_ATTENTION_NUM_TURNED; ++side)
        s.norms[side] = a->norms[side].weights != NULL;
    s.bias_range = a->bias.table != NULL ? a->bias.range : -1;
    s.tf32 = a->tf32;
    s.tile = a->tile;
    return s;
}

#ifdef __cplusplus
}
#endif

#endif
