// SPDX-License-Identifier: Apache-2.0
// How the CPU finds rows by key: three indexes behind one lookup. The functions are here so that
// loops over rows inline them.
#ifndef SPOPS_COORDS_COORD_INDEX_CPU_H
#define SPOPS_COORDS_COORD_INDEX_CPU_H

#include "coords/coord_arrays.h"
#include "core/memory.h"

// HASH: linear probing, at most half full. A slot without a row has the key SPOPS_KEY_NONE.
typedef struct spops_hash_slot {
    uint64_t key;
    int64_t row;
} spops_hash_slot;

// The parts of an index, by strategy; the others are NULL. A set of no rows has none.
typedef struct spops_cpu_index {
    spops_coords_search search;
    int64_t num_rows; // in use
    // HASH
    spops_hash_slot *slots;
    int slot_bits; // 2^slot_bits of them
    // GRID: a bit per cell of the box, and how many are set before each word of 64
    uint64_t *words;
    int32_t *ranks;
    int32_t *ranked_rows; // [max_rows] row of the r-th cell that is set
    int64_t num_words;
    int64_t stride[SPOPS_KEY_COLUMNS]; // cells from one coordinate to the next; the last axis: 1
    // SORTED
    uint64_t *sorted_keys; // [max_rows] ascending
    int32_t *sorted_rows; // [max_rows]; NULL: rows ascend by key, and sorted_keys are the set's own
    // Along a curve, where rows must be sorted for them, they are made when something is first looked
    // up: voxels and their means need none. With what making them takes; NULL: made with the rows.
    int32_t *late;        // [1] SPOPS_LATE_*, atomic, as several threads may search a set
    uint64_t *late_words; // [max_rows]
    int32_t *late_counts; // spops_word_counts(max_rows)
} spops_cpu_index;

enum { SPOPS_LATE_WANTED = 0, SPOPS_LATE_BEGUN = 1, SPOPS_LATE_MADE = 2 };

// The index of a set as it is being filled.
spops_cpu_index spops_cpu_index_of(const spops_coords_arrays *coords);

// The index of a filled set, to look rows up in.
spops_cpu_index spops_cpu_index_made(const spops_context *ctx, const spops_coords_arrays *coords);

static inline uint64_t spops_hash_of(uint64_t key, int slot_bits)
{
    return (key * 0x9e3779b97f4a7c15ULL) >> (64 - slot_bits); // Fibonacci hashing: golden ratio
}

static inline int32_t spops_hash_find(const spops_cpu_index *index, uint64_t key)
{
    const uint64_t mask = ((uint64_t)1 << index->slot_bits) - 1;
    uint64_t at = spops_hash_of(key, index->slot_bits);
    while (index->slots[at].key != key) {
        if (index->slots[at].key == SPOPS_KEY_NONE) return -1;
        at = (at + 1) & mask;
    }
    return (int32_t)index->slots[at].row;
}

static inline int32_t spops_grid_find(const spops_cpu_index *index, int64_t cell)
{
    const uint64_t word = index->words[cell / 64], bit = (uint64_t)1 << (cell % 64);
    if (!(word & bit)) return -1;
    return index->ranked_rows[index->ranks[cell / 64] + __builtin_popcountll(word & (bit - 1))];
}

// First position of the sorted keys from `begin` on whose key is at least `key`: galloping, so that
// it is quick when the answer is near.
static inline int64_t spops_sorted_from(const spops_cpu_index *index, int64_t begin, uint64_t key)
{
    const uint64_t *keys = index->sorted_keys;
    const int64_t n = index->num_rows;
    int64_t low = begin, step = 1;
    while (low < n && keys[low] < key) { // keys before low are less
        const int64_t next = low + step;
        if (next >= n || keys[next] >= key) {
            int64_t high = next < n ? next : n;
            ++low;
            while (low < high) {
                const int64_t middle = low + (high - low) / 2;
                if (keys[middle] < key)
                    low = middle + 1;
                else
                    high = middle;
            }
            return low;
        }
        low = next;
        step *= 2;
    }
    return low;
}

static inline int32_t spops_sorted_row(const spops_cpu_index *index, int64_t at)
{
    return index->sorted_rows != NULL ? index->sorted_rows[at] : (int32_t)at;
}

static inline int64_t spops_grid_cell(const spops_cpu_index *index, const spops_key_layout *layout,
                                      uint64_t key)
{
    int64_t cell = 0;
    for (int c = 0; c <= layout->dims; ++c)
        cell += ((int64_t)spops_key_unpack(layout, key, c) - layout->lower[c]) * index->stride[c];
    return cell;
}

// The row that has a key (which lies in the box), or -1.
static inline int32_t spops_index_find(const spops_cpu_index *index, const spops_key_layout *layout,
                                       uint64_t key)
{
    int64_t at;
    if (index->num_rows == 0) return -1;
    if (index->search == SPOPS_COORDS_SEARCH_HASH) return spops_hash_find(index, key);
    if (index->search == SPOPS_COORDS_SEARCH_GRID)
        return spops_grid_find(index, spops_grid_cell(index, layout, key));
    at = spops_sorted_from(index, 0, key);
    return at < index->num_rows && index->sorted_keys[at] == key ? spops_sorted_row(index, at) : -1;
}

#endif
