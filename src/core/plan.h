// SPDX-License-Identifier: Apache-2.0
// What every plan begins with, and what a kind of plan brings: the life cycle of all plans is written
// once, in plan.c. Kinds are the rows of plans.def; the row `kind` has its functions in
// spops_kind_plan_ops, which the kind's own file defines.
#ifndef SPOPS_CORE_PLAN_H
#define SPOPS_CORE_PLAN_H

#include <string.h>

#include "core/memory.h"
#include "spops/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SPOPS_PLAN_MAX_PARENTS = 3, SPOPS_PLAN_MAX_COUNTS = 32 };

typedef struct spops_plan_ops spops_plan_ops;
typedef struct spops_plan_file spops_plan_file; // core/plan_file.h
typedef struct spops_relation spops_relation;   // relation/relation.h

// The first member of every plan. Its arrays lie in `block`; those whose sizes a create call finds out
// on the way in `late`. A plan with capacities has them all in one block, with its workspace.
struct spops_plan {
    const spops_plan_ops *ops;
    spops_context *ctx; // made it, frees it
    spops_plan_kind kind;
    bool refillable; // made for capacities: counts stay where ctx runs, the workspace is kept
    bool placed;     // in the caller's memory, or in that of another plan
    bool shares;     // its arrays are those of another plan: it has no description
    const spops_plan *parents[SPOPS_PLAN_MAX_PARENTS];
    spops_plan *parts, *last_part;  // plans that are parts of this one, by next_part
    spops_plan *next_part, *whole;  // of a part
    int64_t *fields;                // [ops->num_fields] of the description; after the handle
    void *block, *late, *workspace; // the last without bytes: a part of block
    size_t block_bytes, late_bytes, workspace_bytes;
    size_t
        array_bytes; // of a plan with capacities: what it holds, from block on, without its parts
    size_t scratch_bytes; // of its calls
};

// What a kind brings; what is NULL it does not have.
//
// Plans that are made while `read` runs, by any call that makes one, are parts of the plan that is read:
// they go with it, and their bytes and scratch are its own. Those of a plan with capacities are handles
// without memory, which is placed after the plan's own arrays.
struct spops_plan_ops {
    size_t handle_bytes;
    int32_t num_fields;
    // From the fields, which are checked, to the handle's sizes, scratch_bytes among them, and to its
    // parts. It may fill in fields that follow from others.
    spops_status (*read)(spops_context *ctx, const char *call, spops_plan *plan);
    // Once the plans that it stands on are at `parents`: they fit the fields, and what is needed of them
    // is kept.
    spops_status (*bind)(spops_context *ctx, const char *call, spops_plan *plan);
    // Arrays that stay; those of `late`; what they are made in. The carver may only measure.
    void (*carve)(spops_plan *plan, spops_carver *c);
    void (*carve_late)(spops_plan *plan, spops_carver *c);
    void (*carve_workspace)(spops_plan *plan, spops_carver *c);
    // After the arrays have their places: what follows from that.
    void (*ready)(spops_plan *plan);
    // Load the kernels of its calls.
    spops_status (*prepare)(spops_context *ctx, spops_plan *plan);
    // Enqueue the content of a plan with capacities that was never filled; NULL: that of its parts.
    spops_status (*empty)(spops_context *ctx, spops_plan *plan);
    // Enqueue the refill of plans of this kind from their parents; NULL: from the caller's data alone.
    spops_status (*update)(spops_context *ctx, spops_plan *const *plans, int32_t num);
    // Fetch what the plan holds, as the row's state says; NULL: what its first part holds. Waits.
    spops_status (*state)(spops_context *ctx, const spops_plan *plan, int64_t *counts);
    // Which rows meet which, of a plan with arrays; it is all zero before.
    void (*relation)(const spops_plan *plan, spops_relation *relation);
    const spops_plan_file *file; // how plans that are not refilled are saved
    // What the plan has besides its base and its parts.
    void (*destroy)(spops_plan *plan);
    size_t (*bytes)(const spops_plan *plan);
    size_t (*scratch_bytes)(const spops_plan *plan); // NULL: the most of the base's and the parts'
    // The communicator that calls with the plan meet on; NULL after its end.
    struct spops_comm *(*comm)(const spops_plan *plan);
};

