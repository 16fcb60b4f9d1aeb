// SPDX-License-Identifier: Apache-2.0
// The life cycle of plans, once for all kinds.
#include "core/plan.h"
#include "core/plan_file.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/check.h"

#define SPOPS_PLAN(KIND, kind, version, fields, parents, state)                                    \
    extern const spops_plan_ops spops_##kind##_plan_ops;
#include "core/plans.def"
#undef SPOPS_PLAN

static const spops_plan_kind_info infos[] = {
#define SPOPS_PLAN(KIND, kind, version, fields, parents, state)                                    \
    {sizeof(spops_plan_kind_info), SPOPS_PLAN_##KIND, version, #kind, fields, parents, state},
#include "core/plans.def"
#undef SPOPS_PLAN
};

static const spops_plan_ops *const all_ops[] = {
#define SPOPS_PLAN(KIND, kind, version, fields, parents, state) &spops_##kind##_plan_ops,
#include "core/plans.def"
#undef SPOPS_PLAN
};

enum { NUM_KINDS = sizeof infos / sizeof infos[0], NUM_HEADS = 2 }; // kind and version

// ---- Kinds --------------------------------------------------------------------------------------

const spops_plan_kind_info *spops_plan_kinds(int32_t *num)
{
    if (num != NULL) *num = NUM_KINDS;
    return infos;
}

spops_plan_kind spops_plan_get_kind(const spops_plan *plan)
{
    return plan == NULL ? SPOPS_PLAN_NONE : plan->kind;
}

static const spops_plan_kind_info *info_of(spops_plan_kind kind)
{
    return &infos[(int)kind - 1];
}

const spops_plan_file *spops_plan_file_of(spops_plan_kind kind)
{
    return all_ops[(int)kind - 1]->file;
}

// A field in the text of a kind: its name, and how many ints it takes: [rows][cols] or [cols].
typedef struct field_text {
    const char *name;
    size_t length;
    int32_t rows, cols;
    bool is_f64;
} field_text;

// The field at *text, which goes on to the next one.
static field_text next_field(const char **text)
{
    const char *at = *text;
    field_text f = {at, strcspn(at, "[: "), 0, 0, false};
    char *end = NULL;
    if (at[f.length] == '[') {
        f.cols = (int32_t)strtol(at + f.length + 1, &end, 10);
        if (end[1] == '[') f.rows = f.cols, f.cols = (int32_t)strtol(end + 2, NULL, 10);
    }
    at += strcspn(at, ": ");
    f.is_f64 = *at == ':';
    at += strcspn(at, " ");
    *text = at + (*at == ' ');
    return f;
}

static int32_t ints_of(const field_text *f)
{
    return (f->rows == 0 ? 1 : f->rows) * (f->cols == 0 ? 1 : f->cols);
}

int32_t spops_plan_field_index(spops_plan_kind kind, const char *name, size_t length)
{
    const char *at = info_of(kind)->fields;
    int32_t index = 0;
    while (*at != '\0') {
        const field_text f = next_field(&at);
        if (f.length == length && memcmp(f.name, name, length) == 0) return index;
        index += ints_of(&f);
    }
    return -1;
}

// The name of field `index`, which may be one of several, for messages.
static const char *name_of_field(spops_plan_kind kind, int32_t index, char *text, size_t size)
{
    const char *at = info_of(kind)->fields;
    field_text f = next_field(&at);
    for (; index >= ints_of(&f); f = next_field(&at))
        index -= ints_of(&f);
    if (f.cols == 0)
        snprintf(text, size, "%.*s", (int)f.length, f.name);
    else if (f.rows == 0)
        snprintf(text, size, "%.*s[%d]", (int)f.length, f.name, (int)index);
    else
        snprintf(text, size, "%.*s[%d][%d]", (int)f.length, f.name, (int)(index / f.cols),
                 (int)(index % f.cols));
    return text;
}

spops_status spops_plan_check_field(spops_context *ctx, const char *call, const spops_plan *plan,
                                    int32_t index, int64_t low, int64_t high)
{
    char name[48];
    SPOPS_REQUIRE(ctx, plan->fields[index] >= low && plan->fields[index] <= high,
                  "%s: %s is %" PRId64 ", expected %" PRId64 " %s %" PRId64, call,
                  name_of_field(plan->kind, index, name, sizeof name), plan->fields[index], low,
                  high == low + 1 ? "or" : "to", high);
    return SPOPS_STATUS_OK;
}

spops_status spops_plan_check_parent(spops_context *ctx, const char *call, const spops_plan *plan,
                                     int32_t index, const char *name, int64_t found)
{
    char field[48];
    SPOPS_REQUIRE(
        ctx, plan->fields[index] == found, "%s: %s has %s = %" PRId64 ", expected %" PRId64, call,
        name, name_of_field(plan->kind, index, field, sizeof field), found, plan->fields[index]);
    return SPOPS_STATUS_OK;
}

spops_status spops_plan_derive(spops_context *ctx, const char *call, spops_plan *plan,
                               int32_t index, int64_t value)
{
    char name[48];
    SPOPS_REQUIRE(
        ctx, plan->fields[index] == 0 || plan->fields[index] == value,
        "%s: %s is %" PRId64 ", expected 0 or %" PRId64 ", which follows from the other fields",
        call, name_of_field(plan->kind, index, name, sizeof name), plan->fields[index], value);
    plan->fields[index] = value;
    return SPOPS_STATUS_OK;
}

spops_status spops_plan_get_i32s(spops_context *ctx, const char *call, spops_plan_kind kind,
                                 const int64_t *fields, int32_t first, int32_t n, int32_t *to)
{
    char name[48];
    for (int32_t i = first; i < first + n; ++i) {
        to[i - first] = (int32_t)fields[i];
        SPOPS_REQUIRE(ctx, fields[i] == to[i - first], "%s: %s is %" PRId64 ", expected 32 bits",
                      call, name_of_field(kind, i, name, sizeof name), fields[i]);
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_plan_check(spops_context *ctx, const char *call, const char *name,
                              const void *plan)
{
    SPOPS_REQUIRE(ctx, plan != NULL, "%s: %s is NULL", call, name);
    return spops_check_home(ctx, call, name, ((const spops_plan *)plan)->ctx);
}

spops_status spops_plan_check_refillable(spops_context *ctx, const char *call, const char *name,
                                         const void *plan)
{
    const spops_plan *p = plan;
    SPOPS_TRY(spops_plan_check(ctx, call, name, plan));
    SPOPS_REQUIRE(ctx, p->refillable && !p->shares, "%s: %s was not made by %s_reserve", call, name,
                  info_of(p->kind)->name);
    return SPOPS_STATUS_OK;
}

spops_status spops_plan_check_sync(spops_context *ctx, const char *call, const char *name,
                                   const void *plan)
{
    SPOPS_TRY(spops_plan_check(ctx, call, name, plan));
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    return ctx->backend->wait(ctx);
}

spops_status spops_note_overflow(spops_status status, int32_t level, int32_t *overflow_level)
{
    if (status != SPOPS_STATUS_CAPACITY_EXCEEDED) return status;
    if (*overflow_level < 0) *overflow_level = level;
    return SPOPS_STATUS_OK;
}

// What differs from 0, by name.
static void log_fields(spops_log_line *line, const spops_plan *plan)
{
    const char *at = info_of(plan->kind)->fields;
    const int64_t *values = plan->fields;
    char name[48];

    for (int32_t index = 0; *at != '\0';) {
        const field_text f = next_field(&at);
        for (int32_t i = 0; i < ints_of(&f); ++i, ++index) {
            if (values[index] == 0) continue;
            name_of_field(plan->kind, index, name, sizeof name);
            if (f.is_f64)
                spops_log_add(line, " %s=%.9g", name, spops_plan_double(values[index]));
            else
                spops_log_add(line, " %s=%" PRId64, name, values[index]);
        }
    }
}

void spops_log_plan(const spops_log_made *made)
{
    spops_log_line line = {0};
    const spops_plan *plan;

    if (!spops_log_is_on || made->ctx == NULL || made->handle == NULL) return;
    plan = *(spops_plan *const *)made->handle;
    if (plan == NULL || !spops_log_is_own(made->ctx, made->call)) return;
    spops_log_add(&line, "  = %s=%p bytes=%zu", info_of(plan->kind)->name, (const void *)plan,
                  spops_plan_bytes(plan));
    log_fields(&line, plan);
    spops_log_write(&line);
}

// ---- Handles ------------------------------------------------------------------------------------

static size_t handle_bytes(const spops_plan_ops *ops)
{
    return ops->handle_bytes + (size_t)ops->num_fields * sizeof(int64_t);
}

void spops_plan_adopt(spops_plan *whole, spops_plan *part)
{
    if (part->whole != NULL) return;
    if (whole->last_part == NULL)
        whole->parts = part;
    else
        whole->last_part->next_part = part;
    whole->last_part = part;
    part->whole = whole;
}

// A part is a plan of its own again.
static void leave(spops_plan *part)
{
    spops_plan **at = &part->whole->parts, *last = NULL;
    for (; *at != part; at = &(*at)->next_part)
        last = *at;
    *at = part->next_part;
    if (part->whole->last_part == part) part->whole->last_part = last;
    part->whole = part->next_part = NULL;
}

void *spops_plan_alloc(spops_context *ctx, spops_plan_kind kind)
{
    const spops_plan_ops *ops = all_ops[(int)kind - 1];
    char *memory = spops_host_alloc(ctx, 1, handle_bytes(ops));
    spops_plan *plan = (spops_plan *)(void *)memory;
    if (plan == NULL) return NULL;
    plan->ops = ops;
    plan->ctx = ctx;
    plan->kind = kind;
    plan->fields = (int64_t *)(void *)(memory + ops->handle_bytes);
    if (ctx->reading != NULL) {
        plan->placed = ctx->reading->refillable;
        spops_plan_adopt(ctx->reading, plan);
    }
    return plan;
}

void spops_plan_free(spops_plan *plan)
{
    spops_host_free(plan->ctx, plan, 1, handle_bytes(plan->ops));
}

static void free_memory(spops_plan *plan, void **ptr, size_t *bytes)
{
    if (!plan->placed && *bytes > 0) spops_backend_free(plan->ctx, *ptr, *bytes);
    *ptr = NULL;
    *bytes = 0;
}

void spops_plan_close(spops_plan *plan)
{
    free_memory(plan, &plan->workspace, &plan->workspace_bytes);
}

void spops_plan_end_use(const spops_plan *plan)
{
    if (!plan->placed && !plan->ctx->frees_in_order) (void)plan->ctx->backend->wait(plan->ctx);
}

spops_status spops_plan_wait_made(spops_context *ctx)
{
    return ctx->makes_in_order ? SPOPS_STATUS_OK : ctx->backend->wait(ctx);
}

void spops_plan_destroy(spops_plan *plan)
{
    if (plan == NULL) return;
    if (plan->whole != NULL) leave(plan);
    if (plan->ops->destroy != NULL) plan->ops->destroy(plan);
    while (plan->parts != NULL)
        spops_plan_destroy(plan->parts);
    if (plan->block != NULL) spops_plan_end_use(plan);
    free_memory(plan, &plan->workspace, &plan->workspace_bytes);
    free_memory(plan, &plan->late, &plan->late_bytes);
    free_memory(plan, &plan->block, &plan->block_bytes);
    spops_plan_free(plan);
}

int32_t spops_plan_get_fields(const spops_plan *plan, int64_t *fields, int32_t max_fields)
{
    int32_t n;
    if (plan == NULL) return 0;
    n = plan->ops->num_fields;
    if (max_fields > n) max_fields = n;
    for (int32_t i = 0; fields != NULL && i < max_fields; ++i)
        fields[i] = plan->fields[i];
    return n;
}

size_t spops_plan_bytes(const spops_plan *plan)
{
    size_t bytes;
    if (plan == NULL) return 0;
    bytes = plan->block_bytes + plan->late_bytes + plan->workspace_bytes;
    for (const spops_plan *part = plan->parts; part != NULL; part = part->next_part)
        bytes += spops_plan_bytes(part);
    return bytes + (plan->ops->bytes == NULL ? 0 : plan->ops->bytes(plan));
}

size_t spops_plan_scratch_bytes(const spops_plan *plan)
{
    size_t most;
    if (plan == NULL) return 0;
    if (plan->ops->scratch_bytes != NULL) return plan->ops->scratch_bytes(plan);
    most = plan->scratch_bytes;
    for (const spops_plan *part = plan->parts; part != NULL; part = part->next_part) {
        const size_t bytes = spops_plan_scratch_bytes(part);
        if (bytes > most) most = bytes;
    }
    return most;
}

// ---- What a plan holds --------------------------------------------------------------------------

spops_status spops_plan_read_state(spops_context *ctx, const spops_plan *plan, int64_t *counts)
{
    while (plan->ops->state == NULL)
        plan = plan->parts;
    return plan->ops->state(ctx, plan, counts);
}

spops_status spops_plan_get_state_sync(spops_context *ctx, const spops_plan *plan, int64_t *counts,
                                       int32_t max_counts, int32_t *num_counts)
{
    static const char call[] = "plan_get_state_sync";
    int64_t found[SPOPS_PLAN_MAX_COUNTS];
    int32_t num = 0, overflow = 0;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_OUTER_CALL(ctx, call, NULL);
    SPOPS_TRY(spops_plan_check(ctx, call, "plan", plan));
    SPOPS_TRY(spops_check_object(ctx, call, "num_counts", num_counts, sizeof *num_counts));
    for (const char *at = info_of(plan->kind)->state; *at != '\0';) {
        const field_text f = next_field(&at);
        if (f.length == 8 && memcmp(f.name, "overflow", 8) == 0) overflow = num;
        num += ints_of(&f);
    }
    *num_counts = num;
    if (counts == NULL || num == 0) return SPOPS_STATUS_OK;
    SPOPS_TRY(spops_check_aligned(ctx, call, "counts", counts, sizeof *counts));
    SPOPS_REQUIRE(ctx, max_counts >= num,
                  "%s: max_counts is %" PRId32 ", expected at least %" PRId32, call, max_counts,
                  num);
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    SPOPS_TRY(spops_plan_read_state(ctx, plan, found));
    memcpy(counts, found, (size_t)num * sizeof *counts);
    if (counts[overflow] == 0) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_CAPACITY_EXCEEDED,
                      "%s: more came than a plan of kind %s has room for", call,
                      info_of(plan->kind)->name);
}

// ---- Making a plan ------------------------------------------------------------------------------

spops_status spops_check_memory(spops_context *ctx, const char *call,
                                const spops_plan_memory *memory)
{
    SPOPS_REQUIRE(ctx, memory != NULL, "%s: memory is NULL", call);
    SPOPS_TRY(spops_check_aligned(ctx, call, "memory", memory, _Alignof(spops_plan_memory)));
    SPOPS_REQUIRE(ctx, memory->struct_size == sizeof *memory,
                  "%s: memory.struct_size is %zu, expected %zu", call, memory->struct_size,
                  sizeof *memory);
    return SPOPS_STATUS_OK;
}

spops_status spops_check_no_memory(spops_context *ctx, const char *call,
                                   const spops_plan_memory *memory)
{
    SPOPS_REQUIRE(ctx, memory == NULL, "%s: memory is given, expected NULL: reserve takes it",
                  call);
    return SPOPS_STATUS_OK;
}

// A handle of these fields, which have been read; without memory.
static spops_status open_handle(spops_context *ctx, const char *call, spops_plan_kind kind,
                                const int64_t *fields, bool refillable, spops_plan **out)
{
    spops_plan *plan = spops_plan_alloc(ctx, kind), *whole = ctx->reading;
    spops_status status;

    if (plan == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    memcpy(plan->fields, fields, (size_t)plan->ops->num_fields * sizeof *fields);
    plan->refillable = refillable;
    ctx->reading = plan;
    status = plan->ops->read(ctx, call, plan);
    ctx->reading = whole;
    if (status == SPOPS_STATUS_OK)
        *out = plan;
    else
        spops_plan_destroy(plan);
    return status;
}

const char *spops_plan_next_parent(const char *at, spops_plan_kind *kind, bool *optional)
{
    const size_t length = strcspn(at, ":"), end = strcspn(at, " ");
    *optional = at[length - 1] == '?';
    *kind = SPOPS_PLAN_NONE;
    for (int k = 0; k < NUM_KINDS; ++k)
        if (strlen(infos[k].name) == end - length - 1 &&
            memcmp(infos[k].name, at + length + 1, end - length - 1) == 0)
            *kind = infos[k].kind;
    return at + end + (at[end] == ' ');
}

spops_status spops_plan_take_parents(spops_context *ctx, const char *call, spops_plan *plan,
                                     const spops_plan *const *parents, int32_t num_parents)
{
    const spops_plan_kind_info *info = info_of(plan->kind);
    const char *at = info->parents;
    int32_t num = 0;
    char name[32];

    for (; *at != '\0'; ++num) {
        spops_plan_kind kind;
        bool optional;
        at = spops_plan_next_parent(at, &kind, &optional);
        if (num >= num_parents || parents == NULL) continue; // refused below
        snprintf(name, sizeof name, "parents[%d]", (int)num);
        plan->parents[num] = parents[num];
        if (parents[num] == NULL && optional) continue;
        SPOPS_TRY(spops_plan_check(ctx, call, name, parents[num]));
        SPOPS_REQUIRE(ctx, parents[num]->kind == kind, "%s: %s is of kind %s, expected %s", call,
                      name, info_of(parents[num]->kind)->name, info_of(kind)->name);
    }
    SPOPS_REQUIRE(ctx, num_parents == num,
                  "%s: num_parents is %" PRId32 ", expected %" PRId32 " of kind %s", call,
                  num_parents, num, info->name);
    SPOPS_REQUIRE(ctx, num == 0 || parents != NULL, "%s: parents is NULL", call);
    return plan->ops->bind == NULL ? SPOPS_STATUS_OK : plan->ops->bind(ctx, call, plan);
}

typedef void (*carve_function)(spops_plan *plan, spops_carver *c);

void spops_plan_carve(spops_plan *plan, spops_carver *c)
{
    const size_t begin = spops_align_bytes(c->used);
    if (plan->placed && c->base != NULL) plan->block = c->base + begin;
    if (plan->ops->carve != NULL) plan->ops->carve(plan, c);
    if (plan->ops->carve_late != NULL) plan->ops->carve_late(plan, c);
    plan->array_bytes = c->used > begin ? c->used - begin : 0;
    if (plan->ops->carve_workspace != NULL) plan->ops->carve_workspace(plan, c);
    for (spops_plan *part = plan->parts; part != NULL; part = part->next_part)
        if (!part->shares) spops_plan_carve(part, c);
    if (plan->ops->ready != NULL) plan->ops->ready(plan);
}

static spops_status measure_plan(spops_context *ctx, const char *call, spops_plan *plan,
                                 carve_function carve, size_t *bytes)
{
    spops_carver measured = {NULL, 0};
    carve(plan, &measured);
    if (measured.used > PTRDIFF_MAX || spops_plan_scratch_bytes(plan) > PTRDIFF_MAX / 2)
        return spops_fail(ctx, SPOPS_STATUS_OUT_OF_MEMORY,
                          "%s: the plan needs more bytes than an address can count", call);
    *bytes = measured.used;
    return SPOPS_STATUS_OK;
}

spops_status spops_plan_check_size(spops_context *ctx, const char *call, spops_plan *plan)
{
    size_t bytes;
    return measure_plan(ctx, call, plan, spops_plan_carve, &bytes);
}

// Memory for what `carve` places, of the library's own.
static spops_status alloc_memory(spops_context *ctx, const char *call, spops_plan *plan,
                                 carve_function carve, void **ptr, size_t *bytes)
{
    size_t needed = 0;
    spops_carver carver;
    if (carve == NULL) return SPOPS_STATUS_OK;
    SPOPS_TRY(measure_plan(ctx, call, plan, carve, &needed));
    SPOPS_TRY(spops_backend_alloc(ctx, needed, ptr));
    *bytes = needed;
    carver = (spops_carver){*ptr, 0};
    carve(plan, &carver);
    return SPOPS_STATUS_OK;
}

spops_status spops_plan_prepare(spops_context *ctx, spops_plan *plan)
{
    for (spops_plan *part = plan->parts; part != NULL; part = part->next_part)
        SPOPS_TRY(spops_plan_prepare(ctx, part));
    return plan->ops->prepare == NULL ? SPOPS_STATUS_OK : plan->ops->prepare(ctx, plan);
}

// Kernels and scratch.
static spops_status prepare_plan(spops_context *ctx, spops_plan *plan)
{
    const size_t bytes = spops_plan_scratch_bytes(plan);
    SPOPS_TRY(spops_plan_prepare(ctx, plan));
    return bytes > 0 ? spops_context_grow(ctx, bytes) : SPOPS_STATUS_OK;
}

spops_status spops_plan_empty(spops_context *ctx, spops_plan *plan)
{
    return plan->ops->empty == NULL ? spops_plan_empty_parts(ctx, plan)
                                    : plan->ops->empty(ctx, plan);
}

spops_status spops_plan_empty_parts(spops_context *ctx, spops_plan *plan)
{
    for (spops_plan *part = plan->parts; part != NULL; part = part->next_part)
        if (!part->shares) SPOPS_TRY(spops_plan_empty(ctx, part));
    return SPOPS_STATUS_OK;
}

spops_status spops_plan_give_memory(spops_context *ctx, const char *call, spops_plan *plan)
{
    const spops_plan_ops *ops = plan->ops;
    if (plan->refillable) {
        SPOPS_TRY(
            alloc_memory(ctx, call, plan, spops_plan_carve, &plan->block, &plan->block_bytes));
    } else {
        SPOPS_TRY(alloc_memory(ctx, call, plan, ops->carve, &plan->block, &plan->block_bytes));
        SPOPS_TRY(alloc_memory(ctx, call, plan, ops->carve_workspace, &plan->workspace,
                               &plan->workspace_bytes));
        if (ops->ready != NULL) ops->ready(plan);
    }
    return prepare_plan(ctx, plan);
}

spops_status spops_plan_open(spops_context *ctx, const char *call, spops_plan_kind kind,
                             const int64_t *fields, void *out)
{
    spops_plan *plan = NULL;
    spops_status status;

    SPOPS_TRY(open_handle(ctx, call, kind, fields, false, &plan));
    status = spops_plan_give_memory(ctx, call, plan);
    if (status == SPOPS_STATUS_OK)
        *(spops_plan **)out = plan;
    else
        spops_plan_destroy(plan);
    return status;
}

spops_status spops_plan_open_late(spops_context *ctx, const char *call, spops_plan *plan)
{
    SPOPS_TRY(alloc_memory(ctx, call, plan, plan->ops->carve_late, &plan->late, &plan->late_bytes));
    if (plan->ops->ready != NULL) plan->ops->ready(plan);
    return SPOPS_STATUS_OK;
}

spops_status spops_plan_measure_block(spops_context *ctx, const char *call, spops_plan *plan,
                                      size_t *bytes)
{
    return measure_plan(ctx, call, plan, spops_plan_carve, bytes);
}

// Put a plan that was read into a block of the caller's; `owner` stands before its name in messages.
static spops_status place_plan(spops_context *ctx, const char *call, const char *owner, void *block,
                               size_t bytes, spops_plan *plan)
{
    spops_carver carver = {block, 0};
    size_t needed = 0;

    plan->placed = true;
    SPOPS_TRY(measure_plan(ctx, call, plan, spops_plan_carve, &needed));
    SPOPS_REQUIRE(ctx, block != NULL, "%s: %sblock is NULL, expected %zu bytes", call, owner,
                  needed);
    SPOPS_REQUIRE(ctx, (uintptr_t)block % SPOPS_PLAN_ALIGNMENT == 0,
                  "%s: %sblock is at %p, expected an address aligned to %d bytes", call, owner,
                  block, SPOPS_PLAN_ALIGNMENT);
    SPOPS_REQUIRE(ctx, bytes >= needed, "%s: %sbytes is %zu, expected at least %zu", call, owner,
                  bytes, needed);
    plan->block = block;
    plan->block_bytes = needed;
    spops_plan_carve(plan, &carver);
    return SPOPS_STATUS_OK;
}

spops_status spops_plan_reserve_on(spops_context *ctx, const char *call, spops_plan_kind kind,
                                   const int64_t *fields, const spops_plan *const *parents,
                                   int32_t num_parents, spops_plan_memory *memory, void *out)
{
    spops_status status = SPOPS_STATUS_OK;
    spops_plan *plan = NULL;

    if (memory != NULL) SPOPS_TRY(spops_check_memory(ctx, call, memory));
    SPOPS_TRY(open_handle(ctx, call, kind, fields, true, &plan));
    SPOPS_TRY_GOTO(spops_plan_take_parents(ctx, call, plan, parents, num_parents), status, fail);
    if (plan->whole != NULL) { // which gives it memory
        *(spops_plan **)out = plan;
        return SPOPS_STATUS_OK;
    }
    if (memory == NULL) {
        SPOPS_TRY_GOTO(spops_plan_give_memory(ctx, call, plan), status, fail);
    } else if (memory->block == NULL) {
        status = measure_plan(ctx, call, plan, spops_plan_carve, &memory->bytes);
        goto fail; // there is no plan
    } else {
        SPOPS_TRY_GOTO(place_plan(ctx, call, "memory.", memory->block, memory->bytes, plan), status,
                       fail);
        SPOPS_TRY_GOTO(prepare_plan(ctx, plan), status, fail);
    }
    SPOPS_TRY_GOTO(spops_plan_empty(ctx, plan), status, fail);
    SPOPS_TRY_GOTO(spops_plan_wait_made(ctx), status, fail);
    *(spops_plan **)out = plan;
    return SPOPS_STATUS_OK;

fail:
    spops_plan_destroy(plan);
    return status;
}

spops_status spops_plan_reserve(spops_context *ctx, const char *call, spops_plan_kind kind,
                                const int64_t *fields, spops_plan_memory *memory, void *out)
{
    return spops_plan_reserve_on(ctx, call, kind, fields, NULL, 0, memory, out);
}

// ---- Refilling ----------------------------------------------------------------------------------

// Kinds that are filled from others, after those that they are filled from.
static const spops_plan_kind update_order[] = {SPOPS_PLAN_PYRAMID, SPOPS_PLAN_KERNEL_MAP,
                                               SPOPS_PLAN_SPARSECONV, SPOPS_PLAN_POINTCONV,
                                               SPOPS_PLAN_POOL};

static spops_status check_update(spops_context *ctx, const char *call, const spops_plan *plan,
                                 int32_t number)
{
    char name[32];
    snprintf(name, sizeof name, "plans[%d]", (int)number);
    SPOPS_TRY(spops_plan_check(ctx, call, name, plan));
    if (plan->ops->update == NULL)
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "%s: %s is of kind %s, which is filled from the caller's data", call,
                          name, info_of(plan->kind)->name);
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, name, plan));
    // A kind whose row names parents took them when the plan was made, or may do without; others are
    // told by the first refill.
    SPOPS_REQUIRE(ctx, spops_plan_num_parents(plan) > 0 || plan->parents[0] != NULL,
                  "%s: %s does not know what it stands on: set it once", call, name);
    return SPOPS_STATUS_OK;
}

