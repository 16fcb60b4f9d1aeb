// SPDX-License-Identifier: Apache-2.0
// The core without any operator: contexts and their options, error lines, memory hooks, carving,
// matrix checks, scratch, registered reductions; and the device half of the CUDA backend.
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/address_set.h"
#include "core/plan_file.h"
#include "core/backend.h"
#include "core/context.h"
#include "core/cpu_isa.h"
#include "segreduce/custom_reduce.h"
#include "segreduce/segreduce_args.h"
#include "core/matrix.h"
#include "core/memory.h"
#include "core/status.h"
#include "spops/spops.h"
#include "support/device.h"
#include "tests/support/checked_alloc.h"
#include "tests/support/random.h"
#include "tests/support/launch.h"

static void expect_line(const spops_context *ctx, spops_status found, spops_status status,
                        const char *line)
{
    cr_assert(found == status, "%s instead of %s: %s", spops_status_name(found),
              spops_status_name(status), spops_last_error(ctx));
    cr_assert(strcmp(spops_last_error(ctx), line) == 0, "found \"%s\", expected \"%s\"",
              spops_last_error(ctx), line);
}

static spops_context_options cpu_options(checked_alloc *memory)
{
    spops_context_options options = spops_context_options_default();
    options.backend = SPOPS_BACKEND_CPU;
    if (memory != NULL) options.allocator = checked_alloc_hooks(memory);
    return options;
}

static spops_context *cpu_context(checked_alloc *memory)
{
    spops_context *ctx = NULL;
    const spops_context_options options = cpu_options(memory);
    if (memory != NULL) checked_alloc_init(memory);
    cr_assert(spops_context_create(&options, &ctx) == SPOPS_STATUS_OK, "%s",
              spops_last_error(NULL));
    return ctx;
}

// ---- Defaults -----------------------------------------------------------------------------------

typedef struct read_sizes {
    size_t options, rotary, bias;
} read_sizes;

// What a call reads of options and of what they point to.
static read_sizes read_options(const spops_attention_options *o)
{
    read_sizes sizes = {o->struct_size, 0, 0};
    if (o->rotary != NULL) sizes.rotary = o->rotary->struct_size;
    if (o->bias != NULL) sizes.bias = o->bias->struct_size;
    return sizes;
}
static read_sizes (*volatile reader)(const spops_attention_options *) = read_options;

// Several defaults in one function, with a choice between them: compilers let them share a place.
__attribute__((noinline)) static read_sizes sizes_of(bool rotary, bool bias, spops_matrix coords)
{
    spops_attention_options options = spops_attention_options_default();
    spops_attention_rotary r = spops_attention_rotary_default();
    spops_attention_bias b = spops_attention_bias_default();
    if (rotary) {
        r.coords = coords;
        options.rotary = &r;
    }
    if (bias) {
        b.coords = coords;
        b.table = coords;
        options.bias = &b;
    }
    return reader(&options);
}

Test(core, defaults_in_one_function)
{
    static const float place[3];
    const spops_matrix coords = spops_matrix_dense_const(place, 1, 3, SPOPS_DTYPE_F32);
    for (int i = 0; i < 4; ++i) {
        const bool rotary = (i & 1) != 0, bias = (i & 2) != 0;
        const read_sizes sizes = sizes_of(rotary, bias, coords);
        cr_assert_eq(sizes.options, sizeof(spops_attention_options));
        cr_assert_eq(sizes.rotary, rotary ? sizeof(spops_attention_rotary) : 0);
        cr_assert_eq(sizes.bias, bias ? sizeof(spops_attention_bias) : 0);
    }
}

// ---- Names --------------------------------------------------------------------------------------

Test(core, names)
{
    static const struct {
        spops_dtype dtype;
        const char *name;
        size_t bytes;
    } dtypes[] = {
        {SPOPS_DTYPE_F32, "f32", 4},       {SPOPS_DTYPE_F16, "f16", 2},
        {SPOPS_DTYPE_BF16, "bf16", 2},     {SPOPS_DTYPE_F8E4M3, "f8e4m3", 1},
        {SPOPS_DTYPE_F8E5M2, "f8e5m2", 1}, {SPOPS_DTYPE_F4E2M1, "f4e2m1", 0},
        {SPOPS_DTYPE_I8, "i8", 1},         {SPOPS_DTYPE_I32, "i32", 4},
        {SPOPS_DTYPE_I64, "i64", 8},       {SPOPS_DTYPE_F64, "f64", 8},
        {(spops_dtype)10, "?", 0},
    };
    char version[32];

    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; ++i) {
        cr_assert_str_eq(spops_dtype_name(dtypes[i].dtype), dtypes[i].name);
        cr_assert_eq(spops_dtype_bytes(dtypes[i].dtype), dtypes[i].bytes);
    }
    for (int i = SPOPS_STATUS_OK; i <= SPOPS_STATUS_COMM_BROKEN; ++i) {
        cr_assert_str_neq(spops_status_name((spops_status)i), "?");
        for (int j = 0; j < i; ++j)
            cr_assert_str_neq(spops_status_name((spops_status)i),
                              spops_status_name((spops_status)j));
    }
    cr_assert_str_eq(spops_status_name(SPOPS_STATUS_INVALID_ARGUMENT), "INVALID_ARGUMENT");
    cr_assert_str_eq(spops_status_name((spops_status)11), "?");
    cr_assert_str_eq(spops_regime_name(SPOPS_REGIME_L2_RESIDENT), "L2-resident");
    cr_assert_str_eq(spops_regime_name(SPOPS_REGIME_DRAM_BOUND), "DRAM-bound");
    cr_assert_str_eq(spops_regime_name((spops_regime)2), "?");
    snprintf(version, sizeof version, "%d.%d.%d", SPOPS_VERSION_MAJOR, SPOPS_VERSION_MINOR,
             SPOPS_VERSION_PATCH);
    cr_assert_str_eq(spops_version(), version);
    cr_assert_eq(spops_has_cuda(), spops_backend_cuda() != NULL);
}

// ---- Context ------------------------------------------------------------------------------------

Test(core, context_options_refused)
{
    static const char *const lines[] = {
        "context_create: backend is 3, expected 0 (auto), 1 (CPU) or 2 (CUDA)",
        "context_create: num_threads is -1, expected 0 to 4096",
        "context_create: num_threads is 4097, expected 0 to 4096",
        "context_create: allocator.host_alloc is NULL while allocator.host_free is not",
        "context_create: allocator.host_free is NULL while allocator.host_alloc is not",
        "context_create: allocator.device_alloc is NULL while allocator.device_free is not",
        "context_create: allocator.device_free is NULL while allocator.device_alloc is not",
    };
    checked_alloc memory;

    checked_alloc_init(&memory);
    for (int i = 0; i < (int)(sizeof lines / sizeof lines[0]); ++i) {
        spops_context_options options = cpu_options(&memory);
        spops_context *ctx = (spops_context *)&options;
        if (i == 0) options.backend = (spops_backend_kind)3;
        if (i == 1) options.num_threads = -1;
        if (i == 2) options.num_threads = 4097;
        if (i == 3) options.allocator.host_alloc = NULL;
        if (i == 4) options.allocator.host_free = NULL;
        if (i == 5) options.allocator.device_alloc = NULL;
        if (i == 6) options.allocator.device_free = NULL;
        expect_line(NULL, spops_context_create(&options, &ctx), SPOPS_STATUS_INVALID_ARGUMENT,
                    lines[i]);
        cr_assert_null(ctx);
    }
    expect_line(NULL, spops_context_create(NULL, NULL), SPOPS_STATUS_INVALID_ARGUMENT,
                "context_create: out is NULL");
    cr_assert_eq(memory.requests, 0);
}

Test(core, context_struct_size)
{
    const size_t size = sizeof(spops_context_options);
    // Some end within `stream`, whose upper bytes would be nonsense.
    const size_t stream = offsetof(spops_context_options, stream);
    const size_t bad[] = {0,          1,          sizeof(size_t) - 1, stream + 1,
                          stream + 4, stream + 7, size + 1,           SIZE_MAX};
    spops_context_options options = spops_context_options_default();
    spops_context *ctx = NULL;
    char line[200];

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        options.struct_size = bad[i];
        snprintf(line, sizeof line,
                 "context_create: struct_size is %zu, expected %zu to %zu in steps of %zu", bad[i],
                 sizeof(size_t), size, sizeof(size_t));
        expect_line(NULL, spops_context_create(&options, &ctx), SPOPS_STATUS_INVALID_ARGUMENT,
                    line);
        cr_assert_null(ctx);
    }

    // What lies after a shorter struct is not the library's to read: here it is nonsense.
    memset(&options, 0xee, sizeof options);
    options.struct_size = offsetof(spops_context_options, num_threads);
    options.backend = SPOPS_BACKEND_CPU;
    cr_assert_eq(spops_context_create(&options, &ctx), SPOPS_STATUS_OK);
    cr_assert_eq(spops_context_backend(ctx), SPOPS_BACKEND_CPU);
    cr_assert_null(spops_context_stream(ctx));
    cr_assert(ctx->num_threads >= 1);
    spops_context_destroy(ctx);
    spops_context_destroy(NULL);
}

