// SPDX-License-Identifier: Apache-2.0
// Rows as the rotary embedding turns them, in a matrix of their own: once a row, and not by every
// tile of queries that it is a key of.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_TURN_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_TURN_CUH

#include "kernels/attention/attention_launch.cuh"

namespace spops
{

constexpr int attention_turn_threads = 256;

// Columns of a head of turned rows: whole pieces of 16 bytes of any dtype.
constexpr int padded_dim(int dim)
{
    return (dim + 7) / 8 * 8;
}

// Rows as the rotary embedding turns them, where they lie in a matrix of their own. Columns from
// dim on (of a head of `to`) are zeros.
struct attention_turn_params {
    const int *rows, *num_entries;
    attention_rows from, to;
    int heads, dim, to_dim;
    spops_attention_rotary_args rotary;
};

template <class T>
__global__ void __launch_bounds__(attention_turn_threads)
    attention_turn_kernel(const __grid_constant__ attention_turn_params p)
{
    const int pairs = p.rotary.pairs, turned = 6 * pairs;
    const int left = p.to_dim - turned, items = 3 * pairs + left; // of a head
    const int entries = *p.num_entries;
    for (int e = (int)blockIdx.x; e < entries; e += (int)gridDim.x) {
        const int64_t row = __ldg(p.rows + e);
        for (int i = (int)threadIdx.x; i < items; i += (int)blockDim.x) {
            float sine = 0.0f, cosine = 0.0f;
            int col = turned + i - 3 * pairs;
            if (i < 3 * pairs) {
                sincosf(rotary_angle(p.rotary, (int)row, i / pairs, i % pairs), &sine, &cosine);
                col = i / pairs * 2 * pairs + i % pairs;
            }
            for (int h = 0; h < p.heads; ++h) {
                const T *const from =
                    reinterpret_cast<const T *>(p.from.of_head(h) + row * p.from.row) + col;
                T *const to = reinterpret_cast<T *>(p.to.of_head(h) + row * p.to.row) + col;
                if (i < 3 * pairs) {
                    const float u = to_f32(from[0]), v = to_f32(from[pairs]);
                    to[0] = from_f32<T>(u * cosine - v * sine);
                    to[pairs] = from_f32<T>(v * cosine + u * sine);
                } else {
                    to[0] = col < p.dim ? from[0] : from_f32<T>(0.0f);
                }
            }
        }
    }
}

// Turns the rows of q, or of k, that are in the lists; *rows are then those of the copy `to`
// ([rows][heads][padded_dim]).
template <class T>
spops_status turn_rows(spops_context *ctx, const spops_attention_args *args, bool keys,
                       attention_rows *rows, unsigned char *to)
{
    const spops_patch_arrays *patches = args->patches;
    attention_turn_params t = {};
    t.rows = keys ? patches->k_rows : patches->q_rows;
    t.num_entries = keys ? &patches->state->num_keys : &patches->state->num_queries;
    t.from = *rows;
    t.heads = args->heads;
    t.dim = args->dim;
    t.to_dim = padded_dim(t.dim);
    t.to = {to, (int64_t)t.heads * t.to_dim * (int64_t)sizeof(T), t.to_dim * (int64_t)sizeof(T)};
    t.rotary = args->rotary;
    *rows = t.to;
    return launch(ctx, "attention: turn rows", attention_turn_kernel<T>,
                  blocks_of_rows(ctx, keys ? patches->max_keys : patches->max_queries),
                  attention_turn_threads, t);
}

} // namespace spops

#endif
