// SPDX-License-Identifier: Apache-2.0
// Plans on the CPU: lists from offsets or keys, inverted lists, index checks. Unsorted keys go
// through a stable parallel radix sort, whose result no number of threads can change.

#include <assert.h>
#include <string.h>

#include "backends/backend_cpu.h"
#include "core/radix_sort.h"
#include "core/threads.h"
#include "segments/runs.h"

// ---- Workspace ----------------------------------------------------------------------------------

#define MAX_ORDER_PARTS 64 // and of other work
#define MAX_BUCKET_BITS 12

// How segments are bucketed by their first row. It follows from sizes alone, since a plan may be
// refilled by a context with more threads than the one that made its workspace.
typedef struct order_plan {
    int bucket_bits;
    int num_parts; // of the segments
} order_plan;

typedef struct sort_workspace {
    spops_radix_buffers sort; // of 32-bit keys, which are segments; the values are terms
    int32_t *segments;        // [max_terms] of a forward position; lists_invert's own
    int32_t *buckets;         // [num_parts][2^bucket_bits + 1] of the order plan
} sort_workspace;

// Keys are 0 .. num_segments, the last for dropped ones.
static int key_bits(int64_t num_segments)
{
    int bits = 1;
    while (bits < 32 && num_segments >> bits > 0)
        ++bits;
    return bits;
}

static order_plan plan_order(int64_t num_segments)
{
    order_plan plan;
    int64_t parts;
    plan.bucket_bits = 4;
    while (plan.bucket_bits < MAX_BUCKET_BITS && (int64_t)4 << plan.bucket_bits < num_segments)
        ++plan.bucket_bits;
    parts = num_segments >> (plan.bucket_bits + 2);
    plan.num_parts = parts < 1 ? 1 : parts < MAX_ORDER_PARTS ? (int)parts : MAX_ORDER_PARTS;
    return plan;
}

static sort_workspace carve_workspace(const spops_lists *lists, spops_carver *c)
{
    const order_plan order = plan_order(lists->num_segments);
    const int64_t max_terms = spops_lists_sorted_terms(lists);
    sort_workspace w;
    w.sort = spops_radix_carve(sizeof(uint32_t), max_terms, c);
    w.segments = (int32_t *)spops_carve(c, max_terms, 1, sizeof(int32_t));
    w.buckets = (int32_t *)spops_carve(c, order.num_parts, ((int64_t)1 << order.bucket_bits) + 1,
                                       sizeof(int32_t));
    return w;
}

size_t spops_cpu_lists_workspace_bytes(spops_context *ctx, const spops_lists *lists)
{
    spops_carver c = {NULL, 0};
    (void)ctx;
    carve_workspace(lists, &c);
    return c.used;
}

// Never depends on the number of threads, because the order of additions depends on it.
int32_t spops_cpu_split_terms(const spops_context *ctx, const spops_split_terms_args *args)
{
    // At most 1024 pieces, so that their partial states stay small; 2048 terms are a few
    // microseconds.
    const int64_t terms = args->max_terms / 512;
    (void)ctx;
    return terms < 2048 ? 2048 : (int32_t)terms;
}

// ---- Offsets --------------------------------------------------------------------------------------

typedef struct offsets_work {
    int64_t num_segments, n;
    const uint32_t *keys;
    int32_t *offsets;
} offsets_work;

static void offsets_of_range(const void *work, int64_t begin, int64_t end)
{
    const offsets_work *w = (const offsets_work *)work;
    for (int64_t i = begin; i < end; ++i) {
        // Segments after the key before, up to this one, begin here.
        const int64_t first = i > 0 ? (int64_t)w->keys[i - 1] + 1 : 0;
        const int64_t last = i < w->n ? (int64_t)w->keys[i] : w->num_segments;
        for (int64_t o = first; o <= last; ++o)
            w->offsets[o] = (int32_t)i;
    }
}

// Offsets of segments from n ascending keys; keys of num_segments (dropped) come last.
static void offsets_of_keys(spops_team team, int64_t num_segments, int64_t n, const uint32_t *keys,
                            int32_t *offsets)
{
    const offsets_work work = {num_segments, n, keys, offsets};
    spops_parallel_for(team, n + 1, 0, offsets_of_range, &work);
}

// ---- Schedule -----------------------------------------------------------------------------------

