// SPDX-License-Identifier: Apache-2.0
// Argsort and unique by a device-wide sort of keys without signs. Keys that do not count become the
// largest, and stay behind those that are the largest: the sort is stable.
#include "kernels/core/device_wide.h"
#include "kernels/core/launch.cuh"
#include "keys/keys_args.h"

namespace
{

using namespace spops;

constexpr int threads = 256;

template <class K> struct key_params {
    const K *keys;
    const int32_t *num_keys; // null: n
    int32_t n;
    bool descending;
    const K *sorted;        // without signs
    const int32_t *numbers; // of the sorted keys

    __device__ __forceinline__ int32_t count() const
    {
        return num_keys == nullptr ? n : min(max(*num_keys, 0), n);
    }
};

template <class U>
__global__ void __launch_bounds__(threads)
    fill_kernel(const __grid_constant__ key_params<U> p, U *keys, int32_t *numbers)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i >= p.n) return;
    U key = (U) ~(U)0;
    if (i < p.count()) {
        key = p.keys[i] ^ (U)1 << (sizeof(U) * 8 - 1);
        if (p.descending) key = ~key;
    }
    keys[i] = key;
    numbers[i] = (int32_t)i;
}

template <class U>
__global__ void __launch_bounds__(threads)
    order_kernel(const __grid_constant__ key_params<U> p, int32_t *order, U *sorted)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i >= p.n) return;
    const bool counts = i < p.count();
    const int32_t number = p.numbers[i];
    order[i] = counts ? number : -1;
    if (sorted != nullptr) sorted[i] = counts ? p.keys[number] : 0;
}

// ---- Unique -------------------------------------------------------------------------------------

// Whether sorted key i is the first of its value.
template <class U> __device__ __forceinline__ bool begins(const key_params<U> &p, int64_t i)
{
    return i == 0 || p.sorted[i] != p.sorted[i - 1];
}

template <class U>
__global__ void __launch_bounds__(threads)
    begins_kernel(const __grid_constant__ key_params<U> p, int32_t *before)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i < p.n) before[i] = i < p.count() && begins(p, i);
}

// before[i]: different keys before sorted key i. first[u]: where the keys are that are values[u].
template <class U>
__global__ void __launch_bounds__(threads)
    unique_kernel(const __grid_constant__ key_params<U> p, const int32_t *before, U *values,
                  int32_t *inverse, int32_t *first, int32_t *num_unique)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    const int32_t count = p.count();
    if (i == 0 && count == 0) *num_unique = 0;
    if (i >= count) return;
    const bool is_first = begins(p, i);
    const int32_t u = before[i] + is_first - 1, number = p.numbers[i];
    if (is_first) {
        values[u] = p.keys[number];
        first[u] = (int32_t)i;
    }
    if (inverse != nullptr) inverse[number] = u;
    if (i == count - 1) *num_unique = u + 1;
}

template <class U>
__global__ void __launch_bounds__(threads)
    rest_kernel(const __grid_constant__ key_params<U> p, const int32_t *first, U *values,
                int32_t *inverse, int32_t *counts, const int32_t *num_unique)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    const int32_t count = p.count(), found = *num_unique;
    if (i >= p.n) return;
    if (i >= found) values[i] = 0;
    if (inverse != nullptr && i >= count) inverse[i] = -1;
    if (counts != nullptr)
        counts[i] = i < found ? (i + 1 < found ? first[i + 1] : count) - first[i] : 0;
}

// ---- Scratch ------------------------------------------------------------------------------------

template <class U> struct key_scratch {
    U *keys[2];
    int32_t *numbers[2];
    int32_t *before, *first; // of unique
    device_wide wide;
};

template <class U> key_scratch<U> carve(int64_t n, bool unique, spops_carver *c)
{
    key_scratch<U> s = {};
    s.wide.template needs_sort<U>(n, (int)sizeof(U) * 8);
    if (unique) s.wide.template needs_scan<int32_t>(n);
    for (int i = 0; i < 2; ++i) {
        s.keys[i] = (U *)spops_carve(c, n, 1, sizeof(U));
        s.numbers[i] = (int32_t *)spops_carve(c, n, 1, sizeof(int32_t));
    }
    s.before = (int32_t *)spops_carve(c, unique ? n : 0, 1, sizeof(int32_t));
    s.first = (int32_t *)spops_carve(c, unique ? n : 0, 1, sizeof(int32_t));
    s.wide.carve(c);
    return s;
}

