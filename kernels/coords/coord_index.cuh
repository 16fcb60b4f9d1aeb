// SPDX-License-Identifier: Apache-2.0
// How rows are found by coordinate on the GPU: three indexes over the packed keys of a set, their
// layouts in memory, and the device functions that fill and search them.
//
// HASH    open addressing, one 8-byte entry a row: key and row side by side where they fit into 63
//         bits, else 31 bits of a second hash and the row, whose key is then compared. Four keys
//         that differ in the two lowest bits only start in one 32-byte sector, so that the taps
//         along the last axis share their memory accesses.
// GRID    a bit a cell of the box, the number of bits set before each 64-bit word, and the row of
//         each set bit.
// SORTED  the keys in ascending order and their rows; for a set in lexicographic order its keys
//         are that already. And buckets: for each value of a key's upper bits, where the keys that
//         have it begin and end. There are no more buckets than rows, so that few keys of a surface
//         share one, and what is left to search is short.
//
// Which entry of a table a key gets depends on timing; what a search finds does not.
#ifndef SPOPS_KERNELS_COORDS_COORD_INDEX_CUH
#define SPOPS_KERNELS_COORDS_COORD_INDEX_CUH

#include "kernels/core/launch.cuh"
#include "coords/coord_arrays.h"
#include "spops/device/grid_dependency.cuh"

namespace spops
{

constexpr uint64_t hash_empty = ~(uint64_t)0; // bit 63 of an entry in use is 0

// ---- Hash ---------------------------------------------------------------------------------------

struct hash_table {
    uint64_t *entries;
    uint32_t mask;    // entries - 1
    int bucket_shift; // 64 - log2(entries / 4)
    int value_bits;
    bool exact; // key << value_bits | value; else fingerprint << 32 | value
};

// Entries for n values: a power of two, at most a third of them in use (from 2^29 values on, two
// thirds), so that a search that fails looks at little more than one.
inline uint64_t hash_entries(int64_t n)
{
    const uint64_t least = (uint64_t)n + (n < (int64_t)1 << 29 ? 2 * (uint64_t)n : (uint64_t)n / 2);
    uint64_t entries = 64;
    while (entries < least)
        entries *= 2;
    return entries;
}

// A table for values 0 .. n - 1.
inline hash_table hash_of(void *entries, int key_bits, int64_t n)
{
    hash_table t;
    const uint64_t count = hash_entries(n);
    t.entries = (uint64_t *)entries;
    t.mask = (uint32_t)(count - 1);
    t.bucket_shift = 64 - (bits_for(count - 1) - 2);
    t.value_bits = bits_for(n > 0 ? (uint64_t)n - 1 : 0);
    t.exact = key_bits + t.value_bits <= 63;
    return t;
}

__device__ __forceinline__ uint64_t hash_mix(uint64_t key)
{
    key = (key >> 2) + 1;
    key ^= key >> 32;
    key *= 0xff51afd7ed558ccdull;
    key ^= key >> 29;
    key *= 0xc4ceb9fe1a85ec53ull;
    return key ^ key >> 32;
}

// The part of an entry that stands for the key, and where its search begins.
struct hash_probe {
    uint64_t tag; // the entry without its value, shifted down
    uint32_t slot;
};

__device__ __forceinline__ hash_probe hash_begin(const hash_table &t, uint64_t key)
{
    const uint64_t mixed = hash_mix(key);
    hash_probe p;
    p.slot = (uint32_t)(mixed >> t.bucket_shift) << 2 | (uint32_t)(key & 3u);
    // The fingerprint has the bits that did not choose the bucket, and the two that chose within.
    p.tag = t.exact ? key : (mixed << 2 | (key & 3u)) & 0x7fffffffu;
    return p;
}

__device__ __forceinline__ int hash_shift(const hash_table &t)
{
    return t.exact ? t.value_bits : 32;
}
__device__ __forceinline__ int32_t hash_value(const hash_table &t, uint64_t entry)
{
    return (int32_t)(entry & (((uint64_t)1 << hash_shift(t)) - 1));
}
__device__ __forceinline__ uint64_t hash_entry(const hash_table &t, uint64_t tag, int32_t value)
{
    return tag << hash_shift(t) | (uint32_t)value;
}

__device__ __forceinline__ uint64_t load_relaxed(const uint64_t *p)
{
    return *(const volatile uint64_t *)p;
}

// Four entries that lie in one sector, as they are now.
__device__ __forceinline__ void load_bucket(const uint64_t *p, uint64_t entry[4])
{
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(entry[0]), "=l"(entry[1])
                 : "l"(p)
                 : "memory");
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(entry[2]), "=l"(entry[3])
                 : "l"(p + 2)
                 : "memory");
}