// `call` names the public call in messages, here and below; fields are [ops->num_fields].

// A plan with capacities, empty: in memory of its own, or in the caller's. *out stays NULL where
// memory->block is, and memory->bytes is set.
spops_status spops_plan_reserve(spops_context *ctx, const char *call, spops_plan_kind kind,
                                const int64_t *fields, spops_plan_memory *memory, void *out);

// The same of a plan that stands on others, in the order of its kind's parents.
spops_status spops_plan_reserve_on(spops_context *ctx, const char *call, spops_plan_kind kind,
                                   const int64_t *fields, const spops_plan *const *parents,
                                   int32_t num_parents, spops_plan_memory *memory, void *out);

// For a create call: arrays and workspace, with nothing in them. The late arrays follow once the
// handle knows their sizes. Then, once it is filled, the workspace is given back.
spops_status spops_plan_open(spops_context *ctx, const char *call, spops_plan_kind kind,
                             const int64_t *fields, void *out);
spops_status spops_plan_open_late(spops_context *ctx, const char *call, spops_plan *plan);
void spops_plan_close(spops_plan *plan);

// Before a plan's memory is given back: wait for the work that reads it, where the order of the
// stream is not enough.
void spops_plan_end_use(const spops_plan *plan);

// Its arrays and scratch have sizes that an address can count.
spops_status spops_plan_check_size(spops_context *ctx, const char *call, spops_plan *plan);

// Memory of its own for a plan that was read otherwise, with kernels and scratch.
spops_status spops_plan_give_memory(spops_context *ctx, const char *call, spops_plan *plan);

// What a plan holds, which is there, where ctx runs and is not capturing.
spops_status spops_plan_read_state(spops_context *ctx, const spops_plan *plan, int64_t *counts);

// A plan that was made otherwise becomes a part of another, unless it is one.
void spops_plan_adopt(spops_plan *whole, spops_plan *part);

// All that a plan with capacities has, its parts too: carve the arrays; load the kernels of its calls;
// enqueue the content of one that was never filled, and that of its parts alone.
void spops_plan_carve(spops_plan *plan, spops_carver *c);
spops_status spops_plan_prepare(spops_context *ctx, spops_plan *plan);
spops_status spops_plan_empty(spops_context *ctx, spops_plan *plan);

// The end of a call that makes a plan, after all that it reads of the device.
spops_status spops_plan_wait_made(spops_context *ctx);
spops_status spops_plan_empty_parts(spops_context *ctx, spops_plan *plan);

// The bytes that were carved since `begin` bytes were, to be zeroed; NULL while it measures.
static inline void *spops_plan_carved(const spops_carver *c, size_t begin, size_t *bytes)
{
    *bytes = c->used == SIZE_MAX ? 0 : c->used - begin;
    return c->base == NULL ? NULL : c->base + begin;
}

// An option `memory` is right in itself; it is not given, where a call does not reserve.
spops_status spops_check_memory(spops_context *ctx, const char *call,
                                const spops_plan_memory *memory);
spops_status spops_check_no_memory(spops_context *ctx, const char *call,
                                   const spops_plan_memory *memory);

// ---- Blocks with descriptions (plan.h of the interface) ----

// Ints of a description of one plan of this kind, without its parents; 0: there is no such kind.
int32_t spops_plan_num_ints(int64_t kind);

// Whether plans of this kind can have one.
bool spops_plan_has_description(int64_t kind);

// The plan of a description, without memory and parents.
spops_status spops_plan_read_ints(spops_context *ctx, const char *call, const int64_t *ints,
                                  int32_t num_ints, spops_plan **out);

// How many parents a plan's kind has, also those that are left out: plan->parents may have others
// behind them, which the plan was filled from.
int32_t spops_plan_num_parents(const spops_plan *plan);

// The kind that a parent's text, from `at` on to the next one, names; whether it may be left out.
const char *spops_plan_next_parent(const char *at, spops_plan_kind *kind, bool *optional);

// Parents are as many as the kind has, of their kinds, and lie where ctx runs.
spops_status spops_plan_take_parents(spops_context *ctx, const char *call, spops_plan *plan,
                                     const spops_plan *const *parents, int32_t num_parents);

