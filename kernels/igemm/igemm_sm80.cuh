// SPDX-License-Identifier: Apache-2.0
// The products of gathered rows with the matrices of taps, as in igemm_sm90.cuh, for sm_80 and
// later: matrix units whose operands are registers (mma.sync), fed by copies that all threads make.
//
// One block, a tile of 128 rows by COLS columns: 8 warps of 32 rows by half of the columns. A stage
// is 64 bytes of k for all rows (A) and columns (B) of the tile, in lines whose 16-byte pieces are
// swizzled so that eight lines' pieces lie in different banks. Copies run STAGES - 1 stages ahead of
// the products, with a barrier of the block between a stage's products and the copies that follow
// into its place. A group of 64 rows that has none at a record is neither copied nor multiplied.
#ifndef SPOPS_KERNELS_IGEMM_IGEMM_SM80_CUH
#define SPOPS_KERNELS_IGEMM_IGEMM_SM80_CUH

#include "kernels/core/matrix_units.cuh"
#include "kernels/core/swizzle.cuh"
#include "kernels/igemm/igemm_launch.cuh"
#include "kernels/igemm/row_sums.cuh"

namespace spops
{

struct igemm_sm80_params {
    const unsigned char *x, *w;
    int64_t x_stride; // of rows of x, bytes
    int row_bytes;    // of C_in numbers
    int row_stages;   // stages a record makes
    int w_line_bytes, w_lines;
    const int4 *tiles;
    const int *num_tiles;
    const int *num_rows; // that count, where tiles are not listed; null: all
    int rows;            // of x, where they are not
    const int *records;  // null: rows of groups
    const int *out_rows;
    const int4 *sums; // of rows of x that are added first, and their members (igemm_args.h)
    const int *members;
    int last_tap; // num_taps - 1 for mirrored taps, else -1
    int col_tiles;
    epilogue_params epilogue;
};

// ADDS: rows of -2 are sums.
template <int COLS_, int STAGES_, int BLOCKS_, bool ALONG_K_, bool ADDS_> struct igemm_sm80_policy {
    static constexpr bool ADDS = ADDS_;
    static constexpr int COLS = COLS_, STAGES = STAGES_, BLOCKS = BLOCKS_; // of a multiprocessor
    static constexpr bool ALONG_K = ALONG_K_; // lines of W, and of B, have k along them
    static constexpr int rows = SPOPS_IGEMM_TILE_ROWS, threads = 256, line_bytes = 64;
    static constexpr int warp_cols = COLS / 2;
    static constexpr int a_bytes = rows * line_bytes, b_bytes = COLS * line_bytes;
    static constexpr int stage_bytes = a_bytes + b_bytes;
    static constexpr int shared_bytes = STAGES * stage_bytes + STAGES * 4;
    // Copies of 16 bytes that a thread makes of B, and how they fall on its lines.
    static constexpr int b_copies = b_bytes / 16 / threads;
    static constexpr int b_line_bytes = ALONG_K ? line_bytes : COLS * 2;
    static constexpr int b_pieces = b_line_bytes / 16;
};

// Sums of products of T, 32 bytes of k at a time.
template <class T> struct igemm_sum {
    typedef float type;

    static __device__ __forceinline__ void add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1)
    {
        if constexpr (std::is_same<T, float>::value)
            add_product_tf32(sum, a, b0, b1);
        else if constexpr (std::is_same<T, __half>::value)
            add_product(f16(), sum, a, b0, b1);
        else
            add_product(bf16(), sum, a, b0, b1);
    }
};

// The sums of a record, from `byte` on in each row, into the lines of a stage: four threads to a sum,
// 16 bytes each. {first sum, sums of group 0 and, above 16 bits, of group 1}.
template <class P, class T>
__device__ __forceinline__ void igemm_add_rows_80(const igemm_sm80_params &p, int2 sums, int byte,
                                                  unsigned char *a)
{
    const int own = sums.y & 0xffff, num = own + (sums.y >> 16);
    if (byte >= p.row_bytes) return; // copies have cleared these
    for (int n = threadIdx.x / 4; n < num; n += P::threads / 4) {
        const int4 entry = __ldg(p.sums + sums.x + n);
        const int line = (n < own ? 0 : 64) + (entry.x & 255);
        *reinterpret_cast<int4 *>(a + swizzled<64>(line, threadIdx.x % 4)) =
            sum_of_rows<T>(entry, p.members, p.x + byte, p.x_stride);
    }
}

