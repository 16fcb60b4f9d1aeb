// SPDX-License-Identifier: Apache-2.0
// Plans for tests of calls whose rows are terms: in every form, and filled on the stream with terms left
// out.
#ifndef SPOPS_TESTS_SUPPORT_TERM_PLANS_H
#define SPOPS_TESTS_SUPPORT_TERM_PLANS_H

#include "tests/support/launch.h"
#include "tests/support/relation.h"

typedef struct term_plan {
    test_relation relation;
    int64_t num_segments, num_rows;
    int64_t num_terms;      // rows of matrices of terms
    const int32_t *segment; // [num_terms]; -1: left out
    const int32_t *row;     // [num_terms]
    spops_segments *plan;
    int32_t *left_out; // what segment points to where terms are left out
} term_plan;

// Shape i of test_shapes, which several blocks of a GPU still divide, with fewer terms where all segments
// are alike.
test_shape term_plan_shape(int i);

// What rng chooses: the form, with or without idx, a capacity with terms left out.
term_plan term_plan_create(test_device *d, const test_shape *shape, int64_t max_cols,
                           spops_gradients gradients, test_rng *rng);
void term_plan_destroy(term_plan *p);

// The terms of segment s are terms[offsets[s]] .. terms[offsets[s + 1] - 1], ascending. To be freed.
void term_plan_lists(const term_plan *p, int64_t **offsets, int64_t **terms);

#endif
