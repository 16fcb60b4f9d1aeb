// SPDX-License-Identifier: Apache-2.0
// Gradients of attention by wgmma, for sm_90a; attention_backward_params.cuh has the form of the
// sums. Rows begin on 16 bytes; head dims are multiples of 8 up to DIM.
//
// A persistent block of 12 warps takes every so many-th pair of a tile of 128 own rows and a head:
//
//     warps 0-3, 4-7    multiply: a warpgroup has 64 own rows, its sums in registers
//     warps 8-11        gather: each alone copies the rows of every fourth stage; the first two also
//                       the own rows of a warpgroup
//
//     barrier           arrivals                        means
//     stage full        32 lanes' copies                streamed rows, lse and delta are there
//     stage empty       8 (a lane of each warp)         its products have ended
//     own full          32 lanes' copies                a warpgroup's own rows are there
//     own empty         4                               they are in registers, or not needed any more
//
// A warpgroup's order of work, j a stage; in brackets what the matrix units have to do meanwhile:
//
//     p(j) = exp2(t(j))                      [u(j)]
//     grad second += p(j) second(j)   begun
//     ds(j) = p(j) (u(j) - delta)            [grad second]
//     grad first += ds(j) first(j)    begun
//     t(j + 1), u(j + 1)              begun  [all of these]
//
// while the other warpgroup's products fill what is left.
#ifndef SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_SM90_CUH
#define SPOPS_KERNELS_ATTENTION_ATTENTION_BACKWARD_SM90_CUH

#include "kernels/attention/attention_backward_params.cuh"
#include "kernels/attention/attention_wgmma.cuh"

namespace spops
{

// DIM columns, STREAMED rows a stage, STAGES stages. OWN_REGISTERS: own rows are left factors from
// registers, else from shared memory. OVERLAP: the first products of a stage run together with the
// last of the one before, which takes registers for both. TOUCH: see touch_own.
template <int DIM_, int STREAMED_, int STAGES_, bool OWN_REGISTERS_, bool OVERLAP_,
          bool TOUCH_ = false>
struct attention_backward_sm90_policy {
    static constexpr int DIM = DIM_, STREAMED = STREAMED_, STAGES = STAGES_;
    static constexpr bool OWN_REGISTERS = OWN_REGISTERS_, OVERLAP = OVERLAP_;
    static constexpr bool TOUCH = TOUCH_;
    static_assert(TOUCH || !OWN_REGISTERS || DIM != STREAMED, "see touch_own");

