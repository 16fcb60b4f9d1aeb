// SPDX-License-Identifier: Apache-2.0
// Plans of segments: argument checks, allocation, the order in which the backend builds the lists,
// and what can be asked of a plan. The lists themselves are built in segments_cpu.c and
// segments.cu.
#include "segments/segments.h"

#include <string.h>

#include "core/matrix.h"
#include "spops/quantize.h"
#include "spops/segreduce.h"

// Fields of a description.
enum { NUM_SEGMENTS, MAX_TERMS, NUM_ROWS, NUM_WEIGHTS, MAX_COLS, GRADIENTS, NUM_FIELDS };

// Shared checks

spops_status spops_segments_check_cols(spops_context *ctx, const char *call, const char *name,
                                       const spops_segments *segments, bool states, int64_t cols)
{
    const bool scratch = states || segments->forward.max_pieces > 0 ||
                         segments->by_row.max_pieces > 0 || segments->by_weight.max_pieces > 0;
    SPOPS_REQUIRE(ctx, !scratch || cols <= segments->max_cols,
                  "%s: %s has %" PRId64 " columns, the plan was built for max_cols = %" PRId64,
                  call, name, cols, segments->max_cols);
    return SPOPS_STATUS_OK;
}

spops_status spops_segments_check_terms(spops_context *ctx, const char *call,
                                        const spops_segments *segments)
{
    SPOPS_REQUIRE(ctx, segments->num_sources <= segments->max_terms,
                  "%s: segments has terms numbered up to %" PRId64 ", expected less than %" PRId64
                  ", as many as it has",
                  call, segments->num_sources - 1, segments->max_terms);
    return SPOPS_STATUS_OK;
}

spops_status spops_check_gradients(spops_context *ctx, const char *call, spops_gradients gradients)
{
    SPOPS_REQUIRE(ctx, gradients >= SPOPS_GRADIENTS_NONE && gradients <= SPOPS_GRADIENTS_ALL,
                  "%s: gradients is %d, expected %d to %d", call, (int)gradients,
                  (int)SPOPS_GRADIENTS_NONE, (int)SPOPS_GRADIENTS_ALL);
    return SPOPS_STATUS_OK;
}

spops_status spops_check_gradients_field(spops_context *ctx, const char *call, int64_t field,
                                         spops_gradients *gradients)
{
    SPOPS_REQUIRE(ctx, field >= SPOPS_GRADIENTS_NONE && field <= SPOPS_GRADIENTS_ALL,
                  "%s: gradients is %" PRId64 ", expected %d to %d", call, field,
                  (int)SPOPS_GRADIENTS_NONE, (int)SPOPS_GRADIENTS_ALL);
    *gradients = (spops_gradients)field;
    return SPOPS_STATUS_OK;
}

// Making a plan

static spops_lists lists_of(int64_t num_segments, const spops_segments *s, int32_t split_terms,
                            int32_t most_terms)
{
    spops_lists lists;
    memset(&lists, 0, sizeof lists);
    lists.num_segments = num_segments;
    lists.max_terms = s->max_terms;
    lists.split_terms = split_terms;
    lists.counts_on_device = true; // until spops_segments_finish
    lists.host_schedule.longest = most_terms;
    return lists;
}

// The schedules lie side by side, so that one copy fetches all of them.
#define NUM_LISTS 3

static void carve_segments(spops_plan *plan, spops_carver *c)
{
    spops_segments *s = (spops_segments *)plan;
    spops_schedule *schedules = spops_carve(c, NUM_LISTS, 1, sizeof *schedules);
    spops_lists_carve(&s->forward, s->has_pairs, s->has_order, c);
    s->forward.schedule = schedules;
    s->keys = s->has_keys ? spops_carve(c, s->max_terms, 1, sizeof *s->keys) : NULL;
    if (s->gradients == SPOPS_GRADIENTS_NONE) return;
    spops_lists_carve(&s->by_row, true, true, c);
    spops_lists_carve(&s->by_weight, true, true, c);
    s->by_row.schedule = schedules == NULL ? NULL : schedules + 1;
    s->by_weight.schedule = schedules == NULL ? NULL : schedules + 2;
}

static size_t lists_workspace_bytes(spops_context *ctx, const spops_segments *s)
{
    const spops_lists *lists[NUM_LISTS] = {&s->forward, &s->by_row, &s->by_weight};
    const int num_lists = s->gradients == SPOPS_GRADIENTS_NONE ? 1 : NUM_LISTS;
    size_t most = 0;
    for (int i = 0; i < num_lists; ++i) {
        const size_t bytes = ctx->backend->lists_workspace_bytes(ctx, lists[i]);
        if (bytes > most) most = bytes;
    }
    return most;
}

