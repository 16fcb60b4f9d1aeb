// SPDX-License-Identifier: Apache-2.0
// igemm_sm90.cuh for rows of 8 bits: the same stages, gathered by the same warps, hold twice as many numbers
// of k, and matrix units multiply them twice as fast. Both operands have k along their lines, for there
// are no others of 8 bits.
//
// Sums of i8 are exact, in s32. Those of f8e4m3 the matrix units carry with 14 bits: a product's sum loses
// what lies more than 13 bits below its largest term. So the products of a stage, 128 of k, begin from
// zero, and are added to the sums in f32 (PART columns at a time, as registers allow).
#ifndef SPOPS_KERNELS_IGEMM_IGEMM8_SM90_CUH
#define SPOPS_KERNELS_IGEMM_IGEMM8_SM90_CUH

#include "kernels/core/sm90/tensor_map.cuh"
#include "kernels/igemm/igemm8_epilogue.cuh"
#include "kernels/igemm/igemm8_launch.cuh"
#include "kernels/igemm/igemm_sm90_launch.cuh"

namespace spops
{

// ---- Instructions -------------------------------------------------------------------------------

// sum (64 x COLS) = a b, plus the sum before if `add`; K is 32. Registers as those of wgmma.
template <class T, int COLS> struct wgmma8;

#define SPOPS_INT_8(d, i)                                                                          \
    "+r"((d)[i]), "+r"((d)[(i) + 1]), "+r"((d)[(i) + 2]), "+r"((d)[(i) + 3]), "+r"((d)[(i) + 4]),  \
        "+r"((d)[(i) + 5]), "+r"((d)[(i) + 6]), "+r"((d)[(i) + 7])
#define SPOPS_INT_32(d, i)                                                                         \
    SPOPS_INT_8(d, i), SPOPS_INT_8(d, (i) + 8), SPOPS_INT_8(d, (i) + 16), SPOPS_INT_8(d, (i) + 24)
#define SPOPS_INTS_32(d)  SPOPS_INT_8(d, 0), SPOPS_INT_8(d, 8)
#define SPOPS_INTS_64(d)  SPOPS_INT_32(d, 0)
#define SPOPS_INTS_128(d) SPOPS_INTS_64(d), SPOPS_INT_32(d, 32)
#define SPOPS_INTS_256(d) SPOPS_INTS_128(d), SPOPS_INT_32(d, 64), SPOPS_INT_32(d, 96)

#define SPOPS_WGMMA_8(T, S, TEXT, ENDS, COLS, NAMES, SUM, a_, b_, add_)                            \
    template <> struct wgmma8<T, COLS> {                                                           \
        static __device__ __forceinline__ void run(S (&sum)[COLS / 2], uint64_t a, uint64_t b,     \
                                                   int add)                                        \
        {                                                                                          \
            asm volatile("{\n"                                                                     \
                         ".reg .pred p;\n"                                                         \
                         "setp.ne.b32 p, " add_ ", 0;\n"                                           \
                         "wgmma.mma_async.sync.aligned.m64n" #COLS "k32." TEXT " {" NAMES "}, " a_ \
                         ", " b_ ", p" ENDS ";\n"                                                  \
                         "}"                                                                       \
                         : SUM(sum)                                                                \
                         : "l"(a), "l"(b), "r"(add));                                              \
        }                                                                                          \
    }
#define SPOPS_WGMMA8_COLS(COLS, NAMES, a_, b_, add_)                                               \
    SPOPS_WGMMA_8(f8e4m3, float, "f32.e4m3.e4m3", ", 1, 1", COLS, NAMES, SPOPS_SUM_##COLS, a_, b_, \
                  add_);                                                                           \
    SPOPS_WGMMA_8(int8_t, int, "s32.s8.s8", "", COLS, NAMES, SPOPS_INTS_##COLS, a_, b_, add_)

SPOPS_WGMMA8_COLS(32, SPOPS_NAMES_16, "%16", "%17", "%18");
SPOPS_WGMMA8_COLS(64, SPOPS_NAMES_32, "%32", "%33", "%34");
SPOPS_WGMMA8_COLS(128, SPOPS_NAMES_64, "%64", "%65", "%66");
SPOPS_WGMMA8_COLS(256, SPOPS_NAMES_128, "%128", "%129", "%130");

#undef SPOPS_WGMMA8_COLS
#undef SPOPS_WGMMA_8

// ---- Policies -----------------------------------------------------------------------------------

// PART: columns whose products are summed apart at a time, with so many registers; 0: products go on from
// the sums, with those of igemm_sm90_policy.
template <class BASE, int PART_, int REGISTERS> struct igemm8_policy : BASE {
    static constexpr int PART = PART_;
    static constexpr int gather_registers = PART > 0 ? BASE::roles::left_to_gather(REGISTERS)
                                                     : BASE::gather_registers;
    static constexpr int multiply_registers = PART > 0 ? REGISTERS : BASE::multiply_registers;
};

struct igemm8_sm90_params : igemm_sm90_params {
    epilogue8_params finish;
};

template <class T> struct sum8_of {
    typedef float type;
};
template <> struct sum8_of<int8_t> {
    typedef int type;
};

// ---- Products -----------------------------------------------------------------------------------

// The products of a stage, added to the sums. The warpgroup's rows lie at a, the columns at b; step[i] is
// where the columns of 32 bytes of k begin.
template <class P, class T>
__device__ __forceinline__ void igemm8_products(typename sum8_of<T>::type (&sum)[P::COLS / 2],
                                                uint64_t a_form, uint32_t a, uint64_t b_form,
                                                uint32_t b, const int (&step)[4], int line_bytes)
{
    fence_for_wgmma();
    if constexpr (P::PART == 0) {
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i)
            wgmma8<T, P::COLS>::run(sum, at_address(a_form, a + i * 32),
                                    at_address(b_form, b + step[i]), 1);
        wgmma_commit();
        wgmma_wait<0>();
    } else {
#pragma unroll
        for (int at = 0; at < P::COLS; at += P::PART) {
            float part[P::PART / 2];
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < 4; ++i)
                wgmma8<T, P::PART>::run(part, at_address(a_form, a + i * 32),
                                        at_address(b_form, b + step[i] + at * line_bytes), i > 0);
            wgmma_commit();
            wgmma_wait<0>();
#pragma unroll
            for (int i = 0; i < P::PART / 2; ++i)
                sum[at / 2 + i] += part[i];
        }
    }
}

