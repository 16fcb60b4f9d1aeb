// SPDX-License-Identifier: Apache-2.0
#include "tools/simulate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/parallel.h"
#include "support/random.h"

#define SUB_RAYS 8 // per side of a feature pixel

// A ray through original pixel (u, v) is m * (u, v, 1); camera depth 1 at ray parameter 1.
typedef struct lens {
    double m[9];
    double origin[3];
} lens;

static bool fail(char *error, size_t error_bytes, const char *what)
{
    snprintf(error, error_bytes, "%s", what);
    return false;
}

static bool invert3(const double a[9], double out[9])
{
    const double c0 = a[4] * a[8] - a[5] * a[7], c1 = a[5] * a[6] - a[3] * a[8];
    const double c2 = a[3] * a[7] - a[4] * a[6];
    const double det = a[0] * c0 + a[1] * c1 + a[2] * c2;
    if (!isfinite(det) || det == 0.0) return false;
    out[0] = c0 / det, out[1] = (a[2] * a[7] - a[1] * a[8]) / det;
    out[2] = (a[1] * a[5] - a[2] * a[4]) / det;
    out[3] = c1 / det, out[4] = (a[0] * a[8] - a[2] * a[6]) / det;
    out[5] = (a[2] * a[3] - a[0] * a[5]) / det;
    out[6] = c2 / det, out[7] = (a[1] * a[6] - a[0] * a[7]) / det;
    out[8] = (a[0] * a[4] - a[1] * a[3]) / det;
    return true;
}

static void multiply3(const double a[9], const double b[9], double out[9])
{
    for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j)
            out[3 * i + j] = a[3 * i] * b[j] + a[3 * i + 1] * b[3 + j] + a[3 * i + 2] * b[6 + j];
}

// input: rays through px of the network's input; else of the original image.
static bool make_lens(const spops_bev_camera *camera, bool input, lens *out)
{
    const double *pose = camera->camera_to_ego, *a = camera->image_to_input;
    double to_ray[9], rotated[9];
    if (!invert3(camera->intrinsics, to_ray)) return false;
    const double rotation[9] = {pose[0], pose[1], pose[2], pose[4], pose[5],
                                pose[6], pose[8], pose[9], pose[10]};
    multiply3(rotation, to_ray, rotated);
    for (int i = 0; i < 3; ++i)
        out->origin[i] = pose[4 * i + 3];
    memcpy(out->m, rotated, sizeof rotated);
    if (!input) return true;
    const double affine[9] = {a[0], a[1], a[2], a[3], a[4], a[5], 0.0, 0.0, 1.0};
    double to_image[9];
    if (!invert3(affine, to_image)) return false;
    multiply3(rotated, to_image, out->m);
    return true;
}

static scene_hit look(const scene *s, const lens *through, double u, double v)
{
    double direction[3];
    for (int i = 0; i < 3; ++i)
        direction[i] = through->m[3 * i] * u + through->m[3 * i + 1] * v + through->m[3 * i + 2];
    return scene_cast(s, through->origin, direction, true);
}

// ---- Depths and features ----------------------------------------------------------------------

static double bin_depth(const spops_bev_geometry *g, int d)
{
    return g->depths_m != NULL ? g->depths_m[d] : g->depth_start_m + d * g->depth_step_m;
}

// Spread one ray that ends at `depth` over the bins: a bell around it, its sum `weight`.
static void spread(const spops_bev_geometry *g, double depth, double weight, double *bins)
{
    const int last = g->shape.num_depths - 1;
    const double step = last > 0 ? (bin_depth(g, last) - bin_depth(g, 0)) / last : 1.0;
    const double width = 0.35 * step + 0.004 * depth, reach = 3.0 * width;
    double total = 0.0;
    if (depth > bin_depth(g, last) + 0.5 * step || depth < bin_depth(g, 0) - 0.5 * step) return;
    for (int pass = 0; pass < 2; ++pass)
        for (int d = 0; d <= last; ++d) {
            const double off = bin_depth(g, d) - depth;
            if (off < -reach) continue;
            if (off > reach) break;
            const double bell = exp(-0.5 * off * off / (width * width));
            if (pass == 0)
                total += bell;
            else
                bins[d] += weight * bell / total;
        }
}