// Cut segments longer than split_terms into equal pieces.
static void fill_pieces(spops_lists *lists)
{
    spops_schedule *schedule = lists->schedule;
    for (int64_t o = 0; o < lists->num_segments; ++o) {
        const int32_t begin = lists->offsets[o], count = lists->offsets[o + 1] - begin;
        if (count <= lists->split_terms) continue;
        const int32_t num_pieces = (count - 1) / lists->split_terms + 1;
        const int32_t split = schedule->num_splits++;
        assert(split < lists->max_splits && schedule->num_pieces + num_pieces <= lists->max_pieces);
        lists->splits[split] =
            (spops_split_segment){(int32_t)o, schedule->num_pieces, num_pieces, count};
        for (int32_t i = 0; i < num_pieces; ++i) {
            const int32_t first = (int32_t)spops_part_begin(count, i, num_pieces);
            const int32_t last = (int32_t)spops_part_begin(count, i + 1, num_pieces);
            lists->pieces[schedule->num_pieces++] =
                (spops_work_item){(int32_t)o, begin + first, last - first, split};
        }
    }
}

// How the segments' lists lie in the rows they read.
typedef struct row_statistics {
    int32_t max_row; // of first and last rows
    int64_t span;    // sum of the distances from first to last row
} row_statistics;

typedef struct list_statistics {
    int32_t longest, num_nonempty;
    row_statistics rows;
} list_statistics;

// Whether segments that follow each other by row find each other's rows in the cache: rows are read
// several times, and those of one segment are near each other. Rows that are all over the place are
// better served in the order of the segments, which is that of the output.
static bool rows_are_local(const spops_lists *lists, row_statistics rows)
{
    const spops_schedule *schedule = lists->schedule;
    return lists->pairs != NULL && schedule->num_terms / 2 > rows.max_row &&
           rows.span <= (int64_t)schedule->num_nonempty * rows.max_row / 4; // 1/3 if random
}

// Bucket of a segment: by first row; the last one for segments without terms; -1 for split ones.
static int64_t bucket_of(const spops_lists *lists, int64_t segment, int shift, int64_t num_buckets)
{
    const int64_t begin = lists->offsets[segment], count = lists->offsets[segment + 1] - begin;
    if (count == 0) return num_buckets - 1;
    if (count > lists->split_terms) return -1;
    return lists->pairs[2 * begin] >> shift;
}

typedef struct entries_work {
    const spops_lists *lists;
    int32_t *buckets; // [part][num_buckets]
    int64_t num_buckets;
    int shift;
} entries_work;

static void count_buckets(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const entries_work *w = (const entries_work *)work;
    int32_t *counts = w->buckets + part * w->num_buckets;
    memset(counts, 0, (size_t)w->num_buckets * sizeof *counts);
    for (int64_t o = begin; o < end; ++o) {
        const int64_t bucket = bucket_of(w->lists, o, w->shift, w->num_buckets);
        if (bucket >= 0) ++counts[bucket];
    }
}

static void place_entries(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const entries_work *w = (const entries_work *)work;
    const int32_t *offsets = w->lists->offsets;
    int32_t *next = w->buckets + part * w->num_buckets;
    for (int64_t o = begin; o < end; ++o) {
        const int64_t bucket = bucket_of(w->lists, o, w->shift, w->num_buckets);
        if (bucket >= 0)
            w->lists->entries[next[bucket]++] =
                (spops_work_item){(int32_t)o, offsets[o], offsets[o + 1] - offsets[o], -1};
    }
}

// Entries: whole segments in order of their first row, about; then those without terms.
static void fill_entries(spops_team team, row_statistics rows, spops_lists *lists, int32_t *buckets)
{
    const order_plan plan = plan_order(lists->num_segments);
    const int64_t num_buckets = ((int64_t)1 << plan.bucket_bits) + 1;
    spops_schedule *schedule = lists->schedule;
    const int32_t num_whole = schedule->num_nonempty - schedule->num_splits;
    entries_work work = {lists, buckets, num_buckets, 0};

    while (rows.max_row >> work.shift >= num_buckets - 1)
        ++work.shift;
    spops_parallel_parts(team, plan.num_parts, lists->num_segments, count_buckets, &work);
    (void)spops_radix_scan(buckets, plan.num_parts, num_buckets, lists->num_segments);
    spops_parallel_parts(team, plan.num_parts, lists->num_segments, place_entries, &work);
    // One class for all that have terms: a thread takes a whole segment, however long.
    schedule->class_begin[SPOPS_CLASS_EMPTY] = num_whole;
    for (int c = SPOPS_CLASS_SPLIT; c <= SPOPS_NUM_CLASSES; ++c)
        schedule->class_begin[c] = (int32_t)(lists->num_segments - schedule->num_splits);
}

