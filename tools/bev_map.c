// SPDX-License-Identifier: Apache-2.0
#include "tools/bev_map.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/parallel.h"

#define MARGIN_PX    14
#define TITLE_PX     34
#define LEGEND_PX    44
#define TEXT_PX      13.0
#define SMALL_PX     12.0
#define RING_STEP_M  10.0
#define SMOOTH_REACH 2
#define SMOOTH_CELLS 0.7

static const colour paper = {18, 20, 26};
static const colour ink = {232, 234, 240};
static const colour faint = {150, 156, 168};
static const colour white = {255, 255, 255};

// ---- Grid and pixels --------------------------------------------------------------------------

// A map pixel's place: x forward is up, y left is left.
static void place_of(const spops_bev_geometry *g, int side, double px, double py, double m[2])
{
    const double extent_x = g->shape.num_cells_x * g->cell_size_m[0];
    const double extent_y = g->shape.num_cells_y * g->cell_size_m[1];
    m[0] = g->grid_lower_m[0] + extent_x * (1.0 - py / side);
    m[1] = g->grid_lower_m[1] + extent_y * (1.0 - px / side);
}

static void pixel_of(const spops_bev_geometry *g, int side, double x, double y, double px[2])
{
    const double extent_x = g->shape.num_cells_x * g->cell_size_m[0];
    const double extent_y = g->shape.num_cells_y * g->cell_size_m[1];
    px[0] = side * (1.0 - (y - g->grid_lower_m[1]) / extent_y);
    px[1] = side * (1.0 - (x - g->grid_lower_m[0]) / extent_x);
}

// The vehicle from above, its origin at (x, y), looking up.
static void draw_vehicle(picture *p, double x, double y, double px_per_m)
{
    static const double body[][2] = {{3.9, 0.55},  {3.6, 0.85},   {-0.6, 0.95}, {-0.9, 0.7},
                                     {-0.9, -0.7}, {-0.6, -0.95}, {3.6, -0.85}, {3.9, -0.55}};
    static const double glass[][2] = {{2.6, 0.72}, {1.9, 0.62}, {1.9, -0.62}, {2.6, -0.72}};
    const double outline = 0.22;
    double xy[8][2];
    for (int pass = 0; pass < 2; ++pass) { // a dark rim, then the body
        for (int i = 0; i < 8; ++i) {
            const double grow = pass == 0 ? outline : 0.0;
            xy[i][0] = x - px_per_m * (body[i][1] + (body[i][1] > 0.0 ? grow : -grow));
            xy[i][1] = y - px_per_m * (body[i][0] + (body[i][0] > 1.0 ? grow : -grow));
        }
        const colour rim = {10, 10, 14}, vehicle = {255, 214, 10};
        picture_polygon(p, (const double(*)[2])xy, 8, pass == 0 ? rim : vehicle, 1.0);
    }
    for (int i = 0; i < 4; ++i) {
        xy[i][0] = x - px_per_m * glass[i][1];
        xy[i][1] = y - px_per_m * glass[i][0];
    }
    picture_polygon(p, (const double(*)[2])xy, 4, paper, 0.9);
}

// Rings of distance, the vehicle, and a bar of scale.
static void draw_overlay(const spops_bev_geometry *g, picture *map)
{
    const int side = map->width;
    const double px_per_m = side / (g->shape.num_cells_x * g->cell_size_m[0]);
    const double reach = fmax(fabs(g->grid_lower_m[0]), fabs(g->grid_lower_m[1]));
    double centre[2];

    pixel_of(g, side, 0.0, 0.0, centre);
    for (double r = RING_STEP_M; r < reach; r += RING_STEP_M) {
        char label[16];
        const bool main_ring = fmod(r, 2.0 * RING_STEP_M) < 0.5;
        picture_ring(map, centre[0], centre[1], r * px_per_m, 1.0, white, main_ring ? 0.30 : 0.13);
        if (!main_ring) continue;
        snprintf(label, sizeof label, "%.0f m", r);
        const double x = centre[0] + 0.7071 * r * px_per_m + 4.0;
        const double y = centre[1] - 0.7071 * r * px_per_m - 2.0;
        picture_rect(map, x - 3.0, y - SMALL_PX, picture_text_width(SMALL_PX, label) + 6.0,
                     SMALL_PX + 4.0, paper, 0.55);
        picture_text(map, x, y, SMALL_PX, white, label);
    }
    draw_vehicle(map, centre[0], centre[1], px_per_m);
    // Ten metres or, in a small grid, one.
    const double length_m = reach >= 20.0 ? 10.0 : 1.0;
    picture_rect(map, 8, side - 30, length_m * px_per_m + 54.0, 22, paper, 0.55);
    picture_scale_bar(map, 14, side - 19, length_m * px_per_m, SMALL_PX, white,
                      length_m > 1.0 ? "10 m" : "1 m");
}

