// SPDX-License-Identifier: Apache-2.0
// Argsort and unique, against plain sorts of keys of 32 and 64 bits: ties, extremes, counts that the
// device alone knows.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"

enum { KEYS, NUM_KEYS };               // inputs
enum { ORDER, SORTED };                // outputs of argsort
enum { VALUES, NUM, INVERSE, COUNTS }; // of unique

typedef struct keys_case {
    bool unique, descending, counted;
    int64_t n;
    spops_dtype dtype;
    int64_t *keys;  // of 64 bits, which no double holds
    int64_t num;    // of them that count
    int64_t spread; // they are drawn from
} keys_case;

typedef struct item {
    int64_t key, place;
} item;

static int ascending(const void *a, const void *b)
{
    const item *x = (const item *)a, *y = (const item *)b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

static int descending(const void *a, const void *b)
{
    const item *x = (const item *)a, *y = (const item *)b;
    if (x->key != y->key) return x->key > y->key ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

static int64_t draw_key(const keys_case *c, test_rng *rng)
{
    static const int64_t wide[] = {INT64_MIN, INT64_MAX, INT64_MAX - 1, 0, -1, (int64_t)1 << 40};
    static const int64_t narrow[] = {INT32_MIN, INT32_MAX, INT32_MAX - 1, 0, -1, 1 << 20};
    if (test_rng_below(rng, 8) == 0)
        return (c->dtype == SPOPS_DTYPE_I64 ? wide : narrow)[test_rng_below(rng, 6)];
    const int64_t small = test_rng_below(rng, c->spread) - c->spread / 2;
    return c->dtype == SPOPS_DTYPE_I64 ? small * 4294967311 : small;
}

static void store_key(void *keys, spops_dtype dtype, int64_t i, int64_t key)
{
    if (dtype == SPOPS_DTYPE_I64)
        ((int64_t *)keys)[i] = key;
    else
        ((int32_t *)keys)[i] = (int32_t)key;
}

static int64_t load_key(const void *keys, spops_dtype dtype, int64_t i)
{
    return dtype == SPOPS_DTYPE_I64 ? ((const int64_t *)keys)[i] : ((const int32_t *)keys)[i];
}

// Memory of n elements where a backend runs, with what is written there and read back.
typedef struct buffer {
    void *host, *there;
    size_t bytes;
} buffer;

static buffer buffer_create(const test_device *d, int64_t n, size_t element, int poison)
{
    buffer b = {NULL, NULL, (size_t)(n + 2) * element}; // with a guard of two elements
    b.host = malloc(b.bytes);
    cr_assert(b.host != NULL && device_alloc(d->backend, b.bytes, &b.there));
    memset(b.host, poison, b.bytes);
    cr_assert(device_upload(d->backend, b.there, b.host, b.bytes));
    return b;
}

static void buffer_read(const test_device *d, buffer *b, size_t element, int poison)
{
    const unsigned char *end = (const unsigned char *)b->host + b->bytes;
    cr_assert(device_download(d->backend, b->host, b->there, b->bytes));
    for (size_t i = 1; i <= 2 * element; ++i)
        cr_assert(end[-(ptrdiff_t)i] == (unsigned char)poison, "written behind the end");
}

static void buffer_destroy(const test_device *d, buffer *b)
{
    device_free(d->backend, b->there);
    free(b->host);
}

static void check_argsort(const keys_case *c, const item *items, const int32_t *order,
                          const void *sorted)
{
    for (int64_t i = 0; i < c->n; ++i) {
        const bool counts = i < c->num;
        cr_assert(order[i] == (counts ? (int32_t)items[i].place : -1), "order[%d] is %d", (int)i,
                  (int)order[i]);
        cr_assert(load_key(sorted, c->dtype, i) == (counts ? items[i].key : 0), "sorted[%d]",
                  (int)i);
    }
}

static void check_unique(const keys_case *c, const item *items, const buffer *b)
{
    const int32_t *inverse = b[INVERSE].host, *counts = b[COUNTS].host;
    int64_t u = -1, run = 0;
    for (int64_t i = 0; i < c->num; ++i) {
        if (i == 0 || items[i].key != items[i - 1].key) {
            if (u >= 0) cr_assert(counts[u] == run, "counts[%d] is %d", (int)u, counts[u]);
            run = 0;
            cr_assert(load_key(b[VALUES].host, c->dtype, ++u) == items[i].key, "values[%d]",
                      (int)u);
        }
        ++run;
        cr_assert(inverse[items[i].place] == u, "inverse[%d] is %d, expected %d",
                  (int)items[i].place, inverse[items[i].place], (int)u);
    }
    if (u >= 0) cr_assert(counts[u] == run, "counts[%d] is %d", (int)u, counts[u]);
    cr_assert(*(const int32_t *)b[NUM].host == u + 1, "num_unique is %d, expected %d",
              *(const int32_t *)b[NUM].host, (int)(u + 1));
    for (int64_t i = u + 1; i < c->n; ++i)
        cr_assert(load_key(b[VALUES].host, c->dtype, i) == 0 && counts[i] == 0);
    for (int64_t i = c->num; i < c->n; ++i)
        cr_assert(inverse[i] == -1);
}

static void check_case(test_device *d, keys_case c, uint64_t stream)
{
    enum { POISON = 0x5a };
    const size_t element = c.dtype == SPOPS_DTYPE_I64 ? 8 : 4;
    test_rng rng = test_rng_make(stream);
    item *items = malloc((size_t)(c.n + 1) * sizeof *items);
    buffer keys = buffer_create(d, c.n, element, 0), b[4];
    int32_t given = (int32_t)(c.n * 2 / 3), *num;
    size_t bytes;

    cr_assert(items != NULL);
    if (stream % 5 == 0) given = stream % 2 == 0 ? -3 : INT32_MAX; // clamped
    c.num = !c.counted ? c.n : given < 0 ? 0 : given < c.n ? given : c.n;
    for (int64_t i = 0; i < c.n; ++i) {
        items[i] = (item){draw_key(&c, &rng), i};
        store_key(keys.host, c.dtype, i, items[i].key);
    }
    cr_assert(device_upload(d->backend, keys.there, keys.host, keys.bytes));
    qsort(items, (size_t)c.num, sizeof *items, c.descending ? descending : ascending);
    num = test_upload_i32(d, &given, 1);
    for (int i = 0; i < 4; ++i)
        b[i] = buffer_create(d, i == NUM && c.unique ? 1 : c.n,
                             i == (c.unique ? VALUES : SORTED) ? element : 4, POISON);
    bytes = c.unique ? spops_unique_scratch_bytes(d->ctx, c.dtype, c.n)
                     : spops_argsort_scratch_bytes(d->ctx, c.dtype, c.n);
    cr_assert((bytes > 0) == (c.n > 0));
    test_expect_ok(d->ctx, spops_context_reserve(d->ctx, bytes), "scratch");
    const spops_matrix m = spops_matrix_dense(keys.there, c.n, 1, c.dtype);
    const spops_matrix out =
        spops_matrix_dense(b[c.unique ? VALUES : SORTED].there, c.n, 1, c.dtype);
    for (int run = 0; run < 2; ++run) {
        if (c.unique)
            test_expect_ok(d->ctx,
                           spops_unique_execute(d->ctx, m, c.counted ? num : NULL, out,
                                                b[INVERSE].there, b[COUNTS].there, b[NUM].there),
                           "unique");
        else
            test_expect_ok(d->ctx,
                           spops_argsort_execute(d->ctx, c.descending, m, c.counted ? num : NULL,
                                                 b[ORDER].there, &out),
                           "argsort");
        test_wait(d);
        for (int i = 0; i < (c.unique ? 4 : 2); ++i)
            buffer_read(d, &b[i], i == (c.unique ? VALUES : SORTED) ? element : 4, POISON);
        if (c.unique)
            check_unique(&c, items, b);
        else
            check_argsort(&c, items, b[ORDER].host, b[SORTED].host);
    }
    for (int i = 0; i < 4; ++i)
        buffer_destroy(d, &b[i]);
    buffer_destroy(d, &keys);
    test_free(d, num);
    free(items);
}

static void check_all(spops_backend_kind backend, bool unique)
{
    static const int64_t sizes[] = {0, 1, 2, 31, 257, 5000, 70000};
    static const int64_t spreads[] = {1, 9, 3000, 2000000000};
    uint64_t stream = 4000;
    test_device d;
    if (!test_open(&d, backend, LAUNCH_STREAM)) return;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i)
        for (int k = 0; k < 4; ++k)
            for (int form = 0; form < 8; ++form) {
                keys_case c = {.unique = unique, .n = sizes[i], .spread = spreads[k]};
                c.dtype = form % 2 == 0 ? SPOPS_DTYPE_I32 : SPOPS_DTYPE_I64;
                c.counted = form / 2 % 2 == 0;
                c.descending = !unique && form / 4 == 0;
                check_case(&d, c, ++stream);
            }
    test_close(&d);
}

BackendTest(keys, sorts, .timeout = 300)
{
    check_all((spops_backend_kind)p->backend, false);
}

BackendTest(keys, finds_the_different_ones, .timeout = 300)
{
    check_all((spops_backend_kind)p->backend, true);
}

BackendTest(keys, refuses)
{
    enum { N = 6 };
    static const int32_t values[N] = {3, 1, 3, 0, 2, 2};
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    int32_t *keys = test_upload_i32(&d, values, N), *out = test_upload_i32(&d, values, N), read[N];
    spops_context *bare = test_context(&d, 1);
    const spops_matrix m = spops_matrix_dense(keys, N, 1, SPOPS_DTYPE_I32);
    spops_matrix bad = m;

    test_expect(d.ctx, spops_argsort_execute(d.ctx, 2, m, NULL, out, NULL), invalid,
                "descending is 2", "flag");
    bad.dtype = SPOPS_DTYPE_F32;
    test_expect(d.ctx, spops_argsort_execute(d.ctx, 0, bad, NULL, out, NULL), invalid, "keys",
                "dtype");
    test_expect(d.ctx, spops_argsort_execute(d.ctx, 0, m, NULL, NULL, NULL), invalid,
                "order is NULL", "order");
    test_expect(d.ctx, spops_argsort_execute(d.ctx, 0, m, NULL, keys, NULL), invalid,
                "order overlaps keys", "overlap");
    bad = m, bad.cols = 2, bad.rows = 3, bad.row_stride = 2;
    test_expect(d.ctx, spops_unique_execute(d.ctx, bad, NULL, m, NULL, NULL, out), invalid, "keys",
                "two columns");
    test_expect(d.ctx, spops_unique_execute(d.ctx, m, NULL, m, NULL, NULL, out), invalid,
                "values overlaps keys", "overlap");
    test_expect(bare, spops_argsort_execute(bare, 0, m, NULL, out, NULL),
                SPOPS_STATUS_SCRATCH_TOO_SMALL, "reserve with spops_argsort_scratch_bytes", "bare");
    cr_assert_eq(spops_argsort_scratch_bytes(NULL, SPOPS_DTYPE_I32, 5), 0);
    cr_assert_eq(spops_unique_scratch_bytes(d.ctx, SPOPS_DTYPE_F32, 5), 0);
    cr_assert_eq(spops_unique_scratch_bytes(d.ctx, SPOPS_DTYPE_I32, INT32_MAX), 0);
    test_wait(&d);
    test_download_i32(&d, read, out, N);
    cr_assert(memcmp(read, values, sizeof values) == 0);
    spops_context_destroy(bare);
    test_free(&d, keys), test_free(&d, out);
    test_close(&d);
}