spops_status spops_update(spops_context *ctx, spops_plan *const *plans, int32_t num_plans)
{
    static const char call[] = "update";
    enum { AT_ONCE = 32 };
    spops_plan *group[AT_ONCE];

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_REQUIRE(ctx, num_plans >= 0, "%s: num_plans is %" PRId32 ", expected 0 or more", call,
                  num_plans);
    SPOPS_REQUIRE(ctx, plans != NULL || num_plans == 0, "%s: plans is NULL", call);
    SPOPS_TRY(spops_check_aligned(ctx, call, "plans", plans, sizeof *plans));
    for (int32_t i = 0; i < num_plans; ++i)
        SPOPS_TRY(check_update(ctx, call, plans[i], i));
    for (size_t k = 0; k < sizeof update_order / sizeof update_order[0]; ++k) {
        const spops_plan_ops *ops = all_ops[(int)update_order[k] - 1];
        int32_t num = 0;
        for (int32_t i = 0; i < num_plans; ++i) {
            if (plans[i]->kind == update_order[k]) group[num++] = plans[i];
            if (num < AT_ONCE && i + 1 < num_plans) continue;
            if (num > 0) SPOPS_TRY(ops->update(ctx, group, num));
            num = 0;
        }
    }
    return SPOPS_STATUS_OK;
}

