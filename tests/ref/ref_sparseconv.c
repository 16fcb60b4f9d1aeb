// SPDX-License-Identifier: Apache-2.0
#include "tests/ref/ref_sparseconv.h"

#include <math.h>
#include <stddef.h>

// Add a product to element i of t. A sum meets one rounding for the product and one for each
// addition after it; `roundings` is set by the caller once all are counted.
static void add(ref_tensor *t, int64_t i, double a, double b)
{
    t->value[i] += a * b;
    t->scale[i] += fabs(a * b);
    t->roundings[i] += 1;
}

static void finish(const ref_epilogue *e, int64_t i, int64_t o, ref_tensor *out)
{
    double v = out->value[i], scale = out->scale[i];

    if (e->bias != NULL) v += e->bias[o], scale += fabs(e->bias[o]);
    if (e->scale != NULL) v *= e->scale[o], scale *= fabs(e->scale[o]);
    if (e->shift != NULL) v += e->shift[o], scale += fabs(e->shift[o]);
    if (e->residual != NULL) v += e->residual[i], scale += fabs(e->residual[i]);
    out->value[i] = ref_activate(e->activation, v);
    out->scale[i] = scale;
    out->roundings[i] += 4;
    if (ref_activation_is_exact(e->activation)) return;
    out->scale[i] = scale * ref_activation_growth(e->activation) + fabs(out->value[i]);
    out->roundings[i] += REF_ACTIVATION_ROUNDINGS;
}

// The inner loops go along rows of the weights, as the compiler can make vectors of them; the terms of
// an element come in the order of taps and channels.
void ref_sparseconv_forward(const ref_sparseconv *c, const ref_epilogue *epilogue, ref_tensor *out)
{
    const int64_t in_group = c->in_channels / c->groups, out_group = c->out_channels / c->groups;

    for (int64_t i = 0; i < c->num_out; ++i) {
        for (int32_t k = 0; k < c->num_taps; ++k) {
            const int32_t j = c->table[i * c->num_taps + k];
            for (int64_t a = 0; j >= 0 && a < c->in_channels; ++a) {
                const int64_t first = a / in_group * out_group;
                const double x = c->x[j * c->in_channels + a];
                const double *w = c->w + (k * in_group + a % in_group) * c->out_channels + first;
                for (int64_t o = 0; o < out_group; ++o)
                    add(out, i * c->out_channels + first + o, x, w[o]);
            }
        }
        for (int64_t o = 0; epilogue != NULL && o < c->out_channels; ++o)
            finish(epilogue, i * c->out_channels + o, o, out);
    }
}

void ref_sparseconv_backward(const ref_sparseconv *c, const double *grad_sum, ref_tensor *grad_x,
                             ref_tensor *grad_w)
{
    const int64_t in_group = c->in_channels / c->groups, out_group = c->out_channels / c->groups;

    for (int64_t i = 0; i < c->num_out; ++i) {
        for (int32_t k = 0; k < c->num_taps; ++k) {
            const int32_t j = c->table[i * c->num_taps + k];
            for (int64_t a = 0; j >= 0 && a < c->in_channels; ++a) {
                const int64_t first = a / in_group * out_group, x = j * c->in_channels + a;
                const int64_t w = (k * in_group + a % in_group) * c->out_channels + first;
                const double *g = grad_sum + i * c->out_channels + first;
                for (int64_t o = 0; grad_x != NULL && o < out_group; ++o)
                    add(grad_x, x, g[o], c->w[w + o]);
                for (int64_t o = 0; grad_w != NULL && o < out_group; ++o)
                    add(grad_w, w + o, g[o], c->x[x]);
            }
        }
    }
}

void ref_dense_convolution(const int32_t in_size[3], const int32_t out_size[3],
                           const int32_t kernel[3], int32_t stride, int32_t padding,
                           int32_t dilation, int64_t in_channels, int64_t out_channels,
                           const double *x, const double *w, ref_tensor *out)
{
    for (int32_t a = 0; a < out_size[0]; ++a)
        for (int32_t b = 0; b < out_size[1]; ++b)
            for (int32_t c = 0; c < out_size[2]; ++c)
                for (int32_t t = 0; t < kernel[0] * kernel[1] * kernel[2]; ++t) {
                    const int32_t p = stride * a - padding + dilation * (t / kernel[2] / kernel[1]);
                    const int32_t q = stride * b - padding + dilation * (t / kernel[2] % kernel[1]);
                    const int32_t r = stride * c - padding + dilation * (t % kernel[2]);
                    if (p < 0 || q < 0 || r < 0 || p >= in_size[0] || q >= in_size[1] ||
                        r >= in_size[2])
                        continue;
                    const int64_t to = ((int64_t)a * out_size[1] + b) * out_size[2] + c;
                    const int64_t from = ((int64_t)p * in_size[1] + q) * in_size[2] + r;
                    for (int64_t o = 0; o < out_channels; ++o)
                        for (int64_t i = 0; i < in_channels; ++i)
                            add(out, to * out_channels + o, x[from * in_channels + i],
                                w[(t * in_channels + i) * out_channels + o]);
                }
}
