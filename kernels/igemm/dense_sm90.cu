// SPDX-License-Identifier: Apache-2.0
// Rows times one matrix on sm_90a, in 16 bits: out = finish(x W). A block keeps its columns of W in shared
// memory and walks 64 rows at a time, so that W is read once a block and x once for all columns that a
// block has. deep_sm90.cu and igemm_sm90.cuh do the same sums for what does not fit here.
//
//     warps          role
//     4 * GROUPS     multiply: each warpgroup takes every so many-th 64 rows, and writes them while the
//                    others multiply
//     1              loads rows: boxes of 64 rows by 128 bytes of k, into a ring that all groups share
//     3              load W by boxes, all at once, and bring columns in order as they come
//
//     barrier        arrivals                       means
//     stage full     1 + bytes                      rows are there
//     stage empty    4 (a lane of each warp)        the products of the last columns have ended
//     W there        1 + bytes                      64 of k by COLS columns are there, as memory has them
//     W in order     3 (a lane of each warp)        they can be multiplied
//
//     turn           4                              the group before has found all rows of its 64
//
// A barrier tells rounds of the ring apart by their parity alone. A group that waits for rows of a round must
// not come before those of the round before. Where the ring has fewer stages than all groups take at once,
// these may be another group's, and groups wait for their rows by turns. Else the ring has a multiple of
// what all groups take, so that they are its own: copies may end in another order than they begin.
//
// Columns of W lie in another order in shared memory: a thread of the product has two neighbours of each eight
// columns, and in this order they are eight neighbours of the output, 16 bytes of a row. Of 32 columns,
// 8 q + 2 j + i changes places with 8 j + 2 q + i.
#include "kernels/core/sm90/pipeline.cuh"
#include "kernels/igemm/dense_sm90.cuh"
#include "kernels/igemm/igemm_boxes.cuh"
#include "spops/device/grid_dependency.cuh"

namespace
{

using namespace spops;

constexpr int unit_rows = 64, stage_bytes = unit_rows * 128, chunk = 64; // numbers of k in a stage
constexpr int max_stages = 16;

struct dense_params {
    CUtensorMap x, w_map; // 3D: along a line, lines, 1
    const void *w;
    const int *num_rows; // that count; null: all
    int rows, depth;
    int chunks; // of k
    int passes; // of COLS columns, of a block
    int col_blocks, stages;
    int vectors; // 1: bias; 3: scale and shift too
    int apart;   // numbers from one vector to the next; 0: there is bias alone
    bool early;  // W, vectors and num_rows were there before the kernel before this one began
    epilogue_params epilogue;
};

template <int COLS_> struct dense_policy {
    static constexpr int COLS = COLS_, GROUPS = 3;
    typedef warp_roles<GROUPS, 4, 1> roles; // of four one loads, and leaves registers to the others
    static constexpr int threads = roles::threads, multiplying = 128 * GROUPS;
    static constexpr int ordering_warps = 3; // the first begins copies of W, too
    // W comes by boxes. Of 32 columns it is little, and the threads that multiply load it.
    static constexpr bool boxes = COLS > 32;
    static constexpr bool moves_registers = true;
    static constexpr int gather_registers = 40;
    static constexpr int multiply_registers = roles::left_to_multiply(gather_registers);
    // Of W: COLS columns by 128 bytes of k. Across k, columns lie 64 to a line.
    template <operand B>
    static constexpr int w_bytes = (B == ALONG_K ? COLS : (COLS + 63) / 64 * 64) * 128;
};

// Shared memory: W by passes and chunks, stages, bias, scale and shift, barriers.
template <class P, operand B> struct dense_block {
    uint32_t base;
    char *shared;
    int passes, chunks, stages, vectors;

    __host__ __device__ static int64_t bytes(int64_t passes, int64_t chunks, int64_t stages,
                                             int64_t vectors)
    {
        return passes * chunks * P::template w_bytes<B> + stages * (stage_bytes + 16) +
               P::GROUPS * 8 + passes * chunks * barrier_ring::bytes +
               vectors * passes * P::COLS * 4 + stage_alignment;
    }
    __device__ uint32_t w(int pass, int k) const
    {
        return base + (pass * chunks + k) * P::template w_bytes<B>;
    }
    __device__ uint32_t stage(int s) const { return w(passes, 0) + s * stage_bytes; }
    __device__ float *bias() const
    {
        return reinterpret_cast<float *>(shared + (stage(stages) - base));
    }
    __device__ barrier_ring barriers() const
    {
        return {stage(stages) + vectors * passes * P::COLS * (uint32_t)sizeof(float)};
    }
    __device__ uint32_t turn(int group) const { return barriers().full(stages) + 8 * group; }
    // Full where chunk k of a pass is there, which is slot pass * chunks + k; empty where it is in order.
    __device__ barrier_ring w_barriers() const { return {turn(P::GROUPS)}; }
};

// A place in the ring, of as many stages as there are.
struct stage_place {
    int at;
    uint32_t round;

