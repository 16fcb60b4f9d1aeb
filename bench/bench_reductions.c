// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_reductions.h"

#include <math.h>
#include <string.h>

#include "spops/device/schedule.h"

// The definitions use no other type for values: this makes double of all of them. What they include
// is included above.
#define float double
#include "spops/device/reduce_ops.h"
#undef float

#define SPOPS_REDUCE_OP(NAME, plain, traced)                                                       \
    _Static_assert(sizeof(spops_##traced) <= sizeof(reduction_state), #traced);                    \
    static void NAME##_clear(int64_t cols, reduction_state *states)                                \
    {                                                                                              \
        const spops_##traced none = spops_##traced##_identity();                                   \
        for (int64_t c = 0; c < cols; ++c)                                                         \
            memcpy(&states[c], &none, sizeof none);                                                \
    }                                                                                              \
    static void NAME##_fold(int64_t cols, reduction_state *states, const double *v, int32_t term)  \
    {                                                                                              \
        for (int64_t c = 0; c < cols; ++c) {                                                       \
            spops_##traced a;                                                                      \
            memcpy(&a, &states[c], sizeof a);                                                      \
            a = spops_##traced##_combine(a, spops_##traced##_lift(v[c], term));                    \
            memcpy(&states[c], &a, sizeof a);                                                      \
        }                                                                                          \
    }                                                                                              \
    static void NAME##_finalize(int64_t cols, const reduction_state *states, int64_t count,        \
                                double *out)                                                       \
    {                                                                                              \
        for (int64_t c = 0; c < cols; ++c) {                                                       \
            spops_##traced a;                                                                      \
            memcpy(&a, &states[c], sizeof a);                                                      \
            out[c] = spops_##traced##_finalize(a, count);                                          \
        }                                                                                          \
    }                                                                                              \
    static void NAME##_grad(int64_t cols, const reduction_state *states, int64_t count,            \
                            const double *v, int32_t term, double *out)                            \
    {                                                                                              \
        for (int64_t c = 0; c < cols; ++c) {                                                       \
            spops_##traced a;                                                                      \
            memcpy(&a, &states[c], sizeof a);                                                      \
            out[c] = spops_##traced##_grad(v[c], term, a, count);                                  \
        }                                                                                          \
    }
#include "src/segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP

const bench_reduction bench_reductions[] = {
#define SPOPS_REDUCE_OP(NAME, plain, traced)                                                       \
    {SPOPS_REDUCE_##NAME,                                                                          \
     #plain,                                                                                       \
     spops_##traced##_has_arg,                                                                     \
     spops_##traced##_has_grad,                                                                    \
     spops_##traced##_is_linear,                                                                   \
     NAME##_clear,                                                                                 \
     NAME##_fold,                                                                                  \
     NAME##_finalize,                                                                              \
     NAME##_grad},
#include "src/segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
};
const int bench_num_reductions = sizeof bench_reductions / sizeof *bench_reductions;

const bench_reduction *bench_reduction_find(spops_reduce reduce)
{
    for (int i = 0; i < bench_num_reductions; ++i)
        if (bench_reductions[i].reduce == reduce) return &bench_reductions[i];
    return NULL;
}
