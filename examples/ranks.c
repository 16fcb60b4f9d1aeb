// SPDX-License-Identifier: Apache-2.0
/*
 * Training of a MinkUNet over ranks that are threads of this process, on the CPU or on GPUs, or processes
 * with a GPU each. Without options small clouds are trained on for two steps by 1, 2, 3 and 8 ranks, in several partitions, and
 * outputs, gradients, parameters and running statistics are compared bit for bit with those of one rank.
 *
 *     ranks [--backend cpu|cuda] [--dtype f32|f16] [--width 0.125] [--levels 3] [--voxels 3000] [--ranks 2]
 *     ranks --time RANKS [...]    times of a step by RANKS ranks, of its parts alone and of what it exchanges
 *     --cloud ground|gyroid       what the voxels are of
 *     --chunks 16                 into which the set is cut, whatever the number of ranks
 *     --nccl 1                    each rank has a GPU; else ranks share one, and rows are copied
 *     --process R --id FILE       this process is rank R of --ranks N alone, over NCCL, whose id rank 0 puts into FILE
 *     --gpu G                     of a process; without it its rank
 *     --graph 1                   a step once more, captured with what it exchanges (over NCCL)
 *     --timeout 60                seconds that a rank waits for others
 *     --any-dataflow 1            plans know every way of running, also where implicit GEMM serves all
 *     --output FILE               append what was measured, a JSON object a line; bench/scaling.py reads it
 *     --layers 1                  print layers and values alone, a JSON object a line; bench/scaling_model.py reads it
 */
#define _POSIX_C_SOURCE 200112L
#include "ranks/cloud.h"
#include "ranks/measure.h"
#include "ranks/plans.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEPS = 2 };

typedef struct options {
    spops_backend_kind backend;
    spops_dtype dtype;
    double width;
    int levels, ranks, time_ranks, launches, nccl, graph, chunks, timeout, any_dataflow, layers;
    int process, gpu; /* -1: ranks are threads; the process's number */
    int64_t voxels;
    const char *cloud, *output, *id;
} options;

/* ---- A rank -------------------------------------------------------------------------------------- */

typedef struct results {
    float *output; /* [voxels][RANKS_OUTPUTS], by row of the cloud, of the last step */
    float *gradients, *parameters, *running;
    int64_t num_parameters, num_moments;
} results;

typedef struct rank rank;

typedef struct job {
    const options *o;
    const ranks_cloud *cloud;
    int steps, ranks, first_chunk[RANKS_MOST + 1], has_first;
    int is_part; /* of all ranks this process has one, o->process */
    spops_comm_group *group;
    pthread_barrier_t met; /* all ranks have a context, and rank 0 has put an id */
    uint8_t id[SPOPS_COMM_NCCL_ID_BYTES];
    rank *all;
    results r;
    ranks_measured *measured; /* [ranks] */
} job;

struct rank {
    job *j;
    int number, failed;
    pthread_t thread;
};

#define SAY(d, call)                                                                               \
    if ((call) != SPOPS_STATUS_OK) {                                                               \
        fprintf(stderr, "rank %d: %s\n", r->number, spops_last_error((d)->ctx));                   \
        return 1;                                                                                  \
    }

/* The first rank of this process. */
static int first_rank(const job *j)
{
    return j->is_part ? j->o->process : 0;
}

