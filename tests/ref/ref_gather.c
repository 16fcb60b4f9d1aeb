// SPDX-License-Identifier: Apache-2.0
#include "tests/ref/ref_gather.h"

#include <math.h>
#include <stdlib.h>

void ref_gather_forward(const ref_relation *r, int64_t cols, const double *x, const double *w,
                        ref_tensor *out)
{
    for (int64_t t = 0; t < r->num_terms; ++t) {
        for (int64_t c = 0; c < cols; ++c) {
            const double v = x[r->segment[t] * cols + c];
            const double scaled = w == NULL ? v : w[r->weight[t]] * v;
            out->value[r->row[t] * cols + c] =
                w == NULL || r->is_f64 ? scaled : (double)(float)scaled;
        }
    }
}

void ref_gather_backward(const ref_relation *r, int64_t cols, const double *x, const double *w,
                         const double *grad_out, ref_tensor *grad_x, ref_tensor *grad_w)
{
    // Each contribution is rounded once as a product and once for every addition to its sum.
    for (int64_t t = 0; t < r->num_terms; ++t) {
        for (int64_t c = 0; c < cols; ++c) {
            const int64_t source = r->segment[t] * cols + c;
            const double g = grad_out[r->row[t] * cols + c];
            if (grad_x != NULL) {
                const double part = (w != NULL ? w[r->weight[t]] : 1.0) * g;
                grad_x->value[source] += part;
                grad_x->scale[source] += fabs(part);
                grad_x->roundings[source] += 1.0;
            }
            if (grad_w != NULL) {
                const int64_t m = r->weight[t];
                const double part = g * x[source];
                grad_w->value[m] += part;
                grad_w->scale[m] += fabs(part);
                grad_w->roundings[m] += 1.0;
            }
        }
    }
}
