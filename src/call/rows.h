// SPDX-License-Identifier: Apache-2.0
// The rows of operators.def, parsed: what checks of calls and boxed entries read. Parsing happens once,
// into static storage, when the first context is made.
#ifndef SPOPS_CALL_ROWS_H
#define SPOPS_CALL_ROWS_H

#include <stdbool.h>

#include "spops/call.h"
#include "spops/types.h"

typedef enum spops_operator_id {
#define SPOPS_OPERATOR(name, function, types, inputs, outputs, attributes, gradient, scratch, doc) \
    SPOPS_OP_##name,
#include "call/operators.def"
    SPOPS_NUM_OPERATORS
} spops_operator_id;

enum {
    SPOPS_ROW_MAX_ARGS = 20,       // inputs and outputs of an operator
    SPOPS_ROW_MAX_ATTRIBUTES = 32, // of an operator
    SPOPS_ROW_MAX_SLOTS =
        96, // sizes, attributes and fields of plans that its shapes name, and more
    SPOPS_ROW_MAX_STEPS = 48,
    SPOPS_ROW_MAX_VARIABLES = 4, // of its dtypes
    SPOPS_ROW_NO_VALUE = -1,     // of a size that nothing has given a value
    // Beside the bits of spops_dtype, in sets of dtypes: elements of arrays that plans are made from.
    SPOPS_ROW_U8 = 16
};

// A number of a row: a constant, a slot, or code over them.
typedef struct spops_row_number {
    enum { SPOPS_NUMBER_NONE, SPOPS_NUMBER_CONSTANT, SPOPS_NUMBER_SLOT, SPOPS_NUMBER_CODE } how;
    int32_t at;    // slot, or begin of the code
    int64_t value; // constant, or length of the code
} spops_row_number;

// A step of an expression: a number over slots.
typedef struct spops_number_step {
    uint8_t op; // of rows.c
    uint8_t a, b, c, to;
    int8_t arg; // that alone needs it: skipped where that is absent; -1: several
} spops_number_step;

typedef struct spops_row_arg {
    const char *name;
    bool is_plan, is_comm; // else a tensor
    bool is_output, is_optional, is_dense;
    bool is_array;        // of one dimension: called by its address
    int8_t needs, may_be; // arguments; -1: none
    int8_t num_dims;
    int32_t plan_kind;  // by number of SPOPS_PLAN_*; 0: no plan
    uint32_t dtypes;    // of the row itself
    uint32_t variables; // bits: or what these are
    uint32_t sums;      // bits: or what sums of these are carried in
    spops_row_number dims[2];
    uint8_t dim_slots[2]; // where the values of dims are found; that of an array has 1 besides
    int8_t variable;      // the only one; -1: none, -2: several
    int8_t blocks, block_stride;  // attributes; -1: columns follow each other. block_stride: of the
                                  // function's options alone
    spops_row_number first, last; // of integers
    bool ascends;
} spops_row_arg;

typedef struct spops_row_attribute {
    const spops_operator_argument *row;
    spops_row_number first, last;
    int64_t min, max; // the same of attributes whose range is constant
    double float_min, float_max;
} spops_row_attribute;

// Where a slot's value comes from: a dimension of an argument.
typedef struct spops_row_source {
    uint8_t slot, arg, dim;
} spops_row_source;

typedef struct spops_row {
    const spops_operator *op;
    const char *call; // what messages name
    bool is_checked;  // its function checks its arguments by this row
    int32_t num_inputs, num_args, num_attributes;
    spops_row_arg args[SPOPS_ROW_MAX_ARGS];
    spops_row_attribute attributes[SPOPS_ROW_MAX_ATTRIBUTES]; // attribute a is slot a
    int32_t num_slots, num_sizes; // sizes lie after attributes, fields after them
    int32_t num_sources, num_fields, num_variables, num_variable_sources;
    spops_row_source sources[2 * SPOPS_ROW_MAX_ARGS]; // of sizes: the first that is there counts
    struct {
        uint8_t slot, arg;
        int16_t field; // of the description; -1: its scratch_bytes
        const char *name;
    } fields[16];
    struct {
        char letter;
        uint32_t dtypes, variables;
    } variables[SPOPS_ROW_MAX_VARIABLES];
    spops_row_source variable_sources[SPOPS_ROW_MAX_ARGS]; // slot: the variable
    // Slots after those with names: constants, and results of steps, whose values checks look up like the
    // others.
    int64_t
        initial[SPOPS_ROW_MAX_SLOTS]; // of slots before the first result: constants, else NO_VALUE
    int32_t num_initial, num_all_slots, num_steps;
    spops_number_step
        steps[SPOPS_ROW_MAX_STEPS];   // of all expressions in dimensions, each step once
    int8_t plans[SPOPS_ROW_MAX_ARGS]; // arguments that are plans, of inputs
    int32_t num_plans;
    struct { // sizes of outputs where there is no output yet
        uint8_t slot;
        spops_row_number value;
    } inferred[4];
    int32_t num_inferred;
    spops_row_number scratch;
} spops_row;

// Parses what is not parsed yet. A row that is wrong is our mistake: the message is for tests.
void spops_rows_parse(void);
const char *spops_rows_error(void); // NULL: none

const spops_row *spops_row_of(spops_operator_id id);

// The value of a number; slots [num_slots]. INT64_MAX where it leaves 64 bits.
int64_t spops_row_eval(const spops_row_number *number, const int64_t *slots);

// A size of a call that is asked for shapes: a number, a caller's symbol (spops/call.h), or neither.
typedef struct spops_row_size {
    enum { SPOPS_SIZE_NONE, SPOPS_SIZE_NUMBER, SPOPS_SIZE_SYMBOL } how;
    int64_t value;
} spops_row_size;

// a op b, op as spops_size_algebra has it. NONE where one is NONE, they leave 64 bits, or algebra (NULL: there is
// none) cannot say.
spops_row_size spops_row_combine(const spops_size_algebra *algebra, char op, spops_row_size a,
                                 spops_row_size b);

// The same as spops_row_eval; slots [num_slots].
spops_row_size spops_row_eval_size(const spops_row_number *number, const spops_row_size *slots,
                                   const spops_size_algebra *algebra);

// The values of expressions in dimensions of arguments that are there (args); slots [num_all_slots],
// those with names have theirs.
void spops_row_run_steps(const spops_row *row, const void *const *args, int64_t *slots);

// Whether all that it is made of has a value.
bool spops_row_has_value(const spops_row_number *number, const int64_t *slots);

#endif
