// SPDX-License-Identifier: Apache-2.0
// What patches are made from besides lists: rows in the order of a curve, and windows of buckets. The
// rules that both backends follow.
#ifndef SPOPS_PATCHES_PATCH_SOURCES_H
#define SPOPS_PATCHES_PATCH_SOURCES_H

#include "buckets/buckets.h"
#include "spops/patches.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- Orders -------------------------------------------------------------------------------------

typedef struct spops_patch_curve_rule {
    spops_bucket_rule cells; // bits, size and origin of cells
    spops_key_layout layout; // of a cube of them
    int32_t curve;
    int32_t patch_rows;
    bool borrow;
    const int32_t *order; // the caller's; NULL: along the curve
} spops_patch_curve_rule;

SPOPS_HD int spops_patch_is_hilbert(const spops_patch_curve_rule *rule)
{
    return rule->curve == SPOPS_PATCH_CURVE_HILBERT ||
           rule->curve == SPOPS_PATCH_CURVE_HILBERT_TRANSPOSED;
}

// Cell v, or the nearest one, with its axes as the curve takes them.
SPOPS_HD void spops_patch_axes(const spops_patch_curve_rule *rule, const int32_t v[3],
                               uint32_t c[3])
{
    const int turned = rule->curve == SPOPS_PATCH_CURVE_ZORDER_TRANSPOSED ||
                       rule->curve == SPOPS_PATCH_CURVE_HILBERT_TRANSPOSED;
    c[turned] = spops_bucket_clamp(&rule->cells, v[0]);
    c[1 - turned] = spops_bucket_clamp(&rule->cells, v[1]);
    c[2] = spops_bucket_clamp(&rule->cells, v[2]);
}

// The same as a key of rule->layout.
SPOPS_HD uint64_t spops_patch_key(const spops_patch_curve_rule *rule, const int32_t v[3])
{
    const int bits = rule->cells.bits;
    uint32_t c[3];
    spops_patch_axes(rule, v, c);
    return ((uint64_t)c[0] << bits | c[1]) << bits | (uint64_t)c[2];
}

// Where cell v stands on the curve: 3 * bits bits.
SPOPS_HD uint64_t spops_patch_code(const spops_patch_curve_rule *rule, const int32_t v[3])
{
    uint32_t c[3];
    if (spops_patch_is_hilbert(rule))
        return spops_key_hilbert(&rule->layout, spops_patch_key(rule, v));
    spops_patch_axes(rule, v, c);
    return spops_bucket_zorder(c);
}

// Patches of a sample of n rows, and the keys of them all. The last patch borrows where it is not
// full and another one is there.
SPOPS_HD int32_t spops_patches_of_rows(const spops_patch_curve_rule *rule, int32_t n)
{
    return (int32_t)(((int64_t)n + rule->patch_rows - 1) / rule->patch_rows);
}

SPOPS_HD int32_t spops_patch_borrows(const spops_patch_curve_rule *rule, int32_t n)
{
    if (!rule->borrow || n <= rule->patch_rows || n % rule->patch_rows == 0) return 0;
    return rule->patch_rows - n % rule->patch_rows;
}

// ---- Windows of buckets -------------------------------------------------------------------------

typedef struct spops_patch_window_rule {
    int32_t buckets, stride, shift; // of a patch; 1 or more, 1 or more, any
    bool in_places;                 // rows are named by their places
} spops_patch_window_rule;

// Patches of a sample of k buckets.
SPOPS_HD int32_t spops_patches_of_buckets(const spops_patch_window_rule *rule, int32_t k)
{
    const int64_t full = (int64_t)rule->buckets * rule->stride, rest = k % full;
    return (int32_t)(k / full * rule->stride + (rest < rule->stride ? rest : rule->stride));
}

// Bucket m of patch j of a sample of k buckets, counted from the sample's first; -1: it has no more.
SPOPS_HD int32_t spops_patch_bucket(const spops_patch_window_rule *rule, int32_t k, int32_t j,
                                    int32_t m)
{
    const int64_t full = (int64_t)rule->buckets * rule->stride;
    const int64_t at = j / rule->stride * full + j % rule->stride + (int64_t)m * rule->stride;
    int64_t bucket;
    if (m >= rule->buckets || at >= k) return -1;
    bucket = (at + rule->shift) % k;
    return (int32_t)(bucket < 0 ? bucket + k : bucket);
}

#ifdef __cplusplus
}
#endif

#endif