Test(core, context_properties)
{
    int there = 0;
    spops_context *ctx = NULL;
    spops_context_options options = cpu_options(NULL);
    spops_device_info info, before;

    options.num_threads = 3;
    options.stream = &there;
    cr_assert_eq(spops_context_create(&options, &ctx), SPOPS_STATUS_OK);
    cr_assert_eq(spops_context_stream(ctx), (void *)&there);
    cr_assert_str_eq(spops_last_error(ctx), "");
    memset(&info, 0x5a, sizeof info);
    info.struct_size = sizeof info;
    cr_assert_eq(spops_context_get_device_info(ctx, &info), SPOPS_STATUS_OK);
    cr_assert_eq(info.struct_size, sizeof info);
    cr_assert_eq(info.backend, SPOPS_BACKEND_CPU);
    cr_assert(info.name[0] != '\0' && strlen(info.name) < sizeof info.name);
    cr_assert(strcmp(info.isa, "baseline") == 0 || strcmp(info.isa, "neon") == 0 ||
              strcmp(info.isa, "avx2") == 0 || strcmp(info.isa, "avx512") == 0);
    cr_assert_eq(info.num_processors, 3);
    cr_assert_eq(info.device, 0);
    cr_assert_eq(info.compute_capability, 0);
    cr_assert_eq(info.reserved, 0);
    cr_assert_geq(info.memory_bytes, INT64_C(1) << 20);

    // Only as many bytes as the caller has are written.
    memset(&info, 0x5a, sizeof info);
    before = info;
    const size_t part = offsetof(spops_device_info, isa) / 8 * 8;
    info.struct_size = before.struct_size = part;
    cr_assert_eq(spops_context_get_device_info(ctx, &info), SPOPS_STATUS_OK);
    cr_assert_eq(info.struct_size, part);
    cr_assert_eq(info.backend, SPOPS_BACKEND_CPU);
    cr_assert_eq(memcmp((char *)&info + part, (char *)&before + part, sizeof info - part), 0);

    info.struct_size = sizeof info + 8;
    cr_assert_eq(spops_context_get_device_info(ctx, &info), SPOPS_STATUS_INVALID_ARGUMENT);
    info.struct_size = 4;
    cr_assert_eq(spops_context_get_device_info(ctx, &info), SPOPS_STATUS_INVALID_ARGUMENT);
    expect_line(ctx, spops_context_get_device_info(ctx, NULL), SPOPS_STATUS_INVALID_ARGUMENT,
                "context_get_device_info: info is NULL");
    expect_line(NULL, spops_context_get_device_info(NULL, &info), SPOPS_STATUS_INVALID_ARGUMENT,
                "context_get_device_info: ctx is NULL");
    expect_line(NULL, spops_context_wait_sync(NULL), SPOPS_STATUS_INVALID_ARGUMENT,
                "context_wait_sync: ctx is NULL");
    cr_assert_eq(spops_context_wait_sync(ctx), SPOPS_STATUS_OK);

    cr_assert_eq(spops_context_regime(ctx, ctx->info.cache_bytes), SPOPS_REGIME_L2_RESIDENT);
    cr_assert_eq(spops_context_regime(ctx, ctx->info.cache_bytes + 1), SPOPS_REGIME_DRAM_BOUND);
    spops_context_destroy(ctx);
}

Test(core, cpu_isa_from_environment)
{
    static const char *const names[] = {"baseline", "avx2", "avx512"};
    spops_context *ctx = NULL;
    spops_context_options options = cpu_options(NULL);
    enum spops_cpu_isa best;

    unsetenv("SPOPS_CPU_ISA");
    ctx = cpu_context(NULL);
    best = spops_context_isa(ctx);
    cr_assert_str_eq(ctx->info.isa, spops_isa_name(best));
    spops_context_destroy(ctx);
    for (int i = 0; i < SPOPS_NUM_ISAS; ++i) { // it lowers, it never raises
        int expected = i < (int)best ? i : (int)best;
        setenv("SPOPS_CPU_ISA", names[i], 1);
        while (expected >= 0 && !spops_isa_is_built((enum spops_cpu_isa)expected))
            --expected;
        if (expected < 0) {
            cr_assert_eq(spops_context_create(&options, &ctx), SPOPS_STATUS_NOT_SUPPORTED);
            continue;
        }
        ctx = cpu_context(NULL);
        cr_assert_eq((int)spops_context_isa(ctx), expected);
        cr_assert_str_eq(ctx->info.isa, spops_isa_name((enum spops_cpu_isa)expected));
        spops_context_destroy(ctx);
    }
    setenv("SPOPS_CPU_ISA", "", 1);
    ctx = cpu_context(NULL);
    cr_assert_eq(spops_context_isa(ctx), best);
    spops_context_destroy(ctx);
    setenv("SPOPS_CPU_ISA", "sse9", 1);
    expect_line(NULL, spops_context_create(&options, &ctx), SPOPS_STATUS_INVALID_ARGUMENT,
                "context_create: environment variable SPOPS_CPU_ISA is \"sse9\", expected "
                "baseline, avx2 or avx512");
    cr_assert_null(ctx);
}

Test(core, cuda_that_is_not_there)
{
    spops_context_options options = spops_context_options_default();
    spops_context *ctx = NULL;

    // No host has this one, whether it has a driver, a device, or neither.
    options.device = 9999;
    options.backend = SPOPS_BACKEND_CUDA;
    cr_assert_eq(spops_context_create(&options, &ctx), SPOPS_STATUS_BACKEND_UNAVAILABLE);
    cr_assert_null(ctx);
    cr_assert_eq(strncmp(spops_last_error(NULL), "context_create: ", 16), 0, "%s",
                 spops_last_error(NULL));
    if (device_has_cuda()) {
        cr_assert_not_null(strstr(spops_last_error(NULL), "device is 9999, expected less than"));
    }

    // AUTO takes the CPU, and that is no failure.
    expect_line(NULL, spops_context_create(NULL, NULL), SPOPS_STATUS_INVALID_ARGUMENT,
                "context_create: out is NULL");
    options.backend = SPOPS_BACKEND_AUTO;
    cr_assert_eq(spops_context_create(&options, &ctx), SPOPS_STATUS_OK);
    cr_assert_eq(spops_context_backend(ctx), SPOPS_BACKEND_CPU);
    cr_assert_eq(spops_last_error(ctx)[0] != '\0', spops_has_cuda() != 0,
                 "why there is no CUDA, where there might have been: '%s'", spops_last_error(ctx));
    cr_assert_str_eq(spops_last_error(NULL), "context_create: out is NULL");
    cr_assert_eq(ctx->info.device, 0);
    spops_context_destroy(ctx);

    options.device = 0;
    cr_assert_eq(spops_context_create(&options, &ctx), SPOPS_STATUS_OK);
    cr_assert_eq(spops_context_backend(ctx),
                 device_has_cuda() ? SPOPS_BACKEND_CUDA : SPOPS_BACKEND_CPU);
    spops_context_destroy(ctx);
}

// ---- Error lines --------------------------------------------------------------------------------

static void *fail_elsewhere(void *unused)
{
    (void)unused;
    cr_assert_str_eq(spops_last_error(NULL), "");
    spops_fail(NULL, SPOPS_STATUS_CUDA, "another thread's");
    return NULL;
}

