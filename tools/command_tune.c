// SPDX-License-Identifier: Apache-2.0
// spops tune: which dataflow and grouping is fastest for each layer of a MinkUNet on this device, kept
// as a file that the library reads.
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "spops/sparseconv.h"
#include "support/device.h"
#include "support/npy.h"
#include "support/unet.h"
#include "tools/command.h"
#include "tools/scan.h"

#define PATH_BYTES  4096
#define TEMPLATE    "%s.part" // written, then renamed: nobody reads half a file
#define NO_DTYPE    ((spops_dtype)-1)
#define MOST_LAYERS ((int64_t)UNET_MAX_LAYERS * 3)

typedef struct tune_job {
    const char *scan, *out, *show, *passes;
    spops_backend_kind backend;
    spops_dtype dtype;
    double width;
    int64_t cell_mm, voxels, samples;
    bool tf32, quick, as_json;
} tune_job;

static tune_job asked;
static const option_row option_rows[] = {
    {"--out", "FILE", "where to write; default: spops-tuning.txt", .text = &asked.out},
    {"--show", "FILE", "read a tuning instead of making one, and print it", .text = &asked.show},
    OPTION_BACKEND(&asked.backend),
    {"--dtype", "NAME", "of features and weights: f32, f16 or bf16; default: f16, on a CPU f32",
     "f32,f16,bf16", .dtype = &asked.dtype},
    {"--tf32", NULL, "products of f32 may be rounded to tf32", .on = &asked.tf32},
    {"--passes", "LIST", "forward, grad_x, grad_w; default: forward", "forward,grad_x,grad_w",
     .text = &asked.passes},
    {"--width", "X", "of the network's channels, 0.25 to 4; default: 1", .reals = &asked.width,
     .least = 1, .most = 1},
    {"--cell-mm", "N", "side of a voxel, 10 to 1000; default: 100", .number = &asked.cell_mm,
     .least = 10, .most = 1000},
    {"--voxels", "N", "take so many at most; default: all", .number = &asked.voxels, .least = 1,
     .most = INT32_MAX - 1},
    {"--samples", "N", "timed runs of each configuration, 1 to 1000; default: 10",
     .number = &asked.samples, .least = 1, .most = 1000},
    {"--quick", NULL, "fewer configurations: one epsilon and one S", .on = &asked.quick},
    OPTION_JSON(&asked.as_json),
    {0}};
const option_set tune_options = {
    .program = "spops tune",
    .summary = "measure the dataflows of sparse convolution on this device, keep the fastest",
    .operand = "[SCAN]",
    .file = &asked.scan,
    .about =
        "Run every layer of a MinkUNet on a LiDAR scan with every dataflow, and "
        "gather-matmul-scatter with every grouping, and write the fastest of each as rows that "
        "spops_sparseconv_load_choices reads.",
    .more = "SCAN is a .npy file of f32 [points, 4]: x, y, z in m, intensity; left out: a "
            "simulated scan. The search over epsilon and S is Algorithm 5 of the paper on "
            "TorchSparse.",
    .rows = option_rows};

// ---- Configurations -----------------------------------------------------------------------------

static const double epsilons[] = {0.5, 0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0};
static const int64_t batch_rows[] = {65536, 4096, 16384, 262144};
enum {
    NUM_EPSILONS = sizeof epsilons / sizeof *epsilons,
    NUM_LIMITS = sizeof batch_rows / sizeof *batch_rows,
    NUM_FIXED = 5, // dataflows without parameters, groupings without
    MOST_CONFIGURATIONS = NUM_FIXED + NUM_EPSILONS * NUM_LIMITS
};

static int num_configurations(const tune_job *job)
{
    return job->quick ? NUM_FIXED + 1 : MOST_CONFIGURATIONS;
}

static spops_sparseconv_options configuration(int i)
{
    spops_sparseconv_options o = spops_sparseconv_options_default();
    o.dataflow = SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER;
    if (i < 2) {
        o.dataflow = i == 0 ? SPOPS_DATAFLOW_FETCH_ON_DEMAND : SPOPS_DATAFLOW_IMPLICIT_GEMM;
    } else if (i < NUM_FIXED) {
        o.grouping = (spops_grouping)(SPOPS_GROUPING_SEPARATE + i - 2);
    } else {
        o.grouping = SPOPS_GROUPING_ADAPTIVE;
        o.epsilon = epsilons[(i - NUM_FIXED) / NUM_LIMITS];
        o.batch_rows = batch_rows[(i - NUM_FIXED) % NUM_LIMITS];
    }
    return o;
}

