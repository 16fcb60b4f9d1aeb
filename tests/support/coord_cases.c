// SPDX-License-Identifier: Apache-2.0
#include "tests/support/coord_cases.h"

#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <stdio.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"

static void *allocate(int64_t n, size_t size)
{
    void *p = calloc((size_t)n + 1, size);
    cr_assert(p != NULL, "no memory");
    return p;
}

// ---- Clouds -------------------------------------------------------------------------------------

const char *cloud_name(test_cloud cloud)
{
    static const char *names[NUM_CLOUDS] = {"empty",  "one",    "line", "dense",
                                            "sparse", "clumps", "far"};
    return names[cloud];
}

static void add_row(cloud_rows *cloud, int32_t batch, const int32_t *x)
{
    int32_t *row = cloud->rows + cloud->n++ * (cloud->dims + 1);
    row[0] = batch;
    memcpy(row + 1, x, (size_t)cloud->dims * sizeof *x);
}

static void add_dense(cloud_rows *cloud, int32_t side)
{
    int32_t x[SPOPS_MAX_DIMS];
    int64_t cells = 1;
    for (int32_t a = 0; a < cloud->dims; ++a)
        cells *= side;
    for (int32_t batch = 0; batch < 2; ++batch)
        for (int64_t cell = 0; cell < cells; ++cell) {
            int64_t rest = cell;
            for (int32_t a = cloud->dims - 1; a >= 0; --a) {
                x[a] = (int32_t)(rest % side) - side / 2;
                rest /= side;
            }
            add_row(cloud, batch, x);
        }
}

// n random rows in a box of `extent` around a corner of each batch.
static void add_random(cloud_rows *cloud, int64_t n, int32_t extent, test_rng *rng)
{
    int32_t x[SPOPS_MAX_DIMS];
    for (int64_t i = 0; i < n; ++i) {
        for (int32_t a = 0; a < cloud->dims; ++a)
            x[a] = (int32_t)test_rng_below(rng, extent) - extent / 2 - 5 * a;
        add_row(cloud, (int32_t)test_rng_below(rng, 3), x);
    }
}

// As far apart as 63 bits allow: on the first axis the ends of the int32 range, then less.
static void add_far(cloud_rows *cloud, test_rng *rng)
{
    static const int32_t reach[SPOPS_MAX_DIMS] = {INT32_MAX, 8000, 120, 7};
    int32_t x[SPOPS_MAX_DIMS];
    for (int i = 0; i < 60; ++i) {
        for (int32_t a = 0; a < cloud->dims; ++a) {
            const int32_t inwards = (int32_t)test_rng_below(rng, 3);
            x[a] = test_rng_below(rng, 2) ? reach[a] - inwards : -reach[a] - (a == 0) + inwards;
        }
        add_row(cloud, (int32_t)test_rng_below(rng, 2), x);
    }
}

cloud_rows cloud_make(test_cloud cloud, int32_t dims, bool repeats, test_rng *rng)
{
    static const int32_t dense[SPOPS_MAX_DIMS] = {40, 9, 6, 4};
    static const int32_t clump[SPOPS_MAX_DIMS] = {400, 24, 9, 6};
    cloud_rows c = {dims, 0, (int32_t *)allocate(8000 * (dims + 1), sizeof(int32_t))};
    int32_t x[SPOPS_MAX_DIMS] = {-3, 7, 0, 1};
    switch (cloud) {
    case CLOUD_ONE: add_row(&c, 5, x); break;
    case CLOUD_LINE:
        for (x[dims - 1] = -70; x[dims - 1] < 70; ++x[dims - 1])
            add_row(&c, 1, x);
        break;
    case CLOUD_DENSE: add_dense(&c, dense[dims - 1]); break;
    case CLOUD_SPARSE: add_random(&c, 300, 900, rng); break;
    case CLOUD_CLUMPS: add_random(&c, 900, clump[dims - 1], rng); break;
    case CLOUD_FAR: add_far(&c, rng); break;
    default: break;
    }
    if (repeats && c.n > 0)
        for (int64_t i = c.n / 3; i > 0; --i) {
            const int32_t *row = c.rows + test_rng_below(rng, c.n) * (dims + 1);
            add_row(&c, row[0], row + 1);
        }
    for (int64_t i = c.n - 1; i > 0; --i) { // shuffle
        int32_t swap[1 + SPOPS_MAX_DIMS];
        const size_t bytes = (size_t)(dims + 1) * sizeof(int32_t);
        int32_t *a = c.rows + i * (dims + 1);
        int32_t *b = c.rows + test_rng_below(rng, i + 1) * (dims + 1);
        memcpy(swap, a, bytes), memmove(a, b, bytes), memcpy(b, swap, bytes);
    }
    if (!repeats) {
        ref_set unique = ref_unique(dims, c.n, c.rows, NULL);
        memcpy(c.rows, unique.rows, (size_t)(unique.n * (dims + 1)) * sizeof(int32_t));
        c.n = unique.n;
        ref_set_free(&unique);
    }
    return c;
}

