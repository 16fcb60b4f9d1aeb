// SPDX-License-Identifier: Apache-2.0
// Neighbours on the CPU: points sorted by cell; for each occupied cell the nine runs of points in and
// around it; then every point of the cell against those runs, twice, to count and to write.
#include <math.h>
#include <string.h>

#include "backends/backend_cpu.h"
#include "points/clouds_cpu.h"
#include "core/radix_sort.h"
#include "core/threads.h"

enum { NUM_RUNS = 9, MAX_PARTS = 64, INSERTION_PAIRS = 48 };

// Points of a cloud by cell. The lists of a search belong to cells of the one and runs of the other.
typedef struct cell_points {
    int64_t max_points;
    int64_t num_points;  // that have a cell
    int64_t num_cells;   // occupied
    uint64_t *cell_keys; // [num_cells] ascending
    int32_t *cell_begin; // [num_cells + 1] into those below
    int32_t *rows;       // [num_points]
    float *x, *y, *z;    // [num_points]
} cell_points;

typedef struct search_workspace {
    cell_points clouds[SPOPS_NUM_SIDES]; // TARGET is a copy of SOURCE where they are the same
    spops_radix_buffers sort;
    int32_t *tap_counts; // [MAX_PARTS][num_taps]
} search_workspace;

static void carve_cells(cell_points *c, int64_t max_points, spops_carver *carver)
{
    c->max_points = max_points;
    c->cell_keys = spops_carve(carver, max_points, 1, sizeof *c->cell_keys);
    c->cell_begin = spops_carve(carver, max_points + 1, 1, sizeof *c->cell_begin);
    c->rows = spops_carve(carver, max_points, 1, sizeof *c->rows);
    c->x = spops_carve(carver, max_points, 1, sizeof *c->x);
    c->y = spops_carve(carver, max_points, 1, sizeof *c->y);
    c->z = spops_carve(carver, max_points, 1, sizeof *c->z);
}

// The same carving measures and places; counts of a search lie in front of it, for the fill.
static search_workspace *carve_workspace(const spops_neighbors_arrays *a, search_workspace *local,
                                         spops_carver *carver)
{
    search_workspace *kept = spops_carve(carver, 1, 1, sizeof *kept);
    search_workspace *w = kept != NULL ? kept : local;
    const int64_t max_in = a->sides[SPOPS_SIDE_SOURCE].max_rows;
    const int64_t max_out = a->sides[SPOPS_SIDE_TARGET].max_rows;

    carve_cells(&w->clouds[SPOPS_SIDE_SOURCE], max_in, carver);
    if (!a->same) carve_cells(&w->clouds[SPOPS_SIDE_TARGET], max_out, carver);
    w->sort = spops_radix_carve(8, max_in > max_out ? max_in : max_out, carver);
    w->tap_counts = spops_carve(carver, a->by_tap ? MAX_PARTS : 0, a->num_taps, sizeof(int32_t));
    return w;
}

size_t spops_cpu_neighbors_workspace_bytes(spops_context *ctx, const spops_neighbors_args *args)
{
    spops_carver carver = {NULL, 0};
    search_workspace local;
    (void)ctx;
    memset(&local, 0, sizeof local);
    (void)carve_workspace(args->arrays, &local, &carver);
    return carver.used;
}

// ---- Points -------------------------------------------------------------------------------------

typedef struct key_work {
    const spops_cell_grid *grid;
    const spops_point_cloud *cloud;
    const int32_t *rows;
    uint64_t *keys;
} key_work;

static void key_range(const void *work, int64_t begin, int64_t end)
{
    const key_work *k = (const key_work *)work;
    const spops_point_cloud *cloud = k->cloud;
    for (int64_t s = begin; s < end; ++s) {
        const float *p = spops_point_of(cloud, k->rows[s]);
        const int32_t sample = spops_cloud_sample_of(cloud, k->rows[s]);
        k->keys[s] = spops_cell_key(k->grid, sample, p[0], p[1], p[2]);
    }
}