size_t scratch_bytes(const spops_matrix &keys, bool unique)
{
    spops_carver c = {nullptr, 0};
    if (keys.dtype == SPOPS_DTYPE_I64)
        (void)carve<uint64_t>(keys.rows, unique, &c);
    else
        (void)carve<uint32_t>(keys.rows, unique, &c);
    return c.used;
}

// ---- Launches -----------------------------------------------------------------------------------

template <class U> spops_status sort_keys(spops_context *ctx, key_params<U> &p, key_scratch<U> &s)
{
    SPOPS_TRY(launch(ctx, "keys: launch", fill_kernel<U>, blocks_for(p.n, threads), threads, p,
                     s.keys[0], s.numbers[0]));
    p.sorted = s.keys[1];
    p.numbers = s.numbers[1];
    return s.wide.sort(ctx, "keys: sort", (const U *)s.keys[0], s.keys[1], s.numbers[0],
                       s.numbers[1], p.n, (int)sizeof(U) * 8);
}

template <class U>
key_params<U> params_of(const spops_matrix &keys, const int32_t *num_keys, bool descending)
{
    key_params<U> p = {};
    p.keys = (const U *)keys.data;
    p.num_keys = num_keys;
    p.n = (int32_t)keys.rows;
    p.descending = descending;
    return p;
}

template <class U> spops_status argsort(spops_context *ctx, const spops_argsort_args *args)
{
    spops_carver c = {static_cast<char *>(args->scratch), 0};
    key_scratch<U> s = carve<U>(args->keys.rows, false, &c);
    key_params<U> p = params_of<U>(args->keys, args->num_keys, args->descending);
    SPOPS_TRY(sort_keys(ctx, p, s));
    return launch(ctx, "argsort: launch", order_kernel<U>, blocks_for(p.n, threads), threads, p,
                  args->order, (U *)args->sorted.data);
}

template <class U> spops_status unique(spops_context *ctx, const spops_unique_args *args)
{
    spops_carver c = {static_cast<char *>(args->scratch), 0};
    key_scratch<U> s = carve<U>(args->keys.rows, true, &c);
    key_params<U> p = params_of<U>(args->keys, args->num_keys, false);
    const dim3 grid = blocks_for(p.n, threads);
    SPOPS_TRY(sort_keys(ctx, p, s));
    SPOPS_TRY(launch(ctx, "unique: launch", begins_kernel<U>, grid, threads, p, s.before));
    SPOPS_TRY(s.wide.scan(ctx, "unique: scan", s.before, s.before, p.n));
    SPOPS_TRY(launch(ctx, "unique: launch", unique_kernel<U>, grid, threads, p, s.before,
                     (U *)args->values.data, args->inverse, s.first, args->num_unique));
    return launch(ctx, "unique: launch", rest_kernel<U>, grid, threads, p, s.first,
                  (U *)args->values.data, args->inverse, args->counts, args->num_unique);
}

} // namespace

extern "C" size_t spops_cuda_argsort_scratch_bytes(spops_context *ctx,
                                                   const spops_argsort_args *args)
{
    (void)ctx;
    return scratch_bytes(args->keys, false);
}

extern "C" size_t spops_cuda_unique_scratch_bytes(spops_context *ctx, const spops_unique_args *args)
{
    (void)ctx;
    return scratch_bytes(args->keys, true);
}

extern "C" spops_status spops_cuda_argsort(spops_context *ctx, const spops_argsort_args *args)
{
    return args->keys.dtype == SPOPS_DTYPE_I64 ? argsort<uint64_t>(ctx, args)
                                               : argsort<uint32_t>(ctx, args);
}

extern "C" spops_status spops_cuda_unique(spops_context *ctx, const spops_unique_args *args)
{
    return args->keys.dtype == SPOPS_DTYPE_I64 ? unique<uint64_t>(ctx, args)
                                               : unique<uint32_t>(ctx, args);
}
