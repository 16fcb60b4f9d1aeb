// SPDX-License-Identifier: Apache-2.0
// Gradients of attention by mma.sync in five products, for sm_90: heads of 16 columns, whose exponentials
// cost as much as their products. Rows begin on 16 bytes.
//
// A cluster of blocks has a patch and a head. Queries, rows of grad_o and f32 sums of grad_q lie in shared
// memory, 1,024 of each at a time. A warp has 16 TILES keys, and sums of grad_k and grad_v in registers.
// t = k q^T and u = v grad_o^T have keys as rows, so that weights and slopes are left factors of grad_v and
// grad_k in the registers where these products leave them. grad_q has queries as rows: slopes are transposed
// for it, 8 x 8 at a time.
//
// A warp takes sums of grad_q of 16 queries from shared memory, adds what its keys give, and puts them back.
// Queries are as many stages as the block has warps. In step j warp w has stage (w + j) % WARPS, and a
// barrier ends a step. So no two warps have the same sums, and they are added in a fixed order.
//
// Keys come in passes of 16 TILES WARPS. Blocks of a cluster take passes by turns, and sums of grad_q of all
// blocks are added in the order of their ranks.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_NARROW_SM90_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_NARROW_SM90_CUH

#include "kernels/attention/attention_backward_narrow.cuh"
#include "kernels/core/sm90/hopper.cuh"
#include "kernels/core/swizzle.cuh"

namespace spops
{

// ---- A block ------------------------------------------------------------------------------------

// WARPS warps of 16 TILES keys; CLUSTER blocks have a patch and a head. AHEAD: factors of the next 16 queries are
// loaded before these are multiplied, which needs the registers of 8 warps: 16 warps spill and take 1.36 times as long.
template <int WARPS_, int TILES_, int CLUSTER_, bool AHEAD_> struct attention_narrow_policy {
    static constexpr int WARPS = WARPS_, TILES = TILES_, CLUSTER = CLUSTER_;
    static constexpr bool AHEAD = AHEAD_;
    static constexpr int threads = 32 * WARPS, line = 32;
    static constexpr int own = 16 * TILES * WARPS; // keys of a pass
    static constexpr int queries = 1024;           // of a chunk
    static constexpr int grad_at = queries * line;
    static constexpr int sums_at = 2 * queries * line;
    static constexpr int scalars_at = sums_at + queries * 16 * 4;
    static constexpr int lses_at = scalars_at + queries * 8;
    static constexpr int own_at = lses_at + queries * 4;
    static constexpr int own_bytes = own * line;           // of one kind
    static constexpr int rows_at = own_at + 2 * own_bytes; // of the chunk's queries
    static constexpr int shared_bytes = rows_at + queries * 4;
};

// A pass of keys over a chunk of queries. Where a patch has one chunk, sums of both sides are complete after
// the block's passes. Else chunks are outermost at first, for grad_q, and then passes, for the sums of keys.
struct attention_narrow_visit {
    int pass, chunk;
    bool loads_own, loads_streamed; // others than the visit before
    bool ends_own, ends_streamed;   // the sums are complete
};
struct attention_narrow_visits {
    int passes, chunks; // at least 1

    __device__ int total() const { return chunks == 1 ? passes : 2 * passes * chunks; }
    __device__ attention_narrow_visit find(int v) const
    {
        const int half = passes * chunks;
        const bool again = v >= half;
        const int u = again ? v - half : v;
        const int pass = again ? u / chunks : u % passes, chunk = again ? u % chunks : u / passes;
        return {pass,
                chunk,
                !again || chunk == 0,
                again || pass == 0,
                chunks == 1 || (again && chunk == chunks - 1),
                !again && pass == passes - 1};
    }
};

// Rows list[0 .. num) of a head of two matrices as lines of 32 bytes, those of the second `apart` bytes after those
// of the first; `lines` lines, of which others become zeros. Their numbers go to `rows`, unless that is 0.
template <class P>
__device__ __forceinline__ void
attention_narrow_load(uint32_t to, int apart, const attention_rows &first,
                      const attention_rows &second, int head, const int *list, int num, int lines,
                      int dim, uint32_t rows)
{
    const int piece = (int)threadIdx.x % 2;
    const unsigned char *const a = first.of_head(head) + piece * 16;
    const unsigned char *const b = second.of_head(head) + piece * 16;
#pragma unroll 4
    for (int line = (int)threadIdx.x / 2; line < lines; line += P::threads / 2) {
        const int row = line < num ? __ldg(list + line) : 0;
        const bool there = line < num && piece * 8 < dim;
        const uint32_t place = to + swizzled<P::line>(line, piece);
        copy_async_if(place, a + row * first.row, there);
        copy_async_if(place + apart, b + row * second.row, there);
        if (rows != 0 && piece == 0) store_shared(rows + line * 4, (uint32_t)row);
    }
}

// ---- What a warp does ---------------------------------------------------------------------------

template <class P, class T> struct attention_narrow_warp {
    static constexpr int TILES = P::TILES;
    uint32_t k[TILES][4], v[TILES][4]; // left factors
    uint32_t k_right[TILES][4];
    float grad_k[TILES][8], grad_v[TILES][8];

    __device__ __forceinline__ void load_own(uint32_t own, int lane)
    {
        const uint32_t from = own + swizzled<P::line>(lane % 16, lane / 16);
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
            load_matrices(k[m], from + m * 512);
            load_transposed(k_right[m], from + m * 512);
            load_matrices(v[m], from + P::own_bytes + m * 512);
#pragma unroll
            for (int i = 0; i < 8; ++i)
                grad_k[m][i] = grad_v[m][i] = 0.0f;
        }
    }

