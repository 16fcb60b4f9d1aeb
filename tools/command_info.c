// SPDX-License-Identifier: Apache-2.0
// spops info: what this build contains and what it finds on this machine.
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "tools/command.h"

static bool as_json;
static const option_row option_rows[] = {OPTION_JSON(&as_json), {0}};
const option_set info_options = {
    .program = "spops info",
    .summary = "version, build, backends and devices",
    .about =
        "Print the version, how the library was built, and the devices that its backends find.",
    .rows = option_rows};

#if defined(__clang__)
#define COMPILER "Clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "GCC " __VERSION__
#else
#define COMPILER "unknown compiler"
#endif

#ifndef SPOPS_BUILD_TYPE
#define SPOPS_BUILD_TYPE "unknown"
#endif

static json_t *device_as_json(const spops_device_info *d)
{
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:I, s:I}", "name", d->name, "isa", d->isa,
                     "device", (int)d->device, "compute_capability", (int)d->compute_capability,
                     "processors", (int)d->num_processors, "cache_bytes",
                     (json_int_t)d->cache_bytes, "memory_bytes", (json_int_t)d->memory_bytes);
}

// Device `ordinal` of a backend; false where there is none, with the reason.
static bool describe(spops_backend_kind backend, int ordinal, spops_device_info *out, char *why,
                     size_t why_bytes)
{
    spops_context_options options = spops_context_options_default();
    spops_context *ctx = NULL;
    options.backend = backend;
    options.device = ordinal;
    memset(out, 0, sizeof *out);
    out->struct_size = sizeof *out;
    if (spops_context_create(&options, &ctx) != SPOPS_STATUS_OK) {
        snprintf(why, why_bytes, "%s", spops_last_error(NULL));
        return false;
    }
    const bool ok = spops_context_get_device_info(ctx, out) == SPOPS_STATUS_OK;
    if (!ok) snprintf(why, why_bytes, "%s", spops_last_error(ctx));
    spops_context_destroy(ctx);
    return ok;
}

static void print_device(const spops_device_info *d)
{
    char cache[COMMAND_NUMBER_BYTES], memory[COMMAND_NUMBER_BYTES];
    const bool cuda = d->backend == SPOPS_BACKEND_CUDA;
    printf("  %s %d   %s, %s, %d %s, %s of last-level cache, %s of memory\n",
           cuda ? "cuda" : "cpu ", (int)d->device, d->name, d->isa, (int)d->num_processors,
           cuda ? "multiprocessors" : "threads", in_bytes((double)d->cache_bytes, cache),
           in_bytes((double)d->memory_bytes, memory));
}

int command_info(int argc, char **argv)
{
    enum { MAX_DEVICES = 64 };
    as_json = false;
    const options_result result = options_read(&info_options, argc, argv);
    if (result != OPTIONS_READ) return command_status(result);

    spops_device_info cpu, cuda;
    char why[512] = "";
    if (!describe(SPOPS_BACKEND_CPU, 0, &cpu, why, sizeof why))
        return command_fail(info_options.program, "%s", why);
    json_t *devices = json_array();
    json_array_append_new(devices, device_as_json(&cpu));
    if (!as_json) {
        printf("spops %s\n", spops_version());
        printf("built      %s, %s, CUDA backend %s\n", COMPILER, SPOPS_BUILD_TYPE,
               spops_has_cuda() ? "included" : "left out");
        printf("devices\n");
        print_device(&cpu);
    }
    int num_cuda = 0;
    while (num_cuda < MAX_DEVICES &&
           describe(SPOPS_BACKEND_CUDA, num_cuda, &cuda, why, sizeof why)) {
        json_array_append_new(devices, device_as_json(&cuda));
        if (!as_json) print_device(&cuda);
        ++num_cuda;
    }
    if (num_cuda == 0 && !as_json) printf("  cuda     none: %s\n", why);

    if (as_json) {
        json_t *line = json_pack("{s:s, s:s, s:s, s:b, s:o}", "version", spops_version(),
                                 "compiler", COMPILER, "build_type", SPOPS_BUILD_TYPE,
                                 "cuda_backend", spops_has_cuda(), "devices", devices);
        if (num_cuda == 0) json_object_set_new(line, "no_cuda", json_string(why));
        command_print_json(line);
    } else {
        json_decref(devices);
    }
    return COMMAND_OK;
}
