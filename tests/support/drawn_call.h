// SPDX-License-Identifier: Apache-2.0
// Calls of operators drawn from the list alone (src/call/operators.def): plans made by other operators,
// sizes, dtypes, attributes and contents at random within what the row says. A draw may be refused,
// where a row cannot say all that is asked for; most rows have valid draws soon.
#ifndef SPOPS_TESTS_SUPPORT_DRAWN_CALL_H
#define SPOPS_TESTS_SUPPORT_DRAWN_CALL_H

#include "call/rows.h"
#include "spops/call.h"
#include "spops/comm.h"
#include "tests/support/launch.h"
#include "tests/support/random.h"

enum { DRAWN_MAX_VALUES = 96, DRAWN_MAX_PLANS = 48 };

typedef struct drawn_tensor {
    unsigned char *memory; // where the backend runs, with room around the elements
    size_t bytes;
    spops_tensor tensor;
    int64_t shape[2], strides[2];
} drawn_tensor;

typedef struct drawn_call drawn_call;

// A plan that was made for a call, and the call that made it; a part of another plan too.
typedef struct drawn_plan {
    spops_plan *plan;
    drawn_call *maker;
} drawn_plan;

struct drawn_call {
    spops_backend_kind backend;
    const spops_operator *op;
    const spops_row *row;
    drawn_tensor tensors[SPOPS_ROW_MAX_ARGS];
    spops_value values[DRAWN_MAX_VALUES]; // all arguments, NONE for those that are absent
    int32_t num_values;
    spops_plan *plans[DRAWN_MAX_PLANS]; // that were made for it, the last first to go
    int32_t num_plans;
    drawn_plan made[DRAWN_MAX_PLANS];
    int32_t num_made;
    spops_comm *comm; // of one rank, where it takes one; NULL
    int64_t slots[SPOPS_ROW_MAX_SLOTS];
};

// Which sizes are drawn, from now on: up to 64, or up to some thousands, among which are rows of many
// columns and segments of many terms.
typedef enum drawn_scale { DRAWN_SMALL = 0, DRAWN_LARGE = 1 } drawn_scale;
void drawn_call_scale(drawn_scale scale);

// Numbers of their own for each operator, which other operators' coming and going does not change.
test_rng drawn_call_rng(const spops_operator *op, int stream);

// False where a plan that it needs could not be made.
bool drawn_call_make(drawn_call *c, test_device *d, const spops_operator *op, test_rng *rng);
void drawn_call_free(drawn_call *c);

// False where a plan names a row twice that the operator writes: which writer is the last is unspecified.
bool drawn_call_is_specified(const drawn_call *c);

// Tries until a call of op on d's context is not refused; how many tries it took, 0: none was valid.
// The call stands in c, not to be freed where there was none; ret as spops_call gives it.
int drawn_call_find(drawn_call *c, test_device *d, const spops_operator *op, test_rng *rng,
                    int tries, spops_value *ret);

// Values without those that are absent, and `present`; the number of values.
int32_t drawn_call_compact(const drawn_call *c, spops_value values[DRAWN_MAX_VALUES]);

// All bytes of the outputs, one behind another (to be freed), and poisoning them.
unsigned char *drawn_call_outputs(const drawn_call *c, size_t *bytes);
void drawn_call_poison(drawn_call *c, int byte);

// Destroys what a call gave, unless it is a part of another plan.
void drawn_call_drop(const drawn_call *c, const spops_value *ret);

#endif
