// SPDX-License-Identifier: Apache-2.0
// Rows times one matrix on sm_90a, in 16 bits, where k is too long for dense_sm90.cu to keep W and rows are
// many: out = finish(x W). Tiles of 192 rows by 256 columns, of which a block has one after the other: in one
// round of the multiprocessors there are half as many rows again as in tiles of 128 rows.
//
//     warps          role
//     8              multiply: a warpgroup to each 128 columns, 64 rows at a time
//     1              loads: boxes of 64 numbers of k, of rows and of columns, into a ring
//     3              have the residual's rows brought to L2
//
//     barrier        arrivals                       means
//     stage full     1 + bytes                      rows and columns are there
//     stage empty    8 (a lane of each warp)        its products have ended
//
// Sums are added in the order of k, 16 numbers at once, as igemm_sm90.cuh does: bits are the same.
#include "kernels/core/sm90/pipeline.cuh"
#include "kernels/igemm/dense_sm90.cuh"
#include "kernels/igemm/igemm_boxes.cuh"
#include "spops/device/grid_dependency.cuh"

namespace
{

using namespace spops;

struct deep_params {
    CUtensorMap x, w;    // 3D: along a line, lines, 1
    const int *num_rows; // that count; null: all
    int rows, steps;     // of x; stages of a tile
    int col_tiles;
    epilogue_params epilogue;
};

struct deep_policy {
    static constexpr int COLS = 256, GROUPS = 2, UNITS = 3, STAGES = 4; // units of 64 rows
    static constexpr int own_cols = COLS / GROUPS;                      // of a group
    static constexpr int rows = 64 * UNITS, step = 64;                  // numbers of k in a stage
    static constexpr int line_cols = 64;                                // of a line of W across k
    typedef warp_roles<GROUPS, 4, 1> roles;
    static constexpr int threads = roles::threads, multiplying = 128 * GROUPS;
    static constexpr bool moves_registers = true;
    static constexpr int gather_registers = 24;
    static constexpr int multiply_registers = roles::left_to_multiply(gather_registers);
    static constexpr int a_bytes = rows * 128, b_bytes = COLS * 128;
    static constexpr int stage_bytes = a_bytes + b_bytes;
    static constexpr int barriers_at = STAGES * stage_bytes;
    static constexpr int shared_bytes =
        barriers_at + STAGES * barrier_ring::bytes + stage_alignment;
};

typedef deep_policy P;

struct deep_block {
    uint32_t base; // of shared memory, aligned to 1024

    __device__ uint32_t stage(int s) const { return base + s * P::stage_bytes; }
    __device__ barrier_ring stages() const { return {base + P::barriers_at}; }
};

// Tiles of the rows that count; those of the same rows follow each other.
__device__ __forceinline__ int deep_tiles(const deep_params &p, int rows)
{
    return (rows + P::rows - 1) / P::rows * p.col_tiles;
}

// One thread.
template <operand B>
__device__ void deep_load(const deep_params &p, const deep_block &block, int rows)
{
    ring_position<P::STAGES> stage;
    for (int tile = blockIdx.x; tile < deep_tiles(p, rows); tile += gridDim.x) {
        const int row = tile / p.col_tiles * P::rows, col = tile % p.col_tiles * P::COLS;
        for (int k = 0; k < p.steps; ++k, stage.advance()) {
            const uint32_t a = block.stage(stage.at), b = a + P::a_bytes;
            const uint32_t full = block.stages().full(stage.at);
            barrier_wait(block.stages().empty(stage.at), stage.empty_parity());
            barrier_arrive_expect(full, P::stage_bytes);
            copy_box(a, &p.x, k * P::step, row, 0, full);
            if (B == ALONG_K) {
                copy_box(b, &p.w, k * P::step, col, 0, full);
            } else {
                for (int c = 0; c < P::COLS / 64; ++c)
                    copy_box(b + c * P::step * 128, &p.w, col + c * 64, k * P::step, 0, full);
            }
        }
    }
}

// The other warps beside it: 128 bytes of a row at a time.
__device__ void deep_fetch_residual(const deep_params &p, int rows, int t)
{
    constexpr int lines = P::COLS / 64, fetching = 96;
    const epilogue_params &e = p.epilogue;
    if (e.residual == nullptr) return;
    for (int tile = blockIdx.x; tile < deep_tiles(p, rows); tile += gridDim.x) {
        const int row = tile / p.col_tiles * P::rows, col = tile % p.col_tiles * P::COLS;
        for (int i = t; i < P::rows * lines; i += fetching) {
            const int64_t r = row + i / lines, c = col + i % lines * 64;
            if (r < rows && c < e.cols)
                asm volatile("prefetch.global.L2 [%0];" ::"l"(
                    static_cast<const uint16_t *>(e.residual) + r * e.residual_stride + c));
        }
    }
}

// 32 columns of a thread's two rows of the residual: lane q of four has eight neighbours of each.
__device__ __forceinline__ void ask_for_residual(const epilogue_params &p, uint4 (&got)[2], int row,
                                                 int rows, int col)
{
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        got[h] = make_uint4(0, 0, 0, 0);
        if (p.residual != nullptr && row + 8 * h < rows && col < p.cols)
            got[h] = eight_of_residual(p, row + 8 * h, col);
    }
}

