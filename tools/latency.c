// SPDX-License-Identifier: Apache-2.0
#include "tools/latency.h"

#include <math.h>
#include <string.h>

#include "support/device.h"

enum { MOST_RUNS = 1000, SAMPLES = 21 };

bool latency_measure(const char *command, const session *s, spops_status (*run)(void *user),
                     void *user, int runs, double *us)
{
    device_timing timing;
    for (int i = -2; i < runs; ++i) {
        const double start = clock_s();
        if (run(user) != SPOPS_STATUS_OK || spops_context_wait_sync(s->ctx) != SPOPS_STATUS_OK) {
            command_fail(command, "%s", spops_last_error(s->ctx));
            return false;
        }
        if (i >= 0) us[i] = 1e6 * (clock_s() - start);
    }
    device_summarize(us, runs, &timing); // sorts them
    return true;
}

typedef struct enqueued {
    spops_status (*run)(void *user);
    void *user;
    spops_status status;
} enqueued;

static void enqueue(void *user)
{
    enqueued *e = user;
    const spops_status status = e->run(e->user);
    if (status != SPOPS_STATUS_OK) e->status = status;
}

bool latency_on_device(const char *command, const session *s, spops_status (*run)(void *user),
                       void *user, double *us)
{
    enqueued e = {run, user, SPOPS_STATUS_OK};
    device_timing timing;
    if (!device_time(s->backend, s->stream, enqueue, &e, false, SAMPLES, &timing)) {
        command_fail(command, "%s", device_error());
        return false;
    }
    *us = timing.median_us;
    if (e.status == SPOPS_STATUS_OK) return true;
    command_fail(command, "%s", spops_last_error(s->ctx));
    return false;
}

double latency_share(const double *us, int runs, double p)
{
    const int i = (int)ceil(p * (double)runs) - 1;
    return us[i < 0 ? 0 : i >= runs ? runs - 1 : i];
}

typedef struct pooling {
    const session *s;
    const spops_bev_plan *plan;
    spops_bevpool_args args;
} pooling;

static spops_status pool(void *user)
{
    const pooling *p = user;
    return spops_bevpool_execute(p->s->ctx, p->plan, &p->args);
}

// A matrix of zeros where the backend runs.
static bool make_matrix(const session *s, int64_t rows, int64_t cols, spops_dtype dtype,
                        spops_matrix *m, size_t *all)
{
    const size_t bytes = (size_t)(rows * cols) * spops_dtype_bytes(dtype);
    void *data = NULL;
    if (!device_alloc(s->backend, bytes, &data) ||
        (bytes > 0 && !device_fill(s->backend, data, 0, bytes)))
        return false;
    *m = spops_matrix_dense(data, rows, cols, dtype);
    *all += bytes;
    return true;
}

bool latency_of_pooling(const char *command, const session *s, const spops_bev_plan *plan,
                        spops_dtype dtype, int64_t cols, pool_latency *out)
{
    pooling p = {s, plan, spops_bevpool_args_default()};
    spops_bev_plan_info info;
    double us[MOST_RUNS];
    bool ok = false;

    memset(out, 0, sizeof *out);
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    if (spops_bev_plan_get_info_sync(s->ctx, plan, &info) != SPOPS_STATUS_OK) {
        command_fail(command, "%s", spops_last_error(s->ctx));
        return false;
    }
    out->plan_bytes = spops_plan_bytes((const spops_plan *)plan);
    out->scratch_bytes =
        spops_context_scratch_memory(spops_plan_scratch_bytes((const spops_plan *)plan));
    if (!make_matrix(s, info.num_features, cols, dtype, &p.args.feat, &out->array_bytes) ||
        !make_matrix(s, info.num_depths, 1, dtype, &p.args.depth, &out->array_bytes) ||
        !make_matrix(s, info.num_cells, cols, dtype, &p.args.out, &out->array_bytes)) {
        command_fail(command, "%s", device_error());
        goto done;
    }
    out->runs = s->backend == SPOPS_BACKEND_CPU ? 20 : MOST_RUNS;
    ok = latency_measure(command, s, pool, &p, out->runs, us) &&
         latency_on_device(command, s, pool, &p, &out->device_us);
    if (ok) {
        out->p50_us = latency_share(us, out->runs, 0.5);
        out->p99_us = latency_share(us, out->runs, 0.99);
    }
done:
    device_free(s->backend, p.args.feat.data);
    device_free(s->backend, p.args.depth.data);
    device_free(s->backend, p.args.out.data);
    return ok;
}
