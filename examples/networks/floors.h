// SPDX-License-Identifier: Apache-2.0
/* What a part of a network must do at least, and how long that takes. */
#ifndef NETWORKS_FLOORS_H
#define NETWORKS_FLOORS_H

#include <spops/spops.h>

typedef struct work {
    double flops, bytes;
    double exps; /* exponentials, of softmax */
} work;

/* A device's TFLOP/s, GB/s, and 1e9 exponentials a second; 0: not counted. */
typedef struct ceilings {
    double tflops, gbs, gexps;
} ceilings;

static inline double floor_us(ceilings c, work w)
{
    const double products_us = w.flops / (1e6 * c.tflops), bytes_us = w.bytes / (1e3 * c.gbs);
    const double exps_us = c.gexps > 0 ? w.exps / (1e3 * c.gexps) : 0;
    const double more_us = products_us > bytes_us ? products_us : bytes_us;
    return more_us > exps_us ? more_us : exps_us;
}

/* A layer's products, and its rows, weights and pairs once each. `each` is the bytes of an element;
   residual the columns of one, or 0; map 1 where pairs are read, of 4 bytes. */
static inline work work_of_layer(double pairs, double in_rows, double out_rows, int taps, int in,
                                 int out, int residual, double each, int map)
{
    work w;
    w.exps = 0;
    w.flops = 2 * pairs * in * out;
    w.bytes = each * (in_rows * in + out_rows * (out + residual) + (double)taps * in * out) +
              (map ? 4 * pairs : 0);
    return w;
}

/* Points in, and out the coordinates of every level, a table of each map, and its order. */
static inline work maps_work(const spops_pyramid_info *info, int64_t num_points)
{
    work w = {0, 16.0 * (double)num_points + 4.0 * (double)num_points, 0};
    for (int l = 0; l < info->num_levels; ++l) {
        const double rows = (double)info->num_rows[l];
        w.bytes += rows * (16 + 4 * 28 + 4 + 4); /* coordinates; table, mask and order within */
        if (l + 1 < info->num_levels)            /* tables down and up */
            w.bytes += (rows + (double)info->num_rows[l + 1]) * (4 * 8 + 4 + 4);
    }
    return w;
}

#endif
