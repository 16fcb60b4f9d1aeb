// SPDX-License-Identifier: Apache-2.0
// Tunings of sparse convolutions: as text and back, texts that are damaged or of another device, and
// what a plan makes of their rows.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spops/sparseconv.h"
#include "support/device.h"
#include "tests/support/operator.h"
#include "tests/support/params.h"
#include "tests/support/random.h"

enum { TEXT_BYTES = 4096, NUM_ROWS = 4 };

// A cube of 5 x 5 x 5: 27 taps, 125 rows, (3 * 5 - 2)^3 = 2197 pairs.
static const spops_conv_choice rows[NUM_ROWS] = {
    {SPOPS_PASS_FORWARD, SPOPS_DTYPE_F32, SPOPS_MATH_EXACT, 27, 8, 16, 100, 2000,
     SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER, SPOPS_GROUPING_ADAPTIVE, 0.3, 4096, 0, 0},
    {SPOPS_PASS_FORWARD, SPOPS_DTYPE_F32, SPOPS_MATH_EXACT, 27, 8, 16, 90000, 500000,
     SPOPS_DATAFLOW_FETCH_ON_DEMAND, SPOPS_GROUPING_AUTO, 0.0, 0, 0, 0},
    {SPOPS_PASS_GRAD_W, SPOPS_DTYPE_F32, SPOPS_MATH_EXACT, 27, 8, 16, 125, 2197,
     SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER, SPOPS_GROUPING_SYMMETRIC, 0.0, 0, 0, 0},
    {SPOPS_PASS_FORWARD, SPOPS_DTYPE_F32, SPOPS_MATH_EXACT, 8, 4, 4, 125, 2197,
     SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER, SPOPS_GROUPING_FIXED, 0.0, 0, 0, 0}};

static size_t save(test_device *d, char *text)
{
    size_t bytes = 0, again = 0;
    test_expect_ok(d->ctx, spops_sparseconv_save_choices(d->ctx, rows, NUM_ROWS, NULL, 0, &bytes),
                   "measured");
    cr_assert(bytes > 0 && bytes <= TEXT_BYTES);
    test_expect(d->ctx,
                spops_sparseconv_save_choices(d->ctx, rows, NUM_ROWS, text, bytes - 1, &again),
                SPOPS_STATUS_INVALID_ARGUMENT, "expected at least", "small");
    test_expect_ok(d->ctx,
                   spops_sparseconv_save_choices(d->ctx, rows, NUM_ROWS, text, bytes, &again),
                   "written");
    cr_assert(again == bytes);
    return bytes;
}

BackendTest(sparseconv_tuning, saves_and_loads)
{
    spops_conv_choice read[NUM_ROWS];
    char text[TEXT_BYTES];
    int64_t n = 0;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    const size_t bytes = save(&d, text);
    test_expect_ok(d.ctx, spops_sparseconv_load_choices(d.ctx, text, bytes, NULL, 0, &n), "count");
    cr_assert(n == NUM_ROWS);
    test_expect(d.ctx, spops_sparseconv_load_choices(d.ctx, text, bytes, read, NUM_ROWS - 1, &n),
                SPOPS_STATUS_INVALID_ARGUMENT, "max_rows is 3, expected at least 4", "room");
    test_expect_ok(d.ctx, spops_sparseconv_load_choices(d.ctx, text, bytes, read, NUM_ROWS, &n),
                   "read");
    for (int i = 0; i < NUM_ROWS; ++i) {
        cr_assert(read[i].pass == rows[i].pass && read[i].dtype == rows[i].dtype);
        cr_assert(read[i].math == rows[i].math && read[i].num_taps == rows[i].num_taps);
        cr_assert(read[i].in_channels == rows[i].in_channels);
        cr_assert(read[i].out_channels == rows[i].out_channels);
        cr_assert(read[i].num_out == rows[i].num_out && read[i].num_pairs == rows[i].num_pairs);
        cr_assert(read[i].dataflow == rows[i].dataflow && read[i].grouping == rows[i].grouping);
        cr_assert(read[i].epsilon == rows[i].epsilon && read[i].batch_rows == rows[i].batch_rows);
    }
    test_close(&d);
}

// `text` with `from` replaced by `to`, which load must refuse.
static void refuse(test_device *d, const char *text, const char *from, const char *to,
                   spops_status status, const char *message)
{
    char changed[TEXT_BYTES + 256];
    const char *at = strstr(text, from);
    spops_conv_choice read[NUM_ROWS] = {{0}};
    const spops_conv_choice untouched = {0};
    int64_t n = -1;
    cr_assert_not_null(at, "%s", from);
    const int length = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to,
                                at + strlen(from));
    test_expect(d->ctx,
                spops_sparseconv_load_choices(d->ctx, changed, (size_t)length, read, NUM_ROWS, &n),
                status, message, from);
    cr_assert(n == -1 && memcmp(&read[0], &untouched, sizeof untouched) == 0);
}

