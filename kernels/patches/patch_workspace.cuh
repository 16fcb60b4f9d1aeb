// SPDX-License-Identifier: Apache-2.0
// What the launchers of patches share: the workspace of a plan, and where the patches of samples begin.
#ifndef SPOPS_KERNELS_PATCHES_PATCH_WORKSPACE_CUH
#define SPOPS_KERNELS_PATCHES_PATCH_WORKSPACE_CUH

#include "kernels/core/device_wide.h"
#include "kernels/core/scan.cuh"
#include "patches/patches.h"
#include "points/point_rules.h"

namespace spops
{

namespace patches
{

struct workspace {
    int32_t *first[SPOPS_NUM_SIDES];          // [rows of the side] entry that names a row first
    int2 *rest;                               // [most rows + 1] left over of each side, scanned
    uint32_t *keys, *sorted_keys;             // [max_patches]
    int32_t *patches, *sorted_patches;        // [max_patches]
    int2 *tiles;                              // [max_patches + 1] of each size, scanned
    uint32_t *entry_keys, *sorted_entry_keys; // [max_keys] rows of keys
    int32_t *entries;                         // [max_keys]
    // Where the plan is filled from clouds and buckets.
    uint64_t *codes, *sorted_codes; // [num_rows]
    int32_t *rows;                  // [num_rows]
    int2 *samples;                  // [max_samples + 1] first patch and first key of a sample
    int32_t *windows;               // [num_rows + 1] windows that begin before an entry
    int32_t *window_begins;         // [num_rows + 1]
    int32_t *window_sets;           // [num_rows + 1] sets before those of a window
    device_wide wide;
};

inline workspace carve_workspace(const spops_patch_storage *s, spops_carver *c)
{
    workspace w = {};
    const int64_t max_keys = s->same ? 0 : s->sides[SPOPS_SIDE_SOURCE].max_entries;
    w.first[SPOPS_SIDE_TARGET] = (int32_t *)spops_carve(c, s->num_rows, 1, sizeof(int32_t));
    w.first[SPOPS_SIDE_SOURCE] =
        s->same ? w.first[SPOPS_SIDE_TARGET]
                : (int32_t *)spops_carve(c, s->num_key_rows, 1, sizeof(int32_t));
    w.rest = (int2 *)spops_carve(c, spops_patch_most_rows(s) + 1, 1, sizeof(int2));
    w.keys = (uint32_t *)spops_carve(c, s->max_patches, 1, sizeof(uint32_t));
    w.sorted_keys = (uint32_t *)spops_carve(c, s->max_patches, 1, sizeof(uint32_t));
    w.patches = (int32_t *)spops_carve(c, s->max_patches, 1, sizeof(int32_t));
    w.sorted_patches = (int32_t *)spops_carve(c, s->max_patches, 1, sizeof(int32_t));
    w.tiles = (int2 *)spops_carve(c, s->max_patches + 1, 1, sizeof(int2));
    w.entry_keys = (uint32_t *)spops_carve(c, max_keys, 1, sizeof(uint32_t));
    w.sorted_entry_keys = (uint32_t *)spops_carve(c, max_keys, 1, sizeof(uint32_t));
    w.entries = (int32_t *)spops_carve(c, max_keys, 1, sizeof(int32_t));
    const int64_t ordered = s->max_samples > 0 ? s->num_rows : 0;
    w.codes = (uint64_t *)spops_carve(c, ordered, 1, sizeof(uint64_t));
    w.sorted_codes = (uint64_t *)spops_carve(c, ordered, 1, sizeof(uint64_t));
    w.rows = (int32_t *)spops_carve(c, ordered, 1, sizeof(int32_t));
    w.samples = (int2 *)spops_carve(c, s->max_samples + 1, 1, sizeof(int2));
    w.windows = (int32_t *)spops_carve(c, ordered + 1, 1, sizeof(int32_t));
    w.window_begins = (int32_t *)spops_carve(c, ordered + 1, 1, sizeof(int32_t));
    w.window_sets = (int32_t *)spops_carve(c, ordered + 1, 1, sizeof(int32_t));
    w.wide.needs_sort<uint32_t>(s->max_patches, 32);
    w.wide.needs_sort<uint32_t>(max_keys, 32);
    w.wide.needs_sort<uint64_t>(ordered, 64);
    w.wide.needs_scan<int2>(spops_patch_most_rows(s) + 1);
    w.wide.needs_scan<int2>(s->max_patches + 1);
    w.wide.needs_scan<int32_t>(s->max_patches + 1);
    w.wide.needs_scan<int32_t>(ordered + 1);
    w.wide.carve(c);
    return w;
}

// ---- Samples ------------------------------------------------------------------------------------

constexpr int sample_threads = 1024;

// Whether offset(b) of samples ascend from 0 and end within num_rows and max_entries; leaves the faults. One
// block, whose first thread alone may read them before the next barrier.
template <class Offset>
__device__ inline bool check_offsets(int32_t num_samples, int64_t num_rows, int64_t max_entries,
                                     spops_patch_faults *faults, const Offset &offset)
{
    __shared__ int32_t falls, beyond;
    if (threadIdx.x == 0) falls = INT32_MAX, beyond = 0;
    __syncthreads();
    for (int32_t b = (int32_t)threadIdx.x; b <= num_samples; b += sample_threads) {
        const int32_t own = offset(b);
        if (b == 0 ? own != 0 : own < offset(b - 1)) atomicMin(&falls, b);
        if (b == num_samples) beyond = own > num_rows || own > max_entries;
    }
    __syncthreads();
    const bool valid = falls == INT32_MAX && !beyond;
    if (threadIdx.x == 0)
        *faults = {{falls, INT32_MAX}, {INT32_MAX, INT32_MAX},       INT32_MAX,
                   INT32_MAX,          falls == INT32_MAX && beyond, INT32_MAX};
    return valid;
}

// A source of patches whose samples have counts(b): patches and keys. One block finds where those of
// each sample begin, and whether they fit; `valid` says whether there is anything.
template <class Counts>
__device__ inline void place_samples(const spops_patch_storage &s, int2 *samples,
                                     int32_t num_samples, bool valid, const Counts &counts)
{
    int2 first = make_int2(0, 0);
    for (int32_t begin = 0; begin <= num_samples; begin += sample_threads) {
        const int32_t b = begin + (int32_t)threadIdx.x;
        int2 all;
        const int2 before =
            sum_before(valid && b < num_samples ? counts(b) : make_int2(0, 0), &all);
        if (b <= num_samples) samples[b] = make_int2(first.x + before.x, first.y + before.y);
        first.x += all.x, first.y += all.y;
    }
    if (threadIdx.x > 0) return;
    const bool fits =
        first.x <= s.max_patches && (s.same || first.y <= s.sides[SPOPS_SIDE_SOURCE].max_entries);
    if (!fits) s.faults->overflow = 1;
    s.state->num_patches = fits ? first.x : 0;
}

// The sample of a patch.
__device__ inline int32_t sample_of_patch(const int2 *samples, int32_t num_samples, int32_t patch)
{
    int32_t low = 0, high = num_samples; // samples[low].x <= patch < samples[high].x
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (samples[middle].x <= patch)
            low = middle;
        else
            high = middle;
    }
    return low;
}

} // namespace patches

} // namespace spops

#endif