static void carve_segments_workspace(spops_plan *plan, spops_carver *c)
{
    spops_segments *s = (spops_segments *)plan;
    s->lists_workspace = spops_carve(c, 1, 1, lists_workspace_bytes(plan->ctx, s));
    s->extra = spops_carve(c, 1, 1, s->extra_bytes);
}

spops_segments_scratch spops_segments_carve_scratch(const spops_segments *segments,
                                                    spops_carver *carver)
{
    const size_t state_bytes = segments->base.ctx->backend->kind == SPOPS_BACKEND_CPU
                                   ? SPOPS_STATE_BYTES_F64
                                   : SPOPS_STATE_BYTES_F32;
    spops_segments_scratch scratch;
    int64_t num_pieces = segments->forward.max_pieces;
    if (segments->by_row.max_pieces > num_pieces) num_pieces = segments->by_row.max_pieces;
    if (segments->by_weight.max_pieces > num_pieces) num_pieces = segments->by_weight.max_pieces;
    scratch.partials = spops_carve(carver, num_pieces, segments->max_cols, state_bytes);
    scratch.states =
        segments->gradients == SPOPS_GRADIENTS_ALL
            ? spops_carve(carver, segments->num_segments, segments->max_cols, state_bytes)
            : NULL;
    return scratch;
}

spops_status spops_segments_get_scratch(spops_context *ctx, const char *call,
                                        const spops_segments *segments,
                                        spops_segments_scratch *scratch)
{
    spops_carver carver = {NULL, 0};
    void *base = NULL;
    if (segments->base.scratch_bytes > 0)
        SPOPS_TRY(spops_context_scratch(ctx, call, segments->base.scratch_bytes, &base));
    carver.base = base;
    *scratch = spops_segments_carve_scratch(segments, &carver);
    return SPOPS_STATUS_OK;
}

// Of a handle, from sizes that are checked.
static spops_status set_sizes(spops_context *ctx, const char *call,
                              const spops_segments_sizes *sizes, spops_segments *s)
{
    spops_carver measured = {NULL, 0};
    int32_t split_terms;

    SPOPS_REQUIRE_SLOT(ctx, call, lists_build);
    if (sizes->gradients != SPOPS_GRADIENTS_NONE) SPOPS_REQUIRE_SLOT(ctx, call, lists_invert);
    s->num_segments = s->base.fields[NUM_SEGMENTS] = sizes->num_segments;
    s->max_terms = s->base.fields[MAX_TERMS] = sizes->max_terms;
    s->num_rows = s->base.fields[NUM_ROWS] = sizes->num_rows;
    s->num_weights = s->base.fields[NUM_WEIGHTS] = sizes->num_weights;
    s->max_cols = s->base.fields[MAX_COLS] = sizes->max_cols;
    s->base.fields[GRADIENTS] = s->gradients = sizes->gradients;
    s->num_sources = sizes->num_sources;
    s->sum_variant = sizes->sum_variant;
    s->base.refillable = sizes->refillable;
    s->weights_unique = sizes->weights_unique;
    s->has_pairs = sizes->pairs;
    s->has_order = sizes->order;
    s->has_keys = sizes->keys;
    s->extra_bytes = sizes->extra_bytes;
    split_terms = ctx->backend->split_terms(
        ctx, &(const spops_split_terms_args){.max_terms = s->max_terms, .max_cols = s->max_cols});
    s->forward = lists_of(s->num_segments, s, split_terms, sizes->most_of_segment);
    s->forward.in_order = sizes->in_order;
    if (s->gradients != SPOPS_GRADIENTS_NONE) {
        s->by_row = lists_of(s->num_rows, s, split_terms, sizes->most_of_row);
        s->by_weight = lists_of(s->num_weights, s, split_terms, 0);
    }
    carve_segments(&s->base, &measured); // the pieces that scratch is for
    measured = (spops_carver){NULL, 0};
    (void)spops_segments_carve_scratch(s, &measured);
    s->base.scratch_bytes = measured.used;
    return SPOPS_STATUS_OK;
}

