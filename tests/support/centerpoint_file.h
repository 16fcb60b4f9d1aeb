// SPDX-License-Identifier: Apache-2.0
// CenterPoint's encoder (examples/centerpoint) as a file of libspconv's exporter, to which norms are folded
// into weights and a bias, both f16.
#ifndef SPOPS_TESTS_SUPPORT_CENTERPOINT_FILE_H
#define SPOPS_TESTS_SUPPORT_CENTERPOINT_FILE_H

#include "centerpoint/network.h"
#include "tests/support/onnx_file.h"

// Parameters of a layer as the file has them: spconv 2's order.
typedef struct half_layer {
    uint16_t *weight, *bias;
} half_layer;
half_layer centerpoint_layer_in_halves(const layer *l);
void centerpoint_free_halves(half_layer *h);

// The whole file; its first level has 41 cells of height, as the original counts.
void centerpoint_file_put(onnx_file *file, const network *net);

#endif