Test(core, error_lines)
{
    spops_context *ctx = cpu_context(NULL);
    char text[2 * SPOPS_ERROR_BYTES];
    pthread_t thread;

    expect_line(ctx, spops_fail(ctx, SPOPS_STATUS_CUDA, "f: %s is %d", "a", 7), SPOPS_STATUS_CUDA,
                "f: a is 7");
    expect_line(NULL, spops_fail(NULL, SPOPS_STATUS_CORRUPT_DATA, "g"), SPOPS_STATUS_CORRUPT_DATA,
                "g");
    cr_assert_str_eq(spops_last_error(ctx), "f: a is 7");

    // A message may quote the one it replaces, and stays one line whatever it quotes.
    spops_fail(ctx, SPOPS_STATUS_CUDA, "h: %s\nsecond\tline", spops_last_error(ctx));
    cr_assert_str_eq(spops_last_error(ctx), "h: f: a is 7 second line");

    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    spops_fail(ctx, SPOPS_STATUS_CUDA, "%s", text);
    cr_assert_eq(strlen(spops_last_error(ctx)), (size_t)SPOPS_ERROR_BYTES - 1);
    cr_assert_null(ctx->custom_reduces); // what lies beside the buffer

    cr_assert_eq(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    cr_assert_str_eq(spops_last_error(NULL), "g");
    spops_context_destroy(ctx);
}

// ---- Memory -------------------------------------------------------------------------------------

Test(core, byte_sums)
{
    cr_assert_eq(spops_mul_bytes(3, 5), 15);
    cr_assert_eq(spops_mul_bytes(0, SIZE_MAX), 0);
    cr_assert_eq(spops_mul_bytes(SIZE_MAX, 0), 0);
    cr_assert_eq(spops_mul_bytes(SIZE_MAX, 1), SIZE_MAX);
    cr_assert_eq(spops_mul_bytes(SIZE_MAX / 2, 3), SIZE_MAX);
    cr_assert_eq(spops_add_bytes(3, 5), 8);
    cr_assert_eq(spops_add_bytes(SIZE_MAX, 0), SIZE_MAX);
    cr_assert_eq(spops_add_bytes(SIZE_MAX, 1), SIZE_MAX);
    cr_assert_eq(spops_add_bytes(SIZE_MAX - 5, 6), SIZE_MAX);
}

Test(core, checksums_are_what_xxhsum_says)
{
    static const unsigned char zeros[1000];
    cr_expect_eq(spops_file_checksum(NULL, 0), UINT64_C(0x2d06800538d394c2));
    cr_expect_eq(spops_file_checksum("abc", 3), UINT64_C(0x78af5f94892f3950));
    cr_expect_eq(spops_file_checksum(zeros, sizeof zeros), UINT64_C(0x24c1ea6074dd588c));
}

Test(core, carver)
{
    static _Alignas(256) char memory[4096];
    spops_carver measure = {NULL, 0}, carver = {memory, 0};

    for (int pass = 0; pass < 2; ++pass) {
        spops_carver *c = pass == 0 ? &measure : &carver;
        const char *a = spops_carve(c, 3, 5, 4), *none = spops_carve(c, 0, 7, 4);
        const char *b = spops_carve(c, 1, 1, 1), *d = spops_carve(c, 256, 1, 1);
        const char *e = spops_carve(c, 1, 3, 8);
        cr_assert_null(none);
        cr_assert_eq(a, pass == 0 ? NULL : memory);
        cr_assert_eq(b, pass == 0 ? NULL : memory + 256);
        cr_assert_eq(d, pass == 0 ? NULL : memory + 512);
        cr_assert_eq(e, pass == 0 ? NULL : memory + 768);
        cr_assert_eq(c->used, 768 + 24);
    }

    // Too large, in each of the ways, and it sticks.
    static const struct {
        size_t used;
        int64_t rows, cols;
        size_t element_bytes;
    } bad[] = {
        {0, INT64_MAX, INT64_MAX, 1},
        {0, INT64_MAX, 1, 4},
        {0, 1, INT64_MAX, 3},
        {0, -1, 1, 4},
        {0, 1, -1, 4},
        {0, -1, -1, 4},
        {SIZE_MAX - 255, 1, 1, 1},
        {SIZE_MAX - 100, 1, 1, 1},
        {SIZE_MAX - 511, 256, 2, 4},
        {1, INT64_MAX, 1, 2},
        {0, INT64_MAX, 2, SIZE_MAX},
        {SIZE_MAX, 0, 0, 1},
        {0, INT64_MIN, 1, 1},
        {0, -1, 0, 4},
        {0, 0, -1, 4},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        spops_carver c = {i % 2 == 0 ? memory : NULL, bad[i].used};
        cr_assert_null(spops_carve(&c, bad[i].rows, bad[i].cols, bad[i].element_bytes));
        cr_assert_eq(c.used, SIZE_MAX, "case %zu: %zu", i, c.used);
        cr_assert_null(spops_carve(&c, 1, 1, 1));
        cr_assert_eq(c.used, SIZE_MAX);
    }
}

Test(core, host_memory)
{
    checked_alloc memory;
    spops_context *ctx = cpu_context(&memory);
    const int64_t live = memory.live;
    unsigned char *p = spops_host_alloc(ctx, 100, 7), *none = spops_host_alloc(ctx, 0, 8);
    void *backend = &memory;

    cr_assert_not_null(p);
    cr_assert_not_null(none, "no elements is no failure");
    for (int i = 0; i < 700; ++i)
        cr_assert_eq(p[i], 0);
    cr_assert_eq(memory.live, live + 2);
    spops_host_free(ctx, p, 100, 7);
    spops_host_free(ctx, none, 0, 8);
    spops_host_free(ctx, NULL, 100, 7);

    cr_assert_null(spops_host_alloc(ctx, SIZE_MAX / 2, 3));
    cr_assert_not_null(strstr(spops_last_error(ctx), "out of host memory"));
    ctx->call = "f_create";
    cr_assert_null(spops_host_alloc(ctx, SIZE_MAX / 2, 2));

    cr_assert_eq(spops_backend_alloc(ctx, 0, &backend), SPOPS_STATUS_OK);
    cr_assert_null(backend);
    spops_backend_free(ctx, NULL, 0);
    cr_assert_eq(spops_backend_alloc(ctx, SIZE_MAX, &backend), SPOPS_STATUS_OUT_OF_MEMORY);
    cr_assert_null(backend);
    cr_assert_eq(spops_backend_alloc(ctx, 1000, &backend), SPOPS_STATUS_OK);
    cr_assert_eq((uintptr_t)backend % SPOPS_ALIGNMENT, 0);
    memset(backend, 1, 1000);
    spops_backend_free(ctx, backend, 1000);
    cr_assert_eq(memory.live, live);
    memory.fail_at = memory.requests + 1;
    expect_line(ctx, spops_backend_alloc(ctx, 12, &backend), SPOPS_STATUS_OUT_OF_MEMORY,
                "f_create: out of host memory: 12 bytes could not be allocated");
    cr_assert_null(backend);
    spops_context_destroy(ctx);
    checked_alloc_finish(&memory, "host_memory");
}

Test(core, default_host_memory_is_aligned)
{
    spops_context *ctx = cpu_context(NULL);
    for (size_t bytes = 1; bytes < 2000; bytes += 123) {
        char *p = spops_host_alloc(ctx, bytes, 1);
        cr_assert_eq((uintptr_t)p % SPOPS_ALIGNMENT, 0);
        spops_host_free(ctx, p, bytes, 1);
    }
    spops_context_destroy(ctx);
}

// ---- Scratch ------------------------------------------------------------------------------------

static bool always_capturing(spops_context *ctx)
{
    (void)ctx;
    return true;
}

Test(core, reserve)
{
    checked_alloc memory;
    spops_context *ctx = cpu_context(&memory);
    spops_backend backend = spops_backend_cpu;
    unsigned char *first;
    uint32_t *first_tickets;
    void *scratch = &memory;
    int64_t requests;

    cr_assert_eq(spops_context_scratch(ctx, "f", 0, &scratch), SPOPS_STATUS_OK);
    cr_assert_null(scratch);
    expect_line(ctx, spops_context_scratch(ctx, "f_execute", 1, &scratch),
                SPOPS_STATUS_SCRATCH_TOO_SMALL,
                "f_execute: the context's scratch is 0 bytes, expected at least 1");
    cr_assert_eq(spops_context_reserve(ctx, 0), SPOPS_STATUS_OK);
    cr_assert_eq(ctx->scratch_bytes, 0);

    cr_assert_eq(spops_context_reserve(ctx, 1001), SPOPS_STATUS_OK);
    cr_assert_eq(ctx->scratch_bytes, 1001, "no more than asked for, so that tests find overruns");
    cr_assert_eq((uintptr_t)ctx->scratch % SPOPS_ALIGNMENT, 0);
    cr_assert_eq((uintptr_t)ctx->tickets % SPOPS_ALIGNMENT, 0);
    cr_assert(ctx->scratch >= (char *)ctx->tickets + 1001 / SPOPS_TICKETS_FRACTION);
    for (size_t i = 0; i < 1001 / SPOPS_TICKETS_FRACTION / 4; ++i)
        cr_assert_eq(ctx->tickets[i], 0);
    expect_line(ctx, spops_context_scratch(ctx, "f_execute", 1002, &scratch),
                SPOPS_STATUS_SCRATCH_TOO_SMALL,
                "f_execute: the context's scratch is 1001 bytes, expected at least 1002");
    cr_assert_null(scratch);
    cr_assert_eq(spops_context_scratch(ctx, "f", 1001, &scratch), SPOPS_STATUS_OK);
    cr_assert_eq(scratch, ctx->scratch);

    // Enough already: nothing is taken and nothing moves.
    first = scratch;
    first_tickets = ctx->tickets;
    requests = memory.requests;
    cr_assert_eq(spops_context_reserve(ctx, 1001), SPOPS_STATUS_OK);
    cr_assert_eq(spops_context_reserve(ctx, 17), SPOPS_STATUS_OK);
    cr_assert_eq(memory.requests, requests);
    cr_assert_eq(ctx->scratch, (char *)first);

    // Growing leaves a block alone that a captured graph may work in.
    backend.is_capturing = always_capturing;
    ctx->backend = &backend;
    cr_assert_eq(spops_context_scratch(ctx, "f", 17, &scratch), SPOPS_STATUS_OK);
    ctx->backend = &spops_backend_cpu;
    cr_assert_eq(spops_context_scratch(ctx, "f", 17, &scratch), SPOPS_STATUS_OK);
    memset(first, 0x77, 1001);
    cr_assert_eq(spops_context_reserve(ctx, 50000), SPOPS_STATUS_OK);
    cr_assert_eq(ctx->scratch_bytes, 50000);
    cr_assert(ctx->scratch != (char *)first && ctx->tickets != first_tickets);
    memset(ctx->scratch, 0x33, 50000);
    for (int i = 0; i < 1001; ++i)
        cr_assert_eq(first[i], 0x77);
    for (size_t i = 0; i < 50000 / SPOPS_TICKETS_FRACTION / 4; ++i)
        cr_assert_eq(ctx->tickets[i], 0);
    for (size_t i = 0; i < 1001 / SPOPS_TICKETS_FRACTION / 4; ++i)
        cr_assert_eq(first_tickets[i], 0);

    // Sizes without tickets, and beyond reason.
    expect_line(NULL, spops_context_reserve(NULL, 1), SPOPS_STATUS_INVALID_ARGUMENT,
                "context_reserve: ctx is NULL");
    cr_assert_eq(spops_context_reserve(ctx, SIZE_MAX), SPOPS_STATUS_INVALID_ARGUMENT);
    cr_assert_eq(ctx->scratch_bytes, 50000);
    spops_context_destroy(ctx);
    checked_alloc_finish(&memory, "reserve");

    ctx = cpu_context(&memory);
    cr_assert_eq(spops_context_reserve(ctx, 3), SPOPS_STATUS_OK);
    cr_assert_eq(ctx->scratch_bytes, 3);
    cr_assert_null(ctx->tickets);
    spops_context_destroy(ctx);
    checked_alloc_finish(&memory, "reserve of 3 bytes");
}

static spops_status inner_call(spops_context *ctx, int depth)
{
    static const char *const names[][2] = {{"x", "w"}, {NULL, NULL}};
    SPOPS_OUTER_CALL(ctx, "inner", names);
    if (depth > 0) return inner_call(ctx, depth - 1);
    return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT, "innermost: x[3] is 7, and x is wrong");
}