spops_status spops_segments_alloc(spops_context *ctx, const char *call,
                                  const spops_segments_sizes *sizes, spops_segments **out)
{
    spops_status status = SPOPS_STATUS_OK;
    spops_carver scratch;
    spops_segments *s = spops_plan_alloc(ctx, SPOPS_PLAN_SEGMENTS);

    *out = NULL;
    if (s == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    SPOPS_TRY_GOTO(set_sizes(ctx, call, sizes, s), status, fail);
    if (!s->base.placed) {
        SPOPS_TRY_GOTO(spops_plan_check_size(ctx, call, &s->base), status, fail);
        // In one step with what the caller wants: scratch that was outgrown is kept, but of no use.
        scratch = (spops_carver){NULL, s->base.scratch_bytes};
        (void)spops_carve(&scratch, 1, 1, sizes->extra_scratch_bytes);
        if (scratch.used > 0) SPOPS_TRY_GOTO(spops_context_grow(ctx, scratch.used), status, fail);
        SPOPS_TRY_GOTO(spops_plan_give_memory(ctx, call, &s->base), status, fail);
    }
    *out = s;
    return SPOPS_STATUS_OK;

fail:
    spops_segments_destroy(s);
    return status;
}

static spops_status build_lists(spops_context *ctx, const spops_segments *segments,
                                const spops_lists_source *source, spops_lists *lists)
{
    const spops_lists_build_args args = {
        .source = source, .lists = lists, .workspace = segments->lists_workspace};
    return ctx->backend->lists_build(ctx, &args);
}

static spops_status invert_lists(spops_context *ctx, const spops_segments *segments,
                                 spops_inverse inverse, spops_lists *lists)
{
    const spops_lists_invert_args args = {.forward = &segments->forward,
                                          .inverse = inverse,
                                          .lists = lists,
                                          .workspace = segments->lists_workspace};
    return ctx->backend->lists_invert(ctx, &args);
}

spops_status spops_segments_enqueue_build(spops_context *ctx, spops_segments *segments,
                                          const spops_lists_source *source)
{
    spops_lists_source empty;

    if (source->num_terms == 0 && source->num_terms_device == NULL) {
        memset(&empty, 0, sizeof empty);
        empty.keys = segments->forward.offsets; // not NULL: keys are given, though none is read
        empty.drop_invalid = true;
        empty.counts = source->counts;
        empty.a_limit = segments->num_rows;
        empty.b_limit = segments->num_weights;
        source = &empty;
    }
    SPOPS_TRY(build_lists(ctx, segments, source, &segments->forward));
    if (segments->gradients == SPOPS_GRADIENTS_NONE) return SPOPS_STATUS_OK;
    SPOPS_TRY(invert_lists(ctx, segments, SPOPS_BY_ROW, &segments->by_row));
    if (source->keys != NULL && source->b == NULL) { // a term is its own weight: nothing to sort
        spops_lists_source by_weight = *source;
        by_weight.keys = NULL;
        by_weight.counts = NULL; // of segments, which are not its own
        by_weight.b = source->keys;
        by_weight.b_limit = segments->num_segments;
        return build_lists(ctx, segments, &by_weight, &segments->by_weight);
    }
    return invert_lists(ctx, segments, SPOPS_BY_WEIGHT, &segments->by_weight);
}

// The host's copy of a schedule, and what follows from it.
static void finish_lists(const spops_context *ctx, const spops_segments *segments,
                         const spops_schedule *schedule, int64_t num_rows, spops_lists *lists)
{
    const spops_choose_sums_args args = {
        .lists = lists, .num_rows = num_rows, .choice = &lists->sum_choice};
    lists->host_schedule = *schedule;
    lists->counts_on_device = false;
    if (ctx->backend->choose_sums == NULL) return;
    if (segments->sum_variant == 0)
        ctx->backend->choose_sums(ctx, &args);
    else
        memset(&lists->sum_choice, segments->sum_variant, sizeof lists->sum_choice);
}

spops_status spops_segments_finish(spops_context *ctx, spops_segments *segments)
{
    spops_schedule schedules[NUM_LISTS];
    const size_t count = segments->gradients == SPOPS_GRADIENTS_NONE ? 1 : NUM_LISTS;

    spops_plan_close(&segments->base);
    segments->lists_workspace = segments->extra = NULL;
    SPOPS_TRY(ctx->backend->download(ctx, schedules, segments->forward.schedule,
                                     count * sizeof *schedules));
    finish_lists(ctx, segments, &schedules[0], segments->num_rows, &segments->forward);
    if (count == 1) return SPOPS_STATUS_OK;
    finish_lists(ctx, segments, &schedules[1], segments->num_segments, &segments->by_row);
    finish_lists(ctx, segments, &schedules[2], segments->num_rows, &segments->by_weight);
    segments->weights_unique = schedules[2].longest <= 1;
    return SPOPS_STATUS_OK;
}

static spops_status build(spops_context *ctx, const char *call, const spops_segments_sizes *sizes,
                          const spops_lists_source *source, spops_segments **out)
{
    spops_status status = SPOPS_STATUS_OK;
    spops_segments *s = NULL;

    SPOPS_TRY(spops_segments_alloc(ctx, call, sizes, &s));
    SPOPS_TRY_GOTO(spops_segments_enqueue_build(ctx, s, source), status, fail);
    if (s->keys != NULL && source->num_terms > 0)
        SPOPS_TRY_GOTO(ctx->backend->copy(ctx, s->keys, source->keys,
                                          (size_t)source->num_terms * sizeof *s->keys),
                       status, fail);
    SPOPS_TRY_GOTO(spops_segments_finish(ctx, s), status, fail);
    *out = s;
    return SPOPS_STATUS_OK;

fail:
    spops_segments_destroy(s);
    return status;
}

// From the caller's indices

spops_status spops_check_range(spops_context *ctx, const char *call, const char *name,
                               const int32_t *array, int64_t n, int64_t high, const char *high_name)
{
    spops_check_result found;
    const spops_check_indices_args args = {
        .rule = SPOPS_CHECK_RANGE, .a = array, .n = n, .high = high, .result = &found};
    if (n == 0) return SPOPS_STATUS_OK;
    SPOPS_REQUIRE(ctx, high > 0, "%s: %s is 0, expected at least 1: %s has %" PRId64 " elements",
                  call, high_name, name, n);
    SPOPS_TRY(ctx->backend->check_indices(ctx, &args));
    SPOPS_REQUIRE(ctx, found.index < 0,
                  "%s: %s[%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64 " (%s - 1)", call,
                  name, found.index, found.value, high - 1, high_name);
    return SPOPS_STATUS_OK;
}

spops_status spops_check_ascending(spops_context *ctx, const char *call, const char *name,
                                   const int32_t *array, int64_t n)
{
    spops_check_result found;
    const spops_check_indices_args args = {
        .rule = SPOPS_CHECK_ASCENDING, .a = array, .n = n, .result = &found};
    if (n < 2) return SPOPS_STATUS_OK;
    SPOPS_TRY(ctx->backend->check_indices(ctx, &args));
    SPOPS_REQUIRE(ctx, found.index < 0,
                  "%s: %s[%" PRId64 "] is %" PRId32 ", less than %s[%" PRId64 "] = %" PRId32, call,
                  name, found.index, found.value, name, found.index - 1, found.previous);
    return SPOPS_STATUS_OK;
}

spops_status spops_check_offsets(spops_context *ctx, const char *call, const int32_t *offsets,
                                 int64_t num_segments, int64_t *num_terms)
{
    int32_t first, last;
    SPOPS_TRY(spops_check_indices(ctx, call, "offsets", offsets, num_segments + 1));
    SPOPS_TRY(ctx->backend->download(ctx, &first, offsets, sizeof first));
    SPOPS_REQUIRE(ctx, first == 0, "%s: offsets[0] is %" PRId32 ", expected 0", call, first);
    SPOPS_TRY(spops_check_ascending(ctx, call, "offsets", offsets, num_segments + 1));
    SPOPS_TRY(ctx->backend->download(ctx, &last, offsets + num_segments, sizeof last));
    SPOPS_REQUIRE(ctx, last <= SPOPS_MAX_COUNT,
                  "%s: offsets[%" PRId64 "] is %" PRId32 ", expected at most %" PRId64, call,
                  num_segments, last, SPOPS_MAX_COUNT);
    *num_terms = last;
    return SPOPS_STATUS_OK;
}

static spops_status check_sum_variant(spops_context *ctx, const char *call, int32_t variant)
{
    const spops_choose_sums_args args = {.lists = NULL};
    const int32_t most =
        ctx->backend->choose_sums == NULL ? 0 : ctx->backend->choose_sums(ctx, &args);
    SPOPS_REQUIRE(ctx, variant >= 0 && variant <= most,
                  "%s: sum_variant is %" PRId32 ", expected 0 to %" PRId32, call, variant, most);
    return SPOPS_STATUS_OK;
}

// The sizes that options say; the counts are checked already.
static spops_status read_sizes(spops_context *ctx, const char *call, spops_segments_options *o,
                               int64_t num_segments, int64_t max_terms, spops_segments_sizes *sizes)
{
    SPOPS_TRY(spops_check_count(ctx, call, "num_rows", o->num_rows));
    SPOPS_TRY(spops_check_count(ctx, call, "num_weights", o->num_weights));
    SPOPS_TRY(spops_check_max_cols(ctx, call, &o->max_cols));
    SPOPS_TRY(spops_check_gradients(ctx, call, o->gradients));
    SPOPS_TRY(check_sum_variant(ctx, call, o->sum_variant));
    if (o->idx == NULL && o->num_rows == 0) o->num_rows = max_terms;
    if (o->weight_idx == NULL && o->num_weights == 0) o->num_weights = max_terms;
    memset(sizes, 0, sizeof *sizes);
    sizes->num_segments = num_segments;
    sizes->max_terms = max_terms;
    sizes->num_rows = o->num_rows;
    sizes->num_weights = o->num_weights;
    sizes->num_sources = max_terms;
    sizes->max_cols = o->max_cols;
    sizes->gradients = o->gradients;
    sizes->sum_variant = o->sum_variant;
    return SPOPS_STATUS_OK;
}

// Which row, or weight, a term takes: by an array, or its own number.
static spops_status check_taken(spops_context *ctx, const char *call, const char *name,
                                const int32_t *array, int64_t num_terms, int64_t limit,
                                const char *limit_name)
{
    if (array == NULL) {
        SPOPS_REQUIRE(ctx, limit >= num_terms,
                      "%s: %s is %" PRId64 ", expected at least %" PRId64
                      " (one per term, as %s is NULL)",
                      call, limit_name, limit, num_terms, name);
        return SPOPS_STATUS_OK;
    }
    SPOPS_TRY(spops_check_indices(ctx, call, name, array, num_terms));
    return spops_check_range(ctx, call, name, array, num_terms, limit, limit_name);
}

// The common rest of create and create_from_keys; source holds offsets or keys.
static spops_status create(spops_context *ctx, const char *call, int64_t num_segments,
                           spops_segments_options *o, spops_lists_source *source,
                           spops_segments **out)
{
    const int64_t num_terms = source->num_terms;
    spops_segments_sizes sizes;

    SPOPS_TRY(read_sizes(ctx, call, o, num_segments, num_terms, &sizes));
    SPOPS_TRY(check_taken(ctx, call, "idx", o->idx, num_terms, o->num_rows, "num_rows"));
    SPOPS_TRY(check_taken(ctx, call, "weight_idx", o->weight_idx, num_terms, o->num_weights,
                          "num_weights"));
    source->a = o->idx;
    source->b = o->weight_idx;
    source->a_limit = o->num_rows;
    source->b_limit = o->num_weights;
    sizes.pairs = spops_source_needs_pairs(source);
    sizes.order = spops_source_needs_order(source);
    sizes.in_order = spops_source_in_order(source);
    sizes.keys = spops_segments_keeps_keys(ctx) && source->keys != NULL && !source->keys_sorted &&
                 source->a == NULL && source->b == NULL;
    return build(ctx, call, &sizes, source, out);
}

spops_status spops_segments_create(spops_context *ctx, int64_t num_segments, const int32_t *offsets,
                                   const spops_segments_options *options, spops_segments **out)
{
    static const char call[] = "segments_create";
    spops_segments_options o;
    spops_lists_source source;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    memset(&o, 0, sizeof o);
    SPOPS_TRY(spops_read_options(ctx, call, options, &o, sizeof o));
    SPOPS_TRY(spops_check_no_memory(ctx, call, o.memory));
    SPOPS_TRY(spops_check_count(ctx, call, "num_segments", num_segments));
    memset(&source, 0, sizeof source);
    SPOPS_TRY(spops_check_offsets(ctx, call, offsets, num_segments, &source.num_terms));
    source.offsets = offsets;
    return create(ctx, call, num_segments, &o, &source, out);
}

spops_status spops_segments_create_from_keys(spops_context *ctx, int64_t num_segments,
                                             int64_t num_terms, const int32_t *keys,
                                             spops_key_order order,
                                             const spops_segments_options *options,
                                             spops_segments **out)
{
    static const char call[] = "segments_create_from_keys";
    spops_segments_options o;
    spops_lists_source source;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    memset(&o, 0, sizeof o);
    SPOPS_TRY(spops_read_options(ctx, call, options, &o, sizeof o));
    SPOPS_TRY(spops_check_count(ctx, call, "num_segments", num_segments));
    SPOPS_TRY(spops_check_no_memory(ctx, call, o.memory));
    SPOPS_TRY(spops_check_count(ctx, call, "num_terms", num_terms));
    SPOPS_REQUIRE(ctx, order == SPOPS_KEYS_UNSORTED || order == SPOPS_KEYS_SORTED,
                  "%s: order is %d, expected %d or %d", call, (int)order, (int)SPOPS_KEYS_UNSORTED,
                  (int)SPOPS_KEYS_SORTED);
    SPOPS_TRY(spops_check_indices(ctx, call, "keys", keys, num_terms));
    SPOPS_TRY(spops_check_range(ctx, call, "keys", keys, num_terms, num_segments, "num_segments"));
    if (order == SPOPS_KEYS_SORTED)
        SPOPS_TRY(spops_check_ascending(ctx, call, "keys", keys, num_terms));

    memset(&source, 0, sizeof source);
    source.num_terms = num_terms;
    source.keys = keys;
    source.keys_sorted = order == SPOPS_KEYS_SORTED;
    return create(ctx, call, num_segments, &o, &source, out);
}

// Into a capacity

static spops_status empty_segments(spops_context *ctx, spops_plan *plan)
{
    static const spops_lists_source nothing;
    return spops_segments_enqueue_build(ctx, (spops_segments *)plan, &nothing);
}

spops_status spops_segments_make(spops_context *ctx, const char *call,
                                 const spops_segments_sizes *given, spops_segments **out)
{
    const int64_t fields[NUM_FIELDS] = {given->num_segments, given->max_terms, given->num_rows,
                                        given->num_weights,  given->max_cols,  given->gradients};
    return spops_plan_reserve(ctx, call, SPOPS_PLAN_SEGMENTS, fields, NULL, out);
}

spops_status spops_segments_reserve(spops_context *ctx, int64_t num_segments, int64_t max_terms,
                                    const spops_segments_options *options, spops_segments **out)
{
    static const char call[] = "segments_reserve";
    spops_segments_options o;
    spops_segments_sizes sizes;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    memset(&o, 0, sizeof o);
    SPOPS_TRY(spops_read_options(ctx, call, options, &o, sizeof o));
    SPOPS_TRY(spops_check_count(ctx, call, "num_segments", num_segments));
    SPOPS_TRY(spops_check_count(ctx, call, "max_terms", max_terms));
    SPOPS_REQUIRE(ctx, o.idx == NULL,
                  "%s: idx is not NULL, expected NULL (segments_update takes it)", call);
    SPOPS_REQUIRE(ctx, o.weight_idx == NULL,
                  "%s: weight_idx is not NULL, expected NULL (segments_update takes it)", call);
    SPOPS_REQUIRE(ctx, o.sum_variant == 0,
                  "%s: sum_variant is %" PRId32
                  ", expected 0: the counts that a choice depends on stay on the device",
                  call, o.sum_variant);
    SPOPS_TRY(read_sizes(ctx, call, &o, num_segments, max_terms, &sizes));
    const int64_t fields[NUM_FIELDS] = {num_segments,  max_terms,  o.num_rows,
                                        o.num_weights, o.max_cols, o.gradients};
    return spops_plan_reserve(ctx, call, SPOPS_PLAN_SEGMENTS, fields, o.memory, out);
}

static spops_status read_segments(spops_context *ctx, const char *call, spops_plan *plan)
{
    spops_segments_options o = spops_segments_options_default();
    const int64_t *fields = plan->fields;
    spops_segments_sizes sizes;

    SPOPS_TRY(spops_check_count(ctx, call, "num_segments", fields[NUM_SEGMENTS]));
    SPOPS_TRY(spops_check_count(ctx, call, "max_terms", fields[MAX_TERMS]));
    o.num_rows = fields[NUM_ROWS];
    o.num_weights = fields[NUM_WEIGHTS];
    o.max_cols = fields[MAX_COLS];
    SPOPS_TRY(spops_check_gradients_field(ctx, call, fields[GRADIENTS], &o.gradients));
    SPOPS_TRY(read_sizes(ctx, call, &o, fields[NUM_SEGMENTS], fields[MAX_TERMS], &sizes));
    sizes.num_rows = fields[NUM_ROWS]; // as they are: a plan may have no rows, and no weights
    sizes.num_weights = fields[NUM_WEIGHTS];
    sizes.refillable = sizes.pairs = sizes.order = true;
    return set_sizes(ctx, call, &sizes, (spops_segments *)plan);
}

static spops_status state_of_segments(spops_context *ctx, const spops_plan *plan, int64_t *counts)
{
    spops_schedule schedule;
    SPOPS_TRY(spops_segments_schedule_sync(ctx, (const spops_segments *)plan, &schedule));
    spops_schedule_put_state(&schedule, counts);
    return SPOPS_STATUS_OK;
}

// Segments are the target, rows the source, weights the keys.
static void relation_of_segments(const spops_plan *plan, spops_relation *r)
{
    const spops_segments *s = (const spops_segments *)plan;

    r->num_keys = s->num_weights;
    r->max_terms = s->max_terms;
    r->sides[SPOPS_SIDE_TARGET] =
        (spops_relation_side){.max_rows = s->num_segments,
                              .by_row = {s->forward.offsets, s->forward.pairs, 2},
                              .order = s->forward.order};
    r->sides[SPOPS_SIDE_SOURCE] =
        (spops_relation_side){.max_rows = s->num_rows,
                              .by_row = {s->by_row.offsets, s->by_row.pairs, 2},
                              .order = s->by_row.order};
}

const spops_plan_ops spops_segments_plan_ops = {
    .handle_bytes = sizeof(struct spops_segments),
    .num_fields = NUM_FIELDS,
    .read = read_segments,
    .carve = carve_segments,
    .carve_workspace = carve_segments_workspace,
    .empty = empty_segments,
    .state = state_of_segments,
    .relation = relation_of_segments,
    .file = &spops_segments_file,
};

spops_status spops_segments_update(spops_context *ctx, spops_segments *segments,
                                   const int32_t *num_terms, const int32_t *keys,
                                   const int32_t *idx, const int32_t *weight_idx)
{
    static const char call[] = "segments_update";
    spops_lists_source source;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_refillable(ctx, call, "segments", segments));
    SPOPS_TRY(spops_check_indices(ctx, call, "num_terms", num_terms, 1));
    SPOPS_TRY(spops_check_indices(ctx, call, "keys", keys, segments->max_terms));
    if (idx != NULL) SPOPS_TRY(spops_check_indices(ctx, call, "idx", idx, segments->max_terms));
    if (weight_idx != NULL)
        SPOPS_TRY(spops_check_indices(ctx, call, "weight_idx", weight_idx, segments->max_terms));

    memset(&source, 0, sizeof source);
    source.keys = keys != NULL ? keys : segments->forward.offsets;
    source.num_terms = segments->max_terms;
    source.num_terms_device = num_terms;
    source.a = idx;
    source.b = weight_idx;
    source.drop_invalid = true;
    source.a_limit = segments->num_rows;
    source.b_limit = segments->num_weights;
    return spops_segments_enqueue_build(ctx, segments, &source);
}