void cloud_free(cloud_rows *cloud)
{
    free(cloud->rows);
    memset(cloud, 0, sizeof *cloud);
}

// ---- Files --------------------------------------------------------------------------------------

// Version 1 files in C order: a header of 128 bytes that says type and shape.
static bool load_npy(const char *name, const char *type, int64_t *rows, int64_t *cols,
                     void **values)
{
    const char *dir = getenv("SPOPS_TEST_DATA");
    char path[600], header[129] = "";
    long long n = 0, m = 0;
    (void)snprintf(path, sizeof path, "%s/%s",
                   dir != NULL && dir[0] != '\0' ? dir : SPOPS_SOURCE_DIR "/../shared/data", name);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        cr_log_info("skipped: no %s (SPOPS_TEST_DATA says where the data are)", path);
        return false;
    }
    cr_assert(fread(header, 1, 128, file) == 128, "%s: no header", path);
    const char *shape = strstr(header + 10, "'shape': (");
    cr_assert(strstr(header + 10, type) != NULL && shape != NULL, "%s: not of %s", path, type);
    cr_assert(sscanf(shape, "'shape': (%lld, %lld)", &n, &m) == 2, "%s: its shape", path);
    *rows = n, *cols = m;
    *values = allocate(n * m, 4);
    cr_assert(fread(*values, 4, (size_t)(n * m), file) == (size_t)(n * m), "%s is short", path);
    (void)fclose(file);
    return true;
}

bool cloud_load_f32(const char *name, int64_t *rows, int64_t *cols, float **values)
{
    return load_npy(name, "'<f4'", rows, cols, (void **)values);
}

bool cloud_load_i32(const char *name, int64_t *rows, int64_t *cols, int32_t **values)
{
    return load_npy(name, "'<i4'", rows, cols, (void **)values);
}

// ---- Copies -------------------------------------------------------------------------------------

float *test_upload_f32(test_device *d, const float *values, int64_t n)
{
    return (float *)test_upload(d, values, (size_t)n * sizeof *values);
}

uint8_t *test_upload_u8(test_device *d, const uint8_t *values, int64_t n)
{
    return (uint8_t *)test_upload(d, values, (size_t)n);
}

spops_coords *test_create_set(test_device *d, int32_t dims, int64_t n, const int32_t *rows,
                              const spops_coords_options *options)
{
    spops_coords *coords = NULL;
    int32_t *given = test_upload_i32(d, rows, n * (dims + 1));
    test_expect_ok(d->ctx, spops_coords_create(d->ctx, dims, n, given, options, &coords), "set");
    test_free(d, given);
    return coords;
}

static int32_t *fetch(test_device *d, const void *from, int64_t n)
{
    if (from == NULL) return NULL;
    int32_t *to = (int32_t *)allocate(n, sizeof *to);
    test_download_i32(d, to, (const int32_t *)from, n);
    return to;
}

// ---- Sets ---------------------------------------------------------------------------------------