static spops_status outer_call(spops_context *ctx, bool fails)
{
    static const char *const names[][2] = {{"x", "out->x"}, {NULL, NULL}};
    SPOPS_OUTER_CALL(ctx, "outer", names);
    if (!fails) return SPOPS_STATUS_OK;
    SPOPS_TRY(inner_call(ctx, 2));
    return SPOPS_STATUS_OK;
}

// The outermost of nested calls is named, until it returns.
Test(core, outer_calls_are_named)
{
    spops_context *ctx = cpu_context(NULL);
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    expect_line(ctx, outer_call(ctx, true), invalid, "outer: out->x[3] is 7, and x is wrong");
    cr_assert_null(ctx->outer);
    expect_line(ctx, inner_call(ctx, 0), invalid, "inner: w[3] is 7, and x is wrong");
    cr_assert_eq(outer_call(ctx, false), SPOPS_STATUS_OK);
    expect_line(ctx, spops_fail(ctx, invalid, "plain: x is wrong"), invalid, "plain: x is wrong");
    spops_context_destroy(ctx);
}

// A scene that grows a little with every frame: few blocks are made, and no more is held than half
// again what the largest needs, with its tickets.
Test(core, reserve_grows_by_halves)
{
    checked_alloc memory;
    spops_context *ctx = cpu_context(&memory);
    const int64_t requests = memory.requests;
    for (size_t bytes = 10000; bytes <= 1000000; bytes += 1000) {
        cr_assert_eq(spops_context_reserve(ctx, bytes), SPOPS_STATUS_OK);
        cr_assert_eq(ctx->scratch_bytes, bytes);
        cr_assert_lt(memory.live_bytes, bytes * 15 / 8 + sizeof *ctx + 4096,
                     "%zu bytes held for %zu", memory.live_bytes, bytes);
    }
    cr_assert_lt(memory.requests, requests + 2 * 14);

    // Where the half more is not to be had, what was asked for is enough.
    memory.fail_at = memory.requests + 2;
    cr_assert_eq(spops_context_reserve(ctx, 2000000), SPOPS_STATUS_OUT_OF_MEMORY);
    cr_assert_eq(ctx->scratch_bytes, 1000000);
    cr_assert_eq(spops_context_reserve(ctx, 2000000), SPOPS_STATUS_OK);
    memory.fail_at = memory.requests + 2;
    spops_fail(ctx, SPOPS_STATUS_CUDA, "a failure of before");
    cr_assert_eq(spops_context_reserve(ctx, 2000001), SPOPS_STATUS_OK);
    cr_assert_str_eq(spops_last_error(ctx), "a failure of before");
    spops_context_destroy(ctx);
    checked_alloc_finish(&memory, "reserve_grows_by_halves");
}

static spops_status failing_fill(spops_context *ctx, void *dst, size_t bytes)
{
    (void)dst, (void)bytes;
    return spops_fail(ctx, SPOPS_STATUS_CUDA, "fill_zero: broken");
}

static spops_status failing_wait(spops_context *ctx)
{
    return spops_fail(ctx, SPOPS_STATUS_CUDA, "wait: broken");
}

Test(core, reserve_fails_whole)
{
    checked_alloc memory;
    spops_context *ctx = cpu_context(&memory);
    spops_backend backend = spops_backend_cpu;
    int64_t live;
    const char *scratch;

    ctx->backend = &backend;
    cr_assert_eq(spops_context_reserve(ctx, 100), SPOPS_STATUS_OK);
    scratch = ctx->scratch;
    live = memory.live;

    backend.is_capturing = always_capturing;
    expect_line(ctx, spops_context_reserve(ctx, 200), SPOPS_STATUS_NOT_SUPPORTED,
                "context_reserve: scratch of 100 bytes cannot grow to 200 while the stream is "
                "captured");
    cr_assert_eq(spops_context_reserve(ctx, 100), SPOPS_STATUS_OK, "nothing has to grow");
    backend.is_capturing = spops_backend_cpu.is_capturing;

    backend.fill_zero = failing_fill;
    expect_line(ctx, spops_context_reserve(ctx, 200), SPOPS_STATUS_CUDA, "fill_zero: broken");
    backend.fill_zero = spops_backend_cpu.fill_zero;
    backend.wait = failing_wait;
    expect_line(ctx, spops_context_reserve(ctx, 200), SPOPS_STATUS_CUDA, "wait: broken");
    backend.wait = spops_backend_cpu.wait;

    cr_assert_eq(memory.live, live);
    cr_assert_eq(ctx->scratch, scratch);
    cr_assert_eq(ctx->scratch_bytes, 100);
    cr_assert_eq(spops_context_reserve(ctx, 200), SPOPS_STATUS_OK);
    spops_context_destroy(ctx);
    checked_alloc_finish(&memory, "reserve_fails_whole");
}

// ---- Registered reductions ----------------------------------------------------------------------

static void any_identity(void *user, int64_t n, void *state)
{
    (void)user;
    memset(state, 0, (size_t)n * 4);
}
static void any_fold(void *user, int64_t n, void *state, const float *v, int32_t term)
{
    (void)user, (void)term;
    for (int64_t i = 0; i < n; ++i)
        ((float *)state)[i] += v[i];
}
static void any_combine(void *user, int64_t n, void *a, const void *b)
{
    (void)user;
    for (int64_t i = 0; i < n; ++i)
        ((float *)a)[i] += ((const float *)b)[i];
}
static void any_finalize(void *user, int64_t n, const void *state, int64_t count, float *out)
{
    (void)user, (void)count;
    memcpy(out, state, (size_t)n * 4);
}

static spops_reduce_desc any_desc(void)
{
    spops_reduce_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.name = "any";
    desc.state_bytes = 4;
    desc.identity = any_identity;
    desc.fold = any_fold;
    desc.combine = any_combine;
    desc.finalize = any_finalize;
    return desc;
}

