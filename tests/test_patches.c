// SPDX-License-Identifier: Apache-2.0
// Plans of patches: lists, what follows from them, and what is refused, against what the description
// says, entry by entry.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
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
    int32_t num_rows, num_patches;
    bool same;
    host_side side[2];
} host_lists;

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
                                                    : (int32_t)test_rng_below(&rng, l.num_rows);
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
    int32_t *sorted = zeroed(l->side[side].num), *expected = zeroed(l->num_rows), n = 0, at = 0;
    if (l->side[side].num > 0)
        memcpy(sorted, l->side[side].rows, (size_t)l->side[side].num * sizeof *sorted);
    qsort(sorted, (size_t)l->side[side].num, sizeof *sorted, compare_i32);
    for (int32_t r = 0; r < l->num_rows; ++r) {
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
                  "%s: tile %d is not behind the one before", what, t);
    }
    free(seen);
    free(tiles);
}

static void check_key_lists(test_device *d, const host_lists *l, const spops_patch_arrays *a,
                            const char *what)
{
    int32_t *offsets = zeroed(l->num_rows + 1), *entries = zeroed(l->side[1].num), at = 0;
    int32_t *last = zeroed(l->num_rows), *next = zeroed(l->side[1].num),
            *head = zeroed(l->num_rows);
    memset(head, 0xff, (size_t)l->num_rows * sizeof *head);
    for (int32_t e = 0; e < l->side[1].num; ++e) { // a chain of entries for every row
        const int32_t r = l->side[1].rows[e];
        next[e] = -1;
        if (head[r] < 0)
            head[r] = e;
        else
            next[last[r]] = e;
        last[r] = e;
    }
    for (int32_t r = 0; r < l->num_rows; ++r) {
        for (int32_t e = head[r]; e >= 0; e = next[e])
            entries[at++] = e;
        offsets[r + 1] = at;
    }
    check_i32(d, a->key_offsets, offsets, l->num_rows + 1, what, "key_offsets");
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
                   i == 0 ? state.num_q_rest : state.num_k_rest, what);
        for (int t = 0; t < SPOPS_NUM_PATCH_TILES; ++t)
            check_tiles(d, l, i, t, i == 0 ? a->q_tiles[t] : a->k_tiles[t],
                        i == 0 ? state.num_q_tiles[t] : state.num_k_tiles[t], what);
    }
    if (!keys_once) check_key_lists(d, l, a, what);
    cr_assert_eq(a->key_offsets == NULL, keys_once, "%s", what);
}

// ---- Plans --------------------------------------------------------------------------------------

