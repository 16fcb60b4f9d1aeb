// SPDX-License-Identifier: Apache-2.0
// Lists whose segments are known to be short, though their counts are on the device: kernels for them
// read no schedule. A group of lanes takes a few neighbouring segments, and a block is launched for
// each few groups, so that many rows are on their way at once.
#ifndef SPOPS_KERNELS_SEGMENTS_FEW_TERMS_CUH
#define SPOPS_KERNELS_SEGMENTS_FEW_TERMS_CUH

#include "segments/lists.h"
#include "spops/device/segreduce.cuh"

namespace spops
{

constexpr int few_terms_most = 8; // of a segment
constexpr int few_terms_threads = 256;
constexpr int few_terms_segments = 2; // of a group
constexpr int few_terms_step = 2;     // terms of each of them that are on their way together

inline bool has_few_terms(const spops_lists *lists)
{
    return lists->counts_on_device && lists->host_schedule.longest > 0 &&
           lists->host_schedule.longest <= few_terms_most;
}

struct few_terms_params {
    const int32_t *offsets;
    const int2 *pairs; // null: both are the position
    int32_t num_segments;
    int32_t lanes_log2; // of a group
    int32_t chunks;     // of 16 bytes, of a row
};

inline few_terms_params few_terms_params_of(const spops_lists *lists, int64_t chunks)
{
    few_terms_params p = {};
    p.offsets = lists->offsets;
    p.pairs = reinterpret_cast<const int2 *>(lists->pairs);
    p.num_segments = (int32_t)lists->num_segments;
    p.chunks = (int32_t)chunks;
    while (p.lanes_log2 < 5 && 1 << p.lanes_log2 < chunks)
        ++p.lanes_log2;
    return p;
}

inline unsigned few_terms_blocks(const few_terms_params &p)
{
    const int32_t per_block = (few_terms_threads >> p.lanes_log2) * few_terms_segments;
    return (unsigned)(((int64_t)p.num_segments + per_block - 1) / per_block);
}

// A group's segments: their terms are at begin[u] .. begin[u + 1] - 1, none of one that is not there.
struct few_terms_place {
    int64_t first; // segment
    int32_t lane, lanes;
    int32_t begin[few_terms_segments + 1];
    int32_t steps; // that the longest of them needs

    __device__ __forceinline__ explicit few_terms_place(const few_terms_params &p)
    {
        const int32_t group = (int32_t)threadIdx.x >> p.lanes_log2;
        lanes = 1 << p.lanes_log2;
        lane = (int32_t)threadIdx.x & (lanes - 1);
        first = ((int64_t)blockIdx.x * (few_terms_threads >> p.lanes_log2) + group) *
                few_terms_segments;
        steps = 0;
#pragma unroll
        for (int u = 0; u <= few_terms_segments; ++u) {
            const int64_t segment = first + u < p.num_segments ? first + u : p.num_segments;
            begin[u] = __ldg(p.offsets + segment);
        }
#pragma unroll
        for (int u = 0; u < few_terms_segments; ++u) {
            const int32_t own = (count(u) + few_terms_step - 1) / few_terms_step;
            steps = own > steps ? own : steps;
        }
    }
    __device__ __forceinline__ int32_t count(int u) const
    {
        return begin[u + 1] - begin[u];
    }
};

// The row that term t of a step of segment u names; -1: there is none.
struct few_terms_rows {
    int32_t row[few_terms_segments][few_terms_step];

    __device__ __forceinline__ few_terms_rows(const few_terms_params &p,
                                              const few_terms_place &here, int32_t step)
    {
#pragma unroll
        for (int u = 0; u < few_terms_segments; ++u) {
#pragma unroll
            for (int t = 0; t < few_terms_step; ++t) {
                const int32_t at = here.begin[u] + step * few_terms_step + t;
                row[u][t] = -1;
                if (at < here.begin[u + 1])
                    row[u][t] = p.pairs != nullptr ? __ldg(p.pairs + at).x : at;
            }
        }
    }
};

// The chunks of the rows of a step.
template <class T, int VEC> struct few_terms_chunks {
    row_chunk<T, VEC, true> of[few_terms_segments][few_terms_step];

    __device__ __forceinline__ void load(const few_terms_rows &rows, const T *x, int64_t stride)
    {
#pragma unroll
        for (int u = 0; u < few_terms_segments; ++u)
#pragma unroll
            for (int t = 0; t < few_terms_step; ++t)
                if (rows.row[u][t] >= 0)
                    of[u][t].load(row_at<true>(x, rows.row[u][t], stride), VEC);
    }
};

} // namespace spops

#endif
