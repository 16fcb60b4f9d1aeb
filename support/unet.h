// SPDX-License-Identifier: Apache-2.0
// The sparse convolutions of a MinkUNet on a scan: the maps of its five levels and the layers that run
// on them, for whoever measures them.
#ifndef SPOPS_SUPPORT_UNET_H
#define SPOPS_SUPPORT_UNET_H

#include <stdbool.h>

#include "spops/pyramid.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { UNET_MAX_LAYERS = 40 };

typedef struct unet_layer {
    char name[40]; // such as "level 1, 96 to 96"
    const spops_kernel_map *map;
    int32_t num_taps;
    int64_t num_in, num_out, num_pairs;
    int64_t in_channels, out_channels;
    int count; // layers of the network that are this one
} unet_layer;

typedef struct unet {
    spops_pyramid *pyramid;
    int num_layers;
    unet_layer layers[UNET_MAX_LAYERS]; // those of a map follow each other
} unet;

// width: of the channels; 1 has 32, 32, 64, 128, 256 down and 256, 128, 96, 96 up. The maps hold pairs,
// order and what gradients need. False where a call failed, whose message ctx has.
bool unet_create(spops_context *ctx, const spops_coords *finest, double width, unet *out);
void unet_destroy(unet *u);

// Rows [n][4] (batch 0, then the cells of `cell_m` that hold points [n][stride]), each once, sorted;
// to be freed. NULL where there is no memory.
int32_t *unet_voxels(const float *points, int64_t num_points, int64_t stride, double cell_m,
                     int64_t *num_rows);

#ifdef __cplusplus
}
#endif

#endif
