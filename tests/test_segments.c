// SPDX-License-Identifier: Apache-2.0
// Plans of segments: what they refuse, what they hold, saving and loading, and refilling on the
// stream.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "tests/support/launch.h"
#include "tests/support/params.h"
#include "tests/support/relation.h"
#include "tests/support/saved.h"

static spops_segments *const untouched = (spops_segments *)16; // what *out holds before a call

// ---- what create refuses ----

enum { SEGMENTS = 4, TERMS = 6 };
static const int32_t good_offsets[SEGMENTS + 1] = {0, 2, 2, 5, 6};
static const int32_t good_keys[TERMS] = {3, 0, 2, 2, 0, 2};
static const int32_t sorted_keys[TERMS] = {0, 0, 2, 2, 2, 3};
static const int32_t good_idx[TERMS] = {0, 8, 3, 3, 1, 0};
static const int32_t good_weight_idx[TERMS] = {4, 0, 1, 1, 0, 2};

// Arguments of one call, on the host; arrays are copied to where the backend runs.
typedef struct create_args {
    int64_t num_segments, num_terms;
    int32_t offsets[SEGMENTS + 1], keys[TERMS], idx[TERMS], weight_idx[TERMS];
    bool no_offsets, no_keys, no_idx, no_weight_idx, shifted;
    spops_key_order order;
    spops_segments_options options;
} create_args;

static create_args good_args(void)
{
    create_args a;
    memset(&a, 0, sizeof a);
    a.num_segments = SEGMENTS;
    a.num_terms = TERMS;
    memcpy(a.offsets, good_offsets, sizeof a.offsets);
    memcpy(a.keys, good_keys, sizeof a.keys);
    memcpy(a.idx, good_idx, sizeof a.idx);
    memcpy(a.weight_idx, good_weight_idx, sizeof a.weight_idx);
    a.options = spops_segments_options_default();
    a.options.num_rows = 9;
    a.options.num_weights = 5;
    a.options.max_cols = 4;
    a.options.gradients = SPOPS_GRADIENTS_ALL;
    return a;
}

// Where the backend runs, optionally one byte off its alignment.
static int32_t *place(test_device *d, const int32_t *values, int64_t n, bool off, bool shifted)
{
    void *p = NULL;
    if (off) return NULL;
    const size_t bytes = (size_t)n * sizeof(int32_t);
    cr_assert(device_alloc(d->backend, bytes + 4, &p), "%s", device_error());
    cr_assert(device_upload(d->backend, p, values, bytes), "%s", device_error());
    return (int32_t *)(void *)((char *)p + (shifted ? 1 : 0));
}

static void unplace(test_device *d, int32_t *p, bool shifted)
{
    if (p != NULL) test_free(d, (char *)p - (shifted ? 1 : 0));
}

typedef enum create_call { BY_OFFSETS, BY_KEYS } create_call;

static spops_status call_create(test_device *d, create_call call, const create_args *a,
                                spops_segments **out)
{
    create_args c = *a;
    int32_t *offsets = place(d, a->offsets, SEGMENTS + 1, a->no_offsets, a->shifted);
    int32_t *keys = place(d, a->keys, TERMS, a->no_keys, a->shifted);
    int32_t *idx = place(d, a->idx, TERMS, a->no_idx, false);
    int32_t *weight_idx = place(d, a->weight_idx, TERMS, a->no_weight_idx, false);
    c.options.idx = idx;
    c.options.weight_idx = weight_idx;
    const spops_status status =
        call == BY_OFFSETS
            ? spops_segments_create(d->ctx, a->num_segments, offsets, &c.options, out)
            : spops_segments_create_from_keys(d->ctx, a->num_segments, a->num_terms, keys, a->order,
                                              &c.options, out);
    unplace(d, offsets, a->shifted);
    unplace(d, keys, a->shifted);
    unplace(d, idx, false), unplace(d, weight_idx, false);
    return status;
}

static void refused(test_device *d, create_call call, const create_args *a, const char *fragment)
{
    spops_segments *out = untouched;
    const int64_t live = d->memory.live;
    const spops_status status = call_create(d, call, a, &out);
    test_expect(d->ctx, status, SPOPS_STATUS_INVALID_ARGUMENT,
                call == BY_OFFSETS ? "segments_create: " : "segments_create_from_keys: ", fragment);
    test_expect(d->ctx, status, SPOPS_STATUS_INVALID_ARGUMENT, fragment, fragment);
    cr_assert(out == NULL, "%s: *out is not NULL", fragment);
    cr_assert(d->memory.live == live, "%s: %lld blocks leaked", fragment,
              (long long)(d->memory.live - live));
}

static void accepted(test_device *d, create_call call, const create_args *a, const char *what)
{
    spops_segments *out = untouched;
    test_expect_ok(d->ctx, call_create(d, call, a, &out), what);
    cr_assert(out != NULL && out != untouched, "%s", what);
    spops_segments_destroy(out);
}

// What the options can have wrong, in both calls.
static void refused_options(test_device *d, create_call call)
{
    create_args a;
#define BEND(fragment, ...) (a = good_args(), __VA_ARGS__, refused(d, call, &a, fragment))
    BEND("num_segments", a.num_segments = -1);
    BEND("num_segments", a.num_segments = INT32_MAX);
    BEND("num_segments", a.num_segments = INT64_MAX);
    BEND("idx[4]", a.idx[4] = -1);
    BEND("idx[5]", a.idx[5] = 9);
    BEND("idx[1]", a.idx[1] = INT32_MIN, a.idx[3] = 100); // the first bad one is named
    BEND("weight_idx[0]", a.weight_idx[0] = 5);
    BEND("weight_idx[5]", a.weight_idx[5] = INT32_MAX);
    BEND("num_rows", a.options.num_rows = -1);
    BEND("num_rows", a.options.num_rows = INT32_MAX);
    BEND("num_weights", a.options.num_weights = -7);
    BEND("num_weights", a.options.num_weights = INT64_MAX);
    BEND("num_rows", a.no_idx = true, a.options.num_rows = TERMS - 1);
    BEND("num_weights", a.no_weight_idx = true, a.options.num_weights = TERMS - 1);
    BEND("max_cols", a.options.max_cols = -1);
    BEND("max_cols", a.options.max_cols = INT64_MAX);
    BEND("gradients", a.options.gradients = (spops_gradients)3);
    BEND("gradients", a.options.gradients = (spops_gradients)-1);
    BEND("struct_size", a.options.struct_size = sizeof a.options + 8);
    BEND(" aligned", a.shifted = true);
#undef BEND
    // Rows and weights past the terms, and a struct of an older version, are fine.
    a = good_args(), a.no_idx = true, a.options.num_rows = TERMS + 5;
    accepted(d, call, &a, "more rows than terms, no idx");
    a = good_args(), a.no_idx = a.no_weight_idx = true;
    a.options.num_rows = a.options.num_weights = 0;
    accepted(d, call, &a, "rows and weights by default");
    a = good_args(), a.options.struct_size = offsetof(spops_segments_options, max_cols);
    a.options.max_cols = -1; // not read
    accepted(d, call, &a, "a shorter struct");
}

