// SPDX-License-Identifier: Apache-2.0
#include "tests/support/term_plans.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

// A plan into a capacity of a few terms more, with some keys out of range.
static void fill_capacity(test_device *d, term_plan *p, int64_t max_cols, spops_gradients gradients,
                          test_rng *rng)
{
    ref_relation *r = &p->relation.ref;
    const int64_t capacity = r->num_terms + test_rng_below(rng, 9);
    const int32_t used = (int32_t)(r->num_terms - test_rng_below(rng, r->num_terms / 4 + 1));
    int32_t *keys = malloc((size_t)(capacity + 1) * sizeof *keys);
    int32_t *rows = calloc((size_t)(capacity + 1), sizeof *rows);
    spops_segments_options options = spops_segments_options_default();
    int32_t *there, *num, *idx;

    cr_assert(keys != NULL && rows != NULL);
    if (r->num_rows == 0) r->num_rows = 1; // 0 would be the capacity
    for (int64_t t = 0; t < capacity; ++t) {
        const bool counts = t < used && test_rng_below(rng, 10) > 0;
        keys[t] = counts ? r->segment[t] : -1;
        rows[t] = t < r->num_terms ? r->row[t] : 0;
    }
    options.max_cols = max_cols;
    options.gradients = gradients;
    options.num_rows = r->num_rows;
    options.num_weights = capacity;
    there = test_upload_i32(d, keys, capacity);
    idx = test_upload_i32(d, rows, capacity);
    num = test_upload_i32(d, &used, 1);
    test_expect_ok(d->ctx,
                   spops_segments_reserve(d->ctx, r->num_segments, capacity, &options, &p->plan),
                   "reserve");
    test_expect_ok(d->ctx, spops_segments_update(d->ctx, p->plan, num, there, idx, NULL), "update");
    test_wait(d);
    test_free(d, there), test_free(d, idx), test_free(d, num);
    p->num_rows = r->num_rows;
    p->num_terms = capacity;
    p->segment = p->left_out = keys;
    free(p->relation.row); // as long as the capacity
    p->relation.row = rows;
    p->row = rows;
}

test_shape term_plan_shape(int i)
{
    enum { MOST_ALIKE = 500 };
    test_shape shape = test_shapes[i];
    if (shape.lengths == LENGTHS_UNIFORM && shape.num_segments > MOST_ALIKE)
        shape.num_segments = MOST_ALIKE;
    return shape;
}

term_plan term_plan_create(test_device *d, const test_shape *shape, int64_t max_cols,
                           spops_gradients gradients, test_rng *rng)
{
    static const test_indexing indexings[] = {INDEXING_NONE, INDEXING_ROWS, INDEXING_MANY_ROWS};
    term_plan p;
    memset(&p, 0, sizeof p);
    p.relation = test_relation_create(shape, (test_form)test_rng_below(rng, NUM_FORMS),
                                      indexings[test_rng_below(rng, 3)], rng);
    p.num_segments = p.relation.ref.num_segments;
    p.num_rows = p.relation.ref.num_rows;
    p.num_terms = p.relation.ref.num_terms;
    p.segment = p.relation.ref.segment;
    p.row = p.relation.ref.row;
    if (test_rng_below(rng, 3) == 0)
        fill_capacity(d, &p, max_cols, gradients, rng);
    else
        test_expect_ok(d->ctx,
                       test_relation_plan(&p.relation, d->ctx, max_cols, gradients, &p.plan),
                       shape->name);
    return p;
}

void term_plan_destroy(term_plan *p)
{
    spops_segments_destroy(p->plan);
    test_relation_destroy(&p->relation);
    free(p->left_out);
}

void term_plan_lists(const term_plan *p, int64_t **offsets, int64_t **terms)
{
    int64_t *begin = calloc((size_t)p->num_segments + 2, sizeof *begin);
    int64_t *list = malloc((size_t)(p->num_terms + 1) * sizeof *list);
    cr_assert(begin != NULL && list != NULL);
    for (int64_t t = 0; t < p->num_terms; ++t)
        if (p->segment[t] >= 0) ++begin[p->segment[t] + 2];
    for (int64_t s = 0; s < p->num_segments; ++s)
        begin[s + 2] += begin[s + 1];
    for (int64_t t = 0; t < p->num_terms; ++t)
        if (p->segment[t] >= 0) list[begin[p->segment[t] + 1]++] = t;
    *offsets = begin;
    *terms = list;
}
