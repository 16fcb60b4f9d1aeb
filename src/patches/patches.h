// SPDX-License-Identifier: Apache-2.0
// Plans of patches: what one is, and what the backends build its arrays from.
#ifndef SPOPS_PATCHES_PATCHES_H
#define SPOPS_PATCHES_PATCHES_H

#include "core/backend.h"
#include "core/plan.h"
#include "patches/patch_arrays.h"
#include "patches/patch_sources.h"
#include "relation/relation.h"
#include "spops/device/common.h"
#include "spops/patches.h"

#ifdef __cplusplus
extern "C" {
#endif

// What is wrong with lists: the first place of each kind, INT32_MAX where there is none. Offsets and
// rows of a cloud and its order count as those of queries.
typedef struct spops_patch_faults {
    int32_t offsets[SPOPS_NUM_SIDES]; // that are less than the one before; 0: not 0
    int32_t rows[SPOPS_NUM_SIDES];    // entries whose row is not there
    int32_t twice;                    // query entries whose row is a query before
    int32_t keys_twice;               // the same of keys, which is no fault
    int32_t overflow;                 // 1: more patches or entries than fit
    int32_t not_finite;               // rows of a cloud, which is no fault
} spops_patch_faults;

// Whether create would refuse lists with these faults.
SPOPS_HD int spops_patches_refused(const spops_patch_faults *f)
{
    return f->offsets[0] != INT32_MAX || f->offsets[1] != INT32_MAX || f->rows[0] != INT32_MAX ||
           f->rows[1] != INT32_MAX || f->twice != INT32_MAX;
}

// The lists of one side, to be written.
typedef struct spops_patch_side {
    int64_t max_entries;
    int32_t *offsets; // [max_patches + 1]
    int32_t *rows;    // [max_entries]
    int32_t *rest;    // [spops_patch_rows]
    int64_t max_tiles[SPOPS_NUM_PATCH_TILES];
    spops_patch_tile *tiles[SPOPS_NUM_PATCH_TILES];
} spops_patch_side;

// spops_patch_arrays as the backends write them. Where `same`, only queries have memory.
typedef struct spops_patch_storage {
    int64_t num_rows, num_key_rows, max_patches;
    int64_t max_samples; // 0: filled from lists alone
    bool same;
    spops_patch_state *state;   // [1]
    spops_patch_faults *faults; // [1]
    spops_patch_side sides[SPOPS_NUM_SIDES];
    int32_t *key_offsets, *key_entries; // NULL where `same`
} spops_patch_storage;

// Rows that the entries of a side name.
SPOPS_HD int64_t spops_patch_rows(const spops_patch_storage *s, int side)
{
    return side == SPOPS_SIDE_TARGET ? s->num_rows : s->num_key_rows;
}

SPOPS_HD int64_t spops_patch_most_rows(const spops_patch_storage *s)
{
    return s->num_rows > s->num_key_rows ? s->num_rows : s->num_key_rows;
}

// workspace: patches_workspace_bytes.
typedef struct spops_patches_args {
    const spops_patch_storage *storage;
    void *workspace;
    // Of patches_copy: the caller's lists.
    const int32_t *num_patches;     // [1] where the backend runs; NULL: lists->num_patches
    const spops_patch_lists *lists; // NULL: there are no patches
    // Of patches_order; the cloud's points are not read where the rule has an order.
    const spops_point_cloud *cloud;
    const spops_patch_curve_rule *curve;
    // Of patches_fill: queries are rows 0 to num_queries - 1 in some order, and keys the same rows, some
    // perhaps twice. Then nothing has to be looked for.
    bool whole;
    // Of patches_window.
    const spops_buckets_arrays *buckets;
    const spops_patch_window_rule *window;
} spops_patches_args;

// Patches that a plan of patches_orders has at most.
#define SPOPS_PATCHES_AT_ONCE 1024

typedef struct spops_patches_orders_args {
    int64_t num; // of plans, each another one
    const spops_patches_args *plans;
    void *scratch; // patches_orders_bytes; NULL: a plan at a time
} spops_patches_orders_args;

struct spops_patches {
    spops_plan base;
    spops_patch_storage storage;
    spops_patch_arrays arrays; // of the same memory
};

#ifdef __cplusplus
}
#endif

#endif
