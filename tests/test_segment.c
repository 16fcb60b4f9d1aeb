// SPDX-License-Identifier: Apache-2.0
// The example network: gradients of the whole of it against differences in FP64; it learns; the same
// seed gives the same bits, also after an interruption; CPU and GPU learn alike; files and scans that
// are wrong are refused.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "examples/segment/segment.h"
#include "support/device.h"
#include "support/npy.h"
#include "tests/ref/ref_segment.h"
#include "tests/support/launch.h"
#include "tests/support/params.h"
#include "tests/support/random.h"
#include "tests/support/relation.h"
#include "tools/scan.h"

// ---- Scans and networks ------------------------------------------------------------------------

static segment_scan take_scan(uint64_t seed, int beams, int columns, double range_m)
{
    char error[SEGMENT_ERROR_BYTES], name[32];
    scan_sensor sensor = scan_sensor_default();
    segment_scan out;
    int64_t left_out;
    scan taken;
    sensor.beams = beams;
    sensor.columns = columns;
    sensor.max_range_m = range_m;
    scene *street = scene_create_varied(seed);
    cr_assert(street != NULL && scan_take(street, &sensor, seed, &taken));
    snprintf(name, sizeof name, "street %d", (int)seed);
    cr_assert(segment_scan_create(name, taken.num_points, taken.points, taken.labels, &out,
                                  &left_out, error),
              "%s", error);
    scan_free(&taken);
    scene_destroy(street);
    return out;
}

static segment_scans take_scans(int num, int beams, int columns, double range_m)
{
    segment_scans scans = {num, calloc((size_t)num, sizeof(segment_scan))};
    for (int i = 0; i < num; ++i)
        scans.scans[i] = take_scan((uint64_t)i + 1, beams, columns, range_m);
    return scans;
}

static segment_shape narrow_shape(int width)
{
    segment_shape shape = segment_shape_default();
    for (int l = 0; l < SEGMENT_LEVELS; ++l)
        shape.widths[l] = width;
    return shape;
}

static segment_network create_network(test_device *d, const segment_shape *shape, spops_dtype dtype,
                                      const segment_scans *scans, int together, bool changed)
{
    char error[SEGMENT_ERROR_BYTES];
    segment_capacity capacity;
    segment_network n;
    cr_assert(
        segment_measure(d->ctx, d->backend, shape, scans, changed, together, &capacity, error),
        "%s", error);
    cr_assert(segment_network_create(d->ctx, d->backend, shape, dtype, true, &capacity, 5, &n),
              "%s", n.error);
    return n;
}

static float *read_floats(const segment_network *n, const float *from, int64_t num)
{
    float *values = malloc((size_t)num * sizeof *values);
    cr_assert(device_download(n->backend, values, from, (size_t)num * sizeof *values));
    return values;
}

static void train(segment_network *n, const segment_scans *scans, void *stream,
                  const segment_training *how, int64_t from, int64_t to, float *losses)
{
    segment_trainer *trainer = NULL;
    cr_assert(segment_trainer_create(n, scans, how, stream, &trainer), "%s", n->error);
    for (int64_t at = from; at < to; ++at)
        cr_assert(segment_trainer_step(trainer, at, &losses[at]), "%s", n->error);
    cr_assert(segment_check(n), "%s", n->error);
    segment_trainer_destroy(trainer);
}

// ---- Gradients ---------------------------------------------------------------------------------

// A gradient passes some hundred products, sums and norms, each of which rounds in f32, and errors
// of the first grow in the norms of small levels. What is compared is a tensor's gradient along a
// random direction; its error is at most GROWTH roundings of every term.
#define GROWTH 256.0