// What can be asked of a plan

spops_status spops_segments_schedule_sync(spops_context *ctx, const spops_segments *segments,
                                          spops_schedule *schedule)
{
    if (!segments->forward.counts_on_device) {
        *schedule = segments->forward.host_schedule;
        return SPOPS_STATUS_OK;
    }
    return ctx->backend->download(ctx, schedule, segments->forward.schedule, sizeof *schedule);
}

spops_status spops_segments_get_info_sync(spops_context *ctx, const spops_segments *segments,
                                          spops_segments_info *info)
{
    static const char call[] = "segments_get_info_sync";
    spops_segments_info found;
    spops_schedule schedule;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check_sync(ctx, call, "segments", segments));
    SPOPS_TRY(spops_segments_schedule_sync(ctx, segments, &schedule));
    memset(&found, 0, sizeof found);
    found.num_segments = segments->num_segments;
    found.num_terms = schedule.num_terms;
    found.num_rows = segments->num_rows;
    found.num_weights = segments->num_weights;
    found.num_nonempty = schedule.num_nonempty;
    found.longest = schedule.longest;
    found.num_pieces = schedule.num_pieces;
    found.num_dropped = schedule.num_dropped;
    found.overflow = schedule.overflow;
    found.sum_variant =
        spops_sum_variant(&segments->forward.sum_choice, SPOPS_DTYPE_F16,
                          (segments->max_cols * spops_dtype_bytes(SPOPS_DTYPE_F16) + 15) / 16);
    SPOPS_TRY(spops_write_struct(ctx, call, "info", info, &found, sizeof found));
    if (schedule.overflow == 0) return SPOPS_STATUS_OK;
    return spops_fail(ctx, SPOPS_STATUS_CAPACITY_EXCEEDED,
                      "%s: segments_update met more terms than max_terms = %" PRId64, call,
                      segments->max_terms);
}

