// SPDX-License-Identifier: Apache-2.0
/* Options, times and checks. */
#include "networks/tape_program.h"

#include "networks/options.h"
#include "networks/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parameters as a tape has them, in memory to be freed: of a file, or drawn where path is NULL. */
static float *make_parameters(const tape *t, const char *kind, const char *path)
{
    float *parameters = (float *)malloc((size_t)t->num_elements * sizeof *parameters);
    if (parameters != NULL &&
        (path != NULL ? tape_load(t, kind, parameters, path) : tape_draw(t, parameters))) {
        free(parameters);
        parameters = NULL;
    }
    return parameters;
}

/* ---- Times ------------------------------------------------------------------------------------- */

typedef struct steps_call {
    tape *t;
    tape_part part;
    int backward;
} steps_call;

static spops_status run_steps(void *user)
{
    const steps_call *call = (const steps_call *)user;
    return call->backward ? tape_backward(call->t, call->part) : tape_forward(call->t, call->part);
}

static spops_status run_update(void *user)
{
    return tape_update((tape *)user, 0);
}

static void print_head(void)
{
    printf("  %-9s %-12s %9s %9s %7s\n", "pass", "part", "us", "floor us", "kernels");
}

/* r: where it is reported; NULL for what is a part of other lines. */
static int print_part(const report *r, const char *pass, const char *part, double us,
                      double floor_us, int kernels)
{
    const int backward = strcmp(pass, "backward") == 0;
    char name[64];
    printf("  %-9s %-12s %9.1f %9.1f %7d\n", pass, part, us, floor_us, kernels);
    snprintf(name, sizeof name, "%s%.40s", backward ? "backward " : "", part);
    return r != NULL && report_part(r, name, us, floor_us, kernels);
}

/* The sum over the steps of a part of what each must take. */
static double floor_of(const steps_call *call, ceilings c, const tape_sizes *sizes)
{
    double sum_us = 0;
    for (int i = 0; i < call->t->num_steps; ++i) {
        const tape_step *s = &call->t->steps[i];
        if ((call->part.kind >= 0 && call->part.kind != (int)s->kind) ||
            (call->part.stage >= 0 && call->part.stage != s->stage))
            continue;
        sum_us += floor_us(c, call->backward ? tape_backward_work(call->t, s, sizes)
                                             : tape_forward_work(call->t, s, sizes));
    }
    return sum_us;
}

static int measure_steps(steps_call call, const report *r, ceilings c, const tape_sizes *sizes,
                         const char *name, int launches)
{
    const double least_us = floor_of(&call, c, sizes);
    double time_us = 0;
    int kernels = 0;
    if (!(least_us > 0)) return 0; /* there are no such steps */
    return graph_time_part(call.t->d, run_steps, &call, 1, launches, &time_us, &kernels) ||
           print_part(r, call.backward ? "backward" : "forward", name, time_us, least_us, kernels);
}

/* Parameters, gradients, parameters; then the narrow ones. */
static double update_floor_us(const tape *t, ceilings c)
{
    const work w = {0, (double)t->num_elements * (t->dtype == SPOPS_DTYPE_F32 ? 12 : 18), 0};
    return floor_us(c, w);
}

/* The steps of each kind, and of each stage that has a name; a graph each. */
static int measure_tape(tape *t, const report *r, ceilings c, const tape_sizes *sizes,
                        const char *const *stages, int num_stages, int launches)
{
    double time_us = 0;
    int kernels = 0;

    for (int backward = 0; backward <= t->training; ++backward) {
        const steps_call whole = {t, {-1, -1}, backward};
        for (int kind = 0; kind < TAPE_KINDS; ++kind) {
            const steps_call call = {t, {kind, -1}, backward};
            if (measure_steps(call, r, c, sizes, tape_kind_names[kind], launches)) return 1;
        }
        for (int stage = 0; stage < num_stages; ++stage) {
            const steps_call call = {t, {-1, stage}, backward};
            if (measure_steps(call, NULL, c, sizes, stages[stage], launches)) return 1;
        }
        if (measure_steps(whole, NULL, c, sizes, "all layers", launches)) return 1;
    }
    if (!t->training) return 0;
    return graph_time_part(t->d, run_update, t, 1, launches, &time_us, &kernels) ||
           print_part(r, "update", "parameters", time_us, update_floor_us(t, c), kernels);
}

