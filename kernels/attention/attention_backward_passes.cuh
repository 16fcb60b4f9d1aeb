// SPDX-License-Identifier: Apache-2.0
// What goes before and after the products of the gradients of attention: log-sum-exp and sums of
// grad_o * o by entry; sums over the entries of a row, turned back, and through the norm; rows without
// entries; the sum of parts of a table.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_PASSES_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_PASSES_CUH

#include "kernels/attention/attention_backward_params.cuh"
#include "kernels/attention/attention_turn.cuh"

namespace spops
{

constexpr int attention_pass_threads = 256;

template <class T, int WIDTH>
__device__ __forceinline__ void store_result(const attention_result &to, int64_t row, int head,
                                             int col, const float (&v)[WIDTH])
{
    const int64_t at = row * to.row + head * to.head + col;
    if (to.f32)
        store_columns(static_cast<float *>(to.data) + at, v);
    else
        store_columns(static_cast<T *>(to.data) + at, v);
}

template <int WIDTH>
__device__ __forceinline__ void add_columns(float (&sum)[WIDTH], const float *from)
{
    float v[WIDTH];
    load_columns(v, from);
#pragma unroll
    for (int w = 0; w < WIDTH; ++w)
        sum[w] += v[w];
}

struct attention_delta_params {
    const int *rows, *num_entries;
    attention_rows o, grad_o;
    const float *lse_in; // [rows][heads]
    float *lse, *delta;  // [heads][query_entries]
    int64_t query_entries;
    int heads, dim;
    int lanes;   // that share a head of a row: a power of two up to 32
    bool wide;   // 16 bytes of grad_o and o at a time
    int *counts; // [heads][lines][query_entries], and one: all become 0; may be null
    int lines, *taken;
    bool negative; // delta
    float *sums;   // [heads][lines][query_entries][64]; becomes 0 where nothing may be added
};

constexpr int attention_delta_entries = 32, attention_delta_heads = 64; // of a block

// Grid: entries, heads. Results go through shared memory, because they lie by head.
template <class T>
__global__ void __launch_bounds__(attention_pass_threads)
    attention_delta_kernel(const __grid_constant__ attention_delta_params p)
{
    constexpr int chunk = 16 / (int)sizeof(T), entries = attention_delta_entries;
    __shared__ float deltas[attention_delta_heads][entries + 1];
    __shared__ float lses[attention_delta_heads][entries + 1];
    const int64_t first = (int64_t)blockIdx.x * entries;
    const int num = (int)min((int64_t)entries, *p.num_entries - first);
    const int first_head = (int)blockIdx.y * attention_delta_heads;
    const int heads = min(attention_delta_heads, p.heads - first_head);
    const int groups = attention_pass_threads / p.lanes; // a head of an entry each
    const int lane = (int)threadIdx.x % p.lanes;
    for (int n = 0; n < num * heads; n += groups) {
        const int item = n + (int)threadIdx.x / p.lanes;
        const bool there = item < num * heads;
        const int entry = there ? item / heads : 0, head = first_head + (there ? item % heads : 0);
        const int64_t row = __ldg(p.rows + first + entry);
        const T *const o = reinterpret_cast<const T *>(p.o.of_head(head) + row * p.o.row);
        const T *const grad =
            reinterpret_cast<const T *>(p.grad_o.of_head(head) + row * p.grad_o.row);
        float sum = 0.0f;
        for (int c = lane * chunk; c < p.dim; c += p.lanes * chunk) {
            if (p.wide) {
                alignas(16) T a[chunk], b[chunk];
                *reinterpret_cast<uint4 *>(a) = __ldg(reinterpret_cast<const uint4 *>(grad + c));
                *reinterpret_cast<uint4 *>(b) = __ldg(reinterpret_cast<const uint4 *>(o + c));
#pragma unroll
                for (int j = 0; j < chunk; ++j)
                    sum = fmaf(to_f32(a[j]), to_f32(b[j]), sum);
            } else {
                for (int j = c; j < c + chunk && j < p.dim; ++j)
                    sum = fmaf(to_f32(grad[j]), to_f32(o[j]), sum);
            }
        }
        for (int i = p.lanes / 2; i > 0; i /= 2)
            sum += __shfl_xor_sync(~0u, sum, i);
        if (there && lane == 0) {
            const float lse = __ldg(p.lse_in + row * p.heads + head);
            // Without a log-sum-exp there are no weights: exponentials of -infinity; o may be NaN.
            const bool empty = lse == -INFINITY;
            deltas[head - first_head][entry] = empty ? 0.0f : sum;
            lses[head - first_head][entry] = empty ? INFINITY : lse * log2_of_e;
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < heads * entries; i += attention_pass_threads) {
        const int head = i / entries, entry = i % entries;
        if (entry >= num) continue;
        const int64_t to = (first_head + head) * p.query_entries + first + entry;
        p.delta[to] = p.negative ? -deltas[head][entry] : deltas[head][entry];
        p.lse[to] = lses[head][entry];
        if (p.counts == nullptr) continue;
        for (int line = 0; line < p.lines; ++line) {
            const int64_t at =
                ((int64_t)(first_head + head) * p.lines + line) * p.query_entries + first + entry;
            p.counts[at] = 0;
            if (lses[head][entry] != INFINITY) continue;
            for (int c = 0; c < 64; ++c)
                p.sums[at * 64 + c] = 0.0f;
        }
    }
    if (p.taken != nullptr && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *p.taken = 0;
}

// Sums of grad_q as attention_fused_params has them, to rows or by entry.
struct attention_fused_finish_params {
    const int *rows, *num_entries;
    const float *sums;
    int64_t query_entries;
    attention_result to;
    int heads, lines, dim;
    float scale;
};

// Grid: 32 entries; lines by turns. A thread has 8 columns.
template <class T>
__global__ void __launch_bounds__(attention_pass_threads)
    attention_fused_finish_kernel(const __grid_constant__ attention_fused_finish_params p)
{
    const int64_t entry = (int64_t)blockIdx.x * (attention_pass_threads / 8) + threadIdx.x / 8;
    if (entry >= *p.num_entries) return;
    const int piece = (int)threadIdx.x % 8;
    const int64_t row = p.to.by_entry ? entry : __ldg(p.rows + entry);
#pragma unroll 4
    for (int line = (int)blockIdx.y; line < p.heads * p.lines; line += (int)gridDim.y) {
        const int head = line / p.lines, col = line % p.lines * 64 + piece * 8;
        if (col >= p.dim) continue;
        const float4 *const from = reinterpret_cast<const float4 *>(
            p.sums + (line * p.query_entries + entry) * 64 + (piece ^ (int)(entry % 4)) * 8);
        const float4 a = from[0], b = from[1];
        float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 8; ++i)
            v[i] *= p.scale;
        const int64_t at = row * p.to.row + head * p.to.head + col;
        if (p.to.f32) {
            float *const to = static_cast<float *>(p.to.data) + at;
#pragma unroll
            for (int i = 0; i < 8; i += 2)
                store_two(to, i, 8, p.to.wide, v[i], v[i + 1]);
        } else if (p.to.wide) {
            *reinterpret_cast<uint4 *>(static_cast<T *>(p.to.data) + at) =
                make_uint4(pack2<T>(v[0], v[1]), pack2<T>(v[2], v[3]), pack2<T>(v[4], v[5]),
                           pack2<T>(v[6], v[7]));
        } else {
            T *const to = static_cast<T *>(p.to.data) + at;
#pragma unroll
            for (int i = 0; i < 8; i += 2)
                store_two(to, i, 8, false, v[i], v[i + 1]);
        }
    }
}

// Sums over the entries of each row, by ascending entry, and the heads of q that meet one of the row,
// turned back where pairs are turned.
struct attention_finish_params {
    const float *parts;            // [entries][heads][group][dim]
    const int *rows, *num_entries; // one entry a row: that of each entry
    const int *offsets, *entries;  // else: of each row
    int num_rows;
    attention_result to;
    int heads, group, dim;              // heads of the row, each of `group`
    spops_attention_rotary_args rotary; // with 0 pairs: nothing is turned
    attention_coords coords;
    // Where rows are normalised: the rows, and the gradient of the weights of a block [blocks][heads][dim].
    attention_rows from;
    spops_attention_norm_args norm;
    float epsilon;
    float *weights;
};

// A warp has a row. GROUPS: group may be more than 1.
template <class T, int WIDTH, bool GROUPS>
__global__ void __launch_bounds__(attention_pass_threads)
    attention_finish_kernel(const __grid_constant__ attention_finish_params p)
{
    const bool sums = p.offsets != nullptr;
    const int group = GROUPS ? p.group : 1;
    const int cols = p.heads * group * p.dim, pairs = p.rotary.pairs,
              items = (p.dim - 3 * pairs) / WIDTH;
    const int num = sums ? p.num_rows : *p.num_entries;
    const int warps = (int)gridDim.x * attention_pass_threads / 32;
    for (int i = (int)threadIdx.x % 32; i < turn_lanes(items); i += 32) {
        const attention_turn_lane<WIDTH> lane(p.rotary, i, items);
        for (int n = (int)(blockIdx.x * attention_pass_threads + threadIdx.x) / 32; n < num;
             n += warps) {
            const int64_t row = sums ? n : __ldg(p.rows + n);
            const int begin = sums ? __ldg(p.offsets + n) : n;
            const int end = sums ? __ldg(p.offsets + n + 1) : n + 1;
            float sine[WIDTH], cosine[WIDTH];
            lane.angles_of(p.coords, row, sine, cosine);
#pragma unroll 4
            for (int h = lane.head; h < p.heads; h += lane.heads_at_once) {
                const float *const from = p.parts + h * group * p.dim + lane.col;
                float u[WIDTH] = {}, v[WIDTH] = {};
                for (int e = begin; e < end; ++e) {
                    const int64_t at = (int64_t)(sums ? __ldg(p.entries + e) : e) * cols;
                    for (int j = 0; j < group; ++j) {
                        add_columns(u, from + at + j * p.dim);
                        if (lane.turns) add_columns(v, from + at + j * p.dim + pairs);
                    }
                }
                if (lane.turns) {
#pragma unroll
                    for (int w = 0; w < WIDTH; ++w) {
                        const float before = u[w];
                        u[w] = before * cosine[w] + v[w] * sine[w];
                        v[w] = v[w] * cosine[w] - before * sine[w];
                    }
                    store_result<T>(p.to, row, h, lane.col + pairs, v);
                }
                store_result<T>(p.to, row, h, lane.col, u);
            }
        }
    }
}

// The same of rows that the norm has made. A warp has a row, of the head of its block; a block's share of
// the gradient of the weights is the sum of those of its warps. A head whose gradient is 0 stays 0
// whatever the row holds.
template <class T, int PARTS, int WIDTH>
__global__ void __launch_bounds__(attention_pass_threads)
    attention_norm_finish_kernel(const __grid_constant__ attention_finish_params p)
{
    typedef attention_norm_lane<PARTS, WIDTH> lane_columns;
    constexpr int num_warps = attention_pass_threads / 32;
    __shared__ __align__(8) float lines[num_warps][32 * PARTS * WIDTH];
    const bool sums = p.offsets != nullptr;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, h = (int)blockIdx.y;
    const int num = sums ? p.num_rows : *p.num_entries;
    const int64_t cols = (int64_t)p.heads * p.group * p.dim;
    float weight[PARTS][WIDTH], grad_weight[PARTS][WIDTH] = {};
    load_norm_weights(weight, p.norm.weights + h * p.norm.stride, p.dim, lane);
    for (int n = (int)blockIdx.x * num_warps + warp; n < num; n += (int)gridDim.x * num_warps) {
        const int64_t row = sums ? n : __ldg(p.rows + n);
        const int begin = sums ? __ldg(p.offsets + n) : n;
        const int end = sums ? __ldg(p.offsets + n + 1) : n + 1;
        float g[PARTS][WIDTH] = {}, x[PARTS][WIDTH];
        for (int e = begin; e < end; ++e) {
            const int64_t at = (sums ? __ldg(p.entries + e) : e) * cols;
            for (int j = 0; j < p.group; ++j) {
                load_norm_row(x, p.parts + at + (h * p.group + j) * p.dim, p.dim, lane);
#pragma unroll
                for (int i = 0; i < PARTS * WIDTH; ++i)
                    g[i / WIDTH][i % WIDTH] += x[i / WIDTH][i % WIDTH];
            }
        }
        lane_columns turned;
        turned.find(p.rotary, p.coords, row, true, lane);
        turned.turn(g, lines[warp], lane);
        bool is_zero = true;
#pragma unroll
        for (int i = 0; i < PARTS * WIDTH; ++i)
            is_zero = is_zero && g[i / WIDTH][i % WIDTH] == 0.0f;
        float factor = 0.0f, slope[PARTS][WIDTH] = {};
        if (!__all_sync(~0u, is_zero)) {
            load_norm_row(x, reinterpret_cast<const T *>(p.from.of_head(h) + row * p.from.row),
                          p.dim, lane);
            factor = norm_factor(x, p.dim, p.epsilon);
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < PARTS * WIDTH; ++i) {
                const int a = i / WIDTH, w = i % WIDTH;
                x[a][w] *= factor;
                grad_weight[a][w] += g[a][w] * x[a][w];
                slope[a][w] = g[a][w] * weight[a][w];
                sum += slope[a][w] * x[a][w];
            }
            sum = sum_of_warp(sum) / (float)p.dim;
#pragma unroll
            for (int i = 0; i < PARTS * WIDTH; ++i) {
                const int a = i / WIDTH, w = i % WIDTH;
                slope[a][w] = factor * (slope[a][w] - x[a][w] * sum);
            }
        }
#pragma unroll
        for (int i = 0; i < PARTS; ++i)
            if (p.to.data != nullptr && lane_columns::column(i, lane) < p.dim)
                store_result<T>(p.to, row, h, lane_columns::column(i, lane), slope[i]);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < PARTS; ++i)
        store_columns(lines[warp] + lane_columns::column(i, lane), grad_weight[i]);
    __syncthreads();
    for (int c = (int)threadIdx.x; c < p.dim; c += attention_pass_threads) {
        float sum = 0.0f;
        for (int w = 0; w < num_warps; ++w)
            sum += lines[w][c];
        p.weights[((int64_t)blockIdx.x * p.heads + h) * p.dim + c] = sum;
    }
}

// Rows that a list names become zeros, in up to two results.
struct attention_zero_params {
    const int *rows, *num;
    attention_result to[2];
    int heads, dim;
};

template <class T>
__global__ void __launch_bounds__(attention_pass_threads)
    attention_zero_kernel(const __grid_constant__ attention_zero_params p)
{
    const int num = *p.num;
    for (int n = (int)blockIdx.x; n < num; n += (int)gridDim.x) {
        const int64_t row = __ldg(p.rows + n);
        const float zero[1] = {0.0f};
        for (int c = (int)threadIdx.x; c < p.heads * p.dim; c += (int)blockDim.x)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                if (p.to[i].data != nullptr)
                    store_result<T>(p.to[i], row, c / p.dim, c % p.dim, zero);
    }
}

// What the products of narrow heads leave: gradients of keys and values of rows that are a key several times, by
// ascending entry, and rows without entries, which become zeros.
struct attention_rest_params {
    const float *parts[2]; // of grad_k and grad_v, [entries][kv_heads][dim]; null: rows are there
    const int *offsets, *entries; // of a row of keys
    int num_rows;
    attention_result to_keys[2], to_queries; // data null: not wanted
    const int *rest[2], *num_rest[2];        // rows that are no key, no query
    int heads, kv_heads, dim;
};

// A row of gradients of keys of at least two entries, by a warp.
template <class T>
__device__ __forceinline__ void attention_rest_row(const attention_result &to, const float *parts,
                                                   const int *entries, int num, int row, int cols,
                                                   int dim, int lane)
{
    const float *const first = parts + (int64_t)__ldg(entries) * cols;
    const float *const second = parts + (int64_t)__ldg(entries + num - 1) * cols;
#pragma unroll 4
    for (int c = lane; c < cols; c += 32) {
        float sum[1] = {0.0f};
        sum[0] += first[c];
        for (int e = 1; e + 1 < num; ++e)
            sum[0] += parts[(int64_t)__ldg(entries + e) * cols + c];
        sum[0] += second[c];
        store_result<T>(to, row, c / dim, c % dim, sum);
    }
}

// Neighbouring rows of keys go to different warps, because rows that are a key twice follow each other: keys that the
// last patch borrows. A lane looks at a row. Rows without entries: a block has one.
template <class T>
__global__ void __launch_bounds__(attention_pass_threads)
    attention_rest_kernel(const __grid_constant__ attention_rest_params p)
{
    const int lane = (int)threadIdx.x % 32, cols = p.kv_heads * p.dim;
    const int warp = (int)(blockIdx.x * attention_pass_threads + threadIdx.x) / 32;
    const int warps = (int)gridDim.x * attention_pass_threads / 32;
    const bool sums = p.parts[0] != nullptr || p.parts[1] != nullptr;
    for (int at = 0; sums && at * warps + warp < p.num_rows; at += 32) {
        const int n = (at + lane) * warps + warp;
        const int begin = n < p.num_rows ? __ldg(p.offsets + n) : 0;
        const int num = n < p.num_rows ? __ldg(p.offsets + n + 1) - begin : 1;
        for (uint32_t left = __ballot_sync(~0u, num > 1); left != 0; left &= left - 1) {
            const int from = __ffs((int)left) - 1;
            const int of = __shfl_sync(~0u, num, from);
            const int *const entries = p.entries + __shfl_sync(~0u, begin, from);
#pragma unroll
            for (int i = 0; i < 2; ++i)
                if (p.parts[i] != nullptr)
                    attention_rest_row<T>(p.to_keys[i], p.parts[i], entries, of,
                                          (at + from) * warps + warp, cols, p.dim, lane);
        }
    }
    const float zero[1] = {0.0f};
    for (int side = 0; side < 2; ++side) {
        const int num = *p.num_rest[side], heads = side == 0 ? p.kv_heads : p.heads;
        for (int n = (int)blockIdx.x; n < num; n += (int)gridDim.x) {
            const int64_t row = __ldg(p.rest[side] + n);
            for (int c = (int)threadIdx.x; c < heads * p.dim; c += attention_pass_threads)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const attention_result &to = side == 0 ? p.to_keys[i] : p.to_queries;
                    if (to.data != nullptr && (side == 0 || i == 0))
                        store_result<T>(to, row, c / p.dim, c % p.dim, zero);
                }
        }
    }
}