    // Of 16 queries: right factors whose columns are queries (of two tiles); delta, negative; lse.
    struct queries_of_step {
        uint32_t q[4], grad_o[4];
        float4 less[2];
        float2 lse[2];

        __device__ __forceinline__ void fetch(uint32_t queries, uint32_t scalars, uint32_t lses)
        {
            load_matrices(q, queries);
            load_matrices(grad_o, queries + P::grad_at);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                less[j] = load_shared4<float4>(scalars + j * 64);
                const uint2 l = load_shared2(lses + j * 32);
                lse[j] = make_float2(__uint_as_float(l.x), __uint_as_float(l.y));
            }
        }
    };

    // 16 queries. `sums`: the lane's place among theirs. EDGE: of the 16 TILES keys
    // `left_keys` are there, and of the queries `left`.
    template <bool EDGE>
    __device__ __forceinline__ void step(const queries_of_step &of, uint32_t across, uint32_t sums,
                                         float scale_log2, int left_keys, int left, int lane)
    {
        const uint32_t(&q)[4] = of.q, (&grad_o)[4] = of.grad_o;
        const float4(&less)[2] = of.less;
        const float2(&lse)[2] = of.lse;
        uint32_t q_across[4], grad_across[4]; // columns are columns
        load_transposed(q_across, across);
        load_transposed(grad_across, across + P::grad_at);
        const float4 a = load_shared4<float4>(sums), b = load_shared4<float4>(sums + 512);
        float grad_q[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        float(&low)[4] = *reinterpret_cast<float(*)[4]>(grad_q);
        float(&high)[4] = *reinterpret_cast<float(*)[4]>(grad_q + 4);
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
            if (EDGE && m * 16 >= left_keys) break;
            float t[8], u[8];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                product_and(T(), *reinterpret_cast<float(*)[4]>(t + 4 * j), k[m], q[2 * j],
                            q[2 * j + 1], make_float4(0.0f, 0.0f, 0.0f, 0.0f));
                product_and(T(), *reinterpret_cast<float(*)[4]>(u + 4 * j), v[m], grad_o[2 * j],
                            grad_o[2 * j + 1], less[j]);
            }
            uint32_t weights[4], slopes[4], turned[4];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float l = i % 2 ? lse[i / 4].y : lse[i / 4].x;
                t[i] = exp2_approximate(fmaf(t[i], scale_log2, -l));
                u[i] *= t[i];
                if constexpr (EDGE) {
                    const bool there = i / 4 * 8 + lane % 4 * 2 + i % 2 < left &&
                                       m * 16 + i / 2 % 2 * 8 + lane / 4 < left_keys;
                    t[i] = there ? t[i] : 0.0f;
                    u[i] = there ? u[i] : 0.0f;
                }
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                weights[i] = pack2<T>(t[2 * i], t[2 * i + 1]);
                slopes[i] = pack2<T>(u[2 * i], u[2 * i + 1]);
            }
            add_two_products<T>(grad_v[m], weights, grad_across);
            add_two_products<T>(grad_k[m], slopes, q_across);
            // Words 1 and 2 change places with the sides.
#pragma unroll
            for (int i = 0; i < 4; ++i)
                turned[i] = transposed(slopes[i % 2 * 2 + i / 2]);
            add_product(T(), low, turned, k_right[m][0], k_right[m][1]);
            add_product(T(), high, turned, k_right[m][2], k_right[m][3]);
        }
        store_shared4(sums, make_float4(grad_q[0], grad_q[1], grad_q[2], grad_q[3]));
        store_shared4(sums + 512, make_float4(grad_q[4], grad_q[5], grad_q[6], grad_q[7]));
    }
};

// ---- A patch and a head -------------------------------------------------------------------------