/* ---- Is it right? ------------------------------------------------------------------------------ */

static int say(const char *name, const char *what, const char *than, double difference, double most)
{
    const int right = difference <= most;
    printf("%s: %s agrees with %s to %.1e: %s\n", name, what, than, difference,
           right ? "right" : "WRONG");
    return !right;
}

/* What rounding explains of an output, or of gradients. */
static double tolerance(spops_dtype dtype, int gradients)
{
    if (dtype == SPOPS_DTYPE_F32) return gradients ? 1e-3 : 1e-4;
    return gradients ? 5e-2 : 2e-2;
}

/* What a tape computed last: its output, what that should be, its gradients. The last two are there for
   training. */
typedef struct computed {
    float *output, *target, *gradients;
} computed;

static void computed_free(computed *c)
{
    free(c->output);
    free(c->target);
    free(c->gradients);
}

static int computed_read(const tape *t, int64_t rows, computed *c)
{
    const spops_matrix output = tape_value_matrix(t, t->output);
    spops_matrix target = output;

    memset(c, 0, sizeof *c);
    c->output = reference_download(t, output, rows);
    if (!t->training) return c->output == NULL;
    target.data = t->target;
    c->target = reference_download(t, target, rows);
    c->gradients =
        reference_download(t, spops_matrix_dense(t->grads, 1, t->num_elements, SPOPS_DTYPE_F32), 1);
    return c->output == NULL || c->target == NULL || c->gradients == NULL;
}

static double *widened(const float *x, int64_t n)
{
    double *wide = (double *)malloc((size_t)n * sizeof *wide + 1);
    for (int64_t i = 0; i < n && wide != NULL && x != NULL; ++i)
        wide[i] = (double)x[i];
    return wide;
}

int tape_check(const tape_engine *e, const float *parameters, const reference_relations *r,
               double *const *inputs, const char *name)
{
    static tape form; /* large */
    const tape *t = &e->tape;
    const int rows = r->rows[t->values[t->output].level], n = rows * t->values[t->output].cols;
    double *output = (double *)malloc((size_t)n * sizeof *output + 1), *target = NULL;
    double *gradients = NULL;
    const char *worst = "";
    char what[64];
    computed found;
    int failed;

    tape_start(&form, t->d, t->dtype, 1);
    e->network->build(&form, e->is_small);
    gradients = (double *)calloc((size_t)form.num_elements, sizeof *gradients);
    failed = computed_read(t, rows, &found) || output == NULL || gradients == NULL;

    if (t->training && !failed) failed = (target = widened(found.target, n)) == NULL;
    failed = failed ||
             reference_run(&form, parameters, r, inputs, !t->training, output, target, gradients);
    if (!failed)
        failed = say(name, t->training ? "output of training" : "output", "FP64",
                     reference_distance(found.output, output, n), tolerance(t->dtype, 0));
    if (t->training && !failed) {
        const double apart = reference_worst_gradient(&form, found.gradients, gradients, &worst);
        snprintf(what, sizeof what, "every gradient (worst: %.30s)", worst);
        failed = say(name, what, "FP64", apart, tolerance(t->dtype, 1));
    }
    computed_free(&found);
    free(output);
    free(target);
    free(gradients);
    return failed;
}