// Enter key with value, or lower the value it has. keys[v] is the key of value v, written before
// this kernel (read only where the table is not exact; NULL: no key comes twice). Returns the slot.
//
// Whole buckets are loaded: of the keys of a frame one is always 25 to 31 slots from where its
// search begins (counted on the workloads), and a kernel ends no sooner than that one.
__device__ __forceinline__ uint32_t hash_insert(const hash_table &t, uint64_t key, int32_t value,
                                                const uint64_t *keys)
{
    const hash_probe p = hash_begin(t, key);
    const uint64_t mine = hash_entry(t, p.tag, value);
    const int shift = hash_shift(t);
    uint32_t slot = p.slot;
    for (;;) {
        // The first slot from here on that is free or may be the key's. A slot keeps its key and
        // its value only falls, so what was passed over need not be looked at again.
        const uint32_t bucket = slot & ~3u;
        uint64_t entry[4], found = 0;
        uint32_t at = 4;
        load_bucket(t.entries + bucket, entry);
#pragma unroll
        for (uint32_t i = 4; i-- > 0;) {
            if (i < (slot & 3u) || (entry[i] != hash_empty && entry[i] >> shift != p.tag)) continue;
            at = i;
            found = entry[i];
        }
        slot = (bucket + at) & t.mask;
        if (at == 4) continue;
        uint64_t *const place = t.entries + slot;
        if (found == hash_empty) {
            found = atomicCAS((unsigned long long *)place, (unsigned long long)hash_empty,
                              (unsigned long long)mine);
            if (found == hash_empty) return slot;
        }
        if (found >> shift == p.tag &&
            (t.exact || (keys != nullptr && keys[hash_value(t, found)] == key))) {
            if (found > mine) atomicMin((unsigned long long *)place, (unsigned long long)mine);
            return slot;
        }
        slot = (slot + 1) & t.mask;
    }
}

// ---- Grid ---------------------------------------------------------------------------------------

struct grid_index {
    uint64_t *words;
    int32_t *before; // set bits before a word
    int32_t *rows;   // of the n-th set bit
    int64_t num_words;
    uint64_t step[SPOPS_KEY_COLUMNS]; // cells from one value of a column to the next
};

// Cells of the box; UINT64_MAX: too many to count.
inline uint64_t grid_steps(const spops_key_layout *layout, uint64_t step[SPOPS_KEY_COLUMNS])
{
    uint64_t cells = 1;
    for (int c = layout->dims; c >= 0; --c) {
        const uint64_t extent = (uint64_t)((int64_t)layout->upper[c] - layout->lower[c] + 1);
        step[c] = cells;
        if (cells > UINT64_MAX / extent) return UINT64_MAX;
        cells *= extent;
    }
    for (int c = layout->dims + 1; c < SPOPS_KEY_COLUMNS; ++c)
        step[c] = 0;
    return cells;
}

// ---- Sorted -------------------------------------------------------------------------------------

// Keys whose bits from `shift` on agree are a bucket.
struct key_buckets {
    int2 *ranges; // [num] positions of its first key and after its last; {0, 0}: it has none
    int64_t num;
    int shift;
};

// Buckets for max_rows keys, at most as many (64 for fewer rows), of four keys at least: three keys that
// follow each other are in two buckets at most.
inline key_buckets buckets_of(const spops_key_layout *layout, int64_t max_rows)
{
    const uint64_t most = max_rows < 64 ? 64 : (uint64_t)max_rows;
    uint64_t last = 0; // the greatest key
    key_buckets b = {nullptr, 0, 2};
    for (int c = 0; c <= layout->dims; ++c)
        last += (uint64_t)((int64_t)layout->upper[c] - layout->lower[c]) << layout->shift[c];
    while (last >> b.shift >= most)
        ++b.shift;
    b.num = (int64_t)(last >> b.shift) + 1;
    return b;
}

// Position `at` of sorted keys, what it says of the buckets: whether it begins or ends one. before and
// after: the keys beside it, where there are such.
__device__ __forceinline__ void put_bucket(const key_buckets &b, int32_t at, uint64_t key,
                                           bool has_before, uint64_t before, bool has_after,
                                           uint64_t after)
{
    const uint64_t bucket = key >> b.shift;
    if (!has_before || before >> b.shift != bucket) b.ranges[bucket].x = at;
    if (!has_after || after >> b.shift != bucket) b.ranges[bucket].y = at + 1;
}

