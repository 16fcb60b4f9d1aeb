// SPDX-License-Identifier: Apache-2.0
#include "tests/support/relation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"

const test_shape test_shapes[] = {
    {"nothing", 0, LENGTHS_EMPTY, 0, 256},
    {"one term", 1, LENGTHS_UNIFORM, 1, 256},
    {"one segment without terms", 1, LENGTHS_EMPTY, 0, 256},
    {"all empty", 300, LENGTHS_EMPTY, 0, 256},
    {"single terms", 37, LENGTHS_UNIFORM, 1, 256},
    {"edges", 40, LENGTHS_EDGES, 0, 33},
    {"empties in front", 400, LENGTHS_EMPTY_FRONT, 3, 80},
    {"empties after", 400, LENGTHS_EMPTY_BACK, 3, 80},
    {"ramp", 64, LENGTHS_RAMP, 20, 256},
    {"one huge", 50, LENGTHS_ONE_HUGE, 5000, 5},
    {"power law", 500, LENGTHS_POWER_LAW, 4000, 33},
    // Left out when quick.
    {"edges, wide", 20, LENGTHS_EDGES, 0, 256},
    {"uniform", 2000, LENGTHS_UNIFORM, 8, 80},
    {"one huge, wide", 9, LENGTHS_ONE_HUGE, 2100, 256},
    {"one very huge", 3, LENGTHS_ONE_HUGE, 70000, 4},
    {"all huge", 6, LENGTHS_UNIFORM, 4097, 31},
};

enum { NUM_QUICK_SHAPES = 11 };

bool test_quick(void)
{
    const char *text = getenv("SPOPS_TEST_QUICK");
    return text != NULL && strcmp(text, "1") == 0;
}

int test_num_shapes(void)
{
    return test_quick() ? NUM_QUICK_SHAPES : (int)(sizeof test_shapes / sizeof test_shapes[0]);
}

static void *allocate(int64_t n, size_t size)
{
    void *p = calloc(n > 0 ? (size_t)n : 1, size);
    if (p == NULL) abort();
    return p;
}

static int64_t length_of(const test_shape *shape, int64_t s, test_rng *rng)
{
    static const int64_t edges[] = {1,  2,  3, 15,  16,  17,  31,  32,  33,  63,
                                    64, 65, 0, 127, 128, 129, 255, 256, 257, 0};
    const int64_t n = shape->num_segments;
    switch (shape->lengths) {
    case LENGTHS_UNIFORM: return shape->param;
    case LENGTHS_POWER_LAW: {
        // Lengths proportional to 1 / rank, ranks in random order; the tail is empty or single.
        const double rank = 1.0 + (double)test_rng_below(rng, n);
        return (int64_t)floor((double)shape->param / (7.0 * rank));
    }
    case LENGTHS_ONE_HUGE: return s == n / 3 ? shape->param : s % 3 == 0 ? 0 : 1;
    case LENGTHS_EMPTY: return 0;
    case LENGTHS_EMPTY_FRONT: return s < n - n / 4 ? 0 : shape->param;
    case LENGTHS_EMPTY_BACK: return s >= n / 4 ? 0 : shape->param;
    case LENGTHS_EDGES: return edges[(size_t)s % (sizeof edges / sizeof edges[0])];
    default: return s % shape->param;
    }
}

test_relation test_relation_create(const test_shape *shape, test_form form, test_indexing indexing,
                                   test_rng *rng)
{
    const int64_t segments = shape->num_segments;
    test_relation r;
    memset(&r, 0, sizeof r);
    r.form = form;
    r.indexing = indexing;
    r.offsets = (int32_t *)allocate(segments + 1, sizeof(int32_t));
    for (int64_t s = 0; s < segments; ++s) {
        const int64_t length = length_of(shape, s, rng);
        r.offsets[s + 1] = r.offsets[s] + (int32_t)length;
        if (length > r.longest) r.longest = length;
        r.num_nonempty += length > 0;
    }
    const int64_t terms = r.offsets[segments];
    r.segment = (int32_t *)allocate(terms, sizeof(int32_t));
    r.row = (int32_t *)allocate(terms, sizeof(int32_t));
    r.weight = (int32_t *)allocate(terms, sizeof(int32_t));
    for (int64_t s = 0; s < segments; ++s) {
        for (int32_t t = r.offsets[s]; t < r.offsets[s + 1]; ++t)
            r.segment[t] = (int32_t)s;
    }
    if (form == FORM_KEYS_UNSORTED) test_rng_shuffle_i32(rng, r.segment, terms);

    int64_t rows = terms, weights = terms;
    if (indexing == INDEXING_ROWS || indexing == INDEXING_BOTH) rows = terms / 3 + 1;
    if (indexing == INDEXING_MANY_ROWS) rows = terms * 2 + 3;
    if (indexing == INDEXING_BOTH || indexing == INDEXING_WEIGHTS) weights = terms / 2 + 1;
    const bool apart = indexing == INDEXING_MANY_ROWS && test_rng_below(rng, 2) == 0;
    for (int64_t t = 0; t < terms; ++t) {
        const bool last = t == terms - 1; // first and last index are always among them
        r.row[t] = (int32_t)t;
        r.weight[t] = (int32_t)t;
        if (apart)
            r.row[t] = (int32_t)(last ? rows - 1 : 2 * t);
        else if (rows != terms)
            r.row[t] = (int32_t)(t == 0 ? 0 : last ? rows - 1 : test_rng_below(rng, rows));
        if (weights != terms) {
            r.weight[t] = (int32_t)(t == 0 ? weights - 1 : last ? 0 : test_rng_below(rng, weights));
        }
    }
    if (apart) test_rng_shuffle_i32(rng, r.row, terms);
    r.ref = (ref_relation){segments, terms, rows, weights, r.segment, r.row, r.weight, false};
    return r;
}

