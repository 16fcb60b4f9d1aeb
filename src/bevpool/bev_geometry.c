// SPDX-License-Identifier: Apache-2.0
// Geometry of BEV pooling on the host: what a rig, its depth bins and its grid must satisfy, and
// the one matrix per camera that the frustum is computed with.
#include <math.h>
#include <string.h>

#include "bevpool/bev_plan.h"

// A matrix counts as singular when its determinant is this small beside the product of its rows'
// lengths, which is what it would be if the rows were orthogonal.
#define SINGULAR 1e-12
// How far the last row of camera_to_ego may be from 0 0 0 1.
#define LAST_ROW_TOLERANCE 1e-6

static spops_status check_size(spops_context *ctx, const char *call, const char *name, int32_t size)
{
    SPOPS_REQUIRE(ctx, size > 0, "%s: %s is %" PRId32 ", expected at least 1", call, name, size);
    return SPOPS_STATUS_OK;
}

// *count *= factor, both positive and at most INT32_MAX, while it can still be indexed.
static spops_status multiply(spops_context *ctx, const char *call, const char *what, int32_t factor,
                             int64_t *count)
{
    *count *= factor;
    SPOPS_REQUIRE(ctx, *count <= SPOPS_MAX_COUNT,
                  "%s: shape has more than %" PRId64 " %s, the most that can be indexed", call,
                  SPOPS_MAX_COUNT, what);
    return SPOPS_STATUS_OK;
}

spops_status spops_bev_check_shape(spops_context *ctx, const char *call,
                                   const spops_bev_shape *shape, spops_bev_counts *counts)
{
    static const char cells[] = "cells (B*Z*Y*X)", points[] = "points (B*N*D*H*W)";
    const spops_bev_shape *s = shape;

    SPOPS_TRY(spops_check_object(ctx, call, "shape", shape, _Alignof(spops_bev_shape)));
    SPOPS_TRY(check_size(ctx, call, "shape.num_batches", s->num_batches));
    SPOPS_TRY(check_size(ctx, call, "shape.num_cameras", s->num_cameras));
    SPOPS_TRY(check_size(ctx, call, "shape.num_depths", s->num_depths));
    SPOPS_TRY(check_size(ctx, call, "shape.feature_height", s->feature_height));
    SPOPS_TRY(check_size(ctx, call, "shape.feature_width", s->feature_width));
    SPOPS_TRY(check_size(ctx, call, "shape.num_cells_x", s->num_cells_x));
    SPOPS_TRY(check_size(ctx, call, "shape.num_cells_y", s->num_cells_y));
    SPOPS_TRY(check_size(ctx, call, "shape.num_cells_z", s->num_cells_z));

    counts->num_cells = 1;
    SPOPS_TRY(multiply(ctx, call, cells, s->num_batches, &counts->num_cells));
    SPOPS_TRY(multiply(ctx, call, cells, s->num_cells_z, &counts->num_cells));
    SPOPS_TRY(multiply(ctx, call, cells, s->num_cells_y, &counts->num_cells));
    SPOPS_TRY(multiply(ctx, call, cells, s->num_cells_x, &counts->num_cells));
    counts->num_points = 1;
    SPOPS_TRY(multiply(ctx, call, points, s->num_batches, &counts->num_points));
    SPOPS_TRY(multiply(ctx, call, points, s->num_cameras, &counts->num_points));
    counts->num_transforms = counts->num_points;
    SPOPS_TRY(multiply(ctx, call, points, s->feature_height, &counts->num_points));
    SPOPS_TRY(multiply(ctx, call, points, s->feature_width, &counts->num_points));
    counts->num_features = counts->num_points;
    return multiply(ctx, call, points, s->num_depths, &counts->num_points);
}

static spops_status check_finite(spops_context *ctx, const char *call, const char *name,
                                 double value)
{
    SPOPS_REQUIRE(ctx, isfinite(value), "%s: %s is %g, expected a finite number", call, name,
                  value);
    return SPOPS_STATUS_OK;
}