BackendTest(segments, create_refuses)
{
    test_device d;
    create_args a;
    spops_segments *out = untouched;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    refused_options(&d, BY_OFFSETS);
#define BEND(fragment, ...) (a = good_args(), __VA_ARGS__, refused(&d, BY_OFFSETS, &a, fragment))
    BEND("offsets", a.no_offsets = true);
    BEND("offsets[0]", a.offsets[0] = 1);
    BEND("offsets[0]", a.offsets[0] = -1);
    BEND("offsets[3]", a.offsets[3] = 1);
    BEND("offsets[4]", a.offsets[4] = -3);
    BEND("offsets[2]", a.offsets[1] = 7); // offsets[2] is then the first that descends
#undef BEND
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    int32_t *offsets = test_upload_i32(&d, good_offsets, SEGMENTS + 1);
    test_expect(NULL, spops_segments_create(NULL, SEGMENTS, offsets, NULL, &out), invalid, "ctx",
                "ctx NULL");
    test_expect(d.ctx, spops_segments_create(d.ctx, SEGMENTS, offsets, NULL, NULL), invalid, "out",
                "out NULL");
    test_free(&d, offsets);
    a = good_args();
    accepted(&d, BY_OFFSETS, &a, "after the errors");
    test_close(&d);
}

BackendTest(segments, create_from_keys_refuses)
{
    test_device d;
    create_args a;
    spops_segments *out = untouched;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    refused_options(&d, BY_KEYS);
#define BEND(fragment, ...) (a = good_args(), __VA_ARGS__, refused(&d, BY_KEYS, &a, fragment))
    BEND("num_terms", a.num_terms = -1);
    BEND("num_terms", a.num_terms = INT32_MAX);
    BEND("num_terms", a.num_terms = INT64_MIN);
    BEND("keys", a.no_keys = true);
    BEND("keys[0]", a.keys[0] = SEGMENTS);
    BEND("keys[5]", a.keys[5] = -1);
    BEND("keys[1]", a.keys[1] = INT32_MAX, a.keys[2] = -5);
    BEND("keys[1]", a.order = SPOPS_KEYS_SORTED); // 3, 0: descends
    BEND("order", a.order = (spops_key_order)2);
    BEND("keys[5]", a.order = SPOPS_KEYS_SORTED, memcpy(a.keys, sorted_keys, sizeof a.keys),
         a.keys[5] = SEGMENTS);
    BEND("num_segments", a.num_segments = 0); // terms without a segment to go to
#undef BEND
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    int32_t *keys = test_upload_i32(&d, good_keys, TERMS);
    test_expect(NULL,
                spops_segments_create_from_keys(NULL, SEGMENTS, TERMS, keys, SPOPS_KEYS_UNSORTED,
                                                NULL, &out),
                invalid, "ctx", "ctx NULL");
    test_expect(d.ctx,
                spops_segments_create_from_keys(d.ctx, SEGMENTS, TERMS, keys, SPOPS_KEYS_UNSORTED,
                                                NULL, NULL),
                invalid, "out", "out NULL");
    test_free(&d, keys);
    a = good_args();
    accepted(&d, BY_KEYS, &a, "after the errors");
    a.order = SPOPS_KEYS_SORTED;
    memcpy(a.keys, sorted_keys, sizeof a.keys);
    accepted(&d, BY_KEYS, &a, "sorted keys");
    test_close(&d);
}

// ---- what a plan holds ----

static spops_segments_info info_of(test_device *d, const spops_segments *plan)
{
    spops_segments_info info;
    memset(&info, 0x5a, sizeof info);
    info.struct_size = sizeof info;
    test_expect_ok(d->ctx, spops_segments_get_info_sync(d->ctx, plan, &info), "info");
    cr_assert(info.struct_size == sizeof info);
    return info;
}

static void check_info(const spops_segments_info *info, const test_relation *relation,
                       const char *what)
{
    const ref_relation *r = &relation->ref;
    cr_assert(info->num_segments == r->num_segments, "%s", what);
    cr_assert(info->num_terms == r->num_terms, "%s", what);
    cr_assert(info->num_rows == r->num_rows, "%s: %lld rows, expected %lld", what,
              (long long)info->num_rows, (long long)r->num_rows);
    cr_assert(info->num_weights == r->num_weights, "%s", what);
    cr_assert(info->num_nonempty == relation->num_nonempty, "%s: %lld, expected %lld", what,
              (long long)info->num_nonempty, (long long)relation->num_nonempty);
    cr_assert(info->longest == relation->longest, "%s: %lld, expected %lld", what,
              (long long)info->longest, (long long)relation->longest);
    cr_assert(info->num_dropped == 0 && info->overflow == 0, "%s", what);
    cr_assert(info->num_pieces == 0 || info->num_pieces >= 2, "%s", what);
    if (relation->longest >= 70000) cr_assert(info->num_pieces >= 2, "%s: not split", what);
}

