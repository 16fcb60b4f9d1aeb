// SPDX-License-Identifier: Apache-2.0
// Saved kernel maps: round trips, on any backend's bytes; damaged ones, and those of other clouds.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "core/plan_file.h"
#include "support/device.h"
#include "tests/support/coord_cases.h"
#include "tests/support/params.h"
#include "tests/support/saved.h"

static spops_kernel_map *const untouched = (spops_kernel_map *)16;

// A map with its sets, and the bytes it was saved as.
typedef struct saved_map {
    spops_coords *in, *out; // out NULL: in
    spops_kernel_map *map;
    unsigned char *bytes;
    size_t num_bytes;
} saved_map;

static spops_coords *set_of(test_device *d, const cloud_rows *rows)
{
    return test_create_set(d, rows->dims, rows->n, rows->rows, NULL);
}

static saved_map save_map(test_device *d, spops_kernel_map_kind kind, int32_t contents,
                          const cloud_rows *rows)
{
    saved_map s;
    spops_kernel_shape kernel = spops_kernel_shape_cube(rows->dims, 3, 1, 1);
    spops_kernel_map_options o = spops_kernel_map_options_default();
    memset(&s, 0, sizeof s);
    o.contents = contents;
    o.tile_rows = 16;
    s.in = set_of(d, rows);
    if (kind != SPOPS_MAP_SUBMANIFOLD) {
        for (int32_t a = 0; a < rows->dims; ++a)
            kernel.stride[a] = 2, kernel.padding[a] = 1;
        test_expect_ok(d->ctx, spops_coords_create_downsampled(d->ctx, s.in, &kernel, NULL, &s.out),
                       "down");
    }
    if (kind == SPOPS_MAP_TRANSPOSED) {
        spops_coords *swap = s.in;
        s.in = s.out, s.out = swap;
    }
    test_expect_ok(d->ctx, spops_kernel_map_create(d->ctx, kind, &kernel, s.in, s.out, &o, &s.map),
                   "map");
    test_expect_ok(d->ctx, saved_put_map(d->ctx, s.map, s.in, s.out, NULL, 0, &s.num_bytes),
                   "size");
    s.bytes = (unsigned char *)malloc(s.num_bytes);
    size_t written = 0;
    test_expect_ok(
        d->ctx, saved_put_map(d->ctx, s.map, s.in, s.out, s.bytes, s.num_bytes, &written), "save");
    cr_assert(written == s.num_bytes);
    return s;
}

static void free_saved(saved_map *s)
{
    spops_kernel_map_destroy(s->map);
    spops_coords_destroy(s->in), spops_coords_destroy(s->out);
    free(s->bytes);
}

static void seal(unsigned char *bytes, size_t n)
{
    const uint64_t checksum = spops_file_checksum(bytes, n - SPOPS_FILE_CHECKSUM_BYTES);
    for (int i = 0; i < SPOPS_FILE_CHECKSUM_BYTES; ++i)
        bytes[n - SPOPS_FILE_CHECKSUM_BYTES + (size_t)i] = (unsigned char)(checksum >> (8 * i));
}

static void load_refused(test_device *d, const saved_map *s, const unsigned char *bytes, size_t n,
                         const char *fragment)
{
    spops_kernel_map *map = untouched;
    const int64_t live = d->memory.live;
    test_expect(d->ctx, saved_get_map(d->ctx, s->in, s->out, bytes, n, &map),
                SPOPS_STATUS_CORRUPT_DATA, fragment, fragment);
    cr_assert(map == NULL && d->memory.live == live, "%s", fragment);
}

