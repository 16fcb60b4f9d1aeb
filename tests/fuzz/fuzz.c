// SPDX-License-Identifier: Apache-2.0
#include "fuzz.h"
#include "tests/support/saved.h"

static void *limited_alloc(void *user, size_t bytes)
{
    fuzz_memory *memory = user;
    const size_t padded = (bytes + 255) / 256 * 256;
    void *ptr;
    ++memory->num_allocs;
    if (padded >= bytes && padded < SIZE_MAX - memory->used && memory->used + padded > memory->most)
        memory->most = memory->used + padded;
    if (memory->fail_at > 0 && memory->num_allocs >= memory->fail_at) return NULL;
    if (padded < bytes || padded > FUZZ_MEMORY_LIMIT - memory->used) return NULL;
    ptr = aligned_alloc(256, padded > 0 ? padded : 256);
    if (ptr == NULL) return NULL;
    // Whoever counts on zeros in here finds none.
    memset(ptr, 0xa5, padded);
    memory->used += padded;
    ++memory->num_live;
    return ptr;
}

static void limited_free(void *user, void *ptr, size_t bytes)
{
    fuzz_memory *memory = user;
    if (ptr == NULL) return;
    memory->used -= (bytes + 255) / 256 * 256;
    --memory->num_live;
    free(ptr);
}

spops_context *fuzz_context_create(fuzz_memory *memory, int num_threads)
{
    spops_context_options options = spops_context_options_default();
    spops_context *ctx = NULL;
    memset(memory, 0, sizeof *memory);
    options.backend = SPOPS_BACKEND_CPU;
    options.num_threads = num_threads;
    options.allocator.user = memory;
    options.allocator.host_alloc = limited_alloc;
    options.allocator.host_free = limited_free;
    FUZZ_REQUIRE(spops_context_create(&options, &ctx) == SPOPS_STATUS_OK, "%s",
                 spops_last_error(NULL));
    return ctx;
}

void fuzz_context_destroy(spops_context *ctx, fuzz_memory *memory)
{
    spops_context_destroy(ctx);
    FUZZ_REQUIRE(memory->num_live == 0 && memory->used == 0, "%lld blocks, %zu bytes",
                 (long long)memory->num_live, memory->used);
}

int32_t fuzz_i32(fuzz_input *input)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
        if (input->at >= input->bytes) break;
        value |= (uint32_t)input->data[input->at++] << (8 * i);
    }
    return (int32_t)value;
}

int32_t *fuzz_i32s(fuzz_input *input, int64_t n)
{
    const size_t count = n > 0 ? (size_t)n : 0;
    int32_t *values = malloc(count > 0 ? count * sizeof *values : 1);
    FUZZ_REQUIRE(values != NULL, "no memory for %zu numbers", count);
    for (size_t i = 0; i < count; ++i)
        values[i] = fuzz_i32(input);
    return values;
}

spops_bev_ranks_out fuzz_ranks(fuzz_input *input, int64_t num_points, int64_t num_intervals)
{
    spops_bev_ranks_out ranks = spops_bev_ranks_out_default();
    ranks.num_points = num_points;
    ranks.num_intervals = num_intervals;
    ranks.ranks_depth = fuzz_i32s(input, num_points);
    ranks.ranks_feat = fuzz_i32s(input, num_points);
    ranks.ranks_bev = fuzz_i32s(input, num_points);
    ranks.interval_starts = fuzz_i32s(input, num_intervals);
    ranks.interval_lengths = fuzz_i32s(input, num_intervals);
    return ranks;
}

void fuzz_free_ranks(spops_bev_ranks_out *ranks)
{
    free(ranks->ranks_depth);
    free(ranks->ranks_feat);
    free(ranks->ranks_bev);
    free(ranks->interval_starts);
    free(ranks->interval_lengths);
}

spops_bev_intervals_out fuzz_intervals(fuzz_input *input, int64_t num_points, int64_t num_intervals)
{
    spops_bev_intervals_out intervals = spops_bev_intervals_out_default();
    intervals.num_points = num_points;
    intervals.num_intervals = num_intervals;
    intervals.indices = fuzz_i32s(input, num_points);
    intervals.intervals = fuzz_i32s(input, 3 * num_intervals);
    return intervals;
}

void fuzz_free_intervals(spops_bev_intervals_out *intervals)
{
    free(intervals->indices);
    free(intervals->intervals);
}

static float *floats(int64_t n, float value)
{
    float *values = malloc((n > 0 ? (size_t)n : 1) * sizeof *values);
    FUZZ_REQUIRE(values != NULL, "no memory for %lld floats", (long long)n);
    for (int64_t i = 0; i < n; ++i)
        values[i] = value;
    return values;
}

static double sum(const float *values, int64_t n)
{
    double total = 0.0;
    for (int64_t i = 0; i < n; ++i)
        total += values[i];
    return total;
}

