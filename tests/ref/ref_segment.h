// SPDX-License-Identifier: Apache-2.0
// The network of examples/segment in FP64, from its definition: what loss parameters give on points.
// Sets and maps are made by brute force; nothing of the library's is used.
#ifndef SPOPS_TESTS_REF_SEGMENT_H
#define SPOPS_TESTS_REF_SEGMENT_H

#include "examples/segment/segment.h"
#include "tests/ref/ref_coords.h"

typedef struct ref_segment {
    const segment_layer *layers; // [SEGMENT_NUM_LAYERS] sizes, and where parameters are
    int64_t num_points;
    const float *features;  // [num_points][SEGMENT_FEATURES]
    const uint8_t *classes; // [num_points]
    const float *class_weights;
    ref_set sets[SEGMENT_LEVELS];
    int32_t *within[SEGMENT_LEVELS], *down[SEGMENT_LEVELS - 1], *up[SEGMENT_LEVELS - 1];
    int32_t *point_row;    // [num_points] its voxel
    int32_t *corner_row;   // [num_points][8] voxels around it, or -1
    double *corner_weight; // [num_points][8]
} ref_segment;

// points [num_points][3], batch [num_points]. The arrays must outlive the reference.
ref_segment ref_segment_create(const segment_network *network, int64_t num_points,
                               const float *points, const int32_t *batch, const float *features,
                               const uint8_t *classes, const float *class_weights);
double ref_segment_loss(const ref_segment *ref, const double *parameters);
void ref_segment_free(ref_segment *ref);

#endif