BackendTest(kernel_map_blob, round_trip)
{
    static const int32_t contents[] = {SPOPS_MAP_TABLE, SPOPS_MAP_ORDER | SPOPS_MAP_REVERSE, 31};
    test_device d;
    test_rng rng = test_rng_make(601);
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int32_t dims = 1; dims <= SPOPS_MAX_DIMS; ++dims)
        for (test_cloud cloud = CLOUD_EMPTY; cloud < NUM_CLOUDS; ++cloud)
            for (int kind = 0; kind < 3; ++kind) {
                cloud_rows rows = cloud_make(cloud, dims, false, &rng);
                saved_map s = save_map(&d, (spops_kernel_map_kind)kind, contents[kind], &rows);
                spops_kernel_map *loaded = untouched;
                test_expect_ok(d.ctx,
                               saved_get_map(d.ctx, s.in, s.out, s.bytes, s.num_bytes, &loaded),
                               cloud_name(cloud));
                held_map a = held_map_of(&d, s.map, SPOPS_STATUS_OK, "saved");
                held_map b = held_map_of(&d, loaded, SPOPS_STATUS_OK, "loaded");
                cr_assert(a.info.kind == b.info.kind && a.info.contents == b.info.contents);
                cr_assert(memcmp(&a.kernel, &b.kernel, sizeof a.kernel) == 0);
                cr_assert(a.view.tile_rows == b.view.tile_rows);
                held_map_check_same(&a, &b, cloud_name(cloud));
                // And its bytes are the same again.
                size_t written = 0;
                unsigned char *again = (unsigned char *)malloc(s.num_bytes);
                test_expect_ok(
                    d.ctx, saved_put_map(d.ctx, loaded, s.in, s.out, again, s.num_bytes, &written),
                    "again");
                cr_assert(written == s.num_bytes && memcmp(again, s.bytes, written) == 0);
                free(again);
                held_map_free(&a), held_map_free(&b);
                spops_kernel_map_destroy(loaded);
                free_saved(&s);
                cloud_free(&rows);
            }
    test_close(&d);
}

BackendTest(kernel_map_blob, damaged)
{
    test_device d;
    test_rng rng = test_rng_make(602);
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    cloud_rows rows = cloud_make(CLOUD_DENSE, 2, false, &rng);
    saved_map s = save_map(&d, SPOPS_MAP_SUBMANIFOLD, 31, &rows);
    const size_t n = s.num_bytes;
    unsigned char *bytes = (unsigned char *)malloc(n + 8);

    // Every cut, and every byte changed: the checksum sees it.
    for (size_t cut = 0; cut < n; cut += cut < 200 ? 1 : 37)
        load_refused(&d, &s, s.bytes, cut, "plan_load");
    for (size_t at = 0; at < n; at += at < 200 ? 1 : 23) {
        memcpy(bytes, s.bytes, n);
        bytes[at] ^= 0x41;
        load_refused(&d, &s, bytes, n, "plan_load");
    }
    // The same with a checksum that is right: refused, or (where nothing hangs on that byte, such
    // as tile_rows) a map that holds what its sets say.
    for (size_t at = 12; at < n - SPOPS_FILE_CHECKSUM_BYTES; ++at)
        for (int bit = 0; bit < 8; bit += 3) {
            spops_kernel_map *map = untouched;
            memcpy(bytes, s.bytes, n);
            bytes[at] ^= (unsigned char)(1 << bit);
            seal(bytes, n);
            const spops_status status = saved_get_map(d.ctx, s.in, s.out, bytes, n, &map);
            cr_assert((status == SPOPS_STATUS_OK) == (map != NULL), "byte %zu", at);
            if (status == SPOPS_STATUS_OK) {
                held_map a = held_map_of(&d, map, SPOPS_STATUS_OK, "changed");
                // Parts, tile_rows, and a padding of 0 that became that of the centre.
                cr_assert(at < 24 || (at >= 60 && at < 68), "byte %zu, bit %d was not looked at",
                          at, bit);
                held_map_free(&a);
            } else {
                cr_assert(status == SPOPS_STATUS_CORRUPT_DATA, "byte %zu: %s", at,
                          spops_last_error(d.ctx));
            }
            spops_kernel_map_destroy(map);
        }
    // One by one. The header: magic 8, version 4, then numbers of 4 (kind, contents, tile_rows,
    // dims, 4 x 4 of the kernel) and of 8 (num_in, num_out, num_pairs, two fingerprints).
    const size_t kind = 12, numbers = 12 + 16 + 64, masks = numbers + 40;
    const size_t table = masks + 4 * (size_t)rows.n;
    struct {
        const char *fragment;
        size_t at;
        int32_t value;
    } changes[] = {{"kind is 7", kind, 7},
                   {"contents is 30", kind + 4, 30},
                   {"contents is 64", kind + 4, 64},
                   {"tile_rows is 3", kind + 8, 3},
                   {"dims is 3", kind + 12, 3},
                   {"kernel.size[0] is 4", kind + 16, 4},
                   {"kernel.size[1] is 99", kind + 20, 99},
                   {"kernel.stride[0] is -1", kind + 32, -1},
                   {"num_in is 7", numbers, 7},
                   {"num_out is 9", numbers + 8, 9},
                   {"bytes of arrays, expected", numbers + 16, 5},
                   {"other coordinates than in", numbers + 24, 123},
                   {"masks[0] has tap", masks, -1},
                   {"table[0]", table, -2},
                   {"table[0]", table, (int32_t)rows.n}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; ++i) {
        memcpy(bytes, s.bytes, n);
        memcpy(bytes + changes[i].at, &changes[i].value, sizeof changes[i].value);
        seal(bytes, n);
        load_refused(&d, &s, bytes, n, changes[i].fragment);
    }
    memcpy(bytes, s.bytes, n);
    memset(bytes + n, 0, 8); // longer than it should be
    seal(bytes, n + 8);
    load_refused(&d, &s, bytes, n + 8, "bytes of arrays");
    free(bytes);
    free_saved(&s);
    cloud_free(&rows);
    test_close(&d);
}