/* The partition of a slice of rows that the rank reads, then the rows that it owns. */
static int take_rows(const rank *r, const device *d, spops_comm *comm, spops_partition **partition,
                     int32_t (**rows)[4], int64_t **at, int64_t *n)
{
    const job *j = r->j;
    const ranks_cloud *c = j->cloud;
    const int64_t begin = c->n * r->number / j->ranks, end = c->n * (r->number + 1) / j->ranks;
    spops_partition_options o = spops_partition_options_default();
    spops_partition_info info = spops_partition_info_default();
    const size_t bytes = (size_t)(end - begin) * sizeof *c->rows;
    int32_t *given = (int32_t *)device_alloc(d, bytes + 16);
    int32_t *chunks = (int32_t *)malloc((size_t)c->n * sizeof *chunks);
    spops_coords *set = NULL;

    *rows = (int32_t(*)[4])malloc((size_t)c->n * sizeof **rows);
    *at = (int64_t *)malloc((size_t)c->n * sizeof **at);
    if (given == NULL || chunks == NULL || *rows == NULL || *at == NULL ||
        device_upload(d, given, c->rows[begin], bytes))
        return 1;
    SAY(d, spops_coords_create(d->ctx, 3, end - begin, given, NULL, &set));
    o.num_chunks = j->o->chunks;
    o.first_chunk = j->has_first ? j->first_chunk : NULL;
    SAY(d, spops_partition_create(d->ctx, comm, set, &o, partition));
    spops_coords_destroy(set);
    device_free(d, given);
    SAY(d, spops_partition_get_info(d->ctx, *partition, &info));
    SAY(d, spops_partition_find_chunks(d->ctx, *partition, NULL, c->n, c->rows[0], chunks));
    *n = 0;
    for (int64_t i = 0; i < c->n; ++i)
        if (chunks[i] >= info.first_chunk[r->number] &&
            chunks[i] < info.first_chunk[r->number + 1]) {
            memcpy((*rows)[*n], c->rows[i], sizeof **rows);
            (*at)[(*n)++] = i;
        }
    free(chunks);
    return 0;
}

static int read_f32(const device *d, const void *from, spops_dtype dtype, int64_t num, float *to)
{
    void *narrow = malloc((size_t)num * sizeof *to + 1);
    const int failed = narrow == NULL ||
                       device_download(d, narrow, from, (size_t)num * spops_dtype_bytes(dtype)) ||
                       device_convert(d, dtype, narrow, SPOPS_DTYPE_F32, to, (size_t)num);
    free(narrow);
    return failed;
}

/* What this rank has of the results: its rows of the output, and of what all have the first rank's here. */
static int keep_results(const rank *r, const ranks_network *n, const int64_t *at)
{
    const ranks_level *level = &n->levels[0];
    const int64_t owned = level->info.num_owned;
    spops_coords_view view = spops_coords_view_default();
    int32_t *item = (int32_t *)malloc((size_t)owned * sizeof *item + 1);
    float *output = (float *)malloc((size_t)owned * RANKS_OUTPUTS * sizeof *output + 1);
    results *to = &r->j->r;
    int failed = item == NULL || output == NULL;

    SAY(n->d, spops_coords_get_view(n->d->ctx, level->owned, &view));
    failed = failed || device_download(n->d, item, view.row_item, (size_t)owned * sizeof *item) ||
             read_f32(n->d, n->values[n->output].data, n->dtype, owned * RANKS_OUTPUTS, output);
    for (int64_t i = 0; i < owned && !failed; ++i)
        memcpy(to->output + at[item[i]] * RANKS_OUTPUTS, output + i * RANKS_OUTPUTS,
               RANKS_OUTPUTS * sizeof *output);
    if (r->number == first_rank(r->j) && !failed) {
        const size_t p = (size_t)n->num_parameters * sizeof(float);
        const size_t m = (size_t)n->num_moments * sizeof(float);
        to->num_parameters = n->num_parameters;
        to->num_moments = n->num_moments;
        to->gradients = (float *)malloc(p);
        to->parameters = (float *)malloc(p);
        to->running = (float *)malloc(m);
        failed = to->gradients == NULL || to->parameters == NULL || to->running == NULL ||
                 device_download(n->d, to->gradients, n->gradients, p) ||
                 device_download(n->d, to->parameters, n->parameters, p) ||
                 device_download(n->d, to->running, n->running, m);
    }
    free(item);
    free(output);
    return failed;
}

static spops_status step(ranks_network *n)
{
    spops_status status = ranks_forward(n);
    if (status == SPOPS_STATUS_OK) status = ranks_backward(n);
    return status == SPOPS_STATUS_OK ? ranks_update(n) : status;
}