ParameterizedTestParameters(patches, created_from_lists)
{
    return every_backend();
}
ParameterizedTest(struct backend_param *p, patches, created_from_lists)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int i = 0; i < NUM_CASES * NUM_KEY_KINDS; ++i) {
        const patch_case *c = &cases[i / NUM_KEY_KINDS];
        const key_kind keys = (key_kind)(i % NUM_KEY_KINDS);
        host_lists l = make_lists(c, keys, (uint64_t)i);
        device_lists there = upload(&d, &l);
        spops_patches *plan = NULL;
        bool *named = calloc((size_t)l.num_rows + 1, 1), once = true;
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
ParameterizedTestParameters(patches, entries_are_rows)
{
    return every_backend();
}
ParameterizedTest(struct backend_param *p, patches, entries_are_rows)
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

ParameterizedTestParameters(patches, set_on_the_stream)
{
    return every_launch();
}
ParameterizedTest(struct launch_param *p, patches, set_on_the_stream)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    for (int same = 0; same < 2; ++same) {
        const host_lists nothing = {.num_rows = 30000,
                                    .same = same == 1,
                                    .side = {{.offsets = zeroed(1)}, {.offsets = zeroed(1)}}};
        spops_patches_shape shape = spops_patches_shape_default();
        set_buffers b = {0};
        spops_patches *plan = NULL;
        device_graph *graph = NULL;
        shape.num_rows = nothing.num_rows;
        shape.max_patches = 3100;
        shape.max_queries = 40000;
        shape.max_keys = same ? 0 : 300000;
        shape.same = same;
        test_expect_ok(d.ctx, spops_patches_reserve(d.ctx, &shape, &plan), "reserve");
        check_plan(&d, plan, &nothing, same == 1, "before the first set");
        b.num_patches = test_upload_i32(&d, &nothing.num_rows, 1);
        for (int i = 0; i < 4; ++i) {
            int32_t *none = zeroed(300001);
            b.arrays[i] = test_upload_i32(&d, none, 300001);
            free(none);
        }
        b.lists = (spops_patch_lists){shape.max_patches, b.arrays[0], b.arrays[1],
                                      same ? NULL : b.arrays[2], same ? NULL : b.arrays[3]};
        if (d.launch == LAUNCH_CAPTURED) {
            cr_assert(device_capture_begin(d.stream), "%s", device_error());
            const spops_status status = spops_patches_set(d.ctx, plan, b.num_patches, &b.lists);
            cr_assert(device_capture_end(d.stream, &graph), "%s", device_error());
            test_expect_ok(d.ctx, status, "captured");
        }
        for (int i = 0; i < NUM_CASES + NUM_SPOILINGS; ++i) {
            const spoiling wrong = i < NUM_CASES ? NOTHING_WRONG : (spoiling)(i - NUM_CASES);
            const patch_case *c = &cases[i < NUM_CASES ? i : 5];
            const key_kind keys = same ? KEYS_ARE_QUERIES : i % 2 ? KEYS_ONCE : KEYS_TWICE;
            spops_patches_info info = spops_patches_info_default();
            host_lists l = make_lists(c, keys, 100 + (uint64_t)i);
            l.num_rows = nothing.num_rows;
            fill_buffers(&d, &b, &l);
            spoil(&d, &b, &l, wrong, shape.max_patches, shape.max_queries);
            if (graph != NULL)
                cr_assert(device_graph_launch(graph, d.stream), "%s", device_error());
            else
                test_expect_ok(d.ctx, spops_patches_set(d.ctx, plan, b.num_patches, &b.lists),
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
                cr_assert_eq(info.num_no_keys, l.num_rows, "%d", wrong);
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

// ---- What is refused ----------------------------------------------------------------------------

ParameterizedTestParameters(patches, refused)
{
    return every_backend();
}
ParameterizedTest(struct backend_param *p, patches, refused)
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
        const spops_patch_lists lists = {2, there[0], there[1], there[2], there[3]};
        test_expect(d.ctx, spops_patches_create(d.ctx, 5, &lists, &plan),
                    SPOPS_STATUS_INVALID_ARGUMENT, bad[i].fragment, bad[i].fragment);
        cr_assert_null(plan);
        for (int a = 0; a < 4; ++a)
            test_free(&d, there[a]);
    }
    int32_t *const there[2] = {test_upload_i32(&d, offsets, 3), test_upload_i32(&d, rows, 5)};
    spops_patch_lists lists = {2, there[0], there[1], NULL, NULL};
    spops_patches_shape shape = spops_patches_shape_default();
    spops_patches *plan = NULL, *reserved = NULL;
    test_expect(d.ctx, spops_patches_create(d.ctx, -1, &lists, &plan),
                SPOPS_STATUS_INVALID_ARGUMENT, "num_rows is -1", "num_rows");
    test_expect(d.ctx, spops_patches_create(d.ctx, 5, NULL, &plan), SPOPS_STATUS_INVALID_ARGUMENT,
                "lists is NULL", "lists");
    test_expect_ok(d.ctx, spops_patches_create(d.ctx, 5, &lists, &plan), "good");
    test_expect(d.ctx, spops_patches_set(d.ctx, plan, NULL, &lists), SPOPS_STATUS_INVALID_ARGUMENT,
                "not made by patches_reserve", "set");
    shape.num_rows = 5, shape.max_patches = 1, shape.max_queries = 5, shape.same = 1;
    test_expect_ok(d.ctx, spops_patches_reserve(d.ctx, &shape, &reserved), "reserve");
    test_expect(d.ctx, spops_patches_set(d.ctx, reserved, NULL, &lists),
                SPOPS_STATUS_INVALID_ARGUMENT, "lists->num_patches is 2, expected at most", "set");
    lists.num_patches = 1;
    lists.key_offsets = lists.query_offsets;
    test_expect(d.ctx, spops_patches_set(d.ctx, reserved, NULL, &lists),
                SPOPS_STATUS_INVALID_ARGUMENT, "key_offsets is given, expected NULL", "set");
    spops_patches_destroy(reserved);
    reserved = NULL;
    shape.max_keys = 3;
    test_expect(d.ctx, spops_patches_reserve(d.ctx, &shape, &reserved),
                SPOPS_STATUS_INVALID_ARGUMENT, "shape->max_keys is 3, expected 0", "reserve");
    spops_patches_destroy(plan);
    test_free(&d, there[0]), test_free(&d, there[1]);
    test_close(&d);
}
