// SPDX-License-Identifier: Apache-2.0
/* Steps of learning, and how good the result is. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "segment.h"
#include "support/device.h"
#include "support/elements.h"

struct segment_trainer {
    segment_network *network;
    const segment_scans *scans;
    segment_training how;
    void *stream;
    float weights[SEGMENT_NUM_CLASSES];
    segment_batch batches[2]; /* the next step's is made while a step runs */
    int64_t prepared[2];      /* which step's */
    int32_t *order;           /* of the scans, in pass `pass` */
    int64_t pass;
    device_graph *graph; /* a step */
    bool warm;
    int64_t num_points;
};

static bool fail(segment_network *n, const char *what)
{
    snprintf(n->error, sizeof n->error, "%s", what);
    return false;
}

void segment_class_weights(const segment_scans *scans, float weights[SEGMENT_NUM_CLASSES])
{
    double counts[SEGMENT_NUM_CLASSES] = {0.0}, total = 0.0, sum = 0.0;
    for (int32_t i = 0; i < scans->num; ++i)
        for (int64_t p = 0; p < scans->scans[i].num_points; ++p)
            if (scans->scans[i].classes[p] != SEGMENT_IGNORED)
                counts[scans->scans[i].classes[p]] += 1.0, total += 1.0;
    /* A class that is not there weighs nothing. */
    for (int c = 0; c < SEGMENT_NUM_CLASSES; ++c)
        sum += counts[c] > 0.0 ? sqrt(counts[c] * total) : 0.0;
    for (int c = 0; c < SEGMENT_NUM_CLASSES; ++c)
        weights[c] = counts[c] > 0.0 ? (float)(sqrt(total / counts[c]) * total / sum) : 0.0f;
}

/* ---- A step ------------------------------------------------------------------------------------ */

/* Which scan is number `at` of all that are learned from: each pass has its own order. */
static int32_t scan_at(segment_trainer *t, int64_t at)
{
    const int64_t pass = at / t->scans->num;
    if (pass != t->pass) {
        for (int32_t i = 0; i < t->scans->num; ++i)
            t->order[i] = i;
        uint64_t dice = segment_mix64(t->how.seed ^ segment_mix64((uint64_t)pass));
        for (int32_t i = t->scans->num - 1; i > 0; --i) {
            dice = segment_mix64(dice);
            const int32_t k = (int32_t)(dice % (uint64_t)(i + 1)), swap = t->order[i];
            t->order[i] = t->order[k], t->order[k] = swap;
        }
        t->pass = pass;
    }
    return t->order[at % t->scans->num];
}

static bool make_batch(segment_trainer *t, int64_t at)
{
    segment_batch *batch = &t->batches[at % 2];
    if (t->prepared[at % 2] == at) return true;
    segment_batch_clear(batch);
    for (int32_t i = 0; i < t->how.together; ++i) {
        const int64_t number = at * t->how.together + i;
        const segment_change change =
            t->how.change ? segment_change_random(segment_mix64(t->how.seed + 1) ^ (uint64_t)number)
                          : segment_change_none();
        if (!segment_batch_add(batch, &t->network->shape, &t->scans->scans[scan_at(t, number)],
                               &change))
            return fail(t->network, "a batch does not fit");
    }
    t->prepared[at % 2] = at;
    return true;
}

static bool enqueue(segment_network *n)
{
    return segment_prepare(n) && segment_forward(n, true) && segment_loss(n, true) &&
           segment_backward(n) && segment_update(n);
}

/* The first step runs call by call, so that everything is loaded; then a step is captured. */
static bool launch(segment_trainer *t)
{
    segment_network *n = t->network;
    if (n->backend != SPOPS_BACKEND_CUDA || !t->warm) {
        t->warm = true;
        return enqueue(n);
    }
    if (t->graph == NULL) {
        if (!device_capture_begin(t->stream)) return fail(n, device_error());
        const bool ok = enqueue(n);
        if (!device_capture_end(t->stream, &t->graph) && ok) return fail(n, device_error());
        if (!ok) return false;
    }
    return device_graph_launch(t->graph, t->stream) || fail(n, device_error());
}

bool segment_trainer_create(segment_network *network, const segment_scans *scans,
                            const segment_training *how, void *stream, segment_trainer **out)
{
    segment_trainer *t = calloc(1, sizeof *t);
    *out = t;
    if (t == NULL) return fail(network, "no memory to train");
    t->network = network;
    t->scans = scans;
    t->how = *how;
    t->stream = stream;
    t->pass = t->prepared[0] = t->prepared[1] = -1;
    t->order = malloc((size_t)scans->num * sizeof *t->order);
    if (t->order == NULL ||
        !segment_batch_create(network->capacity.points, network->dtype, &t->batches[0]) ||
        !segment_batch_create(network->capacity.points, network->dtype, &t->batches[1])) {
        segment_trainer_destroy(t);
        *out = NULL;
        return fail(network, "no memory to train");
    }
    segment_class_weights(scans, t->weights);
    return true;
}

