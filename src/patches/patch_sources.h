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

// Windows of a grid: a row's code is its window's number and then its place in the window.
typedef struct spops_patch_grid_rule {
    int32_t window[3], shift[3]; // of the axes in their order; 0 <= shift < window
    int32_t axes[3];
    uint64_t windows[3]; // along each of them
    uint64_t cells;      // of a window
    int32_t set_rows;    // of the sets that windows are cut into; 0: a window is a patch
    bool even;
} spops_patch_grid_rule;

enum { SPOPS_PATCH_BY_GRID = -1 }; // in place of a curve

typedef struct spops_patch_curve_rule {
    spops_bucket_rule cells; // bits, size and origin of cells
    spops_key_layout layout; // of a cube of them
    int32_t curve;
    int32_t code_bits;
    int32_t patch_rows; // 0: patches end where windows do
    bool borrow;
    const int32_t *order; // the caller's; NULL: along the curve
    spops_patch_grid_rule grid;
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

// Cell v: its window, and its place in the window.
SPOPS_HD uint64_t spops_patch_grid_code(const spops_patch_curve_rule *rule, const int32_t v[3])
{
    const spops_patch_grid_rule *g = &rule->grid;
    uint64_t window = 0, place = 0;
    for (int a = 0; a < 3; ++a) {
        const uint64_t c =
            (uint64_t)spops_bucket_clamp(&rule->cells, v[g->axes[a]]) + (uint64_t)g->shift[a];
        window = window * g->windows[a] + c / (uint64_t)g->window[a];
        place = place * (uint64_t)g->window[a] + c % (uint64_t)g->window[a];
    }
    return window * g->cells + place;
}

// Sets that a window with n rows is cut into, and where set j begins.
SPOPS_HD int32_t spops_patch_sets(const spops_patch_grid_rule *g, int32_t n)
{
    return g->set_rows == 0 ? 1 : (int32_t)(((int64_t)n + g->set_rows - 1) / g->set_rows);
}

SPOPS_HD int32_t spops_patch_set_begin(const spops_patch_grid_rule *g, int32_t n, int32_t sets,
                                       int32_t j)
{
    return g->even ? (int32_t)((int64_t)n * j / sets) : j * g->set_rows;
}

// Where cell v stands on the curve, or in the grid: code_bits bits.
SPOPS_HD uint64_t spops_patch_code(const spops_patch_curve_rule *rule, const int32_t v[3])
{
    uint32_t c[3];
    if (rule->curve == SPOPS_PATCH_BY_GRID) return spops_patch_grid_code(rule, v);
    if (spops_patch_is_hilbert(rule))
        return spops_key_hilbert(&rule->layout, spops_patch_key(rule, v));
    spops_patch_axes(rule, v, c);
    return spops_bucket_zorder(c);
}

// Patches of a sample of n rows, and the keys of them all. The last patch borrows where it is not
// full and another one is there.
SPOPS_HD int32_t spops_patches_of_rows(const spops_patch_curve_rule *rule, int32_t n)
{
    if (rule->patch_rows == 0) return 0; // windows say
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
