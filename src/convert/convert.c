// SPDX-License-Identifier: Apache-2.0
// Conversions: argument checks, then the backend's slot.
#include "spops/convert.h"

#include "convert/convert_args.h"
#include "call/call_check.h"

#define INDICES (1u << SPOPS_DTYPE_I32 | 1u << SPOPS_DTYPE_I64)

static bool is_dense(spops_matrix m)
{
    return m.rows <= 1 || m.row_stride == m.cols;
}

static spops_matrix as_one_row(spops_matrix m)
{
    return spops_matrix_dense(m.data, 1, m.rows * m.cols, m.dtype);
}

spops_status spops_convert_execute(spops_context *ctx, spops_matrix x, spops_matrix out)
{
    static const char call[] = "convert_execute";
    spops_convert_args args = {x, out};
    const void *const given[] = {&x, &out};

    SPOPS_TRY(spops_check_call(
        ctx, spops_dtype_in(x.dtype, INDICES) ? SPOPS_OP_convert_indices : SPOPS_OP_convert, given,
        NULL));
    SPOPS_REQUIRE_SLOT(ctx, call, convert);
    if (x.rows == 0 || x.cols == 0) return SPOPS_STATUS_OK;
    if (is_dense(x) && is_dense(out)) args = (spops_convert_args){as_one_row(x), as_one_row(out)};
    return ctx->backend->convert(ctx, &args);
}