static spops_status check_depths(spops_context *ctx, const char *call, const spops_bev_geometry *g)
{
    const int32_t n = g->shape.num_depths;
    if (g->depths_m == NULL) {
        SPOPS_TRY(check_finite(ctx, call, "depth_start_m", g->depth_start_m));
        SPOPS_TRY(check_finite(ctx, call, "depth_step_m", g->depth_step_m));
        SPOPS_REQUIRE(ctx, n == 1 || g->depth_step_m > 0.0,
                      "%s: depth_step_m is %g, expected more than 0", call, g->depth_step_m);
        SPOPS_REQUIRE(ctx, isfinite(g->depth_start_m + (n - 1) * g->depth_step_m),
                      "%s: depth_step_m is %g, and the last of %" PRId32 " depths is not finite",
                      call, g->depth_step_m, n);
        return SPOPS_STATUS_OK;
    }
    SPOPS_TRY(spops_check_aligned(ctx, call, "depths_m", g->depths_m, _Alignof(double)));
    for (int32_t d = 0; d < n; ++d) {
        const double depth = g->depths_m[d];
        SPOPS_REQUIRE(ctx, isfinite(depth),
                      "%s: depths_m[%" PRId32 "] is %g, expected a finite number", call, d, depth);
        SPOPS_REQUIRE(ctx, d == 0 || depth > g->depths_m[d - 1],
                      "%s: depths_m[%" PRId32 "] is %g, expected more than depths_m[%" PRId32
                      "] = %g",
                      call, d, depth, d - 1, g->depths_m[d - 1]);
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_bev_read_geometry(spops_context *ctx, const char *call,
                                     const spops_bev_geometry *geometry, spops_bev_geometry *read,
                                     spops_bev_counts *counts)
{
    SPOPS_REQUIRE(ctx, geometry != NULL, "%s: geometry is NULL", call);
    memset(read, 0, sizeof *read);
    SPOPS_TRY(spops_read_options(ctx, call, geometry, read, sizeof *read));
    SPOPS_TRY(spops_bev_check_shape(ctx, call, &read->shape, counts));
    SPOPS_TRY(check_size(ctx, call, "input_height", read->input_height));
    SPOPS_TRY(check_size(ctx, call, "input_width", read->input_width));
    SPOPS_TRY(check_depths(ctx, call, read));
    for (int i = 0; i < 3; ++i) {
        SPOPS_REQUIRE(ctx, isfinite(read->grid_lower_m[i]),
                      "%s: grid_lower_m[%d] is %g, expected a finite number", call, i,
                      read->grid_lower_m[i]);
        SPOPS_REQUIRE(ctx, isfinite(read->cell_size_m[i]) && read->cell_size_m[i] > 0.0,
                      "%s: cell_size_m[%d] is %g, expected a finite number above 0", call, i,
                      read->cell_size_m[i]);
    }
    return SPOPS_STATUS_OK;
}

// Calibration

static spops_status check_elements(spops_context *ctx, const char *call, int64_t camera,
                                   const char *name, const double *m, int n)
{
    for (int i = 0; i < n; ++i)
        SPOPS_REQUIRE(ctx, isfinite(m[i]),
                      "%s: cameras[%" PRId64 "].%s[%d] is %g, expected a finite number", call,
                      camera, name, i, m[i]);
    return SPOPS_STATUS_OK;
}

static spops_status singular(spops_context *ctx, const char *call, int64_t camera, const char *name,
                             double determinant)
{
    return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                      "%s: cameras[%" PRId64 "].%s is singular: its determinant is %g", call,
                      camera, name, determinant);
}

// Whether a determinant is nothing beside the lengths of the rows it comes from.
static bool is_singular(double determinant, const double *m, int n, int row_stride)
{
    double scale = 1.0;
    for (int i = 0; i < n; ++i) {
        double square = 0.0;
        for (int j = 0; j < n; ++j)
            square += m[i * row_stride + j] * m[i * row_stride + j];
        scale *= sqrt(square);
    }
    return !isfinite(determinant) || !(fabs(determinant) > SINGULAR * scale);
}

static double determinant3(const double *m, int row_stride)
{
    const double *a = m, *b = m + row_stride, *c = m + 2 * row_stride;
    return a[0] * (b[1] * c[2] - b[2] * c[1]) - a[1] * (b[0] * c[2] - b[2] * c[0]) +
           a[2] * (b[0] * c[1] - b[1] * c[0]);
}

static void invert3(const double *m, double determinant, double *inverse)
{
    for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j) {
            // The cofactor of element (j, i), its signs folded into cyclic indices.
            const int r0 = (j + 1) % 3, r1 = (j + 2) % 3, c0 = (i + 1) % 3, c1 = (i + 2) % 3;
            inverse[3 * i + j] =
                (m[3 * r0 + c0] * m[3 * r1 + c1] - m[3 * r0 + c1] * m[3 * r1 + c0]) / determinant;
        }
}

static void multiply3(const double *a, const double *b, double *product)
{
    for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j)
            product[3 * i + j] =
                a[3 * i] * b[j] + a[3 * i + 1] * b[3 + j] + a[3 * i + 2] * b[6 + j];
}