/* What two tapes of one description computed last, of `rows` rows of the output. */
static int compare(const tape *t, const tape *with, int64_t rows, const char *name,
                   const char *than)
{
    const int64_t n = rows * t->values[t->output].cols;
    double *output = NULL, *gradients = NULL;
    computed found, expected;
    int failed = computed_read(t, rows, &found) | computed_read(with, rows, &expected);

    if (!failed) {
        output = widened(expected.output, n);
        gradients = widened(expected.gradients, t->num_elements);
        failed = output == NULL || gradients == NULL;
    }
    if (!failed)
        failed = say(name, "output", than, reference_distance(found.output, output, n),
                     tolerance(t->dtype, 0));
    if (t->training && !failed)
        failed = say(name, "all gradients together", than,
                     reference_distance(found.gradients, gradients, t->num_elements),
                     tolerance(t->dtype, 1));
    computed_free(&found);
    computed_free(&expected);
    free(output);
    free(gradients);
    return failed;
}

/* Half the squared distance from the target, of a row. */
static int loss_of(const tape *t, int64_t rows, double *loss)
{
    computed c;
    const int failed = computed_read(t, rows, &c);

    *loss = 0;
    for (int64_t i = 0; i < rows * t->values[t->output].cols && !failed; ++i) {
        const double apart = (double)(c.output[i] - c.target[i]);
        *loss += 0.5 * apart * apart / (double)rows;
    }
    computed_free(&c);
    return failed;
}

/* Some launches of a graph that trains bring the output nearer to the target. */
static int check_learning(tape *t, graph *step, const float *parameters, int64_t rows,
                          const char *name)
{
    double first = 0, last = 0;
    int failed =
        tape_upload_parameters(t, parameters) || graph_launch(step) || loss_of(t, rows, &first);

    for (int i = 0; i < 10 && !failed; ++i)
        failed = graph_launch(step);
    if (failed || loss_of(t, rows, &last)) return 1;
    printf("%s: the loss of a row is %.4f, after ten steps %.4f: %s\n", name, first, last,
           last < first ? "right" : "WRONG");
    return !(last < first);
}

/* ---- A frame ----------------------------------------------------------------------------------- */

typedef struct options {
    network_options all;
    double voxel_m;
    int is_small, forward, one_stream;
} options;

typedef struct part_call {
    tape_engine *e;
    int part;
} part_call;

static spops_status run_part(void *user)
{
    const part_call *call = (const part_call *)user;
    return call->e->network->enqueue_part(call->e, call->part);
}

static int measure_parts(tape_engine *e, const options *o, const tape_sizes *sizes, const report *r,
                         int64_t num_points, int launches)
{
    const tape_network *n = e->network;

    print_head();
    for (int part = 0; part < n->num_parts; ++part) {
        const work w = {0, n->part_bytes(e, sizes, part, num_points), 0};
        part_call call = {e, part};
        double time_us = 0;
        int kernels = 0;
        if (graph_time_part(e->d, run_part, &call, 1, launches, &time_us, &kernels) ||
            print_part(r, "frame", n->parts[part], time_us, floor_us(o->all.ceilings, w), kernels))
            return 1;
    }
    return measure_tape(&e->tape, r, o->all.ceilings, sizes, n->stages,
                        o->all.layers ? n->num_stages : 0, launches);
}

/* Of a whole frame. */
static double frame_floor_us(tape_engine *e, ceilings c, const tape_sizes *sizes,
                             int64_t num_points)
{
    double sum_us = e->tape.training ? update_floor_us(&e->tape, c) : 0;
    for (int part = 0; part < e->network->num_parts; ++part) {
        const work w = {0, e->network->part_bytes(e, sizes, part, num_points), 0};
        sum_us += floor_us(c, w);
    }
    for (int backward = 0; backward <= e->tape.training; ++backward) {
        const steps_call all = {&e->tape, {-1, -1}, backward};
        sum_us += floor_of(&all, c, sizes);
    }
    return sum_us;
}