test_relation test_relation_from_terms(int64_t num_segments, int64_t num_rows, int64_t num_weights,
                                       int64_t num_terms, const int32_t *segment,
                                       const int32_t *row, const int32_t *weight)
{
    test_relation r;
    memset(&r, 0, sizeof r);
    r.form = FORM_KEYS_UNSORTED;
    r.indexing = INDEXING_BOTH;
    r.segment = (int32_t *)allocate(num_terms, sizeof(int32_t));
    r.row = (int32_t *)allocate(num_terms, sizeof(int32_t));
    r.weight = (int32_t *)allocate(num_terms, sizeof(int32_t));
    int64_t *count = (int64_t *)allocate(num_segments, sizeof(int64_t));
    for (int64_t t = 0; t < num_terms; ++t) {
        r.segment[t] = segment[t];
        r.row[t] = row[t];
        r.weight[t] = weight[t];
        const int64_t length = ++count[segment[t]];
        if (length == 1) ++r.num_nonempty;
        if (length > r.longest) r.longest = length;
    }
    free(count);
    r.ref = (ref_relation){num_segments, num_terms, num_rows, num_weights,
                           r.segment,    r.row,     r.weight, false};
    return r;
}

void test_relation_destroy(test_relation *r)
{
    free(r->offsets), free(r->segment), free(r->row), free(r->weight);
    memset(r, 0, sizeof *r);
}

// A copy of n numbers where `backend` runs; NULL for none.
static int32_t *copy_to(spops_backend_kind backend, const int32_t *values, int64_t n)
{
    void *p = NULL;
    if (n == 0) return NULL;
    if (!device_alloc(backend, (size_t)n * sizeof(int32_t), &p) ||
        !device_upload(backend, p, values, (size_t)n * sizeof(int32_t))) {
        abort();
    }
    return (int32_t *)p;
}

spops_status test_relation_plan(const test_relation *r, spops_context *ctx, int64_t max_cols,
                                spops_gradients gradients, spops_segments **out)
{
    const spops_backend_kind backend = spops_context_backend(ctx);
    const int64_t terms = r->ref.num_terms;
    spops_segments_options options = spops_segments_options_default();
    const bool has_rows = r->indexing != INDEXING_NONE && r->indexing != INDEXING_WEIGHTS;
    const bool has_weights = r->indexing == INDEXING_BOTH || r->indexing == INDEXING_WEIGHTS;
    int32_t *idx = has_rows ? copy_to(backend, r->row, terms) : NULL;
    int32_t *weight_idx = has_weights ? copy_to(backend, r->weight, terms) : NULL;
    options.idx = idx;
    options.weight_idx = weight_idx;
    options.num_rows = has_rows ? r->ref.num_rows : 0;
    options.num_weights = has_weights ? r->ref.num_weights : 0;
    options.max_cols = max_cols;
    options.gradients = gradients;
    spops_status status;
    if (r->form == FORM_OFFSETS) {
        int32_t *offsets = copy_to(backend, r->offsets, r->ref.num_segments + 1);
        status = spops_segments_create(ctx, r->ref.num_segments, offsets, &options, out);
        device_free(backend, offsets);
    } else {
        int32_t *keys = copy_to(backend, r->segment, terms);
        status = spops_segments_create_from_keys(
            ctx, r->ref.num_segments, terms, keys,
            r->form == FORM_KEYS_SORTED ? SPOPS_KEYS_SORTED : SPOPS_KEYS_UNSORTED, &options, out);
        device_free(backend, keys);
    }
    device_free(backend, idx);
    device_free(backend, weight_idx);
    return status;
}
