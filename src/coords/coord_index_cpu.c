// SPDX-License-Identifier: Apache-2.0
// Indexes on the CPU: their sizes, the choice among them, and the one that is made late. coords_cpu.c
// fills the others.
#include "coords/coord_index_cpu.h"

#include <sched.h>

#include "backends/backend_cpu.h"
#include "core/threads.h"
#include "core/word_sort.h"

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

static bool is_late(const spops_coords_arrays *coords)
{
    const bool along_curve =
        coords->order == SPOPS_COORDS_ORDER_MORTON || coords->order == SPOPS_COORDS_ORDER_HILBERT;
    return along_curve && coords->layout.key_bits + spops_bits_below(coords->max_rows) < 64;
}

// Place the arrays of coords->index; with c->base NULL it only measures. Sizes that overflow make
// c->used SIZE_MAX.
static spops_cpu_index carve_index(const spops_coords_arrays *coords, spops_carver *c)
{
    const int64_t max_rows = coords->max_rows;
    spops_cpu_index index = {.search = coords->search};
    if (max_rows == 0) return index;
    if (index.search == SPOPS_COORDS_SEARCH_HASH) {
        index.slot_bits = slot_bits_for(max_rows);
        index.slots = spops_carve(c, (int64_t)1 << index.slot_bits, 1, sizeof *index.slots);
    } else if (index.search == SPOPS_COORDS_SEARCH_GRID) {
        const int64_t cells = strides_of(&coords->layout, index.stride);
        if (cells < 0) {
            c->used = SIZE_MAX;
            return index;
        }
        index.num_words = (cells + 63) / 64;
        index.words = spops_carve(c, index.num_words, 1, sizeof *index.words);
        index.ranks = spops_carve(c, index.num_words, 1, sizeof *index.ranks);
        index.ranked_rows = spops_carve(c, max_rows, 1, sizeof *index.ranked_rows);
    } else if (coords->order == SPOPS_COORDS_ORDER_LEXICOGRAPHIC) {
        index.sorted_keys = coords->keys;
    } else {
        index.sorted_keys = spops_carve(c, max_rows, 1, sizeof *index.sorted_keys);
        index.sorted_rows = spops_carve(c, max_rows, 1, sizeof *index.sorted_rows);
        if (!is_late(coords)) return index;
        index.late = spops_carve(c, 1, 1, sizeof *index.late);
        index.late_words = spops_carve(c, max_rows, 1, sizeof *index.late_words);
        index.late_counts =
            spops_carve(c, (int64_t)spops_word_counts(max_rows), 1, sizeof *index.late_counts);
    }
    return index;
}

spops_cpu_index spops_cpu_index_of(const spops_coords_arrays *coords)
{
    spops_carver carver = {(char *)coords->index, 0};
    spops_cpu_index index = carve_index(coords, &carver);
    index.num_rows = coords->max_rows > 0 ? coords->state->num_rows : 0;
    return index;
}

size_t spops_cpu_coords_index_bytes(spops_context *ctx, const spops_coords_arrays *coords)
{
    spops_carver carver = {NULL, 0};
    (void)ctx;
    (void)carve_index(coords, &carver);
    return carver.used;
}

// ---- Made late ----------------------------------------------------------------------------------

typedef struct late_work {
    const spops_cpu_index *index;
    const uint64_t *keys; // [row]
    const uint64_t *words;
    int row_bits; // of a row's number, below its key
} late_work;

static void words_of_rows(const void *work, int64_t begin, int64_t end)
{
    const late_work *w = (const late_work *)work;
    for (int64_t row = begin; row < end; ++row)
        w->index->late_words[row] = w->keys[row] << w->row_bits | (uint64_t)row;
}

static void rows_of_words(const void *work, int64_t begin, int64_t end)
{
    const late_work *w = (const late_work *)work;
    const uint64_t mask = ((uint64_t)1 << w->row_bits) - 1;
    for (int64_t i = begin; i < end; ++i) {
        const uint64_t word = w->words[i]; // which may lie where the key goes
        w->index->sorted_keys[i] = word >> w->row_bits;
        w->index->sorted_rows[i] = (int32_t)(word & mask);
    }
}

static void make_late(const spops_context *ctx, const spops_coords_arrays *coords,
                      const spops_cpu_index *index)
{
    const int64_t n = index->num_rows;
    const spops_team team = spops_team_for(ctx, n);
    late_work work = {index, coords->keys, NULL, spops_bits_below(coords->max_rows)};
    spops_parallel_for(team, n, 0, words_of_rows, &work);
    work.words = spops_word_sort(team, n, work.row_bits, work.row_bits + coords->layout.key_bits,
                                 index->late_words, index->sorted_keys, index->late_counts);
    spops_parallel_for(team, n, 0, rows_of_words, &work);
}

spops_cpu_index spops_cpu_index_made(const spops_context *ctx, const spops_coords_arrays *coords)
{
    const spops_cpu_index index = spops_cpu_index_of(coords);
    int32_t wanted = SPOPS_LATE_WANTED;
    if (index.late == NULL) return index;
    if (__atomic_compare_exchange_n(index.late, &wanted, SPOPS_LATE_BEGUN, false, __ATOMIC_ACQUIRE,
                                    __ATOMIC_ACQUIRE)) {
        make_late(ctx, coords, &index);
        __atomic_store_n(index.late, SPOPS_LATE_MADE, __ATOMIC_RELEASE);
    }
    // Another thread is at it, and needs no longer than this one would.
    while (__atomic_load_n(index.late, __ATOMIC_ACQUIRE) != SPOPS_LATE_MADE)
        (void)sched_yield();
    return index;
}

// ---- Choice -------------------------------------------------------------------------------------

// Sorted keys: a map is then a few merges, which run at the speed of the memory; they need no table
// larger than the rows, and a sort by a few digits to build. docs/coords.md has the figures.
int32_t spops_cpu_coords_search(const spops_context *ctx, const spops_coords_search_args *args)
{
    (void)ctx, (void)args;
    return SPOPS_COORDS_SEARCH_SORTED;
}