held_set held_set_of(test_device *d, const spops_coords *coords, const char *what)
{
    held_set h;
    memset(&h, 0, sizeof h);
    h.info = spops_coords_info_default();
    h.view = spops_coords_view_default();
    const spops_status status = spops_coords_get_info_sync(d->ctx, coords, &h.info);
    cr_assert(status == (h.info.overflow ? SPOPS_STATUS_CAPACITY_EXCEEDED : SPOPS_STATUS_OK),
              "%s: %s", what, spops_last_error(d->ctx));
    test_expect_ok(d->ctx, spops_coords_get_view(d->ctx, coords, &h.view), what);
    cr_assert(h.info.num_rows <= h.view.max_rows && h.info.max_rows == h.view.max_rows, "%s", what);
    cr_assert(h.view.dims == h.info.dims, "%s", what);
    h.rows = fetch(d, h.view.rows, h.info.num_rows * (h.info.dims + 1));
    h.row_item = fetch(d, h.view.row_item, h.info.num_rows);
    h.item_row = fetch(d, h.view.item_row, h.view.max_items);
    if (h.rows == NULL) h.rows = (int32_t *)allocate(0, sizeof(int32_t));
    int32_t *num_rows = fetch(d, h.view.num_rows, 1);
    cr_assert(*num_rows == h.info.num_rows, "%s", what);
    free(num_rows);
    return h;
}

void held_set_free(held_set *held)
{
    free(held->rows), free(held->row_item), free(held->item_row);
    memset(held, 0, sizeof *held);
}

ref_set ref_set_in_order(const held_set *held)
{
    return ref_unique(held->info.dims, held->info.num_rows, held->rows, NULL);
}

static void check_order(const held_set *held, const ref_set *expected, const char *what)
{
    const int32_t dims = held->info.dims, columns = dims + 1;
    const spops_coords_order order = held->info.order;
    if (order == SPOPS_COORDS_ORDER_GIVEN)
        cr_assert(memcmp(held->rows, expected->rows,
                         (size_t)(held->info.num_rows * columns) * sizeof(int32_t)) == 0,
                  "%s: not in the order of first appearance", what);
    if (order != SPOPS_COORDS_ORDER_LEXICOGRAPHIC && order != SPOPS_COORDS_ORDER_MORTON) return;
    for (int64_t r = 1; r < held->info.num_rows; ++r)
        cr_assert(ref_before(order, dims, held->info.box.lower, held->rows + (r - 1) * columns,
                             held->rows + r * columns),
                  "%s: row %lld is not after the one before it", what, (long long)r);
}

void held_set_check(const held_set *held, const ref_set *expected, const char *what)
{
    const int32_t columns = held->info.dims + 1;
    cr_assert(held->info.dims == expected->dims, "%s", what);
    cr_assert(held->info.num_rows == expected->n, "%s: %lld rows, expected %lld", what,
              (long long)held->info.num_rows, (long long)expected->n);
    cr_assert(held->info.num_merged == expected->num_merged, "%s: %lld merged, expected %lld", what,
              (long long)held->info.num_merged, (long long)expected->num_merged);
    check_order(held, expected, what);
    for (int64_t r = 0; r < held->info.num_rows; ++r) {
        const int32_t *row = held->rows + r * columns;
        const int32_t at = ref_find(expected, row);
        cr_assert(at >= 0, "%s: row %lld is not expected", what, (long long)r);
        cr_assert(held->row_item[r] == expected->row_item[at],
                  "%s: row %lld is of item %d, expected %d", what, (long long)r, held->row_item[r],
                  expected->row_item[at]);
        for (int32_t c = 0; c < columns; ++c)
            cr_assert(row[c] >= held->info.box.lower[c] && row[c] <= held->info.box.upper[c],
                      "%s: row %lld is outside the box", what, (long long)r);
        if (r > 0 && held->info.order == SPOPS_COORDS_ORDER_GIVEN)
            cr_assert(held->row_item[r] >= held->row_item[r - 1], "%s", what);
    }
    if (held->item_row == NULL || expected->item_row == NULL) return;
    for (int64_t i = 0; i < held->view.max_items; ++i) {
        const int32_t row = i < expected->num_items ? expected->item_row[i] : -1;
        const int32_t got = held->item_row[i];
        cr_assert((row < 0) == (got < 0), "%s: item %lld has row %d", what, (long long)i, got);
        if (row >= 0)
            cr_assert(memcmp(held->rows + (int64_t)got * columns,
                             expected->rows + (int64_t)row * columns,
                             (size_t)columns * sizeof(int32_t)) == 0,
                      "%s: item %lld has the wrong row", what, (long long)i);
    }
}

// ---- Maps ---------------------------------------------------------------------------------------

