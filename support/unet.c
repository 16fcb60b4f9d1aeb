// SPDX-License-Identifier: Apache-2.0
#include "support/unet.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEVELS = 5, STEM_CHANNELS = 8 }; // the stem's inputs, padded to 16 bytes of f16

static bool add_layer(spops_context *ctx, unet *u, spops_pyramid_relation relation, int level,
                      int64_t in, int64_t out, int count)
{
    static const char *const relations[] = {"", " down", " up"};
    const spops_kernel_map *map = spops_pyramid_map(u->pyramid, relation, level);
    spops_kernel_map_info info = spops_kernel_map_info_default();
    unet_layer *l = &u->layers[u->num_layers];

    if (spops_kernel_map_get_info_sync(ctx, map, &info) != SPOPS_STATUS_OK) return false;
    for (int i = 0; i < u->num_layers; ++i)
        if (u->layers[i].map == map && u->layers[i].in_channels == in &&
            u->layers[i].out_channels == out) {
            u->layers[i].count += count;
            return true;
        }
    snprintf(l->name, sizeof l->name, "level %d%s, %d to %d", level, relations[relation], (int)in,
             (int)out);
    l->map = map;
    l->num_taps = (int32_t)info.num_taps;
    l->num_in = info.num_in;
    l->num_out = info.num_out;
    l->num_pairs = info.num_pairs;
    l->in_channels = in;
    l->out_channels = out;
    l->count = count;
    ++u->num_layers;
    return true;
}

// Two residual blocks: four layers, of which the first has other inputs.
static bool add_blocks(spops_context *ctx, unet *u, int level, int64_t in, int64_t out)
{
    return add_layer(ctx, u, SPOPS_PYRAMID_WITHIN, level, in, out, 1) &&
           add_layer(ctx, u, SPOPS_PYRAMID_WITHIN, level, out, out, 3);
}

bool unet_create(spops_context *ctx, const spops_coords *finest, double width, unet *u)
{
    static const int full[9] = {32, 32, 64, 128, 256, 256, 128, 96, 96};
    spops_pyramid_options options = spops_pyramid_options_default();
    int64_t cs[9];
    bool good;

    memset(u, 0, sizeof *u);
    for (int i = 0; i < 9; ++i)
        cs[i] = ((int64_t)(width * full[i]) + 7) / 8 * 8;
    options.num_levels = LEVELS;
    options.contents = SPOPS_MAP_PAIRS | SPOPS_MAP_ORDER | SPOPS_MAP_REVERSE;
    good = spops_pyramid_create(ctx, finest, &options, &u->pyramid) == SPOPS_STATUS_OK;
    for (int l = 0; l < LEVELS && good; ++l) {
        if (l == 0)
            good = add_layer(ctx, u, SPOPS_PYRAMID_WITHIN, 0, STEM_CHANNELS, cs[0], 1) &&
                   add_layer(ctx, u, SPOPS_PYRAMID_WITHIN, 0, cs[0], cs[0], 1);
        else
            good = add_blocks(ctx, u, l, cs[l - 1], cs[l]);
        if (l + 1 == LEVELS) break;
        good = good && add_blocks(ctx, u, l, cs[8 - l] + cs[l], cs[8 - l]) &&
               add_layer(ctx, u, SPOPS_PYRAMID_DOWN, l, cs[l], cs[l], 1) &&
               add_layer(ctx, u, SPOPS_PYRAMID_UP, l, cs[8 - (l + 1)], cs[8 - l], 1);
    }
    return good;
}

void unet_destroy(unet *u)
{
    spops_pyramid_destroy(u->pyramid);
    u->pyramid = NULL;
}

static int by_row(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;
    for (int c = 0; c < 4; ++c)
        if (x[c] != y[c]) return x[c] < y[c] ? -1 : 1;
    return 0;
}

int32_t *unet_voxels(const float *points, int64_t num_points, int64_t stride, double cell_m,
                     int64_t *num_rows)
{
    int32_t *rows = malloc(((size_t)num_points + 1) * 4 * sizeof *rows);
    int64_t n = 0, kept = 0;

    if (rows == NULL) return NULL;
    for (int64_t i = 0; i < num_points; ++i) {
        const float *p = points + i * stride;
        if (!(fabsf(p[0]) < 1e4f && fabsf(p[1]) < 1e4f && fabsf(p[2]) < 1e4f)) continue;
        rows[4 * n] = 0;
        for (int a = 0; a < 3; ++a)
            rows[4 * n + 1 + a] = (int32_t)floor((double)p[a] / cell_m);
        ++n;
    }
    qsort(rows, (size_t)n, 4 * sizeof *rows, by_row);
    for (int64_t i = 0; i < n; ++i)
        if (i == 0 || by_row(rows + 4 * i, rows + 4 * (i - 1)) != 0)
            memmove(rows + 4 * kept++, rows + 4 * i, 4 * sizeof *rows);
    *num_rows = kept;
    return rows;
}