    static constexpr int groups = 2, own = 64 * groups;
    typedef warp_roles<groups, 4, 1> roles;
    static constexpr int threads = roles::threads, gather_warps = roles::gather_warps;
    static constexpr bool moves_registers = true;
    static constexpr int gather_registers = DIM > 64 ? 24 : 40;
    static constexpr int multiply_registers = roles::left_to_multiply(gather_registers);
    static constexpr int line = DIM < 64 ? DIM * 2 : 128; // bytes; wider rows have several
    static constexpr swizzle form = line == 128  ? SWIZZLE_128
                                    : line == 64 ? SWIZZLE_64
                                                 : SWIZZLE_32;
    static constexpr int own_bytes = 64 * DIM * 2; // of one kind, of a warpgroup
    static constexpr int matrix_bytes = STREAMED * DIM * 2;
    static constexpr int scalars_at = 2 * matrix_bytes;
    static constexpr int stage_bytes = (scalars_at + 2 * STREAMED * 4 + 1023) / 1024 * 1024;
    static constexpr int stages_at = groups * 2 * own_bytes;
    static constexpr int barriers_at = stages_at + STAGES * stage_bytes;
    static constexpr int shared_bytes =
        barriers_at + barrier_ring::bytes * (STAGES + groups) + stage_alignment;
};

template <class P> struct attention_backward_sm90_block {
    uint32_t base; // of shared memory, aligned to 1024
    __device__ uint32_t own(int group) const { return base + group * 2 * P::own_bytes; }
    __device__ uint32_t stage(int s) const { return base + P::stages_at + s * P::stage_bytes; }
    __device__ barrier_ring stages() const { return {base + P::barriers_at}; }
    __device__ barrier_ring owns() const { return {stages().full(P::STAGES)}; } // of a group
};

template <class T> struct attention_element;
template <> struct attention_element<f16> {
    typedef __half type;
};
template <> struct attention_element<bf16> {
    typedef __nv_bfloat16 type;
};

// Where 16 bytes of a row lie in a matrix of ROWS rows.
template <class P, int ROWS> __device__ __forceinline__ uint32_t attention_place(int row, int piece)
{
    constexpr int a_line = P::line / 16;
    return piece / a_line * ROWS * P::line + swizzled<P::line>(row, piece % a_line);
}

// One warp: rows [at, at + 64) of a matrix of ROWS, of both kinds; of 64 entries `num` are there.
template <class P, int ROWS>
__device__ __forceinline__ void attention_gather(const attention_rows &first,
                                                 const attention_rows &second, uint32_t to_first,
                                                 uint32_t to_second, int at, const int (&index)[2],
                                                 int num, int head, int dim, int lane)
{
    constexpr int pieces = P::DIM / 8, rows = 32 / pieces; // of a round
    const int piece = lane % pieces;
    const bool inside = piece * 8 < dim;
    const unsigned char *const from_first = first.of_head(head) + (inside ? piece * 16 : 0);
    const unsigned char *const from_second = second.of_head(head) + (inside ? piece * 16 : 0);
    const uint32_t first_row = (uint32_t)first.row, second_row = (uint32_t)second.row;
#pragma unroll 8
    for (int i = 0; i < 2 * pieces; ++i) {
        const int r = i * rows + lane / pieces;
        const uint32_t row = (uint32_t)__shfl_sync(~0u, i < pieces ? index[0] : index[1], r % 32);
        const uint32_t place = attention_place<P, ROWS>(at + r, piece);
        const bool there = inside && r < num;
        copy_async_if(to_first + place, from_first + (uint64_t)row * first_row, there);
        copy_async_if(to_second + place, from_second + (uint64_t)row * second_row, there);
    }
}

// The tile of item n, a pair of a tile and a head; heads are innermost.
__device__ __forceinline__ int4 attention_tile(const attention_backward_params &p, int n, int total)
{
    return n < total ? __ldg(p.tiles + n / p.heads) : make_int4(0, 0, 0, 0);
}

template <class P, attention_side SIDE>
__device__ void attention_backward_gather(const attention_backward_params &p,
                                          const attention_backward_sm90_block<P> &block, int warp,
                                          int lane)
{
    const int total = *p.num_tiles * p.heads;
    int stages = 0, items = 0; // of the block, before the item
    int index[2];              // of 64 rows
    const auto ask = [&](const int *list, int num) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
            index[i] = lane + i * 32 < num ? __ldg(list + lane + i * 32) : 0;
    };
    int4 next = attention_tile(p, (int)blockIdx.x, total);
    for (int n = (int)blockIdx.x; n < total; n += (int)gridDim.x, ++items) {
        const int4 tile = next;
        next = attention_tile(p, n + (int)gridDim.x, total);
        const int head = n % p.heads;
        const int own_head = head / p.own_group, streamed_head = head / p.streamed_group;
        const int steps = (tile.w + P::STREAMED - 1) / P::STREAMED;
        const int streamed = __ldg(p.streamed_offsets + tile.x);
        if (warp < P::groups) {
            const uint32_t to = block.own(warp);
            const int num = tile.z - warp * 64;
            ask(p.own_rows + tile.y + warp * 64, num);
            barrier_wait(block.owns().empty(warp), items % 2 ^ 1);
            attention_gather<P, 64>(p.own_first, p.own_second, to, to + P::own_bytes, 0, index, num,
                                    own_head, p.dim, lane);
            barrier_arrive_copies(block.owns().full(warp));
        }
        // A place in the ring is always the same warp's, so that none can be a round ahead.
        for (int step = (warp - stages) & (P::gather_warps - 1); step < steps;
             step += P::gather_warps) {
            const int s = (stages + step) % P::STAGES;
            const uint32_t to = block.stage(s);
#pragma unroll 1
            for (int at = 0; at < P::STREAMED; at += 64) {
                const int from = streamed + step * P::STREAMED + at;
                const int num = tile.w - step * P::STREAMED - at;
                ask(p.streamed_rows + from, num);
                if (at == 0)
                    barrier_wait(block.stages().empty(s), (stages + step) / P::STAGES % 2 ^ 1);
                attention_gather<P, P::STREAMED>(p.streamed_first, p.streamed_second, to,
                                                 to + P::matrix_bytes, at, index, num,
                                                 streamed_head, p.dim, lane);
                if constexpr (SIDE == OWN_KEYS) {
                    const uint32_t scalars = to + P::scalars_at + at * 4;
                    const int64_t first = head * p.query_entries + from;
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const int r = lane + i * 32;
                        const int64_t e = r < num ? first + r : 0;
                        copy_async<4>(scalars + r * 4, p.lse + e, r < num);
                        copy_async<4>(scalars + P::STREAMED * 4 + r * 4, p.delta + e, r < num);
                    }
                }
            }
            barrier_arrive_copies(block.stages().full(s));
        }
        stages += steps;
    }
    copy_async_wait_all();
}

