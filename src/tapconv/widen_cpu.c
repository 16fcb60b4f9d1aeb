// SPDX-License-Identifier: Apache-2.0
// Features of i8 back to floats, on the CPU.
#include "backends/backend_cpu.h"
#include "core/row_convert.h"
#include "core/rows_f64.h"
#include "core/threads.h"
#include "tapconv/widen_args.h"

#define STRIP 256 // columns

static void widen_rows(const void *work, int64_t begin, int64_t end)
{
    const spops_widen_args *args = (const spops_widen_args *)work;
    for (int64_t r = begin; r < end; ++r)
        for (int64_t col = 0; col < args->q.cols; col += STRIP) {
            const int8_t *q = (const int8_t *)args->q.data + r * args->q.row_stride + col;
            const int n = (int)(args->q.cols - col < STRIP ? args->q.cols - col : STRIP);
            float v[STRIP];
            for (int c = 0; c < n; ++c)
                v[c] = args->scales[args->by_channel ? col + c : 0] * (float)q[c];
            if (args->out.dtype == SPOPS_DTYPE_F64)
                for (int c = 0; c < n; ++c)
                    spops_row_f64(args->out, r)[col + c] = (double)v[c];
            else
                spops_row_store(args->out, r, col, n, v);
        }
}

spops_status spops_cpu_widen(spops_context *ctx, const spops_widen_args *args)
{
    const int64_t rows = *args->num_rows < args->q.rows ? *args->num_rows : args->q.rows;
    spops_parallel_for(spops_team_for(ctx, rows * args->q.cols), rows, 0, widen_rows, args);
    return SPOPS_STATUS_OK;
}