static double hashed(uint64_t i, uint64_t j)
{
    const uint64_t z = i * RANDOM_STEP + j * 0xd1342543de82ef95u + 0x632be59bd9b4e019u;
    return (double)(random_mix(z) >> 11) * 0x1p-52 - 1.0;
}

static void fill_pixel(const scene *s, const spops_bev_geometry *g, const lens *through, int h,
                       int w, int64_t cols, double *bins, float *depth, float *row)
{
    const int rows = g->shape.feature_height, columns = g->shape.feature_width;
    const int num_depths = g->shape.num_depths;
    const double du = columns > 1 ? (g->input_width - 1.0) / (columns - 1.0) : g->input_width;
    const double dv = rows > 1 ? (g->input_height - 1.0) / (rows - 1.0) : g->input_height;
    const double far_m = bin_depth(g, num_depths - 1);
    double known[SIM_MIN_COLS] = {0.0};
    int seen = 0;

    memset(bins, 0, (size_t)num_depths * sizeof *bins);
    for (int i = 0; i < SUB_RAYS * SUB_RAYS; ++i) {
        const double u = (w + (i % SUB_RAYS + 0.5) / SUB_RAYS - 0.5) * du;
        const double v = (h + (i / SUB_RAYS + 0.5) / SUB_RAYS - 0.5) * dv;
        const scene_hit hit = look(s, through, u, v);
        // The ray's third camera coordinate is 1, so its parameter is the camera's depth.
        if (hit.what == SCENE_SKY || hit.distance > far_m) continue;
        spread(g, hit.distance, 1.0 / (SUB_RAYS * SUB_RAYS), bins);
        known[SIM_CHANNEL_CLASS + (int)hit.what - 1] += 1.0;
        for (int k = 0; k < 3; ++k)
            known[SIM_CHANNEL_COLOUR + k] += hit.rgb[k] < 1.0f ? hit.rgb[k] : 1.0f;
        ++seen;
    }
    for (int k = SIM_CHANNEL_CLASS; k < SIM_MIN_COLS && seen > 0; ++k)
        known[k] /= seen;
    known[SIM_CHANNEL_ONE] = 1.0;
    for (int64_t c = 0; c < cols; ++c) {
        if (c < SIM_MIN_COLS) {
            row[c] = (float)known[c];
            continue;
        }
        double turn = 3.0 * hashed((uint64_t)c, 0) + 0.02 * (h + w);
        for (int k = 1; k < SIM_MIN_COLS; ++k)
            turn += 2.0 * hashed((uint64_t)c, (uint64_t)k) * known[k];
        row[c] = (float)sin(turn);
    }
    for (int d = 0; d < num_depths; ++d)
        depth[(int64_t)d * rows * columns] = (float)bins[d];
}

typedef struct image_rows {
    const scene *s;
    const spops_bev_geometry *g;
    const lens *through;
    int64_t cols;
    float *depth, *feat;
    bool *ok; // false where there was no memory
} image_rows;

static void simulate_rows(const void *work, int64_t begin, int64_t end)
{
    const image_rows *job = (const image_rows *)work;
    const int columns = job->g->shape.feature_width;
    double *bins = malloc((size_t)job->g->shape.num_depths * sizeof *bins);
    if (bins == NULL) __atomic_store_n(job->ok, false, __ATOMIC_RELAXED);
    for (int h = (int)begin; h < (int)end; ++h)
        for (int w = 0; w < columns && bins != NULL; ++w) {
            const int64_t pixel = (int64_t)h * columns + w;
            fill_pixel(job->s, job->g, job->through, h, w, job->cols, bins, job->depth + pixel,
                       job->feat + pixel * job->cols);
        }
    free(bins);
}