template <class P, class T, attention_side SIDE> struct attention_backward_sums {
    typedef typename attention_element<T>::type E;
    static constexpr int D = P::DIM, S = P::STREAMED;
    float first[D / 2];
    float second[SIDE == OWN_KEYS ? D / 2 : 1];
    float t[S / 2], u[S / 2];
    uint32_t own_first[P::OWN_REGISTERS ? D / 16 : 1][4];
    uint32_t own_second[P::OWN_REGISTERS ? D / 16 : 1][4];

    // The own rows of this warp in shared memory, to registers.
    __device__ __forceinline__ void load_own(uint32_t own, int warp, int lane)
    {
        const int row = warp * 16 + lane % 16, upper = lane / 16;
#pragma unroll
        for (int d = 0; d < D / 16; ++d) {
            const uint32_t place = own + attention_place<P, 64>(row, 2 * d + upper);
            load_matrices(own_first[d], place);
            load_matrices(own_second[d], place + P::own_bytes);
        }
    }

    __device__ __forceinline__ void begin_one(float (&sum)[S / 2],
                                              uint32_t (&left)[P::OWN_REGISTERS ? D / 16 : 1][4],
                                              uint32_t own, uint32_t streamed)
    {
        constexpr uint64_t form = descriptor(P::form, 0, 8 * P::line);
#pragma unroll
        for (int d = 0; d < D / 16; ++d) {
            constexpr int a_line = P::line / 32;
            const int in_line = d % a_line * 32, lines = d / a_line * P::line;
            const uint64_t b = at_address(form, streamed + lines * S + in_line);
            if constexpr (P::OWN_REGISTERS)
                wgmma_left<E, S, ALONG_K>::run(sum, left[d], b, d > 0);
            else
                wgmma<E, S, ALONG_K, ALONG_K>::run(
                    sum, at_address(form, own + lines * 64 + in_line), b, d > 0);
        }
        wgmma_commit();
    }
    // t and u of a stage.
    __device__ __forceinline__ void begin(uint32_t own, uint32_t stage)
    {
        fence_for_wgmma();
        wgmma_fence();
        begin_one(t, own_first, own, stage);
        begin_one(u, own_second, own + P::own_bytes, stage + P::matrix_bytes);
    }
    // sum += weights streamed.
    __device__ __forceinline__ void add(float (&sum)[D / 2], const uint32_t (&weights)[S / 16][4],
                                        uint32_t streamed, bool begun)
    {
        constexpr uint64_t form = descriptor(P::form, S * P::line, 8 * P::line);
#pragma unroll
        for (int s = 0; s < S / 16; ++s)
            wgmma_left<E, D, ACROSS_K>::run(
                sum, weights[s], at_address(form, streamed + s * 16 * P::line), begun || s > 0);
    }

    // Rows that are not there count nothing, whatever the own rows hold.
    __device__ __forceinline__ void cut(int left, int q)
    {
#pragma unroll
        for (int i = 0; i < S / 2; ++i)
            if (i / 4 * 8 + q * 2 + i % 2 >= left) t[i] = 0.0f;
    }

    // Own rows in registers stay the same over all stages. Where they have the shape of weights and
    // slopes (as many columns as a stage has rows), nvcc 13.0 gives both the same registers, and
    // results are wrong. It does not if it must take own rows to change at each stage, also if that
    // is by nothing. Other shapes lose up to 8 % by it.
    __device__ __forceinline__ void touch_own(uint32_t zero)
    {
#pragma unroll
        for (int d = 0; d < D / 16; ++d)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                own_first[d][i] ^= zero;
                own_second[d][i] ^= zero;
            }
    }

    // A stage, whose t and u have begun; `left` streamed rows are there from it on.
    __device__ __forceinline__ void step(uint32_t stage, bool begun, int left,
                                         const float (&row_lse)[2], const float (&row_delta)[2],
                                         float scale_log2, int q, uint32_t zero)
    {
        const uint32_t scalars = stage + P::scalars_at + q * 8;
        wgmma_wait<1>();
        pin_registers(t);
#pragma unroll
        for (int n = 0; n < S / 8; ++n) {
            uint2 l = {0, 0};
            if constexpr (SIDE == OWN_KEYS) l = load_shared2(scalars + n * 32);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float lse =
                    SIDE == OWN_KEYS ? __uint_as_float(j % 2 ? l.y : l.x) : row_lse[j / 2];
                t[n * 4 + j] = exp2_approximate(fmaf(t[n * 4 + j], scale_log2, -lse));
            }
        }
        if (left < S) cut(left, q);
        // Left factors in registers are written while no product runs, or the compiler lets
        // products run one by one.
        wgmma_wait<0>();
        pin_registers(u);
        uint32_t weights[S / 16][4], slopes[S / 16][4];
        if constexpr (P::TOUCH) touch_own(zero);
        if constexpr (SIDE == OWN_KEYS) sums_to_left<T, S>(weights, t);