// ---- A layer ------------------------------------------------------------------------------------

static const char *const pass_names[] = {"forward", "grad_x", "grad_w"};

typedef struct tuned_layer {
    spops_conv_choice choice;
    double us;
} tuned_layer;

// What is timed: a pass of a layer with a plan.
typedef struct layer_run {
    spops_context *ctx;
    const spops_sparseconv *plan;
    spops_conv_pass pass;
    spops_conv_layer layer;
    spops_matrix x, w, sum, grad_x, grad_w; // sum: the output, or its gradient
    spops_status status;                    // of the first call that failed
} layer_run;

static void enqueue(void *user)
{
    layer_run *r = user;
    const spops_status status =
        r->pass == SPOPS_PASS_FORWARD
            ? spops_sparseconv_execute(r->ctx, r->plan, r->x, r->w, &r->layer, r->sum)
            : spops_sparseconv_execute_backward(r->ctx, r->plan, r->sum, r->x, r->w, &r->layer,
                                                r->pass == SPOPS_PASS_GRAD_X ? &r->grad_x : NULL,
                                                r->pass == SPOPS_PASS_GRAD_W ? &r->grad_w : NULL,
                                                NULL);
    if (r->status == SPOPS_STATUS_OK) r->status = status;
}

// A matrix of small numbers where the session runs.
static bool make_matrix(const session *s, int64_t rows, int64_t cols, spops_dtype dtype,
                        spops_matrix *m)
{
    const int64_t n = rows * cols;
    const size_t bytes = (size_t)n * spops_dtype_bytes(dtype);
    float *values = malloc((size_t)n * sizeof *values + 1);
    void *encoded = malloc(bytes + 1);
    bool good = values != NULL && encoded != NULL;
    uint32_t state = 1;

    *m = spops_matrix_dense(NULL, rows, cols, dtype);
    for (int64_t i = 0; i < n && good; ++i) {
        state = state * 1664525u + 1013904223u;
        values[i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
    }
    if (good) elements_encode(dtype, values, n, encoded);
    good = good && device_alloc(s->backend, bytes, &m->data) &&
           device_upload(s->backend, m->data, encoded, bytes);
    free(values), free(encoded);
    return good;
}

static bool tune_failed(const session *s, const char *what, bool by_library)
{
    command_fail("spops tune", "%s: %s", what,
                 by_library ? spops_last_error(s->ctx) : device_error());
    return false;
}

// The fastest of the plans for a pass.
static bool tune_pass(const session *s, const tune_job *job, const unet_layer *layer,
                      spops_sparseconv *const *plans, layer_run *r, tuned_layer *best)
{
    best->us = INFINITY;
    for (int i = 0; i < num_configurations(job); ++i) {
        spops_conv_choice choice;
        device_timing timing;
        // Gradients of weights have no grouping.
        if (plans[i] == NULL || (r->pass == SPOPS_PASS_GRAD_W && i > 2)) continue;
        r->plan = plans[i];
        if (spops_sparseconv_get_choice(s->ctx, plans[i], r->pass, job->dtype, layer->in_channels,
                                        layer->out_channels, &r->layer, &choice) != SPOPS_STATUS_OK)
            return tune_failed(s, layer->name, true);
        if (choice.dataflow == SPOPS_DATAFLOW_AUTO) continue; // it does not serve this pass
        if (!device_time(s->backend, s->stream, enqueue, r, false, (int)job->samples, &timing))
            return tune_failed(s, layer->name, false);
        if (r->status != SPOPS_STATUS_OK) return tune_failed(s, layer->name, true);
        if (timing.median_us >= best->us) continue;
        best->us = timing.median_us;
        best->choice = choice;
    }
    return true;
}

static bool tune_layer(const session *s, const tune_job *job, const unet_layer *layer,
                       spops_sparseconv *const *plans, tuned_layer *rows, int64_t *num_rows)
{
    const int64_t w_rows = layer->num_taps * layer->in_channels;
    layer_run r = {.ctx = s->ctx, .layer = spops_conv_layer_default()};
    bool good;

    r.layer.math = job->tf32 ? SPOPS_MATH_TF32 : SPOPS_MATH_EXACT;
    good = make_matrix(s, layer->num_in, layer->in_channels, job->dtype, &r.x) &&
           make_matrix(s, w_rows, layer->out_channels, job->dtype, &r.w) &&
           make_matrix(s, layer->num_out, layer->out_channels, job->dtype, &r.sum) &&
           make_matrix(s, layer->num_in, layer->in_channels, job->dtype, &r.grad_x) &&
           make_matrix(s, w_rows, layer->out_channels, SPOPS_DTYPE_F32, &r.grad_w);
    if (!good) tune_failed(s, "memory", false);
    for (int pass = SPOPS_PASS_FORWARD; pass <= SPOPS_PASS_GRAD_W && good; ++pass) {
        if (!options_wants(job->passes, pass_names[pass])) continue;
        r.pass = (spops_conv_pass)pass;
        good = tune_pass(s, job, layer, plans, &r, &rows[*num_rows]);
        if (good) ++*num_rows;
    }
    device_free(s->backend, r.x.data), device_free(s->backend, r.w.data);
    device_free(s->backend, r.sum.data), device_free(s->backend, r.grad_x.data);
    device_free(s->backend, r.grad_w.data);
    return good;
}

// ---- The network --------------------------------------------------------------------------------

// Plans of a map for layers up to these channels; what cannot be had here stays NULL.
static bool make_plans(const session *s, const tune_job *job, const spops_kernel_map *map,
                       int64_t in_channels, int64_t out_channels, spops_sparseconv **plans)
{
    for (int i = 0; i < num_configurations(job); ++i) {
        spops_sparseconv_options o = configuration(i);
        o.backward = 1;
        o.max_in_channels = in_channels;
        o.max_out_channels = out_channels;
        const spops_status status = spops_sparseconv_create(s->ctx, map, &o, &plans[i]);
        if (status != SPOPS_STATUS_OK && status != SPOPS_STATUS_NOT_SUPPORTED)
            return tune_failed(s, "plan", true);
    }
    return true;
}

static bool tune_network(const session *s, const tune_job *job, const unet *net, tuned_layer *rows,
                         int64_t *num_rows)
{
    bool good = true;
    for (int i = 0, next; i < net->num_layers && good; i = next) {
        spops_sparseconv *plans[MOST_CONFIGURATIONS] = {NULL};
        int64_t in = 0, out = 0;
        for (next = i; next < net->num_layers && net->layers[next].map == net->layers[i].map;
             ++next) {
            if (net->layers[next].in_channels > in) in = net->layers[next].in_channels;
            if (net->layers[next].out_channels > out) out = net->layers[next].out_channels;
        }
        progress_show(net->layers[i].name, i, net->num_layers);
        good = make_plans(s, job, net->layers[i].map, in, out, plans);
        for (int l = i; l < next && good; ++l) {
            progress_show(net->layers[l].name, l, net->num_layers);
            good = tune_layer(s, job, &net->layers[l], plans, rows, num_rows);
        }
        for (int c = 0; c < MOST_CONFIGURATIONS; ++c)
            spops_sparseconv_destroy(plans[c]);
    }
    progress_clear();
    return good;
}

// The scan's voxels, here; NULL with a message.
static int32_t *load_voxels(const tune_job *job, int64_t *num_rows)
{
    char error[PATH_BYTES + 256] = "no memory for a scan";
    const double cell_m = 1e-3 * (double)job->cell_mm;
    int32_t *rows = NULL;
    void *points = NULL;
    int64_t n = 0;

    if (job->scan != NULL) {
        if (npy_read(job->scan, NPY_F32, SCAN_COLS, &n, &points, error, sizeof error))
            rows = unet_voxels(points, n, SCAN_COLS, cell_m, num_rows);
        free(points);
    } else {
        const scan_sensor sensor = scan_sensor_default();
        scene *street = scene_create_varied(1);
        scan taken = {0};
        if (street != NULL && scan_take(street, &sensor, 1, &taken)) {
            rows = unet_voxels(taken.points, taken.num_points, SCAN_COLS, cell_m, num_rows);
            scan_free(&taken);
        }
        scene_destroy(street);
    }
    if (rows == NULL) command_fail("spops tune", "%s", error);
    if (job->voxels > 0 && *num_rows > job->voxels) *num_rows = job->voxels;
    return rows;
}

static bool make_network(const session *s, const tune_job *job, spops_coords **coords, unet *net)
{
    int64_t n = 0;
    int32_t *rows = load_voxels(job, &n);
    const size_t bytes = (size_t)n * 4 * sizeof *rows;
    void *device = NULL;
    bool good = rows != NULL;

    if (good && (!device_alloc(s->backend, bytes, &device) ||
                 !device_upload(s->backend, device, rows, bytes)))
        good = tune_failed(s, "memory", false);
    if (good && (spops_coords_create(s->ctx, 3, n, device, NULL, coords) != SPOPS_STATUS_OK ||
                 !unet_create(s->ctx, *coords, job->width, net)))
        good = tune_failed(s, "levels", true);
    device_free(s->backend, device);
    free(rows);
    return good;
}

// ---- Files --------------------------------------------------------------------------------------

static bool write_file(const session *s, const char *path, const spops_conv_choice *rows,
                       int64_t num_rows)
{
    char part[PATH_BYTES];
    size_t bytes = 0;
    char *text = NULL;
    bool good = false;

    if (snprintf(part, sizeof part, TEMPLATE, path) >= (int)sizeof part)
        return command_fail("spops tune", "--out is too long"), false;
    if (spops_sparseconv_save_choices(s->ctx, rows, num_rows, NULL, 0, &bytes) == SPOPS_STATUS_OK &&
        (text = malloc(bytes)) != NULL)
        good = spops_sparseconv_save_choices(s->ctx, rows, num_rows, text, bytes, &bytes) ==
               SPOPS_STATUS_OK;
    if (!good) {
        free(text);
        return tune_failed(s, path, true);
    }
    FILE *f = fopen(part, "wb");
    good = f != NULL && fwrite(text, 1, bytes, f) == bytes;
    if (f != NULL && fclose(f) != 0) good = false;
    good = good && rename(part, path) == 0;
    free(text);
    if (!good) {
        command_fail("spops tune", "%s: %s", path, strerror(errno));
        if (f != NULL) remove(part);
    }
    return good;
}

// Rows of a file, to be freed; NULL with a message.
static spops_conv_choice *read_file(const session *s, const char *path, int64_t *num_rows)
{
    enum { MOST_BYTES = 1 << 24 };
    spops_conv_choice *rows = NULL;
    char *text = malloc(MOST_BYTES);
    FILE *f = fopen(path, "rb");
    size_t bytes = 0;

    if (f == NULL || text == NULL) {
        command_fail("spops tune", "%s: %s", path, strerror(errno));
    } else {
        bytes = fread(text, 1, MOST_BYTES, f);
        if (spops_sparseconv_load_choices(s->ctx, text, bytes, NULL, 0, num_rows) ==
                SPOPS_STATUS_OK &&
            (rows = malloc(((size_t)*num_rows + 1) * sizeof *rows)) != NULL)
            (void)spops_sparseconv_load_choices(s->ctx, text, bytes, rows, *num_rows, num_rows);
        else
            command_fail("spops tune", "%s: %s", path, spops_last_error(s->ctx));
    }
    if (f != NULL) fclose(f);
    free(text);
    return rows;
}

// ---- Output -------------------------------------------------------------------------------------

// us: NAN where it is not known. rows: NULL, or where the row goes instead of being printed.
static void print_row(const spops_conv_choice *c, double us, json_t *rows)
{
    char time[COMMAND_NUMBER_BYTES] = "", pairs[COMMAND_NUMBER_BYTES], how[64] = "";
    if (c->grouping == SPOPS_GROUPING_ADAPTIVE)
        snprintf(how, sizeof how, ", adaptive, epsilon %g, S %lld", c->epsilon,
                 (long long)c->batch_rows);
    else if (c->grouping != SPOPS_GROUPING_AUTO)
        snprintf(how, sizeof how, ", %s", spops_grouping_name(c->grouping));
    if (rows == NULL) {
        printf("%-7s %3d taps, %3lld to %3lld, %9s pairs  %9s  %s%s\n", pass_names[c->pass],
               (int)c->num_taps, (long long)c->in_channels, (long long)c->out_channels,
               in_groups(c->num_pairs, pairs), isnan(us) ? "" : in_time(us, time),
               spops_dataflow_name(c->dataflow), how);
        return;
    }
    json_t *line =
        json_pack("{s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:s, s:s, s:f, s:I}", "pass",
                  pass_names[c->pass], "dtype", spops_dtype_name(c->dtype), "math",
                  c->math == SPOPS_MATH_TF32 ? "tf32" : "exact", "taps", (int)c->num_taps, "in",
                  (json_int_t)c->in_channels, "out", (json_int_t)c->out_channels, "rows",
                  (json_int_t)c->num_out, "pairs", (json_int_t)c->num_pairs, "dataflow",
                  spops_dataflow_name(c->dataflow), "grouping", spops_grouping_name(c->grouping),
                  "epsilon", c->epsilon, "batch_rows", (json_int_t)c->batch_rows);
    if (!isnan(us)) json_object_set_new(line, "us", json_real(us));
    json_array_append_new(rows, line);
}

// times: NULL where they are not known; took_s: as json_real(), or NULL.
static void print_rows(const tune_job *job, const char *file, const spops_conv_choice *rows,
                       const tuned_layer *times, int64_t n, json_t *took_s)
{
    json_t *all = job->as_json ? json_array() : NULL;
    for (int64_t i = 0; i < n; ++i)
        print_row(&rows[i], times != NULL ? times[i].us : NAN, all);
    if (job->as_json)
        command_print_json(json_pack("{s:s, s:o, s:o*}", "file", file, "rows", all, "s", took_s));
}

static int show(const session *s, const tune_job *job)
{
    int64_t n = 0;
    spops_conv_choice *rows = read_file(s, job->show, &n);
    if (rows == NULL) return COMMAND_FAILED;
    print_rows(job, job->show, rows, NULL, n, NULL);
    free(rows);
    return COMMAND_OK;
}

static int tune(const session *s, const tune_job *job)
{
    static tuned_layer tuned[MOST_LAYERS];
    static spops_conv_choice rows[MOST_LAYERS];
    spops_coords *coords = NULL;
    unet net = {0};
    int64_t n = 0;
    char took[COMMAND_NUMBER_BYTES];
    const double start = clock_s();
    bool good = make_network(s, job, &coords, &net) && tune_network(s, job, &net, tuned, &n);

    for (int64_t i = 0; i < n; ++i)
        rows[i] = tuned[i].choice;
    good = good && write_file(s, job->out, rows, n);
    const double took_s = clock_s() - start;
    if (good) print_rows(job, job->out, rows, tuned, n, job->as_json ? json_real(took_s) : NULL);
    if (good && !job->as_json)
        printf("%lld rows in %s, %s\n", (long long)n, job->out, in_time(1e6 * took_s, took));
    unet_destroy(&net);
    spops_coords_destroy(coords);
    return good ? COMMAND_OK : COMMAND_FAILED;
}

int command_tune(int argc, char **argv)
{
    session s;
    int status;

    asked = (tune_job){.out = "spops-tuning.txt",
                       .passes = "forward",
                       .dtype = NO_DTYPE,
                       .width = 1.0,
                       .cell_mm = 100,
                       .samples = 10};
    const options_result result = options_read(&tune_options, argc, argv);
    if (result != OPTIONS_READ) return command_status(result);
    if (!(asked.width >= 0.25 && asked.width <= 4.0))
        return command_status(
            options_error(&tune_options, "--width is %g, expected 0.25 to 4", asked.width));
    if (asked.out[0] == '\0') return command_status(options_error(&tune_options, "--out is empty"));
    if (!session_open("spops tune", asked.backend, &s)) return COMMAND_FAILED;
    if (s.backend == SPOPS_BACKEND_CPU) asked.quick = true; // there the search takes very long
    if (asked.dtype == NO_DTYPE)
        asked.dtype = s.backend == SPOPS_BACKEND_CPU ? SPOPS_DTYPE_F32 : SPOPS_DTYPE_F16;
    status = asked.show != NULL ? show(&s, &asked) : tune(&s, &asked);
    session_close(&s);
    return status;
}
