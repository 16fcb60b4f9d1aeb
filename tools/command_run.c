// SPDX-License-Identifier: Apache-2.0
// spops run: a network from an ONNX file on the points of a scan.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "support/cloud_file.h"
#include "support/device.h"
#include "support/npy.h"
#include "tools/model_run.h"

enum { PATH_BYTES = 4096, MOST_RUNS = 10000 };

typedef struct run_job {
    const char *model, *scan, *out;
    model_choices choices;
    int64_t runs;
    spops_backend_kind backend;
    bool as_json;
} run_job;

static run_job asked;
static const option_row option_rows[] = {
    MODEL_OPTIONS(asked.choices),
    {"--runs", "N", "frames that are timed; default: 20", .number = &asked.runs, .least = 1,
     .most = MOST_RUNS},
    {"--out", "DIR", "write every output as .npy, f32, all dimensions but the last one as rows",
     .text = &asked.out},
    OPTION_BACKEND(&asked.backend),
    OPTION_JSON(&asked.as_json),
    {0}};
const option_set run_options = {
    .program = "spops run",
    .summary = "run a network from an ONNX file on the points of a scan",
    .operand = "MODEL SCAN",
    .file = &asked.model,
    .second = &asked.scan,
    .about = "Read the network MODEL, a file of NVIDIA's libspconv, put the points of SCAN "
             "(" CLOUD_FILE_FORMATS ") into voxels, run it, and print what came out and how long "
             "it took.\n"
             "\n"
             "Features of a voxel are the means of its points': x y z, then the other columns of "
             "SCAN, as many as the network has; columns that SCAN does not have are 0. Where a "
             "network wants other features, call the library (spops/model.h).",
    .rows = option_rows};

static bool check(const session *s, spops_status status)
{
    if (status == SPOPS_STATUS_OK) return true;
    command_fail(run_options.program, "%s", spops_last_error(s->ctx));
    return false;
}

// An output as f32 [rows, cols], in the host's memory; NULL with a message.
static float *fetch_output(const session *s, const spops_model_array *a, int64_t *rows,
                           int64_t *cols)
{
    int32_t num = 0;
    *cols = a->num_dims > 0 ? a->shape[a->num_dims - 1] : 1;
    *rows = 1;
    for (int32_t i = 0; i + 1 < a->num_dims; ++i)
        *rows *= a->shape[i];
    if (a->set >= 0) {
        if (!device_download(s->backend, &num, a->num_rows, sizeof num)) return NULL;
        *rows = num < *rows ? num : *rows;
    }
    const size_t n = (size_t)(*rows * *cols), each = spops_dtype_bytes(a->dtype);
    void *raw = malloc(n * each + 1);
    double *wide = malloc(n * sizeof *wide + 1);
    float *out = malloc(n * sizeof *out + 1);
    const bool ok = raw != NULL && wide != NULL && out != NULL &&
                    (n == 0 || device_download(s->backend, raw, a->data, n * each));
    if (ok) elements_decode(a->dtype, raw, (int64_t)n, wide);
    for (size_t i = 0; ok && i < n; ++i)
        out[i] = (float)wide[i];
    free(raw);
    free(wide);
    if (ok) return out;
    free(out);
    command_fail(run_options.program, "an output cannot be fetched");
    return NULL;
}

typedef struct output_facts {
    double least, most, sum;
    int64_t nonzero;
} output_facts;

static bool save_output(const run_job *job, int32_t index, const float *values, int64_t rows,
                        int64_t cols)
{
    char path[PATH_BYTES], error[PATH_BYTES + 256];
    if (job->out == NULL) return true;
    if (!command_make_directory(job->out) ||
        snprintf(path, sizeof path, "%s/output_%d.npy", job->out, (int)index) >= (int)sizeof path) {
        command_fail(run_options.program, "--out: %s cannot be made", job->out);
        return false;
    }
    if (npy_write(path, NPY_F32, rows, cols, values, error, sizeof error)) return true;
    command_fail(run_options.program, "%s", error);
    return false;
}

// What JSON has no number for is null.
static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static bool show_output(const run_job *job, const session *s, const spops_model *model,
                        int32_t index, json_t *outputs)
{
    spops_model_array a = spops_model_array_default();
    output_facts f = {INFINITY, -INFINITY, 0, 0};
    int64_t rows, cols;
    char shape[128] = "";
    int at = 0;

    if (!check(s, spops_model_get_output(s->ctx, model, index, &a))) return false;
    float *values = fetch_output(s, &a, &rows, &cols);
    if (values == NULL) return false;
    const bool saved = save_output(job, index, values, rows, cols);
    for (int64_t i = 0; i < rows * cols; ++i) {
        f.least = fmin(f.least, (double)values[i]);
        f.most = fmax(f.most, (double)values[i]);
        f.sum += (double)values[i];
        f.nonzero += values[i] != 0;
    }
    free(values);
    if (!saved) return false;
    if (rows * cols == 0) f.least = f.most = 0;
    if (a.set >= 0) a.shape[0] = rows;
    for (int32_t i = 0; i < a.num_dims; ++i)
        at += snprintf(shape + at, sizeof shape - (size_t)at, i == 0 ? "%lld" : ", %lld",
                       (long long)a.shape[i]);
    const int64_t all = rows * cols > 0 ? rows * cols : 1;
    if (job->as_json)
        json_array_append_new(
            outputs, json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:I}", "name", a.name, "shape",
                               shape, "dtype", spops_dtype_name(a.dtype), "least", number(f.least),
                               "most", number(f.most), "mean", number(f.sum / (double)all),
                               "nonzero", (json_int_t)f.nonzero));
    else
        printf("output %s   %s [%s]: %g to %g, mean %g, %.2f %% are not 0\n", a.name,
               spops_dtype_name(a.dtype), shape, f.least, f.most, f.sum / (double)all,
               100.0 * (double)f.nonzero / (double)all);
    return true;
}

