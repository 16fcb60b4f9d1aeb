// SPDX-License-Identifier: Apache-2.0
// Conversions: argument checks, then the backend's slot.
#include "spops/convert.h"

#include "convert/convert_args.h"
#include "core/check.h"
#include "core/matrix.h"

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

    SPOPS_REQUIRE(NULL, ctx != NULL, "%s: ctx is NULL", call);
    SPOPS_TRY(spops_check_matrix(ctx, call, "x", x, x.rows, x.cols, SPOPS_DTYPES_FLOAT | INDICES));
    SPOPS_TRY(spops_check_matrix(ctx, call, "out", out, x.rows, x.cols,
                                 spops_dtype_is_float(x.dtype) ? SPOPS_DTYPES_FLOAT : INDICES));
    SPOPS_TRY(spops_check_no_overlap(ctx, call, "out", out, "x", x));
    SPOPS_REQUIRE_SLOT(ctx, call, convert);
    if (x.rows == 0 || x.cols == 0) return SPOPS_STATUS_OK;
    if (is_dense(x) && is_dense(out)) args = (spops_convert_args){as_one_row(x), as_one_row(out)};
    return ctx->backend->convert(ctx, &args);
}