static void check_direction(const ref_segment *ref, const double *at, const float *gradient,
                            int64_t first, int64_t num, test_rng *rng, int64_t num_parameters,
                            const char *what)
{
    const double step = 1e-6;
    double *moved = malloc((size_t)num_parameters * sizeof *moved), losses[2];
    double along = 0.0, terms = 0.0;
    double *direction = malloc((size_t)num * sizeof *direction);
    for (int64_t i = 0; i < num; ++i) {
        direction[i] = 2.0 * test_rng_unit(rng) - 1.0;
        along += direction[i] * (double)gradient[first + i];
        terms += fabs(direction[i] * (double)gradient[first + i]);
    }
    for (int k = 0; k < 2; ++k) {
        memcpy(moved, at, (size_t)num_parameters * sizeof *moved);
        for (int64_t i = 0; i < num; ++i)
            moved[first + i] += (k == 0 ? step : -step) * direction[i];
        losses[k] = ref_segment_loss(ref, moved);
    }
    const double expected = (losses[0] - losses[1]) / (2.0 * step);
    // A difference of two losses loses what they have in common; its own error falls with the step.
    const double bound = GROWTH * 0x1p-24 * terms + 4.0 * 0x1p-52 * 1e2 / step + 1e-8;
    cr_expect(fabs(along - expected) <= bound, "%s: %.9g, differences give %.9g, bound %.3g", what,
              along, expected, bound);
    cr_expect_gt(terms, 100.0 * bound, "%s: the check says nothing (%g, %g)", what, terms, bound);
    free(moved);
    free(direction);
}

BackendTest(segment, gradients_are_those_of_differences, .timeout = 300)
{
    test_device d;
    if (!test_open(&d, p->backend, LAUNCH_STREAM)) return;
    segment_shape shape = narrow_shape(8);
    shape.voxel_m = 1.0; // so that few points have neighbours
    shape.widths[1] = 16;
    segment_scans scans = take_scans(2, 8, 24, 12.0);
    segment_network n = create_network(&d, &shape, SPOPS_DTYPE_F32, &scans, 2, true);
    segment_batch batch;
    cr_assert(segment_batch_create(n.capacity.points, SPOPS_DTYPE_F32, &batch));
    for (int i = 0; i < 2; ++i) {
        const segment_change change = segment_change_random((uint64_t)i + 3);
        cr_assert(segment_batch_add(&batch, &shape, &scans.scans[i], &change));
    }
    batch.classes[3] = SEGMENT_IGNORED;
    float weights[SEGMENT_NUM_CLASSES];
    segment_class_weights(&scans, weights);
    cr_assert(segment_batch_send(&batch, weights, 0, 10, 1e-3, &n), "%s", n.error);
    cr_assert(segment_prepare(&n) && segment_forward(&n, true) && segment_loss(&n, true) &&
                  segment_backward(&n) && segment_check(&n),
              "%s", n.error);

    float *parameters = read_floats(&n, n.parameters, n.num_parameters);
    float *gradient = read_floats(&n, n.gradients, n.num_parameters);
    float *loss = read_floats(&n, n.loss, 1);
    double *at = malloc((size_t)n.num_parameters * sizeof *at);
    for (int64_t i = 0; i < n.num_parameters; ++i)
        at[i] = (double)parameters[i];
    ref_segment ref = ref_segment_create(&n, batch.num_points, batch.points, batch.batch,
                                         batch.features, batch.classes, weights);
    const double expected = ref_segment_loss(&ref, at);
    cr_expect_float_eq((double)*loss, expected, GROWTH * 0x1p-24 * expected, "%.9g, %.9g",
                       (double)*loss, expected);
    test_rng rng = test_rng_make(7);
    char text[256];
    for (int i = 0; i < SEGMENT_NUM_LAYERS; ++i) {
        const segment_layer *l = &n.layers[i];
        const int64_t num = (int64_t)l->num_taps * l->in_cols * l->out_cols;
        check_direction(&ref, at, gradient, l->weights_at, num, &rng, n.num_parameters,
                        test_describe(text, "weights of layer %d", i));
        for (int k = 0; l->norm && k < 2; ++k)
            check_direction(&ref, at, gradient, l->norm_at + k * l->out_cols, l->out_cols, &rng,
                            n.num_parameters,
                            test_describe(text, "%s of layer %d", k == 0 ? "gamma" : "beta", i));
    }
    ref_segment_free(&ref);
    free(parameters);
    free(gradient);
    free(loss);
    free(at);
    segment_batch_free(&batch);
    segment_network_destroy(&n);
    segment_scans_free(&scans);
    test_close(&d);
}

