// SPDX-License-Identifier: Apache-2.0
// The lists of a plan, by segment, by row and by weight, element by element and with their
// schedule: at sizes where the sorts that make them change.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "segments/segments.h"
#include "support/device.h"
#include "tests/support/launch.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"

// Terms in some order, by arrays of n numbers each.
typedef struct terms {
    int64_t n;
    int32_t *segment, *a, *b, *term;
} terms;

static terms make_terms(int64_t n)
{
    const size_t bytes = (size_t)(n > 0 ? n : 1) * sizeof(int32_t);
    const terms t = {n, (int32_t *)malloc(bytes), (int32_t *)malloc(bytes),
                     (int32_t *)malloc(bytes), (int32_t *)malloc(bytes)};
    if (t.segment == NULL || t.a == NULL || t.b == NULL || t.term == NULL) abort();
    return t;
}

static void free_terms(terms *t)
{
    free(t->segment), free(t->a), free(t->b), free(t->term);
}

// The same terms by segment, those of a segment in the order they had; offsets [num_segments + 1].
static terms sort_terms(const terms *t, int64_t num_segments, int32_t *offsets)
{
    terms sorted = make_terms(t->n);
    int32_t *next = (int32_t *)calloc((size_t)num_segments + 1, sizeof *next);
    if (next == NULL) abort();
    for (int64_t i = 0; i < t->n; ++i)
        ++next[t->segment[i] + 1];
    for (int64_t o = 0; o < num_segments; ++o)
        next[o + 1] += next[o];
    memcpy(offsets, next, (size_t)(num_segments + 1) * sizeof *next);
    for (int64_t i = 0; i < t->n; ++i) {
        const int32_t p = next[t->segment[i]]++;
        sorted.segment[p] = t->segment[i];
        sorted.a[p] = t->a[i];
        sorted.b[p] = t->b[i];
        sorted.term[p] = t->term[i];
    }
    free(next);
    return sorted;
}

static void *fetch(test_device *d, const void *from, size_t bytes)
{
    void *p = malloc(bytes > 0 ? bytes : 1);
    cr_assert(p != NULL && (bytes == 0 || device_download(d->backend, p, from, bytes)), "%s",
              device_error());
    return p;
}

// Most and fewest terms of a segment of class c.
static void class_limits(int c, int32_t split_terms, int32_t *fewest, int32_t *most)
{
    *fewest = c == SPOPS_CLASS_SHORT ? 1 : (SPOPS_SHORT_TERMS << (c - 1)) + 1;
    *most = SPOPS_SHORT_TERMS << c;
    if (c == SPOPS_CLASS_BLOCK) *most = split_terms;
    if (c == SPOPS_CLASS_EMPTY) *fewest = *most = 0;
    if (c == SPOPS_CLASS_SPLIT) *fewest = split_terms + 1, *most = INT32_MAX;
}

// Entries name every segment once, in classes by length, and pieces every position of split
// segments.
static void check_schedule(test_device *d, const spops_lists *lists, const spops_schedule *s,
                           const int32_t *offsets, const char *what)
{
    const int64_t n = lists->num_segments;
    spops_work_item *entries =
        (spops_work_item *)fetch(d, lists->entries, (size_t)n * sizeof *entries);
    spops_work_item *pieces =
        (spops_work_item *)fetch(d, lists->pieces, (size_t)s->num_pieces * sizeof *pieces);
    spops_split_segment *splits =
        (spops_split_segment *)fetch(d, lists->splits, (size_t)s->num_splits * sizeof *splits);
    unsigned char *seen = (unsigned char *)calloc((size_t)n + 1, 1);
    int32_t num_pieces = 0;
    cr_assert(s->class_begin[0] == 0 && s->class_begin[SPOPS_NUM_CLASSES] == n, "%s", what);
    for (int c = 0; c < SPOPS_NUM_CLASSES; ++c) {
        int32_t fewest, most, before = -1, length = INT32_MAX;
        class_limits(c, lists->split_terms, &fewest, &most);
        cr_assert(s->class_begin[c] <= s->class_begin[c + 1], "%s: class %d", what, c);
        for (int32_t i = s->class_begin[c]; i < s->class_begin[c + 1]; ++i) {
            const spops_work_item e = entries[i];
            cr_assert(e.segment >= 0 && e.segment < n && !seen[e.segment],
                      "%s: entry %d is segment %d", what, i, e.segment);
            seen[e.segment] = 1;
            cr_assert(e.begin == offsets[e.segment] &&
                          e.begin + e.count == offsets[e.segment + 1] && e.split == -1,
                      "%s: entry %d", what, i);
            cr_assert(e.count >= fewest && e.count <= most, "%s: entry %d of class %d has %d", what,
                      i, c, e.count);
            // Of one length, they come in their order; that also makes it the only right one where
            // a class holds 16 lengths.
            cr_assert(e.count != length || e.segment > before,
                      "%s: entry %d is segment %d after %d", what, i, e.segment, before);
            cr_assert(c != SPOPS_CLASS_SHORT || e.count <= length, "%s: entry %d", what, i);
            before = e.segment;
            length = e.count;
        }
    }
    cr_assert(s->num_splits ==
                  s->class_begin[SPOPS_NUM_CLASSES] - s->class_begin[SPOPS_CLASS_SPLIT],
              "%s: %d splits", what, s->num_splits);
    for (int32_t i = 0; i < s->num_splits; ++i) {
        const spops_work_item e = entries[s->class_begin[SPOPS_CLASS_SPLIT] + i];
        int32_t position = e.begin;
        cr_assert(splits[i].segment == e.segment && splits[i].count == e.count &&
                      splits[i].first_piece == num_pieces && splits[i].num_pieces > 1,
                  "%s: split %d", what, i);
        for (int32_t k = 0; k < splits[i].num_pieces; ++k, ++num_pieces) {
            const spops_work_item piece = pieces[num_pieces];
            cr_assert(piece.segment == e.segment && piece.split == i && piece.begin == position &&
                          piece.count > 0 && piece.count <= lists->split_terms,
                      "%s: piece %d", what, num_pieces);
            position += piece.count;
        }
        cr_assert(position == offsets[e.segment + 1], "%s: split %d", what, i);
    }
    cr_assert(num_pieces == s->num_pieces, "%s: %d pieces", what, s->num_pieces);
    free(entries), free(pieces), free(splits), free(seen);
}

