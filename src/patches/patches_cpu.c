// SPDX-License-Identifier: Apache-2.0
// Plans of patches on the CPU.
#include <string.h>

#include "backends/backend_cpu.h"
#include "core/radix_sort.h"
#include "core/threads.h"
#include "patches/patches.h"

typedef struct patches_workspace {
    int32_t *first;           // [num_rows] entry of a row
    spops_radix_buffers sort; // of patches
} patches_workspace;

static patches_workspace carve_workspace(const spops_patch_storage *s, spops_carver *c)
{
    patches_workspace w;
    w.first = spops_carve(c, s->num_rows, 1, sizeof *w.first);
    w.sort = spops_radix_carve(4, s->max_patches, c);
    return w;
}

size_t spops_cpu_patches_workspace_bytes(spops_context *ctx, const spops_patches_args *args)
{
    spops_carver carver = {NULL, 0};
    (void)ctx;
    (void)carve_workspace(args->storage, &carver);
    return carver.used;
}

static int num_sides(const spops_patch_storage *s)
{
    return s->same ? 1 : SPOPS_NUM_PATCH_SIDES;
}

// ---- The caller's lists -------------------------------------------------------------------------

// The first offset of n + 1 that does not ascend from 0; INT32_MAX: none.
static int32_t find_descent(const int32_t *offsets, int64_t n)
{
    if (offsets[0] != 0) return 0;
    for (int64_t i = 1; i <= n; ++i)
        if (offsets[i] < offsets[i - 1]) return (int32_t)i;
    return INT32_MAX;
}

static void copy_rows(const int32_t *rows, int64_t n, int64_t num_rows, int32_t *to, int32_t *fault)
{
    for (int64_t e = 0; e < n; ++e) {
        const int32_t row = rows == NULL ? (int32_t)e : rows[e];
        to[e] = row;
        if ((row < 0 || row >= num_rows) && *fault == INT32_MAX) *fault = (int32_t)e;
    }
}

spops_status spops_cpu_patches_copy(spops_context *ctx, const spops_patches_args *args)
{
    const spops_patch_storage *s = args->storage;
    const spops_patch_lists *lists = args->lists;
    int64_t n = lists == NULL ? 0 : lists->num_patches;
    (void)ctx;

    *s->faults = (spops_patch_faults){
        {INT32_MAX, INT32_MAX}, {INT32_MAX, INT32_MAX}, INT32_MAX, INT32_MAX, 0};
    if (args->num_patches != NULL) {
        const int32_t given = *args->num_patches;
        if (given > n) s->faults->overflow = 1;
        n = given < 0 ? 0 : given < n ? given : n;
    }
    s->state->num_patches = (int32_t)n;
    for (int i = 0; i < num_sides(s); ++i) {
        const spops_patch_side *side = &s->sides[i];
        const int32_t *offsets = NULL, *rows = NULL;
        if (lists != NULL) {
            offsets = i == SPOPS_PATCH_QUERIES ? lists->query_offsets : lists->key_offsets;
            rows = i == SPOPS_PATCH_QUERIES ? lists->query_rows : lists->key_rows;
            s->faults->offsets[i] = find_descent(offsets, n);
        }
        if (offsets == NULL || s->faults->offsets[i] != INT32_MAX) {
            memset(side->offsets, 0, (size_t)(s->max_patches + 1) * sizeof *side->offsets);
            continue;
        }
        if (offsets[n] > side->max_entries) {
            s->faults->overflow = 1;
            memset(side->offsets, 0, (size_t)(s->max_patches + 1) * sizeof *side->offsets);
            continue;
        }
        for (int64_t p = 0; p <= s->max_patches; ++p)
            side->offsets[p] = offsets[p < n ? p : n];
        copy_rows(rows, offsets[n], s->num_rows, side->rows, &s->faults->rows[i]);
    }
    return SPOPS_STATUS_OK;
}

// ---- What follows from lists --------------------------------------------------------------------

static bool is_valid(const spops_patch_faults *f)
{
    return !spops_patches_refused(f) && f->overflow == 0;
}

// first[r]: the entry that row r is first; returns the first entry whose row is one before.
static int32_t find_rows(const spops_patch_storage *s, const spops_patch_side *side, int32_t *first)
{
    const int32_t end = side->offsets[s->max_patches];
    int32_t twice = INT32_MAX;
    memset(first, 0xff, (size_t)s->num_rows * sizeof *first);
    for (int32_t e = 0; e < end; ++e) {
        int32_t *const at = &first[side->rows[e]];
        if (*at < 0)
            *at = e;
        else if (twice == INT32_MAX)
            twice = e;
    }
    return twice;
}