// What statistics are taken from, which is what lists have or will have.
typedef struct statistics_work {
    const int32_t *offsets, *rows; // rows[p * row_stride] of position p; NULL: not wanted
    int64_t row_stride;
    list_statistics *parts; // [part]
} statistics_work;

// Whether they may be: the first rows of some segments tell most lists that are not.
static bool may_be_local(const statistics_work *w, int64_t num_segments)
{
    const int32_t *offsets = w->offsets, num_terms = offsets[num_segments];
    if (w->rows == NULL) return false;
    for (int64_t i = 0; i < 64; ++i) {
        const int64_t o = spops_part_begin(num_segments, i, 64);
        if (o < num_segments && offsets[o] < offsets[o + 1] &&
            w->rows[offsets[o] * w->row_stride] >= num_terms / 2)
            return false;
    }
    return true;
}

static statistics_work statistics_make(const int32_t *offsets, const int32_t *rows,
                                       int64_t row_stride, int64_t num_segments,
                                       list_statistics *parts)
{
    statistics_work w = {offsets, rows, row_stride, parts};
    if (!may_be_local(&w, num_segments)) w.rows = NULL;
    return w;
}

static void statistics_of_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const statistics_work *w = (const statistics_work *)work;
    const int32_t *offsets = w->offsets, *rows = w->rows;
    list_statistics s = {0};

    for (int64_t o = begin; o < end; ++o) {
        const int64_t p = offsets[o], q = offsets[o + 1];
        const int32_t count = (int32_t)(q - p);
        s.longest = count > s.longest ? count : s.longest;
        s.num_nonempty += count > 0;
        if (rows != NULL && count > 0) {
            const int32_t first = rows[p * w->row_stride], last = rows[(q - 1) * w->row_stride];
            const int32_t larger = first > last ? first : last;
            s.rows.max_row = larger > s.rows.max_row ? larger : s.rows.max_row;
            s.rows.span += first > last ? first - last : last - first;
        }
    }
    w->parts[part] = s;
}

// The schedule of lists whose offsets and pairs are there, from statistics of each part of them.
static void finish_schedule(spops_team team, spops_lists *lists, const statistics_work *work,
                            int num_parts, const sort_workspace *w)
{
    spops_schedule *schedule = lists->schedule;
    list_statistics all = {0};

    for (int i = 0; i < num_parts; ++i) {
        const list_statistics *s = &work->parts[i];
        all.longest = s->longest > all.longest ? s->longest : all.longest;
        all.num_nonempty += s->num_nonempty;
        if (s->rows.max_row > all.rows.max_row) all.rows.max_row = s->rows.max_row;
        all.rows.span += s->rows.span;
    }
    memset(schedule, 0, sizeof *schedule);
    schedule->num_terms = lists->offsets[lists->num_segments];
    schedule->split_terms = lists->split_terms;
    schedule->num_nonempty = all.num_nonempty;
    schedule->longest = all.longest;
    if (all.longest > lists->split_terms) fill_pieces(lists);
    if (work->rows != NULL && rows_are_local(lists, all.rows))
        fill_entries(team, all.rows, lists, w->buckets);
}

static void fill_schedule(spops_team team, spops_lists *lists, const sort_workspace *w)
{
    const int64_t num_segments = lists->num_segments;
    const int num_parts = spops_team_parts(team, MAX_ORDER_PARTS);
    list_statistics parts[MAX_ORDER_PARTS];
    const statistics_work work =
        statistics_make(lists->offsets, lists->pairs, 2, num_segments, parts);
    spops_parallel_parts(team, num_parts, num_segments, statistics_of_part, &work);
    finish_schedule(team, lists, &work, num_parts, w);
}

// ---- Lists --------------------------------------------------------------------------------------

static int32_t number_of(const int32_t *array, int64_t term)
{
    return array != NULL ? array[term] : (int32_t)term;
}

typedef struct positions_work {
    const spops_lists_source *source;
    const int32_t *terms;
    const spops_lists *lists;
} positions_work;