static void check_lists(test_device *d, const spops_lists *lists, const terms *sorted,
                        const int32_t *offsets, int64_t dropped, const char *what)
{
    const int64_t n = lists->num_segments;
    spops_schedule *s = (spops_schedule *)fetch(d, lists->schedule, sizeof *s);
    int32_t *found = (int32_t *)fetch(d, lists->offsets, (size_t)(n + 1) * sizeof *found);
    int32_t *pairs = (int32_t *)fetch(d, lists->pairs, (size_t)sorted->n * 2 * sizeof *pairs);
    int32_t *order = (int32_t *)fetch(d, lists->order, (size_t)sorted->n * sizeof *order);
    int32_t longest = 0, num_nonempty = 0;
    for (int64_t o = 0; o <= n; ++o)
        cr_assert(found[o] == offsets[o], "%s: offsets[%lld] is %d, expected %d", what,
                  (long long)o, found[o], offsets[o]);
    for (int64_t o = 0; o < n; ++o) {
        const int32_t count = offsets[o + 1] - offsets[o];
        longest = count > longest ? count : longest;
        num_nonempty += count > 0;
    }
    for (int64_t p = 0; p < sorted->n; ++p)
        cr_assert(pairs[2 * p] == sorted->a[p] && pairs[2 * p + 1] == sorted->b[p] &&
                      order[p] == sorted->term[p],
                  "%s: position %lld takes %d, %d of term %d, expected %d, %d of %d", what,
                  (long long)p, pairs[2 * p], pairs[2 * p + 1], order[p], sorted->a[p],
                  sorted->b[p], sorted->term[p]);
    cr_assert(s->num_terms == sorted->n && s->longest == longest &&
                  s->num_nonempty == num_nonempty && s->split_terms == lists->split_terms &&
                  s->num_dropped == dropped && s->overflow == 0,
              "%s: %d terms, longest %d, %d not empty, split at %d, %d dropped", what, s->num_terms,
              s->longest, s->num_nonempty, s->split_terms, s->num_dropped);
    if (d->backend == SPOPS_BACKEND_CUDA) check_schedule(d, lists, s, offsets, what);
    free(s), free(found), free(pairs), free(order);
}

// All three lists of a plan of these terms, which are in the order of their numbers. Where a term
// is its own weight, the lists by weight are made without the forward ones.
static void check_plan(test_device *d, const spops_segments *plan, const terms *t, int64_t dropped,
                       bool own_weights, const char *what)
{
    const int64_t most_segments = plan->num_segments + plan->num_rows + plan->num_weights;
    int32_t *offsets = (int32_t *)malloc((size_t)(most_segments + 1) * sizeof *offsets);
    char text[256];
    terms forward = sort_terms(t, plan->num_segments, offsets);
    check_lists(d, &plan->forward, &forward, offsets, dropped, what);
    // By row and by weight, the number that becomes the segment gives its place to the segment.
    terms by = {forward.n, forward.a, forward.segment, forward.b, forward.term};
    terms sorted = sort_terms(&by, plan->num_rows, offsets);
    check_lists(d, &plan->by_row, &sorted, offsets, 0, test_describe(text, "%s, by row", what));
    free_terms(&sorted);
    by = (terms){forward.n, forward.b, forward.a, forward.segment, forward.term};
    sorted = sort_terms(&by, plan->num_weights, offsets);
    check_lists(d, &plan->by_weight, &sorted, offsets, own_weights ? dropped : 0,
                test_describe(text, "%s, by weight", what));
    free_terms(&sorted);
    free_terms(&forward);
    free(offsets);
}