// ---- Learning ----------------------------------------------------------------------------------

static segment_shape small_shape(void)
{
    segment_shape shape = segment_shape_default();
    const int32_t widths[SEGMENT_LEVELS] = {16, 16, 16, 24, 32};
    memcpy(shape.widths, widths, sizeof widths);
    return shape;
}

struct learn_param {
    int backend, dtype;
};

ParameterizedTestParameters(segment, the_loss_falls_below_half_in_30_steps)
{
    static struct learn_param params[] = {{SPOPS_BACKEND_CPU, SPOPS_DTYPE_F32},
                                          {SPOPS_BACKEND_CPU, SPOPS_DTYPE_BF16},
                                          {SPOPS_BACKEND_CUDA, SPOPS_DTYPE_F32},
                                          {SPOPS_BACKEND_CUDA, SPOPS_DTYPE_BF16}};
    return tested_here(
        cr_make_param_array(struct learn_param, params, sizeof params / sizeof *params));
}

ParameterizedTest(struct learn_param *p, segment, the_loss_falls_below_half_in_30_steps,
                  .timeout = 300)
{
    const segment_training how = {.num_steps = 40, .together = 1, .rate = 1e-2, .seed = 2};
    test_device d;
    float losses[30];
    if (!test_open(&d, p->backend, LAUNCH_STREAM)) return;
    const segment_shape shape = small_shape();
    segment_scans scans = take_scans(1, 16, test_quick() ? 48 : 120, 30.0);
    segment_network n = create_network(&d, &shape, p->dtype, &scans, 1, false);
    train(&n, &scans, d.stream, &how, 0, 30, losses);
    cr_expect_lt(losses[29], 0.5f * losses[0], "%g, then %g", (double)losses[0],
                 (double)losses[29]);
    // What was learned is there also with the running statistics.
    segment_batch batch;
    segment_score score;
    uint8_t *classes = malloc((size_t)scans.scans[0].num_points);
    int64_t right = 0, all = 0;
    cr_assert(segment_batch_create(n.capacity.points, n.dtype, &batch));
    cr_assert(segment_confusion_clear(&n) && segment_label(&n, &batch, &scans.scans[0], classes) &&
              segment_confusion_read(&n, &score));
    for (int64_t i = 0; i < scans.scans[0].num_points; ++i)
        right += classes[i] == scans.scans[0].classes[i];
    for (int c = 0; c < SEGMENT_NUM_CLASSES; ++c)
        for (int k = 0; k < SEGMENT_NUM_CLASSES; ++k)
            all += score.confusion[c][k];
    cr_expect_eq(all, scans.scans[0].num_points);
    cr_expect_float_eq(score.accuracy, (double)right / (double)all, 1e-9);
    cr_expect_gt(score.accuracy, 0.5);
    free(classes);
    segment_batch_free(&batch);
    segment_network_destroy(&n);
    segment_scans_free(&scans);
    test_close(&d);
}

static void make_directory(char *path, size_t bytes)
{
    const char *base = getenv("TMPDIR");
    snprintf(path, bytes, "%s/spops-segment-XXXXXX", base != NULL ? base : "/tmp");
    cr_assert_not_null(mkdtemp(path));
}

ParameterizedTestParameters(segment, the_same_seed_gives_the_same_bits)
{
    return every_backend();
}

