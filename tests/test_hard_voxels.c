// SPDX-License-Identifier: Apache-2.0
// Voxels that hold at most P of their points, the first or some at random by seed: which ones, as segments
// and as a padded matrix, with gradients; made, and refilled on the stream.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "spops/segreduce.h"
#include "spops/voxels.h"
#include "support/device.h"
#include "tests/support/coord_cases.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"

enum { MAX_POINTS = 700, MAX_VOXELS = 300 };

typedef struct hard_case {
    spops_voxels *voxels;
    int64_t max_points, max_voxels, channels;
    int32_t most; // points of a voxel
    spops_voxel_points points;
    uint32_t seed;
    int32_t *voxel_of, *num_points; // host, of a point and of a voxel, as the library says
    int32_t *place;                 // [max_voxels][most] the point there, -1: none
} hard_case;

// What a point draws, and then its number: those with the least are kept.
static uint64_t draw(const hard_case *c, int64_t i)
{
    const uint32_t mixed = ((c->seed + 0x7f4a7c15u) * 0x85ebca6bu);
    uint32_t h = (uint32_t)i * 0x9e3779b9u;
    if (c->points == SPOPS_VOXEL_POINTS_FIRST) return (uint64_t)i;
    h ^= mixed;
    h ^= h >> 16;
    h *= 0x21f0aaadu;
    h ^= h >> 15;
    h *= 0x735a2d97u;
    h ^= h >> 15;
    return (uint64_t)h << 32 | (uint64_t)i;
}

// The places by the definition: points of a voxel by what they draw.
static void find_places(hard_case *c)
{
    int32_t *points = malloc((size_t)(c->max_points + 1) * sizeof *points);
    for (int64_t v = 0; v < c->max_voxels; ++v) {
        int64_t n = 0;
        for (int64_t i = 0; i < c->max_points; ++i) {
            int64_t at = n;
            if (c->voxel_of[i] != v) continue;
            for (; at > 0 && draw(c, points[at - 1]) > draw(c, i); --at)
                points[at] = points[at - 1];
            points[at] = (int32_t)i;
            ++n;
        }
        cr_assert(n == c->num_points[v], "voxel %lld", (long long)v);
        for (int32_t k = 0; k < c->most; ++k)
            c->place[v * c->most + k] = k < n ? points[k] : -1;
    }
    free(points);
}

static void read_voxels(test_device *d, hard_case *c)
{
    spops_voxels_view view = spops_voxels_view_default();
    test_expect_ok(d->ctx, spops_voxels_get_view(d->ctx, c->voxels, &view), "view");
    c->max_points = view.max_points;
    c->max_voxels = view.max_voxels;
    c->voxel_of = realloc(c->voxel_of, (size_t)(c->max_points + 1) * sizeof *c->voxel_of);
    c->num_points = realloc(c->num_points, (size_t)(c->max_voxels + 1) * sizeof *c->num_points);
    c->place = realloc(c->place, (size_t)(c->max_voxels * c->most + 1) * sizeof *c->place);
    test_wait(d);
    cr_assert(c->max_points == 0 || device_download(d->backend, c->voxel_of, view.point_voxel,
                                                    (size_t)c->max_points * sizeof *c->voxel_of));
    cr_assert(c->max_voxels == 0 || device_download(d->backend, c->num_points, view.num_points,
                                                    (size_t)c->max_voxels * sizeof *c->num_points));
    find_places(c);
}

static spops_status run_padded(void *user, spops_context *ctx, const spops_matrix *const *in,
                               const spops_matrix *const *out)
{
    return spops_voxels_padded_execute(ctx, ((const hard_case *)user)->voxels, *in[0], *out[0],
                                       NULL);
}

static void reference_padded(void *user, const double *const *in, ref_tensor *const *out)
{
    const hard_case *c = (const hard_case *)user;
    for (int64_t at = 0; at < c->max_voxels * c->most; ++at)
        for (int64_t k = 0; k < c->channels && c->place[at] >= 0; ++k)
            out[0]->value[at * c->channels + k] = in[0][c->place[at] * c->channels + k];
}

static spops_status run_backward(void *user, spops_context *ctx, const spops_matrix *const *in,
                                 const spops_matrix *const *out)
{
    return spops_voxels_padded_execute_backward(ctx, ((const hard_case *)user)->voxels, *in[0],
                                                *out[0]);
}

static void reference_backward(void *user, const double *const *in, ref_tensor *const *out)
{
    const hard_case *c = (const hard_case *)user;
    for (int64_t at = 0; at < c->max_voxels * c->most; ++at)
        for (int64_t k = 0; k < c->channels && c->place[at] >= 0; ++k)
            out[0]->value[c->place[at] * c->channels + k] = in[0][at * c->channels + k];
}

