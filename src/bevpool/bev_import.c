// SPDX-License-Identifier: Apache-2.0
// BEV plans from the arrays of other libraries, checked element by element on the host, and out to
// them again.
#include <string.h>

#include "bevpool/bev_plan.h"
#include "core/matrix.h"

// Host copies of either form: which points an interval holds, and what a point is.
typedef struct bev_arrays {
    int64_t num_points, num_intervals;
    int32_t *depth;     // [num_points]
    int32_t *feat;      // [num_points]; NULL: follows from depth
    int32_t *bev;       // [num_points]; NULL: intervals say the cell
    int32_t *intervals; // [num_intervals][3]: first point, end, cell
} bev_arrays;

static int32_t *alloc_i32(spops_context *ctx, int64_t n)
{
    return spops_host_alloc(ctx, (size_t)n, sizeof(int32_t));
}

static void free_i32(spops_context *ctx, int32_t *array, int64_t n)
{
    spops_host_free(ctx, array, (size_t)n, sizeof *array);
}

// A host copy of n of the caller's indices; *copy is freed by the caller also after a failure.
static spops_status fetch_i32(spops_context *ctx, const int32_t *array, int64_t n, int32_t **copy)
{
    *copy = alloc_i32(ctx, n);
    if (*copy == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    if (n == 0) return SPOPS_STATUS_OK;
    return ctx->backend->download(ctx, *copy, array, (size_t)n * sizeof *array);
}

static void free_import(spops_context *ctx, bev_arrays *in)
{
    free_i32(ctx, in->intervals, 3 * in->num_intervals);
    free_i32(ctx, in->bev, in->num_points);
    free_i32(ctx, in->feat, in->num_points);
    free_i32(ctx, in->depth, in->num_points);
}

static spops_status check_in_range(spops_context *ctx, const char *call, const char *name,
                                   int64_t index, int32_t value, int64_t high,
                                   const char *high_name)
{
    SPOPS_REQUIRE(ctx, value >= 0 && value < high,
                  "%s: %s[%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64 " (%s - 1)", call,
                  name, index, value, high - 1, high_name);
    return SPOPS_STATUS_OK;
}

// The points of interval i, whose bounds are known to be right.
static spops_status check_points(spops_context *ctx, const char *call, const char *depth_name,
                                 const spops_bev_counts *counts, const bev_arrays *in, int64_t i)
{
    const int32_t *interval = in->intervals + 3 * i;
    for (int64_t p = interval[0]; p < interval[1]; ++p) {
        SPOPS_TRY(check_in_range(ctx, call, depth_name, p, in->depth[p], counts->num_points,
                                 "B*N*D*H*W"));
        if (in->feat != NULL)
            SPOPS_TRY(check_in_range(ctx, call, "ranks_feat", p, in->feat[p], counts->num_features,
                                     "B*N*H*W"));
        if (in->bev == NULL) continue;
        SPOPS_TRY(
            check_in_range(ctx, call, "ranks_bev", p, in->bev[p], counts->num_cells, "B*Z*Y*X"));
        SPOPS_REQUIRE(ctx, in->bev[p] == interval[2],
                      "%s: ranks_bev[%" PRId64 "] is %" PRId32 ", expected %" PRId32
                      " as at the start of interval %" PRId64,
                      call, p, in->bev[p], interval[2], i);
    }
    return SPOPS_STATUS_OK;
}

// Each cell belongs to one interval at most.
static spops_status check_cells(spops_context *ctx, const char *call,
                                const spops_bev_counts *counts, const bev_arrays *in)
{
    spops_status status = SPOPS_STATUS_OK;
    int32_t *taken_by = alloc_i32(ctx, counts->num_cells); // interval + 1
    if (taken_by == NULL) return SPOPS_STATUS_OUT_OF_MEMORY;
    for (int64_t i = 0; i < in->num_intervals; ++i) {
        const int32_t cell = in->intervals[3 * i + 2];
        if (taken_by[cell] != 0) {
            status = spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT,
                                "%s: interval %" PRId64 " has cell %" PRId32
                                ", which interval %" PRId32 " has already",
                                call, i, cell, taken_by[cell] - 1);
            break;
        }
        taken_by[cell] = (int32_t)(i + 1);
    }
    free_i32(ctx, taken_by, counts->num_cells);
    return status;
}

