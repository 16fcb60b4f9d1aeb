// SPDX-License-Identifier: Apache-2.0
// Buckets on the CPU: the rule as it is written, sample by sample.
#include <string.h>

#include "backends/backend_cpu.h"
#include "buckets/buckets.h"
#include "core/radix_sort.h"
#include "core/threads.h"

typedef struct buckets_workspace {
    int32_t (*cells)[3]; // [max_rows]
    int32_t *used;       // [max_buckets] places given
    int32_t *waiting;    // [max_rows] rows without a place, from their sample's first row on
} buckets_workspace;

static buckets_workspace carve_workspace(const spops_buckets_arrays *a, spops_carver *c)
{
    buckets_workspace w;
    w.cells = spops_carve(c, a->max_rows, 1, sizeof *w.cells);
    w.used = spops_carve(c, a->max_buckets, 1, sizeof *w.used);
    w.waiting = spops_carve(c, a->max_rows, 1, sizeof *w.waiting);
    return w;
}

size_t spops_cpu_buckets_workspace_bytes(spops_context *ctx, const spops_buckets_args *args)
{
    spops_carver carver = {NULL, 0};
    (void)ctx;
    (void)carve_workspace(args->arrays, &carver);
    return carver.used;
}

// ---- Cells --------------------------------------------------------------------------------------

typedef struct cell_work {
    const spops_bucket_rule *rule;
    const spops_matrix *points;
    int32_t (*cells)[3];
    uint64_t *codes;
} cell_work;

static void find_cells(const void *work, int64_t begin, int64_t end)
{
    const cell_work *w = (const cell_work *)work;
    for (int64_t r = begin; r < end; ++r) {
        uint32_t nearest[3];
        spops_bucket_row_cell(w->rule, w->points, r, w->cells[r]);
        for (int a = 0; a < 3; ++a)
            nearest[a] = spops_bucket_clamp(w->rule, w->cells[r][a]);
        w->codes[r] = spops_bucket_zorder(nearest);
    }
}

// ---- Samples ------------------------------------------------------------------------------------

typedef struct sample_rows {
    int32_t begin, end; // rows
    int32_t first;      // bucket
    int32_t buckets;
} sample_rows;

// Rounds of a sample; counts come on top of those of the state.
static void place_sample(const spops_buckets_arrays *a, const buckets_workspace *w,
                         const sample_rows *s)
{
    const spops_bucket_rule *rule = &a->rule;
    int32_t num = s->end - s->begin, free_bucket = 0, at = s->begin;
    int32_t *used = s->buckets > 0 ? w->used + s->first : NULL;
    int32_t *waiting = num > 0 ? w->waiting + s->begin : NULL;

    if (used != NULL) memset(used, 0, (size_t)s->buckets * sizeof *used);
    for (int32_t i = 0; i < num; ++i)
        waiting[i] = s->begin + i;
    for (int round = 0; round < rule->num_rounds; ++round) {
        int32_t left = 0;
        for (int32_t i = 0; i < num; ++i) {
            const int32_t r = waiting[i];
            const int32_t b = spops_bucket_hash_of(rule, round, w->cells[r], s->buckets);
            if (used[b] < rule->bucket_rows) {
                a->row_buckets[r] = b;
                a->places[r] = used[b]++;
            } else {
                waiting[left++] = r;
            }
        }
        a->state->num_placed[round] += num - left;
        num = left;
    }
    a->state->num_late += num;
    for (int32_t i = 0; i < num; ++i) {
        while (used[free_bucket] == rule->bucket_rows)
            ++free_bucket;
        a->row_buckets[waiting[i]] = free_bucket;
        a->places[waiting[i]] = used[free_bucket]++;
    }
    for (int32_t b = 0; b < s->buckets; ++b) {
        a->offsets[s->first + b] = at;
        at += used[b];
    }
    for (int32_t r = s->begin; r < s->end; ++r) {
        const int32_t b = s->first + a->row_buckets[r];
        a->row_buckets[r] = b;
        a->places[r] += a->offsets[b];
        a->rows[a->places[r]] = r;
    }
}

static int32_t offset_of(const spops_point_cloud *cloud, int64_t sample)
{
    if (cloud->offsets != NULL) return cloud->offsets[sample];
    return sample == 0 ? 0 : (int32_t)cloud->points.rows;
}