static bool show_rows(const session *s, const spops_model *model, json_t *sets)
{
    spops_model_info info = spops_model_info_default();
    if (!check(s, spops_model_get_info(s->ctx, model, &info))) return false;
    for (int32_t i = 0; i < info.num_sets; ++i) {
        spops_coords_info set = spops_coords_info_default();
        char text[COMMAND_NUMBER_BYTES];
        if (!check(s, spops_model_get_set_sync(s->ctx, model, i, &set))) return false;
        if (sets != NULL)
            json_array_append_new(sets, json_integer(set.num_rows));
        else
            printf(i == 0 ? "rows       %s" : ", %s", in_groups(set.num_rows, text));
    }
    if (sets == NULL) putchar('\n');
    return true;
}

static bool show(const run_job *job, const session *s, spops_model *model, const cloud_file *cloud,
                 const double *us, double device_us)
{
    const int runs = (int)job->runs;
    const double p50 = latency_share(us, runs, 0.5), p99 = latency_share(us, runs, 0.99);
    char device[256], a[COMMAND_NUMBER_BYTES], b[COMMAND_NUMBER_BYTES], c[COMMAND_NUMBER_BYTES];
    json_t *outputs = job->as_json ? json_array() : NULL,
           *sets = job->as_json ? json_array() : NULL;
    spops_model_info info = spops_model_info_default();
    bool ok = check(s, spops_model_get_info(s->ctx, model, &info));

    session_describe(s, device, sizeof device);
    if (!job->as_json)
        printf("model      %s, %s at most, on %s\nscan       %s, %s points, %lld columns\n",
               job->model, in_bytes((double)info.peak_bytes, a), device, job->scan,
               in_groups(cloud->num_points, b), (long long)cloud->cols);
    ok = ok && show_rows(s, model, sets);
    if (ok && !job->as_json)
        printf("time       p50 %s, p99 %s of %d frames%s; %s without the host\n", in_time(p50, a),
               in_time(p99, c), runs, info.has_graph ? ", one graph each" : "",
               in_time(device_us, b));
    for (int32_t i = 0; ok && i < info.num_outputs; ++i)
        ok = show_output(job, s, model, i, outputs);
    if (ok && job->as_json) {
        command_print_json(json_pack(
            "{s:s, s:s, s:s, s:s, s:I, s:O, s:f, s:f, s:f, s:I, s:O}", "model", job->model, "scan",
            job->scan, "backend", s->backend == SPOPS_BACKEND_CUDA ? "cuda" : "cpu", "device",
            s->device.name, "points", (json_int_t)cloud->num_points, "rows", sets, "p50_us", p50,
            "p99_us", p99, "device_us", device_us, "peak_bytes", (json_int_t)info.peak_bytes,
            "outputs", outputs));
    }
    json_decref(outputs);
    json_decref(sets);
    return ok;
}

static int run(const run_job *job)
{
    const char *command = run_options.program;
    char error[PATH_BYTES + 256];
    spops_model *model = NULL;
    cloud_file cloud;
    session s;
    bool ok = false;
    double device_us = 0;
    double *us = calloc((size_t)job->runs, sizeof *us);

    if (us == NULL) return command_fail(command, "no memory for times");
    if (!cloud_file_read(job->scan, &cloud, error, sizeof error)) {
        free(us);
        return command_fail(command, "%s", error);
    }
    if (!cloud_file_widen(&cloud))
        command_fail(command, "no memory for a scan");
    else if (session_open(command, job->backend, &s)) {
        ok = model_open(command, &s, job->model, &job->choices,
                        cloud.num_points > 0 ? cloud.num_points : 1, &model) &&
             model_put_points(command, &s, model, &job->choices, cloud.values, cloud.num_points,
                              cloud.cols) &&
             model_time(command, &s, model, (int)job->runs, us, &device_us) &&
             check(&s, spops_model_check_sync(s.ctx, model)) &&
             show(job, &s, model, &cloud, us, device_us);
        spops_model_destroy(model);
        session_close(&s);
    }
    cloud_file_free(&cloud);
    free(us);
    return ok ? COMMAND_OK : COMMAND_FAILED;
}

int command_run(int argc, char **argv)
{
    asked = (run_job){.choices = model_choices_default(), .runs = 20};
    const options_result result = options_read(&run_options, argc, argv);
    if (result != OPTIONS_READ) return command_status(result);
    if (asked.model == NULL || asked.scan == NULL)
        return command_status(options_error(&run_options, "MODEL and SCAN are needed"));
    return run(&asked);
}