static int run_network(const rank *r, const device *d, spops_comm *comm, ranks_network *n)
{
    job *j = r->j;
    spops_partition *partition = NULL;
    int32_t(*rows)[4] = NULL;
    int64_t *at = NULL, num = 0;
    const double begin = host_clock_us();
    int failed = take_rows(r, d, comm, &partition, &rows, &at, &num);
    const double taken = host_clock_us();

    failed =
        failed || ranks_network_create(n, d, comm, partition, num, num > 0 ? rows[0] : NULL,
                                       j->o->width, j->o->levels, j->o->dtype, j->o->any_dataflow);
    free(rows);
    spops_partition_destroy(partition);
    if (!failed && j->measured != NULL) {
        j->measured[r->number].partition_ms = 1e-3 * (taken - begin);
        failed =
            ranks_measure(n, j->o->launches, j->o->graph && j->o->nccl, &j->measured[r->number]);
    } else if (!failed) {
        for (int i = 0; i < j->steps; ++i)
            SAY(d, step(n));
        failed = keep_results(r, n, at);
    }
    free(at);
    return failed;
}

/* The id of NCCL goes from rank 0 to other processes by a file, which is there whole or not at all. */
static int put_id(const job *j)
{
    char part[4096];
    FILE *f = fopen(j->o->id, "rb");
    int failed;

    if (f != NULL) return fclose(f), fprintf(stderr, "--id: %s is there already\n", j->o->id), 1;
    if (snprintf(part, sizeof part, "%s.part", j->o->id) >= (int)sizeof part) return 1;
    f = fopen(part, "wb");
    failed = f == NULL || fwrite(j->id, 1, sizeof j->id, f) != sizeof j->id;
    failed = (f != NULL && fclose(f) != 0) || failed || rename(part, j->o->id) != 0;
    if (failed) perror(j->o->id);
    return failed;
}

static int read_id(job *j)
{
    const struct timespec pause = {0, 10000000};
    for (int i = 0; i < 100 * j->o->timeout; ++i) {
        FILE *f = fopen(j->o->id, "rb");
        const int is_read = f != NULL && fread(j->id, 1, sizeof j->id, f) == sizeof j->id;
        if (f != NULL) (void)fclose(f);
        if (is_read) return 0;
        (void)nanosleep(&pause, NULL);
    }
    return fprintf(stderr, "--id: no %s came within %d s\n", j->o->id, j->o->timeout), 1;
}

/* Threads of this process with a GPU each, over NCCL, or that share what there is; or a process of several. */
static int join_ranks(rank *r, const device *d, spops_comm **comm)
{
    job *j = r->j;
    spops_comm_options o = spops_comm_options_default();
    o.timeout_ms = 1000 * j->o->timeout;
    if (!j->o->nccl) {
        SAY(d, spops_comm_create_threads(d->ctx, j->group, r->number, &o, comm));
        return 0;
    }
    r->failed = r->number == 0 && spops_comm_get_nccl_id(d->ctx, j->id) != SPOPS_STATUS_OK;
    if (r->failed) fprintf(stderr, "%s\n", spops_last_error(d->ctx));
    if (j->is_part && !r->failed) r->failed = r->number == 0 ? put_id(j) : read_id(j);
    (void)pthread_barrier_wait(&j->met);
    if (j->all[first_rank(j)].failed) return 1;
    SAY(d, spops_comm_create_nccl_id(d->ctx, j->id, j->ranks, r->number, &o, comm));
    if (j->is_part && r->number == 0) (void)remove(j->o->id); /* all ranks have it */
    return 0;
}

