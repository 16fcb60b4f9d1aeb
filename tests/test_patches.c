// SPDX-License-Identifier: Apache-2.0
// Plans of patches: lists, what follows from them, and what is refused, against what the description
// says, entry by entry.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "patches/patches.h"
#include "support/device.h"
#include "tests/support/params.h"
#include "tests/support/random.h"

// ---- Lists --------------------------------------------------------------------------------------

typedef enum key_kind {
    KEYS_ARE_QUERIES,
    KEYS_ONCE,  // each row at most once
    KEYS_TWICE, // rows at random
    KEYS_FEW,   // of another matrix, of less rows
    KEYS_MANY,  // of more
    NUM_KEY_KINDS
} key_kind;

typedef struct patch_case {
    const char *name;
    int32_t sizes[8]; // of patches' queries, in turn
    int num_sizes, num_patches;
    int32_t spare_rows; // that are no query
} patch_case;

static const patch_case cases[] = {
    {"nothing", {0}, 1, 0, 0},
    {"rows alone", {0}, 1, 0, 70},
    {"empty patches", {0}, 1, 5, 3},
    {"one row", {1}, 1, 1, 0},
    {"rows of their own", {1}, 1, 300, 5},
    {"around tiles", {63, 64, 65, 127, 128, 129, 0, 1}, 8, 16, 10},
    {"mixed", {1000, 3, 0, 17, 260, 1, 64, 128}, 8, 40, 999},
    {"one large", {5000}, 1, 1, 1},
    {"many small", {16, 2, 7}, 3, 3000, 100},
};
enum { NUM_CASES = (int)(sizeof cases / sizeof cases[0]) };

typedef struct host_side {
    int32_t *offsets, *rows;
    int32_t num;
} host_side;

typedef struct host_lists {
    int32_t num_rows, num_key_rows, num_patches;
    bool same;
    host_side side[2];
} host_lists;

static int32_t rows_of(const host_lists *l, int side)
{
    return side == 0 ? l->num_rows : l->num_key_rows;
}

static void *zeroed(int64_t n)
{
    void *p = calloc((size_t)(n > 0 ? n : 1), sizeof(int32_t));
    cr_assert(p != NULL, "no memory");
    return p;
}

static host_lists make_lists(const patch_case *c, key_kind keys, uint64_t stream)
{
    test_rng rng = test_rng_make(stream);
    host_lists l = {.num_patches = c->num_patches, .same = keys == KEYS_ARE_QUERIES};
    int32_t *all;
    for (int i = 0; i < 2; ++i)
        l.side[i].offsets = zeroed(c->num_patches + 1);
    for (int p = 0; p < c->num_patches; ++p) {
        const int32_t n = c->sizes[p % c->num_sizes];
        l.side[0].num += n;
        l.side[0].offsets[p + 1] = l.side[0].num;
        // Other sizes for keys, some of them none.
        l.side[1].num += l.same ? n : keys == KEYS_ONCE ? n / 2 : (n * 7 + p) % 150;
        l.side[1].offsets[p + 1] = l.side[1].num;
    }
    l.num_rows = l.side[0].num + c->spare_rows;
    if (l.num_rows == 0 && l.side[1].num > 0) l.num_rows = 1;
    l.num_key_rows = keys == KEYS_FEW ? 37 : keys == KEYS_MANY ? l.num_rows + 700 : l.num_rows;
    all = zeroed(l.num_rows);
    for (int32_t r = 0; r < l.num_rows; ++r)
        all[r] = r;
    for (int i = 0; i < 2; ++i) {
        l.side[i].rows = zeroed(l.side[i].num);
        test_rng_shuffle_i32(&rng, all, l.num_rows);
        for (int32_t e = 0; e < l.side[i].num; ++e)
            l.side[i].rows[e] = i == 0              ? all[e]
                                : l.same            ? l.side[0].rows[e]
                                : keys == KEYS_ONCE ? all[e]
                                                    : (int32_t)test_rng_below(&rng, l.num_key_rows);
    }
    free(all);
    return l;
}

static void free_lists(host_lists *l)
{
    for (int i = 0; i < 2; ++i) {
        free(l->side[i].offsets);
        free(l->side[i].rows);
    }
}

typedef struct device_lists {
    spops_patch_lists lists;
    int32_t *arrays[4];
} device_lists;

static device_lists upload(test_device *d, const host_lists *l)
{
    device_lists to = {0};
    to.lists.num_patches = l->num_patches;
    for (int i = 0; i < (l->same ? 1 : 2); ++i) {
        to.arrays[2 * i] = test_upload_i32(d, l->side[i].offsets, l->num_patches + 1);
        to.arrays[2 * i + 1] = test_upload_i32(d, l->side[i].rows, l->side[i].num);
    }
    to.lists.query_offsets = to.arrays[0];
    to.lists.query_rows = to.arrays[1];
    to.lists.key_offsets = to.arrays[2];
    to.lists.key_rows = to.arrays[3];
    if (l->num_key_rows != l->num_rows) to.lists.num_key_rows = l->num_key_rows;
    return to;
}

static void discard(test_device *d, device_lists *l)
{
    for (int i = 0; i < 4; ++i)
        test_free(d, l->arrays[i]);
}

// ---- What a plan holds --------------------------------------------------------------------------

static int32_t *fetch(test_device *d, const void *from, int64_t n)
{
    int32_t *values = zeroed(n);
    if (n > 0) test_download_i32(d, values, (const int32_t *)from, n);
    return values;
}

static void check_i32(test_device *d, const void *found, const int32_t *expected, int64_t n,
                      const char *what, const char *array)
{
    int32_t *values = fetch(d, found, n);
    for (int64_t i = 0; i < n; ++i)
        cr_assert_eq(values[i], expected[i], "%s: %s[%lld] is %d, expected %d", what, array,
                     (long long)i, values[i], expected[i]);
    free(values);
}