// 16 bytes of a row from `byte` on, whose address is a multiple of 16.
__device__ __forceinline__ void igemm_copy_piece(const igemm_sm80_params &p, uint32_t to, int row,
                                                 int byte, bool there)
{
    copy_async<16>(to, p.x + (there ? row * p.x_stride + byte : 0), there);
}

template <class T, int COLS>
__device__ __forceinline__ void igemm_finish(const igemm_sm80_params &p, float (&sum)[COLS / 2],
                                             const int (&row)[2], int col, int q)
{
    store_sums<T, COLS>(p.epilogue, sum, row, col, q);
}

// PARAMS: igemm_sm80_params, or what has more for igemm_copy_piece and igemm_finish.
template <class P, class T, class PARAMS = igemm_sm80_params>
__global__ void __launch_bounds__(P::threads, P::BLOCKS)
    igemm_sm80_kernel(const __grid_constant__ PARAMS p)
{
    typedef typename igemm_sum<T>::type S;
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32_t stages = shared_address(shared);
    int *const stage_groups = reinterpret_cast<int *>(shared + P::STAGES * P::stage_bytes);
    const int tile_number = blockIdx.x / p.col_tiles, col_tile = blockIdx.x % p.col_tiles;
    int4 tile;
    if (p.tiles == nullptr) {
        const int rows = p.num_rows != nullptr ? min(*p.num_rows, p.rows) : p.rows;
        const int64_t first = (int64_t)tile_number * P::rows;
        if (first >= rows) return;
        tile = make_int4((int)first, (int)first + min(rows - (int)first, P::rows), 0, 0);
    } else {
        if (tile_number >= *p.num_tiles) return;
        tile = p.tiles[tile_number];
    }
    const bool gathers = p.records != nullptr;
    const int num_records = gathers ? tile.y : 1;
    const int steps = num_records * p.row_stages;
    const int first_col = col_tile * P::COLS;
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;

    // ---- Copies: 16 bytes of a row of each group, and of one or two lines of W.
    const int piece = t % 4 * 16, row = t / 4;
    int from[2], tap, groups; // of the record whose stages are copied next
    int2 sums = make_int2(0, 0);
    int record = 0, k = 0;
    const auto load_record = [&]() {
        if (!gathers) {
            from[0] = tile.x + row < tile.y ? tile.x + row : -1;
            from[1] = tile.x + 64 + row < tile.y ? tile.x + 64 + row : -1;
            tap = tile.z;
            groups = tile.y - tile.x > 64 ? 3 : 1;
        } else if (record < num_records) {
            const int *at = p.records + (int64_t)(tile.x + record) * SPOPS_IGEMM_RECORD_INTS;
            const int2 head = __ldg(reinterpret_cast<const int2 *>(at));
            tap = p.last_tap >= 0 ? p.last_tap - head.x : head.x;
            groups = head.y;
            if (P::ADDS) sums = __ldg(reinterpret_cast<const int2 *>(at) + 1);
            from[0] = __ldg(at + SPOPS_IGEMM_RECORD_HEAD + row);
            from[1] = __ldg(at + SPOPS_IGEMM_RECORD_HEAD + 64 + row);
        }
    };
    const auto copy_stage = [&](int slot) {
        if (record < num_records) {
            const uint32_t a = stages + slot * P::stage_bytes, b = a + P::a_bytes;
            const int byte = k * P::line_bytes + piece;
#pragma unroll
            for (int g = 0; g < 2; ++g) {
                if ((groups >> g & 1) == 0) continue;
                const bool there = from[g] >= 0 && byte < p.row_bytes;
                if (P::ADDS && from[g] == -2 && byte < p.row_bytes) continue;
                igemm_copy_piece(p, a + swizzled<64>(g * 64 + row, t % 4), from[g], byte, there);
            }
            const unsigned char *const w = p.w + (int64_t)tap * p.w_lines * p.w_line_bytes;
#pragma unroll
            for (int i = 0; i < P::b_copies; ++i) {
                const int line = (t + i * P::threads) / P::b_pieces, at = t % P::b_pieces;
                const int w_line = P::ALONG_K ? first_col + line : k * (64 / (int)sizeof(T)) + line;
                const int w_byte = P::ALONG_K ? byte : first_col * (int)sizeof(T) + at * 16;
                const bool there = groups != 0 && w_line < p.w_lines && w_byte < p.w_line_bytes;
                copy_async<16>(b + swizzled<P::b_line_bytes>(line, at),
                               w + (there ? (int64_t)w_line * p.w_line_bytes + w_byte : 0), there);
            }
            if constexpr (P::ADDS)
                igemm_add_rows_80<P, T>(p, sums, byte, shared + slot * P::stage_bytes);
            if (t == 0) stage_groups[slot] = groups;
            if (++k == p.row_stages) {
                k = 0;
                ++record;
                load_record();
            }
        }
        close_copies();
    };

    // ---- Products: registers of matrix_units.cuh.
    const int warp_row = warp % 4 * 32, warp_col = warp / 4 * P::warp_cols;
    const int r = lane % 8, odd = lane / 8 % 2, upper = lane / 16;
    S sum[2][P::warp_cols / 2] = {};
    const auto multiply = [&](int slot) {
        const uint32_t a = stages + slot * P::stage_bytes, b = a + P::a_bytes;
#pragma unroll
        for (int d = 0; d < 2; ++d) { // 32 bytes of k
            uint32_t left[2][4];
#pragma unroll
            for (int m = 0; m < 2; ++m)
                load_matrices(left[m],
                              a + swizzled<64>(warp_row + m * 16 + odd * 8 + r, 2 * d + upper));
#pragma unroll
            for (int n = 0; n < P::warp_cols / 16; ++n) {
                uint32_t right[4];
                const int col = warp_col + n * 16;
                if (P::ALONG_K)
                    load_matrices(right, b + swizzled<64>(col + upper * 8 + r, 2 * d + odd));
                else
                    load_transposed(right, b + swizzled<P::b_line_bytes>(16 * d + odd * 8 + r,
                                                                         col / 8 + upper));
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    igemm_sum<T>::add(*reinterpret_cast<S(*)[4]>(&sum[i / 2][8 * n + i % 2 * 4]),
                                      left[i / 2], right[i % 2 * 2], right[i % 2 * 2 + 1]);
            }
        }
    };

    load_record();
    for (int s = 0; s < P::STAGES - 1; ++s)
        copy_stage(s);
    for (int s = 0; s < steps; ++s) {
        wait_copies<P::STAGES - 2>();
        __syncthreads();
        copy_stage((s + P::STAGES - 1) % P::STAGES);
        if (stage_groups[s % P::STAGES] >> warp_row / 64 & 1) multiply(s % P::STAGES);
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
        int out_row[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int at = warp_row + m * 16 + h * 8 + lane / 4;
            if (gathers)
                out_row[h] = p.out_rows[(int64_t)tile.z * P::rows + at];
            else
                out_row[h] = tile.x + at < tile.y ? tile.x + at : -1;
        }
        igemm_finish<T, P::warp_cols>(p, sum[m], out_row, first_col + warp_col, lane % 4);
    }
}

