// SPDX-License-Identifier: Apache-2.0
/* Times of a step and of its parts alone. */
#include "ranks/measure.h"

#include "ranks/plans.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double sample_ms = 20; /* shorter parts are repeated */

#define TRY(call)                                                                                  \
    if ((call) != SPOPS_STATUS_OK) {                                                               \
        fprintf(stderr, "rank %d: %s\n", spops_comm_rank(n->comm), spops_last_error(n->d->ctx));   \
        return 1;                                                                                  \
    }

/* ---- Parts --------------------------------------------------------------------------------------- */

typedef struct part part;
typedef spops_status (*part_function)(const part *p);
struct part {
    ranks_network *n;
    part_function run;
    int64_t number; /* a level, bytes, or a half */
    const ranks_halves *halves;
};

static spops_status run_forward(const part *p)
{
    return ranks_forward(p->n);
}

static spops_status run_backward(const part *p)
{
    return ranks_backward(p->n);
}

static spops_status run_update(const part *p)
{
    return ranks_update(p->n);
}

static spops_status run_step(const part *p)
{
    spops_status status = ranks_forward(p->n);
    if (status == SPOPS_STATUS_OK) status = ranks_backward(p->n);
    return status == SPOPS_STATUS_OK ? ranks_update(p->n) : status;
}

static spops_status run_halos(const part *p)
{
    return ranks_halos(p->n, (int)p->number);
}

static spops_status run_norm_sums(const part *p)
{
    return ranks_norm_sums(p->n);
}

static spops_status run_sums(const part *p)
{
    return ranks_sums(p->n);
}

static spops_status run_half(const part *p)
{
    return ranks_convolve_half(p->n, p->halves, (int)p->number);
}

static spops_status run_beside(const part *p)
{
    return ranks_convolve_beside(p->n, p->halves);
}

static spops_status run_behind(const part *p)
{
    return ranks_convolve_behind(p->n);
}

static spops_status run_pass_on(const part *p)
{
    return ranks_pass_on(p->n, p->number);
}

static spops_status run_part(void *user)
{
    const part *p = (const part *)user;
    return p->run(p);
}

/* ---- Times --------------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* So many in a row that a sample is long enough, the same on all ranks. */
static int agree_repeats(ranks_network *n, double ms, int *repeats)
{
    double all[RANKS_MOST];

    TRY(spops_comm_gather_sync(n->d->ctx, n->comm, &ms, sizeof ms, all));
    for (int r = 0; r < spops_comm_num_ranks(n->comm); ++r)
        ms = fmax(ms, all[r]);
    *repeats = ms * 20 <= sample_ms ? 20 : ms < sample_ms ? (int)ceil(sample_ms / ms) : 1;
    return 0;
}

/* From a common start: until this rank's stream is done, and until all are. */
static int time_once(ranks_network *n, graph *g, int repeats, double *own_ms, double *all_ms)
{
    int failed = 0;

    TRY(spops_comm_wait_sync(n->d->ctx, n->comm));
    TRY(spops_comm_barrier_sync(n->d->ctx, n->comm));
    const double begin = host_clock_us();
    for (int i = 0; i < repeats && !failed; ++i)
        failed = graph_launch(g);
    if (failed) return 1;
    TRY(spops_comm_wait_sync(n->d->ctx, n->comm));
    *own_ms = 1e-3 * (host_clock_us() - begin) / repeats;
    TRY(spops_comm_barrier_sync(n->d->ctx, n->comm));
    *all_ms = 1e-3 * (host_clock_us() - begin) / repeats;
    return 0;
}

static int time_graph(ranks_network *n, graph *g, int launches, ranks_part *to)
{
    double *own = (double *)calloc(2 * (size_t)launches, sizeof *own), *all = own + launches, ms;
    int repeats = 1;
    int failed = own == NULL || time_once(n, g, 1, &ms, &ms) || time_once(n, g, 1, &ms, &ms) ||
                 agree_repeats(n, ms, &repeats);

    for (int i = 0; i < launches && !failed; ++i)
        failed = time_once(n, g, repeats, &own[i], &all[i]);
    if (!failed) {
        qsort(own, (size_t)launches, sizeof *own, compare_doubles);
        qsort(all, (size_t)launches, sizeof *all, compare_doubles);
        to->own_ms = own[launches / 2];
        to->median_ms = all[launches / 2];
        to->least_ms = all[0];
    }
    free(own);
    return failed;
}

static ranks_part *add_part(ranks_measured *m, const char *name, int64_t bytes, int exchanges)
{
    ranks_part *p = &m->parts[m->num_parts++];
    snprintf(p->name, sizeof p->name, "%s", name);
    p->bytes = bytes;
    p->exchanges = exchanges;
    return p;
}