static int compare_i32(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void check_rest(test_device *d, const host_lists *l, int side, const int32_t *rest,
                       int32_t num, const char *what)
{
    int32_t *sorted = zeroed(l->side[side].num), *expected = zeroed(rows_of(l, side)), n = 0,
            at = 0;
    if (l->side[side].num > 0)
        memcpy(sorted, l->side[side].rows, (size_t)l->side[side].num * sizeof *sorted);
    qsort(sorted, (size_t)l->side[side].num, sizeof *sorted, compare_i32);
    for (int32_t r = 0; r < rows_of(l, side); ++r) {
        while (at < l->side[side].num && sorted[at] < r)
            ++at;
        if (at == l->side[side].num || sorted[at] != r) expected[n++] = r;
    }
    cr_assert_eq(num, n, "%s: %d rows left over, expected %d", what, num, n);
    check_i32(d, rest, expected, n, what, "rest");
    free(sorted);
    free(expected);
}

// Most others first, then patches and entries as they come: by repeated search for the next.
static void check_tiles(test_device *d, const host_lists *l, int side, int size,
                        const spops_patch_tile *found, int32_t num, const char *what)
{
    const int32_t full = size == SPOPS_PATCH_TILE_64 ? 64 : 128;
    const int32_t *own = l->side[side].offsets, *other = l->side[1 - side].offsets;
    spops_patch_tile *tiles = (spops_patch_tile *)(void *)fetch(d, found, 4 * (int64_t)num);
    int32_t expected = 0, *seen = zeroed(l->side[side].num);
    for (int p = 0; p < l->num_patches; ++p)
        expected += (own[p + 1] - own[p] + full - 1) / full;
    cr_assert_eq(num, expected, "%s: %d tiles of %d, expected %d", what, num, full, expected);
    for (int32_t t = 0; t < num; ++t) {
        const spops_patch_tile tile = tiles[t];
        cr_assert(tile.patch >= 0 && tile.patch < l->num_patches, "%s: tile %d", what, t);
        cr_assert_eq(tile.num_others, other[tile.patch + 1] - other[tile.patch], "%s: tile %d",
                     what, t);
        const int32_t at = tile.first_entry - own[tile.patch];
        const int32_t left = own[tile.patch + 1] - tile.first_entry;
        cr_assert(at >= 0 && at % full == 0 && tile.num_entries == (left < full ? left : full) &&
                      tile.num_entries > 0,
                  "%s: tile %d of %d", what, t, full);
        cr_assert_eq(seen[tile.first_entry]++, 0, "%s: tile %d again", what, t);
        if (t == 0) continue;
        cr_assert(tiles[t - 1].num_others > tile.num_others ||
                      (tiles[t - 1].num_others == tile.num_others &&
                       tiles[t - 1].first_entry < tile.first_entry),
                  "%s: tile %d is not after the one before", what, t);
    }
    free(seen);
    free(tiles);
}

static void check_key_lists(test_device *d, const host_lists *l, const spops_patch_arrays *a,
                            const char *what)
{
    int32_t *offsets = zeroed(l->num_key_rows + 1), *entries = zeroed(l->side[1].num), at = 0;
    int32_t *last = zeroed(l->num_key_rows), *next = zeroed(l->side[1].num),
            *head = zeroed(l->num_key_rows);
    memset(head, 0xff, (size_t)l->num_key_rows * sizeof *head);
    for (int32_t e = 0; e < l->side[1].num; ++e) { // a chain of entries for every row
        const int32_t r = l->side[1].rows[e];
        next[e] = -1;
        if (head[r] < 0)
            head[r] = e;
        else
            next[last[r]] = e;
        last[r] = e;
    }
    for (int32_t r = 0; r < l->num_key_rows; ++r) {
        for (int32_t e = head[r]; e >= 0; e = next[e])
            entries[at++] = e;
        offsets[r + 1] = at;
    }
    check_i32(d, a->key_offsets, offsets, l->num_key_rows + 1, what, "key_offsets");
    check_i32(d, a->key_entries, entries, at, what, "key_entries");
    free(offsets), free(entries), free(last), free(next), free(head);
}

static void check_plan(test_device *d, const spops_patches *plan, const host_lists *l,
                       bool keys_once, const char *what)
{
    const spops_patch_arrays *a = &plan->arrays;
    spops_patches_info info = spops_patches_info_default();
    spops_patch_state state;
    test_expect_ok(d->ctx, spops_patches_get_info_sync(d->ctx, plan, &info), what);
    test_download_i32(d, (int32_t *)(void *)&state, (const int32_t *)(const void *)a->state,
                      sizeof state / 4);
    cr_assert_eq(info.num_rows, l->num_rows, "%s", what);
    cr_assert_eq(info.num_key_rows, l->num_key_rows, "%s", what);
    cr_assert_eq(info.num_patches, l->num_patches, "%s", what);
    cr_assert_eq(info.num_queries, l->side[0].num, "%s", what);
    cr_assert_eq(info.num_keys, l->side[1].num, "%s", what);
    cr_assert_eq(info.same, l->same, "%s", what);
    cr_assert_eq(info.keys_once, keys_once, "%s: keys_once is %d", what, info.keys_once);
    cr_assert_eq(info.refused + info.overflow, 0, "%s", what);
    for (int i = 0; i < 2; ++i) {
        const int32_t *offsets = i == 0 ? a->q_offsets : a->k_offsets;
        int32_t *ends = zeroed(a->max_patches + 1);
        for (int64_t p = 0; p <= a->max_patches; ++p)
            ends[p] = l->side[i].offsets[p < l->num_patches ? p : l->num_patches];
        check_i32(d, offsets, ends, a->max_patches + 1, what, "offsets");
        free(ends);
        check_i32(d, i == 0 ? a->q_rows : a->k_rows, l->side[i].rows, l->side[i].num, what, "rows");
        check_rest(d, l, i, i == 0 ? a->q_rest : a->k_rest,
                   i == 0 ? info.num_no_queries : info.num_no_keys, what);
        for (int t = 0; t < SPOPS_NUM_PATCH_TILES; ++t)
            check_tiles(d, l, i, t, i == 0 ? a->q_tiles[t] : a->k_tiles[t],
                        i == 0 ? state.num_q_tiles[t] : state.num_k_tiles[t], what);
    }
    if (!keys_once) check_key_lists(d, l, a, what);
    cr_assert_eq(a->key_offsets == NULL, keys_once, "%s", what);
}

// ---- Plans --------------------------------------------------------------------------------------

BackendTest(patches, created_from_lists)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int i = 0; i < NUM_CASES * NUM_KEY_KINDS; ++i) {
        const patch_case *c = &cases[i / NUM_KEY_KINDS];
        const key_kind keys = (key_kind)(i % NUM_KEY_KINDS);
        host_lists l = make_lists(c, keys, (uint64_t)i);
        device_lists there = upload(&d, &l);
        spops_patches *plan = NULL;
        bool *named = calloc((size_t)l.num_key_rows + 1, 1), once = true;
        cr_assert(named != NULL, "no memory");
        for (int32_t e = 0; e < l.side[1].num; ++e) {
            once = once && !named[l.side[1].rows[e]];
            named[l.side[1].rows[e]] = true;
        }
        test_expect_ok(d.ctx, spops_patches_create(d.ctx, l.num_rows, &there.lists, &plan),
                       c->name);
        check_plan(&d, plan, &l, once, c->name);
        spops_patches_destroy(plan);
        discard(&d, &there);
        free_lists(&l);
        free(named);
    }
    test_close(&d);
}

// Without rows an entry is the row itself.
BackendTest(patches, entries_are_rows)
{
    test_device d;
    spops_patches *plan = NULL;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    host_lists l = make_lists(&cases[5], KEYS_ARE_QUERIES, 90);
    for (int32_t e = 0; e < l.side[0].num; ++e)
        l.side[0].rows[e] = l.side[1].rows[e] = e;
    device_lists there = upload(&d, &l);
    there.lists.query_rows = NULL;
    test_expect_ok(d.ctx, spops_patches_create(d.ctx, l.num_rows, &there.lists, &plan), "no rows");
    check_plan(&d, plan, &l, true, "no rows");
    spops_patches_destroy(plan);
    discard(&d, &there);
    free_lists(&l);
    test_close(&d);
}

// The arrays of a plan by reserve, as one captured graph reads them.
typedef struct set_buffers {
    int32_t *num_patches, *arrays[4];
    spops_patch_lists lists;
} set_buffers;

static void put(test_device *d, int32_t *to, const int32_t *values, int64_t n)
{
    cr_assert(device_upload(d->backend, to, values, (size_t)n * sizeof *values), "%s",
              device_error());
}

static void fill_buffers(test_device *d, const set_buffers *b, const host_lists *l)
{
    put(d, b->num_patches, &l->num_patches, 1);
    for (int i = 0; i < (l->same ? 1 : 2); ++i) {
        put(d, b->arrays[2 * i], l->side[i].offsets, l->num_patches + 1);
        put(d, b->arrays[2 * i + 1], l->side[i].rows, l->side[i].num);
    }
}

typedef enum spoiling {
    NOTHING_WRONG,
    TOO_MANY_PATCHES,
    TOO_MANY_ENTRIES,
    OFFSETS_DESCEND,
    ROW_BEYOND,
    ROW_NEGATIVE,
    QUERY_TWICE,
    NUM_SPOILINGS
} spoiling;