// Everything but the epilogue.
template <class P>
void fill_sm80_params(const spops_igemm_args *args, const weight_form &f, igemm_sm80_params *params)
{
    igemm_sm80_params &p = *params;
    p.x = static_cast<const unsigned char *>(args->x.data);
    p.w = static_cast<const unsigned char *>(f.copied ? args->scratch : args->w.data);
    p.x_stride = args->x.row_stride * f.bytes;
    p.row_bytes = f.depth * f.bytes;
    p.row_stages = (p.row_bytes + P::line_bytes - 1) / P::line_bytes;
    p.w_line_bytes = (P::ALONG_K ? f.padded_depth : f.cols) * f.bytes;
    p.w_lines = P::ALONG_K ? f.cols : f.depth;
    p.tiles = reinterpret_cast<const int4 *>(args->schedule->tiles);
    p.num_tiles = args->schedule->num_tiles;
    p.num_rows = args->num_rows;
    p.rows = (int)args->x.rows;
    p.records = args->schedule->records;
    p.out_rows = args->schedule->out_rows;
    p.sums = reinterpret_cast<const int4 *>(args->schedule->sums);
    p.members = args->schedule->members;
    p.last_tap = args->mirrored ? f.taps - 1 : -1;
    p.col_tiles = (f.cols + P::COLS - 1) / P::COLS;
}