// ---- From pooled cells ------------------------------------------------------------------------

// Colour of one cell as linear light, given its pooled channels.
static void cell_look(const double *cell, bev_map_kind kind, const double range[2], double rgb[3])
{
    const double density = cell[SIM_CHANNEL_ONE];
    rgb[0] = rgb[1] = rgb[2] = 0.0;
    if (!(density > 0.0)) return;
    if (kind == BEV_MAP_COLOUR) {
        for (int k = 0; k < 3; ++k)
            rgb[k] = cell[SIM_CHANNEL_COLOUR + k] / density;
    } else {
        // The winning class, softly: what stands on the ground hides the ground under it.
        double total = 0.0;
        for (int k = 1; k < SCENE_NUM_CLASSES; ++k) {
            const uint8_t *c = scene_class_colour((scene_class)k);
            const double share = cell[SIM_CHANNEL_CLASS + k - 1] / density;
            const double weight = share > 0.0 ? pow(share, 2.5) : 0.0;
            total += weight;
            for (int i = 0; i < 3; ++i)
                rgb[i] += weight * pow(c[i] / 255.0, 2.2);
        }
        for (int i = 0; i < 3 && total > 0.0; ++i)
            rgb[i] /= total;
    }
    // Shade by density between the sparsest that shows and what a well seen cell has.
    const double level = log(density / range[0]) / log(range[1] / range[0]);
    const double shade = level < 0.0 ? 0.0 : level > 1.0 ? 1.0 : level;
    for (int i = 0; i < 3; ++i)
        rgb[i] *= 0.08 * (shade > 0.0) + 0.92 * shade;
}

// The pooled channels around a cell, a bell of SMOOTH_CELLS wide: bins deeper than a cell leave
// cells empty between full ones, which the eye takes for structure.
static void cell_around(const spops_bev_geometry *g, const float *pooled, int64_t cols, int ix,
                        int iy, double *cell)
{
    const int nx = g->shape.num_cells_x, ny = g->shape.num_cells_y;
    double total = 0.0;
    memset(cell, 0, SIM_MIN_COLS * sizeof *cell);
    for (int dy = -SMOOTH_REACH; dy <= SMOOTH_REACH; ++dy)
        for (int dx = -SMOOTH_REACH; dx <= SMOOTH_REACH; ++dx) {
            const int x = ix + dx, y = iy + dy;
            if (x < 0 || y < 0 || x >= nx || y >= ny) continue;
            const double weight = exp(-0.5 * (dx * dx + dy * dy) / (SMOOTH_CELLS * SMOOTH_CELLS));
            total += weight;
            for (int z = 0; z < g->shape.num_cells_z; ++z) {
                const float *from = pooled + (((int64_t)z * ny + y) * nx + x) * cols;
                for (int k = 0; k < SIM_MIN_COLS; ++k)
                    cell[k] += weight * from[k];
            }
        }
    for (int k = 0; k < SIM_MIN_COLS; ++k)
        cell[k] /= total;
}

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