// The plan of an import that is known to be right: terms in the order of cells.
static spops_status build_import(spops_context *ctx, const char *call, const bev_arrays *in,
                                 const spops_bev_options *options, spops_bev_plan *plan)
{
    spops_status status = SPOPS_STATUS_OK;
    spops_segments_image image;

    memset(&image, 0, sizeof image);
    for (int64_t i = 0; i < in->num_intervals; ++i)
        image.num_terms += in->intervals[3 * i + 1] - in->intervals[3 * i];
    image.num_segments = plan->counts.num_cells;
    image.num_rows = plan->counts.num_features;
    image.num_weights = plan->counts.num_points;
    image.num_sources = image.num_terms;
    image.max_cols = options->max_cols;
    image.gradients = spops_bev_gradients(options);
    image.parts = SPOPS_IMAGE_PAIRS;
    SPOPS_TRY_GOTO(spops_segments_image_alloc(ctx, &image), status, done);
    for (int64_t i = 0; i < in->num_intervals; ++i) {
        const int32_t *interval = in->intervals + 3 * i;
        image.offsets[interval[2] + 1] = interval[1] - interval[0];
    }
    for (int64_t cell = 0; cell < image.num_segments; ++cell)
        image.offsets[cell + 1] += image.offsets[cell];
    for (int64_t i = 0; i < in->num_intervals; ++i) {
        const int32_t *interval = in->intervals + 3 * i;
        int64_t at = image.offsets[interval[2]];
        for (int64_t p = interval[0]; p < interval[1]; ++p, ++at) {
            image.a[at] = in->feat != NULL
                              ? in->feat[p]
                              : (int32_t)spops_bev_pixel_of(&plan->shape, in->depth[p]);
            image.b[at] = in->depth[p];
        }
    }
    SPOPS_TRY_GOTO(spops_bev_plan_build_image(ctx, call, &image, plan), status, done);

done:
    spops_segments_image_free(ctx, &image);
    return status;
}

// The common rest of both imports.
static spops_status create_from_import(spops_context *ctx, const char *call,
                                       const spops_bev_shape *shape, const spops_bev_counts *counts,
                                       const bev_arrays *in, const spops_bev_options *options,
                                       spops_bev_plan **out)
{
    spops_status status = SPOPS_STATUS_OK;
    spops_bev_plan *plan = NULL;

    SPOPS_TRY(check_cells(ctx, call, counts, in));
    SPOPS_TRY(spops_bev_plan_alloc(ctx, shape, counts, options->kernel, &plan));
    plan->spans.pool_variant = options->pool_variant;
    SPOPS_TRY_GOTO(build_import(ctx, call, in, options, plan), status, fail);
    *out = plan;
    return SPOPS_STATUS_OK;

fail:
    spops_bev_plan_destroy(plan);
    return status;
}

static spops_status fetch_ranks(spops_context *ctx, const spops_bev_ranks *ranks, bev_arrays *in,
                                int32_t **starts, int32_t **lengths)
{
    SPOPS_TRY(fetch_i32(ctx, ranks->ranks_depth, in->num_points, &in->depth));
    SPOPS_TRY(fetch_i32(ctx, ranks->ranks_feat, in->num_points, &in->feat));
    SPOPS_TRY(fetch_i32(ctx, ranks->ranks_bev, in->num_points, &in->bev));
    SPOPS_TRY(fetch_i32(ctx, ranks->interval_starts, in->num_intervals, starts));
    SPOPS_TRY(fetch_i32(ctx, ranks->interval_lengths, in->num_intervals, lengths));
    in->intervals = alloc_i32(ctx, 3 * in->num_intervals);
    return in->intervals == NULL ? SPOPS_STATUS_OUT_OF_MEMORY : SPOPS_STATUS_OK;
}

