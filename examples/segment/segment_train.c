// SPDX-License-Identifier: Apache-2.0
/*
 * Trains the network of this folder on scans in folders, and tests it on others.
 *
 *     segment_train --train DIR --test DIR --out FILE
 *     segment_train --check FILE --test DIR [--codes i8 --calibrate DIR]
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "segment.h"
#include "support/device.h"
#include "support/options.h"
#include "tools/command.h"
#include "tools/picture.h"

typedef struct train_job {
    const char *train, *test, *out, *resume, *check, *curve, *widths, *calibrate;
    spops_dtype codes; /* f32: none */
    int64_t calibrate_scans;
    spops_backend_kind backend;
    spops_dtype dtype;
    int64_t steps, together, seed, every, save_every, voxel_mm;
    double rate;
    bool centre_only, plain, as_json;
} train_job;

static train_job asked;
static const option_row option_rows[] = {
    {"--train", "DIR", "scans to learn from, as `spops scan' writes them", .text = &asked.train},
    {"--test", "DIR", "scans to test on afterwards; default: none", .text = &asked.test},
    {"--out", "FILE", "the network, with weights in bf16; default: segment.spops",
     .text = &asked.out},
    {"--resume", "FILE", "go on from FILE.state, which a training that was interrupted left",
     .text = &asked.resume},
    {"--check", "FILE", "train nothing: test the network in FILE", .text = &asked.check},
    {"--codes", "NAME", "with --check: layers in 8 bits, f8e4m3 or i8; default: f32, as they are",
     "f32,f8e4m3,i8", .dtype = &asked.codes},
    {"--calibrate", "DIR", "scans that the ranges of codes are measured on",
     .text = &asked.calibrate},
    {"--calibrate-scans", "N", "the first so many of them; default: 16",
     .number = &asked.calibrate_scans, .least = 1, .most = 10000},
    {"--curve", "FILE", "the loss over the steps, as a picture (.png)", .text = &asked.curve},
    OPTION_BACKEND(&asked.backend),
    {"--dtype", "NAME", "of features: f32, bf16 (with f32 master weights); default: f32",
     "f32,bf16", .dtype = &asked.dtype},
    {"--steps", "N", "default: 4000", .number = &asked.steps, .least = 1, .most = 10000000},
    {"--batch", "N", "scans of a step, 1 to 64; default: 2", .number = &asked.together, .least = 1,
     .most = 64},
    {"--rate", "R", "the highest learning rate; default: 0.003", .reals = &asked.rate, .least = 0,
     .most = 1},
    {"--seed", "N", "of weights, order and changes of scans; default: 1", .number = &asked.seed,
     .most = INT32_MAX},
    {"--voxel-mm", "N", "side of a voxel, 50 to 1000; default: 200", .number = &asked.voxel_mm,
     .least = 50, .most = 1000},
    {"--widths", "LIST", "channels of the five levels; default: 32,32,48,64,96",
     .text = &asked.widths},
    {"--centre", NULL,
     "taps but the centre's stay 0, or with --check become 0: no voxel sees another",
     .on = &asked.centre_only},
    {"--plain", NULL, "scans as they are: not turned, mirrored, scaled or thinned",
     .on = &asked.plain},
    {"--every", "N", "steps from one line of progress to the next; default: 100",
     .number = &asked.every, .least = 1, .most = 10000000},
    {"--save-every", "N", "steps from one FILE.state to the next; default: 0, none",
     .number = &asked.save_every, .most = 10000000},
    {"--json", NULL, "lines of progress and results as JSON", .on = &asked.as_json},
    {0}};
static const option_set train_options = {
    .program = "segment_train",
    .summary = "train a sparse U-Net that labels LiDAR scans",
    .about = "Train a sparse U-Net on labelled scans, and test it on scans it has not seen.",
    .rows = option_rows};

typedef struct work {
    const train_job *job;
    session s;
    segment_scans train, test, calibrate;
    segment_shape shape;
    segment_network network;
    segment_trainer *trainer;
    unsigned char *saved;
    size_t saved_bytes;
    segment_checkpoint about;
    float *losses;
    double seconds; /* of training */
} work;

