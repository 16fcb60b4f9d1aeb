// SPDX-License-Identifier: Apache-2.0
// The log of calls: which lines there are, what is in them, and where they go.
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "call/call_check.h"
#include "spops/spops.h"

enum { MAX_LINES = 64 };

typedef struct lines {
    int num;
    char text[MAX_LINES][1024];
} lines;

static lines taken;

static void take(void *user, const char *line)
{
    lines *l = user;
    cr_assert(l->num < MAX_LINES && strlen(line) < sizeof l->text[0], "%s", line);
    cr_assert(strpbrk(line, "\r\n") == NULL, "more than one line: %s", line);
    strcpy(l->text[l->num++], line);
}

static spops_context *open_cpu(void)
{
    spops_context_options o = spops_context_options_default();
    spops_context *ctx = NULL;
    o.backend = SPOPS_BACKEND_CPU;
    o.num_threads = 1;
    cr_assert_eq(spops_context_create(&o, &ctx), SPOPS_STATUS_OK, "%s", spops_last_error(NULL));
    return ctx;
}

// Line `number` begins with `first` and holds the words; each may be NULL.
static void expect(int number, const char *first, const char *word, const char *other)
{
    const char *line;
    cr_assert(number < taken.num, "%d lines, expected \"%s\"", taken.num, first);
    line = taken.text[number];
    cr_assert(strncmp(line, first, strlen(first)) == 0, "\"%s\", expected \"%s\"", line, first);
    cr_assert(word == NULL || strstr(line, word) != NULL, "\"%s\" has no \"%s\"", line, word);
    cr_assert(other == NULL || strstr(line, other) != NULL, "\"%s\" has no \"%s\"", line, other);
}

static const int32_t offsets[] = {0, 2, 3};
static float x[3][4], out[2][4];

static spops_segments *make_segments(spops_context *ctx)
{
    spops_segments *segments = NULL;
    cr_assert_eq(spops_segments_create(ctx, 2, offsets, NULL, &segments), SPOPS_STATUS_OK, "%s",
                 spops_last_error(ctx));
    return segments;
}

// ---- Lines --------------------------------------------------------------------------------------

Test(log, has_a_line_for_each_call_and_what_it_made)
{
    spops_context *ctx;
    spops_segments *segments, *refused = NULL;
    char own[40], plan[40];

    spops_log_set(take, &taken);
    ctx = open_cpu();
    snprintf(own, sizeof own, "ctx=%p", (void *)ctx);
    expect(0, "context_create", NULL, NULL);
    expect(1, "  = ctx=", own, spops_version());
    segments = make_segments(ctx);
    snprintf(plan, sizeof plan, "segments=%p", (void *)segments);
    expect(2, "segments_create ctx=", own, NULL);
    expect(3, "  = segments=", plan, " num_segments=2");
    cr_assert_eq(spops_segments_create(ctx, -1, offsets, NULL, &refused),
                 SPOPS_STATUS_INVALID_ARGUMENT);
    expect(4, "segments_create ctx=", own, NULL);
    expect(5, "  INVALID_ARGUMENT: segments_create: num_segments is -1", NULL, NULL);
    cr_assert_eq(spops_context_reserve(ctx, 1000), SPOPS_STATUS_OK);
    expect(6, "context_reserve ctx=", own, NULL);
    cr_assert_eq(taken.num, 7, "%s", taken.text[7]);
    spops_log_set(NULL, &taken);
    cr_assert_eq(spops_context_reserve(ctx, 2000), SPOPS_STATUS_OK);
    spops_segments_destroy(segments);
    cr_assert_eq(taken.num, 7, "a line without a log: %s", taken.text[7]);
    spops_log_set(take, &taken);
    spops_context_destroy(ctx);
    expect(7, "context_destroy ctx=", own, NULL);
}

static spops_status check_segreduce(spops_context *ctx, const spops_segments *segments,
                                    spops_matrix rows, spops_reduce reduce)
{
    const spops_matrix sums = spops_matrix_dense(out, 2, 4, SPOPS_DTYPE_F32);
    const void *const args[] = {&rows, NULL, segments, &sums, NULL};
    const spops_call_number attributes[] = {{.i = reduce}};
    return spops_check_call(ctx, SPOPS_OP_segreduce, args, attributes);
}

