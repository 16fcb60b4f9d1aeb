// SPDX-License-Identifier: Apache-2.0
// States of reductions: the traced and the plain op of every one behind one set of functions, of f32 or
// of what SPOPS_REDUCE_REAL says (spops/device/reduce_ops.h).
#ifndef SPOPS_SEGREDUCE_SEGREDUCE_STATES_H
#define SPOPS_SEGREDUCE_SEGREDUCE_STATES_H

#include "core/simd_rows.h"

#include "spops/device/reduce_ops.h"
#include "spops/types.h"

// `op` is a reduction's id, plus TRACED for its traced op.
#define TRACED 64

typedef union state {
    struct {
        spops_real first;
        int32_t second;
    } word; // as an accumulator holds it; ops of one word leave the second alone
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    spops_##plain plain_##name;                                                                    \
    spops_##traced traced_##name;
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
} state;

SPOPS_INLINE size_t state_bytes(int op)
{
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name: return sizeof(spops_##plain);                                        \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        return sizeof(spops_##traced);
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: return 0;
    }
}

SPOPS_INLINE state identity(int op)
{
    state a = {{0, 0}};
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name: a.plain_##name = spops_##plain##_identity(); break;                  \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        a.traced_##name = spops_##traced##_identity();                                             \
        break;
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: break;
    }
    return a;
}

SPOPS_INLINE state lift(int op, spops_real v, int32_t term)
{
    state a = {{0, 0}};
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name: a.plain_##name = spops_##plain##_lift(v, term); break;               \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        a.traced_##name = spops_##traced##_lift(v, term);                                          \
        break;
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: break;
    }
    return a;
}

SPOPS_INLINE state combine(int op, state a, state b)
{
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name:                                                                      \
        a.plain_##name = spops_##plain##_combine(a.plain_##name, b.plain_##name);                  \
        break;                                                                                     \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        a.traced_##name = spops_##traced##_combine(a.traced_##name, b.traced_##name);              \
        break;
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: break;
    }
    return a;
}

SPOPS_INLINE spops_real finalize(int op, state a, int64_t count)
{
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name: return spops_##plain##_finalize(a.plain_##name, count);              \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        return spops_##traced##_finalize(a.traced_##name, count);
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: return 0.0f;
    }
}

SPOPS_INLINE int32_t winner(int op, state a)
{
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        return spops_##traced##_arg(a.traced_##name);
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: return -1;
    }
}

SPOPS_INLINE spops_real gradient(int op, spops_real v, int32_t term, state a, int64_t count)
{
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        return spops_##traced##_grad(v, term, a.traced_##name, count);
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: return 0.0f;
    }
}

// What the traced op says of itself (spops/device/reduce_ops.h).
SPOPS_INLINE bool has_arg(int op)
{
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        return spops_##traced##_has_arg;
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: return false;
    }
}

SPOPS_INLINE bool gradient_reads_state(int op)
{
    switch (op) {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    case SPOPS_REDUCE_##name + TRACED:                                                             \
        return !spops_##traced##_is_linear;
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: return false;
    }
}

SPOPS_INLINE state load_state(int op, const char *src)
{
    state a = {{0, 0}};
    memcpy(&a, src, state_bytes(op));
    return a;
}

SPOPS_INLINE void store_state(int op, state a, char *dst)
{
    memcpy(dst, &a, state_bytes(op));
}

#endif
