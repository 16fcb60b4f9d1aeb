// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_data.h"

void bench_add_product(bench_row_sum *s, int64_t c, float a, float b)
{
    s->value[c] += (double)a * (double)b;
    s->magnitude[c] += fabs((double)a * (double)b);
}

bool bench_check_rows(bench *b, const bench_row_check *check, spops_matrix result)
{
    const size_t row_bytes = (size_t)result.cols * spops_dtype_bytes(result.dtype);
    bench_row_sum *s = bench_host(b, 1, sizeof *s);
    unsigned char row[BENCH_MAX_WIDTH * 4];
    bool right = s != NULL;

    for (int i = 0; i < check->num_samples && right; ++i) {
        const int64_t r = (int64_t)(bench_random(21, (uint64_t)i) % (uint64_t)result.rows);
        memset(s, 0, sizeof *s);
        check->sum(check->user, r, s);
        right =
            bench_download(b, row, (const char *)result.data + (size_t)r * row_bytes, row_bytes);
        for (int64_t c = 0; c < result.cols && right; ++c) {
            const double value = bench_get(row, result.dtype, c);
            // Matrix units cut off instead of rounding, which doubles the unit.
            const double bound =
                2.0 * bench_sum_bound(result.dtype, s->terms, s->magnitude[c], s->value[c]) +
                check->unit * s->magnitude[c];
            if (!(fabs(value - s->value[c]) <= bound))
                right =
                    bench_fail(b, "%s %s: element [%lld, %lld] is %g, expected %g", check->suite,
                               check->what, (long long)r, (long long)c, value, s->value[c]);
        }
    }
    free(s);
    return right;
}

size_t bench_matrix_bytes(spops_matrix m)
{
    return (size_t)m.rows * (size_t)m.cols * spops_dtype_bytes(m.dtype);
}

double bench_layer_case(bench_case *c, int products, int64_t num_pairs, spops_matrix x,
                        spops_matrix w, spops_matrix out)
{
    const double flops = 2.0 * products * (double)num_pairs * (double)(x.cols * out.cols);
    c->dtype = x.dtype;
    c->cols = x.cols;
    c->bytes = products *
               (int64_t)(bench_matrix_bytes(x) + bench_matrix_bytes(w) + bench_matrix_bytes(out));
    c->gather_bytes = products * num_pairs * x.cols * (int64_t)spops_dtype_bytes(x.dtype);
    bench_case_note(c, "flops", (int64_t)flops);
    bench_case_note(c, "out_cols", out.cols);
    return flops;
}