// ---- Plans as values ----------------------------------------------------------------------------

spops_status spops_plan_describe(spops_context *ctx, const spops_plan *plan, int64_t *ints,
                                 int32_t max_ints, int32_t *num_ints)
{
    static const char call[] = "plan_describe";
    int32_t num;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_check_object(ctx, call, "num_ints", num_ints, sizeof *num_ints));
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "plan", plan));
    num = NUM_HEADS + plan->ops->num_fields;
    if (ints != NULL) {
        SPOPS_TRY(spops_check_aligned(ctx, call, "ints", ints, sizeof *ints));
        SPOPS_REQUIRE(ctx, max_ints >= num,
                      "%s: max_ints is %" PRId32 ", expected at least %" PRId32, call, max_ints,
                      num);
        ints[0] = plan->kind;
        ints[1] = info_of(plan->kind)->version;
        memcpy(ints + NUM_HEADS, plan->fields,
               (size_t)plan->ops->num_fields * sizeof *plan->fields);
    }
    *num_ints = num;
    return SPOPS_STATUS_OK;
}

// A description is one of this library's kinds, whole.
static spops_status check_ints(spops_context *ctx, const char *call, const int64_t *ints,
                               int32_t num_ints)
{
    const spops_plan_ops *ops;
    int32_t num;

    SPOPS_TRY(spops_check_object(ctx, call, "ints", ints, sizeof *ints));
    SPOPS_REQUIRE(ctx, num_ints >= NUM_HEADS, "%s: num_ints is %" PRId32 ", expected at least %d",
                  call, num_ints, (int)NUM_HEADS);
    SPOPS_REQUIRE(ctx, ints[0] >= 1 && ints[0] <= NUM_KINDS,
                  "%s: ints[0] (kind) is %" PRId64 ", expected 1 to %d", call, ints[0],
                  (int)NUM_KINDS);
    SPOPS_REQUIRE(ctx, ints[1] == infos[ints[0] - 1].version,
                  "%s: ints[1] (version) is %" PRId64 ", expected %" PRId32 " of kind %s", call,
                  ints[1], infos[ints[0] - 1].version, infos[ints[0] - 1].name);
    ops = all_ops[ints[0] - 1];
    num = NUM_HEADS + ops->num_fields;
    SPOPS_REQUIRE(ctx, num_ints == num,
                  "%s: num_ints is %" PRId32 ", expected %" PRId32 " of kind %s", call, num_ints,
                  num, infos[ints[0] - 1].name);
    return SPOPS_STATUS_OK;
}