BackendTest(kernel_map_blob, other_clouds)
{
    test_device d;
    test_rng rng = test_rng_make(603);
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    spops_kernel_map *map = untouched;
    size_t bytes = 0;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    cloud_rows rows = cloud_make(CLOUD_CLUMPS, 3, false, &rng);
    saved_map s = save_map(&d, SPOPS_MAP_SUBMANIFOLD, SPOPS_MAP_TABLE, &rows);
    // Of the same size, moved by one; two rows exchanged; one row fewer.
    cloud_rows other = {3, rows.n, (int32_t *)malloc((size_t)rows.n * 16)};
    memcpy(other.rows, rows.rows, (size_t)rows.n * 16);
    for (int64_t i = 0; i < rows.n; ++i)
        other.rows[4 * i + 2] += 1;
    saved_map t = {set_of(&d, &other), NULL, NULL, NULL, 0};
    load_refused(&d, &t, s.bytes, s.num_bytes, "other coordinates than in");
    spops_coords_destroy(t.in);
    memcpy(other.rows, rows.rows + 4, 16), memcpy(other.rows + 4, rows.rows, 16);
    memcpy(other.rows + 8, rows.rows + 8, (size_t)(rows.n - 2) * 16);
    t.in = set_of(&d, &other);
    load_refused(&d, &t, s.bytes, s.num_bytes, "other coordinates than in");
    spops_coords_destroy(t.in);
    other.n -= 1;
    t.in = set_of(&d, &other);
    load_refused(&d, &t, s.bytes, s.num_bytes, "num_in");
    test_expect(d.ctx, saved_put_map(d.ctx, s.map, t.in, NULL, NULL, 0, &bytes), invalid,
                "rows, expected", "save with another set");
    // What save and load ask for.
    const spops_plan *const wrong[] = {(const spops_plan *)s.map, (const spops_plan *)s.in,
                                       (const spops_plan *)s.in};
    test_expect(d.ctx, spops_plan_save(d.ctx, wrong[0], NULL, 0, NULL, 0, &bytes), invalid,
                "num_parents is 0, expected 1 or 2 of kind kernel_map", "no sets");
    test_expect(d.ctx, spops_plan_save(d.ctx, wrong[0], wrong, 3, NULL, 0, &bytes), invalid,
                "num_parents is 3, expected 1 or 2 of kind kernel_map", "three sets");
    test_expect(d.ctx, spops_plan_save(d.ctx, wrong[0], NULL, 1, NULL, 0, &bytes), invalid,
                "parents is NULL", "no array");
    test_expect(d.ctx, spops_plan_save(d.ctx, wrong[0], wrong, 1, NULL, 0, &bytes), invalid,
                "parents[0] (in) is of kind kernel_map, expected coords", "no set but a map");
    test_expect(d.ctx, saved_put(d.ctx, s.in, NULL, 0, &bytes), SPOPS_STATUS_NOT_SUPPORTED,
                "plan_save: plans of kind coords are not saved", "a set");
    unsigned char small[8];
    test_expect(d.ctx, saved_put_map(d.ctx, s.map, s.in, NULL, small, 8, &bytes), invalid,
                "capacity is 8", "small");
    cr_assert(bytes == s.num_bytes);
    test_expect(d.ctx, saved_put_map(d.ctx, s.map, s.in, NULL, NULL, 0, NULL), invalid,
                "bytes is NULL", "no size");
    test_expect(d.ctx, saved_put_map(d.ctx, s.map, NULL, NULL, NULL, 0, &bytes), invalid,
                "parents[0] (in) is NULL", "no set");
    test_expect(d.ctx, saved_get_map(d.ctx, s.in, NULL, s.bytes, s.num_bytes, NULL), invalid,
                "plan is NULL", "no map");
    test_expect(d.ctx, saved_get_map(d.ctx, NULL, NULL, s.bytes, s.num_bytes, &map), invalid,
                "parents[0] (in) is NULL", "no set");
    test_expect(d.ctx, saved_get_map(d.ctx, s.in, NULL, NULL, 0, &map), invalid, "data is NULL",
                "no data");
    spops_coords_destroy(t.in);
    cloud_free(&rows), cloud_free(&other);
    free_saved(&s);
    test_close(&d);
}