Test(core, reduce_refused)
{
    static const char *const lines[] = {
        "reduce_create: desc.name is NULL, expected a name",
        "reduce_create: desc.name is empty, expected a name",
        "reduce_create: state_bytes of any is 0, expected 1 to 8",
        "reduce_create: state_bytes of any is 9, expected 1 to 8",
        "reduce_create: identity of any is NULL, expected a function on a CPU context",
        "reduce_create: fold of any is NULL, expected a function on a CPU context",
        "reduce_create: combine of any is NULL, expected a function on a CPU context",
        "reduce_create: finalize of any is NULL, expected a function on a CPU context",
    };
    checked_alloc memory;
    spops_context *ctx = cpu_context(&memory);
    const int64_t requests = memory.requests;
    spops_reduce id = SPOPS_REDUCE_PROD;
    spops_reduce_desc desc = any_desc();

    for (int i = 0; i < (int)(sizeof lines / sizeof lines[0]); ++i) {
        desc = any_desc();
        if (i == 0) desc.name = NULL;
        if (i == 1) desc.name = "";
        if (i == 2) desc.state_bytes = 0;
        if (i == 3) desc.state_bytes = 9;
        if (i == 4) desc.identity = NULL;
        if (i == 5) desc.fold = NULL;
        if (i == 6) desc.combine = NULL;
        if (i == 7) desc.finalize = NULL;
        expect_line(ctx, spops_reduce_create(ctx, &desc, &id), SPOPS_STATUS_INVALID_ARGUMENT,
                    lines[i]);
    }
    desc = any_desc();
    desc.struct_size = sizeof desc + 1;
    cr_assert_eq(spops_reduce_create(ctx, &desc, &id), SPOPS_STATUS_INVALID_ARGUMENT);
    desc.struct_size = offsetof(spops_reduce_desc, finalize); // read as NULL
    expect_line(ctx, spops_reduce_create(ctx, &desc, &id), SPOPS_STATUS_INVALID_ARGUMENT, lines[7]);
    expect_line(NULL, spops_reduce_create(NULL, &desc, &id), SPOPS_STATUS_INVALID_ARGUMENT,
                "reduce_create: ctx is NULL");
    expect_line(ctx, spops_reduce_create(ctx, NULL, &id), SPOPS_STATUS_INVALID_ARGUMENT,
                "reduce_create: desc is NULL");
    expect_line(ctx, spops_reduce_create(ctx, &desc, NULL), SPOPS_STATUS_INVALID_ARGUMENT,
                "reduce_create: out is NULL");
    cr_assert_eq(id, SPOPS_REDUCE_PROD);
    cr_assert_null(spops_custom_reduce_find(ctx, SPOPS_REDUCE_FIRST_CUSTOM));
    cr_assert_eq(memory.requests, requests);
    spops_context_destroy(ctx);
    checked_alloc_finish(&memory, "reduce_refused");
}

Test(core, reduce_registered)
{
    checked_alloc memory;
    spops_context *ctx = cpu_context(&memory);
    spops_reduce_desc desc = any_desc();
    spops_reduce id = SPOPS_REDUCE_SUM;
    char name[] = "mine", source[] = "struct op {};", op[] = "op";
    spops_reduce last = SPOPS_REDUCE_SUM, seventh = SPOPS_REDUCE_SUM;
    const spops_custom_reduce *custom;

    desc.name = name, desc.cuda_source = source, desc.cuda_op = op;
    desc.user = &memory;
    cr_assert_null(spops_custom_reduce_find(ctx, SPOPS_REDUCE_FIRST_CUSTOM));
    for (int i = 0; i < SPOPS_MAX_CUSTOM_REDUCES; ++i) {
        cr_assert_eq(spops_reduce_create(ctx, &desc, &id), SPOPS_STATUS_OK);
        cr_assert_gt((int)id, i == 0 ? SPOPS_REDUCE_FIRST_CUSTOM - 1 : (int)last);
        last = id;
        if (i == 7) seventh = id;
    }
    expect_line(ctx, spops_reduce_create(ctx, &desc, &id), SPOPS_STATUS_NOT_SUPPORTED,
                "reduce_create: mine would be reduction 65 of the context, expected at most 64");
    name[0] = source[0] = op[0] = '#'; // ours no longer
    custom = spops_custom_reduce_find(ctx, seventh);
    cr_assert_not_null(custom);
    cr_assert_str_eq(custom->desc.name, "mine");
    cr_assert_str_eq(custom->desc.cuda_source, "struct op {};");
    cr_assert_str_eq(custom->desc.cuda_op, "op");
    cr_assert_eq(custom->desc.user, (void *)&memory);
    cr_assert_eq(custom->desc.fold, any_fold);
    cr_assert_null(custom->desc.grad);
    cr_assert_null(spops_custom_reduce_find(ctx, SPOPS_REDUCE_SUM));
    cr_assert_null(spops_custom_reduce_find(ctx, (spops_reduce)1023));
    cr_assert_null(spops_custom_reduce_find(ctx, (spops_reduce)((int)last + 1)));
    cr_assert_null(spops_custom_reduce_find(ctx, (spops_reduce)UINT32_MAX));
    spops_context_destroy(ctx);
    checked_alloc_finish(&memory, "reduce_registered");
}

static int num_compiled;

static spops_status compile(spops_context *ctx, const spops_reduce_create_args *args)
{
    spops_custom_reduce *custom = args->custom;
    custom->kernels = &num_compiled;
    ++num_compiled;
    if (strcmp(custom->desc.cuda_op, "bad") == 0) {
        return spops_fail(ctx, SPOPS_STATUS_COMPILE_FAILED, "reduce_create: broken source");
    }
    return SPOPS_STATUS_OK;
}

static spops_status decompile(spops_context *ctx, const spops_reduce_create_args *args)
{
    (void)ctx;
    cr_assert_eq(args->custom->kernels, (void *)&num_compiled);
    --num_compiled;
    return SPOPS_STATUS_OK;
}

Test(core, reduce_on_a_device)
{
    checked_alloc memory;
    spops_context *ctx = cpu_context(&memory);
    spops_backend backend = spops_backend_cpu;
    spops_reduce id = SPOPS_REDUCE_SUM;
    spops_reduce_desc desc;

    backend.kind = SPOPS_BACKEND_CUDA;
    backend.reduce_create = compile;
    backend.reduce_destroy = decompile;
    ctx->backend = &backend;
    memset(&desc, 0, sizeof desc); // no CPU function is needed there
    desc.struct_size = sizeof desc;
    desc.name = "dev";
    desc.state_bytes = 8;
    desc.cuda_op = "bad";
    expect_line(ctx, spops_reduce_create(ctx, &desc, &id), SPOPS_STATUS_INVALID_ARGUMENT,
                "reduce_create: cuda_source of dev is NULL, expected text on a CUDA context");
    desc.cuda_source = "source";
    expect_line(ctx, spops_reduce_create(ctx, &desc, &id), SPOPS_STATUS_COMPILE_FAILED,
                "reduce_create: broken source");
    cr_assert_eq(num_compiled, 0, "what a failed create had is given back");
    cr_assert_null(spops_custom_reduce_find(ctx, SPOPS_REDUCE_FIRST_CUSTOM));
    desc.cuda_op = NULL;
    expect_line(ctx, spops_reduce_create(ctx, &desc, &id), SPOPS_STATUS_INVALID_ARGUMENT,
                "reduce_create: cuda_op of dev is NULL, expected text on a CUDA context");
    desc.cuda_op = "good";
    backend.is_capturing = always_capturing;
    expect_line(ctx, spops_reduce_create(ctx, &desc, &id), SPOPS_STATUS_NOT_SUPPORTED,
                "reduce_create: dev cannot be compiled while the stream is captured");
    backend.is_capturing = spops_backend_cpu.is_capturing;
    cr_assert_eq(spops_reduce_create(ctx, &desc, &id), SPOPS_STATUS_OK);
    cr_assert((int)id >= SPOPS_REDUCE_FIRST_CUSTOM);
    cr_assert_eq(num_compiled, 1);
    spops_context_destroy(ctx);
    cr_assert_eq(num_compiled, 0);
    checked_alloc_finish(&memory, "reduce_on_a_device");
}

// ---- Out of memory, at every request ------------------------------------------------------------