static int measure_scan(tape_engine *e, const options *o, graph *whole, const scan *s,
                        const char *name, size_t used, FILE *json)
{
    const int gpu = e->d->backend == SPOPS_BACKEND_CUDA, launches = gpu ? 20 : 1;
    const int training = e->tape.training;
    char network[64];
    const report r = {json, network, name, e->d, e->tape.dtype};
    double cold_us = 0, warm_us = 0, least_us;
    tape_sizes sizes;

    snprintf(network, sizeof network, "%s%s", e->network->name, training ? " training" : "");
    if (tape_engine_upload(e, s) || graph_time_cold(whole, launches, &cold_us) ||
        graph_time(whole, launches, &warm_us) || e->network->get_sizes(e, &sizes))
        return 1;
    printf("%s: %d points; rows", name, (int)s->num_points);
    for (int l = 0; l < TAPE_LEVELS && sizes.rows[l] > 0; ++l)
        printf(" %lld", (long long)sizes.rows[l]);
    printf("\n");
    if ((gpu || o->all.layers) && measure_parts(e, o, &sizes, &r, s->num_points, launches))
        return 1;
    least_us = frame_floor_us(e, o->all.ceilings, &sizes, s->num_points);
    printf("  %s: %.0f us cold, %.0f warm, floor %.0f, %d kernels\n",
           training ? "a step of training" : "forward", cold_us, warm_us, least_us,
           graph_num_kernels(whole));
    return report_part(&r, "whole", cold_us, least_us, graph_num_kernels(whole)) ||
           report_latency(&r, whole, gpu ? 200 : 3, used);
}

/* The same scan on the CPU in f32. */
static int compare_with_cpu(tape_engine *e, const float *own, const scan *s, int64_t rows,
                            const char *name)
{
    tape_engine *other = NULL;
    device cpu;
    int failed;

    if (device_open(&cpu, SPOPS_BACKEND_CPU)) return 1;
    other = tape_engine_create(e->network, &cpu, e->is_small, SPOPS_DTYPE_F32, e->tape.training,
                               e->voxel_m, s, 1);
    failed = other == NULL || tape_alloc(&other->tape, own) || tape_engine_upload(other, s) ||
             tape_engine_enqueue_frame(other) != SPOPS_STATUS_OK ||
             compare(&e->tape, &other->tape, rows, name, "the CPU's");
    tape_engine_destroy(other);
    device_close(&cpu);
    return failed;
}

/* own: the parameters of the engine's tape; parameters: those of the tape for training. */
static int check_scan(tape_engine *e, graph *whole, const float *own, const float *parameters,
                      const scan *s, const char *name)
{
    tape_sizes sizes;

    if (tape_engine_upload(e, s) || tape_upload_parameters(&e->tape, own) || graph_launch(whole) ||
        e->network->get_sizes(e, &sizes) ||
        (e->is_small && e->network->check(e, parameters, s, name)) ||
        (e->d->backend != SPOPS_BACKEND_CPU && compare_with_cpu(e, own, s, sizes.rows[0], name)))
        return 1;
    return e->tape.training && check_learning(&e->tape, whole, own, sizes.rows[0], name);
}

