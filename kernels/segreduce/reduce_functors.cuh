// SPDX-License-Identifier: Apache-2.0
// The built-in reductions as the structs that spops/device/segreduce.cuh takes.
#ifndef SPOPS_KERNELS_SEGREDUCE_REDUCE_FUNCTORS_CUH
#define SPOPS_KERNELS_SEGREDUCE_REDUCE_FUNCTORS_CUH

#include "kernels/core/chunk.cuh"
#include "kernels/core/with_dtype.cuh"
#include "kernels/segments/walk_plan.cuh"
#include "segreduce/segreduce_args.h"
#include "spops/device/segreduce.cuh"

namespace spops
{

// plain_SUM, plain_MAX, ...: values only. traced_SUM, traced_MAX, ...: with arg and grad.
#define SPOPS_REDUCE_OP(NAME, plain, traced)                                                       \
    struct plain_##NAME {                                                                          \
        typedef spops_##plain state;                                                               \
        static constexpr bool uses_term = false, has_arg = false;                                  \
        static __device__ __forceinline__ state identity() { return spops_##plain##_identity(); }  \
        static __device__ __forceinline__ state lift(float v, int32_t term)                        \
        {                                                                                          \
            return spops_##plain##_lift(v, term);                                                  \
        }                                                                                          \
        static __device__ __forceinline__ state combine(state a, state b)                          \
        {                                                                                          \
            return spops_##plain##_combine(a, b);                                                  \
        }                                                                                          \
        static __device__ __forceinline__ float finalize(state a, int64_t count)                   \
        {                                                                                          \
            return spops_##plain##_finalize(a, count);                                             \
        }                                                                                          \
    };                                                                                             \
    struct traced_##NAME {                                                                         \
        typedef spops_##traced state;                                                              \
        static constexpr bool has_arg = spops_##traced##_has_arg, uses_term = has_arg;             \
        static __device__ __forceinline__ state identity() { return spops_##traced##_identity(); } \
        static __device__ __forceinline__ state lift(float v, int32_t term)                        \
        {                                                                                          \
            return spops_##traced##_lift(v, term);                                                 \
        }                                                                                          \
        static __device__ __forceinline__ state combine(state a, state b)                          \
        {                                                                                          \
            return spops_##traced##_combine(a, b);                                                 \
        }                                                                                          \
        static __device__ __forceinline__ float finalize(state a, int64_t count)                   \
        {                                                                                          \
            return spops_##traced##_finalize(a, count);                                            \
        }                                                                                          \
        static __device__ __forceinline__ int32_t arg(state a) { return spops_##traced##_arg(a); } \
        static __device__ __forceinline__ float grad(float v, int32_t term, state a,               \
                                                     int64_t count)                                \
        {                                                                                          \
            return spops_##traced##_grad(v, term, a, count);                                       \
        }                                                                                          \
    };
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP

} // namespace spops

#endif