// Everything the core allocates, once. False (with nothing taken that stays) when a request failed.
static bool use_the_core(checked_alloc *memory, spops_backend_kind backend)
{
    spops_context_options options = cpu_options(memory);
    spops_context *ctx = NULL;
    spops_reduce_desc desc = any_desc();
    spops_reduce id;
    spops_status statuses[5];
    bool ok = true;

    options.backend = backend;
    statuses[0] = spops_context_create(&options, &ctx);
    cr_assert(statuses[0] == SPOPS_STATUS_OK || statuses[0] == SPOPS_STATUS_OUT_OF_MEMORY, "%s",
              spops_last_error(NULL));
    if (statuses[0] != SPOPS_STATUS_OK) {
        cr_assert_null(ctx);
        cr_assert_eq(memory->live, 0);
        return false;
    }
    desc.cuda_source = "text", desc.cuda_op = "op";
    statuses[1] = spops_context_reserve(ctx, 1000);
    statuses[2] = spops_context_reserve(ctx, 3000);
    statuses[3] =
        backend == SPOPS_BACKEND_CPU ? spops_reduce_create(ctx, &desc, &id) : SPOPS_STATUS_OK;
    statuses[4] =
        backend == SPOPS_BACKEND_CPU ? spops_reduce_create(ctx, &desc, &id) : SPOPS_STATUS_OK;
    for (int i = 1; i < 5; ++i) {
        if (statuses[i] == SPOPS_STATUS_OK) continue;
        ok = false;
        cr_assert_eq(statuses[i], SPOPS_STATUS_OUT_OF_MEMORY);
        cr_assert_not_null(strstr(spops_last_error(ctx), "memory"), "%s", spops_last_error(ctx));
    }
    // Usable, whatever failed: the same again goes through.
    if (!ok) {
        memory->fail_at = 0;
        cr_assert_eq(spops_context_reserve(ctx, 5000), SPOPS_STATUS_OK);
        cr_assert_eq(ctx->scratch_bytes, 5000);
        if (backend == SPOPS_BACKEND_CPU)
            cr_assert_eq(spops_reduce_create(ctx, &desc, &id), SPOPS_STATUS_OK);
    }
    spops_context_destroy(ctx);
    return ok;
}

static void fail_at_every_request(spops_backend_kind backend, int64_t least)
{
    int64_t n = 1;
    for (bool done = false; !done; ++n) {
        checked_alloc memory;
        checked_alloc_init(&memory);
        memory.fail_at = n;
        done = use_the_core(&memory, backend);
        checked_alloc_finish(&memory, "out of memory");
        cr_assert_lt(n, 100);
    }
    cr_assert_geq(n - 2, least, "only %d requests were made to fail", (int)(n - 2));
}

Test(core, out_of_memory)
{
    // The context; twice a block and its scratch; twice a reduction and its three strings.
    fail_at_every_request(SPOPS_BACKEND_CPU, 1 + 2 * 2 + 2 * 4);
    if (device_has_cuda()) fail_at_every_request(SPOPS_BACKEND_CUDA, 1 + 2 * 2);
}

// ---- Matrices -----------------------------------------------------------------------------------

Test(core, matrix_checks)
{
    static _Alignas(8) char memory[64];
    const spops_dtype f32 = SPOPS_DTYPE_F32;
    const spops_status invalid = SPOPS_STATUS_INVALID_ARGUMENT;
    spops_context *ctx = cpu_context(NULL);
    const struct {
        spops_matrix m;
        int64_t rows, cols;
        spops_status status;
        const char *line;
    } cases[] = {
        {{memory, 3, 4, 4, f32}, 3, 4, SPOPS_STATUS_OK, ""},
        {{memory, 3, 4, 5, f32}, 3, 4, SPOPS_STATUS_OK, ""},
        {{memory, 1, 4, -7, f32}, 1, 4, SPOPS_STATUS_OK, ""}, // not looked at
        {{NULL, 0, 4, 4, f32}, 0, 4, SPOPS_STATUS_OK, ""},
        {{NULL, 4, 0, 0, f32}, 4, 0, SPOPS_STATUS_OK, ""},
        {{memory + 1, 0, 4, 4, f32}, 0, 4, SPOPS_STATUS_OK, ""},
        {{memory + 2, 3, 4, 4, SPOPS_DTYPE_BF16}, 3, 4, SPOPS_STATUS_OK, ""},
        {{NULL, 3, 4, 4, f32}, 3, 4, invalid, "f: x.data is NULL, expected memory for [3, 4]"},
        {{memory, 3, 4, 4, f32}, 4, 4, invalid, "f: x is [3, 4], expected [4, 4]"},
        {{memory, 3, 4, 4, f32}, 3, 5, invalid, "f: x is [3, 4], expected [3, 5]"},
        {{memory, -3, 4, 4, f32}, -3, 4, invalid, "f: x is [-3, 4], expected sizes of at least 0"},
        {{memory, 3, -1, 4, f32}, 3, -1, invalid, "f: x is [3, -1], expected sizes of at least 0"},
        {{memory, 3, 4, 3, f32}, 3, 4, invalid, "f: x.row_stride is 3, less than its 4 columns"},
        {{memory, 2, 4, INT64_MIN, f32},
         2,
         4,
         invalid,
         "f: x.row_stride is -9223372036854775808, less than its 4 columns"},
        {{memory, 2, 4, INT64_MAX, f32},
         2,
         4,
         invalid,
         "f: x is [2, 4] with row_stride 9223372036854775807, more bytes than the address space "
         "holds"},
        {{memory, INT64_MAX, 1, 2, f32},
         INT64_MAX,
         1,
         invalid,
         "f: x is [9223372036854775807, 1] with row_stride 2, more bytes than the address space "
         "holds"},
        {{memory, 1, INT64_MAX, 0, f32},
         1,
         INT64_MAX,
         invalid,
         "f: x is [1, 9223372036854775807] with row_stride 0, more bytes than the address space "
         "holds"},
        {{(void *)(UINTPTR_MAX - 15), 5, 1, 1, f32},
         5,
         1,
         invalid,
         "f: x is [5, 1] with row_stride 1, more bytes than the address space holds"},
        {{memory, 3, 4, 4, SPOPS_DTYPE_I32},
         3,
         4,
         invalid,
         "f: x.dtype is i32, expected f32 f16 bf16"},
        {{memory, 3, 4, 4, (spops_dtype)10},
         3,
         4,
         invalid,
         "f: x.dtype is 10, which is no dtype, expected f32 f16 bf16"},
        {{memory, 3, 4, 4, (spops_dtype)UINT32_MAX},
         3,
         4,
         invalid,
         "f: x.dtype is 4294967295, which is no dtype, expected f32 f16 bf16"},
        {{memory, 3, 4, 4, SPOPS_DTYPE_F8E4M3},
         3,
         4,
         invalid,
         "f: x.dtype is f8e4m3, expected f32 f16 bf16"},
        {{memory, 3, 4, 4, SPOPS_DTYPE_I8},
         3,
         4,
         SPOPS_STATUS_NOT_SUPPORTED,
         "f: x.dtype is i8, expected f32 f16 bf16"},
    };
    char line[160];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        ctx->error[0] = '\0';
        expect_line(ctx,
                    spops_check_matrix(ctx, "f", "x", cases[i].m, cases[i].rows, cases[i].cols,
                                       SPOPS_DTYPES_FLOAT),
                    cases[i].status, cases[i].line);
    }
    snprintf(line, sizeof line, "f: x.data is %p, expected a multiple of 4 for f32",
             (void *)(memory + 2));
    expect_line(ctx,
                spops_check_matrix(ctx, "f", "x", spops_matrix_dense(memory + 2, 2, 2, f32), 2, 2,
                                   SPOPS_DTYPES_FLOAT),
                invalid, line);
    expect_line(ctx,
                spops_check_matrix(ctx, "f", "arg", spops_matrix_dense(memory, 2, 2, f32), 2, 2,
                                   1u << SPOPS_DTYPE_I32),
                invalid, "f: arg.dtype is f32, expected i32");
    // Two elements to a byte: even sizes, any address.
    const unsigned four = 1u << SPOPS_DTYPE_F4E2M1;
    const spops_matrix packed = {memory + 1, 3, 4, 6, SPOPS_DTYPE_F4E2M1};
    const spops_matrix odd_cols = {memory + 1, 3, 5, 6, SPOPS_DTYPE_F4E2M1};
    const spops_matrix odd_stride = {memory + 1, 3, 4, 7, SPOPS_DTYPE_F4E2M1};
    const spops_matrix odd_but_one_row = {memory + 1, 1, 4, 7, SPOPS_DTYPE_F4E2M1};
    cr_assert_eq(spops_check_matrix(ctx, "f", "x", packed, 3, 4, four), SPOPS_STATUS_OK);
    cr_assert_eq(spops_check_matrix(ctx, "f", "x", odd_but_one_row, 1, 4, four), SPOPS_STATUS_OK);
    expect_line(ctx, spops_check_matrix(ctx, "f", "x", odd_cols, 3, 5, four), invalid,
                "f: x has 5 columns and row_stride 6, expected even numbers for f4e2m1");
    expect_line(ctx, spops_check_matrix(ctx, "f", "x", odd_stride, 3, 4, four), invalid,
                "f: x has 4 columns and row_stride 7, expected even numbers for f4e2m1");
    spops_context_destroy(ctx);
}

Test(core, matrix_bytes)
{
    const spops_matrix strided = {NULL, 3, 4, 10, SPOPS_DTYPE_F16};
    const spops_matrix one_row = {NULL, 1, 4, 0, SPOPS_DTYPE_F32};
    const spops_matrix empty = {NULL, 0, 4, 4, SPOPS_DTYPE_F32};
    const spops_matrix huge = {NULL, INT64_MAX, 4, 4, SPOPS_DTYPE_F32};
    const spops_matrix packed = {NULL, 3, 4, 10, SPOPS_DTYPE_F4E2M1};
    cr_assert_eq(spops_matrix_bytes(packed), 12);
    cr_assert_eq(spops_matrix_bytes(strided), 48);
    cr_assert_eq(spops_matrix_bytes(one_row), 16);
    cr_assert_eq(spops_matrix_bytes(empty), 0);
    cr_assert_eq(spops_matrix_bytes(huge), SIZE_MAX);
}

