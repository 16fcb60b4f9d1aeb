// Launching igemm_sm90_kernel: its arguments and tiles. Only sources compiled for compute_90a may
// include this.
#ifndef SPOPS_KERNELS_MVMR_IGEMM_SM90_LAUNCH_CUH
#define SPOPS_KERNELS_MVMR_IGEMM_SM90_LAUNCH_CUH

#include "kernels/mvmr/igemm_launch.cuh"
#include "kernels/mvmr/igemm_sm90.cuh"
#include "kernels/mvmr/tensor_map.cuh"

namespace spops
{

inline epilogue_params epilogue_of(const spops_igemm_args *args)
{
    epilogue_params e = {};
    const spops_matrix &out = args->out, &residual = args->residual;
    e.out = out.data;
    e.residual = residual.data;
    e.out_stride = out.row_stride;
    e.residual_stride = residual.row_stride;
    e.bias = args->bias;
    e.scale = args->scale;
    e.shift = args->shift;
    e.cols = (int)out.cols;
    e.x_bytes = (int)spops_dtype_bytes(args->x.dtype);
    e.relu = args->relu;
    e.in_f32 = out.dtype == SPOPS_DTYPE_F32;
    e.plain = residual.data == nullptr && args->bias == nullptr && args->scale == nullptr &&
              args->shift == nullptr && !args->relu;
    e.wide = (uintptr_t)out.data % 16 == 0 && out.cols % 8 == 0 &&
             out.row_stride * spops_dtype_bytes(out.dtype) % 16 == 0;
    return e;
}

template <class P, class T, operand B>
spops_status launch_policy(spops_context *ctx, const spops_igemm_args *args, const weight_form &f)
{
    igemm_sm90_params p = {};
    const int row_bytes = f.depth * f.bytes;
    p.x = static_cast<const unsigned char *>(args->x.data);
    p.x_row_bytes = (uint32_t)(args->x.row_stride * f.bytes);
    p.row_bytes = row_bytes;
    p.record_bytes = row_bytes > 64 ? 128 : row_bytes > 32 ? 64 : 32;
    p.row_stages = (row_bytes + 127) / 128;
    p.tiles = reinterpret_cast<const int4 *>(args->schedule->tiles);
    p.num_tiles = args->schedule->num_tiles;
    p.records = args->schedule->records;
    p.out_rows = args->schedule->out_rows;
    p.last_tap = args->mirrored ? f.taps - 1 : -1;
    p.col_tiles = (f.cols + P::COLS - 1) / P::COLS;
    p.tickets = args->tickets;
    p.epilogue = epilogue_of(args);

    box_shape box = {};
    box.data = f.copied ? args->scratch : args->w.data;
    box.line = B == ALONG_K ? f.padded_depth : f.cols;
    box.lines = B == ALONG_K ? f.cols : f.depth;
    box.slabs = f.taps;
    box.box_line = B == ALONG_K ? p.record_bytes / f.bytes : 64;
    box.box_lines = B == ALONG_K ? P::COLS : p.record_bytes / f.bytes;
    box.dtype = args->x.dtype;
    SPOPS_TRY(encode_tensor_map(ctx, box, &p.w));

    int64_t blocks = (int64_t)ctx->info.num_processors * P::BLOCKS;
    const int64_t tiles = args->schedule->max_tiles * p.col_tiles;
    if (blocks > tiles) blocks = tiles;
    return launch_shared<AFTER_PREVIOUS>(ctx, "igemm: launch", igemm_sm90_kernel<P, T, B>,
                                         dim3((unsigned)blocks), (unsigned)P::threads,
                                         (size_t)P::shared_bytes, p);
}

//                                        columns, groups, stages, blocks a multiprocessor
using igemm_narrow = igemm_sm90_policy<64, 2, 4, 2>;
using igemm_middle = igemm_sm90_policy<128, 4, 4, 1>;
using igemm_wide = igemm_sm90_policy<256, 2, 4, 1>;

// The tile that has the rows of igemm_tile_rows (igemm.cu).
template <class T, operand B>
spops_status launch_form(spops_context *ctx, const spops_igemm_args *args, const weight_form &f)
{
    if (f.cols <= igemm_narrow::COLS) return launch_policy<igemm_narrow, T, B>(ctx, args, f);
    if (f.cols <= igemm_middle::COLS) return launch_policy<igemm_middle, T, B>(ctx, args, f);
    return launch_policy<igemm_wide, T, B>(ctx, args, f);
}

template <class T>
spops_status launch_igemm_sm90(spops_context *ctx, const spops_igemm_args *args,
                               const weight_form &f)
{
    if constexpr (sizeof(T) == 2) // tf32 products have k along all lines
        if (!f.along_k) return launch_form<T, ACROSS_K>(ctx, args, f);
    return launch_form<T, ALONG_K>(ctx, args, f);
}

} // namespace spops

#endif