static void sort_cells(spops_context *ctx, const spops_cell_grid *grid, int32_t sample_bits,
                       const spops_point_cloud *cloud, int64_t n, const spops_radix_buffers *sort,
                       cell_points *c)
{
    const key_work work = {grid, cloud, sort->values[0], (uint64_t *)sort->keys[0]};
    const uint64_t *keys;
    const int32_t *rows;
    int64_t finite = 0, num_cells = 0;
    int from;

    for (int64_t i = 0; i < n; ++i)
        if (spops_is_finite_point(spops_point_of(cloud, i))) sort->values[0][finite++] = (int32_t)i;
    spops_parallel_for(spops_team_for(ctx, finite), finite, 0, key_range, &work);
    from = spops_radix_sort(spops_team_for(ctx, finite), 3 * grid->bits + sample_bits, finite, sort,
                            0);
    keys = (const uint64_t *)sort->keys[from];
    rows = sort->values[from];
    for (int64_t s = 0; s < finite; ++s) {
        const float *p = spops_point_of(cloud, rows[s]);
        if (s == 0 || keys[s] != keys[s - 1]) {
            c->cell_keys[num_cells] = keys[s];
            c->cell_begin[num_cells++] = (int32_t)s;
        }
        c->rows[s] = rows[s];
        c->x[s] = p[0];
        c->y[s] = p[1];
        c->z[s] = p[2];
    }
    c->cell_begin[num_cells] = (int32_t)finite;
    c->num_points = finite;
    c->num_cells = num_cells;
}

// ---- Searching ----------------------------------------------------------------------------------

// A run of points; the cells along z beside each other are one.
typedef struct point_run {
    int32_t begin, end;
} point_run;

// The first cell whose key is not below `key`, from `from` on, which must not be after it.
static int64_t first_cell(const cell_points *c, int64_t from, uint64_t key)
{
    int64_t step = 1, high;
    while (from + step < c->num_cells && c->cell_keys[from + step] < key) {
        from += step;
        step *= 2;
    }
    high = from + step < c->num_cells ? from + step : c->num_cells;
    while (from < high) {
        const int64_t middle = from + (high - from) / 2;
        if (c->cell_keys[middle] < key)
            from = middle + 1;
        else
            high = middle;
    }
    return from;
}

// The runs of `of` around the cell with `key`. near[r]: where those of an earlier cell began, from
// which to look.
static void find_runs(const cell_points *of, int32_t bits, uint64_t key, int64_t *near,
                      point_run *runs)
{
    for (int r = 0; r < NUM_RUNS; ++r) {
        const uint64_t column = key + ((uint64_t)(int64_t)(r / 3 - 1) << 2 * bits) +
                                ((uint64_t)(int64_t)(r % 3 - 1) << bits);
        int64_t cell = first_cell(of, near[r], column - 1);
        near[r] = cell;
        runs[r].begin = of->cell_begin[cell];
        while (cell < of->num_cells && of->cell_keys[cell] <= column + 1)
            ++cell;
        runs[r].end = of->cell_begin[cell];
    }
}

// What a search does with a side: lists of `center`'s points among `other`'s.
typedef struct side_search {
    const spops_neighbors_arrays *a;
    const cell_points *center, *other;
    const spops_neighbor_side *side;
    bool reversed;   // centres are inputs
    int32_t *counts; // of rows; NULL: write lists
} side_search;

static int64_t count_point(const spops_pair_rule *rule, const cell_points *of,
                           const point_run *runs, float x, float y, float z)
{
    int64_t count = 0;
    for (int r = 0; r < NUM_RUNS; ++r) {
        int32_t in_run = 0;
        if (rule->chebyshev) {
            for (int32_t q = runs[r].begin; q < runs[r].end; ++q)
                in_run += spops_are_neighbors(rule, of->x[q] - x, of->y[q] - y, of->z[q] - z);
        } else {
            for (int32_t q = runs[r].begin; q < runs[r].end; ++q)
                in_run +=
                    spops_distance2(of->x[q] - x, of->y[q] - y, of->z[q] - z) <= rule->radius2;
        }
        count += in_run;
    }
    return count;
}

static bool comes_before(const int32_t *rows, const uint16_t *taps, int64_t p, int64_t q)
{
    return taps[p] != taps[q] ? taps[p] < taps[q] : rows[p] < rows[q];
}

static void swap_pairs(int32_t *rows, uint16_t *taps, int64_t p, int64_t q)
{
    const int32_t row = rows[p];
    const uint16_t tap = taps[p];
    rows[p] = rows[q];
    taps[p] = taps[q];
    rows[q] = row;
    taps[q] = tap;
}

static void sift_down(int32_t *rows, uint16_t *taps, int64_t p, int64_t n)
{
    for (int64_t child; (child = 2 * p + 1) < n; p = child) {
        if (child + 1 < n && comes_before(rows, taps, child, child + 1)) ++child;
        if (!comes_before(rows, taps, p, child)) return;
        swap_pairs(rows, taps, p, child);
    }
}