// The forward lists name every term of every segment, in ascending order.
static void check_view(test_device *d, const spops_segments *plan, const test_relation *relation,
                       const char *what)
{
    const ref_relation *r = &relation->ref;
    const int64_t n = r->num_terms;
    spops_segments_view view = spops_segments_view_default();
    test_expect_ok(d->ctx, spops_segments_get_view(d->ctx, plan, &view), what);
    cr_assert(view.num_segments == r->num_segments, "%s", what);
    cr_assert(view.max_terms >= n, "%s", what);
    int32_t *offsets = (int32_t *)calloc((size_t)r->num_segments + 1, sizeof(int32_t));
    int32_t *pairs = (int32_t *)calloc((size_t)n + 1, 2 * sizeof(int32_t));
    int32_t *order = (int32_t *)calloc((size_t)n + 1, sizeof(int32_t));
    test_download_i32(d, offsets, view.offsets, r->num_segments + 1);
    if (view.pairs != NULL) test_download_i32(d, pairs, view.pairs, 2 * n);
    if (view.order != NULL) test_download_i32(d, order, view.order, n);
    cr_assert(offsets[0] == 0 && offsets[r->num_segments] == n, "%s: offsets", what);
    for (int64_t s = 0; s < r->num_segments; ++s) {
        int32_t last = -1;
        for (int32_t i = offsets[s]; i < offsets[s + 1]; ++i) {
            const int32_t t = view.order != NULL ? order[i] : i;
            const int32_t row = view.pairs != NULL ? pairs[2 * i] : i;
            const int32_t weight = view.pairs != NULL ? pairs[2 * i + 1] : i;
            cr_assert(t > last && t < n, "%s: position %d holds term %d after term %d", what, i, t,
                      last);
            cr_assert(r->segment[t] == s, "%s: term %d is in segment %lld, expected %d", what, t,
                      (long long)s, r->segment[t]);
            cr_assert(r->row[t] == row && r->weight[t] == weight,
                      "%s: term %d takes row %d and weight %d, expected %d and %d", what, t, row,
                      weight, r->row[t], r->weight[t]);
            last = t;
        }
    }
    free(offsets), free(pairs), free(order);
}

BackendTest(segments, hold_the_relation, .timeout = 600)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    for (int s = 0; s < test_num_shapes(); ++s) {
        for (int form = 0; form < NUM_FORMS; ++form) {
            for (int indexing = 0; indexing < NUM_INDEXINGS; ++indexing) {
                char text[256];
                const char *what = test_describe(text, "%s, %s, form %d, indexing %d",
                                                 test_backend_name(d.backend), test_shapes[s].name,
                                                 form, indexing);
                test_rng rng = test_rng_make((uint64_t)(s * 16 + form * 5 + indexing));
                test_relation relation = test_relation_create(&test_shapes[s], (test_form)form,
                                                              (test_indexing)indexing, &rng);
                for (int gradients = 0; gradients < 3; ++gradients) {
                    spops_segments *plan = NULL;
                    test_expect_ok(
                        d.ctx,
                        test_relation_plan(&relation, d.ctx, 16, (spops_gradients)gradients, &plan),
                        what);
                    const spops_segments_info info = info_of(&d, plan);
                    check_info(&info, &relation, what);
                    check_view(&d, plan, &relation, what);
                    spops_segments_destroy(plan);
                }
                test_relation_destroy(&relation);
            }
        }
    }
    test_close(&d);
}

BackendTest(segments, info_and_traffic)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    create_args a = good_args();
    spops_segments *plan = NULL;
    test_expect_ok(d.ctx, call_create(&d, BY_KEYS, &a, &plan), "plan");
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;

    // A caller of an older version gets just the bytes it knows.
    struct {
        spops_segments_info info;
        unsigned char guard[32];
    } old;
    memset(&old, 0x5a, sizeof old);
    old.info.struct_size = offsetof(spops_segments_info, num_rows);
    test_expect_ok(d.ctx, spops_segments_get_info_sync(d.ctx, plan, &old.info), "older info");
    cr_assert(old.info.num_segments == SEGMENTS && old.info.num_terms == TERMS);
    cr_assert(old.info.num_rows == 0x5a5a5a5a5a5a5a5a, "bytes after struct_size were written");
    spops_segments_info info = info_of(&d, plan);
    test_expect(NULL, spops_segments_get_info_sync(NULL, plan, &info), invalid, "ctx", "ctx");
    test_expect(d.ctx, spops_segments_get_info_sync(d.ctx, NULL, &info), invalid,
                "segments is NULL", "segments");
    test_expect(d.ctx, spops_segments_get_info_sync(d.ctx, plan, NULL), invalid, "info", "info");
    info.struct_size = sizeof info + 8;
    test_expect(d.ctx, spops_segments_get_info_sync(d.ctx, plan, &info), invalid, "struct_size",
                "longer info");

    // Rows 0 8 3 3 1 0 and weights 4 0 1 1 0 2: 4 distinct rows, 4 distinct weights.
    const int64_t cols = 10;
    for (int weighted = 0; weighted < 2; ++weighted) {
        spops_traffic t;
        memset(&t, 0x5a, sizeof t);
        t.struct_size = sizeof t;
        test_expect_ok(
            d.ctx,
            spops_segments_get_traffic_sync(d.ctx, plan, SPOPS_DTYPE_F16, cols, weighted, &t),
            "traffic");
        cr_assert(t.input_bytes == 4 * cols * 2, "%lld", (long long)t.input_bytes);
        cr_assert(t.output_bytes == SEGMENTS * cols * 2, "%lld", (long long)t.output_bytes);
        cr_assert(t.gather_bytes == TERMS * cols * 2, "%lld", (long long)t.gather_bytes);
        if (!weighted)
            cr_assert(t.weight_bytes == 0, "%lld", (long long)t.weight_bytes);
        else
            cr_assert(t.weight_bytes == 4 * 4 || t.weight_bytes == 4 * 2);
        cr_assert(t.index_bytes >= (int64_t)(TERMS * sizeof(int32_t)));
        cr_assert(t.compulsory_bytes ==
                  t.index_bytes + t.weight_bytes + t.input_bytes + t.output_bytes);
        cr_assert(t.working_set_bytes >= t.index_bytes + 9 * cols * 2 + t.output_bytes);
        cr_assert(t.regime == SPOPS_REGIME_L2_RESIDENT);
    }
    // Narrow rows: 20 columns are 20 bytes of f8, and 10 of f4 with 2 block scales.
    for (int dtype = SPOPS_DTYPE_F8E4M3; dtype <= SPOPS_DTYPE_F4E2M1; ++dtype) {
        const int64_t row = dtype == SPOPS_DTYPE_F4E2M1 ? 12 : 20;
        spops_traffic t = spops_traffic_default();
        test_expect_ok(d.ctx,
                       spops_segments_get_traffic_sync(d.ctx, plan, (spops_dtype)dtype, 20, 1, &t),
                       "traffic of a narrow dtype");
        cr_assert(t.input_bytes == 4 * row, "%lld", (long long)t.input_bytes);
        cr_assert(t.gather_bytes == TERMS * row, "%lld", (long long)t.gather_bytes);
        cr_assert(t.weight_bytes == 4 * 2, "%lld", (long long)t.weight_bytes);
        cr_assert(t.output_bytes == SEGMENTS * 20 * 2, "%lld", (long long)t.output_bytes);
        cr_assert(t.working_set_bytes >= t.index_bytes + 9 * row + t.output_bytes);
    }
    spops_traffic t = spops_traffic_default();
    test_expect(d.ctx, spops_segments_get_traffic_sync(d.ctx, plan, SPOPS_DTYPE_I32, cols, 0, &t),
                invalid, "dtype", "dtype");
    test_expect(d.ctx, spops_segments_get_traffic_sync(d.ctx, plan, SPOPS_DTYPE_F32, -1, 0, &t),
                invalid, "cols", "cols");
    test_expect(d.ctx, spops_segments_get_traffic_sync(d.ctx, plan, SPOPS_DTYPE_F32, 1, 0, NULL),
                invalid, "traffic", "traffic NULL");
    test_expect(d.ctx, spops_segments_get_traffic_sync(d.ctx, NULL, SPOPS_DTYPE_F32, 1, 0, &t),
                invalid, "segments is NULL", "segments NULL");
    cr_assert(spops_context_regime(d.ctx, 1) == SPOPS_REGIME_L2_RESIDENT);
    cr_assert(spops_context_regime(d.ctx, (int64_t)1 << 50) == SPOPS_REGIME_DRAM_BOUND);
    spops_segments_view view = spops_segments_view_default();
    test_expect(d.ctx, spops_segments_get_view(d.ctx, NULL, &view), invalid, "segments is NULL",
                "view");
    test_expect(d.ctx, spops_segments_get_view(d.ctx, plan, NULL), invalid, "view", "view");
    spops_segments_destroy(plan);
    spops_segments_destroy(NULL);
    test_close(&d);
}