bool segment_trainer_step(segment_trainer *t, int64_t at, float *loss)
{
    segment_network *n = t->network;
    segment_batch *batch = &t->batches[at % 2];
    if (!make_batch(t, at) ||
        !segment_batch_send(batch, t->weights, at, t->how.num_steps, t->how.rate, n) || !launch(t))
        return false;
    t->num_points = batch->num_points;
    if (at + 1 < t->how.num_steps && !make_batch(t, at + 1)) return false; /* meanwhile */
    if (spops_context_wait_sync(n->ctx) != SPOPS_STATUS_OK)
        return fail(n, spops_last_error(n->ctx));
    return device_download(n->backend, loss, n->loss, sizeof *loss) || fail(n, device_error());
}

int64_t segment_trainer_points(const segment_trainer *t)
{
    return t->num_points;
}

void segment_trainer_destroy(segment_trainer *t)
{
    if (t == NULL) return;
    if (t->graph != NULL) device_graph_destroy(t->graph);
    segment_batch_free(&t->batches[0]);
    segment_batch_free(&t->batches[1]);
    free(t->order);
    free(t);
}

/* ---- Labels and scores ------------------------------------------------------------------------- */

bool segment_label(segment_network *n, segment_batch *batch, const segment_scan *scan,
                   uint8_t *classes)
{
    static const float even[SEGMENT_NUM_CLASSES] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    const segment_change none = segment_change_none();
    segment_batch_clear(batch);
    if (!segment_batch_add(batch, &n->shape, scan, &none)) return fail(n, "a scan does not fit");
    if (!segment_batch_send(batch, even, 0, 1, 0.0, n) || !segment_prepare(n) ||
        !segment_forward(n, false) || !segment_loss(n, false) || !segment_check(n))
        return false;
    return classes == NULL || segment_read_classes(n, scan->num_points, classes);
}

bool segment_read_classes(segment_network *n, int64_t num_points, uint8_t *classes)
{
    const size_t bytes = (size_t)num_points * SEGMENT_LOGITS * spops_dtype_bytes(n->dtype);
    void *logits = malloc(bytes);
    const bool ok = logits != NULL ? device_download(n->backend, logits, n->logits, bytes) ||
                                         fail(n, device_error())
                                   : fail(n, "no memory for logits");
    for (int64_t p = 0; ok && p < num_points; ++p) {
        float most = -INFINITY;
        classes[p] = 0;
        for (int c = 0; c < SEGMENT_NUM_CLASSES; ++c) {
            const int64_t i = p * SEGMENT_LOGITS + c;
            const float z = n->dtype == SPOPS_DTYPE_F32
                                ? ((const float *)logits)[i]
                                : elements_float_of_bf16(((const uint16_t *)logits)[i]);
            if (z > most) most = z, classes[p] = (uint8_t)c;
        }
    }
    free(logits);
    return ok;
}

bool segment_confusion_clear(segment_network *n)
{
    return device_fill(n->backend, n->confusion, 0,
                       SEGMENT_NUM_CLASSES * SEGMENT_NUM_CLASSES * sizeof(int32_t)) ||
           fail(n, device_error());
}

bool segment_confusion_read(segment_network *n, segment_score *score)
{
    int32_t counts[SEGMENT_NUM_CLASSES][SEGMENT_NUM_CLASSES];
    if (spops_context_wait_sync(n->ctx) != SPOPS_STATUS_OK)
        return fail(n, spops_last_error(n->ctx));
    if (!device_download(n->backend, counts, n->confusion, sizeof counts))
        return fail(n, device_error());
    for (int c = 0; c < SEGMENT_NUM_CLASSES; ++c)
        for (int k = 0; k < SEGMENT_NUM_CLASSES; ++k)
            score->confusion[c][k] = counts[c][k];
    segment_score_finish(score);
    return true;
}

void segment_score_finish(segment_score *score)
{
    int64_t right = 0, all = 0;
    int present = 0;
    score->mean_iou = 0.0;
    for (int c = 0; c < SEGMENT_NUM_CLASSES; ++c) {
        const int64_t hit = score->confusion[c][c];
        int64_t is = 0, said = 0;
        for (int k = 0; k < SEGMENT_NUM_CLASSES; ++k) {
            is += score->confusion[c][k];
            said += score->confusion[k][c];
        }
        right += hit;
        all += is;
        score->iou[c] = is > 0 ? (double)hit / (double)(is + said - hit) : NAN;
        if (is == 0) continue;
        score->mean_iou += score->iou[c];
        ++present;
    }
    if (present > 0) score->mean_iou /= present;
    score->accuracy = all > 0 ? (double)right / (double)all : 0.0;
}