static spops_status run_sum(void *user, spops_context *ctx, const spops_matrix *const *in,
                            const spops_matrix *const *out)
{
    return spops_segreduce_execute(ctx, spops_voxels_segments(((const hard_case *)user)->voxels),
                                   SPOPS_REDUCE_SUM, *in[0], NULL, *out[0], NULL);
}

static void reference_sum(void *user, const double *const *in, ref_tensor *const *out)
{
    const hard_case *c = (const hard_case *)user;
    for (int64_t at = 0; at < c->max_voxels * c->most; ++at)
        for (int64_t k = 0; k < c->channels && c->place[at] >= 0; ++k) {
            const int64_t to = at / c->most * c->channels + k;
            const double x = in[0][c->place[at] * c->channels + k];
            out[0]->value[to] += x;
            out[0]->scale[to] += x < 0 ? -x : x;
            out[0]->roundings[to] += 1;
        }
}

// The number of places in use, of all voxels.
static void check_counts(test_device *d, const hard_case *c, const char *what)
{
    int32_t *counts, *host = malloc((size_t)(c->max_voxels + 1) * sizeof *host);
    const int64_t places = c->max_voxels * c->most;
    float *x = NULL, *out = NULL;
    cr_assert(device_alloc(d->backend, (size_t)(c->max_voxels + 1) * 4, (void **)&counts) &&
              device_alloc(d->backend, (size_t)(c->max_points + 1) * 4, (void **)&x) &&
              device_alloc(d->backend, (size_t)(places + 1) * 4, (void **)&out));
    test_expect_ok(d->ctx,
                   spops_voxels_padded_execute(
                       d->ctx, c->voxels, spops_matrix_dense(x, c->max_points, 1, SPOPS_DTYPE_F32),
                       spops_matrix_dense(out, places, 1, SPOPS_DTYPE_F32), counts),
                   what);
    test_wait(d);
    cr_assert(c->max_voxels == 0 ||
              device_download(d->backend, host, counts, (size_t)c->max_voxels * sizeof *host));
    for (int64_t v = 0; v < c->max_voxels; ++v) {
        const int32_t n = c->num_points[v] < c->most ? c->num_points[v] : c->most;
        cr_assert(host[v] == n, "%s: voxel %lld has %d", what, (long long)v, host[v]);
    }
    test_free(d, counts), test_free(d, x), test_free(d, out);
    free(host);
}

static void check_case(test_device *d, hard_case *c, spops_dtype dtype, int64_t pad,
                       uint64_t stream)
{
    test_operator op = {.what = "padded",
                        .stream = stream,
                        .user = c,
                        .run = run_padded,
                        .reference = reference_padded};
    read_voxels(d, c);
    check_counts(d, c, "counts");
    op.in[0] =
        test_view(test_input("x", c->max_points, c->channels, dtype, VALUES_RANDOM), pad, pad % 3);
    op.out[0] = test_view(
        test_output("out", c->max_voxels * c->most, c->channels, dtype, CHECK_SAME), pad, pad % 2);
    test_operator_run(d, &op);
    op.what = "sum of the segments";
    op.run = run_sum;
    op.reference = reference_sum;
    op.out[0] = test_output("out", c->max_voxels, c->channels, dtype, CHECK_BOUND);
    op.scratch_bytes = spops_plan_scratch_bytes((const spops_plan *)c->voxels);
    test_operator_run(d, &op);
    op.what = "padded backward";
    op.run = run_backward;
    op.reference = reference_backward;
    op.scratch_bytes = 0;
    op.in[0] = test_view(
        test_input("grad_out", c->max_voxels * c->most, c->channels, dtype, VALUES_RANDOM), pad,
        pad % 2);
    op.out[0] = test_view(test_output("grad_x", c->max_points, c->channels, dtype, CHECK_SAME), pad,
                          pad % 3);
    test_operator_run(d, &op);
}

static spops_voxels_options options_of(const hard_case *c, spops_coords_options *coords)
{
    spops_voxels_options o = spops_voxels_options_default();
    o.size_m[0] = o.size_m[1] = 1.0;
    o.coords = coords;
    o.points = c->points;
    o.most_points = c->most;
    o.seed = c->seed;
    return o;
}

// Points in few voxels, one of which has most of them; some outside the box.
static void draw_points(float *points, int32_t *batch, int64_t n, test_rng *rng)
{
    for (int64_t i = 0; i < n; ++i) {
        const bool crowded = test_rng_below(rng, 3) == 0;
        batch[i] = (int32_t)test_rng_below(rng, 2);
        for (int a = 0; a < 2; ++a)
            points[2 * i + a] = (float)(crowded ? 0 : test_rng_below(rng, 12) - 6) + 0.5f;
    }
}

static const int kinds[] = {SPOPS_VOXEL_POINTS_FIRST, SPOPS_VOXEL_POINTS_RANDOM};