// ---- saving and loading ----

static unsigned char *save(test_device *d, const spops_segments *plan, size_t *bytes)
{
    *bytes = 0;
    test_expect_ok(d->ctx, saved_put(d->ctx, plan, NULL, 0, bytes), "measure");
    cr_assert(*bytes > 0);
    unsigned char *data = (unsigned char *)malloc(*bytes);
    size_t written = 0;
    memset(data, 0xcc, *bytes);
    test_expect_ok(d->ctx, saved_put(d->ctx, plan, data, *bytes, &written), "save");
    cr_assert(written == *bytes);
    return data;
}

BackendTest(segments, save_and_load)
{
    test_device d, cpu;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    if (!test_open(&cpu, SPOPS_BACKEND_CPU, LAUNCH_DEFAULT)) return;
    for (int s = 0; s < test_num_shapes(); ++s) {
        for (int form = 0; form < NUM_FORMS; ++form) {
            char text[256];
            const int indexing = (s + form) % NUM_INDEXINGS;
            const char *what = test_describe(text, "save %s, form %d, indexing %d",
                                             test_shapes[s].name, form, indexing);
            test_rng rng = test_rng_make((uint64_t)(900 + s * 16 + form));
            test_relation relation = test_relation_create(&test_shapes[s], (test_form)form,
                                                          (test_indexing)indexing, &rng);
            spops_segments *plan = NULL, *loaded = untouched, *on_cpu = untouched;
            test_expect_ok(
                d.ctx, test_relation_plan(&relation, d.ctx, 16, SPOPS_GRADIENTS_ALL, &plan), what);
            size_t bytes, again_bytes;
            unsigned char *data = save(&d, plan, &bytes);
            test_expect_ok(d.ctx, saved_get(d.ctx, SPOPS_PLAN_SEGMENTS, data, bytes, &loaded),
                           what);
            const spops_segments_info info = info_of(&d, loaded);
            check_info(&info, &relation, what);
            check_view(&d, loaded, &relation, what);
            cr_assert(spops_segments_scratch_bytes(loaded) == spops_segments_scratch_bytes(plan),
                      "%s: another scratch size", what);
            unsigned char *again = save(&d, loaded, &again_bytes);
            cr_assert(again_bytes == bytes && memcmp(again, data, bytes) == 0,
                      "%s: a loaded plan saves as other bytes", what);
            // Bytes of one backend are read by the other.
            test_expect_ok(cpu.ctx, saved_get(cpu.ctx, SPOPS_PLAN_SEGMENTS, data, bytes, &on_cpu),
                           what);
            check_view(&cpu, on_cpu, &relation, what);
            spops_segments_destroy(plan), spops_segments_destroy(loaded);
            spops_segments_destroy(on_cpu);
            free(data), free(again);
            test_relation_destroy(&relation);
        }
    }
    test_close(&cpu);
    test_close(&d);
}

// Either refused as corrupt, or a plan that says the same as the one that was saved.
static void check_damaged(test_device *d, const unsigned char *damaged, size_t bytes,
                          const unsigned char *saved, const char *what)
{
    spops_segments *out = untouched;
    const int64_t live = d->memory.live;
    const spops_status status = saved_get(d->ctx, SPOPS_PLAN_SEGMENTS, damaged, bytes, &out);
    if (status == SPOPS_STATUS_OK) {
        size_t again_bytes;
        unsigned char *again = save(d, out, &again_bytes);
        cr_assert(again_bytes == bytes && memcmp(again, saved, bytes) == 0,
                  "%s: loaded as another plan", what);
        free(again);
        spops_segments_destroy(out);
    } else {
        test_expect(d->ctx, status, SPOPS_STATUS_CORRUPT_DATA, "plan_load", what);
        cr_assert(out == NULL, "%s: *out is not NULL", what);
    }
    cr_assert(d->memory.live == live, "%s: leaked", what);
}