static held_side held_side_of(test_device *d, const spops_kernel_map_side *side, const held_map *h,
                              int64_t n, int64_t max_pairs)
{
    held_side s;
    memset(&s, 0, sizeof s);
    const int32_t words = h->view.mask_words;
    s.n = n;
    s.max_rows = side->max_rows;
    s.mirrored = side->mirrored != 0;
    s.num_tiles = side->num_tiles;
    s.table = fetch(d, side->table, n * h->view.table_stride);
    s.masks = (uint32_t *)fetch(d, side->masks, n * words);
    s.order = fetch(d, side->order, n);
    s.tile_masks = (uint32_t *)fetch(d, side->tile_masks, s.num_tiles * words);
    s.tile_order = fetch(d, side->tile_order, s.num_tiles);
    s.offsets = fetch(d, side->offsets, side->max_rows + 1);
    s.row_taps = fetch(d, side->row_taps, 2 * max_pairs);
    s.pair_ids = fetch(d, side->pair_ids, max_pairs);
    return s;
}

held_map held_map_of(test_device *d, const spops_kernel_map *map, spops_status expected_status,
                     const char *what)
{
    held_map h;
    memset(&h, 0, sizeof h);
    h.info = spops_kernel_map_info_default();
    h.view = spops_kernel_map_view_default();
    const spops_status status = spops_kernel_map_get_info_sync(d->ctx, map, &h.info);
    cr_assert(status == expected_status, "%s: %s: %s", what, spops_status_name(status),
              spops_last_error(d->ctx));
    test_expect_ok(d->ctx, spops_kernel_map_get_view(d->ctx, map, &h.view), what);
    h.kernel = *h.info.kernel;
    cr_assert(h.view.num_taps == h.info.num_taps && h.view.max_pairs == h.info.max_pairs, "%s",
              what);
    const int64_t pairs = h.info.overflow ? 0 : h.info.num_pairs;
    h.out = held_side_of(d, h.view.out, &h, h.info.num_out, pairs);
    h.in = held_side_of(d, h.view.in, &h, h.info.num_in, pairs);
    h.tap_offsets = fetch(d, h.view.tap_offsets, h.view.num_taps + 1);
    h.in_rows = fetch(d, h.view.in_rows, pairs);
    h.out_rows = fetch(d, h.view.out_rows, pairs);
    h.tap_counts = fetch(d, h.view.tap_counts, h.view.num_taps);
    return h;
}

static void free_side(held_side *s)
{
    free(s->table), free(s->masks), free(s->order), free(s->tile_masks), free(s->tile_order);
    free(s->offsets), free(s->row_taps), free(s->pair_ids);
}

void held_map_free(held_map *h)
{
    free_side(&h->out), free_side(&h->in);
    free(h->tap_offsets), free(h->in_rows), free(h->out_rows), free(h->tap_counts);
    memset(h, 0, sizeof *h);
}

static bool has_bit(const uint32_t *mask, int32_t k)
{
    return mask[k / 32] >> (k % 32) & 1;
}

// Groups of a map's taps by which its rows are ordered, the one that counts most first
// (docs/coords.md#kernel-maps), as sets of taps.
enum { MOST_GROUPS = 27, MOST_TAPS = 2401 };
typedef struct tap_groups {
    int num, most;
    bool has[MOST_GROUPS][MOST_TAPS];
} tap_groups;

static int tap_position(const spops_kernel_shape *kernel, int32_t tap, int axis)
{
    for (int a = kernel->dims - 1; a > axis; --a)
        tap /= kernel->size[a];
    return tap % kernel->size[axis];
}

// Twice the way from the kernel's middle.
static int tap_way(const spops_kernel_shape *kernel, int32_t tap, int axis)
{
    return 2 * tap_position(kernel, tap, axis) - kernel->size[axis] + 1;
}

// 0: the middle plane of an axis, 1: its ends, 2: the others.
static void add_planes(const spops_kernel_shape *kernel, int32_t taps, int kind, tap_groups *g)
{
    for (int t = 0; t < SPOPS_MAX_KERNEL_SIZE; ++t)
        for (int a = 0; a < kernel->dims; ++a) {
            const int size = kernel->size[a];
            const int own = 2 * t == size - 1 ? 0 : t == 0 || t == size - 1 ? 1 : 2;
            if (t >= size || size == 1 || own != kind) continue;
            for (int32_t k = 0; k < taps; ++k)
                g->has[g->num][k] = tap_position(kernel, k, a) == t;
            ++g->num;
        }
}

