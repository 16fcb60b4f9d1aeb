// SPDX-License-Identifier: Apache-2.0
// Farthest point sampling on the CPU: points in Z order, boxes around runs of them, and boxes around
// boxes. Each box knows how far its farthest point is from the points taken. A point that is taken
// only goes down to boxes that have a point nearer to it than to those before.
#include <string.h>

#include "backends/backend_cpu.h"
#include "core/radix_sort.h"
#include "core/threads.h"
#include "points/clouds_cpu.h"
#include "points/farthest_args.h"
#include "points/nearest_walk.h"

enum { LEAF = 64, FANOUT = 8, MAX_LEVELS = 12 };

// The boxes in a box, side by side: box `at` of a level is number at % FANOUT of family at / FANOUT.
typedef struct family {
    float lower[3][FANOUT], upper[3][FANOUT];
    float farthest[FANOUT]; // d2 of a box's farthest point to the points taken; -1: all are taken
    int32_t rows[FANOUT];   // the lowest one at that distance
} family;

// Points in the order of their cells.
typedef struct ordered_points {
    float *x, *y, *z;
    float *d2; // to the nearest point taken; -1: taken itself
    int32_t *rows;
} ordered_points;

typedef struct workspace {
    spops_radix_buffers sort;
    ordered_points points;
    family *families; // of a sample whose points begin at p, from p / 64 + 2 * sample on
} workspace;

// A sample with n points has at most n / 64 + 2 families: n / 512 of leaves, an eighth of that of their
// boxes, and so on, each number rounded up.
static int64_t first_family_of(int64_t begin, int64_t sample)
{
    return begin / 64 + 2 * sample;
}

static workspace carve_workspace(int64_t n, int64_t num_samples, spops_carver *c)
{
    workspace w;
    w.sort = spops_radix_carve(8, n, c);
    w.points.x = spops_carve(c, n, 1, sizeof(float));
    w.points.y = spops_carve(c, n, 1, sizeof(float));
    w.points.z = spops_carve(c, n, 1, sizeof(float));
    w.points.d2 = spops_carve(c, n, 1, sizeof(float));
    w.points.rows = spops_carve(c, n, 1, sizeof(int32_t));
    w.families = spops_carve(c, first_family_of(n, num_samples), 1, sizeof(family));
    return w;
}

static workspace workspace_of(const spops_farthest_args *args, spops_carver *c)
{
    const spops_point_cloud *cloud = args->cloud;
    return carve_workspace(cloud->points.rows, cloud->num_samples > 1 ? cloud->num_samples : 1, c);
}

size_t spops_cpu_farthest_workspace_bytes(spops_context *ctx, const spops_farthest_args *args)
{
    spops_carver carver = {NULL, 0};
    (void)ctx;
    (void)workspace_of(args, &carver);
    return carver.used;
}

// ---- A sample's tree ----------------------------------------------------------------------------

typedef struct tree {
    ordered_points p; // its own
    int64_t num_points;
    family *levels[MAX_LEVELS]; // 0 has the leaves
    int64_t sizes[MAX_LEVELS];
    int num_levels;
} tree;

static void refresh_leaf(const tree *t, int64_t leaf)
{
    const int64_t begin = leaf * LEAF;
    const int64_t n = t->num_points - begin < LEAF ? t->num_points - begin : LEAF;
    const float *d2 = t->p.d2 + begin;
    const int32_t *rows = t->p.rows + begin;
    family *f = &t->levels[0][leaf / FANOUT];
    float farthest = -1.0f;
    int32_t row = INT32_MAX;

#pragma omp simd reduction(max : farthest)
    for (int64_t i = 0; i < n; ++i)
        farthest = d2[i] > farthest ? d2[i] : farthest;
#pragma omp simd reduction(min : row)
    for (int64_t i = 0; i < n; ++i) {
        const int32_t own = d2[i] == farthest ? rows[i] : INT32_MAX;
        row = own < row ? own : row;
    }
    f->farthest[leaf % FANOUT] = farthest;
    f->rows[leaf % FANOUT] = row;
}