static void *run_rank(void *argument)
{
    rank *r = (rank *)argument;
    ranks_network *n = (ranks_network *)calloc(1, sizeof *n);
    spops_comm *comm = NULL;
    device d;
    const options *o = r->j->o;
    const int gpu = !o->nccl ? 0 : o->gpu >= 0 ? o->gpu : o->process >= 0 ? o->process : r->number;
    const int opened = n != NULL && !device_open_on(&d, o->backend, gpu);

    r->failed = !opened;
    (void)pthread_barrier_wait(&r->j->met);
    for (int i = 0; i < r->j->ranks; ++i) /* the others would wait for it */
        if (r->j->all[i].failed) {
            if (opened) device_close(&d);
            free(n);
            return NULL;
        }
    (void)pthread_barrier_wait(&r->j->met);
    if (join_ranks(r, &d, &comm) || run_network(r, &d, comm, n)) {
        fprintf(stderr, "rank %d of %d failed\n", r->number, r->j->ranks);
        r->failed = 1;
    }
    if (n->d != NULL) ranks_network_destroy(n);
    spops_comm_destroy(comm);
    free(n);
    device_close(&d);
    return NULL;
}

static int run_job(job *j)
{
    rank ranks[RANKS_MOST];
    const int first = first_rank(j), end = j->is_part ? first + 1 : j->ranks;
    const size_t output_bytes = (size_t)j->cloud->n * RANKS_OUTPUTS * sizeof *j->r.output;
    int failed = 0;

    memset(ranks, 0, sizeof ranks);
    j->all = ranks;
    j->r.output = (float *)malloc(output_bytes + 1);
    if (j->r.output == NULL || pthread_barrier_init(&j->met, NULL, (unsigned)(end - first)) != 0 ||
        spops_comm_group_create(j->ranks, &j->group) != SPOPS_STATUS_OK)
        return 1;
    memset(j->r.output, 0xff, output_bytes); /* rows that no rank writes */
    for (int i = first; i < end; ++i) {
        ranks[i].j = j;
        ranks[i].number = i;
        if (pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]) != 0) return 1;
    }
    for (int i = first; i < end; ++i) {
        pthread_join(ranks[i].thread, NULL);
        failed |= ranks[i].failed;
    }
    spops_comm_group_destroy(j->group);
    pthread_barrier_destroy(&j->met);
    j->all = NULL;
    return failed;
}

static void free_results(results *r)
{
    free(r->output);
    free(r->gradients);
    free(r->parameters);
    free(r->running);
}

/* ---- Is it the same? ----------------------------------------------------------------------------- */

static int differ(const float *a, const float *b, int64_t num, const char *what)
{
    int64_t apart = 0;
    for (int64_t i = 0; i < num; ++i)
        apart += memcmp(a + i, b + i, sizeof *a) != 0;
    if (apart > 0)
        printf("    %s: %lld of %lld numbers differ\n", what, (long long)apart, (long long)num);
    return apart > 0;
}

/* how 0: balanced; 1: the first rank has little, the last most; 2: only the last has any. */
static void deal(job *j, int ranks, int how)
{
    j->ranks = ranks;
    j->has_first = how > 0;
    for (int r = 0; r <= ranks; ++r) {
        const int half = (r + 1) / 2 < j->o->chunks ? (r + 1) / 2 : j->o->chunks;
        j->first_chunk[r] = r == 0 ? 0 : r == ranks ? j->o->chunks : how == 1 ? half : 0;
    }
}

/* Half the squared distance from the target. */
static double loss_of(const ranks_cloud *c, const results *r)
{
    double loss = 0;
    for (int64_t i = 0; i < c->n; ++i)
        for (int k = 0; k < RANKS_OUTPUTS; ++k) {
            const float apart =
                r->output[i * RANKS_OUTPUTS + k] - ranks_number(c->rows[i], k, RANKS_TARGET);
            loss += 0.5 * (double)apart * (double)apart;
        }
    return loss;
}

/*
 * A step makes the loss less by rate times the square of the gradient, where the step is small. Outputs in
 * f16 are rounded by up to 2^-11 of themselves: a step that changes the loss by a smaller part is not judged.
 */
