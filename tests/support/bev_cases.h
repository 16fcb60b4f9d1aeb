// SPDX-License-Identifier: Apache-2.0
// Rigs and scatter maps for tests of BEV pooling: simulated ones, random ones, and the real rigs of
// the test data.
#ifndef SPOPS_TESTS_SUPPORT_BEV_CASES_H
#define SPOPS_TESTS_SUPPORT_BEV_CASES_H

#include "spops/bevpool.h"
#include "tests/ref/ref_bevpool.h"
#include "tests/support/launch.h"

typedef struct bev_geometry_case {
    spops_bev_geometry geometry;
    spops_bev_camera *cameras;
} bev_geometry_case;

// Cameras in a ring that look outwards, tilted a little, a frustum of pixels and depths, and a grid
// with several cells in z. `turn_rad` turns the rig, so that it makes another map.
bev_geometry_case bev_geometry_simulate(int32_t num_batches, int32_t num_cameras, double turn_rad);
// The setting A or B of rig nuscenes_<which>.json as the data's README has it; false, with a line
// printed, where the data are absent.
bool bev_geometry_real(char which, char setting, bev_geometry_case *out);
void bev_geometry_free(bev_geometry_case *g);

// A map as five arrays on the host, terms in the order of the plan.
typedef struct bev_map {
    spops_bev_shape shape;
    int64_t num_intervals;
    int32_t *depth_of, *feat_of, *cell_of, *starts, *lengths;
    ref_bev_map ref;
} bev_map;

// Random points; `follow`: feature rows follow from the depth elements. Points behind and between
// intervals, empty cells and cells far fuller than others are among them.
bev_map bev_map_random(const spops_bev_shape *shape, int64_t num_points, bool follow,
                       test_rng *rng);
// The same with feature rows that follow and no point twice: maps that can have spans.
bev_map bev_map_distinct(const spops_bev_shape *shape, int64_t num_points, test_rng *rng);
// Four of five points of the frustum, in cells of neighbouring pixels at one depth: maps with many
// spans a tile. The grid must have four cells for every two columns of pixels at each depth.
bev_map bev_map_dense(const spops_bev_shape *shape, test_rng *rng);
// What a plan holds.
bev_map bev_map_of_plan(test_device *d, const spops_bev_plan *plan);
void bev_map_free(bev_map *map);

// Plans. SPOPS_TEST_BEV_KERNEL=spans makes them with spans where there can be any and the options
// do not say otherwise.
spops_status bev_plan_create(test_device *d, const spops_bev_geometry *geometry,
                             const spops_bev_options *options, spops_bev_plan **out);
// With that variable, on CUDA: the plan has spans. For maps that must not fall back unseen.
void bev_expect_forced(test_device *d, const spops_bev_plan *plan, const char *what);
// The plan of a map.
spops_status bev_map_plan(test_device *d, const bev_map *map, const spops_bev_options *options,
                          spops_bev_plan **out);
void bev_map_check_same(const bev_map *a, const bev_map *b, const char *what);

spops_bev_plan_info bev_info(test_device *d, const spops_bev_plan *plan);

// spops_bevpool_execute of these alone.
spops_status bev_execute(spops_context *ctx, const spops_bev_plan *plan, spops_bev_layout layout,
                         spops_matrix depth, spops_matrix feat, spops_matrix out);

#endif