    __device__ void advance(int steps, int stages)
    {
        at += steps;
        while (at >= stages) {
            at -= stages;
            ++round;
        }
    }
};

// ---- W ------------------------------------------------------------------------------------------

// W [depth][cols]: 8 columns of a k, whose pairs lie 16 bytes apart.
template <class P>
__device__ void load_w(const dense_params &p, const dense_block<P, ACROSS_K> &block, int col)
{
    constexpr int pieces = (P::COLS + 63) / 64 * 8;
    const int items = p.passes * p.chunks * chunk * pieces;
#pragma unroll 4
    for (int item = threadIdx.x; item < items; item += P::multiplying) {
        const int piece = item % pieces, line = item / pieces % chunk;
        const int k = item / (pieces * chunk) % p.chunks, pass = item / (pieces * chunk) / p.chunks;
        const int from_k = k * chunk + line, c = col + pass * P::COLS + 8 * piece;
        int4 v = make_int4(0, 0, 0, 0);
        if (from_k < p.depth && c < p.epilogue.cols && 8 * piece < P::COLS)
            v = __ldg(reinterpret_cast<const int4 *>(static_cast<const uint16_t *>(p.w) +
                                                     (int64_t)from_k * p.epilogue.cols + c));
        const uint32_t to = block.w(pass, k) + piece / 8 * (chunk * 128) + piece % 4 * 4;
        const int first = piece / 4 % 2 * 4;
        store_shared(to + swizzled(line, first), (uint32_t)v.x);
        store_shared(to + swizzled(line, first + 1), (uint32_t)v.y);
        store_shared(to + swizzled(line, first + 2), (uint32_t)v.z);
        store_shared(to + swizzled(line, first + 3), (uint32_t)v.w);
    }
}

// W [cols][depth]: 8 numbers of k of a column, to the line that the column has.
template <class P>
__device__ void load_w(const dense_params &p, const dense_block<P, ALONG_K> &block, int col)
{
    const int items = p.passes * p.chunks * P::COLS * 8;
#pragma unroll 4
    for (int item = threadIdx.x; item < items; item += P::multiplying) {
        const int piece = item % 8, k = item / 8 % p.chunks;
        const int own = item / 8 / p.chunks % P::COLS, pass = item / 8 / p.chunks / P::COLS;
        const int from_k = k * chunk + 8 * piece, c = col + pass * P::COLS + own;
        const int line = own / 32 * 32 + own % 8 / 2 * 8 + own % 32 / 8 * 2 + own % 2;
        int4 v = make_int4(0, 0, 0, 0);
        if (from_k < p.depth && c < p.epilogue.cols)
            v = __ldg(reinterpret_cast<const int4 *>(static_cast<const uint16_t *>(p.w) +
                                                     (int64_t)c * p.depth + from_k));
        store_shared4(block.w(pass, k) + swizzled(line, piece), v);
    }
}

// All of a block's, in the order in which products take it. One thread.
template <class P, operand B>
__device__ void copy_w(const dense_params &p, const dense_block<P, B> &block, int col)
{
    for (int pass = 0; pass < p.passes; ++pass)
        for (int k = 0; k < p.chunks; ++k) {
            const uint32_t there = block.w_barriers().full(pass * p.chunks + k);
            const uint32_t to = block.w(pass, k);
            const int c = col + pass * P::COLS;
            barrier_arrive_expect(there, P::template w_bytes<B>);
            if constexpr (B == ALONG_K) {
                copy_box(to, &p.w_map, k * chunk, c, 0, there);
            } else {
                for (int from = 0; from < P::COLS; from += 64)
                    copy_box(to + from * 128, &p.w_map, c + from, k * chunk, 0, there);
            }
        }
}

// The columns of a chunk, in place; t of 32 * ordering_warps. W [depth][cols]: a thread takes 32 columns of
// a k, and pair j of piece q changes places with pair q of piece j.
template <class P>
__device__ __forceinline__ void order_w(const dense_block<P, ACROSS_K> &, uint32_t w, int t)
{
#pragma unroll 1
    for (int item = t; item < P::COLS / 32 * chunk; item += 32 * P::ordering_warps) {
        const int line = item % chunk, part = item / chunk;
        const uint32_t at = w + part / 2 * (chunk * 128);
        const int first = part % 2 * 4;
        uint4 v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            v[i] = load_shared4(at + swizzled(line, first + i));
        store_shared4(at + swizzled(line, first), make_uint4(v[0].x, v[1].x, v[2].x, v[3].x));
        store_shared4(at + swizzled(line, first + 1), make_uint4(v[0].y, v[1].y, v[2].y, v[3].y));
        store_shared4(at + swizzled(line, first + 2), make_uint4(v[0].z, v[1].z, v[2].z, v[3].z));
        store_shared4(at + swizzled(line, first + 3), make_uint4(v[0].w, v[1].w, v[2].w, v[3].w));
    }
}

// W [cols][depth]: a thread has two lines of each 32 change places, 16 bytes of them: 6 pairs q < j, two
// columns each, by 8 pieces.
template <class P>
__device__ __forceinline__ void order_w(const dense_block<P, ALONG_K> &, uint32_t w, int t)
{
    static_assert(32 * P::ordering_warps == 6 * 2 * 8, "a thread to each two places");
    const int piece = t % 8, i = t / 8 % 2, pair = t / 16;
    const int q = pair < 3 ? 0 : pair < 5 ? 1 : 2;
    const int j = pair < 3 ? pair + 1 : pair < 5 ? pair - 1 : 3;
    const uint32_t one = w + swizzled(8 * q + 2 * j + i, piece);
    const uint32_t other = w + swizzled(8 * j + 2 * q + i, piece);
#pragma unroll
    for (int b = 0; b < P::COLS / 32; ++b) {
        const uint4 v = load_shared4(one + b * 32 * 128), u = load_shared4(other + b * 32 * 128);
        store_shared4(one + b * 32 * 128, u);
        store_shared4(other + b * 32 * 128, v);
    }
}

// The warps that have W; t of 32 * ordering_warps.
template <class P, operand B>
__device__ void bring_w(const dense_params &p, const dense_block<P, B> &block, int col, int t)
{
    if (t == 0) copy_w(p, block, col);
    __syncwarp();
    for (int pass = 0; pass < p.passes; ++pass)
        for (int k = 0; k < p.chunks; ++k) {
            const int slot = pass * p.chunks + k;
            barrier_wait(block.w_barriers().full(slot), 0);
            order_w(block, block.w(pass, k), t);
            fence_for_wgmma();
            release_slot(block.w_barriers().empty(slot), t % 32);
        }
}

// ---- The sums -----------------------------------------------------------------------------------

// f(v[i], numbers[i]).
template <class F>
__device__ __forceinline__ void each_of_eight(float (&v)[8], const float *numbers, const F &f)
{
    const float4 n0 = *reinterpret_cast<const float4 *>(numbers);
    const float4 n1 = *reinterpret_cast<const float4 *>(numbers + 4);
    const float n[8] = {n0.x, n0.y, n0.z, n0.w, n1.x, n1.y, n1.z, n1.w};
#pragma unroll
    for (int i = 0; i < 8; ++i)
        f(v[i], n[i]);
}

// Eight numbers of a row, rounded and written; `residual` is theirs.
template <class T>
__device__ __forceinline__ void finish_eight(const dense_params &p, float (&v)[8],
                                             const float *bias, uint4 residual, T *out)
{
    const uint32_t r[4] = {residual.x, residual.y, residual.z, residual.w};
    each_of_eight(v, bias, [](float &a, float b) { a += b; });
    if (p.apart != 0) { // each step is rounded, as those of finish_sums are
        each_of_eight(v, bias + p.apart, [](float &a, float b) { a = __fmul_rn(a, b); });
        each_of_eight(v, bias + 2 * p.apart, [](float &a, float b) { a = __fadd_rn(a, b); });
    }
    if (p.epilogue.residual != nullptr) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = numbers_of_pair<T>(r[i]);
            v[2 * i] += pair.x;
            v[2 * i + 1] += pair.y;
        }
    }
    activate_rounded<T>(p.epilogue.activated, v);
    *reinterpret_cast<uint4 *>(out) =
        make_uint4(rounded_pair<T>(v[0], v[1]), rounded_pair<T>(v[2], v[3]),
                   rounded_pair<T>(v[4], v[5]), rounded_pair<T>(v[6], v[7]));
}