// Whether the elements of two matrices share a byte, by looking at each of them.
static bool share_by_hand(const char *base, spops_matrix a, spops_matrix b)
{
    static unsigned char segment[1024];
    memset(segment, 0, sizeof segment);
    for (int pass = 0; pass < 2; ++pass) {
        const spops_matrix m = pass == 0 ? a : b;
        const size_t bytes = spops_dtype_bytes(m.dtype);
        for (int64_t r = 0; r < m.rows; ++r) {
            for (size_t k = 0; k < (size_t)m.cols * bytes; ++k) {
                const size_t at =
                    (size_t)((const char *)m.data - base) + (size_t)(r * m.row_stride) * bytes + k;
                if (pass == 1 && segment[at] == 1) return true;
                if (pass == 0) segment[at] = 1;
            }
        }
    }
    return false;
}

Test(core, matrix_overlap)
{
    static _Alignas(256) char memory[1024];
    spops_context *ctx = cpu_context(NULL);
    int num_shared = 0, num_apart = 0;

    // Every placement of two small matrices, against the definition. Where the strides differ the
    // check may also refuse what merely interleaves, never the reverse.
    for (int64_t begin = 0; begin < 60; ++begin) {
        for (int shape = 0; shape < 4 * 4 * 3 * 3 * 2; ++shape) {
            const int64_t rows_a = shape % 4, rows_b = shape / 4 % 4;
            const int64_t cols_a = shape / 16 % 3 + 1, cols_b = shape / 48 % 3 + 1;
            const int64_t stride_b = shape / 144 == 0 ? 6 : 4;
            const spops_matrix a = {memory + 4 * 20, rows_a, cols_a, 6, SPOPS_DTYPE_F32};
            const spops_matrix b = {memory + 4 * begin, rows_b, cols_b, stride_b, SPOPS_DTYPE_F32};
            const bool shared = share_by_hand(memory, a, b);
            const bool refused =
                spops_check_no_overlap(ctx, "f", "out", b, "x", a) != SPOPS_STATUS_OK;
            cr_assert(refused || !shared);
            cr_assert_eq(refused,
                         spops_check_no_overlap(ctx, "f", "out", a, "x", b) != SPOPS_STATUS_OK);
            if (stride_b == 6 || rows_a <= 1 || rows_b <= 1) {
                cr_assert_eq(refused, shared, "a [%d, %d], b [%d, %d] of stride %d at %d",
                             (int)rows_a, (int)cols_a, (int)rows_b, (int)cols_b, (int)stride_b,
                             (int)begin - 20);
            }
            num_shared += shared;
            num_apart += !shared;
        }
    }
    cr_assert_gt(num_shared, 1000);
    cr_assert_gt(num_apart, 1000);
    expect_line(ctx,
                spops_check_no_overlap(ctx, "f", "out",
                                       spops_matrix_dense(memory, 2, 2, SPOPS_DTYPE_F32), "x",
                                       spops_matrix_dense(memory + 14, 2, 2, SPOPS_DTYPE_F16)),
                SPOPS_STATUS_INVALID_ARGUMENT, "f: out overlaps x, expected separate memory");
    spops_context_destroy(ctx);
}

enum { BLOCK_MEMORY = 4096 };

static void mark_blocks(unsigned char *bytes, const char *base, const spops_argument *a)
{
    const int64_t size = (int64_t)spops_dtype_bytes(a->m.dtype), blocks = a->num_blocks;
    for (int64_t r = 0; r < a->m.rows; ++r)
        for (int64_t i = 0; i < a->m.cols; ++i) {
            const int64_t block = i / (a->m.cols / blocks), col = i % (a->m.cols / blocks);
            const int64_t at = (r * a->m.row_stride + block * a->block_stride + col) * size;
            for (int64_t k = 0; k < size; ++k)
                ++bytes[(const char *)a->m.data - base + at + k];
        }
}

// row_bytes 0: some stride that rows fit in.
static spops_argument random_blocks(test_rng *rng, char *memory, int64_t row_bytes)
{
    const spops_dtype dtype = test_rng_below(rng, 2) == 0 ? SPOPS_DTYPE_F32 : SPOPS_DTYPE_F16;
    const int64_t size = (int64_t)spops_dtype_bytes(dtype);
    const int64_t blocks = 1 + test_rng_below(rng, 4);
    const int64_t cols = 1 + test_rng_below(rng, test_rng_below(rng, 3) == 0 ? 30 : 3);
    const int64_t stride = cols + test_rng_below(rng, 6), span = (blocks - 1) * stride + cols;
    spops_argument a = {"x", {NULL, 0, 0, 0, dtype}, blocks, stride};
    a.m.rows = test_rng_below(rng, 4);
    a.m.cols = blocks * cols;
    a.m.row_stride = row_bytes > 0 ? row_bytes / size : span + test_rng_below(rng, 9);
    if (a.m.row_stride < span && a.m.rows > 1) a.m.rows = 1;
    a.m.data = memory + size * test_rng_below(rng, (BLOCK_MEMORY - 3000) / size);
    return a;
}

// Blocks of columns against the definition.
Test(core, argument_overlap)
{
    static _Alignas(256) char memory[BLOCK_MEMORY];
    static unsigned char bytes[BLOCK_MEMORY];
    test_rng rng = test_rng_make(7);
    int num_shared = 0, num_apart = 0, num_other_steps = 0;

    for (int i = 0; i < 200000; ++i) {
        const int64_t row_bytes =
            test_rng_below(&rng, 4) == 0 ? 0 : 4 + 4 * test_rng_below(&rng, 60);
        const spops_argument a = random_blocks(&rng, memory, row_bytes);
        spops_argument b = random_blocks(&rng, memory, row_bytes);
        if (test_rng_below(&rng, 2) == 0) b.block_stride = a.block_stride; // may overlap itself
        if (b.block_stride < b.m.cols / b.num_blocks) b.num_blocks = 1;
        if (b.m.rows > 1 && b.m.row_stride < (b.num_blocks - 1) * b.block_stride + b.m.cols)
            b.m.rows = 1;
        bool shared = false;
        memset(bytes, 0, sizeof bytes);
        mark_blocks(bytes, memory, &a), mark_blocks(bytes, memory, &b);
        for (int k = 0; k < BLOCK_MEMORY; ++k)
            shared |= bytes[k] > 1;
        const bool refused = spops_arguments_overlap(&a, &b);
        cr_assert(refused == spops_arguments_overlap(&b, &a), "case %d, both ways", i);
        cr_assert(refused || !shared, "case %d: shared, and not seen", i);
        if (row_bytes > 0 || a.m.rows <= 1 || b.m.rows <= 1)
            cr_assert(refused == shared, "case %d: seen, and not shared", i);
        num_shared += shared;
        num_apart += !shared;
        num_other_steps += a.num_blocks > 1 && b.num_blocks > 1 && !refused;
    }
    cr_assert(num_shared > 10000 && num_apart > 10000 && num_other_steps > 1000, "%d, %d, %d",
              num_shared, num_apart, num_other_steps);

    // Queries, keys and values of each head side by side, as one product makes them.
    const spops_matrix row = {memory, 3, 4 * 8, 3 * 4 * 8, SPOPS_DTYPE_F16};
    const spops_argument q = {"q", row, 8, 12};
    spops_argument k = q, out = spops_plain_argument("out", row);
    k.m.data = memory + 4 * sizeof(int16_t);
    cr_assert_not(spops_arguments_overlap(&q, &k));
    k.m.data = memory + 3 * sizeof(int16_t);
    cr_assert(spops_arguments_overlap(&q, &k));
    cr_assert(spops_arguments_overlap(&q, &out));
    out.m.data = NULL;
    cr_assert_not(spops_arguments_overlap(&q, &out));
}

// ---- Backend memory, on both --------------------------------------------------------------------