// By tap, then by row; no two pairs of a list are equal.
static void sort_list(int32_t *rows, uint16_t *taps, int64_t n)
{
    if (n <= INSERTION_PAIRS) {
        for (int64_t p = 1; p < n; ++p)
            for (int64_t q = p; q > 0 && comes_before(rows, taps, q, q - 1); --q)
                swap_pairs(rows, taps, q, q - 1);
        return;
    }
    for (int64_t p = n / 2; p-- > 0;)
        sift_down(rows, taps, p, n);
    for (int64_t last = n; last-- > 1;) {
        swap_pairs(rows, taps, 0, last);
        sift_down(rows, taps, 0, last);
    }
}

// Of an output, with a cap.
static void write_capped_list(const side_search *s, const point_run *runs, int64_t point,
                              int32_t row)
{
    const cell_points *of = s->other;
    const float x = s->center->x[point], y = s->center->y[point], z = s->center->z[point];
    const int64_t begin = s->side->offsets[row];
    uint64_t ranks[SPOPS_MAX_NEIGHBORS];
    uint16_t taps[SPOPS_MAX_NEIGHBORS];
    int32_t n = 0;

    if (s->side->offsets[row + 1] == begin) return;
    for (int r = 0; r < NUM_RUNS; ++r) {
        for (int32_t q = runs[r].begin; q < runs[r].end; ++q) {
            const float dx = of->x[q] - x, dy = of->y[q] - y, dz = of->z[q] - z;
            if (!spops_are_neighbors(&s->a->rule, dx, dy, dz)) continue;
            const uint64_t rank =
                spops_neighbor_rank(&s->a->cap, spops_distance2(dx, dy, dz), row, of->rows[q]);
            if (spops_drops_neighbor(&s->a->cap, ranks, n, rank))
                continue; // before its tap is found
            n = spops_keep_neighbor(&s->a->cap, ranks, taps, n, rank,
                                    spops_pair_tap(&s->a->rule, dx, dy, dz));
        }
    }
    for (int32_t i = 0; i < n; ++i) {
        s->side->rows[begin + i] = (int32_t)(uint32_t)ranks[i];
        s->side->taps[begin + i] = taps[i];
    }
    sort_list(s->side->rows + begin, s->side->taps + begin, n);
}

static void write_list(const side_search *s, const point_run *runs, int64_t point, int32_t row)
{
    const spops_pair_rule *rule = &s->a->rule;
    const cell_points *of = s->other;
    const float x = s->center->x[point], y = s->center->y[point], z = s->center->z[point];
    const int64_t begin = s->side->offsets[row];
    int32_t *rows;
    uint16_t *taps;
    int64_t n = 0;

    if (s->side->offsets[row + 1] == begin) return; // where there are no pairs there are no arrays
    rows = s->side->rows + begin;
    taps = s->side->taps + begin;
    for (int r = 0; r < NUM_RUNS; ++r) {
        for (int32_t q = runs[r].begin; q < runs[r].end; ++q) {
            const float dx = of->x[q] - x, dy = of->y[q] - y, dz = of->z[q] - z;
            if (!spops_are_neighbors(rule, dx, dy, dz)) continue;
            rows[n] = of->rows[q];
            taps[n++] = (uint16_t)(s->reversed ? spops_pair_tap(rule, -dx, -dy, -dz)
                                               : spops_pair_tap(rule, dx, dy, dz));
        }
    }
    sort_list(rows, taps, n);
}

// Cells of the centres.
static void search_cells(const void *work, int64_t begin, int64_t end)
{
    const side_search *s = (const side_search *)work;
    const cell_points *c = s->center;
    int64_t near[NUM_RUNS] = {0};
    point_run runs[NUM_RUNS];

    for (int64_t cell = begin; cell < end; ++cell) {
        find_runs(s->other, s->a->state->grid.bits, c->cell_keys[cell], near, runs);
        for (int64_t p = c->cell_begin[cell]; p < c->cell_begin[cell + 1]; ++p) {
            const int32_t row = c->rows[p];
            if (s->counts == NULL && s->a->cap.most > 0) {
                write_capped_list(s, runs, p, row);
            } else if (s->counts == NULL) {
                write_list(s, runs, p, row);
            } else {
                const int64_t most = s->a->cap.most > 0 ? s->a->cap.most : INT32_MAX;
                const int64_t n =
                    count_point(&s->a->rule, s->other, runs, c->x[p], c->y[p], c->z[p]);
                s->counts[row] = n < most ? (int32_t)n : (int32_t)most;
            }
        }
    }
}

