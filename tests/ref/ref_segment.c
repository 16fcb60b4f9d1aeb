// SPDX-License-Identifier: Apache-2.0
#include "tests/ref/ref_segment.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIMS = 3, CORNERS = 8 };

static void find_corners(ref_segment *r, int64_t p, const float *points, int32_t batch, double size)
{
    double base[DIMS], part[DIMS], sum = 0.0;
    for (int a = 0; a < DIMS; ++a) { // centres of voxels around the point
        const double v = (double)points[DIMS * p + a] / size - 0.5;
        base[a] = floor(v);
        part[a] = v - base[a];
    }
    for (int k = 0; k < CORNERS; ++k) {
        int32_t row[1 + DIMS] = {batch};
        double weight = 1.0;
        for (int a = 0; a < DIMS; ++a) {
            const int high = k >> (DIMS - 1 - a) & 1;
            row[1 + a] = (int32_t)base[a] + high;
            weight *= high ? part[a] : 1.0 - part[a];
        }
        r->corner_row[CORNERS * p + k] = ref_find(&r->sets[0], row);
        r->corner_weight[CORNERS * p + k] = weight;
        if (r->corner_row[CORNERS * p + k] >= 0) sum += weight;
    }
    for (int k = 0; k < CORNERS; ++k)
        r->corner_weight[CORNERS * p + k] /= sum;
}

ref_segment ref_segment_create(const segment_network *network, int64_t num_points,
                               const float *points, const int32_t *batch, const float *features,
                               const uint8_t *classes, const float *class_weights)
{
    const double size = network->shape.voxel_m;
    spops_kernel_shape within = spops_kernel_shape_cube(DIMS, 3, 1, 1);
    const spops_kernel_shape between = spops_kernel_shape_cube(DIMS, 2, 2, 1);
    ref_segment r = {.layers = network->layers,
                     .num_points = num_points,
                     .features = features,
                     .classes = classes,
                     .class_weights = class_weights};
    int32_t *rows = malloc((size_t)num_points * (1 + DIMS) * sizeof *rows);
    for (int a = 0; a < DIMS; ++a)
        within.padding[a] = 1;
    for (int64_t p = 0; p < num_points; ++p) {
        rows[(1 + DIMS) * p] = batch[p];
        for (int a = 0; a < DIMS; ++a)
            rows[(1 + DIMS) * p + 1 + a] = (int32_t)floor((double)points[DIMS * p + a] / size);
    }
    r.sets[0] = ref_unique(DIMS, num_points, rows, NULL);
    for (int l = 0; l < SEGMENT_LEVELS; ++l) {
        if (l > 0) r.sets[l] = ref_window(&r.sets[l - 1], &between, false, NULL);
        r.within[l] = ref_map(SPOPS_MAP_SUBMANIFOLD, &within, &r.sets[l], &r.sets[l]);
        if (l == 0) continue;
        r.down[l - 1] = ref_map(SPOPS_MAP_CONVOLUTION, &between, &r.sets[l - 1], &r.sets[l]);
        r.up[l - 1] = ref_map(SPOPS_MAP_TRANSPOSED, &between, &r.sets[l], &r.sets[l - 1]);
    }
    r.point_row = malloc((size_t)num_points * sizeof *r.point_row);
    r.corner_row = malloc((size_t)num_points * CORNERS * sizeof *r.corner_row);
    r.corner_weight = malloc((size_t)num_points * CORNERS * sizeof *r.corner_weight);
    for (int64_t p = 0; p < num_points; ++p) {
        r.point_row[p] = ref_find(&r.sets[0], rows + (1 + DIMS) * p);
        find_corners(&r, p, points, batch[p], size);
    }
    free(rows);
    return r;
}

void ref_segment_free(ref_segment *r)
{
    for (int l = 0; l < SEGMENT_LEVELS; ++l) {
        ref_set_free(&r->sets[l]);
        free(r->within[l]);
        if (l + 1 == SEGMENT_LEVELS) continue;
        free(r->down[l]);
        free(r->up[l]);
    }
    free(r->point_row);
    free(r->corner_row);
    free(r->corner_weight);
}

static double *zeros(int64_t n)
{
    return calloc((size_t)n, sizeof(double));
}