// Three times: in one go, again, and interrupted in the middle.
ParameterizedTest(struct backend_param *p, segment, the_same_seed_gives_the_same_bits,
                  .timeout = 300)
{
    enum { STEPS = 8, HALF = 3 };
    const segment_training how = {
        .num_steps = STEPS, .together = 2, .rate = 1e-2, .seed = 9, .change = true};
    const segment_checkpoint about = {.step = HALF, .num_steps = STEPS, .has_moments = true};
    char directory[4096], path[4200], error[SEGMENT_ERROR_BYTES];
    float losses[3][STEPS], *parameters[3], *statistics[3];
    int64_t num = 0, num_statistics = 0;
    test_device d;
    if (!test_open(&d, p->backend, LAUNCH_STREAM)) return;
    const segment_shape shape = small_shape();
    segment_scans scans = take_scans(3, 16, test_quick() ? 30 : 90, 30.0);
    make_directory(directory, sizeof directory);
    snprintf(path, sizeof path, "%s/a.state", directory);
    for (int i = 0; i < 3; ++i) {
        segment_network n = create_network(&d, &shape, SPOPS_DTYPE_F32, &scans, 2, true);
        train(&n, &scans, d.stream, &how, 0, i == 2 ? HALF : STEPS, losses[i]);
        if (i == 2) {
            unsigned char *bytes;
            size_t num_bytes;
            segment_checkpoint read;
            cr_assert(segment_checkpoint_save(&n, &about, path), "%s", n.error);
            segment_network_destroy(&n);
            n = create_network(&d, &shape, SPOPS_DTYPE_F32, &scans, 2, true);
            cr_assert(segment_checkpoint_read(path, &bytes, &num_bytes, &read, error), "%s", error);
            cr_expect_eq(read.step, HALF);
            cr_assert(segment_checkpoint_load(&n, bytes, num_bytes), "%s", n.error);
            train(&n, &scans, d.stream, &how, HALF, STEPS, losses[i]);
            free(bytes);
        }
        num = n.num_parameters, num_statistics = n.num_statistics;
        parameters[i] = read_floats(&n, n.parameters, num);
        statistics[i] = read_floats(&n, n.statistics, num_statistics);
        segment_network_destroy(&n);
    }
    for (int i = 1; i < 3; ++i) {
        cr_expect_eq(memcmp(losses[0], losses[i], sizeof losses[0]), 0, "losses, %d", i);
        cr_expect_eq(memcmp(parameters[0], parameters[i], (size_t)num * sizeof(float)), 0,
                     "parameters, %d", i);
        cr_expect_eq(memcmp(statistics[0], statistics[i], (size_t)num_statistics * sizeof(float)),
                     0, "statistics, %d", i);
    }
    for (int i = 0; i < 3; ++i) {
        free(parameters[i]);
        free(statistics[i]);
    }
    cr_expect_eq(unlink(path), 0);
    cr_expect_eq(rmdir(directory), 0, "something is left in it");
    segment_scans_free(&scans);
    test_close(&d);
}

enum { ALIKE_STEPS = 20, ALIKE_TILTS = 6 };

// Losses of the first steps from parameters each of which is scaled by up to 1 + tilt, by the dice of
// `stream`.
static void losses_of(spops_backend_kind backend, double tilt, uint64_t stream,
                      float losses[ALIKE_STEPS], bool *there)
{
    const segment_training how = {
        .num_steps = ALIKE_STEPS, .together = 2, .rate = 3e-3, .seed = 4, .change = true};
    test_device d;
    *there = test_open(&d, backend, LAUNCH_STREAM);
    if (!*there) return;
    const segment_shape shape = small_shape();
    segment_scans scans = take_scans(4, 16, 120, 30.0);
    segment_network n = create_network(&d, &shape, SPOPS_DTYPE_F32, &scans, 2, true);
    float *parameters = read_floats(&n, n.parameters, n.num_parameters);
    test_rng rng = test_rng_make(stream);
    for (int64_t i = 0; i < n.num_parameters; ++i)
        parameters[i] *= (float)(1.0 + tilt * (2.0 * test_rng_unit(&rng) - 1.0));
    cr_assert(device_upload(d.backend, n.parameters, parameters,
                            (size_t)n.num_parameters * sizeof *parameters));
    train(&n, &scans, d.stream, &how, 0, ALIKE_STEPS, losses);
    free(parameters);
    segment_network_destroy(&n);
    segment_scans_free(&scans);
    test_close(&d);
}