// T = [R K^-1 A^-1 | t], where A takes original to input px, K rays to original px, and [R | t] the
// camera's frame to the grid's.
static spops_status make_transform(spops_context *ctx, const char *call,
                                   const spops_bev_camera *camera, int64_t index, double *t)
{
    const double *k = camera->intrinsics, *a = camera->image_to_input, *e = camera->camera_to_ego;
    static const double last_row[4] = {0.0, 0.0, 0.0, 1.0};
    double k_inverse[9], a_inverse[9], rays[9], linear[9], rotation[9], det;

    SPOPS_TRY(check_elements(ctx, call, index, "intrinsics", k, 9));
    SPOPS_TRY(check_elements(ctx, call, index, "camera_to_ego", e, 16));
    SPOPS_TRY(check_elements(ctx, call, index, "image_to_input", a, 6));
    for (int i = 0; i < 4; ++i)
        SPOPS_REQUIRE(ctx, fabs(e[12 + i] - last_row[i]) <= LAST_ROW_TOLERANCE,
                      "%s: cameras[%" PRId64 "].camera_to_ego[%d] is %g, expected %g: its last row "
                      "is 0 0 0 1",
                      call, index, 12 + i, e[12 + i], last_row[i]);

    det = determinant3(e, 4);
    if (is_singular(det, e, 3, 4)) return singular(ctx, call, index, "camera_to_ego", det);
    det = a[0] * a[4] - a[1] * a[3];
    if (is_singular(det, a, 2, 3)) return singular(ctx, call, index, "image_to_input", det);
    a_inverse[0] = a[4] / det, a_inverse[1] = -a[1] / det;
    a_inverse[3] = -a[3] / det, a_inverse[4] = a[0] / det;
    a_inverse[2] = -(a_inverse[0] * a[2] + a_inverse[1] * a[5]);
    a_inverse[5] = -(a_inverse[3] * a[2] + a_inverse[4] * a[5]);
    a_inverse[6] = a_inverse[7] = 0.0, a_inverse[8] = 1.0;
    det = determinant3(k, 3);
    if (is_singular(det, k, 3, 3)) return singular(ctx, call, index, "intrinsics", det);
    invert3(k, det, k_inverse);

    for (int i = 0; i < 3; ++i)
        memcpy(rotation + 3 * i, e + 4 * i, 3 * sizeof *e);
    multiply3(k_inverse, a_inverse, rays);
    multiply3(rotation, rays, linear);
    for (int i = 0; i < 3; ++i) {
        memcpy(t + 4 * i, linear + 3 * i, 3 * sizeof *t);
        t[4 * i + 3] = e[4 * i + 3];
    }
    for (int i = 0; i < SPOPS_BEV_TRANSFORM_DOUBLES; ++i)
        SPOPS_REQUIRE(ctx, isfinite(t[i]),
                      "%s: cameras[%" PRId64
                      "] has elements too far apart: its transform's element "
                      "%d is %g",
                      call, index, i, t[i]);
    return SPOPS_STATUS_OK;
}

spops_status spops_bev_make_transforms(spops_context *ctx, const char *call,
                                       const spops_bev_camera *cameras, int64_t num_cameras,
                                       double *transforms)
{
    SPOPS_REQUIRE(ctx, cameras != NULL, "%s: cameras is NULL, expected %" PRId64 " cameras", call,
                  num_cameras);
    SPOPS_TRY(spops_check_aligned(ctx, call, "cameras", cameras, _Alignof(spops_bev_camera)));
    for (int64_t i = 0; i < num_cameras; ++i)
        SPOPS_TRY(make_transform(ctx, call, &cameras[i], i,
                                 transforms + i * SPOPS_BEV_TRANSFORM_DOUBLES));
    return SPOPS_STATUS_OK;
}

spops_status spops_bev_geometry_get_transforms(spops_context *ctx,
                                               const spops_bev_geometry *geometry,
                                               double *transforms)
{
    static const char call[] = "bev_geometry_get_transforms";
    spops_bev_geometry g;
    spops_bev_counts counts;

    SPOPS_TRY(spops_bev_read_geometry(ctx, call, geometry, &g, &counts));
    SPOPS_REQUIRE(ctx, transforms != NULL, "%s: transforms is NULL", call);
    SPOPS_TRY(spops_check_aligned(ctx, call, "transforms", transforms, sizeof *transforms));
    return spops_bev_make_transforms(ctx, call, g.cameras, counts.num_transforms, transforms);
}