bool simulate(const scene *s, const spops_bev_geometry *g, int64_t cols,
              void (*progress)(int done, int all), simulation *out, char *error, size_t error_bytes)
{
    const int64_t num_images = (int64_t)g->shape.num_batches * g->shape.num_cameras;
    const int rows = g->shape.feature_height, columns = g->shape.feature_width;
    const int64_t area = (int64_t)rows * columns;

    memset(out, 0, sizeof *out);
    if (cols < SIM_MIN_COLS) return fail(error, error_bytes, "too few channels for the simulation");
    out->cols = cols;
    out->num_features = num_images * area;
    out->num_depths = out->num_features * g->shape.num_depths;
    out->depth = calloc((size_t)out->num_depths, sizeof *out->depth);
    out->feat = calloc((size_t)(out->num_features * cols), sizeof *out->feat);
    bool ok = out->depth != NULL && out->feat != NULL;
    if (!ok) fail(error, error_bytes, "no memory for the simulation");
    for (int64_t n = 0; ok && n < num_images; ++n) {
        lens through;
        if (!make_lens(&g->cameras[n], true, &through)) {
            snprintf(error, error_bytes, "cameras[%d] is singular", (int)n);
            ok = false;
            break;
        }
        float *depth = out->depth + n * g->shape.num_depths * area;
        float *feat = out->feat + n * area * cols;
        const image_rows work = {s, g, &through, cols, depth, feat, &ok};
        parallel_for(rows, 1, simulate_rows, &work);
        if (!ok) fail(error, error_bytes, "no memory for the simulation");
        if (progress != NULL) progress((int)n + 1, (int)num_images);
    }
    if (!ok) simulation_free(out);
    return ok;
}

void simulation_free(simulation *sim)
{
    free(sim->depth);
    free(sim->feat);
    memset(sim, 0, sizeof *sim);
}

typedef struct view_rows {
    const scene *s;
    const lens *through;
    double step_u, step_v;
    int samples;
    picture *view, *depths;
} view_rows;

static void simulate_view_rows(const void *work, int64_t begin, int64_t end)
{
    const view_rows *job = (const view_rows *)work;
    const int samples = job->samples;
    for (int y = (int)begin; y < (int)end; ++y)
        for (int x = 0; x < job->view->width; ++x) {
            double rgb[3] = {0.0, 0.0, 0.0}, near = 0.0;
            for (int i = 0; i < samples * samples; ++i) {
                const double u = (x + (i % samples + 0.5) / samples) * job->step_u;
                const double v = (y + (i / samples + 0.5) / samples) * job->step_v;
                const scene_hit hit = look(job->s, job->through, u - 0.5, v - 0.5);
                for (int k = 0; k < 3; ++k)
                    rgb[k] += hit.rgb[k] < 1.0f ? hit.rgb[k] : 1.0f;
                if (hit.what != SCENE_SKY)
                    near += fmin(1.0, fmax(0.0, log(SIM_VIEW_FAR_M / hit.distance) /
                                                    log(SIM_VIEW_FAR_M / SIM_VIEW_NEAR_M)));
            }
            const double share = 1.0 / (samples * samples);
            const colour c = {picture_srgb(share * rgb[0]), picture_srgb(share * rgb[1]),
                              picture_srgb(share * rgb[2])};
            picture_set(job->view, x, y, c);
            picture_set(job->depths, x, y, picture_ramp(share * near));
        }
}

bool simulate_view(const scene *s, const spops_bev_camera *camera, int image_width,
                   int image_height, int width, int samples, picture *view, picture *depths,
                   char *error, size_t error_bytes)
{
    const colour black = {0, 0, 0};
    const int height = (int)((int64_t)width * image_height / image_width);
    lens through;

    memset(view, 0, sizeof *view);
    memset(depths, 0, sizeof *depths);
    if (!make_lens(camera, false, &through)) return fail(error, error_bytes, "camera is singular");
    if (!picture_create(width, height > 0 ? height : 1, black, view) ||
        !picture_create(width, height > 0 ? height : 1, black, depths)) {
        picture_destroy(view);
        picture_destroy(depths);
        return fail(error, error_bytes, "no memory for a camera's picture");
    }
    const double step_u = (double)image_width / view->width;
    const double step_v = (double)image_height / view->height;
    const view_rows work = {s, &through, step_u, step_v, samples, view, depths};
    parallel_for(view->height, 4, simulate_view_rows, &work);
    return true;
}