// ---- Sums of parts: the table of biases, weights of norms ----------------------------------------

struct attention_table_params {
    const float *parts;   // [parts][heads][bins]
    const int *num_tiles; // null: one
    int parts_of_tile, heads, bins;
    float *to;
    int64_t stride, head_stride; // from a bin to the next, and from a head
};

// 32 bins of a head: a warp sums every eighth part, and the sums of the warps are added in order.
__global__ void __launch_bounds__(attention_pass_threads)
    attention_table_kernel(const __grid_constant__ attention_table_params p)
{
    constexpr int warps = attention_pass_threads / 32;
    __shared__ float sums[warps][32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int bin = (int)blockIdx.x * 32 + lane, head = (int)blockIdx.y;
    const int parts = (p.num_tiles != nullptr ? *p.num_tiles : 1) * p.parts_of_tile;
    float sum = 0.0f;
    if (bin < p.bins) {
#pragma unroll 4
        for (int i = warp; i < parts; i += warps)
            sum += p.parts[((int64_t)i * p.heads + head) * p.bins + bin];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || bin >= p.bins) return;
#pragma unroll
    for (int w = 1; w < warps; ++w)
        sum += sums[w][lane];
    p.to[bin * p.stride + head * p.head_stride] = sum;
}

} // namespace spops

#endif