BackendTest(segments, load_refuses)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    spops_context *ctx = d.ctx;
    char text[256];
    for (int form = 0; form < 2; ++form) {
        create_args a = good_args();
        spops_segments *plan = NULL, *out = untouched;
        a.no_idx = a.no_weight_idx = form == 0;
        if (form == 0) a.options.num_rows = a.options.num_weights = 0;
        test_expect_ok(ctx, call_create(&d, form == 0 ? BY_OFFSETS : BY_KEYS, &a, &plan), "plan");
        size_t bytes, n = 0;
        unsigned char *data = save(&d, plan, &bytes);
        unsigned char *copy = (unsigned char *)malloc(bytes);

        for (size_t length = 0; length < bytes; ++length) {
            // A copy of just that many bytes, so that a sanitizer sees reads after them.
            unsigned char *cut = (unsigned char *)malloc(length + (length == 0));
            memcpy(cut, data, length);
            out = untouched;
            test_expect(ctx, saved_get(ctx, SPOPS_PLAN_SEGMENTS, cut, length, &out),
                        SPOPS_STATUS_CORRUPT_DATA, "plan_load",
                        test_describe(text, "the first %zu of %zu bytes", length, bytes));
            cr_assert(out == NULL);
            free(cut);
        }
        for (size_t i = 0; i < bytes; ++i) {
            for (int bit = 0; bit < 8; ++bit) {
                memcpy(copy, data, bytes);
                copy[i] = (unsigned char)(copy[i] ^ 1u << bit);
                check_damaged(&d, copy, bytes, data,
                              test_describe(text, "byte %zu of %zu, bit %d", i, bytes, bit));
            }
        }
        test_rng rng = test_rng_make(77);
        for (int round = 0; round < 2000; ++round) {
            memcpy(copy, data, bytes);
            for (int64_t k = test_rng_below(&rng, 8); k >= 0; --k) {
                copy[test_rng_below(&rng, (int64_t)bytes)] = (unsigned char)test_rng_next(&rng);
            }
            check_damaged(&d, copy, bytes, data, test_describe(text, "round %d", round));
        }

        out = untouched;
        test_expect(NULL, saved_get(NULL, SPOPS_PLAN_SEGMENTS, data, bytes, &out), invalid, "ctx",
                    "ctx");
        const spops_plan *const self = (const spops_plan *)plan;
        test_expect(ctx, spops_plan_save(ctx, self, &self, 1, copy, bytes, &n), invalid,
                    "plan_save: num_parents is 1, expected 0 of kind segments", "parents");
        test_expect(ctx, saved_get_on(ctx, SPOPS_PLAN_SEGMENTS, &self, 1, data, bytes, &out),
                    invalid, "plan_load: num_parents is 1, expected 0 of kind segments", "parents");
        test_expect(ctx, saved_get(ctx, SPOPS_PLAN_NONE, data, bytes, &out), invalid,
                    "plan_load: kind is 0, expected 1 to ", "no kind");
        test_expect(ctx, saved_get(ctx, SPOPS_PLAN_COORDS, data, bytes, &out),
                    SPOPS_STATUS_NOT_SUPPORTED, "plan_load: plans of kind coords are not saved",
                    "a kind that is not saved");
        cr_assert_null(out);
        test_expect(ctx, saved_get(ctx, SPOPS_PLAN_BEV_PLAN, data, bytes, &out),
                    SPOPS_STATUS_CORRUPT_DATA, "the data does not begin with \"SPOPBEV\"",
                    "another kind");
        test_expect(ctx, saved_get(ctx, SPOPS_PLAN_SEGMENTS, data, bytes, NULL), invalid,
                    "plan is NULL", "out");
        test_expect(ctx, saved_get(ctx, SPOPS_PLAN_SEGMENTS, NULL, bytes, &out), invalid, "data",
                    "data");
        cr_assert(out == NULL);
        // save
        memset(copy, 0x33, bytes);
        test_expect(ctx, saved_put(ctx, plan, copy, bytes - 1, &n), invalid, "capacity",
                    "a buffer one byte short");
        for (size_t i = 0; i < bytes; ++i)
            cr_assert(copy[i] == 0x33, "byte %zu was written", i);
        test_expect(ctx, saved_put(ctx, NULL, copy, bytes, &n), invalid, "plan is NULL",
                    "segments NULL");
        test_expect(ctx, saved_put(ctx, plan, copy, bytes, NULL), invalid, "bytes", "bytes NULL");
        free(data), free(copy);
        spops_segments_destroy(plan);
    }
    test_close(&d);
}

// ---- refilling on the stream ----

enum { SET_SEGMENTS = 40, SET_CAPACITY = 6000, SET_ROWS = 500, SET_WEIGHTS = 70, SET_COLS = 5 };

// One frame: what lies in the arrays when the stream gets there.
typedef struct frame {
    int32_t num_terms; // as given, may exceed the capacity
    int32_t keys[SET_CAPACITY], idx[SET_CAPACITY], weight_idx[SET_CAPACITY];
    test_relation relation; // what should come of it
    int64_t dropped;
    bool overflow;
} frame;