static spops_status check_ranks(spops_context *ctx, const char *call,
                                const spops_bev_counts *counts, const bev_arrays *in,
                                const int32_t *starts, const int32_t *lengths)
{
    int64_t end = 0; // of the interval before
    for (int64_t i = 0; i < in->num_intervals; ++i) {
        int32_t *interval = in->intervals + 3 * i;
        SPOPS_TRY(check_in_range(ctx, call, "interval_starts", i, starts[i], in->num_points,
                                 "num_points"));
        SPOPS_REQUIRE(ctx, starts[i] >= end,
                      "%s: interval_starts[%" PRId64 "] is %" PRId32 ", before the end %" PRId64
                      " of interval %" PRId64,
                      call, i, starts[i], end, i - 1);
        SPOPS_REQUIRE(ctx, lengths[i] > 0,
                      "%s: interval_lengths[%" PRId64 "] is %" PRId32 ", expected at least 1", call,
                      i, lengths[i]);
        SPOPS_REQUIRE(ctx, lengths[i] <= in->num_points - starts[i],
                      "%s: interval_lengths[%" PRId64 "] is %" PRId32
                      ", and interval_starts[%" PRId64 "] + that is %" PRId64
                      ", past num_points = %" PRId64,
                      call, i, lengths[i], i, (int64_t)starts[i] + lengths[i], in->num_points);
        end = (int64_t)starts[i] + lengths[i];
        interval[0] = starts[i];
        interval[1] = (int32_t)end;
        interval[2] = in->bev[starts[i]];
        SPOPS_TRY(check_points(ctx, call, "ranks_depth", counts, in, i));
    }
    return SPOPS_STATUS_OK;
}

// An interval has a point at least.
static spops_status check_interval_count(spops_context *ctx, const char *call, int64_t num_points,
                                         int64_t num_intervals)
{
    SPOPS_TRY(spops_check_count(ctx, call, "num_points", num_points));
    SPOPS_REQUIRE(ctx, num_intervals >= 0 && num_intervals <= num_points,
                  "%s: num_intervals is %" PRId64 ", expected 0 to %" PRId64 " (num_points)", call,
                  num_intervals, num_points);
    return SPOPS_STATUS_OK;
}

static spops_status check_ranks_arrays(spops_context *ctx, const char *call,
                                       const spops_bev_ranks *ranks)
{
    const int64_t n = ranks->num_points, m = ranks->num_intervals;
    SPOPS_TRY(check_interval_count(ctx, call, n, m));
    SPOPS_TRY(spops_check_indices(ctx, call, "ranks_depth", ranks->ranks_depth, n));
    SPOPS_TRY(spops_check_indices(ctx, call, "ranks_feat", ranks->ranks_feat, n));
    SPOPS_TRY(spops_check_indices(ctx, call, "ranks_bev", ranks->ranks_bev, n));
    SPOPS_TRY(spops_check_indices(ctx, call, "interval_starts", ranks->interval_starts, m));
    return spops_check_indices(ctx, call, "interval_lengths", ranks->interval_lengths, m);
}

spops_status spops_bev_plan_create_from_ranks(spops_context *ctx, const spops_bev_shape *shape,
                                              const spops_bev_ranks *ranks,
                                              const spops_bev_options *options,
                                              spops_bev_plan **out)
{
    static const char call[] = "bev_plan_create_from_ranks";
    spops_status status = SPOPS_STATUS_OK;
    spops_bev_counts counts;
    spops_bev_options o;
    spops_bev_ranks r = {0};
    int32_t *starts = NULL, *lengths = NULL;
    bev_arrays in;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(spops_bev_check_shape(ctx, call, shape, &counts));
    SPOPS_TRY(spops_bev_read_options(ctx, call, options, &o));
    SPOPS_TRY(spops_check_no_memory(ctx, call, o.memory));
    SPOPS_REQUIRE(ctx, ranks != NULL, "%s: ranks is NULL", call);
    SPOPS_TRY(spops_read_options(ctx, call, ranks, &r, sizeof r));
    SPOPS_TRY(check_ranks_arrays(ctx, call, &r));
    memset(&in, 0, sizeof in);
    in.num_points = r.num_points;
    in.num_intervals = r.num_intervals;
    SPOPS_TRY_GOTO(fetch_ranks(ctx, &r, &in, &starts, &lengths), status, done);
    SPOPS_TRY_GOTO(check_ranks(ctx, call, &counts, &in, starts, lengths), status, done);
    SPOPS_TRY_GOTO(create_from_import(ctx, call, shape, &counts, &in, &o, out), status, done);

done:
    free_i32(ctx, lengths, in.num_intervals);
    free_i32(ctx, starts, in.num_intervals);
    free_import(ctx, &in);
    return status;
}

