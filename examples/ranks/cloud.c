// SPDX-License-Identifier: Apache-2.0
/* Made clouds of voxels. */
#include "ranks/cloud.h"

#include "ranks/network.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int ranks_cloud_ground(ranks_cloud *c, int64_t voxels)
{
    const int32_t depth = voxels < 100000 ? 40 : 1024;
    c->n = 0;
    c->rows = (int32_t(*)[4])malloc((size_t)(voxels + 64) * sizeof *c->rows);
    for (int32_t x = 0; c->rows != NULL && c->n < voxels; ++x)
        for (int32_t y = 0; y < depth && c->n < voxels; ++y) {
            const int32_t at[4] = {x / 7, y / 5, x / 40, 1};
            const int32_t height = (x / 9 + y / 6) % 11 - 5, wall = x % 53 == 7 || y % 47 == 11;
            const int32_t top = wall ? 12 : 1 + (ranks_number(at, 0, RANKS_CLOUD) > 0.5f);
            for (int32_t z = 0; z < top && c->n < voxels; ++z) {
                const int32_t row[4] = {0, x - 100, y - 17, height + z};
                memcpy(c->rows[c->n++], row, sizeof row);
            }
        }
    return c->rows == NULL;
}

/* Sines and cosines of the places along an axis. */
typedef struct waves {
    int32_t side;
    double step, *sin, *cos;
} waves;

/* The column at (x, y): where the function is far from 0 its slope says how many voxels can be left out. */
static int add_column(ranks_cloud *c, int64_t *room, const waves *w, int32_t x, int32_t y)
{
    const double sx = w->sin[x], cx = w->cos[x], sy = w->sin[y], cy = w->cos[y];
    const double slope = w->step * sqrt(sy * sy + cx * cx) + 1e-12, near = 0.75 * w->step;

    for (int32_t z = 0; z < w->side;) {
        const double sz = w->sin[z], cz = w->cos[z];
        const double f = fabs(sx * cy + sy * cz + sz * cx), far = f - near * sqrt(3.0);
        const double dx = cx * cy - sz * sx, dy = cy * cz - sx * sy, dz = cz * cx - sy * sz;
        if (f < near * sqrt(dx * dx + dy * dy + dz * dz)) {
            const int32_t row[4] = {0, x, y, z};
            if (c->n == *room) {
                void *more = realloc(c->rows, (size_t)(*room *= 2) * sizeof *c->rows);
                if (more == NULL) return 1;
                c->rows = (int32_t(*)[4])more;
            }
            memcpy(c->rows[c->n++], row, sizeof row);
        }
        z += far > slope ? (int32_t)fmin(far / slope, w->side) : 1;
    }
    return 0;
}

int ranks_cloud_gyroid(ranks_cloud *c, int64_t voxels)
{
    waves w = {.side = (int32_t)lround(sqrt((double)voxels / 4.645))};
    int64_t room = voxels + voxels / 8 + 64;
    int failed;

    if (w.side < 8) w.side = 8;
    w.step = 8 * atan(1.0) / w.side;
    w.sin = (double *)malloc((size_t)w.side * sizeof *w.sin);
    w.cos = (double *)malloc((size_t)w.side * sizeof *w.cos);
    c->n = 0;
    c->rows = (int32_t(*)[4])malloc((size_t)room * sizeof *c->rows);
    failed = w.sin == NULL || w.cos == NULL || c->rows == NULL;
    for (int32_t i = 0; i < w.side && !failed; ++i) {
        w.sin[i] = sin(w.step * i);
        w.cos[i] = cos(w.step * i);
    }
    for (int32_t x = 0; x < w.side && !failed; ++x)
        for (int32_t y = 0; y < w.side && !failed; ++y)
            failed = add_column(c, &room, &w, x, y);
    free(w.sin);
    free(w.cos);
    return failed;
}