#define FUZZ_OK(ctx, call)                                                                         \
    do {                                                                                           \
        const spops_status fuzz_status = (call);                                                   \
        FUZZ_REQUIRE(fuzz_status == SPOPS_STATUS_OK, "%s: %s", spops_status_name(fuzz_status),     \
                     spops_last_error(ctx));                                                       \
    } while (0)

// Calls that need more memory than the context may have are allowed to say so.
static int had_memory(spops_context *ctx, spops_status status)
{
    FUZZ_REQUIRE(status == SPOPS_STATUS_OK || status == SPOPS_STATUS_OUT_OF_MEMORY, "%s: %s",
                 spops_status_name(status), spops_last_error(ctx));
    return status == SPOPS_STATUS_OK;
}

static void *save_bev_plan(spops_context *ctx, const spops_bev_plan *plan, size_t *bytes)
{
    size_t written = 0;
    void *buffer;
    if (!had_memory(ctx, saved_put(ctx, plan, NULL, 0, bytes))) return NULL;
    buffer = malloc(*bytes);
    FUZZ_REQUIRE(buffer != NULL, "no memory for %zu bytes", *bytes);
    if (!had_memory(ctx, saved_put(ctx, plan, buffer, *bytes, &written))) {
        free(buffer);
        return NULL;
    }
    FUZZ_REQUIRE(written == *bytes, "%zu bytes written, %zu announced", written, *bytes);
    return buffer;
}

static void pool_ones(spops_context *ctx, const spops_bev_plan *plan,
                      const spops_bev_plan_info *info, spops_bev_layout layout, int64_t cols)
{
    const int first = layout == SPOPS_BEV_CHANNELS_FIRST;
    const int64_t rows = first ? info->shape.num_batches * cols : info->num_cells;
    const int64_t width = first ? info->num_cells / info->shape.num_batches : cols;
    float *depth = floats(info->num_depths, 1.0f), *feat = floats(info->num_features * cols, 1.0f);
    float *out = floats(rows * width, -1.0f);
    const double expected = (double)info->num_points * (double)cols;
    spops_bevpool_args args = spops_bevpool_args_default();
    args.layout = layout;
    args.depth = spops_matrix_dense(depth, info->num_depths, 1, SPOPS_DTYPE_F32);
    args.feat = spops_matrix_dense(feat, info->num_features, cols, SPOPS_DTYPE_F32);
    args.out = spops_matrix_dense(out, rows, width, SPOPS_DTYPE_F32);
    FUZZ_OK(ctx, spops_bevpool_execute(ctx, plan, &args));
    FUZZ_OK(ctx, spops_context_wait_sync(ctx));
    FUZZ_REQUIRE(sum(out, rows * width) == expected, "pooled %g, expected %g",
                 sum(out, rows * width), expected);
    for (int64_t i = 0; i < rows * width; ++i)
        out[i] = 1.0f;
    float *grad_depth = floats(info->num_depths, -1.0f);
    float *grad_feat = floats(info->num_features * cols, -1.0f);
    const spops_matrix grad_d =
        spops_matrix_dense(grad_depth, info->num_depths, 1, SPOPS_DTYPE_F32);
    const spops_matrix grad_f =
        spops_matrix_dense(grad_feat, info->num_features, cols, SPOPS_DTYPE_F32);
    const spops_status status = spops_bevpool_execute_backward(
        ctx, plan, layout, spops_matrix_dense(out, rows, width, SPOPS_DTYPE_F32),
        spops_matrix_dense(depth, info->num_depths, 1, SPOPS_DTYPE_F32),
        spops_matrix_dense(feat, info->num_features, cols, SPOPS_DTYPE_F32), &grad_d, &grad_f);
    // A plan without the gradients' lists refuses; one with them runs.
    FUZZ_REQUIRE(status == SPOPS_STATUS_OK || status == SPOPS_STATUS_INVALID_ARGUMENT ||
                     status == SPOPS_STATUS_NOT_SUPPORTED,
                 "%s", spops_last_error(ctx));
    if (status == SPOPS_STATUS_OK) {
        FUZZ_OK(ctx, spops_context_wait_sync(ctx));
        FUZZ_REQUIRE(sum(grad_depth, info->num_depths) == expected, "grad_depth sums to %g, not %g",
                     sum(grad_depth, info->num_depths), expected);
        FUZZ_REQUIRE(sum(grad_feat, info->num_features * cols) == expected,
                     "grad_feat sums to %g, not %g", sum(grad_feat, info->num_features * cols),
                     expected);
    }
    free(depth);
    free(feat);
    free(out);
    free(grad_depth);
    free(grad_feat);
}