// Both backends round alike but in another order, and training lets a difference grow: the first steps
// of AdamW move a parameter by the rate whatever the size of its gradient, so that the sign of one
// that is nearly 0 counts. How far losses may lie apart is seen by training again, on the CPU, from
// parameters that differ by the roundings of one pass, several times: what GPU and CPU differ by is
// at most twice the most that any two of these do.
Test(segment, cpu_and_gpu_learn_alike, .timeout = 300)
{
    const double tilt = 64.0 * 0x1p-24;
    float gpu[ALIKE_STEPS], cpu[1 + ALIKE_TILTS][ALIKE_STEPS];
    bool there;
    losses_of(SPOPS_BACKEND_CUDA, 0.0, 1, gpu, &there);
    for (int k = 0; there && k <= ALIKE_TILTS; ++k)
        losses_of(SPOPS_BACKEND_CPU, k == 0 ? 0.0 : tilt, (uint64_t)k, cpu[k], &there);
    if (!there) return;
    double spread = tilt * (double)cpu[0][0];
    for (int i = 0; i < ALIKE_STEPS; ++i) {
        double low = INFINITY, high = -INFINITY;
        for (int k = 0; k <= ALIKE_TILTS; ++k) {
            low = fmin(low, (double)cpu[k][i]);
            high = fmax(high, (double)cpu[k][i]);
        }
        spread = fmax(spread, high - low);
        cr_expect(fabs((double)gpu[i] - (double)cpu[0][i]) <= 2.0 * spread,
                  "step %d: %.8g on the CPU, %.8g on the GPU; %.3g apart where parameters differ",
                  i, (double)cpu[0][i], (double)gpu[i], spread);
        cr_expect_lt(spread, 0.01 * (double)cpu[0][i], "step %d: the comparison says nothing", i);
    }
}

static void expect_centres_alone(const segment_network *n)
{
    for (int i = 0; i < SEGMENT_NUM_LAYERS; ++i) {
        const segment_layer *l = &n->layers[i];
        const int64_t of_tap = (int64_t)l->in_cols * l->out_cols;
        for (int64_t k = 0; k < l->num_taps * of_tap; ++k) {
            const bool centre = l->num_taps == 27 && k / of_tap == 13;
            cr_assert_eq(n->parameters[l->weights_at + k] != 0.0f, centre, "layer %d, %d", i,
                         (int)k);
        }
    }
}