// sum[16 b + 4 j + 2 h + i] is row row + 8 h, column col + 32 b + 8 q + 2 j + i.
template <class T, int COLS>
__device__ __forceinline__ void write_sums(const dense_params &p, const float (&sum)[COLS / 2],
                                           const uint4 (&residual)[COLS / 16], const float *bias,
                                           int row, int rows, int col, int q)
{
    const epilogue_params &e = p.epilogue;
#pragma unroll
    for (int b = 0; b < COLS / 32; ++b) {
        const int own = 32 * b + 8 * q, c = col + own;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float v[8];
#pragma unroll
            for (int i = 0; i < 8; ++i)
                v[i] = sum[16 * b + i / 2 * 4 + 2 * h + i % 2];
            if (row + 8 * h < rows && c < e.cols)
                finish_eight<T>(p, v, bias + own, residual[2 * b + h],
                                static_cast<T *>(e.out) + (row + 8 * h) * e.out_stride + c);
        }
    }
}

template <int COLS>
__device__ __forceinline__ void ask_for_residual(const epilogue_params &p,
                                                 uint4 (&residual)[COLS / 16], int row, int rows,
                                                 int col, int q)
{
#pragma unroll
    for (int i = 0; i < COLS / 16; ++i)
        residual[i] = make_uint4(0, 0, 0, 0);
    if (p.residual == nullptr) return;
#pragma unroll
    for (int i = 0; i < COLS / 16; ++i) {
        const int r = row + i % 2 * 8, c = col + i / 2 * 32 + 8 * q;
        if (r < rows && c < p.cols) residual[i] = eight_of_residual(p, r, c);
    }
}