// The first of the sorted keys from `low` on, below `high`, that is at least `key`; else `high`.
__device__ __forceinline__ int32_t first_from(const uint64_t *keys, int32_t low, int32_t high,
                                              uint64_t key)
{
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (__ldg(keys + middle) < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// ---- All of them --------------------------------------------------------------------------------

struct coord_index {
    spops_coords_search search;
    spops_key_layout layout;
    hash_table hash;
    grid_index grid;
    uint64_t *sorted_keys; // [max_rows]
    int32_t *sorted_rows;  // [max_rows]; NULL: the position itself
    key_buckets buckets;   // of sorted_keys
    const uint64_t *keys;  // the set's own, by row
    const int32_t *num_rows;
};

// Lay the index of a set out in memory, or measure it (c->base NULL). False: too large to count.
// ascending: sorted keys are the set's own.
inline bool carve_index(const spops_key_layout *layout, spops_coords_search search,
                        int64_t max_rows, bool ascending, spops_carver *c, coord_index *x)
{
    *x = coord_index();
    x->search = search;
    x->layout = *layout;
    if (search == SPOPS_COORDS_SEARCH_HASH) {
        const uint64_t entries = hash_entries(max_rows);
        x->hash = hash_of(spops_carve(c, (int64_t)entries, 1, sizeof(uint64_t)), layout->key_bits,
                          max_rows);
    } else if (search == SPOPS_COORDS_SEARCH_GRID) {
        const uint64_t cells = grid_steps(layout, x->grid.step);
        if (cells > (uint64_t)1 << 56) return false;
        x->grid.num_words = (int64_t)((cells + 63) / 64);
        x->grid.words = (uint64_t *)spops_carve(c, x->grid.num_words, 1, sizeof(uint64_t));
        x->grid.before = (int32_t *)spops_carve(c, x->grid.num_words, 1, sizeof(int32_t));
        x->grid.rows = (int32_t *)spops_carve(c, max_rows, 1, sizeof(int32_t));
    } else {
        x->buckets = buckets_of(layout, max_rows);
        x->buckets.ranges = (int2 *)spops_carve(c, x->buckets.num, 1, sizeof(int2));
        if (!ascending) {
            x->sorted_keys = (uint64_t *)spops_carve(c, max_rows, 1, sizeof(uint64_t));
            x->sorted_rows = (int32_t *)spops_carve(c, max_rows, 1, sizeof(int32_t));
        }
    }
    return c->used != SIZE_MAX;
}

// The index of a set that was filled.
inline coord_index index_of(const spops_coords_arrays *coords)
{
    spops_carver c = {(char *)coords->index, 0};
    coord_index x;
    (void)carve_index(&coords->layout, coords->search, coords->max_rows, coords->ascending, &c, &x);
    x.keys = coords->keys;
    x.num_rows = &coords->state->num_rows;
    if (coords->ascending) x.sorted_keys = coords->keys;
    return x;
}

// A search in two steps, so that several can be under way: begin() issues the first load, finish()
// takes it from there. A code is the sum of part(c, v) over the columns; v must be in the box.
struct hash_finder {
    struct pending {
        hash_probe probe;
        uint64_t entry;
    };
    static __device__ __forceinline__ uint64_t part(const coord_index &x, int c, int64_t v)
    {
        return spops_key_column(&x.layout, c, v);
    }
    static __device__ __forceinline__ pending begin(const coord_index &x, uint64_t code)
    {
        pending p;
        p.probe = hash_begin(x.hash, code);
        p.entry = __ldg(x.hash.entries + p.probe.slot);
        return p;
    }
    static __device__ __forceinline__ int32_t finish(const coord_index &x, uint64_t code,
                                                     const pending &p)
    {
        const int shift = hash_shift(x.hash);
        uint64_t entry = p.entry;
        uint32_t slot = p.probe.slot;
        while (entry != hash_empty) {
            if (entry >> shift == p.probe.tag) {
                const int32_t row = hash_value(x.hash, entry);
                if (x.hash.exact || x.keys[row] == code) return row;
            }
            slot = (slot + 1) & x.hash.mask;
            entry = __ldg(x.hash.entries + slot);
        }
        return -1;
    }
};

struct grid_finder {
    typedef uint64_t pending;
    static __device__ __forceinline__ uint64_t part(const coord_index &x, int c, int64_t v)
    {
        return (uint64_t)(v - x.layout.lower[c]) * x.grid.step[c];
    }
    static __device__ __forceinline__ pending begin(const coord_index &x, uint64_t code)
    {
        return __ldg(x.grid.words + (code >> 6));
    }
    static __device__ __forceinline__ int32_t finish(const coord_index &x, uint64_t code,
                                                     pending word)
    {
        const uint64_t bit = (uint64_t)1 << (code & 63);
        if ((word & bit) == 0) return -1;
        return __ldg(x.grid.rows +
                     (__ldg(x.grid.before + (code >> 6)) + __popcll(word & (bit - 1))));
    }
};

struct sorted_finder {
    typedef int2 pending; // the range of the code's bucket
    static __device__ __forceinline__ uint64_t part(const coord_index &x, int c, int64_t v)
    {
        return spops_key_column(&x.layout, c, v);
    }
    static __device__ __forceinline__ pending begin(const coord_index &x, uint64_t code)
    {
        return __ldg(x.buckets.ranges + (code >> x.buckets.shift));
    }
    static __device__ __forceinline__ int32_t finish(const coord_index &x, uint64_t code,
                                                     pending range)
    {
        const int32_t low = first_from(x.sorted_keys, range.x, range.y, code);
        if (low >= range.y || __ldg(x.sorted_keys + low) != code) return -1;
        return x.sorted_rows != nullptr ? __ldg(x.sorted_rows + low) : low;
    }
};

// Calls launch(finder) with the finder of x.
template <class Launch> spops_status with_finder(const coord_index &x, const Launch &launch)
{
    if (x.search == SPOPS_COORDS_SEARCH_HASH) return launch(hash_finder());
    if (x.search == SPOPS_COORDS_SEARCH_GRID) return launch(grid_finder());
    return launch(sorted_finder());
}

} // namespace spops

#endif
