// SPDX-License-Identifier: Apache-2.0
// The vector code of attention on the CPU: attention_isa.c is compiled once per instruction set and
// exports one table each; attention_cpu.c divides the work.
#ifndef SPOPS_ATTENTION_ATTENTION_ISA_H
#define SPOPS_ATTENTION_ATTENTION_ISA_H

#include "attention/attention_args.h"
#include "core/cpu_isa.h"

// Rows of a tile, and of a block of the rows that stream by it.
#define SPOPS_ATTENTION_TILE SPOPS_PATCH_TILE_ENTRIES(SPOPS_PATCH_TILE_64)

// Memory of a call on the CPU, as far as it is needed; of rows of f64 it is all f64.
typedef struct spops_attention_memory {
    // Of the rows of q and of k: [rows][3 * pairs][2], cosine and sine of the rotary angles.
    float *turns[SPOPS_ATTENTION_NUM_TURNED];
    // Gradients of each entry: of keys where a row may be one twice, [max_keys][kv_heads * dim]; before
    // a norm also of queries, [max_queries][heads * dim].
    float *entry_q, *entry_k, *entry_v;
    float *tables; // [parts][3 * (2 * range + 1)][heads]: gradients of biases
    // [parts][heads * dim]: gradients of the weights of a norm.
    double *weights[SPOPS_ATTENTION_NUM_TURNED];
} spops_attention_memory;

typedef struct spops_attention_table {
    // A tile of queries of a head: o and lse.
    void (*forward)(const spops_attention_args *args, const spops_attention_memory *memory,
                    const spops_patch_tile *tile, int32_t head);
    // grad_q of a tile of queries, to the rows, or to the entries where memory has them; ds is added to
    // `table` [..][heads] unless that is NULL.
    void (*grad_queries)(const spops_attention_backward_args *args,
                         const spops_attention_memory *memory, const spops_patch_tile *tile,
                         int32_t head, float *table);
    // grad_k and grad_v of a tile of keys and a head of theirs; likewise.
    void (*grad_keys)(const spops_attention_backward_args *args,
                      const spops_attention_memory *memory, const spops_patch_tile *tile,
                      int32_t head);
} spops_attention_table;

// The head of k and v that a head of q meets; the first head of q that meets one of theirs.
static inline int32_t spops_attention_kv_head(const spops_attention_args *args, int32_t head)
{
    return head / (args->heads / args->kv_heads);
}
static inline int32_t spops_attention_first_head(const spops_attention_args *args, int32_t kv_head)
{
    return kv_head * (args->heads / args->kv_heads);
}

// Whether grad_q is wanted, or what is made from it.
static inline bool spops_attention_wants_q(const spops_attention_backward_args *args)
{
    return args->grad_q.data != NULL || args->grad_weights[SPOPS_ATTENTION_Q] != NULL;
}
static inline bool spops_attention_wants_k(const spops_attention_backward_args *args)
{
    return args->grad_k.data != NULL || args->grad_weights[SPOPS_ATTENTION_K] != NULL;
}

SPOPS_DECLARE_ISA_TABLES(spops_attention_table)
// Of rows of f64, on every instruction set (attention_f64.c).
extern const spops_attention_table spops_attention_f64;

#endif