static void spoil(test_device *d, const set_buffers *b, const host_lists *l, spoiling s,
                  int64_t max_patches, int64_t max_queries)
{
    const int32_t last = l->num_patches;
    const int32_t wrong[NUM_SPOILINGS] = {
        0,  (int32_t)max_patches + 1, (int32_t)max_queries + 1, -1, l->num_rows,
        -1, l->side[0].rows[0]};
    int32_t *const at[NUM_SPOILINGS] = {NULL,
                                        b->num_patches,
                                        b->arrays[0] + last,
                                        b->arrays[0] + last / 2,
                                        b->arrays[1] + 7,
                                        b->arrays[1] + 9,
                                        b->arrays[1] + l->side[0].num - 1};
    if (s != NOTHING_WRONG) put(d, at[s], &wrong[s], 1);
}

LaunchTest(patches, set_on_the_stream)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    static const int32_t key_rows[] = {30000, 30000, 200,
                                       50000}; // of the last two, of another matrix
    for (int kind = 0; kind < 4; ++kind) {
        const int same = kind == 0;
        const host_lists nothing = {.num_rows = 30000,
                                    .num_key_rows = key_rows[kind],
                                    .same = same == 1,
                                    .side = {{.offsets = zeroed(1)}, {.offsets = zeroed(1)}}};
        spops_patches_capacity shape = spops_patches_capacity_default();
        set_buffers b = {0};
        spops_patches *plan = NULL;
        device_graph *graph = NULL;
        shape.num_rows = nothing.num_rows;
        shape.max_patches = 3100;
        shape.max_queries = 40000;
        shape.max_keys = same ? 0 : 300000;
        shape.same = same;
        shape.num_key_rows = kind < 2 ? 0 : key_rows[kind];
        test_expect_ok(d.ctx, spops_patches_reserve(d.ctx, &shape, &plan), "reserve");
        check_plan(&d, plan, &nothing, same == 1, "before the first set");
        b.num_patches = test_upload_i32(&d, &nothing.num_rows, 1);
        for (int i = 0; i < 4; ++i) {
            int32_t *none = zeroed(300001);
            b.arrays[i] = test_upload_i32(&d, none, 300001);
            free(none);
        }
        b.lists = (spops_patch_lists){shape.max_patches,
                                      b.arrays[0],
                                      b.arrays[1],
                                      same ? NULL : b.arrays[2],
                                      same ? NULL : b.arrays[3],
                                      0};
        if (d.launch == LAUNCH_CAPTURED) {
            cr_assert(device_capture_begin(d.stream), "%s", device_error());
            const spops_status status = spops_patches_update(d.ctx, plan, b.num_patches, &b.lists);
            cr_assert(device_capture_end(d.stream, &graph), "%s", device_error());
            test_expect_ok(d.ctx, status, "captured");
        }
        for (int i = 0; i < NUM_CASES + NUM_SPOILINGS; ++i) {
            const spoiling wrong = i < NUM_CASES ? NOTHING_WRONG : (spoiling)(i - NUM_CASES);
            const patch_case *c = &cases[i < NUM_CASES ? i : 5];
            const key_kind keys = same       ? KEYS_ARE_QUERIES
                                  : kind > 1 ? KEYS_FEW
                                  : i % 2    ? KEYS_ONCE
                                             : KEYS_TWICE;
            spops_patches_info info = spops_patches_info_default();
            host_lists l = make_lists(c, keys, 100 + (uint64_t)i);
            l.num_rows = nothing.num_rows;
            l.num_key_rows = nothing.num_key_rows;
            fill_buffers(&d, &b, &l);
            spoil(&d, &b, &l, wrong, shape.max_patches, shape.max_queries);
            if (graph != NULL)
                cr_assert(device_graph_launch(graph, d.stream), "%s", device_error());
            else
                test_expect_ok(d.ctx, spops_patches_update(d.ctx, plan, b.num_patches, &b.lists),
                               c->name);
            test_wait(&d);
            if (wrong == NOTHING_WRONG) {
                check_plan(&d, plan, &l, same == 1, c->name);
            } else {
                const bool over = wrong <= TOO_MANY_ENTRIES;
                cr_assert_eq(spops_patches_get_info_sync(d.ctx, plan, &info),
                             over ? SPOPS_STATUS_CAPACITY_EXCEEDED : SPOPS_STATUS_OK, "%d", wrong);
                cr_assert_eq(info.overflow, over, "%d", wrong);
                cr_assert_eq(info.refused, !over, "%d", wrong);
                cr_assert_eq(info.num_patches + info.num_queries + info.num_keys, 0, "%d", wrong);
                cr_assert_eq(info.num_no_queries, l.num_rows, "%d", wrong);
                cr_assert_eq(info.num_no_keys, l.num_key_rows, "%d", wrong);
            }
            free_lists(&l);
        }
        device_graph_destroy(graph);
        spops_patches_destroy(plan);
        for (int i = 0; i < 4; ++i)
            test_free(&d, b.arrays[i]);
        test_free(&d, b.num_patches);
        free(nothing.side[0].offsets), free(nothing.side[1].offsets);
    }
    test_close(&d);
}

// ---- From an order of rows ----------------------------------------------------------------------

typedef struct host_points {
    int32_t n, samples; // samples 0: no offsets
    float *points;      // [n][3]
    int32_t *offsets, *order;
} host_points;

typedef struct order_case {
    const char *name;
    int32_t n, samples, patch_rows;
    spops_patch_curve curve;
    int32_t bits;
    bool borrow, given; // the last: the caller's order
} order_case;

static const order_case order_cases[] = {
    {"nothing", 0, 0, 16, SPOPS_PATCH_CURVE_ZORDER, 0, true, false},
    {"one row", 1, 0, 16, SPOPS_PATCH_CURVE_HILBERT, 0, true, false},
    {"less than a patch", 15, 0, 16, SPOPS_PATCH_CURVE_ZORDER, 0, true, false},
    {"whole patches", 64, 0, 16, SPOPS_PATCH_CURVE_ZORDER, 5, true, false},
    {"a tail", 1000, 0, 128, SPOPS_PATCH_CURVE_ZORDER, 10, true, false},
    {"a tail alone", 1000, 0, 128, SPOPS_PATCH_CURVE_ZORDER, 10, false, false},
    {"samples", 3000, 7, 100, SPOPS_PATCH_CURVE_ZORDER_TRANSPOSED, 7, true, false},
    {"samples of one row", 40, 40, 100, SPOPS_PATCH_CURVE_HILBERT, 7, true, false},
    {"patches of one row", 50, 3, 1, SPOPS_PATCH_CURVE_HILBERT, 3, true, false},
    {"hilbert", 4096, 0, 60, SPOPS_PATCH_CURVE_HILBERT, 4, false, false},
    {"hilbert, transposed", 4096, 3, 60, SPOPS_PATCH_CURVE_HILBERT_TRANSPOSED, 16, true, false},
    {"the caller's", 2000, 4, 60, SPOPS_PATCH_CURVE_ZORDER, 0, true, true},
};
enum { NUM_ORDER_CASES = (int)(sizeof order_cases / sizeof order_cases[0]) };

static int32_t cell(const order_case *c, float p)
{
    const double v = floor(((double)p + 1.0) / 0.5);
    const double last = ldexp(1.0, c->bits == 0 ? 16 : c->bits) - 1.0;
    return (int32_t)(v < 0.0 ? 0.0 : v > last ? last : v);
}