spops_status spops_segments_get_view(spops_context *ctx, const spops_segments *segments,
                                     spops_segments_view *view)
{
    static const char call[] = "segments_get_view";
    spops_segments_view found;
    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "segments", segments));
    found = spops_segments_view_of(&segments->forward);
    return spops_write_struct(ctx, call, "view", view, &found, sizeof found);
}

// How many different numbers a and b a plan's pairs name (waits).
static spops_status count_distinct_sync(spops_context *ctx, const spops_segments *s,
                                        int64_t num_terms, int64_t *num_a, int64_t *num_b)
{
    spops_status status = SPOPS_STATUS_OK;
    const size_t n = (size_t)num_terms, rows = (size_t)s->num_rows,
                 weights = (size_t)s->num_weights;
    int32_t *pairs = NULL;
    unsigned char *row_seen = NULL, *weight_seen = NULL;

    *num_a = *num_b = s->forward.pairs == NULL ? num_terms : 0;
    if (s->forward.pairs == NULL || num_terms == 0) return SPOPS_STATUS_OK;
    pairs = spops_host_alloc(ctx, n, 2 * sizeof *pairs);
    row_seen = pairs == NULL ? NULL : spops_host_alloc(ctx, rows, 1);
    weight_seen = row_seen == NULL ? NULL : spops_host_alloc(ctx, weights, 1);
    if (weight_seen == NULL) {
        status = SPOPS_STATUS_OUT_OF_MEMORY;
        goto done;
    }
    SPOPS_TRY_GOTO(ctx->backend->download(ctx, pairs, s->forward.pairs, n * 2 * sizeof *pairs),
                   status, done);
    for (size_t p = 0; p < n; ++p) {
        const int32_t a = pairs[2 * p], b = pairs[2 * p + 1];
        *num_a += !row_seen[a];
        *num_b += !weight_seen[b];
        row_seen[a] = weight_seen[b] = 1;
    }

done:
    spops_host_free(ctx, weight_seen, weights, 1);
    spops_host_free(ctx, row_seen, rows, 1);
    spops_host_free(ctx, pairs, n, 2 * sizeof *pairs);
    return status;
}