// Box `at` of a level above the leaves, from its own boxes.
static void refresh_box(const tree *t, int level, int64_t at)
{
    const family *own = &t->levels[level - 1][at];
    family *f = &t->levels[level][at / FANOUT];
    float farthest = -1.0f;
    int32_t row = INT32_MAX;

    for (int i = 0; i < FANOUT; ++i)
        farthest = own->farthest[i] > farthest ? own->farthest[i] : farthest;
    for (int i = 0; i < FANOUT; ++i) {
        const int32_t there = own->farthest[i] == farthest ? own->rows[i] : INT32_MAX;
        row = there < row ? there : row;
    }
    f->farthest[at % FANOUT] = farthest;
    f->rows[at % FANOUT] = row;
}

static void grow(family *f, int64_t at, const float *lower, const float *upper)
{
    const int64_t i = at % FANOUT;
    for (int a = 0; a < 3; ++a) {
        if (lower[a] < f->lower[a][i]) f->lower[a][i] = lower[a];
        if (upper[a] > f->upper[a][i]) f->upper[a][i] = upper[a];
    }
}

static void clear_families(family *f, int64_t n)
{
    for (int64_t k = 0; k < n; ++k) {
        for (int i = 0; i < FANOUT; ++i) {
            for (int a = 0; a < 3; ++a) {
                f[k].lower[a][i] = INFINITY;
                f[k].upper[a][i] = -INFINITY;
            }
            f[k].farthest[i] = -1.0f;
            f[k].rows[i] = INT32_MAX;
        }
    }
}

// Families in the memory at `to`.
static void build_tree(tree *t, family *to)
{
    int64_t number = (t->num_points + LEAF - 1) / LEAF;

    t->num_levels = 0;
    for (;; number = (number + FANOUT - 1) / FANOUT) {
        const int64_t n = (number + FANOUT - 1) / FANOUT;
        t->sizes[t->num_levels] = number;
        t->levels[t->num_levels++] = to;
        clear_families(to, n);
        to += n;
        if (number == 1) break;
    }
    for (int64_t i = 0; i < t->num_points; ++i) {
        const float p[3] = {t->p.x[i], t->p.y[i], t->p.z[i]};
        t->p.d2[i] = INFINITY;
        grow(&t->levels[0][i / LEAF / FANOUT], i / LEAF, p, p);
    }
    for (int64_t leaf = 0; leaf < t->sizes[0]; ++leaf)
        refresh_leaf(t, leaf);
    for (int level = 1; level < t->num_levels; ++level) {
        for (int64_t c = 0; c < t->sizes[level - 1]; ++c) {
            const family *own = &t->levels[level - 1][c / FANOUT];
            const int64_t i = c % FANOUT;
            const float lower[3] = {own->lower[0][i], own->lower[1][i], own->lower[2][i]};
            const float upper[3] = {own->upper[0][i], own->upper[1][i], own->upper[2][i]};
            grow(&t->levels[level][c / FANOUT / FANOUT], c / FANOUT, lower, upper);
        }
        for (int64_t at = 0; at < t->sizes[level]; ++at)
            refresh_box(t, level, at);
    }
}

// ---- Taking points ------------------------------------------------------------------------------

static void lower_leaf(const tree *t, int64_t leaf, const float *q)
{
    const int64_t begin = leaf * LEAF;
    const int64_t n = t->num_points - begin < LEAF ? t->num_points - begin : LEAF;
    const float *x = t->p.x + begin, *y = t->p.y + begin, *z = t->p.z + begin;
    float *d2 = t->p.d2 + begin;

#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const float d = spops_distance2(x[i] - q[0], y[i] - q[1], z[i] - q[2]);
        d2[i] = d < d2[i] ? d : d2[i];
    }
    refresh_leaf(t, leaf);
}