// One warpgroup.
template <class P, class T, operand B>
__device__ void dense_multiply(const dense_params &p, const dense_block<P, B> &block, int rows,
                               int group, int t)
{
    const uint64_t a_form = descriptor(SWIZZLE_128, 0, 1024);
    const uint64_t b_form = descriptor(SWIZZLE_128, B == ACROSS_K ? chunk * 128 : 0, 1024);
    constexpr int b_step = B == ACROSS_K ? 16 * 128 : 32;
    const int step = gridDim.x / p.col_blocks;
    const int first_col = blockIdx.x % p.col_blocks * p.passes * P::COLS;
    const int q = t % 4, own_row = t / 32 * 16 + t % 32 / 4;
    stage_place first = {0, 0};
    const bool by_turns = p.stages < P::GROUPS * p.chunks;
    uint32_t turns = 0;
    bool w_is_new = P::boxes;
    float sum[P::COLS / 2];

    first.advance(group * p.chunks, p.stages);
    for (int64_t unit = blockIdx.x / p.col_blocks + (int64_t)group * step; unit * unit_rows < rows;
         unit += (int64_t)P::GROUPS * step) {
        const int row = (int)unit * unit_rows + own_row;
        if (by_turns) // the first turn of the first group has no one before it
            barrier_wait(block.turn(group), (turns++ & 1) ^ (group == 0 ? 1 : 0));
        for (int pass = 0; pass < p.passes; ++pass) {
            const int col = first_col + pass * P::COLS;
            const bool last = pass == p.passes - 1;
            stage_place stage = first, before = first;
            uint4 residual[P::COLS / 16];
            for (int k = 0; k < p.chunks; ++k) {
                if (pass == 0) barrier_wait(block.barriers().full(stage.at), stage.round & 1);
                if (by_turns && pass == 0 && k == p.chunks - 1 && t % 32 == 0)
                    barrier_arrive(block.turn((group + 1) % P::GROUPS));
                if (P::boxes && w_is_new)
                    barrier_wait(block.w_barriers().empty(pass * p.chunks + k), 0);
                const uint32_t a = block.stage(stage.at), b = block.w(pass, k);
                wgmma_fence();
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    wgmma<T, P::COLS, ALONG_K, B>::run(sum, at_address(a_form, a + i * 32),
                                                       at_address(b_form, b + i * b_step),
                                                       k > 0 || i > 0);
                wgmma_commit();
                if (k > 0) {
                    wgmma_wait<1>();
                    if (last) release_slot(block.barriers().empty(before.at), t % 32);
                    before = stage;
                }
                stage.advance(1, p.stages);
            }
            ask_for_residual<P::COLS>(p.epilogue, residual, row, rows, col, q);
            wgmma_wait<0>();
            pin_registers(sum);
            if (last) release_slot(block.barriers().empty(before.at), t % 32);
            write_sums<T, P::COLS>(p, sum, residual, block.bias() + pass * P::COLS, row, rows, col,
                                   q);
        }
        first.advance(P::GROUPS * p.chunks, p.stages);
        w_is_new = false;
    }
}