// Bytes of a row of cols elements, with what scales its blocks.
static size_t row_bytes(spops_dtype dtype, size_t cols)
{
    const size_t block = SPOPS_QUANTIZE_BLOCK_COLS;
    if (spops_dtype_is_packed(dtype))
        return cols / 2 + cols % 2 + cols / block + (cols % block > 0);
    return spops_mul_bytes(cols, spops_dtype_bytes(dtype));
}

spops_status spops_segments_get_traffic_sync(spops_context *ctx, const spops_segments *segments,
                                             spops_dtype dtype, int64_t cols, int weighted,
                                             spops_traffic *traffic)
{
    static const char call[] = "segments_get_traffic_sync";
    const spops_segments *s = segments;
    // Of weights and output; rows of codes have them in f16.
    const size_t wide = spops_dtype_bytes(spops_dtype_is_narrow(dtype) ? SPOPS_DTYPE_F16 : dtype);
    size_t row, index, input, output, weight, gather, floor, all_rows, all_weights, working_set;
    int64_t num_a, num_b, num_entries;
    spops_schedule schedule;
    spops_traffic found;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "segments", s));
    SPOPS_TRY(
        spops_check_dtype(ctx, call, "dtype", dtype, SPOPS_DTYPES_FLOAT | SPOPS_DTYPES_NARROW));
    SPOPS_REQUIRE(ctx, cols >= 0, "%s: cols is %" PRId64 ", expected at least 0", call, cols);
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    SPOPS_TRY(spops_segments_schedule_sync(ctx, s, &schedule));
    SPOPS_TRY(count_distinct_sync(ctx, s, schedule.num_terms, &num_a, &num_b));

    // Whole segments are listed for the GPU only; the CPU walks the offsets.
    num_entries =
        ctx->backend->kind == SPOPS_BACKEND_CUDA ? s->num_segments - schedule.num_splits : 0;
    index = (size_t)(s->num_segments + 1) * sizeof(int32_t) +
            (size_t)(num_entries + schedule.num_pieces) * sizeof(spops_work_item) +
            (size_t)schedule.num_splits * sizeof(spops_split_segment);
    if (s->forward.pairs != NULL) index += (size_t)schedule.num_terms * 2 * sizeof(int32_t);
    row = row_bytes(dtype, (size_t)cols);
    input = spops_mul_bytes((size_t)num_a, row);
    all_rows = spops_mul_bytes((size_t)s->num_rows, row);
    output = spops_mul_bytes((size_t)s->num_segments, spops_mul_bytes((size_t)cols, wide));
    gather = spops_mul_bytes((size_t)schedule.num_terms, row);
    weight = weighted ? (size_t)num_b * wide : 0;
    all_weights = weighted ? (size_t)s->num_weights * wide : 0;
    floor = spops_add_bytes(spops_add_bytes(index, weight), spops_add_bytes(input, output));
    working_set =
        spops_add_bytes(spops_add_bytes(index, all_weights), spops_add_bytes(all_rows, output));
    SPOPS_REQUIRE(ctx, working_set <= INT64_MAX && gather <= INT64_MAX,
                  "%s: cols is %" PRId64 ", and the matrices exceed 64-bit sizes", call, cols);

    memset(&found, 0, sizeof found);
    found.index_bytes = (int64_t)index;
    found.weight_bytes = (int64_t)weight;
    found.input_bytes = (int64_t)input;
    found.output_bytes = (int64_t)output;
    found.gather_bytes = (int64_t)gather;
    found.compulsory_bytes = (int64_t)floor;
    found.working_set_bytes = (int64_t)working_set;
    found.regime = spops_context_regime(ctx, found.working_set_bytes);
    return spops_write_struct(ctx, call, "traffic", traffic, &found, sizeof found);
}