BackendTest(sparseconv_tuning, refuses_other_texts)
{
    static const spops_status corrupt = SPOPS_STATUS_CORRUPT_DATA;
    static const spops_status unsupported = SPOPS_STATUS_NOT_SUPPORTED;
    char text[TEXT_BYTES] = {0};
    int64_t n;
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    const size_t bytes = save(&d, text);

    refuse(&d, text, "device ", "device Other ", unsupported, "the tuning is of Other");
    refuse(&d, text, "isa ", "isa sm_1", unsupported, "expected one of");
    refuse(&d, text, "tuning 1", "tuning 2", unsupported, "version of the format is 2, expected 1");
    refuse(&d, text, "spops", "spoops", corrupt, "line 1: expected \"spops sparseconv tuning\"");
    refuse(&d, text, "forward", "sideways", corrupt, "line 6: no such pass");
    refuse(&d, text, "f32", "f64", corrupt, "line 6: no such dtype");
    refuse(&d, text, "exact", "rough", corrupt, "line 6: no such math");
    refuse(&d, text, " 27 ", " -27 ", corrupt, "line 6: taps is no count");
    refuse(&d, text, " 8 16 ", " 0 16 ", corrupt, "line 6: a value is out of range");
    refuse(&d, text, " 2000 ", " 99999999999999999999 ", corrupt, "num_pairs is no count");
    refuse(&d, text, "gather_matmul_scatter", "gather", corrupt, "line 6: no such dataflow");
    refuse(&d, text, "gather_matmul_scatter", "auto", corrupt, "line 6: a value is out of range");
    refuse(&d, text, "adaptive", "auto", corrupt, "line 6: a value is out of range");
    refuse(&d, text, "adaptive", "clever", corrupt, "line 6: no such grouping");
    refuse(&d, text, "adaptive 0.2", "adaptive 1.2", corrupt, "line 6: a value is out of range");
    refuse(&d, text, "adaptive 0.2", "adaptive nan", corrupt, "line 6: epsilon is no number");
    refuse(&d, text, " 4096", "", corrupt, "line 6: expected 12 words");
    refuse(&d, text, " 4096", " 4096 1", corrupt, "line 6: expected 12 words");
    refuse(&d, text, "end 4", "end 3", corrupt, "line 10: the number of rows");
    refuse(&d, text, "end 4\n", "end 4\n\n", corrupt, "expected nothing after \"end\"");
    for (size_t length = 0; length < bytes; ++length)
        cr_assert(spops_sparseconv_load_choices(d.ctx, text, length, NULL, 0, &n) !=
                      SPOPS_STATUS_OK,
                  "%zu bytes", length);
    // Bytes at random places: read or refused, never more.
    test_rng rng = test_rng_make(9);
    for (int i = 0; i < 2000; ++i) {
        spops_conv_choice read[NUM_ROWS];
        char *changed = malloc(bytes); // of that size, so that a sanitizer sees its end
        cr_assert_not_null(changed);
        memcpy(changed, text, bytes);
        for (int64_t k = test_rng_below(&rng, 4); k >= 0; --k)
            changed[test_rng_below(&rng, (int64_t)bytes)] = (char)test_rng_below(&rng, 256);
        (void)spops_sparseconv_load_choices(d.ctx, changed, bytes, read, NUM_ROWS, &n);
        free(changed);
    }
    test_expect(d.ctx, spops_sparseconv_load_choices(d.ctx, NULL, 0, NULL, 0, &n),
                SPOPS_STATUS_INVALID_ARGUMENT, "text is NULL", "NULL");
    test_close(&d);
}

static spops_conv_choice chosen(test_device *d, const spops_sparseconv *conv, spops_conv_pass pass,
                                int64_t in, int64_t out)
{
    spops_conv_choice choice;
    test_expect_ok(
        d->ctx,
        spops_sparseconv_get_choice(d->ctx, conv, pass, SPOPS_DTYPE_F32, in, out, NULL, &choice),
        "choice");
    cr_assert(choice.num_taps == 27 && choice.num_out == 125 && choice.num_pairs == 2197);
    return choice;
}