// Whether a point in a box may be nearer to q than to all points taken before, for all of a family.
// Rounding is monotone, so the distance from the box is never more than that from a point in it.
static void find_reached(const family *f, const float *q, int32_t *reached)
{
#pragma omp simd
    for (int i = 0; i < FANOUT; ++i) {
        float gap[3];
        for (int a = 0; a < 3; ++a) {
            const float below = f->lower[a][i] - q[a], above = q[a] - f->upper[a][i];
            const float most = below > above ? below : above;
            gap[a] = most > 0.0f ? most : 0.0f;
        }
        reached[i] = spops_distance2(gap[0], gap[1], gap[2]) < f->farthest[i];
    }
}

// The distances of points in the boxes of a family that q reaches, now that it is taken. Whether it
// reaches any.
static bool lower_family(const tree *t, int level, int64_t which, const float *q)
{
    int32_t reached[FANOUT];
    bool any = false;

    find_reached(&t->levels[level][which], q, reached);
    for (int i = 0; i < FANOUT; ++i) {
        const int64_t at = which * FANOUT + i;
        if (reached[i] == 0) continue;
        any = true;
        if (level == 0)
            lower_leaf(t, at, q);
        else if (lower_family(t, level - 1, at, q))
            refresh_box(t, level, at);
    }
    return any;
}

// The farthest point is taken: it is marked, and boxes around it no longer have it.
static void take_farthest(const tree *t, float *q)
{
    const int32_t row = t->levels[t->num_levels - 1]->rows[0];
    int64_t at = 0, i;

    for (int level = t->num_levels - 1; level > 0; --level) {
        const family *f = &t->levels[level - 1][at];
        at *= FANOUT;
        for (i = 0; f->rows[i] != row;)
            ++i;
        at += i;
    }
    i = at * LEAF;
    while (t->p.rows[i] != row)
        ++i;
    t->p.d2[i] = -1.0f;
    q[0] = t->p.x[i];
    q[1] = t->p.y[i];
    q[2] = t->p.z[i];
    refresh_leaf(t, at);
    for (int level = 1; level < t->num_levels; ++level)
        refresh_box(t, level, at /= FANOUT);
}

// ---- Samples ------------------------------------------------------------------------------------

typedef struct sampling {
    const spops_farthest_args *args;
    workspace w;
    int from;             // of the sort's buffers
    int64_t num_points;   // that are finite and in use
    int32_t sample_shift; // bits of a key below those of the sample
} sampling;

