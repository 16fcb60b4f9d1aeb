// SPDX-License-Identifier: Apache-2.0
/*
 * A plan and a kernel map saved as bytes and loaded again, as an engine does that plans once and
 * starts often. What is loaded is checked like the caller's own arrays; a damaged byte is refused.
 */
#include <stdlib.h>
#include <string.h>

#include "try.h"

enum { ROWS = 3 };

int main(void)
{
    const int32_t rows[ROWS][3] = {{0, 1, 1}, {0, 1, 2}, {0, 5, 5}}; /* batch, x, y */
    const spops_kernel_shape kernel = spops_kernel_shape_cube(2, 3, 1, 1);
    spops_kernel_map_options options = spops_kernel_map_options_default();
    spops_kernel_map_info info = spops_kernel_map_info_default();
    spops_coords_view view = spops_coords_view_default();
    spops_context *ctx = NULL;
    spops_coords *coords = NULL, *again = NULL;
    spops_kernel_map *map = NULL;
    spops_plan *loaded = NULL;
    size_t bytes = 0;

    TRY(open_cpu(&ctx));
    TRY(spops_coords_create(ctx, 2, ROWS, rows[0], NULL, &coords));
    options.contents = SPOPS_MAP_TABLE | SPOPS_MAP_PAIRS;
    TRY(spops_kernel_map_create(ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, coords, NULL, &options, &map));
    const spops_plan *saved = (const spops_plan *)map, *set = (const spops_plan *)coords;
    TRY(spops_plan_save(ctx, saved, &set, 1, NULL, 0, &bytes)); /* how many */
    unsigned char *blob = malloc(bytes);
    if (blob == NULL) return 1;
    TRY(spops_plan_save(ctx, saved, &set, 1, blob, bytes, &bytes));

    /* A set has no save of its own: its rows are all there is to store. */
    TRY(spops_coords_get_view(ctx, coords, &view));
    TRY(spops_coords_create(ctx, 2, ROWS, view.rows, NULL, &again));
    set = (const spops_plan *)again;
    TRY(spops_plan_load(ctx, SPOPS_PLAN_KERNEL_MAP, &set, 1, blob, bytes, &loaded));
    TRY(spops_kernel_map_get_info_sync(ctx, (const spops_kernel_map *)loaded, &info));
    printf("loaded: %lld pairs\n", (long long)info.num_pairs);

    blob[bytes / 2] ^= 1;
    spops_plan_destroy(loaded);
    if (spops_plan_load(ctx, SPOPS_PLAN_KERNEL_MAP, &set, 1, blob, bytes, &loaded) ==
        SPOPS_STATUS_CORRUPT_DATA)
        printf("damaged: refused\n");
    free(blob);
    spops_kernel_map_destroy(map);
    spops_coords_destroy(again);
    spops_coords_destroy(coords);
    spops_context_destroy(ctx);
    return 0;
}