// The rows without an entry, ascending.
static int32_t put_rest(const int32_t *first, int64_t num_rows, int32_t *rest)
{
    int32_t num = 0;
    for (int64_t r = 0; r < num_rows; ++r)
        if (first[r] < 0) rest[num++] = (int32_t)r;
    return num;
}

static int32_t num_of(const int32_t *offsets, int64_t patch)
{
    return offsets[patch + 1] - offsets[patch];
}

// Tiles of a side whose patches meet `others`; counts[t] of them.
static void put_tiles(spops_context *ctx, const spops_patch_storage *s,
                      const spops_patch_side *side, const int32_t *others,
                      const spops_radix_buffers *sort, int32_t *counts)
{
    const int32_t n = s->state->num_patches;
    uint32_t *keys = sort->keys[0];
    int at;
    for (int32_t p = 0; p < n; ++p) {
        keys[p] = (uint32_t)INT32_MAX - (uint32_t)num_of(others, p); // the most come first
        sort->values[0][p] = p;
    }
    at = spops_radix_sort(spops_team_for(ctx, n), 31, n, sort, 0);
    for (int t = 0; t < SPOPS_NUM_PATCH_TILES; ++t) {
        const int32_t full = SPOPS_PATCH_TILE_ENTRIES(t);
        counts[t] = 0;
        for (int32_t i = 0; i < n; ++i) {
            const int32_t p = sort->values[at][i], end = side->offsets[p + 1];
            for (int32_t e = side->offsets[p]; e < end; e += full)
                side->tiles[t][counts[t]++] =
                    (spops_patch_tile){p, e, end - e < full ? end - e : full, num_of(others, p)};
        }
    }
}

// Entries of the keys' rows by row.
static void put_key_lists(const spops_patch_storage *s)
{
    const spops_patch_side *k = &s->sides[SPOPS_PATCH_KEYS];
    const int32_t end = k->offsets[s->max_patches];
    int32_t *offsets = s->key_offsets;
    memset(offsets, 0, (size_t)(s->num_rows + 1) * sizeof *offsets);
    for (int32_t e = 0; e < end; ++e)
        ++offsets[k->rows[e]];
    for (int64_t r = 1; r <= s->num_rows; ++r)
        offsets[r] += offsets[r - 1];
    for (int32_t e = end - 1; e >= 0; --e) // from ends down to beginnings
        s->key_entries[--offsets[k->rows[e]]] = e;
}

spops_status spops_cpu_patches_fill(spops_context *ctx, const spops_patches_args *args)
{
    const spops_patch_storage *s = args->storage;
    spops_patch_state *state = s->state;
    const spops_patch_side *q = &s->sides[SPOPS_PATCH_QUERIES];
    const spops_patch_side *k = s->same ? q : &s->sides[SPOPS_PATCH_KEYS];
    spops_carver carver = {args->workspace, 0};
    const patches_workspace w = carve_workspace(s, &carver);

    if (is_valid(s->faults)) s->faults->twice = find_rows(s, q, w.first);
    if (!is_valid(s->faults)) {
        state->num_patches = 0;
        for (int i = 0; i < num_sides(s); ++i)
            memset(s->sides[i].offsets, 0, (size_t)(s->max_patches + 1) * sizeof(int32_t));
        (void)find_rows(s, q, w.first);
    }
    state->num_q_rest = put_rest(w.first, s->num_rows, q->rest);
    state->num_k_rest = state->num_q_rest;
    if (!s->same) {
        s->faults->keys_twice = find_rows(s, k, w.first);
        state->num_k_rest = put_rest(w.first, s->num_rows, k->rest);
        put_key_lists(s);
    }
    state->num_queries = q->offsets[s->max_patches];
    state->num_keys = k->offsets[s->max_patches];
    state->overflow = s->faults->overflow;
    put_tiles(ctx, s, q, k->offsets, &w.sort, state->num_q_tiles);
    memcpy(state->num_k_tiles, state->num_q_tiles, sizeof state->num_k_tiles);
    if (!s->same) put_tiles(ctx, s, k, q->offsets, &w.sort, state->num_k_tiles);
    return SPOPS_STATUS_OK;
}
