// SPDX-License-Identifier: Apache-2.0
// Attention on sm_90a, of f16 and bf16.
#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/attention_sm90_attend.cuh"
#include "kernels/core/sm90/tensor_map.cuh"

namespace spops
{

namespace
{

struct sm90_kernel {
    void (*run)(attention_params); // or with boxes
    void (*run_boxes)(attention_boxes_params);
    unsigned threads;
    size_t shared_bytes;
    int heads, tiles; // of an item
    int blocks;       // of a multiprocessor
    int box_rows;     // of k and v
};

template <class P, class T> sm90_kernel kernel_of()
{
    sm90_kernel kernel = {
        nullptr,  nullptr,   (unsigned)P::threads,     (size_t)P::shared_bytes, P::HEADS,
        P::TILES, P::blocks, P::KEYS / P::gather_warps};
    if constexpr (P::BOXES)
        kernel.run_boxes = attention_sm90_kernel<P, T>;
    else
        kernel.run = attention_sm90_kernel<P, T>;
    return kernel;
}

// Of a tile of the table.
template <class T> sm90_kernel kernel_of_tile(int32_t tile)
{
    switch (tile) {
#define SPOPS_TILE(number, columns, small, ...)                                                    \
    case number: return kernel_of<attention_sm90_policy<columns, __VA_ARGS__>, T>();
        SPOPS_ATTENTION_SM90_TILES(SPOPS_TILE)
#undef SPOPS_TILE
    default: return {};
    }
}

// Boxes of 64 columns of the heads of k or v, of as many rows. False: rows are too long to count their
// columns.
bool box_of(const attention_params &p, const attention_rows &rows, int num, spops_dtype dtype,
            box_shape *box)
{
    const int64_t line = (p.heads / p.group - 1) * (rows.head / 2) + p.dim;
    *box = {rows.data, line, p.key_rows, 1, rows.row / 2, 64, num, dtype};
    return p.key_rows > 0 && rows.row > 0 && rows.head >= 0 && line <= INT32_MAX;
}

} // namespace

template <class T>
spops_status launch_attention_sm90(spops_context *ctx, const attention_params &p, int64_t max_tiles,
                                   int32_t tile)
{
    const sm90_kernel kernel = kernel_of_tile<T>(tile);
    const int64_t most = (int64_t)ctx->info.num_processors * kernel.blocks;
    const int64_t items = (max_tiles + kernel.tiles - 1) / kernel.tiles *
                          ((p.heads + kernel.heads - 1) / kernel.heads);
    const dim3 blocks((unsigned)(items < most ? attention_blocks(items) : most));
    if (kernel.run_boxes == nullptr)
        return launch_preparing<AFTER_PREVIOUS>(ctx, "attention: launch", kernel.run, blocks,
                                                kernel.threads, kernel.shared_bytes, p);
    attention_boxes_params with_boxes = {};
    static_cast<attention_params &>(with_boxes) = p;
    const spops_dtype dtype = std::is_same<T, f16>::value ? SPOPS_DTYPE_F16 : SPOPS_DTYPE_BF16;
    box_shape k, v;
    with_boxes.boxes =
        box_of(p, p.k, kernel.box_rows, dtype, &k) && box_of(p, p.v, kernel.box_rows, dtype, &v);
    if (with_boxes.boxes) {
        SPOPS_TRY(encode_tensor_map(ctx, k, &with_boxes.k_boxes));
        SPOPS_TRY(encode_tensor_map(ctx, v, &with_boxes.v_boxes));
    }
    return launch_preparing<AFTER_PREVIOUS>(ctx, "attention: launch", kernel.run_boxes, blocks,
                                            kernel.threads, kernel.shared_bytes, with_boxes);
}

template <class T> spops_status prepare_attention_sm90(spops_context *ctx, int32_t tile)
{
    const sm90_kernel kernel = kernel_of_tile<T>(tile);
    if (kernel.run_boxes != nullptr)
        return prepare_shared(ctx, "attention: prepare", kernel.run_boxes);
    return prepare_shared(ctx, "attention: prepare", kernel.run);
}

template spops_status prepare_attention_sm90<f16>(spops_context *, int32_t);
template spops_status prepare_attention_sm90<bf16>(spops_context *, int32_t);
template spops_status launch_attention_sm90<f16>(spops_context *, const attention_params &, int64_t,
                                                 int32_t);
template spops_status launch_attention_sm90<bf16>(spops_context *, const attention_params &,
                                                  int64_t, int32_t);

} // namespace spops
