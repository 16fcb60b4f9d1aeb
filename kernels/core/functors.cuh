// The built-in reductions as the structs that spops/device/segreduce.cuh takes, and what launchers
// share.
#ifndef SPOPS_KERNELS_CORE_FUNCTORS_CUH
#define SPOPS_KERNELS_CORE_FUNCTORS_CUH

#include "kernels/core/launch.cuh"
#include "kernels/core/with_dtype.cuh"
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
#include "core/reduce_ops.def"
#undef SPOPS_REDUCE_OP

// Elements of the widest chunk (16 bytes or one element) that every row of all the matrices, which
// have one dtype, allows. Absent matrices (data NULL) do not count.
inline int common_chunk(std::initializer_list<spops_matrix> matrices)
{
    int vec = 16;
    for (const spops_matrix &m : matrices) {
        if (m.data == nullptr) continue;
        const int own = chunk_elements(m.data, m.row_stride, m.rows, spops_dtype_bytes(m.dtype));
        vec = own < vec ? own : vec;
    }
    return vec;
}

// Blocks a kernel that reads its counts from the device is launched with, at most.
inline int resident_blocks(const spops_context *ctx)
{
    return ctx->info.num_processors * 4;
}

inline walk_launch walk_plan(const spops_context *ctx, const spops_lists *lists, int64_t vectors,
                             int threads, int unit = 0)
{
    return walk_plan(spops_lists_view_of(lists),
                     lists->counts_on_device ? nullptr : &lists->host_schedule, vectors, threads,
                     resident_blocks(ctx), unit > 0 ? unit : threads);
}

} // namespace spops

#endif