#pragma unroll
        for (int n = 0; n < S / 8; ++n) {
            uint2 l = {0, 0};
            if constexpr (SIDE == OWN_KEYS) l = load_shared2(scalars + S * 4 + n * 32);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float delta =
                    SIDE == OWN_KEYS ? __uint_as_float(j % 2 ? l.y : l.x) : row_delta[j / 2];
                t[n * 4 + j] *= u[n * 4 + j] - delta;
            }
        }
        if (left < S) cut(left, q);
        sums_to_left<T, S>(slopes, t);
        wgmma_fence();
        if constexpr (SIDE == OWN_KEYS) add(second, weights, stage + P::matrix_bytes, begun);
        add(first, slopes, stage, begun);
        wgmma_commit();
    }
};

template <class P, class T, attention_side SIDE>
__device__ void attention_backward_multiply(const attention_backward_params &p,
                                            const attention_backward_sm90_block<P> &block,
                                            int group, int thread)
{
    constexpr int D = P::DIM, S = P::STREAMED;
    const int lane = thread % 32, warp = thread / 32, g = lane / 4, q = lane % 4;
    const int total = *p.num_tiles * p.heads;
    const float *const all_lse = p.lse, *const all_delta = p.delta;
    ring_position<P::STAGES> at;
    attention_backward_sums<P, T, SIDE> sums;
    const auto release = [&](uint32_t barrier) { release_slot(barrier, lane); };

    uint32_t own_parity = 0;
    int4 next = attention_tile(p, (int)blockIdx.x, total);
    for (int n = (int)blockIdx.x; n < total; n += (int)gridDim.x, own_parity ^= 1) {
        const int4 tile = next;
        next = attention_tile(p, n + (int)gridDim.x, total);
        const int head = n % p.heads;
        const int steps = (tile.w + S - 1) / S;
        if (group * 64 >= tile.z) { // nothing to do here
            barrier_wait(block.owns().full(group), own_parity);
            release(block.owns().empty(group));
            for (int j = 0; j < steps; ++j) {
                barrier_wait(block.stages().full(at.at), at.full_parity());
                release(block.stages().empty(at.at));
                at.advance();
            }
            continue;
        }
        int row[2];
        float row_lse[2] = {0.0f, 0.0f}, row_delta[2] = {0.0f, 0.0f};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int own = group * 64 + warp * 16 + h * 8 + g;
            row[h] = -1;
            if (own < tile.z) {
                row[h] = __ldg(p.own_rows + tile.y + own);
                if constexpr (SIDE == OWN_QUERIES) {
                    row_lse[h] = __ldg(all_lse + head * p.query_entries + tile.y + own);
                    row_delta[h] = __ldg(all_delta + head * p.query_entries + tile.y + own);
                }
            }
        }
        const uint32_t own = block.own(group);
        barrier_wait(block.owns().full(group), own_parity);
        if constexpr (P::OWN_REGISTERS) {
            sums.load_own(own, warp, lane);
            release(block.owns().empty(group));
        }
        if (steps == 0) {
#pragma unroll
            for (int i = 0; i < D / 2; ++i) {
                sums.first[i] = 0.0f;
                if constexpr (SIDE == OWN_KEYS) sums.second[i] = 0.0f;
            }
        } else {
            uint32_t before = 0;
            for (int j = 0; j < steps; ++j) {
                const uint32_t stage = block.stage(at.at);
                barrier_wait(block.stages().full(at.at), at.full_parity());
                sums.begin(own, stage);
                if (P::OVERLAP && j > 0) {
                    wgmma_wait<2>(); // only t and u are under way
                    release(before);
                }
                before = block.stages().empty(at.at);
                sums.step(stage, j > 0, tile.w - j * S, row_lse, row_delta, p.scale_log2, q,
                          p.dim >> 16);
                if constexpr (!P::OVERLAP) {
                    wgmma_wait<0>();
                    release(before);
                }
                at.advance();
            }
            wgmma_wait<0>();
            pin_registers(sums.first);
            if constexpr (SIDE == OWN_KEYS) pin_registers(sums.second);
            if constexpr (P::OVERLAP) release(before);
        }
        if constexpr (!P::OWN_REGISTERS) release(block.owns().empty(group));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int64_t entry = tile.y + group * 64 + warp * 16 + h * 8 + g;
            store_gradient<T, D>(p.grad_first, entry, row[h], head, p.dim, sums.first, h, p.scale,
                                 q);
            if constexpr (SIDE == OWN_KEYS)
                store_gradient<T, D>(p.grad_second, entry, row[h], head, p.dim, sums.second, h,
                                     1.0f, q);
        }
    }
}

template <class P, class T, attention_side SIDE>
__global__ void __launch_bounds__(P::threads, 1)
    attention_backward_sm90_kernel(const __grid_constant__ attention_backward_params p)
{
    extern __shared__ char unaligned_shared[];
    attention_backward_sm90_block<P> block;
    block.base = aligned_shared(unaligned_shared);
    if (threadIdx.x == 0) {
        block.stages().init(P::STAGES, 32, 4 * P::groups);
        block.owns().init(P::groups, 32, 4);
        barrier_init_done();
    }
    __syncthreads();
    run_roles<P>(
        [&](int warp) {
            attention_backward_multiply<P, T, SIDE>(p, block, warp / 4, threadIdx.x % 128);
        },
        [&](int warp) { attention_backward_gather<P, SIDE>(p, block, warp, threadIdx.x % 32); });
}

} // namespace spops

#endif
