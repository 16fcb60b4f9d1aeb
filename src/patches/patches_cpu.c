// SPDX-License-Identifier: Apache-2.0
// Plans of patches on the CPU.
#include <string.h>

#include "backends/backend_cpu.h"
#include "coords/voxel_isa.h"
#include "core/radix_sort.h"
#include "core/threads.h"
#include "patches/patches.h"

typedef struct patches_workspace {
    int32_t *first;            // entry of a row
    spops_radix_buffers sort;  // of patches
    spops_radix_buffers codes; // of rows, where the plan is filled from clouds
} patches_workspace;

static patches_workspace carve_workspace(const spops_patch_storage *s, spops_carver *c)
{
    patches_workspace w;
    w.first = spops_carve(c, spops_patch_most_rows(s), 1, sizeof *w.first);
    w.sort = spops_radix_carve(4, s->max_patches, c);
    w.codes = spops_radix_carve(8, s->max_samples > 0 ? s->num_rows : 0, c);
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
    return s->same ? 1 : SPOPS_NUM_SIDES;
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

static const spops_patch_faults no_faults = {
    {INT32_MAX, INT32_MAX}, {INT32_MAX, INT32_MAX}, INT32_MAX, INT32_MAX, 0, INT32_MAX};

static void clear_offsets(const spops_patch_storage *s, int side)
{
    memset(s->sides[side].offsets, 0, (size_t)(s->max_patches + 1) * sizeof(int32_t));
}

spops_status spops_cpu_patches_copy(spops_context *ctx, const spops_patches_args *args)
{
    const spops_patch_storage *s = args->storage;
    const spops_patch_lists *lists = args->lists;
    int64_t n = lists == NULL ? 0 : lists->num_patches;
    (void)ctx;

    *s->faults = no_faults;
    if (args->num_patches != NULL) {
        const int32_t given = *args->num_patches;
        if (given > n) s->faults->overflow = 1;
        n = given < 0 ? 0 : given < n ? given : n;
    }
    s->state->num_patches = (int32_t)n;
    for (int i = 0; i < num_sides(s); ++i) {
        const spops_patch_side *side = &s->sides[i];
        const int32_t *offsets, *rows;
        clear_offsets(s, i);
        if (lists == NULL) continue;
        offsets = i == SPOPS_SIDE_TARGET ? lists->query_offsets : lists->key_offsets;
        rows = i == SPOPS_SIDE_TARGET ? lists->query_rows : lists->key_rows;
        s->faults->offsets[i] = find_descent(offsets, n);
        if (s->faults->offsets[i] != INT32_MAX) continue;
        if (offsets[n] > side->max_entries) {
            s->faults->overflow = 1;
            continue;
        }
        for (int64_t p = 0; p <= s->max_patches; ++p)
            side->offsets[p] = offsets[p < n ? p : n];
        copy_rows(rows, offsets[n], spops_patch_rows(s, i), side->rows, &s->faults->rows[i]);
    }
    return SPOPS_STATUS_OK;
}

// ---- An order of rows ---------------------------------------------------------------------------

// The samples of a cloud: num_samples + 1 offsets, whichever way they are given.
typedef struct cloud_samples {
    int64_t num;
    const int32_t *offsets;
    int32_t whole[2];
} cloud_samples;

static void find_samples(const spops_point_cloud *cloud, cloud_samples *s)
{
    s->whole[0] = 0;
    s->whole[1] = (int32_t)cloud->points.rows;
    s->num = cloud->offsets == NULL ? 1 : cloud->num_samples;
    s->offsets = cloud->offsets == NULL ? s->whole : cloud->offsets;
}

// Codes of a sample's rows.
typedef struct code_work {
    const spops_patch_curve_rule *rule;
    const spops_curve *curve;       // of a Hilbert curve
    const spops_voxel_table *table; // that walks it
    const spops_matrix *points;
    int32_t first; // row
    uint64_t *codes;
    int32_t *rows;
} code_work;

// The cell of a row as a key of the cube, or as its code.
static uint64_t place_of(const code_work *w, int64_t r)
{
    int32_t v[3];
    spops_bucket_row_cell(&w->rule->cells, w->points, r, v);
    return spops_patch_is_hilbert(w->rule) ? spops_patch_key(w->rule, v)
                                           : spops_patch_code(w->rule, v);
}

static void find_codes(const void *work, int64_t begin, int64_t end)
{
    const code_work *w = (const code_work *)work;
    for (int64_t i = begin; i < end; i += SPOPS_VOXEL_BLOCK) {
        const int n = end - i < SPOPS_VOXEL_BLOCK ? (int)(end - i) : SPOPS_VOXEL_BLOCK;
        uint64_t keys[SPOPS_VOXEL_BLOCK];
        for (int j = 0; j < n; ++j) {
            keys[j] = place_of(w, w->first + i + j);
            w->rows[i + j] = (int32_t)(w->first + i + j);
        }
        if (spops_patch_is_hilbert(w->rule))
            w->table->codes(w->curve, n, keys, w->codes + i);
        else
            memcpy(w->codes + i, keys, (size_t)n * sizeof *keys);
    }
}

// Rows of a sample in order, as entries of the same numbers.
static void order_sample(spops_context *ctx, const spops_patches_args *args,
                         const patches_workspace *w, int32_t begin, int32_t end)
{
    const spops_patch_curve_rule *rule = args->curve;
    const spops_patch_storage *s = args->storage;
    int32_t *rows = s->sides[SPOPS_SIDE_TARGET].rows;
    const spops_radix_buffers *sort = &w->codes;
    const int32_t n = end - begin;
    int at;
    if (rule->order != NULL) {
        for (int32_t e = begin; e < end; ++e) {
            const int32_t row = rule->order[e];
            rows[e] = row;
            if ((row < begin || row >= end) && s->faults->rows[0] == INT32_MAX)
                s->faults->rows[0] = e;
        }
        return;
    }
    const spops_curve curve = spops_curve_make(&rule->layout, SPOPS_COORDS_ORDER_HILBERT);
    const code_work work = {.rule = rule,
                            .curve = &curve,
                            .table = spops_voxel_table_of(ctx),
                            .points = &args->cloud->points,
                            .first = begin,
                            .codes = (uint64_t *)sort->keys[0],
                            .rows = sort->values[0]};
    spops_parallel_for(spops_team_for(ctx, 16 * (int64_t)n), n, 0, find_codes, &work);
    for (int32_t r = begin; r < end && s->faults->not_finite == INT32_MAX; ++r)
        if (!spops_bucket_row_is_finite(work.points, r)) s->faults->not_finite = r;
    at = spops_radix_sort(spops_team_for(ctx, n), rule->code_bits, n, sort, 0);
    if (n > 0) memcpy(rows + begin, sort->values[at], (size_t)n * sizeof *rows);
}

// Patches of as many rows each, and their keys. Returns how many.
static int64_t cut_samples(const spops_patches_args *args, const cloud_samples *samples)
{
    const spops_patch_storage *s = args->storage;
    const spops_patch_curve_rule *rule = args->curve;
    const spops_patch_side *q = &s->sides[SPOPS_SIDE_TARGET], *k = &s->sides[SPOPS_SIDE_SOURCE];
    int64_t num_patches = 0, num_keys = 0;

    for (int64_t b = 0; b < samples->num; ++b) {
        const int32_t last = samples->offsets[b + 1];
        for (int32_t e = samples->offsets[b]; e < last; ++num_patches) {
            const int32_t n = last - e < rule->patch_rows ? last - e : rule->patch_rows;
            const int32_t borrowed =
                e + n == last ? spops_patch_borrows(rule, last - samples->offsets[b]) : 0;
            if (!s->same) {
                memcpy(k->rows + num_keys, q->rows + e, (size_t)n * sizeof *k->rows);
                memcpy(k->rows + num_keys + n, q->rows + e - borrowed,
                       (size_t)borrowed * sizeof *k->rows);
                num_keys += n + borrowed;
                k->offsets[num_patches + 1] = (int32_t)num_keys;
            }
            e += n;
            q->offsets[num_patches + 1] = e;
        }
    }
    return num_patches;
}

// The window of a row, whose sample is known.
static uint64_t window_of(const spops_patches_args *args, int32_t row)
{
    int32_t v[3];
    spops_bucket_row_cell(&args->curve->cells, &args->cloud->points, row, v);
    return spops_patch_grid_code(args->curve, v) / args->curve->grid.cells;
}

// Patches of windows, or of sets in them. Returns how many; -1: they do not fit.
static int64_t cut_windows(const spops_patches_args *args, const cloud_samples *samples)
{
    const spops_patch_storage *s = args->storage;
    const spops_patch_grid_rule *grid = &args->curve->grid;
    const spops_patch_side *q = &s->sides[SPOPS_SIDE_TARGET];
    int64_t num_patches = 0;

    for (int64_t b = 0; b < samples->num; ++b) {
        const int32_t last = samples->offsets[b + 1];
        for (int32_t begin = samples->offsets[b], end; begin < last; begin = end) {
            const uint64_t window = window_of(args, q->rows[begin]);
            for (end = begin + 1; end < last && window_of(args, q->rows[end]) == window;)
                ++end;
            const int32_t sets = spops_patch_sets(grid, end - begin);
            if (num_patches + sets > s->max_patches) {
                s->faults->overflow = 1;
                clear_offsets(s, SPOPS_SIDE_TARGET);
                return -1;
            }
            for (int32_t j = 0; j < sets; ++j)
                q->offsets[num_patches + j] =
                    begin + spops_patch_set_begin(grid, end - begin, sets, j);
            num_patches += sets;
            q->offsets[num_patches] = end;
        }
    }
    return num_patches;
}

spops_status spops_cpu_patches_order(spops_context *ctx, const spops_patches_args *args)
{
    const spops_patch_storage *s = args->storage;
    const spops_patch_curve_rule *rule = args->curve;
    const spops_patch_side *q = &s->sides[SPOPS_SIDE_TARGET], *k = &s->sides[SPOPS_SIDE_SOURCE];
    spops_carver carver = {args->workspace, 0};
    const patches_workspace w = carve_workspace(s, &carver);
    int64_t num_patches = 0, num_keys = 0;
    cloud_samples samples;
    int32_t end = 0;

    *s->faults = no_faults;
    s->state->num_patches = 0;
    for (int i = 0; i < num_sides(s); ++i)
        clear_offsets(s, i);
    find_samples(args->cloud, &samples);
    s->faults->offsets[0] = find_descent(samples.offsets, samples.num);
    if (s->faults->offsets[0] != INT32_MAX) return SPOPS_STATUS_OK;
    for (int64_t b = 0; b < samples.num; ++b) {
        const int32_t n = samples.offsets[b + 1] - samples.offsets[b];
        num_patches += spops_patches_of_rows(rule, n);
        num_keys += (int64_t)n + spops_patch_borrows(rule, n);
    }
    end = samples.offsets[samples.num];
    if (end > s->num_rows || end > q->max_entries || num_patches > s->max_patches ||
        (!s->same && num_keys > k->max_entries)) {
        s->faults->overflow = 1;
        return SPOPS_STATUS_OK;
    }
    for (int64_t b = 0; b < samples.num; ++b)
        order_sample(ctx, args, &w, samples.offsets[b], samples.offsets[b + 1]);
    num_patches = rule->patch_rows == 0 ? cut_windows(args, &samples) : cut_samples(args, &samples);
    if (num_patches < 0) return SPOPS_STATUS_OK;
    s->state->num_patches = (int32_t)num_patches;
    for (int64_t p = num_patches; p < s->max_patches; ++p)
        for (int i = 0; i < num_sides(s); ++i)
            s->sides[i].offsets[p + 1] = s->sides[i].offsets[p];
    return SPOPS_STATUS_OK;
}

// ---- Windows of buckets -------------------------------------------------------------------------

spops_status spops_cpu_patches_window(spops_context *ctx, const spops_patches_args *args)
{
    const spops_patch_storage *s = args->storage;
    const spops_buckets_arrays *b = args->buckets;
    const spops_patch_side *q = &s->sides[SPOPS_SIDE_TARGET];
    int64_t num_patches = 0, p = 0;
    int32_t at = 0;
    (void)ctx;

    *s->faults = no_faults;
    s->state->num_patches = 0;
    clear_offsets(s, SPOPS_SIDE_TARGET);
    for (int64_t i = 0; i < b->max_samples; ++i)
        num_patches +=
            spops_patches_of_buckets(args->window, b->sample_buckets[i + 1] - b->sample_buckets[i]);
    if (num_patches > s->max_patches || b->state->num_rows > q->max_entries) {
        s->faults->overflow = 1;
        return SPOPS_STATUS_OK;
    }
    for (int64_t i = 0; i < b->max_samples; ++i) {
        const int32_t first = b->sample_buckets[i], k = b->sample_buckets[i + 1] - first;
        const int32_t num = spops_patches_of_buckets(args->window, k);
        for (int32_t j = 0; j < num; ++j) {
            for (int32_t m = 0;; ++m) {
                const int32_t bucket = spops_patch_bucket(args->window, k, j, m);
                if (bucket < 0) break;
                for (int32_t e = b->offsets[first + bucket]; e < b->offsets[first + bucket + 1];
                     ++e)
                    q->rows[at++] = args->window->in_places ? e : b->rows[e];
            }
            q->offsets[++p] = at;
        }
    }
    s->state->num_patches = (int32_t)num_patches;
    for (; p < s->max_patches; ++p)
        q->offsets[p + 1] = at;
    return SPOPS_STATUS_OK;
}

// ---- What follows from lists --------------------------------------------------------------------

static bool is_valid(const spops_patch_faults *f)
{
    return !spops_patches_refused(f) && f->overflow == 0;
}

// first[r]: the entry that row r is first; returns the first entry whose row is one before.
static int32_t find_rows(const spops_patch_storage *s, int of, int32_t *first)
{
    const spops_patch_side *side = &s->sides[of];
    const int32_t end = side->offsets[s->max_patches];
    int32_t twice = INT32_MAX;
    for (int64_t r = 0; r < spops_patch_rows(s, of); ++r)
        first[r] = -1;
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
    const spops_patch_side *k = &s->sides[SPOPS_SIDE_SOURCE];
    const int32_t end = k->offsets[s->max_patches];
    int32_t *offsets = s->key_offsets;
    memset(offsets, 0, (size_t)(s->num_key_rows + 1) * sizeof *offsets);
    for (int32_t e = 0; e < end; ++e)
        ++offsets[k->rows[e]];
    for (int64_t r = 1; r <= s->num_key_rows; ++r)
        offsets[r] += offsets[r - 1];
    for (int32_t e = end - 1; e >= 0; --e) // from ends down to beginnings
        s->key_entries[--offsets[k->rows[e]]] = e;
}

spops_status spops_cpu_patches_fill(spops_context *ctx, const spops_patches_args *args)
{
    const spops_patch_storage *s = args->storage;
    spops_patch_state *state = s->state;
    const spops_patch_side *q = &s->sides[SPOPS_SIDE_TARGET];
    const spops_patch_side *k = s->same ? q : &s->sides[SPOPS_SIDE_SOURCE];
    spops_carver carver = {args->workspace, 0};
    const patches_workspace w = carve_workspace(s, &carver);

    if (is_valid(s->faults)) s->faults->twice = find_rows(s, SPOPS_SIDE_TARGET, w.first);
    if (!is_valid(s->faults)) {
        state->num_patches = 0;
        for (int i = 0; i < num_sides(s); ++i)
            clear_offsets(s, i);
        (void)find_rows(s, SPOPS_SIDE_TARGET, w.first);
    }
    state->num_q_rest = put_rest(w.first, s->num_rows, q->rest);
    state->num_k_rest = state->num_q_rest;
    if (!s->same) {
        s->faults->keys_twice = find_rows(s, SPOPS_SIDE_SOURCE, w.first);
        state->num_k_rest = put_rest(w.first, s->num_key_rows, k->rest);
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