static void fill_range(const void *work, int64_t begin, int64_t end)
{
    const positions_work *w = (const positions_work *)work;
    const spops_lists_source *source = w->source;
    int32_t *pairs = w->lists->pairs, *order = w->lists->order;
    if (w->terms == NULL && pairs != NULL && order != NULL && source->a != NULL &&
        source->a == source->b && source->a == source->term) { // of voxels: points, as they lie
        for (int64_t p = begin; p < end; ++p)
            pairs[2 * p] = pairs[2 * p + 1] = order[p] = source->a[p];
        return;
    }
    for (int64_t p = begin; p < end; ++p) {
        const int32_t term = number_of(w->terms, p);
        if (pairs != NULL) {
            pairs[2 * p] = number_of(source->a, term);
            pairs[2 * p + 1] = number_of(source->b, term);
        }
        if (order != NULL) order[p] = number_of(source->term, term);
    }
}

// Pairs and order of n positions; terms[p] is the source's term at position p (NULL: p itself).
static void fill_positions(spops_team team, const spops_lists_source *source, int64_t n,
                           const int32_t *terms, spops_lists *lists)
{
    const positions_work work = {source, terms, lists};
    if (lists->pairs == NULL && lists->order == NULL) return;
    spops_parallel_for(team, n, 0, fill_range, &work);
}

typedef struct copy_work {
    positions_work positions;
    statistics_work statistics;
    int64_t n;
    int num_parts;
} copy_work;

static void copy_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const copy_work *w = (const copy_work *)work;
    memcpy(w->positions.lists->offsets + begin, w->positions.source->offsets + begin,
           (size_t)(end - begin) * sizeof(int32_t));
    statistics_of_part(&w->statistics, part, begin, end);
    fill_range(&w->positions, spops_part_begin(w->n, part, w->num_parts),
               spops_part_begin(w->n, part + 1, w->num_parts));
}

// Lists of n positions whose source has offsets, and their schedule, in one go.
static void copy_lists(spops_team team, const spops_lists_source *source, int64_t n,
                       spops_lists *lists, const sort_workspace *w)
{
    const int64_t num_segments = lists->num_segments;
    list_statistics parts[MAX_ORDER_PARTS];
    const copy_work work = {{source, NULL, lists},
                            statistics_make(source->offsets,
                                            lists->pairs != NULL ? source->a : NULL, 1,
                                            num_segments, parts),
                            n,
                            spops_team_parts(team, MAX_ORDER_PARTS)};
    spops_parallel_parts(team, work.num_parts, num_segments, copy_part, &work);
    lists->offsets[num_segments] = source->offsets[num_segments];
    finish_schedule(team, lists, &work.statistics, work.num_parts, w);
}

static bool term_counts(const spops_lists_source *source, int64_t num_segments, int64_t t)
{
    const int32_t key = number_of(source->keys, t);
    const int32_t a = number_of(source->a, t), b = number_of(source->b, t);
    if (!source->drop_invalid) return true;
    return key >= 0 && key < num_segments && a >= 0 && a < source->a_limit && b >= 0 &&
           b < source->b_limit;
}

typedef struct terms_work {
    const spops_lists_source *source;
    int64_t num_segments;
    const sort_workspace *w;
    int32_t *counts;  // [part]
    int32_t *dropped; // [part] left out and counted, where that may be fewer than are left out
} terms_work;

static void keys_of_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const terms_work *t = (const terms_work *)work;
    uint32_t *keys = (uint32_t *)t->w->sort.keys[0];
    const bool skip = t->source->skip_negative;
    int32_t *values = t->w->sort.values[0], num_out = 0, num_dropped = 0;
    for (int64_t i = begin; i < end; ++i) {
        const bool counts = term_counts(t->source, t->num_segments, i);
        keys[i] = counts ? (uint32_t)t->source->keys[i] : (uint32_t)t->num_segments;
        values[i] = (int32_t)i;
        num_out += !counts;
        num_dropped += !counts && !(skip && t->source->keys[i] < 0);
    }
    t->counts[part] = num_out;
    t->dropped[part] = num_dropped;
}

// Keys and term numbers of the source into the workspace; a term that is left out gets the key
// num_segments, which sorts after all others. Returns how many there are, and how many of them
// count as dropped.
static int64_t fill_keys(spops_team team, const spops_lists_source *source, int64_t num_segments,
                         int64_t n, const sort_workspace *w, int64_t *num_dropped)
{
    int32_t counts[MAX_ORDER_PARTS], dropped[MAX_ORDER_PARTS];
    const terms_work work = {source, num_segments, w, counts, dropped};
    const int num_parts = spops_team_parts(team, MAX_ORDER_PARTS);
    int64_t num_out = 0;

    spops_parallel_parts(team, num_parts, n, keys_of_part, &work);
    for (int part = 0; part < num_parts; ++part) {
        num_out += counts[part];
        *num_dropped += dropped[part];
    }
    return num_out;
}