// Where a cell stands on a Z-order curve.
static uint64_t code_of(const order_case *c, const int32_t cells[3])
{
    const int bits = c->bits == 0 ? 16 : c->bits;
    const bool turned = c->curve == SPOPS_PATCH_CURVE_ZORDER_TRANSPOSED ||
                        c->curve == SPOPS_PATCH_CURVE_HILBERT_TRANSPOSED;
    const int32_t v[3] = {cells[turned], cells[!turned], cells[2]};
    uint64_t code = 0;
    for (int level = bits - 1; level >= 0; --level)
        for (int a = 0; a < 3; ++a)
            code = 2 * code + (uint64_t)(v[a] >> level & 1);
    return code;
}

static host_points make_points(const order_case *c, uint64_t stream)
{
    test_rng rng = test_rng_make(stream);
    host_points h = {.n = c->n, .samples = c->samples};
    h.points = zeroed(3 * (int64_t)c->n);
    h.order = zeroed(c->n);
    for (int64_t i = 0; i < 3 * (int64_t)c->n; ++i)
        h.points[i] = (float)(test_rng_unit(&rng) * (c->n > 4000 ? 8.0 : 40.0)) - 2.0f;
    if (c->samples > 0) {
        h.offsets = zeroed(c->samples + 1);
        for (int32_t b = 1; b < c->samples; ++b)
            h.offsets[b] = c->samples == c->n ? b : (int32_t)test_rng_below(&rng, c->n + 1);
        h.offsets[c->samples] = c->n;
        qsort(h.offsets, (size_t)c->samples + 1, sizeof(int32_t), compare_i32);
    }
    for (int32_t r = 0; r < c->n; ++r)
        h.order[r] = r;
    for (int32_t b = 0; b < (c->samples > 0 ? c->samples : 1); ++b) {
        const int32_t begin = c->samples > 0 ? h.offsets[b] : 0;
        const int32_t end = c->samples > 0 ? h.offsets[b + 1] : c->n;
        test_rng_shuffle_i32(&rng, h.order + begin, end - begin);
    }
    return h;
}

static void free_points(host_points *h)
{
    free(h->points), free(h->offsets), free(h->order);
}

static spops_patch_order order_of(const order_case *c, const int32_t *order)
{
    spops_patch_order o = spops_patch_order_default();
    o.patch_rows = c->patch_rows;
    o.borrow = c->borrow;
    o.curve = c->curve;
    o.bits = c->bits;
    o.order = c->given ? order : NULL;
    for (int a = 0; a < 3; ++a)
        o.size_m[a] = 0.5, o.origin_m[a] = -1.0;
    return o;
}

// The queries of a plan, one after another: the order that it found.
static int32_t *order_found(test_device *d, const spops_patches *plan, int32_t n)
{
    return fetch(d, plan->arrays.q_rows, n);
}

// Whether `order` keeps samples apart and goes along its curve, ties by row; for Hilbert curves see
// along_a_hilbert_curve.
static void check_order(const order_case *c, const host_points *h, const int32_t *order)
{
    const bool hilbert =
        c->curve == SPOPS_PATCH_CURVE_HILBERT || c->curve == SPOPS_PATCH_CURVE_HILBERT_TRANSPOSED;
    uint64_t before = 0;
    for (int32_t e = 0; e < h->n; ++e) {
        int32_t v[3];
        bool starts = e == 0;
        for (int a = 0; a < 3; ++a)
            v[a] = cell(c, h->points[3 * order[e] + a]);
        for (int32_t b = 0; b < h->samples; ++b) {
            starts = starts || h->offsets[b] == e;
            cr_assert((order[e] >= h->offsets[b]) == (e >= h->offsets[b]), "%s: sample", c->name);
        }
        if (c->given) {
            cr_assert_eq(order[e], h->order[e], "%s: entry %d", c->name, e);
            continue;
        }
        const uint64_t code = code_of(c, v);
        if (!starts && !hilbert)
            cr_assert(code > before || (code == before && order[e] > order[e - 1]),
                      "%s: entry %d is before the one before", c->name, e);
        before = code;
    }
}

// The lists that an order and a size of patches make.
static host_lists cut(const order_case *c, const host_points *h, const int32_t *order)
{
    host_lists l = {.num_rows = c->n, .num_key_rows = c->n, .same = !c->borrow};
    const int32_t samples = c->samples > 0 ? c->samples : 1;
    for (int i = 0; i < 2; ++i) {
        l.side[i].offsets = zeroed(c->n + 1);
        l.side[i].rows = zeroed(2 * (int64_t)c->n);
    }
    for (int32_t b = 0; b < samples; ++b) {
        const int32_t begin = c->samples > 0 ? h->offsets[b] : 0;
        const int32_t end = c->samples > 0 ? h->offsets[b + 1] : c->n;
        for (int32_t e = begin; e < end; e += c->patch_rows) {
            const int32_t stop = e + c->patch_rows < end ? e + c->patch_rows : end;
            const int32_t missing = c->patch_rows - (stop - e);
            for (int32_t i = e; i < stop; ++i) {
                l.side[0].rows[l.side[0].num++] = order[i];
                l.side[1].rows[l.side[1].num++] = order[i];
            }
            if (c->borrow && e > begin)
                for (int32_t i = e - missing; i < e; ++i)
                    l.side[1].rows[l.side[1].num++] = order[i];
            ++l.num_patches;
            for (int i = 0; i < 2; ++i)
                l.side[i].offsets[l.num_patches] = l.side[i].num;
        }
    }
    return l;
}

typedef struct device_points {
    spops_point_cloud cloud;
    void *points;
    int32_t *offsets, *order;
} device_points;

static device_points upload_points(test_device *d, const host_points *h)
{
    device_points to = {.offsets = test_upload_i32(d, h->offsets, h->offsets ? h->samples + 1 : 0),
                        .order = test_upload_i32(d, h->order, h->n)};
    cr_assert(device_alloc(d->backend, (size_t)h->n * 12, &to.points) &&
                  device_upload(d->backend, to.points, h->points, (size_t)h->n * 12),
              "%s", device_error());
    to.cloud.points = spops_matrix_dense(to.points, h->n, 3, SPOPS_DTYPE_F32);
    to.cloud.offsets = to.offsets;
    to.cloud.num_samples = h->offsets ? h->samples : 0;
    return to;
}

static void discard_points(test_device *d, device_points *p)
{
    test_free(d, p->points), test_free(d, p->offsets), test_free(d, p->order);
}

BackendTest(patches, from_an_order)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int i = 0; i < NUM_ORDER_CASES; ++i) {
        const order_case *c = &order_cases[i];
        host_points h = make_points(c, 500 + (uint64_t)i);
        device_points there = upload_points(&d, &h);
        const spops_patch_order o = order_of(c, there.order);
        spops_patches_capacity shape = spops_patches_capacity_default();
        spops_patches *plan = NULL;
        bool once = true;
        test_expect_ok(d.ctx, spops_patches_create_from_order(d.ctx, &there.cloud, &o, &plan),
                       c->name);
        int32_t *order = order_found(&d, plan, c->n);
        host_lists l = cut(c, &h, order);
        check_order(c, &h, order);
        once = l.side[1].num == c->n; // nothing was borrowed
        check_plan(&d, plan, &l, once, c->name);
        spops_patches_destroy(plan);
        plan = NULL;
        shape.num_rows = c->n;
        shape.max_patches = c->n + 3;
        shape.max_queries = c->n;
        shape.max_keys = c->borrow ? 2 * c->n : 0;
        shape.same = !c->borrow;
        shape.max_samples = c->samples + 1;
        test_expect_ok(d.ctx, spops_patches_reserve(d.ctx, &shape, &plan), c->name);
        test_expect_ok(d.ctx, spops_patches_update_from_order(d.ctx, plan, &there.cloud, &o),
                       c->name);
        check_plan(&d, plan, &l, !c->borrow, c->name);
        spops_patches_destroy(plan);
        free_lists(&l);
        free(order);
        discard_points(&d, &there);
        free_points(&h);
    }
    test_close(&d);
}