/* All scans through one graph: forward, or steps of training. */
static int run(const tape_network *n, const options *o, const device *d, int training,
               const scan *scans, int num_scans, FILE *json)
{
    static tape form; /* large */
    const spops_dtype dtype = network_options_dtype(&o->all, d);
    const size_t used = device_used_bytes(d);
    float *own = NULL, *parameters = NULL;
    graph *whole = NULL;
    tape_engine *e =
        tape_engine_create(n, d, o->is_small, dtype, training, o->voxel_m, scans, num_scans);
    int failed;

    if (e != NULL) e->one_stream = o->one_stream;
    if (e != NULL && o->one_stream) e->tape.beside = NULL;
    tape_start(&form, d, dtype, 1);
    n->build(&form, o->is_small);
    failed = e == NULL || (own = make_parameters(&e->tape, n->name, o->all.weights)) == NULL ||
             (parameters = make_parameters(&form, n->name, o->all.weights)) == NULL ||
             tape_alloc(&e->tape, own) ||
             (o->all.generate != NULL && tape_save(&form, n->name, parameters, o->all.generate)) ||
             (whole = graph_capture(d, tape_engine_enqueue_frame, e, 1)) == NULL;
    for (int i = 0; i < num_scans && !failed; ++i) {
        const char *name = o->all.num_files > 0 ? file_name(o->all.files[i]) : "simulated scan";
        failed = measure_scan(e, o, whole, &scans[i], name, used, json) ||
                 (o->all.check && check_scan(e, whole, own, parameters, &scans[i], name));
    }
    graph_destroy(whole);
    tape_engine_destroy(e);
    free(own);
    free(parameters);
    return failed;
}

/* ---- The program ------------------------------------------------------------------------------- */

static const char usage[] =
    "[OPTION]... [FILE]...\n"
    "  FILE                scans, .npy, .pcd or .bin of f32: x, y, z in m, intensity. All of them "
    "go\n"
    "                      through the same graph\n"
    "  without an option: two small simulated scans, --small, large voxels, and --check\n"
    "  --voxel M           size of a voxel\n"
    "  --small             a network that FP64 can follow, for --check\n"
    "  --forward           no training\n"
    "  --one-stream        parts one by one, not side by side\n"
    "  --check             compare with FP64 (--small: 4,000 voxels at most), and a GPU with the "
    "CPU\n"
    "  --layers            time of each stage\n" NETWORK_OPTIONS_USAGE;

static int read_options(const tape_network *n, int argc, char **argv, options *o)
{
    const option_row own[] = {{"--voxel", OPTION_NUMBER, &o->voxel_m},
                              {"--small", OPTION_FLAG, &o->is_small},
                              {"--forward", OPTION_FLAG, &o->forward},
                              {"--one-stream", OPTION_FLAG, &o->one_stream}};
    o->all = network_options_default();
    o->all.ceilings.gexps = 3700; /* 16 a clock of each of 132 SMs, at 1.75 GHz */
    o->all.check = o->is_small = argc == 1;
    o->forward = o->one_stream = 0;
    o->voxel_m = argc == 1 ? n->check_voxel_m : n->voxel_m;
    return network_options_read(argc, argv, &o->all, own, 4);
}

static int load_scans(const network_options *o, scan *scans, int *num_scans)
{
    *num_scans = 0;
    for (; *num_scans < o->num_files; ++*num_scans)
        if (scan_load(o->files[*num_scans], &scans[*num_scans])) return 1;
    for (; o->num_files == 0 && *num_scans < 2; ++*num_scans) /* the second has half the rays */
        if (scan_simulate(o->beams, o->rays >> *num_scans, &scans[*num_scans])) return 1;
    return 0;
}

int tape_program(const tape_network *n, int argc, char **argv)
{
    options o;
    device d;
    scan scans[OPTIONS_FILES];
    FILE *json = NULL;
    int num_scans = 0, failed;

    if (read_options(n, argc, argv, &o)) {
        fprintf(stderr, "%s %s", n->name, usage);
        return 2;
    }
    if (device_open(&d, o.all.backend)) return 1;
    failed = load_scans(&o.all, scans, &num_scans) || network_options_output(&o.all, &json);
    if (!failed)
        printf("%s, %s, on %s\n", n->title, o.is_small ? "small" : "base",
               d.backend == SPOPS_BACKEND_CPU ? "the CPU" : "a GPU");
    for (int training = 0; training <= !o.forward && !failed; ++training)
        failed = run(n, &o, &d, training, scans, num_scans, json);
    for (int i = 0; i < num_scans; ++i)
        scan_free(&scans[i]);
    if (json != NULL) fclose(json);
    device_close(&d);
    return failed;
}