static void count_kept(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const terms_work *t = (const terms_work *)work;
    int32_t count = 0;
    for (int64_t i = begin; i < end; ++i)
        count += term_counts(t->source, t->num_segments, i);
    t->counts[part] = count;
}

static void place_kept(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const terms_work *t = (const terms_work *)work;
    uint32_t *keys = (uint32_t *)t->w->sort.keys[0];
    int32_t *values = t->w->sort.values[0], p = t->counts[part];
    for (int64_t i = begin; i < end; ++i)
        if (term_counts(t->source, t->num_segments, i)) {
            keys[p] = (uint32_t)i;
            values[p++] = (int32_t)i;
        }
}

// Likewise, where a term is its own segment: those that count are in order, and the others left out.
static int64_t keep_own(spops_team team, const spops_lists_source *source, int64_t num_segments,
                        int64_t n, const sort_workspace *w)
{
    int32_t counts[MAX_ORDER_PARTS];
    const terms_work work = {source, num_segments, w, counts, NULL};
    const int num_parts = spops_team_parts(team, MAX_ORDER_PARTS);
    int32_t num_kept = 0;

    spops_parallel_parts(team, num_parts, n, count_kept, &work);
    for (int part = 0; part < num_parts; ++part) {
        const int32_t count = counts[part];
        counts[part] = num_kept;
        num_kept += count;
    }
    spops_parallel_parts(team, num_parts, n, place_kept, &work);
    return n - num_kept;
}

spops_status spops_cpu_lists_build(spops_context *ctx, const spops_lists_build_args *args)
{
    const spops_lists_source *source = args->source;
    spops_lists *lists = args->lists;
    const int64_t num_segments = lists->num_segments;
    const spops_team team = spops_team_for(ctx, num_segments + source->num_terms);
    spops_carver c = {(char *)args->workspace, 0};
    const sort_workspace w = carve_workspace(lists, &c);
    int64_t n = source->num_terms, num_dropped = 0;
    bool overflow = false;

    if (source->num_terms_device != NULL) {
        const int32_t wanted = *source->num_terms_device;
        overflow = wanted > n;
        n = overflow ? n : wanted < 0 ? 0 : wanted;
    }
    assert(n <= lists->max_terms);
    assert(!lists->in_order || n == 0 || spops_source_in_order(source));
    if (source->offsets != NULL) {
        if (source->drop_invalid) num_dropped = source->num_terms - n; // offsets leave them out
        copy_lists(team, source, n, lists, &w);
    } else if (source->keys != NULL && source->keys_sorted && !source->drop_invalid) {
        offsets_of_keys(team, num_segments, n, (const uint32_t *)source->keys, lists->offsets);
        fill_positions(team, source, n, NULL, lists);
    } else {
        int sorted = 0;
        if (source->keys != NULL) {
            const int64_t num_out = fill_keys(team, source, num_segments, n, &w, &num_dropped);
            sorted = spops_radix_sort(team, key_bits(num_segments), n, &w.sort, 0);
            n -= num_out;
        } else {
            num_dropped = keep_own(team, source, num_segments, n, &w);
            n -= num_dropped;
        }
        offsets_of_keys(team, num_segments, n, (const uint32_t *)w.sort.keys[sorted],
                        lists->offsets);
        fill_positions(team, source, n, w.sort.values[sorted], lists);
    }
    if (source->offsets == NULL) fill_schedule(team, lists, &w);
    lists->schedule->num_dropped = (int32_t)num_dropped;
    lists->schedule->overflow = overflow;
    return SPOPS_STATUS_OK;
}

typedef struct invert_work {
    const spops_lists *forward, *lists;
    const sort_workspace *w;
    int64_t num_runs;
    int by;     // the number of a pair that becomes the segment
    int sorted; // where the sorted keys are
} invert_work;

static void segments_of_runs(const void *work, int64_t begin, int64_t end)
{
    const invert_work *w = (const invert_work *)work;
    const spops_lists *lists = w->forward;
    for (int64_t r = begin; r < end; ++r) {
        const int64_t last = spops_run_begin(lists, w->num_runs, r + 1);
        for (int64_t o = spops_run_begin(lists, w->num_runs, r); o < last; ++o) {
            for (int32_t p = lists->offsets[o]; p < lists->offsets[o + 1]; ++p)
                w->w->segments[p] = (int32_t)o;
        }
    }
}