Test(segment, without_neighbours_only_centres_count)
{
    const segment_training how = {.num_steps = 4, .together = 1, .rate = 1e-2, .seed = 2};
    test_device d;
    float losses[4];
    if (!test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    segment_shape shape = narrow_shape(8);
    segment_scans scans = take_scans(1, 16, 90, 30.0);
    for (int i = 0; i < 2; ++i) { // taken away from a network, or never there
        shape.centre_only = i;
        segment_network n = create_network(&d, &shape, SPOPS_DTYPE_F32, &scans, 1, false);
        train(&n, &scans, d.stream, &how, 0, 4, losses);
        if (i == 0) cr_assert(segment_keep_centres(&n), "%s", n.error);
        expect_centres_alone(&n);
        segment_network_destroy(&n);
    }
    segment_scans_free(&scans);
    test_close(&d);
}

// ---- What is refused ---------------------------------------------------------------------------

static void write_bytes(const char *path, const unsigned char *bytes, size_t num)
{
    FILE *f = fopen(path, "wb");
    cr_assert_not_null(f);
    cr_assert_eq(fwrite(bytes, 1, num, f), num);
    cr_assert_eq(fclose(f), 0);
}

static void expect_refused(const char *path, const unsigned char *bytes, size_t num,
                           const char *fragment)
{
    char error[SEGMENT_ERROR_BYTES] = "";
    unsigned char *back = NULL;
    size_t num_back;
    segment_checkpoint about;
    write_bytes(path, bytes, num);
    cr_expect_not(segment_checkpoint_read(path, &back, &num_back, &about, error), "%s", fragment);
    cr_expect_null(back);
    cr_expect_not_null(strstr(error, fragment), "'%s' is not in: %s", fragment, error);
    cr_expect_not_null(strstr(error, path));
}

Test(segment, wrong_checkpoints_are_refused)
{
    char directory[4096], path[4200], error[SEGMENT_ERROR_BYTES];
    test_device d;
    if (!test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    const segment_shape shape = narrow_shape(8), other = narrow_shape(16);
    segment_scans scans = take_scans(1, 8, 24, 12.0);
    segment_network n = create_network(&d, &shape, SPOPS_DTYPE_F32, &scans, 1, false);
    segment_network wide = create_network(&d, &other, SPOPS_DTYPE_F32, &scans, 1, false);
    make_directory(directory, sizeof directory);
    snprintf(path, sizeof path, "%s/a.spops", directory);

    // There and back, with weights in bf16 and without moments; and what the header says.
    segment_checkpoint about = {
        .step = 3, .num_steps = 9, .seed = 11, .rate = 0.5, .together = 2, .narrow = true};
    unsigned char *bytes = NULL;
    size_t num = 0;
    segment_checkpoint read;
    cr_assert(segment_checkpoint_save(&n, &about, path), "%s", n.error);
    cr_assert(segment_checkpoint_read(path, &bytes, &num, &read, error), "%s", error);
    cr_expect(read.step == 3 && read.num_steps == 9 && read.seed == 11 && read.rate == 0.5 &&
              read.together == 2 && read.narrow && !read.has_moments);
    cr_expect_eq(memcmp(&read.shape, &shape, sizeof shape), 0);
    float *before = read_floats(&n, n.parameters, n.num_parameters);
    cr_assert(segment_checkpoint_load(&n, bytes, num), "%s", n.error);
    for (int64_t i = 0; i < n.num_parameters; ++i)
        cr_assert(fabsf(n.parameters[i] - before[i]) <= 0x1p-8f * fabsf(before[i]));

    // Of another network: nothing is written.
    float *kept = read_floats(&wide, wide.parameters, wide.num_parameters);
    cr_expect_not(segment_checkpoint_load(&wide, bytes, num));
    cr_expect_not_null(strstr(wide.error, "of another network"), "%s", wide.error);
    cr_expect_eq(memcmp(kept, wide.parameters, (size_t)wide.num_parameters * sizeof(float)), 0);

    unsigned char *bad = malloc(num + 1);
    for (size_t cut = 0; cut < num; cut += cut < 160 ? 1 : 4999) {
        memcpy(bad, bytes, num);
        expect_refused(path, bad, cut, cut < 12 ? "not a checkpoint" : "truncated");
        bad[cut] ^= 0x10; // one bit changed; what it breaks depends on where it is
        expect_refused(path, bad, num, "");
    }
    memcpy(bad, bytes, num);
    bad[num] = 0;
    expect_refused(path, bad, num + 1, "too long");
    bad[8] = 2;
    expect_refused(path, bad, num, "version 2, this program reads 1");
    memcpy(bad, bytes, num);
    bad[num - 100] ^= 1;
    expect_refused(path, bad, num, "its checksum is wrong");
    cr_expect_eq(unlink(path), 0);
    free(bad);
    cr_expect_not(segment_checkpoint_read(path, &bad, &num, &read, error));
    cr_expect_not_null(strstr(error, "No such file"));

    // A file that cannot be finished leaves what is there alone.
    write_bytes(path, (const unsigned char *)"old", 3);
    char beside[4300];
    snprintf(beside, sizeof beside, "%s.part", path);
    cr_assert_eq(mkdir(beside, 0700), 0);
    cr_expect_not(segment_checkpoint_save(&n, &about, path));
    struct stat file;
    cr_expect(stat(path, &file) == 0 && file.st_size == 3);
    cr_expect_eq(rmdir(beside), 0);
    cr_expect_eq(unlink(path), 0);
    cr_expect_eq(rmdir(directory), 0);
    free(before);
    free(kept);
    free(bytes);
    segment_network_destroy(&n);
    segment_network_destroy(&wide);
    segment_scans_free(&scans);
    test_close(&d);
}

Test(segment, wrong_scans_are_refused)
{
    float points[3][SEGMENT_POINT_COLS] = {{1, 2, 0, 0.5f}, {5, 5, 1, 0.1f}, {70, 0, 0, 0.2f}};
    uint8_t labels[3] = {1, 10, 0};
    char error[SEGMENT_ERROR_BYTES];
    int64_t left_out;
    segment_scan kept;
    cr_assert(segment_scan_create("a", 3, points[0], labels, &kept, &left_out, error), "%s", error);
    cr_expect_eq(left_out, 1, "one is too far");
    cr_expect(kept.num_points == 2 && kept.classes[0] == 0 && kept.classes[1] == 8);
    segment_scan_free(&kept);
    cr_expect_not(segment_scan_create("a", 0, points[0], labels, &kept, &left_out, error));
    cr_expect_str_eq(error, "a: no points");
    cr_expect_not(segment_scan_create("a", 1, points[2], labels, &kept, &left_out, error));
    cr_expect_str_eq(error, "a: no point within 60 m");
    labels[2] = 11;
    cr_expect_not(segment_scan_create("a", 3, points[0], labels, &kept, &left_out, error));
    cr_expect_str_eq(error, "a: the label of point 2 is 11, expected 0 to 10");
    labels[2] = 0;
    const float wrong[2] = {NAN, INFINITY};
    for (int i = 0; i < 2; ++i) {
        points[1][3] = wrong[i];
        cr_expect_not(segment_scan_create("a", 3, points[0], labels, &kept, &left_out, error));
        cr_expect_str_eq(error, "a: element 3 of point 1 is not finite");
    }
    cr_expect(kept.points == NULL && kept.classes == NULL);
}

Test(segment, wrong_folders_are_refused)
{
    const float points[2][SEGMENT_POINT_COLS] = {{1, 2, 0, 0.5f}, {5, 5, 1, 0.1f}};
    const uint8_t labels[2] = {1, 10};
    char directory[4096], a[4200], b[4200], error[SEGMENT_ERROR_BYTES];
    segment_scans scans;
    make_directory(directory, sizeof directory);
    snprintf(a, sizeof a, "%s/scan_000001.npy", directory);
    snprintf(b, sizeof b, "%s/scan_000001_labels.npy", directory);
    cr_expect_not(segment_scans_load("/nonexistent", &scans, error));
    cr_expect_not_null(strstr(error, "/nonexistent: "));
    cr_expect_not(segment_scans_load(directory, &scans, error));
    cr_expect_not_null(strstr(error, "no scan_*.npy in it"));
    cr_assert(npy_write(a, NPY_F32, 2, 4, points, error, sizeof error));
    cr_expect_not(segment_scans_load(directory, &scans, error));
    cr_expect_not_null(strstr(error, "scan_000001_labels.npy: "), "%s", error);
    cr_assert(npy_write(b, NPY_U8, 1, 0, labels, error, sizeof error));
    cr_expect_not(segment_scans_load(directory, &scans, error));
    cr_expect_not_null(strstr(error, "2 points and 1 labels"), "%s", error);
    cr_assert(npy_write(b, NPY_U8, 2, 0, labels, error, sizeof error));
    cr_assert(segment_scans_load(directory, &scans, error), "%s", error);
    cr_expect_eq(scans.num, 1);
    segment_scans_free(&scans);
    cr_expect_eq(unlink(a) + unlink(b) + rmdir(directory), 0);
}
