// SPDX-License-Identifier: Apache-2.0
// Maps from above, drawn from pooled cells or from the scene itself: forward is up, the vehicle in
// the grid's origin.
#ifndef SPOPS_TOOLS_BEV_MAP_H
#define SPOPS_TOOLS_BEV_MAP_H

#include "tools/picture.h"
#include "tools/simulate.h"

typedef enum bev_map_kind {
    BEV_MAP_CLASS = 0,  // colours of the classes, by their pooled shares
    BEV_MAP_COLOUR = 1, // the pooled colour
    BEV_MAP_DENSITY = 2 // the pooled depth weights alone
} bev_map_kind;

// side px square. pooled is [B, Z, Y, X, cols] with the channels of a simulation; batch 0 is drawn,
// its cells in z summed. range gets the densities that the ramp, or the shade, runs between.
bool bev_map_pooled(const spops_bev_geometry *geometry, const float *pooled, int64_t cols,
                    bev_map_kind kind, int side, double range[2], picture *out);
bool bev_map_scene(const spops_bev_geometry *geometry, const scene *s, int side, picture *out);

// Panels side by side, each under its title, above a legend: of the classes, or of the ramp between
// two densities.
bool bev_map_sheet(const picture *panels, const char *const *titles, int num_panels,
                   const char *caption, const double *densities, picture *out);

// The classes with their colours, from (x, y) to the right; returns where it ends.
double class_legend(picture *sheet, double x, double y);

// Camera pictures in rows of `columns`, each with its name. near_far (or NULL): they are depths,
// and the ramp runs between these, m.
bool camera_sheet(const picture *views, const char *const *names, int num_views, int columns,
                  const double *near_far, picture *out);

#endif