// A coordinate that no pair names may have moved: nothing but the fingerprints can tell.
Test(kernel_map_blob, other_coordinates_without_pairs)
{
    static const int32_t in_rows[][2] = {{0, 0}, {0, 1}, {0, 40}};
    static const int32_t out_rows[][2] = {{0, 0}, {0, 1}, {0, 90}};
    static const int32_t moved_in[][2] = {{0, 0}, {0, 1}, {0, 41}};
    static const int32_t moved_out[][2] = {{0, 0}, {0, 1}, {0, 91}};
    const int32_t *const rows[] = {&in_rows[0][0], &out_rows[0][0], &moved_in[0][0],
                                   &moved_out[0][0]};
    spops_kernel_shape kernel = spops_kernel_shape_cube(1, 3, 1, 1);
    spops_coords *sets[4] = {NULL, NULL, NULL, NULL};
    unsigned char bytes[1024];
    saved_map s;
    test_device d;
    if (!test_open(&d, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    kernel.padding[0] = 1;
    for (int i = 0; i < 4; ++i)
        test_expect_ok(d.ctx, spops_coords_create(d.ctx, 1, 3, rows[i], NULL, &sets[i]), "set");
    memset(&s, 0, sizeof s);
    s.bytes = bytes;
    test_expect_ok(d.ctx,
                   spops_kernel_map_create(d.ctx, SPOPS_MAP_CONVOLUTION, &kernel, sets[0], sets[1],
                                           NULL, &s.map),
                   "map");
    test_expect_ok(d.ctx,
                   saved_put_map(d.ctx, s.map, sets[0], sets[1], bytes, sizeof bytes, &s.num_bytes),
                   "save");
    spops_kernel_map_destroy(s.map);
    test_expect_ok(d.ctx, saved_get_map(d.ctx, sets[0], sets[1], bytes, s.num_bytes, &s.map),
                   "load");
    spops_kernel_map_destroy(s.map);
    s.in = sets[2], s.out = sets[1];
    load_refused(&d, &s, bytes, s.num_bytes, "other coordinates than in");
    s.in = sets[0], s.out = sets[3];
    load_refused(&d, &s, bytes, s.num_bytes, "other coordinates than out");
    for (int i = 0; i < 4; ++i)
        spops_coords_destroy(sets[i]);
    test_close(&d);
}