static bool fail(const char *what)
{
    command_fail(train_options.program, "%s", what);
    return false;
}

/* ---- Sizes ------------------------------------------------------------------------------------- */

static bool read_shape(const train_job *job, segment_shape *shape)
{
    *shape = segment_shape_default();
    shape->voxel_m = 1e-3 * (double)job->voxel_mm;
    shape->centre_only = job->centre_only;
    char item[64];
    for (int l = 0; job->widths != NULL && l < SEGMENT_LEVELS; ++l) {
        int64_t width = 0;
        if (!options_item(job->widths, l, item) || !options_read_number(item, 8, 1024, &width) ||
            width % 8 != 0)
            return fail("--widths: expected five multiples of 8, up to 1024");
        shape->widths[l] = (int32_t)width;
    }
    return true;
}

/* What the largest step and the largest scan to test on need. */
static bool find_capacity(work *w, segment_capacity *capacity)
{
    char error[SEGMENT_ERROR_BYTES];
    const segment_scans *const others[] = {&w->test, &w->calibrate}; /* one by one */
    if (!segment_measure(w->s.ctx, w->s.backend, &w->shape, &w->train, !w->job->plain,
                         w->about.together, capacity, error))
        return fail(error);
    for (int i = 0; i < 2; ++i) {
        segment_capacity one; /* of a folder that was not given: nothing */
        if (!segment_measure(w->s.ctx, w->s.backend, &w->shape, others[i], false, 1, &one, error))
            return fail(error);
        if (one.points > capacity->points) capacity->points = one.points;
        for (int l = 0; l < SEGMENT_LEVELS; ++l) {
            if (one.rows[l] > capacity->rows[l]) capacity->rows[l] = one.rows[l];
            if (one.pairs[l] > capacity->pairs[l]) capacity->pairs[l] = one.pairs[l];
        }
    }
    return true;
}

/* Scans after those that are asked for are let go. */
static bool load_calibration(work *w, char error[SEGMENT_ERROR_BYTES])
{
    segment_scans *scans = &w->calibrate;
    if (!segment_scans_load(w->job->calibrate, scans, error)) return false;
    while (scans->num > w->job->calibrate_scans)
        segment_scan_free(&scans->scans[--scans->num]);
    return true;
}

static bool open_network(work *w)
{
    char error[SEGMENT_ERROR_BYTES];
    segment_capacity capacity;
    if ((w->job->train != NULL && !segment_scans_load(w->job->train, &w->train, error)) ||
        (w->job->test != NULL && !segment_scans_load(w->job->test, &w->test, error)) ||
        (w->job->calibrate != NULL && !load_calibration(w, error)))
        return fail(error);
    if (!find_capacity(w, &capacity)) return false;
    if (!segment_network_create(w->s.ctx, w->s.backend, &w->shape, w->job->dtype,
                                w->job->train != NULL, &capacity, w->about.seed, &w->network))
        return fail(w->network.error);
    if (w->saved == NULL) return true;
    return (segment_checkpoint_load(&w->network, w->saved, w->saved_bytes) &&
            (w->job->check == NULL || !w->job->centre_only || segment_keep_centres(&w->network))) ||
           fail(w->network.error);
}

/* ---- Training ---------------------------------------------------------------------------------- */

static bool save(work *w, int64_t steps_done, bool state)
{
    char path[4096];
    segment_checkpoint about = w->about;
    about.step = steps_done;
    about.has_moments = state;
    about.narrow = !state;
    if (snprintf(path, sizeof path, "%s%s", w->job->out, state ? ".state" : "") >= (int)sizeof path)
        return fail("--out is too long");
    return segment_checkpoint_save(&w->network, &about, path) || fail(w->network.error);
}