static void give_back_as_arrays(spops_context *ctx, const spops_bev_plan *plan,
                                const spops_bev_plan_info *info)
{
    fuzz_input input = {NULL, 0, 0}; // zeros
    spops_bev_ranks_out ranks;
    spops_bev_ranks given;
    spops_bev_plan *again = NULL;
    ranks = fuzz_ranks(&input, info->num_points, info->num_intervals);
    given = spops_bev_ranks_of(&ranks);
    // What a plan gives out is a plan.
    if (had_memory(ctx, spops_bev_plan_get_ranks_sync(ctx, plan, &ranks)) &&
        had_memory(ctx, spops_bev_plan_create_from_ranks(ctx, &info->shape, &given, NULL, &again)))
        spops_bev_plan_destroy(again);
    fuzz_free_ranks(&ranks);
}

void fuzz_run_bev_plan(spops_context *ctx, spops_bev_plan *plan)
{
    spops_bev_plan_info info;
    spops_bev_plan *loaded = NULL;
    size_t bytes = 0, loaded_bytes = 0;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    FUZZ_OK(ctx, spops_bev_plan_get_info_sync(ctx, plan, &info));
    FUZZ_REQUIRE(info.num_points >= 0 && info.num_intervals >= 0 &&
                     info.num_intervals <= info.num_points && info.longest <= info.num_points &&
                     info.num_intervals <= info.num_cells,
                 "the plan's counts contradict each other");
    if (info.num_cells <= FUZZ_RUN_LIMIT && info.num_features <= FUZZ_RUN_LIMIT &&
        info.num_depths <= FUZZ_RUN_LIMIT) {
        pool_ones(ctx, plan, &info, SPOPS_BEV_CHANNELS_LAST, 1);
        pool_ones(ctx, plan, &info, SPOPS_BEV_CHANNELS_FIRST, 1);
    }
    give_back_as_arrays(ctx, plan, &info);
    void *saved = save_bev_plan(ctx, plan, &bytes);
    if (saved != NULL &&
        had_memory(ctx, saved_get(ctx, SPOPS_PLAN_BEV_PLAN, saved, bytes, &loaded))) {
        void *saved_again = save_bev_plan(ctx, loaded, &loaded_bytes);
        if (saved_again != NULL) {
            size_t at = 0;
            while (at < bytes && at < loaded_bytes &&
                   ((const char *)saved)[at] == ((const char *)saved_again)[at])
                ++at;
            FUZZ_REQUIRE(at == bytes && bytes == loaded_bytes,
                         "a loaded plan is saved as %zu bytes, not %zu, and differs at %zu",
                         loaded_bytes, bytes, at);
        }
        free(saved_again);
        spops_bev_plan_destroy(loaded);
    }
    free(saved);
}

void fuzz_run_segments(spops_context *ctx, spops_segments *segments)
{
    spops_segments_info info;
    spops_segments *loaded = NULL;
    size_t bytes = 0;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    FUZZ_OK(ctx, spops_segments_get_info_sync(ctx, segments, &info));
    FUZZ_REQUIRE(info.num_terms >= 0 && info.num_nonempty <= info.num_segments &&
                     info.longest <= info.num_terms,
                 "the plan's counts contradict each other");
    if (info.num_segments <= FUZZ_RUN_LIMIT && info.num_rows <= FUZZ_RUN_LIMIT &&
        info.num_weights <= FUZZ_RUN_LIMIT) {
        float *x = floats(info.num_rows, 1.0f), *w = floats(info.num_weights, 1.0f);
        float *out = floats(info.num_segments, -1.0f);
        const spops_matrix weights = spops_matrix_dense(w, info.num_weights, 1, SPOPS_DTYPE_F32);
        FUZZ_OK(ctx, spops_segreduce_execute(
                         ctx, segments, SPOPS_REDUCE_SUM,
                         spops_matrix_dense(x, info.num_rows, 1, SPOPS_DTYPE_F32), &weights,
                         spops_matrix_dense(out, info.num_segments, 1, SPOPS_DTYPE_F32), NULL));
        FUZZ_OK(ctx, spops_context_wait_sync(ctx));
        FUZZ_REQUIRE(sum(out, info.num_segments) == (double)info.num_terms,
                     "summed %g, expected %lld", sum(out, info.num_segments),
                     (long long)info.num_terms);
        free(x);
        free(w);
        free(out);
    }
    if (!had_memory(ctx, saved_put(ctx, segments, NULL, 0, &bytes))) return;
    void *buffer = malloc(bytes);
    FUZZ_REQUIRE(buffer != NULL, "no memory for %zu bytes", bytes);
    if (had_memory(ctx, saved_put(ctx, segments, buffer, bytes, &bytes)) &&
        had_memory(ctx, saved_get(ctx, SPOPS_PLAN_SEGMENTS, buffer, bytes, &loaded)))
        spops_segments_destroy(loaded);
    free(buffer);
}