static int check_loss(const options *o, const ranks_cloud *c, const results *after)
{
    const double precision = o->dtype == SPOPS_DTYPE_F16 ? 0x1p-11 : 0x1p-24;
    job first = {.o = o, .cloud = c, .steps = 1};
    double expected = 0, before, fell;
    const char *verdict;
    int judged, right;

    deal(&first, 1, 0);
    if (run_job(&first)) return 1;
    for (int64_t i = 0; i < first.r.num_parameters; ++i)
        expected +=
            (double)RANKS_RATE * (double)first.r.gradients[i] * (double)first.r.gradients[i];
    before = loss_of(c, &first.r);
    fell = before - loss_of(c, after);
    judged = !(expected < precision * before);
    right = fabs(fell / expected - 1) < 0.1;
    verdict = !judged ? "too small a step for this dtype" : right ? "right" : "WRONG";
    printf("a step makes the loss of %.2f less by %.4f, its gradient says %.4f: %s\n", before, fell,
           expected, verdict);
    free_results(&first.r);
    return judged && !right;
}

static int differs(const job *one, const job *many)
{
    const results *a = &one->r, *b = &many->r;
    return differ(a->output, b->output, one->cloud->n * RANKS_OUTPUTS, "output") |
           differ(a->gradients, b->gradients, a->num_parameters, "gradients") |
           differ(a->parameters, b->parameters, a->num_parameters, "parameters") |
           differ(a->running, b->running, a->num_moments, "running statistics");
}

/* This process's part of the steps of all, beside all of them by itself. */
static int check_process(const options *o, const ranks_cloud *c)
{
    job one = {.o = o, .cloud = c, .steps = STEPS}, part = one;
    float unwritten;
    int64_t rows = 0;
    int bad;

    memset(&unwritten, 0xff, sizeof unwritten);
    part.is_part = 1;
    deal(&one, 1, 0);
    deal(&part, o->ranks, 0);
    if (run_job(&part) || run_job(&one)) return 1;
    for (int64_t i = 0; i < c->n; ++i)
        if (memcmp(&part.r.output[i * RANKS_OUTPUTS], &unwritten, sizeof unwritten) != 0)
            ++rows;
        else
            memcpy(&part.r.output[i * RANKS_OUTPUTS], &one.r.output[i * RANKS_OUTPUTS],
                   RANKS_OUTPUTS * sizeof unwritten);
    bad = differs(&one, &part);
    printf("process %d of %d, %lld of %lld rows: the bits of one rank after %d steps: %s\n",
           o->process, o->ranks, (long long)rows, (long long)c->n, STEPS, bad ? "WRONG" : "right");
    free_results(&one.r);
    free_results(&part.r);
    return bad;
}

static int check(const options *o, const ranks_cloud *c)
{
    const int all[] = {1, 2, 3, 8}, *const counts = o->ranks > 0 ? &o->ranks : all;
    static const char *const names[] = {"balanced", "skewed", "all rows on one rank"};
    job one = {.o = o, .cloud = c, .steps = STEPS};
    int wrong, moved = 0;

    deal(&one, 1, 0);
    if (run_job(&one)) return 1;
    for (int64_t i = 0; i < one.r.num_parameters; ++i)
        moved += one.r.gradients[i] != 0;
    printf("%lld voxels, %lld parameters, %d of them with a gradient\n", (long long)c->n,
           (long long)one.r.num_parameters, moved);
    wrong = check_loss(o, c, &one.r);
    for (int i = 0; i < (o->ranks > 0 ? 1 : 4); ++i)
        for (int how = 0; how < (counts[i] > 1 ? 3 : 1); ++how) {
            job many = {.o = o, .cloud = c, .steps = STEPS};
            int bad;
            deal(&many, counts[i], how);
            if (run_job(&many)) return 1;
            bad = differs(&one, &many);
            printf("%d ranks, %s: the bits of one rank after %d steps: %s\n", counts[i], names[how],
                   STEPS, bad ? "WRONG" : "right");
            wrong |= bad;
            free_results(&many.r);
        }
    free_results(&one.r);
    return wrong || moved == 0;
}