// sum[4 j + 2 h + i] is row row + 8 h, column col + 8 j + 2 q + i: bias and residual are added. All four lanes
// of a row come here, which exchange what they have of the residual's 32 columns. AHEAD: registers are left
// to ask for those of the next 32.
template <class T, bool AHEAD>
__device__ __forceinline__ void deep_finish(const epilogue_params &p, float (&sum)[P::own_cols / 2],
                                            int row, int rows, int col, int q)
{
    uint4 residual[2][2];
    not_ahead(row);
    if (AHEAD) ask_for_residual(p, residual[0], row, rows, col + 8 * q);
#pragma unroll
    for (int b = 0; b < P::own_cols / 32; ++b) {
        const int first = col + 32 * b;
        if (!AHEAD)
            ask_for_residual(p, residual[b % 2], row, rows, first + 8 * q);
        else if (b + 1 < P::own_cols / 32)
            ask_for_residual(p, residual[(b + 1) % 2], row, rows, first + 32 + 8 * q);
        if (p.bias != nullptr) {
            float2 bias[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int c = first + 8 * j + 2 * q;
                bias[j] = make_float2(0.0f, 0.0f);
                if (c < p.cols) bias[j] = make_float2(__ldg(p.bias + c), __ldg(p.bias + c + 1));
            }
#pragma unroll
            for (int i = 0; i < 16; ++i)
                sum[16 * b + i] += i % 2 == 0 ? bias[i / 4].x : bias[i / 4].y;
        }
        if (p.residual != nullptr) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const uint4 r = residual[b % 2][h];
                uint32_t pairs[4] = {r.x, r.y, r.z, r.w};
                transpose_4(pairs, q);
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const float2 pair = numbers_of_pair<T>(pairs[j]);
                    sum[16 * b + 4 * j + 2 * h] += pair.x;
                    sum[16 * b + 4 * j + 2 * h + 1] += pair.y;
                }
            }
        }
        not_ahead(row);
    }
}

// The same sums, finished: rounded, exchanged and written, eight neighbours a lane.
template <class T>
__device__ __forceinline__ void deep_write(const epilogue_params &p,
                                           const float (&sum)[P::own_cols / 2], int row, int rows,
                                           int col, int q)
{
#pragma unroll
    for (int b = 0; b < P::own_cols / 32; ++b) {
        const int c = col + 32 * b + 8 * q;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            uint32_t v[4];
#pragma unroll
            for (int j = 0; j < 4; ++j)
                v[j] =
                    rounded_pair<T>(sum[16 * b + 4 * j + 2 * h], sum[16 * b + 4 * j + 2 * h + 1]);
            transpose_4(v, q);
            if (row + 8 * h < rows && c < p.cols)
                *reinterpret_cast<uint4 *>(static_cast<T *>(p.out) + (row + 8 * h) * p.out_stride +
                                           c) = make_uint4(v[0], v[1], v[2], v[3]);
        }
    }
}

template <class T, bool AHEAD>
__device__ __forceinline__ void deep_end(const epilogue_params &p, float (&sum)[P::own_cols / 2],
                                         int row, int rows, int col, int q)
{
    deep_finish<T, AHEAD>(p, sum, row, rows, col, q);
    activate_rounded_sums<T>(p.activated, p.exact, sum);
    deep_write<T>(p, sum, row, rows, col, q);
}

// One warpgroup, columns own_cols * group .. of each tile.
template <class T, operand B>
__device__ void deep_multiply(const deep_params &p, const deep_block &block, int rows, int group,
                              int t)
{
    constexpr int b_of_group = P::own_cols / 64 * P::step * 128; // both ways: 128 bytes a line
    const uint64_t a_form = descriptor(SWIZZLE_128, 0, 1024);
    const uint64_t b_form = descriptor(SWIZZLE_128, B == ACROSS_K ? P::step * 128 : 0, 1024);
    constexpr int b_step = B == ACROSS_K ? 16 * 128 : 32;
    ring_position<P::STAGES> stage;

    for (int tile = blockIdx.x; tile < deep_tiles(p, rows); tile += gridDim.x) {
        const int row = tile / p.col_tiles * P::rows + t / 32 * 16 + t % 32 / 4;
        const int col = tile % p.col_tiles * P::COLS + group * P::own_cols;
        float sum[P::UNITS][P::own_cols / 2];
        int before = 0;
        for (int k = 0; k < p.steps; ++k) {
            const uint32_t a = block.stage(stage.at), b = a + P::a_bytes + group * b_of_group;
            barrier_wait(block.stages().full(stage.at), stage.full_parity());
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int u = 0; u < P::UNITS; ++u)
                    wgmma<T, P::own_cols, ALONG_K, B>::run(
                        sum[u], at_address(a_form, a + u * 64 * 128 + i * 32),
                        at_address(b_form, b + i * b_step), k > 0 || i > 0);
            wgmma_commit();
            if (k > 0) {
                wgmma_wait<1>();
                release_slot(block.stages().empty(before), t % 32);
            }
            before = stage.at;
            stage.advance();
        }
        wgmma_wait<0>();
#pragma unroll
        for (int u = 0; u < P::UNITS; ++u)
            pin_registers(sum[u]);
        release_slot(block.stages().empty(before), t % 32);
        deep_end<T, false>(p.epilogue, sum[0], row, rows, col, t % 4);
#pragma unroll
        for (int u = 1; u < P::UNITS; ++u)
            deep_end<T, true>(p.epilogue, sum[u], row + 64 * u, rows, col, t % 4);
    }
}