// Batch norm over the rows, then ReLU.
static void normalise(double *x, int64_t rows, int64_t cols, const double *gamma)
{
    const double *beta = gamma + cols;
    for (int64_t c = 0; c < cols; ++c) {
        double mean = 0.0, var = 0.0;
        for (int64_t r = 0; r < rows; ++r)
            mean += x[r * cols + c] / (double)rows;
        for (int64_t r = 0; r < rows; ++r)
            var += (x[r * cols + c] - mean) * (x[r * cols + c] - mean) / (double)rows;
        for (int64_t r = 0; r < rows; ++r) {
            const double y =
                (x[r * cols + c] - mean) * gamma[c] / sqrt(var + (double)1e-5f) + beta[c];
            x[r * cols + c] = y > 0.0 ? y : 0.0;
        }
    }
}

static double *run_layer(const ref_segment *r, int at, const double *parameters, const double *x,
                         const double *across)
{
    const segment_layer *l = &r->layers[at];
    const int64_t rows = r->sets[l->out_level].n, in = l->in_cols, out = l->out_cols;
    const int32_t *table = l->relation == SPOPS_PYRAMID_WITHIN ? r->within[l->level]
                           : l->relation == SPOPS_PYRAMID_DOWN ? r->down[l->level]
                                                               : r->up[l->level];
    const double *w = parameters + l->weights_at;
    double *y = zeros(rows * out);
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t o = 0; across != NULL && o < out; ++o)
            y[i * out + o] = across[i * out + o];
        for (int32_t k = 0; k < l->num_taps; ++k) {
            const int32_t j = table[i * l->num_taps + k];
            for (int64_t c = 0; j >= 0 && c < in; ++c)
                for (int64_t o = 0; o < out; ++o)
                    y[i * out + o] += x[j * in + c] * w[((int64_t)k * in + c) * out + o];
        }
    }
    if (l->norm) normalise(y, rows, out, parameters + l->norm_at);
    return y;
}

static double loss_of(const ref_segment *r, const double *logits)
{
    double loss = 0.0, weights = 0.0;
    for (int64_t p = 0; p < r->num_points; ++p) {
        double z[SEGMENT_NUM_CLASSES] = {0.0}, sum = 0.0;
        if (r->classes[p] == SEGMENT_IGNORED) continue;
        for (int c = 0; c < SEGMENT_NUM_CLASSES; ++c) {
            for (int k = 0; k < CORNERS; ++k) {
                const int32_t row = r->corner_row[CORNERS * p + k];
                if (row >= 0)
                    z[c] += r->corner_weight[CORNERS * p + k] * logits[row * SEGMENT_LOGITS + c];
            }
            sum += exp(z[c]);
        }
        const double weight = (double)r->class_weights[r->classes[p]];
        loss += weight * (log(sum) - z[r->classes[p]]);
        weights += weight;
    }
    return loss / weights;
}

double ref_segment_loss(const ref_segment *r, const double *parameters)
{
    enum { LAST = SEGMENT_LEVELS - 1 };
    const int64_t rows = r->sets[0].n;
    double *x = zeros(rows * SEGMENT_FEATURES), *count = zeros(rows), *encoded[SEGMENT_LEVELS];
    int at = 0;
    for (int64_t p = 0; p < r->num_points; ++p) {
        count[r->point_row[p]] += 1.0;
        for (int c = 0; c < SEGMENT_FEATURES; ++c)
            x[r->point_row[p] * SEGMENT_FEATURES + c] +=
                (double)r->features[p * SEGMENT_FEATURES + c];
    }
    for (int64_t i = 0; i < rows * SEGMENT_FEATURES; ++i)
        x[i] /= count[i / SEGMENT_FEATURES];
    free(count);
    // The order of layers is the network's: stem, encoders, downs, ups, decoders, head.
    double *stem = run_layer(r, at, parameters, x, NULL);
    free(x);
    x = stem;
    const int encode = 1, down = encode + SEGMENT_LEVELS, up = down + LAST, decode = up + LAST;
    for (int l = 0; l < SEGMENT_LEVELS; ++l) {
        encoded[l] = run_layer(r, encode + l, parameters, x, NULL);
        free(x);
        x = l < LAST ? run_layer(r, down + l, parameters, encoded[l], NULL) : NULL;
    }
    x = encoded[LAST];
    for (int l = LAST - 1; l >= 0; --l) {
        double *sum = run_layer(r, up + l, parameters, x, encoded[l]);
        free(x);
        x = run_layer(r, decode + l, parameters, sum, NULL);
        free(sum);
        free(encoded[l]);
    }
    double *logits = run_layer(r, decode + LAST, parameters, x, NULL);
    free(x);
    const double loss = loss_of(r, logits);
    free(logits);
    return loss;
}