static spops_status check_intervals(spops_context *ctx, const char *call,
                                    const spops_bev_counts *counts, const bev_arrays *in)
{
    int64_t before = 0; // end of the interval before
    for (int64_t i = 0; i < in->num_intervals; ++i) {
        const int32_t *interval = in->intervals + 3 * i;
        const int32_t begin = interval[0], end = interval[1], cell = interval[2];
        SPOPS_REQUIRE(ctx, begin >= 0 && begin < in->num_points,
                      "%s: intervals[%" PRId64 "][0] is %" PRId32 ", expected 0 to %" PRId64
                      " (num_points - 1)",
                      call, i, begin, in->num_points - 1);
        SPOPS_REQUIRE(ctx, begin >= before,
                      "%s: intervals[%" PRId64 "][0] is %" PRId32 ", before the end %" PRId64
                      " of intervals[%" PRId64 "]",
                      call, i, begin, before, i - 1);
        SPOPS_REQUIRE(ctx, end > begin && end <= in->num_points,
                      "%s: intervals[%" PRId64 "][1] is %" PRId32 ", expected %" PRId32
                      " to %" PRId64 " (its first point + 1 to num_points)",
                      call, i, end, begin + 1, in->num_points);
        SPOPS_REQUIRE(ctx, cell >= 0 && cell < counts->num_cells,
                      "%s: intervals[%" PRId64 "][2] is %" PRId32 ", expected 0 to %" PRId64
                      " (B*Z*Y*X - 1)",
                      call, i, cell, counts->num_cells - 1);
        before = end;
        SPOPS_TRY(check_points(ctx, call, "indices", counts, in, i));
    }
    return SPOPS_STATUS_OK;
}

static spops_status check_intervals_arrays(spops_context *ctx, const char *call,
                                           const spops_bev_intervals *intervals)
{
    SPOPS_TRY(check_interval_count(ctx, call, intervals->num_points, intervals->num_intervals));
    SPOPS_TRY(spops_check_indices(ctx, call, "indices", intervals->indices, intervals->num_points));
    return spops_check_indices(ctx, call, "intervals", intervals->intervals,
                               3 * intervals->num_intervals);
}

spops_status spops_bev_plan_create_from_intervals(spops_context *ctx, const spops_bev_shape *shape,
                                                  const spops_bev_intervals *intervals,
                                                  const spops_bev_options *options,
                                                  spops_bev_plan **out)
{
    static const char call[] = "bev_plan_create_from_intervals";
    spops_status status = SPOPS_STATUS_OK;
    spops_bev_counts counts;
    spops_bev_options o;
    spops_bev_intervals outer = {0};
    bev_arrays in;

    SPOPS_BEGIN_CREATE(ctx, call, out);
    SPOPS_TRY(spops_bev_check_shape(ctx, call, shape, &counts));
    SPOPS_TRY(spops_bev_read_options(ctx, call, options, &o));
    SPOPS_TRY(spops_check_no_memory(ctx, call, o.memory));
    SPOPS_REQUIRE(ctx, intervals != NULL, "%s: intervals is NULL", call);
    SPOPS_TRY(spops_read_options(ctx, call, intervals, &outer, sizeof outer));
    SPOPS_TRY(check_intervals_arrays(ctx, call, &outer));
    memset(&in, 0, sizeof in);
    in.num_points = outer.num_points;
    in.num_intervals = outer.num_intervals;
    SPOPS_TRY_GOTO(fetch_i32(ctx, outer.indices, in.num_points, &in.depth), status, done);
    SPOPS_TRY_GOTO(fetch_i32(ctx, outer.intervals, 3 * in.num_intervals, &in.intervals), status,
                   done);
    SPOPS_TRY_GOTO(check_intervals(ctx, call, &counts, &in), status, done);
    SPOPS_TRY_GOTO(create_from_import(ctx, call, shape, &counts, &in, &o, out), status, done);

done:
    free_import(ctx, &in);
    return status;
}

// Out again