// The first point of a sample: keys ascend.
static int64_t begin_of(const sampling *s, int64_t sample)
{
    const uint64_t *keys = s->w.sort.keys[s->from];
    int64_t low = 0, high = s->num_points;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if ((int64_t)(keys[middle] >> s->sample_shift) < sample)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void sample_range(const void *work, int64_t first, int64_t last)
{
    const sampling *s = (const sampling *)work;
    const spops_farthest_args *args = s->args;

    if (args->count == 0) return;
    for (int64_t b = first; b < last; ++b) {
        const int64_t begin = begin_of(s, b), end = begin_of(s, b + 1);
        const ordered_points p = s->w.points;
        int32_t *rows = args->rows + b * args->count;
        float *distances2 = args->distances2 == NULL ? NULL : args->distances2 + b * args->count;
        int64_t count = args->counts == NULL ? args->count : args->counts[b];
        tree t = {.num_points = end - begin};
        int64_t k = 0;

        if (count > args->count) count = args->count;
        if (count > t.num_points) count = t.num_points;
        if (count > 0) {
            t.p = (ordered_points){p.x + begin, p.y + begin, p.z + begin, p.d2 + begin,
                                   p.rows + begin};
            build_tree(&t, s->w.families + first_family_of(begin, b));
        }
        for (; k < count; ++k) {
            const family *top = t.levels[t.num_levels - 1];
            float q[3];
            rows[k] = top->rows[0];
            if (distances2 != NULL) distances2[k] = top->farthest[0];
            take_farthest(&t, q);
            (void)lower_family(&t, t.num_levels - 1, 0, q);
        }
        for (; k < args->count; ++k) {
            rows[k] = -1;
            if (distances2 != NULL) distances2[k] = 0.0f;
        }
    }
}

// Of every third bit, the lowest 16.
static uint64_t spread(uint64_t v)
{
    uint64_t x = v & 0xffff;
    x = (x | x << 16) & 0x0000ff0000ffu;
    x = (x | x << 8) & 0x00f00f00f00fu;
    x = (x | x << 4) & 0x0c30c30c30c3u;
    return (x | x << 2) & 0x249249249249u;
}

typedef struct order_work {
    const spops_point_cloud *cloud;
    spops_cell_grid grid;
    uint64_t *keys;
    int32_t *rows; // to be sorted, then sorted
    const ordered_points *to;
} order_work;

// Keys with the sample on top; of points that are not finite NONE, after all others.
static void key_range(const void *work, int64_t begin, int64_t end)
{
    const order_work *w = (const order_work *)work;
    const int32_t bits = w->grid.bits;
    const uint64_t mask = (UINT64_C(1) << bits) - 1;
    for (int64_t i = begin; i < end; ++i) {
        const float *p = spops_point_of(w->cloud, i);
        w->rows[i] = (int32_t)i;
        w->keys[i] = SPOPS_CELL_NONE;
        if (!spops_is_finite_point(p)) continue;
        const uint64_t key =
            spops_cell_key(&w->grid, spops_cloud_sample_of(w->cloud, i), p[0], p[1], p[2]);
        w->keys[i] = (key >> 3 * bits) << 3 * bits | spread(key >> 2 * bits & mask) << 2 |
                     spread(key >> bits & mask) << 1 | spread(key & mask);
    }
}

static void place_range(const void *work, int64_t begin, int64_t end)
{
    const order_work *w = (const order_work *)work;
    for (int64_t i = begin; i < end; ++i) {
        const float *p = spops_point_of(w->cloud, w->rows[i]);
        w->to->x[i] = p[0];
        w->to->y[i] = p[1];
        w->to->z[i] = p[2];
        w->to->rows[i] = w->rows[i];
    }
}

// Points that count, by sample and then in Z order.
static void order_points(spops_context *ctx, sampling *s)
{
    const spops_point_cloud *cloud = s->args->cloud;
    const int64_t found = spops_cloud_rows(cloud), rows = found < 0 ? 0 : found;
    const spops_radix_buffers *sort = &s->w.sort;
    const spops_team team = spops_team_for(ctx, rows);
    spops_cloud_bounds bounds = {.lower = {INFINITY, INFINITY, INFINITY},
                                 .upper = {-INFINITY, -INFINITY, -INFINITY}};
    int32_t sample_bits = 0;

    spops_cloud_bound(cloud, rows, &bounds);
    order_work work = {.cloud = cloud,
                       .grid = spops_cloud_grid(&bounds, spops_cloud_samples(cloud), &sample_bits),
                       .keys = sort->keys[0],
                       .rows = sort->values[0],
                       .to = &s->w.points};
    spops_parallel_for(team, rows, 0, key_range, &work);
    s->num_points = rows - bounds.dropped;
    s->sample_shift = 3 * work.grid.bits;
    s->from = spops_radix_sort(team, s->sample_shift + sample_bits, rows, sort, 0);
    work.rows = sort->values[s->from];
    spops_parallel_for(team, s->num_points, 0, place_range, &work);
}

spops_status spops_cpu_farthest(spops_context *ctx, const spops_farthest_args *args)
{
    const int64_t num_samples = spops_cloud_samples(args->cloud);
    spops_carver carver = {args->workspace, 0};
    sampling s = {.args = args, .w = workspace_of(args, &carver)};

    order_points(ctx, &s);
    const int64_t work = 16 * (s.num_points + num_samples * args->count);
    spops_parallel_for(spops_team_for(ctx, work), num_samples, 1, sample_range, &s);
    return SPOPS_STATUS_OK;
}