static frame *make_frame(uint64_t stream, int32_t num_terms, bool skewed, int bad_percent)
{
    frame *f = (frame *)calloc(1, sizeof *f);
    int32_t *segment = (int32_t *)calloc(SET_CAPACITY, sizeof(int32_t));
    int32_t *row = (int32_t *)calloc(SET_CAPACITY, sizeof(int32_t));
    int32_t *weight = (int32_t *)calloc(SET_CAPACITY, sizeof(int32_t));
    test_rng rng = test_rng_make(stream);
    f->num_terms = num_terms;
    f->overflow = num_terms > SET_CAPACITY;
    const int64_t used = f->overflow ? SET_CAPACITY : num_terms;
    for (int64_t t = 0; t < SET_CAPACITY; ++t) {
        f->keys[t] = (int32_t)test_rng_below(&rng, SET_SEGMENTS);
        if (skewed && test_rng_below(&rng, 8) != 0) f->keys[t] = 11;
        f->idx[t] = (int32_t)test_rng_below(&rng, SET_ROWS);
        f->weight_idx[t] = (int32_t)test_rng_below(&rng, SET_WEIGHTS);
        if (test_rng_below(&rng, 100) < bad_percent) {
            switch (test_rng_below(&rng, 6)) {
            case 0: f->keys[t] = -1; break;
            case 1: f->keys[t] = SET_SEGMENTS; break;
            case 2: f->idx[t] = -5; break;
            case 3: f->idx[t] = SET_ROWS; break;
            case 4: f->weight_idx[t] = INT32_MIN; break;
            default: f->weight_idx[t] = INT32_MAX; break;
            }
        }
    }
    int64_t kept = 0;
    for (int64_t t = 0; t < used; ++t) {
        const bool fine = f->keys[t] >= 0 && f->keys[t] < SET_SEGMENTS && f->idx[t] >= 0 &&
                          f->idx[t] < SET_ROWS && f->weight_idx[t] >= 0 &&
                          f->weight_idx[t] < SET_WEIGHTS;
        if (!fine) {
            ++f->dropped;
            continue;
        }
        segment[kept] = f->keys[t];
        row[kept] = f->idx[t];
        weight[kept] = f->weight_idx[t];
        ++kept;
    }
    f->relation =
        test_relation_from_terms(SET_SEGMENTS, SET_ROWS, SET_WEIGHTS, kept, segment, row, weight);
    free(segment), free(row), free(weight);
    return f;
}

static void free_frame(frame *f)
{
    test_relation_destroy(&f->relation);
    free(f);
}

// set, forward and backward of a refillable plan, as one enqueued sequence.
typedef struct refill {
    spops_segments *plan;
    int32_t *num_terms, *keys, *idx, *weight_idx; // where the backend runs
    spops_reduce reduce;
    guarded x, w, out, grad_x, grad_w;
} refill;

static void enqueue_refill(refill *r, spops_context *ctx)
{
    test_expect_ok(
        ctx, spops_segments_update(ctx, r->plan, r->num_terms, r->keys, r->idx, r->weight_idx),
        "set");
    test_expect_ok(
        ctx,
        spops_segreduce_execute(ctx, r->plan, r->reduce, r->x.view, &r->w.view, r->out.view, NULL),
        "execute");
    test_expect_ok(ctx,
                   spops_segreduce_execute_backward(ctx, r->plan, r->reduce, r->out.view, r->x.view,
                                                    &r->w.view, &r->grad_x.view, &r->grad_w.view),
                   "execute_backward");
}

static void run_frame(test_device *d, refill *r, device_graph *graph, const frame *f,
                      const char *what)
{
    const spops_backend_kind b = d->backend;
    const size_t bytes = SET_CAPACITY * sizeof(int32_t);
    const ref_relation *ref = &f->relation.ref;
    const bool exact = r->reduce != SPOPS_REDUCE_MEAN;
    cr_assert(device_upload(b, r->num_terms, &f->num_terms, sizeof f->num_terms) &&
                  device_upload(b, r->keys, f->keys, bytes) &&
                  device_upload(b, r->idx, f->idx, bytes) &&
                  device_upload(b, r->weight_idx, f->weight_idx, bytes),
              "%s", device_error());
    test_rng rng = test_rng_make((uint64_t)f->num_terms);
    double *x = guarded_fill(&r->x, &rng, VALUES_EXACT, false, 1);
    double *w = guarded_fill(&r->w, &rng, VALUES_EXACT, false, 1);
    guarded_upload(&r->x), guarded_upload(&r->w);
    guarded *outputs[] = {&r->out, &r->grad_x, &r->grad_w};
    for (int i = 0; i < 3; ++i)
        guarded_poison(outputs[i], 0xff), guarded_upload(outputs[i]);

    if (graph != NULL)
        cr_assert(device_graph_launch(graph, d->stream), "%s", device_error());
    else
        enqueue_refill(r, d->ctx);
    test_wait(d);

    ref_tensor out = ref_tensor_create(SET_SEGMENTS, SET_COLS);
    ref_tensor grad_x = ref_tensor_create(SET_ROWS, SET_COLS);
    ref_tensor grad_w = ref_tensor_create(SET_WEIGHTS, 1);
    ref_reduce_forward(ref, r->reduce, SET_COLS, x, w, &out, NULL);
    for (int i = 0; i < 3; ++i) {
        guarded_download(outputs[i]);
        guarded_check_padding(outputs[i], what);
    }
    guarded_check(&r->out, &out, true, what);
    for (int64_t i = 0; i < SET_SEGMENTS * SET_COLS; ++i) {
        out.value[i] = (double)(float)out.value[i]; // what the backward pass was given
    }
    // An infinity of an empty segment reaches no row: no term is there to carry it.
    ref_reduce_backward(ref, r->reduce, SET_COLS, x, w, out.value, &grad_x, &grad_w);
    guarded_check(&r->grad_x, &grad_x, exact, what);
    // grad_w adds products of three numbers, of which out can be large: not always exact.
    guarded_check(&r->grad_w, &grad_w, false, what);

    spops_segments_info info;
    info.struct_size = sizeof info;
    const spops_status status = spops_segments_get_info_sync(d->ctx, r->plan, &info);
    if (f->overflow) {
        test_expect(d->ctx, status, SPOPS_STATUS_CAPACITY_EXCEEDED, "segments_get_info_sync", what);
    } else {
        test_expect_ok(d->ctx, status, what);
    }
    cr_assert(info.overflow == f->overflow, "%s: overflow %lld", what, (long long)info.overflow);
    cr_assert(info.num_dropped == f->dropped, "%s: %lld dropped, expected %lld", what,
              (long long)info.num_dropped, (long long)f->dropped);
    cr_assert(info.num_terms == ref->num_terms, "%s: %lld terms, expected %lld", what,
              (long long)info.num_terms, (long long)ref->num_terms);
    cr_assert(info.longest == f->relation.longest && info.num_nonempty == f->relation.num_nonempty,
              "%s", what);
    ref_tensor_destroy(&out), ref_tensor_destroy(&grad_x), ref_tensor_destroy(&grad_w);
    free(x), free(w);
}

