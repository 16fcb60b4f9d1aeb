// SPDX-License-Identifier: Apache-2.0
#include "tools/group_picture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIDE = GROUP_PICTURE_SIDE_PX, MARGIN = 14, TITLE = 34, DIMS = 3 };

static const colour paper = {18, 20, 26}, ink = {232, 234, 240}, faint = {150, 156, 168};

void group_picture_corner(int i, int *x, int *y)
{
    *x = MARGIN + i % GROUP_PICTURE_COLUMNS * (SIDE + MARGIN);
    *y = TITLE + i / GROUP_PICTURE_COLUMNS * (SIDE + TITLE);
}

// Neighbouring numbers far apart on the wheel: steps of the golden ratio, in three brightnesses.
colour group_picture_colour(int64_t group)
{
    const double hue = 6.0 * fmod((double)group * 0.6180339887498949, 1.0);
    const double value = 0.55 + 0.2 * (double)(group % 3), low = 0.3 * value;
    double channels[DIMS];
    for (int c = 0; c < DIMS; ++c) {
        const double away =
            fabs(fmod(hue + 6.0 - 2.0 * c, 6.0) - 3.0); // 3 where the channel is full
        channels[c] = low + (value - low) * fmin(fmax(away - 1.0, 0.0), 1.0);
    }
    return (colour){(uint8_t)lrint(255.0 * channels[0]), (uint8_t)lrint(255.0 * channels[1]),
                    (uint8_t)lrint(255.0 * channels[2])};
}

static int compare(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

// Between which values an axis is drawn: without the outermost hundredth on either side, which would
// make the rest small.
static bool find_range(const float *points, int64_t n, int axis, double range[2])
{
    float *sorted = malloc(((size_t)n + 1) * sizeof *sorted);
    if (sorted == NULL) return false;
    for (int64_t i = 0; i < n; ++i)
        sorted[i] = points[DIMS * i + axis];
    qsort(sorted, (size_t)n, sizeof *sorted, compare);
    range[0] = n > 0 ? (double)sorted[n / 100] : 0.0;
    range[1] = n > 0 ? (double)sorted[n - 1 - n / 100] : 0.0;
    free(sorted);
    return true;
}

static void draw_legend(group_picture *g, int num_panels, const char *const legend[2])
{
    char text[64];
    int x, y;
    group_picture_corner(num_panels, &x, &y); // the place after the last panel
    const double bar_m = pow(10.0, floor(log10(0.7 * SIDE / g->px_per_m)));
    for (int i = 0; i < 2; ++i)
        picture_text(&g->p, x, y + 20 * (i + 1), 14.0, i == 0 ? ink : faint, legend[i]);
    snprintf(text, sizeof text, "%g m", bar_m);
    picture_scale_bar(&g->p, x, y + 70, bar_m * g->px_per_m, 12.0, ink, text);
}

bool group_picture_create(const float *points, int64_t n, int num_panels,
                          const char *const legend[2], group_picture *out)
{
    const int lines = num_panels / GROUP_PICTURE_COLUMNS + 1;
    double ahead[2], left[2];
    *out = (group_picture){.points = points, .n = n};
    if (!find_range(points, n, 0, ahead) || !find_range(points, n, 1, left)) return false;
    double extent = fmax(ahead[1] - ahead[0], left[1] - left[0]);
    if (!(extent > 0.0) || !isfinite(extent)) extent = 1.0;
    out->px_per_m = (SIDE - 1) / extent;
    out->top_m = 0.5 * (ahead[0] + ahead[1] + extent);
    out->left_m = 0.5 * (left[0] + left[1] + extent);
    if (!picture_create(MARGIN + GROUP_PICTURE_COLUMNS * (SIDE + MARGIN),
                        lines * (SIDE + TITLE) + MARGIN, paper, &out->p))
        return false;
    draw_legend(out, num_panels, legend);
    return true;
}

void group_picture_destroy(group_picture *g)
{
    picture_destroy(&g->p);
}

bool group_picture_draw(group_picture *g, int i, const char *title, const int32_t *offsets,
                        const int32_t *rows, int64_t num_groups)
{
    float *highest = malloc((size_t)SIDE * SIDE * sizeof *highest);
    int x0, y0;
    if (highest == NULL) return false;
    for (int k = 0; k < SIDE * SIDE; ++k)
        highest[k] = -INFINITY;
    group_picture_corner(i, &x0, &y0);
    picture_text(&g->p, x0, y0 - 10, 15.0, ink, title);
    for (int64_t group = 0; group < num_groups; ++group)
        for (int32_t e = offsets[group]; e < offsets[group + 1]; ++e) {
            const float *point = g->points + DIMS * (int64_t)rows[e];
            const double x = (g->left_m - (double)point[1]) * g->px_per_m;
            const double y = (g->top_m - (double)point[0]) * g->px_per_m;
            if (!(x >= 0.0 && x < SIDE && y >= 0.0 && y < SIDE)) continue;
            float *at = highest + (int)y * SIDE + (int)x;
            if (!(point[2] > *at)) continue;
            *at = point[2];
            picture_set(&g->p, x0 + (int)x, y0 + (int)y, group_picture_colour(group));
        }
    free(highest);
    return true;
}