static bool say(work *w, int64_t at, double loss, int64_t points, double seconds)
{
    segment_score score;
    if (!segment_check(&w->network) || !segment_confusion_read(&w->network, &score) ||
        !segment_confusion_clear(&w->network))
        return fail(w->network.error);
    const double rate = segment_rate(w->about.rate, at, w->about.num_steps);
    printf(w->job->as_json
               ? "{\"step\": %lld, \"of\": %lld, \"loss\": %.6g, \"mean_iou\": %.4f, "
                 "\"rate\": %.3g, \"points_per_s\": %.4g, \"steps_per_s\": %.4g}\n"
               : "step %6lld of %lld  loss %.4f  mean IoU %.3f  rate %.2e  %.3g points/s "
                 " %.3g steps/s\n",
           (long long)at + 1, (long long)w->about.num_steps, loss, score.mean_iou, rate,
           (double)points / seconds, (double)w->job->every / seconds);
    fflush(stdout);
    return true;
}

static bool train(work *w)
{
    const int64_t num_steps = w->about.num_steps;
    const segment_training how = {.num_steps = num_steps,
                                  .together = w->about.together,
                                  .rate = w->about.rate,
                                  .seed = w->about.seed,
                                  .change = !w->job->plain};
    const double start = clock_s();
    double since = start, sum = 0.0;
    int64_t points = 0;
    w->losses = calloc((size_t)num_steps, sizeof *w->losses);
    if (w->losses == NULL) return fail("no memory for the losses");
    if (!segment_trainer_create(&w->network, &w->train, &how, w->s.stream, &w->trainer))
        return fail(w->network.error);
    for (int64_t at = w->about.step; at < num_steps; ++at) {
        if (!segment_trainer_step(w->trainer, at, &w->losses[at])) return fail(w->network.error);
        if (!isfinite(w->losses[at]))
            return fail("the loss is not finite; a lower --rate may help");
        sum += w->losses[at];
        points += segment_trainer_points(w->trainer);
        if ((at + 1) % w->job->every == 0) {
            const double now = clock_s();
            if (!say(w, at, sum / (double)w->job->every, points, now - since)) return false;
            since = now, sum = 0.0, points = 0;
        }
        if (w->job->save_every > 0 && (at + 1) % w->job->save_every == 0 && !save(w, at + 1, true))
            return false;
    }
    w->seconds = clock_s() - start;
    /* The file has weights in bf16; what is tested is what is in it. */
    segment_checkpoint about;
    char error[SEGMENT_ERROR_BYTES];
    free(w->saved);
    if (!segment_check(&w->network)) return fail(w->network.error);
    if (!save(w, num_steps, false)) return false;
    if (!segment_checkpoint_read(w->job->out, &w->saved, &w->saved_bytes, &about, error))
        return fail(error);
    return segment_checkpoint_load(&w->network, w->saved, w->saved_bytes) || fail(w->network.error);
}

/* ---- Results ----------------------------------------------------------------------------------- */

/* From here on layers run on codes, whose ranges are those of the scans to calibrate on. */
static bool calibrate(work *w)
{
    segment_network *n = &w->network;
    segment_batch batch;
    if (!segment_batch_create(n->capacity.points, n->dtype, &batch)) return fail("no memory");
    bool ok = segment_codes_create(n, w->job->codes);
    for (int32_t i = 0; ok && i < w->calibrate.num; ++i)
        ok = segment_label(n, &batch, &w->calibrate.scans[i], NULL) && segment_codes_measure(n);
    segment_batch_free(&batch);
    return (ok && segment_codes_begin(n)) || fail(n->error);
}

static bool test(work *w)
{
    segment_network *n = &w->network;
    segment_batch batch;
    segment_score score;
    if (!segment_batch_create(n->capacity.points, n->dtype, &batch)) return fail("no memory");
    bool ok = segment_confusion_clear(n);
    const double start = clock_s();
    for (int32_t i = 0; ok && i < w->test.num; ++i)
        ok = segment_label(n, &batch, &w->test.scans[i], NULL);
    const double seconds = clock_s() - start;
    segment_batch_free(&batch);
    if (!ok || !segment_confusion_read(n, &score)) return fail(n->error);
    if (w->job->as_json) {
        printf("{\"test_scans\": %d, \"mean_iou\": %.4f, \"accuracy\": %.4f, \"train_s\": %.4g",
               w->test.num, score.mean_iou, score.accuracy, w->seconds);
        for (int c = 0; c < SEGMENT_NUM_CLASSES; ++c)
            if (!isnan(score.iou[c])) printf(", \"%s\": %.4f", segment_class_name(c), score.iou[c]);
        printf("}\n");
        return true;
    }
    printf("tested on %d scans in %.3g s: mean IoU %.3f, %.1f %% of the points right\n",
           w->test.num, seconds, score.mean_iou, 100.0 * score.accuracy);
    for (int c = 0; c < SEGMENT_NUM_CLASSES; ++c) {
        if (isnan(score.iou[c]))
            printf("  %-9s not there\n", segment_class_name(c));
        else
            printf("  %-9s %.3f\n", segment_class_name(c), score.iou[c]);
    }
    return true;
}