CaseTest(hard_voxels, hold_some_points, every_case(test_row_dtypes, NUM_REAL_DTYPES, kinds, 2),
         .timeout = 600)
{
    static const struct {
        int32_t most, points;
        int64_t channels, pad;
    } cases[] = {{5, 400, 4, 0}, {32, MAX_POINTS, 16, 0}, {1, 60, 9, 1},
                 {2, 0, 8, 0},   {3, 1, 33, 2},           {1024, 200, 2, 0}};
    static const spops_coords_box box = {{0, -5, -5, 0, 0}, {1, 5, 5, 0, 0}};
    static float points[MAX_POINTS * 2];
    static int32_t batch[MAX_POINTS];
    test_rng rng = test_rng_make((case_number(p) << 32) + 81);
    spops_coords_options coords = spops_coords_options_default();
    test_device d;

    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        hard_case c = {.most = cases[i].most,
                       .channels = cases[i].channels,
                       .points = (spops_voxel_points)p->op,
                       .seed = 77 + (uint32_t)i};
        const int64_t n = cases[i].points;
        const uint64_t stream = (case_number(p) << 32) + 8 * i;
        draw_points(points, batch, MAX_POINTS, &rng);
        float *points_on = test_upload_f32(&d, points, MAX_POINTS * 2);
        int32_t *batch_on = test_upload_i32(&d, batch, MAX_POINTS), num = (int32_t)n;
        int32_t *num_on = test_upload_i32(&d, &num, 1);
        coords.order = (spops_coords_order)(i % 4);
        coords.box = NULL;
        spops_voxels_options o = options_of(&c, &coords);
        test_expect_ok(d.ctx,
                       spops_voxels_create(d.ctx,
                                           spops_matrix_dense(points_on, n, 2, SPOPS_DTYPE_F32),
                                           batch_on, &o, &c.voxels),
                       "create");
        check_case(&d, &c, (spops_dtype)p->dtype, cases[i].pad, stream);
        spops_voxels_destroy(c.voxels);
        coords.box = &box;
        test_expect_ok(d.ctx, spops_voxels_reserve(d.ctx, 2, MAX_POINTS, MAX_VOXELS, &o, &c.voxels),
                       "reserve");
        check_case(&d, &c, (spops_dtype)p->dtype, 0, stream + 3); // never filled
        test_expect_ok(d.ctx,
                       spops_voxels_update(
                           d.ctx, c.voxels, num_on,
                           spops_matrix_dense(points_on, MAX_POINTS, 2, SPOPS_DTYPE_F32), batch_on),
                       "update");
        check_case(&d, &c, (spops_dtype)p->dtype, 0, stream + 5);
        spops_voxels_destroy(c.voxels);
        test_free(&d, points_on), test_free(&d, batch_on), test_free(&d, num_on);
        free(c.voxel_of), free(c.num_points), free(c.place);
    }
    test_close(&d);
}

BackendTest(hard_voxels, refuse)
{
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    spops_voxels *const untouched = (spops_voxels *)(uintptr_t)64;
    spops_voxels *voxels = untouched;
    hard_case c = {.most = 1025, .points = SPOPS_VOXEL_POINTS_FIRST};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    float *on = test_upload_f32(&d, (float[]){1, 2, 3, 4}, 4);
    const spops_matrix points = spops_matrix_dense(on, 2, 2, SPOPS_DTYPE_F32);
    spops_voxels_options o = options_of(&c, NULL);
    test_expect(d.ctx, spops_voxels_create(d.ctx, points, NULL, &o, &voxels), invalid,
                "voxels_create: most_points is 1025, expected 0 to 1024", "too many");
    o.most_points = -1;
    test_expect(d.ctx, spops_voxels_create(d.ctx, points, NULL, &o, &voxels), invalid,
                "most_points is -1, expected 0 to 1024", "too few");
    o.most_points = 2;
    o.points = SPOPS_VOXEL_POINTS_NEAREST;
    test_expect(d.ctx, spops_voxels_create(d.ctx, points, NULL, &o, &voxels), invalid,
                "most_points is 2, expected 0 or 1 with points = 2", "nearest");
    cr_assert(voxels == NULL);
    o.most_points = 0;
    o.points = SPOPS_VOXEL_POINTS_ALL;
    test_expect_ok(d.ctx, spops_voxels_create(d.ctx, points, NULL, &o, &voxels), "all");
    test_expect(d.ctx, spops_voxels_padded_execute(d.ctx, voxels, points, points, NULL), invalid,
                "voxels_padded_execute: voxels has all points of each", "all");
    test_expect(d.ctx, spops_voxels_padded_execute_backward(d.ctx, NULL, points, points), invalid,
                "voxels is NULL", "none");
    spops_voxels_destroy(voxels);
    test_free(&d, on);
    test_close(&d);
}
