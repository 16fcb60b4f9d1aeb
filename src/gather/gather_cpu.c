// SPDX-License-Identifier: Apache-2.0
// gather and transpose on the CPU.

#include <string.h>

#include "backends/backend_cpu.h"
#include "core/dtypes.h"
#include "core/rows_f64.h"
#include "core/threads.h"
#include "segments/runs.h"
#include "gather/gather_args.h"

// ---- gather -------------------------------------------------------------------------------------

static size_t element_bytes(spops_dtype dtype)
{
    return (size_t)spops_dtype_bits(dtype) / 8;
}

static char *row_of(spops_matrix m, int64_t row)
{
    return (char *)m.data + (size_t)(row * m.row_stride) * element_bytes(m.dtype);
}

static float weight_at(spops_matrix w, int64_t index)
{
    switch (w.dtype) {
#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    case SPOPS_DTYPE_##NAME:                                                                       \
        return spops_float_of_##name(((const c_type *)w.data)[index]);
#include "core/dtypes.def"
    default: return 1.0f;
    }
}

static void scale_row_f64(int64_t cols, double weight, const char *from, char *to)
{
    const double *x = (const double *)(const void *)from;
    double *out = (double *)(void *)to;
    for (int64_t c = 0; c < cols; ++c)
        out[c] = weight * x[c];
}

static void scale_row(spops_dtype dtype, int64_t cols, float weight, const char *from, char *to)
{
    switch (dtype) {
#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    case SPOPS_DTYPE_##NAME: {                                                                     \
        const c_type *x = (const c_type *)(const void *)from;                                      \
        c_type *out = (c_type *)(void *)to;                                                        \
        for (int64_t c = 0; c < cols; ++c)                                                         \
            out[c] = spops_##name##_of_float(weight * spops_float_of_##name(x[c]));                \
        break;                                                                                     \
    }
#include "core/dtypes.def"
    default: break;
    }
}

// Row `segment` of x to the terms at positions begin .. end - 1.
static void gather_range(const spops_gather_args *args, int64_t segment, int64_t begin, int64_t end)
{
    const char *from = row_of(args->x, segment);
    const size_t bytes = (size_t)args->x.cols * element_bytes(args->x.dtype);
    for (int64_t p = begin; p < end; ++p) {
        const int64_t weight = spops_pair_of(args->lists, p, 1);
        char *to = row_of(args->out, spops_pair_of(args->lists, p, 0));
        if (args->w.data == NULL)
            memcpy(to, from, bytes);
        else if (args->x.dtype == SPOPS_DTYPE_F64)
            scale_row_f64(args->x.cols, spops_double_of(args->w.dtype, args->w.data, weight), from,
                          to);
        else
            scale_row(args->x.dtype, args->x.cols, weight_at(args->w, weight), from, to);
    }
}

typedef struct gather_work {
    const spops_gather_args *args;
    int64_t num_pieces, num_runs;
} gather_work;

static void gather_run(const gather_work *w, int64_t run)
{
    const spops_lists *lists = w->args->lists;
    const int32_t *offsets = lists->offsets;
    const int64_t last = spops_run_begin(lists, w->num_runs, run + 1);
    for (int64_t o = spops_run_begin(lists, w->num_runs, run); o < last; ++o) {
        if (offsets[o + 1] - offsets[o] <= lists->schedule->split_terms)
            gather_range(w->args, o, offsets[o], offsets[o + 1]);
    }
}

// Items are pieces of long segments, the largest first, then runs of whole ones.
static void gather_items(const void *work, int64_t begin, int64_t end)
{
    const gather_work *w = (const gather_work *)work;
    for (int64_t i = begin; i < end; ++i) {
        if (i < w->num_pieces) {
            const spops_work_item *piece = &w->args->lists->pieces[i];
            gather_range(w->args, piece->segment, piece->begin,
                         (int64_t)piece->begin + piece->count);
        } else {
            gather_run(w, i - w->num_pieces);
        }
    }
}

spops_status spops_cpu_gather(spops_context *ctx, const spops_gather_args *args)
{
    const spops_lists *lists = args->lists;
    const spops_team team = spops_team_for(ctx, spops_runs_cost(lists) * args->x.cols);
    const gather_work work = {args, lists->schedule->num_pieces,
                              spops_runs_count(lists, team.size)};

    if (lists->num_segments == 0 || args->x.cols == 0) return SPOPS_STATUS_OK;
    spops_parallel_for(team, work.num_pieces + work.num_runs, 1, gather_items, &work);
    return SPOPS_STATUS_OK;
}

// ---- transpose ----------------------------------------------------------------------------------

// Tiles of TILE x TILE elements: their rows stay in the L1 cache on both sides. Inside a tile,
// blocks of SIDE x SIDE are transposed in vector registers; __builtin_shufflevector names the lanes
// on every processor.
#define TILE 64

typedef uint32_t vec_u32 __attribute__((vector_size(16)));
typedef uint16_t vec_u16 __attribute__((vector_size(16)));
typedef uint8_t vec_u8 __attribute__((vector_size(16)));