/* Losses on a logarithmic scale: each step as a dot, and their mean over a window. */
static bool draw_curve(const work *w)
{
    enum { WIDTH = 760, HEIGHT = 360, LEFT = 56, RIGHT = 16, TOP = 28, BOTTOM = 40, TEXT_PX = 12 };
    const colour paper = {255, 255, 255}, grid = {225, 228, 234}, ink = {40, 44, 52};
    const colour dot = {150, 180, 225}, line = {25, 75, 160};
    const int64_t first = w->about.step, num = w->about.num_steps - first;
    const int64_t window = num / 50 + 1;
    double low = INFINITY, high = -INFINITY;
    char text[64], error[512];
    picture p;
    for (int64_t i = first; i < first + num; ++i) {
        low = fmin(low, w->losses[i]);
        high = fmax(high, w->losses[i]);
    }
    if (num < 2 || !(low > 0.0)) return true;
    low *= 0.9, high *= 1.1;
    if (!picture_create(WIDTH, HEIGHT, paper, &p)) return fail("no memory for the curve");
    const double span_x = WIDTH - LEFT - RIGHT, span_y = HEIGHT - TOP - BOTTOM;
    const double scale = span_y / log(high / low);
    for (double decade = pow(10.0, floor(log10(low))); decade < high; decade *= 10.0)
        for (int k = 1; k < 10; ++k) {
            const double value = k * decade;
            if (value < low || value > high) continue;
            const int y = (int)(TOP + scale * log(high / value));
            picture_rect(&p, LEFT, y, (int)span_x, 1, grid, 1.0);
            if (k != 1 && k != 2 && k != 5) continue;
            snprintf(text, sizeof text, "%g", value);
            picture_text(&p, LEFT - 6 - picture_text_width(TEXT_PX, text), y + 4, TEXT_PX, ink,
                         text);
        }
    for (int k = 0; k <= 4; ++k) {
        const int x = (int)(LEFT + span_x * k / 4);
        picture_rect(&p, x, TOP, 1, (int)span_y, grid, 1.0);
        snprintf(text, sizeof text, "%lld", (long long)(first + num * k / 4));
        picture_text(&p, x - picture_text_width(TEXT_PX, text) / (k == 4 ? 1 : 2),
                     HEIGHT - BOTTOM + 14, TEXT_PX, ink, text);
    }
    const char *const step = "step";
    picture_text(&p, LEFT + 0.5 * (span_x - picture_text_width(TEXT_PX, step)), HEIGHT - 8, TEXT_PX,
                 ink, step);
    picture_text(&p, 6, 14, TEXT_PX, ink, "loss (cross-entropy, nats; logarithmic)");
    snprintf(text, sizeof text, "of a step; line: mean of %lld steps", (long long)window);
    const double key_x = WIDTH - RIGHT - picture_text_width(TEXT_PX, text);
    picture_rect(&p, key_x - 10, 8, 3, 3, dot, 1.0);
    picture_text(&p, key_x, 14, TEXT_PX, ink, text);
    double sum = 0.0;
    for (int64_t i = 0; i < num; ++i) {
        const double x = LEFT + span_x * (double)i / (double)(num - 1);
        const double y = TOP + scale * log(high / w->losses[first + i]);
        picture_rect(&p, x - 0.75, y - 0.75, 1.5, 1.5, dot, 0.8);
    }
    for (int64_t i = 0; i < num; ++i) {
        sum += w->losses[first + i];
        if (i >= window) sum -= w->losses[first + i - window];
        const double mean = sum / (double)(i < window ? i + 1 : window);
        const double x = LEFT + span_x * (double)i / (double)(num - 1);
        picture_rect(&p, (int)x, (int)(TOP + scale * log(high / mean)) - 1, 2, 2, line, 1.0);
    }
    const bool ok = picture_write_png(&p, w->job->curve, error, sizeof error) || fail(error);
    picture_destroy(&p);
    return ok;
}