// How far out a tap is: its distance, or of more than 32 taps along how many axes it is off the middle.
static int tap_far(const spops_kernel_shape *kernel, int32_t taps, int32_t tap)
{
    int far = 0;
    for (int a = 0; a < kernel->dims; ++a) {
        const int way = abs(tap_way(kernel, tap, a));
        far += taps <= 32 ? way : way != 0;
    }
    return far;
}

// Whether two taps are one unit: the same tap, or in the same direction from the middle.
static bool same_unit(const spops_kernel_shape *kernel, int32_t taps, int32_t a, int32_t b)
{
    bool same = taps > 32 || a == b;
    for (int axis = 0; axis < kernel->dims; ++axis) {
        const int x = tap_way(kernel, a, axis), y = tap_way(kernel, b, axis);
        same &= (x > 0) == (y > 0) && (x < 0) == (y < 0);
    }
    return same;
}

// The first tap of each unit, the farthest out first; with `paired`, not of the second of two opposite
// ones that are farthest out.
static int list_units(const spops_kernel_shape *kernel, int32_t taps, bool symmetric, bool paired,
                      int32_t *first)
{
    int n = 0, most = 0;
    for (int32_t k = 0; k < taps; ++k)
        if (tap_far(kernel, taps, k) > most) most = tap_far(kernel, taps, k);
    for (int far = most; far >= (symmetric ? 1 : 0); --far)
        for (int32_t k = 0; k < taps; ++k) {
            bool is_new = tap_far(kernel, taps, k) == far;
            for (int32_t other = 0; is_new && other < k; ++other)
                is_new = !same_unit(kernel, taps, other, k) &&
                         !(paired && far == most && same_unit(kernel, taps, taps - 1 - other, k));
            if (is_new) first[n++] = k;
        }
    return n;
}

static void add_units(const spops_kernel_shape *kernel, int32_t taps, bool symmetric, tap_groups *g)
{
    int32_t first[MOST_TAPS];
    const int left = g->most - g->num;
    const bool paired = list_units(kernel, taps, symmetric, false, first) > left;
    const int n = list_units(kernel, taps, symmetric, paired, first);
    const int most = tap_far(kernel, taps, 0);
    for (int i = 0; i < n; ++i) {
        const int group = n > 2 * left ? i * left / n : i;
        if (group >= left) break;
        for (int32_t k = 0; k < taps; ++k)
            if (same_unit(kernel, taps, first[i], k) ||
                (paired && tap_far(kernel, taps, k) == most &&
                 same_unit(kernel, taps, first[i], taps - 1 - k)))
                g->has[g->num + group][k] = true;
    }
    g->num += n < left ? n : left;
}

static tap_groups *tap_groups_of(const spops_kernel_shape *kernel, int32_t taps, bool symmetric,
                                 bool brief)
{
    tap_groups *g = (tap_groups *)allocate(1, sizeof *g);
    int32_t first[MOST_TAPS];
    int axes = 0;
    g->most = taps > 18 ? 27 : taps > 9 ? 18 : 9;
    for (int a = 0; a < kernel->dims; ++a)
        axes += kernel->size[a] > 1;
    if (taps > 9 && axes > 1) {
        if (!symmetric) add_planes(kernel, taps, 0, g);
        add_planes(kernel, taps, 1, g);
        int inner = 0;
        for (int a = 0; a < kernel->dims; ++a)
            if (kernel->size[a] > 3) inner += (kernel->size[a] - 2) / 2 * 2;
        if (taps <= 32 ||
            g->num + inner + list_units(kernel, taps, symmetric, false, first) <= g->most)
            add_planes(kernel, taps, 2, g);
    }
    if (!brief || g->num == 0) add_units(kernel, taps, symmetric, g);
    return g;
}

// Binary rank of a Gray code, bit by bit.
static uint32_t gray_rank(const tap_groups *g, const uint32_t *mask, int32_t taps)
{
    uint32_t rank = 0;
    bool parity = false;
    for (int i = 0; i < g->num; ++i) {
        bool any = false;
        for (int32_t k = 0; k < taps; ++k)
            any |= g->has[i][k] && has_bit(mask, k);
        parity ^= any;
        rank = rank << 1 | parity;
    }
    return rank;
}

static int32_t num_bits(const uint32_t *mask, int32_t taps)
{
    int32_t n = 0;
    for (int32_t k = 0; k < taps; ++k)
        n += has_bit(mask, k);
    return n;
}

