// SPDX-License-Identifier: Apache-2.0
/*
 * Training of a MinkUNet over ranks that are threads of this process, on the CPU or on GPUs. Without
 * options small clouds are trained on for two steps by 1, 2, 3 and 8 ranks, in several partitions, and
 * outputs, gradients, parameters and running statistics are compared bit for bit with those of one rank.
 *
 *     ranks [--backend cpu|cuda] [--dtype f32|f16] [--width 0.125] [--levels 3] [--voxels 3000] [--ranks 2]
 *     ranks --time RANKS [...]    times of a step by RANKS ranks, and of what it exchanges
 *     --graph 1                   a step is captured once, with what it exchanges (over NCCL)
 *     --nccl 1                    each rank has a GPU; else ranks share one, and rows are copied
 */
#define _POSIX_C_SOURCE 200112L
#include "ranks/network.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_RANKS = 8, STEPS = 2, CHUNKS = 16 };

static const float rate = 2e-7f;

typedef struct options {
    spops_backend_kind backend;
    spops_dtype dtype;
    double width;
    int levels, ranks, time_ranks, launches, nccl, graph;
    int64_t voxels;
} options;

/* ---- A made cloud -------------------------------------------------------------------------------- */

typedef struct cloud {
    int64_t n;
    int32_t (*rows)[4];
} cloud;

/* Ground with steps, and walls on it; about `voxels` of them, as long as it takes. */
static int make_cloud(cloud *c, int64_t voxels)
{
    const int32_t depth = voxels < 100000 ? 40 : 1024;
    c->n = 0;
    c->rows = (int32_t(*)[4])malloc((size_t)(voxels + 64) * sizeof *c->rows);
    for (int32_t x = 0; c->rows != NULL && c->n < voxels; ++x)
        for (int32_t y = 0; y < depth && c->n < voxels; ++y) {
            const int32_t at[4] = {x / 7, y / 5, x / 40, 1};
            const int32_t height = (x / 9 + y / 6) % 11 - 5, wall = x % 53 == 7 || y % 47 == 11;
            const int32_t top = wall ? 12 : 1 + (ranks_number(at, 0, RANKS_CLOUD) > 0.5f);
            for (int32_t z = 0; z < top && c->n < voxels; ++z) {
                const int32_t row[4] = {0, x - 100, y - 17, height + z};
                memcpy(c->rows[c->n++], row, sizeof row);
            }
        }
    return c->rows == NULL;
}

/* ---- A rank -------------------------------------------------------------------------------------- */

typedef struct results {
    float *output; /* [voxels][RANKS_OUTPUTS], by row of the cloud, of the last step */
    float *gradients, *parameters, *running;
    int64_t num_parameters, num_moments;
} results;

typedef struct rank rank;

