// SPDX-License-Identifier: Apache-2.0
// Clouds for tests of coordinates and kernel maps, and what sets and maps hold, on the host.
#ifndef SPOPS_TESTS_SUPPORT_COORD_CASES_H
#define SPOPS_TESTS_SUPPORT_COORD_CASES_H

#include "tests/ref/ref_coords.h"
#include "tests/support/launch.h"
#include "tests/support/random.h"

typedef enum test_cloud {
    CLOUD_EMPTY,
    CLOUD_ONE,    // one voxel
    CLOUD_LINE,   // neighbours along one axis
    CLOUD_DENSE,  // every voxel of a box
    CLOUD_SPARSE, // random in a box far larger
    CLOUD_CLUMPS, // random in a box about as large
    CLOUD_FAR,    // the corners of the int32 range, as far as keys reach, and their neighbours
    NUM_CLOUDS
} test_cloud;

// Rows [n][1 + dims] of several batches, both signs, shuffled, each once (repeats: some twice).
typedef struct cloud_rows {
    int32_t dims;
    int64_t n;
    int32_t *rows;
} cloud_rows;
cloud_rows cloud_make(test_cloud cloud, int32_t dims, bool repeats, test_rng *rng);
void cloud_free(cloud_rows *cloud);
const char *cloud_name(test_cloud cloud);

// The array of an .npy file of the test data: values as they are in the file. False, with a line
// printed, where the data are absent.
bool cloud_load_f32(const char *name, int64_t *rows, int64_t *cols, float **values);
bool cloud_load_i32(const char *name, int64_t *rows, int64_t *cols, int32_t **values);

// Where d runs.
float *test_upload_f32(test_device *d, const float *values, int64_t n);
uint8_t *test_upload_u8(test_device *d, const uint8_t *values, int64_t n);

// A set of n rows of the host; options may be NULL.
spops_coords *test_create_set(test_device *d, int32_t dims, int64_t n, const int32_t *rows,
                              const spops_coords_options *options);

// A set as it is on the device: rows in use; item_row has max_items elements, or is NULL.
typedef struct held_set {
    spops_coords_info info;
    spops_coords_view view;
    int32_t *rows, *row_item, *item_row;
} held_set;
held_set held_set_of(test_device *d, const spops_coords *coords, const char *what);
void held_set_free(held_set *held);

// Fails the test unless `held` holds what `expected` does, in the order of its info. With
// ORDER_GIVEN that is the order of `expected`.
void held_set_check(const held_set *held, const ref_set *expected, const char *what);

// `expected` with its rows as `held` has them.
ref_set ref_set_in_order(const held_set *held);

// A side of a map; arrays of rows in use, NULL where the map has none.
typedef struct held_side {
    int64_t n, max_rows, num_tiles;
    bool mirrored;
    int32_t *table, *order, *tile_order, *offsets, *row_taps, *pair_ids;
    uint32_t *masks, *tile_masks;
} held_side;

typedef struct held_map {
    spops_kernel_map_info info;
    spops_kernel_map_view view; // its sides belong to the map
    spops_kernel_shape kernel;
    held_side out, in;
    int32_t *tap_offsets, *in_rows, *out_rows, *tap_counts;
} held_map;
// `expected_status`: OK, or CAPACITY_EXCEEDED where it overflowed.
held_map held_map_of(test_device *d, const spops_kernel_map *map, spops_status expected_status,
                     const char *what);
void held_map_free(held_map *held);
// All parts against table[num_out][num_taps], and against each other.
void held_map_check(const held_map *held, int64_t num_in, int64_t num_out, const int32_t *table,
                    const char *what);
// The order of a side and its tiles, against its masks.
void held_map_check_order(const held_map *held, const held_side *side, const char *what);
// Bit for bit.
void held_map_check_same(const held_map *a, const held_map *b, const char *what);

#endif