static void search_side(spops_context *ctx, const side_search *s)
{
    const int64_t num_cells = s->center->num_cells;
    const spops_team team = spops_team_for(ctx, s->center->num_points * 16);
    // More ranges than threads, because cells differ; each looks for its first runs anew.
    spops_parallel_for(team, num_cells, num_cells / MAX_PARTS + 1, search_cells, s);
}

static side_search side_of(const spops_neighbors_arrays *a, const search_workspace *w, int side)
{
    const side_search s = {.a = a,
                           .center = &w->clouds[side],
                           .other = &w->clouds[1 - side],
                           .side = &a->sides[side],
                           .reversed = side == SPOPS_SIDE_SOURCE};
    return s;
}

// Counts, which lie where offsets will, become offsets. Returns their sum; where that is more than
// fits, all offsets are 0.
static int64_t scan_counts(int32_t *offsets, int64_t n, int64_t max_pairs)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < n; ++i) {
        const int32_t count = offsets[i];
        offsets[i] = sum <= max_pairs ? (int32_t)sum : 0;
        sum += count;
    }
    offsets[n] = sum <= max_pairs ? (int32_t)sum : 0;
    if (sum > max_pairs) memset(offsets, 0, (size_t)(n + 1) * sizeof *offsets);
    return sum;
}

spops_status spops_cpu_neighbors_search(spops_context *ctx, const spops_neighbors_args *args)
{
    const spops_neighbors_arrays *a = args->arrays;
    spops_carver carver = {args->workspace, 0};
    search_workspace *w = carve_workspace(a, NULL, &carver);
    spops_neighbors_state *state = a->state;
    spops_cloud_bounds bounds = {
        {INFINITY, INFINITY, INFINITY}, {-INFINITY, -INFINITY, -INFINITY}, 0, 0};
    int64_t rows[SPOPS_NUM_SIDES];
    double extent = 0.0;
    int32_t sample_bits = 0;

    memset(state, 0, sizeof *state);
    for (int c = SPOPS_SIDE_SOURCE; c >= 0; --c) {
        const spops_point_cloud *cloud = args->clouds[c];
        state->bad_row[c] = INT32_MAX;
        rows[c] = cloud == NULL ? rows[SPOPS_SIDE_SOURCE] : spops_cloud_rows(cloud);
        state->bad_offsets |= rows[c] < 0;
    }
    while (sample_bits < 31 && (a->max_samples - 1) >> sample_bits != 0)
        ++sample_bits;
    state->grid.bits = spops_cell_bits(sample_bits);
    for (int c = 0; c < SPOPS_NUM_SIDES; ++c) {
        if (state->bad_offsets) rows[c] = 0;
        state->num_rows[c] = (int32_t)rows[c];
        if (args->clouds[c] == NULL) continue;
        spops_cloud_bound(args->clouds[c], rows[c], &bounds);
        state->bad_row[c] = bounds.bad_row;
    }
    state->num_dropped = (int32_t)bounds.dropped;
    for (int axis = 0; axis < 3; ++axis) {
        if (!(bounds.lower[axis] <= bounds.upper[axis])) continue; // no points
        state->grid.origin[axis] = bounds.lower[axis];
        if (bounds.upper[axis] - bounds.lower[axis] > extent)
            extent = bounds.upper[axis] - bounds.lower[axis];
    }
    state->grid.size = spops_cell_size(a->rule.radius, extent, state->grid.bits);

    for (int c = 0; c < SPOPS_NUM_SIDES; ++c)
        if (args->clouds[c] != NULL)
            sort_cells(ctx, &state->grid, sample_bits, args->clouds[c], rows[c], &w->sort,
                       &w->clouds[c]);
    if (a->same) w->clouds[SPOPS_SIDE_TARGET] = w->clouds[SPOPS_SIDE_SOURCE];
    for (int side = 0; side < SPOPS_NUM_SIDES; ++side) {
        side_search s = side_of(a, w, side);
        if (s.side->offsets == NULL) continue;
        s.counts = s.side->offsets;
        memset(s.counts, 0, (size_t)(s.side->max_rows + 1) * sizeof *s.counts);
        if (a->cap.most > 0 && side == SPOPS_SIDE_SOURCE) continue; // after the lists of outputs
        search_side(ctx, &s);
        state->num_pairs = scan_counts(s.counts, s.side->max_rows, a->max_pairs);
    }
    state->overflow = state->num_pairs > a->max_pairs;
    return SPOPS_STATUS_OK;
}

// ---- Lists of inputs from those of outputs ------------------------------------------------------

