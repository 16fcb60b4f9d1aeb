// SPDX-License-Identifier: Apache-2.0
#include "tests/support/launch.h"

#include <criterion/criterion.h>
#include <criterion/logging.h>
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"

const char *test_launch_name(test_launch launch)
{
    static const char *names[NUM_LAUNCHES] = {"default stream", "own stream", "captured"};
    return names[launch];
}

const char *test_backend_name(spops_backend_kind backend)
{
    return backend == SPOPS_BACKEND_CUDA ? "cuda" : "cpu";
}

bool test_open(test_device *d, spops_backend_kind backend, test_launch launch)
{
    memset(d, 0, sizeof *d);
    d->backend = backend;
    d->launch = launch;
    d->device = device_used();
    checked_alloc_init(&d->memory);
    const char *only = getenv("SPOPS_TEST_BACKEND");
    if (only != NULL && strcmp(only, test_backend_name(backend)) != 0) {
        cr_log_info("skipped: SPOPS_TEST_BACKEND is %s", only);
        return false;
    }
    if (backend == SPOPS_BACKEND_CUDA && !device_has_cuda()) {
        const char *required = getenv("SPOPS_REQUIRE_DEVICE");
        cr_assert(required == NULL || strcmp(required, "1") != 0,
                  "SPOPS_REQUIRE_DEVICE=1 and no CUDA device opens: %s", device_error());
        cr_log_info("skipped: no CUDA device (%s)", device_error());
        return false;
    }
    if (backend == SPOPS_BACKEND_CPU && launch == LAUNCH_CAPTURED) return false; // no graphs there
    if (launch != LAUNCH_DEFAULT) {
        cr_assert(device_stream_create(backend, &d->stream), "%s", device_error());
    }
    d->ctx = test_context(d, 0);
    return true;
}

spops_context *test_context(test_device *d, int32_t num_threads)
{
    spops_context *ctx = NULL;
    spops_context_options options = spops_context_options_default();
    options.backend = d->backend;
    options.device = d->device;
    options.stream = d->stream;
    options.num_threads = num_threads;
    options.allocator = checked_alloc_hooks(&d->memory);
    const spops_status status = spops_context_create(&options, &ctx);
    cr_assert(status == SPOPS_STATUS_OK && ctx != NULL, "context_create: %s: %s",
              spops_status_name(status), spops_last_error(NULL));
    return ctx;
}

bool test_has_cpu_isa(const char *name)
{
    spops_context_options options = spops_context_options_default();
    spops_context *ctx = NULL;
    spops_status status;
    cr_assert(setenv("SPOPS_CPU_ISA", name, 1) == 0);
    options.backend = SPOPS_BACKEND_CPU;
    status = spops_context_create(&options, &ctx);
    spops_context_destroy(ctx);
    unsetenv("SPOPS_CPU_ISA");
    cr_assert(status == SPOPS_STATUS_OK || status == SPOPS_STATUS_NOT_SUPPORTED, "%s: %s", name,
              spops_last_error(NULL));
    return status == SPOPS_STATUS_OK;
}

void test_close(test_device *d)
{
    spops_context_destroy(d->ctx);
    if (d->stream != NULL) device_stream_destroy(d->backend, d->stream);
    checked_alloc_finish(&d->memory, "after the test");
}

void test_wait(test_device *d)
{
    cr_assert(device_stream_wait(d->backend, d->stream), "%s", device_error());
}

static void poison_outputs(const test_call *call, int byte)
{
    for (guarded *const *o = call->outputs; *o != NULL; ++o) {
        guarded_poison(*o, byte);
        guarded_upload(*o);
    }
}

static void fetch_outputs(test_device *d, const test_call *call)
{
    test_wait(d);
    for (guarded *const *o = call->outputs; *o != NULL; ++o) {
        guarded_download(*o);
        guarded_check_padding(*o, call->what);
    }
}

// Scratch is there: the call asks for no memory.
static void enqueue(const test_device *d, const test_call *call, spops_context *ctx)
{
    const int64_t requests = d->memory.requests;
    test_expect_ok(ctx, call->enqueue(call->user, ctx), call->what);
    cr_assert(d->memory.requests == requests, "%s: the call asked for memory", call->what);
}

static device_graph *capture(test_device *d, const test_call *call)
{
    device_graph *graph = NULL;
    int kernels = 0, copies = 0, memsets = 0, others = 0;
    cr_assert(device_capture_begin(d->stream), "%s", device_error());
    const spops_status status = call->enqueue(call->user, d->ctx);
    const bool ended = device_capture_end(d->stream, &graph);
    test_expect_ok(d->ctx, status, call->what);
    cr_assert(ended, "%s: the call broke the capture: %s", call->what, device_error());
    cr_assert(device_graph_count(graph, &kernels, &copies, &memsets, &others), "%s",
              device_error());
    cr_assert(others == 0, "%s: %d nodes of the graph are no kernel, memset or copy", call->what,
              others);
    return graph;
}