static void check_backend_memory(spops_backend_kind kind, test_launch launch)
{
    enum { BYTES = 100003 };
    static unsigned char sent[BYTES], got[BYTES];
    test_device d;
    void *a = NULL, *b = NULL;

    if (!test_open(&d, kind, launch)) return;
    const spops_backend *backend = d.ctx->backend;
    for (int i = 0; i < BYTES; ++i)
        sent[i] = (unsigned char)(i * 37 + i / 256);
    cr_assert_eq(spops_backend_alloc(d.ctx, BYTES, &a), SPOPS_STATUS_OK);
    cr_assert_eq(spops_backend_alloc(d.ctx, BYTES, &b), SPOPS_STATUS_OK);
    cr_assert_eq((uintptr_t)a % SPOPS_ALIGNMENT, 0);
    cr_assert_eq(backend->upload(d.ctx, a, sent, BYTES), SPOPS_STATUS_OK);
    cr_assert_eq(backend->fill_zero(d.ctx, b, BYTES), SPOPS_STATUS_OK);
    cr_assert_eq(backend->copy(d.ctx, (char *)b + 1, a, BYTES - 2), SPOPS_STATUS_OK);
    cr_assert_eq(backend->download(d.ctx, got, b, BYTES), SPOPS_STATUS_OK);
    cr_assert(got[0] == 0 && got[BYTES - 1] == 0);
    cr_assert_eq(memcmp(got + 1, sent, BYTES - 2), 0);
    // Nothing to move is nothing to do, wherever the pointers point.
    cr_assert_eq(backend->upload(d.ctx, NULL, NULL, 0), SPOPS_STATUS_OK);
    cr_assert_eq(backend->download(d.ctx, NULL, NULL, 0), SPOPS_STATUS_OK);
    cr_assert_eq(backend->copy(d.ctx, NULL, NULL, 0), SPOPS_STATUS_OK);
    cr_assert_eq(backend->fill_zero(d.ctx, NULL, 0), SPOPS_STATUS_OK);
    cr_assert_not(backend->is_capturing(d.ctx));
    cr_assert_eq(spops_context_wait_sync(d.ctx), SPOPS_STATUS_OK);
    spops_backend_free(d.ctx, a, BYTES);
    spops_backend_free(d.ctx, b, BYTES);
    test_close(&d);
}

// Members are found and others are not, also where addresses collide; what does not fit is left out.
Test(core, address_set)
{
    static char places[4 * SPOPS_ADDRESS_SET_SLOTS];
    static spops_address_set set;
    int members = 0;

    cr_assert(!spops_address_set_has(&set, places));
    for (int i = 0; i < 4 * SPOPS_ADDRESS_SET_SLOTS; i += 2) {
        spops_address_set_add(&set, places + i);
        spops_address_set_add(&set, places + i); // twice is once
    }
    cr_assert_eq(set.num, SPOPS_ADDRESS_SET_MOST);
    for (int i = 0; i < 4 * SPOPS_ADDRESS_SET_SLOTS; ++i) {
        const bool has = spops_address_set_has(&set, places + i);
        cr_assert_eq(has, i % 2 == 0 && i / 2 < SPOPS_ADDRESS_SET_MOST, "address %d", i);
        members += has;
    }
    cr_assert_eq(members, SPOPS_ADDRESS_SET_MOST);
}

Test(core, backend_memory)
{
    for (int launch = LAUNCH_DEFAULT; launch <= LAUNCH_STREAM; ++launch) {
        check_backend_memory(SPOPS_BACKEND_CPU, (test_launch)launch);
        check_backend_memory(SPOPS_BACKEND_CUDA, (test_launch)launch);
    }
}

// With the context's own pool instead of hooks.
Test(core, cuda_pool)
{
    spops_context_options options = spops_context_options_default();
    spops_context *ctx = NULL;
    spops_device_info info;
    void *p = NULL, *q = NULL;
    char text[8] = "";

    if (!device_has_cuda()) {
        cr_log_info("skipped: no CUDA device (%s)", device_error());
        return;
    }
    options.backend = SPOPS_BACKEND_CUDA;
    cr_assert_eq(spops_context_create(&options, &ctx), SPOPS_STATUS_OK, "%s",
                 spops_last_error(NULL));
    info.struct_size = sizeof info;
    cr_assert_eq(spops_context_get_device_info(ctx, &info), SPOPS_STATUS_OK);
    cr_assert_eq(info.backend, SPOPS_BACKEND_CUDA);
    cr_assert_eq(strncmp(info.isa, "sm_", 3), 0);
    cr_assert_eq(atoi(info.isa + 3), info.compute_capability);
    cr_assert(info.num_processors > 0 && info.cache_bytes > 0 && info.memory_bytes > 0);
    cr_assert_eq(spops_context_isa(ctx), SPOPS_ISA_BASELINE);

    // More than the device has: refused, and the next request is served.
    cr_assert_eq(spops_backend_alloc(ctx, (size_t)info.memory_bytes * 2, &p),
                 SPOPS_STATUS_OUT_OF_MEMORY);
    cr_assert_null(p);
    cr_assert_not_null(strstr(spops_last_error(ctx), "out of device memory"));
    cr_assert_eq(spops_context_reserve(ctx, (size_t)info.memory_bytes * 2),
                 SPOPS_STATUS_OUT_OF_MEMORY);
    cr_assert_eq(ctx->scratch_bytes, 0);
    for (int i = 0; i < 3; ++i) { // the first frees what the second takes
        cr_assert_eq(spops_backend_alloc(ctx, (size_t)1 << 20, &p), SPOPS_STATUS_OK);
        cr_assert_eq(spops_backend_alloc(ctx, 1000, &q), SPOPS_STATUS_OK);
        cr_assert_eq((uintptr_t)q % SPOPS_ALIGNMENT, 0);
        cr_assert_eq(ctx->backend->upload(ctx, q, "abcdefg", 8), SPOPS_STATUS_OK);
        cr_assert_eq(ctx->backend->copy(ctx, p, q, 8), SPOPS_STATUS_OK);
        spops_backend_free(ctx, q, 1000);
        cr_assert_eq(ctx->backend->download(ctx, text, p, 8), SPOPS_STATUS_OK);
        cr_assert_str_eq(text, "abcdefg");
        spops_backend_free(ctx, p, (size_t)1 << 20);
    }
    spops_context_destroy(ctx);
}

// What waits or allocates is refused while the stream is captured, and the capture survives it.
Test(core, cuda_capture)
{
    test_device d;
    device_graph *graph = NULL;
    void *p = NULL, *q = NULL;
    unsigned char bytes[16] = {0};
    int kernels, copies, memsets, others;

    if (!test_open(&d, SPOPS_BACKEND_CUDA, LAUNCH_STREAM)) return;
    const spops_backend *backend = d.ctx->backend;
    cr_assert_eq(spops_context_reserve(d.ctx, 100), SPOPS_STATUS_OK);
    cr_assert_eq(spops_backend_alloc(d.ctx, 16, &p), SPOPS_STATUS_OK);
    memset(bytes, 0x41, 16);
    cr_assert_eq(backend->upload(d.ctx, p, bytes, 16), SPOPS_STATUS_OK);

    cr_assert(device_capture_begin(d.stream), "%s", device_error());
    const bool capturing = backend->is_capturing(d.ctx);
    const spops_status enough = spops_context_reserve(d.ctx, 50);
    const spops_status reserve = spops_context_reserve(d.ctx, 1000);
    const spops_status alloc = spops_backend_alloc(d.ctx, 16, &q);
    const spops_status wait = spops_context_wait_sync(d.ctx);
    const spops_status upload = backend->upload(d.ctx, p, bytes, 16);
    const spops_status download = backend->download(d.ctx, bytes, p, 16);
    const spops_status fill = backend->fill_zero(d.ctx, p, 8);
    const spops_status copy = backend->copy(d.ctx, (char *)p + 8, p, 4);
    cr_assert(device_capture_end(d.stream, &graph), "%s", device_error());
    cr_assert(capturing);
    cr_assert_eq(enough, SPOPS_STATUS_OK);
    cr_assert_eq(reserve, SPOPS_STATUS_NOT_SUPPORTED);
    cr_assert_eq(alloc, SPOPS_STATUS_NOT_SUPPORTED);
    cr_assert_eq(wait, SPOPS_STATUS_NOT_SUPPORTED);
    cr_assert_eq(upload, SPOPS_STATUS_NOT_SUPPORTED);
    cr_assert_eq(download, SPOPS_STATUS_NOT_SUPPORTED);
    cr_assert_eq(fill, SPOPS_STATUS_OK);
    cr_assert_eq(copy, SPOPS_STATUS_OK);
    cr_assert(device_graph_count(graph, &kernels, &copies, &memsets, &others));
    cr_assert(kernels == 0 && copies == 1 && memsets == 1 && others == 0);

    cr_assert_not(backend->is_capturing(d.ctx));
    cr_assert(device_graph_launch(graph, d.stream), "%s", device_error());
    cr_assert_eq(backend->download(d.ctx, bytes, p, 16), SPOPS_STATUS_OK);
    for (int i = 0; i < 16; ++i)
        cr_assert_eq(bytes[i], i < 12 ? 0 : 0x41);
    cr_assert_eq(spops_context_reserve(d.ctx, 1000), SPOPS_STATUS_OK);
    device_graph_destroy(graph);
    spops_backend_free(d.ctx, p, 16);
    test_close(&d);
}