// Bytes of the block of a plan that was read. Places that it had are gone.
spops_status spops_plan_measure_block(spops_context *ctx, const char *call, spops_plan *plan,
                                      size_t *bytes);

// spops_plan_measure of a description with those of its parents.
spops_status spops_plan_measure_whole(spops_context *ctx, const char *call, const int64_t *ints,
                                      int32_t num_ints, size_t *bytes, size_t *scratch_bytes);

// A plan as an argument of a call: a block, and a description with those of its parents.
typedef struct spops_plan_value {
    const char *name; // of the argument
    const int64_t *ints;
    int32_t num_ints;
    void *block;
    size_t bytes;
} spops_plan_value;

// A plan like it for its sizes, without memory; and its end.
spops_status spops_plan_read_value(spops_context *ctx, const char *call,
                                   const spops_plan_value *value, spops_plan **out);
void spops_plan_destroy_value(spops_plan *plan);

// A handle on it that ctx keeps, for the call alone: the next call with the same value finds it again,
// and one with another block is given the handle of a block that was not used for long. It has no
// content of its own. At most SPOPS_PLAN_MAX_PARENTS and more of one call stay apart.
spops_status spops_plan_lend(spops_context *ctx, const char *call, const spops_plan_value *value,
                             spops_plan **out);

// The plan of any kind, named `name`, is there and lies where ctx runs; besides, it was made for
// capacities; or besides, it can be read, for which ctx is waited for.
spops_status spops_plan_check(spops_context *ctx, const char *call, const char *name,
                              const void *plan);
spops_status spops_plan_check_refillable(spops_context *ctx, const char *call, const char *name,
                                         const void *plan);
spops_status spops_plan_check_sync(spops_context *ctx, const char *call, const char *name,
                                   const void *plan);

// The status of a part that lies at a level: that it has overflowed is noted, by the first such level (-1: none),
// and is no failure.
spops_status spops_note_overflow(spops_status status, int32_t level, int32_t *overflow_level);

// For kinds without `read`: a handle, all zero but its base; NULL (message set on ctx) without memory;
// and its end.
void *spops_plan_alloc(spops_context *ctx, spops_plan_kind kind);
void spops_plan_free(spops_plan *plan);

// A field of the description, also of a plan that cannot be described: what checks of calls read.
static inline int64_t spops_plan_field(const spops_plan *plan, int32_t index)
{
    return plan->fields[index];
}

// Which field of a kind is called `name`, of `length` characters; -1: none.
int32_t spops_plan_field_index(spops_plan_kind kind, const char *name, size_t length);

// Doubles as fields.
static inline int64_t spops_plan_bits(double value)
{
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double spops_plan_double(int64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// n fields from fields[first] on, to and from arrays.
static inline void spops_plan_put_i32s(int64_t *fields, const int32_t *from, int n)
{
    for (int i = 0; i < n; ++i)
        fields[i] = from[i];
}

static inline void spops_plan_put_f64s(int64_t *fields, const double *from, int n)
{
    for (int i = 0; i < n; ++i)
        fields[i] = spops_plan_bits(from[i]);
}

static inline void spops_plan_get_f64s(const int64_t *fields, double *to, int n)
{
    for (int i = 0; i < n; ++i)
        to[i] = spops_plan_double(fields[i]);
}

// A field that follows from the others: 0 becomes `value`, anything else must be it.
spops_status spops_plan_derive(spops_context *ctx, const char *call, spops_plan *plan,
                               int32_t index, int64_t value);

// A field that says what the parent called `name` is, and what that one has.
spops_status spops_plan_check_parent(spops_context *ctx, const char *call, const spops_plan *plan,
                                     int32_t index, const char *name, int64_t found);

// Numbers that must be low to high, and doubles that must be numbers: refused by their names.
spops_status spops_plan_check_field(spops_context *ctx, const char *call, const spops_plan *plan,
                                    int32_t index, int64_t low, int64_t high);

// The same for numbers that must be an int32; a field that is none is refused by its name.
spops_status spops_plan_get_i32s(spops_context *ctx, const char *call, spops_plan_kind kind,
                                 const int64_t *fields, int32_t first, int32_t n, int32_t *to);

#ifdef __cplusplus
}
#endif

#endif
