// SPDX-License-Identifier: Apache-2.0
// spops info: what this build contains and what it finds on this machine.
#include <cairo.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

#include "build_info.h"
#include "tools/command.h"

static bool as_json, report;
static const option_row option_rows[] = {
    {"--report", NULL,
     "all that a report of a bug should have: also options, system and environment", .on = &report},
    OPTION_JSON(&as_json),
    {0}};
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

// ---- The report ---------------------------------------------------------------------------------

extern char **environ;

// The text after `key` and its separator in the first line of a file that begins so, without quotes; ""
// where there is none.
static void value_of_line(const char *path, const char *key, char *text, size_t bytes)
{
    char line[512];
    FILE *f = fopen(path, "r");
    text[0] = '\0';
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        const char *value = line + strlen(key);
        value += strspn(value, " \t:=\"");
        snprintf(text, bytes, "%.*s", (int)strcspn(value, "\"\n"), value);
        break;
    }
    if (f != NULL) fclose(f);
}

static void put(json_t *to, const char *key, const char *value)
{
    json_object_set_new(to, key, json_string(value[0] != '\0' ? value : "none"));
}

// What stands in it is text, so that both outputs are made from it.
static json_t *make_report(void)
{
    static const char *const kept[] = {"SPOPS_", "CUDA_", "OMP_", "LD_PRELOAD=", "MALLOC_"};
    char text[512], processor[256];
    struct utsname system;
    json_t *all = json_object(), *environment = json_object();
    put(all, "commit", BUILD_COMMIT);
    put(all, "flags", BUILD_FLAGS);
    put(all, "options", BUILD_OPTIONS);
    put(all, "instruction sets", BUILD_ISAS);
    put(all, "sanitizers", BUILD_SANITIZERS);
    put(all, "CUDA compiler", BUILD_CUDA);
    put(all, "CUDA architectures", BUILD_ARCHITECTURES);
    snprintf(text, sizeof text, "CMake %s, jansson %s, cairo %s", BUILD_CMAKE, JANSSON_VERSION,
             cairo_version_string());
    put(all, "made with", text);
    value_of_line("/etc/os-release", "PRETTY_NAME", text, sizeof text);
    put(all, "system", text);
    if (uname(&system) == 0) {
        snprintf(text, sizeof text, "%s %s %s", system.sysname, system.release, system.machine);
        put(all, "kernel", text);
    }
#ifdef __GLIBC__
    snprintf(text, sizeof text, "glibc %s", gnu_get_libc_version());
    put(all, "C library", text);
#endif
    value_of_line("/proc/cpuinfo", "model name", processor, sizeof processor);
    snprintf(text, sizeof text, "%s, %ld of %ld processors online",
             processor[0] != '\0' ? processor : "unknown", sysconf(_SC_NPROCESSORS_ONLN),
             sysconf(_SC_NPROCESSORS_CONF));
    put(all, "processor", text);
    value_of_line("/proc/driver/nvidia/version", "NVRM version", text, sizeof text);
    put(all, "NVIDIA driver", text);
    for (char **e = environ; *e != NULL; ++e)
        for (size_t i = 0; i < sizeof kept / sizeof *kept; ++i) {
            const size_t length = strcspn(*e, "=");
            if (strncmp(*e, kept[i], strlen(kept[i])) != 0 || length >= sizeof text) continue;
            snprintf(text, sizeof text, "%.*s", (int)length, *e);
            json_object_set_new(environment, text, json_string(getenv(text)));
        }
    json_object_set_new(all, "environment", environment);
    put(all, "log of calls",
        "SPOPS_LOG=calls:FILE in the environment of the program that fails writes FILE, a line a "
        "call");
    return all;
}

static void print_report(const json_t *all)
{
    const char *key, *name;
    json_t *value, *text;
    json_object_foreach((json_t *)all, key, value)
    {
        if (json_is_string(value)) printf("%-18s %s\n", key, json_string_value(value));
        json_object_foreach(value, name, text)
            printf("%-18s %s=%s\n", key, name, json_string_value(text));
    }
}

int command_info(int argc, char **argv)
{
    enum { MAX_DEVICES = 64 };
    as_json = report = false;
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
        printf("built      %s, %s, CUDA backend %s\n", COMPILER, BUILD_TYPE,
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
                                 "compiler", COMPILER, "build_type", BUILD_TYPE, "cuda_backend",
                                 spops_has_cuda(), "devices", devices);
        if (num_cuda == 0) json_object_set_new(line, "no_cuda", json_string(why));
        if (report) json_object_set_new(line, "report", make_report());
        command_print_json(line);
    } else {
        json_decref(devices);
    }
    if (report && !as_json) {
        json_t *all = make_report();
        print_report(all);
        json_decref(all);
    }
    return COMMAND_OK;
}