/* The network to go on with, or to test. */
static bool read_network(work *w)
{
    const bool check = w->job->check != NULL;
    char path[4096], error[SEGMENT_ERROR_BYTES];
    if (snprintf(path, sizeof path, check ? "%s" : "%s.state",
                 check ? w->job->check : w->job->resume) >= (int)sizeof path)
        return fail("the name of the file is too long");
    if (!segment_checkpoint_read(path, &w->saved, &w->saved_bytes, &w->about, error))
        return fail(error);
    w->shape = w->about.shape;
    return check || w->about.has_moments || fail("--resume: the file cannot be trained on");
}

static int run(const train_job *job)
{
    work w;
    memset(&w, 0, sizeof w);
    w.job = job;
    w.about = (segment_checkpoint){.num_steps = job->steps,
                                   .seed = (uint64_t)job->seed,
                                   .rate = job->rate,
                                   .together = (int32_t)job->together};
    bool ok =
        job->resume != NULL || job->check != NULL ? read_network(&w) : read_shape(job, &w.shape);
    w.about.shape = w.shape;
    ok = ok && session_open(train_options.program, job->backend, &w.s) && open_network(&w);
    if (ok && !job->as_json) {
        char device[256];
        session_describe(&w.s, device, sizeof device);
        printf("%s; %d scans, %lld parameters, %s\n", device, w.train.num + w.test.num,
               (long long)w.network.num_parameters, spops_dtype_name(job->dtype));
    }
    ok = ok && (job->check != NULL || train(&w)) &&
         (job->codes == SPOPS_DTYPE_F32 || calibrate(&w)) && (job->test == NULL || test(&w)) &&
         (job->check != NULL || job->curve == NULL || draw_curve(&w));
    if (ok && !job->as_json && job->check == NULL)
        printf("trained %lld steps in %.3g s: %s\n", (long long)(w.about.num_steps - w.about.step),
               w.seconds, job->out);
    segment_trainer_destroy(w.trainer);
    segment_network_destroy(&w.network);
    segment_scans_free(&w.train);
    segment_scans_free(&w.test);
    segment_scans_free(&w.calibrate);
    session_close(&w.s);
    free(w.saved);
    free(w.losses);
    return ok ? COMMAND_OK : COMMAND_FAILED;
}

int main(int argc, char **argv)
{
    asked = (train_job){.out = "segment.spops",
                        .dtype = SPOPS_DTYPE_F32,
                        .steps = 4000,
                        .together = 2,
                        .rate = 3e-3,
                        .seed = 1,
                        .voxel_mm = 200,
                        .every = 100,
                        .codes = SPOPS_DTYPE_F32,
                        .calibrate_scans = 16};
    const options_result result = options_read(&train_options, argc, argv);
    if (result != OPTIONS_READ) return command_status(result);
    if (asked.check != NULL) asked.train = NULL;
    if (asked.train == NULL && asked.check == NULL)
        return command_status(options_error(&train_options, "--train is missing"));
    if (asked.test == NULL && asked.check != NULL)
        return command_status(options_error(&train_options, "--test is missing"));
    if ((asked.codes != SPOPS_DTYPE_F32) != (asked.calibrate != NULL))
        return command_status(
            options_error(&train_options, "--codes and --calibrate want each other"));
    if (asked.codes != SPOPS_DTYPE_F32 && asked.check == NULL)
        return command_status(options_error(&train_options, "--codes is for --check"));
    return run(&asked);
}
