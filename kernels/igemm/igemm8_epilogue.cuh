// SPDX-License-Identifier: Apache-2.0
// What happens to the sums of a tile of 8-bit products: scales, then the steps of igemm_epilogue.cuh, then
// f32, f16 or 8 bits. Every step rounds by itself, as on the CPU.
#ifndef SPOPS_KERNELS_IGEMM_IGEMM8_EPILOGUE_CUH
#define SPOPS_KERNELS_IGEMM_IGEMM8_EPILOGUE_CUH

#include "igemm/igemm8_args.h"
#include "kernels/core/float8.cuh"
#include "kernels/igemm/igemm_epilogue.cuh"

namespace spops
{

struct epilogue8_params {
    epilogue_params rest; // out of f32 or f16, and a residual of these
    const float *x_scale, *w_scales, *residual_scale, *out_scale;
    const uint8_t *residual; // of 8 bits
    bool narrow;             // out is of 8 bits
    bool wide;               // its rows are aligned to 16 bytes and cols is a multiple of 16
};

inline epilogue8_params epilogue8_of(const spops_igemm8_args *args)
{
    const spops_epilogue8 &given = args->epilogue;
    spops_igemm_args rest = {};
    rest.x = args->x;
    rest.out = args->out;
    rest.epilogue = given.rest;
    epilogue8_params e = {};
    e.rest = epilogue_of(&rest);
    e.x_scale = given.x_scale;
    e.w_scales = given.w_scales;
    e.residual_scale = given.residual_scale;
    e.out_scale = given.out_scale;
    e.narrow = spops_dtype_bytes(args->out.dtype) == 1;
    e.residual = e.narrow ? static_cast<const uint8_t *>(given.rest.residual.data) : nullptr;
    e.wide = (uintptr_t)args->out.data % 16 == 0 && args->out.cols % 16 == 0 &&
             args->out.row_stride % 16 == 0;
    return e;
}

// Two numbers as codes, the first low; and a code as a number.
template <class T> __device__ __forceinline__ uint32_t codes_of(float low, float high)
{
    if constexpr (std::is_same<T, f8e4m3>::value) {
        return narrow2(f8e4m3(), low, high);
    } else {
        const int l = min(max(__float2int_rn(low), -128), 127);
        const int h = min(max(__float2int_rn(high), -128), 127);
        return (uint32_t)(l & 255) | (uint32_t)(h & 255) << 8;
    }
}
template <class T> __device__ __forceinline__ float number_of_code(uint32_t code)
{
    if constexpr (std::is_same<T, f8e4m3>::value)
        return spops_float_of_f8e4m3((uint8_t)code);
    else
        return (float)(int8_t)(uint8_t)code;
}

// One row of a thread's two.
template <class T, int COLS>
__device__ __forceinline__ void add_residual8(const epilogue8_params &p, float (&sum)[COLS / 2],
                                              int h, int row, int col, int q)
{
    const float scale = load_scale_or_one(p.residual_scale);
    const int64_t first = (int64_t)max(row, 0) * p.rest.residual_stride + col + 2 * q;
    int left = row < 0 ? 0 : p.rest.cols - col - 2 * q;
#pragma unroll
    for (int begin = 0; begin < COLS / 8; begin += 4) {
        uint32_t got[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int at = 8 * (begin + i / 2) + i % 2;
            got[i] = 0;
            if (at < left) got[i] = __ldg(p.residual + first + at);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float &v = sum[4 * (begin + i / 2) + 2 * h + i % 2];
            v = __fadd_rn(v, __fmul_rn(number_of_code<T>(got[i]), scale));
        }
        not_ahead(left);
    }
}

template <class T, int COLS>
__device__ __forceinline__ void store_codes(const epilogue8_params &p, const float (&sum)[COLS / 2],
                                            const int (&row)[2], int col, int q)
{
    const float inverse = __fdiv_rn(1.0f, load_scale_or_one(p.out_scale));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        uint8_t *out = static_cast<uint8_t *>(p.rest.out) + (int64_t)row[h] * p.rest.out_stride;
        const auto codes = [&](int j) { // of columns 8 j + 2 q and on
            return codes_of<T>(__fmul_rn(sum[4 * j + 2 * h], inverse),
                               __fmul_rn(sum[4 * j + 2 * h + 1], inverse));
        };
        if (p.wide && COLS % 64 == 0) { // each lane gathers 16 columns of its own
#pragma unroll
            for (int j = 0; j < COLS / 8; j += 8) {
                uint32_t v[4];
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    v[i] = codes(j + 2 * i) | codes(j + 2 * i + 1) << 16;
                transpose_4(v, q);
                const int c = col + 8 * (j + 2 * q);
                if (row[h] >= 0 && c < p.rest.cols)
                    *reinterpret_cast<uint4 *>(out + c) = make_uint4(
                        __byte_perm(v[0], v[1], 0x5410), __byte_perm(v[2], v[3], 0x5410),
                        __byte_perm(v[0], v[1], 0x7632), __byte_perm(v[2], v[3], 0x7632));
            }
        } else {
#pragma unroll
            for (int j = 0; j < COLS / 8; ++j) {
                const uint32_t pair = codes(j);
                const int c = col + 8 * j + 2 * q;
                if (row[h] < 0) continue;
                if (c < p.rest.cols) out[c] = (uint8_t)pair;
                if (c + 1 < p.rest.cols) out[c + 1] = (uint8_t)(pair >> 8);
            }
        }
    }
}

// store_sums of igemm_epilogue.cuh, of sums of codes T: int of i8, else float.
template <class T, int COLS, class S>
__device__ __forceinline__ void store_sums8(const epilogue8_params &p, const S (&acc)[COLS / 2],
                                            const int (&row)[2], int col, int q)
{
    float sum[COLS / 2];
    const float x_scale = load_scale_or_one(p.x_scale);
#pragma unroll
    for (int i = 0; i < COLS / 2; ++i)
        sum[i] = (float)acc[i];
    if (p.w_scales == nullptr) {
#pragma unroll
        for (int i = 0; i < COLS / 2; ++i)
            sum[i] = __fmul_rn(sum[i], x_scale);
    } else {
        each_with_column<COLS>(p.rest, p.w_scales, sum, col, q,
                               [&](float &a, float b) { a = __fmul_rn(a, __fmul_rn(x_scale, b)); });
    }
#pragma unroll 1
    for (int step = 0; step < 3; ++step) {
        const float *const v = step == 0 ? p.rest.bias : step == 1 ? p.rest.scale : p.rest.shift;
        if (v == nullptr) continue;
        if (step == 1)
            each_with_column<COLS>(p.rest, v, sum, col, q,
                                   [](float &a, float b) { a = __fmul_rn(a, b); });
        else
            each_with_column<COLS>(p.rest, v, sum, col, q,
                                   [](float &a, float b) { a = __fadd_rn(a, b); });
    }
    if (p.residual != nullptr) {
        add_residual8<T, COLS>(p, sum, 0, row[0], col, q);
        add_residual8<T, COLS>(p, sum, 1, row[1], col, q);
    } else if (p.rest.residual != nullptr) {
        add_residual<__half, COLS>(p.rest, sum, 0, row[0], col, q);
        add_residual<__half, COLS>(p.rest, sum, 1, row[1], col, q);
    }
    activate_sums(p.rest.activated, sum);
    if (p.narrow) {
        store_codes<T, COLS>(p, sum, row, col, q);
    } else {
        epilogue_params rest = p.rest;
        rest.plain = true;
        store_sums<__half, COLS>(rest, sum, row, col, q);
    }
}

} // namespace spops

#endif
