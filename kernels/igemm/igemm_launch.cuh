// SPDX-License-Identifier: Apache-2.0
// Launching the products of gathered rows with the matrices of taps: the form that W is taken in, and
// the epilogue. Instances are in a source for each dtype and architecture.
#ifndef SPOPS_KERNELS_IGEMM_IGEMM_LAUNCH_CUH
#define SPOPS_KERNELS_IGEMM_IGEMM_LAUNCH_CUH

#include <type_traits>

#include "core/matrix.h"
#include "kernels/core/launch.cuh"
#include "kernels/igemm/igemm_epilogue.cuh"
#include "igemm/igemm_args.h"
#include "kernels/igemm/igemm_tuning.h"

namespace spops
{

// The kernels take W as it lies where copies and products can: lines of W aligned to 16 bytes, and
// for tf32 only with k along them. Else a copy is made, [taps][C_out][C_in rounded up].
struct weight_form {
    int depth, cols, taps, bytes; // depth of k
    bool copied;                  // to scratch, with padded_depth
    bool along_k;                 // lines have k along them
    int padded_depth;
};

inline int padded_to_16_bytes(int64_t depth, int bytes)
{
    return (int)((depth * bytes + 15) / 16 * 16 / bytes);
}

inline weight_form form_of_weights(const spops_igemm_args *args)
{
    weight_form f;
    f.bytes = (int)spops_dtype_bytes(args->x.dtype);
    f.depth = (int)args->x.cols;
    f.cols = (int)args->out.cols;
    f.taps = args->schedule->num_taps;
    const int along = args->w_transposed ? f.depth : f.cols; // a line of W
    f.copied = along * f.bytes % 16 != 0 || reinterpret_cast<uintptr_t>(args->w.data) % 16 != 0 ||
               (args->x.dtype == SPOPS_DTYPE_F32 && !args->w_transposed);
    f.along_k = f.copied || args->w_transposed;
    f.padded_depth = f.copied ? padded_to_16_bytes(f.depth, f.bytes) : f.depth;
    return f;
}

// Of the copy, with what follows it aligned.
inline size_t weight_copy_bytes(const weight_form &f)
{
    return ((size_t)f.taps * f.padded_depth * f.cols * f.bytes + 255) / 256 * 256;
}

// Beside the copy of weights, of schedules with up to so many records, for up to so many columns.
size_t igemm_sm90_scratch_bytes(const spops_context *ctx, int64_t max_records, int64_t max_cols,
                                int32_t forced);

// Of W in form f, which was copied already where it has to be; tile: a row of igemm_tuning.h.
template <class T>
spops_status launch_igemm_sm90(spops_context *ctx, const spops_igemm_args *args,
                               const weight_form &f, int32_t tile);
template <class T>
spops_status launch_igemm_sm80(spops_context *ctx, const spops_igemm_args *args,
                               const weight_form &f, int32_t tile);

// All tiles of a dtype that a plan may run, for schedules that add rows or for the others.
template <class T> spops_status prepare_igemm_sm90(spops_context *ctx, bool adds, int32_t forced);
template <class T> spops_status prepare_igemm_sm80(spops_context *ctx, bool adds, int32_t forced);

// Pairs of tiles (igemm_pairs_sm90.cuh), of 16 bits.
template <class T>
spops_status launch_igemm_pairs(spops_context *ctx, const spops_igemm_args *args,
                                const weight_form &f, int32_t tile);
template <class T> spops_status prepare_igemm_pairs(spops_context *ctx, int32_t forced);

inline bool has_igemm_pairs(const spops_igemm_args *args)
{
    const int64_t bytes = (int64_t)spops_dtype_bytes(args->x.dtype);
    return args->schedule->pairs != nullptr && bytes == 2 && args->x.cols * bytes > 64;
}

inline spops_status no_igemm_tile(spops_context *ctx, int32_t tile)
{
    return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT, "igemm: there is no tile %d", (int)tile);
}

// Whether rows can be copied 16 bytes at a time.
inline bool is_wide(const spops_matrix &m)
{
    const int64_t bytes = (int64_t)spops_dtype_bytes(m.dtype);
    return m.row_stride * bytes % 16 == 0 && m.cols * bytes % 16 == 0 &&
           reinterpret_cast<uintptr_t>(m.data) % 16 == 0;
}

} // namespace spops

#endif
