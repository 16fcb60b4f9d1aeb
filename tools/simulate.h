// SPDX-License-Identifier: Apache-2.0
// Stands in for a perception network: what its depth head and its feature head would say about a
// simulated scene, made from rays cast through every feature pixel.
#ifndef SPOPS_TOOLS_SIMULATE_H
#define SPOPS_TOOLS_SIMULATE_H

#include "tools/picture.h"
#include "tools/scene.h"
#include "spops/bevpool.h"

// Channels of a feature row. What follows are pseudo-random functions of these.
#define SIM_CHANNEL_ONE    0 // 1, so that pooling it gives the density
#define SIM_CHANNEL_CLASS  1 // share of each class but the sky
#define SIM_CHANNEL_COLOUR (SIM_CHANNEL_CLASS + SCENE_NUM_CLASSES - 1) // linear red, green, blue
#define SIM_MIN_COLS       (SIM_CHANNEL_COLOUR + 3)

typedef struct simulation {
    int64_t num_features, num_depths, cols;
    float *depth; // [B, N, D, H, W] share of the pixel's rays that end around a bin
    float *feat;  // [B, N, H, W, cols]
} simulation;

// False with error when a camera cannot be inverted or there is no memory. progress (or NULL) hears
// of each finished camera.
bool simulate(const scene *s, const spops_bev_geometry *geometry, int64_t cols,
              void (*progress)(int done, int all), simulation *out, char *error,
              size_t error_bytes);
void simulation_free(simulation *sim);

// What a camera sees, `width` pixels wide: its colours, and its depths by picture_ramp from
// SIM_VIEW_FAR_M (dark) to SIM_VIEW_NEAR_M (bright), in even steps of the logarithm.
#define SIM_VIEW_NEAR_M 2.0
#define SIM_VIEW_FAR_M  60.0
bool simulate_view(const scene *s, const spops_bev_camera *camera, int image_width,
                   int image_height, int width, int samples, picture *view, picture *depths,
                   char *error, size_t error_bytes);

// FP64 pooling, a plain loop over all frustum points with geometry of its own. depth and feat are
// what the library was given, as doubles. For each cell and channel: sum, and the sum of
// magnitudes. cell_of_point (or NULL) says where the plan put each point (-1: nowhere): it decides
// for points that lie within rounding of a cell's border, and for no others. num_points counts
// those inside.
typedef struct reference {
    int64_t num_points, num_border, longest;
    double *sum, *magnitude; // [cells, cols]
    int32_t *count;          // [cells] points
} reference;

bool reference_pool(const spops_bev_geometry *geometry, int64_t cols, const double *depth,
                    const double *feat, const int32_t *cell_of_point, reference *out, char *error,
                    size_t error_bytes);
void reference_free(reference *ref);

#endif