Test(log, an_operator_has_its_tensors_plans_and_attributes)
{
    spops_matrix rows = spops_matrix_dense(x, 3, 4, SPOPS_DTYPE_F32);
    spops_context *ctx = open_cpu();
    spops_segments *segments = make_segments(ctx);
    char plan[40];

    spops_log_set(take, &taken);
    cr_assert_eq(check_segreduce(ctx, segments, rows, SPOPS_REDUCE_SUM), SPOPS_STATUS_OK);
    snprintf(plan, sizeof plan, " segments=%p", (void *)segments);
    expect(0, "segreduce_execute ctx=", " x=f32[3,4]", " out=f32[2,4]");
    expect(0, "segreduce_execute ctx=", plan, NULL);
    cr_assert(strstr(taken.text[0], "reduce=") == NULL, "a default: %s", taken.text[0]);
    cr_assert(strstr(taken.text[0], " w=") == NULL, "absent: %s", taken.text[0]);
    cr_assert(strstr(taken.text[0], " arg=") == NULL, "absent: %s", taken.text[0]);
    rows.row_stride = 7;
    rows.dtype = SPOPS_DTYPE_F16;
    rows.data = NULL;
    cr_assert_eq(check_segreduce(ctx, segments, rows, SPOPS_REDUCE_MAX),
                 SPOPS_STATUS_INVALID_ARGUMENT);
    expect(1, "segreduce_execute ctx=", " x=f16[3,4]/7=NULL", " reduce=max");
    expect(2, "  INVALID_ARGUMENT: segreduce_execute: ", NULL, NULL);
    cr_assert_eq(check_segreduce(ctx, NULL, rows, (spops_reduce)77), SPOPS_STATUS_INVALID_ARGUMENT);
    expect(3, "segreduce_execute ctx=", " segments=NULL", " reduce=77");
    expect(4, "  INVALID_ARGUMENT: segreduce_execute: segments is NULL", NULL, NULL);
    cr_assert_eq(taken.num, 5);
    spops_segments_destroy(segments);
    spops_context_destroy(ctx);
}

// Every operator's execute call, with nothing given: one line, then one for the refusal.
Test(log, every_operator_has_a_line)
{
    static const spops_call_number attributes[SPOPS_ROW_MAX_ATTRIBUTES];
    static const void *const none[SPOPS_ROW_MAX_ARGS];
    spops_context *ctx = open_cpu();

    spops_log_set(take, &taken);
    for (int op = 0; op < SPOPS_NUM_OPERATORS; ++op) {
        const spops_row *row = spops_row_of((spops_operator_id)op);
        char first[80];
        taken.num = 0;
        if (spops_check_call(ctx, (spops_operator_id)op, none, attributes) == SPOPS_STATUS_OK)
            cr_assert_eq(taken.num, 1, "%s", row->call);
        else
            expect(1, "  INVALID_ARGUMENT: ", row->call, NULL);
        snprintf(first, sizeof first, "%s ctx=", row->call);
        expect(0, first, NULL, NULL);
        cr_assert_leq(taken.num, 2, "%s", row->call);
    }
    spops_context_destroy(ctx);
}

// Calls that make others to do their work are one call.
Test(log, calls_inside_of_calls_have_no_lines)
{
    static const float points[4][3] = {{0, 0, 0}, {1, 0, 0}, {0, 9, 0}, {4, 4, 4}};
    spops_point_cloud cloud = {0};
    spops_point_pyramid_options o = spops_point_pyramid_options_default();
    spops_point_pyramid *pyramid = NULL;
    spops_context *ctx = open_cpu();

    cloud.points = spops_matrix_dense_const(points, 4, 3, SPOPS_DTYPE_F32);
    o.num_levels = 2;
    o.tap_size_m = 2;
    spops_log_set(take, &taken);
    cr_assert_eq(spops_point_pyramid_create(ctx, &cloud, &o, &pyramid), SPOPS_STATUS_OK, "%s",
                 spops_last_error(ctx));
    expect(0, "point_pyramid_create ctx=", NULL, NULL);
    expect(1, "  = point_pyramid=", " num_levels=2", NULL);
    cr_assert_eq(taken.num, 2, "%s", taken.text[2]);
    spops_point_pyramid_destroy(pyramid);
    spops_context_destroy(ctx);
}

// ---- What is forgiven ---------------------------------------------------------------------------

static size_t largest = SIZE_MAX;

static void *alloc_up_to(void *user, size_t bytes)
{
    (void)user;
    return bytes > largest ? NULL : aligned_alloc(256, (bytes + 255) / 256 * 256);
}

static void give_back(void *user, void *ptr, size_t bytes)
{
    (void)user, (void)bytes;
    free(ptr);
}

Test(log, leaves_out_failures_that_are_forgiven)
{
    spops_context_options o = spops_context_options_default();
    spops_context *ctx = NULL;

    o.backend = SPOPS_BACKEND_CPU;
    o.allocator.host_alloc = alloc_up_to;
    o.allocator.host_free = give_back;
    cr_assert_eq(spops_context_create(&o, &ctx), SPOPS_STATUS_OK);
    cr_assert_eq(spops_context_reserve(ctx, (size_t)1 << 20), SPOPS_STATUS_OK);
    largest = ((size_t)1 << 20) * 3 / 2; // no room for half as much again
    spops_log_set(take, &taken);
    cr_assert_eq(spops_context_reserve(ctx, ((size_t)1 << 20) + 4096), SPOPS_STATUS_OK);
    expect(0, "context_reserve ctx=", NULL, NULL);
    cr_assert_eq(taken.num, 1, "%s", taken.text[1]);
    cr_assert_eq(spops_context_reserve(ctx, (size_t)1 << 21), SPOPS_STATUS_OUT_OF_MEMORY);
    expect(2, "  OUT_OF_MEMORY: context_reserve: ", NULL, NULL);
    cr_assert_eq(taken.num, 3);
    spops_context_destroy(ctx);
}