void held_map_check_order(const held_map *h, const held_side *s, const char *what)
{
    const int32_t words = h->view.mask_words, taps = h->view.num_taps, tile = h->view.tile_rows;
    tap_groups *groups = tap_groups_of(&h->kernel, taps, h->info.kind == SPOPS_MAP_SUBMANIFOLD,
                                       (h->info.contents & SPOPS_MAP_FOR_ONE_CONV) != 0);
    unsigned char *seen = (unsigned char *)allocate(s->n + s->num_tiles, 1);
    uint32_t before = 0;
    for (int64_t p = 0; p < s->n; ++p) {
        const int32_t row = s->order[p];
        cr_assert(row >= 0 && row < s->n && !seen[row], "%s: order[%lld] is %d", what, (long long)p,
                  row);
        seen[row] = 1;
        const uint32_t rank = gray_rank(groups, s->masks + (int64_t)row * words, taps);
        cr_assert(p == 0 || before < rank || (before == rank && s->order[p - 1] < row),
                  "%s: order[%lld] does not ascend", what, (long long)p);
        before = rank;
    }
    for (int64_t t = 0; t < s->num_tiles; ++t) {
        const uint32_t *mask = s->tile_masks + t * words;
        for (int32_t k = 0; k < 32 * words; ++k) {
            bool any = false;
            for (int64_t p = t * tile; p < s->n && p < (t + 1) * tile; ++p)
                any |= has_bit(s->masks + (int64_t)s->order[p] * words, k);
            cr_assert(any == has_bit(mask, k), "%s: tile %lld, tap %d", what, (long long)t, k);
        }
    }
    memset(seen, 0, (size_t)(s->n + s->num_tiles));
    for (int64_t i = 0; i < s->num_tiles; ++i) {
        const int32_t t = s->tile_order[i];
        cr_assert(t >= 0 && t < s->num_tiles && !seen[t], "%s: tile_order[%lld]", what,
                  (long long)i);
        seen[t] = 1;
        if (i == 0) continue;
        const int32_t above = num_bits(s->tile_masks + (int64_t)s->tile_order[i - 1] * words, taps);
        const int32_t here = num_bits(s->tile_masks + (int64_t)t * words, taps);
        cr_assert(above > here || (above == here && s->tile_order[i - 1] < t),
                  "%s: tile_order[%lld]", what, (long long)i);
    }
    free(groups);
    free(seen);
}

// table[n][taps] from one side.
static void check_side(const held_map *h, const held_side *s, int64_t n, const int32_t *table,
                       bool by_input, const char *what)
{
    const int32_t taps = h->view.num_taps, stride = h->view.table_stride,
                  words = h->view.mask_words;
    const int64_t tiles = h->view.tile_rows;
    cr_assert(s->n == n, "%s: %lld rows, expected %lld", what, (long long)s->n, (long long)n);
    for (int64_t i = 0; s->table != NULL && i < n; ++i)
        for (int32_t k = 0; k < stride; ++k) {
            const int32_t tap = s->mirrored && k < taps ? taps - 1 - k : k;
            const int32_t expected = k < taps ? table[i * taps + tap] : -1;
            cr_assert(s->table[i * stride + k] == expected,
                      "%s: table[%lld][%d] is %d, expected %d", what, (long long)i, k,
                      s->table[i * stride + k], expected);
            cr_assert(has_bit(s->masks + i * words, k) == (expected >= 0), "%s: mask of %lld", what,
                      (long long)i);
        }
    if (s->order != NULL) {
        cr_assert(s->num_tiles >= (n + tiles - 1) / tiles, "%s", what);
        held_map_check_order(h, s, what);
    }
    if (s->offsets == NULL) return;
    int64_t p = 0;
    for (int64_t i = 0; i < n; ++i) {
        cr_assert(s->offsets[i] == p, "%s: offsets[%lld]", what, (long long)i);
        for (int32_t k = 0; k < taps; ++k) {
            const int32_t other = table[i * taps + k];
            if (other < 0) continue;
            cr_assert(s->row_taps[2 * p] == other && s->row_taps[2 * p + 1] == k,
                      "%s: row_taps[%lld]", what, (long long)p);
            const int32_t at = s->pair_ids[p++];
            cr_assert(at >= h->tap_offsets[k] && at < h->tap_offsets[k + 1], "%s: position %d",
                      what, at);
            cr_assert(h->in_rows[at] == (by_input ? i : other), "%s: position %d", what, at);
            cr_assert(h->out_rows[at] == (by_input ? other : i), "%s: position %d", what, at);
        }
    }
    const int64_t max_rows = by_input ? h->in.max_rows : h->out.max_rows;
    for (int64_t i = n; i <= max_rows; ++i)
        cr_assert(s->offsets[i] == p, "%s: offsets[%lld]", what, (long long)i);
}