// One thread.
template <class P, operand B>
__device__ void dense_load(const dense_params &p, const dense_block<P, B> &block, int rows)
{
    const int step = gridDim.x / p.col_blocks;
    stage_place stage = {0, 0};
    for (int64_t unit = blockIdx.x / p.col_blocks; unit * unit_rows < rows; unit += step)
        for (int k = 0; k < p.chunks; ++k) {
            const uint32_t full = block.barriers().full(stage.at);
            barrier_wait(block.barriers().empty(stage.at), (stage.round & 1) ^ 1);
            barrier_arrive_expect(full, stage_bytes);
            copy_box(block.stage(stage.at), &p.x, k * chunk, (int)unit * unit_rows, 0, full);
            stage.advance(1, p.stages);
        }
}

// Bias, scale and shift of the block's columns; where one is not given, what changes nothing.
template <class P>
__device__ __forceinline__ void load_vectors(const dense_params &p, float *to, int col)
{
    const int num = p.passes * P::COLS;
    for (int i = threadIdx.x; i < p.vectors * num; i += P::multiplying) {
        const int vector = i / num, c = col + i - vector * num;
        const float *from = vector == 0   ? p.epilogue.bias
                            : vector == 1 ? p.epilogue.scale
                                          : p.epilogue.shift;
        const float nothing = vector == 1 ? 1.0f : p.vectors > 1 ? -0.0f : 0.0f;
        to[i] = from != nullptr && c < p.epilogue.cols ? __ldg(from + c) : nothing;
    }
}

