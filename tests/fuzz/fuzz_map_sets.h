// SPDX-License-Identifier: Apache-2.0
// The sets that fuzzed kernel maps are between, fixed so that saved maps fit them.
#ifndef SPOPS_TESTS_FUZZ_MAP_SETS_H
#define SPOPS_TESTS_FUZZ_MAP_SETS_H

#include "fuzz.h"

typedef struct fuzz_map_sets {
    spops_coords *fine, *coarse;
    spops_kernel_shape cube, window;
} fuzz_map_sets;

enum { FUZZ_MAP_SETS = 3 }; // fine to fine, fine to coarse, coarse to fine

static inline fuzz_map_sets fuzz_map_sets_create(spops_context *ctx)
{
    fuzz_map_sets sets;
    int32_t rows[30][3];
    memset(&sets, 0, sizeof sets);
    for (int i = 0; i < 30; ++i) {
        rows[i][0] = i % 2;
        rows[i][1] = i / 2 % 5 - 2;
        rows[i][2] = i * 7 % 11 - i / 10;
    }
    sets.cube = spops_kernel_shape_cube(2, 3, 1, 1);
    sets.window = spops_kernel_shape_cube(2, 3, 2, 1);
    FUZZ_REQUIRE(spops_coords_create(ctx, 2, 30, &rows[0][0], NULL, &sets.fine) == SPOPS_STATUS_OK,
                 "%s", spops_last_error(ctx));
    FUZZ_REQUIRE(spops_coords_create_downsampled(ctx, sets.fine, &sets.window, NULL,
                                                 &sets.coarse) == SPOPS_STATUS_OK,
                 "%s", spops_last_error(ctx));
    return sets;
}

static inline void fuzz_map_sets_destroy(fuzz_map_sets *sets)
{
    spops_coords_destroy(sets->fine);
    spops_coords_destroy(sets->coarse);
}

static inline const spops_coords *fuzz_map_in(const fuzz_map_sets *sets, int which)
{
    return which == 2 ? sets->coarse : sets->fine;
}

static inline const spops_coords *fuzz_map_out(const fuzz_map_sets *sets, int which)
{
    return which == 1 ? sets->coarse : sets->fine;
}

#endif