static int time_part(part p, int launches, ranks_part *to)
{
    graph *g = graph_plain(p.n->d, run_part, &p);
    const int failed = g == NULL || time_graph(p.n, g, launches, to);
    graph_destroy(g);
    return failed;
}

/* A graph holds what ranks exchange, so all have one or none. */
static int time_captured(part p, const char *name, int64_t bytes, int launches, ranks_measured *m)
{
    ranks_network *n = p.n;
    graph *g = graph_capture(n->d, run_part, &p, 1);
    int failed = spops_comm_agree_sync(n->d->ctx, n->comm,
                                       g == NULL ? SPOPS_STATUS_NOT_SUPPORTED : SPOPS_STATUS_OK) !=
                 SPOPS_STATUS_OK;

    if (failed) fprintf(stderr, "no %s: %s\n", name, spops_last_error(n->d->ctx));
    if (!failed) {
        ranks_part *to = add_part(m, name, bytes, 0);
        failed = time_graph(n, g, launches, to);
        if (failed) --m->num_parts;
    }
    graph_destroy(g);
    return failed;
}

/* ---- Interior and boundary ----------------------------------------------------------------------- */

static void free_halves(ranks_halves *h)
{
    for (int b = 0; b < 2; ++b)
        for (int l = 0; l < RANKS_LEVELS; ++l) {
            spops_sparseconv_destroy(h->convs[b][l]);
            spops_kernel_map_destroy(h->maps[b][l]);
        }
}

/* Whether each owned row reads a ghost. */
static int find_boundary(const ranks_network *n, const ranks_level *level, char *reads_ghost)
{
    spops_kernel_map_view view = spops_kernel_map_view_default();
    const size_t owned = (size_t)level->info.num_owned;
    int32_t *table;
    int failed;

    TRY(spops_kernel_map_get_view(n->d->ctx, level->within, &view));
    const size_t stride = (size_t)view.table_stride, bytes = owned * stride * sizeof *table;
    table = (int32_t *)malloc(bytes + 1);
    failed = table == NULL || view.out->table == NULL ||
             device_download(n->d, table, view.out->table, bytes);
    for (size_t i = 0; i < owned * stride && !failed; ++i)
        if (table[i] >= level->info.num_owned) reads_ghost[i / stride] = 1;
    free(table);
    return failed;
}

/* Rows of one half, and its plan. */
static int create_half(const ranks_network *n, int l, const char *reads_ghost,
                       const int32_t *all_rows, int b, ranks_halves *h)
{
    const int64_t owned = n->levels[l].info.num_owned;
    int32_t *rows = (int32_t *)malloc((size_t)owned * 4 * sizeof *rows + 1), *at = NULL;
    int64_t num = 0;
    int failed = rows == NULL;

    for (int64_t i = 0; i < owned && !failed; ++i)
        if (reads_ghost[i] == b) memcpy(rows + 4 * num++, all_rows + 4 * i, 4 * sizeof *rows);
    if (!failed && num > 0) {
        const size_t bytes = (size_t)num * 4 * sizeof *rows;
        at = (int32_t *)device_alloc(n->d, bytes);
        failed = at == NULL || device_upload(n->d, at, rows, bytes) ||
                 ranks_create_rows_plan(n, l, num, at, &h->maps[b][l], &h->convs[b][l]);
        device_free(n->d, at);
    }
    h->rows[b][l] = num;
    free(rows);
    return failed;
}

static int create_halves(const ranks_network *n, ranks_halves *h)
{
    int failed = 0;
    for (int l = 0; l < n->num_levels && !failed; ++l) {
        const ranks_level *level = &n->levels[l];
        const size_t owned = (size_t)level->info.num_owned;
        spops_coords_view view = spops_coords_view_default();
        char *reads_ghost = (char *)calloc(owned + 1, 1);
        int32_t *rows = (int32_t *)malloc(owned * 4 * sizeof *rows + 1);

        TRY(spops_coords_get_view(n->d->ctx, level->owned, &view));
        failed = reads_ghost == NULL || rows == NULL || find_boundary(n, level, reads_ghost) ||
                 device_download(n->d, rows, view.rows, owned * 4 * sizeof *rows) ||
                 create_half(n, l, reads_ghost, rows, 0, h) ||
                 create_half(n, l, reads_ghost, rows, 1, h);
        free(reads_ghost);
        free(rows);
    }
    return failed;
}

/* The convolutions of the two, forward, and whether halos are worth hiding behind the first. One rank has no
   boundary: its rows are all in the step. */