ParameterizedTestParameters(segments, refill_on_the_stream)
{
    static const int reduces[] = {SPOPS_REDUCE_SUM, SPOPS_REDUCE_MEAN, SPOPS_REDUCE_MAX};
    return every_case(NULL, 0, reduces, 3);
}
ParameterizedTest(struct case_param *p, segments, refill_on_the_stream)
{
    static const struct {
        int32_t num_terms;
        bool skewed;
        int bad_percent;
    } frames[] = {{100, false, 0},
                  {0, false, 0},
                  {SET_CAPACITY, true, 0},
                  {2500, false, 20},
                  {SET_CAPACITY + 1, true, 5},
                  {INT32_MAX, false, 0},
                  {1, false, 0},
                  {777, true, 100},
                  {4000, true, 1}};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    const spops_backend_kind b = d.backend;
    refill r;
    memset(&r, 0, sizeof r);
    r.reduce = (spops_reduce)p->op;
    spops_segments_options options = spops_segments_options_default();
    options.num_rows = SET_ROWS;
    options.num_weights = SET_WEIGHTS;
    options.max_cols = SET_COLS;
    options.gradients = SPOPS_GRADIENTS_ALL;
    test_expect_ok(d.ctx,
                   spops_segments_reserve(d.ctx, SET_SEGMENTS, SET_CAPACITY, &options, &r.plan),
                   "reserve");
    // Until the first set it is empty.
    const spops_segments_info info = info_of(&d, r.plan);
    cr_assert(info.num_terms == 0 && info.longest == 0 && info.num_nonempty == 0);
    cr_assert(info.num_segments == SET_SEGMENTS && info.num_rows == SET_ROWS &&
              info.num_weights == SET_WEIGHTS);

    int32_t **arrays[] = {&r.keys, &r.idx, &r.weight_idx};
    void *pointer = NULL;
    for (int i = 0; i < 3; ++i) {
        cr_assert(device_alloc(b, SET_CAPACITY * sizeof(int32_t), &pointer), "%s", device_error());
        *arrays[i] = (int32_t *)pointer;
    }
    cr_assert(device_alloc(b, sizeof(int32_t), &pointer), "%s", device_error());
    r.num_terms = (int32_t *)pointer;
    r.x = guarded_create(b, "x", SET_ROWS, SET_COLS, 2, 1, SPOPS_DTYPE_F32);
    r.w = guarded_create(b, "w", SET_WEIGHTS, 1, 0, 0, SPOPS_DTYPE_F32);
    r.out = guarded_create(b, "out", SET_SEGMENTS, SET_COLS, 0, 0, SPOPS_DTYPE_F32);
    r.grad_x = guarded_create(b, "grad_x", SET_ROWS, SET_COLS, 0, 1, SPOPS_DTYPE_F32);
    r.grad_w = guarded_create(b, "grad_w", SET_WEIGHTS, 1, 0, 0, SPOPS_DTYPE_F32);

    device_graph *graph = NULL;
    if (d.launch == LAUNCH_CAPTURED) {
        int kernels, copies, memsets, others;
        cr_assert(device_capture_begin(d.stream), "%s", device_error());
        enqueue_refill(&r, d.ctx);
        cr_assert(device_capture_end(d.stream, &graph), "%s", device_error());
        cr_assert(device_graph_count(graph, &kernels, &copies, &memsets, &others));
        cr_assert(others == 0 && kernels > 0, "%d nodes are no kernel, memset or copy", others);
    }
    for (size_t i = 0; i < sizeof frames / sizeof frames[0]; ++i) {
        char text[256];
        frame *f = make_frame(i, frames[i].num_terms, frames[i].skewed, frames[i].bad_percent);
        run_frame(&d, &r, graph, f,
                  test_describe(text, "%s, frame %zu of %d terms", test_reduce_name(r.reduce), i,
                                frames[i].num_terms));
        free_frame(f);
    }
    device_graph_destroy(graph);
    guarded_destroy(&r.x), guarded_destroy(&r.w), guarded_destroy(&r.out);
    guarded_destroy(&r.grad_x), guarded_destroy(&r.grad_w);
    for (int i = 0; i < 3; ++i)
        test_free(&d, *arrays[i]);
    test_free(&d, r.num_terms);
    spops_segments_destroy(r.plan);
    test_close(&d);
}

