/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over lists of rows: every query row of a patch (spops/patches.h) attends to the key rows
 * of its patch. Rows of Q, K and V are read where they lie and rows of O written where they belong,
 * so that nothing is gathered, padded or scattered around the call. Buckets, serialized patches and
 * windows differ in their plan alone.
 */
#ifndef SPOPS_ATTENTION_H
#define SPOPS_ATTENTION_H

#include "spops/mvmr.h"
#include "spops/patches.h"

SPOPS_EXTERN_C_BEGIN

/**
 * Rotary embedding of positions in three coordinates. The first 3 * axis_dim columns of every head
 * of q and k belong to the axes x, y and z in turn, and the columns of an axis are two halves: column
 * p of the first, u, and of the second, v, become
 *
 *     u cos(a) - v sin(a)   and   v cos(a) + u sin(a),   a = coords[row, axis] * base^(-2 p / axis_dim)
 *
 * Columns after them stay as they are. With the default axis_dim this is the embedding of Utonia
 * (base 10000) and of LitePT (base 100).
 */
typedef struct spops_attention_rotary {
    size_t struct_size;
    spops_matrix coords; /* [num_rows, 3], f32 or i32; one that is not finite gives NaN columns */
    float base;          /* more than 0; 0: 10000 */
    int32_t axis_dim;    /* even, at most dim / 3; 0: dim / 3, which must then be even */
    spops_matrix key_coords; /* [num_key_rows, 3], dtype of coords: of the rows of k; without rows:
                                coords, where there are as many */
} spops_attention_rotary;

SPOPS_DEFINE_DEFAULT(spops_attention_rotary)

/**
 * Bias by relative position, as older checkpoints of Point Transformer V3 have it: added to the
 * scaled logit of query i and key j of head h is the sum over the axes a of
 *
 *     table[a * (2 range + 1) + range + clamp(coords[i, a] - coords[j, a], -range, range), h]
 */
typedef struct spops_attention_bias {
    size_t struct_size;
    spops_matrix coords;     /* [num_rows, 3] i32 */
    spops_matrix table;      /* [3 * (2 range + 1), heads] f32, beside rows of f64 f64 */
    spops_matrix key_coords; /* as spops_attention_rotary has it */
} spops_attention_bias;

SPOPS_DEFINE_DEFAULT(spops_attention_bias)

/**
 * RMS norm of every head of q and of k, before they are rotated: column c becomes
 *
 *     x[c] / sqrt(mean of x^2 + epsilon) * weight[c]
 *
 * Weights are f32, beside rows of f64 f64. A side whose weights have no rows is not normalised. A
 * head whose squares are beyond f32 becomes 0.
 */
typedef struct spops_attention_norm {
    size_t struct_size;
    spops_matrix q_weight; /* [heads, dim], or [1, dim] for all heads */
    spops_matrix k_weight; /* [kv_heads, dim], or [1, dim] */
    float epsilon;         /* 0 or more, finite; 0: 1e-5 */
} spops_attention_norm;

SPOPS_DEFINE_DEFAULT(spops_attention_norm)

/** How rows attend to each other. Zero is the default of every field. */
typedef struct spops_attention_options {
    size_t struct_size;
    int32_t heads;           /* up to 1024; 0: 1 */
    float scale;             /* of logits, finite; 0: 1 / sqrt(dim) */
    int64_t qkv_head_stride; /* elements from a head to the next of q, k, v and their gradients; 0:
                               dim. More where something lies between the heads of a row */
    int64_t o_head_stride;   /* the same of o and its gradient */
    spops_math math;         /* of f32 rows; TF32: products on tensor cores, see Numerics */
    const spops_attention_rotary *rotary; /* NULL: none */
    const spops_attention_bias *bias;     /* NULL: none */
    int32_t
        tile; /* of the kernel on CUDA, by number, as spops_attention_get_tile has it; those of the
                     forward call and of gradients leave each other alone; 0: the measured one */
    int32_t kv_heads; /* of k and v, a divisor of heads: head h of q meets their head h / (heads /
                         kv_heads); 0: heads */
    const spops_attention_norm *norm; /* NULL: none */
} spops_attention_options;

