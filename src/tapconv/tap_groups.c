// SPDX-License-Identifier: Apache-2.0
// TorchSparse, section 4.2 and Algorithm 4. Two things of that algorithm are read as they must be
// meant: the smallest size of a group begins with its first tap (with the 0 that is printed no group
// would ever grow), and maps that are not their own mirror images are scanned whole. Taps without
// pairs are passed over, so that they neither end a group nor are multiplied.
#include "tapconv/tap_groups.h"

// Taps of one side that FIXED keeps apart from the rest: their maps are the sparsest, being those of
// the kernel's corners and edges.
#define FIXED_CORNER_TAPS 4

// Whether a tap joins a group whose sizes, with its own, span least to most pairs.
static bool joins(const spops_tap_grouping *how, bool mirrored, int32_t first, int32_t tap,
                  int64_t least, int64_t most)
{
    switch (how->grouping) {
    case SPOPS_GROUPING_FIXED:
        return !mirrored || (first < FIXED_CORNER_TAPS) == (tap < FIXED_CORNER_TAPS);
    case SPOPS_GROUPING_ADAPTIVE: return 1.0 - (double)least / (double)most <= how->epsilon;
    default: return false;
    }
}

int32_t spops_group_taps(const spops_tap_grouping *how, int32_t num_taps, const int32_t *counts,
                         bool mirrored, int32_t *taps, spops_tap_group *groups)
{
    const bool pairs = mirrored && how->grouping != SPOPS_GROUPING_SEPARATE;
    const int32_t middle = mirrored ? num_taps / 2 : -1;
    const int32_t end = pairs ? middle : num_taps;
    int32_t num_groups = 0, num_grouped = 0;

    for (int32_t i = 0; i < end;) {
        spops_tap_group g = {.first = num_grouped, .rows = counts[i]};
        int64_t least = counts[i];
        const int32_t first = i++;
        if (counts[first] == 0 || first == middle) continue;
        taps[g.first + g.count++] = first;
        for (; i < end; ++i) {
            const int64_t n = counts[i];
            const int64_t low = n < least ? n : least, high = n > g.rows ? n : g.rows;
            if (n == 0) continue;
            if (!joins(how, mirrored, first, i, low, high)) break;
            taps[g.first + g.count++] = i;
            least = low;
            g.rows = high;
        }
        for (int32_t t = pairs ? g.count - 1 : -1; t >= 0; --t)
            taps[g.first + g.count++] = num_taps - 1 - taps[g.first + t];
        g.batched =
            g.count > 1 && (how->grouping != SPOPS_GROUPING_ADAPTIVE || g.rows < how->batch_rows);
        num_grouped += g.count;
        groups[num_groups++] = g;
    }
    return num_groups;
}