/* ---- What was measured --------------------------------------------------------------------------- */

static void print_measured(const job *j)
{
    const options *o = j->o;
    const ranks_measured *all = j->measured;

    printf("%d ranks, %lld voxels of %s in %d chunks, %d levels, width %g, %s on %s; ms, medians "
           "of %d\n",
           j->ranks, (long long)j->cloud->n, o->cloud, o->chunks, o->levels, o->width,
           spops_dtype_name(o->dtype), all[0].device, o->launches);
    for (int r = 0; r < j->ranks; ++r)
        printf("  rank %d: %lld rows, %lld of them beside ghosts, %lld ghosts at the finest level; "
               "made in: partition %.0f, halos %.0f, plans %.0f ms; MB: rows %.1f, plans %.1f, "
               "parameters and gradients %.1f, all on the device %.0f\n",
               r, (long long)all[r].owned[0], (long long)all[r].boundary[0],
               (long long)all[r].ghosts[0], all[r].partition_ms, all[r].halos_ms, all[r].plans_ms,
               1e-6 * (double)all[r].row_bytes, 1e-6 * (double)all[r].plan_bytes,
               1e-6 * (double)all[r].gradient_bytes, 1e3 * all[r].used_gb);
    printf("  %-20s%10s%10s%12s%10s   each rank's own\n", "part", "all", "least", "MB sent",
           "GB/s");
    for (int i = 0; i < all[0].num_parts; ++i) {
        const ranks_part *p = &all[0].parts[i];
        int64_t most = 0;
        for (int r = 0; r < j->ranks; ++r)
            if (all[r].parts[i].bytes > most) most = all[r].parts[i].bytes;
        printf("  %-20s%10.3f%10.3f%12.3f%10.2f  ", p->name, p->median_ms, p->least_ms,
               1e-6 * (double)most, p->median_ms > 0 ? 1e-6 * (double)most / p->median_ms : 0.0);
        for (int r = 0; r < j->ranks; ++r)
            printf(" %.3f", all[r].parts[i].own_ms);
        printf("\n");
    }
}

/* A key and a number of every rank. */
#define EACH_RANK(key, format, value)                                                              \
    for (int r = 0; r < j->ranks; ++r)                                                             \
    fprintf(f, "%s" format "%s", r == 0 ? ", \"" key "\": [" : ", ", value,                        \
            r + 1 < j->ranks ? "" : "]")

static int write_measured(const job *j)
{
    const options *o = j->o;
    const ranks_measured *all = j->measured;
    FILE *f = o->output == NULL ? NULL : fopen(o->output, "a");

    if (f == NULL) return o->output != NULL;
    for (int i = -1 - o->levels; i < all[0].num_parts; ++i) {
        const int l = -1 - i; /* a level, then one line of making it, then parts */
        fprintf(
            f,
            "{\"device\": \"%s\", \"backend\": \"%s\", \"suite\": \"ranks\", \"dtype\": \"%s\", "
            "\"ranks\": %d, \"by\": \"%s\", \"cloud\": \"%s\", \"voxels\": %lld, \"chunks\": %d, "
            "\"width\": %g, \"levels\": %d",
            all[0].device, o->backend == SPOPS_BACKEND_CPU ? "cpu" : "cuda",
            spops_dtype_name(o->dtype), j->ranks, o->nccl ? "nccl" : "threads", o->cloud,
            (long long)j->cloud->n, o->chunks, o->width, o->levels);
        if (i >= 0) {
            const ranks_part *p = &all[0].parts[i];
            fprintf(f,
                    ", \"case\": \"%s\", \"median_us\": %.1f, \"min_us\": %.1f, \"exchanges\": %d",
                    p->name, 1e3 * p->median_ms, 1e3 * p->least_ms, p->exchanges);
            EACH_RANK("own_us", "%.1f", 1e3 * all[r].parts[i].own_ms);
            EACH_RANK("sent_bytes", "%lld", (long long)all[r].parts[i].bytes);
            EACH_RANK("computed_rows", "%lld", (long long)all[r].parts[i].rows);
        } else if (l > 0) {
            fprintf(f, ", \"case\": \"rows of level %d\"", o->levels - l);
            EACH_RANK("owned", "%lld", (long long)all[r].owned[o->levels - l]);
            EACH_RANK("boundary", "%lld", (long long)all[r].boundary[o->levels - l]);
            EACH_RANK("ghosts", "%lld", (long long)all[r].ghosts[o->levels - l]);
            EACH_RANK("sent", "%lld", (long long)all[r].sent[o->levels - l]);
        } else {
            fprintf(f, ", \"case\": \"made\"");
            EACH_RANK("partition_ms", "%.1f", all[r].partition_ms);
            EACH_RANK("halos_ms", "%.1f", all[r].halos_ms);
            EACH_RANK("plans_ms", "%.1f", all[r].plans_ms);
            EACH_RANK("row_bytes", "%lld", (long long)all[r].row_bytes);
            EACH_RANK("plan_bytes", "%lld", (long long)all[r].plan_bytes);
            EACH_RANK("gradient_bytes", "%lld", (long long)all[r].gradient_bytes);
            EACH_RANK("used_gb", "%.2f", all[r].used_gb);
        }
        fprintf(f, "}\n");
    }
    return fclose(f) != 0;
}

