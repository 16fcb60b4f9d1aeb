// SPDX-License-Identifier: Apache-2.0
// Reductions by their plain ops, which compute values alone. Compiled once per instruction set.
#include "segreduce/segreduce_blocks.h"

#define SPOPS_REDUCE_OP(name, plain, traced) REDUCE(name, SPOPS_REDUCE_##name, true)
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP

// ---- Narrow rows --------------------------------------------------------------------------------

// Terms further ahead whose rows are fetched into the cache meanwhile.
#define TERMS_AHEAD 32

// Columns from `col` on, `width` of them. Three are loaded and added as four where the row's neighbour
// has the fourth.
SPOPS_INLINE void narrow_rows(int xtype, int width, const spops_segreduce_args *args, int64_t first,
                              int64_t last, int64_t col)
{
    const spops_lists *lists = args->lists;
    const int32_t *offsets = lists->offsets, *pairs = lists->pairs;
    const int64_t row_bytes = spops_row_step(args->x) * (int64_t)spops_element_bytes(xtype);
    const int64_t out_bytes = spops_row_step(args->out) * (int64_t)spops_element_bytes(xtype);
    const int64_t fetched = (int64_t)offsets[last] - TERMS_AHEAD;
    const int32_t split_terms = lists->schedule->split_terms;
    const bool mean = args->reduce == SPOPS_REDUCE_MEAN;
    const int lanes = width == 3 ? 4 : width;
    const int64_t last_row = args->x.rows - 1;
    const char *x = spops_element(xtype, args->x, 0, col);
    char *out = (char *)spops_element(xtype, args->out, first, col);

    for (int64_t o = first; o < last; ++o, out += out_bytes) {
        const int64_t begin = offsets[o], end = offsets[o + 1];
        double total[NARROW_COLS];
        float value[NARROW_COLS];
        if (end - begin > split_terms) continue;
        clear_totals(lanes, total);
        for (int64_t p = begin; p < end; ++p) {
            float v[NARROW_COLS] = {0.0f};
            if (p < fetched) __builtin_prefetch(x + pairs[2 * (p + TERMS_AHEAD)] * row_bytes);
            if (lanes == width || pairs[2 * p] < last_row)
                spops_load_lanes(xtype, lanes, x + pairs[2 * p] * row_bytes, v);
            else
                spops_load_lanes(xtype, width, x + pairs[2 * p] * row_bytes, v);
            add_totals(lanes, v, total);
        }
        round_totals(lanes, total, value);
        if (mean) {
            const float count = end > begin ? (float)(end - begin) : 1.0f; // of none: 0
#pragma omp simd
            for (int c = 0; c < lanes; ++c)
                value[c] /= count;
        }
        spops_store_lanes(xtype, width, value, out);
    }
}

SPOPS_INLINE void narrow_rows_of(int xtype, const spops_segreduce_args *args, int64_t first,
                                 int64_t last)
{
    switch (args->x.cols) {
    case 1: narrow_rows(xtype, 1, args, first, last, 0); break;
    case 2: narrow_rows(xtype, 2, args, first, last, 0); break;
    case 3: narrow_rows(xtype, 3, args, first, last, 0); break;
    default:
        for (int64_t col = 0; col < args->x.cols; col += 4) // the last four overlap
            narrow_rows(xtype, 4, args, first, last,
                        col + 4 <= args->x.cols ? col : args->x.cols - 4);
        break;
    }
}

#define SPOPS_DTYPE_FLOAT(NAME, name, bits, c_type, device_type)                                   \
    static void narrow_rows_##NAME(const spops_segreduce_args *args, int64_t first, int64_t last)  \
    {                                                                                              \
        narrow_rows_of(SPOPS_DTYPE_##NAME, args, first, last);                                     \
    }
#include "core/dtypes.def"

const spops_segreduce_plain_table SPOPS_ISA_TABLE(spops_segreduce_plain_table) = {
    {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    [SPOPS_REDUCE_##name] = {FLOATS(reduce_range_##name), reduce_split_##name,                     \
                             PIECE_BYTES(SPOPS_REDUCE_##name, spops_##plain)},
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    },
    FLOATS(narrow_rows)};