BackendTest(segments, refill_refuses)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    spops_segments *plan = NULL, *fixed = NULL, *out = untouched;
    spops_segments_options options = spops_segments_options_default();
    create_args a = good_args();
    int32_t *keys = test_upload_i32(&d, good_keys, TERMS);
    size_t bytes = 0;

    options.idx = keys;
    test_expect(d.ctx, spops_segments_reserve(d.ctx, 4, TERMS, &options, &out), invalid, "idx",
                "reserve with idx");
    cr_assert(out == NULL);
    options.idx = NULL, options.weight_idx = keys, out = untouched;
    test_expect(d.ctx, spops_segments_reserve(d.ctx, 4, TERMS, &options, &out), invalid,
                "weight_idx", "reserve with weight_idx");
    cr_assert(out == NULL);
    options.weight_idx = NULL;
    test_expect(d.ctx, spops_segments_reserve(d.ctx, 4, -1, &options, &out), invalid, "max_terms",
                "max_terms -1");
    test_expect(d.ctx, spops_segments_reserve(d.ctx, 4, INT32_MAX, &options, &out), invalid,
                "max_terms", "max_terms INT32_MAX");
    test_expect(d.ctx, spops_segments_reserve(d.ctx, -4, 1, &options, &out), invalid,
                "num_segments", "num_segments -4");
    test_expect(NULL, spops_segments_reserve(NULL, 4, 1, &options, &out), invalid, "ctx", "ctx");
    test_expect(d.ctx, spops_segments_reserve(d.ctx, 4, 1, &options, NULL), invalid, "out", "out");

    test_expect_ok(d.ctx, spops_segments_reserve(d.ctx, SEGMENTS, TERMS, &options, &plan), "plan");
    test_expect_ok(d.ctx, call_create(&d, BY_OFFSETS, &a, &fixed), "fixed");
    test_expect(d.ctx, spops_segments_update(d.ctx, fixed, keys, keys, NULL, NULL), invalid,
                "segments_update", "a plan that was not reserved");
    test_expect(d.ctx, spops_segments_update(d.ctx, NULL, keys, keys, NULL, NULL), invalid,
                "segments is NULL", "segments NULL");
    test_expect(d.ctx, spops_segments_update(d.ctx, plan, NULL, keys, NULL, NULL), invalid,
                "num_terms", "num_terms NULL");
    test_expect(d.ctx, spops_segments_update(d.ctx, plan, keys, NULL, NULL, NULL), invalid, "keys",
                "keys NULL");
    test_expect(NULL, spops_segments_update(NULL, plan, keys, keys, NULL, NULL), invalid, "ctx",
                "ctx NULL");
    test_expect(d.ctx, saved_put(d.ctx, plan, NULL, 0, &bytes), invalid, "plan_save",
                "a reserved plan is not saved");
    test_free(&d, keys);
    spops_segments_destroy(plan), spops_segments_destroy(fixed);
    test_close(&d);
}

// ---- streams and threads ----

// Building a plan waits, so it is refused on a stream that is being captured, and does no harm.
Test(segments, create_is_not_captured)
{
    test_device d;
    if (!test_open(&d, SPOPS_BACKEND_CUDA, LAUNCH_STREAM)) return;
    int32_t *offsets = test_upload_i32(&d, good_offsets, SEGMENTS + 1);
    spops_segments *out = untouched;
    device_graph *graph = NULL;
    cr_assert(device_capture_begin(d.stream), "%s", device_error());
    const spops_status status = spops_segments_create(d.ctx, SEGMENTS, offsets, NULL, &out);
    const spops_status reserve = spops_context_reserve(d.ctx, (size_t)1 << 24);
    cr_assert(device_capture_end(d.stream, &graph), "the capture was broken: %s", device_error());
    cr_assert(status == SPOPS_STATUS_NOT_SUPPORTED && out == NULL, "%s", spops_status_name(status));
    cr_assert(reserve == SPOPS_STATUS_NOT_SUPPORTED, "%s", spops_status_name(reserve));
    device_graph_destroy(graph);
    test_expect_ok(d.ctx, spops_segments_create(d.ctx, SEGMENTS, offsets, NULL, &out), "after it");
    spops_segments_destroy(out);
    test_free(&d, offsets);
    test_close(&d);
}

// One plan, several threads with a context each.
enum { NUM_THREADS = 4 };

typedef struct thread_work {
    spops_context *ctx;
    const spops_segments *plan;
    guarded x, out;
    spops_status status;
} thread_work;

static void *work_in_thread(void *argument)
{
    thread_work *work = (thread_work *)argument;
    for (int i = 0; i < 20 && work->status == SPOPS_STATUS_OK; ++i) {
        work->status = spops_segreduce_execute(work->ctx, work->plan, SPOPS_REDUCE_SUM,
                                               work->x.view, NULL, work->out.view, NULL);
    }
    if (work->status == SPOPS_STATUS_OK) work->status = spops_context_wait_sync(work->ctx);
    return NULL;
}

BackendTest(segments, shared_by_threads)
{
    static const test_shape shape = {"one huge", 30, LENGTHS_ONE_HUGE, 20000, 8};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_STREAM)) return;
    test_rng rng = test_rng_make(5);
    test_relation relation = test_relation_create(&shape, FORM_KEYS_UNSORTED, INDEXING_ROWS, &rng);
    spops_segments *plan = NULL;
    test_expect_ok(d.ctx, test_relation_plan(&relation, d.ctx, 8, SPOPS_GRADIENTS_NONE, &plan),
                   "plan");
    thread_work work[NUM_THREADS];
    pthread_t threads[NUM_THREADS];
    memset(work, 0, sizeof work);
    double *x = NULL;
    for (int i = 0; i < NUM_THREADS; ++i) {
        work[i].ctx = test_context(&d, 2);
        test_expect_ok(work[i].ctx,
                       spops_context_reserve(work[i].ctx, spops_segments_scratch_bytes(plan)),
                       "reserve");
        work[i].plan = plan;
        work[i].x = guarded_create(d.backend, "x", relation.ref.num_rows, 8, 0, 0, SPOPS_DTYPE_F32);
        work[i].out = guarded_create(d.backend, "out", 30, 8, 0, 0, SPOPS_DTYPE_F32);
        if (x == NULL)
            x = guarded_fill(&work[i].x, &rng, VALUES_EXACT, false, 1);
        else
            guarded_fill_from(&work[i].x, x);
        guarded_upload(&work[i].x), guarded_upload(&work[i].out);
    }
    for (int i = 0; i < NUM_THREADS; ++i) {
        cr_assert(pthread_create(&threads[i], NULL, work_in_thread, &work[i]) == 0);
    }
    for (int i = 0; i < NUM_THREADS; ++i)
        pthread_join(threads[i], NULL);
    ref_tensor expected = ref_tensor_create(30, 8);
    ref_reduce_forward(&relation.ref, SPOPS_REDUCE_SUM, 8, x, NULL, &expected, NULL);
    for (int i = 0; i < NUM_THREADS; ++i) {
        test_expect_ok(work[i].ctx, work[i].status, "in a thread");
        guarded_download(&work[i].out);
        guarded_check(&work[i].out, &expected, true, "in a thread");
        guarded_destroy(&work[i].x), guarded_destroy(&work[i].out);
        spops_context_destroy(work[i].ctx);
    }
    ref_tensor_destroy(&expected);
    free(x);
    spops_segments_destroy(plan);
    test_relation_destroy(&relation);
    test_close(&d);
}