static int measure(const options *o, const ranks_cloud *c)
{
    job j = {.o = o, .cloud = c};
    int failed;

    j.measured = (ranks_measured *)calloc((size_t)o->time_ranks, sizeof *j.measured);
    deal(&j, o->time_ranks, 0);
    failed = j.measured == NULL || run_job(&j);
    if (!failed) {
        print_measured(&j);
        failed = write_measured(&j);
    }
    free_results(&j.r);
    free(j.measured);
    return failed;
}

/* ---- Layers -------------------------------------------------------------------------------------- */

static int print_layers(const options *o)
{
    static const char *const relations[] = {"within", "down", "up", "pointwise"};
    ranks_network *n = (ranks_network *)calloc(1, sizeof *n);

    if (n == NULL) return 1;
    n->num_levels = o->levels;
    ranks_add_layers(n, o->width);
    for (int i = 0; i < n->num_layers; ++i) {
        const ranks_layer *l = &n->layers[i];
        printf("{\"suite\": \"ranks\", \"width\": %g, \"levels\": %d, \"case\": \"layer %d\", "
               "\"relation\": \"%s\", \"level\": %d, \"taps\": %d, \"in_cols\": %d, "
               "\"out_cols\": %d, \"norm\": %d, \"residual\": %d, \"of_input\": %d}\n",
               o->width, o->levels, i, relations[l->relation], l->level, l->taps, l->in.cols,
               l->out.cols, l->norm, l->residual.cols > 0, l->in.value == n->input);
    }
    for (int v = 0; v < n->num_values; ++v)
        printf("{\"suite\": \"ranks\", \"width\": %g, \"levels\": %d, \"case\": \"value %d\", "
               "\"level\": %d, \"cols\": %d, \"has_gradient\": %d}\n",
               o->width, o->levels, v, n->values[v].level, n->values[v].cols, v != n->input);
    free(n);
    return 0;
}

/* ---- Options ------------------------------------------------------------------------------------- */

/* The number of a word among `words`; -1, with a line, where it is none of them. */
static int word_of(const char *name, const char *value, const char *const words[2])
{
    for (int i = 0; i < 2; ++i)
        if (strcmp(value, words[i]) == 0) return i;
    fprintf(stderr, "%s is %s, expected %s or %s\n", name, value, words[0], words[1]);
    return -1;
}