static void keys_of_pairs(const void *work, int64_t begin, int64_t end)
{
    const invert_work *w = (const invert_work *)work;
    const int32_t *pairs = w->forward->pairs;
    for (int64_t p = begin; p < end; ++p) {
        ((uint32_t *)w->w->sort.keys[0])[p] = (uint32_t)(pairs != NULL ? pairs[2 * p + w->by] : p);
        w->w->sort.values[0][p] = (int32_t)p;
    }
}

static void invert_range(const void *work, int64_t begin, int64_t end)
{
    const invert_work *w = (const invert_work *)work;
    const spops_lists *forward = w->forward, *lists = w->lists;
    const int32_t *pairs = forward->pairs, *segments = w->w->segments;
    for (int64_t i = begin; i < end; ++i) {
        const int32_t p = w->w->sort.values[w->sorted][i];
        const int32_t kept = pairs != NULL ? pairs[2 * (int64_t)p + (1 - w->by)] : p;
        lists->pairs[2 * i] = w->by == 0 ? segments[p] : kept;
        lists->pairs[2 * i + 1] = w->by == 0 ? kept : segments[p];
        if (lists->order != NULL) lists->order[i] = number_of(forward->order, p);
    }
}

spops_status spops_cpu_lists_invert(spops_context *ctx, const spops_lists_invert_args *args)
{
    const spops_lists *forward = args->forward;
    const spops_inverse inverse = args->inverse;
    spops_lists *lists = args->lists;
    const int64_t num_segments = lists->num_segments, n = forward->schedule->num_terms;
    const spops_team team = spops_team_for(ctx, num_segments + n);
    spops_carver c = {(char *)args->workspace, 0};
    const sort_workspace w = carve_workspace(lists, &c);
    invert_work work = {
        forward, lists, &w, spops_runs_count(forward, team.size), inverse == SPOPS_BY_ROW ? 0 : 1,
        0};

    assert(n <= lists->max_terms);
    assert(n == 0 || lists->pairs != NULL);
    spops_parallel_for(team, work.num_runs, 1, segments_of_runs, &work);
    spops_parallel_for(team, n, 0, keys_of_pairs, &work);
    work.sorted = spops_radix_sort(team, key_bits(num_segments), n, &w.sort, 0);
    offsets_of_keys(team, num_segments, n, (const uint32_t *)w.sort.keys[work.sorted],
                    lists->offsets);
    spops_parallel_for(team, n, 0, invert_range, &work);
    fill_schedule(team, lists, &w);
    return SPOPS_STATUS_OK;
}

// ---- Checks -------------------------------------------------------------------------------------

// First index of begin .. end - 1 that breaks the rule, or end.
static int64_t first_violation(spops_check_rule rule, const int32_t *a, int64_t begin, int64_t end,
                               int64_t low, int64_t high)
{
    if (rule == SPOPS_CHECK_RANGE) {
        for (int64_t i = begin; i < end; ++i) {
            if (a[i] < low || a[i] >= high) return i;
        }
    } else {
        for (int64_t i = begin > 0 ? begin : 1; i < end; ++i) {
            if (a[i - 1] > a[i]) return i;
        }
    }
    return end;
}

typedef struct check_work {
    const spops_check_indices_args *args;
    int64_t *first; // [part], -1 for none
} check_work;

static void check_part(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const check_work *w = (const check_work *)work;
    const spops_check_indices_args *args = w->args;
    const int64_t i = first_violation(args->rule, args->a, begin, end, args->low, args->high);
    w->first[part] = i < end ? i : -1;
}

spops_status spops_cpu_check_indices(spops_context *ctx, const spops_check_indices_args *args)
{
    const int32_t *a = args->a;
    const int64_t n = args->n;
    spops_check_result *result = args->result;
    const spops_team team = spops_team_for(ctx, n);
    const int num_parts = spops_team_parts(team, MAX_ORDER_PARTS);
    int64_t found[MAX_ORDER_PARTS], first = n;
    const check_work work = {args, found};

    spops_parallel_parts(team, num_parts, n, check_part, &work);
    for (int part = num_parts - 1; part >= 0; --part)
        if (found[part] >= 0) first = found[part];
    result->index = first < n ? first : -1;
    result->value = first < n ? a[first] : 0;
    result->previous = first < n && first > 0 ? a[first - 1] : 0;
    return SPOPS_STATUS_OK;
}
