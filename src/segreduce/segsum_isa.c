// SPDX-License-Identifier: Apache-2.0
// The vector code of sums in other dtypes than the rows' and with scales (segreduce_args.h), compiled
// once per instruction set.
#include "segreduce/segreduce_lanes.h"

// Not inlined: every block of every instance ends here, in any dtype.
static __attribute__((noinline)) void store_sums(int dtype, int width, const float *v, char *dst)
{
    switch (dtype) {
#define STORE(NAME, name, bits, c_type, device_type)                                               \
    case SPOPS_DTYPE_##NAME: {                                                                     \
        int c = 0;                                                                                 \
        for (; c + 16 <= width; c += 16)                                                           \
            spops_store_lanes(SPOPS_DTYPE_##NAME, 16, v + c, dst + (size_t)c * sizeof(c_type));    \
        for (; c + 4 <= width; c += 4)                                                             \
            spops_store_lanes(SPOPS_DTYPE_##NAME, 4, v + c, dst + (size_t)c * sizeof(c_type));     \
        for (; c < width; ++c)                                                                     \
            spops_store_1(SPOPS_DTYPE_##NAME, v[c], dst + (size_t)c * sizeof(c_type));             \
        break;                                                                                     \
    }
#define SPOPS_DTYPE_FLOAT  STORE
#define SPOPS_DTYPE_FLOAT8 STORE
#include "core/dtypes.def"
#undef STORE
    default: break;
    }
}

// Scale and store the sums of an output row.
SPOPS_INLINE void finish_sum(int width, const spops_segreduce_args *args, int64_t out_row,
                             int64_t col, const float *acc)
{
    const int dtype = (int)args->out.dtype;
    char *dst = (char *)spops_element(dtype, args->out, out_row, col);
    float factor = args->x_scale != NULL ? *args->x_scale : 1.0f;
    float v[MAX_WIDTH];

    if (args->w_scale != NULL) factor *= *args->w_scale;
    if (args->out_scale != NULL) factor /= *args->out_scale;
#pragma omp simd
    for (int c = 0; c < width; ++c)
        v[c] = acc[c] * factor;
    store_sums(dtype, width, v, dst);
}

SPOPS_INLINE void sum_block(int xtype, int width, const spops_segreduce_args *args, int64_t out_row,
                            int64_t begin, int64_t end, int64_t col, double *partial)
{
    const int64_t row_bytes = spops_row_step(args->x) * (int64_t)spops_element_bytes(xtype);
    const char *x = spops_element(xtype, args->x, 0, col);
    const weights w = weights_of(args->x, args->w);
    cursor at = cursor_at(args->lists, begin);
    const bool totals = partial != NULL || end - begin > SUM_TERMS;
    double total[MAX_WIDTH];
    float acc[MAX_WIDTH];
    int64_t p = begin;

    if (totals) clear_totals(width, total);
    do {
        const int64_t stop = sum_end(p, end);
#pragma omp simd
        for (int c = 0; c < width; ++c)
            acc[c] = 0.0f;
        for (; p < stop; ++p, cursor_step(&at)) {
            const float weight = weight_at(xtype, true, &w, cursor_b(&at));
            float v[MAX_WIDTH];
            spops_load_lanes(xtype, width, x + cursor_a(&at) * row_bytes, v);
#pragma omp simd
            for (int c = 0; c < width; ++c)
                acc[c] = spops_multiply_add(weight, v[c], acc[c]);
        }
        if (totals) add_totals(width, acc, total);
    } while (p < end);
    if (partial != NULL) {
        memcpy(partial + col, total, (size_t)width * sizeof *total);
        return;
    }
    if (totals) round_totals(width, total, acc);
    finish_sum(width, args, out_row, col, acc);
}

SPOPS_INLINE void sum_narrow_block(int xtype, int width, const spops_segreduce_args *args,
                                   int64_t out_row, int64_t begin, int64_t end, int64_t col,
                                   double *partial)
{
    double total[NARROW_COLS];
    float sum[NARROW_COLS];

    add_narrow(xtype, true, width, args, begin, end, col, total);
    if (partial != NULL) {
        memcpy(partial + col, total, (size_t)width * sizeof *total);
        return;
    }
    round_totals(width, total, sum);
    finish_sum(width, args, out_row, col, sum);
}

SPOPS_INLINE void sum_range(int xtype, const spops_segreduce_args *args, int64_t out_row,
                            int64_t begin, int64_t end, double *partial)
{
    const int64_t cols = args->x.cols;
    if (begin == end && partial == NULL) { // zero, whatever the scales
        const int dtype = (int)args->out.dtype;
        memset((char *)spops_element(dtype, args->out, out_row, 0), 0,
               (size_t)cols * spops_element_bytes(dtype));
        return;
    }
    if (cols <= NARROW_COLS) {
#define BLOCK(width, col) sum_narrow_block(xtype, width, args, out_row, begin, end, col, partial)
        FOR_EACH_NARROW_BLOCK(cols, BLOCK)
#undef BLOCK
        return;
    }
#define BLOCK(width, col) sum_block(xtype, width, args, out_row, begin, end, col, partial)
    FOR_EACH_BLOCK(cols, WIDE_1, BLOCK)
#undef BLOCK
}

SPOPS_INLINE void sum_split_block(int width, const spops_segreduce_args *args,
                                  const spops_split_segment *split, int64_t col)
{
    const int64_t cols = args->x.cols;
    const double *partial = (const double *)args->partials + split->first_piece * cols + col;
    double total[MAX_WIDTH];
    float acc[MAX_WIDTH];

    load_totals(width, partial, total);
    for (int32_t i = 1; i < split->num_pieces; ++i) {
        partial += cols;
        add_piece(width, partial, total);
    }
    round_totals(width, total, acc);
    finish_sum(width, args, split->segment, col, acc);
}

static void sum_split(const spops_segreduce_args *args, const spops_split_segment *split)
{
    const int64_t cols = args->x.cols;
#define BLOCK(width, col) sum_split_block(width, args, split, col)
    FOR_EACH_BLOCK(cols, 16, BLOCK)
#undef BLOCK
}

// ---- Instances ----------------------------------------------------------------------------------

#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    static void sum_range_##NAME(const spops_segreduce_args *args, int64_t out_row, int64_t begin, \
                                 int64_t end, void *partial)                                       \
    {                                                                                              \
        sum_range(SPOPS_DTYPE_##NAME, args, out_row, begin, end, (double *)partial);               \
    }
#include "core/dtypes.def"

const spops_segsum_table SPOPS_ISA_TABLE(spops_segsum_table) = {
    .range =
        {
#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    [SPOPS_DTYPE_##NAME] = sum_range_##NAME,
#include "core/dtypes.def"
        },
    .split = sum_split,
};