/* An option and its value; not 0, with a line, where it cannot be. */
static int take_option(options *o, const char *name, const char *value)
{
    static const char *const backends[] = {"cpu", "cuda"}, *const dtypes[] = {"f32", "f16"},
                             *const clouds[] = {"ground", "gyroid"};
    const struct {
        const char *name;
        int *to, least, most;
    } numbers[] = {{"--levels", &o->levels, 2, RANKS_LEVELS},
                   {"--time", &o->time_ranks, 1, RANKS_MOST},
                   {"--ranks", &o->ranks, 1, RANKS_MOST},
                   {"--graph", &o->graph, 0, 1},
                   {"--launches", &o->launches, 1, 10000},
                   {"--nccl", &o->nccl, 0, 1},
                   {"--chunks", &o->chunks, 1, 4096},
                   {"--any-dataflow", &o->any_dataflow, 0, 1},
                   {"--layers", &o->layers, 0, 1},
                   {"--timeout", &o->timeout, 1, 1000000},
                   {"--process", &o->process, 0, RANKS_MOST - 1},
                   {"--gpu", &o->gpu, 0, 1023}};
    char *end = NULL;
    const double number = strtod(value, &end);
    const int is_number = end != value && *end == '\0';
    int word = 0;

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i)
        if (strcmp(name, numbers[i].name) == 0) {
            if (!is_number || !(number >= numbers[i].least && number <= numbers[i].most) ||
                number != (int)number)
                return fprintf(stderr, "%s is %s, expected %d to %d\n", name, value,
                               numbers[i].least, numbers[i].most);
            *numbers[i].to = (int)number;
            return 0;
        }
    if (strcmp(name, "--width") == 0) {
        o->width = number;
        if (!is_number || !(number >= 0.03125 && number <= 64))
            return fprintf(stderr, "%s is %s, expected 0.03125 to 64\n", name, value);
    } else if (strcmp(name, "--voxels") == 0) {
        if (!is_number || !(number >= 1 && number <= 2e9))
            return fprintf(stderr, "%s is %s, expected 1 to 2e9\n", name, value);
        o->voxels = (int64_t)number;
    } else if (strcmp(name, "--backend") == 0) {
        word = word_of(name, value, backends);
        o->backend = word == 1 ? SPOPS_BACKEND_CUDA : SPOPS_BACKEND_CPU;
    } else if (strcmp(name, "--dtype") == 0) {
        word = word_of(name, value, dtypes);
        o->dtype = word == 1 ? SPOPS_DTYPE_F16 : SPOPS_DTYPE_F32;
    } else if (strcmp(name, "--cloud") == 0) {
        word = word_of(name, value, clouds);
        o->cloud = clouds[word == 1];
    } else if (strcmp(name, "--output") == 0) {
        o->output = value;
    } else if (strcmp(name, "--id") == 0) {
        o->id = value;
    } else {
        return fprintf(stderr, "%s: no such option\n", name);
    }
    return word < 0;
}

int main(int argc, char **argv)
{
    options o = {.backend = SPOPS_BACKEND_CPU, .dtype = SPOPS_DTYPE_F32, .width = 0.125};
    ranks_cloud c;
    int failed;

    o.levels = 3;
    o.voxels = 3000;
    o.launches = 5;
    o.chunks = 16;
    o.timeout = 60;
    o.process = o.gpu = -1;
    o.cloud = "ground";
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc) return fprintf(stderr, "%s: expected a value after it\n", argv[i]), 2;
        if (take_option(&o, argv[i], argv[i + 1])) return 2;
    }
    if (o.process >= 0 && (!o.nccl || o.process >= o.ranks || o.id == NULL || o.time_ranks > 0))
        return fprintf(
                   stderr,
                   "--process is %d, expected --nccl 1, --ranks above it, --id, and no --time\n",
                   o.process),
               2;
    if (o.layers) return print_layers(&o);
    if (o.cloud[1] == 'y' ? ranks_cloud_gyroid(&c, o.voxels) : ranks_cloud_ground(&c, o.voxels))
        return 1;
    failed = o.process >= 0     ? check_process(&o, &c)
             : o.time_ranks > 0 ? measure(&o, &c)
                                : check(&o, &c);
    free(c.rows);
    return failed;
}