template <class P, class T, operand B>
__global__ void __launch_bounds__(P::threads, 1)
    dense_kernel(const __grid_constant__ dense_params p)
{
    extern __shared__ char unaligned[];
    dense_block<P, B> block;
    block.base = aligned_shared(unaligned);
    block.shared = unaligned + (block.base - shared_address(unaligned));
    block.passes = p.passes;
    block.chunks = p.chunks;
    block.stages = p.stages;
    block.vectors = p.vectors;
    if (threadIdx.x == 0) {
        block.barriers().init(p.stages, 1, 4);
        for (int g = 0; g < P::GROUPS; ++g)
            barrier_init(block.turn(g), 4);
        block.w_barriers().init(p.passes * p.chunks, 1, P::ordering_warps);
        barrier_init_done();
    }
    if (P::boxes && threadIdx.x == 32) { // the launch's own arguments
        prefetch_tensor_map(&p.x);
        prefetch_tensor_map(&p.w_map);
    }
    if (!p.early) {
        grid_dependency_wait();
        grid_launch_dependents();
    }
    const int rows = rows_that_count(p);
    const int col = blockIdx.x % p.col_blocks * p.passes * P::COLS;
    __syncthreads();
    run_roles<P>(
        [&](int warp) {
            if constexpr (!P::boxes) load_w(p, block, col);
            load_vectors<P>(p, block.bias(), col);
            if constexpr (!P::boxes) fence_for_wgmma();
            named_barrier_wait<P::multiplying>(1);
            if (p.early) grid_dependency_wait();
            dense_multiply<P, T, B>(p, block, rows, warp / 4, threadIdx.x % 128);
        },
        [&](int warp) {
            const bool has_rows = (int64_t)(blockIdx.x / p.col_blocks) * unit_rows < rows;
            if (threadIdx.x == P::multiplying) {
                if (p.early) {
                    grid_dependency_wait();
                    grid_launch_dependents();
                }
                dense_load<P, B>(p, block, rows);
            } else if constexpr (P::boxes) {
                if (warp > 0 && has_rows)
                    bring_w<P, B>(p, block, col, threadIdx.x - P::multiplying - 32);
            }
        });
}

// ---- Launching ----------------------------------------------------------------------------------

// How a product is cut: columns of a pass, passes a block, stages. No stages: it does not fit.
struct dense_cut {
    int cols, passes, stages;
};

constexpr int least_stages = 8;

int chunks_of(const weight_form &f)
{
    return (f.depth + chunk - 1) / chunk;
}

template <class P>
int64_t bytes_of(const weight_form &f, int passes, int chunks, int stages, int vectors)
{
    return f.along_k ? dense_block<P, ALONG_K>::bytes(passes, chunks, stages, vectors)
                     : dense_block<P, ACROSS_K>::bytes(passes, chunks, stages, vectors);
}

int vectors_of(const epilogue_params &e)
{
    return e.scale != nullptr || e.shift != nullptr ? 3 : 1;
}

template <class P> dense_cut cut_with(const spops_context *ctx, const weight_form &f, int vectors)
{
    const int chunks = chunks_of(f), passes = (f.cols + P::COLS - 1) / P::COLS;
    const int most = (int)ctx->block_shared_bytes;
    // The widest block that leaves a ring of `least_stages`, and of a unit for each group where x is
    // read several times.
    for (int blocks = 1; blocks <= passes; ++blocks) {
        const int of_block = (passes + blocks - 1) / blocks;
        const int at_once = P::GROUPS * chunks; // what all groups take
        const int needed = of_block > 1 && at_once > least_stages ? at_once : least_stages;
        for (int stages = max_stages; stages >= needed; --stages)
            if (bytes_of<P>(f, of_block, chunks, stages, vectors) <= most)
                return {P::COLS, of_block, stages > at_once ? stages - stages % at_once : stages};
    }
    return {};
}

dense_cut cut_of(const spops_context *ctx, const weight_form &f, int vectors)
{
    const auto padded = [&](int cols) { return (f.cols + cols - 1) / cols * cols; };
    if (f.cols <= 32) return cut_with<dense_policy<32>>(ctx, f, vectors);
    if (f.cols <= 64) return cut_with<dense_policy<64>>(ctx, f, vectors);
    return padded(96) < padded(128) ? cut_with<dense_policy<96>>(ctx, f, vectors)
                                    : cut_with<dense_policy<128>>(ctx, f, vectors);
}