// Forward lists of a plan on the host, after its counts were compared with the caller's.
static spops_status fetch_plan(spops_context *ctx, const char *call, const spops_bev_plan *plan,
                               int64_t num_points, int64_t num_intervals,
                               spops_segments_image *image)
{
    spops_schedule schedule;
    SPOPS_TRY(spops_segments_schedule_sync(ctx, plan->segments, &schedule));
    SPOPS_REQUIRE(ctx, num_points == schedule.num_terms,
                  "%s: num_points is %" PRId64 ", expected %" PRId32, call, num_points,
                  schedule.num_terms);
    SPOPS_REQUIRE(ctx, num_intervals == schedule.num_nonempty,
                  "%s: num_intervals is %" PRId64 ", expected %" PRId32, call, num_intervals,
                  schedule.num_nonempty);
    SPOPS_TRY(spops_segments_image_describe(ctx, plan->segments, image));
    SPOPS_TRY(spops_segments_image_alloc(ctx, image));
    return spops_segments_image_fetch(ctx, plan->segments, image);
}

static spops_status send_i32(spops_context *ctx, int32_t *to, const int32_t *from, int64_t n)
{
    if (n == 0) return SPOPS_STATUS_OK;
    return ctx->backend->upload(ctx, to, from, (size_t)n * sizeof *from);
}

// Write the intervals of the cells that hold a point, in the order of cells: [0] their first
// points, [1] their lengths.
static void list_intervals(const spops_segments_image *image, int32_t *starts, int32_t *lengths,
                           int32_t *bev)
{
    int64_t i = 0;
    for (int64_t cell = 0; cell < image->num_segments; ++cell) {
        const int32_t begin = image->offsets[cell], end = image->offsets[cell + 1];
        if (begin == end) continue;
        starts[i] = begin;
        lengths[i++] = end - begin;
        for (int32_t p = begin; p < end; ++p)
            bev[p] = (int32_t)cell;
    }
}

// The caller's arrays to write to, read and checked.
// An array that a call writes to.
typedef struct written_array {
    const char *name;
    int32_t *data;
    int64_t n;
} written_array;

static spops_status check_apart(spops_context *ctx, const char *call, const written_array *arrays,
                                int num_arrays)
{
    for (int i = 0; i < num_arrays; ++i)
        for (int j = 0; j < i; ++j)
            SPOPS_TRY(spops_check_no_overlap(
                ctx, call, arrays[i].name,
                spops_matrix_dense(arrays[i].data, 1, arrays[i].n, SPOPS_DTYPE_I32), arrays[j].name,
                spops_matrix_dense(arrays[j].data, 1, arrays[j].n, SPOPS_DTYPE_I32)));
    return SPOPS_STATUS_OK;
}

static spops_status read_ranks_out(spops_context *ctx, const char *call,
                                   const spops_bev_ranks_out *ranks, spops_bev_ranks_out *read)
{
    spops_bev_ranks arrays;
    SPOPS_REQUIRE(ctx, ranks != NULL, "%s: ranks is NULL", call);
    memset(read, 0, sizeof *read);
    SPOPS_TRY(spops_read_options(ctx, call, ranks, read, sizeof *read));
    arrays = spops_bev_ranks_of(read);
    return check_ranks_arrays(ctx, call, &arrays);
}

static spops_status read_intervals_out(spops_context *ctx, const char *call,
                                       const spops_bev_intervals_out *intervals,
                                       spops_bev_intervals_out *read)
{
    spops_bev_intervals arrays;
    SPOPS_REQUIRE(ctx, intervals != NULL, "%s: intervals is NULL", call);
    memset(read, 0, sizeof *read);
    SPOPS_TRY(spops_read_options(ctx, call, intervals, read, sizeof *read));
    arrays = spops_bev_intervals_of(read);
    return check_intervals_arrays(ctx, call, &arrays);
}

