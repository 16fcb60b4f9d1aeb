// SPDX-License-Identifier: Apache-2.0
// The products of gathered rows with the matrices of taps on sm_90a, in f16; and their scratch.
#include "kernels/igemm/igemm_pairs_sm90_launch.cuh"

template spops_status spops::launch_igemm_sm90<__half>(spops_context *, const spops_igemm_args *,
                                                       const weight_form &, int32_t);
template spops_status spops::prepare_igemm_sm90<__half>(spops_context *, bool, int32_t);

// Two tiles of partial sums a share: there are as many as blocks, or, with the least work a share has,
// less than twice as many as records.
size_t spops::igemm_sm90_scratch_bytes(const spops_context *ctx, int64_t max_records,
                                       int64_t max_cols, int32_t forced)
{
    int64_t most = 0;
    const auto consider = [&](auto policy) {
        using P = decltype(policy);
        const int64_t blocks = (int64_t)ctx->info.num_processors * P::BLOCKS;
        const int64_t parts = 2 * max_records * ((max_cols + P::COLS - 1) / P::COLS);
        const int64_t bytes = 2 * (parts < blocks ? parts : blocks) * P::rows * P::COLS * 4;
        if (bytes > most) most = bytes;
    };
#define SPOPS_TILE(number, where, max, percent, columns, ...)                                      \
    if ((max_cols > columns / 2 || number == forced) &&                                            \
        igemm_policy<columns, __VA_ARGS__>::SHARES)                                                \
        consider(igemm_policy<columns, __VA_ARGS__>());
    SPOPS_IGEMM_SM90_TILES(SPOPS_TILE)
#undef SPOPS_TILE
#define SPOPS_TILE(number, ...)                                                                    \
    if (max_cols > 64 || number == forced) consider(igemm_pairs_policy<__VA_ARGS__>());
    SPOPS_IGEMM_SM90_PAIRS(SPOPS_TILE)
#undef SPOPS_TILE
    return (size_t)most + 256; // to align
}