// One warpgroup, as igemm_multiply.
template <class P, class T>
__device__ void igemm8_multiply(const igemm8_sm90_params &p, const igemm_sm90_block<P> &block,
                                int group, int t)
{
    typedef typename sum8_of<T>::type S;
    const int line_bytes = p.record_bytes;
    const uint64_t a_form = descriptor(SWIZZLE_128, 0, 1024);
    const uint64_t b_form =
        descriptor(line_bytes == 128 ? SWIZZLE_128 : SWIZZLE_64, 0, 8 * line_bytes);
    int step[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        step[i] = i * 32 / line_bytes * P::COLS * line_bytes + i * 32 % line_bytes;
    ring_position<P::STAGES> stage;

    for (;;) {
        S sum[P::COLS / 2] = {}; // of this tile: those of the last are not kept beside its epilogue
        int out_row[2] = {-1, -1};
        int flags, tile = 0, col_tile = 0;
        do {
            barrier_wait(block.stages().full(stage.at), stage.full_parity());
            int4 note = make_int4(0, 0, 0, 0); // as igemm_multiply reads it
            if (t % 32 == 0) note = load_shared4<int4>(block.stage_note(stage.at));
            flags = (int)__reduce_or_sync(~0u, (unsigned)note.x);
            if (flags & NOTE_STOP) return;
            if (flags & NOTE_FIRST) {
                const int end = __shfl_sync(~0u, note.w, 0);
                tile = __shfl_sync(~0u, note.y, 0); // or first row
                col_tile = __shfl_sync(~0u, note.z, 0);
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int row = group * 64 + t / 32 * 16 + h * 8 + t % 32 / 4;
                    if (p.records != nullptr)
                        out_row[h] = __ldg(p.out_rows + (int64_t)tile * P::rows + row);
                    else
                        out_row[h] = tile + row < end ? tile + row : -1;
                }
            }
            if (flags >> group & 1) {
                igemm8_products<P, T>(sum, a_form, block.stage(stage.at) + group * 64 * 128, b_form,
                                      block.stage(stage.at) + P::a_bytes, step, line_bytes);
            }
            release_slot(block.stages().empty(stage.at), t % 32);
            stage.advance();
        } while ((flags & NOTE_LAST) == 0);
        if (igemm_join<P>(p, block, sum, tile, group, t))
            store_sums8<T, P::COLS>(p.finish, sum, out_row, col_tile * P::COLS, t % 4);
    }
}