static int time_halves(ranks_network *n, int launches, int captured, ranks_measured *m)
{
    static const char *const names[] = {"interior rows", "boundary rows"};
    ranks_halves h;
    int failed;

    memset(&h, 0, sizeof h);
    failed = create_halves(n, &h);
    TRY(spops_comm_agree_sync(n->d->ctx, n->comm,
                              failed ? SPOPS_STATUS_OUT_OF_MEMORY : SPOPS_STATUS_OK));
    for (int b = 0; b < 2 && !failed; ++b) {
        const part p = {.n = n, .run = run_half, .number = b, .halves = &h};
        ranks_part *to = add_part(m, names[b], 0, 0);
        for (int l = 0; l < n->num_levels; ++l)
            to->rows += h.rows[b][l];
        failed = time_part(p, launches, to);
    }
    for (int l = 0; l < n->num_levels; ++l)
        m->boundary[l] = h.rows[1][l];
    if (captured && !failed) {
        (void)time_captured((part){.n = n, .run = run_behind}, "halos before rows, captured", 0,
                            launches, m);
        (void)time_captured((part){.n = n, .run = run_beside, .halves = &h},
                            "halos beside rows, captured", 0, launches, m);
    }
    free_halves(&h);
    return failed;
}

/* ---- All of it ----------------------------------------------------------------------------------- */

static int time_exchanges(ranks_network *n, int launches, ranks_measured *m)
{
    static const int64_t link_bytes[] = {1 << 20, 16 << 20, 256 << 20};
    const int ranks = spops_comm_num_ranks(n->comm);
    const int64_t weights = n->num_weights * (int64_t)sizeof(float);
    int64_t least = ranks_most_to_pass_on(n), all[RANKS_MOST];
    int exchanges = 0, failed = 0;
    char name[32];

    for (int l = 0; l < n->num_levels; ++l)
        exchanges += n->levels[l].num_exchanges;
    failed = time_part((part){.n = n, .run = run_halos, .number = -1}, launches,
                       add_part(m, "halos", n->halo_bytes, exchanges));
    for (int l = 0; l < n->num_levels && !failed; ++l) {
        snprintf(name, sizeof name, "halos of level %d", l);
        failed = time_part((part){.n = n, .run = run_halos, .number = l}, launches,
                           add_part(m, name, n->levels[l].halo_bytes, n->levels[l].num_exchanges));
    }
    failed = failed ||
             time_part((part){.n = n, .run = run_norm_sums}, launches,
                       add_part(m, "sums of norms", 0, 0)) ||
             time_part((part){.n = n, .run = run_sums}, launches,
                       add_part(m, "sums of weights", 2 * weights * (ranks - 1) / ranks, 0));
    if (failed || ranks == 1) return failed;
    TRY(spops_comm_gather_sync(n->d->ctx, n->comm, &least, sizeof least, all));
    for (int r = 0; r < ranks; ++r)
        if (all[r] < least) least = all[r];
    for (int i = 0; i < 3 && !failed; ++i) {
        if (link_bytes[i] > least) break;
        snprintf(name, sizeof name, "link, %d MiB", (int)(link_bytes[i] >> 20));
        failed = time_part((part){.n = n, .run = run_pass_on, .number = link_bytes[i]}, launches,
                           add_part(m, name, link_bytes[i], 1));
    }
    return failed;
}

int ranks_measure(ranks_network *n, int launches, int captured, ranks_measured *m)
{
    spops_device_info info = spops_device_info_default();
    const int ranks = spops_comm_num_ranks(n->comm);

    m->num_levels = n->num_levels;
    m->halos_ms = n->halos_ms;
    m->plans_ms = n->plans_ms;
    m->row_bytes = n->row_bytes;
    m->plan_bytes = n->plan_bytes;
    m->gradient_bytes = n->gradient_bytes;
    m->used_gb = 1e-9 * (double)device_used_bytes(n->d);
    TRY(spops_context_get_device_info(n->d->ctx, &info));
    snprintf(m->device, sizeof m->device, "%s", info.name);
    for (int l = 0; l < n->num_levels; ++l) {
        m->owned[l] = n->levels[l].info.num_owned;
        m->ghosts[l] = n->levels[l].info.num_ghosts;
        m->sent[l] = n->levels[l].info.num_sent;
    }
    if (time_part((part){.n = n, .run = run_step}, launches,
                  add_part(m, "step", n->halo_bytes, 0)) ||
        time_part((part){.n = n, .run = run_forward}, launches, add_part(m, "forward", 0, 0)) ||
        time_part((part){.n = n, .run = run_backward}, launches, add_part(m, "backward", 0, 0)) ||
        time_part((part){.n = n, .run = run_update}, launches, add_part(m, "update", 0, 0)) ||
        time_exchanges(n, launches, m) || (ranks > 1 && time_halves(n, launches, captured, m)))
        return 1;
    if (captured)
        (void)time_captured((part){.n = n, .run = run_step}, "step, captured", n->halo_bytes,
                            launches, m);
    return 0;
}