// ---- The reference ----------------------------------------------------------------------------

// Cell of a point, -1 outside. *border: a coordinate is within rounding of a cell's border.
static int32_t cell_of(const spops_bev_geometry *g, int64_t batch, const double p[3], bool *border)
{
    const int32_t cells[3] = {g->shape.num_cells_x, g->shape.num_cells_y, g->shape.num_cells_z};
    int64_t at[3];
    bool inside = true;
    *border = false;
    for (int i = 0; i < 3; ++i) {
        const double x = (p[i] - g->grid_lower_m[i]) / g->cell_size_m[i], low = floor(x);
        if (!isfinite(x)) return -1;
        if (x - rint(x) < 1e-7 && rint(x) - x < 1e-7) *border = true;
        inside = inside && low >= 0.0 && low < cells[i];
        at[i] = inside ? (int64_t)low : 0;
    }
    if (!inside) return -1;
    return (int32_t)(((batch * cells[2] + at[2]) * cells[1] + at[1]) * cells[0] + at[0]);
}

bool reference_pool(const spops_bev_geometry *g, int64_t cols, const double *depth,
                    const double *feat, const int32_t *cell_of_point, reference *out, char *error,
                    size_t error_bytes)
{
    const spops_bev_shape *shape = &g->shape;
    const int rows = shape->feature_height, columns = shape->feature_width;
    const int64_t area = (int64_t)rows * columns;
    const int64_t num_cells =
        (int64_t)shape->num_batches * shape->num_cells_z * shape->num_cells_y * shape->num_cells_x;

    memset(out, 0, sizeof *out);
    out->sum = calloc((size_t)(num_cells * cols), sizeof *out->sum);
    out->magnitude = calloc((size_t)(num_cells * cols), sizeof *out->magnitude);
    out->count = calloc((size_t)num_cells, sizeof *out->count);
    if (out->sum == NULL || out->magnitude == NULL || out->count == NULL) {
        reference_free(out);
        return fail(error, error_bytes, "no memory for the reference");
    }
    for (int64_t n = 0; n < (int64_t)shape->num_batches * shape->num_cameras; ++n) {
        lens through;
        if (!make_lens(&g->cameras[n], true, &through)) {
            reference_free(out);
            return fail(error, error_bytes, "camera is singular");
        }
        for (int64_t i = 0; i < shape->num_depths * area; ++i) {
            const int w = (int)(i % columns), h = (int)(i / columns % rows);
            const double d = bin_depth(g, (int)(i / area));
            const double u = columns > 1 ? w * (g->input_width - 1.0) / (columns - 1.0) : 0.0;
            const double v = rows > 1 ? h * (g->input_height - 1.0) / (rows - 1.0) : 0.0;
            double p[3];
            for (int k = 0; k < 3; ++k)
                p[k] = through.origin[k] +
                       d * (through.m[3 * k] * u + through.m[3 * k + 1] * v + through.m[3 * k + 2]);
            const int64_t point = n * shape->num_depths * area + i;
            bool border;
            int32_t cell = cell_of(g, n / shape->num_cameras, p, &border);
            if (border && cell_of_point != NULL) {
                cell = cell_of_point[point];
                ++out->num_border;
            }
            if (cell < 0) continue;
            ++out->num_points;
            if (++out->count[cell] > out->longest) out->longest = out->count[cell];
            if (depth[point] == 0.0) continue;
            const double *row = feat + (n * area + i % area) * cols;
            double *sum = out->sum + cell * cols, *magnitude = out->magnitude + cell * cols;
            for (int64_t c = 0; c < cols; ++c) {
                sum[c] += depth[point] * row[c];
                magnitude[c] += fabs(depth[point] * row[c]);
            }
        }
    }
    return true;
}

void reference_free(reference *ref)
{
    free(ref->sum);
    free(ref->magnitude);
    free(ref->count);
    memset(ref, 0, sizeof *ref);
}