SPOPS_DEFINE_DEFAULT(spops_attention_options)

/* clang-format off */
/**
 * Let rows attend to each other. For every head, every query i of a patch, and its keys j:
 *
 *     s[i, j] = scale * (q[i] . k[j]) + bias[i, j]
 *     lse[i]  = log(sum over j of exp(s[i, j]))
 *     o[i]    = sum over j of exp(s[i, j] - lse[i]) v[j]
 *
 * with q and k normalised, and then rotated by the rotary embedding. A query without keys, and a row that
 * is no query, get o = 0 and lse = -infinity.
 *
 * patches   Which rows. num_rows is their number in q, o and lse, num_key_rows in k and v.
 * q         [num_rows, heads * dim], f32 f16 bf16, on the CPU f64; dim is 1 to 256.
 * k, v      [num_key_rows, kv_heads * dim], dtype of q. Each of the three has a row stride
 *           of its own: the parts of a packed [rows, 3, heads, dim] are three views with
 *           row_stride 3 * heads * dim. With a head stride, data is the first element, and cols
 *           still heads * dim.
 * options   NULL: defaults.
 * o         [num_rows, heads * dim], dtype of q. Every row is written. Must not overlap an input.
 * lse       [num_rows][heads] f32, of f64 f64, or NULL where it is not wanted. Gradients need it.
 *
 * Memory    Where ctx runs. No pointer is kept.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   spops_attention_scratch_bytes, reserved in ctx beforehand. With a norm or rotary positions
 *           CUDA keeps copies of q and k in it, in which rows are rotated once, and not again
 *           for every query that meets them; without, the forward call needs none.
 * Numerics  Logits, softmax and sums in f32; factors of f16 and bf16 as stored, where normalised and
 *           rotated rows and the weights exp(..) may be rounded to that dtype again. With SPOPS_MATH_TF32, CUDA
 *           devices of sm_80 and later take the upper 19 bits of the factors of f32 (an error of
 *           2^-10 each); elsewhere, and in 16 bits, it changes nothing. Angles in f32. Rows of f64 have all
 *           of it in f64, but for a scale and a base that are given. Keys in an
 *           order that the plan alone decides: same bits on every run and thread count. A logit of
 *           NaN or +infinity makes its row NaN, also where all logits are -infinity; logits of
 *           -infinity beside others weigh nothing, but 0 times an infinite v is NaN.
 *           docs/attention.md has bounds.
 * Errors    INVALID_ARGUMENT (shape, dtype, stride, coordinates, a tile that does not take the
 *           arguments), SCRATCH_TOO_SMALL, NOT_SUPPORTED
 *           (dim of more than 256; on CUDA heads times tiles of 64 rows of more than 2^30, 16 bits
 *           before sm_80, and a dim that needs more shared memory than a block has), CUDA. After any but
 *           CUDA, nothing was enqueued and o is untouched.
 * Threads   One thread at a time per ctx; patches may be shared.
 * Source    Flash3D, section 4 (rows move once, patches change); FlashAttention-2, Algorithm 1
 *           (softmax while keys stream by); Ainslie et al., GQA, 2023 (kv_heads); Zhang and Sennrich,
 *           Root Mean Square Layer Normalization, 2019 (norm).
 */
SPOPS_API spops_status spops_attention_execute(spops_context *ctx, const spops_patches *patches,
                                               spops_matrix q, spops_matrix k, spops_matrix v,
                                               const spops_attention_options *options,
                                               spops_matrix o, void *lse);