template <class P, class T> struct attention_narrow_block {
    const attention_narrow_params &p;
    uint32_t base; // of shared memory
    int head, rank;
    int first_query, num_queries, first_key, num_keys; // of the patch
    attention_narrow_visits visits;

    __device__ __forceinline__ void load_keys(int pass) const
    {
        const attention_backward_params &b = p.keys;
        const int at = (pass * P::CLUSTER + rank) * P::own;
        attention_narrow_load<P>(base + P::own_at, P::own_bytes, b.own_first, b.own_second,
                                 head / b.own_group, b.own_rows + first_key + at,
                                 max(min(num_keys - at, P::own), 0), P::own, b.dim, 0);
    }

    // Lines up to whole 16. Nothing here waits for what it loads, but for numbers of rows.
    __device__ __forceinline__ void load_queries(int at, int num) const
    {
        const attention_backward_params &b = p.keys;
        const int lines = (num + 15) / 16 * 16;
        attention_narrow_load<P>(base, P::grad_at, b.streamed_first, b.streamed_second, head,
                                 b.streamed_rows + first_query + at, num, lines, b.dim,
                                 base + P::rows_at);
        const int64_t first = head * b.query_entries + first_query + at;
        for (int i = (int)threadIdx.x; i < lines; i += P::threads) {
            const int64_t from = i < num ? first + i : 0;
            const uint32_t to = base + P::scalars_at + i / 2 * 16 + i % 2 * 4;
            copy_async<4>(to, b.delta + from, i < num);
            copy_async<4>(to + 8, b.delta + from, i < num);
            copy_async<4>(base + P::lses_at + i * 4, b.lse + from, i < num);
        }
        for (int i = (int)threadIdx.x; i < lines * 4; i += P::threads)
            store_shared4(base + P::sums_at + i * 16, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
    }

    // Of a chunk, of all blocks of the cluster.
    __device__ __forceinline__ void store_queries(int at, int num, int warp, int lane) const
    {
        for (int tile = rank + warp * P::CLUSTER; tile * 16 < num; tile += P::WARPS * P::CLUSTER) {
            const uint32_t from = base + P::sums_at + tile * 1024 + lane * 16;
            float sums[8] = {};
#pragma unroll
            for (int r = 0; r < P::CLUSTER; ++r)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float4 s = P::CLUSTER > 1 ? load_shared_of(from + i * 512, r)
                                                    : load_shared4<float4>(from + i * 512);
                    sums[i * 4] += s.x, sums[i * 4 + 1] += s.y;
                    sums[i * 4 + 2] += s.z, sums[i * 4 + 3] += s.w;
                }
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int i = tile * 16 + h * 8 + lane / 4;
                const int64_t entry = first_query + at + i;
                const int row = i < num ? load_shared_word(base + P::rows_at + i * 4) : -1;
                store_gradient<T, 16>(p.grad_q, entry, row, head, p.keys.dim, sums, h, p.keys.scale,
                                      lane % 4);
            }
        }
    }

    // Rows of a lane's keys, -1 for none, and a bit for each that is a key once. Loaded long before they are used.
    struct rows_of_keys {
        int row[P::TILES][2];
        uint32_t single;
    };
    __device__ __forceinline__ void name_keys(rows_of_keys &rows, int at, int lane) const
    {
#pragma unroll
        for (int m = 0; m < P::TILES; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int i = at + m * 16 + h * 8 + lane / 4;
                rows.row[m][h] = i < num_keys ? __ldg(p.keys.own_rows + first_key + i) : -1;
            }
    }
    __device__ __forceinline__ void find_single(rows_of_keys &rows) const
    {
        rows.single = 0;
        if (p.key_offsets == nullptr) return;
#pragma unroll
        for (int m = 0; m < P::TILES; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = rows.row[m][h];
                if (row >= 0 && __ldg(p.key_offsets + row + 1) - __ldg(p.key_offsets + row) == 1)
                    rows.single |= 1u << (m * 2 + h);
            }
    }

    __device__ __forceinline__ void store_keys(const attention_narrow_warp<P, T> &w,
                                               const rows_of_keys &rows, int at, int lane) const
    {
        const attention_backward_params &b = p.keys;
#pragma unroll
        for (int m = 0; m < P::TILES; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int64_t entry = first_key + at + m * 16 + h * 8 + lane / 4;
                const bool single = rows.single >> (m * 2 + h) & 1;
                store_own_gradient<T, 16>(b.grad_first, p.row_first, single, entry, rows.row[m][h],
                                          head, b.dim, w.grad_k[m], h, b.scale, lane % 4);
                store_own_gradient<T, 16>(b.grad_second, p.row_second, single, entry,
                                          rows.row[m][h], head, b.dim, w.grad_v[m], h, 1.0f,
                                          lane % 4);
            }
    }

    // The queries of a stage, of `num` of the chunk.
    __device__ __forceinline__ void multiply_stage(attention_narrow_warp<P, T> &w, int stage,
                                                   int num, int left_keys, int lane) const
    {
        typedef typename attention_narrow_warp<P, T>::queries_of_step queries;
        const int tiles = (num + 15) / 16, share = (tiles + P::WARPS - 1) / P::WARPS;
        const int end = min((stage + 1) * share, tiles);
        const uint32_t line = base + swizzled<P::line>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
        const uint32_t across = base + swizzled<P::line>(lane % 16, lane / 16);
        const uint32_t sums = base + P::sums_at + lane * 16;
        const uint32_t scalars = base + P::scalars_at + lane % 4 * 16;
        const uint32_t lses = base + P::lses_at + lane % 4 * 8;
        int tile = stage * share;
        queries of, next;
        if (P::AHEAD && left_keys >= P::TILES * 16) {
            const int full = min(end, num / 16);
            if (tile < full) next.fetch(tile * 512 + line, tile * 128 + scalars, tile * 64 + lses);
            for (; tile < full; ++tile) {
                of = next;
                const int then = min(tile + 1, full - 1);
                next.fetch(then * 512 + line, then * 128 + scalars, then * 64 + lses);
                w.template step<false>(of, tile * 512 + across, tile * 1024 + sums,
                                       p.keys.scale_log2, left_keys, 16, lane);
            }
        }
        for (; tile < end; ++tile) {
            const int left = num - tile * 16;
            of.fetch(tile * 512 + line, tile * 128 + scalars, tile * 64 + lses);
            if (P::AHEAD || left < 16 || left_keys < P::TILES * 16)
                w.template step<true>(of, tile * 512 + across, tile * 1024 + sums,
                                      p.keys.scale_log2, left_keys, left, lane);
            else
                w.template step<false>(of, tile * 512 + across, tile * 1024 + sums,
                                       p.keys.scale_log2, left_keys, left, lane);
        }
    }

    __device__ __forceinline__ void run()
    {
        const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
        attention_narrow_warp<P, T> w;
        rows_of_keys rows;
        load_keys(0);
        for (int v = 0; v < visits.total(); ++v) {
            const attention_narrow_visit visit = visits.find(v);
            const int chunk = visit.chunk * P::queries;
            const int num = min(num_queries - chunk, P::queries);
            if (visit.loads_streamed) load_queries(chunk, num);
            copy_async_wait_all();
            __syncthreads();
            // Of the patch, the warp's first.
            const int own = (visit.pass * P::CLUSTER + rank) * P::own + warp * P::TILES * 16;
            if (visit.loads_own) {
                w.load_own(base + P::own_at + warp * P::TILES * 512, lane);
                name_keys(rows, own, lane);
            }
            const int left_keys = num_keys - own;
            for (int j = 0; j < P::WARPS; ++j) {
                if (left_keys > 0) multiply_stage(w, (warp + j) % P::WARPS, num, left_keys, lane);
                __syncthreads();
                if (j > 0) continue;
                if (visit.loads_own) find_single(rows);
                // Keys are in registers: those of the next visit, if others.
                if (v + 1 < visits.total()) {
                    const attention_narrow_visit next = visits.find(v + 1);
                    if (next.loads_own) load_keys(next.pass);
                }
            }
            if (visit.ends_own) store_keys(w, rows, own, lane);
            if (visit.ends_streamed) {
                if (P::CLUSTER > 1) cluster_wait();
                store_queries(chunk, num, warp, lane);
                if (P::CLUSTER > 1)
                    cluster_wait();
                else
                    __syncthreads();
            }
        }
    }
};

template <class P, class T>
__global__ void __launch_bounds__(P::threads, 1)
    attention_backward_narrow_kernel(const __grid_constant__ attention_narrow_params p)
{
    extern __shared__ __align__(128) unsigned char attention_shared[];
    const int item = (int)blockIdx.x / P::CLUSTER;
    const int patch = item / p.keys.heads;
    if (patch >= *p.num_patches) return;
    attention_narrow_block<P, T> block = {p, shared_address(attention_shared)};
    block.head = item - patch * p.keys.heads;
    block.rank = (int)blockIdx.x % P::CLUSTER;
    block.first_query = __ldg(p.keys.streamed_offsets + patch);
    block.num_queries = __ldg(p.keys.streamed_offsets + patch + 1) - block.first_query;
    block.first_key = __ldg(p.own_offsets + patch);
    block.num_keys = __ldg(p.own_offsets + patch + 1) - block.first_key;
    const int passes = (block.num_keys + P::own - 1) / P::own; // of the cluster
    block.visits.passes = max((passes - block.rank + P::CLUSTER - 1) / P::CLUSTER, 1);
    block.visits.chunks = max((block.num_queries + P::queries - 1) / P::queries, 1);
    block.run();
}

} // namespace spops

#endif