void held_map_check(const held_map *h, int64_t num_in, int64_t num_out, const int32_t *table,
                    const char *what)
{
    const int32_t taps = h->view.num_taps;
    int32_t *reverse = (int32_t *)allocate(num_in * taps, sizeof *reverse);
    int64_t pairs = 0;
    memset(reverse, 0xff, (size_t)(num_in * taps) * sizeof *reverse);
    for (int32_t k = 0; k < taps; ++k) {
        const int64_t first = pairs;
        if (h->tap_offsets != NULL)
            cr_assert(h->tap_offsets[k] == pairs, "%s: tap_offsets[%d]", what, k);
        for (int64_t i = 0; i < num_out; ++i) {
            const int32_t j = table[i * taps + k];
            if (j < 0) continue;
            reverse[(int64_t)j * taps + k] = (int32_t)i;
            if (h->in_rows != NULL)
                cr_assert(h->in_rows[pairs] == j && h->out_rows[pairs] == i, "%s: pair %lld", what,
                          (long long)pairs);
            ++pairs;
        }
        cr_assert(h->tap_counts[k] == pairs - first, "%s: tap %d has %d pairs, expected %lld", what,
                  k, h->tap_counts[k], (long long)(pairs - first));
    }
    if (h->tap_offsets != NULL) cr_assert(h->tap_offsets[taps] == pairs, "%s", what);
    cr_assert(h->info.num_pairs == pairs, "%s: %lld pairs, expected %lld", what,
              (long long)h->info.num_pairs, (long long)pairs);
    check_side(h, &h->out, num_out, table, false, what);
    check_side(h, &h->in, num_in, reverse, true, what);
    free(reverse);
}

static void check_same(const void *a, const void *b, int64_t n, const char *name, const char *what)
{
    cr_assert((a == NULL) == (b == NULL), "%s: %s", what, name);
    if (a != NULL) cr_assert(memcmp(a, b, (size_t)n * 4) == 0, "%s: %s differs", what, name);
}

static void check_same_side(const held_map *h, const held_side *a, const held_side *b,
                            int64_t pairs, const char *what)
{
    cr_assert(a->n == b->n && a->mirrored == b->mirrored, "%s", what);
    check_same(a->table, b->table, a->n * h->view.table_stride, "table", what);
    check_same(a->masks, b->masks, a->n * h->view.mask_words, "masks", what);
    check_same(a->order, b->order, a->n, "order", what);
    check_same(a->offsets, b->offsets, a->n + 1, "offsets", what);
    check_same(a->row_taps, b->row_taps, 2 * pairs, "row_taps", what);
    check_same(a->pair_ids, b->pair_ids, pairs, "pair_ids", what);
    if (a->num_tiles != b->num_tiles) return; // of other capacities
    check_same(a->tile_masks, b->tile_masks, a->num_tiles * h->view.mask_words, "tile_masks", what);
    check_same(a->tile_order, b->tile_order, a->num_tiles, "tile_order", what);
}

void held_map_check_same(const held_map *a, const held_map *b, const char *what)
{
    const int64_t pairs = a->info.num_pairs;
    cr_assert(pairs == b->info.num_pairs && a->view.num_taps == b->view.num_taps, "%s", what);
    check_same(a->tap_counts, b->tap_counts, a->view.num_taps, "tap_counts", what);
    check_same(a->tap_offsets, b->tap_offsets, a->view.num_taps + 1, "tap_offsets", what);
    check_same(a->in_rows, b->in_rows, pairs, "in_rows", what);
    check_same(a->out_rows, b->out_rows, pairs, "out_rows", what);
    check_same_side(a, &a->out, &b->out, pairs, what);
    check_same_side(a, &a->in, &b->in, pairs, what);
}