// ---- Several plans at once ----------------------------------------------------------------------

enum { BEHIND = 5 }; // rows of a cloud after its last sample, which no curve could place

// A case with its cloud, whose samples always have offsets, what it makes, and two plans for it.
typedef struct order_run {
    host_points h;
    device_points there;
    spops_patch_order order;
    host_lists expected;
    spops_patches *plan;
} order_run;

static void start_run(test_device *d, const order_case *c, int number, order_run *r)
{
    const int32_t samples = c->samples > 0 ? c->samples : 1;
    spops_patches_capacity shape = spops_patches_capacity_default();
    spops_patches *alone = NULL;
    r->h = make_points(c, 900 + (uint64_t)number);
    device_points exact = upload_points(d, &r->h);
    const spops_patch_order o = order_of(c, exact.order);
    test_expect_ok(d->ctx, spops_patches_create_from_order(d->ctx, &exact.cloud, &o, &alone),
                   c->name);
    int32_t *order = order_found(d, alone, c->n);
    check_order(c, &r->h, order);
    r->expected = cut(c, &r->h, order);
    r->expected.num_rows = r->expected.num_key_rows = c->n + BEHIND;
    free(order);
    spops_patches_destroy(alone);
    discard_points(d, &exact);
    // The same with rows after those that count.
    host_points more = {.n = c->n + BEHIND, .samples = samples};
    more.points = zeroed(3 * (int64_t)more.n);
    more.order = zeroed(more.n);
    more.offsets = zeroed(samples + 1);
    if (c->n > 0) memcpy(more.points, r->h.points, (size_t)c->n * 12);
    if (c->n > 0) memcpy(more.order, r->h.order, (size_t)c->n * 4);
    for (int32_t i = 3 * c->n; i < 3 * more.n; ++i)
        more.points[i] = NAN;
    more.offsets[samples] = c->n;
    if (c->samples > 0) memcpy(more.offsets, r->h.offsets, (size_t)(samples + 1) * 4);
    free_points(&r->h);
    r->h = more;
    r->there = upload_points(d, &r->h);
    r->order = order_of(c, r->there.order);
    shape.num_rows = shape.max_queries = more.n;
    // Every other plan has room for more patches than a block takes.
    shape.max_patches = number % 2 ? 2000 : r->expected.num_patches + 2;
    shape.max_keys = c->borrow ? 2 * more.n : 0;
    shape.same = !c->borrow;
    shape.max_samples = samples;
    test_expect_ok(d->ctx, spops_patches_reserve(d->ctx, &shape, &r->plan), c->name);
}

static void end_run(test_device *d, order_run *r)
{
    spops_patches_destroy(r->plan);
    free_lists(&r->expected);
    discard_points(d, &r->there);
    free_points(&r->h);
}

static void check_no_patches(test_device *d, const order_run *r, bool over, const char *what)
{
    spops_patches_info info = spops_patches_info_default();
    cr_assert_eq(spops_patches_get_info_sync(d->ctx, r->plan, &info),
                 over ? SPOPS_STATUS_CAPACITY_EXCEEDED : SPOPS_STATUS_OK, "%s", what);
    cr_assert_eq(info.overflow, over, "%s", what);
    cr_assert_eq(info.refused, !over, "%s", what);
    cr_assert_eq(info.num_patches + info.num_queries + info.num_keys, 0, "%s", what);
    cr_assert_eq(info.num_no_queries, r->h.n, "%s", what);
    cr_assert_eq(info.num_no_keys, r->h.n, "%s", what);
}

LaunchTest(patches, from_orders_at_once)
{
    enum { SAMPLES = 6, FALLS = 1, BEYOND = 2 };
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    order_run runs[NUM_ORDER_CASES];
    spops_patches *plans[NUM_ORDER_CASES];
    spops_point_cloud clouds[NUM_ORDER_CASES];
    spops_patch_order orders[NUM_ORDER_CASES];
    device_graph *graph = NULL;
    for (int i = 0; i < NUM_ORDER_CASES; ++i) {
        start_run(&d, &order_cases[i], i, &runs[i]);
        plans[i] = runs[i].plan;
        clouds[i] = runs[i].there.cloud;
        orders[i] = runs[i].order;
    }
    const spops_patches *const *all = (const spops_patches *const *)plans;
    const size_t scratch = spops_patches_orders_scratch_bytes(all, NUM_ORDER_CASES);
    if (scratch > 0) {
        test_expect(d.ctx,
                    spops_patches_update_from_orders(d.ctx, NUM_ORDER_CASES, plans, clouds, orders),
                    SPOPS_STATUS_SCRATCH_TOO_SMALL, "the context's scratch is", "no scratch");
        test_expect_ok(d.ctx, spops_context_reserve(d.ctx, scratch), "scratch");
    }
    if (d.launch == LAUNCH_CAPTURED) {
        cr_assert(device_capture_begin(d.stream), "%s", device_error());
        const spops_status status =
            spops_patches_update_from_orders(d.ctx, NUM_ORDER_CASES, plans, clouds, orders);
        cr_assert(device_capture_end(d.stream, &graph), "%s", device_error());
        test_expect_ok(d.ctx, status, "captured");
    }
    // Right, twice; then offsets that fall, and more rows than there are; then right again.
    for (int frame = 0; frame < 4; ++frame) {
        const int32_t *good = runs[SAMPLES].h.offsets;
        int32_t offsets[8];
        memcpy(offsets, good, sizeof offsets);
        if (frame == FALLS) offsets[3] = 3001;
        if (frame == BEYOND) offsets[7] = 3000 + BEHIND + 1;
        cr_assert(device_upload(d.backend, runs[SAMPLES].there.offsets, offsets, sizeof offsets),
                  "%s", device_error());
        if (graph != NULL)
            cr_assert(device_graph_launch(graph, d.stream), "%s", device_error());
        else
            test_expect_ok(
                d.ctx,
                spops_patches_update_from_orders(d.ctx, NUM_ORDER_CASES, plans, clouds, orders),
                "at once");
        test_wait(&d);
        for (int i = 0; i < NUM_ORDER_CASES; ++i) {
            if (i == SAMPLES && (frame == FALLS || frame == BEYOND))
                check_no_patches(&d, &runs[i], frame == BEYOND, order_cases[i].name);
            else
                check_plan(&d, plans[i], &runs[i].expected, !order_cases[i].borrow,
                           order_cases[i].name);
        }
    }
    device_graph_destroy(graph);
    for (int i = 0; i < NUM_ORDER_CASES; ++i)
        end_run(&d, &runs[i]);
    test_close(&d);
}

BackendTest(patches, refuse_orders_at_once)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    order_run runs[2];
    for (int i = 0; i < 2; ++i)
        start_run(&d, &order_cases[4], i, &runs[i]);
    spops_patches *plans[2] = {runs[0].plan, runs[1].plan};
    spops_point_cloud clouds[2] = {runs[0].there.cloud, runs[1].there.cloud};
    spops_patch_order orders[2] = {runs[0].order, runs[1].order};
    const spops_patches *const *all = (const spops_patches *const *)plans;
    const size_t bytes = spops_patches_orders_scratch_bytes(all, 2);
    test_expect_ok(d.ctx, spops_context_reserve(d.ctx, bytes), "scratch");
