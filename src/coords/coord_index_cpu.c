// SPDX-License-Identifier: Apache-2.0
// Indexes on the CPU: their sizes, and the choice among them. coords_cpu.c fills them.
#include "coords/coord_index_cpu.h"

#include "backends/backend_cpu.h"

// Cells of the box; -1 if they exceed what can be indexed.
static int64_t strides_of(const spops_key_layout *layout, int64_t stride[SPOPS_KEY_COLUMNS])
{
    int64_t cells = 1;
    for (int c = layout->dims; c >= 0; --c) {
        const int64_t extent = (int64_t)layout->upper[c] - layout->lower[c] + 1;
        stride[c] = cells;
        if (cells > ((int64_t)1 << 48) / extent) return -1;
        cells *= extent;
    }
    return cells;
}

static int slot_bits_for(int64_t max_rows)
{
    int bits = 4;
    while ((int64_t)1 << bits < 2 * max_rows)
        ++bits;
    return bits;
}

spops_cpu_index spops_cpu_index_carve(const spops_key_layout *layout, spops_coords_search search,
                                      int64_t max_rows, spops_carver *c)
{
    spops_cpu_index index = {.search = search};
    if (max_rows == 0) return index;
    if (search == SPOPS_COORDS_SEARCH_HASH) {
        index.slot_bits = slot_bits_for(max_rows);
        index.slots = spops_carve(c, (int64_t)1 << index.slot_bits, 1, sizeof *index.slots);
    } else if (search == SPOPS_COORDS_SEARCH_GRID) {
        const int64_t cells = strides_of(layout, index.stride);
        if (cells < 0) {
            c->used = SIZE_MAX;
            return index;
        }
        index.num_words = (cells + 63) / 64;
        index.words = spops_carve(c, index.num_words, 1, sizeof *index.words);
        index.ranks = spops_carve(c, index.num_words, 1, sizeof *index.ranks);
        index.ranked_rows = spops_carve(c, max_rows, 1, sizeof *index.ranked_rows);
    } else {
        index.sorted_keys = spops_carve(c, max_rows, 1, sizeof *index.sorted_keys);
        index.sorted_rows = spops_carve(c, max_rows, 1, sizeof *index.sorted_rows);
    }
    return index;
}

spops_cpu_index spops_cpu_index_of(const spops_coords_arrays *coords)
{
    spops_carver carver = {(char *)coords->index, 0};
    spops_cpu_index index = {.search = coords->search};
    if (coords->index != NULL)
        index = spops_cpu_index_carve(&coords->layout, coords->search, coords->max_rows, &carver);
    index.num_rows = coords->index != NULL ? coords->state->num_rows : 0;
    return index;
}

size_t spops_cpu_coords_index_bytes(spops_context *ctx, const spops_coords_arrays *coords)
{
    spops_carver carver = {NULL, 0};
    (void)ctx;
    (void)spops_cpu_index_carve(&coords->layout, coords->search, coords->max_rows, &carver);
    return carver.used;
}

// Sorted keys: a map is then a few merges, which run at the speed of the memory; they need no table
// larger than the rows, and a sort by a few digits to build. docs/coords.md has the figures.
int32_t spops_cpu_coords_search(const spops_context *ctx, const spops_coords_search_args *args)
{
    (void)ctx, (void)args;
    return SPOPS_COORDS_SEARCH_SORTED;
}