spops_status spops_bev_plan_get_ranks_sync(spops_context *ctx, const spops_bev_plan *plan,
                                           const spops_bev_ranks_out *ranks)
{
    static const char call[] = "bev_plan_get_ranks_sync";
    spops_status status = SPOPS_STATUS_OK;
    spops_bev_ranks_out to;
    int32_t *starts = NULL, *lengths = NULL, *bev = NULL;
    spops_segments_image image;
    int64_t n, m;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "plan", plan));
    SPOPS_TRY(read_ranks_out(ctx, call, ranks, &to));
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    n = to.num_points;
    m = to.num_intervals;
    memset(&image, 0, sizeof image);
    SPOPS_TRY_GOTO(fetch_plan(ctx, call, plan, n, m, &image), status, done);
    const written_array written[] = {{"ranks_depth", to.ranks_depth, n},
                                     {"ranks_feat", to.ranks_feat, n},
                                     {"ranks_bev", to.ranks_bev, n},
                                     {"interval_starts", to.interval_starts, m},
                                     {"interval_lengths", to.interval_lengths, m}};
    SPOPS_TRY_GOTO(check_apart(ctx, call, written, (int)(sizeof written / sizeof *written)), status,
                   done);
    starts = alloc_i32(ctx, m);
    lengths = starts == NULL ? NULL : alloc_i32(ctx, m);
    bev = lengths == NULL ? NULL : alloc_i32(ctx, n);
    if (bev == NULL) {
        status = SPOPS_STATUS_OUT_OF_MEMORY;
        goto done;
    }
    list_intervals(&image, starts, lengths, bev);
    SPOPS_TRY_GOTO(send_i32(ctx, to.ranks_depth, image.b, n), status, done);
    SPOPS_TRY_GOTO(send_i32(ctx, to.ranks_feat, image.a, n), status, done);
    SPOPS_TRY_GOTO(send_i32(ctx, to.ranks_bev, bev, n), status, done);
    SPOPS_TRY_GOTO(send_i32(ctx, to.interval_starts, starts, m), status, done);
    SPOPS_TRY_GOTO(send_i32(ctx, to.interval_lengths, lengths, m), status, done);

done:
    free_i32(ctx, bev, n);
    free_i32(ctx, lengths, m);
    free_i32(ctx, starts, m);
    spops_segments_image_free(ctx, &image);
    return status;
}

spops_status spops_bev_plan_get_intervals_sync(spops_context *ctx, const spops_bev_plan *plan,
                                               const spops_bev_intervals_out *intervals)
{
    static const char call[] = "bev_plan_get_intervals_sync";
    spops_status status = SPOPS_STATUS_OK;
    spops_bev_intervals_out to;
    int32_t *list = NULL;
    spops_segments_image image;
    int64_t n, m, i = 0;

    SPOPS_BEGIN_CALL(ctx, call);
    SPOPS_TRY(spops_plan_check(ctx, call, "plan", plan));
    SPOPS_TRY(read_intervals_out(ctx, call, intervals, &to));
    SPOPS_TRY(spops_check_not_capturing(ctx, call));
    n = to.num_points;
    m = to.num_intervals;
    memset(&image, 0, sizeof image);
    SPOPS_TRY_GOTO(fetch_plan(ctx, call, plan, n, m, &image), status, done);
    const written_array written[] = {{"indices", to.indices, n},
                                     {"intervals", to.intervals, 3 * m}};
    SPOPS_TRY_GOTO(check_apart(ctx, call, written, (int)(sizeof written / sizeof *written)), status,
                   done);
    for (int64_t p = 0; p < n; ++p)
        if (image.a[p] != spops_bev_pixel_of(&plan->shape, image.b[p])) {
            status = spops_fail(
                ctx, SPOPS_STATUS_NOT_SUPPORTED,
                "%s: point %" PRId64 " takes feature row %" PRId32 ", where depth element %" PRId32
                " lies on row %" PRId64 ", and this form cannot say so",
                call, p, image.a[p], image.b[p], spops_bev_pixel_of(&plan->shape, image.b[p]));
            goto done;
        }
    list = alloc_i32(ctx, 3 * m);
    if (list == NULL) {
        status = SPOPS_STATUS_OUT_OF_MEMORY;
        goto done;
    }
    for (int64_t cell = 0; cell < image.num_segments; ++cell) {
        if (image.offsets[cell] == image.offsets[cell + 1]) continue;
        list[i++] = image.offsets[cell];
        list[i++] = image.offsets[cell + 1];
        list[i++] = (int32_t)cell;
    }
    SPOPS_TRY_GOTO(send_i32(ctx, to.indices, image.b, n), status, done);
    SPOPS_TRY_GOTO(send_i32(ctx, to.intervals, list, 3 * m), status, done);

done:
    free_i32(ctx, list, 3 * m);
    spops_segments_image_free(ctx, &image);
    return status;
}