template <class P, class T>
__global__ void __launch_bounds__(P::threads, P::BLOCKS)
    igemm8_sm90_kernel(const __grid_constant__ igemm8_sm90_params p)
{
    extern __shared__ char unaligned[];
    igemm_sm90_block<P> block;
    block.base = aligned_shared(unaligned);
    if (threadIdx.x == 0) {
        block.stages().init(P::STAGES, p.records != nullptr ? 32 * P::GROUPS + 1 : 1,
                            4 * P::GROUPS);
        block.tiles().init(P::tile_slots, 1, P::GATHER_WARPS);
        barrier_init_done();
    }
    if (P::SHARES && threadIdx.x / 32 == 1 && p.records != nullptr)
        igemm_begin(p, block, threadIdx.x % 32);
    __syncthreads();

    run_roles<P>([&](int warp) { igemm8_multiply<P, T>(p, block, warp / 4, threadIdx.x % 128); },
                 [&](int warp) {
                     if (p.records != nullptr)
                         igemm_gather<P, ALONG_K>(p, block, warp, threadIdx.x % 32);
                     else if (threadIdx.x == 128 * P::GROUPS)
                         igemm_load_rows<P, ALONG_K>(p, block);
                 });
}

// ---- Launching ----------------------------------------------------------------------------------

template <class P, class T>
spops_status launch_policy8(spops_context *ctx, const spops_igemm8_args *args)
{
    igemm8_sm90_params p = {};
    const weight_form f = {
        (int)args->x.cols, (int)args->out.cols, args->schedule->num_taps, 1, false, true,
        (int)args->w.cols};
    spops_igemm_args products = {};
    products.schedule = args->schedule;
    products.x = args->x;
    products.w = args->w;
    products.out = args->out;
    products.whole_sums = args->whole_sums;
    products.num_rows = args->num_rows;
    products.tickets = args->tickets;
    products.scratch = args->scratch;
    int64_t blocks = 0, most = 0;
    SPOPS_TRY((fill_sm90_params<P, ALONG_K>(ctx, &products, f, p, blocks, most)));
    p.finish = epilogue8_of(args);
    p.epilogue = p.finish.rest;
    if (blocks > most) blocks = most;
    return launch_preparing<AFTER_PREVIOUS>(ctx, "igemm8: launch", igemm8_sm90_kernel<P, T>,
                                            dim3((unsigned)blocks), (unsigned)P::threads,
                                            (size_t)P::shared_bytes, p);
}

// f(policy) of the tile with so many columns. Sums of f8e4m3 are made in parts, unless they are to be fast.
template <class T, class F> spops_status with_policy8(int columns, bool fast, const F &f)
{
    typedef igemm_sm90_policy<64, 2, 4, 4, 2> narrow;
    typedef igemm_sm90_policy<128, 2, 8, 6, 1> middle;
    typedef igemm_sm90_policy<256, 2, 4, 4, 1> wide;
    if constexpr (std::is_same<T, f8e4m3>::value) {
        if (!fast) {
            switch (columns) {
            case 64: return f(igemm8_policy<narrow, 32, 88>());
            case 128: return f(igemm8_policy<middle, 128, 176>());
            default: return f(igemm8_policy<wide, 128, 224>());
            }
        }
    }
    switch (columns) {
    case 64: return f(igemm8_policy<narrow, 0, 0>());
    case 128: return f(igemm8_policy<middle, 0, 0>());
    default: return f(igemm8_policy<wide, 0, 0>());
    }
}

template <class T>
spops_status launch_igemm8_sm90(spops_context *ctx, const spops_igemm8_args *args, int columns)
{
    return with_policy8<T>(columns, args->fast_sums, [&](auto policy) {
        return launch_policy8<decltype(policy), T>(ctx, args);
    });
}

template <class T> spops_status prepare_igemm8_sm90(spops_context *ctx, int columns)
{
    for (int fast = 0; fast < 2; ++fast)
        SPOPS_TRY(with_policy8<T>(columns, fast == 1, [&](auto policy) {
            return prepare_shared(ctx, "igemm8: prepare", igemm8_sm90_kernel<decltype(policy), T>);
        }));
    return SPOPS_STATUS_OK;
}

} // namespace spops

#endif