#define REFUSED(num, patches, fragment)                                                            \
    test_expect(d.ctx, spops_patches_update_from_orders(d.ctx, num, patches, clouds, orders),      \
                SPOPS_STATUS_INVALID_ARGUMENT, fragment, fragment)
    cr_assert_eq(spops_patches_orders_scratch_bytes(NULL, 2), 0);
    cr_assert_eq(spops_patches_orders_scratch_bytes(all, SPOPS_MAX_PATCH_ORDERS + 1), 0);
    REFUSED(-1, plans, "num is -1, expected 0 to 32");
    REFUSED(33, plans, "num is 33, expected 0 to 32");
    REFUSED(2, NULL, "patches is NULL");
    test_expect(d.ctx, spops_patches_update_from_orders(d.ctx, 2, plans, NULL, orders),
                SPOPS_STATUS_INVALID_ARGUMENT, "clouds is NULL", "clouds");
    test_expect(d.ctx, spops_patches_update_from_orders(d.ctx, 2, plans, clouds, NULL),
                SPOPS_STATUS_INVALID_ARGUMENT, "orders is NULL", "orders");
    plans[1] = plans[0];
    REFUSED(2, plans, "patches[1] is patches[0], expected another plan");
    plans[1] = NULL;
    REFUSED(2, plans, "patches[1] is NULL");
    plans[1] = runs[1].plan;
    orders[1].bits = 17;
    REFUSED(2, plans, "bits is 17");
    orders[1] = runs[1].order;
    clouds[1].points.rows -= 1;
    REFUSED(2, plans, "cloud->points.rows is");
#undef REFUSED
    // Nothing was written.
    host_lists nothing = {.num_rows = runs[0].h.n,
                          .num_key_rows = runs[0].h.n,
                          .side = {{.offsets = zeroed(1)}, {.offsets = zeroed(1)}}};
    check_plan(&d, plans[0], &nothing, false, "after refusals");
    free(nothing.side[0].offsets), free(nothing.side[1].offsets);
    test_expect_ok(d.ctx, spops_patches_update_from_orders(d.ctx, 0, NULL, NULL, NULL), "none");
    for (int i = 0; i < 2; ++i)
        end_run(&d, &runs[i]);
    test_close(&d);
}

// A Hilbert curve through all cells of a cube goes from each to a neighbour, and visits every octant
// of every octant in one piece. Transposed, it is the curve of points with two axes exchanged.
BackendTest(patches, along_a_hilbert_curve)
{
    enum { SIDE = 16, ROWS = SIDE * SIDE * SIDE };
    order_case c = {"cube", ROWS, 0, 64, SPOPS_PATCH_CURVE_HILBERT, 4, false, false};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    host_points h = make_points(&c, 7);
    int32_t *orders[2];
    for (int32_t r = 0; r < ROWS; ++r)
        for (int a = 0; a < 3; ++a) // shuffled
            h.points[3 * r + a] = (float)(h.order[r] >> 4 * a & 15) * 0.5f - 0.75f;
    for (int turned = 0; turned < 2; ++turned) {
        spops_patches *plan = NULL;
        device_points there = upload_points(&d, &h);
        if (turned) c.curve = SPOPS_PATCH_CURVE_HILBERT_TRANSPOSED;
        const spops_patch_order o = order_of(&c, NULL);
        test_expect_ok(d.ctx, spops_patches_create_from_order(d.ctx, &there.cloud, &o, &plan),
                       "cube");
        orders[turned] = order_found(&d, plan, ROWS);
        spops_patches_destroy(plan);
        discard_points(&d, &there);
        for (int32_t r = 0; r < ROWS; ++r) { // for the second: what the transposed curve exchanges
            const float x = h.points[3 * r];
            h.points[3 * r] = h.points[3 * r + 1];
            h.points[3 * r + 1] = x;
        }
    }
    for (int32_t e = 0; e < ROWS; ++e) {
        const float *at = h.points + 3 * orders[0][e],
                    *before = h.points + 3 * orders[0][e - (e > 0)];
        double step = 0.0;
        cr_assert_eq(orders[0][e], orders[1][e], "entry %d of the transposed curve", e);
        for (int a = 0; a < 3; ++a)
            step += fabs((double)at[a] - (double)before[a]);
        cr_assert_eq(step, e > 0 ? 0.5 : 0.0, "entry %d is %g m from the one before", e, step);
        for (int level = 1; level < 4; ++level) { // all of a run of 8^level lie in one small cube
            const int32_t first = orders[0][e >> 3 * level << 3 * level];
            for (int a = 0; a < 3; ++a)
                cr_assert_eq(cell(&c, at[a]) >> level, cell(&c, h.points[3 * first + a]) >> level,
                             "entry %d leaves its cube", e);
        }
    }
    free(orders[0]), free(orders[1]);
    free_points(&h);
    test_close(&d);
}

// ---- From buckets -------------------------------------------------------------------------------

static host_lists windows(const int32_t *sample_buckets, int32_t samples, const int32_t *offsets,
                          const int32_t *rows, int32_t n, const spops_patch_window *w)
{
    const int32_t wide = w->buckets > 0 ? w->buckets : 1, stride = w->stride > 0 ? w->stride : 1;
    host_lists l = {.num_rows = n, .num_key_rows = n, .same = true};
    for (int i = 0; i < 2; ++i) {
        l.side[i].offsets = zeroed(sample_buckets[samples] + 1);
        l.side[i].rows = zeroed(n);
    }
    for (int32_t b = 0; b < samples; ++b) {
        const int32_t first = sample_buckets[b], k = sample_buckets[b + 1] - first;
        for (int32_t run = 0; run < k; run += wide * stride)
            for (int32_t j = run; j < run + stride && j < k; ++j) {
                for (int32_t at = j; at < k && at < run + wide * stride; at += stride) {
                    const int32_t bucket = first + (((at + w->shift) % k) + k) % k;
                    for (int32_t e = offsets[bucket]; e < offsets[bucket + 1]; ++e)
                        for (int i = 0; i < 2; ++i)
                            l.side[i].rows[l.side[i].num++] = w->in_places ? e : rows[e];
                }
                ++l.num_patches;
                for (int i = 0; i < 2; ++i)
                    l.side[i].offsets[l.num_patches] = l.side[i].num;
            }
    }
    return l;
}