template <class P, class T, class PARAMS>
spops_status launch_igemm_sm80_kernel(spops_context *ctx, const spops_igemm_args *args,
                                      const PARAMS &p)
{
    return launch_preparing<AFTER_PREVIOUS>(
        ctx, "igemm: launch", igemm_sm80_kernel<P, T, PARAMS>,
        dim3((unsigned)(args->schedule->max_tiles * p.col_tiles)), (unsigned)P::threads,
        (size_t)P::shared_bytes, p);
}

template <class P, class T>
spops_status launch_igemm_sm80_policy(spops_context *ctx, const spops_igemm_args *args,
                                      const weight_form &f)
{
    igemm_sm80_params p = {};
    fill_sm80_params<P>(args, f, &p);
    p.epilogue = epilogue_of(args);
    return launch_igemm_sm80_kernel<P, T>(ctx, args, p);
}

// f(policy) of a tile, of W in form w.
template <class T, int COLS, int STAGES, int BLOCKS, class F>
spops_status with_igemm_sm80(const weight_form &w, bool adds, const F &f)
{
    const auto with_sums = [&](auto along) {
        constexpr bool a = decltype(along)::value;
        return adds ? f(igemm_sm80_policy<COLS, STAGES, BLOCKS, a, true>())
                    : f(igemm_sm80_policy<COLS, STAGES, BLOCKS, a, false>());
    };
    if constexpr (sizeof(T) == 2) // tf32 products want k along all lines
        if (!w.along_k) return with_sums(std::false_type());
    return with_sums(std::true_type());
}

template <class T> spops_status prepare_igemm_sm80(spops_context *ctx, bool adds, int32_t forced)
{
    const auto prepare = [&](auto policy) {
        return prepare_shared(ctx, "igemm: prepare",
                              igemm_sm80_kernel<decltype(policy), T, igemm_sm80_params>);
    };
    weight_form across = {}, along = {};
    along.along_k = true;
#define SPOPS_TILE(number, max, ...)                                                               \
    if (spops_igemm_leaves(forced, number)) {                                                      \
        SPOPS_TRY((with_igemm_sm80<T, __VA_ARGS__>(across, adds, prepare)));                       \
        SPOPS_TRY((with_igemm_sm80<T, __VA_ARGS__>(along, adds, prepare)));                        \
    }
    SPOPS_IGEMM_SM80_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    return SPOPS_STATUS_OK;
}

template <class T>
spops_status launch_igemm_sm80(spops_context *ctx, const spops_igemm_args *args,
                               const weight_form &f, int32_t tile)
{
    const auto launch = [&](auto policy) {
        return launch_igemm_sm80_policy<decltype(policy), T>(ctx, args, f);
    };
    switch (tile) {
#define SPOPS_TILE(number, max, ...)                                                               \
    case number: return with_igemm_sm80<T, __VA_ARGS__>(f, args->schedule->adds, launch);
        SPOPS_IGEMM_SM80_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    default: return no_igemm_tile(ctx, tile);
    }
}

} // namespace spops

#endif
