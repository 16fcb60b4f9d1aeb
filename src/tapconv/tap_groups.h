// SPDX-License-Identifier: Apache-2.0
// Which taps of a map are multiplied together: gather-matmul-scatter's groupings.
#ifndef SPOPS_TAPCONV_TAP_GROUPS_H
#define SPOPS_TAPCONV_TAP_GROUPS_H

#include <stdbool.h>

#include "spops/sparseconv.h"

// Taps that share batched products, all padded to `rows`, or, if not batched, a product each. They are
// taps[first] .. taps[first + count - 1], ascending; none is empty.
typedef struct spops_tap_group {
    int32_t first, count;
    int64_t rows; // pairs of the longest
    bool batched;
} spops_tap_group;

typedef struct spops_tap_grouping {
    spops_grouping grouping; // not AUTO
    double epsilon;          // of ADAPTIVE
    int64_t batch_rows;      // likewise: S
} spops_tap_grouping;

// Group the taps that have pairs. With `mirrored`, tap k has as many pairs as tap num_taps - 1 - k,
// and the tap in the middle is left out. taps and groups have room for num_taps. Returns the number of
// groups.
int32_t spops_group_taps(const spops_tap_grouping *how, int32_t num_taps, const int32_t *counts,
                         bool mirrored, int32_t *taps, spops_tap_group *groups);

#endif
