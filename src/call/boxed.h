// SPDX-License-Identifier: Apache-2.0
// A boxed call, unpacked: what an operator's boxed function is given. It hands these arguments to the
// operator's own function, which checks them:
//
//     spops_status spops_boxed_NAME(spops_boxed_call *b)
//
// for every row NAME of operators.def. Arguments are asked for by their place in the row.
#ifndef SPOPS_CALL_BOXED_H
#define SPOPS_CALL_BOXED_H

#include "call/call_check.h"
#include "core/context.h"
#include "core/plan.h"

enum { SPOPS_BOXED_MAX_BLOCKS = 4 }; // plans of an operator

// Who lends scratch to calls on contexts of the library's own: a framework's allocator that knows only the
// call it is asked in. What it lends it gets back before the call returns, and may give to later work of
// the same stream.
typedef struct spops_lender {
    void *user;
    void *(*lend)(void *user, size_t bytes); // aligned to SPOPS_PLAN_ALIGNMENT; NULL: there is none
    void (*take_back)(void *user, void *memory, size_t bytes);
} spops_lender;

typedef struct spops_boxed_call {
    spops_context *ctx;
    const spops_row *row;
    bool is_own;                               // ctx is the library's: its scratch may grow
    const void *args[SPOPS_ROW_MAX_ARGS];      // plans, matrices, addresses of arrays; NULL: absent
    spops_matrix matrices[SPOPS_ROW_MAX_ARGS]; // of tensors; an array is [n, 1]
    int64_t block_strides[SPOPS_ROW_MAX_ARGS]; // of columns in blocks; 0: they follow each other
    struct {                                   // plans that are blocks
        int32_t arg;
        spops_plan_value value;
    } blocks[SPOPS_BOXED_MAX_BLOCKS];
    int32_t num_blocks;
    bool measures; // only the scratch is asked for: tensors may have no data
    bool asks;     // only shapes are asked for: args has tensors as they are, or as NULL
    size_t scratch_bytes;
    spops_plan *into; // the block that the call fills; NULL: it makes a plan, if any
    spops_call_number attributes[SPOPS_ROW_MAX_ATTRIBUTES];
    int32_t counts[SPOPS_ROW_MAX_ATTRIBUTES]; // of lists
    int64_t single[SPOPS_ROW_MAX_ATTRIBUTES]; // a list of one
    void *made;                               // a plan
    bool is_part;                             // of another plan: not destroyed
    bool in_order;                            // the caller orders what it makes by streams
    const spops_lender *lender;               // NULL: the context's own scratch
    bool has_stream;                          // the call's own, not that of the thread
    void *stream;
    void *borrowed; // scratch, of the lender or the context's allocator
    size_t borrowed_bytes;
} spops_boxed_call;

#define SPOPS_OPERATOR(name, function, types, inputs, outputs, attributes, gradient, scratch, doc) \
    spops_status spops_boxed_##name(spops_boxed_call *b);
#include "call/operators.def"

// What spops_call_set_stream has set.
void *spops_call_stream(int32_t device);

// spops_call(NULL, ...) with scratch of a lender.
spops_status spops_call_lent(const spops_lender *lender, const spops_operator *op,
                             const spops_value *args, int32_t num_args, spops_value *ret);

// Scratch of a call whose row says "*": reserved on contexts of the library's own. Where the call is
// measured alone (b->measures) it ends here, by a status that no other call returns.
spops_status spops_boxed_reserve(spops_boxed_call *b, size_t bytes);

// The plan that the call has made, or, a part of another.
static inline spops_status spops_boxed_made(spops_boxed_call *b, void *plan)
{
    b->made = plan;
    return SPOPS_STATUS_OK;
}

static inline spops_status spops_boxed_part(spops_boxed_call *b, const void *plan)
{
    b->made = (void *)(uintptr_t)plan;
    b->is_part = true;
    return SPOPS_STATUS_OK;
}

// Whether the call fills a block, where what argument `count`, one int32, says of argument `rows`
// counts, which has room for the capacity that is called `capacity`. Without a block all of it counts,
// and there is no count.
spops_status spops_boxed_counts(const spops_boxed_call *b, int count, int rows,
                                const char *capacity, bool *fills);

// Refuses a block that the operator cannot fill.
spops_status spops_boxed_no_block(const spops_boxed_call *b);

// Argument i.
static inline spops_matrix spops_boxed_matrix(const spops_boxed_call *b, int i)
{
    return b->matrices[i];
}

static inline const spops_matrix *spops_boxed_optional(const spops_boxed_call *b, int i)
{
    return b->args[i] == NULL ? NULL : &b->matrices[i];
}

// A number as an int32. What an int32 does not hold becomes one that no call accepts.
static inline int32_t spops_boxed_narrow(int64_t value)
{
    return value < INT32_MIN || value > INT32_MAX ? INT32_MIN : (int32_t)value;
}

// Attribute i.
static inline int32_t spops_boxed_i32(const spops_boxed_call *b, int i)
{
    return spops_boxed_narrow(b->attributes[i].i);
}

#endif
