// SPDX-License-Identifier: Apache-2.0
#include "tests/ref/ref_bevpool.h"

#include <math.h>
#include <stdlib.h>

// Solve a x = b for a 3x3 matrix by elimination with row pivoting; a and b are spent.
static void solve3(double a[3][3], double b[3], double x[3])
{
    for (int k = 0; k < 3; ++k) {
        int pivot = k;
        for (int i = k + 1; i < 3; ++i) {
            if (fabs(a[i][k]) > fabs(a[pivot][k])) pivot = i;
        }
        for (int j = 0; j < 3; ++j) {
            const double v = a[k][j];
            a[k][j] = a[pivot][j];
            a[pivot][j] = v;
        }
        const double v = b[k];
        b[k] = b[pivot];
        b[pivot] = v;
        for (int i = k + 1; i < 3; ++i) {
            const double factor = a[i][k] / a[k][k];
            for (int j = k; j < 3; ++j)
                a[i][j] -= factor * a[k][j];
            b[i] -= factor * b[k];
        }
    }
    for (int i = 2; i >= 0; --i) {
        x[i] = b[i];
        for (int j = i + 1; j < 3; ++j)
            x[i] -= a[i][j] * x[j];
        x[i] /= a[i][i];
    }
}

// The point at depth z behind input pixel (u, v), in the grid's frame.
static void unproject(const spops_bev_camera *camera, double u, double v, double z, double p[3])
{
    const double *m = camera->image_to_input, *e = camera->camera_to_ego;
    double to_input[3][3] = {{m[0], m[1], m[2]}, {m[3], m[4], m[5]}, {0.0, 0.0, 1.0}};
    double pixel[3] = {u, v, 1.0}, original[3], ray[3], k[3][3];
    solve3(to_input, pixel, original);
    for (int i = 0; i < 9; ++i)
        k[i / 3][i % 3] = camera->intrinsics[i];
    solve3(k, original, ray);
    for (int i = 0; i < 3; ++i) {
        p[i] = e[4 * i] * ray[0] * z + e[4 * i + 1] * ray[1] * z + e[4 * i + 2] * ray[2] * z +
               e[4 * i + 3];
    }
}

void ref_bev_cells(const spops_bev_geometry *g, int32_t *cell, double *margin)
{
    const spops_bev_shape *s = &g->shape;
    const int32_t cells[3] = {s->num_cells_x, s->num_cells_y, s->num_cells_z};
    int64_t point = 0;
    for (int32_t b = 0; b < s->num_batches; ++b) {
        for (int32_t n = 0; n < s->num_cameras; ++n) {
            const spops_bev_camera *camera = &g->cameras[b * s->num_cameras + n];
            for (int32_t d = 0; d < s->num_depths; ++d) {
                for (int32_t h = 0; h < s->feature_height; ++h) {
                    for (int32_t w = 0; w < s->feature_width; ++w, ++point) {
                        const double u = s->feature_width == 1 ? 0.0
                                                               : (double)w * (g->input_width - 1) /
                                                                     (s->feature_width - 1);
                        const double v =
                            s->feature_height == 1
                                ? 0.0
                                : (double)h * (g->input_height - 1) / (s->feature_height - 1);
                        const double z = g->depths_m != NULL
                                             ? g->depths_m[d]
                                             : g->depth_start_m + d * g->depth_step_m;
                        double p[3];
                        int64_t index[3];
                        int inside = 1;
                        unproject(camera, u, v, z, p);
                        margin[point] = INFINITY;
                        for (int i = 0; i < 3; ++i) {
                            const double x = (p[i] - g->grid_lower_m[i]) / g->cell_size_m[i];
                            const double away = fabs(x - nearbyint(x));
                            if (away < margin[point]) margin[point] = away;
                            inside &= x >= 0.0 && x < (double)cells[i];
                            index[i] = inside ? (int64_t)floor(x) : 0;
                        }
                        cell[point] = -1;
                        if (inside) {
                            cell[point] = (int32_t)(((b * (int64_t)cells[2] + index[2]) * cells[1] +
                                                     index[1]) *
                                                        cells[0] +
                                                    index[0]);
                        }
                    }
                }
            }
        }
    }
}

int64_t ref_bev_pixel(const spops_bev_shape *s, int64_t point)
{
    const int64_t image = (int64_t)s->feature_height * s->feature_width;
    const int64_t camera = point / (image * s->num_depths);
    return camera * image + point % image;
}

static double *counts(int64_t n)
{
    double *c = (double *)calloc((size_t)(n > 0 ? n : 1), sizeof(double));
    if (c == NULL) abort();
    return c;
}

void ref_bevpool_forward(const ref_bev_map *map, int64_t cols, const double *depth,
                         const double *feat, ref_tensor *out)
{
    double *points = counts(map->num_cells);
    for (int64_t i = 0; i < map->num_points; ++i) {
        const double w = depth[map->depth_of[i]];
        const double *row = feat + map->feat_of[i] * cols;
        double *value = out->value + map->cell_of[i] * cols;
        double *scale = out->scale + map->cell_of[i] * cols;
        points[map->cell_of[i]] += 1.0;
        for (int64_t c = 0; c < cols; ++c) {
            value[c] += w * row[c];
            scale[c] += fabs(w * row[c]);
        }
    }
    // A product and at most points - 1 additions; the product here is not rounded to f32.
    for (int64_t i = 0; i < map->num_cells * cols; ++i)
        out->roundings[i] = points[i / cols];
    free(points);
}

void ref_bevpool_backward(const ref_bev_map *map, int64_t cols, const double *depth,
                          const double *feat, const double *grad_out, ref_tensor *grad_depth,
                          ref_tensor *grad_feat)
{
    for (int64_t i = 0; i < map->num_points; ++i) {
        const int64_t p = map->depth_of[i], j = map->feat_of[i];
        const double *g = grad_out + map->cell_of[i] * cols, *row = feat + j * cols;
        for (int64_t c = 0; c < cols; ++c) {
            grad_depth->value[p] += row[c] * g[c];
            grad_depth->scale[p] += fabs(row[c] * g[c]);
            grad_feat->value[j * cols + c] += depth[p] * g[c];
            grad_feat->scale[j * cols + c] += fabs(depth[p] * g[c]);
            grad_feat->roundings[j * cols + c] += 1.0;
        }
        grad_depth->roundings[p] += (double)cols;
    }
}

// Where in a layout the element i of a tensor with channels last is.
static int64_t place_of(const ref_tensor *last, spops_bev_layout layout, int64_t num_batches,
                        int64_t i)
{
    const int64_t cells = last->rows / num_batches, row = i / last->cols, c = i % last->cols;
    if (layout == SPOPS_BEV_CHANNELS_LAST) return i;
    return (row / cells * last->cols + c) * cells + row % cells;
}

void ref_bev_to_layout(const ref_tensor *last, spops_bev_layout layout, int64_t num_batches,
                       ref_tensor *out)
{
    for (int64_t i = 0; i < last->rows * last->cols; ++i) {
        const int64_t to = place_of(last, layout, num_batches, i);
        out->value[to] = last->value[i];
        out->scale[to] = last->scale[i];
        out->roundings[to] = last->roundings[i];
    }
}

void ref_bev_from_layout(const double *values, spops_bev_layout layout, int64_t num_batches,
                         ref_tensor *last)
{
    for (int64_t i = 0; i < last->rows * last->cols; ++i)
        last->value[i] = values[place_of(last, layout, num_batches, i)];
}