BackendTest(patches, from_buckets)
{
    static const int32_t shapes[][4] = {{0, 0, 0, 0}, {4, 1, 0, 0},   {4, 1, 2, 1},  {3, 2, -1, 0},
                                        {1, 5, 7, 0}, {100, 1, 3, 1}, {2, 100, 0, 0}};
    static const order_case clouds[] = {
        {"one sample", 3000, 0, 0, SPOPS_PATCH_CURVE_ZORDER, 0, false, false},
        {"samples", 2500, 6, 0, SPOPS_PATCH_CURVE_ZORDER, 0, false, false},
        {"nothing", 0, 2, 0, SPOPS_PATCH_CURVE_ZORDER, 0, false, false}};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int i = 0; i < 21; ++i) {
        const order_case *c = &clouds[i / 7];
        host_points h = make_points(c, 700 + (uint64_t)i);
        device_points there = upload_points(&d, &h);
        spops_buckets_options o = spops_buckets_options_default();
        spops_buckets_view view = spops_buckets_view_default();
        spops_buckets_info info = spops_buckets_info_default();
        spops_patch_window w = spops_patch_window_default();
        spops_patches_capacity shape = spops_patches_capacity_default();
        spops_buckets *buckets = NULL;
        spops_patches *plan = NULL;
        o.bucket_rows = 70;
        o.num_buckets = i % 2 ? 45 : 0;
        o.hashes[0] = SPOPS_BUCKET_HASH_ZORDER_MOD;
        w.buckets = shapes[i % 7][0], w.stride = shapes[i % 7][1];
        w.shift = shapes[i % 7][2], w.in_places = shapes[i % 7][3];
        test_expect_ok(d.ctx, spops_buckets_create(d.ctx, &there.cloud, &o, &buckets), c->name);
        test_expect_ok(d.ctx, spops_buckets_get_view(d.ctx, buckets, &view), c->name);
        test_expect_ok(d.ctx, spops_buckets_get_info_sync(d.ctx, buckets, &info), c->name);
        int32_t *offsets = fetch(&d, view.offsets, info.num_buckets + 1);
        int32_t *samples = fetch(&d, view.sample_buckets, info.num_samples + 1);
        int32_t *rows = fetch(&d, view.rows, c->n);
        host_lists l = windows(samples, (int32_t)info.num_samples, offsets, rows, c->n, &w);
        test_expect_ok(d.ctx, spops_patches_create_from_buckets(d.ctx, buckets, &w, &plan),
                       c->name);
        check_plan(&d, plan, &l, true, c->name);
        spops_patches_destroy(plan);
        plan = NULL;
        shape.num_rows = shape.max_queries = c->n;
        shape.max_patches = view.max_buckets;
        shape.max_samples = view.max_samples;
        shape.same = 1;
        test_expect_ok(d.ctx, spops_patches_reserve(d.ctx, &shape, &plan), c->name);
        test_expect_ok(d.ctx, spops_patches_update_from_buckets(d.ctx, plan, buckets, &w), c->name);
        check_plan(&d, plan, &l, true, c->name);
        spops_patches_destroy(plan);
        spops_buckets_destroy(buckets);
        free(offsets), free(samples), free(rows);
        free_lists(&l);
        discard_points(&d, &there);
        free_points(&h);
    }
    test_close(&d);
}

// ---- What is refused ----------------------------------------------------------------------------

BackendTest(patches, refused)
{
    static const int32_t offsets[] = {0, 2, 5}, from_one[] = {1, 2, 5}, falling[] = {0, 3, 2};
    static const int32_t negative[] = {0, 1, -1};
    static const int32_t rows[] = {4, 0, 2, 1, 3}, beyond[] = {4, 0, 5, 1, 3};
    static const int32_t below[] = {4, 0, 2, -7, 3}, twice[] = {4, 0, 2, 0, 3};
    static const struct {
        const int32_t *q_offsets, *q_rows, *k_offsets, *k_rows;
        const char *fragment;
    } bad[] = {
        {from_one, rows, NULL, NULL, "lists->query_offsets[0] is 1, expected 0"},
        {falling, rows, NULL, NULL, "lists->query_offsets[2] is 2"},
        {negative, rows, NULL, NULL, "lists->query_offsets[2] is -1"},
        {offsets, beyond, NULL, NULL, "entry 2 of lists->query_rows is 5, expected 0 to 4"},
        {offsets, below, NULL, NULL, "entry 3 of lists->query_rows is -7"},
        {offsets, twice, NULL, NULL,
         "entry 3 of lists->query_rows is 0, a row that is a query before"},
        {offsets, rows, falling, rows, "lists->key_offsets[2] is 2"},
        {offsets, rows, offsets, beyond, "entry 2 of lists->key_rows is 5"},
        {offsets, rows, NULL, rows, "key_rows is given, and key_offsets is NULL"},
        {NULL, rows, NULL, NULL, "lists->query_offsets is NULL"},
    };
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        spops_patches *plan = (spops_patches *)(void *)&d;
        int32_t *const there[4] = {test_upload_i32(&d, bad[i].q_offsets, bad[i].q_offsets ? 3 : 0),
                                   test_upload_i32(&d, bad[i].q_rows, 5),
                                   test_upload_i32(&d, bad[i].k_offsets, bad[i].k_offsets ? 3 : 0),
                                   test_upload_i32(&d, bad[i].k_rows, bad[i].k_rows ? 5 : 0)};
        const spops_patch_lists lists = {2, there[0], there[1], there[2], there[3], 0};
        test_expect(d.ctx, spops_patches_create(d.ctx, 5, &lists, &plan),
                    SPOPS_STATUS_INVALID_ARGUMENT, bad[i].fragment, bad[i].fragment);
        cr_assert_null(plan);
        for (int a = 0; a < 4; ++a)
            test_free(&d, there[a]);
    }
    int32_t *const there[2] = {test_upload_i32(&d, offsets, 3), test_upload_i32(&d, rows, 5)};
    spops_patch_lists lists = {2, there[0], there[1], NULL, NULL, 0};
    spops_patches_capacity shape = spops_patches_capacity_default();
    spops_patches *plan = NULL, *reserved = NULL;
    test_expect(d.ctx, spops_patches_create(d.ctx, -1, &lists, &plan),
                SPOPS_STATUS_INVALID_ARGUMENT, "num_rows is -1", "num_rows");
    test_expect(d.ctx, spops_patches_create(d.ctx, 5, NULL, &plan), SPOPS_STATUS_INVALID_ARGUMENT,
                "lists is NULL", "lists");
    lists.num_key_rows = 9;
    test_expect(d.ctx, spops_patches_create(d.ctx, 5, &lists, &plan), SPOPS_STATUS_INVALID_ARGUMENT,
                "lists->num_key_rows is 9, expected 0 as key_offsets is NULL", "key rows");
    lists.key_offsets = there[0];
    lists.key_rows = there[1];
    lists.num_key_rows = -1;
    test_expect(d.ctx, spops_patches_create(d.ctx, 5, &lists, &plan), SPOPS_STATUS_INVALID_ARGUMENT,
                "lists->num_key_rows is -1", "key rows");
    lists.num_key_rows = 4;
    test_expect(d.ctx, spops_patches_create(d.ctx, 5, &lists, &plan), SPOPS_STATUS_INVALID_ARGUMENT,
                "entry 0 of lists->key_rows is 4, expected 0 to 3 (num_key_rows - 1)", "key rows");
    lists.key_offsets = lists.key_rows = NULL;
    lists.num_key_rows = 0;
    test_expect_ok(d.ctx, spops_patches_create(d.ctx, 5, &lists, &plan), "good");
    test_expect(d.ctx, spops_patches_update(d.ctx, plan, NULL, &lists),
                SPOPS_STATUS_INVALID_ARGUMENT, "not made by patches_reserve", "set");
    shape.num_rows = 5, shape.max_patches = 1, shape.max_queries = 5, shape.same = 1;
    test_expect_ok(d.ctx, spops_patches_reserve(d.ctx, &shape, &reserved), "reserve");
    test_expect(d.ctx, spops_patches_update(d.ctx, reserved, NULL, &lists),
                SPOPS_STATUS_INVALID_ARGUMENT, "lists->num_patches is 2, expected at most", "set");
    lists.num_patches = 1;
    lists.key_offsets = lists.query_offsets;
    test_expect(d.ctx, spops_patches_update(d.ctx, reserved, NULL, &lists),
                SPOPS_STATUS_INVALID_ARGUMENT, "key_offsets is given, expected NULL", "set");
    spops_patches_destroy(reserved);
    reserved = NULL;
    shape.max_keys = 3;
    test_expect(d.ctx, spops_patches_reserve(d.ctx, &shape, &reserved),
                SPOPS_STATUS_INVALID_ARGUMENT, "max_keys is 3, expected 0 as same is 1", "reserve");
    shape.max_keys = 0;
    shape.num_key_rows = 6;
    test_expect(d.ctx, spops_patches_reserve(d.ctx, &shape, &reserved),
                SPOPS_STATUS_INVALID_ARGUMENT,
                "num_key_rows is 6, expected num_rows, 5, as same is 1", "reserve");
    spops_patches_destroy(plan);
    test_free(&d, there[0]), test_free(&d, there[1]);
    test_close(&d);
}

