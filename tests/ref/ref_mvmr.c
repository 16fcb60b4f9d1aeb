// SPDX-License-Identifier: Apache-2.0
#include "tests/ref/ref_mvmr.h"

#include <math.h>
#include <stdlib.h>

int64_t ref_mvmr_matrix_rows(const ref_triplets *t, const ref_mvmr_form *form)
{
    if (form->diagonal) return t->num_matrices;
    return t->num_matrices * (form->transposed ? form->out_cols : form->x_cols) / form->groups;
}

int64_t ref_mvmr_matrix_cols(const ref_mvmr_form *form)
{
    return form->transposed ? form->x_cols : form->out_cols;
}

// One more contribution to an element. It is rounded as s * x, as a product, once for every addition
// to its sum, of which there are no more than contributions, and where pieces are joined.
static void add(ref_tensor *t, int64_t i, double part)
{
    t->value[i] += part;
    t->scale[i] += fabs(part);
    t->roundings[i] += t->roundings[i] == 0.0 ? 4.0 : 1.0;
}

// Which of the results a triplet's products are for.
typedef enum ref_wanted { WANT_OUT, WANT_W, WANT_X, WANT_S } ref_wanted;

static void walk(const ref_triplets *t, const ref_mvmr_form *f, ref_wanted wanted, const double *x,
                 const double *w, const double *s, const double *g, ref_tensor *result)
{
    const int64_t in_x = f->x_cols / f->groups, in_out = f->out_cols / f->groups;
    for (int64_t n = 0; n < t->num_triplets; ++n) {
        const int64_t k = t->matrix[n];
        const int64_t to = f->reversed ? t->in[n] : t->out[n];
        const int64_t from = f->reversed ? t->out[n] : t->in[n];
        const double scale = s != NULL && wanted != WANT_S ? s[n] : 1.0;
        for (int64_t c = 0; c < f->x_cols; ++c) {
            // Column c of x is joined to those columns of the result that its group has.
            const int64_t begin = f->diagonal ? c : c / in_x * in_out;
            const int64_t end = f->diagonal ? c + 1 : begin + in_out;
            for (int64_t o = begin; o < end; ++o) {
                const int64_t we = f->diagonal     ? k * f->x_cols + c
                                   : f->transposed ? (k * in_out + o - begin) * f->x_cols + c
                                                   : (k * in_x + c % in_x) * f->out_cols + o;
                const int64_t xe = from * f->x_cols + c, oe = to * f->out_cols + o;
                switch (wanted) {
                case WANT_OUT: add(result, oe, scale * x[xe] * w[we]); break;
                case WANT_W: add(result, we, scale * x[xe] * g[oe]); break;
                case WANT_X: add(result, xe, scale * g[oe] * w[we]); break;
                case WANT_S: add(result, n, x[xe] * w[we] * g[oe]); break;
                }
            }
        }
    }
}

void ref_mvmr(const ref_triplets *t, const ref_mvmr_form *form, const double *x, const double *w,
              const double *s, ref_tensor *out)
{
    walk(t, form, WANT_OUT, x, w, s, NULL, out);
}

void ref_vvor(const ref_triplets *t, const ref_mvmr_form *form, const double *x, const double *g,
              const double *s, ref_tensor *out)
{
    walk(t, form, WANT_W, x, NULL, s, g, out);
}

void ref_mvmr_grad_x(const ref_triplets *t, const ref_mvmr_form *form, const double *g,
                     const double *w, const double *s, ref_tensor *out)
{
    walk(t, form, WANT_X, NULL, w, s, g, out);
}

void ref_mvmr_grad_s(const ref_triplets *t, const ref_mvmr_form *form, const double *x,
                     const double *w, const double *g, ref_tensor *out)
{
    walk(t, form, WANT_S, x, w, NULL, g, out);
}