// A context that cannot be made: the call, and why, once.
Test(log, has_a_context_that_was_refused)
{
    spops_context_options o = spops_context_options_default();
    spops_context *ctx = NULL;

    spops_log_set(take, &taken);
    o.backend = SPOPS_BACKEND_CUDA;
    o.device = 1 << 20;
    cr_assert_neq(spops_context_create(&o, &ctx), SPOPS_STATUS_OK);
    expect(0, "context_create", NULL, NULL);
    expect(1, "  ", ": context_create: ", NULL);
    cr_assert_eq(taken.num, 2, "%s", taken.text[2]);
}

// ---- SPOPS_LOG ----------------------------------------------------------------------------------

// A process has one first context: each of these tests is a process.
static const char *path_of_log(void)
{
    static char path[] = "/tmp/spops_log_XXXXXX";
    const int file = mkstemp(path);
    cr_assert(file >= 0);
    close(file);
    return path;
}

static void use_environment(const char *text)
{
    cr_assert_eq(setenv("SPOPS_LOG", text, 1), 0);
}

static void read_log(const char *path, char *text, size_t bytes)
{
    FILE *f = fopen(path, "r");
    cr_assert(f != NULL);
    text[fread(text, 1, bytes - 1, f)] = '\0';
    fclose(f);
    unlink(path);
}

Test(log, environment_names_a_file)
{
    const char *path = path_of_log();
    char text[4096] = {0};

    snprintf(text, sizeof text, "calls:%s", path);
    use_environment(text);
    spops_context *ctx = open_cpu();
    cr_assert_neq(spops_context_reserve(ctx, SIZE_MAX), SPOPS_STATUS_OK);
    spops_context_destroy(ctx);
    memset(text, 0, sizeof text);
    read_log(path, text, sizeof text);
    cr_assert(strncmp(text, "spops: context_create\nspops:   = ctx=", 36) == 0, "%s", text);
    cr_assert(strstr(text, "\nspops: context_reserve ctx=") != NULL, "%s", text);
    cr_assert(strstr(text, "\nspops:   INVALID_ARGUMENT: context_reserve: ") != NULL, "%s", text);
    cr_assert(strstr(text, "\nspops: context_destroy ctx=") != NULL, "%s", text);
    cr_assert_eq(text[strlen(text) - 1], '\n');
}

Test(log, environment_names_standard_error)
{
    const char *path = path_of_log();
    char text[4096] = {0};
    const int kept = dup(STDERR_FILENO);

    cr_assert(kept >= 0 && freopen(path, "w", stderr) != NULL);
    use_environment("calls");
    spops_context_destroy(open_cpu());
    cr_assert(dup2(kept, STDERR_FILENO) >= 0);
    read_log(path, text, sizeof text);
    cr_assert(strncmp(text, "spops: context_create\n", 22) == 0, "%s", text);
}

Test(log, environment_is_read_once)
{
    const char *path = path_of_log();
    char text[4096] = {0};

    unsetenv("SPOPS_LOG");
    spops_context_destroy(open_cpu());
    snprintf(text, sizeof text, "calls:%s", path);
    use_environment(text);
    spops_context_destroy(open_cpu());
    memset(text, 0, sizeof text);
    read_log(path, text, sizeof text);
    cr_assert_str_empty(text);
}

Test(log, a_function_of_the_caller_goes_before_the_environment)
{
    const char *path = path_of_log();
    char text[4096] = {0};

    snprintf(text, sizeof text, "calls:%s", path);
    use_environment(text);
    spops_log_set(take, &taken);
    spops_context_destroy(open_cpu());
    memset(text, 0, sizeof text);
    read_log(path, text, sizeof text);
    cr_assert_str_empty(text);
    cr_assert_eq(taken.num, 3);
}

static void refuse_environment(const char *text, const char *expected)
{
    use_environment(text);
    for (int i = 0; i < 2; ++i) {
        spops_context *ctx = NULL;
        cr_assert_eq(spops_context_create(NULL, &ctx), SPOPS_STATUS_INVALID_ARGUMENT);
        cr_assert(ctx == NULL);
        cr_assert(strstr(spops_last_error(NULL), expected) != NULL, "%s", spops_last_error(NULL));
    }
}

Test(log, environment_with_another_word_is_refused)
{
    refuse_environment("everything", "SPOPS_LOG is \"everything\", expected calls or calls:FILE");
}

Test(log, environment_without_a_file_is_refused)
{
    refuse_environment("calls:", "SPOPS_LOG is \"calls:\", expected calls or calls:FILE");
}

Test(log, environment_with_a_file_that_cannot_be_is_refused)
{
    refuse_environment("calls:/dev/null/x", "cannot be written: Not a directory");
}