BackendTest(sparseconv_tuning, decides_for_plans)
{
    enum { SIDE = 5, N = SIDE * SIDE * SIDE };
    const spops_kernel_shape kernel = spops_kernel_shape_cube(3, 3, 1, 1);
    spops_kernel_map_options map_options = spops_kernel_map_options_default();
    spops_sparseconv_options options = spops_sparseconv_options_default();
    spops_conv_choice bad = rows[0], choice;
    spops_sparseconv *conv = NULL;
    spops_kernel_map *map = NULL;
    spops_coords *coords = NULL;
    int32_t host[N * 4];
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, LAUNCH_DEFAULT)) return;
    for (int i = 0; i < N; ++i) {
        host[4 * i] = 0;
        host[4 * i + 1] = i / SIDE / SIDE;
        host[4 * i + 2] = i / SIDE % SIDE;
        host[4 * i + 3] = i % SIDE;
    }
    int32_t *given = test_upload_i32(&d, host, N * 4);
    test_expect_ok(d.ctx, spops_coords_create(d.ctx, 3, N, given, NULL, &coords), "coords");
    map_options.contents = SPOPS_MAP_PAIRS;
    test_expect_ok(d.ctx,
                   spops_kernel_map_create(d.ctx, SPOPS_MAP_SUBMANIFOLD, &kernel, coords, NULL,
                                           &map_options, &map),
                   "map");
    options.backward = 1;
    options.tuning = rows;
    options.num_tuning = NUM_ROWS;
    test_expect_ok(d.ctx, spops_sparseconv_create(d.ctx, map, &options, &conv), "plan");
    choice = chosen(&d, conv, SPOPS_PASS_FORWARD, 8, 16); // the map with 2,000 pairs is nearer
    cr_assert(choice.dataflow == SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER);
    cr_assert(choice.grouping == SPOPS_GROUPING_ADAPTIVE);
    cr_assert(choice.epsilon == 0.3 && choice.batch_rows == 4096);
    choice = chosen(&d, conv, SPOPS_PASS_GRAD_W, 8, 16);
    cr_assert(choice.dataflow == SPOPS_DATAFLOW_GATHER_MATMUL_SCATTER);
    cr_assert(choice.grouping == SPOPS_GROUPING_SYMMETRIC);
    choice = chosen(&d, conv, SPOPS_PASS_GRAD_X, 8, 16); // no row
    cr_assert(choice.dataflow == SPOPS_DATAFLOW_FETCH_ON_DEMAND && choice.grouping == 0);
    choice = chosen(&d, conv, SPOPS_PASS_FORWARD, 4, 4); // a row of another kernel
    cr_assert(choice.dataflow == SPOPS_DATAFLOW_FETCH_ON_DEMAND);
    spops_sparseconv_destroy(conv);

    // A dataflow that is named goes before rows; rows of wider layers than the plan's count nothing.
    options.dataflow = SPOPS_DATAFLOW_FETCH_ON_DEMAND;
    test_expect_ok(d.ctx, spops_sparseconv_create(d.ctx, map, &options, &conv), "forced");
    choice = chosen(&d, conv, SPOPS_PASS_FORWARD, 8, 16);
    cr_assert(choice.dataflow == SPOPS_DATAFLOW_FETCH_ON_DEMAND);
    spops_sparseconv_destroy(conv);
    options.dataflow = SPOPS_DATAFLOW_AUTO;
    options.max_out_channels = 15;
    test_expect_ok(d.ctx, spops_sparseconv_create(d.ctx, map, &options, &conv), "narrow");
    choice = chosen(&d, conv, SPOPS_PASS_FORWARD, 8, 16);
    cr_assert(choice.dataflow == SPOPS_DATAFLOW_FETCH_ON_DEMAND);
    test_expect(d.ctx,
                spops_sparseconv_get_choice(d.ctx, conv, SPOPS_PASS_FORWARD, SPOPS_DTYPE_I8, 8, 16,
                                            NULL, &choice),
                SPOPS_STATUS_INVALID_ARGUMENT, "dtype is i8, expected f32, f16 or bf16", "dtype");
    spops_sparseconv_destroy(conv);

    conv = NULL;
    bad.epsilon = NAN;
    options.tuning = &bad;
    options.num_tuning = 1;
    test_expect(d.ctx, spops_sparseconv_create(d.ctx, map, &options, &conv),
                SPOPS_STATUS_INVALID_ARGUMENT, "options->tuning[0].epsilon makes no sense", "NaN");
    options.tuning = NULL;
    test_expect(d.ctx, spops_sparseconv_create(d.ctx, map, &options, &conv),
                SPOPS_STATUS_INVALID_ARGUMENT, "options->tuning is NULL", "NULL");
    cr_assert_null(conv);
    spops_kernel_map_destroy(map);
    spops_coords_destroy(coords);
    test_free(&d, given);
    test_close(&d);
}