int32_t spops_plan_num_ints(int64_t kind)
{
    return kind < 1 || kind > NUM_KINDS ? 0 : NUM_HEADS + all_ops[kind - 1]->num_fields;
}

bool spops_plan_has_description(int64_t kind)
{
    return kind >= 1 && kind <= NUM_KINDS && all_ops[kind - 1]->read != NULL;
}

// The plan of a description, without memory.
spops_status spops_plan_read_ints(spops_context *ctx, const char *call, const int64_t *ints,
                                  int32_t num_ints, spops_plan **out)
{
    spops_plan *plan = NULL;
    spops_status status;

    SPOPS_TRY(check_ints(ctx, call, ints, num_ints));
    if (!spops_plan_has_description(ints[0]))
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "%s: a plan of kind %s has no block",
                          call, infos[ints[0] - 1].name);
    SPOPS_TRY(open_handle(ctx, call, (spops_plan_kind)ints[0], ints + NUM_HEADS, true, &plan));
    if (!plan->shares) {
        *out = plan;
        return SPOPS_STATUS_OK;
    }
    status = spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                        "%s: a plan of kind %s with these fields has no block", call,
                        info_of(plan->kind)->name);
    spops_plan_destroy(plan);
    return status;
}

spops_status spops_plan_measure(spops_context *ctx, const int64_t *ints, int32_t num_ints,
                                size_t *bytes, size_t *scratch_bytes)
{
    static const char call[] = "plan_measure";
    spops_plan *plan = NULL;
    spops_status status;
    size_t measured = 0;

    SPOPS_BEGIN_CALL(ctx, call);
    ctx->call = call;
    SPOPS_TRY(spops_check_aligned(ctx, call, "bytes", bytes, sizeof *bytes));
    SPOPS_TRY(spops_check_aligned(ctx, call, "scratch_bytes", scratch_bytes, sizeof *bytes));
    SPOPS_TRY(spops_check_object(ctx, call, "ints", ints, sizeof *ints));
    if (num_ints > 0 && num_ints > spops_plan_num_ints(ints[0]) && spops_plan_num_ints(ints[0]) > 0)
        return spops_plan_measure_whole(ctx, call, ints, num_ints, bytes, scratch_bytes);
    SPOPS_TRY(spops_plan_read_ints(ctx, call, ints, num_ints, &plan));
    status = spops_plan_measure_block(ctx, call, plan, &measured);
    if (status == SPOPS_STATUS_OK && bytes != NULL) *bytes = measured;
    if (status == SPOPS_STATUS_OK && scratch_bytes != NULL)
        *scratch_bytes = spops_plan_scratch_bytes(plan);
    spops_plan_destroy(plan);
    return status;
}

spops_status spops_plan_attach(spops_context *ctx, const int64_t *ints, int32_t num_ints,
                               void *block, size_t bytes, const spops_plan *const *parents,
                               int32_t num_parents, spops_plan **plan)
{
    static const char call[] = "plan_attach";
    spops_status status = SPOPS_STATUS_OK;
    spops_plan *read = NULL;

    if (plan != NULL && (uintptr_t)plan % sizeof *plan == 0) *plan = NULL;
    SPOPS_BEGIN_CALL(ctx, call);
    ctx->call = call;
    SPOPS_TRY(spops_check_object(ctx, call, "plan", plan, sizeof *plan));
    SPOPS_TRY(spops_plan_read_ints(ctx, call, ints, num_ints, &read));
    SPOPS_TRY_GOTO(spops_plan_take_parents(ctx, call, read, parents, num_parents), status, fail);
    SPOPS_TRY_GOTO(place_plan(ctx, call, "", block, bytes, read), status, fail);
    SPOPS_TRY_GOTO(spops_plan_prepare(ctx, read), status, fail);
    *plan = read;
    return SPOPS_STATUS_OK;

fail:
    spops_plan_destroy(read);
    return status;
}