template <class P, class T, operand B>
spops_status launch_policy(spops_context *ctx, const spops_igemm_args *args, const weight_form &f,
                           const dense_cut &cut)
{
    dense_params p = {};
    SPOPS_TRY(encode_tensor_map(ctx, box_of_rows(args->x, chunk, unit_rows), &p.x));
    if constexpr (P::boxes)
        SPOPS_TRY(
            encode_tensor_map(ctx, box_of_weights<B>(args, f, chunk, P::COLS, chunk), &p.w_map));
    p.w = args->w.data;
    p.num_rows = args->num_rows;
    p.rows = (int)args->x.rows;
    p.depth = f.depth;
    p.chunks = chunks_of(f);
    p.passes = cut.passes;
    p.col_blocks = (f.cols + P::COLS * cut.passes - 1) / (P::COLS * cut.passes);
    p.stages = cut.stages;
    p.epilogue = epilogue_of(args);
    p.vectors = vectors_of(p.epilogue);
    p.apart = p.vectors > 1 ? p.passes * P::COLS : 0;
    p.early = args->reads_ahead;
    const int units = (p.rows + unit_rows - 1) / unit_rows;
    int row_blocks = ctx->info.num_processors / p.col_blocks;
    if (row_blocks < 1) row_blocks = 1;
    if (row_blocks > units) row_blocks = units;
    return launch_preparing<WAITS_FOR_PREVIOUS>(
        ctx, "linear: launch", dense_kernel<P, T, B>, dim3((unsigned)(row_blocks * p.col_blocks)),
        (unsigned)P::threads,
        (size_t)dense_block<P, B>::bytes(p.passes, p.chunks, p.stages, p.vectors), p);
}

template <class P, class T>
spops_status launch_form(spops_context *ctx, const spops_igemm_args *args, const weight_form &f,
                         const dense_cut &cut)
{
    return f.along_k ? launch_policy<P, T, ALONG_K>(ctx, args, f, cut)
                     : launch_policy<P, T, ACROSS_K>(ctx, args, f, cut);
}

template <class T>
spops_status launch_dtype(spops_context *ctx, const spops_igemm_args *args, const weight_form &f,
                          const dense_cut &cut)
{
    switch (cut.cols) {
    case 32: return launch_form<dense_policy<32>, T>(ctx, args, f, cut);
    case 64: return launch_form<dense_policy<64>, T>(ctx, args, f, cut);
    case 96: return launch_form<dense_policy<96>, T>(ctx, args, f, cut);
    default: return launch_form<dense_policy<128>, T>(ctx, args, f, cut);
    }
}

template <class P, class T> spops_status prepare_policy(spops_context *ctx)
{
    SPOPS_TRY(prepare_shared(ctx, "linear: prepare", dense_kernel<P, T, ACROSS_K>));
    return prepare_shared(ctx, "linear: prepare", dense_kernel<P, T, ALONG_K>);
}

template <class T> spops_status prepare_dtype(spops_context *ctx)
{
    SPOPS_TRY((prepare_policy<dense_policy<32>, T>(ctx)));
    SPOPS_TRY((prepare_policy<dense_policy<64>, T>(ctx)));
    SPOPS_TRY((prepare_policy<dense_policy<96>, T>(ctx)));
    return prepare_policy<dense_policy<128>, T>(ctx);
}

} // namespace

bool spops::dense_sm90_fits(const spops_context *ctx, const spops_igemm_args *args,
                            const weight_form &f)
{
    if (!dense_sm90_takes(args, f)) return false;
    const int vectors = vectors_of(epilogue_of(args));
    return cut_of(ctx, f, vectors).stages > 0 || (vectors == 1 && deep_sm90_fits(ctx, args, f));
}

spops_status spops::launch_dense_sm90(spops_context *ctx, const spops_igemm_args *args,
                                      const weight_form &f)
{
    const dense_cut cut = cut_of(ctx, f, vectors_of(epilogue_of(args)));
    if (cut.stages == 0) return launch_deep_sm90(ctx, args, f);
    return args->x.dtype == SPOPS_DTYPE_BF16 ? launch_dtype<__nv_bfloat16>(ctx, args, f, cut)
                                             : launch_dtype<__half>(ctx, args, f, cut);
}

spops_status spops::prepare_dense_sm90(spops_context *ctx)
{
    SPOPS_TRY(prepare_dtype<__half>(ctx));
    SPOPS_TRY(prepare_dtype<__nv_bfloat16>(ctx));
    return prepare_deep_sm90(ctx);
}