static void sort_lists(const void *work, int64_t begin, int64_t end)
{
    const spops_neighbor_side *side = (const spops_neighbor_side *)work;
    for (int64_t r = begin; r < end; ++r)
        sort_list(side->rows + side->offsets[r], side->taps + side->offsets[r],
                  side->offsets[r + 1] - side->offsets[r]);
}

// offsets[i + 1] counts, then is where the next pair of input i goes, which in the end is its end.
static void reverse_lists(spops_context *ctx, const spops_neighbors_arrays *a)
{
    const spops_neighbor_side *out = &a->sides[SPOPS_SIDE_TARGET];
    const spops_neighbor_side *in = &a->sides[SPOPS_SIDE_SOURCE];
    const int64_t num_pairs = out->offsets[out->max_rows];
    int32_t begin = 0;

    if (num_pairs == 0) return;
    for (int64_t p = 0; p < num_pairs; ++p)
        ++in->offsets[out->rows[p] + 1];
    for (int64_t i = 1; i <= in->max_rows; ++i) {
        const int32_t count = in->offsets[i];
        in->offsets[i] = begin;
        begin += count;
    }
    for (int64_t r = 0; r < out->max_rows; ++r) {
        for (int64_t p = out->offsets[r]; p < out->offsets[r + 1]; ++p) {
            const int32_t place = in->offsets[out->rows[p] + 1]++;
            in->rows[place] = (int32_t)r;
            in->taps[place] = out->taps[p];
        }
    }
    spops_parallel_for(spops_team_for(ctx, num_pairs), in->max_rows, 0, sort_lists, in);
}

// ---- Pairs by tap -------------------------------------------------------------------------------

typedef struct tap_work {
    const spops_neighbors_arrays *a;
    int32_t *counts; // [parts][num_taps], then where each part's begin
} tap_work;

static void count_taps(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const tap_work *t = (const tap_work *)work;
    const spops_neighbor_side *out = &t->a->sides[SPOPS_SIDE_TARGET];
    int32_t *counts = t->counts + part * t->a->num_taps;
    memset(counts, 0, (size_t)t->a->num_taps * sizeof *counts);
    for (int64_t p = out->offsets[begin]; p < out->offsets[end]; ++p)
        ++counts[out->taps[p]];
}

static void write_taps(const void *work, int64_t part, int64_t begin, int64_t end)
{
    const tap_work *t = (const tap_work *)work;
    const spops_neighbor_side *out = &t->a->sides[SPOPS_SIDE_TARGET];
    int32_t *next = t->counts + part * t->a->num_taps;
    for (int64_t r = begin; r < end; ++r) {
        for (int64_t p = out->offsets[r]; p < out->offsets[r + 1]; ++p) {
            const int32_t place = next[out->taps[p]]++;
            t->a->in_rows[place] = out->rows[p];
            t->a->out_rows[place] = (int32_t)r;
        }
    }
}

static void sort_by_tap(spops_context *ctx, const spops_neighbors_arrays *a, int32_t *counts)
{
    const int64_t num_rows = a->state->num_rows[SPOPS_SIDE_TARGET];
    const spops_team team = spops_team_for(ctx, a->sides[SPOPS_SIDE_TARGET].offsets[num_rows]);
    const int num_parts = spops_team_parts(team, MAX_PARTS);
    const tap_work work = {a, counts};
    int32_t sum = 0;

    spops_parallel_parts(team, num_parts, num_rows, count_taps, &work);
    for (int32_t tap = 0; tap < a->num_taps; ++tap) {
        a->tap_offsets[tap] = sum;
        for (int part = 0; part < num_parts; ++part) {
            int32_t *place = counts + (int64_t)part * a->num_taps + tap;
            const int32_t count = *place;
            *place = sum;
            sum += count;
        }
    }
    a->tap_offsets[a->num_taps] = sum;
    spops_parallel_parts(team, num_parts, num_rows, write_taps, &work);
}

spops_status spops_cpu_neighbors_fill(spops_context *ctx, const spops_neighbors_args *args)
{
    const spops_neighbors_arrays *a = args->arrays;
    const search_workspace *w = (const search_workspace *)args->workspace;

    for (int side = 0; side < SPOPS_NUM_SIDES; ++side) {
        const side_search s = side_of(a, w, side);
        if (s.side->offsets == NULL) continue;
        if (a->cap.most > 0 && side == SPOPS_SIDE_SOURCE)
            reverse_lists(ctx, a);
        else
            search_side(ctx, &s);
    }
    if (a->by_tap) sort_by_tap(ctx, a, w->tap_counts);
    return SPOPS_STATUS_OK;
}