typedef struct job {
    const options *o;
    const cloud *cloud;
    int steps, ranks, first_chunk[MAX_RANKS + 1], has_first;
    spops_comm_group *group;
    pthread_barrier_t met; /* all ranks have a context, and rank 0 has put an id */
    uint8_t id[SPOPS_COMM_NCCL_ID_BYTES];
    rank *all;
    results r;
    double step_ms, halo_ms, forward_ms, sums_ms, used_gb;
    int64_t rows[MAX_RANKS], ghosts[MAX_RANKS], bytes[MAX_RANKS], chunk_bytes;
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

/* The partition of a slice of rows that the rank reads, then the rows that it owns. */
static int take_rows(const rank *r, const device *d, spops_comm *comm, spops_partition **partition,
                     int32_t (**rows)[4], int64_t **at, int64_t *n)
{
    const job *j = r->j;
    const cloud *c = j->cloud;
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
    o.num_chunks = CHUNKS;
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

/* What this rank has of the results: its rows of the output, and of what all have rank 0's. */
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
    if (r->number == 0 && !failed) {
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

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

static spops_status step(ranks_network *n)
{
    spops_status status = ranks_forward(n);
    if (status == SPOPS_STATUS_OK) status = ranks_backward(n);
    return status == SPOPS_STATUS_OK ? ranks_update(n, rate) : status;
}

/* A part of a step, for a graph. */
typedef struct part {
    ranks_network *n;
    spops_status (*call)(ranks_network *);
} part;

static spops_status run_part(void *user)
{
    const part *p = (const part *)user;
    return p->call(p->n);
}

/* The least time of a call of all ranks, from a common start to the end on all. The first one, which loads
   kernels, is not captured. */
static int time_call(const rank *r, ranks_network *n, spops_status (*call)(ranks_network *),
                     double *least_ms)
{
    part p = {n, call};
    graph *g = NULL;
    int failed = 0;

    *least_ms = 0;
    for (int i = 0; i < r->j->o->launches + 1 && !failed; ++i) {
        SAY(n->d, spops_comm_wait_sync(n->d->ctx, n->comm));
        if (i == 1) {
            g = r->j->o->graph ? graph_capture(n->d, run_part, &p, 1)
                               : graph_plain(n->d, run_part, &p);
            failed = g == NULL;
        }
        SAY(n->d, spops_comm_agree_sync(n->d->ctx, n->comm,
                                        failed ? SPOPS_STATUS_NOT_SUPPORTED : SPOPS_STATUS_OK));
        const double begin = now_ms();
        if (i == 0) SAY(n->d, call(n));
        failed = failed || (i > 0 && graph_launch(g));
        SAY(n->d, spops_comm_wait_sync(n->d->ctx, n->comm));
        SAY(n->d, spops_comm_barrier_sync(n->d->ctx, n->comm));
        const double ms = now_ms() - begin;
        if (i > 0 && (*least_ms <= 0 || ms < *least_ms)) *least_ms = ms;
    }
    graph_destroy(g);
    return failed;
}

static int run_network(const rank *r, const device *d, spops_comm *comm, ranks_network *n)
{
    job *j = r->j;
    spops_partition *partition = NULL;
    int32_t(*rows)[4] = NULL;
    int64_t *at = NULL, num = 0;
    int failed = take_rows(r, d, comm, &partition, &rows, &at, &num) ||
                 ranks_network_create(n, d, comm, partition, num, num > 0 ? rows[0] : NULL,
                                      j->o->width, j->o->levels, j->o->dtype);

    free(rows);
    spops_partition_destroy(partition);
    if (!failed) {
        j->rows[r->number] = n->levels[0].info.num_owned;
        j->ghosts[r->number] = n->levels[0].info.num_ghosts;
        j->bytes[r->number] = n->halo_bytes;
        if (r->number == 0) j->chunk_bytes = n->num_weights * (int64_t)sizeof(float);
    }
    if (!failed && j->o->time_ranks > 0) {
        double step_ms, halo_ms, forward_ms, sums_ms;
        failed = time_call(r, n, step, &step_ms) || time_call(r, n, ranks_forward, &forward_ms) ||
                 time_call(r, n, ranks_halos, &halo_ms) || time_call(r, n, ranks_sums, &sums_ms);
        if (r->number == 0) {
            j->step_ms = step_ms;
            j->halo_ms = halo_ms;
            j->forward_ms = forward_ms;
            j->sums_ms = sums_ms;
            j->used_gb = 1e-9 * (double)device_used_bytes(d);
        }
    } else if (!failed) {
        for (int i = 0; i < j->steps; ++i)
            SAY(d, step(n));
        failed = keep_results(r, n, at);
    }
    free(at);
    return failed;
}

/* Threads of this process with a GPU each, over NCCL, or that share what there is. */
static int join_ranks(rank *r, const device *d, spops_comm **comm)
{
    job *j = r->j;
    if (!j->o->nccl) {
        SAY(d, spops_comm_create_threads(d->ctx, j->group, r->number, NULL, comm));
        return 0;
    }
    r->failed = r->number == 0 && spops_comm_get_nccl_id(d->ctx, j->id) != SPOPS_STATUS_OK;
    if (r->failed) fprintf(stderr, "%s\n", spops_last_error(d->ctx));
    (void)pthread_barrier_wait(&j->met);
    if (j->all[0].failed) return 1;
    SAY(d, spops_comm_create_nccl_id(d->ctx, j->id, j->ranks, r->number, NULL, comm));
    return 0;
}

static void *run_rank(void *argument)
{
    rank *r = (rank *)argument;
    ranks_network *n = (ranks_network *)calloc(1, sizeof *n);
    spops_comm *comm = NULL;
    device d;
    const int opened =
        n != NULL && !device_open_on(&d, r->j->o->backend, r->j->o->nccl ? r->number : 0);

    r->failed = !opened;
    (void)pthread_barrier_wait(&r->j->met);
    for (int i = 0; i < r->j->ranks; ++i) /* the others would wait for it */
        if (r->j->all[i].failed) {
            if (opened) device_close(&d);
            free(n);
            return NULL;
        }
    (void)pthread_barrier_wait(&r->j->met);
    if (join_ranks(r, &d, &comm) || run_network(r, &d, comm, n)) r->failed = 1;
    if (n->d != NULL) ranks_network_destroy(n);
    spops_comm_destroy(comm);
    free(n);
    device_close(&d);
    return NULL;
}

static int run_job(job *j)
{
    rank ranks[MAX_RANKS];
    int failed = 0;

    memset(ranks, 0, sizeof ranks);
    j->all = ranks;
    j->r.output = (float *)calloc((size_t)j->cloud->n * RANKS_OUTPUTS, sizeof *j->r.output);
    if (j->r.output == NULL || pthread_barrier_init(&j->met, NULL, (unsigned)j->ranks) != 0 ||
        spops_comm_group_create(j->ranks, &j->group) != SPOPS_STATUS_OK)
        return 1;
    for (int i = 0; i < j->ranks; ++i) {
        ranks[i].j = j;
        ranks[i].number = i;
        if (pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]) != 0) return 1;
    }
    for (int i = 0; i < j->ranks; ++i) {
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
    for (int r = 0; r <= ranks; ++r)
        j->first_chunk[r] = r == 0 ? 0 : r == ranks ? CHUNKS : how == 1 ? (r + 1) / 2 : 0;
}

/* Half the squared distance from the target. */
static double loss_of(const cloud *c, const results *r)
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

/* A step makes the loss less by rate times the square of the gradient, where the step is small. */
static int check_loss(const options *o, const cloud *c, const results *after)
{
    job first = {.o = o, .cloud = c, .steps = 1};
    double expected = 0, fell, apart;

    deal(&first, 1, 0);
    if (run_job(&first)) return 1;
    for (int64_t i = 0; i < first.r.num_parameters; ++i)
        expected += (double)rate * (double)first.r.gradients[i] * (double)first.r.gradients[i];
    fell = loss_of(c, &first.r) - loss_of(c, after);
    apart = fabs(fell / expected - 1);
    printf("a step makes the loss of %.2f less by %.4f, its gradient says %.4f: %s\n",
           loss_of(c, &first.r), fell, expected, apart < 0.1 ? "right" : "WRONG");
    free_results(&first.r);
    return !(apart < 0.1);
}

static int check(const options *o, const cloud *c)
{
    static const int counts[] = {1, 2, 3, 8};
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
    for (int i = 0; i < 4; ++i)
        for (int how = 0; how < (counts[i] > 1 ? 3 : 1); ++how) {
            job many = {.o = o, .cloud = c, .steps = STEPS};
            int bad;
            deal(&many, counts[i], how);
            if (o->ranks > 0 && o->ranks != counts[i]) continue;
            if (run_job(&many)) return 1;
            bad = differ(one.r.output, many.r.output, c->n * RANKS_OUTPUTS, "output") |
                  differ(one.r.gradients, many.r.gradients, one.r.num_parameters, "gradients") |
                  differ(one.r.parameters, many.r.parameters, one.r.num_parameters, "parameters") |
                  differ(one.r.running, many.r.running, one.r.num_moments, "running statistics");
            printf("%d ranks, %s: the bits of one rank after %d steps: %s\n", counts[i], names[how],
                   STEPS, bad ? "WRONG" : "right");
            wrong |= bad;
            free_results(&many.r);
        }
    free_results(&one.r);
    return wrong || moved == 0;
}

static int measure(const options *o, const cloud *c)
{
    job j = {.o = o, .cloud = c};
    deal(&j, o->time_ranks, 0);
    if (run_job(&j)) return 1;
    printf("%d ranks, %lld voxels: step %.1f ms, forward %.1f ms; alone: halos %.2f ms, sums of "
           "weights %.2f ms; %.1f GB used\n",
           j.ranks, (long long)c->n, j.step_ms, j.forward_ms, j.halo_ms, j.sums_ms, j.used_gb);
    for (int r = 0; r < j.ranks; ++r)
        printf("  rank %d: %lld rows, %lld ghosts at the finest level, sends %.1f MB of ghosts a "
               "step; "
               "weights %.1f MB\n",
               r, (long long)j.rows[r], (long long)j.ghosts[r], 1e-6 * (double)j.bytes[r],
               1e-6 * (double)j.chunk_bytes);
    free_results(&j.r);
    return 0;
}

int main(int argc, char **argv)
{
    options o = {.backend = SPOPS_BACKEND_CPU, .dtype = SPOPS_DTYPE_F32, .width = 0.125};
    cloud c;
    int failed;

    o.levels = 3;
    o.voxels = 3000;
    o.launches = 5;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--backend") == 0)
            o.backend = strcmp(value, "cuda") == 0 ? SPOPS_BACKEND_CUDA : SPOPS_BACKEND_CPU;
        else if (strcmp(argv[i], "--dtype") == 0)
            o.dtype = strcmp(value, "f16") == 0 ? SPOPS_DTYPE_F16 : SPOPS_DTYPE_F32;
        else if (strcmp(argv[i], "--width") == 0)
            o.width = atof(value);
        else if (strcmp(argv[i], "--levels") == 0)
            o.levels = atoi(value);
        else if (strcmp(argv[i], "--voxels") == 0)
            o.voxels = (int64_t)atof(value);
        else if (strcmp(argv[i], "--time") == 0)
            o.time_ranks = atoi(value);
        else if (strcmp(argv[i], "--ranks") == 0)
            o.ranks = atoi(value);
        else if (strcmp(argv[i], "--graph") == 0)
            o.graph = atoi(value);
        else if (strcmp(argv[i], "--launches") == 0)
            o.launches = atoi(value);
        else if (strcmp(argv[i], "--nccl") == 0)
            o.nccl = atoi(value);
        else
            return fprintf(stderr, "%s: no such option\n", argv[i]), 2;
    }
    if (o.levels < 2 || o.levels > RANKS_LEVELS || o.time_ranks < 0 || o.time_ranks > MAX_RANKS ||
        o.voxels < 1 || o.launches < 1 || !(o.width > 0))
        return fprintf(stderr, "an option is out of range\n"), 2;
    if (make_cloud(&c, o.voxels)) return 1;
    failed = o.time_ranks > 0 ? measure(&o, &c) : check(&o, &c);
    free(c.rows);
    return failed;
}
