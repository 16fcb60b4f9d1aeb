// SPDX-License-Identifier: Apache-2.0
#include "steps.h"

#include <math.h>

#include "support/elements.h"
#include "support/parallel.h"

static float read_element(spops_dtype dtype, const void *data, int64_t i)
{
    return dtype == SPOPS_DTYPE_F32 ? ((const float *)data)[i]
                                    : elements_float_of_bf16(((const uint16_t *)data)[i]);
}

static void write_element(spops_dtype dtype, void *data, int64_t i, float value)
{
    if (dtype == SPOPS_DTYPE_F32)
        ((float *)data)[i] = value;
    else
        ((uint16_t *)data)[i] = elements_bf16_of_float(value);
}

/* Loss of a point; its class in *what, what is predicted in *best. */
static float loss_of_point(const steps_loss *job, int64_t p, int *what, int *best)
{
    float z[SEGMENT_NUM_CLASSES], e[SEGMENT_NUM_CLASSES], most, sum = 0.0f, scale = 0.0f;
    const int64_t at = p * SEGMENT_LOGITS;
    *what = p < job->step->num_points ? job->classes[p] : SEGMENT_IGNORED;
    const bool counts = *what < SEGMENT_NUM_CLASSES;
    *best = 0;
    for (int c = 0; c < SEGMENT_NUM_CLASSES; ++c) {
        z[c] = counts ? read_element(job->dtype, job->logits, at + c) : 0.0f;
        if (z[c] > z[*best]) *best = c;
    }
    most = z[*best];
    for (int c = 0; c < SEGMENT_NUM_CLASSES; ++c)
        sum += e[c] = expf(z[c] - most);
    if (counts) scale = job->class_weights[*what] * job->step->inverse_weight;
    for (int c = 0; job->gradient != NULL && c < SEGMENT_LOGITS; ++c) {
        const float g =
            c < SEGMENT_NUM_CLASSES ? scale * (e[c] / sum - (c == *what ? 1.0f : 0.0f)) : 0.0f;
        write_element(job->dtype, job->gradient, at + c, g);
    }
    return counts ? scale * (logf(sum) + most - z[*what]) : 0.0f;
}

static void loss_of_blocks(const void *work, int64_t begin, int64_t end)
{
    const steps_loss *job = (const steps_loss *)work;
    for (int64_t b = begin; b < end; ++b) {
        float sum = 0.0f;
        for (int64_t p = b * STEPS_BLOCK; p < (b + 1) * STEPS_BLOCK && p < job->max_points; ++p) {
            int what, best;
            sum += loss_of_point(job, p, &what, &best);
            if (what >= SEGMENT_NUM_CLASSES) continue;
            /* Of integers, so that the order does not matter. */
            __atomic_fetch_add(&job->confusion[what * SEGMENT_NUM_CLASSES + best], 1,
                               __ATOMIC_RELAXED);
        }
        job->loss[1 + b] = sum;
    }
}

void steps_cpu_loss(const steps_loss *job)
{
    const int64_t num_blocks = (job->max_points + STEPS_BLOCK - 1) / STEPS_BLOCK;
    parallel_for(num_blocks, 0, loss_of_blocks, job);
    float sum = 0.0f;
    for (int64_t b = 0; b < num_blocks; ++b)
        sum += job->loss[1 + b];
    job->loss[0] = sum;
}

static void sum_range(const void *work, int64_t begin, int64_t end)
{
    const steps_sum *job = (const steps_sum *)work;
    for (int64_t i = begin; i < end; ++i)
        write_element(job->dtype, job->a, i,
                      read_element(job->dtype, job->a, i) + read_element(job->dtype, job->b, i));
}

void steps_cpu_sum(const steps_sum *job)
{
    parallel_for((int64_t)*job->num_rows * job->cols, 0, sum_range, job);
}

static void adamw_range(const void *work, int64_t begin, int64_t end)
{
    const steps_adamw *job = (const steps_adamw *)work;
    const segment_step *s = job->step;
    for (int64_t i = begin; i < end; ++i) {
        if (!job->trained[i]) continue;
        const float g = job->gradients[i];
        const float m = STEPS_BETA1 * job->moment1[i] + (1.0f - STEPS_BETA1) * g;
        const float v = STEPS_BETA2 * job->moment2[i] + (1.0f - STEPS_BETA2) * g * g;
        const float decay = i < job->num_decayed ? s->decay * job->parameters[i] : 0.0f;
        job->moment1[i] = m;
        job->moment2[i] = v;
        job->parameters[i] -=
            s->rate * (m * s->correction1) / (sqrtf(v * s->correction2) + STEPS_EPSILON) + decay;
        if (job->narrow != NULL) job->narrow[i] = elements_bf16_of_float(job->parameters[i]);
    }
}

void steps_cpu_adamw(const steps_adamw *job)
{
    parallel_for(job->num, 0, adamw_range, job);
}

void steps_cpu_narrow(int64_t num, const float *from, uint16_t *to)
{
    for (int64_t i = 0; i < num; ++i)
        to[i] = elements_bf16_of_float(from[i]);
}

#ifndef SEGMENT_WITH_CUDA
static const char no_cuda[] = "this build has no CUDA";

const char *steps_cuda_loss(const steps_loss *job, void *stream)
{
    (void)job, (void)stream;
    return no_cuda;
}

const char *steps_cuda_sum(const steps_sum *job, void *stream)
{
    (void)job, (void)stream;
    return no_cuda;
}

const char *steps_cuda_adamw(const steps_adamw *job, void *stream)
{
    (void)job, (void)stream;
    return no_cuda;
}

const char *steps_cuda_narrow(int64_t num, const float *from, uint16_t *to, void *stream)
{
    (void)num, (void)from, (void)to, (void)stream;
    return no_cuda;
}
#endif