// First buckets of samples, and what is wrong with them.
static void find_samples(const spops_buckets_arrays *a, const spops_point_cloud *cloud,
                         int64_t num_samples)
{
    spops_buckets_state *state = a->state;
    int32_t first = 0;
    for (int64_t b = 0; b < num_samples; ++b) {
        const int32_t begin = offset_of(cloud, b), end = offset_of(cloud, b + 1);
        if ((b == 0 && begin != 0) || end < begin || end > cloud->points.rows) {
            state->bad_offsets = 1;
            return;
        }
        const int32_t buckets = spops_buckets_of(&a->rule, end - begin);
        if (end - begin > (int64_t)buckets * a->rule.bucket_rows && state->full_sample == INT32_MAX)
            state->full_sample = (int32_t)b;
        a->sample_buckets[b] = first;
        first += buckets;
    }
    for (int64_t b = num_samples; b <= a->max_samples; ++b)
        a->sample_buckets[b] = first;
}

spops_status spops_cpu_buckets_build(spops_context *ctx, const spops_buckets_args *args)
{
    const spops_buckets_arrays *a = args->arrays;
    const spops_point_cloud nothing = {{NULL, 0, 3, 3, SPOPS_DTYPE_F32}, NULL, 0};
    const spops_point_cloud *cloud = args->cloud == NULL ? &nothing : args->cloud;
    const int64_t num_samples = args->cloud == NULL      ? 0
                                : cloud->offsets == NULL ? 1
                                                         : cloud->num_samples;
    spops_carver carver = {args->workspace, 0};
    const buckets_workspace w = carve_workspace(a, &carver);
    const cell_work work = {&a->rule, &cloud->points, w.cells, a->codes};
    spops_buckets_state *state = a->state;

    memset(state, 0, sizeof *state);
    state->first_not_finite = state->full_sample = INT32_MAX;
    state->num_samples = (int32_t)num_samples;
    find_samples(a, cloud, num_samples);
    if (state->bad_offsets != 0 || state->full_sample != INT32_MAX) {
        memset(a->sample_buckets, 0, (size_t)(a->max_samples + 1) * sizeof *a->sample_buckets);
        memset(a->offsets, 0, (size_t)(a->max_buckets + 1) * sizeof *a->offsets);
        return SPOPS_STATUS_OK;
    }
    state->num_rows = offset_of(cloud, num_samples);
    state->num_buckets = a->sample_buckets[num_samples];
    spops_parallel_for(spops_team_for(ctx, 16 * (int64_t)state->num_rows), state->num_rows, 0,
                       find_cells, &work);
    for (int64_t b = 0; b < num_samples; ++b) {
        const sample_rows s = {offset_of(cloud, b), offset_of(cloud, b + 1), a->sample_buckets[b],
                               a->sample_buckets[b + 1] - a->sample_buckets[b]};
        place_sample(a, &w, &s);
    }
    for (int64_t b = state->num_buckets; b <= a->max_buckets; ++b)
        a->offsets[b] = state->num_rows;
    for (int32_t r = 0; r < state->num_rows; ++r) {
        if (spops_bucket_row_is_finite(&cloud->points, r)) continue;
        if (state->num_not_finite++ == 0) state->first_not_finite = r;
    }
    return SPOPS_STATUS_OK;
}

// ---- Sub-buckets --------------------------------------------------------------------------------

size_t spops_cpu_sub_buckets_workspace_bytes(spops_context *ctx, const spops_sub_buckets_args *args)
{
    spops_carver carver = {NULL, 0};
    (void)ctx;
    (void)spops_radix_carve(8, args->buckets->max_rows, &carver);
    return carver.used;
}

spops_status spops_cpu_sub_buckets(spops_context *ctx, const spops_sub_buckets_args *args)
{
    const spops_buckets_arrays *a = args->buckets;
    const int32_t n = a->state->num_rows, num_buckets = a->state->num_buckets;
    spops_carver carver = {args->workspace, 0};
    const spops_radix_buffers sort = spops_radix_carve(8, a->max_rows, &carver);
    int32_t sub = 0;
    int64_t sample = 0;
    int at;

    for (int32_t r = 0; r < n; ++r) {
        ((uint64_t *)sort.keys[0])[r] =
            (uint64_t)a->row_buckets[r] << 3 * a->rule.bits | a->codes[r];
        sort.values[0][r] = r;
    }
    at = spops_radix_sort(spops_team_for(ctx, n), spops_sub_bucket_bits(a), n, &sort, 0);
    if (n > 0) memcpy(args->rows, sort.values[at], (size_t)n * sizeof *args->rows);
    for (int32_t b = 0; b < num_buckets; ++b) {
        const int32_t begin = a->offsets[b], rows = a->offsets[b + 1] - begin;
        for (; sample <= a->max_samples && a->sample_buckets[sample] == b; ++sample)
            args->sample_offsets[sample] = sub;
        for (int32_t i = 0; i < rows; ++i)
            args->subs[begin + i] = sub + i / args->sub_rows;
        sub += (int32_t)(((int64_t)rows + args->sub_rows - 1) / args->sub_rows);
    }
    for (; sample <= a->max_samples; ++sample)
        args->sample_offsets[sample] = sub;
    return SPOPS_STATUS_OK;
}