/**
 * Gradients of spops_attention_execute with respect to q, k, v, the table of biases and the weights of
 * the norm, with
 * p[i, j] = exp(s[i, j] - lse[i]):
 *
 *     ds[i, j]  = p[i, j] (grad_o[i] . v[j] - grad_o[i] . o[i])
 *     grad_q[i] = scale * sum over j of  ds[i, j] k[j]
 *     grad_k[j] = scale * sum over i of  ds[i, j] q[i]
 *     grad_v[j] = sum over i of          p[i, j] grad_o[i]
 *     grad_table[t, h] = sum of ds[i, j] over the pairs that took element t of the table
 *
 * where grad_q and grad_k are rotated back by the rotary embedding, and go through the norm. A row that
 * is a key of several patches gets the sum over them, a head of k and v the sum over the heads of q that
 * meet it.
 *
 * grad_o    [num_rows, heads * dim], dtype of q. Only rows that are queries are read.
 * o, lse    What the forward call gave for these inputs and options.
 * grad_q, grad_k, grad_v
 *           Shapes of q, k and v, dtype of q or f32, or NULL. Every row is written: one that is no
 *           query, or no key, gets 0. The parts of one packed matrix, like q, k and v. Must not
 *           overlap an input.
 * grad_table  [3 * (2 range + 1), heads], dtype of the table, or NULL; options must then have a bias. Elements that
 *           no pair took get 0.
 * grad_q_weight, grad_k_weight  Shapes and dtype of the weights, or NULL; options must then have them.
 *
 * Queries whose lse is -infinity contribute nothing. On CUDA, a table of more rows than a block can
 * sum (2,000 to 12,000, by device and dtype) has no gradient: NOT_SUPPORTED. The rest as
 * spops_attention_execute.
 * Source    FlashAttention-2, Algorithm 2; owners of tiles in place of atomics.
 */
SPOPS_API spops_status spops_attention_execute_backward(
    spops_context *ctx, const spops_patches *patches, spops_matrix grad_o, spops_matrix q,
    spops_matrix k, spops_matrix v, spops_matrix o, const void *lse,
    const spops_attention_options *options, const spops_matrix *grad_q, const spops_matrix *grad_k,
    const spops_matrix *grad_v, const spops_matrix *grad_table, const spops_matrix *grad_q_weight,
    const spops_matrix *grad_k_weight);
/* clang-format on */

/**
 * Scratch of a call with these patches and options, and q of [rows, cols]; backward: 1 for that of
 * the gradients too. 0 where an argument is wrong; spops_last_error(NULL) says which.
 */
SPOPS_API size_t spops_attention_scratch_bytes(const spops_patches *patches, int64_t cols,
                                               spops_dtype dtype,
                                               const spops_attention_options *options,
                                               int32_t backward);

/**
 * Reserve in ctx what calls with these patches and options need: scratch, as much as
 * spops_attention_scratch_bytes says, and on CUDA their kernels, loaded. Where scratch alone was
 * reserved, the first call of its kind on a context loads its kernels.
 *
 * patches, cols, dtype, options, backward
 *           As in spops_attention_scratch_bytes.
 *
 * Stream    Not capturable. May wait.
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED (while the stream is captured), OUT_OF_MEMORY, CUDA.
 * Threads   One thread at a time per ctx; patches may be shared.
 */
SPOPS_API spops_status spops_attention_reserve(spops_context *ctx, const spops_patches *patches,
                                               int64_t cols, spops_dtype dtype,
                                               const spops_attention_options *options,
                                               int32_t backward);

/**
 * The tile that calls with these patches and options run, where heads begin on multiples of 16 bytes and
 * scale is more than 0: a row of kernels/attention/attention_tuning.h, or 0 where the backend has no
 * choice.
 *
 * patches, cols, dtype, options, backward
 *           As in spops_attention_scratch_bytes.
 *
 * Stream    Enqueues nothing.
 * Errors    INVALID_ARGUMENT.
 * Threads   One thread at a time per ctx; patches may be shared.
 */
SPOPS_API spops_status spops_attention_get_tile(spops_context *ctx, const spops_patches *patches,
                                                int64_t cols, spops_dtype dtype,
                                                const spops_attention_options *options,
                                                int32_t backward, int32_t *tile);

SPOPS_EXTERN_C_END

#endif