// out[c][r] = in[r][c] for 4 x 4 elements of 4 bytes; strides in elements.
static void transpose_block_uint32_t(const uint32_t *in, int64_t in_stride, uint32_t *out,
                                     int64_t out_stride)
{
    vec_u32 r[4], t[4];
    for (int i = 0; i < 4; ++i)
        memcpy(&r[i], in + i * in_stride, sizeof r[i]);
    for (int i = 0; i < 2; ++i) {
        t[i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 0, 4, 1, 5);
        t[i + 2] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 2, 6, 3, 7);
    }
    for (int i = 0; i < 2; ++i) {
        r[2 * i] = __builtin_shufflevector(t[2 * i], t[2 * i + 1], 0, 1, 4, 5);
        r[2 * i + 1] = __builtin_shufflevector(t[2 * i], t[2 * i + 1], 2, 3, 6, 7);
    }
    for (int i = 0; i < 4; ++i)
        memcpy(out + i * out_stride, &r[i], sizeof r[i]);
}

// The same for 8 x 8 elements of 2 bytes: interleaving the halves of the block three times.
static void transpose_block_uint16_t(const uint16_t *in, int64_t in_stride, uint16_t *out,
                                     int64_t out_stride)
{
    vec_u16 r[8], t[8];
    for (int i = 0; i < 8; ++i)
        memcpy(&r[i], in + i * in_stride, sizeof r[i]);
    for (int step = 0; step < 3; ++step) {
        for (int i = 0; i < 4; ++i) {
            t[2 * i] = __builtin_shufflevector(r[i], r[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
            t[2 * i + 1] = __builtin_shufflevector(r[i], r[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
        }
        memcpy(r, t, sizeof r);
    }
    for (int i = 0; i < 8; ++i)
        memcpy(out + i * out_stride, &r[i], sizeof r[i]);
}

// And for 16 x 16 elements of 1 byte, four times.
static void transpose_block_uint8_t(const uint8_t *in, int64_t in_stride, uint8_t *out,
                                    int64_t out_stride)
{
    vec_u8 r[16], t[16];
    for (int i = 0; i < 16; ++i)
        memcpy(&r[i], in + i * in_stride, sizeof r[i]);
    for (int step = 0; step < 4; ++step) {
        for (int i = 0; i < 8; ++i) {
            t[2 * i] = __builtin_shufflevector(r[i], r[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5,
                                               21, 6, 22, 7, 23);
            t[2 * i + 1] = __builtin_shufflevector(r[i], r[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12,
                                                   28, 13, 29, 14, 30, 15, 31);
        }
        memcpy(r, t, sizeof r);
    }
    for (int i = 0; i < 16; ++i)
        memcpy(out + i * out_stride, &r[i], sizeof r[i]);
}

#define DEFINE_TRANSPOSE_TILE(type, side)                                                          \
    static void transpose_tile_##type(const spops_transpose_args *args, int64_t batch,             \
                                      int64_t first_row, int64_t first_col)                        \
    {                                                                                              \
        const int64_t is = args->in.row_stride, os = args->out.row_stride;                         \
        const type *in = (const type *)args->in.data + batch * args->rows * is;                    \
        type *out = (type *)args->out.data + batch * args->cols * os;                              \
        const int64_t rows = args->rows - first_row < TILE ? args->rows : first_row + TILE;        \
        const int64_t cols = args->cols - first_col < TILE ? args->cols : first_col + TILE;        \
        int64_t c = first_col;                                                                     \
        for (; c + (side) <= cols; c += (side)) {                                                  \
            int64_t r = first_row;                                                                 \
            for (; r + (side) <= rows; r += (side))                                                \
                transpose_block_##type(in + r * is + c, is, out + c * os + r, os);                 \
            for (; r < rows; ++r) {                                                                \
                for (int64_t i = 0; i < (side); ++i)                                               \
                    out[(c + i) * os + r] = in[r * is + c + i];                                    \
            }                                                                                      \
        }                                                                                          \
        for (; c < cols; ++c) {                                                                    \
            for (int64_t r = first_row; r < rows; ++r)                                             \
                out[c * os + r] = in[r * is + c];                                                  \
        }                                                                                          \
    }
DEFINE_TRANSPOSE_TILE(uint32_t, 4)
DEFINE_TRANSPOSE_TILE(uint16_t, 8)
DEFINE_TRANSPOSE_TILE(uint8_t, 16)

static int64_t tiles_of(int64_t n)
{
    return (n + TILE - 1) / TILE;
}

static void transpose_tiles(const void *work, int64_t begin, int64_t end)
{
    const spops_transpose_args *args = (const spops_transpose_args *)work;
    const int64_t row_tiles = tiles_of(args->rows), col_tiles = tiles_of(args->cols);
    const size_t bytes = spops_dtype_bytes(args->in.dtype);

    for (int64_t tile = begin; tile < end; ++tile) {
        const int64_t batch = tile / (row_tiles * col_tiles);
        const int64_t row = tile / col_tiles % row_tiles * TILE, col = tile % col_tiles * TILE;
        if (bytes == 4)
            transpose_tile_uint32_t(args, batch, row, col);
        else if (bytes == 2)
            transpose_tile_uint16_t(args, batch, row, col);
        else
            transpose_tile_uint8_t(args, batch, row, col);
    }
}

spops_status spops_cpu_transpose(spops_context *ctx, const spops_transpose_args *args)
{
    const int64_t num_tiles = args->batches * tiles_of(args->rows) * tiles_of(args->cols);
    spops_parallel_for(spops_team_for(ctx, args->batches * args->rows * args->cols), num_tiles, 0,
                       transpose_tiles, args);
    return SPOPS_STATUS_OK;
}