bool bev_map_pooled(const spops_bev_geometry *g, const float *pooled, int64_t cols,
                    bev_map_kind kind, int side, double range[2], picture *out)
{
    const int nx = g->shape.num_cells_x, ny = g->shape.num_cells_y;
    const int64_t area = (int64_t)nx * ny;
    double(*cells)[SIM_MIN_COLS] = malloc((size_t)area * sizeof *cells);
    float *densities = malloc((size_t)area * sizeof *densities);
    int64_t num = 0;

    range[0] = 1e-3, range[1] = 1.0;
    memset(out, 0, sizeof *out);
    if (cells == NULL || densities == NULL || !picture_create(side, side, paper, out)) {
        free(cells);
        free(densities);
        return false;
    }
    for (int64_t i = 0; i < area; ++i) {
        cell_around(g, pooled, cols, (int)(i % nx), (int)(i / nx), cells[i]);
        if (cells[i][SIM_CHANNEL_ONE] > 1e-4) densities[num++] = (float)cells[i][SIM_CHANNEL_ONE];
    }
    if (num > 0) {
        qsort(densities, (size_t)num, sizeof *densities, compare_floats);
        range[0] = 0.5 * densities[num / 20];
        range[1] = densities[num - 1 - num / (kind == BEV_MAP_DENSITY ? 200 : 2)];
        if (!(range[1] > 1.5 * range[0])) range[1] = 1.5 * range[0];
    }
    for (int y = 0; y < side; ++y)
        for (int x = 0; x < side; ++x) {
            double m[2], rgb[3];
            place_of(g, side, x + 0.5, y + 0.5, m);
            const int ix = (int)floor((m[0] - g->grid_lower_m[0]) / g->cell_size_m[0]);
            const int iy = (int)floor((m[1] - g->grid_lower_m[1]) / g->cell_size_m[1]);
            if (ix < 0 || iy < 0 || ix >= nx || iy >= ny) continue;
            const double *cell = cells[(int64_t)iy * nx + ix];
            if (kind == BEV_MAP_DENSITY) {
                const double density = fmax(cell[SIM_CHANNEL_ONE], range[0]);
                const double t = log(density / range[0]) / log(range[1] / range[0]);
                picture_set(out, x, y, picture_ramp(t));
                continue;
            }
            cell_look(cell, kind, range, rgb);
            const colour c = {picture_srgb(rgb[0]), picture_srgb(rgb[1]), picture_srgb(rgb[2])};
            const colour lit = {c.r > paper.r ? c.r : paper.r, c.g > paper.g ? c.g : paper.g,
                                c.b > paper.b ? c.b : paper.b};
            picture_set(out, x, y, lit);
        }
    free(cells);
    free(densities);
    draw_overlay(g, out);
    return true;
}

typedef struct scene_rows {
    const spops_bev_geometry *g;
    const scene *s;
    picture *out;
} scene_rows;

static void draw_scene_rows(const void *work, int64_t begin, int64_t end)
{
    enum { SAMPLES = 3 };
    const scene_rows *job = (const scene_rows *)work;
    const int side = job->out->width;
    for (int y = (int)begin; y < (int)end; ++y)
        for (int x = 0; x < side; ++x) {
            double rgb[3] = {0.0, 0.0, 0.0};
            for (int i = 0; i < SAMPLES * SAMPLES; ++i) {
                double m[2];
                place_of(job->g, side, x + (i % SAMPLES + 0.5) / SAMPLES,
                         y + (i / SAMPLES + 0.5) / SAMPLES, m);
                const double origin[3] = {m[0], m[1], 80.0}, down[3] = {0.0, 0.0, -1.0};
                const scene_hit hit = scene_cast(job->s, origin, down, true);
                const uint8_t *c = scene_class_colour(hit.what);
                // The class's colour with a little of the light that falls there.
                const double light =
                    0.2126 * hit.rgb[0] + 0.7152 * hit.rgb[1] + 0.0722 * hit.rgb[2];
                for (int k = 0; k < 3; ++k)
                    rgb[k] += pow(c[k] / 255.0, 2.2) * (0.82 + 0.4 * fmin(light, 0.6));
            }
            const double share = 1.0 / (SAMPLES * SAMPLES);
            const colour c = {picture_srgb(share * rgb[0]), picture_srgb(share * rgb[1]),
                              picture_srgb(share * rgb[2])};
            picture_set(job->out, x, y, c);
        }
}

bool bev_map_scene(const spops_bev_geometry *g, const scene *s, int side, picture *out)
{
    if (!picture_create(side, side, paper, out)) return false;
    const scene_rows work = {g, s, out};
    parallel_for(side, 8, draw_scene_rows, &work);
    draw_overlay(g, out);
    return true;
}

// ---- Sheets -----------------------------------------------------------------------------------

static void frame(picture *sheet, int x, int y, int width, int height)
{
    picture_rect(sheet, x - 1, y - 1, width + 2, height + 2, faint, 0.5);
}

double class_legend(picture *sheet, double x, double y)
{
    for (int k = 1; k < SCENE_NUM_CLASSES; ++k) {
        const uint8_t *rgb = scene_class_colour((scene_class)k);
        const colour c = {rgb[0], rgb[1], rgb[2]};
        picture_rect(sheet, x, y, 13, 13, c, 1.0);
        x += 19 +
             picture_text(sheet, x + 19, y + 11, TEXT_PX, ink, scene_class_name((scene_class)k)) +
             18;
    }
    return x;
}