// The rest of what is refused: an order and a window.
BackendTest(patches, refuse_orders_and_windows)
{
    static const order_case c = {"", 40, 2, 7, SPOPS_PATCH_CURVE_ZORDER, 0, true, true};
    static const int32_t zeros[65537];
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    host_points h = make_points(&c, 3);
    device_points there = upload_points(&d, &h);
    spops_point_cloud cloud = there.cloud;
    const spops_patch_order good = order_of(&c, there.order);
    spops_patch_order order = good;
    spops_buckets_options bo = spops_buckets_options_default();
    spops_patches_capacity shape = spops_patches_capacity_default();
    spops_buckets *buckets = NULL;
    spops_patches *plan = NULL, *same = NULL, *apart = NULL;
#define REFUSED(call, fragment)                                                                    \
    do {                                                                                           \
        plan = (spops_patches *)(void *)&d;                                                        \
        test_expect(d.ctx, call, SPOPS_STATUS_INVALID_ARGUMENT, fragment, fragment);               \
        cr_assert_null(plan);                                                                      \
        order = good, cloud = there.cloud;                                                         \
    } while (0)
#define ORDER spops_patches_create_from_order(d.ctx, &cloud, &order, &plan)
    REFUSED(spops_patches_create_from_order(d.ctx, NULL, &order, &plan), "cloud is NULL");
    REFUSED(spops_patches_create_from_order(d.ctx, &cloud, NULL, &plan), "order is NULL");
    order.struct_size = 0;
    REFUSED(ORDER, "struct_size is 0");
    order.patch_rows = 0;
    REFUSED(ORDER, "patch_rows is 0, expected 1 or more");
    order.borrow = 2;
    REFUSED(ORDER, "borrow is 2, expected 0 or 1");
    order.curve = (spops_patch_curve)4;
    REFUSED(ORDER, "curve is 4, expected 0 to 3");
    order.bits = 17;
    REFUSED(ORDER, "bits is 17, expected 0 to 16");
    order.size_m[0] = -1.0;
    REFUSED(ORDER, "size_m[0] is -1");
    cloud.points.cols = 2;
    REFUSED(ORDER, "cloud->points is [40, 2], expected [40, 3]");
    cloud.num_samples = 1;
    REFUSED(ORDER, "cloud->offsets[1] is");
    const int32_t last = h.order[39], wrong[] = {40, -1, h.order[38]};
    static const char *const words[] = {"order->order[39] is 40, expected a row of its sample",
                                        "order->order[39] is -1, expected a row of its sample",
                                        "a row that is there before"};
    for (int i = 0; i < 3; ++i) {
        h.order[39] = wrong[i];
        cr_assert(device_upload(d.backend, there.order, h.order, 160), "%s", device_error());
        REFUSED(ORDER, words[i]);
    }
    h.order[39] = last;
    cr_assert(device_upload(d.backend, there.order, h.order, 160), "%s", device_error());
    h.points[3 * 7 + 2] = NAN;
    cr_assert(device_upload(d.backend, there.points, h.points, 480), "%s", device_error());
    order.order = NULL;
    REFUSED(ORDER, "cloud->points[7] is (");
    // The sample stands above 48 bits of a code.
    int32_t *many = test_upload_i32(&d, zeros, 65537);
    cloud.points.rows = 0, cloud.offsets = many, cloud.num_samples = 65536;
    order.order = NULL, order.borrow = 0;
    REFUSED(ORDER, "cloud has 65536 samples, expected less than 65536 with cells of 16 bits");
    cloud.points.rows = 0, cloud.offsets = many, cloud.num_samples = 65535;
    order.order = NULL, order.borrow = 0;
    test_expect_ok(d.ctx, ORDER, "65535 samples");
    spops_patches_destroy(plan);
    order = good, cloud = there.cloud;
    test_free(&d, many);
    h.points[3 * 7 + 2] = 1.0f;
    cr_assert(device_upload(d.backend, there.points, h.points, 480), "%s", device_error());

    bo.bucket_rows = 10;
    test_expect_ok(d.ctx, spops_buckets_create(d.ctx, &cloud, &bo, &buckets), "buckets");
    REFUSED(spops_patches_create_from_buckets(d.ctx, NULL, NULL, &plan), "buckets is NULL");
    shape.reserved = 1;
    REFUSED(spops_patches_reserve(d.ctx, &shape, &plan), "reserved is 1");
    shape.reserved = 0, shape.num_rows = -1;
    REFUSED(spops_patches_reserve(d.ctx, &shape, &plan), "patches_reserve: num_rows is -1");

    shape.num_rows = shape.max_queries = 40, shape.max_patches = 10;
    shape.max_samples = 2, shape.max_keys = 80;
    test_expect_ok(d.ctx, spops_patches_reserve(d.ctx, &shape, &apart), "apart");
    shape.max_samples = 1, shape.max_keys = 0, shape.same = 1;
    test_expect_ok(d.ctx, spops_patches_reserve(d.ctx, &shape, &same), "same");
    plan = NULL;
#define SET_REFUSED(call, fragment)                                                                \
    test_expect(d.ctx, call, SPOPS_STATUS_INVALID_ARGUMENT, fragment, fragment)
    SET_REFUSED(spops_patches_update_from_order(d.ctx, same, &cloud, &order),
                "cloud has 2 samples, expected at most 1 (max_samples)");
    SET_REFUSED(spops_patches_update_from_buckets(d.ctx, same, buckets, NULL),
                "buckets has 2 samples, expected at most 1 (max_samples)");
    SET_REFUSED(spops_patches_update_from_buckets(d.ctx, apart, buckets, NULL),
                "`same` of the plan is 0, expected 1");
    order.borrow = 0;
    SET_REFUSED(spops_patches_update_from_order(d.ctx, apart, &cloud, &order),
                "borrow is 0, expected 1");
    test_expect_ok(d.ctx, spops_patches_create_from_buckets(d.ctx, buckets, NULL, &plan), "plan");
    SET_REFUSED(spops_patches_update_from_order(d.ctx, plan, &cloud, &order),
                "not made by patches_reserve");
    SET_REFUSED(spops_patches_update_from_buckets(d.ctx, plan, buckets, NULL),
                "not made by patches_reserve");
    spops_patches_destroy(plan);
    order.borrow = 1;
    cloud.points.rows = 39;
    SET_REFUSED(spops_patches_update_from_order(d.ctx, apart, &cloud, &order),
                "cloud->points.rows is 39, expected num_rows, 40");
    spops_patches_destroy(same);
    shape.num_rows = 39, shape.max_samples = 2;
    test_expect_ok(d.ctx, spops_patches_reserve(d.ctx, &shape, &same), "39 rows");
    SET_REFUSED(spops_patches_update_from_buckets(d.ctx, same, buckets, NULL),
                "buckets has max_rows = 40, expected num_rows, 39");
    SET_REFUSED(spops_patches_get_info_sync(d.ctx, same, NULL), "info is NULL");
    SET_REFUSED(spops_patches_get_view(d.ctx, same, NULL), "view is NULL");
#undef SET_REFUSED
#undef ORDER
#undef REFUSED
    spops_patches_destroy(apart);
    spops_patches_destroy(same);
    spops_buckets_destroy(buckets);
    discard_points(&d, &there);
    free_points(&h);
    test_close(&d);
}