void test_run(test_device *d, const test_call *call)
{
    device_graph *graph = d->launch == LAUNCH_CAPTURED ? capture(d, call) : NULL;
    unsigned char *first_run[8] = {NULL};

    for (int version = 0; version < 2; ++version) {
        call->prepare(call->user, version);
        poison_outputs(call, 0xff);
        if (graph != NULL) {
            cr_assert(device_graph_launch(graph, d->stream), "%s", device_error());
        } else {
            enqueue(d, call, d->ctx);
        }
        fetch_outputs(d, call);
        call->verify(call->user, version, call->what);
    }
    // The same inputs again, over another poison, on contexts of other thread counts that have just
    // the scratch the plan asks for.
    for (int i = 0; call->outputs[i] != NULL; ++i)
        first_run[i] = guarded_elements(call->outputs[i]);
    const int repeats = d->backend == SPOPS_BACKEND_CPU && call->other == NULL ? 3 : 1;
    for (int repeat = 0; repeat < repeats; ++repeat) {
        spops_context *ctx = call->other != NULL ? call->other : test_context(d, 1 + repeat);
        test_expect_ok(ctx, spops_context_reserve(ctx, call->scratch_bytes), call->what);
        poison_outputs(call, 0xa5);
        enqueue(d, call, ctx);
        fetch_outputs(d, call);
        for (int i = 0; call->outputs[i] != NULL; ++i) {
            guarded_check_bits(call->outputs[i], first_run[i], call->what);
        }
        if (call->other == NULL) spops_context_destroy(ctx);
    }
    for (int i = 0; call->outputs[i] != NULL; ++i)
        free(first_run[i]);
    for (guarded *const *in = call->inputs; *in != NULL; ++in) {
        guarded_download(*in);
        guarded_check_untouched(*in, call->what);
    }
    device_graph_destroy(graph);
    checked_alloc_check(&d->memory, call->what);
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

// Whether the message has the fragment. A name alone has to be the call's, or what the call blames:
// whole, right after the call's name, as it is or as a part of "shape.NAME", "NAME[3]" or "NAME->x".
static bool has_fragment(const char *message, const char *fragment)
{
    const size_t n = strlen(fragment);
    const char *at = strstr(message, ": ");
    size_t letters = 0;
    while (is_name(fragment[letters]))
        ++letters;
    if (letters < n) return strstr(message, fragment) != NULL;
    if (n == 0 || (strncmp(message, fragment, n) == 0 && message[n] == ':')) return true;
    for (at = at != NULL ? at + 2 : ""; *at != '\0' && *at != ' '; ++at) {
        if (strncmp(at, fragment, n) == 0 && !is_name(at[-1]) && !is_name(at[n])) return true;
    }
    return false;
}

void test_expect(spops_context *ctx, spops_status status, spops_status expected,
                 const char *fragment, const char *what)
{
    const char *message = spops_last_error(ctx);
    cr_assert(status == expected, "%s: status is %s (%s), expected %s", what,
              spops_status_name(status), message, spops_status_name(expected));
    cr_assert(has_fragment(message, fragment), "%s: the message is \"%s\", expected \"%s\" in it",
              what, message, fragment);
    cr_assert(strchr(message, '\n') == NULL, "%s: the message has more than one line", what);
}

void test_expect_ok(spops_context *ctx, spops_status status, const char *what)
{
    cr_assert(status == SPOPS_STATUS_OK, "%s: %s: %s", what, spops_status_name(status),
              spops_last_error(ctx));
}

void *test_upload(test_device *d, const void *values, size_t bytes)
{
    void *p = NULL;
    if (bytes == 0) return NULL;
    cr_assert(device_alloc(d->backend, bytes, &p) && device_upload(d->backend, p, values, bytes),
              "%s", device_error());
    return p;
}

int32_t *test_upload_i32(test_device *d, const int32_t *values, int64_t n)
{
    return (int32_t *)test_upload(d, values, (size_t)n * sizeof(int32_t));
}

double *test_upload_f64(test_device *d, const double *values, int64_t n)
{
    return (double *)test_upload(d, values, (size_t)n * sizeof(double));
}

void test_download_i32(test_device *d, int32_t *values, const int32_t *from, int64_t n)
{
    if (n == 0) return;
    cr_assert(device_download(d->backend, values, from, (size_t)n * sizeof(int32_t)), "%s",
              device_error());
}

void test_free(test_device *d, void *ptr)
{
    device_free(d->backend, ptr);
}

const char *test_describe(char text[256], const char *format, ...)
{
    va_list list;
    va_start(list, format);
    const int used = vsnprintf(text, 200, format, list);
    va_end(list);
    const size_t end = used < 0 ? 0 : used < 200 ? (size_t)used : 199;
    (void)snprintf(text + end, 256 - end, " (seed %llu)", (unsigned long long)test_seed());
    return text;
}