static void draw_class_legend(picture *sheet, double x, double y)
{
    x = class_legend(sheet, x, y);
    draw_vehicle(sheet, x + 6, y + 10, 3.6);
    picture_text(sheet, x + 19, y + 11, TEXT_PX, ink, "us, looking up");
}

// The ramp with `num` ticks, each at a place 0 to 1 with its label.
static void draw_ramp_legend(picture *sheet, double x, double y, const char *what,
                             const double *places, const char (*labels)[16], int num)
{
    enum { LENGTH = 300 };
    x += picture_text(sheet, x, y + 11, TEXT_PX, ink, what) + 14;
    for (int i = 0; i < LENGTH; ++i)
        picture_rect(sheet, x + i, y, 1, 9, picture_ramp((i + 0.5) / LENGTH), 1.0);
    for (int i = 0; i < num; ++i) {
        const double at = x + places[i] * LENGTH, width = picture_text_width(10.0, labels[i]);
        picture_rect(sheet, at - 0.5, y + 9, 1, 3, ink, 1.0);
        picture_text(sheet, at - 0.5 * width, y + 21, 10.0, ink, labels[i]);
    }
}

bool bev_map_sheet(const picture *panels, const char *const *titles, int num_panels,
                   const char *caption, const double *densities, picture *out)
{
    int width = MARGIN_PX, height = 0;
    for (int i = 0; i < num_panels; ++i) {
        width += panels[i].width + MARGIN_PX;
        if (panels[i].height > height) height = panels[i].height;
    }
    if (!picture_create(width, height + TITLE_PX + LEGEND_PX + MARGIN_PX + 4, paper, out))
        return false;
    int x = MARGIN_PX;
    for (int i = 0; i < num_panels; ++i) {
        picture_text(out, x, 24, 19.0, ink, titles[i]);
        frame(out, x, TITLE_PX, panels[i].width, panels[i].height);
        picture_copy(out, x, TITLE_PX, &panels[i]);
        x += panels[i].width + MARGIN_PX;
    }
    const int y = TITLE_PX + height + 10;
    if (densities == NULL) {
        draw_class_legend(out, MARGIN_PX, y);
    } else {
        const double places[] = {0.0, 0.5, 1.0};
        char labels[3][16];
        for (int i = 0; i < 3; ++i)
            snprintf(labels[i], sizeof labels[i], "%.2g",
                     densities[0] * pow(densities[1] / densities[0], places[i]));
        draw_ramp_legend(out, MARGIN_PX, y, "sum of depth weights in a cell", places,
                         (const char(*)[16])labels, 3);
    }
    picture_text(out, MARGIN_PX, y + 36, SMALL_PX, faint, caption);
    return true;
}

bool camera_sheet(const picture *views, const char *const *names, int num_views, int columns,
                  const double *near_far, picture *out)
{
    enum { GAP = 4 };
    const int legend = near_far != NULL ? 28 : 0;
    int width = 1, height = 1;
    for (int i = 0; i < num_views; ++i) {
        if (views[i].width > width) width = views[i].width;
        if (views[i].height > height) height = views[i].height;
    }
    const int rows = (num_views + columns - 1) / columns;
    if (!picture_create(columns * (width + GAP) + GAP, rows * (height + GAP) + GAP + legend, paper,
                        out))
        return false;
    for (int i = 0; i < num_views; ++i) {
        const int x = GAP + i % columns * (width + GAP), y = GAP + i / columns * (height + GAP);
        picture_copy(out, x, y, &views[i]);
        picture_rect(out, x + 4, y + 4, picture_text_width(SMALL_PX, names[i]) + 8.0, 17, paper,
                     0.6);
        picture_text(out, x + 8, y + 16, SMALL_PX, white, names[i]);
    }
    if (near_far != NULL) {
        const double metres[] = {near_far[1], 20.0, 10.0, 5.0, near_far[0]};
        double places[5];
        char labels[5][16];
        for (int i = 0; i < 5; ++i) {
            places[i] = log(near_far[1] / metres[i]) / log(near_far[1] / near_far[0]);
            snprintf(labels[i], sizeof labels[i], "%s%.0f m", i == 0 ? ">" : "", metres[i]);
        }
        draw_ramp_legend(out, GAP + 4, rows * (height + GAP) + GAP + 3, "depth", places,
                         (const char(*)[16])labels, 5);
    }
    return true;
}
