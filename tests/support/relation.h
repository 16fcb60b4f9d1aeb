// SPDX-License-Identifier: Apache-2.0
// Relations for tests: how long each segment is, which rows and weights its terms take, and in
// which form the plan is asked for.
#ifndef SPOPS_TESTS_SUPPORT_RELATION_H
#define SPOPS_TESTS_SUPPORT_RELATION_H

#include <stdbool.h>

#include "spops/segments.h"
#include "tests/ref/ref_reduce.h"
#include "tests/support/random.h"

typedef enum test_lengths {
    LENGTHS_UNIFORM,     // all `param` terms
    LENGTHS_POWER_LAW,   // a few long ones, many short and empty ones; about `param` terms
    LENGTHS_ONE_HUGE,    // one of `param` terms amid single terms and empties
    LENGTHS_EMPTY,       // no terms at all
    LENGTHS_EMPTY_FRONT, // the first 3/4 are empty
    LENGTHS_EMPTY_BACK,  // the last 3/4 are empty
    LENGTHS_EDGES,       // around the sizes where schedules change: 1 15 16 17 ... 257
    LENGTHS_RAMP         // segment s has s % param terms
} test_lengths;

typedef struct test_shape {
    const char *name;
    int64_t num_segments;
    test_lengths lengths;
    int64_t param;
    int64_t max_cols; // keeps the work of a case in bounds
} test_shape;

// The shapes of every suite, from nothing to segments that are split. Quick ones come first;
// SPOPS_TEST_QUICK=1 leaves the others out.
extern const test_shape test_shapes[];
int test_num_shapes(void);
bool test_quick(void);

typedef enum test_form {
    FORM_OFFSETS = 0,
    FORM_KEYS_SORTED = 1,
    FORM_KEYS_UNSORTED = 2,
    NUM_FORMS = 3
} test_form;

typedef enum test_indexing {
    INDEXING_NONE = 0,      // term t takes row t and weight t
    INDEXING_ROWS = 1,      // idx: fewer rows than terms, first and last among them, some unused
    INDEXING_BOTH = 2,      // idx and weight_idx
    INDEXING_WEIGHTS = 3,   // weight_idx alone
    INDEXING_MANY_ROWS = 4, // idx into more rows than there are terms, at times none named twice
    NUM_INDEXINGS = 5
} test_indexing;

typedef struct test_relation {
    ref_relation ref;
    test_form form;
    test_indexing indexing;
    int64_t longest, num_nonempty;
    int32_t *offsets;                // [num_segments + 1], FORM_OFFSETS
    int32_t *segment, *row, *weight; // [num_terms], what ref points to
} test_relation;

test_relation test_relation_create(const test_shape *shape, test_form form, test_indexing indexing,
                                   test_rng *rng);
// A relation of given terms (copied), form KEYS_UNSORTED with both index arrays.
test_relation test_relation_from_terms(int64_t num_segments, int64_t num_rows, int64_t num_weights,
                                       int64_t num_terms, const int32_t *segment,
                                       const int32_t *row, const int32_t *weight);
void test_relation_destroy(test_relation *r);

// Ask for its plan on ctx, with the index arrays copied to where `ctx` runs for the call.
spops_status test_relation_plan(const test_relation *r, spops_context *ctx, int64_t max_cols,
                                spops_gradients gradients, spops_segments **out);

#endif
