// SPDX-License-Identifier: Apache-2.0
// Conversions on the CPU: strips of a row, floats by way of f32.
#include <string.h>

#include "backends/backend_cpu.h"
#include "convert/convert_args.h"
#include "core/row_convert.h"
#include "core/rows_f64.h"
#include "core/rows_isa.h"
#include "core/threads.h"

#define STRIP 1024 // columns

typedef struct convert_work {
    const spops_rows_table *table;
    const spops_convert_args *args;
    int64_t strips; // of a row
} convert_work;

static void narrow_indices(const int64_t *from, int64_t n, int32_t *to)
{
    for (int64_t i = 0; i < n; ++i)
        to[i] = from[i] < INT32_MIN || from[i] > INT32_MAX ? -1 : (int32_t)from[i];
}

static void widen_indices(const int32_t *from, int64_t n, int64_t *to)
{
    for (int64_t i = 0; i < n; ++i)
        to[i] = from[i];
}

static void convert_strips(const void *work, int64_t begin, int64_t end)
{
    const convert_work *w = (const convert_work *)work;
    const spops_matrix x = w->args->x, out = w->args->out;
    float v[STRIP];

    for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / w->strips, col = i % w->strips * STRIP;
        const int64_t n = x.cols - col < STRIP ? x.cols - col : STRIP;
        const char *from = spops_row_element(x, row, col);
        char *to = spops_row_element(out, row, col);
        if (x.dtype == out.dtype) {
            memcpy(to, from, (size_t)spops_elements_bytes(x.dtype, n));
        } else if (x.dtype == SPOPS_DTYPE_I64) {
            narrow_indices((const int64_t *)(const void *)from, n, (int32_t *)(void *)to);
        } else if (x.dtype == SPOPS_DTYPE_I32) {
            widen_indices((const int32_t *)(const void *)from, n, (int64_t *)(void *)to);
        } else if (x.dtype == SPOPS_DTYPE_F64 || out.dtype == SPOPS_DTYPE_F64) {
            for (int64_t c = 0; c < n; ++c)
                spops_store_double(out.dtype, to, c, spops_double_of(x.dtype, from, c));
        } else {
            w->table->load(x.dtype, from, n, v);
            w->table->store(out.dtype, v, n, to);
        }
    }
}

spops_status spops_cpu_convert(spops_context *ctx, const spops_convert_args *args)
{
    const convert_work work = {spops_rows_table_of(ctx), args, (args->x.cols + STRIP - 1) / STRIP};
    spops_parallel_for(spops_team_for(ctx, args->x.rows * args->x.cols), args->x.rows * work.strips,
                       0, convert_strips, &work);
    return SPOPS_STATUS_OK;
}