template <class T, operand B>
__global__ void __launch_bounds__(P::threads, 1) deep_kernel(const __grid_constant__ deep_params p)
{
    extern __shared__ char unaligned[];
    const deep_block block = {aligned_shared(unaligned)};
    if (threadIdx.x == 0) {
        block.stages().init(P::STAGES, 1, 4 * P::GROUPS);
        barrier_init_done();
    }
    grid_dependency_wait();
    grid_launch_dependents();
    const int rows = rows_that_count(p);
    __syncthreads();
    run_roles<P>(
        [&](int warp) { deep_multiply<T, B>(p, block, rows, warp / 4, threadIdx.x % 128); },
        [&](int warp) {
            if (threadIdx.x == P::multiplying) deep_load<B>(p, block, rows);
            if (warp > 0) deep_fetch_residual(p, rows, threadIdx.x - P::multiplying - 32);
        });
}

// ---- Launching ----------------------------------------------------------------------------------

int64_t rounds_of(const spops_context *ctx, int64_t tiles)
{
    return (tiles + ctx->info.num_processors - 1) / ctx->info.num_processors;
}

template <class T, operand B>
spops_status launch_form(spops_context *ctx, const spops_igemm_args *args, const weight_form &f)
{
    deep_params p = {};
    SPOPS_TRY(encode_tensor_map(ctx, box_of_rows(args->x, P::step, P::rows), &p.x));
    SPOPS_TRY(
        encode_tensor_map(ctx, box_of_weights<B>(args, f, P::step, P::COLS, P::line_cols), &p.w));
    p.num_rows = args->num_rows;
    p.rows = (int)args->x.rows;
    p.steps = (f.depth + P::step - 1) / P::step;
    p.col_tiles = (f.cols + P::COLS - 1) / P::COLS;
    p.epilogue = epilogue_of(args);
    const int64_t tiles = (int64_t)((p.rows + P::rows - 1) / P::rows) * p.col_tiles;
    const int64_t blocks = tiles < ctx->info.num_processors ? tiles : ctx->info.num_processors;
    return launch_preparing<WAITS_FOR_PREVIOUS>(ctx, "linear: launch", deep_kernel<T, B>,
                                                dim3((unsigned)blocks), (unsigned)P::threads,
                                                (size_t)P::shared_bytes, p);
}

template <class T> spops_status prepare_dtype(spops_context *ctx)
{
    SPOPS_TRY(prepare_shared(ctx, "linear: prepare", deep_kernel<T, ACROSS_K>));
    return prepare_shared(ctx, "linear: prepare", deep_kernel<T, ALONG_K>);
}

template <class T>
spops_status launch_dtype(spops_context *ctx, const spops_igemm_args *args, const weight_form &f)
{
    return f.along_k ? launch_form<T, ALONG_K>(ctx, args, f)
                     : launch_form<T, ACROSS_K>(ctx, args, f);
}

} // namespace

// A tile takes as long as three halves of one of 128 rows. Few tiles of those are better in narrow ones.
bool spops::deep_sm90_fits(const spops_context *ctx, const spops_igemm_args *args,
                           const weight_form &f)
{
    const int64_t low = (args->x.rows + SPOPS_IGEMM_TILE_ROWS - 1) / SPOPS_IGEMM_TILE_ROWS;
    const int64_t high = (args->x.rows + P::rows - 1) / P::rows;
    const int64_t across = (f.cols + P::COLS - 1) / P::COLS;
    return f.cols > P::COLS / 2 && P::shared_bytes <= ctx->block_shared_bytes &&
           args->x.rows <= INT32_MAX - P::rows && low > ctx->info.num_processors / 2 &&
           high * across <= INT32_MAX / 2 &&
           3 * rounds_of(ctx, high * across) <= 2 * rounds_of(ctx, low * across);
}

spops_status spops::launch_deep_sm90(spops_context *ctx, const spops_igemm_args *args,
                                     const weight_form &f)
{
    return args->x.dtype == SPOPS_DTYPE_BF16 ? launch_dtype<__nv_bfloat16>(ctx, args, f)
                                             : launch_dtype<__half>(ctx, args, f);
}

spops_status spops::prepare_deep_sm90(spops_context *ctx)
{
    SPOPS_TRY(prepare_dtype<__half>(ctx));
    return prepare_dtype<__nv_bfloat16>(ctx);
}