// Sorts in tiles of 1,024 terms and 512 segments, by digits of up to 9 bits; more than 2^20 terms
// are sorted by other means.
static const struct {
    int64_t segments, terms, rows, weights;
    bool skewed; // half of the terms in one segment
} cases[] = {
    {1, 1, 1, 1, false},
    {2, 1023, 512, 1024, false},
    {512, 1024, 513, 262144, false},
    {513, 1025, 262145, 1, false},
    {262144, 5000, 1025, 600000, true},
    {300000, 40000, 40000, 5, false},
    {16384, 130000, 1000, 130000, true},
    {70, 1 << 20, 300000, 70000, false},
    {1000, (1 << 20) + 1, 300000, 70000, true},
};

static void check_case(test_device *d, size_t i, bool refilled, bool own_weights)
{
    const int64_t n = cases[i].terms;
    const int64_t num_weights = own_weights ? n + 77 : cases[i].weights;
    test_rng rng = test_rng_make(i);
    terms given = make_terms(n), kept = make_terms(n);
    spops_segments_options options = spops_segments_options_default();
    spops_segments *plan = NULL;
    int64_t dropped = 0;
    char text[256];
    const char *what =
        test_describe(text, "%s, case %zu%s%s", test_backend_name(d->backend), i,
                      refilled ? ", refilled" : "", own_weights ? ", own weights" : "");
    // A refilled plan is given fewer terms than fit, and some that name nothing.
    const int32_t num_terms = (int32_t)(refilled ? n - n / 10 : n);
    kept.n = 0;
    for (int64_t t = 0; t < n; ++t) {
        const bool bad = refilled && test_rng_below(&rng, 7) == 0;
        const bool hot = cases[i].skewed && test_rng_below(&rng, 2) == 0;
        given.segment[t] = hot ? (int32_t)(cases[i].segments / 2)
                               : (int32_t)test_rng_below(&rng, cases[i].segments);
        given.a[t] = (int32_t)test_rng_below(&rng, cases[i].rows);
        given.b[t] = own_weights ? (int32_t)t : (int32_t)test_rng_below(&rng, num_weights);
        if (bad) given.segment[t] = t % 2 == 0 ? -1 : (int32_t)cases[i].segments;
        if (t >= num_terms) continue;
        dropped += bad;
        if (bad) continue;
        kept.segment[kept.n] = given.segment[t];
        kept.a[kept.n] = given.a[t];
        kept.b[kept.n] = given.b[t];
        kept.term[kept.n++] = (int32_t)t;
    }
    int32_t *keys = test_upload_i32(d, given.segment, n);
    int32_t *idx = test_upload_i32(d, given.a, n);
    int32_t *weight_idx = own_weights ? NULL : test_upload_i32(d, given.b, n);
    int32_t *count = test_upload_i32(d, &num_terms, 1);
    options.num_rows = cases[i].rows;
    options.num_weights = num_weights;
    options.max_cols = 64;
    options.gradients = SPOPS_GRADIENTS_LINEAR;
    if (refilled) {
        test_expect_ok(d->ctx,
                       spops_segments_reserve(d->ctx, cases[i].segments, n, &options, &plan), what);
        test_expect_ok(d->ctx, spops_segments_update(d->ctx, plan, count, keys, idx, weight_idx),
                       what);
        test_wait(d);
    } else {
        options.idx = idx;
        options.weight_idx = weight_idx;
        test_expect_ok(d->ctx,
                       spops_segments_create_from_keys(d->ctx, cases[i].segments, n, keys,
                                                       SPOPS_KEYS_UNSORTED, &options, &plan),
                       what);
    }
    check_plan(d, plan, &kept, dropped, own_weights, what);
    spops_segments_destroy(plan);
    test_free(d, keys), test_free(d, idx), test_free(d, weight_idx), test_free(d, count);
    free_terms(&given), free_terms(&kept);
}

BackendTest(lists, hold_every_term, .timeout = 600)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        if (test_quick() && cases[i].terms > 100000) continue;
        for (int own_weights = 0; own_weights <= 1; ++own_weights) {
            check_case(&d, i, false, own_weights != 0);
            check_case(&d, i, true, own_weights != 0);
        }
    }
    test_close(&d);
}
